/* Attention in TF32 (attention_tf32.cuh), forward: a block has 64 or 128 queries, 16 or 32 for each
 * of its four warps, and walks over the keys 32 at a time (16 for heads above 64), as
 * flash_forward.cu does. */
#include "attention_tf32.cuh"

template <int D, int MT> static size_t forward_bytes(const ax_cuda_attention_job &j)
{
  typedef layout<D, MT, false> L;
  const int masks = !j.mask.data ? 0 : FLASH_WARPS * L::mask_pitch * (flash_same_mask(j) ? 1 : 16 * MT);
  return sizeof(float) * (size_t)(L::own * L::pitch + 4 * L::tile + masks);
}

template <int D, int MT, bool EXACT>
static __global__ void __launch_bounds__(FLASH_THREADS)
    forward_tf32(const __grid_constant__ ax_cuda_attention_job j, int section, int dtype)
{
  typedef layout<D, MT, false> L;
  constexpr int OWN = L::own, WALK = L::walk, COLUMNS = WALK / 8, PITCH = L::pitch;
  AX_DYNAMIC_SHARED(memory);
  float *const own = (float *)memory, *const walk = own + OWN * PITCH;
  const int warp = threadIdx.x / 32, mask_rows = flash_same_mask(j) ? 1 : 16 * MT;
  float *const mask = walk + 4 * L::tile + warp * mask_rows * L::mask_pitch;
  float *const my_rows = own + warp * 16 * MT * PITCH;

  const int queries = (int)j.queries, keys = (int)j.keys, tiles = (queries + OWN - 1) / OWN;
  const flash_place at = flash_find<true>((unsigned)(j.batch * j.heads), (unsigned)j.heads, tiles, section);
  const int q0 = at.tile * OWN, my_q0 = q0 + warp * 16 * MT;
  const int end = j.causal && q0 + OWN < keys ? q0 + OWN : keys, steps = (end + WALK - 1) / WALK;
  const plane_rows k_rows(j.k, at.b, at.h / (int)j.group, j.head, dtype),
      v_rows(j.v, at.b, at.h / (int)j.group, j.value_head, dtype);
  const int64_t mask_at = at.b * j.mask.step[0] + at.h * j.mask.step[1], plane = at.b * j.heads + at.h;

  float sum[MT][D / 8][4], top[MT][2], all[MT][2];
#pragma unroll
  for (int m = 0; m < MT; m++) {
    top[m][0] = top[m][1] = -INFINITY;
    all[m][0] = all[m][1] = 0;
#pragma unroll
    for (int n = 0; n < D / 8; n++) sum[m][n][0] = sum[m][n][1] = sum[m][n][2] = sum[m][n][3] = 0;
  }

  load_rows<D, OWN>(own, plane_rows(j.q, at.b, at.h, j.head, dtype), q0, queries);
  if (steps > 0) {
    load_rows<D, WALK>(walk, k_rows, 0, keys);
    load_rows<D, WALK>(walk + L::tile, v_rows, 0, keys);
  }
  ax_cuda_copy_commit();

  for (int step = 0; step < steps; step++) {
    const int k0 = step * WALK;
    const float *const k_tile = walk + step % 2 * 2 * L::tile, *const v_tile = k_tile + L::tile;
    ax_cuda_copy_wait<0>();
    __syncthreads(); /* this tile is complete, and no thread reads the one before any more */
    if (step + 1 < steps) {
      float *const next = walk + (step + 1) % 2 * 2 * L::tile;
      load_rows<D, WALK>(next, k_rows, k0 + WALK, keys);
      load_rows<D, WALK>(next + L::tile, v_rows, k0 + WALK, keys);
      ax_cuda_copy_commit();
    }
    /* none of this warp's queries sees any of these keys */
    if (j.causal && k0 > my_q0 + 16 * MT - 1) continue;

    float s[MT][COLUMNS][4], change[MT][2];
    dots<PITCH, EXACT>(s, my_rows, k_tile, j.head);
    if (j.mask.data) flash_stage_mask<WALK, L::mask_pitch, false>(j, mask_at, my_q0, mask_rows, k0, mask);
#pragma unroll
    for (int m = 0; m < MT; m++) {
      mask_scores<false, WALK, L::mask_pitch>(j, s[m], my_q0 + 16 * m, k0,
                                              mask + (mask_rows == 1 ? 0 : 16 * m * L::mask_pitch));
      uint32_t kept[4] = { ~0u, ~0u, ~0u, ~0u };
      if (j.dropout) keep<false, COLUMNS>(j, plane, my_q0 + 16 * m, k0, kept);
#pragma unroll
      for (int half = 0; half < 2; half++) { /* a row belongs to four lanes */
        float most = top[m][half], part = 0;
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) most = fmaxf(most, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        /* all keys masked so far: exp(-inf - 0) is 0, not NaN */
        const float least = most == -INFINITY ? 0.0f : most;
        change[m][half] = ax_exp_f32(top[m][half] - least);
        top[m][half] = most;
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; i++) {
            const float p = ax_exp_f32(s[m][n][i] - least);
            part += p;
            s[m][n][i] = kept[i] >> 4 * n & 1 ? p : 0.0f;
          }
        all[m][half] = all[m][half] * change[m][half] + part; /* over this lane's keys */
      }
    }
    add_rows<PITCH, EXACT, MT, COLUMNS, D / 32>(sum, change, s, v_tile, j.value_head);
  }

  /* without any keys the copies of the queries are still running, and their memory is about to be
   * written */
  ax_cuda_copy_wait<0>();
  __syncthreads();
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < MT; m++) {
    float rest[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float total = all[m][half];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      const bool none = total == 0; /* the query sees no key: the result is 0, as in PyTorch */
      const int q = my_q0 + 16 * m + turn(lane / 4) + 8 * half;
      rest[half] = none ? 0.0f : (j.dropout ? (float)j.kept : 1.0f) / total;
      if (lane % 4 == 0 && q < queries)
        ((float *)j.lse)[plane * queries + q] = none ? INFINITY : top[m][half] + ax_log_f32(total);
    }
    keep_sums<PITCH, D / 32>(my_rows + 16 * m * PITCH, sum[m], rest[0], rest[1], j.value_head);
  }
  __syncthreads();
  store_rows<D, OWN>(own, plane_rows(j.y, at.b, at.h, j.value_head, dtype), q0, queries);
}

template <int D, int MT, bool EXACT>
static ax_status launch_forward(ax_device d, ax_dtype dtype, const ax_cuda_attention_job *j)
{
  const int own = layout<D, MT, false>::own;
  const int64_t planes = j->batch * j->heads, blocks = (j->queries + own - 1) / own * planes;
  const int section =
      flash_section(planes, j->keys * (j->head + j->value_head) * (int64_t)ax_dtype_size(dtype) / j->group);
  return ax_cuda_launch_shared<forward_tf32<D, MT, EXACT>>("attention", d, (unsigned)blocks, FLASH_THREADS,
                                                           forward_bytes<D, MT>(*j), *j, section, (int)dtype);
}

size_t ax_cuda_tf32_forward_shared(const ax_cuda_attention_job *j)
{
  return ax_cuda_attention_head(*j, [&](auto size) {
    constexpr int D = AX_VALUE_OF(size);
    return forward_bytes < D, D <= 64 ? 2 : 1 > (*j);
  });
}

ax_status ax_cuda_tf32_forward(ax_device d, ax_dtype dtype, const ax_cuda_attention_job *j)
{
  /* Blocks of 128 queries split keys and values half as often; blocks of 64 are used where 128
   * would leave multiprocessors idle. */
  const bool large = (j->queries + 127) / 128 * j->batch * j->heads >= 2 * ax_cuda_multiprocessors(d.index);
  return tf32_with_digits(dtype, [&](auto exact) {
    return ax_cuda_attention_head(*j, [&](auto size) {
      constexpr int D = AX_VALUE_OF(size);
      constexpr bool EXACT = AX_VALUE_OF(exact);
      if constexpr (D <= 64)
        if (large) return launch_forward<D, 2, EXACT>(d, dtype, j);
      return launch_forward<D, 1, EXACT>(d, dtype, j);
    });
  });
}

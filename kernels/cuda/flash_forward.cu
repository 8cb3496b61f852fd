/* Attention on tensor cores, forward (Dao 2023, "FlashAttention-2"): a block has 64 or 128 queries,
 * 16 or 32 for each of its four warps, and walks over the keys 64 at a time (32 for heads above 64,
 * to save registers).
 *
 * A warp's scores stay in its registers: fragment d of queries times keys becomes, as
 * probabilities, fragment a of the product with values.  The next keys and values are copied
 * (cp.async) while these are used.  There is one barrier for each tile: after it the new keys and
 * values are complete, and no thread uses the old ones any more, whose memory the next copies
 * overwrite.
 *
 * Sums are float32.  Probabilities are rounded to the half type for their product with values;
 * their sum uses unrounded ones.  The order of keys does not depend on the rows of a block, so both
 * sizes of block give the same bits.
 *
 * Occupancy of a multiprocessor (sm_90): head 64 has two blocks of 128 queries (250 registers, 48
 * KB) or three of 64 (134 and, with dropout, 153 registers, 40 KB); head 128 two of either (up to
 * 255 registers; 64 and 48 KB).  A query-dependent mask adds 4 to 36 KB.
 *
 * The lower bound on an H200 (989 TFLOP/s of dense bfloat16, mma.sync reaching some 60%;
 * 4.8 TB/s), computed, not measured: GPT-2 124M (B 8, H 12, T 1024, D 64, causal): 2 products,
 * 12.9 GFLOP: 13 us (mma.sync: 22); 50 MB: 10 us; 50 M exponentials, 16 per clock: 14 us.
 * BERT-base (B 8, H 12, T 128, D 64, mask, dropout): 0.4 GFLOP: 0.4 us; 6 MB: 1.3 us; 0.4 M Philox
 * blocks of some 60 instructions: 1.5 us; the launch itself takes longer.  Its 192 blocks all run
 * at once. */
#include "flash.cuh"

template <int D, int MT> struct layout {
  /* 8: rows of a mask start 8 banks apart */
  static const int own = 16 * MT * FLASH_WARPS, walk = D <= 64 ? 64 : 32, pitch = walk + 8;
  static size_t bytes(const ax_cuda_attention_job &j)
  {
    const size_t masks =
        j.mask.data ? sizeof(float) * FLASH_WARPS * pitch * (flash_same_mask(j) ? 1 : 16 * MT) : 0;
    return (size_t)(own + 4 * walk) * D * 2 + masks;
  }
};

template <class S, int D, int MT, bool DROP>
static __global__ void __launch_bounds__(FLASH_THREADS) forward(ax_cuda_attention_job j, int section)
{
  typedef layout<D, MT> L;
  constexpr int OWN = L::own, WALK = L::walk, COLUMNS = WALK / 8;
  constexpr bool HOLD = MT == 1 || D <= 64; /* whether the queries' fragments fit into registers */
  AX_DYNAMIC_SHARED(memory);
  S *const own = (S *)memory, *const walk = own + OWN * D;
  const int warp = threadIdx.x / 32, mask_rows = flash_same_mask(j) ? 1 : 16 * MT;
  float *const mask = (float *)(walk + 4 * WALK * D) + warp * mask_rows * L::pitch;
  S *const my_rows = own + warp * 16 * MT * D;
  flash_reader<D, true> upright;
  flash_reader<D, false> across;

  const int queries = (int)j.queries, keys = (int)j.keys, tiles = (queries + OWN - 1) / OWN;
  const flash_place at = flash_find<true>((unsigned)(j.batch * j.heads), (unsigned)j.heads, tiles, section);
  const int q0 = at.tile * OWN, my_q0 = q0 + warp * 16 * MT;
  const int end = j.causal && q0 + OWN < keys ? q0 + OWN : keys, steps = (end + WALK - 1) / WALK;
  const int kv_head = at.h / (int)j.group;
  const flash_source<S, D> k_source(ax_cuda_plane<const S>(j.k, at.b, kv_head), j.k.step[2], j.head),
      v_source(ax_cuda_plane<const S>(j.v, at.b, kv_head), j.v.step[2], j.value_head);
  const int64_t mask_at = at.b * j.mask.step[0] + at.h * j.mask.step[1], plane = at.b * j.heads + at.h;
  const float scale = (float)(j.scale * FLASH_LOG2E);
  const bool first = j.mask.data || !(scale > 0); /* scores are multiplied before their maximum is taken */
  const float by = first ? 1.0f : scale;

  float sum[MT][D / 8][4], top[MT][2], all[MT][2];
  uint32_t held[HOLD ? MT : 1][HOLD ? D / 16 : 1][4];
#pragma unroll
  for (int m = 0; m < MT; m++) {
    top[m][0] = top[m][1] = -INFINITY;
    all[m][0] = all[m][1] = 0;
#pragma unroll
    for (int n = 0; n < D / 8; n++) sum[m][n][0] = sum[m][n][1] = sum[m][n][2] = sum[m][n][3] = 0;
  }

  flash_source<S, D>(ax_cuda_plane<const S>(j.q, at.b, at.h), j.q.step[2], j.head)
      .template load<OWN>(own, q0, queries);
  if (steps > 0) {
    k_source.template load<WALK>(walk, 0, keys);
    v_source.template load<WALK>(walk + WALK * D, 0, keys);
  }
  ax_cuda_copy_commit();

  for (int step = 0; step < steps; step++) {
    const int k0 = step * WALK;
    const S *const k_tile = walk + step % 2 * 2 * WALK * D, *const v_tile = k_tile + WALK * D;
    const int lane = flash_anew(threadIdx.x % 32);
    upright.anew();
    across.anew();
    ax_cuda_copy_wait<0>();
    __syncthreads();
    if (step + 1 < steps) {
      S *const next = walk + (step + 1) % 2 * 2 * WALK * D;
      k_source.template load<WALK>(next, k0 + WALK, keys);
      v_source.template load<WALK>(next + WALK * D, k0 + WALK, keys);
      ax_cuda_copy_commit();
    }
    if (HOLD && step == 0) {
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int k = 0; k < (HOLD ? D / 16 : 0); k++)
          ax_cuda_ldmatrix(held[m][k], my_rows + upright.at(16 * m, 2 * k));
    }
    /* none of this warp's queries sees any of these keys */
    if (j.causal && k0 > my_q0 + 16 * MT - 1) continue;

    uint32_t kept[MT][2];
    if (DROP) {
#pragma unroll
      for (int m = 0; m < MT; m++) flash_keep_queries<COLUMNS>(j, plane, my_q0 + 16 * m, k0, kept[m]);
    }

    float s[MT][COLUMNS][4];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
      for (int n = 0; n < COLUMNS; n++) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
      uint32_t a[MT][4];
#pragma unroll
      for (int m = 0; m < MT; m++)
        if (HOLD)
          for (int i = 0; i < 4; i++) a[m][i] = held[HOLD ? m : 0][HOLD ? k : 0][i];
        else ax_cuda_ldmatrix(a[m], my_rows + upright.at(16 * m, 2 * k));
#pragma unroll
      for (int n = 0; n < COLUMNS; n += 2) {
        uint32_t b[4];
        ax_cuda_ldmatrix(b, k_tile + across.at(8 * n, 2 * k));
#pragma unroll
        for (int m = 0; m < MT; m++) {
          ax_cuda_mma(S{}, s[m][n], a[m], b[0], b[1]);
          ax_cuda_mma(S{}, s[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }

    if (j.mask.data) flash_stage_mask<WALK, L::pitch>(j, mask_at, my_q0, mask_rows, k0, mask);
    if (j.mask.data) {
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const float *const row =
              mask + (mask_rows == 1 ? 0 : (16 * m + 8 * half + lane / 4) * L::pitch) + lane % 4 * 2;
#pragma unroll
          for (int n = 0; n < COLUMNS; n++) {
            const float2 two = *(const float2 *)(row + 8 * n);
            s[m][n][2 * half] = fmaf(s[m][n][2 * half], scale, two.x);
            s[m][n][2 * half + 1] = fmaf(s[m][n][2 * half + 1], scale, two.y);
          }
        }
    } else if (first) {
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
#pragma unroll
          for (int i = 0; i < 4; i++) s[m][n][i] *= scale;
    }
    if (k0 + WALK > keys || (j.causal && k0 + WALK - 1 > my_q0)) { /* the last keys, and the diagonal */
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const int q = my_q0 + 16 * m + lane / 4 + 8 * (i / 2), k = k0 + 8 * n + lane % 4 * 2 + i % 2;
            if (k >= keys || (j.causal && k > q)) s[m][n][i] = -INFINITY;
          }
    }

#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) { /* a row belongs to four lanes */
        float most = top[m][half];
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) most = fmaxf(most, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        /* all keys masked so far: exp2(-inf - 0) is 0, not NaN */
        const float least = most == -INFINITY ? 0.0f : most * by;
        const float change = ax_cuda_exp2_fast(fmaf(top[m][half], by, -least));
        top[m][half] = most;
        float part = 0;
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; i++) {
            const float p = ax_cuda_exp2_fast(fmaf(s[m][n][i], by, -least));
            part += p;
            s[m][n][i] = !DROP || (kept[m][half] >> (4 * n + i % 2) & 1) ? p : 0.0f;
          }
        all[m][half] = all[m][half] * change + part; /* over this lane's keys */
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
          sum[m][n][2 * half] *= change;
          sum[m][n][2 * half + 1] *= change;
        }
      }

#pragma unroll
    for (int k = 0; k < WALK / 16; k++) {
      uint32_t a[MT][4];
#pragma unroll
      for (int m = 0; m < MT; m++) flash_as_a<S>(a[m], s[m][2 * k], s[m][2 * k + 1]);
#pragma unroll
      for (int n = 0; n < D / 8; n += 2) {
        uint32_t b[4];
        ax_cuda_ldmatrix_trans(b, v_tile + upright.at(16 * k, n));
#pragma unroll
        for (int m = 0; m < MT; m++) {
          ax_cuda_mma(S{}, sum[m][n], a[m], b[0], b[1]);
          ax_cuda_mma(S{}, sum[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  /* without any keys the copies of the queries are still running, and their memory is about to be
   * written */
  ax_cuda_copy_wait<0>();
  __syncthreads();
  S *const y = ax_cuda_plane<S>(j.y, at.b, at.h);
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
      const int q = my_q0 + 16 * m + lane / 4 + 8 * half;
      rest[half] = none ? 0.0f : (DROP ? (float)j.kept : 1.0f) / total;
      if (lane % 4 == 0 && q < queries)
        ((float *)j.lse)[plane * queries + q] =
            none ? INFINITY : (float)((top[m][half] * by + log2f(total)) * (1 / FLASH_LOG2E));
    }
    flash_store<D>(my_rows + 16 * m * D, sum[m], rest[0], rest[1], y, j.y.step[2], my_q0 + 16 * m, queries,
                   j.value_head);
  }
}

template <class S, int D, int MT, bool DROP>
static ax_status launch(ax_device d, const ax_cuda_attention_job *j)
{
  const int64_t planes = j->batch * j->heads,
                blocks = (j->queries + layout<D, MT>::own - 1) / layout<D, MT>::own * planes;
  const int section = flash_section(planes, (int64_t)j->keys * (j->head + j->value_head) * 2 / j->group);
  const size_t bytes = layout<D, MT>::bytes(*j);
  return ax_cuda_launch_shared<forward<S, D, MT, DROP>>("attention", d, (unsigned)blocks, FLASH_THREADS,
                                                        bytes, *j, section);
}

size_t ax_cuda_flash_forward_shared(const ax_cuda_attention_job *j)
{
  return flash_with_head(*j, [&](auto size) { return layout<AX_VALUE_OF(size), 2>::bytes(*j); });
}

ax_status ax_cuda_flash_forward(ax_device d, ax_dtype dtype, const ax_cuda_attention_job *j)
{
  /* Blocks of 128 queries read keys and values from shared memory half as often.  Blocks of 64 are
   * used where 128 would leave multiprocessors idle, and with dropout, which is bound by
   * arithmetic: more warps fit then. */
  const bool large = (j->queries + 127) / 128 * j->batch * j->heads >= 2 * ax_cuda_multiprocessors(d.index);
  return flash_with_type(dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return flash_with_head(*j, [&](auto size) {
      constexpr int D = AX_VALUE_OF(size);
      if (j->dropout) return launch<S, D, 1, true>(d, j);
      return large ? launch<S, D, 2, false>(d, j) : launch<S, D, 1, false>(d, j);
    });
  });
}

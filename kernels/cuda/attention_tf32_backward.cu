/* The gradient of attention in TF32 (attention_tf32.cuh): the formulas and the two passes of
 * flash_backward.cu, in blocks of 64 own rows (32 for heads above 128). */
#include "attention_tf32.cuh"

template <int D, bool KEYS> static size_t backward_bytes(const ax_cuda_attention_job &j)
{
  typedef layout<D, 1, true> L;
  const int masks = !j.mask.data ? 0
                    : KEYS       ? FLASH_WARPS * L::mask_pitch_keys * (flash_same_mask(j) ? 1 : L::walk)
                                 : FLASH_WARPS * L::mask_pitch * (flash_same_mask(j) ? 1 : 16);
  return sizeof(float) * (size_t)(2 * L::own * L::pitch + 4 * L::tile + (KEYS ? 4 * L::walk : 0) + masks);
}

/* The log-sum-exp that probabilities are computed with.  Of a query that is masked in full by
 * large numbers it is as large as these, and its own rounding is worth more than all differences
 * of scores: it is lowered by more than that, and no probability exceeds 1 (flash_lse in
 * flash.cuh). */
static __device__ __forceinline__ float lse_of(float lse)
{
  const float a = fabsf(lse);
  return a > 0x1p14f && a < INFINITY ? fmaxf(lse - a * 0x1p-22f, -0x1.fffffep127f) : lse;
}
static __device__ __forceinline__ float probability(float score, float lse)
{
  const float d = score - lse;
  return ax_exp_f32(d > 0 ? 0.0f : d); /* NaN stays */
}

template <int D, bool KEYS, bool EXACT>
static __global__ void __launch_bounds__(FLASH_THREADS)
    backward_tf32(const __grid_constant__ ax_cuda_attention_job j, int section, int dtype)
{
  typedef layout<D, 1, true> L;
  constexpr int OWN = L::own, WALK = L::walk, COLUMNS = WALK / 8, PITCH = L::pitch, WIDE = D / L::split,
                TEAMS = FLASH_WARPS / L::split, MASK_PITCH = KEYS ? L::mask_pitch_keys : L::mask_pitch;
  AX_DYNAMIC_SHARED(memory);
  float *const own = (float *)memory, *const walk = own + 2 * OWN * PITCH, *const stats = walk + 4 * L::tile;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, team = warp % TEAMS,
            column0 = warp / TEAMS * WIDE, /* of this warp's columns of the result */
      mask_rows = flash_same_mask(j) ? 1
                  : KEYS             ? WALK
                                     : 16;
  float *const mask = stats + (KEYS ? 4 * WALK : 0) + warp * mask_rows * MASK_PITCH;
  float *const my_a1 = own + team * 16 * PITCH, *const my_a2 = my_a1 + OWN * PITCH;

  const int queries = (int)j.queries, keys = (int)j.keys, group = (int)j.group,
            own_rows = KEYS ? keys : queries;
  const int own_heads = (int)(KEYS ? j.heads / j.group : j.heads);
  const flash_place at =
      flash_find<!KEYS>((unsigned)j.batch * own_heads, own_heads, (own_rows + OWN - 1) / OWN, section);
  const int own0 = at.tile * OWN, my0 = own0 + team * 16;
  const ax_cuda_side &a1 = KEYS ? j.k : j.q, &a2 = KEYS ? j.v : j.g, &w1 = KEYS ? j.q : j.k,
                     &w2 = KEYS ? j.g : j.v;
  const float kept_by = j.dropout ? (float)j.kept : 1.0f;

  /* Keys: the heads of the group one after the other, each from the diagonal on.  Queries: up to
   * the diagonal. */
  const int begin = KEYS && j.causal ? own0 / WALK * WALK : 0;
  const int end = KEYS ? queries : j.causal && own0 + OWN < keys ? own0 + OWN : keys;
  const int each = end > begin ? (end - begin + WALK - 1) / WALK : 0, steps = KEYS ? each * group : each;

  float da1[1][WIDE / 8][4], da2[1][KEYS ? WIDE / 8 : 4][4], lse[2], delta[2];
#pragma unroll
  for (int n = 0; n < WIDE / 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      da1[0][n][i] = 0;
      da2[0][KEYS ? n : 0][i] = 0;
    }
#pragma unroll
  for (int half = 0; half < (KEYS ? 0 : 2); half++) {
    const int q = my0 + turn(lane / 4) + 8 * half;
    const int64_t place = (at.b * j.heads + at.h) * j.queries + q;
    lse[half] = q < queries ? lse_of(((const float *)j.lse)[place]) : INFINITY;
    delta[half] = q < queries ? ((const float *)j.delta)[place] : 0.0f;
  }

  const int w_head = KEYS ? at.h * group : at.h / group, w_count = KEYS ? queries : keys;
  int next = begin, next_head = w_head; /* of the tile that is loaded next */
  auto load = [&](int step) {
    float *const to = walk + step % 2 * 2 * L::tile;
    load_rows<D, WALK>(to, plane_rows(w1, at.b, next_head, j.head, dtype), next, w_count);
    load_rows<D, WALK>(to + L::tile, plane_rows(w2, at.b, next_head, j.value_head, dtype), next, w_count);
    if (KEYS) flash_load_stats<WALK>(stats + step % 2 * 2 * WALK, j, at.b * j.heads + next_head, next);
    if ((next += WALK) < end || !KEYS) return;
    next = begin;
    next_head++;
  };
  load_rows<D, OWN>(own, plane_rows(a1, at.b, at.h, j.head, dtype), own0, own_rows);
  load_rows<D, OWN>(own + OWN * PITCH, plane_rows(a2, at.b, at.h, j.value_head, dtype), own0, own_rows);
  if (steps > 0) load(0);
  ax_cuda_copy_commit();

  for (int step = 0; step < steps; step++) {
    /* this step's walked rows and queries' head, as `load` counted them */
    const int walk0 = begin + step % (KEYS ? each : steps) * WALK, h = KEYS ? w_head + step / each : at.h;
    const int q0 = KEYS ? walk0 : my0, k0 = KEYS ? my0 : walk0;
    const int64_t plane = at.b * j.heads + h;
    const float *const w1_tile = walk + step % 2 * 2 * L::tile, *const w2_tile = w1_tile + L::tile;
    const float *const w_stats = stats + step % 2 * 2 * WALK;
    ax_cuda_copy_wait<0>();
    __syncthreads(); /* this tile is complete, and no thread reads the one before any more */
    if (step + 1 < steps) {
      load(step + 1);
      ax_cuda_copy_commit();
    }
    if (j.causal && (KEYS ? q0 + WALK - 1 < k0 : k0 > q0 + 15)) continue; /* entirely above the diagonal */

    float s[1][COLUMNS][4], dp[1][COLUMNS][4];
    dots<PITCH, EXACT>(s, my_a1, w1_tile, j.head);
    dots<PITCH, EXACT>(dp, my_a2, w2_tile, j.value_head);
    if (j.mask.data)
      flash_stage_mask<KEYS ? 16 : WALK, MASK_PITCH, false>(j, at.b * j.mask.step[0] + h * j.mask.step[1], q0,
                                                            mask_rows, k0, mask);
    mask_scores<KEYS, WALK, MASK_PITCH>(j, s[0], q0, k0, mask);
    uint32_t kept[4] = { ~0u, ~0u, ~0u, ~0u };
    if (j.dropout) keep<KEYS, COLUMNS>(j, plane, q0, k0, kept);
      /* Beyond the last query everything is 0: its rows, and its lse and delta (loaded as 0). */
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int column = 8 * n + lane % 4 + i % 2 * 4;
        const float l = KEYS ? lse_of(w_stats[column]) : lse[i / 2],
                    d = KEYS ? w_stats[WALK + column] : delta[i / 2], p = probability(s[0][n][i], l);
        const bool stays = kept[i] >> 4 * n & 1;
        s[0][n][i] = stays ? p : 0.0f;
        dp[0][n][i] = p * ((stays ? dp[0][n][i] * kept_by : 0.0f) - d);
      }
    const float ones[1][2] = { { 1, 1 } };
    add_rows<PITCH, EXACT, 1, COLUMNS, WIDE / 32>(da1, ones, dp, w1_tile + column0, j.head - column0);
    if constexpr (KEYS)
      add_rows<PITCH, EXACT, 1, COLUMNS, WIDE / 32>(da2, ones, s, w2_tile + column0, j.value_head - column0);
  }

  /* no thread reads the own rows any more, nor are they being loaded */
  ax_cuda_copy_wait<0>();
  __syncthreads();
  const float all = (float)j.scale;
  keep_sums<PITCH, WIDE / 32>(my_a1 + column0, da1[0], all, all, j.head - column0);
  if constexpr (KEYS)
    keep_sums<PITCH, WIDE / 32>(my_a2 + column0, da2[0], kept_by, kept_by, j.value_head - column0);
  __syncthreads();
  store_rows<D, OWN>(own, plane_rows(KEYS ? j.dk : j.dq, at.b, at.h, j.head, dtype), own0, own_rows);
  if constexpr (KEYS)
    store_rows<D, OWN>(own + OWN * PITCH, plane_rows(j.dv, at.b, at.h, j.value_head, dtype), own0, own_rows);
}

template <int D, bool KEYS, bool EXACT>
static ax_status launch_backward(ax_device d, ax_dtype dtype, const ax_cuda_attention_job *j)
{
  const int own = layout<D, 1, true>::own;
  const int64_t planes = KEYS ? j->batch * (j->heads / j->group) : j->batch * j->heads,
                blocks = ((KEYS ? j->keys : j->queries) + own - 1) / own * planes;
  const int64_t walked = (j->head + j->value_head) * (int64_t)ax_dtype_size(dtype) *
                         (KEYS ? j->queries * j->group : j->keys / j->group);
  if (blocks == 0) return AX_OK;
  return ax_cuda_launch_shared<backward_tf32<D, KEYS, EXACT>>("attention", d, (unsigned)blocks, FLASH_THREADS,
                                                              backward_bytes<D, KEYS>(*j), *j,
                                                              flash_section(planes, walked), (int)dtype);
}

size_t ax_cuda_tf32_backward_shared(const ax_cuda_attention_job *j)
{
  return ax_cuda_attention_head(*j, [&](auto size) {
    constexpr int D = AX_VALUE_OF(size);
    const size_t keys = backward_bytes<D, true>(*j), queries = backward_bytes<D, false>(*j);
    return keys > queries ? keys : queries;
  });
}

ax_status ax_cuda_tf32_backward(ax_device d, ax_dtype dtype, const ax_cuda_attention_job *j)
{
  return tf32_with_digits(dtype, [&](auto exact) {
    return ax_cuda_attention_head(*j, [&](auto size) {
      constexpr int D = AX_VALUE_OF(size);
      constexpr bool EXACT = AX_VALUE_OF(exact);
      const ax_status st = launch_backward<D, true, EXACT>(d, dtype, j);
      return st != AX_OK ? st : launch_backward<D, false, EXACT>(d, dtype, j);
    });
  });
}

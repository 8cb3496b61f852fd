/* The gradient of attention on tensor cores (Dao 2023, "FlashAttention-2"), in three kernels: delta
 * = sum of g y over the columns; the gradients of keys and values, where a block of 64 keys walks
 * over the queries of every head that sees them; the gradient of queries, where a block of 64
 * queries walks over the keys.  Probabilities are computed again from the log-sum-exp, and no two
 * blocks add to one element: every run gives the same bits.
 *
 * The last two are one template.  Own rows A1, A2 (keys, values; or queries, g) meet walked rows
 * W1, W2 (queries, g; or keys, values):
 *     s = A1 W1'    dp = A2 W2'    p = exp2(s by - lse)    ds = p (dp - delta)
 *     dA1 += ds W1    and for keys    dA2 += p W2
 * A warp has 16 of the own rows.  The tensor cores return s and dp as fragments d, which become p
 * and ds as fragments a without leaving the warp's registers.
 *
 * Occupancy of a multiprocessor (sm_90): heads up to 64 have three blocks (168 registers, 33 and
 * 48 KB), larger ones two (up to 248 registers, 64 KB).  With 16 own rows for a warp, a fragment
 * from shared memory feeds one product: 256 bytes for 4096 FLOP, so shared memory (128 bytes per
 * clock) limits the products to half the speed of the tensor cores; 32 rows would need 128 more
 * registers.
 *
 * The lower bound on an H200, computed as in flash_forward.cu: GPT-2 124M (causal): 5 products are
 * needed, 32 GFLOP: 33 us; 7 are computed, 45 GFLOP: 46 us (by mma.sync 76); 100 MB: 21 us.
 * BERT-base (mask, dropout): 1.4 GFLOP: 1.4 us; 13 MB: 2.6 us; Philox twice: 3 us; three launches.
 *
 * ds is rounded to the half type, as in every kernel of this kind: a float16 gradient with a loss
 * scale can overflow there as it can in g. */
#include "flash.cuh"

template <int D, bool KEYS> struct layout {
  static const int own = 16 * FLASH_WARPS, walk = D <= (KEYS ? 32 : 64) ? 64 : 32;
  /* of a mask's rows, which are queries: the elements that a warp reads at once are in different
   * banks */
  static const int pitch = KEYS ? 20 : walk + 8;
  static const int stats = KEYS ? 4 * walk : 0; /* lse and delta of walked queries, double-buffered */
  static size_t bytes(const ax_cuda_attention_job &j)
  {
    const size_t masks = j.mask.data ? sizeof(float) * FLASH_WARPS * pitch *
                                           (flash_same_mask(j) ? 1
                                            : KEYS             ? walk
                                                               : 16)
                                     : 0;
    return (size_t)(2 * own + 4 * walk) * D * 2 + stats * sizeof(float) + masks;
  }
};

/* One thread for 8 elements, 8 threads for each row. */
template <class S> static __global__ void __launch_bounds__(256) deltas(ax_cuda_attention_job j)
{
  const int64_t row = ((int64_t)blockIdx.x * 256 + threadIdx.x) / 8, q = row % j.queries,
                h = row / j.queries % j.heads, b = row / j.queries / j.heads;
  const bool in = b < j.batch;
  float sum = 0;
  if (in) {
    const S *g = ax_cuda_plane<const S>(j.g, b, h) + q * j.g.step[2],
            *y = ax_cuda_plane<const S>(j.y, b, h) + q * j.y.step[2];
    for (int c = threadIdx.x % 8 * 8; c < j.value_head; c += 64) {
      float gs[8], ys[8];
      ax_cuda_get<8>(g, c, gs);
      ax_cuda_get<8>(y, c, ys);
      for (int i = 0; i < 8; i++) sum += gs[i] * ys[i];
    }
  }
  for (int by = 4; by > 0; by >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, by);
  if (in && threadIdx.x % 8 == 0) ((float *)j.delta)[row] = sum;
}

template <class S, int D, bool KEYS, bool DROP>
static __global__ void __launch_bounds__(FLASH_THREADS, D <= 64 ? 3 : 2)
    backward(ax_cuda_attention_job j, int section)
{
  typedef layout<D, KEYS> L;
  constexpr int OWN = L::own, WALK = L::walk, COLUMNS = WALK / 8;
  constexpr bool HOLD = D <= 64 && !DROP; /* whether the own rows' fragments fit into registers */
  AX_DYNAMIC_SHARED(memory);
  S *const own = (S *)memory, *const walk = own + 2 * OWN * D;
  float *const stats = (float *)(walk + 4 * WALK * D);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32,
            mask_rows = flash_same_mask(j) ? 1
                        : KEYS             ? WALK
                                           : 16;
  float *const mask = stats + L::stats + warp * mask_rows * L::pitch;
  S *const my_a1 = own + warp * 16 * D, *const my_a2 = my_a1 + OWN * D;
  flash_own<S, D, 1, HOLD> own_a1(my_a1), own_a2(my_a2);
  flash_reader<D, true> upright;
  flash_reader<D, false> across;

  const int queries = (int)j.queries, keys = (int)j.keys, group = (int)j.group,
            own_rows = KEYS ? keys : queries;
  const int own_heads = (int)(KEYS ? j.heads / j.group : j.heads);
  const flash_place at =
      flash_find<!KEYS>((unsigned)j.batch * own_heads, own_heads, (own_rows + OWN - 1) / OWN, section);
  const int own0 = at.tile * OWN, my0 = own0 + warp * 16;
  const ax_cuda_side &a1 = KEYS ? j.k : j.q, &a2 = KEYS ? j.v : j.g, &w1 = KEYS ? j.q : j.k,
                     &w2 = KEYS ? j.g : j.v;
  const float scale = (float)(j.scale * FLASH_LOG2E), kept_by = DROP ? (float)j.kept : 1.0f;

  const bool first = j.mask.data || !(scale > 0);
  const float by = first ? 1.0f : scale;

  /* Keys: the heads of the group one after the other, each from the diagonal on.  Queries: up to
   * the diagonal. */
  const int begin = KEYS && j.causal ? own0 / WALK * WALK : 0;
  const int end = KEYS ? queries : j.causal && own0 + OWN < keys ? own0 + OWN : keys;
  const int each = end > begin ? (end - begin + WALK - 1) / WALK : 0, steps = KEYS ? each * group : each;

  float da1[1][D / 8][4], da2[1][KEYS ? D / 8 : 1][4], lse[2], delta[2];
#pragma unroll
  for (int n = 0; n < D / 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      da1[0][n][i] = 0;
      da2[0][KEYS ? n : 0][i] = 0;
    }
  if (!KEYS) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int q = my0 + lane / 4 + 8 * half;
      const int64_t place = (at.b * j.heads + at.h) * j.queries + q;
      lse[half] = q < queries ? flash_lse(j, ((const float *)j.lse)[place]) : INFINITY;
      delta[half] = q < queries ? ((const float *)j.delta)[place] : 0.0f;
    }
  }

  const int w_head = KEYS ? at.h * group : at.h / group, w_count = KEYS ? queries : keys;
  flash_source<S, D> w1_source(ax_cuda_plane<const S>(w1, at.b, w_head), w1.step[2], j.head),
      w2_source(ax_cuda_plane<const S>(w2, at.b, w_head), w2.step[2], j.value_head);
  /* the walked rows and the queries' head of this step and of the next */
  int walk0 = begin, next0 = begin, head = KEYS ? w_head : at.h, next_head = head;
  auto load = [&](int step) {
    S *const to = walk + step % 2 * 2 * WALK * D;
    w1_source.template load<WALK>(to, next0, w_count);
    w2_source.template load<WALK>(to + WALK * D, next0, w_count);
    if (KEYS) flash_load_stats<WALK>(stats + step % 2 * 2 * WALK, j, at.b * j.heads + next_head, next0);
    if ((next0 += WALK) < end || !KEYS) return;
    next0 = begin;
    next_head++;
    w1_source.plane += w1.step[1];
    w2_source.plane += w2.step[1];
  };
  flash_source<S, D>(ax_cuda_plane<const S>(a1, at.b, at.h), a1.step[2], j.head)
      .template load<OWN>(own, own0, own_rows);
  flash_source<S, D>(ax_cuda_plane<const S>(a2, at.b, at.h), a2.step[2], j.value_head)
      .template load<OWN>(own + OWN * D, own0, own_rows);
  if (steps > 0) load(0);
  ax_cuda_copy_commit();

  for (int step = 0; step < steps; step++) {
    const int h = head, q0 = KEYS ? walk0 : my0, k0 = KEYS ? my0 : walk0; /* of this warp's scores */
    const int64_t plane = at.b * j.heads + h;
    const S *const w1_tile = walk + step % 2 * 2 * WALK * D, *const w2_tile = w1_tile + WALK * D;
    const float *const w_stats = stats + step % 2 * 2 * WALK;
    upright.anew();
    across.anew();
    ax_cuda_copy_wait<0>();
    __syncthreads();
    walk0 = next0, head = next_head;
    if (step + 1 < steps) {
      load(step + 1);
      ax_cuda_copy_commit();
    }
    if (step == 0) {
      own_a1.take(upright);
      own_a2.take(upright);
    }
    if (j.causal && (KEYS ? q0 + WALK - 1 < k0 : k0 > q0 + 15)) continue; /* entirely above the diagonal */

    uint32_t kept[KEYS ? 4 : 2];
    if constexpr (DROP && KEYS) flash_keep_keys<COLUMNS>(j, plane, q0, k0, kept);
    if constexpr (DROP && !KEYS) flash_keep_queries<COLUMNS>(j, plane, q0, k0, kept);

    float s[1][COLUMNS][4], dp[1][COLUMNS][4];
    own_a1.times(s, w1_tile, upright, across);
    own_a2.times(dp, w2_tile, upright, across);

    if (j.mask.data) {
      flash_stage_mask<KEYS ? 16 : WALK, L::pitch>(j, at.b * j.mask.step[0] + h * j.mask.step[1], q0,
                                                   mask_rows, k0, mask);
      const int per_query = mask_rows == 1 ? 0 : L::pitch;
#pragma unroll
      for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int row = lane / 4 + 8 * (i / 2), column = 8 * n + lane % 4 * 2 + i % 2;
          s[0][n][i] =
              fmaf(s[0][n][i], scale, KEYS ? mask[column * per_query + row] : mask[row * per_query + column]);
        }
    } else if (first) {
#pragma unroll
      for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[0][n][i] *= scale;
    }
    /* Beyond the last query everything is 0 already: its rows, and its lse and delta (copied as
     * 0). */
    if ((KEYS ? k0 + 16 : k0 + WALK) > keys || (j.causal && (KEYS ? k0 + 15 > q0 : k0 + WALK - 1 > q0))) {
#pragma unroll
      for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int row = lane / 4 + 8 * (i / 2), column = 8 * n + lane % 4 * 2 + i % 2,
                    q = q0 + (KEYS ? column : row), k = k0 + (KEYS ? row : column);
          if (k >= keys || (j.causal && k > q)) s[0][n][i] = -INFINITY;
        }
    }

#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
      float column_lse[2], column_delta[2];
      if (KEYS) {
        const float2 l = *(const float2 *)(w_stats + 8 * n + lane % 4 * 2),
                     d = *(const float2 *)(w_stats + WALK + 8 * n + lane % 4 * 2);
        column_lse[0] = flash_lse(j, l.x), column_lse[1] = flash_lse(j, l.y);
        column_delta[0] = d.x, column_delta[1] = d.y;
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float l = KEYS ? column_lse[i % 2] : lse[i / 2];
        const float p = ax_cuda_exp2_fast(fmaf(fminf(s[0][n][i], flash_limit(j, l)), by, -l));
        const bool stays =
            !DROP || (KEYS ? kept[KEYS ? i : 0] >> 4 * n & 1 : kept[i / 2] >> (4 * n + i % 2) & 1);
        s[0][n][i] = stays ? p : 0.0f;
        dp[0][n][i] =
            p * ((stays ? dp[0][n][i] * kept_by : 0.0f) - (KEYS ? column_delta[i % 2] : delta[i / 2]));
      }
    }

#pragma unroll
    for (int k = 0; k < WALK / 16; k++) {
      uint32_t a[1][4];
      flash_as_a<S>(a[0], dp[0][2 * k], dp[0][2 * k + 1]);
      flash_times_rows<D>(da1, a, w1_tile, upright, k);
      if constexpr (KEYS) {
        flash_as_a<S>(a[0], s[0][2 * k], s[0][2 * k + 1]);
        flash_times_rows<D>(da2, a, w2_tile, upright, k);
      }
    }
  }

  /* without a step the copies of the own rows are still running, and their memory is about to be
   * written */
  ax_cuda_copy_wait<0>();
  __syncthreads();
  const ax_cuda_side &d1 = KEYS ? j.dk : j.dq;
  const float all = (float)j.scale;
  flash_store<D>(my_a1, da1[0], all, all, ax_cuda_plane<S>(d1, at.b, at.h), d1.step[2], my0, own_rows,
                 j.head);
  if constexpr (KEYS)
    flash_store<D>(my_a2, da2[0], kept_by, kept_by, ax_cuda_plane<S>(j.dv, at.b, at.h), j.dv.step[2], my0,
                   own_rows, j.value_head);
}

template <class S, int D, bool KEYS> static ax_status launch(ax_device d, const ax_cuda_attention_job *j)
{
  typedef layout<D, KEYS> L;
  const int64_t planes = KEYS ? j->batch * (j->heads / j->group) : j->batch * j->heads,
                blocks = ((KEYS ? j->keys : j->queries) + L::own - 1) / L::own * planes;
  const int64_t walked = (j->head + j->value_head) * 2 * (KEYS ? j->queries * j->group : j->keys / j->group);
  const int section = flash_section(planes, walked);
  const size_t bytes = L::bytes(*j);
  if (blocks == 0) return AX_OK;
  if (j->dropout)
    return ax_cuda_launch_shared<backward<S, D, KEYS, true>>("attention", d, (unsigned)blocks, FLASH_THREADS,
                                                             bytes, *j, section);
  return ax_cuda_launch_shared<backward<S, D, KEYS, false>>("attention", d, (unsigned)blocks, FLASH_THREADS,
                                                            bytes, *j, section);
}

size_t ax_cuda_flash_backward_shared(const ax_cuda_attention_job *j)
{
  return flash_with_head(*j, [&](auto size) {
    const size_t a = layout<AX_VALUE_OF(size), true>::bytes(*j),
                 b = layout<AX_VALUE_OF(size), false>::bytes(*j);
    return a > b ? a : b;
  });
}

ax_status ax_cuda_flash_backward(ax_device d, ax_dtype dtype, const ax_cuda_attention_job *j)
{
  const int64_t rows = j->batch * j->heads * j->queries;
  return flash_with_type(dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    ax_status st =
        rows ? ax_cuda_launch("attention", d, (unsigned)((rows + 31) / 32), 256, deltas<S>, *j) : AX_OK;
    if (st != AX_OK) return st;
    return flash_with_head(*j, [&](auto size) {
      constexpr int D = AX_VALUE_OF(size);
      const ax_status done = launch<S, D, true>(d, j);
      return done == AX_OK ? launch<S, D, false>(d, j) : done;
    });
  });
}

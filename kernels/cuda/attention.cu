/* Scaled dot-product attention and its gradient in memory linear in the sequence: y = softmax(q k^T
 * scale + mask) v in tiles of scores with a running softmax.  The gradient computes its tiles again
 * from the log-sum-exp that the forward pass saved (the formulas are in kernels/cpu/attention.c).
 *
 * A block has ROWS rows of one side (queries; keys for the keys' gradients), R for each warp, and
 * walks over the other side 32 rows at a time, one for each lane.  Scores and their gradients are
 * dot products of the block's rows, in shared memory, with the lane's row.  In products with
 * scores, the warp passes the lanes' scores around, and each lane computes columns.  No two blocks
 * add to one element.
 *
 * These kernels accept every call, and get float64 and what a GPU without tensor cores computes.
 * bfloat16 and float16 with aligned rows (flash_forward.cu, flash_backward.cu) and everything else
 * (attention_tf32*.cu) use tensor cores; see `way_of`. */
#include "attention.cuh"
#include "mma.cuh"
#include "rows.cuh"

#include "cuda/vendor/cudnn.h"

#include "draw.cuh"
#include "cuda/runtime/stats.h"

#include <atomic>
#include <stdio.h>

enum { WARPS = 4, MOST_HEAD = 256 };

typedef ax_cuda_side side;
typedef ax_cuda_attention_job job;

template <class T> struct rows_of {
  static const int each = sizeof(T) == 8 ? 2 : 4, all = each * WARPS, chunk = sizeof(T) == 8 ? 32 : 64;
};

static __device__ __forceinline__ float exp_of(float x) { return ax_exp_f32(x); }
static __device__ __forceinline__ double exp_of(double x) { return exp(x); }

/* The least b with n <= 2^b: threads are laid over rows of 2^b elements, since a division for each
 * element would take longer than its load. */
static __device__ __forceinline__ int bits_for(int n) { return n > 1 ? 32 - __clz(n - 1) : 0; }

/* Loads rows [row0, row0 + ROWS) of a plane into shared memory, times `by`; zeros past `count`. */
template <class T, int D, class S>
static __device__ void load_rows(const side &s, const S *from, int64_t row0, int64_t count, int width, T by,
                                 T (*to)[D])
{
  const int bits = bits_for(width);
  for (int p = threadIdx.x; p < rows_of<T>::all << bits; p += blockDim.x) {
    const int r = p >> bits, c = p & ((1 << bits) - 1);
    if (c < width)
      to[r][c] = row0 + r < count ? (T)ax_cuda_load(from[(row0 + r) * s.step[2] + c * s.step[3]]) * by : (T)0;
  }
}

/* out[r] = this warp's row r times row (first + lane) of the plane.  All threads of the block take
 * part. */
template <class T, int D, class S>
static __device__ void dots(T (*rows)[D], const side &s, const S *from, int64_t first, int64_t count,
                            int width, T (*piece)[rows_of<T>::chunk + 1], T (&out)[rows_of<T>::each])
{
  constexpr int R = rows_of<T>::each, CHUNK = rows_of<T>::chunk;
  const int lane = threadIdx.x % 32, own = threadIdx.x / 32 * R;
  for (int r = 0; r < R; r++) out[r] = 0;
  for (int c0 = 0; c0 < width; c0 += CHUNK) {
    const int many = width - c0 < CHUNK ? width - c0 : CHUNK, bits = bits_for(many);
    __syncthreads(); /* the last piece may still be in use */
    for (int p = threadIdx.x; p < 32 << bits; p += blockDim.x) {
      const int r = p >> bits, c = p & ((1 << bits) - 1);
      if (c >= many) continue;
      piece[r][c] =
          first + r < count ? (T)ax_cuda_load(from[(first + r) * s.step[2] + (c0 + c) * s.step[3]]) : (T)0;
    }
    __syncthreads();
    for (int c = 0; c < many; c++) {
      const T v = piece[lane][c];
      for (int r = 0; r < R; r++) out[r] += rows[own + r][c0 + c] * v;
    }
  }
}

/* sum[r][j] += the sum over lanes of p[r] times column lane + 32 j of the lane's row. */
template <class T, int D, class S>
static __device__ void add_rows(const T (&p)[rows_of<T>::each], const side &s, const S *from, int64_t first,
                                int64_t count, int width, T (&sum)[rows_of<T>::each][D / 32])
{
  constexpr int R = rows_of<T>::each;
  const int lane = threadIdx.x % 32, many = count - first < 32 ? (int)(count - first) : 32;
  for (int k = 0; k < many; k++) {
    T by[R];
    for (int r = 0; r < R; r++) by[r] = __shfl_sync(0xffffffffu, p[r], k);
    const S *row = from + (first + k) * s.step[2];
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
      const int c = lane + 32 * j;
      if (c >= width) break;
      const T v = (T)ax_cuda_load(row[c * s.step[3]]);
      for (int r = 0; r < R; r++) sum[r][j] += by[r] * v;
    }
  }
}

template <class T, int D, class S>
static __device__ void store_row(const side &s, S *to, int64_t row, int width, T by, const T (&sum)[D / 32])
{
  for (int j = 0; j < D / 32; j++) {
    const int c = threadIdx.x % 32 + 32 * j;
    if (c < width) to[row * s.step[2] + c * s.step[3]] = ax_cuda_store<S>(sum[j] * by);
  }
}

/* The number that the mask adds to a score.  (This and `keep` are not inlined: they run once for
 * each score, and the loops over tiles stay small.  The kernels' job is a grid constant, so that a
 * reference to it needs no copy on each thread's stack.) */
static __device__ __attribute__((noinline)) double mask_at(const job &j, int64_t b, int64_t h, int64_t q,
                                                           int64_t k)
{
  const int64_t at = b * j.mask.step[0] + h * j.mask.step[1] + q * j.mask.step[2] + k * j.mask.step[3];
  if (j.mask_dtype == AX_BOOL) return ((const uint8_t *)j.mask.data)[at] ? 0.0 : -(double)INFINITY;
  return ax_cuda_number_at(j.mask_dtype, j.mask.data, at);
}

/* A masked score: -infinity where query q does not see key k. */
template <class T>
static __device__ __forceinline__ T masked(const job &j, int64_t b, int64_t h, int64_t q, int64_t k, T score)
{
  if (q >= j.queries || k >= j.keys || (j.causal && k > q)) return -(T)INFINITY;
  if (!j.mask.data) return score;
  return score + (T)mask_at(j, b, h, q, k);
}

/* The dropout factor, 0 or 1 / (1 - p): element (b, h, q, k) takes word k % 4 of Philox block ((b H
 * + h) T + q) K/4 + k/4. */
template <class T>
static __device__ __attribute__((noinline)) T keep(const job &j, int64_t b, int64_t h, int64_t q, int64_t k)
{
  uint32_t w[4];
  ax_cuda_draw_block(j.draw, (uint64_t)(((b * j.heads + h) * j.queries + q) * j.quads + k / 4), w);
  return w[k % 4] >= j.least ? (T)j.kept : (T)0;
}

/* ---- forward */

template <class S, int D> static __global__ void forward(const __grid_constant__ job j)
{
  typedef compute<S> T;
  constexpr int R = rows_of<T>::each, ROWS = rows_of<T>::all;
  __shared__ T rows[ROWS][D], piece[32][rows_of<T>::chunk + 1];
  const int lane = threadIdx.x % 32, own = threadIdx.x / 32 * R;
  const int64_t tiles = (j.queries + ROWS - 1) / ROWS;

  for (int64_t t = blockIdx.x; t < j.batch * j.heads * tiles; t += gridDim.x) {
    /* the longest tiles of a causal head come first */
    const int64_t q0 = (tiles - 1 - t % tiles) * ROWS, h = t / tiles % j.heads, b = t / tiles / j.heads;
    const int64_t end = j.causal && q0 + ROWS < j.keys ? q0 + ROWS : j.keys;
    const S *keys = ax_cuda_plane<const S>(j.k, b, h / j.group),
            *values = ax_cuda_plane<const S>(j.v, b, h / j.group);
    T top[R], sum[R], out[R][D / 32];
    for (int r = 0; r < R; r++) {
      top[r] = -(T)INFINITY;
      sum[r] = 0;
      for (int c = 0; c < D / 32; c++) out[r][c] = 0;
    }
    __syncthreads();
    load_rows<T, D, S>(j.q, ax_cuda_plane<const S>(j.q, b, h), q0, j.queries, j.head, (T)j.scale, rows);
    for (int64_t k0 = 0; k0 < end; k0 += 32) {
      T s[R];
      dots<T, D, S>(rows, j.k, keys, k0, j.keys, j.head, piece, s);
      for (int r = 0; r < R; r++) {
        const int64_t q = q0 + own + r, k = k0 + lane;
        s[r] = masked(j, b, h, q, k, s[r]);
        const T most = ax_cuda_warp_reduce(s[r], [](T a, T c) { return a > c ? a : c; }),
                now = most > top[r] ? most : top[r];
        /* all keys masked so far: exp(-inf - 0) is 0, not NaN */
        const T least = now == -(T)INFINITY ? (T)0 : now;
        const T change = exp_of(top[r] - least);
        s[r] = exp_of(s[r] - least);
        sum[r] = sum[r] * change + s[r]; /* over this lane's keys */
        top[r] = now;
        for (int c = 0; c < D / 32; c++) out[r][c] *= change;
        if (j.dropout && s[r] != 0) s[r] *= keep<T>(j, b, h, q, k);
      }
      add_rows<T, D, S>(s, j.v, values, k0, j.keys, j.value_head, out);
    }
    for (int r = 0; r < R; r++) {
      const int64_t q = q0 + own + r;
      const T all = ax_cuda_warp_reduce(sum[r], [](T a, T c) { return a + c; });
      if (q >= j.queries) continue;
      const bool none = all == 0; /* the query sees no key: the result is 0, as in PyTorch */
      store_row<T, D, S>(j.y, ax_cuda_plane<S>(j.y, b, h), q, j.value_head, none ? (T)0 : (T)1 / all, out[r]);
      if (lane == 0)
        ((T *)j.lse)[(b * j.heads + h) * j.queries + q] =
            none ? (T)INFINITY : top[r] + (sizeof(T) == 8 ? (T)log((double)all) : (T)ax_log_f32((float)all));
    }
  }
}

/* ---- backward */

/* delta = sum of g y over the columns: one warp for each query */
template <class S> static __global__ void deltas(job j)
{
  typedef compute<S> T;
  const int lane = threadIdx.x % 32;
  for (int64_t p = ax_cuda_team<false>::first_row(); p < j.batch * j.heads * j.queries;
       p += ax_cuda_team<false>::row_step()) {
    const int64_t q = p % j.queries, h = p / j.queries % j.heads, b = p / j.queries / j.heads;
    const S *g = ax_cuda_plane<const S>(j.g, b, h) + q * j.g.step[2],
            *y = ax_cuda_plane<const S>(j.y, b, h) + q * j.y.step[2];
    T sum = 0;
    for (int c = lane; c < j.value_head; c += 32)
      sum += ax_cuda_load(g[c * j.g.step[3]]) * ax_cuda_load(y[c * j.y.step[3]]);
    sum = ax_cuda_warp_reduce(sum, [](T a, T c) { return a + c; });
    if (lane == 0) ((T *)j.delta)[p] = sum;
  }
}

/* The gradients of the keys and values: rows are keys, lanes are queries, of every head that sees
 * them. */
template <class S, int D> static __global__ void backward_keys(const __grid_constant__ job j)
{
  typedef compute<S> T;
  constexpr int R = rows_of<T>::each, ROWS = rows_of<T>::all;
  __shared__ T rows[ROWS][D], value_rows[ROWS][D], piece[32][rows_of<T>::chunk + 1];
  const int lane = threadIdx.x % 32, own = threadIdx.x / 32 * R;
  const int64_t tiles = (j.keys + ROWS - 1) / ROWS, shared = j.heads / j.group;

  for (int64_t t = blockIdx.x; t < j.batch * shared * tiles; t += gridDim.x) {
    const int64_t k0 = t % tiles * ROWS, hk = t / tiles % shared, b = t / tiles / shared;
    T dk[R][D / 32], dv[R][D / 32];
    for (int r = 0; r < R; r++)
      for (int c = 0; c < D / 32; c++) dk[r][c] = dv[r][c] = 0;
    __syncthreads();
    load_rows<T, D, S>(j.k, ax_cuda_plane<const S>(j.k, b, hk), k0, j.keys, j.head, (T)j.scale, rows);
    load_rows<T, D, S>(j.v, ax_cuda_plane<const S>(j.v, b, hk), k0, j.keys, j.value_head, (T)1, value_rows);
    for (int64_t h = hk * j.group; h < (hk + 1) * j.group; h++)
      for (int64_t q0 = j.causal ? k0 / 32 * 32 : 0; q0 < j.queries; q0 += 32) {
        const S *queries = ax_cuda_plane<const S>(j.q, b, h), *g = ax_cuda_plane<const S>(j.g, b, h);
        const int64_t q = q0 + lane, at = (b * j.heads + h) * j.queries + q;
        const T lse = q < j.queries ? ((const T *)j.lse)[at] : (T)INFINITY,
                delta = q < j.queries ? ((const T *)j.delta)[at] : (T)0;
        T s[R], dp[R];
        dots<T, D, S>(rows, j.q, queries, q0, j.queries, j.head, piece, s);
        dots<T, D, S>(value_rows, j.g, g, q0, j.queries, j.value_head, piece, dp);
        for (int r = 0; r < R; r++) {
          const int64_t k = k0 + own + r;
          const T p = exp_of(masked(j, b, h, q, k, s[r]) - lse),
                  factor = j.dropout && p != 0 ? keep<T>(j, b, h, q, k) : (T)1;
          s[r] = p * factor;
          dp[r] = p * (dp[r] * factor - delta);
        }
        add_rows<T, D, S>(s, j.g, g, q0, j.queries, j.value_head, dv);
        add_rows<T, D, S>(dp, j.q, queries, q0, j.queries, j.head, dk);
      }
    for (int r = 0; r < R; r++) {
      if (k0 + own + r >= j.keys) continue;
      store_row<T, D, S>(j.dk, ax_cuda_plane<S>(j.dk, b, hk), k0 + own + r, j.head, (T)j.scale, dk[r]);
      store_row<T, D, S>(j.dv, ax_cuda_plane<S>(j.dv, b, hk), k0 + own + r, j.value_head, (T)1, dv[r]);
    }
  }
}

template <class S, int D> static __global__ void backward_queries(const __grid_constant__ job j)
{
  typedef compute<S> T;
  constexpr int R = rows_of<T>::each, ROWS = rows_of<T>::all;
  __shared__ T rows[ROWS][D], g_rows[ROWS][D], piece[32][rows_of<T>::chunk + 1];
  const int lane = threadIdx.x % 32, own = threadIdx.x / 32 * R;
  const int64_t tiles = (j.queries + ROWS - 1) / ROWS;

  for (int64_t t = blockIdx.x; t < j.batch * j.heads * tiles; t += gridDim.x) {
    const int64_t q0 = (tiles - 1 - t % tiles) * ROWS, h = t / tiles % j.heads, b = t / tiles / j.heads;
    const int64_t end = j.causal && q0 + ROWS < j.keys ? q0 + ROWS : j.keys;
    const S *keys = ax_cuda_plane<const S>(j.k, b, h / j.group),
            *values = ax_cuda_plane<const S>(j.v, b, h / j.group);
    T dq[R][D / 32], lse[R], delta[R];
    for (int r = 0; r < R; r++) {
      const int64_t q = q0 + own + r, at = (b * j.heads + h) * j.queries + q;
      lse[r] = q < j.queries ? ((const T *)j.lse)[at] : (T)INFINITY;
      delta[r] = q < j.queries ? ((const T *)j.delta)[at] : (T)0;
      for (int c = 0; c < D / 32; c++) dq[r][c] = 0;
    }
    __syncthreads();
    load_rows<T, D, S>(j.q, ax_cuda_plane<const S>(j.q, b, h), q0, j.queries, j.head, (T)j.scale, rows);
    load_rows<T, D, S>(j.g, ax_cuda_plane<const S>(j.g, b, h), q0, j.queries, j.value_head, (T)1, g_rows);
    for (int64_t k0 = 0; k0 < end; k0 += 32) {
      T s[R], dp[R];
      dots<T, D, S>(rows, j.k, keys, k0, j.keys, j.head, piece, s);
      dots<T, D, S>(g_rows, j.v, values, k0, j.keys, j.value_head, piece, dp);
      for (int r = 0; r < R; r++) {
        const int64_t q = q0 + own + r, k = k0 + lane;
        const T p = exp_of(masked(j, b, h, q, k, s[r]) - lse[r]),
                factor = j.dropout && p != 0 ? keep<T>(j, b, h, q, k) : (T)1;
        dp[r] = p * (dp[r] * factor - delta[r]);
      }
      add_rows<T, D, S>(dp, j.k, keys, k0, j.keys, j.head, dq);
    }
    for (int r = 0; r < R; r++)
      if (q0 + own + r < j.queries)
        store_row<T, D, S>(j.dq, ax_cuda_plane<S>(j.dq, b, h), q0 + own + r, j.head, (T)j.scale, dq[r]);
  }
}

/* ---- the rows of the op table */

static side side_of(const ax_tensor *t)
{
  side s = { ax_data(t), {} };
  for (int d = 0; d < 4; d++) s.step[d] = t->strides[d];
  return s;
}

/* Swaps heads and rows: (batch, rows, heads, columns) -> (batch, heads, rows, columns). */
static side turned(const ax_tensor *t)
{
  side s = side_of(t);
  const int64_t rows = s.step[1];
  s.step[1] = s.step[2];
  s.step[2] = rows;
  return s;
}

static ax_status plan(const ax_call *call, const ax_tensor *q, const ax_tensor *k, const ax_tensor *v,
                      const ax_tensor *mask, job *j)
{
  const double p = call->a->attention.dropout_p;
  *j = job{};
  if (q->shape[3] > MOST_HEAD || v->shape[3] > MOST_HEAD)
    return ax_fail(AX_ENOIMPL,
                   "scaled_dot_product_attention: the cuda backend takes heads of up to %d elements, got "
                   "%lld (values: %lld)",
                   MOST_HEAD, (long long)q->shape[3], (long long)v->shape[3]);
  j->q = side_of(q), j->k = side_of(k), j->v = side_of(v);
  ax_cuda_expect(k, (ax_dtype)q->dtype);
  ax_cuda_expect(v, (ax_dtype)q->dtype);
  if (mask) {
    j->mask = side_of(mask);
    j->mask_dtype = mask->dtype;
  }
  j->batch = q->shape[0], j->heads = q->shape[1], j->group = k->shape[1] ? q->shape[1] / k->shape[1] : 1;
  j->queries = q->shape[2], j->keys = k->shape[2], j->head = (int)q->shape[3],
  j->value_head = (int)v->shape[3];
  j->causal = call->a->attention.is_causal;
  j->scale = call->a->attention.scale;
  j->dropout = p > 0;
  j->least = p >= 1 ? UINT32_MAX : (uint32_t)(p * 0x1p32);
  j->kept = p >= 1 ? 0 : 1 / (1 - p);
  j->quads = (j->keys + 3) / 4;
  j->draw = ax_cuda_draw_of(call);
  return AX_OK;
}

static unsigned grid(int64_t rows, int each, int64_t planes)
{
  const int64_t blocks = (rows + each - 1) / each * planes;
  return (unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX);
}

/* Runs the call by cuDNN where it has an engine; dropout needs our own random bits. */
static ax_status try_cudnn(const job &j, ax_device d, ax_dtype dtype, bool backward, bool *done)
{
  const side *const sides[] = { &j.q, &j.k, &j.v, &j.y, &j.g, &j.dq, &j.dk, &j.dv };
  ax_cuda_attention a = { j.batch,      j.heads, j.group ? j.heads / j.group : 0,
                          j.queries,    j.keys,  j.head,
                          j.value_head, {},      {},
                          {},           {},      {},
                          {},           {},      {},
                          j.scale,      j.causal };
  int64_t *const steps[] = { a.q, a.k, a.v, a.y, a.g, a.dq, a.dk, a.dv };
  const ax_cuda_attention_data data = { j.q.data,          j.k.data,          j.v.data,
                                        j.g.data,          (void *)j.y.data,  j.lse,
                                        (void *)j.dq.data, (void *)j.dk.data, (void *)j.dv.data };

  *done = false;
  if (j.mask.data || j.dropout) return AX_OK;
  for (int k = 0; k < (backward ? 8 : 4); k++) memcpy(steps[k], sides[k]->step, sizeof a.q);
  return ax_cudnn_attention(d, backward, &a, dtype, &data, done);
}

/* ---- the choice of the kernel */

enum way { PLAIN, TF32, FLASH, WAYS };

/* Whether the rows of s, of sizes n, start at multiples of 16 bytes and have adjacent elements of 2
 * bytes. */
static bool lies_well(const side &s, int64_t batch, int64_t heads, int64_t rows)
{
  const int64_t n[3] = { batch, heads, rows };
  bool well = (uintptr_t)s.data % 16 == 0 && s.step[3] == 1;
  for (int i = 0; i < 3; i++) well &= s.step[i] % 8 == 0 || n[i] <= 1;
  return well;
}

/* Whether the kernels of flash*.cu take the rows and heads of the call. */
static bool fits_flash(const job &j, bool backward)
{
  const int64_t b = j.batch, h = j.heads, hk = j.heads / j.group;
  if (j.head % 8 || j.value_head % 8 || j.head < 8 || j.value_head < 8 || j.head > AX_FLASH_MOST_HEAD ||
      j.value_head > AX_FLASH_MOST_HEAD)
    return false;
  if (!lies_well(j.q, b, h, j.queries) || !lies_well(j.k, b, hk, j.keys) || !lies_well(j.v, b, hk, j.keys) ||
      !lies_well(j.y, b, h, j.queries))
    return false;
  return !backward || (lies_well(j.g, b, h, j.queries) && lies_well(j.dq, b, h, j.queries) &&
                       lies_well(j.dk, b, hk, j.keys) && lies_well(j.dv, b, hk, j.keys));
}

/* The choice depends on the call and the model of GPU alone (mma: it has tensor cores; shared: the
 * most shared memory of a block).  Calls that cuDNN took (try_cudnn) do not come here. */
static way way_of(const job &j, ax_dtype dtype, bool backward, bool mma, size_t shared)
{
  const int64_t most = INT32_MAX / 2, planes = j.batch * j.heads;
  if (!mma || dtype == AX_F64 || planes < 1 || j.heads < j.group || j.queries > most || j.keys > most ||
      planes > most / 2 || (j.queries + j.keys) / 32 + 1 > most / planes)
    return PLAIN;
  if (dtype != AX_F32 && fits_flash(j, backward) &&
      (backward ? ax_cuda_flash_backward_shared(&j) : ax_cuda_flash_forward_shared(&j)) <= shared)
    return FLASH;
  return (backward ? ax_cuda_tf32_backward_shared(&j) : ax_cuda_tf32_forward_shared(&j)) <= shared ? TF32
                                                                                                   : PLAIN;
}

static way choose(ax_device d, const job &j, ax_dtype dtype, bool backward)
{
  static const char *const names[WAYS] = { "plain", "tensor cores in tf32", "tensor cores" };
  size_t shared;
  const bool mma = ax_cuda_has_mma(d, &shared);
  const way w = way_of(j, dtype, backward, mma, shared);
  static std::atomic<int64_t *> counters[2][WAYS][AX_DTYPE_COUNT]; /* looked up by name once */
  std::atomic<int64_t *> &counter = counters[backward][w][dtype];
  if (!counter) {
    char name[64];
    snprintf(name, sizeof name, "attention%s %s, %s", backward ? " gradient" : "", ax_dtype_name(dtype),
             names[w]);
    counter = ax_cuda_counter(name);
  }
  ++*counter;
  return w;
}

/* Kernels and cuDNN read every side as the queries' type, the log-sum-exp as what that is computed
 * in. */
static ax_status check_types(const ax_tensor *y, const ax_tensor *q, const ax_tensor *lse)
{
  const ax_dtype d = (ax_dtype)q->dtype;
  ax_cuda_expect(y, d);
  ax_cuda_expect(lse, ax_is_half(d) ? AX_F32 : d);
  return ax_cuda_mistake.size ? ax_cuda_refuse_mistake("scaled_dot_product_attention") : AX_OK;
}

/* in: query, key, value, mask; out: y (batch, queries, heads, columns), log-sum-exp (batch, heads,
 * queries). */
AX_CUDA_KERNEL(_attention)
{
  const ax_tensor *q = call->in[0], *y = call->out[0];
  job j;
  ax_status st = plan(call, q, call->in[1], call->in[2], call->n_in > 3 ? call->in[3] : NULL, &j);

  if (st != AX_OK || j.batch * j.heads * j.queries == 0) return st;
  j.y = turned(y);
  j.lse = ax_data(call->out[1]);
  if ((st = check_types(y, q, call->out[1])) != AX_OK) return st;
  bool done;
  if ((st = try_cudnn(j, q->device, (ax_dtype)q->dtype, false, &done)) != AX_OK || done) return st;
  const way w = choose(q->device, j, (ax_dtype)q->dtype, false);
  if (w == FLASH) return ax_cuda_flash_forward(q->device, (ax_dtype)q->dtype, &j);
  if (w == TF32) return ax_cuda_tf32_forward(q->device, (ax_dtype)q->dtype, &j);
  return ax_cuda_with_float(call->op, (ax_dtype)q->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_attention_head(j, [&](auto d) {
      return ax_cuda_launch("attention", q->device,
                            grid(j.queries, rows_of<compute<S>>::all, j.batch * j.heads), WARPS * 32,
                            forward<S, AX_VALUE_OF(d)>, j);
    });
  });
}

/* in: g, query, key, value, mask, y, log-sum-exp; out: gradients of query, key, value. */
AX_CUDA_KERNEL(_attention_backward)
{
  const ax_tensor *q = call->in[1], *k = call->in[2];
  const ax_device d = q->device;
  job j;
  ax_status st = plan(call, q, k, call->in[3], call->in[4], &j);

  if (st != AX_OK) return st;
  j.g = turned(call->in[0]);
  j.y = turned(call->in[5]);
  j.lse = ax_data(call->in[6]);
  j.dq = side_of(call->out[0]), j.dk = side_of(call->out[1]), j.dv = side_of(call->out[2]);
  for (int i = 0; i < 3; i++) ax_cuda_expect(call->out[i], (ax_dtype)q->dtype);
  ax_cuda_expect(call->in[0], (ax_dtype)q->dtype);
  if ((st = check_types(call->in[5], q, call->in[6])) != AX_OK) return st;
  bool done;
  if ((st = try_cudnn(j, d, (ax_dtype)q->dtype, true, &done)) != AX_OK || done) return st;
  const int64_t planes = j.batch * j.heads, all = planes * j.queries;
  const way w = choose(d, j, (ax_dtype)q->dtype, true);
  return ax_cuda_with_float(call->op, (ax_dtype)q->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    const size_t bytes = (size_t)(all ? all : 1) * sizeof(T);
    if ((st = ax_cuda_take(d, bytes, &j.delta)) != AX_OK) return st;
    if (w == FLASH) st = ax_cuda_flash_backward(d, (ax_dtype)q->dtype, &j);
    else if (all)
      st = ax_cuda_launch("attention", d, ax_cuda_blocks(all, WARPS, d.index), WARPS * 32, deltas<S>, j);
    if (st == AX_OK && w == TF32) st = ax_cuda_tf32_backward(d, (ax_dtype)q->dtype, &j);
    if (st == AX_OK && w == PLAIN)
      st = ax_cuda_attention_head(j, [&](auto size) {
        constexpr int D = AX_VALUE_OF(size);
        ax_status done = AX_OK;
        if (j.batch * j.keys * (j.heads / j.group) > 0)
          done = ax_cuda_launch("attention", d, grid(j.keys, rows_of<T>::all, j.batch * (j.heads / j.group)),
                                WARPS * 32, backward_keys<S, D>, j);
        if (done == AX_OK && all)
          done = ax_cuda_launch("attention", d, grid(j.queries, rows_of<T>::all, planes), WARPS * 32,
                                backward_queries<S, D>, j);
        return done;
      });
    ax_cuda_give(d, j.delta, bytes);
    return st;
  });
}

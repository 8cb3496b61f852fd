/* Attention without tensor cores, for every call: kernels that get float64 and what a GPU without
 * tensor cores computes.
 *
 * A block has ROWS rows of one side (queries; keys for the keys' gradients), R for each warp, and
 * walks over the other side 32 rows at a time, one for each lane.  Scores and their gradients are
 * dot products of the block's rows, in shared memory, with the lane's row.  In products with
 * scores, the warp passes the lanes' scores around, and each lane computes columns.  No two blocks
 * add to one element. */
#include "attention.cuh"

enum { WARPS = 4 };

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

/* ---- launches */

static unsigned grid(int64_t rows, int each, int64_t planes)
{
  const int64_t blocks = (rows + each - 1) / each * planes;
  return (unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX);
}

ax_status ax_cuda_plain_forward(ax_op op, ax_device device, ax_dtype dtype, const ax_cuda_attention_job *j)
{
  return ax_cuda_with_float(op, dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_attention_head(*j, [&](auto d) {
      return ax_cuda_launch("attention", device,
                            grid(j->queries, rows_of<compute<S>>::all, j->batch * j->heads), WARPS * 32,
                            forward<S, AX_VALUE_OF(d)>, *j);
    });
  });
}

ax_status ax_cuda_attention_deltas(ax_op op, ax_device d, ax_dtype dtype, const ax_cuda_attention_job *j)
{
  return ax_cuda_with_float(op, dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("attention", d, ax_cuda_blocks(j->batch * j->heads * j->queries, WARPS, d.index),
                          WARPS * 32, deltas<S>, *j);
  });
}

ax_status ax_cuda_plain_backward(ax_op op, ax_device d, ax_dtype dtype, const ax_cuda_attention_job *j)
{
  const int64_t planes = j->batch * j->heads, key_planes = j->batch * (j->heads / j->group);
  return ax_cuda_with_float(op, dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    return ax_cuda_attention_head(*j, [&](auto size) {
      constexpr int D = AX_VALUE_OF(size);
      ax_status st = AX_OK;
      if (key_planes * j->keys > 0)
        st = ax_cuda_launch("attention", d, grid(j->keys, rows_of<T>::all, key_planes), WARPS * 32,
                            backward_keys<S, D>, *j);
      if (st == AX_OK && planes * j->queries > 0)
        st = ax_cuda_launch("attention", d, grid(j->queries, rows_of<T>::all, planes), WARPS * 32,
                            backward_queries<S, D>, *j);
      return st;
    });
  });
}

/* Distances of all pairs of rows, |x_i - y_j|_p, and their gradient, in the tensors' own type.
 *
 * Both are tiled like a product of matrices.  Forward, a block has a tile of rows of x and of y,
 * turns slices of them in shared memory, and a thread has EDGE x EDGE distances; back, a thread has
 * ROWS numbers of the gradient.  Each slice is added up by itself, so that sums of long rows keep
 * their digits, and in one order.  Arithmetic bounds the kernels. */
#include "common.cuh"

enum { THREADS = 256, DEPTH = 16 };
enum { SQUARES, SIZES, LARGEST, COUNTS, POWERS };

static int kind_of(double p)
{
  return p == 2 ? SQUARES : p == 1 ? SIZES : p == 0 ? COUNTS : isinf(p) ? LARGEST : POWERS;
}

/* f(an integral constant) for the kind that p is. */
template <class F> static ax_status with_kind(double p, F f)
{
  switch (kind_of(p)) {
  case SQUARES: return f(std::integral_constant<int, SQUARES>());
  case SIZES: return f(std::integral_constant<int, SIZES>());
  case LARGEST: return f(std::integral_constant<int, LARGEST>());
  case COUNTS: return f(std::integral_constant<int, COUNTS>());
  default: return f(std::integral_constant<int, POWERS>());
  }
}

/* ---- distances */

template <int KIND, class T> static __device__ __forceinline__ T joined(T sum, T term)
{
  return KIND != LARGEST ? sum + term : term > sum || term != term ? term : sum; /* NaN stays */
}

template <int KIND, class T> static __device__ __forceinline__ T with_difference(T sum, T a, T p)
{
  if (KIND == SQUARES) return sum + a * a;
  if (KIND == COUNTS) return sum + (T)(a != 0);
  return joined<KIND>(sum, KIND == POWERS ? (T)pow(fabs(a), p) : (T)fabs(a));
}

template <int KIND, class T, int EDGE>
static __global__ void __launch_bounds__(THREADS, 2)
    distances(const T *x, const T *y, T *out, int64_t batches, int64_t m, int64_t n, int64_t k, T p)
{
  constexpr int TILE = 16 * EDGE;
  __shared__ T of_x[DEPTH][TILE + 1], of_y[DEPTH][TILE + 1];
  const int64_t down = (m + TILE - 1) / TILE, across = (n + TILE - 1) / TILE;
  const int row = threadIdx.x / 16, col = threadIdx.x % 16; /* of the tile's; others are 16 apart */

  for (int64_t t = blockIdx.x; t < batches * down * across; t += gridDim.x) {
    const int64_t b = t / (down * across), i0 = t / across % down * TILE, j0 = t % across * TILE;
    T sum[EDGE][EDGE] = { { 0 } };
    for (int64_t e0 = 0; e0 < k; e0 += DEPTH) {
      const int depth = k - e0 < DEPTH ? (int)(k - e0) : DEPTH;
      for (int q = threadIdx.x; q < TILE * DEPTH; q += THREADS) {
        const int r = q / DEPTH, e = q % DEPTH;
        of_x[e][r] = e < depth && i0 + r < m ? x[(b * m + i0 + r) * k + e0 + e] : (T)0;
        of_y[e][r] = e < depth && j0 + r < n ? y[(b * n + j0 + r) * k + e0 + e] : (T)0;
      }
      __syncthreads();
      T part[EDGE][EDGE] = { { 0 } };
      for (int e = 0; e < depth; e++) {
        T left[EDGE], right[EDGE];
#pragma unroll
        for (int r = 0; r < EDGE; r++) left[r] = of_x[e][row + 16 * r], right[r] = of_y[e][col + 16 * r];
#pragma unroll
        for (int r = 0; r < EDGE; r++)
#pragma unroll
          for (int c = 0; c < EDGE; c++)
            part[r][c] = with_difference<KIND>(part[r][c], left[r] - right[c], p);
      }
#pragma unroll
      for (int r = 0; r < EDGE; r++)
#pragma unroll
        for (int c = 0; c < EDGE; c++) sum[r][c] = joined<KIND>(sum[r][c], part[r][c]);
      __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < EDGE; r++)
#pragma unroll
      for (int c = 0; c < EDGE; c++) {
        const int64_t i = i0 + row + 16 * r, j = j0 + col + 16 * c;
        const T s = sum[r][c];
        if (i < m && j < n)
          out[(b * m + i) * n + j] = KIND == SQUARES ? (T)sqrt(s) : KIND == POWERS ? (T)pow(s, 1 / p) : s;
      }
  }
}

AX_CUDA_KERNEL(_distance_cdist)
{
  const ax_tensor *x = call->in[0], *y = call->in[1], *out = call->out[0];
  const int64_t batches = x->shape[0], m = x->shape[1], n = y->shape[1], k = x->shape[2];
  const double p = call->a->cdist.p;
  if (out->numel == 0) return AX_OK;
  return ax_cuda_with_wide(call->op, (ax_dtype)out->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) T;
    return with_kind(p, [&](auto kind) {
      constexpr int KIND = decltype(kind)::value;
      const int64_t tiles = batches * ((m + 63) / 64) * ((n + 63) / 64),
                    small = batches * ((m + 15) / 16) * ((n + 15) / 16);
      const T *from = ax_cuda_data<T>(x), *to = ax_cuda_data<T>(y);
      /* The bits are the same: few tiles are cut smaller, so that all multiprocessors have one. */
      if (tiles >= ax_cuda_multiprocessors(x->device.index))
        return ax_cuda_launch("cdist", x->device, ax_cuda_blocks(tiles, 1, x->device.index), THREADS,
                              distances<KIND, T, 4>, from, to, ax_cuda_data<T>(out), batches, m, n, k, (T)p);
      return ax_cuda_launch("cdist", x->device, ax_cuda_blocks(small, 1, x->device.index), THREADS,
                            distances<KIND, T, 1>, from, to, ax_cuda_data<T>(out), batches, m, n, k, (T)p);
    });
  });
}

/* ---- the gradient: of x, the sum over the rows of y of g w slope(x_i - y_j) */

struct strides {
  int64_t b, i, j; /* in elements */
};
static strides strides_of(const ax_tensor *t)
{
  return strides{ t->strides[0], t->strides[1], t->strides[2] };
}

/* What the slopes of a pair at distance d are multiplied with. */
template <int KIND, class T> static __device__ __forceinline__ T weight_of(T g, T d, T p)
{
  if (KIND == SIZES || KIND == LARGEST) return g;
  if (d == 0) return 0;
  return KIND == SQUARES ? g / d : g / (T)pow(d, p - 1);
}

template <int KIND, class T> static __device__ __forceinline__ T slope_of(T a, T d, T p)
{
  if (KIND == SQUARES) return a;
  const T sign = (T)(a > 0) - (T)(a < 0);
  if (KIND == SIZES) return sign;
  if (KIND == LARGEST) return fabs(a) >= d ? sign : (T)0;
  return a == 0 ? (T)0 : sign * (T)pow(fabs(a), p - 1);
}

/* A block has ROWS * THREADS / WIDE rows of x and WIDE numbers of each; AHEAD: rows of a slice of
 * y. */
template <int KIND, class T, int WIDE, int ROWS, int AHEAD>
static __global__ void __launch_bounds__(THREADS, 2)
    gradients(const T *g, strides g_step, const T *d, strides d_step, const T *x, const T *y, T *out,
              int64_t batches, int64_t m, int64_t n, int64_t k, T p)
{
  constexpr int HIGH = THREADS / WIDE, TILE = ROWS * HIGH;
  __shared__ T weights[AHEAD][TILE + 1], sizes[KIND == LARGEST ? AHEAD : 1][TILE + 1], of_y[AHEAD][WIDE];
  const int64_t down = (m + TILE - 1) / TILE, across = (k + WIDE - 1) / WIDE;
  const int row = threadIdx.x / WIDE, e = threadIdx.x % WIDE;
  const bool along = d_step.j == 1; /* neighbouring threads read neighbouring numbers */

  for (int64_t t = blockIdx.x; t < batches * down * across; t += gridDim.x) {
    const int64_t b = t / (down * across), i0 = t / across % down * TILE, e0 = t % across * WIDE;
    T sum[ROWS] = { 0 }, at[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int64_t i = i0 + row + r * HIGH;
      at[r] = i < m && e0 + e < k ? x[(b * m + i) * k + e0 + e] : (T)0;
    }
    for (int64_t j0 = 0; j0 < n; j0 += AHEAD) {
      for (int q = threadIdx.x; q < TILE * AHEAD; q += THREADS) {
        const int i = along ? q / AHEAD : q % TILE, j = along ? q % AHEAD : q / TILE;
        T w = 0, size = 0;
        if (i0 + i < m && j0 + j < n) {
          size = d[b * d_step.b + (i0 + i) * d_step.i + (j0 + j) * d_step.j];
          w = weight_of<KIND>(g[b * g_step.b + (i0 + i) * g_step.i + (j0 + j) * g_step.j], size, p);
        }
        weights[j][i] = w;
        if (KIND == LARGEST) sizes[j][i] = size;
      }
      for (int q = threadIdx.x; q < AHEAD * WIDE; q += THREADS) {
        const int j = q / WIDE, c = q % WIDE;
        of_y[j][c] = j0 + j < n && e0 + c < k ? y[(b * n + j0 + j) * k + e0 + c] : (T)0;
      }
      __syncthreads();
      const int ahead = n - j0 < AHEAD ? (int)(n - j0) : AHEAD;
      T part[ROWS] = { 0 };
      for (int j = 0; j < ahead; j++) {
        const T other = of_y[j][e];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          const int i = row + r * HIGH;
          part[r] += weights[j][i] * slope_of<KIND>(at[r] - other, KIND == LARGEST ? sizes[j][i] : (T)0, p);
        }
      }
#pragma unroll
      for (int r = 0; r < ROWS; r++) sum[r] += part[r];
      __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int64_t i = i0 + row + r * HIGH;
      if (i < m && e0 + e < k) out[(b * m + i) * k + e0 + e] = sum[r];
    }
  }
}

template <int KIND, class T, int WIDE, int ROWS, int AHEAD> static ax_status gradient(const ax_call *call)
{
  const ax_tensor *g = call->in[0], *x = call->in[1], *y = call->in[2], *d = call->in[3], *out = call->out[0];
  const int64_t batches = x->shape[0], m = x->shape[1], k = x->shape[2], high = ROWS * THREADS / WIDE;
  const int64_t tiles = batches * ((m + high - 1) / high) * ((k + WIDE - 1) / WIDE);
  return ax_cuda_launch("cdist_backward", x->device, ax_cuda_blocks(tiles, 1, x->device.index), THREADS,
                        gradients<KIND, T, WIDE, ROWS, AHEAD>, ax_cuda_data<T>(g), strides_of(g),
                        ax_cuda_data<T>(d), strides_of(d), ax_cuda_data<T>(x), ax_cuda_data<T>(y),
                        ax_cuda_data<T>(out), batches, m, y->shape[1], k, (T)call->a->cdist_backward.p);
}

AX_CUDA_KERNEL(_distance_cdist_backward)
{
  const ax_tensor *x = call->in[1], *out = call->out[0];
  const double p = call->a->cdist_backward.p;
  if (out->numel == 0) return AX_OK;
  if (p == 0 || call->in[0]->numel == 0)
    return ax_cuda_clear("cdist_backward", out->device, ax_data(out), (size_t)out->numel * ax_itemsize(out));
  return ax_cuda_with_wide(call->op, (ax_dtype)out->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) T;
    return with_kind(p, [&](auto kind) {
      constexpr int KIND = decltype(kind)::value;
      /* points of a few coordinates: all lanes of a warp have work */
      if (x->shape[2] <= 4) return gradient<KIND, T, 4, 1, 8>(call);
      return gradient<KIND, T, 32, 4, 32>(call);
    });
  });
}

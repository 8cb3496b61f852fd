/* grid_sample and its gradients; kernels/cpu/grid_sample.c has the formulas.  Each result is a sum
 * of neighbours (1, 2 or 4 along each dim), whose places and weights follow from the position.
 * Images have their channels innermost, so that neighbouring threads read neighbouring channels.
 *
 * Positions may fall together, so the image's gradient is gathered: the neighbours of all positions
 * are sorted by their places, and the thread at the first of equal places adds up all of them, in
 * the order of positions, as on the CPU.  The grid's gradient has a warp for each position. */
#include "rows.cuh"
#include "sort.cuh"

enum { NEAREST = 1, BICUBIC = 2 };   /* mode; 0 is linear */
enum { BORDER = 1, REFLECTION = 2 }; /* padding_mode; 0 is zeros */
enum { MOST_DIMS = 3 };

struct job {
  int dims, taps, mode, padding; /* taps: of a position, those outside too */
  bool align;
  int64_t n, c, size[MOST_DIMS], plane, positions; /* sizes of x; its elements but channels; of the grid */
};

static __device__ __forceinline__ float whole(float x) { return floorf(x); }
static __device__ __forceinline__ double whole(double x) { return floor(x); }
static __device__ __forceinline__ float rest_of(float x, float by) { return fmodf(x, by); }
static __device__ __forceinline__ double rest_of(double x, double by) { return fmod(x, by); }
static __device__ __forceinline__ float nearest(float x) { return nearbyintf(x); }
static __device__ __forceinline__ double nearest(double x) { return nearbyint(x); }

/* Neighbours along one dim: their places (-1: outside, which counts as 0), weights, and the slopes
 * of the weights by the grid's number. */
template <class T> struct axis {
  int64_t at[4];
  T weight[4], slope[4];
};

/* A place mirrored at the borders, and the sign of its slope. */
template <class T> static __device__ __forceinline__ T mirrored(T at, int64_t size, bool align, T *sign)
{
  const T low = align ? (T)0 : (T)-0.5, span = (T)(align ? size - 1 : size);
  *sign = span == 0 ? (T)0 : (T)1;
  if (span == 0) return 0;
  T from = at - low;
  if (from < 0) {
    *sign = -1;
    from = -from;
  }
  const T rest = rest_of(from, span), flips = whole(from / span);
  if (rest_of(flips, (T)2) == 0) return rest + low;
  *sign = -*sign;
  return span - rest + low;
}

/* A place as padding_mode has it; *slope is multiplied with how it follows the place. */
template <class T> static __device__ __forceinline__ T padded(const job &j, T at, int64_t size, T *slope)
{
  T sign;
  if (j.padding == REFLECTION) {
    at = mirrored(at, size, j.align, &sign);
    *slope *= sign;
  }
  if (j.padding == 0) return at;
  if (!(at > 0) || at >= (T)(size - 1)) *slope = 0;
  return !(at > 0) ? (T)0 : at >= (T)(size - 1) ? (T)(size - 1) : at;
}

template <class T> static __device__ __forceinline__ int64_t inside(T at, int64_t size)
{
  return at >= 0 && at < (T)size ? (int64_t)at : -1;
}

/* Keys' cubic convolution with a = -0.75, by the distance of each of four neighbours. */
template <class T> static __device__ __forceinline__ void cubic(T t, T *weight, T *slope)
{
  const T a = (T)-0.75;
  for (int k = 0; k < 4; k++) {
    const T d = k < 2 ? t + (T)(1 - k) : (T)(k - 1) - t, sign = k < 2 ? (T)1 : (T)-1;
    if (k % 3 == 0) {
      weight[k] = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
      slope[k] = sign * ((3 * a * d - 10 * a) * d + 8 * a);
    } else {
      weight[k] = ((a + 2) * d - (a + 3)) * d * d + 1;
      slope[k] = sign * (3 * (a + 2) * d - 2 * (a + 3)) * d;
    }
  }
}

template <class T>
static __device__ __forceinline__ void find(const job &j, T position, int64_t size, axis<T> *x)
{
  T slope = (T)(j.align ? size - 1 : size) / 2;
  T at = j.align ? (position + 1) / 2 * (T)(size - 1) : ((position + 1) * (T)size - 1) / 2;

  if (j.mode == BICUBIC) {
    const T low = whole(at);
    T ignored = 1;
    cubic(at - low, x->weight, x->slope);
    for (int k = 0; k < 4; k++) {
      x->slope[k] *= slope;
      x->at[k] = inside(padded(j, low - 1 + (T)k, size, &ignored), size);
    }
    return;
  }
  at = padded(j, at, size, &slope);
  if (j.mode == NEAREST) {
    x->at[0] = inside(nearest(at), size);
    x->weight[0] = 1;
    x->slope[0] = 0;
    return;
  }
  const T low = whole(at);
  x->at[0] = inside(low, size);
  x->at[1] = inside(low + 1, size);
  x->weight[0] = low + 1 - at;
  x->weight[1] = at - low;
  x->slope[0] = -slope;
  x->slope[1] = slope;
}

/* Calls f(place in the image or -1, weight, slopes, number of the neighbour) for each neighbour of
 * position p. */
template <class S, class F>
static __device__ __forceinline__ void each_tap(const job &j, const S *grid, int64_t p, F f)
{
  typedef compute<S> T;
  const int each = j.mode == NEAREST ? 1 : j.mode == BICUBIC ? 4 : 2;
  const S *at = grid + p * j.dims; /* the numbers begin with the last dim */
  axis<T> z = {}, y, x;
  int k = 0;

  find(j, (T)ax_cuda_load(at[0]), j.size[j.dims - 1], &x);
  find(j, (T)ax_cuda_load(at[1]), j.size[j.dims - 2], &y);
  if (j.dims == 3) find(j, (T)ax_cuda_load(at[2]), j.size[0], &z);
  else z.weight[0] = 1;
  for (int a = 0; a < (j.dims == 3 ? each : 1); a++)
    for (int b = 0; b < each; b++)
      for (int e = 0; e < each; e++, k++) {
        const bool out = z.at[a] < 0 || y.at[b] < 0 || x.at[e] < 0;
        const T slopes[MOST_DIMS] = { z.weight[a] * y.weight[b] * x.slope[e],
                                      z.weight[a] * y.slope[b] * x.weight[e],
                                      z.slope[a] * y.weight[b] * x.weight[e] };
        f(out ? (int64_t)-1 : (z.at[a] * j.size[j.dims - 2] + y.at[b]) * j.size[j.dims - 1] + x.at[e],
          z.weight[a] * y.weight[b] * x.weight[e], slopes, k);
      }
}

/* A thread has V channels of a position. */
template <class S, int V>
static __global__ void sample(const __grid_constant__ job j, S *y, const S *x, const S *grid)
{
  typedef compute<S> T;
  const int64_t packs = j.c / V;
  for (int64_t i = AX_FIRST; i < j.n * j.positions * packs; i += AX_STEP) {
    const int64_t p = i / packs, c = i % packs * V;
    const S *const image = x + p / j.positions * j.plane * j.c + c;
    T sum[V];
    for (int k = 0; k < V; k++) sum[k] = 0;
    each_tap(j, grid, p, [&](int64_t at, T weight, const T(&)[MOST_DIMS], int) {
      T v[V];
      if (at < 0) return;
      ax_cuda_get(image + at * j.c, 0, v);
      for (int k = 0; k < V; k++) sum[k] += weight * v[k];
    });
    ax_cuda_put(y + p * j.c + c, 0, sum);
  }
}

/* ---- gradients */

/* The place of each neighbour of positions first .. first + count - 1, and its weight; those
 * outside come last. */
template <class S>
static __global__ void find_places(const __grid_constant__ job j, const S *grid, int64_t first, int64_t count,
                                   uint64_t end, uint64_t *keys, compute<S> *weights)
{
  typedef compute<S> T;
  for (int64_t i = AX_FIRST; i < count; i += AX_STEP)
    each_tap(j, grid, first + i, [&](int64_t at, T weight, const T(&)[MOST_DIMS], int k) {
      const int64_t image = (first + i) / j.positions - first / j.positions;
      keys[i * j.taps + k] = at < 0 ? end : (uint64_t)(image * j.plane + at);
      weights[i * j.taps + k] = weight;
    });
}

template <class S>
static __global__ void gather_gradient(const __grid_constant__ job j, S *dx, const S *g, int64_t entries,
                                       uint64_t end, const uint64_t *keys, const uint32_t *from,
                                       const compute<S> *weights)
{
  typedef compute<S> T;
  for (int64_t i = AX_FIRST; i < entries * j.c; i += AX_STEP) {
    const int64_t p = i / j.c, c = i % j.c;
    const uint64_t key = keys[p];
    if (key >= end || (p > 0 && keys[p - 1] == key)) continue;
    T sum = 0;
    for (int64_t e = p; e < entries && keys[e] == key; e++)
      sum += weights[from[e]] * (T)ax_cuda_load(g[from[e] / j.taps * j.c + c]);
    dx[(int64_t)key * j.c + c] = ax_cuda_store<S>(sum);
  }
}

/* A warp for each position: the sums over channels of g times a neighbour, times its slopes. */
template <class S>
static __global__ void grid_gradient(const __grid_constant__ job j, S *dgrid, const S *g, const S *x,
                                     const S *grid)
{
  typedef compute<S> T;
  const int lane = threadIdx.x % 32;
  const int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32);
  for (int64_t p = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; p < j.n * j.positions;
       p += warps) {
    const S *const image = x + p / j.positions * j.plane * j.c;
    T sums[MOST_DIMS] = { 0, 0, 0 };
    each_tap(j, grid, p, [&](int64_t at, T, const T(&slopes)[MOST_DIMS], int) {
      T product = 0;
      if (at < 0) return;
      for (int64_t c = lane; c < j.c; c += 32)
        product += (T)ax_cuda_load(g[p * j.c + c]) * (T)ax_cuda_load(image[at * j.c + c]);
      for (int d = 0; d < MOST_DIMS; d++) sums[d] += product * slopes[d];
    });
    for (int d = 0; d < j.dims; d++) {
      const T all = ax_cuda_warp_reduce(sums[d], [](T a, T b) { return a + b; });
      if (lane == 0) dgrid[p * j.dims + d] = ax_cuda_store<S>(all);
    }
  }
}

/* ---- the rows */

static job job_of(const ax_call *call, const ax_tensor *x, const ax_tensor *grid)
{
  job j = {};
  j.dims = x->ndim - 2;
  j.mode = (int)call->a->grid_sample.mode;
  j.padding = (int)call->a->grid_sample.padding_mode;
  j.align = call->a->grid_sample.align_corners;
  j.n = x->shape[0];
  j.c = x->shape[1];
  j.plane = j.positions = j.taps = 1;
  for (int d = 0; d < j.dims; d++) {
    j.size[d] = x->shape[2 + d];
    j.plane *= j.size[d];
    j.positions *= grid->shape[1 + d];
    j.taps *= j.mode == NEAREST ? 1 : j.mode == BICUBIC ? 4 : 2;
  }
  return j;
}

AX_CUDA_KERNEL(grid_sample)
{
  const ax_tensor *x = call->in[0], *grid = call->in[1], *y = call->out[0];
  const ax_device d = y->device;
  const job j = job_of(call, x, grid);

  if (y->numel == 0) return AX_OK;
  return ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    constexpr int V = 16 / (int)sizeof(S);
    S *const to = ax_cuda_data<S>(y);
    const S *const from = ax_cuda_data<S>(x), *const at = ax_cuda_data<S>(grid);
    const bool runs = j.c % V == 0 && ((uintptr_t)to | (uintptr_t)from) % 16 == 0;
    return ax_cuda_launch("grid_sample", d, ax_cuda_blocks(y->numel / (runs ? V : 1), 256, d.index), 256,
                          runs ? sample<S, V> : sample<S, 1>, j, to, from, at);
  });
}

/* The image's gradient, for as many images at a time as 2^30 neighbours have. */
template <class S>
static ax_status image_gradient(ax_device d, const job &j, S *dx, const S *g, const S *grid)
{
  static const char name[] = "grid_sample_backward";
  const int64_t each = j.positions * j.taps, most = INT64_C(1) << 30;
  const int64_t images = each < most ? most / each : 1;
  ax_status st = AX_OK;

  if (each > (int64_t)UINT32_MAX)
    return ax_fail(AX_ESHAPE, "grid_sample: the gradient takes up to 2^32 neighbours of an image, got %lld",
                   (long long)each);
  for (int64_t at = 0; st == AX_OK && at < j.n; at += images) {
    const int64_t here = j.n - at < images ? j.n - at : images, count = here * j.positions,
                  entries = count * j.taps;
    const uint64_t end = (uint64_t)(here * j.plane);
    const size_t bytes = (size_t)entries * sizeof(compute<S>);
    ax_cuda_sorting<uint64_t> s;
    void *weights = NULL;
    if ((st = ax_cuda_sort_begin(d, name, 1, entries, &s)) != AX_OK) return st;
    st = ax_cuda_take(d, bytes, &weights);
    if (st == AX_OK)
      st = ax_cuda_launch(name, d, ax_cuda_blocks(count, 256, d.index), 256, find_places<S>, j, grid,
                          at * j.positions, count, end, s.keys, (compute<S> *)weights);
    if (st == AX_OK) st = ax_cuda_sort<uint64_t>(name, 1, entries, ax_key_bytes((int64_t)end + 1), &s);
    if (st == AX_OK)
      st = ax_cuda_launch(name, d, ax_cuda_blocks(entries * j.c, 256, d.index), 256, gather_gradient<S>, j,
                          dx + at * j.plane * j.c, g + at * j.positions * j.c, entries, end,
                          (const uint64_t *)s.keys, (const uint32_t *)s.at, (const compute<S> *)weights);
    if (weights) ax_cuda_give(d, weights, bytes);
    ax_cuda_sort_end(&s);
  }
  return st;
}

AX_CUDA_KERNEL(_grid_sample_backward)
{
  const ax_tensor *g = call->in[0], *x = call->in[1], *grid = call->in[2], *dx = call->out[0],
                  *dgrid = call->out[1];
  const ax_device d = dx->device;
  const job j = job_of(call, x, grid);
  ax_status st = AX_OK;

  if (dx->numel)
    st = ax_cuda_clear("grid_sample_backward", d, ax_data(dx), (size_t)dx->numel * ax_itemsize(dx));
  if (st == AX_OK && dgrid->numel && !g->numel)
    return ax_cuda_clear("grid_sample_backward", d, ax_data(dgrid),
                         (size_t)dgrid->numel * ax_itemsize(dgrid));
  if (st != AX_OK || !g->numel) return st;
  return ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    const S *const gradient = ax_cuda_data<S>(g), *const at = ax_cuda_data<S>(grid);
    const ax_status first = image_gradient<S>(d, j, ax_cuda_data<S>(dx), gradient, at);
    if (first != AX_OK) return first;
    return ax_cuda_launch("grid_sample_backward", d, ax_cuda_blocks(j.n * j.positions, 8, d.index), 256,
                          grid_gradient<S>, j, ax_cuda_data<S>(dgrid), gradient, ax_cuda_data<S>(x), at);
  });
}

/* Norms, scaling, clamping and clipping of many gradients in one launch, and the loss scale.
 * Memory bounds all of these. */
#include "segments.cuh"

#include "optim_numbers.h"

template <class T> struct entry {
  int64_t n, first;
  T *grad;
};

enum term { SQUARES, SIZES, POWERS, WIDEST, LEAST };

static __device__ __forceinline__ double joined(term what, double a, double b)
{
  if (what < WIDEST) return a + b;
  if (a != a || b != b) return a != a ? a : b;
  return (what == WIDEST ? b > a : b < a) ? b : a;
}
static __device__ __forceinline__ double identity(term what)
{
  return what == LEAST ? (double)INFINITY : 0.0;
}

/* Several loads are issued before the first is used, so that a thread has enough bytes in
 * flight. */
enum { AT_ONCE = 4 };

template <term WHAT, class T>
static __global__ void __launch_bounds__(AX_SEGMENT_THREADS)
    norm_chunks(ax_cuda_segment_table<entry<T>> t, double p, double *partial)
{
  constexpr int V = 16 / (int)sizeof(T);
  __shared__ double shared[32];
  auto join = [](double a, double b) { return joined(WHAT, a, b); };
  auto value = [p](T x) {
    const double size = fabs((double)x);
    return WHAT == SQUARES ? size * size : WHAT == POWERS ? pow(size, p) : size;
  };
  ax_cuda_each_chunk(t, [&](int, const entry<T> &e, int64_t lo, int64_t hi, int64_t c) {
    const int64_t runs = (uintptr_t)(e.grad + lo) % 16 == 0 ? (hi - lo) / V : 0;
    double sum[V];
    for (int j = 0; j < V; j++) sum[j] = identity(WHAT);
    for (int64_t q = threadIdx.x; q < runs; q += AT_ONCE * blockDim.x) {
      T v[AT_ONCE][V];
      for (int u = 0; u < AT_ONCE; u++)
        if (q + u * blockDim.x < runs) ax_cuda_get(e.grad, lo + (q + u * blockDim.x) * V, v[u]);
      for (int u = 0; u < AT_ONCE; u++)
        if (q + u * blockDim.x < runs)
          for (int j = 0; j < V; j++) sum[j] = join(sum[j], value(v[u][j]));
    }
    for (int64_t i = lo + runs * V + threadIdx.x; i < hi; i += blockDim.x)
      sum[0] = join(sum[0], value(e.grad[i]));
    for (int j = 1; j < V; j++) sum[0] = join(sum[0], sum[j]);
    const double all = ax_cuda_block_reduce(sum[0], join, shared);
    if (threadIdx.x == 0) partial[c] = all;
  });
}

static __global__ void norm_total(const double *partial, int64_t n, term what, double root, double *out)
{
  __shared__ double shared[32];
  double sum = identity(what);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum = joined(what, sum, partial[i]);
  sum = ax_cuda_block_reduce(
      sum, [what](double a, double b) { return joined(what, a, b); }, shared);
  if (threadIdx.x == 0) *out = root == 1 ? sum : root == 2 ? sqrt(sum) : pow(sum, 1 / root);
}

template <class T> static void fill(entry<T> *e, const ax_segment *s) { e->grad = (T *)s->grad; }

/* *out is in device memory. */
template <term WHAT, class T>
static ax_status norm_of(ax_device d, const ax_segment *segs, int n, double p, double root, double *out)
{
  return ax_cuda_with_table<entry<T>>("norm", d, segs, n, fill<T>,
                                      [&](const ax_cuda_segment_table<entry<T>> &t, unsigned blocks) {
    const size_t bytes = (size_t)(t.chunks ? t.chunks : 1) * sizeof(double);
    void *partial;
    ax_status st = ax_cuda_take(d, bytes, &partial);
    if (st != AX_OK) return st;
    if (blocks)
      st = ax_cuda_launch("norm", d, blocks, AX_SEGMENT_THREADS, norm_chunks<WHAT, T>, t, p,
                          (double *)partial);
    if (st == AX_OK)
      st = ax_cuda_launch("norm", d, 1, t.chunks < 256 ? 32 : 512, norm_total, (const double *)partial,
                          t.chunks, WHAT, root, out);
    ax_cuda_give(d, partial, bytes);
    return st;
  });
}

template <class T>
static ax_status norm_into(ax_device d, const ax_segment *segs, int n, double p, double root, double *out)
{
  if (p == 2) return norm_of<SQUARES, T>(d, segs, n, p, root, out);
  if (p == 1) return norm_of<SIZES, T>(d, segs, n, p, root, out);
  if (p == INFINITY) return norm_of<WIDEST, T>(d, segs, n, p, root, out);
  if (p == -INFINITY) return norm_of<LEAST, T>(d, segs, n, p, root, out);
  return norm_of<POWERS, T>(d, segs, n, p, root, out);
}

/* Replaces every gradient g of the table by change(g). */
template <class T, class F>
static __device__ __forceinline__ void rewrite_all(const ax_cuda_segment_table<entry<T>> &t, F change)
{
  constexpr int V = 16 / (int)sizeof(T);
  ax_cuda_each_chunk(t, [&](int, const entry<T> &e, int64_t lo, int64_t hi, int64_t) {
    const int64_t runs = (uintptr_t)(e.grad + lo) % 16 == 0 ? (hi - lo) / V : 0;
    for (int64_t q = threadIdx.x; q < runs; q += AT_ONCE * blockDim.x) {
      T v[AT_ONCE][V];
      for (int u = 0; u < AT_ONCE; u++)
        if (q + u * blockDim.x < runs) ax_cuda_get(e.grad, lo + (q + u * blockDim.x) * V, v[u]);
      for (int u = 0; u < AT_ONCE; u++) {
        if (q + u * blockDim.x >= runs) continue;
        for (int j = 0; j < V; j++) v[u][j] = change(v[u][j]);
        ax_cuda_put(e.grad, lo + (q + u * blockDim.x) * V, v[u]);
      }
    }
    for (int64_t i = lo + runs * V + threadIdx.x; i < hi; i += blockDim.x) e.grad[i] = change(e.grad[i]);
  });
}

template <class T> static __global__ void rewrite_chunks(ax_cuda_segment_table<entry<T>> t, T by, bool clamp)
{
  if (!clamp) rewrite_all(t, [by](T g) { return g * by; });
  else
    rewrite_all(t, [by](T g) {
      const T low = by < g ? by : g; /* g where g is NaN */
      return -by > low ? -by : low;
    });
}

template <class T>
static ax_status rewrite(ax_device d, const char *what, const ax_segment *segs, int n, double by, bool clamp)
{
  return ax_cuda_launch_segments<entry<T>>(what, d, segs, n, fill<T>, rewrite_chunks<T>, (T)by, clamp);
}

extern "C" ax_status ax_cuda_grad_norm_into(ax_device d, ax_dtype dtype, const ax_segment *segs, int n,
                                            double p, double root, double *out)
{
  return dtype == AX_F64 ? norm_into<double>(d, segs, n, p, root, out)
                         : norm_into<float>(d, segs, n, p, root, out);
}
extern "C" ax_status ax_cuda_grad_norm(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double p,
                                       double *out)
{
  double *there;
  ax_status st = ax_cuda_take(d, sizeof *there, (void **)&there);
  if (st != AX_OK) return st;
  st = ax_cuda_grad_norm_into(d, dtype, segs, n, p, 1, there);
  if (st == AX_OK) st = ax_cuda_memory.copy(ax_device{ AX_CPU, 0 }, out, d, there, sizeof *out);
  ax_cuda_give(d, there, sizeof *there);
  return st;
}
extern "C" ax_status ax_cuda_grad_scale(ax_device d, ax_dtype dtype, const ax_segment *segs, int n,
                                        double factor)
{
  return dtype == AX_F64 ? rewrite<double>(d, "scale", segs, n, factor, false)
                         : rewrite<float>(d, "scale", segs, n, factor, false);
}
extern "C" ax_status ax_cuda_grad_clamp(ax_device d, ax_dtype dtype, const ax_segment *segs, int n,
                                        double limit)
{
  return dtype == AX_F64 ? rewrite<double>(d, "clamp", segs, n, limit, true)
                         : rewrite<float>(d, "clamp", segs, n, limit, true);
}

/* ---- with numbers in device memory */

template <class T>
static __global__ void clip_chunks(ax_cuda_segment_table<entry<T>> t, double max_norm, const double *norm)
{
  const double factor = max_norm / (*norm + 1e-6);
  if (factor >= 1) return; /* NaN continues, and spreads */
  rewrite_all(t, [factor](T g) { return g * (T)factor; });
}

template <class T>
static __global__ void unscale_chunks(ax_cuda_segment_table<entry<T>> t, const float *scale, float *found)
{
  const T by = (T)(1 / (double)*scale);
  bool wrong = false;
  rewrite_all(t, [by, &wrong](T g) {
    g *= by;
    wrong |= !(fabs(g) < (T)INFINITY);
    return g;
  });
  if (wrong) *found = 1; /* all writers write the same value */
}

static __global__ void update_scale(double *state, const float *found, double growth, double backoff,
                                    int64_t interval)
{
  ax_scale_next(state, *found != 0, growth, backoff, interval);
}

template <class T>
static ax_status clip(ax_device d, const ax_segment *segs, int n, double max_norm, const double *norm)
{
  return ax_cuda_launch_segments<entry<T>>("clip", d, segs, n, fill<T>, clip_chunks<T>, max_norm, norm);
}
template <class T>
static ax_status unscale(ax_device d, const ax_segment *segs, int n, const float *scale, float *found)
{
  return ax_cuda_launch_segments<entry<T>>("unscale", d, segs, n, fill<T>, unscale_chunks<T>, scale, found);
}

extern "C" ax_status ax_cuda_grad_clip(ax_device d, ax_dtype dtype, const ax_segment *segs, int n,
                                       double max_norm, const double *norm)
{
  return dtype == AX_F64 ? clip<double>(d, segs, n, max_norm, norm) : clip<float>(d, segs, n, max_norm, norm);
}
extern "C" ax_status ax_cuda_grad_unscale(ax_device d, ax_dtype dtype, const ax_segment *segs, int n,
                                          const float *scale, float *found)
{
  return dtype == AX_F64 ? unscale<double>(d, segs, n, scale, found)
                         : unscale<float>(d, segs, n, scale, found);
}
extern "C" ax_status ax_cuda_scale_update(ax_device d, double *state, const float *found, double growth,
                                          double backoff, int64_t interval)
{
  return ax_cuda_launch("scale update", d, 1, 1, update_scale, state, found, growth, backoff, interval);
}

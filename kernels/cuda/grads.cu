/* Norm, scaling, clamping, clipping of many gradients at once, and the loss scale. */
#include "segments.cuh"

#include "optim_numbers.h"

template <class T> struct entry { int64_t n, first; T *grad; };

enum term { SQUARES, SIZES, POWERS, WIDEST, LEAST };

static __device__ __forceinline__ double joined(term what, double a, double b)
{
  if (what < WIDEST) return a + b;
  if (a != a || b != b) return a != a ? a : b;
  return (what == WIDEST ? b > a : b < a) ? b : a;
}
static __device__ __forceinline__ double identity(term what) { return what == LEAST ? (double)INFINITY : 0.0; }

template <class T> static __global__ void norm_chunks(ax_table<entry<T>> t, term what, double p, double *partial)
{
  __shared__ double shared[32];
  for (int64_t c = blockIdx.x; c < t.chunks; c += gridDim.x) {
    const entry<T> e = ax_entry_of(t, c);
    const int64_t lo = (c - e.first) * AX_SEGMENT_CHUNK, hi = lo + AX_SEGMENT_CHUNK < e.n ? lo + AX_SEGMENT_CHUNK : e.n;
    double sum = identity(what);
    for (int64_t i = lo + threadIdx.x; i < hi; i += blockDim.x) {
      const double x = (double)e.grad[i], size = fabs(x);
      sum = joined(what, sum, what == SQUARES ? x * x : what == POWERS ? pow(size, p) : size);
    }
    sum = ax_block_reduce(sum, [what](double a, double b) { return joined(what, a, b); }, shared);
    if (threadIdx.x == 0) partial[c] = sum;
  }
}

static __global__ void norm_total(const double *partial, int64_t n, term what, double root, double *out)
{
  __shared__ double shared[32];
  double sum = identity(what);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum = joined(what, sum, partial[i]);
  sum = ax_block_reduce(sum, [what](double a, double b) { return joined(what, a, b); }, shared);
  if (threadIdx.x == 0) *out = root == 1 ? sum : root == 2 ? sqrt(sum) : pow(sum, 1 / root);
}

/* *out lies on the device. */
template <class T> static ax_status norm_into(ax_device d, const ax_segment *segs, int n, double p, double root, double *out)
{
  const term what = p == 2 ? SQUARES : p == 1 ? SIZES : p == INFINITY ? WIDEST : p == -INFINITY ? LEAST : POWERS;
  int64_t chunks = 0;
  double *partial;
  ax_status st;

  for (int k = 0; k < n; k++) chunks += (segs[k].n + AX_SEGMENT_CHUNK - 1) / AX_SEGMENT_CHUNK;
  const size_t bytes = (size_t)(chunks ? chunks : 1) * sizeof(double);
  if ((st = ax_cuda_take(d, bytes, (void **)&partial)) != AX_OK) return st;
  st = ax_launch_segments<entry<T>>("norm", d, segs, n, [](entry<T> *e, const ax_segment *s) { e->grad = (T *)s->grad; }, &chunks, norm_chunks<T>, what, p, partial);
  if (st == AX_OK) st = ax_launch("norm", d, 1, chunks < 256 ? 32 : 512, norm_total, (const double *)partial, chunks, what, root, out);
  ax_cuda_give(d, partial, bytes);
  return st;
}

/* Every gradient of the table becomes change(it). */
template <class T, class F> static __device__ __forceinline__ void rewrite_all(const ax_table<entry<T>> &t, F change)
{
  constexpr int V = 16 / (int)sizeof(T);
  for (int64_t c = blockIdx.x; c < t.chunks; c += gridDim.x) {
    const entry<T> e = ax_entry_of(t, c);
    const int64_t lo = (c - e.first) * AX_SEGMENT_CHUNK, hi = lo + AX_SEGMENT_CHUNK < e.n ? lo + AX_SEGMENT_CHUNK : e.n;
    const int64_t runs = (uintptr_t)e.grad % 16 == 0 ? (hi - lo) / V : 0;
    for (int64_t q = threadIdx.x; q < runs; q += blockDim.x) {
      T v[V];
      ax_get(e.grad, lo + q * V, v);
      for (int j = 0; j < V; j++) v[j] = change(v[j]);
      ax_put(e.grad, lo + q * V, v);
    }
    for (int64_t i = lo + runs * V + threadIdx.x; i < hi; i += blockDim.x) e.grad[i] = change(e.grad[i]);
  }
}

template <class T> static __global__ void rewrite_chunks(ax_table<entry<T>> t, T by, bool clamp)
{
  if (!clamp) rewrite_all(t, [by](T g) { return g * by; });
  else rewrite_all(t, [by](T g) {
    const T low = by < g ? by : g; /* g where it is NaN */
    return -by > low ? -by : low;
  });
}

template <class T> static ax_status rewrite(ax_device d, const char *what, const ax_segment *segs, int n, double by, bool clamp)
{
  return ax_launch_segments<entry<T>>(what, d, segs, n, [](entry<T> *e, const ax_segment *s) { e->grad = (T *)s->grad; }, NULL, rewrite_chunks<T>, (T)by, clamp);
}

extern "C" ax_status ax_cuda_grad_norm_into(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double p, double root, double *out)
{
  return dtype == AX_F64 ? norm_into<double>(d, segs, n, p, root, out) : norm_into<float>(d, segs, n, p, root, out);
}
extern "C" ax_status ax_cuda_grad_norm(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double p, double *out)
{
  double *there;
  ax_status st = ax_cuda_take(d, sizeof *there, (void **)&there);
  if (st != AX_OK) return st;
  st = ax_cuda_grad_norm_into(d, dtype, segs, n, p, 1, there);
  if (st == AX_OK) st = ax_cuda_memory.copy(ax_device{ AX_CPU, 0 }, out, d, there, sizeof *out);
  ax_cuda_give(d, there, sizeof *there);
  return st;
}
extern "C" ax_status ax_cuda_grad_scale(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double factor)
{
  return dtype == AX_F64 ? rewrite<double>(d, "scale", segs, n, factor, false) : rewrite<float>(d, "scale", segs, n, factor, false);
}
extern "C" ax_status ax_cuda_grad_clamp(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double limit)
{
  return dtype == AX_F64 ? rewrite<double>(d, "clamp", segs, n, limit, true) : rewrite<float>(d, "clamp", segs, n, limit, true);
}

/* ---- by numbers that lie on the device */

template <class T> static __global__ void clip_chunks(ax_table<entry<T>> t, double max_norm, const double *norm)
{
  const double factor = max_norm / (*norm + 1e-6);
  if (factor >= 1) return; /* NaN goes on, and spreads */
  rewrite_all(t, [factor](T g) { return g * (T)factor; });
}

template <class T> static __global__ void unscale_chunks(ax_table<entry<T>> t, const float *scale, float *found)
{
  const T by = (T)(1 / (double)*scale);
  bool wrong = false;
  rewrite_all(t, [by, &wrong](T g) {
    g *= by;
    wrong |= !(fabs(g) < (T)INFINITY);
    return g;
  });
  if (wrong) *found = 1; /* all that write, write the same */
}

static __global__ void update_scale(double *state, const float *found, double growth, double backoff, int64_t interval)
{
  ax_scale_next(state, *found != 0, growth, backoff, interval);
}

template <class T> static ax_status clip(ax_device d, const ax_segment *segs, int n, double max_norm, const double *norm)
{
  return ax_launch_segments<entry<T>>("clip", d, segs, n, [](entry<T> *e, const ax_segment *s) { e->grad = (T *)s->grad; }, NULL, clip_chunks<T>, max_norm, norm);
}
template <class T> static ax_status unscale(ax_device d, const ax_segment *segs, int n, const float *scale, float *found)
{
  return ax_launch_segments<entry<T>>("unscale", d, segs, n, [](entry<T> *e, const ax_segment *s) { e->grad = (T *)s->grad; }, NULL, unscale_chunks<T>, scale, found);
}

extern "C" ax_status ax_cuda_grad_clip(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double max_norm, const double *norm)
{
  return dtype == AX_F64 ? clip<double>(d, segs, n, max_norm, norm) : clip<float>(d, segs, n, max_norm, norm);
}
extern "C" ax_status ax_cuda_grad_unscale(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, const float *scale, float *found)
{
  return dtype == AX_F64 ? unscale<double>(d, segs, n, scale, found) : unscale<float>(d, segs, n, scale, found);
}
extern "C" ax_status ax_cuda_scale_update(ax_device d, double *state, const float *found, double growth, double backoff, int64_t interval)
{
  return ax_launch("scale update", d, 1, 1, update_scale, state, found, growth, backoff, interval);
}

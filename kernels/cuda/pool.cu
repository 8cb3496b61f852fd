/* Pooling over windows of channels-last images, one thread for each written run of channels (16
 * bytes where memory is aligned).  In a gradient an element's thread finds the windows that contain
 * it, in their order, so that two threads never write one element.  Memory bounds the kernels. */
#include "rows.cuh"

#ifdef __CUDACC__
#define inline __host__ __device__ __forceinline__
#endif
#include "core/ops/pool.h"
#ifdef __CUDACC__
#undef inline
#endif

struct job {
  ax_pool p;
  int64_t n, c, h, w, oh, ow;
};

static job job_of(const ax_call *call, const ax_tensor *big, const ax_tensor *small)
{
  job j = {};
  j.p = ax_pool_of(call->a);
  j.n = big->shape[0], j.c = big->shape[1], j.h = big->shape[2], j.w = big->shape[3], j.oh = small->shape[2],
  j.ow = small->shape[3];
  return j;
}

static __device__ __forceinline__ double divisor(const job &j, const ax_window &y, const ax_window &x)
{
  if (j.p.divisor) return (double)j.p.divisor;
  if (j.p.flags & AX_POOL_COUNT_PADDING) return (double)(y.full * x.full);
  return (double)((y.hi - y.lo) * (x.hi - x.lo));
}

/* A position in (n, a, b, c), c innermost. */
struct place {
  int64_t image, a, b, c;
};
static __device__ __forceinline__ place place_of(int64_t p, int64_t a, int64_t b, int64_t c)
{
  place at;
  if (p >> 32 == 0) { /* 32-bit division is several times faster */
    const uint32_t q = (uint32_t)p / (uint32_t)c, r = q / (uint32_t)b, s = r / (uint32_t)a;
    at.c = (uint32_t)p - q * (uint32_t)c;
    at.b = q - r * (uint32_t)b;
    at.a = r - s * (uint32_t)a;
    at.image = s;
    return at;
  }
  at.c = p % c;
  p /= c;
  at.b = p % b;
  p /= b;
  at.a = p % a;
  at.image = p / a;
  return at;
}

template <class S, int V> static __global__ void largest(job j, S *to, int32_t *index, const S *from)
{
  typedef compute<S> T;
  for (int64_t p = AX_FIRST * V; p < j.n * j.oh * j.ow * j.c; p += AX_STEP * V) {
    const place o = place_of(p, j.oh, j.ow, j.c);
    const ax_window y = ax_pool_window(&j.p, 0, j.h, o.a), x = ax_pool_window(&j.p, 1, j.w, o.b);
    const int32_t first = ax_pool_first(y, x, j.w);
    const S *image = from + o.image * j.h * j.w * j.c + o.c;
    T best[V];
    int32_t at[V];
    for (int k = 0; k < V; k++) {
      best[k] = -(T)INFINITY;
      at[k] = first;
    }
    for (int64_t iy = y.lo; iy < y.hi; iy += y.step)
      for (int64_t ix = x.lo; ix < x.hi; ix += x.step) {
        const int64_t here = iy * j.w + ix;
        T v[V];
        ax_cuda_get(image, here * j.c, v);
        for (int k = 0; k < V; k++)
          if (!(v[k] <= best[k]) && best[k] == best[k]) { /* also where v[k] is NaN, which then stays */
            best[k] = v[k];
            at[k] = (int32_t)here;
          }
      }
    ax_cuda_put(to, p, best);
    ax_cuda_put(index, p, at);
  }
}

template <class S> static __global__ void average(job j, S *to, const S *from)
{
  typedef compute<S> T;
  for (int64_t p = AX_FIRST; p < j.n * j.oh * j.ow * j.c; p += AX_STEP) {
    const place o = place_of(p, j.oh, j.ow, j.c);
    const ax_window y = ax_pool_window(&j.p, 0, j.h, o.a), x = ax_pool_window(&j.p, 1, j.w, o.b);
    const S *image = from + o.image * j.h * j.w * j.c + o.c;
    T sum = 0;
    for (int64_t iy = y.lo; iy < y.hi; iy++)
      for (int64_t ix = x.lo; ix < x.hi; ix++) sum += ax_cuda_load(image[(iy * j.w + ix) * j.c]);
    to[p] = ax_cuda_store<S>(sum / (T)divisor(j, y, x));
  }
}

/* The windows [*lo, *hi) of dim d that contain one of the positions first .. last; where dilation
 * leaves gaps, others too. */
static __device__ __forceinline__ void reach(const job &j, int d, int64_t size, int64_t windows,
                                             int64_t first, int64_t last, int64_t *lo, int64_t *hi)
{
  /* window k covers k size / n .. (k + 1) size / n, rounded outward */
  if (j.p.flags & AX_POOL_ADAPTIVE) {
    *lo = ax_cuda_divided(first * windows, size);
    *hi = ax_cuda_divided((last + 1) * windows + size - 1, size);
  } else {
    const int64_t stride = j.p.stride[d], span = j.p.dilation[d] * (j.p.kernel[d] - 1),
                  from = first + j.p.padding[d] - span;
    *lo = from <= 0 ? 0 : ax_cuda_divided(from + stride - 1, stride);
    *hi = ax_cuda_divided(last + j.p.padding[d], stride) + 1;
  }
  if (*hi > windows) *hi = windows;
}

template <class S> static __global__ void spread(job j, S *to, const S *g)
{
  typedef compute<S> T;
  for (int64_t p = AX_FIRST; p < j.n * j.h * j.w * j.c; p += AX_STEP) {
    const place at = place_of(p, j.h, j.w, j.c);
    int64_t y0, y1, x0, x1;
    T sum = 0;
    reach(j, 0, j.h, j.oh, at.a, at.a, &y0, &y1);
    reach(j, 1, j.w, j.ow, at.b, at.b, &x0, &x1);
    for (int64_t oy = y0; oy < y1; oy++) {
      const ax_window y = ax_pool_window(&j.p, 0, j.h, oy);
      if (at.a < y.lo || at.a >= y.hi) continue;
      for (int64_t ox = x0; ox < x1; ox++) {
        const ax_window x = ax_pool_window(&j.p, 1, j.w, ox);
        if (at.b < x.lo || at.b >= x.hi) continue;
        sum += ax_cuda_load(g[((at.image * j.oh + oy) * j.ow + ox) * j.c + at.c]) / (T)divisor(j, y, x);
      }
    }
    to[p] = ax_cuda_store<S>(sum);
  }
}

/* to = the sum of g over the windows that chose the element, in the windows' order, which is the
 * order of the positions of g.  A thread has a strip of positions, so that it loads a window once
 * for all of them. */
enum { STRIP = 4 };
template <class S, int V> static __global__ void gather(job j, S *to, const S *g, const int32_t *index)
{
  typedef compute<S> T;
  const int64_t strips = (j.w + STRIP - 1) / STRIP, runs = j.c / V;
  for (int64_t p = AX_FIRST; p < j.n * j.h * strips * runs; p += AX_STEP) {
    const place at = place_of(p, j.h, strips, runs);
    const int64_t b = at.b * STRIP, end = b + STRIP < j.w ? b + STRIP : j.w, c = at.c * V;
    const int32_t here = (int32_t)(at.a * j.w + b);
    int64_t y0, y1, x0, x1;
    T sum[STRIP][V];
    for (int q = 0; q < STRIP; q++)
      for (int k = 0; k < V; k++) sum[q][k] = 0;
    reach(j, 0, j.h, j.oh, at.a, at.a, &y0, &y1);
    reach(j, 1, j.w, j.ow, b, end - 1, &x0, &x1);
    for (int64_t oy = y0; oy < y1; oy++) {
      const int64_t row = ((at.image * j.oh + oy) * j.ow) * j.c + c;
#pragma unroll 3
      for (int64_t ox = x0; ox < x1; ox++) {
        T v[V];
        int32_t chosen[V];
        ax_cuda_get(g, row + ox * j.c, v);
        ax_cuda_get(index, row + ox * j.c, chosen);
        for (int k = 0; k < V; k++)
          for (int q = 0; q < STRIP; q++)
            if (chosen[k] - here == q) sum[q][k] += v[k];
      }
    }
    for (int q = 0; q < STRIP; q++)
      if (b + q < end) ax_cuda_put(to, ((at.image * j.h + at.a) * j.w + b + q) * j.c + c, sum[q]);
  }
}

/* One thread for each channel of an image, which walks the positions of g in order; for calls that
 * do not know the windows. */
template <class S>
static __global__ void scatter(job j, S *to, const S *g, const int32_t *index, compute<S> *wide)
{
  typedef compute<S> T;
  const int64_t plane = j.oh * j.ow, size = j.h * j.w;
  for (int64_t p = AX_FIRST; p < j.n * j.c; p += AX_STEP) {
    const int64_t image = p / j.c, c = p % j.c;
    T *sums = wide + image * size * j.c + c;
    for (int64_t k = 0; k < plane; k++) {
      const int64_t at = (image * plane + k) * j.c + c;
      if (index[at] != AX_POOL_NOWHERE) sums[index[at] * j.c] += ax_cuda_load(g[at]);
    }
    if ((void *)wide != (void *)to)
      for (int64_t k = 0; k < size; k++) to[(image * size + k) * j.c + c] = ax_cuda_store<S>(sums[k * j.c]);
  }
}

template <class S> static __global__ void take(job j, S *to, const S *from, const int32_t *index)
{
  const int64_t plane = j.oh * j.ow;
  for (int64_t p = AX_FIRST; p < j.n * plane * j.c; p += AX_STEP) {
    const int32_t at = index[p];
    to[p] = at == AX_POOL_NOWHERE ? (S)0 : from[(p / j.c / plane * j.h * j.w + at) * j.c + p % j.c];
  }
}

/* Whether channels, and their indices, can be accessed in runs of 16 bytes. */
template <class S> static bool runs(int64_t channels, const void *a, const void *b, const void *index)
{
  const int V = 16 / (int)sizeof(S);
  return channels % V == 0 && ((uintptr_t)a | (uintptr_t)b) % 16 == 0 &&
         (uintptr_t)index % (sizeof(int32_t) * V) == 0;
}

AX_CUDA_KERNEL(_max_pool)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  const ax_device d = x->device;
  if (y->numel == 0) return AX_OK;
  return ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    constexpr int V = 16 / (int)sizeof(S);
    S *const to = ax_cuda_data<S>(y);
    int32_t *const index = ax_cuda_data<int32_t>(call->out[1]);
    const S *const from = ax_cuda_data<S>(x);
    if (runs<S>(x->shape[1], from, to, index))
      return ax_cuda_launch("max_pool2d", d, ax_cuda_blocks(y->numel / V, 256, d.index), 256, largest<S, V>,
                            job_of(call, x, y), to, index, from);
    return ax_cuda_launch("max_pool2d", d, ax_cuda_blocks(y->numel, 256, d.index), 256, largest<S, 1>,
                          job_of(call, x, y), to, index, from);
  });
}

AX_CUDA_KERNEL(_avg_pool)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  const ax_device d = x->device;
  if (y->numel == 0) return AX_OK;
  return ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("avg_pool2d", d, ax_cuda_blocks(y->numel, 256, d.index), 256, average<S>,
                          job_of(call, x, y), ax_cuda_data<S>(y), ax_cuda_data<S>(x));
  });
}

AX_CUDA_KERNEL(_avg_pool_backward)
{
  const ax_tensor *g = call->in[0], *x = call->out[0];
  const ax_device d = x->device;
  if (x->numel == 0) return AX_OK;
  if (g->numel == 0) return ax_cuda_clear("avg_pool2d", d, ax_data(x), (size_t)x->numel * ax_itemsize(x));
  return ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("avg_pool2d", d, ax_cuda_blocks(x->numel, 256, d.index), 256, spread<S>,
                          job_of(call, x, g), ax_cuda_data<S>(x), ax_cuda_data<S>(g));
  });
}

AX_CUDA_KERNEL(_pool_scatter)
{
  const ax_tensor *g = call->in[0], *index = call->in[1], *x = call->out[0];
  const ax_device d = x->device;
  if (x->numel == 0) return AX_OK;
  if (g->numel == 0) return ax_cuda_clear("max_pool2d", d, ax_data(x), (size_t)x->numel * ax_itemsize(x));
  return ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    const job j = job_of(call, x, g);
    constexpr int V = 16 / (int)sizeof(S);
    const S *const from = ax_cuda_data<S>(g);
    const int32_t *const at = ax_cuda_data<int32_t>(index);
    S *const to = ax_cuda_data<S>(x);
    if (j.p.kernel[0] > 0) { /* the gradient of _max_pool, whose windows are known */
      const int64_t strips = j.n * j.h * ((j.w + STRIP - 1) / STRIP);
      if (runs<S>(j.c, from, to, at))
        return ax_cuda_launch("max_pool2d", d, ax_cuda_blocks(strips * (j.c / V), 256, d.index), 256,
                              gather<S, V>, j, to, from, at);
      return ax_cuda_launch("max_pool2d", d, ax_cuda_blocks(strips * j.c, 256, d.index), 256, gather<S, 1>, j,
                            to, from, at);
    }
    const size_t bytes = (size_t)x->numel * sizeof(T);
    void *wide = ax_data(x);
    ax_status st = AX_OK;
    if (sizeof(S) != sizeof(T) && (st = ax_cuda_take(d, bytes, &wide)) != AX_OK) return st;
    st = ax_cuda_clear("max_pool2d", d, wide, bytes);
    if (st == AX_OK)
      st = ax_cuda_launch("max_pool2d", d, ax_cuda_blocks(j.n * j.c, 64, d.index), 64, scatter<S>, j,
                          ax_cuda_data<S>(x), ax_cuda_data<S>(g), ax_cuda_data<int32_t>(index), (T *)wide);
    if (wide != ax_data(x)) ax_cuda_give(d, wide, bytes);
    return st;
  });
}

AX_CUDA_KERNEL(_pool_take)
{
  const ax_tensor *x = call->in[0], *index = call->in[1], *y = call->out[0];
  const ax_device d = x->device;
  if (y->numel == 0) return AX_OK;
  if (x->numel == 0) return ax_cuda_clear("max_pool2d", d, ax_data(y), (size_t)y->numel * ax_itemsize(y));
  return ax_cuda_with_size(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("max_pool2d", d, ax_cuda_blocks(y->numel, 256, d.index), 256, take<S>,
                          job_of(call, x, y), ax_cuda_data<S>(y), ax_cuda_data<S>(x),
                          ax_cuda_data<int32_t>(index));
  });
}

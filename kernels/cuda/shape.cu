/* tile, tril, triu, and pad with elements of the input: copies that strides cannot express, one
 * thread for each element of the result.  Memory bounds them. */
#include "common.cuh"
#include "core/ops/pad.h"

/* shape: of the result; size: of the input; before: margins */
struct dims {
  int n;
  int64_t numel, shape[AX_MAX_DIMS], size[AX_MAX_DIMS], before[AX_MAX_DIMS];
};

/* Splits the next coordinate off p. */
static __device__ __forceinline__ int64_t take_last(const dims &k, int d, int64_t *p)
{
  if (k.numel < INT64_C(1) << 31) {
    const uint32_t q = (uint32_t)*p / (uint32_t)k.shape[d], c = (uint32_t)*p - q * (uint32_t)k.shape[d];
    *p = q;
    return c;
  }
  const int64_t c = *p % k.shape[d];
  *p /= k.shape[d];
  return c;
}

/* ---- tile */

template <class S> static __global__ void tile_kernel(dims k, S *y, const S *x)
{
  for (int64_t i = AX_FIRST; i < k.numel; i += AX_STEP) {
    int64_t rest = i, from = 0, step = 1;
    for (int d = k.n - 1; d >= 0; d--) {
      from += take_last(k, d, &rest) % k.size[d] * step;
      step *= k.size[d];
    }
    y[i] = x[from];
  }
}

AX_CUDA_KERNEL(tile)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  dims k = {};
  if (y->numel == 0) return AX_OK;
  k.n = y->ndim;
  k.numel = y->numel;
  for (int d = 0; d < y->ndim; d++) {
    k.shape[d] = y->shape[d];
    k.size[d] = y->shape[d] / call->a->list[d];
  }
  return ax_cuda_with_size(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("tile", y->device, ax_cuda_blocks(k.numel, 256, y->device.index), 256,
                          tile_kernel<S>, k, ax_cuda_data<S>(y), ax_cuda_data<S>(x));
  });
}

/* ---- tril, triu */

template <class S>
static __global__ void triangle_kernel(S *y, const S *x, int64_t n, int64_t rows, int64_t cols,
                                       int64_t diagonal, bool upper)
{
  for (int64_t i = AX_FIRST; i < n; i += AX_STEP) {
    const int64_t c = i % cols, r = i / cols % rows;
    const bool kept = upper ? c - r >= diagonal : c - r <= diagonal;
    y[i] = kept ? x[i] : (S)0;
  }
}

static ax_status triangle(const ax_call *call, bool upper)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  const int64_t rows = x->shape[x->ndim - 2], cols = x->shape[x->ndim - 1];
  if (y->numel == 0) return AX_OK;
  return ax_cuda_with_size(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch(upper ? "triu" : "tril", y->device, ax_cuda_blocks(y->numel, 256, y->device.index),
                          256, triangle_kernel<S>, ax_cuda_data<S>(y), ax_cuda_data<S>(x), y->numel, rows,
                          cols, call->a->triangle.diagonal, upper);
  });
}

AX_CUDA_KERNEL(tril) { return triangle(call, false); }
AX_CUDA_KERNEL(triu) { return triangle(call, true); }

/* ---- pad with elements of the input */

template <class S> static __global__ void pad_kernel(dims k, int mode, S *y, const S *x)
{
  for (int64_t i = AX_FIRST; i < k.numel; i += AX_STEP) {
    int64_t rest = i, from = 0, step = 1;
    for (int d = k.n - 1; d >= 0; d--) {
      from += ax_pad_source(mode, take_last(k, d, &rest) - k.before[d], k.size[d]) * step;
      step *= k.size[d];
    }
    y[i] = x[from];
  }
}

/* x is the tensor without margins, y with. */
static dims margins_of(const ax_tensor *x, const ax_tensor *y, const ax_attrs *a)
{
  dims k = {};
  k.n = x->ndim;
  k.numel = y->numel;
  for (int d = 0; d < x->ndim; d++) {
    const int at = 2 * (x->ndim - 1 - d);
    k.shape[d] = y->shape[d];
    k.size[d] = x->shape[d];
    k.before[d] = at < a->n_list ? a->list[at] : 0;
  }
  return k;
}

AX_CUDA_KERNEL(_pad_mode)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  if (y->numel == 0) return AX_OK;
  return ax_cuda_with_size(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("pad", y->device, ax_cuda_blocks(y->numel, 256, y->device.index), 256,
                          pad_kernel<S>, margins_of(x, y, call->a), (int)call->a->pad_mode.mode,
                          ax_cuda_data<S>(y), ax_cuda_data<S>(x));
  });
}

/* The positions of a padded dim that are copies of position i: a run for replicate, up to three for
 * the other modes. */
struct places {
  int64_t at[3], count;
  bool run;
};

static __device__ __forceinline__ places places_of(int mode, int64_t i, int64_t size, int64_t before,
                                                   int64_t wide)
{
  places p = { { 0, 0, 0 }, 0, mode == AX_PAD_REPLICATE };
  if (mode == AX_PAD_REPLICATE) {
    int64_t lo = i == 0 ? 0 : before + i, hi = i == size - 1 ? wide - 1 : before + i;
    lo = lo < 0 ? 0 : lo;
    hi = hi >= wide ? wide - 1 : hi;
    p.at[0] = lo;
    p.count = hi >= lo ? hi - lo + 1 : 0;
    return p;
  }
  const int64_t others[3] = { mode == AX_PAD_CIRCULAR ? before + i - size : before - i, before + i,
                              mode == AX_PAD_CIRCULAR ? before + i + size : before + 2 * (size - 1) - i };
  for (int c = 0; c < 3; c++) /* rising; at an end of a reflection two of them coincide */
    if (others[c] >= 0 && others[c] < wide && ax_pad_source(mode, others[c] - before, size) == i &&
        (p.count == 0 || p.at[p.count - 1] != others[c]))
      p.at[p.count++] = others[c];
  return p;
}

/* The gradient of pad: each element of x sums, in g's order, the elements of g that were copied
 * from it. */
template <class S, class T> static __global__ void unpad_kernel(dims k, int64_t n, int mode, S *x, const S *g)
{
  for (int64_t i = AX_FIRST; i < n; i += AX_STEP) {
    places p[AX_MAX_DIMS];
    int64_t step[AX_MAX_DIMS], rest = i, all = 1, width = 1;
    T sum = 0;
    for (int d = k.n - 1; d >= 0; d--) {
      p[d] = places_of(mode, rest % k.size[d], k.size[d], k.before[d], k.shape[d]);
      rest /= k.size[d];
      step[d] = width;
      width *= k.shape[d];
      all *= p[d].count;
    }
    for (int64_t c = 0; c < all; c++) {
      int64_t at = 0, left = c;
      for (int d = k.n - 1; d >= 0; d--) {
        const int64_t which = left % p[d].count;
        left /= p[d].count;
        at += (p[d].run ? p[d].at[0] + which : p[d].at[which]) * step[d];
      }
      sum += (T)g[at];
    }
    x[i] = (S)sum;
  }
}

AX_CUDA_KERNEL(_pad_mode_backward)
{
  const ax_tensor *g = call->in[0], *x = call->out[0];
  const dims k = margins_of(x, g, call->a);
  const unsigned blocks = ax_cuda_blocks(x->numel, 256, x->device.index);
  auto run = [&](auto tag, auto sum) {
    typedef AX_TYPE_OF(tag) S;
    typedef AX_TYPE_OF(sum) T;
    return ax_cuda_launch("pad", x->device, blocks, 256, unpad_kernel<S, T>, k, x->numel,
                          (int)call->a->pad_mode_backward.mode, ax_cuda_data<S>(x), ax_cuda_data<S>(g));
  };
  if (x->numel == 0) return AX_OK;
  switch ((ax_dtype)x->dtype) {
  case AX_F32: return run(ax_cuda_type<float>(), ax_cuda_type<float>());
  case AX_F64: return run(ax_cuda_type<double>(), ax_cuda_type<double>());
  case AX_I64: return run(ax_cuda_type<int64_t>(), ax_cuda_type<uint64_t>());
  case AX_I32: return run(ax_cuda_type<int32_t>(), ax_cuda_type<uint32_t>());
  case AX_U8: return run(ax_cuda_type<uint8_t>(), ax_cuda_type<uint32_t>());
  default: return ax_cuda_no_dtype(call->op, (ax_dtype)x->dtype);
  }
}

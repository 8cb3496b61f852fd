/* im2col and col2im (the formulas are in kernels/cpu/windows.c), one thread for each written
 * element.  For an element of an image a thread finds its place in each window that covers it, in
 * the order of the kernel's places, so that sums have one order.  Memory bounds the kernels. */
#include "common.cuh"

#include "core/ops/windows.h"

template <class S> static __global__ void columns(ax_windows w, S *to, const S *from)
{
  const int64_t across = w.count[1], windows = w.count[0] * across, taps = w.kernel[0] * w.kernel[1];
  for (int64_t p = AX_FIRST; p < w.n * w.c * taps * windows; p += AX_STEP) {
    const int64_t row = ax_cuda_divided(p, windows), at = p - row * windows, r = ax_cuda_divided(at, across);
    const int64_t plane = ax_cuda_divided(row, taps), tap = row - plane * taps,
                  i = ax_cuda_divided(tap, w.kernel[1]);
    const int64_t y = r * w.stride[0] + i * w.dilation[0] - w.padding[0],
                  x = (at - r * across) * w.stride[1] + (tap - i * w.kernel[1]) * w.dilation[1] -
                      w.padding[1];
    S v{};
    if (y >= 0 && y < w.size[0] && x >= 0 && x < w.size[1]) v = from[(plane * w.size[0] + y) * w.size[1] + x];
    to[p] = v;
  }
}

/* The window along dim d that has `at` of the padded image at its place `tap`; -1: none has. */
static __device__ __forceinline__ int64_t window(const ax_windows &w, int d, int64_t at, int64_t tap)
{
  const int64_t first = at - tap * w.dilation[d];
  if (first < 0) return -1;
  const int64_t k = ax_cuda_divided(first, w.stride[d]);
  return k * w.stride[d] == first && k < w.count[d] ? k : -1;
}

template <class S> static __global__ void images(ax_windows w, S *to, const S *from)
{
  typedef compute<S> T;
  const int64_t across = w.count[1], windows = w.count[0] * across, taps = w.kernel[0] * w.kernel[1];
  for (int64_t p = AX_FIRST; p < w.n * w.c * w.size[0] * w.size[1]; p += AX_STEP) {
    const int64_t line = ax_cuda_divided(p, w.size[1]), plane = ax_cuda_divided(line, w.size[0]);
    const int64_t y = line - plane * w.size[0] + w.padding[0], x = p - line * w.size[1] + w.padding[1];
    const S *place = from + plane * taps * windows;
    T sum = 0;
    for (int64_t i = 0; i < w.kernel[0]; i++) {
      const int64_t r = window(w, 0, y, i);
      if (r < 0) continue;
      for (int64_t k = 0; k < w.kernel[1]; k++) {
        const int64_t q = window(w, 1, x, k);
        if (q >= 0) sum += ax_cuda_load(place[(i * w.kernel[1] + k) * windows + r * across + q]);
      }
    }
    to[p] = ax_cuda_store<S>(sum);
  }
}

AX_CUDA_KERNEL(im2col)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  const ax_device d = x->device;
  if (y->numel == 0) return AX_OK;
  return ax_cuda_with_size(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("im2col", d, ax_cuda_blocks(y->numel, 256, d.index), 256, columns<S>,
                          ax_windows_of(call->a, x->ndim, x->shape), ax_cuda_data<S>(y), ax_cuda_data<S>(x));
  });
}

AX_CUDA_KERNEL(col2im)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  const ax_device d = x->device;
  if (y->numel == 0) return AX_OK;
  return ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("col2im", d, ax_cuda_blocks(y->numel, 256, d.index), 256, images<S>,
                          ax_windows_of(call->a, y->ndim, y->shape), ax_cuda_data<S>(y), ax_cuda_data<S>(x));
  });
}

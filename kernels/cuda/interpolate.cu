/* Resampling of channels-last images (the formula is in kernels/cpu/interpolate.c), one thread for
 * each written element.  In the gradient an element's thread finds the result positions that used
 * the element, in their order.  Memory bounds the kernels. */
#include "common.cuh"

struct job {
  int64_t n, c, h, w, oh, ow;
  bool linear, align;
  double factor[2];
};

template <class T> struct source {
  int64_t at[2];
  T weight[2];
};

/* The distance between source positions, as PyTorch computes it: from the given factor instead of
 * the sizes where there is one, in the element's own precision. */
template <class T> static __device__ __forceinline__ T ratio_of(const job &j, int d, int64_t in, int64_t out)
{
  if (j.linear && j.align) return out > 1 ? (T)((double)(in - 1) / (double)(out - 1)) : (T)0;
  return j.factor[d] > 0 ? (T)1 / (T)j.factor[d] : (T)((double)in / (double)out);
}

template <class T>
static __device__ __forceinline__ source<T> source_of(const job &j, T ratio, int64_t in, int64_t i)
{
  T at = j.linear && !j.align ? ratio * ((T)i + (T)0.5) - (T)0.5 : ratio * (T)i;
  if (!(at > 0)) at = 0; /* NaN too: an infinite ratio times 0 */
  if (at > (T)in) at = (T)in;
  int64_t low = (int64_t)at;
  if (low > in - 1) low = in - 1;
  const double part = j.linear ? (double)at - (double)low : 0;
  return source<T>{ { low, low + 1 < in ? low + 1 : in - 1 }, { (T)(1 - part), (T)part } };
}

template <class S> static __global__ void forward(job j, S *to, const S *from)
{
  typedef compute<S> T;
  const T ry = ratio_of<T>(j, 0, j.h, j.oh), rx = ratio_of<T>(j, 1, j.w, j.ow);
  for (int64_t p = AX_FIRST; p < j.n * j.oh * j.ow * j.c; p += AX_STEP) {
    const int64_t c = p % j.c, ox = p / j.c % j.ow, oy = p / j.c / j.ow % j.oh, image = p / j.c / j.ow / j.oh;
    const source<T> y = source_of<T>(j, ry, j.h, oy), x = source_of<T>(j, rx, j.w, ox);
    const S *top = from + (image * j.h + y.at[0]) * j.w * j.c + c,
            *low = from + (image * j.h + y.at[1]) * j.w * j.c + c;
    const T a = ax_cuda_load(top[x.at[0] * j.c]);
    if (x.weight[1] == 0 && y.weight[1] == 0) to[p] = ax_cuda_store<S>(a);
    else
      to[p] =
          ax_cuda_store<S>(y.weight[0] * (x.weight[0] * a + x.weight[1] * ax_cuda_load(top[x.at[1] * j.c])) +
                           y.weight[1] * (x.weight[0] * ax_cuda_load(low[x.at[0] * j.c]) +
                                          x.weight[1] * ax_cuda_load(low[x.at[1] * j.c])));
  }
}

/* The result positions [*lo, *hi) that may have used `at`; each is then checked exactly. */
template <class T>
static __device__ __forceinline__ void reach(const job &j, T ratio, int64_t in, int64_t out, int64_t at,
                                             int64_t *lo, int64_t *hi)
{
  *lo = 0, *hi = out;
  if (!(ratio > 0)) return;
  const double first = ((double)at - 2) / (double)ratio - 2, last = ((double)at + 2) / (double)ratio + 2;
  if (first > 0) *lo = first < (double)out ? (int64_t)first : out;
  /* the last position also stands for positions beyond it */
  if (at < in - 1 && last < (double)out) *hi = (int64_t)last;
}

template <class S> static __global__ void backward(job j, S *to, const S *g)
{
  typedef compute<S> T;
  const T ry = ratio_of<T>(j, 0, j.h, j.oh), rx = ratio_of<T>(j, 1, j.w, j.ow);
  for (int64_t p = AX_FIRST; p < j.n * j.h * j.w * j.c; p += AX_STEP) {
    const int64_t c = p % j.c, ix = p / j.c % j.w, iy = p / j.c / j.w % j.h, image = p / j.c / j.w / j.h;
    int64_t y0, y1, x0, x1;
    T sum = 0;
    reach(j, ry, j.h, j.oh, iy, &y0, &y1);
    reach(j, rx, j.w, j.ow, ix, &x0, &x1);
    for (int64_t oy = y0; oy < y1; oy++) {
      const source<T> y = source_of<T>(j, ry, j.h, oy);
      if (y.at[0] != iy && y.at[1] != iy) continue;
      for (int64_t ox = x0; ox < x1; ox++) {
        const source<T> x = source_of<T>(j, rx, j.w, ox);
        if (x.at[0] != ix && x.at[1] != ix) continue;
        const T own = ax_cuda_load(g[((image * j.oh + oy) * j.ow + ox) * j.c + c]);
        for (int k = 0; k < 4; k++) {
          const T by = y.weight[k / 2] * x.weight[k % 2];
          if (y.at[k / 2] == iy && x.at[k % 2] == ix && by != 0) sum += by * own;
        }
      }
    }
    to[p] = ax_cuda_store<S>(sum);
  }
}

static ax_status run(const ax_call *call, bool back)
{
  const ax_tensor *from = call->in[0], *to = call->out[0], *big = back ? to : from, *small = back ? from : to;
  const ax_device d = to->device;
  const job j = { big->shape[0],
                  big->shape[1],
                  big->shape[2],
                  big->shape[3],
                  small->shape[2],
                  small->shape[3],
                  (bool)call->a->resample.linear,
                  (bool)call->a->resample.align_corners,
                  { call->a->resample.scale_h, call->a->resample.scale_w } };
  if (to->numel == 0) return AX_OK;
  return ax_cuda_with_float(call->op, (ax_dtype)from->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    const unsigned blocks = ax_cuda_blocks(to->numel, 256, d.index);
    return back ? ax_cuda_launch("interpolate", d, blocks, 256, backward<S>, j, ax_cuda_data<S>(to),
                                 ax_cuda_data<S>(from))
                : ax_cuda_launch("interpolate", d, blocks, 256, forward<S>, j, ax_cuda_data<S>(to),
                                 ax_cuda_data<S>(from));
  });
}

AX_CUDA_KERNEL(_resample) { return run(call, false); }
AX_CUDA_KERNEL(_resample_backward) { return run(call, true); }

/* Pooling over windows of channels-last images: the innermost loops run along the channels.  Half
 * types are converted to float32.  Threads share rows of windows (forward) or whole images
 * (gradients, since windows may overlap); memory bounds the kernel. */
#include "cpu.h"

#include <math.h>
#include <string.h>

#include "core/ops/pool.h"

typedef struct job {
  ax_pool p;
  int64_t n, c, h, w, oh, ow;
  const void *from; /* read and written, in float32 or float64 */
  void *to;
  int32_t *index;
} job;

/* The divisor of a window's mean. */
static inline double divisor(const job *j, ax_window y, ax_window x)
{
  if (j->p.divisor) return (double)j->p.divisor;
  if (j->p.flags & AX_POOL_COUNT_PADDING) return (double)(y.full * x.full);
  return (double)((y.hi - y.lo) * (x.hi - x.lo));
}

#define POOL(S, T) \
  static void max_##S(int64_t lo, int64_t hi, void *ud) /* rows of windows */ \
  { \
    const job *j = ud; \
    for (int64_t row = lo; row < hi; row++) { \
      const T *image = (const T *)j->from + row / j->oh * j->h * j->w * j->c; \
      const ax_window y = ax_pool_window(&j->p, 0, j->h, row % j->oh); \
      for (int64_t o = 0; o < j->ow; o++) { \
        const ax_window x = ax_pool_window(&j->p, 1, j->w, o); \
        const int32_t first = ax_pool_first(y, x, j->w); \
        T *best = (T *)j->to + (row * j->ow + o) * j->c; \
        int32_t *at = j->index + (row * j->ow + o) * j->c; \
        for (int64_t c = 0; c < j->c; c++) { \
          best[c] = -INFINITY; \
          at[c] = first; \
        } \
        for (int64_t iy = y.lo; iy < y.hi; iy += y.step) \
          for (int64_t ix = x.lo; ix < x.hi; ix += x.step) { \
            const int32_t here = (int32_t)(iy * j->w + ix); \
            const T *v = image + here * j->c; \
            AX_SIMD \
            for (int64_t c = 0; c < j->c; c++) { \
              const bool more = !(v[c] <= best[c]); /* also where v[c] is NaN */ \
              const bool kept = best[c] != best[c]; \
              at[c] = more && !kept ? here : at[c]; \
              best[c] = more && !kept ? v[c] : best[c]; \
            } \
          } \
      } \
    } \
  } \
  static void average_##S(int64_t lo, int64_t hi, void *ud) /* rows of windows */ \
  { \
    const job *j = ud; \
    for (int64_t row = lo; row < hi; row++) { \
      const T *image = (const T *)j->from + row / j->oh * j->h * j->w * j->c; \
      const ax_window y = ax_pool_window(&j->p, 0, j->h, row % j->oh); \
      for (int64_t o = 0; o < j->ow; o++) { \
        const ax_window x = ax_pool_window(&j->p, 1, j->w, o); \
        T *sum = (T *)j->to + (row * j->ow + o) * j->c; \
        memset(sum, 0, (size_t)j->c * sizeof(T)); \
        for (int64_t iy = y.lo; iy < y.hi; iy++) \
          for (int64_t ix = x.lo; ix < x.hi; ix++) { \
            const T *v = image + (iy * j->w + ix) * j->c; \
            AX_SIMD \
            for (int64_t c = 0; c < j->c; c++) sum[c] += v[c]; \
          } \
        const T by = (T)divisor(j, y, x); \
        AX_SIMD \
        for (int64_t c = 0; c < j->c; c++) sum[c] /= by; \
      } \
    } \
  } \
  static void spread_##S(int64_t lo, int64_t hi, void *ud) /* whole images: windows may overlap */ \
  { \
    const job *j = ud; \
    memset((T *)j->to + lo * j->h * j->w * j->c, 0, (size_t)((hi - lo) * j->h * j->w * j->c) * sizeof(T)); \
    for (int64_t row = lo * j->oh; row < hi * j->oh; row++) { \
      T *image = (T *)j->to + row / j->oh * j->h * j->w * j->c; \
      const ax_window y = ax_pool_window(&j->p, 0, j->h, row % j->oh); \
      for (int64_t o = 0; o < j->ow; o++) { \
        const ax_window x = ax_pool_window(&j->p, 1, j->w, o); \
        const T *g = (const T *)j->from + (row * j->ow + o) * j->c; \
        const T by = (T)divisor(j, y, x); \
        for (int64_t iy = y.lo; iy < y.hi; iy++) \
          for (int64_t ix = x.lo; ix < x.hi; ix++) { \
            T *d = image + (iy * j->w + ix) * j->c; \
            AX_SIMD \
            for (int64_t c = 0; c < j->c; c++) d[c] += g[c] / by; \
          } \
      } \
    } \
  } \
  static void scatter_##S(int64_t lo, int64_t hi, void *ud) /* whole images */ \
  { \
    const job *j = ud; \
    const int64_t plane = j->oh * j->ow; \
    memset((T *)j->to + lo * j->h * j->w * j->c, 0, (size_t)((hi - lo) * j->h * j->w * j->c) * sizeof(T)); \
    for (int64_t p = lo * plane; p < hi * plane; p++) { \
      T *image = (T *)j->to + p / plane * j->h * j->w * j->c; \
      const T *g = (const T *)j->from + p * j->c; \
      const int32_t *at = j->index + p * j->c; \
      for (int64_t c = 0; c < j->c; c++) \
        if (at[c] != AX_POOL_NOWHERE) image[at[c] * j->c + c] += g[c]; \
    } \
  } \
  static void take_##S(int64_t lo, int64_t hi, void *ud) /* positions of the result */ \
  { \
    const job *j = ud; \
    const int64_t plane = j->oh * j->ow; \
    for (int64_t p = lo; p < hi; p++) { \
      const T *image = (const T *)j->from + p / plane * j->h * j->w * j->c; \
      T *to = (T *)j->to + p * j->c; \
      const int32_t *at = j->index + p * j->c; \
      for (int64_t c = 0; c < j->c; c++) to[c] = at[c] == AX_POOL_NOWHERE ? 0 : image[at[c] * j->c + c]; \
    } \
  }
POOL(f32, float)
POOL(f64, double)

/* Runs `count` pieces of work.  big, small: the tensors before and after pooling; `from` is the one
 * that is read, `to` the one that is written. */
static ax_status run(const ax_call *call, const ax_tensor *big, const ax_tensor *small, const ax_tensor *from,
                     const ax_tensor *to, const ax_tensor *index, int64_t count, ax_range_fn f32,
                     ax_range_fn f64)
{
  const ax_dtype type = (ax_dtype)from->dtype;
  const bool half = ax_is_half(type);
  const size_t bytes = (size_t)(from->numel + to->numel) * sizeof(float);
  job j = { .p = ax_pool_of(call->a),
            .n = big->shape[0],
            .c = big->shape[1],
            .h = big->shape[2],
            .w = big->shape[3],
            .oh = small->shape[2],
            .ow = small->shape[3],
            .from = ax_data(from),
            .to = ax_data(to),
            .index = index ? ax_data(index) : NULL };
  void *wide = NULL;

  if (to->numel == 0) return AX_OK;
  if (half) {
    const ax_status st = ax_alloc(bytes, &wide);
    if (st != AX_OK) return st;
    ax_cpu_half_to_float(type, ax_data(from), 2, wide, from->numel);
    j.from = wide;
    j.to = (float *)wide + from->numel;
  }
  if (big->numel == 0 || small->numel == 0)
    memset(j.to, 0, (size_t)to->numel * (type == AX_F64 ? sizeof(double) : sizeof(float)));
  else ax_cpu_for(count, big->numel, type == AX_F64 ? f64 : f32, &j);
  if (half) {
    ax_cpu_float_to_half(type, j.to, ax_data(to), 2, to->numel);
    ax_free(wide, bytes);
  }
  return AX_OK;
}

ax_status ax_cpu__max_pool(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  return run(call, x, y, x, y, call->out[1], y->shape[0] * y->shape[2], max_f32, max_f64);
}

ax_status ax_cpu__avg_pool(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  return run(call, x, y, x, y, NULL, y->shape[0] * y->shape[2], average_f32, average_f64);
}

ax_status ax_cpu__avg_pool_backward(const ax_call *call)
{
  const ax_tensor *g = call->in[0], *x = call->out[0];
  return run(call, x, g, g, x, NULL, x->shape[0], spread_f32, spread_f64);
}

ax_status ax_cpu__pool_scatter(const ax_call *call)
{
  const ax_tensor *g = call->in[0], *x = call->out[0];
  return run(call, x, g, g, x, call->in[1], x->shape[0], scatter_f32, scatter_f64);
}

ax_status ax_cpu__pool_take(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  return run(call, x, y, x, y, call->in[1], y->shape[0] * y->shape[2] * y->shape[3], take_f32, take_f64);
}

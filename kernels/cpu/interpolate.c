/* Resampling of channels-last images: y[i, j] = sum over two source rows and two source columns of
 * weight x source.  The source positions and weights are computed once for each dim (nearest: one
 * source of weight 1).  Half types are converted to float32.  Threads share rows of the result
 * (forward) or images (gradient); memory bounds the kernel. */
#include "cpu.h"

#include <math.h>
#include <string.h>

typedef struct source {
  int64_t at[2];
  double weight[2];
} source;

typedef struct job {
  int64_t n, c, h, w, oh, ow;
  const source *y, *x;
  const void *from;
  void *to;
} job;

/* Computes sources as PyTorch does: in the element's own precision, and from the given factor
 * instead of the sizes where there is one. */
static void sources(source *s, int64_t in, int64_t out, bool linear, bool align, double factor, bool wide)
{
  double ratio = factor > 0 ? 1 / factor : (double)in / (double)out;
  if (linear && align) ratio = out > 1 ? (double)(in - 1) / (double)(out - 1) : 0;
  if (!wide) ratio = factor > 0 && !(linear && align) ? 1.0f / (float)factor : (float)ratio;
  for (int64_t i = 0; i < out; i++) {
    double at = linear && !align ? ratio * ((double)i + 0.5) - 0.5 : ratio * (double)i;
    if (!wide) at = linear && !align ? (float)ratio * ((float)i + 0.5f) - 0.5f : (float)ratio * (float)i;
    if (!(at > 0)) at = 0; /* NaN too: an infinite ratio times 0 */
    if (at > (double)in) at = (double)in;
    int64_t low = (int64_t)floor(at);
    if (low > in - 1) low = in - 1;
    const double part = linear ? at - (double)low : 0;
    s[i] = (source){ { low, low + 1 < in ? low + 1 : in - 1 }, { 1 - part, part } };
  }
}

#define RESAMPLE(S, T) \
  static void forward_##S(int64_t lo, int64_t hi, void *ud) /* rows of the result */ \
  { \
    const job *j = ud; \
    for (int64_t row = lo; row < hi; row++) { \
      const T *image = (const T *)j->from + row / j->oh * j->h * j->w * j->c; \
      const source *sy = &j->y[row % j->oh]; \
      for (int64_t o = 0; o < j->ow; o++) { \
        const source *sx = &j->x[o]; \
        const T *top = image + sy->at[0] * j->w * j->c, *low = image + sy->at[1] * j->w * j->c; \
        const T *a = top + sx->at[0] * j->c, *b = top + sx->at[1] * j->c, *d = low + sx->at[0] * j->c, \
                *e = low + sx->at[1] * j->c; \
        const T y0 = (T)sy->weight[0], y1 = (T)sy->weight[1], x0 = (T)sx->weight[0], x1 = (T)sx->weight[1]; \
        T *to = (T *)j->to + (row * j->ow + o) * j->c; \
        if (x1 == 0 && y1 == 0) { \
          memcpy(to, a, (size_t)j->c * sizeof(T)); \
          continue; \
        } \
        AX_SIMD \
        for (int64_t c = 0; c < j->c; c++) \
          to[c] = y0 * (x0 * a[c] + x1 * b[c]) + y1 * (x0 * d[c] + x1 * e[c]); \
      } \
    } \
  } \
  static void backward_##S(int64_t lo, int64_t hi, void *ud) /* whole images */ \
  { \
    const job *j = ud; \
    memset((T *)j->to + lo * j->h * j->w * j->c, 0, (size_t)((hi - lo) * j->h * j->w * j->c) * sizeof(T)); \
    for (int64_t row = lo * j->oh; row < hi * j->oh; row++) { \
      T *image = (T *)j->to + row / j->oh * j->h * j->w * j->c; \
      const source *sy = &j->y[row % j->oh]; \
      for (int64_t o = 0; o < j->ow; o++) { \
        const source *sx = &j->x[o]; \
        const T *g = (const T *)j->from + (row * j->ow + o) * j->c; \
        for (int p = 0; p < 4; p++) { \
          const T by = (T)sy->weight[p / 2] * (T)sx->weight[p % 2]; \
          T *to = image + (sy->at[p / 2] * j->w + sx->at[p % 2]) * j->c; \
          if (by == 0) continue; \
          AX_SIMD \
          for (int64_t c = 0; c < j->c; c++) to[c] += by * g[c]; \
        } \
      } \
    } \
  }
RESAMPLE(f32, float)
RESAMPLE(f64, double)

static ax_status run(const ax_call *call, bool back)
{
  const ax_tensor *from = call->in[0], *to = call->out[0], *big = back ? to : from, *small = back ? from : to;
  const ax_dtype type = (ax_dtype)from->dtype;
  const bool wide = type == AX_F64, half = ax_is_half(type);
  const size_t bytes = (size_t)(from->numel + to->numel) * sizeof(float),
               table = (size_t)(small->shape[2] + small->shape[3]) * sizeof(source);
  job j = { big->shape[0],   big->shape[1], big->shape[2], big->shape[3], small->shape[2],
            small->shape[3], NULL,          NULL,          ax_data(from), ax_data(to) };
  void *own = NULL, *sources_ = NULL;
  ax_status st;

  if (to->numel == 0) return AX_OK;
  AX_TRY(ax_alloc(table, &sources_));
  source *const y = sources_, *const x = y + j.oh;
  const bool linear = call->a->resample.linear, corners = call->a->resample.align_corners;
  sources(y, j.h, j.oh, linear, corners, call->a->resample.scale_h, wide);
  sources(x, j.w, j.ow, linear, corners, call->a->resample.scale_w, wide);
  j.y = y;
  j.x = x;
  if (half) {
    AX_TRY(ax_alloc(bytes, &own));
    ax_cpu_half_to_float(type, ax_data(from), 2, own, from->numel);
    j.from = own;
    j.to = (float *)own + from->numel;
  }
  if (back) ax_cpu_for(j.n, from->numel * 4, wide ? backward_f64 : backward_f32, &j);
  else ax_cpu_for(j.n * j.oh, to->numel * 4, wide ? forward_f64 : forward_f32, &j);
  if (half) ax_cpu_float_to_half(type, j.to, ax_data(to), 2, to->numel);
out:
  if (own) ax_free(own, bytes);
  if (sources_) ax_free(sources_, table);
  return st;
}

ax_status ax_cpu__resample(const ax_call *call) { return run(call, false); }
ax_status ax_cpu__resample_backward(const ax_call *call) { return run(call, true); }

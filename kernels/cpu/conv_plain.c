/* Convolutions in plain loops, for the types and cases without faster code: y[n, i, j, o] = bias[o]
 * + sum over taps (k, l) and channels c of x[n, s i + d k - p, s j + d l - p, c] w[o, c, k, l], and
 * so along the depth of a volume.
 *
 * Weights are packed once per call, so that the innermost loop runs along the written channels.
 * Threads share rows of y (forward), rows of x (gradient of the input), or pairs of an input
 * channel and a tap (gradient of the weight).  Multiplications bound the kernel. */
#include "conv.h"

#include <string.h>

typedef struct job {
  const ax_conv *v;
  const ax_conv_data *d;
  const void *packed;
  bool accumulate;
} job;

/* The output position whose window has its tap k at input position `at`; -1: none. */
static inline int64_t source(const ax_conv *v, int dim, int64_t at, int64_t k, int64_t count)
{
  const int64_t from = at + v->padding[dim] - k * v->dilation[dim];
  if (from < 0 || from % v->stride[dim] != 0 || from / v->stride[dim] >= count) return -1;
  return from / v->stride[dim];
}

#define PLAIN(S, T) \
  /* packs (o, c / groups, kd, kh, kw) as (tap, group, read channel, written channel) */ \
  static void pack_##S(const ax_conv *v, const T *w, T *to) \
  { \
    const int64_t og = v->o / v->groups, cg = v->c / v->groups, taps = ax_conv_taps(v); \
    for (int64_t t = 0; t < taps; t++) \
      for (int64_t g = 0; g < v->groups; g++) { \
        const T *from = w + g * og * cg * taps + t; \
        if (v->what == AX_CONV_FORWARD) { \
          for (int64_t c = 0; c < cg; c++) \
            for (int64_t o = 0; o < og; o++) *to++ = from[(o * cg + c) * taps]; \
        } else { \
          for (int64_t o = 0; o < og; o++) \
            for (int64_t c = 0; c < cg; c++) *to++ = from[(o * cg + c) * taps]; \
        } \
      } \
  } \
  /* to[j] += sum over i of from[i] * w[i][j], group by group */ \
  static inline void tap_##S(int64_t groups, int64_t reads, int64_t writes, const T *from, const T *w, \
                             T *to) \
  { \
    for (int64_t g = 0; g < groups; g++, from += reads, to += writes) \
      for (int64_t i = 0; i < reads; i++, w += writes) { \
        const T a = from[i]; \
        AX_SIMD \
        for (int64_t j = 0; j < writes; j++) to[j] += a * w[j]; \
      } \
  } \
  static void forward_##S(int64_t lo, int64_t hi, void *ud) /* rows of y */ \
  { \
    const job *job_ = ud; \
    const ax_conv *v = job_->v; \
    const int64_t og = v->o / v->groups, cg = v->c / v->groups, step = v->groups * og * cg; \
    for (int64_t row = lo; row < hi; row++) { \
      const int64_t oz = row / v->oh % v->od; \
      const T *image = (const T *)job_->d->x + row / v->oh / v->od * ax_conv_x(v); \
      T *y = (T *)job_->d->y + row * v->ow * v->o; \
      for (int64_t ox = 0; ox < v->ow; ox++, y += v->o) { \
        if (v->bias) memcpy(y, job_->d->bias, (size_t)v->o * sizeof(T)); \
        else memset(y, 0, (size_t)v->o * sizeof(T)); \
        for (int64_t k = 0; k < v->kd * v->kh; k++) { \
          const int64_t iz = oz * v->stride[0] - v->padding[0] + k / v->kh * v->dilation[0]; \
          const int64_t iy = row % v->oh * v->stride[1] - v->padding[1] + k % v->kh * v->dilation[1]; \
          if (iz < 0 || iz >= v->d || iy < 0 || iy >= v->h) continue; \
          for (int64_t kx = 0; kx < v->kw; kx++) { \
            const int64_t ix = ox * v->stride[2] - v->padding[2] + kx * v->dilation[2]; \
            if (ix < 0 || ix >= v->w) continue; \
            tap_##S(v->groups, cg, og, image + ((iz * v->h + iy) * v->w + ix) * v->c, \
                    (const T *)job_->packed + (k * v->kw + kx) * step, y); \
          } \
        } \
      } \
    } \
  } \
  static void input_##S(int64_t lo, int64_t hi, void *ud) /* rows of x */ \
  { \
    const job *job_ = ud; \
    const ax_conv *v = job_->v; \
    const int64_t og = v->o / v->groups, cg = v->c / v->groups, step = v->groups * og * cg; \
    for (int64_t row = lo; row < hi; row++) { \
      const int64_t iz = row / v->h % v->d; \
      const T *image = (const T *)job_->d->y + row / v->h / v->d * ax_conv_positions(v) * v->o; \
      T *x = (T *)job_->d->x + row * v->w * v->c; \
      for (int64_t ix = 0; ix < v->w; ix++, x += v->c) { \
        memset(x, 0, (size_t)v->c * sizeof(T)); \
        for (int64_t k = 0; k < v->kd * v->kh; k++) { \
          const int64_t oz = source(v, 0, iz, k / v->kh, v->od); \
          const int64_t oy = oz < 0 ? -1 : source(v, 1, row % v->h, k % v->kh, v->oh); \
          for (int64_t kx = 0; oy >= 0 && kx < v->kw; kx++) { \
            const int64_t ox = source(v, 2, ix, kx, v->ow); \
            if (ox >= 0) \
              tap_##S(v->groups, og, cg, image + ((oz * v->oh + oy) * v->ow + ox) * v->o, \
                      (const T *)job_->packed + (k * v->kw + kx) * step, x); \
          } \
        } \
      } \
    } \
  } \
  /* (input channel, tap) pairs: the weights of all outputs of a group, a block at a time */ \
  static void weight_##S(int64_t lo, int64_t hi, void *ud) \
  { \
    enum { BLOCK = 64 }; \
    const job *job_ = ud; \
    const ax_conv *v = job_->v; \
    const int64_t og = v->o / v->groups, cg = v->c / v->groups, taps = ax_conv_taps(v); \
    T sum[BLOCK]; \
    for (int64_t p = lo; p < hi; p++) { \
      const int64_t c = p / taps, tap = p % taps, g = c / cg; \
      const int64_t kz = tap / v->kw / v->kh, ky = tap / v->kw % v->kh, kx = tap % v->kw; \
      for (int64_t o = 0; o < og; o += BLOCK) { \
        const int64_t many = og - o < BLOCK ? og - o : BLOCK; \
        for (int64_t j = 0; j < many; j++) sum[j] = 0; \
        for (int64_t row = 0; row < v->n * v->od * v->oh; row++) { \
          const int64_t at = row / v->oh; /* the plane */ \
          const int64_t iz = at % v->od * v->stride[0] - v->padding[0] + kz * v->dilation[0]; \
          const int64_t iy = row % v->oh * v->stride[1] - v->padding[1] + ky * v->dilation[1]; \
          if (iz < 0 || iz >= v->d || iy < 0 || iy >= v->h) continue; \
          const T *x = (const T *)job_->d->x + ((at / v->od * v->d + iz) * v->h + iy) * v->w * v->c + c; \
          const T *y = (const T *)job_->d->y + row * v->ow * v->o + g * og + o; \
          for (int64_t ox = 0; ox < v->ow; ox++) { \
            const int64_t ix = ox * v->stride[2] - v->padding[2] + kx * v->dilation[2]; \
            if (ix < 0 || ix >= v->w) continue; \
            const T a = x[ix * v->c]; \
            const T *from = y + ox * v->o; \
            AX_SIMD \
            for (int64_t j = 0; j < many; j++) sum[j] += a * from[j]; \
          } \
        } \
        T *w = (T *)job_->d->w + ((g * og + o) * cg + c % cg) * taps + tap; \
        for (int64_t j = 0; j < many; j++) \
          w[j * cg * taps] = sum[j] + (job_->accumulate ? w[j * cg * taps] : 0); \
      } \
    } \
  }
PLAIN(f32, float)
PLAIN(f64, double)

ax_status ax_conv_plain(const ax_conv *v, const ax_conv_data *d, bool accumulate)
{
  const bool wide = v->dtype == AX_F64;
  const int64_t weights = ax_conv_weights(v), work = v->n * ax_conv_positions(v) * weights / 4;
  const size_t bytes = (size_t)weights * (wide ? sizeof(double) : sizeof(float));
  job j = { v, d, NULL, accumulate };
  void *packed;

  if (v->what == AX_CONV_WEIGHT) {
    ax_cpu_for(v->c * ax_conv_taps(v), work, wide ? weight_f64 : weight_f32, &j);
    return AX_OK;
  }
  const ax_status st = ax_alloc(bytes, &packed);
  if (st != AX_OK) return st;
  if (wide) pack_f64(v, d->w, packed);
  else pack_f32(v, d->w, packed);
  j.packed = packed;
  if (v->what == AX_CONV_FORWARD)
    ax_cpu_for(v->n * v->od * v->oh, work, wide ? forward_f64 : forward_f32, &j);
  else ax_cpu_for(v->n * v->d * v->h, work, wide ? input_f64 : input_f32, &j);
  ax_free(packed, bytes);
  return AX_OK;
}

/* One convolution and its two gradients: the interface between conv.c and the implementations
 * (dnnl_conv.c, winograd.c, conv_plain.c).
 *
 * Images have their channels innermost: x (n, d, h, w, c), y (n, od, oh, ow, o).  Weights are (o, c
 * / groups, kd, kh, kw), contiguous.  An image without depth has a depth of 1, and so has its
 * kernel. */
#ifndef AX_CPU_CONV_H
#define AX_CPU_CONV_H

#include "cpu.h"

/* computes y, x or w from the other two */
typedef enum { AX_CONV_FORWARD, AX_CONV_INPUT, AX_CONV_WEIGHT } ax_conv_what;

/* No padding bytes, and integers of one size: this is the key of a cache. */
typedef struct ax_conv {
  int64_t what, dtype, n, c, d, h, w, o, od, oh, ow, kd, kh, kw;
  int64_t stride[3], padding[3], dilation[3], groups; /* of depth, height and width */
  int64_t bias;                                       /* FORWARD: 0 or 1 */
} ax_conv;

/* Elements of one sample's x and y, and of the weight. */
static inline int64_t ax_conv_x(const ax_conv *v) { return v->d * v->h * v->w * v->c; }
static inline int64_t ax_conv_positions(const ax_conv *v) { return v->od * v->oh * v->ow; }
static inline int64_t ax_conv_taps(const ax_conv *v) { return v->kd * v->kh * v->kw; }
static inline int64_t ax_conv_weights(const ax_conv *v)
{
  return v->o * (v->c / v->groups) * ax_conv_taps(v);
}

/* x, w, y: `what` names the one that is written; the others are read. */
typedef struct ax_conv_data {
  void *x, *w, *y;
  const void *bias;
  bool wide; /* WEIGHT: w is float32 although x and y are of a half type */
} ax_conv_data;

/* dnnl_conv.c: float32 and bfloat16.  *done: whether oneDNN has fast code for the case and has
 * computed it.  WEIGHT writes float32 for either type.  `scratch`: as many bytes as
 * ax_dnnl_conv_scratch gives for the case and number of threads. */
ax_status ax_dnnl_conv(const ax_conv *v, const ax_conv_data *d, void *scratch, bool *done);
ax_status ax_dnnl_conv_scratch(const ax_conv *v, size_t *bytes);
/* Whether sums of the case depend on the number of threads. */
bool ax_dnnl_conv_divides_sums(const ax_conv *v);

/* winograd.c: float32 and bfloat16 (computed in float32), where ax_wino_fits.  WEIGHT adds to w
 * when `accumulate`. */
bool ax_wino_fits(const ax_conv *v);
ax_status ax_wino(const ax_conv *v, const ax_conv_data *d, bool accumulate);

/* conv_plain.c: float32 and float64, any case.  In pass WEIGHT,
 * `accumulate` adds to w instead of overwriting it. */
ax_status ax_conv_plain(const ax_conv *v, const ax_conv_data *d, bool accumulate);

#endif

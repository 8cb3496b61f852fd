/* One convolution and its two gradients: what conv.c asks of oneDNN (dnnl_conv.c) and of our own
 * kernels (winograd.c, conv_plain.c).
 *
 * Images lie with their channels innermost: x (n, h, w, c), y (n, oh, ow, o).  Weights are (o, c /
 * groups, kh, kw), contiguous. */
#ifndef AX_CPU_CONV_H
#define AX_CPU_CONV_H

#include "cpu.h"

/* writes y, x or w out of the other two */
typedef enum { AX_CONV_FORWARD, AX_CONV_INPUT, AX_CONV_WEIGHT } ax_conv_what;

/* No padding, integers of one size: it is a key of a cache. */
typedef struct ax_conv {
  int64_t what, dtype, n, c, h, w, o, oh, ow, kh, kw, stride[2], padding[2], dilation[2], groups;
  int64_t bias; /* FORWARD: 0 or 1 */
} ax_conv;

/* x, w, y: the one that `what` names is written, the others are read. */
typedef struct ax_conv_data {
  void *x, *w, *y;
  const void *bias;
  bool wide; /* WEIGHT: w is float32 though x and y are of a half type */
} ax_conv_data;

/* dnnl_conv.c: float32 and bfloat16, as far as oneDNN has fast code for the case; *done tells.
 * WEIGHT writes float32 whatever the type.  `scratch`: as many bytes as ax_dnnl_conv_scratch says
 * for the same case and number of threads. */
ax_status ax_dnnl_conv(const ax_conv *v, const ax_conv_data *d, void *scratch, bool *done);
ax_status ax_dnnl_conv_scratch(const ax_conv *v, size_t *bytes);

/* winograd.c: float32 and bfloat16 (computed with in float32), as far as ax_wino_fits.  WEIGHT adds
 * to w when `accumulate`. */
bool ax_wino_fits(const ax_conv *v);
ax_status ax_wino(const ax_conv *v, const ax_conv_data *d, bool accumulate);

/* conv_plain.c: float32 and float64, any case.  WEIGHT adds to w when `accumulate`. */
ax_status ax_conv_plain(const ax_conv *v, const ax_conv_data *d, bool accumulate);

#endif

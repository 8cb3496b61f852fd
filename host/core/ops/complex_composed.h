/* Rows of complex operands that are put together of other rows (complex_composed.c), for the table
 * of ways (complex_rows.c). */
#ifndef AX_COMPLEX_COMPOSED_H
#define AX_COMPLEX_COMPOSED_H

#include "core/ops/complex.h"

static inline bool ax_complex_is(const ax_tensor *t) { return t && ax_is_complex((ax_dtype)t->dtype); }
/* Makes a's list all dims of x where it names none: those that its pairs have, but for the last. */
ax_status ax_complex_all_but_pairs(const ax_infer *q, const ax_tensor *x, ax_attrs *a);

/* Rows of two tensors that are linear in each: four real products. */
ax_status ax_complex_bilinear(ax_infer *q);
/* x w^T + bias; the row's rule checks types and shapes. */
ax_status ax_complex_linear_rows(ax_infer *q);
/* beta input + alpha a b */
ax_status ax_complex_add_product(ax_infer *q);
/* A convolution of the parts, and the bias, one number for each channel. */
ax_status ax_complex_convolve(ax_infer *q);
/* Logic, counts and positions: of whether numbers are not 0. */
ax_status ax_complex_of_truth(ax_infer *q);
/* Variances of the parts are added; a deviation is the length of both. */
ax_status ax_complex_spread_of_parts(ax_infer *q);
/* m + log(sum(exp(x - m))) */
ax_status ax_complex_log_of_sums(ax_infer *q);
/* log(exp(a) + exp(b)) = a + log1p(exp(b - a)), where a has the larger real part. */
ax_status ax_complex_log_of_two(ax_infer *q);
ax_status ax_complex_times_sigmoid(ax_infer *q);
/* The mean, the sum or each of |input - target|. */
ax_status ax_complex_distance(ax_infer *q);
/* isnan and isinf where one part is, isfinite where both are. */
ax_status ax_complex_of_parts(ax_infer *q);
/* The row of |x|. */
ax_status ax_complex_of_size(ax_infer *q);
/* One draw for each number, not for each part. */
ax_status ax_complex_drop(ax_infer *q);

#endif

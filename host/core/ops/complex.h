/* What the dispatcher does with complex operands. */
#ifndef AX_COMPLEX_H
#define AX_COMPLEX_H

#include "core/ops/infer.h"

/* Part 0 (real) or 1 (imaginary) of x, a view. */
ax_status ax_complex_part(ax_tensor *x, int64_t which, ax_tensor **out);
/* re + i im of parts of one type, broadcast. */
ax_status ax_complex_join(ax_tensor *re, ax_tensor *im, ax_tensor **out);
/* EDTYPE naming the row and the complex type among the operands. */
ax_status ax_complex_refused(ax_op op, const ax_args *args);
/* Whether the row's kernel would be one of complex numbers, and the device has none: the CPU's. */
bool ax_complex_away(const ax_infer *q, ax_tensor *const *out);

#endif

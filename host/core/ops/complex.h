/* What the dispatcher does with complex operands. */
#ifndef AX_COMPLEX_H
#define AX_COMPLEX_H

#include "core/ops/infer.h"

/* How a row takes complex operands.  REFUSE: by name.  KEEP: the row's own rule and kernel; its
 * gradient rule holds for complex numbers as it is (it is linear with real factors, it looks at the
 * type, or there is none).  TURN: likewise, but the gradient is that of a function with a complex
 * derivative f', by which g is multiplied conjugated; run_op conjugates g (of all results) before
 * the rule of the real numbers and what comes of it after.  OTHERS: put together of other rows,
 * which record themselves. */
typedef enum { AX_COMPLEX_REFUSE, AX_COMPLEX_KEEP, AX_COMPLEX_TURN, AX_COMPLEX_OTHERS } ax_complex_way;
ax_complex_way ax_complex_way_of(ax_op op);
/* Part 0 (real) or 1 (imaginary) of x, a view. */
ax_status ax_complex_part(ax_tensor *x, int64_t which, ax_tensor **out);
/* re + i im of parts of one type, broadcast. */
ax_status ax_complex_join(ax_tensor *re, ax_tensor *im, ax_tensor **out);
/* The work of a row that is put together of others. */
ax_status ax_complex_run(ax_infer *q);
/* EDTYPE naming the row and the complex type among the operands. */
ax_status ax_complex_refused(ax_op op, const ax_args *args);
/* Whether the row's kernel would be one of complex numbers, and the device has none: the CPU's. */
bool ax_complex_away(const ax_infer *q, ax_tensor *const *out);

#endif

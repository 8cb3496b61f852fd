/* What rows of complex operands have in common that are put together of other rows
 * (complex_rows.c, complex_composed.c). */
#ifndef AX_COMPLEX_COMPOSED_H
#define AX_COMPLEX_COMPOSED_H

#include "core/ops/complex.h"

static inline bool ax_complex_is(const ax_tensor *t) { return t && ax_is_complex((ax_dtype)t->dtype); }
/* Makes a's list all dims of x where it names none: those that its pairs have, but for the last. */
ax_status ax_complex_all_but_pairs(const ax_infer *q, const ax_tensor *x, ax_attrs *a);

#endif

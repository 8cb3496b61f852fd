/* What rules have to know of join.c. */
#ifndef AX_JOIN_H
#define AX_JOIN_H

#include "core/ops/later.h"

/* The gradient of batch norm where its g, in[0] of the row's inputs, waits for relu's gradient:
 * *done: the results are in `out` (new references).  Else in[0] and *relu are what the row has to
 * be run with.  out: those that are there already are written into. */
ax_status ax_join_batch_norm_backward(ax_tensor **in, bool *relu, ax_tensor **out, bool *done);

/* Makes the results of that row that are not there, for inputs as its kernel needs them. */
ax_status ax_batch_norm_backward_results(ax_tensor *const *in, ax_tensor **out);

/* The batch norm that gives x and waits, without relu (norm_batch.c); NULL: none does. */
ax_later *ax_batch_norm_later(const ax_tensor *x);

#endif

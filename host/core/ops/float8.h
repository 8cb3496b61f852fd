/* What the dispatcher does with operands of eight bits (float8.c). */
#ifndef AX_OPS_FLOAT8_H
#define AX_OPS_FLOAT8_H

#include "core/ops/infer.h"

/* EDTYPE with the row's name, where an operand or `into` is float8 and the row takes no float8.
 * into: the tensor that the row writes into; NULL: it makes new ones. */
ax_status ax_float8_check(ax_op op, const ax_args *args, const ax_tensor *into);
/* EDTYPE where one operand is float8, and another from input `from` on has another type. */
ax_status ax_float8_alike(const ax_infer *q, int from);
/* The work of a row that computes with float8 (FLOAT8_WIDE), out of other rows. */
ax_status ax_float8_run(ax_infer *q);

#endif

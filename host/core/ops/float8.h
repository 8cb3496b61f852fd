/* What the dispatcher does with operands of eight bits (float8.c). */
#ifndef AX_OPS_FLOAT8_H
#define AX_OPS_FLOAT8_H

#include "core/ops/infer.h"

/* EDTYPE naming the row, where it takes no float8 or operands of different types.  into: what it
 * writes into where no operand is float8; else it may be NULL. */
ax_status ax_float8_check(ax_op op, const ax_args *args, const ax_tensor *into);
/* Whether the row computes with float8: ax_float8_run does its work, out of other rows. */
bool ax_float8_computes(ax_op op);
ax_status ax_float8_run(ax_infer *q);

#endif

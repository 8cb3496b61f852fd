/* ops/dispatch.h: what all ways of running a row share (dispatch.c). */
#ifndef AX_DISPATCH_H
#define AX_DISPATCH_H

#include "core/ops/infer.h"

#define AX_DEVICE_TEXT(d) ax_device_text(d, (char[16]){ 0 }, 16)

/* Refuses inputs of different devices, and brings about those whose history or values are put
 * off. */
ax_status ax_dispatch_check_inputs(ax_op op, const ax_args *args);
/* Whether operands are of a type that rows have to say they take. */
typedef enum { AX_NOT_SPECIAL, AX_ANY_COMPLEX, AX_ANY_FLOAT8 } ax_special;
ax_special ax_dispatch_special(const ax_args *args);
/* Refuses a floating result without a gradient rule when an input needs a gradient. */
ax_status ax_dispatch_check_gradient(const ax_infer *q);
/* *types: bits of the half types from which the device's kernel for q computes a float32 result. */
ax_status ax_dispatch_widened(const ax_infer *q, ax_device device, uint32_t *types);
/* Runs the kernel on the device of `out`, or on the CPU where the device has none. */
ax_status ax_dispatch_kernel(ax_infer *q, ax_tensor **out);
ax_status ax_dispatch_run_kernel(const ax_infer *q, ax_tensor **out);
/* dst's elements become src's, in dst's type; nothing is recorded. */
ax_status ax_dispatch_copy(ax_tensor *dst, ax_tensor *src);

#endif

/* ops/calls.c: rows that C calls with one or two tensors. */
#include "core/ops/infer.h"
#include "core/ops/rules.h"

#include <math.h>

ax_status ax_run1(ax_op op, ax_tensor *a, ax_tensor **out)
{
  ax_tensor *results[AX_MAX_OUT];
  const ax_status st = ax_run(op, &(ax_args){ .n_in = 1, .in = &a, .a = { .n_list = -1 } }, results);
  *out = results[0];
  return st;
}

ax_status ax_run2(ax_op op, ax_tensor *a, ax_tensor *b, ax_tensor **out)
{
  ax_tensor *results[AX_MAX_OUT];
  const ax_status st =
      ax_run(op, &(ax_args){ .n_in = 2, .in = (ax_tensor *[]){ a, b }, .a = { .n_list = -1 } }, results);
  *out = results[0];
  return st;
}

ax_status ax_run_num(ax_op op, ax_tensor *a, double number, ax_tensor **out)
{
  ax_tensor *results[AX_MAX_OUT];
  const ax_args args = { .n_in = 2,
                         .in = (ax_tensor *[]){ a, NULL },
                         .scalars = 2,
                         .integral = fabs(number) < 0x1p63 && number == floor(number) ? 2 : 0,
                         .num = { 0, number },
                         .a = { .n_list = -1 } };
  const ax_status st = ax_run(op, &args, results);
  *out = results[0];
  return st;
}

ax_status ax_cast(ax_tensor *t, ax_dtype dtype, ax_tensor **out)
{
  ax_tensor *results[AX_MAX_OUT];
  if (t->dtype == dtype) {
    *out = ax_tensor_retain(t);
    return AX_OK;
  }
  const ax_status st =
      ax_run(AX_OP_CAST, &(ax_args){ .n_in = 1, .in = &t, .a = AX_ATTRS(cast, .dtype = dtype) }, results);
  *out = results[0];
  return st;
}

ax_status ax_contiguous(ax_tensor *t, ax_tensor **out) { return ax_run1(AX_OP_CONTIGUOUS, t, out); }

ax_status ax_copy(ax_tensor *dst, ax_tensor *src)
{
  const bool former = ax_grad_set_enabled(false);
  const ax_status st =
      ax_run_inplace(AX_OP_COPY, &(ax_args){ .n_in = 1, .in = &src, .a = { .n_list = -1 } }, dst);
  ax_grad_set_enabled(former);
  return st;
}

ax_status ax_fill(ax_tensor *dst, double value)
{
  ax_tensor *none = NULL;
  const ax_args args = { .n_in = 1, .in = &none, .scalars = 1, .num = { value }, .a = { .n_list = -1 } };
  const bool former = ax_grad_set_enabled(false);
  const ax_status st = ax_run_inplace(AX_OP_COPY, &args, dst);
  ax_grad_set_enabled(former);
  return st;
}

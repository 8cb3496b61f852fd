/* Rules of copies. */
#include "core/ops/rule.h"

/* copy_ and fill_: the result is the destination's; the dispatcher only needs the source's
 * shape. */
ax_status ax_infer_copy(ax_infer *q)
{
  const ax_tensor *s = INPUT(0);
  const ax_dtype number = q->args->booleans & 1 ? AX_BOOL : q->args->integral & 1 ? AX_I64 : AX_F64;
  q->compute = s ? (ax_dtype)s->dtype : number;
  out_like(q, 0, q->compute, s ? s->ndim : 0, s ? s->shape : NULL);
  return AX_OK;
}

ax_status ax_infer_clone(ax_infer *q)
{
  out_like(q, 0, (ax_dtype)INPUT(0)->dtype, INPUT(0)->ndim, INPUT(0)->shape);
  return AX_OK;
}

ax_status ax_infer_cast(ax_infer *q)
{
  if (ax_is_complex((ax_dtype)INPUT(0)->dtype) && !ax_is_complex((ax_dtype)q->a.cast.dtype) &&
      q->a.cast.dtype != AX_BOOL)
    return ax_fail(AX_EDTYPE, "cast: %s to %s would lose the imaginary part; take real, imag or abs",
                   TYPE(INPUT(0)), ax_dtype_name((ax_dtype)q->a.cast.dtype));
  out_like(q, 0, (ax_dtype)q->a.cast.dtype, INPUT(0)->ndim, INPUT(0)->shape);
  return AX_OK;
}

ax_status ax_infer_lower(ax_infer *q)
{
  q->result[0] = ax_tensor_retain(INPUT(0));
  return AX_OK;
}

/* Integers 2 and 3 are x's device, for the gradient.  Integer 4 is not 0 where the copy may still
 * be under way when the call returns, as far as the CPU's side of it is pinned.  A copy to the CPU
 * therefore gets pinned memory. */
ax_status ax_infer_to_device(ax_infer *q)
{
  ax_tensor *x = INPUT(0);
  const ax_device to = { (uint8_t)q->a.to_device.kind, (uint8_t)q->a.to_device.index };
  const bool later = q->a.to_device.later != 0;
  ax_status st = AX_OK;
  if (later && to.kind == AX_CPU && x->device.kind != AX_CPU)
    st = ax_tensor_new_pinned((ax_dtype)x->dtype, x->ndim, x->shape, &q->result[0]);
  else st = ax_tensor_new_on(to, (ax_dtype)x->dtype, x->ndim, x->shape, &q->result[0]);
  q->a.to_device.from_kind = x->device.kind;
  q->a.to_device.from_index = x->device.index;
  if (st != AX_OK || (st = ax_transfer(q->result[0], x, later)) == AX_OK) return st;
  ax_tensor_release(q->result[0]);
  q->result[0] = NULL;
  return st;
}

RULE(to_device)
{
  give(c, 0,
       call1(c, AX_OP_TO_DEVICE, G,
             &AX_ATTRS(to_device, .kind = A->to_device.from_kind, .index = A->to_device.from_index)));
}

/* Rules of copies. */
#include "core/ops/rule.h"

/* copy_ and fill_: the result is the destination's; the dispatcher only needs the source's shape. */
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
  out_like(q, 0, (ax_dtype)q->a.i[0], INPUT(0)->ndim, INPUT(0)->shape);
  return AX_OK;
}

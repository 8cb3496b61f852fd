/* Rules and gradients of random rows. */
#include "core/ops/rule.h"

#define X INPUT(0)

ax_status ax_infer_dropout_apply(ax_infer *q)
{
  const ax_status st = need_float(q, INPUT(0));
  q->contiguous = 1;
  out_like(q, 0, (ax_dtype)INPUT(0)->dtype, INPUT(0)->ndim, INPUT(0)->shape);
  return st;
}

ax_status ax_infer_into_only(ax_infer *q)
{
  if (!q->into) return ax_fail(AX_EINVAL, "%s: fills a tensor that the caller made", q->name);
  q->contiguous = ~0u;
  out_like(q, 0, (ax_dtype)q->into->dtype, q->into->ndim, q->into->shape);
  return AX_OK;
}

ax_status ax_infer_draw(ax_infer *q)
{
  const ax_status st = ax_infer_into_only(q);
  if (st == AX_OK) ax_random_draw(q->args->a.gen, false, &q->a);
  return st;
}

ax_status ax_infer_dropout(ax_infer *q)
{
  const double p = q->a.dropout.p;
  ax_args args = *q->args;
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  ax_status st;

  if (!(p >= 0 && p <= 1)) return ax_fail(AX_ERANGE, "dropout: p must be within 0..1, got %g", p);
  if (!q->a.dropout.training || p == 0) {
    q->result[0] = ax_tensor_retain(X);
    return AX_OK;
  }
  ax_random_draw(q->a.gen, true, &args.a);
  st = ax_run(AX_OP_DROPOUT_APPLY, &args, results);
  q->result[0] = results[0];
  return st;
}

RULE(dropout_apply) /* repeats the draw: the mask is never stored */
{
  const ax_arg g = G;
  give(c, 0, call(c, AX_OP_DROPOUT_APPLY, 1, &g, A));
}

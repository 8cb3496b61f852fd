/* Rules and gradients of softmax and the losses. */
#include "core/ops/rule.h"

ax_status ax_infer_softmax(ax_infer *q)
{
  const ax_status st = need_float(q, INPUT(0));
  q->contiguous = ~0u;
  out_like(q, 0, (ax_dtype)INPUT(0)->dtype, INPUT(0)->ndim, INPUT(0)->shape);
  return st;
}

ax_status ax_infer_softmax_backward(ax_infer *q)
{
  if (INPUT(0)->dtype != INPUT(1)->dtype || !ax_same_shape(INPUT(0), INPUT(1)->ndim, INPUT(1)->shape))
    return ax_fail(AX_ESHAPE, "%s: gradient %s %s against result %s %s", q->name, TYPE(INPUT(0)), TEXT(INPUT(0)), TYPE(INPUT(1)), TEXT(INPUT(1)));
  return ax_infer_softmax(q);
}

static ax_status check_classes(ax_infer *q, const ax_tensor *x, const ax_tensor *target)
{
  ax_status st;
  if ((st = need_float(q, x)) != AX_OK) return st;
  if (x->ndim < 1 || x->ndim > 2)
    return ax_fail(AX_ESHAPE, "%s: input must be (N, C) or (C), got %s; bring the classes to the last dim and flatten the rest", q->name, TEXT(x));
  if ((st = need_dtype(q, target, AX_I64, "target (0-based class indices)")) != AX_OK) return st;
  if (target->ndim != x->ndim - 1 || (x->ndim == 2 && target->shape[0] != x->shape[0]))
    return ax_fail(AX_ESHAPE, "%s: target must have shape %s for input %s, got %s", q->name,
                   ax_shape_text(x->ndim - 1, x->shape, (char[AX_SHAPE_TEXT]){ 0 }, AX_SHAPE_TEXT), TEXT(x), TEXT(target));
  if (x->shape[x->ndim - 1] == 0) return ax_fail(AX_ESHAPE, "%s: input %s has no classes", q->name, TEXT(x));
  q->contiguous = ~0u;
  return AX_OK;
}

ax_status ax_infer_cross_entropy(ax_infer *q)
{
  const ax_tensor *x = INPUT(0), *target = INPUT(1);
  const ax_status st = check_classes(q, x, target);
  if (st != AX_OK) return st;
  out_like(q, 0, result_dtype(q, (ax_dtype)x->dtype), q->a.i[1] == 2 ? target->ndim : 0, target->shape);
  out_like(q, 1, x->dtype == AX_F64 ? AX_F64 : AX_F32, 1, (int64_t[]){ target->numel + 1 });
  return AX_OK;
}

ax_status ax_infer_cross_entropy_backward(ax_infer *q)
{
  const ax_tensor *g = INPUT(0), *x = INPUT(1), *target = INPUT(2), *lse = INPUT(3);
  const ax_status st = check_classes(q, x, target);
  if (st != AX_OK) return st;
  const bool typed = g->dtype == x->dtype || (g->dtype == AX_F32 && ax_is_half((ax_dtype)x->dtype));
  if (!typed || g->numel != (q->a.i[1] == 2 ? target->numel : 1) || lse->numel != target->numel + 1)
    return ax_fail(AX_ESHAPE, "%s: gradient %s %s and sums %s do not fit input %s", q->name, TYPE(g), TEXT(g), TEXT(lse), TEXT(x));
  out_like(q, 0, (ax_dtype)x->dtype, x->ndim, x->shape);
  return AX_OK;
}

/* ---- gradients */

static ax_arg softmax_back(ax_grad *c, ax_op op, ax_arg g, ax_arg y)
{
  return call(c, op, 2, (ax_arg[]){ g, y }, &(ax_attrs){ .i = { A->i[0] }, .n_list = -1 });
}

RULE(softmax) { give(c, 0, softmax_back(c, AX_OP_SOFTMAX_BACKWARD, G, OUT(0))); }
RULE(log_softmax) { give(c, 0, softmax_back(c, AX_OP_LOG_SOFTMAX_BACKWARD, G, OUT(0))); }

RULE(softmax_backward) /* r = y (g - sum(g y)) */
{
  const ax_arg g = IN(0), y = IN(1);
  if (WANTS(0)) give(c, 0, softmax_back(c, AX_OP_SOFTMAX_BACKWARD, G, y));
  if (WANTS(1)) {
    const ax_arg inner = mul(c, G, sub(c, g, sum_dim(c, mul(c, g, y), A->i[0])));
    give(c, 1, sub(c, inner, mul(c, g, sum_dim(c, mul(c, G, y), A->i[0]))));
  }
}

RULE(log_softmax_backward) /* r = g - exp(y) sum(g) */
{
  const ax_arg p = un(c, AX_OP_EXP, IN(1));
  if (WANTS(0)) give(c, 0, sub(c, G, sum_dim(c, mul(c, G, p), A->i[0])));
  if (WANTS(1)) give(c, 1, un(c, AX_OP_NEG, mul(c, mul(c, G, p), sum_dim(c, IN(0), A->i[0]))));
}

RULE(cross_entropy)
{
  give(c, 0, call(c, AX_OP_CROSS_ENTROPY_BACKWARD, 4, (ax_arg[]){ G, IN(0), IN(1), OUT(1) }, &(ax_attrs){ .i = { A->i[0], A->i[1] }, .n_list = -1 }));
}

/* r = s (softmax(x) - onehot), where s is g over the count of rows that are not ignored (mean) or g (sum, none), and 0 in ignored rows */
RULE(cross_entropy_backward)
{
  const ax_arg x = IN(1), target = IN(2), lse = IN(3);
  const int64_t classes = META(1)->ndim - 1;
  if (WANTS(0)) {
    const ax_arg unit = call(c, AX_OP_CROSS_ENTROPY_BACKWARD, 4, (ax_arg[]){ filled(c, 0, 1), x, target, lse }, &(ax_attrs){ .i = { A->i[0], A->i[1] }, .n_list = -1 });
    const ax_arg per = mul(c, G, unit);
    give(c, 0, META(0)->ndim == 0 ? with_list(c, AX_OP_SUM, per, -1, NULL, 0) : with_list(c, AX_OP_SUM, per, 1, &classes, 0));
  }
  if (WANTS(1)) {
    ax_arg s = where(c, bin(c, AX_OP_NE, target, NUM((double)A->i[0])), IN(0), NUM(0));
    if (A->i[1] == 0) s = over(c, s, with_ints(c, AX_OP_SELECT, lse, 0, ax_shape_numel(META(2)->ndim, META(2)->shape), 0, 0));
    s = with_ints(c, AX_OP_UNSQUEEZE, s, META(2)->ndim, 0, 0, 0);
    const ax_attrs along = { .i = { classes }, .n_list = -1 };
    const ax_arg p = call(c, AX_OP_SOFTMAX, 1, &x, &along);
    give(c, 1, call(c, AX_OP_SOFTMAX_BACKWARD, 2, (ax_arg[]){ mul(c, G, s), p }, &along));
  }
}

/* Rules and gradients of reductions. */
#include "core/ops/rule.h"

static ax_status reduced(ax_infer *q, uint32_t axes, bool keepdim, ax_dtype dtype, int k)
{
  const ax_tensor *x = INPUT(0);
  int64_t shape[AX_MAX_DIMS];
  int n = 0;
  for (int d = 0; d < x->ndim; d++)
    if (!(axes >> d & 1)) shape[n++] = x->shape[d];
    else if (keepdim) shape[n++] = 1;
  q->axes = axes;
  out_like(q, k, dtype, n, shape);
  return AX_OK;
}

static ax_status listed_axes(const ax_infer *q, uint32_t *axes)
{
  const ax_tensor *x = INPUT(0);
  *axes = 0;
  if (q->a.n_list <= 0) { /* not given, or an empty list: all dims, as in PyTorch */
    *axes = (1u << x->ndim) - 1;
    return AX_OK;
  }
  for (int k = 0; k < q->a.n_list; k++) {
    const int64_t d = q->a.list[k];
    if (x->ndim == 0 && d == 0) continue; /* a 0-d tensor takes dim 1, as in PyTorch */
    if (d < 0 || d >= x->ndim) return ax_fail(AX_ERANGE, "%s: dim %lld is outside 1..%d", q->name, (long long)d + 1, x->ndim);
    if (*axes >> d & 1) return ax_fail(AX_EINVAL, "%s: dim %lld is listed twice", q->name, (long long)d + 1);
    *axes |= 1u << d;
  }
  return AX_OK;
}

ax_status ax_infer_sum(ax_infer *q)
{
  uint32_t axes;
  const ax_status st = listed_axes(q, &axes);
  if (st != AX_OK) return st;
  return reduced(q, axes, q->a.i[0], ax_is_float((ax_dtype)INPUT(0)->dtype) ? result_dtype(q, (ax_dtype)INPUT(0)->dtype) : AX_I64, 0);
}

ax_status ax_infer_mean(ax_infer *q)
{
  uint32_t axes;
  ax_status st;
  if (!ax_is_float((ax_dtype)INPUT(0)->dtype))
    return ax_fail(AX_EDTYPE, "mean: expected a floating-point tensor, got %s; cast it first, as in x:float():mean()", TYPE(INPUT(0)));
  if ((st = listed_axes(q, &axes)) != AX_OK) return st;
  return reduced(q, axes, q->a.i[0], result_dtype(q, (ax_dtype)INPUT(0)->dtype), 0);
}

ax_status ax_infer_truth(ax_infer *q)
{
  uint32_t axes;
  const ax_status st = listed_axes(q, &axes);
  if (st != AX_OK) return st;
  return reduced(q, axes, q->a.i[0], AX_BOOL, 0);
}

static ax_status one_axis(const ax_infer *q, uint32_t *axes)
{
  const ax_tensor *x = INPUT(0);
  const int64_t d = q->a.i[0];
  if (d == AX_NO_DIM) {
    *axes = (1u << x->ndim) - 1;
    if (x->numel == 0) return ax_fail(AX_ESHAPE, "%s: a tensor of shape %s has no elements to choose from", q->name, TEXT(x));
    return AX_OK;
  }
  *axes = x->ndim ? 1u << d : 0;
  if (x->ndim && x->shape[d] == 0)
    return ax_fail(AX_ESHAPE, "%s: dim %lld of shape %s has size 0: nothing to choose from", q->name, (long long)d + 1, TEXT(x));
  return AX_OK;
}

ax_status ax_infer_extreme(ax_infer *q)
{
  uint32_t axes;
  const ax_status st = one_axis(q, &axes);
  if (st != AX_OK) return st;
  reduced(q, axes, q->a.i[1], (ax_dtype)INPUT(0)->dtype, 0);
  if (q->a.i[0] != AX_NO_DIM) reduced(q, axes, q->a.i[1], AX_I64, 1);
  return AX_OK;
}

ax_status ax_infer_arg(ax_infer *q)
{
  uint32_t axes;
  const ax_status st = one_axis(q, &axes);
  if (st != AX_OK) return st;
  return reduced(q, axes, q->a.i[1], AX_I64, 0);
}

/* ---- gradients */

/* g with the reduced dims back as size 1, then repeated to x's shape. */
static ax_arg spread(ax_grad *c, ax_arg g, int n_dims, const int64_t *dims, double scale)
{
  const ax_meta *m = META(0);
  int64_t shape[AX_MAX_DIMS];
  memcpy(shape, m->shape, sizeof shape);
  for (int d = 0; d < m->ndim; d++) {
    bool gone = n_dims <= 0;
    for (int k = 0; k < n_dims; k++) gone |= dims[k] == d;
    if (gone) shape[d] = 1;
  }
  if (scale != 1) g = mul(c, g, number(scale));
  return with_list(c, AX_OP_EXPAND, with_list(c, AX_OP_RESHAPE, g, m->ndim, shape, 0), m->ndim, m->shape, 0);
}

RULE(sum) { give(c, 0, spread(c, G, A->n_list, A->list, 1)); }

RULE(mean)
{
  const double kept = c->node->out_meta[0].ndim ? (double)ax_shape_numel(c->node->out_meta[0].ndim, c->node->out_meta[0].shape) : 1;
  const double all = (double)ax_shape_numel(META(0)->ndim, META(0)->shape);
  give(c, 0, spread(c, G, A->n_list, A->list, kept / all));
}

/* max and min: with a dim, g goes to the chosen position; without, it is shared by all equal elements, as in PyTorch. */
RULE(select_extreme)
{
  const ax_meta *m = META(0);
  const int64_t dim = A->i[0];
  int64_t shape[AX_MAX_DIMS];

  if (dim == AX_NO_DIM || m->ndim == 0) {
    const ax_arg both_nan = bin(c, AX_OP_LOGICAL_AND, un(c, AX_OP_ISNAN, IN(0)), un(c, AX_OP_ISNAN, OUT(0)));
    const ax_arg chosen = bin(c, AX_OP_LOGICAL_OR, bin(c, AX_OP_EQ, IN(0), OUT(0)), both_nan);
    const ax_arg count = with_list(c, AX_OP_SUM, chosen, -1, NULL, 0);
    give(c, 0, where(c, chosen, over(c, spread(c, G, -1, NULL, 1), count), NUM(0)));
    return;
  }
  ax_tensor *ramp = NULL; /* 0 .. n-1 along dim */
  for (int d = 0; d < m->ndim; d++) shape[d] = d == dim ? m->shape[d] : 1;
  ax_status st = ax_tensor_new_on(c->g[0]->device, AX_I64, m->ndim, shape, &ramp);
  if (st == AX_OK) st = ax_run_into(AX_OP_ARANGE, &(ax_args){ .a = { .f = { 0, 1 }, .n_list = -1 } }, ramp);
  const ax_arg along = keep(c, st, ramp);
  memcpy(shape, m->shape, sizeof shape);
  shape[dim] = 1;
  const ax_arg at = with_list(c, AX_OP_RESHAPE, OUT(1), m->ndim, shape, 0);
  give(c, 0, where(c, bin(c, AX_OP_EQ, along, at), spread(c, G, 1, &dim, 1), NUM(0)));
}

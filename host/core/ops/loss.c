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
    return ax_fail(AX_ESHAPE, "%s: gradient %s %s against result %s %s", q->name, TYPE(INPUT(0)),
                   TEXT(INPUT(0)), TYPE(INPUT(1)), TEXT(INPUT(1)));
  return ax_infer_softmax(q);
}

/* ---- classes */

enum { MEAN, SUM, NONE }; /* the words of `reduction`, in order */

static ax_status check_rows(ax_infer *q, const ax_tensor *x)
{
  const ax_status st = need_float(q, x);
  if (st != AX_OK) return st;
  if (x->ndim < 1 || x->ndim > 2)
    return ax_fail(AX_ESHAPE, "%s: input must be (N, C) or (C), got %s", q->name, TEXT(x));
  if (x->shape[x->ndim - 1] == 0) return ax_fail(AX_ESHAPE, "%s: input %s has no classes", q->name, TEXT(x));
  q->contiguous = ~0u;
  q->compute = x->dtype == AX_F64 ? AX_F64 : AX_F32; /* the type of sums and weights */
  return AX_OK;
}

static ax_status check_classes(ax_infer *q, const ax_tensor *x, const ax_tensor *target)
{
  ax_status st;
  if ((st = check_rows(q, x)) != AX_OK) return st;
  if ((st = need_dtype(q, target, AX_I64, "target (0-based class indices)")) != AX_OK) return st;
  if (target->ndim != x->ndim - 1 || (x->ndim == 2 && target->shape[0] != x->shape[0]))
    return ax_fail(AX_ESHAPE, "%s: target must have shape %s for input %s, got %s", q->name,
                   ax_shape_text(x->ndim - 1, x->shape, (char[AX_SHAPE_TEXT]){ 0 }, AX_SHAPE_TEXT), TEXT(x),
                   TEXT(target));
  return AX_OK;
}

/* Input k holds one weight for each of the classes, or is not there; the kernel gets it in the type
 * computed in. */
static ax_status check_weight(ax_infer *q, int k, int64_t classes)
{
  const ax_tensor *w = q->args->n_in > k ? INPUT(k) : NULL;
  if (!w) return AX_OK;
  if (!ax_is_float((ax_dtype)w->dtype) || w->ndim != 1 || w->shape[0] != classes)
    return ax_fail(
        AX_ESHAPE,
        "%s: weight must be a floating-point tensor of shape [%lld], one for each class, got %s %s", q->name,
        (long long)classes, TYPE(w), TEXT(w));
  q->cast |= 1u << k;
  return AX_OK;
}

/* Input k, of class numbers, may have rows that are apart from each other. */
static bool keeps_rows(ax_infer *q, int k)
{
  const ax_tensor *x = INPUT(k);
  const ax_backend *backend;
  if (x->ndim != 2 || !ax_strides_are_padded(2, x->shape, x->strides) ||
      ax_backend_of(x->device, &backend) != AX_OK || !backend->pads_rows)
    return false;
  q->contiguous &= ~(1u << k);
  return true;
}

static int64_t classes_of(const ax_tensor *x) { return x->shape[x->ndim - 1]; }
static int64_t rows_of(const ax_tensor *x) { return x->ndim > 1 ? x->shape[0] : 1; }

ax_status ax_infer_cross_entropy(ax_infer *q)
{
  const ax_tensor *x = INPUT(0), *target = INPUT(1);
  ax_status st = check_classes(q, x, target);
  if (st == AX_OK) st = check_weight(q, 2, classes_of(x));
  if (st != AX_OK) return st;
  out_like(q, 0, result_dtype(q, (ax_dtype)x->dtype),
           q->a.cross_entropy_rows.reduction == NONE ? target->ndim : 0, target->shape);
  out_like(q, 1, q->compute, 1, (int64_t[]){ target->numel + 1 });
  keeps_rows(q, 0);
  return AX_OK;
}

/* A gradient of the result's type: that of the input, or float32 for a half input under
 * autocast. */
static bool gradient_fits(const ax_tensor *g, const ax_tensor *x, int64_t reduction)
{
  const bool typed = g->dtype == x->dtype || (g->dtype == AX_F32 && ax_is_half((ax_dtype)x->dtype));
  return typed && g->numel == (reduction == NONE ? rows_of(x) : 1);
}

ax_status ax_infer_cross_entropy_backward(ax_infer *q)
{
  const ax_tensor *g = INPUT(0), *x = INPUT(1), *target = INPUT(2), *lse = INPUT(3);
  ax_status st = check_classes(q, x, target);
  if (st == AX_OK) st = check_weight(q, 4, classes_of(x));
  if (st != AX_OK) return st;
  if (!gradient_fits(g, x, q->a.cross_entropy_backward.reduction) || lse->numel != target->numel + 1)
    return ax_fail(AX_ESHAPE, "%s: gradient %s %s and sums %s do not fit input %s", q->name, TYPE(g), TEXT(g),
                   TEXT(lse), TEXT(x));
  out_like(q, 0, (ax_dtype)x->dtype, x->ndim, x->shape);
  q->padded = keeps_rows(q, 1); /* the gradient goes where the logits came from */
  return AX_OK;
}

ax_status ax_infer_cross_entropy_soft(ax_infer *q)
{
  const ax_tensor *x = INPUT(0), *target = INPUT(1);
  ax_status st = check_rows(q, x);
  if (st == AX_OK) st = check_weight(q, 2, classes_of(x));
  if (st == AX_OK && (target->dtype != x->dtype || !ax_same_shape(x, target->ndim, target->shape)))
    st = ax_fail(AX_ESHAPE, "%s: class probabilities %s %s do not fit input %s %s", q->name, TYPE(target),
                 TEXT(target), TYPE(x), TEXT(x));
  if (st != AX_OK) return st;
  out_like(q, 0, (ax_dtype)x->dtype, q->a.cross_entropy_soft.reduction == NONE ? x->ndim - 1 : 0, x->shape);
  out_like(q, 1, q->compute, 1, (int64_t[]){ 2 * rows_of(x) });
  return AX_OK;
}

ax_status ax_infer_cross_entropy_soft_backward(ax_infer *q)
{
  const ax_tensor *g = INPUT(0), *x = INPUT(1);
  ax_status st = check_rows(q, x);
  if (st == AX_OK) st = check_weight(q, 4, classes_of(x));
  if (st == AX_OK && !gradient_fits(g, x, q->a.cross_entropy_soft_backward.reduction))
    st = ax_fail(AX_ESHAPE, "%s: gradient %s %s does not fit input %s", q->name, TYPE(g), TEXT(g), TEXT(x));
  if (st != AX_OK) return st;
  out_like(q, 0, (ax_dtype)x->dtype, x->ndim, x->shape);
  return AX_OK;
}

ax_status ax_infer_nll_loss(ax_infer *q)
{
  const ax_tensor *x = INPUT(0), *target = INPUT(1);
  ax_status st = check_classes(q, x, target);
  if (st == AX_OK) st = check_weight(q, 2, classes_of(x));
  if (st != AX_OK) return st;
  out_like(q, 0, (ax_dtype)x->dtype, q->a.nll_loss_rows.reduction == NONE ? target->ndim : 0, target->shape);
  out_like(q, 1, q->compute, 1, (int64_t[]){ 1 });
  return AX_OK;
}

ax_status ax_infer_nll_loss_backward(ax_infer *q)
{
  const ax_tensor *g = INPUT(0), *target = INPUT(1);
  const int64_t classes = q->a.nll_loss_backward.classes, shape[2] = { target->numel, classes };
  ax_status st = need_float(q, g);
  if (st == AX_OK) st = need_dtype(q, target, AX_I64, "target");
  q->compute = g->dtype == AX_F64 ? AX_F64 : AX_F32;
  q->contiguous = ~0u;
  if (st == AX_OK) st = check_weight(q, 2, classes);
  if (st != AX_OK) return st;
  if (g->numel != (q->a.nll_loss_backward.reduction == NONE ? target->numel : 1))
    return ax_fail(AX_ESHAPE, "%s: gradient %s does not fit target %s", q->name, TEXT(g), TEXT(target));
  out_like(q, 0, (ax_dtype)g->dtype, 1 + target->ndim, target->ndim ? shape : shape + 1);
  return AX_OK;
}

/* ---- inputs of more dims: the classes become the last dim, all others one */

static ax_status as_rows(ax_tensor *x, ax_tensor **out)
{
  int64_t order[AX_MAX_DIMS] = { 0 };
  ax_tensor *moved = NULL;
  ax_status st;

  if (x->ndim <= 2) {
    *out = ax_tensor_retain(x);
    return AX_OK;
  }
  for (int d = 1; d + 1 < x->ndim; d++) order[d] = d + 1;
  order[x->ndim - 1] = 1;
  AX_TRY(run_list(AX_OP_PERMUTE, x, x->ndim, order, &moved));
  st = run_list(AX_OP_RESHAPE, moved, 2, (int64_t[]){ x->shape[1] ? x->numel / x->shape[1] : 0, x->shape[1] },
                out);
out:
  ax_tensor_release(moved);
  return st;
}

/* Calls op(rows of input, target, weight) and gives a `none` result the target's shape back.  a:
 * its attributes. */
static ax_status by_rows(ax_infer *q, ax_op op, ax_tensor *x, ax_tensor *target, bool soft, const ax_attrs *a,
                         bool each)
{
  ax_tensor *weight = q->args->n_in > 2 ? INPUT(2) : NULL, *in[3] = { NULL, NULL, weight },
            *results[AX_MAX_OUT] = { 0 };
  int64_t shape[AX_MAX_DIMS] = { 0 };
  ax_status st;

  AX_TRY(as_rows(x, &in[0]));
  if (soft) AX_TRY(as_rows(target, &in[1]));
  else if (x->ndim <= 2) in[1] = ax_tensor_retain(target);
  else AX_TRY(run_list(AX_OP_RESHAPE, target, 1, (int64_t[]){ target->numel }, &in[1]));
  AX_TRY(ax_run(op, &(ax_args){ .n_in = weight ? 3 : 2, .in = in, .a = *a }, results));
  if (each && x->ndim > 2) {
    shape[0] = x->shape[0];
    for (int d = 2; d < x->ndim; d++) shape[d - 1] = x->shape[d];
    st = run_list(AX_OP_RESHAPE, results[0], x->ndim - 1, shape, &q->result[0]);
  } else q->result[0] = ax_tensor_retain(results[0]);
out:
  ax_tensor_release(in[0]);
  ax_tensor_release(in[1]);
  for (int k = 0; k < AX_MAX_OUT; k++) ax_tensor_release(results[k]);
  return st;
}

/* Does the target have input's shape without the classes? */
static ax_status check_target_shape(const ax_infer *q, const ax_tensor *x, const ax_tensor *target)
{
  int64_t shape[AX_MAX_DIMS];
  int n = 0;
  for (int d = 0; d < x->ndim; d++)
    if (d != (x->ndim > 1)) shape[n++] = x->shape[d];
  if (x->ndim >= 1 && ax_same_shape(target, n, shape)) return AX_OK;
  if (x->ndim == 0)
    return ax_fail(AX_ESHAPE, "%s: input must be (N, C, ..) or (C), got a 0-d tensor", q->name);
  return ax_fail(AX_ESHAPE, "%s: target must have shape %s for input %s, got %s", q->name,
                 ax_shape_text(n, shape, (char[AX_SHAPE_TEXT]){ 0 }, AX_SHAPE_TEXT), TEXT(x), TEXT(target));
}

/* With classes as target: int64, or as in PyTorch uint8 (images of labels), which is widened. */
static ax_status by_classes(ax_infer *q, ax_op op, ax_tensor *x, ax_tensor *target, const ax_attrs *a,
                            bool each)
{
  ax_tensor *wide = NULL;
  ax_status st = check_target_shape(q, x, target);
  if (st == AX_OK && target->dtype != AX_U8)
    st = need_dtype(q, target, AX_I64, "target (0-based class indices)");
  if (st == AX_OK) st = ax_cast(target, AX_I64, &wide);
  if (st == AX_OK) st = by_rows(q, op, x, wide, false, a, each);
  ax_tensor_release(wide);
  return st;
}

ax_status ax_infer_cross_entropy_of(ax_infer *q)
{
  ax_tensor *x = INPUT(0), *target = INPUT(1);
  const double smoothing = q->a.cross_entropy.label_smoothing;
  const int64_t ignore = q->a.cross_entropy.ignore_index, reduction = q->a.cross_entropy.reduction;
  ax_status st;

  if (!(smoothing >= 0 && smoothing <= 1))
    return ax_fail(AX_EINVAL, "cross_entropy: label_smoothing must lie in 0..1, got %g", smoothing);
  if ((st = need_float(q, x)) != AX_OK) return st;
  if (ax_is_float((ax_dtype)target->dtype) && x->ndim >= 1 && ax_same_shape(x, target->ndim, target->shape)) {
    ax_tensor *cast = NULL;
    if (ignore != -100)
      return ax_fail(AX_EINVAL, "cross_entropy: ignore_index does not go with class probabilities");
    if ((st = ax_cast(target, (ax_dtype)x->dtype, &cast)) != AX_OK) return st;
    st = by_rows(q, AX_OP_CROSS_ENTROPY_SOFT, x, cast, true,
                 &AX_ATTRS(cross_entropy_soft, .reduction = reduction, .label_smoothing = smoothing),
                 reduction == NONE);
    ax_tensor_release(cast);
    return st;
  }
  return by_classes(q, AX_OP_CROSS_ENTROPY_ROWS, x, target,
                    &AX_ATTRS(cross_entropy_rows, .ignore_index = ignore, .reduction = reduction,
                              .label_smoothing = smoothing),
                    reduction == NONE);
}

ax_status ax_infer_nll_loss_of(ax_infer *q)
{
  return by_classes(q, AX_OP_NLL_LOSS_ROWS, INPUT(0), INPUT(1),
                    &AX_ATTRS(nll_loss_rows, .ignore_index = q->a.nll_loss.ignore_index,
                              .reduction = q->a.nll_loss.reduction),
                    q->a.nll_loss.reduction == NONE);
}

/* ---- gradients */

static ax_arg softmax_back(ax_grad *c, ax_op op, ax_arg g, ax_arg y)
{
  return call(c, op, 2, (ax_arg[]){ g, y }, &AX_ATTRS(softmax_backward, .dim = A->softmax.dim));
}

RULE(softmax) { give(c, 0, softmax_back(c, AX_OP_SOFTMAX_BACKWARD, G, OUT(0))); }
RULE(log_softmax) { give(c, 0, softmax_back(c, AX_OP_LOG_SOFTMAX_BACKWARD, G, OUT(0))); }

RULE(softmax_backward) /* r = y (g - sum(g y)) */
{
  const ax_arg g = IN(0), y = IN(1);
  if (WANTS(0)) give(c, 0, softmax_back(c, AX_OP_SOFTMAX_BACKWARD, G, y));
  if (WANTS(1)) {
    const ax_arg inner = mul(c, G, sub(c, g, sum_dim(c, mul(c, g, y), A->softmax_backward.dim)));
    give(c, 1, sub(c, inner, mul(c, g, sum_dim(c, mul(c, G, y), A->softmax_backward.dim))));
  }
}

RULE(log_softmax_backward) /* r = g - exp(y) sum(g) */
{
  const ax_arg p = un(c, AX_OP_EXP, IN(1));
  if (WANTS(0)) give(c, 0, sub(c, G, sum_dim(c, mul(c, G, p), A->log_softmax_backward.dim)));
  if (WANTS(1))
    give(c, 1, un(c, AX_OP_NEG, mul(c, mul(c, G, p), sum_dim(c, IN(0), A->log_softmax_backward.dim))));
}

/* Saved input k, or nothing where it was not given. */
static ax_arg optional(const ax_grad *c, int k)
{
  return (ax_arg){ .t = c->node->n_in > k ? c->in[k] : NULL };
}

/* op(v[0 .. n-1]) where entries may be missing. */
static ax_arg call_some(ax_grad *c, ax_op op, int n, const ax_arg *v, const ax_attrs *a)
{
  ax_tensor *in[AX_MAX_INPUTS], *results[AX_MAX_OUT] = { 0 };
  if (c->st != AX_OK) return (ax_arg){ 0 };
  while (!v[n - 1].t) n--;
  for (int k = 0; k < n; k++) in[k] = v[k].t;
  const ax_status st = ax_run(op, &(ax_args){ .n_in = n, .in = in, .a = *a }, results);
  for (int k = 1; k < AX_MAX_OUT; k++) ax_tensor_release(results[k]);
  return keep(c, st, results[0]);
}

/* The weights of classes are constants. */
static void no_weight_gradient(ax_grad *c, int k)
{
  if (c->node->n_in > k && WANTS(k) && c->st == AX_OK)
    c->st = ax_fail(AX_EGRAD, "%s: weight has no gradient; pass weight:detach()", ax_op_shown(c->node->op));
}

/* The attributes of the call, for the row `name` of the same family. */
#define ATTRS_FOR(name) (&(ax_attrs){ .name = A->name, .n_list = -1 })

RULE(cross_entropy)
{
  no_weight_gradient(c, 2);
  if (WANTS(0))
    give(c, 0,
         call_some(c, AX_OP_CROSS_ENTROPY_BACKWARD, 5, (ax_arg[]){ G, IN(0), IN(1), OUT(1), optional(c, 2) },
                   ATTRS_FOR(cross_entropy_backward)));
}

/* One number for each row, as a column that broadcasts against (N, C); unchanged for a single row
 * (C). */
static ax_arg column(ax_grad *c, ax_arg v, int ndim)
{
  return ndim > 1 && v.t && v.t->ndim ? unsqueeze(c, v, 1) : v;
}

/* The part [from, from + rows) of a 1-d tensor, in the shape of the targets. */
static ax_arg part(ax_grad *c, ax_arg v, int64_t from, int64_t rows, int ndim)
{
  if (ndim == 1) return select_at(c, v, 0, from);
  return narrow(c, v, 0, from, rows);
}

static ax_arg total(ax_grad *c, ax_arg v) { return with_list(c, AX_OP_SUM, v, -1, NULL); }
static ax_arg over_classes(ax_grad *c, ax_arg v, int64_t dim) { return with_list(c, AX_OP_SUM, v, 1, &dim); }

/* r = s (a softmax(x) - constants): s is g over what mean divides by, or g, and 0 in ignored rows;
 * a is 1, or made of the weights */
RULE(cross_entropy_backward)
{
  const ax_arg x = IN(1), target = IN(2), lse = IN(3), weight = optional(c, 4);
  const int ndim = META(1)->ndim;
  const int64_t classes = ndim - 1, rows = ndim > 1 ? META(1)->shape[0] : 1;
  if (WANTS(0)) {
    const ax_arg per = mul(c, G,
                           call_some(c, AX_OP_CROSS_ENTROPY_BACKWARD, 5,
                                     (ax_arg[]){ filled(c, 0, 1), x, target, lse, weight },
                                     ATTRS_FOR(cross_entropy_backward)));
    give(c, 0, META(0)->ndim == 0 ? total(c, per) : over_classes(c, per, classes));
  }
  if (WANTS(1)) {
    const ax_arg counts = bin(c, AX_OP_NE, target, NUM((double)A->cross_entropy_backward.ignore_index));
    ax_arg s = where(c, counts, IN(0), NUM(0));
    if (A->cross_entropy_backward.reduction == MEAN) s = over(c, s, select_at(c, lse, 0, rows));
    if (weight.t) {
      const ax_arg label =
          with_list(c, AX_OP_RESHAPE, where(c, counts, target, NUM(0)), 1, (int64_t[]){ rows });
      const ax_arg own =
          call(c, AX_OP_INDEX_SELECT, 2, (ax_arg[]){ weight, label }, &AX_ATTRS(index_select, .dim = 0));
      const ax_arg spread =
          mul(c, total(c, weight),
              NUM(A->cross_entropy_backward.label_smoothing / (double)META(1)->shape[classes]));
      const ax_arg all =
          bin(c, AX_OP_ADD, mul(c, own, NUM(1 - A->cross_entropy_backward.label_smoothing)), spread);
      s = mul(c, s, ndim > 1 ? all : with_list(c, AX_OP_RESHAPE, all, 0, NULL));
    }
    s = column(c, s, ndim);
    const ax_attrs along = AX_ATTRS(softmax, .dim = classes);
    const ax_arg p = call(c, AX_OP_SOFTMAX, 1, &x, &along);
    give(c, 1, call(c, AX_OP_SOFTMAX_BACKWARD, 2, (ax_arg[]){ mul(c, G, s), p }, &along));
  }
}

/* -(1 - smoothing) w s (x - lse) is the gradient with respect to the probabilities */
static ax_arg scale_of(ax_grad *c, ax_arg g, int ndim, int64_t rows)
{
  return column(c, A->cross_entropy_soft_backward.reduction == MEAN ? mul(c, g, NUM(1 / (double)rows)) : g,
                ndim);
}

RULE(cross_entropy_soft)
{
  const ax_arg x = IN(0), weight = optional(c, 2);
  const int ndim = META(0)->ndim;
  no_weight_gradient(c, 2);
  if (WANTS(0))
    give(c, 0,
         call_some(c, AX_OP_CROSS_ENTROPY_SOFT_BACKWARD, 5, (ax_arg[]){ G, x, IN(1), OUT(1), weight },
                   ATTRS_FOR(cross_entropy_soft_backward)));
  if (WANTS(1)) {
    ax_arg s = mul(c, scale_of(c, G, ndim, ndim > 1 ? META(0)->shape[0] : 1),
                   NUM(A->cross_entropy_soft.label_smoothing - 1));
    if (weight.t) s = mul(c, s, weight);
    give(c, 1, mul(c, s, call(c, AX_OP_LOG_SOFTMAX, 1, &x, &AX_ATTRS(log_softmax, .dim = ndim - 1))));
  }
}

/* r = s (S p - w q): p = softmax(x), q the smoothed probabilities, S = sum(w q) */
RULE(cross_entropy_soft_backward)
{
  const ax_arg x = IN(1), target = IN(2), sums = IN(3), weight = optional(c, 4);
  const int ndim = META(1)->ndim;
  const int64_t classes = ndim - 1, rows = ndim > 1 ? META(1)->shape[0] : 1;
  const ax_attrs along = AX_ATTRS(softmax, .dim = classes);
  if (WANTS(0)) {
    const ax_arg per = mul(c, G,
                           call_some(c, AX_OP_CROSS_ENTROPY_SOFT_BACKWARD, 5,
                                     (ax_arg[]){ filled(c, 0, 1), x, target, sums, weight },
                                     ATTRS_FOR(cross_entropy_soft_backward)));
    give(c, 0, META(0)->ndim == 0 ? total(c, per) : over_classes(c, per, classes));
  }
  if (!WANTS(1) && !WANTS(2)) return;
  const ax_arg p = call(c, AX_OP_SOFTMAX, 1, &x, &along), s = scale_of(c, IN(0), ndim, rows);
  if (WANTS(1)) {
    const ax_arg all = mul(c, s, column(c, part(c, sums, rows, rows, ndim), ndim));
    give(c, 1, call(c, AX_OP_SOFTMAX_BACKWARD, 2, (ax_arg[]){ mul(c, G, all), p }, &along));
  }
  if (WANTS(2)) {
    const ax_arg mixed = column(c, over_classes(c, mul(c, G, p), classes), ndim);
    const ax_arg d =
        mul(c, mul(c, s, NUM(1 - A->cross_entropy_soft_backward.label_smoothing)), sub(c, mixed, G));
    give(c, 2, weight.t ? mul(c, d, weight) : d);
  }
}

RULE(nll_loss)
{
  const int64_t classes = META(0)->shape[META(0)->ndim - 1];
  const ax_arg weight = optional(c, 2);
  ax_tensor *in[4] = { G.t, c->in[1], weight.t, c->out[1] }, *results[AX_MAX_OUT] = { 0 };
  const ax_attrs a = AX_ATTRS(nll_loss_backward, .ignore_index = A->nll_loss_rows.ignore_index,
                              .reduction = A->nll_loss_rows.reduction, .classes = classes);
  no_weight_gradient(c, 2);
  if (c->st != AX_OK || !WANTS(0)) return;
  const ax_status st = ax_run(AX_OP_NLL_LOSS_BACKWARD, &(ax_args){ .n_in = 4, .in = in, .a = a }, results);
  give(c, 0, keep(c, st, results[0]));
}

/* Linear in g: nll_loss of the incoming gradient. */
RULE(nll_loss_backward)
{
  give(c, 0,
       call_some(c, AX_OP_NLL_LOSS_ROWS, 3, (ax_arg[]){ G, IN(1), optional(c, 2) },
                 &AX_ATTRS(nll_loss_rows, .ignore_index = A->nll_loss_backward.ignore_index,
                           .reduction = A->nll_loss_backward.reduction)));
}

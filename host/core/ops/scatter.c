/* Rules and gradients of rows that read or write at positions listed in a tensor. */
#include "core/ops/rule.h"
#include "core/ops/scatter.h"

#define X INPUT(0)

/* A 0-d tensor is a row of one. */
static int64_t size_of(const ax_tensor *t, int64_t dim) { return t->ndim ? t->shape[dim] : 1; }

/* Does index pick from (or write to) x: same dims, not longer where it is not along dim? */
static ax_status check_picks(ax_infer *q, const ax_tensor *x, const ax_tensor *index, int64_t dim)
{
  const ax_status st = need_positions(q, 1, "index");
  if (st != AX_OK) return st;
  bool fits = (x->ndim ? x->ndim : 1) == (index->ndim ? index->ndim : 1);
  if (index->numel == 0) return AX_OK; /* nothing to pick, whatever the shape */
  for (int d = 0; fits && d < index->ndim; d++) fits = d == dim || index->shape[d] <= size_of(x, d);
  if (fits) return AX_OK;
  return ax_fail(AX_ESHAPE,
                 "%s: index %s must have as many dims as %s, and be no longer than it but in dim %lld",
                 q->name, TEXT(index), TEXT(x), (long long)dim + 1);
}

ax_status ax_infer_gather(ax_infer *q)
{
  const ax_tensor *index = INPUT(1);
  const ax_status st = check_picks(q, X, index, q->a.gather.dim);
  if (st != AX_OK) return st;
  out_like(q, 0, (ax_dtype)X->dtype, index->ndim, index->shape);
  return AX_OK;
}

void ax_sum_in_float(ax_infer *q, ax_dtype d)
{
  q->compute = ax_is_half(d) ? AX_F32 : d;
  q->cast |= 1;
}

ax_status ax_infer_gather_backward(ax_infer *q)
{
  const ax_tensor *index = INPUT(1);
  const ax_status st = need_positions(q, 1, "index");
  if (st != AX_OK) return st;
  if (!ax_same_shape(X, index->ndim, index->shape))
    return ax_fail(AX_ESHAPE, "%s: gradient %s does not fit index %s", q->name, TEXT(X), TEXT(index));
  ax_sum_in_float(q, (ax_dtype)X->dtype);
  out_like(q, 0, q->compute, q->a.n_list, q->a.list);
  return AX_OK;
}

static ax_arg gather(ax_grad *c, ax_arg x, int64_t dim, ax_arg index)
{
  return call(c, AX_OP_GATHER, 2, (ax_arg[]){ x, index }, &AX_ATTRS(gather, .dim = dim));
}

static ax_arg gather_backward(ax_grad *c, ax_arg g, int64_t dim, ax_arg index)
{
  ax_attrs a = { .gather_backward = { .dim = dim }, .n_list = META(0)->ndim };
  memcpy(a.list, META(0)->shape, sizeof a.list);
  return call(c, AX_OP_GATHER_BACKWARD, 2, (ax_arg[]){ g, index }, &a);
}

RULE(gather) { give(c, 0, gather_backward(c, G, A->gather.dim, IN(1))); }
RULE(gather_backward) { give(c, 0, gather(c, G, A->gather_backward.dim, IN(1))); }

/* Positions counted from the start: negative ones count from the end.  An index on the CPU, where
 * its least element is known without a wait, is taken as it is when it has none. */
static ax_status from_start(ax_tensor *index, int64_t size, ax_tensor **out)
{
  ax_tensor *negative = NULL, *above = NULL, *results[AX_MAX_OUT] = { 0 };
  double least = -1;
  ax_status st = AX_OK;

  if (index->device.kind == AX_CPU) {
    least = 0;
    if (index->numel) AX_TRY(ax_value_of(AX_OP_MIN, index, &least));
  }
  if (least >= 0) {
    *out = ax_tensor_retain(index);
    return AX_OK;
  }
  AX_TRY(ax_run_num(AX_OP_LT, index, 0, &negative));
  AX_TRY(ax_run_num(AX_OP_ADD, index, (double)size, &above));
  AX_TRY(
      ax_run(AX_OP_WHERE,
             &(ax_args){ .n_in = 3, .in = (ax_tensor *[]){ negative, above, index }, .a = { .n_list = -1 } },
             results));
  *out = results[0];
out:
  ax_tensor_release(negative), ax_tensor_release(above);
  return st;
}

ax_status ax_infer_take_along_dim(ax_infer *q)
{
  ax_tensor *x = X, *index = INPUT(1), *flat_x = NULL, *flat_index = NULL, *wide_x = NULL, *wide_index = NULL,
            *results[AX_MAX_OUT] = { 0 }, *counted = NULL;
  int64_t dim = q->a.take_along_dim.dim, sx[AX_MAX_DIMS], si[AX_MAX_DIMS];
  ax_status st = need_dtype(q, index, AX_I64, "index");

  if (st != AX_OK) return st;
  if (dim == AX_NO_DIM) {
    AX_TRY(run_list(AX_OP_RESHAPE, x, 1, &x->numel, &flat_x));
    AX_TRY(run_list(AX_OP_RESHAPE, index, 1, &index->numel, &flat_index));
    x = flat_x;
    index = flat_index;
    dim = 0;
  } else if (x->ndim) {
    AX_TRY(from_start(index, x->shape[dim], &counted));
    index = counted;
  }
  if (x->ndim != index->ndim) {
    st = ax_fail(AX_ESHAPE, "take_along_dim: index %s must have as many dims as %s", TEXT(index), TEXT(x));
    goto out;
  }
  for (int d = 0; d < x->ndim; d++) {
    const int64_t a = x->shape[d], b = index->shape[d];
    if (d != dim && a != b && a != 1 && b != 1) {
      st = ax_fail(AX_ESHAPE, "take_along_dim: %s and index %s do not broadcast outside dim %lld", TEXT(x),
                   TEXT(index), (long long)dim + 1);
      goto out;
    }
    sx[d] = d == dim || b == 1 ? a : b;
    si[d] = d == dim || a == 1 ? b : a;
  }
  AX_TRY(run_list(AX_OP_EXPAND, x, x->ndim, sx, &wide_x));
  AX_TRY(run_list(AX_OP_EXPAND, index, x->ndim, si, &wide_index));
  AX_TRY(ax_run(AX_OP_GATHER,
                &(ax_args){ .n_in = 2,
                            .in = (ax_tensor *[]){ wide_x, wide_index },
                            .a = AX_ATTRS(gather, .dim = dim) },
                results));
  q->result[0] = results[0];
out:
  ax_tensor_release(flat_x), ax_tensor_release(flat_index), ax_tensor_release(wide_x),
      ax_tensor_release(wide_index), ax_tensor_release(counted);
  return st;
}

/* ---- writing: the result is x but for the positions named */

static ax_status like_x(ax_infer *q)
{
  out_like(q, 0, (ax_dtype)X->dtype, X->ndim, X->shape);
  return AX_OK;
}

static ax_status same_type(const ax_infer *q, const ax_tensor *src)
{
  if (src->dtype == X->dtype) return AX_OK;
  return ax_fail(AX_EDTYPE, "%s: x is %s, but what goes into it is %s; cast it first", q->name, TYPE(X),
                 TYPE(src));
}

static ax_status check_number(const ax_infer *q, double v)
{
  const ax_dtype d = (ax_dtype)X->dtype;
  if (ax_number_fits(d, v)) return AX_OK;
  return ax_fail(AX_EDTYPE, "%s: the value %g does not fit a tensor of %s", q->name, v, TYPE(X));
}

ax_status ax_infer_scatter(ax_infer *q)
{
  const ax_tensor *index = INPUT(1), *src = INPUT(2);
  ax_status st = check_picks(q, X, index, q->a.scatter.dim);
  if (st != AX_OK) return st;
  if (!src) {
    q->a.scatter.number = q->args->num[2];
    if ((st = check_number(q, q->a.scatter.number)) != AX_OK) return st;
    return like_x(q);
  }
  if ((st = same_type(q, src)) != AX_OK) return st;
  bool fits = (src->ndim ? src->ndim : 1) == (index->ndim ? index->ndim : 1);
  for (int d = 0; fits && index->numel && d < index->ndim; d++) fits = index->shape[d] <= size_of(src, d);
  if (!fits && index->numel)
    return ax_fail(AX_ESHAPE, "%s: index %s must have as many dims as src %s, and be no longer than it",
                   q->name, TEXT(index), TEXT(src));
  return like_x(q);
}

ax_status ax_infer_scatter_add(ax_infer *q)
{
  if (X->dtype == AX_BOOL && q->op == AX_OP_SCATTER_REDUCE)
    return ax_fail(AX_EDTYPE, "%s: not defined for bool", q->name);
  return ax_infer_scatter(q);
}

/* What was written has a part in the result only as far as index goes. */
static ax_arg grown(ax_grad *c, ax_arg g, int k)
{
  const ax_meta *m = META(k);
  for (int d = 0; c->st == AX_OK && g.t && d < m->ndim && m->ndim == g.t->ndim; d++) {
    if (g.t->shape[d] == m->shape[d]) continue;
    ax_attrs a = { .slice_backward = { .dim = d, .start = 0, .step = 1 }, .n_list = m->ndim };
    memcpy(a.list, g.t->shape, sizeof a.list);
    a.list[d] = m->shape[d];
    g = call(c, AX_OP_SLICE_BACKWARD, 1, &g, &a);
  }
  return g;
}

RULE(scatter)
{
  if (WANTS(0))
    give(c, 0,
         call(c, AX_OP_SCATTER, 3, (ax_arg[]){ G, IN(1), NUM(0) },
              &AX_ATTRS(scatter, .dim = A->scatter.dim)));
  if (WANTS(2)) give(c, 2, grown(c, gather(c, G, A->scatter.dim, IN(1)), 2));
}

RULE(scatter_add)
{
  give(c, 0, G);
  if (WANTS(2)) give(c, 2, grown(c, gather(c, G, A->scatter_add.dim, IN(1)), 2));
}

static ax_arg scatter_into(ax_grad *c, ax_op op, ax_arg x, ax_arg index, ax_arg src)
{
  const int64_t dim = A->scatter_reduce.dim;
  const ax_attrs a = op == AX_OP_SCATTER_ADD
                         ? AX_ATTRS(scatter_add, .dim = dim)
                         : AX_ATTRS(scatter_reduce, .dim = dim, .reduce = AX_SCATTER_PROD);
  return call(c, op, 3, (ax_arg[]){ x, index, src }, &a);
}

static ax_arg cast_like(ax_grad *c, ax_arg x, int k)
{
  return call1(c, AX_OP_CAST, x, &AX_ATTRS(cast, .dtype = META(k)->dtype));
}

/* Equal ones share the gradient of the largest. */
static void scatter_extreme(ax_grad *c)
{
  const int64_t dim = A->scatter_reduce.dim;
  const ax_arg index = IN(1), mine = cast_like(c, bin(c, AX_OP_EQ, IN(0), OUT(0)), 0),
               theirs = cast_like(c, bin(c, AX_OP_EQ, IN(2), gather(c, OUT(0), dim, index)), 0),
               share = over(c, G, scatter_into(c, AX_OP_SCATTER_ADD, mine, index, theirs));
  if (WANTS(0)) give(c, 0, mul(c, mine, share));
  if (WANTS(2)) give(c, 2, mul(c, theirs, gather(c, share, dim, index)));
}

/* The product of the other factors: the product divided by the factor, but where it is 0. */
static void scatter_product(ax_grad *c)
{
  const int64_t dim = A->scatter_reduce.dim;
  const ax_arg index = IN(1), x = IN(0), src = IN(2);
  if (WANTS(0)) {
    const ax_arg factor = where(c, bin(c, AX_OP_EQ, x, NUM(0)), NUM(1), x),
                 others = scatter_into(c, AX_OP_SCATTER_REDUCE, factor, index, src);
    give(c, 0, over(c, mul(c, G, others), factor));
  }
  if (WANTS(2)) {
    const ax_arg zero = bin(c, AX_OP_EQ, src, NUM(0)), factor = where(c, zero, NUM(1), src),
                 zeros = scatter_into(c, AX_OP_SCATTER_ADD, filled(c, 0, 0), index, cast_like(c, zero, 0)),
                 alone =
                     bin(c, AX_OP_LOGICAL_AND, zero, bin(c, AX_OP_EQ, gather(c, zeros, dim, index), NUM(1))),
                 others = scatter_into(c, AX_OP_SCATTER_REDUCE, x, index, where(c, alone, NUM(1), src));
    give(c, 2,
         where(c, alone, gather(c, mul(c, G, others), dim, index),
               over(c, gather(c, mul(c, G, OUT(0)), dim, index), factor)));
  }
}

RULE(scatter_reduce)
{
  if (A->scatter_reduce.reduce == AX_SCATTER_PROD) scatter_product(c);
  else scatter_extreme(c);
}

/* ---- slices */

static ax_status check_slices(ax_infer *q, const ax_tensor *source)
{
  const ax_tensor *index = INPUT(1);
  const int64_t dim = q->a.slices.dim;
  ax_status st =
      q->op == AX_OP_INDEX_ADD ? need_positions(q, 1, "index") : need_dtype(q, index, AX_I64, "index");
  if (st != AX_OK) return st;
  if (index->ndim > 1) return ax_fail(AX_ESHAPE, "%s: index must have one dim, got %s", q->name, TEXT(index));
  if (!source) return AX_OK;
  if ((st = same_type(q, source)) != AX_OK) return st;
  bool fits = source->ndim == X->ndim && size_of(source, dim) == index->numel;
  for (int d = 0; fits && d < X->ndim; d++) fits = d == dim || source->shape[d] == X->shape[d];
  if (fits) return AX_OK;
  return ax_fail(AX_ESHAPE, "%s: source %s does not fit dim %lld of %s and index %s", q->name, TEXT(source),
                 (long long)dim + 1, TEXT(X), TEXT(index));
}

ax_status ax_infer_index_add(ax_infer *q)
{
  const ax_status st = check_slices(q, INPUT(2));
  if (st != AX_OK) return st;
  if (!ax_is_float((ax_dtype)X->dtype) && q->a.index_add.alpha != floor(q->a.index_add.alpha))
    return ax_fail(AX_EDTYPE, "index_add: alpha %g does not fit a tensor of %s", q->a.index_add.alpha,
                   TYPE(X));
  return like_x(q);
}

ax_status ax_infer_index_copy(ax_infer *q)
{
  const ax_status st = check_slices(q, INPUT(2));
  return st != AX_OK ? st : like_x(q);
}

ax_status ax_infer_index_fill(ax_infer *q)
{
  ax_status st = check_slices(q, NULL);
  if (st == AX_OK) st = check_number(q, q->a.index_fill.value);
  return st != AX_OK ? st : like_x(q);
}

static ax_arg picked(ax_grad *c, ax_arg g)
{
  const ax_meta *m = META(2);
  const ax_arg index = with_list(c, AX_OP_RESHAPE, IN(1), 1, (int64_t[]){ -1 });
  if (m->ndim)
    return call(c, AX_OP_INDEX_SELECT, 2, (ax_arg[]){ g, index },
                &AX_ATTRS(index_select, .dim = A->slices.dim));
  return gather(c, g, 0, IN(1)); /* 0-d */
}
static ax_arg without(ax_grad *c, ax_arg g)
{
  return call(c, AX_OP_INDEX_FILL, 2, (ax_arg[]){ g, IN(1) },
              &AX_ATTRS(index_fill, .dim = A->slices.dim, .value = 0));
}

RULE(index_add)
{
  give(c, 0, G);
  if (!WANTS(2)) return;
  const ax_arg g = picked(c, G);
  give(c, 2, A->index_add.alpha == 1 ? g : mul(c, g, NUM(A->index_add.alpha)));
}

RULE(index_copy)
{
  if (WANTS(0)) give(c, 0, without(c, G));
  if (WANTS(2)) give(c, 2, picked(c, G));
}

RULE(index_fill) { give(c, 0, without(c, G)); }

/* Rules and gradients of rows that read or write at positions listed in a tensor. */
#include "core/ops/rule.h"
#include "core/ops/scatter.h"

#define X INPUT(0)

/* A 0-d tensor is a row of one. */
static int64_t size_of(const ax_tensor *t, int64_t dim) { return t->ndim ? t->shape[dim] : 1; }

/* Does index pick from (or write to) x: same dims, not longer where it is not along dim? */
static ax_status check_picks(const ax_infer *q, const ax_tensor *x, const ax_tensor *index, int64_t dim)
{
  const ax_status st = need_dtype(q, index, AX_I64, "index");
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

/* Sums of halves are made in float32; the tape rounds them once. */
static void sum_in_float(ax_infer *q, ax_dtype d)
{
  q->compute = ax_is_half(d) ? AX_F32 : d;
  q->cast |= 1;
}

ax_status ax_infer_gather_backward(ax_infer *q)
{
  const ax_tensor *index = INPUT(1);
  const ax_status st = need_dtype(q, index, AX_I64, "index");
  if (st != AX_OK) return st;
  if (!ax_same_shape(X, index->ndim, index->shape))
    return ax_fail(AX_ESHAPE, "%s: gradient %s does not fit index %s", q->name, TEXT(X), TEXT(index));
  sum_in_float(q, (ax_dtype)X->dtype);
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

ax_status ax_infer_take_along_dim(ax_infer *q)
{
  ax_tensor *x = X, *index = INPUT(1), *flat_x = NULL, *flat_index = NULL, *wide_x = NULL, *wide_index = NULL,
            *results[AX_MAX_OUT] = { 0 };
  int64_t dim = q->a.take_along_dim.dim, sx[AX_MAX_DIMS], si[AX_MAX_DIMS];
  ax_status st = AX_OK;

  if (dim == AX_NO_DIM) {
    AX_TRY(run_list(AX_OP_RESHAPE, x, 1, &x->numel, &flat_x));
    AX_TRY(run_list(AX_OP_RESHAPE, index, 1, &index->numel, &flat_index));
    x = flat_x;
    index = flat_index;
    dim = 0;
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
      ax_tensor_release(wide_index);
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
  if (ax_is_float(d) || d == AX_BOOL || v == floor(v)) return AX_OK;
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
  if (X->dtype == AX_BOOL) return ax_fail(AX_EDTYPE, "%s: not defined for bool", q->name);
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

static ax_status check_slices(const ax_infer *q, const ax_tensor *source)
{
  const ax_tensor *index = INPUT(1);
  const int64_t dim = q->a.slices.dim;
  ax_status st = need_dtype(q, index, AX_I64, "index");
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
  if (X->dtype == AX_BOOL) return ax_fail(AX_EDTYPE, "index_add: not defined for bool");
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

/* ---- embedding, one_hot */

ax_status ax_infer_embedding(ax_infer *q)
{
  const ax_tensor *w = INPUT(1);
  int64_t shape[AX_MAX_DIMS];
  const ax_status st = need_dtype(q, X, AX_I64, "input");
  if (st != AX_OK) return st;
  if (w->ndim != 2) return ax_fail(AX_ESHAPE, "embedding: weight must be (count, size), got %s", TEXT(w));
  if (X->ndim == AX_MAX_DIMS)
    return ax_fail(AX_ESHAPE, "embedding: input %s has all the %d dims there can be", TEXT(X), AX_MAX_DIMS);
  if (q->a.embedding.padding_idx != AX_NO_DIM) {
    if (q->a.embedding.padding_idx < -w->shape[0] || q->a.embedding.padding_idx >= w->shape[0])
      return ax_fail(AX_ERANGE, "embedding: padding_idx %lld is outside the %lld rows of weight",
                     (long long)q->a.embedding.padding_idx, (long long)w->shape[0]);
    if (q->a.embedding.padding_idx < 0) q->a.embedding.padding_idx += w->shape[0];
  }
  memcpy(shape, X->shape, sizeof shape);
  shape[X->ndim] = w->shape[1];
  q->contiguous = 1 | 2;
  out_like(q, 0, (ax_dtype)w->dtype, X->ndim + 1, shape);
  return AX_OK;
}

ax_status ax_infer_embedding_backward(ax_infer *q)
{
  const ax_tensor *g = X, *input = INPUT(1);
  const ax_status st = need_dtype(q, input, AX_I64, "input");
  if (st != AX_OK) return st;
  if (g->ndim != input->ndim + 1)
    return ax_fail(AX_ESHAPE, "%s: gradient %s does not fit input %s", q->name, TEXT(g), TEXT(input));
  sum_in_float(q, (ax_dtype)g->dtype);
  q->contiguous = 1 | 2;
  out_like(q, 0, q->compute, 2, (int64_t[]){ q->a.embedding_backward.count, g->shape[g->ndim - 1] });
  return AX_OK;
}

/* Into the leaf's slot of the flat gradient when there is one, on top of what another use of the
 * weight has left there. */
RULE(embedding)
{
  bool accumulate;
  ax_tensor *slot = c->st == AX_OK ? ax_grad_slot_of(c, 1, &accumulate) : NULL;
  ax_attrs a =
      AX_ATTRS(embedding_backward, .count = META(1)->shape[0], .padding_idx = A->embedding.padding_idx);
  const ax_arg in = IN(0);

  if (slot && slot->ndim == 2 && slot->storage != c->g[0]->storage && in.t &&
      (slot->dtype == c->g[0]->dtype ? !ax_is_half((ax_dtype)slot->dtype)
                                     : slot->dtype == AX_F32 && ax_is_half((ax_dtype)c->g[0]->dtype))) {
    a.accumulate = accumulate;
    c->st = ax_run_into(AX_OP_EMBEDDING_BACKWARD,
                        &(ax_args){ .n_in = 2, .in = (ax_tensor *[]){ c->g[0], in.t }, .a = a }, slot);
    if (c->st == AX_OK) ax_grad_slot_written(c, 1);
  } else give(c, 1, call(c, AX_OP_EMBEDDING_BACKWARD, 2, (ax_arg[]){ G, in }, &a));
}

RULE(embedding_backward) /* rows of padding_idx were left out */
{
  ax_arg g = G;
  if (A->embedding_backward.padding_idx != AX_NO_DIM) {
    ax_tensor *row = NULL;
    if (c->st == AX_OK) c->st = ax_tensor_scalar(AX_I64, (double)A->embedding_backward.padding_idx, &row);
    ax_tensor *there = NULL;
    if (c->st == AX_OK) c->st = bring(row, c->g[0]->device, &there);
    ax_tensor_release(row);
    const ax_arg at = keep(c, c->st, there);
    g = call(c, AX_OP_INDEX_FILL, 2, (ax_arg[]){ g, at }, &AX_ATTRS(index_fill, .dim = 0, .value = 0));
  }
  give(c, 0,
       call(c, AX_OP_EMBEDDING, 2, (ax_arg[]){ IN(1), g }, &AX_ATTRS(embedding, .padding_idx = AX_NO_DIM)));
}

ax_status ax_infer_one_hot_of(ax_infer *q)
{
  int64_t shape[AX_MAX_DIMS];
  memcpy(shape, X->shape, sizeof shape);
  shape[X->ndim] = q->a.one_hot_of.num_classes;
  q->contiguous = 1;
  out_like(q, 0, AX_I64, X->ndim + 1, shape);
  return AX_OK;
}

/* The largest (or smallest) element, for sizes that depend on values. */
static ax_status minmax_of(ax_op op, ax_tensor *x, double *v)
{
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  ax_status st =
      ax_run(op, &(ax_args){ .n_in = 1, .in = &x, .a = AX_ATTRS(along_one, .dim = AX_NO_DIM) }, results);
  if (st == AX_OK) st = ax_item(results[0], v);
  ax_tensor_release(results[0]);
  return st;
}

ax_status ax_infer_one_hot(ax_infer *q)
{
  int64_t classes = q->a.one_hot.num_classes;
  ax_status st = need_dtype(q, X, AX_I64, "x");

  if (st != AX_OK) return st;
  if (X->ndim == AX_MAX_DIMS)
    return ax_fail(AX_ESHAPE, "one_hot: shape %s has all the %d dims there can be", TEXT(X), AX_MAX_DIMS);
  if (classes == -1) {
    double most;
    if (X->numel == 0)
      return ax_fail(AX_EINVAL, "one_hot: num_classes must be given for a tensor without elements, %s",
                     TEXT(X));
    if ((st = minmax_of(AX_OP_MAX, X, &most)) != AX_OK) return st;
    classes = most < 0 ? 0 : (int64_t)most + 1;
  }
  if (classes < (X->numel > 0))
    return ax_fail(AX_ERANGE, "one_hot: num_classes must be at least 1 (or -1), got %lld",
                   (long long)classes);
  return run_with(AX_OP_ONE_HOT_OF, X, &AX_ATTRS(one_hot_of, .num_classes = classes), &q->result[0]);
}

/* ---- masks, counts */

/* Flat positions where `mask` (bool, of x's shape) is true, and their number. */
ax_status ax_true_positions(ax_tensor *mask, ax_op op, int ndim, ax_tensor **out)
{
  ax_tensor *whole = NULL, *count = NULL;
  double trues;
  ax_status st;

  AX_TRY(ax_contiguous(mask, &whole));
  AX_TRY(run_list(AX_OP_SUM, whole, -1, NULL, &count));
  AX_TRY(ax_item(count, &trues));
  AX_TRY(ax_tensor_new_on(mask->device, AX_I64, op == AX_OP_NONZERO_INTO ? 2 : 1,
                          (int64_t[]){ (int64_t)trues, ndim }, out));
  if ((*out)->numel) st = ax_run_into(op, &(ax_args){ .n_in = 1, .in = &whole, .a = { .n_list = -1 } }, *out);
  if (st != AX_OK) {
    ax_tensor_release(*out);
    *out = NULL;
  }
out:
  ax_tensor_release(whole), ax_tensor_release(count);
  return st;
}

ax_status ax_infer_nonzero(ax_infer *q)
{
  ax_tensor *mask = NULL;
  ax_status st;

  if (X->dtype == AX_BOOL) mask = ax_tensor_retain(X);
  else if ((st = ax_run_num(AX_OP_NE, X, 0, &mask)) != AX_OK) return st;
  st = ax_true_positions(mask, AX_OP_NONZERO_INTO, X->ndim, &q->result[0]);
  ax_tensor_release(mask);
  return st;
}

ax_status ax_infer_masked_scatter(ax_infer *q)
{
  ax_tensor *mask = INPUT(1), *source = INPUT(2), *wide = NULL, *wide_mask = NULL, *flat = NULL, *at = NULL,
            *row = NULL, *some = NULL;
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  int64_t shape[AX_MAX_DIMS], numel;
  int ndim;
  ax_status st;

  if (mask->dtype != AX_BOOL)
    return ax_fail(AX_EDTYPE, "masked_scatter: mask must be bool, got %s", TYPE(mask));
  if (source->dtype != X->dtype)
    return ax_fail(AX_EDTYPE, "masked_scatter: x is %s, source is %s; cast it first", TYPE(X), TYPE(source));
  AX_TRY(ax_shape_broadcast(q->name, X->ndim, X->shape, mask->ndim, mask->shape, &ndim, shape));
  AX_TRY(run_list(AX_OP_EXPAND, X, ndim, shape, &wide));
  AX_TRY(run_list(AX_OP_EXPAND, mask, ndim, shape, &wide_mask));
  AX_TRY(ax_true_positions(wide_mask, AX_OP_MASK_INDICES, 1, &at));
  if (at->numel > source->numel) {
    st = ax_fail(AX_ESHAPE, "masked_scatter: the mask has %lld true elements, source only %lld",
                 (long long)at->numel, (long long)source->numel);
    goto out;
  }
  numel = wide->numel;
  AX_TRY(run_list(AX_OP_RESHAPE, wide, 1, &numel, &flat));
  AX_TRY(run_list(AX_OP_RESHAPE, source, 1, &source->numel, &row));
  AX_TRY(run_narrow(row, 0, 0, at->numel, &some));
  AX_TRY(ax_run(AX_OP_INDEX_COPY,
                &(ax_args){
                    .n_in = 3, .in = (ax_tensor *[]){ flat, at, some }, .a = AX_ATTRS(index_copy, .dim = 0) },
                results));
  AX_TRY(run_list(AX_OP_VIEW, results[0], ndim, shape, &q->result[0]));
  ax_view_own(q->result[0]); /* nobody else sees what it is a view of */
out:
  ax_tensor_release(wide), ax_tensor_release(wide_mask), ax_tensor_release(flat), ax_tensor_release(at);
  ax_tensor_release(row), ax_tensor_release(some), ax_tensor_release(results[0]);
  return st;
}

ax_status ax_infer_bincount(ax_infer *q)
{
  ax_tensor *weights = q->args->n_in > 1 ? INPUT(1) : NULL, *own = NULL, *index = NULL,
            *results[AX_MAX_OUT] = { 0 };
  int64_t size = q->a.bincount.minlength;
  double least = 0, most = -1;
  ax_status st = AX_OK;

  if (X->ndim != 1 || ax_is_float((ax_dtype)X->dtype) || X->dtype == AX_BOOL)
    return ax_fail(AX_ESHAPE, "bincount: expected integers in one dim, got %s %s", TYPE(X), TEXT(X));
  if (size < 0)
    return ax_fail(AX_ERANGE, "bincount: minlength must not be negative, got %lld", (long long)size);
  if (weights && (weights->ndim != 1 || weights->numel != X->numel))
    return ax_fail(AX_ESHAPE, "bincount: weights %s must have the shape of x, %s", TEXT(weights), TEXT(X));
  if (X->numel) {
    AX_TRY(minmax_of(AX_OP_MAX, X, &most));
    AX_TRY(minmax_of(AX_OP_MIN, X, &least));
  }
  if (least < 0) {
    st = ax_fail(AX_ERANGE, "bincount: x holds the negative number %.0f", least);
    goto out;
  }
  if (most + 1 > (double)size) size = (int64_t)most + 1;
  AX_TRY(ax_cast(X, AX_I64, &index));
  if (weights) AX_TRY(ax_cast(weights, weights->dtype == AX_F32 ? AX_F32 : AX_F64, &own));
  else {
    AX_TRY(ax_tensor_new_on(X->device, AX_I64, 1, X->shape, &own));
    AX_TRY(ax_fill(own, 1));
  }
  AX_TRY(ax_run(AX_OP_INDEX_SELECT_BACKWARD,
                &(ax_args){ .n_in = 2,
                            .in = (ax_tensor *[]){ own, index },
                            .a = AX_ATTRS(index_select_backward, .dim = 0, .size = size) },
                results));
  q->result[0] = results[0];
out:
  ax_tensor_release(own), ax_tensor_release(index);
  return st;
}

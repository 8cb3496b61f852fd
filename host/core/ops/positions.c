/* Rules of rows whose results are as large as values say: nonzero, masked_scatter, bincount. */
#include "core/ops/rule.h"

#define X INPUT(0)

ax_status ax_value_of(ax_op op, ax_tensor *x, double *v)
{
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  ax_status st =
      ax_run(op, &(ax_args){ .n_in = 1, .in = &x, .a = AX_ATTRS(along_one, .dim = AX_NO_DIM) }, results);
  if (st == AX_OK) st = ax_item(results[0], v);
  ax_tensor_release(results[0]);
  return st;
}

ax_status ax_true_positions(ax_tensor *mask, bool coordinates, ax_tensor **out)
{
  const ax_op op = coordinates ? AX_OP_NONZERO_INTO : AX_OP_MASK_INDICES;
  ax_tensor *whole = NULL, *count = NULL;
  double trues;
  ax_status st;

  AX_TRY(ax_contiguous(mask, &whole));
  AX_TRY(run_list(AX_OP_SUM, whole, -1, NULL, &count));
  AX_TRY(ax_item(count, &trues));
  AX_TRY(ax_tensor_new_on(mask->device, AX_I64, coordinates ? 2 : 1,
                          (int64_t[]){ (int64_t)trues, mask->ndim }, out));
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
  st = ax_true_positions(mask, true, &q->result[0]);
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
  AX_TRY(ax_true_positions(wide_mask, false, &at));
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

/* *out: a new tensor of `size` elements, to which values are added at the places that x lists. */
static ax_status add_at(ax_tensor *x, ax_tensor *values, int64_t size, ax_tensor **out)
{
  ax_tensor *index = NULL, *results[AX_MAX_OUT] = { 0 };
  ax_status st;

  AX_TRY(ax_cast(x, AX_I64, &index));
  AX_TRY(ax_run(AX_OP_INDEX_SELECT_BACKWARD,
                &(ax_args){ .n_in = 2,
                            .in = (ax_tensor *[]){ values, index },
                            .a = AX_ATTRS(index_select_backward, .dim = 0, .size = size) },
                results));
  *out = results[0];
out:
  ax_tensor_release(index);
  return st;
}

/* Counts x piece by piece: a place and a one for each element of a small type would take many times
 * x's memory.  Pieces are at least as long as the result, which each adds to. */
static ax_status count(ax_tensor *x, int64_t size, ax_tensor **out)
{
  const int64_t least = (int64_t)1 << 20, piece = size > least ? size : least;
  const int64_t most = x->numel < piece ? x->numel : piece;
  ax_tensor *ones = NULL, *part = NULL, *one = NULL, *sum = NULL, *more = NULL;
  ax_status st;

  AX_TRY(ax_tensor_new_on(x->device, AX_I64, 1, &most, &ones));
  AX_TRY(ax_fill(ones, 1));
  for (int64_t at = 0; at == 0 || at < x->numel; at += piece) {
    const int64_t n = x->numel - at < piece ? x->numel - at : piece;
    AX_TRY(run_narrow(x, 0, at, n, &part));
    AX_TRY(run_narrow(ones, 0, 0, n, &one));
    AX_TRY(add_at(part, one, size, at ? &more : &sum));
    if (at)
      AX_TRY(ax_run_inplace(AX_OP_ADD, &(ax_args){ .n_in = 2, .in = (ax_tensor *[]){ sum, more } }, sum));
    ax_tensor_release(part), ax_tensor_release(one), ax_tensor_release(more);
    part = one = more = NULL;
  }
  *out = sum;
  sum = NULL;
out:
  ax_tensor_release(ones), ax_tensor_release(part), ax_tensor_release(one);
  ax_tensor_release(sum), ax_tensor_release(more);
  return st;
}

ax_status ax_infer_bincount(ax_infer *q)
{
  ax_tensor *weights = q->args->n_in > 1 ? INPUT(1) : NULL, *own = NULL;
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
    AX_TRY(ax_value_of(AX_OP_MAX, X, &most));
    AX_TRY(ax_value_of(AX_OP_MIN, X, &least));
  }
  if (least < 0) {
    st = ax_fail(AX_ERANGE, "bincount: x holds the negative number %.0f", least);
    goto out;
  }
  if (most + 1 > (double)size) size = (int64_t)most + 1;
  if (!weights) return count(X, size, &q->result[0]);
  AX_TRY(ax_cast(weights, weights->dtype == AX_F32 ? AX_F32 : AX_F64, &own));
  st = add_at(X, own, size, &q->result[0]);
out:
  ax_tensor_release(own);
  return st;
}

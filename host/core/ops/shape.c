/* Rules and gradients of rows that change shape or join, other than views. */
#include "core/ops/float8.h"
#include "core/ops/rule.h"

#define X INPUT(0)

ax_status ax_infer_reshape(ax_infer *q)
{
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS];
  ax_tensor *copy = NULL;
  ax_status st;

  AX_TRY(ax_resolve_shape(q->name, X, q->a.n_list, q->a.list, shape));
  if (ax_strides_for_view(X->ndim, X->shape, X->strides, q->a.n_list, shape, strides))
    return run_list(AX_OP_VIEW, X, q->a.n_list, shape, &q->result[0]);
  AX_TRY(ax_run1(AX_OP_CLONE, X, &copy));
  AX_TRY(run_list(AX_OP_VIEW, copy, q->a.n_list, shape, &q->result[0]));
  ax_view_own(q->result[0]); /* nobody else sees the copy: it may be changed in place under autograd */
out:
  ax_tensor_release(copy);
  return st;
}

ax_status ax_infer_flatten(ax_infer *q)
{
  int64_t shape[AX_MAX_DIMS], joined = 1;
  const int64_t first = q->a.flatten.start_dim, last = q->a.flatten.end_dim;
  int n = 0;

  if (X->ndim == 0) return run_list(AX_OP_VIEW, X, 1, (int64_t[]){ 1 }, &q->result[0]);
  if (first > last)
    return ax_fail(AX_EINVAL, "flatten: start_dim %lld comes after end_dim %lld", (long long)first + 1,
                   (long long)last + 1);
  for (int d = 0; d < X->ndim; d++) {
    if (d < first || d > last) shape[n++] = X->shape[d];
    else joined *= X->shape[d];
    if (d == last) shape[n++] = joined;
  }
  return run_list(AX_OP_RESHAPE, X, n, shape, &q->result[0]);
}

ax_status ax_infer_contiguous(ax_infer *q)
{
  if (!ax_tensor_is_contiguous(X)) return ax_run1(AX_OP_CLONE, X, &q->result[0]);
  q->result[0] = ax_tensor_retain(X);
  return AX_OK;
}

ax_status ax_infer_t(ax_infer *q)
{
  if (X->ndim > 2)
    return ax_fail(AX_ESHAPE, "t: expected a matrix, got %s; use transpose(dim0, dim1)", TEXT(X));
  return run_transpose(X, 0, X->ndim - 1 < 0 ? 0 : X->ndim - 1, &q->result[0]);
}

/* ---- joining */

/* Whether images are joined, by batch or by channels, that all have the channels innermost; the
 * result has, too, as the convolution that reads it needs.  Empty ones do not count.  Other dims
 * may not be an image's: the parts of complex numbers are joined along the last. */
static bool all_innermost(const ax_args *args, int64_t dim)
{
  bool any = false;
  if (dim > 1) return false;
  for (int k = 0; k < args->n_in; k++) {
    const ax_tensor *t = args->in[k];
    if (t->numel == 0) continue;
    if (t->ndim < 4 || !ax_strides_are_channels_last(t->ndim, t->shape, t->strides)) return false;
    any |= !ax_tensor_is_contiguous(t);
  }
  return any;
}

ax_status ax_infer_cat(ax_infer *q)
{
  const int n = q->args->n_in;
  const int64_t dim = q->a.cat.dim;
  const ax_tensor *first = NULL;
  ax_tensor *joined = NULL, *slot = NULL;
  int64_t shape[AX_MAX_DIMS], at = 0, total = 0;
  ax_dtype dtype = AX_BOOL;
  ax_status st = AX_OK;

  if (n == 0) return ax_fail(AX_EINVAL, "cat: expected at least one tensor, got an empty list");
  AX_TRY(ax_float8_alike(q, 0));
  for (int k = 0; k < n; k++) {
    const ax_tensor *t = q->args->in[k];
    dtype = k ? ax_dtype_promote(dtype, (ax_dtype)t->dtype) : (ax_dtype)t->dtype;
    if (t->ndim == 0)
      return ax_fail(AX_ESHAPE, "cat: tensor %d is 0-d and cannot be joined; use stack", k + 1);
    if (t->ndim == 1 && t->numel == 0) continue; /* an empty list joins with anything, as in PyTorch */
    if (!first) {
      first = t;
      if (dim >= t->ndim)
        return ax_fail(AX_ERANGE, "cat: dim %lld is outside 1..%d", (long long)dim + 1, t->ndim);
    }
    bool fits = t->ndim == first->ndim;
    for (int d = 0; fits && d < t->ndim; d++) fits = d == dim || t->shape[d] == first->shape[d];
    if (!fits)
      return ax_fail(AX_ESHAPE, "cat: tensor %d of shape %s does not join shape %s along dim %lld", k + 1,
                     TEXT(t), TEXT(first), (long long)dim + 1);
    if (__builtin_add_overflow(total, t->shape[dim], &total))
      return ax_fail(AX_ESHAPE, "cat: the tensors are too long together to count");
  }
  if (!first) first = q->args->in[0];
  if (dim >= first->ndim)
    return ax_fail(AX_ERANGE, "cat: dim %lld is outside 1..%d", (long long)dim + 1, first->ndim);
  memcpy(shape, first->shape, sizeof shape);
  shape[dim] = total;
  AX_TRY(ax_tensor_new_on(first->device, dtype, first->ndim, shape, &joined));
  if (all_innermost(q->args, dim)) ax_strides_channels_last(joined->ndim, shape, joined->strides);
  for (int k = 0; k < n; k++) {
    ax_tensor *t = q->args->in[k];
    if (t->numel == 0) continue;
    AX_TRY(ax_tensor_view(joined, t->ndim, t->shape, joined->strides, at * joined->strides[dim], &slot));
    st = ax_copy(slot, t);
    ax_tensor_release(slot);
    if (st != AX_OK) goto out;
    at += t->shape[dim];
  }
  q->result[0] = joined;
  joined = NULL;
out:
  ax_tensor_release(joined);
  return st;
}

ax_status ax_infer_stack(ax_infer *q)
{
  const int n = q->args->n_in;
  ax_tensor **wide = NULL, *results[AX_MAX_OUT] = { 0 };
  ax_status st = AX_OK;

  if (n == 0) return ax_fail(AX_EINVAL, "stack: expected at least one tensor, got an empty list");
  if ((st = ax_float8_alike(q, 0)) != AX_OK) return st;
  if (!(wide = ax_calloc((size_t)n, sizeof *wide))) return AX_ENOMEM;
  for (int k = 0; k < n; k++) {
    const ax_tensor *t = q->args->in[k];
    if (!ax_same_shape(t, X->ndim, X->shape)) {
      st = ax_fail(AX_ESHAPE, "stack: tensor %d has shape %s, the first one %s", k + 1, TEXT(t), TEXT(X));
      goto out;
    }
    AX_TRY(run_unsqueeze(q->args->in[k], q->a.stack.dim, &wide[k]));
  }
  const ax_args args = { .n_in = n, .in = wide, .a = AX_ATTRS(cat, .dim = q->a.stack.dim) };
  AX_TRY(ax_run(AX_OP_CAT, &args, results));
  q->result[0] = results[0];
out:
  for (int k = 0; k < n; k++) ax_tensor_release(wide[k]);
  ax_mfree(wide);
  return st;
}

RULE(cat)
{
  const int64_t dim = A->cat.dim;
  int64_t at = 0;
  for (int k = 0; k < c->node->n_in && c->st == AX_OK; k++) {
    const ax_meta *m = META(k);
    const bool empty = m->ndim == 1 && m->shape[0] == 0;
    if (empty && WANTS(k)) {
      give(c, k, filled(c, k, 0));
      if (c->st == AX_OK) ax_tensor_release(c->temps[--c->n_temps]);
    }
    if (empty) continue;
    if (WANTS(k)) {
      give(c, k, narrow(c, G, dim, at, m->shape[dim]));
      /* there may be more inputs than places for temporaries */
      if (c->st == AX_OK) ax_tensor_release(c->temps[--c->n_temps]);
    }
    at += m->shape[dim];
  }
}

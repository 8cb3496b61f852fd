/* Rules of COMPOSITE rows (they call other rows, which record themselves) and of HOST rows (computed here out of other ops with recording
 * off, recorded as one). */
#include "core/infer.h"
#include "core/rules.h"

#include <string.h>

#define TEXT(t) ax_shape_text((t)->ndim, (t)->shape, (char[AX_SHAPE_TEXT]){ 0 }, AX_SHAPE_TEXT)
#define X (q->args->in[0])

/* op(x, sizes or dims) with one list. */
static ax_status run_list(ax_op op, ax_tensor *x, int n, const int64_t *list, ax_tensor **out)
{
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  ax_args args = { .n_in = 1, .in = &x, .a = { .n_list = n } };
  if (n > 0) memcpy(args.a.list, list, sizeof *list * (size_t)n);
  const ax_status st = ax_run(op, &args, results);
  *out = results[0];
  return st;
}

static ax_status run_ints(ax_op op, ax_tensor *x, int64_t i0, int64_t i1, int64_t i2, int64_t i3, ax_tensor **out)
{
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  const ax_args args = { .n_in = 1, .in = &x, .a = { .i = { i0, i1, i2, i3 }, .n_list = -1 } };
  const ax_status st = ax_run(op, &args, results);
  *out = results[0];
  return st;
}

/* ---- shape */

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
  q->result[0]->is_view = false; /* nobody else sees the copy: it may be changed in place under autograd */
out:
  ax_tensor_release(copy);
  return st;
}

ax_status ax_infer_flatten(ax_infer *q)
{
  int64_t shape[AX_MAX_DIMS], joined = 1;
  const int64_t first = q->a.i[0], last = q->a.i[1];
  int n = 0;

  if (X->ndim == 0) return run_list(AX_OP_VIEW, X, 1, (int64_t[]){ 1 }, &q->result[0]);
  if (first > last)
    return ax_fail(AX_EINVAL, "flatten: start_dim %lld comes after end_dim %lld", (long long)first + 1, (long long)last + 1);
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
  if (X->ndim > 2) return ax_fail(AX_ESHAPE, "t: expected a matrix, got %s; use transpose(dim0, dim1)", TEXT(X));
  return run_ints(AX_OP_TRANSPOSE, X, 0, X->ndim - 1 < 0 ? 0 : X->ndim - 1, 0, 0, &q->result[0]);
}

/* ---- matmul: everything becomes one mm or one bmm */

/* Stacks of both: batch dims broadcast, then folded into one. */
static ax_status matmul_stacks(ax_infer *q, ax_tensor *a, ax_tensor *b, ax_tensor **out)
{
  ax_tensor *ea = NULL, *eb = NULL, *fa = NULL, *fb = NULL, *product = NULL;
  int64_t batch[AX_MAX_DIMS], sa[AX_MAX_DIMS], sb[AX_MAX_DIMS];
  int n;
  ax_status st;

  AX_TRY(ax_shape_broadcast(q->name, a->ndim - 2, a->shape, b->ndim - 2, b->shape, &n, batch));
  memcpy(sa, batch, sizeof batch);
  memcpy(sb, batch, sizeof batch);
  memcpy(sa + n, a->shape + a->ndim - 2, 2 * sizeof *sa);
  memcpy(sb + n, b->shape + b->ndim - 2, 2 * sizeof *sb);
  AX_TRY(run_list(AX_OP_EXPAND, a, n + 2, sa, &ea)); /* refuses a stack too long to count */
  AX_TRY(run_list(AX_OP_EXPAND, b, n + 2, sb, &eb));
  const int64_t count = ax_shape_numel(n, batch);
  AX_TRY(run_list(AX_OP_RESHAPE, ea, 3, (int64_t[]){ count, sa[n], sa[n + 1] }, &fa));
  AX_TRY(run_list(AX_OP_RESHAPE, eb, 3, (int64_t[]){ count, sb[n], sb[n + 1] }, &fb));
  AX_TRY(ax_run2(AX_OP_BMM, fa, fb, &product));
  sa[n + 1] = sb[n + 1];
  st = run_list(AX_OP_VIEW, product, n + 2, sa, out);
out:
  ax_tensor_release(ea), ax_tensor_release(eb), ax_tensor_release(fa), ax_tensor_release(fb), ax_tensor_release(product);
  return st;
}

/* A stack times one matrix is one tall product. */
static ax_status matmul_tall(ax_tensor *a, ax_tensor *b, ax_tensor **out)
{
  ax_tensor *rows = NULL, *product = NULL;
  int64_t shape[AX_MAX_DIMS];
  ax_status st;

  memcpy(shape, a->shape, sizeof shape);
  shape[a->ndim - 1] = b->shape[1];
  AX_TRY(run_list(AX_OP_RESHAPE, a, 2, (int64_t[]){ a->shape[a->ndim - 1] ? a->numel / a->shape[a->ndim - 1] : ax_shape_numel(a->ndim - 1, a->shape),
                                                    a->shape[a->ndim - 1] }, &rows));
  AX_TRY(ax_run2(AX_OP_MM, rows, b, &product));
  st = run_list(AX_OP_VIEW, product, a->ndim, shape, out);
out:
  ax_tensor_release(rows), ax_tensor_release(product);
  return st;
}

ax_status ax_infer_matmul(ax_infer *q)
{
  ax_tensor *a = X, *b = q->args->in[1], *wide_a = NULL, *wide_b = NULL, *product = NULL, *less = NULL;
  ax_status st = AX_OK;

  if (a->ndim == 0 || b->ndim == 0) return ax_fail(AX_ESHAPE, "matmul: expected at least one dim on both sides, got %s x %s", TEXT(a), TEXT(b));
  if (a->dtype != b->dtype)
    return ax_fail(AX_EDTYPE, "matmul: element types differ: %s %s x %s %s", ax_dtype_name((ax_dtype)a->dtype), TEXT(a),
                   ax_dtype_name((ax_dtype)b->dtype), TEXT(b));
  if (a->shape[a->ndim - 1] != b->shape[b->ndim == 1 ? 0 : b->ndim - 2])
    return ax_fail(AX_ESHAPE, "matmul: inner dimensions differ: %s x %s", TEXT(a), TEXT(b));
  if (a->ndim == 2 && b->ndim == 2) return ax_run2(AX_OP_MM, a, b, &q->result[0]);
  /* a vector is a row on the left and a column on the right; its dim goes away again */
  if (a->ndim == 1) AX_TRY(run_ints(AX_OP_UNSQUEEZE, a, 0, 0, 0, 0, &wide_a));
  if (b->ndim == 1) AX_TRY(run_ints(AX_OP_UNSQUEEZE, b, 1, 0, 0, 0, &wide_b));
  if (wide_a) a = wide_a;
  if (wide_b) b = wide_b;
  if (b->ndim == 2) AX_TRY(matmul_tall(a, b, &product));
  else AX_TRY(matmul_stacks(q, a, b, &product));
  if (wide_b) {
    AX_TRY(run_list(AX_OP_SQUEEZE, product, 1, (int64_t[]){ product->ndim - 1 }, &less));
    ax_tensor_release(product);
    product = less;
    less = NULL;
  }
  if (wide_a) {
    AX_TRY(run_list(AX_OP_SQUEEZE, product, 1, (int64_t[]){ product->ndim - (wide_b ? 1 : 2) }, &less));
    ax_tensor_release(product);
    product = less;
  }
  q->result[0] = product;
  product->is_view = false; /* of a product that nobody else sees */
  product = NULL;
out:
  ax_tensor_release(wide_a), ax_tensor_release(wide_b), ax_tensor_release(product);
  return st;
}

/* ---- joining */

ax_status ax_infer_cat(ax_infer *q)
{
  const int n = q->args->n_in;
  const int64_t dim = q->a.i[0];
  const ax_tensor *first = NULL;
  ax_tensor *joined = NULL, *slot = NULL;
  int64_t shape[AX_MAX_DIMS], at = 0, total = 0;
  ax_dtype dtype = AX_BOOL;
  ax_status st = AX_OK;

  if (n == 0) return ax_fail(AX_EINVAL, "cat: expected at least one tensor, got an empty list");
  for (int k = 0; k < n; k++) {
    const ax_tensor *t = q->args->in[k];
    dtype = k ? ax_dtype_promote(dtype, (ax_dtype)t->dtype) : (ax_dtype)t->dtype;
    if (t->ndim == 0) return ax_fail(AX_ESHAPE, "cat: tensor %d is 0-d and cannot be joined; use stack", k + 1);
    if (t->ndim == 1 && t->numel == 0) continue; /* an empty list joins with anything, as in PyTorch */
    if (!first) {
      first = t;
      if (dim >= t->ndim) return ax_fail(AX_ERANGE, "cat: dim %lld is outside 1..%d", (long long)dim + 1, t->ndim);
    }
    bool fits = t->ndim == first->ndim;
    for (int d = 0; fits && d < t->ndim; d++) fits = d == dim || t->shape[d] == first->shape[d];
    if (!fits)
      return ax_fail(AX_ESHAPE, "cat: tensor %d of shape %s does not join shape %s along dim %lld", k + 1, TEXT(t), TEXT(first), (long long)dim + 1);
    if (__builtin_add_overflow(total, t->shape[dim], &total)) return ax_fail(AX_ESHAPE, "cat: the tensors are too long together to count");
  }
  if (!first) first = q->args->in[0];
  if (dim >= first->ndim) return ax_fail(AX_ERANGE, "cat: dim %lld is outside 1..%d", (long long)dim + 1, first->ndim);
  memcpy(shape, first->shape, sizeof shape);
  shape[dim] = total;
  AX_TRY(ax_tensor_new_on(first->device, dtype, first->ndim, shape, &joined));
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
  if (!(wide = ax_calloc((size_t)n, sizeof *wide))) return AX_ENOMEM;
  for (int k = 0; k < n; k++) {
    const ax_tensor *t = q->args->in[k];
    if (!ax_same_shape(t, X->ndim, X->shape)) {
      st = ax_fail(AX_ESHAPE, "stack: tensor %d has shape %s, the first one %s", k + 1, TEXT(t), TEXT(X));
      goto out;
    }
    AX_TRY(run_ints(AX_OP_UNSQUEEZE, q->args->in[k], q->a.i[0], 0, 0, 0, &wide[k]));
  }
  const ax_args args = { .n_in = n, .in = wide, .a = { .i = { q->a.i[0] }, .n_list = -1 } };
  AX_TRY(ax_run(AX_OP_CAT, &args, results));
  q->result[0] = results[0];
out:
  for (int k = 0; k < n; k++) ax_tensor_release(wide[k]);
  ax_mfree(wide);
  return st;
}

/* ---- gradients of views: zeros with g somewhere inside */

typedef void (*place_fn)(const ax_tensor *whole, const ax_infer *q, int64_t *strides, int64_t *offset);

static ax_status zeros_with(ax_infer *q, place_fn where)
{
  ax_tensor *g = X, *whole = NULL, *place = NULL;
  int64_t strides[AX_MAX_DIMS], offset = 0;
  ax_status st;

  AX_TRY(ax_tensor_new_on(g->device, (ax_dtype)g->dtype, q->a.n_list, q->a.list, &whole));
  AX_TRY(ax_fill(whole, 0));
  where(whole, q, strides, &offset);
  AX_TRY(ax_tensor_view(whole, g->ndim, g->shape, strides, offset, &place));
  AX_TRY(ax_copy(place, g));
  q->result[0] = whole;
  whole = NULL;
out:
  ax_tensor_release(place);
  ax_tensor_release(whole);
  return st;
}

static void slice_strides(const ax_tensor *whole, const ax_infer *q, int64_t *strides, int64_t *offset)
{
  memcpy(strides, whole->strides, sizeof *strides * AX_MAX_DIMS);
  *offset = q->args->in[0]->numel ? q->a.i[1] * whole->strides[q->a.i[0]] : 0;
  if (q->args->in[0]->shape[q->a.i[0]] > 1) strides[q->a.i[0]] *= q->a.i[2];
}

static void diagonal_strides(const ax_tensor *whole, const ax_infer *q, int64_t *strides, int64_t *offset)
{
  strides[0] = whole->strides[0] + whole->strides[1];
}

ax_status ax_infer_slice_backward(ax_infer *q) { return zeros_with(q, slice_strides); }
ax_status ax_infer_diagonal_backward(ax_infer *q) { return zeros_with(q, diagonal_strides); }

/* ---- masked_select, dropout */

ax_status ax_infer_masked_select(ax_infer *q)
{
  ax_tensor *mask = q->args->in[1], *count = NULL, *wide_mask = NULL, *flat_mask = NULL, *wide = NULL, *flat = NULL, *index = NULL;
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  int64_t shape[AX_MAX_DIMS], n;
  int ndim;
  ax_status st;

  if (mask->dtype != AX_BOOL)
    return ax_fail(AX_EDTYPE, "masked_select: mask must be bool, got %s", ax_dtype_name((ax_dtype)mask->dtype));
  AX_TRY(ax_shape_broadcast(q->name, X->ndim, X->shape, mask->ndim, mask->shape, &ndim, shape));
  AX_TRY(run_list(AX_OP_EXPAND, X, ndim, shape, &wide));
  AX_TRY(run_list(AX_OP_EXPAND, mask, ndim, shape, &wide_mask));
  AX_TRY(run_list(AX_OP_RESHAPE, wide, 1, (int64_t[]){ -1 + (wide->numel == 0) }, &flat));
  AX_TRY(run_list(AX_OP_RESHAPE, wide_mask, 1, (int64_t[]){ -1 + (wide->numel == 0) }, &flat_mask));
  AX_TRY(run_list(AX_OP_SUM, flat_mask, -1, NULL, &count));
  n = ax_load_int(AX_I64, ax_data(count), 0);
  AX_TRY(ax_tensor_new_on(X->device, AX_I64, 1, &n, &index));
  AX_TRY(ax_run_into(AX_OP_MASK_INDICES, &(ax_args){ .n_in = 1, .in = &flat_mask, .a = { .n_list = -1 } }, index));
  AX_TRY(ax_run(AX_OP_INDEX_SELECT, &(ax_args){ .n_in = 2, .in = (ax_tensor *[]){ flat, index }, .a = { .n_list = -1 } }, results));
  q->result[0] = results[0];
out:
  ax_tensor_release(count), ax_tensor_release(wide_mask), ax_tensor_release(flat_mask);
  ax_tensor_release(wide), ax_tensor_release(flat), ax_tensor_release(index);
  return st;
}

ax_status ax_infer_dropout(ax_infer *q)
{
  const double p = q->a.f[0];
  ax_args args = *q->args;
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  ax_status st;

  if (!(p >= 0 && p <= 1)) return ax_fail(AX_ERANGE, "dropout: p must be within 0..1, got %g", p);
  if (!q->a.i[0] || p == 0) {
    q->result[0] = ax_tensor_retain(X);
    return AX_OK;
  }
  ax_random_draw(q->a.gen, true, &args.a);
  st = ax_run(AX_OP_DROPOUT_APPLY, &args, results);
  q->result[0] = results[0];
  return st;
}

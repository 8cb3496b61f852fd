/* Rules and gradients of rows that turn, repeat, cut or surround elements (the rest of
 * shape.def). */
#include "core/ops/rule.h"

#define X INPUT(0)

/* ---- put together from views */

ax_status ax_infer_unflatten(ax_infer *q)
{
  const int64_t dim = q->a.unflatten.dim;
  const int n = q->a.n_list;
  int64_t shape[AX_MAX_DIMS], known = 1;
  int unknown = -1, at = 0;
  char text[AX_SHAPE_TEXT];

  if (X->ndim == 0) return ax_fail(AX_ESHAPE, "unflatten: a 0-d tensor has no dim to divide");
  if (n < 1) return ax_fail(AX_EINVAL, "unflatten: expected the sizes of the new dims");
  if (X->ndim - 1 + n > AX_MAX_DIMS)
    return ax_fail(AX_ESHAPE, "unflatten: the result would have %d dims, at most %d are there",
                   X->ndim - 1 + n, AX_MAX_DIMS);
  for (int d = 0; d < X->ndim; d++) {
    if (d != dim) {
      shape[at++] = X->shape[d];
      continue;
    }
    for (int k = 0; k < n; k++) {
      const int64_t s = q->a.list[k];
      if (s == -1 && unknown < 0) unknown = at;
      else if (s < 0 || __builtin_mul_overflow(known, s, &known)) goto misfit;
      shape[at++] = s;
    }
  }
  if (unknown >= 0) {
    if (known == 0 || X->shape[dim] % known) goto misfit;
    shape[unknown] = X->shape[dim] / known;
  } else if (known != X->shape[dim]) goto misfit;
  return run_list(AX_OP_VIEW, X, at, shape, &q->result[0]);
misfit:
  return ax_fail(AX_ESHAPE, "unflatten: sizes %s do not make up dim %lld of size %lld (shape %s)",
                 ax_shape_text(n, q->a.list, text, sizeof text), (long long)dim + 1, (long long)X->shape[dim],
                 TEXT(X));
}

ax_status ax_infer_movedim(ax_infer *q)
{
  const int n = q->a.n_list;
  const int64_t *to = q->a.movedim.destination;
  int64_t order[AX_MAX_DIMS];
  uint32_t taken = 0, moved = 0;

  if (n != q->a.movedim.n_destination)
    return ax_fail(AX_EINVAL, "movedim: %d dims and %lld places for them", n,
                   (long long)q->a.movedim.n_destination);
  for (int k = 0; k < n; k++) {
    if (moved >> q->a.list[k] & 1)
      return ax_fail(AX_EINVAL, "movedim: source names dim %lld twice", (long long)q->a.list[k] + 1);
    if (taken >> to[k] & 1)
      return ax_fail(AX_EINVAL, "movedim: destination names dim %lld twice", (long long)to[k] + 1);
    moved |= 1u << q->a.list[k];
    taken |= 1u << to[k];
    order[to[k]] = q->a.list[k];
  }
  for (int d = 0, from = 0; d < X->ndim; d++) {
    if (taken >> d & 1) continue;
    while (moved >> from & 1) from++;
    order[d] = from++;
  }
  return run_list(AX_OP_PERMUTE, X, X->ndim, order, &q->result[0]);
}

ax_status ax_infer_as_other(ax_infer *q)
{
  const ax_tensor *other = INPUT(1);
  const ax_op op = q->op == AX_OP_EXPAND_AS ? AX_OP_EXPAND
                   : q->op == AX_OP_VIEW_AS ? AX_OP_VIEW
                                            : AX_OP_RESHAPE;
  return run_list(op, X, other->ndim, other->shape, &q->result[0]);
}

/* x on a diagonal of zeros: what the gradient of a diagonal is. */
static ax_status on_diagonal(ax_infer *q, ax_tensor *x, int64_t offset, int64_t d1, int64_t d2)
{
  const int64_t side = x->shape[x->ndim - 1] + (offset < 0 ? -offset : offset);
  ax_args args = { .n_in = 1,
                   .in = &x,
                   .a = { .diagonal = { .offset = offset, .dim1 = d1, .dim2 = d2 }, .n_list = x->ndim + 1 } };
  int from = 0;

  if (x->ndim == AX_MAX_DIMS)
    return ax_fail(AX_ESHAPE, "%s: shape %s has all the %d dims there can be", q->name, TEXT(x), AX_MAX_DIMS);
  if (d1 == d2) return ax_fail(AX_EINVAL, "%s: dim1 and dim2 are both %lld", q->name, (long long)d1 + 1);
  for (int d = 0; d <= x->ndim; d++) args.a.list[d] = d == d1 || d == d2 ? side : x->shape[from++];
  return ax_run(AX_OP_DIAGONAL_BACKWARD, &args, q->result);
}

ax_status ax_infer_diag(ax_infer *q)
{
  ax_tensor *view = NULL;
  ax_status st;

  if (X->ndim == 1) return on_diagonal(q, X, q->a.diag.diagonal, 0, 1);
  if (X->ndim != 2) return ax_fail(AX_ESHAPE, "diag: expected a vector or a matrix, got %s", TEXT(X));
  AX_TRY(run_with(AX_OP_DIAGONAL, X, &AX_ATTRS(diagonal, .offset = q->a.diag.diagonal, .dim1 = 0, .dim2 = 1),
                  &view));
  st = ax_run1(AX_OP_CLONE, view, &q->result[0]);
out:
  ax_tensor_release(view);
  return st;
}

ax_status ax_infer_diag_embed(ax_infer *q)
{
  if (X->ndim == 0) return ax_fail(AX_ESHAPE, "diag_embed: a 0-d tensor has no dim to put on a diagonal");
  return on_diagonal(q, X, q->a.diag_embed.offset, q->a.diag_embed.dim1, q->a.diag_embed.dim2);
}

/* ---- flip, roll */

ax_status ax_infer_flip(ax_infer *q)
{
  int64_t strides[AX_MAX_DIMS], offset = X->offset;
  ax_tensor *backward = NULL;
  uint32_t seen = 0;
  ax_status st;

  memcpy(strides, X->strides, sizeof strides);
  for (int k = 0; k < q->a.n_list; k++) {
    const int64_t d = q->a.list[k];
    if (seen >> d & 1) return ax_fail(AX_EINVAL, "flip: dim %lld is listed twice", (long long)d + 1);
    seen |= 1u << d;
    if (X->ndim == 0 || X->shape[d] == 0) continue;
    offset += (X->shape[d] - 1) * strides[d];
    strides[d] = -strides[d];
  }
  /* steps backward stay in here: a copy reads them, and no tensor that others see has them */
  AX_TRY(ax_tensor_view(X, X->ndim, X->shape, strides, offset, &backward));
  st = ax_run1(AX_OP_CLONE, backward, &q->result[0]);
out:
  ax_tensor_release(backward);
  return st;
}

RULE(flip) { give(c, 0, with_list(c, AX_OP_FLIP, G, A->n_list, A->list)); }

static int64_t modulo(int64_t v, int64_t n)
{
  const int64_t r = v % n;
  return r < 0 ? r + n : r;
}

/* Copies x into out, rolled.  Each dim with a shift is cut into two parts, and each combination of
 * parts is copied as one block. */
static ax_status roll_parts(ax_tensor *out, ax_tensor *x, const int64_t *shift)
{
  int cut[AX_MAX_DIMS], cuts = 0;
  ax_status st = AX_OK;

  for (int d = 0; d < x->ndim; d++)
    if (shift[d]) cut[cuts++] = d;
  for (int part = 0; st == AX_OK && part < 1 << cuts; part++) {
    ax_tensor *from = NULL, *to = NULL;
    int64_t shape[AX_MAX_DIMS], at_x = x->offset, at_out = out->offset;
    memcpy(shape, x->shape, sizeof shape);
    for (int k = 0; k < cuts; k++) {
      const int d = cut[k];
      const int64_t s = shift[d], n = x->shape[d];
      /* 0: the first n - s positions move up by s; 1: the last s come to the start */
      shape[d] = part >> k & 1 ? s : n - s;
      at_x += part >> k & 1 ? (n - s) * x->strides[d] : 0;
      at_out += part >> k & 1 ? 0 : s * out->strides[d];
    }
    st = ax_tensor_view(x, x->ndim, shape, x->strides, at_x, &from);
    if (st == AX_OK) st = ax_tensor_view(out, out->ndim, shape, out->strides, at_out, &to);
    if (st == AX_OK) st = ax_copy(to, from);
    ax_tensor_release(from), ax_tensor_release(to);
  }
  return st;
}

ax_status ax_infer_roll(ax_infer *q)
{
  const int n_dims = (int)q->a.roll.n_dims;
  const int64_t *dims = q->a.roll.dims;
  int64_t shift[AX_MAX_DIMS] = { 0 };
  ax_tensor *x = NULL, *flat = NULL, *out = NULL;
  ax_status st;

  if (q->a.n_list < 1) return ax_fail(AX_EINVAL, "roll: expected a shift");
  if (n_dims < 0 ? q->a.n_list != 1 : q->a.n_list != n_dims)
    return ax_fail(AX_EINVAL, "roll: %d shifts and %d dims", q->a.n_list, n_dims < 0 ? 0 : n_dims);
  AX_TRY(ax_tensor_new_on(X->device, (ax_dtype)X->dtype, X->ndim, X->shape, &out));
  if (X->numel == 0) goto done;
  if (n_dims < 0 || X->ndim == 0) { /* all elements as one row */
    AX_TRY(ax_contiguous(X, &x));
    AX_TRY(ax_tensor_view(x, 1, &x->numel, (int64_t[]){ 1 }, x->offset, &flat));
    ax_tensor_release(x);
    x = flat;
    AX_TRY(ax_tensor_view(out, 1, &out->numel, (int64_t[]){ 1 }, out->offset, &flat));
    shift[0] = modulo(q->a.list[0], x->numel);
    AX_TRY(roll_parts(flat, x, shift));
  } else {
    for (int k = 0; k < n_dims; k++)
      shift[dims[k]] = modulo(shift[dims[k]] + modulo(q->a.list[k], X->shape[dims[k]]), X->shape[dims[k]]);
    AX_TRY(roll_parts(out, X, shift));
  }
done:
  q->result[0] = out;
  out = NULL;
out:
  ax_tensor_release(x), ax_tensor_release(out);
  if (flat != x) ax_tensor_release(flat);
  return st;
}

RULE(roll)
{
  ax_attrs back = *A;
  for (int k = 0; k < back.n_list; k++) back.list[k] = -back.list[k];
  give(c, 0, call(c, AX_OP_ROLL, 1, &G, &back));
}

/* ---- tile, repeat_interleave */

ax_status ax_infer_tile(ax_infer *q)
{
  const int n = q->a.n_list < 0 ? 0 : q->a.n_list, ndim = n > X->ndim ? n : X->ndim, lead = ndim - X->ndim;
  int64_t shape[AX_MAX_DIMS], whole[AX_MAX_DIMS], numel;
  size_t bytes;
  char text[AX_SHAPE_TEXT];

  for (int d = 0; d < ndim; d++) { /* as many repeats as dims, for the kernel */
    const int64_t r = d < ndim - n ? 1 : q->args->a.list[d - (ndim - n)],
                  s = d < lead ? 1 : X->shape[d - lead];
    if (r < 0)
      return ax_fail(AX_ERANGE, "tile: a dim cannot be repeated %lld times (repeats %s)", (long long)r,
                     ax_shape_text(n, q->args->a.list, text, sizeof text));
    if (__builtin_mul_overflow(s, r, &shape[d]))
      return ax_fail(AX_ESHAPE, "tile: %s times %s is too much to count", TEXT(X),
                     ax_shape_text(n, q->args->a.list, text, sizeof text));
    whole[d] = r;
  }
  const ax_status st = ax_shape_checked_bytes(ndim, shape, ax_itemsize(X), &numel, &bytes);
  if (st != AX_OK) return st;
  memcpy(q->a.list, whole, sizeof whole);
  q->a.n_list = ndim;
  q->contiguous = 1;
  out_like(q, 0, (ax_dtype)X->dtype, ndim, shape);
  return AX_OK;
}

/* Each repeated dim is taken apart into (repeats, size), and the repeats are added up. */
RULE(tile)
{
  const ax_meta *m = META(0);
  const int ndim = A->n_list, lead = ndim - m->ndim;
  int64_t shape[AX_MAX_DIMS];
  ax_arg g = G;

  for (int d = ndim - 1; d >= 0 && c->st == AX_OK; d--) {
    if (A->list[d] == 1) continue;
    int64_t outer = 1, inner = 1;
    const int64_t size = d < lead ? 1 : m->shape[d - lead];
    for (int e = 0; e < d; e++) outer *= A->list[e] * (e < lead ? 1 : m->shape[e - lead]);
    for (int e = d + 1; e < ndim; e++) inner *= e < lead ? 1 : m->shape[e - lead];
    g = sum_dim(c, with_list(c, AX_OP_RESHAPE, g, 4, (int64_t[]){ outer, A->list[d], size, inner }), 1);
  }
  memcpy(shape, m->shape, sizeof shape);
  give(c, 0, with_list(c, AX_OP_RESHAPE, g, m->ndim, shape));
}

/* repeats[k] times k, as int64, on the CPU. */
static ax_status repeated_positions(const ax_infer *q, const ax_tensor *repeats, int64_t size,
                                    ax_tensor **out)
{
  const int64_t n = repeats->numel, step = repeats->ndim && n > 1 ? repeats->strides[0] : 0;
  const void *data = ax_data(repeats);
  const ax_dtype d = (ax_dtype)repeats->dtype;
  int64_t total = 0, at = 0;

  if (d != AX_I64 && d != AX_I32)
    return ax_fail(AX_EDTYPE, "repeat_interleave: repeats must be int64 or int32, got %s", TYPE(repeats));
  if (repeats->ndim > 1 || (n != size && n != 1))
    return ax_fail(AX_ESHAPE, "repeat_interleave: repeats must have one entry, or %lld, got %s",
                   (long long)size, TEXT(repeats));
  for (int64_t k = 0; k < size; k++) {
    const int64_t r = ax_load_int(d, data, k * step);
    if (r < 0)
      return ax_fail(AX_ERANGE, "repeat_interleave: repeats[%lld] is %lld (counted from 0)", (long long)k,
                     (long long)r);
    if (__builtin_add_overflow(total, r, &total))
      return ax_fail(AX_ESHAPE, "repeat_interleave: the repeats are too many to count");
  }
  const ax_status st = ax_tensor_new(AX_I64, 1, &total, out);
  if (st != AX_OK) return st;
  int64_t *to = ax_data(*out);
  for (int64_t k = 0; k < size; k++)
    for (int64_t r = ax_load_int(d, data, k * step); r > 0; r--) to[at++] = k;
  return AX_OK;
}

static ax_status repeat_by_index(const ax_infer *q, ax_tensor *x, int64_t dim, ax_tensor *repeats,
                                 ax_tensor **out)
{
  ax_tensor *here = NULL, *index = NULL, *there = NULL, *results[AX_MAX_OUT] = { 0 };
  ax_status st;

  AX_TRY(bring(repeats, (ax_device){ AX_CPU, 0 }, &here));
  AX_TRY(repeated_positions(q, here, x->shape[dim], &index));
  AX_TRY(bring(index, x->device, &there));
  AX_TRY(ax_run(AX_OP_INDEX_SELECT,
                &(ax_args){
                    .n_in = 2, .in = (ax_tensor *[]){ x, there }, .a = AX_ATTRS(index_select, .dim = dim) },
                results));
  *out = results[0];
out:
  ax_tensor_release(here), ax_tensor_release(index), ax_tensor_release(there);
  return st;
}

ax_status ax_infer_repeat_interleave(ax_infer *q)
{
  ax_tensor *x = NULL, *wide = NULL, *apart = NULL;
  int64_t shape[AX_MAX_DIMS], dim = q->a.repeat_interleave.dim;
  ax_status st;

  if (dim == AX_NO_DIM || X->ndim == 0) {
    AX_TRY(run_list(AX_OP_RESHAPE, X, 1, &X->numel, &x));
    dim = 0;
  } else x = ax_tensor_retain(X);
  if (INPUT(1)) {
    st = repeat_by_index(q, x, dim, INPUT(1), &q->result[0]);
    goto out;
  }
  const double r = q->args->num[1];
  if (!(r >= 0) || r > 0x1p53 || r != floor(r) || q->args->booleans) {
    st = ax_fail(AX_ERANGE, "repeat_interleave: repeats must be an integer from 0 on, got %g", r);
    goto out;
  }
  if (x->ndim == AX_MAX_DIMS) { /* no room for a dim of repeats */
    AX_TRY(ax_tensor_scalar(AX_I64, r, &wide));
    st = repeat_by_index(q, x, dim, wide, &q->result[0]);
    goto out;
  }
  AX_TRY(run_unsqueeze(x, dim + 1, &apart));
  memcpy(shape, apart->shape, sizeof shape);
  shape[dim + 1] = (int64_t)r;
  AX_TRY(run_list(AX_OP_EXPAND, apart, apart->ndim, shape, &wide));
  memcpy(shape, x->shape, sizeof shape);
  if (__builtin_mul_overflow(shape[dim], (int64_t)r, &shape[dim])) {
    st = ax_fail(AX_ESHAPE, "repeat_interleave: %s times %g is too much to count", TEXT(x), r);
    goto out;
  }
  AX_TRY(run_list(AX_OP_RESHAPE, wide, x->ndim, shape, &q->result[0]));
  if (q->result[0]->storage == X->storage) { /* once each: still a copy, as in every other case */
    ax_tensor *view = q->result[0];
    q->result[0] = NULL;
    st = ax_run1(AX_OP_CLONE, view, &q->result[0]);
    ax_tensor_release(view);
  }
out:
  ax_tensor_release(x), ax_tensor_release(wide), ax_tensor_release(apart);
  return st;
}

/* ---- tril, triu */

ax_status ax_infer_triangle(ax_infer *q)
{
  if (X->ndim < 2) return ax_fail(AX_ESHAPE, "%s: expected matrices, got %s", q->name, TEXT(X));
  q->contiguous = 1;
  out_like(q, 0, (ax_dtype)X->dtype, X->ndim, X->shape);
  return AX_OK;
}

RULE(triangle) { give(c, 0, call1(c, c->node->op, G, &(ax_attrs){ .triangle = A->triangle, .n_list = -1 })); }

/* ---- rows with any number of results: ax_run has no place for them */

ax_status ax_infer_parts(ax_infer *q)
{
  return ax_fail(AX_EINVAL, "%s: has any number of results; C calls ax_split_into or ax_unbind_into",
                 q->name);
}

ax_status ax_infer_meshgrid(ax_infer *q)
{
  return ax_fail(AX_EINVAL, "meshgrid: has any number of results; expand each tensor");
}

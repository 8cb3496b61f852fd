/* Rules and gradients of view rows: each rule makes a tensor over the same storage. */
#include "core/ops/rule.h"

#define X INPUT(0)

static const char *list_text(const ax_infer *q, char *buf)
{
  return ax_shape_text(q->a.n_list, q->a.list, buf, AX_SHAPE_TEXT);
}

/* Shape from a list in which one size may be -1. */
ax_status ax_resolve_shape(const char *name, const ax_tensor *x, int n, const int64_t *list, int64_t *shape)
{
  char text[AX_SHAPE_TEXT];
  int64_t known = 1, numel;
  size_t bytes;
  int unknown = -1;

  if (n < 0) return ax_fail(AX_EINVAL, "%s: expected the sizes of the new shape", name);
  for (int d = 0; d < n; d++) {
    shape[d] = list[d];
    if (list[d] == -1) {
      if (unknown >= 0)
        return ax_fail(AX_EINVAL, "%s: only one size can be -1, got %s", name,
                       ax_shape_text(n, list, text, sizeof text));
      unknown = d;
    } else if (list[d] < 0 || __builtin_mul_overflow(known, list[d], &known))
      return ax_fail(AX_ERANGE, "%s: %s is not a shape", name, ax_shape_text(n, list, text, sizeof text));
  }
  if (unknown >= 0) {
    if (known == 0 || x->numel % known != 0) goto misfit;
    shape[unknown] = x->numel / known;
  } else if (known != x->numel) goto misfit;
  return ax_shape_checked_bytes(n, shape, ax_itemsize(x), &numel, &bytes);
misfit:
  return ax_fail(AX_ESHAPE, "%s: shape %s has %lld elements and does not fit %s", name, TEXT(x),
                 (long long)x->numel, ax_shape_text(n, list, text, sizeof text));
}

/* The order of dims in a result's memory is ours to choose: convolutions and what follows them have
 * their channels innermost, and long rows of a linear layer begin on 16 bytes.  Scripts that were
 * written for contiguous results call y:view(n, -1).  As long as nothing else refers to the memory,
 * y can be laid out contiguously, and the result is then a view. */
static bool own_layout(const ax_tensor *t)
{
  return !t->shared && t->view == AX_NO_VIEW && t->version == &t->storage->version &&
         (ax_strides_are_dense(t->ndim, t->shape, t->strides) ||
          ax_strides_are_padded(t->ndim, t->shape, t->strides));
}

ax_status ax_infer_view(ax_infer *q)
{
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS];
  char text[AX_SHAPE_TEXT];
  ax_status st = ax_resolve_shape(q->name, X, q->a.n_list, q->a.list, shape);
  if (st != AX_OK) return st;
  if (!ax_strides_for_view(X->ndim, X->shape, X->strides, q->a.n_list, shape, strides)) {
    if (!own_layout(X))
      return ax_fail(
          AX_ESHAPE,
          "view: the elements of shape %s with strides %s cannot be seen as %s without a copy; use reshape",
          TEXT(X), ax_shape_text(X->ndim, X->strides, (char[AX_SHAPE_TEXT]){ 0 }, AX_SHAPE_TEXT),
          list_text(q, text));
    if ((st = ax_tensor_unshare(X)) != AX_OK) return st;
    ax_strides_for_view(X->ndim, X->shape, X->strides, q->a.n_list, shape, strides);
  }
  return ax_tensor_view(X, q->a.n_list, shape, strides, X->offset, &q->result[0]);
}

ax_status ax_infer_permute(ax_infer *q)
{
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS];
  uint32_t seen = 0;
  if (q->a.n_list != X->ndim)
    return ax_fail(AX_EINVAL, "permute: shape %s needs %d dims in their new order, got %d", TEXT(X), X->ndim,
                   q->a.n_list < 0 ? 0 : q->a.n_list);
  for (int d = 0; d < X->ndim; d++) {
    const int64_t from = q->a.list[d];
    if (from < 0 || from >= X->ndim)
      return ax_fail(AX_ERANGE, "permute: dim %lld is outside 1..%d", (long long)from + 1, X->ndim);
    if (seen >> from & 1) return ax_fail(AX_EINVAL, "permute: dim %lld is listed twice", (long long)from + 1);
    seen |= 1u << from;
    shape[d] = X->shape[from];
    strides[d] = X->strides[from];
  }
  return ax_tensor_view(X, X->ndim, shape, strides, X->offset, &q->result[0]);
}

ax_status ax_infer_transpose(ax_infer *q)
{
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS];
  const int64_t a = q->a.transpose.dim0, b = q->a.transpose.dim1;
  if (X->ndim == 0) return ax_tensor_view(X, 0, NULL, NULL, X->offset, &q->result[0]);
  memcpy(shape, X->shape, sizeof shape);
  memcpy(strides, X->strides, sizeof strides);
  shape[a] = X->shape[b], shape[b] = X->shape[a];
  strides[a] = X->strides[b], strides[b] = X->strides[a];
  return ax_tensor_view(X, X->ndim, shape, strides, X->offset, &q->result[0]);
}

ax_status ax_infer_expand(ax_infer *q)
{
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS];
  char text[AX_SHAPE_TEXT];
  const int n = q->a.n_list, lead = n - X->ndim;
  int64_t numel;
  size_t bytes;
  ax_status st;

  if (lead < 0)
    return ax_fail(AX_ESHAPE, "expand: %s has fewer dims than shape %s",
                   n < 0 ? "nothing" : list_text(q, text), TEXT(X));
  for (int d = 0; d < n; d++) {
    const int64_t want = q->a.list[d], have = d < lead ? 1 : X->shape[d - lead];
    if ((want < 0 && !(want == -1 && d >= lead)) || (want >= 0 && have != want && have != 1))
      return ax_fail(AX_ESHAPE, "expand: shape %s does not expand to %s", TEXT(X), list_text(q, text));
    shape[d] = want == -1 ? have : want;
    strides[d] = d < lead || (have == 1 && shape[d] != 1) ? 0 : X->strides[d - lead];
  }
  if ((st = ax_shape_checked_bytes(n, shape, ax_itemsize(X), &numel, &bytes)) != AX_OK) return st;
  return ax_tensor_view(X, n, shape, strides, X->offset, &q->result[0]);
}

ax_status ax_infer_squeeze(ax_infer *q)
{
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS];
  uint32_t seen = 0;
  int n = 0;
  for (int k = 0; k < q->a.n_list; k++) {
    const int64_t d = q->a.list[k];
    if (d < 0 || d >= (X->ndim ? X->ndim : 1))
      return ax_fail(AX_ERANGE, "squeeze: dim %lld is outside 1..%d", (long long)d + 1, X->ndim);
    if (seen >> d & 1) return ax_fail(AX_EINVAL, "squeeze: dim %lld is listed twice", (long long)d + 1);
    seen |= 1u << d;
  }
  for (int d = 0; d < X->ndim; d++) {
    bool drop = X->shape[d] == 1;
    if (q->a.n_list >= 0) drop = drop && seen >> d & 1;
    if (drop) continue;
    shape[n] = X->shape[d];
    strides[n++] = X->strides[d];
  }
  return ax_tensor_view(X, n, shape, strides, X->offset, &q->result[0]);
}

ax_status ax_infer_unsqueeze(ax_infer *q)
{
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS];
  const int at = (int)q->a.unsqueeze.dim;
  if (X->ndim == AX_MAX_DIMS)
    return ax_fail(AX_ESHAPE, "unsqueeze: shape %s has all the %d dims there can be", TEXT(X), AX_MAX_DIMS);
  for (int d = 0, from = 0; d <= X->ndim; d++) {
    shape[d] = d == at ? 1 : X->shape[from];
    strides[d] = d == at ? (from < X->ndim ? X->strides[from] * X->shape[from] : 1) : X->strides[from];
    from += d != at;
  }
  return ax_tensor_view(X, X->ndim + 1, shape, strides, X->offset, &q->result[0]);
}

static ax_status check_position(const ax_infer *q, int64_t dim, int64_t at)
{
  if (X->ndim == 0) return ax_fail(AX_ERANGE, "%s: a 0-d tensor has no positions", q->name);
  if (at < 0 || at >= X->shape[dim])
    return ax_fail(AX_ERANGE, "%s: position %lld of dim %lld is outside 1..%lld (shape %s)", q->name,
                   (long long)at + 1, (long long)dim + 1, (long long)X->shape[dim], TEXT(X));
  return AX_OK;
}

ax_status ax_infer_select(ax_infer *q)
{
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS];
  const int64_t dim = q->a.select.dim, at = q->a.select.index;
  int n = 0;
  const ax_status st = check_position(q, dim, at);
  if (st != AX_OK) return st;
  for (int d = 0; d < X->ndim; d++)
    if (d != dim) {
      shape[n] = X->shape[d];
      strides[n++] = X->strides[d];
    }
  return ax_tensor_view(X, n, shape, strides, X->offset + at * X->strides[dim], &q->result[0]);
}

static ax_status stepped(ax_infer *q, int64_t step)
{
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS];
  const int64_t dim = q->a.narrow.dim, start = q->a.narrow.start, length = q->a.narrow.length;
  int64_t last;

  if (X->ndim == 0) return ax_fail(AX_ERANGE, "%s: a 0-d tensor has no positions", q->name);
  if (step < 1) return ax_fail(AX_ERANGE, "%s: step must be at least 1, got %lld", q->name, (long long)step);
  if (length < 0)
    return ax_fail(AX_ERANGE, "%s: length must not be negative, got %lld", q->name, (long long)length);
  if (start < 0 || start > X->shape[dim] ||
      (length > 0 && (__builtin_mul_overflow(length - 1, step, &last) || last >= X->shape[dim] - start)))
    return ax_fail(AX_ERANGE, "%s: %lld positions from %lld on do not fit dim %lld of size %lld (shape %s)",
                   q->name, (long long)length, (long long)start + 1, (long long)dim + 1,
                   (long long)X->shape[dim], TEXT(X));
  memcpy(shape, X->shape, sizeof shape);
  memcpy(strides, X->strides, sizeof strides);
  shape[dim] = length;
  /* else a step of any size goes nowhere, and the product might overflow */
  if (length > 1) strides[dim] *= step;
  return ax_tensor_view(X, X->ndim, shape, strides, X->offset + (length ? start * X->strides[dim] : 0),
                        &q->result[0]);
}

ax_status ax_infer_narrow(ax_infer *q) { return stepped(q, 1); }
ax_status ax_infer_slice(ax_infer *q) { return stepped(q, q->a.slice.step); }

/* Finds the length and the first element of the diagonal at `offset` over dims d1 and d2.  ESHAPE,
 * ERANGE where there is none. */
static ax_status diagonal_of(const ax_infer *q, const ax_tensor *x, int64_t *length, int64_t *start)
{
  const int64_t offset = q->a.diagonal.offset, d1 = q->a.diagonal.dim1, d2 = q->a.diagonal.dim2;
  if (x->ndim < 2 || d1 >= x->ndim || d2 >= x->ndim)
    return ax_fail(AX_ESHAPE, "%s: expected at least two dims, and dims %lld and %lld among them, got %s",
                   q->name, (long long)d1 + 1, (long long)d2 + 1, TEXT(x));
  if (d1 == d2) return ax_fail(AX_EINVAL, "%s: dim1 and dim2 are both %lld", q->name, (long long)d1 + 1);
  const int64_t rows = x->shape[d1] + (offset < 0 ? offset : 0),
                cols = x->shape[d2] - (offset > 0 ? offset : 0);
  *length = rows < cols ? rows : cols;
  if (*length <= 0) *length = *start = 0;
  else *start = offset < 0 ? -offset * x->strides[d1] : offset * x->strides[d2];
  return AX_OK;
}

ax_status ax_infer_diagonal(ax_infer *q)
{
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS], start;
  const int64_t d1 = q->a.diagonal.dim1, d2 = q->a.diagonal.dim2;
  int n = 0;
  const ax_status st = diagonal_of(q, X, &shape[AX_MAX_DIMS - 1], &start);
  if (st != AX_OK) return st;
  const int64_t length = shape[AX_MAX_DIMS - 1];
  for (int d = 0; d < X->ndim; d++)
    if (d != d1 && d != d2) {
      shape[n] = X->shape[d];
      strides[n++] = X->strides[d];
    }
  shape[n] = length;
  strides[n++] = X->strides[d1] + X->strides[d2];
  return ax_tensor_view(X, n, shape, strides, X->offset + start, &q->result[0]);
}

ax_status ax_infer_unfold(ax_infer *q)
{
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS];
  const int64_t dim = q->a.unfold.dim, size = q->a.unfold.size, step = q->a.unfold.step;
  const bool none = X->ndim == 0; /* is seen as one dim of one position */
  const int64_t have = none ? 1 : X->shape[dim];

  if (X->ndim == AX_MAX_DIMS)
    return ax_fail(AX_ESHAPE, "unfold: shape %s has all the %d dims there can be", TEXT(X), AX_MAX_DIMS);
  if (step < 1) return ax_fail(AX_ERANGE, "unfold: step must be at least 1, got %lld", (long long)step);
  if (size < 0 || size > have)
    return ax_fail(AX_ERANGE, "unfold: a window of %lld does not fit dim %lld of size %lld (shape %s)",
                   (long long)size, (long long)dim + 1, (long long)have, TEXT(X));
  memcpy(shape, X->shape, sizeof shape);
  memcpy(strides, X->strides, sizeof strides);
  if (none) return ax_tensor_view(X, 1, &size, (int64_t[]){ 1 }, X->offset, &q->result[0]);
  shape[dim] = (have - size) / step + 1;
  if (shape[dim] > 1) strides[dim] *= step;
  shape[X->ndim] = size;
  strides[X->ndim] = X->strides[dim];
  return ax_tensor_view(X, X->ndim + 1, shape, strides, X->offset, &q->result[0]);
}

/* ---- gradients: zeros with g somewhere inside */

typedef ax_status (*place_fn)(const ax_tensor *whole, const ax_infer *q, int64_t *strides, int64_t *offset);

static ax_status zeros_with(ax_infer *q, place_fn where)
{
  ax_tensor *g = X, *whole = NULL, *place = NULL;
  int64_t strides[AX_MAX_DIMS], offset = 0;
  ax_status st;

  AX_TRY(ax_tensor_zeros_on(g->device, (ax_dtype)g->dtype, q->a.n_list, q->a.list, &whole));
  AX_TRY(where(whole, q, strides, &offset));
  AX_TRY(ax_tensor_view(whole, g->ndim, g->shape, strides, offset, &place));
  AX_TRY(ax_copy(place, g));
  q->result[0] = whole;
  whole = NULL;
out:
  ax_tensor_release(place);
  ax_tensor_release(whole);
  return st;
}

static ax_status slice_strides(const ax_tensor *whole, const ax_infer *q, int64_t *strides, int64_t *offset)
{
  const int64_t dim = q->a.slice_backward.dim;
  memcpy(strides, whole->strides, sizeof *strides * AX_MAX_DIMS);
  *offset = q->args->in[0]->numel ? q->a.slice_backward.start * whole->strides[dim] : 0;
  if (q->args->in[0]->shape[dim] > 1) strides[dim] *= q->a.slice_backward.step;
  return AX_OK;
}

static ax_status diagonal_strides(const ax_tensor *whole, const ax_infer *q, int64_t *strides,
                                  int64_t *offset)
{
  const ax_tensor *g = q->args->in[0];
  int64_t length;
  int n = 0;
  const ax_status st = diagonal_of(q, whole, &length, offset);
  if (st != AX_OK) return st;
  for (int d = 0; d < whole->ndim; d++)
    if (d != q->a.diagonal.dim1 && d != q->a.diagonal.dim2) strides[n++] = whole->strides[d];
  strides[n++] = whole->strides[q->a.diagonal.dim1] + whole->strides[q->a.diagonal.dim2];
  if (g->ndim != n || g->shape[n - 1] != length)
    return ax_fail(AX_ESHAPE, "%s: %s does not fit a diagonal of %s", q->name, TEXT(g), TEXT(whole));
  return AX_OK;
}

/* One place of all windows after the other: these do not overlap. */
ax_status ax_infer_unfold_backward(ax_infer *q)
{
  ax_tensor *g = X, *whole = NULL, *place = NULL, *part = NULL, *sum = NULL;
  const int64_t dim = q->a.unfold_backward.dim, step = q->a.unfold_backward.step;
  const int64_t size = g->ndim ? g->shape[g->ndim - 1] : 0;
  int64_t strides[AX_MAX_DIMS];
  ax_status st;

  if (g->ndim == 0 || (q->a.n_list > 0 && g->ndim != q->a.n_list + 1))
    return ax_fail(AX_ESHAPE, "%s: %s are no windows of a tensor of %d dims", q->name, TEXT(g), q->a.n_list);
  AX_TRY(ax_tensor_new_on(g->device, (ax_dtype)g->dtype, q->a.n_list, q->a.list, &whole));
  AX_TRY(ax_fill(whole, 0));
  memcpy(strides, whole->strides, sizeof strides);
  if (q->a.n_list > 0 && g->shape[dim] > 1) strides[dim] *= step;
  for (int64_t k = 0; k < size; k++) {
    const int64_t offset = q->a.n_list > 0 ? k * whole->strides[dim] : 0;
    AX_TRY(run_select(g, g->ndim - 1, k, &part));
    AX_TRY(ax_tensor_view(whole, part->ndim, part->shape, strides, offset, &place));
    AX_TRY(ax_run2(AX_OP_ADD, place, part, &sum));
    AX_TRY(ax_copy(place, sum));
    ax_tensor_release(place), ax_tensor_release(part), ax_tensor_release(sum);
    place = part = sum = NULL;
  }
  q->result[0] = whole;
  whole = NULL;
out:
  ax_tensor_release(place), ax_tensor_release(part), ax_tensor_release(sum), ax_tensor_release(whole);
  return st;
}

ax_status ax_infer_slice_backward(ax_infer *q) { return zeros_with(q, slice_strides); }
ax_status ax_infer_diagonal_backward(ax_infer *q) { return zeros_with(q, diagonal_strides); }

RULE(reshape_back) { give(c, 0, with_list(c, AX_OP_RESHAPE, G, META(0)->ndim, META(0)->shape)); }
RULE(transpose) { give(c, 0, transpose(c, G, A->transpose.dim0, A->transpose.dim1)); }

RULE(permute)
{
  int64_t back[AX_MAX_DIMS];
  for (int d = 0; d < A->n_list; d++) back[A->list[d]] = d;
  give(c, 0, with_list(c, AX_OP_PERMUTE, G, A->n_list, back));
}

static ax_arg into_zeros(ax_grad *c, ax_arg g, int64_t dim, int64_t start, int64_t step)
{
  ax_attrs a = { .slice_backward = { .dim = dim, .start = start, .step = step }, .n_list = META(0)->ndim };
  memcpy(a.list, META(0)->shape, sizeof a.list);
  return call(c, AX_OP_SLICE_BACKWARD, 1, &g, &a);
}

RULE(select) { give(c, 0, into_zeros(c, unsqueeze(c, G, A->select.dim), A->select.dim, A->select.index, 1)); }
RULE(narrow)
{
  give(c, 0,
       into_zeros(c, G, A->narrow.dim, A->narrow.start, c->node->op == AX_OP_SLICE ? A->slice.step : 1));
}
RULE(slice_backward)
{
  const int64_t dim = A->slice_backward.dim;
  give(c, 0,
       call1(c, AX_OP_SLICE, G,
             &AX_ATTRS(slice, .dim = dim, .start = A->slice_backward.start, .length = META(0)->shape[dim],
                       .step = A->slice_backward.step)));
}

RULE(diagonal)
{
  ax_attrs a = { .diagonal = A->diagonal, .n_list = META(0)->ndim };
  memcpy(a.list, META(0)->shape, sizeof a.list);
  give(c, 0, call(c, AX_OP_DIAGONAL_BACKWARD, 1, &G, &a));
}

RULE(diagonal_backward)
{
  give(c, 0, call1(c, AX_OP_DIAGONAL, G, &(ax_attrs){ .diagonal = A->diagonal, .n_list = -1 }));
}

/* The windows of a dim that they cover once each, put side by side again. */
static ax_arg windows_joined(ax_grad *c, ax_arg g, int n, int64_t dim)
{
  int64_t order[AX_MAX_DIMS + 1], at = 0;
  for (int d = 0; d < n; d++) {
    order[at++] = d;
    if (d == dim) order[at++] = n;
  }
  return with_list(c, AX_OP_RESHAPE, with_list(c, AX_OP_PERMUTE, g, n + 1, order), n, META(0)->shape);
}

RULE(unfold)
{
  const int64_t dim = A->unfold.dim, size = A->unfold.size;
  const int n = META(0)->ndim;
  if (n > 0 && size > 0 && size == A->unfold.step && META(0)->shape[dim] % size == 0) {
    give(c, 0, windows_joined(c, G, n, dim));
    return;
  }
  ax_attrs a = { .unfold_backward = { .dim = A->unfold.dim, .step = A->unfold.step },
                 .n_list = META(0)->ndim };
  memcpy(a.list, META(0)->shape, sizeof a.list);
  give(c, 0, call(c, AX_OP_UNFOLD_BACKWARD, 1, &G, &a));
}

RULE(unfold_backward)
{
  const int n = META(0)->ndim;
  give(c, 0,
       call1(c, AX_OP_UNFOLD, G,
             &AX_ATTRS(unfold, .dim = A->unfold_backward.dim, .size = META(0)->shape[n - 1],
                       .step = A->unfold_backward.step)));
}

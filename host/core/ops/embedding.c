/* Rules and gradients of embedding and one_hot. */
#include "core/ops/rule.h"

#define X INPUT(0)

ax_status ax_infer_embedding(ax_infer *q)
{
  const ax_tensor *w = INPUT(1);
  int64_t shape[AX_MAX_DIMS];
  const ax_status st = need_positions(q, 0, "input");
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
  const ax_status st = need_positions(q, 1, "input");
  if (st != AX_OK) return st;
  if (g->ndim != input->ndim + 1)
    return ax_fail(AX_ESHAPE, "%s: gradient %s does not fit input %s", q->name, TEXT(g), TEXT(input));
  ax_sum_in_float(q, (ax_dtype)g->dtype);
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
    if ((st = ax_value_of(AX_OP_MAX, X, &most)) != AX_OK) return st;
    if (most < 0)
      return ax_fail(AX_ERANGE, "one_hot: x must hold numbers from 0 on, got %lld", (long long)most);
    classes = (int64_t)most + 1;
  }
  if (classes < (X->numel > 0))
    return ax_fail(AX_ERANGE, "one_hot: num_classes must be at least 1 (or -1), got %lld",
                   (long long)classes);
  return run_with(AX_OP_ONE_HOT_OF, X, &AX_ATTRS(one_hot_of, .num_classes = classes), &q->result[0]);
}

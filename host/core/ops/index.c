/* Rules and gradients of rows that pick elements by position. */
#include "core/ops/rule.h"

#define X INPUT(0)

ax_status ax_infer_index_select(ax_infer *q)
{
  const ax_tensor *x = INPUT(0), *index = INPUT(1);
  int64_t shape[AX_MAX_DIMS];
  const ax_status st = need_positions(q, 1, "index");
  if (st != AX_OK) return st;
  if (index->ndim > 1) return ax_fail(AX_ESHAPE, "%s: index must have one dim, got %s", q->name, TEXT(index));
  if (x->ndim == 0 && index->numel != 1)
    return ax_fail(AX_ESHAPE, "%s: index of a 0-d tensor must have one element, got %s", q->name,
                   TEXT(index));
  memcpy(shape, x->shape, sizeof shape);
  if (x->ndim) shape[q->a.index_select.dim] = index->numel;
  q->contiguous = ~0u;
  out_like(q, 0, (ax_dtype)x->dtype, x->ndim, shape);
  return AX_OK;
}

ax_status ax_infer_index_select_backward(ax_infer *q)
{
  const ax_tensor *g = INPUT(0), *index = INPUT(1);
  int64_t shape[AX_MAX_DIMS];
  const ax_status st = need_positions(q, 1, "index");
  if (st != AX_OK) return st;
  if (index->ndim > 1 || (g->ndim ? g->shape[q->a.index_select_backward.dim] : 1) != index->numel)
    return ax_fail(AX_ESHAPE, "%s: gradient %s does not fit index %s", q->name, TEXT(g), TEXT(index));
  memcpy(shape, g->shape, sizeof shape);
  if (g->ndim) shape[q->a.index_select_backward.dim] = q->a.index_select_backward.size;
  q->contiguous = ~0u;
  out_like(q, 0, (ax_dtype)g->dtype, g->ndim, shape);
  return AX_OK;
}

ax_status ax_infer_masked_select(ax_infer *q)
{
  ax_tensor *mask = q->args->in[1], *count = NULL, *wide_mask = NULL, *flat_mask = NULL, *wide = NULL,
            *flat = NULL, *index = NULL;
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  int64_t shape[AX_MAX_DIMS], n;
  int ndim;
  ax_status st;

  if (mask->dtype != AX_BOOL)
    return ax_fail(AX_EDTYPE, "masked_select: mask must be bool, got %s",
                   ax_dtype_name((ax_dtype)mask->dtype));
  AX_TRY(ax_shape_broadcast(q->name, X->ndim, X->shape, mask->ndim, mask->shape, &ndim, shape));
  AX_TRY(run_list(AX_OP_EXPAND, X, ndim, shape, &wide));
  AX_TRY(run_list(AX_OP_EXPAND, mask, ndim, shape, &wide_mask));
  AX_TRY(run_list(AX_OP_RESHAPE, wide, 1, (int64_t[]){ -1 + (wide->numel == 0) }, &flat));
  AX_TRY(run_list(AX_OP_RESHAPE, wide_mask, 1, (int64_t[]){ -1 + (wide->numel == 0) }, &flat_mask));
  AX_TRY(run_list(AX_OP_SUM, flat_mask, -1, NULL, &count));
  double trues;
  AX_TRY(ax_item(count, &trues));
  n = (int64_t)trues;
  AX_TRY(ax_tensor_new_on(X->device, AX_I64, 1, &n, &index));
  AX_TRY(ax_run_into(AX_OP_MASK_INDICES, &(ax_args){ .n_in = 1, .in = &flat_mask, .a = { .n_list = -1 } },
                     index));
  AX_TRY(ax_run(AX_OP_INDEX_SELECT,
                &(ax_args){ .n_in = 2, .in = (ax_tensor *[]){ flat, index }, .a = { .n_list = -1 } },
                results));
  q->result[0] = results[0];
out:
  ax_tensor_release(count), ax_tensor_release(wide_mask), ax_tensor_release(flat_mask);
  ax_tensor_release(wide), ax_tensor_release(flat), ax_tensor_release(index);
  return st;
}

RULE(index_select)
{
  give(c, 0,
       call(c, AX_OP_INDEX_SELECT_BACKWARD, 2, (ax_arg[]){ G, IN(1) },
            &AX_ATTRS(index_select_backward, .dim = A->index_select.dim,
                      .size = META(0)->ndim ? META(0)->shape[A->index_select.dim] : 1)));
}

RULE(index_select_backward)
{
  give(c, 0,
       call(c, AX_OP_INDEX_SELECT, 2, (ax_arg[]){ G, IN(1) },
            &AX_ATTRS(index_select, .dim = A->index_select_backward.dim)));
}

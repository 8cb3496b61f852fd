/* Rules and the gradient of grid_sample.  Images that have their channels innermost keep them
 * there, others only where the kernel cannot read plane after plane, and on a GPU; for gradients
 * the channels are innermost. */
#include "core/ops/grid_sample.h"

#include "core/ops/rule.h"

static ax_status check(const ax_infer *q, const ax_tensor *x, const ax_tensor *grid)
{
  const int dims = x->ndim - 2;
  ax_status st;
  AX_TRY(need_float(q, x));
  if (grid->dtype != x->dtype)
    AX_TRY(ax_fail(AX_EDTYPE, "%s: element types differ: %s %s and grid %s %s", q->name, TYPE(x), TEXT(x),
                   TYPE(grid), TEXT(grid)));
  if (dims < 2 || dims > 3)
    AX_TRY(ax_fail(AX_ESHAPE, "%s: expected (n, c, h, w) or (n, c, d, h, w), got %s", q->name, TEXT(x)));
  if (grid->ndim != x->ndim || grid->shape[0] != x->shape[0] || grid->shape[dims + 1] != dims)
    AX_TRY(ax_fail(AX_ESHAPE, "%s: for input %s the grid must be (%lld, %s, %d), got %s", q->name, TEXT(x),
                   (long long)x->shape[0], dims == 2 ? "h', w'" : "d', h', w'", dims, TEXT(grid)));
  for (int d = 0; d < dims; d++)
    if (x->shape[2 + d] < 1 || x->shape[2 + d] > INT32_MAX)
      AX_TRY(ax_fail(AX_ESHAPE, "%s: dim %d of the input must be from 1 to 2^31 - 1, got %s", q->name, 3 + d,
                     TEXT(x)));
out:
  return st;
}

ax_status ax_infer_grid_sample(ax_infer *q)
{
  const ax_tensor *x = INPUT(0), *grid = INPUT(1);
  int64_t shape[AX_MAX_DIMS];
  const ax_backend *backend;
  ax_status st = check(q, x, grid);
  if (st != AX_OK || (st = ax_backend_of(x->device, &backend)) != AX_OK) return st;
  shape[0] = x->shape[0];
  shape[1] = x->shape[1];
  for (int d = 2; d < x->ndim; d++) shape[d] = grid->shape[d - 1];
  q->contiguous = 2;
  if (backend->by_planes && ax_grid_sample_by_planes(x, q->a.grid_sample.mode) &&
      (ax_tensor_is_contiguous(x) || !ax_strides_are_channels_last(x->ndim, x->shape, x->strides)))
    q->contiguous = 3;
  else q->channels_last = 1 | 1 << 8;
  out_like(q, 0, (ax_dtype)x->dtype, x->ndim, shape);
  return AX_OK;
}

ax_status ax_infer_grid_sample_backward(ax_infer *q)
{
  const ax_tensor *x = INPUT(1), *grid = INPUT(2);
  q->contiguous = 4;
  q->channels_last = 3 | 1 << 8;
  out_like(q, 0, (ax_dtype)x->dtype, x->ndim, x->shape);
  out_like(q, 1, (ax_dtype)x->dtype, grid->ndim, grid->shape);
  return AX_OK;
}

RULE(grid_sample)
{
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  ax_tensor *const in[] = { G.t, IN(0).t, IN(1).t };
  if (c->st != AX_OK) return;
  c->st = ax_run(AX_OP_GRID_SAMPLE_BACKWARD,
                 &(ax_args){ .n_in = 3,
                             .in = in,
                             .a = AX_ATTRS(grid_sample, .mode = A->grid_sample.mode,
                                           .padding_mode = A->grid_sample.padding_mode,
                                           .align_corners = A->grid_sample.align_corners) },
                 results);
  for (int k = 0; k < 2; k++) {
    if (c->st == AX_OK && WANTS(k)) give(c, k, (ax_arg){ .t = results[k] });
    ax_tensor_release(results[k]);
  }
}

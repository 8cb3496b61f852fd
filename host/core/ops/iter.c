/* Loop nests: broadcasting and merging dims, so that kernels see as few and as long loops as there
 * can be. */
#include "core/ops/infer.h"
#include "core/ops/iter.h"

#include <string.h>

static void set_operand(ax_operand *o, const ax_tensor *t, int ndim, const int64_t *shape)
{
  const int64_t item = (int64_t)ax_itemsize(t);
  const int lead = ndim - t->ndim;

  o->data = ax_data(t);
  o->dtype = (ax_dtype)t->dtype;
  for (int d = 0; d < ndim; d++)
    o->stride[d] = d < lead || (t->shape[d - lead] == 1 && shape[d] != 1) ? 0 : t->strides[d - lead] * item;
}

void ax_iter_pointwise(ax_iter *it, ax_tensor *dst, int n, ax_tensor *const *in, ax_number *numbers,
                       ax_dtype number_dtype)
{
  bool flat = ax_strides_are_dense(dst->ndim, dst->shape, dst->strides);

  it->n = n + 1;
  it->numel = dst->numel;
  for (int k = 0; flat && k < n; k++)
    flat = !in[k] || (in[k]->numel == 1 && dst->numel != 1) ||
           (ax_same_shape(in[k], dst->ndim, dst->shape) &&
            ax_strides_equal(dst->ndim, dst->shape, dst->strides, in[k]->strides));
  if (flat) { /* the common case: one loop */
    it->ndim = dst->numel == 1 ? 0 : 1;
    it->shape[0] = dst->numel;
    it->op[0] = (ax_operand){ .data = ax_data(dst),
                              .dtype = (ax_dtype)dst->dtype,
                              .stride = { (int64_t)ax_itemsize(dst) } };
    for (int k = 0; k < n; k++) {
      ax_operand *o = &it->op[k + 1];
      if (!in[k]) *o = (ax_operand){ .data = (char *)&numbers[k], .dtype = number_dtype };
      else
        *o = (ax_operand){ .data = ax_data(in[k]),
                           .dtype = (ax_dtype)in[k]->dtype,
                           .stride = { in[k]->numel == 1 ? 0 : (int64_t)ax_itemsize(in[k]) } };
    }
    return;
  }
  set_operand(&it->op[0], dst, dst->ndim, dst->shape);
  for (int k = 0; k < n; k++)
    if (in[k]) set_operand(&it->op[k + 1], in[k], dst->ndim, dst->shape);
    else it->op[k + 1] = (ax_operand){ .data = (char *)&numbers[k], .dtype = number_dtype };
  ax_iter_merge(it, dst->ndim, dst->shape);
}

void ax_iter_reduce(ax_iter *it, ax_tensor *dst, ax_tensor *x, uint32_t axes)
{
  const int64_t item = (int64_t)ax_itemsize(dst);
  int64_t step = 1; /* dst is contiguous over the dims that stay, with or without keepdim */

  it->n = 2;
  it->numel = x->numel;
  set_operand(&it->op[1], x, x->ndim, x->shape);
  it->op[0] = (ax_operand){ .data = ax_data(dst), .dtype = (ax_dtype)dst->dtype };
  for (int d = x->ndim - 1; d >= 0; d--)
    if (!(axes >> d & 1)) {
      it->op[0].stride[d] = step * item;
      step *= x->shape[d];
    }
  ax_iter_merge(it, x->ndim, x->shape);
}

/* nll_loss, -w[t] x[r, t], and its gradient: reads or writes one element of each row. */
#include "cpu.h"

enum { MEAN, SUM, NONE }; /* the words of the signature, in order */

static ax_status check(const int64_t *target, int64_t rows, int64_t classes, int64_t ignore)
{
  for (int64_t r = 0; r < rows; r++)
    if (target[r] != ignore && (target[r] < 0 || target[r] >= classes))
      return ax_fail(AX_ERANGE, "nll_loss: target %lld at position %lld is outside 0..%lld",
                     (long long)target[r], (long long)r, (long long)classes - 1);
  return AX_OK;
}

static double weight_of(const ax_tensor *weight, int64_t class)
{
  return weight ? ax_load_double((ax_dtype)weight->dtype, ax_data(weight), class) : 1;
}

ax_status ax_cpu__nll_loss(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *weight = call->n_in > 2 ? call->in[2] : NULL, *y = call->out[0],
                  *divisor = call->out[1];
  const int64_t *target = ax_data(call->in[1]), classes = x->shape[x->ndim - 1],
                rows = x->ndim > 1 ? x->shape[0] : 1;
  const int64_t ignore = call->a->nll_loss_rows.ignore_index, reduction = call->a->nll_loss_rows.reduction;
  double sum = 0, weights = 0;
  const ax_status st = check(target, rows, classes, ignore);

  if (st != AX_OK) return st;
  for (int64_t r = 0; r < rows; r++) {
    const double w = target[r] == ignore ? 0 : weight_of(weight, target[r]);
    const double v = target[r] == ignore
                         ? 0
                         : -w * ax_load_double((ax_dtype)x->dtype, ax_data(x), r * classes + target[r]);
    weights += w;
    sum += v;
    if (reduction == NONE) ax_store_double((ax_dtype)y->dtype, ax_data(y), r, v);
  }
  ax_store_double((ax_dtype)divisor->dtype, ax_data(divisor), 0, weights);
  if (reduction != NONE)
    ax_store_double((ax_dtype)y->dtype, ax_data(y), 0, reduction == MEAN ? sum / weights : sum);
  return AX_OK;
}

ax_status ax_cpu__nll_loss_backward(const ax_call *call)
{
  const ax_tensor *g = call->in[0], *weight = call->in[2], *total = call->in[3], *dx = call->out[0];
  const int64_t *target = ax_data(call->in[1]), ignore = call->a->nll_loss_backward.ignore_index,
                reduction = call->a->nll_loss_backward.reduction,
                classes = call->a->nll_loss_backward.classes, rows = call->in[1]->numel;
  const double scale = reduction == MEAN ? 1 / ax_load_double((ax_dtype)total->dtype, ax_data(total), 0) : 1;
  const ax_status st = check(target, rows, classes, ignore);

  if (st != AX_OK) return st;
  memset(ax_data(dx), 0, (size_t)dx->numel * ax_dtype_size((ax_dtype)dx->dtype));
  for (int64_t r = 0; r < rows; r++) {
    if (target[r] == ignore) continue;
    const double own = ax_load_double((ax_dtype)g->dtype, ax_data(g), reduction == NONE ? r : 0);
    ax_store_double((ax_dtype)dx->dtype, ax_data(dx), r * classes + target[r],
                    -weight_of(weight, target[r]) * own * scale);
  }
  return AX_OK;
}

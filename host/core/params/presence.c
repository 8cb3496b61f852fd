/* Presence: which parameters of layouts that are cut have a gradient on some rank. */
#include "core/core.h"
#include "flat.h"

ax_status ax_flat_presence(int n, ax_flat *const *list, ax_tensor **out)
{
  int64_t count = 0, at = 0;
  int missing = 0;
  ax_tensor *here = NULL, *there = NULL;
  ax_status st;

  *out = NULL;
  if (n < 1) return ax_fail(AX_EINVAL, "presence: there are no layouts");
  for (int i = 0; i < n; i++) {
    count += list[i]->n;
    for (int k = 0; k < list[i]->n; k++) missing += !list[i]->params[k]->grad;
  }
  AX_TRY(ax_tensor_new_on(list[0]->device, AX_F32, 1, &count, &there));
  if (!missing) AX_TRY(ax_fill(there, 1));
  else {
    AX_TRY(ax_tensor_new(AX_F32, 1, &count, &here));
    for (int i = 0; i < n; i++)
      for (int k = 0; k < list[i]->n; k++) ((float *)ax_data(here))[at++] = list[i]->params[k]->grad ? 1 : 0;
    AX_TRY(ax_copy(there, here));
  }
  *out = there;
  there = NULL;
out:
  ax_tensor_release(here);
  ax_tensor_release(there);
  return st;
}

ax_status ax_flat_adopt_presence(int n, ax_flat *const *list, ax_tensor *presence)
{
  ax_tensor *here = NULL;
  int64_t at = 0, count = 0;
  bool missing = false;
  ax_status st = AX_OK;

  for (int i = 0; i < n; i++) {
    count += list[i]->n;
    for (int k = 0; k < list[i]->n; k++)
      missing |= !list[i]->params[k]->grad && list[i]->params[k]->requires_grad;
  }
  if (presence->dtype != AX_F32 || presence->numel != count)
    return ax_fail(AX_EINVAL, "presence: expected %lld elements of float32, got %lld of %s", (long long)count,
                   (long long)presence->numel, ax_dtype_name((ax_dtype)presence->dtype));
  if (!missing) return AX_OK; /* and no wait for the device */
  AX_TRY(ax_tensor_new(AX_F32, 1, &presence->numel, &here));
  AX_TRY(ax_copy(here, presence));
  for (int i = 0; i < n; i++)
    for (int k = 0; k < list[i]->n; k++, at++) {
      ax_tensor *p = list[i]->params[k], *slot = list[i]->slots[k].grad;
      if (p->flat != list[i] || p->grad || !slot || !p->requires_grad) continue;
      if (((float *)ax_data(here))[at] > 0) p->grad = ax_tensor_retain(slot);
    }
out:
  ax_tensor_release(here);
  return st;
}

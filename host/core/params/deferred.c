/* Deferred values: a storage without memory, and a claim that makes its elements (deferred.h). */
#include "deferred.h"
#include "capture.h"
#include "core/core.h"
#include "core/device/meta.h"

typedef struct deferred {
  ax_claim claim;
  ax_storage *storage; /* weak: the claim goes with it */
  const ax_maker *maker;
  void *owner;
  uint8_t dtype;
} deferred;

static void drop(deferred *d)
{
  if (d->maker->gone) d->maker->gone(d->owner);
  ax_mfree(d);
}

static void gone(ax_claim *c) { drop(c->owner); }

/* Fills the storage, whose claim is off meanwhile: a tensor of `into` that the maker keeps is one
 * like others, and a failure leaves all of them without memory, behind the claim. */
static ax_status before(ax_claim *c, int64_t at)
{
  deferred *const d = c->owner;
  ax_storage *const s = d->storage;
  const int64_t n = (int64_t)(s->bytes / ax_dtype_size((ax_dtype)d->dtype)), one = 1;
  ax_storage *fresh = NULL;
  ax_tensor *into = NULL;
  const bool recording = ax_grad_set_enabled(false);
  ax_status st;

  (void)at;
  if (ax_recording) {
    st = ax_fail(AX_ENOIMPL, "a parameter's values are made at its first use, which cannot be captured: "
                             "prepare the model, or read the parameter, before");
    goto out;
  }
  AX_TRY(ax_storage_new(s->device, s->bytes, &fresh));
  ax_storage_trade(s, fresh);
  ax_claim_take_off(c);
  st = ax_tensor_over(s, (ax_dtype)d->dtype, 1, &n, &one, 0, &into);
  if (st == AX_OK) st = d->maker->make(d->owner, into);
  if (st == AX_OK) drop(d);
  else {
    ax_storage_empty(s);
    ax_claim_put(s, c);
  }
out:
  ax_grad_set_enabled(recording);
  ax_tensor_release(into);
  ax_storage_release(fresh);
  return st;
}

static const ax_claim_kind makes = { .uses = AX_READ | AX_WRITE, .before = before, .gone = gone },
                           carries = { .uses = 0, .gone = gone };

static ax_claim *claim_of(const ax_storage *s)
{
  ax_claim *c = ax_claim_of(s, &makes);
  return c ? c : ax_claim_of(s, &carries);
}

void *ax_deferred(const ax_tensor *t, const ax_maker *maker)
{
  const ax_claim *c = claim_of(t->storage);
  const deferred *d = c ? c->owner : NULL;
  return d && d->maker == maker ? d->owner : NULL;
}

static ax_status check(const ax_tensor *t, const ax_claim *former)
{
  const ax_storage *s = t->storage;

  if (t->offset != 0 || !ax_tensor_is_contiguous(t) || (size_t)t->numel * ax_itemsize(t) != s->bytes)
    return ax_fail(AX_EINVAL, "defer: the tensor must be all of its memory");
  if (s->exposed || t->flat || s->claims != former || (former && former->next) || t->grad_fn)
    return ax_fail(AX_EINVAL, "defer: the tensor's memory is in use elsewhere");
  return AX_OK;
}

ax_status ax_defer(ax_tensor *t, const ax_maker *maker, void *owner)
{
  ax_storage *const s = t->storage;
  ax_claim *const former = claim_of(s);
  ax_status st = check(t, former);
  deferred *d;

  if (st != AX_OK) return st;
  if (!(d = ax_malloc(sizeof *d))) return AX_ENOMEM;
  *d = (deferred){ .storage = s, .maker = maker, .owner = owner, .dtype = t->dtype };
  d->claim = (ax_claim){ .kind = s->device.kind == AX_META ? &carries : &makes, .owner = d };
  if (former) {
    ax_claim_take_off(former);
    gone(former);
  } else ax_storage_empty(s);
  ax_claim_put(s, &d->claim);
  ax_touch(t);
  return AX_OK;
}

ax_status ax_deferred_new(ax_device device, ax_dtype dtype, int ndim, const int64_t *shape,
                          const ax_maker *maker, void *owner, ax_tensor **out)
{
  int64_t strides[AX_MAX_DIMS], numel = 1;
  ax_storage *s = NULL;
  ax_status st;

  *out = NULL;
  for (int d = 0; d < ndim; d++)
    if (__builtin_mul_overflow(numel, shape[d], &numel) || numel > INT64_C(1) << 53)
      return ax_fail(AX_ERANGE, "defer: a tensor of more than 2^53 elements");
  ax_strides_contiguous(ndim, shape, strides);
  AX_TRY(ax_storage_wrap(NULL, (size_t)numel * ax_dtype_size(dtype), NULL, NULL, &s));
  s->device = device;
  AX_TRY(ax_tensor_over(s, dtype, ndim, shape, strides, 0, out));
  if ((st = ax_defer(*out, maker, owner)) != AX_OK) {
    ax_tensor_release(*out);
    *out = NULL;
  }
out:
  ax_storage_release(s);
  return st;
}

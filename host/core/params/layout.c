/* ax_flat: many parameters in one buffer, with their gradients and working copies in buffers of the
 * same layout. */
#include "core/params/home.h"
#include "core/core.h"
#include "core/dist/peers.h"
#include "core/memory/lasting.h"

#include <string.h>

static _Thread_local uint64_t last_number;

/* ---- laying out */

static ax_status check_param(const ax_flat *f, const ax_tensor *p, int k)
{
  char a[16], b[16];

  if (p->grad_fn)
    return ax_fail(AX_EGRAD, "flat: parameter %d is the result of %s; only leaves can move", k + 1,
                   ax_grad_fn_name(p));
  if (!ax_is_float((ax_dtype)p->dtype) || p->dtype != f->dtype)
    return ax_fail(AX_EINVAL,
                   "flat: parameter %d is %s and the first one %s; all must be of one floating-point type",
                   k + 1, ax_dtype_name((ax_dtype)p->dtype), ax_dtype_name((ax_dtype)f->dtype));
  if (!ax_same_device(p->device, f->device))
    return ax_fail(AX_EINVAL,
                   "flat: parameter %d is on %s and the first one on %s; all must be on one device", k + 1,
                   ax_device_text(p->device, a, sizeof a), ax_device_text(f->device, b, sizeof b));
  if (p->flat == f)
    return ax_fail(AX_EINVAL, "flat: parameter %d is the same tensor as parameter %d", k + 1, p->slot + 1);
  if (p->flat) return ax_fail(AX_EINVAL, "flat: parameter %d is in a flat buffer already", k + 1);
  return AX_OK;
}

/* Takes the parameters in, and gives each its offset; the size becomes a multiple of `parts`
 * units. */
static ax_status enlist(ax_flat *f, int n, ax_tensor *const *params, int parts)
{
  const int64_t unit = AX_SLOT_BYTES / (int64_t)ax_dtype_size((ax_dtype)f->dtype);

  for (int k = 0; k < n; k++) {
    const ax_status st = check_param(f, params[k], k);
    if (st != AX_OK) return st;
    f->params[k] = ax_tensor_retain(params[k]);
    f->n = k + 1;
    f->offsets[k] = f->size;
    f->size += (params[k]->numel + unit - 1) / unit * unit;
    params[k]->flat = f;
    params[k]->slot = k;
  }
  f->size = (f->size + parts * unit - 1) / (parts * unit) * (parts * unit);
  f->offsets[n] = f->size;
  return AX_OK;
}

static ax_status new_buffer(const ax_flat *f, ax_dtype dtype, int64_t numel, ax_tensor **out)
{
  return ax_tensor_zeros_lasting(f->device, dtype, 1, &numel, out);
}

/* As ax_tensor_place_at, for a buffer without memory. */
static ax_status place_without(ax_flat *f, int k, ax_tensor **place, ax_version **own)
{
  const ax_tensor *p = f->params[k];
  int64_t strides[AX_MAX_DIMS];
  ax_status st;

  ax_strides_contiguous(p->ndim, p->shape, strides);
  if (!(*own = ax_malloc(sizeof **own))) return AX_ENOMEM;
  **own = (ax_version){ .refs = 1, .edits = p->version->edits };
  st = ax_tensor_over(f->values->storage, (ax_dtype)p->dtype, p->ndim, p->shape, strides, f->offsets[k],
                      place);
  if (st != AX_OK) {
    ax_mfree(*own);
    *own = NULL;
  }
  return st;
}

/* Copies every parameter to its place, and then, when nothing can fail any more, moves all of them
 * there. */
static ax_status move_in(ax_flat *f, bool bare)
{
  ax_tensor **places = ax_calloc((size_t)f->n, sizeof *places);
  ax_version **own = ax_calloc((size_t)f->n, sizeof *own);
  ax_status st = places && own ? AX_OK : AX_ENOMEM;

  for (int k = 0; st == AX_OK && k < f->n; k++)
    st = bare ? place_without(f, k, &places[k], &own[k])
              : ax_tensor_place_at(f->params[k], f->values, f->offsets[k], &places[k], &own[k]);
  for (int k = 0; k < f->n && places && own; k++) {
    if (st == AX_OK) {
      ax_tensor_become(f->params[k], places[k], own[k]);
      f->params[k]->flat = f; /* it left whatever held it before */
    } else ax_mfree(own[k]);
    ax_tensor_release(places[k]);
  }
  ax_mfree(places);
  ax_mfree(own);
  return st;
}

static ax_status lay_out(int n, ax_tensor *const *params, int parts, bool bare, ax_flat **out)
{
  ax_flat *f = NULL;
  ax_status st;

  *out = NULL;
  if (n < 1) return ax_fail(AX_EINVAL, "flat: there are no parameters to lay out");
  if (!(f = ax_calloc(1, sizeof *f))) return AX_ENOMEM;
  f->refs = 1;
  f->dtype = params[0]->dtype;
  f->device = params[0]->device;
  f->number = ++last_number;
  f->params = ax_calloc((size_t)n, sizeof *f->params);
  f->offsets = ax_calloc((size_t)n + 1, sizeof *f->offsets);
  f->arrivals = ax_calloc((size_t)n, sizeof *f->arrivals);
  if (!f->params || !f->offsets || !f->arrivals) {
    st = AX_ENOMEM;
    goto out;
  }
  AX_TRY(enlist(f, n, params, parts));
  if (bare) AX_TRY(ax_home_begin_bare(f));
  else AX_TRY(new_buffer(f, (ax_dtype)f->dtype, f->size, &f->values));
  AX_TRY(move_in(f, bare));
  for (int k = 0; k < n; k++) ax_tensor_set_grad_slot(params[k], NULL, 0); /* the slots of a former layout */
  *out = f;
  f = NULL;
out:
  ax_flat_release(f);
  return st;
}

ax_status ax_flat_new(int n, ax_tensor *const *params, int parts, ax_flat **out)
{
  return lay_out(n, params, parts, false, out);
}

ax_status ax_flat_new_bare(int n, ax_tensor *const *params, int parts, ax_flat **out)
{
  return lay_out(n, params, parts, true, out);
}

ax_flat *ax_flat_retain(ax_flat *f)
{
  f->refs++;
  return f;
}

void ax_flat_dissolve(ax_flat *f)
{
  f->full = NULL;
  for (int k = 0; k < f->n; k++)
    if (f->params[k]->flat == f) f->params[k]->flat = NULL;
}

static char *copied(const char *text)
{
  const size_t n = strlen(text) + 1;
  char *copy = ax_malloc(n);
  return copy ? memcpy(copy, text, n) : NULL;
}

ax_status ax_flat_set_names(ax_flat *f, const char *name, const char *const *names)
{
  if (f->names || f->name) return ax_fail(AX_EINVAL, "flat: the layout has names already");
  if (!(f->name = copied(name)) || !(f->names = ax_calloc((size_t)f->n, sizeof *f->names))) return AX_ENOMEM;
  for (int k = 0; k < f->n; k++)
    if (!(f->names[k] = copied(names[k]))) return AX_ENOMEM;
  return AX_OK;
}

void ax_flat_release(ax_flat *f)
{
  if (!f || --f->refs > 0) return;
  ax_flat_dissolve(f);
  ax_flat_free_home(f);
  for (int k = 0; k < f->n; k++) ax_tensor_release(f->params[k]);
  ax_tensor_release(f->values), ax_tensor_release(f->grads), ax_tensor_release(f->work),
      ax_tensor_release(f->presence);
  if (f->names)
    for (int k = 0; k < f->n; k++) ax_mfree(f->names[k]);
  ax_mfree(f->names), ax_mfree(f->name);
  ax_mfree(f->params), ax_mfree(f->offsets), ax_mfree(f->arrivals), ax_mfree(f->expected),
      ax_mfree(f->buckets), ax_mfree(f->bucket_of);
  ax_mfree(f);
}

bool ax_flat_is_current(const ax_flat *f)
{
  for (int k = 0; k < f->n; k++)
    if (f->params[k]->flat != f) return false;
  return true;
}

/* ---- gradients and working copies */

ax_status ax_home_new_grads(const ax_flat *f, bool stays, ax_tensor **out)
{
  const ax_dtype dtype = (ax_dtype)f->dtype;
  const int64_t numel = f->size + f->n;
  ax_status st;

  *out = NULL;
  if (f->device.kind == AX_CPU && ((st = ax_peers_zeros(dtype, numel, out)) != AX_OK || *out)) return st;
  return stays ? new_buffer(f, dtype, numel, out) : ax_tensor_zeros_on(f->device, dtype, 1, &numel, out);
}

ax_status ax_flat_give_grads(ax_flat *f)
{
  const bool cut = f->home.cut & AX_CUT_GRADS && !ax_flat_has_grad(f); /* and nobody needs the whole */
  ax_tensor *grads = NULL;
  const bool away = f->home.away & AX_CUT_GRADS && !f->home.group;
  ax_status st =
      away  ? ax_place_tensor(f->home.place, ax_home_title(f), (ax_dtype)f->dtype, f->size + f->n, &grads)
      : cut ? ax_home_without_memory(f, (ax_dtype)f->dtype, f->size + f->n, &grads)
            : ax_home_new_grads(f, true, &grads);
  int k = 0;

  for (; st == AX_OK && k < f->n; k++) st = ax_tensor_set_grad_slot(f->params[k], grads, f->offsets[k]);
  if (st == AX_OK) {
    ax_tensor_release(f->grads);
    f->grads = grads;
    return ax_flat_cut_grads(f);
  }
  /* their gradients stay where they have moved */
  while (grads && --k > 0) ax_tensor_set_grad_slot(f->params[k - 1], NULL, 0);
  ax_tensor_release(grads);
  return st;
}

ax_status ax_flat_give_work(ax_flat *f, ax_dtype half)
{
  ax_tensor *work = NULL;
  ax_status st = new_buffer(f, half, f->size, &work);
  int k = 0;

  for (; st == AX_OK && k < f->n; k++) st = ax_tensor_set_work(f->params[k], work, f->offsets[k]);
  if (st == AX_OK) {
    ax_tensor_release(f->work);
    f->work = work;
    return AX_OK;
  }
  while (work && --k > 0) ax_tensor_set_work(f->params[k - 1], NULL, 0);
  ax_tensor_release(work);
  return st;
}

bool ax_flat_has_grad(const ax_flat *f)
{
  for (int k = 0; k < f->n; k++)
    if (f->params[k]->grad) return true;
  return false;
}

ax_status ax_flat_scale_grads(ax_flat *f, double factor)
{
  ax_tensor **grads = ax_calloc((size_t)f->n, sizeof *grads);
  ax_group *over;
  ax_status st;

  if (!grads) return AX_ENOMEM;
  for (int k = 0; k < f->n; k++) grads[k] = ax_flat_own_grad(f->params[k], &over);
  st = ax_scale_all(f->n, grads, factor);
  ax_mfree(grads);
  return st;
}

void ax_flat_touch(ax_flat *f)
{
  for (int k = 0; k < f->n; k++) ax_touch(f->params[k]);
}

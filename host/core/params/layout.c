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

/* New reference: the place of parameter k in a buffer of the layout, with the parameter's shape. */
static ax_status place_in(const ax_flat *f, const ax_tensor *buffer, int k, ax_tensor **out)
{
  const ax_tensor *p = f->params[k];
  int64_t strides[AX_MAX_DIMS];

  ax_strides_contiguous(p->ndim, p->shape, strides);
  return ax_tensor_over(buffer->storage, (ax_dtype)buffer->dtype, p->ndim, p->shape, strides,
                        buffer->offset + f->offsets[k], out);
}

static ax_status new_version(uint32_t edits, ax_version **out)
{
  if (!(*out = ax_malloc(sizeof **out))) return AX_ENOMEM;
  **out = (ax_version){ .refs = 1, .edits = edits };
  return AX_OK;
}

/* Copies every parameter to its place, and then, when nothing can fail any more, moves all of them
 * there. */
static ax_status move_in(ax_flat *f, bool bare)
{
  ax_tensor **places = ax_calloc((size_t)f->n, sizeof *places);
  ax_version **own = ax_calloc((size_t)f->n, sizeof *own);
  ax_status st = places && own ? AX_OK : AX_ENOMEM;

  for (int k = 0; st == AX_OK && k < f->n; k++) {
    st = place_in(f, f->values, k, &places[k]);
    if (st == AX_OK && !bare) st = ax_copy(places[k], f->params[k]);
    if (st == AX_OK) st = new_version(f->params[k]->version->edits, &own[k]);
  }
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
  f->slots = ax_calloc((size_t)n, sizeof *f->slots);
  f->arrivals = ax_calloc((size_t)n, sizeof *f->arrivals);
  if (!f->params || !f->offsets || !f->slots || !f->arrivals) {
    st = AX_ENOMEM;
    goto out;
  }
  AX_TRY(enlist(f, n, params, parts));
  if (bare) AX_TRY(ax_home_begin_bare(f));
  else AX_TRY(new_buffer(f, (ax_dtype)f->dtype, f->size, &f->values));
  AX_TRY(move_in(f, bare));
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
  for (int k = 0; k < f->n; k++) {
    ax_tensor_release(f->slots[k].grad), ax_tensor_release(f->slots[k].work);
    ax_tensor_release(f->params[k]);
  }
  ax_tensor_release(f->values), ax_tensor_release(f->grads), ax_tensor_release(f->work),
      ax_tensor_release(f->presence);
  if (f->names)
    for (int k = 0; k < f->n; k++) ax_mfree(f->names[k]);
  ax_mfree(f->names), ax_mfree(f->name);
  ax_mfree(f->params), ax_mfree(f->offsets), ax_mfree(f->slots), ax_mfree(f->arrivals), ax_mfree(f->expected),
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

/* Makes `grads` the buffer: when nothing can fail any more, gradients that there are move in. */
static ax_status take_grads(ax_flat *f, ax_tensor *grads)
{
  ax_tensor **places = ax_calloc((size_t)f->n, sizeof *places);
  ax_status st = AX_ENOMEM;

  if (!places) return st;
  for (int k = 0; k < f->n; k++) {
    if (f->params[k]->flat != f) continue; /* it may have another shape now */
    AX_TRY(place_in(f, grads, k, &places[k]));
    if (f->params[k]->grad) AX_TRY(ax_copy(places[k], f->params[k]->grad));
  }
  for (int k = 0; k < f->n; k++) {
    ax_tensor *const p = f->params[k], *const former = f->slots[k].grad;
    if (p->grad && places[k]) {
      ax_tensor_release(p->grad);
      p->grad = ax_tensor_retain(places[k]);
    }
    f->slots[k].grad = places[k];
    places[k] = former;
  }
  ax_tensor_release(f->grads);
  f->grads = grads;
out:
  for (int k = 0; k < f->n; k++) ax_tensor_release(places[k]);
  ax_mfree(places);
  return st;
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

  if (st == AX_OK && (st = take_grads(f, grads)) == AX_OK) return ax_flat_cut_grads(f);
  ax_tensor_release(grads);
  return st;
}

/* One that is written must not make the others look edited: each has a version cell of its own. */
static ax_status new_copy(const ax_flat *f, const ax_tensor *work, int k, ax_tensor **out)
{
  ax_version *own;
  ax_status st = new_version(0, &own);

  if (st != AX_OK || (st = place_in(f, work, k, out)) != AX_OK) ax_mfree(own);
  else (*out)->version = own;
  return st;
}

ax_status ax_flat_give_work(ax_flat *f, ax_dtype half)
{
  ax_tensor *work = NULL, **copies = ax_calloc((size_t)f->n, sizeof *copies);
  ax_status st = AX_ENOMEM;

  if (!copies) return st;
  if (!ax_is_half(half))
    AX_TRY(ax_fail(AX_EINVAL, "flat: expected a half type, got %s", ax_dtype_name(half)));
  AX_TRY(new_buffer(f, half, f->size, &work));
  for (int k = 0; k < f->n; k++)
    if (f->params[k]->flat == f) AX_TRY(new_copy(f, work, k, &copies[k]));
  for (int k = 0; k < f->n; k++) {
    ax_flat_slot *const s = &f->slots[k];
    ax_tensor *const former = s->work;
    *s = (ax_flat_slot){ .grad = s->grad, .work = copies[k], .work_edits = f->params[k]->version->edits - 1 };
    copies[k] = former;
  }
  ax_tensor_release(f->work);
  f->work = work;
  work = NULL;
out:
  for (int k = 0; k < f->n; k++) ax_tensor_release(copies[k]);
  ax_mfree(copies);
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

/* Buckets: ranges of an ax_flat whose gradients are reduced over ranks together, and the gradients
 * that each waits for. */
#include "slot.h"
#include "core/offload/scratch.h"
#include "core/tape/graph.h"

#include <string.h>

ax_status ax_flat_cut(ax_flat *f, int n, const int *ends)
{
  ax_bucket *buckets;
  int32_t *bucket_of;

  for (int k = 0; k < n; k++)
    if (ends[k] <= (k ? ends[k - 1] : 0) || ends[k] > f->n || (k == n - 1 && ends[k] != f->n))
      return ax_fail(AX_ERANGE, "flat: bucket %d ends before slot %d; the ends must rise to %d", k + 1,
                     ends[k] + 1, f->n);
  if (n < 1) return ax_fail(AX_ERANGE, "flat: there must be one bucket at least");
  buckets = ax_calloc((size_t)n, sizeof *buckets);
  bucket_of = ax_calloc((size_t)f->n, sizeof *bucket_of);
  if (!buckets || !bucket_of) {
    ax_mfree(buckets), ax_mfree(bucket_of);
    return AX_ENOMEM;
  }
  for (int k = 0; k < n; k++) {
    buckets[k] = (ax_bucket){ .first = k ? ends[k - 1] : 0, .last = ends[k] };
    for (int i = buckets[k].first; i < ends[k]; i++) bucket_of[i] = k;
  }
  ax_mfree(f->buckets), ax_mfree(f->bucket_of);
  f->buckets = buckets;
  f->bucket_of = bucket_of;
  f->n_buckets = n;
  return AX_OK;
}

/* ---- during a backward pass */

void ax_flat_expect(ax_flat *f, ax_flat_full full)
{
  memset(f->arrivals, 0, sizeof *f->arrivals * (size_t)f->n);
  f->full = full;
  for (int b = 0; b < f->n_buckets; b++) {
    ax_bucket *bucket = &f->buckets[b];
    bucket->pending = 0;
    for (int k = bucket->first; k < bucket->last; k++)
      if (f->params[k]->requires_grad) bucket->pending += f->expected ? f->expected[k] : 1;
  }
}

ax_status ax_flat_remember(ax_flat *f)
{
  int32_t *expected = ax_malloc(sizeof *expected * (size_t)f->n);
  if (!expected) return AX_ENOMEM;
  memcpy(expected, f->arrivals, sizeof *expected * (size_t)f->n);
  ax_mfree(f->expected);
  f->expected = expected;
  return AX_OK;
}

ax_status ax_flat_arrived(ax_tensor *param)
{
  ax_flat *f = param->flat;
  const int32_t expected = f->expected ? f->expected[param->slot] : 1;
  ax_bucket *bucket;

  f->reached++;
  f->arrivals[param->slot]++;
  /* it is complete, and has no business in memory */
  if (f->home.away & AX_CUT_GRADS && !f->home.group && ax_slot_grad(param))
    ax_stretch_forget(ax_data(ax_slot_grad(param)), (size_t)param->numel * ax_itemsize(param));
  if (!f->full || !f->bucket_of) return AX_OK;
  bucket = &f->buckets[f->bucket_of[param->slot]];
  /* One more of a parameter takes no other's place: the bucket still waits for the others. */
  if (f->arrivals[param->slot] <= expected || bucket->pending <= 0) bucket->pending--;
  return bucket->pending <= 0 ? f->full(f, f->bucket_of[param->slot], param->slot) : AX_OK;
}

bool ax_flat_is_watched(const ax_flat *f, int bucket)
{
  for (int k = f->buckets[bucket].first; k < f->buckets[bucket].last; k++)
    for (const ax_hook *h = f->params[k]->hooks; h; h = h->next)
      if (h->kind == AX_HOOK_POST && !h->gone) return true;
  return false;
}

/* ---- around a reduction */

/* Brings the gradient of slot k into it; zeroes the slot where there is none. */
static ax_status bring(ax_flat *f, int k)
{
  ax_tensor *p = f->params[k];
  ax_status st = AX_OK;

  if (!p->grad) {
    f->missing++;
    return ax_fill(f->slots[k].grad, 0);
  }
  if (p->grad == f->slots[k].grad) return AX_OK;
  if ((st = ax_copy(f->slots[k].grad, p->grad)) != AX_OK) return st;
  ax_tensor_release(p->grad);
  p->grad = ax_tensor_retain(f->slots[k].grad);
  return AX_OK;
}

/* Writes the presence behind the gradients. */
static ax_status write_presence(ax_flat *f)
{
  const int64_t n = f->n, one = 1;
  ax_tensor *there = NULL, *here = NULL;
  ax_status st;

  AX_TRY(
      ax_tensor_over(f->grads->storage, (ax_dtype)f->dtype, 1, &n, &one, f->grads->offset + f->size, &there));
  if (f->missing == 0) st = ax_fill(there, 1);
  else if ((st = ax_tensor_new((ax_dtype)f->dtype, 1, &n, &here)) == AX_OK) {
    for (int k = 0; k < f->n; k++)
      ax_store_double((ax_dtype)f->dtype, ax_data(here), k, f->params[k]->grad ? 1 : 0);
    st = ax_copy(there, here);
  }
out:
  ax_tensor_release(there);
  ax_tensor_release(here);
  return st;
}

static bool in_place(const ax_flat *f, int k) { return f->params[k]->flat == f && f->slots[k].grad; }

ax_status ax_flat_collect(ax_flat *f, int bucket, bool *current)
{
  const ax_bucket *b = &f->buckets[bucket];

  *current = true;
  for (int k = b->first; k < b->last && *current; k++) *current = in_place(f, k);
  if (!*current) return AX_OK;
  if (b->first == 0) f->missing = 0;
  for (int k = b->first; k < b->last; k++) {
    const ax_status st = bring(f, k);
    if (st != AX_OK) return st;
  }
  return b->last == f->n ? write_presence(f) : AX_OK;
}

/* Reads the presence to the CPU. */
static ax_status read_presence(ax_flat *f)
{
  const int64_t n = f->n, one = 1;
  ax_tensor *there = NULL, *here = NULL;
  ax_status st;

  AX_TRY(
      ax_tensor_over(f->grads->storage, (ax_dtype)f->dtype, 1, &n, &one, f->grads->offset + f->size, &there));
  AX_TRY(ax_tensor_new((ax_dtype)f->dtype, 1, &n, &here));
  AX_TRY(ax_copy(here, there));
  ax_tensor_release(f->presence);
  f->presence = here;
  here = NULL;
out:
  ax_tensor_release(there);
  ax_tensor_release(here);
  return st;
}

ax_status ax_flat_adopt(ax_flat *f, bool again)
{
  ax_status st;

  if (f->missing == 0) return AX_OK;
  if (!(again && f->presence) && (st = read_presence(f)) != AX_OK) return st;
  for (int k = 0; k < f->n; k++) {
    ax_tensor *p = f->params[k];
    if (!p->grad && in_place(f, k) && p->requires_grad &&
        ax_load_double((ax_dtype)f->dtype, ax_data(f->presence), k) > 0)
      p->grad = ax_tensor_retain(f->slots[k].grad);
  }
  return AX_OK;
}

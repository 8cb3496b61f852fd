/* Gathers: the ranks' parts of values that are cut become whole values (home.c has the tour).
 *
 * On a device a gather runs beside the computation, so that the layout which comes next is gathered
 * ahead: its memory fills while the one before it computes.  The order of the layouts is recorded
 * as they are gathered, in each mode: in forward passes with and without gradients, and in backward
 * passes.  All ranks have the same, since gathers are collectives.  A layout that comes out of turn
 * is gathered when it is used, and one that does not come is forgotten with the pass. */
#include "core/params/home.h"
#include "core/core.h"
#include "core/dist/watch.h"

static _Thread_local int64_t gathered; /* bytes */

int64_t ax_flat_gathered(void) { return gathered; }

ax_status ax_home_all_gather(const ax_flat *f, const ax_tensor *mine, void *out, ax_work **work)
{
  const ax_collective c = { .op = AX_ALL_GATHER,
                            .dtype = (ax_dtype)mine->dtype,
                            .kind = f->device.kind,
                            .index = f->device.index,
                            .count = mine->numel,
                            .in = ax_data(mine),
                            .out = out };
  gathered += f->home.group->size * mine->numel * (int64_t)ax_dtype_size((ax_dtype)mine->dtype);
  return ax_dist_run(f->home.group, &c, work);
}

ax_status ax_home_own_part(const ax_flat *f, ax_dtype dtype, ax_tensor **out)
{
  ax_tensor *const values = f->home.values;
  ax_status st;

  *out = NULL;
  AX_TRY(ax_tensor_ready(values, AX_READ));
  if (dtype == (ax_dtype)f->dtype && ax_same_device(values->device, f->device))
    *out = ax_tensor_retain(values);
  else {
    AX_TRY(ax_tensor_new_on(f->device, dtype, 1, &values->numel, out));
    AX_TRY(ax_copy(*out, values));
  }
  return AX_OK;
out:
  ax_tensor_release(*out);
  *out = NULL;
  return st;
}

/* Begins to gather the ranks' parts in a whole buffer's type. */
static ax_status begin(ax_flat *f, const ax_tensor *whole)
{
  ax_home *h = &f->home;
  const bool eight = h->eight && whole == h->eight->values;
  ax_status st;

  AX_TRY(ax_home_record(f, AX_CUT_VALUES, h->values));
  AX_TRY(eight ? ax_eight_own_part(f, &h->sent) : ax_home_own_part(f, (ax_dtype)whole->dtype, &h->sent));
  AX_TRY(ax_storage_new(f->device, whole->storage->bytes, &h->arriving));
  AX_TRY(ax_home_all_gather(f, h->sent, h->arriving->data, &h->coming));
  return AX_OK;
out:
  ax_home_forget_arriving(f);
  return st;
}

void ax_home_forget_arriving(ax_flat *f)
{
  ax_home *h = &f->home;

  ax_work_wait(h->coming); /* a failure is the next collective's, too */
  ax_storage_release(h->arriving);
  ax_tensor_release(h->sent);
  h->coming = NULL, h->arriving = NULL, h->sent = NULL;
}

ax_status ax_home_fill(ax_flat *f, ax_tensor *whole, ax_claim *c)
{
  ax_home *h = &f->home;
  ax_work *coming;
  ax_status st;

  /* the gather that was begun ahead may be of another type than this use needs */
  if (h->arriving && h->arriving->bytes != whole->storage->bytes) ax_home_forget_arriving(f);
  st = h->arriving ? AX_OK : begin(f, whole);
  if (st != AX_OK) return st;
  coming = h->coming;
  h->coming = NULL;
  if ((st = ax_work_wait(coming)) == AX_OK) {
    ax_storage_trade(whole->storage, h->arriving);
    ax_claim_take_off(c);
  }
  ax_home_forget_arriving(f);
  return st;
}

/* Gives a whole buffer the elements of another, and takes its claim off. */
static ax_status convert(ax_tensor *whole, ax_claim *c, ax_tensor *from)
{
  ax_storage *fresh;
  ax_status st = ax_storage_new(whole->device, whole->storage->bytes, &fresh);

  if (st != AX_OK) return st;
  ax_storage_trade(whole->storage, fresh);
  ax_storage_release(fresh);
  ax_claim_take_off(c);
  if ((st = ax_copy(whole, from)) != AX_OK) ax_home_take_memory(whole, c);
  return st;
}

/* ---- ahead */

typedef enum { TRAINING, EVALUATION, BACKWARD } mode;

static _Thread_local ax_flat *cut;  /* all layouts that are cut */
static _Thread_local ax_flat *last; /* the layout that was gathered last in this pass; NULL: none */
static _Thread_local mode last_mode;

/* The buffer that a model computes with. */
static ax_tensor *computed(const ax_flat *f)
{
  const ax_home *h = &f->home;
  return h->eight ? h->eight->values : ax_home_gathers_half(f) ? f->work : f->values;
}

static bool in_pass(const ax_flat *f) { return f->home.computes || ax_backward_runs(); }

static ax_status begin_next(ax_flat *f)
{
  const mode now = ax_backward_runs() ? BACKWARD : ax_grad_enabled() ? TRAINING : EVALUATION;
  ax_flat *next;

  if (f->device.kind == AX_CPU) return AX_OK; /* its collectives end before they return */
  if (!in_pass(f)) return AX_OK;
  if (last && last != f && last_mode == now) last->home.next[now] = f;
  last = f;
  last_mode = now;
  next = f->home.next[now];
  if (!next || !in_pass(next) || next->home.arriving || ax_flat_has_values(next) || next->home.exact)
    return AX_OK;
  return begin(next, computed(next));
}

void ax_home_list(ax_flat *f)
{
  f->home.listed = cut;
  cut = f;
}

ax_flat *ax_home_first(void) { return cut; }

void ax_home_unlist(ax_flat *f)
{
  for (ax_flat **at = &cut; *at;) {
    for (int k = 0; k < 3; k++)
      if ((*at)->home.next[k] == f) (*at)->home.next[k] = NULL;
    if (*at == f) *at = f->home.listed;
    else at = &(*at)->home.listed;
  }
  if (last == f) last = NULL;
}

void ax_flat_compute(ax_flat *f, bool on)
{
  f->home.computes = on;
  last = NULL;
  if (!on) ax_home_forget_arriving(f);
}

ax_status ax_home_gather_wide(ax_flat *f)
{
  ax_home *h = &f->home;
  ax_status st;

  if (!ax_home_gathers_half(f)) st = ax_home_fill(f, f->values, &h->no_values);
  else st = h->exact ? convert(f->work, &h->no_work, f->values) : ax_home_fill(f, f->work, &h->no_work);
  for (int k = 0; k < f->n && st == AX_OK && f->work; k++)
    f->slots[k].work_edits = f->params[k]->version->edits;
  return st == AX_OK ? begin_next(f) : st;
}

ax_status ax_home_gather(ax_flat *f)
{
  ax_home *h = &f->home;
  ax_status st;

  if (!h->eight) return ax_home_gather_wide(f);
  if (ax_eight_has_whole(f)) st = ax_eight_from_whole(f);
  else st = ax_home_fill(f, h->eight->values, &h->eight->none);
  return st == AX_OK ? begin_next(f) : st;
}

ax_status ax_home_widen(ax_flat *f)
{
  const ax_status st = ax_tensor_ready(f->work, AX_READ);
  return st == AX_OK ? convert(f->values, &f->home.no_values, f->work) : st;
}

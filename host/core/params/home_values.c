/* Values of a layout that is cut: gathered, given back, and taken as a script has edited them
 * (home.c has the tour). */
#include "core/params/home.h"
#include "core/core.h"
#include "core/dist/watch.h"

#include <string.h>

static ax_status all_gather(const ax_flat *f, const void *in, void *out)
{
  const ax_collective c = { .op = AX_ALL_GATHER,
                            .dtype = (ax_dtype)f->dtype,
                            .kind = f->device.kind,
                            .index = f->device.index,
                            .count = f->home.last - f->home.first,
                            .in = in,
                            .out = out };
  return ax_dist_run(f->home.group, &c, NULL);
}

ax_status ax_home_gather(ax_flat *f)
{
  ax_storage *fresh = NULL;
  ax_status st;

  AX_TRY(ax_home_refuse_recording(f));
  AX_TRY(ax_tensor_ready(f->home.values, AX_READ));
  AX_TRY(ax_storage_new(f->device, f->values->storage->bytes, &fresh));
  AX_TRY(all_gather(f, ax_data(f->home.values), fresh->data));
  ax_storage_trade(f->values->storage, fresh);
  ax_claim_take_off(&f->home.no_values);
out:
  ax_storage_release(fresh);
  return st;
}

bool ax_flat_has_values(const ax_flat *f)
{
  return !(f->home.cut & AX_CUT_VALUES) || f->home.shared || !f->home.no_values.at;
}

ax_status ax_flat_acquire(ax_flat *f)
{
  const ax_status st = ax_flat_has_values(f) ? AX_OK : ax_home_gather(f);
  if (st == AX_OK) f->home.users++;
  return st;
}

ax_status ax_flat_acquire_own(ax_flat *f)
{
  ax_home *h = &f->home;
  ax_storage *own = NULL;
  ax_status st;

  if (!h->shared || h->mapping) return ax_flat_acquire(f);
  AX_TRY(ax_storage_new(f->device, f->values->storage->bytes, &own));
  memcpy(own->data, f->values->storage->data, own->bytes);
  ax_storage_trade(f->values->storage, own);
  ax_claim_take_off(&h->no_values);
  h->mapping = own;
  own = NULL;
  h->users++;
out:
  ax_storage_release(own);
  return st;
}

/* Puts the memory of all ranks back in the place of the private copy. */
static void share_again(ax_flat *f)
{
  ax_home *h = &f->home;

  if (!h->mapping) return;
  ax_storage_trade(f->values->storage, h->mapping);
  ax_claim_put(f->values->storage, &h->no_values);
  ax_storage_release(h->mapping);
  h->mapping = NULL;
}

void ax_flat_drop_values(ax_flat *f)
{
  f->home.users = 0;
  share_again(f);
  if (f->home.shared) return;
  if ((f->home.cut & AX_CUT_VALUES) && ax_flat_has_values(f))
    ax_home_take_memory(f->values, &f->home.no_values);
}

void ax_flat_let_go(ax_flat *f, bool keep)
{
  if (f->home.users > 0) f->home.users--;
  if (!keep && f->home.users == 0) ax_flat_drop_values(f);
}

ax_status ax_flat_spread(ax_flat *f)
{
  ax_tensor *mine = NULL;
  ax_status st = AX_OK;

  if (!f->home.group || f->home.cut & AX_CUT_VALUES) return AX_OK;
  AX_TRY(ax_home_refuse_recording(f));
  AX_TRY(ax_tensor_ready(f->values, AX_WRITE));
  AX_TRY(ax_home_copy_part(f, f->values, &mine));
  AX_TRY(all_gather(f, ax_data(mine), ax_data(f->values)));
  ax_flat_touch(f);
out:
  ax_tensor_release(mine);
  return st;
}

ax_status ax_flat_take_back(ax_flat *f)
{
  ax_tensor *there = NULL;
  ax_status st = AX_OK;

  if (!(f->home.cut & AX_CUT_VALUES) || !ax_flat_has_values(f) || (f->home.shared && !f->home.mapping))
    return AX_OK;
  AX_TRY(ax_home_view(f, f->values, 0, f->home.first, f->home.last, &there));
  AX_TRY(ax_copy(f->home.values, there));
  ax_flat_touch(f);
out:
  ax_tensor_release(there);
  return st;
}

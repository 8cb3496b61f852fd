/* Values of a layout that is cut: acquired, given back, and taken as a script has edited them
 * (home.c has the tour, gather.c brings them). */
#include "core/params/home.h"
#include "core/core.h"

#include <string.h>

bool ax_flat_has_values(const ax_flat *f)
{
  const ax_home *h = &f->home;
  if (!(h->cut & AX_CUT_VALUES) || h->shared) return true;
  if (h->eight) return !h->eight->none.at;
  return ax_home_gathers_half(f) ? !h->no_work.at : !h->no_values.at;
}

/* ---- acquiring */

/* The values as they are, in the type of the layout. */
static ax_status gather_exactly(ax_flat *f)
{
  ax_home *h = &f->home;
  ax_status st;

  if (!(h->cut & AX_CUT_VALUES) || h->shared) return AX_OK;
  if (!ax_home_gathers_half(f)) return h->no_values.at ? ax_home_gather_wide(f) : AX_OK;
  if (h->exact) return AX_OK;
  ax_flat_drop_values(f); /* those that were widened */
  st = ax_home_fill(f, f->values, &h->no_values);
  h->exact = st == AX_OK;
  return st;
}

/* A private copy in the place of the memory of all ranks. */
static ax_status copy_shared(ax_flat *f)
{
  ax_home *h = &f->home;
  ax_storage *own;
  const ax_status st = ax_storage_new(f->device, f->values->storage->bytes, &own);

  if (st != AX_OK) return st;
  memcpy(own->data, f->values->storage->data, own->bytes);
  ax_storage_trade(f->values->storage, own);
  ax_claim_take_off(&h->no_values);
  h->mapping = own;
  return AX_OK;
}

ax_status ax_flat_acquire(ax_flat *f, ax_whole_use use)
{
  ax_status st = AX_OK;

  if (use == AX_TO_WRITE && f->home.shared) st = f->home.mapping ? AX_OK : copy_shared(f);
  else if (use != AX_TO_COMPUTE) st = gather_exactly(f);
  else if (!ax_flat_has_values(f)) st = ax_home_gather(f);
  if (st == AX_OK) f->home.users++;
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
  ax_home *h = &f->home;

  h->users = 0;
  share_again(f);
  if (h->shared || !(h->cut & AX_CUT_VALUES)) return;
  ax_home_forget_arriving(f);
  if (!h->no_values.at) ax_home_take_memory(f->values, &h->no_values);
  if (ax_home_gathers_half(f) && !h->no_work.at) ax_home_take_memory(f->work, &h->no_work);
  if (h->eight && !h->eight->none.at) ax_home_take_memory(h->eight->values, &h->eight->none);
  h->exact = false;
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
  AX_TRY(ax_home_record(f, AX_CUT_VALUES, f->values));
  AX_TRY(ax_tensor_ready(f->values, AX_WRITE));
  AX_TRY(ax_home_copy_part(f, f->values, &mine));
  AX_TRY(ax_home_all_gather(f, mine, ax_data(f->values), NULL));
  ax_flat_touch(f);
out:
  ax_tensor_release(mine);
  return st;
}

ax_status ax_flat_take_back(ax_flat *f)
{
  const ax_home *h = &f->home;
  ax_tensor *there = NULL;
  ax_status st = AX_OK;

  if (!(h->cut & AX_CUT_VALUES) || (h->shared ? !h->mapping : h->no_values.at != NULL)) return AX_OK;
  AX_TRY(ax_home_view(f, f->values, 0, f->home.first, f->home.last, &there));
  AX_TRY(ax_copy(f->home.values, there));
  ax_flat_touch(f);
out:
  ax_tensor_release(there);
  return st;
}

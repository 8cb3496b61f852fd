/* Gradients of a layout that is cut: brought home, each rank its part (home.c has the tour). */
#include "core/params/home.h"
#include "core/core.h"
#include "core/dist/watch.h"
#include "slot.h"

/* The mean of the ranks' whole gradients -> this rank's part, `to`, of their type. */
static ax_status reduce(const ax_flat *f, const ax_tensor *grads, ax_tensor *to)
{
  const ax_home *h = &f->home;
  ax_collective c = { .op = AX_REDUCE_SCATTER,
                      .dtype = (ax_dtype)grads->dtype,
                      .reduction = AX_MEAN,
                      .kind = f->device.kind,
                      .index = f->device.index,
                      .count = h->last - h->first,
                      .in = ax_data(grads),
                      .out = ax_data(to) };
  ax_status st = ax_dist_run(h->group, &c, NULL);

  if (st != AX_OK || !h->copies) return st;
  c.op = AX_ALL_REDUCE;
  c.in = c.out;
  return ax_dist_run(h->copies, &c, NULL);
}

/* Adds `from`, where the parameter had a gradient, or else copies it. */
static ax_status merge(ax_tensor *to, ax_tensor *from, bool had)
{
  if (!had) return ax_copy(to, from);
  return ax_run_inplace(AX_OP_ADD,
                        &(ax_args){ .n_in = 2, .in = (ax_tensor *[]){ to, from }, .a = { .n_list = -1 } },
                        to);
}

static ax_status merge_part(ax_flat *f, ax_tensor *arrived, int had)
{
  ax_home *h = &f->home;
  ax_tensor *piece = NULL;
  ax_status st = AX_OK;

  if (had == f->n) return merge(h->grads, arrived, true);
  for (int k = 0; k < f->n; k++) {
    int64_t from;
    const int64_t n = ax_flat_piece(f, k, &from), at = f->offsets[k] + from;
    if (!n) continue;
    AX_TRY(ax_home_view(f, arrived, h->first, at, at + n, &piece));
    AX_TRY(merge(h->grad_piece[k], piece, h->had[k]));
    ax_tensor_release(piece);
    piece = NULL;
  }
out:
  ax_tensor_release(piece);
  return st;
}

/* A gradient that the script or a hook has put elsewhere is all there is of it. */
static ax_status bring(ax_flat *f, int k)
{
  ax_tensor *p = f->params[k];
  ax_status st;

  if (!p->grad) {
    f->missing++;
    f->home.had[k] = false;
    return ax_fill(f->slots[k].grad, 0);
  }
  if (p->grad == f->slots[k].grad) return AX_OK;
  if ((st = ax_copy(f->slots[k].grad, p->grad)) != AX_OK) return st;
  ax_tensor_release(p->grad);
  p->grad = ax_tensor_retain(f->slots[k].grad);
  f->home.had[k] = false;
  return AX_OK;
}

/* New reference: this rank's part of the mean, in the gradients' type, of gradients that were
 * rounded to `as` on all ranks. */
static ax_status reduce_in(const ax_flat *f, ax_dtype as, ax_tensor **out)
{
  ax_tensor *rounded = NULL, *low = NULL;
  const bool is_own = as == (ax_dtype)f->dtype;
  ax_status st;

  *out = NULL;
  AX_TRY(ax_tensor_new_on(f->device, (ax_dtype)f->dtype, 1, &f->home.grads->numel, out));
  if (is_own) AX_TRY(reduce(f, f->grads, *out));
  else {
    AX_TRY(ax_cast(f->grads, as, &rounded));
    AX_TRY(ax_tensor_new_on(f->device, as, 1, &f->home.grads->numel, &low));
    AX_TRY(reduce(f, rounded, low));
    AX_TRY(ax_copy(*out, low));
  }
out:
  ax_tensor_release(rounded);
  ax_tensor_release(low);
  if (st == AX_OK) return st;
  ax_tensor_release(*out);
  *out = NULL;
  return st;
}

/* What has arrived, where the part rests. */
static ax_status bring_home(const ax_tensor *part, ax_tensor **arrived)
{
  ax_tensor *there;
  ax_status st;

  if (ax_same_device(part->device, (*arrived)->device)) return AX_OK;
  if ((st = ax_tensor_new_on(part->device, (ax_dtype)part->dtype, 1, &part->numel, &there)) != AX_OK)
    return st;
  if ((st = ax_copy(there, *arrived)) != AX_OK) {
    ax_tensor_release(there);
    return st;
  }
  ax_tensor_release(*arrived);
  *arrived = there;
  return AX_OK;
}

/* The first parameter that was given other memory since it was laid out; NULL: there is none. */
static const char *moved_away(const ax_flat *f)
{
  for (int k = 0; k < f->n; k++)
    if (f->params[k]->flat != f) return f->names ? f->names[k] : "a parameter";
  return NULL;
}

ax_status ax_flat_deliver(ax_flat *f, ax_dtype as)
{
  ax_home *h = &f->home;
  const bool recording = ax_grad_set_enabled(false);
  const char *const moved = moved_away(f);
  ax_tensor *arrived = NULL;
  int had = 0;
  ax_status st;

  if (!h->grads) {
    st = ax_fail(AX_EINVAL, "flat: the layout's gradients are not cut");
    goto out;
  }
  if (moved) {
    st = ax_fail(AX_EINVAL,
                 "%s was given other memory (its data was set, or it was converted) after prepare had cut "
                 "the model over %d ranks; convert the model before prepare",
                 moved, h->group->size);
    goto out;
  }
  AX_TRY(ax_home_record(f, AX_CUT_GRADS, h->grads));
  f->missing = 0;
  if (h->no_grads.at) AX_TRY(ax_home_give_zeros(f));
  for (int k = 0; k < f->n; k++) AX_TRY(bring(f, k));
  for (int k = 0; k < f->n; k++) had += h->had[k];
  AX_TRY(ax_tensor_ready(f->grads, AX_READ));
  AX_TRY(ax_tensor_ready(h->grads, AX_WRITE));
  if (!had && as == (ax_dtype)f->dtype && ax_same_device(h->grads->device, f->device)) {
    AX_TRY(reduce(f, f->grads, h->grads));
    ax_touch(h->grads);
  } else {
    AX_TRY(reduce_in(f, as, &arrived));
    if (had) AX_TRY(bring_home(h->grads, &arrived));
    AX_TRY(had ? merge_part(f, arrived, had) : ax_copy(h->grads, arrived));
  }
  ax_stretch_forget(ax_data(h->grads), h->grads->storage->bytes);
  ax_home_take_memory(f->grads, &h->no_grads);
out:
  ax_grad_set_enabled(recording);
  ax_tensor_release(arrived);
  return st;
}

ax_tensor *ax_flat_own_grad(ax_tensor *p, ax_group **group)
{
  ax_flat *f = p->flat;

  *group = NULL;
  if (!f || !f->home.grads || !p->grad || p->grad != ax_slot_grad(p)) return p->grad;
  *group = f->home.group;
  return f->home.grad_piece[p->slot];
}

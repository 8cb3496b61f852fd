/* Homes: where the buffers of a layout rest when it is cut over a group of ranks (flat.h).
 *
 * A parameter is a view of its layout's whole buffer of values, and its gradient one of the whole
 * buffer of gradients, for as long as they live.  Of a buffer that is cut this rank keeps one part;
 * the whole buffer's storage has no memory then, and carries a claim.  Memory comes to it
 *   values     by ax_flat_acquire, which a unit's forward hooks call, or by the claim, when a
 *              kernel of the model's forward or of a backward pass asks: the parts are gathered
 *   gradients  by the claim, when a backward pass writes the first one: zeros
 * and goes when the use ends, or when ax_flat_deliver has reduced the gradients into the parts.
 * The optimizer never needs the whole buffers: it steps pieces, views of the parts. */
#include "core/params/home.h"
#include "capture.h"
#include "core/core.h"
#include "core/dist/watch.h"
#include "core/tape/graph.h"

#include <string.h>

static ax_status gather(ax_flat *f);

/* A recording would keep the addresses of memory that comes and goes. */
static ax_status refuse_recording(const ax_flat *f)
{
  if (!ax_recording) return AX_OK;
  return ax_fail(
      AX_ENOIMPL,
      "%s is cut over %d ranks, and a step over it cannot be captured yet: call the step without capture",
      f->name ? f->name : "the model", f->home.group->size);
}

/* ---- memory that comes and goes */

static int slot_at(const ax_flat *f, int64_t element)
{
  int k = 0;
  while (k + 1 < f->n && f->offsets[k + 1] <= element) k++;
  return k;
}

/* Fails for a use outside of what brings the memory here. */
static ax_status refuse(const ax_flat *f, int64_t at, const char *what, const char *when)
{
  const int k = at < 0 ? -1 : slot_at(f, at);
  const ax_group *g = f->home.group;

  return ax_fail(AX_EINVAL,
                 "%s%s%s%s is cut over %d rank%s, and this rank has its part alone: the whole is here %s, "
                 "and inside accelerate.utils.summon_full_params(model, fn)",
                 what,
                 k >= 0 && f->names ? f->names[k]
                 : f->name          ? f->name
                                    : "a parameter",
                 k >= 0 && f->names && f->name && *f->name ? " of unit " : "",
                 k >= 0 && f->names && f->name ? f->name : "", g->size, g->size == 1 ? "" : "s", when);
}

static ax_status before_values(ax_claim *c, int64_t at)
{
  ax_flat *f = c->owner;
  if (!f->home.computes && !ax_backward_runs())
    return refuse(f, at, "", "while the model's forward and backward run");
  return gather(f);
}

/* The whole gradients begin as zeros: to kernels that add to those of an earlier pass, whose sum is
 * in the part, zeros are what is there. */
static ax_status give_zeros(ax_flat *f)
{
  ax_tensor *fresh = NULL;
  ax_status st;

  AX_TRY(refuse_recording(f));
  AX_TRY(ax_tensor_zeros_on(f->device, (ax_dtype)f->dtype, 1, &f->grads->numel, &fresh));
  ax_storage_trade(f->grads->storage, fresh->storage);
  ax_claim_take_off(&f->home.no_grads);
  for (int k = 0; k < f->n; k++) f->home.had[k] = f->params[k]->grad == f->params[k]->grad_slot;
out:
  ax_tensor_release(fresh);
  return st;
}

static ax_status before_grads(ax_claim *c, int64_t at)
{
  ax_flat *f = c->owner;
  return ax_backward_runs() ? give_zeros(f) : refuse(f, at, "the gradient of ", "while backward runs");
}

/* The slot that t is all of; -1: none. */
static int slot_of(const ax_flat *f, const ax_tensor *t)
{
  const int k = slot_at(f, t->offset);
  return f->offsets[k] == t->offset && f->params[k]->numel == t->numel && t->dtype == f->dtype &&
                 ax_tensor_is_contiguous(t)
             ? k
             : -1;
}

static bool piece_in(const ax_flat *f, ax_tensor **pieces, const ax_tensor *t, ax_tensor **piece,
                     int64_t *from)
{
  const int k = slot_of(f, t);

  if (k < 0) return false;
  ax_flat_piece(f, k, from);
  *piece = pieces[k];
  return true;
}

/* While a pass runs whoever edits a whole buffer brings it here. */
static bool value_piece(ax_claim *c, const ax_tensor *t, ax_tensor **piece, int64_t *from)
{
  const ax_flat *f = c->owner;
  return !f->home.computes && !ax_backward_runs() && piece_in(f, f->home.value_piece, t, piece, from);
}

static bool grad_piece(ax_claim *c, const ax_tensor *t, ax_tensor **piece, int64_t *from)
{
  const ax_flat *f = c->owner;
  return !ax_backward_runs() && piece_in(f, f->home.grad_piece, t, piece, from);
}

static const ax_claim_kind no_values = { .uses = AX_READ | AX_WRITE,
                                         .before = before_values,
                                         .piece_of = value_piece },
                           no_grads = { .uses = AX_READ | AX_WRITE,
                                        .before = before_grads,
                                        .piece_of = grad_piece };

static ax_status before_shared(ax_claim *c, int64_t at)
{
  const ax_flat *f = c->owner;
  const int k = at < 0 ? -1 : slot_at(f, at);

  return ax_fail(AX_EINVAL,
                 "%s: its memory belongs to %d ranks, and this call may write elements of others' parts: "
                 "elementwise edits of the whole parameter inside tensor.no_grad are fine, others go inside "
                 "accelerate.utils.summon_full_params(model, { writeback = true }, fn)",
                 k >= 0 && f->names ? f->names[k] : "a parameter", f->home.group->size);
}

static bool shared_piece(ax_claim *c, const ax_tensor *t, ax_tensor **piece, int64_t *from)
{
  const ax_flat *f = c->owner;
  return piece_in(f, f->home.value_piece, t, piece, from);
}

static ax_status wait_for_all(const ax_flat *f)
{
  return ax_dist_run(f->home.group, &(ax_collective){ .op = AX_BARRIER }, NULL);
}

/* Nobody reads while parts are written. */
static ax_status shared_edits(ax_claim *c, bool begins)
{
  (void)begins;
  return wait_for_all(c->owner);
}

static const ax_claim_kind shared_values = {
  .uses = AX_WRITE, .before = before_shared, .piece_of = shared_piece, .edits = shared_edits
};

/* Frees the memory of a whole buffer. */
static void take_memory(ax_tensor *whole, ax_claim *c)
{
  ax_storage_empty(whole->storage);
  ax_claim_put(whole->storage, c);
}

/* ---- tensors that outlive their layout */

static ax_status before_lost(ax_claim *c, int64_t at)
{
  (void)c, (void)at;
  return ax_fail(AX_EINVAL, "a parameter or gradient of a model that was cut over ranks and is gone: its "
                            "elements are nowhere, or belong to other ranks, too");
}
static void free_claim(ax_claim *c) { ax_mfree(c); }

static const ax_claim_kind lost = { .uses = AX_READ | AX_WRITE, .before = before_lost, .gone = free_claim },
                           lost_shared = { .uses = AX_WRITE, .before = before_lost, .gone = free_claim };

static ax_status new_claim(ax_claim **out)
{
  *out = ax_calloc(1, sizeof **out);
  return *out ? AX_OK : AX_ENOMEM;
}

/* Puts `after` in the place of the layout's own claim, where that stands. */
static void leave_claim(ax_tensor *whole, ax_claim *own, ax_claim **after)
{
  if (own->at) {
    (*after)->kind = own->kind == &shared_values ? &lost_shared : &lost;
    ax_claim_take_off(own);
    ax_claim_put(whole->storage, *after);
    *after = NULL;
  }
  ax_mfree(*after);
}

/* ---- cutting */

/* A view of [from, to) of a buffer that begins at element `begins` of the layout. */
static ax_status view(const ax_flat *f, ax_tensor *buffer, int64_t begins, int64_t from, int64_t to,
                      ax_tensor **out)
{
  const int64_t n = to - from, one = 1;
  return ax_tensor_over(buffer->storage, (ax_dtype)f->dtype, 1, &n, &one, buffer->offset + from - begins,
                        out);
}

int64_t ax_flat_piece(const ax_flat *f, int k, int64_t *from)
{
  const int64_t part = f->home.last - f->home.first;
  return ax_flat_piece_of(f, k, f->home.group ? (int)(f->home.first / part) : 0, from);
}

int64_t ax_flat_piece_of(const ax_flat *f, int k, int rank, int64_t *from)
{
  const int64_t part = f->home.last - f->home.first, first = rank * part, last = first + part;
  const int64_t at = f->offsets[k], end = at + f->params[k]->numel;
  const int64_t a = at > first ? at : first, b = end < last ? end : last;

  if (!f->home.group) {
    *from = 0;
    return f->params[k]->numel;
  }
  *from = a < b ? a - at : 0;
  return a < b ? b - a : 0;
}

/* Views of this rank's elements of each parameter, in the buffer where they rest. */
static ax_status make_pieces(ax_flat *f, ax_tensor *part, ax_tensor *whole, ax_tensor **pieces)
{
  ax_status st = AX_OK;

  for (int k = 0; k < f->n && st == AX_OK; k++) {
    int64_t from;
    const int64_t n = ax_flat_piece(f, k, &from), at = f->offsets[k] + from;
    if (n) st = view(f, part ? part : whole, part ? f->home.first : 0, at, at + n, &pieces[k]);
  }
  return st;
}

static void free_pieces(const ax_flat *f, ax_tensor **pieces)
{
  for (int k = 0; k < f->n && pieces; k++) {
    ax_tensor_release(pieces[k]);
    pieces[k] = NULL;
  }
}

/* A copy of this rank's part of a buffer. */
static ax_status copy_part(const ax_flat *f, ax_tensor *whole, ax_tensor **out)
{
  ax_tensor *there = NULL;
  ax_status st;

  AX_TRY(view(f, whole, 0, f->home.first, f->home.last, &there));
  st = ax_run1(AX_OP_CLONE, there, out);
out:
  ax_tensor_release(there);
  return st;
}

/* Puts the values into memory that all ranks have, where they can. */
static ax_status share_values(ax_flat *f)
{
  ax_home *h = &f->home;
  const size_t item = ax_dtype_size((ax_dtype)f->dtype), own = (size_t)(h->last - h->first) * item;
  const int64_t n = h->last - h->first, one = 1;
  ax_storage *whole = NULL, *part = NULL;
  ax_tensor *there = NULL;
  ax_status st;

  if (!ax_shared_possible(h->group, f->device)) return AX_OK;
  AX_TRY(ax_shared_new(h->group, f->values->storage->bytes, (size_t)h->first * item, own, &whole, &part));
  if (!whole) goto out;
  AX_TRY(ax_tensor_over(part, (ax_dtype)f->dtype, 1, &n, &one, 0, &there));
  AX_TRY(ax_copy(there, h->values));
  ax_tensor_release(h->values);
  h->values = there;
  there = NULL;
  h->shared = true;
  h->no_values.kind = &shared_values;
  AX_TRY(wait_for_all(f));
  ax_storage_trade(f->values->storage, whole);
  ax_claim_put(f->values->storage, &h->no_values);
out:
  ax_tensor_release(there);
  ax_storage_release(whole);
  ax_storage_release(part);
  return st;
}

ax_status ax_flat_cut_grads(ax_flat *f)
{
  ax_home *h = &f->home;
  ax_status st = AX_OK;

  if (!h->group) return AX_OK;
  if (h->cut & AX_CUT_GRADS) AX_TRY(copy_part(f, f->grads, &h->grads));
  AX_TRY(make_pieces(f, h->grads, f->grads, h->grad_piece));
  if (h->grads) take_memory(f->grads, &h->no_grads);
  return AX_OK;
out: /* the gradients stay whole */
  free_pieces(f, h->grad_piece);
  ax_tensor_release(h->grads);
  h->grads = NULL;
  return st;
}

ax_status ax_flat_cut_over(ax_flat *f, ax_group *group, ax_group *copies, uint8_t cut)
{
  ax_home *h = &f->home;
  const int64_t part = f->size / group->size;
  ax_status st = AX_ENOMEM;

  if (h->group) return ax_fail(AX_EINVAL, "flat: the layout is cut already");
  if (f->work) return ax_fail(AX_EINVAL, "flat: a layout with working copies cannot be cut");
  if (f->size % group->size || part % (AX_SLOT_BYTES / (int64_t)ax_dtype_size((ax_dtype)f->dtype)))
    return ax_fail(AX_EINVAL, "flat: %lld elements do not make %d equal parts", (long long)f->size,
                   group->size);
  h->group = ax_group_retain(group);
  h->copies = copies ? ax_group_retain(copies) : NULL;
  h->first = part * group->rank;
  h->last = h->first + part;
  h->no_values = (ax_claim){ .kind = &no_values, .owner = f };
  h->no_grads = (ax_claim){ .kind = &no_grads, .owner = f };
  h->had = ax_calloc((size_t)f->n, sizeof *h->had);
  h->value_piece = ax_calloc((size_t)f->n, sizeof *h->value_piece);
  h->grad_piece = ax_calloc((size_t)f->n, sizeof *h->grad_piece);
  if (!h->had || !h->value_piece || !h->grad_piece) goto out;
  AX_TRY(new_claim(&h->after_values));
  AX_TRY(new_claim(&h->after_grads));
  if (cut & AX_CUT_VALUES) {
    AX_TRY(copy_part(f, f->values, &h->values));
    AX_TRY(share_values(f));
  }
  AX_TRY(make_pieces(f, h->values, f->values, h->value_piece));
  h->cut = cut;
  if (f->grads) AX_TRY(ax_flat_cut_grads(f));
  if (h->values && !h->shared) take_memory(f->values, &h->no_values);
  return AX_OK;
out: /* all of it is whole */
  ax_flat_free_home(f);
  return st;
}

void ax_flat_free_home(ax_flat *f)
{
  ax_home *h = &f->home;

  if (f->values) leave_claim(f->values, &h->no_values, &h->after_values);
  if (f->grads) leave_claim(f->grads, &h->no_grads, &h->after_grads);
  else ax_mfree(h->after_grads);
  free_pieces(f, h->value_piece), free_pieces(f, h->grad_piece);
  ax_tensor_release(h->values), ax_tensor_release(h->grads);
  ax_storage_release(h->mapping);
  if (h->group) ax_group_release(h->group);
  if (h->copies) ax_group_release(h->copies);
  ax_mfree(h->had), ax_mfree(h->value_piece), ax_mfree(h->grad_piece);
  *h = (ax_home){ 0 };
}

/* ---- values */

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

static ax_status gather(ax_flat *f)
{
  ax_storage *fresh = NULL;
  ax_status st;

  AX_TRY(refuse_recording(f));
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
  const ax_status st = ax_flat_has_values(f) ? AX_OK : gather(f);
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
  if ((f->home.cut & AX_CUT_VALUES) && ax_flat_has_values(f)) take_memory(f->values, &f->home.no_values);
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
  AX_TRY(refuse_recording(f));
  AX_TRY(ax_tensor_ready(f->values, AX_WRITE));
  AX_TRY(copy_part(f, f->values, &mine));
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
  AX_TRY(view(f, f->values, 0, f->home.first, f->home.last, &there));
  AX_TRY(ax_copy(f->home.values, there));
  ax_flat_touch(f);
out:
  ax_tensor_release(there);
  return st;
}

/* ---- gradients */

/* The mean of the ranks' gradients -> this rank's part, `to`. */
static ax_status reduce(const ax_flat *f, ax_tensor *to)
{
  const ax_home *h = &f->home;
  ax_collective c = { .op = AX_REDUCE_SCATTER,
                      .dtype = (ax_dtype)f->dtype,
                      .reduction = AX_MEAN,
                      .kind = f->device.kind,
                      .index = f->device.index,
                      .count = h->last - h->first,
                      .in = ax_data(f->grads),
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
    AX_TRY(view(f, arrived, h->first, at, at + n, &piece));
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
    return ax_fill(p->grad_slot, 0);
  }
  if (p->grad == p->grad_slot) return AX_OK;
  if ((st = ax_copy(p->grad_slot, p->grad)) != AX_OK) return st;
  ax_tensor_release(p->grad);
  p->grad = ax_tensor_retain(p->grad_slot);
  f->home.had[k] = false;
  return AX_OK;
}

/* Rounds the whole gradients to the type that they are reduced in. */
static ax_status round_to(const ax_flat *f, ax_dtype as)
{
  ax_tensor *rounded;
  ax_status st;

  if (as == (ax_dtype)f->dtype) return AX_OK;
  if ((st = ax_cast(f->grads, as, &rounded)) != AX_OK) return st;
  st = ax_copy(f->grads, rounded);
  ax_tensor_release(rounded);
  return st;
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
  f->missing = 0;
  if (h->no_grads.at) AX_TRY(give_zeros(f));
  for (int k = 0; k < f->n; k++) AX_TRY(bring(f, k));
  for (int k = 0; k < f->n; k++) had += h->had[k];
  AX_TRY(round_to(f, as));
  AX_TRY(ax_tensor_ready(f->grads, AX_READ));
  AX_TRY(ax_tensor_ready(h->grads, AX_WRITE));
  if (!had) {
    AX_TRY(reduce(f, h->grads));
    ax_touch(h->grads);
  } else {
    AX_TRY(ax_tensor_new_on(f->device, (ax_dtype)f->dtype, 1, &h->grads->numel, &arrived));
    AX_TRY(reduce(f, arrived));
    AX_TRY(merge_part(f, arrived, had));
  }
  take_memory(f->grads, &h->no_grads);
out:
  ax_grad_set_enabled(recording);
  ax_tensor_release(arrived);
  return st;
}

ax_tensor *ax_flat_own_grad(ax_tensor *p, ax_group **group)
{
  ax_flat *f = p->flat;

  *group = NULL;
  if (!f || !f->home.grads || !p->grad || p->grad != p->grad_slot) return p->grad;
  *group = f->home.group;
  return f->home.grad_piece[p->slot];
}

/* ---- presence */

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
      ax_tensor *p = list[i]->params[k];
      if (!p->grad && p->grad_slot && p->requires_grad && ((float *)ax_data(here))[at] > 0)
        p->grad = ax_tensor_retain(p->grad_slot);
    }
out:
  ax_tensor_release(here);
  return st;
}

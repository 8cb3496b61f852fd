/* Homes: where the buffers of a layout rest when it is cut over a group of ranks (flat.h).
 *
 * A parameter is a view of its layout's whole buffer of values, and its gradient one of the whole
 * buffer of gradients, for as long as they live.  Of a buffer that is cut this rank keeps one part;
 * the whole buffer's storage has no memory then, and carries a claim.  Memory comes to it
 *   values     by ax_flat_acquire, which a unit's forward hooks call, or by the claim, when a
 *              kernel of the model's forward or of a backward pass asks: the parts are gathered
 *   gradients  by the claim, when a backward pass writes the first one: zeros
 * and goes when the use ends, or when ax_flat_deliver has reduced the gradients into the parts.
 * The optimizer never needs the whole buffers: it steps pieces, views of the parts.
 * This file cuts a layout; home_claims.c has the claims, home_values.c, gather.c and home_grads.c
 * move the two kinds of buffers, presence.c has the list of parameters with a gradient. */
#include "core/params/home.h"
#include "core/core.h"
#include "core/dist/watch.h"
#include "core/tape/graph.h"
#include "core/memory/lasting.h"

ax_status ax_home_view(const ax_flat *f, ax_tensor *buffer, int64_t begins, int64_t from, int64_t to,
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
    if (n) st = ax_home_view(f, part ? part : whole, part ? f->home.first : 0, at, at + n, &pieces[k]);
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

ax_status ax_home_copy_part(const ax_flat *f, ax_tensor *whole, ax_tensor **out)
{
  ax_tensor *there = NULL;
  ax_status st;

  AX_TRY(ax_home_view(f, whole, 0, f->home.first, f->home.last, &there));
  st = ax_run1(AX_OP_CLONE, there, out);
out:
  ax_tensor_release(there);
  return st;
}

ax_status ax_home_without_memory(const ax_flat *f, ax_dtype dtype, int64_t numel, ax_tensor **out)
{
  const int64_t one = 1;
  ax_storage *s;
  ax_status st = ax_storage_wrap(NULL, (size_t)numel * ax_dtype_size(dtype), NULL, NULL, &s);

  *out = NULL;
  if (st != AX_OK) return st;
  s->device = f->device;
  st = ax_tensor_over(s, dtype, 1, &numel, &one, 0, out);
  ax_storage_release(s);
  return st;
}

ax_status ax_home_begin_bare(ax_flat *f)
{
  ax_home *h = &f->home;
  ax_status st;

  AX_TRY(ax_home_new_claim(&h->after_values));
  AX_TRY(ax_home_without_memory(f, (ax_dtype)f->dtype, f->size, &f->values));
  h->no_values = (ax_claim){ .kind = &ax_home_no_values, .owner = f };
  ax_claim_put(f->values->storage, &h->no_values);
out:
  return st;
}

/* A part of a buffer: this rank's elements, or zeros where the whole has no memory. */
static ax_status begin_part(const ax_flat *f, ax_tensor *whole, ax_tensor **out)
{
  const int64_t n = f->home.last - f->home.first;
  ax_tensor *there = NULL;
  ax_status st;

  AX_TRY(ax_tensor_zeros_lasting(f->device, (ax_dtype)f->dtype, 1, &n, out));
  if (!whole->storage->data) goto out;
  AX_TRY(ax_home_view(f, whole, 0, f->home.first, f->home.last, &there));
  st = ax_copy(*out, there);
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
  ax_tensor *there = NULL, *mine = NULL;
  ax_status st;

  if (!ax_shared_possible(h->group, f->device)) return AX_OK;
  AX_TRY(ax_shared_new(h->group, h->away & AX_CUT_VALUES ? h->place : NULL, ax_home_title(f),
                       f->values->storage->bytes, (size_t)h->first * item, own, &whole, &part));
  if (!whole) goto out;
  AX_TRY(ax_tensor_over(part, (ax_dtype)f->dtype, 1, &n, &one, 0, &there));
  if (f->values->storage->data) {
    AX_TRY(ax_home_view(f, f->values, 0, h->first, h->last, &mine));
    AX_TRY(ax_copy(there, mine));
  }
  h->values = there;
  there = NULL;
  h->shared = true;
  h->no_values.kind = &ax_home_shared_values;
  AX_TRY(ax_home_wait_for_all(f));
  ax_storage_trade(f->values->storage, whole);
  if (!h->no_values.at) ax_claim_put(f->values->storage, &h->no_values);
  if (h->away & AX_CUT_VALUES) st = ax_place_follow(h->place, f->values->storage);
out:
  ax_tensor_release(mine);
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
  if (h->cut & AX_CUT_GRADS) AX_TRY(begin_part(f, f->grads, &h->grads));
  if (h->grads && h->away & AX_CUT_GRADS) AX_TRY(ax_place_move(h->place, ax_home_title(f), &h->grads));
  AX_TRY(make_pieces(f, h->grads, f->grads, h->grad_piece));
  if (h->grads) ax_home_take_memory(f->grads, &h->no_grads);
  return AX_OK;
out: /* the gradients stay whole */
  free_pieces(f, h->grad_piece);
  ax_tensor_release(h->grads);
  h->grads = NULL;
  return st;
}

/* Makes the working copies that are gathered. */
static ax_status gather_half(ax_flat *f, ax_dtype half)
{
  ax_home *h = &f->home;
  ax_status st;

  AX_TRY(ax_home_new_claim(&h->after_work));
  AX_TRY(ax_flat_give_work(f, half));
  h->gathers = (uint8_t)half;
  ax_home_take_memory(f->work, &h->no_work);
out:
  return st;
}

ax_status ax_flat_cut_over(ax_flat *f, ax_group *group, ax_group *copies, uint8_t cut, ax_dtype gathers)
{
  ax_home *h = &f->home;
  const int64_t part = f->size / group->size;
  const bool bare = h->no_values.at != NULL;
  ax_status st = AX_ENOMEM;

  if (bare && !(cut & AX_CUT_VALUES))
    return ax_fail(AX_EINVAL, "flat: a layout without values is cut with its values");
  if (h->group) return ax_fail(AX_EINVAL, "flat: the layout is cut already");
  if (f->work) return ax_fail(AX_EINVAL, "flat: a layout with working copies cannot be cut");
  if (f->size % group->size || part % (AX_SLOT_BYTES / (int64_t)ax_dtype_size((ax_dtype)f->dtype)))
    return ax_fail(AX_EINVAL, "flat: %lld elements do not make %d equal parts", (long long)f->size,
                   group->size);
  ax_leaves_keep_order();
  h->group = ax_group_retain(group);
  h->copies = copies ? ax_group_retain(copies) : NULL;
  h->first = part * group->rank;
  h->last = h->first + part;
  if (!bare) h->no_values = (ax_claim){ .kind = &ax_home_no_values, .owner = f };
  h->no_work = (ax_claim){ .kind = &ax_home_no_work, .owner = f };
  h->no_grads = (ax_claim){ .kind = &ax_home_no_grads, .owner = f };
  h->gathers = f->dtype;
  h->had = ax_calloc((size_t)f->n, sizeof *h->had);
  h->value_piece = ax_calloc((size_t)f->n, sizeof *h->value_piece);
  h->grad_piece = ax_calloc((size_t)f->n, sizeof *h->grad_piece);
  if (!h->had || !h->value_piece || !h->grad_piece) goto out;
  if (!bare) AX_TRY(ax_home_new_claim(&h->after_values));
  AX_TRY(ax_home_new_claim(&h->after_grads));
  if (cut & AX_CUT_VALUES) {
    AX_TRY(share_values(f));
    if (!h->values) AX_TRY(begin_part(f, f->values, &h->values));
    if (!h->shared && h->away & AX_CUT_VALUES) {
      AX_TRY(ax_place_move(h->place, ax_home_title(f), &h->values));
      AX_TRY(ax_place_follow(h->place, h->values->storage));
    }
  }
  AX_TRY(make_pieces(f, h->values, f->values, h->value_piece));
  h->cut = cut;
  if (f->grads) AX_TRY(ax_flat_cut_grads(f));
  if (h->values && !h->shared && gathers != (ax_dtype)f->dtype) AX_TRY(gather_half(f, gathers));
  if (h->values && !h->shared && !bare) ax_home_take_memory(f->values, &h->no_values);
  ax_home_list(f);
  return AX_OK;
out: /* all of it is whole, or in a bare layout nowhere */
  ax_flat_free_home(f);
  return st;
}

void ax_flat_free_home(ax_flat *f)
{
  ax_home *h = &f->home;

  ax_home_unlist(f);
  ax_home_forget_arriving(f);
  if (f->values) ax_home_leave_claim(f->values, &h->no_values, &h->after_values);
  if (f->work) ax_home_leave_claim(f->work, &h->no_work, &h->after_work);
  else ax_mfree(h->after_work);
  ax_eight_free(f);
  if (f->grads) ax_home_leave_claim(f->grads, &h->no_grads, &h->after_grads);
  else ax_mfree(h->after_grads);
  free_pieces(f, h->value_piece), free_pieces(f, h->grad_piece);
  ax_tensor_release(h->values), ax_tensor_release(h->grads);
  ax_storage_release(h->mapping);
  if (h->group) ax_group_release(h->group);
  if (h->copies) ax_group_release(h->copies);
  ax_place_release(h->place);
  ax_mfree(h->had), ax_mfree(h->value_piece), ax_mfree(h->grad_piece);
  *h = (ax_home){ 0 };
}

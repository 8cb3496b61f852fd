/* Claims of homes: who answers for a whole buffer while it has no memory, or while its memory is
 * that of all ranks (home.c has the tour). */
#include "core/params/home.h"
#include "core/core.h"
#include "core/tape/graph.h"

/* ---- memory that comes and goes */

static int slot_at(const ax_flat *f, int64_t element)
{
  int k = 0;
  while (k + 1 < f->n && f->offsets[k + 1] <= element) k++;
  return k;
}

/* Fails for a use that does not bring the memory here. */
static ax_status refuse(const ax_flat *f, int64_t at, const char *what, const char *when)
{
  const int k = at < 0 ? -1 : slot_at(f, at);
  const ax_group *g = f->home.group;

  if (!g)
    return ax_fail(AX_EINVAL, "a parameter has no values: prepare laid it out for several ranks, and failed "
                              "before it was cut over them");
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

static bool is_used(const ax_flat *f) { return f->home.group && (f->home.computes || ax_backward_runs()); }

static ax_status before_values(ax_claim *c, int64_t at)
{
  ax_flat *f = c->owner;
  if (!is_used(f)) return refuse(f, at, "", "while the model's forward and backward run");
  return ax_home_gathers_half(f) ? ax_home_widen(f) : ax_home_gather_wide(f);
}

static ax_status before_work(ax_claim *c, int64_t at)
{
  ax_flat *f = c->owner;
  if (!is_used(f)) return refuse(f, at, "", "while the model's forward and backward run");
  return ax_home_gather_wide(f);
}

static ax_status before_eight(ax_claim *c, int64_t at)
{
  ax_flat *f = c->owner;
  if (!is_used(f)) return refuse(f, at, "", "while the model's forward and backward run");
  return ax_home_gather(f);
}

ax_status ax_home_give_zeros(ax_flat *f)
{
  ax_tensor *fresh = NULL;
  ax_status st;

  AX_TRY(ax_home_new_grads(f, false, &fresh));
  ax_storage_trade(f->grads->storage, fresh->storage);
  ax_claim_take_off(&f->home.no_grads);
  for (int k = 0; k < f->n; k++) f->home.had[k] = f->params[k]->grad == f->slots[k].grad;
out:
  ax_tensor_release(fresh);
  return st;
}

static ax_status before_grads(ax_claim *c, int64_t at)
{
  ax_flat *f = c->owner;
  return ax_backward_runs() ? ax_home_give_zeros(f)
                            : refuse(f, at, "the gradient of ", "while backward runs");
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
  return f->home.value_piece && !is_used(f) && piece_in(f, f->home.value_piece, t, piece, from);
}

static bool grad_piece(ax_claim *c, const ax_tensor *t, ax_tensor **piece, int64_t *from)
{
  const ax_flat *f = c->owner;
  return !ax_backward_runs() && piece_in(f, f->home.grad_piece, t, piece, from);
}

const ax_claim_kind ax_home_no_values = { .uses = AX_READ | AX_WRITE,
                                          .before = before_values,
                                          .piece_of = value_piece },
                    ax_home_no_work = { .uses = AX_READ | AX_WRITE, .before = before_work },
                    ax_home_no_eight = { .uses = AX_READ | AX_WRITE, .before = before_eight },
                    ax_home_no_grads = { .uses = AX_READ | AX_WRITE,
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

ax_status ax_home_wait_for_all(const ax_flat *f)
{
  return ax_dist_run(f->home.group, &(ax_collective){ .op = AX_BARRIER }, NULL);
}

/* Nobody reads while parts are written. */
static ax_status shared_edits(ax_claim *c, bool begins)
{
  (void)begins;
  return ax_home_wait_for_all(c->owner);
}

const ax_claim_kind ax_home_shared_values = {
  .uses = AX_WRITE, .before = before_shared, .piece_of = shared_piece, .edits = shared_edits
};

void ax_home_take_memory(ax_tensor *whole, ax_claim *c)
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

ax_status ax_home_new_claim(ax_claim **out)
{
  *out = ax_calloc(1, sizeof **out);
  return *out ? AX_OK : AX_ENOMEM;
}

void ax_home_leave_claim(ax_tensor *whole, ax_claim *own, ax_claim **after)
{
  if (own->at) {
    (*after)->kind = own->kind == &ax_home_shared_values ? &lost_shared : &lost;
    ax_claim_take_off(own);
    ax_claim_put(whole->storage, *after);
    *after = NULL;
  }
  ax_mfree(*after);
}

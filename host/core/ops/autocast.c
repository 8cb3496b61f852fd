/* Automatic casting: what ax_run does with an op's inputs while it is on.
 *
 * A leaf's cast is kept while the region lasts: the weight of a layer that is called twice is cast
 * once.  Where the leaf has a working copy (ax_flat_slot.work), which optimizers write together
 * with the leaf, there is nothing to cast at all: the copy gets a place in the graph.  Versions
 * show whether the cast or the copy still has the leaf's values. */
#include "capture.h"
#include "slot.h"
#include "core/ops/infer.h"
#include "core/ops/rules.h"
#include "core/pointer_map.h"

#include <string.h>

_Thread_local ax_autocast ax_autocast_now = { .cache = true, .dtype = AX_BF16 };

/* ---- the casts that are kept */

typedef struct kept {
  ax_tensor *leaf, *cast; /* counted; cast NULL: there is none yet */
  uint32_t edits;         /* the leaf's version when it was cast */
} kept;

static _Thread_local ax_pointer_map cache; /* of `kept` */
static _Thread_local int depth;            /* regions that this thread is in */

static void forget_all(void)
{
  kept *place = (kept *)cache.place;
  const size_t n = place ? (size_t)1 << cache.bits : 0;

  cache = (ax_pointer_map){ 0 }; /* first: what is released may run Lua, and that may begin a region */
  for (size_t i = 0; i < n; i++) {
    ax_tensor_release(place[i].cast);
    ax_tensor_release(place[i].leaf);
  }
  ax_mfree(place);
}

void ax_autocast_forget(void) { forget_all(); }

/* Is it what casting the leaf would give now?  What was cast without a history serves no
 * recording. */
static bool current(const kept *k, ax_dtype to)
{
  ax_tensor *leaf = k->leaf;
  return k->edits == leaf->version->edits && k->cast->dtype == to &&
         k->cast->requires_grad == ax_would_record(1, &leaf);
}

/* ---- regions */

ax_autocast ax_autocast_get(void) { return ax_autocast_now; }

ax_autocast ax_autocast_enter(ax_autocast state)
{
  const ax_autocast former = ax_autocast_now;
  ax_autocast_now = state;
  depth++;
  return former;
}

void ax_autocast_leave(ax_autocast former)
{
  ax_autocast_now = former;
  if (depth > 0 && --depth == 0) forget_all();
}

/* ---- casting one input */

static ax_status record_cast(ax_tensor *t, ax_dtype to, ax_tensor **out)
{
  const ax_attrs a = AX_ATTRS(cast, .dtype = to);
  return ax_record(AX_OP_CAST, &(ax_args){ .n_in = 1, .in = &t }, &a, 1, out, 0);
}

/* The leaf's working copy, written anew if need be, as the result of a cast. */
static ax_status from_work(ax_tensor *t, ax_tensor **out)
{
  ax_tensor *const work = ax_slot_work(t);
  ax_status st;

  *out = NULL;
  if (ax_recording) ax_capture_note(t);
  AX_TRY(ax_tensor_ready(work, AX_READ)); /* first: gathered copies are current ones */
  if (!ax_slot_work_is_current(t)) {
    AX_TRY(ax_copy(work, t));
    ax_slot_set_work_current(t, true);
  }
  AX_TRY(ax_tensor_alias(work, out));
  if (ax_would_record(1, &t)) st = record_cast(t, (ax_dtype)work->dtype, out);
out:
  if (st != AX_OK) {
    ax_tensor_release(*out);
    *out = NULL;
  }
  return st;
}

/* What a norm has written in the type already, as the result of a cast; NULL: nothing. */
static ax_status from_norm(ax_tensor *t, ax_dtype to, ax_tensor **out)
{
  ax_status st = ax_later_rounded(t, to, out);
  if (st != AX_OK || !*out || !ax_would_record(1, &t)) return st;
  st = record_cast(t, to, out);
  if (st == AX_OK) return st;
  ax_tensor_release(*out);
  *out = NULL;
  return st;
}

static ax_status cast_now(ax_tensor *t, ax_dtype to, ax_tensor **out)
{
  const ax_tensor *const work = ax_slot_work(t);

  if (__builtin_expect(ax_is_later(t), 0)) {
    const ax_status st = from_norm(t, to, out);
    if (st != AX_OK || *out) return st;
  }
  return work && work->dtype == to && !t->grad_fn ? from_work(t, out) : ax_cast(t, to, out);
}

/* New reference to t in the type `to`. */
static ax_status cast(ax_tensor *t, ax_dtype to, ax_tensor **out)
{
  const bool keeps = ax_autocast_now.cache && depth > 0 && t->requires_grad && !t->grad_fn &&
                     t->dtype == AX_F32 && ax_is_half(to);
  bool is_new;
  kept *k;
  ax_status st;

  if (!keeps) return cast_now(t, to, out);
  *out = NULL;
  if (!(k = ax_pointer_map_add(&cache, sizeof *k, t, &is_new))) return AX_ENOMEM;
  if (is_new) ax_tensor_retain(t);
  if (k->cast && current(k, to)) {
    *out = ax_tensor_retain(k->cast);
    return AX_OK;
  }
  if ((st = cast_now(t, to, out)) != AX_OK) return st;
  ax_tensor_release(k->cast);
  k->cast = ax_tensor_retain(*out);
  k->edits = t->version->edits;
  return AX_OK;
}

/* Does the leaf rest in parts?  Then its working copy, which is gathered, is all that is here. */
static bool rests_in_parts(const ax_tensor *t)
{
  if (!ax_slot_work(t)) return false;
  for (const ax_claim *c = t->storage->claims; c; c = c->next)
    if (c->kind->piece_of && c->kind->uses & AX_READ) return true;
  return false;
}

/* New reference to the leaf's values in its own type, made of its working copy: one parameter's,
 * where the claim would make those of a whole layout. */
static ax_status widened(ax_tensor *t, ax_tensor **out)
{
  ax_status st;

  *out = NULL;
  AX_TRY(ax_tensor_ready(ax_slot_work(t), AX_READ));
  AX_TRY(ax_tensor_new_on(t->device, (ax_dtype)t->dtype, t->ndim, t->shape, out));
  AX_TRY(ax_copy(*out, ax_slot_work(t)));
  if (ax_would_record(1, &t)) AX_TRY(record_cast(t, (ax_dtype)t->dtype, out));
  return AX_OK;
out:
  ax_tensor_release(*out);
  *out = NULL;
  return st;
}

/* ---- one op */

/* What autocast may touch: float64 it leaves alone, as PyTorch does. */
static bool eligible(const ax_tensor *t)
{
  return t && ax_is_float((ax_dtype)t->dtype) && t->dtype != AX_F64;
}

/* The widest type among the eligible inputs. */
static ax_dtype widest(const ax_args *args)
{
  ax_dtype d = ax_autocast_now.dtype;
  bool any = false;
  for (int k = 0; k < args->n_in; k++)
    if (eligible(args->in[k])) {
      d = any ? ax_dtype_promote(d, (ax_dtype)args->in[k]->dtype) : (ax_dtype)args->in[k]->dtype;
      any = true;
    }
  return d;
}

/* Rows that find the widest type themselves: promotion is that. */
static bool promotes(ax_op op) { return ax_ops[op].form == AX_FORM_POINTWISE || ax_has(op, PROMOTES); }

/* A bias that the kernel takes in float32 beside others in a half type.  (cuBLASLt takes one in the
 * type of the result alone; there the working copy, which the optimizer writes, saves a cast in
 * each call.) */
static bool stays(ax_op op, int k, const ax_tensor *t)
{
  const ax_backend *backend;
  return k == 2 && ax_has(op, FLOAT_BIAS) && ax_backend_of(t->device, &backend) == AX_OK &&
         backend->float_bias;
}

ax_status ax_run_cast(ax_op op, const ax_args *args, ax_tensor **out)
{
  ax_tensor *in[AX_MAX_INPUTS], *own[AX_MAX_INPUTS] = { 0 };
  const ax_cast_policy policy = ax_ops[op].autocast;
  const bool as_is = policy == AX_CAST_WIDEST && promotes(op);
  ax_args changed = *args;
  bool any = false;
  ax_status st = AX_OK;

  memset(out, 0, AX_MAX_OUT * sizeof *out);
  if (args->n_in > AX_MAX_INPUTS) return ax_run_plain(op, args, out);
  const bool inside = policy == AX_CAST_INSIDE;
  const ax_dtype to = policy == AX_CAST_LOWER    ? ax_autocast_now.dtype
                      : policy == AX_CAST_WIDEST ? widest(args)
                                                 : AX_F32;

  for (int k = 0; k < args->n_in; k++) {
    ax_tensor *t = in[k] = args->in[k];
    const bool casts = !as_is && eligible(t) && t->dtype != to && !(t->dtype == AX_F32 && stays(op, k, t));
    if (casts && !inside) AX_TRY(cast(t, to, &own[k]));
    else if (t && rests_in_parts(t)) AX_TRY(widened(t, &own[k]));
    if (own[k]) in[k] = own[k];
    any |= casts || own[k];
    changed.a.wide |= casts && inside;
  }
  if (!any) return ax_run_plain(op, args, out);
  changed.in = in;
  st = ax_run_plain(op, &changed, out);
out:
  for (int k = 0; k < args->n_in; k++) ax_tensor_release(own[k]);
  return st;
}

/* The tape: what is recorded, and who holds whom.  Walking it backward is backward.c, hooks are
 * hooks.c.  Releasing does not recurse along the graph: a chain of a million nodes takes no
 * stack. */
#include "capture.h"
#include "slot.h"
#include "core/ops/infer.h"
#include "profile.h"
#include "core/ops/rules.h"

#include <string.h>

static _Thread_local bool grad_enabled = true;
static _Thread_local uint64_t next_seq = 2; /* even: leaves.c puts leaves in between */

uint64_t ax_next_seq(void) { return next_seq += 2; }

bool ax_grad_enabled(void) { return grad_enabled; }

bool ax_grad_set_enabled(bool on)
{
  const bool former = grad_enabled;
  grad_enabled = on;
  return former;
}

bool ax_would_record(int n, ax_tensor *const *in)
{
  if (grad_enabled)
    for (int k = 0; k < n; k++)
      if (in[k] && in[k]->requires_grad) return true;
  return false;
}

const char *ax_grad_fn_name(const ax_tensor *t)
{
  if (!t->grad_fn) return NULL;
  return t->grad_fn->kind == AX_NODE_CUSTOM ? t->grad_fn->name : ax_ops[t->grad_fn->op].name;
}

/* ---- nodes */

ax_status ax_node_new(ax_node_kind kind, int n_in, int n_out, ax_node **out)
{
  const size_t per_in = sizeof(ax_edge) + sizeof(ax_meta) + sizeof(ax_saved);
  const size_t per_out = sizeof(ax_meta) + sizeof(ax_saved) + sizeof(ax_tensor *);
  const size_t bytes = sizeof(ax_node) + (size_t)n_in * per_in + (size_t)n_out * per_out;
  ax_node *n = ax_spare_new(bytes);

  *out = n;
  if (!n) return AX_ENOMEM;
  memset(n, 0, bytes);
  n->bytes = bytes;
  char *at = (char *)(n + 1); /* every part is a multiple of 8 bytes long */
  n->edges = (ax_edge *)at, at += sizeof(ax_edge) * (size_t)n_in;
  n->in_meta = (ax_meta *)at, at += sizeof(ax_meta) * (size_t)n_in;
  n->in = (ax_saved *)at, at += sizeof(ax_saved) * (size_t)n_in;
  n->out_meta = (ax_meta *)at, at += sizeof(ax_meta) * (size_t)n_out;
  n->out = (ax_saved *)at, at += sizeof(ax_saved) * (size_t)n_out;
  n->grads = (ax_tensor **)at;
  n->refs = 1;
  n->kind = kind;
  n->op = AX_OP_COUNT;
  n->n_in = n_in;
  n->n_out = n_out;
  n->seq = ax_next_seq();
  n->place = ax_profile_place;
  return AX_OK;
}

/* The list turns the recursion node -> saved tensor -> node into a loop: the outermost call works
 * it off. */
static _Thread_local struct {
  ax_node *first;
  bool working;
} dead;

/* Frees what the gradient rule needed, and lets go of the nodes before this one.  Saved tensors may
 * hold the last reference to other nodes; those go to the list of the dead. */
void ax_node_release_saved(ax_node *n)
{
  for (int k = 0; k < n->n_in; k++) {
    ax_tensor_release(n->in[k].t);
    n->in[k].t = NULL;
  }
  for (int k = 0; k < n->n_out; k++) {
    ax_tensor_release(n->out[k].t);
    n->out[k].t = NULL;
  }
  for (int k = 0; k < n->n_in; k++)
    if (n->edges[k].node) {
      ax_node_release(n->edges[k].node);
      n->edges[k].node = NULL;
    }
  if (n->drop) n->drop(n->ud);
  n->drop = NULL;
  n->released = true;
}

void ax_node_release(ax_node *n)
{
  if (--n->refs > 0) return;
  n->next_dead = dead.first;
  dead.first = n;
  if (dead.working) return;
  dead.working = true;
  while (dead.first) {
    n = dead.first;
    dead.first = n->next_dead;
    ax_node_release_saved(n);
    for (int k = 0; k < n->n_out; k++) ax_tensor_release(n->grads[k]);
    ax_hooks_drop(&n->hooks);
    if (n->leaf) {
      n->leaf->accumulate = NULL;
      ax_tensor_release(n->leaf);
    }
    if (n->args.a.gen) ax_generator_release(n->args.a.gen);
    ax_spare_free(n, n->bytes);
  }
  dead.working = false;
}

/* The node and result that a gradient with respect to t goes to.  New reference. */
ax_status ax_edge_of(ax_tensor *t, ax_edge *e)
{
  ax_status st;
  *e = (ax_edge){ 0 };
  if (!t) return AX_OK;
  if ((st = ax_history(t)) != AX_OK) return st;
  if (!t->requires_grad) return AX_OK;
  if (t->grad_fn) *e = (ax_edge){ t->grad_fn, t->out_index };
  else if (t->accumulate) e->node = t->accumulate;
  else {
    if ((st = ax_node_new(AX_NODE_ACCUMULATE, 0, 1, &e->node)) != AX_OK) return st;
    e->node->leaf = ax_tensor_retain(t);
    t->accumulate = e->node;
    if (!t->hooks || (st = ax_leaf_hold(e->node)) == AX_OK) return AX_OK;
    ax_node_release(e->node);
    e->node = NULL;
    return st;
  }
  e->node->refs++;
  return AX_OK;
}

void ax_leaf_ends(ax_tensor *t)
{
  ax_node *n = t->accumulate;
  if (!n) return;
  t->accumulate = NULL;
  n->leaf = NULL;
  ax_tensor_release(t);
}

void ax_meta_of(const ax_tensor *t, ax_meta *m)
{
  m->dtype = (ax_dtype)t->dtype;
  m->ndim = t->ndim;
  memcpy(m->shape, t->shape, sizeof m->shape);
}

static ax_status link_inputs(ax_node *n, int n_in, ax_tensor *const *in)
{
  for (int k = 0; k < n_in; k++) {
    const ax_status st = ax_edge_of(in[k], &n->edges[k]);
    if (st != AX_OK) return st;
    if (in[k]) ax_meta_of(in[k], &n->in_meta[k]);
  }
  n->seq = ax_next_seq(); /* after the leaves' nodes that this may just have made */
  return AX_OK;
}

/* Saves an alias, so that what the user does to the tensor object later (x.data, in-place ops that
 * give it another history) does not matter; a leaf is saved itself, because its gradient goes to
 * that very object. */
static ax_status save(ax_saved *s, ax_tensor *t, bool result)
{
  ax_status st;
  if (!result && t->requires_grad && !t->grad_fn) s->t = ax_tensor_retain(t);
  else {
    if ((st = ax_tensor_alias(t, &s->t)) != AX_OK) return st;
    if (!result && t->grad_fn) { /* a result's own history would be a circle */
      s->t->grad_fn = t->grad_fn;
      t->grad_fn->refs++;
      s->t->out_index = t->out_index;
      s->t->requires_grad = true;
    }
  }
  s->edits = t->version->edits;
  return AX_OK;
}

static bool saves_input(const ax_node *n, int k, uint32_t saves)
{
  if (saves & I0 << k) return true;
  if (saves & S0 << k && n->edges[k].node) return true;
  if (saves & X0 << k)
    for (int other = 0; other < n->n_in && other < 2; other++)
      if (other != k && n->edges[other].node) return true;
  return false;
}

ax_status ax_node_new_op(ax_op op, const ax_args *args, const ax_attrs *a, int n_out, uint32_t saves,
                         const ax_tensor *overwritten, ax_node **out)
{
  ax_node *n = NULL;
  ax_status st;

  *out = NULL;
  AX_TRY(ax_node_new(AX_NODE_OP, args->n_in, n_out, &n));
  n->op = op;
  memcpy(&n->args, args, offsetof(ax_args, a));
  n->args.a = *a;
  n->args.in = NULL;
  n->args.a.gen = NULL; /* the draw is in rng */
  AX_TRY(link_inputs(n, args->n_in, args->in));
  for (int k = 0; k < args->n_in && k < AX_MAX_INPUTS; k++)
    if (args->in[k] && saves_input(n, k, saves)) {
      if (args->in[k] != overwritten) AX_TRY(save(&n->in[k], args->in[k], false));
      /* the gradient needs what the op is about to overwrite */
      else AX_TRY(ax_run1(AX_OP_CLONE, args->in[k], &n->in[k].t));
    }
  *out = n;
  n = NULL;
out:
  if (n) ax_node_release(n);
  return st;
}

ax_status ax_node_attach(ax_node *n, int n_out, ax_tensor **out, uint32_t saves)
{
  for (int k = 0; k < n_out; k++) {
    ax_meta_of(out[k], &n->out_meta[k]);
    if (saves >> (8 + k) & 1) {
      const ax_status st = n->out[k].t ? AX_OK : save(&n->out[k], out[k], true);
      if (st != AX_OK) return st;
      n->out[k].edits = out[k]->version->edits;
    }
    if (!ax_has_gradient((ax_dtype)out[k]->dtype)) continue; /* positions and counts have no gradient */
    if (k > 0 && saves & HIDDEN) continue;
    out[k]->grad_fn = n;
    n->refs++;
    out[k]->out_index = (uint8_t)k;
    out[k]->requires_grad = true;
  }
  return AX_OK;
}

ax_status ax_node_reserve(ax_node *n, ax_tensor *dst, uint32_t saves)
{
  return saves & O0 ? save(&n->out[0], dst, true) : AX_OK;
}

ax_status ax_record(ax_op op, const ax_args *args, const ax_attrs *a, int n_out, ax_tensor **out,
                    uint32_t saves)
{
  ax_node *n;
  ax_status st = ax_node_new_op(op, args, a, n_out, saves, NULL, &n);
  if (st != AX_OK) return st;
  st = ax_node_attach(n, n_out, out, saves);
  ax_node_release(n);
  return st;
}

ax_status ax_custom_record(const char *name, int n_in, ax_tensor *const *inputs, int n_out,
                           ax_tensor *const *outputs, ax_custom_fn backward, void (*drop)(void *), void *ud)
{
  ax_node *n = NULL;
  ax_status st;

  if (n_out < 1 || n_out > 255)
    return ax_fail(AX_EINVAL, "%s: a function has 1 to 255 results, got %d", name, n_out);
  AX_TRY(ax_node_new(AX_NODE_CUSTOM, n_in, n_out, &n));
  n->name = name;
  AX_TRY(link_inputs(n, n_in, inputs));
  for (int k = 0; k < n_out; k++) {
    ax_meta_of(outputs[k], &n->out_meta[k]);
    if (!ax_has_gradient((ax_dtype)outputs[k]->dtype)) continue;
    outputs[k]->grad_fn = n;
    n->refs++;
    outputs[k]->out_index = (uint8_t)k;
    outputs[k]->requires_grad = true;
  }
  n->custom = backward;
  n->drop = drop; /* set last: on failure `ud` stays the caller's */
  n->ud = ud;
out:
  if (n) ax_node_release(n);
  return st;
}

void ax_tensor_join(ax_tensor *t, ax_node *n, int out)
{
  n->refs++;
  t->grad_fn = n;
  t->out_index = (uint8_t)out;
  t->requires_grad = true;
}

/* ---- leaves */

ax_status ax_set_requires_grad(ax_tensor *t, bool on)
{
  if (on && !ax_has_gradient((ax_dtype)t->dtype))
    return ax_fail(AX_EGRAD, "requires_grad: only floating-point tensors can require a gradient, not %s",
                   ax_dtype_name((ax_dtype)t->dtype));
  if (!on && t->grad_fn)
    return ax_fail(AX_EGRAD,
                   "requires_grad: the tensor is the result of %s; use detach() to get one without history",
                   ax_grad_fn_name(t));
  if (on && !t->requires_grad) ax_view_forget(t); /* a leaf from now on, whatever history its base may get */
  t->requires_grad = on || t->grad_fn;
  return AX_OK;
}

void ax_zero_grad(ax_tensor *t)
{
  if (__builtin_expect(ax_recording != NULL, 0)) ax_capture_note(t);
  if (t->grad && __builtin_expect(ax_is_later(t->grad), 0))
    ax_later_drop(t->grad, t->grad == ax_slot_grad(t) ? 2 : 1);
  ax_tensor_release(t->grad);
  t->grad = NULL;
  if (t->flat && t->flat->home.had) t->flat->home.had[t->slot] = false; /* what was summed up is over */
}

void ax_detach_inplace(ax_tensor *t)
{
  ax_node *n = t->grad_fn;
  t->grad_fn = NULL;
  t->out_index = 0;
  t->requires_grad = false;
  ax_view_forget(t);
  if (n) ax_node_release(n);
}

/* Walking the tape backward: order, gradients on their way, accumulating into leaves.
 *
 * bind/grad.c calls ax_backward (or tensor.grad's search).  seed_root puts the first gradients into
 * the nodes of the roots; ax_walk_run takes the node with the highest sequence number from a queue
 * (queue.c) until there is none.  Sequence numbers grow as nodes are made, so a node comes when all
 * that use its results have been visited: the reason is in graph.h.  Nothing recurses along the
 * graph, however long it is.
 *
 *   visit -> run_op    hooks, then the row's gradient (ax_grad_..., in ops/<family>.c) with the
 *                      saved tensors; its results are delivered: fitted to an argument's shape and
 *                      type, and added to what its node has already
 *         -> run_leaf  accumulates into the leaf, or into its slot of a flat buffer, and counts it
 *                      in the buckets (params/buckets.c), which call Lua when one is full
 *
 * A rule may write its result into a leaf's slot itself (slot_written), which saves a pass. */
#include "capture.h"
#include "slot.h"
#include "offload.h"
#include "core/ops/complex.h"
#include "profile.h"
#include "core/ops/rules.h"
#include "core/tape/walk.h"

#include <stdio.h>
#include <string.h>

/* ---- one backward run */

static _Thread_local const ax_walk *innermost;

bool ax_backward_runs(void) { return innermost != NULL; }

bool ax_backward_collects(void) { return innermost && innermost->collect; }

/* Can g come from broadcasting something of m's shape? */
static bool broadcast_from(const ax_tensor *g, const ax_meta *m)
{
  const int lead = g->ndim - m->ndim;
  if (lead < 0) return false;
  for (int d = lead; d < g->ndim; d++)
    if (m->shape[d - lead] != g->shape[d] && m->shape[d - lead] != 1) return false;
  return true;
}

/* Rows whose gradients only pass on what arrives, or take it in any type. */
static bool passes_on(ax_op op, ax_device device)
{
  const ax_backend *backend;
  if (!ax_has(op, TAKES_HALF)) return ax_has(op, PASSES_ON);
  return ax_backend_of(device, &backend) == AX_OK && backend->joins_norms;
}

/* The type in which g travels on to an argument of m's type: that of the argument; but half numbers
 * for a float32 one need no widening on the way to a rule that rounds or widens them itself.  They
 * have the values of the float32 ones.  Who looks at them (hooks, tensor.grad, sums of several
 * gradients) gets float32. */
static ax_dtype travels_as(const ax_walk *r, const ax_edge *e, const ax_tensor *g, const ax_meta *m)
{
  const ax_node *to = e->node;
  const bool alone =
      to && to->kind == AX_NODE_OP && passes_on(to->op, g->device) && !to->hooks && !to->grads[e->out];
  return alone && ax_same_shape(g, m->ndim, m->shape) && m->dtype == AX_F32 &&
                 ax_is_half((ax_dtype)g->dtype) && g->device.kind != AX_CPU && !r->create_graph && !r->collect
             ? (ax_dtype)g->dtype
             : m->dtype;
}

/* Sums a gradient down to the shape it was broadcast from, and casts it. */
static ax_status fit(ax_tensor *g, const ax_meta *m, ax_dtype dtype, ax_tensor **out)
{
  char a[AX_SHAPE_TEXT], b[AX_SHAPE_TEXT];
  ax_tensor *summed = NULL, *shaped = NULL, *results[AX_MAX_OUT];
  ax_status st = AX_OK;

  if (!broadcast_from(g, m))
    return ax_fail(AX_ESHAPE, "backward: a gradient of shape %s for an argument of shape %s",
                   ax_shape_text(g->ndim, g->shape, a, sizeof a),
                   ax_shape_text(m->ndim, m->shape, b, sizeof b));
  ax_tensor_retain(g);
  if (!ax_same_shape(g, m->ndim, m->shape)) {
    ax_args args = { .n_in = 1, .in = &g, .a = { .n_list = 0 } };
    const int lead = g->ndim - m->ndim;
    for (int d = 0; d < g->ndim; d++)
      if (d < lead || (m->shape[d - lead] == 1 && g->shape[d] != 1)) args.a.list[args.a.n_list++] = d;
    if (args.a.n_list) {
      args.a.sum.keepdim = true;
      AX_TRY(ax_run(AX_OP_SUM, &args, results));
      summed = results[0];
    } else summed = ax_tensor_retain(g);
    args = (ax_args){ .n_in = 1, .in = &summed, .a = { .n_list = m->ndim } };
    memcpy(args.a.list, m->shape, sizeof args.a.list);
    AX_TRY(ax_run(AX_OP_RESHAPE, &args, results));
    shaped = results[0];
  } else shaped = ax_tensor_retain(g);
  if (ax_is_complex((ax_dtype)shaped->dtype) && !ax_is_complex(dtype)) {
    /* a real argument beside complex ones */
    ax_tensor *real;
    AX_TRY(ax_run1(AX_OP_REAL, shaped, &real));
    ax_tensor_release(shaped);
    shaped = real;
  }
  st = ax_cast(shaped, dtype, out);
out:
  ax_tensor_release(g), ax_tensor_release(summed), ax_tensor_release(shaped);
  return st;
}

/* Adds g (taken) to what has arrived for an edge. */
static ax_status deliver(ax_walk *r, const ax_edge *e, ax_tensor *g)
{
  ax_tensor **at = &e->node->grads[e->out], *sum = NULL;
  ax_status st = ax_walk_push(r, e->node);

  if (st != AX_OK) {
    ax_tensor_release(g);
    return st;
  }
  if (!*at) {
    *at = g;
    return AX_OK;
  }
  if ((*at)->dtype != g->dtype) { /* it came in a half type, when it was the only one */
    if ((st = ax_cast(*at, (ax_dtype)g->dtype, &sum)) != AX_OK) {
      ax_tensor_release(g);
      return st;
    }
    ax_tensor_release(*at);
    *at = sum;
  }
  if (ax_held_alone(*at) && !r->create_graph) {
    st = ax_run_inplace(AX_OP_ADD,
                        &(ax_args){ .n_in = 2, .in = (ax_tensor *[]){ *at, g }, .a = { .n_list = -1 } }, *at);
  } else if ((st = ax_run2(AX_OP_ADD, *at, g, &sum)) == AX_OK) {
    ax_tensor_release(*at);
    *at = sum;
  }
  ax_tensor_release(g);
  return st;
}

/* Adds g into a leaf's gradient. */
static ax_status accumulate(ax_walk *r, ax_tensor *leaf, ax_tensor *g)
{
  ax_tensor *sum = NULL, *const slot = ax_slot_grad(leaf);
  const ax_tensor *expected = leaf->grad ? leaf->grad : leaf;
  char a[AX_SHAPE_TEXT], b[AX_SHAPE_TEXT];
  ax_status st = AX_OK;

  if (ax_recording) ax_capture_note(leaf);
  /* the script set x.data in between */
  if (!ax_same_shape(expected, g->ndim, g->shape) || !ax_same_shape(leaf, g->ndim, g->shape))
    return ax_fail(AX_ESHAPE,
                   "backward: a gradient of shape %s for a leaf that has had shape %s since its data was set",
                   ax_shape_text(g->ndim, g->shape, a, sizeof a),
                   ax_shape_text(leaf->ndim, leaf->shape, b, sizeof b));
  if (leaf->grad && r->create_graph) {
    if ((st = ax_run2(AX_OP_ADD, leaf->grad, g, &sum)) != AX_OK) return st;
    ax_tensor_release(leaf->grad);
    leaf->grad = sum;
  } else if (leaf->grad) {
    st =
        ax_run_inplace(AX_OP_ADD,
                       &(ax_args){ .n_in = 2, .in = (ax_tensor *[]){ leaf->grad, g }, .a = { .n_list = -1 } },
                       leaf->grad);
  } else if (slot && !r->create_graph) {
    if ((st = ax_copy(slot, g)) == AX_OK) leaf->grad = ax_tensor_retain(slot);
  } else if (g->dtype != leaf->dtype) {
    st = ax_cast(g, (ax_dtype)leaf->dtype, &leaf->grad);
  } else if (!r->create_graph && g->refs == 1 && g->storage->refs == 1 && !g->grad_fn &&
             ax_tensor_is_contiguous(g)) {
    leaf->grad = ax_tensor_retain(g);
  } else st = ax_run1(AX_OP_CLONE, g, &leaf->grad);
  return st;
}

static ax_status run_leaf(ax_walk *r, ax_node *n)
{
  ax_tensor *leaf = n->leaf;
  ax_status st = AX_OK;

  if (!leaf || !ax_still_leaf(leaf)) return AX_OK;
  if (n->grads[0]) {
    AX_TRY(ax_hooks_run(&leaf->hooks, false, 0, &n->grads[0]));
    AX_TRY(accumulate(r, leaf, n->grads[0]));
  }
  n->slot_written = false;
  if (leaf->grad) {
    ax_tensor *g = ax_tensor_retain(leaf->grad);
    st = ax_hooks_run(&leaf->hooks, true, 0, &g);
    ax_tensor_release(g);
    if (st == AX_OK && leaf->flat) st = ax_flat_arrived(leaf);
  }
out:
  return st;
}

/* Saved tensors as the rule sees them.  own[] is what has to be released. */
static ax_status unpack(ax_grad *c, ax_tensor **own)
{
  ax_node *n = c->node;
  ax_status st;
  for (int k = 0; k < n->n_in + n->n_out; k++) {
    const bool result = k >= n->n_in;
    const int at = result ? k - n->n_in : k;
    const ax_saved *s = result ? &n->out[at] : &n->in[at];
    if (!s->t) continue;
    /* While a step is captured nothing runs: the graph of a forward pass that was recorded before
     * is gone through again after its replays have written its inputs.  In an ordinary step the
     * eager calls before have had this error. */
    if (s->t->version->edits != s->edits && !ax_recording)
      return ax_fail(AX_EGRAD,
                     "backward: %s %d of %s, needed for its gradient, was changed in place after the forward "
                     "pass (version %u, expected %u)",
                     result ? "result" : "argument", at + 1, ax_ops[n->op].name, s->t->version->edits,
                     s->edits);
    if (!result) c->in[at] = s->t;
    else if (!c->create_graph) c->out[at] = s->t;
    else { /* with its history, so that the gradient can be differentiated */
      if ((st = ax_tensor_alias(s->t, &own[at])) != AX_OK) return st;
      own[at]->grad_fn = n;
      n->refs++;
      own[at]->out_index = (uint8_t)at;
      own[at]->requires_grad = true;
      c->out[at] = own[at];
    }
  }
  return AX_OK;
}

/* The conjugate in its place. */
static ax_status turn_back(ax_tensor **d)
{
  ax_tensor *conjugate;
  if (!*d) return AX_OK;
  const ax_status st = ax_run1(AX_OP_CONJ, *d, &conjugate);
  if (st != AX_OK) return st;
  ax_tensor_release(*d);
  *d = conjugate;
  return AX_OK;
}

/* Rows of one result, mostly; those of more have at most AX_MAX_OUT. */
static bool any_complex_gradient(const ax_node *n)
{
  for (int k = 0; k < n->n_out && k < AX_MAX_OUT; k++)
    if (n->grads[k] && __builtin_expect(ax_is_complex((ax_dtype)n->grads[k]->dtype), 0)) return true;
  return false;
}

static ax_status run_op(ax_walk *r, ax_node *n, ax_tensor **d, bool *slot_written, uint32_t *hidden)
{
  ax_tensor *own[AX_MAX_OUT] = { 0 };
  ax_grad c = { .node = n,
                .g = n->grads,
                .d = d,
                .slot_written = r->collect ? NULL : slot_written,
                .create_graph = r->create_graph,
                .search = r->search };
  ax_status st = unpack(&c, own);

  if (st == AX_OK) {
    const bool turned = any_complex_gradient(n) && ax_has(n->op, CONJUGATES);
    ax_tensor *conjugate[AX_MAX_OUT] = { 0 }, *given[AX_MAX_OUT];
    for (int k = 0; turned && k < n->n_out; k++) {
      given[k] = n->grads[k];
      if (given[k] && st == AX_OK && (st = ax_run1(AX_OP_CONJ, given[k], &conjugate[k])) == AX_OK)
        n->grads[k] = conjugate[k];
    }
    if (st == AX_OK) {
      ax_op_impls[n->op].gradient(&c);
      st = c.st;
    }
    for (int k = 0; turned && k < n->n_out; k++) {
      n->grads[k] = given[k];
      ax_tensor_release(conjugate[k]);
    }
    for (int k = 0; turned && st == AX_OK && k < n->n_in; k++) st = turn_back(&d[k]);
    *hidden = c.hidden;
  }
  for (int k = 0; k < c.n_temps; k++) ax_tensor_release(c.temps[k]);
  for (int k = 0; k < AX_MAX_OUT; k++) ax_tensor_release(own[k]);
  return st;
}

static _Thread_local bool watching; /* autograd.detect_anomaly */

bool ax_detect_anomaly(bool on)
{
  const bool former = watching;
  watching = on;
  return former;
}

/* Refuses a gradient that has a NaN. */
static ax_status check_numbers(const ax_node *n, int k, ax_tensor *d)
{
  ax_tensor *odd = NULL, *any = NULL;
  double found = 0;
  const bool former = ax_grad_set_enabled(false);
  ax_status st;

  if (!ax_has_gradient((ax_dtype)d->dtype) || d->numel == 0) st = AX_OK;
  else {
    if ((st = ax_run1(AX_OP_ISNAN, d, &odd)) == AX_OK) st = ax_run1(AX_OP_ANY, odd, &any);
    if (st == AX_OK) st = ax_item(any, &found);
  }
  ax_grad_set_enabled(former);
  ax_tensor_release(odd), ax_tensor_release(any);
  if (st != AX_OK || found == 0) return st;
  return ax_fail(AX_EGRAD, "backward: the gradient of %s in its argument %d has a NaN, %s %s",
                 n->kind == AX_NODE_CUSTOM ? n->name : ax_ops[n->op].name, k + 1,
                 ax_dtype_name((ax_dtype)d->dtype),
                 ax_shape_text(d->ndim, d->shape, (char[AX_SHAPE_TEXT]){ 0 }, AX_SHAPE_TEXT));
}

static ax_status run_node(ax_walk *r, ax_node *n)
{
  enum { FEW = 8 };
  ax_tensor *few[FEW] = { 0 }, **d = few;
  bool few_written[FEW] = { 0 }, *slot_written = few_written;
  uint32_t hidden = 0;
  ax_status st = AX_OK;

  if (n->released)
    return ax_fail(AX_EGRAD,
                   "backward: the graph through %s was released by an earlier backward pass; pass { "
                   "retain_graph = true } to that one to go through it again",
                   n->kind == AX_NODE_CUSTOM ? n->name : ax_ops[n->op].name);
  if (n->n_in > FEW) {
    d = ax_calloc((size_t)n->n_in, sizeof *d + sizeof *slot_written);
    if (!d) return AX_ENOMEM;
    slot_written = (bool *)(d + n->n_in);
  }
  if (n->kind == AX_NODE_CUSTOM) st = n->custom(n->ud, n->n_out, n->grads, n->n_in, d);
  else st = run_op(r, n, d, slot_written, &hidden);
  for (int k = 0; __builtin_expect(watching, 0) && st == AX_OK && k < n->n_in; k++)
    if (d[k]) st = check_numbers(n, k, d[k]);
  for (int k = 0; st == AX_OK && k < n->n_in; k++) {
    const ax_edge own = n->edges[k], turned = { own.node, 1 },
                  *e = k < 32 && hidden >> k & 1 ? &turned : &own;
    ax_tensor *fitted = NULL;
    if (!e->node || !ax_node_needed(e->node, r->search)) continue;
    if (slot_written[k]) st = ax_walk_push(r, ax_leaf_node(e->node));
    else if (d[k]) {
      st = fit(d[k], &n->in_meta[k], travels_as(r, e, d[k], &n->in_meta[k]), &fitted);
      ax_tensor_release(d[k]);
      d[k] = NULL; /* before it is delivered: the engine adds in place only into what it alone holds */
      if (st == AX_OK) st = deliver(r, e, fitted);
    }
  }
  for (int k = 0; k < n->n_in; k++) ax_tensor_release(d[k]);
  if (d != few) ax_mfree(d);
  if (st == AX_OK && !r->retain && !ax_casts_leaf(n)) {
    ax_node_release_saved(n);
    /* no gradient comes this way again; a hook may capture the very result that it is on */
    ax_hooks_end(&n->hooks);
  }
  return st;
}

/* Whether n's edges lead to a wanted input. */
static bool leads_on(const ax_walk *r, const ax_node *n)
{
  for (int k = 0; k < n->n_in; k++)
    if (n->edges[k].node && ax_node_needed(n->edges[k].node, r->search)) return true;
  return !r->search;
}

static ax_status visit(ax_walk *r, ax_node *n)
{
  bool any = n->slot_written;
  ax_status st;

  for (int k = 0; k < n->n_out; k++) {
    if (!n->grads[k]) continue;
    any = true;
    bool wanted = false;
    for (int w = 0; w < r->n_wanted; w++) wanted |= r->wanted[w].node == n && r->wanted[w].out == k;
    if (n->kind != AX_NODE_ACCUMULATE) st = ax_hooks_run(&n->hooks, false, k, &n->grads[k]);
    /* run_leaf does the others */
    else st = wanted && n->leaf ? ax_hooks_run(&n->leaf->hooks, false, 0, &n->grads[k]) : AX_OK;
    if (st != AX_OK) return st;
    for (int w = 0; w < r->n_wanted; w++)
      if (r->wanted[w].node == n && r->wanted[w].out == k) {
        ax_tensor_release(r->found[w]);
        r->found[w] = ax_tensor_retain(n->grads[k]);
      }
  }
  if (!any) return AX_OK;
  if (n->kind == AX_NODE_ACCUMULATE) return r->collect ? AX_OK : run_leaf(r, n);
  if (!leads_on(r, n)) return AX_OK; /* no wanted input is further back */
  return run_node(r, n);
}

/* Visits a node as an event of the profiler, with the script line of the forward pass. */
static ax_status visit_profiled(ax_walk *r, ax_node *n)
{
  char name[64];
  ax_profile_mark m;
  ax_status st;

  snprintf(name, sizeof name, "%.48s_backward",
           n->kind == AX_NODE_ACCUMULATE ? "leaf"
           : n->kind == AX_NODE_CUSTOM   ? n->name
                                         : ax_ops[n->op].name);
  m = ax_profile_begin(n->kind == AX_NODE_ACCUMULATE ? "accumulate_grad" : name, AX_PROFILE_BACKWARD,
                       n->place);
  st = visit(r, n);
  ax_profile_end(m);
  return st;
}

static void forget(ax_node *n)
{
  for (int k = 0; k < n->n_out; k++) {
    ax_tensor_release(n->grads[k]);
    n->grads[k] = NULL;
  }
  n->slot_written = false;
  n->run = NULL;
  ax_node_release(n);
}

static ax_status seed_root(ax_walk *r, ax_tensor *root, ax_tensor *seed)
{
  ax_edge e = { 0 };
  ax_tensor *g = NULL;
  char a[AX_SHAPE_TEXT], b[AX_SHAPE_TEXT];
  ax_status st;

  AX_TRY(ax_history(root));
  if (!root->requires_grad)
    return ax_fail(AX_EGRAD,
                   "backward: the tensor %s does not require a gradient and has no history: no input of it "
                   "had requires_grad set, or it was made inside no_grad or by detach",
                   ax_shape_text(root->ndim, root->shape, a, sizeof a));
  if (!seed && root->numel != 1)
    return ax_fail(AX_EGRAD,
                   "backward: a gradient must be given for a tensor of shape %s; only a scalar starts with 1",
                   ax_shape_text(root->ndim, root->shape, a, sizeof a));
  if (!seed && ax_is_complex((ax_dtype)root->dtype))
    return ax_fail(AX_EGRAD, "backward: a gradient must be given for %s; only a real scalar starts with 1",
                   ax_dtype_name((ax_dtype)root->dtype));
  if (seed && !ax_same_shape(seed, root->ndim, root->shape))
    return ax_fail(AX_ESHAPE, "backward: gradient of shape %s for a tensor of shape %s",
                   ax_shape_text(seed->ndim, seed->shape, a, sizeof a),
                   ax_shape_text(root->ndim, root->shape, b, sizeof b));
  AX_TRY(ax_edge_of(root, &e));
  if (seed) AX_TRY(ax_cast(seed, (ax_dtype)root->dtype, &g));
  else {
    AX_TRY(ax_tensor_new_on(root->device, (ax_dtype)root->dtype, root->ndim, root->shape, &g));
    AX_TRY(ax_fill(g, 1));
  }
  st = deliver(r, &e, g);
  g = NULL;
out:
  ax_tensor_release(g);
  if (e.node) ax_node_release(e.node);
  return st;
}

ax_status ax_walk_run(ax_walk *r, int n, ax_tensor *const *roots, ax_tensor *const *seeds)
{
  const bool former = ax_grad_set_enabled(r->create_graph), casting = ax_autocast_now.enabled;
  ax_status st;

  ax_autocast_now.enabled = false; /* gradients are computed in the types of the forward pass */
  r->outer = innermost;
  innermost = r;

  st = ax_leaves_order(r, n, roots);
  for (int k = 0; st == AX_OK && k < n; k++) st = seed_root(r, roots[k], seeds ? seeds[k] : NULL);
  while (st == AX_OK && r->n > 0) {
    if (__builtin_expect(ax_offload_over, 0) && (st = ax_offload_trim()) != AX_OK) break;
    ax_node *node = ax_walk_pop(r);
    node->run = r; /* still ours while it runs: a backward pass from inside it is refused */
    r->current = node;
    st = __builtin_expect(ax_profiling, 0) ? visit_profiled(r, node) : visit(r, node);
    r->current = NULL;
    forget(node);
  }
  while (r->n > 0) forget(r->heap[--r->n]); /* after a failure */
  ax_walk_give_back(r);
  innermost = r->outer;
  ax_mfree(r->heap);
  ax_autocast_now.enabled = casting;
  ax_grad_set_enabled(former);
  return st;
}

ax_status ax_backward(int n, ax_tensor *const *roots, ax_tensor *const *seeds, bool retain_graph,
                      bool create_graph)
{
  ax_walk r = { .retain = retain_graph || create_graph, .create_graph = create_graph };
  return ax_walk_run(&r, n, roots, seeds);
}

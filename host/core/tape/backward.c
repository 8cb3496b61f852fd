/* Walking the tape backward: order, gradients on their way, accumulating into leaves.  Nothing
 * recurses along the graph. */
#include "capture.h"
#include "flat.h"
#include "core/ops/complex.h"
#include "profile.h"
#include "core/ops/rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one backward run */

typedef struct run {
  ax_node **heap; /* largest sequence number first */
  int n, size;
  bool retain, create_graph;
  bool collect; /* gradients of given inputs are wanted, leaves are left alone */
  int n_wanted;
  const ax_edge *wanted;
  ax_tensor **found;
  uint64_t search; /* the one that marked what leads to the wanted inputs; 0: everything is needed */
  /* the run from inside which this one was started, by a hook or a custom gradient */
  const struct run *outer;
  const ax_node *current; /* being visited */
  struct stash *stashed;
} run;
static _Thread_local const run *innermost;

bool ax_backward_collects(void) { return innermost && innermost->collect; }

/* What an outer run had at a node that this one came to as well: it is put away until this one is
 * through. */
typedef struct stash {
  struct stash *next;
  ax_node *node;
  const void *run;
  bool slot_written;
  ax_tensor *grads[];
} stash;

static ax_status put_away(run *r, ax_node *n)
{
  stash *s;
  for (const run *o = r->outer; o; o = o->outer)
    if (o->current == n)
      return ax_fail(AX_EGRAD, "backward: called again, from a hook or a custom gradient, through the very "
                               "op or leaf whose gradient is being worked out");
  if (!(s = ax_malloc(sizeof *s + sizeof *s->grads * (size_t)n->n_out))) return AX_ENOMEM;
  *s = (stash){ .next = r->stashed, .node = n, .run = n->run, .slot_written = n->slot_written };
  memcpy(s->grads, n->grads, sizeof *s->grads * (size_t)n->n_out);
  memset(n->grads, 0, sizeof *n->grads * (size_t)n->n_out);
  n->slot_written = false;
  r->stashed = s;
  return AX_OK;
}

static void give_back(run *r)
{
  while (r->stashed) {
    stash *s = r->stashed;
    r->stashed = s->next;
    s->node->run = s->run;
    s->node->slot_written = s->slot_written;
    memcpy(s->node->grads, s->grads, sizeof *s->grads * (size_t)s->node->n_out);
    ax_mfree(s);
  }
}

static ax_status push(run *r, ax_node *n)
{
  if (n->run == r) return AX_OK;
  if (n->run) {
    const ax_status st = put_away(r, n);
    if (st != AX_OK) return st;
  }
  if (r->n == r->size) {
    const int size = r->size ? 2 * r->size : 64;
    ax_node **heap = ax_malloc(sizeof *heap * (size_t)size);
    if (!heap) return AX_ENOMEM; /* (what was put away is given back) */
    if (r->n) memcpy(heap, r->heap, sizeof *heap * (size_t)r->n);
    ax_mfree(r->heap);
    r->heap = heap;
    r->size = size;
  }
  int at = r->n++;
  for (int up; at > 0 && r->heap[up = (at - 1) / 2]->seq < n->seq; at = up) r->heap[at] = r->heap[up];
  r->heap[at] = n;
  n->refs++;
  n->run = r;
  return AX_OK;
}

static ax_node *pop(run *r)
{
  ax_node *top = r->heap[0], *last = r->heap[--r->n];
  int at = 0;
  for (int down; (down = 2 * at + 1) < r->n; at = down) {
    if (down + 1 < r->n && r->heap[down + 1]->seq > r->heap[down]->seq) down++;
    if (r->heap[down]->seq < last->seq) break;
    r->heap[at] = r->heap[down];
  }
  r->heap[at] = last;
  top->run = NULL;
  return top;
}

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
  if (op == AX_OP_LAYER_NORM || op == AX_OP_RMS_NORM)
    return ax_backend_of(device, &backend) == AX_OK && backend->joins_norms;
  return op == AX_OP_CAST || op == AX_OP_VIEW || op == AX_OP_RESHAPE || op == AX_OP_SQUEEZE ||
         op == AX_OP_UNSQUEEZE || op == AX_OP_TRANSPOSE || op == AX_OP_PERMUTE;
}

/* The type in which g travels on to an argument of m's type: that of the argument; but half numbers
 * for a float32 one need no widening on the way to a rule that rounds or widens them itself.  They
 * have the values of the float32 ones.  Who looks at them (hooks, tensor.grad, sums of several
 * gradients) gets float32. */
static ax_dtype travels_as(const run *r, const ax_edge *e, const ax_tensor *g, const ax_meta *m)
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

/* Does the engine alone hold g, so that it may be written? */
static bool is_ours(const ax_tensor *g)
{
  return g->refs == 1 && g->storage->refs == 1 && !g->grad_fn && ax_tensor_is_contiguous(g);
}

/* Adds g (taken) to what has arrived for an edge. */
static ax_status deliver(run *r, const ax_edge *e, ax_tensor *g)
{
  ax_tensor **at = &e->node->grads[e->out], *sum = NULL;
  ax_status st = push(r, e->node);

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
  if (is_ours(*at) && !r->create_graph) {
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
static ax_status accumulate(run *r, ax_tensor *leaf, ax_tensor *g)
{
  ax_tensor *sum = NULL;
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
  } else if (leaf->grad_slot && !r->create_graph) {
    if ((st = ax_copy(leaf->grad_slot, g)) == AX_OK) leaf->grad = ax_tensor_retain(leaf->grad_slot);
  } else if (g->dtype != leaf->dtype) {
    st = ax_cast(g, (ax_dtype)leaf->dtype, &leaf->grad);
  } else if (!r->create_graph && g->refs == 1 && g->storage->refs == 1 && !g->grad_fn &&
             ax_tensor_is_contiguous(g)) {
    leaf->grad = ax_tensor_retain(g);
  } else st = ax_run1(AX_OP_CLONE, g, &leaf->grad);
  return st;
}

/* The script may have frozen a leaf since the forward pass, or made it the result of an in-place
 * op: then it has no gradient any more. */
static bool still_leaf(const ax_tensor *t) { return t->requires_grad && !t->grad_fn; }

/* Is it the cast of a leaf?  It saves nothing, and autocast lets the graphs of several losses share
 * one: a backward pass does not use it up. */
static bool casts_leaf(const ax_node *n)
{
  return n->kind == AX_NODE_OP && n->op == AX_OP_CAST && n->edges[0].node &&
         n->edges[0].node->kind == AX_NODE_ACCUMULATE;
}

static ax_status run_leaf(run *r, ax_node *n)
{
  ax_tensor *leaf = n->leaf;
  ax_status st = AX_OK;

  if (!leaf || !still_leaf(leaf)) return AX_OK;
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

/* ---- for rules */

bool ax_wants(const ax_grad *c, int k)
{
  const ax_node *to = c->node->edges[k].node;
  return to && ax_node_needed(to, c->search);
}

/* The node that adds into a leaf for this edge: the edge's own, or the one behind the cast of a
 * leaf, through which a rule may add in the leaf's type.  NULL where there is none, or where a hook
 * is to see what comes by. */
static ax_node *leaf_node(ax_node *to)
{
  if (to && casts_leaf(to) && !to->hooks) to = to->edges[0].node;
  return to && to->kind == AX_NODE_ACCUMULATE ? to : NULL;
}

ax_tensor *ax_grad_slot_of(ax_grad *c, int k, bool *accumulate_)
{
  const ax_node *to = leaf_node(c->node->edges[k].node);
  ax_tensor *leaf = to ? to->leaf : NULL;

  if (!leaf || !c->slot_written || !leaf->grad_slot || c->create_graph || !still_leaf(leaf)) return NULL;
  if (leaf->grad && leaf->grad != leaf->grad_slot) return NULL;
  if (ax_recording) ax_capture_note(leaf);
  for (const ax_hook *h = leaf->hooks; h; h = h->next)
    if (!h->post) return NULL; /* the hook must see the gradient before it is added */
  *accumulate_ = leaf->grad != NULL;
  return leaf->grad_slot;
}

void ax_grad_slot_written(ax_grad *c, int k)
{
  ax_node *to = leaf_node(c->node->edges[k].node);
  if (!to->leaf->grad) to->leaf->grad = ax_tensor_retain(to->leaf->grad_slot);
  to->slot_written = c->slot_written[k] = true;
}

ax_tensor *ax_grad_arrived(const ax_grad *c, int k)
{
  const ax_edge *e = &c->node->edges[k];
  ax_tensor *g = e->node && ax_wants(c, k) ? e->node->grads[e->out] : NULL;
  const ax_meta *m = &c->node->in_meta[k];

  if (!g || c->create_graph || e->node->kind != AX_NODE_OP || !is_ours(g)) return NULL;
  return g->dtype == m->dtype && !ax_is_half((ax_dtype)g->dtype) && ax_same_shape(g, m->ndim, m->shape)
             ? g
             : NULL;
}

ax_tensor *ax_saved_gelu_input(const ax_grad *c, int k)
{
  const ax_edge *e = &c->node->edges[k];
  const ax_node *n = e->node;
  if (!n || n->kind != AX_NODE_OP || n->op != AX_OP_LINEAR_GELU || e->out != 0 || n->hooks || n->released ||
      c->create_graph || !c->slot_written)
    return NULL;
  const ax_saved *s = &n->out[1];
  return s->t && s->t->version->edits == s->edits ? s->t : NULL;
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
    /* While a step is recorded nothing runs: the graph of a forward pass that was recorded before
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

static ax_status run_op(run *r, ax_node *n, ax_tensor **d, bool *slot_written, uint32_t *hidden)
{
  ax_tensor *own[AX_MAX_OUT] = { 0 };
  ax_grad c = { .node = n,
                .g = n->grads,
                .d = d,
                .slot_written = r->collect ? NULL : slot_written,
                .create_graph = r->create_graph,
                .search = r->search };
  /* cat saves nothing and may have any number of inputs */
  ax_status st = n->op != AX_OP_CAT ? unpack(&c, own) : AX_OK;

  if (st == AX_OK) {
    const bool turned = n->n_out == 1 && c.g[0] && ax_is_complex((ax_dtype)c.g[0]->dtype) &&
                        ax_complex_way_of(n->op) == AX_COMPLEX_TURN;
    ax_tensor *conjugate = NULL, *const given = n->grads[0];
    if (turned && (st = ax_run1(AX_OP_CONJ, given, &conjugate)) == AX_OK) n->grads[0] = conjugate;
    if (st == AX_OK) {
      ax_op_impls[n->op].gradient(&c);
      st = c.st;
    }
    n->grads[0] = given;
    ax_tensor_release(conjugate);
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

static ax_status run_node(run *r, ax_node *n)
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
    if (slot_written[k]) st = push(r, leaf_node(e->node));
    else if (d[k]) {
      st = fit(d[k], &n->in_meta[k], travels_as(r, e, d[k], &n->in_meta[k]), &fitted);
      ax_tensor_release(d[k]);
      d[k] = NULL; /* before it is delivered: the engine adds in place only into what it alone holds */
      if (st == AX_OK) st = deliver(r, e, fitted);
    }
  }
  for (int k = 0; k < n->n_in; k++) ax_tensor_release(d[k]);
  if (d != few) ax_mfree(d);
  if (st == AX_OK && !r->retain && !casts_leaf(n)) {
    ax_node_release_saved(n);
    /* no gradient comes this way again; a hook may capture the very result that it is on */
    ax_hooks_end(&n->hooks);
  }
  return st;
}

/* Whether n's edges lead to a wanted input. */
static bool leads_on(const run *r, const ax_node *n)
{
  for (int k = 0; k < n->n_in; k++)
    if (n->edges[k].node && ax_node_needed(n->edges[k].node, r->search)) return true;
  return !r->search;
}

static ax_status visit(run *r, ax_node *n)
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
static ax_status visit_profiled(run *r, ax_node *n)
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

static ax_status seed_root(run *r, ax_tensor *root, ax_tensor *seed)
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

static ax_status walk(run *r, int n, ax_tensor *const *roots, ax_tensor *const *seeds)
{
  const bool former = ax_grad_set_enabled(r->create_graph), casting = ax_autocast_now.enabled;
  ax_status st = AX_OK;

  ax_autocast_now.enabled = false; /* gradients are computed in the types of the forward pass */
  r->outer = innermost;
  innermost = r;

  for (int k = 0; st == AX_OK && k < n; k++) st = seed_root(r, roots[k], seeds ? seeds[k] : NULL);
  while (st == AX_OK && r->n > 0) {
    ax_node *node = pop(r);
    node->run = r; /* still ours while it runs: a backward pass from inside it is refused */
    r->current = node;
    st = __builtin_expect(ax_profiling, 0) ? visit_profiled(r, node) : visit(r, node);
    r->current = NULL;
    forget(node);
  }
  while (r->n > 0) forget(r->heap[--r->n]); /* after a failure */
  give_back(r);
  innermost = r->outer;
  ax_mfree(r->heap);
  ax_autocast_now.enabled = casting;
  ax_grad_set_enabled(former);
  return st;
}

ax_status ax_backward(int n, ax_tensor *const *roots, ax_tensor *const *seeds, bool retain_graph,
                      bool create_graph)
{
  run r = { .retain = retain_graph || create_graph, .create_graph = create_graph };
  return walk(&r, n, roots, seeds);
}

/* ---- which nodes lead to given inputs */

typedef struct reached {
  ax_node **list;
  int n, size;
} reached;

static ax_status reach(reached *f, ax_node *n, uint64_t search)
{
  if (!n || n->search == search) return AX_OK;
  if (f->n == f->size) {
    const int size = f->size ? 2 * f->size : 64;
    ax_node **list = ax_malloc(sizeof *list * (size_t)size);
    if (!list) return AX_ENOMEM;
    if (f->n) memcpy(list, f->list, sizeof *list * (size_t)f->n);
    ax_mfree(f->list);
    f->list = list;
    f->size = size;
  }
  n->search = search;
  n->needed = false;
  f->list[f->n++] = n;
  return AX_OK;
}

static int by_age(const void *a, const void *b)
{
  const ax_node *const *x = a, *const *y = b;
  return ((*x)->seq > (*y)->seq) - ((*x)->seq < (*y)->seq);
}

/* Marks the nodes from which a wanted input can be reached; the walk visits no others.  So a part
 * of the graph that is not needed may have been released, and what is visited depends on the graph
 * alone.  An edge points to an older node: in order of age, a node comes after all behind it. */
static ax_status mark_needed(run *r, int n, ax_tensor *const *roots)
{
  static _Thread_local uint64_t searches;
  reached f = { 0 };
  ax_status st = AX_OK;

  r->search = ++searches;
  for (int k = 0; k < n; k++) {
    ax_edge e = { 0 };
    if (!roots[k]->requires_grad) continue; /* the walk says so */
    AX_TRY(ax_history(roots[k]));
    AX_TRY(ax_edge_of(roots[k], &e));
    /* else it is a leaf's, and its gradient is not wanted */
    if (e.node->refs > 1) st = reach(&f, e.node, r->search);
    ax_node_release(e.node);
    if (st != AX_OK) goto out;
  }
  for (int at = 0; at < f.n; at++)
    for (int k = 0; k < f.list[at]->n_in; k++) AX_TRY(reach(&f, f.list[at]->edges[k].node, r->search));
  if (f.n > 1) qsort(f.list, (size_t)f.n, sizeof *f.list, by_age);
  for (int w = 0; w < r->n_wanted; w++)
    if (r->wanted[w].node->search == r->search) r->wanted[w].node->needed = true;
  for (int at = 0; at < f.n; at++)
    for (int k = 0; k < f.list[at]->n_in && !f.list[at]->needed; k++) {
      const ax_node *to = f.list[at]->edges[k].node;
      f.list[at]->needed = to && to->needed;
    }
out:
  ax_mfree(f.list);
  return st;
}

ax_status ax_grad_of(int n, ax_tensor *const *roots, ax_tensor *const *seeds, int n_in,
                     ax_tensor *const *inputs, bool retain_graph, bool create_graph, bool allow_unused,
                     ax_tensor **out)
{
  ax_edge *wanted = ax_calloc((size_t)(n_in ? n_in : 1), sizeof *wanted);
  run r = { .retain = retain_graph || create_graph,
            .create_graph = create_graph,
            .collect = true,
            .n_wanted = n_in,
            .wanted = wanted,
            .found = out };
  ax_status st = AX_OK;

  for (int k = 0; k < n_in; k++) out[k] = NULL;
  if (!wanted) return AX_ENOMEM;
  for (int k = 0; k < n_in; k++) {
    AX_TRY(ax_history(inputs[k]));
    if (!inputs[k]->requires_grad) {
      st = ax_fail(AX_EGRAD, "grad: input %d does not require a gradient", k + 1);
      goto out;
    }
    AX_TRY(ax_edge_of(inputs[k], &wanted[k]));
  }
  AX_TRY(mark_needed(&r, n, roots));
  AX_TRY(walk(&r, n, roots, seeds));
  for (int k = 0; k < n_in && !allow_unused; k++)
    if (!out[k]) {
      st = ax_fail(
          AX_EGRAD,
          "grad: the result does not depend on input %d; pass { allow_unused = true } to get nil for it",
          k + 1);
      goto out;
    }
out:
  for (int k = 0; k < n_in; k++) {
    if (wanted[k].node) ax_node_release(wanted[k].node);
    if (st != AX_OK) {
      ax_tensor_release(out[k]);
      out[k] = NULL;
    }
  }
  ax_mfree(wanted);
  return st;
}

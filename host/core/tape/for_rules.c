/* tape/for_rules.c: what a gradient rule may ask of the run that calls it. */
#include "capture.h"
#include "core/ops/rules.h"
#include "core/params/home.h"
#include "core/tape/walk.h"
#include "slot.h"

bool ax_wants(const ax_grad *c, int k)
{
  /* optional inputs at the end of a call have no place in the node */
  const ax_node *to = k < c->node->n_in ? c->node->edges[k].node : NULL;
  return to && ax_node_needed(to, c->search);
}

ax_node *ax_leaf_node(ax_node *to)
{
  if (to && ax_casts_leaf(to) && !to->hooks) to = to->edges[0].node;
  return to && to->kind == AX_NODE_ACCUMULATE ? to : NULL;
}

/* A gradient that rests in a file is written whole. */
static void announce(const ax_tensor *leaf)
{
  const ax_tensor *slot = ax_slot_grad(leaf);
  const char *data = slot->storage->data;

  if (data && leaf->flat->home.away & AX_CUT_GRADS)
    ax_stretch_overwrite(data + (size_t)slot->offset * ax_itemsize(slot),
                         (size_t)slot->numel * ax_itemsize(slot));
}

ax_tensor *ax_grad_slot_of(ax_grad *c, int k, bool *accumulate_)
{
  const ax_node *to = ax_leaf_node(c->node->edges[k].node);
  ax_tensor *leaf = to ? to->leaf : NULL, *slot = leaf ? ax_slot_grad(leaf) : NULL;

  if (!slot || !c->slot_written || c->create_graph || !ax_still_leaf(leaf)) return NULL;
  if (leaf->grad && leaf->grad != slot) return NULL;
  if (ax_recording) ax_capture_note(leaf);
  for (const ax_hook *h = leaf->hooks; h; h = h->next)
    if (h->kind != AX_HOOK_POST) return NULL; /* the hook must see the gradient before it is added */
  *accumulate_ = leaf->grad != NULL;
  if (!leaf->grad) announce(leaf);
  return slot;
}

void ax_grad_slot_written(ax_grad *c, int k)
{
  ax_node *to = ax_leaf_node(c->node->edges[k].node);
  if (!to->leaf->grad) to->leaf->grad = ax_tensor_retain(ax_slot_grad(to->leaf));
  to->slot_written = c->slot_written[k] = true;
}

ax_tensor *ax_grad_arrived(const ax_grad *c, int k)
{
  const ax_edge *e = &c->node->edges[k];
  ax_tensor *g = e->node && ax_wants(c, k) ? e->node->grads[e->out] : NULL;
  const ax_meta *m = &c->node->in_meta[k];

  if (!g || c->create_graph || e->node->kind != AX_NODE_OP || !ax_held_alone(g)) return NULL;
  return g->dtype == m->dtype && !ax_is_half((ax_dtype)g->dtype) && ax_same_shape(g, m->ndim, m->shape)
             ? g
             : NULL;
}

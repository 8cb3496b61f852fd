/* tape/walk.h: one backward run over the tape, for the files that it is written in. */
#ifndef AX_WALK_H
#define AX_WALK_H

#include "core/core.h"
#include "core/ops/infer.h"

typedef struct ax_walk {
  ax_node **heap; /* largest sequence number first */
  int n, size;
  bool retain, create_graph;
  bool collect; /* gradients of given inputs are wanted, leaves are left alone */
  int n_wanted;
  const ax_edge *wanted;
  ax_tensor **found;
  uint64_t search; /* the one that marked what leads to the wanted inputs; 0: everything is needed */
  /* the run from inside which this one was started, by a hook or a custom gradient */
  const struct ax_walk *outer;
  const ax_node *current; /* being visited */
  uint64_t mark;          /* leaves.c: of the nodes that it leads to */
  struct ax_stash *stashed;
} ax_walk;

/* ---- queue.c */

/* Queues a node, which is visited after all newer ones. */
ax_status ax_walk_push(ax_walk *r, ax_node *n);
ax_node *ax_walk_pop(ax_walk *r);
/* Gives outer runs back what they had at the nodes that this one came to. */
void ax_walk_give_back(ax_walk *r);

/* ---- leaves.c */

/* Before a run from n roots. */
ax_status ax_leaves_order(ax_walk *r, int n, ax_tensor *const *roots);

/* ---- for_rules.c */

/* The node that adds into a leaf for this edge: the edge's own, or the one behind the cast of a
 * leaf, through which a rule may add in the leaf's type.  NULL where there is none, or if a hook
 * must see the gradient first. */
ax_node *ax_leaf_node(ax_node *to);

/* ---- backward.c */

/* Runs backward from n roots; seeds: NULL, or a gradient for each root (NULL: 1). */
ax_status ax_walk_run(ax_walk *r, int n, ax_tensor *const *roots, ax_tensor *const *seeds);

/* ---- facts */

/* Does the engine alone hold g, so that it may be written? */
static inline bool ax_held_alone(const ax_tensor *g)
{
  return g->refs == 1 && g->storage->refs == 1 && !g->grad_fn && ax_tensor_is_contiguous(g);
}

/* The script may have frozen a leaf since the forward pass, or made it the result of an in-place
 * op: then it has no gradient any more. */
static inline bool ax_still_leaf(const ax_tensor *t) { return t->requires_grad && !t->grad_fn; }

/* Is it the cast of a leaf?  It saves nothing, and autocast lets the graphs of several losses share
 * one: a backward pass does not use it up. */
static inline bool ax_casts_leaf(const ax_node *n)
{
  return n->kind == AX_NODE_OP && ax_has(n->op, CASTS) && n->edges[0].node &&
         n->edges[0].node->kind == AX_NODE_ACCUMULATE;
}

#endif

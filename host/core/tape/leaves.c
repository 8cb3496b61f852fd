/* tape/leaves.c: when a backward run visits leaves.
 *
 * A leaf has one node, which lives as long as some graph leads to it.  One that is made with a
 * graph is visited right after the leaf's first use there; one that an earlier graph has left
 * behind is older, and would be visited at the end.  Which of them it is depends on when the
 * garbage collector freed that graph, and so differs between ranks.  Where models are cut over
 * ranks, arriving gradients start collectives, whose order must not differ: there each run begins
 * by putting the leaves that it leads to right behind their first use in its own graph. */
#include "core/tape/walk.h"

static bool ordering;

void ax_leaves_keep_order(void) { __atomic_store_n(&ordering, true, __ATOMIC_RELAXED); }

typedef struct listed {
  ax_node *first, **end;
  uint64_t mark;
} listed;

static void list(listed *l, ax_node *n)
{
  if (!n || n->reached == l->mark) return;
  n->reached = l->mark;
  n->after = NULL;
  *l->end = n;
  l->end = &n->after;
}

/* A leaf that an outer run leads to keeps its place there, which is behind all of this one: in
 * front of its uses there, that run would visit it after each of them. */
static bool is_outer(const ax_walk *r, const ax_node *leaf)
{
  bool outer = leaf->run != NULL;

  for (const ax_walk *o = r->outer; o; o = o->outer) outer |= leaf->reached == o->mark;
  return outer;
}

static void put_behind(const ax_walk *r, const listed *l, ax_node *leaf, const ax_node *user)
{
  const uint64_t place = user->seq - 1; /* numbers of other nodes are even */

  if (is_outer(r, leaf)) return;
  if (leaf->reached != l->mark || place < leaf->seq) leaf->seq = place;
  leaf->reached = l->mark;
}

ax_status ax_leaves_order(ax_walk *r, int n, ax_tensor *const *roots)
{
  static _Thread_local uint64_t marks;
  listed l = { .end = &l.first, .mark = r->mark = ++marks };

  if (!__atomic_load_n(&ordering, __ATOMIC_RELAXED)) return AX_OK;
  for (int k = 0; k < n; k++) {
    const ax_status st = ax_history(roots[k]);
    if (st != AX_OK) return st;
    list(&l, roots[k]->grad_fn);
  }
  for (const ax_node *at = l.first; at; at = at->after)
    for (int k = 0; k < at->n_in; k++) {
      ax_node *const to = at->edges[k].node;
      if (to && to->kind == AX_NODE_ACCUMULATE) put_behind(r, &l, to, at);
      else list(&l, to);
    }
  return AX_OK;
}

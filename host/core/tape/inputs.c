/* tape/inputs.c: gradients of given inputs, and which nodes lead to them. */
#include "core/tape/walk.h"

#include <stdlib.h>
#include <string.h>

typedef struct reached {
  ax_node **list;
  int n, size;
  bool unordered; /* a node is younger than one in front of it */
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
  if (f->n && f->list[f->n - 1]->seq < n->seq) f->unordered = true;
  f->list[f->n++] = n;
  return AX_OK;
}

static int youngest_first(const void *a, const void *b)
{
  const ax_node *const *x = a, *const *y = b;
  return ((*x)->seq < (*y)->seq) - ((*x)->seq > (*y)->seq);
}

/* Marks the nodes from which a wanted input can be reached; the walk visits no others.  So a part
 * of the graph that is not needed may have been released, and what is visited depends on the graph
 * alone.  An edge points to an older node: from the oldest on, a node comes after all behind it.  A
 * chain is reached in order of age. */
static ax_status mark_needed(ax_walk *r, int n, ax_tensor *const *roots)
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
  if (f.unordered) qsort(f.list, (size_t)f.n, sizeof *f.list, youngest_first);
  for (int w = 0; w < r->n_wanted; w++)
    if (r->wanted[w].node->search == r->search) r->wanted[w].node->needed = true;
  for (int at = f.n - 1; at >= 0; at--)
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
  ax_walk r = { .retain = retain_graph || create_graph,
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
  AX_TRY(ax_walk_run(&r, n, roots, seeds));
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

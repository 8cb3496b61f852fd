/* tape/queue.c: the nodes that a backward run will visit, the newest first, and what outer runs had
 * there. */
#include "core/tape/walk.h"

#include <string.h>

/* What an outer run had at a node that this one came to as well: it is put away until this one is
 * through. */
typedef struct ax_stash {
  struct ax_stash *next;
  ax_node *node;
  const void *run;
  bool slot_written;
  ax_tensor *grads[];
} stash;

static ax_status put_away(ax_walk *r, ax_node *n)
{
  stash *s;
  for (const ax_walk *o = r->outer; o; o = o->outer)
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

void ax_walk_give_back(ax_walk *r)
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

ax_status ax_walk_push(ax_walk *r, ax_node *n)
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

ax_node *ax_walk_pop(ax_walk *r)
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

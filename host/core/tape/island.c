/* The part of the tape that a set of boxes alone holds.
 *
 * References are counted, so a circle through a script (a node's function, a tensor that the
 * function captures, the node that made the tensor) frees nothing by itself.  Only the collector of
 * the script sees such a circle, and only when it knows which boxes hold which nodes.
 * ax_island_find works that out by trial, as CPython's collector does: it counts the references
 * that come from the boxes and from what they reach.  An object with more references than that is
 * held from outside, and so is what it holds.  The rest is the island.  A reference that is not
 * followed here counts as one from outside: the island may come out too small, never too large. */
#include "core/tape/graph.h"
#include "core/grow.h"
#include "core/pointer_map.h"

#include <stdlib.h>

typedef struct object {
  const void *p; /* an ax_tensor or an ax_node */
  bool is_node, outside;
  int32_t counted; /* references found */
  int number;      /* in the island */
} object;

/* Where an object is in the list: an entry of the map. */
typedef struct place {
  const void *p;
  int at;
} place;

typedef struct walk {
  object *list;
  int n, room;
  ax_pointer_map places;
  bool failed; /* no memory */
} walk;

/* The place of p in the list, where it is added when it is new; -1: no memory. */
static int place_of(walk *w, const void *p, bool is_node)
{
  bool is_new;
  place *const e = w->failed ? NULL : ax_pointer_map_add(&w->places, sizeof *e, p, &is_new);

  if (e && !is_new) return e->at;
  if (!e || ax_grow(&w->list, w->n, &w->room, sizeof *w->list) != AX_OK) {
    w->failed = true;
    return -1;
  }
  w->list[w->n] = (object){ .p = p, .is_node = is_node };
  return e->at = w->n++;
}

typedef void (*child_fn)(walk *w, int from, const void *p, bool is_node, void *ud);

/* Tensors without a history hold no node, and are left out. */
static bool counts(const ax_tensor *t) { return t && (t->grad_fn || t->base); }

/* What the object at `from` holds a reference to.  fn may move the list. */
static void each_child(walk *w, int from, child_fn fn, void *ud)
{
  if (!w->list[from].is_node) {
    const ax_tensor *t = w->list[from].p;
    if (t->grad_fn) fn(w, from, t->grad_fn, true, ud);
    if (counts(t->base)) fn(w, from, t->base, false, ud);
    return;
  }
  const ax_node *n = w->list[from].p;
  for (int k = 0; k < n->n_in; k++) {
    if (n->edges[k].node) fn(w, from, n->edges[k].node, true, ud);
    if (counts(n->in[k].t)) fn(w, from, n->in[k].t, false, ud);
  }
  for (int k = 0; k < n->n_out; k++)
    if (counts(n->out[k].t)) fn(w, from, n->out[k].t, false, ud);
}

static void count(walk *w, int from, const void *p, bool is_node, void *ud)
{
  const int at = place_of(w, p, is_node);
  if (at >= 0) w->list[at].counted++;
}

static int32_t refs_of(const object *o)
{
  return o->is_node ? ((const ax_node *)o->p)->refs : ((const ax_tensor *)o->p)->refs;
}

typedef struct queue {
  int *list, n;
} queue;

static void put_outside(walk *w, int from, const void *p, bool is_node, void *ud)
{
  queue *q = ud;
  const int at = place_of(w, p, is_node);
  if (w->list[at].outside) return;
  w->list[at].outside = true;
  q->list[q->n++] = at;
}

/* Marks what is held from outside. */
static bool mark_outside(walk *w)
{
  queue q = { malloc(sizeof *q.list * (size_t)(w->n ? w->n : 1)), 0 };

  if (!q.list) return false;
  for (int k = 0; k < w->n; k++)
    if (refs_of(&w->list[k]) > w->list[k].counted) {
      w->list[k].outside = true;
      q.list[q.n++] = k;
    }
  while (q.n > 0) each_child(w, q.list[--q.n], put_outside, &q);
  free(q.list);
  return true;
}

static void link(walk *w, int from, const void *p, bool is_node, void *ud)
{
  ax_island *out = ud;
  const object *to = &w->list[place_of(w, p, is_node)];
  if (to->outside) return;
  if (out->links) out->links[out->n_links] = (ax_island_link){ w->list[from].number, to->number };
  out->n_links++;
}

static void add_data(ax_island *out, int number, void (*drop)(void *), void *ud)
{
  if (!drop) return;
  if (out->data) out->data[out->n_data] = (ax_island_data){ number, drop, ud };
  out->n_data++;
}

/* Fills in links and data where there is memory for them, and counts them. */
static void describe(walk *w, ax_island *out)
{
  out->n_links = out->n_data = 0;
  for (int k = 0; k < w->n; k++) {
    const object *o = &w->list[k];
    if (o->outside) continue;
    each_child(w, k, link, out);
    if (!o->is_node) continue;
    const ax_node *n = o->p;
    add_data(out, o->number, n->drop, n->ud);
    for (const ax_hook *h = n->hooks; h; h = h->next) add_data(out, o->number, h->drop, h->ud);
  }
}

void ax_island_free(ax_island *island)
{
  free(island->links);
  free(island->data);
  free(island->root);
  *island = (ax_island){ 0 };
}

ax_status ax_island_find(int n, ax_tensor *const *held, ax_island *out)
{
  walk w = { 0 };
  ax_status st = AX_ENOMEM;

  *out = (ax_island){ 0 };
  for (int k = 0; k < n; k++)
    if (counts(held[k])) count(&w, 0, held[k], false, NULL);
  for (int k = 0; k < w.n; k++) each_child(&w, k, count, NULL);
  if (w.failed || !mark_outside(&w) || !(out->root = malloc(sizeof *out->root * (size_t)(n ? n : 1))))
    goto out;
  for (int k = 0; k < w.n; k++)
    if (!w.list[k].outside) w.list[k].number = out->n_objects++;
  for (int k = 0; k < n; k++) {
    const object *o = counts(held[k]) ? &w.list[place_of(&w, held[k], false)] : NULL;
    out->root[k] = o && !o->outside ? o->number : -1;
  }
  describe(&w, out);
  out->links = malloc(sizeof *out->links * (size_t)(out->n_links + 1));
  out->data = malloc(sizeof *out->data * (size_t)(out->n_data + 1));
  if (!out->links || !out->data) goto out;
  describe(&w, out);
  st = AX_OK;
out:
  ax_mfree(w.list);
  ax_mfree(w.places.place);
  if (st != AX_OK) ax_island_free(out);
  return st == AX_OK ? st : ax_fail(st, "no memory to look for circles through the tape");
}

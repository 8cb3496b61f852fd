/* trie.c: finds texts by their beginnings.  Nodes are made along the sorted texts and then sorted
 * by depth, so that the children of a node are neighbours. */
#include "text/flow.h"

typedef struct entry {
  const char *s;
  uint32_t n;
  uint32_t same; /* bytes that it has in common with the entry before */
  int32_t value;
  int64_t order;
} entry;

static int by_text(const void *x, const void *y)
{
  const entry *a = x, *b = y;
  const uint32_t n = a->n < b->n ? a->n : b->n;
  const int d = memcmp(a->s, b->s, n);
  if (d) return d;
  if (a->n != b->n) return a->n < b->n ? -1 : 1;
  return a->order < b->order ? -1 : a->order > b->order;
}

static uint32_t in_common(const entry *a, const entry *b)
{
  const uint32_t n = a->n < b->n ? a->n : b->n;
  uint32_t same = 0;

  for (; same + 8 <= n; same += 8) {
    uint64_t x, y;
    memcpy(&x, a->s + same, 8);
    memcpy(&y, b->s + same, 8);
    if (x != y) break;
  }
  while (same < n && a->s[same] == b->s[same]) same++;
  return same;
}

/* One node for each prefix that differs from the entry before.  *deepest: the longest text. */
static int64_t count_nodes(entry *list, int64_t n, uint32_t *deepest)
{
  int64_t nodes = 1;
  *deepest = 0;
  for (int64_t i = 0; i < n; i++) {
    list[i].same = i ? in_common(list + i - 1, list + i) : 0;
    nodes += list[i].n - list[i].same;
    if (list[i].n > *deepest) *deepest = list[i].n;
  }
  return nodes;
}

/* Nodes in the order in which they are made, one text after the other. */
typedef struct draft {
  uint32_t *parent, *depth, *place; /* place: in the trie */
  uint32_t *path;                   /* [deepest + 1]: nodes of the text before */
  uint64_t *starts;                 /* [deepest + 2]: places of the nodes of each depth */
} draft;

static void free_draft(draft *d)
{
  ax_mfree(d->parent);
  ax_mfree(d->depth);
  ax_mfree(d->place);
  ax_mfree(d->path);
  ax_mfree(d->starts);
}

/* Fills parent, depth and place. */
static void draw(draft *d, const entry *list, int64_t n, int64_t nodes, uint32_t deepest)
{
  uint32_t made = 1;

  for (int64_t i = 0; i < n; i++)
    for (uint32_t k = list[i].same; k < list[i].n; k++) {
      d->parent[made] = d->path[k];
      d->depth[made] = k + 1;
      d->path[k + 1] = made++;
    }
  for (int64_t i = 0; i < nodes; i++) d->starts[d->depth[i] + 1]++;
  for (uint32_t k = 0; k <= deepest; k++) d->starts[k + 1] += d->starts[k];
  for (int64_t i = 0; i < nodes; i++) d->place[i] = (uint32_t)d->starts[d->depth[i]]++;
}

static void fill(ax_trie *t, const draft *d, const entry *list, int64_t n)
{
  uint32_t made = 1;

  for (int64_t i = 0; i < t->n; i++) t->value[i] = -1;
  for (int64_t i = 0; i < n; i++) {
    for (uint32_t k = list[i].same; k < list[i].n; k++, made++) {
      const uint32_t node = d->place[made], parent = d->place[d->parent[made]];
      t->label[node] = (uint8_t)list[i].s[k];
      if (t->count[parent]++ == 0) t->first[parent] = node;
      d->path[k + 1] = node;
    }
    if (t->value[d->path[list[i].n]] < 0) t->value[d->path[list[i].n]] = list[i].value;
  }
  for (uint32_t i = 0; i < t->count[0]; i++) t->root[t->label[t->first[0] + i]] = t->first[0] + i;
}

static ax_status build(ax_trie *t, entry *list, int64_t n)
{
  uint32_t deepest;
  const int64_t nodes = count_nodes(list, n, &deepest);
  draft d = { 0 };
  ax_status st = AX_ENOMEM;

  if (nodes > UINT32_MAX) return ax_fail(AX_EINVAL, "the vocabulary is too large");
  d.parent = ax_calloc((size_t)nodes, sizeof *d.parent);
  d.depth = ax_calloc((size_t)nodes, sizeof *d.depth);
  d.place = ax_calloc((size_t)nodes, sizeof *d.place);
  d.path = ax_calloc((size_t)deepest + 1, sizeof *d.path);
  d.starts = ax_calloc((size_t)deepest + 2, sizeof *d.starts);
  t->first = ax_calloc((size_t)nodes, sizeof *t->first);
  t->count = ax_calloc((size_t)nodes, sizeof *t->count);
  t->value = ax_calloc((size_t)nodes, sizeof *t->value);
  t->label = ax_calloc((size_t)nodes, 1);
  if (d.parent && d.depth && d.place && d.path && d.starts && t->first && t->count && t->value && t->label) {
    t->n = nodes;
    draw(&d, list, n, nodes, deepest);
    fill(t, &d, list, n);
    st = AX_OK;
  }
  free_draft(&d);
  return st;
}

ax_status ax_trie_build(ax_trie *t, int64_t n, const ax_text *texts, const int32_t *values)
{
  entry *list;
  int64_t count = 0;
  ax_status st;

  ax_trie_free(t);
  if (!(list = ax_malloc((size_t)n * sizeof *list))) return AX_ENOMEM;
  for (int64_t i = 0; i < n; i++)
    if (texts[i].s && texts[i].n > 0 && texts[i].n < UINT32_MAX)
      list[count++] = (entry){
        .s = texts[i].s, .n = (uint32_t)texts[i].n, .value = values ? values[i] : (int32_t)i, .order = i
      };
  qsort(list, (size_t)count, sizeof *list, by_text);
  st = build(t, list, count);
  ax_mfree(list);
  if (st != AX_OK) ax_trie_free(t);
  return st;
}

void ax_trie_free(ax_trie *t)
{
  ax_mfree(t->first);
  ax_mfree(t->count);
  ax_mfree(t->value);
  ax_mfree(t->label);
  memset(t, 0, sizeof *t);
}

int32_t ax_trie_get(const ax_trie *t, const char *s, size_t n)
{
  uint32_t node = 0;

  if (n == 0) return -1;
  for (size_t i = 0; i < n; i++)
    if (!(node = ax_trie_child(t, node, (uint8_t)s[i]))) return -1;
  return t->value[node];
}

int64_t ax_trie_longest(const ax_trie *t, const char *s, int64_t n, int32_t *value)
{
  uint32_t node = 0;
  int64_t found = 0;

  for (int64_t i = 0; i < n && (node = ax_trie_child(t, node, (uint8_t)s[i])) != 0; i++)
    if (t->value[node] >= 0) {
      *value = t->value[node];
      found = i + 1;
    }
  return found;
}

/* trie.c: finds texts by their beginnings.  Built breadth first from the sorted texts, so that the
 * children of a node are neighbours. */
#include "core/text/flow.h"

typedef struct entry {
  const char *s;
  uint32_t n;
  int32_t value;
  int64_t order;
} entry;
typedef struct range {
  int64_t from, to; /* entries that share the node's text */
  uint32_t depth;
} range;

static int by_text(const void *x, const void *y)
{
  const entry *a = x, *b = y;
  const uint32_t n = a->n < b->n ? a->n : b->n;
  const int d = memcmp(a->s, b->s, n);
  if (d) return d;
  if (a->n != b->n) return a->n < b->n ? -1 : 1;
  return a->order < b->order ? -1 : a->order > b->order;
}

/* Nodes: one for each prefix that differs from the entry before. */
static int64_t count_nodes(const entry *list, int64_t n)
{
  int64_t nodes = 1;
  for (int64_t i = 0; i < n; i++) {
    uint32_t same = 0;
    if (i > 0)
      while (same < list[i].n && same < list[i - 1].n && list[i].s[same] == list[i - 1].s[same]) same++;
    nodes += list[i].n - same;
  }
  return nodes;
}

static void add_children(ax_trie *t, const entry *list, range *ranges, int64_t node)
{
  range r = ranges[node];

  while (r.from < r.to && list[r.from].n == r.depth) {
    if (t->value[node] < 0) t->value[node] = list[r.from].value;
    r.from++;
  }
  t->first[node] = (uint32_t)t->n;
  while (r.from < r.to) {
    const uint8_t c = (uint8_t)list[r.from].s[r.depth];
    int64_t end = r.from + 1;
    while (end < r.to && (uint8_t)list[end].s[r.depth] == c) end++;
    t->label[t->n] = c;
    t->value[t->n] = -1;
    ranges[t->n++] = (range){ r.from, end, r.depth + 1 };
    t->count[node]++;
    r.from = end;
  }
}

static ax_status build(ax_trie *t, const entry *list, int64_t n)
{
  const int64_t nodes = count_nodes(list, n);
  range *ranges;

  if (nodes > UINT32_MAX) return ax_fail(AX_EINVAL, "the vocabulary is too large");
  ranges = ax_malloc((size_t)nodes * sizeof *ranges);
  t->first = ax_calloc((size_t)nodes, sizeof *t->first);
  t->count = ax_calloc((size_t)nodes, sizeof *t->count);
  t->value = ax_calloc((size_t)nodes, sizeof *t->value);
  t->label = ax_calloc((size_t)nodes, 1);
  if (!ranges || !t->first || !t->count || !t->value || !t->label) {
    ax_mfree(ranges);
    return AX_ENOMEM;
  }
  t->n = 1;
  t->value[0] = -1;
  ranges[0] = (range){ 0, n, 0 };
  for (int64_t node = 0; node < t->n; node++) add_children(t, list, ranges, node);
  for (uint32_t i = 0; i < t->count[0]; i++) t->root[t->label[t->first[0] + i]] = t->first[0] + i;
  ax_mfree(ranges);
  return AX_OK;
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
      list[count++] = (entry){ texts[i].s, (uint32_t)texts[i].n, values ? values[i] : (int32_t)i, i };
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

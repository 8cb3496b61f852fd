/* matcher.c: the longest of many texts that begins at each place of another.
 *
 * Short texts are looked up at each place, which takes their length in time.  Long ones are looked
 * for from the end of the text back, by the automaton of Aho and Corasick for the texts turned
 * around: its node stands for the longest end of one of them that begins at the place, and the way
 * back leads to whole ones.  Each byte is looked at once, and each step back undoes one forward. */
#include "text/tokenizer.h"

enum { SHORT = 32 }; /* bytes */

void ax_matcher_free(ax_matcher *m)
{
  ax_trie_free(&m->trie);
  ax_mfree(m->lengths);
  ax_mfree(m->back);
  ax_mfree(m->found);
  ax_mfree(m->places);
  memset(m, 0, sizeof *m);
}

/* The node behind byte c. */
static uint32_t go_on(const ax_matcher *m, uint32_t node, uint8_t c)
{
  uint32_t next;
  while ((next = ax_trie_child(&m->trie, node, c)) == 0 && node != 0) node = m->back[node];
  return next;
}

/* Nodes stand in the order of their depth, and the way back leads to smaller depths. */
static ax_status link_back(ax_matcher *m)
{
  const ax_trie *t = &m->trie;

  m->back = ax_calloc((size_t)t->n, sizeof *m->back);
  m->found = ax_calloc((size_t)t->n, sizeof *m->found);
  if (!m->back || !m->found) return AX_ENOMEM;
  for (int64_t node = 0; node < t->n; node++) {
    m->found[node] = t->value[node] >= 0 ? (uint32_t)node : m->found[m->back[node]];
    for (uint32_t i = 0; i < t->count[node]; i++) {
      const uint32_t child = t->first[node] + i;
      m->back[child] = node ? go_on(m, m->back[node], t->label[child]) : 0;
    }
  }
  return AX_OK;
}

/* Copies the texts into one piece of memory, each turned around. */
static char *turned(int64_t n, const ax_text *texts, ax_text *to)
{
  size_t total = 0;
  char *s, *at;

  for (int64_t i = 0; i < n; i++) total += texts[i].s ? texts[i].n : 0;
  if (!(s = at = ax_malloc(total + 1))) return NULL;
  for (int64_t i = 0; i < n; i++) {
    to[i] = (ax_text){ texts[i].s ? at : NULL, texts[i].n };
    for (size_t k = 0; texts[i].s && k < texts[i].n; k++) *at++ = texts[i].s[texts[i].n - 1 - k];
  }
  return s;
}

ax_status ax_matcher_build(ax_matcher *m, int64_t n, const ax_text *texts)
{
  ax_text *around = NULL;
  char *s = NULL;
  ax_status st = AX_ENOMEM;

  ax_matcher_free(m);
  if (!(m->lengths = ax_calloc((size_t)n + 1, sizeof *m->lengths))) return st;
  for (int64_t i = 0; i < n; i++) {
    m->lengths[i] = (uint32_t)texts[i].n;
    m->backward = m->backward || (texts[i].s && texts[i].n > SHORT);
  }
  if (!m->backward) return ax_trie_build(&m->trie, n, texts, NULL);
  if ((around = ax_calloc((size_t)n, sizeof *around)) && (s = turned(n, texts, around)) &&
      (st = ax_trie_build(&m->trie, n, around, NULL)) == AX_OK)
    st = link_back(m);
  ax_mfree(around);
  ax_mfree(s);
  if (st != AX_OK) ax_matcher_free(m);
  return st;
}

ax_status ax_matcher_open(ax_matcher *m, const char *s, int64_t n)
{
  uint32_t node = 0;
  ax_status st;

  if (!m->backward) return AX_OK;
  if ((st = ax_text_grow((void **)&m->places, &m->room, 0, n, sizeof *m->places)) != AX_OK) return st;
  for (int64_t at = n - 1; at >= 0; at--) {
    node = go_on(m, node, (uint8_t)s[at]);
    m->places[at] = m->trie.value[m->found[node]]; /* the root has -1 */
  }
  return AX_OK;
}

int32_t ax_matcher_at(const ax_matcher *m, const char *s, int64_t n, int64_t at)
{
  int32_t place = -1;

  if (m->backward) return m->places[at];
  if (!m->trie.root[(uint8_t)s[at]]) return -1;
  return ax_trie_longest(&m->trie, s + at, n - at, &place) ? place : -1;
}

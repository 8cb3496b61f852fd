/* flow.h: shared by the stages of a tokenizer: a text under way, its pieces, a trie, growing
 * arrays. */
#ifndef AX_FLOW_H
#define AX_FLOW_H

#include <stdlib.h>
#include <string.h>

#include "text.h"
#include "text/unicode.h"

/* A text, and for each byte the range of the original text that its character comes from. */
typedef struct ax_flow {
  char *s;
  int64_t n, room;
  uint32_t *from, *to; /* NULL: not followed */
  int64_t span_room;
  bool spans;   /* follow */
  int64_t most; /* bytes that it may become; 0: any number */
} ax_flow;
void ax_flow_free(ax_flow *f);
/* What a tokenizer's steps may make of n bytes: AX_GROWTH * n + AX_GROWTH_LEAST. */
enum { AX_GROWTH = 64, AX_GROWTH_LEAST = 1 << 20 };
ax_status ax_text_too_long(int64_t most); /* fails with ERANGE */
void ax_flow_clear(ax_flow *f, bool spans);
/* Makes room for `more` bytes behind the text.  ERANGE beyond f->most. */
ax_status ax_flow_reserve(ax_flow *f, int64_t more);
/* Appends bytes that come from [from, to); there is room. */
static inline void ax_flow_add(ax_flow *f, const char *s, int n, uint32_t from, uint32_t to)
{
  for (int i = 0; i < n; i++) {
    f->s[f->n] = s[i];
    if (f->spans) {
      f->from[f->n] = from;
      f->to[f->n] = to;
    }
    f->n++;
  }
}
/* Appends bytes [at, at + n) of `in`, with their ranges. */
ax_status ax_flow_copy(ax_flow *f, const ax_flow *in, int64_t at, int64_t n);
/* Appends a character that comes from byte `at` of `in`. */
ax_status ax_flow_put(ax_flow *f, uint32_t code, const ax_flow *in, int64_t at);
/* Appends a text in place of [at, at + n) of `in`: character by character. */
ax_status ax_flow_replace(ax_flow *f, const char *s, size_t length, const ax_flow *in, int64_t at, int64_t n);
/* Appends a text in place of a part of `in` that ends at `end`: all of it comes from the last
 * character of that part. */
ax_status ax_flow_substitute(ax_flow *f, const char *s, size_t length, const ax_flow *in, int64_t end);
static inline uint32_t ax_flow_from(const ax_flow *f, int64_t at) { return f->spans ? f->from[at] : 0; }
static inline uint32_t ax_flow_to(const ax_flow *f, int64_t at) { return f->spans ? f->to[at] : 0; }

typedef struct ax_piece {
  int64_t at, n;
} ax_piece;
typedef struct ax_pieces {
  ax_piece *list;
  int64_t n, room;
} ax_pieces;
static inline ax_status ax_pieces_add(ax_pieces *p, int64_t at, int64_t n)
{
  if (n <= 0) return AX_OK;
  if (p->n == p->room) {
    const ax_status st = ax_text_grow((void **)&p->list, &p->room, p->n, p->n + 1, sizeof *p->list);
    if (st != AX_OK) return st;
  }
  p->list[p->n++] = (ax_piece){ at, n };
  return AX_OK;
}

/* ---- steps */

typedef struct ax_step {
  int kind;
  char *a, *b; /* with a NUL behind them */
  size_t a_n, b_n;
  int flags;
  struct ax_charsmap *map;
} ax_step;

enum {
#define NORMALIZER(ID, name, summary) AX_NORM_##ID,
#define SPLITTER(ID, name, summary)
#include "text/steps.def"
#undef NORMALIZER
#undef SPLITTER
  AX_NORM_COUNT
};
enum {
#define NORMALIZER(ID, name, summary)
#define SPLITTER(ID, name, summary) AX_SPLIT_##ID,
#include "text/steps.def"
#undef NORMALIZER
#undef SPLITTER
  AX_SPLIT_COUNT
};

/* Runs a step from `in` into `out`, which is cleared.  *same: the text is unchanged, and out is not
 * written. */
ax_status ax_normalize(const ax_step *step, const ax_flow *in, ax_flow *out, bool *same);
/* text/charsmap.c: SentencePiece's compiled table of replacements */
ax_status ax_charsmap_new(const char *bytes, size_t n, struct ax_charsmap **out);
void ax_charsmap_free(struct ax_charsmap *m);
ax_status ax_charsmap_run(const struct ax_charsmap *m, const ax_flow *in, ax_flow *out);

/* Splits each piece of *text.  A step that changes the text writes into *spare and exchanges both.
 * first: the text begins where the original text does. */
ax_status ax_split(const ax_step *step, ax_flow **text, ax_flow **spare, bool first, const ax_pieces *in,
                   ax_pieces *out);
/* text/patterns.c: where the match of pattern `number` at `at` ends; 0 or less: none is
 * there. */
typedef int64_t (*ax_pattern_fn)(const char *s, int64_t at, int64_t n);
ax_pattern_fn ax_pattern_of(int number);

static inline bool ax_is_bert_punctuation(uint32_t c)
{
  if (c < 128) return c > 32 && c < 127 && !((c | 32) >= 'a' && (c | 32) <= 'z') && !(c >= '0' && c <= '9');
  return (ax_unicode_bits[c] & (AX_UC_PUNCTUATION | AX_UC_IN_8)) == (AX_UC_PUNCTUATION | AX_UC_IN_8) ||
         c == 0x166D; /* a symbol since Unicode 12 */
}

/* ---- trie.c: texts with ids; the children of a node stand one after the other, sorted */

typedef struct ax_trie {
  uint32_t *first;
  uint16_t *count;
  int32_t *value; /* -1: no text ends here */
  uint8_t *label;
  int64_t n;
  uint32_t root[256]; /* children of node 0; 0: none */
} ax_trie;
/* texts[i] has value values[i] (NULL: i); of equal texts, the first one counts.  s NULL: left out.
 * Empty texts are left out, too. */
ax_status ax_trie_build(ax_trie *t, int64_t n, const ax_text *texts, const int32_t *values);
void ax_trie_free(ax_trie *t);
/* The child of a node; 0: none. */
static inline uint32_t ax_trie_child(const ax_trie *t, uint32_t node, uint8_t c)
{
  if (node == 0) return t->root[c];
  const uint32_t first = t->first[node], n = t->count[node];
  if (n <= 8) {
    for (uint32_t i = 0; i < n; i++)
      if (t->label[first + i] == c) return first + i;
    return 0;
  }
  const uint8_t *p = memchr(t->label + first, c, n);
  return p ? (uint32_t)(p - t->label) : 0;
}
int32_t ax_trie_get(const ax_trie *t, const char *s, size_t n); /* -1: not there */
/* The longest text that s begins with; its length, or 0. */
int64_t ax_trie_longest(const ax_trie *t, const char *s, int64_t n, int32_t *value);

#endif

/* tokenizer.h: a tokenizer's stages and what they hand on, shared by the files that make a row of
 * ids of a text: tokenizer.c (settings), stages.c (normalizing and splitting), added.c (added
 * tokens), tokens.c (the tokens of a text), rows.c (cutting, special tokens, padding). */
#ifndef AX_TOKENIZER_H
#define AX_TOKENIZER_H

#include "text/model.h"

enum { AX_SLOTS = 1 << 14, AX_KEY = 23, AX_HELD = 6 };

/* The tokens of a short piece, kept for the next time that it comes. */
typedef struct ax_slot {
  uint64_t key[3]; /* the piece, zeros, and its length in the last byte */
  uint8_t n;       /* 0: the slot is free */
  uint8_t at[AX_HELD], length[AX_HELD];
  int32_t ids[AX_HELD];
} ax_slot;

typedef struct ax_added {
  char *content;
  size_t n;
  int32_t id;
  int flags;
} ax_added;

/* Texts that are looked for in others (matcher.c). */
typedef struct ax_matcher {
  ax_trie trie;      /* with their places in the list; backward: of the texts turned around */
  uint32_t *lengths; /* by place */
  bool backward;     /* some are long */
  uint32_t *back;    /* node: that of the longest end of its text that the trie has, too */
  uint32_t *found;   /* node: the first one on the way back, itself included, where a text ends; or 0 */
  int32_t *places;   /* of the opened text: the longest text that begins at each byte, or -1 */
  int64_t room;
} ax_matcher;
/* s NULL: left out. */
ax_status ax_matcher_build(ax_matcher *m, int64_t n, const ax_text *texts);
void ax_matcher_free(ax_matcher *m);
/* Prepares the search in a text, in time and memory in proportion to it. */
ax_status ax_matcher_open(ax_matcher *m, const char *s, int64_t n);
/* The place of the longest text that begins at s[at], or -1. */
int32_t ax_matcher_at(const ax_matcher *m, const char *s, int64_t n, int64_t at);

typedef struct ax_steps {
  ax_step *list;
  int64_t n, room;
} ax_steps;

struct ax_tokenizer {
  ax_steps normalizer, splitter;
  ax_model model;
  bool has_model, trim, trim_prefix;
  ax_added *added;
  int64_t n_added, added_room;
  ax_matcher raw, normal; /* of added tokens */
  bool matchers_stale;
  ax_template_part *parts[2];
  int n_parts[2];
  ax_slot *slots;
  /* kept between texts */
  ax_flow source, flows[4];
  ax_pieces pieces[2];
  ax_tokens_out tokens;
  ax_encodings sides[2];
  int64_t most, made; /* bytes that the steps may make of a text, and have made */
  volatile const int *interrupted;
};

/* EABORTED when the user has interrupted the program. */
static inline ax_status ax_text_goes_on(const ax_tokenizer *t)
{
  return t->interrupted && *t->interrupted ? ax_fail(AX_EABORTED, "interrupted") : AX_OK;
}

/* ---- stages.c */

/* Begins with a text of n bytes, or with several of as many. */
void ax_text_begin(ax_tokenizer *t, size_t n);

/* A view of a text: the bytes themselves where they are valid and nobody asks where they come
 * from. */
ax_status ax_text_open(ax_tokenizer *t, ax_text text, bool spans, ax_flow *view);
/* Makes of *text, a view, the normalized text: the view itself or one of two flows. */
ax_status ax_text_normalize(ax_tokenizer *t, ax_flow *view, ax_flow **text);
/* Splits a normalized text without added tokens; *text then holds the pieces of *pieces. */
ax_status ax_text_split(ax_tokenizer *t, ax_flow *view, bool first, ax_flow **text, ax_pieces **pieces);
ax_flow ax_flow_part(const ax_flow *f, int64_t at, int64_t n);

/* ---- added.c */

typedef struct ax_found {
  int64_t from, to, next; /* next: where the search goes on */
  const ax_added *token;
} ax_found;
/* Makes t->raw and t->normal of the list of added tokens. */
ax_status ax_added_build(ax_tokenizer *t);
/* The next added token of *f, which `m` was opened for, from `at` on that counts; done: where the
 * last one ended. */
bool ax_added_find(const ax_tokenizer *t, const ax_matcher *m, const ax_flow *f, int64_t at, int64_t done,
                   bool split_special, ax_found *out);

/* ---- tokens.c */

/* Makes room for `more` tokens. */
ax_status ax_encodings_reserve(ax_encodings *e, int64_t more, bool offsets);
/* Puts the tokens of a text into *out, in place of what is there. */
ax_status ax_text_tokens(ax_tokenizer *t, const ax_words *text, const ax_encode_options *o,
                         ax_encodings *out);

#endif

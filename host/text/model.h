/* model.h: what turns a piece into tokens. */
#ifndef AX_MODEL_H
#define AX_MODEL_H

#include "text/flow.h"

/* A token of a piece: its id, and which bytes of the piece it stands for. */
typedef struct ax_token {
  int32_t id;
  int64_t at, n;
} ax_token;
typedef struct ax_tokens_out {
  ax_token *list;
  int64_t n, room;
} ax_tokens_out;
static inline ax_status ax_tokens_put(ax_tokens_out *o, int64_t id, int64_t at, int64_t n)
{
  if (o->n == o->room) {
    const ax_status st = ax_text_grow((void **)&o->list, &o->room, o->n, o->n + 1, sizeof *o->list);
    if (st != AX_OK) return st;
  }
  o->list[o->n++] = (ax_token){ (int32_t)id, at, n };
  return AX_OK;
}

typedef struct ax_merge {
  uint64_t pair; /* left << 32 | right; AX_NO_PAIR: the place is free */
  uint32_t rank;
  int32_t id;
} ax_merge;
#define AX_NO_PAIR UINT64_MAX

typedef struct ax_symbol { /* of a piece that BPE merges */
  int32_t id;
  uint32_t n;
  int64_t before, behind; /* -1: none */
} ax_symbol;
typedef struct ax_candidate {
  uint32_t rank;
  int64_t at;
} ax_candidate;
typedef struct ax_best { /* Unigram: the best way to a byte */
  double score;
  int32_t id;
  uint32_t back; /* bytes of its last token; 0: no way yet */
} ax_best;

typedef struct ax_model {
  ax_model_options o;
  volatile const int *interrupted; /* or NULL */
  char *prefix, *suffix;
  char *texts;
  ax_text *tokens; /* as they are looked up; s NULL: never */
  int64_t n;
  ax_trie trie, more; /* more: WordPiece's pieces that continue a word, without the prefix */
  double *scores, unk_score;
  int32_t byte_ids[256]; /* of <0xXX> */
  int32_t single[256];   /* byte-level: of each byte alone */
  ax_merge *merges;
  uint64_t mask;
  /* kept between pieces */
  ax_symbol *symbols;
  int64_t symbol_room;
  ax_candidate *heap;
  int64_t heap_room, heap_n;
  ax_best *best;
  int64_t best_room;
  char *shown; /* a character with prefix and suffix */
  int64_t shown_room;
} ax_model;

void ax_model_free(ax_model *m);
ax_status ax_model_set(ax_model *m, const ax_model_options *o, int64_t n, const ax_text *tokens,
                       const double *scores);
ax_status ax_model_merges(ax_model *m, int64_t n, const ax_text *pairs);
/* Appends the tokens of a piece.  EABORTED when *m->interrupted is not 0. */
ax_status ax_model_run(ax_model *m, const char *s, int64_t n, ax_tokens_out *out);
ax_status ax_bpe_run(ax_model *m, const char *s, int64_t n, ax_tokens_out *out);

/* The byte of a character of the byte-level alphabet; -1: it is none. */
int ax_byte_of(uint32_t code);
/* Turns a token of that alphabet into bytes; false: it is not written in it. */
bool ax_bytes_of(ax_text token, char *out, size_t *n);

#endif

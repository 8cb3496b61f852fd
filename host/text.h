/* text.h: tokenizers.  A tokenizer turns a text into token ids in four stages: added tokens are cut
 * out, the rest is normalized, split into pieces, and each piece becomes tokens of the model's
 * vocabulary.  Texts are UTF-8; each ill-formed sequence counts as U+FFFD.  A tokenizer is used by
 * one thread at a time. */
#ifndef AX_TEXT_H
#define AX_TEXT_H

#include "ax.h"

typedef struct ax_text {
  const char *s;
  size_t n;
} ax_text;

typedef struct ax_tokenizer ax_tokenizer;
AX_API ax_status ax_tokenizer_new(ax_tokenizer **out);
AX_API void ax_tokenizer_free(ax_tokenizer *t); /* NULL is fine */

/* Appends a step to the normalizer, or to what splits into pieces.  kind: a name of
 * text/steps.def, which says what a, b and flags are; both texts are copied.  EINVAL for
 * another kind, or an `a` that the step cannot use. */
AX_API ax_status ax_tokenizer_normalizer(ax_tokenizer *t, const char *kind, ax_text a, ax_text b, int flags);
AX_API ax_status ax_tokenizer_splitter(ax_tokenizer *t, const char *kind, ax_text a, ax_text b, int flags);
/* The number of a regular expression that the step "pattern" knows, or -1. */
AX_API int ax_pattern_find(ax_text expression);

typedef enum { AX_WORDPIECE, AX_BPE, AX_UNIGRAM, AX_WORDLEVEL } ax_model_kind;
typedef struct ax_model_options {
  ax_model_kind kind;
  int64_t unk;        /* id of the unknown token; -1: none */
  ax_text prefix;     /* of pieces that continue a word ("##") */
  ax_text suffix;     /* BPE: of a word's last piece ("</w>") */
  int64_t longest;    /* WordPiece: words of more characters are unknown */
  bool byte_fallback; /* unknown characters become the tokens <0xXX> of their bytes */
  bool fuse_unk;      /* neighbouring unknown characters are one token */
  bool ignore_merges; /* BPE: a piece that is a token is that token */
  bool bytes;         /* tokens are written in the byte-level alphabet */
} ax_model_options;
/* The vocabulary: tokens[i] has id i; s NULL: there is no such id.  scores: [n], of Unigram; else
 * NULL.  Texts are copied. */
AX_API ax_status ax_tokenizer_model(ax_tokenizer *t, const ax_model_options *o, int64_t n,
                                    const ax_text *tokens, const double *scores);
/* BPE's merges, the first one first: [2 * n].  EINVAL, naming the merge, for one whose tokens are
 * not in the vocabulary. */
AX_API ax_status ax_tokenizer_merges(ax_tokenizer *t, int64_t n, const ax_text *pairs);

enum {
  AX_ADDED_SPECIAL = 1,
  AX_ADDED_WORD = 2,
  AX_ADDED_LSTRIP = 4,
  AX_ADDED_RSTRIP = 8,
  AX_ADDED_NORMALIZED = 16
};
AX_API ax_status ax_tokenizer_add(ax_tokenizer *t, ax_text content, int64_t id, int flags);
/* Gives the i-th added token other flags.  ERANGE when there are fewer. */
AX_API ax_status ax_tokenizer_reflag(ax_tokenizer *t, int64_t i, int flags);
AX_API int64_t ax_tokenizer_added(const ax_tokenizer *t); /* how many were added */
/* Offsets of byte-level tokens leave out the spaces around them; prefix: the splitter adds one. */
AX_API void ax_tokenizer_trim(ax_tokenizer *t, bool trim, bool prefix);

/* What a post-processor makes of one text, and of a pair: its tokens and special tokens, in
 * order. */
typedef struct ax_template_part {
  int32_t id;   /* of a special token; -1: the tokens of text `text` */
  uint8_t text; /* 0 or 1 */
  uint8_t type;
} ax_template_part;
AX_API ax_status ax_tokenizer_template(ax_tokenizer *t, bool pair, int n, const ax_template_part *parts);

/* ---- encoding */

/* Rows of tokens, one after the other.  Row i is [starts[i], starts[i + 1]). */
typedef struct ax_encodings {
  int64_t rows, n, row_room, room, span_room;
  int64_t *starts; /* [rows + 1] */
  int32_t *ids;
  uint8_t *types, *special;
  int32_t *words;              /* number of the piece, from 0; -1: of a special token */
  uint32_t *from, *to;         /* bytes of the text, NULL unless wanted */
  uint32_t *row_from, *row_to; /* of a text's own tokens: offsets where a row begins with the token */
} ax_encodings;
AX_API void ax_encodings_free(ax_encodings *e);

typedef enum { AX_CUT_NONE, AX_CUT_LONGEST, AX_CUT_FIRST, AX_CUT_SECOND } ax_cut;
typedef struct ax_encode_options {
  bool add_special, offsets;
  bool split_special; /* special tokens in the text are text */
  ax_cut cut;
  bool cut_left;
  int64_t max_length; /* of a row, with its special tokens, where `cut` is not NONE */
  bool overflow;      /* what is cut off makes further rows */
  int64_t stride;     /* tokens of a text that neighbouring rows share */
} ax_encode_options;
/* One text; or, split, the words of one: each is a text by itself and counts as one piece.
 * Offsets are then those within the word. */
typedef struct ax_words {
  const ax_text *list;
  int64_t n;
  bool split;
} ax_words;
/* Appends a row, or several with `overflow`.  second: NULL: there is no second text.  EINVAL for
 * a text of 4 GiB or more, a pair that cannot be cut as the options say, or a stride that is not
 * below the tokens of a text in a row; ERANGE where the steps make more of a text than 64 times its
 * length and 1 MB; EABORTED when it was interrupted.  Then `e` is as it was. */
AX_API ax_status ax_tokenizer_encode(ax_tokenizer *t, const ax_words *first, const ax_words *second,
                                     const ax_encode_options *o, ax_encodings *e);
/* The steps end where *flag is not 0; NULL: they do not look. */
AX_API void ax_tokenizer_interrupts(ax_tokenizer *t, volatile const int *flag);
/* Copies a field of the rows into [rows, width] from `to` on, padded with `pad` behind the tokens,
 * or before them (left).  what: "ids", "types", "special", "mask" (1 where there is a token). */
AX_API ax_status ax_encodings_pad(const ax_encodings *e, const char *what, int64_t width, int64_t pad,
                                  bool left, int64_t *to);

/* Makes room for `n` elements of `size` bytes in *list, and keeps the first `used`.  For
 * ax_mfree. */
AX_API ax_status ax_text_grow(void **list, int64_t *room, int64_t used, int64_t n, size_t size);

/* ---- other uses */

typedef ax_status (*ax_text_fn)(void *p, const char *s, size_t n);
/* Passes the normalized text to fn. */
AX_API ax_status ax_tokenizer_normalize(ax_tokenizer *t, ax_text text, ax_text_fn fn, void *p);
/* Passes on the pieces of the normalized text, in order. */
AX_API ax_status ax_tokenizer_pieces(ax_tokenizer *t, ax_text text, ax_text_fn fn, void *p);
/* Passes on a text with each ill-formed sequence replaced by U+FFFD. */
AX_API ax_status ax_utf8_repair(ax_text text, ax_text_fn fn, void *p);

/* ---- training */

typedef struct ax_bpe_trainer ax_bpe_trainer;
AX_API ax_status ax_bpe_trainer_new(ax_bpe_trainer **out);
AX_API void ax_bpe_trainer_free(ax_bpe_trainer *b);
/* Counts the pieces of a text, as the tokenizer's normalizer and splitter make them. */
AX_API ax_status ax_bpe_trainer_feed(ax_bpe_trainer *b, ax_tokenizer *t, ax_text text);
/* Merges the most frequent neighbours until there are vocab_size tokens, special ones counted, or
 * no pair comes min_frequency times.  The symbols are all 256 bytes.  Of pairs that are as
 * frequent, the one whose symbols have lower ids comes first.  May be called once. */
AX_API ax_status ax_bpe_trainer_run(ax_bpe_trainer *b, int64_t vocab_size, int64_t min_frequency,
                                    int64_t n_special, const ax_text *special);
/* After a run: the merges, in order, as the ids of their two tokens; and the bytes of each
 * token. */
AX_API int64_t ax_bpe_trainer_merges(const ax_bpe_trainer *b, const int32_t **pairs);
AX_API int64_t ax_bpe_trainer_size(const ax_bpe_trainer *b);
AX_API ax_text ax_bpe_trainer_token(const ax_bpe_trainer *b, int64_t id);

#endif

/* bpe_train.c: learns the merges of a byte-level BPE: counts the pieces of texts, then joins the
 * most frequent pair of neighbours again and again.
 *
 * A pair waits in a heap with the words that it was seen in when it was formed.  Its count changes
 * meanwhile; an entry whose count is out of date goes back with the right one.  When a token can be
 * made in two ways a pair may wait twice, each entry with its own words, and is then merged twice:
 * Hugging Face's trainer does so, and its merges are the reference. */
#include "text/model.h"

typedef struct word {
  int64_t count;
  int32_t *ids;
  uint32_t n;
} word;
typedef struct places { /* numbers of words */
  int32_t *list;
  int64_t n, room;
} places;
typedef struct pair_entry {
  uint64_t pair; /* left << 32 | right; AX_NO_PAIR: free */
  int64_t count;
  places fresh; /* words in which it was formed in this round */
} pair_entry;
typedef struct waiting {
  uint64_t count, pair;
  places words;
} waiting;
typedef struct piece_entry {
  uint64_t hash;
  int64_t word; /* -1: free */
} piece_entry;

struct ax_bpe_trainer {
  word *words;
  int64_t n_words, word_room;
  piece_entry *pieces; /* hash table of the words' first forms */
  uint64_t piece_mask;
  pair_entry *pairs;
  uint64_t pair_mask;
  int64_t n_pairs;
  uint64_t *touched;
  int64_t n_touched, touched_room;
  waiting *heap;
  int64_t n_heap, heap_room;
  char **texts; /* of tokens */
  size_t *lengths;
  int64_t n_tokens, text_room, length_room;
  piece_entry *tokens; /* hash table of the tokens' texts */
  uint64_t token_mask;
  int32_t *merges;
  int64_t n_merges, merge_room;
};

ax_status ax_bpe_trainer_new(ax_bpe_trainer **out)
{
  return (*out = ax_calloc(1, sizeof **out)) ? AX_OK : AX_ENOMEM;
}

void ax_bpe_trainer_free(ax_bpe_trainer *b)
{
  if (!b) return;
  for (int64_t i = 0; i < b->n_words; i++) ax_mfree(b->words[i].ids);
  ax_mfree(b->words);
  ax_mfree(b->pieces);
  for (uint64_t i = 0; b->pairs && i <= b->pair_mask; i++) ax_mfree(b->pairs[i].fresh.list);
  ax_mfree(b->pairs);
  ax_mfree(b->touched);
  for (int64_t i = 0; i < b->n_heap; i++) ax_mfree(b->heap[i].words.list);
  ax_mfree(b->heap);
  for (int64_t i = 0; i < b->n_tokens; i++) ax_mfree(b->texts[i]);
  ax_mfree(b->texts);
  ax_mfree(b->lengths);
  ax_mfree(b->tokens);
  ax_mfree(b->merges);
  ax_mfree(b);
}

static uint64_t hash_of(const char *s, size_t n)
{
  uint64_t h = 0xCBF29CE484222325u;
  for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)s[i]) * 0x100000001B3u;
  return h ^ h >> 29;
}

/* Doubles a table of pieces when it is half full. */
static ax_status room_for(piece_entry **table, uint64_t *mask, int64_t used)
{
  const uint64_t size = *table ? (*mask + 1) * 2 : 1024;
  piece_entry *grown;

  if (*table && (uint64_t)used * 2 < *mask) return AX_OK;
  if (!(grown = ax_malloc(size * sizeof *grown))) return AX_ENOMEM;
  for (uint64_t i = 0; i < size; i++) grown[i].word = -1;
  for (uint64_t i = 0; *table && i <= *mask; i++) {
    uint64_t at = (*table)[i].hash & (size - 1);
    if ((*table)[i].word < 0) continue;
    while (grown[at].word >= 0) at = (at + 1) & (size - 1);
    grown[at] = (*table)[i];
  }
  ax_mfree(*table);
  *table = grown;
  *mask = size - 1;
  return AX_OK;
}

/* ---- counting pieces; a word's ids are its bytes until the run begins */

static bool is_word(const word *w, const char *s, size_t n)
{
  if (w->n != n) return false;
  for (size_t i = 0; i < n; i++)
    if (w->ids[i] != (uint8_t)s[i]) return false;
  return true;
}

static ax_status count_piece(void *p, const char *s, size_t n)
{
  ax_bpe_trainer *b = p;
  const uint64_t h = hash_of(s, n);
  word *w;
  uint64_t at;
  ax_status st;

  if (n == 0) return AX_OK;
  if ((st = room_for(&b->pieces, &b->piece_mask, b->n_words)) != AX_OK) return st;
  for (at = h & b->piece_mask; b->pieces[at].word >= 0; at = (at + 1) & b->piece_mask)
    if (b->pieces[at].hash == h && is_word(b->words + b->pieces[at].word, s, n)) {
      b->words[b->pieces[at].word].count++;
      return AX_OK;
    }
  if (b->n_words == INT32_MAX) return ax_fail(AX_EINVAL, "too many different words");
  if ((st = ax_text_grow((void **)&b->words, &b->word_room, b->n_words, b->n_words + 1, sizeof *b->words)) !=
      AX_OK)
    return st;
  w = b->words + b->n_words;
  if (!(w->ids = ax_malloc(n * sizeof *w->ids))) return AX_ENOMEM;
  w->count = 1;
  w->n = (uint32_t)n;
  for (size_t i = 0; i < n; i++) w->ids[i] = (uint8_t)s[i];
  b->pieces[at] = (piece_entry){ h, b->n_words++ };
  return AX_OK;
}

ax_status ax_bpe_trainer_feed(ax_bpe_trainer *b, ax_tokenizer *t, ax_text text)
{
  if (b->n_tokens) return ax_fail(AX_EINVAL, "the trainer has run");
  return ax_tokenizer_pieces(t, text, count_piece, b);
}

/* ---- tokens */

/* The id of a text, which becomes a token if it is none. */
static ax_status token_of(ax_bpe_trainer *b, const char *s, size_t n, int32_t *id)
{
  const uint64_t h = hash_of(s, n);
  uint64_t at;
  ax_status st;

  if ((st = room_for(&b->tokens, &b->token_mask, b->n_tokens)) != AX_OK) return st;
  for (at = h & b->token_mask; b->tokens[at].word >= 0; at = (at + 1) & b->token_mask) {
    const int64_t k = b->tokens[at].word;
    if (b->tokens[at].hash == h && b->lengths[k] == n && memcmp(b->texts[k], s, n) == 0) {
      *id = (int32_t)k;
      return AX_OK;
    }
  }
  if ((st = ax_text_grow((void **)&b->texts, &b->text_room, b->n_tokens, b->n_tokens + 1,
                         sizeof *b->texts)) != AX_OK ||
      (st = ax_text_grow((void **)&b->lengths, &b->length_room, b->n_tokens, b->n_tokens + 1,
                         sizeof *b->lengths)) != AX_OK)
    return st;
  if (!(b->texts[b->n_tokens] = ax_malloc(n + 1))) return AX_ENOMEM;
  memcpy(b->texts[b->n_tokens], s, n);
  b->lengths[b->n_tokens] = n;
  b->tokens[at] = (piece_entry){ h, b->n_tokens };
  *id = (int32_t)b->n_tokens++;
  return AX_OK;
}

static ax_status join(ax_bpe_trainer *b, int32_t left, int32_t right, int32_t *id)
{
  const size_t n = b->lengths[left], more = b->lengths[right];
  char *both = ax_malloc(n + more + 1);
  ax_status st;

  if (!both) return AX_ENOMEM;
  memcpy(both, b->texts[left], n);
  memcpy(both + n, b->texts[right], more);
  st = token_of(b, both, n + more, id);
  ax_mfree(both);
  return st;
}

/* ---- pairs */

static uint64_t pair_place(uint64_t pair, uint64_t mask)
{
  const uint64_t h = pair * 0x9E3779B97F4A7C15u;
  return (h ^ h >> 32) & mask;
}

static ax_status grow_pairs(ax_bpe_trainer *b)
{
  const uint64_t size = b->pairs ? (b->pair_mask + 1) * 2 : 4096;
  pair_entry *grown;

  if (b->pairs && (uint64_t)b->n_pairs * 2 < b->pair_mask) return AX_OK;
  if (!(grown = ax_calloc(size, sizeof *grown))) return AX_ENOMEM;
  for (uint64_t i = 0; i < size; i++) grown[i].pair = AX_NO_PAIR;
  for (uint64_t i = 0; b->pairs && i <= b->pair_mask; i++) {
    uint64_t at;
    if (b->pairs[i].pair == AX_NO_PAIR) continue;
    for (at = pair_place(b->pairs[i].pair, size - 1); grown[at].pair != AX_NO_PAIR;)
      at = (at + 1) & (size - 1);
    grown[at] = b->pairs[i];
  }
  ax_mfree(b->pairs);
  b->pairs = grown;
  b->pair_mask = size - 1;
  return AX_OK;
}

static pair_entry *find_pair(ax_bpe_trainer *b, uint64_t pair)
{
  uint64_t at = pair_place(pair, b->pair_mask);
  while (b->pairs[at].pair != pair && b->pairs[at].pair != AX_NO_PAIR) at = (at + 1) & b->pair_mask;
  return b->pairs + at;
}

/* A pair comes `times` more often (or less) in a word. */
static ax_status change(ax_bpe_trainer *b, int32_t left, int32_t right, int times, int64_t in)
{
  const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
  pair_entry *e;
  ax_status st = grow_pairs(b);

  if (st != AX_OK) return st;
  e = find_pair(b, pair);
  if (e->pair == AX_NO_PAIR) {
    e->pair = pair;
    b->n_pairs++;
  }
  e->count += times * b->words[in].count;
  if (times < 0 || (e->fresh.n > 0 && e->fresh.list[e->fresh.n - 1] == in)) return AX_OK;
  if (e->fresh.n == 0) {
    st = ax_text_grow((void **)&b->touched, &b->touched_room, b->n_touched, b->n_touched + 1,
                      sizeof *b->touched);
    if (st != AX_OK) return st;
    b->touched[b->n_touched++] = pair;
  }
  st = ax_text_grow((void **)&e->fresh.list, &e->fresh.room, e->fresh.n, e->fresh.n + 1,
                    sizeof *e->fresh.list);
  if (st == AX_OK) e->fresh.list[e->fresh.n++] = (int32_t)in;
  return st;
}

/* ---- the heap */

static bool comes_first(const waiting *a, const waiting *b)
{
  return a->count != b->count ? a->count > b->count : a->pair < b->pair;
}

static void sift_up(ax_bpe_trainer *b, int64_t i, waiting w)
{
  for (; i > 0 && comes_first(&w, b->heap + (i - 1) / 2); i = (i - 1) / 2) b->heap[i] = b->heap[(i - 1) / 2];
  b->heap[i] = w;
}

static waiting take_first(ax_bpe_trainer *b)
{
  const waiting top = b->heap[0], last = b->heap[--b->n_heap];
  int64_t i = 0, child;

  while ((child = 2 * i + 1) < b->n_heap) {
    if (child + 1 < b->n_heap && comes_first(b->heap + child + 1, b->heap + child)) child++;
    if (!comes_first(b->heap + child, &last)) break;
    b->heap[i] = b->heap[child];
    i = child;
  }
  b->heap[i] = last;
  return top;
}

/* The pairs formed in this round begin to wait. */
static ax_status enqueue(ax_bpe_trainer *b)
{
  const ax_status st = ax_text_grow((void **)&b->heap, &b->heap_room, b->n_heap, b->n_heap + b->n_touched + 1,
                                    sizeof *b->heap);
  if (st != AX_OK) return st;
  for (int64_t i = 0; i < b->n_touched; i++) {
    pair_entry *e = find_pair(b, b->touched[i]);
    if (e->count > 0) sift_up(b, b->n_heap++, (waiting){ (uint64_t)e->count, e->pair, e->fresh });
    else ax_mfree(e->fresh.list);
    e->fresh = (places){ 0 };
  }
  b->n_touched = 0;
  return AX_OK;
}

/* ---- the run */

static ax_status merge_in_word(ax_bpe_trainer *b, int64_t in, int32_t left, int32_t right, int32_t both)
{
  word *w = b->words + in;
  uint32_t n = 0;
  ax_status st = AX_OK;

  for (uint32_t i = 0; i < w->n; i++) {
    if (st != AX_OK || w->ids[i] != left || i + 1 >= w->n || w->ids[i + 1] != right) {
      w->ids[n++] = w->ids[i];
      continue;
    }
    if (n > 0 && (st = change(b, w->ids[n - 1], left, -1, in)) == AX_OK)
      st = change(b, w->ids[n - 1], both, 1, in);
    if (st == AX_OK && i + 2 < w->n && (st = change(b, right, w->ids[i + 2], -1, in)) == AX_OK)
      st = change(b, both, w->ids[i + 2], 1, in);
    w->ids[n++] = both;
    i++;
  }
  w->n = n;
  return st;
}

/* The special tokens and the bytes, by their characters in the byte-level alphabet. */
static ax_status first_tokens(ax_bpe_trainer *b, int64_t n_special, const ax_text *special)
{
  int32_t id, ids[256] = { 0 };
  ax_status st = AX_OK;

  for (int64_t i = 0; i < n_special && st == AX_OK; i++) st = token_of(b, special[i].s, special[i].n, &id);
  for (uint32_t code = 0; code < 256 + 68 && st == AX_OK; code++) {
    const int byte = ax_byte_of(code);
    const char c = (char)byte;
    if (byte >= 0) st = token_of(b, &c, 1, ids + byte);
  }
  for (int64_t i = 0; i < b->n_words; i++)
    for (uint32_t k = 0; k < b->words[i].n; k++) b->words[i].ids[k] = ids[b->words[i].ids[k]];
  return st;
}

static ax_status count_pairs(ax_bpe_trainer *b)
{
  ax_status st = grow_pairs(b);
  for (int64_t i = 0; i < b->n_words && st == AX_OK; i++)
    for (uint32_t k = 0; k + 1 < b->words[i].n && st == AX_OK; k++)
      st = change(b, b->words[i].ids[k], b->words[i].ids[k + 1], 1, i);
  return st == AX_OK ? enqueue(b) : st;
}

static ax_status merge_pair(ax_bpe_trainer *b, const waiting *w)
{
  const int32_t left = (int32_t)(w->pair >> 32), right = (int32_t)(uint32_t)w->pair;
  int32_t both;
  ax_status st = ax_text_grow((void **)&b->merges, &b->merge_room, 2 * b->n_merges, 2 * b->n_merges + 2,
                              sizeof *b->merges);

  if (st != AX_OK || (st = join(b, left, right, &both)) != AX_OK) return st;
  b->merges[2 * b->n_merges] = left;
  b->merges[2 * b->n_merges++ + 1] = right;
  for (int64_t i = 0; i < w->words.n && st == AX_OK; i++)
    st = merge_in_word(b, w->words.list[i], left, right, both);
  return st == AX_OK ? enqueue(b) : st;
}

ax_status ax_bpe_trainer_run(ax_bpe_trainer *b, int64_t vocab_size, int64_t min_frequency, int64_t n_special,
                             const ax_text *special)
{
  ax_status st;

  if (b->n_tokens) return ax_fail(AX_EINVAL, "the trainer has run");
  if (vocab_size > INT32_MAX) return ax_fail(AX_EINVAL, "a vocabulary of %lld tokens", (long long)vocab_size);
  if ((st = first_tokens(b, n_special, special)) == AX_OK) st = count_pairs(b);
  while (st == AX_OK && b->n_tokens < vocab_size && b->n_heap > 0) {
    waiting w = take_first(b);
    const uint64_t now = (uint64_t)find_pair(b, w.pair)->count;
    if (w.count != now) {
      w.count = now;
      sift_up(b, b->n_heap++, w);
      continue;
    }
    if (w.count < 1 || (uint64_t)min_frequency > w.count) {
      ax_mfree(w.words.list);
      break;
    }
    st = merge_pair(b, &w);
    ax_mfree(w.words.list);
  }
  return st;
}

int64_t ax_bpe_trainer_merges(const ax_bpe_trainer *b, const int32_t **pairs)
{
  *pairs = b->merges;
  return b->n_merges;
}

int64_t ax_bpe_trainer_size(const ax_bpe_trainer *b) { return b->n_tokens; }

ax_text ax_bpe_trainer_token(const ax_bpe_trainer *b, int64_t id)
{
  return (ax_text){ b->texts[id], b->lengths[id] };
}

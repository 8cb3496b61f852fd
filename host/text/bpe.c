/* bpe.c: byte-pair encoding.  A piece begins as its characters (or bytes); the neighbours whose
 * merge ranks first are joined, the leftmost first, until no merge fits. */
#include "text/model.h"

enum { FEW = 48 }; /* up to here each step looks at all pairs; beyond, candidates stand in a heap */

/* ---- merges */

static uint64_t place_of(uint64_t pair, uint64_t mask)
{
  const uint64_t h = pair * 0x9E3779B97F4A7C15u;
  return (h ^ h >> 32) & mask;
}

static const ax_merge *find(const ax_model *m, int32_t left, int32_t right)
{
  const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;

  if (!m->merges || left < 0 || right < 0) return NULL;
  for (uint64_t at = place_of(pair, m->mask); m->merges[at].pair != AX_NO_PAIR; at = (at + 1) & m->mask)
    if (m->merges[at].pair == pair) return m->merges + at;
  return NULL;
}

static uint32_t rank_of(const ax_model *m, int32_t left, int32_t right)
{
  const ax_merge *merge = find(m, left, right);
  return merge ? merge->rank : UINT32_MAX;
}

/* A later merge of the same pair takes the place of the earlier one. */
static void put_merge(ax_model *m, uint64_t pair, uint32_t rank, int32_t id)
{
  uint64_t at = place_of(pair, m->mask);
  while (m->merges[at].pair != AX_NO_PAIR && m->merges[at].pair != pair) at = (at + 1) & m->mask;
  m->merges[at] = (ax_merge){ pair, rank, id };
}

typedef struct halves {
  char *both;
  int64_t room;
} halves;

static int32_t id_of(const ax_model *m, ax_text t, char *bytes)
{
  size_t n;
  if (!m->o.bytes) return ax_trie_get(&m->trie, t.s, t.n);
  return ax_bytes_of(t, bytes, &n) ? ax_trie_get(&m->trie, bytes, n) : -1;
}

/* Adds a merge of two tokens to the one that is both texts, the second without the prefix. */
static ax_status add_merge(ax_model *m, ax_text a, ax_text b, uint32_t rank, halves *h)
{
  const size_t skip = b.n >= m->o.prefix.n ? m->o.prefix.n : 0;
  const int64_t need = (int64_t)(2 * (a.n + b.n) + 1);
  int32_t left, right, both;
  ax_status st = ax_text_grow((void **)&h->both, &h->room, 0, need, 1);

  if (st != AX_OK) return st;
  if (ax_utf8_valid(a.s, a.n) != a.n || ax_utf8_valid(b.s, b.n) != b.n)
    return ax_fail(AX_EINVAL, "merge %u is not UTF-8", rank + 1);
  memcpy(h->both, a.s, a.n);
  memcpy(h->both + a.n, b.s + skip, b.n - skip);
  left = id_of(m, a, h->both + a.n + b.n);
  right = id_of(m, b, h->both + a.n + b.n);
  both = id_of(m, (ax_text){ h->both, a.n + b.n - skip }, h->both + a.n + b.n);
  if (left < 0 || right < 0 || both < 0)
    return ax_fail(AX_EINVAL, "merge %u, '%.*s %.*s': the vocabulary has no token '%.*s'", rank + 1,
                   (int)(a.n < 64 ? a.n : 64), a.s, (int)(b.n < 64 ? b.n : 64), b.s,
                   (int)(left < 0    ? (a.n < 64 ? a.n : 64)
                         : right < 0 ? (b.n < 64 ? b.n : 64)
                                     : (a.n + b.n - skip < 64 ? a.n + b.n - skip : 64)),
                   left < 0    ? a.s
                   : right < 0 ? b.s
                               : h->both);
  put_merge(m, (uint64_t)(uint32_t)left << 32 | (uint32_t)right, rank, both);
  return AX_OK;
}

ax_status ax_model_merges(ax_model *m, int64_t n, const ax_text *pairs)
{
  uint64_t size = 16;
  halves h = { 0 };
  ax_status st = AX_OK;

  if (n >= INT32_MAX) return ax_fail(AX_EINVAL, "%lld merges are too many", (long long)n);
  while (size < (uint64_t)n * 2 + 2) size *= 2;
  ax_mfree(m->merges);
  if (!(m->merges = ax_malloc(size * sizeof *m->merges))) return AX_ENOMEM;
  m->mask = size - 1;
  for (uint64_t i = 0; i < size; i++) m->merges[i].pair = AX_NO_PAIR;
  for (int64_t i = 0; i < n && st == AX_OK; i++)
    st = add_merge(m, pairs[2 * i], pairs[2 * i + 1], (uint32_t)i, &h);
  ax_mfree(h.both);
  return st;
}

/* ---- the symbols that a piece begins as */

typedef struct start {
  ax_model *m;
  int64_t n;       /* symbols so far */
  int64_t unknown; /* bytes of the unknown token that waits */
  bool waits;
} start;

static void add_symbol(start *b, int32_t id, int64_t n)
{
  b->m->symbols[b->n] = (ax_symbol){ id, (uint32_t)n, b->n - 1, b->n + 1 };
  b->n++;
}

static void flush_unknown(start *b)
{
  if (b->waits) add_symbol(b, (int32_t)b->m->o.unk, b->unknown);
  b->waits = false;
}

static void add_unknown(start *b, const char *s, int64_t n)
{
  const ax_model *m = b->m;
  bool bytes = m->o.byte_fallback;

  for (int64_t i = 0; bytes && i < n; i++) bytes = m->byte_ids[(uint8_t)s[i]] >= 0;
  if (bytes) {
    for (int64_t i = 0; i < n; i++) add_symbol(b, m->byte_ids[(uint8_t)s[i]], 1);
    return;
  }
  if (m->o.unk < 0) return; /* it is left out */
  if (b->waits && m->o.fuse_unk) {
    b->unknown += n;
    return;
  }
  flush_unknown(b);
  b->unknown = n;
  b->waits = true;
}

/* The id of a character with the prefix and suffix that it has at its place, or -1. */
static int32_t char_id(ax_model *m, const char *s, int64_t n, bool first, bool last, ax_status *st)
{
  const ax_text prefix = first ? (ax_text){ "", 0 } : m->o.prefix,
                suffix = last ? m->o.suffix : (ax_text){ "", 0 };
  const size_t length = prefix.n + (size_t)n + suffix.n;

  if (length == (size_t)n) return ax_trie_get(&m->trie, s, (size_t)n);
  if ((*st = ax_text_grow((void **)&m->shown, &m->shown_room, 0, (int64_t)length, 1)) != AX_OK) return -1;
  memcpy(m->shown, prefix.s, prefix.n);
  memcpy(m->shown + prefix.n, s, (size_t)n);
  memcpy(m->shown + prefix.n + n, suffix.s, suffix.n);
  return ax_trie_get(&m->trie, m->shown, length);
}

static ax_status begin(ax_model *m, const char *s, int64_t n, int64_t *count)
{
  start b = { .m = m };
  ax_status st = ax_text_grow((void **)&m->symbols, &m->symbol_room, 0, n + 1, sizeof *m->symbols);
  int size;

  if (st != AX_OK) return st;
  if (m->o.bytes) {
    for (int64_t i = 0; i < n; i++) {
      const int32_t id = m->single[(uint8_t)s[i]];
      if (id < 0) {
        add_unknown(&b, s + i, 1);
        continue;
      }
      flush_unknown(&b);
      add_symbol(&b, id, 1);
    }
  } else {
    for (int64_t at = 0; at < n; at += size) {
      int32_t id;
      ax_utf8_next(s + at, &size);
      id = char_id(m, s + at, size, at == 0, at + size == n, &st);
      if (st != AX_OK) return st;
      if (id < 0) {
        add_unknown(&b, s + at, size);
        continue;
      }
      flush_unknown(&b);
      add_symbol(&b, id, size);
    }
  }
  flush_unknown(&b);
  if (b.n > 0) m->symbols[b.n - 1].behind = -1;
  *count = b.n;
  return AX_OK;
}

/* ---- merging */

/* Few symbols: an array that shrinks. */
static int64_t merge_few(ax_model *m, int64_t n)
{
  ax_symbol *s = m->symbols;
  uint32_t ranks[FEW];

  for (int64_t i = 0; i + 1 < n; i++) ranks[i] = rank_of(m, s[i].id, s[i + 1].id);
  for (;;) {
    int64_t at = 0;
    for (int64_t i = 1; i + 1 < n; i++)
      if (ranks[i] < ranks[at]) at = i;
    if (n < 2 || ranks[at] == UINT32_MAX) return n;
    s[at].id = find(m, s[at].id, s[at + 1].id)->id;
    s[at].n += s[at + 1].n;
    n--;
    memmove(s + at + 1, s + at + 2, (size_t)(n - at - 1) * sizeof *s);
    memmove(ranks + at, ranks + at + 1, (size_t)(n - at - 1) * sizeof *ranks);
    if (at + 1 < n) ranks[at] = rank_of(m, s[at].id, s[at + 1].id);
    if (at > 0) ranks[at - 1] = rank_of(m, s[at - 1].id, s[at].id);
  }
}

static bool before(ax_candidate a, ax_candidate b)
{
  return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static ax_status push(ax_model *m, int64_t at)
{
  const int64_t behind = m->symbols[at].behind;
  const uint32_t rank = behind < 0 ? UINT32_MAX : rank_of(m, m->symbols[at].id, m->symbols[behind].id);
  const ax_candidate c = { rank, at };
  int64_t i = m->heap_n;
  ax_status st;

  if (rank == UINT32_MAX) return AX_OK;
  if ((st = ax_text_grow((void **)&m->heap, &m->heap_room, i, i + 1, sizeof *m->heap)) != AX_OK) return st;
  m->heap_n++;
  for (; i > 0 && before(c, m->heap[(i - 1) / 2]); i = (i - 1) / 2) m->heap[i] = m->heap[(i - 1) / 2];
  m->heap[i] = c;
  return AX_OK;
}

static ax_candidate pop(ax_model *m)
{
  const ax_candidate top = m->heap[0], c = m->heap[--m->heap_n];
  int64_t i = 0, child;

  while ((child = 2 * i + 1) < m->heap_n) {
    if (child + 1 < m->heap_n && before(m->heap[child + 1], m->heap[child])) child++;
    if (!before(m->heap[child], c)) break;
    m->heap[i] = m->heap[child];
    i = child;
  }
  m->heap[i] = c;
  return top;
}

/* Many symbols: a linked list, and a heap of pairs.  Some pairs are gone when their turn
 * comes. */
static ax_status merge_many(ax_model *m, int64_t *count)
{
  ax_symbol *s = m->symbols;
  int64_t n = 0;
  ax_status st = AX_OK;

  m->heap_n = 0;
  for (int64_t i = 0; i + 1 < *count && st == AX_OK; i++) st = push(m, i);
  while (m->heap_n > 0 && st == AX_OK) {
    const ax_candidate c = pop(m);
    ax_symbol *left = s + c.at, *right;
    const ax_merge *merge;
    if (left->n == 0 || left->behind < 0) continue;
    right = s + left->behind;
    merge = find(m, left->id, right->id);
    if (!merge || merge->rank != c.rank) continue;
    left->id = merge->id;
    left->n += right->n;
    right->n = 0;
    left->behind = right->behind;
    if (left->behind >= 0) s[left->behind].before = c.at;
    st = push(m, c.at);
    if (st == AX_OK && left->before >= 0) st = push(m, left->before);
  }
  for (int64_t i = 0; i < *count; i++)
    if (s[i].n > 0) s[n++] = s[i];
  *count = n;
  return st;
}

ax_status ax_bpe_run(ax_model *m, const char *s, int64_t n, ax_tokens_out *out)
{
  int64_t count, at = 0;
  ax_status st;

  if (m->o.ignore_merges) {
    const int32_t id = ax_trie_get(&m->trie, s, (size_t)n);
    if (id >= 0) return ax_tokens_put(out, id, 0, n);
  }
  if ((st = begin(m, s, n, &count)) != AX_OK) return st;
  if (count <= FEW) count = merge_few(m, count);
  else if ((st = merge_many(m, &count)) != AX_OK) return st;
  for (int64_t i = 0; i < count && st == AX_OK; i++) {
    st = ax_tokens_put(out, m->symbols[i].id, at, m->symbols[i].n);
    at += m->symbols[i].n;
  }
  return st;
}

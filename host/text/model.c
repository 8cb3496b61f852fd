/* model.c: vocabularies, and the models WordPiece, Unigram and WordLevel.  bpe.c has BPE. */
#include "text/model.h"

#include <stdio.h>

/* ---- the byte-level alphabet: printable bytes of Latin-1 are themselves, the others U+0100 and
 * up */

static bool is_plain(uint32_t c)
{
  return (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255);
}

int ax_byte_of(uint32_t code)
{
  if (code < 256) return is_plain(code) ? (int)code : -1;
  if (code < 256 + 33) return (int)(code - 256);            /* 0 .. 32 */
  if (code < 256 + 33 + 34) return (int)(code - 289 + 127); /* 127 .. 160 */
  return code == 256 + 67 ? 173 : -1;
}

bool ax_bytes_of(ax_text token, char *out, size_t *n)
{
  *n = 0;
  for (size_t at = 0; at < token.n;) {
    int size;
    const int byte = ax_byte_of(ax_utf8_next(token.s + at, &size));
    if (byte < 0) return false;
    out[(*n)++] = (char)byte;
    at += (size_t)size;
  }
  return true;
}

/* ---- the vocabulary */

void ax_model_free(ax_model *m)
{
  ax_mfree(m->prefix);
  ax_mfree(m->suffix);
  ax_mfree(m->texts);
  ax_mfree(m->tokens);
  ax_trie_free(&m->trie);
  ax_trie_free(&m->more);
  ax_mfree(m->scores);
  ax_mfree(m->merges);
  ax_mfree(m->symbols);
  ax_mfree(m->heap);
  ax_mfree(m->best);
  ax_mfree(m->shown);
  memset(m, 0, sizeof *m);
}

static char *copy_text(ax_text t)
{
  char *s = ax_malloc(t.n + 1);
  if (!s) return NULL;
  if (t.n) memcpy(s, t.s, t.n);
  s[t.n] = '\0';
  return s;
}

static ax_status copy_tokens(ax_model *m, int64_t n, const ax_text *tokens)
{
  size_t bytes = 0, used = 0;

  for (int64_t i = 0; i < n; i++) bytes += tokens[i].n;
  m->texts = ax_malloc(bytes);
  m->tokens = ax_calloc((size_t)n + 1, sizeof *m->tokens);
  if (!m->texts || !m->tokens) return AX_ENOMEM;
  for (int64_t i = 0; i < n; i++) {
    ax_text *t = m->tokens + i;
    if (!tokens[i].s) continue;
    if (ax_utf8_valid(tokens[i].s, tokens[i].n) != tokens[i].n)
      return ax_fail(AX_EINVAL, "token %lld is not UTF-8", (long long)i);
    *t = (ax_text){ m->texts + used, tokens[i].n };
    if (!m->o.bytes) memcpy(m->texts + used, tokens[i].s, tokens[i].n);
    else if (!ax_bytes_of(tokens[i], m->texts + used, &t->n)) *t = (ax_text){ NULL, 0 };
    used += t->n;
  }
  m->n = n;
  return AX_OK;
}

/* The pieces that begin with the prefix, without it. */
static ax_status build_more(ax_model *m)
{
  const size_t skip = m->o.prefix.n;
  ax_text *list = ax_calloc((size_t)m->n + 1, sizeof *list);
  ax_status st;

  if (!list) return AX_ENOMEM;
  for (int64_t i = 0; i < m->n; i++)
    if (m->tokens[i].s && m->tokens[i].n > skip && memcmp(m->tokens[i].s, m->o.prefix.s, skip) == 0)
      list[i] = (ax_text){ m->tokens[i].s + skip, m->tokens[i].n - skip };
  st = ax_trie_build(&m->more, m->n, list, NULL);
  ax_mfree(list);
  return st;
}

static void find_bytes(ax_model *m)
{
  for (int b = 0; b < 256; b++) {
    char text[8];
    const char byte = (char)b;
    snprintf(text, sizeof text, "<0x%02X>", b);
    m->byte_ids[b] = ax_trie_get(&m->trie, text, 6);
    m->single[b] = ax_trie_get(&m->trie, &byte, 1);
  }
}

static ax_status copy_scores(ax_model *m, const double *scores)
{
  double least = 0;

  if (!(m->scores = ax_malloc((size_t)m->n * sizeof *scores + 1))) return AX_ENOMEM;
  for (int64_t i = 0; i < m->n; i++) {
    m->scores[i] = scores[i];
    if (i == 0 || scores[i] < least) least = scores[i];
  }
  m->unk_score = least - 10;
  return AX_OK;
}

ax_status ax_model_set(ax_model *m, const ax_model_options *o, int64_t n, const ax_text *tokens,
                       const double *scores)
{
  ax_status st;

  ax_model_free(m);
  m->o = *o;
  if (n > INT32_MAX) return ax_fail(AX_EINVAL, "a vocabulary of %lld tokens is too large", (long long)n);
  if (o->unk >= n) m->o.unk = -1;
  if (!(m->prefix = copy_text(o->prefix)) || !(m->suffix = copy_text(o->suffix))) return AX_ENOMEM;
  m->o.prefix.s = m->prefix;
  m->o.suffix.s = m->suffix;
  if ((st = copy_tokens(m, n, tokens)) != AX_OK) return st;
  if ((st = ax_trie_build(&m->trie, n, m->tokens, NULL)) != AX_OK) return st;
  if (o->kind == AX_WORDPIECE && (st = build_more(m)) != AX_OK) return st;
  if (scores && (st = copy_scores(m, scores)) != AX_OK) return st;
  find_bytes(m);
  return AX_OK;
}

/* ---- models */

static ax_status unknown(const ax_model *m, int64_t at, int64_t n, ax_tokens_out *out)
{
  if (m->o.unk < 0)
    return ax_fail(AX_EINVAL, "the vocabulary lacks the unknown token, and the text needs it");
  return ax_tokens_put(out, m->o.unk, at, n);
}

static int64_t count_chars(const char *s, int64_t n)
{
  int64_t chars = 0;
  for (int64_t i = 0; i < n; i++) chars += (s[i] & 0xC0) != 0x80;
  return chars;
}

/* From left to right, the longest piece that there is; where there is none, the whole word is
 * unknown. */
static ax_status wordpiece(const ax_model *m, const char *s, int64_t n, ax_tokens_out *out)
{
  const int64_t begun = out->n;
  ax_status st = AX_OK;

  if (n > m->o.longest && count_chars(s, n) > m->o.longest) return unknown(m, 0, n, out);
  for (int64_t at = 0; at < n && st == AX_OK;) {
    int32_t id = -1;
    const int64_t length = ax_trie_longest(at ? &m->more : &m->trie, s + at, n - at, &id);
    if (length == 0) {
      out->n = begun;
      return unknown(m, 0, n, out);
    }
    st = ax_tokens_put(out, id, at, length);
    at += length;
  }
  return st;
}

static void improve(ax_best *to, double score, int32_t id, uint32_t back)
{
  if (to->back && score <= to->score) return;
  *to = (ax_best){ score, id, back };
}

/* Fills best[0 .. n]: the way with the largest sum of scores to each end of a token. */
static ax_status viterbi(ax_model *m, const char *s, int64_t n)
{
  ax_best *best = m->best;
  int size;

  memset(best, 0, (size_t)(n + 1) * sizeof *best);
  for (int64_t at = 0; at < n; at += size) {
    const double here = best[at].score;
    bool alone = false;
    uint32_t node = 0;
    if (m->interrupted && *m->interrupted) return ax_fail(AX_EABORTED, "interrupted");
    ax_utf8_next(s + at, &size);
    for (int64_t end = at; end < n && (node = ax_trie_child(&m->trie, node, (uint8_t)s[end])) != 0;) {
      const int32_t id = m->trie.value[node];
      end++;
      if (id < 0) continue;
      improve(best + end, here + m->scores[id], id, (uint32_t)(end - at));
      if (end - at == size) alone = true;
    }
    if (alone) continue;
    if (m->o.unk < 0)
      return ax_fail(AX_EINVAL, "the vocabulary lacks the unknown token, and the text needs it");
    improve(best + at + size, here + m->unk_score, (int32_t)m->o.unk, (uint32_t)size);
  }
  return AX_OK;
}

/* A token of the best way: by its text, so that joined unknown characters may be a token. */
static ax_status put_unigram(const ax_model *m, const char *s, int64_t at, int64_t n, ax_tokens_out *out)
{
  const int32_t id = ax_trie_get(&m->trie, s + at, (size_t)n);
  ax_status st = AX_OK;

  if (id >= 0) return ax_tokens_put(out, id, at, n);
  for (int64_t i = at; m->o.byte_fallback && i < at + n; i++)
    if (m->byte_ids[(uint8_t)s[i]] < 0) return unknown(m, at, n, out);
  if (!m->o.byte_fallback) return unknown(m, at, n, out);
  for (int64_t i = at; i < at + n && st == AX_OK; i++)
    st = ax_tokens_put(out, m->byte_ids[(uint8_t)s[i]], at, n);
  return st;
}

static ax_status unigram(ax_model *m, const char *s, int64_t n, ax_tokens_out *out)
{
  int64_t next = 0;
  int32_t id;
  ax_status st = ax_text_grow((void **)&m->best, &m->best_room, 0, n + 1, sizeof *m->best);

  if (st == AX_OK) st = viterbi(m, s, n);
  if (st != AX_OK) return st;
  /* From the end back: each token's id and length move to where it begins. */
  id = m->best[n].id;
  for (int64_t at = n; at > 0;) {
    const int64_t from = at - m->best[at].back;
    const int32_t before = m->best[from].id;
    m->best[from].id = id;
    m->best[from].score = (double)(at - from);
    id = before;
    at = from;
  }
  while (next < n && st == AX_OK) {
    int64_t end = next + (int64_t)m->best[next].score;
    if (m->o.fuse_unk && m->o.unk >= 0 && m->best[next].id == m->o.unk)
      while (end < n && m->best[end].id == m->o.unk) end += (int64_t)m->best[end].score;
    st = put_unigram(m, s, next, end - next, out);
    next = end;
  }
  return st;
}

static ax_status wordlevel(const ax_model *m, const char *s, int64_t n, ax_tokens_out *out)
{
  const int32_t id = ax_trie_get(&m->trie, s, (size_t)n);
  return id >= 0 ? ax_tokens_put(out, id, 0, n) : unknown(m, 0, n, out);
}

ax_status ax_model_run(ax_model *m, const char *s, int64_t n, ax_tokens_out *out)
{
  switch (m->o.kind) {
  case AX_WORDPIECE: return wordpiece(m, s, n, out);
  case AX_BPE: return ax_bpe_run(m, s, n, out);
  case AX_UNIGRAM: return unigram(m, s, n, out);
  default: return wordlevel(m, s, n, out);
  }
}

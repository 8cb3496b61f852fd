/* added.c: added tokens, found in a text before and after it is normalized. */
#include "text/tokenizer.h"

ax_status ax_added_build(ax_tokenizer *t)
{
  ax_text *texts = ax_calloc((size_t)t->n_added + 1, sizeof *texts);
  ax_text *normal = ax_calloc((size_t)t->n_added + 1, sizeof *normal);
  ax_flow copies = { 0 };
  int64_t *ends = ax_calloc((size_t)t->n_added + 1, sizeof *ends);
  size_t total = 0;
  ax_status st = texts && normal && ends ? AX_OK : AX_ENOMEM;

  for (int64_t i = 0; i < t->n_added; i++) total += t->added[i].n;
  ax_text_begin(t, total);
  for (int64_t i = 0; i < t->n_added && st == AX_OK; i++) {
    const ax_added *a = t->added + i;
    ax_flow view = { .s = a->content, .n = (int64_t)a->n }, *text;
    if ((st = ax_text_goes_on(t)) != AX_OK) break;
    if (!(a->flags & AX_ADDED_NORMALIZED)) texts[i] = (ax_text){ a->content, a->n };
    else if ((st = ax_text_normalize(t, &view, &text)) == AX_OK) st = ax_flow_copy(&copies, text, 0, text->n);
    ends[i] = copies.n;
  }
  for (int64_t i = 0; i < t->n_added && st == AX_OK; i++) {
    const int64_t from = i ? ends[i - 1] : 0;
    if (ends[i] > from) normal[i] = (ax_text){ copies.s + from, (size_t)(ends[i] - from) };
  }
  if (st == AX_OK) st = ax_matcher_build(&t->raw, t->n_added, texts);
  if (st == AX_OK) st = ax_matcher_build(&t->normal, t->n_added, normal);
  ax_mfree(texts);
  ax_mfree(normal);
  ax_mfree(ends);
  ax_flow_free(&copies);
  t->matchers_stale = st != AX_OK;
  return st;
}

static bool word_at(const ax_flow *f, int64_t at)
{
  int size;
  return at < f->n && ax_unicode_bits[ax_utf8_next(f->s + at, &size)] & AX_UC_WORD;
}

static int64_t char_before(const ax_flow *f, int64_t at)
{
  do at--;
  while (at > 0 && (f->s[at] & 0xC0) == 0x80);
  return at;
}

bool ax_added_find(const ax_tokenizer *t, const ax_matcher *m, const ax_flow *f, int64_t at, int64_t done,
                   bool split_special, ax_found *out)
{
  for (; at < f->n; at++) {
    const int32_t place = ax_matcher_at(m, f->s, f->n, at);
    int64_t from = at, to;
    int size;
    const ax_added *a;
    if (place < 0) continue;
    a = t->added + place;
    to = at + m->lengths[place];
    at = to - 1;
    if (split_special && a->flags & AX_ADDED_SPECIAL) continue;
    if (a->flags & AX_ADDED_WORD && ((from > 0 && word_at(f, char_before(f, from))) || word_at(f, to)))
      continue;
    out->next = to;
    if (a->flags & AX_ADDED_LSTRIP)
      while (from > done && ax_unicode_bits[ax_utf8_next(f->s + char_before(f, from), &size)] & AX_UC_SPACE)
        from = char_before(f, from);
    if (a->flags & AX_ADDED_RSTRIP)
      while (to < f->n && ax_unicode_bits[ax_utf8_next(f->s + to, &size)] & AX_UC_SPACE) to += size;
    if (from < done) continue;
    out->from = from;
    out->to = to;
    out->token = a;
    return true;
  }
  return false;
}

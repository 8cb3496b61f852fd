/* stages.c: the stages in front of the model: a text is repaired, normalized and split. */
#include "text/tokenizer.h"

void ax_text_begin(ax_tokenizer *t, size_t n)
{
  t->most = (int64_t)n * AX_GROWTH + AX_GROWTH_LEAST;
  t->made = 0;
  for (int i = 0; i < 4; i++) t->flows[i].most = t->most;
}

/* Counts what was made of a part of a text, so that many parts are bounded as one is. */
static ax_status count_made(ax_tokenizer *t, int64_t longest)
{
  t->made += longest;
  return t->made > t->most ? ax_text_too_long(t->most) : AX_OK;
}

ax_status ax_text_normalize(ax_tokenizer *t, ax_flow *view, ax_flow **text)
{
  int64_t longest = 0;
  int turn = 0;

  *text = view;
  for (int64_t i = 0; i < t->normalizer.n; i++) {
    bool same;
    ax_status st = ax_normalize(t->normalizer.list + i, *text, t->flows + turn, &same);
    if (st != AX_OK || (st = ax_text_goes_on(t)) != AX_OK) return st;
    if (same) continue;
    *text = t->flows + turn;
    if ((*text)->n > longest) longest = (*text)->n;
    turn = !turn;
  }
  return count_made(t, longest);
}

/* The beginning of the text as a flow.  Ill-formed sequences become U+FFFD. */
static ax_status repair(ax_text text, bool spans, ax_flow *f)
{
  ax_status st;

  ax_flow_clear(f, spans);
  if ((st = ax_flow_reserve(f, (int64_t)text.n)) != AX_OK) return st;
  for (size_t at = 0; at < text.n;) {
    int bad;
    const int size = ax_utf8_check(text.s + at, text.n - at, &bad), step = size ? size : bad;
    if ((st = ax_flow_reserve(f, 4)) != AX_OK) return st;
    if (size) ax_flow_add(f, text.s + at, size, (uint32_t)at, (uint32_t)(at + (size_t)size));
    else ax_flow_add(f, "\xEF\xBF\xBD", 3, (uint32_t)at, (uint32_t)(at + (size_t)bad));
    at += (size_t)step;
  }
  return AX_OK;
}

ax_status ax_text_open(ax_tokenizer *t, ax_text text, bool spans, ax_flow *view)
{
  ax_status st;

  if (!spans && ax_utf8_valid(text.s, text.n) == text.n) {
    *view = (ax_flow){ .s = (char *)(uintptr_t)text.s, .n = (int64_t)text.n };
    return AX_OK;
  }
  if ((st = repair(text, spans, &t->source)) != AX_OK) return st;
  *view = t->source;
  return AX_OK;
}

ax_flow ax_flow_part(const ax_flow *f, int64_t at, int64_t n)
{
  ax_flow v = { .s = f->s + at, .n = n, .spans = f->spans };
  if (f->spans) v.from = f->from + at, v.to = f->to + at;
  return v;
}

ax_status ax_text_split(ax_tokenizer *t, ax_flow *view, bool first, ax_flow **text, ax_pieces **pieces)
{
  ax_flow *spare = t->flows + 2;
  int which = 0;
  ax_status st;

  *text = view;
  t->pieces[0].n = 0;
  if ((st = ax_pieces_add(t->pieces, 0, view->n)) != AX_OK) return st;
  for (int64_t i = 0; i < t->splitter.n; i++) {
    st = ax_split(t->splitter.list + i, text, &spare, first, t->pieces + which, t->pieces + !which);
    if (st != AX_OK || (st = ax_text_goes_on(t)) != AX_OK) return st;
    if (spare == view) spare = t->flows + 3; /* what it shows is not ours to write */
    which = !which;
  }
  *pieces = t->pieces + which;
  return *text == view ? AX_OK : count_made(t, (*text)->n);
}

/* ---- stages alone */

ax_status ax_tokenizer_normalize(ax_tokenizer *t, ax_text text, ax_text_fn fn, void *p)
{
  ax_flow view, *out;
  ax_status st;

  if (text.n >= UINT32_MAX) return ax_fail(AX_EINVAL, "a text of 4 GiB or more");
  ax_text_begin(t, text.n);
  if ((st = ax_text_open(t, text, false, &view)) != AX_OK) return st;
  if ((st = ax_text_normalize(t, &view, &out)) != AX_OK) return st;
  return fn(p, out->s, (size_t)out->n);
}

ax_status ax_tokenizer_pieces(ax_tokenizer *t, ax_text text, ax_text_fn fn, void *p)
{
  ax_flow view, *out;
  ax_pieces *pieces;
  ax_status st;

  if (text.n >= UINT32_MAX) return ax_fail(AX_EINVAL, "a text of 4 GiB or more");
  ax_text_begin(t, text.n);
  if ((st = ax_text_open(t, text, false, &view)) != AX_OK) return st;
  if ((st = ax_text_normalize(t, &view, &out)) != AX_OK) return st;
  view = ax_flow_part(out, 0, out->n);
  if ((st = ax_text_split(t, &view, true, &out, &pieces)) != AX_OK) return st;
  for (int64_t i = 0; i < pieces->n && st == AX_OK; i++)
    st = fn(p, out->s + pieces->list[i].at, (size_t)pieces->list[i].n);
  return st;
}

ax_status ax_utf8_repair(ax_text text, ax_text_fn fn, void *p)
{
  ax_flow f = { 0 };
  ax_status st;

  if (ax_utf8_valid(text.s, text.n) == text.n) return fn(p, text.s, text.n);
  if ((st = repair(text, false, &f)) == AX_OK) st = fn(p, f.s, (size_t)f.n);
  ax_flow_free(&f);
  return st;
}

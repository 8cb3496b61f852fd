/* split.c: the steps that cut a text into pieces.  Most leave the text as it is and cut its pieces
 * further; "metaspace" and "byte_level" may write a new text. */
#define _GNU_SOURCE /* memmem */
#include "text/flow.h"

typedef enum { REMOVED, ISOLATED, WITH_PREVIOUS, WITH_NEXT, CONTIGUOUS } behaviour;

/* Takes matches and what is between them, from left to right, and makes pieces of them. */
typedef struct cutter {
  behaviour how;
  bool invert;
  ax_pieces *out;
  int64_t at, n; /* the piece that waits; n 0: none */
  bool matched;  /* whether the last part of it is a match */
} cutter;

static ax_status cut_flush(cutter *c)
{
  const int64_t n = c->n;
  c->n = 0;
  return ax_pieces_add(c->out, c->at, n);
}

static ax_status cut(cutter *c, int64_t at, int64_t n, bool match)
{
  bool joins = false;
  ax_status st;

  if (n <= 0) return AX_OK;
  match = match != c->invert;
  switch (c->how) {
  case REMOVED: return match ? AX_OK : ax_pieces_add(c->out, at, n);
  case ISOLATED: return ax_pieces_add(c->out, at, n);
  case WITH_PREVIOUS: joins = match && !c->matched; break;
  case WITH_NEXT: joins = !match && c->matched; break;
  case CONTIGUOUS: joins = match == c->matched; break;
  }
  if (c->n > 0 && joins) {
    c->n += n;
    c->matched = match;
    return AX_OK;
  }
  if ((st = cut_flush(c)) != AX_OK) return st;
  c->at = at;
  c->n = n;
  c->matched = match;
  return AX_OK;
}

/* ---- where matches are */

typedef bool (*char_test)(uint32_t code);
static bool is_space(uint32_t c) { return ax_unicode_bits[c] & AX_UC_SPACE; }
static bool is_number(uint32_t c) { return ax_unicode_bits[c] & AX_UC_NUMBER; }

/* Each character for which the test holds is a match. */
static ax_status cut_chars(cutter *c, const char *s, ax_piece p, char_test test)
{
  int64_t from = p.at, end = p.at + p.n;
  int size;
  ax_status st = AX_OK;

  for (int64_t at = p.at; at < end && st == AX_OK; at += size) {
    if (!test(ax_utf8_next(s + at, &size))) continue;
    if ((st = cut(c, from, at - from, false)) == AX_OK) st = cut(c, at, size, true);
    from = at + size;
  }
  return st == AX_OK ? cut(c, from, end - from, false) : st;
}

static ax_status cut_text(cutter *c, const char *s, ax_piece p, const ax_step *step)
{
  int64_t at = p.at, end = p.at + p.n;
  ax_status st = AX_OK;

  while (at < end && st == AX_OK) {
    const char *found = step->a_n ? memmem(s + at, (size_t)(end - at), step->a, step->a_n) : NULL;
    const int64_t next = found ? found - s : end;
    if ((st = cut(c, at, next - at, false)) == AX_OK && found) st = cut(c, next, (int64_t)step->a_n, true);
    at = next + (found ? (int64_t)step->a_n : 0);
  }
  return st;
}

static ax_status cut_pattern(cutter *c, const char *s, ax_piece p, ax_pattern_fn match)
{
  const int64_t end = p.at + p.n;
  ax_status st = AX_OK;

  int64_t from = p.at; /* of what no match holds */
  int size;

  for (int64_t at = p.at; at < end && st == AX_OK;) {
    const int64_t next = match(s, at, end);
    if (next <= at) {
      ax_utf8_next(s + at, &size);
      at += size;
    } else {
      if (from < at) st = cut(c, from, at - from, false);
      if (st == AX_OK) st = cut(c, at, next - at, true);
      from = at = next;
    }
  }
  return st == AX_OK && from < end ? cut(c, from, end - from, false) : st;
}

/* BERT: white space goes, punctuation stands alone. */
static ax_status cut_bert(const char *s, ax_piece p, ax_pieces *out)
{
  int64_t from = p.at, end = p.at + p.n;
  int size;
  ax_status st = AX_OK;

  for (int64_t at = p.at; at < end && st == AX_OK; at += size) {
    const uint32_t c = ax_utf8_next(s + at, &size);
    const bool space = ax_unicode_bits[c] & AX_UC_SPACE;
    if (!space && !ax_is_bert_punctuation(c)) continue;
    if ((st = ax_pieces_add(out, from, at - from)) == AX_OK && !space) st = ax_pieces_add(out, at, size);
    from = at + size;
  }
  return st == AX_OK ? ax_pieces_add(out, from, end - from) : st;
}

/* \w+|[^\w\s]+ */
static ax_status cut_words(const char *s, ax_piece p, ax_pieces *out)
{
  int64_t from = p.at, end = p.at + p.n;
  int size;
  uint32_t kind = 0;

  for (int64_t at = p.at; at < end; at += size) {
    const uint32_t bits = ax_unicode_bits[ax_utf8_next(s + at, &size)];
    const uint32_t now = bits & AX_UC_WORD ? 1 : bits & AX_UC_SPACE ? 0 : 2;
    if (now != kind) {
      const ax_status st = kind ? ax_pieces_add(out, from, at - from) : AX_OK;
      if (st != AX_OK) return st;
      from = at;
      kind = now;
    }
  }
  return kind ? ax_pieces_add(out, from, end - from) : AX_OK;
}

/* ---- steps that write a text */

static void exchange(ax_flow **a, ax_flow **b)
{
  ax_flow *t = *a;
  *a = *b;
  *b = t;
}

static bool begins(const char *s, int64_t n, const char *with, size_t length)
{
  return (size_t)n >= length && memcmp(s, with, length) == 0;
}

/* Copies a piece with each space replaced; in front of it another one where `prefix`. */
static ax_status write_spaces(const ax_step *step, bool prefix, const ax_flow *in, ax_piece p, ax_flow *out)
{
  int64_t at = p.at, end = p.at + p.n;
  const bool has = in->s[at] == ' ' || begins(in->s + at, p.n, step->a, step->a_n);
  ax_status st = AX_OK;
  int size;

  ax_utf8_next(in->s + at, &size);
  if (prefix && !has) st = ax_flow_replace(out, step->a, step->a_n, in, at, size);
  while (at < end && st == AX_OK) {
    const char *space = memchr(in->s + at, ' ', (size_t)(end - at));
    const int64_t next = space ? space - in->s : end;
    st = ax_flow_copy(out, in, at, next - at);
    if (st == AX_OK && space) st = ax_flow_replace(out, step->a, step->a_n, in, next, 1);
    at = next + (space ? 1 : 0);
  }
  return st;
}

static ax_status metaspace(const ax_step *step, ax_flow **text, ax_flow **spare, bool first,
                           const ax_pieces *in, ax_pieces *out)
{
  ax_status st = AX_OK;

  ax_flow_clear(*spare, (*text)->spans);
  for (int64_t i = 0; i < in->n && st == AX_OK; i++) {
    const ax_piece p = in->list[i];
    const int64_t from = (*spare)->n;
    cutter c = { .how = WITH_NEXT, .out = out };
    st = write_spaces(step, step->flags & 2 || (step->flags & 1 && first && p.at == 0), *text, p, *spare);
    if (st != AX_OK) break;
    if (!(step->flags & 4)) {
      st = ax_pieces_add(out, from, (*spare)->n - from);
      continue;
    }
    st = cut_text(&c, (*spare)->s, (ax_piece){ from, (*spare)->n - from }, step);
    if (st == AX_OK) st = cut_flush(&c);
  }
  if (st == AX_OK) exchange(text, spare);
  return st;
}

static ax_status cut_bytes(const ax_step *step, const char *s, ax_piece p, ax_pieces *out)
{
  cutter c = { .how = ISOLATED, .out = out };
  if (!(step->flags & 2)) return ax_pieces_add(out, p.at, p.n);
  return cut_pattern(&c, s, p, ax_pattern_of(0));
}

static ax_status byte_level(const ax_step *step, ax_flow **text, ax_flow **spare, const ax_pieces *in,
                            ax_pieces *out)
{
  const bool prefix = step->flags & 1;
  ax_status st = AX_OK;

  if (prefix) ax_flow_clear(*spare, (*text)->spans);
  for (int64_t i = 0; i < in->n && st == AX_OK; i++) {
    ax_piece p = in->list[i];
    if (prefix) {
      const int64_t from = (*spare)->n;
      int size;
      ax_utf8_next((*text)->s + p.at, &size);
      if ((*text)->s[p.at] != ' ') st = ax_flow_replace(*spare, " ", 1, *text, p.at, size);
      if (st == AX_OK) st = ax_flow_copy(*spare, *text, p.at, p.n);
      if (st != AX_OK) return st;
      p = (ax_piece){ from, (*spare)->n - from };
    }
    st = cut_bytes(step, prefix ? (*spare)->s : (*text)->s, p, out);
  }
  if (st == AX_OK && prefix) exchange(text, spare);
  return st;
}

/* ---- all of them */

static ax_status split_piece(const ax_step *step, const char *s, ax_piece p, ax_pieces *out)
{
  cutter c = { .how = (behaviour)(step->flags >> 4 & 7), .invert = step->flags & 1, .out = out };
  ax_status st;

  switch (step->kind) {
  case AX_SPLIT_BERT: return cut_bert(s, p, out);
  case AX_SPLIT_WORDS: return cut_words(s, p, out);
  case AX_SPLIT_SPACE:
    c = (cutter){ .how = REMOVED, .out = out };
    st = cut_chars(&c, s, p, is_space);
    break;
  case AX_SPLIT_PUNCTUATION:
    c.invert = false;
    st = cut_chars(&c, s, p, ax_is_bert_punctuation);
    break;
  case AX_SPLIT_DIGITS:
    c = (cutter){ .how = step->flags & 1 ? ISOLATED : CONTIGUOUS, .out = out };
    st = cut_chars(&c, s, p, is_number);
    break;
  case AX_SPLIT_TEXT: st = cut_text(&c, s, p, step); break;
  default: st = cut_pattern(&c, s, p, ax_pattern_of(step->flags >> 8)); break;
  }
  return st == AX_OK ? cut_flush(&c) : st;
}

ax_status ax_split(const ax_step *step, ax_flow **text, ax_flow **spare, bool first, const ax_pieces *in,
                   ax_pieces *out)
{
  ax_status st = AX_OK;

  out->n = 0;
  if (step->kind == AX_SPLIT_METASPACE) return metaspace(step, text, spare, first, in, out);
  if (step->kind == AX_SPLIT_BYTES) return byte_level(step, text, spare, in, out);
  for (int64_t i = 0; i < in->n && st == AX_OK; i++) st = split_piece(step, (*text)->s, in->list[i], out);
  return st;
}

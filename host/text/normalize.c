/* normalize.c: the steps of a normalizer.  Each reads one text and writes the next, character by
 * character, and carries along which range of the original each character comes from. */
#define _GNU_SOURCE /* memmem */
#include "text/flow.h"

static bool is_ascii(const ax_flow *in)
{
  int64_t i = 0;
  for (; i + 8 <= in->n; i += 8) {
    uint64_t word;
    memcpy(&word, in->s + i, 8);
    if (word & 0x8080808080808080u) return false;
  }
  for (; i < in->n; i++)
    if (in->s[i] & 0x80) return false;
  return true;
}

/* ---- BERT */

enum { CLEAN = 1, CJK = 2, ACCENTS = 4, LOWER = 8 };

static bool is_cjk(uint32_t c)
{
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
         (c >= 0x2F800 && c <= 0x2FA1F);
}

static bool is_bert_control(uint32_t c)
{
  const uint32_t bits = ax_unicode_bits[c];
  if (c == '\t' || c == '\n' || c == '\r') return false;
  return c == 0 || c == 0xFFFD || (bits & AX_UC_OTHER && bits & AX_UC_IN_8);
}

static bool is_bert_accent(uint32_t c)
{
  return (ax_unicode_bits[c] & (AX_UC_NONSPACING | AX_UC_IN_8)) == (AX_UC_NONSPACING | AX_UC_IN_8);
}

static ax_status put_lower(ax_flow *out, uint32_t c, const ax_flow *in, int64_t at)
{
  ax_status st;
  if (c != 0x130) return ax_flow_put(out, ax_unicode_lower(c), in, at);
  if ((st = ax_flow_put(out, 'i', in, at)) != AX_OK) return st; /* I with a dot above */
  return ax_flow_put(out, 0x307, in, at);
}

static ax_status put_bert(int flags, uint32_t c, const ax_flow *in, int64_t at, ax_flow *out)
{
  uint32_t parts[AX_DECOMPOSED] = { c };
  const int n = flags & ACCENTS ? ax_unicode_decompose(c, false, parts) : 1;

  for (int i = 0; i < n; i++) {
    ax_status st;
    if (flags & ACCENTS && is_bert_accent(parts[i])) continue;
    st = flags & LOWER ? put_lower(out, parts[i], in, at) : ax_flow_put(out, parts[i], in, at);
    if (st != AX_OK) return st;
  }
  return AX_OK;
}

static ax_status bert(const ax_step *step, const ax_flow *in, ax_flow *out)
{
  const int flags = step->flags;
  ax_status st = ax_flow_reserve(out, in->n);
  int size;

  for (int64_t at = 0; at < in->n && st == AX_OK; at += size) {
    uint32_t c = ax_utf8_next(in->s + at, &size);
    if (c < 128 && c > 32 && c < 127) { /* the common case */
      const char lower = flags & LOWER && c >= 'A' && c <= 'Z' ? (char)(c + 32) : (char)c;
      if (out->n == out->room || out->spans) st = ax_flow_reserve(out, 1);
      if (st == AX_OK) ax_flow_add(out, &lower, 1, ax_flow_from(in, at), ax_flow_to(in, at));
      continue;
    }
    if (flags & CLEAN) {
      if (is_bert_control(c)) continue;
      if (ax_unicode_bits[c] & AX_UC_SPACE) c = ' ';
    }
    if (!(flags & CJK && is_cjk(c))) {
      st = put_bert(flags, c, in, at, out);
      continue;
    }
    if ((st = ax_flow_put(out, ' ', in, at)) == AX_OK && (st = put_bert(flags, c, in, at, out)) == AX_OK)
      st = ax_flow_put(out, ' ', in, at);
  }
  return st;
}

/* ---- normal forms */

typedef struct mark {
  uint32_t code;
  int combining;
  int change; /* 1: in addition to the characters of the text; -n: takes the place of n more */
} mark;
typedef struct cluster { /* a character and what may compose with it or change places */
  mark *list, *sorted;
  int *changes;
  int64_t n, room, sorted_room, change_room;
  int64_t next, last; /* the next character of the text, and the last one that was taken */
} cluster;

/* Sorts the marks of a run by class; those of one class keep their order. */
static ax_status sort_by_class(cluster *k, int64_t from, int64_t to)
{
  int64_t places[257] = { 0 };
  ax_status st;

  if (to - from < 16) { /* by insertion */
    for (int64_t i = from + 1; i < to; i++) {
      const mark m = k->list[i];
      int64_t j = i;
      for (; j > from && k->list[j - 1].combining > m.combining; j--) k->list[j] = k->list[j - 1];
      k->list[j] = m;
    }
    return AX_OK;
  }
  if ((st = ax_text_grow((void **)&k->sorted, &k->sorted_room, 0, to - from, sizeof *k->sorted)) != AX_OK)
    return st;
  for (int64_t i = from; i < to; i++) places[k->list[i].combining + 1]++;
  for (int c = 0; c < 256; c++) places[c + 1] += places[c];
  for (int64_t i = from; i < to; i++) k->sorted[places[k->list[i].combining]++] = k->list[i];
  memcpy(k->list + from, k->sorted, (size_t)(to - from) * sizeof *k->list);
  return AX_OK;
}

/* Changes stay where they are: the first mark of the run is the first one of the text. */
static ax_status sort_marks(cluster *k, int64_t from, int64_t to)
{
  bool sorted = true;
  ax_status st;

  for (int64_t i = from + 1; i < to; i++) sorted = sorted && k->list[i - 1].combining <= k->list[i].combining;
  if (sorted) return AX_OK;
  if ((st = ax_text_grow((void **)&k->changes, &k->change_room, 0, to - from, sizeof *k->changes)) != AX_OK)
    return st;
  for (int64_t i = from; i < to; i++) k->changes[i - from] = k->list[i].change;
  if ((st = sort_by_class(k, from, to)) != AX_OK) return st;
  for (int64_t i = from; i < to; i++) k->list[i].change = k->changes[i - from];
  return AX_OK;
}

static void compose(cluster *k)
{
  int64_t starter = -1, n = 0;
  int last = -1; /* class of the mark before; -1: none between it and the starter */

  for (int64_t i = 0; i < k->n; i++) {
    const mark m = k->list[i];
    const uint32_t both =
        starter >= 0 && last < m.combining ? ax_unicode_compose(k->list[starter].code, m.code) : 0;
    if (both) {
      k->list[starter].code = both;
      k->list[starter].change += m.change - 1;
      continue;
    }
    if (m.combining == 0) starter = n, last = -1;
    else last = m.combining;
    k->list[n++] = m;
  }
  k->n = n;
}

/* A character that stands for those of the text from k->next on; one that is added comes from the
 * last one. */
static ax_status put_mark(cluster *k, mark m, const ax_flow *in, ax_flow *out)
{
  const int64_t from = m.change > 0 || k->next >= in->n ? k->last : k->next;

  for (int takes = 1 - m.change; takes > 0 && k->next < in->n; takes--) {
    int size;
    ax_utf8_next(in->s + k->next, &size);
    k->last = k->next;
    k->next += size;
  }
  return ax_flow_put(out, m.code, in, from);
}

static ax_status flush(cluster *k, bool composed, const ax_flow *in, ax_flow *out)
{
  ax_status st = AX_OK;

  for (int64_t i = 0; i < k->n && st == AX_OK; i++) {
    int64_t end = i;
    while (end < k->n && k->list[end].combining) end++;
    if (end - i > 1) st = sort_marks(k, i, end);
    if (end > i) i = end - 1;
  }
  if (composed) compose(k);
  for (int64_t i = 0; i < k->n && st == AX_OK; i++) st = put_mark(k, k->list[i], in, out);
  k->n = 0;
  return st;
}

static ax_status form_char(cluster *k, uint32_t c, bool compat, bool composed, const ax_flow *in,
                           ax_flow *out)
{
  uint32_t parts[AX_DECOMPOSED];
  const int n = ax_unicode_decompose(c, compat, parts);
  ax_status st = AX_OK;

  for (int i = 0; i < n && st == AX_OK; i++) {
    const int combining = ax_unicode_combining(parts[i]);
    if (k->n > 0 && combining == 0 && !(composed && ax_unicode_bits[parts[i]] & AX_UC_SECOND))
      st = flush(k, composed, in, out);
    if (st == AX_OK && k->n == k->room)
      st = ax_text_grow((void **)&k->list, &k->room, k->n, k->n + 1, sizeof *k->list);
    if (st == AX_OK) k->list[k->n++] = (mark){ parts[i], combining, i > 0 };
  }
  return st;
}

static ax_status normal_form(const ax_flow *in, ax_flow *out, bool compat, bool composed)
{
  cluster k = { 0 };
  ax_status st = AX_OK;
  int size;

  for (int64_t at = 0; at < in->n && st == AX_OK; at += size) {
    const uint32_t c = ax_utf8_next(in->s + at, &size);
    st = form_char(&k, c, compat, composed, in, out);
  }
  if (st == AX_OK) st = flush(&k, composed, in, out);
  ax_mfree(k.list);
  ax_mfree(k.sorted);
  ax_mfree(k.changes);
  return st;
}

/* ---- smaller ones */

static ax_status lower(const ax_flow *in, ax_flow *out)
{
  ax_status st = AX_OK;
  int size;
  for (int64_t at = 0; at < in->n && st == AX_OK; at += size) {
    const uint32_t c = ax_utf8_next(in->s + at, &size);
    st = put_lower(out, c, in, at);
  }
  return st;
}

static ax_status strip(int flags, const ax_flow *in, ax_flow *out)
{
  int64_t from = 0, to = 0; /* to: behind the last character that stays */
  int size;

  for (int64_t at = 0; at < in->n; at += size) {
    if (ax_unicode_bits[ax_utf8_next(in->s + at, &size)] & AX_UC_SPACE) {
      if (to == 0 && flags & 1) from = at + size;
    } else {
      to = at + size;
    }
  }
  return ax_flow_copy(out, in, from, (flags & 2 ? to : in->n) - from);
}

static ax_status strip_accents(const ax_flow *in, ax_flow *out)
{
  const uint32_t mark_in_9 = AX_UC_MARK | AX_UC_IN_9;
  ax_status st = AX_OK;
  int size;
  for (int64_t at = 0; at < in->n && st == AX_OK; at += size)
    if ((ax_unicode_bits[ax_utf8_next(in->s + at, &size)] & mark_in_9) != mark_in_9)
      st = ax_flow_copy(out, in, at, size);
  return st;
}

static ax_status replace(const ax_step *step, const ax_flow *in, ax_flow *out)
{
  int64_t at = 0;
  ax_status st = AX_OK;

  while (st == AX_OK && at < in->n) {
    const char *p = step->a_n ? memmem(in->s + at, (size_t)(in->n - at), step->a, step->a_n) : NULL;
    const int64_t next = p ? p - in->s : in->n;
    st = ax_flow_copy(out, in, at, next - at);
    if (st == AX_OK && p) st = ax_flow_substitute(out, step->b, step->b_n, in, next + (int64_t)step->a_n);
    at = next + (p ? (int64_t)step->a_n : 0);
  }
  return st;
}

/* Behind the run of spaces (of white space with flag 1) that begins at `at`. */
static int64_t run_of_spaces(const ax_step *step, const ax_flow *in, int64_t at)
{
  int size;
  for (; at < in->n; at += size) {
    const uint32_t c = ax_utf8_next(in->s + at, &size);
    if (step->flags & 1 ? !(ax_unicode_bits[c] & AX_UC_SPACE) : c != ' ') break;
  }
  return at;
}

static ax_status replace_spaces(const ax_step *step, const ax_flow *in, ax_flow *out)
{
  ax_status st = AX_OK;
  int size, second;
  for (int64_t at = 0, end; at < in->n && st == AX_OK; at = end) {
    ax_utf8_next(in->s + at, &size);
    end = run_of_spaces(step, in, at);
    if (end > at + size || (end == at + size && !(step->flags & 2))) {
      st = ax_flow_substitute(out, step->b, step->b_n, in, end);
      continue;
    }
    for (end = at + size; end < in->n && run_of_spaces(step, in, end) == end; end += second)
      ax_utf8_next(in->s + end, &second);
    st = ax_flow_copy(out, in, at, end - at);
  }
  return st;
}

static ax_status prepend(const ax_step *step, const ax_flow *in, ax_flow *out)
{
  int first;
  ax_status st;
  ax_utf8_next(in->s, &first);
  if ((st = ax_flow_replace(out, step->a, step->a_n, in, 0, first)) != AX_OK) return st;
  return ax_flow_copy(out, in, 0, in->n);
}

static bool nmt_drops(uint32_t c)
{
  return (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
}

static bool nmt_is_space(uint32_t c)
{
  return c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
         c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
}

static ax_status nmt(const ax_flow *in, ax_flow *out)
{
  ax_status st = AX_OK;
  int size;
  for (int64_t at = 0; at < in->n && st == AX_OK; at += size) {
    const uint32_t c = ax_utf8_next(in->s + at, &size);
    if (!nmt_drops(c)) st = ax_flow_put(out, nmt_is_space(c) ? ' ' : c, in, at);
  }
  return st;
}

ax_status ax_normalize(const ax_step *step, const ax_flow *in, ax_flow *out, bool *same)
{
  *same = in->n == 0;
  if (*same) return AX_OK;
  ax_flow_clear(out, in->spans);
  switch (step->kind) {
  case AX_NORM_BERT: return bert(step, in, out);
  case AX_NORM_NFC:
  case AX_NORM_NFD:
  case AX_NORM_NFKC:
  case AX_NORM_NFKD:
    if ((*same = is_ascii(in))) return AX_OK;
    return normal_form(in, out, step->kind == AX_NORM_NFKC || step->kind == AX_NORM_NFKD,
                       step->kind == AX_NORM_NFC || step->kind == AX_NORM_NFKC);
  case AX_NORM_LOWER: return lower(in, out);
  case AX_NORM_STRIP: return strip(step->flags, in, out);
  case AX_NORM_ACCENTS: return strip_accents(in, out);
  case AX_NORM_REPLACE: return replace(step, in, out);
  case AX_NORM_SPACES: return replace_spaces(step, in, out);
  case AX_NORM_PREPEND: return prepend(step, in, out);
  case AX_NORM_NMT: return nmt(in, out);
  default: return ax_charsmap_run(step->map, in, out);
  }
}

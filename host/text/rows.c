/* rows.c: rows of tokens: what is cut off, special tokens, padding. */
#include "text/tokenizer.h"

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* How many tokens of both texts stay when all of them and `specials` must fit. */
static ax_status cut_rows(const ax_encode_options *o, int64_t specials, bool pair, int64_t *n)
{
  const int64_t room = most(o->max_length - specials, 0), excess = n[0] + (pair ? n[1] : 0) - room;
  const int side = o->cut == AX_CUT_SECOND;

  if (o->cut == AX_CUT_NONE || excess <= 0) return AX_OK;
  if (room == 0) {
    n[0] = n[1] = 0;
    return AX_OK;
  }
  if (o->cut != AX_CUT_LONGEST) {
    if (side == 1 && !pair) return ax_fail(AX_EINVAL, "truncation 'only_second': there is no second text");
    if (n[side] <= excess)
      return ax_fail(AX_EINVAL, "truncation '%s': the text has %lld tokens, and %lld must go",
                     side ? "only_second" : "only_first", (long long)n[side], (long long)excess);
    n[side] -= excess;
    return AX_OK;
  }
  if (!pair) {
    n[0] = room;
    return AX_OK;
  }
  const int shorter = n[0] > n[1]; /* cut the longer text first */
  int64_t a = n[shorter], b;
  b = a > room ? a : most(a, room - a);
  if (a + b > room) {
    a = room / 2;
    b = a + room % 2;
  }
  n[shorter] = a;
  n[!shorter] = b;
  return AX_OK;
}

/* The parts of a text's tokens that rows show: `n` tokens each, the next one `step` further.  Of a
 * text that is left out whole, the second part is all of it, as in Hugging Face's tokenizers. */
typedef struct windows {
  int64_t all, n, step, count;
  bool left; /* from the end of the text */
} windows;

static ax_status open_windows(const ax_encode_options *o, int64_t all, int64_t n, windows *w)
{
  *w = (windows){ .all = all, .n = n, .step = n - o->stride, .count = 1, .left = o->cut_left };
  if (n >= all || n == 0) {
    w->count += o->overflow && n < all;
    return AX_OK;
  }
  if (w->step <= 0)
    return ax_fail(AX_EINVAL, "stride is %lld, but a row has only %lld tokens of the text",
                   (long long)o->stride, (long long)n);
  if (o->overflow) w->count += (all - n + w->step - 1) / w->step;
  return AX_OK;
}

static void window_at(const windows *w, int64_t i, int64_t *from, int64_t *to)
{
  const bool whole = w->n == 0 && i > 0;
  const int64_t near = whole ? 0 : i * w->step, far = whole ? w->all : least(near + w->n, w->all);
  *from = w->left ? w->all - far : near;
  *to = w->left ? w->all - near : far;
}

/* Appends the tokens [from, to) of a text. */
static void put_side(ax_encodings *e, const ax_encodings *side, int64_t from, int64_t to, uint8_t type,
                     bool offsets)
{
  const size_t count = (size_t)(to - from);

  if (count == 0) return;
  memcpy(e->ids + e->n, side->ids + from, count * sizeof *e->ids);
  memcpy(e->words + e->n, side->words + from, count * sizeof *e->words);
  memset(e->types + e->n, type, count);
  memset(e->special + e->n, 0, count);
  if (offsets) {
    memcpy(e->from + e->n, side->from + from, count * sizeof *e->from);
    memcpy(e->to + e->n, side->to + from, count * sizeof *e->to);
    e->from[e->n] = side->row_from[from];
    e->to[e->n] = side->row_to[from];
  }
  e->n += to - from;
}

static void put_special(ax_encodings *e, ax_template_part p, bool offsets)
{
  e->ids[e->n] = p.id;
  e->words[e->n] = -1;
  e->types[e->n] = p.type;
  e->special[e->n] = 1;
  if (offsets) e->from[e->n] = e->to[e->n] = 0;
  e->n++;
}

static ax_status end_row(ax_encodings *e)
{
  const ax_status st = ax_text_grow((void **)&e->starts, &e->row_room, e->rows ? e->rows + 1 : 0, e->rows + 2,
                                    sizeof *e->starts);
  if (st != AX_OK) return st;
  if (e->rows == 0) e->starts[0] = 0;
  e->starts[++e->rows] = e->n;
  return AX_OK;
}

/* What the rows of a text, or of a pair, are made of. */
typedef struct plan {
  const ax_tokenizer *t;
  const ax_encode_options *o;
  const ax_template_part *parts;
  int n_parts;
  int64_t specials;
  windows sides[2];
} plan;

/* Appends the row that shows part at[i] of text i. */
static ax_status put_row(const plan *p, const int64_t *at, ax_encodings *e)
{
  int64_t from[2], to[2], total = p->specials;
  ax_status st;

  for (int i = 0; i < 2; i++) window_at(p->sides + i, at[i], from + i, to + i);
  for (int i = 0; i < p->n_parts; i++) {
    const ax_template_part k = p->parts[i];
    if (k.id < 0) total += to[k.text] - from[k.text];
  }
  if ((st = ax_encodings_reserve(e, total, p->o->offsets)) != AX_OK) return st;
  for (int i = 0; i < p->n_parts; i++) {
    const ax_template_part k = p->parts[i];
    if (k.id >= 0 && p->o->add_special) put_special(e, k, p->o->offsets);
    if (k.id < 0) put_side(e, p->t->sides + k.text, from[k.text], to[k.text], k.type, p->o->offsets);
  }
  return end_row(e);
}

/* The rows of all parts of the one text with all parts of the other one.  The first row comes
 * first, then those with the further parts of the text that the template begins with. */
static ax_status put_rows(const plan *p, ax_encodings *e)
{
  int outer = 0;
  ax_status st;

  for (int i = p->n_parts - 1; i >= 0; i--)
    if (p->parts[i].id < 0) outer = p->parts[i].text;
  if ((st = put_row(p, (int64_t[2]){ 0, 0 }, e)) != AX_OK) return st;
  for (int64_t k = 1; k <= p->sides[outer].count; k++) {
    int64_t at[2] = { 0, 0 };
    at[outer] = k % p->sides[outer].count; /* the first part comes last */
    for (at[!outer] = at[outer] == 0; at[!outer] < p->sides[!outer].count; at[!outer]++)
      if ((st = put_row(p, at, e)) != AX_OK) return st;
  }
  return AX_OK;
}

static ax_status make_plan(ax_tokenizer *t, bool pair, const ax_encode_options *o, plan *p)
{
  static const ax_template_part plain[2] = { { -1, 0, 0 }, { -1, 1, 1 } };
  int64_t n[2] = { t->sides[0].n, pair ? t->sides[1].n : 0 };
  ax_status st;

  *p = (plan){ .t = t, .o = o, .parts = plain, .n_parts = 1 + pair };
  if (t->parts[pair]) p->parts = t->parts[pair], p->n_parts = t->n_parts[pair];
  for (int i = 0; i < p->n_parts && o->add_special; i++) p->specials += p->parts[i].id >= 0;
  if (o->cut != AX_CUT_NONE && o->stride && o->stride >= o->max_length - p->specials)
    return ax_fail(AX_EINVAL, "stride is %lld, but max_length %lld leaves %lld tokens beside special ones",
                   (long long)o->stride, (long long)o->max_length,
                   (long long)most(o->max_length - p->specials, 0));
  if ((st = cut_rows(o, p->specials, pair, n)) != AX_OK) return st;
  if ((st = open_windows(o, t->sides[0].n, n[0], p->sides)) != AX_OK) return st;
  return open_windows(o, pair ? t->sides[1].n : 0, n[1], p->sides + 1);
}

static ax_status check_size(const ax_words *text)
{
  size_t total = 0;
  for (int64_t i = 0; i < text->n; i++) total += text->list[i].n;
  return total >= UINT32_MAX || text->n >= INT32_MAX ? ax_fail(AX_EINVAL, "a text of 4 GiB or more") : AX_OK;
}

ax_status ax_tokenizer_encode(ax_tokenizer *t, const ax_words *first, const ax_words *second,
                              const ax_encode_options *o, ax_encodings *e)
{
  const bool pair = second != NULL;
  const int64_t tokens = e->n, rows = e->rows;
  plan p;
  ax_status st;

  if (!t->has_model) return ax_fail(AX_EINVAL, "the tokenizer has no vocabulary");
  if ((st = check_size(first)) != AX_OK || (pair && (st = check_size(second)) != AX_OK)) return st;
  if ((st = ax_text_goes_on(t)) != AX_OK) return st;
  if (t->matchers_stale && (st = ax_added_build(t)) != AX_OK) return st;
  for (int i = 0; i < 1 + pair; i++)
    if ((st = ax_text_tokens(t, i ? second : first, o, t->sides + i)) != AX_OK) return st;
  if ((st = make_plan(t, pair, o, &p)) != AX_OK) return st;
  if ((st = put_rows(&p, e)) != AX_OK) e->n = tokens, e->rows = rows;
  return st;
}

static int64_t field(const ax_encodings *e, int what, int64_t i)
{
  return what == 0 ? e->ids[i] : what == 1 ? e->types[i] : what == 2 ? e->special[i] : 1;
}

ax_status ax_encodings_pad(const ax_encodings *e, const char *what, int64_t width, int64_t pad, bool left,
                           int64_t *to)
{
  static const char *const names[] = { "ids", "types", "special", "mask" };
  int number = 3;

  while (number >= 0 && strcmp(names[number], what) != 0) number--;
  if (number < 0) return ax_fail(AX_EINVAL, "encodings have no field '%s'", what);
  for (int64_t row = 0; row < e->rows; row++) {
    const int64_t from = e->starts[row], n = e->starts[row + 1] - from, gap = width - n;
    if (gap < 0)
      return ax_fail(AX_ERANGE, "a row of %lld tokens and a width of %lld", (long long)n, (long long)width);
    int64_t *at = to + row * width;
    for (int64_t i = 0; i < gap; i++) at[left ? i : n + i] = pad;
    for (int64_t i = 0; i < n; i++) at[(left ? gap : 0) + i] = field(e, number, from + i);
  }
  return AX_OK;
}

/* tokenizer.c: the stages of a tokenizer put together: from a text to a row of ids. */
#include "core/text/model.h"

enum { SLOTS = 1 << 14, KEY = 23, HELD = 6 };

/* The tokens of a short piece, kept for the next time that it comes. */
typedef struct slot {
  uint64_t key[3]; /* the piece, zeros, and its length in the last byte */
  uint8_t n;       /* 0: the slot is free */
  uint8_t at[HELD], length[HELD];
  int32_t ids[HELD];
} slot;

typedef struct added {
  char *content;
  size_t n;
  int32_t id;
  int flags;
} added;

typedef struct steps {
  ax_step *list;
  int64_t n, room;
} steps;

struct ax_tokenizer {
  steps normalizer, splitter;
  ax_model model;
  bool has_model, trim, trim_prefix;
  added *added;
  int64_t n_added, added_room;
  ax_trie raw, normal; /* of added tokens, with their places in the list */
  bool matchers_stale;
  ax_template_part *parts[2];
  int n_parts[2];
  slot *slots;
  /* kept between texts */
  ax_flow source, flows[4];
  ax_pieces pieces[2];
  ax_tokens_out tokens;
  ax_encodings sides[2];
};

ax_status ax_tokenizer_new(ax_tokenizer **out)
{
  ax_unicode_open();
  return (*out = ax_calloc(1, sizeof **out)) ? AX_OK : AX_ENOMEM;
}

static void free_steps(steps *s)
{
  for (int64_t i = 0; i < s->n; i++) {
    ax_mfree(s->list[i].a);
    ax_mfree(s->list[i].b);
    ax_charsmap_free(s->list[i].map);
  }
  ax_mfree(s->list);
}

void ax_tokenizer_free(ax_tokenizer *t)
{
  if (!t) return;
  free_steps(&t->normalizer);
  free_steps(&t->splitter);
  ax_model_free(&t->model);
  for (int64_t i = 0; i < t->n_added; i++) ax_mfree(t->added[i].content);
  ax_mfree(t->added);
  ax_trie_free(&t->raw);
  ax_trie_free(&t->normal);
  for (int i = 0; i < 2; i++) {
    ax_mfree(t->parts[i]);
    ax_mfree(t->pieces[i].list);
    ax_encodings_free(&t->sides[i]);
  }
  ax_mfree(t->slots);
  ax_flow_free(&t->source);
  for (int i = 0; i < 4; i++) ax_flow_free(&t->flows[i]);
  ax_mfree(t->tokens.list);
  ax_mfree(t);
}

/* ---- settings */

static int find_kind(const char *kind, const char *const *names, int n)
{
  for (int i = 0; i < n; i++)
    if (strcmp(names[i], kind) == 0) return i;
  return -1;
}

static ax_status copy_step_text(ax_text from, char **to, size_t *n)
{
  if (!(*to = ax_malloc(from.n + 1))) return AX_ENOMEM;
  if (from.n) memcpy(*to, from.s, from.n);
  (*to)[from.n] = '\0';
  *n = from.n;
  return AX_OK;
}

static ax_status add_step(steps *s, int kind, const char *name, bool table, ax_text a, ax_text b, int flags)
{
  ax_step *step;
  ax_status st;

  if (kind < 0) return ax_fail(AX_EINVAL, "there is no step '%s'", name);
  if ((!table && ax_utf8_valid(a.s, a.n) != a.n) || ax_utf8_valid(b.s, b.n) != b.n)
    return ax_fail(AX_EINVAL, "step '%s': a text that is not UTF-8", name);
  if ((st = ax_grow((void **)&s->list, &s->room, s->n, s->n + 1, sizeof *s->list)) != AX_OK) return st;
  step = s->list + s->n;
  *step = (ax_step){ .kind = kind, .flags = flags };
  s->n++; /* what there is of it is freed with the others */
  if ((st = copy_step_text(b, &step->b, &step->b_n)) == AX_OK)
    st = table ? ax_charsmap_new(a.s, a.n, &step->map) : copy_step_text(a, &step->a, &step->a_n);
  if (st == AX_OK) return AX_OK;
  ax_mfree(step->a);
  ax_mfree(step->b);
  s->n--;
  return st;
}

ax_status ax_tokenizer_normalizer(ax_tokenizer *t, const char *kind, ax_text a, ax_text b, int flags)
{
  static const char *const names[] = {
#define NORMALIZER(ID, name, summary) name,
#define SPLITTER(ID, name, summary)
#include "core/text/steps.def"
#undef NORMALIZER
#undef SPLITTER
  };
  const int number = find_kind(kind, names, AX_NORM_COUNT);
  t->matchers_stale = true;
  return add_step(&t->normalizer, number, kind, number == AX_NORM_CHARSMAP, a, b, flags);
}

ax_status ax_tokenizer_splitter(ax_tokenizer *t, const char *kind, ax_text a, ax_text b, int flags)
{
  static const char *const names[] = {
#define NORMALIZER(ID, name, summary)
#define SPLITTER(ID, name, summary) name,
#include "core/text/steps.def"
#undef NORMALIZER
#undef SPLITTER
  };
  const int number = find_kind(kind, names, AX_SPLIT_COUNT);
  if (number == AX_SPLIT_PATTERN && !ax_pattern_of(flags >> 8))
    return ax_fail(AX_EINVAL, "there is no pattern %d", flags >> 8);
  return add_step(&t->splitter, number, kind, false, a, b, flags);
}

ax_status ax_tokenizer_model(ax_tokenizer *t, const ax_model_options *o, int64_t n, const ax_text *tokens,
                             const double *scores)
{
  ax_status st;

  t->has_model = false;
  ax_mfree(t->slots);
  if (!(t->slots = ax_calloc(SLOTS, sizeof *t->slots))) return AX_ENOMEM;
  if (o->kind == AX_UNIGRAM && !scores) return ax_fail(AX_EINVAL, "Unigram needs the tokens' scores");
  if ((st = ax_model_set(&t->model, o, n, tokens, scores)) != AX_OK) {
    ax_model_free(&t->model);
    return st;
  }
  t->has_model = true;
  return AX_OK;
}

ax_status ax_tokenizer_merges(ax_tokenizer *t, int64_t n, const ax_text *pairs)
{
  if (!t->has_model) return ax_fail(AX_EINVAL, "merges come after the vocabulary");
  memset(t->slots, 0, SLOTS * sizeof *t->slots);
  return ax_model_merges(&t->model, n, pairs);
}

ax_status ax_tokenizer_add(ax_tokenizer *t, ax_text content, int64_t id, int flags)
{
  char *copy;
  size_t n;
  ax_status st;

  if (ax_utf8_valid(content.s, content.n) != content.n)
    return ax_fail(AX_EINVAL, "an added token that is not UTF-8");
  if (id < 0 || id > INT32_MAX) return ax_fail(AX_EINVAL, "%lld is no id", (long long)id);
  if ((st = ax_grow((void **)&t->added, &t->added_room, t->n_added, t->n_added + 1, sizeof *t->added)) !=
      AX_OK)
    return st;
  if ((st = copy_step_text(content, &copy, &n)) != AX_OK) return st;
  t->added[t->n_added++] = (added){ copy, n, (int32_t)id, flags };
  t->matchers_stale = true;
  return AX_OK;
}

void ax_tokenizer_trim(ax_tokenizer *t, bool trim, bool prefix)
{
  t->trim = trim;
  t->trim_prefix = prefix;
}

ax_status ax_tokenizer_template(ax_tokenizer *t, bool pair, int n, const ax_template_part *parts)
{
  ax_template_part *copy = ax_malloc((size_t)n * sizeof *copy + 1);
  if (!copy) return AX_ENOMEM;
  if (n) memcpy(copy, parts, (size_t)n * sizeof *copy);
  ax_mfree(t->parts[pair]);
  t->parts[pair] = copy;
  t->n_parts[pair] = n;
  return AX_OK;
}

/* ---- normalizing */

/* Makes of *text, a view, the normalized text: the view itself or one of two flows. */
static ax_status normalize(ax_tokenizer *t, ax_flow *view, ax_flow **text)
{
  int turn = 0;

  *text = view;
  for (int64_t i = 0; i < t->normalizer.n; i++) {
    bool same;
    const ax_status st = ax_normalize(t->normalizer.list + i, *text, t->flows + turn, &same);
    if (st != AX_OK) return st;
    if (same) continue;
    *text = t->flows + turn;
    turn = !turn;
  }
  return AX_OK;
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

/* A view of a text: the bytes themselves where they are valid and nobody asks where they come
 * from. */
static ax_status open_text(ax_tokenizer *t, ax_text text, bool spans, ax_flow *view)
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

static ax_flow part_of(const ax_flow *f, int64_t at, int64_t n)
{
  ax_flow v = { .s = f->s + at, .n = n, .spans = f->spans };
  if (f->spans) v.from = f->from + at, v.to = f->to + at;
  return v;
}

/* ---- added tokens */

static ax_status build_matchers(ax_tokenizer *t)
{
  ax_text *texts = ax_calloc((size_t)t->n_added + 1, sizeof *texts);
  ax_text *normal = ax_calloc((size_t)t->n_added + 1, sizeof *normal);
  ax_flow copies = { 0 };
  int64_t *ends = ax_calloc((size_t)t->n_added + 1, sizeof *ends);
  ax_status st = texts && normal && ends ? AX_OK : AX_ENOMEM;

  for (int64_t i = 0; i < t->n_added && st == AX_OK; i++) {
    const added *a = t->added + i;
    ax_flow view = { .s = a->content, .n = (int64_t)a->n }, *text;
    if (!(a->flags & AX_ADDED_NORMALIZED)) texts[i] = (ax_text){ a->content, a->n };
    else if ((st = normalize(t, &view, &text)) == AX_OK) st = ax_flow_copy(&copies, text, 0, text->n);
    ends[i] = copies.n;
  }
  for (int64_t i = 0; i < t->n_added && st == AX_OK; i++) {
    const int64_t from = i ? ends[i - 1] : 0;
    if (ends[i] > from) normal[i] = (ax_text){ copies.s + from, (size_t)(ends[i] - from) };
  }
  if (st == AX_OK) st = ax_trie_build(&t->raw, t->n_added, texts, NULL);
  if (st == AX_OK) st = ax_trie_build(&t->normal, t->n_added, normal, NULL);
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

typedef struct found {
  int64_t from, to, next; /* next: where the search goes on */
  const added *token;
} found;

/* The next added token of *f from `at` on that counts; done: where the last one ended. */
static bool find_added(const ax_tokenizer *t, const ax_trie *trie, const ax_flow *f, int64_t at, int64_t done,
                       bool split_special, found *out)
{
  for (; at < f->n; at++) {
    int32_t place = -1;
    int64_t n, from = at, to;
    int size;
    const added *a;
    if (!trie->root[(uint8_t)f->s[at]]) continue;
    if ((n = ax_trie_longest(trie, f->s + at, f->n - at, &place)) == 0) continue;
    a = t->added + place;
    to = at + n;
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

/* ---- tokens of a text */

void ax_encodings_free(ax_encodings *e)
{
  ax_mfree(e->starts);
  ax_mfree(e->ids);
  ax_mfree(e->types);
  ax_mfree(e->special);
  ax_mfree(e->words);
  ax_mfree(e->from);
  ax_mfree(e->to);
  memset(e, 0, sizeof *e);
}

/* Several arrays of as many elements. */
typedef struct column {
  void **list;
  size_t size;
} column;

static ax_status grow_columns(const column *columns, int n, int64_t *room, int64_t used, int64_t want)
{
  int64_t grown = *room;

  for (int i = 0; i < n && want > *room; i++) {
    ax_status st;
    grown = *room;
    if ((st = ax_grow(columns[i].list, &grown, used, want, columns[i].size)) != AX_OK) return st;
  }
  *room = grown;
  return AX_OK;
}

static ax_status reserve(ax_encodings *e, int64_t more, bool offsets)
{
  const column tokens[] = { { (void **)&e->ids, sizeof *e->ids },
                            { (void **)&e->types, sizeof *e->types },
                            { (void **)&e->special, sizeof *e->special },
                            { (void **)&e->words, sizeof *e->words } };
  const column spans[] = { { (void **)&e->from, sizeof *e->from }, { (void **)&e->to, sizeof *e->to } };
  const ax_status st = grow_columns(tokens, 4, &e->room, e->n, e->n + more);

  if (st != AX_OK || !offsets) return st;
  return grow_columns(spans, 2, &e->span_room, e->span_room < e->n ? e->span_room : e->n, e->n + more);
}

typedef struct run {
  ax_tokenizer *t;
  ax_encodings *out;
  const ax_encode_options *o;
  int32_t word;
} run;

/* Byte-level tokens: the range without the spaces around the token. */
static void trim(const run *r, const ax_flow *f, int64_t at, int64_t n, int64_t i)
{
  ax_encodings *e = r->out;
  int64_t before = 0, behind = 0;

  while (before < n && f->s[at + before] == ' ') before++;
  while (behind < n && f->s[at + n - 1 - behind] == ' ') behind++;
  if (before && r->t->trim_prefix && (i == 0 || e->from[i] == 0)) before--;
  if (before) e->from[i] = f->to[at + before - 1];
  if (e->from[i] > e->to[i]) e->from[i] = e->to[i];
  if (behind) e->to[i] = f->from[at + n - behind];
  if (e->to[i] < e->from[i]) e->to[i] = e->from[i];
}

static void fill_offsets(const run *r, const ax_flow *f, int64_t at, int64_t n, int64_t i)
{
  r->out->from[i] = n > 0 ? f->from[at] : 0;
  r->out->to[i] = n > 0 ? f->to[at + n - 1] : 0;
  if (r->t->trim) trim(r, f, at, n, i);
}

static ax_status put_added(run *r, const ax_flow *f, const found *a)
{
  ax_encodings *e = r->out;
  const ax_status st = reserve(e, 1, f->spans);

  if (st != AX_OK) return st;
  e->ids[e->n] = a->token->id;
  e->words[e->n] = r->word++;
  if (f->spans) fill_offsets(r, f, a->from, a->to - a->from, e->n);
  e->n++;
  return AX_OK;
}

static uint64_t make_key(const char *s, int64_t n, uint64_t *key)
{
  uint64_t h;
  key[0] = key[1] = key[2] = 0;
  memcpy(key, s, (size_t)n);
  ((uint8_t *)key)[KEY] = (uint8_t)n;
  h = (key[0] ^ key[2] * 0xD6E8FEB86659FD93u) * 0x9E3779B97F4A7C15u;
  h = (h ^ h >> 29 ^ key[1]) * 0xBF58476D1CE4E5B9u;
  return (h ^ h >> 32) & (SLOTS - 1);
}

static bool same_key(const uint64_t *a, const uint64_t *b)
{
  return a[0] == b[0] && a[1] == b[1] && a[2] == b[2];
}

static void keep(slot *to, const uint64_t *key, const ax_tokens_out *tokens)
{
  if (tokens->n == 0 || tokens->n > HELD) return;
  memcpy(to->key, key, sizeof to->key);
  to->n = (uint8_t)tokens->n;
  for (int64_t i = 0; i < tokens->n; i++) {
    to->ids[i] = tokens->list[i].id;
    to->at[i] = (uint8_t)tokens->list[i].at;
    to->length[i] = (uint8_t)tokens->list[i].n;
  }
}

static ax_status put_kept(run *r, const ax_flow *f, int64_t at, const slot *s)
{
  ax_encodings *e = r->out;
  const ax_status st = reserve(e, s->n, f->spans);

  if (st != AX_OK) return st;
  for (int i = 0; i < s->n; i++) {
    e->ids[e->n] = s->ids[i];
    e->words[e->n] = r->word;
    if (f->spans) fill_offsets(r, f, at + s->at[i], s->length[i], e->n);
    e->n++;
  }
  r->word++;
  return AX_OK;
}

static ax_status put_piece(run *r, const ax_flow *f, ax_piece p)
{
  ax_tokenizer *t = r->t;
  ax_encodings *e = r->out;
  uint64_t key[3];
  slot *s = NULL;
  ax_status st;

  if (p.n < KEY) {
    s = t->slots + make_key(f->s + p.at, p.n, key);
    if (s->n && same_key(s->key, key)) return put_kept(r, f, p.at, s);
  }
  t->tokens.n = 0;
  if ((st = ax_model_run(&t->model, f->s + p.at, p.n, &t->tokens)) != AX_OK) return st;
  if ((st = reserve(e, t->tokens.n, f->spans)) != AX_OK) return st;
  for (int64_t i = 0; i < t->tokens.n; i++) {
    const ax_token *k = t->tokens.list + i;
    e->ids[e->n] = k->id;
    e->words[e->n] = r->word;
    if (f->spans) fill_offsets(r, f, p.at + k->at, k->n, e->n);
    e->n++;
  }
  r->word++;
  if (s) keep(s, key, &t->tokens);
  return AX_OK;
}

/* Splits a normalized text without added tokens; *text then holds the pieces of pieces[*which]. */
static ax_status split(ax_tokenizer *t, ax_flow *view, bool first, ax_flow **text, ax_pieces **pieces)
{
  ax_flow *spare = t->flows + 2;
  int which = 0;
  ax_status st;

  *text = view;
  t->pieces[0].n = 0;
  if ((st = ax_pieces_add(t->pieces, 0, view->n)) != AX_OK) return st;
  for (int64_t i = 0; i < t->splitter.n; i++) {
    st = ax_split(t->splitter.list + i, text, &spare, first, t->pieces + which, t->pieces + !which);
    if (st != AX_OK) return st;
    if (spare == view) spare = t->flows + 3; /* what it shows is not ours to write */
    which = !which;
  }
  *pieces = t->pieces + which;
  return AX_OK;
}

static ax_status put_text(run *r, ax_flow *view, bool first)
{
  ax_flow *text;
  ax_pieces *pieces;
  ax_status st;

  if (view->n == 0) return AX_OK;
  if ((st = split(r->t, view, first, &text, &pieces)) != AX_OK) return st;
  for (int64_t i = 0; i < pieces->n && st == AX_OK; i++) st = put_piece(r, text, pieces->list[i]);
  return st;
}

typedef ax_status (*on_text)(run *r, ax_flow *view, bool first);

/* Cuts a text at the added tokens of `trie` and passes on what is between them. */
static ax_status at_added(run *r, const ax_trie *trie, ax_flow *f, bool first, on_text then)
{
  found a;
  int64_t done = 0, next = 0;
  ax_status st = AX_OK;

  while (st == AX_OK && find_added(r->t, trie, f, next, done, r->o->split_special, &a)) {
    if (a.from > done) {
      ax_flow part = part_of(f, done, a.from - done);
      st = then(r, &part, first && done == 0);
    }
    if (st == AX_OK) st = put_added(r, f, &a);
    done = a.to;
    next = a.next > done ? a.next : done;
  }
  if (st == AX_OK && done < f->n) {
    ax_flow rest = part_of(f, done, f->n - done);
    st = then(r, &rest, first && done == 0);
  }
  return st;
}

static ax_status put_raw(run *r, ax_flow *view, bool first)
{
  ax_flow *text;
  const ax_status st = normalize(r->t, view, &text);
  return st == AX_OK ? at_added(r, &r->t->normal, text, first, put_text) : st;
}

static ax_status encode_side(ax_tokenizer *t, ax_text text, const ax_encode_options *o, ax_encodings *out)
{
  run r = { t, out, o, 0 };
  ax_flow view;
  ax_status st;

  out->n = 0;
  if ((st = open_text(t, text, o->offsets, &view)) != AX_OK) return st;
  return at_added(&r, &t->raw, &view, true, put_raw);
}

/* ---- rows */

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* How many tokens of both texts stay when all of them and `specials` must fit. */
static ax_status cut_rows(const ax_encode_options *o, int64_t specials, bool pair, int64_t *n)
{
  const int64_t room = most(o->max_length - specials, 0), excess = n[0] + (pair ? n[1] : 0) - room;
  const int side = o->cut == AX_CUT_SECOND;

  if (o->cut == AX_CUT_NONE || excess <= 0) return AX_OK;
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
  const int shorter = n[0] > n[1]; /* the shorter one keeps its length while the other can give */
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

/* Appends tokens of a text; those beyond `n` are left out. */
static void put_side(ax_encodings *e, const ax_encodings *side, int64_t n, bool left, uint8_t type,
                     bool offsets)
{
  const int64_t at = left ? side->n - n : 0;
  const size_t count = (size_t)n;

  if (n == 0) return;
  memcpy(e->ids + e->n, side->ids + at, count * sizeof *e->ids);
  memcpy(e->words + e->n, side->words + at, count * sizeof *e->words);
  memset(e->types + e->n, type, count);
  memset(e->special + e->n, 0, count);
  if (offsets) {
    memcpy(e->from + e->n, side->from + at, count * sizeof *e->from);
    memcpy(e->to + e->n, side->to + at, count * sizeof *e->to);
  }
  e->n += n;
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
  const ax_status st =
      ax_grow((void **)&e->starts, &e->row_room, e->rows ? e->rows + 1 : 0, e->rows + 2, sizeof *e->starts);
  if (st != AX_OK) return st;
  if (e->rows == 0) e->starts[0] = 0;
  e->starts[++e->rows] = e->n;
  return AX_OK;
}

ax_status ax_tokenizer_encode(ax_tokenizer *t, ax_text first, ax_text second, const ax_encode_options *o,
                              ax_encodings *e)
{
  static const ax_template_part plain[2] = { { -1, 0, 0 }, { -1, 1, 1 } };
  const bool pair = second.s != NULL, templated = o->add_special && t->parts[pair];
  const ax_template_part *parts = templated ? t->parts[pair] : plain;
  const int n_parts = templated ? t->n_parts[pair] : 1 + pair;
  const int64_t begun = e->n;
  int64_t n[2] = { 0, 0 }, specials = 0, total = 0;
  ax_status st = AX_OK;

  if (!t->has_model) return ax_fail(AX_EINVAL, "the tokenizer has no vocabulary");
  if (first.n >= UINT32_MAX || (pair && second.n >= UINT32_MAX))
    return ax_fail(AX_EINVAL, "a text of 4 GiB or more");
  if (t->matchers_stale && (st = build_matchers(t)) != AX_OK) return st;
  for (int i = 0; i < 1 + pair; i++) {
    if ((st = encode_side(t, i ? second : first, o, t->sides + i)) != AX_OK) return st;
    n[i] = t->sides[i].n;
  }
  for (int i = 0; i < n_parts; i++) specials += parts[i].id >= 0;
  if ((st = cut_rows(o, specials, pair, n)) != AX_OK) return st;
  for (int i = 0; i < n_parts; i++) total += parts[i].id >= 0 ? 1 : n[parts[i].text];
  if ((st = reserve(e, total, o->offsets)) != AX_OK) return st;
  for (int i = 0; i < n_parts; i++) {
    if (parts[i].id >= 0) put_special(e, parts[i], o->offsets);
    else put_side(e, t->sides + parts[i].text, n[parts[i].text], o->cut_left, parts[i].type, o->offsets);
  }
  if ((st = end_row(e)) != AX_OK) e->n = begun;
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
  const int number = find_kind(what, names, 4);

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

/* ---- other uses */

ax_status ax_tokenizer_normalize(ax_tokenizer *t, ax_text text, ax_text_fn fn, void *p)
{
  ax_flow view, *out;
  ax_status st;

  if (text.n >= UINT32_MAX) return ax_fail(AX_EINVAL, "a text of 4 GiB or more");
  if ((st = open_text(t, text, false, &view)) != AX_OK) return st;
  if ((st = normalize(t, &view, &out)) != AX_OK) return st;
  return fn(p, out->s, (size_t)out->n);
}

ax_status ax_tokenizer_pieces(ax_tokenizer *t, ax_text text, ax_text_fn fn, void *p)
{
  ax_flow view, *out;
  ax_pieces *pieces;
  ax_status st;

  if (text.n >= UINT32_MAX) return ax_fail(AX_EINVAL, "a text of 4 GiB or more");
  if ((st = open_text(t, text, false, &view)) != AX_OK) return st;
  if ((st = normalize(t, &view, &out)) != AX_OK) return st;
  view = part_of(out, 0, out->n);
  if ((st = split(t, &view, true, &out, &pieces)) != AX_OK) return st;
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

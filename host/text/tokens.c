/* tokens.c: the tokens of a text. */
#include "text/tokenizer.h"

void ax_encodings_free(ax_encodings *e)
{
  ax_mfree(e->starts);
  ax_mfree(e->ids);
  ax_mfree(e->types);
  ax_mfree(e->special);
  ax_mfree(e->words);
  ax_mfree(e->from);
  ax_mfree(e->to);
  ax_mfree(e->row_from);
  ax_mfree(e->row_to);
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
    if ((st = ax_text_grow(columns[i].list, &grown, used, want, columns[i].size)) != AX_OK) return st;
  }
  *room = grown;
  return AX_OK;
}

ax_status ax_encodings_reserve(ax_encodings *e, int64_t more, bool offsets)
{
  const column tokens[] = { { (void **)&e->ids, sizeof *e->ids },
                            { (void **)&e->types, sizeof *e->types },
                            { (void **)&e->special, sizeof *e->special },
                            { (void **)&e->words, sizeof *e->words } };
  const column spans[] = { { (void **)&e->from, sizeof *e->from },
                           { (void **)&e->to, sizeof *e->to },
                           { (void **)&e->row_from, sizeof *e->row_from },
                           { (void **)&e->row_to, sizeof *e->row_to } };
  const ax_status st = grow_columns(tokens, 4, &e->room, e->n, e->n + more);

  if (st != AX_OK || !offsets) return st;
  return grow_columns(spans, 4, &e->span_room, e->span_room < e->n ? e->span_room : e->n, e->n + more);
}

typedef struct run {
  ax_tokenizer *t;
  ax_encodings *out;
  const ax_encode_options *o;
  int32_t word;
  bool split; /* words are given, and not counted here */
} run;

/* Byte-level tokens: the range [*from, *to) without the spaces around the token.  first: a single
 * space in front of it counts as the splitter's, where that adds one. */
static void trim(const run *r, const ax_flow *f, int64_t at, int64_t n, bool first, uint32_t *from,
                 uint32_t *to)
{
  int64_t before = 0, behind = 0;

  while (before < n && f->s[at + before] == ' ') before++;
  while (behind < n && f->s[at + n - 1 - behind] == ' ') behind++;
  if (before == 1 && r->t->trim_prefix && (first || *from == 0)) before = 0;
  if (before) *from = f->to[at + before - 1];
  if (*from > *to) *from = *to;
  if (behind) *to = f->from[at + n - behind];
  if (*to < *from) *to = *from;
}

static void fill_offsets(const run *r, const ax_flow *f, int64_t at, int64_t n, int64_t i)
{
  ax_encodings *e = r->out;
  e->from[i] = e->row_from[i] = n > 0 ? f->from[at] : 0;
  e->to[i] = e->row_to[i] = n > 0 ? f->to[at + n - 1] : 0;
  if (!r->t->trim) return;
  trim(r, f, at, n, i == 0, e->from + i, e->to + i);
  trim(r, f, at, n, true, e->row_from + i, e->row_to + i);
}

static ax_status put_added(run *r, const ax_flow *f, const ax_found *a)
{
  ax_encodings *e = r->out;
  const ax_status st = ax_encodings_reserve(e, 1, f->spans);

  if (st != AX_OK) return st;
  e->ids[e->n] = a->token->id;
  e->words[e->n] = r->word;
  r->word += !r->split;
  if (f->spans) fill_offsets(r, f, a->from, a->to - a->from, e->n);
  e->n++;
  return AX_OK;
}

static uint64_t make_key(const char *s, int64_t n, uint64_t *key)
{
  uint64_t h;
  key[0] = key[1] = key[2] = 0;
  memcpy(key, s, (size_t)n);
  ((uint8_t *)key)[AX_KEY] = (uint8_t)n;
  h = (key[0] ^ key[2] * 0xD6E8FEB86659FD93u) * 0x9E3779B97F4A7C15u;
  h = (h ^ h >> 29 ^ key[1]) * 0xBF58476D1CE4E5B9u;
  return (h ^ h >> 32) & (AX_SLOTS - 1);
}

static bool same_key(const uint64_t *a, const uint64_t *b)
{
  return a[0] == b[0] && a[1] == b[1] && a[2] == b[2];
}

static void keep(ax_slot *to, const uint64_t *key, const ax_tokens_out *tokens)
{
  if (tokens->n == 0 || tokens->n > AX_HELD) return;
  memcpy(to->key, key, sizeof to->key);
  to->n = (uint8_t)tokens->n;
  for (int64_t i = 0; i < tokens->n; i++) {
    to->ids[i] = tokens->list[i].id;
    to->at[i] = (uint8_t)tokens->list[i].at;
    to->length[i] = (uint8_t)tokens->list[i].n;
  }
}

static ax_status put_kept(run *r, const ax_flow *f, int64_t at, const ax_slot *s)
{
  ax_encodings *e = r->out;
  const ax_status st = ax_encodings_reserve(e, s->n, f->spans);

  if (st != AX_OK) return st;
  for (int i = 0; i < s->n; i++) {
    e->ids[e->n] = s->ids[i];
    e->words[e->n] = r->word;
    if (f->spans) fill_offsets(r, f, at + s->at[i], s->length[i], e->n);
    e->n++;
  }
  r->word += !r->split;
  return AX_OK;
}

static ax_status put_piece(run *r, const ax_flow *f, ax_piece p)
{
  ax_tokenizer *t = r->t;
  ax_encodings *e = r->out;
  uint64_t key[3];
  ax_slot *s = NULL;
  ax_status st;

  if (p.n < AX_KEY) {
    s = t->slots + make_key(f->s + p.at, p.n, key);
    if (s->n && same_key(s->key, key)) return put_kept(r, f, p.at, s);
  }
  t->tokens.n = 0;
  t->model.interrupted = t->interrupted;
  if ((st = ax_text_goes_on(t)) != AX_OK) return st;
  if ((st = ax_model_run(&t->model, f->s + p.at, p.n, &t->tokens)) != AX_OK) return st;
  if ((st = ax_encodings_reserve(e, t->tokens.n, f->spans)) != AX_OK) return st;
  for (int64_t i = 0; i < t->tokens.n; i++) {
    const ax_token *k = t->tokens.list + i;
    e->ids[e->n] = k->id;
    e->words[e->n] = r->word;
    if (f->spans) fill_offsets(r, f, p.at + k->at, k->n, e->n);
    e->n++;
  }
  r->word += !r->split;
  if (s) keep(s, key, &t->tokens);
  return AX_OK;
}

static ax_status put_text(run *r, ax_flow *view, bool first)
{
  ax_flow *text;
  ax_pieces *pieces;
  ax_status st;

  if (view->n == 0) return AX_OK;
  if ((st = ax_text_split(r->t, view, first, &text, &pieces)) != AX_OK) return st;
  for (int64_t i = 0; i < pieces->n && st == AX_OK; i++) st = put_piece(r, text, pieces->list[i]);
  return st;
}

typedef ax_status (*on_text)(run *r, ax_flow *view, bool first);

/* Cuts a text at the added tokens of `m` and passes on what is between them. */
static ax_status at_added(run *r, ax_matcher *m, ax_flow *f, bool first, on_text then)
{
  ax_found a;
  int64_t done = 0, next = 0;
  ax_status st = ax_matcher_open(m, f->s, f->n);

  while (st == AX_OK && ax_added_find(r->t, m, f, next, done, r->o->split_special, &a)) {
    if (a.from > done) {
      ax_flow part = ax_flow_part(f, done, a.from - done);
      st = then(r, &part, first && done == 0);
    }
    if (st == AX_OK) st = put_added(r, f, &a);
    if (st == AX_OK) st = ax_text_goes_on(r->t);
    done = a.to;
    next = a.next > done ? a.next : done;
  }
  if (st == AX_OK && done < f->n) {
    ax_flow rest = ax_flow_part(f, done, f->n - done);
    st = then(r, &rest, first && done == 0);
  }
  return st;
}

static ax_status put_raw(run *r, ax_flow *view, bool first)
{
  ax_flow *text;
  const ax_status st = ax_text_normalize(r->t, view, &text);
  return st == AX_OK ? at_added(r, &r->t->normal, text, first, put_text) : st;
}

static ax_status put_word(run *r, ax_text text)
{
  ax_flow view;
  const ax_status st = ax_text_open(r->t, text, r->o->offsets, &view);
  return st == AX_OK ? at_added(r, &r->t->raw, &view, true, put_raw) : st;
}

ax_status ax_text_tokens(ax_tokenizer *t, const ax_words *text, const ax_encode_options *o, ax_encodings *out)
{
  run r = { t, out, o, 0, text->split };
  size_t total = 0;
  ax_status st = AX_OK;

  out->n = 0;
  for (int64_t i = 0; i < text->n; i++) total += text->list[i].n;
  ax_text_begin(t, total);
  for (int64_t i = 0; i < text->n && st == AX_OK; i++) {
    if (text->split) r.word = (int32_t)i;
    st = put_word(&r, text->list[i]);
  }
  return st;
}

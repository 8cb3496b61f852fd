/* tokenizer.c: what a tokenizer is made of: its steps, vocabulary, added tokens and templates. */
#include "text/tokenizer.h"

ax_status ax_tokenizer_new(ax_tokenizer **out)
{
  ax_unicode_open();
  return (*out = ax_calloc(1, sizeof **out)) ? AX_OK : AX_ENOMEM;
}

void ax_tokenizer_interrupts(ax_tokenizer *t, volatile const int *flag) { t->interrupted = flag; }

static void free_steps(ax_steps *s)
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
  ax_matcher_free(&t->raw);
  ax_matcher_free(&t->normal);
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

static ax_status add_step(ax_steps *s, int kind, const char *name, bool table, ax_text a, ax_text b,
                          int flags)
{
  ax_step *step;
  ax_status st;

  if (kind < 0) return ax_fail(AX_EINVAL, "there is no step '%s'", name);
  if ((!table && ax_utf8_valid(a.s, a.n) != a.n) || ax_utf8_valid(b.s, b.n) != b.n)
    return ax_fail(AX_EINVAL, "step '%s': a text that is not UTF-8", name);
  if ((st = ax_text_grow((void **)&s->list, &s->room, s->n, s->n + 1, sizeof *s->list)) != AX_OK) return st;
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
#include "text/steps.def"
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
#include "text/steps.def"
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
  if (!(t->slots = ax_calloc(AX_SLOTS, sizeof *t->slots))) return AX_ENOMEM;
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
  memset(t->slots, 0, AX_SLOTS * sizeof *t->slots);
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
  if ((st = ax_text_grow((void **)&t->added, &t->added_room, t->n_added, t->n_added + 1, sizeof *t->added)) !=
      AX_OK)
    return st;
  if ((st = copy_step_text(content, &copy, &n)) != AX_OK) return st;
  t->added[t->n_added++] = (ax_added){ copy, n, (int32_t)id, flags };
  t->matchers_stale = true;
  return AX_OK;
}

ax_status ax_tokenizer_reflag(ax_tokenizer *t, int64_t i, int flags)
{
  if (i < 0 || i >= t->n_added) return ax_fail(AX_ERANGE, "there is no added token %lld", (long long)i);
  t->added[i].flags = flags;
  t->matchers_stale = true;
  return AX_OK;
}

int64_t ax_tokenizer_added(const ax_tokenizer *t) { return t->n_added; }

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

/* The parser of ops.def's signatures.  It needs nothing of the core but ax_ops: host/tools/attrs.c
 * is built of it before there is a core. */
#include "signature.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static ax_signature signatures[AX_OP_COUNT];
static pthread_once_t parsed = PTHREAD_ONCE_INIT;
static char text_space[98304]; /* names and words, cut out of the signatures */
static size_t text_used;

static const char *keep_text(const char *from, size_t n)
{
  char *p = text_space + text_used;
  if (text_used + n + 1 > sizeof text_space) return "?"; /* no C compiler would take such a member */
  memcpy(p, from, n);
  p[n] = '\0';
  text_used += n + 1;
  return p;
}

static uint8_t kind_named(const char *s, size_t n)
{
  static const struct {
    const char *name;
    uint8_t kind;
  } kinds[] = {
    { "T", AX_P_TENSOR },      { "TN", AX_P_OPERAND }, { "T*", AX_P_TENSORS },  { "dim", AX_P_DIM },
    { "dim+", AX_P_DIM_PLUS }, { "dims", AX_P_DIMS },  { "pos", AX_P_POS },     { "pos+", AX_P_POS_PLUS },
    { "int", AX_P_INT },       { "int2", AX_P_INT2 },  { "int3", AX_P_INT3 },   { "ints", AX_P_INTS },
    { "num", AX_P_NUM },       { "bool", AX_P_BOOL },  { "dtype", AX_P_DTYPE }, { "gen", AX_P_GENERATOR },
    { "any", AX_P_ANY },
  };
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (strlen(kinds[i].name) == n && memcmp(kinds[i].name, s, n) == 0) return kinds[i].kind;
  return AX_P_WORD;
}

static double default_value(const ax_param *p, const char *s, size_t n)
{
  if (p->kind == AX_P_BOOL) return n == 4 && memcmp(s, "true", 4) == 0;
  if (p->kind == AX_P_WORD) {
    for (int i = 0; i < p->n_words; i++)
      if (strlen(p->words[i]) == n && memcmp(p->words[i], s, n) == 0) return i;
    return 0;
  }
  const double v = strtod(s, NULL);
  const bool position =
      p->kind == AX_P_DIM || p->kind == AX_P_DIM_PLUS || p->kind == AX_P_POS || p->kind == AX_P_POS_PLUS;
  return position && v > 0 ? v - 1 : v;
}

/* What the parameters of one signature have taken so far. */
typedef struct taken {
  int tensors, integers, numbers;
  bool list;
} taken;

static void place(ax_param *p, taken *t)
{
  switch (p->kind) {
  case AX_P_TENSOR:
  case AX_P_OPERAND: p->slot = (uint8_t)t->tensors++; return;
  case AX_P_NUM: p->slot = (uint8_t)t->numbers++; return;
  case AX_P_TENSORS:
  case AX_P_GENERATOR:
  case AX_P_ANY: return;
  case AX_P_DIMS:
  case AX_P_INTS: /* the second one: its length and its entries go where integers go */
    p->second = t->list;
    t->list = true;
    p->places = p->second ? 1 + AX_MAX_DIMS : 0;
    break;
  case AX_P_INT2: p->places = 2; break;
  case AX_P_INT3: p->places = 3; break;
  default: p->places = 1; break;
  }
  p->slot = (uint8_t)t->integers;
  t->integers += p->places;
}

/* "dim:dims?", "keepdim:bool=false", "reduction:mean|sum|none=mean" */
static void parse_param(ax_param *p, const char *s, size_t n, taken *t)
{
  const char *colon = memchr(s, ':', n), *end = s + n, *equals = memchr(s, '=', n);
  const char *kind = colon + 1, *kind_end = equals ? equals : end;

  p->name = keep_text(s, (size_t)(colon - s));
  if (kind_end[-1] == '?') {
    p->optional = true;
    kind_end--;
  }
  p->kind = kind_named(kind, (size_t)(kind_end - kind));
  if (p->kind == AX_P_WORD)
    while (kind < kind_end && p->n_words < AX_MAX_WORDS) {
      const char *bar = memchr(kind, '|', (size_t)(kind_end - kind));
      if (!bar) bar = kind_end;
      p->words[p->n_words++] = keep_text(kind, (size_t)(bar - kind));
      kind = bar + 1;
    }
  place(p, t);
  if (equals) {
    p->optional = true;
    p->value = default_value(p, equals + 1, (size_t)(end - equals - 1));
  } else if (p->kind == AX_P_NUM) p->value = NAN; /* an optional number that was not given */
  else p->value = (double)AX_NO_DIM;
}

void ax_signature_parse(ax_signature *sig, const char *s)
{
  enum { GIVEN, FORM, SET, RESULTS } part = GIVEN;
  taken t = { 0 };

  while (*s) {
    const size_t n = strcspn(s, " ");
    if (n == 2 && s[0] == '-' && s[1] == '>') part = RESULTS;
    else if (n == 1 && s[0] == '+') part = FORM;
    else if (n == 1 && s[0] == '|') part = SET;
    else if (part == RESULTS) sig->results++;
    else if (n && sig->n_all < AX_MAX_PARAMS) {
      parse_param(&sig->param[sig->n_all++], s, n, &t);
      if (part == GIVEN) sig->n_row++;
      if (part != SET) sig->n++;
    }
    s += n + strspn(s + n, " ");
  }
  if (part != RESULTS) sig->results = 1;
}

static void parse_all(void)
{
  for (int op = 0; op < AX_OP_COUNT; op++) ax_signature_parse(&signatures[op], ax_ops[op].signature);
}

const ax_signature *ax_signature_of(ax_op op)
{
  pthread_once(&parsed, parse_all);
  return &signatures[op];
}

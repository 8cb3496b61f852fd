/* Writes op_attrs.h, the members of ax_attrs: for each row of ops.def a structure of its name (the
 * row's ID in lower case) whose members are the row's attributes, each over the place that the
 * signature gives it.
 *
 * Rows whose rule, gradient or kernel is one function share a structure that has the attributes
 * which all of them have, in one place and of one type: it is named after the rule or the gradient
 * that the rows share, or by OP_FAMILY in a .def.  A name that a row has, too, is the row's
 * structure; then all attributes of that row must be in the other rows, in the same places.
 *
 * A disagreement ends the build: status 1, and the rows are named. */
#include "signature.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

typedef struct source {
  const char *id, *rule, *gradient;
} source;
static const source sources[AX_OP_COUNT] = {
#define OP(ID, name, sig, form, rule, gradient, ...) { #ID, #rule, #gradient },
#include "core/ops/ops.def"
#undef OP
};
const ax_op_row ax_ops[AX_OP_COUNT] = {
#define OP(ID, lua, sig, ...) { .name = #lua, .signature = sig },
#include "core/ops/ops.def"
#undef OP
};

typedef struct family {
  const char *name, *rows; /* IDs with spaces between; rows NULL: whose rule or gradient has the name */
} family;
static const family families[] = {
#define OP(...)
#undef OP_FAMILY
#define OP_FAMILY(name, rows) { #name, rows },
#include "core/ops/ops.def"
#undef OP_FAMILY
#undef OP
  { NULL, NULL }
};

/* ---- what a structure has */

enum { MOST = AX_MAX_INTEGERS + AX_MAX_NUMBERS };
typedef struct members {
  int n;
  const ax_param *at[AX_MAX_PARAMS];
} members;

static bool is_attribute(const ax_param *p) { return p->kind == AX_P_NUM || p->places > 0; }

/* C never sees those: they have places, for the binding to read them into, and no names. */
static bool chooses_form(const ax_signature *sig, int k) { return k >= sig->n_row && k < sig->n; }

static bool same_place(const ax_param *a, const ax_param *b)
{
  return a->slot == b->slot && a->places == b->places && (a->kind == AX_P_NUM) == (b->kind == AX_P_NUM);
}

static const ax_param *attribute_named(int op, const char *name)
{
  const ax_signature *sig = ax_signature_of((ax_op)op);
  for (int k = 0; k < sig->n_all; k++)
    if (!chooses_form(sig, k) && is_attribute(&sig->param[k]) && strcmp(sig->param[k].name, name) == 0)
      return &sig->param[k];
  return NULL;
}

static members members_of_row(int op)
{
  const ax_signature *sig = ax_signature_of((ax_op)op);
  members m = { 0 };
  for (int k = 0; k < sig->n_all; k++)
    if (!chooses_form(sig, k) && is_attribute(&sig->param[k])) m.at[m.n++] = &sig->param[k];
  return m;
}

/* ---- writing */

static const char *lower(const char *id)
{
  static char text[64];
  size_t n = 0;
  for (; id[n] && n + 1 < sizeof text; n++) text[n] = (char)tolower((unsigned char)id[n]);
  text[n] = '\0';
  return text;
}

/* Members of one type, in rising places, with what fills the places between them. */
static void write_part(const members *m, bool numbers, int most)
{
  const char *type = numbers ? "double" : "int64_t", mark = numbers ? 'g' : 'h';
  int at = 0, gaps = 0;
  for (int k = 0; k < m->n; k++) {
    const ax_param *p = m->at[k];
    if ((p->kind == AX_P_NUM) != numbers) continue;
    if (p->slot > at) printf(" %s %c%d_[%d];", type, mark, gaps++, p->slot - at);
    if (p->second) printf(" %s n_%s, %s[%d];", type, p->name, p->name, AX_MAX_DIMS);
    else if (p->places > 1) printf(" %s %s[%d];", type, p->name, p->places);
    else printf(" %s %s;", type, p->name);
    at = p->slot + (numbers ? 1 : p->places);
  }
  if (at < most) printf(" %s %c%d_[%d];", type, mark, gaps, most - at);
}

static void write_structure(const char *name, const members *m)
{
  printf("struct {");
  write_part(m, false, AX_MAX_INTEGERS);
  write_part(m, true, AX_MAX_NUMBERS);
  printf(" } %s;\n", name);
}

/* ---- rows and those who share */

static bool check_room(int op, const members *m)
{
  int integers = 0, numbers = 0;
  for (int k = 0; k < m->n; k++) {
    integers += m->at[k]->places;
    numbers += m->at[k]->kind == AX_P_NUM;
  }
  if (ax_signature_of((ax_op)op)->n_all < AX_MAX_PARAMS && integers <= AX_MAX_INTEGERS &&
      numbers <= AX_MAX_NUMBERS)
    return true;
  fprintf(stderr, "ops.def: %s has %d integer attributes and %d numbers; ax_attrs has %d and %d places\n",
          sources[op].id, integers, numbers, AX_MAX_INTEGERS, AX_MAX_NUMBERS);
  return false;
}

static bool listed(const char *ids, const char *id)
{
  const size_t n = strlen(id);
  for (const char *s = ids; (s = strstr(s, id)); s += n)
    if ((s == ids || s[-1] == ' ') && (s[n] == ' ' || s[n] == '\0')) return true;
  return false;
}

static bool belongs(const family *f, int op)
{
  if (f->rows) return listed(f->rows, sources[op].id);
  return strcmp(sources[op].rule, f->name) == 0 || strcmp(sources[op].gradient, f->name) == 0;
}

static int row_named(const char *name)
{
  for (int op = 0; op < AX_OP_COUNT; op++)
    if (strcmp(lower(sources[op].id), name) == 0) return op;
  return -1;
}

/* A row's name is used for other rows, too: they must have what the row has. */
static bool check_agreement(const family *f, int row)
{
  const members m = members_of_row(row);
  for (int op = 0; op < AX_OP_COUNT; op++) {
    if (op == row || !belongs(f, op)) continue;
    for (int k = 0; k < m.n; k++) {
      const ax_param *p = attribute_named(op, m.at[k]->name);
      if (p && same_place(p, m.at[k])) continue;
      fprintf(stderr,
              "ops.def: %s and %s share `%s`, but not the place of %s; give what they share another name\n",
              sources[row].id, sources[op].id, f->name, m.at[k]->name);
      return false;
    }
  }
  return true;
}

/* What all rows of the family have, in one place. */
static bool common(const family *f, members *m)
{
  int count = 0;
  *m = (members){ 0 };
  for (int op = 0; op < AX_OP_COUNT; op++) {
    members kept = { 0 };
    if (!belongs(f, op)) continue;
    if (count++ == 0) {
      *m = members_of_row(op);
      continue;
    }
    for (int k = 0; k < m->n; k++) {
      const ax_param *p = attribute_named(op, m->at[k]->name);
      if (p && same_place(p, m->at[k])) kept.at[kept.n++] = m->at[k];
    }
    *m = kept;
  }
  if (f->rows && m->n == 0)
    fprintf(stderr, "ops.def: the rows of OP_FAMILY(%s) have nothing in common\n", f->name);
  return m->n > 0 || !f->rows;
}

static bool write_family(const family *f)
{
  const int row = row_named(f->name);
  members m;
  if (row >= 0) return check_agreement(f, row);
  if (!common(f, &m)) return false;
  if (m.n) write_structure(f->name, &m);
  return true;
}

/* Is this the first row that names the rule or gradient, and not the only one? */
static bool is_new_share(const char *name, int op)
{
  const family f = { name, NULL };
  int others = 0;
  for (int k = 0; k < AX_OP_COUNT; k++) {
    if (!belongs(&f, k)) continue;
    if (k < op) return false;
    others += k > op;
  }
  return others > 0 || (row_named(name) >= 0 && row_named(name) != op);
}

int main(void)
{
  bool ok = true;
  printf("/* Written by host/tools/attrs.c from the signatures of ops.def.  Members of ax_attrs. */\n");
  for (int op = 0; op < AX_OP_COUNT; op++) {
    const members m = members_of_row(op);
    if (!check_room(op, &m)) return 1;
    if (m.n) write_structure(lower(sources[op].id), &m);
  }
  for (int op = 0; op < AX_OP_COUNT; op++) {
    const source *s = &sources[op];
    if (is_new_share(s->rule, op)) ok = write_family(&(family){ s->rule, NULL }) && ok;
    if (strcmp(s->gradient, s->rule) != 0 && is_new_share(s->gradient, op))
      ok = write_family(&(family){ s->gradient, NULL }) && ok;
  }
  for (const family *f = families; f->name; f++) ok = write_family(f) && ok;
  return ok ? 0 : 1;
}

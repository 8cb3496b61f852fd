/* Einstein's sum, put together from rows: diagonals for labels repeated in one operand, sums for
 * labels that nobody needs any more, and a matrix product (or, with nothing to sum over, a product
 * of elements) for each further operand, from left to right.
 *
 * Labels: 0..25 are A..Z, 26..51 a..z, and 52.. the dims of "...".  The last of these dims always
 * has the highest label, so that those of all operands line up from the right, as in
 * broadcasting. */
#include "core/ops/infer.h"

#include <string.h>

enum { LETTERS = 52, LABELS = LETTERS + AX_MAX_DIMS, MOST = 32, LONGEST = 4 * AX_MAX_DIMS };

#define BIT(label) (UINT64_C(1) << (label))

typedef struct term {
  ax_tensor *t; /* owned */
  int n;        /* labels, one for each dim */
  int label[LABELS];
} term;

static const char *label_text(int label, char *buf)
{
  buf[0] = (char)(label < 26 ? 'A' + label : label < LETTERS ? 'a' + label - 26 : '.');
  buf[1] = '\0';
  return buf;
}

static uint64_t set_of(const term *x)
{
  uint64_t set = 0;
  for (int k = 0; k < x->n; k++) set |= BIT(x->label[k]);
  return set;
}

static int place_of(const term *x, int label)
{
  for (int k = 0; k < x->n; k++)
    if (x->label[k] == label) return k;
  return -1;
}

/* x->t = op(x->t, ..); the former one is let go of. */
static ax_status become(term *x, ax_op op, const ax_attrs *a)
{
  ax_tensor *results[AX_MAX_OUT];
  const ax_status st = ax_run(op, &(ax_args){ .n_in = 1, .in = &x->t, .a = *a }, results);
  if (st != AX_OK) return st;
  ax_tensor_release(x->t);
  x->t = results[0];
  return AX_OK;
}

static void drop_label(term *x, int at)
{
  memmove(x->label + at, x->label + at + 1, sizeof *x->label * (size_t)(x->n - at - 1));
  x->n--;
}

/* ---- reading the equation */

enum { DOTS = -1 };

typedef struct part {
  int n, dots;
  int label[LONGEST];
} part; /* dots: the position of "...", or -1 */

static ax_status bad(const char *equation, const char *what)
{
  return ax_fail(AX_EINVAL, "einsum: \"%s\": %s", equation, what);
}

/* One list of labels, up to ',' or "->" or the end; *at is moved there. */
static ax_status read_part(const char *equation, const char **at, part *p)
{
  const char *s = *at;
  *p = (part){ .dots = -1 };
  for (; *s && *s != ',' && *s != '-'; s++) {
    if (*s == ' ') continue;
    if (p->n == LONGEST) return bad(equation, "too many labels");
    if (*s >= 'A' && *s <= 'Z') p->label[p->n++] = *s - 'A';
    else if (*s >= 'a' && *s <= 'z') p->label[p->n++] = *s - 'a' + 26;
    else if (s[0] == '.' && s[1] == '.' && s[2] == '.') {
      if (p->dots >= 0) return bad(equation, "\"...\" stands twice in one list");
      p->dots = p->n;
      p->label[p->n++] = DOTS;
      s += 2;
    } else return bad(equation, "expected letters, \"...\", \",\" and \"->\"");
  }
  *at = s;
  return AX_OK;
}

/* The labels of x's dims. */
static ax_status label_dims(const char *equation, int k, const part *p, term *x)
{
  const int named = p->n - (p->dots >= 0), rest = x->t->ndim - named;
  char text[AX_SHAPE_TEXT];
  if (rest < 0 || (rest > 0 && p->dots < 0))
    return ax_fail(AX_ESHAPE, "einsum: \"%s\": operand %d has %d label%s, but its shape is %s", equation,
                   k + 1, named, named == 1 ? "" : "s",
                   ax_shape_text(x->t->ndim, x->t->shape, text, sizeof text));
  for (int j = 0; j < p->n; j++) {
    if (p->label[j] != DOTS) x->label[x->n++] = p->label[j];
    else
      for (int d = 0; d < rest; d++) x->label[x->n++] = LABELS - rest + d;
  }
  return AX_OK;
}

/* Sizes of one label must be the same everywhere, or 1. */
static ax_status check_sizes(const char *equation, int n, const term *x)
{
  int64_t size[LABELS];
  int from[LABELS];
  char text[2];

  for (int l = 0; l < LABELS; l++) size[l] = -1;
  for (int k = 0; k < n; k++)
    for (int d = 0; d < x[k].n; d++) {
      const int l = x[k].label[d];
      const int64_t s = x[k].t->shape[d];
      if (size[l] >= 0 && size[l] != 1 && s != 1 && s != size[l])
        return ax_fail(AX_ESHAPE, "einsum: \"%s\": %s is %lld in operand %d and %lld in operand %d", equation,
                       label_text(l, text), (long long)size[l], from[l] + 1, (long long)s, k + 1);
      if (size[l] < 0 || size[l] == 1) {
        size[l] = s;
        from[l] = k;
      }
    }
  return AX_OK;
}

/* Without an arrow: the dims of "...", then the letters that stand once in all, in the order of the
 * alphabet. */
static void implied_output(int n, const term *x, term *out)
{
  int count[LABELS] = { 0 };
  for (int k = 0; k < n; k++)
    for (int d = 0; d < x[k].n; d++) count[x[k].label[d]]++;
  for (int l = LETTERS; l < LABELS; l++)
    if (count[l]) out->label[out->n++] = l;
  for (int l = 0; l < LETTERS; l++)
    if (count[l] == 1) out->label[out->n++] = l;
}

static ax_status written_output(const char *equation, const part *p, uint64_t known, term *out)
{
  uint64_t seen = 0;
  char text[2];
  for (int j = 0; j < p->n; j++) {
    if (p->label[j] == DOTS) {
      for (int l = LETTERS; l < LABELS; l++)
        if (known & BIT(l)) out->label[out->n++] = l;
      continue;
    }
    if (seen & BIT(p->label[j]))
      return ax_fail(AX_EINVAL, "einsum: \"%s\": the result names %s twice", equation,
                     label_text(p->label[j], text));
    if (!(known & BIT(p->label[j])))
      return ax_fail(AX_EINVAL, "einsum: \"%s\": no operand has the result's %s", equation,
                     label_text(p->label[j], text));
    seen |= BIT(p->label[j]);
    out->label[out->n++] = p->label[j];
  }
  if (out->n > AX_MAX_DIMS) return bad(equation, "the result has too many dims");
  return AX_OK;
}

/* Fills n terms and the result's labels. */
static ax_status read_equation(const char *equation, int n, ax_tensor *const *in, term *x, term *out)
{
  const char *at = equation;
  uint64_t known = 0;
  part p;
  ax_status st;
  int k = 0;

  if (n < 1) return bad(equation, "expected at least one operand");
  if (n > MOST) return ax_fail(AX_EINVAL, "einsum: %d operands, at most %d can be", n, MOST);
  for (;; at++) {
    if ((st = read_part(equation, &at, &p)) != AX_OK) return st;
    if (k < n) {
      if (in[k]->dtype != in[0]->dtype)
        return ax_fail(AX_EDTYPE, "einsum: operand %d is %s, the first one %s", k + 1,
                       ax_dtype_name((ax_dtype)in[k]->dtype), ax_dtype_name((ax_dtype)in[0]->dtype));
      x[k].t = ax_tensor_retain(in[k]);
      if ((st = label_dims(equation, k, &p, &x[k])) != AX_OK) return st;
      known |= set_of(&x[k]);
    }
    k++;
    if (*at != ',') break;
  }
  if (k != n) return ax_fail(AX_EINVAL, "einsum: \"%s\": %d operands in it, %d given", equation, k, n);
  if ((st = check_sizes(equation, n, x)) != AX_OK) return st;
  if (!*at) {
    implied_output(n, x, out);
    return AX_OK;
  }
  if (at[0] != '-' || at[1] != '>') return bad(equation, "expected \"->\" before the result");
  at += 2;
  if ((st = read_part(equation, &at, &p)) != AX_OK) return st;
  if (*at) return bad(equation, "there is more behind the result");
  return written_output(equation, &p, known, out);
}

/* ---- one operand */

/* Labels repeated in one operand: their dims become one diagonal, the last dim. */
static ax_status take_diagonals(const char *equation, term *x)
{
  char text[2];
  for (int i = 0; i < x->n; i++)
    for (int j = i + 1; j < x->n; j++) {
      const int label = x->label[i];
      if (x->label[j] != label) continue;
      if (x->t->shape[i] != x->t->shape[j])
        return ax_fail(AX_ESHAPE, "einsum: \"%s\": %s is %lld and %lld in one operand", equation,
                       label_text(label, text), (long long)x->t->shape[i], (long long)x->t->shape[j]);
      const ax_status st = become(x, AX_OP_DIAGONAL, &AX_ATTRS(diagonal, .offset = 0, .dim1 = i, .dim2 = j));
      if (st != AX_OK) return st;
      drop_label(x, j);
      drop_label(x, i);
      x->label[x->n++] = label;
      i = -1; /* from the start: the dims have moved */
      break;
    }
  return AX_OK;
}

/* Sums over labels that are not in `needed`. */
static ax_status sum_out(term *x, uint64_t needed)
{
  ax_attrs a = { .n_list = 0 };
  for (int d = x->n - 1; d >= 0; d--)
    if (!(needed & BIT(x->label[d]))) {
      a.list[a.n_list++] = d;
      drop_label(x, d);
    }
  return a.n_list ? become(x, AX_OP_SUM, &a) : AX_OK;
}

/* Dims in the order of the labels; those that x does not have come as size 1 (at most AX_MAX_DIMS
 * in all). */
static ax_status arrange(term *x, int n, const int *label)
{
  ax_attrs order = { .n_list = 0 };
  bool same = true;
  ax_status st = AX_OK;

  for (int k = 0; k < n; k++) {
    const int d = place_of(x, label[k]);
    if (d < 0) continue;
    same = same && d == order.n_list;
    order.list[order.n_list++] = d;
  }
  if (!same) st = become(x, AX_OP_PERMUTE, &order);
  for (int k = 0; st == AX_OK && k < n; k++)
    if (place_of(x, label[k]) < 0) st = become(x, AX_OP_UNSQUEEZE, &AX_ATTRS(unsqueeze, .dim = k));
  x->n = n;
  memmove(x->label, label, sizeof *label * (size_t)n);
  return st;
}

/* ---- two operands: a = a times b, without the labels that are not in `needed` */

/* A label that is 1 here and longer there belongs to the other one alone. */
static ax_status drop_ones(term *x, const term *other)
{
  for (int d = x->n - 1; d >= 0; d--) {
    const int at = place_of(other, x->label[d]);
    if (at < 0 || x->t->shape[d] != 1 || other->t->shape[at] == 1) continue;
    const ax_status st = become(x, AX_OP_SQUEEZE, &(ax_attrs){ .n_list = 1, .list = { d } });
    if (st != AX_OK) return st;
    drop_label(x, d);
  }
  return AX_OK;
}

/* The labels of x that are in `set`, those with long steps first: then they can be merged without a
 * copy if they can at all. */
static int by_stride(const term *x, uint64_t set, int *out)
{
  int n = 0;
  for (int d = 0; d < x->n; d++) {
    if (!(set & BIT(x->label[d]))) continue;
    int at = n++;
    for (; at > 0 && x->t->strides[place_of(x, out[at - 1])] < x->t->strides[d]; at--) out[at] = out[at - 1];
    out[at] = x->label[d];
  }
  return n;
}

static ax_status multiply(term *a, term *b, uint64_t all)
{
  int label[LABELS], n = a->n;
  ax_tensor *product = NULL;
  ax_status st;

  memcpy(label, a->label, sizeof label);
  for (int d = 0; d < b->n; d++)
    if (place_of(a, b->label[d]) < 0) label[n++] = b->label[d];
  if (n > AX_MAX_DIMS)
    return ax_fail(AX_ESHAPE, "einsum: a product on the way has %d dims, at most %d are there",
                   __builtin_popcountll(all), AX_MAX_DIMS);
  if ((st = arrange(a, n, label)) != AX_OK || (st = arrange(b, n, label)) != AX_OK) return st;
  if ((st = ax_run2(AX_OP_MUL, a->t, b->t, &product)) != AX_OK) return st;
  ax_tensor_release(a->t);
  a->t = product;
  return AX_OK;
}

/* (batch .., rows, inner) or (batch .., inner, columns): the two last groups become one dim
 * each. */
static ax_status as_matrices(term *x, int n_batch, const int *batch, int n1, const int *first, int n2,
                             const int *second)
{
  int label[LABELS];
  ax_attrs shape = { .n_list = n_batch + 2 };
  ax_status st;

  memcpy(label, batch, sizeof *label * (size_t)n_batch);
  memcpy(label + n_batch, first, sizeof *label * (size_t)n1);
  memcpy(label + n_batch + n1, second, sizeof *label * (size_t)n2);
  if ((st = arrange(x, n_batch + n1 + n2, label)) != AX_OK) return st;
  for (int d = 0; d < n_batch; d++) shape.list[d] = x->t->shape[d];
  shape.list[n_batch] = ax_shape_numel(n1, x->t->shape + n_batch);
  shape.list[n_batch + 1] = ax_shape_numel(n2, x->t->shape + n_batch + n1);
  return n1 == 1 && n2 == 1 ? AX_OK : become(x, AX_OP_RESHAPE, &shape);
}

static ax_status contract(term *a, term *b, uint64_t needed)
{
  int batch[LABELS], inner[LABELS], rows[LABELS], cols[LABELS];
  ax_attrs shape = { .n_list = 0 };
  ax_tensor *product = NULL;
  ax_status st;

  if ((st = drop_ones(a, b)) != AX_OK || (st = drop_ones(b, a)) != AX_OK) return st;
  if ((st = sum_out(a, needed | set_of(b))) != AX_OK || (st = sum_out(b, needed | set_of(a))) != AX_OK)
    return st;
  const uint64_t sa = set_of(a), sb = set_of(b), shared = sa & sb;
  if (!(shared & ~needed)) return multiply(a, b, sa | sb);
  const int n_batch = by_stride(a, shared & needed, batch), n_inner = by_stride(a, shared & ~needed, inner);
  const int n_rows = by_stride(a, sa & ~shared, rows), n_cols = by_stride(b, sb & ~shared, cols);
  if (n_batch + 2 > AX_MAX_DIMS || n_batch + n_rows + n_cols > AX_MAX_DIMS)
    return ax_fail(AX_ESHAPE, "einsum: a product on the way has %d dims, at most %d are there",
                   n_batch + n_rows + n_cols, AX_MAX_DIMS);
  for (int k = 0; k < n_batch; k++) shape.list[shape.n_list++] = a->t->shape[place_of(a, batch[k])];
  for (int k = 0; k < n_rows; k++) shape.list[shape.n_list++] = a->t->shape[place_of(a, rows[k])];
  for (int k = 0; k < n_cols; k++) shape.list[shape.n_list++] = b->t->shape[place_of(b, cols[k])];
  if ((st = as_matrices(a, n_batch, batch, n_rows, rows, n_inner, inner)) != AX_OK) return st;
  if ((st = as_matrices(b, n_batch, batch, n_inner, inner, n_cols, cols)) != AX_OK) return st;
  if ((st = ax_run2(AX_OP_MATMUL, a->t, b->t, &product)) != AX_OK) return st;
  ax_tensor_release(a->t);
  a->t = product;
  a->n = shape.n_list;
  memcpy(a->label, batch, sizeof *batch * (size_t)n_batch);
  memcpy(a->label + n_batch, rows, sizeof *rows * (size_t)n_rows);
  memcpy(a->label + n_batch + n_rows, cols, sizeof *cols * (size_t)n_cols);
  return n_rows == 1 && n_cols == 1 ? AX_OK : become(a, AX_OP_RESHAPE, &shape);
}

ax_status ax_einsum(const char *equation, int n, ax_tensor *const *in, ax_tensor **out)
{
  term *x = ax_calloc(MOST + 1, sizeof *x), *result = x ? &x[MOST] : NULL;
  ax_status st = AX_OK;

  *out = NULL;
  if (!x) return AX_ENOMEM;
  AX_TRY(read_equation(equation, n, in, x, result));
  for (int k = 0; k < n; k++) AX_TRY(take_diagonals(equation, &x[k]));
  for (int k = 1; k < n; k++) {
    uint64_t needed = set_of(result);
    for (int later = k + 1; later < n; later++) needed |= set_of(&x[later]);
    AX_TRY(contract(&x[0], &x[k], needed));
  }
  AX_TRY(sum_out(&x[0], set_of(result)));
  AX_TRY(arrange(&x[0], result->n, result->label));
  *out = x[0].t;
  x[0].t = NULL;
  /* does nobody else see these elements?  Then they may be changed in place under autograd */
  bool fresh = true;
  for (int k = 0; k < n; k++) fresh = fresh && (*out)->storage != in[k]->storage;
  if (fresh) ax_view_own((*out));
out:
  for (int k = 0; k < MOST; k++) ax_tensor_release(x[k].t);
  ax_mfree(x);
  return st;
}

/* Gradient rules, built from op rows so that a gradient can itself be differentiated.
 *
 * A rule reads as its formula: G is the gradient of the (first) result, IN(k) and OUT(k) are what the forward pass saved or the number it was
 * called with, NUM(v) is a constant.  Each helper returns a tensor that the rule need not release; after a failure they do nothing, and the
 * engine reports the first one.  Sums over broadcast dims and casts back to an input's type are the engine's work, not the rules'. */
#include "core/infer.h"
#include "core/rules.h"

#include <math.h>
#include <string.h>

#define RULE(name) void ax_grad_##name(ax_grad *c)
#define G ((ax_arg){ .t = c->g[0] })
#define NUM(v) number(v)
#define WANTS(k) ax_wants(c, k)

static ax_arg number(double v) { return (ax_arg){ .num = v, .integral = isfinite(v) && v == floor(v) }; }

/* ---- calling ops */

static ax_arg keep(ax_grad *c, ax_status st, ax_tensor *t)
{
  if (st == AX_OK && c->n_temps == AX_RULE_TEMPS) st = ax_fail(AX_EGRAD, "gradient of %s: too many steps in its rule", ax_ops[c->node->op].name);
  if (st != AX_OK) {
    ax_tensor_release(t);
    c->st = st;
    return (ax_arg){ 0 };
  }
  c->temps[c->n_temps++] = t;
  return (ax_arg){ .t = t };
}

/* op(operands) with attributes.  An operand that is neither a tensor nor meant as a number cannot occur: rules ask for what rows save. */
static ax_arg call(ax_grad *c, ax_op op, int n, const ax_arg *v, const ax_attrs *a)
{
  ax_tensor *in[AX_MAX_INPUTS], *results[AX_MAX_OUT] = { 0 };
  ax_args args = { .n_in = n, .in = in };

  if (c->st != AX_OK) return (ax_arg){ 0 };
  if (a) args.a = *a;
  else args.a.n_list = -1;
  for (int k = 0; k < n; k++) {
    in[k] = v[k].t;
    if (v[k].t) continue;
    args.scalars |= 1u << k;
    args.num[k] = v[k].num;
    if (v[k].integral) args.integral |= 1u << k;
  }
  const ax_status st = ax_run(op, &args, results);
  return keep(c, st, results[0]);
}

static ax_arg un(ax_grad *c, ax_op op, ax_arg x) { return call(c, op, 1, &x, NULL); }
static ax_arg bin(ax_grad *c, ax_op op, ax_arg a, ax_arg b) { return call(c, op, 2, (ax_arg[]){ a, b }, NULL); }
static ax_arg mul(ax_grad *c, ax_arg a, ax_arg b) { return bin(c, AX_OP_MUL, a, b); }
static ax_arg sub(ax_grad *c, ax_arg a, ax_arg b) { return bin(c, AX_OP_SUB, a, b); }
static ax_arg over(ax_grad *c, ax_arg a, ax_arg b) { return bin(c, AX_OP_DIV, a, b); }
static ax_arg where(ax_grad *c, ax_arg cond, ax_arg a, ax_arg b) { return call(c, AX_OP_WHERE, 3, (ax_arg[]){ cond, a, b }, NULL); }

static ax_arg with_list(ax_grad *c, ax_op op, ax_arg x, int n, const int64_t *list, int64_t i0)
{
  ax_attrs a = { .i = { i0 }, .n_list = n };
  if (n > 0) memcpy(a.list, list, sizeof *list * (size_t)n);
  return call(c, op, 1, &x, &a);
}

static ax_arg with_ints(ax_grad *c, ax_op op, ax_arg x, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
  return call(c, op, 1, &x, &(ax_attrs){ .i = { i0, i1, i2, i3 }, .n_list = -1 });
}

static ax_arg sum_dim(ax_grad *c, ax_arg x, int64_t dim) { return with_list(c, AX_OP_SUM, x, 1, &dim, 1); }

/* A saved input, or the number that stood in its place. */
static ax_arg saved_in(ax_grad *c, int k)
{
  const ax_args *args = &c->node->args;
  if (args->scalars >> k & 1) return (ax_arg){ .num = args->num[k], .integral = args->integral >> k & 1 };
  if (!c->in[k] && c->st == AX_OK) c->st = ax_fail(AX_EGRAD, "gradient of %s: argument %d was not saved", ax_ops[c->node->op].name, k + 1);
  return (ax_arg){ .t = c->in[k] };
}

static ax_arg saved_out(ax_grad *c, int k)
{
  if (!c->out[k] && c->st == AX_OK) c->st = ax_fail(AX_EGRAD, "gradient of %s: result %d was not saved", ax_ops[c->node->op].name, k + 1);
  return (ax_arg){ .t = c->out[k] };
}

#define IN(k) saved_in(c, k)
#define OUT(k) saved_out(c, k)
#define META(k) (&c->node->in_meta[k])
#define A (&c->node->args.a)

static void give(ax_grad *c, int k, ax_arg v)
{
  if (c->st == AX_OK && v.t) c->d[k] = ax_tensor_retain(v.t);
}

/* A constant like input k.  (g * 0 would be NaN where g is infinite.) */
static ax_arg filled(ax_grad *c, int k, double v)
{
  ax_tensor *t = NULL;
  if (c->st != AX_OK) return (ax_arg){ 0 };
  ax_status st = ax_tensor_new_on(c->g[0]->device, META(k)->dtype, META(k)->ndim, META(k)->shape, &t);
  if (st == AX_OK) st = ax_fill(t, v);
  return keep(c, st, t);
}

/* ---- arithmetic */

RULE(add) { if (WANTS(0)) give(c, 0, G); if (WANTS(1)) give(c, 1, G); }
RULE(sub) { if (WANTS(0)) give(c, 0, G); if (WANTS(1)) give(c, 1, un(c, AX_OP_NEG, G)); }
RULE(neg) { give(c, 0, un(c, AX_OP_NEG, G)); }
RULE(identity) { give(c, 0, G); }
RULE(zero) { give(c, 0, filled(c, 0, 0)); }
RULE(abs) { give(c, 0, mul(c, G, un(c, AX_OP_SIGN, IN(0)))); }
RULE(square) { give(c, 0, mul(c, mul(c, G, IN(0)), NUM(2))); }
RULE(reciprocal) { give(c, 0, un(c, AX_OP_NEG, mul(c, G, un(c, AX_OP_SQUARE, OUT(0))))); }

RULE(mul)
{
  if (WANTS(0)) give(c, 0, mul(c, G, IN(1)));
  if (WANTS(1)) give(c, 1, mul(c, G, IN(0)));
}

RULE(div) /* -g a / b^2 */
{
  if (WANTS(0)) give(c, 0, over(c, G, IN(1)));
  if (WANTS(1)) give(c, 1, un(c, AX_OP_NEG, mul(c, G, over(c, over(c, IN(0), IN(1)), IN(1)))));
}

/* x in the type that the op computed in: a logarithm of a narrower one would lose digits. */
static ax_arg computed(ax_grad *c, ax_arg x)
{
  const ax_dtype d = c->node->out_meta[0].dtype;
  return !x.t || x.t->dtype == d ? x : call(c, AX_OP_CAST, 1, &x, &(ax_attrs){ .i = { d }, .n_list = -1 });
}

RULE(pow) /* g b a^(b-1), 0 where b = 0;  g a^b log a, 0 where a = 0 and b >= 0 (there log a is infinite) */
{
  const ax_arg a = computed(c, IN(0)), b = computed(c, IN(1));
  if (WANTS(0)) {
    if (!b.t && b.num == 0) give(c, 0, filled(c, 0, 0));
    else {
      const ax_arg d = mul(c, mul(c, G, bin(c, AX_OP_POW, a, b.t ? sub(c, b, NUM(1)) : NUM(b.num - 1))), b);
      give(c, 0, b.t ? where(c, bin(c, AX_OP_EQ, b, NUM(0)), NUM(0), d) : d);
    }
  }
  if (WANTS(1)) {
    const ax_arg d = mul(c, mul(c, G, OUT(0)), a.t ? un(c, AX_OP_LOG, a) : NUM(log(a.num)));
    const bool flat = !a.t && a.num != 0; /* no zero to look out for */
    const ax_arg grows = flat ? NUM(0) : bin(c, AX_OP_GE, b, NUM(0));
    give(c, 1, flat ? d : where(c, a.t ? bin(c, AX_OP_LOGICAL_AND, bin(c, AX_OP_EQ, a, NUM(0)), grows) : grows, NUM(0), d));
  }
}

RULE(remainder) /* a - b floor(a / b) */
{
  if (WANTS(0)) give(c, 0, G);
  if (WANTS(1)) give(c, 1, un(c, AX_OP_NEG, mul(c, G, un(c, AX_OP_FLOOR, over(c, IN(0), IN(1))))));
}

/* The larger (smaller) one gets g; equal ones half each; where one is NaN, both get it: as in PyTorch. */
static void grad_choice(ax_grad *c, ax_op loses)
{
  for (int k = 0; k < 2; k++) {
    if (!WANTS(k)) continue;
    const ax_arg mine = IN(k), other = IN(1 - k);
    const ax_arg shared = where(c, bin(c, AX_OP_EQ, mine, other), mul(c, G, NUM(0.5)), G);
    give(c, k, where(c, bin(c, loses, mine, other), NUM(0), shared));
  }
}
RULE(maximum) { grad_choice(c, AX_OP_LT); }
RULE(minimum) { grad_choice(c, AX_OP_GT); }

RULE(clamp) /* nothing passes at a limit or beyond it, nor where x is NaN */
{
  ax_arg inside = { 0 };
  if (A->f[0] != -INFINITY) inside = bin(c, AX_OP_GT, IN(0), NUM(A->f[0]));
  if (A->f[1] != INFINITY) {
    const ax_arg below = bin(c, AX_OP_LT, IN(0), NUM(A->f[1]));
    inside = inside.t ? bin(c, AX_OP_LOGICAL_AND, inside, below) : below;
  }
  give(c, 0, inside.t ? where(c, inside, G, NUM(0)) : G);
}

/* ---- functions */

RULE(exp) { give(c, 0, mul(c, G, OUT(0))); }
RULE(expm1) { give(c, 0, mul(c, G, bin(c, AX_OP_ADD, OUT(0), NUM(1)))); }
RULE(log) { give(c, 0, over(c, G, IN(0))); }
RULE(log1p) { give(c, 0, over(c, G, bin(c, AX_OP_ADD, IN(0), NUM(1)))); }
RULE(sqrt) { give(c, 0, over(c, G, mul(c, OUT(0), NUM(2)))); }
RULE(rsqrt) { give(c, 0, mul(c, mul(c, G, NUM(-0.5)), mul(c, OUT(0), un(c, AX_OP_SQUARE, OUT(0))))); }
RULE(sin) { give(c, 0, mul(c, G, un(c, AX_OP_COS, IN(0)))); }
RULE(cos) { give(c, 0, un(c, AX_OP_NEG, mul(c, G, un(c, AX_OP_SIN, IN(0))))); }
RULE(tanh) { give(c, 0, bin(c, AX_OP_TANH_BACKWARD, G, OUT(0))); }
RULE(sigmoid) { give(c, 0, bin(c, AX_OP_SIGMOID_BACKWARD, G, OUT(0))); }
RULE(relu) { give(c, 0, bin(c, AX_OP_RELU_BACKWARD, G, OUT(0))); }

RULE(erf) /* 2 / sqrt(pi) exp(-x^2) */
{
  const double k = 1.1283791670955126;
  give(c, 0, mul(c, G, mul(c, un(c, AX_OP_EXP, un(c, AX_OP_NEG, un(c, AX_OP_SQUARE, IN(0)))), NUM(k))));
}

RULE(tanh_backward) /* r = g (1 - y^2) */
{
  if (WANTS(0)) give(c, 0, bin(c, AX_OP_TANH_BACKWARD, G, IN(1)));
  if (WANTS(1)) give(c, 1, mul(c, mul(c, G, IN(0)), mul(c, IN(1), NUM(-2))));
}

RULE(sigmoid_backward) /* r = g y (1 - y) */
{
  if (WANTS(0)) give(c, 0, bin(c, AX_OP_SIGMOID_BACKWARD, G, IN(1)));
  if (WANTS(1)) give(c, 1, mul(c, mul(c, G, IN(0)), sub(c, NUM(1), mul(c, IN(1), NUM(2)))));
}

RULE(relu_backward) /* linear in g; flat in y */
{
  if (WANTS(0)) give(c, 0, bin(c, AX_OP_RELU_BACKWARD, G, IN(1)));
  if (WANTS(1)) give(c, 1, filled(c, 1, 0));
}

/* ---- choice */

RULE(where)
{
  if (WANTS(1)) give(c, 1, where(c, IN(0), G, NUM(0)));
  if (WANTS(2)) give(c, 2, where(c, IN(0), NUM(0), G));
}

RULE(masked_fill) { give(c, 0, where(c, IN(1), NUM(0), G)); }

/* ---- reductions */

/* g with the reduced dims back as size 1, then repeated to x's shape. */
static ax_arg spread(ax_grad *c, ax_arg g, int n_dims, const int64_t *dims, double scale)
{
  const ax_meta *m = META(0);
  int64_t shape[AX_MAX_DIMS];
  memcpy(shape, m->shape, sizeof shape);
  for (int d = 0; d < m->ndim; d++) {
    bool gone = n_dims <= 0;
    for (int k = 0; k < n_dims; k++) gone |= dims[k] == d;
    if (gone) shape[d] = 1;
  }
  if (scale != 1) g = mul(c, g, number(scale));
  return with_list(c, AX_OP_EXPAND, with_list(c, AX_OP_RESHAPE, g, m->ndim, shape, 0), m->ndim, m->shape, 0);
}

RULE(sum) { give(c, 0, spread(c, G, A->n_list, A->list, 1)); }

RULE(mean)
{
  const double kept = c->node->out_meta[0].ndim ? (double)ax_shape_numel(c->node->out_meta[0].ndim, c->node->out_meta[0].shape) : 1;
  const double all = (double)ax_shape_numel(META(0)->ndim, META(0)->shape);
  give(c, 0, spread(c, G, A->n_list, A->list, kept / all));
}

/* max and min: with a dim, g goes to the chosen position; without, it is shared by all equal elements, as in PyTorch. */
RULE(select_extreme)
{
  const ax_meta *m = META(0);
  const int64_t dim = A->i[0];
  int64_t shape[AX_MAX_DIMS];

  if (dim == AX_NO_DIM || m->ndim == 0) {
    const ax_arg both_nan = bin(c, AX_OP_LOGICAL_AND, un(c, AX_OP_ISNAN, IN(0)), un(c, AX_OP_ISNAN, OUT(0)));
    const ax_arg chosen = bin(c, AX_OP_LOGICAL_OR, bin(c, AX_OP_EQ, IN(0), OUT(0)), both_nan);
    const ax_arg count = with_list(c, AX_OP_SUM, chosen, -1, NULL, 0);
    give(c, 0, where(c, chosen, over(c, spread(c, G, -1, NULL, 1), count), NUM(0)));
    return;
  }
  ax_tensor *ramp = NULL; /* 0 .. n-1 along dim */
  for (int d = 0; d < m->ndim; d++) shape[d] = d == dim ? m->shape[d] : 1;
  ax_status st = ax_tensor_new_on(c->g[0]->device, AX_I64, m->ndim, shape, &ramp);
  if (st == AX_OK) st = ax_run_into(AX_OP_ARANGE, &(ax_args){ .a = { .f = { 0, 1 }, .n_list = -1 } }, ramp);
  const ax_arg along = keep(c, st, ramp);
  memcpy(shape, m->shape, sizeof shape);
  shape[dim] = 1;
  const ax_arg at = with_list(c, AX_OP_RESHAPE, OUT(1), m->ndim, shape, 0);
  give(c, 0, where(c, bin(c, AX_OP_EQ, along, at), spread(c, G, 1, &dim, 1), NUM(0)));
}

/* ---- linear algebra */

static ax_arg t(ax_grad *c, ax_arg x) { return with_ints(c, AX_OP_TRANSPOSE, x, 0, 1, 0, 0); }
static ax_arg flat_rows(ax_grad *c, ax_arg x) { return x.t && x.t->ndim == 2 ? x : with_list(c, AX_OP_RESHAPE, x, 2, (int64_t[]){ x.t ? ax_shape_numel(x.t->ndim - 1, x.t->shape) : 0, x.t ? x.t->shape[x.t->ndim - 1] : 0 }, 0); }

/* d(input k) = a b, straight into the leaf's slot of the flat gradient when there is one: no temporary, no second pass. */
static void give_product(ax_grad *c, int k, ax_arg a, ax_arg b)
{
  bool accumulate;
  ax_tensor *slot = c->st == AX_OK ? ax_sink(c, k, &accumulate) : NULL;
  if (slot && slot->dtype == a.t->dtype && slot->ndim == 2 && a.t->storage != slot->storage && b.t->storage != slot->storage) {
    c->st = ax_run_into(AX_OP_MM, &(ax_args){ .n_in = 2, .in = (ax_tensor *[]){ a.t, b.t }, .a = { .n_list = -1, .accumulate = accumulate } }, slot);
    if (c->st == AX_OK) ax_sunk(c, k);
  } else give(c, k, bin(c, AX_OP_MM, a, b));
}

static void give_row_sum(ax_grad *c, int k, ax_arg g)
{
  bool accumulate;
  ax_tensor *slot = c->st == AX_OK ? ax_sink(c, k, &accumulate) : NULL;
  if (slot && slot->dtype == g.t->dtype && slot->ndim == 1 && g.t->storage != slot->storage) {
    c->st = ax_run_into(AX_OP_SUM, &(ax_args){ .n_in = 1, .in = &g.t, .a = { .n_list = 1, .list = { 0 }, .accumulate = accumulate } }, slot);
    if (c->st == AX_OK) ax_sunk(c, k);
  } else give(c, k, with_list(c, AX_OP_SUM, g, 1, (int64_t[]){ 0 }, 0));
}

RULE(mm)
{
  if (WANTS(0)) give_product(c, 0, G, t(c, IN(1)));
  if (WANTS(1)) give_product(c, 1, t(c, IN(0)), G);
}

RULE(bmm)
{
  if (WANTS(0)) give(c, 0, bin(c, AX_OP_BMM, G, with_ints(c, AX_OP_TRANSPOSE, IN(1), 1, 2, 0, 0)));
  if (WANTS(1)) give(c, 1, bin(c, AX_OP_BMM, with_ints(c, AX_OP_TRANSPOSE, IN(0), 1, 2, 0, 0), G));
}

RULE(linear) /* y = x w^T + b */
{
  const ax_arg g = flat_rows(c, G);
  if (WANTS(0)) give(c, 0, with_list(c, AX_OP_RESHAPE, bin(c, AX_OP_MM, g, IN(1)), META(0)->ndim, META(0)->shape, 0));
  if (WANTS(1)) give_product(c, 1, t(c, g), flat_rows(c, IN(0)));
  if (c->node->n_in > 2 && WANTS(2)) give_row_sum(c, 2, g);
}

/* ---- softmax and losses */

static ax_arg softmax_back(ax_grad *c, ax_op op, ax_arg g, ax_arg y)
{
  return call(c, op, 2, (ax_arg[]){ g, y }, &(ax_attrs){ .i = { A->i[0] }, .n_list = -1 });
}

RULE(softmax) { give(c, 0, softmax_back(c, AX_OP_SOFTMAX_BACKWARD, G, OUT(0))); }
RULE(log_softmax) { give(c, 0, softmax_back(c, AX_OP_LOG_SOFTMAX_BACKWARD, G, OUT(0))); }

RULE(softmax_backward) /* r = y (g - sum(g y)) */
{
  const ax_arg g = IN(0), y = IN(1);
  if (WANTS(0)) give(c, 0, softmax_back(c, AX_OP_SOFTMAX_BACKWARD, G, y));
  if (WANTS(1)) {
    const ax_arg inner = mul(c, G, sub(c, g, sum_dim(c, mul(c, g, y), A->i[0])));
    give(c, 1, sub(c, inner, mul(c, g, sum_dim(c, mul(c, G, y), A->i[0]))));
  }
}

RULE(log_softmax_backward) /* r = g - exp(y) sum(g) */
{
  const ax_arg p = un(c, AX_OP_EXP, IN(1));
  if (WANTS(0)) give(c, 0, sub(c, G, sum_dim(c, mul(c, G, p), A->i[0])));
  if (WANTS(1)) give(c, 1, un(c, AX_OP_NEG, mul(c, mul(c, G, p), sum_dim(c, IN(0), A->i[0]))));
}

RULE(cross_entropy)
{
  give(c, 0, call(c, AX_OP_CROSS_ENTROPY_BACKWARD, 4, (ax_arg[]){ G, IN(0), IN(1), OUT(1) }, &(ax_attrs){ .i = { A->i[0], A->i[1] }, .n_list = -1 }));
}

/* r = s (softmax(x) - onehot), where s is g over the count of rows that are not ignored (mean) or g (sum, none), and 0 in ignored rows */
RULE(cross_entropy_backward)
{
  const ax_arg x = IN(1), target = IN(2), lse = IN(3);
  const int64_t classes = META(1)->ndim - 1;
  if (WANTS(0)) {
    const ax_arg unit = call(c, AX_OP_CROSS_ENTROPY_BACKWARD, 4, (ax_arg[]){ filled(c, 0, 1), x, target, lse }, &(ax_attrs){ .i = { A->i[0], A->i[1] }, .n_list = -1 });
    const ax_arg per = mul(c, G, unit);
    give(c, 0, META(0)->ndim == 0 ? with_list(c, AX_OP_SUM, per, -1, NULL, 0) : with_list(c, AX_OP_SUM, per, 1, &classes, 0));
  }
  if (WANTS(1)) {
    ax_arg s = where(c, bin(c, AX_OP_NE, target, NUM((double)A->i[0])), IN(0), NUM(0));
    if (A->i[1] == 0) s = over(c, s, with_ints(c, AX_OP_SELECT, lse, 0, ax_shape_numel(META(2)->ndim, META(2)->shape), 0, 0));
    s = with_ints(c, AX_OP_UNSQUEEZE, s, META(2)->ndim, 0, 0, 0);
    const ax_attrs along = { .i = { classes }, .n_list = -1 };
    const ax_arg p = call(c, AX_OP_SOFTMAX, 1, &x, &along);
    give(c, 1, call(c, AX_OP_SOFTMAX_BACKWARD, 2, (ax_arg[]){ mul(c, G, s), p }, &along));
  }
}

/* ---- shape */

RULE(reshape_back) { give(c, 0, with_list(c, AX_OP_RESHAPE, G, META(0)->ndim, META(0)->shape, 0)); }
RULE(transpose) { give(c, 0, with_ints(c, AX_OP_TRANSPOSE, G, A->i[0], A->i[1], 0, 0)); }

RULE(permute)
{
  int64_t back[AX_MAX_DIMS];
  for (int d = 0; d < A->n_list; d++) back[A->list[d]] = d;
  give(c, 0, with_list(c, AX_OP_PERMUTE, G, A->n_list, back, 0));
}

static ax_arg into_zeros(ax_grad *c, ax_arg g, int64_t dim, int64_t start, int64_t step)
{
  ax_attrs a = { .i = { dim, start, step }, .n_list = META(0)->ndim };
  memcpy(a.list, META(0)->shape, sizeof a.list);
  return call(c, AX_OP_SLICE_BACKWARD, 1, &g, &a);
}

RULE(select) { give(c, 0, into_zeros(c, with_ints(c, AX_OP_UNSQUEEZE, G, A->i[0], 0, 0, 0), A->i[0], A->i[1], 1)); }
RULE(narrow) { give(c, 0, into_zeros(c, G, A->i[0], A->i[1], c->node->op == AX_OP_SLICE ? A->i[3] : 1)); }
RULE(slice_backward) { give(c, 0, with_ints(c, AX_OP_SLICE, G, A->i[0], A->i[1], META(0)->shape[A->i[0]], A->i[2])); }
RULE(diagonal) { give(c, 0, with_list(c, AX_OP_DIAGONAL_BACKWARD, G, META(0)->ndim, META(0)->shape, 0)); }
RULE(diagonal_backward) { give(c, 0, un(c, AX_OP_DIAGONAL, G)); }

RULE(cat)
{
  const int64_t dim = A->i[0];
  int64_t at = 0;
  for (int k = 0; k < c->node->n_in && c->st == AX_OK; k++) {
    const ax_meta *m = META(k);
    if (m->ndim == 1 && m->shape[0] == 0) continue;
    if (WANTS(k)) {
      give(c, k, with_ints(c, AX_OP_NARROW, G, dim, at, m->shape[dim], 0));
      if (c->st == AX_OK) ax_tensor_release(c->temps[--c->n_temps]); /* there may be more inputs than places for temporaries */
    }
    at += m->shape[dim];
  }
}

/* ---- index, random */

RULE(index_select)
{
  give(c, 0, call(c, AX_OP_INDEX_SELECT_BACKWARD, 2, (ax_arg[]){ G, IN(1) }, &(ax_attrs){ .i = { A->i[0], META(0)->shape[A->i[0]] }, .n_list = -1 }));
}

RULE(index_select_backward)
{
  give(c, 0, call(c, AX_OP_INDEX_SELECT, 2, (ax_arg[]){ G, IN(1) }, &(ax_attrs){ .i = { A->i[0] }, .n_list = -1 }));
}

RULE(dropout_apply) /* the same draw again: the mask is never stored */
{
  const ax_arg g = G;
  give(c, 0, call(c, AX_OP_DROPOUT_APPLY, 1, &g, A));
}

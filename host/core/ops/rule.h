/* What rules are written with: one file of rules for each family of rows, beside its part of the op
 * table.
 *
 * A rule `ax_infer_<name>` checks the arguments, sets the result's shape and type, and marks the
 * inputs that must be cast or made contiguous.  Messages start with the op's name and show the
 * shapes.  VIEW rules make the view; HOST and COMPOSITE rules do the work.
 *
 * A gradient `ax_grad_<name>` is built from op rows, so that it can itself be differentiated, and
 * reads as its formula: G is the gradient of the (first) result, IN(k) and OUT(k) are what the
 * forward pass saved or the number it was called with, NUM(v) is a constant.  Each helper returns a
 * tensor that the rule need not release; after a failure they do nothing, and the engine reports
 * the first one.  Sums over broadcast dims and casts back to an input's type are the engine's work,
 * not the rules'. */
#ifndef AX_RULE_H
#define AX_RULE_H

#include "core/ops/infer.h"
#include "core/ops/rules.h"

#include <math.h>
#include <string.h>

/* ---- for ax_infer_ */

#define TEXT(t) ax_shape_text((t)->ndim, (t)->shape, (char[AX_SHAPE_TEXT]){ 0 }, AX_SHAPE_TEXT)
#define TYPE(t) ax_dtype_name((ax_dtype)(t)->dtype)
#define INPUT(k) (q->args->in[k])

static inline void out_like(ax_infer *q, int k, ax_dtype dtype, int ndim, const int64_t *shape)
{
  q->out[k].dtype = dtype;
  q->out[k].ndim = ndim;
  if (ndim) memcpy(q->out[k].shape, shape, sizeof *shape * (size_t)ndim);
  if (q->n_out <= k) q->n_out = k + 1;
}

/* PyTorch's promotion: tensors with dims come first, then 0-d tensors, then numbers; a later kind
 * only counts when its category is higher.  A complex one makes the complex type of a floating
 * result, whatever its own precision. */
static inline ax_dtype promoted(const ax_infer *q, int from)
{
  int best[3] = { -1, -1, -1 }; /* with dims, 0-d, numbers */
  int result = -1;

  for (int k = from; k < q->args->n_in; k++) {
    const ax_tensor *t = INPUT(k);
    int kind = 2, dtype;
    if (t) {
      kind = t->ndim > 0 ? 0 : 1;
      dtype = t->dtype;
    } else
      dtype = q->args->booleans >> k & 1 ? AX_BOOL : q->args->integral >> k & 1 ? AX_I64 : ax_default_dtype;
    best[kind] = best[kind] < 0 ? dtype : (int)ax_dtype_promote((ax_dtype)best[kind], (ax_dtype)dtype);
  }
  for (int kind = 0; kind < 3; kind++) {
    if (best[kind] < 0) continue;
    if (result < 0) result = best[kind];
    else if (ax_dtype_category((ax_dtype)best[kind]) > ax_dtype_category((ax_dtype)result))
      result = best[kind] < AX_C64 || !ax_is_float((ax_dtype)result) ? best[kind]
               : result == AX_F64                                    ? AX_C128
                                                                     : AX_C64;
  }
  return (ax_dtype)result;
}

/* The type of the result for inputs of type d: float32 for half types where ax_attrs.wide is
 * set. */
static inline ax_dtype result_dtype(const ax_infer *q, ax_dtype d)
{
  return q->a.wide && ax_is_half(d) ? AX_F32 : d;
}

/* Joint shape of the operands from `from` on (numbers have none). */
static inline ax_status joint_shape(ax_infer *q, int from, int *ndim, int64_t *shape)
{
  ax_status st = AX_OK;
  bool any = from > 0;
  for (int k = from; k < q->args->n_in; k++) {
    const ax_tensor *t = INPUT(k);
    if (!t) continue;
    if (!any) {
      *ndim = t->ndim;
      memcpy(shape, t->shape, sizeof *shape * (size_t)t->ndim);
      any = true;
    } else if ((st = ax_shape_broadcast(q->name, *ndim, shape, t->ndim, t->shape, ndim, shape)) != AX_OK)
      break;
  }
  return st;
}

static inline ax_status elementwise(ax_infer *q, ax_dtype compute, ax_dtype result)
{
  int ndim = 0;
  int64_t shape[AX_MAX_DIMS];
  const ax_status st = joint_shape(q, 0, &ndim, shape);
  if (st != AX_OK) return st;
  q->compute = compute;
  q->cast = ~0u;
  out_like(q, 0, result, ndim, shape);
  return AX_OK;
}

static inline ax_status need_dtype(const ax_infer *q, const ax_tensor *t, ax_dtype dtype, const char *what)
{
  if (t->dtype == dtype) return AX_OK;
  return ax_fail(AX_EDTYPE, "%s: %s must be %s, got %s%s", q->name, what, ax_dtype_name(dtype), TYPE(t),
                 dtype == AX_I64 && ax_is_float((ax_dtype)t->dtype) ? " (write x:long() for x)" : "");
}

/* Positions along a dim in input k: int64, or int32, which is widened for the kernel. */
static inline ax_status need_positions(ax_infer *q, int k, const char *what)
{
  const ax_tensor *t = INPUT(k);
  q->positions |= 1u << k;
  /* no positions are of any type: an empty list makes a float32 tensor */
  if (t->dtype == AX_I64 || t->dtype == AX_I32 || t->numel == 0) return AX_OK;
  return ax_fail(AX_EDTYPE, "%s: %s must be int64 or int32, got %s%s", q->name, what, TYPE(t),
                 ax_is_float((ax_dtype)t->dtype) ? " (write x:long() for x)" : "");
}

static inline ax_status need_float(const ax_infer *q, const ax_tensor *t)
{
  if (ax_is_float((ax_dtype)t->dtype)) return AX_OK;
  return ax_fail(AX_EDTYPE, "%s: expected a floating-point tensor, got %s %s", q->name, TYPE(t), TEXT(t));
}

/* A count or size that the user gives: within lo..hi.  Kernels and libraries multiply such numbers,
 * some of them as int. */
static inline ax_status need_within(const char *name, const char *what, int64_t v, int64_t lo, int64_t hi)
{
  if (v < lo)
    return ax_fail(AX_ERANGE, "%s: %s must be at least %lld, got %lld", name, what, (long long)lo,
                   (long long)v);
  if (v > hi)
    return ax_fail(AX_ERANGE, "%s: %s must be at most %lld, got %lld", name, what, (long long)hi,
                   (long long)v);
  return AX_OK;
}

/* ---- for COMPOSITE and HOST rules: calling one op */

/* op(x, sizes or dims) with one list. */
static inline ax_status run_list(ax_op op, ax_tensor *x, int n, const int64_t *list, ax_tensor **out)
{
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  ax_args args = { .n_in = 1, .in = &x, .a = { .n_list = n } };
  if (n > 0) memcpy(args.a.list, list, sizeof *list * (size_t)n);
  const ax_status st = ax_run(op, &args, results);
  *out = results[0];
  return st;
}

static inline ax_status run_with(ax_op op, ax_tensor *x, const ax_attrs *a, ax_tensor **out)
{
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  const ax_args args = { .n_in = 1, .in = &x, .a = *a };
  const ax_status st = ax_run(op, &args, results);
  *out = results[0];
  return st;
}

static inline ax_status run_narrow(ax_tensor *x, int64_t dim, int64_t start, int64_t length, ax_tensor **out)
{
  return run_with(AX_OP_NARROW, x, &AX_ATTRS(narrow, .dim = dim, .start = start, .length = length), out);
}
static inline ax_status run_select(ax_tensor *x, int64_t dim, int64_t index, ax_tensor **out)
{
  return run_with(AX_OP_SELECT, x, &AX_ATTRS(select, .dim = dim, .index = index), out);
}
static inline ax_status run_transpose(ax_tensor *x, int64_t dim0, int64_t dim1, ax_tensor **out)
{
  return run_with(AX_OP_TRANSPOSE, x, &AX_ATTRS(transpose, .dim0 = dim0, .dim1 = dim1), out);
}
static inline ax_status run_unsqueeze(ax_tensor *x, int64_t dim, ax_tensor **out)
{
  return run_with(AX_OP_UNSQUEEZE, x, &AX_ATTRS(unsqueeze, .dim = dim), out);
}
static inline ax_status run_cat(ax_tensor *left, ax_tensor *right, int64_t dim, ax_tensor **out)
{
  ax_tensor *results[AX_MAX_OUT] = { 0 }, *list[2] = { left, right };
  const ax_status st =
      ax_run(AX_OP_CAT, &(ax_args){ .n_in = 2, .in = list, .a = AX_ATTRS(cat, .dim = dim) }, results);
  *out = results[0];
  return st;
}

/* An integer type (bool is none)? */
static inline bool is_whole(const ax_tensor *t)
{
  return t->dtype == AX_I64 || t->dtype == AX_I32 || t->dtype == AX_U8;
}
/* *most times the largest |element| of t, of an integer type. */
ax_status run_magnitude(ax_tensor *t, double *most);
/* The row of float64 in place of integers, all of one type, and its first result in that type.
 * most: what a sum may reach; beyond 2^53 float64 is not exact, and the call is refused. */
ax_status run_whole(ax_infer *q, double most);

/* Takes y (released) back to as many dims as x had: without the batch and, for signals (dims is 1),
 * without the height that were added. */
ax_status run_narrow_as(const ax_tensor *x, int dims, ax_tensor *y, ax_tensor **out);

/* x on device `d`: x itself when it is there already. */
static inline ax_status bring(ax_tensor *x, ax_device d, ax_tensor **out)
{
  if (!ax_same_device(x->device, d))
    return run_with(AX_OP_TO_DEVICE, x, &AX_ATTRS(to_device, .kind = d.kind, .index = d.index), out);
  *out = ax_tensor_retain(x);
  return AX_OK;
}

/* ---- for ax_grad_ */

#define RULE(name) void ax_grad_##name(ax_grad *c)
#define G ((ax_arg){ .t = c->g[0] })
#define NUM(v) number(v)
#define WANTS(k) ax_wants(c, k)

static inline ax_arg number(double v)
{
  return (ax_arg){ .num = v, .integral = isfinite(v) && v == floor(v) };
}

static inline ax_arg keep(ax_grad *c, ax_status st, ax_tensor *t)
{
  if (st == AX_OK && c->n_temps == AX_RULE_TEMPS)
    st = ax_fail(AX_EGRAD, "gradient of %s: too many steps in its rule", ax_ops[c->node->op].name);
  if (st != AX_OK) {
    ax_tensor_release(t);
    c->st = st;
    return (ax_arg){ 0 };
  }
  c->temps[c->n_temps++] = t;
  return (ax_arg){ .t = t };
}

/* op(operands) with attributes.  An operand that is neither a tensor nor meant as a number cannot
 * occur: rules use only what their rows save. */
static inline ax_arg call(ax_grad *c, ax_op op, int n, const ax_arg *v, const ax_attrs *a)
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
  for (int k = 1; k < AX_MAX_OUT; k++) ax_tensor_release(results[k]);
  return keep(c, st, results[0]);
}

static inline ax_arg un(ax_grad *c, ax_op op, ax_arg x) { return call(c, op, 1, &x, NULL); }
static inline ax_arg bin(ax_grad *c, ax_op op, ax_arg a, ax_arg b)
{
  return call(c, op, 2, (ax_arg[]){ a, b }, NULL);
}
static inline ax_arg mul(ax_grad *c, ax_arg a, ax_arg b) { return bin(c, AX_OP_MUL, a, b); }
static inline ax_arg sub(ax_grad *c, ax_arg a, ax_arg b) { return bin(c, AX_OP_SUB, a, b); }
static inline ax_arg over(ax_grad *c, ax_arg a, ax_arg b) { return bin(c, AX_OP_DIV, a, b); }
static inline ax_arg where(ax_grad *c, ax_arg cond, ax_arg a, ax_arg b)
{
  return call(c, AX_OP_WHERE, 3, (ax_arg[]){ cond, a, b }, NULL);
}

static inline ax_arg call1(ax_grad *c, ax_op op, ax_arg x, const ax_attrs *a)
{
  return call(c, op, 1, &x, a);
}

static inline ax_arg with_list(ax_grad *c, ax_op op, ax_arg x, int n, const int64_t *list)
{
  ax_attrs a = { .n_list = n };
  if (n > 0) memcpy(a.list, list, sizeof *list * (size_t)n);
  return call1(c, op, x, &a);
}

static inline ax_arg narrow(ax_grad *c, ax_arg x, int64_t dim, int64_t start, int64_t length)
{
  return call1(c, AX_OP_NARROW, x, &AX_ATTRS(narrow, .dim = dim, .start = start, .length = length));
}
static inline ax_arg select_at(ax_grad *c, ax_arg x, int64_t dim, int64_t index)
{
  return call1(c, AX_OP_SELECT, x, &AX_ATTRS(select, .dim = dim, .index = index));
}
static inline ax_arg transpose(ax_grad *c, ax_arg x, int64_t dim0, int64_t dim1)
{
  return call1(c, AX_OP_TRANSPOSE, x, &AX_ATTRS(transpose, .dim0 = dim0, .dim1 = dim1));
}
static inline ax_arg unsqueeze(ax_grad *c, ax_arg x, int64_t dim)
{
  return call1(c, AX_OP_UNSQUEEZE, x, &AX_ATTRS(unsqueeze, .dim = dim));
}

/* op, a reduction over a list of dims (n is -1: over all). */
static inline ax_arg reduce_over(ax_grad *c, ax_op op, ax_arg x, int n, const int64_t *dims, bool keepdim)
{
  ax_attrs a = { .reduction = { .keepdim = keepdim }, .n_list = n };
  if (n > 0) memcpy(a.list, dims, sizeof *dims * (size_t)n);
  return call1(c, op, x, &a);
}
static inline ax_arg sum_dim(ax_grad *c, ax_arg x, int64_t dim)
{
  return reduce_over(c, AX_OP_SUM, x, 1, &dim, true);
}

/* A saved input, or the number that stood in its place. */
static inline ax_arg saved_in(ax_grad *c, int k)
{
  const ax_args *args = &c->node->args;
  if (args->scalars >> k & 1) return (ax_arg){ .num = args->num[k], .integral = args->integral >> k & 1 };
  if (!c->in[k] && c->st == AX_OK)
    c->st = ax_fail(AX_EGRAD, "gradient of %s: argument %d was not saved", ax_ops[c->node->op].name, k + 1);
  return (ax_arg){ .t = c->in[k] };
}

static inline ax_arg saved_out(ax_grad *c, int k)
{
  if (!c->out[k] && c->st == AX_OK)
    c->st = ax_fail(AX_EGRAD, "gradient of %s: result %d was not saved", ax_ops[c->node->op].name, k + 1);
  return (ax_arg){ .t = c->out[k] };
}

#define IN(k) saved_in(c, k)
#define OUT(k) saved_out(c, k)
#define META(k) (&c->node->in_meta[k])
#define A (&c->node->args.a)

static inline void give(ax_grad *c, int k, ax_arg v)
{
  if (c->st == AX_OK && v.t) c->d[k] = ax_tensor_retain(v.t);
}

/* rule.c: d(input k) = a b, and d(input k) = the sum of g's rows: straight into the leaf's slot of
 * the flat gradient where there is one. */
void give_product(ax_grad *c, int k, ax_arg a, ax_arg b);
void give_row_sum(ax_grad *c, int k, ax_arg g);
void give_channel_sum(ax_grad *c, int k, ax_arg g); /* over all dims but the second */
/* The gradient of fused backward rows that cannot be differentiated again: raises by name. */
RULE(once);

/* A constant like input k.  (g * 0 would be NaN where g is infinite.) */
static inline ax_arg filled(ax_grad *c, int k, double v)
{
  ax_tensor *t = NULL;
  const ax_tensor *like = c->g[0]; /* any of several results may have received the gradient */
  for (int i = 1; !like && i < c->node->n_out; i++) like = c->g[i];
  if (c->st != AX_OK) return (ax_arg){ 0 };
  ax_status st = ax_tensor_new_on(like->device, META(k)->dtype, META(k)->ndim, META(k)->shape, &t);
  if (st == AX_OK) st = ax_fill(t, v);
  return keep(c, st, t);
}

#endif

/* Rules and gradients of reductions. */
#include "core/ops/rule.h"

static ax_status reduced(ax_infer *q, uint32_t axes, bool keepdim, ax_dtype dtype, int k)
{
  const ax_tensor *x = INPUT(0);
  int64_t shape[AX_MAX_DIMS];
  int n = 0;
  for (int d = 0; d < x->ndim; d++)
    if (!(axes >> d & 1)) shape[n++] = x->shape[d];
    else if (keepdim) shape[n++] = 1;
  q->axes = axes;
  out_like(q, k, dtype, n, shape);
  return AX_OK;
}

static ax_status listed_axes(const ax_infer *q, uint32_t *axes)
{
  const ax_tensor *x = INPUT(0);
  *axes = 0;
  if (q->a.n_list <= 0) { /* not given, or an empty list: all dims, as in PyTorch */
    *axes = (1u << x->ndim) - 1;
    return AX_OK;
  }
  for (int k = 0; k < q->a.n_list; k++) {
    const int64_t d = q->a.list[k];
    if (x->ndim == 0 && d == 0) continue; /* a 0-d tensor takes dim 1, as in PyTorch */
    if (d < 0 || d >= x->ndim)
      return ax_fail(AX_ERANGE, "%s: dim %lld is outside 1..%d", q->name, (long long)d + 1, x->ndim);
    if (*axes >> d & 1) return ax_fail(AX_EINVAL, "%s: dim %lld is listed twice", q->name, (long long)d + 1);
    *axes |= 1u << d;
  }
  return AX_OK;
}

ax_status ax_infer_sum(ax_infer *q)
{
  uint32_t axes;
  const ax_status st = listed_axes(q, &axes);
  if (st != AX_OK) return st;
  return reduced(q, axes, q->a.reduction.keepdim,
                 ax_is_float((ax_dtype)INPUT(0)->dtype) ? result_dtype(q, (ax_dtype)INPUT(0)->dtype) : AX_I64,
                 0);
}

ax_status ax_infer_mean(ax_infer *q)
{
  uint32_t axes;
  ax_status st;
  if (!ax_is_float((ax_dtype)INPUT(0)->dtype))
    return ax_fail(AX_EDTYPE,
                   "%s: expected a floating-point tensor, got %s; cast it first, as in x:float():%s()",
                   q->name, TYPE(INPUT(0)), q->name);
  if ((st = listed_axes(q, &axes)) != AX_OK) return st;
  return reduced(q, axes, q->a.reduction.keepdim, result_dtype(q, (ax_dtype)INPUT(0)->dtype), 0);
}

/* Integers count as the default type. */
ax_status ax_infer_log_of_sums(ax_infer *q)
{
  uint32_t axes;
  ax_status st;
  if (ax_is_float((ax_dtype)INPUT(0)->dtype)) return ax_infer_mean(q);
  if ((st = listed_axes(q, &axes)) != AX_OK) return st;
  q->compute = ax_default_dtype;
  q->cast = 1;
  return reduced(q, axes, q->a.reduction.keepdim, ax_default_dtype, 0);
}

ax_status ax_infer_truth(ax_infer *q)
{
  uint32_t axes;
  const ax_status st = listed_axes(q, &axes);
  if (st != AX_OK) return st;
  return reduced(q, axes, q->a.reduction.keepdim, AX_BOOL, 0);
}

static ax_status one_axis(const ax_infer *q, uint32_t *axes)
{
  const ax_tensor *x = INPUT(0);
  const int64_t d = q->a.along_one.dim;
  if (d == AX_NO_DIM) {
    *axes = (1u << x->ndim) - 1;
    if (x->numel == 0)
      return ax_fail(AX_ESHAPE, "%s: a tensor of shape %s has no elements to choose from", q->name, TEXT(x));
    return AX_OK;
  }
  *axes = x->ndim ? 1u << d : 0;
  if (x->ndim && x->shape[d] == 0)
    return ax_fail(AX_ESHAPE, "%s: dim %lld of shape %s has size 0: nothing to choose from", q->name,
                   (long long)d + 1, TEXT(x));
  return AX_OK;
}

ax_status ax_infer_minmax(ax_infer *q)
{
  uint32_t axes;
  const ax_status st = one_axis(q, &axes);
  if (st != AX_OK) return st;
  reduced(q, axes, q->a.along_one.keepdim, (ax_dtype)INPUT(0)->dtype, 0);
  if (q->a.along_one.dim != AX_NO_DIM) reduced(q, axes, q->a.along_one.keepdim, AX_I64, 1);
  return AX_OK;
}

ax_status ax_infer_arg(ax_infer *q)
{
  uint32_t axes;
  const ax_status st = one_axis(q, &axes);
  if (st != AX_OK) return st;
  return reduced(q, axes, q->a.along_one.keepdim, AX_I64, 0);
}

ax_status ax_infer_count(ax_infer *q)
{
  uint32_t axes;
  const ax_status st = listed_axes(q, &axes);
  if (st != AX_OK) return st;
  return reduced(q, axes, q->a.reduction.keepdim, AX_I64, 0);
}

/* How many elements go into a result. */
static int64_t group_size(const ax_tensor *x, uint32_t axes)
{
  int64_t n = 1;
  for (int d = 0; d < x->ndim; d++)
    if (axes >> d & 1) n *= x->shape[d];
  return n;
}

ax_status ax_infer_minmax_over(ax_infer *q)
{
  uint32_t axes;
  const ax_status st = listed_axes(q, &axes);
  if (st != AX_OK) return st;
  if (group_size(INPUT(0), axes) == 0)
    return ax_fail(AX_ESHAPE, "%s: nothing to choose from over these dims of shape %s", q->name,
                   TEXT(INPUT(0)));
  return reduced(q, axes, q->a.reduction.keepdim, (ax_dtype)INPUT(0)->dtype, 0);
}

ax_status ax_infer_norm(ax_infer *q)
{
  const ax_status st = ax_infer_mean(q);
  if (st != AX_OK) return st;
  if (isnan(q->a.norm.p)) return ax_fail(AX_EINVAL, "norm: p is not a number");
  if (isinf(q->a.norm.p) && group_size(INPUT(0), q->axes) == 0)
    return ax_fail(AX_ESHAPE,
                   "norm: p is infinite and there is nothing to choose from over these dims of shape %s",
                   TEXT(INPUT(0)));
  return AX_OK;
}

ax_status ax_infer_prod_of(ax_infer *q)
{
  const ax_dtype own = (ax_dtype)INPUT(0)->dtype;
  uint32_t axes;
  const ax_status st = listed_axes(q, &axes);
  if (st != AX_OK) return st;
  return reduced(q, axes, q->a.prod_of.keepdim, ax_is_float(own) ? own : AX_I64, 0);
}

/* ---- made up of other rows */

/* Does a kernel alone compute the products of x?  Their gradients are those of the steps. */
static bool in_one_pass(ax_tensor *x)
{
  return !ax_would_record(1, &x) && !ax_is_complex((ax_dtype)x->dtype);
}

/* Writes the values that `op`, a kernel of one pass, computes of x to `into`.  A result has one
 * value, whether its steps are recorded or not. */
static ax_status take_values(ax_tensor *x, ax_op op, const ax_attrs *a, ax_tensor *into)
{
  ax_tensor *once = NULL;
  const bool former = ax_grad_set_enabled(false);
  ax_status st = run_with(op, x, a, &once);
  if (st == AX_OK) st = ax_copy(into, once);
  ax_grad_set_enabled(former);
  ax_tensor_release(once);
  return st;
}

/* Takes *t, gives the op's result in its place. */
static ax_status replace(ax_tensor **t, ax_op op, const ax_attrs *a)
{
  ax_tensor *in = *t;
  const ax_status st = run_with(op, in, a, t);
  ax_tensor_release(in);
  return st;
}

/* A product over a dim of size 0: ones, recorded as a sum of nothing and 1. */
static ax_status ones_of_nothing(ax_tensor **t, int d)
{
  const ax_attrs over = { .reduction = { .keepdim = true }, .n_list = 1, .list = { d } };
  ax_tensor *zeros;
  ax_status st = replace(t, AX_OP_SUM, &over);

  if (st != AX_OK) return st;
  zeros = *t;
  *t = NULL;
  st = ax_run_num(AX_OP_ADD, zeros, 1, t);
  ax_tensor_release(zeros);
  return st;
}

/* Multiplies the halves of dim d of *t, of `size`; the last one of an odd number stays. */
static ax_status multiply_halves(ax_tensor **t, int d, int64_t size)
{
  ax_tensor *left = NULL, *right = NULL, *both = NULL, *rest = NULL, *all = NULL;
  ax_status st;

  AX_TRY(run_narrow(*t, d, 0, size / 2, &left));
  AX_TRY(run_narrow(*t, d, size / 2, size / 2, &right));
  AX_TRY(ax_run2(AX_OP_MUL, left, right, &both));
  if (size % 2) {
    AX_TRY(run_narrow(*t, d, size - 1, 1, &rest));
    AX_TRY(run_cat(both, rest, d, &all));
  } else all = ax_tensor_retain(both);
  ax_tensor_release(*t);
  *t = all;
out:
  ax_tensor_release(left), ax_tensor_release(right), ax_tensor_release(both), ax_tensor_release(rest);
  return st;
}

/* Halves are multiplied until one position is left: the rounding of a tree, and a gradient that is
 * right where elements are 0, since no step divides. */
ax_status ax_infer_prod(ax_infer *q)
{
  ax_tensor *x = INPUT(0), *now = NULL;
  const ax_dtype own = (ax_dtype)x->dtype, in = ax_is_half(own)        ? AX_F32
                                                : ax_has_gradient(own) ? own
                                                                       : AX_I64;
  ax_attrs flat = { .n_list = 0 };
  uint32_t axes;
  bool multiplied = false;
  ax_status st;

  ax_attrs one_pass = { .n_list = q->a.n_list, .prod_of = { .keepdim = q->a.prod.keepdim } };
  memcpy(one_pass.list, q->a.list, sizeof one_pass.list);
  if (in_one_pass(x)) return run_with(AX_OP_PROD_OF, x, &one_pass, &q->result[0]);
  AX_TRY(listed_axes(q, &axes));
  AX_TRY(ax_cast(x, in, &now));
  for (int d = 0; d < x->ndim; d++) {
    if (!(axes >> d & 1)) continue;
    if (x->shape[d] == 0) AX_TRY(ones_of_nothing(&now, d));
    multiplied |= x->shape[d] > 1;
    for (int64_t size = x->shape[d]; size > 1; size = size / 2 + size % 2)
      AX_TRY(multiply_halves(&now, d, size));
  }
  for (int d = 0; d < x->ndim; d++)
    if (!(axes >> d & 1)) flat.list[flat.n_list++] = x->shape[d];
    else if (q->a.prod.keepdim) flat.list[flat.n_list++] = 1;
  AX_TRY(replace(&now, AX_OP_RESHAPE, &flat));
  if (in != own && ax_is_float(own)) AX_TRY(replace(&now, AX_OP_CAST, &AX_ATTRS(cast, .dtype = own)));
  if (multiplied && !ax_is_complex(own)) AX_TRY(take_values(x, AX_OP_PROD_OF, &one_pass, now));
  q->result[0] = ax_tensor_retain(now);
out:
  ax_tensor_release(now);
  return st;
}

ax_status ax_infer_nansum(ax_infer *q)
{
  ax_tensor *x = INPUT(0), *nan = NULL, *filled = NULL, *results[AX_MAX_OUT] = { 0 };
  ax_attrs a = q->a;
  ax_status st;

  AX_TRY(ax_run1(AX_OP_ISNAN, x, &nan));
  AX_TRY(ax_run(AX_OP_MASKED_FILL,
                &(ax_args){ .n_in = 2, .in = (ax_tensor *[]){ x, nan }, .a = { .n_list = -1 } }, results));
  filled = results[0];
  st = ax_run(AX_OP_SUM, &(ax_args){ .n_in = 1, .in = &filled, .a = a }, results);
  q->result[0] = results[0];
out:
  ax_tensor_release(nan);
  ax_tensor_release(filled);
  return st;
}

/* ---- gradients */

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
  return with_list(c, AX_OP_EXPAND, with_list(c, AX_OP_RESHAPE, g, m->ndim, shape), m->ndim, m->shape);
}

/* Reduces x over the call's dims, which are kept with size 1. */
static ax_arg kept(ax_grad *c, ax_op op, ax_arg x) { return reduce_over(c, op, x, A->n_list, A->list, true); }
static ax_arg spread_like(ax_grad *c, ax_arg g) { return spread(c, g, A->n_list, A->list, 1); }

RULE(sum) { give(c, 0, spread(c, G, A->n_list, A->list, 1)); }

RULE(mean)
{
  const double kept = c->node->out_meta[0].ndim
                          ? (double)ax_shape_numel(c->node->out_meta[0].ndim, c->node->out_meta[0].shape)
                          : 1;
  const double all = (double)ax_shape_numel(META(0)->ndim, META(0)->shape);
  give(c, 0, spread(c, G, A->n_list, A->list, kept / all));
}

/* max and min: with a dim, g goes to the chosen position; without, it is shared by all equal
 * elements, as in PyTorch. */
RULE(select_minmax)
{
  const ax_meta *m = META(0);
  const int64_t dim = A->along_one.dim;
  int64_t shape[AX_MAX_DIMS];

  if (dim == AX_NO_DIM || m->ndim == 0) {
    const ax_op extreme = c->node->op == AX_OP_MAX ? AX_OP_AMAX : AX_OP_AMIN;
    const ax_arg y = with_list(c, extreme, IN(0), -1, NULL);
    const ax_arg both_nan = bin(c, AX_OP_LOGICAL_AND, un(c, AX_OP_ISNAN, IN(0)), un(c, AX_OP_ISNAN, y));
    const ax_arg chosen = bin(c, AX_OP_LOGICAL_OR, bin(c, AX_OP_EQ, IN(0), y), both_nan);
    const ax_arg count = with_list(c, AX_OP_SUM, chosen, -1, NULL);
    give(c, 0, where(c, chosen, over(c, spread(c, G, -1, NULL, 1), count), NUM(0)));
    return;
  }
  ax_tensor *ramp = NULL; /* 0 .. n-1 along dim */
  for (int d = 0; d < m->ndim; d++) shape[d] = d == dim ? m->shape[d] : 1;
  ax_status st = ax_tensor_new_on(c->g[0]->device, AX_I64, m->ndim, shape, &ramp);
  if (st == AX_OK)
    st = ax_run_into(AX_OP_ARANGE, &(ax_args){ .a = AX_ATTRS(arange, .start = 0, .step = 1) }, ramp);
  const ax_arg along = keep(c, st, ramp);
  memcpy(shape, m->shape, sizeof shape);
  shape[dim] = 1;
  const ax_arg at = with_list(c, AX_OP_RESHAPE, OUT(1), m->ndim, shape);
  give(c, 0, where(c, bin(c, AX_OP_EQ, along, at), spread(c, G, 1, &dim, 1), NUM(0)));
}

/* amax, amin: g shared by all elements equal to the result. */
RULE(minmax_over)
{
  const ax_arg y = spread_like(c, OUT(0)), x = IN(0);
  const ax_arg both_nan = bin(c, AX_OP_LOGICAL_AND, un(c, AX_OP_ISNAN, x), un(c, AX_OP_ISNAN, y));
  const ax_arg chosen = bin(c, AX_OP_LOGICAL_OR, bin(c, AX_OP_EQ, x, y), both_nan);
  give(c, 0, where(c, chosen, over(c, spread_like(c, G), kept(c, AX_OP_SUM, chosen)), NUM(0)));
}

/* g 2 (x - mean) / (n - correction).  Where nothing is left to divide by, the variance is infinite;
 * PyTorch gives all elements but those at the mean the same infinite slope. */
static void grad_var(ax_grad *c, ax_arg g)
{
  const double kept_n = c->node->out_meta[0].ndim
                            ? (double)ax_shape_numel(c->node->out_meta[0].ndim, c->node->out_meta[0].shape)
                            : 1;
  const double n = (double)ax_shape_numel(META(0)->ndim, META(0)->shape) / kept_n - A->deviation.correction;
  const ax_arg off = sub(c, IN(0), kept(c, AX_OP_MEAN, IN(0)));
  give(c, 0,
       n > 0 ? mul(c, spread_like(c, mul(c, g, NUM(2 / n))), off)
             : mul(c, spread_like(c, g), mul(c, un(c, AX_OP_ABS, off), NUM(INFINITY))));
}
RULE(var) { grad_var(c, G); }
RULE(std)
{
  grad_var(c, where(c, bin(c, AX_OP_EQ, OUT(0), NUM(0)), NUM(0), over(c, G, mul(c, OUT(0), NUM(2)))));
}

RULE(vector_norm) /* g x |x|^(p-2) / y^(p-1); 0 where that is 0 / 0 */
{
  const double p = A->norm.p;
  const ax_arg x = IN(0), y = spread_like(c, OUT(0)), g = spread_like(c, G);
  if (p == 0) give(c, 0, filled(c, 0, 0)); /* a count: flat */
  else if (p == 1) give(c, 0, mul(c, g, un(c, AX_OP_SIGN, x)));
  else if (p == 2) { /* in the shape of y as far as it goes: x is large beside it */
    const ax_arg share = where(c, bin(c, AX_OP_EQ, OUT(0), NUM(0)), NUM(0), over(c, G, OUT(0)));
    give(c, 0, mul(c, x, spread_like(c, share)));
  } else if (isinf(p)) {
    const ax_arg chosen = bin(c, AX_OP_EQ, un(c, AX_OP_ABS, x), y);
    const ax_arg share = over(c, g, kept(c, AX_OP_SUM, chosen));
    give(c, 0, where(c, chosen, mul(c, share, un(c, AX_OP_SIGN, x)), NUM(0)));
  } else {
    const ax_arg power = bin(c, AX_OP_POW, un(c, AX_OP_ABS, x), NUM(p - 1));
    const ax_arg d = mul(c, mul(c, g, un(c, AX_OP_SIGN, x)), mul(c, power, bin(c, AX_OP_POW, y, NUM(1 - p))));
    give(c, 0, where(c, bin(c, AX_OP_EQ, x, NUM(0)), NUM(0), d));
  }
}

RULE(logsumexp) /* g exp(x - y), 0 where all of it is -infinity */
{
  const ax_arg y = where(c, bin(c, AX_OP_EQ, OUT(0), NUM(-INFINITY)), NUM(0), OUT(0));
  give(c, 0, mul(c, spread_like(c, G), un(c, AX_OP_EXP, sub(c, IN(0), spread_like(c, y)))));
}

/* Rules and gradients of pointwise rows. */
#include "core/ops/float8.h"
#include "core/ops/rule.h"

/* ---- pointwise */

/* Two tensors of one type and shape: most of what is ever called. */
static bool alike(const ax_infer *q)
{
  if (q->args->n_in != 2) return false;
  const ax_tensor *a = INPUT(0), *b = INPUT(1);
  return a && b && a->dtype == b->dtype && ax_same_shape(a, b->ndim, b->shape);
}

ax_status ax_infer_promote(ax_infer *q)
{
  if (alike(q) && ax_has_gradient((ax_dtype)INPUT(0)->dtype) && !q->a.wide) {
    q->compute = (ax_dtype)INPUT(0)->dtype;
    out_like(q, 0, q->compute, INPUT(0)->ndim, INPUT(0)->shape);
    return AX_OK;
  }
  const ax_dtype d = result_dtype(q, promoted(q, 0));
  if (d == AX_BOOL && (q->op == AX_OP_NEG || q->op == AX_OP_SUB))
    return ax_fail(AX_EDTYPE, "%s: not defined for bool; use logical_not or logical_xor", q->name);
  return elementwise(q, d, d);
}

ax_status ax_infer_floats(ax_infer *q)
{
  ax_dtype d = result_dtype(q, promoted(q, 0));
  if (!ax_has_gradient(d)) d = ax_default_dtype;
  return elementwise(q, d, d);
}

/* v without what is behind its point, as in PyTorch, and within the integer type. */
static double cut(ax_dtype d, double v)
{
  const double most = d == AX_I64   ? 0x1.fffffffffffffp62
                      : d == AX_I32 ? 0x1.fffffffcp30
                                    : 255,
               least = d == AX_I64   ? -0x1p63
                       : d == AX_I32 ? -0x1p31
                                     : 0;
  return fmin(most, fmax(least, trunc(v)));
}

/* Integers keep their type. */
ax_status ax_infer_limits(ax_infer *q)
{
  const ax_dtype d = (ax_dtype)INPUT(0)->dtype;
  if (q->op == AX_OP_HARDTANH && !(q->a.hardtanh.min_val <= q->a.hardtanh.max_val))
    return ax_fail(AX_ERANGE, "%s: min_val (%g) must not be above max_val (%g)", q->name,
                   q->a.hardtanh.min_val, q->a.hardtanh.max_val);
  if (!is_whole(INPUT(0))) return ax_infer_floats(q);
  if (q->op == AX_OP_HARDTANH) {
    q->a.hardtanh.min_val = cut(d, q->a.hardtanh.min_val);
    q->a.hardtanh.max_val = cut(d, q->a.hardtanh.max_val);
  } else if (q->op == AX_OP_THRESHOLD) {
    const double value = q->a.threshold.value;
    q->a.threshold.threshold = cut(d, q->a.threshold.threshold);
    q->a.threshold.value = cut(d, value);
    if (q->a.threshold.value != trunc(value))
      return ax_fail(AX_EDTYPE, "threshold: value %g does not fit a tensor of %s", value, ax_dtype_name(d));
  }
  return elementwise(q, d, d);
}

ax_status ax_infer_square(ax_infer *q)
{
  if (INPUT(0)->dtype == AX_BOOL) return elementwise(q, AX_I64, AX_I64);
  return ax_infer_promote(q);
}

ax_status ax_infer_magnitude(ax_infer *q)
{
  const ax_dtype d = (ax_dtype)INPUT(0)->dtype;
  return ax_is_complex(d) ? elementwise(q, d, ax_part_dtype(d)) : ax_infer_promote(q);
}

/* x + value * ..: an integer keeps its type only with a whole value. */
ax_status ax_infer_addc(ax_infer *q)
{
  const ax_dtype d = promoted(q, 0);
  if (d == AX_BOOL) return ax_fail(AX_EDTYPE, "%s: not defined for bool", q->name);
  if (!ax_has_gradient(d) && q->a.addcmul.value != floor(q->a.addcmul.value))
    return ax_fail(AX_EDTYPE, "%s: value %g does not fit tensors of %s", q->name, q->a.addcmul.value,
                   ax_dtype_name(d));
  return elementwise(q, d, d);
}

ax_status ax_infer_bits(ax_infer *q)
{
  const ax_dtype d = promoted(q, 0);
  if (ax_is_float(d))
    return ax_fail(AX_EDTYPE, "%s: expected integers or bool, got %s", q->name, ax_dtype_name(d));
  return elementwise(q, d, d);
}

/* Infinities become the type's largest numbers unless the call names others. */
ax_status ax_infer_nan_to_num(ax_infer *q)
{
  const ax_dtype d = (ax_dtype)INPUT(0)->dtype;
  const double most = d == AX_F64    ? 0x1.fffffffffffffp1023
                      : d == AX_F32  ? 0x1.fffffep127
                      : d == AX_BF16 ? 0x1.fep127
                                     : 65504;
  if (isnan(q->a.nan_to_num.posinf)) q->a.nan_to_num.posinf = most;
  if (isnan(q->a.nan_to_num.neginf)) q->a.nan_to_num.neginf = -most;
  return elementwise(q, d, d);
}

ax_status ax_infer_compare(ax_infer *q) { return elementwise(q, promoted(q, 0), AX_BOOL); }
/* Operands of one type are compared with 0 as they are. */
ax_status ax_infer_logical(ax_infer *q)
{
  const ax_dtype d = (ax_dtype)INPUT(0)->dtype;
  return elementwise(q, q->args->n_in == 1 || INPUT(1)->dtype == d ? d : AX_BOOL, AX_BOOL);
}

ax_status ax_infer_polygamma(ax_infer *q)
{
  if (q->a.polygamma.n < 1)
    return ax_fail(AX_ERANGE, "polygamma: n must be at least 1, got %lld", (long long)q->a.polygamma.n);
  return ax_infer_floats(q);
}

ax_status ax_infer_clamp(ax_infer *q)
{
  const ax_dtype d = (ax_dtype)INPUT(0)->dtype;
  const bool no_min = isnan(q->a.clamp.min), no_max = isnan(q->a.clamp.max);
  if (no_min && no_max) return ax_fail(AX_EINVAL, "clamp: expected min, max or both");
  const bool whole = (no_min || q->a.clamp.min == floor(q->a.clamp.min)) &&
                     (no_max || q->a.clamp.max == floor(q->a.clamp.max));
  const ax_dtype r = ax_is_float(d) ? d : !whole ? ax_default_dtype : d == AX_BOOL ? AX_I64 : d;
  for (int k = 0; k < 2; k++) {
    const double v = k ? q->a.clamp.max : q->a.clamp.min;
    if (isfinite(v) && !ax_number_fits(r, v))
      return ax_fail(AX_EDTYPE, "%s: %s %g does not fit %s", q->name, k ? "max" : "min", v, ax_dtype_name(r));
  }
  if (no_min) q->a.clamp.min = -INFINITY;
  if (no_max) q->a.clamp.max = INFINITY;
  return elementwise(q, r, r);
}

ax_status ax_infer_clamp_tensor(ax_infer *q)
{
  ax_tensor *x = INPUT(0), *min = INPUT(1), *max = INPUT(2), *raised = NULL;
  ax_status st = AX_OK;

  if (!min && !max) return ax_fail(AX_EINVAL, "clamp: expected min, max or both");
  if (min) AX_TRY(ax_run2(AX_OP_MAXIMUM, x, min, &raised));
  if (max) st = ax_run2(AX_OP_MINIMUM, raised ? raised : x, max, &q->result[0]);
  else q->result[0] = raised, raised = NULL;
out:
  ax_tensor_release(raised);
  return st;
}

ax_status ax_infer_where(ax_infer *q)
{
  ax_status st;
  int ndim;
  int64_t shape[AX_MAX_DIMS];
  ax_dtype d = promoted(q, 1);

  if ((st = need_dtype(q, INPUT(0), AX_BOOL, "condition")) != AX_OK) return st;
  if ((st = ax_float8_alike(q, 1)) != AX_OK) return st;
  /* two numbers have the default type, as numbers of full and tensor */
  if (!INPUT(1) && !INPUT(2) && d != AX_BOOL) d = ax_default_dtype;
  ndim = INPUT(0)->ndim;
  memcpy(shape, INPUT(0)->shape, sizeof shape);
  if ((st = joint_shape(q, 1, &ndim, shape)) != AX_OK) return st;
  q->compute = d;
  q->cast = ~1u;
  q->moves = true;
  out_like(q, 0, d, ndim, shape);
  return AX_OK;
}

ax_status ax_infer_masked_fill(ax_infer *q)
{
  ax_status st;
  int ndim;
  int64_t shape[AX_MAX_DIMS];
  const ax_tensor *x = INPUT(0), *mask = INPUT(1);

  if ((st = need_dtype(q, mask, AX_BOOL, "mask")) != AX_OK) return st;
  if (!ax_number_fits((ax_dtype)x->dtype, q->a.masked_fill.value))
    return ax_fail(AX_EDTYPE, "masked_fill: value %g does not fit a tensor of %s", q->a.masked_fill.value,
                   TYPE(x));
  if ((st = ax_shape_broadcast(q->name, x->ndim, x->shape, mask->ndim, mask->shape, &ndim, shape)) != AX_OK)
    return st;
  q->compute = (ax_dtype)x->dtype;
  q->moves = true;
  out_like(q, 0, (ax_dtype)x->dtype, ndim, shape);
  return AX_OK;
}

/* ---- arithmetic */

RULE(add)
{
  if (WANTS(0)) give(c, 0, G);
  if (WANTS(1)) give(c, 1, G);
}
RULE(sub)
{
  if (WANTS(0)) give(c, 0, G);
  if (WANTS(1)) give(c, 1, un(c, AX_OP_NEG, G));
}
RULE(neg) { give(c, 0, un(c, AX_OP_NEG, G)); }
RULE(identity) { give(c, 0, G); }
RULE(zero) { give(c, 0, filled(c, 0, 0)); }
RULE(abs) { give(c, 0, mul(c, G, un(c, AX_OP_SGN, IN(0)))); }
RULE(square) { give(c, 0, mul(c, mul(c, G, IN(0)), NUM(2))); }
RULE(reciprocal) { give(c, 0, un(c, AX_OP_NEG, mul(c, G, un(c, AX_OP_SQUARE, OUT(0))))); }

static ax_arg conjugate(ax_grad *c, ax_arg x)
{
  return x.t && ax_is_complex((ax_dtype)x.t->dtype) ? un(c, AX_OP_CONJ_COPY, x) : x;
}

RULE(mul)
{
  if (WANTS(0)) give(c, 0, mul(c, G, conjugate(c, IN(1))));
  if (WANTS(1)) give(c, 1, mul(c, G, conjugate(c, IN(0))));
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
  return !x.t || x.t->dtype == d ? x : call(c, AX_OP_CAST, 1, &x, &AX_ATTRS(cast, .dtype = d));
}

/* b >= 0; of complex numbers where the real part is. */
static ax_arg not_negative(ax_grad *c, ax_arg b)
{
  return bin(c, AX_OP_GE, b.t && ax_is_complex((ax_dtype)b.t->dtype) ? un(c, AX_OP_REAL, b) : b, NUM(0));
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
    const ax_arg y = bin(c, AX_OP_POW, a, b);
    const ax_arg d = mul(c, mul(c, G, y), a.t ? un(c, AX_OP_LOG, a) : NUM(log(a.num)));
    const bool flat = !a.t && a.num != 0; /* no zero to look out for */
    const ax_arg grows = flat ? NUM(0) : not_negative(c, b);
    give(c, 1,
         flat ? d
              : where(c, a.t ? bin(c, AX_OP_LOGICAL_AND, bin(c, AX_OP_EQ, a, NUM(0)), grows) : grows, NUM(0),
                      d));
  }
}

/* A quotient that will be rounded to a whole number: in float32 where the operands are halves,
 * since rounding it before would move the whole number.  Its own gradient is 0, so nothing is
 * recorded. */
static ax_arg quotient(ax_grad *c, ax_op op, ax_arg a, ax_arg b)
{
  const bool former = ax_grad_set_enabled(false);
  const ax_arg q = call(c, op, 2, (ax_arg[]){ a, b }, &(ax_attrs){ .n_list = -1, .wide = true });
  ax_grad_set_enabled(former);
  return q;
}

RULE(remainder) /* a - b floor(a / b) */
{
  if (WANTS(0)) give(c, 0, G);
  if (WANTS(1)) give(c, 1, un(c, AX_OP_NEG, mul(c, G, quotient(c, AX_OP_FLOOR_DIVIDE, IN(0), IN(1)))));
}

RULE(fmod) /* a - b trunc(a / b) */
{
  if (WANTS(0)) give(c, 0, G);
  if (WANTS(1))
    give(c, 1, un(c, AX_OP_NEG, mul(c, G, un(c, AX_OP_TRUNC, quotient(c, AX_OP_DIV, IN(0), IN(1))))));
}

static ax_arg scaled(ax_grad *c, ax_arg x, double by) { return by == 1 ? x : mul(c, x, NUM(by)); }

RULE(addcmul)
{
  if (WANTS(0)) give(c, 0, G);
  if (WANTS(1)) give(c, 1, scaled(c, mul(c, G, IN(2)), A->addcmul.value));
  if (WANTS(2)) give(c, 2, scaled(c, mul(c, G, IN(1)), A->addcmul.value));
}

RULE(addcdiv)
{
  if (WANTS(0)) give(c, 0, G);
  if (WANTS(1)) give(c, 1, scaled(c, over(c, G, IN(2)), A->addcdiv.value));
  if (WANTS(2)) give(c, 2, scaled(c, mul(c, G, over(c, over(c, IN(1), IN(2)), IN(2))), -A->addcdiv.value));
}

RULE(lerp)
{
  if (WANTS(0)) give(c, 0, mul(c, G, IN(2).t ? sub(c, NUM(1), IN(2)) : NUM(1 - IN(2).num)));
  if (WANTS(1)) give(c, 1, mul(c, G, IN(2)));
  if (WANTS(2)) give(c, 2, mul(c, G, sub(c, IN(1), IN(0))));
}

RULE(nan_to_num) { give(c, 0, where(c, un(c, AX_OP_ISFINITE, IN(0)), G, NUM(0))); }

/* The larger (smaller) one gets g; equal ones half each; where one is NaN, both get it: as in
 * PyTorch. */
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
  if (A->clamp.min != -INFINITY) inside = bin(c, AX_OP_GT, IN(0), NUM(A->clamp.min));
  if (A->clamp.max != INFINITY) {
    const ax_arg below = bin(c, AX_OP_LT, IN(0), NUM(A->clamp.max));
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
RULE(tan) { give(c, 0, mul(c, G, bin(c, AX_OP_ADD, un(c, AX_OP_SQUARE, OUT(0)), NUM(1)))); }
RULE(exp2) { give(c, 0, mul(c, G, mul(c, OUT(0), NUM(0.69314718055994530942)))); }
RULE(log2) { give(c, 0, over(c, G, mul(c, IN(0), NUM(0.69314718055994530942)))); }
RULE(log10) { give(c, 0, over(c, G, mul(c, IN(0), NUM(2.30258509299404568402)))); }
RULE(sinh) { give(c, 0, mul(c, G, un(c, AX_OP_COSH, IN(0)))); }
RULE(cosh) { give(c, 0, mul(c, G, un(c, AX_OP_SINH, IN(0)))); }

/* 1 - x^2, or x^2 + add */
static ax_arg one_less_square(ax_grad *c, ax_arg x) { return sub(c, NUM(1), un(c, AX_OP_SQUARE, x)); }
static ax_arg square_and(ax_grad *c, ax_arg x, double add)
{
  return bin(c, AX_OP_ADD, un(c, AX_OP_SQUARE, x), NUM(add));
}

RULE(asin) { give(c, 0, mul(c, G, un(c, AX_OP_RSQRT, one_less_square(c, IN(0))))); }
RULE(acos) { give(c, 0, un(c, AX_OP_NEG, mul(c, G, un(c, AX_OP_RSQRT, one_less_square(c, IN(0)))))); }
RULE(atan) { give(c, 0, over(c, G, square_and(c, IN(0), 1))); }
RULE(asinh) { give(c, 0, mul(c, G, un(c, AX_OP_RSQRT, square_and(c, IN(0), 1)))); }
RULE(acosh) /* the root of a product is not the product of roots where these are complex */
{
  const ax_arg x = IN(0);
  give(c, 0,
       ax_is_complex(META(0)->dtype) ? mul(c, G,
                                           mul(c, un(c, AX_OP_RSQRT, sub(c, x, NUM(1))),
                                               un(c, AX_OP_RSQRT, bin(c, AX_OP_ADD, x, NUM(1)))))
                                     : mul(c, G, un(c, AX_OP_RSQRT, square_and(c, x, -1))));
}
RULE(atanh) { give(c, 0, over(c, G, one_less_square(c, IN(0)))); }

static ax_arg squared(ax_grad *c, ax_arg x) { return x.t ? un(c, AX_OP_SQUARE, x) : NUM(x.num * x.num); }

RULE(atan2) /* b / (a^2 + b^2), -a / (a^2 + b^2); both 0 at the origin */
{
  const ax_arg a = computed(c, IN(0)), b = computed(c, IN(1)),
               square = bin(c, AX_OP_ADD, squared(c, a), squared(c, b));
  const ax_arg inverse = where(c, bin(c, AX_OP_EQ, square, NUM(0)), NUM(0), un(c, AX_OP_RECIPROCAL, square));
  const ax_arg part = mul(c, G, inverse);
  if (WANTS(0)) give(c, 0, mul(c, part, b));
  if (WANTS(1)) give(c, 1, un(c, AX_OP_NEG, mul(c, part, a)));
}

RULE(logaddexp) /* sigmoid(a - b), sigmoid(b - a) */
{
  const ax_arg a = computed(c, IN(0)), b = computed(c, IN(1));
  if (WANTS(0)) give(c, 0, mul(c, G, un(c, AX_OP_SIGMOID, sub(c, a, b))));
  if (WANTS(1)) give(c, 1, mul(c, G, un(c, AX_OP_SIGMOID, sub(c, b, a))));
}

RULE(xlogy) /* log b, 0 where a is 0 and b has no logarithm;  a / b */
{
  const ax_arg a = computed(c, IN(0)), b = computed(c, IN(1));
  if (WANTS(0)) {
    const ax_arg none = bin(c, AX_OP_EQ, a, NUM(0)),
                 flat = b.t ? bin(c, AX_OP_LOGICAL_AND, none, bin(c, AX_OP_LE, b, NUM(0))) : none;
    const ax_arg log_b = b.t ? un(c, AX_OP_LOG, b) : NUM(log(b.num));
    give(c, 0, b.t || b.num <= 0 ? where(c, flat, NUM(0), mul(c, G, log_b)) : mul(c, G, log_b));
  }
  if (WANTS(1)) give(c, 1, mul(c, G, over(c, a, b)));
}

RULE(hypot)
{
  if (WANTS(0)) give(c, 0, mul(c, G, over(c, IN(0), OUT(0))));
  if (WANTS(1)) give(c, 1, mul(c, G, over(c, IN(1), OUT(0))));
}

RULE(tanh)
{
  give(c, 0,
       ax_is_complex(META(0)->dtype) ? mul(c, G, sub(c, NUM(1), un(c, AX_OP_SQUARE, OUT(0))))
                                     : bin(c, AX_OP_TANH_BACKWARD, G, OUT(0)));
}
RULE(sigmoid)
{
  give(c, 0,
       ax_is_complex(META(0)->dtype) ? mul(c, G, mul(c, OUT(0), sub(c, NUM(1), OUT(0))))
                                     : bin(c, AX_OP_SIGMOID_BACKWARD, G, OUT(0)));
}
RULE(relu) { give(c, 0, bin(c, AX_OP_RELU_BACKWARD, G, OUT(0))); }

RULE(erf) /* 2 / sqrt(pi) exp(-x^2) */
{
  const double k = 1.1283791670955126;
  give(c, 0, mul(c, G, mul(c, un(c, AX_OP_EXP, un(c, AX_OP_NEG, un(c, AX_OP_SQUARE, IN(0)))), NUM(k))));
}

RULE(erfc)
{
  const double k = -1.1283791670955126;
  give(c, 0, mul(c, G, mul(c, un(c, AX_OP_EXP, un(c, AX_OP_NEG, un(c, AX_OP_SQUARE, IN(0)))), NUM(k))));
}

RULE(erfinv) /* sqrt(pi) / 2 exp(y^2) */
{
  const double k = 0.88622692545275801365;
  const ax_arg y = un(c, AX_OP_ERFINV, IN(0));
  give(c, 0, mul(c, G, mul(c, un(c, AX_OP_EXP, un(c, AX_OP_SQUARE, y)), NUM(k))));
}

static ax_arg polygamma(ax_grad *c, int64_t n, ax_arg x)
{
  return call(c, AX_OP_POLYGAMMA, 1, &x, &AX_ATTRS(polygamma, .n = n));
}
RULE(lgamma) { give(c, 0, mul(c, G, un(c, AX_OP_DIGAMMA, IN(0)))); }
RULE(digamma) { give(c, 0, mul(c, G, polygamma(c, 1, IN(0)))); }
RULE(polygamma) { give(c, 0, mul(c, G, polygamma(c, A->polygamma.n + 1, IN(0)))); }

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

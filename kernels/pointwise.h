/* Scalar functions of the pointwise ops, forward and derivative, written once for the C kernels and
 * the CUDA kernels.
 *
 * The float32 functions are our own polynomials, without branches, table look-ups or calls, so that
 * a compiler turns a loop over them into vector code.  The comment at each function gives its
 * error, measured on every 61st float against float64, with fused multiply-add; without it
 * (x86-64-v2) errors are up to 0.3 units in the last place larger.  float64 uses doubles.h and
 * libm.  Bits may differ between processor levels; random numbers, where they may not, have
 * functions of their own (philox.h). */
#ifndef AX_POINTWISE_H
#define AX_POINTWISE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "doubles.h"
#include "fn.h"

/* a * b + c, fused where the processor has an instruction for it; elsewhere fmaf would be a slow
 * call. */
#if defined(__FMA__) || defined(__CUDA_ARCH__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)
#define AX_HAS_FMA 1
#define AX_FMAF(a, b, c) fmaf(a, b, c)
#else
#define AX_HAS_FMA 0
#define AX_FMAF(a, b, c) ((a) * (b) + (c))
#endif

AX_FN float ax_as_float(uint32_t u)
{
  float f;
  memcpy(&f, &u, 4);
  return f;
}
AX_FN uint32_t ax_as_bits(float f)
{
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

/* Adding this rounds a float below 2^22 to the nearest integer, and puts the integer into the low
 * bits of the sum's mantissa. */
#define AX_ROUNDER 0x1.8p23f

/* n = round(x / ln 2) and r = x - n ln 2; returns the bits of n + AX_ROUNDER. */
AX_FN uint32_t ax_exp_reduce(float x, float *r)
{
  const float t = AX_FMAF(x, 0x1.715476p+0f, AX_ROUNDER);
  const float n = t - AX_ROUNDER;
  /* ln 2 in two parts; n times the first is exact */
  *r = AX_FMAF(n, -0x1.7f7d1cp-20f, AX_FMAF(n, -0x1.62e4p-1f, x));
  return ax_as_bits(t);
}

/* (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2.  This polynomial and those below are evaluated in
 * steps of r^2: that halves the chain of dependent operations, and the length of that chain, not
 * the number of instructions, bounds the speed. */
AX_FN float ax_exp_tail(float r)
{
  const float s = r * r;
  return AX_FMAF(AX_FMAF(1.37805939e-3f, s, AX_FMAF(8.37312452e-3f, r, 4.16695364e-2f)), s,
                 AX_FMAF(1.66664720e-1f, r, 4.99999851e-1f));
}

/* 1 ulp; 0 where the result would be subnormal.  Both ends of the range are fixed up after the
 * arithmetic, whose result there may be nonsense. */
AX_FN float ax_exp_f32(float x)
{
  float r, p;
  const uint32_t bits = ax_exp_reduce(x, &r);

  p = AX_FMAF(ax_exp_tail(r), r * r, r) + 1.0f;
  p = ax_as_float(ax_as_bits(p) + (bits << 23)); /* p is in (0.7, 1.42), so only its exponent changes */
  p = x < -87.3365402f ? 0.0f : p;
  return x < 88.7228394f ? p : x * INFINITY; /* a NaN stays a NaN */
}

/* 1.4 ulp.  2^n (expm1(r) + 1) - 1 with the terms in the order that keeps small results exact. */
AX_FN float ax_expm1_f32(float x)
{
  float r, p, half, y;
  uint32_t bits;

  const float in = x;
  x = x < -18.0f ? -18.0f : x;
  x = x > 89.0f ? 89.0f : x;
  bits = ax_exp_reduce(x, &r);
  p = AX_FMAF(ax_exp_tail(r), r * r, r);
  half = ax_as_float((bits - 0x4b400000u + 126u) << 23); /* 2^(n-1): 2^128 has no float */
  y = AX_FMAF(half, p, half - 0.5f);
  y = y + y;
  /* halving would lose bits of subnormals, and -0 stays -0; p carries a NaN through */
  return fabsf(in) < 0x1p-26f ? in : y;
}

/* log x = r + n log 2 for a positive finite x. */
AX_FN float ax_log_parts(float x, float *whole)
{
  const int tiny = x < 0x1p-126f;
  /* selecting constants instead of results keeps this free of branches */
  const float m0 = x * (tiny ? 0x1p23f : 1.0f);
  const int32_t e = (int32_t)((ax_as_bits(m0) - 0x3f2aaaabu) & 0xff800000u);
  const float m = ax_as_float(ax_as_bits(m0) - (uint32_t)e) - 1.0f; /* in [-1/3, 1/3] */
  const float s = m * m;
  float r = -0.130310059f, t = 0.140869141f;

  *whole = AX_FMAF((float)e, 0x1p-23f, tiny ? -23.0f : 0.0f);
  r = AX_FMAF(r, s, -0.121483512f);
  t = AX_FMAF(t, s, 0.139814854f);
  r = AX_FMAF(r, s, -0.166846126f);
  t = AX_FMAF(t, s, 0.200120345f);
  r = AX_FMAF(r, s, -0.249996200f);
  r = AX_FMAF(t, m, r);
  r = AX_FMAF(r, m, 0.333331972f);
  r = AX_FMAF(r, m, -0.5f);
  return AX_FMAF(r, s, m);
}

/* Replaces the logarithm `r` of x where x is not positive and finite. */
AX_FN float ax_log_ends(float x, float r)
{
  r = x < INFINITY ? r : x; /* +infinity and NaN */
  r = x == 0.0f ? -INFINITY : r;
  return x < 0.0f ? NAN : r;
}

/* 1 ulp. */
AX_FN float ax_log_f32(float x)
{
  float n;
  const float r = ax_log_parts(x, &n);
  return ax_log_ends(x, AX_FMAF(n, 0x1.62e43p-1f, r));
}

/* a / b for a positive b.  A GPU's own division is a dozen instructions with a branch; of bfloat16
 * numbers, memory brings one for every 29 instructions.  There: 1.5 ulp, and a * 0 where b is 2^126
 * or more. */
AX_FN float ax_ratio(float a, float b)
{
#ifdef __CUDA_ARCH__
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
  return a * r;
#elif defined AX_EMULATE && !defined AX_EMULATED_LIBRARY
  float ax_emulate_near(float exact); /* (emulate.h) */
  return ax_emulate_near(a / b);
#else
  return a / b;
#endif
}
/* Likewise for b from 1 to 2^64 and a no larger: half a unit in the last place, as by division. */
AX_FN float ax_ratio_exact(float a, float b)
{
#ifdef __CUDA_ARCH__
  const float r = ax_ratio(1.0f, b), q = a * r;
  return AX_FMAF(AX_FMAF(-b, q, a), r, q);
#else
  return a / b;
#endif
}

/* 1.5 ulp.  The part of x that 1 + x lost returns as a first-order term. */
AX_FN float ax_log1p_f32(float x)
{
  const float u = 1.0f + x, lost = ax_ratio(x - (u - 1.0f), u);
  const float y = ax_log_f32(u) + (x > -1.0f && x < INFINITY ? lost : 0.0f); /* at the ends it would be NaN */
  return x == 0.0f ? x : y;                                                  /* -0 stays -0 */
}

/* 2.4 ulp.  t / (t + 2) with t = expm1(2 |x|), which keeps small results exact. */
AX_FN float ax_tanh_f32(float x)
{
  const float a = fabsf(x), c = a > 10.0f ? 10.0f : a;
  float r, p, s, t;
  const uint32_t bits = ax_exp_reduce(c + c, &r);

  p = AX_FMAF(ax_exp_tail(r), r * r, r);
  s = ax_as_float((bits << 23) + 0x3f800000u); /* 2^n, n being 0..29 */
  t = AX_FMAF(s, p, s - 1.0f);
  return copysignf(ax_ratio_exact(t, t + 2.0f), x); /* also of -0 */
}

/* 2.4 ulp above -87 (2.9 on a GPU); 0 instead of a subnormal below. */
AX_FN float ax_sigmoid_f32(float x) { return ax_ratio(1.0f, 1.0f + ax_exp_f32(-x)); }

#define AX_LOG2E 0x1.715476p+0f

/* 2^x for x <= 127, for results that are a part of something near 1: 1.5 ulp above -126, exactly 0
 * below.  A GPU has an instruction for it (2 ulp by the CUDA programming guide); with it, rows of
 * exponentials are bound by memory. */
AX_FN float ax_exp2_part(float x)
{
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#elif defined AX_EMULATE
  return x < -126.0f ? 0.0f : exp2f(x);
#else
  const float t = x + AX_ROUNDER, f = x - (t - AX_ROUNDER), s = f * f;
  float p =
      AX_FMAF(AX_FMAF(1.326472205e-3f, f, 9.671512997e-3f), s, AX_FMAF(5.550733760e-2f, f, 2.402224208e-1f));

  p = AX_FMAF(p, s, AX_FMAF(6.931469776e-1f, f, 1.0f));
  /* p is in (0.7, 1.42), so only its exponent changes */
  p = ax_as_float(ax_as_bits(p) + (ax_as_bits(t) << 23));
  return x < -126.0f ? 0.0f : p;
#endif
}

/* 1.2 ulp.  Two polynomials are computed and one is selected: x P(x^2) near 0, 1 - 2^Q(x) further
 * out. (Coefficients from N. Juffa's erff.) */
AX_FN float ax_erf_f32(float x)
{
  const float a = fabsf(x), t = a > 4.0f ? 4.0f : a, s = t * t, w = s * s;
  float q = AX_FMAF(AX_FMAF(-2.493748440e-05f, t, 5.528365934e-04f), s,
                    AX_FMAF(-5.603376150e-03f, t, 3.499202273e-02f)),
        p;

  q = AX_FMAF(q, w, AX_FMAF(AX_FMAF(-1.540479136e-01f, t, -9.158901671e-01f), s, -1.628395157e+00f * t));
  q = copysignf(1.0f - ax_exp2_part(q), x);
  p = AX_FMAF(AX_FMAF(-5.96761703e-4f, s, 4.99119423e-3f), w, AX_FMAF(-2.67681349e-2f, s, 1.12819925e-1f));
  p = AX_FMAF(p, w, AX_FMAF(-3.76125336e-1f, s, 1.28379166e-1f));
  p = AX_FMAF(p, x, x);
  return a > 0.927734375f ? q : (x == x ? p : x);
}

/* Beyond this the reduction below loses bits, and the caller uses libm's sinf and cosf. */
#if AX_HAS_FMA
#define AX_TRIG_LIMIT 70000.0f
#else
#define AX_TRIG_LIMIT 8000.0f
#endif

/* sin(x + quarter * pi/2) for |x| <= AX_TRIG_LIMIT: absolute error at most 1e-7, 1.4 ulp within a
 * turn. */
AX_FN float ax_trig_f32(float x, uint32_t quarter)
{
  const float t = AX_FMAF(x, 0x1.45f306p-1f, AX_ROUNDER), j = t - AX_ROUNDER;
  const uint32_t q = ax_as_bits(t) + quarter;
#if AX_HAS_FMA
  const float r = AX_FMAF(j, -5.39030253e-15f, AX_FMAF(j, -3.13916473e-07f, AX_FMAF(j, -1.57079601e+00f, x)));
#else
  const float r = (((x - j * 1.5703125f) - j * 4.83751297e-4f) - j * 7.54953362e-8f) - j * 2.56334406e-12f;
#endif
  const float s = r * r;
  float y = 2.86567956e-6f, c = 2.44677067e-5f;

  y = AX_FMAF(y, s, -1.98559923e-4f);
  y = AX_FMAF(y, s, 8.33338592e-3f);
  y = AX_FMAF(y, s, -1.66666672e-1f);
  y = AX_FMAF(y, s * r, r);
  c = AX_FMAF(c, s, -1.38877297e-3f);
  c = AX_FMAF(c, s, 4.16666567e-2f);
  c = AX_FMAF(c, s, -0.5f);
  c = AX_FMAF(c, s, 1.0f);
  y = q & 1u ? c : y;
  return ax_as_float(ax_as_bits(y) ^ ((q & 2u) << 30));
}

/* One name pattern for both precisions, which the rows below need. */
AX_FN float ax_sin_f32(float x) /* -0 stays -0 */
{
  const float y = ax_trig_f32(x, 0);
  return x == 0.0f ? x : y;
}
AX_FN float ax_cos_f32(float x) { return ax_trig_f32(x, 1); }
AX_FN float ax_sqrt_f32(float x) { return sqrtf(x); }
AX_FN float ax_rsqrt_f32(float x) { return 1.0f / sqrtf(x); }
AX_FN float ax_reciprocal_f32(float x) { return 1.0f / x; }
AX_FN float ax_floor_f32(float x) { return floorf(x); }
AX_FN float ax_ceil_f32(float x) { return ceilf(x); }
AX_FN float ax_round_f32(float x) { return rintf(x); }
AX_FN float ax_abs_f32(float x) { return fabsf(x); }
AX_FN double ax_sigmoid_f64(double x) { return 1.0 / (1.0 + ax_exp_f64(-x)); }
AX_FN double ax_sqrt_f64(double x) { return sqrt(x); }
AX_FN double ax_rsqrt_f64(double x) { return 1.0 / sqrt(x); }
AX_FN double ax_reciprocal_f64(double x) { return 1.0 / x; }
AX_FN double ax_floor_f64(double x) { return floor(x); }
AX_FN double ax_ceil_f64(double x) { return ceil(x); }
AX_FN double ax_round_f64(double x) { return rint(x); }
AX_FN double ax_abs_f64(double x) { return fabs(x); }

/* C's fmodf(a, b) where the quotient is below 2^28: there the quotient, its whole part times b and
 * the difference have room in float64, so that the result is exact. */
AX_FN int ax_fmod_is_near(float a, float b) { return fabsf(a) < fabsf(b) * 0x1p28f; }
AX_FN float ax_fmod_near_f32(float a, float b)
{
  const double q = trunc((double)a / (double)b), r = (double)a - (double)b * q;
  return copysignf(q == 0.0 ? a : (float)r, a); /* b may be infinite */
}

/* a - b floor(a / b), computed by fmod and therefore exact; it has the sign of b, as in Lua and
 * Python. */
AX_FN float ax_remainder_of(float r, float b) /* r = fmod(a, b) */
{
  return (r != 0.0f) & ((r < 0.0f) != (b < 0.0f)) ? r + b : r;
}
AX_FN float ax_remainder_f32(float a, float b) { return ax_remainder_of(fmodf(a, b), b); }
AX_FN double ax_remainder_f64(double a, double b)
{
  const double r = fmod(a, b);
  return r != 0.0 && (r < 0.0) != (b < 0.0) ? r + b : r;
}
/* b is not 0: the caller has checked. */
AX_FN int64_t ax_remainder_int(int64_t a, int64_t b)
{
  const int64_t r = b == -1 ? 0 : a % b; /* INT64_MIN % -1 traps */
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

/* Wraps around, like all integer arithmetic here.  A negative power truncates 1 / a^-b: the result
 * is 0 except for 1 and -1. */
AX_FN int64_t ax_pow_int(int64_t a, int64_t b)
{
  uint64_t y = 1, base = (uint64_t)a;
  if (b < 0) return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
  for (; b; b >>= 1) {
    if (b & 1) y *= base;
    base *= base;
  }
  return (int64_t)y;
}

/* ---- rows: X(name, expression).  T is the element type; U is an unsigned type in which arithmetic
 * on T may wrap around. */

/* clang-format off */

/* Functions of one float x; ax_<name>_f32 and ax_<name>_f64 are above. */
#define AX_FLOAT_FUNCTIONS(X) \
  X(exp) X(expm1) X(log) X(log1p) X(sqrt) X(rsqrt) X(reciprocal) X(tanh) X(sigmoid) X(erf) X(floor) X(ceil) \
  X(round) X(abs)

/* Floats.  maximum and minimum: the result is NaN where either side is. */
#define AX_FLOAT_UNARY(X) \
  X(neg, -x) \
  X(sign, (T)((x > 0) - (x < 0))) \
  X(square, x * x) \
  X(relu, x < 0 ? (T)0 : x)
#define AX_FLOAT_BINARY(X) \
  X(add, a + b) \
  X(sub, a - b) \
  X(mul, a * b) \
  X(div, a / b) \
  X(maximum, a > b || a != a ? a : b) \
  X(minimum, a < b || a != a ? a : b) \
  X(_tanh_backward, a * ((T)1 - b * b)) \
  X(_sigmoid_backward, a * (((T)1 - b) * b)) \
  X(_relu_backward, b <= 0 ? (T)0 : a)

/* Integers.  Bool has rows of its own further down where it differs. */
#define AX_INT_UNARY(X) \
  X(neg, (U)0 - (U)x) \
  X(abs, x < 0 ? (U)0 - (U)x : (U)x) \
  X(sign, (x > 0) - (x < 0)) \
  X(square, (U)x * (U)x) \
  X(relu, x < 0 ? 0 : x) \
  X(floor, x) \
  X(ceil, x) \
  X(round, x)
#define AX_INT_BINARY(X) \
  X(add, (U)a + (U)b) \
  X(sub, (U)a - (U)b) \
  X(mul, (U)a * (U)b) \
  X(maximum, a > b ? a : b) \
  X(minimum, a < b ? a : b) \
  X(pow, ax_pow_int(a, b))

#define AX_BOOL_UNARY(X) \
  X(sign, x != 0)
#define AX_BOOL_BINARY(X) \
  X(add, (a | b) != 0) \
  X(mul, a && b) \
  X(maximum, (a | b) != 0) \
  X(minimum, a && b)

/* Any type to bool. */
#define AX_COMPARE(X) \
  X(eq, a == b) X(ne, a != b) X(lt, a < b) X(le, a <= b) X(gt, a > b) X(ge, a >= b) \
  X(logical_and, (a != 0) & (b != 0)) X(logical_or, (a != 0) | (b != 0)) \
  X(logical_xor, (a != 0) != (b != 0))

/* clang-format on */

#endif

/* More scalar functions of the pointwise ops, written like those of pointwise.h: branch-free
 * polynomials in float32; those of float64 are in doubles.h. */
#ifndef AX_FUNCTIONS_H
#define AX_FUNCTIONS_H

#include "pointwise.h"

/* 1 ulp.  Beyond the limits the result is 0 or infinite. */
AX_FN float ax_exp2_f32(float x)
{
  const float c0 = x < -151.0f ? -151.0f : x, c = c0 > 129.0f ? 129.0f : c0;
  const float t = c + AX_ROUNDER, f = c - (t - AX_ROUNDER);
  const int32_t n = (int32_t)(ax_as_bits(t) - 0x4b400000u);
  float p = 1.535336064e-4f;

  p = AX_FMAF(p, f, 1.339887487e-3f);
  p = AX_FMAF(p, f, 9.618437366e-3f);
  p = AX_FMAF(p, f, 5.550332470e-2f);
  p = AX_FMAF(p, f, 2.402264791e-1f);
  p = AX_FMAF(p, f, 6.931472029e-1f);
  p = AX_FMAF(p, f, 1.0f);
  return p * ax_as_float((uint32_t)((n >> 1) + 127) << 23) *
         ax_as_float((uint32_t)(n - (n >> 1) + 127) << 23);
}

/* 1.5 ulp; powers of 2 and of 10 come out exact. */
AX_FN float ax_log2_f32(float x)
{
  float n;
  const float r = ax_log_parts(x, &n);
  return ax_log_ends(x, AX_FMAF(r, AX_LOG2E, AX_FMAF(r, 1.92596303e-8f, n)));
}
AX_FN float ax_log10_f32(float x)
{
  float n;
  const float r = ax_log_parts(x, &n);
  /* log10 2 in two parts; n times the first is exact */
  const float low = AX_FMAF(n, 4.60503907e-6f, r * 0x1.bcb7b2p-2f);
  return ax_log_ends(x, AX_FMAF(n, 0x1.344p-2f, low));
}

/* 2.5 ulp.  (e - 1/e) / 2 with expm1, which keeps small results exact; large ones come from exp(x /
 * 2), which does not overflow. */
AX_FN float ax_sinh_f32(float x)
{
  const float a = fabsf(x), t = ax_expm1_f32(a > 80.0f ? 80.0f : a), h = ax_exp_f32(a * 0.5f);
  return copysignf(a < 80.0f ? 0.5f * (t + t / (t + 1.0f)) : (0.5f * h) * h, x);
}
AX_FN float ax_cosh_f32(float x)
{
  const float a = fabsf(x), e = ax_exp_f32(a > 80.0f ? 80.0f : a), h = ax_exp_f32(a * 0.5f);
  return a < 80.0f ? 0.5f * e + 0.5f / e : (0.5f * h) * h;
}
/* These three: 2.5 ulp. */
AX_FN float ax_asinh_f32(float x)
{
  const float a = fabsf(x), s = a > 1e9f ? 1e9f : a;
  const float y = ax_log1p_f32(s + s * s / (1.0f + sqrtf(AX_FMAF(s, s, 1.0f))));
  return copysignf(a > 1e9f ? ax_log_f32(a) + 0x1.62e43p-1f : y, x);
}
AX_FN float ax_acosh_f32(float x)
{
  const float t = x - 1.0f, s = t > 1e9f ? 1e9f : t;
  const float y = ax_log1p_f32(s + sqrtf(AX_FMAF(s, s, s + s)));
  const float z = t > 1e9f ? ax_log_f32(x) + 0x1.62e43p-1f : y;
  return t < 0.0f ? NAN : z; /* far below 1 the sum above is 0 or -1 */
}
AX_FN float ax_atanh_f32(float x)
{
  const float a = fabsf(x);
  return copysignf(0.5f * ax_log1p_f32((a + a) / (1.0f - a)), x);
}

/* 2 ulp.  A polynomial gives asin(a) for 0 <= a <= 1/2; beyond that it is pi/2 - 2 asin(sqrt((1 -
 * a) / 2)). */
AX_FN float ax_asin_core(float s, float r) /* s = r * r */
{
  float p = 4.2218547e-2f;
  p = AX_FMAF(p, s, 2.4147612e-2f);
  p = AX_FMAF(p, s, 4.5477097e-2f);
  p = AX_FMAF(p, s, 7.4952418e-2f);
  p = AX_FMAF(p, s, 1.66667539e-1f);
  return AX_FMAF(p * s, r, r);
}
AX_FN float ax_asin_f32(float x)
{
  const float a = fabsf(x);
  const float s = a > 0.5f ? 0.5f * (1.0f - a) : a * a, r = a > 0.5f ? sqrtf(s) : a;
  const float y = ax_asin_core(s, r);
  return copysignf(a > 0.5f ? AX_FMAF(-2.0f, y, 1.57079637f) - 4.37113883e-8f : y, x);
}
AX_FN float ax_acos_f32(float x)
{
  const float a = fabsf(x);
  const float s = a > 0.5f ? 0.5f * (1.0f - a) : a * a, r = a > 0.5f ? sqrtf(s) : a;
  const float y = ax_asin_core(s, r);
  const float far = x > 0.0f ? y + y : (3.14159274f - (y + y)) - 8.74227766e-8f;
  return a > 0.5f ? far : (1.57079637f - copysignf(y, x)) - 4.37113883e-8f;
}

/* 2 ulp.  Beyond 1 it is pi/2 - atan(1 / x). */
AX_FN float ax_atan_core(float r)
{
  const float s = r * r;
  float p = -1.82718466e-3f;
  p = AX_FMAF(p, s, 1.10643152e-2f);
  p = AX_FMAF(p, s, -3.14554694e-2f);
  p = AX_FMAF(p, s, 5.82343204e-2f);
  p = AX_FMAF(p, s, -8.41944598e-2f);
  p = AX_FMAF(p, s, 1.09575719e-1f);
  p = AX_FMAF(p, s, -1.42652446e-1f);
  p = AX_FMAF(p, s, 1.99986386e-1f);
  p = AX_FMAF(p, s, -3.33333019e-1f);
  return AX_FMAF(p * s, r, r);
}
AX_FN float ax_atan_f32(float x)
{
  const float a = fabsf(x), y = ax_atan_core(a > 1.0f ? 1.0f / a : a);
  return copysignf(a > 1.0f ? (1.57079637f - y) - 4.37113883e-8f : y, x);
}
/* The angle of the point (b, a), as C's atan2(a, b). */
AX_FN float ax_atan2_f32(float a, float b)
{
  const float p = fabsf(a), q = fabsf(b), lo = p < q ? p : q, hi = p < q ? q : p;
  const float both = lo == INFINITY ? 1.0f : lo / (hi == 0.0f ? 1.0f : hi); /* inf / inf is 45 degrees here */
  const float y = ax_atan_core(p != p || q != q ? p + q : both);
  const float z = p > q ? (1.57079637f - y) - 4.37113883e-8f : y;
  return copysignf(ax_as_bits(b) >> 31 ? (3.14159274f - z) + 8.74227766e-8f : z, a);
}

#if !AX_HAS_DOUBLES
/* 5 ulp; 0 beyond 10.5, where it underflows.  t exp(-x^2 + P(t)) with t = 1 / (1 + x/2); a factor
 * restores the bits that the square lost. */
AX_FN float ax_erfc_f32(float x)
{
  const float a = fabsf(x), c = a > 10.5f ? 10.5f : a, t = 1.0f / AX_FMAF(c, 0.5f, 1.0f);
#if AX_HAS_FMA
  const float s = c * c, lost = AX_FMAF(c, c, -s);
#else
  const float top = ax_as_float(ax_as_bits(c) & 0xfffff000u), s = top * top, lost = (c - top) * (c + top);
#endif
  float p = 2.47605646e-1f, e;
  p = AX_FMAF(p, t, -1.16646685f);
  p = AX_FMAF(p, t, 2.14781110f);
  p = AX_FMAF(p, t, -1.83828067f);
  p = AX_FMAF(p, t, 7.36080200e-1f);
  p = AX_FMAF(p, t, -3.72974691e-1f);
  p = AX_FMAF(p, t, 1.44293978e-1f);
  p = AX_FMAF(p, t, 3.66871646e-1f);
  p = AX_FMAF(p, t, 1.00061661f);
  p = AX_FMAF(p, t, -1.26553237f - lost);
  e = t * (ax_exp_f32(-s) * ax_exp_f32(p));
  e = a > 10.5f ? 0.0f : e;
  e = x < 0.0f ? 2.0f - e : e;
  return a < 0.5f ? 1.0f - ax_erf_f32(x) : e;
}
#endif

AX_FN float ax_trunc_f32(float x) { return truncf(x); }
AX_FN float ax_frac_f32(float x) { return x - truncf(x); }
AX_FN float ax_tan_f32(float x)
{
  const float y = ax_trig_f32(x, 0) / ax_trig_f32(x, 1);
  return x == 0.0f ? x : y;
}
AX_FN double ax_trunc_f64(double x) { return trunc(x); }
AX_FN double ax_frac_f64(double x) { return x - trunc(x); }

/* log(exp(a) + exp(b)); a log(b), which is 0 where a is 0. */
AX_FN float ax_logaddexp_f32(float a, float b)
{
  const float hi = a > b ? a : b, d = fabsf(a - b);
  const float y = a == b ? a + 0x1.62e43p-1f : hi + ax_log1p_f32(ax_exp_f32(-d));
  return a != a || b != b ? a + b : y;
}
AX_FN double ax_logaddexp_f64(double a, double b)
{
  const double hi = a > b ? a : b;
  return a == b             ? a + 0.69314718055994530942
         : a != a || b != b ? a + b
                            : hi + ax_log1p_f64(ax_exp_f64(-fabs(a - b)));
}
AX_FN float ax_xlogy_f32(float a, float b) { return a == 0.0f && b == b ? 0.0f : a * ax_log_f32(b); }
AX_FN double ax_xlogy_f64(double a, double b) { return a == 0.0 && b == b ? 0.0 : a * ax_log_f64(b); }
/* Infinite where one argument is, even if the other is NaN, as C's hypot. */
AX_FN float ax_hypot_f32(float a, float b)
{
  const float y = (float)sqrt((double)a * a + (double)b * b);
  return fabsf(a) == INFINITY || fabsf(b) == INFINITY ? INFINITY : y;
}
AX_FN double ax_hypot_f64(double a, double b) { return hypot(a, b); }

/* The floor of the quotient, exact even where a / b rounds up to a whole number, as Python's //. */
AX_FN float ax_floor_divide_of(float a, float b, float r) /* r = fmod(a, b) */
{
  const float q = (a - r) / b, down = r != 0.0f && (b < 0.0f) != (r < 0.0f) ? q - 1.0f : q;
  const float whole = floorf(down), near = down - whole > 0.5f ? whole + 1.0f : whole;
  return b == 0.0f ? a / b : down != 0.0f ? near : copysignf(0.0f, a / b);
}
AX_FN float ax_floor_divide_f32(float a, float b) { return ax_floor_divide_of(a, b, fmodf(a, b)); }
AX_FN double ax_floor_divide_f64(double a, double b)
{
  const double r = fmod(a, b), q = (a - r) / b, down = r != 0.0 && (b < 0.0) != (r < 0.0) ? q - 1.0 : q;
  const double whole = floor(down), near = down - whole > 0.5 ? whole + 1.0 : whole;
  return b == 0.0 ? a / b : down != 0.0 ? near : copysign(0.0, a / b);
}
/* b is not 0: the caller has checked.  The least integer divided by -1 wraps around. */
AX_FN int64_t ax_floor_divide_int(int64_t a, int64_t b)
{
  if (b == -1) return (int64_t)(0 - (uint64_t)a);
  return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}
AX_FN int64_t ax_fmod_int(int64_t a, int64_t b) { return b == -1 ? 0 : a % b; }

/* ---- rows */

/* clang-format off */
#define AX_MORE_FUNCTIONS(X) \
  X(exp2) X(log2) X(log10) X(sinh) X(cosh) X(asinh) X(acosh) X(atanh) X(asin) X(acos) X(atan) X(erfc) \
  X(trunc) X(frac)
#define AX_MORE_FLOAT_BINARY(X) \
  X(atan2) X(logaddexp) X(xlogy) X(hypot)

/* Integers.  A shift by the type's width or more gives what single shifts, one after the other,
 * would give. */
#define AX_INT_BITS(X) \
  X(bitwise_and, a & b) \
  X(bitwise_or, a | b) \
  X(bitwise_xor, a ^ b) \
  X(bitwise_left_shift, b >= 0 && (U)b < sizeof(a) * 8 ? (U)a << b : 0) \
  X(bitwise_right_shift, b >= 0 && (U)b < sizeof(a) * 8 ? a >> b : a < 0 ? -1 : 0)
/* clang-format on */
#endif

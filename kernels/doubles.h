/* Functions in float64 without branches or calls, so that a compiler turns a loop over them into
 * vector code.  They need fused multiply-add; without it, and on a GPU, they are libm's.  The
 * comment at each function gives its error, measured against exact values. */
#ifndef AX_DOUBLES_H
#define AX_DOUBLES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "fn.h"

#if (defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)) && !defined(__CUDACC__) && \
    !defined(AX_EMULATE)

#define AX_HAS_DOUBLES 1
#define AX_FMA(a, b, c) __builtin_fma(a, b, c)
/* Adding this rounds a double below 2^51 to the nearest integer, and puts the integer into the low
 * bits of the sum's mantissa. */
#define AX_ROUNDER_F64 0x1.8p52

AX_FN double ax_as_double(uint64_t u)
{
  double d;
  memcpy(&d, &u, 8);
  return d;
}
AX_FN uint64_t ax_as_bits64(double d)
{
  uint64_t u;
  memcpy(&u, &d, 8);
  return u;
}

/* n = round(x / ln 2) and r + low = x - n ln 2; returns n. */
AX_FN int64_t ax_exp_reduce_f64(double x, double *r, double *low)
{
  const double t = AX_FMA(x, 0x1.71547652b82fep+0, AX_ROUNDER_F64), n = t - AX_ROUNDER_F64;
  /* ln 2 in two parts; n times the first is exact */
  const double high = AX_FMA(n, -0x1.62e42feep-1, x);
  *r = AX_FMA(n, -0x1.a39ef35793c76p-33, high);
  *low = AX_FMA(n, -0x1.a39ef35793c76p-33, high - *r);
  return (int64_t)(ax_as_bits64(t) - 0x4338000000000000u);
}

/* (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2, in steps of r^2. */
AX_FN double ax_exp_tail_f64(double r)
{
  const double s = r * r, w = s * s;
  const double a = AX_FMA(AX_FMA(0x1.af3ce42b12b24p-26, r, 0x1.2894f52583578p-22), w,
                          AX_FMA(AX_FMA(0x1.71de0be2b5e96p-19, r, 0x1.a019b621f9d08p-16), s,
                                 AX_FMA(0x1.a01a01a83ba17p-13, r, 0x1.6c16c1794e1dcp-10)));
  return AX_FMA(a, w,
                AX_FMA(AX_FMA(0x1.1111111110918p-7, r, 0x1.5555555553b6cp-5), s,
                       AX_FMA(0x1.5555555555556p-3, r, 0.5)));
}

/* y 2^n, in two steps: the result may be subnormal. */
AX_FN double ax_scaled_f64(double y, int64_t n)
{
  const int64_t half = (int64_t)((uint64_t)(n + 2048) >> 1) - 1024;
  return y * ax_as_double((uint64_t)(half + 1023) << 52) * ax_as_double((uint64_t)(n - half + 1023) << 52);
}

/* exp(r + rest) 2^n */
AX_FN double ax_exp_scaled_f64(double r, double rest, int64_t n)
{
  const double h = 1.0 + r;
  return ax_scaled_f64(h + AX_FMA(ax_exp_tail_f64(r), r * r, ((1.0 - h) + r) + rest), n);
}

/* 0.8 ulp, also of subnormals. */
AX_FN double ax_exp_f64(double x)
{
  const double low = x < -746.0 ? -746.0 : x, c = low > 710.0 ? 710.0 : low;
  double r, rest;
  const int64_t n = ax_exp_reduce_f64(c, &r, &rest);
  return ax_exp_scaled_f64(r, rest, n);
}

/* 0.8 ulp; powers of 2 come out exact. */
AX_FN double ax_exp2_f64(double x)
{
  const double low = x < -1076.0 ? -1076.0 : x, c = low > 1025.0 ? 1025.0 : low;
  const double t = c + AX_ROUNDER_F64, f = c - (t - AX_ROUNDER_F64), r = f * 0x1.62e42fefa39efp-1;
  const double rest = AX_FMA(f, 0x1.abc9e3b39803fp-56, AX_FMA(f, 0x1.62e42fefa39efp-1, -r));
  return ax_exp_scaled_f64(r, rest, (int64_t)(ax_as_bits64(t) - 0x4338000000000000u));
}

/* x = 2^k (1 + f) for a positive finite x, with 1 + f from sqrt(1/2) to sqrt(2). */
AX_FN double ax_log_reduce_f64(double x, double *f)
{
  const int tiny = x < 0x1p-1022;
  const uint64_t u = ax_as_bits64(x * (tiny ? 0x1p54 : 1.0)),
                 e = (u - 0x3fe6a09e667f3bcdu) & 0xfff0000000000000u;
  *f = ax_as_double(u - e) - 1.0;
  return ax_as_double(((e + 0x4000000000000000u) >> 52) | 0x4330000000000000u) - 0x1p52 - 1024.0 -
         (tiny ? 54.0 : 0.0);
}

/* (log(1 + f) - f + h) / s - h for s = f / (2 + f), h = f^2 / 2. */
AX_FN double ax_log_tail_f64(double s)
{
  const double z = s * s, w = z * z;
  const double q = AX_FMA(AX_FMA(0x1.0c9781649aedfp-3, z, 0x1.0fb04d4fa46d5p-3), w,
                          AX_FMA(0x1.3b1cbf421a490p-3, z, 0x1.745cf674f6887p-3));
  const double p = AX_FMA(q, w, AX_FMA(0x1.c71c72078b928p-3, z, 0x1.249249247343fp-2));
  return z * AX_FMA(p, w, AX_FMA(0x1.9999999999a4fp-2, z, 0x1.5555555555555p-1));
}

/* Replaces the logarithm y of x where x is not positive and finite. */
AX_FN double ax_log_ends_f64(double x, double y)
{
  y = x < (double)INFINITY ? y : x; /* +infinity and NaN */
  y = x == 0.0 ? -(double)INFINITY : y;
  return x < 0.0 ? (double)NAN : y;
}

/* 0.8 ulp. */
AX_FN double ax_log_f64(double x)
{
  double f;
  const double k = ax_log_reduce_f64(x, &f), s = f / (2.0 + f), h = 0.5 * f * f, t = ax_log_tail_f64(s);
  return ax_log_ends_f64(x, AX_FMA(k, 0x1.62e42feep-1,
                                   -((h - AX_FMA(s, h + t, k * 0x1.a39ef35793c76p-33)) - f)));
}

/* n + (high + low) / ln b for log(1 + f) = high + low, given 1 / ln b in two parts. */
AX_FN double ax_log_base_f64(double f, double n, double lost, double inverse, double rest)
{
  const double s = f / (2.0 + f), h = 0.5 * f * f, high = f - h;
  const double low = AX_FMA(s, h + ax_log_tail_f64(s), (f - high) - h);
  const double p = high * inverse, y = n + p;
  return y + (((n - y) + p) + AX_FMA(low, inverse, AX_FMA(high, rest, AX_FMA(high, inverse, -p))) + lost);
}
/* 0.8 ulp; powers of 2 and of 10 come out exact. */
AX_FN double ax_log2_f64(double x)
{
  double f;
  const double k = ax_log_reduce_f64(x, &f);
  return ax_log_ends_f64(x, ax_log_base_f64(f, k, 0.0, 0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56));
}
AX_FN double ax_log10_f64(double x)
{
  double f;
  const double k = ax_log_reduce_f64(x, &f);
  /* log10 2 in two parts; k times the first is exact */
  return ax_log_ends_f64(x, ax_log_base_f64(f, k * 0x1.34413509f8p-2, k * -0x1.80433b83b532ap-44,
                                            0x1.bcb7b1526e50ep-2, 0x1.95355baaafad3p-57));
}

/* 1.5 ulp.  t / (t + 2) with t = expm1(2 |x|), which keeps small results exact. */
AX_FN double ax_tanh_f64(double x)
{
  const double a = fabs(x), c = a > 22.0 ? 22.0 : a;
  double r, rest;
  const int64_t n = ax_exp_reduce_f64(c + c, &r, &rest);
  const double s = ax_as_double((uint64_t)(n + 1023) << 52), p = AX_FMA(ax_exp_tail_f64(r), r * r, rest);
  /* t + small and d + lost are numerator and denominator in two parts each */
  const double high = AX_FMA(s, r, s - 1.0), tail = AX_FMA(s, p, AX_FMA(s, r, (s - 1.0) - high));
  const double t = high + tail, d = t + 2.0, inverse = 1.0 / d, q = t * inverse;
  const double lost = (2.0 - d) + t, small = (high - t) + tail;

  return copysign(AX_FMA(AX_FMA(-q, d, t) + AX_FMA(-q, lost, small), inverse, q), x);
}

/* 1.5 ulp.  2^n (expm1(r) + 1) - 1 in two parts, which keeps small results exact. */
AX_FN double ax_expm1_f64(double x)
{
  const double low = x < -40.0 ? -40.0 : x, c = low > 710.0 ? 710.0 : low;
  double r, rest;
  const int64_t n = ax_exp_reduce_f64(c, &r, &rest);
  /* 2^(n - 1): 2^1024 has no double */
  const double s = ax_as_double((uint64_t)(n + 1022) << 52), p = AX_FMA(ax_exp_tail_f64(r), r * r, rest);
  const double high = AX_FMA(s, r, s - 0.5), tail = AX_FMA(s, p, AX_FMA(s, r, (s - 0.5) - high));
  const double y = (high + tail) + (high + tail);

  return fabs(x) < 0x1p-54 ? x : y; /* halving would lose bits of subnormals, and -0 stays -0 */
}

/* 1 ulp.  The part of x that 1 + x lost returns as a first-order term. */
AX_FN double ax_log1p_f64(double x)
{
  const double u = 1.0 + x, lost = (x - (u - 1.0)) / u;
  const double y = ax_log_f64(u) + (x > -1.0 && x < (double)INFINITY ? lost : 0.0);
  return x == 0.0 ? x : y;
}

/* 1.9 ulp, as ax_sinh_f32; cosh 1.2 ulp. */
AX_FN double ax_sinh_f64(double x)
{
  const double a = fabs(x), t = ax_expm1_f64(a > 700.0 ? 700.0 : a), h = ax_exp_f64(a * 0.5);
  return copysign(a < 700.0 ? 0.5 * (t + t / (t + 1.0)) : (0.5 * h) * h, x);
}
AX_FN double ax_cosh_f64(double x)
{
  const double a = fabs(x), e = ax_exp_f64(a > 700.0 ? 700.0 : a), h = ax_exp_f64(a * 0.5);
  return a < 700.0 ? 0.5 * e + 0.5 / e : (0.5 * h) * h;
}

/* 1.5 ulp.  Two polynomials are computed and one is selected: x P(x^2) up to 1, 1 - exp(-x^2) Q
 * further out. */
AX_FN double ax_erf_f64(double x)
{
  const double a = fabs(x), c = a > 6.0 ? 6.0 : a, s = x * x, w = (c - 3.0) / (c + 3.0);
  double p = -0x1.ac9585a44f06ap-31, q = 0x1.57a5fe2b9b75ep-20;

  q = AX_FMA(q, w, 0x1.0f9a79cee3e31p-19), p = AX_FMA(p, s, 0x1.d76af6ca49295p-27);
  q = AX_FMA(q, w, -0x1.0cb4611cc29f6p-17), p = AX_FMA(p, s, -0x1.5c131500d3ec2p-23);
  q = AX_FMA(q, w, -0x1.af2329d757293p-17), p = AX_FMA(p, s, 0x1.b981d78881a3ap-20);
  q = AX_FMA(q, w, 0x1.0cb1db32e0c9fp-14), p = AX_FMA(p, s, -0x1.f4ca838adb737p-17);
  q = AX_FMA(q, w, 0x1.7b9fc8eb630e9p-15), p = AX_FMA(p, s, 0x1.f9a2be4f731a1p-14);
  q = AX_FMA(q, w, -0x1.39085a31b18abp-11), p = AX_FMA(p, s, -0x1.c02db0665e53dp-11);
  q = AX_FMA(q, w, 0x1.73101ea8fe252p-11), p = AX_FMA(p, s, 0x1.565bccfa44156p-8);
  q = AX_FMA(q, w, 0x1.17c838fea5806p-8), p = AX_FMA(p, s, -0x1.b82ce31203772p-6);
  q = AX_FMA(q, w, -0x1.8fa58eb5bd68fp-6), p = AX_FMA(p, s, 0x1.ce2f21a040f66p-4);
  q = AX_FMA(q, w, 0x1.258b13b0139fep-4), p = AX_FMA(p, s, -0x1.812746b0379c1p-2);
  q = AX_FMA(q, w, -0x1.336ffbef08cbbp-3), p = AX_FMA(p, s, 0x1.20dd750429b6dp+0);
  q = AX_FMA(q, w, 0x1.f6ff20410599bp-3);
  q = AX_FMA(q, w, -0x1.4e102b9cf8512p-2);
  q = AX_FMA(q, w, 0x1.6e9827d229d2dp-3);
  q = copysign(AX_FMA(-q, ax_exp_f64(-c * c), 1.0), x);
  return a > 1.0 ? q : p * x;
}

/* 1.5 ulp, also of subnormals.  exp(-x^2) times a polynomial over 1 + 2 x.  Half a bit lost in any
 * step of the quotient would be a whole one of results just below 1: it is kept in two parts. */
AX_FN double ax_erfc_f64(double x)
{
  const double a = fabs(x), c = a > 27.3 ? 27.3 : a, square = c * c, lost = AX_FMA(c, c, -square);
  /* w + w2 = (c - 3.5) / (c + 3.5) */
  const double inverse = 1.0 / (c + 3.5), v = (c - 3.5) * inverse;
  const double v2 = inverse * AX_FMA(v, -c, AX_FMA(v + 1.0, -3.5, c)), w = v + v2, w2 = (v - w) + v2,
               s = w * w;
  double p = 0x1.8f5e46bd7e201p-29, q = 0x1.8fa8480906413p-27, r, rest;
  const int64_t n = ax_exp_reduce_f64(-square, &r, &rest);

  p = AX_FMA(p, s, -0x1.299c523a16420p-27), q = AX_FMA(q, s, -0x1.a09c34ed820a6p-24);
  p = AX_FMA(p, s, 0x1.41030bb5a8945p-28), q = AX_FMA(q, s, 0x1.452bdb03095eap-21);
  p = AX_FMA(p, s, -0x1.ced920708041fp-25), q = AX_FMA(q, s, -0x1.004483e83ae6cp-18);
  p = AX_FMA(p, s, 0x1.391c0d73319acp-19), q = AX_FMA(q, s, 0x1.9710c2c620d6dp-16);
  p = AX_FMA(p, s, -0x1.66e50da1cfce1p-15), q = AX_FMA(q, s, -0x1.fda9a3df2745dp-14);
  p = AX_FMA(p, s, 0x1.27e66dbd6cb8cp-11), q = AX_FMA(q, s, -0x1.3cf362310b460p-12);
  p = AX_FMA(p, s, -0x1.143c4cc89f51fp-8), q = AX_FMA(q, s, 0x1.38ec666dbbb1dp-6);
  p = AX_FMA(p, s, -0x1.8ff5ef7689b99p-5), q = AX_FMA(q, s, 0x1.686106047c9b2p-4);
  p = AX_FMA(p, s, -0x1.d76830c35453bp-4), q = AX_FMA(q, s, 0x1.8f702ec6b2cb7p-4);
  p = AX_FMA(p, s, -0x1.59e2c284b0ffcp-7), q = AX_FMA(q, s, -0x1.1ebd220ea5934p-3);
  p = AX_FMA(q, w, p * s);
  const double top = 0x1.3e0a99a0ee914p+0 + p,
               top2 = AX_FMA(w2, AX_FMA(-0.75, w, 0.75), (0x1.3e0a99a0ee914p+0 - top) + p);
  const double under = AX_FMA(2.0, c, 1.0), under2 = AX_FMA(2.0, c, 1.0 - under), over = 1.0 / under;
  const double y = top * over, y2 = (AX_FMA(-y, under, top) - AX_FMA(y, under2, -top2)) * over;
  /* exp(near + less) - 1 */
  const double near = r - lost, less = ((r - near) - lost) + rest;
  const double e = near + AX_FMA(ax_exp_tail_f64(near), near * near, less);
  const double z = ax_scaled_f64(y + AX_FMA(y, e, AX_FMA(y2, e, y2)), n);
  return x < 0.0 ? 2.0 - z : z;
}

/* log(1 + v), or for a large x log(2 x), by one logarithm */
AX_FN double ax_log_of_sum_f64(double v, double x, int large)
{
  const double u = 1.0 + v, lost = (v - (u - 1.0)) / u;
  return ax_log_f64(large ? x : u) + (large ? 0x1.62e42fefa39efp-1 : lost);
}
/* These three: 1.6 ulp, as their float32 forms. */
AX_FN double ax_asinh_f64(double x)
{
  const double a = fabs(x), s = a > 1e9 ? 1e9 : a;
  const double y = ax_log_of_sum_f64(s + s * s / (1.0 + sqrt(AX_FMA(s, s, 1.0))), a, a > 1e9);
  return copysign(a < 1e-30 ? a : y, x);
}
AX_FN double ax_acosh_f64(double x)
{
  const double t = x - 1.0, s = t > 1e9 ? 1e9 : t;
  const double y = ax_log_of_sum_f64(s + sqrt(AX_FMA(s, s, s + s)), x, t > 1e9);
  return t < 0.0 ? (double)NAN : y; /* far below 1 the sum above is 0 or -1 */
}
AX_FN double ax_atanh_f64(double x)
{
  const double a = fabs(x);
  return copysign(0.5 * ax_log1p_f64((a + a) / (1.0 - a)), x);
}

#include "angles.h"

/* log x = high + low to 65 bits, for a positive finite x: 2 s + s^3 (2/3 + ..) with s = f / (2 +
 * f), s and its square in two parts each. */
AX_FN void ax_log_parts_f64(double x, double *high, double *low)
{
  double f;
  const double k = ax_log_reduce_f64(x, &f), d = 2.0 + f, lost = f - (d - 2.0), inverse = 1.0 / d;
  const double s = f * inverse, s2 = AX_FMA(-s, lost, AX_FMA(-s, d, f)) * inverse;
  const double z = s * s, z2 = AX_FMA(s + s, s2, AX_FMA(s, s, -z)), w = z * z;
  const double p = AX_FMA(AX_FMA(AX_FMA(0x1.e03a7acf07f85p-4, z, 0x1.df7ba1f4809c3p-4), w,
                                 AX_FMA(0x1.1118cd67251c5p-3, z, 0x1.3b1395b82701ep-3)),
                          w * w,
                          AX_FMA(AX_FMA(0x1.745d177ad436ap-3, z, 0x1.c71c71c6ea5acp-3), w,
                                 AX_FMA(0x1.2492492492522p-2, z, 0x1.999999999999ap-2)));
  const double q = z * p, t = 0x1.5555555555555p-1 + q,
               t2 = ((0x1.5555555555555p-1 - t) + q) + 0x1.5555555555555p-55;
  const double u = z * t, u2 = AX_FMA(z, t, -u) + AX_FMA(z, t2, z2 * t);
  const double v = s * u, v2 = AX_FMA(s, u, -v) + AX_FMA(s, u2, s2 * u);
  const double m = (s + s) + v, m2 = (((s + s) - m) + v) + (AX_FMA(2.0, s2, v2));
  /* ln 2 in two parts; k times the first is exact */
  const double a = k * 0x1.62e42fefa38p-1, y = a + m;
  *high = y;
  *low = ((a - y) + m) + AX_FMA(k, 0x1.ef35793c7673p-45, m2);
}

/* The sign and the special cases of a to the power b, whose size is y. */
AX_FN double ax_pow_ends_f64(double a, double b, double y)
{
  const double p = fabs(a), half = b * 0.5, whole = trunc(b), sign = half != trunc(half) ? a : 0.0;
  const double z = copysign(y, b == whole ? sign : 0.0); /* negative where b is odd */
  const double n = (a < 0.0) & (p < (double)INFINITY) & (b != whole) ? (double)NAN : z;
  return (b == 0.0) | (a == 1.0) | ((p == 1.0) & (fabs(b) == (double)INFINITY)) ? 1.0 : n;
}

/* a to the power b: 0.9 ulp, also of subnormals. */
AX_FN double ax_pow_f64(double a, double b)
{
  const double p = fabs(a);
  double high, low, r, rest;

  ax_log_parts_f64(p, &high, &low);
  high = ax_log_ends_f64(p, high);
  const double e = b * high, beyond = e < -800.0 ? -800.0 : e, c = beyond > 800.0 ? 800.0 : beyond;
  const double more = c == e ? AX_FMA(b, low, AX_FMA(b, high, -e)) : 0.0;
  const int64_t n = ax_exp_reduce_f64(c, &r, &rest);
  const double near = r + more;
  return ax_pow_ends_f64(a, b, ax_exp_scaled_f64(near, ((r - near) + more) + rest, n));
}

/* ---- functions of float32 whose steps lose too many bits there */

/* exp(x) to 39 bits, for |x| < 700. */
AX_FN double ax_exp_brief_f64(double x)
{
  const double t = AX_FMA(x, 0x1.71547652b82fep+0, AX_ROUNDER_F64), n = t - AX_ROUNDER_F64;
  const double r = AX_FMA(n, -0x1.62e42fefa39efp-1, x), s = r * r;
  const double tail = AX_FMA(AX_FMA(AX_FMA(0x1.a113930ccbff5p-16, r, 0x1.a152099da25bap-13), s,
                                    AX_FMA(0x1.6c1685542fcb2p-10, r, 0x1.1110c5ed7d6c9p-7)),
                             s, AX_FMA(0x1.5555555c910d6p-5, r, 0x1.555555676c1bbp-3));
  return (1.0 + AX_FMA(AX_FMA(tail, r, 0.5), s, r)) * ax_as_double((ax_as_bits64(t) + 1023u) << 52);
}

/* log(x) to 43 bits, for a positive finite normal x. */
AX_FN double ax_log_brief_f64(double x)
{
  const uint64_t u = ax_as_bits64(x), e = (u - 0x3fe6a09e667f3bcdu) & 0xfff0000000000000u;
  const double k = ax_as_double(((e + 0x4000000000000000u) >> 52) | 0x4330000000000000u) - 0x1p52 - 1024.0;
  const double f = ax_as_double(u - e) - 1.0, s = f / (2.0 + f), z = s * s, w = z * z;
  const double q = AX_FMA(AX_FMA(AX_FMA(0x1.54710166f7a8cp-3, z, 0x1.7382687cd8370p-3), w,
                                 AX_FMA(0x1.c71fcf7df6060p-3, z, 0x1.24924627dc195p-2)),
                          w, AX_FMA(0x1.9999999b88f9dp-2, z, 0x1.55555555553b6p-1));
  return AX_FMA(k, 0x1.62e42fefa39efp-1, AX_FMA(s * z, q, s + s));
}

/* 0.5005 ulp, also of subnormals. */
AX_FN float ax_pow_f32(float a, float b)
{
  const double p = fabs((double)a), e = b * ax_log_ends_f64(p, ax_log_brief_f64(p));
  const double low = e < -110.0 ? -110.0 : e;
  return (float)ax_pow_ends_f64(a, b, ax_exp_brief_f64(low > 90.0 ? 90.0 : low));
}

/* 0.503 ulp, also of subnormals.  exp(-x^2) t P(t) with t = 3 / (x + 3). */
AX_FN float ax_erfc_f32(float x)
{
  const double a = fabs((double)x), c = a > 10.1 ? 10.1 : a, t = 3.0 / (c + 3.0), s = t * t;
  double p = -0x1.c52a23a4196c4p-6, q = 0x1.7c32f3a2d534cp-3;

  p = AX_FMA(p, s, -0x1.ff04d3e026a1bp-2), q = AX_FMA(q, s, 0x1.5ca8db5f6d526p-1);
  p = AX_FMA(p, s, -0x1.2710384e42518p-1), q = AX_FMA(q, s, 0x1.b546f9cb378bdp-2);
  p = AX_FMA(p, s, -0x1.18b551701e3bbp-4), q = AX_FMA(q, s, 0x1.69b7e4f1da319p-3);
  p = AX_FMA(p, s, 0x1.2b50003c565eep-3), q = AX_FMA(q, s, 0x1.6ece84af22435p-3);
  p = AX_FMA(p, s, 0x1.80e5fdc4ffae5p-3), q = AX_FMA(q, s, 0x1.8129b9cb554b9p-3);
  p = AX_FMA(p, t, q) * t;
  p *= ax_exp_brief_f64(-c * c);
  return (float)(x < 0.0f ? 2.0 - p : p);
}

#else

#define AX_HAS_DOUBLES 0
#define AX_TRIG_LIMIT_F64 0.0
AX_FN double ax_exp_f64(double x) { return exp(x); }
AX_FN double ax_log_f64(double x) { return log(x); }
AX_FN double ax_tanh_f64(double x) { return tanh(x); }
AX_FN double ax_sin_f64(double x) { return sin(x); }
AX_FN double ax_cos_f64(double x) { return cos(x); }
AX_FN double ax_tan_f64(double x) { return tan(x); }
AX_FN double ax_expm1_f64(double x) { return expm1(x); }
AX_FN double ax_log1p_f64(double x) { return log1p(x); }
AX_FN double ax_sinh_f64(double x) { return sinh(x); }
AX_FN double ax_cosh_f64(double x) { return cosh(x); }
AX_FN double ax_erf_f64(double x) { return erf(x); }
AX_FN double ax_exp2_f64(double x) { return exp2(x); }
AX_FN double ax_log2_f64(double x) { return log2(x); }
AX_FN double ax_log10_f64(double x) { return log10(x); }
AX_FN double ax_erfc_f64(double x) { return erfc(x); }
AX_FN double ax_pow_f64(double a, double b) { return pow(a, b); }
AX_FN double ax_asinh_f64(double x) { return asinh(x); }
AX_FN double ax_acosh_f64(double x) { return acosh(x); }
AX_FN double ax_atanh_f64(double x) { return atanh(x); }
AX_FN double ax_asin_f64(double x) { return asin(x); }
AX_FN double ax_acos_f64(double x) { return acos(x); }
AX_FN double ax_atan_f64(double x) { return atan(x); }
AX_FN double ax_atan2_f64(double a, double b) { return atan2(a, b); }
AX_FN float ax_pow_f32(float a, float b) { return powf(a, b); }

#endif
#endif

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

#define AX_FMA(a, b, c) __builtin_fma(a, b, c)
/* Beyond this the reduction of sin and cos loses bits, and the caller uses libm's. */
#define AX_TRIG_LIMIT_F64 1e9
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

/* 0.8 ulp, also of subnormals. */
AX_FN double ax_exp_f64(double x)
{
  const double low = x < -746.0 ? -746.0 : x, c = low > 710.0 ? 710.0 : low;
  double r, rest;
  const int64_t n = ax_exp_reduce_f64(c, &r, &rest), half = (int64_t)((uint64_t)(n + 2048) >> 1) - 1024;
  const double h = 1.0 + r, p = h + AX_FMA(ax_exp_tail_f64(r), r * r, ((1.0 - h) + r) + rest);

  return p * ax_as_double((uint64_t)(half + 1023) << 52) * ax_as_double((uint64_t)(n - half + 1023) << 52);
}

/* 0.8 ulp. */
AX_FN double ax_log_f64(double x)
{
  const int tiny = x < 0x1p-1022;
  const uint64_t u = ax_as_bits64(x * (tiny ? 0x1p54 : 1.0)),
                 e = (u - 0x3fe6a09e667f3bcdu) & 0xfff0000000000000u;
  const double k = ax_as_double(((e + 0x4000000000000000u) >> 52) | 0x4330000000000000u) - 0x1p52 - 1024.0 -
                   (tiny ? 54.0 : 0.0);
  const double f = ax_as_double(u - e) - 1.0, s = f / (2.0 + f), z = s * s, w = z * z, h = 0.5 * f * f;
  const double q = AX_FMA(AX_FMA(0x1.0c9781649aedfp-3, z, 0x1.0fb04d4fa46d5p-3), w,
                          AX_FMA(0x1.3b1cbf421a490p-3, z, 0x1.745cf674f6887p-3));
  const double p = AX_FMA(q, w, AX_FMA(0x1.c71c72078b928p-3, z, 0x1.249249247343fp-2));
  const double t = z * AX_FMA(p, w, AX_FMA(0x1.9999999999a4fp-2, z, 0x1.5555555555555p-1));
  double y = AX_FMA(k, 0x1.62e42feep-1, -((h - AX_FMA(s, h + t, k * 0x1.a39ef35793c76p-33)) - f));

  y = x < (double)INFINITY ? y : x; /* +infinity and NaN */
  y = x == 0.0 ? -(double)INFINITY : y;
  return x < 0.0 ? (double)NAN : y;
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

/* sin(x + quarter * pi/2) for |x| <= AX_TRIG_LIMIT_F64: 0.8 ulp.  The first step of the reduction
 * is exact. */
AX_FN double ax_trig_f64(double x, uint64_t quarter)
{
  const double t = AX_FMA(x, 0x1.45f306dc9c883p-1, AX_ROUNDER_F64), j = t - AX_ROUNDER_F64;
  const uint64_t q = ax_as_bits64(t) + quarter;
  const double high = AX_FMA(j, -0x1.921fb54442d18p+0, x), w = j * 0x1.1a62633145c07p-54, r = high - w;
  const double low =
      AX_FMA(j, 0x1.f1976b7ed8fbcp-110, ((high - r) - w) - AX_FMA(j, 0x1.1a62633145c07p-54, -w));
  const double s = r * r, lost = AX_FMA(r, r, -s), h = 0.5 * s, one = 1.0 - h;
  double y = 0x1.5dfb4dfaf1553p-33, c = -0x1.906dd38cb6648p-37;

  y = AX_FMA(y, s, -0x1.ae5fdeb852565p-26);
  y = AX_FMA(y, s, 0x1.71de376b9c575p-19);
  y = AX_FMA(y, s, -0x1.a01a019e623afp-13);
  y = AX_FMA(y, s, 0x1.1111111110b23p-7);
  y = AX_FMA(y, s, -0x1.5555555555555p-3);
  y = r + AX_FMA(y * s, r, AX_FMA(low, -h, low)); /* low cos(r), nearly */
  c = AX_FMA(c, s, 0x1.1eeb52bea9071p-29);
  c = AX_FMA(c, s, -0x1.27e4fa025e03dp-22);
  c = AX_FMA(c, s, 0x1.a01a019f3df42p-16);
  c = AX_FMA(c, s, -0x1.6c16c16c1691fp-10);
  c = AX_FMA(c, s, 0x1.5555555555555p-5);
  c = one + (AX_FMA(c, s * s, (1.0 - one) - h) - AX_FMA(r, low, 0.5 * lost));
  y = q & 1u ? c : y;
  return ax_as_double(ax_as_bits64(y) ^ ((q & 2u) << 62));
}
AX_FN double ax_sin_f64(double x) /* -0 stays -0 */
{
  const double y = ax_trig_f64(x, 0);
  return x == 0.0 ? x : y;
}
AX_FN double ax_cos_f64(double x) { return ax_trig_f64(x, 1); }

/* a to the power b: 0.5001 ulp, computed in float64. */
AX_FN float ax_pow_f32(float a, float b)
{
  const float p = fabsf(a), half = b * 0.5f;
  const float y = (float)ax_exp_f64((double)b * ax_log_f64((double)p));
  const float sign = half != truncf(half) ? a : 0.0f; /* b is odd, or is not whole */
  const float z = copysignf(y, b == truncf(b) ? sign : 0.0f);
  const float n = (a < 0.0f) & (p < INFINITY) & (b != truncf(b)) ? NAN : z;
  return (b == 0.0f) | (a == 1.0f) | ((p == 1.0f) & (fabsf(b) == INFINITY)) ? 1.0f : n;
}

#else

#define AX_TRIG_LIMIT_F64 0.0
AX_FN double ax_exp_f64(double x) { return exp(x); }
AX_FN double ax_log_f64(double x) { return log(x); }
AX_FN double ax_tanh_f64(double x) { return tanh(x); }
AX_FN double ax_sin_f64(double x) { return sin(x); }
AX_FN double ax_cos_f64(double x) { return cos(x); }
AX_FN float ax_pow_f32(float a, float b) { return powf(a, b); }

#endif
#endif

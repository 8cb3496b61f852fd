/* The gamma function's logarithm and its derivatives, and the inverse of erf.  All of them compute
 * in float64 without branches, so that a compiler turns a loop over them into vector code; float32
 * rounds their results once.  Errors are measured against exact values. */
#ifndef AX_GAMMA_H
#define AX_GAMMA_H

#include "doubles.h"

#ifdef AX_FMA
#define AX_MADD(a, b, c) AX_FMA(a, b, c)
#else
#define AX_MADD(a, b, c) ((a) * (b) + (c))
#endif

#define AX_PI_F64 0x1.921fb54442d18p+1

/* sin(pi f) for |f| <= 1/2. */
AX_FN double ax_sin_pi(double f)
{
  const double s = f * f;
  double p = 0x1.9d46202015375p-21;
  p = AX_MADD(p, s, -0x1.6f7acdb8eea78p-16);
  p = AX_MADD(p, s, 0x1.e8f3675ee3480p-12);
  p = AX_MADD(p, s, -0x1.e3074dfaf87a2p-8);
  p = AX_MADD(p, s, 0x1.5078348551854p-4);
  p = AX_MADD(p, s, -0x1.32d2cce627c86p-1);
  p = AX_MADD(p, s, 0x1.466bc6775aa7dp+1);
  p = AX_MADD(p, s, -0x1.4abbce625be52p+2);
  return f * AX_MADD(p, s, AX_PI_F64);
}

/* ---- log |gamma(x)| */

/* lgamma(2 + r) / r for |r| <= 1/2 */
AX_FN double ax_lgamma_near(double r)
{
  const double s = r * r;
  double a = 0x1.11fa5e7c86f7bp-24, b = -0x1.2009c1a550d0dp-23; /* odd and even powers */
  a = AX_MADD(a, s, 0x1.b40adb09a1e12p-23), b = AX_MADD(b, s, -0x1.ce17528bcf460p-22);
  a = AX_MADD(a, s, 0x1.012012be3900ap-20), b = AX_MADD(b, s, -0x1.1276ebd557fb0p-19);
  a = AX_MADD(a, s, 0x1.258f3057730fap-18), b = AX_MADD(b, s, -0x1.3cb3be36ad88bp-17);
  a = AX_MADD(a, s, 0x1.580e0afa55850p-16), b = AX_MADD(b, s, -0x1.78de9ab752b81p-15);
  a = AX_MADD(a, s, 0x1.a127afee53e7dp-14), b = AX_MADD(b, s, -0x1.d3fd4b679c1c4p-13);
  a = AX_MADD(a, s, 0x1.0b36af8779ca0p-11), b = AX_MADD(b, s, -0x1.38ac5c2d48207p-10);
  a = AX_MADD(a, s, 0x1.7add6eadb5317p-9), b = AX_MADD(b, s, -0x1.e404fc218dbaep-8);
  a = AX_MADD(a, s, 0x1.51322ac7d848ap-6), b = AX_MADD(b, s, -0x1.13e001a55760ap-4);
  a = AX_MADD(a, s, 0x1.4a34cc4a60fa6p-2), b = AX_MADD(b, s, 0x1.b0ee6072093cep-2);
  return AX_MADD(a, r, b);
}

/* y >= 0: 4 ulp.  Below 8, gamma(y) is a product times gamma(2 + r), where r loses no bits;
 * from 8 on it is Stirling's series. */
#define AX_LGAMMA_STEP() \
  (less = t - 1.0, product = t > 2.5 ? product * less : product, t = t > 2.5 ? less : t)
AX_FN double ax_lgamma_right(double y)
{
  double t = y, product = 1.0, less, r, u, log_of, near, p, far;

  AX_LGAMMA_STEP();
  AX_LGAMMA_STEP();
  AX_LGAMMA_STEP();
  AX_LGAMMA_STEP();
  AX_LGAMMA_STEP();
  AX_LGAMMA_STEP();
  r = y < 1.5 ? (y < 0.5 ? y : y - 1.0) : t - 2.0;
  product = y < 1.5 ? (y < 0.5 ? y * (y + 1.0) : y) : product;
  log_of = ax_log_f64(y < 8.0 ? product : y);
  near = AX_MADD(r, ax_lgamma_near(r), y < 1.5 ? -log_of : log_of);
  t = 1.0 / y;
  u = t * t;
  p = AX_MADD(0x1.4bffc986bf769p-8, u, -0x1.ef8d747a3e87cp-10);
  p = AX_MADD(p, u, 0x1.b92c33f89d4f4p-11);
  p = AX_MADD(p, u, -0x1.38134d4f87051p-11);
  p = AX_MADD(p, u, 0x1.a01a017dcf9c3p-11);
  p = AX_MADD(p, u, -0x1.6c16c16c149f4p-9);
  p = AX_MADD(p, u, 0x1.5555555555555p-4);
  far = AX_MADD(y - 0.5, log_of - 1.0, AX_MADD(p, t, 0x1.acfe390c97d69p-2));
  far = y < (double)INFINITY ? far : y;
  return y < 8.0 ? near : far;
}

/* gamma(x) gamma(-x) = -pi / (x sin(pi x)).  Below 0 the error is 4 ulp of the larger of |x log x|
 * and 1, which is more than a few units in the last place only beside the zeros. */
AX_FN double ax_lgamma_f64(double x)
{
  const double a = fabs(x), f = a - rint(a), right = ax_lgamma_right(a);
  const double left = ax_log_f64(AX_PI_F64 / (a * fabs(ax_sin_pi(f)))) - right;
  const double y = f == 0.0 ? (double)INFINITY : left;
  return (x < -1e-30) & (a < (double)INFINITY) ? y : right;
}

/* ---- its derivative */

/* y >= 0: 9 ulp of the value or of 1.  Below 8 the sum of 1 / (y + k) as one fraction
 * leads to y + 8. */
#define AX_FRACTION_STEP(k) (above = AX_MADD(above, y + (k), below), below *= y + (k))
AX_FN double ax_digamma_right(double y)
{
  const int small = y < 8.0;
  const double z = small ? y + 8.0 : y, t = 1.0 / z, u = t * t;
  double above = 1.0, below = y, p;

  AX_FRACTION_STEP(1.0);
  AX_FRACTION_STEP(2.0);
  AX_FRACTION_STEP(3.0);
  AX_FRACTION_STEP(4.0);
  AX_FRACTION_STEP(5.0);
  AX_FRACTION_STEP(6.0);
  AX_FRACTION_STEP(7.0);
  p = AX_MADD(0x1.0497fba73f6adp-4, u, -0x1.531da6a7ddfeap-6);
  p = AX_MADD(p, u, 0x1.f037df4a3d038p-8);
  p = AX_MADD(p, u, -0x1.1110b33fbea9cp-8);
  p = AX_MADD(p, u, 0x1.041040c629207p-8);
  p = AX_MADD(p, u, -0x1.11111111095e6p-7);
  p = AX_MADD(p, u, 0x1.5555555555555p-4);
  p = ax_log_f64(z) - AX_MADD(p, u, 0.5 * t);
  return p - (small ? above / below : 0.0);
}

/* digamma(-a) = digamma(a) + 1 / a + pi cot(pi a); at 0 it has the sign of -1 / x, at other poles
 * none. */
AX_FN double ax_digamma_f64(double x)
{
  const double a = fabs(x), f = a - rint(a), right = ax_digamma_right(a);
  const double cosine = ax_sin_pi(0.5 - fabs(f)), sine = ax_sin_pi(f);
  const double left = right + (1.0 / a + AX_PI_F64 * cosine / sine);
  double y = f == 0.0 ? (double)NAN : left;
  y = a < 1e-17 ? 1.0 / a : y;
  y = x < 0.0 ? y : right;
  return x == 0.0 ? -1.0 / x : y;
}

/* ---- the derivatives of that: polygamma(n, x) = (-1)^(n + 1) n! zeta(n + 1, x) */

enum { AX_ZETA_SMALL = 15, AX_ZETA_TERMS = 8 };

typedef struct ax_polygamma_numbers {
  int s;                        /* n + 1 */
  double factor;                /* (-1)^(n + 1) n! */
  double inverse;               /* 1 / (s - 1) */
  double series[AX_ZETA_TERMS]; /* B(2k) / (2k)! s (s + 1) ... (s + 2k - 2), B the Bernoulli numbers */
} ax_polygamma_numbers;

static inline ax_polygamma_numbers ax_polygamma_of(int64_t n)
{
  static const double bernoulli[AX_ZETA_TERMS] = {
    /* B(2k) / (2k)! */
    0.083333333333333333,  -0.0013888888888888889,  3.3068783068783069e-5,  -8.2671957671957672e-7,
    2.0876756987868099e-8, -5.2841901386874932e-10, 1.3382536530684679e-11, -3.3896802963225829e-13
  };
  const int top = n < 1000 ? (int)n : 1000 + (int)(n & 1); /* n! is infinite from 171 on */
  ax_polygamma_numbers z = { .s = top + 1, .factor = top & 1 ? 1.0 : -1.0, .inverse = 1.0 / top };
  double product = z.s;

  for (int k = 2; k <= top; k++) z.factor *= k;
  for (int k = 0; k < AX_ZETA_TERMS; k++) {
    z.series[k] = bernoulli[k] * product;
    product *= (z.s + 2.0 * k + 1.0) * (z.s + 2.0 * k + 2.0);
  }
  return z;
}

/* t^s for s up to AX_ZETA_SMALL.  A constant s leaves its products alone. */
AX_FN double ax_small_power(double t, int s)
{
  const double two = t * t, four = two * two, eight = four * four;
  const double low = (s & 1 ? t : 1.0) * (s & 2 ? two : 1.0);
  return s & 12 ? low * ((s & 4 ? four : 1.0) * (s & 8 ? eight : 1.0)) : low;
}

/* The sum of (far + k)^-s over k from 0, by the formula of Euler and Maclaurin.
 * power: far^(1 - s) */
AX_FN double ax_zeta_tail(const ax_polygamma_numbers *z, double far, double power)
{
  const double t = 1.0 / far, u = t * t;
  double p = z->series[7];
  p = AX_MADD(p, u, z->series[6]);
  p = AX_MADD(p, u, z->series[5]);
  p = AX_MADD(p, u, z->series[4]);
  p = AX_MADD(p, u, z->series[3]);
  p = AX_MADD(p, u, z->series[2]);
  p = AX_MADD(p, u, z->series[1]);
  p = AX_MADD(p, u, z->series[0]);
  return power * AX_MADD(t, AX_MADD(p, t, 0.5), z->inverse);
}

/* zeta(s, q) for q >= 0 and s up to AX_ZETA_SMALL: 4 ulp for s = 2, up to 17 for s = 15.  Below 16,
 * eight terms as one fraction come first. */
#define AX_ZETA_STEP(k) \
  (power = ax_small_power(q + (k), s), above = AX_MADD(above, power, below), below *= power)
AX_FN double ax_zeta_small(const ax_polygamma_numbers *z, int s, double q)
{
  const int near = q < 16.0;
  const double far = near ? q + 8.0 : q;
  double above = 1.0, below = ax_small_power(q, s), power;

  AX_ZETA_STEP(1.0);
  AX_ZETA_STEP(2.0);
  AX_ZETA_STEP(3.0);
  AX_ZETA_STEP(4.0);
  AX_ZETA_STEP(5.0);
  AX_ZETA_STEP(6.0);
  AX_ZETA_STEP(7.0);
  return ax_zeta_tail(z, far, ax_small_power(1.0 / far, s - 1)) + (near ? above / below : 0.0);
}

/* Any s: more terms come first, one by one. */
AX_FN double ax_zeta_large(const ax_polygamma_numbers *z, int s, double q)
{
  const int terms = q < 8 + s / 2 ? 8 + s / 2 : 0;
  double sum = 0.0;
  for (int k = 0; k < terms; k++) sum += pow(q + k, -s);
  return ax_zeta_tail(z, q + terms, pow(q + terms, 1 - s)) + sum;
}

/* Below 0 the terms fall into those above it, zeta(s, 1 - g) with the fraction g of |x|, and a
 * finite sum below it: two zetas of |x| and the like, whose terms have the sign of (-1)^s. */
#define AX_POLYGAMMA(zeta, z, s, x) \
  const double a = fabs(x), g = a - floor(a); \
  const double right = zeta(z, s, x > 0.0 ? a : a + 1.0), low = zeta(z, s, g) - right; \
  const double left = zeta(z, s, 1.0 - g) + (s & 1 ? -low : low); \
  const double y = x > 0.0 ? right : g == 0.0 ? (double)INFINITY : left; \
  return (z->factor) * y;
AX_FN double ax_polygamma_small(const ax_polygamma_numbers *z, int s,
                                double x){ AX_POLYGAMMA(ax_zeta_small, z, s, x) } AX_FN
    double ax_polygamma_large(const ax_polygamma_numbers *z, int s,
                              double x){ AX_POLYGAMMA(ax_zeta_large, z, s, x) }

/* ---- the inverse of erf */

/* 4 ulp (6 without FMA): the three rational functions of Wichura's algorithm AS 241 for the normal
 * distribution's inverse.  TAIL: those beyond |x| = 1 - 2^-35, which no float32 reaches. */
AX_FN double ax_erfinv_of(double x, int tail)
{
  const double a = fabs(x), r = AX_MADD(-0.25 * x, x, 0.180625);
  const double w = sqrt(-ax_log_f64(0.5 - 0.5 * a)), v = w - 1.6;
  double p = 2.5090809287301226727e+3, q = 5.2264952788528545610e+3, y;
  double m = 7.74545014278341407640e-4, d = 1.05075007164441684324e-9;

  p = AX_MADD(p, r, 3.3430575583588128105e+4), q = AX_MADD(q, r, 2.8729085735721942674e+4);
  p = AX_MADD(p, r, 6.7265770927008700853e+4), q = AX_MADD(q, r, 3.9307895800092710610e+4);
  p = AX_MADD(p, r, 4.5921953931549871457e+4), q = AX_MADD(q, r, 2.1213794301586595867e+4);
  p = AX_MADD(p, r, 1.3731693765509461125e+4), q = AX_MADD(q, r, 5.3941960214247511077e+3);
  p = AX_MADD(p, r, 1.9715909503065514427e+3), q = AX_MADD(q, r, 6.8718700749205790830e+2);
  p = AX_MADD(p, r, 1.3314166789178437745e+2), q = AX_MADD(q, r, 4.2313330701600911252e+1);
  p = AX_MADD(p, r, 3.3871328727963666080e+0), q = AX_MADD(q, r, 1.0);
  m = AX_MADD(m, v, 2.27238449892691845833e-2), d = AX_MADD(d, v, 5.47593808499534494600e-4);
  m = AX_MADD(m, v, 2.41780725177450611770e-1), d = AX_MADD(d, v, 1.51986665636164571966e-2);
  m = AX_MADD(m, v, 1.27045825245236838258e+0), d = AX_MADD(d, v, 1.48103976427480074590e-1);
  m = AX_MADD(m, v, 3.64784832476320460504e+0), d = AX_MADD(d, v, 6.89767334985100004550e-1);
  m = AX_MADD(m, v, 5.76949722146069140550e+0), d = AX_MADD(d, v, 1.67638483018380384940e+0);
  m = AX_MADD(m, v, 4.63033784615654529590e+0), d = AX_MADD(d, v, 2.05319162663775882187e+0);
  m = AX_MADD(m, v, 1.42343711074968357734e+0), d = AX_MADD(d, v, 1.0);
  if (tail) { /* a constant */
    const double t = w - 5.0;
    double o = 2.01033439929228813265e-7, e = 2.04426310338993978564e-15;
    o = AX_MADD(o, t, 2.71155556874348757815e-5), e = AX_MADD(e, t, 1.42151175831644588870e-7);
    o = AX_MADD(o, t, 1.24266094738807843860e-3), e = AX_MADD(e, t, 1.84631831751005468180e-5);
    o = AX_MADD(o, t, 2.65321895265761230930e-2), e = AX_MADD(e, t, 7.86869131145613259100e-4);
    o = AX_MADD(o, t, 2.96560571828504891230e-1), e = AX_MADD(e, t, 1.48753612908506148525e-2);
    o = AX_MADD(o, t, 1.78482653991729133580e+0), e = AX_MADD(e, t, 1.36929880922735805310e-1);
    o = AX_MADD(o, t, 5.46378491116411436990e+0), e = AX_MADD(e, t, 5.99832206555887937690e-1);
    o = AX_MADD(o, t, 6.65790464350110377720e+0), e = AX_MADD(e, t, 1.0);
    m = w > 5.0 ? o : m, d = w > 5.0 ? e : d;
  }
  m = a > 0.85 ? m : p * a * 0.5;
  d = a > 0.85 ? d : q;
  y = 0x1.6a09e667f3bcdp-1 * (m / d);
  y = a == 1.0 ? (double)INFINITY : y;
  return copysign(y, x);
}
AX_FN double ax_erfinv_f64(double x) { return ax_erfinv_of(x, 1); }
AX_FN float ax_erfinv_f32(float x) { return (float)ax_erfinv_of(x, 0); }
AX_FN float ax_lgamma_f32(float x) { return (float)ax_lgamma_f64(x); }
AX_FN float ax_digamma_f32(float x) { return (float)ax_digamma_f64(x); }

#endif

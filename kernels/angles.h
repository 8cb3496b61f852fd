/* Functions in float64 of angles, and those that give angles.  A part of doubles.h, which includes
 * this file in its middle: what it says of its functions holds for these. */
#ifndef AX_ANGLES_H
#define AX_ANGLES_H

/* Beyond this the reduction of sin and cos loses bits, and the caller uses libm's. */
#define AX_TRIG_LIMIT_F64 1e9

/* (asin(r) / r - 1) / s for s = r^2 up to 1/4. */
AX_FN double ax_asin_tail_f64(double s)
{
  double p = 0x1.d72b2bc8155f8p-6;

  p = AX_FMA(p, s, -0x1.e6aaa8a0a04ccp-7);
  p = AX_FMA(p, s, 0x1.1d189408314eep-6);
  p = AX_FMA(p, s, 0x1.65a9c4dfcf8b2p-8);
  p = AX_FMA(p, s, 0x1.52420b04b37bep-7);
  p = AX_FMA(p, s, 0x1.782651caa6547p-7);
  p = AX_FMA(p, s, 0x1.c9cf07674736ap-7);
  p = AX_FMA(p, s, 0x1.1c4d35cf95421p-6);
  p = AX_FMA(p, s, 0x1.6e8bb1c8209a2p-6);
  p = AX_FMA(p, s, 0x1.f1c71c1db0623p-6);
  p = AX_FMA(p, s, 0x1.6db6db6e31f13p-5);
  p = AX_FMA(p, s, 0x1.3333333332ecap-4);
  p = AX_FMA(p, s, 0x1.5555555555556p-3);
  return p;
}
/* 1.1 ulp; acos 1 ulp.  Beyond 1/2 it is pi/2 - 2 asin(r) with r = sqrt((1 - a) / 2); lost is what
 * the root's rounding took. */
AX_FN double ax_asin_f64(double x)
{
  const double a = fabs(x), s = a > 0.5 ? 0.5 - 0.5 * a : a * a, r = a > 0.5 ? sqrt(s) : a;
  const double lost = r > 0.0 ? AX_FMA(-r, r, s) / (r + r) : 0.0, t = r * (s * ax_asin_tail_f64(s));
  const double far = (0x1.921fb54442d18p+0 - (r + r)) - (2.0 * (t + lost) - 0x1.1a62633145c07p-54);
  return copysign(a > 0.5 ? far : r + t, x);
}
AX_FN double ax_acos_f64(double x)
{
  const double a = fabs(x), s = a > 0.5 ? 0.5 - 0.5 * a : a * a, r = a > 0.5 ? sqrt(s) : a;
  const double lost = r > 0.0 ? AX_FMA(-r, r, s) / (r + r) : 0.0, t = r * (s * ax_asin_tail_f64(s));
  const double y = r + (t + lost), back = 0x1.1a62633145c07p-53 - 2.0 * (t + lost);
  const double far = x > 0.0 ? y + y : (0x1.921fb54442d18p+1 - (r + r)) + back;
  return a > 0.5 ? far : 0x1.921fb54442d18p+0 - (x - (0x1.1a62633145c07p-54 - copysign(t, x)));
}

/* 1.3 ulp: the angle of the point (x, y), neither below 0.  It is turned by 0, 45 or 90 degrees to
 * within 22.5 degrees of an axis. */
AX_FN double ax_angle_f64(double y, double x)
{
  const int far = y > 2.414213562373095 * x, near = y <= 0.41421356237309503 * x;
  const double above = near ? y : far ? -x : y - x, below = near ? x : far ? y : y + x;
  const double high = near ? 0.0 : far ? 0x1.921fb54442d18p+0 : 0x1.921fb54442d18p-1;
  const double low = near ? 0.0 : far ? 0x1.1a62633145c07p-54 : 0x1.1a62633145c07p-55;
  const double r = above / (below == 0.0 ? 1.0 : below), s = r * r;
  double p = 0x1.0a997ba33c1dbp-6;

  p = AX_FMA(p, s, -0x1.1b1992aa413c9p-5);
  p = AX_FMA(p, s, 0x1.74d3a7b43351ap-5);
  p = AX_FMA(p, s, -0x1.ac7858539e493p-5);
  p = AX_FMA(p, s, 0x1.e199c62156609p-5);
  p = AX_FMA(p, s, -0x1.110e84aa36d9dp-4);
  p = AX_FMA(p, s, 0x1.3b1392a9c2d8bp-4);
  p = AX_FMA(p, s, -0x1.745d165c497f3p-4);
  p = AX_FMA(p, s, 0x1.c71c71c2fc236p-4);
  p = AX_FMA(p, s, -0x1.249249248d739p-3);
  p = AX_FMA(p, s, 0x1.9999999999952p-3);
  p = AX_FMA(p, s, -0x1.5555555555555p-2);
  return high + (r + AX_FMA(p * s, r, low));
}
AX_FN double ax_atan_f64(double x) { return copysign(ax_angle_f64(fabs(x), 1.0), x); }
AX_FN double ax_atan2_f64(double a, double b)
{
  const double p = fabs(a), q = fabs(b);
  const int both = p == (double)INFINITY && q == (double)INFINITY; /* 45 degrees */
  const double scale = p > 1e300 || q > 1e300 ? 0x1p-60 : 1.0;     /* p + q stays finite */
  const double y = ax_angle_f64(both ? 1.0 : p * scale, both ? 1.0 : q * scale);
  const double z = (int64_t)ax_as_bits64(b) < 0 ? (0x1.921fb54442d18p+1 - y) + 0x1.1a62633145c07p-53 : y;
  return copysign(z, a);
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
AX_FN double ax_tan_f64(double x) /* 1.6 ulp */
{
  const double y = ax_trig_f64(x, 0) / ax_trig_f64(x, 1);
  return x == 0.0 ? x : y;
}

#endif

/* Fourier transforms of as many lines at once as a vector has lanes, for one element type.  The
 * file that includes this defines T and its vector V of FN(LANES), FN(name) and FMA(a, b, c), and
 * includes fft_moves.h before.
 *
 * Real and imaginary parts stand apart: re[j] holds position j of all lanes.  Every pass reads one
 * buffer and writes the other (Stockham's order, so nothing is permuted at the end).  Only the
 * forward transform exists; the inverse one swaps real and imaginary parts before and after. */

/* A transform of n positions in passes of one factor each.  twiddle[p] has the factors of pass p,
 * those of position i and output j at 2 (i (f - 1) + j - 1). */
typedef struct FN(passes) {
  int n, count;
  int factor[32];
  T *twiddle[32];
  T *roots; /* cosines and sines of 2 pi k / f, for each of the odd factors above 5, one by one */
} FN(passes);

/* Complex numbers in memory that a first pass reads: position j of all lanes at at + j step.  at
 * NULL: it reads lanes.  next: what is fetched meanwhile, in the same steps. */
typedef struct FN(numbers) {
  const T *at, *next;
  int64_t step;
  bool inverse; /* the parts change places */
} FN(numbers);

static inline __attribute__((always_inline)) void FN(read)(const FN(numbers) from, const V *xr, const V *xi,
                                                           int j, V *re, V *im)
{
  if (!from.at) {
    *re = xr[j], *im = xi[j];
    return;
  }
  fft_fetch_narrow(from.next + j * from.step);
  fft_fetch_narrow(from.next + j * from.step + FN(LANES));
  FN(part)(from.at + j * from.step, from.inverse ? im : re, from.inverse ? re : im);
}

/* step: from one output to the next; plain: the last pass, whose twiddles are all 1 */
#define PASS(name) \
  static inline __attribute__((always_inline)) void name(int ido, int l1, int step, const V *restrict xr, \
                                                         const V *restrict xi, V *restrict yr, \
                                                         V *restrict yi, const T *w, bool plain)
#define FIRST_PASS(name) \
  static inline __attribute__((always_inline)) void name(const FN(numbers) from, int ido, int l1, int step, \
                                                         const V *restrict xr, const V *restrict xi, \
                                                         V *restrict yr, V *restrict yi, const T *w, \
                                                         bool plain)
#define LATER_PASS(radix) \
  PASS(FN(pass##radix)) { FN(first##radix)((FN(numbers)){ 0 }, ido, l1, step, xr, xi, yr, yi, w, plain); }
#define SPLAT(number) ((number) - (V){ 0 }) /* adding 0 would cost an instruction, for -0 */
#define IN(j) (i + ido * ((j) + RADIX * k))
#define OUT(j) (i + ido * k + step * (j))

/* y[at] = (re + i im) times the twiddle j of position i */
#define PUT(j, re, im) \
  do { \
    const V r_ = (re), m_ = (im); \
    if (plain) { \
      yr[OUT(j)] = r_; \
      yi[OUT(j)] = m_; \
      break; \
    } \
    const T c_ = w[2 * (i * (RADIX - 1) + (j)-1)], s_ = w[2 * (i * (RADIX - 1) + (j)-1) + 1]; \
    yr[OUT(j)] = FMA(r_, SPLAT(c_), -(m_ * s_)); \
    yi[OUT(j)] = FMA(r_, SPLAT(s_), m_ * c_); \
  } while (0)

#define RADIX 2
PASS(FN(pass2))
{
  for (int k = 0; k < l1; k++)
    for (int i = 0; i < ido; i++) {
      const V ar = xr[IN(0)], ai = xi[IN(0)], br = xr[IN(1)], bi = xi[IN(1)];
      yr[OUT(0)] = ar + br;
      yi[OUT(0)] = ai + bi;
      PUT(1, ar - br, ai - bi);
    }
}
#undef RADIX

#define RADIX 3
PASS(FN(pass3))
{
  const T c = (T)-0.5, s = (T)-0.86602540378443864676;
  for (int k = 0; k < l1; k++)
    for (int i = 0; i < ido; i++) {
      const V sr = xr[IN(1)] + xr[IN(2)], si = xi[IN(1)] + xi[IN(2)];
      const V dr = (xr[IN(1)] - xr[IN(2)]) * s, di = (xi[IN(1)] - xi[IN(2)]) * s;
      const V mr = FMA(sr, SPLAT(c), xr[IN(0)]), mi = FMA(si, SPLAT(c), xi[IN(0)]);
      yr[OUT(0)] = xr[IN(0)] + sr;
      yi[OUT(0)] = xi[IN(0)] + si;
      PUT(1, mr - di, mi + dr);
      PUT(2, mr + di, mi - dr);
    }
}
#undef RADIX

#define RADIX 4
PASS(FN(pass4))
{
  for (int k = 0; k < l1; k++)
    for (int i = 0; i < ido; i++) {
      const V sr = xr[IN(0)] + xr[IN(2)], si = xi[IN(0)] + xi[IN(2)];
      const V dr = xr[IN(0)] - xr[IN(2)], di = xi[IN(0)] - xi[IN(2)];
      const V tr = xr[IN(1)] + xr[IN(3)], ti = xi[IN(1)] + xi[IN(3)];
      const V er = xr[IN(1)] - xr[IN(3)], ei = xi[IN(1)] - xi[IN(3)];
      yr[OUT(0)] = sr + tr;
      yi[OUT(0)] = si + ti;
      PUT(1, dr + ei, di - er);
      PUT(2, sr - tr, si - ti);
      PUT(3, dr - ei, di + er);
    }
}
#undef RADIX

#define RADIX 8
FIRST_PASS(FN(first8))
{
  const T h = (T)0.70710678118654752440;
  for (int k = 0; k < l1; k++)
    for (int i = 0; i < ido; i++) {
      V sr[4], si[4], dr[4], di[4];
      FFT_UNROLL
      for (int j = 0; j < 4; j++) {
        V ar, ai, br, bi;
        FN(read)(from, xr, xi, IN(j), &ar, &ai);
        FN(read)(from, xr, xi, IN(j + 4), &br, &bi);
        sr[j] = ar + br, si[j] = ai + bi, dr[j] = ar - br, di[j] = ai - bi;
      }
      { /* even places: a transform of 4 sums */
        const V ar = sr[0] + sr[2], ai = si[0] + si[2], br = sr[1] + sr[3], bi = si[1] + si[3];
        const V cr = sr[0] - sr[2], ci = si[0] - si[2], er = sr[1] - sr[3], ei = si[1] - si[3];
        yr[OUT(0)] = ar + br;
        yi[OUT(0)] = ai + bi;
        PUT(4, ar - br, ai - bi);
        PUT(2, cr + ei, ci - er);
        PUT(6, cr - ei, ci + er);
      }
      { /* odd places: of 4 differences, turned by eighths; p and q still lack the factor h */
        const V pr = dr[1] + di[1], pi = di[1] - dr[1], qr = di[3] - dr[3], qi = -(di[3] + dr[3]);
        const V ar = dr[0] + di[2], ai = di[0] - dr[2], br = pr + qr, bi = pi + qi;
        const V cr = dr[0] - di[2], ci = di[0] + dr[2], er = pr - qr, ei = pi - qi;
        PUT(1, FMA(br, SPLAT(h), ar), FMA(bi, SPLAT(h), ai));
        PUT(5, FMA(br, SPLAT(-h), ar), FMA(bi, SPLAT(-h), ai));
        PUT(3, FMA(ei, SPLAT(h), cr), FMA(er, SPLAT(-h), ci));
        PUT(7, FMA(ei, SPLAT(-h), cr), FMA(er, SPLAT(h), ci));
      }
    }
}
LATER_PASS(8)
#undef RADIX

#define RADIX 5
PASS(FN(pass5))
{
  const T c1 = (T)0.30901699437494742410, c2 = (T)-0.80901699437494742410, s1 = (T)-0.95105651629515357212,
          s2 = (T)-0.58778525229247312917;
  for (int k = 0; k < l1; k++)
    for (int i = 0; i < ido; i++) {
      const V ar = xr[IN(1)] + xr[IN(4)], ai = xi[IN(1)] + xi[IN(4)];
      const V br = xr[IN(2)] + xr[IN(3)], bi = xi[IN(2)] + xi[IN(3)];
      const V pr = xr[IN(1)] - xr[IN(4)], pi = xi[IN(1)] - xi[IN(4)];
      const V qr = xr[IN(2)] - xr[IN(3)], qi = xi[IN(2)] - xi[IN(3)];
      const V ur = FMA(ar, SPLAT(c1), FMA(br, SPLAT(c2), xr[IN(0)]));
      const V ui = FMA(ai, SPLAT(c1), FMA(bi, SPLAT(c2), xi[IN(0)]));
      const V vr = FMA(ar, SPLAT(c2), FMA(br, SPLAT(c1), xr[IN(0)]));
      const V vi = FMA(ai, SPLAT(c2), FMA(bi, SPLAT(c1), xi[IN(0)]));
      const V er = FMA(pr, SPLAT(s1), qr * s2), ei = FMA(pi, SPLAT(s1), qi * s2);
      const V fr = FMA(pr, SPLAT(s2), -(qr * s1)), fi = FMA(pi, SPLAT(s2), -(qi * s1));
      yr[OUT(0)] = xr[IN(0)] + ar + br;
      yi[OUT(0)] = xi[IN(0)] + ai + bi;
      PUT(1, ur - ei, ui + er);
      PUT(4, ur + ei, ui - er);
      PUT(2, vr - fi, vi + fr);
      PUT(3, vr + fi, vi - fr);
    }
}
#undef RADIX

/* y[0 .. 3] = the transform of four numbers. */
static inline __attribute__((always_inline)) void FN(four)(const V *xr, const V *xi, V *yr, V *yi)
{
  const V sr = xr[0] + xr[2], si = xi[0] + xi[2], dr = xr[0] - xr[2], di = xi[0] - xi[2];
  const V tr = xr[1] + xr[3], ti = xi[1] + xi[3], er = xr[1] - xr[3], ei = xi[1] - xi[3];
  yr[0] = sr + tr, yi[0] = si + ti;
  yr[1] = dr + ei, yi[1] = di - er;
  yr[2] = sr - tr, yi[2] = si - ti;
  yr[3] = dr - ei, yi[3] = di + er;
}

/* y[0 .. 2] = the transform of three numbers. */
static inline __attribute__((always_inline)) void FN(three)(const V *xr, const V *xi, V *yr, V *yi)
{
  const T c = (T)-0.5, s = (T)-0.86602540378443864676;
  const V sr = xr[1] + xr[2], si = xi[1] + xi[2];
  const V dr = (xr[1] - xr[2]) * s, di = (xi[1] - xi[2]) * s;
  const V mr = FMA(sr, SPLAT(c), xr[0]), mi = FMA(si, SPLAT(c), xi[0]);
  yr[0] = xr[0] + sr, yi[0] = xi[0] + si;
  yr[1] = mr - di, yi[1] = mi + dr;
  yr[2] = mr + di, yi[2] = mi - dr;
}

/* (r + i m) (c - i s), in place. */
static inline __attribute__((always_inline)) void FN(turned)(V *r, V *m, T c, T s)
{
  const V x = *r, y = *m;
  *r = FMA(x, SPLAT(c), y * s);
  *m = FMA(y, SPLAT(c), -(x * s));
}

#define RADIX 9
PASS(FN(pass9))
{
  const T c[] = { 1, (T)0.76604444311897803520, (T)0.17364817766693034885, 0, (T)-0.93969262078590838405 };
  const T s[] = { 0, (T)0.64278760968653932632, (T)0.98480775301220805937, 0, (T)0.34202014332566873304 };
  for (int k = 0; k < l1; k++)
    for (int i = 0; i < ido; i++) {
      V ur[3][3], ui[3][3], vr[3], vi[3];
      FFT_UNROLL
      for (int a = 0; a < 3; a++) {
        const V r[3] = { xr[IN(a)], xr[IN(a + 3)], xr[IN(a + 6)] };
        const V m[3] = { xi[IN(a)], xi[IN(a + 3)], xi[IN(a + 6)] };
        FN(three)(r, m, vr, vi);
        FFT_UNROLL
        for (int b = 0; b < 3; b++) {
          if (a > 0 && b > 0) FN(turned)(vr + b, vi + b, c[a * b], s[a * b]);
          ur[b][a] = vr[b], ui[b][a] = vi[b];
        }
      }
      FFT_UNROLL
      for (int b = 0; b < 3; b++) {
        FN(three)(ur[b], ui[b], vr, vi);
        if (b == 0) {
          yr[OUT(0)] = vr[0];
          yi[OUT(0)] = vi[0];
        } else PUT(b, vr[0], vi[0]);
        PUT(b + 3, vr[1], vi[1]);
        PUT(b + 6, vr[2], vi[2]);
      }
    }
}
#undef RADIX

#define RADIX 16
FIRST_PASS(FN(first16))
{
  const T c1 = (T)0.92387953251128675613, s1 = (T)0.38268343236508977173, h = (T)0.70710678118654752440;
  const T c[] = { 1, c1, h, s1, 0, 0, -h, 0, 0, -c1 };
  const T s[] = { 0, s1, h, c1, 1, 0, h, 0, 0, -s1 };
  for (int k = 0; k < l1; k++)
    for (int i = 0; i < ido; i++) {
      V ur[4][4], ui[4][4], vr[4], vi[4];
      FFT_UNROLL
      for (int a = 0; a < 4; a++) {
        V r[4], m[4];
        FFT_UNROLL
        for (int j = 0; j < 4; j++) FN(read)(from, xr, xi, IN(a + 4 * j), r + j, m + j);
        FN(four)(r, m, vr, vi);
        FFT_UNROLL
        for (int b = 0; b < 4; b++) {
          if (a * b == 4) {
            const V t = vr[b];
            vr[b] = vi[b], vi[b] = -t;
          } else if (a > 0 && b > 0) FN(turned)(vr + b, vi + b, c[a * b], s[a * b]);
          ur[b][a] = vr[b], ui[b][a] = vi[b];
        }
      }
      FFT_UNROLL
      for (int b = 0; b < 4; b++) {
        FN(four)(ur[b], ui[b], vr, vi);
        if (b == 0) {
          yr[OUT(0)] = vr[0];
          yi[OUT(0)] = vi[0];
        } else PUT(b, vr[0], vi[0]);
        PUT(b + 4, vr[1], vi[1]);
        PUT(b + 8, vr[2], vi[2]);
        PUT(b + 12, vr[3], vi[3]);
      }
    }
}
LATER_PASS(16)
#undef RADIX

/* Any odd factor: sums and differences of positions that stand opposite each other. */
static inline __attribute__((always_inline)) void FN(pass_odd)(int f, const T *roots, int ido, int l1,
                                                               int step, const V *restrict xr,
                                                               const V *restrict xi, V *restrict yr,
                                                               V *restrict yi, const T *w, bool plain)
{
  V sr[LARGEST / 2 + 1], si[LARGEST / 2 + 1], dr[LARGEST / 2 + 1], di[LARGEST / 2 + 1];
  const int RADIX = f, half = f / 2;

  for (int k = 0; k < l1; k++)
    for (int i = 0; i < ido; i++) {
      V tr = xr[IN(0)], ti = xi[IN(0)];
      FFT_UNROLL
      for (int j = 1; j <= half; j++) {
        sr[j] = xr[IN(j)] + xr[IN(f - j)], si[j] = xi[IN(j)] + xi[IN(f - j)];
        dr[j] = xr[IN(j)] - xr[IN(f - j)], di[j] = xi[IN(j)] - xi[IN(f - j)];
        tr += sr[j], ti += si[j];
      }
      yr[OUT(0)] = tr;
      yi[OUT(0)] = ti;
      FFT_UNROLL
      for (int m = 1; m <= half; m++) {
        V cr = xr[IN(0)], ci = xi[IN(0)], er = { 0 }, ei = { 0 };
        FFT_UNROLL
        for (int j = 1, at = m; j <= half; j++, at = at + m >= f ? at + m - f : at + m) {
          const V c = SPLAT(roots[2 * at]), s = SPLAT(roots[2 * at + 1]);
          cr = FMA(sr[j], c, cr), ci = FMA(si[j], c, ci);
          er = FMA(dr[j], s, er), ei = FMA(di[j], s, ei);
        }
        PUT(m, cr + ei, ci - er);
        PUT(f - m, cr - ei, ci + er);
      }
    }
}

static void FN(pass_any)(int f, const T *roots, int ido, int l1, int step, const V *restrict xr,
                         const V *restrict xi, V *restrict yr, V *restrict yi, const T *w)
{
  if (step == l1) FN(pass_odd)(f, roots, 1, l1, l1, xr, xi, yr, yi, w, true);
  else FN(pass_odd)(f, roots, ido, l1, step, xr, xi, yr, yi, w, false);
}

/* The pass of a factor: the last one where step = l1. */
static void FN(pass)(int f, const T *roots, int ido, int l1, int step, const V *restrict xr,
                     const V *restrict xi, V *restrict yr, V *restrict yi, const T *w)
{
#define FIXED(radix) \
  case radix: \
    if (step == l1) FN(pass##radix)(1, l1, l1, xr, xi, yr, yi, w, true); \
    else FN(pass##radix)(ido, l1, step, xr, xi, yr, yi, w, false); \
    break
#define ODD(radix) \
  case radix: \
    if (step == l1) FN(pass_odd)(radix, roots, 1, l1, l1, xr, xi, yr, yi, w, true); \
    else FN(pass_odd)(radix, roots, ido, l1, step, xr, xi, yr, yi, w, false); \
    break
  switch (f) {
    FIXED(2);
    FIXED(3);
    FIXED(4);
    FIXED(5);
    FIXED(8);
    FIXED(9);
    FIXED(16);
    ODD(7);
    ODD(11);
    ODD(13);
  default: FN(pass_any)(f, roots, ido, l1, step, xr, xi, yr, yi, w);
  }
#undef FIXED
#undef ODD
}

/* Transforms lanes of any length; returns whether the result is in y. */
static bool FN(run_any)(const FN(passes) * p, V *xr, V *xi, V *yr, V *yi)
{
  const T *roots = p->roots;
  int l1 = 1;
  for (int k = 0; k < p->count; k++) {
    const int f = p->factor[k], ido = p->n / (l1 * f);
    FN(pass)(f, roots, ido, l1, ido * l1, xr, xi, yr, yi, p->twiddle[k]);
    if (fft_has_roots(f)) roots += 2 * f;
    V *t;
    t = xr, xr = yr, yr = t;
    t = xi, xi = yi, yi = t;
    l1 *= f;
  }
  return p->count % 2 == 1;
}

/* Split lines are mostly made of transforms of 16, 32 and 64: with constant sizes the compiler
 * knows every address but that of the arrays.  Each returns whether the result is in y. */
#define FIXED_2(n, f, g) \
  static inline __attribute__((always_inline)) bool FN(run_##n)(const FN(numbers) from, const T *const *w, \
                                                                V *xr, V *xi, V *yr, V *yi) \
  { \
    FN(first##f)(from, g, 1, g, xr, xi, yr, yi, w[0], false); \
    FN(pass##g)(1, f, f, yr, yi, xr, xi, w[1], true); \
    return false; \
  }
FIXED_2(32, 8, 4)
FIXED_2(64, 8, 8)
#undef FIXED_2

static inline __attribute__((always_inline)) bool FN(run_16)(const FN(numbers) from, const T *const *w, V *xr,
                                                             V *xi, V *yr, V *yi)
{
  FN(first16)(from, 1, 1, 1, xr, xi, yr, yi, w[0], true);
  return true;
}

static inline __attribute__((always_inline)) bool FN(run_fixed)(const FN(numbers) from, const FN(passes) * p,
                                                                V *xr, V *xi, V *yr, V *yi)
{
  const T *const *w = (const T *const *)p->twiddle;
  return p->n == 16   ? FN(run_16)(from, w, xr, xi, yr, yi)
         : p->n == 32 ? FN(run_32)(from, w, xr, xi, yr, yi)
                      : FN(run_64)(from, w, xr, xi, yr, yi);
}
static bool FN(is_fixed)(const FN(passes) * p) { return p->n == 16 || p->n == 32 || p->n == 64; }

/* Transforms the lanes of x[0] (re), x[1] (im), using y; the result's places come back in *r,
 * *i. */
static void FN(run_passes)(const FN(passes) * p, V *xr, V *xi, V *yr, V *yi, V **r, V **i)
{
  const bool in_y =
      FN(is_fixed)(p) ? FN(run_fixed)((FN(numbers)){ 0 }, p, xr, xi, yr, yi) : FN(run_any)(p, xr, xi, yr, yi);
  *r = in_y ? yr : xr;
  *i = in_y ? yi : xi;
}

/* run_fixed of numbers in memory: with the parts as they are, and with their places changed. */
static __attribute__((noinline)) bool FN(run_forward)(FN(numbers) from, const FN(passes) * p, V *xr, V *xi,
                                                      V *yr, V *yi)
{
  from.inverse = false;
  return FN(run_fixed)(from, p, xr, xi, yr, yi);
}
static __attribute__((noinline)) bool FN(run_inverse)(FN(numbers) from, const FN(passes) * p, V *xr, V *xi,
                                                      V *yr, V *yi)
{
  from.inverse = true;
  return FN(run_fixed)(from, p, xr, xi, yr, yi);
}

#undef PASS
#undef FIRST_PASS
#undef LATER_PASS
#undef IN
#undef OUT
#undef PUT
#undef SPLAT

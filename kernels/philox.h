/* Random numbers that are bit for bit the same on every device: Philox 4x32-10 (Salmon et al. 2011,
 * "Parallel random numbers: as easy as 1, 2, 3") and the functions that turn its words into
 * uniforms and normals, for the C and CUDA kernels.
 *
 * One block of four 32-bit words is a function of (seed, stream, draw, block number); the sections
 * below give the elements that it feeds.  log, sine and cosine are our own and consist of additions
 * and products only.  They must be compiled without contraction into fused multiply-adds
 * (-ffp-contract=off, -fmad=false), or bits would differ between processors. */
#ifndef AX_PHILOX_H
#define AX_PHILOX_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "fn.h"

typedef struct ax_philox {
  uint32_t key[2], counter[4];
} ax_philox;

/* Counter words: block number (48 bits), stream (16 bits), draw (64 bits). */
AX_FN ax_philox ax_philox_at(uint64_t seed, uint64_t stream, uint64_t draw, uint64_t block)
{
  ax_philox p;
  p.key[0] = (uint32_t)seed;
  p.key[1] = (uint32_t)(seed >> 32);
  p.counter[0] = (uint32_t)block;
  p.counter[1] = (uint32_t)(block >> 32 & 0xffff) | (uint32_t)(stream << 16);
  p.counter[2] = (uint32_t)draw;
  p.counter[3] = (uint32_t)(draw >> 32);
  return p;
}

AX_FN void ax_philox_run(ax_philox p, uint32_t out[4])
{
  uint32_t c0 = p.counter[0], c1 = p.counter[1], c2 = p.counter[2], c3 = p.counter[3], k0 = p.key[0],
           k1 = p.key[1];

  for (int round = 0; round < 10; round++) {
    const uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)b;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)a;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

/* ---- uniforms.  32-bit types: element i takes word i % 4 of block i / 4.  64-bit types: element i
 * takes words 2 (i % 2) and 2 (i % 2) + 1 of block i / 2. */

/* The top `bits` bits as a multiple of 2^-bits below 1; bits is the size of the type's mantissa
 * (float32 24, float16 11, bfloat16 8). */
AX_FN float ax_uniform_f32(uint32_t word, int bits)
{
  return (float)(word >> (32 - bits)) * (1.0f / (float)(1u << bits));
}
AX_FN uint64_t ax_word64(uint32_t lo, uint32_t hi) { return (uint64_t)hi << 32 | lo; }
AX_FN double ax_uniform_f64(uint64_t word) { return (double)(word >> 11) * 0x1p-53; }
/* 0 .. range - 1 with a bias below range / 2^64. */
AX_FN uint64_t ax_uniform_int(uint64_t word, uint64_t range)
{
#ifdef __CUDA_ARCH__
  return __umul64hi(word, range);
#else
  return (uint64_t)((unsigned __int128)word * range >> 64);
#endif
}

/* ---- normals (Box and Muller): r = sqrt(-2 log u), with u in (0, 1], gives r cos and r sin of a
 * uniform angle.
 * float32: elements 4b and 4b + 1 come from words 0 and 1 of block b, 4b + 2 and 4b + 3 from words
 * 2 and 3.  float64: elements 2b and 2b + 1 come from block b. */

/* log of a float in [2^-24, 1]; 2 ulp. */
AX_FN float ax_philox_log_f32(float u)
{
  uint32_t bits;
  float m, s, r, z;
  int32_t e;

  memcpy(&bits, &u, 4);
  e = (int32_t)((bits - 0x3f3504f3u) & 0xff800000u); /* m in [sqrt(1/2), sqrt(2)) */
  bits -= (uint32_t)e;
  memcpy(&m, &bits, 4);
  z = (float)e * 0x1p-23f;
  m = m - 1.0f;
  s = m * m;
  r = 7.0376836292e-2f;
  r = r * m - 1.1514610310e-1f;
  r = r * m + 1.1676998740e-1f;
  r = r * m - 1.2420140846e-1f;
  r = r * m + 1.4249322787e-1f;
  r = r * m - 1.6668057665e-1f;
  r = r * m + 2.0000714765e-1f;
  r = r * m - 2.4999993993e-1f;
  r = r * m + 3.3333331174e-1f;
  r = r * m * s;
  r = r + z * -2.12194440e-4f;
  r = r - 0.5f * s;
  return (m + r) + z * 0.693359375f;
}

/* cos and sin of 2 pi word / 2^32.  Splitting off the nearest quarter turn is exact. */
AX_FN void ax_philox_turn_f32(uint32_t word, float *cosine, float *sine)
{
  const uint32_t q = (word + 0x20000000u) >> 30;
  const float a = (float)(int32_t)(word - (q << 30)) * 0x1.921fb6p-30f; /* in [-pi/4, pi/4] */
  const float s = a * a;
  float y, c, t;

  y = -1.9515295891e-4f;
  y = y * s + 8.3321608736e-3f;
  y = y * s - 1.6666654611e-1f;
  y = y * s * a + a;
  c = 2.443315711809948e-5f;
  c = c * s - 1.388731625493765e-3f;
  c = c * s + 4.166664568298827e-2f;
  c = c * s * s - 0.5f * s + 1.0f;
  t = q & 1u ? c : y; /* quarter turns: (c, s), (-s, c), (-c, -s), (s, -c) */
  *cosine = q & 1u ? y : c;
  *cosine = (q + 1u) & 2u ? -*cosine : *cosine;
  *sine = q & 2u ? -t : t;
}

AX_FN void ax_normal_f32(uint32_t w0, uint32_t w1, float *first, float *second)
{
  const float u = (float)((w0 >> 8) + 1u) * 0x1p-24f;
  const float r = sqrtf(-2.0f * ax_philox_log_f32(u));
  float c, s;
  ax_philox_turn_f32(w1, &c, &s);
  *first = r * c;
  *second = r * s;
}

/* log of a double in [2^-53, 1]: the algorithm of fdlibm, without its special cases. */
AX_FN double ax_philox_log_f64(double u)
{
  uint64_t bits;
  double f, k, s, z, w, t1, t2, hfsq;
  int64_t e;

  memcpy(&bits, &u, 8);
  e = (int64_t)((bits - 0x3fe6a09e667f3bcdu) & 0xfff0000000000000u);
  bits -= (uint64_t)e;
  memcpy(&f, &bits, 8);
  k = (double)(e / 0x10000000000000);
  f = f - 1.0;
  s = f / (2.0 + f);
  z = s * s;
  w = z * z;
  t1 = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  t2 = z * (6.666666666666735130e-01 +
            w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  hfsq = 0.5 * f * f;
  return k * 6.93147180369123816490e-01 -
         ((hfsq - (s * (hfsq + (t1 + t2)) + k * 1.90821492927058770002e-10)) - f);
}

AX_FN void ax_philox_turn_f64(uint64_t word, double *cosine, double *sine)
{
  const uint64_t q = (word + 0x2000000000000000u) >> 62;
  const double a = (double)(int64_t)(word - (q << 62)) * 0x1.921fb54442d18p-62;
  const double s = a * a;
  double y, c, t;

  y = 1.58969099521155010221e-10;
  y = y * s - 2.50507602534068634195e-08;
  y = y * s + 2.75573137070700676789e-06;
  y = y * s - 1.98412698298579493134e-04;
  y = y * s + 8.33333333332248946124e-03;
  y = y * s - 1.66666666666666324348e-01;
  y = y * s * a + a;
  c = -1.13596475577881948265e-11;
  c = c * s + 2.08757232129817482790e-09;
  c = c * s - 2.75573143513906633035e-07;
  c = c * s + 2.48015872894767294178e-05;
  c = c * s - 1.38888888888741095749e-03;
  c = c * s + 4.16666666666666019037e-02;
  c = c * s * s - 0.5 * s + 1.0;
  t = q & 1u ? c : y;
  *cosine = q & 1u ? y : c;
  *cosine = (q + 1u) & 2u ? -*cosine : *cosine;
  *sine = q & 2u ? -t : t;
}

AX_FN void ax_normal_f64(uint64_t w0, uint64_t w1, double *first, double *second)
{
  const double u = (double)((w0 >> 11) + 1u) * 0x1p-53;
  const double r = sqrt(-2.0 * ax_philox_log_f64(u));
  double c, s;
  ax_philox_turn_f64(w1, &c, &s);
  *first = r * c;
  *second = r * s;
}

#endif

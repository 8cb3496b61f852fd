/* Innermost loops of complex numbers, for the tables of pointwise.c and logic.c. */
#ifndef AX_CPU_COMPLEX_H
#define AX_CPU_COMPLEX_H

#include "simd.h"

#include <complex.h>
#include <math.h>

typedef float complex ax_cpu_c64;
typedef double complex ax_cpu_c128;

#define AX_COMPLEX(name) [AX_C64] = name##_c64, [AX_C128] = name##_c128

/* The products are written out: the compiler's own complex product calls a function that repairs
 * infinities, one number at a time.  PyTorch does not repair them either. */
#define AX_CMUL(a, b) \
  __builtin_complex(__real__(a) * __real__(b) - __imag__(a) * __imag__(b), \
                    __real__(a) * __imag__(b) + __imag__(a) * __real__(b))

/* a / b without overflow in |b|^2 (Smith's method). */
#define AX_CDIV(suffix, C, R, ABS) \
  static inline C ax_cdiv_##suffix(C a, C b) \
  { \
    const R c = __real__ b, d = __imag__ b; \
    if (ABS(c) >= ABS(d)) { \
      if (c == 0 && d == 0) return __builtin_complex(__real__ a / ABS(c), __imag__ a / ABS(d)); \
      const R r = d / c, s = 1 / (c + d * r); \
      return __builtin_complex((__real__ a + __imag__ a * r) * s, (__imag__ a - __real__ a * r) * s); \
    } \
    const R r = c / d, s = 1 / (c * r + d); \
    return __builtin_complex((__real__ a * r + __imag__ a) * s, (__imag__ a * r - __real__ a) * s); \
  }
AX_CDIV(c64, ax_cpu_c64, float, fabsf)
AX_CDIV(c128, ax_cpu_c128, double, fabs)

/* a ^ b: whole exponents, which are frequent, by products. */
#define AX_CPOW(suffix, C, CPOW) \
  static inline C ax_cpow_##suffix(C a, C b) \
  { \
    const double e = __real__ b, n = fabs(e); \
    if (__imag__ b != 0 || n != floor(n) || n > 64) return a == 0 && e > 0 ? 0 : CPOW(a, b); \
    C y = 1, square = a; \
    for (int left = (int)n; left; left >>= 1) { \
      if (left & 1) y = AX_CMUL(y, square); \
      square = AX_CMUL(square, square); \
    } \
    return e < 0 ? ax_cdiv_##suffix(1, y) : y; \
  }
AX_CPOW(c64, ax_cpu_c64, cpowf)
AX_CPOW(c128, ax_cpu_c128, cpow)

/* Functions that C lacks.  log1p and expm1 keep their digits near 0; lerp starts from the nearer
 * end, so that weight 1 gives `end` exactly. */
#define AX_CFUNCTIONS(S, C, R, F) \
  static inline C ax_crsqrt_##S(C x) { return ax_cdiv_##S(1, csqrt##F(x)); } \
  static inline C ax_csigmoid_##S(C x) { return ax_cdiv_##S(1, 1 + cexp##F(-x)); } \
  static inline C ax_clog1p_##S(C x) \
  { \
    const R a = __real__ x, b = __imag__ x; \
    if (fabs##F(a) > (R)0.5 || fabs##F(b) > (R)0.5) return clog##F(1 + x); \
    return __builtin_complex((R)0.5 * log1p##F(a * (2 + a) + b * b), atan2##F(b, 1 + a)); \
  } \
  static inline C ax_cexpm1_##S(C x) \
  { \
    const R e = expm1##F(__real__ x), half = sin##F(__imag__ x / 2); \
    return __builtin_complex(e * cos##F(__imag__ x) - 2 * half * half, (e + 1) * sin##F(__imag__ x)); \
  } \
  static inline C ax_clerp_##S(C from, C to, C w) \
  { \
    const C way = to - from, left = 1 - w; \
    return __real__ w * __real__ w + __imag__ w * __imag__ w < (R)0.25 ? from + AX_CMUL(w, way) \
                                                                       : to - AX_CMUL(way, left); \
  }
AX_CFUNCTIONS(c64, ax_cpu_c64, float, f)
AX_CFUNCTIONS(c128, ax_cpu_c128, double, )

#endif

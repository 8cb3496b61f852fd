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

#endif

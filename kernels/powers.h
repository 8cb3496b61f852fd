/* powers.h: the exponents for which pow is a product or a root, with the results of pow for
 * infinities and -0 too.  The gradient of x^2 has exponent 1. */
#ifndef AX_POWERS_H
#define AX_POWERS_H

#include <math.h>

/* X(name, exponent, value of type T); root: the square root of x + 0. */
#define AX_POWERS(X, T, x, root) \
  X(square, 2, x *x) \
  X(half, 0.5f, x == -(T)INFINITY ? (T)INFINITY : root) \
  X(one, 1, x) \
  X(cube, 3, x *x *x) \
  X(reciprocal, -1, 1 / x) \
  X(minus_two, -2, 1 / (x * x))

#endif

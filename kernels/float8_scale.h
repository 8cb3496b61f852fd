/* Scales of matrices of eight bits, for the kernels of all backends. */
#ifndef AX_FLOAT8_SCALE_H
#define AX_FLOAT8_SCALE_H

#include "float8.h"

/* What makes the largest size `amax` the largest number of the type.  1 where there is none, or
 * where a NaN or an infinity is among the elements, which show it. */
AX_FN float ax_float8_scale(float amax, float most)
{
  const float scale = most / amax;
  if (!(amax > 0) || amax - amax != 0) return 1;
  return scale <= AX_FLOAT8_MOST_SCALE ? scale : AX_FLOAT8_MOST_SCALE;
}

/* x times a scale, limited to the type's numbers; infinity becomes NaN, so that it is not lost. */
AX_FN float ax_float8_limit(float x, float scale, float most)
{
  const float y = x * scale;
  if (x - x != 0) return x - x;
  return y > most ? most : y < -most ? -most : y;
}

#endif

/* What the rule of grid_sample and its kernel agree on. */
#ifndef AX_GRID_SAMPLE_H
#define AX_GRID_SAMPLE_H

#include "ax.h"

enum { AX_GRID_LINEAR, AX_GRID_NEAREST, AX_GRID_BICUBIC }; /* mode: the words' numbers in the row */

/* Whether images can be read plane after plane: rows have pairs of neighbours, vectors of positions
 * have room for the places in a plane, and float32 holds each place of a dim. */
static inline bool ax_grid_sample_by_planes(const ax_tensor *x, int64_t mode)
{
  const int64_t most = (int64_t)1 << 24;
  return x->ndim == 4 && x->shape[3] > 1 && mode != AX_GRID_BICUBIC && x->shape[2] < most &&
         x->shape[3] < most && x->shape[2] * x->shape[3] <= INT32_MAX;
}

#endif

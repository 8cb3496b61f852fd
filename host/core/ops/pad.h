/* Padding with elements of the input: the modes, and where an element comes from; for the rule and
 * for the kernels. */
#ifndef AX_PAD_H
#define AX_PAD_H

#include "ax.h"
#include "fn.h"

enum { AX_PAD_REFLECT = 1, AX_PAD_REPLICATE, AX_PAD_CIRCULAR };

/* Which element of a dim of `size` stands at j, counted from the input's first: j < 0 and j >= size
 * are the margins. */
AX_FN int64_t ax_pad_source(int mode, int64_t j, int64_t size)
{
  if (mode == AX_PAD_REPLICATE) return j < 0 ? 0 : j >= size ? size - 1 : j;
  if (mode == AX_PAD_CIRCULAR) return j < 0 ? j + size : j >= size ? j - size : j;
  j = j < 0 ? -j : j;
  return j >= size ? 2 * (size - 1) - j : j;
}

#endif

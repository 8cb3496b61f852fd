/* iter.h: merging the dims of a loop nest, for the core, which makes one, and for backends, which
 * put its dims in another order. */
#ifndef AX_ITER_H
#define AX_ITER_H

#include "plugin.h"

/* Gives `it`, whose operands have strides over `ndim` dims of sizes `shape`, as few dims as there
 * can be: drops those of size 1, and merges neighbours over which every operand steps evenly.
 * `shape` may be its own. */
static inline void ax_iter_merge(ax_iter *it, int ndim, const int64_t *shape)
{
  int last = -1;
  for (int d = 0; d < ndim; d++) {
    if (shape[d] == 1) continue;
    bool joins = last >= 0;
    for (int k = 0; joins && k < it->n; k++) joins = it->op[k].stride[last] == it->op[k].stride[d] * shape[d];
    if (joins) it->shape[last] *= shape[d];
    else it->shape[++last] = shape[d];
    for (int k = 0; k < it->n; k++) it->op[k].stride[last] = it->op[k].stride[d];
  }
  it->ndim = last + 1;
}

#endif

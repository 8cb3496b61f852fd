/* dist/pull.h: collectives that read the ranks' memory where it is (dist/peers.h). */
#ifndef AX_DIST_PULL_H
#define AX_DIST_PULL_H

#include "core/dist/steps.h"

/* Where rank r's part of `count` elements begins; of r = size: the end. */
size_t ax_pull_part(const ax_walk *g, size_t count, int r);
/* The first steps of an all_reduce.  left[r]: part r is still to be reduced, on all ranks. */
ax_status ax_pull_all_reduce(ax_walk *g, const ax_collective *c, bool *left);
/* The first steps of a reduce_scatter.  *done false, on all ranks: nothing is reduced. */
ax_status ax_pull_reduce_scatter(ax_walk *g, const ax_collective *c, bool *done);

#endif

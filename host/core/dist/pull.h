/* dist/pull.h: collectives that read the ranks' memory where it is (dist/peers.h). */
#ifndef AX_DIST_PULL_H
#define AX_DIST_PULL_H

#include "core/dist/steps.h"

typedef enum { AX_PULL_NONE, AX_PULL_SOME, AX_PULL_ALL } ax_pull_offers;

/* In front of the first slot of a reduction, before the ranks meet: writes where its memory is, if
 * others can map it.  Returns whether they can: then the slot need not carry data. */
bool ax_pull_offer(ax_walk *g, const ax_collective *c, size_t bytes);
/* After they have met: which ranks have; alike on all of them. */
ax_pull_offers ax_pull_offered(ax_walk *g, size_t bytes);

/* Where rank r's part of `count` elements begins; of r = size: the end. */
size_t ax_pull_part(const ax_walk *g, size_t count, int r);
/* Where all have, to the end of that step.  left[r]: part r is still to be reduced; *done false:
 * nothing is.  Both are alike on all ranks. */
ax_status ax_pull_all_reduce(ax_walk *g, const ax_collective *c, bool *left);
ax_status ax_pull_reduce_scatter(ax_walk *g, const ax_collective *c, bool *done);

#endif

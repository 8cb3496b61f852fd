/* gather.h: a thread that copies the rows of the next batch while the step runs.
 *
 * The rows are picked, the results allocated and everything checked on the caller's thread; the other thread only copies memory.  It never
 * meets Lua, the allocator, OpenMP or autograd.  What is copied does not depend on when: if a source was written to meanwhile, the
 * rows are copied again when the batch is taken.
 *
 * There is one such thread in a process.  It is stopped before every fork and started again by the next batch. */
#ifndef AX_GATHER_H
#define AX_GATHER_H

#include "ax.h"

enum { AX_GATHER_MAX = 8 }; /* sources of one gatherer */

typedef struct ax_gather ax_gather;

/* A gatherer over sources whose dim 0 has one size; they are contiguous and on the CPU.  Retains them.  EINVAL for others. */
ax_status ax_gather_new(int n, ax_tensor *const *sources, ax_gather **out);
/* Waits for a batch that is under way, then frees everything. */
void ax_gather_free(ax_gather *g);
int ax_gather_sources(const ax_gather *g);
int64_t ax_gather_rows(const ax_gather *g);
/* *to: room for the `count` positions, from 0, of the batch that ax_gather_start is called for next.  EINVAL when one is under way: the
 * thread reads its positions. */
ax_status ax_gather_positions(ax_gather *g, int64_t count, int64_t **to);
/* Starts the batch; without `ahead` it is copied only when it is taken.  ERANGE for a position outside; EINVAL when one is under way. */
ax_status ax_gather_start(ax_gather *g, int64_t count, bool ahead);
/* Completes the batch, with what the thread has not copied yet.  out: a new reference for each source. */
ax_status ax_gather_take(ax_gather *g, ax_tensor **out);

#endif

/* dist/chain.h: the chain of machines, as chain.c, chain_stream.c and mpi_reduce.c share it. */
#ifndef AX_DIST_CHAIN_H
#define AX_DIST_CHAIN_H

#include "core/core.h"
#include "core/dist/apart.h"

#define AX_CHAIN_AHEAD 6 /* chunks under way between two machines */

/* Where this rank is. */
extern struct ax_chain_place {
  int rank, size;  /* of all */
  int here, first; /* ranks of each machine; the first one of this machine */
  int machine, machines;
} ax_chain;

enum { BEFORE, BEHIND }; /* the neighbours */

static inline bool ax_chain_leads(void) { return ax_shm.rank == 0; }
static inline bool ax_chain_has(int side)
{
  return side == BEFORE ? ax_chain.machine > 0 : ax_chain.machine < ax_chain.machines - 1;
}
static inline int ax_chain_neighbour(int side) { return ax_chain.machine + (side == BEFORE ? -1 : 1); }

/* Waits for a message that is under way, if one is. */
ax_status ax_chain_settle(bool *is_sent, ax_mpi_request *q, int machine);
/* Reduces `count` elements; this rank keeps those from `from` to `to`. */
ax_status ax_chain_reduce(const ax_collective *c, size_t count, size_t from, size_t to);
ax_status ax_chain_broadcast(const ax_collective *c);
/* root -1: all ranks keep the result. */
ax_status ax_chain_gather(const ax_collective *c, int root);

#endif

/* dist/peers.h: memory that the other ranks of a machine can read and write where it is.
 *
 * A collective between ranks of one machine copies through windows (dist/steps.h).  Of memory made
 * here it need not: a rank writes in front of its first slot where its memory is (ax_place), and
 * the others map it when they first meet it.  Nobody meets to make such memory, or to free it. */
#ifndef AX_DIST_PEERS_H
#define AX_DIST_PEERS_H

#include "ax.h"

/* Bytes of a collective from which on ranks ask each other for such memory. */
#define AX_PULL_FROM ((size_t)512 << 10)

/* Where a rank has something that others can map; number 0: nowhere. */
typedef struct ax_place {
  int32_t fd;      /* in its process */
  uint32_t number; /* of the memory, among all that it has made */
  int64_t at;      /* bytes into that file */
} ax_place;

/* New reference: zeros on the CPU in one dim, in such memory; NULL where there are no peers, where
 * it would be small, or where the system refuses. */
ax_status ax_peers_zeros(ax_dtype dtype, int64_t numel, ax_tensor **out);
/* Where others find [p, p + bytes). */
ax_place ax_peers_place(const void *p, size_t bytes);
/* The address of the memory that rank `local` of this machine has at `place`; NULL: not mappable.
 * It holds until the end of the collective in whose first slot the place stands. */
char *ax_peers_map(int local, const ax_place *place, size_t bytes);
/* In a forked child: its writes into this memory do not reach the ranks from now on. */
void ax_peers_forget(void);

#endif

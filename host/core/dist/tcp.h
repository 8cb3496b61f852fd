/* dist/tcp.h: collectives between ranks of several machines, over connections that the launchers
 * have made (machines.c) before they forked.
 *
 * Every rank has one connection, to rank 0; on rank 0's own machine it is a pair of local sockets.
 * Beside them each machine has its shared memory (dist/shm.h) between its launcher and its ranks:
 * where each is, and the abort flag, which launchers pass on to one another. */
#ifndef AX_DIST_TCP_H
#define AX_DIST_TCP_H

#include "core/dist/shm.h"

/* In a rank, after ax_shm_join of its machine's memory: makes the connections the world group.
 * fd[r] leads to rank r: in rank 0 to all others, elsewhere only fd[0] counts. */
void ax_tcp_join(int rank, int size, int local_size, const int *fd);
/* Notifies the ranks that wait for this one that it will not come. */
void ax_tcp_finished(void);
/* "rank 3 (machine 1)" */
const char *ax_tcp_rank_name(int rank, int local_size, char *buf, size_t size);

#endif

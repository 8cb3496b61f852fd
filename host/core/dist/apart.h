/* dist/apart.h: what transports between machines have in common, and messages of MPI with bounded
 * waits. */
#ifndef AX_DIST_APART_H
#define AX_DIST_APART_H

#include "core/dist/steps.h"
#include "messages.h"

/* For a rank of another machine the wait is this much longer: its own machine sees first which rank
 * is late, and says so. */
#define AX_GRACE_NS ((int64_t)1000000000)

/* ---- apart.c */

bool ax_apart_aborted(void);
/* A signal that machine 0's rank 0 acts on from a collective on; 0: none.  AX_OK. */
ax_status ax_apart_signal(uint32_t sig, uint64_t from);
void ax_apart_set_timeout(ax_group *g, double seconds);
/* Devices' collectives are written down for the launcher's reports.  They are not compared: that
 * needs one memory. */
ax_status ax_apart_post(ax_group *g, const ax_collective *c);
ax_status ax_apart_look(ax_group *g, int64_t since, ax_status given);
ax_status ax_apart_watch(ax_group *g, const ax_collective_call *p, int64_t waited);

void ax_nap(void); /* a millisecond */

/* ---- mpi.c: messages between the machines' local ranks 0 */

typedef enum { AX_TAG_POINT = 1, AX_TAG_CALL, AX_TAG_UP, AX_TAG_DOWN } ax_mpi_tag;

/* Starts MPI with the plugin in `folder`, and checks that its processes are ours; ends it. */
ax_status ax_mpi_start(const char *folder, int rank, int size, int local_size);
ax_status ax_mpi_end(void);
/* The message to or from that machine; it is under way. */
ax_status ax_mpi_send(const void *bytes, size_t n, int machine, ax_mpi_tag tag, ax_mpi_request *out);
ax_status ax_mpi_receive(void *bytes, size_t n, int machine, ax_mpi_tag tag, ax_mpi_request *out);
/* Waits until the message has ended.  EABORTED, ETIMEOUT with the machine's first rank. */
ax_status ax_mpi_wait(ax_mpi_request *r, int machine);
/* Whether it has ended, without waiting; an error of MPI counts as the end. */
bool ax_mpi_ended(ax_mpi_request *r);

#endif

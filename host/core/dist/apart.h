/* dist/apart.h: what transports between machines have in common, and messages of MPI with bounded
 * waits. */
#ifndef AX_DIST_APART_H
#define AX_DIST_APART_H

#include "core/dist/steps.h"
#include "messages.h"

/* How much longer a rank waits for one of another machine.  So the late rank's own machine, which
 * sees which one it is, reports first. */
#define AX_GRACE_NS ((int64_t)1000000000)

/* ---- apart.c */

bool ax_apart_aborted(void);
/* Notes that all ranks act on signal `sig` from collective `from` on, as machine 0's rank 0 has
 * chosen; from 0: there is none.  Returns AX_OK. */
ax_status ax_apart_signal(uint32_t sig, uint64_t from);
void ax_apart_set_timeout(ax_group *g, double seconds);
/* Records a device's collective for the launcher's reports.  It is not compared: that needs memory
 * that all ranks share. */
ax_status ax_apart_post(ax_group *g, const ax_collective *c, uint64_t *number);
ax_status ax_apart_look(ax_group *g, int64_t since, ax_status given);
ax_status ax_apart_watch(ax_group *g, const ax_collective_call *p, int64_t waited);

void ax_nap(void); /* sleeps for a millisecond */

/* ---- mpi.c: messages between the machines' local ranks 0 */

typedef enum { AX_TAG_POINT = 1, AX_TAG_CALL, AX_TAG_UP, AX_TAG_DOWN } ax_mpi_tag;

/* ax_mpi_start starts MPI with the plugin in `folder`, and checks that its processes are the run's
 * ranks; ax_mpi_end ends it. */
ax_status ax_mpi_start(const char *folder, int rank, int size, int local_size);
ax_status ax_mpi_end(void);
/* Start a message to or from a machine, and return while it is under way. */
ax_status ax_mpi_send(const void *bytes, size_t n, int machine, ax_mpi_tag tag, ax_mpi_request *out);
ax_status ax_mpi_receive(void *bytes, size_t n, int machine, ax_mpi_tag tag, ax_mpi_request *out);
/* Waits until the message has ended.  EABORTED; ETIMEOUT, naming the machine's first rank. */
ax_status ax_mpi_wait(ax_mpi_request *r, int machine);
/* Returns whether the message has ended, without waiting; an error of MPI counts as its end. */
bool ax_mpi_ended(ax_mpi_request *r);

#endif

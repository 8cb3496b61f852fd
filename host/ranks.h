/* ranks.h: what the launcher and the ranks share, and how ranks join the world group.
 *
 * The ranks of one machine share memory with their launcher (core/dist/shm.c).  It is one anonymous
 * mapping, made before the ranks are forked: no name, no file, nothing to clean up, whoever dies.
 * It holds a control block, a record for each rank (where it is, and how it failed) and a window
 * for each rank (data on its way). */
#ifndef AX_RANKS_H
#define AX_RANKS_H

#include <stdatomic.h>

#include "dist.h"

#define AX_MAX_RANKS 256
#define AX_MAX_GROUPS 128 /* of one machine at a time, the world among them */

typedef enum {
  AX_RANK_STARTING,
  AX_RANK_RUNNING,
  AX_RANK_WAITING,  /* in a collective, since `since` */
  AX_RANK_GIVEN_UP, /* left that collective with an error */
  AX_RANK_FINISHED
} ax_rank_state;

#define AX_FLIGHT 64 /* collectives of a rank that are kept for reports */

/* A collective that a rank has entered.  Times are CLOCK_MONOTONIC nanoseconds. */
typedef struct ax_flight {
  uint64_t entry, number; /* of all groups' collectives; of its group's */
  int64_t entered, left;  /* left 0: the rank is still in it */
  int32_t status;         /* ax_status, when it has left */
  bool posted;            /* a device carries it: the rank does not wait there */
  ax_collective facts;
  char where[AX_WHERE_TEXT];
} ax_flight;

/* One rank in one group's collectives (core/dist/steps.h).  The first three are futexes. */
typedef struct ax_counters {
  _Alignas(64) _Atomic uint32_t filled;
  _Atomic uint32_t reduced, done;
  _Atomic uint32_t sleepers; /* ranks asleep on one of the three */
  _Atomic uint32_t left;     /* 1: the rank needs the group no more, nor its device's link */
  _Atomic uint64_t posted;   /* number of its last collective in the ring (core/dist/ring.c) */
} ax_counters;

/* One rank as the others see it.  Only the rank itself writes, except for the last state, which the
 * launcher may write for it. */
typedef struct ax_rank_record {
  _Alignas(64) _Atomic uint32_t state; /* ax_rank_state */
  int32_t pid;
  _Atomic int64_t timeout;      /* the longest wait in one collective, in nanoseconds */
  _Atomic uint64_t collectives; /* entered so far, of all groups */
  _Atomic uint64_t world_calls; /* those of the world: the number of the last one */
  uint64_t number;              /* of the last one in its group */
  /* The counter that it sleeps for, counted in 32-bit words from the control block, the value that
   * it waits for, and whose counter it is; waits_for -1: it does not sleep. */
  _Atomic int32_t waits_for;
  _Atomic uint32_t wanted;
  _Atomic int64_t waits_word;
  _Atomic int64_t since;     /* CLOCK_MONOTONIC nanoseconds, when `state` last changed */
  ax_collective last;        /* the last one entered; its buffers mean nothing here */
  char where[AX_WHERE_TEXT]; /* its script line */

  _Atomic uint32_t lost_save; /* number of the last save whose files it could not write; 0: none */

  /* Written by the rank's watchdog (dist/watch.c): the launch in which the rank is blocked.  The
   * texts are set before launch_since, and change only while it is 0. */
  _Atomic int64_t launch_since; /* CLOCK_MONOTONIC nanoseconds; 0: no launch, or a short one so far */
  int32_t launch_device;
  char launch[48], launch_at[AX_WHERE_TEXT];
  _Atomic int64_t overdue; /* when the launcher ends the run; 0: never */
  char stuck[2048];        /* why it does; set before `overdue` */

  ax_flight flight[AX_FLIGHT]; /* by ax_flight.entry */

  /* Where the rank is blocked outside of collectives.  The text is set before `busy_since`. */
  _Atomic int64_t busy_since; /* 0: it is not blocked */
  char busy[96];              /* "a worker of a loader" */

  _Atomic uint32_t looks, looked; /* the number of the last traceback requested; of that in `trace` */
  char trace[4096];

  char failed_at[256];    /* the script line of the error that ended the rank */
  char failure[12 << 10]; /* its text and traceback */
} ax_rank_record;

/* CLAIMED: a rank writes the text that belongs to the flag; PUBLISHED: the text is complete. */
typedef enum { AX_ABORT_NONE, AX_ABORT_CLAIMED, AX_ABORT_PUBLISHED } ax_abort_state;

#define AX_SECRET 64 /* bytes of a secret that a launcher makes */

/* Where the launchers of several machines meet while their ranks run.  MPI carries it from machine
 * 0 to the others. */
typedef struct ax_point {
  int32_t port;
  int32_t every;       /* every rank is a process of MPI's; else local rank 0 of each machine */
  char addresses[512]; /* of machine 0, with a space behind each */
  uint8_t secret[AX_SECRET];
} ax_point;

typedef struct ax_control {
  _Atomic uint32_t abort; /* ax_abort_state: set once, by the first rank that fails or by the launcher */
  int32_t failed_rank;    /* -1: none in particular */
  char reason[1024];      /* the text of the other ranks' errors: "rank 1 failed: ..." */

  _Atomic uint32_t mismatch; /* ax_abort_state: ranks called different collectives of devices */
  char difference[1200];     /* the error of all of them */

  int32_t ranks;
  double timeout;         /* seconds that a rank waits in one collective, unless it chose a time of its own */
  _Atomic uint64_t saved; /* checkpoints of this run that are complete */
  char newest[1024];      /* the last one's folder; set before `saved` grows */

  _Atomic int64_t look_at;      /* when a launcher last wanted all ranks' tracebacks */
  _Atomic uint32_t timed_out;   /* a rank waited too long in a collective */
  _Atomic uint32_t ended;       /* a signal to a launcher ends the run */
  _Atomic uint32_t handled;     /* signals that the script has a function for: 1 << number */
  _Atomic uint32_t signal;      /* the one that came; 0: none */
  _Atomic uint64_t signal_from; /* the collective from which on all ranks act on it */

  ax_point point;
  _Atomic uint32_t has_point, may_end; /* the point has come; all machines have ended well */

  _Atomic uint32_t holder;    /* the rank that has the terminal, at a breakpoint: see hold.c */
  _Atomic int64_t held_until; /* when one last went on from there; 0: never */

  bool spin;   /* every thread of every rank has a core of its own: waiting may keep it busy */
  bool prompt; /* the run is a row of chunks (see ax_shm_gather) */
  _Atomic uint32_t members[AX_MAX_GROUPS]; /* how many ranks have not left the group; 0: it is free */
  _Atomic uint32_t chunk, interrupted;     /* the current one, from 1; the last one that was interrupted */
  ax_rank_record rank[];
} ax_control;

/* Maps the memory for `ranks`; EINVAL, ENOMEM.  *file: the file behind it, which has no name and
 * which other processes may map; NULL: forks alone share the memory. */
ax_status ax_shm_create(int ranks, double timeout, bool spin, int *file, ax_control **out);
/* Maps what another process has created for as many ranks. */
ax_status ax_shm_map(int file, int ranks, ax_control **out);
/* In a rank: makes the mapping the world group.  The control block lives as long as the process. */
ax_status ax_shm_join(ax_control *c, int rank);
/* Ends the run for everybody: wakes all that wait.  Returns whether the caller was the first; if
 * not, nothing changes. */
bool ax_shm_abort(ax_control *c, int failed_rank, const char *reason);
/* In a rank's own thread, around a call that may block.  what: on what ("a worker of a loader").
 * Does nothing in workers that the rank forked. */
void ax_busy_begin(const char *what, const char *name);
void ax_busy_end(void);
/* In a rank: `fn` writes a traceback into the record when one is wanted; called inside waits. */
void ax_shm_on_look(void (*fn)(void));
ax_rank_record *ax_rank_own(void); /* NULL: this is no rank */
void ax_shm_look(void);
/* In a rank: notes that the checkpoint in the folder `path` is complete.  Does nothing without a
 * launcher. */
void ax_shm_saved(const char *path);
/* Gives the memory back that ax_shm_create mapped.  In the launcher. */
void ax_shm_free(ax_control *c);
/* Marks that `rank` will join no more collectives, and wakes those that wait for it. */
void ax_shm_finished(ax_control *c, int rank);

/* ---- hold.c: ranks that stop for a person, at a breakpoint.  While one stands, no wait for it
 * counts, and the launcher reports none. */

/* In a rank: waits for the terminal, and stands.  AX_OK too where this process has no other ranks;
 * EABORTED when the run is being ended. */
ax_status ax_hold_begin(void);
/* Goes on.  steps: it keeps the terminal, unless it waits for others meanwhile. */
void ax_hold_end(bool steps);
/* Whether a rank stands; in a rank, whether another one does. */
bool ax_hold_stands(const ax_control *c);
bool ax_hold_elsewhere(void);
/* In a rank: nanoseconds from `since` to `now`; those before the last rank went on do not count. */
int64_t ax_hold_waited(int64_t since, int64_t now);

/* ---- a prompt of several ranks: the run is a row of chunks, between which all ranks are idle.  A
 * rank that has ended its chunk is awaited no more, and a collective that failed is forgotten with
 * its chunk. */

/* In rank 0, while all are idle: lets the ranks take part again.  afresh: a collective of the last
 * chunk failed, so that ranks may be at different steps; all begin at the first one. */
void ax_shm_gather(ax_control *c, bool afresh);
/* In a rank, before its chunk.  afresh: what rank 0 passed to ax_shm_gather. */
void ax_shm_begin_chunk(bool afresh);
/* In a rank, after its chunk.  Returns whether one of its collectives failed. */
bool ax_shm_end_chunk(void);
/* Makes waits in collectives end with an error while *flag is not 0. */
void ax_shm_interrupts(volatile const int *flag);

/* ---- ranks of several machines
 *
 * Each machine has its shared memory between its launchers and its ranks: where each is, and the
 * abort flag, which launchers pass on to one another.
 *
 * core/dist/chain.c: tensors travel by MPI, where mpirun or srun has started the run. */

/* In a rank, after ax_shm_join of its machine's memory: starts MPI with the plugin in `folder`, and
 * makes the machines' ranks the world group. */
ax_status ax_mpi_join(const char *folder, int rank, int size, int local_size);
/* At the end of a rank that has joined so: waits for the other machines, which may still run. */
void ax_mpi_finished(void);

/* core/dist/tcp.c: without MPI, barriers, texts and the id by which GPUs join travel over sockets
 * to rank 0.  The launchers make these before they fork (machines.c); on rank 0's own machine they
 * are pairs of local sockets.  They carry no tensors of more than 64 KiB. */

/* In a rank, after ax_shm_join of its machine's memory: makes the connections the world group.
 * fd[r] leads to rank r: in rank 0 to all others, elsewhere only fd[0] counts. */
void ax_tcp_join(int rank, int size, int local_size, const int *fd);
/* Notifies the ranks that wait for this one that it will not come. */
void ax_tcp_finished(void);
/* "rank 3 (machine 1)" */
const char *ax_rank_name(int rank, int local_size, char *buf, size_t size);

#endif

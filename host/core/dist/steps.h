/* dist/steps.h: how ranks meet over shared memory.
 *
 * Each rank owns a window: a ring of AX_SLOTS slots of `chunk` bytes, small enough to stay in the
 * caches, large enough that a slot has left the reader's own cache when it is filled again (taking
 * lines back from another core is slow).  A collective is a row of steps, and all ranks walk the
 * same steps: fill a slot of the own window, publish `filled`, wait for the others' `filled`, read
 * their slots, publish `done`.  A slot is filled again when everybody's `done` has passed its last
 * use; with several slots that wait is almost always over before it starts, so a step costs one
 * meeting of the ranks.
 *
 * Each group of ranks has counters and steps of its own; a rank's window serves all its groups, one
 * at a time: before the first step in another group than the last one, a rank waits until nobody
 * reads its slots in that group any more.  Those ranks are in that collective already, so the
 * wait is short, whatever they call next.
 *
 * The first slot of a collective carries its owner's arguments.  Every rank compares all ranks'
 * with rank 0's, so that all ranks detect a mismatch, before any data is used. */
#ifndef AX_DIST_STEPS_H
#define AX_DIST_STEPS_H

#include "core/dist/peers.h"
#include "ranks.h"

/* ---- ring.c: collectives that are compared without a meeting of the ranks */

#define AX_RING 64     /* calls of a rank in a group that the others can read */
#define AX_PAIR_RING 4 /* of what a rank sends to another one, and of what that one receives */

typedef struct ax_walk ax_walk;
/* Posts this rank's collective of g and compares it with those of the ranks that have posted
 * theirs. */
ax_status ax_ring_post(ax_walk *g, const ax_collective *c);
/* EMISMATCH when ranks were found to differ. */
ax_status ax_ring_differs(void);
/* See ax_transport.look. */
ax_status ax_ring_look(ax_group *g, int64_t since, ax_status st);
/* See ax_transport.watch. */
ax_status ax_ring_watch(const ax_walk *g, const ax_collective_call *p, int64_t waited);
/* watch.c: "collective #3, all_reduce(float32, 10 elements, sum, on the GPU) at train.lua:9," into
 * buf. */
const char *ax_watch_text(const ax_collective_call *p, char *buf, size_t size);

/* ---- steps.c, shm.c */

#define AX_SLOTS 8
#define AX_SLOT_HEADER 384 /* bytes in front of a slot's data */
#define AX_FROM_ALL (-1)

/* A group of ranks of this machine, as one of them walks its steps. */
struct ax_walk {
  struct ax_walk *next;   /* all walks of this process but the world's */
  int rank, size;         /* in the group */
  uint32_t step;          /* walked since the start; the same on all its ranks */
  int *local;             /* [size] each one's rank on this machine */
  ax_counters **counters; /* [size] */
  uint64_t calls;         /* collectives entered; of the world: ax_rank_record.world_calls */
  int set;                /* the number of its counters in the shared memory; -1: those of a pair */
  bool left;              /* freed when the window turns to another one */
  bool posts;             /* every collective goes through the ring */
  int ring_length;        /* calls of each member */
  ax_collective_call *ring;
};

typedef struct ax_steps {
  ax_control *control;
  char *windows;
  ax_counters *counters;     /* sets of the groups, then of pairs of ranks */
  ax_walk world;             /* of this machine's ranks */
  ax_walk *last;             /* the one whose slots are in the window */
  ax_walk *walks;            /* the others */
  ax_collective_call *rings; /* of each set of counters, then of pairs of ranks */
  size_t chunk;              /* bytes of a slot's data */
  int rank, size;
  int first, machines; /* of this machine's ranks the first one; 0 machines: this is the only one */
  double best_rate;    /* the best of the last few bulk writes, bytes per ns */
  int rated;
  bool slow_writes;
  int busy;                        /* looks that a wait spends now */
  volatile const int *interrupted; /* NULL, or not 0 when waits are to end */
} ax_steps;
extern ax_steps ax_shm;

/* The data of a rank's slot of this step. */
char *ax_step_slot(ax_walk *g, int rank);
/* What that rank has called, once it has filled the first slot of a collective. */
const ax_collective_call *ax_step_call(ax_walk *g, int rank);
/* Waits until nobody reads the own slot of this step any more. */
ax_status ax_step_begin(ax_walk *g);
/* Writes this rank's arguments in front of the first slot of a collective; and where its memory
 * is. */
void ax_step_header(ax_walk *g, const ax_collective *c);
void ax_step_set_place(ax_walk *g, const ax_place *place);
/* The place that this rank has written in this step. */
ax_place ax_step_place(ax_walk *g, int rank);
/* Copies into the own slot, `at` bytes behind its beginning. */
void ax_step_put(ax_walk *g, size_t at, const void *from, size_t n);
/* Publishes the filled slot and waits for the slots that this rank is going to read: those of all
 * ranks (AX_FROM_ALL) or of one rank (its own number: none).  In the first step of a collective it
 * waits for all ranks, and fails with EMISMATCH when their arguments differ. */
ax_status ax_step_meet(ax_walk *g, bool first, int from);
/* In parts, for ranks that run ahead of each other by some steps.  The slot of `back` steps ago;
 * publishes the own slot of this step; waits for that rank's slot of `back` steps ago; ends the
 * step where the slots of the last `back` steps are still to be read. */
char *ax_step_slot_back(ax_walk *g, int rank, int back);
void ax_step_fill(ax_walk *g);
ax_status ax_step_wait_filled(ax_walk *g, int rank, int back);
void ax_step_end_back(ax_walk *g, int back);
/* The second phase of a step that has two. */
void ax_step_reduced(ax_walk *g);
ax_status ax_step_wait_reduced(ax_walk *g, int rank);
void ax_step_end(ax_walk *g);

int ax_shm_world_rank(int local);
/* "rank 3", or "rank 3 (machine 1)", of a rank of this machine. */
const char *ax_shm_name(int rank, char *buf, size_t size);
/* "has called none yet", or what it was. */
const char *ax_shm_doing(int rank, char *buf, size_t size);
/* "--timeout", or what else set a rank's limit of nanoseconds. */
const char *ax_shm_limit_source(int64_t limit);
/* EABORTED with the reason why the run is being ended. */
ax_status ax_shm_aborted(void);
/* EABORTED: rank `rank` does not come any more. */
ax_status ax_shm_gone(int rank);
/* EABORTED when this rank was interrupted. */
ax_status ax_shm_interrupted(void);
/* Between parts of long work: EABORTED when the run is being ended or this rank was interrupted. */
ax_status ax_step_look(void);
/* Before the first step in g: the window is free for it. */
ax_status ax_step_turn_to(ax_walk *g);
void ax_walk_free(ax_walk *g); /* at once, or when the window turns to another one */
/* All groups begin at their first step: see ax_shm_begin_chunk. */
void ax_walks_afresh(void);
/* The counters of `set` of this machine's rank `local`; ax_pair_counters: those of rank `local` (of
 * the two) for what `from` sends to `to`. */
ax_counters *ax_set_counters(int set, int local);
ax_counters *ax_pair_counters(int from, int to, int local);
/* The rings of a set, and of what `from` sends to `to`. */
ax_collective_call *ax_set_ring(int set);
ax_collective_call *ax_pair_ring(int from, int to);
/* shm_collectives.c: moves the data of one collective. */
ax_status ax_shm_collective(ax_walk *g, const ax_collective *c);
/* Around a collective: what this rank does, for the launcher's reports.  number: which one of its
 * group it is; 0: the world's next.  After one that failed ranks may be at different steps, and the
 * next is refused. */
void ax_shm_enter(const ax_collective *c, uint64_t number);
void ax_shm_leave(ax_status st);
ax_status ax_shm_refuse_broken(void);
void ax_futex_wake(_Atomic uint32_t *word);

#endif

/* dist.h: process groups.
 *
 * A group is some ranks of the world, in an order, and a transport.  A transport is a table of
 * functions that carries collectives over one kind of memory: `shm` (host memory, the ranks of one
 * machine), `tcp` and `mpi` (host memory, several machines), `nccl` (the CUDA backend's: GPU
 * memory).  They are peers.  A transport whose collectives run beside the computation returns a
 * ticket for their end; one that finishes them before it returns gives none.  The world is the
 * group of all ranks; ax_group_split makes others.  The devices of a group's ranks join when that
 * is first needed, or with the group where its parent's devices have joined: the group's link.
 *
 * Collectives of a group are issued in the same order on every rank.  Each rank's arguments (op,
 * dtype, count, shape, root, reduction, model) are compared before data moves: a difference is an
 * error on every rank that names both ranks and both script lines.
 *
 * Reductions have a fixed order (ax_dist_reduce), whatever the timing and whichever rank computes
 * them: all ranks get the same bits, in every run.  float16 and bfloat16 are added up in float32
 * and rounded once; integer sums and products wrap. */
#ifndef AX_DIST_H
#define AX_DIST_H

#include "plugin.h"

#define AX_WHERE_TEXT 128 /* bytes of a script line's name */
#define AX_GROUP_TEXT 32  /* bytes of a group's name */

typedef enum {
  AX_ALL_REDUCE,
  AX_BROADCAST,
  AX_ALL_GATHER,
  AX_REDUCE_SCATTER,
  AX_GATHER,
  AX_REDUCE,
  AX_SCATTER,
  AX_ALL_TO_ALL,
  AX_SEND,
  AX_RECV,
  AX_BARRIER,
  AX_JOIN,
  AX_RECORDING,
  AX_REPLAY,
  AX_COLLECTIVES
} ax_collective_op;
typedef enum { AX_SUM, AX_MEAN, AX_MAX, AX_MIN, AX_PROD, AX_REDUCTIONS } ax_reduction;

static inline bool ax_collective_reduces(ax_collective_op op)
{
  return op == AX_ALL_REDUCE || op == AX_REDUCE_SCATTER || op == AX_REDUCE;
}
static inline bool ax_collective_has_root(ax_collective_op op)
{
  return op == AX_BROADCAST || op == AX_GATHER || op == AX_REDUCE || op == AX_SCATTER;
}

AX_API const char *ax_collective_name(ax_collective_op op);
AX_API const char *ax_reduction_name(ax_reduction r);
/* *out: the reduction called `name`; EINVAL, with the list of names, when there is none. */
AX_API ax_status ax_reduction_parse(const char *name, ax_reduction *out);

/* One collective over raw, contiguous buffers in host memory or in the memory of the device that
 * this rank has joined with.  n is the group's size; `count` is in elements:
 *   ALL_REDUCE      in[count] of all ranks reduced -> out[count] on each; in may be out
 *   BROADCAST       in[count] of root -> out[count] on each; in may be out
 *   ALL_GATHER      in[count] of each -> out[n * count] on each, in rank order
 *   REDUCE_SCATTER  in[n * count] reduced -> out[count], rank r getting part r; in must not
 *                   overlap out
 *   GATHER          in[count] of each -> out[n * count] on root, in rank order; out may be NULL
 *                   elsewhere
 *   REDUCE          in[count] of all ranks reduced -> out[count] on root; out may be NULL elsewhere
 *   SCATTER         in[n * count] of root, part r -> out[count] on rank r; in may be NULL elsewhere
 *   ALL_TO_ALL      part k of in, splits[k] elements, -> place r of rank k's out, which has room
 *                   for splits[n + r] elements there; `count` is 0
 *   SEND, RECV      in[count] -> out[count] of one other rank, `root`, which calls the opposite
 *   BARRIER         no rank leaves before all have entered
 *   JOIN            ALL_GATHER of facts about the ranks' devices, before the devices join a
 *                   group
 *   RECORDING       no data: a captured step (capture.h) ends, with `count` collectives, whose
 *                   arguments `model` is a digest of
 *   REPLAY          such a step runs again, and its collectives as one */
typedef struct ax_collective {
  ax_collective_op op;
  ax_dtype dtype;
  ax_reduction reduction; /* for the ops that reduce, else AX_SUM */
  int root;               /* for ops with a root; the other rank of SEND and RECV; else 0 */
  /* for gradients: the number of their prepared model, from 1; 0: none.  It separates buffers of
   * equal size that belong to two models */
  int model;
  uint8_t kind, index; /* ax_device: the buffers' device */
  int64_t count;
  /* the tensor's shape, which must be the same on every rank; 0: raw buffers */
  int ndim;
  int64_t shape[AX_MAX_DIMS];
  const void *in;
  void *out;
  const int64_t *splits;     /* ALL_TO_ALL: elements to each rank, then from each */
  char group[AX_GROUP_TEXT]; /* "tp[0,1]"; "": the world */
} ax_collective;

typedef struct ax_group ax_group;
typedef struct ax_work ax_work;

/* A rank's call of a collective, as the other ranks get it to compare. */
typedef struct ax_collective_call {
  uint64_t number; /* which collective of the group this is */
  ax_collective facts;
  char where[AX_WHERE_TEXT];
} ax_collective_call;

#define AX_GROUP_ID 128
#define AX_DEVICE_NAME 96

/* Entries that are (optional) may be NULL. */
typedef struct ax_transport {
  const char *name; /* "shm", "tcp", "nccl" */

  /* ---- joining (transports of devices): a group's ranks exchange names and an id through its host
   * memory, then join */

  /* Names the device on its machine, with the library's version: "0000:1b:00.0, NCCL 2.28.9".  Two
   * ranks must not have the same name, unless they share a device on purpose (ax_gpu_shared). */
  ax_status (*identity)(int device, char name[AX_DEVICE_NAME]);
  /* Makes the id with which all ranks join. */
  ax_status (*make_id)(char id[AX_GROUP_ID]);
  /* Joins; g has its rank, size and device, and gets its link.  Returns when all have joined, or
   * with the error of ax_dist_look. */
  ax_status (*join)(ax_group *g, const char id[AX_GROUP_ID]);
  /* Whether all collectives of g that this rank has issued have ended; frees g's link, which then
   * no rank uses any more. */
  bool (*idle)(ax_group *g);
  void (*drop)(ax_group *g);

  /* ---- collectives */

  /* Starts c[0 .. n - 1], as one, after all work queued on their memory so far.  *ticket: a number
   * for `order`; 0: they have ended.  While a step is captured they become part of it. */
  ax_status (*issue)(ax_group *g, const ax_collective *c, int n, uint64_t *ticket);
  /* Orders work queued on the memory from now on after the end of `ticket`.  (optional) NULL: there
   * are no tickets. */
  ax_status (*order)(ax_group *g, uint64_t ticket);
  /* Called before (begins) and after the launch of a captured step whose collectives `issue` got
   * during the recording.  The launch counts as one collective, the next after the last `issue`.
   * (optional) NULL: collectives cannot be recorded. */
  ax_status (*replay)(ax_group *g, bool begins);
  /* Leaves the group and frees what it holds; not a collective.  abort: ends running collectives at
   * once, those of a device in all of its groups; else waits for them.  (optional) NULL: there is
   * nothing to leave. */
  void (*leave)(ax_group *g, bool abort);

  /* Gives g, a new group of some ranks of `from` (its rank, size and members are set; rank -1: this
   * rank is in none), its state; a transport of devices its link.  A collective of `from`.
   * (optional) NULL: groups cannot be divided. */
  ax_status (*split)(ax_group *from, ax_group *g);

  /* ---- of host memory: what ranks that wait for devices know of each other */

  /* Sets how long this rank waits in one collective.  Of worlds.  (optional) NULL: it never
   * waits. */
  void (*set_timeout)(ax_group *g, double seconds);
  /* Publishes a collective that the group's devices carry, and compares it with the other ranks'
   * collectives without waiting for them.  EMISMATCH, on all ranks, when they differ.  *number:
   * which one of the group's it is.  (optional) NULL: there is no rank to compare with. */
  ax_status (*post)(ax_group *g, const ax_collective *c, uint64_t *number);
  /* Called repeatedly inside a wait for the devices, which began at `since`.  AX_OK: wait on; else
   * the error that makes the wait pointless.  since 0: the wait has ended, with `st`.  Of worlds.
   * (optional) */
  ax_status (*look)(ax_group *g, int64_t since, ax_status st);
  /* From now on this rank posts the group's collectives of host memory too, because its devices
   * have joined.  All its ranks call it at the same point.  (optional) */
  void (*post_all)(ax_group *g);
  /* For the watchdog's thread: whether waiting for `p`, which has lasted `waited` nanoseconds, is
   * pointless, and why.  Changes nothing.  (optional) NULL: nobody is waited for. */
  ax_status (*watch)(ax_group *g, const ax_collective_call *p, int64_t waited);
  /* This rank needs g no more, and its devices' collectives have ended.  Returns whether that holds
   * for all of g's ranks.  (optional) NULL: nobody knows. */
  bool (*retire)(ax_group *g);
} ax_transport;

struct ax_group {
  const ax_transport *transport;
  void *state; /* the transport's */
  int rank, size, local_rank, local_size;
  bool closed;           /* this rank has left it */
  void *link;            /* the devices' transport's; NULL: they have not joined */
  int device;            /* where they have: this rank's */
  ax_group *next_linked; /* the group whose devices joined next */
  /* of a group that ax_group_split made: */
  int32_t refs; /* 0: it waits until its link may be freed */
  int *members; /* [size] each one's rank in the world; NULL: the world itself */
  char name[AX_GROUP_TEXT];
};

/* The group of all ranks; borrowed.  A group of one until a transport is joined. */
AX_API ax_group *ax_dist_world(void);
/* Divides a group: ranks that give the same `colour` (0 or more) make a new group, ordered by
 * `key`, then by rank; a rank that gives -1 is in none, and *out is NULL there.  A collective of
 * `from`.  *out: a new reference.  `name` is the beginning of its name in messages: "tp" becomes
 * "tp[0,1]". */
AX_API ax_status ax_group_split(ax_group *from, int colour, int key, const char *name, ax_group **out);
AX_API ax_group *ax_group_retain(ax_group *g);
/* Leaves the group with the last reference; not a collective. */
AX_API void ax_group_release(ax_group *g);
AX_API int ax_group_world_rank(const ax_group *g, int rank);

/* Checks `c` against the group and the dtype, and starts it where its memory is carried.
 * *work: for waiting until it ends; NULL: it has ended.  work NULL: also waits for the end.  For a
 * collective of a device, that wait is the device's: work queued from now on runs after the end,
 * and the host goes on. */
AX_API ax_status ax_dist_run(ax_group *g, const ax_collective *c, ax_work **work);
/* Orders work queued on the device from now on after the end of `work` (NULL: does nothing).  Takes
 * it. */
AX_API ax_status ax_work_wait(ax_work *work);
/* Sets how long this rank waits for the others in one collective of the world. */
AX_API void ax_dist_set_timeout(double seconds);
/* For a wait for other ranks outside of collectives, from any thread: AX_OK to wait on; EABORTED
 * when the run is being ended; ETIMEOUT when a collective would have waited long enough.  since:
 * when it began (ax_monotonic_ns). */
AX_API ax_status ax_dist_patience(int64_t since);
/* Marks save `number` (above 0) as lost on this rank; returns whether `rank` of this machine lost
 * it.  Used when the disk cannot record the loss.  From any thread. */
AX_API void ax_dist_lose_save(uint32_t number);
AX_API bool ax_dist_save_lost(int rank, uint32_t number);
/* Signals that the script handles.  ax_signal_handle: leaves `sig` to the script; false: there is
 * no launcher.  ax_signal_due: the signal on which all ranks act now, once; 0: none. */
AX_API bool ax_signal_handle(int sig);
AX_API int ax_signal_due(void);
/* This rank leaves the world for good: its collectives fail from now on, and so do collectives of
 * the others that wait for it.  Ranks keep their numbers.  Does nothing in a group of one. */
AX_API void ax_dist_leave(void);
/* Called in a fork of a rank, which has no part in the rank's groups: a collective of any of them
 * fails there, and neither the end of a group nor a write into shared memory is noticed by others.
 * Holds until the fork becomes a rank of a world of its own (ax_dist_set_world). */
void ax_dist_forget(void);
/* The script line ("train.lua:12") that the next collectives of this process come from; copied. */
AX_API void ax_dist_set_where(const char *where);

/* ---- tensors.  None of these is recorded by autograd. */

/* In place; t may have any strides. */
AX_API ax_status ax_dist_all_reduce(ax_group *g, ax_tensor *t, ax_reduction r, int model);
/* Starts an all_reduce of a contiguous tensor without waiting.  t's elements may not be read or
 * written before ax_work_wait(*work), and t must live until then.  *work NULL: it has ended. */
AX_API ax_status ax_dist_all_reduce_begin(ax_group *g, ax_tensor *t, ax_reduction r, int model,
                                          ax_work **work);
AX_API ax_status ax_dist_broadcast(ax_group *g, ax_tensor *t, int root);
/* Reduces into root's t; the others' keep their elements. */
AX_API ax_status ax_dist_reduce_to(ax_group *g, ax_tensor *t, ax_reduction r, int root);
/* t's elements to rank `to`, which calls ax_dist_recv with a tensor of the same shape and type. */
AX_API ax_status ax_dist_send(ax_group *g, ax_tensor *t, int to);
AX_API ax_status ax_dist_recv(ax_group *g, ax_tensor *t, int from);
/* Broadcasts many tensors, on a device as one collective. */
AX_API ax_status ax_dist_broadcast_all(ax_group *g, int n, ax_tensor *const *list, int root);
/* New reference: the ranks' tensors, which have one shape, joined along dim 0 in rank order; a 0-d
 * tensor counts as [1]. */
AX_API ax_status ax_dist_all_gather(ax_group *g, ax_tensor *t, ax_tensor **out);
/* Gathers as ax_dist_all_gather does, on root alone; *out is NULL elsewhere. */
AX_API ax_status ax_dist_gather(ax_group *g, ax_tensor *t, int root, ax_tensor **out);
/* New reference: part `rank` of dim 0 of root's t.  `like`: on the other ranks, a tensor with the
 * part's shape and type (its elements do not matter); on root NULL. */
AX_API ax_status ax_dist_scatter(ax_group *g, ax_tensor *t, ax_tensor *like, int root, ax_tensor **out);
/* New reference: rows of dim 0 of every rank's t, those for this rank, in rank order.  splits: size
 * rows to each rank, then size rows from each; they must fit those of the other ranks. */
AX_API ax_status ax_dist_all_to_all(ax_group *g, ax_tensor *t, const int64_t *splits, ax_tensor **out);
/* New reference: part `rank` of dim 0 of the reduced tensor.  ESHAPE when the size of dim 0 is no
 * multiple of the group's. */
AX_API ax_status ax_dist_reduce_scatter(ax_group *g, ax_tensor *t, ax_reduction r, ax_tensor **out);
AX_API ax_status ax_dist_barrier(ax_group *g);

/* ---- devices: collectives over their memory, which a backend's library (NCCL) runs beside the
 * computation */

/* From now on devices[index] carries this rank's collectives of device memory.  All ranks of g call
 * it, at the same point; the first collective of a device's tensor does so too.  A world of one may
 * have a link. */
AX_API ax_status ax_dist_join_device(ax_group *g, int index);
/* "nccl" when a device has joined, else NULL.  *index: which one. */
AX_API const char *ax_dist_device_name(int *index);
/* Leaves all links at the end of this rank. */
AX_API void ax_dist_leave_device(void);
/* Whether ranks take one device together, which slows all of them: $ACCEL_SHARE_GPU is 1. */
AX_API bool ax_gpu_shared(void);
/* For backends: called repeatedly inside a wait for the device that began at `since`
 * (ax_monotonic_ns).  See ax_transport.look. */
AX_API ax_status ax_dist_look(int64_t since, ax_status st);

/* ---- for a watchdog: a thread of a backend that watches the devices' collectives.
 * The rank's own thread may be blocked inside the driver or the library.
 * See core/dist/watch.c. */

/* Before the thread starts, and after it has ended. */
AX_API void ax_dist_watch_begin(void);
AX_API void ax_dist_watch_end(void);
/* The rest is called by that thread.  `ticket`: the devices' collective, counted from 1 in the
 * order of ax_transport.issue over all groups; 0: the joining of one. */

/* AX_OK: wait on; else the error that makes waiting for it pointless after `waited` nanoseconds. */
AX_API ax_status ax_dist_watch(uint64_t ticket, int64_t waited);
/* EABORTED: "collective #3, all_reduce(...) at train.lua:9: why". */
AX_API ax_status ax_dist_watch_failed(uint64_t ticket, const char *why);
/* Notes for the launcher's reports whether the rank's own thread is blocked in a launch.  Returns
 * whether it has been in one launch since the last call. */
AX_API bool ax_dist_watch_launch(int device, int64_t now);
/* The links were aborted because of `reason`, and the rank's own thread is blocked: the launcher
 * ends the run unless ax_dist_watch_free follows within a few seconds. */
AX_API void ax_dist_watch_stuck(const char *reason);
AX_API void ax_dist_watch_free(void);

/* ---- for transports, also those in plugins */

/* Makes `g` the world.  Its fields are set; the group belongs to the transport, which may use the
 * world before it (the ranks of one machine) for a part of the way. */
AX_API void ax_dist_set_world(ax_group *g);
/* out[i] = in[0][i] (r) in[1][i] (r) ...: neighbours first, then neighbouring pairs, and so on.  So
 * the bits do not depend on where runs of 2, 4, 8 ... ranks are combined.  out may be one of the
 * inputs, but not overlap one by parts. */
AX_API void ax_dist_reduce(ax_dtype dtype, ax_reduction r, void *out, const void *const *in, int n,
                           size_t count);

/* A reduction in parts.  ax_dist_accumulate combines in[0 .. n - 1] into `acc`, whose type is
 * ax_dist_accumulator(dtype); accumulators are combined as elements of that type.
 * ax_dist_accumulated writes the result over `ranks` inputs in all, and may change acc. */
AX_API ax_dtype ax_dist_accumulator(ax_dtype dtype);
AX_API void ax_dist_accumulate(ax_dtype dtype, ax_reduction r, void *acc, const void *const *in, int n,
                               size_t count);
AX_API void ax_dist_accumulated(ax_dtype dtype, ax_reduction r, void *out, void *acc, int ranks,
                                size_t count);

/* "train.lua:12", or "": AX_WHERE_TEXT bytes, borrowed. */
AX_API const char *ax_dist_where(void);
/* Whether two ranks' collectives agree in op, dtype, reduction, root, count, shape and kind of
 * device. */
AX_API bool ax_collective_same(const ax_collective *a, const ax_collective *b);
/* EMISMATCH where one of n ranks sends another, in an all_to_all, more or fewer elements than it
 * expects.  splits[r]: rank r's, as in ax_collective; names[r]: its name in the message, NULL:
 * r. */
AX_API ax_status ax_splits_fit(int n, const int64_t *const *splits, const int *names);
/* Fails with EMISMATCH: "ranks disagree in collective #3: rank 0 calls ...; rank 1 calls ...". */
AX_API ax_status ax_calls_differ(int a, const ax_collective_call *wa, int b, const ax_collective_call *wb);
/* "all_reduce(float32, 10 elements, sum)" into buf. */
AX_API const char *ax_collective_text(const ax_collective *c, char *buf, size_t size);

/* ---- between dist.c and device_group.c */

/* Runs the collectives of a group of one: copies each input to its output. */
ax_status ax_dist_alone(const ax_collective *c, int n);
/* Issues n collectives of a device as one; `compared` is the call that ranks compare. */
ax_status ax_device_issue(ax_group *g, const ax_collective *compared, const ax_collective *c, int n,
                          ax_work **work);
/* Collectives of `from`: the world's devices join before its division, where this process has
 * chosen one (ax_device_choose); those of g, a part of `from`, join where those of `from` have. */
ax_status ax_device_before_split(ax_group *from);
ax_status ax_device_split(ax_group *from, ax_group *g);
/* g, to which nobody refers any more, has a link: it is freed (ax_group_free) when no rank needs
 * the link, and the links of others that wait for that. */
void ax_device_retire(ax_group *g);
void ax_group_free(ax_group *g);
/* All collectives of a group in a captured step as one, for its ranks to compare. */
typedef struct ax_recorded {
  ax_group *group;
  ax_collective as_one;
} ax_recorded;
/* Called when the recording of a step with collectives of the device ends (ranks compare them),
 * before a launch of that step, and after it.  n: groups. */
ax_status ax_device_recorded(const ax_recorded *r, int n);
ax_status ax_device_replay(const ax_recorded *r, int n);
ax_status ax_device_replayed(const ax_recorded *r);
/* Of ax_dist_forget: no group has a link any more. */
void ax_device_forget(void);
/* *out: a new work for `ticket`; NULL when the ticket is 0. */
ax_status ax_work_new(ax_group *g, uint64_t ticket, ax_work **out);

/* ---- between device_group.c and watch.c */

/* Called before the devices of g join by `c`, and before they issue `c`, its collective
 * `number`. */
void ax_watch_joining(ax_group *g, const ax_collective *c);
void ax_watch_issuing(ax_group *g, const ax_collective *c, uint64_t number);
void ax_watch_drop(const ax_group *g); /* g is about to be freed */
void ax_watch_forget(void);            /* in a forked child: nobody watches */

#endif

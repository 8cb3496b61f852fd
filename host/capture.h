/* capture.h: captured steps.
 *
 * A recording stores the work that a function queues on a device, without running it; a replay runs
 * all of it again with one call.  Kernels are stored with their arguments by value, so everything
 * that changes from one replay to the next is in device memory: the inputs (buffers that the caller
 * writes) and the block of device arguments.  The host fills that block before each replay and
 * sends it in one copy.  It holds the seeds and offsets of random draws, the optimizers'
 * hyperparameters and the counts of their steps.
 *
 * A recording keeps alive what it refers to.  Its scratch memory comes from a pool of its own, and
 * it retains every storage from outside that one of its kernels reads or writes.  It notes the
 * leaves that it meets, with their gradients at its start and at its end.  A replay is only right
 * where the leaves are as they were at the start (ax_capture_fits), and it leaves them as the
 * recording left them. */
#ifndef AX_CAPTURE_H
#define AX_CAPTURE_H

#include "plugin.h"

/* The backend's part.  One recording at a time. */
struct ax_device_capture {
  /* From now on the device's work is stored instead of run, and its memory comes from a new pool.
   * Calls that would wait for the device or copy to or from the host fail. */
  ax_status (*begin)(int device, void **graph);
  /* Ends the recording and readies it for replays; the graph is freed on failure. */
  ax_status (*end)(void *graph);
  ax_status (*replay)(void *graph); /* queued in order with the device's other work; does not wait */
  /* Frees it; abandons a recording that is under way.  The pool is freed with the last tensor in
   * it. */
  void (*release)(void *graph);
  /* Memory that nothing else in the recording gets, and that lives as long as the graph.  Called
   * during the recording. */
  ax_status (*keep)(void *graph, size_t bytes, void **out);
  bool (*inside)(const void *graph, const void *data); /* whether it is in the pool */
};

/* What a random kernel adds to the seed and offset that it was recorded with. */
typedef struct ax_draw_args {
  uint64_t seed, offset;
} ax_draw_args;

#ifndef __cplusplus /* the host's side of it */

typedef struct ax_capture ax_capture;
/* The recording under way on this thread; NULL: none. */
AX_API extern _Thread_local ax_capture *ax_recording;
/* Whether a step runs eagerly to be compared with its replay: what may wait until it is read, or
 * never run, runs at once as in the recording. */
AX_API extern _Thread_local bool ax_comparing;

/* New: records on `device` until ax_capture_end, or until ax_capture_free, which abandons the
 * recording and restores gradients, working copies and generators.  EINVAL inside a recording,
 * ENOIMPL where the backend cannot record. */
AX_API ax_status ax_capture_begin(ax_device device, ax_capture **out);
AX_API ax_status ax_capture_end(ax_capture *c);
/* Called before anything is recorded: the recording does not touch leaves' gradients, so a replay
 * fits any gradients and leaves them unchanged. */
AX_API void ax_capture_leave_gradients(ax_capture *c);
AX_API void ax_capture_free(ax_capture *c); /* NULL is fine */
/* Whether the leaves are at the addresses of the recording and the same leaves have gradients.  If
 * not, *why (if not NULL) describes the difference; borrowed, static. */
AX_API bool ax_capture_fits(const ax_capture *c, const char **why);
/* Whether the recording changes this leaf in place. */
AX_API bool ax_capture_writes(const ax_capture *c, const ax_tensor *t);
/* Runs a replay.  first: the replay stands for the recorded call itself, whose effects on the host
 * have happened already. */
AX_API ax_status ax_capture_replay(ax_capture *c, bool first);

/* ---- comparing with the eager call: a copy on the host of all bytes from outside that the
 * recording refers to, and of its leaves' gradients */

typedef struct ax_saved_state ax_saved_state;
AX_API ax_status ax_capture_save(ax_capture *c, ax_saved_state **out);
AX_API ax_status ax_capture_restore(ax_capture *c, const ax_saved_state *s); /* also the generators' states */
AX_API void ax_saved_state_free(ax_saved_state *s);
/* Finds the first place where two states differ: a storage's address and a byte in it, or a leaf
 * whose gradient only one of them has (*byte -1).  Returns false when they are equal. */
AX_API bool ax_saved_state_differ(const ax_capture *c, const ax_saved_state *a, const ax_saved_state *b,
                                  const void **storage, int64_t *byte);

/* ---- for the core and the binding, during a recording */

/* before a leaf, or its gradient, is read or written */
AX_API void ax_capture_note(ax_tensor *t);
AX_API void ax_capture_hold(ax_storage *s); /* its memory is read or written */
/* does ax_capture_note for an op's input; EGRAD for a history from before the recording */
ax_status ax_capture_input(const char *name, ax_tensor *t);
ax_status ax_capture_kernel(ax_op op, int n_in, ax_tensor *const *in, int n_out, ax_tensor *const *out);
/* A collective of the recording's device in g: its ranks compare `c`, which may stand for several
 * that run as one.  The recording retains g. */
struct ax_collective;
struct ax_group;
ax_status ax_capture_collective(struct ax_group *g, const struct ax_collective *c);
ax_status ax_capture_draw(ax_generator *gen, ax_attrs *a);
/* Whether a generator can go to another place among its draws during the recording: back to where
 * the recording has drawn, and forth again. */
AX_API bool ax_capture_may_move(const ax_generator *gen, uint64_t draws);
/* A place in the block of device arguments for an optimizer's hyperparameters; *hyper and *ran are
 * device addresses. */
AX_API ax_status ax_capture_optim(const ax_hyper *h, const ax_hyper **hyper, const int64_t **ran);
/* The number (from 0) of the last such place, and its contents at the next replay. */
AX_API int ax_capture_optims(const ax_capture *c);
AX_API void ax_capture_set_optim(ax_capture *c, int number, const ax_hyper *h, int64_t ran);
AX_API void ax_capture_counts(const ax_capture *c, int *leaves, int *storages, int *draws); /* for reports */

#endif
#endif

/* capture.h: recorded steps.
 *
 * A recording takes down the work that a function queues on a device, without running it; a replay
 * runs all of it again with one call.  Kernels are taken down with their arguments by value, so
 * everything that changes from one replay to the next is in memory of the device: the inputs
 * (buffers that the caller writes), and the block of device arguments, which the host fills anew
 * before each replay and sends up in one copy: the seeds and offsets of random draws, the
 * optimizers' numbers and how many steps they have taken.
 *
 * What a recording may refer to stays alive with it: its scratch memory comes from a pool of its
 * own, and every storage from outside that one of its kernels reads or writes is retained.  Leaves
 * that it meets are noted with their gradients as they were at the start and at the end: a replay
 * is only right where the start is the same again (ax_capture_fits), and it leaves them as the
 * recording left them. */
#ifndef AX_CAPTURE_H
#define AX_CAPTURE_H

#include "plugin.h"

/* The backend's part.  One recording at a time. */
struct ax_device_capture {
  /* From now on the device's work is taken down, its memory comes from a new pool, and what would
   * wait for it or copy from or to the host fails. */
  ax_status (*begin)(int device, void **graph);
  /* Ends the recording and readies it for replays; the graph is freed on failure. */
  ax_status (*end)(void *graph);
  ax_status (*replay)(void *graph); /* in its place among the device's work; does not wait */
  /* Frees it: ends a recording that is under way, drops what it took down.  The pool goes when the
   * last tensor in it does. */
  void (*release)(void *graph);
  /* Memory that nothing else in the recording is given, and that lives as long as the graph.  While
   * it is recorded. */
  ax_status (*keep)(void *graph, size_t bytes, void **out);
  bool (*inside)(const void *graph, const void *data); /* is it of the pool? */
};

/* What a kernel that draws adds to the numbers that it was recorded with. */
typedef struct ax_draw_args {
  uint64_t seed, offset;
} ax_draw_args;

#ifndef __cplusplus /* the host's side of it */

typedef struct ax_capture ax_capture;
/* The recording under way on this thread; NULL: none. */
AX_API extern _Thread_local ax_capture *ax_recording;

/* New: recording on `device` until ax_capture_end, or ax_capture_free, which abandons it and puts
 * gradients, working copies and generators back to where they were.  EINVAL inside a recording,
 * ENOIMPL where the backend has none. */
AX_API ax_status ax_capture_begin(ax_device device, ax_capture **out);
AX_API ax_status ax_capture_end(ax_capture *c);
/* Before anything is recorded: what comes has nothing to do with leaves' gradients, so that replays
 * fit whatever gradients there are, and leave them. */
AX_API void ax_capture_leave_gradients(ax_capture *c);
AX_API void ax_capture_free(ax_capture *c); /* NULL is fine */
/* Whether the leaves are at the addresses of the recording and the same leaves have gradients.  If
 * not, *why (if not NULL) describes what differs; borrowed, static. */
AX_API bool ax_capture_fits(const ax_capture *c, const char **why);
/* Did the recording change this leaf in place? */
AX_API bool ax_capture_writes(const ax_capture *c, const ax_tensor *t);
/* Runs it.  first: it stands for the recorded call itself, whose effects on the host have happened
 * already. */
AX_API ax_status ax_capture_replay(ax_capture *c, bool first);

/* ---- comparing with the eager call: the bytes of all that the recording refers to from outside,
 * and its leaves' gradients, on the host */

typedef struct ax_saved_state ax_saved_state;
AX_API ax_status ax_capture_save(ax_capture *c, ax_saved_state **out);
AX_API ax_status ax_capture_restore(ax_capture *c, const ax_saved_state *s); /* with the generators' states */
AX_API void ax_saved_state_free(ax_saved_state *s);
/* The first place where two differ: a storage's address and a byte in it, or a leaf whose gradient
 * only one of them has (*byte -1).  False: they are equal. */
AX_API bool ax_saved_state_differ(const ax_capture *c, const ax_saved_state *a, const ax_saved_state *b,
                                  const void **storage, int64_t *byte);

/* ---- for the core and the binding, while something is recorded */

/* before a leaf, or its gradient, is read or written */
AX_API void ax_capture_note(ax_tensor *t);
AX_API void ax_capture_hold(ax_storage *s); /* its memory is read or written */
/* does ax_capture_note for an op's input; EGRAD for a history from before the recording */
ax_status ax_capture_input(const char *name, ax_tensor *t);
ax_status ax_capture_kernel(const char *name, int n_in, ax_tensor *const *in, int n_out,
                            ax_tensor *const *out);
ax_status ax_capture_draw(ax_generator *gen, ax_attrs *a);
/* A place in the block of device arguments for an optimizer's numbers: *hyper and *ran are the
 * device's. */
AX_API ax_status ax_capture_optim(const ax_hyper *h, const ax_hyper **hyper, const int64_t **ran);
/* The number (from 0) of the last such place, and what it is to hold at the next replay. */
AX_API int ax_capture_optims(const ax_capture *c);
AX_API void ax_capture_set_optim(ax_capture *c, int number, const ax_hyper *h, int64_t ran);
AX_API void ax_capture_counts(const ax_capture *c, int *leaves, int *storages, int *draws); /* for reports */

#endif
#endif

/* feed.h: what hands batches to a loader: a thread that gathers rows, and worker processes. */
#ifndef AX_FEED_H
#define AX_FEED_H

#include "ax.h"

/* ---- the gather thread --------------------------------------------------------------------------
 * A thread that copies the rows of the next batch while the step runs.
 *
 * The rows are picked, the results allocated and everything checked on the caller's thread; the
 * other thread only copies memory.  It never meets Lua, the allocator, OpenMP or autograd.  What is
 * copied does not depend on when: if a source was written to meanwhile, the rows are copied again
 * when the batch is taken.
 *
 * There is one such thread in a process.  It is stopped before every fork and started again by the
 * next batch. */

enum { AX_GATHER_MAX = 8 }; /* sources of one gatherer */

typedef struct ax_gather ax_gather;

/* A gatherer over sources whose dim 0 has one size; they are contiguous and on the CPU.  Retains
 * them.  EINVAL for others. */
ax_status ax_gather_new(int n, ax_tensor *const *sources, ax_gather **out);
/* Waits for a batch that is under way, then frees everything. */
void ax_gather_free(ax_gather *g);
int ax_gather_sources(const ax_gather *g);
int64_t ax_gather_rows(const ax_gather *g);
/* *to: room for the `count` positions, from 0, of the batch that ax_gather_start is called for
 * next.  EINVAL when one is under way: the thread reads its positions. */
ax_status ax_gather_positions(ax_gather *g, int64_t count, int64_t **to);
/* Starts the batch; without `ahead` it is copied only when it is taken.  ERANGE for a position
 * outside; EINVAL when one is under way. */
ax_status ax_gather_start(ax_gather *g, int64_t count, bool ahead);
/* Completes the batch, with what the thread has not copied yet.  out: a new reference for each
 * source. */
ax_status ax_gather_take(ax_gather *g, ax_tensor **out);

/* ---- worker processes ---------------------------------------------------------------------------
 * Processes that read batches for a loader.
 *
 * A worker is a fork of the rank.  Requests go to it over a socket; a batch comes back in a slot, a
 * part of a memory file that was made before the fork and has no name, and the socket carries only
 * a short note that says which slot.  The parent's tensors are in the slot itself; when the last of
 * them is released the slot is free again.  So a batch is copied once, by the worker.
 *
 * Notes are small and few, so that a worker never waits for its parent to read them; it always
 * comes back to reading requests, and the parent never waits in sending one: neither side can block
 * the other for ever.
 *
 * A worker dies with its parent (the kernel sees to it), and nothing of either has a name that
 * could be left behind. */

#define AX_MAX_WORKERS 128 /* workers of one loader */

typedef struct ax_worker ax_worker;

typedef struct ax_note {
  uint64_t ticket; /* the ticket of its request */
  uint32_t kind;   /* the caller's: a batch, an error, the end */
  int32_t slot;
  uint64_t offset, capacity, bytes; /* the slot's place in the memory file, and how much of it is filled */
} ax_note;

/* Forks.  In the parent *out is the worker; in the child *child is true and *out is the other end.
 * Threads of ours are stopped before it; the caller sees to the number of threads of the child's
 * kernels.  EIO, ENOMEM. */
ax_status ax_worker_fork(ax_worker **out, bool *child);
/* Whether this process is a worker. */
bool ax_worker_inside(void);
/* Whether `w` is the worker's own end, and not its parent's. */
bool ax_worker_is_child(const ax_worker *w);
/* 0: it has ended. */
int ax_worker_pid(const ax_worker *w);

/* Parent: sends a request, without waiting for the worker to read it: what the socket does not take
 * is sent on by later calls, and by ax_worker_wait.  EIO when the worker is gone. */
ax_status ax_worker_send(ax_worker *w, const void *bytes, size_t n);
/* Child: the next request, in memory that is valid until the next call.  *n 0: there are no
 * more. */
ax_status ax_worker_next(ax_worker *w, const void **bytes, size_t *n);
/* Child: a slot of at least `bytes`, free until ax_worker_reply hands it over. */
ax_status ax_worker_slot(ax_worker *w, size_t bytes, ax_note *note, char **data);
/* Child: sends the parent `note`: its slot is filled.  EIO when the parent is gone. */
ax_status ax_worker_reply(ax_worker *w, const ax_note *note);
/* Child: flushes what was printed and ends the process, without the parent's exit handlers. */
_Noreturn void ax_worker_exit(int status);

typedef enum { AX_WAIT_NOTE, AX_WAIT_TIMEOUT, AX_WAIT_INTERRUPTED, AX_WAIT_DIED, AX_WAIT_STOPPED } ax_wait;
/* Parent: waits until worker list[at] has a note.  Also looks at the others: *died is the one that
 * ended (its message, with how, is in ax_last_error).  STOPPED, once for each time: list[at] has
 * been stopped (SIGSTOP, Ctrl-Z) for a moment, and the message names the signal.  seconds < 0:
 * without end. */
ax_wait ax_worker_wait(ax_worker *const *list, int n, int at, double seconds, ax_note *note, int *died);
/* Parent: the bytes of a note's slot.  EIO when they cannot be mapped. */
ax_status ax_worker_open(ax_worker *w, const ax_note *note, char **data);
/* Parent: a storage over a part of the open slot; it keeps the slot. */
ax_status ax_worker_storage(ax_worker *w, const ax_note *note, char *data, size_t bytes, ax_storage **out);
/* Parent: lets go of the slot itself.  It is free when its storages are, too. */
void ax_worker_drop(ax_worker *w, const ax_note *note);
/* How many slots are in use. */
int ax_worker_held(const ax_worker *w);

/* Parent: ends the requests.  A worker that has nothing to do ends. */
void ax_worker_hang_up(ax_worker *w);
/* Parent: hangs up, waits up to `seconds` for the end and kills the worker if it does not come.
 * Memory stays as long as tensors use it.  Takes w. */
void ax_worker_close(ax_worker *w, double seconds);

#endif

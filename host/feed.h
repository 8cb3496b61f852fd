/* feed.h: the sources of a loader's batches: a thread that gathers rows, and worker processes. */
#ifndef AX_FEED_H
#define AX_FEED_H

#include "ax.h"

/* ---- the gather thread
 * A thread that copies the rows of the next batch while the step runs.
 *
 * The caller's thread chooses the rows, allocates the results and checks everything; the other
 * thread only copies memory.  It never touches Lua, the allocator, OpenMP or autograd.  The result
 * does not depend on timing: if a source was written in the meantime, taking the batch copies the
 * rows again.
 *
 * A process has one such thread.  It is stopped before every fork, and the next batch starts it
 * again. */

enum { AX_GATHER_MAX = 8 }; /* sources of one gatherer */

typedef struct ax_gather ax_gather;

/* New: a gatherer over contiguous CPU tensors whose dim 0 has one size.  Retains them.  EINVAL for
 * others. */
ax_status ax_gather_new(int n, ax_tensor *const *sources, ax_gather **out);
/* Waits for a running batch, then frees everything. */
void ax_gather_free(ax_gather *g);
int ax_gather_sources(const ax_gather *g);
int64_t ax_gather_rows(const ax_gather *g);
/* *to: room for the `count` positions, from 0, of the batch that the next ax_gather_start begins.
 * EINVAL while a batch is running: the thread reads its positions. */
ax_status ax_gather_positions(ax_gather *g, int64_t count, int64_t **to);
/* Starts the batch; without `ahead` it is copied only when it is taken.  ERANGE for a position
 * outside the sources; EINVAL while a batch is running. */
ax_status ax_gather_start(ax_gather *g, int64_t count, bool ahead);
/* Completes the batch: copies what the thread has not copied yet.  out: a new reference for each
 * source. */
ax_status ax_gather_take(ax_gather *g, ax_tensor **out);

/* ---- worker processes
 * Processes that read batches for a loader.
 *
 * A worker is a fork of the rank.  Requests travel to it over a socket.  A batch comes back in a
 * slot, a part of a nameless memory file that was made before the fork; the socket carries only a
 * short note with the number of the slot.  The parent's tensors are in the slot itself, and the
 * slot is free again when the last of them is released.  So a batch is copied once, by the worker.
 *
 * Neither side can block the other for ever.  Notes are small and few, so a worker never waits for
 * its parent to read them and always returns to reading requests; and the parent never waits in
 * sending a request.
 *
 * The kernel kills a worker whose parent dies, and nothing of either has a name that could be left
 * behind. */

#define AX_MAX_WORKERS 128 /* workers of one loader */

typedef struct ax_worker ax_worker;

typedef struct ax_note {
  uint64_t ticket; /* the ticket of its request */
  uint32_t kind;   /* the caller's: a batch, an error, the end */
  int32_t slot;
  uint64_t offset, capacity, bytes; /* the slot's place in the memory file, and how much of it is filled */
} ax_note;

/* Forks.  In the parent *out is the worker; in the child *child is true and *out is the other end.
 * The library's threads are stopped before it; the caller sets the number of threads of the child's
 * kernels.  EIO, ENOMEM. */
ax_status ax_worker_fork(ax_worker **out, bool *child);
/* Whether this process is a worker. */
bool ax_worker_inside(void);
/* In a worker: it is a rank of its own group from now on, which may start workers.  devices: it may
 * use GPUs. */
void ax_worker_become_rank(bool devices);
/* Whether this process is a fork, a worker or such a rank. */
bool ax_worker_forked(void);
/* Whether `w` is the worker's own end, and not its parent's. */
bool ax_worker_is_child(const ax_worker *w);
/* Returns the worker's process id; 0: it has ended. */
int ax_worker_pid(const ax_worker *w);

/* Parent: sends a request without waiting for the worker to read it.  What the socket does not take
 * is sent by later calls and by ax_worker_wait.  EIO when the worker is gone. */
ax_status ax_worker_send(ax_worker *w, const void *bytes, size_t n);
/* Child: waits for the next request.  *bytes is valid until the next call; *n 0: there are no
 * more. */
ax_status ax_worker_next(ax_worker *w, const void **bytes, size_t *n);
/* Child: a slot of at least `bytes`, which belongs to the child until ax_worker_reply. */
ax_status ax_worker_slot(ax_worker *w, size_t bytes, ax_note *note, char **data);
/* Child: sends `note` to the parent: its slot is filled.  EIO when the parent is gone. */
ax_status ax_worker_reply(ax_worker *w, const ax_note *note);
/* Child: flushes what was printed and ends the process, without the parent's exit handlers. */
_Noreturn void ax_worker_exit(int status);

typedef enum { AX_WAIT_NOTE, AX_WAIT_TIMEOUT, AX_WAIT_INTERRUPTED, AX_WAIT_DIED, AX_WAIT_STOPPED } ax_wait;
/* Parent: waits until worker list[at] has a note, and watches the others.  *died is a worker that
 * ended; ax_last_error says which and how.  STOPPED, once for each stop: list[at] was stopped by
 * SIGSTOP or Ctrl-Z, and the message names the signal.  seconds < 0: no limit. */
ax_wait ax_worker_wait(ax_worker *const *list, int n, int at, double seconds, ax_note *note, int *died);
/* Parent: the bytes of a note's slot.  EIO when they cannot be mapped. */
ax_status ax_worker_open(ax_worker *w, const ax_note *note, char **data);
/* Parent: a storage over a part of the open slot; it keeps the slot in use. */
ax_status ax_worker_storage(ax_worker *w, const ax_note *note, char *data, size_t bytes, ax_storage **out);
/* Parent: where `s` is part of an open slot, d's memory pins the slot, once for its life: what is
 * sent to d is read there when the copy runs, and the worker gets the slot back after that.
 * Nothing happens where d cannot. */
void ax_worker_pin(const ax_storage *s, ax_device d);
/* Parent: releases its own hold on the slot.  The slot is free when its storages are released
 * too. */
void ax_worker_drop(ax_worker *w, const ax_note *note);
/* How many slots are in use. */
int ax_worker_held(const ax_worker *w);

/* Parent: ends the requests.  A worker without a request exits. */
void ax_worker_hang_up(ax_worker *w);
/* Parent: hangs up, waits up to `seconds` for the worker to exit, then kills it.  Memory stays as
 * long as tensors use it.  Takes w. */
void ax_worker_close(ax_worker *w, double seconds);

/* Writes n bytes to a local socket; false when the other end is closed. */
bool ax_socket_write(int fd, const void *from, size_t n);
/* Returns the number of bytes read: fewer than n at the end of the stream. */
size_t ax_socket_read(int fd, void *to, size_t n);

#endif

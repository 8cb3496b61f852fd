/* feed/worker.h: a worker process of a loader, for worker.c and worker_slots.c. */
#ifndef AX_WORKER_H
#define AX_WORKER_H

#include <stdatomic.h>
#include <sys/types.h>

#include "feed.h"

enum { AX_WORKER_SLOTS = 1024 };

/* Shared by both processes.  The child fills a slot while it is not busy; the parent resets busy
 * when none of its tensors uses the slot any more. */
typedef struct ax_worker_flags {
  _Atomic uint32_t busy[AX_WORKER_SLOTS];
} ax_worker_flags;

typedef struct ax_slot_map {
  struct ax_worker *worker;
  int index;
  int32_t refs; /* atomic: the note until it is dropped, and each storage */
  char *data;   /* the parent's mapping, kept from one use to the next */
  uint64_t offset, capacity;
  int64_t counted; /* the bytes that the memory statistics count for it now */
  /* the device memory that has pinned the mapping; refused: it would not */
  const struct ax_device_memory *pins;
  bool refused;
  _Atomic bool read; /* no tensor uses the slot; copies to a device may still read it */
} ax_slot_map;

struct ax_worker {
  int32_t refs; /* atomic: the owner, and each busy slot */
  pid_t pid, parent;
  int fd, memory; /* the socket, the memory file */
  bool child;
  int stop_looks; /* parent: in how many consecutive checks it was found stopped */
  ax_worker_flags *control;
  ax_worker *next;                    /* parent: list of the live workers */
  _Atomic int n_read;                 /* parent: slots that copies may still read */
  int n_slots;                        /* child: made so far */
  uint64_t end;                       /* child: the end of the memory file */
  ax_slot_map slots[AX_WORKER_SLOTS]; /* child: offset, capacity and mapping are its own */
  char *request;
  size_t room;
  /* parent: the part of requests that the socket did not take yet; the next send or wait continues
   * with it */
  char *unsent;
  size_t unsent_at, unsent_n, unsent_room;
};

/* Drops a reference; frees the worker with the last one. */
void ax_worker_release(ax_worker *w);
/* Parent: gives slots back to the worker whose copies are done; all: also the others, when the
 * worker has ended and nothing writes its slots any more. */
void ax_worker_reclaim(ax_worker *w, bool all);
/* Parent: ends a slot's mapping. */
void ax_worker_unmap(ax_slot_map *s);

#endif

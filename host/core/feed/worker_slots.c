/* feed/worker_slots.c: the memory in which a worker's batches travel: a file of both processes,
 * divided into slots. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/feed/worker.h"

enum { PAGE = 4096 };

/* ---- in the child */

/* A free slot: the smallest that is large enough, else any, else a new one.  -1: all are in use. */
static int choose_slot(ax_worker *w, size_t bytes)
{
  int best = -1, any = -1;
  for (int i = 0; i < w->n_slots; i++) {
    if (atomic_load_explicit(&w->control->busy[i], memory_order_acquire)) continue;
    any = i;
    if (w->slots[i].capacity >= bytes && (best < 0 || w->slots[i].capacity < w->slots[best].capacity))
      best = i;
  }
  if (best >= 0) return best;
  if (any >= 0) return any;
  return w->n_slots < AX_WORKER_SLOTS ? w->n_slots++ : -1;
}

/* Moves the slot to a larger range at the end of the file; its old pages go back to the system. */
static ax_status move_slot(ax_worker *w, ax_slot_map *s, size_t bytes)
{
  const uint64_t wanted = (bytes + bytes / 8 + PAGE - 1) / PAGE * PAGE;
  char *data;
  int error;

  if (s->data) {
    munmap(s->data, s->capacity);
    fallocate(w->memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)s->offset, (off_t)s->capacity);
    s->data = NULL;
    s->capacity = 0;
  }
  /* allocates the pages now: lack of memory is an error here, and not a signal at the first
   * write */
  while ((error = posix_fallocate(w->memory, (off_t)w->end, (off_t)wanted)) == EINTR) {}
  if (error)
    return ax_fail(AX_ENOMEM, "%llu bytes of shared memory for a batch: %s", (unsigned long long)wanted,
                   strerror(error));
  data = mmap(NULL, wanted, PROT_READ | PROT_WRITE, MAP_SHARED, w->memory, (off_t)w->end);
  if (data == MAP_FAILED)
    return ax_fail(AX_ENOMEM, "%llu bytes of shared memory for a batch: %s", (unsigned long long)wanted,
                   strerror(errno));
  s->data = data;
  s->offset = w->end;
  s->capacity = wanted;
  w->end += wanted;
  return AX_OK;
}

ax_status ax_worker_slot(ax_worker *w, size_t bytes, ax_note *note, char **data)
{
  const int index = choose_slot(w, bytes);
  ax_slot_map *s = &w->slots[index < 0 ? 0 : index];
  ax_status st;

  if (index < 0) return ax_fail(AX_ENOMEM, "all %d batches of this worker are still in use", AX_WORKER_SLOTS);
  if (s->capacity < bytes && (st = move_slot(w, s, bytes)) != AX_OK) return st;
  note->slot = index;
  note->offset = s->offset;
  note->capacity = s->capacity;
  note->bytes = bytes;
  *data = s->data;
  return AX_OK;
}

ax_status ax_worker_reply(ax_worker *w, const ax_note *note)
{
  atomic_store_explicit(&w->control->busy[note->slot], 1, memory_order_release);
  if (!ax_socket_write(w->fd, note, sizeof *note)) return ax_fail(AX_EIO, "the parent is gone");
  return AX_OK;
}

/* ---- in the parent */

ax_status ax_worker_open(ax_worker *w, const ax_note *note, char **data)
{
  ax_slot_map *s = &w->slots[note->slot];

  if (s->data && s->offset != note->offset) ax_worker_unmap(s); /* the slot has moved */
  if (!s->data) {
    char *p = mmap(NULL, note->capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, w->memory,
                   (off_t)note->offset);
    if (p == MAP_FAILED) {
      atomic_store_explicit(&w->control->busy[note->slot], 0, memory_order_release);
      return ax_fail(AX_EIO, "%llu bytes of a batch could not be mapped: %s",
                     (unsigned long long)note->capacity, strerror(errno));
    }
    s->data = p;
    s->offset = note->offset;
    s->capacity = note->capacity;
  }
  s->worker = w;
  s->index = note->slot;
  s->refs = 1;
  s->counted = (int64_t)note->bytes;
  ax_memory_count_foreign(s->counted);
  __atomic_add_fetch(&w->refs, 1, __ATOMIC_RELAXED);
  *data = s->data;
  return AX_OK;
}

void ax_worker_unmap(ax_slot_map *s)
{
  if (s->pins) s->pins->unpin(s->data);
  if (s->data) munmap(s->data, s->capacity);
  s->data = NULL;
  s->pins = NULL;
  s->refused = false;
}

static void give_back(ax_slot_map *s)
{
  ax_worker *w = s->worker;
  atomic_store_explicit(&w->control->busy[s->index], 0, memory_order_release);
  ax_worker_release(w);
}

static void release_slot(ax_slot_map *s)
{
  ax_worker *w = s->worker;
  if (w->parent != getpid()) return; /* a worker's copy of its parent's storage */
  if (__atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
  ax_memory_count_foreign(-s->counted);
  if (!s->pins || w->pid == 0 || s->pins->pin_idle(s->data)) give_back(s);
  else {
    atomic_store(&s->read, true);
    atomic_fetch_add(&w->n_read, 1);
  }
}

void ax_worker_reclaim(ax_worker *w, bool all)
{
  for (int i = 0; i < AX_WORKER_SLOTS && atomic_load(&w->n_read) > 0; i++) {
    ax_slot_map *s = &w->slots[i];
    if (!atomic_load(&s->read) || (!all && !s->pins->pin_idle(s->data))) continue;
    atomic_store(&s->read, false);
    atomic_fetch_sub(&w->n_read, 1);
    give_back(s);
  }
}

static void release_storage(ax_storage *s) { release_slot(s->owner); }

ax_status ax_worker_storage(ax_worker *w, const ax_note *note, char *data, size_t bytes, ax_storage **out)
{
  ax_slot_map *s = &w->slots[note->slot];
  ax_status st = ax_storage_wrap(data, bytes, release_storage, s, out);
  if (st == AX_OK) __atomic_add_fetch(&s->refs, 1, __ATOMIC_RELAXED);
  return st;
}

void ax_worker_pin(const ax_storage *storage, ax_device d)
{
  ax_slot_map *s = storage->release == release_storage ? storage->owner : NULL;
  const ax_backend *backend;

  if (!s || s->pins || s->refused) return;
  s->refused = true;
  if (ax_backend_of(d, &backend) != AX_OK || !backend->memory || !backend->memory->pin ||
      backend->memory->pin(s->data, s->capacity) != AX_OK)
    return;
  s->refused = false;
  s->pins = backend->memory;
}

void ax_worker_drop(ax_worker *w, const ax_note *note) { release_slot(&w->slots[note->slot]); }

int ax_worker_held(const ax_worker *w)
{
  int n = 0;
  for (int i = 0; i < AX_WORKER_SLOTS; i++)
    n += atomic_load_explicit(&w->control->busy[i], memory_order_relaxed) != 0;
  return n;
}

/* scratch.c: files without a name (scratch.h). */
#define _GNU_SOURCE /* O_TMPFILE, O_DIRECT, fallocate, mincore, sync_file_range */
#include "core/offload/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/core.h"
#include "core/grow.h"
#include "core/io/file.h"
#include "core/offload/read_ahead.h"
#include "offload.h"

/* direct transfers are aligned to it, and stretches begin at multiples of it */
enum { PAGE = 4096, AT_ONCE = 1024 };

struct ax_scratch {
  _Atomic int refs;
  int fd, direct; /* direct: past the page cache; -1: the file system has no such transfers */
  int64_t end;
  _Atomic bool spoiled;
  char folder[];
};

struct ax_stretch {
  _Atomic int refs;
  ax_scratch *file; /* counted */
  struct ax_mapping *mapping;
  char *data;
  size_t n;
  int64_t at;
  int flags;
};

static struct {
  pthread_mutex_t lock;
  ax_stretch **list; /* in the order of their addresses */
  int n, room;
} stretches = { .lock = PTHREAD_MUTEX_INITIALIZER };

static _Atomic int64_t bytes_read, bytes_written, bytes_mapped;

/* ---- files */

static ax_status new_file(const char *folder, int fd, ax_scratch **out)
{
  const size_t length = strlen(folder) + 1;
  char path[64];

  if (!(*out = ax_calloc(1, sizeof **out + length))) {
    close(fd);
    return AX_ENOMEM;
  }
  atomic_store(&(*out)->refs, 1);
  memcpy((*out)->folder, folder, length);
  (*out)->fd = fd;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  (*out)->direct = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
  return AX_OK;
}

/* Where there are no files without a name, one whose name is taken away at once. */
static int open_named(const char *folder)
{
  const size_t room = strlen(folder) + 32;
  char *path = ax_malloc(room);
  int fd = -1;

  if (path) {
    snprintf(path, room, "%s/accel-offload-XXXXXX", folder);
    if ((fd = mkostemp(path, O_CLOEXEC)) >= 0) unlink(path);
  }
  ax_mfree(path);
  return fd;
}

ax_status ax_scratch_new(const char *folder, ax_scratch **out)
{
  int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

  *out = NULL;
  if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) fd = open_named(folder);
  if (fd < 0)
    return AX_FILE_FAIL(AX_EIO, "offload", folder, "no file can be made in this folder: %s", strerror(errno));
  return new_file(folder, fd, out);
}

ax_status ax_scratch_open(const char *folder, int pid, int number, ax_scratch **out)
{
  char path[64];

  *out = NULL;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, number);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0)
    return AX_FILE_FAIL(AX_EIO, "offload", folder, "the file of another rank cannot be opened: %s",
                        strerror(errno));
  return new_file(folder, fd, out);
}

void ax_scratch_release(ax_scratch *s)
{
  if (!s || atomic_fetch_sub(&s->refs, 1) > 1) return;
  if (s->direct >= 0) close(s->direct);
  close(s->fd);
  ax_mfree(s);
}

int ax_scratch_number(const ax_scratch *s) { return s->fd; }
const char *ax_scratch_folder(const ax_scratch *s) { return s->folder; }

static ax_status no_room(const ax_scratch *s, size_t n, const char *what, int why)
{
  ax_size_buffer wanted, left;
  struct statvfs info;

  if (why != ENOSPC && why != EDQUOT && why != EFBIG)
    return AX_FILE_FAIL(AX_EIO, "offload", s->folder, "no room can be taken for %s: %s", what, strerror(why));
  return AX_FILE_FAIL(AX_EIO, "offload", s->folder, "%s needs %s, and the disk has %s left", what,
                      ax_size_text((int64_t)n, wanted),
                      fstatvfs(s->fd, &info) == 0
                          ? ax_size_text((int64_t)info.f_bavail * (int64_t)info.f_frsize, left)
                          : "less");
}

ax_status ax_scratch_reserve(ax_scratch *s, size_t n, const char *what, int64_t *at)
{
  const int64_t room = ((int64_t)n + PAGE - 1) / PAGE * PAGE;
  int status;

  do status = fallocate(s->fd, 0, s->end, room);
  while (status != 0 && errno == EINTR);
  /* a file system that promises no room: a write may find that there is none */
  if (status != 0 && errno == EOPNOTSUPP) status = ftruncate(s->fd, s->end + room);
  if (status != 0) return no_room(s, n, what, errno);
  *at = s->end;
  s->end += room;
  return AX_OK;
}

/* ---- stretches */

/* How many stretches begin at or before an address. */
static int count_before(const char *data)
{
  int low = 0, high = stretches.n;

  while (low < high) {
    const int middle = (low + high) / 2;
    if (stretches.list[middle]->data <= data) low = middle + 1;
    else high = middle;
  }
  return low;
}

static ax_status enter(ax_stretch *x)
{
  pthread_mutex_lock(&stretches.lock);
  const ax_status st = ax_grow(&stretches.list, stretches.n, &stretches.room, sizeof *stretches.list);
  if (st == AX_OK) {
    const int k = count_before(x->data);
    memmove(stretches.list + k + 1, stretches.list + k, (size_t)(stretches.n++ - k) * sizeof *stretches.list);
    stretches.list[k] = x;
  }
  pthread_mutex_unlock(&stretches.lock);
  return st;
}

static void leave(const ax_stretch *x)
{
  pthread_mutex_lock(&stretches.lock);
  const int k = count_before(x->data) - 1;
  memmove(stretches.list + k, stretches.list + k + 1, (size_t)(--stretches.n - k) * sizeof *stretches.list);
  if (stretches.n == 0) {
    ax_mfree(stretches.list);
    stretches.list = NULL;
    stretches.room = 0;
  }
  pthread_mutex_unlock(&stretches.lock);
}

ax_status ax_scratch_map(ax_scratch *s, int64_t at, size_t n, int flags, ax_stretch **out)
{
  ax_stretch *x = ax_calloc(1, sizeof *x);
  void *data;
  ax_status st;

  *out = NULL;
  if (!x) return AX_ENOMEM;
  if ((st = ax_mapping_share(s->fd, at, n, &x->mapping, &data)) != AX_OK) {
    ax_mfree(x);
    if (st != AX_EIO) return st;
    return AX_FILE_FAIL(AX_EIO, "offload", s->folder, "a file there cannot be mapped: %s", strerror(errno));
  }
  atomic_store(&x->refs, 1);
  x->data = data, x->n = n, x->at = at, x->flags = flags;
  if ((st = enter(x)) != AX_OK) {
    ax_mapping_release(x->mapping);
    ax_mfree(x);
    return st;
  }
  atomic_fetch_add(&s->refs, 1);
  x->file = s;
  atomic_fetch_add(&bytes_mapped, (int64_t)n);
  *out = x;
  return AX_OK;
}

/* The room on the disk is given back now: the file itself may live as long as the process. */
void ax_stretch_release(ax_stretch *x)
{
  if (!x || atomic_fetch_sub(&x->refs, 1) > 1) return;
  leave(x);
  ax_mapping_release(x->mapping);
  if (!(x->flags & AX_STRETCH_SHARED))
    fallocate(x->file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, x->at, (off_t)x->n);
  ax_scratch_release(x->file);
  atomic_fetch_sub(&bytes_mapped, (int64_t)x->n);
  ax_mfree(x);
}

static void release_shown(ax_storage *s) { ax_stretch_release(s->owner); }

ax_status ax_stretch_show(ax_stretch *x, size_t from, size_t n, ax_storage **out)
{
  const ax_status st = ax_storage_wrap(x->data + from, n, release_shown, x, out);
  if (st == AX_OK) atomic_fetch_add(&x->refs, 1);
  return st;
}

const ax_stretch *ax_stretch_at(const void *data)
{
  const ax_stretch *found = NULL;

  pthread_mutex_lock(&stretches.lock);
  const int k = count_before(data) - 1;
  if (k >= 0 && (const char *)data < stretches.list[k]->data + stretches.list[k]->n)
    found = stretches.list[k];
  pthread_mutex_unlock(&stretches.lock);
  return found;
}

void ax_stretch_forget(const void *data, size_t n)
{
  if (atomic_load(&bytes_mapped) && ax_stretch_at(data)) ax_pages_drop(data, n);
}

/* How many of n mapped bytes are in the page cache, up to the first that is not.  A read that may
 * not wait (RWF_NOWAIT) would tell, too, but the system reads ahead for it: the bytes would be read
 * from the disk twice. */
static size_t cached_bytes(const void *there, size_t n)
{
  unsigned char pages[AT_ONCE];
  const size_t before = (uintptr_t)there % PAGE, all = before + n;
  char *const begin = (char *)(uintptr_t)there - before;

  for (size_t done = 0; done < all; done += (size_t)AT_ONCE * PAGE) {
    const size_t left = all - done, some = left < (size_t)AT_ONCE * PAGE ? left : (size_t)AT_ONCE * PAGE;
    if (mincore(begin + done, some, pages) != 0) return 0;
    for (size_t k = 0; k * PAGE < some; k++)
      if (!(pages[k] & 1)) return done + k * PAGE > before ? done + k * PAGE - before : 0;
  }
  return n;
}

void ax_stretch_overwrite(const void *data, size_t n)
{
  static const char zeros[1 << 20];
  const ax_stretch *const x = atomic_load(&bytes_mapped) ? ax_stretch_at(data) : NULL;
  const char *const begin = (const char *)(((uintptr_t)data + PAGE - 1) / PAGE * PAGE);
  const char *const end = (const char *)(((uintptr_t)data + n) / PAGE * PAGE);

  if (!x || begin >= end) return;
  for (const char *p = begin + cached_bytes(begin, (size_t)(end - begin)); p < end;) {
    const size_t some = (size_t)(end - p) < sizeof zeros ? (size_t)(end - p) : sizeof zeros;
    if (pwrite(x->file->fd, zeros, some, ax_stretch_offset(x, p)) <= 0) return; /* the access will tell */
    p += some;
  }
}

ax_scratch *ax_stretch_file(const ax_stretch *x) { return x->file; }

int64_t ax_stretch_offset(const ax_stretch *x, const void *there)
{
  return x->at + ((const char *)there - x->data);
}

/* ---- transfers */

/* Moves n bytes by one of the file's descriptors. */
static int move(int fd, bool write, int64_t at, char *data, size_t n, size_t *moved)
{
  while (n > 0) {
    const ssize_t k = write ? pwrite(fd, data, n, at) : pread(fd, data, n, at);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return k < 0 ? errno : EIO; /* the file ends before its end */
    data += k, at += k, n -= (size_t)k, *moved += (size_t)k;
  }
  return 0;
}

/* Reads pages past the page cache, which they would only push others out of: those that lie wholly
 * in the bytes, where memory and file are aligned alike. */
static int read_direct(const ax_scratch *s, int64_t at, char *data, size_t n, size_t *moved)
{
  const int64_t begin = (at + PAGE - 1) / PAGE * PAGE, end = (at + (int64_t)n) / PAGE * PAGE;
  int why;

  if (s->direct < 0 || (uintptr_t)data % PAGE != (uintptr_t)(at % PAGE) || begin >= end) return 0;
  if ((why = move(s->fd, false, at, data, (size_t)(begin - at), moved)) != 0) return why;
  why = move(s->direct, false, begin, data + (begin - at), (size_t)(end - begin), moved);
  return why == EINVAL ? 0 : why; /* a disk whose pages are larger */
}

/* What is written goes into the page cache, and from there to the disk while the model computes on:
 * the system waits for the disk where its memory is short.  A failure of that shows before
 * the next reading. */
int ax_scratch_transfer(const ax_stretch *x, bool write, const void *there, void *data, size_t n,
                        size_t *moved)
{
  const ax_scratch *const s = x->file;
  const int64_t at = ax_stretch_offset(x, there);
  char *const to = data;
  int why = 0;

  *moved = 0;
  if (!write && sync_file_range(s->fd, at, (off_t)n, SYNC_FILE_RANGE_WAIT_BEFORE) != 0) why = errno;
  if (why == ESPIPE || why == EINVAL || why == ENOSYS) why = 0; /* a file system without it */
  if (why == 0 && !write && !(x->flags & AX_STRETCH_CACHED)) {
    why = move(s->fd, false, at, to, cached_bytes(there, n), moved);
    if (why == 0) why = read_direct(s, at + (int64_t)*moved, to + *moved, n - *moved, moved);
  }
  if (why == 0) why = move(s->fd, write, at + (int64_t)*moved, to + *moved, n - *moved, moved);
  atomic_fetch_add(write ? &bytes_written : &bytes_read, (int64_t)*moved);
  return why;
}

/* ---- what went wrong, and how much there is */

void ax_scratch_spoil(ax_scratch *s) { atomic_store(&s->spoiled, true); }

ax_status ax_scratch_check(const ax_scratch *s)
{
  if (!atomic_load(&s->spoiled)) return AX_OK;
  return AX_FILE_FAIL(AX_EIO, "offload", s->folder,
                      "a step over the files there has failed before its end, so that parameters and "
                      "optimizer states do not go together any more: go on from the last checkpoint");
}

ax_status ax_scratch_check_all(void)
{
  ax_scratch *lost = NULL;

  pthread_mutex_lock(&stretches.lock);
  for (int k = 0; k < stretches.n && !lost; k++) {
    ax_stretch *const x = stretches.list[k];
    if (!ax_mapping_failed(x->mapping) || atomic_load(&x->file->spoiled)) continue;
    lost = x->file;
    ax_scratch_spoil(lost);
  }
  pthread_mutex_unlock(&stretches.lock);
  if (!lost) return AX_OK;
  return AX_FILE_FAIL(
      AX_EIO, "offload", lost->folder,
      "a file there cannot be read: the disk fails, or has no room left; go on from the last checkpoint");
}

void ax_scratch_count(ax_scratch_stats *out)
{
  *out = (ax_scratch_stats){ .bytes = bytes_mapped, .read = bytes_read, .written = bytes_written };
}

/* replace.c: writing a file so that it appears whole or not at all. */
#define _GNU_SOURCE /* O_CLOEXEC, sync_file_range */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ranks.h"
#include "core/io/file.h"
#include "io.h"

enum { BEHIND = 1 << 25 };  /* bytes after which the disk begins to write what the file has so far */
enum { AWAITED = 1 << 22 }; /* bytes that the disk writes between two looks at the interrupt */

static ax_status failed(const ax_replacement *r, const char *what)
{
  if (r->fn) return AX_FILE_FAIL(AX_EIO, r->fn, r->path, "cannot %s it: %s", what, strerror(errno));
  return ax_fail(AX_EIO, "cannot %s %s: %s", what, r->path, strerror(errno));
}

static void forget_names(ax_replacement *r)
{
  ax_mfree(r->temporary);
  free(r->behind);
  r->temporary = r->behind = NULL;
}

/* Opens what is no regular file.  Without O_NONBLOCK a pipe that nobody reads would hold us up. */
static ax_status open_in_place(ax_replacement *r)
{
  r->direct = true;
  r->fd = open(r->path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (r->fd < 0) return failed(r, "write");
  (void)fcntl(r->fd, F_SETFL, fcntl(r->fd, F_GETFL) & ~O_NONBLOCK);
  return AX_OK;
}

ax_status ax_replace_begin(const char *fn, const char *path, ax_replacement *r)
{
  struct stat there;
  size_t room;

  *r = (ax_replacement){ .fn = fn, .path = path, .fd = -1 };
  if (stat(path, &there) == 0 && !S_ISREG(there.st_mode)) return open_in_place(r);
  if (lstat(path, &there) == 0 && S_ISLNK(there.st_mode) && (r->behind = realpath(path, NULL)))
    path = r->behind;
  room = strlen(path) + 32;
  if (!(r->temporary = ax_malloc(room))) {
    forget_names(r);
    return AX_ENOMEM;
  }
  snprintf(r->temporary, room, "%s.tmp.%ld", path, (long)getpid());
  unlink(r->temporary); /* left by a killed process that had our id */
  r->fd = open(r->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (r->fd >= 0) return AX_OK;
  failed(r, "write");
  forget_names(r);
  return AX_EIO;
}

ax_status ax_replace_create(const char *fn, const char *path, ax_replacement *r)
{
  *r = (ax_replacement){ .fn = fn, .path = path };
  r->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  return r->fd >= 0 ? AX_OK : failed(r, "write");
}

/* The sync at the end waits less when the disk has not waited for it.  A hint: errors do not
 * count. */
static void start_disk(ax_replacement *r)
{
  (void)sync_file_range(r->fd, r->begun, r->written - r->begun, SYNC_FILE_RANGE_WRITE);
  r->begun = r->written;
}

ax_status ax_replace_write(ax_replacement *r, const void *from, int64_t bytes)
{
  int64_t done = 0;
  if (r->heeds && ax_file_interrupted()) return ax_file_go_on();
  while (done < bytes) {
    const int64_t rest = bytes - done;
    ax_busy_begin("a write to", r->path);
    const ssize_t n =
        write(r->fd, (const char *)from + done, rest > (1 << 30) ? (size_t)1 << 30 : (size_t)rest);
    ax_busy_end();
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed(r, "write");
    done += n;
  }
  r->written += bytes;
  if (r->written - r->begun >= BEHIND) start_disk(r);
  return AX_OK;
}

ax_status ax_replace_write_at(ax_replacement *r, const void *from, int64_t bytes, int64_t at)
{
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = pwrite(r->fd, (const char *)from + done, (size_t)(bytes - done), (off_t)(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed(r, "write");
    done += n;
  }
  return AX_OK;
}

ax_status ax_folder_sync(const char *path)
{
  const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ax_status st = AX_OK;

  if (fd < 0) return ax_fail(AX_EIO, "cannot open %s: %s", path, strerror(errno));
  if (fsync(fd) != 0 && errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
    st = ax_fail(AX_EIO, "cannot sync %s: %s", path, strerror(errno));
  close(fd);
  return st;
}

/* The rename itself must survive a power cut. */
static ax_status sync_folder_of(char *path)
{
  char *slash = strrchr(path, '/');

  if (slash) *(slash == path ? slash + 1 : slash) = '\0';
  return ax_folder_sync(slash ? path : ".");
}

/* Waits for the file's bytes piece by piece: fsync, which cannot be interrupted, has little left to
 * wait for then.  An error that is reported here is not reported there again. */
static ax_status await_disk(ax_replacement *r)
{
  start_disk(r);
  for (int64_t at = 0; at < r->written; at += AWAITED) {
    if (ax_file_interrupted()) return ax_file_go_on();
    if (sync_file_range(r->fd, at, AWAITED, SYNC_FILE_RANGE_WAIT_BEFORE) == 0) continue;
    return errno == EINVAL || errno == ENOSYS || errno == ESPIPE ? AX_OK : failed(r, "sync");
  }
  return AX_OK;
}

ax_status ax_replace_sync(ax_replacement *r)
{
  const int fd = r->fd;
  ax_status st = AX_OK;

  ax_busy_begin("the sync of", r->path);
  if (r->heeds && !r->unsynced) st = await_disk(r);
  if (st == AX_OK && !r->unsynced && fsync(fd) != 0) st = failed(r, "sync");
  ax_busy_end();
  if (st != AX_OK) return st;
  r->fd = -1;
  if (close(fd) != 0) return failed(r, "write"); /* some network file systems report a full disk only here */
  return AX_OK;
}

static ax_status put_in_place(ax_replacement *r)
{
  const ax_status st = ax_replace_sync(r);

  if (st != AX_OK) return st;
  if (rename(r->temporary, r->behind ? r->behind : r->path) != 0) return failed(r, "replace");
  return AX_OK;
}

static void *close_it(void *fd)
{
  close((int)(intptr_t)fd);
  return NULL;
}

/* Closes a file whose name is gone.  The kernel then takes its bytes back, and waits for those that
 * the disk is writing: a thread waits in our place. */
static void close_apart(int fd)
{
  sigset_t all, former;
  pthread_t thread;

  sigfillset(&all); /* the thread that runs Lua handles signals */
  pthread_sigmask(SIG_SETMASK, &all, &former);
  if (pthread_create(&thread, NULL, close_it, (void *)(intptr_t)fd) == 0) pthread_detach(thread);
  else close(fd);
  pthread_sigmask(SIG_SETMASK, &former, NULL);
}

ax_status ax_replace_end(ax_replacement *r, ax_status st)
{
  if (r->direct && r->fd >= 0 && close(r->fd) != 0 && st == AX_OK) st = failed(r, "write");
  if (r->direct) r->fd = -1;
  if (!r->temporary) return st;
  if (st == AX_OK) st = put_in_place(r);
  if (st != AX_OK) unlink(r->temporary);
  if (r->fd >= 0 && st == AX_EABORTED) close_apart(r->fd);
  else if (r->fd >= 0) close(r->fd);
  if (st == AX_OK && !r->unsynced) st = sync_folder_of(r->temporary);
  forget_names(r);
  r->fd = -1;
  return st;
}

ax_status ax_file_put(const char *path, const char *text, size_t n, bool synced)
{
  ax_replacement r;
  ax_status st = ax_replace_begin(NULL, path, &r);

  if (st != AX_OK) return st;
  r.unsynced = !synced;
  return ax_replace_end(&r, ax_replace_write(&r, text, (int64_t)n));
}

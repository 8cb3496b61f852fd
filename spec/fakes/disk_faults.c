/* disk_faults.c: a library for LD_PRELOAD that counts the file system calls of a run below one
 * folder and makes one of them go wrong (spec/faults).
 *
 * The plan and what came of it are in a file that all processes of the run, and the one that
 * started it, have mapped; DISK_FAULTS names it.  Each rank's calls are counted apart, so that a
 * number means the same call in each run. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* What goes wrong; spec/faults/disk.lua has the same list. */
enum { NOTHING, KILL_RANK, KILL_LAUNCHER, TERM_LAUNCHER, POWER_CUT, FAIL, SHORT_WRITE, SLOW };
enum { BEFORE, COUNTS, BEHIND }; /* where a rank is */
enum { RANKS = 8, LOGGED = 4096, FILES = 128, NAMES = 64, PATH = 256 };

typedef struct change {
  char from[PATH], to[PATH]; /* `to` empty: not in use */
  uint64_t folder;           /* inode whose sync makes it last */
  int32_t exchanged;
} change;

/* Mapped; spec/faults/disk.lua declares the members up to `log`. */
typedef struct state {
  char root[PATH];  /* with a slash at its end */
  char after[PATH]; /* calls count from the first path on that has this text in it ... */
  char until[PATH]; /* ... to the first that has this one; empty: to the end */
  int32_t rank, at; /* the rank's call, from 1 */
  int32_t what, number, lasts, reads;
  _Atomic int32_t fired, over; /* over: the disk works again */
  int64_t fired_at;            /* ns of the monotonic clock */
  char fired_path[PATH];
  _Atomic int32_t begun[RANKS], calls[RANKS];
  char log[RANKS][LOGGED]; /* a letter for each call */
  /* what a power cut loses: inodes with unsynced data, names in unsynced folders */
  atomic_flag busy;
  uint64_t unsynced[FILES];
  change names[NAMES];
} state;

static state *shared;
static bool looked;

static state *find_state(void)
{
  if (!looked) {
    const char *path = getenv("DISK_FAULTS");
    const int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *p = fd >= 0 ? mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (p != MAP_FAILED) shared = p;
    looked = true;
  }
  return shared;
}

static int this_rank(void)
{
  const char *text = getenv("RANK");
  const int rank = text ? atoi(text) : 0;
  return rank >= 0 && rank < RANKS ? rank : 0;
}

static const char *path_of(int fd, char *buf)
{
  char link[64];
  ssize_t n;

  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  n = readlink(link, buf, PATH - 1);
  buf[n > 0 ? n : 0] = '\0';
  return buf;
}

static bool below(const state *s, const char *path)
{
  const size_t n = strlen(s->root);
  return n > 0 && (strncmp(path, s->root, n) == 0 || strncmp(path, s->root, n - 1) == 0);
}

static int64_t now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Whether this call is one that goes wrong.  kind: w write, s sync, n rename, m mkdir, u unlink,
 * d rmdir, c create, f room that is taken; o open, r read and b whether the system has written, for
 * reading. */
static bool hit(state *s, char kind, const char *path)
{
  const int rank = this_rank();
  const bool reads = kind == 'o' || kind == 'r' || kind == 'b';
  int32_t n;

  if (!s || !below(s, path) || reads != (s->reads != 0)) return false;
  if (s->begun[rank] == BEFORE && strstr(path, s->after)) s->begun[rank] = COUNTS;
  if (s->begun[rank] == COUNTS && s->until[0] && strstr(path, s->until)) s->begun[rank] = BEHIND;
  if (s->begun[rank] != COUNTS) return false;
  n = atomic_fetch_add(&s->calls[rank], 1) + 1;
  if (n <= LOGGED) s->log[rank][n - 1] = kind;
  if (s->what == NOTHING || rank != s->rank || n < s->at || (n > s->at && !s->lasts) || s->over) return false;
  if (n == s->at) {
    s->fired_at = now();
    snprintf(s->fired_path, sizeof s->fired_path, "%s", path);
    s->fired = 1;
  }
  return true;
}

static bool ends(const state *s)
{
  return s->what == KILL_RANK || s->what == KILL_LAUNCHER || s->what == POWER_CUT;
}

static void end(const state *s)
{
  if (s->what == KILL_LAUNCHER) {
    kill(getppid(), SIGKILL);
    for (;;) pause(); /* the kernel ends the ranks */
  }
  kill(s->what == POWER_CUT ? 0 : getpid(), SIGKILL);
  for (;;) pause();
}

/* A full disk still removes, and what fails once on it, as a rename that needs a block, may succeed
 * the next time. */
static bool spared(const state *s, char kind)
{
  if (!s->lasts || (s->number != ENOSPC && s->number != EDQUOT)) return false;
  return kind == 'u' || kind == 'd' || (kind == 'n' && s->calls[s->rank] > s->at);
}

/* Meets a call that moves no data: 0, or the errno that it fails with. */
static int meet(char kind, const char *path)
{
  state *s = find_state();

  if (!hit(s, kind, path)) return 0;
  if (ends(s)) end(s);
  if (s->what == TERM_LAUNCHER) kill(getppid(), SIGTERM);
  if (s->what == TERM_LAUNCHER || s->what == SLOW) usleep((unsigned)s->number);
  return s->what == FAIL && !spared(s, kind) ? s->number : 0;
}

/* ---- what a power cut loses */

static bool watching(void)
{
  state *s = find_state();
  return s && s->what == POWER_CUT;
}

static void lock(void)
{
  while (atomic_flag_test_and_set(&shared->busy)) usleep(10);
}
static void unlock(void) { atomic_flag_clear(&shared->busy); }

static uint64_t inode_of(const char *path)
{
  struct stat info;
  return stat(path, &info) == 0 ? info.st_ino : 0;
}

static uint64_t folder_of(const char *path)
{
  char parent[PATH];
  char *slash;

  snprintf(parent, sizeof parent, "%s", path);
  slash = strrchr(parent, '/');
  if (slash) *slash = '\0';
  return inode_of(parent);
}

static void note_written(int fd)
{
  struct stat info;
  int spare = -1;

  if (!watching() || fstat(fd, &info) != 0) return;
  lock();
  for (int i = 0; i < FILES; i++) {
    if (shared->unsynced[i] == info.st_ino) spare = FILES;
    if (!shared->unsynced[i] && spare < 0) spare = i;
  }
  if (spare >= 0 && spare < FILES) shared->unsynced[spare] = info.st_ino;
  unlock();
}

static void note_synced(int fd)
{
  struct stat info;

  if (!watching() || fstat(fd, &info) != 0) return;
  lock();
  for (int i = 0; i < FILES; i++)
    if (shared->unsynced[i] == info.st_ino) shared->unsynced[i] = 0;
  for (int i = 0; i < NAMES; i++)
    if (shared->names[i].folder == info.st_ino) shared->names[i] = (change){ .to = "" };
  unlock();
}

static void note_renamed(const char *from, const char *to, bool exchanged)
{
  if (!watching()) return;
  lock();
  for (int i = 0; i < NAMES; i++)
    if (!shared->names[i].to[0]) {
      change *c = &shared->names[i];
      *c = (change){ .folder = folder_of(to), .exchanged = exchanged };
      snprintf(c->from, sizeof c->from, "%s", from);
      snprintf(c->to, sizeof c->to, "%s", to);
      break;
    }
  unlock();
}

static const state *cutting;

static int cut_file(const char *path, const struct stat *info, int kind, struct FTW *place)
{
  (void)place;
  for (int i = 0; kind == FTW_F && i < FILES; i++)
    if (cutting->unsynced[i] == info->st_ino && truncate(path, 0) != 0) return -1;
  return 0;
}

/* ---- for the process that started the run */

/* Makes the file and maps it; NULL on failure. */
EXPORT state *disk_faults_new(const char *path)
{
  const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  void *p = MAP_FAILED;

  if (fd >= 0 && ftruncate(fd, sizeof(state)) == 0)
    p = mmap(NULL, sizeof(state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd >= 0) close(fd);
  return p == MAP_FAILED ? NULL : p;
}

EXPORT void disk_faults_free(state *s) { munmap(s, sizeof *s); }

/* In a run: the disk works again. */
EXPORT void disk_faults_over(void)
{
  if (find_state()) shared->over = 1;
}

/* After a power cut: takes away what was not synced.  Names go back first, the latest first. */
EXPORT void disk_faults_lose(state *s)
{
  for (int i = NAMES - 1; i >= 0; i--) {
    const change *c = &s->names[i];
    if (!c->to[0]) continue;
    if (c->exchanged) renameat2(AT_FDCWD, c->to, AT_FDCWD, c->from, RENAME_EXCHANGE);
    else if (access(c->from, F_OK) != 0) rename(c->to, c->from);
  }
  cutting = s;
  nftw(s->root, cut_file, 16, FTW_PHYS);
}

/* ---- the calls */

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name)
#define FAIL_WITH(kind, path) \
  do { \
    const int error = meet(kind, path); \
    if (error) return errno = error, -1; \
  } while (0)

/* How many of n bytes a write or a read may move, or -1 when it fails; errno is set. */
static ssize_t allowed(int fd, char kind, size_t n, bool *last)
{
  char path[PATH];
  state *s = find_state();

  *last = false;
  if (!s || !hit(s, kind, path_of(fd, path))) return (ssize_t)n;
  if (ends(s)) return *last = true, (ssize_t)(n / 2); /* dies in the middle of it */
  if (s->what == TERM_LAUNCHER) kill(getppid(), SIGTERM);
  if (s->what == TERM_LAUNCHER || s->what == SLOW) usleep((unsigned)s->number);
  if (s->what == SHORT_WRITE && n > 1) return (ssize_t)(n / 2);
  if (s->what == FAIL) return errno = s->number, -1;
  return (ssize_t)n;
}

EXPORT ssize_t write(int fd, const void *from, size_t n)
{
  bool last;
  const ssize_t most = allowed(fd, 'w', n, &last);
  ssize_t done;

  REAL(write);
  if (most < 0) return -1;
  note_written(fd);
  done = real(fd, from, (size_t)most);
  if (last) end(shared);
  return done;
}

EXPORT ssize_t pwrite(int fd, const void *from, size_t n, off_t at)
{
  bool last;
  const ssize_t most = allowed(fd, 'w', n, &last);
  ssize_t done;

  REAL(pwrite);
  if (most < 0) return -1;
  note_written(fd);
  done = real(fd, from, (size_t)most, at);
  if (last) end(shared);
  return done;
}

EXPORT ssize_t pread(int fd, void *to, size_t n, off_t at)
{
  bool last;
  const ssize_t most = allowed(fd, 'r', n, &last);
  ssize_t done;

  REAL(pread);
  if (most < 0) return -1;
  done = real(fd, to, (size_t)most, at);
  if (last) end(shared);
  return done;
}

/* Nothing is in the page cache: all that is read counts. */
EXPORT ssize_t preadv2(int fd, const struct iovec *to, int n, off_t at, int flags)
{
  REAL(preadv2);
  if (!find_state()) return real(fd, to, n, at, flags);
  errno = EAGAIN;
  return -1;
}

EXPORT int sync_file_range(int fd, off64_t at, off64_t n, unsigned flags)
{
  char path[PATH];

  REAL(sync_file_range);
  FAIL_WITH('b', path_of(fd, path));
  return real(fd, at, n, flags);
}

EXPORT int fallocate(int fd, int mode, off_t at, off_t n)
{
  char path[PATH];
  REAL(fallocate);
  if (mode == 0) FAIL_WITH('f', path_of(fd, path));
  return real(fd, mode, at, n);
}

EXPORT ssize_t read(int fd, void *to, size_t n)
{
  char path[PATH];
  REAL(read);
  FAIL_WITH('r', path_of(fd, path));
  return real(fd, to, n);
}

EXPORT int open(const char *path, int flags, ...)
{
  mode_t mode = 0;

  REAL(open);
  if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {
    va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
  }
  if (looked || getenv("DISK_FAULTS") == NULL || strcmp(path, getenv("DISK_FAULTS")) != 0)
    FAIL_WITH(flags & (O_WRONLY | O_RDWR | O_CREAT) ? 'c' : 'o', path);
  return real(path, flags, mode);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open"), visibility("default")));

EXPORT int fsync(int fd)
{
  char path[PATH];
  int status;

  REAL(fsync);
  FAIL_WITH('s', path_of(fd, path));
  status = real(fd);
  if (status == 0) note_synced(fd);
  return status;
}

EXPORT int rename(const char *from, const char *to)
{
  bool replaces;
  int status;

  REAL(rename);
  FAIL_WITH('n', from);
  replaces = access(to, F_OK) == 0;
  status = real(from, to);
  if (status == 0 && !replaces) note_renamed(from, to, false);
  return status;
}

EXPORT int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
  int status;

  REAL(renameat2);
  FAIL_WITH('n', from);
  status = real(from_folder, from, to_folder, to, flags);
  if (status == 0) note_renamed(from, to, (flags & RENAME_EXCHANGE) != 0);
  return status;
}

EXPORT int mkdir(const char *path, mode_t mode)
{
  REAL(mkdir);
  FAIL_WITH('m', path);
  return real(path, mode);
}

EXPORT int unlink(const char *path)
{
  REAL(unlink);
  FAIL_WITH('u', path);
  return real(path);
}

EXPORT int remove(const char *path)
{
  REAL(remove);
  FAIL_WITH('u', path);
  return real(path);
}

EXPORT int rmdir(const char *path)
{
  REAL(rmdir);
  FAIL_WITH('d', path);
  return real(path);
}

/* read_ahead.c: a thread that reads pages of mapped files (read_ahead.h). */
#define _GNU_SOURCE
#include "core/offload/read_ahead.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WAITING = 128, CHUNK = 4 << 20 };
typedef struct interval {
  uintptr_t at;
  size_t n;
} interval;
static struct {
  pthread_mutex_t lock;
  pthread_cond_t wake, done;
  interval waiting[WAITING];
  unsigned first, n;
  interval now;  /* being read; n 0: none */
  bool dropped;  /* `now` is needed no longer */
  pid_t process; /* whose thread it is; a forked process has none */
} reader = { .lock = PTHREAD_MUTEX_INITIALIZER,
             .wake = PTHREAD_COND_INITIALIZER,
             .done = PTHREAD_COND_INITIALIZER };

static bool is_dropped(void)
{
  pthread_mutex_lock(&reader.lock);
  const bool dropped = reader.dropped;
  pthread_mutex_unlock(&reader.lock);
  return dropped;
}

/* Reads pages that a mapping may have no longer: madvise fails then, and no access is made.  The
 * disk gets all of it at once; the pages are entered one chunk after the other. */
static void read_pages(interval i)
{
  madvise((void *)i.at, i.n, MADV_WILLNEED);
#ifdef MADV_POPULATE_READ
  for (size_t done = 0; done < i.n && !is_dropped(); done += CHUNK)
    if (madvise((void *)(i.at + done), i.n - done < CHUNK ? i.n - done : CHUNK, MADV_POPULATE_READ) != 0)
      return;
#endif
}

static void *read_ahead(void *unused)
{
  (void)unused;
  pthread_mutex_lock(&reader.lock);
  for (;;) {
    while (reader.n == 0) pthread_cond_wait(&reader.wake, &reader.lock);
    const interval i = reader.waiting[reader.first];
    reader.first = (reader.first + 1) % WAITING;
    reader.n--;
    if (!i.n) continue; /* it was dropped before its turn */
    reader.now = i;
    reader.dropped = false;
    pthread_mutex_unlock(&reader.lock);
    read_pages(i);
    pthread_mutex_lock(&reader.lock);
    reader.now.n = 0;
    pthread_cond_broadcast(&reader.done);
  }
  return NULL;
}

static void start_reader(void)
{
  sigset_t all, former;
  pthread_t thread;

  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &former);
  if (pthread_create(&thread, NULL, read_ahead, NULL) == 0) {
    pthread_detach(thread);
    reader.process = getpid();
  }
  pthread_sigmask(SIG_SETMASK, &former, NULL);
}

void ax_pages_read_ahead(const void *data, size_t n)
{
  const uintptr_t mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1, at = (uintptr_t)data & ~mask;
  const size_t bytes = (((uintptr_t)data + n + mask) & ~mask) - at;

  if (!reader.process) start_reader();
  if (reader.process != getpid()) return;
  pthread_mutex_lock(&reader.lock);
  if (reader.n < WAITING) {
    reader.waiting[(reader.first + reader.n++) % WAITING] = (interval){ at, bytes };
    pthread_cond_signal(&reader.wake);
  }
  pthread_mutex_unlock(&reader.lock);
}

/* Takes back the requests for a weight that is dropped: where the thread is slower than the
 * computation, they still wait, and would read pages that nobody drops again. */
static void cancel(uintptr_t at)
{
  if (reader.process != getpid()) return;
  pthread_mutex_lock(&reader.lock);
  for (unsigned k = 0; k < reader.n; k++) {
    interval *const i = &reader.waiting[(reader.first + k) % WAITING];
    if (i->at == at) i->n = 0;
  }
  while (reader.now.n && reader.now.at == at) { /* a chunk at most */
    reader.dropped = true;
    pthread_cond_wait(&reader.done, &reader.lock);
  }
  pthread_mutex_unlock(&reader.lock);
}

void ax_pages_drop(const void *data, size_t n)
{
  const uintptr_t mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
  const uintptr_t begin = ((uintptr_t)data + mask) & ~mask, end = ((uintptr_t)data + n) & ~mask;

  cancel((uintptr_t)data & ~mask);
  if (end > begin) madvise((void *)begin, end - begin, MADV_DONTNEED);
}

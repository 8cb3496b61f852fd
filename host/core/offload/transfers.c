/* transfers.c: threads that read and write files (transfers.h). */
#include "core/offload/transfers.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

/* Two keep a disk busy: one reads while the other writes. */
enum { THREADS = 2 };
static struct {
  pthread_mutex_t lock;
  pthread_cond_t begun, ended;
  ax_disk_transfer *first, *last;
  pid_t process; /* whose threads they are; a forked process has none */
} pool = { .lock = PTHREAD_MUTEX_INITIALIZER,
           .begun = PTHREAD_COND_INITIALIZER,
           .ended = PTHREAD_COND_INITIALIZER };

static void make(ax_disk_transfer *t)
{
  t->why = ax_scratch_transfer(t->stretch, t->write, t->there, t->data, t->n, &t->moved);
}

static void *serve(void *unused)
{
  (void)unused;
  pthread_mutex_lock(&pool.lock);
  for (;;) {
    while (!pool.first) pthread_cond_wait(&pool.begun, &pool.lock);
    ax_disk_transfer *const t = pool.first;
    pool.first = t->next;
    pthread_mutex_unlock(&pool.lock);
    make(t);
    pthread_mutex_lock(&pool.lock);
    t->pending = false;
    pthread_cond_broadcast(&pool.ended);
  }
  return NULL;
}

/* With the lock held. */
static bool has_threads(void)
{
  sigset_t all, former;
  pthread_t thread;

  if (pool.process) return pool.process == getpid();
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &former);
  for (int k = 0; k < THREADS; k++)
    if (pthread_create(&thread, NULL, serve, NULL) == 0) {
      pthread_detach(thread);
      pool.process = getpid();
    }
  pthread_sigmask(SIG_SETMASK, &former, NULL);
  return pool.process != 0;
}

void ax_disk_begin(ax_disk_transfer *t)
{
  bool queued; /* t->pending ends as soon as a thread has made it */

  t->next = NULL;
  t->why = 0;
  t->moved = 0;
  pthread_mutex_lock(&pool.lock);
  if ((t->pending = queued = has_threads())) {
    if (pool.first) pool.last->next = t;
    else pool.first = t;
    pool.last = t;
    pthread_cond_signal(&pool.begun);
  }
  pthread_mutex_unlock(&pool.lock);
  if (!queued) make(t);
}

int ax_disk_wait(ax_disk_transfer *t)
{
  pthread_mutex_lock(&pool.lock);
  while (t->pending) pthread_cond_wait(&pool.ended, &pool.lock);
  pthread_mutex_unlock(&pool.lock);
  return t->why;
}

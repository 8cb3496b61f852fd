/* Waits for GPUs that depend on other ranks, and the watchdog that looks where the host cannot. */
#include "nccl.h"
#include "watch.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef ax_nccl_rank rank_side;

static const int64_t SECOND = 1000000000;
static const int64_t TICK = 50000000;

/* ---- the oldest open collective
 *
 * The first whose `done` event has not happened.  Its time runs from when its `ready` event has
 * happened, so that computation before it does not count, or, before it is in the stream, from when
 * the owner went into NCCL for it.  Who looks repeatedly, the watchdog or a wait of the owner,
 * keeps a state of its own. */

struct watch_state {
  uint64_t finished, ticket; /* ended; the oldest open one */
  int64_t waited, before;    /* for it; when it was last looked at */
  bool queued;               /* it is in the stream */
  bool running;              /* its time runs */
  int bad;
};

/* Whether a collective is open: w->ticket and w->running. */
static bool find_open(rank_side *g, watch_state *w)
{
  const uint64_t begun = g->begun.load(), issued = g->issued.load();

  /* an event that is recorded anew belongs to a later one: the owner has seen the end of the
   * first */
  while (w->finished < issued && (begun >= w->finished + 1 + AX_NCCL_EVENTS ||
                                  cudaEventQuery(g->done[ax_nccl_slot(w->finished + 1)]) == cudaSuccess))
    w->finished++;
  cudaGetLastError();
  const uint64_t ticket = g->joining.load() ? 0 : w->finished + 1;
  if (ticket > begun) return false;
  const bool queued = ticket > 0 && ticket <= issued;
  if (ticket != w->ticket || queued != w->queued) w->running = false;
  w->ticket = ticket;
  w->queued = queued;
  if (!w->running)
    w->running =
        queued ? cudaEventQuery(g->ready[ax_nccl_slot(ticket)]) == cudaSuccess : g->inside.load() != 0;
  cudaGetLastError();
  return true;
}

/* Likewise, and counts its time: w->waited, 0 where none is open and running. */
static bool count_open(rank_side *g, watch_state *w, int64_t now)
{
  const int64_t passed = now - w->before;
  const uint64_t former = w->ticket;
  const bool ran = w->running, open = find_open(g, w);

  w->before = now;
  if (!open || w->ticket != former || !ran) w->waited = 0;
  /* A look that came much later was spent stopped (Ctrl-Z, a debugger). */
  else w->waited += passed < SECOND ? passed : SECOND;
  return open;
}

/* ---- the owner's calls and waits */

/* Sleeps longer the longer a wait lasts; at first not at all. */
static void rest(int64_t looks)
{
  if (looks > 2000) usleep(looks < 20000 ? 20 : 200);
}

/* The watchdog's reason as the owner's error.  It frees the links. */
ax_status ax_nccl_stopped(rank_side *g)
{
  char text[sizeof g->reason];

  pthread_mutex_lock(&g->lock);
  memcpy(text, g->reason, sizeof text);
  pthread_mutex_unlock(&g->lock);
  ax_cuda_stop.store(false);
  return ax_dist_look(0, ax_fail(AX_EABORTED, "%s", text));
}
ax_status ax_nccl_stop_owner(void)
{
  rank_side *g = ax_nccl_here;
  return g && g->ended.load() && pthread_equal(pthread_self(), g->owner) ? ax_nccl_stopped(g) : AX_OK;
}

/* Takes the owner into NCCL.  False: the communicators have been ended, by an abort that may not
 * return and keeps `calls` for as long. */
bool ax_nccl_take_calls(rank_side *g)
{
  struct timespec until;

  while (!g->ended.load()) {
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += TICK;
    until.tv_sec += until.tv_nsec / SECOND;
    until.tv_nsec %= SECOND;
    if (pthread_mutex_timedlock(&g->calls, &until) != 0) continue;
    if (!g->ended.load()) {
      g->inside.store(ax_monotonic_ns());
      return true;
    }
    pthread_mutex_unlock(&g->calls);
  }
  return false;
}

/* Around calls of NCCL on the owner's thread.  EABORTED: the communicator is gone. */
ax_status ax_nccl_enter_call(rank_side *g) { return ax_nccl_take_calls(g) ? AX_OK : ax_nccl_stopped(g); }
ax_status ax_nccl_leave_call(rank_side *g, const char *what, nccl_comm comm, int result)
{
  const bool ended = g->ended.load();
  const ax_status st = ended || result == NCCL_OK ? AX_OK : ax_nccl_failed(what, comm, result);

  g->inside.store(0);
  pthread_mutex_unlock(&g->calls);
  return ended ? ax_nccl_stopped(g) : st;
}

/* What NCCL has found wrong in a communicator by itself. */
static ax_status async_error(rank_side *g, const char *what)
{
  for (ax_nccl_link *l : g->links) {
    int async = NCCL_OK;
    if (ax_nccl.CommGetAsyncError(l->comm, &async) == NCCL_OK && async != NCCL_OK)
      return ax_nccl_failed(what, l->comm, async);
  }
  return AX_OK;
}

/* One look of a wait of the host.  The limit is for the time in which a collective has kept it
 * waiting: this rank's own computation does not count. */
static ax_status look_around(const char *what, watch_state *w)
{
  const int64_t now = ax_monotonic_ns();
  rank_side *g;
  ax_status st = ax_nccl_stop_owner();

  if (st != AX_OK || !ax_nccl_here) return st;
  count_open(ax_nccl_here, w, now);
  if ((st = ax_dist_look(now - w->waited, AX_OK)) != AX_OK || !(g = ax_nccl_here)) return st;
  if (pthread_mutex_trylock(&g->calls) != 0) return AX_OK; /* they are being aborted */
  if (!g->ended.load()) st = async_error(g, what);
  pthread_mutex_unlock(&g->calls);
  return st == AX_OK ? st : ax_dist_look(0, st);
}

/* Waits for `event` or, when it is NULL, for all work queued in `stream`, as long as the other
 * ranks are alive. */
ax_status ax_nccl_wait(const char *what, cudaStream_t stream, cudaEvent_t event)
{
  cudaError_t e = event ? cudaEventQuery(event) : cudaStreamQuery(stream);
  watch_state w = {};
  ax_status st = AX_OK;

  if (e != cudaErrorNotReady) return ax_cuda_status(what, e);
  w.before = ax_monotonic_ns();
  if (ax_nccl_here) ax_nccl_here->waiting.store(true);
  for (int64_t looks = 1;
       st == AX_OK && (e = event ? cudaEventQuery(event) : cudaStreamQuery(stream)) == cudaErrorNotReady;
       looks++) {
    if (looks % 64 == 0) st = look_around(what, &w);
    rest(looks);
  }
  cudaGetLastError(); /* "not ready" would be reported again by the next launch */
  if (ax_nccl_here) ax_nccl_here->waiting.store(false);
  if (st == AX_OK) st = ax_nccl_stop_owner(); /* it ended because it was aborted */
  if (st == AX_OK) st = ax_dist_look(0, AX_OK);
  return st == AX_OK ? ax_cuda_status(what, e) : st;
}

/* ---- the watchdog: a thread beside the owner's
 *
 * When waiting for the oldest open collective is pointless (another rank failed or has ended, the
 * clock, an error of a communicator), and the owner is not waiting itself, all its communicators
 * are aborted: their collectives share a stream.  That ends the kernels that wait, the queue
 * drains, the driver lets go of the owner, and the owner's next use of the device raises the
 * reason (ax_cuda_stop).  If the owner does not come back all the same, the launcher ends the run.
 *
 * Locking.  `lock` guards `over`, `reason` and the list of links, and is held across no call that
 * may block.  `calls` is held by the owner inside NCCL.  For an abort the watchdog waits for it a
 * moment, so that nothing runs in the communicators that it frees; an owner that is blocked inside
 * NCCL does not give it back, and the abort is what ends its call.  `ended` is set before, so that
 * the owner begins no other call.  Only the owner frees a link, while the thread is stopped.  Of a
 * joining NCCL has given no communicator out yet: a division of another one ends with that one, a
 * first joining not.  The thread makes CUDA calls on the group's device: queries of events that
 * live as long as it.  A recording step does not mind them: steps are captured in the relaxed
 * mode. */

static const int GRACE = 3; /* ticks before it acts: the owner may raise the error by itself */

/* An error of a communicator counts also when nothing is open: its collectives may have ended by
 * it. */
static ax_status judge(rank_side *g, const watch_state *w, bool open)
{
  ax_status st;

  pthread_mutex_lock(&g->lock);
  st = async_error(g, "the GPUs' group");
  pthread_mutex_unlock(&g->lock);
  if (st != AX_OK) return ax_dist_watch_failed(open ? w->ticket : w->finished, ax_last_error());
  return open ? ax_dist_watch(w->ticket, w->waited) : AX_OK;
}

void ax_nccl_abort_all(const std::vector<ax_nccl_link *> &links)
{
  if (links.size() > 1) ax_nccl.GroupStart();
  for (ax_nccl_link *l : links) ax_nccl.CommAbort(l->comm);
  if (links.size() > 1) ax_nccl.GroupEnd();
}

static void end_comm(rank_side *g, bool blocked)
{
  std::vector<ax_nccl_link *> links;
  struct timespec until;

  pthread_mutex_lock(&g->lock);
  snprintf(g->reason, sizeof g->reason, "%s", ax_last_error());
  links = g->links;
  pthread_mutex_unlock(&g->lock);
  if (blocked && !g->leaving.load()) ax_dist_watch_stuck(g->reason);
  g->ended.store(true);
  if (!g->leaving.load()) ax_cuda_stop.store(true);
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += 200000000;
  until.tv_sec += until.tv_nsec / SECOND;
  until.tv_nsec %= SECOND;
  const bool alone = pthread_mutex_timedlock(&g->calls, &until) == 0;
  ax_nccl_abort_all(links);
  if (alone) pthread_mutex_unlock(&g->calls);
}

static void tick(rank_side *g, watch_state *w)
{
  const int64_t now = ax_monotonic_ns(), inside = g->inside.load();
  const bool blocked = ax_dist_watch_launch(g->device, now) || inside != 0;

  if (g->ended.load()) {
    if (!blocked) ax_dist_watch_free();
    return;
  }
  if (g->leaving.load()) {
    if (inside != 0 && now - inside > AX_NCCL_LEAVING) end_comm(g, false);
    return;
  }
  const bool open = count_open(g, w, now);
  if (g->waiting.load() || judge(g, w, open) == AX_OK) w->bad = 0;
  else if (++w->bad >= GRACE) end_comm(g, blocked);
}

static void *watchdog(void *argument)
{
  rank_side *g = (rank_side *)argument;
  watch_state w = {};
  struct timespec next;

  cudaSetDevice(g->device);
  w.before = ax_monotonic_ns();
  w.finished = g->issued.load() > AX_NCCL_EVENTS ? g->issued.load() - AX_NCCL_EVENTS : 0;
  pthread_mutex_lock(&g->lock);
  while (!g->over) {
    clock_gettime(CLOCK_MONOTONIC, &next);
    next.tv_nsec += TICK;
    next.tv_sec += next.tv_nsec / SECOND;
    next.tv_nsec %= SECOND;
    if (pthread_cond_timedwait(&g->wake, &g->lock, &next) == 0) continue;
    pthread_mutex_unlock(&g->lock);
    tick(g, &w);
    pthread_mutex_lock(&g->lock);
  }
  pthread_mutex_unlock(&g->lock);
  return NULL;
}

/* Signals are for the process's other threads. */
ax_status ax_nccl_watch_start(rank_side *g)
{
  sigset_t all, former;
  int e;

  g->owner = pthread_self();
  if (ax_dist_world()->size == 1) return AX_OK;
  g->over = false;
  ax_dist_watch_begin();
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &former);
  e = pthread_create(&g->watcher, NULL, watchdog, g);
  pthread_sigmask(SIG_SETMASK, &former, NULL);
  g->watched = e == 0;
  if (e == 0) {
    pthread_setname_np(g->watcher, "ax-watchdog");
    return AX_OK;
  }
  ax_dist_watch_end();
  return ax_fail(AX_ENOMEM, "the thread that watches the GPUs' group: %s", strerror(e));
}

/* False: it is still inside ncclCommAbort after some seconds, and is left there. */
bool ax_nccl_watch_stop(rank_side *g)
{
  struct timespec until;

  if (!g->watched) return true;
  pthread_mutex_lock(&g->lock);
  g->over = true;
  pthread_cond_signal(&g->wake);
  pthread_mutex_unlock(&g->lock);
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += AX_NCCL_LEAVING / SECOND;
  g->watched = pthread_timedjoin_np(g->watcher, NULL, &until) != 0;
  ax_dist_watch_end();
  ax_cuda_stop.store(false);
  return !g->watched;
}

/* dist/watch.c: what a watchdog knows of its rank.
 *
 * A driver takes some thousand launches ahead of a device and then blocks the thread that wants to
 * launch more.  When a collective in that queue waits for a rank that hangs, the thread is blocked
 * for good, and looks at no clock.  A backend whose devices have joined a group therefore has a
 * thread, the watchdog (kernels/cuda/runtime/nccl_watch.cu).  It finds the oldest open collective
 * by the device's events, asks here whether waiting for it is pointless, and aborts the group if
 * so.
 *
 * Shared between the two threads, and nothing else:
 *   - the open collectives, their groups and the script line: under `lock`, which is held for a
 *   copy
 *     of some hundred bytes or for a look at the other ranks' records, never across a call that may
 *     block;
 *   - the mark of the launch under way and the switch: atomics.  The rank's own thread writes the
 *     mark; the watchdog counts a launch as blocked when it has seen the same one twice.
 * The rank's record in shared memory is read by others at any time; see ax_rank_record.  No Lua
 * runs on the watchdog's thread.  The script line is looked up by the rank's own thread: at the
 * first launch behind a collective or a tick of the watchdog, and at every 64th, so that launches
 * hardly pay for it. */
#include "core/dist/watch.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/core.h"
#include "core/dist/steps.h"

#define LINE_EVERY 64          /* launches */
#define OPEN 128               /* more than a backend has open at once */
#define BLOCKED_NS 500000000   /* a launch that takes longer is reported */
#define PATIENCE_NS 5000000000 /* for the rank's own thread, after the group was aborted */

_Atomic bool ax_watched;

static struct {
  _Atomic(const char *) what; /* NULL: no launch is under way */
  _Atomic uint64_t count;     /* launches until now */
  _Atomic bool wants_line;
} mark;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
typedef struct open_one {
  ax_group *group; /* NULL: it was freed, and so all its collectives have ended */
  ax_collective_call call;
} open_one;
static open_one open_ones[OPEN + 1]; /* by ticket; the last: the joining under way, ticket 0 */
static uint64_t issued;
static char line[AX_WHERE_TEXT]; /* of one of the last launches */

/* The watchdog's own. */
static struct {
  uint64_t count;
  int64_t since; /* when the launch under way was first seen; 0: none */
} seen;

/* ---- on the rank's own thread */

void ax_launch_enter(const char *what)
{
  const uint64_t count = atomic_load_explicit(&mark.count, memory_order_relaxed) + 1;

  if (count % LINE_EVERY == 0 || atomic_load_explicit(&mark.wants_line, memory_order_relaxed)) {
    const char *where = ax_memory_where();
    pthread_mutex_lock(&lock);
    snprintf(line, sizeof line, "%s", where);
    pthread_mutex_unlock(&lock);
    atomic_store_explicit(&mark.wants_line, false, memory_order_relaxed);
  }
  atomic_store_explicit(&mark.count, count, memory_order_relaxed);
  atomic_store_explicit(&mark.what, what, memory_order_release);
}
void ax_launch_leave(void) { atomic_store_explicit(&mark.what, NULL, memory_order_release); }

/* The record of this rank; NULL: no launcher has made one. */
static ax_rank_record *own_record(void) { return ax_shm.control ? &ax_shm.control->rank[ax_shm.rank] : NULL; }

static open_one *open_of(uint64_t ticket) { return &open_ones[ticket ? ticket % OPEN : OPEN]; }

static void note(uint64_t ticket, ax_group *g, const ax_collective *c, uint64_t number)
{
  open_one *p = open_of(ticket);

  pthread_mutex_lock(&lock);
  *p = (open_one){ g, { .number = number, .facts = *c } };
  memcpy(p->call.facts.group, g->name, sizeof g->name);
  snprintf(p->call.where, sizeof p->call.where, "%s", ax_dist_where());
  if (ticket) issued = ticket;
  pthread_mutex_unlock(&lock);
}

void ax_watch_joining(ax_group *g, const ax_collective *c)
{
  const ax_rank_record *me = own_record();
  note(0, g, c, me ? me->number : 0);
}
void ax_watch_issuing(ax_group *g, const ax_collective *c, uint64_t number)
{
  note(issued + 1, g, c, number ? number : issued + 1);
  atomic_store_explicit(&mark.wants_line, true, memory_order_relaxed);
}
void ax_watch_drop(const ax_group *g)
{
  pthread_mutex_lock(&lock);
  for (int k = 0; k <= OPEN; k++)
    if (open_ones[k].group == g) open_ones[k].group = NULL;
  pthread_mutex_unlock(&lock);
}
void ax_watch_forget(void) { atomic_store(&ax_watched, false); }

void ax_dist_watch_begin(void)
{
  seen.count = 0;
  seen.since = 0;
  atomic_store(&mark.wants_line, true);
  atomic_store(&ax_watched, true);
}

void ax_dist_watch_end(void)
{
  ax_rank_record *me = own_record();

  atomic_store(&ax_watched, false);
  ax_launch_leave();
  if (!me) return;
  atomic_store(&me->launch_since, 0);
  atomic_store(&me->overdue, 0);
}

/* ---- on the watchdog's */

const char *ax_watch_text(const ax_collective_call *p, char *buf, size_t size)
{
  char text[160];

  snprintf(buf, size, "collective #%llu, %s%s%.*s,", (unsigned long long)p->number,
           ax_collective_text(&p->facts, text, sizeof text), p->where[0] ? " at " : "", AX_WHERE_TEXT,
           p->where);
  return buf;
}

/* The lock keeps the group from being freed meanwhile. */
ax_status ax_dist_watch(uint64_t ticket, int64_t waited)
{
  const open_one *p = open_of(ticket);
  ax_status st = AX_OK;

  pthread_mutex_lock(&lock);
  if (p->group && p->group->transport->watch) st = p->group->transport->watch(p->group, &p->call, waited);
  pthread_mutex_unlock(&lock);
  return st;
}

ax_status ax_dist_watch_failed(uint64_t ticket, const char *why)
{
  char text[400];

  pthread_mutex_lock(&lock);
  ax_watch_text(&open_of(ticket)->call, text, sizeof text);
  pthread_mutex_unlock(&lock);
  return ax_fail(AX_EABORTED, "%s failed: %s", text, why);
}

/* Writes into the record which launch it is. */
static void report(ax_rank_record *me, int device, const char *what)
{
  me->launch_device = device;
  snprintf(me->launch, sizeof me->launch, "%s", what);
  pthread_mutex_lock(&lock);
  memcpy(me->launch_at, line, sizeof me->launch_at);
  pthread_mutex_unlock(&lock);
  atomic_store_explicit(&me->launch_since, seen.since, memory_order_release);
}

bool ax_dist_watch_launch(int device, int64_t now)
{
  const char *what = atomic_load_explicit(&mark.what, memory_order_acquire);
  const uint64_t count = atomic_load_explicit(&mark.count, memory_order_relaxed);
  ax_rank_record *me = own_record();

  if (!what || !seen.since || count != seen.count) {
    if (me && atomic_load_explicit(&me->launch_since, memory_order_relaxed))
      atomic_store_explicit(&me->launch_since, 0, memory_order_release);
    seen.count = count;
    seen.since = what ? now : 0;
    atomic_store_explicit(&mark.wants_line, true, memory_order_relaxed);
    return false;
  }
  if (me && now - seen.since >= BLOCKED_NS && !atomic_load_explicit(&me->launch_since, memory_order_relaxed))
    report(me, device, what);
  return true;
}

void ax_dist_watch_stuck(const char *reason)
{
  ax_rank_record *me = own_record();

  if (!me) return;
  snprintf(me->stuck, sizeof me->stuck, "%s", reason);
  atomic_store_explicit(&me->overdue, ax_monotonic_ns() + PATIENCE_NS, memory_order_release);
}

void ax_dist_watch_free(void)
{
  ax_rank_record *me = own_record();

  if (me && atomic_load_explicit(&me->overdue, memory_order_relaxed)) atomic_store(&me->overdue, 0);
}

/* dist/ring.c: collectives that ranks compare without meeting.
 *
 * A device's collective is queued, and the rank that queued it goes on; no rank may wait only to
 * compare.  So every rank writes its call into a ring of its own in the shared memory, one for each
 * of its groups, publishes the call's number there, and then reads the others' rings: the later of
 * two ranks (or both) sees the other's call before it queues its own.  A difference is published
 * for all ranks: those that have gone on find it when they next wait for their device or call a
 * collective.
 *
 * A rank's call is overwritten AX_RING collectives later.  Before that the rank waits until all
 * others have compared the overwritten call: a rank that is so far ahead would wait for its device
 * just as long. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/dist/steps.h"

/* ---- the ring */

static ax_collective_call *posted_call(const ax_walk *g, int member, uint64_t number)
{
  const uint64_t length = (uint64_t)g->ring_length;
  return &g->ring[(uint64_t)member * length + number % length];
}

static uint64_t posted_by(const ax_walk *g, int member)
{
  return atomic_load_explicit(&g->counters[member]->posted, memory_order_acquire);
}

ax_status ax_ring_differs(void)
{
  ax_control *c = ax_shm.control;
  return ax_fail(AX_EMISMATCH, "%s", c->difference);
}

/* Publishes the first difference found: it is the error of all ranks. */
static ax_status publish(ax_status st)
{
  ax_control *c = ax_shm.control;
  uint32_t none = AX_ABORT_NONE;

  if (atomic_compare_exchange_strong(&c->mismatch, &none, AX_ABORT_CLAIMED)) {
    snprintf(c->difference, sizeof c->difference, "%s", ax_last_error());
    atomic_store(&c->mismatch, AX_ABORT_PUBLISHED);
  } else {
    for (int i = 0; i < 50 && atomic_load(&c->mismatch) == AX_ABORT_CLAIMED; i++) usleep(1000);
    if (atomic_load(&c->mismatch) == AX_ABORT_PUBLISHED) return ax_ring_differs();
  }
  return st;
}

/* Waits until no rank needs the call that `number` overwrites: when the others have posted the call
 * after it, they have compared it. */
static ax_status make_room(const ax_walk *g, uint64_t number)
{
  const uint64_t length = (uint64_t)g->ring_length;
  const int64_t since = ax_monotonic_ns();
  ax_status st = AX_OK;

  for (int k = 0; number > length && k < g->size && st == AX_OK; k++)
    while (k != g->rank && posted_by(g, k) + length <= number &&
           (st = ax_ring_look(NULL, since, AX_OK)) == AX_OK)
      usleep(200);
  return st;
}

/* Compares this rank's call with member k's of the same number. */
static ax_status compare(const ax_walk *g, const ax_collective_call *mine, int k)
{
  const ax_collective_call *theirs = posted_call(g, k, mine->number);
  const int me = ax_shm_world_rank(g->local[g->rank]), other = ax_shm_world_rank(g->local[k]);

  if (ax_collective_same(&mine->facts, &theirs->facts)) return AX_OK;
  return publish(k < g->rank ? ax_calls_differ(other, theirs, me, mine)
                             : ax_calls_differ(me, mine, other, theirs));
}

ax_status ax_ring_post(ax_walk *g, const ax_collective *c)
{
  const ax_rank_record *me = &ax_shm.control->rank[ax_shm.rank];
  const uint64_t number = me->number;
  ax_collective_call *mine = posted_call(g, g->rank, number);
  ax_status st;

  AX_TRY(make_room(g, number));
  mine->number = number;
  mine->facts = *c;
  memcpy(mine->where, me->where, sizeof mine->where);
  /* sequentially consistent, as the loads below: one of two ranks sees the other's */
  atomic_store(&g->counters[g->rank]->posted, number);
  for (int k = 0; k < g->size; k++)
    if (k != g->rank && atomic_load(&g->counters[k]->posted) >= number) AX_TRY(compare(g, mine, k));
  if (atomic_load_explicit(&ax_shm.control->mismatch, memory_order_acquire) == AX_ABORT_PUBLISHED)
    return ax_ring_differs();
out:
  return st;
}

/* ---- waiting for a device */

/* The rank of this machine, a member of g, that will not enter its collective `number`; -1:
 * none. */
static int gone(const ax_walk *g, uint64_t number)
{
  for (int k = 0; k < g->size; k++) {
    ax_rank_record *other = &ax_shm.control->rank[g->local[k]];
    if (atomic_load_explicit(&other->state, memory_order_acquire) == AX_RANK_FINISHED &&
        posted_by(g, k) < number)
      return g->local[k];
  }
  return -1;
}

/* Likewise in any group whose devices have joined, of what this rank has posted there. */
static int gone_from_any(void)
{
  int r = ax_shm.world.posts ? gone(&ax_shm.world, posted_by(&ax_shm.world, ax_shm.world.rank)) : -1;

  for (const ax_walk *w = ax_shm.walks; w && r < 0; w = w->next)
    if (w->posts) r = gone(w, posted_by(w, w->rank));
  return r;
}

/* The rank of the world that is the furthest behind. */
static int slowest(void)
{
  int least = 0;
  for (int r = 1; r < ax_shm.size; r++)
    if (atomic_load(&ax_shm.control->rank[r].world_calls) <
        atomic_load(&ax_shm.control->rank[least].world_calls))
      least = r;
  return least;
}

/* One that has not posted what this rank has, in one of its groups; else the slowest of all. */
static int behind(void)
{
  for (const ax_walk *w = ax_shm.walks; w; w = w->next)
    for (int k = 0; w->posts && k < w->size; k++)
      if (posted_by(w, k) < posted_by(w, w->rank)) return w->local[k];
  return slowest();
}

ax_status ax_ring_look(ax_group *g, int64_t since, ax_status result)
{
  ax_rank_record *me = &ax_shm.control->rank[ax_shm.rank];
  const int64_t limit = atomic_load(&me->timeout), now = ax_monotonic_ns();
  char text[400], name[48];
  int r;

  (void)g;
  if (since == 0) {
    atomic_store_explicit(&me->since, now, memory_order_relaxed);
    atomic_store_explicit(&me->state, result == AX_OK ? AX_RANK_RUNNING : AX_RANK_GIVEN_UP,
                          memory_order_release);
    return result;
  }
  if (atomic_load_explicit(&me->state, memory_order_relaxed) == AX_RANK_RUNNING) {
    atomic_store_explicit(&me->since, since, memory_order_relaxed);
    atomic_store_explicit(&me->state, AX_RANK_WAITING, memory_order_release);
  }
  if (atomic_load_explicit(&ax_shm.control->abort, memory_order_acquire) != AX_ABORT_NONE)
    return ax_shm_aborted();
  if (atomic_load_explicit(&ax_shm.control->mismatch, memory_order_acquire) == AX_ABORT_PUBLISHED)
    return ax_ring_differs();
  if ((r = gone_from_any()) >= 0) return ax_shm_gone(r);
  if (ax_shm_interrupted() != AX_OK) return AX_EABORTED;
  if (ax_hold_waited(since, now) > limit) {
    r = behind();
    return ax_fail(AX_ETIMEOUT, "waited %g s for the ranks' devices; %s %s (%s sets the limit)",
                   (double)limit * 1e-9, ax_shm_name(r, name, sizeof name),
                   ax_shm_doing(r, text, sizeof text), ax_shm_limit_source(limit));
  }
  return AX_OK;
}

/* ---- for the watchdog */

/* "rank 1, which last called #3, barrier() at train.lua:8", for up to SHOWN of the ranks of g that
 * have not posted `number`; empty when all have. */
static void absent(const ax_walk *g, uint64_t number, char *buf, size_t size)
{
  enum { SHOWN = 4 };
  size_t used = 0;
  int n = 0;
  char text[400], name[48];

  buf[0] = '\0';
  for (int k = 0; k < g->size; k++) {
    if (posted_by(g, k) >= number || ++n > SHOWN) continue;
    used += (size_t)snprintf(buf + used, size - used, "%s%s, which %s", n > 1 ? ", and for " : "",
                             ax_shm_name(g->local[k], name, sizeof name),
                             ax_shm_doing(g->local[k], text, sizeof text));
    if (used >= size) return;
  }
  if (n > SHOWN) snprintf(buf + used, size - used, ", and for %d more ranks", n - SHOWN);
}

ax_status ax_ring_watch(const ax_walk *g, const ax_collective_call *p, int64_t waited)
{
  const int64_t limit = atomic_load(&ax_shm.control->rank[ax_shm.rank].timeout);
  char what[400], missing[1200], text[400], name[48];
  int r = -1;

  if (atomic_load_explicit(&ax_shm.control->abort, memory_order_acquire) != AX_ABORT_NONE)
    return ax_shm_aborted();
  if (atomic_load_explicit(&ax_shm.control->mismatch, memory_order_acquire) == AX_ABORT_PUBLISHED)
    return ax_ring_differs();
  if (p->facts.op != AX_JOIN && (r = gone(g, p->number)) >= 0)
    return ax_fail(AX_EABORTED, "%s waits for %s, which has finished and will not take part (it %s)",
                   ax_watch_text(p, what, sizeof what), ax_shm_name(r, name, sizeof name),
                   ax_shm_doing(r, text, sizeof text));
  if (ax_hold_waited(ax_monotonic_ns() - waited, ax_monotonic_ns()) <= limit) return AX_OK;
  if (p->facts.op != AX_JOIN) absent(g, p->number, missing, sizeof missing);
  else snprintf(missing, sizeof missing, "the other ranks (NCCL_DEBUG=INFO shows where)");
  return ax_fail(AX_ETIMEOUT, "%s has waited %.1f s for %s (%s sets the limit)",
                 ax_watch_text(p, what, sizeof what), (double)waited * 1e-9,
                 missing[0] ? missing : "the GPUs and the links between them: all ranks have begun it",
                 ax_shm_limit_source(limit));
}

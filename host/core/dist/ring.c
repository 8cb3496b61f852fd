/* dist/ring.c: collectives that ranks compare without meeting.
 *
 * A device's collective is queued, and the rank that queued it goes on; no rank may wait only to
 * compare.  So every rank writes its call into a ring of its own in the shared memory, publishes
 * the call's number, and then reads the others' rings: the later of two ranks (or both) sees the
 * other's call before it queues its own.  A difference is published for all ranks: those that have
 * gone on find it when they next wait for their device or call a collective.
 *
 * A rank's call is overwritten AX_RING collectives later.  Before that the rank waits until all
 * others have compared the overwritten call: a rank that is so far ahead would wait for its device
 * just as long. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/dist/steps.h"

/* ---- the ring -------------------------------------------------------------------------------- */

static ax_collective_call *posted_call(int rank, uint64_t number)
{
  return &ax_shm.rings[(size_t)rank * AX_RING + number % AX_RING];
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
static ax_status make_room(uint64_t number)
{
  const int64_t since = ax_monotonic_ns();
  ax_status st = AX_OK;

  for (int r = 0; number > AX_RING && r < ax_shm.size && st == AX_OK; r++)
    while (r != ax_shm.rank &&
           atomic_load_explicit(&ax_shm.control->rank[r].posted, memory_order_acquire) + AX_RING <= number &&
           (st = ax_ring_look(NULL, since, AX_OK)) == AX_OK)
      usleep(200);
  return st;
}

ax_status ax_ring_post(const ax_collective *c)
{
  ax_rank_record *me = &ax_shm.control->rank[ax_shm.rank];
  const uint64_t number = atomic_load_explicit(&me->world_calls, memory_order_relaxed);
  ax_collective_call *mine = posted_call(ax_shm.rank, number);
  ax_status st;

  AX_TRY(make_room(number));
  mine->number = number;
  mine->facts = *c;
  memcpy(mine->where, me->where, sizeof mine->where);
  /* sequentially consistent, as the loads below: one of two ranks sees the other's */
  atomic_store(&me->posted, number);
  for (int r = 0; r < ax_shm.size; r++) {
    const ax_collective_call *theirs = posted_call(r, number);
    if (r == ax_shm.rank || atomic_load(&ax_shm.control->rank[r].posted) < number) continue;
    if (!ax_collective_same(&mine->facts, &theirs->facts))
      return publish(r < ax_shm.rank ? ax_calls_differ(r, theirs, ax_shm.rank, mine)
                                     : ax_calls_differ(ax_shm.rank, mine, r, theirs));
  }
  if (atomic_load_explicit(&ax_shm.control->mismatch, memory_order_acquire) == AX_ABORT_PUBLISHED)
    return ax_ring_differs();
out:
  return st;
}

/* ---- waiting for a device -------------------------------------------------------------------- */

/* A rank that will not enter collective `number`; -1: none. */
static int gone(uint64_t number)
{
  for (int r = 0; r < ax_shm.size; r++) {
    ax_rank_record *other = &ax_shm.control->rank[r];
    if (atomic_load_explicit(&other->state, memory_order_acquire) == AX_RANK_FINISHED &&
        atomic_load(&other->posted) < number)
      return r;
  }
  return -1;
}

/* The rank that is the furthest behind. */
static int slowest(void)
{
  int least = 0;
  for (int r = 1; r < ax_shm.size; r++)
    if (atomic_load(&ax_shm.control->rank[r].world_calls) <
        atomic_load(&ax_shm.control->rank[least].world_calls))
      least = r;
  return least;
}

ax_status ax_ring_look(ax_group *g, int64_t since, ax_status result)
{
  ax_rank_record *me = &ax_shm.control->rank[ax_shm.rank];
  const int64_t limit = atomic_load(&me->timeout), now = ax_monotonic_ns();
  char text[400];
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
  if ((r = gone(atomic_load_explicit(&me->posted, memory_order_relaxed))) >= 0) return ax_shm_gone(r);
  if (ax_shm_interrupted() != AX_OK) return AX_EABORTED;
  if (ax_hold_waited(since, now) > limit) {
    r = slowest();
    return ax_fail(AX_ETIMEOUT, "waited %g s for the ranks' devices; rank %d %s (%s sets the limit)",
                   (double)limit * 1e-9, r, ax_shm_doing(r, text, sizeof text), ax_shm_limit_source(limit));
  }
  return AX_OK;
}

/* ---- for the watchdog ------------------------------------------------------------------------ */

/* "rank 1, which last called #3, barrier() at train.lua:8", for up to SHOWN of the ranks that have
 * not posted `number`; empty when all have. */
static void absent(uint64_t number, char *buf, size_t size)
{
  enum { SHOWN = 4 };
  size_t used = 0;
  int n = 0;
  char text[400];

  buf[0] = '\0';
  for (int r = 0; r < ax_shm.size; r++) {
    if (atomic_load(&ax_shm.control->rank[r].posted) >= number || ++n > SHOWN) continue;
    used += (size_t)snprintf(buf + used, size - used, "%srank %d, which %s", n > 1 ? ", and for " : "", r,
                             ax_shm_doing(r, text, sizeof text));
    if (used >= size) return;
  }
  if (n > SHOWN) snprintf(buf + used, size - used, ", and for %d more ranks", n - SHOWN);
}

ax_status ax_ring_watch(ax_group *g, const ax_collective_call *p, int64_t waited)
{
  const int64_t limit = atomic_load(&ax_shm.control->rank[ax_shm.rank].timeout);
  char what[400], missing[1200], text[400];
  int r = -1;

  if (atomic_load_explicit(&ax_shm.control->abort, memory_order_acquire) != AX_ABORT_NONE)
    return ax_shm_aborted();
  if (atomic_load_explicit(&ax_shm.control->mismatch, memory_order_acquire) == AX_ABORT_PUBLISHED)
    return ax_ring_differs();
  if (p->facts.op != AX_JOIN && (r = gone(p->number)) >= 0)
    return ax_fail(AX_EABORTED, "%s waits for rank %d, which has finished and will not take part (it %s)",
                   ax_watch_text(p, what, sizeof what), r, ax_shm_doing(r, text, sizeof text));
  if (ax_hold_waited(ax_monotonic_ns() - waited, ax_monotonic_ns()) <= limit) return AX_OK;
  if (p->facts.op != AX_JOIN) absent(p->number, missing, sizeof missing);
  else snprintf(missing, sizeof missing, "the other ranks (NCCL_DEBUG=INFO shows where)");
  return ax_fail(AX_ETIMEOUT, "%s has waited %.1f s for %s (%s sets the limit)",
                 ax_watch_text(p, what, sizeof what), (double)waited * 1e-9,
                 missing[0] ? missing : "the GPUs and the links between them: all ranks have begun it",
                 ax_shm_limit_source(limit));
}

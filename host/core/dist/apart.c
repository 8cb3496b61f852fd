/* dist/apart.c: what transports between machines have in common.  See dist/apart.h. */
#include "core/dist/apart.h"

#include <stdio.h>
#include <unistd.h>

#include "core/core.h"

const char *ax_rank_name(int rank, int local_size, char *buf, size_t size)
{
  snprintf(buf, size, "rank %d (machine %d)", rank, rank / local_size);
  return buf;
}

void ax_nap(void) { usleep(1000); }

bool ax_apart_aborted(void)
{
  return atomic_load_explicit(&ax_shm.control->abort, memory_order_acquire) != AX_ABORT_NONE;
}

ax_status ax_apart_signal(uint32_t sig, uint64_t from)
{
  ax_control *c = ax_shm.control;

  if (from != 0 && atomic_load(&c->signal_from) == 0) {
    atomic_store(&c->signal, sig);
    atomic_store(&c->signal_from, from);
  }
  return AX_OK;
}

void ax_apart_set_timeout(ax_group *g, double seconds)
{
  atomic_store(&ax_shm.control->rank[g->local_rank].timeout, (int64_t)(seconds * 1e9));
}

ax_status ax_apart_post(ax_group *g, const ax_collective *c, uint64_t *number)
{
  ax_status st = ax_shm_refuse_broken();

  if (st != AX_OK) return st;
  ax_shm_enter(c, 0);
  *number = ax_shm.control->rank[ax_shm.rank].number;
  st = ax_apart_aborted() ? ax_shm_aborted() : AX_OK;
  ax_shm_leave(st);
  return st;
}

ax_status ax_apart_look(ax_group *g, int64_t since, ax_status given)
{
  ax_rank_record *me = &ax_shm.control->rank[g->local_rank];
  const int64_t limit = atomic_load(&me->timeout);
  ax_status st = given;

  if (since != 0 && atomic_load_explicit(&me->state, memory_order_relaxed) == AX_RANK_RUNNING) {
    atomic_store_explicit(&me->since, since, memory_order_relaxed);
    atomic_store_explicit(&me->state, AX_RANK_WAITING, memory_order_release);
  }
  if (since != 0 && ax_apart_aborted()) st = ax_shm_aborted();
  else if (since != 0 && ax_monotonic_ns() - since > limit)
    st = ax_fail(AX_ETIMEOUT, "waited %g s for the devices of the ranks of %d machines (%s sets the limit)",
                 (double)limit * 1e-9, g->size / g->local_size, ax_shm_limit_source(limit));
  if (since == 0 || st != AX_OK) ax_shm_leave(st);
  return st;
}

ax_status ax_apart_watch(ax_group *g, const ax_collective_call *p, int64_t waited)
{
  const int64_t limit = atomic_load(&ax_shm.control->rank[g->local_rank].timeout);
  char what[400];

  if (ax_apart_aborted()) return ax_shm_aborted();
  if (waited <= limit) return AX_OK;
  return ax_fail(AX_ETIMEOUT, "%s has waited %.1f s for the ranks of %d machines (%s sets the limit)",
                 ax_watch_text(p, what, sizeof what), (double)waited * 1e-9, g->size / g->local_size,
                 ax_shm_limit_source(limit));
}

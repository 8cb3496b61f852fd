/* dist/hold.c: ranks that stop for a person, at a breakpoint.
 *
 * One rank of a machine at a time has the terminal.  It keeps it while the person steps through its
 * script, and gives it up where it goes on.  A rank that steps into a collective waits for the
 * others, so one of those that stopped too takes the terminal over.  While a rank stands, no wait
 * for it counts.
 *
 * `holder` is 0, or twice the rank's number from 1 and, while it stands, one more. */
#define _GNU_SOURCE
#include <unistd.h>

#include "core/dist/steps.h"

#define LOOK_US 10000

static int holder_of(uint32_t word) { return (int)(word / 2) - 1; }

/* Whether the rank that has the terminal runs, and waits for others or has ended. */
static bool has_left(const ax_control *c, uint32_t word)
{
  return !(word & 1) && atomic_load(&c->rank[holder_of(word)].state) != AX_RANK_RUNNING;
}

ax_status ax_hold_begin(void)
{
  ax_control *c = ax_shm.control;
  const uint32_t mine = 2 * ((uint32_t)ax_shm.rank + 1);

  if (!c) return AX_OK;
  for (;;) {
    uint32_t word = atomic_load(&c->holder);
    if ((word == 0 || word / 2 == mine / 2 || has_left(c, word)) &&
        atomic_compare_exchange_strong(&c->holder, &word, mine + 1))
      return AX_OK;
    if (atomic_load(&c->abort) != AX_ABORT_NONE) return ax_shm_aborted();
    if (ax_shm_interrupted() != AX_OK) return AX_EABORTED;
    ax_shm_look();
    usleep(LOOK_US);
  }
}

void ax_hold_end(bool steps)
{
  ax_control *c = ax_shm.control;
  const uint32_t mine = 2 * ((uint32_t)ax_shm.rank + 1);
  uint32_t word = c ? atomic_load(&c->holder) : 0;

  if (word / 2 != mine / 2) return;
  if (word & 1) atomic_store(&c->held_until, ax_monotonic_ns());
  atomic_compare_exchange_strong(&c->holder, &word, steps ? mine : 0);
}

bool ax_hold_stands(const ax_control *c) { return (atomic_load(&c->holder) & 1) != 0; }

bool ax_hold_elsewhere(void)
{
  const uint32_t word = ax_shm.control ? atomic_load(&ax_shm.control->holder) : 0;

  return (word & 1) && holder_of(word) != ax_shm.rank;
}

int64_t ax_hold_waited(int64_t since, int64_t now)
{
  const int64_t until = atomic_load(&ax_shm.control->held_until);

  if (ax_hold_stands(ax_shm.control)) return 0;
  return now - (until > since ? until : since);
}

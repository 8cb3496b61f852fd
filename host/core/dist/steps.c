/* dist/steps.c: how ranks meet over shared memory.  See dist/steps.h.
 *
 * Waits are busy for a moment if every thread has a core of its own, then sleep on a futex in
 * slices, between which they look at the abort flag, at whether the awaited rank has finished, and
 * at the clock. */
#define _GNU_SOURCE
#include "core/dist/steps.h"

#include <errno.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BULK (32 << 10)  /* bytes from which on the manner of copying matters */
#define SLOW_WRITES 3.0  /* bytes per ns */
#define PROBE_EVERY 1023 /* steps, less one */
#define PROBES 4
/* looks at the counter before a waiting rank offers its core to others: some 200 us */
#define BUSY 8000
#define BUSY_LEAST 40
#define YIELDS 4           /* offers before it sleeps */
#define SLICE_NS 100000000 /* how long it sleeps between looks at the flags */

typedef struct slot_header {
  ax_collective_call call;
  ax_place place;
} slot_header;
_Static_assert(sizeof(slot_header) <= AX_SLOT_HEADER, "a slot's header must fit in front of its data");

ax_steps ax_shm;

/* ---- waiting */

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t ns)
{
  const struct timespec t = { ns / 1000000000, ns % 1000000000 };
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

void ax_futex_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

static inline void relax(void)
{
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static ax_rank_record *record(int rank) { return &ax_shm.control->rank[rank]; }

/* Counters may wrap around. */
static inline bool reached(_Atomic uint32_t *word, uint32_t want)
{
  return (int32_t)(atomic_load_explicit(word, memory_order_acquire) - want) >= 0;
}

ax_counters *ax_set_counters(int set, int local)
{
  return &ax_shm.counters[(size_t)set * (size_t)ax_shm.control->ranks + (size_t)local];
}

ax_counters *ax_pair_counters(int from, int to, int local)
{
  const size_t n = (size_t)ax_shm.control->ranks;
  return &ax_shm.counters[AX_MAX_GROUPS * n + ((size_t)from * n + (size_t)to) * 2 + (local == to)];
}

ax_collective_call *ax_set_ring(int set)
{
  return &ax_shm.rings[(size_t)set * (size_t)ax_shm.control->ranks * AX_RING];
}

ax_collective_call *ax_pair_ring(int from, int to)
{
  const size_t n = (size_t)ax_shm.control->ranks;
  return &ax_shm.rings[AX_MAX_GROUPS * n * AX_RING + ((size_t)from * n + (size_t)to) * 2 * AX_PAIR_RING];
}

static ax_counters *own(const ax_walk *g) { return g->counters[g->rank]; }

static void publish(ax_walk *g, _Atomic uint32_t *word, uint32_t value)
{
  ax_counters *me = own(g);

  atomic_store_explicit(word, value, memory_order_release);
  atomic_thread_fence(memory_order_seq_cst); /* against the sleeper's: one of the two sees the other */
  if (atomic_load_explicit(&me->sleepers, memory_order_relaxed) != 0) ax_futex_wake(word);
}

const char *ax_shm_limit_source(int64_t limit)
{
  return limit == (int64_t)(ax_shm.control->timeout * 1e9) ? "--timeout" : "InitProcessGroupKwargs";
}

const char *ax_shm_doing(int rank, char *buf, size_t size)
{
  ax_rank_record *r = record(rank);
  char text[160];

  if (atomic_load(&r->collectives) == 0) snprintf(buf, size, "has called none yet");
  else
    snprintf(buf, size, "last called #%llu, %s at %.*s", (unsigned long long)r->number,
             ax_collective_text(&r->last, text, sizeof text), AX_WHERE_TEXT, r->where);
  return buf;
}

int ax_shm_world_rank(int local) { return ax_shm.first + local; }

const char *ax_shm_name(int rank, char *buf, size_t size)
{
  if (ax_shm.machines > 1) return ax_rank_name(ax_shm.first + rank, ax_shm.size, buf, size);
  snprintf(buf, size, "rank %d", rank);
  return buf;
}

ax_status ax_shm_aborted(void)
{
  ax_control *c = ax_shm.control;

  for (int i = 0; i < 50 && atomic_load_explicit(&c->abort, memory_order_acquire) == AX_ABORT_CLAIMED; i++)
    usleep(1000); /* the first to fail is writing down why */
  if (atomic_load_explicit(&c->abort, memory_order_acquire) == AX_ABORT_PUBLISHED)
    return ax_fail(AX_EABORTED, "%s", c->reason);
  return ax_fail(AX_EABORTED, "another rank failed");
}

ax_status ax_shm_gone(int rank)
{
  char text[400], name[48];

  return ax_fail(AX_EABORTED, "%s has %s and will not take part in this (it %s)",
                 ax_shm_name(rank, name, sizeof name),
                 ax_shm.control->prompt ? "ended the chunk" : "finished",
                 ax_shm_doing(rank, text, sizeof text));
}

ax_status ax_shm_interrupted(void)
{
  return ax_shm.interrupted && *ax_shm.interrupted ? ax_fail(AX_EABORTED, "interrupted") : AX_OK;
}

ax_status ax_step_look(void)
{
  if (atomic_load_explicit(&ax_shm.control->abort, memory_order_acquire) != AX_ABORT_NONE)
    return ax_shm_aborted();
  return ax_shm_interrupted();
}

ax_status ax_dist_patience(int64_t since)
{
  int64_t limit;

  if (!ax_shm.control) return AX_OK;
  if (atomic_load_explicit(&ax_shm.control->abort, memory_order_acquire) != AX_ABORT_NONE)
    return ax_shm_aborted();
  limit = atomic_load(&record(ax_shm.rank)->timeout);
  if (ax_hold_waited(since, ax_monotonic_ns()) <= limit) return AX_OK;
  return ax_fail(AX_ETIMEOUT, "waited %g s (%s sets the limit)", (double)limit * 1e-9,
                 ax_shm_limit_source(limit));
}

void ax_dist_lose_save(uint32_t number)
{
  if (ax_shm.control) atomic_store(&record(ax_shm.rank)->lost_save, number);
}

bool ax_dist_save_lost(int rank, uint32_t number)
{
  const ax_group *world = ax_dist_world();
  const int local = rank - (world->rank - world->local_rank);

  return ax_shm.control && number > 0 && local >= 0 && local < ax_shm.control->ranks &&
         atomic_load(&record(local)->lost_save) == number;
}

/* Whether the machine's leader, for which this rank waits, has left this collective with an
 * error. */
static bool gave_up(ax_rank_record *r)
{
  return ax_shm.machines > 1 && atomic_load_explicit(&r->state, memory_order_acquire) == AX_RANK_GIVEN_UP &&
         atomic_load(&r->world_calls) >= atomic_load(&record(ax_shm.rank)->world_calls);
}

/* ---- ranks that wait for each other in different groups */

static void note_wait(int local, _Atomic uint32_t *word, uint32_t want)
{
  ax_rank_record *me = record(ax_shm.rank);

  atomic_store(&me->waits_for, -1); /* readers take the three together, or none */
  atomic_store(&me->waits_word, (_Atomic uint32_t *)word - (_Atomic uint32_t *)ax_shm.control);
  atomic_store(&me->wanted, want);
  atomic_store(&me->waits_for, local);
}

/* The rank that `local` sleeps for in vain so far; -1: it does not sleep. */
static int awaited_by(int local)
{
  ax_rank_record *r = record(local);
  const int other = atomic_load(&r->waits_for);
  _Atomic uint32_t *word = (_Atomic uint32_t *)ax_shm.control + atomic_load(&r->waits_word);

  return other < 0 || reached(word, atomic_load(&r->wanted)) ? -1 : other;
}

/* "rank 0 calls ... at train.lua:3 and waits for rank 1", for each rank of the circle. */
static ax_status circle(int n, const int *in)
{
  char text[900], call[200];
  size_t used = 0;

  for (int k = 0; k < n && used < sizeof text; k++) {
    ax_rank_record *r = record(in[k]);
    used +=
        (size_t)snprintf(text + used, sizeof text - used, "%srank %d calls %s at %.*s and waits for rank %d",
                         k ? "; " : "", in[k], ax_collective_text(&r->last, call, sizeof call), AX_WHERE_TEXT,
                         r->where, in[(k + 1) % n]);
  }
  return ax_fail(AX_EMISMATCH, "ranks wait for each other: %s", text);
}

/* EMISMATCH where this rank's wait leads back to itself.  *seen: how many looks in a row have found
 * so: one rank may just be waking up. */
static ax_status look_for_circle(int *seen)
{
  int in[AX_MAX_RANKS], n = 0, least = 0;

  for (int r = ax_shm.rank; n < AX_MAX_RANKS;) {
    in[n++] = r;
    r = awaited_by(r);
    if (r < 0) break;
    if (r != ax_shm.rank) continue;
    if (++*seen < 3) return AX_OK;
    for (int k = 1; k < n; k++) /* all begin with the lowest rank */
      if (in[k] < in[least]) least = k;
    int turned[AX_MAX_RANKS];
    for (int k = 0; k < n; k++) turned[k] = in[(least + k) % n];
    return circle(n, turned);
  }
  *seen = 0;
  return AX_OK;
}

/* The slow end of a wait: asleep, looking up in every slice. */
static ax_status sleep_for(ax_walk *g, int member, _Atomic uint32_t *word, uint32_t want)
{
  const int rank = g->local[member];
  ax_rank_record *r = record(rank);
  ax_counters *counters = g->counters[member];
  const int64_t given = atomic_load(&record(ax_shm.rank)->timeout);
  /* it may wait for ranks of other machines, and then says for which */
  const int64_t limit = given + (ax_shm.machines > 1 && rank == 0 ? 2 * (int64_t)1000000000 : 0);
  int64_t waited = 0, before = ax_monotonic_ns();
  const char *in = record(ax_shm.rank)->last.group;
  char text[400], name[48];
  int seen_circles = 0;
  ax_status st = AX_OK;

  note_wait(rank, word, want);
  for (;;) {
    uint32_t seen;
    int64_t now, left = limit - waited;
    bool finished;

    if (atomic_load_explicit(&ax_shm.control->abort, memory_order_acquire) != AX_ABORT_NONE) {
      st = reached(word, want) ? AX_OK : ax_shm_aborted();
      goto out;
    }
    if (atomic_load_explicit(&ax_shm.control->mismatch, memory_order_acquire) == AX_ABORT_PUBLISHED)
      AX_TRY(ax_ring_differs());
    finished = atomic_load_explicit(&r->state, memory_order_acquire) == AX_RANK_FINISHED;
    if (reached(word, want)) break;
    if (finished) AX_TRY(ax_shm_gone(rank));
    AX_TRY(ax_shm_interrupted());
    ax_shm_look();
    if (gave_up(r))
      AX_TRY(ax_fail(AX_EABORTED, "%s has left this with an error", ax_shm_name(rank, name, sizeof name)));
    AX_TRY(look_for_circle(&seen_circles));
    if (left <= 0)
      AX_TRY(ax_fail(AX_ETIMEOUT, "waited %g s%s%s for %s, which %s (%s sets the limit)",
                     (double)limit * 1e-9, *in ? " in " : "", in, ax_shm_name(rank, name, sizeof name),
                     ax_shm_doing(rank, text, sizeof text), ax_shm_limit_source(given)));
    atomic_fetch_add(&counters->sleepers, 1);
    seen = atomic_load(word);
    if ((int32_t)(seen - want) < 0) futex_wait(word, seen, left < SLICE_NS ? left : SLICE_NS);
    atomic_fetch_sub(&counters->sleepers, 1);
    now = ax_monotonic_ns();
    /* A slice that took much longer was spent stopped (Ctrl-Z, a debugger), not waiting. */
    if (!ax_hold_stands(ax_shm.control))
      waited += now - before < 2 * (int64_t)SLICE_NS ? now - before : SLICE_NS;
    before = now;
  }
out:
  atomic_store(&record(ax_shm.rank)->waits_for, -1);
  return st;
}

static ax_status wait_for(ax_walk *g, int member, _Atomic uint32_t *word, uint32_t want)
{
  if (reached(word, want)) return AX_OK;
  /* Three manners of waiting, each for as long as it pays: busy, while the other rank's write may
   * arrive within the time of a cache line; yielding the core, perhaps to the rank waited for;
   * asleep.  Cores that should be free may be taken by other programs: being busy then only keeps
   * the others from working, so its share shrinks with every wait that it did not end. */
  if (ax_shm.control->spin) {
    for (int i = 0; i < ax_shm.busy; i++) {
      relax();
      if (reached(word, want)) {
        ax_shm.busy = ax_shm.busy * 2 < BUSY ? ax_shm.busy * 2 : BUSY;
        return AX_OK;
      }
    }
    ax_shm.busy = ax_shm.busy / 2 > BUSY_LEAST ? ax_shm.busy / 2 : BUSY_LEAST;
  }
  for (int i = 0; i < YIELDS; i++) {
    sched_yield();
    if (reached(word, want)) return AX_OK;
  }
  return sleep_for(g, member, word, want);
}

/* ---- steps */

static slot_header *slot(const ax_walk *g, int rank, uint32_t step)
{
  return (slot_header *)(ax_shm.windows + ((size_t)g->local[rank] * AX_SLOTS + step % AX_SLOTS) *
                                              (AX_SLOT_HEADER + ax_shm.chunk));
}
const ax_collective_call *ax_step_call(ax_walk *g, int rank) { return &slot(g, rank, g->step)->call; }
ax_place ax_step_place(ax_walk *g, int rank) { return slot(g, rank, g->step)->place; }
void ax_step_set_place(ax_walk *g, const ax_place *place) { slot(g, g->rank, g->step)->place = *place; }
char *ax_step_slot(ax_walk *g, int rank) { return (char *)slot(g, rank, g->step) + AX_SLOT_HEADER; }

/* Waits until the others have read the own slots of all steps before `until`. */
static ax_status wait_read(ax_walk *g, uint32_t until)
{
  ax_status st = AX_OK;

  for (int r = 0; r < g->size; r++)
    if (r != g->rank) AX_TRY(wait_for(g, r, &g->counters[r]->done, until));
out:
  return st;
}

void ax_walk_free(ax_walk *g)
{
  ax_walk **at = &ax_shm.walks;

  g->left = true;
  if (ax_shm.last == g) return; /* others may be reading its slots */
  while (*at != g) at = &(*at)->next;
  *at = g->next;
  atomic_fetch_sub(&ax_shm.control->members[g->set], 1);
  ax_mfree(g->local);
  ax_mfree(g->counters);
  ax_mfree(g);
}

ax_status ax_step_turn_to(ax_walk *g)
{
  ax_walk *const last = ax_shm.last;
  ax_status st;

  if (last == g) return AX_OK;
  if (last && (st = wait_read(last, last->step)) != AX_OK) return st;
  ax_shm.last = g;
  if (last && last->left) ax_walk_free(last);
  return AX_OK;
}

void ax_walks_afresh(void)
{
  ax_shm.world.step = 0;
  for (ax_walk *w = ax_shm.walks; w; w = w->next) {
    w->step = 0;
    w->calls = 0;
  }
}

ax_status ax_step_begin(ax_walk *g) { return wait_read(g, g->step + 1 - AX_SLOTS); }

static void step_filled(ax_walk *g) { publish(g, &own(g)->filled, g->step + 1); }

void ax_step_fill(ax_walk *g) { step_filled(g); }

char *ax_step_slot_back(ax_walk *g, int rank, int back)
{
  return (char *)slot(g, rank, g->step - (uint32_t)back) + AX_SLOT_HEADER;
}

ax_status ax_step_wait_filled(ax_walk *g, int rank, int back)
{
  return wait_for(g, rank, &g->counters[rank]->filled, g->step + 1 - (uint32_t)back);
}

void ax_step_end_back(ax_walk *g, int back)
{
  const uint32_t read = g->step + 1 - (uint32_t)back;

  atomic_store_explicit(&own(g)->reduced, g->step + 1, memory_order_release);
  if (!reached(&own(g)->done, read)) publish(g, &own(g)->done, read);
  g->step++;
}

void ax_step_end(ax_walk *g)
{
  /* The three counters stay level: one that lagged by more than half their range would look like
   * one that is ahead. */
  atomic_store_explicit(&own(g)->reduced, g->step + 1, memory_order_release);
  publish(g, &own(g)->done, g->step + 1);
  g->step++;
}

void ax_step_reduced(ax_walk *g) { publish(g, &own(g)->reduced, g->step + 1); }
ax_status ax_step_wait_reduced(ax_walk *g, int rank)
{
  return wait_for(g, rank, &g->counters[rank]->reduced, g->step + 1);
}
static ax_status wait_filled(ax_walk *g, int rank) { return ax_step_wait_filled(g, rank, 0); }

/* Waits until all ranks have entered the collective, and compares their calls with the first
 * rank's.  The error names the first rank that differs, so that all ranks raise the same message,
 * and is raised as soon as both ranks have entered. */
static ax_status agree(ax_walk *g)
{
  ax_status st = AX_OK;

  for (int r = 0; r < g->size; r++) {
    if (r != g->rank) AX_TRY(wait_filled(g, r));
    if (r > 0 && !ax_collective_same(&ax_step_call(g, 0)->facts, &ax_step_call(g, r)->facts))
      return ax_calls_differ(ax_shm_world_rank(g->local[0]), ax_step_call(g, 0),
                             ax_shm_world_rank(g->local[r]), ax_step_call(g, r));
  }
out:
  return st;
}

ax_status ax_step_meet(ax_walk *g, bool first, int from)
{
  ax_status st = AX_OK;

  step_filled(g);
  if (first) return agree(g);
  for (int r = 0; r < g->size; r++)
    if (r != g->rank && (from < 0 || from == r)) AX_TRY(wait_filled(g, r));
out:
  return st;
}
void ax_step_header(ax_walk *g, const ax_collective *c)
{
  ax_collective_call *h = &slot(g, g->rank, g->step)->call;

  h->number = record(ax_shm.rank)->number;
  h->facts = *c;
  memcpy(h->where, record(ax_shm.rank)->where, sizeof h->where);
}

/* ---- copying
 *
 * How fast a core takes back lines that another has read depends on where the two are: 15 GB/s and
 * more within a group of cores that share a third-level cache, 2 GB/s across groups on some
 * processors, where writing around the caches is three times faster.  A virtual machine may be
 * moved from one case to the other at any time.  So every rank rates its bulk writes and changes
 * the manner when they are slow, but for a few steps now and then, which show whether they still
 * are. */

static void stream(char *to, const char *from, size_t n)
{
#if defined(__x86_64__)
  size_t i = 0;
  for (; i + 64 <= n; i += 64) { /* slots begin at cache lines */
    const __m128i a = _mm_loadu_si128((const __m128i *)(from + i)),
                  b = _mm_loadu_si128((const __m128i *)(from + i + 16));
    const __m128i c = _mm_loadu_si128((const __m128i *)(from + i + 32)),
                  d = _mm_loadu_si128((const __m128i *)(from + i + 48));
    _mm_prefetch(from + i + 1024, _MM_HINT_T0);
    _mm_stream_si128((__m128i *)(to + i), a);
    _mm_stream_si128((__m128i *)(to + i + 16), b);
    _mm_stream_si128((__m128i *)(to + i + 32), c);
    _mm_stream_si128((__m128i *)(to + i + 48), d);
  }
  _mm_sfence(); /* before the counter that publishes the data */
  to += i, from += i, n -= i;
#endif
  memcpy(to, from, n);
}

/* The best of a few counts, for a rank may lose its core meanwhile. */
static void rate(double bytes_per_ns)
{
  if (bytes_per_ns > ax_shm.best_rate) ax_shm.best_rate = bytes_per_ns;
  if (++ax_shm.rated < 4) return;
  ax_shm.slow_writes = ax_shm.best_rate < SLOW_WRITES;
  ax_shm.best_rate = 0;
  ax_shm.rated = 0;
}

void ax_step_put(ax_walk *g, size_t at, const void *from, size_t n)
{
  char *to = ax_step_slot(g, g->rank) + at;
  int64_t began;

  if (n < BULK) {
    if (n > 0) memcpy(to, from, n);
  } else if (ax_shm.slow_writes && at % 64 == 0 && (g->step & PROBE_EVERY) >= PROBES) {
    stream(to, from, n);
  } else {
    began = ax_monotonic_ns();
    memcpy(to, from, n);
    rate((double)n / (double)(ax_monotonic_ns() - began + 1));
  }
}

/* dist_shm.c: collectives between the ranks of one machine, over memory mapped before the fork.
 *
 * Each rank owns a window: a ring of SLOTS slots of CHUNK bytes, small enough that all of it stays in the second-level cache.  A collective
 * is a row of steps, and all ranks walk the same steps: fill a slot of the own window, publish `filled`, wait for the others' `filled`,
 * read their slots, publish `done`.  A slot is filled again when everybody's `done` has passed its last use; with several slots
 * that wait is almost always over before it starts, so a step costs one meeting of the ranks.
 *
 * A long all_reduce among more than two ranks reduces in two phases: rank r reduces part r of the chunk, publishes `reduced`, and copies
 * the other parts from the ranks that reduced them; the work per rank then does not grow with the number of ranks.
 *
 * The first slot of a collective carries what its owner asked for.  Every rank compares everybody's with its own, so a mismatch is
 * seen by all of them, and before any data is used.
 *
 * Waits spin for a moment if every thread has a core of its own, then sleep on a futex in slices, between which they look at
 * the abort flag, at whether the awaited rank has finished, and at the clock. */
#define _GNU_SOURCE
#include "core/dist_shm.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 4
#define CHUNK (64 << 10)
#define ONE_PHASE 4096              /* bytes up to which an all_reduce among many ranks is done in one phase */
#define BUSY 8000                   /* looks at the counter before a waiting rank offers its core to others: some 200 us */
#define BUSY_LEAST 40
#define YIELDS 4                    /* offers before it sleeps */
#define SLICE_NS 100000000          /* how long it sleeps between looks at the flags */

/* In front of the data of a slot. */
typedef struct slot_header {
  uint64_t number; /* which collective of the group this is */
  ax_collective facts;
  char where[AX_WHERE_TEXT];
} slot_header;

#define HEADER 256
_Static_assert(sizeof(slot_header) <= HEADER, "a slot's header must fit in front of its data");
#define WINDOW ((size_t)SLOTS * (HEADER + CHUNK))

typedef struct shm_state {
  ax_control *control;
  char *windows;
  uint32_t step;  /* steps walked since the start; the same on all ranks */
  int busy;       /* looks that a wait spends now, BUSY_LEAST to BUSY */
  bool broken;    /* a collective failed half-way: ranks may be at different steps */
  char why[1200];
} shm_state;

static shm_state state;
static ax_group group;

int64_t ax_monotonic_ns(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------------- */

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t ns)
{
  const struct timespec t = {ns / 1000000000, ns % 1000000000};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

static inline void relax(void)
{
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static ax_rank_record *record(int rank) { return &state.control->rank[rank]; }

/* Counters may wrap around. */
static inline bool reached(_Atomic uint32_t *word, uint32_t want)
{
  return (int32_t)(atomic_load_explicit(word, memory_order_acquire) - want) >= 0;
}

static void publish(_Atomic uint32_t *word, uint32_t value)
{
  ax_rank_record *me = record(group.rank);

  atomic_store_explicit(word, value, memory_order_release);
  atomic_thread_fence(memory_order_seq_cst); /* against the sleeper's: one of the two sees the other */
  if (atomic_load_explicit(&me->sleepers, memory_order_relaxed) != 0)
    futex_wake(word);
}

static const char *now_doing(int rank, char *buf, size_t size)
{
  ax_rank_record *r = record(rank);
  char text[96];
  uint64_t n = atomic_load(&r->collectives);

  if (n == 0)
    snprintf(buf, size, "has called none yet");
  else
    snprintf(buf, size, "last called #%llu, %s at %.*s", (unsigned long long)n, ax_collective_text(&r->last, text, sizeof text),
             AX_WHERE_TEXT, r->where);
  return buf;
}

static ax_status aborted(void)
{
  ax_control *c = state.control;
  int i;

  for (i = 0; i < 50 && atomic_load_explicit(&c->abort, memory_order_acquire) == AX_ABORT_CLAIMED; i++)
    usleep(1000); /* the first to fail is writing down why */
  if (atomic_load_explicit(&c->abort, memory_order_acquire) == AX_ABORT_TOLD)
    return ax_fail(AX_EABORTED, "%s", c->reason);
  return ax_fail(AX_EABORTED, "another rank failed");
}

/* The slow end of a wait: asleep, looking up in every slice. */
static ax_status sleep_for(int rank, _Atomic uint32_t *word, uint32_t want)
{
  ax_rank_record *r = record(rank);
  const int64_t limit = (int64_t)(state.control->timeout * 1e9);
  int64_t waited = 0, before = ax_monotonic_ns();
  char text[400];

  for (;;) {
    uint32_t seen;
    int64_t now, left = limit - waited;
    bool finished;

    if (atomic_load_explicit(&state.control->abort, memory_order_acquire) != AX_ABORT_NONE)
      return reached(word, want) ? AX_OK : aborted();
    finished = atomic_load_explicit(&r->state, memory_order_acquire) == AX_RANK_FINISHED;
    if (reached(word, want))
      return AX_OK;
    if (finished)
      return ax_fail(AX_EABORTED, "rank %d has finished and will not take part in this (it %s)", rank,
                     now_doing(rank, text, sizeof text));
    if (left <= 0)
      return ax_fail(AX_ETIMEOUT, "waited %g s for rank %d, which %s (--timeout sets the limit)", state.control->timeout, rank,
                     now_doing(rank, text, sizeof text));
    atomic_fetch_add(&r->sleepers, 1);
    seen = atomic_load(word);
    if ((int32_t)(seen - want) < 0)
      futex_wait(word, seen, left < SLICE_NS ? left : SLICE_NS);
    atomic_fetch_sub(&r->sleepers, 1);
    now = ax_monotonic_ns();
    /* A slice that took much longer was spent stopped (Ctrl-Z, a debugger), not waiting. */
    waited += now - before < 2 * (int64_t)SLICE_NS ? now - before : SLICE_NS;
    before = now;
  }
}

static ax_status wait_for(int rank, _Atomic uint32_t *word, uint32_t want)
{
  int i;

  if (reached(word, want))
    return AX_OK;
  /* Three manners of waiting, each for as long as it pays: busy, while the answer is a cache line away; giving the core to whoever wants
   * it, which may be the rank waited for; asleep.  Cores that should be free may be taken by other programs: being busy then only keeps
   * the others from working, so its share shrinks with every wait that it did not end. */
  if (state.control->spin) {
    for (i = 0; i < state.busy; i++) {
      relax();
      if (reached(word, want)) {
        state.busy = state.busy * 2 < BUSY ? state.busy * 2 : BUSY;
        return AX_OK;
      }
    }
    state.busy = state.busy / 2 > BUSY_LEAST ? state.busy / 2 : BUSY_LEAST;
  }
  for (i = 0; i < YIELDS; i++) {
    sched_yield();
    if (reached(word, want))
      return AX_OK;
  }
  return sleep_for(rank, word, want);
}

/* ---- steps ------------------------------------------------------------------------------------------------------------- */

static slot_header *slot(int rank, uint32_t step)
{
  return (slot_header *)(state.windows + (size_t)rank * WINDOW + (size_t)(step % SLOTS) * (HEADER + CHUNK));
}
static char *slot_data(int rank, uint32_t step) { return (char *)slot(rank, step) + HEADER; }

/* Waits until nobody reads the slot of this step any more. */
static ax_status step_begin(void)
{
  ax_status st = AX_OK;
  int r;

  for (r = 0; r < group.size; r++)
    if (r != group.rank)
      AX_TRY(wait_for(r, &record(r)->done, state.step + 1 - SLOTS));
out:
  return st;
}

static void step_filled(void) { publish(&record(group.rank)->filled, state.step + 1); }

static void step_end(void)
{
  /* The three counters stay level: one that lagged by more than half their range would look like one that is ahead. */
  atomic_store_explicit(&record(group.rank)->reduced, state.step + 1, memory_order_release);
  publish(&record(group.rank)->done, state.step + 1);
  state.step++;
}

static ax_status wait_filled(int rank) { return wait_for(rank, &record(rank)->filled, state.step + 1); }

static void describe(int rank, char *buf, size_t size)
{
  const slot_header *h = slot(rank, state.step);
  char text[96];

  snprintf(buf, size, "rank %d calls %s%s%.*s", rank, ax_collective_text(&h->facts, text, sizeof text), h->where[0] ? " at " : "",
           AX_WHERE_TEXT, h->where);
}

static bool same_facts(const ax_collective *a, const ax_collective *b)
{
  return a->op == b->op && a->dtype == b->dtype && a->reduction == b->reduction && a->root == b->root && a->count == b->count;
}

/* Waits for everybody to have entered the collective and compares what they want.  Rank 0's wish is the measure, and the first rank that
 * differs from it is named, so that all ranks raise the same message; that is done as soon as those two are here. */
static ax_status agree(void)
{
  ax_status st = AX_OK;
  int r;

  for (r = 0; r < group.size; r++) {
    if (r != group.rank)
      AX_TRY(wait_filled(r));
    if (!same_facts(&slot(0, state.step)->facts, &slot(r, state.step)->facts)) {
      char a[300], b[300];
      describe(0, a, sizeof a);
      describe(r, b, sizeof b);
      return ax_fail(AX_EMISMATCH, "ranks disagree in collective #%llu: %s; %s", (unsigned long long)slot(0, state.step)->number, a, b);
    }
  }
out:
  return st;
}

/* Publishes the filled slot and waits for those whose slots this rank is going to read; in the first step, for everybody. */
static ax_status step_meet(bool first, int from)
{
  ax_status st = AX_OK;
  int r;

  step_filled();
  if (first)
    return agree();
  for (r = 0; r < group.size; r++)
    if (r != group.rank && (from < 0 || from == r))
      AX_TRY(wait_filled(r));
out:
  return st;
}
#define FROM_ALL (-1)

static void put_header(const ax_collective *c)
{
  slot_header *h = slot(group.rank, state.step);

  h->number = atomic_load_explicit(&record(group.rank)->collectives, memory_order_relaxed);
  h->facts = *c;
  memcpy(h->where, record(group.rank)->where, sizeof h->where);
}

/* ---- collectives ----------------------------------------------------------------------------------------------------------- */

/* One chunk of an all_reduce in one phase: every rank reduces all of it. */
static ax_status reduce_all(const ax_collective *c, const char *in, char *out, size_t len, bool first)
{
  const size_t item = ax_dtype_size(c->dtype);
  const void *parts[AX_MAX_RANKS];
  ax_status st = AX_OK;
  int r;

  memcpy(slot_data(group.rank, state.step), in, len * item);
  AX_TRY(step_meet(first, FROM_ALL));
  for (r = 0; r < group.size; r++)
    parts[r] = r == group.rank ? in : slot_data(r, state.step);
  ax_reduce(c->dtype, c->reduction, out, parts, group.size, len);
out:
  return st;
}

/* One chunk in two phases.  Parts begin at whole cache lines. */
static ax_status reduce_parts(const ax_collective *c, const char *in, char *out, size_t len, bool first)
{
  const size_t item = ax_dtype_size(c->dtype), line = 64 / item, n = (size_t)group.size;
  const size_t per = (len + n * line - 1) / (n * line) * line;
  const size_t my_at = per * (size_t)group.rank < len ? per * (size_t)group.rank : len;
  const size_t my_len = len - my_at < per ? len - my_at : per;
  const void *parts[AX_MAX_RANKS];
  char *mine = slot_data(group.rank, state.step);
  ax_status st = AX_OK;
  int r, k;

  memcpy(mine, in, my_at * item);
  memcpy(mine + (my_at + my_len) * item, in + (my_at + my_len) * item, (len - my_at - my_len) * item);
  AX_TRY(step_meet(first, FROM_ALL));
  for (r = 0; r < group.size; r++)
    parts[r] = (r == group.rank ? in : slot_data(r, state.step)) + my_at * item;
  ax_reduce(c->dtype, c->reduction, mine + my_at * item, parts, group.size, my_len);
  publish(&record(group.rank)->reduced, state.step + 1);
  for (k = 0; k < group.size; k++) {
    size_t at, part;
    r = (group.rank + k) % group.size; /* everybody starts elsewhere */
    at = per * (size_t)r < len ? per * (size_t)r : len;
    part = len - at < per ? len - at : per;
    if (r != group.rank)
      AX_TRY(wait_for(r, &record(r)->reduced, state.step + 1));
    memcpy(out + at * item, slot_data(r, state.step) + at * item, part * item);
  }
out:
  return st;
}

static ax_status all_reduce(const ax_collective *c)
{
  const size_t item = ax_dtype_size(c->dtype), most = CHUNK / item, count = (size_t)c->count;
  const bool in_parts = group.size > 2 && count * item > ONE_PHASE;
  ax_status st = AX_OK;
  size_t at = 0, len;

  do {
    len = count - at < most ? count - at : most;
    AX_TRY(step_begin());
    if (at == 0)
      put_header(c);
    AX_TRY((in_parts ? reduce_parts : reduce_all)(c, (const char *)c->in + at * item, (char *)c->out + at * item, len, at == 0));
    step_end();
    at += len;
  } while (at < count);
out:
  return st;
}

/* Also the barrier, with nothing to send. */
static ax_status broadcast(const ax_collective *c)
{
  const size_t item = ax_dtype_size(c->dtype), bytes = (size_t)c->count * item;
  const bool sends = group.rank == c->root;
  ax_status st = AX_OK;
  size_t at = 0, len;

  do {
    len = bytes - at < CHUNK ? bytes - at : CHUNK;
    AX_TRY(step_begin());
    if (at == 0)
      put_header(c);
    if (sends && len > 0)
      memcpy(slot_data(group.rank, state.step), (const char *)c->in + at, len);
    AX_TRY(step_meet(at == 0, c->root));
    if (!sends && len > 0)
      memcpy((char *)c->out + at, slot_data(c->root, state.step), len);
    step_end();
    at += len;
  } while (at < bytes);
  if (sends && bytes > 0 && c->out != c->in)
    memcpy(c->out, c->in, bytes);
out:
  return st;
}

/* all_gather, and gather where only the root reads. */
static ax_status gather(const ax_collective *c, bool reads)
{
  const size_t item = ax_dtype_size(c->dtype), bytes = (size_t)c->count * item;
  ax_status st = AX_OK;
  size_t at = 0, len;
  int r, k;

  do {
    len = bytes - at < CHUNK ? bytes - at : CHUNK;
    AX_TRY(step_begin());
    if (at == 0)
      put_header(c);
    if (len > 0)
      memcpy(slot_data(group.rank, state.step), (const char *)c->in + at, len);
    AX_TRY(step_meet(at == 0, reads ? FROM_ALL : group.rank));
    for (k = 0; reads && len > 0 && k < group.size; k++) {
      r = (group.rank + k) % group.size;
      memcpy((char *)c->out + (size_t)r * bytes + at, r == group.rank ? (const char *)c->in + at : slot_data(r, state.step), len);
    }
    step_end();
    at += len;
  } while (at < bytes);
out:
  return st;
}

/* A slot holds a piece of each rank's part. */
static ax_status reduce_scatter(const ax_collective *c)
{
  const size_t item = ax_dtype_size(c->dtype), count = (size_t)c->count;
  const size_t room = CHUNK / (size_t)group.size / 64 * 64, most = room / item;
  const void *parts[AX_MAX_RANKS];
  ax_status st = AX_OK;
  size_t at = 0, len;
  int r;

  do {
    len = count - at < most ? count - at : most;
    AX_TRY(step_begin());
    if (at == 0)
      put_header(c);
    for (r = 0; len > 0 && r < group.size; r++)
      if (r != group.rank)
        memcpy(slot_data(group.rank, state.step) + (size_t)r * room, (const char *)c->in + ((size_t)r * count + at) * item, len * item);
    AX_TRY(step_meet(at == 0, FROM_ALL));
    for (r = 0; r < group.size; r++)
      parts[r] = r == group.rank ? (const char *)c->in + ((size_t)r * count + at) * item
                                 : slot_data(r, state.step) + (size_t)group.rank * room;
    if (len > 0)
      ax_reduce(c->dtype, c->reduction, (char *)c->out + at * item, parts, group.size, len);
    step_end();
    at += len;
  } while (at < count);
out:
  return st;
}

/* ---- the transport ----------------------------------------------------------------------------------------------------------- */

/* Order matters to the launcher, which reads at any time: what happens, then that it does. */
static void enter(const ax_collective *c)
{
  ax_rank_record *me = record(group.rank);

  me->last = *c;
  memcpy(me->where, ax_dist_where(), sizeof me->where); /* of the same size: dist.c */
  atomic_store_explicit(&me->since, ax_monotonic_ns(), memory_order_relaxed);
  atomic_fetch_add_explicit(&me->collectives, 1, memory_order_relaxed);
  atomic_store_explicit(&me->state, AX_RANK_WAITING, memory_order_release);
}

static void leave(ax_status st)
{
  ax_rank_record *me = record(group.rank);

  if (st == AX_OK) { /* `since` of a failed one stays: the launcher tells how long it waited */
    atomic_store_explicit(&me->since, ax_monotonic_ns(), memory_order_relaxed);
    atomic_store_explicit(&me->state, AX_RANK_RUNNING, memory_order_release);
    return;
  }
  atomic_store_explicit(&me->state, AX_RANK_GIVEN_UP, memory_order_release);
  state.broken = true;
  snprintf(state.why, sizeof state.why, "%s", ax_last_error());
}

static ax_status shm_issue(ax_group *g, const ax_collective *given, ax_work **work)
{
  ax_collective c = *given;
  ax_status st;

  *work = NULL; /* it is over before this returns */
  if (state.broken)
    return ax_fail(AX_EABORTED, "an earlier collective failed: %s", state.why);
  if (c.op == AX_BARRIER)
    c = (ax_collective){.op = AX_BARRIER};
  enter(&c);
  if (atomic_load_explicit(&state.control->abort, memory_order_acquire) != AX_ABORT_NONE) {
    st = aborted();
  } else {
    switch (c.op) {
    case AX_ALL_REDUCE: st = all_reduce(&c); break;
    case AX_BROADCAST: case AX_BARRIER: st = broadcast(&c); break;
    case AX_ALL_GATHER: st = gather(&c, true); break;
    case AX_GATHER: st = gather(&c, g->rank == c.root); break;
    case AX_REDUCE_SCATTER: st = reduce_scatter(&c); break;
    default: st = ax_fail(AX_ENOIMPL, "the shm group has no collective number %d", (int)c.op);
    }
  }
  leave(st);
  return st;
}

static ax_status shm_wait(ax_group *g, ax_work *work)
{
  (void)g, (void)work;
  return AX_OK;
}

static void shm_close(ax_group *g)
{
  ax_shm_finished(state.control, g->rank);
}

static const ax_transport shm = {"shm", shm_issue, shm_wait, shm_close};

static size_t records_bytes(int ranks)
{
  const size_t page = 4096;
  return (sizeof(ax_control) + (size_t)ranks * sizeof(ax_rank_record) + page - 1) / page * page;
}

ax_status ax_shm_create(int ranks, double timeout, bool spin, ax_control **out)
{
  const size_t bytes = records_bytes(ranks) + (size_t)ranks * WINDOW;
  ax_control *c;

  *out = NULL;
  if (ranks < 1 || ranks > AX_MAX_RANKS)
    return ax_fail(AX_EINVAL, "the number of ranks must be 1 to %d, got %d", AX_MAX_RANKS, ranks);
  c = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (c == MAP_FAILED)
    return ax_fail(AX_ENOMEM, "%zu bytes of memory shared by %d ranks: %s", bytes, ranks, strerror(errno));
  c->ranks = ranks;
  c->failed_rank = -1;
  c->timeout = timeout;
  c->spin = spin;
  *out = c;
  return AX_OK;
}

ax_status ax_shm_join(ax_control *c, int rank)
{
  state = (shm_state){.control = c, .busy = BUSY, .windows = (char *)c + records_bytes(c->ranks)};
  group = (ax_group){&shm, &state, rank, c->ranks, rank, c->ranks};
  c->rank[rank].pid = (int32_t)getpid();
  atomic_store(&c->rank[rank].since, ax_monotonic_ns());
  atomic_store(&c->rank[rank].state, AX_RANK_RUNNING);
  ax_dist_set_world(&group);
  return AX_OK;
}

static void wake_waiters_of(ax_rank_record *r)
{
  futex_wake(&r->filled);
  futex_wake(&r->reduced);
  futex_wake(&r->done);
}

bool ax_shm_abort(ax_control *c, int failed_rank, const char *reason)
{
  uint32_t none = AX_ABORT_NONE;
  int r;

  if (!atomic_compare_exchange_strong(&c->abort, &none, AX_ABORT_CLAIMED))
    return false;
  c->failed_rank = failed_rank;
  snprintf(c->reason, sizeof c->reason, "%s", reason);
  atomic_store(&c->abort, AX_ABORT_TOLD);
  for (r = 0; r < c->ranks; r++)
    wake_waiters_of(&c->rank[r]);
  return true;
}

void ax_shm_finished(ax_control *c, int rank)
{
  atomic_store(&c->rank[rank].state, AX_RANK_FINISHED);
  wake_waiters_of(&c->rank[rank]);
}

/* dist/shm.c: the group of the ranks of one machine: the memory that is mapped before the fork, and
 * what launchers read of it.  shm_collectives.c moves the data. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/core.h"
#include "core/dist/links.h"

#define WINDOWS_BYTES ((size_t)32 << 20) /* that all windows together may take, about */
#define CHUNK_MOST (256 << 10)
#define CHUNK_LEAST (32 << 10)

static ax_group group;
static bool broken; /* a collective failed half-way: ranks may be at different steps */
static char why[1200];

static ax_rank_record *own_record(void) { return &ax_shm.control->rank[ax_shm.rank]; }

/* ---- what launchers read */

void ax_busy_begin(const char *what, const char *name)
{
  ax_rank_record *me = ax_shm.control ? own_record() : NULL;

  if (!me || me->pid != (int32_t)syscall(SYS_gettid)) return; /* a worker, or a thread that writes */
  snprintf(me->busy, sizeof me->busy, "%s%s%s", what, *name ? " " : "", name);
  atomic_store_explicit(&me->busy_since, ax_monotonic_ns(), memory_order_release);
}

void ax_busy_end(void)
{
  ax_rank_record *me = ax_shm.control ? own_record() : NULL;

  if (me && me->pid == (int32_t)syscall(SYS_gettid))
    atomic_store_explicit(&me->busy_since, 0, memory_order_release);
}

ax_rank_record *ax_rank_own(void) { return ax_shm.control ? own_record() : NULL; }

static void (*on_look)(void);
void ax_shm_on_look(void (*fn)(void)) { on_look = fn; }
void ax_shm_look(void)
{
  ax_rank_record *me = ax_shm.control ? own_record() : NULL;

  if (me && on_look && atomic_load_explicit(&me->looks, memory_order_relaxed) != atomic_load(&me->looked))
    on_look();
}

/* Rank 0 chooses from which collective on all ranks act: one that no rank can have entered yet.
 * Ranks that meet are at most one ahead of each other, those whose devices meet AX_RING. */
static void choose_signal(uint64_t number)
{
  ax_control *c = ax_shm.control;

  if (atomic_load_explicit(&c->signal, memory_order_relaxed) == 0 || ax_dist_world()->rank != 0 ||
      atomic_load(&c->signal_from) != 0)
    return;
  atomic_store(&c->signal_from, number + (ax_shm.world.posts ? AX_RING + 1 : 2));
}

bool ax_signal_handle(int sig)
{
  if (ax_shm.control) atomic_fetch_or(&ax_shm.control->handled, 1u << sig);
  return ax_shm.control != NULL;
}

int ax_signal_due(void)
{
  static bool acted;
  ax_control *c = ax_shm.control;
  uint64_t from;

  if (!c || acted || atomic_load_explicit(&c->signal, memory_order_relaxed) == 0) return 0;
  from = atomic_load(&c->signal_from);
  acted = ax_dist_world()->size == 1 || (from != 0 && atomic_load(&own_record()->world_calls) >= from);
  return acted ? (int)atomic_load(&c->signal) : 0;
}

static ax_flight *flight_of(ax_rank_record *me)
{
  return &me->flight[atomic_load_explicit(&me->collectives, memory_order_relaxed) % AX_FLIGHT];
}

/* ---- the transport */

/* Order matters to the launcher, which reads at any time: what happens, then that it does. */
void ax_shm_enter(const ax_collective *c, uint64_t number)
{
  ax_rank_record *me = own_record();
  const uint64_t entry = atomic_load_explicit(&me->collectives, memory_order_relaxed) + 1;
  const int64_t now = ax_monotonic_ns();
  ax_flight *f = &me->flight[entry % AX_FLIGHT];

  if (number == 0) {
    number = atomic_load_explicit(&me->world_calls, memory_order_relaxed) + 1;
    choose_signal(number);
    atomic_store_explicit(&me->world_calls, number, memory_order_relaxed);
  }
  me->last = *c;
  me->number = number;
  memcpy(me->where, ax_dist_where(), sizeof me->where);
  atomic_store_explicit(&me->since, now, memory_order_relaxed);
  f->entry = entry;
  f->number = number;
  f->entered = now;
  f->left = 0;
  f->status = AX_OK;
  f->posted = c->kind != AX_CPU;
  f->facts = *c;
  memcpy(f->where, me->where, sizeof f->where);
  atomic_store_explicit(&me->collectives, entry, memory_order_relaxed);
  atomic_store_explicit(&me->state, AX_RANK_WAITING, memory_order_release);
}

void ax_shm_leave(ax_status st)
{
  ax_rank_record *me = own_record();
  ax_flight *f = flight_of(me);

  f->left = ax_monotonic_ns();
  f->status = (int32_t)st;
  if (st == AX_ETIMEOUT) atomic_store(&ax_shm.control->timed_out, 1);
  if (st == AX_OK) { /* `since` of a failed one stays: the launcher reports how long it waited */
    atomic_store_explicit(&me->since, f->left, memory_order_relaxed);
    atomic_store_explicit(&me->state, AX_RANK_RUNNING, memory_order_release);
    return;
  }
  atomic_store_explicit(&me->state, AX_RANK_GIVEN_UP, memory_order_release);
  broken = true;
  snprintf(why, sizeof why, "%s", ax_last_error());
}

/* After a failure ranks may be at different steps. */
ax_status ax_shm_refuse_broken(void)
{
  return broken ? ax_fail(AX_EABORTED, "an earlier collective failed: %s", why) : AX_OK;
}

static ax_status shm_look(ax_group *g, int64_t since, ax_status given)
{
  const ax_status st = ax_ring_look(g, since, given);

  if (st != AX_OK) ax_shm_leave(st);
  return st;
}

/* The collectives until now count as posted: no rank will compare them. */
static void shm_post_all(ax_group *g)
{
  ax_walk *const w = g->state;
  const uint64_t calls = w == &ax_shm.world ? atomic_load(&own_record()->world_calls) : w->calls;

  w->posts = true;
  atomic_store(&w->counters[w->rank]->posted, calls);
}

static ax_status shm_watch(ax_group *g, const ax_collective_call *p, int64_t waited)
{
  return ax_ring_watch(g->state, p, waited);
}

/* A walk that has no more than two ranks: the one that sends, and the one that receives. */
typedef struct pair {
  ax_walk walk;
  int local[2];
  ax_counters *counters[2];
} pair;

/* The steps between this rank and another one, in each direction; made when they are first
 * needed. */
static ax_status pair_of(ax_walk *g, const ax_collective *c, ax_walk **out)
{
  static pair *made[2][AX_MAX_RANKS]; /* this rank sends; it receives */
  const bool sends = c->op == AX_SEND;
  const int me = ax_shm.rank, other = g->local[c->root];
  pair **p = &made[!sends][other];

  *out = NULL;
  if (!*p) {
    if (!(*p = ax_calloc(1, sizeof **p))) return AX_ENOMEM;
    const int from = sends ? me : other, to = sends ? other : me;
    (*p)->local[0] = from;
    (*p)->local[1] = to;
    for (int k = 0; k < 2; k++) (*p)->counters[k] = ax_pair_counters(from, to, (*p)->local[k]);
    (*p)->walk =
        (ax_walk){ .rank = !sends, .size = 2, .set = -1, .posts = true, .ring_length = AX_PAIR_RING };
    (*p)->walk.local = (*p)->local;
    (*p)->walk.counters = (*p)->counters;
    (*p)->walk.ring = ax_pair_ring(from, to);
    (*p)->walk.next = ax_shm.walks;
    ax_shm.walks = &(*p)->walk;
  }
  *out = &(*p)->walk;
  return AX_OK;
}

/* Enters a collective of g and compares it where ranks may not meet in it: before they do, or where
 * a device carries it. */
static ax_status enter(ax_walk *g, const ax_collective *c)
{
  ax_shm_enter(c, g == &ax_shm.world ? 0 : ++g->calls);
  if (atomic_load_explicit(&ax_shm.control->abort, memory_order_acquire) != AX_ABORT_NONE)
    return ax_shm_aborted();
  return g->posts ? ax_ring_post(g, c) : AX_OK;
}

static ax_status shm_post(ax_group *group, const ax_collective *c, uint64_t *number)
{
  ax_walk *g = group->state;
  ax_status st;

  if ((st = ax_shm_refuse_broken()) != AX_OK) return st;
  if (c->op == AX_SEND || c->op == AX_RECV) AX_TRY(pair_of(g, c, &g));
  st = enter(g, c);
  *number = own_record()->number;
  ax_shm_leave(st);
out:
  return st;
}

static ax_status carry(ax_walk *g, const ax_collective *given)
{
  ax_collective c = *given;
  ax_status st;

  if ((st = ax_shm_refuse_broken()) != AX_OK) return st;
  if (c.op == AX_SEND || c.op == AX_RECV) AX_TRY(pair_of(g, given, &g));
  if (c.op == AX_BARRIER) c = (ax_collective){ .op = AX_BARRIER };
  memcpy(c.group, given->group, sizeof c.group);
  if ((st = enter(g, &c)) == AX_OK && (st = ax_step_turn_to(g)) == AX_OK) st = ax_shm_collective(g, &c);
  ax_shm_leave(st);
out:
  return st;
}

static ax_status shm_issue(ax_group *g, const ax_collective *c, int n, uint64_t *ticket)
{
  ax_status st = AX_OK;

  *ticket = 0; /* they are over before this returns */
  for (int k = 0; k < n && st == AX_OK; k++) st = carry(g->state, &c[k]);
  return st;
}

/* ---- groups of some ranks */

int ax_shm_take_set(int n)
{
  ax_control *const c = ax_shm.control;

  for (int set = 1; set < AX_MAX_GROUPS; set++) {
    uint32_t free = 0;
    if (!atomic_compare_exchange_strong(&c->members[set], &free, (uint32_t)n)) continue;
    memset((void *)ax_set_counters(set, 0), 0, (size_t)c->ranks * sizeof(ax_counters));
    return set;
  }
  return -1;
}

static const ax_transport shm_part;

static ax_status new_walk(ax_group *g, int set)
{
  ax_walk *w = ax_calloc(1, sizeof *w);

  if (w) w->local = ax_calloc((size_t)g->size, sizeof *w->local);
  if (w) w->counters = ax_calloc((size_t)g->size, sizeof *w->counters);
  if (!w || !w->local || !w->counters) {
    if (w) ax_mfree(w->local), ax_mfree(w->counters), ax_mfree(w);
    return AX_ENOMEM;
  }
  w->rank = g->rank;
  w->size = g->size;
  w->set = set;
  w->ring = ax_set_ring(set);
  w->ring_length = AX_RING;
  for (int k = 0; k < g->size; k++) {
    w->local[k] = g->members[k] - ax_shm.first;
    w->counters[k] = ax_set_counters(set, w->local[k]);
  }
  w->next = ax_shm.walks;
  ax_shm.walks = g->state = w;
  g->transport = &shm_part;
  return AX_OK;
}

ax_status ax_shm_part(ax_group *g, int set)
{
  ax_status st;

  if (set < 0)
    return ax_fail(AX_ENOMEM, "%s: %d groups are open at once, which is the most: release some", g->name,
                   AX_MAX_GROUPS);
  st = new_walk(g, set);
  /* the others go on without us, and will miss us */
  if (st != AX_OK) atomic_fetch_sub(&ax_shm.control->members[set], 1);
  return st;
}

/* The first rank of each new group takes a set of counters for it, and all learn which. */
static ax_status shm_split(ax_group *from, ax_group *g)
{
  int64_t mine = g->rank == 0 && g->size > 1 ? ax_shm_take_set(g->size) : 0, *all;
  ax_collective c = { .op = AX_ALL_GATHER, .dtype = AX_I64, .count = 1, .in = &mine };
  ax_status st;
  int first = 0;

  if (!(all = ax_malloc((size_t)from->size * sizeof *all))) return AX_ENOMEM;
  memcpy(c.group, from->name, sizeof c.group);
  c.out = all;
  AX_TRY(carry(from->state, &c));
  if (g->size <= 1) goto out;
  while (first < from->size && ax_group_world_rank(from, first) != g->members[0]) first++;
  st = ax_shm_part(g, (int)all[first]);
out:
  ax_mfree(all);
  return st;
}

static void part_leave(ax_group *g, bool abort)
{
  (void)abort;
  ax_walk_free(g->state);
  g->state = NULL;
}

static bool part_retire(ax_group *g)
{
  const ax_walk *w = g->state;
  bool all = true;

  atomic_store(&w->counters[w->rank]->left, 1);
  for (int k = 0; k < w->size; k++) all = all && atomic_load(&w->counters[k]->left);
  return all;
}

static const ax_transport shm_part = {
  .name = "shm",
  .issue = shm_issue,
  .leave = part_leave,
  .split = shm_split,
  .post = shm_post,
  .post_all = shm_post_all,
  .watch = shm_watch,
  .retire = part_retire,
};

static void shm_leave(ax_group *g, bool abort)
{
  (void)abort;
  ax_shm_finished(ax_shm.control, g->rank);
}

static void shm_set_timeout(ax_group *g, double seconds)
{
  atomic_store(&ax_shm.control->rank[g->rank].timeout, (int64_t)(seconds * 1e9));
}

static const ax_transport shm = {
  .name = "shm",
  .issue = shm_issue,
  .leave = shm_leave,
  .set_timeout = shm_set_timeout,
  .split = shm_split,
  .post = shm_post,
  .look = shm_look,
  .post_all = shm_post_all,
  .watch = shm_watch,
};

static size_t records_bytes(int ranks)
{
  const size_t page = 4096;
  return (sizeof(ax_control) + (size_t)ranks * sizeof(ax_rank_record) + page - 1) / page * page;
}

/* Of groups, and of pairs of ranks; pages that nobody touches where there are no devices. */
static size_t rings_bytes(int ranks)
{
  const size_t n = (size_t)ranks, page = 4096, calls = AX_MAX_GROUPS * n * AX_RING + 2 * n * n * AX_PAIR_RING;
  return (calls * sizeof(ax_collective_call) + page - 1) / page * page;
}

/* Smaller for many ranks, to the same sum. */
static size_t chunk_of(int ranks)
{
  size_t chunk = CHUNK_MOST;
  while (chunk > CHUNK_LEAST && (size_t)ranks * AX_SLOTS * chunk > WINDOWS_BYTES) chunk /= 2;
  return chunk;
}

/* Of groups, and of pairs of ranks; nearly all of these pages are never touched. */
static size_t counters_bytes(int ranks)
{
  const size_t n = (size_t)ranks, page = 4096;
  return ((AX_MAX_GROUPS * n + 2 * n * n) * sizeof(ax_counters) + page - 1) / page * page;
}

static size_t bytes_of(int ranks)
{
  return records_bytes(ranks) + rings_bytes(ranks) + counters_bytes(ranks) +
         (size_t)ranks * AX_SLOTS * (AX_SLOT_HEADER + chunk_of(ranks));
}

void ax_shm_free(ax_control *c) { munmap(c, bytes_of(c->ranks)); }

void ax_shm_saved(const char *path)
{
  ax_control *c = ax_shm.control;
  char whole[PATH_MAX];

  if (!c || !realpath(path, whole) || strlen(whole) >= sizeof c->newest) return;
  strcpy(c->newest, whole);
  atomic_fetch_add(&c->saved, 1);
}

static ax_status map(int file, int ranks, ax_control **out)
{
  const size_t bytes = bytes_of(ranks);
  const int flags = MAP_SHARED | MAP_NORESERVE | (file < 0 ? MAP_ANONYMOUS : 0);
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, file, 0);

  *out = p == MAP_FAILED ? NULL : p;
  if (*out) return AX_OK;
  return ax_fail(AX_ENOMEM, "%zu bytes of memory shared by %d ranks: %s", bytes, ranks, strerror(errno));
}

/* A file without a name: /dev/shm is small in containers. */
static int make_file(size_t bytes)
{
  const int file = memfd_create("accel-run", MFD_CLOEXEC);

  if (file < 0 || ftruncate(file, (off_t)bytes) == 0) return file;
  close(file);
  return -1;
}

ax_status ax_shm_create(int ranks, double timeout, bool spin, int *file, ax_control **out)
{
  ax_status st;

  *out = NULL;
  if (ranks < 1 || ranks > AX_MAX_RANKS)
    return ax_fail(AX_EINVAL, "the number of ranks must be 1 to %d, got %d", AX_MAX_RANKS, ranks);
  if (file && (*file = make_file(bytes_of(ranks))) < 0)
    return ax_fail(AX_ENOMEM, "memory shared by %d ranks: %s", ranks, strerror(errno));
  if ((st = map(file ? *file : -1, ranks, out)) != AX_OK) {
    if (file) close(*file);
    return st;
  }
  (*out)->ranks = ranks;
  (*out)->failed_rank = -1;
  (*out)->timeout = timeout;
  (*out)->spin = spin;
  return AX_OK;
}

ax_status ax_shm_map(int file, int ranks, ax_control **out)
{
  ax_status st = map(file, ranks, out);

  if (st == AX_OK && (*out)->ranks != ranks)
    st = ax_fail(AX_EINVAL, "the memory is shared by %d ranks, and not %d", (*out)->ranks, ranks);
  return st;
}

/* The ranks of this machine, in their order. */
static void walk_of_all(ax_walk *w, int rank, int ranks)
{
  static int local[AX_MAX_RANKS];
  static ax_counters *counters[AX_MAX_RANKS];

  for (int r = 0; r < ranks; r++) {
    local[r] = r;
    counters[r] = ax_set_counters(0, r);
  }
  *w = (ax_walk){ .rank = rank,
                  .size = ranks,
                  .local = local,
                  .counters = counters,
                  .ring = ax_set_ring(0),
                  .ring_length = AX_RING };
}

ax_status ax_shm_join(ax_control *c, int rank)
{
  char *const rings = (char *)c + records_bytes(c->ranks), *const counters = rings + rings_bytes(c->ranks);

  ax_shm = (ax_steps){
    .control = c,
    .rings = (ax_collective_call *)rings,
    .counters = (ax_counters *)counters,
    .windows = counters + counters_bytes(c->ranks),
    .chunk = chunk_of(c->ranks),
    .rank = rank,
    .size = c->ranks,
  };
  walk_of_all(&ax_shm.world, rank, c->ranks);
  group = (ax_group){ .transport = &shm,
                      .state = &ax_shm.world,
                      .rank = rank,
                      .size = c->ranks,
                      .local_rank = rank,
                      .local_size = c->ranks };
  shm_set_timeout(&group, c->timeout);
  atomic_store(&c->rank[rank].waits_for, -1);
  c->rank[rank].pid = (int32_t)getpid();
  atomic_store(&c->rank[rank].since, ax_monotonic_ns());
  atomic_store(&c->rank[rank].state, AX_RANK_RUNNING);
  ax_dist_set_world(&group);
  return AX_OK;
}

static ax_counters *counters_of(ax_control *c)
{
  return (ax_counters *)((char *)c + records_bytes(c->ranks) + rings_bytes(c->ranks));
}

static void wake(ax_counters *k)
{
  ax_futex_wake(&k->filled);
  ax_futex_wake(&k->reduced);
  ax_futex_wake(&k->done);
}

/* In the world and in its other groups; who waits in a pair looks up ten times a second. */
static void wake_waiters_of(ax_control *c, int rank)
{
  for (int set = 0; set < AX_MAX_GROUPS; set++)
    if (set == 0 || atomic_load(&c->members[set]) != 0)
      wake(&counters_of(c)[(size_t)set * (size_t)c->ranks + (size_t)rank]);
}

bool ax_shm_abort(ax_control *c, int failed_rank, const char *reason)
{
  uint32_t none = AX_ABORT_NONE;

  if (!atomic_compare_exchange_strong(&c->abort, &none, AX_ABORT_CLAIMED)) return false;
  c->failed_rank = failed_rank;
  snprintf(c->reason, sizeof c->reason, "%s", reason);
  atomic_store(&c->abort, AX_ABORT_PUBLISHED);
  for (int r = 0; r < c->ranks; r++) wake_waiters_of(c, r);
  return true;
}

void ax_shm_finished(ax_control *c, int rank)
{
  atomic_store(&c->rank[rank].state, AX_RANK_FINISHED);
  wake_waiters_of(c, rank);
}

/* ---- chunks */

/* Groups begin at their first step, too: each rank's walks do so when it begins the chunk. */
static void begin_afresh(ax_control *c)
{
  uint64_t most = 0;

  for (int r = 0; r < c->ranks; r++)
    if (atomic_load(&c->rank[r].world_calls) > most) most = atomic_load(&c->rank[r].world_calls);
  memset((void *)counters_of(c), 0, counters_bytes(c->ranks));
  for (int r = 0; r < c->ranks; r++) {
    ax_rank_record *rec = &c->rank[r];
    atomic_store(&rec->world_calls, most);
    atomic_store(&counters_of(c)[r].posted, most);
  }
  atomic_store(&c->mismatch, AX_ABORT_NONE);
}

void ax_shm_gather(ax_control *c, bool afresh)
{
  if (afresh) begin_afresh(c);
  atomic_fetch_add(&c->chunk, 1);
  for (int r = 0; r < c->ranks; r++) atomic_store(&c->rank[r].state, AX_RANK_RUNNING);
}

void ax_shm_begin_chunk(bool afresh)
{
  if (afresh) ax_walks_afresh();
  broken = false;
  atomic_store(&own_record()->since, ax_monotonic_ns());
}

bool ax_shm_end_chunk(void)
{
  ax_shm_finished(ax_shm.control, ax_shm.rank);
  return broken;
}

void ax_shm_interrupts(volatile const int *flag) { ax_shm.interrupted = flag; }

/* Collectives between the GPUs of several ranks by NCCL, which is opened when the first rank joins.
 *
 * Collectives run in a stream of their own.  An event orders each behind the work that was queued
 * on the device before it.  The computing stream waits for a collective only when `order` requests
 * it, and the host does not wait at all.  So gradients are reduced while backward continues.
 *
 * Every wait of the host checks the other ranks (ax_dist_look).  When a rank has failed, the
 * communicator is aborted, which ends the kernels that wait for that rank, and the wait ends with
 * that rank's error.  Where the host does not wait but is blocked, in a launch or inside NCCL, a
 * thread checks them (the watchdog, below).  The communicator is blocking: for non-blocking ones
 * NCCL, since 2.23, makes a thread for every call.
 *
 * Sums are equal in every run: the algorithm follows from sizes and topology.  NVLS, which adds in
 * the switch in no fixed order, stays off unless the user set NCCL_NVLS_ENABLE or NCCL_ALGO, or
 * results need not be deterministic (ax_deterministic).  NCCL
 * rounds half types at each addition, computes the mean by multiplying by 1 / ranks, and prefers a
 * number to a NaN in max and min; the CPU's collectives prefer the NaN.
 *
 * NCCL's header is not part of CUDA's toolkit; the declarations in use are repeated here, as in
 * version 2.17 and all later ones.  The fake of the specs is compiled against NVIDIA's header. */
#include "device.h"
#include "library.h"
#include "watch.h"
extern "C" {
#include "dist.h"
}

#include <atomic>
#include <errno.h>
#include <new>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <vector>

/* ---- NCCL's interface */

typedef struct nccl_communicator *nccl_comm;
struct nccl_id {
  char internal[AX_GROUP_ID];
};
enum { NCCL_OK = 0 };
enum { NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG };
enum {
  NCCL_UINT8 = 1,
  NCCL_INT32 = 2,
  NCCL_INT64 = 4,
  NCCL_FLOAT16 = 6,
  NCCL_FLOAT32 = 7,
  NCCL_FLOAT64 = 8,
  NCCL_BFLOAT16 = 9
};
/* NCCL reads `size` bytes, and uses its own defaults for fields of later versions. */
struct nccl_config {
  size_t size;
  unsigned magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char *net_name;
  int split_share;
};
static const unsigned CONFIG_MAGIC = 0xcafebeef, CONFIG_VERSION = 21700;
static const int UNDEFINED = INT32_MIN;

#define NCCL_FUNCTIONS(F) \
  F(GetVersion, (int *)) \
  F(GetUniqueId, (nccl_id *)) \
  F(CommInitRankConfig, (nccl_comm *, int, nccl_id, int, nccl_config *)) \
  F(CommFinalize, (nccl_comm)) \
  F(CommDestroy, (nccl_comm)) \
  F(CommAbort, (nccl_comm)) \
  F(CommGetAsyncError, (nccl_comm, int *)) \
  F(AllReduce, (const void *, void *, size_t, int, int, nccl_comm, cudaStream_t)) \
  F(Broadcast, (const void *, void *, size_t, int, int, nccl_comm, cudaStream_t)) \
  F(AllGather, (const void *, void *, size_t, int, nccl_comm, cudaStream_t)) \
  F(ReduceScatter, (const void *, void *, size_t, int, int, nccl_comm, cudaStream_t)) \
  F(Send, (const void *, size_t, int, int, nccl_comm, cudaStream_t)) \
  F(Recv, (void *, size_t, int, int, nccl_comm, cudaStream_t)) \
  F(GroupStart, (void)) \
  F(GroupEnd, (void))
static struct {
  void *library;
#define F(name, parameters) int(*name) parameters;
  NCCL_FUNCTIONS(F)
#undef F
  const char *(*GetErrorString)(int);
  const char *(*GetLastError)(nccl_comm);
  int version;
} nccl;

static const char FILE_NAME[] = "libnccl.so.2";

static ax_status open_library(void)
{
  void *library = NULL;
  ax_status st = AX_OK;

  if (nccl.library) return AX_OK;
  if (ax_deterministic() && !getenv("NCCL_ALGO"))
    setenv("NCCL_NVLS_ENABLE", "0", 0); /* read when the library first runs */
  AX_TRY(ax_cuda_library(FILE_NAME, "exchanging tensors between GPUs", &library));
#define F(name, parameters) AX_TRY(ax_cuda_symbol(library, FILE_NAME, "nccl" #name, (void **)&nccl.name));
  NCCL_FUNCTIONS(F)
  F(GetErrorString, )
  F(GetLastError, )
#undef F
  if (nccl.GetVersion(&nccl.version) != NCCL_OK || nccl.version < (int)CONFIG_VERSION)
    return ax_fail(
        AX_ENOIMPL,
        "%s is version %d.%d; 2.17 or later is needed (ACCEL_CUDA_LIBRARIES names the folder of another)",
        FILE_NAME, nccl.version / (nccl.version < 10000 ? 1000 : 10000),
        nccl.version / 100 % (nccl.version < 10000 ? 10 : 100));
  nccl.library = library;
out:
  return st;
}

/* ---- the group */

enum { EVENTS = 64 };
struct recorded_events {
  cudaEvent_t ready, done;
};
/* What the watchdog shares with the rank's own thread ("owner") is atomic, under `lock`, or written
 * before the thread starts. */
struct communicator {
  nccl_comm comm; /* the watchdog reads it once `joined` is set */
  int device, rank, size;
  cudaStream_t stream;
  /* of the last EVENTS collectives: the work queued before them, and their ends */
  cudaEvent_t ready[EVENTS], done[EVENTS];

  pthread_t owner, watcher;
  bool watched, finalized; /* the thread runs; the owner's both */
  /* begun: collectives whose events may be recorded; issued: that are in the stream */
  std::atomic<uint64_t> begun, issued;
  std::atomic<int64_t> inside; /* since when the owner is inside NCCL; 0: it is not */
  std::atomic<bool> waiting;   /* the owner waits for the device, and watches by itself */
  std::atomic<bool> joined, leaving;
  std::atomic<bool> ended; /* the watchdog has aborted the communicator, or is about to */
  pthread_mutex_t calls;   /* held by the owner inside NCCL, and for an abort */
  pthread_mutex_t lock;    /* of what follows */
  pthread_cond_t wake;
  bool over; /* the thread shall end */
  char reason[2048];

  /* the owner's: events of recorded collectives, used again by the next recording; how many of them
   * the current one has; recordings until now */
  std::vector<recorded_events> recorded;
  int n_recorded;
  uint64_t recordings;
};
static communicator *the_group; /* a rank has one */

static int slot(uint64_t ticket) { return (int)((ticket - 1) % EVENTS); }

/* comm NULL: there is none, or it was aborted */
static ax_status failed(const char *what, nccl_comm comm, int result)
{
  const char *last = nccl.GetLastError(comm);
  return ax_fail(AX_EABORTED, "%s: NCCL: %s%s%s", what, nccl.GetErrorString(result),
                 last && *last ? ": " : "", last && *last ? last : "");
}

/* Sleeps longer the longer a wait lasts; at first not at all. */
static void rest(int64_t looks)
{
  if (looks > 2000) usleep(looks < 20000 ? 20 : 200);
}

/* The watchdog's reason as the owner's error.  It frees the group. */
static ax_status stopped(communicator *g)
{
  char text[sizeof g->reason];

  pthread_mutex_lock(&g->lock);
  memcpy(text, g->reason, sizeof text);
  pthread_mutex_unlock(&g->lock);
  ax_cuda_stop.store(false);
  return ax_dist_look(0, ax_fail(AX_EABORTED, "%s", text));
}
static ax_status stop_owner(void)
{
  communicator *g = the_group;
  return g && g->ended.load() && pthread_equal(pthread_self(), g->owner) ? stopped(g) : AX_OK;
}

/* Around calls of NCCL on the owner's thread.  EABORTED: the communicator is gone. */
static ax_status enter(communicator *g)
{
  pthread_mutex_lock(&g->calls);
  if (!g->ended.load()) {
    g->inside.store(ax_monotonic_ns());
    return AX_OK;
  }
  pthread_mutex_unlock(&g->calls);
  return stopped(g);
}
static ax_status leave_call(communicator *g, const char *what, int result)
{
  const bool ended = g->ended.load();
  const ax_status st = ended || result == NCCL_OK ? AX_OK : failed(what, g->comm, result);

  g->inside.store(0);
  pthread_mutex_unlock(&g->calls);
  return ended ? stopped(g) : st;
}

/* One look of a wait of the host that began at `since`. */
static ax_status look_around(const char *what, int64_t since)
{
  int async = NCCL_OK;
  ax_status st = stop_owner();

  if (st != AX_OK || (st = ax_dist_look(since, AX_OK)) != AX_OK || !the_group) return st;
  if (pthread_mutex_trylock(&the_group->calls) != 0) return AX_OK; /* it is being aborted */
  if (!the_group->ended.load() && nccl.CommGetAsyncError(the_group->comm, &async) == NCCL_OK &&
      async != NCCL_OK)
    st = failed(what, the_group->comm, async);
  pthread_mutex_unlock(&the_group->calls);
  return st == AX_OK ? st : ax_dist_look(0, st);
}

/* Waits for `event` or, when it is NULL, for all work queued in `stream`, as long as the other
 * ranks are alive. */
static ax_status watched_wait(const char *what, cudaStream_t stream, cudaEvent_t event)
{
  cudaError_t e = event ? cudaEventQuery(event) : cudaStreamQuery(stream);
  const int64_t since = ax_monotonic_ns();
  ax_status st = AX_OK;

  if (e != cudaErrorNotReady) return ax_cuda_status(what, e);
  if (the_group) the_group->waiting.store(true);
  for (int64_t looks = 1;
       st == AX_OK && (e = event ? cudaEventQuery(event) : cudaStreamQuery(stream)) == cudaErrorNotReady;
       looks++) {
    if (looks % 64 == 0) st = look_around(what, since);
    rest(looks);
  }
  cudaGetLastError(); /* "not ready" would be reported again by the next launch */
  if (the_group) the_group->waiting.store(false);
  if (st == AX_OK) st = stop_owner(); /* it ended because it was aborted */
  if (st == AX_OK) st = ax_dist_look(0, AX_OK);
  return st == AX_OK ? ax_cuda_status(what, e) : st;
}

/* ---- the watchdog: a thread beside the owner's
 *
 * It finds the oldest open collective: the first whose `done` event has not happened.  Its time
 * runs from when its `ready` event has happened, so that computation before it does not count, or,
 * before it is in the stream, from when the owner went into NCCL for it.  When waiting for it is
 * pointless (another rank failed or has ended, the clock, an error of the communicator), and the
 * owner is not waiting itself, the communicator is aborted.  That ends the kernels that wait, the
 * queue drains, the driver lets go of the owner, and the owner's next use of the device raises the
 * reason (ax_cuda_stop).  If the owner does not come back all the same, the launcher ends the run.
 *
 * Locking.  `lock` guards `over` and `reason` and is held across no call.  `calls` is held by the
 * owner inside NCCL.  For an abort the watchdog waits for it a moment, so that nothing runs in the
 * communicator that it frees; an owner that is blocked inside NCCL does not give it back, and the
 * abort is what ends its call.  `ended` is set before, so that the owner begins no other call.
 * Only the owner's `leave` frees `g`, after the thread has ended.  The thread makes CUDA calls on
 * the group's device: queries of events that live as long as it.  A recording step does not mind
 * them: steps are captured in the relaxed mode. */

static const int64_t SECOND = 1000000000;
static const int64_t TICK = 50000000, LEAVING = 5 * SECOND;
static const int GRACE = 3; /* ticks before it acts: the owner may raise the error by itself */

struct watch_state {
  uint64_t finished, ticket; /* ended; the oldest open one */
  int64_t waited, before;
  bool running; /* its time runs */
  int bad;
};

/* Whether a collective is open: w->ticket and w->running. */
static bool find_open(communicator *g, watch_state *w)
{
  const uint64_t begun = g->begun.load(), issued = g->issued.load();

  /* an event that is recorded anew belongs to a later one: the owner has seen the end of the
   * first */
  while (w->finished < issued &&
         (begun >= w->finished + 1 + EVENTS || cudaEventQuery(g->done[slot(w->finished + 1)]) == cudaSuccess))
    w->finished++;
  cudaGetLastError();
  const uint64_t ticket = g->joined.load() ? w->finished + 1 : 0;
  if (ticket > begun) return false;
  if (ticket != w->ticket) w->running = false;
  w->ticket = ticket;
  if (!w->running)
    w->running = ticket > 0 && ticket <= issued ? cudaEventQuery(g->ready[slot(ticket)]) == cudaSuccess
                                                : g->inside.load() != 0;
  cudaGetLastError();
  return true;
}

/* An error of the communicator counts also when nothing is open: its collectives may have ended by
 * it. */
static ax_status judge(communicator *g, const watch_state *w, bool open)
{
  int async = NCCL_OK;

  if (g->joined.load() && nccl.CommGetAsyncError(g->comm, &async) == NCCL_OK && async != NCCL_OK) {
    failed("the GPUs' group", g->comm, async);
    return ax_dist_watch_failed(open ? w->ticket : w->finished, ax_last_error());
  }
  return open ? ax_dist_watch(w->ticket, w->waited) : AX_OK;
}

static void end_comm(communicator *g, bool blocked)
{
  struct timespec until;

  pthread_mutex_lock(&g->lock);
  snprintf(g->reason, sizeof g->reason, "%s", ax_last_error());
  pthread_mutex_unlock(&g->lock);
  if (blocked && !g->leaving.load()) ax_dist_watch_stuck(g->reason);
  g->ended.store(true);
  if (!g->leaving.load()) ax_cuda_stop.store(true);
  if (!g->joined.load()) return; /* NCCL has not given the communicator out: nothing ends its joining */
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += 200000000;
  until.tv_sec += until.tv_nsec / SECOND;
  until.tv_nsec %= SECOND;
  const bool alone = pthread_mutex_timedlock(&g->calls, &until) == 0;
  nccl.CommAbort(g->comm);
  if (alone) pthread_mutex_unlock(&g->calls);
}

static void tick(communicator *g, watch_state *w)
{
  const int64_t now = ax_monotonic_ns(), passed = now - w->before, inside = g->inside.load();
  const bool blocked = ax_dist_watch_launch(g->device, now) || inside != 0, ran = w->running;
  const uint64_t before = w->ticket;

  w->before = now;
  if (g->ended.load()) {
    if (!blocked) ax_dist_watch_free();
    return;
  }
  if (g->leaving.load()) {
    if (inside != 0 && now - inside > LEAVING) end_comm(g, false);
    return;
  }
  const bool open = find_open(g, w);
  if (!open || w->ticket != before || !ran) w->waited = 0;
  /* A tick that took much longer was spent stopped (Ctrl-Z, a debugger). */
  else w->waited += passed < SECOND ? passed : SECOND;
  if (g->waiting.load() || judge(g, w, open) == AX_OK) w->bad = 0;
  else if (++w->bad >= GRACE) end_comm(g, blocked);
}

static void *watchdog(void *argument)
{
  communicator *g = (communicator *)argument;
  watch_state w = { 0, 0, 0, ax_monotonic_ns(), false, 0 };
  struct timespec next;

  cudaSetDevice(g->device);
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
static ax_status start_watchdog(communicator *g)
{
  sigset_t all, former;
  int e;

  g->owner = pthread_self();
  if (g->size == 1) return AX_OK;
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
static bool stop_watchdog(communicator *g)
{
  struct timespec until;

  if (!g->watched) return true;
  pthread_mutex_lock(&g->lock);
  g->over = true;
  pthread_cond_signal(&g->wake);
  pthread_mutex_unlock(&g->lock);
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += LEAVING / SECOND;
  g->watched = pthread_timedjoin_np(g->watcher, NULL, &until) != 0;
  ax_dist_watch_end();
  ax_cuda_stop.store(false);
  return !g->watched;
}

/* Before what the thread uses is torn down with the process: a script that ends by os.exit. */
static void at_exit(void)
{
  if (the_group && !ax_cuda_forked()) stop_watchdog(the_group);
}

static void free_group(communicator *g)
{
  for (int k = 0; k < EVENTS; k++) {
    if (g->ready[k]) cudaEventDestroy(g->ready[k]);
    if (g->done[k]) cudaEventDestroy(g->done[k]);
  }
  for (const recorded_events &r : g->recorded) cudaEventDestroy(r.ready), cudaEventDestroy(r.done);
  if (g->stream) cudaStreamDestroy(g->stream);
  pthread_cond_destroy(&g->wake);
  pthread_mutex_destroy(&g->lock);
  pthread_mutex_destroy(&g->calls);
  delete g;
}

static communicator *new_group(const ax_group *group)
{
  communicator *g = new (std::nothrow) communicator();
  pthread_condattr_t monotonic;

  if (!g) return NULL;
  g->device = group->device;
  g->rank = group->rank;
  g->size = group->size;
  pthread_mutex_init(&g->calls, NULL);
  pthread_mutex_init(&g->lock, NULL);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&g->wake, &monotonic);
  pthread_condattr_destroy(&monotonic);
  return g;
}

static ax_status identity(int device, char name[AX_DEVICE_NAME])
{
  ax_status st = open_library();
  char bus[32] = "";

  if (st != AX_OK) return st;
  AX_TRY(ax_cuda_bus(device, bus));
  snprintf(name, AX_DEVICE_NAME, "%s, NCCL %d.%d.%d", bus, nccl.version / 10000, nccl.version / 100 % 100,
           nccl.version % 100);
out:
  return st;
}

static ax_status make_id(char id[AX_GROUP_ID])
{
  ax_status st = open_library();
  nccl_id made;
  int result;

  if (st != AX_OK) return st;
  if ((result = nccl.GetUniqueId(&made)) != NCCL_OK) return failed("the id of the GPUs' group", NULL, result);
  memcpy(id, made.internal, sizeof made.internal);
  return AX_OK;
}

static communicator *of(ax_group *g) { return (communicator *)g->state; }

/* NCCL returns when all ranks have joined.  Nothing ends that from here: the watchdog has the
 * launcher end a run whose ranks do not come. */
static ax_status join_nccl(communicator *g, const char id[AX_GROUP_ID])
{
  nccl_config config = { sizeof config, CONFIG_MAGIC, CONFIG_VERSION, 1,        UNDEFINED,
                         UNDEFINED,     UNDEFINED,    NULL,           UNDEFINED };
  nccl_id shared;
  ax_status st = AX_OK;

  memcpy(shared.internal, id, sizeof shared.internal);
  AX_TRY(start_watchdog(g));
  g->inside.store(ax_monotonic_ns());
  {
    const int result = nccl.CommInitRankConfig(&g->comm, g->size, shared, g->rank, &config);
    g->inside.store(0);
    if (result != NCCL_OK) {
      st = failed("joining the GPUs' group", NULL, result);
      g->comm = NULL;
      goto out;
    }
  }
  g->joined.store(true);
  AX_TRY(ax_dist_look(0, AX_OK));
out:
  return st;
}

static ax_status end_recording(int device, cudaStream_t computing);

static ax_status join(ax_group *group, const char id[AX_GROUP_ID])
{
  static bool registered;
  communicator *g = new_group(group);
  cudaStream_t computing;
  ax_status st = AX_OK;

  if (!g) return ax_fail(AX_ENOMEM, "out of memory: the record of a group of GPUs");
  AX_TRY(ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)g->device }, &computing));
  AX_TRY(ax_cuda_status("cudaStreamCreate", cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking)));
  for (int k = 0; k < EVENTS; k++) {
    AX_TRY(ax_cuda_status("cudaEventCreate", cudaEventCreateWithFlags(&g->ready[k], cudaEventDisableTiming)));
    AX_TRY(ax_cuda_status("cudaEventCreate", cudaEventCreateWithFlags(&g->done[k], cudaEventDisableTiming)));
  }
  if (!registered) registered = atexit(at_exit) == 0;
  AX_TRY(join_nccl(g, id));
  the_group = g;
  ax_cuda_watch = watched_wait;
  ax_cuda_stopped = stop_owner;
  ax_cuda_recording_ends = end_recording;
  group->state = g;
  g = NULL;
out:
  if (g && stop_watchdog(g)) {
    if (g->comm && !g->ended.load()) nccl.CommAbort(g->comm);
    free_group(g);
  }
  return st;
}

/* Finalizing announces to NCCL's other ranks that nothing more comes, and waits for what they still
 * read.  The watchdog ends it after a few seconds. */
static void finalize(communicator *g)
{
  const int64_t since = ax_monotonic_ns();

  while (cudaStreamQuery(g->stream) == cudaErrorNotReady) {
    if (ax_monotonic_ns() - since > LEAVING || ax_dist_look(since, AX_OK) != AX_OK) return;
    usleep(100);
  }
  cudaGetLastError();
  g->leaving.store(true);
  pthread_mutex_lock(&g->calls);
  g->inside.store(ax_monotonic_ns());
  if (!g->ended.load()) g->finalized = nccl.CommFinalize(g->comm) == NCCL_OK;
  g->inside.store(0);
  pthread_mutex_unlock(&g->calls);
}

static void leave(ax_group *group, bool abort)
{
  communicator *g = of(group);
  cudaStream_t computing;

  ax_cuda_watch = NULL;
  ax_cuda_recording_ends = NULL;
  the_group = NULL;
  ax_cuda_stop.store(false);
  ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)g->device }, &computing);
  if (!abort) finalize(g);
  if (!stop_watchdog(g)) return; /* it goes on using g */
  if (!g->ended.load()) {
    if (g->finalized) nccl.CommDestroy(g->comm);
    else nccl.CommAbort(g->comm);
  }
  free_group(g);
}

/* ---- collectives */

static int dtype_of(ax_dtype d)
{
  switch (d) {
  case AX_F32: return NCCL_FLOAT32;
  case AX_F64: return NCCL_FLOAT64;
  case AX_F16: return NCCL_FLOAT16;
  case AX_BF16: return NCCL_BFLOAT16;
  case AX_I64: return NCCL_INT64;
  case AX_I32: return NCCL_INT32;
  /* a bool is 0 or 1: max is any, min is all; other reductions are refused */
  case AX_U8:
  case AX_BOOL: return NCCL_UINT8;
  default: return -1;
  }
}

/* in the order of ax_reduction */
static const int reductions[AX_REDUCTIONS] = { NCCL_SUM, NCCL_AVG, NCCL_MAX, NCCL_MIN, NCCL_PROD };

static int start(communicator *g, const ax_collective *c, int type)
{
  const size_t n = (size_t)c->count, bytes = n * ax_dtype_size(c->dtype);
  int result = NCCL_OK, ended;

  switch (c->op) {
  case AX_ALL_REDUCE:
    return nccl.AllReduce(c->in, c->out, n, type, reductions[c->reduction], g->comm, g->stream);
  case AX_REDUCE_SCATTER:
    return nccl.ReduceScatter(c->in, c->out, n, type, reductions[c->reduction], g->comm, g->stream);
  case AX_BROADCAST: return nccl.Broadcast(c->in, c->out, n, type, c->root, g->comm, g->stream);
  case AX_ALL_GATHER: return nccl.AllGather(c->in, c->out, n, type, g->comm, g->stream);
  case AX_GATHER:
    if ((result = nccl.GroupStart()) != NCCL_OK) return result;
    for (int r = 0; g->rank == c->root && r < g->size && result == NCCL_OK; r++)
      result = nccl.Recv((char *)c->out + (size_t)r * bytes, n, type, r, g->comm, g->stream);
    if (result == NCCL_OK) result = nccl.Send(c->in, n, type, c->root, g->comm, g->stream);
    ended = nccl.GroupEnd();
    return result == NCCL_OK ? ended : result;
  default: return NCCL_OK;
  }
}

/* All of them, as one of NCCL's groups. */
static int start_all(communicator *g, const ax_collective *c, int n)
{
  int result = NCCL_OK, ended;

  if (n > 1 && (result = nccl.GroupStart()) != NCCL_OK) return result;
  for (int i = 0; i < n && result == NCCL_OK; i++)
    if (c[i].count > 0) result = start(g, &c[i], dtype_of(c[i].dtype));
  if (n <= 1) return result;
  ended = nccl.GroupEnd();
  return result == NCCL_OK ? ended : result;
}

/* ---- in a recorded step
 *
 * The events take NCCL's stream into the recording and back, so that the graph keeps the overlap.
 * They are no others' events: the watchdog may not query one that a recording has recorded.
 * Nothing runs, so nothing counts as issued; a replay does (below). */

static const uint64_t RECORDED = (uint64_t)1 << 63;

static uint64_t recorded_ticket(const communicator *g)
{
  return RECORDED | (uint64_t)g->recordings << 24 | (uint64_t)g->n_recorded;
}

static ax_status new_recorded(communicator *g)
{
  const size_t n = g->recorded.size();
  recorded_events r = {};
  ax_status st;

  if ((size_t)g->n_recorded < n) return AX_OK;
  AX_TRY(ax_cuda_status("cudaEventCreate", cudaEventCreateWithFlags(&r.ready, cudaEventDisableTiming)));
  AX_TRY(ax_cuda_status("cudaEventCreate", cudaEventCreateWithFlags(&r.done, cudaEventDisableTiming)));
  g->recorded.push_back(r);
out:
  return st;
}

static ax_status record(communicator *g, cudaStream_t computing, const ax_collective *c, int n,
                        uint64_t *ticket)
{
  const char *name = ax_collective_name(c->op);
  ax_status st;

  AX_TRY(new_recorded(g));
  {
    const recorded_events r = g->recorded[(size_t)g->n_recorded];
    AX_TRY(ax_cuda_status(name, cudaEventRecord(r.ready, computing)));
    AX_TRY(ax_cuda_status(name, cudaStreamWaitEvent(g->stream, r.ready, 0)));
    AX_TRY(enter(g));
    AX_TRY(leave_call(g, name, start_all(g, c, n)));
    AX_TRY(ax_cuda_status(name, cudaEventRecord(r.done, g->stream)));
  }
  g->n_recorded++;
  *ticket = recorded_ticket(g);
out:
  return st;
}

/* The recording ends: brings NCCL's stream back, whose work is in order. */
static ax_status end_recording(int device, cudaStream_t computing)
{
  communicator *g = the_group;
  ax_status st = AX_OK;

  if (!g || g->device != device || !g->n_recorded) return AX_OK;
  st = ax_cuda_status("recording a step",
                      cudaStreamWaitEvent(computing, g->recorded[(size_t)g->n_recorded - 1].done, 0));
  g->n_recorded = 0;
  g->recordings++;
  return st;
}

/* A launch counts as one collective, from the end of the work before it to its own end. */
static ax_status replay(ax_group *group, bool begins)
{
  communicator *g = of(group);
  const uint64_t former = g->issued.load(), number = former + 1;
  const int k = slot(number);
  cudaStream_t computing;
  ax_status st;

  AX_TRY(ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)g->device }, &computing));
  if (g->ended.load()) return stopped(g);
  if (begins) {
    if (number > EVENTS) AX_TRY(watched_wait("replay", NULL, g->done[k]));
    /* NCCL's calls run in one order on all ranks: behind those that nobody has waited for */
    if (former) AX_TRY(ax_cuda_status("replay", cudaStreamWaitEvent(computing, g->done[slot(former)], 0)));
    g->begun.store(number);
    AX_TRY(ax_cuda_status("replay", cudaEventRecord(g->ready[k], computing)));
  } else {
    AX_TRY(ax_cuda_status("replay", cudaEventRecord(g->done[k], computing)));
    g->issued.store(number);
  }
out:
  return st;
}

static ax_status issue(ax_group *group, const ax_collective *c, int n, uint64_t *ticket)
{
  communicator *g = of(group);
  const uint64_t number = g->issued.load() + 1;
  const int k = slot(number);
  const char *name = ax_collective_name(c->op);
  cudaStream_t computing;
  ax_status st;

  for (int i = 0; i < n; i++)
    if (dtype_of(c[i].dtype) < 0)
      return ax_fail(AX_EDTYPE, "%s: NCCL has no type for %s", name, ax_dtype_name(c[i].dtype));
  AX_TRY(ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)g->device }, &computing));
  if (ax_cuda_devices[g->device].recording) return record(g, computing, c, n, ticket);
  /* a rank that is so far ahead would wait for its device just as long */
  if (number > EVENTS) AX_TRY(watched_wait(name, NULL, g->done[k]));
  g->begun.store(number);
  AX_TRY(ax_cuda_status(name, cudaEventRecord(g->ready[k], computing)));
  AX_TRY(ax_cuda_status(name, cudaStreamWaitEvent(g->stream, g->ready[k], 0)));
  AX_TRY(enter(g));
  AX_TRY(leave_call(g, name, start_all(g, c, n)));
  AX_TRY(ax_cuda_status(name, cudaEventRecord(g->done[k], g->stream)));
  g->issued.store(number);
  *ticket = number;
out:
  return st;
}

/* The event of an old ticket may belong to a later collective by now, whose end comes later. */
static ax_status order(ax_group *group, uint64_t ticket)
{
  communicator *g = of(group);
  cudaStream_t computing;
  const ax_status st = ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)g->device }, &computing);
  cudaEvent_t end = g->done[(ticket - 1) % EVENTS];

  if (st != AX_OK) return st;
  if (ticket & RECORDED) {
    const int k = (int)(ticket & 0xffffff);
    /* of a recording that has ended, whose end is behind its collectives, or that failed */
    if ((ticket & ~RECORDED) >> 24 != g->recordings || k > g->n_recorded) return AX_OK;
    end = g->recorded[(size_t)k - 1].done;
  }
  return ax_cuda_status("collective", cudaStreamWaitEvent(computing, end, 0));
}

extern "C" const ax_transport ax_cuda_nccl = { "nccl", identity, make_id, join, issue, order, replay,
                                               leave,  NULL,     NULL,    NULL, NULL,  NULL };

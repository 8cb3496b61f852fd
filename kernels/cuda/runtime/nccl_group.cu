/* Joining and leaving other ranks' GPUs: NCCL's library, opened when the first rank joins, and the
 * communicators.
 *
 * Communicators are blocking: for non-blocking ones NCCL, since 2.23, makes a thread for every
 * call. */
#include "library.h"
#include "nccl.h"
#include "watch.h"

#include <new>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const unsigned CONFIG_MAGIC = 0xcafebeef, CONFIG_VERSION = 21800;
static const int UNDEFINED = INT32_MIN;

ax_nccl_functions ax_nccl;
ax_nccl_rank *ax_nccl_here;
static uint64_t last_ticket; /* of a former record */

static const char FILE_NAME[] = "libnccl.so.2";

/* Ranks that share a device are machines of their own for NCCL, which refuses them otherwise: it
 * exchanges their data over sockets.  From version 2.30 on it can be asked to allow them, on one
 * machine with few blocks each, by NCCL_MULTI_RANK_GPU_ENABLE=1.  What the user has set stays. */
static void set_for_shared(void)
{
  const ax_group *world = ax_dist_world();
  const char *several = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  int devices = 0;
  char host[32];

  if (!ax_gpu_shared() || cudaGetDeviceCount(&devices) != cudaSuccess || world->local_size <= devices) return;
  if (several && strcmp(several, "1") == 0) {
    setenv("NCCL_MAX_CTAS", "2", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    return;
  }
  snprintf(host, sizeof host, "accel-rank-%d", world->rank);
  setenv("NCCL_HOSTID", host, 0);
  setenv("NCCL_NET", "Socket", 0);
  setenv("NCCL_IB_DISABLE", "1", 0);
  setenv("NCCL_PROTO", "Simple", 0); /* halves the time there */
  if (world->local_size == world->size) setenv("NCCL_SOCKET_IFNAME", "lo", 0);
}

static ax_status open_library(void)
{
  void *library = NULL;
  ax_status st = AX_OK;

  if (ax_nccl.library) return AX_OK;
  if (ax_deterministic() && !getenv("NCCL_ALGO"))
    setenv("NCCL_NVLS_ENABLE", "0", 0); /* read when the library first runs */
  set_for_shared();
  AX_TRY(ax_cuda_library(FILE_NAME, "exchanging tensors between GPUs", &library));
#define F(name, parameters) AX_TRY(ax_cuda_symbol(library, FILE_NAME, "nccl" #name, (void **)&ax_nccl.name));
  NCCL_FUNCTIONS(F)
  F(GetErrorString, )
  F(GetLastError, )
#undef F
  if (ax_nccl.GetVersion(&ax_nccl.version) != NCCL_OK || ax_nccl.version < (int)CONFIG_VERSION)
    return ax_fail(
        AX_ENOIMPL,
        "%s is version %d.%d; 2.18 or later is needed (ACCEL_CUDA_LIBRARIES names the folder of another)",
        FILE_NAME, ax_nccl.version / (ax_nccl.version < 10000 ? 1000 : 10000),
        ax_nccl.version / 100 % (ax_nccl.version < 10000 ? 10 : 100));
  ax_nccl.library = library;
out:
  return st;
}

/* comm NULL: there is none, or it was aborted */
ax_status ax_nccl_failed(const char *what, nccl_comm comm, int result)
{
  const char *last = ax_nccl.GetLastError(comm);
  return ax_fail(AX_EABORTED, "%s: NCCL: %s%s%s", what, ax_nccl.GetErrorString(result),
                 last && *last ? ": " : "", last && *last ? last : "");
}

/* ---- this rank's record, which the first link makes and the last one takes away */

/* Before what the thread uses is torn down with the process: a script that ends by os.exit. */
static void at_exit(void)
{
  if (ax_nccl_here && !ax_cuda_forked()) ax_nccl_watch_stop(ax_nccl_here);
}

static void free_record(ax_nccl_rank *g)
{
  ax_nccl_here = NULL;
  ax_cuda_watch = NULL;
  ax_cuda_recording_ends = NULL;
  last_ticket = g->begun.load();
  for (int k = 0; k < AX_NCCL_EVENTS; k++) {
    if (g->ready[k]) cudaEventDestroy(g->ready[k]);
    if (g->done[k]) cudaEventDestroy(g->done[k]);
  }
  for (const ax_nccl_events &r : g->recorded) cudaEventDestroy(r.ready), cudaEventDestroy(r.done);
  if (g->stream) cudaStreamDestroy(g->stream);
  pthread_cond_destroy(&g->wake);
  pthread_mutex_destroy(&g->lock);
  pthread_mutex_destroy(&g->calls);
  delete g;
}

static void init_locks(ax_nccl_rank *g)
{
  pthread_condattr_t monotonic;

  pthread_mutex_init(&g->calls, NULL);
  pthread_mutex_init(&g->lock, NULL);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&g->wake, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

static ax_status make_record(int device)
{
  static bool registered;
  ax_nccl_rank *g = new (std::nothrow) ax_nccl_rank();
  ax_status st = AX_OK;

  if (!g) return ax_fail(AX_ENOMEM, "out of memory: the record of a rank's links with other GPUs");
  g->device = device;
  g->begun.store(last_ticket);
  g->issued.store(last_ticket);
  init_locks(g);
  AX_TRY(ax_cuda_status("cudaStreamCreate", cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking)));
  for (int k = 0; k < AX_NCCL_EVENTS; k++) {
    AX_TRY(ax_cuda_status("cudaEventCreate", cudaEventCreateWithFlags(&g->ready[k], cudaEventDisableTiming)));
    AX_TRY(ax_cuda_status("cudaEventCreate", cudaEventCreateWithFlags(&g->done[k], cudaEventDisableTiming)));
  }
  if (!registered) registered = atexit(at_exit) == 0;
  AX_TRY(ax_nccl_watch_start(g));
  ax_nccl_here = g;
  return AX_OK;
out:
  free_record(g);
  return st;
}

/* Waits for the device are watched once the first ranks have joined. */
static void watch_waits(void)
{
  ax_cuda_watch = ax_nccl_wait;
  ax_cuda_stopped = ax_nccl_stop_owner;
  ax_cuda_recording_ends = ax_nccl_end_recording;
}

/* ---- joining */

ax_status ax_nccl_identity(int device, char name[AX_DEVICE_NAME])
{
  ax_status st = open_library();
  char bus[32] = "";

  if (st != AX_OK) return st;
  AX_TRY(ax_cuda_bus(device, bus));
  snprintf(name, AX_DEVICE_NAME, "%s, NCCL %d.%d.%d", bus, ax_nccl.version / 10000,
           ax_nccl.version / 100 % 100, ax_nccl.version % 100);
out:
  return st;
}

ax_status ax_nccl_make_id(char id[AX_GROUP_ID])
{
  ax_status st = open_library();
  nccl_id made;
  int result;

  if (st != AX_OK) return st;
  if ((result = ax_nccl.GetUniqueId(&made)) != NCCL_OK)
    return ax_nccl_failed("the id of the GPUs' group", NULL, result);
  memcpy(id, made.internal, sizeof made.internal);
  return AX_OK;
}

static nccl_config config_of(void)
{
  return { sizeof(nccl_config), CONFIG_MAGIC, CONFIG_VERSION, 1,        UNDEFINED,
           UNDEFINED,           UNDEFINED,    NULL,           UNDEFINED };
}

/* The owner's call of NCCL that makes `comm` has ended with `result`.  NULL: this rank is in no
 * part of a division. */
static ax_status take_link(ax_group *group, nccl_comm comm, int result)
{
  ax_nccl_rank *g = ax_nccl_here;
  ax_nccl_link *l;

  g->joining.store(false);
  if (result != NCCL_OK || !comm) return AX_OK;
  if (!(l = new (std::nothrow) ax_nccl_link())) {
    ax_nccl.CommAbort(comm);
    return ax_fail(AX_ENOMEM, "out of memory: the record of a link with other GPUs");
  }
  *l = { comm, group->rank, group->size, 0, false };
  pthread_mutex_lock(&g->lock);
  g->links.push_back(l);
  pthread_mutex_unlock(&g->lock);
  group->link = l;
  return AX_OK;
}

static void drop_link(ax_nccl_link *l)
{
  ax_nccl_rank *g = ax_nccl_here;

  for (size_t k = 0; k < g->links.size(); k++)
    if (g->links[k] == l) g->links.erase(g->links.begin() + (long)k);
  delete l;
}

/* NCCL returns when all ranks have joined.  Nothing ends the first joining from here: the watchdog
 * has the launcher end a run whose ranks do not come. */
static ax_status join_nccl(ax_group *group, const char id[AX_GROUP_ID])
{
  static const char what[] = "joining the GPUs' group";
  nccl_config config = config_of();
  nccl_comm comm = NULL;
  nccl_id shared;
  int result;
  ax_status st;

  memcpy(shared.internal, id, sizeof shared.internal);
  AX_TRY(ax_nccl_enter_call(ax_nccl_here));
  ax_nccl_here->joining.store(true);
  result = ax_nccl.CommInitRankConfig(&comm, group->size, shared, group->rank, &config);
  st = take_link(group, comm, result);
  {
    const ax_status left = ax_nccl_leave_call(ax_nccl_here, what, NULL, result);
    AX_TRY(st == AX_OK ? left : st);
  }
  AX_TRY(ax_dist_look(0, AX_OK));
out:
  return st;
}

ax_status ax_nccl_join(ax_group *group, const char id[AX_GROUP_ID])
{
  const bool first = !ax_nccl_here;
  cudaStream_t computing;
  ax_status st = AX_OK;

  AX_TRY(ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)group->device }, &computing));
  if (first) AX_TRY(make_record(group->device));
  AX_TRY(join_nccl(group, id));
  watch_waits();
  return AX_OK;
out:
  if (group->link) ax_nccl_leave(group, true);
  else if (first && ax_nccl_here && ax_nccl_watch_stop(ax_nccl_here)) free_record(ax_nccl_here);
  return st;
}

/* Ranks of the same new group give its first one's number as colour. */
ax_status ax_nccl_split(ax_group *from, ax_group *group)
{
  static const char what[] = "dividing the GPUs' group";
  const bool alone = group->rank < 0 || group->size == 1;
  const int colour = alone ? NCCL_NO_COLOUR : ax_group_world_rank(group, 0);
  nccl_config config = config_of();
  nccl_comm comm = NULL, parent = ax_nccl_of(from)->comm;
  cudaStream_t computing;
  int result;
  ax_status st;

  AX_TRY(ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)ax_nccl_here->device }, &computing));
  /* NCCL divides no communicator whose collectives run */
  AX_TRY(ax_nccl_wait(what, ax_nccl_here->stream, NULL));
  AX_TRY(ax_nccl_enter_call(ax_nccl_here));
  ax_nccl_here->joining.store(true);
  result = ax_nccl.CommSplit(parent, colour, alone ? 0 : group->rank, &comm, &config);
  st = take_link(group, comm, result);
  {
    const ax_status left = ax_nccl_leave_call(ax_nccl_here, what, parent, result);
    AX_TRY(st == AX_OK ? left : st);
  }
out:
  if (st != AX_OK && group->link) {
    drop_link(ax_nccl_of(group));
    group->link = NULL;
  }
  return st;
}

/* ---- leaving */

bool ax_nccl_idle(ax_group *group)
{
  const uint64_t last = ax_nccl_of(group)->last;
  const bool old = last + AX_NCCL_EVENTS <= ax_nccl_here->begun.load();
  const bool idle = last == 0 || old || cudaEventQuery(ax_nccl_here->done[ax_nccl_slot(last)]) == cudaSuccess;

  cudaGetLastError(); /* "not ready" would be reported again by the next launch */
  return idle;
}

/* Finalizing announces to NCCL's other ranks that nothing more comes, and waits for what they still
 * read.  The watchdog ends it after a few seconds. */
static void finalize(ax_nccl_link *l)
{
  ax_nccl_rank *g = ax_nccl_here;
  const int64_t since = ax_monotonic_ns();

  while (cudaStreamQuery(g->stream) == cudaErrorNotReady) {
    if (ax_monotonic_ns() - since > AX_NCCL_LEAVING || ax_dist_look(since, AX_OK) != AX_OK) return;
    usleep(100);
  }
  cudaGetLastError();
  g->leaving.store(true);
  if (!ax_nccl_take_calls(g)) return;
  l->finalized = ax_nccl.CommFinalize(l->comm) == NCCL_OK;
  g->inside.store(0);
  pthread_mutex_unlock(&g->calls);
}

/* Stops the thread, so that what it may use can be freed.  False: it goes on using the record,
 * which is left to it. */
static bool stop_watching(void)
{
  if (ax_nccl_watch_stop(ax_nccl_here)) return true;
  ax_nccl_here = NULL;
  ax_cuda_watch = NULL;
  ax_cuda_recording_ends = NULL;
  return false;
}

/* The link's communicator is gone. */
static void free_link(ax_group *group)
{
  drop_link(ax_nccl_of(group));
  group->link = NULL;
  ax_nccl_here->leaving.store(false);
  if (ax_nccl_here->links.empty()) free_record(ax_nccl_here);
  else ax_nccl_watch_start(ax_nccl_here);
}

void ax_nccl_drop(ax_group *group)
{
  if (!ax_nccl_here || !stop_watching()) return;
  if (!ax_nccl_here->ended.load()) ax_nccl.CommAbort(ax_nccl_of(group)->comm); /* concerns no other rank */
  free_link(group);
}

void ax_nccl_leave(ax_group *group, bool abort)
{
  ax_nccl_rank *g = ax_nccl_here;
  ax_nccl_link *l = ax_nccl_of(group);
  cudaStream_t computing;

  if (!g) return;
  ax_cuda_stop.store(false);
  ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)g->device }, &computing);
  if (!abort) finalize(l);
  if (!stop_watching()) return;
  if (!g->ended.load() && l->finalized) {
    ax_nccl.CommDestroy(l->comm);
  } else if (!g->ended.load()) {
    g->ended.store(true);
    ax_nccl_abort_all(g->links);
  }
  free_link(group);
}

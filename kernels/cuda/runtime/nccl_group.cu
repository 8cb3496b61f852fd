/* Joining and leaving the group of GPUs: NCCL's library, opened when the first rank joins, and the
 * communicator.
 *
 * The communicator is blocking: for non-blocking ones NCCL, since 2.23, makes a thread for every
 * call. */
#include "library.h"
#include "nccl.h"
#include "watch.h"

#include <new>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef ax_nccl_communicator communicator;

static const unsigned CONFIG_MAGIC = 0xcafebeef, CONFIG_VERSION = 21700;
static const int UNDEFINED = INT32_MIN;

ax_nccl_functions ax_nccl;
communicator *ax_nccl_group;

static const char FILE_NAME[] = "libnccl.so.2";

static ax_status open_library(void)
{
  void *library = NULL;
  ax_status st = AX_OK;

  if (ax_nccl.library) return AX_OK;
  if (ax_deterministic() && !getenv("NCCL_ALGO"))
    setenv("NCCL_NVLS_ENABLE", "0", 0); /* read when the library first runs */
  AX_TRY(ax_cuda_library(FILE_NAME, "exchanging tensors between GPUs", &library));
#define F(name, parameters) AX_TRY(ax_cuda_symbol(library, FILE_NAME, "nccl" #name, (void **)&ax_nccl.name));
  NCCL_FUNCTIONS(F)
  F(GetErrorString, )
  F(GetLastError, )
#undef F
  if (ax_nccl.GetVersion(&ax_nccl.version) != NCCL_OK || ax_nccl.version < (int)CONFIG_VERSION)
    return ax_fail(
        AX_ENOIMPL,
        "%s is version %d.%d; 2.17 or later is needed (ACCEL_CUDA_LIBRARIES names the folder of another)",
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

/* ---- the group */

/* Before what the thread uses is torn down with the process: a script that ends by os.exit. */
static void at_exit(void)
{
  if (ax_nccl_group && !ax_cuda_forked()) ax_nccl_watch_stop(ax_nccl_group);
}

static void free_group(communicator *g)
{
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

/* NCCL returns when all ranks have joined.  Nothing ends that from here: the watchdog has the
 * launcher end a run whose ranks do not come. */
static ax_status join_nccl(communicator *g, const char id[AX_GROUP_ID])
{
  nccl_config config = { sizeof config, CONFIG_MAGIC, CONFIG_VERSION, 1,        UNDEFINED,
                         UNDEFINED,     UNDEFINED,    NULL,           UNDEFINED };
  nccl_id shared;
  ax_status st = AX_OK;

  memcpy(shared.internal, id, sizeof shared.internal);
  AX_TRY(ax_nccl_watch_start(g));
  g->inside.store(ax_monotonic_ns());
  {
    const int result = ax_nccl.CommInitRankConfig(&g->comm, g->size, shared, g->rank, &config);
    g->inside.store(0);
    if (result != NCCL_OK) {
      st = ax_nccl_failed("joining the GPUs' group", NULL, result);
      g->comm = NULL;
      goto out;
    }
  }
  g->joined.store(true);
  AX_TRY(ax_dist_look(0, AX_OK));
out:
  return st;
}

ax_status ax_nccl_join(ax_group *group, const char id[AX_GROUP_ID])
{
  static bool registered;
  communicator *g = new_group(group);
  cudaStream_t computing;
  ax_status st = AX_OK;

  if (!g) return ax_fail(AX_ENOMEM, "out of memory: the record of a group of GPUs");
  AX_TRY(ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)g->device }, &computing));
  AX_TRY(ax_cuda_status("cudaStreamCreate", cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking)));
  for (int k = 0; k < AX_NCCL_EVENTS; k++) {
    AX_TRY(ax_cuda_status("cudaEventCreate", cudaEventCreateWithFlags(&g->ready[k], cudaEventDisableTiming)));
    AX_TRY(ax_cuda_status("cudaEventCreate", cudaEventCreateWithFlags(&g->done[k], cudaEventDisableTiming)));
  }
  if (!registered) registered = atexit(at_exit) == 0;
  AX_TRY(join_nccl(g, id));
  ax_nccl_group = g;
  ax_cuda_watch = ax_nccl_wait;
  ax_cuda_stopped = ax_nccl_stop_owner;
  ax_cuda_recording_ends = ax_nccl_end_recording;
  group->state = g;
  g = NULL;
out:
  if (g && ax_nccl_watch_stop(g)) {
    if (g->comm && !g->ended.load()) ax_nccl.CommAbort(g->comm);
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
    if (ax_monotonic_ns() - since > AX_NCCL_LEAVING || ax_dist_look(since, AX_OK) != AX_OK) return;
    usleep(100);
  }
  cudaGetLastError();
  g->leaving.store(true);
  if (!ax_nccl_take_calls(g)) return;
  g->finalized = ax_nccl.CommFinalize(g->comm) == NCCL_OK;
  g->inside.store(0);
  pthread_mutex_unlock(&g->calls);
}

void ax_nccl_leave(ax_group *group, bool abort)
{
  communicator *g = ax_nccl_of(group);
  cudaStream_t computing;

  ax_cuda_watch = NULL;
  ax_cuda_recording_ends = NULL;
  ax_nccl_group = NULL;
  ax_cuda_stop.store(false);
  ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)g->device }, &computing);
  if (!abort) finalize(g);
  if (!ax_nccl_watch_stop(g)) return; /* it goes on using g */
  if (!g->ended.load()) {
    if (g->finalized) ax_nccl.CommDestroy(g->comm);
    else ax_nccl.CommAbort(g->comm);
  }
  free_group(g);
}

/* Collectives between the GPUs of several ranks by NCCL, which is opened when the first rank joins.
 *
 * Collectives run in a stream of their own.  An event orders each behind the work that was queued
 * on the device before it.  The computing stream waits for a collective only when `order` requests
 * it, and the host does not wait at all.  So gradients are reduced while backward continues.
 *
 * The communicator is non-blocking: after every call the host polls until NCCL reports that it is
 * done, and every wait of the host checks the other ranks (ax_dist_look).  When a rank has failed,
 * the communicator is aborted, which ends the kernels that wait for that rank, and the wait ends
 * with that rank's error.
 *
 * Sums are equal in every run: the algorithm follows from sizes and topology.  NVLS, which adds in
 * the switch in no fixed order, stays off unless the user set NCCL_NVLS_ENABLE or NCCL_ALGO.  NCCL
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

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- NCCL's interface */

typedef struct nccl_communicator *nccl_comm;
struct nccl_id {
  char internal[AX_GROUP_ID];
};
enum { NCCL_OK = 0, NCCL_IN_PROGRESS = 7 };
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
  if (!getenv("NCCL_ALGO")) setenv("NCCL_NVLS_ENABLE", "0", 0); /* read when the library first runs */
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
struct communicator {
  nccl_comm comm;
  int device, rank, size;
  cudaStream_t stream;
  /* of the last EVENTS collectives: the work queued before them, and their ends */
  cudaEvent_t ready[EVENTS], done[EVENTS];
  uint64_t issued;
};
static communicator *the_group; /* a rank has one */

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

/* Polls until NCCL is done with a call. */
static ax_status settle(const char *what, nccl_comm comm, int result)
{
  const int64_t since = ax_monotonic_ns();
  ax_status st = AX_OK;
  int async = result;

  for (int64_t looks = 1; async == NCCL_IN_PROGRESS; looks++) {
    result = nccl.CommGetAsyncError(comm, &async);
    if (result != NCCL_OK) async = result;
    if (async != NCCL_IN_PROGRESS) break;
    /* another rank has failed: the communicator is useless */
    if (looks % 64 == 0 && (st = ax_dist_look(since, AX_OK)) != AX_OK) return st;
    rest(looks);
  }
  if (async != NCCL_OK) return ax_dist_look(0, failed(what, comm, async));
  return ax_dist_look(0, AX_OK);
}

/* Waits for `event` or, when it is NULL, for all work queued in `stream`, as long as the other
 * ranks are alive. */
static ax_status watched_wait(const char *what, cudaStream_t stream, cudaEvent_t event)
{
  cudaError_t e = event ? cudaEventQuery(event) : cudaStreamQuery(stream);
  const int64_t since = ax_monotonic_ns();
  ax_status st = AX_OK;

  if (e != cudaErrorNotReady) return ax_cuda_status(what, e);
  for (int64_t looks = 1; (e = event ? cudaEventQuery(event) : cudaStreamQuery(stream)) == cudaErrorNotReady;
       looks++) {
    int async = NCCL_OK;
    if (looks % 64 == 0) {
      if ((st = ax_dist_look(since, AX_OK)) != AX_OK) return st;
      if (the_group && nccl.CommGetAsyncError(the_group->comm, &async) == NCCL_OK && async != NCCL_OK &&
          async != NCCL_IN_PROGRESS)
        return ax_dist_look(0, failed(what, the_group->comm, async));
    }
    rest(looks);
  }
  cudaGetLastError(); /* "not ready" would be reported again by the next launch */
  st = ax_dist_look(0, AX_OK);
  return st == AX_OK ? ax_cuda_status(what, e) : st;
}

static void free_group(communicator *g)
{
  for (int k = 0; k < EVENTS; k++) {
    if (g->ready[k]) cudaEventDestroy(g->ready[k]);
    if (g->done[k]) cudaEventDestroy(g->done[k]);
  }
  if (g->stream) cudaStreamDestroy(g->stream);
  free(g);
}

static ax_status identity(int device, char name[AX_DEVICE_NAME])
{
  ax_status st = open_library();
  char bus[32] = "";

  if (st != AX_OK) return st;
  AX_TRY(ax_cuda_status("cudaDeviceGetPCIBusId", cudaDeviceGetPCIBusId(bus, sizeof bus, device)));
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

static ax_status join(ax_group *group, const char id[AX_GROUP_ID])
{
  nccl_config config = { sizeof config, CONFIG_MAGIC, CONFIG_VERSION, 0,        UNDEFINED,
                         UNDEFINED,     UNDEFINED,    NULL,           UNDEFINED };
  communicator *g = (communicator *)calloc(1, sizeof *g);
  cudaStream_t computing;
  nccl_id shared;
  ax_status st = AX_OK;

  if (!g) return ax_fail(AX_ENOMEM, "out of memory: the record of a group of GPUs");
  g->device = group->device;
  g->rank = group->rank;
  g->size = group->size;
  memcpy(shared.internal, id, sizeof shared.internal);
  AX_TRY(ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)g->device }, &computing));
  AX_TRY(ax_cuda_status("cudaStreamCreate", cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking)));
  for (int k = 0; k < EVENTS; k++) {
    AX_TRY(ax_cuda_status("cudaEventCreate", cudaEventCreateWithFlags(&g->ready[k], cudaEventDisableTiming)));
    AX_TRY(ax_cuda_status("cudaEventCreate", cudaEventCreateWithFlags(&g->done[k], cudaEventDisableTiming)));
  }
  {
    const int result = nccl.CommInitRankConfig(&g->comm, g->size, shared, g->rank, &config);
    if (result != NCCL_OK && result != NCCL_IN_PROGRESS) {
      st = failed("joining the GPUs' group", g->comm, result);
      goto out;
    }
    AX_TRY(settle("joining the GPUs' group", g->comm, result));
  }
  the_group = g;
  ax_cuda_watch = watched_wait;
  group->state = g;
  g = NULL;
out:
  if (g) {
    if (g->comm) nccl.CommAbort(g->comm);
    free_group(g);
  }
  return st;
}

/* Leaves the group.  Finalizing announces to NCCL's other ranks that nothing more comes, and waits
 * a few seconds for what they still read. */
static void leave(ax_group *group, bool abort)
{
  communicator *g = of(group);
  const int64_t patience = (int64_t)5 * 1000000000, since = ax_monotonic_ns();
  cudaStream_t computing;
  int async = NCCL_OK;

  ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)g->device }, &computing);
  ax_cuda_watch = NULL;
  the_group = NULL;
  if (!abort) {
    while (cudaStreamQuery(g->stream) == cudaErrorNotReady && !abort) {
      abort = ax_monotonic_ns() - since > patience || ax_dist_look(since, AX_OK) != AX_OK;
      usleep(100);
    }
    cudaGetLastError();
    if (!abort) async = nccl.CommFinalize(g->comm);
    while (!abort && async == NCCL_IN_PROGRESS) {
      if (nccl.CommGetAsyncError(g->comm, &async) != NCCL_OK || ax_monotonic_ns() - since > patience)
        abort = true;
      else if (async == NCCL_IN_PROGRESS) usleep(100);
    }
    abort = abort || async != NCCL_OK;
  }
  if (abort) nccl.CommAbort(g->comm);
  else nccl.CommDestroy(g->comm);
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
  int result = NCCL_OK;

  switch (c->op) {
  case AX_ALL_REDUCE:
    return nccl.AllReduce(c->in, c->out, n, type, reductions[c->reduction], g->comm, g->stream);
  case AX_REDUCE_SCATTER:
    return nccl.ReduceScatter(c->in, c->out, n, type, reductions[c->reduction], g->comm, g->stream);
  case AX_BROADCAST: return nccl.Broadcast(c->in, c->out, n, type, c->root, g->comm, g->stream);
  case AX_ALL_GATHER: return nccl.AllGather(c->in, c->out, n, type, g->comm, g->stream);
  case AX_GATHER:
    if ((result = nccl.GroupStart()) != NCCL_OK) return result;
    for (int r = 0; g->rank == c->root && r < g->size && (result == NCCL_OK || result == NCCL_IN_PROGRESS);
         r++)
      result = nccl.Recv((char *)c->out + (size_t)r * bytes, n, type, r, g->comm, g->stream);
    if (result == NCCL_OK || result == NCCL_IN_PROGRESS)
      result = nccl.Send(c->in, n, type, c->root, g->comm, g->stream);
    {
      const int ended = nccl.GroupEnd();
      return result == NCCL_OK || result == NCCL_IN_PROGRESS ? ended : result;
    }
  default: return NCCL_OK;
  }
}

static ax_status ready(ax_group *group)
{
  if (!ax_cuda_devices[group->device].recording) return AX_OK;
  return ax_fail(AX_ENOIMPL, "a collective inside a captured step: ranks could not be compared when it is "
                             "replayed; call it outside of the captured function");
}

static ax_status issue(ax_group *group, const ax_collective *c, int n, uint64_t *ticket)
{
  communicator *g = of(group);
  const int k = (int)(g->issued % EVENTS);
  const char *name = ax_collective_name(c->op);
  int result = NCCL_OK, ended = NCCL_OK;
  cudaStream_t computing;
  ax_status st;

  for (int i = 0; i < n; i++)
    if (dtype_of(c[i].dtype) < 0)
      return ax_fail(AX_EDTYPE, "%s: NCCL has no type for %s", name, ax_dtype_name(c[i].dtype));
  AX_TRY(ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)g->device }, &computing));
  AX_TRY(ax_cuda_status(name, cudaEventRecord(g->ready[k], computing)));
  AX_TRY(ax_cuda_status(name, cudaStreamWaitEvent(g->stream, g->ready[k], 0)));
  if (n > 1) result = nccl.GroupStart();
  for (int i = 0; i < n && (result == NCCL_OK || result == NCCL_IN_PROGRESS); i++)
    if (c[i].count > 0) result = start(g, &c[i], dtype_of(c[i].dtype));
  if (n > 1) {
    ended = nccl.GroupEnd();
    if (result == NCCL_OK || result == NCCL_IN_PROGRESS) result = ended;
  }
  if (result != NCCL_OK && result != NCCL_IN_PROGRESS) return failed(name, g->comm, result);
  /* only after settling is the collective in the stream, before the event */
  if (result == NCCL_IN_PROGRESS) AX_TRY(settle(name, g->comm, result));
  AX_TRY(ax_cuda_status(name, cudaEventRecord(g->done[k], g->stream)));
  *ticket = ++g->issued;
out:
  return st;
}

/* The event of an old ticket may belong to a later collective by now, whose end comes later. */
static ax_status order(ax_group *group, uint64_t ticket)
{
  communicator *g = of(group);
  cudaStream_t computing;
  const ax_status st = ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)g->device }, &computing);
  return st != AX_OK ? st
                     : ax_cuda_status("collective",
                                      cudaStreamWaitEvent(computing, g->done[(ticket - 1) % EVENTS], 0));
}

extern "C" const ax_transport ax_cuda_nccl = { "nccl", identity, make_id, join, ready, issue,
                                               order,  leave,    NULL,    NULL, NULL,  NULL };

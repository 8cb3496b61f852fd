/* NCCL for the emulated device: its documented contract between real processes, in plain loops over
 * memory that they share.
 *
 * It is compiled against NVIDIA's header, where that is.  Strict where NCCL's documentation forbids
 * something: a call while the communicator is in progress, on another device than the
 * communicator's, with memory that is not the device's, with buffers that overlap, or after the end
 * of the communicator, is an error here; so is a division of a communicator whose operations run,
 * and so are collectives that differ between ranks, which hang or go wrong in NCCL.  A communicator
 * that does not block puts an operation into its stream only after it was asked a few times whether
 * it is done, as NCCL may.
 *
 * $ACCEL_FAKE_NCCL = "KIND:RANK:K,..." lets operation K (from 0) of a rank go wrong: "hang", it
 * never goes on; "stuck", its call does not return before the communicator is aborted; "deaf", nor
 * then; "slow", its call takes half a second; "error", the communicator fails; "die", the process
 * is killed; "corrupt", a bit of its result's last element is wrong.  "split", the process is
 * killed in the communicator's division K.  "numb": the rank's abort of the communicator ends what
 * is under way and does not return, K is 0.
 *
 * The id names a memfd of the process that made it.  Each rank has two slots in it, used in turn;
 * operation k (from 0, of a communicator) may fill its slot when all ranks are done with operation
 * k - 2. */
#include "fake_nccl.h"

#ifdef AX_FAKE_NCCL

#include <algorithm>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHOWN extern "C" __attribute__((visibility("default")))

const ax_emulator *emulator;
SHOWN void ax_emulator_attach(const ax_emulator *e) { emulator = e; }

static std::string last_error;
ncclResult_t no(ncclResult_t result, const std::string &why)
{
  last_error = why;
  return result;
}

static const size_t ALL = HEAD + (size_t)MOST_RANKS * 2 * SLOT + (size_t)MOST_RANKS * MOST_RANKS * MAIL;

size_t size_of(int type)
{
  switch (type) {
  case ncclInt8:
  case ncclUint8: return 1;
  case ncclFloat16:
  case ncclBfloat16: return 2;
  case ncclInt32:
  case ncclUint32:
  case ncclFloat32: return 4;
  case ncclInt64:
  case ncclUint64:
  case ncclFloat64: return 8;
  default: return 0;
  }
}

static thread_local int depth;
static thread_local std::vector<operation> grouped;

static ncclResult_t state_of(ncclComm *c);

static ncclResult_t usable(ncclComm *c)
{
  if (!c || c->magic != LIVE)
    return no(ncclInvalidArgument, "fake NCCL: no such communicator, or its end has come");
  if (c->aborted) return no(ncclInvalidUsage, "fake NCCL: the communicator was aborted");
  if (c->wrong) return no(ncclInvalidUsage, c->error);
  if (c->finalizing) return no(ncclInvalidUsage, "fake NCCL: the communicator was finalized");
  if (c->joining || !c->later.empty())
    return no(ncclInvalidArgument,
              "fake NCCL: Attempt to use communicator before the previous operation returned ncclSuccess");
  if (emulator->device() != c->device)
    return no(ncclInvalidUsage, "fake NCCL: the current device is not the communicator's");
  return ncclSuccess;
}

static bool overlap(const void *a, size_t na, const void *b, size_t nb)
{
  return (const char *)a < (const char *)b + nb && (const char *)b < (const char *)a + na;
}

static ncclResult_t take(const facts &what, const void *in, void *out, ncclComm *c, cudaStream_t stream)
{
  const ncclResult_t st = usable(c);
  const size_t bytes = what.count * size_of(what.type), n = st == ncclSuccess ? (size_t)c->size : 0;
  const size_t in_bytes = what.kind == REDUCE_SCATTER ? bytes * n : bytes,
               out_bytes = what.kind == ALL_GATHER ? bytes * n : bytes;
  const bool reads = what.kind != RECV && !(what.kind == BROADCAST && n && c->rank != what.root),
             writes = what.kind != SEND && !(what.kind == REDUCE && n && c->rank != what.root);

  if (st != ncclSuccess) return st;
  if (size_of(what.type) == 0)
    return no(ncclInvalidArgument, "fake NCCL: invalid type " + std::to_string(what.type));
  if (what.op < 0 || what.op >= ncclNumOps)
    return no(ncclInvalidArgument, "fake NCCL: invalid reduction " + std::to_string(what.op));
  if (what.root < 0 || what.root >= c->size)
    return no(ncclInvalidArgument, "fake NCCL: invalid root or peer " + std::to_string(what.root));
  if (in_bytes > SLOT || out_bytes > SLOT || ((what.kind == SEND || what.kind == RECV) && bytes > MAIL))
    return no(ncclInternalError, "fake NCCL: too long for the stand-in: " + told(what));
  if (bytes && reads && !emulator->owns(in, in_bytes))
    return no(ncclInvalidArgument, "fake NCCL: the input of " + told(what) + " is no memory of a device");
  if (bytes && writes && !emulator->owns(out, out_bytes))
    return no(ncclInvalidArgument, "fake NCCL: the output of " + told(what) + " is no memory of a device");
  if (reads && writes) {
    const char *place = what.kind == ALL_GATHER       ? (const char *)out + (size_t)c->rank * bytes
                        : what.kind == REDUCE_SCATTER ? (const char *)in + (size_t)c->rank * bytes
                                                      : NULL;
    const bool in_place = what.kind == ALL_GATHER       ? in == place
                          : what.kind == REDUCE_SCATTER ? out == place
                                                        : in == out;
    if (!in_place && overlap(in, in_bytes, out, out_bytes))
      return no(ncclInvalidArgument, "fake NCCL: the buffers of " + told(what) + " overlap");
  }
  if ((what.kind == SEND || what.kind == RECV) && depth == 0 && what.root == c->rank)
    return no(ncclInvalidUsage, "fake NCCL: a rank that sends to itself needs a group");
  const operation o = { what, in, out, c, stream };
  if (depth > 0) {
    grouped.push_back(o);
    return ncclSuccess;
  }
  return start({ o });
}

/* ---- NCCL's functions */

SHOWN ncclResult_t ncclGetVersion(int *version)
{
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

SHOWN const char *ncclGetErrorString(ncclResult_t r)
{
  static const char *const texts[] = { "no error",
                                       "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                       "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                       "internal error - please report this issue to the NCCL developers",
                                       "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                       "invalid usage (run with NCCL_DEBUG=WARN for details)",
                                       "remote process exited or there was a network error",
                                       "NCCL operation in progress" };
  return (unsigned)r < 8 ? texts[r] : "unknown result code";
}

SHOWN const char *ncclGetLastError(ncclComm_t c)
{
  return c && c->magic == LIVE && c->wrong ? c->error.c_str() : last_error.c_str();
}

/* Memory for a communicator, open as long as the process lives. */
static ncclResult_t make_area(char *path, size_t size)
{
  const int fd = memfd_create("fake nccl", 0);
  if (fd < 0 || ftruncate(fd, (off_t)ALL) != 0) return no(ncclSystemError, "fake NCCL: no shared memory");
  snprintf(path, size, "/proc/%d/fd/%d", (int)getpid(), fd);
  return ncclSuccess;
}

SHOWN ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
  memset(id, 0, sizeof *id);
  return make_area(id->internal, sizeof id->internal);
}

static ncclResult_t check_config(const ncclConfig_t *config)
{
  if (config &&
      (config->magic != 0xcafebeef || config->version < 21400 || config->size > sizeof(ncclConfig_t)))
    return no(ncclInvalidArgument, "fake NCCL: the configuration was not initialized");
  if (config && config->blocking != 0 && config->blocking != 1 && config->blocking != NCCL_CONFIG_UNDEF_INT)
    return no(ncclInvalidArgument, "fake NCCL: invalid config blocking");
  if (config && config->size > offsetof(ncclConfig_t, splitShare) &&
      config->splitShare != NCCL_CONFIG_UNDEF_INT && config->splitShare != 0 && config->splitShare != 1)
    return no(ncclInvalidArgument, "fake NCCL: invalid config splitShare");
  return ncclSuccess;
}

/* Joins the ranks that have the memory at `path`. */
static ncclResult_t enter(ncclComm_t *out, const char *path, int size, int rank, bool blocking)
{
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return no(ncclSystemError, "fake NCCL: the process that made the id is gone");
  void *area = mmap(NULL, ALL, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  close(fd);
  if (area == MAP_FAILED) return no(ncclSystemError, "fake NCCL: no address space");
  ncclComm *c = new ncclComm();
  c->magic = LIVE;
  c->area = (shared *)area;
  c->rank = rank;
  c->size = size;
  c->device = emulator->device();
  c->blocking = blocking;
  c->looks = 3;
  c->joining = true;
  member &me = c->area->of[rank];
  const char *host = getenv("NCCL_HOSTID");
  me.device = c->device;
  snprintf(me.host, sizeof me.host, "%s", host ? host : std::to_string(getppid()).c_str());
  me.joined = 1;
  *out = c;
  while (c->blocking && state_of(c) == ncclInProgress) usleep(100);
  for (int r = 0; c->blocking && r < size; r++)
    if (r != rank && c->area->of[r].device == me.device && strcmp(c->area->of[r].host, me.host) == 0)
      return no(ncclInvalidUsage, "fake NCCL: Duplicate GPU detected : rank " + std::to_string(rank) +
                                      " and rank " + std::to_string(r));
  return c->blocking ? ncclSuccess : ncclInProgress;
}

SHOWN ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank,
                                          ncclConfig_t *config)
{
  *out = NULL;
  if (size < 1 || size > MOST_RANKS || rank < 0 || rank >= size)
    return no(ncclInvalidArgument, "fake NCCL: invalid rank or number of ranks");
  const ncclResult_t st = check_config(config);
  return st == ncclSuccess ? enter(out, id.internal, size, rank, !config || config->blocking != 0) : st;
}

/* False: the communicator was aborted meanwhile. */
template <class Fn> static bool until(ncclComm *c, Fn there)
{
  while (!there() && !c->aborted) usleep(100);
  return !c->aborted;
}

/* Ranks of a communicator that give one colour, by key and then by rank. */
static std::vector<int> part_of(const ncclComm *c, int colour)
{
  std::vector<int> part;
  for (int r = 0; r < c->size; r++)
    if (c->area->of[r].colour == colour) part.push_back(r);
  std::stable_sort(part.begin(), part.end(),
                   [c](int a, int b) { return c->area->of[a].key < c->area->of[b].key; });
  return part;
}

/* Every rank of the communicator calls it; operations under way are not allowed. */
SHOWN ncclResult_t ncclCommSplit(ncclComm_t c, int colour, int key, ncclComm_t *out, ncclConfig_t *config)
{
  ncclResult_t st = usable(c);

  *out = NULL;
  if (st != ncclSuccess || (st = check_config(config)) != ncclSuccess) return st;
  if (!c->blocking) return no(ncclInvalidUsage, "fake NCCL: only blocking communicators are divided");
  member *of = c->area->of, &me = of[c->rank];
  if (me.done < c->issued)
    return no(ncclInvalidUsage, "fake NCCL: a communicator is divided while its operations run");
  const uint64_t k = ++c->divisions;
  const auto all = [&](std::atomic<uint64_t> member::*count, uint64_t n) {
    return until(c, [&]() {
      for (int r = 0; r < c->size; r++)
        if (of[r].*count < n) return false;
      return true;
    });
  };
  if (goes_wrong("split", c, k - 1)) kill(getpid(), SIGKILL);
  if (!all(&member::divided, k - 1)) return no(ncclInternalError, "fake NCCL: aborted meanwhile");
  me.colour = colour;
  me.key = key;
  me.divides = k;
  if (!all(&member::divides, k)) return no(ncclInternalError, "fake NCCL: aborted meanwhile");
  const std::vector<int> part = part_of(c, colour);
  if (colour >= 0 && part[0] == c->rank) {
    if ((st = make_area(me.path, sizeof me.path)) != ncclSuccess) return st;
    me.has_path = k;
  }
  if (colour >= 0) {
    const int first = part[0], rank = (int)(std::find(part.begin(), part.end(), c->rank) - part.begin());
    if (!until(c, [&]() { return of[first].has_path >= k; }))
      return no(ncclInternalError, "fake NCCL: aborted meanwhile");
    st = enter(out, of[first].path, (int)part.size(), rank, true);
  }
  me.divided = k;
  return st;
}

static ncclResult_t state_of(ncclComm *c)
{
  if (c->wrong) return ncclRemoteError;
  if (c->looks > 0 && --c->looks > 0) return ncclInProgress;
  if (c->joining) {
    for (int r = 0; r < c->size; r++)
      if (!c->area->of[r].joined) return ncclInProgress;
    c->joining = false;
  }
  if (c->finalizing)
    for (int r = 0; r < c->size; r++)
      if (!c->area->of[r].finalized) return ncclInProgress;
  std::vector<std::function<void()>> now;
  now.swap(c->later);
  for (auto &put : now) put();
  return ncclSuccess;
}

SHOWN ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
  if (!c || c->magic != LIVE)
    return no(ncclInvalidArgument, "fake NCCL: no such communicator, or its end has come");
  *state = c->aborted     ? ncclInvalidUsage
           : !c->blocking ? state_of(c)
           : c->wrong     ? ncclRemoteError
                          : ncclSuccess; /* any thread may ask */
  return ncclSuccess;
}

SHOWN ncclResult_t ncclCommFinalize(ncclComm_t c)
{
  const ncclResult_t st = usable(c);
  if (st != ncclSuccess) return st;
  c->area->of[c->rank].finalized = 1;
  c->finalizing = true;
  c->looks = 2;
  while (c->blocking && !c->aborted && state_of(c) == ncclInProgress) usleep(100);
  return c->blocking ? ncclSuccess : ncclInProgress;
}

static ncclResult_t end_of(ncclComm *c, bool abort)
{
  if (!c || c->magic != LIVE)
    return no(ncclInvalidArgument, "fake NCCL: no such communicator, or its end has come");
  if (!abort && !c->finalizing) return no(ncclInvalidUsage, "fake NCCL: destroyed before it was finalized");
  if (abort) c->aborted = true; /* what is under way ends */
  c->later.clear();
  c->magic = 0; /* the record stays for what is in streams */
  while (abort && goes_wrong("numb", c, 0)) usleep(1000);
  return ncclSuccess;
}
SHOWN ncclResult_t ncclCommDestroy(ncclComm_t c) { return end_of(c, false); }
SHOWN ncclResult_t ncclCommAbort(ncclComm_t c) { return end_of(c, true); }

SHOWN ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                 ncclComm_t c, cudaStream_t stream)
{
  return take({ ALL_REDUCE, type, op, 0, count }, in, out, c, stream);
}
SHOWN ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                                 ncclComm_t c, cudaStream_t stream)
{
  return take({ BROADCAST, type, 0, root, count }, in, out, c, stream);
}
SHOWN ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t c,
                                 cudaStream_t stream)
{
  return take({ ALL_GATHER, type, 0, 0, count }, in, out, c, stream);
}
SHOWN ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type,
                                     ncclRedOp_t op, ncclComm_t c, cudaStream_t stream)
{
  return take({ REDUCE_SCATTER, type, op, 0, count }, in, out, c, stream);
}
SHOWN ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                              int root, ncclComm_t c, cudaStream_t stream)
{
  return take({ REDUCE, type, op, root, count }, in, out, c, stream);
}
SHOWN ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                            cudaStream_t stream)
{
  return take({ SEND, type, 0, peer, count }, in, NULL, c, stream);
}
SHOWN ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                            cudaStream_t stream)
{
  return take({ RECV, type, 0, peer, count }, NULL, out, c, stream);
}

SHOWN ncclResult_t ncclGroupStart(void)
{
  depth++;
  return ncclSuccess;
}
SHOWN ncclResult_t ncclGroupEnd(void)
{
  if (depth == 0) return no(ncclInvalidUsage, "fake NCCL: ncclGroupEnd without ncclGroupStart");
  if (--depth > 0) return ncclSuccess;
  std::vector<operation> list;
  list.swap(grouped);
  return start(list);
}

#endif

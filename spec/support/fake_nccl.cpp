/* NCCL for the emulated device: its documented contract between real processes, in plain loops over
 * memory that they share.
 *
 * It is compiled against NVIDIA's header, where that is.  Strict where NCCL's documentation forbids
 * something: a call while the communicator is in progress, on another device than the
 * communicator's, with memory that is not the device's, with buffers that overlap, or after the end
 * of the communicator, is an error here; so are collectives that differ between ranks, which hang
 * or go wrong in NCCL.  A communicator that does not block puts an operation into its stream only
 * after it was asked a few times whether it is done, as NCCL may.
 *
 * $ACCEL_FAKE_NCCL = "KIND:RANK:K" lets operation K (from 0) of a rank go wrong: "hang", it never
 * goes on; "stuck", its call does not return before the communicator is aborted; "deaf", nor then;
 * "error", the communicator fails; "die", the process is killed.
 *
 * The id names a memfd of the process that made it.  Each rank has two slots in it, used in turn;
 * operation k (from 0, of a communicator) may fill its slot when all ranks are done with operation
 * k - 2. */
#include "cuda/vendor/vendor.h"

#if __has_include(<nccl.h>)

#include <nccl.h>

#include <atomic>
#include <fcntl.h>
#include <functional>
#include <memory>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "half.h"

#define SHOWN extern "C" __attribute__((visibility("default")))

enum { MOST_RANKS = 8 };
static const size_t SLOT = (size_t)64 << 20, MAIL = (size_t)16 << 20;

static const ax_emulator *emulator;
SHOWN void ax_emulator_attach(const ax_emulator *e) { emulator = e; }

enum kind { ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECV };
static const char *const kind_names[] = { "AllReduce",     "Broadcast", "AllGather",
                                          "ReduceScatter", "Send",      "Recv" };
struct facts {
  int kind, type, op, root;
  size_t count;
};

struct member {
  std::atomic<int> joined, finalized;
  std::atomic<uint64_t> ready, done; /* operations whose input is in the slot; that are over */
  facts asked[2];
};
struct mailbox {
  std::atomic<uint64_t> sent, taken;
  facts what;
};
struct shared {
  int size;
  member of[MOST_RANKS];
  mailbox mail[MOST_RANKS][MOST_RANKS]; /* [from][to] */
};
static const size_t HEAD = 1 << 20;
static_assert(sizeof(shared) <= HEAD, "the head has room");

struct operation {
  facts what;
  const void *in;
  void *out;
  ncclComm *comm;
  cudaStream_t stream;
};

struct ncclComm {
  std::atomic<unsigned> magic;
  shared *area;
  int rank, size, device;
  bool blocking;
  std::atomic<bool> aborted, wrong;
  std::string error;
  int looks; /* before the state changes */
  bool joining, finalizing;
  /* what a communicator that does not block has not yet put into streams */
  std::vector<std::function<void()>> later;
  uint64_t issued;
};
static const unsigned LIVE = 0x4e43434c;

static std::string last_error;
static ncclResult_t no(ncclResult_t result, const std::string &why)
{
  last_error = why;
  return result;
}

static char *slot_of(shared *s, int rank, uint64_t k)
{
  return (char *)s + HEAD + ((size_t)rank * 2 + k % 2) * SLOT;
}
static char *mail_of(shared *s, int from, int to)
{
  return (char *)s + HEAD + (size_t)MOST_RANKS * 2 * SLOT + ((size_t)from * MOST_RANKS + (size_t)to) * MAIL;
}
static const size_t ALL = HEAD + (size_t)MOST_RANKS * 2 * SLOT + (size_t)MOST_RANKS * MOST_RANKS * MAIL;

static size_t size_of(int type)
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

/* ---- arithmetic: in rank order, half types rounded at each step, as NCCL does it */

template <class T> static T combined(int op, T a, T b)
{
  switch (op) {
  case ncclProd: return (T)(a * b);
  case ncclMax: return a > b || b != b ? a : b; /* a number wins over a NaN */
  case ncclMin: return a < b || b != b ? a : b;
  default: return (T)(a + b);
  }
}

template <class S, class T>
static void fold(int op, int n, void *out, const std::vector<const char *> &in, size_t count, T (*up)(S),
                 S (*down)(T))
{
  for (size_t i = 0; i < count; i++) {
    const T share = op == ncclAvg ? (T)1 / (T)n : (T)1;
    S total = 0;
    for (int r = 0; r < n; r++) {
      T v = up(((const S *)in[(size_t)r])[i]);
      if (op == ncclAvg) v = v * share;
      total = r == 0 ? down(v) : down(combined<T>(op, up(total), v));
    }
    ((S *)out)[i] = total;
  }
}

template <class T> static T same(T v) { return v; }

static void reduce(int type, int op, int n, void *out, const std::vector<const char *> &in, size_t count)
{
  switch (type) {
  case ncclFloat32: fold<float, float>(op, n, out, in, count, same<float>, same<float>); break;
  case ncclFloat64: fold<double, double>(op, n, out, in, count, same<double>, same<double>); break;
  case ncclFloat16:
    fold<uint16_t, float>(
        op, n, out, in, count, [](uint16_t h) { return ax_half_to_float(h); },
        [](float f) { return (uint16_t)ax_float_to_half(f); });
    break;
  case ncclBfloat16:
    fold<uint16_t, float>(
        op, n, out, in, count, [](uint16_t h) { return ax_bf16_to_float(h); },
        [](float f) { return (uint16_t)ax_float_to_bf16(f); });
    break;
  case ncclInt64:
    fold<uint64_t, int64_t>(
        op, n, out, in, count, [](uint64_t v) { return (int64_t)v; }, [](int64_t v) { return (uint64_t)v; });
    break;
  case ncclInt32:
    fold<uint32_t, int64_t>(
        op, n, out, in, count, [](uint32_t v) { return (int64_t)(int32_t)v; },
        [](int64_t v) { return (uint32_t)v; });
    break;
  default:
    fold<uint8_t, int64_t>(
        op, n, out, in, count, [](uint8_t v) { return (int64_t)v; }, [](int64_t v) { return (uint8_t)v; });
  }
}

/* ---- operations in their streams */

static std::string told(const facts &f)
{
  char text[160];
  snprintf(text, sizeof text, "nccl%s(count %zu, type %d, op %d, root %d)", kind_names[f.kind], f.count,
           f.type, f.op, f.root);
  return text;
}

static bool spoil(ncclComm *c, const std::string &why)
{
  c->error = "fake NCCL: " + why;
  c->wrong = true;
  return true;
}

/* Whether operation k of this rank goes wrong in this way. */
static bool goes_wrong(const char *kind, const ncclComm *c, uint64_t k)
{
  static const char *const text = getenv("ACCEL_FAKE_NCCL");
  const size_t n = strlen(kind);
  int rank;
  unsigned long long at;
  return text && strncmp(text, kind, n) == 0 && sscanf(text + n, ":%d:%llu", &rank, &at) == 2 &&
         rank == c->rank && at == k;
}

struct collective {
  operation o;
  uint64_t k;
  bool filled;

  bool step()
  {
    ncclComm *c = o.comm;
    shared *s = c->area;
    member &me = s->of[c->rank];
    const size_t bytes = o.what.count * size_of(o.what.type), n = (size_t)c->size;

    if (c->aborted || c->wrong) return true;
    if (goes_wrong("hang", c, k)) return false;
    if (goes_wrong("error", c, k)) return spoil(c, "the link to another rank went down");
    if (!filled) {
      for (int r = 0; r < c->size; r++)
        if (s->of[r].done + 1 < k) return false;
      me.asked[k % 2] = o.what;
      if (o.what.kind != BROADCAST || o.what.root == c->rank)
        memcpy(slot_of(s, c->rank, k), o.in, o.what.kind == REDUCE_SCATTER ? bytes * n : bytes);
      me.ready = k + 1;
      filled = true;
    }
    for (int r = 0; r < c->size; r++)
      if (s->of[r].ready < k + 1) return false;
    for (int r = 0; r < c->size; r++)
      if (memcmp(&s->of[r].asked[k % 2], &o.what, sizeof o.what) != 0)
        return spoil(c, "rank " + std::to_string(c->rank) + " calls " + told(o.what) + ", rank " +
                            std::to_string(r) + " calls " + told(s->of[r].asked[k % 2]));
    std::vector<const char *> in;
    for (int r = 0; r < c->size; r++)
      in.push_back(slot_of(s, r, k) + (o.what.kind == REDUCE_SCATTER ? (size_t)c->rank * bytes : 0));
    switch (o.what.kind) {
    case BROADCAST: memcpy(o.out, slot_of(s, o.what.root, k), bytes); break;
    case ALL_GATHER:
      for (size_t r = 0; r < n; r++) memcpy((char *)o.out + r * bytes, in[r], bytes);
      break;
    default: reduce(o.what.type, o.what.op, c->size, o.out, in, o.what.count);
    }
    me.done = k + 1;
    return true;
  }
};

/* The sends and receives of a group go on side by side. */
struct letters {
  std::vector<operation> open;

  bool step()
  {
    for (size_t i = 0; i < open.size();) {
      const operation &o = open[i];
      ncclComm *c = o.comm;
      const bool sends = o.what.kind == SEND;
      const int from = sends ? c->rank : o.what.root, to = sends ? o.what.root : c->rank;
      mailbox &m = c->area->mail[from][to];
      const size_t bytes = o.what.count * size_of(o.what.type);
      if (c->aborted || c->wrong) return true;
      if (sends ? m.sent != m.taken : m.sent == m.taken) {
        i++;
        continue;
      }
      if (sends) {
        m.what = o.what;
        memcpy(mail_of(c->area, from, to), o.in, bytes);
        m.sent++;
      } else {
        if (m.what.count != o.what.count || m.what.type != o.what.type)
          return spoil(c, "rank " + std::to_string(to) + " calls " + told(o.what) + ", rank " +
                              std::to_string(from) + " calls " + told(m.what));
        memcpy(o.out, mail_of(c->area, from, to), bytes);
        m.taken++;
      }
      open.erase(open.begin() + (long)i);
    }
    return open.empty();
  }
};

/* A communicator that does not block reports a few times that it is in progress, before it puts the
 * work into its stream. */
static ncclResult_t queue(ncclComm *c, std::function<void()> put)
{
  if (c->blocking) {
    put();
    return ncclSuccess;
  }
  c->later.push_back(std::move(put));
  c->looks = 3;
  return ncclInProgress;
}

/* Gives an operation its number, in the order in which streams get them: one that a graph has
 * recorded at each launch. */
static std::function<bool()> begun(const operation &o)
{
  auto op = std::make_shared<collective>(collective{ o, o.comm->issued++, false });
  if (goes_wrong("die", o.comm, op->k)) kill(getpid(), SIGKILL);
  while (goes_wrong("stuck", o.comm, op->k) && !o.comm->aborted) usleep(1000);
  while (goes_wrong("deaf", o.comm, op->k)) usleep(1000);
  return [op]() { return op->step(); };
}

static int depth;
static std::vector<operation> grouped;

static ncclResult_t start(const std::vector<operation> &list)
{
  ncclResult_t result = ncclSuccess;
  auto mail = std::make_shared<letters>();
  for (const operation &o : list)
    if (o.what.kind == SEND || o.what.kind == RECV) mail->open.push_back(o);
  if (!mail->open.empty()) {
    const cudaStream_t stream = mail->open[0].stream;
    result = queue(mail->open[0].comm, [mail, stream]() {
      emulator->poll(stream, [mail]() { /* a replay exchanges all of them anew */
                                        auto own = std::make_shared<letters>(*mail);
                                        return [own]() { return own->step(); };
      });
    });
  }
  for (const operation &o : list) {
    if (o.what.kind == SEND || o.what.kind == RECV) continue;
    if (o.comm->aborted) return no(ncclInternalError, "fake NCCL: aborted meanwhile");
    result = queue(o.comm, [o]() { emulator->poll(o.stream, [o]() { return begun(o); }); });
    if (o.comm->aborted) return no(ncclInternalError, "fake NCCL: aborted meanwhile");
  }
  return result;
}

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
             writes = what.kind != SEND;

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

SHOWN ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
  const int fd = memfd_create("fake nccl", 0); /* open as long as the process lives */
  if (fd < 0 || ftruncate(fd, (off_t)ALL) != 0) return no(ncclSystemError, "fake NCCL: no shared memory");
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "/proc/%d/fd/%d", (int)getpid(), fd);
  return ncclSuccess;
}

SHOWN ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank,
                                          ncclConfig_t *config)
{
  *out = NULL;
  if (size < 1 || size > MOST_RANKS || rank < 0 || rank >= size)
    return no(ncclInvalidArgument, "fake NCCL: invalid rank or number of ranks");
  if (config &&
      (config->magic != 0xcafebeef || config->version < 21400 || config->size > sizeof(ncclConfig_t)))
    return no(ncclInvalidArgument, "fake NCCL: the configuration was not initialized");
  if (config && config->blocking != 0 && config->blocking != 1 && config->blocking != NCCL_CONFIG_UNDEF_INT)
    return no(ncclInvalidArgument, "fake NCCL: invalid config blocking");
  if (config && config->size > offsetof(ncclConfig_t, splitShare) &&
      config->splitShare != NCCL_CONFIG_UNDEF_INT && config->splitShare != 0 && config->splitShare != 1)
    return no(ncclInvalidArgument, "fake NCCL: invalid config splitShare");
  const int fd = open(id.internal, O_RDWR | O_CLOEXEC);
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
  c->blocking = !config || config->blocking != 0;
  c->looks = 3;
  c->joining = true;
  c->area->of[rank].joined = 1;
  *out = c;
  while (c->blocking && state_of(c) == ncclInProgress) usleep(100);
  return c->blocking ? ncclSuccess : ncclInProgress;
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

/* The stand-in for NCCL: operations in their streams, which exchange data with other processes. */
#include "fake_nccl.h"

#ifdef AX_FAKE_NCCL

#include <memory>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "half.h"

static const char *const kind_names[] = { "AllReduce", "Broadcast", "AllGather", "ReduceScatter",
                                          "Reduce",    "Send",      "Recv" };

static char *slot_of(shared *s, int rank, uint64_t k)
{
  return (char *)s + HEAD + ((size_t)rank * 2 + k % 2) * SLOT;
}
static char *mail_of(shared *s, int from, int to)
{
  return (char *)s + HEAD + (size_t)MOST_RANKS * 2 * SLOT + ((size_t)from * MOST_RANKS + (size_t)to) * MAIL;
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

std::string told(const facts &f)
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

bool goes_wrong(const char *kind, const ncclComm *c, uint64_t k)
{
  const size_t n = strlen(kind);
  int rank;
  unsigned long long at;
  for (const char *text = getenv("ACCEL_FAKE_NCCL"); text; text = strchr(text, ',')) {
    if (*text == ',') text++;
    if (strncmp(text, kind, n) == 0 && sscanf(text + n, ":%d:%llu", &rank, &at) == 2 && rank == c->rank &&
        at == k)
      return true;
  }
  return false;
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
    case REDUCE:
      if (o.what.root == c->rank) reduce(o.what.type, o.what.op, c->size, o.out, in, o.what.count);
      break;
    default: reduce(o.what.type, o.what.op, c->size, o.out, in, o.what.count);
    }
    if (goes_wrong("corrupt", c, k) && bytes && o.out)
      ((char *)o.out)[(o.what.kind == ALL_GATHER ? bytes * n : bytes) - 1] ^= 1;
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
  if (goes_wrong("slow", o.comm, op->k)) usleep(500000);
  while (goes_wrong("stuck", o.comm, op->k) && !o.comm->aborted) usleep(1000);
  while (goes_wrong("deaf", o.comm, op->k)) usleep(1000);
  return [op]() { return op->step(); };
}

ncclResult_t start(const std::vector<operation> &list)
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

#endif

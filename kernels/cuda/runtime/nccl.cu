/* Collectives between the GPUs of several ranks by NCCL, which is opened when the first rank joins
 * (nccl_group.cu).
 *
 * Collectives run in a stream of their own, which all groups share (nccl.h).  An event orders each
 * behind the work that was queued on the device before it.  The computing stream waits for a
 * collective only when `order` requests it, and the host does not wait at all.  So gradients are
 * reduced while backward continues.
 *
 * Every wait of the host checks the other ranks (ax_dist_look).  When a rank has failed, the
 * communicator is aborted, which ends the kernels that wait for that rank, and the wait ends with
 * that rank's error.  Where the host does not wait but is blocked, in a launch or inside NCCL, a
 * thread checks them (the watchdog, nccl_watch.cu).
 *
 * Sums are equal in every run: the algorithm follows from sizes and topology.  NVLS, which adds in
 * the switch in no fixed order, stays off unless the user set NCCL_NVLS_ENABLE or NCCL_ALGO, or
 * results need not be deterministic (ax_deterministic).  NCCL
 * rounds half types at each addition, computes the mean by multiplying by 1 / ranks, and prefers a
 * number to a NaN in max and min; the CPU's collectives prefer the NaN. */
#include "nccl.h"

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
  case AX_E4M3: /* nothing reduces these: bytes are moved */
  case AX_E5M2:
  /* a bool is 0 or 1: max is any, min is all; other reductions are refused */
  case AX_U8:
  case AX_BOOL: return NCCL_UINT8;
  default: return -1;
  }
}

/* in the order of ax_reduction */
static const int reductions[AX_REDUCTIONS] = { NCCL_SUM, NCCL_AVG, NCCL_MAX, NCCL_MIN, NCCL_PROD };

/* Sends and receives of one collective go on side by side, as one of NCCL's groups.  Ranks without
 * elements for each other exchange nothing. */
struct exchange {
  const ax_nccl_link *l;
  int type, result;
  size_t item;

  void send(const void *from, size_t at, size_t n, int to)
  {
    if (n > 0 && result == NCCL_OK)
      result = ax_nccl.Send((const char *)from + at * item, n, type, to, l->comm, ax_nccl_here->stream);
  }
  void receive(void *to, size_t at, size_t n, int from)
  {
    if (n > 0 && result == NCCL_OK)
      result = ax_nccl.Recv((char *)to + at * item, n, type, from, l->comm, ax_nccl_here->stream);
  }
};

static void exchange_splits(exchange *e, const ax_collective *c)
{
  const int64_t *gives = c->splits, *gets = c->splits + e->l->size;
  size_t in = 0, out = 0;

  for (int r = 0; r < e->l->size; r++) {
    e->send(c->in, in, (size_t)gives[r], r);
    e->receive(c->out, out, (size_t)gets[r], r);
    in += (size_t)gives[r];
    out += (size_t)gets[r];
  }
}

static int start_exchange(const ax_nccl_link *l, const ax_collective *c, int type)
{
  exchange e = { l, type, ax_nccl.GroupStart(), ax_dtype_size(c->dtype) };
  const size_t n = (size_t)c->count;
  const bool root = l->rank == c->root;
  int ended;

  if (e.result != NCCL_OK) return e.result;
  switch (c->op) {
  case AX_GATHER:
    for (int r = 0; root && r < l->size; r++) e.receive(c->out, (size_t)r * n, n, r);
    e.send(c->in, 0, n, c->root);
    break;
  case AX_SCATTER:
    for (int r = 0; root && r < l->size; r++) e.send(c->in, (size_t)r * n, n, r);
    e.receive(c->out, 0, n, c->root);
    break;
  case AX_SEND: e.send(c->in, 0, n, c->root); break;
  case AX_RECV: e.receive(c->out, 0, n, c->root); break;
  default: exchange_splits(&e, c);
  }
  ended = ax_nccl.GroupEnd();
  return e.result == NCCL_OK ? ended : e.result;
}

static int start(const ax_nccl_link *l, const ax_collective *c)
{
  const size_t n = (size_t)c->count;
  const int type = dtype_of(c->dtype), op = reductions[c->reduction];
  cudaStream_t stream = ax_nccl_here->stream;

  switch (c->op) {
  case AX_ALL_REDUCE: return ax_nccl.AllReduce(c->in, c->out, n, type, op, l->comm, stream);
  case AX_REDUCE_SCATTER: return ax_nccl.ReduceScatter(c->in, c->out, n, type, op, l->comm, stream);
  case AX_REDUCE: return ax_nccl.Reduce(c->in, c->out, n, type, op, c->root, l->comm, stream);
  case AX_BROADCAST: return ax_nccl.Broadcast(c->in, c->out, n, type, c->root, l->comm, stream);
  case AX_ALL_GATHER: return ax_nccl.AllGather(c->in, c->out, n, type, l->comm, stream);
  default: return start_exchange(l, c, type);
  }
}

/* All of them, as one of NCCL's groups. */
static int start_all(const ax_nccl_link *l, const ax_collective *c, int n)
{
  int result = NCCL_OK, ended;

  if (n > 1 && (result = ax_nccl.GroupStart()) != NCCL_OK) return result;
  for (int i = 0; i < n && result == NCCL_OK; i++)
    if (c[i].count > 0 || c[i].op == AX_ALL_TO_ALL) result = start(l, &c[i]);
  if (n <= 1) return result;
  ended = ax_nccl.GroupEnd();
  return result == NCCL_OK ? ended : result;
}

/* ---- in a captured step
 *
 * The events take NCCL's stream into the recording and back, so that the graph keeps the overlap.
 * They are no others' events: the watchdog may not query one that a recording has recorded.
 * Nothing runs, so nothing counts as issued; a replay does (below). */

static const uint64_t RECORDED = (uint64_t)1 << 63;

static uint64_t recorded_ticket(const ax_nccl_rank *g)
{
  return RECORDED | (uint64_t)g->recordings << 24 | (uint64_t)g->n_recorded;
}

static ax_status new_recorded(ax_nccl_rank *g)
{
  const size_t n = g->recorded.size();
  ax_nccl_events r = {};
  ax_status st;

  if ((size_t)g->n_recorded < n) return AX_OK;
  AX_TRY(ax_cuda_status("cudaEventCreate", cudaEventCreateWithFlags(&r.ready, cudaEventDisableTiming)));
  AX_TRY(ax_cuda_status("cudaEventCreate", cudaEventCreateWithFlags(&r.done, cudaEventDisableTiming)));
  g->recorded.push_back(r);
out:
  return st;
}

static ax_status record(const ax_nccl_link *l, cudaStream_t computing, const ax_collective *c, int n,
                        uint64_t *ticket)
{
  ax_nccl_rank *g = ax_nccl_here;
  const char *name = ax_collective_name(c->op);
  ax_status st;

  AX_TRY(new_recorded(g));
  {
    const ax_nccl_events r = g->recorded[(size_t)g->n_recorded];
    AX_TRY(ax_cuda_status(name, cudaEventRecord(r.ready, computing)));
    AX_TRY(ax_cuda_status(name, cudaStreamWaitEvent(g->stream, r.ready, 0)));
    AX_TRY(ax_nccl_enter_call(g));
    AX_TRY(ax_nccl_leave_call(g, name, l->comm, start_all(l, c, n)));
    AX_TRY(ax_cuda_status(name, cudaEventRecord(r.done, g->stream)));
  }
  g->n_recorded++;
  *ticket = recorded_ticket(g);
out:
  return st;
}

/* The recording ends: brings NCCL's stream back, whose work is in order. */
ax_status ax_nccl_end_recording(int device, cudaStream_t computing)
{
  ax_nccl_rank *g = ax_nccl_here;
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
  ax_nccl_rank *g = ax_nccl_here;
  const uint64_t former = g->issued.load(), number = former + 1;
  const int k = ax_nccl_slot(number);
  cudaStream_t computing;
  ax_status st;

  AX_TRY(ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)g->device }, &computing));
  if (g->ended.load()) return ax_nccl_stopped(g);
  if (begins) {
    if (number > AX_NCCL_EVENTS) AX_TRY(ax_nccl_wait("replay", NULL, g->done[k]));
    /* NCCL's calls run in one order on all ranks: behind those that nobody has waited for */
    if (former)
      AX_TRY(ax_cuda_status("replay", cudaStreamWaitEvent(computing, g->done[ax_nccl_slot(former)], 0)));
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
  ax_nccl_rank *g = ax_nccl_here;
  ax_nccl_link *l = ax_nccl_of(group);
  const uint64_t number = g->issued.load() + 1;
  const int k = ax_nccl_slot(number);
  const char *name = ax_collective_name(c->op);
  cudaStream_t computing;
  ax_status st;

  for (int i = 0; i < n; i++)
    if (dtype_of(c[i].dtype) < 0)
      return ax_fail(AX_EDTYPE, "%s: NCCL has no type for %s", name, ax_dtype_name(c[i].dtype));
  AX_TRY(ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)g->device }, &computing));
  if (ax_cuda_devices[g->device].recording) return record(l, computing, c, n, ticket);
  /* a rank that is so far ahead would wait for its device just as long */
  if (number > AX_NCCL_EVENTS) AX_TRY(ax_nccl_wait(name, NULL, g->done[k]));
  g->begun.store(number);
  AX_TRY(ax_cuda_status(name, cudaEventRecord(g->ready[k], computing)));
  AX_TRY(ax_cuda_status(name, cudaStreamWaitEvent(g->stream, g->ready[k], 0)));
  AX_TRY(ax_nccl_enter_call(g));
  AX_TRY(ax_nccl_leave_call(g, name, l->comm, start_all(l, c, n)));
  AX_TRY(ax_cuda_status(name, cudaEventRecord(g->done[k], g->stream)));
  g->issued.store(number);
  l->last = number;
  *ticket = number;
out:
  return st;
}

/* The event of an old ticket may belong to a later collective by now, whose end comes later. */
static ax_status order(ax_group *group, uint64_t ticket)
{
  ax_nccl_rank *g = ax_nccl_here;
  cudaStream_t computing;
  const ax_status st = ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)g->device }, &computing);
  cudaEvent_t end = g->done[(ticket - 1) % AX_NCCL_EVENTS];

  if (st != AX_OK) return st;
  if (ticket & RECORDED) {
    const int k = (int)(ticket & 0xffffff);
    /* of a recording that has ended, whose end is behind its collectives, or that failed */
    if ((ticket & ~RECORDED) >> 24 != g->recordings || k > g->n_recorded) return AX_OK;
    end = g->recorded[(size_t)k - 1].done;
  }
  return ax_cuda_status("collective", cudaStreamWaitEvent(computing, end, 0));
}

extern "C" const ax_transport ax_cuda_nccl = {
  "nccl", ax_nccl_identity, ax_nccl_make_id, ax_nccl_join, ax_nccl_idle, ax_nccl_drop, issue, order,
  replay, ax_nccl_leave,    ax_nccl_split,   NULL,         NULL,         NULL,         NULL,  NULL,
  NULL
};

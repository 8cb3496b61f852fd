/* dist/tcp.c: what ranks of several machines say to each other where there is no MPI: barriers,
 * texts, small tensors (flags, sizes, sums of metrics), and the id by which their GPUs join.  The
 * GPUs then exchange tensors themselves.
 *
 * The ranks form a star.  Each sends rank 0 the collective that it called.  Rank 0 compares it with
 * its own, rank by rank, and replies to all: go on, or the error that all ranks then raise.  Only
 * then bytes move, in an order that all ranks know, so that no rank sends what none reads.
 *
 * Sockets do not block.  A wait sleeps in slices, between which it checks the machine's abort flag
 * and the clock.  After an error in the middle of data a rank closes its connections; the others
 * notice, wait a moment for the launchers' report of the cause, and fail. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/core.h"
#include "core/dist/links.h"

#define SMALL ((size_t)64 << 10)      /* bytes of a tensor that go this way: flags, sizes, sums of metrics */
#define PIECE ((size_t)256 << 10)     /* bytes of a rank that are sent at a time */
#define SLICE_MS 100                  /* how long a wait sleeps between checks of the abort flag */
#define WORD_NS ((int64_t)3000000000) /* how long a closed connection may wait for its explanation */

typedef enum { TCP_CALL = 0x61780001, TCP_GO, TCP_ERROR, TCP_FINISHED } tcp_kind;
typedef struct tcp_request {
  uint32_t kind;
  ax_collective_call call;
} tcp_request; /* a rank to rank 0 */
/* back; `length` bytes of text follow */
typedef struct tcp_reply {
  uint32_t kind;
  int32_t status;
  uint32_t length;
  uint32_t signal; /* see ax_control */
  uint64_t signal_from;
} tcp_reply;

static struct {
  int rank, size, per_machine;
  int fd[AX_MAX_RANKS];
  /* in rank 0: the last collective that each has called; number 0: none yet */
  ax_collective_call last[AX_MAX_RANKS];
  bool sent_finished;
} tcp;
static ax_group group;

static const char *name_of(int rank, char *buf, size_t size)
{
  return ax_rank_name(rank, tcp.per_machine, buf, size);
}

/* Describes another rank's last collective; only rank 0 knows it. */
static const char *doing(int rank, char *buf, size_t size)
{
  const ax_collective_call *w = &tcp.last[rank];
  char text[128];

  if (tcp.rank != 0)
    snprintf(buf, size, "through which all ranks meet: it, or one that it waits for, has not come");
  else if (w->number == 0) snprintf(buf, size, "which has called none yet");
  else
    snprintf(buf, size, "which last called #%llu, %s at %.*s", (unsigned long long)w->number,
             ax_collective_text(&w->facts, text, sizeof text), AX_WHERE_TEXT, w->where);
  return buf;
}

/* ---- bytes */

/* The connection to `rank` has ended.  Waits a moment for the reason, which the launchers
 * exchange. */
static ax_status lost(int rank, int error)
{
  const int64_t since = ax_monotonic_ns();
  char name[48];

  while (!ax_apart_aborted() && ax_monotonic_ns() - since < WORD_NS) usleep(10000);
  if (ax_apart_aborted()) return ax_shm_aborted();
  return ax_fail(AX_EABORTED,
                 "the connection to %s has ended%s%s: that rank has ended, or left a collective half-way",
                 name_of(rank, name, sizeof name), error ? ": " : "", error ? strerror(error) : "");
}

/* Sends or receives exactly n bytes.  The group's timeout bounds the time without any progress. */
static ax_status move(int rank, void *buf, size_t n, bool sends)
{
  const int64_t given = atomic_load(&ax_shm.control->rank[ax_shm.rank].timeout),
                limit = given + (tcp.rank != 0 ? AX_GRACE_NS : 0);
  struct pollfd p = { .fd = tcp.fd[rank], .events = sends ? POLLOUT : POLLIN };
  int64_t waited = 0, before = ax_monotonic_ns(), now;
  char *at = buf, name[48], text[400];

  while (n > 0) {
    const ssize_t k = sends ? send(p.fd, at, n, MSG_NOSIGNAL) : recv(p.fd, at, n, 0);
    if (k > 0) {
      at += k;
      n -= (size_t)k;
      waited = 0;
      before = ax_monotonic_ns();
      continue;
    }
    if (k == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
      return lost(rank, k == 0 ? 0 : errno);
    if (ax_apart_aborted()) return ax_shm_aborted();
    ax_shm_look();
    if (waited >= limit)
      return ax_fail(AX_ETIMEOUT, "waited %g s for %s, %s (%s sets the limit%s)", (double)limit * 1e-9,
                     name_of(rank, name, sizeof name), doing(rank, text, sizeof text),
                     ax_shm_limit_source(given), tcp.rank != 0 ? "; 1 s more is for that rank's word" : "");
    poll(&p, 1,
         limit - waited < SLICE_MS * (int64_t)1000000 ? (int)((limit - waited) / 1000000) + 1 : SLICE_MS);
    now = ax_monotonic_ns();
    /* A slice that took much longer was spent stopped (Ctrl-Z, a debugger), not waiting. */
    if (!ax_hold_stands(ax_shm.control))
      waited += now - before < 2 * SLICE_MS * (int64_t)1000000 ? now - before : SLICE_MS * (int64_t)1000000;
    before = now;
  }
  return AX_OK;
}

static ax_status put(int rank, const void *from, size_t n)
{
  return move(rank, (void *)(uintptr_t)from, n, true);
}
static ax_status get(int rank, void *to, size_t n) { return move(rank, to, n, false); }

/* ---- the meeting */

/* Sends rank 0's error to all other ranks that have not ended. */
static ax_status reply_to_all(ax_status st)
{
  char text[1200];

  snprintf(text, sizeof text, "%s", ax_last_error());
  for (int r = 1; r < tcp.size && !ax_apart_aborted(); r++) {
    const tcp_reply a = { TCP_ERROR, (int32_t)st, (uint32_t)strlen(text), 0, 0 };
    char whole[sizeof a + sizeof text];
    memcpy(whole, &a, sizeof a);
    memcpy(whole + sizeof a, text, a.length);
    /* replies are short: the socket has room for one */
    (void)!send(tcp.fd[r], whole, sizeof a + a.length, MSG_NOSIGNAL);
  }
  return ax_fail(st, "%s", text);
}

static ax_status meet_all(const ax_collective_call *mine)
{
  const ax_control *control = ax_shm.control;
  const tcp_reply go = { TCP_GO, AX_OK, 0, atomic_load(&control->signal),
                         atomic_load(&control->signal_from) };
  ax_status st = AX_OK;
  char name[48], text[400];

  tcp.last[0] = *mine;
  for (int r = 1; r < tcp.size; r++) {
    tcp_request request;
    AX_TRY(get(r, &request, sizeof request));
    if (request.kind == TCP_FINISHED) {
      st = ax_fail(AX_EABORTED, "%s, %s, has finished and will not take part in this",
                   name_of(r, name, sizeof name), doing(r, text, sizeof text));
      goto out;
    }
    if (request.kind != TCP_CALL || (unsigned)request.call.facts.op >= AX_COLLECTIVES ||
        request.call.facts.ndim < 0 || request.call.facts.ndim > AX_MAX_DIMS) {
      st = ax_fail(AX_EABORTED,
                   "%s sent what is no collective: two runs, or two versions of accel-run, on one connection",
                   name_of(r, name, sizeof name));
      goto out;
    }
    tcp.last[r] = request.call;
    if (!ax_collective_same(&mine->facts, &tcp.last[r].facts)) {
      st = ax_calls_differ(0, mine, r, &tcp.last[r]);
      goto out;
    }
  }
  for (int r = 1; r < tcp.size; r++)
    if ((st = put(r, &go, sizeof go)) != AX_OK) return st;
out:
  return st == AX_OK ? AX_OK : reply_to_all(st);
}

static ax_status meet_root(const ax_collective_call *mine)
{
  tcp_request request;
  tcp_reply a;
  char text[1200] = "";
  ax_status st;
  ssize_t k;

  memset(&request, 0, sizeof request); /* padding, too, goes over the wire */
  request.kind = TCP_CALL;
  request.call = *mine;
  request.call.facts.in = request.call.facts.out = NULL;
  /* When rank 0 has ended, its last message may still be in the socket: it explains more than the
   * failure to send. */
  k = send(tcp.fd[0], &request, sizeof request, MSG_NOSIGNAL);
  if (k >= 0 || errno == EAGAIN || errno == EINTR)
    AX_TRY(put(0, (char *)&request + (k > 0 ? k : 0), sizeof request - (size_t)(k > 0 ? k : 0)));
  AX_TRY(get(0, &a, sizeof a));
  if (a.kind == TCP_GO && a.length == 0) return ax_apart_signal(a.signal, a.signal_from);
  if (a.kind == TCP_FINISHED)
    return ax_fail(AX_EABORTED, "rank 0 (machine 0) has finished and will not take part in this");
  if (a.kind != TCP_ERROR || a.length >= sizeof text)
    return ax_fail(AX_EABORTED, "rank 0 (machine 0) sent bytes that are no reply: two runs, or two versions "
                                "of accel-run, on one connection");
  AX_TRY(get(0, text, a.length));
  return ax_fail(a.status == AX_EMISMATCH || a.status == AX_ETIMEOUT ? (ax_status)a.status : AX_EABORTED,
                 "%s", text);
out:
  return st;
}

/* ---- data */

static ax_status broadcast(const ax_collective *c)
{
  const size_t bytes = (size_t)c->count * ax_dtype_size(c->dtype);
  ax_status st = AX_OK;

  if (tcp.rank == c->root && c->out != c->in && bytes > 0) memcpy(c->out, c->in, bytes);
  if (tcp.rank != 0) return tcp.rank == c->root ? put(0, c->in, bytes) : get(0, c->out, bytes);
  for (size_t at = 0; at < bytes; at += PIECE) {
    const size_t len = bytes - at < PIECE ? bytes - at : PIECE;
    if (c->root != 0) AX_TRY(get(c->root, (char *)c->out + at, len));
    for (int r = 1; r < tcp.size; r++)
      if (r != c->root) AX_TRY(put(r, (const char *)c->out + at, len));
  }
out:
  return st;
}

static ax_status all_gather(const ax_collective *c)
{
  const size_t bytes = (size_t)c->count * ax_dtype_size(c->dtype);
  ax_status st = AX_OK;

  if (tcp.rank != 0) {
    AX_TRY(put(0, c->in, bytes));
    return get(0, c->out, bytes * (size_t)tcp.size);
  }
  if (bytes > 0) memmove(c->out, c->in, bytes);
  for (int r = 1; r < tcp.size; r++) AX_TRY(get(r, (char *)c->out + (size_t)r * bytes, bytes));
  for (int r = 1; r < tcp.size; r++) AX_TRY(put(r, c->out, bytes * (size_t)tcp.size));
out:
  return st;
}

/* The few bytes of a rank's part of a reduction, or of a gather. */
static size_t bytes_of(const ax_collective *c)
{
  const size_t n = c->op == AX_REDUCE_SCATTER ? (size_t)tcp.size : 1;
  return (size_t)c->count * ax_dtype_size(c->dtype) * n;
}

/* Every rank gets all parts, and takes what it needs. */
static ax_status exchange(const ax_collective *c)
{
  const size_t bytes = bytes_of(c), own = bytes / (size_t)tcp.size * (size_t)tcp.rank;
  char *all = ax_malloc(bytes * (size_t)tcp.size + 1);
  const ax_collective g = {
    .op = AX_ALL_GATHER, .dtype = AX_U8, .count = (int64_t)bytes, .in = c->in, .out = all
  };
  const void *parts[AX_MAX_RANKS];
  ax_status st = all ? all_gather(&g) : AX_ENOMEM;

  if (st == AX_OK && c->op == AX_GATHER) {
    if (tcp.rank == c->root && bytes > 0) memcpy(c->out, all, bytes * (size_t)tcp.size);
  } else if (st == AX_OK) {
    for (int r = 0; r < tcp.size; r++)
      parts[r] = all + (size_t)r * bytes + (c->op == AX_REDUCE_SCATTER ? own : 0);
    ax_dist_reduce(c->dtype, c->reduction, c->out, parts, tcp.size, (size_t)c->count);
  }
  ax_mfree(all);
  return st;
}

static ax_status carry(const ax_collective *c)
{
  switch (c->op) {
  case AX_BROADCAST: return broadcast(c);
  case AX_ALL_GATHER:
  case AX_JOIN: return all_gather(c);
  case AX_ALL_REDUCE:
  case AX_REDUCE_SCATTER:
  case AX_GATHER: return exchange(c);
  case AX_BARRIER: return AX_OK; /* the meeting was it */
  default: return ax_across_world(c);
  }
}

/* ---- the transport */

static ax_status run(const ax_collective *c)
{
  const ax_rank_record *me = &ax_shm.control->rank[ax_shm.rank];
  ax_collective_call mine = { .number = atomic_load(&me->world_calls), .facts = *c };
  ax_status st;

  memcpy(mine.where, me->where, sizeof mine.where);
  if ((st = tcp.rank == 0 ? meet_all(&mine) : meet_root(&mine)) != AX_OK) return st;
  if ((st = carry(c)) != AX_OK)
    for (int r = 0; r < tcp.size; r++)
      if (tcp.fd[r] >= 0) shutdown(tcp.fd[r], SHUT_RDWR); /* the others wait for data that will not come */
  return st;
}

/* Before the others see it: they raise it too. */
static ax_status refuse_tensors(const ax_collective *c)
{
  const int machines = tcp.size / tcp.per_machine;
  char text[128];

  if (c->ndim == 0 || bytes_of(c) <= SMALL) return AX_OK;
  return ax_fail(AX_ENOIMPL,
                 "%s: tensors of more than 64 KiB in the CPU's memory travel between machines through MPI, "
                 "and this run was started without it; start it with: mpirun -n %d --map-by ppr:1:node "
                 "accel-run --num_machines %d --num_processes %d script.lua   (or srun --mpi=pmix)",
                 ax_collective_text(c, text, sizeof text), machines, machines, tcp.size);
}

static ax_status enter_and_run(const ax_collective *given)
{
  ax_collective c = *given;
  ax_status st = ax_shm_refuse_broken();

  if (st != AX_OK || (st = ax_across_refuse_pairs(given)) != AX_OK) return st;
  if ((st = refuse_tensors(given)) != AX_OK) return st;
  if (c.op == AX_BARRIER) c = (ax_collective){ .op = AX_BARRIER };
  ax_shm_enter(&c, 0);
  st = ax_apart_aborted() ? ax_shm_aborted() : run(&c);
  ax_shm_leave(st);
  return st;
}

static ax_status tcp_issue(ax_group *g, const ax_collective *c, int n, uint64_t *ticket)
{
  ax_status st = AX_OK;

  *ticket = 0; /* they are over before this returns */
  for (int k = 0; k < n && st == AX_OK; k++) st = enter_and_run(&c[k]);
  return st;
}

/* Also at the end of a rank: once. */
void ax_tcp_finished(void)
{
  tcp_request request;
  const tcp_reply a = { TCP_FINISHED, 0, 0, 0, 0 };

  if (tcp.size == 0 || tcp.sent_finished) return;
  tcp.sent_finished = true;
  memset(&request, 0, sizeof request);
  request.kind = TCP_FINISHED;
  if (tcp.rank != 0) (void)!send(tcp.fd[0], &request, sizeof request, MSG_NOSIGNAL);
  else
    for (int r = 1; r < tcp.size; r++) (void)!send(tcp.fd[r], &a, sizeof a, MSG_NOSIGNAL);
}

static void tcp_leave(ax_group *g, bool abort)
{
  (void)abort;
  ax_tcp_finished();
  ax_shm_finished(ax_shm.control, g->local_rank);
}

static const ax_transport transport = {
  .name = "tcp",
  .issue = tcp_issue,
  .leave = tcp_leave,
  .split = ax_across_split,
  .set_timeout = ax_apart_set_timeout,
  .post = ax_apart_post,
  .look = ax_apart_look,
  .watch = ax_apart_watch,
};

void ax_tcp_join(int rank, int size, int local_size, const int *fd)
{
  tcp.rank = rank;
  tcp.size = size;
  tcp.per_machine = local_size;
  for (int r = 0; r < size; r++) tcp.fd[r] = rank == 0 || r == 0 ? fd[r] : -1;
  tcp.fd[rank] = -1;
  ax_shm.first = rank / local_size * local_size;
  ax_shm.machines = size / local_size;
  group = (ax_group){
    .transport = &transport,
    .state = &tcp,
    .rank = rank,
    .size = size,
    .local_rank = rank % local_size,
    .local_size = local_size,
  };
  ax_dist_set_world(&group);
}

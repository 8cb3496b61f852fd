/* dist/chain.c: collectives between ranks of several machines, over MPI: the transport "mpi".
 *
 * The ranks of a machine meet over shared memory (dist/steps.h); local rank 0, the machine's
 * leader, exchanges messages with the leaders of the machines before and behind it.  The machines
 * form a chain.
 *
 * Meeting: each leader compares its ranks' calls with rank 0's, which comes down the chain from
 * machine 0; the verdict comes back from the last machine.  Then data moves.
 *
 * A reduction goes up the chain in chunks: machine 0 adds up its ranks' parts in rank order, and
 * each further machine adds its own to what comes.  So every element is added up in the order of
 * the ranks, by the same operations as on one machine: the bits do not depend on how many machines
 * the ranks are spread over.  The last machine's results go down the chain while later chunks still
 * go up.  A link carries the data once in each direction, as in a ring.
 *
 * Data that is not reduced streams from its machine along the chain, in both directions.
 *
 * After an error in the middle of data the group is broken, and messages may be left over. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "core/core.h"
#include "core/dist/apart.h"

#define TEXT 1100
#define AHEAD 6 /* chunks under way between two machines */
#define BACK 4  /* steps that a rank may be ahead of its leader */

typedef enum { CALL = 0x61786d01, FAILED, FINISHED } message_kind;
typedef struct message {
  uint32_t kind;
  int32_t status;
  uint32_t signal; /* see ax_control */
  uint64_t signal_from;
  ax_collective_call call; /* rank 0's */
  char text[TEXT];
} message;

static struct {
  int rank, size, here, first; /* ranks of each machine; the first one of this */
  int machine, machines;
  bool said_end, ended;
  ax_point point; /* where the launchers meet */
  /* messages of the leader: sent to the neighbours, and their last words */
  message out, word, in[2];
  ax_mpi_request sent[2], coming[2];
  bool listens[2], is_sent[2];
} chain;
static ax_group group;

enum { BEFORE, BEHIND }; /* the neighbours */

static bool leads(void) { return ax_shm.rank == 0; }
static bool has(int side) { return side == BEFORE ? chain.machine > 0 : chain.machine < chain.machines - 1; }
static int neighbour(int side) { return chain.machine + (side == BEFORE ? -1 : 1); }

/* ---- meeting --------------------------------------------------------------------------------- */

/* The last message may still be on its way: it was taken before the answer to it came. */
static ax_status say(const message *m, int side)
{
  ax_status st = AX_OK;

  if (!has(side)) return AX_OK;
  st = ax_mpi_send(m, sizeof *m, neighbour(side), AX_TAG_CALL, &chain.sent[side]);
  chain.is_sent[side] = st == AX_OK;
  return st;
}

static ax_status flush(void)
{
  ax_status st = AX_OK;

  for (int side = 0; side < 2; side++) {
    if (chain.is_sent[side]) AX_TRY(ax_mpi_wait(&chain.sent[side], neighbour(side)));
    chain.is_sent[side] = false;
  }
out:
  return st;
}

static ax_status listen_to(int side)
{
  if (chain.listens[side] || !has(side)) return AX_OK;
  chain.listens[side] = true;
  return ax_mpi_receive(&chain.in[side], sizeof chain.in[side], neighbour(side), AX_TAG_CALL,
                        &chain.coming[side]);
}

/* Waits for the neighbour's message; its error becomes ours. */
static ax_status hear(int side)
{
  message *m = &chain.in[side];
  char name[48];
  ax_status st;

  AX_TRY(listen_to(side));
  AX_TRY(ax_mpi_wait(&chain.coming[side], neighbour(side)));
  if (m->kind == FINISHED) /* it says no more */
    return ax_fail(AX_EABORTED, "%s has finished and will not take part in this",
                   ax_rank_name(neighbour(side) * chain.here, chain.here, name, sizeof name));
  chain.listens[side] = false;
  m->text[TEXT - 1] = '\0';
  if (m->kind == CALL) return AX_OK;
  return ax_fail(m->kind == FAILED && (m->status == AX_EMISMATCH || m->status == AX_ETIMEOUT)
                     ? (ax_status)m->status
                     : AX_EABORTED,
                 "%s", m->kind == FAILED ? m->text : "another machine sent what is no collective");
out:
  return st;
}

/* Compares the calls of this machine's ranks with rank 0's. */
static ax_status compare(const ax_collective_call *zero)
{
  for (int r = 0; r < ax_shm.size; r++) {
    const ax_collective_call *theirs = ax_step_call(r);
    if (!ax_collective_same(&zero->facts, &theirs->facts))
      return ax_calls_differ(0, zero, chain.first + r, theirs);
  }
  return AX_OK;
}

/* Sends the error to both neighbours; nobody waits for an answer. */
static ax_status spread(ax_status st)
{
  memset(&chain.word, 0, sizeof chain.word); /* padding, too, goes over the wire */
  chain.word.kind = FAILED;
  chain.word.status = (int32_t)st;
  snprintf(chain.word.text, sizeof chain.word.text, "%s", ax_last_error());
  if (!ax_apart_aborted())
    for (int side = 0; side < 2; side++) say(&chain.word, side);
  return ax_fail(st, "%s", chain.word.text);
}

/* The leaders' part.  st: whether all ranks of this machine have come. */
static ax_status agree(ax_status st)
{
  AX_TRY(st);
  AX_TRY(flush());
  if (has(BEFORE)) AX_TRY(hear(BEFORE));
  memset(&chain.out, 0, sizeof chain.out);
  chain.out.kind = CALL;
  if (has(BEFORE)) ax_apart_signal(chain.in[BEFORE].signal, chain.in[BEFORE].signal_from);
  chain.out.signal = atomic_load(&ax_shm.control->signal);
  chain.out.signal_from = atomic_load(&ax_shm.control->signal_from);
  chain.out.call = has(BEFORE) ? chain.in[BEFORE].call : *ax_step_call(0);
  chain.out.call.facts.in = chain.out.call.facts.out = NULL;
  AX_TRY(compare(&chain.out.call));
  AX_TRY(say(&chain.out, BEHIND));
  if (has(BEHIND)) AX_TRY(hear(BEHIND));
  AX_TRY(say(&chain.out, BEFORE));
out:
  return st == AX_OK ? AX_OK : spread(st);
}

typedef struct verdict {
  int32_t status;
  char text[TEXT];
} verdict;

/* All ranks call the same, or all get the same error. */
static ax_status meet(const ax_collective *c)
{
  verdict v = { AX_OK, "" };
  ax_status st;

  AX_TRY(ax_step_begin());
  ax_step_header(c);
  st = ax_step_meet(false, leads() ? AX_FROM_ALL : ax_shm.rank);
  if (leads()) {
    v.status = (int32_t)(st = agree(st));
    if (st != AX_OK) snprintf(v.text, sizeof v.text, "%s", ax_last_error());
  } else if (st != AX_OK) {
    return st;
  }
  ax_step_end();
  if (ax_shm.size == 1) return st;
  AX_TRY(ax_step_begin());
  if (leads()) ax_step_put(0, &v, sizeof v.status + strlen(v.text) + 1);
  AX_TRY(ax_step_meet(false, leads() ? ax_shm.rank : 0));
  if (!leads()) {
    memcpy(&v.status, ax_step_slot(0), sizeof v.status);
    if (v.status != AX_OK) snprintf(v.text, sizeof v.text, "%s", ax_step_slot(0) + sizeof v.status);
  }
  ax_step_end();
  return v.status == AX_OK ? AX_OK : ax_fail((ax_status)v.status, "%s", v.text);
out:
  return st;
}

/* ---- reductions ------------------------------------------------------------------------------ */

/* A chunk of a reduction in a leader. */
typedef struct cell {
  char *sum, *result;
  ax_mpi_request sum_in, sum_out, result_in, result_out;
  bool has_sum_out, has_result_out;
} cell;

typedef struct reduction {
  const ax_collective *c;
  size_t item, wide, most, count; /* bytes of an element and of its sum; elements of a chunk, and in all */
  int chunks, lag;                /* results come `lag` chunks later */
  int cells, ahead;               /* chunks that the leader has room for; that it listens for */
  cell *cell;
  char *room;
} reduction;

static size_t length_of(const reduction *r, int chunk)
{
  const size_t at = (size_t)chunk * r->most;
  return r->count - at < r->most ? r->count - at : r->most;
}
static cell *cell_of(reduction *r, int chunk) { return &r->cell[chunk % r->cells]; }

static ax_status settle(bool *is_sent, ax_mpi_request *q, int machine)
{
  const bool was = *is_sent;

  *is_sent = false;
  return was ? ax_mpi_wait(q, machine) : AX_OK;
}

static ax_status expect_sum(reduction *r, int chunk)
{
  cell *k = cell_of(r, chunk);
  ax_status st;

  if (!has(BEFORE) || chunk >= r->chunks) return AX_OK;
  AX_TRY(settle(&k->has_sum_out, &k->sum_out, neighbour(BEHIND)));
  return ax_mpi_receive(k->sum, length_of(r, chunk) * r->wide, neighbour(BEFORE), AX_TAG_UP, &k->sum_in);
out:
  return st;
}

static ax_status open_reduction(reduction *r)
{
  const size_t sums = r->most * r->wide, results = r->most * r->item;
  ax_status st = AX_OK;

  r->cells = r->lag + 4;
  r->ahead = r->cells - 2;
  r->cell = ax_calloc((size_t)r->cells, sizeof *r->cell);
  r->room = ax_malloc((size_t)r->cells * (sums + results));
  if (!r->cell || !r->room) return AX_ENOMEM;
  for (int k = 0; k < r->cells; k++) {
    r->cell[k].sum = r->room + (size_t)k * (sums + results);
    r->cell[k].result = r->cell[k].sum + sums;
  }
  for (int k = 0; k < r->ahead && k < r->chunks; k++) AX_TRY(expect_sum(r, k));
out:
  return st;
}

static ax_status close_reduction(reduction *r, ax_status st)
{
  for (int k = 0; k < r->cells && r->cell && st == AX_OK; k++) {
    AX_TRY(settle(&r->cell[k].has_sum_out, &r->cell[k].sum_out, neighbour(BEHIND)));
    AX_TRY(settle(&r->cell[k].has_result_out, &r->cell[k].result_out, neighbour(BEFORE)));
  }
out:
  /* after an error MPI may still write there: the memory is left to it */
  if (st != AX_OK) return st;
  ax_mfree(r->cell);
  ax_mfree(r->room);
  return st;
}

static ax_status give_result(reduction *r, int chunk)
{
  cell *k = cell_of(r, chunk);
  ax_status st = AX_OK;

  if (!has(BEFORE)) return AX_OK;
  st = ax_mpi_send(k->result, length_of(r, chunk) * r->item, neighbour(BEFORE), AX_TAG_DOWN, &k->result_out);
  k->has_result_out = st == AX_OK;
  return st;
}

/* Adds this machine's parts of a chunk, which are in the slots, and sends the sum on. */
static ax_status add_up(reduction *r, int chunk)
{
  const ax_collective *c = r->c;
  const size_t len = length_of(r, chunk);
  cell *k = cell_of(r, chunk);
  const void *parts[AX_MAX_RANKS];
  ax_status st = AX_OK;

  parts[0] = (const char *)c->in + (size_t)chunk * r->most * r->item;
  for (int n = 1; n < ax_shm.size; n++) parts[n] = ax_step_slot(n);
  if (has(BEFORE)) AX_TRY(ax_mpi_wait(&k->sum_in, neighbour(BEFORE)));
  else AX_TRY(settle(&k->has_sum_out, &k->sum_out, neighbour(BEHIND)));
  AX_TRY(settle(&k->has_result_out, &k->result_out, neighbour(BEFORE)));
  ax_dist_accumulate(c->dtype, c->reduction, k->sum, !has(BEFORE), parts, ax_shm.size, len);
  if (has(BEHIND)) {
    AX_TRY(ax_mpi_receive(k->result, len * r->item, neighbour(BEHIND), AX_TAG_DOWN, &k->result_in));
    AX_TRY(ax_mpi_send(k->sum, len * r->wide, neighbour(BEHIND), AX_TAG_UP, &k->sum_out));
    k->has_sum_out = true;
  } else {
    ax_dist_accumulated(c->dtype, c->reduction, k->result, k->sum, chain.size, len);
    AX_TRY(give_result(r, chunk));
  }
  return expect_sum(r, chunk + r->ahead);
out:
  return st;
}

static ax_status take_result(reduction *r, int chunk)
{
  ax_status st;

  if (!has(BEHIND)) return AX_OK;
  AX_TRY(ax_mpi_wait(&cell_of(r, chunk)->result_in, neighbour(BEHIND)));
  return give_result(r, chunk);
out:
  return st;
}

/* Copies what this rank wants of a chunk: elements `from` to `to` - 1 of all. */
static void keep(const reduction *r, int chunk, const char *result, size_t from, size_t to)
{
  const size_t at = (size_t)chunk * r->most, end = at + length_of(r, chunk);
  const size_t a = at > from ? at : from, b = end < to ? end : to;

  if (a < b) memcpy((char *)r->c->out + (a - from) * r->item, result + (a - at) * r->item, (b - a) * r->item);
}

/* One step of the leader: takes chunk t from the machine's ranks, and gives them the result of
 * chunk t - lag. */
static ax_status lead(reduction *r, int t, size_t from, size_t to)
{
  const int done = t - r->lag;
  ax_status st;

  AX_TRY(ax_step_begin());
  if (done >= 0 && done < r->chunks) {
    AX_TRY(take_result(r, done));
    if (ax_shm.size > 1) ax_step_put(0, cell_of(r, done)->result, length_of(r, done) * r->item);
  }
  ax_step_fill();
  if (done >= 0 && done < r->chunks) keep(r, done, cell_of(r, done)->result, from, to);
  for (int n = 1; n < ax_shm.size && t < r->chunks; n++) AX_TRY(ax_step_wait_filled(n, 0));
  if (t < r->chunks) AX_TRY(add_up(r, t));
  ax_step_end();
out:
  return st;
}

/* One step of another rank: it gives chunk t, and reads a result that the leader gave BACK steps
 * ago. */
static ax_status follow(const reduction *r, int t, bool last, size_t from, size_t to)
{
  const int done = t - r->lag - BACK;
  ax_status st;

  AX_TRY(ax_step_begin());
  if (t < r->chunks)
    ax_step_put(0, (const char *)r->c->in + (size_t)t * r->most * r->item, length_of(r, t) * r->item);
  ax_step_fill();
  if (done >= 0 && done < r->chunks) {
    AX_TRY(ax_step_wait_filled(0, BACK));
    keep(r, done, ax_step_slot_back(0, BACK), from, to);
  }
  ax_step_end_back(last ? 0 : BACK);
out:
  return st;
}

/* In step t chunk t comes from the ranks, and the result of an earlier one goes to them.  Nobody
 * waits for what another does in the same step alone: where ranks share cores, each gets some
 * chunks further before it gives way. */
static ax_status reduce(const ax_collective *c, size_t count, size_t from, size_t to)
{
  reduction r = { .c = c, .item = ax_dtype_size(c->dtype), .count = count };
  ax_status st = AX_OK;
  int steps;

  if (count == 0) return AX_OK;
  r.wide = ax_dist_accumulator(c->dtype);
  r.most = ax_shm.chunk / r.item;
  r.chunks = (int)((count + r.most - 1) / r.most);
  r.lag = 2 * (chain.machines - 1 - chain.machine) + AHEAD;
  if (r.lag > r.chunks) r.lag = r.chunks;
  if (leads()) AX_TRY(open_reduction(&r));
  steps = r.chunks + r.lag + (ax_shm.size > 1 ? BACK : 0);
  for (int t = 0; t < steps; t++)
    AX_TRY(leads() ? lead(&r, t, from, to) : follow(&r, t, t == steps - 1, from, to));
out:
  return leads() ? close_reduction(&r, st) : st;
}

/* ---- streams --------------------------------------------------------------------------------- */

/* `bytes` of each of `n` local ranks, from `first` on, of `machine`. */
typedef struct flow {
  int machine, first, n;
  int to; /* the machine that gets them; -1: all */
  size_t bytes, most;
  const char *in; /* in such a rank: its own */
  char *out;      /* where the first one's go, in a rank that keeps them, else NULL */
  size_t stride;  /* from one rank's to the next one's */
} flow;

typedef struct buffer {
  char *at;
  ax_mpi_request in, out[2];
  bool is_sent[2];
} buffer;

/* Whether this machine passes the stream on to that side. */
static bool passes(const flow *f, int side)
{
  if (!has(side)) return false;
  if (side == BEFORE) return chain.machine <= f->machine && (f->to < 0 || f->to < chain.machine);
  return chain.machine >= f->machine && (f->to < 0 || f->to > chain.machine);
}

/* Whether it comes by here at all. */
static bool crosses(const flow *f)
{
  const int a = f->machine < f->to ? f->machine : f->to, b = f->machine < f->to ? f->to : f->machine;
  return f->to < 0 || (chain.machine >= a && chain.machine <= b);
}

static ax_status expect(const flow *f, buffer *b, size_t at)
{
  const size_t len = f->bytes - at < f->most ? f->bytes - at : f->most;
  const int side = f->machine < chain.machine ? BEFORE : BEHIND;
  ax_status st = AX_OK;

  if (at >= f->bytes || f->machine == chain.machine) return AX_OK;
  for (int s = 0; s < 2; s++) AX_TRY(settle(&b->is_sent[s], &b->out[s], neighbour(s)));
  return ax_mpi_receive(b->at, len * (size_t)f->n, neighbour(side), side == BEFORE ? AX_TAG_UP : AX_TAG_DOWN,
                        &b->in);
out:
  return st;
}

/* The leader's part of a chunk: gets it into the buffer, and passes it on. */
static ax_status relay(const flow *f, buffer *b, size_t len)
{
  const int side = f->machine < chain.machine ? BEFORE : BEHIND;
  ax_status st = AX_OK;

  if (f->machine != chain.machine) {
    AX_TRY(ax_mpi_wait(&b->in, neighbour(side)));
  } else {
    for (int s = 0; s < 2; s++) AX_TRY(settle(&b->is_sent[s], &b->out[s], neighbour(s)));
    if (!passes(f, BEFORE) && !passes(f, BEHIND)) return AX_OK;
    for (int k = 0; k < f->n; k++) memcpy(b->at + (size_t)k * len, ax_step_slot(f->first + k), len);
  }
  for (int s = 0; s < 2; s++) {
    if (!passes(f, s)) continue;
    AX_TRY(ax_mpi_send(b->at, len * (size_t)f->n, neighbour(s), s == BEHIND ? AX_TAG_UP : AX_TAG_DOWN,
                       &b->out[s]));
    b->is_sent[s] = true;
  }
out:
  return st;
}

static void copy_out(const flow *f, size_t at, size_t len)
{
  for (int k = 0; f->out && k < f->n; k++) {
    const char *from =
        f->machine == chain.machine ? ax_step_slot(f->first + k) : ax_step_slot(0) + (size_t)k * len;
    memcpy(f->out + (size_t)k * f->stride + at, from, len);
  }
}

static ax_status walk(const flow *f, buffer *ring)
{
  const bool home = f->machine == chain.machine;
  const bool gives = home && ax_shm.rank >= f->first && ax_shm.rank < f->first + f->n;
  ax_status st = AX_OK;

  for (int k = 0; leads() && k < AHEAD; k++) AX_TRY(expect(f, &ring[k], (size_t)k * f->most));
  for (size_t at = 0, k = 0; at < f->bytes; at += f->most, k++) {
    const size_t len = f->bytes - at < f->most ? f->bytes - at : f->most;
    buffer *b = leads() ? &ring[k % AHEAD] : NULL;
    AX_TRY(ax_step_begin());
    if (gives) ax_step_put(0, f->in + at, len);
    if (b && !home) {
      AX_TRY(relay(f, b, len));
      ax_step_put(0, b->at, len * (size_t)f->n);
    }
    AX_TRY(ax_step_meet(false, !home ? 0 : f->n > 1 ? AX_FROM_ALL : f->first));
    copy_out(f, at, len);
    if (b && home) AX_TRY(relay(f, b, len));
    ax_step_end();
    if (b) AX_TRY(expect(f, b, at + AHEAD * f->most));
  }
  for (int k = 0; leads() && k < AHEAD; k++)
    for (int s = 0; s < 2; s++) AX_TRY(settle(&ring[k].is_sent[s], &ring[k].out[s], neighbour(s)));
out:
  return st;
}

static ax_status stream(flow *f)
{
  buffer ring[AHEAD];
  char *room = NULL;
  ax_status st;

  if (f->bytes == 0 || !crosses(f)) return AX_OK;
  f->most = ax_shm.chunk / (size_t)f->n / 64 * 64;
  if (f->most > f->bytes) f->most = f->bytes;
  memset(ring, 0, sizeof ring);
  if (leads()) {
    if (!(room = ax_malloc(AHEAD * f->most * (size_t)f->n))) return AX_ENOMEM;
    for (int k = 0; k < AHEAD; k++) ring[k].at = room + (size_t)k * f->most * (size_t)f->n;
  }
  st = walk(f, ring);
  if (st == AX_OK) ax_mfree(room); /* else MPI may still write there */
  return st;
}

static ax_status broadcast(const ax_collective *c)
{
  flow f = { .machine = c->root / chain.here,
             .first = c->root % chain.here,
             .n = 1,
             .to = -1,
             .bytes = (size_t)c->count * ax_dtype_size(c->dtype),
             .in = c->in,
             .out = chain.rank == c->root ? NULL : c->out };

  if (chain.rank == c->root && c->out != c->in && f.bytes > 0) memcpy(c->out, c->in, f.bytes);
  return stream(&f);
}

/* root -1: all ranks keep the result. */
static ax_status gather(const ax_collective *c, int root)
{
  const size_t bytes = (size_t)c->count * ax_dtype_size(c->dtype);
  const bool keeps = root < 0 || chain.rank == root;
  ax_status st = AX_OK;

  for (int m = 0; m < chain.machines; m++) {
    flow f = { .machine = m,
               .n = chain.here,
               .to = root < 0 ? -1 : root / chain.here,
               .bytes = bytes,
               .in = c->in,
               .out = keeps ? (char *)c->out + (size_t)m * (size_t)chain.here * bytes : NULL,
               .stride = bytes };
    AX_TRY(stream(&f));
  }
out:
  return st;
}

/* ---- the transport --------------------------------------------------------------------------- */

static ax_status carry(const ax_collective *c)
{
  const size_t count = (size_t)c->count;

  switch (c->op) {
  case AX_ALL_REDUCE: return reduce(c, count, 0, count);
  case AX_REDUCE_SCATTER:
    return reduce(c, count * (size_t)chain.size, count * (size_t)chain.rank,
                  count * (size_t)(chain.rank + 1));
  case AX_BROADCAST: return broadcast(c);
  case AX_ALL_GATHER:
  case AX_JOIN: return gather(c, -1);
  case AX_GATHER: return gather(c, c->root);
  case AX_BARRIER: return AX_OK; /* the meeting was it */
  default: return ax_fail(AX_ENOIMPL, "the mpi group has no collective number %d", (int)c->op);
  }
}

static ax_status run(const ax_collective *given)
{
  ax_collective c = *given;
  ax_status st = ax_shm_refuse_broken();

  if (st != AX_OK) return st;
  if (c.op == AX_BARRIER) c = (ax_collective){ .op = AX_BARRIER };
  ax_shm_enter(&c);
  st = ax_apart_aborted() ? ax_shm_aborted() : meet(&c);
  if (st == AX_OK) st = carry(&c);
  ax_shm_leave(st);
  return st;
}

static ax_status mpi_issue(ax_group *g, const ax_collective *c, int n, uint64_t *ticket)
{
  ax_status st = AX_OK;

  *ticket = 0; /* they are over before this returns */
  for (int k = 0; k < n && st == AX_OK; k++) st = run(&c[k]);
  return st;
}

/* Once. */
static void say_end(void)
{
  if (chain.said_end || !leads()) return;
  chain.said_end = true;
  if (ax_apart_aborted() || flush() != AX_OK) return;
  memset(&chain.word, 0, sizeof chain.word);
  chain.word.kind = FINISHED;
  for (int side = 0; side < 2; side++) say(&chain.word, side);
}

static void mpi_leave(ax_group *g, bool abort)
{
  (void)abort;
  say_end();
  ax_shm_finished(ax_shm.control, g->local_rank);
}

static const ax_transport transport = {
  .name = "mpi",
  .issue = mpi_issue,
  .leave = mpi_leave,
  .set_timeout = ax_apart_set_timeout,
  .post = ax_apart_post,
  .look = ax_apart_look,
  .watch = ax_apart_watch,
};

/* The neighbour's last message has come: a rank of its machine may still run. */
static bool heard_end(int side)
{
  if (!has(side)) return true;
  if (listen_to(side) != AX_OK) return true;
  if (!ax_mpi_ended(&chain.coming[side])) return false;
  if (chain.in[side].kind == FINISHED) return true;
  chain.listens[side] = false;
  return false;
}

/* Once. */
void ax_mpi_finished(void)
{
  ax_control *c = ax_shm.control;
  const bool takes_part = leads() || chain.point.every;
  bool heard[2] = { false, false };

  if (chain.size == 0 || chain.ended) return;
  chain.ended = true;
  say_end();
  ax_shm_finished(c, ax_shm.rank);
  if (!takes_part) return;
  while (leads() && !ax_apart_aborted() && !(heard[0] && heard[1])) {
    for (int side = 0; side < 2; side++) heard[side] = heard[side] || heard_end(side);
    ax_nap();
  }
  if (leads()) atomic_store(&c->may_end, 1);
  while (!atomic_load(&c->may_end) && !ax_apart_aborted()) ax_nap();
  /* MPI waits there for all its processes; without it, it would call this end a failure */
  if (!ax_apart_aborted()) ax_mpi_end();
}

/* Machine 0's launcher has written where it listens; the others' read it. */
static ax_status pass_point(void)
{
  ax_mpi_request q;
  ax_status st = AX_OK;

  if (!leads()) return AX_OK;
  if (has(BEFORE)) {
    AX_TRY(ax_mpi_receive(&chain.point, sizeof chain.point, neighbour(BEFORE), AX_TAG_POINT, &q));
    AX_TRY(ax_mpi_wait(&q, neighbour(BEFORE)));
    chain.point.every = ax_shm.control->point.every;
    ax_shm.control->point = chain.point;
    atomic_store(&ax_shm.control->has_point, 1);
  }
  if (has(BEHIND)) {
    AX_TRY(ax_mpi_send(&chain.point, sizeof chain.point, neighbour(BEHIND), AX_TAG_POINT, &q));
    AX_TRY(ax_mpi_wait(&q, neighbour(BEHIND)));
  }
out:
  return st;
}

ax_status ax_mpi_join(const char *folder, int rank, int size, int local_size)
{
  ax_status st = AX_OK;

  chain.rank = rank;
  chain.size = size;
  chain.here = local_size;
  chain.machine = rank / local_size;
  chain.machines = size / local_size;
  chain.first = chain.machine * local_size;
  chain.point = ax_shm.control->point;
  ax_shm.first = chain.first;
  ax_shm.machines = chain.machines;
  if (leads() || chain.point.every) {
    AX_TRY(ax_mpi_start(folder, rank, size, local_size));
    AX_TRY(pass_point());
  }
  group = (ax_group){ .transport = &transport,
                      .state = &chain,
                      .rank = rank,
                      .size = size,
                      .local_rank = rank % local_size,
                      .local_size = local_size };
  ax_dist_set_world(&group);
out:
  return st;
}

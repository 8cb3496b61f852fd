/* dist/chain.c: collectives between ranks of several machines, over MPI: the transport "mpi".
 *
 * The ranks of a machine meet over shared memory (dist/steps.h); local rank 0, the machine's
 * leader, exchanges messages with the leaders of the machines before and behind it.  The machines
 * form a chain.
 *
 * Meeting: each leader compares its ranks' calls with rank 0's, which comes down the chain from
 * machine 0; the verdict comes back from the last machine.  Then data moves.
 *
 * A reduction does not go along the chain: each machine owns a part of the chunks (mpi_reduce.c).
 *
 * Data that is not reduced streams from its machine along the chain, in both directions.
 *
 * After an error in the middle of data the group is broken, and messages may be left over. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "core/dist/chain.h"
#include "core/dist/links.h"

#define TEXT 1100

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
  bool said_end, ended;
  ax_point point; /* where the launchers meet */
  /* messages of the leader: sent to the neighbours, and their last words */
  message out, word, in[2];
  ax_mpi_request sent[2], coming[2];
  bool listens[2], is_sent[2];
} chain;
static ax_group group;
struct ax_chain_place ax_chain;

/* ---- meeting */

/* The last message may still be on its way: it was taken before the answer to it came. */
static ax_status say(const message *m, int side)
{
  ax_status st = AX_OK;

  if (!ax_chain_has(side)) return AX_OK;
  st = ax_mpi_send(m, sizeof *m, ax_chain_neighbour(side), AX_TAG_CALL, &chain.sent[side]);
  chain.is_sent[side] = st == AX_OK;
  return st;
}

static ax_status flush(void)
{
  ax_status st = AX_OK;

  for (int side = 0; side < 2; side++) {
    if (chain.is_sent[side]) AX_TRY(ax_mpi_wait(&chain.sent[side], ax_chain_neighbour(side)));
    chain.is_sent[side] = false;
  }
out:
  return st;
}

static ax_status listen_to(int side)
{
  if (chain.listens[side] || !ax_chain_has(side)) return AX_OK;
  chain.listens[side] = true;
  return ax_mpi_receive(&chain.in[side], sizeof chain.in[side], ax_chain_neighbour(side), AX_TAG_CALL,
                        &chain.coming[side]);
}

/* Waits for the neighbour's message; its error becomes ours. */
static ax_status hear(int side)
{
  message *m = &chain.in[side];
  char name[48];
  ax_status st;

  AX_TRY(listen_to(side));
  AX_TRY(ax_mpi_wait(&chain.coming[side], ax_chain_neighbour(side)));
  if (m->kind == FINISHED) /* it says no more */
    return ax_fail(AX_EABORTED, "%s has finished and will not take part in this",
                   ax_rank_name(ax_chain_neighbour(side) * ax_chain.here, ax_chain.here, name, sizeof name));
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
    const ax_collective_call *theirs = ax_step_call(&ax_shm.world, r);
    if (!ax_collective_same(&zero->facts, &theirs->facts))
      return ax_calls_differ(0, zero, ax_chain.first + r, theirs);
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
  if (ax_chain_has(BEFORE)) AX_TRY(hear(BEFORE));
  memset(&chain.out, 0, sizeof chain.out);
  chain.out.kind = CALL;
  if (ax_chain_has(BEFORE)) ax_apart_signal(chain.in[BEFORE].signal, chain.in[BEFORE].signal_from);
  chain.out.signal = atomic_load(&ax_shm.control->signal);
  chain.out.signal_from = atomic_load(&ax_shm.control->signal_from);
  chain.out.call = ax_chain_has(BEFORE) ? chain.in[BEFORE].call : *ax_step_call(&ax_shm.world, 0);
  chain.out.call.facts.in = chain.out.call.facts.out = NULL;
  AX_TRY(compare(&chain.out.call));
  AX_TRY(say(&chain.out, BEHIND));
  if (ax_chain_has(BEHIND)) AX_TRY(hear(BEHIND));
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

  AX_TRY(ax_step_begin(&ax_shm.world));
  ax_step_header(&ax_shm.world, c);
  st = ax_step_meet(&ax_shm.world, false, ax_chain_leads() ? AX_FROM_ALL : ax_shm.rank);
  if (ax_chain_leads()) {
    v.status = (int32_t)(st = agree(st));
    if (st != AX_OK) snprintf(v.text, sizeof v.text, "%s", ax_last_error());
  } else if (st != AX_OK) {
    return st;
  }
  ax_step_end(&ax_shm.world);
  if (ax_shm.size == 1) return st;
  AX_TRY(ax_step_begin(&ax_shm.world));
  if (ax_chain_leads()) ax_step_put(&ax_shm.world, 0, &v, sizeof v.status + strlen(v.text) + 1);
  AX_TRY(ax_step_meet(&ax_shm.world, false, ax_chain_leads() ? ax_shm.rank : 0));
  if (!ax_chain_leads()) {
    memcpy(&v.status, ax_step_slot(&ax_shm.world, 0), sizeof v.status);
    if (v.status != AX_OK)
      snprintf(v.text, sizeof v.text, "%s", ax_step_slot(&ax_shm.world, 0) + sizeof v.status);
  }
  ax_step_end(&ax_shm.world);
  return v.status == AX_OK ? AX_OK : ax_fail((ax_status)v.status, "%s", v.text);
out:
  return st;
}

ax_status ax_chain_settle(bool *is_sent, ax_mpi_request *q, int machine)
{
  const bool was = *is_sent;

  *is_sent = false;
  return was ? ax_mpi_wait(q, machine) : AX_OK;
}

/* ---- the transport */

static ax_status carry(const ax_collective *c)
{
  const size_t count = (size_t)c->count;

  switch (c->op) {
  case AX_ALL_REDUCE: return ax_chain_reduce(c, count, 0, count);
  case AX_REDUCE_SCATTER:
    return ax_chain_reduce(c, count * (size_t)ax_chain.size, count * (size_t)ax_chain.rank,
                           count * (size_t)(ax_chain.rank + 1));
  case AX_BROADCAST: return ax_chain_broadcast(c);
  case AX_ALL_GATHER:
  case AX_JOIN: return ax_chain_gather(c, -1);
  case AX_GATHER: return ax_chain_gather(c, c->root);
  case AX_BARRIER: return AX_OK; /* the meeting was it */
  default: return ax_across_world(c);
  }
}

static ax_status run(const ax_collective *given)
{
  ax_collective c = *given;
  ax_status st = ax_shm_refuse_broken();

  if (st != AX_OK || (st = ax_across_refuse_pairs(given)) != AX_OK) return st;
  if (c.op == AX_BARRIER) c = (ax_collective){ .op = AX_BARRIER };
  ax_shm_enter(&c, 0);
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
  if (chain.said_end || !ax_chain_leads()) return;
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
  .split = ax_across_split,
  .set_timeout = ax_apart_set_timeout,
  .post = ax_apart_post,
  .look = ax_apart_look,
  .watch = ax_apart_watch,
};

/* The neighbour's last message has come: a rank of its machine may still run. */
static bool heard_end(int side)
{
  if (!ax_chain_has(side)) return true;
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
  const bool takes_part = ax_chain_leads() || chain.point.every;
  bool heard[2] = { false, false };

  if (ax_chain.size == 0 || chain.ended) return;
  chain.ended = true;
  say_end();
  ax_shm_finished(c, ax_shm.rank);
  if (!takes_part) return;
  while (ax_chain_leads() && !ax_apart_aborted() && !(heard[0] && heard[1])) {
    for (int side = 0; side < 2; side++) heard[side] = heard[side] || heard_end(side);
    ax_nap();
  }
  if (ax_chain_leads()) atomic_store(&c->may_end, 1);
  while (!atomic_load(&c->may_end) && !ax_apart_aborted()) ax_nap();
  /* MPI waits there for all its processes; without it, it would call this end a failure */
  if (!ax_apart_aborted()) ax_mpi_end();
}

/* Machine 0's launcher has written where it listens; the others' read it. */
static ax_status pass_point(void)
{
  ax_mpi_request q;
  ax_status st = AX_OK;

  if (!ax_chain_leads()) return AX_OK;
  if (ax_chain_has(BEFORE)) {
    AX_TRY(ax_mpi_receive(&chain.point, sizeof chain.point, ax_chain_neighbour(BEFORE), AX_TAG_POINT, &q));
    AX_TRY(ax_mpi_wait(&q, ax_chain_neighbour(BEFORE)));
    chain.point.every = ax_shm.control->point.every;
    ax_shm.control->point = chain.point;
    atomic_store(&ax_shm.control->has_point, 1);
  }
  if (ax_chain_has(BEHIND)) {
    AX_TRY(ax_mpi_send(&chain.point, sizeof chain.point, ax_chain_neighbour(BEHIND), AX_TAG_POINT, &q));
    AX_TRY(ax_mpi_wait(&q, ax_chain_neighbour(BEHIND)));
  }
out:
  return st;
}

ax_status ax_mpi_join(const char *folder, int rank, int size, int local_size)
{
  ax_status st = AX_OK;

  ax_chain.rank = rank;
  ax_chain.size = size;
  ax_chain.here = local_size;
  ax_chain.machine = rank / local_size;
  ax_chain.machines = size / local_size;
  ax_chain.first = ax_chain.machine * local_size;
  chain.point = ax_shm.control->point;
  ax_shm.first = ax_chain.first;
  ax_shm.machines = ax_chain.machines;
  if (ax_chain_leads() || chain.point.every) {
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

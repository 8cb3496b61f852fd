/* dist/chain_reduce.c: reductions along the chain of machines; chain.c says in which order. */
#define _GNU_SOURCE
#include <string.h>

#include "core/dist/chain.h"

#define BACK 4 /* steps that a rank may be ahead of its leader */

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

static ax_status expect_sum(reduction *r, int chunk)
{
  cell *k = cell_of(r, chunk);
  ax_status st;

  if (!ax_chain_has(BEFORE) || chunk >= r->chunks) return AX_OK;
  AX_TRY(ax_chain_settle(&k->has_sum_out, &k->sum_out, ax_chain_neighbour(BEHIND)));
  return ax_mpi_receive(k->sum, length_of(r, chunk) * r->wide, ax_chain_neighbour(BEFORE), AX_TAG_UP,
                        &k->sum_in);
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
    AX_TRY(ax_chain_settle(&r->cell[k].has_sum_out, &r->cell[k].sum_out, ax_chain_neighbour(BEHIND)));
    AX_TRY(ax_chain_settle(&r->cell[k].has_result_out, &r->cell[k].result_out, ax_chain_neighbour(BEFORE)));
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

  if (!ax_chain_has(BEFORE)) return AX_OK;
  st = ax_mpi_send(k->result, length_of(r, chunk) * r->item, ax_chain_neighbour(BEFORE), AX_TAG_DOWN,
                   &k->result_out);
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
  if (ax_chain_has(BEFORE)) AX_TRY(ax_mpi_wait(&k->sum_in, ax_chain_neighbour(BEFORE)));
  else AX_TRY(ax_chain_settle(&k->has_sum_out, &k->sum_out, ax_chain_neighbour(BEHIND)));
  AX_TRY(ax_chain_settle(&k->has_result_out, &k->result_out, ax_chain_neighbour(BEFORE)));
  ax_dist_accumulate(c->dtype, c->reduction, k->sum, !ax_chain_has(BEFORE), parts, ax_shm.size, len);
  if (ax_chain_has(BEHIND)) {
    AX_TRY(ax_mpi_receive(k->result, len * r->item, ax_chain_neighbour(BEHIND), AX_TAG_DOWN, &k->result_in));
    AX_TRY(ax_mpi_send(k->sum, len * r->wide, ax_chain_neighbour(BEHIND), AX_TAG_UP, &k->sum_out));
    k->has_sum_out = true;
  } else {
    ax_dist_accumulated(c->dtype, c->reduction, k->result, k->sum, ax_chain.size, len);
    AX_TRY(give_result(r, chunk));
  }
  return expect_sum(r, chunk + r->ahead);
out:
  return st;
}

static ax_status take_result(reduction *r, int chunk)
{
  ax_status st;

  if (!ax_chain_has(BEHIND)) return AX_OK;
  AX_TRY(ax_mpi_wait(&cell_of(r, chunk)->result_in, ax_chain_neighbour(BEHIND)));
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
ax_status ax_chain_reduce(const ax_collective *c, size_t count, size_t from, size_t to)
{
  reduction r = { .c = c, .item = ax_dtype_size(c->dtype), .count = count };
  ax_status st = AX_OK;
  int steps;

  if (count == 0) return AX_OK;
  r.wide = ax_dist_accumulator(c->dtype);
  r.most = ax_shm.chunk / r.item;
  r.chunks = (int)((count + r.most - 1) / r.most);
  r.lag = 2 * (ax_chain.machines - 1 - ax_chain.machine) + AX_CHAIN_AHEAD;
  if (r.lag > r.chunks) r.lag = r.chunks;
  if (ax_chain_leads()) AX_TRY(open_reduction(&r));
  steps = r.chunks + r.lag + (ax_shm.size > 1 ? BACK : 0);
  for (int t = 0; t < steps; t++)
    AX_TRY(ax_chain_leads() ? lead(&r, t, from, to) : follow(&r, t, t == steps - 1, from, to));
out:
  return ax_chain_leads() ? close_reduction(&r, st) : st;
}

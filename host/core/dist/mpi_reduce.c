/* dist/mpi_reduce.c: reductions over machines.
 *
 * The elements are cut into chunks, and chunk c belongs to machine c % machines.  Each leader
 * combines its ranks' parts of every chunk, sends the sums to the chunks' owners, and combines what
 * the others send of its own chunks; then it sends them the results.  So with m machines a machine
 * sends and receives 2 (m - 1) / m times the data, which is the least possible, and a chunk travels
 * twice.
 *
 * Machines' sums are combined in the order of the machines, as ax_dist_reduce combines ranks: where
 * a machine has 1, 2, 4, 8 ... ranks, the results have the bits of as many ranks on one machine. */
#define _GNU_SOURCE
#include <string.h>

#include "core/dist/chain.h"

#define AHEAD 12   /* chunks between a machine's sum and the use of the result */
#define BACK 4     /* steps that a rank may be ahead of its leader */
#define LEAST 4096 /* elements of a chunk, unless there are fewer */

/* A chunk in a leader. */
typedef struct cell {
  char *sum, *result; /* this machine's sum; the result */
  ax_mpi_request sum_out, result_in;
  bool has_sum_out;
  ax_mpi_request *result_out; /* in the owner: to each machine */
  bool *has_result_out;
} cell;

/* A chunk in its owner: the others' sums. */
typedef struct inbox {
  char **sum;
  ax_mpi_request *sum_in;
} inbox;

typedef struct reduction {
  const ax_collective *c;
  ax_dtype accumulator;
  size_t item, wide, most, count; /* bytes of an element and of its sum; elements of a chunk, and in all */
  int chunks, lag, delay;         /* a result is used `lag` chunks later; its owner makes it `delay` later */
  int cells, inboxes;
  cell *cell;
  inbox *inbox;
  char *room, *total; /* all buffers; the owner's accumulators */
  ax_mpi_request *requests;
  bool *flags;
  char **sums;
} reduction;

static size_t length_of(const reduction *r, int chunk)
{
  const size_t at = (size_t)chunk * r->most;
  return r->count - at < r->most ? r->count - at : r->most;
}
static cell *cell_of(reduction *r, int chunk) { return &r->cell[chunk % r->cells]; }
static inbox *inbox_of(reduction *r, int chunk) { return &r->inbox[chunk / ax_chain.machines % r->inboxes]; }
static int owner_of(int chunk) { return chunk % ax_chain.machines; }
static bool is_own(int chunk) { return owner_of(chunk) == ax_chain.machine; }

/* Listens for the others' sums of an own chunk. */
static ax_status expect_sums(reduction *r, int chunk)
{
  inbox *b = inbox_of(r, chunk);
  ax_status st = AX_OK;

  for (int m = 0; m < ax_chain.machines && chunk < r->chunks && st == AX_OK; m++)
    if (m != ax_chain.machine)
      st = ax_mpi_receive(b->sum[m], length_of(r, chunk) * r->wide, m, AX_TAG_UP, &b->sum_in[m]);
  return st;
}

static ax_status open_reduction(reduction *r)
{
  const size_t sums = r->most * r->wide, results = r->most * r->item, machines = (size_t)ax_chain.machines,
               cells = (size_t)r->cells, inboxes = (size_t)r->inboxes;
  ax_status st = AX_OK;
  char *at;

  r->cell = ax_calloc(cells, sizeof *r->cell);
  r->inbox = ax_calloc(inboxes, sizeof *r->inbox);
  r->requests = ax_calloc((cells + inboxes) * machines, sizeof *r->requests);
  r->flags = ax_calloc(cells * machines, sizeof *r->flags);
  r->sums = ax_calloc(inboxes * machines, sizeof *r->sums);
  r->room = ax_malloc(cells * (sums + results) + inboxes * machines * sums + sums);
  if (!r->cell || !r->inbox || !r->requests || !r->flags || !r->sums || !r->room) return AX_ENOMEM;
  r->total = at = r->room;
  at += sums;
  for (size_t k = 0; k < cells; k++, at += sums + results)
    r->cell[k] = (cell){ .sum = at,
                         .result = at + sums,
                         .result_out = r->requests + k * machines,
                         .has_result_out = r->flags + k * machines };
  for (size_t k = 0; k < inboxes; k++) {
    r->inbox[k] = (inbox){ r->sums + k * machines, r->requests + (cells + k) * machines };
    for (size_t m = 0; m < machines; m++, at += sums) r->inbox[k].sum[m] = at;
  }
  for (int k = 0; k < r->inboxes; k++) AX_TRY(expect_sums(r, k * ax_chain.machines + ax_chain.machine));
out:
  return st;
}

/* Waits until a cell's messages have left it. */
static ax_status empty(cell *k, int owner)
{
  ax_status st = AX_OK;

  AX_TRY(ax_chain_settle(&k->has_sum_out, &k->sum_out, owner));
  for (int m = 0; m < ax_chain.machines; m++)
    AX_TRY(ax_chain_settle(&k->has_result_out[m], &k->result_out[m], m));
out:
  return st;
}

static ax_status close_reduction(reduction *r, ax_status st)
{
  for (int chunk = r->chunks - 1; chunk >= 0 && chunk >= r->chunks - r->cells; chunk--)
    if (st == AX_OK) st = empty(cell_of(r, chunk), owner_of(chunk));
  /* after an error MPI may still write there: the memory is left to it */
  if (st != AX_OK) return st;
  ax_mfree(r->cell);
  ax_mfree(r->inbox);
  ax_mfree(r->requests);
  ax_mfree(r->flags);
  ax_mfree(r->sums);
  ax_mfree(r->room);
  return st;
}

/* Combines this machine's parts of a chunk, which are in the slots, for its owner. */
static ax_status add_up(reduction *r, int chunk)
{
  const ax_collective *c = r->c;
  const size_t len = length_of(r, chunk);
  const void *parts[AX_MAX_RANKS];
  cell *k = cell_of(r, chunk);
  ax_status st = AX_OK;

  parts[0] = (const char *)c->in + (size_t)chunk * r->most * r->item;
  for (int n = 1; n < ax_shm.size; n++) parts[n] = ax_step_slot(&ax_shm.world, n);
  if (chunk >= r->cells) AX_TRY(empty(k, owner_of(chunk - r->cells)));
  ax_dist_accumulate(c->dtype, c->reduction, k->sum, parts, ax_shm.size, len);
  if (is_own(chunk)) return AX_OK;
  AX_TRY(ax_mpi_receive(k->result, len * r->item, owner_of(chunk), AX_TAG_DOWN, &k->result_in));
  AX_TRY(ax_mpi_send(k->sum, len * r->wide, owner_of(chunk), AX_TAG_UP, &k->sum_out));
  k->has_sum_out = true;
out:
  return st;
}

/* In the owner: makes the result of a chunk and sends it to the others. */
static ax_status make_result(reduction *r, int chunk)
{
  const ax_collective *c = r->c;
  const size_t len = length_of(r, chunk);
  const void *parts[AX_MAX_RANKS];
  inbox *b = inbox_of(r, chunk);
  cell *k = cell_of(r, chunk);
  ax_status st = AX_OK;

  for (int m = 0; m < ax_chain.machines; m++) {
    parts[m] = m == ax_chain.machine ? k->sum : b->sum[m];
    if (m != ax_chain.machine) AX_TRY(ax_mpi_wait(&b->sum_in[m], m));
  }
  ax_dist_accumulate(r->accumulator, c->reduction, r->total, parts, ax_chain.machines, len);
  ax_dist_accumulated(c->dtype, c->reduction, k->result, r->total, ax_chain.size, len);
  for (int m = 0; m < ax_chain.machines; m++) {
    if (m == ax_chain.machine) continue;
    AX_TRY(ax_mpi_send(k->result, len * r->item, m, AX_TAG_DOWN, &k->result_out[m]));
    k->has_result_out[m] = true;
  }
  return expect_sums(r, chunk + r->inboxes * ax_chain.machines);
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

static bool is_chunk(const reduction *r, int chunk) { return chunk >= 0 && chunk < r->chunks; }

/* One step of the leader: takes chunk t from the machine's ranks, makes the result of an own chunk,
 * and gives the ranks the result of chunk t - lag. */
static ax_status lead(reduction *r, int t, size_t from, size_t to)
{
  const int done = t - r->lag, own = t - r->delay;
  ax_status st;

  AX_TRY(ax_step_begin(&ax_shm.world));
  if (is_chunk(r, done)) {
    if (!is_own(done)) AX_TRY(ax_mpi_wait(&cell_of(r, done)->result_in, owner_of(done)));
    if (ax_shm.size > 1)
      ax_step_put(&ax_shm.world, 0, cell_of(r, done)->result, length_of(r, done) * r->item);
  }
  ax_step_fill(&ax_shm.world);
  if (is_chunk(r, done)) keep(r, done, cell_of(r, done)->result, from, to);
  for (int n = 1; n < ax_shm.size && t < r->chunks; n++) AX_TRY(ax_step_wait_filled(&ax_shm.world, n, 0));
  if (t < r->chunks) AX_TRY(add_up(r, t));
  if (is_chunk(r, own) && is_own(own)) AX_TRY(make_result(r, own));
  ax_step_end(&ax_shm.world);
out:
  return st;
}

/* One step of another rank: it gives chunk t, and reads a result that the leader gave BACK steps
 * ago. */
static ax_status follow(const reduction *r, int t, bool last, size_t from, size_t to)
{
  const int done = t - r->lag - BACK;
  ax_status st;

  AX_TRY(ax_step_begin(&ax_shm.world));
  if (t < r->chunks)
    ax_step_put(&ax_shm.world, 0, (const char *)r->c->in + (size_t)t * r->most * r->item,
                length_of(r, t) * r->item);
  ax_step_fill(&ax_shm.world);
  if (is_chunk(r, done)) {
    AX_TRY(ax_step_wait_filled(&ax_shm.world, 0, BACK));
    keep(r, done, ax_step_slot_back(&ax_shm.world, 0, BACK), from, to);
  }
  ax_step_end_back(&ax_shm.world, last ? 0 : BACK);
out:
  return st;
}

/* Elements of a chunk: as many as a slot has room for, fewer where each machine could own one. */
static size_t chunk_of(size_t count, size_t room)
{
  const size_t share = (count + (size_t)ax_chain.machines - 1) / (size_t)ax_chain.machines;
  const size_t most = share > LEAST ? share : LEAST;
  return most < room ? most : room;
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
  r.accumulator = ax_dist_accumulator(c->dtype);
  r.wide = ax_dtype_size(r.accumulator);
  r.most = chunk_of(count, ax_shm.chunk / r.item);
  r.chunks = (int)((count + r.most - 1) / r.most);
  r.lag = r.chunks < AHEAD ? r.chunks : AHEAD;
  r.delay = r.lag / 2;
  r.cells = r.lag + 2;
  r.inboxes = r.lag / ax_chain.machines + 2;
  if (ax_chain_leads()) AX_TRY(open_reduction(&r));
  steps = r.chunks + r.lag + (ax_shm.size > 1 ? BACK : 0);
  for (int t = 0; t < steps; t++)
    AX_TRY(ax_chain_leads() ? lead(&r, t, from, to) : follow(&r, t, t == steps - 1, from, to));
out:
  return ax_chain_leads() ? close_reduction(&r, st) : st;
}

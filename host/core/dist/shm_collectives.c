/* dist/shm_collectives.c: collectives between the ranks of one machine, over the memory of shm.c.
 *
 * Each is a row of steps (dist/steps.h).  A long all_reduce among more than two ranks reduces in
 * two phases: rank r reduces part r of the chunk, publishes `reduced`, and copies the other parts
 * from the ranks that reduced them; the work per rank then does not grow with the number of
 * ranks. */
#include <string.h>

#include "core/dist/pull.h"

/* bytes up to which an all_reduce among many ranks is done in one phase */
#define ONE_PHASE 4096

/* One chunk of an all_reduce in one phase: every rank reduces all of it. */
static ax_status reduce_all(ax_walk *g, const ax_collective *c, const char *in, char *out, size_t len,
                            bool first)
{
  const size_t item = ax_dtype_size(c->dtype);
  const void *parts[AX_MAX_RANKS];
  ax_status st = AX_OK;
  int r;

  ax_step_put(g, 0, in, len * item);
  AX_TRY(ax_step_meet(g, first, AX_FROM_ALL));
  for (r = 0; r < g->size; r++) parts[r] = r == g->rank ? in : ax_step_slot(g, r);
  ax_dist_reduce(c->dtype, c->reduction, out, parts, g->size, len);
out:
  return st;
}

/* One chunk in two phases.  Parts begin at whole cache lines. */
static ax_status reduce_parts(ax_walk *g, const ax_collective *c, const char *in, char *out, size_t len,
                              bool first)
{
  const size_t item = ax_dtype_size(c->dtype), line = 64 / item, n = (size_t)g->size;
  const size_t per = (len + n * line - 1) / (n * line) * line;
  const size_t my_at = per * (size_t)g->rank < len ? per * (size_t)g->rank : len;
  const size_t my_len = len - my_at < per ? len - my_at : per;
  const void *parts[AX_MAX_RANKS];
  char *mine = ax_step_slot(g, g->rank);
  ax_status st = AX_OK;
  int r, k;

  ax_step_put(g, 0, in, my_at * item);
  ax_step_put(g, (my_at + my_len) * item, in + (my_at + my_len) * item, (len - my_at - my_len) * item);
  AX_TRY(ax_step_meet(g, first, AX_FROM_ALL));
  for (r = 0; r < g->size; r++) parts[r] = (r == g->rank ? in : ax_step_slot(g, r)) + my_at * item;
  ax_dist_reduce(c->dtype, c->reduction, mine + my_at * item, parts, g->size, my_len);
  ax_step_reduced(g);
  for (k = 0; k < g->size; k++) {
    size_t at, part;
    r = (g->rank + k) % g->size; /* everybody starts elsewhere */
    at = per * (size_t)r < len ? per * (size_t)r : len;
    part = len - at < per ? len - at : per;
    if (r != g->rank) AX_TRY(ax_step_wait_reduced(g, r));
    memcpy(out + at * item, ax_step_slot(g, r) + at * item, part * item);
  }
out:
  return st;
}

/* Elements [at, end).  first: no step of this collective has been walked. */
static ax_status reduce_run(ax_walk *g, const ax_collective *c, size_t at, size_t end, bool first)
{
  const size_t item = ax_dtype_size(c->dtype), most = ax_shm.chunk / item;
  const bool in_parts = g->size > 2 && (end - at) * item > ONE_PHASE;
  ax_status st = AX_OK;

  do {
    const size_t len = end - at < most ? end - at : most;
    AX_TRY(ax_step_begin(g));
    if (first) ax_step_header(g, c);
    AX_TRY((in_parts ? reduce_parts : reduce_all)(g, c, (const char *)c->in + at * item,
                                                  (char *)c->out + at * item, len, first));
    ax_step_end(g);
    first = false;
    at += len;
  } while (at < end);
out:
  return st;
}

/* Long ones where they are, if all ranks' memory can be mapped. */
static ax_status all_reduce(ax_walk *g, const ax_collective *c)
{
  const size_t count = (size_t)c->count;
  bool left[AX_MAX_RANKS];
  ax_status st;

  if (count * ax_dtype_size(c->dtype) < AX_PULL_FROM) return reduce_run(g, c, 0, count, true);
  AX_TRY(ax_pull_all_reduce(g, c, left));
  for (int r = 0; r < g->size && st == AX_OK; r++) {
    int last = r;
    if (!left[r]) continue;
    while (last + 1 < g->size && left[last + 1]) last++; /* neighbours in one run */
    st = reduce_run(g, c, ax_pull_part(g, count, r), ax_pull_part(g, count, last + 1), false);
    r = last;
  }
out:
  return st;
}

/* Also the barrier, with nothing to send, and what one rank sends to another. */
static ax_status broadcast(ax_walk *g, const ax_collective *c, int root)
{
  const size_t item = ax_dtype_size(c->dtype), bytes = (size_t)c->count * item;
  const bool sends = g->rank == root;
  ax_status st = AX_OK;
  size_t at = 0, len;

  do {
    len = bytes - at < ax_shm.chunk ? bytes - at : ax_shm.chunk;
    AX_TRY(ax_step_begin(g));
    if (at == 0) ax_step_header(g, c);
    ax_step_put(g, 0, (const char *)c->in + at, sends ? len : 0);
    AX_TRY(ax_step_meet(g, at == 0, root));
    if (!sends && len > 0) memcpy((char *)c->out + at, ax_step_slot(g, root), len);
    ax_step_end(g);
    at += len;
  } while (at < bytes);
  if (sends && bytes > 0 && c->out != c->in) memcpy(c->out, c->in, bytes);
out:
  return st;
}

/* all_gather, and gather where only the root reads. */
static ax_status gather(ax_walk *g, const ax_collective *c, bool reads)
{
  const size_t item = ax_dtype_size(c->dtype), bytes = (size_t)c->count * item;
  ax_status st = AX_OK;
  size_t at = 0, len;
  int r, k;

  do {
    len = bytes - at < ax_shm.chunk ? bytes - at : ax_shm.chunk;
    AX_TRY(ax_step_begin(g));
    if (at == 0) ax_step_header(g, c);
    ax_step_put(g, 0, (const char *)c->in + at, len);
    AX_TRY(ax_step_meet(g, at == 0, reads ? AX_FROM_ALL : g->rank));
    for (k = 0; reads && len > 0 && k < g->size; k++) {
      r = (g->rank + k) % g->size;
      memcpy((char *)c->out + (size_t)r * bytes + at,
             r == g->rank ? (const char *)c->in + at : ax_step_slot(g, r), len);
    }
    ax_step_end(g);
    at += len;
  } while (at < bytes);
out:
  return st;
}

/* A slot holds a piece of each rank's part. */
static ax_status scatter_run(ax_walk *g, const ax_collective *c, bool first)
{
  const size_t item = ax_dtype_size(c->dtype), count = (size_t)c->count;
  const size_t room = ax_shm.chunk / (size_t)g->size / 64 * 64, most = room / item;
  const void *parts[AX_MAX_RANKS];
  ax_status st = AX_OK;
  size_t at = 0, len;
  int r;

  do {
    len = count - at < most ? count - at : most;
    AX_TRY(ax_step_begin(g));
    if (first && at == 0) ax_step_header(g, c);
    for (r = 0; len > 0 && r < g->size; r++)
      if (r != g->rank)
        ax_step_put(g, (size_t)r * room, (const char *)c->in + ((size_t)r * count + at) * item, len * item);
    AX_TRY(ax_step_meet(g, first && at == 0, AX_FROM_ALL));
    for (r = 0; r < g->size; r++)
      parts[r] = r == g->rank ? (const char *)c->in + ((size_t)r * count + at) * item
                              : ax_step_slot(g, r) + (size_t)g->rank * room;
    if (len > 0) ax_dist_reduce(c->dtype, c->reduction, (char *)c->out + at * item, parts, g->size, len);
    ax_step_end(g);
    at += len;
  } while (at < count);
out:
  return st;
}

static ax_status reduce_scatter(ax_walk *g, const ax_collective *c)
{
  const size_t bytes = (size_t)c->count * (size_t)g->size * ax_dtype_size(c->dtype);
  bool done;
  ax_status st;

  if (bytes < AX_PULL_FROM) return scatter_run(g, c, true);
  st = ax_pull_reduce_scatter(g, c, &done);
  return st != AX_OK || done ? st : scatter_run(g, c, false);
}

/* Root alone reduces, and reads. */
static ax_status reduce(ax_walk *g, const ax_collective *c)
{
  const size_t item = ax_dtype_size(c->dtype), most = ax_shm.chunk / item, count = (size_t)c->count;
  const bool reads = g->rank == c->root;
  const void *parts[AX_MAX_RANKS];
  ax_status st = AX_OK;
  size_t at = 0, len;

  do {
    const char *in = (const char *)c->in + at * item;
    len = count - at < most ? count - at : most;
    AX_TRY(ax_step_begin(g));
    if (at == 0) ax_step_header(g, c);
    ax_step_put(g, 0, in, reads ? 0 : len * item);
    AX_TRY(ax_step_meet(g, at == 0, reads ? AX_FROM_ALL : g->rank));
    for (int r = 0; r < g->size; r++) parts[r] = r == g->rank ? in : ax_step_slot(g, r);
    if (reads && len > 0)
      ax_dist_reduce(c->dtype, c->reduction, (char *)c->out + at * item, parts, g->size, len);
    ax_step_end(g);
    at += len;
  } while (at < count);
out:
  return st;
}

/* Bytes of a slot for each rank's piece. */
static size_t piece_of(const ax_walk *g) { return ax_shm.chunk / (size_t)g->size / 64 * 64; }

/* Root's slot holds a piece of each rank's part. */
static ax_status scatter(ax_walk *g, const ax_collective *c)
{
  const size_t bytes = (size_t)c->count * ax_dtype_size(c->dtype), room = piece_of(g);
  const bool sends = g->rank == c->root;
  ax_status st = AX_OK;
  size_t at = 0, len;

  do {
    len = bytes - at < room ? bytes - at : room;
    AX_TRY(ax_step_begin(g));
    if (at == 0) ax_step_header(g, c);
    for (int r = 0; sends && len > 0 && r < g->size; r++)
      if (r != g->rank) ax_step_put(g, (size_t)r * room, (const char *)c->in + (size_t)r * bytes + at, len);
    AX_TRY(ax_step_meet(g, at == 0, c->root));
    if (len > 0)
      memcpy((char *)c->out + at,
             sends ? (const char *)c->in + (size_t)g->rank * bytes + at
                   : ax_step_slot(g, c->root) + (size_t)g->rank * room,
             len);
    ax_step_end(g);
    at += len;
  } while (at < bytes);
out:
  return st;
}

/* In the first step every rank publishes how much it sends to each; *most: the largest part.
 * EMISMATCH, on all ranks, where one expects another number of elements than it gets. */
static ax_status tell_splits(ax_walk *g, const ax_collective *c, int64_t *most)
{
  const size_t n = (size_t)g->size;
  const int64_t *rows[AX_MAX_RANKS];
  ax_status st;

  *most = 0;
  AX_TRY(ax_step_begin(g));
  ax_step_header(g, c);
  ax_step_put(g, 0, c->splits, 2 * n * sizeof *c->splits);
  AX_TRY(ax_step_meet(g, true, AX_FROM_ALL));
  for (int a = 0; a < g->size; a++) {
    rows[a] = (const int64_t *)ax_step_slot(g, a);
    for (int b = 0; b < g->size; b++)
      if (rows[a][b] > *most) *most = rows[a][b];
  }
  st = ax_splits_fit(g->size, rows, g->local);
  ax_step_end(g);
out:
  return st;
}

/* A slot holds one piece for each rank. */
static ax_status all_to_all(ax_walk *g, const ax_collective *c)
{
  const size_t item = ax_dtype_size(c->dtype), room = piece_of(g), per = room / item;
  const int64_t *gives = c->splits, *gets = c->splits + g->size;
  int64_t most;
  ax_status st;

  AX_TRY(tell_splits(g, c, &most));
  for (int64_t at = 0; at < most; at += (int64_t)per) {
    const char *from = c->in;
    char *to = c->out;
    AX_TRY(ax_step_begin(g));
    for (int r = 0; r < g->size; from += (size_t)gives[r++] * item) {
      const int64_t len = gives[r] - at < (int64_t)per ? gives[r] - at : (int64_t)per;
      if (len > 0) ax_step_put(g, (size_t)r * room, from + (size_t)at * item, (size_t)len * item);
    }
    AX_TRY(ax_step_meet(g, false, AX_FROM_ALL));
    for (int r = 0; r < g->size; to += (size_t)gets[r++] * item) {
      const int64_t len = gets[r] - at < (int64_t)per ? gets[r] - at : (int64_t)per;
      if (len > 0)
        memcpy(to + (size_t)at * item, ax_step_slot(g, r) + (size_t)g->rank * room, (size_t)len * item);
    }
    ax_step_end(g);
  }
out:
  return st;
}

ax_status ax_shm_collective(ax_walk *g, const ax_collective *c)
{
  switch (c->op) {
  case AX_ALL_REDUCE: return all_reduce(g, c);
  case AX_BROADCAST:
  case AX_BARRIER: return broadcast(g, c, c->root);
  case AX_ALL_GATHER:
  case AX_JOIN: return gather(g, c, true);
  case AX_GATHER: return gather(g, c, g->rank == c->root);
  case AX_REDUCE_SCATTER: return reduce_scatter(g, c);
  case AX_REDUCE: return reduce(g, c);
  case AX_SCATTER: return scatter(g, c);
  case AX_ALL_TO_ALL: return all_to_all(g, c);
  case AX_SEND: /* g is the pair of the two ranks, the sender first */
  case AX_RECV: return broadcast(g, c, 0);
  default: return ax_fail(AX_ENOIMPL, "the shm group has no collective number %d", (int)c->op);
  }
}

/* dist/shm_collectives.c: collectives between the ranks of one machine, over the memory of shm.c.
 *
 * Each is a row of steps (dist/steps.h).  A long all_reduce among more than two ranks reduces in
 * two phases: rank r reduces part r of the chunk, publishes `reduced`, and copies the other parts
 * from the ranks that reduced them; the work per rank then does not grow with the number of
 * ranks.  A reduction asks first whether the memory of all ranks can be reduced where it is
 * (dist/pull.h). */
#include <string.h>

#include "core/dist/pull.h"

/* bytes up to which an all_reduce among many ranks is done in one phase */
#define ONE_PHASE 4096

/* A chunk of an all_reduce. */
typedef struct piece {
  const char *in;
  char *out;
  size_t len;
  /* in two phases: the own part; part r begins at element per * r */
  bool parts;
  size_t per, at, own;
} piece;

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* The chunk of elements [at, end) that begins at `at`.  Parts begin at whole cache lines. */
static piece piece_at(const ax_walk *g, const ax_collective *c, size_t at, size_t end)
{
  const size_t item = ax_dtype_size(c->dtype), line = 64 / item, n = (size_t)g->size;
  piece p = { .in = (const char *)c->in + at * item,
              .out = (char *)c->out + at * item,
              .len = least(end - at, ax_shm.chunk / item),
              .parts = g->size > 2 && (end - at) * item > ONE_PHASE };

  if (!p.parts) return p;
  p.per = (p.len + n * line - 1) / (n * line) * line;
  p.at = least(p.per * (size_t)g->rank, p.len);
  p.own = least(p.len - p.at, p.per);
  return p;
}

/* Before the meeting: what the others read. */
static void give(ax_walk *g, const ax_collective *c, const piece *p)
{
  const size_t item = ax_dtype_size(c->dtype), end = p->at + p->own;

  if (!p->parts) {
    ax_step_put(g, 0, p->in, p->len * item);
    return;
  }
  ax_step_put(g, 0, p->in, p->at * item);
  ax_step_put(g, end * item, p->in + end * item, (p->len - end) * item);
}

/* After it, in one phase: every rank reduces all of it. */
static void take(ax_walk *g, const ax_collective *c, const piece *p)
{
  const void *parts[AX_MAX_RANKS];

  for (int r = 0; r < g->size; r++) parts[r] = r == g->rank ? p->in : ax_step_slot(g, r);
  ax_dist_reduce(c->dtype, c->reduction, p->out, parts, g->size, p->len);
}

/* In two. */
static ax_status take_parts(ax_walk *g, const ax_collective *c, const piece *p)
{
  const size_t item = ax_dtype_size(c->dtype);
  const void *parts[AX_MAX_RANKS];
  char *mine = ax_step_slot(g, g->rank);
  ax_status st = AX_OK;

  for (int r = 0; r < g->size; r++) parts[r] = (r == g->rank ? p->in : ax_step_slot(g, r)) + p->at * item;
  ax_dist_reduce(c->dtype, c->reduction, mine + p->at * item, parts, g->size, p->own);
  ax_step_reduced(g);
  for (int k = 0; k < g->size; k++) {
    const int r = (g->rank + k) % g->size; /* everybody starts elsewhere */
    const size_t at = least(p->per * (size_t)r, p->len), len = least(p->len - at, p->per);
    if (r != g->rank) AX_TRY(ax_step_wait_reduced(g, r));
    memcpy(p->out + at * item, ax_step_slot(g, r) + at * item, len * item);
  }
out:
  return st;
}

/* Elements [at, end).  met: the ranks have met over the first chunk. */
static ax_status reduce_run(ax_walk *g, const ax_collective *c, size_t at, size_t end, bool met)
{
  ax_status st = AX_OK;

  do {
    const piece p = piece_at(g, c, at, end);
    if (!met) {
      AX_TRY(ax_step_begin(g));
      give(g, c, &p);
      AX_TRY(ax_step_meet(g, false, AX_FROM_ALL));
    }
    if (p.parts) AX_TRY(take_parts(g, c, &p));
    else take(g, c, &p);
    ax_step_end(g);
    met = false;
    at += p.len;
  } while (at < end);
out:
  return st;
}

/* Where all ranks offer memory that can be mapped. */
static ax_status reduce_in_place(ax_walk *g, const ax_collective *c)
{
  const size_t count = (size_t)c->count;
  bool left[AX_MAX_RANKS];
  ax_status st = ax_pull_all_reduce(g, c, left);

  for (int r = 0; r < g->size && st == AX_OK; r++)
    if (left[r]) st = reduce_run(g, c, ax_pull_part(g, count, r), ax_pull_part(g, count, r + 1), false);
  return st;
}

static ax_status all_reduce(ax_walk *g, const ax_collective *c)
{
  const size_t count = (size_t)c->count, bytes = count * ax_dtype_size(c->dtype);
  const piece first = piece_at(g, c, 0, count);
  ax_pull_offers offers;
  ax_status st;

  AX_TRY(ax_step_begin(g));
  ax_step_header(g, c);
  if (!ax_pull_offer(g, c, bytes)) give(g, c, &first);
  AX_TRY(ax_step_meet(g, true, AX_FROM_ALL));
  offers = ax_pull_offered(g, bytes);
  if (offers == AX_PULL_ALL) return reduce_in_place(g, c);
  if (offers == AX_PULL_SOME) ax_step_end(g);
  st = reduce_run(g, c, 0, count, offers == AX_PULL_NONE);
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
  int r;

  do {
    len = bytes - at < ax_shm.chunk ? bytes - at : ax_shm.chunk;
    AX_TRY(ax_step_begin(g));
    if (at == 0) ax_step_header(g, c);
    ax_step_put(g, 0, (const char *)c->in + at, len);
    AX_TRY(ax_step_meet(g, at == 0, reads ? AX_FROM_ALL : g->rank));
    for (int k = 0; reads && len > 0 && k < g->size; k++) {
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

/* Bytes of a slot for each rank's piece. */
static size_t piece_of(const ax_walk *g) { return ax_shm.chunk / (size_t)g->size / 64 * 64; }

/* `len` elements from `at` on of each rank's part: a slot holds a piece for each rank. */
static void give_each(ax_walk *g, const ax_collective *c, size_t at, size_t len)
{
  const size_t item = ax_dtype_size(c->dtype);

  for (int r = 0; len > 0 && r < g->size; r++)
    if (r != g->rank)
      ax_step_put(g, (size_t)r * piece_of(g),
                  (const char *)c->in + ((size_t)r * (size_t)c->count + at) * item, len * item);
}

/* met: the ranks have met over the first pieces. */
static ax_status scatter_run(ax_walk *g, const ax_collective *c, bool met)
{
  const size_t item = ax_dtype_size(c->dtype), count = (size_t)c->count, room = piece_of(g);
  const void *parts[AX_MAX_RANKS];
  ax_status st = AX_OK;
  size_t at = 0;

  do {
    const size_t len = least(count - at, room / item);
    if (!met) {
      AX_TRY(ax_step_begin(g));
      give_each(g, c, at, len);
      AX_TRY(ax_step_meet(g, false, AX_FROM_ALL));
    }
    for (int r = 0; r < g->size; r++)
      parts[r] = r == g->rank ? (const char *)c->in + ((size_t)r * count + at) * item
                              : ax_step_slot(g, r) + (size_t)g->rank * room;
    if (len > 0) ax_dist_reduce(c->dtype, c->reduction, (char *)c->out + at * item, parts, g->size, len);
    ax_step_end(g);
    met = false;
    at += len;
  } while (at < count);
out:
  return st;
}

static ax_status reduce_scatter(ax_walk *g, const ax_collective *c)
{
  const size_t item = ax_dtype_size(c->dtype), count = (size_t)c->count;
  const size_t bytes = count * (size_t)g->size * item;
  ax_pull_offers offers;
  bool done = false;
  ax_status st;

  AX_TRY(ax_step_begin(g));
  ax_step_header(g, c);
  if (!ax_pull_offer(g, c, bytes)) give_each(g, c, 0, least(count, piece_of(g) / item));
  AX_TRY(ax_step_meet(g, true, AX_FROM_ALL));
  offers = ax_pull_offered(g, bytes);
  if (offers == AX_PULL_ALL) AX_TRY(ax_pull_reduce_scatter(g, c, &done));
  else if (offers == AX_PULL_SOME) ax_step_end(g);
  if (!done) st = scatter_run(g, c, offers == AX_PULL_NONE);
out:
  return st;
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

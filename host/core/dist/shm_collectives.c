/* dist/shm_collectives.c: collectives between the ranks of one machine, over the memory of shm.c.
 *
 * Each is a row of steps (dist/steps.h).  A long all_reduce among more than two ranks reduces in
 * two phases: rank r reduces part r of the chunk, publishes `reduced`, and copies the other parts
 * from the ranks that reduced them; the work per rank then does not grow with the number of
 * ranks. */
#include <string.h>

#include "core/dist/steps.h"

/* bytes up to which an all_reduce among many ranks is done in one phase */
#define ONE_PHASE 4096

/* One chunk of an all_reduce in one phase: every rank reduces all of it. */
static ax_status reduce_all(const ax_collective *c, const char *in, char *out, size_t len, bool first)
{
  const size_t item = ax_dtype_size(c->dtype);
  const void *parts[AX_MAX_RANKS];
  ax_status st = AX_OK;
  int r;

  ax_step_put(0, in, len * item);
  AX_TRY(ax_step_meet(first, AX_FROM_ALL));
  for (r = 0; r < ax_shm.size; r++) parts[r] = r == ax_shm.rank ? in : ax_step_slot(r);
  ax_dist_reduce(c->dtype, c->reduction, out, parts, ax_shm.size, len);
out:
  return st;
}

/* One chunk in two phases.  Parts begin at whole cache lines. */
static ax_status reduce_parts(const ax_collective *c, const char *in, char *out, size_t len, bool first)
{
  const size_t item = ax_dtype_size(c->dtype), line = 64 / item, n = (size_t)ax_shm.size;
  const size_t per = (len + n * line - 1) / (n * line) * line;
  const size_t my_at = per * (size_t)ax_shm.rank < len ? per * (size_t)ax_shm.rank : len;
  const size_t my_len = len - my_at < per ? len - my_at : per;
  const void *parts[AX_MAX_RANKS];
  char *mine = ax_step_slot(ax_shm.rank);
  ax_status st = AX_OK;
  int r, k;

  ax_step_put(0, in, my_at * item);
  ax_step_put((my_at + my_len) * item, in + (my_at + my_len) * item, (len - my_at - my_len) * item);
  AX_TRY(ax_step_meet(first, AX_FROM_ALL));
  for (r = 0; r < ax_shm.size; r++) parts[r] = (r == ax_shm.rank ? in : ax_step_slot(r)) + my_at * item;
  ax_dist_reduce(c->dtype, c->reduction, mine + my_at * item, parts, ax_shm.size, my_len);
  ax_step_reduced();
  for (k = 0; k < ax_shm.size; k++) {
    size_t at, part;
    r = (ax_shm.rank + k) % ax_shm.size; /* everybody starts elsewhere */
    at = per * (size_t)r < len ? per * (size_t)r : len;
    part = len - at < per ? len - at : per;
    if (r != ax_shm.rank) AX_TRY(ax_step_wait_reduced(r));
    memcpy(out + at * item, ax_step_slot(r) + at * item, part * item);
  }
out:
  return st;
}

static ax_status all_reduce(const ax_collective *c)
{
  const size_t item = ax_dtype_size(c->dtype), most = ax_shm.chunk / item, count = (size_t)c->count;
  const bool in_parts = ax_shm.size > 2 && count * item > ONE_PHASE;
  ax_status st = AX_OK;
  size_t at = 0, len;

  do {
    len = count - at < most ? count - at : most;
    AX_TRY(ax_step_begin());
    if (at == 0) ax_step_header(c);
    AX_TRY((in_parts ? reduce_parts : reduce_all)(c, (const char *)c->in + at * item,
                                                  (char *)c->out + at * item, len, at == 0));
    ax_step_end();
    at += len;
  } while (at < count);
out:
  return st;
}

/* Also the barrier, with nothing to send. */
static ax_status broadcast(const ax_collective *c)
{
  const size_t item = ax_dtype_size(c->dtype), bytes = (size_t)c->count * item;
  const bool sends = ax_shm.rank == c->root;
  ax_status st = AX_OK;
  size_t at = 0, len;

  do {
    len = bytes - at < ax_shm.chunk ? bytes - at : ax_shm.chunk;
    AX_TRY(ax_step_begin());
    if (at == 0) ax_step_header(c);
    ax_step_put(0, (const char *)c->in + at, sends ? len : 0);
    AX_TRY(ax_step_meet(at == 0, c->root));
    if (!sends && len > 0) memcpy((char *)c->out + at, ax_step_slot(c->root), len);
    ax_step_end();
    at += len;
  } while (at < bytes);
  if (sends && bytes > 0 && c->out != c->in) memcpy(c->out, c->in, bytes);
out:
  return st;
}

/* all_gather, and gather where only the root reads. */
static ax_status gather(const ax_collective *c, bool reads)
{
  const size_t item = ax_dtype_size(c->dtype), bytes = (size_t)c->count * item;
  ax_status st = AX_OK;
  size_t at = 0, len;
  int r, k;

  do {
    len = bytes - at < ax_shm.chunk ? bytes - at : ax_shm.chunk;
    AX_TRY(ax_step_begin());
    if (at == 0) ax_step_header(c);
    ax_step_put(0, (const char *)c->in + at, len);
    AX_TRY(ax_step_meet(at == 0, reads ? AX_FROM_ALL : ax_shm.rank));
    for (k = 0; reads && len > 0 && k < ax_shm.size; k++) {
      r = (ax_shm.rank + k) % ax_shm.size;
      memcpy((char *)c->out + (size_t)r * bytes + at,
             r == ax_shm.rank ? (const char *)c->in + at : ax_step_slot(r), len);
    }
    ax_step_end();
    at += len;
  } while (at < bytes);
out:
  return st;
}

/* A slot holds a piece of each rank's part. */
static ax_status reduce_scatter(const ax_collective *c)
{
  const size_t item = ax_dtype_size(c->dtype), count = (size_t)c->count;
  const size_t room = ax_shm.chunk / (size_t)ax_shm.size / 64 * 64, most = room / item;
  const void *parts[AX_MAX_RANKS];
  ax_status st = AX_OK;
  size_t at = 0, len;
  int r;

  do {
    len = count - at < most ? count - at : most;
    AX_TRY(ax_step_begin());
    if (at == 0) ax_step_header(c);
    for (r = 0; len > 0 && r < ax_shm.size; r++)
      if (r != ax_shm.rank)
        ax_step_put((size_t)r * room, (const char *)c->in + ((size_t)r * count + at) * item, len * item);
    AX_TRY(ax_step_meet(at == 0, AX_FROM_ALL));
    for (r = 0; r < ax_shm.size; r++)
      parts[r] = r == ax_shm.rank ? (const char *)c->in + ((size_t)r * count + at) * item
                                  : ax_step_slot(r) + (size_t)ax_shm.rank * room;
    if (len > 0) ax_dist_reduce(c->dtype, c->reduction, (char *)c->out + at * item, parts, ax_shm.size, len);
    ax_step_end();
    at += len;
  } while (at < count);
out:
  return st;
}

ax_status ax_shm_collective(const ax_collective *c)
{
  switch (c->op) {
  case AX_ALL_REDUCE: return all_reduce(c);
  case AX_BROADCAST:
  case AX_BARRIER: return broadcast(c);
  case AX_ALL_GATHER:
  case AX_JOIN: return gather(c, true);
  case AX_GATHER: return gather(c, ax_shm.rank == c->root);
  case AX_REDUCE_SCATTER: return reduce_scatter(c);
  default: return ax_fail(AX_ENOIMPL, "the shm group has no collective number %d", (int)c->op);
  }
}

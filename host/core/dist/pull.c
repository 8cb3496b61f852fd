/* dist/pull.c: reductions between the ranks of one machine that read the ranks' memory where it is.
 *
 * Rank r reduces part r straight from all ranks' memory, in their order, and of an all_reduce it
 * writes the result into all of them.  Nobody else touches that part, so two meetings are enough:
 * all ranks have come, so that their inputs are there; all have reduced.  A rank that cannot map
 * another one's memory says so in the second, and its part, which nobody has touched then, goes
 * through the windows. */
#include "core/dist/pull.h"

#include <string.h>

#define BLOCK ((size_t)16 << 10)     /* bytes that are still in the caches when they are written */
#define FEW 8                        /* ranks, two of whose blocks fit there */
#define LOOK_EVERY ((size_t)8 << 20) /* bytes between two looks at the run's end */

size_t ax_pull_part(const ax_walk *g, size_t count, int r)
{
  const size_t line = 64; /* elements: whole cache lines of any type */
  const size_t per = (count + (size_t)g->size * line - 1) / ((size_t)g->size * line) * line;
  const size_t at = per * (size_t)r;
  return at < count ? at : count;
}

/* An all_reduce writes into the memory that it reads. */
bool ax_pull_offer(ax_walk *g, const ax_collective *c, size_t bytes)
{
  const bool fits = bytes >= AX_PULL_FROM && (c->op != AX_ALL_REDUCE || c->in == c->out);
  const ax_place place = fits ? ax_peers_place(c->in, bytes) : (ax_place){ .number = 0 };

  ax_step_set_place(g, &place);
  return place.number != 0;
}

ax_pull_offers ax_pull_offered(ax_walk *g, size_t bytes)
{
  int n = 0;

  if (bytes < AX_PULL_FROM) return AX_PULL_NONE;
  for (int r = 0; r < g->size; r++) n += ax_step_place(g, r).number != 0;
  return n == 0 ? AX_PULL_NONE : n < g->size ? AX_PULL_SOME : AX_PULL_ALL;
}

/* parts[r]: `bytes` bytes of rank r's memory.  False: this rank cannot map one of them. */
static bool map_all(ax_walk *g, const ax_collective *c, size_t bytes, char **parts)
{
  for (int r = 0; r < g->size; r++) {
    const ax_place place = ax_step_place(g, r);
    parts[r] = r == g->rank ? (char *)c->in : ax_peers_map(g->local[r], &place, bytes);
    if (!parts[r]) return false;
  }
  return true;
}

/* The second meeting, where this rank has reduced its part (or failed to).  lacks[r]: rank r has
 * not. */
static ax_status meet_again(ax_walk *g, bool reduced, bool *lacks)
{
  ax_status st = AX_OK;

  *ax_step_slot(g, g->rank) = reduced;
  ax_step_reduced(g);
  for (int r = 0; r < g->size; r++) {
    if (r != g->rank) AX_TRY(ax_step_wait_reduced(g, r));
    lacks[r] = !*ax_step_slot(g, r);
  }
out:
  return st;
}

/* The lines of the next block.  The processor itself fetches none beyond the end of a page. */
static void prefetch(const char *block)
{
  for (size_t at = 0; at < BLOCK; at += 64) __builtin_prefetch(block + at, 1);
}

/* Reduces `count` elements of all parts, which begin there, into `out`.  spread: that is this
 * rank's own part, and the others' get the result, too. */
static ax_status reduce(const ax_walk *g, const ax_collective *c, char *const *parts, char *out, size_t count,
                        bool spread)
{
  const size_t item = ax_dtype_size(c->dtype), bytes = count * item;
  const void *from[AX_MAX_RANKS];
  ax_status st = AX_OK;

  for (size_t at = 0; at < bytes; at += BLOCK) {
    const size_t len = bytes - at < BLOCK ? bytes - at : BLOCK;
    if (at % LOOK_EVERY == 0) AX_TRY(ax_step_look());
    for (int r = 0; r < g->size; r++) {
      from[r] = parts[r] + at;
      if (g->size <= FEW && bytes - at > BLOCK) prefetch(parts[r] + at + BLOCK);
    }
    ax_dist_reduce(c->dtype, c->reduction, out + at, from, g->size, len / item);
    for (int r = 0; spread && r < g->size; r++)
      if (r != g->rank) memcpy(parts[r] + at, out + at, len);
  }
out:
  return st;
}

ax_status ax_pull_all_reduce(ax_walk *g, const ax_collective *c, bool *left)
{
  const size_t item = ax_dtype_size(c->dtype), count = (size_t)c->count;
  const size_t first = ax_pull_part(g, count, g->rank), end = ax_pull_part(g, count, g->rank + 1);
  char *parts[AX_MAX_RANKS];
  const bool mine = map_all(g, c, count * item, parts);
  ax_status st = AX_OK;

  for (int r = 0; mine && r < g->size; r++) parts[r] += first * item;
  if (mine) AX_TRY(reduce(g, c, parts, parts[g->rank], end - first, true));
  AX_TRY(meet_again(g, mine, left));
  ax_step_end(g);
out:
  return st;
}

ax_status ax_pull_reduce_scatter(ax_walk *g, const ax_collective *c, bool *done)
{
  const size_t item = ax_dtype_size(c->dtype), count = (size_t)c->count;
  char *parts[AX_MAX_RANKS];
  bool lacks[AX_MAX_RANKS];
  const bool mine = map_all(g, c, (size_t)g->size * count * item, parts);
  ax_status st = AX_OK;

  for (int r = 0; mine && r < g->size; r++) parts[r] += (size_t)g->rank * count * item;
  if (mine) AX_TRY(reduce(g, c, parts, c->out, count, false));
  AX_TRY(meet_again(g, mine, lacks));
  ax_step_end(g);
  *done = true;
  for (int r = 0; r < g->size; r++) *done = *done && !lacks[r];
out:
  return st;
}

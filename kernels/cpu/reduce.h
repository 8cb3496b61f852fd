/* Reductions: the loop nest is divided into dims that stay ("kept") and dims that are reduced, each
 * in logical order.
 *
 * There are two ways through memory.  Rows: the last dim is reduced, and one loop along it computes
 * each result.  Columns: the last dim is kept, and a tile of neighbouring results is carried
 * through all reduced positions together.  Where there are few results and much to reduce, the
 * reduced positions are cut into chunks, whose number follows from the sizes alone. */
#ifndef AX_CPU_REDUCE_H
#define AX_CPU_REDUCE_H

#include "cpu.h"

/* results in a column tile: runs of memory long enough for the processor's prefetcher */
#define AX_TILE 512
#define AX_CHUNK 65536 /* fewer reduced elements are not cut */
#define AX_PIECES 64   /* the number of tiles times chunks, when cut */

/* strides in bytes */
typedef struct ax_dims {
  int n;
  int64_t count, shape[AX_MAX_DIMS], in[AX_MAX_DIMS], out[AX_MAX_DIMS];
} ax_dims;

typedef struct ax_split {
  const char *in;
  char *out;
  ax_dtype from, to;
  ax_dims kept, reduced;
  bool columns;
  int64_t width;  /* of the kept last dim (columns); else 1 */
  int64_t tiles;  /* groups of results: one result (rows), or up to AX_TILE of them (columns) */
  int64_t chunks; /* pieces that the reduced positions are cut into */
  int64_t work;   /* all elements */
} ax_split;

void ax_cpu_split(const ax_iter *it, ax_split *s);

/* The byte offset in the input of position p (row-major count).  Divisions take as long as a short
 * row: the outermost dim has none. */
static inline int64_t ax_dims_at(const ax_dims *d, int64_t p, int ndim)
{
  int64_t at = 0;
  for (int k = ndim - 1; k > 0; k--) {
    at += p % d->shape[k] * d->in[k];
    p /= d->shape[k];
  }
  return ndim > 0 ? at + p * d->in[0] : at;
}

/* Group t: the position of its first result among all, its place in the input and output, and its
 * number of results. */
typedef struct ax_group {
  int64_t first, n;
  const char *in;
  char *out;
  int64_t in_step, out_step;
} ax_group;
ax_group ax_cpu_group(const ax_split *s, int64_t t);

/* The reduced positions [*lo, *hi) of chunk c. */
static inline void ax_chunk_bounds(const ax_split *s, int64_t c, int64_t *lo, int64_t *hi)
{
  *lo = s->reduced.count / s->chunks * c +
        (c < s->reduced.count % s->chunks ? c : s->reduced.count % s->chunks);
  *hi = *lo + s->reduced.count / s->chunks + (c < s->reduced.count % s->chunks);
}

#endif

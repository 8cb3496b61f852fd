/* How a reduction's loop nest is taken apart: dims that stay ("kept") and dims that are reduced,
 * each in logical order.
 *
 * Two ways through memory.  Rows: the last dim is reduced; each result is the work of one loop
 * along it.  Columns: the last dim is kept; a tile of neighbouring results is carried through all
 * reduced positions together.  When there are few results and much to reduce, the reduced positions
 * are cut into chunks; how many follows from the sizes alone. */
#ifndef AX_CPU_REDUCE_H
#define AX_CPU_REDUCE_H

#include "cpu.h"

/* results in a column tile: runs of memory long enough for the processor to foresee */
#define AX_TILE 512
#define AX_CHUNK 65536 /* elements below which reduced positions are not cut */
#define AX_PIECES 64   /* tiles times chunks, when cut */

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
  int64_t width;  /* of the kept last dim, columns only; else 1 */
  int64_t tiles;  /* groups of results: a result (rows), or a tile of up to AX_TILE (columns) */
  int64_t chunks; /* pieces of the reduced positions */
  int64_t work;   /* elements in all */
} ax_split;

void ax_cpu_split(const ax_iter *it, ax_split *s);

/* Byte offset in the input of position p (row-major count). */
static inline int64_t ax_dims_at(const ax_dims *d, int64_t p, int ndim)
{
  int64_t at = 0;
  for (int k = ndim - 1; k >= 0; k--) {
    at += p % d->shape[k] * d->in[k];
    p /= d->shape[k];
  }
  return at;
}

/* Group t: its first result's position among all results, its place in the input and output, and
 * how many results it has. */
typedef struct ax_group {
  int64_t first, n;
  const char *in;
  char *out;
  int64_t in_step, out_step;
} ax_group;
ax_group ax_cpu_group(const ax_split *s, int64_t t);

/* Reduced positions of chunk c: [*lo, *hi). */
static inline void ax_chunk_bounds(const ax_split *s, int64_t c, int64_t *lo, int64_t *hi)
{
  *lo = s->reduced.count / s->chunks * c +
        (c < s->reduced.count % s->chunks ? c : s->reduced.count % s->chunks);
  *hi = *lo + s->reduced.count / s->chunks + (c < s->reduced.count % s->chunks);
}

#endif

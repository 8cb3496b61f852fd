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
#include "vector.h"

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

/* A run: `lanes` running totals of n adjacent elements, combined in a fixed order that is equal for
 * every processor level: halves are joined until one total is left, then the elements that do not
 * fill all lanes are.  Whole vectors V of totals of type A stay in registers, which arrays of the
 * compiler's own vectors do not.  VECTOR is of a place, ELEMENT of an element; both may use c. */
#define AX_FOLD_BY(op, w) \
  AX_SIMD \
  for (int j = 0; j < w; j++) lane[j] op lane[j + w];
#define AX_IN_REGISTERS _Pragma("GCC unroll 16")
#define AX_RUN(name, lanes, T, A, V, VECTOR, ELEMENT, op, none) \
  static inline A name(const T *p, int64_t n, double c) \
  { \
    enum { WIDTH = AX_BYTES / sizeof(A), COUNT = lanes / WIDTH }; \
    A lane[WIDTH] = { none }, rest = none; \
    int64_t i = 0; \
    if (n >= lanes) { \
      V part[COUNT]; \
      AX_IN_REGISTERS \
      for (int k = 0; k < COUNT; k++) part[k] = (V){ 0 } + (A)none; \
      for (; i + lanes <= n; i += lanes) { \
        AX_IN_REGISTERS \
        for (int k = 0; k < COUNT; k++) part[k] op VECTOR((p + i + k * WIDTH)); \
      } \
      AX_IN_REGISTERS \
      for (int k = COUNT - 1; k > 0; k--) part[k - (1 << (31 - __builtin_clz(k)))] op part[k]; \
      *(V *)lane = part[0]; \
      AX_IN_REGISTERS \
      for (int w = WIDTH / 2; w > 0; w /= 2) AX_FOLD_BY(op, w) \
    } \
    for (; i < n; i++) rest op(A) ELEMENT((p[i])); \
    lane[0] op rest; \
    return lane[0]; \
  }

#endif

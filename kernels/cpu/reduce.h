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

/* A chunk of the reduced positions of a group; all of them where they are not cut. */
typedef struct ax_chunk {
  ax_group g;
  int64_t from, until; /* the reduced positions */
  int64_t partial;     /* where its first result is among those of all chunks, [chunks][results] */
} ax_chunk;

/* Chunk p, of tiles times chunks. */
static inline ax_chunk ax_chunk_at(const ax_split *s, int64_t p)
{
  if (s->chunks == 1) {
    const ax_group g = ax_cpu_group(s, p);
    return (ax_chunk){ .g = g, .until = s->reduced.count, .partial = g.first };
  }
  const int64_t c = p % s->chunks, size = s->reduced.count / s->chunks, longer = s->reduced.count % s->chunks;
  const ax_group g = ax_cpu_group(s, p / s->chunks);
  const int64_t from = size * c + (c < longer ? c : longer);
  return (ax_chunk){
    .g = g, .from = from, .until = from + size + (c < longer), .partial = c * s->kept.count + g.first
  };
}

/* Reduced positions of a row that one loop takes: n elements, `step` bytes apart from p on. */
typedef struct ax_line {
  const char *p;
  int64_t step, n;
} ax_line;

/* The line that begins with position lo, at most up to hi. */
static inline ax_line ax_line_at(const ax_split *s, const ax_group *g, int64_t lo, int64_t hi)
{
  const ax_dims *r = &s->reduced;
  const int last = r->n - 1;

  if (last < 0) return (ax_line){ .p = g->in, .n = 1 };
  const int64_t at = last ? lo % r->shape[last] : lo, left = r->shape[last] - at;
  return (ax_line){ .p = g->in + (last ? ax_dims_at(r, lo / r->shape[last], last) : 0) + at * r->in[last],
                    .step = r->in[last],
                    .n = left < hi - lo ? left : hi - lo };
}

#define AX_ROWS 64 /* reduced positions that a call of a column's loop takes */

/* Writes where the reduced positions from lo on are in a column, at most up to hi, and returns how
 * many. */
static inline int64_t ax_rows_at(const ax_split *s, int64_t lo, int64_t hi, int64_t at[AX_ROWS])
{
  const ax_dims *r = &s->reduced;
  int64_t n = 0;
  for (; n < AX_ROWS && lo < hi; n++, lo++) at[n] = r->n == 1 ? lo * r->in[0] : ax_dims_at(r, lo, r->n);
  return n;
}

/* Joins the chunks of result k of a group, and writes it. */
typedef void (*ax_finish_fn)(const void *job, const ax_group *g, int64_t k);
/* Runs `range` over all chunks of all groups.  Where there are several chunks, *partial, which the
 * job has, is then room for [chunks][results] of `size` bytes, and `finish` is called for each
 * result; else `range` writes the results. */
ax_status ax_cpu_reduce(const ax_split *s, size_t size, void **partial, ax_range_fn range,
                        ax_finish_fn finish, void *job);

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

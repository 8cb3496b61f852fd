/* Distances of all pairs of rows, |x_i - y_j|_p, and their gradient.
 *
 * Distances are computed in double in both types: the differences of float32 rows are exact
 * there, so that rows near each other have a distance as exact as any, which a product of
 * matrices has not.  A vector holds the distances of a row of x to neighbouring rows of y, which
 * are turned for it.  The gradient is in the tensors' own type (distance_gradient.inc); there, a
 * vector holds neighbouring numbers of a row.  A row of a result is one thread's, and its sums
 * have one order. */
#include "cpu.h"

#include <math.h>
#include <string.h>

#include "vector.h"

typedef int32_t mask_f32 __attribute__((vector_size(AX_BYTES), aligned(4), may_alias));
typedef int64_t mask_f64 __attribute__((vector_size(AX_BYTES), aligned(8), may_alias));

/* ---- distances */

typedef ax_vec_f64 vec;
typedef double number __attribute__((may_alias)); /* one of a vector's */
/* ROWS_OF_X x VECS sums are enough for the latency of an addition, and with what they are made of
 * they fit in 16 registers. */
enum { LANES = AX_BYTES / 8, VECS = 2, WIDE = VECS * LANES, ROWS_OF_X = 5, IN_CACHE = 1 << 14 };

typedef struct job {
  int64_t m, n, k, blocks; /* blocks: of WIDE rows of y */
  double p;
  bool wide; /* the tensors are float64 */
  const void *from_x, *from_y;
  const double *x;         /* in float64 */
  double *wide_x, *turned; /* turned: y as (b, blocks, k, WIDE) */
  void *out;
  int64_t x_step, y_step; /* elements of the result from a row of x, and of y, to the next */
} job;

static vec size_of(vec v) { return (vec)((mask_f64)v & INT64_MAX); }
static vec choose(mask_f64 m, vec a, vec b) { return (vec)(((mask_f64)a & m) | ((mask_f64)b & ~m)); }
static vec larger(vec sum, vec a) { return choose((a > sum) | (a != a), a, sum); }
static vec powers(vec a, double p)
{
  for (int i = 0; i < LANES; i++) a[i] = pow(a[i], p);
  return a;
}

#define EACH_SUM \
  _Pragma("GCC unroll 5") for (int r = 0; r < ROWS_OF_X; r++) \
      _Pragma("GCC unroll 2") for (int v = 0; v < VECS; v++)

/* to: what a term of the differences `a` of some rows of x adds over k, for WIDE rows of y. */
#define SUMS(name, term) \
  static void name(const double *const x[ROWS_OF_X], const double *y, int64_t k, double p, \
                   vec to[ROWS_OF_X][VECS]) \
  { \
    vec of[ROWS_OF_X][VECS]; \
    (void)p; \
    EACH_SUM of[r][v] = (vec){ 0 }; \
    for (int64_t i = 0; i < k; i++) { \
      vec beside[VECS]; \
      _Pragma("GCC unroll 2") for (int v = 0; v < VECS; v++) beside[v] = \
          *(const vec *)(y + i * WIDE + v * LANES); \
      EACH_SUM \
      { \
        const vec a = x[r][i] - beside[v], sum = of[r][v]; \
        of[r][v] = term; \
      } \
    } \
    EACH_SUM to[r][v] = of[r][v]; \
  }
SUMS(squares, AX_VFMA_f64(a, a, sum))
SUMS(sizes, sum + size_of(a))
SUMS(largest, larger(sum, size_of(a)))
SUMS(counts, sum + (vec)((mask_f64)(1 - (vec){ 0 }) & (a != 0)))
SUMS(any_power, sum + powers(size_of(a), p))

static void roots(number *sum, double p)
{
  if (p == 2) {
    AX_SIMD
    for (int i = 0; i < WIDE; i++) sum[i] = sqrt(sum[i]);
  } else if (p != 0 && p != 1 && !isinf(p)) {
    for (int i = 0; i < WIDE; i++) sum[i] = pow(sum[i], 1 / p);
  }
}

/* Writes the distances of a row of x to n rows of y in a block. */
static void put(const job *j, int64_t at, const number *from, int64_t n)
{
  const bool whole = j->y_step == 1 && n == WIDE;
  double *const wide = (double *)j->out + at;
  float *const narrow = (float *)j->out + at, rounded[WIDE], *const to = whole ? narrow : rounded;

  if (j->wide) {
    for (int64_t i = 0; i < n; i++) wide[i * j->y_step] = from[i];
    return;
  }
  AX_SIMD
  for (int i = 0; i < WIDE; i++) to[i] = (float)from[i];
  for (int64_t i = 0; !whole && i < n; i++) narrow[i * j->y_step] = rounded[i];
}

/* Of batch b: rows from .. to - 1 of x and blocks first .. last - 1 of y. */
static void distances_of(const job *j, int64_t b, int64_t from, int64_t to, int64_t first, int64_t last)
{
  const double p = j->p;
  void (*const sums)(const double *const *, const double *, int64_t, double, vec(*)[VECS]) = p == 2 ? squares
                                                                                             : p == 1 ? sizes
                                                                                             : p == 0 ? counts
                                                                                             : isinf(p)
                                                                                                 ? largest
                                                                                                 : any_power;

  for (int64_t block = first; block < last; block++) {
    const int64_t column = block * WIDE, count = j->n - column < WIDE ? j->n - column : WIDE;
    const double *y = j->turned + (b * j->blocks + block) * j->k * WIDE;
    for (int64_t i = from; i < to; i += ROWS_OF_X) {
      const int64_t rows = to - i < ROWS_OF_X ? to - i : ROWS_OF_X;
      const double *x[ROWS_OF_X];
      vec part[ROWS_OF_X][VECS];
      for (int64_t r = 0; r < ROWS_OF_X; r++) x[r] = j->x + (b * j->m + i + (r < rows ? r : rows - 1)) * j->k;
      sums(x, y, j->k, p, part);
      for (int64_t r = 0; r < rows; r++) {
        roots((number *)part[r], p);
        put(j, b * j->m * j->n + (i + r) * j->x_step + column * j->y_step, (number *)part[r], count);
      }
    }
  }
}

/* As many rows of x at a time as stay in the second-level cache beside a block of y. */
static int64_t rows_at_a_time(const job *j) { return (1 + IN_CACHE / (j->k + 1) / ROWS_OF_X) * ROWS_OF_X; }

static void distances_by_rows(int64_t lo, int64_t hi, void *ctx)
{
  const job *j = ctx;

  for (int64_t at = lo; at < hi;) {
    const int64_t b = at / j->m, from = at % j->m;
    int64_t to = from + rows_at_a_time(j);
    if (to > from + hi - at) to = from + hi - at;
    if (to > j->m) to = j->m;
    distances_of(j, b, from, to, 0, j->blocks);
    at += to - from;
  }
}

static void distances_by_blocks(int64_t lo, int64_t hi, void *ctx)
{
  const job *j = ctx;
  const int64_t rows = rows_at_a_time(j);

  for (int64_t at = lo; at < hi;) {
    const int64_t b = at / j->blocks, first = at % j->blocks;
    const int64_t last = j->blocks - first < hi - at ? j->blocks : first + hi - at;
    for (int64_t from = 0; from < j->m; from += rows)
      distances_of(j, b, from, j->m - from < rows ? j->m : from + rows, first, last);
    at += last - first;
  }
}

static void widen_numbers(int64_t lo, int64_t hi, void *ctx)
{
  const job *j = ctx;
  AX_SIMD
  for (int64_t i = lo; i < hi; i++) j->wide_x[i] = (double)((const float *)j->from_x)[i];
}

#define T double
#define V vec
#define MASK mask_f64
#define FN(name) name##_of_doubles
enum { FN(LANES) = LANES };
#include "turn.inc"
#undef T
#undef V
#undef MASK
#undef FN

typedef float floats __attribute__((vector_size(AX_BYTES / 2), aligned(4), may_alias));

static vec read_vector(const job *j, int64_t at)
{
  if (j->wide) return *(const vec *)((const double *)j->from_y + at);
  return __builtin_convertvector(*(const floats *)((const float *)j->from_y + at), vec);
}

/* Puts `rows` rows of y from element `from` on side by side, WIDE at most; what is missing is 0. */
static void turn_block(const job *j, int64_t from, int64_t rows, double *to)
{
  const int64_t k = j->k;

  if (rows < WIDE) memset(to, 0, sizeof *to * (size_t)(k * WIDE));
  for (int64_t r = 0; r < rows; r += LANES) {
    const int64_t count = rows - r < LANES ? rows - r : LANES;
    int64_t e = 0;
    for (; count == LANES && e + LANES <= k; e += LANES) {
      vec square[LANES];
      for (int i = 0; i < LANES; i++) square[i] = read_vector(j, from + (r + i) * k + e);
      turn_of_doubles(square);
      for (int i = 0; i < LANES; i++) *(vec *)(to + (e + i) * WIDE + r) = square[i];
    }
    for (; e < k; e++)
      for (int64_t i = 0; i < count; i++) {
        const int64_t at = from + (r + i) * k + e;
        to[e * WIDE + r + i] =
            j->wide ? ((const double *)j->from_y)[at] : (double)((const float *)j->from_y)[at];
      }
  }
}

static void turn_blocks(int64_t lo, int64_t hi, void *ctx)
{
  const job *j = ctx;
  for (int64_t at = lo; at < hi; at++) {
    const int64_t first = at % j->blocks * WIDE, rows = j->n - first < WIDE ? j->n - first : WIDE;
    turn_block(j, (at / j->blocks * j->n + first) * j->k, rows, j->turned + at * j->k * WIDE);
  }
}

static int64_t blocks_of(int64_t rows) { return (rows + WIDE - 1) / WIDE; }

ax_status ax_cpu__distance_cdist(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *y = call->in[1];
  const int64_t batch = x->shape[0];
  job j = { .m = x->shape[1],
            .n = y->shape[1],
            .k = x->shape[2],
            .p = call->a->cdist.p,
            .wide = x->dtype == AX_F64,
            .from_x = ax_data(x),
            .from_y = ax_data(y),
            .out = ax_data(call->out[0]),
            .x_step = y->shape[1],
            .y_step = 1 };
  if (call->out[0]->numel == 0) return AX_OK;
  /* |x - y| = |y - x|: vectors that few rows of y would leave half empty are filled with rows of
   * x. */
  if (j.n * blocks_of(j.m) < j.m * blocks_of(j.n)) {
    j.from_x = ax_data(y), j.from_y = ax_data(x);
    j.m = y->shape[1], j.n = x->shape[1];
    j.x_step = 1, j.y_step = j.m;
  }
  j.blocks = blocks_of(j.n);
  const int64_t rows = batch * j.m, blocks = batch * j.blocks, turned = blocks * j.k * WIDE;
  const int64_t numbers = rows * j.k, work = rows * j.n * (j.k + 1) / (4 * LANES);
  const size_t bytes = sizeof(double) * (size_t)(turned + (j.wide ? 0 : numbers));
  void *scratch;
  const ax_status st = ax_alloc(bytes, &scratch);
  if (st != AX_OK) return st;
  j.turned = scratch;
  j.wide_x = j.turned + turned;
  j.x = j.wide ? j.from_x : j.wide_x;
  if (!j.wide) ax_cpu_for(numbers, numbers, widen_numbers, &j);
  ax_cpu_for(blocks, turned, turn_blocks, &j);
  if (blocks > rows / ROWS_OF_X) ax_cpu_for(blocks, work, distances_by_blocks, &j);
  else ax_cpu_for(rows, work, distances_by_rows, &j);
  ax_free(scratch, bytes);
  return AX_OK;
}

/* ---- the gradient */

enum { SLICE = 128, ROWS = 16 }; /* rows of y, and of x, whose pairs are weighed together */

#define T float
#define V ax_vec_f32
#define MASK mask_f32
#define FN(name) name##_f32
#define FMA AX_VFMA_f32
#define POW powf
#define STRANGE(v) (!((v) >= 0x1p-90f && (v) <= 0x1p100f)) /* also 0 and what is not finite */
#include "distance_gradient.inc"
#undef T
#undef V
#undef MASK
#undef FN
#undef FMA
#undef POW

#define T double
#define V ax_vec_f64
#define MASK mask_f64
#define FN(name) name##_f64
#define FMA AX_VFMA_f64
#define POW pow
#define STRANGE(v) ((v) == 0)
#include "distance_gradient.inc"

ax_status ax_cpu__distance_cdist_backward(const ax_call *call)
{
  if (call->in[1]->numel == 0) return AX_OK;
  return call->in[1]->dtype == AX_F64 ? backward_f64(call) : backward_f32(call);
}

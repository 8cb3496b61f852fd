/* Distances of all pairs of rows, |x_i - y_j|_p, and their gradient.
 *
 * Distances are computed in double in both types: the differences of float32 rows are exact
 * there, so that rows near each other have a distance as exact as any, which a product of
 * matrices has not.  A vector holds the distances of a row of x to neighbouring rows of y, which
 * are turned for it.  The gradient is in the tensors' own type (distance_gradient.h); there, a
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

static void put(const job *j, int64_t at, const number *from, int64_t n)
{
  float *const narrow = (float *)j->out + at;
  if (j->wide) memcpy((double *)j->out + at, from, sizeof *from * (size_t)n);
  else if (n == WIDE) {
    AX_SIMD
    for (int i = 0; i < WIDE; i++) narrow[i] = (float)from[i];
  } else
    for (int64_t i = 0; i < n; i++) narrow[i] = (float)from[i];
}

/* Rows from .. to - 1 of x, of batch b, and all rows of y. */
static void distances_of(const job *j, int64_t b, int64_t from, int64_t to)
{
  const double p = j->p;
  void (*const sums)(const double *const *, const double *, int64_t, double, vec(*)[VECS]) = p == 2 ? squares
                                                                                             : p == 1 ? sizes
                                                                                             : p == 0 ? counts
                                                                                             : isinf(p)
                                                                                                 ? largest
                                                                                                 : any_power;

  for (int64_t block = 0; block < j->blocks; block++) {
    const int64_t first = block * WIDE, count = j->n - first < WIDE ? j->n - first : WIDE;
    const double *y = j->turned + (b * j->blocks + block) * j->k * WIDE;
    for (int64_t i = from; i < to; i += ROWS_OF_X) {
      const int64_t rows = to - i < ROWS_OF_X ? to - i : ROWS_OF_X;
      const double *x[ROWS_OF_X];
      vec part[ROWS_OF_X][VECS];
      for (int64_t r = 0; r < ROWS_OF_X; r++) x[r] = j->x + (i + (r < rows ? r : rows - 1)) * j->k;
      sums(x, y, j->k, p, part);
      for (int64_t r = 0; r < rows; r++) {
        roots((number *)part[r], p);
        put(j, (i + r) * j->n + first, (number *)part[r], count);
      }
    }
  }
}

/* As many rows of x at a time as stay in the second-level cache beside a block of y. */
static void distances(int64_t lo, int64_t hi, void *ctx)
{
  const job *j = ctx;
  const int64_t fit = 1 + IN_CACHE / (j->k + 1) / ROWS_OF_X;

  for (int64_t from = lo; from < hi;) {
    const int64_t b = from / j->m;
    int64_t to = from + fit * ROWS_OF_X;
    if (to > hi) to = hi;
    if (to > (b + 1) * j->m) to = (b + 1) * j->m;
    distances_of(j, b, from, to);
    from = to;
  }
}

static void widen_numbers(int64_t lo, int64_t hi, void *ctx)
{
  const job *j = ctx;
  AX_SIMD
  for (int64_t i = lo; i < hi; i++) j->wide_x[i] = (double)((const float *)j->from_x)[i];
}

/* Blocks of WIDE rows of y, in which the numbers of neighbours are side by side; what is missing of
 * the last block is 0. */
static void turn_rows(int64_t lo, int64_t hi, void *ctx)
{
  const job *j = ctx;
  for (int64_t at = lo; at < hi; at++) {
    const int64_t b = at / j->blocks, first = at % j->blocks * WIDE;
    double *const to = j->turned + at * j->k * WIDE;
    if (j->n - first < WIDE) memset(to, 0, sizeof *to * (size_t)(j->k * WIDE));
    for (int64_t r = 0; r < WIDE && first + r < j->n; r++) {
      const int64_t row = (b * j->n + first + r) * j->k;
      if (j->wide)
        for (int64_t e = 0; e < j->k; e++) to[e * WIDE + r] = ((const double *)j->from_y)[row + e];
      else
        for (int64_t e = 0; e < j->k; e++) to[e * WIDE + r] = (double)((const float *)j->from_y)[row + e];
    }
  }
}

ax_status ax_cpu__distance_cdist(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *y = call->in[1];
  job j = { .m = x->shape[1],
            .n = y->shape[1],
            .k = x->shape[2],
            .blocks = (y->shape[1] + WIDE - 1) / WIDE,
            .p = call->a->cdist.p,
            .wide = x->dtype == AX_F64,
            .from_x = ax_data(x),
            .from_y = ax_data(y),
            .out = ax_data(call->out[0]) };
  const int64_t rows = x->shape[0] * j.m, blocks = x->shape[0] * j.blocks, turned = blocks * j.k * WIDE;
  const size_t bytes = sizeof(double) * (size_t)(turned + (j.wide ? 0 : x->numel));
  void *scratch;
  if (call->out[0]->numel == 0) return AX_OK;
  const ax_status st = ax_alloc(bytes, &scratch);
  if (st != AX_OK) return st;
  j.turned = scratch;
  j.wide_x = j.turned + turned;
  j.x = j.wide ? j.from_x : j.wide_x;
  if (!j.wide) ax_cpu_for(x->numel, x->numel, widen_numbers, &j);
  ax_cpu_for(blocks, turned, turn_rows, &j);
  ax_cpu_for(rows, rows * j.n * (j.k + 1) / (4 * LANES), distances, &j);
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
#include "distance_gradient.h"
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
#include "distance_gradient.h"

ax_status ax_cpu__distance_cdist_backward(const ax_call *call)
{
  if (call->in[1]->numel == 0) return AX_OK;
  return call->in[1]->dtype == AX_F64 ? backward_f64(call) : backward_f32(call);
}

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
enum { LANES = AX_BYTES / 8, VECS = 4, WIDE = VECS * LANES };

typedef struct job {
  int64_t m, n, k, blocks; /* blocks: of WIDE rows of y */
  double p;
  bool wide;                /* the tensors are float64 */
  const double *x, *turned; /* turned: y as (b, blocks, k, WIDE) */
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

/* to: what a term of the differences `a` of two rows of x adds over k, for WIDE rows of y. */
#define SUMS(name, term) \
  static void name(const double *const x[2], const double *y, int64_t k, double p, vec *to) \
  { \
    vec of[2][VECS]; \
    for (int v = 0; v < VECS; v++) of[0][v] = of[1][v] = (vec){ 0 }; \
    (void)p; \
    for (int64_t i = 0; i < k; i++) \
      _Pragma("GCC unroll 4") for (int v = 0; v < VECS; v++) \
          _Pragma("GCC unroll 2") for (int r = 0; r < 2; r++) \
      { \
        const vec a = x[r][i] - *(const vec *)(y + i * WIDE + v * LANES), sum = of[r][v]; \
        of[r][v] = term; \
      } \
    for (int v = 0; v < VECS; v++) to[v] = of[0][v], to[VECS + v] = of[1][v]; \
  }
SUMS(squares, AX_VFMA_f64(a, a, sum))
SUMS(sizes, sum + size_of(a))
SUMS(largest, larger(sum, size_of(a)))
SUMS(counts, sum + (vec)((mask_f64)(1 - (vec){ 0 }) & (a != 0)))
SUMS(any_power, sum + powers(size_of(a), p))

static void roots(double *sum, double p)
{
  if (p == 2) {
    AX_SIMD
    for (int i = 0; i < WIDE; i++) sum[i] = sqrt(sum[i]);
  } else if (p != 0 && p != 1 && !isinf(p)) {
    for (int i = 0; i < WIDE; i++) sum[i] = pow(sum[i], 1 / p);
  }
}

static void put(const job *j, int64_t at, const double *from, int64_t n)
{
  float *const narrow = (float *)j->out + at;
  if (j->wide) memcpy((double *)j->out + at, from, sizeof *from * (size_t)n);
  else
    for (int64_t i = 0; i < n; i++) narrow[i] = (float)from[i];
}

static void distances(int64_t lo, int64_t hi, void *ctx)
{
  const job *j = ctx;
  const double p = j->p;
  void (*const sums)(const double *const *, const double *, int64_t, double, vec *) = p == 2     ? squares
                                                                                      : p == 1   ? sizes
                                                                                      : p == 0   ? counts
                                                                                      : isinf(p) ? largest
                                                                                                 : any_power;

  for (int64_t from = lo; from < hi;) { /* rows of one batch, so that a block of y serves them all */
    const int64_t b = from / j->m, to = hi < (b + 1) * j->m ? hi : (b + 1) * j->m;
    for (int64_t block = 0; block < j->blocks; block++) {
      const int64_t first = block * WIDE, count = j->n - first < WIDE ? j->n - first : WIDE;
      const double *y = j->turned + (b * j->blocks + block) * j->k * WIDE;
      for (int64_t i = from; i < to; i += 2) {
        const int64_t rows = to - i < 2 ? 1 : 2;
        const double *const x = j->x + i * j->k, *const both[] = { x, rows > 1 ? x + j->k : x };
        vec part[2 * VECS];
        double sum[2][WIDE];
        sums(both, y, j->k, p, part);
        memcpy(sum, part, sizeof sum);
        for (int64_t r = 0; r < rows; r++) {
          roots(sum[r], p);
          put(j, (i + r) * j->n + first, sum[r], count);
        }
      }
    }
    from = to;
  }
}

static double element(const ax_tensor *t, int64_t at)
{
  return t->dtype == AX_F64 ? ((const double *)ax_data(t))[at] : ((const float *)ax_data(t))[at];
}

/* The rows of y in blocks of WIDE, in which the numbers of neighbours are side by side; what is
 * missing of the last block is 0. */
static void turn_rows(const job *j, const ax_tensor *y, double *to)
{
  memset(to, 0, sizeof *to * (size_t)(y->shape[0] * j->blocks * j->k * WIDE));
  for (int64_t b = 0; b < y->shape[0]; b++)
    for (int64_t r = 0; r < j->n; r++) {
      double *const block = to + (b * j->blocks + r / WIDE) * j->k * WIDE + r % WIDE;
      for (int64_t e = 0; e < j->k; e++) block[e * WIDE] = element(y, (b * j->n + r) * j->k + e);
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
            .out = ax_data(call->out[0]) };
  const int64_t rows = x->shape[0] * j.m;
  const size_t bytes = sizeof(double) * (size_t)(x->numel + x->shape[0] * j.blocks * j.k * WIDE);
  void *scratch;
  if (call->out[0]->numel == 0) return AX_OK;
  const ax_status st = ax_alloc(bytes, &scratch);
  if (st != AX_OK) return st;
  double *const wide_x = scratch, *const turned = wide_x + x->numel;
  for (int64_t i = 0; i < x->numel; i++) wide_x[i] = element(x, i);
  turn_rows(&j, y, turned);
  j.x = wide_x;
  j.turned = turned;
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

/* Distances of all pairs of rows, |x_i - y_j|_p, and their gradient.
 *
 * Both types are computed in double: the differences of float32 rows are exact there, so that rows
 * near each other have a distance as exact as any.  Forward, a vector holds the distances of one
 * row of x to neighbouring rows of y, which are turned for it; back, it holds neighbouring numbers
 * of one row.  A row of the result is one thread's, and its sums have one order. */
#include "cpu.h"

#include <math.h>
#include <string.h>

#include "vector.h"

typedef double vec __attribute__((vector_size(AX_BYTES), aligned(8), may_alias));
typedef int64_t mask __attribute__((vector_size(AX_BYTES), aligned(8), may_alias));
enum { VN = AX_BYTES / 8, VECS = 4, WIDE = VECS * VN, AHEAD = 64 };

typedef struct job {
  int64_t batches, m, n, k, blocks; /* blocks: of WIDE rows of y */
  double p;
  bool wide;           /* the tensors are float64 */
  const double *x, *y; /* forward, y is (b, blocks, k, WIDE) */
  char *out;
  double *sums; /* (b, m, k), of the gradient */
  const char *g, *d;
  const int64_t *g_step, *d_step; /* strides, in elements */
} job;

static vec spread(double v)
{
  vec r;
  for (int i = 0; i < VN; i++) r[i] = v;
  return r;
}
static vec size_of(vec v) { return (vec)((mask)v & INT64_MAX); }
static vec choose(mask m, vec a, vec b) { return (vec)(((mask)a & m) | ((mask)b & ~m)); }
static double sign(double v) { return (double)(v > 0) - (double)(v < 0); }
static vec signs(vec v) { return (vec)(((mask)spread(1) & (v > 0)) | ((mask)spread(-1) & (v < 0))); }

static double element(const job *j, const char *p, int64_t at)
{
  return j->wide ? ((const double *)p)[at] : ((const float *)p)[at];
}

static void put(const job *j, int64_t at, const double *from, int64_t n)
{
  float *const narrow = (float *)j->out + at;
  if (j->wide) memcpy((double *)j->out + at, from, sizeof *from * (size_t)n);
  else
    for (int64_t i = 0; i < n; i++) narrow[i] = (float)from[i];
}

/* ---- distances */

/* Sums of a term of the differences `a` over k, for WIDE rows of y. */
#define SUM(v, term) \
  { \
    const vec a = x[i] - *(const vec *)(y + i * WIDE + v * VN), sum = sum##v; \
    sum##v = term; \
  }
#define SUMS(name, term) \
  static void name(const double *x, const double *y, int64_t k, double p, vec *to) \
  { \
    vec sum0 = { 0 }, sum1 = sum0, sum2 = sum0, sum3 = sum0; \
    (void)p; \
    for (int64_t i = 0; i < k; i++) { SUM(0, term) SUM(1, term) SUM(2, term) SUM(3, term) } \
    to[0] = sum0, to[1] = sum1, to[2] = sum2, to[3] = sum3; \
  }
static vec larger(vec sum, vec a) { return choose((a > sum) | (a != a), a, sum); }
static vec powers(vec a, double p)
{
  for (int i = 0; i < VN; i++) a[i] = pow(a[i], p);
  return a;
}
SUMS(squares, sum + a * a)
SUMS(sizes, sum + size_of(a))
SUMS(largest, larger(sum, size_of(a)))
SUMS(counts, sum + (vec)((mask)spread(1) & (a != 0)))
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

static void distances(int64_t lo, int64_t hi, void *ctx)
{
  const job *j = ctx;
  const double p = j->p;
  void (*const sums)(const double *, const double *, int64_t, double, vec *) = p == 2     ? squares
                                                                               : p == 1   ? sizes
                                                                               : p == 0   ? counts
                                                                               : isinf(p) ? largest
                                                                                          : any_power;

  for (int64_t from = lo; from < hi;) { /* rows of one batch, so that a block of y serves them all */
    const int64_t b = from / j->m, to = hi < (b + 1) * j->m ? hi : (b + 1) * j->m;
    for (int64_t block = 0; block < j->blocks; block++) {
      const int64_t first = block * WIDE, count = j->n - first < WIDE ? j->n - first : WIDE;
      const double *y = j->y + (b * j->blocks + block) * j->k * WIDE;
      for (int64_t i = from; i < to; i++) {
        vec part[VECS];
        double sum[WIDE];
        sums(j->x + i * j->k, y, j->k, p, part);
        memcpy(sum, part, sizeof sum);
        roots(sum, p);
        put(j, i * j->n + first, sum, count);
      }
    }
    from = to;
  }
}

/* ---- the gradient */

/* sums[i] += the sum of w[r] times a slope of a = x[i] - y[r][i], over `count` rows of y, in four
 * sums that do not wait for each other. */
#define SLOPE(T, n, slope) \
  { \
    const int64_t r = first + n; \
    const T a = at - *(const T *)(y + r * k + i); \
    sum##n += w[r] * (slope); \
  }
#define SLOPES_OF(T, slope) \
  { \
    const T at = *(const T *)(x + i); \
    T sum0 = *(const T *)(sums + i), sum1 = { 0 }, sum2 = sum1, sum3 = sum1; \
    int64_t first = 0; \
    for (; first + 4 <= count; first += 4) { \
      SLOPE(T, 0, slope) SLOPE(T, 1, slope) SLOPE(T, 2, slope) SLOPE(T, 3, slope) \
    } \
    for (; first < count; first++) SLOPE(T, 0, slope) \
    *(T *)(sums + i) = (sum0 + sum1) + (sum2 + sum3); \
  }
#define SLOPES(name, of_vec, of_one) \
  static void name(const double *x, const double *y, int64_t k, const double *w, const double *d, \
                   int64_t count, double p, double *sums) \
  { \
    int64_t i = 0; \
    (void)p, (void)d; \
    for (; i + VN <= k; i += VN) SLOPES_OF(vec, of_vec) \
    for (; i < k; i++) SLOPES_OF(double, of_one) \
  }
static vec at_least(vec a, double d) { return (vec)((mask)signs(a) & (size_of(a) >= spread(d))); }
static double power(double a, double p) { return a == 0 ? 0 : sign(a) * pow(fabs(a), p - 1); }
static vec each_power(vec a, double p)
{
  for (int i = 0; i < VN; i++) a[i] = power(a[i], p);
  return a;
}
SLOPES(of_squares, a, a)
SLOPES(of_sizes, signs(a), sign(a))
SLOPES(of_largest, at_least(a, d[r]), fabs(a) >= d[r] ? sign(a) : 0)
SLOPES(of_powers, each_power(a, p), power(a, p))

static void gradients(int64_t lo, int64_t hi, void *ctx)
{
  const job *j = ctx;
  const double p = j->p;
  void (*const slopes)(const double *, const double *, int64_t, const double *, const double *, int64_t,
                       double, double *) = p == 2     ? of_squares
                                           : p == 1   ? of_sizes
                                           : isinf(p) ? of_largest
                                                      : of_powers;

  for (int64_t row = lo; row < hi; row++) {
    const int64_t b = row / j->m, i = row % j->m;
    double *sums = j->sums + row * j->k;
    memset(sums, 0, sizeof *sums * (size_t)j->k);
    for (int64_t first = 0; first < j->n && p != 0; first += AHEAD) {
      const int64_t count = j->n - first < AHEAD ? j->n - first : AHEAD;
      double w[AHEAD], d[AHEAD];
      for (int64_t r = 0; r < count; r++) {
        const double g = element(j, j->g, b * j->g_step[0] + i * j->g_step[1] + (first + r) * j->g_step[2]);
        d[r] = element(j, j->d, b * j->d_step[0] + i * j->d_step[1] + (first + r) * j->d_step[2]);
        w[r] = p == 1 || isinf(p) ? g : d[r] == 0 ? 0 : p == 2 ? g / d[r] : g / pow(d[r], p - 1);
        if (!j->wide) d[r] *= 1 - 0x1p-24; /* for of_largest: what is rounded to it is as large */
      }
      slopes(j->x + row * j->k, j->y + (b * j->n + first) * j->k, j->k, w, d, count, p, sums);
    }
    put(j, row * j->k, sums, j->k);
  }
}

/* ---- drivers */

static void widened(const job *j, const ax_tensor *t, double *to)
{
  for (int64_t i = 0; i < t->numel; i++) to[i] = element(j, ax_data(t), i);
}

/* The rows of y in blocks of WIDE, in which the numbers of neighbours are side by side; what is
 * missing of the last block is 0. */
static void turned(const job *j, const ax_tensor *y, double *to)
{
  memset(to, 0, sizeof *to * (size_t)(j->batches * j->blocks * j->k * WIDE));
  for (int64_t b = 0; b < j->batches; b++)
    for (int64_t r = 0; r < j->n; r++) {
      double *block = to + (b * j->blocks + r / WIDE) * j->k * WIDE + r % WIDE;
      for (int64_t e = 0; e < j->k; e++) block[e * WIDE] = element(j, ax_data(y), (b * j->n + r) * j->k + e);
    }
}

static job job_of(const ax_call *call, const ax_tensor *x, const ax_tensor *y)
{
  return (job){ .batches = x->shape[0],
                .m = x->shape[1],
                .n = y->shape[1],
                .k = x->shape[2],
                .blocks = (y->shape[1] + WIDE - 1) / WIDE,
                .p = call->a->cdist.p,
                .wide = x->dtype == AX_F64,
                .out = ax_data(call->out[0]) };
}

ax_status ax_cpu__distance_cdist(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *y = call->in[1];
  job j = job_of(call, x, y);
  const int64_t rows = j.batches * j.m;
  const size_t bytes = sizeof(double) * (size_t)(x->numel + j.batches * j.blocks * j.k * WIDE);
  void *scratch;
  if (call->out[0]->numel == 0) return AX_OK;
  const ax_status st = ax_alloc(bytes, &scratch);
  if (st != AX_OK) return st;
  widened(&j, x, scratch);
  turned(&j, y, (double *)scratch + x->numel);
  j.x = scratch;
  j.y = j.x + x->numel;
  ax_cpu_for(rows, rows * j.n * (j.k + 1) / (j.wide ? 2 : 4), distances, &j);
  ax_free(scratch, bytes);
  return AX_OK;
}

ax_status ax_cpu__distance_cdist_backward(const ax_call *call)
{
  const ax_tensor *g = call->in[0], *x = call->in[1], *y = call->in[2], *d = call->in[3];
  job j = job_of(call, x, y);
  const int64_t rows = j.batches * j.m;
  const size_t bytes = sizeof(double) * (size_t)(2 * x->numel + y->numel);
  void *scratch;
  if (x->numel == 0) return AX_OK;
  const ax_status st = ax_alloc(bytes, &scratch);
  if (st != AX_OK) return st;
  double *const wide_x = scratch, *const wide_y = wide_x + x->numel;
  widened(&j, x, wide_x);
  widened(&j, y, wide_y);
  j.x = wide_x;
  j.y = wide_y;
  j.sums = wide_y + y->numel;
  j.g = ax_data(g), j.d = ax_data(d);
  j.g_step = g->strides, j.d_step = d->strides;
  ax_cpu_for(rows, rows * j.n * (j.k + 1) / (j.wide ? 2 : 4), gradients, &j);
  ax_free(scratch, bytes);
  return AX_OK;
}

/* Batch normalisation over rows of channels (the channels are innermost), y = (x - mean) invstd w +
 * b for each channel, with an optional residual and relu, and its gradient.
 *
 * Statistics are gathered in chunks of rows whose size follows from the number of channels alone.
 * A chunk sums, in the type computed in, the differences from its first row and their squares.  The
 * first row is near the mean, so one pass is as exact as two.  The chunks are combined in order, in
 * double (Chan, Golub and LeVeque 1979).  Threads share chunks and rows; memory bounds the kernel,
 * which reads x twice in training. */
#include "cpu.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 8192 /* elements */, LEAST_ROWS = 32 };

typedef struct job {
  int64_t rows, channels, chunk_rows;
  const void *x, *g, *residual; /* (rows, channels) */
  void *y;                      /* the result, or dx; of the same type */
  /* (chunks, 2, channels): sums of the differences and of their squares; backward: of g and of g (x
   * - mean) */
  void *sums;
  const void *a, *b, *c, *mean; /* for each channel, in the type computed in, as the sums are */
  bool relu;
  bool rounded; /* to the type of the rows before a residual is added */
} job;

/* Adds rows [from, to) to two sums for each channel, of the type computed in. */
typedef void (*chunk_fn)(const job *j, int64_t from, int64_t to, void *sum, void *other);

typedef struct kind {
  chunk_fn statistics, products;
  ax_range_fn apply, gradient;
  void (*combine)(const job *, double *, double *), (*add_up)(const job *, double *, double *);
} kind;

/* X: the type in memory; T: the type computed in; GET and PUT convert an element. */
#define BATCH_NORM(S, X, T, GET, PUT) \
  static void statistics_##S(const job *j, int64_t r, int64_t to, void *sums, void *squares) \
  { \
    const int64_t n = j->channels; \
    const X *first = (const X *)j->x + r * n; \
    T *sum = sums, *square = squares; \
    for (; r + 4 <= to; r += 4) { \
      const X *x = (const X *)j->x + r * n; \
      AX_SIMD \
      for (int64_t c = 0; c < n; c++) { \
        const T f = GET(first[c]), d0 = GET(x[c]) - f, d1 = GET(x[n + c]) - f, d2 = GET(x[2 * n + c]) - f, \
                d3 = GET(x[3 * n + c]) - f; \
        sum[c] += (d0 + d1) + (d2 + d3); \
        square[c] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3); \
      } \
    } \
    for (; r < to; r++) { \
      const X *x = (const X *)j->x + r * n; \
      AX_SIMD \
      for (int64_t c = 0; c < n; c++) { \
        const T d = GET(x[c]) - GET(first[c]); \
        sum[c] += d; \
        square[c] += d * d; \
      } \
    } \
  } \
  /* y = x a + b (+ residual), rectified; rows */ \
  static void apply_##S(int64_t lo, int64_t hi, void *ud) \
  { \
    const job *j = ud; \
    const int64_t n = j->channels; \
    const T *a = j->a, *b = j->b; \
    for (int64_t r = lo; r < hi; r++) { \
      const X *x = (const X *)j->x + r * n, *z = j->residual ? (const X *)j->residual + r * n : NULL; \
      X *y = (X *)j->y + r * n; \
      if (z && j->rounded) { \
        for (int64_t c = 0; c < n; c++) { \
          const T v = GET(PUT(GET(x[c]) * a[c] + b[c])) + GET(z[c]); \
          y[c] = PUT(j->relu && v < 0 ? 0 : v); \
        } \
      } else if (z && j->relu) { \
        AX_SIMD \
        for (int64_t c = 0; c < n; c++) { \
          const T v = GET(x[c]) * a[c] + b[c] + GET(z[c]); \
          y[c] = PUT(v < 0 ? 0 : v); \
        } \
      } else if (z) { \
        AX_SIMD \
        for (int64_t c = 0; c < n; c++) y[c] = PUT(GET(x[c]) * a[c] + b[c] + GET(z[c])); \
      } else if (j->relu) { \
        AX_SIMD \
        for (int64_t c = 0; c < n; c++) { \
          const T v = GET(x[c]) * a[c] + b[c]; \
          y[c] = PUT(v < 0 ? 0 : v); \
        } \
      } else { \
        AX_SIMD \
        for (int64_t c = 0; c < n; c++) y[c] = PUT(GET(x[c]) * a[c] + b[c]); \
      } \
    } \
  } \
  /* sums of g and of g (x - mean); g counts as 0 where relu cut the result off (x a + b <= 0) */ \
  static void products_##S(const job *j, int64_t r, int64_t to, void *sums, void *products) \
  { \
    const int64_t n = j->channels; \
    const T *mean = j->mean, *a = j->a, *b = j->b; \
    T *sum = sums, *product = products; \
    if (j->relu) { \
      for (; r + 2 <= to; r += 2) { \
        const X *x = (const X *)j->x + r * n, *g = (const X *)j->g + r * n; \
        AX_SIMD \
        for (int64_t c = 0; c < n; c++) { \
          const T x0 = GET(x[c]), x1 = GET(x[n + c]), g0 = x0 * a[c] + b[c] > 0 ? GET(g[c]) : 0, \
                  g1 = x1 * a[c] + b[c] > 0 ? GET(g[n + c]) : 0; \
          sum[c] += g0 + g1; \
          product[c] += g0 * (x0 - mean[c]) + g1 * (x1 - mean[c]); \
        } \
      } \
    } else \
      for (; r + 4 <= to; r += 4) { \
        const X *x = (const X *)j->x + r * n, *g = (const X *)j->g + r * n; \
        AX_SIMD \
        for (int64_t c = 0; c < n; c++) { \
          const T m = mean[c], g0 = GET(g[c]), g1 = GET(g[n + c]), g2 = GET(g[2 * n + c]), \
                  g3 = GET(g[3 * n + c]); \
          sum[c] += (g0 + g1) + (g2 + g3); \
          product[c] += (g0 * (GET(x[c]) - m) + g1 * (GET(x[n + c]) - m)) + \
                        (g2 * (GET(x[2 * n + c]) - m) + g3 * (GET(x[3 * n + c]) - m)); \
        } \
      } \
    for (; r < to; r++) { \
      const X *x = (const X *)j->x + r * n, *g = (const X *)j->g + r * n; \
      for (int64_t c = 0; c < n; c++) { \
        const T at = GET(x[c]), v = !j->relu || at * a[c] + b[c] > 0 ? GET(g[c]) : 0; \
        sum[c] += v; \
        product[c] += v * (at - mean[c]); \
      } \
    } \
  } \
  /* dx = p g + q (x - mean) + s; p, q and s follow each other in c */ \
  static void gradient_##S(int64_t lo, int64_t hi, void *ud) \
  { \
    const job *j = ud; \
    const int64_t n = j->channels; \
    const T *mean = j->mean, *a = j->a, *b = j->b, *p = j->c, *q = p + n, *s = q + n; \
    for (int64_t r = lo; r < hi; r++) { \
      const X *x = (const X *)j->x + r * n, *g = (const X *)j->g + r * n; \
      X *dx = (X *)j->y + r * n; \
      if (j->relu) { \
        AX_SIMD \
        for (int64_t c = 0; c < n; c++) { \
          const T at = GET(x[c]), v = at * a[c] + b[c] > 0 ? GET(g[c]) : 0; \
          dx[c] = PUT(p[c] * v + (q[c] * (at - mean[c]) + s[c])); \
        } \
      } else { \
        AX_SIMD \
        for (int64_t c = 0; c < n; c++) \
          dx[c] = PUT(p[c] * GET(g[c]) + (q[c] * (GET(x[c]) - mean[c]) + s[c])); \
      } \
    } \
  } \
  /* Combines the chunks: the mean of each channel, and the sum of squared differences from it. */ \
  static void combine_##S(const job *j, double *mean, double *m2) \
  { \
    const int64_t n = j->channels; \
    for (int64_t c = 0; c < n; c++) { \
      double count = 0, at = 0, total = 0; \
      for (int64_t k = 0, r = 0; r < j->rows; k++, r += j->chunk_rows) { \
        const double many = (double)(j->rows - r < j->chunk_rows ? j->rows - r : j->chunk_rows); \
        const double sum = ((const T *)j->sums)[2 * k * n + c], \
                     square = ((const T *)j->sums)[(2 * k + 1) * n + c]; \
        const double here = GET(((const X *)j->x)[r * n + c]) + sum / many, apart = here - at; \
        double spread = square - sum * sum / many; \
        spread = spread < 0 ? 0 : spread; \
        at += apart * many / (count + many); \
        total += spread + apart * apart * count * many / (count + many); \
        count += many; \
      } \
      mean[c] = at; \
      m2[c] = total; \
    } \
  } \
  static void add_up_##S(const job *j, double *sum, double *product) \
  { \
    const int64_t n = j->channels; \
    memset(sum, 0, (size_t)n * sizeof *sum); \
    memset(product, 0, (size_t)n * sizeof *product); \
    for (int64_t k = 0, r = 0; r < j->rows; k++, r += j->chunk_rows) \
      for (int64_t c = 0; c < n; c++) { \
        sum[c] += ((const T *)j->sums)[2 * k * n + c]; \
        product[c] += ((const T *)j->sums)[(2 * k + 1) * n + c]; \
      } \
  } \
  static const kind kind_##S = { statistics_##S, products_##S, apply_##S, \
                                 gradient_##S,   combine_##S,  add_up_##S };

#define AS_IS(x) (x)
BATCH_NORM(f32, float, float, AS_IS, AS_IS)
BATCH_NORM(f64, double, double, AS_IS, AS_IS)
BATCH_NORM(bf16, uint16_t, float, ax_bf16_to_float, ax_float_to_bf16)
BATCH_NORM(f16, uint16_t, float, ax_half_to_float, ax_float_to_half)

static const kind *kind_of(const ax_tensor *x)
{
  return x->dtype == AX_F64    ? &kind_f64
         : x->dtype == AX_BF16 ? &kind_bf16
         : x->dtype == AX_F16  ? &kind_f16
                               : &kind_f32;
}

/* ---- one call */

typedef struct space {
  void *p;
  size_t bytes;
} space;

static ax_status take(space *s, size_t bytes)
{
  s->bytes = bytes;
  return ax_alloc(bytes ? bytes : 1, &s->p);
}
static void drop(space *s)
{
  if (s->p) ax_free(s->p, s->bytes ? s->bytes : 1);
}

static double param(const ax_tensor *t, int64_t c, double otherwise)
{
  return t ? ax_load_double((ax_dtype)t->dtype, ax_data(t), c) : otherwise;
}

static void put(bool wide, void *to, int64_t c, double v)
{
  if (wide) ((double *)to)[c] = v;
  else ((float *)to)[c] = (float)v;
}

/* y = x a + b.  a and b come from the rounded mean and invstd, so that the backward pass computes
 * the same numbers and finds where relu cut off. */
static void coefficients(bool wide, const ax_tensor *weight, const ax_tensor *bias, const ax_tensor *mean,
                         const ax_tensor *invstd, int64_t c, void *a, void *b)
{
  const double w = param(weight, c, 1) * param(invstd, c, 0);
  put(wide, a, c, w);
  put(wide, b, c, param(bias, c, 0) - param(mean, c, 0) * w);
}

static job job_of(const ax_tensor *x)
{
  const int64_t channels = x->shape[1], rows = channels ? x->numel / channels : 0,
                least = channels ? CHUNK / channels : 0;
  return (job){ .rows = rows, .channels = channels, .chunk_rows = least < LEAST_ROWS ? LEAST_ROWS : least };
}

static int64_t chunks_of(const job *j) { return (j->rows + j->chunk_rows - 1) / j->chunk_rows; }

typedef struct pass {
  const job *j;
  chunk_fn add;
  size_t item; /* bytes of a sum */
} pass;

static void chunk_range(int64_t lo, int64_t hi, void *ud)
{
  const pass *p = ud;
  const job *j = p->j;
  const size_t bytes = (size_t)j->channels * p->item; /* of one of the two */

  for (int64_t k = lo; k < hi; k++) {
    const int64_t from = k * j->chunk_rows, left = j->rows - from;
    char *const sums = (char *)j->sums + 2 * (size_t)k * bytes;
    memset(sums, 0, 2 * bytes);
    p->add(j, from, from + (left < j->chunk_rows ? left : j->chunk_rows), sums, sums + bytes);
  }
}

/* Fills j->sums, which is taken. */
static void sum_chunks(const job *j, chunk_fn add, size_t item)
{
  ax_cpu_for(chunks_of(j), j->rows * j->channels, chunk_range, &(pass){ j, add, item });
}

/* Computes y = x a + b, with residual and relu. */
static void apply(job *j, const ax_tensor *x, const ax_tensor *residual, const ax_tensor *y)
{
  j->x = ax_data(x);
  j->residual = residual ? ax_data(residual) : NULL;
  j->y = ax_data(y);
  ax_cpu_for(j->rows, y->numel, kind_of(x)->apply, j);
}

static ax_status train(const ax_call *call, const ax_tensor *residual)
{
  const ax_tensor *x = call->in[0], *y = call->out[0], *mean = call->out[1], *invstd = call->out[2];
  const ax_tensor *weight = call->n_in > 1 ? call->in[1] : NULL, *bias = call->n_in > 2 ? call->in[2] : NULL;
  ax_tensor *running_mean = call->n_in > 3 ? call->in[3] : NULL,
            *running_var = call->n_in > 4 ? call->in[4] : NULL;
  const double momentum = call->a->batch_norm_train.momentum, eps = call->a->batch_norm_train.eps;
  const bool wide = x->dtype == AX_F64;
  const size_t item = wide ? sizeof(double) : sizeof(float);
  job j = job_of(x);
  const size_t n = (size_t)j.channels;
  const kind *k = kind_of(x);
  space sums = { 0 }, numbers = { 0 };
  ax_status st;

  if (x->numel == 0) return AX_OK;
  j.x = ax_data(x);
  AX_TRY(take(&sums, (size_t)chunks_of(&j) * 2 * n * item));
  AX_TRY(take(&numbers, 2 * n * sizeof(double) + 2 * n * item));
  double *const at = numbers.p, *const m2 = at + n;
  void *a = m2 + n, *b = (char *)a + n * item;
  j.sums = sums.p;
  sum_chunks(&j, k->statistics, item);
  k->combine(&j, at, m2);
  if (call->n_out > 3) a = ax_data(call->out[3]), b = ax_data(call->out[4]); /* for _scale_shift */
  for (int64_t c = 0; c < j.channels; c++) {
    put(wide, ax_data(mean), c, at[c]);
    put(wide, ax_data(invstd), c, 1 / sqrt(m2[c] / (double)j.rows + eps));
    coefficients(wide, weight, bias, mean, invstd, c, a, b);
    if (running_mean)
      ax_store_double((ax_dtype)running_mean->dtype, ax_data(running_mean), c,
                      (1 - momentum) * param(running_mean, c, 0) + momentum * at[c]);
    if (running_var)
      ax_store_double((ax_dtype)running_var->dtype, ax_data(running_var), c,
                      (1 - momentum) * param(running_var, c, 0) + momentum * m2[c] / (double)(j.rows - 1));
  }
  j.a = a;
  j.b = b;
  j.relu = call->a->batch_norm_train.relu;
  if (call->n_out <= 3) apply(&j, x, residual, y);
out:
  drop(&sums), drop(&numbers);
  return st;
}

ax_status ax_cpu__batch_norm(const ax_call *call) { return train(call, NULL); }
ax_status ax_cpu__batch_norm_residual(const ax_call *call) { return train(call, call->in[5]); }

ax_status ax_cpu__batch_norm_backward(const ax_call *call)
{
  const ax_tensor *g = call->in[0], *x = call->in[1], *weight = call->in[2], *bias = call->in[3],
                  *mean = call->in[4], *invstd = call->in[5];
  const ax_tensor *dx = call->out[0], *dweight = call->out[1], *dbias = call->out[2];
  const bool wide = x->dtype == AX_F64;
  const size_t item = wide ? sizeof(double) : sizeof(float);
  job j = job_of(x);
  const size_t n = (size_t)j.channels;
  const kind *k = kind_of(x);
  space sums = { 0 }, numbers = { 0 };
  ax_status st;

  if (n) AX_TRY(take(&numbers, 2 * n * sizeof(double) + 5 * n * item));
  double *const sum = numbers.p, *const product = sum + n;
  char *const a = (char *)(product + n), *const b = a + n * item, *const p = b + n * item,
              *const q = p + n * item, *const s = q + n * item;
  if (n) memset(sum, 0, 2 * n * sizeof(double));
  if (x->numel) {
    j.x = ax_data(x);
    j.g = ax_data(g);
    AX_TRY(take(&sums, (size_t)chunks_of(&j) * 2 * n * item));
    j.sums = sums.p;
    j.mean = ax_data(mean);
    j.relu = call->a->batch_norm_backward.relu;
    for (int64_t c = 0; j.relu && c < j.channels; c++)
      coefficients(wide, weight, bias, mean, invstd, c, a, b);
    j.a = a;
    j.b = b;
    sum_chunks(&j, k->products, item);
    k->add_up(&j, sum, product);
  }
  for (int64_t c = 0; c < j.channels; c++) {
    const double scale = param(invstd, c, 0), w = param(weight, c, 1) * scale;
    ax_store_double((ax_dtype)dweight->dtype, ax_data(dweight), c, product[c] * scale);
    ax_store_double((ax_dtype)dbias->dtype, ax_data(dbias), c, sum[c]);
    put(wide, p, c, w);
    put(wide, q, c, j.rows ? -w * scale * scale * product[c] / (double)j.rows : 0);
    put(wide, s, c, j.rows ? -w * sum[c] / (double)j.rows : 0);
  }
  if (x->numel) {
    j.c = p;
    j.y = ax_data(dx);
    ax_cpu_for(j.rows, x->numel, k->gradient, &j);
  }
out:
  drop(&sums), drop(&numbers);
  return st;
}

ax_status ax_cpu__scale_shift(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *scale = call->in[1], *shift = call->in[2],
                  *residual = call->n_in > 3 ? call->in[3] : NULL;
  const bool wide = x->dtype == AX_F64;
  const size_t item = wide ? sizeof(double) : sizeof(float);
  job j = job_of(x);
  space numbers = { 0 };
  ax_status st;

  if (x->numel == 0) return AX_OK;
  AX_TRY(take(&numbers, 2 * (size_t)j.channels * item));
  char *const b = (char *)numbers.p + (size_t)j.channels * item;
  for (int64_t c = 0; c < j.channels; c++) {
    put(wide, numbers.p, c, param(scale, c, 1));
    put(wide, b, c, param(shift, c, 0));
  }
  j.a = numbers.p;
  j.b = b;
  j.relu = call->a->scale_shift.relu;
  j.rounded = call->a->scale_shift.rounded;
  apply(&j, x, residual, call->out[0]);
out:
  drop(&numbers);
  return st;
}

/* Batch normalisation over rows of channels (the channels lie innermost).
 *
 * The statistics are gathered in chunks of rows whose size follows from the number of channels alone.  A chunk sums in its own type the differences from its first
 * row, and their squares: a shift that is near the mean, so that one pass is as exact as two.  The chunks are put together in order, in double. */
#include "cpu.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 8192 /* elements */, LEAST_ROWS = 32 };

typedef struct job {
  int64_t rows, channels, chunk_rows;
  const void *x, *g, *residual; /* (rows, channels) in float32 or float64 */
  void *y;                      /* the result, or dx */
  void *sums;                   /* (chunks, 2, channels): of the chunk's differences and their squares; backward: of g and of g (x - mean) */
  const void *a, *b, *c, *mean; /* for each channel */
  bool relu;
} job;

#define BATCH_NORM(S, T) \
  static void statistics_##S(int64_t lo, int64_t hi, void *ud) \
  { \
    const job *j = ud; \
    const int64_t n = j->channels; \
    for (int64_t k = lo; k < hi; k++) { \
      const int64_t from = k * j->chunk_rows, to = from + j->chunk_rows < j->rows ? from + j->chunk_rows : j->rows; \
      const T *first = (const T *)j->x + from * n; \
      T *sum = (T *)j->sums + 2 * k * n, *square = sum + n; \
      int64_t r = from; \
      memset(sum, 0, 2 * (size_t)n * sizeof(T)); \
      for (; r + 4 <= to; r += 4) { \
        const T *x = (const T *)j->x + r * n; \
        AX_SIMD \
        for (int64_t c = 0; c < n; c++) { \
          const T d0 = x[c] - first[c], d1 = x[n + c] - first[c], d2 = x[2 * n + c] - first[c], d3 = x[3 * n + c] - first[c]; \
          sum[c] += (d0 + d1) + (d2 + d3); \
          square[c] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3); \
        } \
      } \
      for (; r < to; r++) { \
        const T *x = (const T *)j->x + r * n; \
        AX_SIMD \
        for (int64_t c = 0; c < n; c++) { \
          const T d = x[c] - first[c]; \
          sum[c] += d; \
          square[c] += d * d; \
        } \
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
      const T *x = (const T *)j->x + r * n, *z = j->residual ? (const T *)j->residual + r * n : NULL; \
      T *y = (T *)j->y + r * n; \
      if (z && j->relu) { \
        AX_SIMD \
        for (int64_t c = 0; c < n; c++) { const T v = x[c] * a[c] + b[c] + z[c]; y[c] = v < 0 ? 0 : v; } \
      } else if (z) { \
        AX_SIMD \
        for (int64_t c = 0; c < n; c++) y[c] = x[c] * a[c] + b[c] + z[c]; \
      } else if (j->relu) { \
        AX_SIMD \
        for (int64_t c = 0; c < n; c++) { const T v = x[c] * a[c] + b[c]; y[c] = v < 0 ? 0 : v; } \
      } else { \
        AX_SIMD \
        for (int64_t c = 0; c < n; c++) y[c] = x[c] * a[c] + b[c]; \
      } \
    } \
  } \
  /* sums of g and of g (x - mean); where relu cut the result off (x a + b is not positive) g counts as 0 */ \
  static void products_##S(int64_t lo, int64_t hi, void *ud) \
  { \
    const job *j = ud; \
    const int64_t n = j->channels; \
    const T *mean = j->mean, *a = j->a, *b = j->b; \
    for (int64_t k = lo; k < hi; k++) { \
      const int64_t from = k * j->chunk_rows, to = from + j->chunk_rows < j->rows ? from + j->chunk_rows : j->rows; \
      T *sum = (T *)j->sums + 2 * k * n, *product = sum + n; \
      int64_t r = from; \
      memset(sum, 0, 2 * (size_t)n * sizeof(T)); \
      if (j->relu) { \
        for (; r + 2 <= to; r += 2) { \
          const T *x = (const T *)j->x + r * n, *g = (const T *)j->g + r * n; \
          AX_SIMD \
          for (int64_t c = 0; c < n; c++) { \
            const T g0 = x[c] * a[c] + b[c] > 0 ? g[c] : 0, g1 = x[n + c] * a[c] + b[c] > 0 ? g[n + c] : 0; \
            sum[c] += g0 + g1; \
            product[c] += g0 * (x[c] - mean[c]) + g1 * (x[n + c] - mean[c]); \
          } \
        } \
      } else \
        for (; r + 4 <= to; r += 4) { \
          const T *x = (const T *)j->x + r * n, *g = (const T *)j->g + r * n; \
          AX_SIMD \
          for (int64_t c = 0; c < n; c++) { \
            const T m = mean[c]; \
            sum[c] += (g[c] + g[n + c]) + (g[2 * n + c] + g[3 * n + c]); \
            product[c] += (g[c] * (x[c] - m) + g[n + c] * (x[n + c] - m)) + (g[2 * n + c] * (x[2 * n + c] - m) + g[3 * n + c] * (x[3 * n + c] - m)); \
          } \
        } \
      for (; r < to; r++) { \
        const T *x = (const T *)j->x + r * n, *g = (const T *)j->g + r * n; \
        for (int64_t c = 0; c < n; c++) { \
          const T v = !j->relu || x[c] * a[c] + b[c] > 0 ? g[c] : 0; \
          sum[c] += v; \
          product[c] += v * (x[c] - mean[c]); \
        } \
      } \
    } \
  } \
  /* dx = p g + q (x - mean) + s; p, q, s lie in c one after the other */ \
  static void gradient_##S(int64_t lo, int64_t hi, void *ud) \
  { \
    const job *j = ud; \
    const int64_t n = j->channels; \
    const T *mean = j->mean, *a = j->a, *b = j->b, *p = j->c, *q = p + n, *s = q + n; \
    for (int64_t r = lo; r < hi; r++) { \
      const T *x = (const T *)j->x + r * n, *g = (const T *)j->g + r * n; \
      T *dx = (T *)j->y + r * n; \
      if (j->relu) { \
        AX_SIMD \
        for (int64_t c = 0; c < n; c++) { \
          const T v = x[c] * a[c] + b[c] > 0 ? g[c] : 0; \
          dx[c] = p[c] * v + (q[c] * (x[c] - mean[c]) + s[c]); \
        } \
      } else { \
        AX_SIMD \
        for (int64_t c = 0; c < n; c++) dx[c] = p[c] * g[c] + (q[c] * (x[c] - mean[c]) + s[c]); \
      } \
    } \
  } \
  /* Mean of each channel, and the sum of squared differences from it, out of the chunks. */ \
  static void combine_##S(const job *j, double *mean, double *m2) \
  { \
    const int64_t n = j->channels; \
    for (int64_t c = 0; c < n; c++) { \
      double count = 0, at = 0, total = 0; \
      for (int64_t k = 0, r = 0; r < j->rows; k++, r += j->chunk_rows) { \
        const double many = (double)(j->rows - r < j->chunk_rows ? j->rows - r : j->chunk_rows); \
        const double sum = ((const T *)j->sums)[2 * k * n + c], square = ((const T *)j->sums)[(2 * k + 1) * n + c]; \
        const double here = ((const T *)j->x)[r * n + c] + sum / many, apart = here - at; \
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
  }
BATCH_NORM(f32, float)
BATCH_NORM(f64, double)

/* ---- one call */

typedef struct space { void *p; size_t bytes; } space;

static ax_status take(space *s, size_t bytes)
{
  s->bytes = bytes;
  return ax_alloc(bytes ? bytes : 1, &s->p);
}
static void drop(space *s) { if (s->p) ax_free(s->p, s->bytes ? s->bytes : 1); }

/* t's elements in float32 when it is of a half type, else where they are. */
static ax_status widened(const ax_tensor *t, space *s, const void **out)
{
  const ax_dtype type = (ax_dtype)t->dtype;
  *out = ax_data(t);
  if (type != AX_F16 && type != AX_BF16) return AX_OK;
  const ax_status st = take(s, (size_t)t->numel * sizeof(float));
  if (st == AX_OK) {
    ax_cpu_half_to_float(type, ax_data(t), 2, s->p, t->numel);
    *out = s->p;
  }
  return st;
}

static double param(const ax_tensor *t, int64_t c, double otherwise) { return t ? ax_load_double((ax_dtype)t->dtype, ax_data(t), c) : otherwise; }

static void put(bool wide, void *to, int64_t c, double v)
{
  if (wide) ((double *)to)[c] = v;
  else ((float *)to)[c] = (float)v;
}

/* y = x a + b, from the rounded mean and invstd: the backward pass finds the very same numbers, and so where relu cut off. */
static void coefficients(bool wide, const ax_tensor *weight, const ax_tensor *bias, const ax_tensor *mean, const ax_tensor *invstd, int64_t c, void *a, void *b)
{
  const double w = param(weight, c, 1) * param(invstd, c, 0);
  put(wide, a, c, w);
  put(wide, b, c, param(bias, c, 0) - param(mean, c, 0) * w);
}

static job job_of(const ax_tensor *x)
{
  const int64_t channels = x->shape[1], rows = channels ? x->numel / channels : 0, least = channels ? CHUNK / channels : 0;
  return (job){ .rows = rows, .channels = channels, .chunk_rows = least < LEAST_ROWS ? LEAST_ROWS : least };
}

static int64_t chunks_of(const job *j) { return (j->rows + j->chunk_rows - 1) / j->chunk_rows; }

/* Computes y = x a + b and so on for any type; y half: through float32. */
static ax_status apply(job *j, const ax_tensor *x, const ax_tensor *residual, const ax_tensor *y)
{
  const bool wide = y->dtype == AX_F64, half = y->dtype == AX_F16 || y->dtype == AX_BF16;
  space sx = { 0 }, sz = { 0 }, sy = { 0 };
  ax_status st;

  AX_TRY(widened(x, &sx, &j->x));
  if (residual) AX_TRY(widened(residual, &sz, &j->residual));
  j->y = ax_data(y);
  if (half) {
    AX_TRY(take(&sy, (size_t)y->numel * sizeof(float)));
    j->y = sy.p;
  }
  ax_cpu_for(j->rows, y->numel, wide ? apply_f64 : apply_f32, j);
  if (half) ax_cpu_float_to_half((ax_dtype)y->dtype, j->y, ax_data(y), 2, y->numel);
out:
  drop(&sx), drop(&sz), drop(&sy);
  return st;
}

static ax_status train(const ax_call *call, const ax_tensor *residual)
{
  const ax_tensor *x = call->in[0], *y = call->out[0], *mean = call->out[1], *invstd = call->out[2];
  const ax_tensor *weight = call->n_in > 1 ? call->in[1] : NULL, *bias = call->n_in > 2 ? call->in[2] : NULL;
  ax_tensor *running_mean = call->n_in > 3 ? call->in[3] : NULL, *running_var = call->n_in > 4 ? call->in[4] : NULL;
  const double momentum = call->a->f[0], eps = call->a->f[1];
  const bool wide = x->dtype == AX_F64;
  const size_t item = wide ? sizeof(double) : sizeof(float);
  job j = job_of(x);
  const size_t n = (size_t)j.channels;
  space sx = { 0 }, sums = { 0 }, numbers = { 0 };
  ax_status st;

  if (x->numel == 0) return AX_OK;
  AX_TRY(widened(x, &sx, &j.x));
  AX_TRY(take(&sums, (size_t)chunks_of(&j) * 2 * n * item));
  AX_TRY(take(&numbers, 2 * n * sizeof(double) + 2 * n * item));
  double *const at = numbers.p, *const m2 = at + n;
  void *const a = m2 + n, *const b = (char *)a + n * item;
  j.sums = sums.p;
  ax_cpu_for(chunks_of(&j), x->numel, wide ? statistics_f64 : statistics_f32, &j);
  if (wide) combine_f64(&j, at, m2);
  else combine_f32(&j, at, m2);
  for (int64_t c = 0; c < j.channels; c++) {
    put(wide, ax_data(mean), c, at[c]);
    put(wide, ax_data(invstd), c, 1 / sqrt(m2[c] / (double)j.rows + eps));
    coefficients(wide, weight, bias, mean, invstd, c, a, b);
    if (running_mean) ax_store_double((ax_dtype)running_mean->dtype, ax_data(running_mean), c, (1 - momentum) * param(running_mean, c, 0) + momentum * at[c]);
    if (running_var)
      ax_store_double((ax_dtype)running_var->dtype, ax_data(running_var), c, (1 - momentum) * param(running_var, c, 0) + momentum * m2[c] / (double)(j.rows - 1));
  }
  j.a = a;
  j.b = b;
  j.relu = call->a->i[0];
  AX_TRY(apply(&j, x, residual, y));
out:
  drop(&sx), drop(&sums), drop(&numbers);
  return st;
}

ax_status ax_cpu__batch_norm(const ax_call *call) { return train(call, NULL); }
ax_status ax_cpu__batch_norm_residual(const ax_call *call) { return train(call, call->in[5]); }

ax_status ax_cpu__batch_norm_backward(const ax_call *call)
{
  const ax_tensor *g = call->in[0], *x = call->in[1], *weight = call->in[2], *bias = call->in[3], *mean = call->in[4], *invstd = call->in[5];
  const ax_tensor *dx = call->out[0], *dweight = call->out[1], *dbias = call->out[2];
  const bool wide = x->dtype == AX_F64, half = x->dtype == AX_F16 || x->dtype == AX_BF16;
  const size_t item = wide ? sizeof(double) : sizeof(float);
  job j = job_of(x);
  const size_t n = (size_t)j.channels;
  space sx = { 0 }, sg = { 0 }, sd = { 0 }, sums = { 0 }, numbers = { 0 };
  ax_status st;

  if (n) AX_TRY(take(&numbers, 2 * n * sizeof(double) + 5 * n * item));
  double *const sum = numbers.p, *const product = sum + n;
  char *const a = (char *)(product + n), *const b = a + n * item, *const p = b + n * item, *const q = p + n * item, *const s = q + n * item;
  if (n) memset(sum, 0, 2 * n * sizeof(double));
  if (x->numel) {
    AX_TRY(widened(x, &sx, &j.x));
    AX_TRY(widened(g, &sg, &j.g));
    AX_TRY(take(&sums, (size_t)chunks_of(&j) * 2 * n * item));
    j.sums = sums.p;
    j.mean = ax_data(mean);
    j.relu = call->a->i[0];
    for (int64_t c = 0; j.relu && c < j.channels; c++) coefficients(wide, weight, bias, mean, invstd, c, a, b);
    j.a = a;
    j.b = b;
    ax_cpu_for(chunks_of(&j), x->numel, wide ? products_f64 : products_f32, &j);
    if (wide) add_up_f64(&j, sum, product);
    else add_up_f32(&j, sum, product);
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
    if (half) {
      AX_TRY(take(&sd, (size_t)dx->numel * sizeof(float)));
      j.y = sd.p;
    }
    ax_cpu_for(j.rows, x->numel, wide ? gradient_f64 : gradient_f32, &j);
    if (half) ax_cpu_float_to_half((ax_dtype)dx->dtype, j.y, ax_data(dx), 2, dx->numel);
  }
out:
  drop(&sx), drop(&sg), drop(&sd), drop(&sums), drop(&numbers);
  return st;
}

ax_status ax_cpu__scale_shift(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *scale = call->in[1], *shift = call->in[2], *residual = call->n_in > 3 ? call->in[3] : NULL;
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
  j.relu = call->a->i[0];
  st = apply(&j, x, residual, call->out[0]);
out:
  drop(&numbers);
  return st;
}

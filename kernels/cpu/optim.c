/* Optimizer steps, norms, scaling and clamping of gradients: one pass over a table of segments.
 * Threads share elements, so segments of any sizes balance.  Memory bounds all of these: a step of
 * Adam reads 16 bytes and writes 12 for each float32 parameter. */
#include "optim.h"

#include "optim_numbers.h"

typedef struct job {
  const ax_segment *segs;
  int n;
  ax_optim_kernel kernel;
  ax_dtype dtype;
  const ax_hyper *h;
  double factor, p;
  bool clamp;
  double *partial; /* norm: one sum for each piece */
} job;

static ax_status check_dtype(ax_dtype d)
{
  if (d == AX_F32 || d == AX_F64) return AX_OK;
  return ax_fail(AX_EDTYPE, "optimizer: not defined for %s parameters, only for float32 and float64",
                 ax_dtype_name(d));
}

static int64_t total(const ax_segment *segs, int n)
{
  int64_t sum = 0;
  for (int i = 0; i < n; i++) sum += segs[i].n;
  return sum;
}

/* Loops over the segments that overlap elements [lo, hi) of all: `count` elements of segment s from
 * element `at` on. */
#define EACH_SEGMENT(j, lo, hi, s, at, count) \
  for (int64_t k_ = 0, first_ = 0, at = 0, count = 0; k_ < (j)->n && first_ < (hi); \
       first_ += (j)->segs[k_++].n) \
    if (at = (lo) > first_ ? (lo)-first_ : 0, \
        count = ((hi)-first_ < (j)->segs[k_].n ? (hi)-first_ : (j)->segs[k_].n) - at, count > 0) \
      for (const ax_segment *s = &(j)->segs[k_]; s; s = NULL)

/* ---- steps */

/* The kernel for each element type, or one for whole parameters. */
static const struct {
  ax_optim_kernel f32, f64;
  ax_status (*matrix)(ax_dtype, const ax_segment *, int, const ax_hyper *);
} kernels[] = {
#define OPTIM(ID, name, kernel, ...) [AX_OPTIM_##ID] = { ax_cpu_##kernel##_f32, ax_cpu_##kernel##_f64, NULL },
#define OPTIM_MATRIX(ID, name, kernel, ...) [AX_OPTIM_##ID] = { NULL, NULL, ax_cpu_##kernel },
#include "core/optim.def"
};

/* Steps `count` elements with clipped gradients, which are in the first-level cache between their
 * product and the kernel. */
static void step_clipped(const job *j, const ax_segment *s, int64_t at, int64_t count)
{
  enum { SOME = 4096 };
  union {
    float f32[SOME];
    double f64[SOME];
  } clipped;
  ax_segment own = *s;

  for (const int64_t end = at + count; at < end; at += count) {
    count = end - at < SOME ? end - at : SOME;
    if (j->dtype == AX_F32) {
      const float by = (float)j->factor, *g = (const float *)s->grad + at;
      AX_SIMD
      for (int64_t i = 0; i < count; i++) clipped.f32[i] = g[i] * by;
      own.grad = clipped.f32 - at;
    } else {
      const double by = j->factor, *g = (const double *)s->grad + at;
      AX_SIMD
      for (int64_t i = 0; i < count; i++) clipped.f64[i] = g[i] * by;
      own.grad = clipped.f64 - at;
    }
    j->kernel(&own, at, count, j->h);
  }
}

static void optim_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  EACH_SEGMENT(j, lo, hi, s, at, count)
  {
    if (j->factor == 1) j->kernel(s, at, count, j->h);
    else step_clipped(j, s, at, count);
  }
}

/* Writes working copies in float16, which the kernels do not write: on a CPU nothing casts to
 * float16 by itself. */
static void round_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  EACH_SEGMENT(j, lo, hi, s, at, count)
  {
    uint16_t *work = (uint16_t *)s->work + at;
    for (int64_t i = 0; s->work && i < count; i++)
      work[i] = ax_float_to_half(j->dtype == AX_F32 ? ((const float *)s->param)[at + i]
                                                    : (float)((const double *)s->param)[at + i]);
  }
}

static ax_status step(ax_optim_kind kind, ax_dtype dtype, const ax_segment *segs, int n, const ax_hyper *h,
                      double factor);

static ax_status step_rounded(ax_optim_kind kind, ax_dtype dtype, const ax_segment *segs, int n,
                              const ax_hyper *h, double factor)
{
  ax_segment *bare = ax_malloc(2 * (size_t)n * sizeof *bare), *rounded;
  job j = { .n = n, .dtype = dtype };
  ax_status st;

  if (!bare) return AX_ENOMEM;
  j.segs = rounded = bare + n;
  for (int k = 0; k < n; k++) {
    bare[k] = rounded[k] = segs[k];
    if (segs[k].work_dtype == AX_F16) bare[k].work = NULL;
    else rounded[k].work = NULL;
  }
  st = step(kind, dtype, bare, n, h, factor);
  if (st == AX_OK) ax_cpu_for(total(segs, n), total(segs, n), round_range, &j);
  ax_mfree(bare);
  return st;
}

/* factor: of the gradients; 1: they are as they are. */
static ax_status step(ax_optim_kind kind, ax_dtype dtype, const ax_segment *segs, int n, const ax_hyper *h,
                      double factor)
{
  job j = { .segs = segs,
            .n = n,
            .dtype = dtype,
            .h = h,
            .factor = factor,
            .kernel = dtype == AX_F32 ? kernels[kind].f32 : kernels[kind].f64 };
  const int64_t elements = total(segs, n);

  for (int k = 0; k < n; k++)
    if (segs[k].work && segs[k].work_dtype == AX_F16) return step_rounded(kind, dtype, segs, n, h, factor);
  if (kernels[kind].matrix) return kernels[kind].matrix(dtype, segs, n, h);
  if (elements) ax_cpu_for(elements, elements, optim_range, &j);
  return AX_OK;
}

ax_status ax_cpu_optim(ax_device d, ax_optim_kind kind, ax_dtype dtype, const ax_segment *segs, int n,
                       const ax_hyper *h, const ax_optim_device_args *device_args)
{
  ax_status st = check_dtype(dtype);
  ax_segment *counted;

  if (st != AX_OK) return st;
  const double factor =
      device_args && device_args->norm ? device_args->max_norm / (*device_args->norm + 1e-6) : 1;
  const double by = factor >= 1 ? 1 : factor; /* also NaN */
  if (!ax_optim_counts(device_args)) return step(kind, dtype, segs, n, h, by);
  if (device_args->skip && *device_args->skip != 0) {
    if (device_args->skipped) ++*device_args->skipped;
    return AX_OK;
  }
  counted = ax_malloc((size_t)(n ? n : 1) * sizeof *counted);
  if (!counted) return AX_ENOMEM;
  for (int k = 0; k < n; k++) {
    counted[k] = segs[k];
    counted[k].step +=
        (device_args->ran ? *device_args->ran : 0) - (device_args->skipped ? *device_args->skipped : 0);
  }
  st = step(kind, dtype, counted, n, device_args->hyper ? device_args->hyper : h, by);
  ax_mfree(counted);
  return st;
}

/* ---- norm, scale, clamp */

#define REWRITE(S, T) \
  static void rewrite_##S(T *g, int64_t n, const job *j) \
  { \
    const T by = (T)j->factor; \
    if (j->clamp) { \
      AX_SIMD \
      for (int64_t i = 0; i < n; i++) { \
        const T low = by < g[i] ? by : g[i]; /* g where g is NaN */ \
        g[i] = -by > low ? -by : low; \
      } \
    } else { \
      AX_SIMD \
      for (int64_t i = 0; i < n; i++) g[i] *= by; \
    } \
  }
REWRITE(f32, float)
REWRITE(f64, double)

static void rewrite_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  EACH_SEGMENT(j, lo, hi, s, at, count)
  {
    if (j->dtype == AX_F32) rewrite_f32((float *)s->grad + at, count, j);
    else rewrite_f64((double *)s->grad + at, count, j);
  }
}

static ax_status rewrite(ax_dtype dtype, const ax_segment *segs, int n, double factor, bool clamp)
{
  job j = { .segs = segs, .n = n, .dtype = dtype, .factor = factor, .clamp = clamp };
  const int64_t elements = total(segs, n);
  const ax_status st = check_dtype(dtype);

  if (st != AX_OK) return st;
  if (elements) ax_cpu_for(elements, elements, rewrite_range, &j);
  return AX_OK;
}

ax_status ax_cpu_scale_all(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double factor)
{
  return rewrite(dtype, segs, n, factor, false);
}
ax_status ax_cpu_clamp_all(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double limit)
{
  return rewrite(dtype, segs, n, limit, true);
}

/* The extreme of two values; NaN where either is. */
#define MORE(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define LESS(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))

/* Over n elements in lanes: computes TERM of |x| in type L, and combines with JOIN. */
#define LANES 64
#define OVER(T, L, START, TERM, JOIN) \
  do { \
    L lane[LANES]; \
    int64_t i = 0; \
    for (int k = 0; k < LANES; k++) lane[k] = START; \
    for (; i + LANES <= n; i += LANES) { \
      AX_SIMD \
      for (int k = 0; k < LANES; k++) { \
        const L a = (L)x[i + k], b = TERM; \
        lane[k] = JOIN(lane[k], b); \
      } \
    } \
    for (; i < n; i++) { \
      const L a = (L)x[i], b = TERM; \
      lane[i % LANES] = JOIN(lane[i % LANES], b); \
    } \
    for (int w = LANES / 2; w > 0; w /= 2) \
      for (int k = 0; k < w; k++) lane[k] = JOIN(lane[k], lane[k + w]); \
    return (double)lane[0]; \
  } while (0)
#define PLUS(a, b) ((a) + (b))

/* The sum of squares in float32, moved to float64 every SHORT elements: takes half the time of a
 * sum in float64, with a relative error of about 2^-20.  Squares out of float32's range show in the
 * sum. */
enum { SHORT = 1024 };

static double short_squares(const float *x, int64_t n) { OVER(float, float, 0, (a * a), PLUS); }
static double long_squares_f32(const float *x, int64_t n) { OVER(float, double, 0, (a * a), PLUS); }
static double squares_f64(const double *x, int64_t n) { OVER(double, double, 0, (a * a), PLUS); }

static double squares_f32(const float *x, int64_t n)
{
  double sum = 0;
  for (int64_t i = 0; i < n; i += SHORT) sum += short_squares(x + i, n - i < SHORT ? n - i : SHORT);
  return sum > 0x1p-80 && sum < INFINITY ? sum : long_squares_f32(x, n);
}

#define NORM(S, T, ABS) \
  static double norm_##S(const T *x, int64_t n, double p) \
  { \
    if (p == 2) return squares_##S(x, n); \
    if (p == 1) OVER(T, double, 0, fabs(a), PLUS); \
    if (p == INFINITY) OVER(T, T, 0, ABS(a), MORE); \
    if (p == -INFINITY) OVER(T, T, INFINITY, ABS(a), LESS); \
    OVER(T, double, 0, pow(fabs(a), p), PLUS); \
  }
NORM(f32, float, fabsf)
NORM(f64, double, fabs)

#define PIECE 16384

/* Sums pieces [lo, hi) of all.  Each segment has pieces of its own; its last one may be short. */
static void norm_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  int64_t first = 0;

  for (int k = 0; k < j->n && first < hi; k++) {
    const ax_segment *s = &j->segs[k];
    const int64_t pieces = (s->n + PIECE - 1) / PIECE;
    for (int64_t p = lo > first ? lo - first : 0; p < pieces && first + p < hi; p++) {
      const int64_t at = p * PIECE, n = s->n - at < PIECE ? s->n - at : PIECE;
      j->partial[first + p] = j->dtype == AX_F32 ? norm_f32((const float *)s->grad + at, n, j->p)
                                                 : norm_f64((const double *)s->grad + at, n, j->p);
    }
    first += pieces;
  }
}

ax_status ax_cpu_norm_all(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double p, double *out)
{
  job j = { .segs = segs, .n = n, .dtype = dtype, .p = p };
  double few[256], sum = p == -INFINITY ? INFINITY : 0;
  int64_t pieces = 0;
  const ax_status st = check_dtype(dtype);

  if (st != AX_OK) return st;
  for (int k = 0; k < n; k++) pieces += (segs[k].n + PIECE - 1) / PIECE;
  j.partial = pieces <= 256 ? few : ax_malloc((size_t)pieces * sizeof(double));
  if (!j.partial) return AX_ENOMEM;
  ax_cpu_for(pieces, total(segs, n), norm_range, &j);
  for (int64_t k = 0; k < pieces; k++)
    sum = p == INFINITY    ? MORE(sum, j.partial[k])
          : p == -INFINITY ? LESS(sum, j.partial[k])
                           : sum + j.partial[k];
  if (j.partial != few) ax_mfree(j.partial);
  *out = sum;
  return AX_OK;
}

/* ---- the same functions with their numbers in memory instead of arguments */

ax_status ax_cpu_norm_into(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double p, double root,
                           double *out)
{
  const ax_status st = ax_cpu_norm_all(d, dtype, segs, n, p, out);
  if (st == AX_OK && root != 1) *out = root == 2 ? sqrt(*out) : pow(*out, 1 / root);
  return st;
}

ax_status ax_cpu_clip(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double max_norm,
                      const double *norm)
{
  const double factor = max_norm / (*norm + 1e-6);
  return factor >= 1 ? AX_OK : ax_cpu_scale_all(d, dtype, segs, n, factor); /* NaN spreads, as in PyTorch */
}

ax_status ax_cpu_unscale(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, const float *scale,
                         float *found)
{
  double largest;
  ax_status st = ax_cpu_scale_all(d, dtype, segs, n, 1 / (double)*scale);
  if (st == AX_OK) st = ax_cpu_norm_all(d, dtype, segs, n, INFINITY, &largest);
  if (st == AX_OK && !(largest < INFINITY)) *found = 1;
  return st;
}

ax_status ax_cpu_scale_update(ax_device d, double *state, const float *found, double growth, double backoff,
                              int64_t interval)
{
  ax_scale_next(state, *found != 0, growth, backoff, interval);
  return AX_OK;
}

/* Optimizer steps, the gradient norm and gradient scaling: one pass over a table of segments. */
#include "optim.h"

typedef struct job {
  const ax_segment *segs;
  int n;
  ax_optim_kernel kernel;
  ax_dtype dtype;
  const ax_hyper *h;
  double factor, p;
  double *partial; /* norm: one for each piece */
} job;

static ax_status check_dtype(ax_dtype d)
{
  if (d == AX_F32 || d == AX_F64) return AX_OK;
  return ax_fail(AX_EDTYPE, "optimizer: not defined for %s parameters, only for float32 and float64", ax_dtype_name(d));
}

static int64_t total(const ax_segment *segs, int n)
{
  int64_t sum = 0;
  for (int i = 0; i < n; i++) sum += segs[i].n;
  return sum;
}

/* For what lies of each segment s within elements [lo, hi) of all: `count` elements from `at` on. */
#define EACH_SEGMENT(j, lo, hi, s, at, count) \
  for (int64_t k_ = 0, first_ = 0, at = 0, count = 0; k_ < (j)->n && first_ < (hi); first_ += (j)->segs[k_++].n) \
    if (at = (lo) > first_ ? (lo) - first_ : 0, count = ((hi) - first_ < (j)->segs[k_].n ? (hi) - first_ : (j)->segs[k_].n) - at, count > 0) \
      for (const ax_segment *s = &(j)->segs[k_]; s; s = NULL)

/* ---- steps */

/* One for each element type, or one for whole parameters. */
static const struct { ax_optim_kernel f32, f64; ax_status (*matrix)(ax_dtype, const ax_segment *, int, const ax_hyper *); } kernels[] = {
#define OPTIM(ID, name, kernel, ...) [AX_OPTIM_##ID] = { ax_cpu_##kernel##_f32, ax_cpu_##kernel##_f64, NULL },
#define OPTIM_MATRIX(ID, name, kernel, ...) [AX_OPTIM_##ID] = { NULL, NULL, ax_cpu_##kernel },
#include "core/optim.def"
};

static void optim_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  EACH_SEGMENT(j, lo, hi, s, at, count) j->kernel(s, at, count, j->h);
}

ax_status ax_cpu_optim(ax_optim_kind kind, ax_dtype dtype, const ax_segment *segs, int n, const ax_hyper *h)
{
  job j = { .segs = segs, .n = n, .dtype = dtype, .h = h, .kernel = dtype == AX_F32 ? kernels[kind].f32 : kernels[kind].f64 };
  const int64_t elements = total(segs, n);
  const ax_status st = check_dtype(dtype);

  if (st != AX_OK) return st;
  if (kernels[kind].matrix) return kernels[kind].matrix(dtype, segs, n, h);
  if (elements) ax_cpu_for(elements, elements, optim_range, &j);
  return AX_OK;
}

/* ---- norm and scale */

static void scale_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  EACH_SEGMENT(j, lo, hi, s, at, count) {
    if (j->dtype == AX_F32) {
      float *g = (float *)s->grad + at;
      const float factor = (float)j->factor;
      AX_SIMD
      for (int64_t i = 0; i < count; i++) g[i] *= factor;
    } else {
      double *g = (double *)s->grad + at;
      const double factor = j->factor;
      AX_SIMD
      for (int64_t i = 0; i < count; i++) g[i] *= factor;
    }
  }
}

ax_status ax_cpu_scale(ax_dtype dtype, const ax_segment *segs, int n, double factor)
{
  job j = { .segs = segs, .n = n, .dtype = dtype, .factor = factor };
  const int64_t elements = total(segs, n);
  const ax_status st = check_dtype(dtype);

  if (st != AX_OK) return st;
  if (elements) ax_cpu_for(elements, elements, scale_range, &j);
  return AX_OK;
}

/* Sum of |x|^p over n elements in 16 lanes of float64; for p = INFINITY the largest |x|, where a NaN wins. */
#define LANES 16
#define NORM(S, T) \
  static double norm_##S(const T *x, int64_t n, double p) \
  { \
    double lane[LANES] = {0}; \
    int64_t i = 0; \
    if (p == 2) { \
      for (; i + LANES <= n; i += LANES) { \
        AX_SIMD \
        for (int k = 0; k < LANES; k++) lane[k] += (double)x[i + k] * (double)x[i + k]; \
      } \
      for (; i < n; i++) lane[i % LANES] += (double)x[i] * (double)x[i]; \
    } else if (p == 1) { \
      for (; i + LANES <= n; i += LANES) { \
        AX_SIMD \
        for (int k = 0; k < LANES; k++) lane[k] += fabs((double)x[i + k]); \
      } \
      for (; i < n; i++) lane[i % LANES] += fabs((double)x[i]); \
    } else if (isinf(p)) { \
      for (; i < n; i++) { \
        const double a = fabs((double)x[i]); \
        lane[0] = a > lane[0] || a != a ? a : lane[0]; \
      } \
      return lane[0]; \
    } else \
      for (; i < n; i++) lane[i % LANES] += pow(fabs((double)x[i]), p); \
    for (int w = LANES / 2; w > 0; w /= 2) \
      for (int k = 0; k < w; k++) lane[k] += lane[k + w]; \
    return lane[0]; \
  }
NORM(f32, float)
NORM(f64, double)

#define PIECE 16384

/* Pieces [lo, hi) of all: each segment has its own, the last one of a segment may be short. */
static void norm_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  int64_t first = 0;

  for (int k = 0; k < j->n && first < hi; k++) {
    const ax_segment *s = &j->segs[k];
    const int64_t pieces = (s->n + PIECE - 1) / PIECE;
    for (int64_t p = lo > first ? lo - first : 0; p < pieces && first + p < hi; p++) {
      const int64_t at = p * PIECE, n = s->n - at < PIECE ? s->n - at : PIECE;
      j->partial[first + p] = j->dtype == AX_F32 ? norm_f32((const float *)s->grad + at, n, j->p) : norm_f64((const double *)s->grad + at, n, j->p);
    }
    first += pieces;
  }
}

ax_status ax_cpu_grad_norm(ax_dtype dtype, const ax_segment *segs, int n, double p, double *out)
{
  job j = { .segs = segs, .n = n, .dtype = dtype, .p = p };
  double few[256], sum = 0;
  int64_t pieces = 0;
  const ax_status st = check_dtype(dtype);

  if (st != AX_OK) return st;
  for (int k = 0; k < n; k++) pieces += (segs[k].n + PIECE - 1) / PIECE;
  j.partial = pieces <= 256 ? few : ax_malloc((size_t)pieces * sizeof(double));
  if (!j.partial) return AX_ENOMEM;
  ax_cpu_for(pieces, total(segs, n), norm_range, &j);
  for (int64_t k = 0; k < pieces; k++)
    if (isinf(p)) sum = j.partial[k] > sum || j.partial[k] != j.partial[k] ? j.partial[k] : sum;
    else sum += j.partial[k];
  if (j.partial != few) ax_mfree(j.partial);
  *out = sum;
  return AX_OK;
}

/* Losses of two tensors of one shape, element by element (pair_loss.h has the terms): one pass for
 * the terms and their sum, one for the gradient.  Sums use chunks whose bounds follow from the
 * size alone; threads share chunks.  Memory bounds the polynomial losses, logarithms bound the
 * others. */
#include "cpu.h"

#include <math.h>

#include "pair_loss.h"

/* The words of `reduction`, in order. */
enum { MEAN, SUM, NONE, BATCHMEAN };

#define RUN 512
#define CHUNK 65536
#define LANES 32

#define LOOPS(S, T, name, term, slope) \
  static void name##_each_##S(const T *left, const T *right, int64_t n, T p, T *out) \
  { \
    AX_SIMD \
    for (int64_t i = 0; i < n; i++) { \
      const T x = left[i], t = right[i]; \
      out[i] = term; \
    } \
  } \
  static double name##_sum_##S(const T *left, const T *right, int64_t n, T p) \
  { \
    T lane[LANES] = { 0 }; \
    double sum = 0; \
    int64_t i = 0; \
    for (; i + LANES <= n; i += LANES) { \
      AX_SIMD \
      for (int j = 0; j < LANES; j++) { \
        const T x = left[i + j], t = right[i + j]; \
        lane[j] += term; \
      } \
    } \
    for (int w = LANES / 2; w > 0; w /= 2) \
      for (int j = 0; j < w; j++) lane[j] += lane[j + w]; \
    for (; i < n; i++) { \
      const T x = left[i], t = right[i]; \
      sum += term; \
    } \
    return sum + lane[0]; \
  } \
  static void name##_back_##S(const T *g, int64_t step, T scale, const T *left, const T *right, int64_t n, \
                              T p, T *out) \
  { \
    if (step) { \
      AX_SIMD \
      for (int64_t i = 0; i < n; i++) { \
        const T x = left[i], t = right[i]; \
        out[i] = (slope) * (g[i] * scale); \
      } \
      return; \
    } \
    const T all = g[0] * scale; \
    AX_SIMD \
    for (int64_t i = 0; i < n; i++) { \
      const T x = left[i], t = right[i]; \
      (void)x; \
      out[i] = all * (slope); \
    } \
  }
#define F32(f) ax_##f##_f32
#define F64(f) ax_##f##_f64
#define LOOPS_F32(name, term, slope) LOOPS(f32, float, name, term, slope)
#define LOOPS_F64(name, term, slope) LOOPS(f64, double, name, term, slope)
AX_PAIR_TERMS(LOOPS_F32, float, F32)
AX_PAIR_TERMS(LOOPS_F64, double, F64)

typedef struct loops32 {
  void (*each)(const float *, const float *, int64_t, float, float *);
  double (*sum)(const float *, const float *, int64_t, float);
  void (*back)(const float *, int64_t, float, const float *, const float *, int64_t, float, float *);
} loops32;
typedef struct loops64 {
  void (*each)(const double *, const double *, int64_t, double, double *);
  double (*sum)(const double *, const double *, int64_t, double);
  void (*back)(const double *, int64_t, double, const double *, const double *, int64_t, double, double *);
} loops64;
#define ENTRY32(name, term, slope) { name##_each_f32, name##_sum_f32, name##_back_f32 },
#define ENTRY64(name, term, slope) { name##_each_f64, name##_sum_f64, name##_back_f64 },
static const loops32 in32[AX_PAIR_KINDS] = { AX_PAIR_TERMS(ENTRY32, float, F32) };
static const loops64 in64[AX_PAIR_KINDS] = { AX_PAIR_TERMS(ENTRY64, double, F64) };

/* ---- driver */

typedef struct job {
  int kind;
  ax_dtype dtype;
  int64_t n;
  double p, scale;
  const char *x, *t, *g;
  int64_t g_step; /* 0 or 1 */
  char *out;
  double *sums; /* [chunks], where there is a sum */
  bool found;   /* bce: an input outside 0..1 */
} job;

/* Returns n elements from element `at` on as floats: in place where they are floats, else in
 * `run`. */
static const float *floats(const job *j, const char *p, int64_t at, int64_t n, float *run)
{
  if (j->dtype == AX_F32) return (const float *)p + at;
  ax_cpu_half_to_float(j->dtype, p + 2 * at, 2, run, n);
  return run;
}

static void look(job *j, const float *x, int64_t n)
{
  int outside = 0;
  for (int64_t i = 0; i < n; i++) outside |= x[i] < 0.0f || x[i] > 1.0f;
  if (outside) __atomic_store_n(&j->found, true, __ATOMIC_RELAXED);
}

static void look_wide(job *j, const double *x, int64_t n)
{
  int outside = 0;
  for (int64_t i = 0; i < n; i++) outside |= x[i] < 0 || x[i] > 1;
  if (outside) __atomic_store_n(&j->found, true, __ATOMIC_RELAXED);
}

/* Computes the terms of [lo, hi), run by run; writes each, or returns their sum. */
static double forward(job *j, int64_t lo, int64_t hi)
{
  float left[RUN], right[RUN], out[RUN];
  double sum = 0;

  for (int64_t i = lo; i < hi; i += RUN) {
    const int64_t n = hi - i < RUN ? hi - i : RUN;
    if (j->dtype == AX_F64) {
      const double *x = (const double *)j->x + i, *t = (const double *)j->t + i;
      if (j->kind == AX_PAIR_BCE) look_wide(j, x, n);
      if (j->sums) sum += in64[j->kind].sum(x, t, n, j->p);
      else in64[j->kind].each(x, t, n, j->p, (double *)j->out + i);
      continue;
    }
    const float *x = floats(j, j->x, i, n, left), *t = floats(j, j->t, i, n, right);
    if (j->kind == AX_PAIR_BCE) look(j, x, n);
    if (j->sums) sum += in32[j->kind].sum(x, t, n, (float)j->p);
    else if (j->dtype == AX_F32) in32[j->kind].each(x, t, n, (float)j->p, (float *)j->out + i);
    else {
      in32[j->kind].each(x, t, n, (float)j->p, out);
      ax_cpu_float_to_half(j->dtype, out, j->out + 2 * i, 2, n);
    }
  }
  return sum;
}

static void chunk_range(int64_t lo, int64_t hi, void *ud)
{
  job *j = ud;
  for (int64_t c = lo; c < hi; c++) {
    const double sum = forward(j, c * CHUNK, (c + 1) * CHUNK < j->n ? (c + 1) * CHUNK : j->n);
    if (j->sums) j->sums[c] = sum;
  }
}

static double scale_of(int64_t reduction, const ax_tensor *x)
{
  if (reduction == MEAN) return 1 / (double)x->numel;
  return reduction == BATCHMEAN ? 1 / (double)(x->ndim ? x->shape[0] : 1) : 1;
}

/* number: what the formula of `kind` takes; 0 where it takes none. */
static ax_status loss(const ax_call *call, int kind, double number)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  const int64_t reduction = call->a->pair_loss.reduction, chunks = (x->numel + CHUNK - 1) / CHUNK;
  job j = { .kind = kind,
            .dtype = (ax_dtype)x->dtype,
            .n = x->numel,
            .p = number,
            .x = ax_data(x),
            .t = ax_data(call->in[1]),
            .out = ax_data(y) };
  double few[64], sum = 0;

  if (kind == AX_PAIR_SMOOTH_L1 && j.p == 0) j.kind = AX_PAIR_L1;
  if (reduction != NONE) {
    j.sums = chunks <= 64 ? few : ax_malloc((size_t)chunks * sizeof(double));
    if (!j.sums) return AX_ENOMEM;
  }
  ax_cpu_for(chunks, x->numel * 2, chunk_range, &j);
  if (reduction != NONE) {
    for (int64_t c = 0; c < chunks; c++) sum += j.sums[c];
    ax_store_double((ax_dtype)y->dtype, ax_data(y), 0, reduction == SUM ? sum : sum * scale_of(reduction, x));
    if (j.sums != few) ax_mfree(j.sums);
  }
  if (j.found)
    return ax_fail(AX_ERANGE, "binary_cross_entropy: an input lies outside 0..1; apply sigmoid first, or use "
                              "binary_cross_entropy_with_logits");
  return AX_OK;
}

ax_status ax_cpu_mse_loss(const ax_call *call) { return loss(call, AX_PAIR_MSE, 0); }
ax_status ax_cpu_l1_loss(const ax_call *call) { return loss(call, AX_PAIR_L1, 0); }
ax_status ax_cpu_smooth_l1_loss(const ax_call *call)
{
  return loss(call, AX_PAIR_SMOOTH_L1, call->a->smooth_l1_loss.beta);
}
ax_status ax_cpu_huber_loss(const ax_call *call)
{
  return loss(call, AX_PAIR_HUBER, call->a->huber_loss.delta);
}
ax_status ax_cpu__bce_loss(const ax_call *call) { return loss(call, AX_PAIR_BCE, 0); }
ax_status ax_cpu__bce_logits_loss(const ax_call *call) { return loss(call, AX_PAIR_BCE_LOGITS, 0); }
ax_status ax_cpu_kl_div(const ax_call *call)
{
  return loss(call, call->a->kl_div.log_target ? AX_PAIR_KL_LOG : AX_PAIR_KL, 0);
}

static void back_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  float left[RUN], right[RUN], gs[RUN], out[RUN];

  for (int64_t i = lo; i < hi; i += RUN) {
    const int64_t n = hi - i < RUN ? hi - i : RUN;
    if (j->dtype == AX_F64) {
      in64[j->kind].back((const double *)j->g + i * j->g_step, j->g_step, j->scale, (const double *)j->x + i,
                         (const double *)j->t + i, n, j->p, (double *)j->out + i);
      continue;
    }
    const float *x = floats(j, j->x, i, n, left), *t = floats(j, j->t, i, n, right),
                *g = floats(j, j->g, i * j->g_step, j->g_step ? n : 1, gs);
    if (j->dtype == AX_F32)
      in32[j->kind].back(g, j->g_step, (float)j->scale, x, t, n, (float)j->p, (float *)j->out + i);
    else {
      in32[j->kind].back(g, j->g_step, (float)j->scale, x, t, n, (float)j->p, out);
      ax_cpu_float_to_half(j->dtype, out, j->out + 2 * i, 2, n);
    }
  }
}

ax_status ax_cpu__pair_loss_backward(const ax_call *call)
{
  const ax_tensor *g = call->in[0], *x = call->in[1];
  job j = { .kind = (int)call->a->pair_loss_backward.kind,
            .dtype = (ax_dtype)x->dtype,
            .n = x->numel,
            .p = call->a->pair_loss_backward.number,
            .scale = scale_of(call->a->pair_loss_backward.reduction, x),
            .x = ax_data(x),
            .t = ax_data(call->in[2]),
            .g = ax_data(g),
            .g_step = call->a->pair_loss_backward.reduction == NONE,
            .out = ax_data(call->out[0]) };
  if (j.kind == AX_PAIR_SMOOTH_L1 && j.p == 0) j.kind = AX_PAIR_L1;
  ax_cpu_for(x->numel, x->numel * 2, back_range, &j);
  return AX_OK;
}

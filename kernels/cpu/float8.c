/* Matrices of eight bits: the cast with its scale, and products, which are computed in float32 of
 * the numbers that the bits stand for. */
#include "float8_scale.h"
#include "gemm.h"

enum { RUN = 512 }; /* elements that are widened at a time */

typedef struct job {
  ax_dtype from, to;
  int64_t cols;
  const char *x;
  uint8_t *out;
  float scale, most;
  uint32_t amax; /* the bits of the largest size so far; those of a NaN are larger */
} job;

/* The next n elements in float32: in `run`, or where they are. */
static const float *widened(const job *j, int64_t at, int64_t n, float *run)
{
  if (j->from == AX_F32) return (const float *)j->x + at;
  ax_cpu_half_to_float(j->from, j->x + 2 * at, 2, run, n);
  return run;
}

static void find_amax(int64_t lo, int64_t hi, void *ud)
{
  job *j = ud;
  float run[RUN];
  uint32_t most = 0;

  for (int64_t at = lo * j->cols; at < hi * j->cols; at += RUN) {
    const int64_t n = hi * j->cols - at < RUN ? hi * j->cols - at : RUN;
    const float *x = widened(j, at, n, run);
    _Pragma("omp simd reduction(max : most)") for (int64_t i = 0; i < n; i++)
    {
      const uint32_t size = ax_float_to_bits(x[i]) & 0x7fffffffu;
      most = size > most ? size : most;
    }
  }
  uint32_t seen = __atomic_load_n(&j->amax, __ATOMIC_RELAXED);
  while (most > seen &&
         !__atomic_compare_exchange_n(&j->amax, &seen, most, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

#define ROUND(name, convert) \
  static void name(int64_t lo, int64_t hi, void *ud) \
  { \
    const job *j = ud; \
    float run[RUN]; \
    for (int64_t at = lo * j->cols; at < hi * j->cols; at += RUN) { \
      const int64_t n = hi * j->cols - at < RUN ? hi * j->cols - at : RUN; \
      const float *x = widened(j, at, n, run); \
      AX_SIMD \
      for (int64_t i = 0; i < n; i++) j->out[at + i] = convert(ax_float8_limit(x[i], j->scale, j->most)); \
    } \
  }
ROUND(round_e4m3, ax_float_to_e4m3)
ROUND(round_e5m2, ax_float_to_e5m2)

/* The transpose, whose rows are longer where zeros fill them up. */
static void turn(const ax_tensor *y, const ax_tensor *turned)
{
  const int64_t rows = y->shape[0], cols = y->shape[1], wide = turned->shape[1];
  uint8_t *to = ax_data(turned);

  if (wide == rows) {
    ax_cpu_copy_strided(2, turned->shape, AX_U8, to, AX_U8, ax_data(y), (int64_t[]){ 1, cols });
    return;
  }
  memset(to, 0, (size_t)turned->numel);
  for (int64_t c = 0; c < cols; c++)
    ax_cpu_copy_strided(1, &rows, AX_U8, to + c * wide, AX_U8, (const uint8_t *)ax_data(y) + c, &cols);
}

ax_status ax_cpu__float8_cast(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  float *const scales = ax_data(call->out[2]);
  job j = { .from = (ax_dtype)x->dtype,
            .to = (ax_dtype)y->dtype,
            .cols = x->shape[1],
            .x = ax_data(x),
            .out = ax_data(y),
            .most = y->dtype == AX_E4M3 ? AX_E4M3_MOST : AX_E5M2_MOST };

  if (x->numel) ax_cpu_for(x->shape[0], x->numel, find_amax, &j);
  const float amax = ax_bits_to_float(j.amax);
  j.scale = call->in[1] ? *(const float *)ax_data(call->in[1]) : ax_float8_scale(amax, j.most);
  if (x->numel) ax_cpu_for(x->shape[0], 2 * x->numel, j.to == AX_E4M3 ? round_e4m3 : round_e5m2, &j);
  if (call->out[1]->numel) turn(y, call->out[1]);
  scales[0] = 1 / j.scale;
  scales[1] = amax;
  return AX_OK;
}

/* ---- products */

typedef struct finish {
  ax_dtype to;
  int64_t cols;
  float factor;
  const float *sums;
  const char *bias;
  char *out;
} finish;

/* The sums of a row times both scales, with the bias, rounded. */
static void finish_rows(int64_t lo, int64_t hi, void *ud)
{
  const finish *f = ud;
  float run[RUN], bias[RUN];

  for (int64_t r = lo; r < hi; r++)
    for (int64_t c = 0; c < f->cols; c += RUN) {
      const int64_t n = f->cols - c < RUN ? f->cols - c : RUN, at = r * f->cols + c;
      if (!f->bias) memset(bias, 0, sizeof bias);
      else if (f->to == AX_F32) memcpy(bias, f->bias + 4 * c, (size_t)n * 4);
      else ax_cpu_half_to_float(f->to, f->bias + 2 * c, 2, bias, n);
      AX_SIMD
      for (int64_t i = 0; i < n; i++) run[i] = f->sums[at + i] * f->factor + bias[i];
      if (f->to == AX_F32) memcpy(f->out + 4 * at, run, (size_t)n * 4);
      else ax_cpu_float_to_half(f->to, run, f->out + 2 * at, 2, n);
    }
}

static ax_status in_float(const ax_tensor *t, float **out)
{
  const ax_status st = ax_alloc((size_t)t->numel * sizeof(float), (void **)out);
  if (st == AX_OK)
    ax_cpu_copy_strided(1, &t->numel, AX_F32, *out, (ax_dtype)t->dtype, ax_data(t), (int64_t[]){ 1 });
  return st;
}

ax_status ax_cpu__float8_product(const ax_call *call)
{
  const ax_tensor *a = call->in[0], *b = call->in[1], *bias = call->in[4], *y = call->out[0];
  const int64_t m = a->shape[0], n = b->shape[0], k = a->shape[1];
  const ax_gemm g = {
    .dtype = AX_F32, .batch = 1, .m = m, .n = n, .k = k, .a = { 0, k, 1 }, .b = { 0, 1, k }, .c = { 0, n }
  };
  finish f = { .to = (ax_dtype)y->dtype,
               .cols = n,
               .factor = *(const float *)ax_data(call->in[2]) * *(const float *)ax_data(call->in[3]),
               .bias = bias ? ax_data(bias) : NULL,
               .out = ax_data(y) };
  float *wide_a = NULL, *wide_b = NULL, *sums = NULL;
  ax_status st;

  if (y->numel == 0) return AX_OK;
  AX_TRY(in_float(a, &wide_a));
  AX_TRY(in_float(b, &wide_b));
  AX_TRY(ax_alloc((size_t)y->numel * sizeof(float), (void **)&sums));
  AX_TRY(ax_cpu_product(&g, wide_a, wide_b, NULL, sums));
  f.sums = sums;
  ax_cpu_for(m, y->numel, finish_rows, &f);
out:
  ax_free(wide_a, (size_t)a->numel * sizeof(float));
  ax_free(wide_b, (size_t)b->numel * sizeof(float));
  ax_free(sums, (size_t)y->numel * sizeof(float));
  return st;
}

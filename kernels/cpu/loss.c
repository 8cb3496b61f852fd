/* cross_entropy and its gradient.  The forward pass keeps the log-sum-exp of each row, so that the gradient is one pass over the
 * input: exp(x - lse), less 1 at the target, times the row's scale. */
#include "rows.h"

enum { MEAN, SUM, NONE }; /* the words of the signature, in order */

typedef struct job {
  ax_dtype dtype; /* that is computed in */
  int64_t rows, classes;
  const char *input;
  const int64_t *target;
  int64_t ignore;
  void *lse;      /* of the dtype; the count of targets that are not ignored follows the rows */
  const char *g;  /* backward: the gradient, of the dtype, one or one for each row */
  int64_t g_step; /* 0 or 1 */
  double scale;
  char *out;
} job;

/* Few classes: one row has too little to fill vectors with, so 16 rows lie side by side in them. */
#define FEW 32
#define ROWS 16

static void lse_few(const float *x, int64_t n, int64_t rows, float *lse)
{
  float v[FEW][ROWS], top[ROWS], sum[ROWS] = {0};

  for (int64_t r = 0; r < ROWS; r++)
    for (int64_t c = 0; c < n; c++) v[c][r] = x[(r < rows ? r : 0) * n + c];
  for (int r = 0; r < ROWS; r++) top[r] = -INFINITY;
  for (int64_t c = 0; c < n; c++) {
    AX_SIMD
    for (int r = 0; r < ROWS; r++) top[r] = v[c][r] > top[r] ? v[c][r] : top[r];
  }
  for (int64_t c = 0; c < n; c++) {
    AX_SIMD
    for (int r = 0; r < ROWS; r++) sum[r] += ax_exp_f32(v[c][r] - top[r]);
  }
  AX_SIMD
  for (int r = 0; r < ROWS; r++) sum[r] = top[r] + ax_log_f32(sum[r]);
  memcpy(lse, sum, (size_t)rows * sizeof(float));
}

static void lse_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  const int64_t n = j->classes;

  if (j->dtype == AX_F32 && n > 0 && n <= FEW) {
    for (int64_t r = lo; r < hi; r += ROWS)
      lse_few((const float *)j->input + r * n, n, hi - r < ROWS ? hi - r : ROWS, (float *)j->lse + r);
    return;
  }
  for (int64_t r = lo; r < hi; r++)
    if (j->dtype == AX_F64) {
      const double *x = (const double *)j->input + r * n, top = top_f64(x, n);
      ((double *)j->lse)[r] = top + log(exps_f64(x, n, top, NULL));
    } else {
      const float *x = (const float *)j->input + r * n, top = top_f32(x, n);
      ((float *)j->lse)[r] = top + ax_log_f32(exps_f32(x, n, top, NULL));
    }
}

static ax_status check_targets(const job *j)
{
  for (int64_t r = 0; r < j->rows; r++)
    if (j->target[r] != j->ignore && (j->target[r] < 0 || j->target[r] >= j->classes))
      return ax_fail(AX_ERANGE, "cross_entropy: target %lld at position %lld is outside 0..%lld", (long long)j->target[r],
                     (long long)r, (long long)j->classes - 1);
  return AX_OK;
}

/* The facts of a call, with half inputs widened into *wide (to be freed). */
static ax_status begin(const ax_call *call, int input, int target, job *j, void **wide, size_t *bytes)
{
  const ax_tensor *x = call->in[input];
  ax_status st;

  *wide = NULL;
  *bytes = (size_t)x->numel * sizeof(float);
  j->dtype = (ax_dtype)x->dtype;
  if (!ax_is_float(j->dtype)) return ax_cpu_no_dtype(AX_OP_CROSS_ENTROPY, j->dtype);
  j->classes = x->shape[x->ndim - 1];
  j->rows = x->ndim > 1 ? x->shape[0] : 1;
  j->input = ax_data(x);
  j->target = ax_data(call->in[target]);
  j->ignore = call->a->i[0];
  AX_TRY(check_targets(j));
  if (j->dtype == AX_F32 || j->dtype == AX_F64) return AX_OK;
  AX_TRY(ax_alloc(*bytes, wide));
  ax_cpu_half_to_float(j->dtype, j->input, 2, *wide, x->numel);
  j->input = *wide;
  j->dtype = AX_F32;
out:
  return st;
}

ax_status ax_cpu_cross_entropy(const ax_call *call)
{
  const ax_dtype to = (ax_dtype)call->out[0]->dtype;
  const int64_t reduction = call->a->i[1];
  void *loss = ax_data(call->out[0]), *wide;
  size_t bytes;
  double sum = 0;
  int64_t count = 0;
  job j = {0};
  ax_status st;

  AX_TRY(begin(call, 0, 1, &j, &wide, &bytes));
  j.lse = ax_data(call->out[1]);
  ax_cpu_for(j.rows, j.rows * j.classes * 4, lse_range, &j);
  for (int64_t r = 0; r < j.rows; r++) {
    const bool counts = j.target[r] != j.ignore;
    const int64_t at = r * j.classes + (counts ? j.target[r] : 0);
    const double row = !counts ? 0 : j.dtype == AX_F64 ? ((double *)j.lse)[r] - ((const double *)j.input)[at]
                                                       : ((float *)j.lse)[r] - ((const float *)j.input)[at];
    count += counts;
    sum += row;
    if (reduction == NONE) ax_store_double(to, loss, r, row);
  }
  if (j.dtype == AX_F64) ((double *)j.lse)[j.rows] = (double)count;
  else ((float *)j.lse)[j.rows] = (float)count;
  if (reduction != NONE) ax_store_double(to, loss, 0, reduction == MEAN ? sum / (double)count : sum);
  if (wide) ax_free(wide, bytes);
out:
  return st;
}

#define ROW_GRADIENT(S, T, EXP) \
  static void row_gradient_##S(const T *x, int64_t n, int64_t target, T lse, T scale, T *out) \
  { \
    AX_SIMD \
    for (int64_t i = 0; i < n; i++) out[i] = EXP(x[i] - lse) * scale; \
    out[target] -= scale; \
  }
ROW_GRADIENT(f32, float, ax_exp_f32)
ROW_GRADIENT(f64, double, exp)

static void gradient_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  const int64_t n = j->classes, size = (int64_t)ax_dtype_size(j->dtype);

  for (int64_t r = lo; r < hi; r++) {
    const int64_t target = j->target[r];
    char *out = j->out + r * n * size;
    const char *x = j->input + r * n * size;
    if (target == j->ignore) memset(out, 0, (size_t)(n * size));
    else if (j->dtype == AX_F64)
      row_gradient_f64((const double *)x, n, target, ((double *)j->lse)[r], ((const double *)j->g)[r * j->g_step] * j->scale,
                       (double *)out);
    else
      row_gradient_f32((const float *)x, n, target, ((float *)j->lse)[r],
                       (float)(((const float *)j->g)[r * j->g_step] * j->scale), (float *)out);
  }
}

ax_status ax_cpu__cross_entropy_backward(const ax_call *call)
{
  const ax_tensor *g = call->in[0], *dx = call->out[0];
  const ax_dtype d = (ax_dtype)dx->dtype;
  void *wide = NULL, *wide_g = NULL, *wide_out = NULL;
  size_t bytes = 0;
  const size_t g_bytes = (size_t)g->numel * sizeof(float);
  job j = {0};
  ax_status st;

  AX_TRY(begin(call, 1, 2, &j, &wide, &bytes));
  j.lse = ax_data(call->in[3]);
  j.g = ax_data(g);
  j.g_step = call->a->i[1] == NONE && g->ndim > 0;
  j.scale = call->a->i[1] == MEAN ? 1 / ax_load_double(j.dtype, j.lse, j.rows) : 1;
  j.out = ax_data(dx);
  if (wide) {
    AX_TRY(ax_alloc(g_bytes, &wide_g));
    ax_cpu_copy_strided(1, &g->numel, AX_F32, wide_g, (ax_dtype)g->dtype, j.g, &(int64_t){ 1 });
    j.g = wide_g;
    AX_TRY(ax_alloc(bytes, &wide_out));
    j.out = wide_out;
  }
  ax_cpu_for(j.rows, dx->numel * 4, gradient_range, &j);
  if (wide) ax_cpu_float_to_half(d, wide_out, ax_data(dx), 2, dx->numel);
out:
  if (wide) ax_free(wide, bytes);
  if (wide_g) ax_free(wide_g, g_bytes);
  if (wide_out) ax_free(wide_out, bytes);
  return st;
}

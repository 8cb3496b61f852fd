/* cross_entropy and its gradient.  The forward pass saves the log-sum-exp of each row, so that the
 * gradient is one pass over the input: (exp(x - lse) - [target]) times the row's scale.
 *
 * With weights w, smoothing e and C classes, the loss of a row with target t is (1 - e) w[t] (lse -
 * x[t]) + e / C sum(w (lse - x)), and `mean` divides by the sum of the w[t].  With class
 * probabilities q the loss is sum(w q (lse - x)) of the smoothed q, and `mean` divides by the
 * number of rows.
 *
 * Threads share rows.  The exponentials bound rows in the cache, memory bounds longer ones: each is
 * read once forward, and read and written once backward. */
#include "rows.h"

#include "loss_few.h"

enum { MEAN, SUM, NONE }; /* the words of the signature, in order */

typedef struct job {
  ax_dtype dtype; /* the type computed in */
  int64_t rows, classes;
  const char *input;
  const int64_t *target;
  int64_t ignore;
  void *lse;      /* of the dtype; the number of counted targets follows the rows */
  const char *g;  /* backward: the gradient, of the dtype, one or one for each row */
  int64_t g_step; /* 0 or 1 */
  double scale;
  char *out;
  const char *weight, *probability; /* of the dtype, or NULL */
  double smoothing, all_weights;    /* the sum of the weights (C where there are none) */
  /* forward with probabilities: each row's loss, then its sum of w q, in the dtype */
  char *rows_out;
} job;

static double value(const job *j, const char *p, int64_t i)
{
  return j->dtype == AX_F64 ? ((const double *)p)[i] : ((const float *)p)[i];
}
static double weight_of(const job *j, int64_t class) { return j->weight ? value(j, j->weight, class) : 1; }

static void weigh(job *j, const ax_tensor *weight, double smoothing)
{
  j->smoothing = smoothing;
  j->all_weights = (double)j->classes;
  if (!weight) return;
  j->weight = ax_data(weight);
  j->all_weights = 0;
  for (int64_t c = 0; c < j->classes; c++) j->all_weights += value(j, j->weight, c);
}
static const ax_tensor *input(const ax_call *call, int k) { return call->n_in > k ? call->in[k] : NULL; }

/* Many classes: blocks that stay in the first-level cache, each with its own largest element, which
 * is searched while the block before it is computed. */
enum { BLOCK = 1024 };

/* the centre of an infinite maximum is 0: (-inf) - (-inf) would be NaN */
static inline float centre(float top) { return top == -INFINITY ? 0 : top; }

static void lse_rows(const float *x, int64_t rows, int64_t n, float *lse)
{
  float next = rows > 0 ? top_f32(x, n < BLOCK ? n : BLOCK) : 0;

  for (int64_t r = 0; r < rows; r++) {
    float top = -INFINITY, sum = 0;
    for (int64_t at = 0, length; at < n; at += length, x += length) {
      const float own = next;
      length = n - at < BLOCK ? n - at : BLOCK;
      /* the next block is the row's next one, or the first one of the next row */
      const int64_t left = n - at - length > 0 ? n - at - length
                           : r + 1 < rows      ? n
                                               : 0,
                    follows = left < BLOCK ? left : BLOCK;
      const float part = follows == length ? ax_row_exps(x, length, centre(own), NULL, x + length, &next)
                                           : ax_row_exps(x, length, centre(own), NULL, NULL, NULL);
      if (follows && follows != length) next = top_f32(x + length, follows);
      const float most = own > top ? own : top;
      /* of 0, or of NaN */
      const float former = top == -INFINITY ? 1 : ax_exp_f32(top - most),
                  added = own == -INFINITY ? 1 : ax_exp_f32(own - most);
      sum = at == 0 ? part : sum * former + part * added;
      top = most;
    }
    /* a row of -infinity gives NaN, as in PyTorch */
    lse[r] = n && top == -INFINITY ? NAN : top + ax_log_f32(sum);
  }
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
  if (j->dtype == AX_F64) {
    for (int64_t r = lo; r < hi; r++) {
      const double *x = (const double *)j->input + r * n, top = top_f64(x, n);
      ((double *)j->lse)[r] = top + ax_log_f64(exps_f64(x, n, top, NULL));
    }
    return;
  }
  lse_rows((const float *)j->input + lo * n, hi - lo, n, (float *)j->lse + lo);
}

static ax_status check_targets(const job *j, const char *name)
{
  for (int64_t r = 0; r < j->rows; r++)
    if (j->target[r] != j->ignore && (j->target[r] < 0 || j->target[r] >= j->classes))
      return ax_fail(AX_ERANGE, "%s: target %lld at position %lld is outside 0..%lld", name,
                     (long long)j->target[r], (long long)r, (long long)j->classes - 1);
  return AX_OK;
}

/* Fills in *j from the call; half inputs are converted into *wide (the caller frees it). */
static ax_status begin(const ax_call *call, int input, int target, job *j, void **wide, size_t *bytes)
{
  const ax_tensor *x = call->in[input];
  ax_status st = AX_OK;

  *wide = NULL;
  *bytes = (size_t)x->numel * sizeof(float);
  j->dtype = (ax_dtype)x->dtype;
  if (!ax_is_float(j->dtype)) return ax_cpu_no_dtype(AX_OP_CROSS_ENTROPY, j->dtype);
  j->classes = x->shape[x->ndim - 1];
  j->rows = x->ndim > 1 ? x->shape[0] : 1;
  j->input = ax_data(x);
  if (target < 0) goto widen;
  j->target = ax_data(call->in[target]);
  j->ignore = call->a->class_indices.ignore_index;
  AX_TRY(check_targets(j, "cross_entropy"));
widen:
  if (j->dtype == AX_F32 || j->dtype == AX_F64) return AX_OK;
  AX_TRY(ax_alloc(*bytes, wide));
  ax_cpu_half_to_float(j->dtype, j->input, 2, *wide, x->numel);
  j->input = *wide;
  j->dtype = AX_F32;
out:
  return st;
}

/* sum(w (lse - x)) of a row */
#define ROW_SMOOTH(S, T) \
  static double row_smooth_##S(const T *x, const T *w, int64_t n, T lse) \
  { \
    T lane[AX_LANES] = { 0 }; \
    double sum = 0; \
    int64_t i = 0; \
    for (; i + AX_LANES <= n; i += AX_LANES) { \
      AX_SIMD \
      for (int k = 0; k < AX_LANES; k++) lane[k] += w ? w[i + k] * (lse - x[i + k]) : lse - x[i + k]; \
    } \
    for (; i < n; i++) sum += w ? w[i] * (lse - x[i]) : lse - x[i]; \
    return sum + fold_##S(lane); \
  }
ROW_SMOOTH(f32, float)
ROW_SMOOTH(f64, double)

/* Row r's loss; its weight is added to *weights. */
static double row_loss(const job *j, int64_t r, double *weights)
{
  const int64_t n = j->classes, t = j->target[r];
  if (t == j->ignore) return 0;
  const double own = weight_of(j, t), lse = value(j, j->lse, r);
  double loss = own * (lse - value(j, j->input, r * n + t));

  *weights += own;
  if (j->smoothing == 0) return loss;
  const double all =
      j->dtype == AX_F64
          ? row_smooth_f64((const double *)j->input + r * n, (const double *)j->weight, n, lse)
          : row_smooth_f32((const float *)j->input + r * n, (const float *)j->weight, n, (float)lse);
  return (1 - j->smoothing) * loss + j->smoothing / (double)n * all;
}

ax_status ax_cpu__cross_entropy(const ax_call *call)
{
  const ax_dtype to = (ax_dtype)call->out[0]->dtype;
  const int64_t reduction = call->a->cross_entropy_rows.reduction;
  void *loss = ax_data(call->out[0]), *wide;
  size_t bytes;
  double sum = 0, weights = 0;
  job j = { 0 };
  ax_status st;

  AX_TRY(begin(call, 0, 1, &j, &wide, &bytes));
  weigh(&j, input(call, 2), call->a->cross_entropy_rows.label_smoothing);
  j.lse = ax_data(call->out[1]);
  ax_cpu_for(j.rows, j.rows * j.classes * 4, lse_range, &j);
  for (int64_t r = 0; r < j.rows; r++) {
    const double row = row_loss(&j, r, &weights);
    sum += row;
    if (reduction == NONE) ax_store_double(to, loss, r, row);
  }
  if (j.dtype == AX_F64) ((double *)j.lse)[j.rows] = weights;
  else ((float *)j.lse)[j.rows] = (float)weights;
  if (reduction != NONE) ax_store_double(to, loss, 0, reduction == MEAN ? sum / weights : sum);
  if (wide) ax_free(wide, bytes);
out:
  return st;
}

static void row_gradient_f64(const double *x, int64_t n, int64_t target, double lse, double scale,
                             double *out)
{
  for (int64_t i = 0; i < n; i++) out[i] = AX_TERM_f64(x[i], lse) * scale;
  out[target] -= scale;
}

/* scale softmax(x), minus scale at the target; stream: out is written past the caches, except for
 * the step with the target. */
static void row_gradient_f32(const float *x, int64_t n, int64_t target, float lse, float scale, float *out,
                             bool stream)
{
  int64_t i = 0;
  for (; i + AX_ROW_STEP <= n; i += AX_ROW_STEP) {
    const bool past = stream && (target < i || target >= i + AX_ROW_STEP);
    AX_UNROLL
    for (int k = 0; k < 4; k++)
      ax_vec_put(out + i + k * AX_ROW_LANES,
                 ax_row_term(*(const ax_vec_f32 *)(x + i + k * AX_ROW_LANES), lse) * scale, past);
  }
  for (; i + AX_ROW_LANES <= n; i += AX_ROW_LANES)
    *(ax_vec_f32 *)(out + i) = ax_row_term(*(const ax_vec_f32 *)(x + i), lse) * scale;
  if (i < n) {
    const ax_vec_f32 v = ax_row_term(ax_row_rest(x + i, n - i, -INFINITY), lse) * scale;
    memcpy(out + i, &v, sizeof(float) * (size_t)(n - i));
  }
  out[target] -= scale;
}

/* scale (factor softmax(x) - even w), minus `own` at the target */
#define ROW_GRADIENT(S, T, TERM) \
  static void row_weighted_##S(const T *x, const T *w, int64_t n, int64_t target, T lse, T factor, T even, \
                               T own, T *out) \
  { \
    AX_SIMD \
    for (int64_t i = 0; i < n; i++) out[i] = TERM(x[i], lse) * factor - (w ? even * w[i] : even); \
    out[target] -= own; \
  } \
  /* with probabilities q: scale (all softmax(x) - w ((1 - e) q + e / C)) */ \
  static void row_soft_##S(const T *x, const T *w, const T *q, int64_t n, T lse, T scale, T all, T e, \
                           T *out) \
  { \
    const T even = e / (T)n, rest = 1 - e; \
    AX_SIMD \
    for (int64_t i = 0; i < n; i++) \
      out[i] = scale * (TERM(x[i], lse) * all - (w ? w[i] * (q[i] * rest + even) : q[i] * rest + even)); \
  }
ROW_GRADIENT(f32, float, AX_TERM_f32)
ROW_GRADIENT(f64, double, AX_TERM_f64)

static void gradients_of_few(const job *j, int64_t lo, int64_t hi)
{
  const int64_t n = j->classes;
  float scale[ROWS];

  for (int64_t r = lo; r < hi; r += ROWS) {
    const int64_t rows = hi - r < ROWS ? hi - r : ROWS;
    for (int64_t i = 0; i < rows; i++) scale[i] = (float)(value(j, j->g, (r + i) * j->g_step) * j->scale);
    gradient_few((const float *)j->input + r * n, n, rows, (const float *)j->lse + r, scale, j->target + r,
                 j->ignore, (float *)j->out + r * n);
  }
}

static void gradient_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  const int64_t n = j->classes, size = (int64_t)ax_dtype_size(j->dtype);
  const bool plain = !j->weight && j->smoothing == 0,
             stream = j->dtype == AX_F32 && ax_cpu_streams(j->rows * n * size);
  float buffer[AX_ROW_MAX] __attribute__((aligned(64)));

  if (j->dtype == AX_F32 && n > 0 && n <= FEW && plain && !j->probability) {
    gradients_of_few(j, lo, hi);
    return;
  }
  for (int64_t r = lo; r < hi; r++) {
    float *place = (float *)(j->out + r * n * size);
    char *out = (char *)ax_row_place(stream, place, n, buffer);
    const char *x = j->input + r * n * size;
    const double scale = value(j, j->g, r * j->g_step) * j->scale;
    if (!j->probability && j->target[r] == j->ignore) {
      memset(place, 0, (size_t)(n * size));
      continue;
    }
    if (j->probability) {
      const double all = value(j, j->lse, j->rows + r);
      if (j->dtype == AX_F64)
        row_soft_f64((const double *)x, (const double *)j->weight, (const double *)j->probability + r * n, n,
                     ((double *)j->lse)[r], scale, all, j->smoothing, (double *)out);
      else
        row_soft_f32((const float *)x, (const float *)j->weight, (const float *)j->probability + r * n, n,
                     ((float *)j->lse)[r], (float)scale, (float)all, (float)j->smoothing, (float *)out);
      ax_row_done(place, (float *)out, n);
      continue;
    }
    const int64_t target = j->target[r];
    if (plain) {
      if (j->dtype == AX_F64)
        row_gradient_f64((const double *)x, n, target, ((double *)j->lse)[r], scale, (double *)out);
      else
        row_gradient_f32((const float *)x, n, target, ((float *)j->lse)[r], (float)scale, place,
                         stream && n % AX_ROW_STEP == 0 && ((uintptr_t)place & 63) == 0);
      continue;
    }
    const double own = scale * (1 - j->smoothing) * weight_of(j, target),
                 even = scale * j->smoothing / (double)n, factor = own + even * j->all_weights;
    if (j->dtype == AX_F64)
      row_weighted_f64((const double *)x, (const double *)j->weight, n, target, ((double *)j->lse)[r], factor,
                       even, own, (double *)out);
    else
      row_weighted_f32((const float *)x, (const float *)j->weight, n, target, ((float *)j->lse)[r],
                       (float)factor, (float)even, (float)own, (float *)out);
    ax_row_done(place, (float *)out, n);
  }
  if (stream) ax_cpu_stream_end();
}

/* Writes the gradient of the call's input 1, described in *j; wide is the input in float32 where it
 * was converted. */
static ax_status give_gradient(const ax_call *call, job *j, void *wide, size_t bytes, int64_t reduction)
{
  const ax_tensor *g = call->in[0], *dx = call->out[0];
  const size_t g_bytes = (size_t)g->numel * sizeof(float);
  void *wide_g = NULL, *wide_out = NULL;
  ax_status st = AX_OK;

  j->lse = ax_data(call->in[3]);
  j->g = ax_data(g);
  j->g_step = reduction == NONE && g->ndim > 0;
  j->out = ax_data(dx);
  if (wide) {
    AX_TRY(ax_alloc(g_bytes, &wide_g));
    ax_cpu_copy_strided(1, &g->numel, AX_F32, wide_g, (ax_dtype)g->dtype, j->g, &(int64_t){ 1 });
    j->g = wide_g;
    AX_TRY(ax_alloc(bytes, &wide_out));
    j->out = wide_out;
  }
  ax_cpu_for(j->rows, dx->numel * 4, gradient_range, j);
  if (wide) ax_cpu_float_to_half((ax_dtype)dx->dtype, wide_out, ax_data(dx), 2, dx->numel);
out:
  if (wide_g) ax_free(wide_g, g_bytes);
  if (wide_out) ax_free(wide_out, bytes);
  return st;
}

ax_status ax_cpu__cross_entropy_backward(const ax_call *call)
{
  void *wide = NULL;
  size_t bytes = 0;
  job j = { 0 };
  ax_status st;

  AX_TRY(begin(call, 1, 2, &j, &wide, &bytes));
  weigh(&j, input(call, 4), call->a->cross_entropy_backward.label_smoothing);
  j.scale =
      call->a->cross_entropy_backward.reduction == MEAN ? 1 / value(&j, ax_data(call->in[3]), j.rows) : 1;
  st = give_gradient(call, &j, wide, bytes, call->a->cross_entropy_backward.reduction);
out:
  if (wide) ax_free(wide, bytes);
  return st;
}

/* ---- class probabilities */

/* *loss = sum(w q (lse - x)), *all = sum(w q) of the smoothed q */
#define ROW_SOFT(S, T) \
  static void soft_loss_##S(const T *x, const T *w, const T *q, int64_t n, T lse, T e, double *loss, \
                            double *all) \
  { \
    const T even = e / (T)n, rest = 1 - e; \
    double l = 0, s = 0; \
    for (int64_t lo = 0; lo < n; lo += 512) { /* float sums stay short */ \
      const int64_t count = n - lo < 512 ? n - lo : 512; \
      T loss_part = 0, part = 0; \
      _Pragma("omp simd reduction(+:loss_part, part)") for (int64_t i = lo; i < lo + count; i++) \
      { \
        const T v = q[i] * rest + even, u = w ? w[i] * v : v; \
        loss_part += u * (lse - x[i]); \
        part += u; \
      } \
      l += loss_part; \
      s += part; \
    } \
    *loss = l; \
    *all = s; \
  }
ROW_SOFT(f32, float)
ROW_SOFT(f64, double)

static void soft_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  const int64_t n = j->classes;

  lse_range(lo, hi, ud);
  for (int64_t r = lo; r < hi; r++) {
    double loss, all;
    if (j->dtype == AX_F64) {
      soft_loss_f64((const double *)j->input + r * n, (const double *)j->weight,
                    (const double *)j->probability + r * n, n, ((double *)j->lse)[r], j->smoothing, &loss,
                    &all);
      ((double *)j->lse)[j->rows + r] = all;
    } else {
      soft_loss_f32((const float *)j->input + r * n, (const float *)j->weight,
                    (const float *)j->probability + r * n, n, ((float *)j->lse)[r], (float)j->smoothing,
                    &loss, &all);
      ((float *)j->lse)[j->rows + r] = (float)all;
    }
    ((double *)j->rows_out)[r] = loss;
  }
}

/* Loads the probabilities in the type computed in; the caller frees *wide. */
static ax_status begin_soft(const ax_call *call, int target, job *j, void **wide, size_t *bytes)
{
  const ax_tensor *q = call->in[target];
  ax_status st = AX_OK;

  j->probability = ax_data(q);
  *bytes = (size_t)q->numel * sizeof(float);
  if (q->dtype == AX_F32 || q->dtype == AX_F64) return AX_OK;
  AX_TRY(ax_alloc(*bytes, wide));
  ax_cpu_half_to_float((ax_dtype)q->dtype, j->probability, 2, *wide, q->numel);
  j->probability = *wide;
out:
  return st;
}

ax_status ax_cpu__cross_entropy_soft(const ax_call *call)
{
  const ax_dtype to = (ax_dtype)call->out[0]->dtype;
  const int64_t reduction = call->a->cross_entropy_soft.reduction;
  void *loss = ax_data(call->out[0]), *wide = NULL, *wide_q = NULL, *rows = NULL;
  size_t bytes = 0, q_bytes = 0, rows_bytes = 0;
  double sum = 0;
  job j = { 0 };
  ax_status st;

  AX_TRY(begin(call, 0, -1, &j, &wide, &bytes));
  AX_TRY(begin_soft(call, 1, &j, &wide_q, &q_bytes));
  weigh(&j, input(call, 2), call->a->cross_entropy_soft.label_smoothing);
  j.lse = ax_data(call->out[1]);
  rows_bytes = (size_t)j.rows * sizeof(double);
  if (j.rows) AX_TRY(ax_alloc(rows_bytes, &rows));
  j.rows_out = rows;
  ax_cpu_for(j.rows, j.rows * j.classes * 4, soft_range, &j);
  for (int64_t r = 0; r < j.rows; r++) {
    sum += ((double *)rows)[r];
    if (reduction == NONE) ax_store_double(to, loss, r, ((double *)rows)[r]);
  }
  if (reduction != NONE) ax_store_double(to, loss, 0, reduction == MEAN ? sum / (double)j.rows : sum);
out:
  if (wide) ax_free(wide, bytes);
  if (wide_q) ax_free(wide_q, q_bytes);
  if (rows) ax_free(rows, rows_bytes);
  return st;
}

ax_status ax_cpu__cross_entropy_soft_backward(const ax_call *call)
{
  void *wide = NULL, *wide_q = NULL;
  size_t bytes = 0, q_bytes = 0;
  job j = { 0 };
  ax_status st;

  AX_TRY(begin(call, 1, -1, &j, &wide, &bytes));
  AX_TRY(begin_soft(call, 2, &j, &wide_q, &q_bytes));
  weigh(&j, input(call, 4), call->a->cross_entropy_soft_backward.label_smoothing);
  j.scale = call->a->cross_entropy_soft_backward.reduction == MEAN ? 1 / (double)j.rows : 1;
  st = give_gradient(call, &j, wide, bytes, call->a->cross_entropy_soft_backward.reduction);
out:
  if (wide) ax_free(wide, bytes);
  if (wide_q) ax_free(wide_q, q_bytes);
  return st;
}

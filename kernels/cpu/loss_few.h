/* cross_entropy of few classes, in float32: a row does not fill the vectors, so ROWS rows are
 * computed together. */
#ifndef AX_CPU_LOSS_FEW_H
#define AX_CPU_LOSS_FEW_H

#include "rows.h"

#define FEW 32
#define ROWS 16

/* The log-sum-exps of up to ROWS rows, side by side. */
static void lse_few(const float *x, int64_t n, int64_t rows, float *lse)
{
  float v[FEW][ROWS], top[ROWS], sum[ROWS] = { 0 };

  for (int64_t r = 0; r < ROWS; r++)
    for (int64_t c = 0; c < n; c++) v[c][r] = x[(r < rows ? r : 0) * n + c];
  for (int r = 0; r < ROWS; r++) top[r] = -INFINITY;
  for (int64_t c = 0; c < n; c++) {
    AX_SIMD
    for (int r = 0; r < ROWS; r++) top[r] = v[c][r] > top[r] ? v[c][r] : top[r];
  }
  for (int64_t c = 0; c < n; c++) {
    AX_SIMD
    for (int r = 0; r < ROWS; r++) sum[r] += AX_TERM_f32(v[c][r], top[r]);
  }
  AX_SIMD
  for (int r = 0; r < ROWS; r++) sum[r] = top[r] + ax_log_f32(sum[r]);
  memcpy(lse, sum, (size_t)rows * sizeof(float));
}

/* The gradients of up to ROWS rows: scale softmax(x), minus scale at the target.  The rows' numbers
 * follow each other, so that vectors pass over their ends. */
static void gradient_few(const float *x, int64_t n, int64_t rows, const float *lse, const float *scale,
                         const int64_t *target, int64_t ignore, float *out)
{
  float top[ROWS * FEW + AX_ROW_LANES], times[ROWS * FEW + AX_ROW_LANES];
  const int64_t count = rows * n;
  int64_t i = 0;

  for (int64_t r = 0; r < rows; r++) /* what is too much is written over for the next row */
    for (int64_t c = 0; c < n; c += AX_ROW_LANES) {
      *(ax_vec_f32 *)(top + r * n + c) = lse[r] - (ax_vec_f32){ 0 };
      *(ax_vec_f32 *)(times + r * n + c) = scale[r] - (ax_vec_f32){ 0 };
    }
  *(ax_vec_f32 *)(top + count) = *(ax_vec_f32 *)(times + count) = (ax_vec_f32){ 0 };
  for (; i + AX_ROW_LANES <= count; i += AX_ROW_LANES)
    *(ax_vec_f32 *)(out + i) =
        ax_vec_exp2((*(const ax_vec_f32 *)(x + i) - *(const ax_vec_f32 *)(top + i)) * AX_LOG2E) *
        *(const ax_vec_f32 *)(times + i);
  if (i < count) {
    const ax_vec_f32 rest = ax_row_rest(x + i, count - i, 0) - *(const ax_vec_f32 *)(top + i);
    const ax_vec_f32 v = ax_vec_exp2(rest * AX_LOG2E) * *(const ax_vec_f32 *)(times + i);
    memcpy(out + i, &v, sizeof(float) * (size_t)(count - i));
  }
  for (int64_t r = 0; r < rows; r++, out += n)
    if (target[r] == ignore) memset(out, 0, sizeof(float) * (size_t)n);
    else out[target[r]] -= scale[r];
}

#endif

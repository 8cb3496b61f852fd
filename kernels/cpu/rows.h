/* Rows of softmax and cross-entropy: the largest element, and the sum of exp(x - top).  Sums are
 * added in lanes, and the lanes at the end; the order depends on the processor level alone. */
#ifndef AX_CPU_ROWS_H
#define AX_CPU_ROWS_H

#include "cpu.h"

#include <math.h>
#include <string.h>

#include "functions.h"
#include "vector.h"

#define AX_LANES 32

/* exp(x - top).  In float32 the relative error is 1e-7 (1 + |x - top|), and the result is exactly 0
 * from 87 below top on.  (One multiply-add with a precomputed top log2 e would be faster, but wrong
 * for rows of numbers like 1e9.) */
#define AX_TERM_f32(x, top) ax_exp2_part(((x) - (top)) * AX_LOG2E)
#define AX_TERM_f64(x, top) ax_exp_f64((x) - (top))

#define AX_ROW_FOLD(S, T) \
  static inline T fold_##S(const T *lane) \
  { \
    T sum = 0; \
    _Pragma("omp simd reduction(+:sum)") for (int j = 0; j < AX_LANES; j++) sum += lane[j]; \
    return sum; \
  }
AX_ROW_FOLD(f32, float)
AX_ROW_FOLD(f64, double)

/* ---- float64 */

/* The largest element that is not NaN (a NaN shows in the sum); n > 0. */
static inline double top_f64(const double *x, int64_t n)
{
  double top = -INFINITY;
  _Pragma("omp simd reduction(max:top)") for (int64_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
  return top;
}

/* The sum of exp(x - top); the terms are written to y unless it is NULL. */
static inline double exps_f64(const double *x, int64_t n, double top, double *y)
{
  double lane[AX_LANES] = { 0 }, kept[AX_LANES], rest = 0;
  int64_t i = 0;
  for (; i + AX_LANES <= n; i += AX_LANES) {
    double *const to = y ? y + i : kept;
    AX_SIMD
    for (int j = 0; j < AX_LANES; j++) {
      const double e = AX_TERM_f64(x[i + j], top);
      to[j] = e;
      lane[j] += e;
    }
  }
  for (; i < n; i++) {
    const double e = AX_TERM_f64(x[i], top);
    if (y) y[i] = e;
    rest += e;
  }
  return fold_f64(lane) + rest;
}

/* ---- float32
 *
 * The largest element of a row is searched while the row before it is computed, so that memory
 * access and arithmetic overlap. */

enum { AX_ROW_LANES = AX_BYTES / 4, AX_ROW_STEP = 4 * AX_ROW_LANES };

static inline ax_vec_f32 ax_row_term(ax_vec_f32 x, float top) { return ax_vec_exp2((x - top) * AX_LOG2E); }

/* The rest of a row after its whole vectors, filled up with `filler`. */
static inline ax_vec_f32 ax_row_rest(const float *x, int64_t n, float filler)
{
  float lane[AX_ROW_LANES];
  for (int64_t j = 0; j < AX_ROW_LANES; j++) lane[j] = j < n ? x[j] : filler;
  return *(const ax_vec_f32 *)lane;
}

static inline float top_f32(const float *x, int64_t n)
{
  ax_vec_f32 top[4];
  int64_t i = 0;
  AX_UNROLL
  for (int k = 0; k < 4; k++) top[k] = (ax_vec_f32){ 0 } - INFINITY;
  for (; i + AX_ROW_STEP <= n; i += AX_ROW_STEP) {
    AX_UNROLL
    for (int k = 0; k < 4; k++) top[k] = ax_vec_max(*(const ax_vec_f32 *)(x + i + k * AX_ROW_LANES), top[k]);
  }
  for (; i + AX_ROW_LANES <= n; i += AX_ROW_LANES) top[0] = ax_vec_max(*(const ax_vec_f32 *)(x + i), top[0]);
  if (i < n) top[1] = ax_vec_max(ax_row_rest(x + i, n - i, -INFINITY), top[1]);
  return ax_vec_largest(ax_vec_max(ax_vec_max(top[0], top[1]), ax_vec_max(top[2], top[3])));
}

/* The sum of exp(x - top); the terms are written to y unless it is NULL.  next: NULL, or the next
 * row, whose top_f32 is written to *next_top. */
static inline __attribute__((always_inline)) float ax_row_exps(const float *x, int64_t n, float top, float *y,
                                                               const float *next, float *next_top)
{
  ax_vec_f32 sum[4], most[4];
  int64_t i = 0;
  AX_UNROLL
  for (int k = 0; k < 4; k++) {
    sum[k] = (ax_vec_f32){ 0 };
    most[k] = (ax_vec_f32){ 0 } - INFINITY;
  }
  for (; i + AX_ROW_STEP <= n; i += AX_ROW_STEP) {
    AX_UNROLL
    for (int k = 0; k < 4; k++) {
      const int64_t at = i + k * AX_ROW_LANES;
      const ax_vec_f32 e = ax_row_term(*(const ax_vec_f32 *)(x + at), top);
      if (y) *(ax_vec_f32 *)(y + at) = e;
      sum[k] += e;
      if (next) most[k] = ax_vec_max(*(const ax_vec_f32 *)(next + at), most[k]);
    }
  }
  for (; i + AX_ROW_LANES <= n; i += AX_ROW_LANES) {
    const ax_vec_f32 e = ax_row_term(*(const ax_vec_f32 *)(x + i), top);
    if (y) *(ax_vec_f32 *)(y + i) = e;
    sum[0] += e;
    if (next) most[0] = ax_vec_max(*(const ax_vec_f32 *)(next + i), most[0]);
  }
  if (i < n) {
    const ax_vec_f32 e = ax_row_term(ax_row_rest(x + i, n - i, -INFINITY), top);
    for (int64_t j = 0; y && j < n - i; j++) y[i + j] = e[j];
    sum[1] += e;
    if (next) most[1] = ax_vec_max(ax_row_rest(next + i, n - i, -INFINITY), most[1]);
  }
  if (next)
    *next_top = ax_vec_largest(ax_vec_max(ax_vec_max(most[0], most[1]), ax_vec_max(most[2], most[3])));
  return ax_vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* Where a row of n floats is computed that is written to `out` past the caches: `buffer`, or `out`
 * itself where streaming does not pay or fit. */
#define AX_ROW_MAX 4096
static inline float *ax_row_place(bool streams, float *out, int64_t n, float *buffer)
{
  return streams && n <= AX_ROW_MAX && n % 16 == 0 && ((uintptr_t)out & 63) == 0 ? buffer : out;
}
static inline void ax_row_done(float *out, const float *row, int64_t n)
{
  if (row != out) ax_cpu_stream(out, row, n * (int64_t)sizeof(float));
}

static inline float ax_row_log_f32(float x) { return ax_log_f32(x); }
static inline double ax_row_log_f64(double x) { return log(x); }

#endif

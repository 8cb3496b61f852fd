/* What softmax and cross-entropy do with a row: its largest element and the sum of exp(x - top).  Work goes in steps of 32 lanes whose
 * sums are added at the end, in an order that the compiler fixed for the level of processor. */
#ifndef AX_CPU_ROWS_H
#define AX_CPU_ROWS_H

#include "cpu.h"

#include <math.h>
#include <string.h>

#include "pointwise.h"

#define AX_LANES 32

/* Rows shorter than a step, as the 10 classes of a digit, go through a copy that is filled up: vector code has no other way to be
 * quick with them.  COUNT: lanes of a filled-up step that are worth computing when n count (all where they are vector code). */
#define AX_ROW_MATH(S, T, EXP, COUNT) \
  static inline T fold_##S(const T *lane) \
  { \
    T sum = 0; \
    _Pragma("omp simd reduction(+:sum)") \
    for (int j = 0; j < AX_LANES; j++) sum += lane[j]; \
    return sum; \
  } \
  static inline void filled_##S(const T *x, int n, T *to) \
  { \
    for (int j = 0; j < AX_LANES; j++) to[j] = -INFINITY; \
    for (int j = 0; j < n; j++) to[j] = x[j]; \
  } \
  /* The largest element that is not NaN (a NaN comes out in the sum); n > 0. */ \
  static inline T top_##S(const T *x, int64_t n) \
  { \
    T lane[AX_LANES], top = -INFINITY; \
    int64_t i = 0; \
    for (int j = 0; j < AX_LANES; j++) lane[j] = -INFINITY; \
    for (; i + AX_LANES <= n; i += AX_LANES) { \
      AX_SIMD \
      for (int j = 0; j < AX_LANES; j++) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j]; \
    } \
    if (i) { \
      _Pragma("omp simd reduction(max:top)") \
      for (int j = 0; j < AX_LANES; j++) top = lane[j] > top ? lane[j] : top; \
    } \
    for (; i < n; i++) top = x[i] > top ? x[i] : top; \
    return top; \
  } \
  /* The sum of exp(x - top); the terms go to y unless it is NULL. */ \
  static inline T exps_##S(const T *x, int64_t n, T top, T *y) \
  { \
    T lane[AX_LANES] = {0}, sum; \
    int64_t i = 0; \
    if (y) { \
      for (; i + AX_LANES <= n; i += AX_LANES) { \
        AX_SIMD \
        for (int j = 0; j < AX_LANES; j++) { \
          const T e = EXP(x[i + j] - top); \
          y[i + j] = e; \
          lane[j] += e; \
        } \
      } \
    } else { \
      for (; i + AX_LANES <= n; i += AX_LANES) { \
        AX_SIMD \
        for (int j = 0; j < AX_LANES; j++) lane[j] += EXP(x[i + j] - top); \
      } \
    } \
    sum = i ? fold_##S(lane) : 0; \
    if (i < n) { \
      T rest[AX_LANES], last = 0; \
      const int left = (int)(n - i), count = COUNT(left); \
      filled_##S(x + i, left, rest); \
      _Pragma("omp simd reduction(+:last)") \
      for (int j = 0; j < count; j++) { \
        rest[j] = EXP(rest[j] - top); \
        last += rest[j]; \
      } \
      for (int j = 0; y && j < left; j++) y[i + j] = rest[j]; \
      sum += last; \
    } \
    return sum; \
  }

#define AX_COUNT_ALL(left) AX_LANES
#define AX_COUNT_LEFT(left) (left)
AX_ROW_MATH(f32, float, ax_exp_f32, AX_COUNT_ALL)
AX_ROW_MATH(f64, double, exp, AX_COUNT_LEFT)

static inline float ax_row_log_f32(float x) { return ax_log_f32(x); }
static inline double ax_row_log_f64(double x) { return log(x); }

#endif

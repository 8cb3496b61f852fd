/* What softmax and cross-entropy do with a row: its largest element and the sum of exp(x - top).  Work goes in steps of 32 lanes whose
 * sums are added at the end, in an order that the compiler fixed for the level of processor. */
#ifndef AX_CPU_ROWS_H
#define AX_CPU_ROWS_H

#include "cpu.h"

#include <math.h>
#include <string.h>

#include "functions.h"

#define AX_LANES 32
/* Fetches the same place of the next row into the second-level cache while this one is worked on: rows pass through several loops, and memory
 * would stand still during all but the first. */
#define AX_NEXT_ROW(p) (__builtin_prefetch(p, 0, 2), __builtin_prefetch((const char *)(p) + 64, 0, 2))

/* exp(x - top).  In float32 an error of 1e-7 (1 + |x - top|) of itself, and exactly 0 from 87 below on.  (One multiply-add with top log2 e worked out
 * beforehand would do, but not for rows of numbers like 1e9.) */
#define AX_TERM_f32(x, top) ax_exp2_part(((x) - (top)) * AX_LOG2E)
#define AX_TERM_f64(x, top) exp((x) - (top))

/* Rows shorter than a step, as the 10 classes of a digit, go through a copy that is filled up: vector code has no other way to be
 * quick with them.  COUNT: lanes of a filled-up step that are worth computing when n count (all where they are vector code). */
#define AX_ROW_MATH(S, T, TERM, COUNT) \
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
        AX_NEXT_ROW(x + n + i); \
        AX_SIMD \
        for (int j = 0; j < AX_LANES; j++) { \
          const T e = TERM(x[i + j], top); \
          y[i + j] = e; \
          lane[j] += e; \
        } \
      } \
    } else { \
      for (; i + AX_LANES <= n; i += AX_LANES) { \
        AX_NEXT_ROW(x + n + i); \
        AX_SIMD \
        for (int j = 0; j < AX_LANES; j++) lane[j] += TERM(x[i + j], top); \
      } \
    } \
    sum = i ? fold_##S(lane) : 0; \
    if (i < n) { \
      T rest[AX_LANES], last = 0; \
      const int left = (int)(n - i), count = COUNT(left); \
      filled_##S(x + i, left, rest); \
      _Pragma("omp simd reduction(+:last)") \
      for (int j = 0; j < count; j++) { \
        rest[j] = TERM(rest[j], top); \
        last += rest[j]; \
      } \
      for (int j = 0; y && j < left; j++) y[i + j] = rest[j]; \
      sum += last; \
    } \
    return sum; \
  }

#define AX_COUNT_ALL(left) AX_LANES
#define AX_COUNT_LEFT(left) (left)
AX_ROW_MATH(f32, float, AX_TERM_f32, AX_COUNT_ALL)
AX_ROW_MATH(f64, double, AX_TERM_f64, AX_COUNT_LEFT)

/* Where a row of n floats is computed that goes to `out` past the caches: `buffer`, or `out` itself where that does not pay or fit. */
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

/* What softmax and cross-entropy do with a row: its largest element and the sum of exp(x - top).  Work goes in steps of 32 lanes, the
 * last one filled up, and lanes are combined in a fixed order. */
#ifndef AX_CPU_ROWS_H
#define AX_CPU_ROWS_H

#include "cpu.h"

#include <math.h>
#include <string.h>

#include "pointwise.h"

#define AX_LANES 32

/* FILL: lanes of the last step that are worth computing when `left` of them count: all where they are vector code. */
#define AX_ROW_MATH(S, T, EXP, FILL) \
  static inline T fold_##S(T *lane) \
  { \
    for (int w = AX_LANES / 2; w > 0; w /= 2) \
      for (int j = 0; j < w; j++) lane[j] += lane[j + w]; \
    return lane[0]; \
  } \
  /* The largest element that is not NaN (a NaN comes out in the sum); n > 0. */ \
  static inline T top_##S(const T *x, int64_t n) \
  { \
    T lane[AX_LANES], top; \
    int64_t i = 0; \
    for (int j = 0; j < AX_LANES; j++) lane[j] = -INFINITY; \
    for (; i + AX_LANES <= n; i += AX_LANES) { \
      AX_SIMD \
      for (int j = 0; j < AX_LANES; j++) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j]; \
    } \
    for (int j = 0; i + j < n; j++) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j]; \
    for (int w = AX_LANES / 2; w > 0; w /= 2) \
      for (int j = 0; j < w; j++) lane[j] = lane[j + w] > lane[j] ? lane[j + w] : lane[j]; \
    top = lane[0]; \
    return top; \
  } \
  /* The sum of exp(x - top); the terms go to y unless it is NULL. */ \
  static inline T exps_##S(const T *x, int64_t n, T top, T *y) \
  { \
    T lane[AX_LANES] = {0}; \
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
    if (i < n) { \
      T rest[AX_LANES]; \
      const int left = (int)(n - i), fill = FILL(left); \
      for (int j = 0; j < fill; j++) rest[j] = -INFINITY; \
      for (int j = 0; j < left; j++) rest[j] = x[i + j] - top; \
      AX_SIMD \
      for (int j = 0; j < fill; j++) { \
        rest[j] = EXP(rest[j]); \
        lane[j] += rest[j]; \
      } \
      if (y) memcpy(y + i, rest, (size_t)left * sizeof(T)); \
    } \
    return fold_##S(lane); \
  }

#define AX_FILL_ALL(left) AX_LANES
#define AX_FILL_NONE(left) (left)
AX_ROW_MATH(f32, float, ax_exp_f32, AX_FILL_ALL)
AX_ROW_MATH(f64, double, exp, AX_FILL_NONE)

static inline float ax_row_log_f32(float x) { return ax_log_f32(x); }
static inline double ax_row_log_f64(double x) { return log(x); }

#endif

/* Shared by the optimizer kernels.  A kernel steps `n` elements of segment `s` from element `at`
 * on. The formulas are PyTorch's, in their order of operations; coefficients that do not depend on
 * the element are computed once, in float64. */
#ifndef AX_CPU_OPTIM_H
#define AX_CPU_OPTIM_H

#include "cpu.h"

#include <math.h>

typedef void (*ax_optim_kernel)(const ax_segment *s, int64_t at, int64_t n, const ax_hyper *h);

#define OPTIM(ID, name, kernel, ...) \
  void ax_cpu_##kernel##_f32(const ax_segment *s, int64_t at, int64_t n, const ax_hyper *h); \
  void ax_cpu_##kernel##_f64(const ax_segment *s, int64_t at, int64_t n, const ax_hyper *h);
#define OPTIM_MATRIX(ID, name, kernel, ...) \
  ax_status ax_cpu_##kernel(ax_dtype dtype, const ax_segment *segs, int n, const ax_hyper *h);
#include "core/optim.def"

/* The number of elements that are still in the first-level cache when their working copy is
 * written. */
#define AX_OPTIM_BLOCK 2048

static inline void ax_round_f32(const float *restrict p, uint16_t *restrict work, int64_t n)
{
  AX_SIMD
  for (int64_t i = 0; i < n; i++) work[i] = ax_float_to_bf16(p[i]);
}

static inline void ax_round_f64(const double *restrict p, uint16_t *restrict work, int64_t n)
{
  AX_SIMD
  for (int64_t i = 0; i < n; i++) work[i] = ax_float_to_bf16((float)p[i]);
}

/* Runs the statements for each i in [0, n), block by block, and writes the working copy of each
 * block if there is one. */
#define AX_OPTIM_EACH(S, s, p, at, n, ...) \
  for (int64_t lo_ = 0, hi_; lo_ < (n); lo_ = hi_) { \
    hi_ = (s)->work && (n)-lo_ > AX_OPTIM_BLOCK ? lo_ + AX_OPTIM_BLOCK : (n); \
    AX_SIMD \
    for (int64_t i = lo_; i < hi_; i++) { __VA_ARGS__ } \
    if ((s)->work) ax_round_##S((p) + lo_, (uint16_t *)(s)->work + (at) + lo_, hi_ - lo_); \
  }

/* for an S that is itself a macro */
#define AX_OPTIM_EACH_(S, s, p, at, n, ...) AX_OPTIM_EACH(S, s, p, at, n, __VA_ARGS__)

/* The arrays of a segment from element `at` on. */
#define AX_OPTIM_STATE(T, s, k, at) ((s)->state[k] ? (T *)(s)->state[k] + (at) : NULL)

#endif

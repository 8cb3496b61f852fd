/* dist/reduce.c: the arithmetic of reducing collectives.
 *
 * It lives in the host, not in the CPU plugin: tensors of any device may be reduced over the CPU
 * group, and a rank that only coordinates needs no kernels.  Each loop is compiled for several
 * processor levels; the loader picks one (ifunc).  Elements go through a tile of accumulators that
 * stays in L1, so that the result may replace an input and narrow types are rounded once. */
#include "dist.h"

#include <string.h>

#include "half.h"

/* ThreadSanitizer's runtime is not there yet when a level is chosen. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define LEVELS __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define LEVELS
#endif

#define TILE 1024 /* elements; at most 8 KB of accumulators */

typedef void (*loop)(void *acc, const void *in, size_t n);

/* Integers wrap like PyTorch's: the arithmetic is done unsigned, where that is defined. */
#define SAME(x) (x)
#define ADD_F(a, v) ((a) + (v))
#define MUL_F(a, v) ((a) * (v))
#define ADD_64(a, v) ((int64_t)((uint64_t)(a) + (uint64_t)(v)))
#define MUL_64(a, v) ((int64_t)((uint64_t)(a) * (uint64_t)(v)))
#define ADD_32(a, v) ((int32_t)((uint32_t)(a) + (uint32_t)(v)))
#define MUL_32(a, v) ((int32_t)((uint32_t)(a) * (uint32_t)(v)))
#define ADD_8(a, v) ((uint8_t)((a) + (v)))
#define MUL_8(a, v) ((uint8_t)((a) * (v)))
/* A NaN wins, as in PyTorch's max and min; for integers `v != v` is never true. */
#define LARGER(a, v) ((v) > (a) || (v) != (v) ? (v) : (a))
#define SMALLER(a, v) ((v) < (a) || (v) != (v) ? (v) : (a))

#define FOLD(name, E, A, TO, OP) \
  LEVELS static void name(void *acc, const void *in, size_t n) \
  { \
    A *restrict a = acc; \
    const E *restrict x = in; \
    for (size_t i = 0; i < n; i++) { \
      const A v = TO(x[i]); \
      a[i] = OP(a[i], v); \
    } \
  }
/* E: the stored type; A: the accumulator's type; TO, FROM: conversions between them */
#define LOOPS(T, E, A, TO, FROM, ADD, MUL) \
  LEVELS static void widen_##T(void *acc, const void *in, size_t n) \
  { \
    A *restrict a = acc; \
    const E *restrict x = in; \
    for (size_t i = 0; i < n; i++) a[i] = TO(x[i]); \
  } \
  LEVELS static void narrow_##T(void *out, const void *acc, size_t n) \
  { \
    E *restrict y = out; \
    const A *restrict a = acc; \
    for (size_t i = 0; i < n; i++) y[i] = FROM(a[i]); \
  } \
  FOLD(sum_##T, E, A, TO, ADD) \
  FOLD(prod_##T, E, A, TO, MUL) \
  FOLD(max_##T, E, A, TO, LARGER) \
  FOLD(min_##T, E, A, TO, SMALLER)

LOOPS(f32, float, float, SAME, SAME, ADD_F, MUL_F)
LOOPS(f64, double, double, SAME, SAME, ADD_F, MUL_F)
LOOPS(f16, uint16_t, float, ax_half_to_float, ax_float_to_half, ADD_F, MUL_F)
LOOPS(bf16, uint16_t, float, ax_bf16_to_float, ax_float_to_bf16, ADD_F, MUL_F)
LOOPS(i64, int64_t, int64_t, SAME, SAME, ADD_64, MUL_64)
LOOPS(i32, int32_t, int32_t, SAME, SAME, ADD_32, MUL_32)
LOOPS(u8, uint8_t, uint8_t, SAME, SAME, ADD_8, MUL_8)

typedef struct family {
  ax_dtype accumulator;
  loop widen, narrow, fold[AX_REDUCTIONS];
} family;

#define FAMILY(T, A) \
  { \
    A, widen_##T, narrow_##T, \
    { \
      [AX_SUM] = sum_##T, [AX_MEAN] = sum_##T, [AX_MAX] = max_##T, [AX_MIN] = min_##T, [AX_PROD] = prod_##T \
    } \
  }
static const family families[AX_DTYPE_COUNT] = {
  [AX_F32] = FAMILY(f32, AX_F32),   [AX_F64] = FAMILY(f64, AX_F64), [AX_F16] = FAMILY(f16, AX_F32),
  [AX_BF16] = FAMILY(bf16, AX_F32), [AX_I64] = FAMILY(i64, AX_I64), [AX_I32] = FAMILY(i32, AX_I32),
  [AX_U8] = FAMILY(u8, AX_U8),      [AX_BOOL] = FAMILY(u8, AX_U8),
};

/* acc / ranks.  For a power of two, multiplying by the reciprocal gives the same bits and is
 * faster. */
#define SCALE(name, A) \
  LEVELS static void name(A *restrict a, size_t n, int ranks) \
  { \
    const A whole = (A)ranks, part = (A)1 / whole; \
    if ((ranks & (ranks - 1)) == 0) \
      for (size_t i = 0; i < n; i++) a[i] *= part; \
    else \
      for (size_t i = 0; i < n; i++) a[i] /= whole; \
  }
SCALE(scale_f32, float)
SCALE(scale_f64, double)

/* The common case, two ranks of floats, in one pass. y may be a or b: each element is read before
 * it is written. */
#define PAIR(name, E) \
  LEVELS static void name(E *y, const E *a, const E *b, size_t n, E factor) \
  { \
    _Pragma("GCC ivdep") for (size_t i = 0; i < n; i++) y[i] = (a[i] + b[i]) * factor; \
  }
PAIR(pair_f32, float)
PAIR(pair_f64, double)

ax_dtype ax_dist_accumulator(ax_dtype dtype) { return families[dtype].accumulator; }

/* The largest power of two below n. */
static int half_of(int n)
{
  int half = 1;
  while (half * 2 < n) half *= 2;
  return half;
}

/* Combines a tile of n parts, from byte `at` on: neighbours first, then neighbouring pairs, and so
 * on.  Parts that were combined before, in runs of a power of two, give the same bits. */
static void combine(const family *f, ax_reduction r, char *acc, const void *const *in, int n, size_t at,
                    size_t len)
{
  const int half = half_of(n);
  _Alignas(64) char other[TILE * 8];

  if (n == 1) {
    f->widen(acc, (const char *)in[0] + at, len);
    return;
  }
  combine(f, r, acc, in, half, at, len);
  if (n - half == 1) {
    f->fold[r](acc, (const char *)in[half] + at, len);
    return;
  }
  combine(f, r, other, in + half, n - half, at, len);
  families[f->accumulator].fold[r](acc, other, len);
}

void ax_dist_accumulate(ax_dtype dtype, ax_reduction r, void *acc, const void *const *in, int n, size_t count)
{
  const family *f = &families[dtype];
  const size_t item = ax_dtype_size(dtype), wide = ax_dtype_size(f->accumulator);

  for (size_t at = 0; at < count; at += TILE)
    combine(f, r, (char *)acc + at * wide, in, n, at * item, count - at < TILE ? count - at : TILE);
}

void ax_dist_accumulated(ax_dtype dtype, ax_reduction r, void *out, void *acc, int ranks, size_t count)
{
  if (r == AX_MEAN) {
    if (dtype == AX_F64) scale_f64(acc, count, ranks);
    else scale_f32(acc, count, ranks);
  }
  families[dtype].narrow(out, acc, count);
}

void ax_dist_reduce(ax_dtype dtype, ax_reduction r, void *out, const void *const *in, int n, size_t count)
{
  const family *f = &families[dtype];
  const size_t item = ax_dtype_size(dtype);
  _Alignas(64) char acc[TILE * 8];

  if (n == 2 && dtype == AX_F32 && (r == AX_SUM || r == AX_MEAN)) {
    pair_f32(out, in[0], in[1], count, r == AX_MEAN ? 0.5f : 1.0f);
    return;
  }
  if (n == 2 && dtype == AX_F64 && (r == AX_SUM || r == AX_MEAN)) {
    pair_f64(out, in[0], in[1], count, r == AX_MEAN ? 0.5 : 1.0);
    return;
  }
  for (size_t at = 0; at < count; at += TILE) {
    const size_t len = count - at < TILE ? count - at : TILE;
    combine(f, r, acc, in, n, at * item, len);
    if (r == AX_MEAN) {
      if (dtype == AX_F64) scale_f64((double *)acc, len, n);
      else scale_f32((float *)acc, len, n);
    }
    f->narrow((char *)out + at * item, acc, len);
  }
}

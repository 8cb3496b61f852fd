/* Conversions between element types: loops for iterators, and runs of half types. */
#include "complex.h"

#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

#include "casts.h"
#include "float8.h"
#include "vector.h"

/* ---- half types, in runs */

#define WIDTH ((int64_t)(AX_BYTES / sizeof(float)))

void ax_cpu_half_to_float(ax_dtype d, const char *src, int64_t stride, float *dst, int64_t n)
{
  if (stride == 2 && d == AX_BF16) {
    const uint16_t *p = (const uint16_t *)src;
    AX_SIMD
    for (int64_t i = 0; i < n; i++) dst[i] = ax_bf16_to_float(p[i]);
    return;
  }
  int64_t i = 0;
#ifdef __F16C__
  if (stride == 2)
    for (; i + 8 <= n; i += 8)
      _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(src + 2 * i))));
#endif
  for (; i < n; i++) {
    uint16_t h;
    memcpy(&h, src + i * stride, 2);
    dst[i] = d == AX_BF16 ? ax_bf16_to_float(h) : ax_half_to_float(h);
  }
}

void ax_cpu_float_to_half(ax_dtype d, const float *src, char *dst, int64_t stride, int64_t n)
{
  if (stride == 2 && d == AX_BF16) {
    uint16_t *p = (uint16_t *)dst;
    int64_t i = 0;
#ifdef __AVX2__ /* the compiler's own vectors take half as long again */
    for (; i + WIDTH <= n; i += WIDTH) ax_vec_to_bf16(p + i, *(const ax_vec_f32 *)(src + i));
#endif
    AX_SIMD
    for (int64_t k = i; k < n; k++) p[k] = ax_float_to_bf16(src[k]);
    return;
  }
  int64_t i = 0;
#ifdef __F16C__
  if (stride == 2)
    for (; i + 8 <= n; i += 8)
      _mm_storeu_si128((__m128i *)(dst + 2 * i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < n; i++) {
    const uint16_t h = d == AX_BF16 ? ax_float_to_bf16(src[i]) : ax_float_to_half(src[i]);
    memcpy(dst + i * stride, &h, 2);
  }
}

/* ---- single elements: every type is converted through float, double or int64, whichever holds it
 * exactly */

/* Rows: the source type, its C type, and the loaded value x as float, double, int64, int32 and
 * truth value.  (Of complex numbers there is the truth value alone: the dispatcher refuses to cast
 * them to other real types.) */
#define SOURCES(X) \
  X(f32, float, x, x, ax_to_i64_f(x), ax_to_i32_f(x), x != 0) \
  X(f64, double, (float)x, x, ax_to_i64(x), ax_to_i32(x), x != 0) \
  X(f16, uint16_t, ax_half_to_float(x), ax_half_to_float(x), ax_to_i64_f(ax_half_to_float(x)), \
    ax_to_i32_f(ax_half_to_float(x)), (x & 0x7fff) != 0) \
  X(bf16, uint16_t, ax_bf16_to_float(x), ax_bf16_to_float(x), ax_to_i64_f(ax_bf16_to_float(x)), \
    ax_to_i32_f(ax_bf16_to_float(x)), (x & 0x7fff) != 0) \
  X(e4m3, uint8_t, ax_e4m3_to_float(x), ax_e4m3_to_float(x), ax_to_i64_f(ax_e4m3_to_float(x)), \
    ax_to_i32_f(ax_e4m3_to_float(x)), (x & 0x7f) != 0) \
  X(e5m2, uint8_t, ax_e5m2_to_float(x), ax_e5m2_to_float(x), ax_to_i64_f(ax_e5m2_to_float(x)), \
    ax_to_i32_f(ax_e5m2_to_float(x)), (x & 0x7f) != 0) \
  X(i64, int64_t, (float)x, (double)x, x, (uint32_t)(uint64_t)x, x != 0) \
  X(i32, int32_t, (float)x, x, x, x, x != 0) \
  X(u8, uint8_t, x, x, x, x, x != 0)

#define CAST(from, to, TI, TO, expr) AX_LOOP1(from##_to_##to, TO, TI, expr)
#define ALL_CASTS(from, TI, as_float, as_double, as_i64, as_i32, as_truth) \
  CAST(from, f32, TI, float, as_float) \
  CAST(from, f64, TI, double, as_double) \
  CAST(from, f16, TI, uint16_t, ax_float_to_half(as_float)) \
  CAST(from, bf16, TI, uint16_t, ax_float_to_bf16(as_float)) \
  CAST(from, e4m3, TI, uint8_t, ax_float_to_e4m3(as_float)) \
  CAST(from, e5m2, TI, uint8_t, ax_float_to_e5m2(as_float)) \
  CAST(from, i64, TI, int64_t, as_i64) \
  CAST(from, i32, TI, int32_t, as_i32) \
  CAST(from, u8, TI, uint8_t, as_i64) \
  CAST(from, bool, TI, uint8_t, as_truth) \
  CAST(from, c64, TI, ax_cpu_c64, as_float) \
  CAST(from, c128, TI, ax_cpu_c128, as_double)
SOURCES(ALL_CASTS)

/* Floats to int64: processors before AVX-512 have instructions for int32 alone, which a block of
 * small numbers goes through. */
#define TO_I64(from, T) \
  static void from##_to_i64_blocks(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
    if (stride[0] != sizeof(int64_t) || stride[1] != sizeof(T)) { \
      from##_to_i64(data, stride, n, ctx); \
      return; \
    } \
    for (int64_t lo = 0; lo < n; lo += 1024) { \
      const int64_t count = n - lo < 1024 ? n - lo : 1024; \
      const T *x = (const T *)data[1] + lo; \
      int64_t *out = (int64_t *)data[0] + lo; \
      int large = 0; \
      _Pragma("omp simd reduction(| : large)") for (int64_t i = 0; i < count; i++) large |= \
          !(x[i] > -0x1p31f && x[i] < 0x1p31f); \
      if (large) { \
        from##_to_i64((char *const[2]){ (char *)out, (char *)x }, stride, count, ctx); \
        continue; \
      } \
      AX_SIMD \
      for (int64_t i = 0; i < count; i++) out[i] = (int32_t)x[i]; \
    } \
  }
TO_I64(f32, float)
TO_I64(f64, double)

/* between the complex types, and their truth value */
CAST(c64, wide, ax_cpu_c64, ax_cpu_c128, x)
CAST(c128, narrow, ax_cpu_c128, ax_cpu_c64, x)
CAST(c64, truth, ax_cpu_c64, uint8_t, x != 0)
CAST(c128, truth, ax_cpu_c128, uint8_t, x != 0)

/* Half types and float in runs, with the processor's conversion instructions where it has them. */
#define RUNS(half, D) \
  static void half##_to_f32_runs(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
    if (stride[0] == sizeof(float)) ax_cpu_half_to_float(D, data[1], stride[1], (float *)data[0], n); \
    else half##_to_f32(data, stride, n, ctx); \
  } \
  static void f32_to_##half##_runs(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
    if (stride[1] == sizeof(float)) ax_cpu_float_to_half(D, (const float *)data[1], data[0], stride[0], n); \
    else f32_to_##half(data, stride, n, ctx); \
  }
RUNS(f16, AX_F16)
RUNS(bf16, AX_BF16)

/* Adjacent doubles to half types through blocks of float, as single elements are. */
#define FROM_DOUBLES(half, D) \
  static void f64_to_##half##_runs(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
    float run[512]; \
    if (stride[1] != sizeof(double)) { \
      f64_to_##half(data, stride, n, ctx); \
      return; \
    } \
    for (int64_t lo = 0; lo < n; lo += 512) { \
      const int64_t count = n - lo < 512 ? n - lo : 512; \
      f64_to_f32((char *const[2]){ (char *)run, data[1] + lo * stride[1] }, \
                 (const int64_t[2]){ sizeof(float), stride[1] }, count, ctx); \
      ax_cpu_float_to_half(D, run, data[0] + lo * stride[0], stride[0], count); \
    } \
  }
FROM_DOUBLES(f16, AX_F16)
FROM_DOUBLES(bf16, AX_BF16)

#define ROW(from) \
  { \
    [AX_F32] = from##_to_f32, [AX_F64] = from##_to_f64, [AX_F16] = from##_to_f16, \
    [AX_BF16] = from##_to_bf16, [AX_I64] = from##_to_i64, [AX_I32] = from##_to_i32, [AX_U8] = from##_to_u8, \
    [AX_BOOL] = from##_to_bool, [AX_C64] = from##_to_c64, [AX_C128] = from##_to_c128, \
    [AX_E4M3] = from##_to_e4m3, [AX_E5M2] = from##_to_e5m2 \
  }
const ax_loop ax_cpu_casts[AX_DTYPE_COUNT][AX_DTYPE_COUNT] = {
  [AX_F32] = { [AX_F32] = f32_to_f32,
               [AX_F64] = f32_to_f64,
               [AX_F16] = f32_to_f16_runs,
               [AX_BF16] = f32_to_bf16_runs,
               [AX_I64] = f32_to_i64_blocks,
               [AX_I32] = f32_to_i32,
               [AX_U8] = f32_to_u8,
               [AX_BOOL] = f32_to_bool,
               [AX_C64] = f32_to_c64,
               [AX_C128] = f32_to_c128,
               [AX_E4M3] = f32_to_e4m3,
               [AX_E5M2] = f32_to_e5m2 },
  [AX_F64] = { [AX_F32] = f64_to_f32,
               [AX_F64] = f64_to_f64,
               [AX_F16] = f64_to_f16_runs,
               [AX_BF16] = f64_to_bf16_runs,
               [AX_I64] = f64_to_i64_blocks,
               [AX_I32] = f64_to_i32,
               [AX_U8] = f64_to_u8,
               [AX_BOOL] = f64_to_bool,
               [AX_C64] = f64_to_c64,
               [AX_C128] = f64_to_c128,
               [AX_E4M3] = f64_to_e4m3,
               [AX_E5M2] = f64_to_e5m2 },
  [AX_F16] = { [AX_F32] = f16_to_f32_runs,
               [AX_F64] = f16_to_f64,
               [AX_F16] = f16_to_f16,
               [AX_BF16] = f16_to_bf16,
               [AX_I64] = f16_to_i64,
               [AX_I32] = f16_to_i32,
               [AX_U8] = f16_to_u8,
               [AX_BOOL] = f16_to_bool,
               [AX_C64] = f16_to_c64,
               [AX_C128] = f16_to_c128,
               [AX_E4M3] = f16_to_e4m3,
               [AX_E5M2] = f16_to_e5m2 },
  [AX_BF16] = { [AX_F32] = bf16_to_f32_runs,
                [AX_F64] = bf16_to_f64,
                [AX_F16] = bf16_to_f16,
                [AX_BF16] = bf16_to_bf16,
                [AX_I64] = bf16_to_i64,
                [AX_I32] = bf16_to_i32,
                [AX_U8] = bf16_to_u8,
                [AX_BOOL] = bf16_to_bool,
                [AX_C64] = bf16_to_c64,
                [AX_C128] = bf16_to_c128,
                [AX_E4M3] = bf16_to_e4m3,
                [AX_E5M2] = bf16_to_e5m2 },
  [AX_I64] = ROW(i64),
  [AX_I32] = ROW(i32),
  [AX_U8] = ROW(u8),
  [AX_BOOL] = ROW(u8), /* a bool is an integer of 0 or 1 */
  [AX_E4M3] = ROW(e4m3),
  [AX_E5M2] = ROW(e5m2),
  [AX_C64] = { [AX_C128] = c64_to_wide, [AX_BOOL] = c64_to_truth },
  [AX_C128] = { [AX_C64] = c128_to_narrow, [AX_BOOL] = c128_to_truth },
};

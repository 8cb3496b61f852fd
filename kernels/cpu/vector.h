/* Vectors as wide as the processor level has them, for kernels whose loops the compiler does not
 * vectorise well. */
#ifndef AX_CPU_VECTOR_H
#define AX_CPU_VECTOR_H

#include "half.h"

#include <stdbool.h>

#if defined(__AVX512F__)
#define AX_BYTES 64
#elif defined(__AVX__)
#define AX_BYTES 32
#else
#define AX_BYTES 16
#endif

typedef float ax_vec_f32 __attribute__((vector_size(AX_BYTES), aligned(4), may_alias));
typedef double ax_vec_f64 __attribute__((vector_size(AX_BYTES), aligned(8), may_alias));

#ifdef __x86_64__
#include <immintrin.h>
#endif

/* a b + c, fused where the processor has an instruction for it; the compiler is not allowed to
 * contract by itself. */
#if defined(__AVX512F__)
#define AX_VFMA_f32(a, b, c) ((ax_vec_f32)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define AX_VFMA_f64(a, b, c) ((ax_vec_f64)_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c)))
#elif defined(__FMA__)
#define AX_VFMA_f32(a, b, c) ((ax_vec_f32)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define AX_VFMA_f64(a, b, c) ((ax_vec_f64)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#else
#define AX_VFMA_f32(a, b, c) ((a) * (b) + (c))
#define AX_VFMA_f64(a, b, c) ((a) * (b) + (c))
#endif

/* Loads and stores as many bfloat16s as a vector has floats (a store rounds as ax_float_to_bf16
 * does); loads as many float16s. */
typedef uint32_t ax_vec_bits __attribute__((vector_size(AX_BYTES)));
static inline __attribute__((always_inline)) ax_vec_f32 ax_vec_from_bf16(const void *p)
{
#if defined(__AVX512F__)
  return (ax_vec_f32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
#elif defined(__AVX2__)
  return (ax_vec_f32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#else
  ax_vec_f32 v;
  for (int i = 0; i < AX_BYTES / 4; i++) v[i] = ax_bf16_to_float(((const uint16_t *)p)[i]);
  return v;
#endif
}
static inline __attribute__((always_inline)) ax_vec_f32 ax_vec_from_f16(const void *p)
{
#if defined(__AVX512F__)
  return (ax_vec_f32)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__F16C__)
  return (ax_vec_f32)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#else
  ax_vec_f32 v;
  for (int i = 0; i < AX_BYTES / 4; i++) v[i] = ax_half_to_float(((const uint16_t *)p)[i]);
  return v;
#endif
}
static inline __attribute__((always_inline)) void ax_vec_to_bf16(void *p, ax_vec_f32 v)
{
#if defined(__AVX512F__)
  const __m512i u = (__m512i)v, one = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), one);
  const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(
                                        _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16)));
#elif defined(__AVX2__)
  const __m256i u = (__m256i)v, one = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), one);
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps((__m256)v, (__m256)v, _CMP_UNORD_Q);
  const __m256i both = _mm256_srli_epi32((__m256i)_mm256_blendv_ps((__m256)rounded, (__m256)quiet, nan), 16);
  _mm_storeu_si128((__m128i *)p,
                   _mm_packus_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1)));
#else
  for (int i = 0; i < AX_BYTES / 4; i++) ((uint16_t *)p)[i] = ax_float_to_bf16(v[i]);
#endif
}

/* As many floats as a vector has doubles, as doubles. */
static inline __attribute__((always_inline)) ax_vec_f64 ax_vec_widen(const float *p)
{
#if defined(__AVX512F__)
  return (ax_vec_f64)_mm512_cvtps_pd(_mm256_loadu_ps(p));
#elif defined(__AVX__)
  return (ax_vec_f64)_mm256_cvtps_pd(_mm_loadu_ps(p));
#else
  return (ax_vec_f64){ p[0], p[1] };
#endif
}

/* a > b ? a : b, so the result is b where one is NaN. */
static inline __attribute__((always_inline)) ax_vec_f32 ax_vec_max(ax_vec_f32 a, ax_vec_f32 b)
{
#if defined(__AVX512F__)
  return (ax_vec_f32)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
  return (ax_vec_f32)_mm256_max_ps((__m256)a, (__m256)b);
#else
  const ax_vec_bits more = (ax_vec_bits)(a > b);
  return (ax_vec_f32)(((ax_vec_bits)a & more) | ((ax_vec_bits)b & ~more));
#endif
}

/* a < b ? a : b */
static inline __attribute__((always_inline)) ax_vec_f32 ax_vec_min(ax_vec_f32 a, ax_vec_f32 b)
{
#if defined(__AVX512F__)
  return (ax_vec_f32)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
  return (ax_vec_f32)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return -ax_vec_max(-a, -b);
#endif
}

/* 2^x as ax_exp2_part: for x up to AX_VEC_EXP2_TOP, exactly 0 below -126.  (AVX-512 scales up to
 * infinity.) */
#if defined(__AVX512F__)
#define AX_VEC_EXP2_TOP 200.0f
#else
#define AX_VEC_EXP2_TOP 127.0f
#endif
static inline __attribute__((always_inline)) ax_vec_f32 ax_vec_exp2(ax_vec_f32 x)
{
  const ax_vec_f32 zero = { 0 };
#if defined(__AVX512F__)
  const __m512 n = _mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const ax_vec_f32 f = x - (ax_vec_f32)n;
  ax_vec_f32 p = AX_VFMA_f32(zero + 1.326472205e-3f, f, zero + 9.671512997e-3f);
  p = AX_VFMA_f32(p, f, zero + 5.550733760e-2f);
  p = AX_VFMA_f32(p, f, zero + 2.402224208e-1f);
  p = AX_VFMA_f32(p, f, zero + 6.931469776e-1f);
  p = AX_VFMA_f32(p, f, zero + 1.0f);
  return (
      ax_vec_f32)_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ),
                                        (__m512)p, n);
#else
  const ax_vec_f32 t = x + 12582912.0f, f = x - (t - 12582912.0f), s = f * f;
  ax_vec_f32 p = AX_VFMA_f32(AX_VFMA_f32(zero + 1.326472205e-3f, f, zero + 9.671512997e-3f), s,
                             AX_VFMA_f32(zero + 5.550733760e-2f, f, zero + 2.402224208e-1f));
  p = AX_VFMA_f32(p, s, AX_VFMA_f32(zero + 6.931469776e-1f, f, zero + 1.0f));
  return (ax_vec_f32)(((ax_vec_bits)p + ((ax_vec_bits)t << 23)) & ~(ax_vec_bits)(x < -126.0f));
#endif
}

/* The sum of all lanes: halves are added until one is left. */
static inline __attribute__((always_inline)) float ax_vec_sum(ax_vec_f32 v)
{
#ifdef __SSE2__
#if defined(__AVX512F__)
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
  const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
#elif defined(__AVX__)
  const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
#else
  const __m128 quarter = (__m128)v;
#endif
  const __m128 two = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
  return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}
static inline float ax_vec_largest(ax_vec_f32 v)
{
  enum { LANES = AX_BYTES / 4 };
  float lane[LANES], top = -__builtin_inff();
  *(ax_vec_f32 *)lane = v;
  _Pragma("omp simd reduction(max:top)") for (int j = 0; j < LANES; j++) top = lane[j] > top ? lane[j] : top;
  return top;
}

/* Stores past the caches when `stream`; p must then be a multiple of AX_BYTES. */
static inline __attribute__((always_inline)) void ax_vec_put(float *p, ax_vec_f32 v, bool stream)
{
#if defined(__AVX512F__)
  if (stream) _mm512_stream_ps(p, (__m512)v);
#elif defined(__AVX__)
  if (stream) _mm256_stream_ps(p, (__m256)v);
#elif defined(__SSE2__)
  if (stream) _mm_stream_ps(p, (__m128)v);
#else
  if (stream) *(ax_vec_f32 *)p = v;
#endif
  else *(ax_vec_f32 *)p = v;
}

/* Before a loop with few steps, so that its arrays become registers. */
#define AX_UNROLL _Pragma("GCC unroll 8")

#endif

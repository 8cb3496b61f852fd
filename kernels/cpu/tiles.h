/* tiles.h: small blocks of a matrix, turned over in registers.
 *
 * ax_turn_N(src, step, dst, across): dst[i][j] = src[j][i] for BLOCK_N x BLOCK_N elements of N
 * bytes; rows of src are `step` bytes apart, those of dst `across`.  Where a processor level lacks
 * the instructions, BLOCK_N is 1. */
#ifndef AX_TILES_H
#define AX_TILES_H

#include "cpu.h"

#ifdef __SSE2__
enum { AX_BLOCK_2 = 8 };

static inline void ax_turn_2(const char *src, int64_t step, char *dst, int64_t across)
{
  __m128i a[8], b[8];
  for (int i = 0; i < 8; i++) a[i] = _mm_loadu_si128((const __m128i *)(src + i * step));
  for (int i = 0; i < 4; i++) {
    b[2 * i] = _mm_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
  }
  for (int h = 0; h < 2; h++)
    for (int i = 0; i < 2; i++) {
      a[4 * h + 2 * i] = _mm_unpacklo_epi32(b[4 * h + i], b[4 * h + i + 2]);
      a[4 * h + 2 * i + 1] = _mm_unpackhi_epi32(b[4 * h + i], b[4 * h + i + 2]);
    }
  for (int i = 0; i < 4; i++) {
    b[2 * i] = _mm_unpacklo_epi64(a[i], a[i + 4]);
    b[2 * i + 1] = _mm_unpackhi_epi64(a[i], a[i + 4]);
  }
  for (int i = 0; i < 8; i++) _mm_storeu_si128((__m128i *)(dst + i * across), b[i]);
}
#else
enum { AX_BLOCK_2 = 1 };
static inline void ax_turn_2(const char *src, int64_t step, char *dst, int64_t across)
{
  (void)step, (void)across;
  memcpy(dst, src, 2);
}
#endif

#ifdef __AVX2__
enum { AX_BLOCK_4 = 8, AX_BLOCK_8 = 4 };

/* Bits pass through shuffles of floats as they are. */
static inline void ax_turn_4(const char *src, int64_t step, char *dst, int64_t across)
{
  __m256 a[8], b[8];
  for (int i = 0; i < 8; i++) a[i] = _mm256_loadu_ps((const float *)(src + i * step));
  for (int i = 0; i < 4; i++) {
    b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
  }
  for (int h = 0; h < 8; h += 4)
    for (int i = 0; i < 2; i++) {
      a[h + 2 * i] = _mm256_shuffle_ps(b[h + i], b[h + i + 2], 0x44);
      a[h + 2 * i + 1] = _mm256_shuffle_ps(b[h + i], b[h + i + 2], 0xee);
    }
  for (int i = 0; i < 4; i++) {
    b[i] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
    b[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
  }
  for (int i = 0; i < 8; i++) _mm256_storeu_ps((float *)(dst + i * across), b[i]);
}

static inline void ax_turn_8(const char *src, int64_t step, char *dst, int64_t across)
{
  __m256d a[4], b[4];
  for (int i = 0; i < 4; i++) a[i] = _mm256_loadu_pd((const double *)(src + i * step));
  for (int i = 0; i < 2; i++) {
    b[2 * i] = _mm256_unpacklo_pd(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm256_unpackhi_pd(a[2 * i], a[2 * i + 1]);
  }
  for (int i = 0; i < 2; i++) {
    a[i] = _mm256_permute2f128_pd(b[i], b[i + 2], 0x20);
    a[i + 2] = _mm256_permute2f128_pd(b[i], b[i + 2], 0x31);
  }
  for (int i = 0; i < 4; i++) _mm256_storeu_pd((double *)(dst + i * across), a[i]);
}
#elif defined __SSE2__
enum { AX_BLOCK_4 = 4, AX_BLOCK_8 = 2 };

static inline void ax_turn_4(const char *src, int64_t step, char *dst, int64_t across)
{
  __m128 a[4];
  for (int i = 0; i < 4; i++) a[i] = _mm_loadu_ps((const float *)(src + i * step));
  _MM_TRANSPOSE4_PS(a[0], a[1], a[2], a[3]);
  for (int i = 0; i < 4; i++) _mm_storeu_ps((float *)(dst + i * across), a[i]);
}

static inline void ax_turn_8(const char *src, int64_t step, char *dst, int64_t across)
{
  const __m128d a = _mm_loadu_pd((const double *)src), b = _mm_loadu_pd((const double *)(src + step));
  _mm_storeu_pd((double *)dst, _mm_unpacklo_pd(a, b));
  _mm_storeu_pd((double *)(dst + across), _mm_unpackhi_pd(a, b));
}
#else
enum { AX_BLOCK_4 = 1, AX_BLOCK_8 = 1 };
static inline void ax_turn_4(const char *src, int64_t step, char *dst, int64_t across)
{
  (void)step, (void)across;
  memcpy(dst, src, 4);
}
static inline void ax_turn_8(const char *src, int64_t step, char *dst, int64_t across)
{
  (void)step, (void)across;
  memcpy(dst, src, 8);
}
#endif

#endif

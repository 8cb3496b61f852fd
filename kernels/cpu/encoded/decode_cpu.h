/* kernels/decode.h with vectors: 16 numbers are looked up at a time, in registers. */
#ifndef AX_DECODE_CPU_H
#define AX_DECODE_CPU_H

#include "cpu/cpu.h"
#include "cpu/vector.h"

/* out[i] = t[codes[i]] for 16 bytes below 16 */
#ifdef __SSE2__
static inline __attribute__((always_inline)) void look_up_16(const float t[16], __m128i codes, float *out)
{
#if defined(__AVX512F__)
  _mm512_storeu_ps(out, _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes), _mm512_loadu_ps(t)));
#elif defined(__AVX2__)
  const __m256 low = _mm256_loadu_ps(t), high = _mm256_loadu_ps(t + 8);
  for (int k = 0; k < 2; k++) {
    const __m256i at = _mm256_cvtepu8_epi32(k ? _mm_srli_si128(codes, 8) : codes);
    _mm256_storeu_ps(out + 8 * k,
                     _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, at), _mm256_permutevar8x32_ps(high, at),
                                      (__m256)_mm256_slli_epi32(at, 28)));
  }
#else
  uint8_t at[16];
  _mm_storeu_si128((__m128i *)at, codes);
  for (int i = 0; i < 16; i++) out[i] = t[at[i]];
#endif
}

#define AX_LOOK_UP
static inline __attribute__((always_inline)) void ax_look_up_nibbles(const float t[16], const uint8_t *p,
                                                                     bool pairs, bool high_first, float *out)
{
  const __m128i bytes = _mm_loadu_si128((const __m128i *)p), four = _mm_set1_epi8(15);
  const __m128i low = _mm_and_si128(bytes, four), high = _mm_and_si128(_mm_srli_epi16(bytes, 4), four);
  const __m128i first = high_first ? high : low, second = high_first ? low : high;
  look_up_16(t, pairs ? _mm_unpacklo_epi8(first, second) : low, out);
  look_up_16(t, pairs ? _mm_unpackhi_epi8(first, second) : high, out + 16);
}

static inline __attribute__((always_inline)) void ax_look_up_half(const float t[16], const uint8_t *p,
                                                                  int shift, float *out)
{
  const __m128i four = _mm_set1_epi8(15);
  for (int k = 0; k < 2; k++) {
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(p + 16 * k));
    look_up_16(t, _mm_and_si128(shift ? _mm_srli_epi16(bytes, 4) : bytes, four), out + 16 * k);
  }
}
#endif

#include "decode.h"

/* n values of row `row` from column `col`, a multiple of 32, on; `out` has room for whole groups of
 * 32.  The encodings whose products are worth it have loops of their own. */
void ax_cpu_decode_run(const ax_encoded *e, int64_t row, int64_t col, int64_t n, float *out);

#endif

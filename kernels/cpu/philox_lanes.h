/* Philox blocks, a vector at a time.  A compiler turns the products of 32-bit words into slow
 * 64-bit products; processors have an instruction that multiplies every other 32-bit lane, and two
 * of these with some shifts do a round for all lanes. */
#ifndef AX_CPU_PHILOX_LANES_H
#define AX_CPU_PHILOX_LANES_H

#include "philox.h"

#ifdef __x86_64__
#include <immintrin.h>

#if defined(__AVX512F__)
#define W(name) _mm512_##name
#define ODD(odd, even) _mm512_mask_blend_epi32(0xaaaa, even, odd)
#define XOR W(xor_si512)
#define LOAD(p) _mm512_loadu_si512(p)
#define STORE(p, v) _mm512_storeu_si512(p, v)
typedef __m512i ax_words;
#elif defined(__AVX2__)
#define W(name) _mm256_##name
#define ODD(odd, even) _mm256_blend_epi32(even, odd, 0xaa)
#define XOR W(xor_si256)
#define LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define STORE(p, v) _mm256_storeu_si256((__m256i *)(p), v)
typedef __m256i ax_words;
#else
#define W(name) _mm_##name
#define ODD(odd, even) _mm_blend_epi16(even, odd, 0xcc)
#define XOR W(xor_si128)
#define LOAD(p) _mm_loadu_si128((const __m128i *)(p))
#define STORE(p, v) _mm_storeu_si128((__m128i *)(p), v)
typedef __m128i ax_words;
#endif

AX_FN void ax_philox_product(ax_words x, ax_words m, ax_words *hi, ax_words *lo)
{
  const ax_words even = W(mul_epu32)(x, m), odd = W(mul_epu32)(W(srli_epi64)(x, 32), m);
  *hi = ODD(odd, W(srli_epi64)(even, 32));
  *lo = ODD(W(slli_epi64)(odd, 32), even);
}

/* Computes n blocks, a multiple of 16.  Block i has the key and draw of `p`, and the counter words
 * low[i] and high[i]; its word r goes to wr[i]. */
static inline void ax_philox_lanes(ax_philox p, int n, const uint32_t *low, const uint32_t *high,
                                   uint32_t *w0, uint32_t *w1, uint32_t *w2, uint32_t *w3)
{
  const ax_words m0 = W(set1_epi32)((int)0xD2511F53u), m1 = W(set1_epi32)((int)0xCD9E8D57u);
  for (int i = 0; i < n; i += (int)(sizeof(ax_words) / 4)) {
    ax_words c0 = LOAD(low + i), c1 = LOAD(high + i), c2 = W(set1_epi32)((int)p.counter[2]),
             c3 = W(set1_epi32)((int)p.counter[3]);
    uint32_t k0 = p.key[0], k1 = p.key[1];
    for (int round = 0; round < 10; round++) {
      ax_words ah, al, bh, bl;
      ax_philox_product(c0, m0, &ah, &al);
      ax_philox_product(c2, m1, &bh, &bl);
      c0 = XOR(XOR(bh, c1), W(set1_epi32)((int)k0));
      c1 = bl;
      c2 = XOR(XOR(ah, c3), W(set1_epi32)((int)k1));
      c3 = al;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    STORE(w0 + i, c0);
    STORE(w1 + i, c1);
    STORE(w2 + i, c2);
    STORE(w3 + i, c3);
  }
}

#undef W
#undef ODD
#undef XOR
#undef LOAD
#undef STORE

#else

static inline void ax_philox_lanes(ax_philox p, int n, const uint32_t *low, const uint32_t *high,
                                   uint32_t *w0, uint32_t *w1, uint32_t *w2, uint32_t *w3)
{
  for (int i = 0; i < n; i++) {
    uint32_t four[4];
    p.counter[0] = low[i];
    p.counter[1] = high[i];
    ax_philox_run(p, four);
    w0[i] = four[0];
    w1[i] = four[1];
    w2[i] = four[2];
    w3[i] = four[3];
  }
}

#endif
#endif

/* crc.c: CRC-32C and CRC-32 at about the speed of memory.
 *
 * x86 has an instruction for CRC-32C: eight bytes a step.  CRC-32 has another polynomial; there 64
 * bytes a step are folded with carry-less multiplications, as V. Gopal et al. describe in "Fast CRC
 * Computation for Generic Polynomials Using PCLMULQDQ" (2009).  Elsewhere tables take one byte a
 * step. */
#include "core/io/crc.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <zlib.h>

#define POLYNOMIAL 0x82f63b78u /* CRC-32C's, reflected */

/* ---- joining: a checksum is the bytes' polynomial modulo another one, so bytes behind it multiply
 * it by a power of x */

/* a * b, reflected: the highest bit is the coefficient of 1. */
static uint32_t product(uint32_t a, uint32_t b)
{
  uint32_t p = 0;
  for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
    if (a & bit) p ^= b;
    b = b & 1 ? b >> 1 ^ POLYNOMIAL : b >> 1;
  }
  return p;
}

/* Times x^(8 * n). */
static uint32_t moved(uint32_t crc, uint64_t n)
{
  uint32_t byte = 1u << 23; /* x^8 */

  for (; n; n >>= 1, byte = product(byte, byte))
    if (n & 1) crc = product(byte, crc);
  return crc;
}

uint32_t ax_crc32c_join(uint32_t first, uint32_t second, uint64_t n) { return moved(first, n) ^ second; }

/* ---- over bytes */

static uint32_t table[256];

static void fill_table(void)
{
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t c = i;
    for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ POLYNOMIAL : c >> 1;
    table[i] = c;
  }
}

static uint32_t by_table(uint32_t crc, const unsigned char *p, size_t n)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;

  pthread_once(&once, fill_table);
  while (n--) crc = table[(crc ^ *p++) & 255] ^ crc >> 8;
  return crc;
}

static uint32_t plain_crc32(uint32_t crc, const unsigned char *p, size_t n)
{
  for (; n > 1 << 30; n -= 1 << 30, p += 1 << 30) crc = (uint32_t)crc32(crc, p, 1 << 30);
  return (uint32_t)crc32(crc, p, (unsigned)n);
}

#if defined __x86_64__
#include <immintrin.h>

/* The instruction takes three cycles and can begin in each: three runs of bytes at a time.  Long
 * runs read memory faster, because the processor fetches ahead along each; short ones are for the
 * rest. */
enum { LONG_RUN = 1 << 17, SHORT_RUN = 1 << 10 };
static uint32_t behind_long, behind_short; /* x^(8 * run) */
static void set_behind_runs(void)
{
  behind_long = moved(1u << 31, LONG_RUN);
  behind_short = moved(1u << 31, SHORT_RUN);
}

__attribute__((target("sse4.2"))) static inline uint32_t three_runs(uint32_t crc, const unsigned char *p,
                                                                    int run, uint32_t behind_run)
{
  uint64_t a = crc, b = 0, c = 0, word[3];

  for (int i = 0; i < run; i += 8) {
    memcpy(&word[0], p + i, 8);
    memcpy(&word[1], p + run + i, 8);
    memcpy(&word[2], p + 2 * run + i, 8);
    a = __builtin_ia32_crc32di(a, word[0]);
    b = __builtin_ia32_crc32di(b, word[1]);
    c = __builtin_ia32_crc32di(c, word[2]);
  }
  return product(behind_run, product(behind_run, (uint32_t)a) ^ (uint32_t)b) ^ (uint32_t)c;
}

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const unsigned char *p,
                                                                 size_t n)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  uint64_t c = crc, word;

  pthread_once(&once, set_behind_runs);
  for (; n >= 3 * LONG_RUN; n -= 3 * LONG_RUN, p += 3 * LONG_RUN)
    c = three_runs((uint32_t)c, p, LONG_RUN, behind_long);
  for (; n >= 3 * SHORT_RUN; n -= 3 * SHORT_RUN, p += 3 * SHORT_RUN)
    c = three_runs((uint32_t)c, p, SHORT_RUN, behind_short);
  for (; n >= sizeof word; n -= sizeof word, p += sizeof word) {
    memcpy(&word, p, sizeof word);
    c = __builtin_ia32_crc32di(c, word);
  }
  while (n--) c = __builtin_ia32_crc32qi((uint32_t)c, *p++);
  return (uint32_t)c;
}

/* x, moved on by the distance that k is for, plus the bytes that are there. */
#define FOLD(x, k, bytes) \
  _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)), bytes)
#define LOAD(p) _mm_loadu_si128((const __m128i *)(p))

/* n: at least 64.  The constants are x^(d + 32) and x^(d - 32) modulo the polynomial, reflected,
 * for distances d of 512 and 128 bits.  to: where the bytes are written, past the caches, a
 * multiple of 16; NULL: nowhere. */
__attribute__((target("pclmul,sse4.1"), always_inline)) static inline uint32_t folded(uint32_t crc,
                                                                                      const unsigned char *p,
                                                                                      size_t n,
                                                                                      unsigned char *to)
{
  const __m128i by_64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
  const __m128i by_16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
  __m128i x[4];
  unsigned char rest[16];

  for (int i = 0; i < 4; i++) x[i] = LOAD(p + 16 * i);
  for (int i = 0; to && i < 4; i++) _mm_stream_si128((__m128i *)(to + 16 * i), x[i]);
  x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)~crc));
  for (n -= 64, p += 64; n >= 64; n -= 64, p += 64) {
    if (to) to += 64;
    for (int i = 0; i < 4; i++) {
      const __m128i bytes = LOAD(p + 16 * i);
      x[i] = FOLD(x[i], by_64, bytes);
      if (to) _mm_stream_si128((__m128i *)(to + 16 * i), bytes);
    }
  }
  if (to) {
    memcpy(to + 64, p, n);
    _mm_sfence();
  }
  for (int i = 1; i < 4; i++) x[0] = FOLD(x[0], by_16, x[i]);
  for (; n >= 16; n -= 16, p += 16) x[0] = FOLD(x[0], by_16, LOAD(p));
  _mm_storeu_si128((__m128i *)rest, x[0]);
  crc = (uint32_t)crc32(~0u, rest, sizeof rest); /* ~0: from an empty register */
  return plain_crc32(crc, p, n);
}

__attribute__((target("pclmul,sse4.1"))) static uint32_t by_folding(uint32_t crc, const unsigned char *p,
                                                                    size_t n)
{
  return folded(crc, p, n, NULL);
}

__attribute__((target("pclmul,sse4.1"))) static uint32_t streamed(const unsigned char *p, size_t n,
                                                                  unsigned char *to)
{
  return folded(0, p, n, to);
}

static bool has_crc32c(void) { return __builtin_cpu_supports("sse4.2"); }
static bool has_folding(void) { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }
#else
#define by_instruction by_table
#define by_folding plain_crc32
#define streamed(p, n, to) 0
static bool has_crc32c(void) { return false; }
static bool has_folding(void) { return false; }
#endif

uint32_t ax_crc32c(uint32_t crc, const void *p, size_t n)
{
  return ~(has_crc32c() ? by_instruction(~crc, p, n) : by_table(~crc, p, n));
}

uint32_t ax_crc32(uint32_t crc, const void *p, size_t n)
{
  return n >= 64 && has_folding() ? by_folding(crc, p, n) : plain_crc32(crc, p, n);
}

/* Bytes from which a copy is larger than the caches that hold it for its reader. */
#define STREAMED ((size_t)1 << 20)

uint32_t ax_crc32_copy(void *to, const void *from, size_t n)
{
  if (n >= STREAMED && (uintptr_t)to % 16 == 0 && has_folding()) return streamed(from, n, to);
  if (n) memcpy(to, from, n);
  return ax_crc32(0, to, n);
}

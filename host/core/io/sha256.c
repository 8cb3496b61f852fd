/* sha256.c: SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104) over bytes that come in pieces. */
#include "sha256.h"

#include <string.h>

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes (4.2.2). */
static const uint32_t constants[64] = {
  0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
  0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
  0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
  0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
  0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
  0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
  0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
  0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t ror(uint32_t x, int n) { return x >> n | x << (32 - n); }

static uint32_t read_be32(const unsigned char *p)
{
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void write_be32(unsigned char *p, uint32_t v)
{
  for (int i = 0; i < 4; i++) p[i] = (unsigned char)(v >> (24 - 8 * i));
}

/* The message schedule of a block (6.2.2, step 1). */
static void schedule(uint32_t w[64], const unsigned char *p)
{
  for (int i = 0; i < 16; i++) w[i] = read_be32(p + 4 * i);
  for (int i = 16; i < 64; i++) {
    const uint32_t x = w[i - 15], y = w[i - 2];
    const uint32_t s0 = ror(x, 7) ^ ror(x, 18) ^ x >> 3, s1 = ror(y, 17) ^ ror(y, 19) ^ y >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
}

/* v: the eight working variables a to h (6.2.2, steps 2 to 4). */
static void compress(uint32_t state[8], const unsigned char *p)
{
  uint32_t w[64], v[8];

  schedule(w, p);
  memcpy(v, state, sizeof v);
  for (int i = 0; i < 64; i++) {
    const uint32_t s1 = ror(v[4], 6) ^ ror(v[4], 11) ^ ror(v[4], 25);
    const uint32_t s0 = ror(v[0], 2) ^ ror(v[0], 13) ^ ror(v[0], 22);
    const uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
    const uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
    const uint32_t t = v[7] + s1 + choice + constants[i] + w[i];
    memmove(v + 1, v, 7 * sizeof *v);
    v[4] += t;
    v[0] = t + s0 + majority;
  }
  for (int i = 0; i < 8; i++) state[i] += v[i];
}

void ax_sha256_begin(ax_sha256 *h)
{
  static const uint32_t start[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
  memcpy(h->state, start, sizeof start);
  h->bytes = 0;
}

void ax_sha256_add(ax_sha256 *h, const void *p, size_t n)
{
  const unsigned char *at = p;
  const size_t held = h->bytes % AX_SHA256_BLOCK;
  const size_t missing = AX_SHA256_BLOCK - held;

  if (n == 0) return;
  h->bytes += n;
  if (held && n >= missing) {
    memcpy(h->block + held, at, missing);
    compress(h->state, h->block);
    at += missing, n -= missing;
  } else if (held) {
    memcpy(h->block + held, at, n);
    return;
  }
  for (; n >= AX_SHA256_BLOCK; at += AX_SHA256_BLOCK, n -= AX_SHA256_BLOCK) compress(h->state, at);
  memcpy(h->block, at, n);
}

/* Pads with a 1 bit, zeros and the length in bits (5.1.1). */
void ax_sha256_end(ax_sha256 *h, unsigned char out[AX_SHA256_BYTES])
{
  static const unsigned char padding[AX_SHA256_BLOCK] = { 0x80 };
  const uint64_t bits = h->bytes * 8;
  const size_t held = h->bytes % AX_SHA256_BLOCK;
  unsigned char length[8];

  write_be32(length, (uint32_t)(bits >> 32));
  write_be32(length + 4, (uint32_t)bits);
  ax_sha256_add(h, padding, held < 56 ? 56 - held : 120 - held);
  ax_sha256_add(h, length, sizeof length);
  for (int i = 0; i < 8; i++) write_be32(out + 4 * i, h->state[i]);
}

void ax_hmac_sha256_begin(ax_hmac_sha256 *h, const void *key, size_t n)
{
  unsigned char block[AX_SHA256_BLOCK] = { 0 };

  if (n > sizeof block) { /* a long key counts as its digest */
    ax_sha256_begin(&h->inner);
    ax_sha256_add(&h->inner, key, n);
    ax_sha256_end(&h->inner, block);
  } else if (n) {
    memcpy(block, key, n);
  }
  for (size_t i = 0; i < sizeof block; i++) block[i] ^= 0x36;
  ax_sha256_begin(&h->inner);
  ax_sha256_add(&h->inner, block, sizeof block);
  for (size_t i = 0; i < sizeof block; i++) block[i] ^= 0x36 ^ 0x5c;
  ax_sha256_begin(&h->outer);
  ax_sha256_add(&h->outer, block, sizeof block);
}

void ax_hmac_sha256_add(ax_hmac_sha256 *h, const void *p, size_t n) { ax_sha256_add(&h->inner, p, n); }

void ax_hmac_sha256_end(ax_hmac_sha256 *h, unsigned char out[AX_SHA256_BYTES])
{
  unsigned char inner[AX_SHA256_BYTES];

  ax_sha256_end(&h->inner, inner);
  ax_sha256_add(&h->outer, inner, sizeof inner);
  ax_sha256_end(&h->outer, out);
}

bool ax_same_bytes(const void *a, const void *b, size_t n)
{
  const volatile unsigned char *x = a, *y = b;
  unsigned char differ = 0;

  for (size_t i = 0; i < n; i++) differ |= x[i] ^ y[i];
  return differ == 0;
}

/* sha256.h: digests of bytes (SHA-256, FIPS 180-4) and codes that prove who wrote them
 * (HMAC-SHA-256, RFC 2104). */
#ifndef AX_SHA256_H
#define AX_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ax.h"

enum { AX_SHA256_BYTES = 32, AX_SHA256_BLOCK = 64 };

/* A digest under way: bytes may come in pieces. */
typedef struct ax_sha256 {
  uint32_t state[8];
  uint64_t bytes; /* so far */
  unsigned char block[AX_SHA256_BLOCK];
} ax_sha256;
AX_API void ax_sha256_begin(ax_sha256 *h);
AX_API void ax_sha256_add(ax_sha256 *h, const void *p, size_t n);
AX_API void ax_sha256_end(ax_sha256 *h, unsigned char out[AX_SHA256_BYTES]);

/* A code under way: as a digest, with a key of any length. */
typedef struct ax_hmac_sha256 {
  ax_sha256 inner, outer;
} ax_hmac_sha256;
AX_API void ax_hmac_sha256_begin(ax_hmac_sha256 *h, const void *key, size_t n);
AX_API void ax_hmac_sha256_add(ax_hmac_sha256 *h, const void *p, size_t n);
AX_API void ax_hmac_sha256_end(ax_hmac_sha256 *h, unsigned char out[AX_SHA256_BYTES]);

/* Whether two runs of bytes are equal.  Its time does not depend on what they hold, so that it
 * gives nothing of a code away. */
AX_API bool ax_same_bytes(const void *a, const void *b, size_t n);

#endif

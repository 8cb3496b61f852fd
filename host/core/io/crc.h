/* crc.h: checksums of bytes.  CRC-32C (RFC 3720, appendix B.4) differs between damaged bytes and
 * whole ones; CRC-32 is the one that zip archives have. */
#ifndef AX_CRC_H
#define AX_CRC_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of bytes whose first part has the checksum `crc` (0: there is none) and whose rest
 * is p[0 .. n). */
uint32_t ax_crc32c(uint32_t crc, const void *p, size_t n);
uint32_t ax_crc32(uint32_t crc, const void *p, size_t n);
/* Copies n bytes and returns the CRC-32 of what it wrote; the bytes are read once. */
uint32_t ax_crc32_copy(void *to, const void *from, size_t n);
/* Does it by as many threads as n is worth, `threads` at most. */
uint32_t ax_crc32_copy_by(int threads, void *to, const void *from, size_t n);
/* The CRC-32C of two runs of bytes one after the other; the second one has n bytes. */
uint32_t ax_crc32c_join(uint32_t first, uint32_t second, uint64_t n);

#endif

/* digest.c: the size and CRC-32C (RFC 3720, appendix B.4) of a file's bytes: they differ between a
 * damaged file and a whole one.
 *
 * Where the processor has the instruction, eight bytes take one step, and the reading bounds the
 * speed; elsewhere a table takes one byte a step. */
#define _GNU_SOURCE /* O_CLOEXEC */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/core.h"
#include "io.h"

enum { CHUNK = 1 << 18 };
#define POLYNOMIAL 0x82f63b78u /* reflected */

static uint32_t by_table(uint32_t crc, const unsigned char *p, size_t n)
{
  static uint32_t table[256];

  if (!table[255])
    for (uint32_t i = 0; i < 256; i++) {
      uint32_t c = i;
      for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ POLYNOMIAL : c >> 1;
      table[i] = c;
    }
  while (n--) crc = table[(crc ^ *p++) & 255] ^ crc >> 8;
  return crc;
}

#if defined __x86_64__
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const unsigned char *p,
                                                                 size_t n)
{
  uint64_t c = crc, word;

  for (; n >= sizeof word; n -= sizeof word, p += sizeof word) {
    memcpy(&word, p, sizeof word);
    c = __builtin_ia32_crc32di(c, word);
  }
  while (n--) c = __builtin_ia32_crc32qi((uint32_t)c, *p++);
  return (uint32_t)c;
}
static bool has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }
#else
#define by_instruction by_table
static bool has_instruction(void) { return false; }
#endif

static ax_status read_all(int fd, const char *path, unsigned char *chunk, ax_digest *out)
{
  uint32_t crc = ~0u;
  const bool fast = has_instruction();

  *out = (ax_digest){ 0, 0 };
  for (;;) {
    const ssize_t n = read(fd, chunk, CHUNK);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ax_fail(AX_EIO, "cannot read %s: %s", path, strerror(errno));
    if (n == 0) break;
    crc = fast ? by_instruction(crc, chunk, (size_t)n) : by_table(crc, chunk, (size_t)n);
    out->bytes += n;
  }
  out->crc32c = ~crc;
  return AX_OK;
}

ax_status ax_file_digest(const char *path, ax_digest *out)
{
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is refused, not waited for */
  unsigned char *chunk = ax_malloc(CHUNK);
  ax_status st = AX_OK;
  struct stat s;

  if (!chunk) st = AX_ENOMEM;
  else if (fd < 0 || fstat(fd, &s) != 0) st = ax_fail(AX_EIO, "cannot read %s: %s", path, strerror(errno));
  else if (!S_ISREG(s.st_mode)) st = ax_fail(AX_EIO, "cannot read %s: it is no regular file", path);
  else st = read_all(fd, path, chunk, out);
  ax_mfree(chunk);
  if (fd >= 0) close(fd);
  return st;
}

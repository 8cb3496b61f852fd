/* digest.c: the size and CRC-32C of a file's bytes, which differ between a damaged file and a whole
 * one; and the CRC-32C of a tensor's. */
#define _GNU_SOURCE /* O_CLOEXEC */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/core.h"
#include "core/io/crc.h"
#include "io.h"

enum { CHUNK = 1 << 18 };
static ax_status read_all(int fd, const char *path, unsigned char *chunk, ax_digest *out)
{
  *out = (ax_digest){ 0, 0 };
  for (;;) {
    const ssize_t n = read(fd, chunk, CHUNK);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ax_fail(AX_EIO, "cannot read %s: %s", path, strerror(errno));
    if (n == 0) break;
    out->crc32c = ax_crc32c(out->crc32c, chunk, (size_t)n);
    out->bytes += n;
  }
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

ax_status ax_tensor_crc32c(ax_tensor *t, uint32_t *crc)
{
  ax_tensor *flat = NULL;
  const ax_status st = ax_tensor_bring(t, &flat);

  if (st == AX_OK) *crc = ax_crc32c(*crc, ax_data(flat), (size_t)flat->numel * ax_itemsize(flat));
  ax_tensor_release(flat);
  return st;
}

#define _GNU_SOURCE
#include "core/io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

static ax_status open_regular(const char *fn, const char *path, int *fd, size_t *size)
{
  struct stat info;

  *fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a pipe must not wait for its writer, only to be refused */
  if (*fd < 0 || fstat(*fd, &info) != 0) return AX_FILE_FAIL(AX_EIO, fn, path, "cannot be opened: %s", strerror(errno));
  if (!S_ISREG(info.st_mode)) return AX_FILE_FAIL(AX_EIO, fn, path, "not a regular file");
  *size = (size_t)info.st_size;
  return AX_OK;
}

ax_status ax_file_map(const char *fn, const char *path, ax_bytes *out)
{
  ax_status st;
  void *p;
  int fd;

  *out = (ax_bytes){0};
  if ((st = open_regular(fn, path, &fd, &out->n)) != AX_OK) {
    if (fd >= 0) close(fd);
    return st;
  }
  if (out->n > 0) {
    p = mmap(NULL, out->n, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
      st = AX_FILE_FAIL(AX_EIO, fn, path, "cannot be mapped: %s", strerror(errno));
      out->n = 0;
    } else {
      out->data = p;
      out->mapped = true;
    }
  }
  close(fd);
  return st;
}

/* Appends what the stream holds to out. */
static ax_status unpack(gzFile gz, const char *fn, const char *path, size_t most, ax_bytes *out)
{
  size_t room = 1 << 16;
  uint8_t *data = malloc(room);
  int n = 1, code = Z_OK;

  while (data && n > 0) {
    if (out->n == room) {
      uint8_t *grown = realloc(data, room *= 2);
      if (!grown) break;
      data = grown;
    }
    n = gzread(gz, data + out->n, (unsigned)(room - out->n > 1 << 28 ? 1 << 28 : room - out->n));
    if (n > 0) out->n += (size_t)n;
    if (out->n > most) {
      free(data);
      return AX_FILE_FAIL(AX_EIO, fn, path, "holds more than %zu bytes when unpacked", most);
    }
  }
  out->data = data;
  if (!data || n > 0) {
    free(data);
    out->data = NULL;
    return AX_FILE_FAIL(AX_ENOMEM, fn, path, "no memory for its %zu bytes", out->n);
  }
  gzerror(gz, &code);
  if (n < 0 || code == Z_BUF_ERROR) {
    const char *text = code == Z_ERRNO ? strerror(errno) : code == Z_BUF_ERROR ? "the compressed data ends too early" : gzerror(gz, &code);
    ax_status st = AX_FILE_FAIL(AX_EIO, fn, path, "damaged after %zu bytes: %s", out->n, text);
    free(data);
    out->data = NULL;
    return st;
  }
  return AX_OK;
}

ax_status ax_file_read(const char *fn, const char *path, size_t most, ax_bytes *out)
{
  uint8_t magic[2] = {0};
  size_t size;
  ax_status st;
  gzFile gz;
  int fd;

  *out = (ax_bytes){0};
  if ((st = open_regular(fn, path, &fd, &size)) != AX_OK || pread(fd, magic, 2, 0) < 2 || magic[0] != 0x1f || magic[1] != 0x8b) {
    if (fd >= 0) close(fd);
    return st == AX_OK ? ax_file_map(fn, path, out) : st;
  }
  if (!(gz = gzdopen(fd, "rb"))) {
    close(fd);
    return AX_FILE_FAIL(AX_ENOMEM, fn, path, "no memory to read it");
  }
  gzbuffer(gz, 1 << 18);
  st = unpack(gz, fn, path, most, out);
  if (st != AX_OK) out->n = 0;
  gzclose(gz);
  return st;
}

void ax_bytes_free(ax_bytes *b)
{
  if (b->mapped) munmap((void *)b->data, b->n);
  else free((void *)b->data);
  *b = (ax_bytes){0};
}

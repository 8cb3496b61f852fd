#define _GNU_SOURCE
#include "core/io/file.h"
#include "core/core.h"
#include "io.h"
#include "ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

static const char *kind_of(mode_t mode)
{
  return S_ISFIFO(mode)  ? "a pipe"
         : S_ISDIR(mode) ? "a folder"
         : S_ISCHR(mode) ? "a device"
         : S_ISBLK(mode) ? "a disk"
                         : "a socket";
}

static ax_status open_regular(const char *fn, const char *path, int *fd, struct stat *info)
{
  ax_status st = AX_OK;

  /* a pipe is refused below; opening it must not wait for its writer */
  ax_busy_begin("the opening of", path);
  *fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ax_busy_end();
  if (*fd < 0 || fstat(*fd, info) != 0)
    st = fn ? AX_FILE_FAIL(AX_EIO, fn, path, "cannot be opened: %s", strerror(errno))
            : ax_fail(AX_EIO, "%s: %s", path, strerror(errno));
  else if (!S_ISREG(info->st_mode))
    st = fn ? AX_FILE_FAIL(AX_EIO, fn, path, "not a regular file but %s", kind_of(info->st_mode))
            : ax_fail(AX_EIO, "%s: not a regular file but %s", path, kind_of(info->st_mode));
  if (st != AX_OK && *fd >= 0) {
    close(*fd);
    *fd = -1;
  }
  return st;
}

ax_status ax_file_open(const char *fn, const char *path, int *fd, size_t *size)
{
  struct stat info = { 0 };
  const ax_status st = open_regular(fn, path, fd, &info);
  *size = (size_t)info.st_size;
  return st;
}

ax_status ax_file_map(const char *fn, const char *path, ax_bytes *out)
{
  struct stat info;
  void *data = NULL;
  ax_status st;
  int fd;

  *out = (ax_bytes){ 0 };
  if ((st = open_regular(fn, path, &fd, &info)) != AX_OK) return st;
  if (info.st_size > 0) {
    st = ax_mapping_new(fd, &info, false, &out->mapping, &data);
    if (st == AX_EIO) st = AX_FILE_FAIL(AX_EIO, fn, path, "cannot be mapped: %s", strerror(errno));
    if (st == AX_OK) out->n = (size_t)info.st_size;
    out->data = data;
  }
  close(fd);
  return st;
}

ax_status ax_bytes_check(const char *fn, const char *path, const ax_bytes *b)
{
  if (!b->mapping || ax_mapping_whole(b->mapping, path)) return AX_OK;
  return AX_FILE_FAIL(AX_EIO, fn, path,
                      "it had %zu bytes when it was opened and can no longer be read to its end: another "
                      "program has truncated it, or its disk fails",
                      b->n);
}

/* Appends the unpacked stream to out. */
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
    const char *text = code == Z_ERRNO       ? strerror(errno)
                       : code == Z_BUF_ERROR ? "the compressed data ends too early"
                                             : gzerror(gz, &code);
    ax_status st = AX_FILE_FAIL(AX_EIO, fn, path, "damaged after %zu bytes: %s", out->n, text);
    free(data);
    out->data = NULL;
    return st;
  }
  return AX_OK;
}

ax_status ax_file_read(const char *fn, const char *path, size_t most, ax_bytes *out)
{
  uint8_t magic[2] = { 0 };
  size_t size;
  ax_status st;
  gzFile gz;
  int fd;

  *out = (ax_bytes){ 0 };
  if ((st = ax_file_open(fn, path, &fd, &size)) != AX_OK || pread(fd, magic, 2, 0) < 2 || magic[0] != 0x1f ||
      magic[1] != 0x8b) {
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

/* Reads up to the end, or until `most` bytes are there; *n: how many.  Takes fd. */
static ax_status read_open(const char *path, int fd, size_t room, size_t most, char **data, size_t *n)
{
  size_t got = 0;
  char *text = NULL;
  ssize_t k = 1;
  int error;

  for (room = room < most ? room + 1 : most; got < most && (k > 0 || (k < 0 && errno == EINTR));) {
    char *grown = got < room && text ? text : realloc(text, got < room ? room : (room *= 2));
    if (!grown) {
      free(text);
      close(fd);
      return ax_fail(AX_ENOMEM, "%s: no memory for its %zu bytes", path, room);
    }
    text = grown;
    k = read(fd, text + got, room - got);
    if (k > 0) got += (size_t)k;
  }
  error = errno;
  close(fd);
  if (k < 0) {
    free(text);
    return ax_fail(AX_EIO, "%s: %s", path, strerror(error));
  }
  *data = text;
  *n = got < most ? got : most;
  return AX_OK;
}

static ax_status too_large(const char *path, size_t n, size_t most)
{
  return ax_fail(AX_EIO, "%s: has %s%zu bytes; expected at most %zu", path, n > most ? "" : "more than ",
                 n > most ? n : most, most);
}

ax_status ax_file_slurp(const char *path, size_t most, char **data, size_t *n)
{
  size_t size;
  ax_status st;
  int fd;

  *data = NULL;
  if (ax_file_open(NULL, path, &fd, &size) != AX_OK) return AX_EIO;
  if (size > most) {
    close(fd);
    return too_large(path, size, most);
  }
  st = read_open(path, fd, size, most + 1, data, n); /* one byte more shows that it has grown */
  if (st != AX_OK || *n <= most) return st;
  free(*data);
  *data = NULL;
  return too_large(path, 0, most);
}

ax_status ax_file_head(const char *path, char **data, size_t *n)
{
  size_t size;
  int fd;

  *data = NULL;
  if (ax_file_open(NULL, path, &fd, &size) != AX_OK) return AX_EIO;
  return read_open(path, fd, *n, *n, data, n);
}

static volatile const int *interrupts; /* NULL: nothing interrupts */

void ax_file_interrupts(volatile const int *flag) { interrupts = flag; }

bool ax_file_interrupted(void) { return interrupts && *interrupts; }

ax_status ax_file_go_on(void) { return ax_file_interrupted() ? ax_fail(AX_EABORTED, "interrupted") : AX_OK; }

ax_status ax_file_copy(void *to, const void *from, size_t n)
{
  for (size_t at = 0; at < n; at += AX_FILE_PIECE) {
    if (ax_file_interrupted()) return ax_file_go_on();
    memcpy((char *)to + at, (const char *)from + at, n - at < AX_FILE_PIECE ? n - at : AX_FILE_PIECE);
  }
  return AX_OK;
}

ax_status ax_file_tensor(const char *fn, const char *path, ax_dtype dtype, int ndim, const int64_t *shape,
                         ax_tensor **out)
{
  const ax_status st = ax_tensor_new(dtype, ndim, shape, out);
  return st == AX_OK ? st : AX_FILE_FAIL(st, fn, path, "%s", ax_last_error());
}

void ax_bools_tidy(ax_tensor *t)
{
  uint8_t *p = ax_data(t);
  for (int64_t i = 0; i < t->numel; i++) p[i] = p[i] != 0;
}

void ax_bytes_free(ax_bytes *b)
{
  if (b->mapping) ax_mapping_release(b->mapping);
  else free((void *)b->data);
  *b = (ax_bytes){ 0 };
}

typedef ax_status (*show)(struct ax_mapping *m, const void *data, size_t n, struct ax_storage **out);

static ax_status over_mapping(const ax_bytes *b, const uint8_t *data, ax_dtype dtype, int ndim,
                              const int64_t *shape, show storage, ax_tensor **out)
{
  int64_t numel, strides[AX_MAX_DIMS];
  ax_storage *s;
  size_t bytes;
  ax_status st;

  *out = NULL;
  if ((st = ax_shape_checked_bytes(ndim, shape, ax_dtype_size(dtype), &numel, &bytes)) != AX_OK) return st;
  if (!b->mapping || bytes == 0 || dtype == AX_BOOL || (uintptr_t)data % ax_dtype_size(dtype)) return AX_OK;
  if ((st = storage(b->mapping, data, bytes, &s)) != AX_OK) return st == AX_EIO ? AX_OK : st;
  ax_strides_contiguous(ndim, shape, strides);
  st = ax_tensor_over(s, dtype, ndim, shape, strides, 0, out);
  ax_storage_release(s);
  return st;
}

ax_status ax_bytes_lend(const ax_bytes *b, const uint8_t *data, ax_dtype dtype, int ndim,
                        const int64_t *shape, ax_tensor **out)
{
  return over_mapping(b, data, dtype, ndim, shape, ax_mapping_lend, out);
}

ax_status ax_bytes_show(const ax_bytes *b, const uint8_t *data, ax_dtype dtype, int ndim,
                        const int64_t *shape, ax_tensor **out)
{
  return over_mapping(b, data, dtype, ndim, shape, ax_mapping_show, out);
}

/* idx.c: the reader of IDX files.
 *
 * An IDX file is two zero bytes, a type byte, the number of dims, each dim as a big-endian uint32,
 * then the elements, big-endian, the last dim fastest.  zlib's gz layer reads plain and compressed
 * files alike.
 *
 * The header is not trusted.  Before memory is allocated for it, it is compared with the file: a
 * plain file must have exactly the size that it gives; a compressed file must be able to contain
 * it, and deflate packs at most 1032 bytes into one. */
#include "io.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "core/io/file.h"

#define DEFLATE_MAX_RATIO 1032

/* Fails with a message that names the file. */
#define FAIL(st, fmt, ...) ax_fail(st, "read_idx: '%s': " fmt, path, ##__VA_ARGS__)

typedef struct idx_header {
  ax_dtype dtype;
  int ndim;
  int64_t shape[AX_MAX_DIMS];
  int64_t header_bytes, data_bytes;
} idx_header;

/* zlib's reason for a failed read: damaged data, an end in the middle of the stream, or a system
 * error. */
static const char *gz_reason(gzFile gz)
{
  int code = Z_OK;
  const char *text = gzerror(gz, &code);
  if (code == Z_ERRNO) return strerror(errno);
  if (code == Z_BUF_ERROR) return "the compressed data ends too early";
  return code == Z_OK ? NULL : text;
}

/* Reads up to `want` bytes; *got: how many there were.  Fails when the stream is damaged or cut
 * short. */
static ax_status read_up_to(gzFile gz, const char *path, void *to, int64_t want, int64_t *got)
{
  *got = 0;
  while (*got < want) {
    const int64_t rest = want - *got;
    const unsigned chunk = rest > (1 << 28) ? 1u << 28 : (unsigned)rest;
    const int n = gzread(gz, (char *)to + *got, chunk);
    const char *reason = gz_reason(gz);
    if (n > 0) *got += n;
    if (n < 0 || reason)
      return FAIL(AX_EIO, "damaged after %lld bytes: %s", (long long)gztell(gz),
                  reason ? reason : "read error");
    if (n == 0) break;
  }
  return AX_OK;
}

static ax_status element_type(const char *path, unsigned byte, ax_dtype *out)
{
  switch (byte) {
  case 0x08: *out = AX_U8; return AX_OK;
  case 0x0C: *out = AX_I32; return AX_OK;
  case 0x0D: *out = AX_F32; return AX_OK;
  case 0x0E: *out = AX_F64; return AX_OK;
  case 0x09:
  case 0x0B:
    return FAIL(AX_EDTYPE,
                "the elements are %s, which tensors do not have; expected uint8, int32, float32 or float64",
                byte == 0x09 ? "int8" : "int16");
  default:
    return FAIL(AX_EIO,
                "element type 0x%02x; expected 0x08 (uint8), 0x0c (int32), 0x0d (float32) or 0x0e (float64)",
                byte);
  }
}

static ax_status read_header(gzFile gz, const char *path, idx_header *h)
{
  uint8_t b[4 + 4 * AX_MAX_DIMS];
  int64_t got, bytes;
  ax_status st;

  if ((st = read_up_to(gz, path, b, 4, &got)) != AX_OK) return st;
  if (got < 4) return FAIL(AX_EIO, "ends after %lld bytes; expected an IDX header", (long long)got);
  if (b[0] != 0 || b[1] != 0)
    return FAIL(AX_EIO,
                "not an IDX file, plain or gzip: it starts with %02x %02x %02x %02x; expected 00 00, a type "
                "byte and the number of dims",
                b[0], b[1], b[2], b[3]);
  if ((st = element_type(path, b[2], &h->dtype)) != AX_OK) return st;
  h->ndim = b[3];
  if (h->ndim < 1 || h->ndim > AX_MAX_DIMS)
    return FAIL(AX_EIO, "%d dims; expected 1 to %d", h->ndim, AX_MAX_DIMS);

  if ((st = read_up_to(gz, path, b + 4, 4 * h->ndim, &got)) != AX_OK) return st;
  if (got < 4 * h->ndim)
    return FAIL(AX_EIO, "ends inside its header: %lld bytes; expected %d", (long long)(4 + got),
                4 + 4 * h->ndim);
  bytes = (int64_t)ax_dtype_size(h->dtype);
  for (int d = 0; d < h->ndim; d++) {
    const uint8_t *p = b + 4 + 4 * d;
    h->shape[d] = (int64_t)p[0] << 24 | (int64_t)p[1] << 16 | (int64_t)p[2] << 8 | p[3];
    if (__builtin_mul_overflow(bytes, h->shape[d], &bytes))
      return FAIL(AX_EIO, "the sizes in its header are too large to be true");
  }
  h->header_bytes = 4 + 4 * h->ndim;
  h->data_bytes = bytes;
  return AX_OK;
}

/* Whether the file can contain what its header describes. */
static ax_status check_size(const char *path, const idx_header *h, bool plain, int64_t file_bytes)
{
  char shape[128];
  ax_shape_text(h->ndim, h->shape, shape, sizeof shape);
  if (plain && file_bytes - h->header_bytes != h->data_bytes)
    return FAIL(AX_EIO, "says it holds %s %s, which is %lld bytes after the header; found %lld",
                ax_dtype_name(h->dtype), shape, (long long)h->data_bytes,
                (long long)(file_bytes - h->header_bytes));
  if (!plain && h->data_bytes / DEFLATE_MAX_RATIO > file_bytes)
    return FAIL(AX_EIO,
                "says it holds %s %s, which is %lld bytes; %lld compressed bytes cannot hold that much",
                ax_dtype_name(h->dtype), shape, (long long)h->data_bytes, (long long)file_bytes);
  return AX_OK;
}

static void swap_bytes(void *data, int64_t n, size_t size)
{
  if (size == 4) {
    uint32_t *p = data;
    for (int64_t i = 0; i < n; i++) p[i] = __builtin_bswap32(p[i]);
  } else if (size == 8) {
    uint64_t *p = data;
    for (int64_t i = 0; i < n; i++) p[i] = __builtin_bswap64(p[i]);
  }
}

ax_status ax_idx_read(const char *path, ax_tensor **out)
{
  ax_status st = AX_OK;
  idx_header h;
  size_t size;
  ax_tensor *t = NULL;
  gzFile gz = NULL;
  int64_t got;
  char extra;
  int fd = -1;

  *out = NULL;
  AX_TRY(ax_file_open("read_idx", path, &fd, &size));
  if (!(gz = gzdopen(fd, "rb"))) AX_TRY(FAIL(AX_ENOMEM, "no memory to read it"));
  fd = -1; /* gzclose closes it */
  gzbuffer(gz, 1 << 18);

  AX_TRY(read_header(gz, path, &h));
  AX_TRY(check_size(path, &h, gzdirect(gz) == 1, (int64_t)size));
  AX_TRY(ax_file_tensor("read_idx", path, h.dtype, h.ndim, h.shape, &t));
  AX_TRY(read_up_to(gz, path, ax_data(t), h.data_bytes, &got));
  if (got < h.data_bytes)
    AX_TRY(FAIL(AX_EIO, "ends after %lld bytes of data; its header says %lld", (long long)got,
                (long long)h.data_bytes));
  /* zlib compares the checksum at the end of the stream */
  AX_TRY(read_up_to(gz, path, &extra, 1, &got));
  if (got != 0)
    AX_TRY(
        FAIL(AX_EIO, "goes on after the %lld bytes of data that its header says", (long long)h.data_bytes));
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  swap_bytes(ax_data(t), t->numel, ax_dtype_size(h.dtype));
#endif
  *out = t;
  t = NULL;
out:
  ax_tensor_release(t);
  if (gz) gzclose(gz);
  if (fd >= 0) close(fd);
  return st;
}

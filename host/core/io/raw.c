/* raw.c: files that hold a tensor's elements and nothing else, little-endian, in order. */
#include "core/core.h"
#include "core/io/file.h"
#include "io.h"

#include <string.h>

static ax_status check_size(const char *fn, const char *path, const ax_bytes *file, ax_dtype dtype, int ndim,
                            const int64_t *shape)
{
  int64_t numel;
  size_t bytes;
  const ax_status st = ax_shape_checked_bytes(ndim, shape, ax_dtype_size(dtype), &numel, &bytes);

  if (st != AX_OK) return AX_FILE_FAIL(st, fn, path, "%s", ax_last_error());
  if (file->n == bytes) return AX_OK;
  return AX_FILE_FAIL(AX_EIO, fn, path, "it has %zu bytes; %lld elements of %s have %zu", file->n,
                      (long long)numel, ax_dtype_name(dtype), bytes);
}

static ax_status copy_out(const char *fn, const char *path, const ax_bytes *file, ax_dtype dtype, int ndim,
                          const int64_t *shape, ax_tensor **out)
{
  ax_status st;

  if ((st = check_size(fn, path, file, dtype, ndim, shape)) != AX_OK ||
      (st = ax_file_tensor(fn, path, dtype, ndim, shape, out)) != AX_OK ||
      (st = ax_file_copy(ax_data(*out), file->data, file->n)) != AX_OK)
    return st;
  if (dtype == AX_BOOL) ax_bools_tidy(*out);
  return ax_bytes_check(fn, path, file);
}

ax_status ax_raw_read(const char *fn, const char *path, ax_dtype dtype, int ndim, const int64_t *shape,
                      ax_tensor **out)
{
  ax_bytes file;
  ax_status st;

  *out = NULL;
  if ((st = ax_file_map(fn, path, &file)) != AX_OK) return st;
  st = copy_out(fn, path, &file, dtype, ndim, shape, out);
  ax_bytes_free(&file);
  if (st == AX_OK) return AX_OK;
  ax_tensor_release(*out);
  *out = NULL;
  return st;
}

ax_status ax_raw_show(const char *fn, const char *path, ax_dtype dtype, int ndim, const int64_t *shape,
                      ax_tensor **out)
{
  ax_bytes file;
  ax_status st;

  *out = NULL;
  if ((st = ax_file_map(fn, path, &file)) != AX_OK) return st;
  st = check_size(fn, path, &file, dtype, ndim, shape);
  if (st == AX_OK) st = ax_bytes_show(&file, file.data, dtype, ndim, shape, out);
  ax_bytes_free(&file);
  return st;
}

/* safetensors.c: files of the safetensors format, open for reading (safetensors.h describes the
 * format; safetensors_header.c reads the header, safetensors_write.c is the writer).
 *
 * The file is mapped.  A tensor's bytes are read when the tensor is requested. */
#include "core/io/safetensors.h"
#include "core/offload/read_ahead.h"

#include <stdlib.h>
#include <string.h>

#define FN "safetensors"
#define LFS "version https://git-lfs" /* what a pointer begins with */
/* Fails with a message that names the file. */
#define FAIL(st, fmt, ...) AX_FILE_FAIL(st, FN, f->path, fmt, ##__VA_ARGS__)

/* Copies the header out of the mapping, which another program may change. */
static ax_status read_header(ax_safetensors *f)
{
  const uint8_t *b = f->file.data;
  const size_t bytes = f->file.n;
  uint64_t size = 0;

  if (bytes < 8)
    return FAIL(AX_EIO, "the file has %zu bytes; expected at least the 8 of the header's size", bytes);
  if (bytes >= sizeof LFS - 1 && memcmp(b, LFS, sizeof LFS - 1) == 0)
    return FAIL(AX_EIO,
                "it is a Git LFS pointer, not the file that it stands for; `git lfs pull` fetches that");
  for (int i = 7; i >= 0; i--) size = size << 8 | b[i];
  if (size > AX_SAFETENSORS_HEADER_LIMIT)
    return FAIL(AX_EIO,
                "the file says its header has %llu bytes; at most %d are allowed (is it a safetensors file?)",
                (unsigned long long)size, AX_SAFETENSORS_HEADER_LIMIT);
  if (size > bytes - 8)
    return FAIL(AX_EIO,
                "the file says its header has %llu bytes, but only %zu follow (is the file truncated?)",
                (unsigned long long)size, bytes - 8);
  f->header_bytes = (int64_t)size;
  f->data_bytes = (int64_t)(bytes - 8 - size);
  if (!(f->header = ax_malloc((size_t)size + 1))) return AX_ENOMEM;
  memcpy(f->header, b + 8, (size_t)size);
  return ax_bytes_check(FN, f->path, &f->file);
}

ax_status ax_safetensors_open(const char *path, ax_safetensors **out)
{
  const size_t length = strlen(path) + 1;
  ax_safetensors *f;
  ax_status st = AX_ENOMEM;

  *out = NULL;
  if (!(f = ax_calloc(1, sizeof *f))) return AX_ENOMEM;
  if (!(f->path = ax_malloc(length))) goto out;
  memcpy(f->path, path, length);
  AX_TRY(ax_file_map(FN, path, &f->file));
  AX_TRY(read_header(f));
  AX_TRY(ax_safetensors_parse(f));
  *out = f;
  f = NULL;
out:
  ax_safetensors_close(f);
  return st;
}

void ax_safetensors_close(ax_safetensors *f)
{
  if (!f) return;
  ax_bytes_free(&f->file);
  ax_mfree(f->path);
  ax_mfree(f->header);
  ax_mfree(f->entries);
  ax_mfree(f->sorted);
  ax_mfree(f->meta);
  ax_mfree(f);
}

int ax_safetensors_count(const ax_safetensors *f) { return f->n; }
const char *ax_safetensors_path(const ax_safetensors *f) { return f->path; }
const char *ax_safetensors_name(const ax_safetensors *f, int i) { return f->entries[i].name; }

const int64_t *ax_safetensors_shape(const ax_safetensors *f, int i, int *ndim)
{
  *ndim = f->entries[i].ndim;
  return f->entries[i].shape;
}

const char *const *ax_safetensors_metadata(const ax_safetensors *f, int *n)
{
  *n = f->n_meta;
  return f->meta;
}

static int against(const void *name, const void *entry)
{
  return strcmp(name, (*(const ax_safetensors_entry *const *)entry)->name);
}

int ax_safetensors_find(const ax_safetensors *f, const char *name)
{
  const ax_safetensors_entry *const *at = bsearch(name, f->sorted, (size_t)f->n, sizeof *f->sorted, against);
  return at ? (int)(*at - f->entries) : -1;
}

ax_dtype ax_safetensors_dtype(const ax_safetensors *f, int i) { return (ax_dtype)f->entries[i].dtype; }

bool ax_safetensors_readable(const ax_safetensors *f, int i) { return !f->entries[i].other; }

static ax_status check_type(const ax_safetensors *f, int i)
{
  const char *other = f->entries[i].other;

  if (!other) return AX_OK;
  return FAIL(AX_EDTYPE,
              "tensor '%.100s' has dtype '%.20s'; known are F64 F32 F16 BF16 I64 I32 U8 BOOL C64 (weights of "
              "8 bits and fewer, as a quantization_config announces them, are not read)",
              f->entries[i].name, other);
}

typedef ax_status (*over)(const ax_bytes *b, const uint8_t *data, ax_dtype dtype, int ndim,
                          const int64_t *shape, ax_tensor **out);

/* *out is NULL where only a copy can be. */
static ax_status over_file(const ax_safetensors *f, int i, over bytes, ax_tensor **out)
{
  const ax_safetensors_entry *e = &f->entries[i];
  const ax_status st = check_type(f, i);

  *out = NULL;
  if (st != AX_OK) return st;
  return bytes(&f->file, f->file.data + 8 + f->header_bytes + e->begin, (ax_dtype)e->dtype, e->ndim, e->shape,
               out);
}

ax_status ax_safetensors_lend(const ax_safetensors *f, int i, ax_tensor **out)
{
  const ax_status st = over_file(f, i, ax_bytes_lend, out);
  return st == AX_OK && !*out ? ax_safetensors_get(f, i, out) : st;
}

ax_status ax_safetensors_show(const ax_safetensors *f, int i, ax_tensor **out)
{
  return over_file(f, i, ax_bytes_show, out);
}

void ax_safetensors_drop(const ax_safetensors *f, int i)
{
  const ax_safetensors_entry *e = &f->entries[i];
  const uint8_t *data = f->file.data + 8 + f->header_bytes;
  if (f->file.mapping) ax_pages_drop(data + e->begin, (size_t)(e->end - e->begin));
}

/* As over_file: a type of one byte that tensors have not, as uint8. */
static ax_status over_bytes(const ax_safetensors *f, int i, over bytes, ax_tensor **out)
{
  const ax_safetensors_entry *e = &f->entries[i];
  int64_t count = 1;

  *out = NULL;
  for (int d = 0; d < e->ndim; d++) count *= e->shape[d];
  if (count != e->end - e->begin) return check_type(f, i);
  return bytes(&f->file, f->file.data + 8 + f->header_bytes + e->begin, AX_U8, e->ndim, e->shape, out);
}

ax_status ax_safetensors_lend_bytes(const ax_safetensors *f, int i, ax_tensor **out)
{
  const ax_safetensors_entry *e = &f->entries[i];
  ax_status st;

  if (!e->other) return ax_safetensors_lend(f, i, out);
  st = over_bytes(f, i, ax_bytes_lend, out);
  if (st != AX_OK || *out) return st;
  st = ax_file_tensor(FN, f->path, AX_U8, e->ndim, e->shape, out);
  if (st == AX_OK && e->end > e->begin)
    memcpy(ax_data(*out), f->file.data + 8 + f->header_bytes + e->begin, (size_t)(e->end - e->begin));
  return st;
}

ax_status ax_safetensors_show_bytes(const ax_safetensors *f, int i, ax_tensor **out)
{
  const ax_safetensors_entry *e = &f->entries[i];
  const bool eight = ax_is_float((ax_dtype)e->dtype) && ax_dtype_size((ax_dtype)e->dtype) == 1;
  return e->other || eight ? over_bytes(f, i, ax_bytes_show, out) : ax_safetensors_show(f, i, out);
}

ax_status ax_safetensors_check(const ax_safetensors *f) { return ax_bytes_check(FN, f->path, &f->file); }

ax_status ax_safetensors_get(const ax_safetensors *f, int i, ax_tensor **out)
{
  const ax_safetensors_entry *e = &f->entries[i];
  ax_status st;

  *out = NULL;
  if ((st = check_type(f, i)) != AX_OK) return st;
  st = ax_file_tensor(FN, f->path, (ax_dtype)e->dtype, e->ndim, e->shape, out);

  if (st != AX_OK) return st;
  st =
      ax_file_copy(ax_data(*out), f->file.data + 8 + f->header_bytes + e->begin, (size_t)(e->end - e->begin));
  if (e->dtype == AX_BOOL) ax_bools_tidy(*out);
  if (st == AX_OK && (st = ax_bytes_check(FN, f->path, &f->file)) == AX_OK) return AX_OK;
  ax_tensor_release(*out);
  *out = NULL;
  return st;
}

/* gguf.c: files of the GGUF format, open for reading (core/io/gguf_file.h describes the format;
 * gguf_header.c reads the header).
 *
 * The file is mapped, and so are its tensors: a model of 40 GB is there at once, and is read where
 * it is used.  Files of big-endian machines are copied, with their numbers turned round. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/io/gguf_file.h"
#include "core/offload/read_ahead.h"

#define FAIL AX_GGUF_FAIL

static const ax_gguf_type_row types[] = {
#define NONE AX_DTYPE_COUNT
#define WHOLE AX_GGUF_WHOLE
#define NEVER AX_GGUF_NEVER
#define GGUF(number, name, block, bytes, DTYPE, swaps) { number, #name, block, bytes, DTYPE, swaps },
#include "core/io/gguf_types.def"
#undef GGUF
};

const ax_gguf_type_row *ax_gguf_type_of(uint32_t number)
{
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (types[i].number == number) return &types[i];
  return NULL;
}

ax_status ax_gguf_open(const char *path, ax_gguf **out)
{
  const size_t length = strlen(path) + 1;
  ax_gguf *f;
  ax_status st = AX_ENOMEM;

  *out = NULL;
  if (!(f = ax_calloc(1, sizeof *f))) return AX_ENOMEM;
  if (!(f->path = ax_malloc(length))) goto out;
  memcpy(f->path, path, length);
  AX_TRY(ax_file_map("gguf", path, &f->file));
  AX_TRY(ax_gguf_parse(f));
  *out = f;
  f = NULL;
out:
  ax_gguf_close(f);
  return st;
}

void ax_gguf_close(ax_gguf *f)
{
  if (!f) return;
  for (int i = 0; i < f->n_settings; i++) ax_mfree(f->settings[i].key);
  for (int i = 0; i < f->n_tensors; i++) ax_mfree(f->tensors[i].name);
  ax_mfree(f->settings);
  ax_mfree(f->tensors);
  ax_mfree(f->sorted);
  ax_bytes_free(&f->file);
  ax_mfree(f->path);
  ax_mfree(f);
}

const char *ax_gguf_path(const ax_gguf *f) { return f->path; }
int ax_gguf_version(const ax_gguf *f) { return f->version; }
bool ax_gguf_is_big_endian(const ax_gguf *f) { return f->swapped; }
int ax_gguf_key_count(const ax_gguf *f) { return f->n_settings; }
const char *ax_gguf_key(const ax_gguf *f, int i) { return f->settings[i].key; }

ax_gguf_kind ax_gguf_value_at(const ax_gguf *f, int i, int64_t *at)
{
  *at = f->settings[i].at;
  return f->settings[i].kind;
}

int ax_gguf_count(const ax_gguf *f) { return f->n_tensors; }
const char *ax_gguf_name(const ax_gguf *f, int i) { return f->tensors[i].name; }

const int64_t *ax_gguf_shape(const ax_gguf *f, int i, int *ndim)
{
  *ndim = f->tensors[i].ndim;
  return f->tensors[i].shape;
}

const char *ax_gguf_type(const ax_gguf *f, int i)
{
  const ax_gguf_tensor *t = &f->tensors[i];
  static _Thread_local char unknown[32];

  if (t->type) return t->type->name;
  snprintf(unknown, sizeof unknown, "type %u", t->number);
  return unknown;
}

static int against(const void *name, const void *entry)
{
  return strcmp(name, (*(const ax_gguf_tensor *const *)entry)->name);
}

int ax_gguf_find(const ax_gguf *f, const char *name)
{
  const ax_gguf_tensor *const *at =
      bsearch(name, f->sorted, (size_t)f->n_tensors, sizeof *f->sorted, against);
  return at ? (int)(*at - f->tensors) : -1;
}

/* ---- tensors */

static ax_status check_type(const ax_gguf *f, int i)
{
  const ax_gguf_tensor *t = &f->tensors[i];
  if (!t->type || t->type->dtype == AX_DTYPE_COUNT)
    return FAIL(AX_EDTYPE,
                "tensor '%.100s' is of %s, which is not read; known are F32 F16 BF16 F64 I32 I64 Q4_0 Q4_1 "
                "Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL MXFP4",
                t->name, ax_gguf_type(f, i));
  if (f->swapped && t->type->swaps == AX_GGUF_NEVER)
    return FAIL(AX_EDTYPE, "tensor '%.100s' is of %s, which is not read of big-endian machines", t->name,
                t->type->name);
  return AX_OK;
}

static void turn(uint8_t *p, int n)
{
  for (int i = 0; i < n / 2; i++) {
    const uint8_t kept = p[i];
    p[i] = p[n - 1 - i];
    p[n - 1 - i] = kept;
  }
}

/* Turns the numbers of several bytes round. */
static void turn_all(const ax_gguf_type_row *type, uint8_t *p, int64_t bytes)
{
  for (int64_t at = 0; at < bytes; at += type->bytes) {
    if (type->swaps == AX_GGUF_WHOLE) turn(p + at, type->bytes);
    else
      for (int places = type->swaps; places; places >>= 8) turn(p + at + (places & 255) - 1, 2);
  }
}

static ax_status copy(const ax_gguf *f, const ax_gguf_tensor *t, const int64_t *shape, ax_tensor **out)
{
  ax_status st = ax_file_tensor("gguf", f->path, (ax_dtype)t->type->dtype, t->ndim, shape, out);

  if (st != AX_OK) return st;
  if (t->bytes) st = ax_file_copy(ax_data(*out), f->file.data + f->data + t->begin, (size_t)t->bytes);
  if (st == AX_OK && f->swapped) turn_all(t->type, ax_data(*out), t->bytes);
  if (st == AX_OK && (st = ax_gguf_check(f)) == AX_OK) return AX_OK;
  ax_tensor_release(*out);
  *out = NULL;
  return st;
}

typedef ax_status (*over)(const ax_bytes *b, const uint8_t *data, ax_dtype dtype, int ndim,
                          const int64_t *shape, ax_tensor **out);

static ax_status over_file(const ax_gguf *f, int i, over bytes, ax_tensor **out, bool *mapped)
{
  const ax_gguf_tensor *t = &f->tensors[i];
  int64_t shape[4];
  ax_status st = check_type(f, i);

  *out = NULL;
  *mapped = false;
  if (st != AX_OK) return st;
  memcpy(shape, t->shape, sizeof shape);
  if (t->type->dtype == AX_U8) shape[t->ndim - 1] = shape[t->ndim - 1] / t->type->block * t->type->bytes;
  if (!f->swapped && t->bytes) {
    st = bytes(&f->file, f->file.data + f->data + t->begin, (ax_dtype)t->type->dtype, t->ndim, shape, out);
    *mapped = *out != NULL;
    if (st != AX_OK || *out) return st;
  }
  return copy(f, t, shape, out);
}

ax_status ax_gguf_lend(const ax_gguf *f, int i, ax_tensor **out)
{
  bool mapped;
  return over_file(f, i, ax_bytes_lend, out, &mapped);
}

ax_status ax_gguf_show(const ax_gguf *f, int i, ax_tensor **out, bool *mapped)
{
  return over_file(f, i, ax_bytes_show, out, mapped);
}

void ax_gguf_drop(const ax_gguf *f, int i)
{
  const ax_gguf_tensor *t = &f->tensors[i];
  if (f->file.mapping && t->bytes > 0) ax_pages_drop(f->file.data + f->data + t->begin, (size_t)t->bytes);
}

ax_status ax_gguf_check(const ax_gguf *f) { return ax_bytes_check("gguf", f->path, &f->file); }

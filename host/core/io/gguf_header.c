/* gguf_header.c: the header of a GGUF file, read and checked whole before a tensor is made: a
 * damaged or hostile file costs an error message.
 *
 * It is read where it is mapped.  Another program may change it meanwhile, so each number is read
 * once, and each value is checked again when it is used.  Memory grows with the entries that were
 * really there, whatever the counts say. */
#include <stdlib.h>

#include "core/grow.h"
#include "core/io/gguf_file.h"

#define FAIL AX_GGUF_FAIL

enum {
  DEEPEST = 4,         /* lists in lists */
  MOST_DIMS = 4,       /* as the format has it */
  MOST_NAME = 1 << 16, /* bytes of a key and of a name */
  DEFAULT_ALIGNMENT = 32,
  LEAST_SETTING = 4 + 4 + 1, /* bytes of one in version 1: length, kind, a value */
  LEAST_TENSOR = 4 + 4 + 4 + 8,
};

/* ---- numbers */

static const int sizes[AX_GGUF_KINDS] = {
  [AX_GGUF_U8] = 1,  [AX_GGUF_I8] = 1,  [AX_GGUF_U16] = 2, [AX_GGUF_I16] = 2,
  [AX_GGUF_U32] = 4, [AX_GGUF_I32] = 4, [AX_GGUF_F32] = 4, [AX_GGUF_BOOL] = 1,
  [AX_GGUF_U64] = 8, [AX_GGUF_I64] = 8, [AX_GGUF_F64] = 8,
};

/* An unsigned number of `size` bytes at *at, which moves behind it. */
static ax_status read_number(const ax_gguf *f, int size, int64_t *at, uint64_t *out)
{
  const uint8_t *b = f->file.data + *at;
  *out = 0;
  if (*at < 0 || size > (int64_t)f->file.n - *at)
    return FAIL(AX_EIO, "it ends in the middle of its header, after %zu bytes (is it truncated?)", f->file.n);
  for (int i = 0; i < size; i++) *out |= (uint64_t)b[f->swapped ? size - 1 - i : i] << 8 * i;
  *at += size;
  return AX_OK;
}

/* A count or a length, of `what`, whose items take `item` bytes or more. */
static ax_status read_count(const ax_gguf *f, const char *what, int item, int64_t *at, int64_t *out)
{
  const int64_t place = *at;
  uint64_t n;
  const ax_status st = read_number(f, f->version == 1 ? 4 : 8, at, &n);
  *out = 0;
  if (st != AX_OK) return st;
  if (n > (f->file.n - (uint64_t)*at) / (uint64_t)item)
    return FAIL(AX_EIO, "byte %lld: %s is %llu, more than the %lld bytes that follow can hold",
                (long long)place, what, (unsigned long long)n, (long long)((int64_t)f->file.n - *at));
  *out = (int64_t)n;
  return AX_OK;
}

static double as_double(ax_gguf_kind kind, uint64_t bits)
{
  union {
    uint32_t bits;
    float value;
  } narrow = { .bits = (uint32_t)bits };
  union {
    uint64_t bits;
    double value;
  } wide = { .bits = bits };

  switch (kind) {
  case AX_GGUF_I8: return (int8_t)bits;
  case AX_GGUF_I16: return (int16_t)bits;
  case AX_GGUF_I32: return (int32_t)bits;
  case AX_GGUF_I64: return (double)(int64_t)bits;
  case AX_GGUF_F32: return narrow.value;
  case AX_GGUF_F64: return wide.value;
  default: return (double)bits;
  }
}

/* ---- values */

static ax_status read_kind(const ax_gguf *f, int64_t *at, ax_gguf_kind *out)
{
  const int64_t place = *at;
  uint64_t kind;
  const ax_status st = read_number(f, 4, at, &kind);
  if (st != AX_OK) return st;
  if (kind >= AX_GGUF_KINDS)
    return FAIL(AX_EIO, "byte %lld: the kind of a value is %llu; known are 0 to %d", (long long)place,
                (unsigned long long)kind, AX_GGUF_KINDS - 1);
  *out = (ax_gguf_kind)kind;
  return AX_OK;
}

static ax_status read_text(const ax_gguf *f, const char *what, int64_t *at, const char **text, int64_t *n)
{
  const ax_status st = read_count(f, what, 1, at, n);
  if (st != AX_OK) return st;
  *text = (const char *)f->file.data + *at;
  *at += *n;
  return AX_OK;
}

static ax_status read_list(const ax_gguf *f, int64_t *at, ax_gguf_value *out)
{
  const ax_status st = read_kind(f, at, &out->of);
  if (st != AX_OK) return st;
  const int least = sizes[out->of] ? sizes[out->of] : out->of == AX_GGUF_TEXT ? 4 : 8;
  return read_count(f, "the count of a list", least, at, &out->count);
}

ax_status ax_gguf_read(const ax_gguf *f, ax_gguf_kind kind, int64_t *at, ax_gguf_value *out)
{
  uint64_t bits;
  int64_t n;
  ax_status st;

  *out = (ax_gguf_value){ .kind = kind };
  if (kind == AX_GGUF_LIST) return read_list(f, at, out);
  if (kind == AX_GGUF_TEXT) {
    st = read_text(f, "the length of a text", at, &out->text, &n);
    out->n = (size_t)n;
    return st;
  }
  st = read_number(f, sizes[kind], at, &bits);
  out->number = as_double(kind, bits);
  return st;
}

/* Moves *at behind a value, and checks it. */
static ax_status skip_value(const ax_gguf *f, ax_gguf_kind kind, int deep, int64_t *at)
{
  ax_gguf_value v;
  ax_status st = ax_gguf_read(f, kind, at, &v);

  if (st != AX_OK || kind != AX_GGUF_LIST) return st;
  if (sizes[v.of]) {
    *at += v.count * sizes[v.of];
    return AX_OK;
  }
  if (deep == DEEPEST) return FAIL(AX_EIO, "byte %lld: lists are more than %d deep", (long long)*at, DEEPEST);
  for (int64_t i = 0; i < v.count && st == AX_OK; i++) {
    st = skip_value(f, v.of, deep + 1, at);
    if ((i & 0xffff) == 0xffff && st == AX_OK) st = ax_file_go_on();
  }
  return st;
}

/* A key or a name, copied. */
static ax_status read_name(const ax_gguf *f, const char *what, int64_t *at, char **out)
{
  const int64_t place = *at;
  const char *text;
  int64_t n;
  const ax_status st = read_text(f, what, at, &text, &n);
  if (st != AX_OK) return st;
  if (n > MOST_NAME)
    return FAIL(AX_EIO, "byte %lld: %s is %lld; at most %d", (long long)place, what, (long long)n, MOST_NAME);
  if (!(*out = ax_malloc((size_t)n + 1))) return AX_ENOMEM;
  memcpy(*out, text, (size_t)n);
  (*out)[n] = 0;
  if (memchr(*out, 0, (size_t)n))
    return FAIL(AX_EIO, "byte %lld: \"%.100s\" goes on after a NUL", (long long)place, *out);
  return AX_OK;
}

/* ---- settings */

static ax_status read_setting(ax_gguf *f, int64_t *at)
{
  ax_gguf_setting *s;
  ax_status st;

  if ((st = ax_grow(&f->settings, f->n_settings, &f->settings_room, sizeof *f->settings)) != AX_OK) return st;
  s = &f->settings[f->n_settings];
  *s = (ax_gguf_setting){ 0 };
  f->n_settings++; /* its texts are freed with the others' */
  if ((st = read_name(f, "the length of a key", at, &s->key)) != AX_OK) return st;
  if ((st = read_kind(f, at, &s->kind)) != AX_OK) return st;
  s->at = *at;
  return skip_value(f, s->kind, 0, at);
}

static int by_key(const void *a, const void *b)
{
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static ax_status check_keys(const ax_gguf *f)
{
  const char **keys = ax_malloc(sizeof *keys * ((size_t)f->n_settings + 1));
  ax_status st = AX_OK;

  if (!keys) return AX_ENOMEM;
  for (int i = 0; i < f->n_settings; i++) keys[i] = f->settings[i].key;
  qsort(keys, (size_t)f->n_settings, sizeof *keys, by_key);
  for (int i = 1; i < f->n_settings && st == AX_OK; i++)
    if (strcmp(keys[i - 1], keys[i]) == 0) st = FAIL(AX_EIO, "it has the key '%.100s' twice", keys[i]);
  ax_mfree(keys);
  return st;
}

static ax_status read_alignment(ax_gguf *f)
{
  ax_gguf_value v;
  ax_status st;

  f->alignment = DEFAULT_ALIGNMENT;
  for (int i = 0; i < f->n_settings; i++) {
    int64_t at = f->settings[i].at;
    if (strcmp(f->settings[i].key, "general.alignment") != 0) continue;
    if (f->settings[i].kind != AX_GGUF_U32) return FAIL(AX_EIO, "general.alignment is not of the kind u32");
    if ((st = ax_gguf_read(f, AX_GGUF_U32, &at, &v)) != AX_OK) return st;
    f->alignment = (int64_t)v.number;
    if (f->alignment < 1 || (f->alignment & (f->alignment - 1)))
      return FAIL(AX_EIO, "general.alignment must be a power of two, got %lld", (long long)f->alignment);
  }
  return AX_OK;
}

/* ---- tensors */

static ax_status read_dims(ax_gguf *f, ax_gguf_tensor *t, int64_t *at)
{
  uint64_t n, size;
  ax_status st = read_number(f, 4, at, &n);

  if (st != AX_OK) return st;
  if (n > MOST_DIMS)
    return FAIL(AX_EIO, "tensor '%.100s' has %llu dims; at most %d", t->name, (unsigned long long)n,
                MOST_DIMS);
  t->ndim = (int)n;
  for (int d = t->ndim - 1; d >= 0; d--) { /* the innermost comes first */
    if ((st = read_number(f, f->version == 1 ? 4 : 8, at, &size)) != AX_OK) return st;
    if (size > INT64_MAX / 8)
      return FAIL(AX_EIO, "tensor '%.100s': dim %d has %llu numbers", t->name, t->ndim - d,
                  (unsigned long long)size);
    t->shape[d] = (int64_t)size;
  }
  return AX_OK;
}

/* The bytes of a tensor whose type is known. */
static ax_status count_bytes(const ax_gguf *f, ax_gguf_tensor *t)
{
  const int64_t row = t->ndim ? t->shape[t->ndim - 1] : 1;
  int64_t n = row / t->type->block;

  if (row % t->type->block)
    return FAIL(AX_EIO, "tensor '%.100s': rows of %s must be multiples of %d numbers, got %lld", t->name,
                t->type->name, t->type->block, (long long)row);
  for (int d = 0; d < t->ndim - 1; d++)
    if (__builtin_mul_overflow(n, t->shape[d], &n)) n = INT64_MAX;
  if (__builtin_mul_overflow(n, (int64_t)t->type->bytes, &t->bytes)) t->bytes = INT64_MAX;
  return AX_OK;
}

static ax_status read_tensor(ax_gguf *f, int64_t *at)
{
  ax_gguf_tensor *t;
  uint64_t type, begin;
  ax_status st;

  if ((st = ax_grow(&f->tensors, f->n_tensors, &f->tensors_room, sizeof *f->tensors)) != AX_OK) return st;
  t = &f->tensors[f->n_tensors];
  *t = (ax_gguf_tensor){ .bytes = -1 };
  f->n_tensors++;
  if ((st = read_name(f, "the length of a tensor's name", at, &t->name)) != AX_OK) return st;
  if ((st = read_dims(f, t, at)) != AX_OK) return st;
  if ((st = read_number(f, 4, at, &type)) != AX_OK) return st;
  if ((st = read_number(f, 8, at, &begin)) != AX_OK) return st;
  t->number = (uint32_t)type;
  t->type = ax_gguf_type_of(t->number);
  if (begin > INT64_MAX)
    return FAIL(AX_EIO, "tensor '%.100s' begins at byte %llu", t->name, (unsigned long long)begin);
  t->begin = (int64_t)begin;
  return t->type ? count_bytes(f, t) : AX_OK;
}

static int by_name(const void *a, const void *b)
{
  return strcmp((*(const ax_gguf_tensor *const *)a)->name, (*(const ax_gguf_tensor *const *)b)->name);
}

static int by_place(const void *a, const void *b)
{
  const ax_gguf_tensor *x = *(const ax_gguf_tensor *const *)a, *y = *(const ax_gguf_tensor *const *)b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Is each tensor within the file, and apart from the others? */
static ax_status check_places(const ax_gguf *f)
{
  const int64_t there = (int64_t)f->file.n - f->data;
  const ax_gguf_tensor *before = NULL;

  for (int i = 0; i < f->n_tensors; i++) {
    const ax_gguf_tensor *t = f->sorted[i];
    if (t->begin % f->alignment)
      return FAIL(AX_EIO, "tensor '%.100s' begins at byte %lld, no multiple of general.alignment (%lld)",
                  t->name, (long long)t->begin, (long long)f->alignment);
    if (t->bytes > there || t->begin > there - (t->bytes > 0 ? t->bytes : 0))
      return FAIL(AX_EIO,
                  "tensor '%.100s' has %lld bytes at byte %lld of the data, "
                  "but the file has %lld there (is it truncated?)",
                  t->name, (long long)t->bytes, (long long)t->begin, (long long)(there > 0 ? there : 0));
    if (t->bytes <= 0) continue;
    if (before && t->begin < before->begin + before->bytes)
      return FAIL(AX_EIO, "the tensors '%.100s' and '%.100s' overlap", before->name, t->name);
    before = t;
  }
  return AX_OK;
}

static ax_status check_tensors(ax_gguf *f)
{
  ax_status st;

  if (!(f->sorted = ax_malloc(sizeof *f->sorted * ((size_t)f->n_tensors + 1)))) return AX_ENOMEM;
  for (int i = 0; i < f->n_tensors; i++) f->sorted[i] = &f->tensors[i];
  qsort(f->sorted, (size_t)f->n_tensors, sizeof *f->sorted, by_place);
  if ((st = check_places(f)) != AX_OK) return st;
  qsort(f->sorted, (size_t)f->n_tensors, sizeof *f->sorted, by_name);
  for (int i = 1; i < f->n_tensors; i++)
    if (strcmp(f->sorted[i - 1]->name, f->sorted[i]->name) == 0)
      return FAIL(AX_EIO, "it has the tensor '%.100s' twice", f->sorted[i]->name);
  return AX_OK;
}

/* ---- the header */

#define LFS "version https://git-lfs" /* what a pointer begins with */

static ax_status read_version(ax_gguf *f, int64_t *at)
{
  const uint8_t *b = f->file.data;
  uint64_t version;
  ax_status st;

  if (f->file.n >= sizeof LFS - 1 && memcmp(b, LFS, sizeof LFS - 1) == 0)
    return FAIL(AX_EIO,
                "it is a Git LFS pointer, not the file that it stands for; `git lfs pull` fetches that");
  if (f->file.n < 4 || memcmp(b, "GGUF", 4) != 0)
    return FAIL(
        AX_EIO,
        "it does not begin with \"GGUF\" (older forms of llama.cpp's files, GGML and GGJT, are not read)");
  *at = 4;
  if ((st = read_number(f, 4, at, &version)) != AX_OK) return st;
  if ((version & 0xffff) == 0 && version) {
    f->swapped = true;
    version = __builtin_bswap32((uint32_t)version);
  }
  if (version < 1 || version > 3)
    return FAIL(AX_EIO, "it is of version %llu; 1 to 3 are read", (unsigned long long)version);
  f->version = (int)version;
  return AX_OK;
}

ax_status ax_gguf_parse(ax_gguf *f)
{
  int64_t at = 0, tensors, settings;
  ax_status st;

  AX_TRY(read_version(f, &at));
  AX_TRY(read_count(f, "the count of tensors", LEAST_TENSOR, &at, &tensors));
  AX_TRY(read_count(f, "the count of settings", LEAST_SETTING, &at, &settings));
  if (tensors > INT32_MAX / 2 || settings > INT32_MAX / 2)
    return FAIL(AX_EIO, "it lists %lld tensors and %lld settings", (long long)tensors, (long long)settings);
  for (int64_t i = 0; i < settings; i++) AX_TRY(read_setting(f, &at));
  AX_TRY(check_keys(f));
  AX_TRY(read_alignment(f));
  for (int64_t i = 0; i < tensors; i++) AX_TRY(read_tensor(f, &at));
  f->data = (at + f->alignment - 1) & ~(f->alignment - 1);
  AX_TRY(check_tensors(f));
  st = ax_bytes_check("gguf", f->path, &f->file);
out:
  return st;
}

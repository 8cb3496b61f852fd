/* npy.c: NumPy's files.
 *
 * .npy: "\x93NUMPY", version, length of the header, a Python dict literal { 'descr',
 * 'fortran_order', 'shape' }, the elements.  .npz: a zip archive of such files, stored or deflated.
 *
 * Types that tensors lack are read as the next wider type: int8, int16, uint16 -> int32; uint32 ->
 * int64; uint64 -> int64 when every value fits.  Sizes are checked against the file before memory
 * is allocated. */
#include "io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/io/file.h"
#include "core/io/zip.h"

#define FAIL(st, fmt, ...) AX_FILE_FAIL(st, s->fn, s->path, fmt, ##__VA_ARGS__)

typedef struct source {
  const char *fn, *path; /* for messages */
} source;

typedef struct header {
  char kind; /* f i u b, or B: bfloat16 */
  int item;  /* bytes */
  bool big, fortran;
  int ndim;
  int64_t shape[AX_MAX_DIMS], numel;
  size_t at;      /* the offset of the elements */
  ax_dtype dtype; /* of the tensor */
} header;

/* ---- the header: a small part of Python's syntax */

typedef struct text {
  const char *at, *end;
} text;

static void skip_space(text *t)
{
  while (t->at < t->end && (*t->at == ' ' || *t->at == '\n' || *t->at == '\t')) t->at++;
}

static bool accept(text *t, const char *word)
{
  const size_t n = strlen(word);
  skip_space(t);
  if ((size_t)(t->end - t->at) < n || memcmp(t->at, word, n) != 0) return false;
  t->at += n;
  return true;
}

/* A quoted string without escapes into buf. */
static bool read_string(text *t, char *buf, size_t size)
{
  size_t n = 0;
  char quote;
  skip_space(t);
  if (t->at >= t->end || (*t->at != '\'' && *t->at != '"')) return false;
  quote = *t->at++;
  while (t->at < t->end && *t->at != quote) {
    if (n + 1 >= size || *t->at == '\\') return false;
    buf[n++] = *t->at++;
  }
  buf[n] = '\0';
  return t->at++ < t->end;
}

static bool read_size(text *t, int64_t *out)
{
  int64_t v = 0;
  skip_space(t);
  if (t->at >= t->end || *t->at < '0' || *t->at > '9') return false;
  for (; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++)
    if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *t->at - '0', &v)) return false;
  if (t->at < t->end && *t->at == 'L') t->at++; /* Python 2 */
  *out = v;
  return true;
}

/* "<f4": byte order, kind, bytes */
static ax_status read_descr(const source *s, const char *descr, header *h)
{
  static const struct {
    const char *name;
    ax_dtype dtype;
  } types[] = {
    { "f4", AX_F32 }, { "f8", AX_F64 },  { "f2", AX_F16 }, { "i8", AX_I64 },   { "i4", AX_I32 },
    { "u1", AX_U8 },  { "b1", AX_BOOL }, { "i1", AX_I32 }, { "i2", AX_I32 },   { "u2", AX_I32 },
    { "u4", AX_I64 }, { "u8", AX_I64 },  { "c8", AX_C64 }, { "c16", AX_C128 },
  };
  static const ax_dtype named[] = { AX_BF16, AX_E4M3, AX_E5M2 }; /* as ml_dtypes calls them */
  const char order = descr[0], *name = strchr("<>=|", order) && order ? descr + 1 : descr;

  h->big = order == '>';
  for (size_t i = 0; i < sizeof named / sizeof *named; i++)
    if (strcmp(descr, ax_dtype_name(named[i])) == 0) {
      h->kind = 'B';
      h->item = (int)ax_dtype_size(named[i]);
      h->dtype = named[i];
      h->big = false;
      return AX_OK;
    }
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (strcmp(name, types[i].name) == 0) {
      h->kind = name[0];
      h->item = (int)strtol(name + 1, NULL, 10);
      h->dtype = types[i].dtype;
      return AX_OK;
    }
  return FAIL(AX_EDTYPE,
              "the elements are '%.40s', which tensors do not have; expected floats, complex numbers, "
              "integers or booleans",
              descr);
}

static ax_status read_shape(const source *s, text *t, header *h)
{
  if (!accept(t, "(")) return FAIL(AX_EIO, "the shape in its header cannot be read");
  h->ndim = 0;
  h->numel = 1;
  while (!accept(t, ")")) {
    int64_t size;
    if (!read_size(t, &size)) return FAIL(AX_EIO, "the shape in its header cannot be read");
    if (h->ndim == AX_MAX_DIMS) return FAIL(AX_EIO, "more than %d dims", AX_MAX_DIMS);
    h->shape[h->ndim++] = size;
    if (__builtin_mul_overflow(h->numel, size, &h->numel))
      return FAIL(AX_EIO, "the sizes in its header are too large to be true");
    if (!accept(t, ",")) {
      if (accept(t, ")")) break;
      return FAIL(AX_EIO, "the shape in its header cannot be read");
    }
  }
  for (int d = 0; d < h->ndim; d++) /* a size of 0 would hide impossible sizes */
    if (h->shape[d] > INT64_MAX / 16) return FAIL(AX_EIO, "the sizes in its header are too large to be true");
  return AX_OK;
}

static ax_status read_dict(const source *s, text t, header *h)
{
  bool descr = false, fortran = false, shape = false;
  char key[32], value[64];
  ax_status st;

  if (!accept(&t, "{")) return FAIL(AX_EIO, "its header is no dict");
  while (!accept(&t, "}")) {
    if (!read_string(&t, key, sizeof key) || !accept(&t, ":"))
      return FAIL(AX_EIO, "its header cannot be read");
    if (strcmp(key, "descr") == 0) {
      if (accept(&t, "[")) return FAIL(AX_EDTYPE, "it holds records; expected numbers");
      if (!read_string(&t, value, sizeof value)) return FAIL(AX_EIO, "'descr' in its header cannot be read");
      if ((st = read_descr(s, value, h)) != AX_OK) return st;
      descr = true;
    } else if (strcmp(key, "fortran_order") == 0) {
      h->fortran = accept(&t, "True");
      if (!h->fortran && !accept(&t, "False"))
        return FAIL(AX_EIO, "'fortran_order' in its header is neither True nor False");
      fortran = true;
    } else if (strcmp(key, "shape") == 0) {
      if ((st = read_shape(s, &t, h)) != AX_OK) return st;
      shape = true;
    } else return FAIL(AX_EIO, "its header has an unknown key '%s'", key);
    if (!accept(&t, ",")) {
      if (accept(&t, "}")) break;
      return FAIL(AX_EIO, "its header cannot be read");
    }
  }
  if (!descr || !fortran || !shape)
    return FAIL(AX_EIO, "its header lacks '%s'", !descr ? "descr" : !fortran ? "fortran_order" : "shape");
  return AX_OK;
}

static ax_status read_header(const source *s, const uint8_t *p, size_t n, header *h)
{
  size_t length, start;
  int64_t bytes;
  ax_status st;

  if (n < 10) return FAIL(AX_EIO, "ends after %zu bytes; expected a NumPy header", n);
  if (memcmp(p, "\x93NUMPY", 6) != 0)
    return FAIL(AX_EIO, "not a NumPy file: it starts with %02x %02x %02x %02x; expected 93 4e 55 4d", p[0],
                p[1], p[2], p[3]);
  if (p[6] < 1 || p[6] > 3)
    return FAIL(AX_EIO, "version %d.%d of the format; expected 1.0 to 3.0", p[6], p[7]);
  start = p[6] == 1 ? 10 : 12;
  if (n < start) return FAIL(AX_EIO, "ends after %zu bytes; expected a NumPy header", n);
  length = p[6] == 1 ? (size_t)p[8] | (size_t)p[9] << 8
                     : (size_t)p[8] | (size_t)p[9] << 8 | (size_t)p[10] << 16 | (size_t)p[11] << 24;
  if (length > n - start)
    return FAIL(AX_EIO, "ends inside its header: %zu bytes; expected %zu", n, start + length);
  if ((st = read_dict(s, (text){ (const char *)p + start, (const char *)p + start + length }, h)) != AX_OK)
    return st;
  h->at = start + length;
  if (__builtin_mul_overflow(h->numel, (int64_t)h->item, &bytes) || (uint64_t)bytes != n - h->at)
    return FAIL(AX_EIO, "its header says %lld elements of %d bytes; found %zu bytes", (long long)h->numel,
                h->item, n - h->at);
  return AX_OK;
}

/* ---- the elements */

#define WIDEN(S, D) \
  for (int64_t i = 0; i < n; i++) ((D *)to)[i] = ((const S *)from)[i]; \
  break

/* Converts from the file's type, in this machine's byte order, to the tensor's. */
static ax_status convert(const source *s, const header *h, const void *from, void *to)
{
  const int64_t n = h->numel;
  switch (h->kind * 16 + h->item) {
  case 'i' * 16 + 1: WIDEN(int8_t, int32_t);
  case 'i' * 16 + 2: WIDEN(int16_t, int32_t);
  case 'u' * 16 + 2: WIDEN(uint16_t, int32_t);
  case 'u' * 16 + 4: WIDEN(uint32_t, int64_t);
  case 'u' * 16 + 8:
    for (int64_t i = 0; i < n; i++) {
      const uint64_t v = ((const uint64_t *)from)[i];
      if (v > INT64_MAX)
        return FAIL(AX_EDTYPE, "the uint64 element %llu does not fit into int64", (unsigned long long)v);
      ((int64_t *)to)[i] = (int64_t)v;
    }
    break;
  case 'b' * 16 + 1:
    for (int64_t i = 0; i < n; i++) ((uint8_t *)to)[i] = ((const uint8_t *)from)[i] != 0;
    break;
  default: return ax_file_copy(to, from, (size_t)n * (size_t)h->item);
  }
  return ax_file_go_on();
}

/* Copies items, swapping their bytes where the file's byte order is not this machine's. */
static ax_status copy_ordered(void *to, const uint8_t *from, int64_t n, int item, bool big)
{
  if (big == (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__) || item == 1)
    return ax_file_copy(to, from, (size_t)n * (size_t)item);
  for (int64_t i = 0; i < n; i++)
    for (int b = 0; b < item; b++) ((uint8_t *)to)[i * item + b] = from[i * item + item - 1 - b];
  return ax_file_go_on();
}

/* Reads one .npy file that is in memory. */
static ax_status read_npy(const source *s, const uint8_t *p, size_t n, ax_tensor **out)
{
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS], step = 1;
  ax_tensor *t = NULL, *view = NULL;
  ax_status st = AX_OK;
  void *copy = NULL;
  header h = { 0 };

  *out = NULL;
  AX_TRY(read_header(s, p, n, &h));
  for (int d = 0; d < h.ndim; d++) shape[d] = h.fortran ? h.shape[h.ndim - 1 - d] : h.shape[d];
  AX_TRY(ax_file_tensor(s->fn, s->path, h.dtype, h.ndim, shape, &t));
  if (h.numel > 0) {
    if (!(copy = malloc((size_t)h.numel * (size_t)h.item)))
      AX_TRY(FAIL(AX_ENOMEM, "no memory for its elements"));
    const int parts = h.kind == 'c' ? 2 : 1; /* each part of a complex number has its own order */
    AX_TRY(copy_ordered(copy, p + h.at, h.numel * parts, h.item / parts, h.big));
    AX_TRY(convert(s, &h, copy, ax_data(t)));
  }
  /* the dims are stored in reverse: make a view with them in order, then copy it */
  if (h.fortran && h.ndim > 1) {
    for (int d = 0; d < h.ndim; d++) {
      strides[d] = step;
      step *= h.shape[d];
    }
    AX_TRY(ax_tensor_over(t->storage, h.dtype, h.ndim, h.shape, strides, 0, &view));
    AX_TRY(ax_contiguous(view, out));
  } else {
    *out = t;
    t = NULL;
  }
out:
  free(copy);
  ax_tensor_release(view);
  ax_tensor_release(t);
  return st;
}

ax_status ax_npy_read(const char *path, ax_tensor **out)
{
  const source s = { "read_npy", path };
  ax_bytes file;
  ax_status st;

  *out = NULL;
  if ((st = ax_file_map(s.fn, path, &file)) != AX_OK) return st;
  st = read_npy(&s, file.data, file.n, out);
  if (ax_bytes_check(s.fn, path, &file) != AX_OK) st = AX_EIO; /* then this is what is wrong with it */
  if (st != AX_OK) {
    ax_tensor_release(*out);
    *out = NULL;
  }
  ax_bytes_free(&file);
  return st;
}

/* ---- archives */

/* The array of entry i of an archive; *name: what it is called there without ".npy", for
 * ax_mfree. */
static ax_status read_member(const ax_zip *z, int i, char **name, ax_tensor **out)
{
  const char *path = ax_zip_path(z), *given;
  const source archive = { "read_npz", path }, *s = &archive;
  const uint8_t *data = NULL;
  void *owned = NULL;
  char inside[4096];
  size_t length, n;
  ax_status st;

  given = ax_zip_name(z, i, &length);
  if (length > 4 && memcmp(given + length - 4, ".npy", 4) == 0) length -= 4;
  if (length > 2048 || memchr(given, 0, length)) return FAIL(AX_EIO, "the name of entry %d is none", i + 1);
  if ((st = ax_zip_bytes(z, i, &data, &n, &owned)) != AX_OK) return st;
  snprintf(inside, sizeof inside, "%.1800s: %.*s", path, (int)length, given);
  st = read_npy(&(source){ s->fn, inside }, data, n, out);
  free(owned);
  if (st != AX_OK) return st;
  if (!(*name = ax_malloc(length + 1))) return AX_ENOMEM; /* the tensor goes with the others */
  memcpy(*name, given, length);
  (*name)[length] = '\0';
  return AX_OK;
}

ax_status ax_npz_read(const char *path, ax_tensor_file **out)
{
  ax_tensor_file *f = NULL;
  ax_zip *z;
  ax_status st;
  int n;

  *out = NULL;
  if ((st = ax_zip_open("read_npz", path, &z)) != AX_OK) return st;
  n = ax_zip_count(z);
  if (!(f = ax_calloc(1, sizeof *f)) || !(f->names = ax_calloc((size_t)n + 1, sizeof *f->names)) ||
      !(f->tensors = ax_calloc((size_t)n + 1, sizeof *f->tensors)))
    AX_TRY(AX_ENOMEM);
  for (f->n = 0; f->n < n;) {
    const int i = f->n++; /* counted first, so that a failure frees what there is of it */
    AX_TRY(read_member(z, i, &f->names[i], &f->tensors[i]));
  }
out:
  if ((st = ax_zip_check(z, st)) == AX_OK) {
    *out = f;
    f = NULL;
  }
  ax_tensor_file_free(f);
  ax_zip_close(z);
  return st;
}

void ax_tensor_file_free(ax_tensor_file *f)
{
  if (!f) return;
  for (int i = 0; f->names && i < f->n; i++) ax_mfree(f->names[i]);
  for (int i = 0; f->tensors && i < f->n; i++) ax_tensor_release(f->tensors[i]);
  ax_mfree(f->names);
  ax_mfree(f->tensors);
  ax_mfree(f);
}

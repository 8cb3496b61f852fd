/* safetensors.c: the reader of the safetensors format (described in safetensors.h;
 * safetensors_write.c is the writer).
 *
 * The whole header is checked against the size of the file before a tensor is allocated: a damaged
 * or hostile file costs an error message.  cJSON parses the JSON, and bounds its recursion.  What
 * cJSON accepts and the format does not (NUL and control characters, bytes that are not UTF-8,
 * repeated names) is checked here. */
#include "safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/io/file.h"

/* Fails with a message that names the file of the reader `r`. */
#define FAIL(st, fmt, ...) ax_fail(st, "safetensors: '%s': " fmt, r->path, ##__VA_ARGS__)

#define EXACT_INTEGERS 9007199254740992.0 /* 2^53: cJSON's numbers are doubles */

/* ---- the header */

typedef struct entry {
  const char *name; /* inside the parsed JSON */
  ax_dtype dtype;
  int ndim;
  int64_t shape[AX_MAX_DIMS];
  int64_t begin, end;
} entry;

typedef struct reader {
  const char *path;
  int fd;
  int64_t header_bytes, data_bytes;
  char *header;
  cJSON *json;
  int n;
  entry *entries;       /* [n], in the header's order */
  const entry **sorted; /* [n], for the two checks that need sorted entries */
} reader;

static ax_status read_at(const reader *r, void *to, int64_t bytes, int64_t at)
{
  int64_t done = 0;
  while (done < bytes) {
    const int64_t rest = bytes - done;
    const ssize_t n =
        pread(r->fd, (char *)to + done, rest > (1 << 30) ? (size_t)1 << 30 : (size_t)rest, at + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FAIL(AX_EIO, "cannot be read: %s", strerror(errno));
    if (n == 0) return FAIL(AX_EIO, "the file became shorter while it was read");
    done += n;
  }
  return AX_OK;
}

static ax_status open_file(reader *r)
{
  size_t bytes;
  uint8_t b[8];
  uint64_t size = 0;
  ax_status st;

  if ((st = ax_file_open("safetensors", r->path, &r->fd, &bytes)) != AX_OK) return st;
  if (bytes < 8)
    return FAIL(AX_EIO, "the file has %zu bytes; expected at least the 8 of the header's size", bytes);
  if ((st = read_at(r, b, 8, 0)) != AX_OK) return st;
  for (int i = 7; i >= 0; i--) size = size << 8 | b[i];
  if (size > AX_SAFETENSORS_HEADER_LIMIT)
    return FAIL(AX_EIO,
                "the file says its header has %llu bytes; at most %d are allowed (is it a safetensors file?)",
                (unsigned long long)size, AX_SAFETENSORS_HEADER_LIMIT);
  if (size > bytes - 8)
    return FAIL(AX_EIO,
                "the file says its header has %llu bytes, but only %zu follow (is the file truncated?)",
                (unsigned long long)size, bytes - 8);
  r->header_bytes = (int64_t)size;
  r->data_bytes = (int64_t)(bytes - 8 - size);
  return AX_OK;
}

/* Refuses text that cJSON would accept, cut or pass on: control characters (NUL ends its strings),
 * NUL written as an escape, bytes that are not UTF-8. */
static ax_status check_text(const reader *r)
{
  const unsigned char *s = (const unsigned char *)r->header;
  const size_t n = (size_t)r->header_bytes;

  for (size_t i = 0; i < n;) {
    size_t len = ax_utf8_length(s + i, n - i);
    if (len == 0 || (s[i] < 0x20 && s[i] != '\n' && s[i] != '\r' && s[i] != '\t'))
      return FAIL(AX_EIO, "the header is not text: byte 0x%02x at %zu", s[i], i);
    if (s[i] == '\\') {
      if (n - i >= 6 && memcmp(s + i, "\\u0000", 6) == 0)
        return FAIL(AX_EIO, "the header has a NUL in a name at byte %zu", i);
      len = n - i > 1 && s[i + 1] < 0x80 ? 2 : 1;
    }
    i += len;
  }
  return AX_OK;
}

static ax_status parse_header(reader *r)
{
  const char *end = NULL;
  ax_status st;

  r->header = ax_malloc((size_t)r->header_bytes);
  if (!r->header) return AX_ENOMEM;
  if ((st = read_at(r, r->header, r->header_bytes, 8)) != AX_OK) return st;
  if (r->header_bytes == 0 || r->header[0] != '{')
    return FAIL(AX_EIO, "the header does not start with '{' (is it a safetensors file?)");
  if ((st = check_text(r)) != AX_OK) return st;
  r->json = cJSON_ParseWithLengthOpts(r->header, (size_t)r->header_bytes, &end, 0);
  if (!r->json)
    return FAIL(AX_EIO, "the header is not valid JSON (near byte %lld)",
                (long long)(end ? end - r->header : 0));
  for (; end < r->header + r->header_bytes; end++)
    if (*end != ' ' && *end != '\n' && *end != '\r' && *end != '\t')
      return FAIL(AX_EIO, "the header goes on after its JSON (at byte %lld)", (long long)(end - r->header));
  return AX_OK;
}

/* Whether `item` is a whole number from 0 to 2^53. */
static bool get_size(const cJSON *item, int64_t *out)
{
  if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= EXACT_INTEGERS)) return false;
  *out = (int64_t)item->valuedouble;
  return (double)*out == item->valuedouble;
}

static ax_status parse_dtype(const reader *r, const cJSON *item, const char *name, ax_dtype *out)
{
  if (!cJSON_IsString(item)) return FAIL(AX_EIO, "tensor '%.100s' has no \"dtype\"", name);
  for (int d = 0; d < AX_DTYPE_COUNT; d++)
    if (strcmp(item->valuestring, ax_safetensors_types[d]) == 0) {
      *out = (ax_dtype)d;
      return AX_OK;
    }
  return FAIL(AX_EDTYPE, "tensor '%.100s' has dtype '%.20s'; known are F64 F32 F16 BF16 I64 I32 U8 BOOL",
              name, item->valuestring);
}

static ax_status parse_entry(const reader *r, const cJSON *item, entry *e)
{
  const char *name = item->string;
  const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
  const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets"), *size;
  char text[192];
  int64_t bytes;
  ax_status st;

  e->name = name;
  if (!cJSON_IsObject(item)) return FAIL(AX_EIO, "the entry of tensor '%.100s' is not an object", name);
  if ((st = parse_dtype(r, cJSON_GetObjectItemCaseSensitive(item, "dtype"), name, &e->dtype)) != AX_OK)
    return st;

  if (!cJSON_IsArray(shape)) return FAIL(AX_EIO, "tensor '%.100s' has no \"shape\"", name);
  bytes = (int64_t)ax_dtype_size(e->dtype);
  cJSON_ArrayForEach(size, shape)
  {
    if (e->ndim == AX_MAX_DIMS)
      return FAIL(AX_ESHAPE, "tensor '%.100s' has more than %d dims", name, AX_MAX_DIMS);
    if (!get_size(size, &e->shape[e->ndim]))
      return FAIL(AX_EIO, "size %d of tensor '%.100s' is not a whole number", e->ndim + 1, name);
    if (__builtin_mul_overflow(bytes, e->shape[e->ndim], &bytes))
      return FAIL(AX_EIO, "the shape of tensor '%.100s' is too large to be true", name);
    e->ndim++;
  }

  if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
      !get_size(cJSON_GetArrayItem(offsets, 0), &e->begin) ||
      !get_size(cJSON_GetArrayItem(offsets, 1), &e->end))
    return FAIL(AX_EIO, "tensor '%.100s' has no \"data_offsets\" of two whole numbers", name);
  if (e->begin > e->end || e->end > r->data_bytes)
    return FAIL(
        AX_EIO,
        "tensor '%.100s' lies at bytes %lld to %lld of the data, which has %lld (is the file truncated?)",
        name, (long long)e->begin, (long long)e->end, (long long)r->data_bytes);
  if (e->end - e->begin != bytes)
    return FAIL(AX_EIO, "tensor '%.100s' is %s %s, which takes %lld bytes; its offsets give it %lld", name,
                ax_dtype_name(e->dtype), ax_shape_text(e->ndim, e->shape, text, sizeof text),
                (long long)bytes, (long long)(e->end - e->begin));
  return AX_OK;
}

static int by_name(const void *a, const void *b)
{
  return strcmp((*(const entry *const *)a)->name, (*(const entry *const *)b)->name);
}

static int by_place(const void *a, const void *b)
{
  const entry *x = *(const entry *const *)a, *y = *(const entry *const *)b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return x->end < y->end ? -1 : x->end > y->end;
}

/* Checks that names are unique, and that the tensors cover the data without holes or overlap. */
static ax_status check_entries(const reader *r)
{
  int64_t at = 0;

  qsort(r->sorted, (size_t)r->n, sizeof *r->sorted, by_name);
  for (int i = 1; i < r->n; i++)
    if (strcmp(r->sorted[i - 1]->name, r->sorted[i]->name) == 0)
      return FAIL(AX_EIO, "two tensors are called '%.100s'", r->sorted[i]->name);
  qsort(r->sorted, (size_t)r->n, sizeof *r->sorted, by_place);
  for (int i = 0; i < r->n; i++) {
    if (r->sorted[i]->begin != at)
      return FAIL(AX_EIO, "tensor '%.100s' begins at byte %lld of the data; expected %lld (%s)",
                  r->sorted[i]->name, (long long)r->sorted[i]->begin, (long long)at,
                  r->sorted[i]->begin < at ? "tensors overlap" : "a hole");
    at = r->sorted[i]->end;
  }
  if (at != r->data_bytes)
    return FAIL(AX_EIO, "the file has %lld bytes of data; its tensors take %lld", (long long)r->data_bytes,
                (long long)at);
  return AX_OK;
}

static bool is_metadata(const cJSON *item) { return strcmp(item->string, "__metadata__") == 0; }

static ax_status parse_entries(reader *r)
{
  const cJSON *item;
  ax_status st;
  int k = 0;

  cJSON_ArrayForEach(item, r->json) r->n += !is_metadata(item);
  r->entries = ax_calloc((size_t)r->n, sizeof *r->entries);
  r->sorted = ax_calloc((size_t)r->n, sizeof *r->sorted);
  if (!r->entries || !r->sorted) return AX_ENOMEM;
  cJSON_ArrayForEach(item, r->json)
  {
    if (is_metadata(item)) continue;
    r->sorted[k] = &r->entries[k];
    if ((st = parse_entry(r, item, &r->entries[k++])) != AX_OK) return st;
  }
  return check_entries(r);
}

/* ---- the data */

static char *copy_text(const char *s)
{
  const size_t n = strlen(s) + 1;
  char *p = ax_malloc(n);
  return p ? memcpy(p, s, n) : NULL;
}

static ax_status read_metadata(const reader *r, ax_tensor_file *f)
{
  const cJSON *item, *map = NULL;

  cJSON_ArrayForEach(item, r->json)
  {
    if (!is_metadata(item)) continue;
    if (map) return FAIL(AX_EIO, "the file has \"__metadata__\" twice");
    map = item;
  }
  if (!map || cJSON_IsNull(map)) return AX_OK;
  if (!cJSON_IsObject(map)) return FAIL(AX_EIO, "\"__metadata__\" is not an object");
  f->meta = ax_calloc(2 * (size_t)cJSON_GetArraySize(map), sizeof *f->meta);
  if (!f->meta) return AX_ENOMEM;
  cJSON_ArrayForEach(item, map)
  {
    if (!cJSON_IsString(item)) return FAIL(AX_EIO, "the metadata '%.100s' is not a text", item->string);
    const int at = 2 * f->n_meta++; /* counted first, so that a failure below frees the first of the two */
    if (!(f->meta[at] = copy_text(item->string)) || !(f->meta[at + 1] = copy_text(item->valuestring)))
      return AX_ENOMEM;
  }
  return AX_OK;
}

/* Makes every nonzero byte 1: kernels rely on bools being 0 or 1, and a file may contain other
 * bytes. */
static void normalise_bools(ax_tensor *t)
{
  uint8_t *p = ax_data(t);
  for (int64_t i = 0; i < t->numel; i++) p[i] = p[i] != 0;
}

static ax_status read_tensors(const reader *r, ax_tensor_file *f)
{
  ax_status st;

  f->names = ax_calloc((size_t)r->n, sizeof *f->names);
  f->tensors = ax_calloc((size_t)r->n, sizeof *f->tensors);
  if (!f->names || !f->tensors) return AX_ENOMEM;
  for (int i = 0; i < r->n; i++) {
    const entry *e = &r->entries[i];
    f->n = i + 1;
    if (!(f->names[i] = copy_text(e->name))) return AX_ENOMEM;
    if ((st = ax_tensor_new(e->dtype, e->ndim, e->shape, &f->tensors[i])) != AX_OK) return st;
    if ((st = read_at(r, ax_data(f->tensors[i]), e->end - e->begin, 8 + r->header_bytes + e->begin)) != AX_OK)
      return st;
    if (e->dtype == AX_BOOL) normalise_bools(f->tensors[i]);
  }
  return AX_OK;
}

ax_status ax_safetensors_read(const char *path, ax_tensor_file **out)
{
  ax_status st;
  reader r = { .path = path, .fd = -1 };
  ax_tensor_file *f = NULL;

  *out = NULL;
  AX_TRY(open_file(&r));
  AX_TRY(parse_header(&r));
  AX_TRY(parse_entries(&r));
  if (!(f = ax_calloc(1, sizeof *f))) {
    st = AX_ENOMEM;
    goto out;
  }
  AX_TRY(read_metadata(&r, f));
  AX_TRY(read_tensors(&r, f));
  *out = f;
  f = NULL;
out:
  ax_tensor_file_free(f);
  ax_mfree(r.entries);
  ax_mfree(r.sorted);
  ax_mfree(r.header);
  cJSON_Delete(r.json);
  if (r.fd >= 0) close(r.fd);
  return st;
}

void ax_tensor_file_free(ax_tensor_file *f)
{
  if (!f) return;
  for (int i = 0; f->names && i < f->n; i++) ax_mfree(f->names[i]);
  for (int i = 0; f->tensors && i < f->n; i++) ax_tensor_release(f->tensors[i]);
  for (int i = 0; f->meta && i < 2 * f->n_meta; i++) ax_mfree(f->meta[i]);
  ax_mfree(f->names);
  ax_mfree(f->tensors);
  ax_mfree(f->meta);
  ax_mfree(f);
}

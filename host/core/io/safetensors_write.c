/* safetensors_write.c: the writer of the safetensors format (described in safetensors.h). */
#define _GNU_SOURCE /* open_memstream */
#include "core/io/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/io/content.h"

/* Fails with a message that names the file. */
#define FAIL(st, fmt, ...) ax_fail(st, "safetensors: '%s': " fmt, path, ##__VA_ARGS__)

#define ALIGNMENT 8 /* of the data's first byte */

static bool is_utf8(const char *s)
{
  size_t n = strlen(s), len;
  for (; n > 0; s += len, n -= len)
    if ((len = ax_utf8_length((const unsigned char *)s, n)) == 0) return false;
  return true;
}

static int compare_text(const void *a, const void *b)
{
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static ax_status check_names(const char *path, int n, const char *const *names)
{
  ax_status st = AX_OK;
  const char **sorted = ax_malloc((size_t)n * sizeof *sorted);

  if (!sorted) return AX_ENOMEM;
  for (int i = 0; i < n; i++) {
    sorted[i] = names[i];
    if (strcmp(names[i], "__metadata__") == 0)
      AX_TRY(FAIL(AX_EINVAL, "no tensor can be called '__metadata__': the format keeps that name"));
    if (!is_utf8(names[i])) AX_TRY(FAIL(AX_EINVAL, "the name of tensor %d is not UTF-8", i + 1));
  }
  qsort(sorted, (size_t)n, sizeof *sorted, compare_text);
  for (int i = 1; i < n; i++)
    if (strcmp(sorted[i - 1], sorted[i]) == 0)
      AX_TRY(FAIL(AX_EINVAL, "two tensors are called '%.100s'", sorted[i]));
out:
  ax_mfree(sorted);
  return st;
}

static void print_quoted(FILE *to, const char *s)
{
  putc('"', to);
  for (; *s; s++) {
    const unsigned char c = (unsigned char)*s;
    if (c == '"' || c == '\\') fprintf(to, "\\%c", c);
    else if (c < 0x20) fprintf(to, "\\u%04x", c);
    else putc(c, to);
  }
  putc('"', to);
}

static void print_entry(FILE *to, const char *name, const ax_tensor *t, const char *type, int64_t begin)
{
  print_quoted(to, name);
  fprintf(to, ":{\"dtype\":\"%s\",\"shape\":[", type ? type : ax_safetensors_types[t->dtype]);
  for (int d = 0; d < t->ndim; d++) fprintf(to, d ? ",%lld" : "%lld", (long long)t->shape[d]);
  fprintf(to, "],\"data_offsets\":[%lld,%lld]}", (long long)begin,
          (long long)(begin + t->numel * (int64_t)ax_itemsize(t)));
}

/* places[i]: the offset of tensor i in the data.  Wider types come first, so that each tensor is
 * aligned to its elements. */
static void place_tensors(int n, ax_tensor *const *tensors, int64_t *places)
{
  int64_t at = 0;
  for (size_t size = 8; size >= 1; size /= 2)
    for (int i = 0; i < n; i++)
      if (ax_itemsize(tensors[i]) == size) {
        places[i] = at;
        at += tensors[i]->numel * (int64_t)size;
      }
}

/* *text: the size and the JSON, padded with spaces so that the data begins aligned; the caller
 * frees it. */
static ax_status make_header(int n, const char *const *names, ax_tensor *const *tensors,
                             const char *const *types, const int64_t *places, int n_meta,
                             const char *const *meta, char **text, size_t *bytes)
{
  FILE *to = open_memstream(text, bytes);
  const char *comma = "";
  bool bad;

  if (!to) return ax_fail(AX_ENOMEM, "safetensors: no memory for a header");
  for (int i = 0; i < 8; i++) putc(0, to);
  putc('{', to);
  if (n_meta > 0) {
    fputs("\"__metadata__\":{", to);
    for (int i = 0; i < n_meta; i++) {
      if (i) putc(',', to);
      print_quoted(to, meta[2 * i]);
      putc(':', to);
      print_quoted(to, meta[2 * i + 1]);
    }
    putc('}', to);
    comma = ",";
  }
  for (int i = 0; i < n; i++) {
    fputs(comma, to);
    print_entry(to, names[i], tensors[i], types[i], places[i]);
    comma = ",";
  }
  putc('}', to);
  while (!ferror(to) && ftell(to) % ALIGNMENT) putc(' ', to);
  bad = ferror(to);
  if (fclose(to) != 0 || bad) return ax_fail(AX_ENOMEM, "safetensors: no memory for a header");
  if (*bytes - 8 > AX_SAFETENSORS_HEADER_LIMIT)
    return ax_fail(AX_EINVAL, "safetensors: the header would have %zu bytes; at most %d are allowed",
                   *bytes - 8, AX_SAFETENSORS_HEADER_LIMIT);
  for (int i = 0; i < 8; i++) (*text)[i] = (char)((uint64_t)(*bytes - 8) >> (8 * i));
  return AX_OK;
}

static ax_status add_data(ax_content *to, int n, ax_tensor *const *tensors)
{
  ax_status st = AX_OK;
  for (size_t size = 8; size >= 1; size /= 2)
    for (int i = 0; i < n && st == AX_OK; i++)
      if (ax_itemsize(tensors[i]) == size) st = ax_content_tensor(to, tensors[i]);
  return st;
}

ax_status ax_safetensors_write(ax_save *save, const char *path, int n, const char *const *names,
                               ax_tensor *const *tensors, const char *const *types, int n_meta,
                               const char *const *meta)
{
  ax_content *to = NULL;
  ax_status st;
  int64_t *places = NULL;
  char *header = NULL;
  size_t header_bytes = 0;

  AX_TRY(check_names(path, n, names));
  for (int i = 0; i < n; i++)
    if (!ax_safetensors_types[tensors[i]->dtype])
      AX_TRY(FAIL(AX_EDTYPE, "tensor '%.100s' is %s, which the format does not have; save its view_as_real",
                  names[i], ax_dtype_name((ax_dtype)tensors[i]->dtype)));
  for (int i = 0; i < n; i++)
    if (types[i] && (tensors[i]->dtype != AX_U8 || !ax_safetensors_is_byte(types[i])))
      AX_TRY(FAIL(AX_EDTYPE, "tensor '%.100s': %s is written as itself, not as '%.20s'", names[i],
                  ax_dtype_name((ax_dtype)tensors[i]->dtype), types[i]));
  for (int i = 0; i < 2 * n_meta; i++)
    if (!is_utf8(meta[i])) AX_TRY(FAIL(AX_EINVAL, "entry %d of the metadata is not UTF-8", i / 2 + 1));
  if (!(places = ax_malloc((size_t)n * sizeof *places))) {
    st = AX_ENOMEM;
    goto out;
  }
  place_tensors(n, tensors, places);
  AX_TRY(make_header(n, names, tensors, types, places, n_meta, meta, &header, &header_bytes));

  AX_TRY(ax_content_new("safetensors", path, &to));
  st = ax_content_text(to, header, header_bytes, free);
  header = NULL;
  AX_TRY(st);
  AX_TRY(add_data(to, n, tensors));
out:
  st = ax_content_done(to, save, st);
  free(header);
  ax_mfree(places);
  return st;
}

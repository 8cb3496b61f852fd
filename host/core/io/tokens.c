/* tokens.c: shards of token ids, as trainers of language models write them: consecutive uint16 or
 * uint32 numbers, little-endian, with or without a header.  A file is mapped, so that opening many
 * gigabytes is quick and processes share its pages.
 *
 * llm.c's header is 256 int32: 20240520 (uint16, version 1) or 20240801 (uint32, version 7), the
 * version, the number of tokens. */
#include "io.h"

#include <stdlib.h>
#include <string.h>

#include "core/io/file.h"

#define FN "TokenDataset"
#define FAIL(st, fmt, ...) AX_FILE_FAIL(st, FN, path, fmt, ##__VA_ARGS__)

enum { LLMC_16 = 20240520, LLMC_32 = 20240801, LLMC_HEADER = 1024 };

struct ax_tokens {
  ax_bytes file;
  char *path;
  const uint8_t *data;
  int64_t count;
  int item;
};

static int32_t word(const uint8_t *p, int i)
{
  int32_t v;
  memcpy(&v, p + 4 * i, 4);
  return v;
}

static ax_status look(ax_tokens *t, const char *path, int item, int64_t header)
{
  const uint8_t *p = t->file.data;
  const size_t n = t->file.n;
  int64_t stated = -1;

  if (header < 0) {
    header = 0;
    if (n >= LLMC_HEADER &&
        ((word(p, 0) == LLMC_16 && word(p, 1) == 1) || (word(p, 0) == LLMC_32 && word(p, 1) == 7))) {
      const int wide = word(p, 0) == LLMC_16 ? 2 : 4;
      if (item && item != wide)
        return FAIL(AX_EIO, "its header says uint%d tokens; uint%d were asked for", 8 * wide, 8 * item);
      item = wide;
      header = LLMC_HEADER;
      stated = word(p, 2);
    }
  }
  t->item = item ? item : 2;
  if ((uint64_t)header > n)
    return FAIL(AX_EIO, "%zu bytes, fewer than the %lld of its header", n, (long long)header);
  if ((n - (size_t)header) % (size_t)t->item != 0)
    return FAIL(AX_EIO, "%zu bytes after %lld of header are no whole number of uint%d tokens",
                n - (size_t)header, (long long)header, 8 * t->item);
  t->count = (int64_t)((n - (size_t)header) / (size_t)t->item);
  if (stated >= 0 && stated != t->count)
    return FAIL(AX_EIO, "its header says %lld tokens; found %lld", (long long)stated, (long long)t->count);
  if (p) t->data = p + header; /* an empty file is not mapped */
  return AX_OK;
}

ax_status ax_tokens_open(const char *path, int item, int64_t header, ax_tokens **out)
{
  ax_tokens *t;
  ax_status st;

  *out = NULL;
  if (!(t = ax_calloc(1, sizeof *t))) return AX_ENOMEM;
  if (!(t->path = strdup(path))) st = AX_FILE_FAIL(AX_ENOMEM, FN, path, "no memory to open it");
  else if ((st = ax_file_map(FN, path, &t->file)) == AX_OK) st = look(t, path, item, header);
  if (st == AX_OK) st = ax_bytes_check(FN, path, &t->file);
  if (st != AX_OK) {
    ax_tokens_close(t);
    return st;
  }
  *out = t;
  return AX_OK;
}

void ax_tokens_close(ax_tokens *t)
{
  if (!t) return;
  ax_bytes_free(&t->file);
  free(t->path);
  ax_mfree(t);
}

int64_t ax_tokens_count(const ax_tokens *t) { return t->count; }
int ax_tokens_item(const ax_tokens *t) { return t->item; }

static void widen(const ax_tokens *t, int64_t at, int64_t n, int64_t *to)
{
  const uint8_t *p = t->data + at * t->item; /* unaligned behind a header of odd length */
  if (t->item == 2) {
    for (int64_t i = 0; i < n; i++) {
      uint16_t v;
      memcpy(&v, p + 2 * i, 2);
      to[i] = v;
    }
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    uint32_t v;
    memcpy(&v, p + 4 * i, 4);
    to[i] = v;
  }
}

/* A window beyond the end of a truncated file reads as zeros.  So the check is needed only when the
 * last token is 0. */
ax_status ax_tokens_copy(const ax_tokens *t, int64_t at, int64_t n, int64_t *to)
{
  widen(t, at, n, to);
  return n > 0 && to[n - 1] == 0 ? ax_bytes_check(FN, t->path, &t->file) : AX_OK;
}

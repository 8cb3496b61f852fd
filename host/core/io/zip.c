/* zip.c: zip archives (PKWARE's APPNOTE.TXT), open to be read.
 *
 * The central directory at the end says what there is; sizes beyond 4 GB are in an extra field.
 * Entries are stored or deflated.  Sizes are checked against the file before memory is taken. */
#include "core/io/zip.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "core/io/crc.h"
#include "core/io/file.h"

#define FAIL(st, fmt, ...) AX_FILE_FAIL(st, z->fn, z->path, fmt, ##__VA_ARGS__)
#define SHOWN(e) (int)((e)->name_length < 200 ? (e)->name_length : 200), (e)->name

enum { STORED = 0, DEFLATED = 8 };
enum { END_SIZE = 22, END64_SIZE = 56, LOCATOR_SIZE = 20, ENTRY_SIZE = 46, LOCAL_SIZE = 30 };
#define DEFLATE_MAX_RATIO 1032
#define TEXT_RATIO 16
#define MOST_TEXT ((uint64_t)1 << 26)

typedef struct entry {
  const char *name; /* in the mapped file */
  size_t name_length;
  int method;
  uint32_t crc;
  uint64_t packed, size, at;
} entry;

struct ax_zip {
  const char *fn; /* static text: what messages begin with */
  char *path;
  ax_bytes file;
  const uint8_t *data; /* [bytes]: the archive, all of the file or a part of it */
  size_t bytes;
  int n;
  entry *entries;
};

static uint64_t le(const uint8_t *p, int bytes)
{
  uint64_t v = 0;
  for (int i = bytes - 1; i >= 0; i--) v = v << 8 | p[i];
  return v;
}

/* ---- the directory */

/* Where the directory lies and how many entries it has. */
static ax_status find_directory(const ax_zip *z, uint64_t *at, uint64_t *size, uint64_t *count)
{
  const uint8_t *const start = z->data, *p;
  const size_t n = z->bytes, most = n < END_SIZE + 65535 ? n : END_SIZE + 65535;
  size_t k;

  for (k = END_SIZE; k <= most; k++)
    if (memcmp(start + n - k, "PK\5\6", 4) == 0 && le(start + n - k + 20, 2) == k - END_SIZE) break;
  if (n < END_SIZE || k > most)
    return FAIL(AX_EIO, "not a zip archive, or cut off: it has no directory at its end");
  p = start + n - k;
  *count = le(p + 10, 2);
  *size = le(p + 12, 4);
  *at = le(p + 16, 4);
  if ((*at == UINT32_MAX || *count == UINT16_MAX || *size == UINT32_MAX) && n - k >= LOCATOR_SIZE &&
      memcmp(p - LOCATOR_SIZE, "PK\6\7", 4) == 0) {
    const uint64_t where = le(p - LOCATOR_SIZE + 8, 8);
    if (where > n - k - LOCATOR_SIZE || n - k - LOCATOR_SIZE - where < END64_SIZE ||
        memcmp(start + where, "PK\6\6", 4) != 0)
      return FAIL(AX_EIO, "the end of its directory is damaged");
    *count = le(start + where + 32, 8);
    *size = le(start + where + 40, 8);
    *at = le(start + where + 48, 8);
  }
  if (*at > n - k || *size > n - k - *at) return FAIL(AX_EIO, "its directory lies outside the file");
  if (*count > *size / ENTRY_SIZE || *count > INT_MAX) return FAIL(AX_EIO, "its directory is damaged");
  return AX_OK;
}

/* Those of the three sizes that did not fit into 32 bits, in this order. */
static void read_large_sizes(const uint8_t *at, size_t n, entry *e)
{
  uint64_t *const fields[] = { &e->size, &e->packed, &e->at };
  for (int i = 0; i < 3; i++)
    if (*fields[i] == UINT32_MAX && n >= 8) {
      *fields[i] = le(at, 8);
      at += 8;
      n -= 8;
    }
}

/* The entry of the directory at *at; moves *at on. */
static ax_status read_entry(const ax_zip *z, uint64_t *at, uint64_t end, entry *e)
{
  const uint8_t *p = z->data + *at;
  size_t name, extra, comment;

  if (end - *at < ENTRY_SIZE || memcmp(p, "PK\1\2", 4) != 0) return FAIL(AX_EIO, "its directory is damaged");
  name = le(p + 28, 2);
  extra = le(p + 30, 2);
  comment = le(p + 32, 2);
  if (end - *at - ENTRY_SIZE < name + extra + comment) return FAIL(AX_EIO, "its directory is damaged");
  *e = (entry){ .name = (const char *)p + ENTRY_SIZE,
                .name_length = name,
                .method = (int)le(p + 10, 2),
                .crc = (uint32_t)le(p + 16, 4),
                .packed = le(p + 20, 4),
                .size = le(p + 24, 4),
                .at = le(p + 42, 4) };
  if (le(p + 8, 2) & 1) return FAIL(AX_EIO, "'%.*s' in it is encrypted", SHOWN(e));
  for (const uint8_t *x = p + ENTRY_SIZE + name, *stop = x + extra; stop - x >= 4;) {
    const size_t length = le(x + 2, 2);
    if ((size_t)(stop - x) - 4 < length) break;
    if (le(x, 2) == 1) read_large_sizes(x + 4, length, e);
    x += 4 + length;
  }
  *at += ENTRY_SIZE + name + extra + comment;
  return AX_OK;
}

static ax_status read_directory(ax_zip *z)
{
  uint64_t at = 0, size = 0, count = 0, packed = 0, end;
  ax_status st;

  if ((st = find_directory(z, &at, &size, &count)) != AX_OK) return st;
  if (!(z->entries = ax_calloc(count + 1, sizeof *z->entries))) return AX_ENOMEM;
  end = at + size;
  for (uint64_t i = 0; i < count; i++) {
    entry *e = &z->entries[z->n];
    if ((st = read_entry(z, &at, end, e)) != AX_OK) return st;
    z->n++;
    if (__builtin_add_overflow(packed, e->packed, &packed) || packed > z->bytes)
      return FAIL(AX_EIO, "its entries would take more than the %zu bytes that it has: they overlap",
                  z->bytes);
  }
  return AX_OK;
}

/* Where in the file the archive lies. */
static ax_status find_part(ax_zip *z, int64_t at, int64_t n)
{
  if (n >= 0 && ((uint64_t)at > z->file.n || (uint64_t)n > z->file.n - (uint64_t)at))
    return FAIL(AX_EIO, "it has %zu bytes; an archive of %lld bytes is expected from byte %lld on", z->file.n,
                (long long)n, (long long)at);
  z->data = z->file.data ? z->file.data + at : NULL;
  z->bytes = n >= 0 ? (size_t)n : z->file.n;
  return AX_OK;
}

ax_status ax_zip_open(const char *fn, const char *path, ax_zip **out)
{
  return ax_zip_open_part(fn, path, 0, -1, out);
}

/* file: mapped, borrowed; NULL: it is mapped anew. */
static ax_status open_part(const char *fn, const char *path, const ax_bytes *file, int64_t at, int64_t n,
                           ax_zip **out)
{
  const size_t length = strlen(path) + 1;
  ax_status st = AX_ENOMEM;
  ax_zip *z;

  *out = NULL;
  if (!(z = ax_calloc(1, sizeof *z))) return AX_ENOMEM;
  z->fn = fn;
  if (!(z->path = ax_malloc(length))) goto out;
  memcpy(z->path, path, length);
  if (file && file->mapping) {
    ax_mapping_retain(file->mapping);
    z->file = *file;
  } else AX_TRY(ax_file_map(fn, path, &z->file));
  AX_TRY(find_part(z, at, n));
  AX_TRY(ax_zip_check(z, read_directory(z)));
  *out = z;
  z = NULL;
out:
  ax_zip_close(z);
  return st;
}

ax_status ax_zip_open_part(const char *fn, const char *path, int64_t at, int64_t n, ax_zip **out)
{
  return open_part(fn, path, NULL, at, n, out);
}

ax_status ax_zip_open_other(const ax_zip *z, int64_t at, int64_t n, ax_zip **out)
{
  return open_part(z->fn, z->path, &z->file, at, n, out);
}

void ax_zip_close(ax_zip *z)
{
  if (!z) return;
  ax_bytes_free(&z->file);
  ax_mfree(z->path);
  ax_mfree(z->entries);
  ax_mfree(z);
}

ax_status ax_zip_check(const ax_zip *z, ax_status found)
{
  const ax_status st = ax_bytes_check(z->fn, z->path, &z->file);
  return st == AX_OK ? found : st;
}

const char *ax_zip_path(const ax_zip *z) { return z->path; }
int ax_zip_count(const ax_zip *z) { return z->n; }
uint64_t ax_zip_size(const ax_zip *z, int i) { return z->entries[i].size; }

const char *ax_zip_name(const ax_zip *z, int i, size_t *n)
{
  *n = z->entries[i].name_length;
  return z->entries[i].name;
}

/* ---- entries */

/* Where an entry's bytes begin, behind its local header. */
static ax_status find_bytes(const ax_zip *z, const entry *e, const uint8_t **data)
{
  const uint8_t *const file = z->data;
  const size_t n = z->bytes;
  uint64_t start;

  if (e->at > n || n - e->at < LOCAL_SIZE || memcmp(file + e->at, "PK\3\4", 4) != 0)
    return FAIL(AX_EIO, "'%.*s' in it does not lie where its directory says", SHOWN(e));
  start = e->at + LOCAL_SIZE + le(file + e->at + 26, 2) + le(file + e->at + 28, 2);
  if (start > n || e->packed > n - start)
    return FAIL(AX_EIO, "'%.*s' in it goes on after the end of the file", SHOWN(e));
  *data = file + start;
  return AX_OK;
}

/* Unpacks all of an entry into `to`, a piece at a time. */
static bool inflate_all(z_stream *s, const entry *e, const uint8_t *from, uint8_t *to)
{
  int code = Z_OK;

  s->next_in = (uint8_t *)from;
  s->next_out = to;
  for (uint64_t in = e->packed, out = e->size; code == Z_OK && !ax_file_interrupted();) {
    const unsigned give = in > AX_FILE_PIECE ? (unsigned)AX_FILE_PIECE : (unsigned)in,
                   take = out > AX_FILE_PIECE ? (unsigned)AX_FILE_PIECE : (unsigned)out;
    s->avail_in = give;
    s->avail_out = take;
    code = inflate(s, Z_NO_FLUSH);
    in -= give - s->avail_in;
    out -= take - s->avail_out;
    if (code == Z_OK && s->avail_in == give && s->avail_out == take) code = Z_BUF_ERROR;
  }
  return code == Z_STREAM_END && (size_t)(s->next_out - to) == e->size;
}

static ax_status unpack(const ax_zip *z, const entry *e, const uint8_t *from, void **owned)
{
  z_stream s = { 0 };
  bool whole;

  if (e->size / DEFLATE_MAX_RATIO > e->packed + 1)
    return FAIL(AX_EIO, "'%.*s' in it says %llu bytes, which %llu packed bytes cannot hold", SHOWN(e),
                (unsigned long long)e->size, (unsigned long long)e->packed);
  if (!(*owned = malloc(e->size ? e->size : 1)) || inflateInit2(&s, -15) != Z_OK)
    return FAIL(AX_ENOMEM, "no memory to unpack '%.*s'", SHOWN(e));
  whole = inflate_all(&s, e, from, *owned);
  inflateEnd(&s);
  if (ax_file_interrupted()) return ax_file_go_on();
  return whole ? AX_OK : FAIL(AX_EIO, "'%.*s' in it cannot be unpacked: its data is damaged", SHOWN(e));
}

static ax_status check_sum(const ax_zip *z, const entry *e, uint32_t crc)
{
  if (crc == e->crc) return AX_OK;
  return FAIL(AX_EIO, "'%.*s' in it is damaged: its checksum is %08x, expected %08x", SHOWN(e), crc, e->crc);
}

/* ax_zip_bytes before the checksum is known. */
static ax_status unchecked_bytes(const ax_zip *z, int i, const uint8_t **data, size_t *n, void **owned)
{
  const entry *e = &z->entries[i];
  ax_status st;

  *owned = NULL;
  *n = e->size;
  if ((st = find_bytes(z, e, data)) != AX_OK) return st;
  if (e->method == DEFLATED) {
    AX_TRY(unpack(z, e, *data, owned));
    *data = *owned;
  } else if (e->method != STORED)
    AX_TRY(FAIL(AX_EIO, "'%.*s' in it is packed by method %d; expected 0 (stored) or 8 (deflated)", SHOWN(e),
                e->method));
  else if (e->packed != e->size) AX_TRY(FAIL(AX_EIO, "'%.*s' in it has two sizes", SHOWN(e)));
out:
  if (st != AX_OK) {
    free(*owned);
    *owned = NULL;
  }
  return st;
}

ax_status ax_zip_bytes(const ax_zip *z, int i, const uint8_t **data, size_t *n, void **owned)
{
  ax_status st = unchecked_bytes(z, i, data, n, owned);

  uint32_t crc = 0;

  if (st != AX_OK) return st;
  for (size_t at = 0; at < *n && !ax_file_interrupted(); at += AX_FILE_PIECE)
    crc = ax_crc32(crc, *data + at, *n - at < AX_FILE_PIECE ? *n - at : AX_FILE_PIECE);
  if ((st = ax_file_go_on()) == AX_OK && (st = check_sum(z, &z->entries[i], crc)) == AX_OK) return AX_OK;
  free(*owned);
  *owned = NULL;
  return st;
}

ax_status ax_zip_text(const ax_zip *z, int i, char **out, size_t *n)
{
  const entry *e = &z->entries[i];
  const uint8_t *data;
  void *owned;
  ax_status st;

  *out = NULL;
  if (e->size > MOST_TEXT && (e->size - MOST_TEXT) / TEXT_RATIO > e->packed)
    return FAIL(AX_EIO,
                "'%.*s' in it has %llu bytes, packed into %llu; a text may have %d times as many and 64 MiB",
                SHOWN(e), (unsigned long long)e->size, (unsigned long long)e->packed, TEXT_RATIO);
  if ((st = ax_zip_bytes(z, i, &data, n, &owned)) != AX_OK) return st;
  if (!owned && !(owned = malloc(*n ? *n : 1))) return FAIL(AX_ENOMEM, "no memory for %zu bytes", *n);
  if (owned != data) memcpy(owned, data, *n);
  if ((st = ax_zip_check(z, AX_OK)) == AX_OK) *out = owned;
  else free(owned);
  return st;
}

static ax_status count_elements(const ax_zip *z, int i, ax_dtype dtype, int64_t *count)
{
  const entry *e = &z->entries[i];

  *count = (int64_t)(e->size / ax_dtype_size(dtype));
  if (e->size % ax_dtype_size(dtype) == 0) return AX_OK;
  return FAIL(AX_EIO, "'%.*s' in it has %llu bytes, which is no number of %s elements", SHOWN(e),
              (unsigned long long)e->size, ax_dtype_name(dtype));
}

ax_status ax_zip_lend(const ax_zip *z, int i, ax_dtype dtype, ax_tensor **out)
{
  const entry *e = &z->entries[i];
  const uint8_t *data;
  int64_t count;
  ax_status st;

  *out = NULL;
  if (e->method != STORED || e->packed != e->size) return ax_zip_tensor(z, i, dtype, 1, out);
  if ((st = count_elements(z, i, dtype, &count)) != AX_OK || (st = find_bytes(z, e, &data)) != AX_OK)
    return st;
  st = ax_bytes_lend(&z->file, data, dtype, 1, &count, out);
  return st == AX_OK && !*out ? ax_zip_tensor(z, i, dtype, 1, out) : st;
}

ax_status ax_zip_tensor(const ax_zip *z, int i, ax_dtype dtype, int threads, ax_tensor **out)
{
  const uint8_t *data;
  int64_t count;
  void *owned;
  size_t n;
  ax_status st;

  *out = NULL;
  if ((st = count_elements(z, i, dtype, &count)) != AX_OK) return st;
  if ((st = unchecked_bytes(z, i, &data, &n, &owned)) != AX_OK) return st;
  if ((st = ax_file_tensor(z->fn, z->path, dtype, 1, &count, out)) == AX_OK) {
    const uint32_t crc = ax_crc32_copy_by(threads, ax_data(*out), data, n);
    if ((st = ax_file_go_on()) == AX_OK && (st = ax_zip_check(z, AX_OK)) == AX_OK)
      st = check_sum(z, &z->entries[i], crc);
  }
  free(owned);
  if (st == AX_OK && dtype == AX_BOOL) ax_bools_tidy(*out);
  if (st != AX_OK) {
    ax_tensor_release(*out);
    *out = NULL;
  }
  return st;
}

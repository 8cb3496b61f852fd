/* parts.c: the writer of files made of texts and tensors one after the other: plain files, and zip
 * archives of stored entries.
 *
 * Each tensor is read once: an entry's checksum is put into its header when its bytes are written.
 * Entries begin at multiples of 64 bytes, so that a mapped archive shows aligned elements. */
#define _GNU_SOURCE /* pwrite */
#include "io.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "core/io/file.h"

enum { ALIGNMENT = 64, LOCAL_SIZE = 30, ENTRY_SIZE = 46, PADDING_ID = 0x4246 };
/* Versions of the format that a reader must know: 2.0, and 4.5 for sizes beyond 32 bits; the flag
 * says that names are UTF-8; the date is the earliest that there is. */
enum { VERSION = 20, VERSION_64 = 45, UTF8_FLAG = 0x800, DATE = 0x21 };

/* A file, growing. */
typedef struct sink {
  ax_replacement to;
  uint64_t at; /* bytes so far */
  uLong crc;   /* of those since it was set to 0 */
} sink;

static ax_status put(sink *s, const void *from, uint64_t n)
{
  for (uint64_t k = 0; k < n; k += 1 << 30)
    s->crc = crc32(s->crc, (const uint8_t *)from + k, (unsigned)(n - k < 1 << 30 ? n - k : 1 << 30));
  s->at += n;
  return ax_replace_write(&s->to, from, (int64_t)n);
}

static ax_status put_part(sink *s, const ax_part *part)
{
  ax_tensor *flat = NULL;
  ax_status st;

  if (!part->tensor) return put(s, part->text, part->n);
  if ((st = ax_tensor_bring(part->tensor, &flat)) != AX_OK) return st;
  st = put(s, ax_data(flat), (uint64_t)flat->numel * ax_itemsize(flat));
  ax_tensor_release(flat);
  return st;
}

static uint64_t part_bytes(const ax_part *part)
{
  return part->tensor ? (uint64_t)part->tensor->numel * ax_itemsize(part->tensor) : part->n;
}

ax_status ax_parts_write(const char *fn, const char *path, int n, const ax_part *parts)
{
  sink s = { .at = 0 };
  ax_status st = ax_replace_begin(fn, path, &s.to);

  for (int i = 0; i < n && st == AX_OK; i++) st = put_part(&s, &parts[i]);
  return ax_replace_end(&s.to, st);
}

/* ---- zip archives */

/* Where an entry's header lies, and what its directory says. */
typedef struct place {
  uint64_t at, size;
  uint32_t crc;
} place;

static uint8_t *set(uint8_t *p, uint64_t v, int bytes)
{
  for (int i = 0; i < bytes; i++) *p++ = (uint8_t)(v >> (8 * i));
  return p;
}

static bool large(uint64_t v) { return v >= UINT32_MAX; }

/* The fields that a local header and an entry of the directory share, up to the lengths. */
static uint8_t *set_facts(uint8_t *p, const place *e)
{
  const bool wide = large(e->size) || large(e->at);
  p = set(p, wide ? VERSION_64 : VERSION, 2);
  p = set(p, UTF8_FLAG, 2);
  p = set(p, 0, 2); /* stored */
  p = set(p, 0, 2); /* midnight */
  p = set(p, DATE, 2);
  p = set(p, e->crc, 4);
  p = set(p, large(e->size) ? UINT32_MAX : e->size, 4);
  return set(p, large(e->size) ? UINT32_MAX : e->size, 4);
}

/* The header of an entry, ended so that its bytes begin aligned. */
static ax_status put_header(sink *s, const char *name, const place *e)
{
  const size_t length = strlen(name);
  uint8_t header[LOCAL_SIZE] = "PK\3\4", extra[24 + ALIGNMENT] = { 0 }, *p = extra;
  ax_status st;

  if (large(e->size)) {
    p = set(p, 1, 2);
    p = set(p, 16, 2);
    p = set(p, e->size, 8);
    p = set(p, e->size, 8);
  }
  const uint64_t used = s->at + LOCAL_SIZE + length + (uint64_t)(p - extra) + 4;
  const int padding = (int)((ALIGNMENT - used % ALIGNMENT) % ALIGNMENT);
  p = set(p, PADDING_ID, 2);
  p = set(p, (uint64_t)padding, 2) + padding;
  set(set(set_facts(header + 4, e), length, 2), (uint64_t)(p - extra), 2);
  if ((st = put(s, header, LOCAL_SIZE)) != AX_OK || (st = put(s, name, length)) != AX_OK) return st;
  return put(s, extra, (uint64_t)(p - extra));
}

static ax_status put_member(sink *s, const ax_zip_member *m, place *e)
{
  uint8_t crc[4];
  ax_status st;

  *e = (place){ .at = s->at };
  for (int i = 0; i < m->n; i++) e->size += part_bytes(&m->parts[i]);
  if ((st = put_header(s, m->name, e)) != AX_OK) return st;
  s->crc = crc32(0, NULL, 0);
  for (int i = 0; i < m->n; i++)
    if ((st = put_part(s, &m->parts[i])) != AX_OK) return st;
  e->crc = (uint32_t)s->crc;
  set(crc, e->crc, 4);
  if (pwrite(s->to.fd, crc, 4, (off_t)e->at + 14) != 4)
    return AX_FILE_FAIL(AX_EIO, s->to.fn, s->to.path, "cannot write it: %s", strerror(errno));
  return AX_OK;
}

static ax_status put_entry(sink *s, const char *name, const place *e)
{
  const size_t length = strlen(name);
  uint8_t entry[ENTRY_SIZE] = "PK\1\2", extra[28], *p = extra + 4, *q;
  ax_status st;

  if (large(e->size)) p = set(set(p, e->size, 8), e->size, 8);
  if (large(e->at)) p = set(p, e->at, 8);
  const uint64_t room = p - extra > 4 ? (uint64_t)(p - extra) : 0;
  set(set(extra, 1, 2), room ? room - 4 : 0, 2);
  q = set(entry + 4, large(e->size) || large(e->at) ? VERSION_64 : VERSION, 2);
  q = set(set(set_facts(q, e), length, 2), room, 2);
  set(q + 10, large(e->at) ? UINT32_MAX : e->at, 4); /* behind: comment, disk, attributes */
  if ((st = put(s, entry, ENTRY_SIZE)) != AX_OK || (st = put(s, name, length)) != AX_OK) return st;
  return put(s, extra, room);
}

/* The ends of the directory; the first one, with its locator, where 16 or 32 bits do not do. */
static ax_status put_end(sink *s, uint64_t n, uint64_t from)
{
  const uint64_t at = s->at, size = at - from;
  const bool wide = n >= UINT16_MAX || large(from) || large(size);
  uint8_t end[56 + 20 + 22], *p = end;

  if (wide) {
    memcpy(p, "PK\6\6", 4);
    p = set(set(set(p + 4, 44, 8), VERSION_64, 2), VERSION_64, 2);
    p = set(set(set(set(p, 0, 8), n, 8), n, 8), size, 8);
    p = set(p, from, 8);
    memcpy(p, "PK\6\7", 4);
    p = set(set(set(p + 4, 0, 4), at, 8), 1, 4);
  }
  memcpy(p, "PK\5\6", 4);
  p = set(p + 4, 0, 4);
  for (int i = 0; i < 2; i++) p = set(p, wide ? UINT16_MAX : n, 2);
  p = set(set(p, wide ? UINT32_MAX : size, 4), wide ? UINT32_MAX : from, 4);
  p = set(p, 0, 2);
  return put(s, end, (uint64_t)(p - end));
}

ax_status ax_zip_write(const char *fn, const char *path, int n, const ax_zip_member *members)
{
  sink s = { .at = 0 };
  place *places;
  uint64_t from;
  ax_status st;

  if (!(places = ax_calloc((size_t)n + 1, sizeof *places))) return AX_ENOMEM;
  AX_TRY(ax_replace_begin(fn, path, &s.to));
  for (int i = 0; i < n; i++) AX_TRY(put_member(&s, &members[i], &places[i]));
  from = s.at;
  for (int i = 0; i < n; i++) AX_TRY(put_entry(&s, members[i].name, &places[i]));
  AX_TRY(put_end(&s, (uint64_t)n, from));
out:
  ax_mfree(places);
  return ax_replace_end(&s.to, st);
}

/* parts.c: files made of texts and tensors one after the other: plain files, and zip archives of
 * stored entries.
 *
 * Each tensor is read once: an entry's checksum is put into its header after its bytes are written.
 * Entries begin at multiples of 64 bytes, so that a mapped archive shows aligned elements. */
#include "io.h"

#include <string.h>

#include "core/io/content.h"

enum { ALIGNMENT = 64, LOCAL_SIZE = 30, ENTRY_SIZE = 46, PADDING_ID = 0x4246 };
/* Versions of the format that a reader must know: 2.0, and 4.5 for sizes beyond 32 bits; the flag
 * says that names are UTF-8; the date is the earliest that there is. */
enum { VERSION = 20, VERSION_64 = 45, UTF8_FLAG = 0x800, DATE = 0x21 };

static uint64_t part_bytes(const ax_part *part)
{
  return part->tensor ? (uint64_t)part->tensor->numel * ax_itemsize(part->tensor) : part->n;
}

ax_status ax_parts_write(const char *fn, ax_save *save, const char *path, int n, const ax_part *parts)
{
  ax_content *c;
  ax_status st = ax_content_new(fn, path, &c);

  for (int i = 0; i < n && st == AX_OK; i++) st = ax_content_part(c, &parts[i]);
  return ax_content_done(c, save, st);
}

/* ---- zip archives */

/* Where the checksums are in a header and in an entry of the directory. */
enum { HEADER_SUM = 14, ENTRY_SUM = 16 };

/* Where an entry's header lies, and how many bytes it has. */
typedef struct place {
  uint64_t at, size;
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
  p = set(p, 0, 4); /* the checksum comes later */
  p = set(p, large(e->size) ? UINT32_MAX : e->size, 4);
  return set(p, large(e->size) ? UINT32_MAX : e->size, 4);
}

/* The header of an entry, ended so that its bytes begin aligned. */
static ax_status add_header(ax_content *c, const char *name, const place *e)
{
  const size_t length = strlen(name);
  const bool wide = large(e->size);
  const uint64_t used = e->at + LOCAL_SIZE + length + (wide ? 20 : 0) + 4;
  const size_t padding = (ALIGNMENT - used % ALIGNMENT) % ALIGNMENT, extra = (wide ? 20 : 0) + 4 + padding;
  uint8_t *const header = ax_calloc(1, LOCAL_SIZE + length + extra), *p = header;

  if (!header) return AX_ENOMEM;
  memcpy(p, "PK\3\4", 4);
  p = set(set(set_facts(p + 4, e), length, 2), extra, 2);
  memcpy(p, name, length);
  p += length;
  if (wide) p = set(set(set(set(p, 1, 2), 16, 2), e->size, 8), e->size, 8);
  set(set(p, PADDING_ID, 2), padding, 2);
  return ax_content_text(c, header, LOCAL_SIZE + length + extra, ax_mfree);
}

static ax_status add_member(ax_content *c, const ax_zip_member *m, int number, place *e)
{
  ax_status st;

  *e = (place){ .at = (uint64_t)c->bytes };
  for (int i = 0; i < m->n; i++) e->size += part_bytes(&m->parts[i]);
  if ((st = add_header(c, m->name, e)) != AX_OK || (st = ax_content_fill(c, HEADER_SUM, number)) != AX_OK)
    return st;
  for (int i = 0; i < m->n; i++) {
    if ((st = ax_content_part(c, &m->parts[i])) != AX_OK) return st;
    c->pieces[c->n - 1].sum = number;
  }
  return AX_OK;
}

static size_t entry_extra(const place *e)
{
  const size_t room = (large(e->size) ? 16u : 0) + (large(e->at) ? 8u : 0);
  return room ? room + 4 : 0;
}

static uint8_t *set_entry(uint8_t *p, const char *name, const place *e)
{
  const size_t length = strlen(name), extra = entry_extra(e);

  memcpy(p, "PK\1\2", 4);
  p = set(p + 4, large(e->size) || large(e->at) ? VERSION_64 : VERSION, 2);
  p = set(set(set_facts(p, e), length, 2), extra, 2);
  p = set(p + 10, large(e->at) ? UINT32_MAX : e->at, 4); /* behind: comment, disk, attributes */
  memcpy(p, name, length);
  p += length;
  if (extra) p = set(set(p, 1, 2), extra - 4, 2);
  if (large(e->size)) p = set(set(p, e->size, 8), e->size, 8);
  if (large(e->at)) p = set(p, e->at, 8);
  return p;
}

/* The ends of the directory; the first one, with its locator, where 16 or 32 bits do not do. */
static uint8_t *set_end(uint8_t *p, uint64_t n, uint64_t from, uint64_t size)
{
  const bool wide = n >= UINT16_MAX || large(from) || large(size);

  if (wide) {
    memcpy(p, "PK\6\6", 4);
    p = set(set(set(p + 4, 44, 8), VERSION_64, 2), VERSION_64, 2);
    p = set(set(set(set(p, 0, 8), n, 8), n, 8), size, 8);
    p = set(p, from, 8);
    memcpy(p, "PK\6\7", 4);
    p = set(set(set(p + 4, 0, 4), from + size, 8), 1, 4);
  }
  memcpy(p, "PK\5\6", 4);
  p = set(p + 4, 0, 4);
  for (int i = 0; i < 2; i++) p = set(p, wide ? UINT16_MAX : n, 2);
  p = set(set(p, wide ? UINT32_MAX : size, 4), wide ? UINT32_MAX : from, 4);
  return set(p, 0, 2);
}

static ax_status add_directory(ax_content *c, int n, const ax_zip_member *members, const place *places)
{
  const uint64_t from = (uint64_t)c->bytes;
  size_t bytes = 56 + 20 + 22;
  uint8_t *directory, *p;
  ax_status st;

  for (int i = 0; i < n; i++) bytes += ENTRY_SIZE + strlen(members[i].name) + entry_extra(&places[i]);
  if (!(directory = p = ax_calloc(1, bytes))) return AX_ENOMEM;
  for (int i = 0; i < n; i++) p = set_entry(p, members[i].name, &places[i]);
  p = set_end(p, (uint64_t)n, from, (uint64_t)(p - directory));
  st = ax_content_text(c, directory, (size_t)(p - directory), ax_mfree);
  for (int i = 0, at = ENTRY_SUM; i < n && st == AX_OK; i++) {
    st = ax_content_fill(c, at, i);
    at += (int)(ENTRY_SIZE + strlen(members[i].name) + entry_extra(&places[i]));
  }
  return st;
}

ax_status ax_zip_write(const char *fn, ax_save *save, const char *path, int n, const ax_zip_member *members)
{
  place *places = ax_calloc((size_t)n + 1, sizeof *places);
  ax_content *c = NULL;
  ax_status st = AX_ENOMEM;

  if (!places) return st;
  AX_TRY(ax_content_new(fn, path, &c));
  AX_TRY(ax_content_sums(c, n));
  for (int i = 0; i < n; i++) AX_TRY(add_member(c, &members[i], i, &places[i]));
  AX_TRY(add_directory(c, n, members, places));
out:
  ax_mfree(places);
  return ax_content_done(c, save, st);
}

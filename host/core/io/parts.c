/* parts.c: files made of texts and tensors one after the other: plain files, and zip archives of
 * stored entries.  A file may hold several archives.
 *
 * Each tensor is read once: an entry's checksum is put into its header after its bytes are written.
 * Entries begin at multiples of 64 bytes, so that a mapped archive shows aligned elements. */
#include "io.h"

#include <string.h>

#include "core/io/content.h"

enum { ALIGNMENT = AX_ZIP_ALIGNMENT, LOCAL_SIZE = 30, ENTRY_SIZE = 46, PADDING_ID = 0x4246 };
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

/* Where in its archive an entry's header lies, and the bytes of the header and of the entry. */
typedef struct place {
  uint64_t at, header, size;
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

/* The extra field of a header: the size beyond 32 bits, and padding, so that the bytes behind begin
 * aligned. */
static uint64_t header_bytes(const char *name, const place *e)
{
  const uint64_t least = LOCAL_SIZE + strlen(name) + (large(e->size) ? 20 : 0) + 4;
  return least + (ALIGNMENT - (e->at + least) % ALIGNMENT) % ALIGNMENT;
}

static ax_status add_header(ax_content *c, const char *name, const place *e)
{
  const size_t length = strlen(name), extra = e->header - LOCAL_SIZE - length;
  const bool wide = large(e->size);
  const uint64_t padding = extra - (wide ? 20 : 0) - 4;
  uint8_t *const header = ax_calloc(1, e->header), *p = header;

  if (!header) return AX_ENOMEM;
  memcpy(p, "PK\3\4", 4);
  p = set(set(set_facts(p + 4, e), length, 2), extra, 2);
  memcpy(p, name, length);
  p += length;
  if (wide) p = set(set(set(set(p, 1, 2), 16, 2), e->size, 8), e->size, 8);
  set(set(p, PADDING_ID, 2), padding, 2);
  return ax_content_text(c, header, e->header, ax_mfree);
}

/* number: of its checksum */
static ax_status add_member(ax_content *c, const ax_zip_member *m, int number, const place *e)
{
  ax_status st;

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

static bool wide_end(uint64_t n, uint64_t from, uint64_t size)
{
  return n >= UINT16_MAX || large(from) || large(size);
}

/* The ends of the directory; the first one, with its locator, where 16 or 32 bits do not do. */
static uint8_t *set_end(uint8_t *p, uint64_t n, uint64_t from, uint64_t size)
{
  const bool wide = wide_end(n, from, size);

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

/* What an archive will look like. */
typedef struct layout {
  place *places;              /* [n] */
  uint64_t from, size, bytes; /* of the directory; of all */
} layout;

static layout lay_out(int n, const ax_zip_member *members, place *places)
{
  layout l = { .places = places };

  for (int i = 0; i < n; i++) {
    place *e = &places[i];
    *e = (place){ .at = l.from };
    for (int k = 0; k < members[i].n; k++) e->size += part_bytes(&members[i].parts[k]);
    e->header = header_bytes(members[i].name, e);
    l.from += e->header + e->size;
  }
  for (int i = 0; i < n; i++) l.size += ENTRY_SIZE + strlen(members[i].name) + entry_extra(&places[i]);
  l.bytes = l.from + l.size + 22 + (wide_end((uint64_t)n, l.from, l.size) ? 56 + 20 : 0);
  return l;
}

static ax_status add_directory(ax_content *c, const ax_zip_archive *a, const layout *l, int number)
{
  uint8_t *directory = ax_calloc(1, l->bytes - l->from), *p = directory;
  ax_status st;

  if (!directory) return AX_ENOMEM;
  for (int i = 0; i < a->n; i++) p = set_entry(p, a->members[i].name, &l->places[i]);
  set_end(p, (uint64_t)a->n, l->from, l->size);
  st = ax_content_text(c, directory, l->bytes - l->from, ax_mfree);
  for (int i = 0, at = ENTRY_SUM; i < a->n && st == AX_OK; i++) {
    st = ax_content_fill(c, at, number + i);
    at += (int)(ENTRY_SIZE + strlen(a->members[i].name) + entry_extra(&l->places[i]));
  }
  return st;
}

/* number: of the checksum of its first entry */
static ax_status add_archive(ax_content *c, const ax_zip_archive *a, place *places, int number)
{
  const layout l = lay_out(a->n, a->members, places);
  ax_status st;

  for (int i = 0; i < a->n; i++)
    if ((st = add_member(c, &a->members[i], number + i, &places[i])) != AX_OK) return st;
  return add_directory(c, a, &l, number);
}

ax_status ax_zip_length(const ax_zip_archive *a, uint64_t *bytes)
{
  place *places = ax_calloc((size_t)a->n + 1, sizeof *places);

  if (!places) return AX_ENOMEM;
  *bytes = lay_out(a->n, a->members, places).bytes;
  ax_mfree(places);
  return AX_OK;
}

ax_status ax_zips_write(const char *fn, ax_save *save, const char *path, int n,
                        const ax_zip_archive *archives)
{
  static const uint8_t zeros[ALIGNMENT];
  int members = 0, most = 0;
  place *places = NULL;
  ax_content *c = NULL;
  ax_status st = AX_ENOMEM;

  for (int i = 0; i < n; i++) {
    members += archives[i].n;
    if (archives[i].n > most) most = archives[i].n;
  }
  if (!(places = ax_calloc((size_t)most + 1, sizeof *places))) return st;
  AX_TRY(ax_content_new(fn, path, &c));
  AX_TRY(ax_content_sums(c, members));
  for (int i = 0, number = 0; i < n; number += archives[i++].n) {
    const size_t gap = (size_t)(-(uint64_t)c->bytes % ALIGNMENT);
    if (gap) AX_TRY(ax_content_text(c, zeros, gap, NULL));
    AX_TRY(add_archive(c, &archives[i], places, number));
  }
out:
  ax_mfree(places);
  return ax_content_done(c, save, st);
}

ax_status ax_zip_write(const char *fn, ax_save *save, const char *path, int n, const ax_zip_member *members)
{
  const ax_zip_archive a = { .n = n, .members = members };
  return ax_zips_write(fn, save, path, 1, &a);
}

/* pointer_map.h: what is known of some addresses: a hash table of 2^bits places, at most half of
 * them taken.  An entry begins with its address, NULL where the place is free; what follows is its
 * owner's.  `size` is an entry's number of bytes, the same one in each call. */
#ifndef AX_POINTER_MAP_H
#define AX_POINTER_MAP_H

#include <string.h>

#include "ax.h"

typedef struct ax_pointer_map {
  char *place;
  int bits, n;
} ax_pointer_map;

static inline const void *ax_pointer_map_key(const void *entry)
{
  const void *p;
  memcpy(&p, entry, sizeof p); /* an owner's entry has a pointer of another type there */
  return p;
}

/* The place of p, or the free one where it belongs. */
static inline char *ax_pointer_map_find(const ax_pointer_map *m, size_t size, const void *p)
{
  const size_t mask = ((size_t)1 << m->bits) - 1;
  size_t at = (size_t)(((uint64_t)(uintptr_t)p >> 4) * 0x9e3779b97f4a7c15u >> (64 - m->bits));
  for (;; at = (at + 1) & mask) {
    const void *key = ax_pointer_map_key(m->place + at * size);
    if (!key || key == p) return m->place + at * size;
  }
}

static inline ax_status ax_pointer_map_grow(ax_pointer_map *m, size_t size)
{
  ax_pointer_map more = { .bits = m->bits ? m->bits + 1 : 6, .n = m->n };
  if (!(more.place = ax_calloc((size_t)1 << more.bits, size))) return AX_ENOMEM;
  for (size_t i = 0; m->bits && i < (size_t)1 << m->bits; i++) {
    const char *entry = m->place + i * size;
    const void *key = ax_pointer_map_key(entry);
    if (key) memcpy(ax_pointer_map_find(&more, size, key), entry, size);
  }
  ax_mfree(m->place);
  *m = more;
  return AX_OK;
}

/* The entry of p.  *is_new: it was not there; now it has the address, and zeros behind it.  NULL
 * without memory. */
static inline void *ax_pointer_map_add(ax_pointer_map *m, size_t size, const void *p, bool *is_new)
{
  if (2 * (m->n + 1) > (m->bits ? 1 << m->bits : 0) && ax_pointer_map_grow(m, size) != AX_OK) return NULL;
  char *entry = ax_pointer_map_find(m, size, p);
  *is_new = !ax_pointer_map_key(entry);
  if (*is_new) {
    memcpy(entry, &p, sizeof p);
    m->n++;
  }
  return entry;
}

#endif

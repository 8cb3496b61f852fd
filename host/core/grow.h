/* grow.h: arrays that grow, in the core's memory. */
#ifndef AX_GROW_H
#define AX_GROW_H

#include <string.h>

#include "ax.h"

/* Makes room for one more entry behind the n that `*list` has: twice the memory when it is full.
 * `list` is the address of a pointer to entries of `size` bytes; *room counts entries.  New entries
 * are not set.  ENOMEM: the list is as it was. */
static inline ax_status ax_grow(void *list, int n, int *room, size_t size)
{
  const int wanted = *room ? 2 * *room : 16;
  void *former, *grown;

  if (n < *room) return AX_OK;
  if (*room > INT32_MAX / 2 || !(grown = ax_malloc((size_t)wanted * size))) return AX_ENOMEM;
  memcpy(&former, list, sizeof former); /* a pointer of any type */
  if (n > 0) memcpy(grown, former, (size_t)n * size);
  ax_mfree(former);
  memcpy(list, &grown, sizeof grown);
  *room = wanted;
  return AX_OK;
}

#endif

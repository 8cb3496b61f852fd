/* flight.h: what the launcher reports of the ranks' last collectives. */
#ifndef AX_FLIGHT_H
#define AX_FLIGHT_H

#include "ranks.h"

/* Writes the last collectives of this machine's ranks, whose first is rank `first` of all, into a
 * file of `folder`, a line of JSON for each.  False: it cannot be written (errno).  path: its
 * name. */
bool ax_flight_write(const ax_control *c, int first, const char *folder, char *path, size_t size);

/* Ranks that come late to one collective after another. */
typedef struct ax_straggler {
  uint64_t seen; /* collectives that were looked at */
  bool named;
  int rank;          /* of this machine */
  double factor;     /* its time between collectives over the others' */
  double waited, of; /* seconds that the others waited for it; seconds observed */
  int collectives;
  char where[AX_WHERE_TEXT];
} ax_straggler;
/* Returns true once: when such a rank is found. */
bool ax_straggler_look(ax_straggler *s, const ax_control *c);

#endif

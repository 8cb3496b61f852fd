/* transfers.h: reads and writes of files that go on while others compute. */
#ifndef AX_TRANSFERS_H
#define AX_TRANSFERS_H

#include "core/offload/scratch.h"

typedef struct ax_disk_transfer {
  const ax_stretch *stretch; /* borrowed */
  const void *there;         /* the bytes' place, as the stretch maps it */
  void *data;
  size_t n;
  bool write;
  int why;      /* once it has ended: 0, or an errno */
  size_t moved; /* bytes that were moved before that */
  bool pending;
  struct ax_disk_transfer *next;
} ax_disk_transfer;

/* Begins a transfer, which stays where it is until ax_disk_wait.  Without a thread it is made
 * here. */
void ax_disk_begin(ax_disk_transfer *t);
/* Returns 0, or the errno.  One that was never begun has ended well. */
int ax_disk_wait(ax_disk_transfer *t);

#endif

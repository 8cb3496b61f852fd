/* place.h: where buffers of parameters rest that are not in the memory that computes
 * (core/params/place.c). */
#ifndef AX_PLACE_H
#define AX_PLACE_H

#include "flat.h"

/* Files in a folder, for models on the CPU, or the host's memory, for models on a device.  Tensors
 * over files can be used as any other: their elements come from the disk when they are read.
 * Optimizers step on the CPU what rests in either, and of files never have all in memory
 * (core/optim/staged.c). */
typedef struct ax_place ax_place;

/* EIO, naming the folder, where no file can be made there. */
AX_API ax_status ax_place_files(const char *folder, ax_place **out);
/* The host's memory, pinned where there is room for that. */
AX_API ax_status ax_place_host(ax_place **out);
AX_API void ax_place_release(ax_place *p); /* NULL is fine */

/* New: n zeros in the place, of the CPU.  what: for messages.  EIO where there is no room. */
AX_API ax_status ax_place_tensor(ax_place *p, const char *what, ax_dtype dtype, int64_t n, ax_tensor **out);

/* Decides where buffers of a layout rest: `what`, of AX_CUT_*, in the place.  Called before
 * gradients are made and before the layout is cut.  Values that are not going to be cut move there
 * now; those of a device, and its gradients, have to be cut, if over one rank. */
AX_API ax_status ax_flat_rest_in(ax_flat *f, ax_place *p, uint8_t what, bool cut_values);

typedef struct ax_place_stats {
  int64_t bytes;         /* of files, of all places of this process */
  int64_t read, written; /* by optimizer steps so far */
} ax_place_stats;
AX_API void ax_place_count(ax_place_stats *out);

#endif

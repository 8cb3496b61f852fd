/* deferred.h: tensors whose values are made at their first use.
 *
 * Such a tensor has its shape, its type and its device, and no memory. Its storage carries a claim
 * that knows how the elements are made: a call of the host's (bind/deferred.c), which draws them or
 * reads them from a file. Whoever uses the elements gets memory for all of them, filled. A layout
 * that is cut over ranks needs this rank's elements alone (lua/accelerate/deferred). */
#ifndef AX_DEFERRED_H
#define AX_DEFERRED_H

#include "ax.h"

typedef struct ax_maker {
  /* Writes all elements; into: one dim, uncleared, of the tensor's type and device. */
  ax_status (*make)(void *owner, ax_tensor *into);
  void (*gone)(void *owner); /* the elements were made, replaced, or nobody needs them any more */
} ax_maker;

/* Frees t's memory, which `maker` fills when it is used; a maker that it had before is replaced.
 * Of a tensor on the device meta nothing is made: it carries the owner.  Takes `owner` where it
 * succeeds.  EINVAL for a tensor that is not all of its storage, or whose memory is in use
 * elsewhere. */
AX_API ax_status ax_defer(ax_tensor *t, const ax_maker *maker, void *owner);
/* New reference to such a tensor, which never had memory; contiguous. */
AX_API ax_status ax_deferred_new(ax_device device, ax_dtype dtype, int ndim, const int64_t *shape,
                                 const ax_maker *maker, void *owner, ax_tensor **out);
/* The owner behind t's storage, also for a view of it; NULL: its elements are there.  Borrowed. */
AX_API void *ax_deferred(const ax_tensor *t, const ax_maker *maker);

#endif

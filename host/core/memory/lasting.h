/* memory/lasting.h: blocks for the buffers of layouts and the states of optimizers, which are made
 * once and stay.  A lasting block is as large as its tensor, to the page.  Other tensors come and
 * go with every step: their blocks are rounded up to size classes, and the next step uses them
 * again. */
#ifndef AX_MEMORY_LASTING_H
#define AX_MEMORY_LASTING_H

#include "ax.h"

/* As ax_alloc_fresh; free with ax_free_lasting. */
ax_status ax_alloc_lasting(size_t bytes, bool *zeros, void **out);
void ax_free_lasting(void *p, size_t bytes);
/* As ax_storage_new_fresh; on devices it is that. */
ax_status ax_storage_new_lasting(ax_device device, size_t bytes, bool *zeros, ax_storage **out);
/* As ax_tensor_zeros_on. */
ax_status ax_tensor_zeros_lasting(ax_device device, ax_dtype dtype, int ndim, const int64_t *shape,
                                  ax_tensor **out);

#endif

/* memory/lasting.h: memory of what is made once and stays: the buffers of layouts, the states of
 * optimizers.  Other tensors come and go with every step, so their blocks are rounded up to size
 * classes and kept for the next; lasting blocks are as large as their size says, to the page. */
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

/* What layout.c needs of home.c. */
#ifndef AX_PARAMS_HOME_H
#define AX_PARAMS_HOME_H

#include "flat.h"

/* Cuts a buffer of gradients that was just made, where the layout's gradients are to be cut. */
ax_status ax_flat_cut_grads(ax_flat *f);
/* Can the ranks of a group share memory of `device`?  Alike on all of them. */
bool ax_shared_possible(const ax_group *g, ax_device device);
/* New references: `bytes` bytes that all ranks of the group have, zeros at first, and bytes [from,
 * from + own) of them, which this rank answers for; NULL where a rank cannot have them.  A
 * collective. */
ax_status ax_shared_new(ax_group *g, size_t bytes, size_t from, size_t own, ax_storage **whole,
                        ax_storage **part);
/* Frees what a layout that is cut has beside its buffers. */
void ax_flat_free_home(ax_flat *f);

#endif

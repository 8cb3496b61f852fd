/* What layout.c needs of home.c. */
#ifndef AX_PARAMS_HOME_H
#define AX_PARAMS_HOME_H

#include "flat.h"

/* Cuts a buffer of gradients that was just made, where the layout's gradients are to be cut. */
ax_status ax_flat_cut_grads(ax_flat *f);
/* Frees what a layout that is cut has beside its buffers. */
void ax_flat_free_home(ax_flat *f);

#endif

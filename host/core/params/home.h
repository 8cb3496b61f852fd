/* What layout.c needs of home.c. */
#ifndef AX_PARAMS_HOME_H
#define AX_PARAMS_HOME_H

#include "flat.h"

/* Frees what a layout that is cut has beside its buffers. */
void ax_flat_free_home(ax_flat *f);

#endif

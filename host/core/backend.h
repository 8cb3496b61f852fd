/* What the binding asks of backend.c beside ax.h. */
#ifndef AX_CORE_BACKEND_H
#define AX_CORE_BACKEND_H

#include "ax.h"

/* Whether a backend of this kind is loaded, without loading it. */
AX_API bool ax_backend_loaded(ax_device_kind kind);

#endif

/* The device "meta": its tensors have a shape and a type, but no elements.  It has no backend, so
 * whatever would read or write elements fails in ax_backend_of. */
#ifndef AX_META_H
#define AX_META_H

#include "plugin.h"

enum { AX_META = AX_DEVICE_KINDS }; /* not a backend's kind: tensors without data */

#endif

/* zip.h: what the readers of zip archives share (io.h has the rest). */
#ifndef AX_ZIP_H
#define AX_ZIP_H

#include "io.h"

/* The bytes of entry i, unpacked, their checksum right.  *owned is for free, and NULL where the
 * mapped archive itself holds them plain: then they are the mapping's, and ax_zip_check comes after
 * reading them. */
ax_status ax_zip_bytes(const ax_zip *z, int i, const uint8_t **data, size_t *n, void **owned);

#endif

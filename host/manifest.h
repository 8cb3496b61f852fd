/* manifest.h: the manifest of a checkpoint: its files with their sizes and checksums, and the
 * program and run that saved it, as JSON.  It is written last, so that a checkpoint without it is
 * not whole; its last line is the checksum of the lines above. */
#ifndef AX_MANIFEST_H
#define AX_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>

#define AX_MANIFEST "accelerate_manifest.json"
#define AX_MANIFEST_FORMAT 2

/* Is the last line of a manifest's text the checksum of the lines above? */
bool ax_manifest_is_whole(const char *text, size_t n);

#endif

/* read_ahead.h: pages of mapped files that will be needed, and that are needed no longer. */
#ifndef AX_READ_AHEAD_H
#define AX_READ_AHEAD_H

#include <stddef.h>

/* Has a thread read the pages of n mapped bytes, and returns at once.  The bytes may be unmapped
 * meanwhile.  Without room for the request, or a thread, nothing is read. */
void ax_pages_read_ahead(const void *data, size_t n);
/* Takes the pages that lie wholly in n mapped bytes out of this process's memory.  They must be
 * clean: the next access finds them in the page cache, or reads the file. */
void ax_pages_drop(const void *data, size_t n);

#endif

/* memory/emptied.h: what other parts of the core keep, beside the allocator's cache. */
#ifndef AX_MEMORY_EMPTIED_H
#define AX_MEMORY_EMPTIED_H

/* Has ax_memory_empty_cache call `fn`, which gives that back.  One part has something so far. */
void ax_memory_on_empty_cache(void (*fn)(void));

#endif

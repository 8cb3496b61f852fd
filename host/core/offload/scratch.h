/* scratch.h: files without a name, in which buffers rest that have no room in memory.
 *
 * A file ends with the process that made it, however that ends: nothing is left in its folder, and
 * runs with one folder do not meet.  Stretches of it are mapped, so that whoever looks at a tensor
 * finds its elements; who works through much of it reads and writes by ax_scratch_transfer, which
 * fills no page cache and reports an error. */
#ifndef AX_SCRATCH_H
#define AX_SCRATCH_H

#include "plugin.h"

typedef struct ax_scratch ax_scratch;

/* Makes a file in a folder.  EIO, naming the folder. */
ax_status ax_scratch_new(const char *folder, ax_scratch **out);
/* The file of another process of this machine, by that process' number for it. */
ax_status ax_scratch_open(const char *folder, int pid, int fd, ax_scratch **out);
void ax_scratch_release(ax_scratch *s);     /* NULL is fine */
int ax_scratch_number(const ax_scratch *s); /* for ax_scratch_open */
const char *ax_scratch_folder(const ax_scratch *s);

/* Takes room on the disk for n bytes, zeros; *at: where they begin.  what: for messages.  EIO,
 * which says how much room there is. */
ax_status ax_scratch_reserve(ax_scratch *s, size_t n, const char *what, int64_t *at);

/* A mapped stretch of a file. */
typedef struct ax_stretch ax_stretch;
enum {
  AX_STRETCH_CACHED = 1, /* transfers stay in the page cache, for it is read by the mapping, too */
  AX_STRETCH_SHARED = 2  /* other processes have it: its room is taken until all of them have ended */
};
/* New reference.  flags: AX_STRETCH_* */
ax_status ax_scratch_map(ax_scratch *s, int64_t at, size_t n, int flags, ax_stretch **out);
void ax_stretch_release(ax_stretch *x); /* NULL is fine */
/* New reference: a storage over n bytes, from `from` on, which holds the stretch. */
ax_status ax_stretch_show(ax_stretch *x, size_t from, size_t n, ax_storage **out);
/* The stretch that memory is in, borrowed; NULL: it is in none. */
const ax_stretch *ax_stretch_at(const void *data);
ax_scratch *ax_stretch_file(const ax_stretch *x); /* borrowed */

/* Takes the pages of memory that is in a stretch out of this process; other memory is left alone.
 * The next access finds them in the page cache or on the disk. */
void ax_stretch_forget(const void *data, size_t n);

/* All of n bytes are about to be written: where memory in a stretch is not in the page cache, its
 * pages come to be there as zeros, and are not read from the disk first.  Other memory is left
 * alone. */
void ax_stretch_overwrite(const void *data, size_t n);

/* Reads or writes n bytes that a stretch maps at `there`, without the mapping.  Returns 0, or the
 * errno; `*moved`: how many bytes were moved before. */
int ax_scratch_transfer(const ax_stretch *x, bool write, const void *there, void *data, size_t n,
                        size_t *moved);
/* Where `there` is in its file. */
int64_t ax_stretch_offset(const ax_stretch *x, const void *there);

/* Notes that a step over a file was made in part, so that its contents are lost.  All further steps
 * fail. */
void ax_scratch_spoil(ax_scratch *s);
/* EIO where a step over the file was made in part. */
ax_status ax_scratch_check(const ax_scratch *s);
/* EIO where memory over some file could not be read since the last call. */
ax_status ax_scratch_check_all(void);

typedef struct ax_scratch_stats {
  int64_t bytes, read, written; /* of files now; moved by ax_scratch_transfer so far */
} ax_scratch_stats;
void ax_scratch_count(ax_scratch_stats *out);

#endif

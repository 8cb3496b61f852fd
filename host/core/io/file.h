/* file.h: what readers of data files share: the whole of a file, plain or gzip, and an error that names it. */
#ifndef AX_FILE_H
#define AX_FILE_H

#include "ax.h"

/* A file in memory.  Plain ones are mapped. */
typedef struct ax_bytes {
  const uint8_t *data;
  size_t n;
  bool mapped;
} ax_bytes;

/* Maps a regular file.  EIO; an empty file is fine. */
ax_status ax_file_map(const char *fn, const char *path, ax_bytes *out);
/* Reads a file, unpacking gzip; what comes out may be at most `most` bytes. */
ax_status ax_file_read(const char *fn, const char *path, size_t most, ax_bytes *out);
void ax_bytes_free(ax_bytes *b);

/* Fails with "fn: 'path': ..." */
#define AX_FILE_FAIL(st, fn, path, fmt, ...) ax_fail(st, "%s: '%s': " fmt, fn, path, ##__VA_ARGS__)

#endif

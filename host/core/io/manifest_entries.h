/* core/io/manifest_entries.h: a manifest while it is made (commit.c). */
#ifndef AX_MANIFEST_ENTRIES_H
#define AX_MANIFEST_ENTRIES_H

#include "ax.h"

typedef struct ax_manifest_entry {
  char *name; /* of a file of the folder, or of a folder in it */
  long long bytes;
  unsigned crc;
} ax_manifest_entry;
typedef struct ax_manifest {
  ax_manifest_entry *list;
  int n;
} ax_manifest;

/* Adds the files of a rank's report: the lines that save.h describes. */
ax_status ax_manifest_add(ax_manifest *m, const char *report);
/* Orders the files by name; write expects them so. */
void ax_manifest_sort(ax_manifest *m);
/* Writes it into `folder`, synced.  saved_by: JSON. */
ax_status ax_manifest_write(const ax_manifest *m, const char *folder, const char *saved_by);
/* Calls fn(path of a folder) for each folder below `path` that files of it are in. */
ax_status ax_manifest_each_folder(const ax_manifest *m, const char *path, ax_status (*fn)(const char *path));
void ax_manifest_clear(ax_manifest *m);

#endif

/* save.h: shared by save.c, content.c and commit.c.
 *
 * Ranks write into one folder, the draft.  Each ends with a report, a file `.rank_<r>` with a line
 * "name TAB bytes TAB CRC-32C" for each of its files; `.rank_<r>.failed` where it could not write
 * them.  The rank that leads waits for all reports, writes the manifest and gives the folder its
 * name. */
#ifndef AX_SAVE_H
#define AX_SAVE_H

#include "core/io/file.h"
#include "io.h"

typedef struct ax_report {
  int fd;
  char path[4096], part[4096 + 16];
} ax_report;
/* Creates the report, empty and under another name: renaming it needs no room on the disk. */
ax_status ax_report_begin(const char *folder, int rank, ax_report *r);
/* st AX_OK: the report is `text`.  Returns the first error. */
ax_status ax_report_end(ax_report *r, ax_status st, const char *text, size_t n);

/* The texts are copied, for ax_commit_clear. */
ax_status ax_commit_copy(const ax_commit *c, ax_commit *to);
void ax_commit_clear(ax_commit *c);

/* Takes c, also when it fails. */
struct ax_content;
ax_status ax_save_add(ax_save *s, struct ax_content *c);

#endif

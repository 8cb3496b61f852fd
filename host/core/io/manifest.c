/* manifest.c writes the manifest of a checkpoint, and checks the checksum of one that was read.
 * lua/accelerate/checkpoint/manifest.lua reads its entries. */
#include "core/io/manifest_entries.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/core.h"
#include "core/io/crc.h"
#include "core/io/file.h"
#include "io.h"
#include "manifest.h"

#define MOST_REPORT ((size_t)1 << 30)

/* ---- the files */

static int by_name(const void *a, const void *b)
{
  return strcmp(((const ax_manifest_entry *)a)->name, ((const ax_manifest_entry *)b)->name);
}

/* Adds one line, which ends where its NUL is. */
static ax_status add_line(ax_manifest *m, char *line)
{
  ax_manifest_entry *grown = realloc(m->list, ((size_t)m->n + 1) * sizeof *grown), *e;
  char *tab = strchr(line, '\t');

  if (!grown) return ax_fail(AX_ENOMEM, "no memory for a manifest");
  m->list = grown;
  e = &grown[m->n];
  if (!tab || sscanf(tab, "%lld\t%u", &e->bytes, &e->crc) != 2)
    return ax_fail(AX_EIO, "the report on a rank's files is damaged");
  *tab = '\0';
  if (!(e->name = strdup(line))) return ax_fail(AX_ENOMEM, "no memory for a manifest");
  m->n++;
  return AX_OK;
}

ax_status ax_manifest_add(ax_manifest *m, const char *report)
{
  char *text, *last = NULL;
  size_t n;
  ax_status st = ax_file_slurp(report, MOST_REPORT, &text, &n);

  if (st != AX_OK || n == 0) {
    free(text);
    return st;
  }
  text[n - 1] = '\0'; /* its last newline */
  for (char *at = strtok_r(text, "\n", &last); at && st == AX_OK; at = strtok_r(NULL, "\n", &last))
    st = add_line(m, at);
  free(text);
  return st;
}

void ax_manifest_sort(ax_manifest *m)
{
  if (m->n > 1) qsort(m->list, (size_t)m->n, sizeof *m->list, by_name);
}

ax_status ax_manifest_each_folder(const ax_manifest *m, const char *path, ax_status (*fn)(const char *path))
{
  const char *last = NULL, *slash;
  char folder[PATH_MAX];
  ax_status st;

  for (int i = 0; i < m->n; i++) {
    const char *name = m->list[i].name;
    if (!(slash = strchr(name, '/'))) continue;
    if (last && strncmp(last, name, (size_t)(slash + 1 - name)) == 0) continue; /* they are sorted */
    last = name;
    snprintf(folder, sizeof folder, "%s/%.*s", path, (int)(slash - name), name);
    if ((st = fn(folder)) != AX_OK) return st;
  }
  return AX_OK;
}

void ax_manifest_clear(ax_manifest *m)
{
  for (int i = 0; i < m->n; i++) free(m->list[i].name);
  free(m->list);
  *m = (ax_manifest){ 0 };
}

/* ---- the text */

static ax_status put_text(const char *path, const char *text, size_t n)
{
  ax_replacement r;
  ax_status st = ax_replace_create(NULL, path, &r);

  if (st == AX_OK) st = ax_replace_write(&r, text, (int64_t)n);
  if (st == AX_OK) st = ax_replace_sync(&r);
  if (r.fd >= 0) close(r.fd);
  return st;
}

#define CHECKSUM " \"crc32c\": "

ax_status ax_manifest_write(const ax_manifest *m, const char *folder, const char *saved_by)
{
  char path[PATH_MAX], *text = NULL;
  size_t n = 0;
  FILE *to = open_memstream(&text, &n);
  ax_status st;

  if (!to) return ax_fail(AX_ENOMEM, "no memory for a manifest");
  fputs("{\n \"files\": {", to);
  for (int i = 0; i < m->n; i++)
    fprintf(to, "%s\n  \"%s\": {\"bytes\": %lld, \"crc32c\": %u}", i ? "," : "", m->list[i].name,
            m->list[i].bytes, m->list[i].crc);
  fprintf(to, "\n },\n \"format\": %d,\n \"saved_by\": %s,\n", AX_MANIFEST_FORMAT, saved_by);
  if (fflush(to) == 0) fprintf(to, CHECKSUM "%u\n}\n", ax_crc32c(0, text, n)); /* of the lines above */
  if (fclose(to) != 0) st = ax_fail(AX_ENOMEM, "no memory for a manifest");
  else {
    snprintf(path, sizeof path, "%s/" AX_MANIFEST, folder);
    st = put_text(path, text, n);
  }
  free(text);
  return st;
}

bool ax_manifest_is_whole(const char *text, size_t n)
{
  char last[64];
  size_t lines = n, length;

  for (int ends = 0; lines > 0; lines--)
    if (text[lines - 1] == '\n' && ++ends == 3) break; /* behind it: the checksum's line and "}" */
  length = (size_t)snprintf(last, sizeof last, CHECKSUM "%u\n}\n", ax_crc32c(0, text, lines));
  return lines > 0 && n - lines == length && memcmp(text + lines, last, length) == 0;
}

/* What tensors hold, by size and script line: for the message of an allocation that fails, and for
 * memory_summary.
 *
 * Only storages of a megabyte and more are tracked, so that finding the line costs nothing beside
 * what the memory is for.  A group is a device, a size and a line; a storage keeps its group's
 * number.  Groups are never removed: a script has few lines, and sizes that change at every step
 * share one group of their line once the table is half full. */
#include "core/core.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUPS = 4096, TEXT = 96, SHOWN = 8 };
typedef struct group {
  ax_device device;
  int64_t bytes, live, total;
  char where[TEXT];
} group;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static group *groups; /* [GROUPS]; 0 is never used */
static int n_groups;
static const char *(*find_line)(void);

void ax_memory_set_where(const char *(*where)(void)) { find_line = where; }
const char *ax_memory_where(void)
{
  const char *line = find_line ? find_line() : NULL;
  return line ? line : "";
}

static uint32_t hash_of(ax_device d, int64_t bytes, const char *where)
{
  uint32_t h =
      2166136261u ^ d.kind ^ (uint32_t)d.index << 8 ^ (uint32_t)((uint64_t)bytes * 0x9E3779B97F4A7C15u >> 32);
  for (; *where; where++) h = (h ^ (uint8_t)*where) * 16777619u;
  return h;
}

/* The place of a group, which may be free; -1: the table is full.  bytes 0: those of any size. */
static int place_of(ax_device d, int64_t bytes, const char *where)
{
  const uint32_t start = hash_of(d, bytes, where);
  for (uint32_t k = 0; k < GROUPS; k++) {
    const int at = (int)((start + k) % GROUPS);
    const group *g = &groups[at];
    if (at == 0) continue;
    if (!*g->where) return at;
    if (g->bytes == bytes && ax_same_device(g->device, d) && strcmp(g->where, where) == 0) return at;
  }
  return -1;
}

void ax_memory_track(ax_storage *s)
{
  char where[TEXT];
  int at;

  snprintf(where, sizeof where, "%s", ax_memory_where());
  if (!*where) snprintf(where, sizeof where, "outside any script");
  pthread_mutex_lock(&lock);
  if (!groups) groups = calloc(GROUPS, sizeof *groups);
  if (groups) {
    at = place_of(s->device, (int64_t)s->bytes, where);
    if (at > 0 && !*groups[at].where && n_groups > GROUPS / 2) at = place_of(s->device, 0, where);
    if (at > 0) {
      group *g = &groups[at];
      if (!*g->where) {
        memcpy(g->where, where, sizeof where);
        g->device = s->device;
        g->bytes = n_groups > GROUPS / 2 ? 0 : (int64_t)s->bytes;
        n_groups++;
      }
      g->live++;
      g->total += (int64_t)s->bytes;
      s->group = (uint16_t)at;
    }
  }
  pthread_mutex_unlock(&lock);
}

void ax_memory_untrack(ax_storage *s)
{
  pthread_mutex_lock(&lock);
  groups[s->group].live--;
  groups[s->group].total -= (int64_t)s->bytes;
  pthread_mutex_unlock(&lock);
  s->group = 0;
}

/* Sorts by bytes, largest first.  Equal groups are in the order of their lines, so that messages do
 * not depend on the table. */
static bool before(const group *a, const group *b)
{
  if (a->total != b->total) return a->total > b->total;
  return strcmp(a->where, b->where) < 0;
}

/* The largest groups of d, at most `most`; *rest: what the others hold. */
static int largest(ax_device d, const group **list, int most, int64_t *rest, int64_t *rest_count)
{
  int n = 0;
  *rest = *rest_count = 0;
  for (int k = 1; groups && k < GROUPS; k++) {
    const group *g = &groups[k];
    int at;
    if (!g->live || !ax_same_device(g->device, d)) continue;
    for (at = n; at > 0 && before(g, list[at - 1]); at--) {}
    const group *falls = n == most ? (at == most ? g : list[most - 1]) : NULL;
    if (falls) {
      *rest += falls->total;
      *rest_count += falls->live;
    }
    if (at == most) continue;
    memmove(&list[at + 1], &list[at], (size_t)((n < most ? n : most - 1) - at) * sizeof *list);
    list[at] = g;
    if (n < most) n++;
  }
  return n;
}

int ax_memory_groups(ax_device d, ax_memory_group *out, int most)
{
  const group **list = malloc((size_t)(most > 0 ? most : 1) * sizeof *list);
  int64_t rest, rest_count;
  int n = 0;

  if (!list || most <= 0) {
    free(list);
    return 0;
  }
  pthread_mutex_lock(&lock);
  n = largest(d, list, most, &rest, &rest_count);
  for (int k = 0; k < n; k++)
    out[k] =
        (ax_memory_group){ d, list[k]->where,
                           list[k]->bytes ? list[k]->bytes : list[k]->total / list[k]->live, list[k]->live };
  pthread_mutex_unlock(&lock);
  free(list);
  return n;
}

static int AX_PRINTF(4, 5) say(char *buf, size_t size, int used, const char *fmt, ...)
{
  va_list ap;
  int n;
  if ((size_t)used >= size) return used;
  va_start(ap, fmt);
  n = vsnprintf(buf + used, size - (size_t)used, fmt, ap);
  va_end(ap);
  return n < 0 ? used : used + n;
}

const char *ax_size_text(int64_t bytes, ax_size_buffer text)
{
  const double size = bytes < 0 ? -(double)bytes : (double)bytes;

  if (size < 1e3) snprintf(text, sizeof(ax_size_buffer), "%lld bytes", (long long)bytes);
  else if (size < 1e6) snprintf(text, sizeof(ax_size_buffer), "%.1f KB", (double)bytes / 1e3);
  else if (size < 1e9) snprintf(text, sizeof(ax_size_buffer), "%.1f MB", (double)bytes / 1e6);
  else snprintf(text, sizeof(ax_size_buffer), "%.2f GB", (double)bytes / 1e9);
  return text;
}

void ax_memory_report(ax_device d, const ax_memory_small *small, char *buf, size_t size)
{
  static const char *const upto[AX_SMALL_CLASSES] = { "1 KiB", "8 KiB", "64 KiB", "256 KiB", "1 MiB" };
  const group *list[SHOWN];
  int64_t rest, rest_count;
  ax_size_buffer text;
  int used = 0, n;

  buf[0] = '\0';
  pthread_mutex_lock(&lock);
  n = largest(d, list, SHOWN, &rest, &rest_count);
  if (n > 0) used = say(buf, size, used, "\n  live, largest first:");
  for (int k = 0; k < n; k++) {
    if (list[k]->bytes)
      used = say(buf, size, used, "\n    %lld x %s at %s", (long long)list[k]->live,
                 ax_size_text(list[k]->bytes, text), list[k]->where);
    else
      used = say(buf, size, used, "\n    %lld of several sizes, %s in all, at %s", (long long)list[k]->live,
                 ax_size_text(list[k]->total, text), list[k]->where);
  }
  if (rest_count)
    used =
        say(buf, size, used, "\n    %lld more, %s in all", (long long)rest_count, ax_size_text(rest, text));
  pthread_mutex_unlock(&lock);
  bool any = false;
  for (int k = 0; small && k < AX_SMALL_CLASSES; k++) {
    if (!small->blocks[k]) continue;
    used = say(buf, size, used, "%s %lld up to %s (%s)",
               any ? "," : "\n    smaller ones:", (long long)small->blocks[k], upto[k],
               ax_size_text(small->bytes[k], text));
    any = true;
  }
}

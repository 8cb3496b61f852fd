/* flight.c: the ranks' last collectives, which the launcher reads at any time: see ax_flight. */
#define _GNU_SOURCE
#include "flight.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ax.h"

#define WINDOW 32    /* collectives in which one rank must be the last again and again */
#define ALLOWED 3    /* of them in which it was not */
#define FACTOR 1.5   /* its time between collectives, by the others' */
#define SHARE 0.2    /* of the time that the others waited */
#define LEAST_NS 1e9 /* that the window must have lasted: shorter ones are noise */

/* ---- the file */

static const char *ended(const ax_flight *f)
{
  if (f->left == 0) return "no";
  return f->status == AX_OK ? "ok" : f->status == AX_ETIMEOUT ? "timeout" : "error";
}

static void write_text(FILE *file, const char *text)
{
  fputc('"', file);
  for (; *text; text++) {
    const unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\') fprintf(file, "\\%c", c);
    else if (c < ' ') fprintf(file, "\\u%04x", c);
    else fputc(c, file);
  }
  fputc('"', file);
}

static void write_one(FILE *file, int rank, const ax_flight *f, int64_t now)
{
  const ax_collective *c = &f->facts;

  fprintf(file, "{\"rank\": %d, \"number\": %llu, \"op\": \"%s\", \"dtype\": \"%s\", \"count\": %lld", rank,
          (unsigned long long)f->number, ax_collective_name(c->op),
          (unsigned)c->dtype < AX_DTYPE_COUNT ? ax_dtype_name(c->dtype) : "?", (long long)c->count);
  if (ax_collective_reduces(c->op)) fprintf(file, ", \"reduction\": \"%s\"", ax_reduction_name(c->reduction));
  if (ax_collective_has_root(c->op)) fprintf(file, ", \"root\": %d", c->root);
  if (c->group[0]) {
    fputs(", \"group\": ", file);
    write_text(file, c->group);
  }
  fputs(", \"where\": ", file);
  write_text(file, f->where);
  fprintf(file, ", \"entered\": %.6f, \"seconds\": %.6f, \"ended\": \"%s\"}\n",
          (double)(f->entered - now) * 1e-9, (double)((f->left ? f->left : now) - f->entered) * 1e-9,
          ended(f));
}

bool ax_flight_write(const ax_control *c, int first, const char *folder, char *path, size_t size)
{
  const int64_t now = ax_monotonic_ns();
  FILE *file = NULL;
  int fd;

  snprintf(path, size, "%s/accel-run-%d-ranks-%d-to-%d.jsonl", folder, (int)getpid(), first,
           first + c->ranks - 1);
  if ((fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0 || !(file = fdopen(fd, "w"))) {
    if (fd >= 0) close(fd);
    return false;
  }
  for (int r = 0; r < c->ranks; r++) {
    const uint64_t last = atomic_load(&c->rank[r].collectives);
    for (uint64_t n = last > AX_FLIGHT ? last - AX_FLIGHT + 1 : 1; n <= last; n++) {
      const ax_flight *f = &c->rank[r].flight[n % AX_FLIGHT];
      if (f->entry == n) write_one(file, first + r, f, now);
    }
  }
  return fclose(file) == 0;
}

/* ---- stragglers */

/* The entry of collective n; NULL: it is overwritten, a device's, or that of a part of the
 * ranks. */
static const ax_flight *entry(const ax_control *c, int rank, uint64_t n)
{
  const ax_flight *f = &c->rank[rank].flight[n % AX_FLIGHT];
  return f->entry == n && f->left != 0 && !f->posted && !f->facts.group[0] ? f : NULL;
}

/* Who came last to collective n, and how much later than the last but one. */
static int last_of(const ax_control *c, uint64_t n, int64_t *late)
{
  int64_t most = INT64_MIN, next = INT64_MIN;
  int last = -1;

  for (int r = 0; r < c->ranks; r++) {
    const ax_flight *f = entry(c, r, n);
    if (!f) return -1;
    if (f->entered > most) next = most, most = f->entered, last = r;
    else if (f->entered > next) next = f->entered;
  }
  *late = most - next;
  return last;
}

/* Nanoseconds that a rank spent between the window's collectives. */
static int64_t own_time(const ax_control *c, int rank, uint64_t from, uint64_t to)
{
  int64_t sum = 0;

  for (uint64_t n = from + 1; n <= to; n++) {
    const ax_flight *before = entry(c, rank, n - 1), *f = entry(c, rank, n);
    if (before && f) sum += f->entered - before->left;
  }
  return sum;
}

bool ax_straggler_look(ax_straggler *s, const ax_control *c)
{
  uint64_t to = UINT64_MAX, from;
  int times[AX_MAX_RANKS] = { 0 }, rank = 0;
  int64_t waited[AX_MAX_RANKS] = { 0 }, late, others = 0;
  double span;

  for (int r = 0; r < c->ranks; r++) {
    const uint64_t n = atomic_load(&c->rank[r].collectives);
    if (n < to) to = n;
  }
  if (s->named || c->ranks < 2 || to < WINDOW + 2 || to < s->seen + WINDOW) return false;
  s->seen = to;
  to -= 1; /* all have left it */
  from = to - WINDOW + 1;
  for (uint64_t n = from; n <= to; n++) {
    const int last = last_of(c, n, &late);
    if (last < 0) return false;
    times[last]++;
    waited[last] += late;
    if (times[last] > times[rank]) rank = last;
  }
  const ax_flight *a = entry(c, rank, from), *b = entry(c, rank, to);
  if (!a || !b || times[rank] < WINDOW - ALLOWED) return false;
  span = (double)(b->left - a->entered);
  for (int r = 0; r < c->ranks; r++)
    if (r != rank) others += own_time(c, r, from, to);
  others /= c->ranks - 1;
  s->factor = others > 0 ? (double)own_time(c, rank, from, to) / (double)others : 1e3;
  if (span < LEAST_NS || s->factor < FACTOR || (double)waited[rank] < SHARE * span) return false;
  s->named = true;
  s->rank = rank;
  s->waited = (double)waited[rank] * 1e-9;
  s->of = span * 1e-9;
  s->collectives = WINDOW;
  memcpy(s->where, b->where, sizeof s->where);
  return true;
}

/* output.c: --tee and --log_dir: what ranks print travels through the launcher, which writes it to
 * the console in whole lines, each with its rank in front, and into a file for each stream.
 *
 * One thread reads all pipes.  It starts when the ranks are forked. */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "launch.h"
#include "script/script.h"
#include "settings/plan.h"

#define SETTLE_TRIES 500
#define SETTLE_US 200
#define LONGEST (1 << 20) /* a line beyond this is written in pieces */

typedef struct stream {
  int rank, target; /* STDOUT_FILENO or STDERR_FILENO */
  int from, to;     /* the pipe's ends; -1: closed */
  int file;         /* -1: none */
  char *line;       /* what has come of a line */
  size_t size, room;
} stream;

struct ax_output {
  int n, first;
  const char *role;
  pthread_t thread;
  bool running;
  _Atomic int *writing; /* shared with the ranks: text is between a pipe and the console */
  int stop[2];          /* [1] is closed when no rank is left */
  bool lost;            /* the console or a file did not take what ranks printed */
  stream stream[];
};

/* ---- what --tee says */

/* The streams of a rank: bit 0 stdout, bit 1 stderr.  -1: the text is wrong. */
static int streams_of(const char *text, int rank)
{
  const char *at = text;
  int found = 0;

  if (text[0] >= '0' && text[0] <= '3' && !text[1]) return text[0] - '0';
  for (;;) {
    char *end;
    const long which = strtol(at, &end, 10);
    if (end == at || *end != ':' || end[1] < '0' || end[1] > '3' || which < 0) return -1;
    if (which == rank) found = end[1] - '0';
    if (!end[2]) return found;
    if (end[2] != ',') return -1;
    at = end + 3;
  }
}

int ax_output_check(const ax_plan *plan)
{
  const ax_setting *tee = &plan->set[AX_SET_tee], *folder = &plan->set[AX_SET_log_dir];

  if (streams_of(tee->text, 0) < 0) {
    ax_print(stderr,
             "accel-run: %s: expected 0, 1 (stdout), 2 (stderr), 3 (both), "
             "or ranks with theirs (0:3,1:1); got '%s'\n",
             tee->origin, tee->text);
    return AX_EXIT_USAGE;
  }
  if (folder->number && !tee->number)
    ax_print(stderr, "accel-run: %s: no file is written without --tee\n", folder->origin);
  return 0;
}

/* ---- opening */

static bool make_folders(char *path)
{
  for (char *at = path + 1; *at; at++) {
    if (*at != '/') continue;
    *at = '\0';
    if (mkdir(path, 0777) != 0 && errno != EEXIST) return false;
    *at = '/';
  }
  return true;
}

/* FOLDER/20260102_030405_123/attempt_0/1/stderr.log; the run has one name for all attempts. */
static int open_file(const char *folder, int attempt, const stream *s)
{
  static char run[48];
  char path[4300];

  if (!*run) {
    const time_t now = time(NULL);
    struct tm t;
    size_t n = strftime(run, sizeof run, "%Y%m%d_%H%M%S", localtime_r(&now, &t));
    snprintf(run + n, sizeof run - n, "_%d", (int)getpid());
  }
  snprintf(path, sizeof path, "%s/%s/attempt_%d/%d/%s.log", folder, run, attempt, s->rank,
           s->target == STDOUT_FILENO ? "stdout" : "stderr");
  if (!make_folders(path)) return -1;
  return open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

static bool open_stream(ax_output *o, const ax_plan *plan, int attempt, int rank, int target)
{
  const ax_setting *folder = &plan->set[AX_SET_log_dir];
  stream *s = &o->stream[o->n];
  int pair[2];

  *s = (stream){ .rank = rank, .target = target, .from = -1, .to = -1, .file = -1 };
  if (folder->number && (s->file = open_file(folder->text, attempt, s)) < 0) {
    ax_print(stderr, "accel-run: %s %s: no file can be made there: %s\n", folder->origin, folder->text,
             strerror(errno));
    return false;
  }
  o->n++;
  if (pipe2(pair, O_CLOEXEC) != 0) {
    ax_print(stderr, "accel-run: --tee: no pipe for rank %d: %s\n", rank, strerror(errno));
    return false;
  }
  s->from = pair[0];
  s->to = pair[1];
  return true;
}

static void free_output(ax_output *o)
{
  for (int i = 0; i < o->n; i++) {
    stream *s = &o->stream[i];
    if (s->from >= 0) close(s->from);
    if (s->to >= 0) close(s->to);
    if (s->file >= 0) close(s->file);
    free(s->line);
  }
  if (o->stop[0] >= 0) close(o->stop[0]);
  if (o->stop[1] >= 0) close(o->stop[1]);
  if (o->writing) munmap(o->writing, sizeof *o->writing);
  free(o);
}

static ax_output *new_output(int ranks)
{
  ax_output *o = calloc(1, sizeof *o + 2 * (size_t)ranks * sizeof *o->stream);
  void *shared = o ? mmap(NULL, sizeof *o->writing, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)
                   : MAP_FAILED;

  if (shared == MAP_FAILED) {
    free(o);
    fputs("accel-run: out of memory\n", stderr);
    return NULL;
  }
  o->writing = shared;
  return o;
}

int ax_output_begin(const ax_plan *plan, int from, int to, int first, int attempt, ax_output **out)
{
  const ax_setting *set = &plan->set[AX_SET_tee];
  /* a prompt's rank 0 has the terminal to itself; the others' lines say whose they are */
  const bool prefixed = plan->interactive && strcmp(set->origin, "default") == 0;
  const char *tee = !prefixed ? set->text : plan->set[AX_SET_quiet].number ? "2" : "3";
  ax_output *o;

  *out = NULL;
  if (!set->number && !prefixed) return 0;
  if (!(o = new_output(to - from))) return AX_EXIT_FAILED;
  o->stop[0] = o->stop[1] = -1;
  o->first = first;
  o->role = prefixed && strcmp(plan->set[AX_SET_role].origin, "default") == 0 ? "" /* [1]: */
                                                                              : plan->set[AX_SET_role].text;
  for (int rank = from + plan->interactive; rank < to; rank++) {
    const int streams = streams_of(tee, rank);
    if (((streams & 1) && !open_stream(o, plan, attempt, rank, STDOUT_FILENO)) ||
        ((streams & 2) && !open_stream(o, plan, attempt, rank, STDERR_FILENO))) {
      free_output(o);
      return AX_EXIT_FAILED;
    }
  }
  *out = o;
  return 0;
}

void ax_output_join(ax_output *o, int rank, bool watches)
{
  if (!o) return;
  for (int i = 0; i < o->n; i++)
    if (o->stream[i].rank == rank) dup2(o->stream[i].to, o->stream[i].target);
  for (int i = 0; i < o->n; i++) { /* the copies stay */
    if (!watches) close(o->stream[i].from);
    close(o->stream[i].to);
    if (o->stream[i].file >= 0) close(o->stream[i].file);
  }
  if (!watches) {
    munmap(o->writing, sizeof *o->writing);
    free(o);
  }
}

/* ---- writing */

/* Whether all was written.  Not when nobody reads, or the disk is full: the run goes on. */
static bool write_all(int fd, const char *text, size_t n)
{
  while (n > 0) {
    const ssize_t wrote = write(fd, text, n);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno == EAGAIN) {
      poll(&(struct pollfd){ .fd = fd, .events = POLLOUT }, 1, -1);
      continue;
    }
    if (wrote <= 0) return false;
    text += wrote;
    n -= (size_t)wrote;
  }
  return true;
}

/* Says so once for a run; the launcher has SIGPIPE blocked. */
static void note_loss(ax_output *o, const stream *s, const char *place)
{
  const int error = errno;

  if (!o->lost)
    ax_print(stderr, "accel-run: %s could not be written: %s: some of what rank %d printed is lost\n", place,
             strerror(error), o->first + s->rank);
  o->lost = true;
}

/* One line, with its end, to the console: one write, so that it stays whole. */
static void write_line(ax_output *o, const stream *s, const char *text, size_t n)
{
  char head[96], *whole;
  const int length = snprintf(head, sizeof head, "[%.60s%d]:", o->role, o->first + s->rank);

  if (!(whole = malloc((size_t)length + n))) return;
  memcpy(whole, head, (size_t)length);
  memcpy(whole + length, text, n);
  if (!write_all(s->target, whole, (size_t)length + n))
    note_loss(o, s, s->target == STDOUT_FILENO ? "stdout" : "stderr");
  free(whole);
}

static void write_lines(ax_output *o, stream *s)
{
  size_t from = 0;
  char *end;

  while ((end = memchr(s->line + from, '\n', s->size - from))) {
    const size_t next = (size_t)(end - s->line) + 1;
    write_line(o, s, s->line + from, next - from);
    from = next;
  }
  memmove(s->line, s->line + from, s->size -= from);
}

/* What is left of a line, with an end of its own. */
static void flush(ax_output *o, stream *s)
{
  if (s->size == 0) return;
  s->line[s->size++] = '\n'; /* there is room for it */
  write_line(o, s, s->line, s->size);
  s->size = 0;
}

/* Reads what is there; closes the pipe at its end. */
static void take(ax_output *o, stream *s)
{
  enum { PIECE = 1 << 16 };
  ssize_t n = -1;

  if (s->room - s->size < PIECE + 1) {
    char *grown = realloc(s->line, s->room + 2 * PIECE);
    if (grown) s->line = grown, s->room += 2 * PIECE;
    else flush(o, s);
  }
  if (s->line) n = read(s->from, s->line + s->size, s->room - s->size - 1);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n <= 0) {
    flush(o, s);
    close(s->from);
    s->from = -1;
    return;
  }
  if (s->file >= 0 && !write_all(s->file, s->line + s->size, (size_t)n))
    note_loss(o, s, "its file of --log_dir");
  s->size += (size_t)n;
  write_lines(o, s);
  if (s->size > LONGEST) flush(o, s);
}

/* Reads until all pipes are closed; after `stop` only what is there already, since programs that a
 * rank left behind may hold a pipe open. */
static void *read_streams(void *arg)
{
  ax_output *o = arg;
  struct pollfd *list = calloc((size_t)o->n + 1, sizeof *list);
  bool ending = false;

  while (list) {
    int open = 0, ready;
    for (int i = 0; i < o->n; i++) {
      list[i] = (struct pollfd){ .fd = o->stream[i].from, .events = POLLIN };
      open += o->stream[i].from >= 0;
    }
    list[o->n] = (struct pollfd){ .fd = ending ? -1 : o->stop[0], .events = POLLIN };
    if (open == 0) break;
    ready = poll(list, (nfds_t)o->n + 1, ending ? 0 : -1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) break;
    atomic_store(o->writing, 1);
    for (int i = 0; i < o->n; i++)
      if (list[i].revents) take(o, &o->stream[i]);
    atomic_store(o->writing, 0);
    if (list[o->n].revents) ending = true;
  }
  for (int i = 0; i < o->n; i++) flush(o, &o->stream[i]);
  free(list);
  return NULL;
}

void ax_output_run(ax_output *o)
{
  if (!o) return;
  for (int i = 0; i < o->n; i++) {
    close(o->stream[i].to);
    o->stream[i].to = -1;
  }
  if (pipe2(o->stop, O_CLOEXEC) == 0) o->running = pthread_create(&o->thread, NULL, read_streams, o) == 0;
  if (!o->running) fputs("accel-run: --tee: no thread can be started; the ranks' output is lost\n", stderr);
}

bool ax_output_end(ax_output *o)
{
  bool whole;

  if (!o) return true;
  if (o->running) {
    close(o->stop[1]);
    o->stop[1] = -1;
    pthread_join(o->thread, NULL);
  }
  whole = !o->lost;
  free_output(o);
  return whole;
}

static bool settled(const ax_output *o)
{
  for (int i = 0; i < o->n; i++) {
    int bytes = 0;
    if (ioctl(o->stream[i].from, FIONREAD, &bytes) == 0 && bytes > 0) return false;
  }
  return !atomic_load(o->writing); /* last: it is set while a pipe is read */
}

void ax_output_settle(ax_output *o)
{
  for (int tries = 0; o && tries < SETTLE_TRIES && !settled(o); tries++) usleep(SETTLE_US);
}

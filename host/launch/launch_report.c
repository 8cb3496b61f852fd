/* launch_report.c: where the ranks of a run are, as their launcher reads it in the memory that they
 * share, and what it prints of that. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "glibc.h"
#include "run.h"
#include "script/script.h"

#define BUSY_NS 500000000  /* of a wait outside of collectives that is reported */
#define LOOK_NS 1000000000 /* for ranks to write their tracebacks */

/* The name of a rank of this machine, with its number among all ranks; borrowed until the next
 * call. */
const char *ax_launched_name(const ax_machines *m, int rank)
{
  static char text[48];

  if (m) return ax_rank_name(m->first + rank, m->here, text, sizeof text);
  snprintf(text, sizeof text, "rank %d", rank);
  return text;
}

/* Whether this launcher does what is done once for a machine. */
bool ax_launched_leads(const ax_launched *r) { return !r->local || r->local->rank == 0; }

/* ---- the state of the ranks */

/* Both are borrowed until the next call. */
const char *ax_launched_signal(int sig)
{
  static char text[32];
  const char *abbreviation = sigabbrev_np(sig);

  if (abbreviation) snprintf(text, sizeof text, "SIG%s", abbreviation);
  else snprintf(text, sizeof text, "signal %d", sig);
  return text;
}

double ax_launched_seconds(const ax_launched *r, int64_t then, int64_t now)
{
  int64_t ns = now - then;

  for (unsigned i = 0; i < AX_PAUSES && i < r->pauses; i++) {
    const int64_t from = r->pause[i].from > then ? r->pause[i].from : then;
    const int64_t to = r->pause[i].to < now ? r->pause[i].to : now;
    if (to > from) ns -= to - from;
  }
  return ns > 0 ? (double)ns * 1e-9 : 0;
}

/* "in #3, all_reduce(float32, 10 elements, sum) at train.lua:9, for 0.2 s"; "in a launch on cuda:0
 * (mul, near train.lua:12) for 3.1 s, after #3, ..." when the driver blocks the rank */
void ax_launched_doing(const ax_launched *r, int rank, int64_t now, char *buf, size_t size)
{
  const ax_rank_record *rec = &r->control->rank[rank];
  const uint32_t state = atomic_load(&rec->state);
  const uint64_t n = atomic_load(&rec->collectives);
  const double s = ax_launched_seconds(r, atomic_load(&rec->since), now);
  const int64_t blocked = atomic_load_explicit(&rec->launch_since, memory_order_acquire);
  char text[160], last[360] = "";

  if (n > 0) {
    ax_collective_text(&rec->last, text, sizeof text);
    snprintf(last, sizeof last, "#%llu, %s%s%.*s", (unsigned long long)rec->number, text,
             rec->where[0] ? " at " : "", AX_WHERE_TEXT, rec->where);
  }
  const int64_t busy = atomic_load_explicit(&rec->busy_since, memory_order_acquire);

  if (busy && state == AX_RANK_RUNNING && now - busy >= BUSY_NS)
    snprintf(buf, size, "in %.*s for %.1f s%s%s", (int)sizeof rec->busy, rec->busy,
             ax_launched_seconds(r, busy, now), n > 0 ? ", after " : "", last);
  else if (blocked && state == AX_RANK_RUNNING)
    snprintf(buf, size, "in a launch on cuda:%d (%.*s%s%.*s) for %.1f s, after %s", (int)rec->launch_device,
             (int)sizeof rec->launch, rec->launch, rec->launch_at[0] ? ", near " : "", AX_WHERE_TEXT,
             rec->launch_at, ax_launched_seconds(r, blocked, now), last);
  else if (state == AX_RANK_WAITING || state == AX_RANK_GIVEN_UP)
    snprintf(buf, size, "in %s, for %.1f s", last, s);
  else if (state == AX_RANK_FINISHED)
    snprintf(buf, size, "finished%s%s", n > 0 ? "; last collective " : "", last);
  else if (state == AX_RANK_STARTING) snprintf(buf, size, "starting");
  else if (n == 0) snprintf(buf, size, "running for %.1f s, no collective so far", s);
  else snprintf(buf, size, "running for %.1f s since %s", s, last);
}

/* One line for each rank but `except`, up to AX_SHOWN of them. */
int ax_launched_fill_table(ax_launched *r, int except, int64_t now)
{
  int lines = 0, rows = 0;

  for (int rank = 0; rank < r->ranks; rank++) {
    char text[520], stopped[32] = "";
    if (rank == except) continue;
    if (rows++ >= AX_SHOWN) continue;
    ax_launched_doing(r, rank, now, text, sizeof text);
    if (r->child[rank].stop_signal) snprintf(stopped, sizeof stopped, "stopped, ");
    snprintf(r->table[lines++], sizeof r->table[0], "  rank %-3d %s%s",
             rank + (r->machines ? r->machines->first : 0), stopped, text);
  }
  if (rows > AX_SHOWN)
    snprintf(r->table[lines++], sizeof r->table[0], "  ... and %d more ranks", rows - AX_SHOWN);
  return lines;
}

/* ---- SIGUSR1: where all ranks are */

/* Asks the ranks of this machine.  Where each has a launcher all may get the signal, and one of
 * them prints. */
void ax_launched_begin_look(ax_launched *r, int64_t now)
{
  int64_t before = atomic_load(&r->control->look_at);

  if (now - before < LOOK_NS || !atomic_compare_exchange_strong(&r->control->look_at, &before, now)) return;
  for (int rank = 0; rank < r->ranks; rank++) {
    ax_rank_record *rec = &r->control->rank[rank];
    atomic_fetch_add(&rec->looks, 1);
    if (rec->pid > 0 && atomic_load(&rec->state) != AX_RANK_FINISHED) kill(rec->pid, SIGUSR1);
  }
  r->look_until = now + LOOK_NS;
}

void ax_launched_end_look(ax_launched *r, int64_t now)
{
  bool all = true;

  for (int rank = 0; rank < r->ranks; rank++) {
    ax_rank_record *rec = &r->control->rank[rank];
    all = all && (atomic_load(&rec->looks) == atomic_load(&rec->looked) ||
                  atomic_load(&rec->state) == AX_RANK_FINISHED);
  }
  if (!all && now < r->look_until) return;
  r->look_until = 0;
  for (int rank = 0; rank < r->ranks; rank++) {
    ax_rank_record *rec = &r->control->rank[rank];
    const bool has = atomic_load(&rec->looks) == atomic_load(&rec->looked);
    char text[520];
    ax_launched_doing(r, rank, now, text, sizeof text);
    ax_print(stderr, "accel-run: SIGUSR1: %s is %s\n%.*s%s", ax_launched_name(r->machines, rank), text,
             has ? (int)sizeof rec->trace : 0, rec->trace,
             has ? "\n"
             : atomic_load(&rec->state) == AX_RANK_FINISHED
                 ? ""
                 : "(no Lua traceback within a second: it is inside one long call of C)\n");
  }
}

/* ---- the ranks' last collectives */

/* Writes the ranks' last collectives, when one has waited too long. */
static void write_flights(const ax_launched *r)
{
  char path[300];

  if (!ax_launched_leads(r) || !atomic_load(&r->control->timed_out) || strcmp(r->flights, "none") == 0)
    return;
  if (ax_flight_write(r->control, r->machines ? r->machines->first : 0, r->flights, path, sizeof path))
    ax_print(stderr, "accel-run: the last collectives of each rank%s, with their times, are in %s\n",
             r->machines ? " of this machine" : "", path);
  else
    ax_print(stderr,
             "accel-run: the ranks' last collectives cannot be written to %s: %s (--flight_recorder)\n", path,
             strerror(errno));
}

void ax_launched_watch_stragglers(ax_launched *r)
{
  const ax_straggler *s = &r->straggler;

  if (!ax_straggler_look(&r->straggler, r->control)) return;
  ax_print(stderr,
           "accel-run: %s is late: between collectives it takes %.1f times as long as the others, which have "
           "waited for it %.1f of the last %.1f s (%d collectives, the last at %.*s)\n",
           ax_launched_name(r->machines, s->rank), s->factor, s->waited, s->of, s->collectives, AX_WHERE_TEXT,
           s->where);
}

static void print_table(ax_launched *r, int lines)
{
  for (int i = 0; i < lines; i++) ax_print(stderr, "%s\n", r->table[i]);
}

/* Reports, at growing intervals, that ranks have been waiting for long. */
void ax_launched_watch_stalls(ax_launched *r, int64_t now)
{
  double longest = 0, limit = 0;

  for (int rank = 0; rank < r->ranks; rank++) {
    ax_rank_record *rec = &r->control->rank[rank];
    const int64_t blocked = atomic_load(&rec->launch_since);
    if (blocked || atomic_load(&rec->state) == AX_RANK_WAITING) {
      const double s = ax_launched_seconds(r, blocked ? blocked : atomic_load(&rec->since), now);
      if (s > longest) {
        longest = s;
        limit = (double)atomic_load(&rec->timeout) * 1e-9;
      }
    }
  }
  if (longest < r->stall_report) {
    r->next_stall = r->stall_report;
    return;
  }
  if (longest < r->next_stall) return;
  r->next_stall = longest < r->stall_report * 100 ? longest * 2 : longest + r->stall_report * 100;
  ax_print(stderr, "accel-run: no progress for %.0f s; waits end after %g s (--timeout)\n", longest, limit);
  print_table(r, ax_launched_fill_table(r, -1, now));
}

/* ---- the end of the run */

static const char *meaning(int sig)
{
  switch (sig) {
  case SIGKILL: return " (as the kernel does when memory runs out)";
  case SIGXCPU: return " (as the kernel does at a limit of processor time, ulimit -t)";
  case SIGPIPE: return " (the reader of what it printed, or of a socket, has ended)";
  default: return "";
  }
}

/* Fills `how` ("was killed by SIGKILL") and returns the exit status for the failed rank. */
static int how_it_failed(const ax_launched *r, int rank, char *how, size_t size)
{
  const ax_child *c = &r->child[rank];
  const ax_rank_record *rec = &r->control->rank[rank];
  int code;

  if (rec->failure[0]) { /* it wrote its failure itself, however the process ended */
    code = WIFEXITED(c->status) && WEXITSTATUS(c->status) ? WEXITSTATUS(c->status) : AX_EXIT_FAILED;
    snprintf(how, size, "failed");
    return code;
  }
  if (r->lost_to) {
    snprintf(how, size, "was stopped by %s and did not go on within %g s", ax_launched_signal(r->lost_to),
             r->stall_timeout);
    return 128 + r->lost_to;
  }
  if (WIFSIGNALED(c->status)) {
    code = WTERMSIG(c->status);
    snprintf(how, size, "was killed by %s%s", ax_launched_signal(code), meaning(code));
    return 128 + code;
  }
  code = WEXITSTATUS(c->status);
  snprintf(how, size, "exited with status %d", code);
  return code ? code : AX_EXIT_FAILED;
}

/* Decides which rank failed.  Where a rank was killed while it wrote its failure, it is the first
 * one that ended badly. */
static void settle(ax_launched *r)
{
  int rank;

  if (atomic_load(&r->control->abort) != AX_ABORT_CLAIMED) return;
  for (rank = r->from; rank < r->to - 1 && r->child[rank].status == 0; rank++)
    ;
  if (!r->local || r->child[rank].status != 0) r->control->failed_rank = rank;
}

int ax_launched_report(ax_launched *r, int lines)
{
  const int total = r->machines ? r->machines->ranks : r->ranks;
  const ax_rank_record *rec;
  char how[256], was[520];
  int rank, status;

  if (atomic_load(&r->control->abort) == AX_ABORT_NONE) return 0;
  settle(r);
  rank = r->control->failed_rank;
  fflush(stdout);
  if (r->local && r->local->rank != (rank < 0 ? 0 : rank)) /* another launcher reports */
    return r->ending_signal ? 128 + r->ending_signal : AX_EXIT_FAILED;
  if (rank < 0) {
    ax_print(stderr, "accel-run: %s; the ranks %swere\n", r->control->reason,
             r->machines ? "of this machine " : "");
    print_table(r, lines);
    write_flights(r);
    return r->ending_signal ? 128 + r->ending_signal : AX_EXIT_FAILED;
  }
  rec = &r->control->rank[rank];
  status = how_it_failed(r, rank, how, sizeof how);
  if (rec->failure[0]) {
    ax_print(stderr, "accel-run: %s of %d failed: %s\n", ax_launched_name(r->machines, rank), total,
             rec->failure);
  } else {
    ax_launched_doing(r, rank, r->ending_at, was, sizeof was);
    ax_print(stderr, "accel-run: %s of %d %s; it was %s\n", ax_launched_name(r->machines, rank), total, how,
             was);
  }
  write_flights(r);
  if (r->quiet) return status;
  if (lines > 0) {
    ax_print(stderr, "accel-run: the other ranks %swere\n", r->machines ? "of this machine " : "");
    print_table(r, lines);
  }
  ax_print(stderr, "accel-run: %s %s", ax_launched_name(r->machines, rank), how);
  if (rec->failed_at[0]) ax_print(stderr, " at %s", rec->failed_at);
  else if (rec->where[0] && !rec->failure[0])
    ax_print(stderr, ", last seen at %.*s", AX_WHERE_TEXT, rec->where);
  ax_print(stderr, " (exit status %d)\n", status);
  return status;
}

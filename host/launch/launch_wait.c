/* launch_wait.c: the launcher waits for the ranks' ends, and ends them when one has failed. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "run.h"
#include "script/script.h"

#define LATE_NS 100000000 /* what a launcher that is not stopped may be late by */
#define TICK_ENDING_NS 20000000
#define PATIENCE 0.3    /* seconds for ranks to leave by themselves, and again after SIGTERM */
#define STOP_NOTICE 0.1 /* seconds; Ctrl-Z stops the launcher too and is not reported */

static void rank_ended(ax_launched *r, int rank, int status)
{
  char reason[128];
  int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);

  if (r->prompt && rank == 0 && code == AX_EXIT_INTERRUPT) { /* as was agreed there */
    r->ending_signal = SIGINT;
    ax_shm_abort(r->control, -1, "the run was ended by SIGINT");
  }
  r->child[rank].alive = false;
  r->child[rank].status = status;
  r->child[rank].stop_signal = 0;
  r->alive--;
  if (code != 0) {
    if (WIFSIGNALED(status))
      snprintf(reason, sizeof reason, "%s was killed by %s", ax_launched_name(r->machines, rank),
               ax_launched_signal(WTERMSIG(status)));
    else
      snprintf(reason, sizeof reason, "%s exited with status %d", ax_launched_name(r->machines, rank), code);
    ax_shm_abort(r->control, rank, reason);
  } else {
    ax_shm_finished(r->control, rank); /* it may have left without entering its end into the record */
  }
}

static void reap(ax_launched *r, int64_t now)
{
  int status, rank;
  pid_t pid;

  while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0) {
    for (rank = r->from; rank < r->to && r->child[rank].pid != pid; rank++)
      ;
    if (rank == r->to) continue;
    if (WIFSTOPPED(status)) {
      r->child[rank].stop_signal = WSTOPSIG(status);
      r->child[rank].stopped_at = now;
      r->child[rank].stop_reported = false;
    } else if (WIFCONTINUED(status)) {
      if (r->child[rank].stop_reported && r->ending_at == 0)
        ax_print(stderr, "accel-run: %s goes on\n", ax_launched_name(r->machines, rank));
      r->child[rank].stop_signal = 0;
    } else {
      rank_ended(r, rank, status);
    }
  }
}

/* Watches for stopped ranks: a stopped rank stops the others, sooner or later. */
static void watch_stopped(ax_launched *r, int64_t now)
{
  for (int rank = r->from; rank < r->to; rank++) {
    ax_child *c = &r->child[rank];
    char text[520], reason[192];
    if (!c->alive || !c->stop_signal) continue;
    if (!c->stop_reported && ax_launched_seconds(r, c->stopped_at, now) >= STOP_NOTICE) {
      c->stop_reported = true;
      ax_launched_doing(r, rank, now, text, sizeof text);
      ax_print(stderr,
               "accel-run: %s (process %d) was stopped by %s; it was %s. The run ends unless it goes on "
               "within %g s (--stall_timeout)\n",
               ax_launched_name(r->machines, rank), (int)c->pid, ax_launched_signal(c->stop_signal), text,
               r->stall_timeout);
    }
    if (ax_launched_seconds(r, c->stopped_at, now) >= r->stall_timeout) {
      snprintf(reason, sizeof reason, "%s was stopped by %s and did not go on within %g s",
               ax_launched_name(r->machines, rank), ax_launched_signal(c->stop_signal), r->stall_timeout);
      if (ax_shm_abort(r->control, rank, reason)) r->lost_to = c->stop_signal;
    }
  }
}

/* Ends the run for a rank whose GPUs' group was aborted and whose own thread is still blocked, so
 * that it raises no error itself. */
static void watch_overdue(ax_launched *r, int64_t now)
{
  for (int rank = r->from; rank < r->to; rank++) {
    ax_rank_record *rec = &r->control->rank[rank];
    const int64_t at = atomic_load_explicit(&rec->overdue, memory_order_acquire);
    char reason[1024];
    if (at == 0 || now < at) continue;
    snprintf(reason, sizeof reason, "%s failed: %.*s", ax_launched_name(r->machines, rank), 800, rec->stuck);
    if (ax_shm_abort(r->control, rank, reason)) memcpy(rec->failure, rec->stuck, sizeof rec->stuck);
  }
}

void ax_launched_signal_all(ax_launched *r, int sig)
{
  for (int rank = r->from; rank < r->to; rank++)
    if (r->child[rank].alive) kill(r->child[rank].pid, sig);
}

/* Ends the remaining ranks: after a grace period with SIGTERM, then with SIGKILL, which also ends
 * stopped processes. */
static void end_ranks(ax_launched *r, int64_t now)
{
  const double patience = r->ending_signal ? 0 : PATIENCE, s = ax_launched_seconds(r, r->ending_at, now);

  if (!r->termed && s >= patience) {
    r->termed = true;
    ax_launched_signal_all(r, SIGTERM);
  }
  if (!r->killed && s >= patience + PATIENCE) {
    r->killed = true;
    ax_launched_signal_all(r, SIGKILL);
  }
}

/* Whether the script has a function for the signal, which then runs; a second signal ends the
 * run. */
static bool hand_on(ax_launched *r, int sig)
{
  if (r->handed || r->ending_at || !(atomic_load(&r->control->handled) & 1u << sig)) return false;
  atomic_store(&r->control->signal, (uint32_t)sig);
  if (ax_launched_leads(r))
    ax_print(
        stderr,
        "accel-run: %s: the script's function runs before the next batch; a second signal ends the run\n",
        ax_launched_signal(sig));
  return true;
}

static void add_pause(ax_launched *r, int64_t from, int64_t to)
{
  const unsigned i = r->pauses++ % AX_PAUSES;

  r->pause[i].from = from;
  r->pause[i].to = to;
}

/* Time in which a rank stands at a breakpoint is a pause. */
static void note_hold(ax_launched *r, int64_t now)
{
  const bool stands = ax_hold_stands(r->control);

  if (stands && !r->held_from) r->held_from = now;
  if (!stands && r->held_from) {
    add_pause(r, r->held_from, now);
    r->held_from = 0;
  }
}

/* Remembers the time between two checks that a tick of `tick` nanoseconds does not explain. */
static void note_pause(ax_launched *r, int64_t now, int64_t tick)
{
  if (now - r->last_tick > tick + LATE_NS) add_pause(r, r->last_tick + tick, now);
  r->last_tick = now;
}

/* Ends the run because of a signal; a second one ends it at once. */
static void end_by(ax_launched *r, int sig)
{
  char reason[128];

  if (r->ending_signal) {
    ax_launched_signal_all(r, SIGKILL);
    return;
  }
  r->ending_signal = sig;
  atomic_store(&r->control->ended, 1);
  if (r->machines)
    snprintf(reason, sizeof reason, "the run was ended by %s on machine %d", ax_launched_signal(sig),
             r->machines->mine);
  else snprintf(reason, sizeof reason, "the run was ended by %s", ax_launched_signal(sig));
  ax_shm_abort(r->control, -1, reason);
}

static void take_signal(ax_launched *r, int sig, const siginfo_t *info, int64_t now)
{
  if (sig == SIGINT && r->held_from && info->si_code == SI_KERNEL) {
    /* the terminal's, for the rank that stands */
  } else if (sig == SIGINT && r->prompt) {
    if (info->si_code != SI_KERNEL && r->child[0].alive) kill(r->child[0].pid, SIGINT);
  } else if (sig == SIGUSR1) {
    ax_launched_begin_look(r, now);
    if (r->machines && r->look_until) ax_machines_look(r->machines, -1);
  } else if (sig > 0 && sig != SIGCHLD) {
    if (hand_on(r, sig)) r->handed = true;
    else end_by(r, sig);
  }
}

int ax_launched_wait(ax_launched *r, const sigset_t *signals)
{
  bool others = r->machines != NULL || r->local != NULL;
  int lines = 0;

  r->last_tick = r->last_look = ax_monotonic_ns();
  while (r->alive > 0 || (others && r->ending_at == 0)) {
    const int64_t ns = r->ending_at ? TICK_ENDING_NS : r->tick;
    const struct timespec tick = { (time_t)(ns / 1000000000), (long)(ns % 1000000000) };
    siginfo_t info;
    int sig = sigtimedwait(signals, &info, &tick);
    int64_t now = ax_monotonic_ns();

    note_pause(r, now, ns);
    note_hold(r, now);
    take_signal(r, sig, &info, now);
    reap(r, now);
    if (r->machines && r->machines->look) {
      r->machines->look = false;
      ax_launched_begin_look(r, now);
    }
    if (r->look_until) ax_launched_end_look(r, now);
    others = r->machines && ax_launched_leads(r) && ax_machines_watch(r->machines, r->control);
    others = (r->local && ax_local_watch(r->local, r->control)) || others;
    if (r->ending_at == 0) {
      watch_stopped(r, now);
      /* not whenever a rank ends: the others' waits end then, too */
      if (ax_launched_leads(r) && !r->held_from && now - r->last_look >= r->tick) {
        r->last_look = now;
        ax_launched_watch_stalls(r, now);
        ax_launched_watch_stragglers(r);
      }
      watch_overdue(r, now);
    }
    if (r->ending_at == 0 && atomic_load(&r->control->abort) != AX_ABORT_NONE) {
      r->ending_at = now;
      lines = ax_launched_fill_table(r, r->control->failed_rank, now);
    }
    if (r->ending_at) end_ranks(r, now);
  }
  return lines;
}

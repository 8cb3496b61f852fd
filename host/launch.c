/* launch.c: forks one process per rank, before any Lua state or library thread exists, and waits
 * for their end.
 *
 * The launcher learns of a failure in one of two ways.  A rank writes the reason into its record
 * and raises the abort flag (an error in the script, os.exit); or the kernel reports how a process
 * ended (a signal, a plain exit).  In both cases ranks that wait in a collective are woken with an
 * error of their own, and ranks that are left a moment later are killed.  The report comes after
 * the last rank is gone, so that it is the end of the run's output.
 *
 * Where another program has started one process for each rank, each is the launcher of one rank and
 * shares the memory with the others of its machine (local.c).  The one of the rank that failed
 * reports; the one of local rank 0 does what is done once for a machine.
 *
 * On several machines each has its launcher (machines.c).  The launchers notify each other of
 * failures, and each ends its own ranks as above.
 *
 * Nothing outlives the launcher: the kernel kills a rank whose parent dies, the shared memory has
 * no name, and programs that the script started are ended too (family.c). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "glibc.h"
#include "launch.h"

#define LATE_NS 100000000 /* what a launcher that is not stopped may be late by */
#define TICK_ENDING_NS 20000000
#define PATIENCE 0.3    /* seconds for ranks to leave by themselves, and again after SIGTERM */
#define STOP_NOTICE 0.1 /* seconds; Ctrl-Z stops the launcher too and is not reported */

/* ---- in a rank ------------------------------------------------------------------------------- */

static ax_control *my_control;
static int my_rank; /* on this machine */
static ax_machines *my_machines;

static void keep_going(int sig) { (void)sig; }

static void finished(void)
{
  if (my_control->rank[my_rank].pid != (int32_t)getpid()) /* in a process that the rank forked */
    return;
  if (my_machines && atomic_load(&my_control->abort) == AX_ABORT_NONE) ax_machines_finished(my_machines);
  ax_shm_finished(my_control, my_rank);
}

/* Writes the reason of this rank's failure into its record.  The first rank to fail ends the
 * run. */
static void rank_failed(const char *text, const char *where)
{
  ax_rank_record *me = &my_control->rank[my_rank];
  const char *end = strstr(text, "\nstack traceback:");
  int length = end ? (int)(end - text) : (int)strlen(text);
  char reason[1024];

  snprintf(me->failed_at, sizeof me->failed_at, "%s", where);
  if (snprintf(me->failure, sizeof me->failure, "%s", text) >= (int)sizeof me->failure)
    memcpy(me->failure + sizeof me->failure - 4, "...", 4);
  snprintf(reason, sizeof reason, "%s failed: %.*s", ax_launched_name(my_machines, my_rank),
           length > 800 ? 800 : length, text);
  ax_shm_abort(my_control, my_rank, reason);
}

static void set_number(const char *name, int value)
{
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

/* --no_python: the rank becomes another program, which joins no collective of ours. */
static _Noreturn void become_program(const ax_plan *plan)
{
  char **argv = plan->argv + plan->script;

  execvp(*argv, argv);
  fprintf(stderr, "accel-run: cannot run %s: %s\n", *argv, strerror(errno));
  _exit(errno == ENOENT ? 127 : 126);
}

/* At a prompt an error ends a chunk and not the run. */
static void join_session(const ax_plan *plan, int rank)
{
  int null;

  ax_session_keep(rank);
  ax_shm_interrupts(&ax_interrupted);
  if (rank == 0) return;
  if (plan->set[AX_SET_quiet].number && !plan->set[AX_SET_tee].number &&
      (null = open("/dev/null", O_WRONLY)) >= 0) {
    dup2(null, STDOUT_FILENO);
    close(null);
  }
  setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
}

static int rank_main(const ax_plan *plan, ax_control *c, ax_machines *machines, int rank, pid_t launcher,
                     const sigset_t *mask)
{
  const int number = rank + (machines ? machines->first : 0);
  struct sigaction on_interrupt = { .sa_handler = keep_going, .sa_flags = SA_RESTART };
  int status, null;

  prctl(PR_SET_PDEATHSIG, SIGKILL);
  ax_family_join();
  if (getppid() != launcher) /* the launcher died before the line above */
    _exit(128 + SIGKILL);
  /* Ctrl-C reaches all processes, and the launcher decides.  A handler, because programs that the
   * script starts would inherit SIG_IGN. */
  sigaction(SIGINT, &on_interrupt, NULL);
  sigprocmask(SIG_SETMASK, mask, NULL);
  /* only rank 0 reads stdin: ranks must not compete for lines of input */
  if (number > 0 && (null = open("/dev/null", O_RDONLY)) >= 0) {
    dup2(null, STDIN_FILENO);
    close(null);
  }
  set_number("RANK", number);
  set_number("LOCAL_RANK", rank);
  set_number("WORLD_SIZE", machines ? machines->ranks : c->ranks);
  set_number("LOCAL_WORLD_SIZE", c->ranks);
  set_number("ACCEL_RUN_RANK", number);
  if (plan->set[AX_SET_no_python].number) become_program(plan);
  my_control = c;
  my_rank = rank;
  my_machines = machines;
  if (ax_shm_join(c, rank) != AX_OK || (machines && ax_machines_join(machines, rank) != AX_OK)) {
    rank_failed(ax_last_error(), "");
    _exit(AX_EXIT_FAILED);
  }
  atexit(finished); /* runs for os.exit(0) too */
  if (plan->interactive) join_session(plan, rank);
  status = ax_interp_run(plan, plan->interactive ? NULL : rank_failed);
  if (status == 0) {
    finished();
    ax_dist_leave_device(); /* before atexit, which is too late for the GPU's libraries */
  }
  if (status == 0) return 0; /* main ends the process as usual */
  fflush(NULL);
  _exit(status);
}

/* ---- the ranks' ends ------------------------------------------------------------------------- */

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
        fprintf(stderr, "accel-run: %s goes on\n", ax_launched_name(r->machines, rank));
      r->child[rank].stop_signal = 0;
    } else {
      rank_ended(r, rank, status);
    }
  }
}

/* Watches for stopped ranks: a stopped rank stops the others, sooner or later. */
static void watch_stopped(ax_launched *r, int64_t now)
{
  int rank;

  for (rank = r->from; rank < r->to; rank++) {
    ax_child *c = &r->child[rank];
    char text[520], reason[192];
    if (!c->alive || !c->stop_signal) continue;
    if (!c->stop_reported && ax_launched_seconds(r, c->stopped_at, now) >= STOP_NOTICE) {
      c->stop_reported = true;
      ax_launched_doing(r, rank, now, text, sizeof text);
      fprintf(stderr,
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
  int rank;

  for (rank = r->from; rank < r->to; rank++) {
    ax_rank_record *rec = &r->control->rank[rank];
    const int64_t at = atomic_load_explicit(&rec->overdue, memory_order_acquire);
    char reason[1024];
    if (at == 0 || now < at) continue;
    snprintf(reason, sizeof reason, "%s failed: %.*s", ax_launched_name(r->machines, rank), 800, rec->stuck);
    if (ax_shm_abort(r->control, rank, reason)) memcpy(rec->failure, rec->stuck, sizeof rec->stuck);
  }
}

static void signal_all(ax_launched *r, int sig)
{
  int rank;

  for (rank = r->from; rank < r->to; rank++)
    if (r->child[rank].alive) kill(r->child[rank].pid, sig);
}

/* Ends the remaining ranks: after a grace period with SIGTERM, then with SIGKILL, which also ends
 * stopped processes. */
static void end_ranks(ax_launched *r, int64_t now)
{
  const double patience = r->ending_signal ? 0 : PATIENCE, s = ax_launched_seconds(r, r->ending_at, now);

  if (!r->termed && s >= patience) {
    r->termed = true;
    signal_all(r, SIGTERM);
  }
  if (!r->killed && s >= patience + PATIENCE) {
    r->killed = true;
    signal_all(r, SIGKILL);
  }
}

/* Whether the script has a function for the signal, which then runs; a second signal ends the
 * run. */
static bool hand_on(ax_launched *r, int sig)
{
  if (r->handed || r->ending_at || !(atomic_load(&r->control->handled) & 1u << sig)) return false;
  atomic_store(&r->control->signal, (uint32_t)sig);
  if (ax_launched_leads(r))
    fprintf(stderr,
            "accel-run: %s: the script's function runs before the next batch; a second signal ends the run\n",
            ax_launched_signal(sig));
  return true;
}

/* Remembers the time between two checks that a tick of `tick` nanoseconds does not explain. */
static void note_pause(ax_launched *r, int64_t now, int64_t tick)
{
  if (now - r->last_tick > tick + LATE_NS) {
    const unsigned i = r->pauses++ % AX_PAUSES;
    r->pause[i].from = r->last_tick + tick;
    r->pause[i].to = now;
  }
  r->last_tick = now;
}

static int wait_for_ranks(ax_launched *r, const sigset_t *signals)
{
  bool others = r->machines != NULL || r->local != NULL;
  int lines = 0;

  r->last_tick = ax_monotonic_ns();
  while (r->alive > 0 || (others && r->ending_at == 0)) {
    const int64_t ns = r->ending_at ? TICK_ENDING_NS : r->tick;
    const struct timespec tick = { (time_t)(ns / 1000000000), (long)(ns % 1000000000) };
    siginfo_t info;
    int sig = sigtimedwait(signals, &info, &tick);
    int64_t now = ax_monotonic_ns();

    note_pause(r, now, ns);
    if (sig == SIGINT && r->prompt) {
      if (info.si_code != SI_KERNEL && r->child[0].alive) kill(r->child[0].pid, SIGINT);
    } else if (sig == SIGUSR1) {
      ax_launched_begin_look(r, now);
      if (r->machines && r->look_until) ax_machines_look(r->machines, -1);
    } else if (sig > 0 && sig != SIGCHLD && hand_on(r, sig)) {
      r->handed = true;
    } else if (sig > 0 && sig != SIGCHLD) {
      char reason[128];
      if (r->ending_signal) {
        signal_all(r, SIGKILL); /* the second signal */
      } else {
        r->ending_signal = sig;
        atomic_store(&r->control->ended, 1);
        if (r->machines)
          snprintf(reason, sizeof reason, "the run was ended by %s on machine %d", ax_launched_signal(sig),
                   r->machines->mine);
        else snprintf(reason, sizeof reason, "the run was ended by %s", ax_launched_signal(sig));
        ax_shm_abort(r->control, -1, reason);
      }
    }
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
      if (ax_launched_leads(r)) {
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

/* ---- the report ------------------------------------------------------------------------------ */

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
    snprintf(how, size, "was killed by %s%s", ax_launched_signal(code),
             code == SIGKILL ? " (as the kernel does when memory runs out)" : "");
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

static int report(ax_launched *r, int lines)
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
    fprintf(stderr, "accel-run: %s; the ranks %swere\n", r->control->reason,
            r->machines ? "of this machine " : "");
    ax_launched_print_table(r, lines);
    ax_launched_write_flights(r);
    return r->ending_signal ? 128 + r->ending_signal : AX_EXIT_FAILED;
  }
  rec = &r->control->rank[rank];
  status = how_it_failed(r, rank, how, sizeof how);
  if (rec->failure[0]) {
    fprintf(stderr, "accel-run: %s of %d failed: %s\n", ax_launched_name(r->machines, rank), total,
            rec->failure);
  } else {
    ax_launched_doing(r, rank, r->ending_at, was, sizeof was);
    fprintf(stderr, "accel-run: %s of %d %s; it was %s\n", ax_launched_name(r->machines, rank), total, how,
            was);
  }
  ax_launched_write_flights(r);
  if (r->quiet) return status;
  if (lines > 0) {
    fprintf(stderr, "accel-run: the other ranks %swere\n", r->machines ? "of this machine " : "");
    ax_launched_print_table(r, lines);
  }
  fprintf(stderr, "accel-run: %s %s", ax_launched_name(r->machines, rank), how);
  if (rec->failed_at[0]) fprintf(stderr, " at %s", rec->failed_at);
  else if (rec->where[0] && !rec->failure[0])
    fprintf(stderr, ", last seen at %.*s", AX_WHERE_TEXT, rec->where);
  fprintf(stderr, " (exit status %d)\n", status);
  return status;
}

/* ---- starting -------------------------------------------------------------------------------- */

/* The signals that the launcher waits for.  A signal that was ignored when it started (nohup) stays
 * ignored. */
static void block_signals(sigset_t *signals, sigset_t *former)
{
  static const int list[] = { SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 };
  struct sigaction a;
  size_t i;

  sigemptyset(signals);
  for (i = 0; i < sizeof list / sizeof *list; i++)
    if (list[i] == SIGCHLD || sigaction(list[i], NULL, &a) != 0 || a.sa_handler != SIG_IGN)
      sigaddset(signals, list[i]);
  signal(SIGCHLD, SIG_DFL); /* an inherited SIG_IGN would lose the exit statuses */
  sigprocmask(SIG_BLOCK, signals, former);
}

/* A port that nothing uses now; 0: none. */
static int free_port(void)
{
  struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
  socklen_t length = sizeof a;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool ok = fd >= 0 && bind(fd, (struct sockaddr *)&a, length) == 0 &&
                  getsockname(fd, (struct sockaddr *)&a, &length) == 0;

  if (fd >= 0) close(fd);
  return ok ? ntohs(a.sin_port) : 0;
}

/* Where programs that the ranks start can meet; the ranks themselves need no port on one
 * machine. */
static void export_meeting(const ax_plan *plan)
{
  const ax_setting *address = &plan->set[AX_SET_main_process_ip],
                   *port = &plan->set[AX_SET_main_process_port];

  if (plan->set[AX_SET_num_processes].number < 2) return;
  if (plan->join.who && getenv("MASTER_ADDR") && getenv("MASTER_PORT")) return;
  setenv("MASTER_ADDR", address->number ? address->text : "127.0.0.1", 1);
  set_number("MASTER_PORT", port->number > 0 ? (int)port->number : free_port());
}

static int check_script(const ax_plan *plan)
{
  const char *name = plan->script ? plan->argv[plan->script] : "-";

  if (plan->stdin_text || strcmp(name, "-") == 0 || plan->set[AX_SET_module].number ||
      plan->set[AX_SET_no_python].number || access(name, R_OK) == 0)
    return 0;
  fprintf(stderr, "accel-run: cannot open %s: %s\n", name, strerror(errno));
  return AX_EXIT_FAILED;
}

/* What stays the same from one start of the ranks to the next. */
typedef struct launching {
  ax_plan *plan;
  int ranks, attempt;
  bool crowded; /* more threads than cores */
  pid_t launcher;
  sigset_t signals, former;
  bool in_rank; /* this process is a rank, and leaves as one */
} launching;

static int abandon(ax_launched *r, int rank)
{
  fprintf(stderr, "accel-run: rank %d of %d could not be started: %s\n", rank, r->ranks, strerror(errno));
  if (r->machines) {
    ax_machines_tell(r->machines, "a rank could not be started");
    ax_machines_close(r->machines);
  }
  ax_shm_abort(r->control, rank, "a rank could not be started");
  if (r->local) ax_local_end(r->local);
  signal_all(r, SIGKILL);
  ax_family_end(true);
  while (waitpid(-1, NULL, 0) > 0) {}
  return AX_EXIT_FAILED;
}

/* Starts the ranks and waits for their end; in a rank, runs it.  The exit status. */
static int run_ranks(launching *l, ax_launched *r)
{
  ax_output *output = NULL;
  int rank, status, lines;
  bool failed;

  if ((status = ax_output_begin(l->plan, r->from, r->to, r->machines ? r->machines->first : 0, l->attempt,
                                &output)) != 0)
    return status;
  if (r->prompt && !ax_session_open(r->control, output)) return AX_EXIT_FAILED;
  fflush(NULL); /* or every rank would print the buffered text again */
  ax_family_begin();
  for (rank = r->from; rank < r->to; rank++) {
    pid_t pid = fork();
    if (pid == 0) {
      l->in_rank = true;
      ax_output_join(output, rank, r->prompt && rank == 0);
      return rank_main(l->plan, r->control, r->machines, rank, l->launcher, &l->former);
    }
    if (pid < 0) return abandon(r, rank);
    r->child[rank] = (ax_child){ .pid = pid, .alive = true };
    r->alive++;
  }
  ax_session_keep(-1);
  ax_output_run(output);
  if (r->machines) ax_machines_forked(r->machines);
  lines = wait_for_ranks(r, &l->signals);
  failed = atomic_load(&r->control->abort) != AX_ABORT_NONE;
  ax_family_end(failed);
  ax_output_end(output);
  if (r->prompt) ax_session_close();
  if (r->machines) ax_machines_tell(r->machines, failed ? "a rank failed" : NULL);
  status = report(r, lines);
  if (r->local) ax_local_end(r->local);
  return status;
}

/* Whether a run that failed starts again; says so.  A restart that saved no checkpoint would fail
 * as it did. */
static bool may_start_again(const launching *l, const ax_launched *r)
{
  const int most = (int)l->plan->set[AX_SET_max_restarts].number;
  const uint64_t saved = atomic_load(&r->control->saved);

  if (most == 0 || atomic_load(&r->control->ended) || r->prompt) return false;
  if (l->attempt == most) {
    fprintf(stderr, "accel-run: not started again: that was restart %d of %d\n", l->attempt, most);
    return false;
  }
  if (l->attempt > 0 && saved == 0) {
    fprintf(stderr, "accel-run: not started again: restart %d saved no checkpoint before it failed\n",
            l->attempt);
    return false;
  }
  if (saved > 0) setenv("ACCELERATE_NEWEST_CHECKPOINT", r->control->newest, 1);
  fprintf(stderr, "accel-run: restart %d of %d%s%s\n", l->attempt + 1, most,
          getenv("ACCELERATE_NEWEST_CHECKPOINT") ? "; the newest checkpoint is " : "",
          getenv("ACCELERATE_NEWEST_CHECKPOINT") ? getenv("ACCELERATE_NEWEST_CHECKPOINT") : "");
  return true;
}

/* Of several machines, machine 0 decides. */
static bool starts_again(const launching *l, const ax_launched *r)
{
  const bool follows = r->machines && r->machines->mine != 0;
  const ax_setting *set = l->plan->set;
  bool again;

  if (!r->machines) return may_start_again(l, r);
  if (follows && (set[AX_SET_max_restarts].number == 0 || atomic_load(&r->control->ended))) return false;
  again = ax_machines_again(r->machines, r->control, !follows && may_start_again(l, r),
                            set[AX_SET_timeout].number);
  if (follows && again)
    fprintf(stderr, "accel-run: restart %d of %d with the other machines\n", l->attempt + 1,
            (int)set[AX_SET_max_restarts].number);
  return again;
}

static void set_up_run(const launching *l, ax_launched *r)
{
  const ax_setting *set = l->plan->set;

  *r = (ax_launched){ .ranks = l->ranks,
                      .to = l->ranks,
                      .stall_report = set[AX_SET_stall_report].number,
                      .straggler = { .rank = -1 },
                      .next_stall = set[AX_SET_stall_report].number,
                      .stall_timeout = set[AX_SET_stall_timeout].number,
                      .tick = (int64_t)(set[AX_SET_monitor_interval].number * 1e9),
                      .quiet = set[AX_SET_quiet].number != 0,
                      .prompt = l->plan->interactive };
  snprintf(r->flights, sizeof r->flights, "%s",
           strcmp(set[AX_SET_flight_recorder].text, "auto") != 0 ? set[AX_SET_flight_recorder].text
           : getenv("TMPDIR")                                    ? getenv("TMPDIR")
                                                                 : "/tmp");
}

static int share_memory(const launching *l, ax_launched *r)
{
  const double timeout = l->plan->set[AX_SET_timeout].number;

  if (ax_shm_create(l->ranks, timeout, !l->crowded, NULL, &r->control) == AX_OK) return 0;
  fprintf(stderr, "accel-run: %s\n", ax_last_error());
  return AX_EXIT_FAILED;
}

/* One rank of those that another program started: finds the others of its machine. */
static int join_others(launching *l, ax_launched *r, ax_machines *machines)
{
  static ax_local local;
  const bool several = l->plan->set[AX_SET_num_machines].number > 1;
  int status = 0, inherited = -1;

  r->from = l->plan->join.local_rank;
  r->to = r->from + 1;
  if (several) ax_machines_number(machines, l->plan);
  r->machines = several ? machines : NULL;
  if (l->ranks > 1) {
    r->local = &local;
    status = ax_local_meet(&local, l->plan, &r->control, &inherited, &l->plan->rank_cores);
  } else {
    status = share_memory(l, r);
  }
  if (status == 0 && several && r->from == 0) status = ax_machines_meet(machines, l->plan, 0, r->control);
  if (status == 0 && several && r->from > 0) ax_machines_inherit(machines, r->from, inherited);
  if (status == 0 && r->local && r->from == 0)
    status = ax_local_release(&local, several ? ax_machines_ends(machines) : NULL);
  return status;
}

static int start(launching *l, ax_launched *r)
{
  static ax_machines machines;
  int status;

  set_up_run(l, r);
  if (l->plan->join.who) return join_others(l, r, &machines);
  if ((status = share_memory(l, r)) != 0 || l->plan->set[AX_SET_num_machines].number <= 1) return status;
  r->machines = &machines;
  if ((status = ax_machines_meet(&machines, l->plan, l->attempt, r->control)) == 0)
    l->attempt = machines.attempt;
  return status;
}

/* Starts a run that has failed once more; a signal ends the wait for other machines. */
static int start_again(launching *l, ax_launched *r)
{
  int status;

  ax_shm_free(r->control);
  l->attempt++;
  sigprocmask(SIG_SETMASK, &l->former, NULL);
  status = start(l, r);
  sigprocmask(SIG_BLOCK, &l->signals, NULL);
  return status;
}

int ax_launch(ax_plan *plan)
{
  launching l = { .plan = plan, .ranks = ax_config_ranks_here(plan), .launcher = getpid() };
  static ax_launched r;
  bool given;
  int status;

  l.crowded = (long)l.ranks * ax_config_threads(plan, l.ranks, &given) > ax_config_cores();
  unsetenv("ACCELERATE_NEWEST_CHECKPOINT");
  if ((status = check_script(plan)) != 0 || (status = start(&l, &r)) != 0) return status;
  ax_config_export(plan, l.ranks);
  export_meeting(plan);
  if (r.local ? !r.control->spin : l.crowded) setenv("OMP_WAIT_POLICY", "passive", 0);
  block_signals(&l.signals, &l.former);
  for (;;) {
    bool again;
    set_number("ACCELERATE_RESTART_COUNT", l.attempt);
    status = run_ranks(&l, &r);
    if (l.in_rank) return status;
    again = status != 0 && starts_again(&l, &r);
    if (r.machines) ax_machines_close(r.machines);
    if (!again || (status = start_again(&l, &r)) != 0) return status;
  }
}

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
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch.h"
#include "run.h"
#include "script/script.h"

void ax_launched_set_number(const char *name, int value)
{
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

/* The signals that the launcher waits for.  A signal that was ignored when it started (nohup) stays
 * ignored.  SIGPIPE is blocked to the end: a run does not end because nobody reads the launcher's
 * lines any more. */
static void block_signals(sigset_t *signals, sigset_t *former)
{
  sigset_t all;
  static const int list[] = { SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 };
  struct sigaction a;

  sigemptyset(signals);
  for (size_t i = 0; i < sizeof list / sizeof *list; i++)
    if (list[i] == SIGCHLD || sigaction(list[i], NULL, &a) != 0 || a.sa_handler != SIG_IGN)
      sigaddset(signals, list[i]);
  signal(SIGCHLD, SIG_DFL); /* an inherited SIG_IGN would lose the exit statuses */
  all = *signals;
  sigaddset(&all, SIGPIPE);
  sigprocmask(SIG_BLOCK, &all, former);
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
  ax_launched_set_number("MASTER_PORT", port->number > 0 ? (int)port->number : free_port());
}

static int check_script(const ax_plan *plan)
{
  const char *name = plan->script ? plan->argv[plan->script] : "-";

  if (plan->stdin_text || strcmp(name, "-") == 0 || plan->set[AX_SET_module].number ||
      plan->set[AX_SET_no_python].number || access(name, R_OK) == 0)
    return 0;
  ax_print(stderr, "accel-run: cannot open %s: %s\n", name, strerror(errno));
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
  ax_print(stderr, "accel-run: rank %d of %d could not be started: %s\n", rank, r->ranks, strerror(errno));
  if (r->machines) {
    ax_machines_tell(r->machines, "a rank could not be started");
    ax_machines_close(r->machines);
  }
  ax_shm_abort(r->control, rank, "a rank could not be started");
  if (r->local) ax_local_end(r->local);
  ax_launched_signal_all(r, SIGKILL);
  ax_family_end(true);
  while (waitpid(-1, NULL, 0) > 0) {}
  return AX_EXIT_FAILED;
}

/* Starts the ranks and waits for their end; in a rank, runs it.  The exit status. */
static int run_ranks(launching *l, ax_launched *r)
{
  ax_output *output = NULL;
  int status, lines;
  bool failed, lost;

  if ((status = ax_output_begin(l->plan, r->from, r->to, r->machines ? r->machines->first : 0, l->attempt,
                                &output)) != 0)
    return status;
  if (r->prompt && !ax_session_open(r->control, output)) return AX_EXIT_FAILED;
  fflush(NULL); /* or every rank would print the buffered text again */
  ax_family_begin();
  for (int rank = r->from; rank < r->to; rank++) {
    pid_t pid = fork();
    if (pid == 0) {
      l->in_rank = true;
      ax_output_join(output, rank, r->prompt && rank == 0);
      return ax_launched_rank(l->plan, r->control, r->machines, rank, l->launcher, &l->former);
    }
    if (pid < 0) return abandon(r, rank);
    r->child[rank] = (ax_child){ .pid = pid, .alive = true };
    r->alive++;
  }
  ax_session_keep(-1);
  ax_output_run(output);
  if (r->machines) ax_machines_forked(r->machines);
  lines = ax_launched_wait(r, &l->signals);
  failed = atomic_load(&r->control->abort) != AX_ABORT_NONE;
  ax_family_end(failed);
  lost = !ax_output_end(output);
  if (r->prompt) ax_session_close();
  if (r->machines) ax_machines_tell(r->machines, failed ? "a rank failed" : NULL);
  status = ax_launched_report(r, lines);
  if (lost && status == 0) status = AX_EXIT_FAILED;
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
    ax_print(stderr, "accel-run: not started again: that was restart %d of %d\n", l->attempt, most);
    return false;
  }
  if (l->attempt > 0 && saved == 0) {
    ax_print(stderr, "accel-run: not started again: restart %d saved no checkpoint before it failed\n",
             l->attempt);
    return false;
  }
  if (saved > 0) setenv("ACCELERATE_NEWEST_CHECKPOINT", r->control->newest, 1);
  ax_print(stderr, "accel-run: restart %d of %d%s%s\n", l->attempt + 1, most,
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
    ax_print(stderr, "accel-run: restart %d of %d with the other machines\n", l->attempt + 1,
             (int)set[AX_SET_max_restarts].number);
  return again;
}

static void set_up_run(const launching *l, ax_launched *r)
{
  const ax_setting *set = l->plan->set;
  const char *flights = getenv("TMPDIR");

  *r = (ax_launched){ .ranks = l->ranks,
                      .to = l->ranks,
                      .stall_report = set[AX_SET_stall_report].number,
                      .straggler = { .rank = -1 },
                      .next_stall = set[AX_SET_stall_report].number,
                      .stall_timeout = set[AX_SET_stall_timeout].number,
                      .tick = (int64_t)(set[AX_SET_monitor_interval].number * 1e9),
                      .quiet = set[AX_SET_quiet].number != 0,
                      .prompt = l->plan->interactive };
  if (strcmp(set[AX_SET_flight_recorder].text, "auto") != 0) flights = set[AX_SET_flight_recorder].text;
  snprintf(r->flights, sizeof r->flights, "%s", flights && *flights ? flights : "/tmp");
}

static int share_memory(const launching *l, ax_launched *r)
{
  const double timeout = l->plan->set[AX_SET_timeout].number;

  if (ax_shm_create(l->ranks, timeout, !l->crowded, NULL, &r->control) == AX_OK) return 0;
  ax_print(stderr, "accel-run: %s\n", ax_last_error());
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
  sigprocmask(SIG_UNBLOCK, &l->signals, NULL);
  status = start(l, r);
  sigprocmask(SIG_BLOCK, &l->signals, NULL);
  return status;
}

int ax_launch_ranks(ax_plan *plan)
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
    ax_launched_set_number("ACCELERATE_RESTART_COUNT", l.attempt);
    status = run_ranks(&l, &r);
    if (l.in_rank) return status;
    again = status != 0 && starts_again(&l, &r);
    if (r.machines) ax_machines_close(r.machines);
    if (!again || (status = start_again(&l, &r)) != 0) return status;
  }
}

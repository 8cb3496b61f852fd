/* launch_rank.c: what a forked process does before, while and after it is a rank. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "launch.h"
#include "run.h"
#include "script/script.h"

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

/* A status other than 0 that no report came before is a C library's exit: the launcher reports
 * it. */
static void left(int status, void *unused)
{
  (void)unused;
  if (status == 0) finished();
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

/* --no_python: the rank becomes another program, which joins no collective of ours. */
static _Noreturn void become_program(const ax_plan *plan)
{
  char **argv = plan->argv + plan->script;

  execvp(*argv, argv);
  ax_print(stderr, "accel-run: cannot run %s: %s\n", *argv, strerror(errno));
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
  ax_streams_by_line();
}

int ax_launched_rank(const ax_plan *plan, ax_control *c, ax_machines *machines, int rank, pid_t launcher,
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
  if (number > 0) ax_editor_keep_terminal();
  if (number > 0 && (null = open("/dev/null", O_RDONLY)) >= 0) {
    dup2(null, STDIN_FILENO);
    close(null);
  }
  ax_launched_set_number("RANK", number);
  ax_launched_set_number("LOCAL_RANK", rank);
  ax_launched_set_number("WORLD_SIZE", machines ? machines->ranks : c->ranks);
  ax_launched_set_number("LOCAL_WORLD_SIZE", c->ranks);
  ax_launched_set_number("ACCEL_RUN_RANK", number);
  if (plan->set[AX_SET_no_python].number) become_program(plan);
  my_control = c;
  my_rank = rank;
  my_machines = machines;
  if (ax_shm_join(c, rank) != AX_OK || (machines && ax_machines_join(machines, rank) != AX_OK)) {
    rank_failed(ax_last_error(), "");
    _exit(AX_EXIT_FAILED);
  }
  on_exit(left, NULL); /* runs for os.exit(0) too */
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

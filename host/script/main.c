/* main.c: argv -> script, prompt or launch; nothing else. */
#include "launch/joins.h"
#include "launch/launch.h"
#include "script.h"
#include "settings/plan.h"

#include <errno.h>
#include <fcntl.h>
#include <luajit.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define LEAST_STACK (128 << 10)
#define USUAL_STACK (8 << 20)

/* Reads the whole of stdin, so that every rank can run the script that is there. */
static int read_stdin(ax_plan *plan)
{
  size_t room = 0, got;

  do {
    if (plan->stdin_size == room) {
      char *grown = realloc(plan->stdin_text, room = room ? 2 * room : 1 << 16);
      if (!grown) {
        fputs("accel-run: out of memory while reading the script from stdin\n", stderr);
        return AX_EXIT_FAILED;
      }
      plan->stdin_text = grown;
    }
    got = fread(plan->stdin_text + plan->stdin_size, 1, room - plan->stdin_size, stdin);
    plan->stdin_size += got;
  } while (got > 0);
  if (!ferror(stdin)) return 0;
  ax_print(stderr, "accel-run: cannot read the script from stdin: %s\n", strerror(errno));
  return AX_EXIT_FAILED;
}

/* Says how many ranks there are where nobody gave the number. */
static void report_ranks(const ax_plan *plan)
{
  if (plan->gpus > 1 && !plan->set[AX_SET_quiet].number && plan->set[AX_SET_machine_rank].number == 0)
    ax_print(stderr,
             "accel-run: %d ranks, one for each of the %d visible GPUs%s (--num_processes N sets it)\n",
             (int)plan->set[AX_SET_num_processes].number, plan->gpus,
             plan->set[AX_SET_num_machines].number > 1 ? " of each machine" : "");
}

/* One rank has a launcher only where something must watch it. */
static bool needs_launcher(const ax_plan *plan)
{
  return plan->script && !plan->interactive &&
         (plan->set[AX_SET_max_restarts].number > 0 || plan->set[AX_SET_tee].number ||
          plan->set[AX_SET_no_python].number);
}

static int run(ax_plan *plan)
{
  int ranks = (int)plan->set[AX_SET_num_processes].number, status;
  bool script = plan->script > 0,
       prompt = plan->interactive || (!script && plan->n_actions == 0 && isatty(STDIN_FILENO));

  if (prompt && plan->join.who) {
    ax_print(stderr,
             "accel-run: a prompt starts its ranks itself (accel-run --num_processes 2 -i), and %s has "
             "started this one\n",
             plan->join.who);
    return AX_EXIT_USAGE;
  }
  if (prompt && plan->set[AX_SET_num_machines].number > 1) {
    ax_print(stderr, "accel-run: %s: a prompt's ranks are all on one machine; give a script for several\n",
             plan->set[AX_SET_num_machines].origin);
    return AX_EXIT_USAGE;
  }
  if (ax_joins_wants_mpirun(plan)) return ax_joins_start_mpirun(plan);
  plan->interactive = prompt;
  if ((script && strcmp(plan->argv[plan->script], "-") == 0) || (!script && !prompt && plan->n_actions == 0))
    if ((status = read_stdin(plan)) != 0) return status;
  report_ranks(plan);
  ax_options_check_script(plan);
  if (ranks > 1 || plan->join.who || needs_launcher(plan)) return ax_launch_ranks(plan);
  ax_config_export(plan, 1);
  ax_family_alone();
  return ax_interp_run(plan, NULL);
}

/* The report is written in Lua; the settings are those that a run would have. */
static int print_environment(const ax_plan *settings)
{
  char *argv[] = { (char *)"accel-run", (char *)"-e", (char *)"require('accelerate.commands.env').run()",
                   NULL };
  int first = 1, status;
  ax_plan plan = { .argc = 3, .argv = argv, .n_actions = 1, .actions = &first };

  memcpy(plan.set, settings->set, sizeof plan.set);
  ax_config_export(&plan, 1);
  if ((status = ax_interp_run(&plan, NULL)) != 0) return status;
  puts("- Settings of a run, and where they come from:");
  ax_config_explain(settings, stdout);
  return 0;
}

static void go_on(int sig) { (void)sig; }

/* A write beyond `ulimit -f` becomes an error of that write.  A handler, because programs that the
 * script starts would inherit SIG_IGN. */
static void survive_file_limit(void)
{
  struct sigaction a = { .sa_handler = go_on, .sa_flags = SA_RESTART };
  sigaction(SIGXFSZ, &a, NULL);
}

/* A thread gets as much stack as the limit that its process began with, and kernels need some of
 * it: below LEAST_STACK a thread ends with SIGSEGV.  Where the limit may be raised the program
 * begins again.  Returns false after printing that it may not. */
static bool ensure_stack(char **argv)
{
  struct rlimit l;
  char self[4200];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

  if (getrlimit(RLIMIT_STACK, &l) != 0 || l.rlim_cur >= LEAST_STACK) return true;
  if (l.rlim_max < LEAST_STACK) {
    ax_print(stderr, "accel-run: the limit of the stack is %llu KiB (ulimit -s); expected at least %d\n",
             (unsigned long long)l.rlim_max >> 10, LEAST_STACK >> 10);
    return false;
  }
  l.rlim_cur = l.rlim_max < USUAL_STACK ? l.rlim_max : USUAL_STACK;
  if (setrlimit(RLIMIT_STACK, &l) != 0 || n <= 0) return true;
  self[n] = '\0';
  execv(self, argv);
  return true; /* it may work all the same */
}

int main(int argc, char **argv)
{
  ax_plan plan;
  char lost[200];
  int status;

  if (argc == 2 && strcmp(argv[0], AX_GUARD_NAME) == 0) ax_family_guard(argv[1]);
  ax_streams_open();
  survive_file_limit();
  if (!ensure_stack(argv)) return AX_EXIT_FAILED;
  status = ax_config_parse(argc, argv, &plan);
  if (status == 0) switch (plan.mode) {
    case AX_MODE_HELP: ax_config_help(stdout); break;
    case AX_MODE_VERSION: puts("accel " AX_VERSION " (" LUAJIT_VERSION ")"); break;
    case AX_MODE_EXPLAIN: ax_config_explain(&plan, stdout); break;
    case AX_MODE_ENV: status = print_environment(&plan); break;
    case AX_MODE_COMMAND: status = ax_command_run(&plan); break;
    case AX_MODE_SCRIPT: status = run(&plan); break;
    }
  ax_config_free(&plan);
  if (status == 0 && ax_streams_lost(lost, sizeof lost)) {
    ax_print(stderr, "accel-run: %s\n", lost);
    status = AX_EXIT_FAILED;
  }
  return status;
}

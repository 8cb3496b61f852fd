/* main.c: argv -> script, prompt or launch; nothing else. */
#include "host.h"

#include <errno.h>
#include <fcntl.h>
#include <luajit.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
  fprintf(stderr, "accel-run: cannot read the script from stdin: %s\n", strerror(errno));
  return AX_EXIT_FAILED;
}

/* The launchers that start one process many times, and what each process learns from them. */
static const struct {
  const char *size, *rank, *who, *once;
} launchers[] = {
  { "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpirun (Open MPI)", "mpirun --map-by ppr:1:node" },
  { "PMI_SIZE", "PMI_RANK", "an MPI launcher (PMI)", "mpiexec -ppn 1" },
  { "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun (Slurm)", "srun --ntasks-per-node=1" },
  { "WORLD_SIZE", "RANK", "torchrun or a launcher like it", "torchrun --nproc_per_node=1" },
};

/* Another launcher may start one accel-run a machine: its number of the process is the
 * machine's. */
static int join_as_machine(ax_plan *plan, int machines, size_t launcher, int processes, int mine)
{
  ax_setting *rank = &plan->set[AX_SET_machine_rank];
  const char *name = launchers[launcher].rank;

  if (processes != machines) {
    fprintf(stderr,
            "accel-run: %s: %d machines, and %s=%d says that %s started %d processes; it must start one on "
            "each machine (%s), which then starts that machine's ranks\n",
            plan->set[AX_SET_num_machines].origin, machines, launchers[launcher].size, processes,
            launchers[launcher].who, processes, launchers[launcher].once);
    return AX_EXIT_USAGE;
  }
  if (strcmp(rank->origin, "default") == 0) *rank = (ax_setting){ mine, getenv(name), name };
  if ((int)rank->number == mine) return 0;
  fprintf(stderr, "accel-run: %s is %s, and %s=%d; leave --machine_rank out: it follows from %s\n",
          rank->origin, rank->text, name, mine, name);
  return AX_EXIT_USAGE;
}

/* Refuses to start as a rank of another launcher: each such process would train alone, without a
 * word. */
static int refuse_foreign_ranks(ax_plan *plan)
{
  const int machines = (int)plan->set[AX_SET_num_machines].number;
  size_t i;

  if (getenv("ACCEL_RUN_RANK")) /* started by one of our ranks: the variables are about that rank */
    return 0;
  for (i = 0; i < sizeof launchers / sizeof *launchers; i++) {
    const char *size = getenv(launchers[i].size), *rank = getenv(launchers[i].rank);
    if (!size || !rank || atoi(size) <= 1) continue;
    if (machines > 1) return join_as_machine(plan, machines, i, atoi(size), atoi(rank));
    fprintf(stderr,
            "accel-run: %s=%s and %s=%s say that %s started this process as one of %s ranks; joining ranks "
            "that others started is not possible yet.\nStart them with: accel-run --num_processes %s "
            "script.lua   (or unset %s to run alone)\n",
            launchers[i].size, size, launchers[i].rank, rank, launchers[i].who, size, size,
            launchers[i].size);
    return AX_EXIT_USAGE;
  }
  return 0;
}

/* Says how many ranks there are where nobody gave the number. */
static void report_ranks(const ax_plan *plan)
{
  if (plan->gpus > 1 && !plan->set[AX_SET_quiet].number && plan->set[AX_SET_machine_rank].number == 0)
    fprintf(stderr,
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

  if ((status = refuse_foreign_ranks(plan)) != 0) return status;
  if (prompt && plan->set[AX_SET_num_machines].number > 1) {
    fprintf(stderr, "accel-run: %s: a prompt's ranks are all on one machine; give a script for several\n",
            plan->set[AX_SET_num_machines].origin);
    return AX_EXIT_USAGE;
  }
  plan->interactive = prompt;
  if ((script && strcmp(plan->argv[plan->script], "-") == 0) || (!script && !prompt && plan->n_actions == 0))
    if ((status = read_stdin(plan)) != 0) return status;
  report_ranks(plan);
  ax_options_check_script(plan);
  if (ranks > 1 || needs_launcher(plan)) return ax_launch(plan);
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

/* Opens stdin, stdout and stderr where the process was started without them.  Otherwise the next
 * files, a socket of a worker or the script's own, would get their numbers, and printed text would
 * go there. */
static void open_standard_files(void)
{
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) _exit(AX_EXIT_FAILED);
}

static void go_on(int sig) { (void)sig; }

/* A write beyond `ulimit -f` becomes an error of that write.  A handler, because programs that the
 * script starts would inherit SIG_IGN. */
static void survive_file_limit(void)
{
  struct sigaction a = { .sa_handler = go_on, .sa_flags = SA_RESTART };
  sigaction(SIGXFSZ, &a, NULL);
}

int main(int argc, char **argv)
{
  ax_plan plan;
  int status;

  if (argc == 2 && strcmp(argv[0], AX_GUARD_NAME) == 0) ax_family_guard(argv[1]);
  open_standard_files();
  survive_file_limit();
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
  return status;
}

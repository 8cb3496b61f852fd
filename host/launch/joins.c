/* joins.c: what other launchers say about this process.
 *
 * mpirun, srun and torchrun start a process for each rank, or one for each machine, and describe it
 * in environment variables.  A process that is one of several ranks becomes the launcher of that
 * one rank (local.c, launch.c).  With --num_machines, or where each machine has one process and
 * --num_processes counts more, it is a machine's launcher as if it was started by hand.
 *
 * The innermost launcher counts: torchrun and mpirun run inside jobs of Slurm. */
#define _GNU_SOURCE
#include "joins.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "messages.h"
#include "script/script.h"
#include "settings/settings.h"

typedef struct launcher {
  const char *who;
  const char *mark; /* a variable that it alone sets; NULL: its numbers are enough */
  const char *size, *rank, *local_size, *local_rank;
  const char *job[3]; /* what distinguishes its runs on one machine */
  const char *once;   /* how it starts one process a machine */
  const char *blocks; /* how it numbers ranks machine by machine */
} launcher;

static const launcher launchers[] = {
  { "torchrun",
    "TORCHELASTIC_RUN_ID",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_WORLD_SIZE",
    "LOCAL_RANK",
    { "TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT" },
    "torchrun --nproc-per-node=1",
    "torchrun" },
  { "mpirun (Open MPI)",
    NULL,
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    { "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri" },
    "mpirun --map-by ppr:1:node",
    "mpirun --map-by slot" },
  { "mpirun (MVAPICH)",
    NULL,
    "MV2_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_RANK",
    { NULL },
    "mpirun -ppn 1",
    "mpirun -ppn N" },
  { "an MPI launcher (PMI)",
    "MPI_LOCALNRANKS",
    "PMI_SIZE",
    "PMI_RANK",
    "MPI_LOCALNRANKS",
    "MPI_LOCALRANKID",
    { NULL },
    "mpiexec -ppn 1",
    "mpiexec -ppn N" },
  { "srun (Slurm)",
    NULL,
    "SLURM_STEP_NUM_TASKS",
    "SLURM_PROCID",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_LOCALID",
    { "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT" },
    "srun --ntasks-per-node=1",
    "srun --distribution=block" },
  { "an MPI launcher (PMI)",
    NULL,
    "PMI_SIZE",
    "PMI_RANK",
    "MPI_LOCALNRANKS",
    "MPI_LOCALRANKID",
    { NULL },
    "mpiexec -ppn 1",
    "mpiexec -ppn N" },
  { "torchrun or a launcher like it",
    NULL,
    "WORLD_SIZE",
    "RANK",
    "LOCAL_WORLD_SIZE",
    "LOCAL_RANK",
    { "MASTER_ADDR", "MASTER_PORT" },
    "torchrun --nproc-per-node=1",
    "torchrun" },
  { "an indexed Job of Kubernetes",
    "JOB_COMPLETION_INDEX",
    "WORLD_SIZE",
    "JOB_COMPLETION_INDEX",
    "LOCAL_WORLD_SIZE",
    "LOCAL_RANK",
    { NULL },
    "completionMode: Indexed",
    "completionMode: Indexed" },
};

/* ---- variables */

static const char *text_of(const char *name)
{
  const char *text = name ? getenv(name) : NULL;
  return text && *text ? text : NULL;
}

/* A whole number from 0 on; -1: there is none. */
static long number_of(const char *name)
{
  const char *text = text_of(name);
  char *end;
  long n;

  if (!text || !isdigit((unsigned char)*text)) return -1;
  errno = 0;
  n = strtol(text, &end, 10);
  /* Slurm: "2(x3)", two tasks on each of three machines */
  if (*end == '(' && end[1] == 'x') end += strcspn(end, ")") + 1;
  return errno || *end || n > 1 << 20 ? -1 : n;
}

static const launcher *find_launcher(void)
{
  for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
    const launcher *l = &launchers[i];
    if ((!l->mark || text_of(l->mark)) && number_of(l->size) > 1 && number_of(l->rank) >= 0) return l;
  }
  return NULL;
}

/* ---- where machine 0 is */

/* The first host of "gpu[07-09,12],login" into buf: "gpu07". */
static void first_host(const char *list, char *buf, size_t size)
{
  const size_t plain = strcspn(list, "[,");
  const char *in = list[plain] == '[' ? list + plain + 1 : "", *behind = *in ? strchr(in, ']') : NULL;
  const size_t digits = strcspn(in, "-,]");
  const int after = behind ? (int)strcspn(behind + 1, ",[") : 0;

  snprintf(buf, size, "%.*s%.*s%.*s", (int)plain, list, (int)digits, in, after, behind ? behind + 1 : "");
}

static void set_text(ax_plan *plan, int id, const char *text, const char *origin)
{
  if (ax_setting_is_default(plan, id)) plan->set[id] = (ax_setting){ 1, text, origin };
}

static void set_number(ax_plan *plan, int id, long number, const char *origin)
{
  plan->set[id] = (ax_setting){ (double)number, ax_plan_text(plan, "%ld", number), origin };
}

/* torchrun's own store may listen at MASTER_PORT: the machines then meet at the port behind it.
 * Runs of Slurm that share a machine get ports of their own. */
static void find_address(ax_plan *plan, const launcher *l, bool mpi)
{
  const bool slurm = strncmp(l->rank, "SLURM", 5) == 0;
  const char *list = text_of("SLURM_STEP_NODELIST"), *store = text_of("TORCHELASTIC_USE_AGENT_STORE");
  const long job = number_of("SLURM_JOB_ID"), step = number_of("SLURM_STEP_ID");
  const long port = number_of("MASTER_PORT");
  char host[256];

  if (slurm && list) {
    first_host(list, host, sizeof host);
    set_text(plan, AX_SET_main_process_ip, ax_plan_text(plan, "%s", host), "SLURM_STEP_NODELIST");
    if (ax_setting_is_default(plan, AX_SET_main_process_port) && job >= 0)
      set_number(plan, AX_SET_main_process_port, 20000 + (job * 8 + (step > 0 ? step : 0)) % 10000,
                 "SLURM_JOB_ID");
  } else if (text_of("MASTER_ADDR") && !mpi) {
    set_text(plan, AX_SET_main_process_ip, text_of("MASTER_ADDR"), "MASTER_ADDR");
    if (ax_setting_is_default(plan, AX_SET_main_process_port) && port > 0)
      set_number(plan, AX_SET_main_process_port, port + (store && strcasecmp(store, "true") == 0),
                 "MASTER_PORT");
  }
}

/* Whether MPI can start in the ranks: its launcher has left what they need for that, and the plugin
 * was built. */
static bool has_mpi(const launcher *l)
{
  char path[4200];

  if (!text_of("PMIX_NAMESPACE") && !text_of("PMI_FD") && !text_of("PMI_PORT")) return false;
  snprintf(path, sizeof path, "%s/" AX_MPI_FILE, ax_interp_plugin_dir());
  if (access(path, R_OK) == 0) return true;
  if (number_of(l->rank) == 0)
    ax_print(stderr,
             "accel-run: %s could start MPI, but there is no %s: the ranks of several machines exchange no "
             "tensors of the CPU (install libopenmpi-dev, and run make again)\n",
             l->who, path);
  return false;
}

/* ---- one process a machine */

static int join_as_machine(ax_plan *plan, int machines, const launcher *l)
{
  ax_setting *rank = &plan->set[AX_SET_machine_rank];
  const long processes = number_of(l->size), mine = number_of(l->rank);

  if (processes != machines) {
    ax_print(stderr,
             "accel-run: %s: %d machines, and %s=%ld says that %s started %ld processes; it must start one "
             "on each machine (%s), which then starts that machine's ranks\n",
             plan->set[AX_SET_num_machines].origin, machines, l->size, processes, l->who, processes, l->once);
    return AX_EXIT_USAGE;
  }
  plan->mpi = has_mpi(l);
  find_address(plan, l, plan->mpi);
  if (ax_setting_is_default(plan, AX_SET_machine_rank)) set_number(plan, AX_SET_machine_rank, mine, l->rank);
  if ((int)rank->number == mine) return 0;
  ax_print(stderr, "accel-run: %s is %s, and %s=%ld; leave --machine_rank out: it follows from %s\n",
           rank->origin, rank->text, l->rank, mine, l->rank);
  return AX_EXIT_USAGE;
}

/* ---- one process a rank */

static int misfit(const launcher *l, const char *what)
{
  ax_print(stderr,
           "accel-run: %s=%s and %s=%s say that %s started this process as one of %s ranks; %s.\nTo start "
           "them from here: accel-run --num_processes %s script.lua   (or unset %s to run alone)\n",
           l->size, text_of(l->size), l->rank, text_of(l->rank), l->who, text_of(l->size), what,
           text_of(l->size), l->size);
  return AX_EXIT_USAGE;
}

/* Whether the environment that process `pid` began with has "name=text". */
static bool began_with(int pid, const char *name, const char *text)
{
  char path[64], *line = NULL;
  const size_t n = strlen(name);
  size_t room = 0;
  bool found = false;
  FILE *f;

  snprintf(path, sizeof path, "/proc/%d/environ", pid);
  if (!(f = fopen(path, "re"))) return false;
  while (!found && getdelim(&line, &room, '\0', f) > 0)
    found = strncmp(line, name, n) == 0 && line[n] == '=' && strcmp(line + n + 1, text) == 0;
  free(line);
  fclose(f);
  return found;
}

static int parent_of(int pid)
{
  char path[64];
  int parent = 0;
  FILE *f;

  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  if (!(f = fopen(path, "re"))) return 0;
  if (fscanf(f, "%*d (%*[^)]) %*c %d", &parent) != 1) parent = 0;
  fclose(f);
  return parent;
}

/* The process of the other launcher that has started all ranks of this machine: the nearest
 * ancestor that does not have this rank's number, as scripts around accel-run do. */
static int starter(const launcher *l)
{
  int pid = (int)getppid(), next;

  while (began_with(pid, l->rank, text_of(l->rank)) && (next = parent_of(pid)) > 1) pid = next;
  return pid;
}

static void name_job(const launcher *l, int machine, char *buf, size_t size)
{
  size_t n = (size_t)snprintf(buf, size, "%s %d", l->rank, machine);
  bool named = false;

  for (size_t i = 0; i < 3 && n < size; i++)
    if (text_of(l->job[i])) {
      n += (size_t)snprintf(buf + n, size - n, "/%s", text_of(l->job[i]));
      named = true;
    }
  if (!named && n < size) snprintf(buf + n, size - n, "/parent %d", starter(l));
}

static int join_as_rank(ax_plan *plan, const launcher *l)
{
  const long size = number_of(l->size), rank = number_of(l->rank);
  long here = number_of(l->local_size), mine = number_of(l->local_rank);
  const bool single =
      !text_of(l->local_size) && !text_of(l->local_rank) && strcmp(l->size, "WORLD_SIZE") == 0;
  ax_setting *all = &plan->set[AX_SET_num_processes];
  char text[400];

  if (single) here = 1, mine = 0; /* a pod of PyTorchJob is a machine with one rank */
  if (here < 1 || mine < 0 || mine >= here) {
    snprintf(text, sizeof text, "%s=%s and %s=%s do not say which rank of this machine it is", l->local_size,
             text_of(l->local_size) ? text_of(l->local_size) : "", l->local_rank,
             text_of(l->local_rank) ? text_of(l->local_rank) : "");
    return misfit(l, text);
  }
  if (size % here != 0 || rank % here != mine || rank >= size) {
    snprintf(text, sizeof text,
             "with %ld ranks on this machine, of which this is number %ld, the machines do not have equally "
             "many ranks, numbered machine by machine (%s does that)",
             here, mine, l->blocks);
    return misfit(l, text);
  }
  if (size > AX_MAX_RANKS) return misfit(l, "there can be 256 ranks");
  if (all->number != (double)size && /* a configuration file is about runs that it starts */
      (ax_setting_is_option(plan, AX_SET_num_processes) || strncmp(all->origin, "environment", 11) == 0)) {
    snprintf(text, sizeof text, "%s says %s ranks", all->origin, all->text);
    return misfit(l, text);
  }
  set_number(plan, AX_SET_num_processes, size, l->size);
  set_number(plan, AX_SET_num_machines, size / here, l->local_size);
  set_number(plan, AX_SET_machine_rank, rank / here, l->rank);
  if (size > here) {
    plan->mpi = has_mpi(l);
    find_address(plan, l, plan->mpi);
    if (!plan->mpi && !plan->set[AX_SET_main_process_ip].number)
      return misfit(l, "the machines need an address to meet at: MASTER_ADDR in each rank, or "
                       "--main_process_ip, with the address of machine 0");
  }
  plan->gpus = 0;
  plan->join =
      (ax_join){ .who = l->who, .rank = (int)rank, .local_rank = (int)mine, .local_size = (int)here };
  name_job(l, (int)(rank / here), plan->join.job, sizeof plan->join.job);
  return 0;
}

/* srun --ntasks-per-node=1 accel-run --num_processes 8: each process has several ranks. */
static bool is_machine(const ax_plan *plan, const launcher *l)
{
  const ax_setting *all = &plan->set[AX_SET_num_processes];
  const long size = number_of(l->size);

  return ax_setting_is_option(plan, AX_SET_num_processes) && number_of(l->local_size) == 1 &&
         (long)all->number > size && (long)all->number % size == 0;
}

int ax_joins_read(ax_plan *plan)
{
  const int machines = (int)plan->set[AX_SET_num_machines].number;
  const launcher *l = find_launcher();
  const long index = number_of("JOB_COMPLETION_INDEX");

  /* started by one of our ranks: the variables are about that rank */
  if (getenv("ACCEL_RUN_RANK")) return 0;
  if (!l && machines > 1 && index >= 0) {
    if (ax_setting_is_default(plan, AX_SET_machine_rank))
      set_number(plan, AX_SET_machine_rank, index, "JOB_COMPLETION_INDEX");
    set_text(plan, AX_SET_main_process_ip, text_of("MASTER_ADDR") ? text_of("MASTER_ADDR") : "none",
             "MASTER_ADDR");
  }
  if (!l) return 0;
  if (machines > 1) return join_as_machine(plan, machines, l);
  if (is_machine(plan, l)) {
    set_number(plan, AX_SET_num_machines, number_of(l->size), l->size);
    return join_as_machine(plan, (int)number_of(l->size), l);
  }
  return join_as_rank(plan, l);
}

/* ---- --mpirun_hostfile */

bool ax_joins_wants_mpirun(const ax_plan *plan)
{
  return plan->set[AX_SET_mpirun_hostfile].number && plan->set[AX_SET_num_machines].number > 1 &&
         !find_launcher() && !getenv("ACCEL_RUN_RANK");
}

/* mpirun starts this very command on each machine, where it finds its place in what mpirun sets. */
int ax_joins_start_mpirun(const ax_plan *plan)
{
  const ax_setting *machines = &plan->set[AX_SET_num_machines], *hosts = &plan->set[AX_SET_mpirun_hostfile];
  char self[4096], program[] = "mpirun", by[] = "--map-by", one[] = "ppr:1:node", none[] = "none";
  char bind[] = "--bind-to", file[] = "--hostfile", number[] = "-n";
  char **argv = calloc(16 + (size_t)plan->argc, sizeof *argv);
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  int k = 0;

  if (!argv) return AX_EXIT_FAILED;
  if (n < 0 || access(hosts->text, R_OK) != 0) {
    ax_print(stderr, "accel-run: %s: %s cannot be read: %s\n", hosts->origin, hosts->text, strerror(errno));
    free(argv);
    return AX_EXIT_USAGE;
  }
  self[n] = '\0';
  argv[k++] = program;
  argv[k++] = file, argv[k++] = (char *)(uintptr_t)hosts->text;
  argv[k++] = by, argv[k++] = one, argv[k++] = bind, argv[k++] = none;
  argv[k++] = number, argv[k++] = (char *)(uintptr_t)machines->text;
  argv[k++] = self;
  for (int i = 1; i < plan->argc; i++) argv[k++] = plan->argv[i];
  argv[k] = NULL;
  execvp(program, argv);
  ax_print(stderr, "accel-run: %s: mpirun cannot be started: %s (package openmpi-bin)\n", hosts->origin,
           strerror(errno));
  free(argv);
  return AX_EXIT_FAILED;
}

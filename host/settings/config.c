/* config.c: turns the command line, the environment and the configuration file into a plan.
 *
 * Order of precedence: option, environment variable, configuration file, default. */
#define _GNU_SOURCE
#include "dist.h"
#include "launch/joins.h"
#include "launch/launch.h"
#include "script/script.h"
#include "settings.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

const ax_setting_row ax_settings[AX_SET_COUNT] = {
#define ROW(engine, ID, kind, env, standard, least, most, argument, help) \
  { #ID, AX_KIND_##kind, env, standard, least, most, argument, help, engine },
#define SETTING(...) ROW(-1, __VA_ARGS__)
#define ENGINE_SETTING(engine, ...) ROW(AX_SET_##engine, __VA_ARGS__)
#include "config.def"
#undef SETTING
#undef ROW
};

/* ---- one setting */

static bool truth(const char *text, double *out)
{
  static const char *const words[] = { "0", "false", "no",  "off", "n", "f", "",
                                       "1", "true",  "yes", "on",  "y", "t" };

  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (strcasecmp(text, words[i]) == 0) {
      *out = i > 6;
      return true;
    }
  return false;
}

bool ax_setting_is_word(const char *words, const char *text)
{
  const size_t n = strlen(text);
  for (;; words++) {
    const size_t length = strcspn(words, "|");
    if (length == n && strncasecmp(words, text, n) == 0) return true;
    words += length;
    if (!*words) return false;
  }
}

/* The number of entries of a list such as "0,2"; 0: not such a list. */
static int count_list(const ax_setting_row *r, const char *text)
{
  double seen[64];
  int n = 0;

  for (;;) {
    char *end;
    if (!isdigit((unsigned char)*text) || n == (int)(sizeof seen / sizeof *seen)) return 0;
    seen[n] = strtod(text, &end);
    for (int i = 0; i < n; i++)
      if (seen[i] == seen[n]) return 0;
    if (seen[n] != floor(seen[n]) || seen[n] < r->least || seen[n] > r->most || (*end && *end != ','))
      return 0;
    n++;
    if (!*end) return n;
    text = end + 1;
  }
}

int ax_setting_assign(ax_plan *plan, int id, const char *text, const char *origin)
{
  const ax_setting_row *r = &ax_settings[id];
  ax_setting *s = &plan->set[id];
  double v = NAN;
  char *end;

  if (strcmp(text, "auto") == 0 && strcmp(r->standard, "auto") == 0) {
    /* computed later */
  } else if (r->kind == AX_KIND_SWITCH || r->kind == AX_KIND_FLAG) {
    if (!truth(text, &v)) {
      ax_print(stderr, "accel-run: %s: expected true or false, got '%s'\n", origin, text);
      return AX_EXIT_USAGE;
    }
    if (r->kind == AX_KIND_FLAG) text = v ? "true" : "false";
  } else if (r->kind == AX_KIND_TEXT) {
    v = strcmp(text, r->standard) != 0;
  } else if (r->kind == AX_KIND_WORD) {
    if (strcmp(text, r->standard) != 0 && !ax_setting_is_word(r->argument, text)) {
      ax_print(stderr, "accel-run: %s: expected %s, got '%s'\n", origin, r->argument, text);
      return AX_EXIT_USAGE;
    }
  } else if (r->kind == AX_KIND_LIST) {
    if (strcmp(text, r->standard) != 0 && (v = count_list(r, text)) == 0) {
      ax_print(
          stderr,
          "accel-run: %s: expected different whole numbers, divided by commas (\"0,2\"), or %s; got '%s'\n",
          origin, r->standard, text);
      return AX_EXIT_USAGE;
    }
  } else {
    v = strtod(text, &end);
    if (end == text || *end || isnan(v) || (r->kind == AX_KIND_COUNT && v != floor(v))) {
      ax_print(stderr, "accel-run: %s: expected %s, got '%s'\n", origin,
               r->kind == AX_KIND_COUNT ? "a whole number" : "a number of seconds", text);
      return AX_EXIT_USAGE;
    }
    if (v < r->least || v > r->most) {
      ax_print(stderr, "accel-run: %s: expected %g to %g, got %s\n", origin, r->least, r->most, text);
      return AX_EXIT_USAGE;
    }
  }
  *s = (ax_setting){ v, text, origin };
  return 0;
}

int ax_setting_find(const char *name)
{
  for (int i = 0; i < AX_SET_COUNT; i++)
    if (strcmp(ax_settings[i].name, name) == 0) return i;
  return -1;
}

bool ax_setting_is_default(const ax_plan *plan, int id)
{
  return strcmp(plan->set[id].origin, "default") == 0;
}

bool ax_setting_is_option(const ax_plan *plan, int id) { return strncmp(plan->set[id].origin, "--", 2) == 0; }

static bool is_from_file(const ax_plan *plan, int id)
{
  const ax_setting *s = &plan->set[id], *file = &plan->set[AX_SET_config_file];
  return file->number && strncmp(s->origin, file->text, strlen(file->text)) == 0;
}

const char *ax_plan_text(ax_plan *plan, const char *fmt, ...)
{
  struct ax_plan_text *t;
  va_list ap;
  int n;

  va_start(ap, fmt);
  n = vsnprintf(NULL, 0, fmt, ap);
  va_end(ap);
  if (n < 0 || !(t = malloc(sizeof *t + (size_t)n + 1))) return "";
  va_start(ap, fmt);
  vsnprintf(t->text, (size_t)n + 1, fmt, ap);
  va_end(ap);
  t->next = plan->texts;
  plan->texts = t;
  return t->text;
}

/* ---- all settings */

/* Variables that the library reads, and checks, by itself. */
static bool is_librarys(int id)
{
  return id == AX_SET_debug || id == AX_SET_enable_cpu_affinity || id == AX_SET_dynamo_backend;
}

static int read_environment(ax_plan *plan)
{
  int status;

  for (int i = 0; i < AX_SET_COUNT; i++) {
    const ax_setting_row *r = &ax_settings[i];
    const char *text = r->env ? getenv(r->env) : NULL;
    if ((status = ax_setting_assign(plan, i, r->standard, "default")) != 0) return status;
    if (!text || (!*text && r->kind != AX_KIND_SWITCH) || is_librarys(i)) continue;
    if (r->engine >= 0) { /* ax_engines_check reads it, if the engine is on */
      plan->set[i] = (ax_setting){ NAN, text, ax_plan_text(plan, "environment variable %s", r->env) };
      continue;
    }
    if ((status = ax_setting_assign(plan, i, text, ax_plan_text(plan, "environment variable %s", r->env))) !=
        0)
      return status;
  }
  return 0;
}

int ax_config_ranks_here(const ax_plan *plan)
{
  return (int)plan->set[AX_SET_num_processes].number / (int)plan->set[AX_SET_num_machines].number;
}

/* A configuration file describes runs of scripts: a prompt, -e and what a rank starts are one
 * process whatever it says. */
static void run_alone(ax_plan *plan)
{
  static const int ids[] = { AX_SET_num_processes, AX_SET_num_machines, AX_SET_machine_rank,
                             AX_SET_multi_gpu };

  for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
    if (is_from_file(plan, ids[i])) ax_setting_assign(plan, ids[i], ax_settings[ids[i]].standard, "default");
}

/* Without --num_processes a script gets a rank for each visible GPU, as with `accelerate launch`; a
 * prompt, -e and what a rank starts get one process. */
static void settle_ranks(ax_plan *plan)
{
  ax_setting *s = &plan->set[AX_SET_num_processes];
  const ax_setting *named = &plan->set[AX_SET_gpu_ids];
  /* as a script would have them */
  const bool shown = plan->mode == AX_MODE_EXPLAIN || plan->mode == AX_MODE_ENV;
  const bool alone = (!plan->script && !shown) || plan->interactive || getenv("ACCEL_RUN_RANK") != NULL;

  if (alone) run_alone(plan);
  if (!isnan(s->number)) return;
  plan->gpus = alone || plan->set[AX_SET_cpu].number ? 0
               : isnan(named->number)                ? ax_gpus_visible()
                                                     : (int)named->number;
  s->number = plan->set[AX_SET_num_machines].number * (plan->gpus > 0 ? plan->gpus : 1);
  s->text = ax_plan_text(plan, "%d", (int)s->number);
  if (plan->gpus > 0)
    s->origin = ax_plan_text(plan, "default (%d visible GPU%s)", plan->gpus, plan->gpus == 1 ? "" : "s");
}

/* Checks the settings of a run on several machines against each other. */
static int check_machines(const ax_plan *plan)
{
  const ax_setting *machines = &plan->set[AX_SET_num_machines], *mine = &plan->set[AX_SET_machine_rank],
                   *all = &plan->set[AX_SET_num_processes];
  const int n = (int)machines->number, ranks = (int)all->number;

  if (ranks % n != 0) {
    ax_print(stderr,
             "accel-run: %d ranks (%s) cannot be divided among %d machines (%s): num_processes counts the "
             "ranks of all machines, which have equally many\n",
             ranks, all->origin, n, machines->origin);
    return AX_EXIT_USAGE;
  }
  if ((int)mine->number >= n) {
    ax_print(stderr, "accel-run: %s: expected 0 to %d, for there %s %d machine%s (%s); got %s\n",
             mine->origin, n - 1, n == 1 ? "is" : "are", n, n == 1 ? "" : "s", machines->origin, mine->text);
    return AX_EXIT_USAGE;
  }
  if (n > 1 && !plan->mpi && !ax_joins_wants_mpirun(plan) && !plan->set[AX_SET_main_process_ip].number) {
    ax_print(stderr,
             "accel-run: %s: %d machines need the address of machine 0, the same on each: "
             "--main_process_ip ADDRESS\n",
             machines->origin, n);
    return AX_EXIT_USAGE;
  }
  if (n > 1 && plan->set[AX_SET_main_process_port].number == 0) {
    ax_print(stderr,
             "accel-run: %s: %d machines need a port that all of them know; expected 1 to 65535, got 0\n",
             plan->set[AX_SET_main_process_port].origin, n);
    return AX_EXIT_USAGE;
  }
  return 0;
}

/* Checks what is chosen to run on. */
static int check_devices(const ax_plan *plan)
{
  const ax_setting *gpus = &plan->set[AX_SET_gpu_ids], *multi = &plan->set[AX_SET_multi_gpu],
                   *ranks = &plan->set[AX_SET_num_processes];
  const bool cpu = plan->set[AX_SET_cpu].number != 0, several = multi->number != 0;
  const int here = ax_config_ranks_here(plan);

  if (cpu && several && ax_setting_is_option(plan, AX_SET_cpu) &&
      ax_setting_is_option(plan, AX_SET_multi_gpu)) {
    fputs("accel-run: --cpu and --multi_gpu: give one of them\n", stderr);
    return AX_EXIT_USAGE;
  }
  if (several && !isnan(gpus->number) && (int)gpus->number < 2 && !ax_gpu_shared() &&
      plan->set[AX_SET_num_machines].number == 1) {
    ax_print(stderr, "accel-run: %s: %s names one GPU, and %s needs at least two\n", gpus->origin, gpus->text,
             multi->origin);
    return AX_EXIT_USAGE;
  }
  if (several && ax_setting_is_option(plan, AX_SET_multi_gpu) && plan->script && !plan->gpus &&
      ax_setting_is_default(plan, AX_SET_num_processes)) {
    fputs("accel-run: --multi_gpu: no GPU is visible here, so there is nothing to take the number of ranks "
          "from (accel-run env says why; --num_processes N starts ranks on the CPU)\n",
          stderr);
    return AX_EXIT_USAGE;
  }
  if (several && ax_setting_is_option(plan, AX_SET_multi_gpu) && !plan->gpus && ranks->number < 2) {
    ax_print(stderr, "accel-run: --multi_gpu: expected at least 2 ranks, got %s (%s)\n", ranks->text,
             ranks->origin);
    return AX_EXIT_USAGE;
  }
  if (!isnan(gpus->number) && !cpu && here > (int)gpus->number && !ax_gpu_shared()) {
    ax_print(stderr,
             "accel-run: %s: %s names %d GPU%s, and %d ranks need one each (--num_processes %d, or --cpu)\n",
             gpus->origin, gpus->text, (int)gpus->number, gpus->number == 1 ? "" : "s", here,
             (int)gpus->number);
    return AX_EXIT_USAGE;
  }
  return 0;
}

static int check_plan(const ax_plan *plan)
{
  const ax_setting *module = &plan->set[AX_SET_module], *program = &plan->set[AX_SET_no_python];
  int status;

  if ((status = check_machines(plan)) != 0 || (status = check_devices(plan)) != 0) return status;
  if (module->number && program->number) {
    fputs("accel-run: --module and --no_python: give one of them\n", stderr);
    return AX_EXIT_USAGE;
  }
  if ((module->number || program->number) && !plan->script && plan->mode == AX_MODE_SCRIPT) {
    ax_print(stderr, "accel-run: %s needs a name after it\n",
             module->number ? module->origin : program->origin);
    return AX_EXIT_USAGE;
  }
  if (plan->set[AX_SET_max_restarts].number > 0 && plan->join.who) {
    ax_print(stderr, "accel-run: %s: %s started the ranks, and it alone can start them again\n",
             plan->set[AX_SET_max_restarts].origin, plan->join.who);
    return AX_EXIT_USAGE;
  }
  return ax_output_check(plan);
}

int ax_config_parse(int argc, char **argv, ax_plan *plan)
{
  int status, first;

  memset(plan, 0, sizeof *plan);
  plan->argc = argc;
  plan->argv = argv;
  plan->actions = calloc((size_t)argc + 1, sizeof *plan->actions);
  if (!plan->actions) {
    fputs("accel-run: out of memory\n", stderr);
    return AX_EXIT_FAILED;
  }
  if ((status = read_environment(plan)) != 0) return status;
  first = ax_command_find(plan);
  if (plan->mode == AX_MODE_COMMAND) return 0;
  if ((status = ax_options_read(plan, first)) != 0 || plan->mode == AX_MODE_HELP ||
      plan->mode == AX_MODE_VERSION)
    return status;
  if ((status = ax_command_check(plan)) != 0 || (status = ax_config_file_read(plan)) != 0) return status;
  if (!plan->set[AX_SET_quiet].number && !getenv("ACCEL_RUN_RANK")) ax_environment_check();
  if ((status = ax_engines_check(plan)) != 0 || (status = ax_hostfile_read(plan)) != 0) return status;
  settle_ranks(plan);
  if ((status = ax_joins_read(plan)) != 0) return status;
  return check_plan(plan);
}

void ax_config_free(ax_plan *plan)
{
  for (struct ax_plan_text *t = plan->texts, *next; t; t = next) {
    next = t->next;
    free(t);
  }
  free(plan->actions);
  free(plan->own_argv);
  free(plan->stdin_text);
  plan->texts = NULL;
  plan->own_argv = NULL;
  plan->actions = NULL;
  plan->stdin_text = NULL;
}

void ax_config_explain(const ax_plan *plan, FILE *f)
{
  int ranks = ax_config_ranks_here(plan);

  for (int i = 0; i < AX_SET_COUNT; i++) {
    const ax_setting *s = &plan->set[i];
    const char *name = ax_settings[i].name;
    const int width = ax_settings[i].engine >= 0 ? 38 : 28;
    if (ax_settings[i].engine >= 0 && !ax_engine_is_on(plan, ax_settings[i].engine)) continue;
    if (i == AX_SET_num_cpu_threads_per_process && isnan(s->number)) {
      bool given;
      int threads = ax_config_threads(plan, ranks, &given);
      if (given) ax_print(f, "%-28s %-8d environment variable OMP_NUM_THREADS\n", name, threads);
      else
        ax_print(f, "%-28s %-8d default (%d cores for %d %s)\n", name, threads, ax_config_cores(), ranks,
                 ranks == 1 ? "rank" : "ranks");
      continue;
    }
    ax_print(f, "%-*s %-8s %s\n", width, name,
             ax_settings[i].kind == AX_KIND_SWITCH ? (s->number ? "true" : "false") : s->text, s->origin);
  }
}

/* ---- what the ranks see */

/* Settings that the library reads from the environment, where an option or the file has set
 * them. */
static void export_settings(const ax_plan *plan)
{
  static const int ids[] = { AX_SET_cpu,      AX_SET_mixed_precision,        AX_SET_dynamo_backend,
                             AX_SET_debug,    AX_SET_enable_cpu_affinity,    AX_SET_strict,
                             AX_SET_use_fsdp, AX_SET_use_parallelism_config, AX_SET_use_deepspeed };

  for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
    const ax_setting_row *r = &ax_settings[ids[i]];
    const ax_setting *s = &plan->set[ids[i]];
    if (ax_setting_is_default(plan, ids[i]) || strstr(s->origin, r->env)) continue;
    setenv(r->env, r->kind == AX_KIND_SWITCH ? (s->number ? "true" : "false") : s->text, 1);
  }
  ax_engines_export(plan);
}

/* How many tasks run or wait for a core now; 0: not known. */
static int running_tasks(void)
{
  int running;
  FILE *f = fopen("/proc/loadavg", "re");

  if (!f) return 0;
  if (fscanf(f, "%*f %*f %*f %d/", &running) != 1) running = 0;
  fclose(f);
  return running;
}

/* How long libgomp's threads spin between parallel regions.  By default it is milliseconds, and a
 * process that keeps one core busy then slows a two-thread step down tenfold.  10000 rounds, half a
 * millisecond, bridge the gaps inside a step; with 1000, two threads of a small GPT take 1.2 times
 * as long.  Beside processes that want these cores a spinning thread keeps a working one out: two
 * busy loops beside two threads make a small step take 1.6 times as long with 10000 rounds as with
 * 1000.  What wants a core for a moment, such as the shell that started this process, does not
 * count: it is gone after a few milliseconds. */
static bool shared_machine(int ranks, int threads, int cores)
{
  for (int wait = 500; wait <= 4000; wait *= 2) { /* the ranks run, too */
    const int running = running_tasks(), others = running > ranks ? running - ranks : 0;
    if (others + (long)ranks * threads <= cores) return false;
    if (wait < 4000) usleep((useconds_t)wait);
  }
  return true;
}

/* libgomp respects the affinity mask but knows neither the cgroup's quota nor other ranks. */
void ax_config_export(const ax_plan *plan, int ranks)
{
  bool given;
  const int threads = ax_config_threads(plan, ranks, &given), cores = ax_config_cores();
  char text[16];

  snprintf(text, sizeof text, "%d", threads);
  if (given) {
    setenv("OMP_NUM_THREADS", text, 1);
    unsetenv("ACCEL_RUN_THREADS");
  } else if (ranks > 1 || ax_config_quota() > 0 || getenv("ACCEL_RUN_THREADS")) {
    setenv("OMP_NUM_THREADS", text, 1);
    setenv("ACCEL_RUN_THREADS", text, 1);
  }
  if ((long)ranks * threads <= cores && !getenv("OMP_WAIT_POLICY"))
    setenv("GOMP_SPINCOUNT", shared_machine(ranks, threads, cores) ? "1000" : "10000", 0);
  if (!isnan(plan->set[AX_SET_gpu_ids].number)) /* numbered by bus id as nvidia-smi does, not by speed */
    setenv("CUDA_VISIBLE_DEVICES", plan->set[AX_SET_gpu_ids].text, 1),
        setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0),
        /* ranks report when none of these GPUs exists */
        setenv("ACCELERATE_GPU_IDS", plan->set[AX_SET_gpu_ids].text, 1);
  export_settings(plan);
}

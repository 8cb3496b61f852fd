/* config.c: turns the command line and the environment into a plan.
 *
 * Order of precedence: option, environment variable, default.  Options end at the script; the
 * arguments after it are the script's own.  The interpreter's options (-e, -l, -i, -j, -) are
 * those of lua and luajit, so that tools which start a Lua interpreter can start this one. */
#define _GNU_SOURCE
#include "host.h"

#include <ctype.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum { COUNT, SECONDS, SWITCH, TEXT, WORD, LIST } kind;

typedef struct row {
  const char *name;
  kind kind;
  const char *env, *standard;
  double least, most;
  const char *argument, *help;
} row;

static const row rows[AX_SET_COUNT] = {
#define SETTING(ID, kind, env, standard, least, most, argument, help) \
  { #ID, kind, env, standard, least, most, argument, help },
#include "config.def"
#undef SETTING
};

/* Options that are not settings: for the help, and for suggestions after a misspelt one. */
static const struct {
  const char *name, *argument, *help;
} others[] = {
  { "help", NULL, "print this and exit" },
  { "version", NULL, "print the version and exit" },
  { "explain", NULL, "print each setting with its value and where it came from, and exit" },
};
#define N_OTHERS ((int)(sizeof others / sizeof *others))

/* The number of edits between two words, where swapping neighbours is one edit.  Words of more than
 * 63 letters count as far apart. */
static int distance(const char *a, const char *b)
{
  int d[3][65], na = (int)strlen(a), nb = (int)strlen(b), i, j;

  if (na > 63 || nb > 63) return 99;
  for (j = 0; j <= nb; j++) d[0][j] = j;
  for (i = 1; i <= na; i++) {
    int *now = d[i % 3], *up = d[(i - 1) % 3], *up2 = d[(i + 1) % 3];
    now[0] = i;
    for (j = 1; j <= nb; j++) {
      int best = up[j - 1] + (a[i - 1] != b[j - 1]);
      if (up[j] + 1 < best) best = up[j] + 1;
      if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && up2[j - 2] + 1 < best)
        best = up2[j - 2] + 1;
      now[j] = best;
    }
  }
  return d[na % 3][nb];
}

static const char *nearest_option(const char *given)
{
  const char *best = rows[0].name;
  int least = 1000, i;

  for (i = 0; i < AX_SET_COUNT + N_OTHERS; i++) {
    const char *name = i < AX_SET_COUNT ? rows[i].name : others[i - AX_SET_COUNT].name;
    int d = distance(given, name);
    if (strncmp(given, name, strlen(given)) == 0 && d > 2)
      d = 2; /* the beginning of a long name is a good hint */
    if (d < least) {
      least = d;
      best = name;
    }
  }
  return best;
}

static bool truth(const char *text, double *out)
{
  static const char *const words[] = { "0", "false", "no", "off", "", "1", "true", "yes", "on" };
  size_t i;

  for (i = 0; i < sizeof words / sizeof *words; i++)
    if (strcasecmp(text, words[i]) == 0) {
      *out = i > 4;
      return true;
    }
  return false;
}

/* Whether `text` is one of "a|b|c"; case is ignored. */
static bool is_word(const char *words, const char *text)
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
static int count_list(const row *r, const char *text)
{
  double seen[64];
  int n = 0, i;

  for (;;) {
    char *end;
    if (!isdigit((unsigned char)*text) || n == (int)(sizeof seen / sizeof *seen)) return 0;
    seen[n] = strtod(text, &end);
    for (i = 0; i < n; i++)
      if (seen[i] == seen[n]) return 0;
    if (seen[n] != floor(seen[n]) || seen[n] < r->least || seen[n] > r->most || (*end && *end != ','))
      return 0;
    n++;
    if (!*end) return n;
    text = end + 1;
  }
}

/* Reads `text` as the value of row `id`.  Returns 0, or the exit status after printing what is
 * wrong. */
static int assign(ax_plan *plan, int id, const char *text, const char *origin)
{
  const row *r = &rows[id];
  ax_setting *s = &plan->set[id];
  double v = NAN;
  char *end;

  if (strcmp(text, "auto") == 0 && strcmp(r->standard, "auto") == 0) {
    /* computed later */
  } else if (r->kind == SWITCH) {
    if (!truth(text, &v)) {
      fprintf(stderr, "accel-run: %s: expected true or false, got '%s'\n", origin, text);
      return AX_EXIT_USAGE;
    }
  } else if (r->kind == TEXT) {
    v = strcmp(text, r->standard) != 0;
  } else if (r->kind == WORD) {
    if (!is_word(r->argument, text)) {
      fprintf(stderr, "accel-run: %s: expected %s, got '%s'\n", origin, r->argument, text);
      return AX_EXIT_USAGE;
    }
  } else if (r->kind == LIST) {
    if (strcmp(text, r->standard) != 0 && (v = count_list(r, text)) == 0) {
      fprintf(
          stderr,
          "accel-run: %s: expected different whole numbers, divided by commas (\"0,2\"), or %s; got '%s'\n",
          origin, r->standard, text);
      return AX_EXIT_USAGE;
    }
  } else {
    v = strtod(text, &end);
    if (end == text || *end || isnan(v) || (r->kind == COUNT && v != floor(v))) {
      fprintf(stderr, "accel-run: %s: expected %s, got '%s'\n", origin,
              r->kind == COUNT ? "a whole number" : "a number of seconds", text);
      return AX_EXIT_USAGE;
    }
    if (v < r->least || v > r->most) {
      fprintf(stderr, "accel-run: %s: expected %g to %g, got %s\n", origin, r->least, r->most, text);
      return AX_EXIT_USAGE;
    }
  }
  *s = (ax_setting){ v, text, origin };
  return 0;
}

static int find_row(const char *name)
{
  int i;
  for (i = 0; i < AX_SET_COUNT; i++)
    if (strcmp(rows[i].name, name) == 0) return i;
  return -1;
}

/* Parses "--num-processes=2" or "--num_processes 2"; moves *at to the last word used. */
static int long_option(ax_plan *plan, int *at)
{
  const char *word = plan->argv[*at] + 2, *eq = strchr(word, '='), *value = eq ? eq + 1 : NULL;
  size_t n = eq ? (size_t)(eq - word) : strlen(word), i;
  char name[64];
  int id;

  if (n >= sizeof name) n = sizeof name - 1;
  for (i = 0; i < n; i++) name[i] = word[i] == '-' ? '_' : word[i];
  name[n] = '\0';

  if ((id = find_row(name)) >= 0) {
    static char origins[AX_SET_COUNT][48];
    snprintf(origins[id], sizeof origins[id], "--%s", rows[id].name);
    if (rows[id].kind == SWITCH) return assign(plan, id, value ? value : "true", origins[id]);
    if (!value) {
      if (*at + 1 >= plan->argc) {
        fprintf(stderr, "accel-run: --%s needs a value: --%s %s\n", rows[id].name, rows[id].name,
                rows[id].argument);
        return AX_EXIT_USAGE;
      }
      value = plan->argv[++*at];
    }
    return assign(plan, id, value, origins[id]);
  }
  if (value) {
    /* fall through: none of the others takes a value */
  } else if (strcmp(name, "help") == 0) {
    plan->mode = AX_MODE_HELP;
    return 0;
  } else if (strcmp(name, "version") == 0) {
    plan->mode = AX_MODE_VERSION;
    return 0;
  } else if (strcmp(name, "explain") == 0) {
    plan->mode = AX_MODE_EXPLAIN;
    return 0;
  }
  fprintf(stderr, "accel-run: there is no option --%s; the nearest is --%s (accel-run --help lists them)\n",
          name, nearest_option(name));
  return AX_EXIT_USAGE;
}

const char *ax_config_action(const ax_plan *plan, int i, char *letter)
{
  const char *word = plan->argv[plan->actions[i]];
  *letter = word[1];
  if (word[2]) return word + 2;
  return *letter == 'j' ? "on" : plan->argv[plan->actions[i] + 1];
}

static int short_option(ax_plan *plan, int *at)
{
  const char *word = plan->argv[*at];

  switch (word[1]) {
  case 'e':
  case 'l':
  case 'j':
    plan->actions[plan->n_actions++] = *at;
    if (word[2] || word[1] == 'j') return 0;
    if (*at + 1 >= plan->argc) {
      fprintf(stderr, "accel-run: %s needs %s after it\n", word,
              word[1] == 'e' ? "a piece of Lua code" : "the name of a module");
      return AX_EXIT_USAGE;
    }
    ++*at;
    return 0;
  case 'i':
    if (word[2]) break;
    plan->interactive = true;
    return 0;
  case 'h':
    if (word[2]) break;
    plan->mode = AX_MODE_HELP;
    return 0;
  case 'v':
    if (word[2]) break;
    plan->mode = AX_MODE_VERSION;
    return 0;
  default: break;
  }
  fprintf(stderr,
          "accel-run: there is no option %s (long options begin with --; accel-run --help lists them)\n",
          word);
  return AX_EXIT_USAGE;
}

static int read_environment(ax_plan *plan)
{
  static char origins[AX_SET_COUNT][80];
  int i, status;

  for (i = 0; i < AX_SET_COUNT; i++) {
    const char *text = getenv(rows[i].env);
    if ((status = assign(plan, i, rows[i].standard, "default")) != 0) return status;
    if (!text || (!*text && rows[i].kind != SWITCH)) continue;
    snprintf(origins[i], sizeof origins[i], "environment variable %s", rows[i].env);
    if ((status = assign(plan, i, text, origins[i])) != 0) return status;
  }
  return 0;
}

int ax_config_ranks_here(const ax_plan *plan)
{
  return (int)plan->set[AX_SET_num_processes].number / (int)plan->set[AX_SET_num_machines].number;
}

/* Without --num_processes a script gets a rank for each visible GPU, as with `accelerate launch`; a
 * prompt, -e and what a rank starts get one process. */
static void settle_ranks(ax_plan *plan)
{
  static char text[16], origin[64];
  ax_setting *s = &plan->set[AX_SET_num_processes];
  const ax_setting *named = &plan->set[AX_SET_gpu_ids];
  const bool alone =
      plan->set[AX_SET_cpu].number || !plan->script || plan->interactive || getenv("ACCEL_RUN_RANK") != NULL;

  if (!isnan(s->number)) return;
  plan->gpus = alone ? 0 : isnan(named->number) ? ax_gpus_visible() : (int)named->number;
  s->number = plan->set[AX_SET_num_machines].number * (plan->gpus > 0 ? plan->gpus : 1);
  snprintf(text, sizeof text, "%d", (int)s->number);
  snprintf(origin, sizeof origin, plan->gpus > 0 ? "default (%d visible GPU%s)" : "default", plan->gpus,
           plan->gpus == 1 ? "" : "s");
  s->text = text;
  s->origin = origin;
}

/* Checks the settings of a run on several machines against each other. */
static int check_machines(const ax_plan *plan)
{
  const ax_setting *machines = &plan->set[AX_SET_num_machines], *mine = &plan->set[AX_SET_machine_rank],
                   *all = &plan->set[AX_SET_num_processes];
  const int n = (int)machines->number, ranks = (int)all->number;

  if (ranks % n != 0) {
    fprintf(stderr,
            "accel-run: %d ranks (%s) cannot be divided among %d machines (%s): num_processes counts the "
            "ranks of all machines, which have equally many\n",
            ranks, all->origin, n, machines->origin);
    return AX_EXIT_USAGE;
  }
  if ((int)mine->number >= n) {
    fprintf(stderr, "accel-run: %s: expected 0 to %d, for there %s %d machine%s (%s); got %s\n", mine->origin,
            n - 1, n == 1 ? "is" : "are", n, n == 1 ? "" : "s", machines->origin, mine->text);
    return AX_EXIT_USAGE;
  }
  if (n > 1 && !plan->set[AX_SET_main_process_ip].number) {
    fprintf(stderr,
            "accel-run: %s: %d machines need the address of machine 0, the same on each: --main_process_ip "
            "ADDRESS\n",
            machines->origin, n);
    return AX_EXIT_USAGE;
  }
  if (n > 1 && plan->set[AX_SET_main_process_port].number == 0) {
    fprintf(stderr,
            "accel-run: %s: %d machines need a port that all of them know; expected 1 to 65535, got 0\n",
            plan->set[AX_SET_main_process_port].origin, n);
    return AX_EXIT_USAGE;
  }
  return 0;
}

/* Checks the other settings against each other. */
static int check_plan(const ax_plan *plan)
{
  const ax_setting *gpus = &plan->set[AX_SET_gpu_ids];
  const int status = check_machines(plan), ranks = ax_config_ranks_here(plan);

  if (status != 0) return status;
  if (!isnan(gpus->number) && !plan->set[AX_SET_cpu].number && ranks > (int)gpus->number) {
    fprintf(stderr,
            "accel-run: %s: %s names %d GPU%s, and %d ranks need one each (--num_processes %d, or --cpu)\n",
            gpus->origin, gpus->text, (int)gpus->number, gpus->number == 1 ? "" : "s", ranks,
            (int)gpus->number);
    return AX_EXIT_USAGE;
  }
  return 0;
}

int ax_config_parse(int argc, char **argv, ax_plan *plan)
{
  int i, status;

  memset(plan, 0, sizeof *plan);
  plan->argc = argc;
  plan->argv = argv;
  plan->actions = calloc((size_t)argc + 1, sizeof *plan->actions);
  if (!plan->actions) {
    fputs("accel-run: out of memory\n", stderr);
    return AX_EXIT_FAILED;
  }
  if ((status = read_environment(plan)) != 0) return status;
  if (argc > 1 && strcmp(argv[1], "env") == 0) {
    if (argc > 2) {
      fprintf(stderr, "accel-run env: takes no arguments, got '%s'  (a script called env: accel-run ./env)\n",
              argv[2]);
      return AX_EXIT_USAGE;
    }
    plan->mode = AX_MODE_ENV;
    return 0;
  }
  i = argc > 1 && strcmp(argv[1], "launch") == 0 ? 2 : 1;
  for (; i < argc; i++) {
    if (argv[i][0] != '-' || !argv[i][1]) break;
    if (strcmp(argv[i], "--") == 0) {
      i++;
      break;
    }
    status = argv[i][1] == '-' ? long_option(plan, &i) : short_option(plan, &i);
    if (status != 0) return status;
  }
  if (i < argc) plan->script = i;
  settle_ranks(plan);
  return check_plan(plan);
}

void ax_config_free(ax_plan *plan)
{
  free(plan->actions);
  free(plan->stdin_text);
  plan->actions = NULL;
  plan->stdin_text = NULL;
}

void ax_config_help(FILE *f)
{
  int i;

  fputs("usage: accel-run [launch] [options] script.lua [script arguments]\n"
        "       accel-run                 a prompt, when started on a terminal; else the script is read from "
        "stdin\n"
        "       accel-run env             what this machine has: versions, CPU, memory, GPUs and their "
        "libraries, or why there are none\n"
        "\n"
        "Runs a Lua script that trains a model, in one process or in several ranks.\n"
        "\n"
        "  -e CODE                 run this first; several are run in order; no script is needed then\n"
        "  -l MODULE               require this first\n"
        "  -i                      stay at a prompt after the script\n"
        "  -joff                   run with LuaJIT's compiler off (-jCOMMAND as luajit has it)\n"
        "  -                       read the script from stdin\n"
        "  --                      the script's name follows\n"
        "\n",
        f);
  for (i = 0; i < AX_SET_COUNT; i++) {
    char word[64];
    snprintf(word, sizeof word, "--%s%s%s", rows[i].name, rows[i].argument ? " " : "",
             rows[i].argument ? rows[i].argument : "");
    fprintf(f, "  %s\n      %s\n      (%s; default %s)\n", word, rows[i].help, rows[i].env, rows[i].standard);
  }
  for (i = 0; i < N_OTHERS; i++) fprintf(f, "  --%s\n      %s\n", others[i].name, others[i].help);
  fputs("\nAn option beats its environment variable.  ACCELERATE_HISTORY names the prompt's history file "
        "(default ~/.accel_history;\n"
        "empty: none).  Exit status: 0, or the first failing rank's, 128 + signal when it was killed; 2 for "
        "a wrong command line.\n",
        f);
}

void ax_config_explain(const ax_plan *plan, FILE *f)
{
  int ranks = ax_config_ranks_here(plan), i;

  for (i = 0; i < AX_SET_COUNT; i++) {
    const ax_setting *s = &plan->set[i];
    if (i == AX_SET_num_cpu_threads_per_process && isnan(s->number)) {
      bool given;
      int threads = ax_config_threads(plan, ranks, &given);
      if (given) fprintf(f, "%-28s %-8d environment variable OMP_NUM_THREADS\n", rows[i].name, threads);
      else
        fprintf(f, "%-28s %-8d default (%d cores for %d %s)\n", rows[i].name, threads, ax_config_cores(),
                ranks, ranks == 1 ? "rank" : "ranks");
      continue;
    }
    fprintf(f, "%-28s %-8s %s\n", rows[i].name,
            rows[i].kind == SWITCH ? (s->number ? "true" : "false") : s->text, s->origin);
  }
}

/* ---- cores and threads ----------------------------------------------------------------------- */

/* The cgroup's quota in cores, or 0 when there is none.  Version 2 writes "max 100000" or "150000
 * 100000". */
static double quota(void)
{
  double limit = 0, period = 0;
  FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r");

  if (f) {
    if (fscanf(f, "%lf %lf", &limit, &period) != 2) limit = 0;
    fclose(f);
  } else if ((f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "r"))) {
    if (fscanf(f, "%lf", &limit) != 1) limit = 0;
    fclose(f);
    if ((f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "r"))) {
      if (fscanf(f, "%lf", &period) != 1) period = 0;
      fclose(f);
    }
  }
  return limit > 0 && period > 0 ? limit / period : 0;
}

int ax_config_cores(void)
{
  cpu_set_t mask;
  double q = quota();
  long n;

  if (sched_getaffinity(0, sizeof mask, &mask) == 0) n = CPU_COUNT(&mask);
  else n = sysconf(_SC_NPROCESSORS_ONLN);
  if (n < 1) n = 1;
  if (q > 0 && ceil(q) < (double)n) n = (long)ceil(q);
  return (int)n;
}

/* OMP_NUM_THREADS, unless one of our launchers computed it for the rank that started this
 * process. */
static int omp_threads(void)
{
  const char *omp = getenv("OMP_NUM_THREADS"), *ours = getenv("ACCEL_RUN_THREADS");

  if (!omp || (ours && strcmp(omp, ours) == 0)) return 0;
  return atoi(omp); /* "4,2" gives nested levels: the first number counts */
}

int ax_config_threads(const ax_plan *plan, int ranks, bool *explicit_)
{
  const double wanted = plan->set[AX_SET_num_cpu_threads_per_process].number;
  int n = omp_threads();

  *explicit_ = true;
  if (!isnan(wanted)) return (int)wanted;
  if (n > 0) return n;
  *explicit_ = false;
  n = ax_config_cores() / (ranks > 0 ? ranks : 1);
  return n > 0 ? n : 1;
}

/* libgomp respects the affinity mask but knows neither the cgroup's quota nor other ranks. */
void ax_config_export(const ax_plan *plan, int ranks)
{
  bool given;
  const int threads = ax_config_threads(plan, ranks, &given);
  char text[16];

  snprintf(text, sizeof text, "%d", threads);
  if (given) {
    setenv("OMP_NUM_THREADS", text, 1);
    unsetenv("ACCEL_RUN_THREADS");
  } else if (ranks > 1 || quota() > 0 || getenv("ACCEL_RUN_THREADS")) {
    setenv("OMP_NUM_THREADS", text, 1);
    setenv("ACCEL_RUN_THREADS", text, 1);
  }
  /* libgomp's threads by default spin for milliseconds between parallel regions, and a process that
   * keeps one core busy then slows a two-thread step down tenfold.  A tenth of a millisecond
   * bridges the gaps inside a step. */
  if ((long)ranks * threads <= ax_config_cores() && !getenv("OMP_WAIT_POLICY"))
    setenv("GOMP_SPINCOUNT", "10000", 0);
  if (plan->set[AX_SET_cpu].number) setenv("ACCELERATE_USE_CPU", "true", 1);
  if (!isnan(plan->set[AX_SET_gpu_ids].number)) /* numbered by bus id as nvidia-smi does, not by speed */
    setenv("CUDA_VISIBLE_DEVICES", plan->set[AX_SET_gpu_ids].text, 1),
        setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0),
        /* ranks report when none of these GPUs exists */
        setenv("ACCELERATE_GPU_IDS", plan->set[AX_SET_gpu_ids].text, 1);
  if (strncmp(plan->set[AX_SET_mixed_precision].origin, "--", 2) == 0)
    setenv(rows[AX_SET_mixed_precision].env, plan->set[AX_SET_mixed_precision].text, 1);
}

/* options.c: the command line.  Options end at the script; the words after it are the script's own.
 * The interpreter's options (-e, -l, -i, -j, -) are those of lua and luajit, so that tools which
 * start a Lua interpreter can start this one. */
#define _GNU_SOURCE
#include "script/script.h"
#include "ax.h"
#include "settings.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const ax_foreign_row ax_foreign[] = {
#define FOREIGN(name, takes_value, engine) { #name, takes_value, AX_ENGINE_##engine },
#include "foreign.def"
#undef FOREIGN
#undef ENGINE
};
const int ax_foreign_count = (int)(sizeof ax_foreign / sizeof *ax_foreign);

const ax_engine_row ax_engines[AX_ENGINE_COUNT] = {
#define ENGINE(ID, option, reason) { option, reason },
#include "foreign.def"
#undef FOREIGN
#undef ENGINE
};

/* Options that are not settings: for the help, and for suggestions after a misspelt one. */
static const struct {
  const char *name, *help;
  ax_mode mode;
} others[] = {
  { "help", "print this and exit", AX_MODE_HELP },
  { "version", "print the version and exit", AX_MODE_VERSION },
  { "explain", "print each setting with its value and where it came from, and exit", AX_MODE_EXPLAIN },
};
#define N_OTHERS ((int)(sizeof others / sizeof *others))

/* ---- names that are not known */

/* What torchrun, mpirun and others call our settings. */
static const char *other_name_of(const char *given)
{
  static const struct {
    const char *theirs, *ours;
  } names[] = { { "nproc_per_node", "num_processes" },
                { "nproc", "num_processes" },
                { "np", "num_processes" },
                { "ranks", "num_processes" },
                { "num_gpus", "num_processes" },
                { "gpus", "gpu_ids" },
                { "devices", "gpu_ids" },
                { "nnodes", "num_machines" },
                { "num_nodes", "num_machines" },
                { "node_rank", "machine_rank" },
                { "master_addr", "main_process_ip" },
                { "master_port", "main_process_port" },
                { "rdzv_endpoint", "main_process_ip" },
                { "threads", "num_cpu_threads_per_process" },
                { "precision", "mixed_precision" },
                { "bf16", "mixed_precision" },
                { "fp16", "mixed_precision" },
                { "config", "config_file" } };

  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(given, names[i].theirs) == 0) return names[i].ours;
  return NULL;
}

static const char *name_at(int i)
{
  if (i < AX_SET_COUNT) return ax_settings[i].name;
  if (i < AX_SET_COUNT + N_OTHERS) return others[i - AX_SET_COUNT].name;
  return ax_foreign[i - AX_SET_COUNT - N_OTHERS].name;
}

const char *ax_word_nearest(const char *given, const char *(*name_at)(int), int n)
{
  const char *best = NULL;
  const int length = (int)strlen(given);
  int least = 1 + length / 2;

  for (int i = 0; i < n; i++) {
    const char *name = name_at(i);
    int d = ax_word_distance(given, name);
    if (length > 2 && strncmp(given, name, (size_t)length) == 0 && d > 2)
      d = 2; /* the beginning of a long name is a good hint */
    if (d < least) {
      least = d;
      best = name;
    }
  }
  return best;
}

static const char *nearest_option(const char *given)
{
  const char *other = other_name_of(given);
  return other ? other : ax_word_nearest(given, name_at, AX_SET_COUNT + N_OTHERS + ax_foreign_count);
}

static int unknown_option(const char *name)
{
  const char *near = nearest_option(name);

  ax_print(stderr, "accel-run: there is no option --%s", name);
  if (near) ax_print(stderr, "; the nearest is --%s (accel-run --help lists them)\n", near);
  else ax_print(stderr, " (accel-run --help lists them)\n");
  return AX_EXIT_USAGE;
}

/* Variables that are not settings of the launcher: the library reads them, or Accelerate knows
 * them. */
static const char *const variables[] = {
  "SECRET",
  "HISTORY",
  "LOG_LEVEL",
  "TORCH_DEVICE",
  "BYPASS_DEVICE_MAP",
  "ENABLE_RICH",
  "FP8_OVERRIDE_FPROP",
  "FP8_OVERRIDE_DGRAD",
  "FP8_OVERRIDE_WGRAD",
  "FP8_USE_MXFP8_BLOCK_SCALING",
  "INIT_INCLUDE_BUFFERS",
  "USE_XPU",
  "USE_HPU",
  "USE_NPU",
  "USE_TPU",
  "USE_MEGATRON_LM",
  "USE_SAGEMAKER",
  "DYNAMO_MODE",
  "DOWNCAST_BF16",
  "DEBUG_RDV_FILE",
  "RESTART_COUNT",
  "NEWEST_CHECKPOINT",
};
#define N_VARIABLES ((int)(sizeof variables / sizeof *variables))
static const char *const prefixes[] = { "ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_" };

/* What follows the prefix in the i-th variable; "": it has another prefix. */
static const char *variable_at(const char *prefix, int i)
{
  const size_t n = strlen(prefix);

  if (i < N_VARIABLES) return prefix == prefixes[0] ? variables[i] : "";
  if (!ax_settings[i - N_VARIABLES].env || strncmp(ax_settings[i - N_VARIABLES].env, prefix, n) != 0)
    return "";
  return ax_settings[i - N_VARIABLES].env + n;
}

/* A misspelt variable would have no effect, and nobody would know. */
static void report_misspelt(const char *prefix, const char *name, size_t length)
{
  char word[64];
  const char *nearest = NULL;
  int least = 3;

  if (length >= sizeof word) return;
  memcpy(word, name, length);
  word[length] = 0;
  for (int i = 0; i < N_VARIABLES + AX_SET_COUNT; i++) {
    const char *known = variable_at(prefix, i);
    if (!*known) continue;
    if (strcmp(word, known) == 0) return;
    const int d = ax_word_distance(word, known); /* 0: case is all that differs */
    if (d < least) {
      least = d;
      nearest = known;
    }
  }
  if (nearest)
    ax_print(stderr,
             "accel-run: environment variable %s%s is not known and has no effect; the nearest is %s%s\n",
             prefix, word, prefix, nearest);
}

void ax_environment_check(void)
{
  for (char **v = environ; *v; v++)
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
      const size_t n = strlen(prefixes[i]);
      if (strncmp(*v, prefixes[i], n) == 0) report_misspelt(prefixes[i], *v + n, strcspn(*v + n, "="));
    }
}

/* ---- options of what is not here */

int ax_engine_refuse(ax_engine engine, const char *origin, const char *value)
{
  ax_print(stderr, "accel-run: %s: %s%s%s\n", origin, value ? value : "", value ? ": " : "",
           ax_engines[engine].reason);
  return AX_EXIT_USAGE;
}

static int find_foreign(const char *name)
{
  for (int i = 0; i < ax_foreign_count; i++)
    if (strcmp(ax_foreign[i].name, name) == 0) return i;
  return -1;
}

static int foreign_option(ax_plan *plan, int *at, int i, const char *value)
{
  const ax_foreign_row *f = &ax_foreign[i];
  const ax_engine_row *e = &ax_engines[f->engine];

  if (f->takes_value && !value && ++*at >= plan->argc) {
    ax_print(stderr, "accel-run: --%s needs a value\n", f->name);
    return AX_EXIT_USAGE;
  }
  if (e->option && strcmp(e->option, f->name) == 0)
    return ax_engine_refuse(f->engine, ax_plan_text(plan, "--%s", f->name), NULL);
  if (e->option) ax_print(stderr, "accel-run: --%s has no effect without --%s\n", f->name, e->option);
  else ax_print(stderr, "accel-run: --%s has no effect: %s\n", f->name, e->reason);
  return 0;
}

/* ---- reading */

static void copy_name(char *name, size_t room, const char *word, size_t n)
{
  if (n >= room) n = room - 1;
  for (size_t i = 0; i < n; i++) name[i] = word[i] == '-' ? '_' : word[i];
  name[n] = '\0';
}

static int take_value(ax_plan *plan, int *at, int id, const char *value)
{
  const ax_setting_row *r = &ax_settings[id];
  const char *origin = ax_plan_text(plan, "--%s", r->name);

  if (r->kind == AX_KIND_SWITCH) return ax_setting_assign(plan, id, value ? value : "true", origin);
  if (!value) {
    if (*at + 1 >= plan->argc) {
      ax_print(stderr, "accel-run: --%s needs a value: --%s %s\n", r->name, r->name, r->argument);
      return AX_EXIT_USAGE;
    }
    value = plan->argv[++*at];
  }
  return ax_setting_assign(plan, id, value, origin);
}

/* Parses "--num-processes=2" or "--num_processes 2"; moves *at to the last word used. */
static int long_option(ax_plan *plan, int *at)
{
  const char *word = plan->argv[*at] + 2, *eq = strchr(word, '='), *value = eq ? eq + 1 : NULL;
  char name[64];
  int id, i;

  copy_name(name, sizeof name, word, eq ? (size_t)(eq - word) : strlen(word));
  if ((id = ax_setting_find(name)) >= 0) return take_value(plan, at, id, value);
  for (i = 0; i < N_OTHERS && !value; i++)
    if (strcmp(name, others[i].name) == 0) {
      plan->mode = others[i].mode;
      return 0;
    }
  if ((i = find_foreign(name)) >= 0) return foreign_option(plan, at, i, value);
  return unknown_option(name);
}

const char *ax_config_action(const ax_plan *plan, int i, char *letter)
{
  const char *word = plan->argv[plan->actions[i]];
  *letter = word[1];
  if (word[2]) return word + 2;
  return *letter == 'j' ? "on" : plan->argv[plan->actions[i] + 1];
}

static int lua_option(ax_plan *plan, int *at)
{
  const char *word = plan->argv[*at];

  plan->actions[plan->n_actions++] = *at;
  if (word[2] || word[1] == 'j') return 0;
  if (*at + 1 >= plan->argc) {
    ax_print(stderr, "accel-run: %s needs %s after it\n", word,
             word[1] == 'e' ? "a piece of Lua code" : "the name of a module");
    return AX_EXIT_USAGE;
  }
  ++*at;
  return 0;
}

static int short_option(ax_plan *plan, int *at)
{
  const char *word = plan->argv[*at], letter = word[1];

  if (strchr("elj", letter)) return lua_option(plan, at);
  if (letter == 't') return take_value(plan, at, AX_SET_tee, word[2] ? word + 2 : NULL);
  if (!word[2]) switch (letter) {
    case 'i': plan->interactive = true; return 0;
    case 'h': plan->mode = AX_MODE_HELP; return 0;
    case 'v': plan->mode = AX_MODE_VERSION; return 0;
    case 'q': return take_value(plan, at, AX_SET_quiet, NULL);
    case 'm': return take_value(plan, at, AX_SET_module, NULL);
    default: break;
    }
  ax_print(stderr,
           "accel-run: there is no option %s (long options begin with --; accel-run --help lists them)\n",
           word);
  return AX_EXIT_USAGE;
}

int ax_options_read(ax_plan *plan, int first)
{
  int i, status;

  for (i = first; i < plan->argc; i++) {
    const char *word = plan->argv[i];
    if (word[0] != '-' || !word[1]) break;
    if (strcmp(word, "--") == 0) {
      i++;
      break;
    }
    status = word[1] == '-' ? long_option(plan, &i) : short_option(plan, &i);
    if (status != 0) return status;
  }
  if (i < plan->argc) plan->script = i;
  return 0;
}

/* ---- options after the script */

/* Whether the script's text has the option as a text ("num_processes", "--num_processes") or as a
 * key of a table of options (num_processes = { ... }). */
static bool is_declared(const char *text, const char *name)
{
  const size_t n = strlen(name);

  for (const char *at = text; (at = strstr(at, name)); at += n) {
    const char before = at > text ? at[-1] : '\n', *after = at + n;
    if (isalnum((unsigned char)*after) || *after == '_') continue;
    if (before == '"' || before == '\'' || before == '[') return true;
    if (before == '-' && at - text > 2 && (at[-2] == '%' || (at[-2] == '-' && strchr("\"'^([", at[-3]))))
      return true;
    after += strspn(after, " \t");
    if (*after == '=' && after[1 + strspn(after + 1, " \t")] == '{') return true;
  }
  return false;
}

static char *text_of(const char *path)
{
  enum { MOST = 1 << 20 };
  FILE *f = fopen(path, "rb");
  char *text = f ? malloc(MOST + 1) : NULL;

  if (text) text[fread(text, 1, MOST, f)] = '\0';
  if (f) fclose(f);
  return text;
}

void ax_options_check_script(const ax_plan *plan)
{
  char *text = NULL, name[64], dashed[64];
  int id;

  if (!plan->script || plan->set[AX_SET_module].number || plan->set[AX_SET_no_python].number) return;
  for (int i = plan->script + 1; i < plan->argc; i++) {
    const char *word = plan->argv[i];
    if (strncmp(word, "--", 2) != 0 || !word[2]) continue;
    copy_name(name, sizeof name, word + 2, strcspn(word + 2, "="));
    if ((id = ax_setting_find(name)) < 0) continue;
    if (!text && !(text = text_of(plan->argv[plan->script]))) return;
    snprintf(dashed, sizeof dashed, "%s", name);
    for (char *c = dashed; *c; c++) *c = *c == '_' ? '-' : *c;
    if (is_declared(text, name) || is_declared(text, dashed)) continue;
    ax_print(stderr,
             "accel-run: --%s after %s is an argument of the script, which does not mention it; as an option "
             "it comes before: accel-run --%s%s%s %s\n",
             name, plan->argv[plan->script], name, ax_settings[id].argument ? " " : "",
             ax_settings[id].argument ? ax_settings[id].argument : "", plan->argv[plan->script]);
  }
  free(text);
}

/* ---- help */

void ax_config_usage(FILE *f)
{
  fputs("usage: accel-run [launch] [options] script.lua [script arguments]\n"
        "       accel-run                 a prompt, when started on a terminal; "
        "else the script is read from stdin\n"
        "       accel-run COMMAND         accel-run COMMAND --help says more\n"
        "\n"
        "Runs a Lua script that trains a model, in one process or in several ranks.\n"
        "\n"
        "commands:\n",
        f);
  for (int i = 0; ax_commands[i].name; i++)
    fprintf(f, "  accel-run %-16s %s\n", ax_commands[i].name, ax_commands[i].help);
}

void ax_config_help(FILE *f)
{
  ax_config_usage(f);
  fputs("\n"
        "  -e CODE                 run this first; several are run in order; no script is needed then\n"
        "  -l MODULE               require this first\n"
        "  -i                      stay at a prompt after the script; of N ranks with --num_processes\n"
        "  -m, -q, -t STREAMS      --module, --quiet, --tee STREAMS\n"
        "  -joff                   run with LuaJIT's compiler off (-jCOMMAND as luajit has it)\n"
        "  -                       read the script from stdin\n"
        "  --                      the script's name follows\n"
        "\n",
        f);
  for (int i = 0; i < AX_SET_COUNT; i++) {
    const ax_setting_row *r = &ax_settings[i];
    if (r->engine >= 0 && r->engine != ax_settings[i - 1].engine)
      fprintf(f, "\n with --%s\n", ax_engine_option(r->engine));
    fprintf(f, "  --%s%s%s\n      %s\n      (%s%sdefault %s)\n", r->name, r->argument ? " " : "",
            r->argument ? r->argument : "", r->help, r->env ? r->env : "", r->env ? "; " : "", r->standard);
  }
  fputs("\n", f);
  for (int i = 0; i < N_OTHERS; i++) fprintf(f, "  --%s\n      %s\n", others[i].name, others[i].help);
  fputs("\nAn option beats its environment variable, and that beats the configuration file.  "
        "ACCELERATE_HISTORY names the prompt's\n"
        "history file (default ~/.local/state/accel/history; empty: none).  Exit status: 0, or the first "
        "failing rank's, 128 + signal when it\n"
        "was killed; 2 for a wrong command line.\n",
        f);
}

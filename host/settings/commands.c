/* commands.c: accel-run WORD, where the word is no script.  `launch` and `test` start ranks; the
 * others are Lua functions of lua/accelerate/commands. */
#include "script/script.h"
#include "settings.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const ax_command ax_commands[] = {
  { "launch", "what accel-run does without a command" },
  { "config", "ask questions and write a configuration file; config default, config update" },
  { "env", "what this machine has: versions, CPU, memory, GPUs and their libraries; and all settings" },
  { "test", "check collectives, loaders, accumulation and resuming on the ranks that are configured" },
  { "estimate-memory", "what the weights in a file or folder need to be loaded and trained" },
  { "kernel", "install a kernel for Jupyter notebooks: kernel install" },
  { "merge-weights", "write sharded weights into one file" },
  { "plot", "draw a training log that log_with = \"jsonl\" wrote, in the terminal or into a picture" },
  { "to-fsdp2", "convert a configuration file from FSDP1 to FSDP2" },
  { NULL, NULL },
};

static bool is_command(const char *word)
{
  for (const ax_command *c = ax_commands; c->name; c++)
    if (strcmp(c->name, word) == 0) return true;
  return false;
}

int ax_command_find(ax_plan *plan)
{
  const char *word = plan->argc > 1 ? plan->argv[1] : "";

  if (!is_command(word)) return 1;
  if (strcmp(word, "env") == 0) plan->mode = AX_MODE_ENV;
  else if (strcmp(word, "test") == 0) plan->testing = true;
  else if (strcmp(word, "launch") != 0) {
    plan->mode = AX_MODE_COMMAND;
    plan->command = word;
  }
  return 2;
}

static const char *command_at(int i) { return ax_commands[i].name; }

/* Replaces argv by `n` words and those of the former one from `from` on. */
static int replace_argv(ax_plan *plan, int n, const char *const *words, int from)
{
  const int rest = plan->argc - from;
  char **argv = calloc((size_t)(n + rest) + 2, sizeof *argv);

  if (!argv) {
    fputs("accel-run: out of memory\n", stderr);
    return AX_EXIT_FAILED;
  }
  for (int i = 0; i < n; i++) argv[i] = (char *)words[i];
  for (int i = 0; i < rest; i++) argv[n + i] = plan->argv[from + i];
  free(plan->own_argv);
  plan->argv = plan->own_argv = argv;
  plan->argc = n + rest;
  return 0;
}

/* The script of `accel-run test` takes no arguments. */
static int use_test_script(ax_plan *plan)
{
  static char path[4200];
  int status;

  if (plan->script) {
    ax_print(stderr, "accel-run test: takes launch options only, got '%s'\n", plan->argv[plan->script]);
    return AX_EXIT_USAGE;
  }
  snprintf(path, sizeof path, "%s/accelerate/commands/test_ranks.lua", ax_interp_lua_dir());
  plan->set[AX_SET_quiet].number = 1; /* the summary says what failed */
  if ((status = replace_argv(plan, 0, NULL, 0)) != 0) return status;
  plan->argv[plan->script = plan->argc++] = path; /* there is room for one more */
  return 0;
}

int ax_command_check(ax_plan *plan)
{
  const char *name = plan->script ? plan->argv[plan->script] : NULL, *near;

  if (plan->testing) return use_test_script(plan);
  if (!name) return 0;
  if (plan->mode == AX_MODE_ENV) {
    ax_print(stderr, "accel-run env: takes no arguments, got '%s'  (a script called env: accel-run ./env)\n",
             name);
    return AX_EXIT_USAGE;
  }
  if (plan->set[AX_SET_module].number || plan->set[AX_SET_no_python].number || strpbrk(name, "./") ||
      strcmp(name, "-") == 0 || access(name, F_OK) == 0)
    return 0;
  if (is_command(name)) {
    ax_print(stderr, "accel-run: a command comes before the options: accel-run %s", name);
    for (int i = 1 + is_command(plan->argv[1]); i < plan->script; i++) ax_print(stderr, " %s", plan->argv[i]);
    ax_print(stderr, "  (a script called %s: ./%s)\n", name, name);
    return AX_EXIT_USAGE;
  }
  if (strcmp(name, "tpu-config") == 0) return ax_engine_refuse(AX_ENGINE_TPU, name, NULL);
  near = ax_word_nearest(name, command_at, (int)(sizeof ax_commands / sizeof *ax_commands) - 1);
  ax_print(stderr, "accel-run: '%s' is neither a file nor a command%s%s%s\n\n", name,
           near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
  ax_config_usage(stderr);
  fputs("\naccel-run --help lists the options.\n", stderr);
  return AX_EXIT_FAILED;
}

int ax_command_run(ax_plan *plan)
{
  const char *words[] = { plan->argv[0], "-e", "require('accelerate.commands').main(arg[3])" };
  int status;

  if ((status = replace_argv(plan, 3, words, 1)) != 0) return status;
  free(plan->actions);
  if (!(plan->actions = calloc(1, sizeof *plan->actions))) return AX_EXIT_FAILED;
  plan->actions[0] = 1;
  plan->n_actions = 1;
  ax_config_export(plan, 1);
  return ax_interp_run(plan, NULL);
}

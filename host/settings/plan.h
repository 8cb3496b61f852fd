/* plan.h: what a process of accel-run is to do: its settings and the rest of its command line. */
#ifndef AX_PLAN_H
#define AX_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define AX_VERSION "0.1.0"

#define AX_EXIT_FAILED 1      /* a script raised */
#define AX_EXIT_USAGE 2       /* the command line was wrong */
#define AX_EXIT_INTERRUPT 130 /* Ctrl-C: 128 + SIGINT, as in shells */

/* ---- config.c: settings and the command line */

typedef enum {
#define SETTING(ID, ...) AX_SET_##ID,
#include "config.def"
#undef SETTING
  AX_SET_COUNT
} ax_setting_id;

typedef struct ax_setting {
  double number;      /* switches: 0 or 1; NaN: computed later ("auto") */
  const char *text;   /* as the user wrote it */
  const char *origin; /* "default", "--num_processes", "environment variable ACCELERATE_..." */
} ax_setting;

typedef enum {
  AX_MODE_SCRIPT,
  AX_MODE_HELP,
  AX_MODE_VERSION,
  AX_MODE_EXPLAIN,
  AX_MODE_ENV,
  AX_MODE_COMMAND /* one written in Lua: lua/accelerate/commands */
} ax_mode;

struct ax_plan_text {
  struct ax_plan_text *next;
  char text[];
};

/* What another launcher says about this process (joins.c). */
typedef struct ax_join {
  const char *who; /* "torchrun"; NULL: none, or it started one process a machine */
  int rank, local_rank, local_size;
  char job[600]; /* which of its runs on this machine this is */
} ax_join;

/* The parsed command line.  Texts are borrowed from argv, the environment, static text or
 * `texts`. */
typedef struct ax_plan {
  struct ax_plan_text *texts;
  const char *command; /* of AX_MODE_COMMAND */
  bool testing;        /* accel-run test */
  char **own_argv;     /* NULL, or what argv is then: owned */
  ax_mode mode;
  ax_setting set[AX_SET_COUNT];
  int argc;
  char **argv;
  int n_actions; /* options that run before the script: argv positions of -e, -l and -j */
  int *actions;
  int gpus;         /* visible GPUs, where the number of ranks follows from them; else 0 */
  int script;       /* argv position of the script ("-" is stdin); 0: none */
  bool interactive; /* -i */
  char *stdin_text; /* the script read from stdin, once, before ranks are forked; NULL if there is none */
  size_t stdin_size;
  ax_join join;
  bool mpi;           /* several machines, whose tensors travel by MPI */
  const char *run_id; /* of a run that a script starts on several machines; NULL: accel-run starts it */
  int rank_cores;     /* cores for each rank, where the launchers of a machine have counted them; else 0 */
} ax_plan;

/* Fills `plan`.  Returns 0, or the exit status after printing to stderr what is wrong. */
int ax_config_parse(int argc, char **argv, ax_plan *plan);
void ax_config_free(ax_plan *plan);
void ax_config_help(FILE *f);
void ax_config_usage(FILE *f); /* its first part, without the options */
void ax_config_explain(const ax_plan *plan, FILE *f);
/* options.c: prints a line for each option after the script's name that the script does not
 * mention. */
void ax_options_check_script(const ax_plan *plan);
/* The text after a short option, "-efoo" or "-e foo"; see ax_plan.actions. */
const char *ax_config_action(const ax_plan *plan, int i, char *letter);
/* Ranks of this machine: num_processes / num_machines. */
int ax_config_ranks_here(const ax_plan *plan);
/* Sets the environment variables that libraries and the script read. */
void ax_config_export(const ax_plan *plan, int ranks);

/* ---- commands.c: accel-run WORD */

typedef struct ax_command {
  const char *name, *help;
} ax_command;
extern const ax_command ax_commands[]; /* ends with a NULL name */
/* Sets the plan's mode after the first word; returns the position in argv at which options
 * begin. */
int ax_command_find(ax_plan *plan);
/* Checks the script's name against the commands' names; 0, or the exit status after printing what
 * is wrong. */
int ax_command_check(ax_plan *plan);
/* Runs plan->command. */
int ax_command_run(ax_plan *plan);

#endif

/* host.h: shared by the files of the host itself (main, config, interp, repl, launch, machines). */
#ifndef AX_HOST_H
#define AX_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <lua.h>

#define AX_VERSION "0.1.0"

#define AX_EXIT_FAILED 1      /* a script raised */
#define AX_EXIT_USAGE 2       /* the command line was wrong */
#define AX_EXIT_INTERRUPT 130 /* Ctrl-C: 128 + SIGINT, as in shells */

/* ---- config.c: settings and the command line ------------------------------------------------- */

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
  bool mpi;       /* several machines, whose tensors travel by MPI */
  int rank_cores; /* cores for each rank, where the launchers of a machine have counted them; else 0 */
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
/* Cores that this process may use: the affinity mask, limited by the cgroup's quota. */
int ax_config_cores(void);
/* Threads of a rank when `ranks` share this machine; *explicit_: the user set the number. */
int ax_config_threads(const ax_plan *plan, int ranks, bool *explicit_);
/* Sets the environment variables that libraries and the script read. */
void ax_config_export(const ax_plan *plan, int ranks);

/* ---- home.c: the user's folders -------------------------------------------------------------- */

/* HOME, or where that is unset or empty the folder in the password database; NULL: there is
 * none. */
const char *ax_home(void);
/* Writes the path with the user's home folder for a leading "~", and that of another user for
 * "~name"; where there is none, the path stays as it is.  False: it is too long. */
bool ax_expand_user(const char *path, char *to, size_t size);
/* Writes the folder in which Hugging Face's tools keep what is theirs: $HF_HOME, else
 * $XDG_CACHE_HOME/huggingface, else ~/.cache/huggingface.  False: there is none. */
bool ax_hf_home(char *path, size_t size);

/* ---- commands.c: accel-run WORD -------------------------------------------------------------- */

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

/* ---- streams.c, require.c -------------------------------------------------------------------- */

/* Opens stdin, stdout and stderr where the process was started without them.  Otherwise the next
 * files, a socket of a worker or the script's own, would get their numbers, and printed text would
 * go there.  Text for a stdout that was closed from the start is dropped without an error. */
void ax_streams_open(void);
/* Makes each printed line one write. */
void ax_streams_by_line(void);
/* Returns whether a write to stdout has failed, and writes the reason into `text`.  Returns true
 * once for a failure. */
bool ax_streams_lost(char *text, size_t size);
/* Prints with question marks for control characters other than line ends and tabs: messages quote
 * options, variables, files and names, which may hold what moves a terminal's cursor, or worse. */
void ax_print(FILE *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Makes io.stderr:write(...) one write. */
void ax_streams_join_stderr(lua_State *L);
/* Puts `require` in place. */
void ax_require_open(lua_State *L);

/* ---- interp.c: one Lua state ----------------------------------------------------------------- */

/* Called once with the error that ends a script.  `text` is the message and the traceback; `where`
 * the script line. */
typedef void (*ax_failure_fn)(const char *text, const char *where);

/* Runs `plan` in a fresh Lua state and returns the exit status.  Errors go to `failed`; NULL:
 * stderr. */
int ax_interp_run(const ax_plan *plan, ax_failure_fn failed);
/* Calls the function below `nargs` arguments, with a message handler that adds a traceback.
 * Returns the status of lua_pcall. */
int ax_interp_call(lua_State *L, int nargs, int nresults);
/* Prints the error on the stack top, if it is not nil, and pops it. */
void ax_interp_report(lua_State *L);
/* For a caller that reports the error itself: undoes what a failed ax_interp_call leaves behind. */
void ax_interp_recover(lua_State *L);
/* From now on SIGINT raises an error while Lua runs: see interp_signals.c. */
typedef enum { AX_INTERRUPTS_END, AX_INTERRUPTS_ASK, AX_INTERRUPTS_RAISE } ax_interrupts;
void ax_interp_catch_interrupts(lua_State *L, ax_interrupts are);
bool ax_interp_take_interrupt(void);
/* Not 0: an interrupt is to be raised. */
extern volatile int ax_interrupted;
/* The folder of the Lua files, ".../lua", also where they were not found.  Borrowed. */
const char *ax_interp_lua_dir(void);
/* The folder of the backends' plugins.  Borrowed. */
const char *ax_interp_plugin_dir(void);

/* ---- gpus.c ---------------------------------------------------------------------------------- */

/* Returns the number of GPUs that ranks of this machine can use; 0 without a CUDA backend. */
int ax_gpus_visible(void);

/* ---- errors.c: errors as users see them ------------------------------------------------------ */

/* Message handler: returns the error as text, with the stack once. */
int ax_errors_handler(lua_State *L);
/* From here on the stack of each error that nothing catches is kept for the debugger. */
void ax_errors_keep(lua_State *L);
/* Message handler: returns the error; for a call of nil, with the name that may have been meant. */
int ax_errors_explain_call(lua_State *L);
/* Adds the stack from `level` on to the text on the stack top. */
void ax_errors_add_stack(lua_State *L, int level);
/* Replaces the error on the stack top, when it is text, by the form to show: with hints, and with
 * the script's frames first. */
void ax_errors_finish(lua_State *L);

/* ---- modules.c: compiled modules of the library ---------------------------------------------- */

/* Adds a searcher to package.loaders, where there is an archive. */
void ax_modules_install(lua_State *L);

/* ---- editor.c: lines that a person types ----------------------------------------------------- */

/* In a rank, before its stdin becomes another file: keeps the terminal for ax_editor_open. */
void ax_editor_keep_terminal(void);
/* Opens the line editor where there is a terminal; once. */
void ax_editor_open(void);
void ax_editor_close(void);
/* Pushes a table: read, write, add, on_complete, on_first; edits: lines are edited; terminal: a
 * person types them. */
void ax_editor_push(lua_State *L);
/* A handler of SIGINT: the line that is being typed is dropped. */
void ax_editor_cancel(int sig);

/* ---- repl.c ---------------------------------------------------------------------------------- */

/* Reads, evaluates and prints until the end of input.  failed: what ran before has failed, and its
 * error is on the stack top, which is popped. */
void ax_repl_run(lua_State *L, bool failed);

/* ---- family.c: the programs that the script starts --- */

/* In the launcher, before ranks are forked: starts the guard, which outlives a killed launcher. */
void ax_family_begin(void);
/* In a rank: marks the programs that it starts, so that they can be found again. */
void ax_family_join(void);
/* In the launcher, when no rank is left.  failed: ends the programs that the ranks started. */
void ax_family_end(bool failed);
/* In the process of a run without a launcher: when the script starts its first program, a guard is
 * started too. */
void ax_family_alone(void);
/* In a process that was started as AX_GUARD_NAME with this argument: the guard. */
#define AX_GUARD_NAME "accel-guard"
_Noreturn void ax_family_guard(const char *mark);

/* ---- output.c: --tee ------------------------------------------------------------------------- */

/* Carries the ranks' streams that --tee names through the launcher. */
typedef struct ax_output ax_output;
/* Checks --tee; 0, or the exit status after printing what is wrong. */
int ax_output_check(const ax_plan *plan);
/* Opens pipes and files for ranks `from` to `to` - 1 of this machine, whose rank 0 is rank `first`
 * of all.  *out: NULL where --tee names none.  0, or the exit status after printing what is
 * wrong. */
int ax_output_begin(const ax_plan *plan, int from, int to, int first, int attempt, ax_output **out);
/* In a rank.  watches: this rank calls ax_output_settle; the others have no use for `o` after this
 * call.  NULL is fine, here and below. */
void ax_output_join(ax_output *o, int rank, bool watches);
/* In the launcher, when all ranks are forked: writes what they print, whole lines, until they
 * end. */
void ax_output_run(ax_output *o);
/* When no rank is left: writes the rest and frees.  false: some of the text is lost, which a
 * message has reported. */
bool ax_output_end(ax_output *o);
/* In rank 0 of a prompt: waits, for a moment at most, until the launcher has written what the other
 * ranks have printed so far. */
void ax_output_settle(ax_output *o);

/* ---- session.c: a prompt of several ranks ---------------------------------------------------- */

struct ax_control;
/* In the launcher, before ranks are forked; false after printing what is wrong. */
bool ax_session_open(struct ax_control *c, ax_output *output);
/* In the launcher, when no rank is left: restores the terminal. */
void ax_session_close(void);
/* In a rank, and in the launcher (-1) when they are forked: closes the others' ends. */
void ax_session_keep(int rank);
/* This process's rank; -1: there is no such prompt. */
int ax_session_rank(void);
/* In rank 0: the current chunk is interrupted; others: passes that on to the other ranks, which the
 * terminal has not interrupted.  Safe in a signal handler. */
void ax_session_interrupt(bool others);
/* In another rank: whether the chunk was interrupted before this rank began it. */
bool ax_session_interrupted(void);
/* In rank 0: whether a rank is gone. */
bool ax_session_ended(void);
/* In every rank when its chunk has ended. */
void ax_session_end_chunk(void);
/* Pushes the table of functions for lua/accelerate/prompt. */
void ax_session_push(lua_State *L);

/* ---- launch.c -------------------------------------------------------------------------------- */

/* Runs the plan in forked processes, one for each rank of this machine.  Returns the exit status of
 * the run. */
int ax_launch_ranks(ax_plan *plan);

#endif

/* script.h: one Lua state of the host, and what stands around it: its streams, modules, errors and
 * prompt. */
#ifndef AX_SCRIPT_H
#define AX_SCRIPT_H

#include <stdbool.h>
#include <stdio.h>

#include <lua.h>

#include "settings/plan.h"

/* ---- home.c: the user's folders */

/* HOME, or where that is unset or empty the folder in the password database; NULL: there is
 * none. */
const char *ax_home(void);
/* Writes the path with the user's home folder for a leading "~", and that of another user for
 * "~name"; where there is none, the path stays as it is.  False: it is too long. */
bool ax_expand_user(const char *path, char *to, size_t size);
/* Writes the folder in which Hugging Face's tools keep what is theirs: $HF_HOME, else
 * $XDG_CACHE_HOME/huggingface, else ~/.cache/huggingface.  False: there is none. */
bool ax_hf_home(char *path, size_t size);

/* ---- streams.c, require.c */

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

/* ---- interp.c: one Lua state */

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

/* ---- errors.c: errors as users see them */

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

/* ---- modules.c: compiled modules of the library */

/* Adds a searcher to package.loaders, where there is an archive. */
void ax_modules_install(lua_State *L);

/* ---- editor.c: lines that a person types */

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

/* ---- repl.c */

/* Reads, evaluates and prints until the end of input.  failed: what ran before has failed, and its
 * error is on the stack top, which is popped. */
void ax_repl_run(lua_State *L, bool failed);

#endif

/* repl.c: read, evaluate, print, on a terminal.
 *
 * libedit is opened when the prompt starts, not linked: scripts and ranks need not load it and its
 * five libraries, and a machine without it still has a prompt, without line editing. */
#define _GNU_SOURCE
#include "host.h"

#include <dlfcn.h>
#include <errno.h>
#include <histedit.h>
#include <lauxlib.h>
#include <locale.h>
#include <luajit.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

static struct {
  EditLine *(*init)(const char *, FILE *, FILE *, FILE *);
  void (*end)(EditLine *);
  int (*set)(EditLine *, int, ...);
  const char *(*gets)(EditLine *, int *);
  History *(*history_init)(void);
  void (*history_end)(History *);
  int (*history)(History *, HistEvent *, int, ...);
} edit;

static EditLine *line_editor;
static History *past;
static const char *prompt_text;
static volatile sig_atomic_t cancelled;
static sigset_t waiting_mask; /* the mask while waiting for a character: lets SIGINT through */

static void on_cancel(int sig)
{
  (void)sig;
  cancelled = 1;
}

static char *prompt_of(EditLine *e)
{
  (void)e;
  return (char *)prompt_text;
}

/* Reads one character.  Returns -1 after Ctrl-C, so that el_gets drops the line.  SIGINT is blocked
 * except while ppoll waits, so that none is lost just before the wait. */
static int read_char(EditLine *e, wchar_t *out)
{
  static mbstate_t state;
  struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
  char c;

  (void)e;
  for (;;) {
    ssize_t n = -1;
    size_t r;
    if (ppoll(&in, 1, NULL, &waiting_mask) > 0) n = read(STDIN_FILENO, &c, 1);
    if (n < 0 && errno == EINTR && !cancelled) continue; /* the window changed its size */
    if (n <= 0) return (int)n;
    r = mbrtowc(out, &c, 1, &state);
    if (r == (size_t)-2) continue;
    if (r == (size_t)-1) {
      memset(&state, 0, sizeof state);
      *out = (unsigned char)c;
    }
    return 1;
  }
}

static const char *history_path(void)
{
  static char path[4096];
  const char *given = getenv("ACCELERATE_HISTORY"), *home = getenv("HOME");

  if (given) return *given ? given : NULL;
  if (!home || !*home) return NULL;
  snprintf(path, sizeof path, "%s/.accel_history", home);
  return path;
}

static bool open_editor(void)
{
  static const char *const names[] = { "libedit.so.2", "libedit.so.0", "libedit.so" };
  HistEvent ev;
  void *lib = NULL;
  size_t i;

  setlocale(LC_CTYPE, ""); /* the keyboard may send UTF-8 */
  for (i = 0; i < sizeof names / sizeof *names && !lib; i++) lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  if (!lib) return false;
#define FIND(member, name) \
  if (!(*(void **)&edit.member = dlsym(lib, name))) return false
  FIND(init, "el_init");
  FIND(end, "el_end");
  FIND(set, "el_set");
  FIND(gets, "el_gets");
  FIND(history_init, "history_init");
  FIND(history_end, "history_end");
  FIND(history, "history");
#undef FIND
  line_editor = edit.init("accel-run", stdin, stdout, stderr);
  past = edit.history_init();
  if (!line_editor || !past) return false;
  edit.set(line_editor, EL_EDITOR, "emacs");
  edit.set(line_editor, EL_PROMPT, prompt_of);
  edit.set(line_editor, EL_SIGNAL, 0);
  edit.set(line_editor, EL_GETCFN, read_char);
  edit.set(line_editor, EL_HIST, edit.history, past);
  edit.history(past, &ev, H_SETSIZE, 1000);
  edit.history(past, &ev, H_SETUNIQUE, 1);
  if (history_path()) edit.history(past, &ev, H_LOAD, history_path());
  return true;
}

static void close_editor(void)
{
  if (line_editor) edit.end(line_editor);
  if (past) edit.history_end(past);
  line_editor = NULL;
  past = NULL;
}

typedef enum { READ_LINE, READ_CANCEL, READ_END } read_result;

/* Pushes a line without its newline; pushes nothing for the other results. */
static read_result read_line(lua_State *L, const char *prompt)
{
  struct sigaction a = { .sa_handler = on_cancel }, old;
  static char plain[8192];
  const char *text;
  int n = 0;

  prompt_text = prompt;
  cancelled = 0;
  sigaction(SIGINT, &a, &old);
  if (line_editor) {
    sigset_t interrupt;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, &waiting_mask);
    /* before the prompt shows, so that early input is not echoed twice */
    edit.set(line_editor, EL_PREP_TERM, 1);
    text = edit.gets(line_editor, &n);
    sigprocmask(SIG_SETMASK, &waiting_mask, NULL);
  } else {
    fputs(prompt, stdout);
    fflush(stdout);
    text = fgets(plain, sizeof plain, stdin);
    clearerr(stdin);
    n = text ? (int)strlen(text) : 0;
  }
  sigaction(SIGINT, &old, NULL);
  if (cancelled) {
    putchar('\n');
    return READ_CANCEL;
  }
  if (!text || n <= 0) return READ_END;
  if (text[n - 1] == '\n') n--;
  lua_pushlstring(L, text, (size_t)n);
  return READ_LINE;
}

static void remember(lua_State *L, int at)
{
  HistEvent ev;
  const char *text = lua_tostring(L, at);

  if (!past || !text[strspn(text, " \t")]) return;
  edit.history(past, &ev, H_ENTER, text);
  if (history_path()) /* now: the process may be killed before the prompt ends */
    edit.history(past, &ev, H_SAVE, history_path());
}

/* Whether the parser reached the end of the text and needs more. */
static bool incomplete(lua_State *L, int status)
{
  size_t n;
  const char *text;

  if (status != LUA_ERRSYNTAX) return false;
  text = lua_tolstring(L, -1, &n);
  return (n >= 7 && strcmp(text + n - 7, "'<eof>'") == 0) || (n >= 5 && strcmp(text + n - 5, "<eof>") == 0);
}

/* Loads the text at `at` as an expression (or after the old prefix "="), else as statements; pushes
 * the function or the error. */
static int compile(lua_State *L, int at)
{
  const char *text = lua_tostring(L, at);
  int status;

  lua_pushfstring(L, "return %s", *text == '=' ? text + 1 : text);
  status = luaL_loadbuffer(L, lua_tostring(L, -1), lua_objlen(L, -1), "=stdin");
  lua_remove(L, -2);
  if (status == 0) return 0;
  lua_pop(L, 1);
  return luaL_loadbuffer(L, text, lua_objlen(L, at), "=stdin");
}

/* Pushes the compiled chunk (or an error) for one complete input; false at the end of input. */
static read_result read_chunk(lua_State *L, int *status)
{
  int base = lua_gettop(L);
  read_result r = read_line(L, "> ");

  if (r != READ_LINE) return r;
  for (;;) {
    *status = compile(L, base + 1);
    if (!incomplete(L, *status)) break;
    lua_pop(L, 1);
    r = read_line(L, ">> ");
    if (r == READ_CANCEL) {
      lua_settop(L, base);
      return r;
    }
    if (r == READ_END) { /* compile again for the message about what is missing */
      *status = compile(L, base + 1);
      break;
    }
    lua_pushliteral(L, "\n");
    lua_insert(L, -2);
    lua_concat(L, 3);
  }
  remember(L, base + 1);
  lua_remove(L, base + 1);
  return READ_LINE;
}

/* Loads accelerate.nn as `nn`, and so on, when the name is first used; only at the prompt. */
static int lazy_global(lua_State *L)
{
  const char *name = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
  char file[4200];
  bool whole = strcmp(name, "accelerate") == 0, found;
  static const char *const modules[] = { "accelerate", "tensor", "nn",         "optim",   "data",
                                         "metrics",    "models", "tokenizers", "tracking" };
  size_t i, n = sizeof modules / sizeof *modules;

  for (i = 0; i < n && strcmp(name, modules[i]) != 0; i++)
    ;
  if (i == n) return 0;
  snprintf(file, sizeof file, "%s/accelerate/%s.lua", ax_interp_lua_dir(), whole ? "init" : name);
  found = access(file, R_OK) == 0;
  if (!found) {
    snprintf(file, sizeof file, "%s/accelerate/%s/init.lua", ax_interp_lua_dir(), name);
    found = access(file, R_OK) == 0;
  }
  if (!found) return 0;
  lua_getglobal(L, "require");
  lua_pushfstring(L, whole ? "accelerate" : "accelerate.%s", name);
  lua_call(L, 1, 1);
  lua_pushvalue(L, 2);
  lua_pushvalue(L, -2);
  lua_rawset(L, 1);
  return 1;
}

static void add_globals(lua_State *L)
{
  lua_pushvalue(L, LUA_GLOBALSINDEX);
  if (!lua_getmetatable(L, -1)) {
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_setmetatable(L, -3);
  }
  lua_pushcfunction(L, lazy_global);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 2);
}

static void print_values(lua_State *L, int n)
{
  lua_getglobal(L, "print");
  lua_insert(L, -n - 1);
  if (lua_pcall(L, n, 0, 0) != 0) {
    fprintf(stderr, "accel-run: the value could not be printed: %s\n", lua_tostring(L, -1));
    lua_pop(L, 1);
  }
}

void ax_repl_run(lua_State *L)
{
  int base = lua_gettop(L), status = 0;

  printf("accel %s (%s); Ctrl-D leaves\n", AX_VERSION, LUAJIT_VERSION);
  add_globals(L);
  if (!open_editor()) line_editor = NULL;
  for (;;) {
    read_result r;
    lua_settop(L, base);
    fflush(stdout);
    r = read_chunk(L, &status);
    if (r == READ_END) break;
    if (r == READ_CANCEL) continue;
    ax_interp_catch_interrupts(L);
    if (status == 0) status = ax_interp_call(L, 0, LUA_MULTRET);
    ax_interp_take_interrupt();
    signal(SIGINT, SIG_DFL);
    if (status != 0) ax_interp_report(L);
    else if (lua_gettop(L) > base) print_values(L, lua_gettop(L) - base);
  }
  putchar('\n');
  close_editor();
}

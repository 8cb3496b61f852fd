/* editor.c: lines that a person types: at the prompt, and in the debugger.
 *
 * libedit is opened when the first line is wanted, not linked: scripts and ranks need not load it
 * and its five libraries, and a machine without it still has a prompt, without line editing. */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <lauxlib.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "dist.h"
#include "launch/launch.h"
#include "ranks.h"
#include "script.h"

#define PASTE_MOST (4 << 20)   /* bytes of one paste */
#define PASTE_PATIENCE_MS 2000 /* for the rest of a paste */

static struct {
  EditLine *(*init)(const char *, FILE *, FILE *, FILE *);
  void (*end)(EditLine *);
  int (*set)(EditLine *, int, ...);
  const char *(*gets)(EditLine *, int *);
  const LineInfo *(*line)(EditLine *);
  int (*insertstr)(EditLine *, const char *);
  History *(*history_init)(void);
  void (*history_end)(History *);
  int (*history)(History *, HistEvent *, int, ...);
} edit;

/* Where lines come from and the prompt goes to: stdin and stdout, or for a rank whose stdin is not
 * the terminal a copy of it. */
static FILE *in, *out;
static EditLine *line_editor;
static History *past;
static const char *prompt_text;
static volatile sig_atomic_t cancelled;
static sigset_t waiting_mask; /* the mask while waiting for a character: lets SIGINT through */

void ax_editor_cancel(int sig)
{
  (void)sig;
  cancelled = 1;
}

static char *prompt_of(EditLine *e)
{
  (void)e;
  return (char *)prompt_text;
}

static lua_State *reader; /* the state whose prompt reads; functions of the editor have no other way to it */

/* Before the first character: the prompt need not wait for a long history. */
static void load_history(void)
{
  lua_State *L = reader;
  int base = lua_gettop(L);

  lua_getfield(L, LUA_REGISTRYINDEX, "accel.on_first");
  if (lua_isfunction(L, -1)) {
    lua_pushnil(L);
    lua_setfield(L, LUA_REGISTRYINDEX, "accel.on_first");
    lua_pcall(L, 0, 0, 0);
  }
  lua_settop(L, base);
}

/* Reads one character.  Returns -1 after Ctrl-C, so that el_gets drops the line.  SIGINT is blocked
 * except while ppoll waits, so that none is lost just before the wait. */
static int read_char(EditLine *e, wchar_t *out)
{
  static const struct timespec look = { 0, 100000000 };
  static mbstate_t state;
  struct pollfd keys = { .fd = fileno(in), .events = POLLIN };
  const bool looks = ax_session_rank() == 0 || ax_rank_own();
  char c;

  (void)e;
  load_history();
  for (;;) {
    ssize_t n = -1;
    size_t r;
    if (ax_session_ended() || ax_dist_patience(ax_monotonic_ns()) != AX_OK) return 0;
    if (ppoll(&keys, 1, looks ? &look : NULL, &waiting_mask) > 0) n = read(fileno(in), &c, 1);
    else if (!cancelled) continue; /* the window changed its size, or it is time to look */
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

/* ---- completion and pasting */

/* Tab: on_complete(text before the cursor) gives what to insert, and a list to show. */
static unsigned char complete(EditLine *e, int ch)
{
  lua_State *L = reader;
  const LineInfo *line = edit.line(e);
  unsigned char result = CC_REFRESH;
  int base = lua_gettop(L);

  (void)ch;
  lua_getfield(L, LUA_REGISTRYINDEX, "accel.on_complete");
  lua_pushlstring(L, line->buffer, (size_t)(line->cursor - line->buffer));
  if (lua_pcall(L, 1, 2, 0) == 0) {
    if (lua_type(L, -2) == LUA_TSTRING && lua_objlen(L, -2) > 0) edit.insertstr(e, lua_tostring(L, -2));
    if (lua_type(L, -1) == LUA_TSTRING) {
      fprintf(out, "\n%s\n", lua_tostring(L, -1));
      fflush(out);
      result = CC_REDISPLAY;
    }
  }
  lua_settop(L, base);
  return result;
}

/* A paste between ESC [ 200 ~ and ESC [ 201 ~ goes into the line as it is, line breaks too, so that
 * several lines are one chunk. */
static unsigned char paste(EditLine *e, int ch)
{
  static const char end[] = "\033[201~";
  const size_t end_size = sizeof end - 1;
  struct pollfd keys = { .fd = fileno(in), .events = POLLIN };
  char *text = NULL;
  size_t n = 0, room = 0;

  (void)ch;
  while (n < end_size || memcmp(text + n - end_size, end, end_size) != 0) {
    if (n + 1 >= room) {
      char *grown = room < PASTE_MOST ? realloc(text, room = room ? 2 * room : 4096) : NULL;
      if (!grown) break;
      text = grown;
    }
    if (ppoll(&keys, 1, &(struct timespec){ PASTE_PATIENCE_MS / 1000, 0 }, NULL) <= 0) break;
    if (read(fileno(in), text + n, 1) != 1) break;
    if (text[n] == '\r') text[n] = '\n';
    if (text[n] != '\0') n++;
  }
  if (n >= end_size && memcmp(text + n - end_size, end, end_size) == 0) n -= end_size;
  while (n > 0 && text[n - 1] == '\n') n--;
  if (n > 0) {
    text[n] = '\0';
    edit.insertstr(e, text);
  }
  free(text);
  return CC_REFRESH;
}

/* ---- opening */

static int terminal = -1; /* this rank's copy of the terminal */

void ax_editor_keep_terminal(void)
{
  if (isatty(STDIN_FILENO)) terminal = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
}

/* Text for the terminal goes there even where stdout is a file or a pipe. */
static void find_files(void)
{
  const int fd = isatty(STDIN_FILENO) ? STDIN_FILENO : terminal;

  in = stdin;
  out = stdout;
  if (fd < 0) return;
  if (fd != STDIN_FILENO && !(in = fdopen(fd, "r"))) in = stdin;
  if (!isatty(STDOUT_FILENO) && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR &&
      !(out = fdopen(fcntl(fd, F_DUPFD_CLOEXEC, 3), "w")))
    out = stdout;
}

static bool load_editor(void)
{
  static const char *const names[] = { "libedit.so.2", "libedit.so.0", "libedit.so" };
  HistEvent ev;
  void *lib = NULL;

  setlocale(LC_CTYPE, ""); /* the keyboard may send UTF-8 */
  for (size_t i = 0; i < sizeof names / sizeof *names && !lib; i++)
    lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  if (!lib) return false;
#define FIND(member, name) \
  if (!(*(void **)&edit.member = dlsym(lib, name))) return false
  FIND(init, "el_init");
  FIND(end, "el_end");
  FIND(set, "el_set");
  FIND(gets, "el_gets");
  FIND(line, "el_line");
  FIND(insertstr, "el_insertstr");
  FIND(history_init, "history_init");
  FIND(history_end, "history_end");
  FIND(history, "history");
#undef FIND
  line_editor = edit.init("accel-run", in, out, stderr);
  past = edit.history_init();
  if (!line_editor || !past) return false;
  edit.set(line_editor, EL_EDITOR, "emacs");
  edit.set(line_editor, EL_PROMPT_ESC, prompt_of, '\1');
  edit.set(line_editor, EL_SIGNAL, 0);
  edit.set(line_editor, EL_GETCFN, read_char);
  edit.set(line_editor, EL_HIST, edit.history, past);
  edit.set(line_editor, EL_ADDFN, "accel-complete", "complete a name", complete);
  edit.set(line_editor, EL_ADDFN, "accel-paste", "insert pasted text", paste);
  edit.set(line_editor, EL_BIND, "^I", "accel-complete", NULL);
  edit.set(line_editor, EL_BIND, "\\e[200~", "accel-paste", NULL);
  edit.set(line_editor, EL_BIND, "\\e[A", "ed-search-prev-history", NULL);
  edit.set(line_editor, EL_BIND, "\\e[B", "ed-search-next-history", NULL);
  edit.set(line_editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
  edit.set(line_editor, EL_BIND, "^S", "em-inc-search-next", NULL);
  edit.history(past, &ev, H_SETSIZE, 100000);
  edit.history(past, &ev, H_SETUNIQUE, 1);
  return true;
}

void ax_editor_open(void)
{
  if (in) return;
  find_files();
  if (isatty(fileno(in)) && !load_editor()) ax_editor_close();
}

void ax_editor_close(void)
{
  if (line_editor) {
    fputc('\n', out);
    edit.end(line_editor);
  }
  if (past) edit.history_end(past);
  line_editor = NULL;
  past = NULL;
}

/* ---- lines */

/* Pushes the next line of a file that is no terminal; returns false at its end. */
static bool read_plain(lua_State *L)
{
  luaL_Buffer b;
  int c;
  bool any = false;

  luaL_buffinit(L, &b);
  while ((c = getc(in)) != EOF && c != '\n') {
    luaL_addchar(&b, (char)c);
    any = true;
  }
  luaL_pushresult(&b);
  return any || c == '\n';
}

static bool has_paste(void)
{
  const char *term = getenv("TERM");
  return term && *term && strcmp(term, "dumb") != 0;
}

/* Pushes the line; returns false at the end of input and after Ctrl-C. */
static bool read_edited(lua_State *L)
{
  const bool pasting = has_paste();
  sigset_t interrupt;
  const char *text;
  int n = 0;

  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  sigprocmask(SIG_BLOCK, &interrupt, &waiting_mask);
  /* before the prompt shows, so that early input is not echoed twice */
  edit.set(line_editor, EL_PREP_TERM, 1);
  if (pasting) fputs("\033[?2004h", out);
  reader = L;
  text = edit.gets(line_editor, &n);
  if (pasting) fputs("\033[?2004l", out);
  fflush(out);
  sigprocmask(SIG_SETMASK, &waiting_mask, NULL);
  if (cancelled || !text || n <= 0) return false;
  if (text[n - 1] == '\n') n--;
  lua_pushlstring(L, text, (size_t)n);
  return true;
}

/* read(prompt) -> the line without its end; false after Ctrl-C; nil at the end of input. */
static int editor_read(lua_State *L)
{
  struct sigaction cancel = { .sa_handler = ax_editor_cancel }, former;
  bool got;

  prompt_text = luaL_checkstring(L, 1);
  cancelled = 0;
  fflush(stdout);
  sigaction(SIGINT, &cancel, &former);
  if (line_editor) {
    got = read_edited(L);
  } else {
    if (isatty(fileno(in))) fputs(prompt_text, out);
    fflush(out);
    clearerr(in);
    got = read_plain(L);
  }
  sigaction(SIGINT, &former, NULL);
  if (cancelled) {
    putc('\n', out);
    lua_pushboolean(L, false);
  } else if (!got) {
    lua_pushnil(L);
  }
  return 1;
}

/* write(text): to where the prompt goes. */
static int editor_write(lua_State *L)
{
  size_t n;
  const char *text = luaL_checklstring(L, 1, &n);

  fflush(stdout);
  fwrite(text, 1, n, out);
  fflush(out);
  return 0;
}

/* add(text): a line for Ctrl-P, Ctrl-R and the arrows. */
static int editor_add(lua_State *L)
{
  HistEvent ev;
  const char *text = luaL_checkstring(L, 1);

  if (past) edit.history(past, &ev, H_ENTER, text);
  return 0;
}

/* on_complete(fn): what Tab calls; on_first(fn): called once, before the first character.  Each
 * returns the function that was set before. */
static int editor_on(lua_State *L)
{
  const char *key = lua_tostring(L, lua_upvalueindex(1));

  lua_settop(L, 1);
  lua_getfield(L, LUA_REGISTRYINDEX, key);
  lua_insert(L, 1);
  lua_setfield(L, LUA_REGISTRYINDEX, key);
  return 1;
}

void ax_editor_push(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "read", editor_read }, { "add", editor_add }, { "write", editor_write }, { NULL, NULL }
  };

  lua_newtable(L);
  luaL_register(L, NULL, functions);
  lua_pushliteral(L, "accel.on_complete");
  lua_pushcclosure(L, editor_on, 1);
  lua_setfield(L, -2, "on_complete");
  lua_pushliteral(L, "accel.on_first");
  lua_pushcclosure(L, editor_on, 1);
  lua_setfield(L, -2, "on_first");
  lua_pushboolean(L, line_editor != NULL);
  lua_setfield(L, -2, "edits");
  lua_pushboolean(L, in && isatty(fileno(in)));
  lua_setfield(L, -2, "terminal");
}

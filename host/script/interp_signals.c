/* interp_signals.c: what SIGINT and SIGUSR1 do to a running script. */
#define _GNU_SOURCE
#include "ax.h"
#include "bind/group.h"
#include "dist.h"
#include "interp.h"
#include "launch/launch.h"
#include "ranks.h"
#include "script.h"

#include <lauxlib.h>
#include <limits.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- Ctrl-C */

/* The first SIGINT raises "interrupted" where Lua is, in compiled loops too.  A script's second one
 * ends the process, in case the script caught the first error and went on.  At the prompt each one
 * raises, and a second one within a second (the first reached nothing: a long call of C, say) gets
 * a question.  In a notebook's cell each one raises. */
#define AGAIN_NS 1000000000
static lua_State *interrupted_state;
static ax_interrupts interrupts_are;
static int64_t interrupted_at;
static volatile sig_atomic_t interrupts; /* since the last ax_interp_catch_interrupts */
/* Not 0: an interrupt is to be raised.  The binding reads it too, because a hook runs between
 * instructions of Lua and not within a long call.  The code that raises the error resets it. */
volatile int ax_interrupted;

static void raise_interrupt(lua_State *L, lua_Debug *ar)
{
  bool waits = ax_interrupted != 0;

  ax_interrupted = 0;
  lua_sethook(L, NULL, 0, 0);
  if (!waits) return;
  if (lua_getinfo(L, "Sl", ar) && ar->currentline > 0)
    lua_pushfstring(L, "%s:%d: ", ar->short_src, ar->currentline);
  else luaL_where(L, 1); /* in a C function: the line of its call */
  lua_pushliteral(L, "interrupted");
  lua_concat(L, 2);
  lua_error(L);
}

/* Within the signal handler: whatever runs, only the kernel is needed for this. */
static void ask_to_end(void)
{
  static const char question[] = "\naccel-run: interrupted twice: end it, with all that it holds? [y/N] ";
  char answer[64];
  ssize_t n = write(STDERR_FILENO, question, sizeof question - 1);

  if (n > 0) n = read(STDIN_FILENO, answer, sizeof answer);
  if (n > 0 && (*answer == 'y' || *answer == 'Y')) _exit(AX_EXIT_INTERRUPT);
}

/* A terminal interrupts all processes of a run, another program this one alone. */
static void on_interrupt(int sig, siginfo_t *info, void *context)
{
  const int64_t now = ax_monotonic_ns();

  (void)context;
  if (ax_hold_elsewhere()) return; /* it is for the rank that a person debugs */
  ax_session_interrupt(info->si_code != SI_KERNEL);
  if (interrupts_are == AX_INTERRUPTS_END) signal(sig, SIG_DFL);
  else if (interrupts_are == AX_INTERRUPTS_ASK && ax_session_rank() <= 0 && /* rank 0 asks */
           interrupts && now - interrupted_at < AGAIN_NS)
    ask_to_end();
  interrupted_at = now;
  interrupts = ax_interrupted = 1;
  lua_sethook(interrupted_state, raise_interrupt, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

void ax_interp_catch_interrupts(lua_State *L, ax_interrupts are)
{
  /* no SA_RESTART: a blocked read returns */
  struct sigaction a = { .sa_sigaction = on_interrupt, .sa_flags = SA_SIGINFO };

  interrupted_state = L;
  interrupts_are = are;
  interrupts = ax_interrupted = 0;
  sigaction(SIGINT, &a, NULL);
}

bool ax_interp_take_interrupt(void)
{
  bool was = interrupts != 0;

  interrupts = ax_interrupted = 0;
  lua_sethook(interrupted_state, NULL, 0, 0);
  return was;
}

static void go_on(int sig) { (void)sig; }

/* accelerate.host.evaluate(fn) -> as pcall(fn).  SIGINT raises an error in fn, and does afterwards
 * what it did before. */
static int host_evaluate(lua_State *L)
{
  const ax_interrupts were = interrupts_are;
  lua_State *const former_state = interrupted_state;
  struct sigaction former;
  int status;

  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  sigaction(SIGINT, NULL, &former);
  ax_interp_catch_interrupts(L, AX_INTERRUPTS_ASK);
  lua_pushcfunction(L, ax_errors_explain_call);
  lua_insert(L, 1);
  status = lua_pcall(L, 0, LUA_MULTRET, 1);
  ax_interp_take_interrupt();
  interrupts_are = were;
  interrupted_state = former_state;
  sigaction(SIGINT, &former, NULL);
  lua_pushboolean(L, status == 0);
  lua_replace(L, 1);
  return lua_gettop(L);
}

/* accelerate.host.hold() waits until this rank has the terminal; raises when the run is being
 * ended.  let_go(steps): see ax_hold_end. */
static int host_hold(lua_State *L)
{
  if (ax_hold_begin() != AX_OK) return luaL_error(L, "breakpoint: %s", ax_last_error());
  return 0;
}

static int host_let_go(lua_State *L)
{
  ax_hold_end(lua_toboolean(L, 1));
  return 0;
}

/* accelerate.host.editor() -> the line editor, opened; see ax_editor_push. */
static int host_editor(lua_State *L)
{
  ax_editor_open();
  ax_editor_push(L);
  return 1;
}

/* accelerate.host.is_interactive() -> whether a prompt follows the script, or runs. */
static int host_is_interactive(lua_State *L)
{
  lua_getfield(L, LUA_REGISTRYINDEX, AX_ON_ERROR);
  lua_pushboolean(L, !lua_isnil(L, -1));
  return 1;
}

static int host_keep_errors(lua_State *L)
{
  ax_errors_keep(L);
  return 0;
}

/* accelerate.host.call(fn) -> true, or false and the error as the prompt shows it.  Meanwhile
 * SIGINT raises an error in fn; afterwards it does nothing. */
static int host_call(lua_State *L)
{
  const struct sigaction nothing = { .sa_handler = go_on, .sa_flags = SA_RESTART };
  int status;

  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  ax_interp_catch_interrupts(L, AX_INTERRUPTS_RAISE);
  status = ax_interp_call(L, 0, 0);
  ax_interp_take_interrupt();
  sigaction(SIGINT, &nothing, NULL);
  if (status != 0) ax_interp_recover(L);
  lua_pushboolean(L, status == 0);
  lua_insert(L, 1);
  return lua_gettop(L);
}

/* accelerate.host.home() -> the user's home folder, or nil. */
static int host_home(lua_State *L)
{
  lua_pushstring(L, ax_home());
  return 1;
}

/* accelerate.host.hf_home() -> the folder of Hugging Face's tools, or nil. */
static int host_hf_home(lua_State *L)
{
  char path[PATH_MAX];

  if (!ax_hf_home(path, sizeof path)) return 0;
  lua_pushstring(L, path);
  return 1;
}

/* accelerate.host.expand_user(path) -> the path with the user's home folder for a leading "~" */
static int host_expand_user(lua_State *L)
{
  char path[PATH_MAX];

  if (!ax_expand_user(luaL_checkstring(L, 1), path, sizeof path)) luaL_error(L, "the path is too long");
  lua_pushstring(L, path);
  return 1;
}

int ax_interp_open_host(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "call", host_call },
    { "evaluate", host_evaluate },
    { "hold", host_hold },
    { "let_go", host_let_go },
    { "editor", host_editor },
    { "is_interactive", host_is_interactive },
    { "keep_errors", host_keep_errors },
    { "home", host_home },
    { "hf_home", host_hf_home },
    { "expand_user", host_expand_user },
    { NULL, NULL },
  };

  lua_newtable(L);
  luaL_register(L, NULL, functions);
  return 1;
}

/* ---- SIGUSR1: where the script is */

static lua_State *looked_state;
static bool is_rank;

/* Into the rank's record; alone, to stderr. */
static void write_trace(lua_State *L)
{
  ax_rank_record *me = is_rank ? ax_rank_own() : NULL;

  lua_pushliteral(L, "");
  ax_errors_add_stack(L, 0);
  if (me) {
    snprintf(me->trace, sizeof me->trace, "%s", lua_tostring(L, -1) + (*lua_tostring(L, -1) == '\n'));
    atomic_store(&me->looked, atomic_load(&me->looks));
  } else {
    ax_print(stderr, "accel-run: SIGUSR1:%s\n", lua_tostring(L, -1));
  }
  lua_pop(L, 1);
}

static void look_in_wait(void)
{
  if (lua_checkstack(looked_state, 8)) write_trace(looked_state);
}

static void look_from_hook(lua_State *L, lua_Debug *ar)
{
  (void)ar;
  lua_sethook(L, NULL, 0, 0);
  write_trace(L);
}

/* A signal may reach any thread; Lua's is the first. */
static void on_look(int sig)
{
  if (syscall(SYS_gettid) != getpid()) {
    syscall(SYS_tgkill, getpid(), getpid(), sig);
    return;
  }
  if (!ax_interrupted)
    lua_sethook(looked_state, look_from_hook, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

void ax_interp_catch_looks(lua_State *L, bool in_rank)
{
  struct sigaction a = { .sa_handler = on_look, .sa_flags = SA_RESTART };

  looked_state = L;
  is_rank = in_rank;
  ax_shm_on_look(look_in_wait);
  sigaction(SIGUSR1, &a, NULL);
}

/* repl.c: the prompt's loop: runs chunks, and survives Ctrl-C.
 *
 * What the prompt does with a line is Lua: lua/accelerate/prompt.  This file gives it the line
 * editor's functions (editor.c) and runs the chunks that it makes, so that a chunk's stack has
 * nothing of the prompt below it. */
#define _GNU_SOURCE

#include <lauxlib.h>
#include <signal.h>
#include <string.h>

#include "launch/launch.h"
#include "script.h"

/* Pushes the prompt's table, which `start` has been called on; or reports why there is none. */
static bool push_prompt(lua_State *L)
{
  lua_getglobal(L, "require");
  lua_pushstring(L, ax_session_rank() > 0 ? "accelerate.prompt.follower" : "accelerate.prompt");
  if (ax_interp_call(L, 1, 1) != 0) {
    ax_interp_report(L);
    return false;
  }
  lua_getfield(L, -1, "start");
  ax_editor_push(L);
  lua_pushliteral(L, AX_VERSION); /* the core has it too, but takes 2 ms to open */
  lua_setfield(L, -2, "version");
  if (ax_session_rank() >= 0) {
    ax_session_push(L);
    lua_setfield(L, -2, "ranks");
  }
  if (ax_interp_call(L, 1, 0) == 0) return true;
  ax_interp_report(L);
  return false;
}

/* Calls prompt.<name> with the value on the stack top, or with nothing. */
static int call_prompt(lua_State *L, int prompt, const char *name, int nargs, int nresults)
{
  lua_getfield(L, prompt, name);
  lua_insert(L, -nargs - 1);
  return ax_interp_call(L, nargs, nresults);
}

/* A chunk has ended: shows what it gave, or the error on the stack top. */
static void end_chunk(lua_State *L, int prompt, bool failed)
{
  ax_session_end_chunk();
  if (failed) ax_interp_recover(L);
  if (call_prompt(L, prompt, failed ? "failed" : "done", failed, 0) != 0) ax_interp_report(L);
  ax_interp_take_interrupt();
}

void ax_repl_run(lua_State *L, bool failed)
{
  struct sigaction a = { .sa_handler = ax_editor_cancel };
  int base = lua_gettop(L) - failed, prompt = base + 1;
  bool ready;

  if (ax_session_rank() <= 0) ax_editor_open();
  ready = push_prompt(L);
  if (ready) lua_insert(L, prompt);
  /* of several ranks, each says how the script ended */
  if (ready && (failed || ax_session_rank() >= 0)) end_chunk(L, prompt, failed);
  if (ready)
    for (;;) {
      lua_settop(L, prompt);
      fflush(stdout);
      sigaction(SIGINT, &a, NULL);
      if (call_prompt(L, prompt, "next", 0, 1) != 0) {
        ax_interp_report(L);
        continue;
      }
      if (!lua_isfunction(L, -1)) break;
      ax_interp_catch_interrupts(L, AX_INTERRUPTS_ASK);
      if (ax_session_interrupted()) raise(SIGINT);
      end_chunk(L, prompt, ax_interp_call(L, 0, 0) != 0);
    }
  lua_settop(L, base);
  ax_editor_close();
  signal(SIGINT, SIG_DFL);
}

/* errors.c: errors as users see them: with the hints that Lua's messages lack, and with the
 * script's frames first.
 *
 * lua/accelerate/messages/explain.lua makes the hints; the first error loads it.  Where it cannot
 * run (stack or memory exhausted) the error stays as Lua raised it. */
#include "bind/group.h"
#include "script.h"

#include <lauxlib.h>
#include <stdbool.h>
#include <string.h>

#define LOST_STACK "stack overflow"
#define LOST_MEMORY "not enough memory"

/* Pushes explain[name].  Returns false, and pushes nothing, where it is not available. */
static bool push_explainer(lua_State *L, const char *name)
{
  if (!lua_checkstack(L, 20)) return false;
  lua_pushliteral(L, "require"); /* a metatable that the script gave _G could raise */
  lua_rawget(L, LUA_GLOBALSINDEX);
  lua_pushliteral(L, "accelerate.messages.explain");
  if (lua_pcall(L, 1, 1, 0) != 0 || !lua_istable(L, -1)) {
    lua_pop(L, 1);
    return false;
  }
  lua_getfield(L, -1, name);
  lua_remove(L, -2);
  return true;
}

/* Replaces the value on the stack top by explain[name](value), when that is a string. */
static void explain_top(lua_State *L, const char *name)
{
  const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;

  if ((text && (strstr(text, LOST_STACK) || strstr(text, LOST_MEMORY))) || !push_explainer(L, name)) return;
  lua_pushvalue(L, -2);
  if (lua_pcall(L, 1, 1, 0) == 0 && lua_isstring(L, -1)) lua_replace(L, -2);
  else lua_pop(L, 1);
}

/* ---- the message handler */

void ax_errors_add_stack(lua_State *L, int level)
{
  const char *text, *last;

  luaL_traceback(L, L, lua_tostring(L, -1), level);
  text = lua_tostring(L, -1);
  last = strrchr(text, '\n'); /* "[C]: at 0x55...", the frame of main, is of no use to a reader */
  if (last && strncmp(last, "\n\t[C]: at 0x", 12) == 0) {
    lua_pushlstring(L, text, (size_t)(last - text));
    lua_remove(L, -2);
  }
  lua_remove(L, -2);
}

/* Message handler: returns the error as text, with the stack once, however often it is raised
 * again. */
int ax_errors_handler(lua_State *L)
{
  const char *text;

  if (!lua_isstring(L, 1)) {
    if (lua_isnil(L, 1)) return 1; /* error(): a silent failure, as with lua */
    if (!luaL_callmeta(L, 1, "__tostring") || !lua_isstring(L, -1)) {
      lua_settop(L, 1);
      lua_pushvalue(L, 1);
      explain_top(L, "value");
      if (!lua_isstring(L, -1)) lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, 1));
    }
    lua_replace(L, 1);
    lua_settop(L, 1);
  }
  text = lua_tostring(L, 1);
  if (strstr(text, "\nstack traceback:")) return 1;
  if (!strstr(text, LOST_STACK) && !strstr(text, LOST_MEMORY)) ax_lua_keep_stack(L);
  explain_top(L, "raised");
  ax_errors_add_stack(L, 1);
  return 1;
}

/* The stack of an error, for the debugger: what it shows afterwards. */
static int keep_stack(lua_State *L)
{
  lua_getglobal(L, "require");
  lua_pushliteral(L, "accelerate.prompt.frames");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "keep");
  lua_pushvalue(L, 1);
  lua_call(L, 1, 0);
  return 0;
}

void ax_errors_keep(lua_State *L)
{
  lua_pushcfunction(L, keep_stack);
  lua_setfield(L, LUA_REGISTRYINDEX, AX_ON_ERROR);
}

/* Message handler of pcall.  Calls of nil alone are explained: scripts use pcall to try whether a
 * field is there, and an explanation takes 50 times as long as the error. */
int ax_errors_explain_call(lua_State *L)
{
  const char *text = lua_type(L, 1) == LUA_TSTRING ? lua_tostring(L, 1) : NULL;

  lua_settop(L, 1);
  if (text && (text = strstr(text, "attempt to call ")) && strstr(text, "(a nil value)"))
    explain_top(L, "raised");
  return 1;
}

void ax_errors_finish(lua_State *L)
{
  if (lua_type(L, -1) == LUA_TSTRING) explain_top(L, "report");
}

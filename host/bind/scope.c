/* bind/scope.c: contexts: functions that run a function and restore the former state, also when it
 * raises.
 *
 * They are Lua code around pairs of C functions, because a coroutine can yield across Lua's own
 * xpcall but not across a C function. */
#include "bind/bind.h"
#include "bind/group.h"
#include "bind/where.h"

static const char contexts[] =
    "local core, open_scope, close_scope, open_grad, close = ...\n"
    "local error, type, xpcall, traced = error, type, xpcall, core._traced\n"
    "local function restored(context, ok, ...)\n"
    "  close(context)\n"
    "  if not ok then error((...), 0) end\n"
    "  return ...\n"
    "end\n"
    "local function check(name, fn)\n"
    "  if type(fn) == 'function' then return end\n"
    "  local scope = require 'accelerate.utils.scope'\n"
    "  if not scope.callable(fn) then scope.refuse(name, 'argument 1 (fn)', fn) end\n"
    "end\n"
    "function core.no_grad(fn, ...)\n"
    "  check('no_grad', fn)\n"
    "  return restored(open_grad(false), xpcall(fn, traced, ...))\n"
    "end\n"
    "function core.enable_grad(fn, ...)\n"
    "  check('enable_grad', fn)\n"
    "  return restored(open_grad(true), xpcall(fn, traced, ...))\n"
    "end\n"
    "local function left(context, ok, ...)\n"
    "  close_scope(context, ok, ...)\n"
    "  if not ok then error((...), 0) end\n"
    "  return ...\n"
    "end\n"
    "function core.scope(fn, ...)\n"
    "  check('scope', fn)\n"
    "  return left(open_scope(), xpcall(fn, traced, ...))\n"
    "end\n";

/* Whether a function outside the library runs in the innermost xpcall, which is the upvalue.  A
 * function of C right inside it may stand for one of the script's that ended with a tail call. */
static bool script_inside(lua_State *L)
{
  bool in_c = false;
  lua_Debug ar;

  for (int level = 1; lua_getstack(L, level, &ar); level++) {
    lua_getinfo(L, "Slf", &ar);
    const bool end = lua_rawequal(L, -1, lua_upvalueindex(1));
    lua_pop(L, 1);
    if (end) return in_c;
    in_c = ar.currentline <= 0;
    if (!in_c && !ax_lua_in_library(ar.source)) return true;
  }
  return false;
}

void ax_lua_keep_stack(lua_State *L)
{
  if (!lua_checkstack(L, LUA_MINSTACK)) return;
  lua_getfield(L, LUA_REGISTRYINDEX, AX_ON_ERROR);
  if (!lua_isfunction(L, -1)) {
    lua_pop(L, 1);
    return;
  }
  lua_pushvalue(L, 1);
  if (lua_pcall(L, 1, 0, 0) != 0) lua_pop(L, 1);
}

/* core._traced(e) -> e with the stack of the place that raised: the message handler of contexts.
 * The stack is added once, however deep contexts nest, and where it shows lines of the script's:
 * of what the library runs in a context of its own, the message says what there is to know. */
static int traced(lua_State *L)
{
  const char *text = lua_type(L, 1) == LUA_TSTRING ? lua_tostring(L, 1) : NULL;

  lua_settop(L, 1);
  if (!text || strstr(text, "\nstack traceback:")) return 1;
  ax_lua_keep_stack(L);
  if (strstr(text, "(a nil value)")) {
    lua_getglobal(L, "require");
    lua_pushliteral(L, "accelerate.messages.explain");
    lua_call(L, 1, 1);
    lua_getfield(L, -1, "raised");
    lua_pushvalue(L, 1);
    lua_call(L, 1, 1);
    lua_replace(L, 1);
  }
  if (script_inside(L)) luaL_traceback(L, L, lua_tostring(L, 1), 1);
  else lua_settop(L, 1);
  return 1;
}

/* ---- tensor.scope: when it ends, the results of ops made inside are emptied, unless they are
 * returned (alone or in tables) or kept.  Results of constructors stay: they tend to be state. */

void ax_lua_scope_track(lua_State *L)
{
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.scope.list);
  lua_pushvalue(L, -2);
  lua_rawseti(L, -2, ++ax_lua.scope.count);
  lua_pop(L, 1);
}

/* open_grad(on) -> a context in which gradients are recorded, or not */
static int open_grad(lua_State *L)
{
  ax_lua_enter(L);
  const ax_lua_context_inside in = { .grad = lua_toboolean(L, 1) };
  lua_pushinteger(L, ax_lua_context_open(L, in.grad ? "enable_grad" : "no_grad", AX_CONTEXT_GRAD, &in));
  return 1;
}

/* close(context) */
static int close_context(lua_State *L)
{
  ax_lua_enter(L);
  ax_lua_context_close(L, (int)lua_tointeger(L, 1));
  return 0;
}

static void push_weak(lua_State *L, const char *mode)
{
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushstring(L, mode);
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
}

/* -> a context */
static int scope_open(lua_State *L)
{
  ax_lua_context_inside in = { .scope.inside = true };
  ax_lua_enter(L);
  push_weak(L, "v"); /* tensors that the collector frees inside need not be emptied */
  in.scope.list = luaL_ref(L, LUA_REGISTRYINDEX);
  push_weak(L, "k"); /* and need not be kept */
  in.scope.kept = luaL_ref(L, LUA_REGISTRYINDEX);
  lua_pushinteger(L, ax_lua_context_open(L, "scope", AX_CONTEXT_SCOPE, &in));
  return 1;
}

/* What a mark means: the scope does not empty the tensor, or none of those around it does
 * either. */
enum { RETURNED = 1, KEPT };

/* Marks the tensors in the value at idx; walks each table once. */
static void keep_value(lua_State *L, int idx, int kept, int mark)
{
  const bool tensor = ax_lua_to_box(L, idx) != NULL;
  if (!tensor && !lua_istable(L, idx)) return;
  lua_pushvalue(L, idx);
  lua_rawget(L, kept);
  const bool seen = lua_toboolean(L, -1);
  lua_pop(L, 1);
  if (seen) return;
  lua_pushvalue(L, idx);
  lua_pushinteger(L, mark);
  lua_rawset(L, kept);
  if (tensor) return;
  luaL_checkstack(L, 8, "scope: the result is nested too deep");
  lua_pushnil(L);
  while (lua_next(L, idx)) {
    keep_value(L, lua_gettop(L), kept, mark);
    lua_pop(L, 1);
  }
}

/* Tensors that were kept in a scope that has ended are kept in the scope around it. */
static void keep_outside(lua_State *L, int kept)
{
  if (!ax_lua.scope.inside) return;
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.scope.kept);
  lua_pushnil(L);
  while (lua_next(L, kept)) {
    if (lua_tointeger(L, -1) == KEPT) {
      lua_pushvalue(L, -2);
      lua_pushvalue(L, -2);
      lua_rawset(L, -5);
    }
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* (context, ok, results...) */
static int scope_close(lua_State *L)
{
  const int last = lua_gettop(L);
  int list, kept;

  ax_lua_enter(L);
  const int made = ax_lua.scope.count;
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.scope.list);
  list = lua_gettop(L);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.scope.kept);
  kept = lua_gettop(L);
  /* the outer scope is the current one again before anything below can raise */
  ax_lua_context_close(L, (int)lua_tointeger(L, 1));
  luaL_checkstack(L, 16, "scope");
  if (lua_toboolean(L, 2))
    for (int i = 3; i <= last; i++) keep_value(L, i, kept, RETURNED);
  keep_outside(L, kept);
  for (int i = 1; i <= made; i++) {
    ax_tensor **box;
    lua_rawgeti(L, list, i);
    if ((box = ax_lua_to_box(L, -1))) {
      lua_pushvalue(L, -1);
      lua_rawget(L, kept);
      const bool keep = lua_toboolean(L, -1);
      lua_pop(L, 1);
      if (!keep) ax_tensor_release(ax_lua_empty_box(box));
      else if (ax_lua.scope.inside) ax_lua_scope_track(L); /* the outer scope decides about it */
    }
    lua_pop(L, 1);
  }
  return 0;
}

/* Marks the tensor at idx: no open scope empties it. */
void ax_lua_scope_keep(lua_State *L, int idx)
{
  if (!ax_lua.scope.inside) return;
  lua_pushvalue(L, idx);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.scope.kept);
  keep_value(L, lua_gettop(L) - 1, lua_gettop(L), KEPT);
  lua_pop(L, 2);
}

/* core.keep(...) -> its arguments; no open scope empties their tensors */
static int keep(lua_State *L)
{
  const int n = lua_gettop(L);
  ax_lua_enter(L);
  if (!ax_lua.scope.inside) return n;
  luaL_checkstack(L, 8, "keep");
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.scope.kept);
  for (int i = 1; i <= n; i++) keep_value(L, i, n + 1, KEPT);
  lua_settop(L, n);
  return n;
}

void ax_lua_open_scope(lua_State *L)
{
  char name[4200];

  lua_pushcfunction(L, keep);
  lua_setfield(L, -2, "keep");
  lua_getglobal(L, "xpcall");
  lua_pushcclosure(L, traced, 1);
  lua_setfield(L, -2, "_traced");
  if (luaL_loadbuffer(L, contexts, sizeof contexts - 1, ax_lua_core_chunk(name, sizeof name)) != 0)
    lua_error(L);
  lua_pushvalue(L, -2);
  lua_pushcfunction(L, scope_open);
  lua_pushcfunction(L, scope_close);
  lua_pushcfunction(L, open_grad);
  lua_pushcfunction(L, close_context);
  lua_call(L, 5, 0);
}

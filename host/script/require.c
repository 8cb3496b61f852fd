/* require.c: `require`, which tries a module again whose loading has failed.  LuaJIT's own refuses
 * it for good ("loop or previous error"), also where memory ran out for a moment. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>

#include "script.h"

static char loading; /* its address is what package.loaded has while a module is being loaded */

/* Whether a call of `require`, the function at stack position `self`, is under way in thread T for
 * the module. */
static bool under_way(lua_State *L, lua_State *T, int self, const char *name)
{
  lua_Debug ar;

  if (lua_status(T) > LUA_YIELD) return false; /* it ended with an error */
  /* level 0 of the running thread is the call that asks */
  for (int level = T == L; lua_getstack(T, level, &ar); level++) {
    bool same;
    if (!lua_checkstack(T, 2) || !lua_getinfo(T, "f", &ar)) return false;
    same = lua_topointer(T, -1) == lua_topointer(L, self);
    lua_pop(T, 1);
    if (!same || !lua_getlocal(T, &ar, 1)) continue;
    same = lua_type(T, -1) == LUA_TSTRING && strcmp(lua_tostring(T, -1), name) == 0;
    lua_pop(T, 1);
    if (same) return true;
  }
  return false;
}

/* Raises when the module is being loaded further down: a loop.  `threads`: stack position of the
 * table that says which thread loads what. */
static void refuse_loop(lua_State *L, const char *name, int self, int threads)
{
  lua_State *T;
  bool loop;

  lua_getfield(L, threads, name);
  T = lua_tothread(L, -1);
  loop = T && under_way(L, T, self, name);
  lua_pop(L, 1);
  if (loop) luaL_error(L, "loop of requires: module '%s' is required again while it is being loaded", name);
}

/* Raises for a module that no loader has found.  They take a file that cannot be opened for one
 * that is not there. */
static void not_found(lua_State *L, const char *name, const char *tried)
{
  const int fd = open("/", O_RDONLY | O_CLOEXEC);

  if (fd < 0 && (errno == EMFILE || errno == ENFILE))
    luaL_error(L, "module '%s' cannot be read: %s", name, strerror(errno));
  if (fd >= 0) close(fd);
  luaL_error(L, "module '%s' not found:%s", name, tried);
}

/* Leaves the module's loader on the stack. */
static void find_loader(lua_State *L, const char *name)
{
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "loaders");
  if (!lua_istable(L, -1)) luaL_error(L, "'package.loaders' must be a table");
  lua_pushliteral(L, ""); /* what the loaders say */
  for (int i = 1;; i++) {
    lua_rawgeti(L, -2, i);
    if (lua_isnil(L, -1)) not_found(L, name, lua_tostring(L, -2));
    lua_pushstring(L, name);
    lua_call(L, 1, 1);
    if (lua_isfunction(L, -1)) return;
    if (lua_isstring(L, -1)) lua_concat(L, 2);
    else lua_pop(L, 1);
  }
}

static bool is_loading(lua_State *L, int at) { return lua_touserdata(L, at) == &loading; }

/* Upvalues: package.loaded, and the threads that load modules, by name. */
static int require(lua_State *L)
{
  const char *name = luaL_checkstring(L, 1);
  const int loaded = lua_upvalueindex(1), threads = 2, self = 3;
  lua_Debug ar;

  lua_settop(L, 1);
  lua_getfield(L, loaded, name);
  if (lua_toboolean(L, -1) && !is_loading(L, -1)) return 1;
  lua_settop(L, 1);
  lua_pushvalue(L, lua_upvalueindex(2));
  if (!lua_getstack(L, 0, &ar) || !lua_getinfo(L, "f", &ar)) lua_pushnil(L); /* this function */
  lua_getfield(L, loaded, name);
  if (is_loading(L, -1)) refuse_loop(L, name, self, threads);
  find_loader(L, name);
  lua_pushthread(L);
  lua_setfield(L, threads, name);
  lua_pushlightuserdata(L, &loading);
  lua_setfield(L, loaded, name);
  lua_pushstring(L, name);
  lua_call(L, 1, 1);
  lua_pushnil(L);
  lua_setfield(L, threads, name);
  if (!lua_isnil(L, -1)) lua_setfield(L, loaded, name);
  lua_getfield(L, loaded, name);
  if (is_loading(L, -1)) {
    lua_pushboolean(L, true);
    lua_pushvalue(L, -1);
    lua_setfield(L, loaded, name);
  }
  return 1;
}

void ax_require_open(lua_State *L)
{
  lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
  lua_newtable(L);
  lua_pushcclosure(L, require, 2);
  lua_setglobal(L, "require");
}

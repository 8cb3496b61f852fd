/* standard.c: what the host changes in Lua's own library: math's seed, os.setlocale, os.tmpname,
 * pcall, print, tostring and unpack. */
#include "bind/where.h"
#include "dist.h"
#include "interp.h"
#include "script.h"

#include <lauxlib.h>

#include <errno.h>
#include <limits.h>
#include <locale.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Unseeded ranks draw different numbers; rank 0 draws those of a run of one rank.  Scripts seed
 * with numbers from 0 on. */
static void seed_math_random(lua_State *L)
{
  const int rank = ax_dist_world()->rank;

  if (rank == 0) return;
  lua_getglobal(L, "math");
  lua_getfield(L, -1, "randomseed");
  lua_pushinteger(L, -rank);
  lua_call(L, 1, 0);
  lua_pop(L, 1);
}

/* os.tmpname() makes its file in TMPDIR, where other programs make theirs; Lua's own knows /tmp
 * alone. */
static int temporary_name(lua_State *L)
{
  const char *folder = getenv("TMPDIR");
  char *path;
  int file;

  if (!folder || !*folder) folder = "/tmp";
  lua_pushfstring(L, "%s/lua_XXXXXX", folder);
  path = lua_newuserdata(L, lua_objlen(L, -1) + 1);
  strcpy(path, lua_tostring(L, -2));
  if ((file = mkstemp(path)) < 0)
    return luaL_error(L, "os.tmpname: no file can be made in '%s': %s", folder, strerror(errno));
  close(file);
  lua_pushstring(L, path);
  return 1;
}

/* os.setlocale keeps the numbers of "C": in another language C's own functions would read the 1.5
 * of a file as 1, and write 1,5.  The category "numeric" takes no other locale, so that is nil. */
static int set_locale(lua_State *L)
{
  static const char *const names[] = { "all", "collate", "ctype", "monetary", "numeric", "time", NULL };
  static const int categories[] = { LC_ALL, LC_COLLATE, LC_CTYPE, LC_MONETARY, LC_NUMERIC, LC_TIME };
  const char *locale = luaL_optstring(L, 1, NULL), *set;
  const int category = categories[luaL_checkoption(L, 2, "all", names)];

  set = setlocale(category, locale);
  if (set && locale && strcmp(setlocale(LC_NUMERIC, NULL), "C") != 0) {
    setlocale(LC_NUMERIC, "C");
    set = category == LC_NUMERIC ? NULL : setlocale(category, NULL);
  }
  lua_pushstring(L, set);
  return 1;
}

static void replace_in_os(lua_State *L)
{
  lua_getglobal(L, "os");
  lua_pushcfunction(L, temporary_name);
  lua_setfield(L, -2, "tmpname");
  lua_pushcfunction(L, set_locale);
  lua_setfield(L, -2, "setlocale");
  lua_pop(L, 1);
}

/* An error is explained where it is raised, because only there the stack shows what was called.  A
 * plain pcall has no message handler; this one has, and is xpcall otherwise.  It is a Lua function
 * because the compiler follows those. */
static void explain_in_pcall(lua_State *L)
{
  static const char text[] = "local xpcall, explain = xpcall, ...\n"
                             "function pcall(f, ...) return xpcall(f, explain, ...) end\n";

  if (luaL_loadbuffer(L, text, sizeof text - 1, "=pcall") != 0) lua_error(L);
  lua_pushcfunction(L, ax_errors_explain_call);
  lua_call(L, 1, 0);
}

/* Lua's own tostring ends in a tail call of __tostring, which needs no stack: one that returns
 * tostring(self) would never end.  This one is on the stack while __tostring runs, so that such a
 * circle is an error.  It is a Lua function because the compiler follows those. */
static void bound_tostring(lua_State *L)
{
  static const char text[] = "local tostring, select, error = tostring, select, error\n"
                             "function _G.tostring(...)\n"
                             "  if select('#', ...) == 0 then\n"
                             "    error(\"bad argument #1 to 'tostring' (value expected)\", 2)\n"
                             "  end\n"
                             "  local shown = tostring(...)\n"
                             "  return shown\n"
                             "end\n";
  char name[4200];

  if (luaL_loadbuffer(L, text, sizeof text - 1, ax_lua_core_chunk(name, sizeof name)) != 0) lua_error(L);
  lua_call(L, 0, 0);
}

/* Replaces the plain table at idx by its text.  Upvalue 2 is require. */
static void show_table(lua_State *L, int idx)
{
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_pushliteral(L, "accelerate.utils.show");
  if (lua_pcall(L, 1, 1, 0) == 0) {
    lua_getfield(L, -1, "pformat");
    lua_pushvalue(L, idx);
    lua_call(L, 1, 1);
    lua_replace(L, idx);
  }
  lua_pop(L, 1);
}

/* print(x.shape) prints { 2, 3 }: a plain table is shown, as the prompt shows it, in place of its
 * address.  tostring gives the address; print is Lua's own otherwise, upvalue 1. */
static int print(lua_State *L)
{
  const int n = lua_gettop(L);

  luaL_checkstack(L, LUA_MINSTACK, "print");
  for (int i = 1; i <= n; i++) {
    if (!lua_istable(L, i)) continue;
    if (lua_getmetatable(L, i)) lua_pop(L, 1);
    else show_table(L, i);
  }
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, n, 0);
  return 0;
}

static void show_in_print(lua_State *L)
{
  lua_getglobal(L, "print");
  lua_getglobal(L, "require");
  lua_pushcclosure(L, print, 2);
  lua_setglobal(L, "print");
}

/* Whether the value is read by number through its metatable. */
static bool is_indexed(lua_State *L, int idx)
{
  bool indexed;

  if (lua_type(L, idx) == LUA_TSTRING || !lua_getmetatable(L, idx)) return false;
  lua_pop(L, 1);
  indexed = luaL_getmetafield(L, idx, "__index") != 0;
  if (indexed) lua_pop(L, 1);
  return indexed;
}

/* The number of elements that unpack takes without being given one: Lua's own looks at no
 * metamethod. */
static lua_Integer length_of(lua_State *L)
{
  lua_Integer n;

  if (!luaL_callmeta(L, 1, "__len")) return (lua_Integer)lua_objlen(L, 1);
  n = lua_tointeger(L, -1);
  lua_pop(L, 1);
  return n;
}

/* unpack(list, i, j), also of an object that is read by number: a tensor, a list of modules. */
static int unpack(lua_State *L)
{
  const bool object = is_indexed(L, 1);
  lua_Integer i, j;

  if (!object) luaL_checktype(L, 1, LUA_TTABLE);
  i = luaL_optinteger(L, 2, 1);
  if (!lua_isnoneornil(L, 3)) j = luaL_checkinteger(L, 3);
  else j = object ? length_of(L) : (lua_Integer)lua_objlen(L, 1);
  if (i > j) return 0;
  if (j - i >= INT_MAX || !lua_checkstack(L, (int)(j - i + 1)))
    return luaL_error(L, "too many results to unpack");
  lua_settop(L, 1);
  for (lua_Integer k = i; k <= j; k++) {
    lua_pushinteger(L, k);
    if (object) lua_gettable(L, 1);
    else lua_rawget(L, 1);
  }
  return (int)(j - i + 1);
}

static void replace_unpack(lua_State *L)
{
  lua_pushcfunction(L, unpack);
  lua_pushvalue(L, -1);
  lua_setglobal(L, "unpack");
  lua_getglobal(L, "table");
  lua_insert(L, -2);
  lua_setfield(L, -2, "unpack");
  lua_pop(L, 1);
}

void ax_standard_open(lua_State *L)
{
  seed_math_random(L);
  replace_in_os(L);
  explain_in_pcall(L);
  bound_tostring(L);
  show_in_print(L);
  replace_unpack(L);
}

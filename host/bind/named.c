/* bind/named.c: errors carry the name of the function that the script called.
 *
 * Many functions are made of others: forms of rows, the functions of lua/accelerate/tensor and of
 * nn.functional.  An op inside one knows its own name alone when it refuses an operand.  Functions
 * that scripts call are therefore C closures that know theirs: rows, functions with a signature
 * (composed.c) and those of core._named.  Of these, between an error and the script's own code, the
 * outermost one is what the script called.  Nothing but an error pays for the search. */
#include "bind/bind.h"
#include "bind/where.h"

#include <string.h>

static const char mark; /* its address: the closure is a function that scripts call */
enum { NAME = 2, MARK = 3 };

void ax_lua_push_name(lua_State *L, const char *name)
{
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_public);
  lua_pushboolean(L, 1);
  lua_setfield(L, -2, name);
  lua_pop(L, 1);
  lua_pushstring(L, name);
  lua_pushlightuserdata(L, (void *)&mark);
}

/* The name of the C function at ar, or NULL; borrowed from its closure. */
static const char *name_of(lua_State *L, lua_Debug *ar)
{
  const char *name = NULL;
  lua_getinfo(L, "f", ar);
  if (lua_getupvalue(L, -1, MARK)) {
    const bool marked = lua_touserdata(L, -1) == &mark;
    lua_pop(L, 1);
    if (marked && lua_getupvalue(L, -1, NAME)) {
      name = lua_tostring(L, -1);
      lua_pop(L, 1);
    }
  }
  lua_pop(L, 1);
  return name && name[0] != '_' ? name : NULL; /* hidden rows have no name that a script knows */
}

const char *ax_lua_called(lua_State *L, const char *fn)
{
  lua_Debug ar;
  for (int level = 0; lua_getstack(L, level, &ar); level++) {
    const char *name;
    lua_getinfo(L, "S", &ar);
    if (ar.what[0] != 'C' && !ax_lua_in_library(ar.source)) break;
    if (ar.what[0] == 'C' && (name = name_of(L, &ar))) fn = name;
  }
  return fn;
}

/* core._called(name) -> the name of the function that the script called, where `name` is one of
 * these functions; or nil. */
static int called(lua_State *L)
{
  lua_settop(L, 1);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_public);
  lua_pushvalue(L, 1);
  lua_rawget(L, -2);
  if (!lua_toboolean(L, -1)) return 0;
  lua_pushstring(L, ax_lua_called(L, luaL_checkstring(L, 1)));
  return 1;
}

/* Upvalues: the Lua function, and its name. */
static int named_call(lua_State *L)
{
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  return lua_gettop(L);
}

/* core._named(name, fn) -> a function that calls fn, and by whose name errors inside are called. */
static int make_named(lua_State *L)
{
  const char *name = luaL_checkstring(L, 1);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_settop(L, 2);
  ax_lua_push_name(L, name);
  lua_pushcclosure(L, named_call, 3);
  return 1;
}

void ax_lua_open_named(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "_called", called },
    { "_named", make_named },
    { NULL, NULL },
  };
  ax_lua_add_functions(L, functions);
}

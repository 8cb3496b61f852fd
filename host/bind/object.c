/* object.c: userdata of the binding other than tensors.
 *
 * An object is a full userdata that holds a tag and a C struct; its class makes, checks and clears
 * it.  Through the debug library scripts can reach every function of a metatable and swap
 * metatables.  Methods and finalisers therefore recognise an object by its tag, never by its
 * metatable, and a cleared object is all zero. */
#include "bind/bind.h"

typedef struct tagged {
  const ax_lua_class *class;
} tagged; /* the struct follows */

void *ax_lua_push_object(lua_State *L, const ax_lua_class *class)
{
  tagged *object = lua_newuserdata(L, sizeof *object + class->size);
  memset(object, 0, sizeof *object + class->size);
  object->class = class;
  lua_pushlightuserdata(L, (void *)(uintptr_t) class);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_setmetatable(L, -2);
  return object + 1;
}

void *ax_lua_to_object(lua_State *L, int idx, const ax_lua_class *class)
{
  tagged *object = lua_touserdata(L, idx);
  if (!object || lua_objlen(L, idx) != sizeof *object + class->size) return NULL; /* light ones: 0 */
  return object->class == class ? object + 1 : NULL;
}

void *ax_lua_check_object(lua_State *L, int idx, const ax_lua_class *class, const char *fn)
{
  void *object = ax_lua_to_object(L, idx, class);
  if (!object) ax_lua_arg_error(L, fn, idx < 0 ? 0 : idx, idx == 1 ? "self" : NULL, class->name, idx);
  return object;
}

void *ax_lua_check_pointer(lua_State *L, int idx, const ax_lua_class *class, const char *fn)
{
  void *p = *(void **)ax_lua_check_object(L, idx, class, fn);
  if (!p) ax_lua_error(L, fn, "expected %s, got one that was closed", class->name);
  return p;
}

/* Scripts can call it too, with any value and more than once. */
static int collect(lua_State *L)
{
  const ax_lua_class *class = lua_touserdata(L, lua_upvalueindex(1));
  void *object = ax_lua_to_object(L, 1, class);
  if (object) class->clear(L, object);
  return 0;
}

void ax_lua_open_class(lua_State *L, const ax_lua_class *class)
{
  lua_pushlightuserdata(L, (void *)(uintptr_t) class);
  lua_createtable(L, 0, 4);
  lua_pushlightuserdata(L, (void *)(uintptr_t) class);
  lua_pushcclosure(L, collect, 1);
  lua_setfield(L, -2, "__gc");
  lua_pushstring(L, class->name);
  lua_setfield(L, -2, "__metatable");
  lua_newtable(L);
  for (const luaL_Reg *m = class->methods; m && m->name; m++) {
    lua_pushcfunction(L, m->func);
    lua_setfield(L, strncmp(m->name, "__", 2) == 0 ? -3 : -2, m->name);
  }
  lua_setfield(L, -2, "__index");
  lua_rawset(L, LUA_REGISTRYINDEX);
}

/* box.c: the userdata that hold tensors, and how C finds the Lua object of a tensor again. */
#include "bind/bind.h"

ax_tensor **ax_lua_push_box(lua_State *L)
{
  ax_lua_box *box = lua_newuserdata(L, sizeof *box);
  *box = (ax_lua_box){ NULL, &ax_lua };
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_tensor_mt);
  lua_setmetatable(L, -2);
  return &box->t;
}

ax_tensor **ax_lua_push_result(lua_State *L)
{
  ax_tensor **box = ax_lua_push_box(L);
  if (__builtin_expect(ax_lua.scope.inside, 0)) ax_lua_scope_track(L);
  if (__builtin_expect(ax_lua.n_anchors > 0, 0)) ax_lua_track(L, -1);
  return box;
}

ax_tensor *ax_lua_empty_box(ax_tensor **box)
{
  ax_tensor *t = *box;
  *box = NULL;
  if (t && t->handle == box) t->handle = NULL;
  return t;
}

void ax_lua_remember_handle(lua_State *L, int idx)
{
  ax_tensor **box = ax_lua_to_box(L, idx);
  if ((*box)->handle) return;
  lua_pushvalue(L, idx);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_handles);
  lua_pushlightuserdata(L, box);
  lua_pushvalue(L, -3);
  lua_rawset(L, -3);
  lua_pop(L, 2);
  (*box)->handle = box;
}

/* Pushes the value that `table` (a registry reference) holds under the handle of t, if the value is
 * t's box. */
static bool find_handle(lua_State *L, int table, const ax_tensor *t)
{
  ax_tensor **box;
  lua_rawgeti(L, LUA_REGISTRYINDEX, table);
  lua_pushlightuserdata(L, t->handle);
  lua_rawget(L, -2);
  lua_remove(L, -2);
  if ((box = ax_lua_to_box(L, -1)) && *box == t) return true;
  lua_pop(L, 1);
  return false;
}

/* Gives the userdata on the stack top the table of hooks that `former` had.  Between a collection
 * and the finaliser, weak tables no longer hold the former object; they still hold its table of
 * hooks, which lives until the finaliser has run. */
static void move_environment(lua_State *L, const void *former, const void *box)
{
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_environments);
  lua_pushlightuserdata(L, (void *)former);
  lua_rawget(L, -2);
  if (lua_istable(L, -1)) {
    lua_pushvalue(L, -1);
    lua_setfenv(L, -4);
    lua_pushlightuserdata(L, (void *)box);
    lua_insert(L, -2);
    lua_rawset(L, -3);
    lua_pop(L, 1);
  } else lua_pop(L, 2);
}

void ax_lua_push_handle(lua_State *L, ax_tensor *t)
{
  ax_tensor **box;
  const void *former = t->handle;
  if (former) {
    if (find_handle(L, ax_lua.ref_handles, t) || find_handle(L, ax_lua.ref_orphans, t)) return;
    t->handle = NULL; /* the object is garbage, though not yet finalised */
  }
  box = ax_lua_push_box(L);
  *box = ax_tensor_retain(t);
  ax_lua_remember_handle(L, lua_gettop(L));
  if (former && t->hooks) move_environment(L, former, box);
}

ax_tensor *ax_lua_push_on_cpu(lua_State *L, int idx, const char *fn)
{
  ax_tensor *t = ax_lua_check_tensor(L, idx, fn, NULL), **box;
  if (t->device.kind == AX_CPU) {
    if (ax_tensor_ready(t, AX_READ) != AX_OK) ax_lua_raise(L, fn);
    lua_pushvalue(L, idx);
    return t;
  }
  box = ax_lua_push_box(L);
  if (ax_tensor_new((ax_dtype)t->dtype, t->ndim, t->shape, box) != AX_OK || ax_copy(*box, t) != AX_OK)
    ax_lua_raise(L, fn);
  return *box;
}

/* bind.c: opens accelerate.core, and holds what its parts share: boxes, the table of handles, Lua values that C holds. */
#include "bind/bind.h"
#include "host.h"

#include <stdlib.h>

_Thread_local ax_bind_state ax_bind;

/* ---- boxes */

ax_tensor **ax_push_box(lua_State *L)
{
  ax_box *box = lua_newuserdata(L, sizeof *box);
  *box = (ax_box){ NULL, &ax_bind };
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_bind.ref_tensor_mt);
  lua_setmetatable(L, -2);
  return &box->t;
}

ax_tensor **ax_push_result(lua_State *L)
{
  ax_tensor **box = ax_push_box(L);
  if (__builtin_expect(ax_bind.in_scope, 0)) ax_scope_track(L);
  return box;
}

ax_tensor *ax_empty_box(ax_tensor **box)
{
  ax_tensor *t = *box;
  *box = NULL;
  if (t && t->handle == box) t->handle = NULL;
  return t;
}

void ax_remember_handle(lua_State *L, int idx)
{
  ax_tensor **box = ax_to_box(L, idx);
  if ((*box)->handle) return;
  lua_pushvalue(L, idx);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_bind.ref_handles);
  lua_pushlightuserdata(L, box);
  lua_pushvalue(L, -3);
  lua_rawset(L, -3);
  lua_pop(L, 2);
  (*box)->handle = box;
}

/* Pushes what `table` (a registry reference) holds under the handle of t, if that is t's box. */
static bool find_handle(lua_State *L, int table, const ax_tensor *t)
{
  ax_tensor **box;
  lua_rawgeti(L, LUA_REGISTRYINDEX, table);
  lua_pushlightuserdata(L, t->handle);
  lua_rawget(L, -2);
  lua_remove(L, -2);
  if ((box = ax_to_box(L, -1)) && *box == t) return true;
  lua_pop(L, 1);
  return false;
}

/* Gives the userdata on the stack top the table of hooks that lay in `former`.  Between a collection and the finaliser weak tables no
 * longer hold the former object, but still the table, which lives until then. */
static void move_environment(lua_State *L, const void *former, const void *box)
{
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_bind.ref_environments);
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

void ax_push_handle(lua_State *L, ax_tensor *t)
{
  ax_tensor **box;
  const void *former = t->handle;
  if (former) {
    if (find_handle(L, ax_bind.ref_handles, t) || find_handle(L, ax_bind.ref_orphans, t)) return;
    t->handle = NULL; /* the object is garbage, though not yet finalised */
  }
  box = ax_push_box(L);
  *box = ax_tensor_retain(t);
  ax_remember_handle(L, lua_gettop(L));
  if (former && t->hooks) move_environment(L, former, box);
}

ax_tensor *ax_push_on_cpu(lua_State *L, int idx, const char *fn)
{
  ax_tensor *t = ax_check_tensor(L, idx, fn, NULL), **box;
  if (t->device.kind == AX_CPU) {
    lua_pushvalue(L, idx);
    return t;
  }
  box = ax_push_box(L);
  if (ax_tensor_new((ax_dtype)t->dtype, t->ndim, t->shape, box) != AX_OK || ax_copy(*box, t) != AX_OK) ax_raise(L, fn);
  return *box;
}

/* ---- Lua values that C lets go of */

void ax_bind_drop_dead(lua_State *L)
{
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_bind.ref_anchors);
  while (ax_bind.dead) {
    ax_dead_ref *d = ax_bind.dead;
    ax_bind.dead = d->next;
    luaL_unref(L, -1, d->ref);
    free(d);
  }
  lua_pop(L, 1);
}

void ax_drop_anchor(ax_dead_ref *d)
{
  if (!ax_bind.open) {
    free(d);
    return;
  }
  d->next = ax_bind.dead;
  ax_bind.dead = d;
}

/* ---- calling Lua from under the core, where nothing may jump */

ax_status ax_protect(lua_CFunction fn, void *p)
{
  lua_State *L = ax_bind.L;
  const char *text;

  if (!ax_bind.open || !lua_checkstack(L, 8)) return ax_fail(AX_ENOMEM, "Lua's stack is full");
  if (lua_cpcall(L, fn, p) == 0) {
    ax_bind.L = L;
    return AX_OK;
  }
  ax_bind.L = L;
  text = lua_tostring(L, -1);
  ax_fail(AX_EGRAD, "%s", text ? text : "a Lua function raised a value that is no string");
  lua_rawseti(L, LUA_REGISTRYINDEX, ax_bind.ref_error);
  ax_bind.raised = true;
  return AX_EGRAD;
}

/* ---- registration */

void ax_add_functions(lua_State *L, const luaL_Reg *list)
{
  for (; list->name; list++) {
    lua_pushcfunction(L, list->func);
    lua_setfield(L, -2, list->name);
  }
}

void ax_add_methods(lua_State *L, const luaL_Reg *list)
{
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_bind.ref_methods);
  ax_add_functions(L, list);
  lua_pop(L, 1);
}

static int weak_table(lua_State *L)
{
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "v");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  return luaL_ref(L, LUA_REGISTRYINDEX);
}

static int new_table(lua_State *L)
{
  lua_newtable(L);
  return luaL_ref(L, LUA_REGISTRYINDEX);
}

/* The state goes away: its finalisers have yet to run, but no new call comes.  The registry is still there. */
static void state_closed(lua_State *L, void *unused)
{
  ax_memory_set_hook(NULL);
  ax_bind.open = false;
  while (ax_bind.dead) {
    ax_dead_ref *d = ax_bind.dead;
    ax_bind.dead = d->next;
    free(d);
  }
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_bind.ref_orphans); /* their finalisers ran long ago */
  lua_pushnil(L);
  while (lua_next(L, -2)) {
    ax_tensor_release(ax_empty_box(ax_to_box(L, -1)));
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

static const ax_class state_class = { "the state of accelerate.core", 1, state_closed, NULL };
static const char registry_key = 0;

static int open_core(lua_State *L)
{
  ax_bind_state *b = &ax_bind;

  if (b->open)
    return luaL_error(L, "accelerate.core: another Lua state of this thread has it open; one state a thread");
  memset(b, 0, sizeof *b);
  b->L = L;
  b->open = true;
  b->mark = INT64_MAX;
  b->ref_handles = weak_table(L);
  b->ref_environments = weak_table(L);
  b->ref_orphans = new_table(L);
  b->ref_anchors = new_table(L);
  b->ref_methods = new_table(L);
  b->ref_scope = new_table(L);
  b->ref_kept = new_table(L);
  lua_pushboolean(L, 0);
  b->ref_error = luaL_ref(L, LUA_REGISTRYINDEX);

  lua_newtable(L); /* core */
  ax_open_tensor(L);
  ax_open_values(L);
  ax_open_create(L);
  ax_open_ops(L);
  ax_open_parts(L);
  ax_open_grad(L);
  ax_open_function(L);
  ax_open_scope(L);
  ax_open_memory(L);
  ax_open_device(L);
  ax_open_optim(L);
  ax_open_random(L);
  ax_open_flat(L);
  ax_open_autocast(L);
  ax_open_worker(L);
  ax_open_gather(L);
  ax_open_data(L);
  ax_open_profile(L);
  ax_open_capture(L);
  if (ax_open_dist) ax_open_dist(L);
  if (ax_open_io) ax_open_io(L);

  lua_pushliteral(L, AX_VERSION);
  lua_setfield(L, -2, "version");

  /* closing the state finalises this first or last, but no Lua code runs after any of it */
  ax_open_class(L, &state_class);
  ax_push_object(L, &state_class);
  luaL_ref(L, LUA_REGISTRYINDEX);
  return 1;
}

int luaopen_accelerate_core(lua_State *L);
AX_API int luaopen_accelerate_core(lua_State *L)
{
  lua_pushlightuserdata(L, (void *)&registry_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (!lua_isnil(L, -1)) return 1; /* package.loaded was cleared: there is one core in a state */
  lua_pop(L, 1);
  open_core(L);
  lua_pushlightuserdata(L, (void *)&registry_key);
  lua_pushvalue(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
  return 1;
}

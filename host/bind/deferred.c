/* bind/deferred.c: tensors whose values a Lua object makes at their first use, for
 * lua/accelerate/deferred. */
#include "bind/bind.h"
#include "deferred.h"

#include <stdlib.h>

typedef struct make_call {
  const ax_lua_dead_ref *recipe;
  ax_tensor *into;
} make_call;

/* recipe:make(into) */
static int run_make(lua_State *L)
{
  const make_call *c = lua_touserdata(L, 1);

  ax_lua_push_anchor(L, c->recipe->ref);
  lua_getfield(L, -1, "make");
  lua_insert(L, -2);
  *ax_lua_push_box(L) = ax_tensor_retain(c->into);
  lua_call(L, 2, 0);
  return 0;
}

static ax_status make(void *owner, ax_tensor *into)
{
  return ax_lua_protect(run_make, &(make_call){ owner, into });
}

static const ax_maker maker = { .make = make, .gone = ax_lua_drop_anchor };

/* Anchors the table at idx for the core. */
static ax_lua_dead_ref *new_owner(lua_State *L, int idx, const char *fn)
{
  ax_lua_dead_ref *owner;

  luaL_checktype(L, idx, LUA_TTABLE);
  lua_pushvalue(L, idx);
  const int ref = ax_lua_anchor(L);
  if ((owner = malloc(sizeof *owner))) owner->ref = ref;
  else {
    ax_lua_unanchor(L, ref);
    ax_lua_error(L, fn, "out of memory");
  }
  return owner;
}

/* core._defer(t, recipe) -> whether t has given up its memory: its elements are what
 * recipe:make(into) writes into a tensor of one dim when they are first used.  False: it is not all
 * of its memory, or others have it. */
static int defer(lua_State *L)
{
  ax_lua_dead_ref *owner;
  ax_tensor *t;

  ax_lua_enter(L);
  lua_settop(L, 2);
  t = ax_lua_check_tensor(L, 1, "_defer", "t");
  owner = new_owner(L, 2, "_defer");
  const ax_status st = ax_defer(t, &maker, owner);
  if (st != AX_OK) ax_lua_drop_anchor(owner);
  if (st == AX_ENOMEM) return ax_lua_raise(L, "_defer");
  lua_pushboolean(L, st == AX_OK);
  return 1;
}

/* core._deferred(t) -> the recipe of t, or of the tensor that it is a view of; nil: its elements
 * are there */
static int deferred(lua_State *L)
{
  const ax_lua_dead_ref *owner;

  ax_lua_enter(L);
  owner = ax_deferred(ax_lua_check_tensor(L, 1, "_deferred", "t"), &maker);
  if (!owner) return 0;
  ax_lua_push_anchor(L, owner->ref);
  return 1;
}

bool ax_lua_note_edit(lua_State *L, const char *name, int n)
{
  const ax_tensor *t = *ax_lua_to_box(L, 1);
  const ax_lua_dead_ref *owner = ax_deferred(t, &maker);
  bool noted = false;

  if (!owner || (ax_grad_enabled() && t->requires_grad)) return false;
  luaL_checkstack(L, n + 4, name);
  ax_lua_push_anchor(L, owner->ref);
  lua_getfield(L, -1, "edit");
  if (lua_isfunction(L, -1)) {
    lua_insert(L, -2);
    lua_pushstring(L, name);
    for (int i = 1; i <= n; i++) lua_pushvalue(L, i);
    lua_call(L, n + 2, 1);
    noted = lua_toboolean(L, -1);
    lua_pop(L, 1);
  } else lua_pop(L, 2);
  return noted;
}

/* core._deferred_new(shape, dtype, device, recipe) -> a tensor that never had memory; see _defer */
static int deferred_new(lua_State *L)
{
  int64_t shape[AX_MAX_DIMS];
  ax_lua_dead_ref *owner;

  ax_lua_enter(L);
  lua_settop(L, 4);
  const int ndim = ax_lua_check_sizes(L, 1, 1, "_deferred_new", shape);
  const ax_dtype dtype = ax_lua_check_dtype(L, 2, "_deferred_new", "dtype");
  const ax_device device = ax_lua_check_device(L, 3, "_deferred_new", "device");
  ax_tensor **box = ax_lua_push_result(L);
  owner = new_owner(L, 4, "_deferred_new");
  if (ax_deferred_new(device, dtype, ndim, shape, &maker, owner, box) == AX_OK) return 1;
  ax_lua_drop_anchor(owner);
  return ax_lua_raise(L, "_deferred_new");
}

void ax_lua_open_deferred(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "_defer", defer }, { "_deferred", deferred }, { "_deferred_new", deferred_new }, { NULL, NULL }
  };
  ax_lua_add_functions(L, functions);
}

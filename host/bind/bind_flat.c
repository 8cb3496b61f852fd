/* bind_flat.c: what lua/accelerate/parallel.lua asks for all parameters of a flat buffer at every
 * step, in one call each.
 *
 * A flat gradient buffer holds the slots of its parameters and, behind them, one number for each
 * parameter: its presence, 1 where this rank has a gradient. */
#include "bind/bind.h"
#include "core/tape/graph.h"

/* (params, grads, offsets, at): brings every gradient into its slot (one that the script made
 * itself, or with create_graph, lies elsewhere), zeroes the slots of parameters without one, and
 * writes the presence from element `at` on (on the CPU; of a device the caller does).  Returns how
 * many have none; nil when a parameter was given other memory meanwhile (x.data = y, a conversion)
 * and the layout is out of date. */
static int flat_collect(lua_State *L)
{
  ax_tensor *grads;
  int64_t at;
  int missing = 0, n;

  ax_bind_enter(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  grads = ax_check_tensor(L, 2, "flat_collect", "grads");
  luaL_checktype(L, 3, LUA_TTABLE);
  n = (int)lua_objlen(L, 1);
  at = ax_check_integer(L, 4, "flat_collect", "at", 0, grads->numel - n);
  for (int k = 0; k < n; k++) {
    ax_tensor *t;
    int64_t offset;
    lua_rawgeti(L, 1, k + 1);
    lua_rawgeti(L, 3, k + 1);
    t = ax_check_tensor(L, -2, "flat_collect", "parameter");
    offset = ax_check_integer(L, -1, "flat_collect", "offset", 0, grads->numel);
    lua_pop(L, 2); /* the list holds t */
    if (!t->grad_slot || t->grad_slot->storage != grads->storage ||
        t->grad_slot->offset != grads->offset + offset)
      return 0;
    if (t->grad && t->grad != t->grad_slot) {
      if (ax_copy(t->grad_slot, t->grad) != AX_OK) return ax_raise(L, "gradients");
      ax_tensor_release(t->grad);
      t->grad = ax_tensor_retain(t->grad_slot);
    }
    if (!t->grad) {
      missing++;
      if (ax_fill(t->grad_slot, 0) != AX_OK) return ax_raise(L, "gradients");
    }
    if (grads->device.kind == AX_CPU)
      ax_store_double((ax_dtype)grads->dtype, ax_data(grads), at + k, t->grad ? 1 : 0);
  }
  lua_pushinteger(L, missing);
  return 1;
}

/* (params): whether nobody but one post-accumulate hook each, ours, is told of these parameters'
 * gradients. */
static int flat_unwatched(lua_State *L)
{
  bool others = false;

  luaL_checktype(L, 1, LUA_TTABLE);
  for (int k = 1; k <= (int)lua_objlen(L, 1) && !others; k++) {
    int count = 0;
    lua_rawgeti(L, 1, k);
    for (const ax_hook *h = ax_check_tensor(L, -1, "flat_unwatched", "parameter")->hooks; h; h = h->next)
      count += h->post && !h->gone;
    others = count > 1;
    lua_pop(L, 1);
  }
  lua_pushboolean(L, !others);
  return 1;
}

/* (params, grads, at): parameters that have no gradient here but a presence get what is in their
 * slot. */
static int flat_adopt(lua_State *L)
{
  ax_tensor *grads;
  int64_t at;
  int n;

  ax_bind_enter(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  grads = ax_check_tensor(L, 2, "flat_adopt", "grads");
  n = (int)lua_objlen(L, 1);
  at = ax_check_integer(L, 3, "flat_adopt", "at", 0, grads->numel - n);
  for (int k = 0; k < n; k++) {
    ax_tensor *t;
    lua_rawgeti(L, 1, k + 1);
    t = ax_check_tensor(L, -1, "flat_adopt", "parameter");
    lua_pop(L, 1);
    if (!t->grad && t->grad_slot && t->requires_grad &&
        ax_load_double((ax_dtype)grads->dtype, ax_data(grads), at + k) > 0)
      t->grad = ax_tensor_retain(t->grad_slot);
  }
  return 0;
}

void ax_open_flat(lua_State *L)
{
  static const luaL_Reg functions[] = { { "flat_collect", flat_collect },
                                        { "flat_adopt", flat_adopt },
                                        { "flat_unwatched", flat_unwatched },
                                        { NULL, NULL } };
  ax_add_functions(L, functions);
}

/* bind_gather.c: the gathering thread in Lua: core._gather. */
#include "bind/bind.h"
#include "core/gather.h"

#define GATHER_MT "accelerate.gather"

static ax_gather *check_gather(lua_State *L) { return *(ax_gather **)luaL_checkudata(L, 1, GATHER_MT); }

/* core._gather({ tensor, ... }) -> gatherer, or nil and why these tensors cannot be gathered from */
static int gather_new(lua_State *L)
{
  ax_tensor *sources[AX_GATHER_MAX];
  ax_gather **box;
  int n;

  ax_bind_enter(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  n = (int)lua_objlen(L, 1);
  for (int i = 0; i < n && i < AX_GATHER_MAX; i++) {
    lua_rawgeti(L, 1, i + 1);
    sources[i] = ax_check_tensor(L, -1, "gather", "tensor");
    lua_pop(L, 1);
  }
  box = lua_newuserdata(L, sizeof *box);
  *box = NULL;
  luaL_getmetatable(L, GATHER_MT);
  lua_setmetatable(L, -2);
  if (ax_gather_new(n, sources, box) == AX_OK) return 1;
  lua_pushnil(L);
  lua_pushstring(L, ax_last_error());
  return 2;
}

static int gather_gc(lua_State *L)
{
  ax_gather **box = lua_touserdata(L, 1);
  ax_gather_free(*box);
  *box = NULL;
  return 0;
}

/* gatherer:start(positions, ahead): counted from 1 */
static int gather_start(lua_State *L)
{
  int64_t *to, at;
  ax_gather *g;
  int n;

  ax_bind_enter(L);
  g = check_gather(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  n = (int)lua_objlen(L, 2);
  if (!(to = ax_gather_positions(g, n))) return ax_error(L, "DataLoader", "no memory for %d positions", n);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 2, i + 1);
    if (!ax_to_integer(L, -1, &at))
      return ax_error(L, "DataLoader", "expected a position from 1 to %lld, got %s", (long long)ax_gather_rows(g), ax_describe(L, -1));
    to[i] = at - 1;
    lua_pop(L, 1);
  }
  if (ax_gather_start(g, n, lua_toboolean(L, 3)) != AX_OK) return ax_raise(L, "DataLoader");
  return 0;
}

/* gatherer:take() -> one tensor for each source */
static int gather_take(lua_State *L)
{
  ax_tensor *out[AX_GATHER_MAX], **box[AX_GATHER_MAX];
  ax_gather *g;
  int n;

  ax_bind_enter(L);
  g = check_gather(L);
  n = ax_gather_sources(g);
  for (int i = 0; i < n; i++) box[i] = ax_push_result(L);
  if (ax_gather_take(g, out) != AX_OK) return ax_raise(L, "DataLoader");
  for (int i = 0; i < n; i++) *box[i] = out[i];
  return n;
}

void ax_open_gather(lua_State *L)
{
  static const luaL_Reg functions[] = { { "_gather", gather_new }, { NULL, NULL } };
  static const luaL_Reg methods[] = { { "start", gather_start }, { "take", gather_take }, { NULL, NULL } };

  luaL_newmetatable(L, GATHER_MT);
  lua_pushcfunction(L, gather_gc);
  lua_setfield(L, -2, "__gc");
  lua_newtable(L);
  ax_add_functions(L, methods);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
  ax_add_functions(L, functions);
}

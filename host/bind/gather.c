/* bind/gather.c: the gathering thread in Lua: core._gather. */
#include "bind/bind.h"
#include "feed.h"

static const ax_lua_class gather_class;

/* core._gather({ tensor, ... }) -> gatherer, or nil and the reason why these tensors cannot be
 * gathered from */
static int gather_new(lua_State *L)
{
  ax_tensor *sources[AX_GATHER_MAX];
  ax_gather **box;
  int n;

  ax_lua_enter(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  n = (int)lua_objlen(L, 1);
  for (int i = 0; i < n && i < AX_GATHER_MAX; i++) {
    lua_rawgeti(L, 1, i + 1);
    sources[i] = ax_lua_check_tensor(L, -1, "gather", "tensor");
    lua_pop(L, 1);
  }
  box = ax_lua_push_object(L, &gather_class);
  if (ax_gather_new(n, sources, box) == AX_OK) return 1;
  lua_pushnil(L);
  lua_pushstring(L, ax_last_error());
  return 2;
}

static void clear_gather(lua_State *L, void *object)
{
  ax_gather **box = object;
  ax_gather_free(*box);
  *box = NULL;
}

/* gatherer:start(positions, ahead): counted from 1 */
static int gather_start(lua_State *L)
{
  int64_t *to, at;
  ax_gather *g;
  int n;

  ax_lua_enter(L);
  g = ax_lua_check_pointer(L, 1, &gather_class, "start");
  luaL_checktype(L, 2, LUA_TTABLE);
  n = (int)lua_objlen(L, 2);
  if (ax_gather_positions(g, n, &to) != AX_OK) return ax_lua_raise(L, "DataLoader");
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 2, i + 1);
    if (!ax_lua_to_integer(L, -1, &at))
      return ax_lua_error(L, "DataLoader", "expected a position from 1 to %lld, got %s",
                          (long long)ax_gather_rows(g), ax_lua_describe(L, -1));
    to[i] = at - 1;
    lua_pop(L, 1);
  }
  if (ax_gather_start(g, n, lua_toboolean(L, 3)) != AX_OK) return ax_lua_raise(L, "DataLoader");
  return 0;
}

/* gatherer:take() -> one tensor for each source */
static int gather_take(lua_State *L)
{
  ax_tensor *out[AX_GATHER_MAX], **box[AX_GATHER_MAX];
  ax_gather *g;
  int n;

  ax_lua_enter(L);
  g = ax_lua_check_pointer(L, 1, &gather_class, "take");
  n = ax_gather_sources(g);
  for (int i = 0; i < n; i++) box[i] = ax_lua_push_result(L);
  if (ax_gather_take(g, out) != AX_OK) return ax_lua_raise(L, "DataLoader");
  for (int i = 0; i < n; i++) *box[i] = out[i];
  return n;
}

static const luaL_Reg gather_methods[] = { { "start", gather_start },
                                           { "take", gather_take },
                                           { NULL, NULL } };
static const ax_lua_class gather_class = { "a gatherer", sizeof(ax_gather *), clear_gather, gather_methods };

void ax_lua_open_gather(lua_State *L)
{
  static const luaL_Reg functions[] = { { "_gather", gather_new }, { NULL, NULL } };

  ax_lua_open_class(L, &gather_class);
  ax_lua_add_functions(L, functions);
}

/* bind/autocast.c: the state of automatic casting, for lua/accelerate/precision/autocast.lua, and
 * the working copies of parameters. */
#include "bind/bind.h"
#include "slot.h"

/* core.autocast_state() -> enabled, dtype, cache_enabled */
static int autocast_state(lua_State *L)
{
  ax_lua_enter(L);
  const ax_autocast s = ax_autocast_get();
  lua_pushboolean(L, s.enabled);
  lua_pushstring(L, ax_dtype_name(s.dtype));
  lua_pushboolean(L, s.cache);
  return 3;
}

/* core.autocast_enter(enabled, dtype, cache_enabled) -> the argument of autocast_leave */
static int autocast_enter(lua_State *L)
{
  ax_lua_context_inside in = { 0 };
  ax_lua_enter(L);
  in.cast.enabled = ax_lua_check_boolean(L, 1, "autocast", "enabled");
  in.cast.dtype = ax_lua_check_dtype(L, 2, "autocast", "dtype");
  in.cast.cache = ax_lua_check_boolean(L, 3, "autocast", "cache_enabled");
  if (in.cast.enabled && !ax_is_half(in.cast.dtype))
    return ax_lua_error(L, "autocast", "dtype must be bfloat16 or float16, got %s",
                        ax_dtype_name(in.cast.dtype));
  lua_pushinteger(L, ax_lua_context_open(L, "autocast", AX_CONTEXT_AUTOCAST, &in));
  return 1;
}

/* core.autocast_leave(what autocast_enter returned) */
static int autocast_leave(lua_State *L)
{
  ax_lua_enter(L);
  ax_lua_context_close(L, (int)ax_lua_check_integer(L, 1, "autocast", "region", 0, INT32_MAX));
  return 0;
}

/* core.work_of(parameter) -> its working copy or nil, and whether the copy is current */
static int work_of(lua_State *L)
{
  ax_tensor *t, *work, **box;

  ax_lua_enter(L);
  t = ax_lua_check_tensor(L, 1, "work_of", "parameter");
  if (!(work = ax_slot_work(t))) return 0;
  box = ax_lua_push_box(L);
  if (ax_tensor_alias(work, box) != AX_OK) return ax_lua_raise(L, "work_of");
  lua_pushboolean(L, ax_slot_work_is_current(t));
  return 2;
}

void ax_lua_open_autocast(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "autocast_state", autocast_state },
    { "autocast_enter", autocast_enter },
    { "autocast_leave", autocast_leave },
    { "work_of", work_of },
    { NULL, NULL },
  };
  ax_lua_add_functions(L, functions);
}

/* bind/offload.c: core._offload_new and schedules of offloaded weights (offload.h). */
#include "bind/bind.h"
#include "offload.h"
#include "place.h"

static void clear_schedule(lua_State *L, void *object)
{
  ax_offload **o = object;
  (void)L;
  ax_offload_release(*o);
  *o = NULL;
}

static const ax_lua_class schedule_class;

ax_offload *ax_lua_check_offload(lua_State *L, int idx, const char *fn)
{
  return ax_lua_check_pointer(L, idx, &schedule_class, fn);
}

/* A number of bytes; nil: no limit. */
static int64_t opt_bytes(lua_State *L, int idx, const char *fn, const char *name)
{
  const double v = lua_tonumber(L, idx);
  if (lua_isnoneornil(L, idx)) return INT64_MAX;
  if (lua_type(L, idx) != LUA_TNUMBER || !(v >= 0))
    ax_lua_arg_error(L, fn, idx, name, "a number of bytes or nil", idx);
  return v < 9e18 ? (int64_t)v : INT64_MAX;
}

/* core._offload_new(device, keep?, ahead) -> schedule */
static int offload_new(lua_State *L)
{
  ax_device device;
  ax_offload **o;

  ax_lua_enter(L);
  device = ax_lua_check_device(L, 1, "_offload_new", "device");
  const int64_t keep = opt_bytes(L, 2, "_offload_new", "keep");
  const int64_t ahead = opt_bytes(L, 3, "_offload_new", "ahead");
  o = ax_lua_push_object(L, &schedule_class);
  if (ax_offload_new(device, keep, ahead, o) != AX_OK) return ax_lua_raise(L, "_offload_new");
  return 1;
}

/* schedule:limit(keep?, ahead) */
static int schedule_limit(lua_State *L)
{
  ax_lua_enter(L);
  ax_offload *const o = ax_lua_check_offload(L, 1, "limit");
  ax_offload_limit(o, opt_bytes(L, 2, "limit", "keep"), opt_bytes(L, 3, "limit", "ahead"));
  return 0;
}

/* The type at idx; of `home` where there is none. */
static ax_dtype opt_dtype(lua_State *L, int idx, const char *fn, ax_dtype home)
{
  return lua_isnoneornil(L, idx) ? home : ax_lua_check_dtype(L, idx, fn, "dtype");
}

/* schedule:add(home, dtype?) -> tensor */
static int schedule_add(lua_State *L)
{
  ax_lua_enter(L);
  ax_offload *const o = ax_lua_check_offload(L, 1, "add");
  ax_tensor *const home = ax_lua_check_tensor(L, 2, "add", "home");
  const ax_dtype dtype = opt_dtype(L, 3, "add", (ax_dtype)home->dtype);
  ax_tensor **box = ax_lua_push_result(L);

  if (ax_offload_add(o, home, dtype, box) != AX_OK) return ax_lua_raise(L, "offload");
  return 1;
}

/* schedule:raw(path, stored, dtype?, sizes...) -> tensor */
static int schedule_raw(lua_State *L)
{
  int64_t shape[AX_MAX_DIMS];

  ax_lua_enter(L);
  ax_offload *const o = ax_lua_check_offload(L, 1, "raw");
  const char *const path = luaL_checkstring(L, 2);
  const ax_dtype stored = ax_lua_check_dtype(L, 3, "raw", "stored"), dtype = opt_dtype(L, 4, "raw", stored);
  const int n = ax_lua_check_sizes(L, 5, lua_gettop(L), "raw", shape);
  ax_tensor **box = ax_lua_push_result(L);

  if (ax_offload_add_raw(o, path, stored, n, shape, dtype, box) != AX_OK) return ax_lua_raise(L, "offload");
  return 1;
}

static void set_number(lua_State *L, const char *key, int64_t v)
{
  lua_pushnumber(L, (double)v);
  lua_setfield(L, -2, key);
}

/* schedule:stats() -> table */
static int schedule_stats(lua_State *L)
{
  ax_offload_stats s;

  ax_lua_enter(L);
  ax_offload_count(ax_lua_check_offload(L, 1, "stats"), &s);
  lua_createtable(L, 0, 7);
  set_number(L, "weights", s.weights);
  set_number(L, "bytes", s.bytes);
  set_number(L, "here", s.here);
  set_number(L, "here_most", s.here_most);
  set_number(L, "loads", s.loads);
  set_number(L, "guessed", s.guessed);
  set_number(L, "left", s.left);
  return 1;
}

/* core._offload_home(tensor) -> tensor of the CPU, or nil */
static int offload_home(lua_State *L)
{
  ax_tensor *home;
  ax_tensor **box;

  ax_lua_enter(L);
  home = ax_offload_home(ax_lua_check_tensor(L, 1, "_offload_home", "tensor"));
  if (!home) return 0;
  box = ax_lua_push_result(L);
  *box = ax_tensor_retain(home);
  return 1;
}

static const luaL_Reg schedule_methods[] = {
  { "limit", schedule_limit }, { "add", schedule_add }, { "raw", schedule_raw },
  { "stats", schedule_stats }, { NULL, NULL },
};
static const ax_lua_class schedule_class = { "a schedule of offloaded weights", sizeof(ax_offload *),
                                             clear_schedule, schedule_methods };

/* ---- places (place.h) */

static void clear_place(lua_State *L, void *object)
{
  ax_place **p = object;
  (void)L;
  ax_place_release(*p);
  *p = NULL;
}

static const luaL_Reg no_methods[] = { { NULL, NULL } };
static const ax_lua_class place_class = { "a place for buffers", sizeof(ax_place *), clear_place,
                                          no_methods };

ax_place *ax_lua_check_place(lua_State *L, int idx, const char *fn)
{
  return ax_lua_check_pointer(L, idx, &place_class, fn);
}

/* core.place(folder?) -> a place for buffers in files, or in host memory (place.h) */
static int new_place(lua_State *L)
{
  ax_lua_enter(L);
  const char *const folder = luaL_optstring(L, 1, NULL);
  ax_place **p = ax_lua_push_object(L, &place_class);
  if ((folder ? ax_place_files(folder, p) : ax_place_host(p)) != AX_OK) return ax_lua_raise(L, "prepare");
  return 1;
}

/* core.place_stats() -> bytes in files, and bytes that optimizer steps have read and written */
static int place_stats(lua_State *L)
{
  ax_place_stats s;
  ax_lua_enter(L);
  ax_place_count(&s);
  lua_pushnumber(L, (double)s.bytes);
  lua_pushnumber(L, (double)s.read);
  lua_pushnumber(L, (double)s.written);
  return 3;
}

void ax_lua_open_offload(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "_offload_new", offload_new },
    { "_offload_home", offload_home },
    { "place", new_place },
    { "place_stats", place_stats },
    { NULL, NULL },
  };

  ax_lua_open_class(L, &schedule_class);
  ax_lua_open_class(L, &place_class);
  ax_lua_add_functions(L, functions);
}

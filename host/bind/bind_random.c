/* bind_random.c: generators of random numbers. */
#include "bind/bind.h"
#include "capture.h"

static ax_generator **push_generator(lua_State *L)
{
  ax_generator **box = lua_newuserdata(L, sizeof *box);
  *box = NULL;
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_bind.ref_generator_mt);
  lua_setmetatable(L, -2);
  return box;
}

/* Seeds are integers; a negative one stands for itself modulo 2^64, as in PyTorch. */
static uint64_t check_seed(lua_State *L, int idx, const char *fn)
{
  return (uint64_t)ax_check_integer(L, idx, fn, "seed", -(INT64_C(1) << 53), INT64_C(1) << 53);
}

/* core.Generator(seed): seed 0 when none is given */
static int generator(lua_State *L)
{
  ax_generator **box;
  uint64_t seed;
  ax_bind_enter(L);
  seed = lua_isnoneornil(L, 1) ? 0 : check_seed(L, 1, "Generator");
  box = push_generator(L);
  if (ax_generator_new(seed, box) != AX_OK) return ax_raise(L, "Generator");
  return 1;
}

static int default_generator(lua_State *L)
{
  ax_generator **box;
  ax_bind_enter(L);
  box = push_generator(L);
  *box = ax_generator_default();
  (*box)->refs++;
  return 1;
}

/* A replay takes the generator as it finds it. */
static void refuse_while_recording(lua_State *L, const char *fn)
{
  if (ax_recording) ax_error(L, fn, "a generator cannot be set while a step is recorded: a replay would not do it again; do it outside the step");
}

static int manual_seed(lua_State *L)
{
  ax_bind_enter(L);
  refuse_while_recording(L, "manual_seed");
  ax_manual_seed(check_seed(L, 1, "manual_seed"));
  return 0;
}

static int generator_manual_seed(lua_State *L)
{
  ax_generator *g;
  ax_bind_enter(L);
  refuse_while_recording(L, "manual_seed");
  g = ax_check_generator(L, 1, "manual_seed", "self");
  g->seed = check_seed(L, 2, "manual_seed");
  g->draws = 0;
  lua_settop(L, 1);
  return 1;
}

static int initial_seed(lua_State *L)
{
  ax_bind_enter(L);
  lua_pushnumber(L, (double)(int64_t)ax_check_generator(L, 1, "initial_seed", "self")->seed);
  return 1;
}

/* Sixteen bytes, little-endian: the seed, then the number of draws so far. */
static int get_state(lua_State *L)
{
  const ax_generator *g;
  char bytes[16];
  ax_bind_enter(L);
  g = ax_check_generator(L, 1, "get_state", "self");
  for (int i = 0; i < 8; i++) {
    bytes[i] = (char)(g->seed >> 8 * i);
    bytes[8 + i] = (char)(g->draws >> 8 * i);
  }
  lua_pushlstring(L, bytes, sizeof bytes);
  return 1;
}

static int set_state(lua_State *L)
{
  ax_generator *g;
  size_t n;
  const unsigned char *s;
  ax_bind_enter(L);
  refuse_while_recording(L, "set_state");
  g = ax_check_generator(L, 1, "set_state", "self");
  if (lua_type(L, 2) != LUA_TSTRING) return ax_arg_error(L, "set_state", 2, "state", "a string of 16 bytes", 2);
  s = (const unsigned char *)lua_tolstring(L, 2, &n);
  if (n != 16) return ax_error(L, "set_state", "expected a state of 16 bytes, got %zu", n);
  g->seed = g->draws = 0;
  for (int i = 7; i >= 0; i--) {
    g->seed = g->seed << 8 | s[i];
    g->draws = g->draws << 8 | s[8 + i];
  }
  lua_settop(L, 1);
  return 1;
}

static int generator_gc(lua_State *L)
{
  ax_generator **box = lua_touserdata(L, 1);
  bool ours = false;
  if (box && lua_getmetatable(L, 1)) ours = lua_topointer(L, -1) == ax_bind.generator_mt;
  if (!ours || !*box) return 0;
  ax_generator_release(*box);
  *box = NULL;
  return 0;
}

static int generator_tostring(lua_State *L)
{
  const ax_generator *g = ax_check_generator(L, 1, "tostring", "self");
  lua_pushfstring(L, "Generator(seed %f, %f draws)", (double)(int64_t)g->seed, (double)g->draws);
  return 1;
}

void ax_open_random(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "Generator", generator }, { "default_generator", default_generator }, { "manual_seed", manual_seed }, { NULL, NULL },
  };
  static const luaL_Reg methods[] = {
    { "manual_seed", generator_manual_seed }, { "initial_seed", initial_seed }, { "get_state", get_state }, { "set_state", set_state },
    { NULL, NULL },
  };
  static const luaL_Reg events[] = { { "__gc", generator_gc }, { "__tostring", generator_tostring }, { NULL, NULL } };

  ax_add_functions(L, functions);
  lua_newtable(L);
  ax_bind.generator_mt = lua_topointer(L, -1);
  ax_add_functions(L, events);
  lua_pushliteral(L, "generator");
  lua_setfield(L, -2, "__metatable");
  lua_newtable(L);
  ax_add_functions(L, methods);
  lua_setfield(L, -2, "__index");
  ax_bind.ref_generator_mt = luaL_ref(L, LUA_REGISTRYINDEX);
}

/* bind/random.c: generators of random numbers. */
#include "bind/bind.h"
#include "capture.h"
#include "dist.h"

#include <string.h>

static const ax_lua_class generator_class;

ax_generator *ax_lua_to_generator(lua_State *L, int idx)
{
  ax_generator **box = ax_lua_to_object(L, idx, &generator_class);
  return box ? *box : NULL;
}

static ax_generator **push_generator(lua_State *L) { return ax_lua_push_object(L, &generator_class); }

/* Reads a seed, an integer; a negative one counts modulo 2^64, as in PyTorch. */
static uint64_t check_seed(lua_State *L, int idx, const char *fn)
{
  return (uint64_t)ax_lua_check_integer(L, idx, fn, "seed", -(INT64_C(1) << 53), INT64_C(1) << 53);
}

/* The seed of Generator's argument: a seed, PyTorch's device, or a table of them.  Any device will
 * do: a generator draws for all of them. */
static uint64_t read_seed(lua_State *L)
{
  static const char *const names[] = { "seed", "device" };

  if (lua_isnoneornil(L, 1)) return 0;
  if (lua_type(L, 1) == LUA_TSTRING && !lua_isnumber(L, 1))
    return ax_lua_check_device(L, 1, "Generator", "device"), 0;
  if (!ax_lua_is_options(L, 1, true)) return check_seed(L, 1, "Generator");
  ax_lua_check_options(L, 1, "Generator", names, 2);
  lua_getfield(L, 1, "device");
  if (!lua_isnil(L, -1)) ax_lua_check_device(L, -1, "Generator", "device");
  lua_getfield(L, 1, "seed");
  return lua_isnil(L, -1) ? 0 : check_seed(L, lua_gettop(L), "Generator");
}

/* core.Generator(seed): seed 0 when none is given */
static int generator(lua_State *L)
{
  ax_generator **box;
  uint64_t seed;
  ax_lua_enter(L);
  seed = read_seed(L);
  box = push_generator(L);
  if (ax_generator_new(seed, box) != AX_OK) return ax_lua_raise(L, "Generator");
  return 1;
}

static int default_generator(lua_State *L)
{
  ax_generator **box;
  ax_lua_enter(L);
  box = push_generator(L);
  *box = ax_generator_default();
  (*box)->refs++;
  return 1;
}

/* Raises during capture: a replay uses the generator's state at the time of the replay. */
static void refuse_while_recording(lua_State *L, const char *fn)
{
  if (ax_recording)
    ax_lua_error(L, fn,
                 "a generator cannot be set while a step is captured: a replay would not do it again; do it "
                 "outside the step");
}

/* its address is the registry's key for the original math.randomseed; a script may replace the
 * global one */
static const char RANDOMSEED;

/* core.manual_seed(seed): seeds the default generator and Lua's math.random */
static int manual_seed(lua_State *L)
{
  uint64_t seed;
  ax_lua_enter(L);
  refuse_while_recording(L, "manual_seed");
  ax_lua_at_most(L, "manual_seed", 1);
  seed = check_seed(L, 1, "manual_seed");
  ax_manual_seed(seed);
  lua_pushlightuserdata(L, (void *)&RANDOMSEED);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_pushnumber(L, (double)(int64_t)seed);
  lua_call(L, 1, 0);
  return 0;
}

/* core._math_random_state([bytes]) -> bytes: the state of math.random, which LuaJIT keeps in a
 * userdata that math.randomseed has as its upvalue; with an argument it is set first. */
static int math_random_state(lua_State *L)
{
  size_t n, given = 0;
  const char *bytes = NULL;
  void *state;

  ax_lua_enter(L);
  if (!lua_isnoneornil(L, 1)) bytes = luaL_checklstring(L, 1, &given);
  lua_pushlightuserdata(L, (void *)&RANDOMSEED);
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (!lua_getupvalue(L, -1, 1) || !(state = lua_touserdata(L, -1)))
    return ax_lua_error(L, "math_random_state", "this LuaJIT keeps the state elsewhere");
  n = lua_objlen(L, -1);
  if (bytes && given != n)
    return ax_lua_error(L, "math_random_state", "expected the %d bytes of a state, got %d", (int)n,
                        (int)given);
  if (bytes) memcpy(state, bytes, n);
  lua_pushlstring(L, state, n);
  return 1;
}

/* core._common_generator(): for draws that are equal on all ranks even in an unseeded run */
static int common_generator(lua_State *L)
{
  ax_generator **box;
  ax_lua_enter(L);
  box = push_generator(L);
  *box = ax_generator_common();
  (*box)->refs++;
  return 1;
}

/* core._draw_part(t, normal, first, generator): fills t with what rand, or with `normal` randn,
 * would give of this generator from element `first` on, a multiple of 4; t: contiguous, of
 * floats */
static int draw_part(lua_State *L)
{
  ax_tensor *t;
  ax_args a = { .n_in = 0, .a = { .n_list = -1 } };

  ax_lua_enter(L);
  t = ax_lua_check_tensor(L, 1, "_draw_part", "t");
  const int64_t first = ax_lua_check_integer(L, 3, "_draw_part", "first", 0, INT64_C(1) << 53);
  if (first % 4) return ax_lua_error(L, "_draw_part", "first must be a multiple of 4");
  if (lua_toboolean(L, 2)) a.a = AX_ATTRS(normal, .mean = 0, .std = 1, .first = first);
  else a.a = AX_ATTRS(uniform, .low = 0, .high = 1, .first = first);
  a.a.gen = ax_lua_check_generator(L, 4, "_draw_part", "generator");
  if (ax_run_into(lua_toboolean(L, 2) ? AX_OP_NORMAL : AX_OP_UNIFORM, &a, t) != AX_OK)
    return ax_lua_raise(L, "rand");
  return 0;
}

/* core._seedings() -> how often the default generator was seeded */
static int seedings(lua_State *L)
{
  lua_pushnumber(L, (double)ax_random_seedings());
  return 1;
}

static int generator_manual_seed(lua_State *L)
{
  ax_generator *g;
  uint64_t seed;
  ax_lua_enter(L);
  refuse_while_recording(L, "manual_seed");
  g = ax_lua_check_generator(L, 1, "manual_seed", "self");
  seed = check_seed(L, 2, "manual_seed");
  if (g == ax_generator_default()) ax_manual_seed(seed);
  g->seed = seed;
  g->draws = 0;
  lua_settop(L, 1);
  return 1;
}

static int initial_seed(lua_State *L)
{
  ax_lua_enter(L);
  lua_pushnumber(L, (double)(int64_t)ax_lua_check_generator(L, 1, "initial_seed", "self")->seed);
  return 1;
}

/* Sixteen bytes, little-endian: the seed, then the number of draws so far.  A 17th byte, 1, follows
 * where the rank has its own random numbers. */
static int get_state(lua_State *L)
{
  const ax_generator *g;
  char bytes[17] = { 0 };
  ax_lua_enter(L);
  g = ax_lua_check_generator(L, 1, "get_state", "self");
  for (int i = 0; i < 8; i++) {
    bytes[i] = (char)(g->seed >> 8 * i);
    bytes[8 + i] = (char)(g->draws >> 8 * i);
  }
  bytes[16] = 1;
  lua_pushlstring(L, bytes, g->per_rank && ax_dist_world()->rank > 0 ? 17 : 16);
  return 1;
}

/* The state at 2, as get_state gave it. */
static ax_generator check_state(lua_State *L)
{
  ax_generator g = { 0 };
  size_t n;
  const unsigned char *s;

  if (lua_type(L, 2) != LUA_TSTRING) ax_lua_arg_error(L, "set_state", 2, "state", "a string of 16 bytes", 2);
  s = (const unsigned char *)lua_tolstring(L, 2, &n);
  if (n != 16 && (n != 17 || s[16] != 1))
    ax_lua_error(L, "set_state", "expected a state of 16 bytes, got %d", (int)n);
  g.per_rank = n == 17;
  for (int i = 7; i >= 0; i--) {
    g.seed = g.seed << 8 | s[i];
    g.draws = g.draws << 8 | s[8 + i];
  }
  return g;
}

static int put_state(lua_State *L, ax_generator *g, const ax_generator *state)
{
  g->seed = state->seed;
  g->draws = state->draws;
  g->per_rank = state->per_rank;
  lua_settop(L, 1);
  return 1;
}

static int set_state(lua_State *L)
{
  ax_generator *g, state;
  ax_lua_enter(L);
  refuse_while_recording(L, "set_state");
  g = ax_lua_check_generator(L, 1, "set_state", "self");
  state = check_state(L);
  return put_state(L, g, &state);
}

/* core._move_generator(generator, state): as set_state, also in a captured step, for a state that
 * the step itself has seen */
static int move_generator(lua_State *L)
{
  ax_generator *g, state;
  ax_lua_enter(L);
  g = ax_lua_check_generator(L, 1, "_move_generator", "generator");
  state = check_state(L);
  if (ax_recording && (state.seed != g->seed || !ax_capture_may_move(g, state.draws)))
    return ax_lua_error(
        L, "checkpoint",
        "what it computes again drew random numbers before this recording began, and a replay would draw "
        "others: capture the whole step with utils.capture, or give preserve_rng_state = false");
  return put_state(L, g, &state);
}

static void clear_generator(lua_State *L, void *object)
{
  ax_generator **box = object;
  ax_generator_release(*box);
  *box = NULL;
}

static int generator_tostring(lua_State *L)
{
  const ax_generator *g = ax_lua_check_generator(L, 1, "tostring", "self");
  lua_pushfstring(L, "Generator(seed %f, %f draws)", (double)(int64_t)g->seed, (double)g->draws);
  return 1;
}

static const luaL_Reg generator_methods[] = {
  { "manual_seed", generator_manual_seed },
  { "initial_seed", initial_seed },
  { "get_state", get_state },
  { "set_state", set_state },
  { "__tostring", generator_tostring },
  { NULL, NULL },
};
static const ax_lua_class generator_class = { "generator", sizeof(ax_generator *), clear_generator,
                                              generator_methods };

void ax_lua_open_random(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "Generator", generator },
    { "default_generator", default_generator },
    { "manual_seed", manual_seed },
    { "_common_generator", common_generator },
    { "_draw_part", draw_part },
    { "_move_generator", move_generator },
    { "_seedings", seedings },
    { "_math_random_state", math_random_state },
    { NULL, NULL },
  };

  lua_pushlightuserdata(L, (void *)&RANDOMSEED);
  lua_getglobal(L, "math");
  lua_getfield(L, -1, "randomseed");
  lua_remove(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);

  ax_lua_add_functions(L, functions);
  ax_lua_open_class(L, &generator_class);
}

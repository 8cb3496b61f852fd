/* bind/profile.c: starts and stops the profiler, and returns its events with their places in the
 * script; lua/accelerate/profiler.lua does the rest. */
#include "bind/bind.h"
#include "bind/where.h"
#include "profile.h"

#include <stdio.h>

/* nn.Module's __call, which identifies the frames of modules */
static _Thread_local int module_call = LUA_NOREF;

/* The frames of the script, innermost first, as lines such as "train.lua:12 (step)". */
static int32_t stack_text(lua_State *L)
{
  char text[2048];
  size_t at = 0;
  lua_Debug ar;

  for (int level = 0; lua_getstack(L, level, &ar) && at + 160 < sizeof text; level++) {
    lua_getinfo(L, "Sln", &ar);
    if (ar.currentline <= 0 || ax_lua_in_library(ar.source)) continue;
    at += (size_t)snprintf(text + at, sizeof text - at, "%s%.80s:%d%s%.40s%s", at ? "\n" : "", ar.short_src,
                           ar.currentline, ar.name ? " (" : "", ar.name ? ar.name : "", ar.name ? ")" : "");
  }
  text[at] = '\0';
  return ax_profile_text(text);
}

/* The modules whose forward is running, outermost first: "Sequential > Linear". */
static int32_t modules_text(lua_State *L)
{
  const char *names[32];
  char text[1024] = "";
  size_t at = 0;
  int n = 0;
  lua_Debug ar;

  for (int level = 0; n < 32 && lua_getstack(L, level, &ar); level++) {
    lua_getinfo(L, "f", &ar);
    lua_rawgeti(L, LUA_REGISTRYINDEX, module_call);
    const bool call = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
    if (!call || !lua_getlocal(L, &ar, 1)) continue;
    if (lua_getmetatable(L, -1)) {
      lua_getfield(L, -1, "__name");
      if (lua_isstring(L, -1)) names[n++] = lua_tostring(L, -1); /* the class holds it */
      lua_pop(L, 2);
    }
    lua_pop(L, 1);
  }
  while (n > 0 && at + 64 < sizeof text)
    at += (size_t)snprintf(text + at, sizeof text - at, "%s%.48s", at ? " > " : "", names[--n]);
  return ax_profile_text(text);
}

static void where(const ax_profile_options *wanted, ax_profile_event *e)
{
  lua_State *L = ax_lua.L;
  char place[160];

  if (!ax_lua.open || !lua_checkstack(L, 8)) return;
  e->place = ax_profile_text(ax_lua_where(L, place, sizeof place));
  if (wanted->stack) e->stack = stack_text(L);
  if (wanted->modules && module_call != LUA_NOREF) e->modules = modules_text(L);
}

static bool option(lua_State *L, const char *name)
{
  bool on;
  lua_getfield(L, 1, name);
  on = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return on;
}

/* core._profile_start({ record_shapes, profile_memory, with_stack, with_flops, with_modules, wait
 * }, nn.Module.__call or nil) */
static int profile_start(lua_State *L)
{
  ax_profile_options o;

  ax_lua_enter(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  o = (ax_profile_options){ option(L, "record_shapes"), option(L, "profile_memory"), option(L, "with_stack"),
                            option(L, "with_flops"),    option(L, "with_modules"),   option(L, "wait") };
  if (lua_isfunction(L, 2)) {
    luaL_unref(L, LUA_REGISTRYINDEX, module_call);
    lua_pushvalue(L, 2);
    module_call = luaL_ref(L, LUA_REGISTRYINDEX);
  }
  ax_profile_start(o, where);
  return 0;
}

static int profile_stop(lua_State *L)
{
  (void)L, ax_profile_stop();
  return 0;
}
static int profile_clear(lua_State *L)
{
  (void)L, ax_profile_clear();
  return 0;
}

static void set_number(lua_State *L, const char *name, double value)
{
  lua_pushnumber(L, value);
  lua_setfield(L, -2, name);
}

/* Sets a field to a text; to nil for a number without one. */
static void set_text(lua_State *L, const char *name, int32_t number)
{
  lua_pushstring(L, ax_profile_text_of(number)); /* NULL: nil */
  lua_setfield(L, -2, name);
}

/* Pushes an event; `zero`: when the first event began. */
static void push_event(lua_State *L, const ax_profile_event *e, int64_t zero)
{
  static const char *const kinds[] = { "cpu_op", "backward", "optimizer", "user_annotation", "collective" };
  lua_createtable(L, 0, 16);
  set_number(L, "start", (double)(e->start - zero) / 1000);
  set_number(L, "cpu_time", e->end ? (double)(e->end - e->start) / 1000 : 0);
  set_number(L, "flops", (double)e->flops);
  set_number(L, "bytes", (double)e->bytes);
  set_number(L, "depth", e->depth);
  if (e->parent >= 0) set_number(L, "parent", e->parent + 1);
  lua_pushstring(L, kinds[e->kind]);
  lua_setfield(L, -2, "category");
  set_text(L, "name", e->name);
  set_text(L, "place", e->place);
  set_text(L, "stack", e->stack);
  set_text(L, "input_shapes", e->shapes);
  set_text(L, "modules", e->modules);
}

/* core._profile_events() -> list of events, their number, how many were dropped.  Times in
 * microseconds. */
static int profile_events(lua_State *L)
{
  const ax_profile_event *all;
  int32_t n, now;
  int64_t dropped;

  ax_lua_enter(L);
  all = ax_profile_events(&n, &dropped);
  const int64_t zero = n > 0 ? all[0].start : 0;
  lua_createtable(L, n, 0);
  for (int32_t i = 0; i < n; i++) {
    all = ax_profile_events(&now, &dropped); /* a finaliser that runs meanwhile may add some, and move them */
    if (i >= now) break;
    const ax_profile_event e = all[i];
    push_event(L, &e, zero);
    lua_rawseti(L, -2, i + 1);
  }
  lua_pushnumber(L, n);
  lua_pushnumber(L, (double)dropped);
  return 3;
}

/* core._profile_push(name, collective) -> two numbers for _profile_pop; nothing while the profiler
 * is off */
static int profile_push(lua_State *L)
{
  const char *name = luaL_checkstring(L, 1);
  ax_profile_mark m;

  ax_lua_enter(L);
  if (!ax_profiling) return 0;
  m = ax_profile_begin(name, lua_toboolean(L, 2) ? AX_PROFILE_COLLECTIVE : AX_PROFILE_RANGE, 0);
  lua_pushnumber(L, m.at);
  lua_pushnumber(L, m.run);
  return 2;
}

static int profile_pop(lua_State *L)
{
  if (lua_isnumber(L, 1) && lua_isnumber(L, 2))
    ax_profile_end((ax_profile_mark){ (int32_t)lua_tonumber(L, 1), (uint32_t)lua_tonumber(L, 2) });
  return 0;
}

void ax_lua_open_profile(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "_profile_start", profile_start },
    { "_profile_stop", profile_stop },
    { "_profile_clear", profile_clear },
    { "_profile_events", profile_events },
    { "_profile_push", profile_push },
    { "_profile_pop", profile_pop },
    { NULL, NULL },
  };
  module_call = LUA_NOREF; /* a reference of a state that is gone is no one's */
  ax_lua_add_functions(L, functions);
}

/* harness.c: runs a fuzz target over one input.
 *
 * A target in Lua is a file of targets/; check.lua calls it and holds the properties.  LuaJIT's
 * compiler is off, so that a hook sees each line: the pair of a line and the one before it counts
 * as an edge of coverage, as between blocks of C. */
#include "fuzz.h"

#include "ax.h"
#include "bind/where.h"
#include "script/interp.h"
#include "script/script.h"

#include <lauxlib.h>
#include <luajit.h>
#include <lualib.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern int luaopen_accelerate_core(lua_State *L);

void (*fuzz_count)(uint32_t place);

static const struct {
  const char *name;
  void (*run)(const uint8_t *data, size_t size);
} in_c[] = { { "options", fuzz_options },
             { "settings", fuzz_settings },
             { "hostfile", fuzz_hostfile },
             { "hello", fuzz_hello } };

static void (*run_c)(const uint8_t *data, size_t size);
static lua_State *state; /* on its stack: the functions run and repair (or nil) */
static char folder[64];

_Noreturn void fuzz_violation(const char *fmt, ...)
{
  va_list list;

  fputs("violation: ", stdout);
  va_start(list, fmt);
  vprintf(fmt, list);
  va_end(list);
  puts("");
  fflush(stdout);
  abort();
}

/* ---- Lua */

/* A number for a chunk's name, 0 for chunks that do not count; the name's text stays where it is as
 * long as the state lives. */
static uint32_t number_of(const char *source)
{
  static const char *last;
  static uint32_t number;

  if (source == last) return number;
  last = source;
  number = 0;
  if (strncmp(source, "@lua/", 5) != 0) return number;
  number = 2166136261u;
  for (; *source; source++) number = (number ^ (uint8_t)*source) * 16777619u;
  return number;
}

static void on_line(lua_State *L, lua_Debug *ar)
{
  static uint32_t before;
  uint32_t here;

  if (!lua_getinfo(L, "S", ar) || (here = number_of(ar->source)) == 0) return;
  here = (here + (uint32_t)ar->currentline) * 2654435761u;
  fuzz_count(here ^ before);
  before = here >> 1;
}

static void open_state(const char *name)
{
  lua_State *L = luaL_newstate();

  luaL_openlibs(L);
  luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
  lua_getglobal(L, "package");
  lua_pushliteral(L, "lua/?.lua;lua/?/init.lua;?.lua");
  lua_setfield(L, -2, "path");
  lua_getfield(L, -1, "preload");
  lua_pushcfunction(L, luaopen_accelerate_core);
  lua_setfield(L, -2, "accelerate.core");
  lua_pushcfunction(L, ax_interp_open_host);
  lua_setfield(L, -2, "accelerate.host");
  lua_settop(L, 0);
  ax_lua_set_module_dir("lua");
  lua_getglobal(L, "require");
  lua_pushliteral(L, "spec.fuzz.check");
  if (lua_pcall(L, 1, 1, 0) == 0) {
    lua_pushstring(L, name);
    lua_pushstring(L, folder);
    if (lua_pcall(L, 2, 2, 0) == 0) {
      if (fuzz_count) lua_sethook(L, on_line, LUA_MASKLINE, 0);
      state = L;
      return;
    }
  }
  fprintf(stderr, "fuzz: %s\n", lua_tostring(L, -1));
  exit(2);
}

static void run_lua(const uint8_t *data, size_t size)
{
  lua_settop(state, 2);
  lua_pushvalue(state, 1);
  lua_pushlstring(state, (const char *)data, size);
  if (lua_pcall(state, 1, 0, 0) != 0) fuzz_violation("%s", lua_tostring(state, -1));
}

size_t fuzz_repair(uint8_t *data, size_t size, size_t most)
{
  const char *text;
  size_t n;

  if (!state || lua_isnil(state, 2)) return size;
  lua_settop(state, 2);
  lua_pushvalue(state, 2);
  lua_pushlstring(state, (const char *)data, size);
  if (lua_pcall(state, 1, 1, 0) != 0) fuzz_violation("%s", lua_tostring(state, -1));
  text = lua_tolstring(state, -1, &n);
  if (n > most) n = most;
  memcpy(data, text, n);
  return n;
}

/* ---- any target */

/* The plugins are those beside the program. */
static void find_plugins(void)
{
  static char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

  if (n <= 0) return;
  path[n] = '\0';
  *strrchr(path, '/') = '\0';
  ax_backend_set_dir(path);
}

void fuzz_begin(const char *name)
{
  for (size_t i = 0; i < sizeof in_c / sizeof *in_c; i++)
    if (strcmp(name, in_c[i].name) == 0) run_c = in_c[i].run;
  if (run_c) return;
  snprintf(folder, sizeof folder, "%s/accel-fuzz-XXXXXX",
           access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
  if (!mkdtemp(folder)) {
    perror(folder);
    exit(2);
  }
  atexit(fuzz_end);
  find_plugins();
  open_state(name);
}

void fuzz_one(const uint8_t *data, size_t size)
{
  if (run_c) run_c(data, size);
  else run_lua(data, size);
}

void fuzz_end(void)
{
  char command[128];

  if (state) lua_close(state);
  state = NULL;
  if (!folder[0]) return;
  snprintf(command, sizeof command, "rm -rf %s", folder);
  folder[0] = '\0';
  if (system(command) != 0) fputs("fuzz: its folder could not be removed\n", stderr);
}

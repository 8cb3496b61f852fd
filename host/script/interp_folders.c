/* interp_folders.c: where the Lua files and the plugins are, and what `require` finds.
 *
 * The Lua files are found relative to the binary, never through a path fixed at build time:
 *
 *   PREFIX/bin/accel-run     PREFIX/share/accel/lua   plugins in PREFIX/lib/accel     installed,
 *                            or a moved copy of that
 *   build/accel-run          lua                      plugins beside the binary       build tree
 *   build/MODE/accel-run     lua                      plugins beside the binary       build tree,
 *                            other modes
 *   DIR/accel-run            DIR/lua                  plugins beside the binary       a flat
 *                            folder */
#define _GNU_SOURCE
#include "interp.h"
#include "script.h"
#include "settings/plan.h"

#include <lauxlib.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>

extern int luaopen_accelerate_core(lua_State *L);

static char lua_dir[PATH_MAX], plugin_dir[PATH_MAX];

static bool is_dir(const char *path)
{
  struct stat s;
  return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

/* Finds lua_dir and plugin_dir, once. */
static void find_dirs(void)
{
  static const struct {
    const char *lua, *plugins;
  } layouts[] = {
    { "../share/accel/lua", "../lib/accel" },
    { "../lua", "." },
    { "../../lua", "." },
    { "lua", "." },
  };
  char exe[PATH_MAX], probe[PATH_MAX + 64];
  const char *started = (const char *)getauxval(AT_EXECFN); /* the path that exec received */

  if (*plugin_dir) return;
  /* /proc may not be mounted in a bare root; the working directory is still the one of the
   * start. */
  if (!realpath("/proc/self/exe", exe) && !(started && realpath(started, exe)))
    return; /* modules come from LUA_PATH, or `require` reports them missing */
  *strrchr(exe, '/') = '\0';
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
    snprintf(probe, sizeof probe, "%s/%s/accelerate", exe, layouts[i].lua);
    if (!is_dir(probe)) continue;
    *strrchr(probe, '/') = '\0';
    if (!realpath(probe, lua_dir)) continue;
    snprintf(probe, sizeof probe, "%s/%s", exe, layouts[i].plugins);
    if (!realpath(probe, plugin_dir)) snprintf(plugin_dir, sizeof plugin_dir, "%s", exe);
    return;
  }
  snprintf(lua_dir, sizeof lua_dir, "%.*s/lua", (int)(sizeof lua_dir - 8), exe);
  snprintf(plugin_dir, sizeof plugin_dir, "%s", exe);
}

const char *ax_interp_lua_dir(void)
{
  find_dirs();
  return lua_dir;
}

const char *ax_interp_plugin_dir(void)
{
  find_dirs();
  return plugin_dir;
}

/* "FOLDER/?.lua;FOLDER/?/init.lua;" of the script, after which its own modules are found. */
static void push_script_path(lua_State *L, const ax_plan *plan)
{
  const char *name = plan->script && !plan->stdin_text ? plan->argv[plan->script] : "";
  const char *slash = strrchr(name, '/');

  if (!*name) lua_pushliteral(L, "");
  else if (!slash || plan->set[AX_SET_module].number) lua_pushliteral(L, "./?.lua;./?/init.lua;");
  else {
    lua_pushlstring(L, name, slash == name ? 1 : (size_t)(slash - name));
    lua_pushfstring(L, "%s/?.lua;%s/?/init.lua;", lua_tostring(L, -1), lua_tostring(L, -1));
    lua_remove(L, -2);
  }
}

/* The user's own tree of LuaRocks, where there is one; the machine's is on LuaJIT's path. */
static void add_luarocks(lua_State *L, const char *field, const char *format, const char *folder)
{
  const char *home = ax_home();
  char path[PATH_MAX];

  if (!home || snprintf(path, sizeof path, "%s/.luarocks/%s", home, folder) >= (int)sizeof path ||
      !is_dir(path))
    return;
  lua_getfield(L, -1, field);
  lua_pushfstring(L, format, lua_tostring(L, -1), path, path);
  lua_setfield(L, -3, field);
  lua_pop(L, 1);
}

void ax_interp_set_paths(lua_State *L, const ax_plan *plan)
{
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "path");
  /* jit.v, jit.dump and the others are in lua_dir in an installation */
  push_script_path(L, plan);
  lua_pushfstring(L, "%s/?.lua;%s/?/init.lua;%s/luajit/src/?.lua;%s%s", lua_dir, lua_dir, plugin_dir,
                  lua_tostring(L, -1), lua_tostring(L, -2));
  lua_setfield(L, -4, "path");
  lua_pop(L, 2);
  add_luarocks(L, "path", "%s;%s/?.lua;%s/?/init.lua", "share/lua/5.1");
  add_luarocks(L, "cpath", "%s;%s/?.so", "lib/lua/5.1");
  lua_getfield(L, -1, "preload");
  lua_pushcfunction(L, luaopen_accelerate_core);
  lua_setfield(L, -2, "accelerate.core");
  lua_pushcfunction(L, ax_interp_open_host);
  lua_setfield(L, -2, "accelerate.host");
  lua_pop(L, 2);
  ax_modules_install(L);
}

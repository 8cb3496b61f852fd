/* standard.c: what the host changes in Lua's own library: math's seed, os.setlocale, os.tmpname,
 * pcall and print. */
#include "dist.h"
#include "interp.h"

#include <lauxlib.h>

#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Unseeded ranks draw different numbers; rank 0 draws those of a run of one rank.  Scripts seed
 * with numbers from 0 on. */
static void seed_math_random(lua_State *L)
{
  const int rank = ax_dist_world()->rank;

  if (rank == 0) return;
  lua_getglobal(L, "math");
  lua_getfield(L, -1, "randomseed");
  lua_pushinteger(L, -rank);
  lua_call(L, 1, 0);
  lua_pop(L, 1);
}

/* os.tmpname() makes its file in TMPDIR, where other programs make theirs; Lua's own knows /tmp
 * alone. */
static int temporary_name(lua_State *L)
{
  const char *folder = getenv("TMPDIR");
  char *path;
  int file;

  if (!folder || !*folder) folder = "/tmp";
  lua_pushfstring(L, "%s/lua_XXXXXX", folder);
  path = lua_newuserdata(L, lua_objlen(L, -1) + 1);
  strcpy(path, lua_tostring(L, -2));
  if ((file = mkstemp(path)) < 0)
    return luaL_error(L, "os.tmpname: no file can be made in '%s': %s", folder, strerror(errno));
  close(file);
  lua_pushstring(L, path);
  return 1;
}

/* os.setlocale keeps the numbers of "C": in another language C's own functions would read the 1.5
 * of a file as 1, and write 1,5.  The category "numeric" takes no other locale, so that is nil. */
static int set_locale(lua_State *L)
{
  static const char *const names[] = { "all", "collate", "ctype", "monetary", "numeric", "time", NULL };
  static const int categories[] = { LC_ALL, LC_COLLATE, LC_CTYPE, LC_MONETARY, LC_NUMERIC, LC_TIME };
  const char *locale = luaL_optstring(L, 1, NULL), *set;
  const int category = categories[luaL_checkoption(L, 2, "all", names)];

  set = setlocale(category, locale);
  if (set && locale && strcmp(setlocale(LC_NUMERIC, NULL), "C") != 0) {
    setlocale(LC_NUMERIC, "C");
    set = category == LC_NUMERIC ? NULL : setlocale(category, NULL);
  }
  lua_pushstring(L, set);
  return 1;
}

static void replace_in_os(lua_State *L)
{
  lua_getglobal(L, "os");
  lua_pushcfunction(L, temporary_name);
  lua_setfield(L, -2, "tmpname");
  lua_pushcfunction(L, set_locale);
  lua_setfield(L, -2, "setlocale");
  lua_pop(L, 1);
}

/* An error is explained where it is raised, because only there the stack shows what was called.  A
 * plain pcall has no message handler; this one has, and is xpcall otherwise.  The handler looks at
 * calls of nil alone: scripts use pcall to try whether a field is there, and an explanation takes
 * 50 times as long as the error.  It must not raise. */
static void explain_in_pcall(lua_State *L)
{
  static const char setup[] =
      "local plain, xpcall, require, type, find = pcall, xpcall, require, type, string.find\n"
      "local function explained(err)\n"
      "  if type(err) ~= 'string' or not find(err, 'attempt to call .*%(a nil value%)') then return err end\n"
      "  local found, explain = plain(require, 'accelerate.utils.explain')\n"
      "  return found and explain.raised(err) or err\n"
      "end\n"
      "function pcall(f, ...) return xpcall(f, explained, ...) end\n";

  ax_interp_run_text(L, "=pcall", setup);
}

/* print(x.shape) prints { 2, 3 }: a plain table is shown, as the prompt shows it, in place of its
 * address.  tostring is Lua's own. */
static void show_in_print(lua_State *L)
{
  static const char setup[] =
      "local plain, pcall, require, type, select = print, pcall, require, type, select\n"
      "local getmetatable = debug.getmetatable\n"
      "local function shown(value)\n"
      "  if type(value) ~= 'table' or getmetatable(value) then return value end\n"
      "  local found, show = pcall(require, 'accelerate.utils.show')\n"
      "  return found and show.pformat(value) or value\n"
      "end\n"
      "local function each(n, first, ...)\n"
      "  if n < 2 then return shown(first) end\n"
      "  return shown(first), each(n - 1, ...)\n"
      "end\n"
      "function print(...)\n"
      "  local n = select('#', ...)\n"
      "  for i = 1, n do\n"
      "    if type((select(i, ...))) == 'table' then return plain(each(n, ...)) end\n"
      "  end\n"
      "  plain(...)\n"
      "end\n";

  ax_interp_run_text(L, "=print", setup);
}

void ax_standard_open(lua_State *L)
{
  seed_math_random(L);
  replace_in_os(L);
  explain_in_pcall(L);
  show_in_print(L);
}

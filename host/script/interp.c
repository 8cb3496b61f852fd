/* interp.c: one Lua state, from opening to exit status (model: lua.c's pmain). */
#define _GNU_SOURCE
#include "ax.h"
#include "bind/where.h"
#include "dist.h"
#include "ends.h"
#include "interp.h"
#include "io.h"
#include "script.h"
#include "settings/plan.h"

#include <lauxlib.h>
#include <lualib.h>
#include <stdlib.h>
#include <string.h>

static ax_failure_fn failed_fn;
static char failed_at[256]; /* the script line of the last error that the message handler saw */

/* ---- errors */

/* Whether `name` (as messages shorten it) is a file of the library. */
static bool in_library(const char *name)
{
  const char *lua_dir = ax_interp_lua_dir();
  return strncmp(name, lua_dir, strlen(lua_dir)) == 0 ||
         (strncmp(name, "...", 3) == 0 && strstr(name, "/accelerate/"));
}

/* An error that was caught, given its stack and raised again has its script line in that stack: the
 * first line outside the library. */
static void where_of_stack(const char *stack)
{
  for (const char *line = strstr(stack, "\n\t"); line; line = strstr(line + 2, "\n\t")) {
    const char *name = line + 2, *end = strstr(name, ": in ");
    char text[sizeof failed_at];
    if (!end || *name == '[' || end - name >= (ptrdiff_t)sizeof text ||
        memchr(name, '\n', (size_t)(end - name)))
      continue;
    snprintf(text, sizeof text, "%.*s", (int)(end - name), name);
    if (in_library(text)) continue;
    memcpy(failed_at, text, sizeof text);
    return;
  }
}

/* Between the failure and its report the collector is stopped: the finaliser of a pipe waits for
 * the pipe's program, and the report would wait with it. */
static bool collector_held;

static void hold_collector(lua_State *L)
{
  if (!lua_gc(L, LUA_GCISRUNNING, 0)) return;
  lua_gc(L, LUA_GCSTOP, 0);
  collector_held = true;
}

static void free_collector(lua_State *L)
{
  if (collector_held) lua_gc(L, LUA_GCRESTART, 0);
  collector_held = false;
}

/* Message handler: returns the error as text with its stack, and records the script line. */
static int traceback(lua_State *L)
{
  const char *stack;

  hold_collector(L);
  stack = lua_isstring(L, 1) ? strstr(lua_tostring(L, 1), "\nstack traceback:") : NULL;
  ax_lua_where(L, failed_at, sizeof failed_at);
  if (stack) where_of_stack(stack);
  return ax_errors_handler(L);
}

int ax_interp_call(lua_State *L, int nargs, int nresults)
{
  int base = lua_gettop(L) - nargs, status;

  lua_pushcfunction(L, traceback);
  lua_insert(L, base);
  status = lua_pcall(L, nargs, nresults, base);
  lua_remove(L, base);
  if (status != 0) {
    hold_collector(L); /* an out-of-memory error calls no handler */
    ax_errors_finish(L);
  }
  return status;
}

/* Lua's own message for a full memory, with the limits that the process has. */
static const char *with_limits(const char *text, char *buf, size_t size)
{
  static const char full[] = "not enough memory";
  const char *at = text ? strstr(text, full) : NULL;
  char limits[160];

  if (!at || !ax_ends_limits(limits, sizeof limits)) return text;
  at += sizeof full - 1;
  snprintf(buf, size, "%.*s for Lua's own objects; the process may have %s%s", (int)(at - text), text, limits,
           at);
  return buf;
}

void ax_interp_report(lua_State *L)
{
  char buf[4096];
  const char *text = with_limits(lua_tostring(L, -1), buf, sizeof buf);

  if (failed_fn) {
    failed_fn(text ? text : "the script ended with error()", failed_at);
  } else if (text) {
    fflush(stdout);
    ax_print(stderr, "accel-run: %s\n", text);
  }
  lua_pop(L, 1);
  free_collector(L);
}

void ax_interp_recover(lua_State *L) { free_collector(L); }

/* Waits for a checkpoint that a thread is writing.  Reports when it is lost. */
static bool save_ended(void)
{
  char text[1200];

  if (ax_save_wait() == AX_OK) return true;
  snprintf(text, sizeof text, "save_state: the last checkpoint was not written: %s", ax_last_error());
  if (failed_fn) failed_fn(text, "");
  else ax_print(stderr, "accel-run: %s\n", text);
  return false;
}

/* Whether all that was printed went out.  Reports when some of it is lost. */
static bool output_whole(void)
{
  char text[200];

  if (!ax_streams_lost(text, sizeof text)) return true;
  if (failed_fn) failed_fn(text, "");
  else ax_print(stderr, "accel-run: %s\n", text);
  return false;
}

/* os.exit waits for a checkpoint.  In a rank, a status other than 0 ends the run, so the script
 * line goes into the rank's record. */
static int watched_exit(lua_State *L)
{
  int status = lua_isboolean(L, 1) ? !lua_toboolean(L, 1) : luaL_optint(L, 1, 0);
  char where[256];

  const bool whole = !(failed_fn && (status & 255) != 0) && save_ended();

  if ((status & 255) == 0 && !(whole && output_whole())) {
    lua_settop(L, 0);
    lua_pushinteger(L, AX_EXIT_FAILED);
  } else if (failed_fn && (status & 255) != 0) {
    ax_lua_where(L, where, sizeof where);
    lua_pushfstring(L, "os.exit(%d) was called", status);
    ax_errors_add_stack(L, 0);
    failed_fn(lua_tostring(L, -1), where);
    lua_pop(L, 1);
  }
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, 0);
  return 0;
}

static void watch_exit(lua_State *L)
{
  lua_getglobal(L, "os");
  lua_getfield(L, -1, "exit");
  lua_pushcclosure(L, watched_exit, 1);
  lua_setfield(L, -2, "exit");
  lua_pop(L, 1);
}

/* ---- running */

static const char jit_command[] = "local name, rest = (...):match('^([^=]*)=?(.*)$')\n"
                                  "local args = {}\n"
                                  "for word in rest:gmatch('[^,]+') do args[#args + 1] = word end\n"
                                  "local run = jit[name]\n"
                                  "if type(run) ~= 'function' then run = require('jit.' .. name).start end\n"
                                  "run(unpack(args))\n";

/* Runs -e, -l and -j in the order they were given.  Leaves the error on the stack when one
 * fails. */
static int run_actions(lua_State *L, const ax_plan *plan)
{
  int status = 0;

  for (int i = 0; i < plan->n_actions && status == 0; i++) {
    char letter;
    const char *text = ax_config_action(plan, i, &letter);
    if (letter == 'e') {
      if ((status = luaL_loadbuffer(L, text, strlen(text), "=(command line)")) == 0)
        status = ax_interp_call(L, 0, 0);
    } else if (letter == 'l') {
      lua_getglobal(L, "require");
      lua_pushstring(L, text);
      status = ax_interp_call(L, 1, 0);
    } else {
      if ((status = luaL_loadbuffer(L, jit_command, sizeof jit_command - 1, "=(-j)")) == 0) {
        lua_pushstring(L, text);
        status = ax_interp_call(L, 1, 0);
      }
    }
  }
  return status;
}

/* Sets arg: arg[0] is the script, arg[1].. its arguments, arg[-1].. the words before it. */
static void set_arg(lua_State *L, const ax_plan *plan)
{
  lua_createtable(L, plan->argc - plan->script, plan->script + 1);
  for (int i = 0; i < plan->argc; i++) {
    lua_pushstring(L, plan->argv[i]);
    lua_rawseti(L, -2, i - plan->script);
  }
  lua_setglobal(L, "arg");
}

/* The __index of _G until the first missing global; accelerate.messages.globals takes over then.
 * Upvalue: the script. */
static int miss_global(lua_State *L)
{
  lua_settop(L, 2);
  if (!lua_getmetatable(L, 1)) return 0;
  lua_pushnil(L); /* the code below may read globals too */
  lua_setfield(L, 3, "__index");
  lua_getglobal(L, "require");
  lua_pushliteral(L, "accelerate.messages.globals");
  if (lua_pcall(L, 1, 1, 0) != 0) return 0;
  lua_pushvalue(L, lua_upvalueindex(1));
  if (lua_pcall(L, 1, 1, 0) != 0) return 0;
  lua_pushvalue(L, -1);
  lua_setfield(L, 3, "__index");
  lua_pushvalue(L, 1);
  lua_pushvalue(L, 2);
  lua_call(L, 2, 1);
  return 1;
}

/* The script is on the stack top, and stays there. */
static void watch_globals(lua_State *L)
{
  lua_createtable(L, 0, 1);
  lua_pushvalue(L, -2);
  lua_pushcclosure(L, miss_global, 1);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, LUA_GLOBALSINDEX);
}

/* Loads the script so that its top-level locals stay for the prompt that follows. */
static int load_for_prompt(lua_State *L, const char *path)
{
  int status = luaL_loadfile(L, path);

  if (status != 0) return status;
  lua_getglobal(L, "require");
  lua_pushliteral(L, "accelerate.prompt.chunk");
  if (lua_pcall(L, 1, 1, 0) == 0) {
    lua_getfield(L, -1, "file");
    lua_pushstring(L, path);
    if (lua_pcall(L, 1, 1, 0) == 0 && lua_isfunction(L, -1)) lua_replace(L, -3);
  }
  lua_pop(L, 1);
  return 0;
}

/* Loads the file that `require` would load; leaves it, or the error, on the stack. */
static int load_module(lua_State *L, const char *name)
{
  int status;

  lua_getglobal(L, "package");
  lua_getfield(L, -1, "searchpath");
  lua_pushstring(L, name);
  lua_getfield(L, -3, "path");
  if ((status = lua_pcall(L, 2, 2, 0)) != 0) return status;
  if (lua_isnil(L, -2)) {
    lua_pushfstring(L, "--module: there is no module '%s':%s", name, lua_tostring(L, -1));
    return LUA_ERRFILE;
  }
  return luaL_loadfile(L, lua_tostring(L, -2));
}

static int run_script(lua_State *L, const ax_plan *plan)
{
  int n = 0, status;

  if (plan->stdin_text) {
    const char *text = plan->stdin_text, *end = text + plan->stdin_size;
    if (text < end && *text == '#') /* a "#!" line is skipped, but counts as a line */
      while (text < end && *text != '\n') text++;
    status = luaL_loadbuffer(L, text, (size_t)(end - text), "=stdin");
  } else if (plan->set[AX_SET_module].number) {
    status = load_module(L, plan->argv[plan->script]);
  } else {
    status = (plan->interactive ? load_for_prompt : luaL_loadfile)(L, plan->argv[plan->script]);
  }
  if (status != 0) {
    ax_errors_finish(L);
    return status;
  }
  watch_globals(L);
  if (plan->script)
    for (int i = plan->script + 1; i < plan->argc; i++, n++) {
      luaL_checkstack(L, 1, "too many arguments to the script");
      lua_pushstring(L, plan->argv[i]);
    }
  return ax_interp_call(L, n, 0);
}

/* The header of LuaJIT's bytecode: "\033LJ", version, flags. */
struct header {
  unsigned char bytes[5];
  size_t count;
};
enum { TWO_SLOTS = 0x08 }; /* flag: a call's frame has two slots, which is so with GC64 */

static int keep_header(lua_State *L, const void *piece, size_t size, void *kept)
{
  struct header *h = kept;
  (void)L;
  for (size_t i = 0; i < size && h->count < sizeof h->bytes; i++)
    h->bytes[h->count++] = ((const unsigned char *)piece)[i];
  return 0;
}

/* Users may build with their own LuaJIT source, so its required features are checked at run time.
 * rawlen is there with those of Lua 5.2. */
static void check_build(lua_State *L)
{
  const char *lacks = NULL;
  struct header h = { .count = 0 };

  if (luaL_loadbuffer(L, "", 0, "=check_build") != 0 || lua_dump(L, keep_header, &h) != 0) lua_error(L);
  lua_getglobal(L, "rawlen");
  if (!(h.bytes[4] & TWO_SLOTS)) lacks = "without GC64: it can address only 2 GiB of Lua data";
  else if (lua_isnil(L, -1)) lacks = "without LUAJIT_ENABLE_LUA52COMPAT";
  if (lacks)
    luaL_error(L, "the LuaJIT in this program was built %s; build the program again, with make", lacks);
  lua_pop(L, 2);
}

/* Compiled code must be within 2 GB of the interpreter's own code.  Its memory is reserved in one
 * piece and early, because CUDA maps large parts of the address space later.  The limits are set
 * here for every LuaJIT source; its own defaults are too small for programs of many modules, and
 * would drop all compiled code again and again. */
static void reserve_trace_memory(lua_State *L)
{
  static const char compiled[] = "for _ = 1, 200 do end"; /* into the first piece */

  lua_getglobal(L, "jit");
  lua_getfield(L, -1, "opt");
  lua_getfield(L, -1, "start");
  lua_pushliteral(L, "sizemcode=4096");
  lua_pushliteral(L, "maxmcode=40960");
  lua_pushliteral(L, "maxtrace=8000");
  lua_pushliteral(L, "maxrecord=16000");
  lua_call(L, 4, 0);
  lua_pop(L, 2);
  if (luaL_loadbuffer(L, compiled, sizeof compiled - 1, "=reserve_trace_memory") != 0) lua_error(L);
  lua_call(L, 0, 0);
}

typedef struct job {
  const ax_plan *plan;
  int status;
} job;

static int protected_main(lua_State *L)
{
  job *j = lua_touserdata(L, 1);
  const ax_plan *plan = j->plan;
  int status;

  lua_gc(L, LUA_GCSTOP, 0); /* opening the libraries makes hardly any garbage */
  luaL_openlibs(L);
  lua_gc(L, LUA_GCRESTART, -1);
  check_build(L);
  reserve_trace_memory(L);
  ax_require_open(L); /* first: what follows keeps the function */
  ax_standard_open(L);
  ax_streams_join_stderr(L);
  ax_interp_set_paths(L, plan);
  set_arg(L, plan);
  watch_exit(L);
  if (plan->interactive) ax_errors_keep(L);
  if (!failed_fn) ax_interp_catch_interrupts(L, plan->interactive ? AX_INTERRUPTS_ASK : AX_INTERRUPTS_END);
  ax_interp_catch_looks(L, failed_fn != NULL);
  failed_at[0] = '\0';
  status = run_actions(L, plan);
  if (status == 0 && (plan->script || plan->stdin_text)) status = run_script(L, plan);
  if (plan->interactive) {
    ax_repl_run(L, status != 0);
    return 0;
  }
  if (status != 0) {
    j->status = !failed_fn && ax_interp_take_interrupt() ? AX_EXIT_INTERRUPT : AX_EXIT_FAILED;
    ax_interp_report(L);
  }
  return 0;
}

int ax_interp_run(const ax_plan *plan, ax_failure_fn failed)
{
  job j = { plan, 0 };
  lua_State *L = luaL_newstate();

  if (!L) {
    fputs("accel-run: LuaJIT could not make a state: out of memory\n", stderr);
    return AX_EXIT_FAILED;
  }
  failed_fn = failed;
  ax_ends_watch(L, failed);
  if (failed) ax_streams_by_line(); /* a rank: lines of several do not mix */
  ax_backend_set_dir(ax_interp_plugin_dir());
  ax_lua_set_module_dir(ax_interp_lua_dir());
  if (lua_cpcall(L, protected_main, &j) != 0) {
    ax_interp_report(L);
    j.status = AX_EXIT_FAILED;
  }
  if (failed && j.status != 0) return j.status; /* at once: the other ranks wait for the report */
  if (!save_ended() && j.status == 0) j.status = AX_EXIT_FAILED;
  if (j.status == 0 && !plan->interactive && !output_whole()) j.status = AX_EXIT_FAILED;
  lua_close(L);
  return j.status;
}

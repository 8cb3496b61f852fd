/* interp.c: one Lua state, from opening to exit status (model: lua.c's pmain).
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
#include "ax.h"
#include "bind/group.h"
#include "dist.h"
#include "host.h"
#include "io.h"
#include "ranks.h"

#include <errno.h>
#include <lauxlib.h>
#include <limits.h>
#include <lualib.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern int luaopen_accelerate_core(lua_State *L);

static char lua_dir[PATH_MAX], plugin_dir[PATH_MAX];
static ax_failure_fn failed_fn;
static char failed_at[256]; /* the script line of the last error that the message handler saw */

/* ---- folders --------------------------------------------------------------------------------- */

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
  size_t i;

  if (*plugin_dir) return;
  /* /proc may not be mounted in a bare root; the working directory is still the one of the
   * start. */
  if (!realpath("/proc/self/exe", exe) && !(started && realpath(started, exe)))
    return; /* modules come from LUA_PATH, or `require` reports them missing */
  *strrchr(exe, '/') = '\0';
  for (i = 0; i < sizeof layouts / sizeof *layouts; i++) {
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

const char *ax_interp_lua_dir(void) { return lua_dir; }

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
  const char *home = getenv("HOME");
  char path[PATH_MAX];

  if (!home || snprintf(path, sizeof path, "%s/.luarocks/%s", home, folder) >= (int)sizeof path ||
      !is_dir(path))
    return;
  lua_getfield(L, -1, field);
  lua_pushfstring(L, format, lua_tostring(L, -1), path, path);
  lua_setfield(L, -3, field);
  lua_pop(L, 1);
}

static int open_host(lua_State *L);

static void set_paths(lua_State *L, const ax_plan *plan)
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
  lua_pushcfunction(L, open_host);
  lua_setfield(L, -2, "accelerate.host");
  lua_pop(L, 2);
  ax_modules_install(L);
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* Whether `name` (as messages shorten it) is a file of the library. */
static bool in_library(const char *name)
{
  const size_t n = strlen(lua_dir);
  return strncmp(name, lua_dir, n) == 0 || (strncmp(name, "...", 3) == 0 && strstr(name, "/accelerate/"));
}

/* An error that was caught, given its stack and raised again has its script line in that stack: the
 * first line outside the library. */
static void where_of_stack(const char *stack)
{
  const char *line;

  for (line = strstr(stack, "\n\t"); line; line = strstr(line + 2, "\n\t")) {
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

void ax_interp_report(lua_State *L)
{
  const char *text = lua_tostring(L, -1);

  if (failed_fn) {
    failed_fn(text ? text : "the script ended with error()", failed_at);
  } else if (text) {
    fflush(stdout);
    fprintf(stderr, "accel-run: %s\n", text);
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
  else fprintf(stderr, "accel-run: %s\n", text);
  return false;
}

/* os.exit waits for a checkpoint.  In a rank, a status other than 0 ends the run, so the script
 * line goes into the rank's record. */
static int watched_exit(lua_State *L)
{
  int status = lua_isboolean(L, 1) ? !lua_toboolean(L, 1) : luaL_optint(L, 1, 0);
  char where[256];

  if (!(failed_fn && (status & 255) != 0) && !save_ended() && (status & 255) == 0) {
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

/* ---- Ctrl-C ---------------------------------------------------------------------------------- */

/* The first SIGINT raises "interrupted" where Lua is, in compiled loops too.  A script's second one
 * ends the process, in case the script caught the first error and went on.  At the prompt each one
 * raises, and a second one within a second (the first reached nothing: a long call of C, say) gets
 * a question.  In a notebook's cell each one raises. */
#define AGAIN_NS 1000000000
static lua_State *interrupted_state;
static ax_interrupts interrupts_are;
static int64_t interrupted_at;
static volatile sig_atomic_t interrupts; /* since the last ax_interp_catch_interrupts */
/* Not 0: an interrupt is to be raised.  The binding reads it too, because a hook runs between
 * instructions of Lua and not within a long call.  The code that raises the error resets it. */
volatile int ax_interrupted;

static void raise_interrupt(lua_State *L, lua_Debug *ar)
{
  bool waits = ax_interrupted != 0;

  ax_interrupted = 0;
  lua_sethook(L, NULL, 0, 0);
  if (!waits) return;
  if (lua_getinfo(L, "Sl", ar) && ar->currentline > 0)
    lua_pushfstring(L, "%s:%d: ", ar->short_src, ar->currentline);
  else luaL_where(L, 1); /* in a C function: the line of its call */
  lua_pushliteral(L, "interrupted");
  lua_concat(L, 2);
  lua_error(L);
}

/* Within the signal handler: whatever runs, only the kernel is needed for this. */
static void ask_to_end(void)
{
  static const char question[] = "\naccel-run: interrupted twice: end it, with all that it holds? [y/N] ";
  char answer[64];
  ssize_t n = write(STDERR_FILENO, question, sizeof question - 1);

  if (n > 0) n = read(STDIN_FILENO, answer, sizeof answer);
  if (n > 0 && (*answer == 'y' || *answer == 'Y')) _exit(AX_EXIT_INTERRUPT);
}

/* A terminal interrupts all processes of a run, another program this one alone. */
static void on_interrupt(int sig, siginfo_t *info, void *context)
{
  const int64_t now = ax_monotonic_ns();

  (void)context;
  ax_session_interrupt(info->si_code != SI_KERNEL);
  if (interrupts_are == AX_INTERRUPTS_END) signal(sig, SIG_DFL);
  else if (interrupts_are == AX_INTERRUPTS_ASK && ax_session_rank() <= 0 && /* rank 0 asks */
           interrupts && now - interrupted_at < AGAIN_NS)
    ask_to_end();
  interrupted_at = now;
  interrupts = ax_interrupted = 1;
  lua_sethook(interrupted_state, raise_interrupt, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

void ax_interp_catch_interrupts(lua_State *L, ax_interrupts are)
{
  /* no SA_RESTART: a blocked read returns */
  struct sigaction a = { .sa_sigaction = on_interrupt, .sa_flags = SA_SIGINFO };

  interrupted_state = L;
  interrupts_are = are;
  interrupts = ax_interrupted = 0;
  sigaction(SIGINT, &a, NULL);
}

bool ax_interp_take_interrupt(void)
{
  bool was = interrupts != 0;

  interrupts = ax_interrupted = 0;
  lua_sethook(interrupted_state, NULL, 0, 0);
  return was;
}

static void go_on(int sig) { (void)sig; }

/* accelerate.host.call(fn) -> true, or false and the error as the prompt shows it.  Meanwhile
 * SIGINT raises an error in fn; afterwards it does nothing. */
static int host_call(lua_State *L)
{
  const struct sigaction nothing = { .sa_handler = go_on, .sa_flags = SA_RESTART };
  int status;

  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  ax_interp_catch_interrupts(L, AX_INTERRUPTS_RAISE);
  status = ax_interp_call(L, 0, 0);
  ax_interp_take_interrupt();
  sigaction(SIGINT, &nothing, NULL);
  if (status != 0) ax_interp_recover(L);
  lua_pushboolean(L, status == 0);
  lua_insert(L, 1);
  return lua_gettop(L);
}

static int open_host(lua_State *L)
{
  static const luaL_Reg functions[] = { { "call", host_call }, { NULL, NULL } };

  lua_newtable(L);
  luaL_register(L, NULL, functions);
  return 1;
}

/* ---- SIGUSR1: where the script is ------------------------------------------------------------ */

static lua_State *looked_state;

/* Into the rank's record; alone, to stderr. */
static void write_trace(lua_State *L)
{
  ax_rank_record *me = failed_fn ? ax_rank_own() : NULL;

  lua_pushliteral(L, "");
  ax_errors_add_stack(L, 0);
  if (me) {
    snprintf(me->trace, sizeof me->trace, "%s", lua_tostring(L, -1) + (*lua_tostring(L, -1) == '\n'));
    atomic_store(&me->looked, atomic_load(&me->looks));
  } else {
    fprintf(stderr, "accel-run: SIGUSR1:%s\n", lua_tostring(L, -1));
  }
  lua_pop(L, 1);
}

static void look_in_wait(void)
{
  if (lua_checkstack(looked_state, 8)) write_trace(looked_state);
}

static void look_from_hook(lua_State *L, lua_Debug *ar)
{
  (void)ar;
  lua_sethook(L, NULL, 0, 0);
  write_trace(L);
}

/* A signal may reach any thread; Lua's is the first. */
static void on_look(int sig)
{
  if (syscall(SYS_gettid) != getpid()) {
    syscall(SYS_tgkill, getpid(), getpid(), sig);
    return;
  }
  if (!ax_interrupted)
    lua_sethook(looked_state, look_from_hook, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

static void catch_looks(lua_State *L)
{
  struct sigaction a = { .sa_handler = on_look, .sa_flags = SA_RESTART };

  looked_state = L;
  ax_shm_on_look(look_in_wait);
  sigaction(SIGUSR1, &a, NULL);
}

/* ---- running --------------------------------------------------------------------------------- */

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
  int i, status = 0;

  for (i = 0; i < plan->n_actions && status == 0; i++) {
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
  int i;

  lua_createtable(L, plan->argc - plan->script, plan->script + 1);
  for (i = 0; i < plan->argc; i++) {
    lua_pushstring(L, plan->argv[i]);
    lua_rawseti(L, -2, i - plan->script);
  }
  lua_setglobal(L, "arg");
}

/* The __index of _G until the first missing global; accelerate.utils.globals takes over then.
 * Upvalue: the script. */
static int miss_global(lua_State *L)
{
  lua_settop(L, 2);
  if (!lua_getmetatable(L, 1)) return 0;
  lua_pushnil(L); /* the code below may read globals too */
  lua_setfield(L, 3, "__index");
  lua_getglobal(L, "require");
  lua_pushliteral(L, "accelerate.utils.globals");
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
  int i, n = 0, status;

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
  if (status != 0) return status;
  watch_globals(L);
  if (plan->script)
    for (i = plan->script + 1; i < plan->argc; i++, n++) {
      luaL_checkstack(L, 1, "too many arguments to the script");
      lua_pushstring(L, plan->argv[i]);
    }
  return ax_interp_call(L, n, 0);
}

/* Users may build with their own LuaJIT source, so its required features are checked at run
 * time. */
static void check_build(lua_State *L)
{
  static const char probe[] = "if not require('ffi').abi('gc64') then return 'without GC64: it can address "
                              "only 2 GB of Lua data' end\n"
                              "if #setmetatable({}, { __len = function() return 1 end }) ~= 1 then return "
                              "'without LUAJIT_ENABLE_LUA52COMPAT' end\n";

  if (luaL_loadbuffer(L, probe, sizeof probe - 1, "=check_build") != 0) lua_error(L);
  lua_call(L, 0, 1);
  if (lua_isstring(L, -1))
    luaL_error(L, "the LuaJIT in this program was built %s; build the program again, with make",
               lua_tostring(L, -1));
  lua_pop(L, 1);
}

/* Compiled code must be within 2 GB of the interpreter's own code.  Its memory is reserved in one
 * piece and early, because CUDA maps large parts of the address space later.  The limits are set
 * here for every LuaJIT source; its own defaults are too small for programs of many modules, and
 * would drop all compiled code again and again. */
static void reserve_trace_memory(lua_State *L)
{
  static const char setup[] =
      "jit.opt.start('sizemcode=4096', 'maxmcode=40960', 'maxtrace=8000', 'maxrecord=16000')\n"
      "for _ = 1, 200 do end\n"; /* compiled, into the first piece */

  if (luaL_loadbuffer(L, setup, sizeof setup - 1, "=reserve_trace_memory") != 0) lua_error(L);
  lua_call(L, 0, 0);
}

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

/* An error is explained where it is raised, because only there the stack shows what was called.  A
 * plain pcall has no message handler; this one has, and is xpcall otherwise.  The handler looks at
 * calls of nil alone.  It must not raise. */
static void explain_in_pcall(lua_State *L)
{
  static const char setup[] =
      "local plain, xpcall, require, type, find = pcall, xpcall, require, type, string.find\n"
      "local function explained(err)\n"
      "  if type(err) ~= 'string' or not find(err, '(a nil value)', 1, true) then return err end\n"
      "  local found, explain = plain(require, 'accelerate.utils.explain')\n"
      "  return found and explain.raised(err) or err\n"
      "end\n"
      "function pcall(f, ...) return xpcall(f, explained, ...) end\n";

  if (luaL_loadbuffer(L, setup, sizeof setup - 1, "=pcall") != 0) lua_error(L);
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
  seed_math_random(L);
  explain_in_pcall(L);
  set_paths(L, plan);
  set_arg(L, plan);
  watch_exit(L);
  if (!failed_fn) ax_interp_catch_interrupts(L, plan->interactive ? AX_INTERRUPTS_ASK : AX_INTERRUPTS_END);
  catch_looks(L);
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
  if (failed) /* a rank: each line is one write, so that lines of several ranks do not mix */
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
  find_dirs();
  ax_backend_set_dir(plugin_dir);
  ax_lua_set_module_dir(lua_dir);
  if (lua_cpcall(L, protected_main, &j) != 0) {
    ax_interp_report(L);
    j.status = AX_EXIT_FAILED;
  }
  if (failed && j.status != 0) return j.status; /* at once: the other ranks wait for the report */
  if (!save_ended() && j.status == 0) j.status = AX_EXIT_FAILED;
  lua_close(L);
  return j.status;
}

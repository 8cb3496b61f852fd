/* bind/memory.c: runs the Lua collector when tensors have piled up.  The collector itself sees
 * eight bytes where a tensor holds a gigabyte.
 *
 * A collection is due when live bytes have grown by half of what the last one left, at least 32 MB
 * and at most 256 MB.  Where a device is in use, a 64th of its memory takes the place of both if it
 * is more: an evaluation on a large GPU would else collect several times a forward pass.  It is
 * postponed while the last one is recent in relation to its cost (a large Lua heap takes tens of
 * milliseconds), but never past four times that growth: memory stays flat whatever the clock shows.
 * The clock counts this thread's processor time, so other load on the machine changes nothing.
 * Where a device is in use it counts all time: the host waits for the device's queue, and a
 * collection meanwhile costs the step nothing.
 *
 * Before an allocation fails there are two more attempts: a collection, and a collection without
 * LuaJIT's traces.  A trace holds the objects that it was specialised on, tensors among them, for
 * as long as its function lives.  Without traces these objects are garbage; the price is that code
 * is compiled again.
 *
 * What a collection leaves may be held by circles through the tape (bind/anchors.c).  When that has
 * grown as above since circles were last broken, they are broken.
 *
 * The best moment for a collection is the end of a backward pass: the graph is gone, and what
 * remains of the step are the dead handles of the user's forward, which keep its activations.  A
 * collection at that moment finds all of them.  A collection in the middle of the next forward
 * finds half of them and lets more pile up.  The pressure when backward began is therefore the need
 * of a step, and no reason to collect.  Garbage of a 64th of a device's memory is collected there
 * whatever the clock shows: so much memory is worth the milliseconds. */
#include "bind/bind.h"
#include "capture.h"
#include "feed.h"

#include <luajit.h>
#include <time.h>

#define LEAST_GROWTH ((int64_t)32 << 20)
#define MOST_GROWTH ((int64_t)256 << 20)
#define PATIENCE 4                  /* times the growth allowed: past it a collection runs at any cost */
#define POSTPONE ((int64_t)4 << 20) /* growth until the clock is read again */
#define MOST_ROUNDS 8               /* collections before an allocation fails */
#define SHARE 10.0                  /* a collection of c seconds at most every 10 c */
/* ... at the end of a backward pass every 2 c, where a 256th of a device's memory is at stake. */
#define SHARE_OF_MUCH 2.0

static _Thread_local struct {
  int64_t left; /* pressure after the last collection */
  /* after the last one at the end of a backward pass, or the least since: what lives from step to
   * step.  A collection in the middle of a forward pass leaves the activations of that step too. */
  int64_t lasting;
  int64_t unbroken; /* after the last one that broke circles; the least one since, where that is less */
  /* pressure when the last backward pass began; 0 where garbage of the step before was in it */
  int64_t need;
  bool clean;         /* no garbage to speak of was there when the last backward pass had ended */
  double ended, cost; /* seconds of processor time */
} last;

static double now(void)
{
  struct timespec t;
  clock_gettime(ax_memory_of_device() > 0 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int64_t growth_over(int64_t pressure)
{
  const int64_t half = pressure / 2, device = ax_memory_of_device() / 64,
                least = device > LEAST_GROWTH ? device : LEAST_GROWTH,
                most = device > MOST_GROWTH ? device : MOST_GROWTH;
  return half < least ? least : half > most ? most : half;
}

static int64_t growth_allowed(void) { return growth_over(last.left); }

/* thorough (an argument that is not NULL): circles are broken at once. */
static int run_collector(lua_State *L)
{
  const bool thorough = lua_touserdata(L, 1) != NULL;
  int64_t pressure;

  lua_gc(L, LUA_GCCOLLECT, 0);
  ax_lua_sweep_orphans(L);
  pressure = ax_memory_pressure();
  if (pressure < last.unbroken) last.unbroken = pressure;
  if (ax_lua.n_anchors == 0) return 0;
  if (!thorough && pressure <= last.unbroken + growth_over(last.unbroken)) return 0;
  ax_lua_break_circles(L);
  ax_lua_sweep_orphans(L);
  last.unbroken = ax_memory_pressure();
  return 0;
}

/* In the middle of a step, at the end of its backward pass, or before an allocation fails. */
typedef enum { DURING, BETWEEN_STEPS, THOROUGH } moment;

/* Runs a full collection.  Returns the status of lua_cpcall (a user's finaliser may raise), with
 * the error on the stack. */
static int collect(lua_State *L, moment when)
{
  const double start = now();
  int status;

  ax_lua.collecting = true;
  status = lua_cpcall(L, run_collector, when == THOROUGH ? &last : NULL);
  ax_lua.collecting = false;
  if (ax_lua.dead) ax_lua_drop_dead(L);
  ax_memory_count_collection();
  last.ended = now();
  last.cost = last.ended - start;
  last.left = ax_memory_pressure();
  if (when == BETWEEN_STEPS || last.left < last.lasting) last.lasting = last.left;
  ax_lua.mark = last.left + growth_allowed();
  if (ax_lua.mark < last.need + LEAST_GROWTH) ax_lua.mark = last.need + LEAST_GROWTH;
  return status;
}

void ax_lua_slow(lua_State *L)
{
  const int64_t pressure = ax_memory_pressure(), most = last.left + PATIENCE * growth_allowed();

  if (ax_lua.collecting) return; /* a finaliser written in Lua uses tensors */
  if (ax_offload_over && ax_offload_trim() != AX_OK) ax_lua_raise(L, "offload");
  if (&ax_interrupted && ax_interrupted) {
    ax_interrupted = 0;
    luaL_error(L, "interrupted");
  }
  if (!lua_checkstack(L, 16)) return;
  if (ax_lua.dead) ax_lua_drop_dead(L);
  if (pressure <= ax_lua.mark) return;
  if (now() - last.ended < SHARE * last.cost && pressure < most) {
    ax_lua.mark = pressure + POSTPONE < most ? pressure + POSTPONE : most - 1;
    return;
  }
  if (collect(L, DURING) != 0) lua_error(L);
}

/* A dead handle weighs little in Lua's heap and pins a tensor, and the graph behind it, until its
 * cycle ends.  So once something is recorded for autograd, a cycle begins when the last one ends:
 * the next results find the memory of the last ones in the cache.  While modules load, where
 * nothing is recorded, and in a script that set a pause of its own, the pause stays. */
void ax_lua_shorten_pause(lua_State *L)
{
  const int former = lua_gc(L, LUA_GCSETPAUSE, 100);

  if (former != LUAI_GCPAUSE) lua_gc(L, LUA_GCSETPAUSE, former);
  ax_lua.pause_shortened = true;
}

void ax_lua_backward_begins(lua_State *L)
{
  if (!ax_lua.pause_shortened) ax_lua_shorten_pause(L);
  last.need = last.clean ? ax_memory_pressure() : 0;
}

void ax_lua_backward_ends(lua_State *L)
{
  const int64_t grown = ax_memory_pressure() - last.lasting, device = ax_memory_of_device();
  const bool much = grown >= LEAST_GROWTH;
  const double share = device == 0 || grown < device / 256 ? SHARE : grown < device / 64 ? SHARE_OF_MUCH : 0;
  const bool due =
      much && !ax_lua.collecting && now() - last.ended >= share * last.cost && lua_checkstack(L, 16);
  last.clean = due || !much;
  if (due && collect(L, BETWEEN_STEPS) != 0) lua_error(L);
}

static bool hook_called;
static void note_call(lua_State *L, lua_Debug *ar) { hook_called = true; }
static int nothing(lua_State *L) { return 0; }

/* Compiled code leaves its trace before it calls the binding, but the compiler itself may be active
 * further up the stack.  Inside a handler of its events (jit.attach) a flush would free traces that
 * it uses; and a finaliser may run at the exit of a trace.  LuaJIT has no function that reports
 * this, but in both states it calls no hooks: a test call shows whether one runs. */
static void flush_traces(lua_State *L)
{
  const lua_Hook former = lua_gethook(L);
  const int mask = lua_gethookmask(L), count = lua_gethookcount(L);

  hook_called = false;
  lua_sethook(L, note_call, LUA_MASKCALL, 0);
  if (lua_cpcall(L, nothing, NULL) != 0) lua_pop(L, 1);
  /* else a signal's handler has set its own */
  if (lua_gethook(L) == note_call) lua_sethook(L, former, mask, count);
  if (hook_called) luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_FLUSH);
}

/* core._flush_traces(): drops compiled code; the next collection frees the objects that the code
 * held */
static int drop_traces(lua_State *L)
{
  if (!ax_lua.collecting) flush_traces(L);
  return 0;
}

/* Collects until a collection frees nothing more: one collection may make garbage for the next. */
static void collect_all(lua_State *L)
{
  int64_t before;
  int round = 0;
  do {
    before = ax_memory_pressure();
    if (collect(L, THOROUGH) != 0) lua_pop(L, 1); /* no place to raise it */
  } while (++round < 2 || (round < MOST_ROUNDS && ax_memory_pressure() < before));
}

/* The memory hook: called before an allocation fails.  The core may be deep in an op, but the Lua
 * stack or a count holds everything that it works on. */
static bool last_chance(size_t wanted, int attempt)
{
  lua_State *L = ax_lua.L;

  if (attempt > 1 || !ax_lua.open || ax_lua.collecting || !lua_checkstack(L, 16)) return false;
  if (attempt == 0) {
    if (collect(L, THOROUGH) != 0) lua_pop(L, 1);
    return true;
  }
  flush_traces(L);
  collect_all(L);
  return true;
}

/* ---- what scripts see */

static void set_number(lua_State *L, const char *key, int64_t v)
{
  lua_pushnumber(L, (double)v);
  lua_setfield(L, -2, key);
}

/* The backend of the device named at idx; the CPU's where there is none. */
static const ax_backend *backend_at(lua_State *L, int idx, const char *fn)
{
  const ax_backend *b;
  const ax_device d =
      lua_isnoneornil(L, idx) ? (ax_device){ AX_CPU, 0 } : ax_lua_check_device(L, idx, fn, "device");
  if (ax_backend_of(d, &b) != AX_OK) ax_lua_raise(L, fn);
  return b;
}

static int memory_stats(lua_State *L)
{
  ax_memory_stats s = { 0 };
  const ax_backend *b;
  ax_lua_enter(L);
  b = lua_isnoneornil(L, 1) ? NULL : backend_at(L, 1, "memory_stats");
  if (b && b->memory) b->memory->stats(ax_lua_check_device(L, 1, "memory_stats", "device").index, &s);
  else ax_memory_get(&s);
  lua_createtable(L, 0, 18);
  set_number(L, "live_bytes", s.live_bytes);
  set_number(L, "peak_bytes", s.peak_bytes);
  set_number(L, "cached_bytes", s.cached_bytes);
  set_number(L, "limit_bytes", s.limit_bytes);
  set_number(L, "live_blocks", s.live_blocks);
  set_number(L, "structs", s.structs);
  set_number(L, "allocations", s.allocations);
  set_number(L, "cache_hits", s.cache_hits);
  set_number(L, "pressure_collections", s.pressure_collections);
  if (b && b->memory) {
    set_number(L, "waits", s.waits);
    set_number(L, "uploads", s.uploads);
  }
  set_number(L, "reserved_bytes", b && b->memory ? s.reserved_bytes : s.live_bytes + s.cached_bytes);
  set_number(L, "peak_reserved_bytes", s.peak_reserved_bytes);
  set_number(L, "available_bytes", s.available_bytes);
  set_number(L, "segments", s.segments);
  set_number(L, "retries", s.retries);
  set_number(L, "failures", s.failures);
  return 1;
}

/* core.set_memory_limit(bytes): 0 restores the default */
static int set_memory_limit(lua_State *L)
{
  ax_lua_enter(L);
  ax_memory_set_limit(ax_lua_check_integer(L, 1, "set_memory_limit", "bytes", 0, INT64_C(1) << 53));
  return 0;
}

static int empty_cache(lua_State *L)
{
  const ax_backend *b;
  ax_lua_enter(L);
  if (ax_recording) return ax_lua_error(L, "empty_cache", "cannot be called while a step is captured");
  b = backend_at(L, 1, "empty_cache");
  if (b->memory) b->memory->empty_cache(ax_lua_check_device(L, 1, "empty_cache", "device").index);
  else ax_memory_empty_cache();
  return 0;
}

static int reset_peak_memory_stats(lua_State *L)
{
  const ax_backend *b;
  ax_lua_enter(L);
  b = backend_at(L, 1, "reset_peak_memory_stats");
  if (b->memory) b->memory->reset_peak(ax_lua_check_device(L, 1, "reset_peak_memory_stats", "device").index);
  else ax_memory_reset_peak();
  return 0;
}

/* core.debug_fail_alloc(n): the n-th allocation from now fails; 0: none */
static int debug_fail_alloc(lua_State *L)
{
  ax_lua_enter(L);
  ax_alloc_fail_at(ax_lua_check_integer(L, 1, "debug_fail_alloc", "n", 0, INT64_C(1) << 53));
  return 0;
}

/* core.debug_claims_missed(): how often memory was used that a claim stood before; sanitized builds
 * count it */
static int debug_claims_missed(lua_State *L)
{
  lua_pushnumber(L, (double)ax_claims_missed());
  return 1;
}

/* ---- the backend */

static int get_num_threads(lua_State *L)
{
  ax_lua_enter(L);
  lua_pushinteger(L, backend_at(L, 1, "get_num_threads")->get_threads());
  return 1;
}

static int set_num_threads(lua_State *L)
{
  int n;
  ax_lua_enter(L);
  n = (int)ax_lua_check_integer(L, 1, "set_num_threads", "n", 1, 4096);
  if (n > 1 && ax_worker_inside())
    return ax_lua_error(L, "set_num_threads", "a loader's worker process has one thread, got %d", n);
  backend_at(L, 2, "set_num_threads")->set_threads(n);
  return 0;
}

static int backend_info(lua_State *L)
{
  const ax_backend *b;
  ax_lua_enter(L);
  b = backend_at(L, 1, "backend_info");
  lua_createtable(L, 0, 3);
  lua_pushstring(L, b->name);
  lua_setfield(L, -2, "name");
  lua_pushstring(L, b->level);
  lua_setfield(L, -2, "level");
  lua_pushstring(L, b->describe ? b->describe() : "");
  lua_setfield(L, -2, "description");
  return 1;
}

/* core.device_count(kind) -> how many devices can be used; for 0 also the reason */
static int device_count(lua_State *L)
{
  ax_device d;
  int n;
  ax_lua_enter(L);
  if (lua_type(L, 1) != LUA_TSTRING || !ax_lua_device_parse(lua_tostring(L, 1), &d))
    return ax_lua_arg_error(L, "device_count", 1, "kind", "\"cpu\" or \"cuda\"", 1);
  n = ax_device_count(d.kind);
  lua_pushinteger(L, n);
  if (n > 0) return 1;
  lua_pushstring(L, ax_last_error());
  return 2;
}

/* core.set_default_device(device) -> the former one's name; constructors put tensors on `device`
 * when no other is given */
static int set_default_device(lua_State *L)
{
  char text[16];
  const ax_device former = ax_lua.device;
  ax_lua_enter(L);
  ax_lua.device = ax_lua_check_device(L, 1, "set_default_device", "device");
  lua_pushstring(L, ax_device_text(former, text, sizeof text));
  return 1;
}

/* core.set_default_dtype(dtype): see ax_default_dtype */
static int set_default_dtype(lua_State *L)
{
  ax_lua_enter(L);
  const ax_dtype d = ax_lua_check_dtype(L, 1, "set_default_dtype", "dtype");
  if (ax_dtype_category(d) != AX_FLOATING || ax_is_float8(d))
    return ax_lua_error(L, "set_default_dtype", "dtype: expected a floating type, got %s", ax_dtype_name(d));
  ax_default_dtype = d;
  return 0;
}

static int get_default_dtype(lua_State *L)
{
  lua_pushstring(L, ax_dtype_name(ax_default_dtype));
  return 1;
}

/* core.synchronize(device): waits until the device has finished all queued work */
static int synchronize(lua_State *L)
{
  ax_lua_enter(L);
  if (ax_device_synchronize(ax_lua_check_device(L, 1, "synchronize", "device")) != AX_OK)
    return ax_lua_raise(L, "synchronize");
  return 0;
}

/* core.set_float32_matmul_precision(p), core.get_float32_matmul_precision() */
static const char *const precisions[] = { "highest", "high", "medium" };

static int set_float32_matmul_precision(lua_State *L)
{
  ax_lua_enter(L);
  for (int k = 0; lua_type(L, 1) == LUA_TSTRING && k < 3; k++)
    if (strcmp(lua_tostring(L, 1), precisions[k]) == 0) {
      ax_float32_matmul_precision_set((ax_precision)k);
      return 0;
    }
  return ax_lua_arg_error(L, "set_float32_matmul_precision", 1, "precision",
                          "\"highest\", \"high\" or \"medium\"", 1);
}

static int get_float32_matmul_precision(lua_State *L)
{
  ax_lua_enter(L);
  lua_pushstring(L, precisions[ax_float32_matmul_precision()]);
  return 1;
}

/* core.set_convolution_tf32(true, false or nil: as with products), core.get_convolution_tf32() */
static int set_convolution_tf32(lua_State *L)
{
  ax_lua_enter(L);
  lua_settop(L, 1);
  ax_convolution_tf32_set(lua_isnil(L, 1) ? -1 : ax_lua_check_boolean(L, 1, "allow_tf32", "value"));
  return 0;
}

static int get_convolution_tf32(lua_State *L)
{
  ax_lua_enter(L);
  lua_pushboolean(L, ax_convolution_tf32());
  return 1;
}

/* core.set_deterministic(on), core.get_deterministic() */
static int set_deterministic(lua_State *L)
{
  ax_lua_enter(L);
  ax_deterministic_set(ax_lua_check_boolean(L, 1, "use_deterministic_algorithms", "mode"));
  return 0;
}

static int get_deterministic(lua_State *L)
{
  ax_lua_enter(L);
  lua_pushboolean(L, ax_deterministic());
  return 1;
}

/* core.kernel_stats({ reset = false, device = "cpu" }) -> a table name -> calls: how often each
 * counted kernel ran on this thread (for GPUs: in this process) */
static int kernel_stats(lua_State *L)
{
  static const char *const names[] = { "reset", "device" };
  ax_device device = { AX_CPU, 0 };
  const ax_backend *b;
  const ax_kernel_stat *list;
  bool reset = false;
  int n = 0;

  ax_lua_enter(L);
  lua_settop(L, 1);
  if (!lua_isnil(L, 1)) {
    if (!ax_lua_is_options(L, 1, true))
      return ax_lua_arg_error(L, "kernel_stats", 1, "options", "a table of options", 1);
    ax_lua_check_options(L, 1, "kernel_stats", names, 2);
    lua_getfield(L, 1, "reset");
    if (!lua_isnil(L, -1)) reset = ax_lua_check_boolean(L, -1, "kernel_stats", "reset");
    lua_getfield(L, 1, "device");
    if (!lua_isnil(L, -1)) device = ax_lua_check_device(L, -1, "kernel_stats", "device");
    lua_pop(L, 2);
  }
  if (ax_backend_of(device, &b) != AX_OK) return ax_lua_raise(L, "kernel_stats");
  lua_newtable(L);
  if (!b->stats) return 1;
  list = b->stats(&n, false);
  for (int k = 0; k < n; k++) {
    if (!list[k].calls) continue;
    lua_pushnumber(L, (double)list[k].calls);
    lua_setfield(L, -2, list[k].name);
  }
  if (reset) b->stats(&n, true);
  return 1;
}

void ax_lua_open_memory(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "memory_stats", memory_stats },
    { "set_memory_limit", set_memory_limit },
    { "empty_cache", empty_cache },
    { "_flush_traces", drop_traces },
    { "reset_peak_memory_stats", reset_peak_memory_stats },
    { "debug_fail_alloc", debug_fail_alloc },
    { "debug_claims_missed", debug_claims_missed },
    { "get_num_threads", get_num_threads },
    { "set_num_threads", set_num_threads },
    { "backend_info", backend_info },
    { "device_count", device_count },
    { "synchronize", synchronize },
    { "set_default_device", set_default_device },
    { "set_default_dtype", set_default_dtype },
    { "get_default_dtype", get_default_dtype },
    { "kernel_stats", kernel_stats },
    { "set_float32_matmul_precision", set_float32_matmul_precision },
    { "get_float32_matmul_precision", get_float32_matmul_precision },
    { "set_convolution_tf32", set_convolution_tf32 },
    { "get_convolution_tf32", get_convolution_tf32 },
    { "set_deterministic", set_deterministic },
    { "get_deterministic", get_deterministic },
    { NULL, NULL },
  };
  ax_lua_add_functions(L, functions);
  last.left = last.lasting = ax_memory_pressure();
  last.ended = last.cost = 0;
  ax_lua.mark = last.left + growth_allowed();
  ax_memory_set_hook(last_chance);
}

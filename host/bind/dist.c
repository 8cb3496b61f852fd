/* bind/dist.c: process groups in Lua (core.dist). */
#include "bind/group.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <lauxlib.h>

#include "bind/bind.h"
#include "bind/where.h"
#include "dist.h"

/* ---- collectives */

/* The error that this rank is about to report in a collective.  Ranks that wait in another
 * collective never read the report: messages about the two show it behind this rank's line. */
static char fault[72];

void ax_lua_enter_collective(lua_State *L)
{
  enum { LINE = 40 }; /* bytes of a line's name before an error */
  char where[128];

  ax_lua_enter(L);
  if (ax_dist_world()->size == 1) return;
  ax_lua_where(L, where, fault[0] ? LINE : sizeof where);
  if (fault[0]) snprintf(where + strlen(where), sizeof where - LINE, " (to report: %s)", fault);
  ax_dist_set_where(where);
}

/* report(message): see `fault`; nil: nothing.  The end of a long one says more than the paths
 * before it. */
static int dist_report(lua_State *L)
{
  const char *text = luaL_optstring(L, 1, "");
  const size_t size = strcspn(text, "\n"), most = sizeof fault - 4;
  const size_t left_out = size > most ? size - most : 0;

  snprintf(fault, sizeof fault, "%s%.*s", left_out ? "..." : "", (int)(size - left_out), text + left_out);
  return 0;
}

static ax_reduction check_reduction(lua_State *L, int idx, const char *fn)
{
  ax_reduction r = AX_SUM;
  size_t n;

  if (lua_isnoneornil(L, idx)) return r;
  if (lua_type(L, idx) != LUA_TSTRING || !lua_tolstring(L, idx, &n) ||
      ax_reduction_parse(lua_tostring(L, idx), &r) != AX_OK)
    ax_lua_arg_error(L, fn, idx, "op", "one of sum, mean, max, min, prod", idx);
  return r;
}

static int check_rank(lua_State *L, int idx, const char *fn, const char *name, const ax_group *g)
{
  return lua_isnoneornil(L, idx) ? 0 : (int)ax_lua_check_integer(L, idx, fn, name, 0, g->size - 1);
}

/* ---- groups: userdata that hold a reference; where a function takes one, nil is the world */

static void clear_group(lua_State *L, void *object)
{
  ax_group **g = object;

  (void)L;
  ax_group_release(*g);
  *g = NULL;
}

static const ax_lua_class group_class = { "a process group", sizeof(ax_group *), clear_group, NULL };

ax_group *ax_lua_group_at(lua_State *L, int idx, const char *fn)
{
  return lua_isnoneornil(L, idx) ? ax_dist_world() : ax_lua_check_pointer(L, idx, &group_class, fn);
}

/* (group, colour, key, name) -> the new group of the ranks with this colour, or nil for colour
 * -1 */
static int dist_group_split(lua_State *L)
{
  static const char fn[] = "new_group";
  ax_group *from, **g;
  int colour, key;

  ax_lua_enter_collective(L);
  lua_settop(L, 4);
  from = ax_lua_group_at(L, 1, fn);
  colour = (int)ax_lua_check_integer(L, 2, fn, "colour", -1, INT32_MAX);
  key = (int)ax_lua_check_integer(L, 3, fn, "key", INT32_MIN, INT32_MAX);
  g = ax_lua_push_object(L, &group_class);
  if (ax_group_split(from, colour, key, luaL_checkstring(L, 4), g) != AX_OK) return ax_lua_raise(L, fn);
  if (!*g) lua_pushnil(L);
  return 1;
}

/* (group) -> its rank, size, name, and the list of its ranks in the world */
static int dist_group_facts(lua_State *L)
{
  const ax_group *g = ax_lua_group_at(L, 1, "group");

  lua_pushinteger(L, g->rank);
  lua_pushinteger(L, g->size);
  lua_pushstring(L, g->name);
  lua_createtable(L, g->size, 0);
  for (int k = 0; k < g->size; k++) {
    lua_pushinteger(L, ax_group_world_rank(g, k));
    lua_rawseti(L, -2, k + 1);
  }
  return 4;
}

static int dist_group_release(lua_State *L)
{
  ax_group **g = ax_lua_check_object(L, 1, &group_class, "destroy_process_group");

  ax_group_release(*g);
  *g = NULL;
  return 0;
}

static int dist_rank(lua_State *L)
{
  lua_pushinteger(L, ax_dist_world()->rank);
  return 1;
}
static int dist_world_size(lua_State *L)
{
  lua_pushinteger(L, ax_dist_world()->size);
  return 1;
}
static int dist_local_rank(lua_State *L)
{
  lua_pushinteger(L, ax_dist_world()->local_rank);
  return 1;
}
static int dist_local_world_size(lua_State *L)
{
  lua_pushinteger(L, ax_dist_world()->local_size);
  return 1;
}

/* ---- work: a collective that was begun; a userdata that holds the tensor */

static const ax_lua_class work_class;

static int work_wait(lua_State *L)
{
  ax_work **w = ax_lua_check_object(L, 1, &work_class, "wait"), *work = *w;

  *w = NULL;
  if (ax_work_wait(work) != AX_OK) return ax_lua_raise(L, "all_reduce");
  return 0;
}

/* Nobody called work:wait().  The memory still must not be used again before the collective has
 * ended. */
static void clear_work(lua_State *L, void *object)
{
  ax_work **w = object, *work = *w;

  *w = NULL;
  ax_work_wait(work);
}

static const luaL_Reg work_methods[] = { { "wait", work_wait }, { NULL, NULL } };
static const ax_lua_class work_class = { "a collective under way", sizeof(ax_work *), clear_work,
                                         work_methods };

/* (tensor at 1) -> the work */
static int begin_all_reduce(lua_State *L, ax_group *g, ax_tensor *t, ax_reduction r, int model)
{
  ax_work **w = ax_lua_push_object(L, &work_class);

  lua_createtable(L, 1, 0);
  lua_pushvalue(L, 1);
  lua_rawseti(L, -2, 1);
  lua_setfenv(L, -2);
  if (ax_dist_all_reduce_begin(g, t, r, model, w) != AX_OK) return ax_lua_raise(L, "all_reduce");
  return 1;
}

/* (tensor, reduction, model, begin, group).  begin true: returns work; work:wait() queues what
 * follows on the device behind the end of the collective, and the tensor must not be used
 * before. */
static int dist_all_reduce(lua_State *L)
{
  ax_tensor *t;
  ax_reduction r;
  ax_group *g;
  int model;

  ax_lua_enter_collective(L);
  t = ax_lua_check_tensor(L, 1, "all_reduce", "tensor");
  g = ax_lua_group_at(L, 5, "all_reduce");
  r = check_reduction(L, 2, "all_reduce");
  model = lua_isnoneornil(L, 3) ? 0 : (int)ax_lua_check_integer(L, 3, "all_reduce", "model", 0, INT32_MAX);
  if (lua_toboolean(L, 4)) return begin_all_reduce(L, g, t, r, model);
  if (ax_dist_all_reduce(g, t, r, model) != AX_OK) return ax_lua_raise(L, "all_reduce");
  lua_settop(L, 1);
  return 1;
}

static int dist_broadcast(lua_State *L)
{
  ax_tensor *t;
  ax_group *g;
  int root;

  ax_lua_enter_collective(L);
  t = ax_lua_check_tensor(L, 1, "broadcast", "tensor");
  g = ax_lua_group_at(L, 3, "broadcast");
  root = check_rank(L, 2, "broadcast", "src", g);
  if (ax_dist_broadcast(g, t, root) != AX_OK) return ax_lua_raise(L, "broadcast");
  lua_settop(L, 1);
  return 1;
}

/* (tensors, root, group): each tensor gets root's elements. */
static int dist_broadcast_all(lua_State *L)
{
  ax_tensor **list;
  ax_group *g;
  int n, root;

  ax_lua_enter_collective(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  g = ax_lua_group_at(L, 3, "broadcast_all");
  root = check_rank(L, 2, "broadcast_all", "src", g);
  n = (int)lua_objlen(L, 1);
  list = lua_newuserdata(L, (size_t)(n + 1) * sizeof *list);
  for (int k = 0; k < n; k++) {
    lua_rawgeti(L, 1, k + 1);
    list[k] = ax_lua_check_tensor(L, -1, "broadcast_all", "tensor");
    lua_pop(L, 1); /* the table holds it */
  }
  if (ax_dist_broadcast_all(g, n, list, root) != AX_OK) return ax_lua_raise(L, "broadcast");
  return 0;
}

static int dist_all_gather(lua_State *L)
{
  ax_tensor *t, **out;

  ax_lua_enter_collective(L);
  lua_settop(L, 2);
  t = ax_lua_check_tensor(L, 1, "all_gather", "tensor");
  out = ax_lua_push_box(L);
  if (ax_dist_all_gather(ax_lua_group_at(L, 2, "all_gather"), t, out) != AX_OK)
    return ax_lua_raise(L, "all_gather");
  return 1;
}

static int dist_reduce_scatter(lua_State *L)
{
  ax_tensor *t, **out;
  ax_reduction r;

  ax_lua_enter_collective(L);
  lua_settop(L, 3);
  t = ax_lua_check_tensor(L, 1, "reduce_scatter", "tensor");
  r = check_reduction(L, 2, "reduce_scatter");
  out = ax_lua_push_box(L);
  if (ax_dist_reduce_scatter(ax_lua_group_at(L, 3, "reduce_scatter"), t, r, out) != AX_OK)
    return ax_lua_raise(L, "reduce_scatter");
  return 1;
}

static int dist_gather(lua_State *L)
{
  ax_tensor *t, **out;
  ax_group *g;
  int root;

  ax_lua_enter_collective(L);
  lua_settop(L, 3);
  t = ax_lua_check_tensor(L, 1, "gather", "tensor");
  g = ax_lua_group_at(L, 3, "gather");
  root = check_rank(L, 2, "gather", "dst", g);
  out = ax_lua_push_box(L);
  if (ax_dist_gather(g, t, root, out) != AX_OK) return ax_lua_raise(L, "gather");
  if (!*out) lua_pushnil(L);
  return 1;
}

/* (tensor, dst, reduction, group): in place on dst */
static int dist_reduce(lua_State *L)
{
  static const char fn[] = "reduce";
  ax_group *g;
  ax_tensor *t;
  int root;

  ax_lua_enter_collective(L);
  t = ax_lua_check_tensor(L, 1, fn, "tensor");
  g = ax_lua_group_at(L, 4, fn);
  root = check_rank(L, 2, fn, "dst", g);
  if (ax_dist_reduce_to(g, t, check_reduction(L, 3, fn), root) != AX_OK) return ax_lua_raise(L, fn);
  lua_settop(L, 1);
  return 1;
}

/* (tensor on src, else nil; nil on src, else a tensor like the part; src, group) -> this rank's
 * part */
static int dist_scatter(lua_State *L)
{
  static const char fn[] = "scatter";
  ax_tensor *t = NULL, *like = NULL, **out;
  ax_group *g;
  int root;

  ax_lua_enter_collective(L);
  lua_settop(L, 4);
  g = ax_lua_group_at(L, 4, fn);
  root = check_rank(L, 3, fn, "src", g);
  if (g->rank == root) t = ax_lua_check_tensor(L, 1, fn, "tensor");
  else like = ax_lua_check_tensor(L, 2, fn, "like");
  out = ax_lua_push_box(L);
  if (ax_dist_scatter(g, t, like, root, out) != AX_OK) return ax_lua_raise(L, fn);
  return 1;
}

/* (tensor, { rows to each rank .., rows from each .. }, group) */
static int dist_all_to_all(lua_State *L)
{
  static const char fn[] = "all_to_all";
  ax_tensor *t, **out;
  ax_group *g;
  int64_t *splits;

  ax_lua_enter_collective(L);
  lua_settop(L, 3);
  t = ax_lua_check_tensor(L, 1, fn, "tensor");
  luaL_checktype(L, 2, LUA_TTABLE);
  g = ax_lua_group_at(L, 3, fn);
  splits = lua_newuserdata(L, 2 * (size_t)g->size * sizeof *splits);
  for (int k = 0; k < 2 * g->size; k++) {
    lua_rawgeti(L, 2, k + 1);
    splits[k] = ax_lua_check_integer(L, -1, fn, k < g->size ? "input_split_sizes" : "output_split_sizes", 0,
                                     INT64_C(1) << 40);
    lua_pop(L, 1);
  }
  out = ax_lua_push_box(L);
  if (ax_dist_all_to_all(g, t, splits, out) != AX_OK) return ax_lua_raise(L, fn);
  return 1;
}

/* (tensor, other rank, group) */
static int dist_send(lua_State *L)
{
  ax_tensor *t;
  ax_group *g;

  ax_lua_enter_collective(L);
  t = ax_lua_check_tensor(L, 1, "send", "tensor");
  g = ax_lua_group_at(L, 3, "send");
  if (ax_dist_send(g, t, check_rank(L, 2, "send", "dst", g)) != AX_OK) return ax_lua_raise(L, "send");
  return 0;
}

static int dist_recv(lua_State *L)
{
  ax_tensor *t;
  ax_group *g;

  ax_lua_enter_collective(L);
  t = ax_lua_check_tensor(L, 1, "recv", "tensor");
  g = ax_lua_group_at(L, 3, "recv");
  if (ax_dist_recv(g, t, check_rank(L, 2, "recv", "src", g)) != AX_OK) return ax_lua_raise(L, "recv");
  lua_settop(L, 1);
  return 1;
}

static int dist_set_timeout(lua_State *L)
{
  ax_lua_enter(L);
  ax_dist_set_timeout(ax_lua_check_number(L, 1, "set_timeout", "seconds"));
  return 0;
}

static int dist_leave(lua_State *L)
{
  ax_lua_enter(L);
  ax_dist_leave();
  return 0;
}

/* (index, group): this rank's collectives of CUDA tensors run on cuda:index.  All ranks of the
 * group call it. */
static int dist_join_device(lua_State *L)
{
  const int index = (int)ax_lua_check_integer(L, 1, "join_device", "index", 0, 255);

  ax_lua_enter_collective(L);
  if (ax_dist_join_device(ax_lua_group_at(L, 2, "join_device"), index) != AX_OK)
    return ax_lua_raise(L, "joining the GPUs");
  return 0;
}

/* ---- signals */

static volatile sig_atomic_t came; /* in a process without a launcher */
static void on_signal(int sig) { came = sig; }

static void leave_to_launcher(int sig) { (void)sig; }

/* (number): the script acts on the signal: see due_signal.  A rank's launcher passes it on; the
 * rank itself, to which Slurm sends it too, goes on. */
static int dist_handle_signal(lua_State *L)
{
  struct sigaction a = { .sa_flags = SA_RESTART };
  const int sig = (int)ax_lua_check_integer(L, 1, "on_signal", "signal", 1, 31);

  a.sa_handler = ax_signal_handle(sig) ? leave_to_launcher : on_signal;
  sigaction(sig, &a, NULL);
  return 0;
}

/* -> the signal on which all ranks are to act now, or nil; once */
static int dist_due_signal(lua_State *L)
{
  const int sig = came ? (int)came : ax_signal_due();

  came = 0;
  if (sig) lua_pushinteger(L, sig);
  else lua_pushnil(L);
  return 1;
}

/* -> "shm", "mpi" or "tcp": what carries the memory of the CPU between ranks */
static int dist_transport(lua_State *L)
{
  lua_pushstring(L, ax_dist_world()->transport->name);
  return 1;
}

/* -> "nccl" and the number of this rank's device, or nil while no device has joined */
static int dist_device_group(lua_State *L)
{
  int index;

  lua_pushstring(L, ax_dist_device_name(&index)); /* NULL: nil */
  lua_pushinteger(L, index);
  return lua_isnil(L, -2) ? (lua_pop(L, 1), 1) : 2;
}

/* (tensors): counts one write of each, after a collective wrote the buffer that they are views
 * of. */
static int dist_touch(lua_State *L)
{
  ax_lua_enter(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  for (int k = 1; k <= (int)lua_objlen(L, 1); k++) {
    lua_rawgeti(L, 1, k);
    ax_touch(ax_lua_check_tensor(L, -1, "touch", "tensor"));
    lua_pop(L, 1);
  }
  return 0;
}

static int dist_barrier(lua_State *L)
{
  ax_lua_enter_collective(L);
  if (ax_dist_barrier(ax_lua_group_at(L, 1, "barrier")) != AX_OK) return ax_lua_raise(L, "barrier");
  return 0;
}

/* ---- byte strings.  Their buffers are userdata, so that an error frees them. */

static void run(lua_State *L, const char *fn, ax_group *g, ax_collective c)
{
  if (ax_dist_run(g, &c, NULL) != AX_OK) ax_lua_raise(L, fn);
}

/* Strings may differ in length: the lengths are gathered first, then every string padded to the
 * longest. */
static int dist_all_gather_bytes(lua_State *L)
{
  static const char fn[] = "all_gather_bytes";
  ax_group *const g = ax_lua_group_at(L, 2, fn);
  const int n = g->size;
  int64_t *lengths, mine, longest = 0;
  const char *text;
  char *in, *all;
  size_t size;

  ax_lua_enter_collective(L);
  if (lua_type(L, 1) != LUA_TSTRING) return ax_lua_arg_error(L, fn, 1, "bytes", "a string", 1);
  text = lua_tolstring(L, 1, &size);
  mine = (int64_t)size;
  lengths = lua_newuserdata(L, (size_t)n * sizeof *lengths);
  run(L, fn, g,
      (ax_collective){ .op = AX_ALL_GATHER, .dtype = AX_I64, .count = 1, .in = &mine, .out = lengths });
  for (int r = 0; r < n; r++)
    if (lengths[r] > longest) longest = lengths[r];
  in = lua_newuserdata(L, (size_t)longest + 1);
  memcpy(in, text, size);
  memset(in + size, 0, (size_t)longest - size);
  all = lua_newuserdata(L, (size_t)longest * (size_t)n + 1);
  run(L, fn, g,
      (ax_collective){ .op = AX_ALL_GATHER, .dtype = AX_U8, .count = longest, .in = in, .out = all });
  lua_createtable(L, n, 0);
  for (int r = 0; r < n; r++) {
    lua_pushlstring(L, all + (size_t)r * (size_t)longest, (size_t)lengths[r]);
    lua_rawseti(L, -2, r + 1);
  }
  return 1;
}

static int dist_broadcast_bytes(lua_State *L)
{
  static const char fn[] = "broadcast_bytes";
  ax_group *const g = ax_lua_group_at(L, 3, fn);
  const char *text = NULL;
  int64_t length = 0;
  size_t size;
  char *buf;
  int root;

  ax_lua_enter_collective(L);
  root = check_rank(L, 2, fn, "src", g);
  if (g->rank == root) {
    if (lua_type(L, 1) != LUA_TSTRING)
      return ax_lua_arg_error(L, fn, 1, "bytes", "a string (on the rank that sends)", 1);
    text = lua_tolstring(L, 1, &size);
    length = (int64_t)size;
  }
  run(L, fn, g,
      (ax_collective){
          .op = AX_BROADCAST, .dtype = AX_I64, .root = root, .count = 1, .in = &length, .out = &length });
  buf = lua_newuserdata(L, (size_t)length + 1);
  if (text) memcpy(buf, text, (size_t)length);
  run(L, fn, g,
      (ax_collective){
          .op = AX_BROADCAST, .dtype = AX_U8, .root = root, .count = length, .in = buf, .out = buf });
  lua_pushlstring(L, buf, (size_t)length);
  return 1;
}

void ax_lua_open_dist(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "rank", dist_rank },
    { "world_size", dist_world_size },
    { "local_rank", dist_local_rank },
    { "local_world_size", dist_local_world_size },
    { "all_reduce", dist_all_reduce },
    { "broadcast", dist_broadcast },
    { "broadcast_all", dist_broadcast_all },
    { "all_gather", dist_all_gather },
    { "reduce_scatter", dist_reduce_scatter },
    { "gather", dist_gather },
    { "barrier", dist_barrier },
    { "reduce", dist_reduce },
    { "scatter", dist_scatter },
    { "all_to_all", dist_all_to_all },
    { "send", dist_send },
    { "recv", dist_recv },
    { "group_split", dist_group_split },
    { "group_facts", dist_group_facts },
    { "group_release", dist_group_release },
    { "set_timeout", dist_set_timeout },
    { "leave", dist_leave },
    { "report", dist_report },
    { "join_device", dist_join_device },
    { "transport", dist_transport },
    { "handle_signal", dist_handle_signal },
    { "due_signal", dist_due_signal },
    { "device_group", dist_device_group },
    { "touch", dist_touch },
    { "all_gather_bytes", dist_all_gather_bytes },
    { "broadcast_bytes", dist_broadcast_bytes },
    { NULL, NULL },
  };

  ax_lua_open_class(L, &work_class);
  ax_lua_open_class(L, &group_class);
  lua_newtable(L);
  ax_lua_add_functions(L, functions);
  lua_setfield(L, -2, "dist");
}

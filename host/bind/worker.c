/* bind/worker.c: worker processes in Lua: core._worker_start, core._worker_wait and the others. */
#include "bind/message.h"

#include <stdio.h>
#include <time.h>

/* defined by the host; another program that embeds the binding may lack it */
extern int ax_config_cores(void) __attribute__((weak));

/* a batch of at most SMALL bytes is copied; at most HELD_MOST slots may be in use */
enum { SMALL = 32 << 10, HELD_MOST = 128 };

static const ax_lua_class worker_class;

/* Returns the end at idx: in the parent the handle of a worker, in the worker its channel to the
 * parent. */
static ax_worker *check_end(lua_State *L, int idx, bool child, const char *fn)
{
  ax_worker *w = ax_lua_check_pointer(L, idx, &worker_class, fn);
  if (ax_worker_is_child(w) != child)
    ax_lua_error(L, fn,
                 child ? "only the worker process itself calls it"
                       : "only the process that started the worker calls it");
  return w;
}

static void close_worker(ax_worker **h, double seconds)
{
  ax_worker *w = *h;
  *h = NULL;
  if (w) ax_worker_close(w, seconds);
}

static void clear_worker(lua_State *L, void *object) { close_worker(object, 0.02); }

/* core._worker_start(fn) -> worker.  The child calls fn(channel) and then exits. */
static int worker_start(lua_State *L)
{
  const char *text;
  ax_worker **h;
  bool child;

  ax_lua_enter(L);
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  if (ax_worker_inside())
    ax_lua_error(L, "DataLoader",
                 "a worker process cannot start workers of its own: num_workers must be 0 there");
  h = ax_lua_push_object(L, &worker_class);
  if (ax_worker_fork(h, &child) != AX_OK) return ax_lua_raise(L, "DataLoader");
  if (!child) return 1;
  if (lua_pcall(L, 1, 0, 0) == 0) ax_worker_exit(0);
  text = lua_tostring(L, -1);
  fprintf(stderr, "accel-run: a worker process failed: %s\n", text ? text : "(no text)");
  ax_worker_exit(1);
}

/* worker:send(...) */
static int worker_send(lua_State *L)
{
  ax_worker *w;
  ax_lua_message *b;
  char *whole;
  size_t size;

  ax_lua_enter(L);
  w = check_end(L, 1, false, "send");
  b = ax_lua_message_write(L, 2);
  size = ax_lua_message_size(b);
  whole = lua_newuserdata(L, size);
  ax_lua_message_copy(b, whole);
  ax_lua_message_release(b);
  /* the next wait reports a worker that is gone */
  lua_pushboolean(L, ax_worker_send(w, whole, size) == AX_OK);
  return 1;
}

/* channel:receive() -> the values of the next request; nothing when the parent has closed the
 * channel */
static int worker_receive(lua_State *L)
{
  const void *bytes;
  ax_worker *w;
  size_t n;
  int count;

  ax_lua_enter(L);
  w = check_end(L, 1, true, "receive");
  if (ax_worker_next(w, &bytes, &n) != AX_OK) return ax_lua_raise(L, "receive");
  if (n == 0) return 0;
  if (ax_lua_message_read(L, (char *)bytes, n, NULL, NULL, &count) != AX_OK)
    return ax_lua_raise(L, "receive");
  return count;
}

/* channel:reply(ticket, kind, ...) -> false when the parent is gone */
static int worker_reply(lua_State *L)
{
  ax_note note = { 0 };
  ax_worker *w;
  ax_lua_message *b;
  char *to;

  ax_lua_enter(L);
  w = check_end(L, 1, true, "reply");
  note.ticket = (uint64_t)luaL_checknumber(L, 2);
  note.kind = (uint32_t)luaL_checkinteger(L, 3);
  b = ax_lua_message_write(L, 4);
  if (ax_worker_slot(w, ax_lua_message_size(b), &note, &to) != AX_OK) return ax_lua_raise(L, "worker");
  ax_lua_message_copy(b, to);
  ax_lua_message_release(b); /* now: the worker reuses the tensors' memory for the next batch */
  lua_pushboolean(L, ax_worker_reply(w, &note) == AX_OK);
  return 1;
}

/* Pushes the values of a note. */
static ax_status push_note(lua_State *L, ax_worker *w, const ax_note *note, int *count)
{
  /* a small batch is not worth a slot */
  const bool copy = note->bytes <= SMALL || ax_worker_held(w) > HELD_MOST;
  ax_status st;
  char *data;

  *count = 0;
  if ((st = ax_worker_open(w, note, &data)) != AX_OK) return st;
  st = ax_lua_message_read(L, data, note->bytes, copy ? NULL : w, note, count);
  ax_worker_drop(w, note);
  return st;
}

/* core._worker_wait(workers, at, seconds) -> one of
 *   ticket, kind, ...
 *   nil, "timeout"
 *   nil, "died", which, message
 *   nil, "stopped", message: once for each stop; the caller may wait on
 * seconds < 0: no limit. */
static int worker_wait(lua_State *L)
{
  ax_worker *list[AX_MAX_WORKERS];
  double seconds;
  ax_note note;
  int n, at, died, count;

  ax_lua_enter(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  n = (int)lua_objlen(L, 1);
  at = (int)luaL_checkinteger(L, 2) - 1;
  seconds = luaL_checknumber(L, 3);
  if (n > AX_MAX_WORKERS || at < 0 || at >= n) return luaL_error(L, "no worker %d of %d", at + 1, n);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 1, i + 1);
    list[i] = check_end(L, -1, false, "wait");
    lua_pop(L, 1);
  }
  for (;;) {
    switch (ax_worker_wait(list, n, at, seconds, &note, &died)) {
    case AX_WAIT_NOTE:
      lua_pushnumber(L, (double)note.ticket);
      lua_pushinteger(L, (int)note.kind);
      if (push_note(L, list[at], &note, &count) != AX_OK) return ax_lua_raise(L, "DataLoader");
      return 2 + count;
    case AX_WAIT_TIMEOUT:
      lua_pushnil(L);
      lua_pushliteral(L, "timeout");
      return 2;
    case AX_WAIT_DIED:
      lua_pushnil(L);
      lua_pushliteral(L, "died");
      lua_pushinteger(L, died + 1);
      lua_pushstring(L, ax_last_error());
      return 4;
    case AX_WAIT_STOPPED:
      lua_pushnil(L);
      lua_pushliteral(L, "stopped");
      lua_pushstring(L, ax_last_error());
      return 3;
    case AX_WAIT_INTERRUPTED: ax_lua_enter(L); /* raises after Ctrl-C */
    }
  }
}

static int worker_pid(lua_State *L)
{
  lua_pushinteger(L, ax_worker_pid(ax_lua_check_pointer(L, 1, &worker_class, "pid")));
  return 1;
}

static int worker_hang_up(lua_State *L)
{
  ax_worker **h = ax_lua_check_object(L, 1, &worker_class, "hang_up");
  if (*h) ax_worker_hang_up(*h);
  return 0;
}

/* worker:close(seconds) */
static int worker_close(lua_State *L)
{
  const double seconds = luaL_optnumber(L, 2, 0.5);
  close_worker(ax_lua_check_object(L, 1, &worker_class, "close"), seconds);
  return 0;
}

static int worker_inside(lua_State *L)
{
  lua_pushboolean(L, ax_worker_inside());
  return 1;
}

/* core._cores() -> the number of cores that this process may use; 1 when it is unknown */
static int cores(lua_State *L)
{
  lua_pushinteger(L, ax_config_cores ? ax_config_cores() : 1);
  return 1;
}

/* core._wall() -> seconds since 1970 */
static int wall_clock(lua_State *L)
{
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  lua_pushnumber(L, (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
  return 1;
}

/* core._monotonic() -> seconds on a clock that never goes back */
static int monotonic(lua_State *L)
{
  lua_pushnumber(L, (double)ax_monotonic_ns() * 1e-9);
  return 1;
}

/* core._worker_exit(status): ends a worker without running the exit handlers of the rank that
 * forked it */
static int worker_exit(lua_State *L)
{
  if (!ax_worker_forked()) return luaL_error(L, "not in a worker process");
  ax_worker_exit(lua_isboolean(L, 1) ? !lua_toboolean(L, 1) : (int)luaL_optinteger(L, 1, 0) & 255);
}

static const luaL_Reg worker_methods[] = {
  { "send", worker_send }, { "receive", worker_receive }, { "reply", worker_reply },
  { "pid", worker_pid },   { "hang_up", worker_hang_up }, { "close", worker_close },
  { NULL, NULL },
};
static const ax_lua_class worker_class = { "a worker", sizeof(ax_worker *), clear_worker, worker_methods };

void ax_lua_open_worker(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "_worker_start", worker_start },
    { "_worker_wait", worker_wait },
    { "_worker_inside", worker_inside },
    { "_worker_exit", worker_exit },
    { "_cores", cores },
    { "_monotonic", monotonic },
    { "_wall", wall_clock },
    { NULL, NULL },
  };

  ax_lua_open_class(L, &worker_class);
  ax_lua_open_message(L);
  ax_lua_add_functions(L, functions);
}

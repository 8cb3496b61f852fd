/* bind_worker.c: worker processes and the gathering thread in Lua (core._worker_*, core._gather), and the form in which values go from one
 * process to another.
 *
 * Values are nil, booleans, numbers, strings, tensors and plain tables of them.  They are written as a tree of tagged bytes, in which
 * a tensor is a shape and a place; the elements follow, each tensor on a cache line of its own:
 *
 *   length of the tree (8 bytes) | tree | elements of the first tensor | elements of the second ... */
#include "bind/bind.h"
#include "core/gather.h"
#include "core/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

extern int ax_config_cores(void) __attribute__((weak)); /* the host's; another program that embeds the binding may lack it */

#define WORKER_MT "accelerate.worker"
#define GATHER_MT "accelerate.gather"
#define BUFFER_MT "accelerate.worker_buffer"

enum { LINE = 64, DEEPEST = 100, SMALL = 32 << 10, HELD_MOST = 128 };

static size_t aligned(size_t n) { return (n + LINE - 1) / LINE * LINE; }

/* ---- writing ------------------------------------------------------------------------------------------------------------------ */

/* A Lua object, so that an error on the way frees it. */
typedef struct buffer {
  char *tree;
  size_t n, room;
  ax_tensor **tensors; /* contiguous, on the CPU; owned */
  int n_tensors, tensor_room;
  size_t data;         /* bytes of elements, with the gaps */
} buffer;

static void release_buffer(buffer *b)
{
  for (int i = 0; i < b->n_tensors; i++) ax_tensor_release(b->tensors[i]);
  free(b->tensors);
  free(b->tree);
  memset(b, 0, sizeof *b);
}

static int free_buffer(lua_State *L)
{
  release_buffer(lua_touserdata(L, 1));
  return 0;
}

static buffer *push_buffer(lua_State *L)
{
  buffer *b = lua_newuserdata(L, sizeof *b);
  memset(b, 0, sizeof *b);
  luaL_getmetatable(L, BUFFER_MT);
  lua_setmetatable(L, -2);
  return b;
}

static void put(lua_State *L, buffer *b, const void *bytes, size_t n)
{
  if (b->n + n > b->room) {
    const size_t room = (b->n + n) * 2 + 64;
    char *grown = realloc(b->tree, room);
    if (!grown) luaL_error(L, "no memory for %f bytes that go to another process", (double)room);
    b->tree = grown;
    b->room = room;
  }
  memcpy(b->tree + b->n, bytes, n);
  b->n += n;
}

/* Where a value lies: for messages. */
typedef struct place { const struct place *up; int key; /* on the stack; 0: a value of the call, number `at` */ int at; } place;

static void push_place(lua_State *L, const place *p)
{
  if (!p->up) {
    lua_pushfstring(L, "part %d", p->at);
    return;
  }
  push_place(L, p->up);
  if (lua_type(L, p->key) == LUA_TSTRING) lua_pushfstring(L, "%s.%s", lua_tostring(L, -1), lua_tostring(L, p->key));
  else if (lua_type(L, p->key) == LUA_TNUMBER) lua_pushfstring(L, "%s[%d]", lua_tostring(L, -1), (int)lua_tonumber(L, p->key));
  else lua_pushfstring(L, "%s[?]", lua_tostring(L, -1));
  lua_remove(L, -2);
}

static void put_tensor(lua_State *L, buffer *b, ax_tensor *t)
{
  const uint8_t head[3] = { 'x', t->dtype, t->ndim };
  const uint64_t at = b->data;
  ax_tensor *whole;

  if (b->n_tensors == b->tensor_room) {
    const int room = b->tensor_room * 2 + 8;
    ax_tensor **grown = realloc(b->tensors, (size_t)room * sizeof *grown);
    if (!grown) luaL_error(L, "no memory for a list of %d tensors", room);
    b->tensors = grown;
    b->tensor_room = room;
  }
  if (t->device.kind != AX_CPU) luaL_error(L, "a tensor on a GPU cannot go to another process: move it to the CPU first");
  const bool grad = ax_grad_set_enabled(false);
  const ax_status st = ax_contiguous(t, &whole);
  ax_grad_set_enabled(grad);
  if (st != AX_OK) ax_raise(L, "worker");
  b->tensors[b->n_tensors++] = whole;
  put(L, b, head, 3);
  put(L, b, t->shape, (size_t)t->ndim * sizeof(int64_t));
  put(L, b, &at, 8);
  b->data += aligned((size_t)t->numel * ax_itemsize(t));
}

static void put_value(lua_State *L, buffer *b, int idx, const place *where, int depth)
{
  const int type = lua_type(L, idx);
  ax_tensor **box = NULL;
  size_t n;

  if (type == LUA_TNIL) put(L, b, "z", 1);
  else if (type == LUA_TBOOLEAN) put(L, b, lua_toboolean(L, idx) ? "T" : "F", 1);
  else if (type == LUA_TNUMBER) {
    const double v = lua_tonumber(L, idx);
    put(L, b, "n", 1);
    put(L, b, &v, 8);
  } else if (type == LUA_TSTRING) {
    const char *s = lua_tolstring(L, idx, &n);
    const uint64_t length = n;
    put(L, b, "s", 1);
    put(L, b, &length, 8);
    put(L, b, s, n);
  } else if (type == LUA_TUSERDATA && (box = ax_to_box(L, idx)) && *box) {
    put_tensor(L, b, *box);
  } else if (type == LUA_TTABLE && !lua_getmetatable(L, idx) && depth < DEEPEST) {
    uint64_t count = 0;
    const size_t at = b->n + 1;
    luaL_checkstack(L, 8, "a value to send is nested too deeply");
    put(L, b, "t", 1);
    put(L, b, &count, 8);
    for (lua_pushnil(L); lua_next(L, idx); lua_pop(L, 1), count++) {
      const place inner = { where, lua_gettop(L) - 1, 0 };
      put_value(L, b, inner.key, &inner, depth + 1);
      put_value(L, b, inner.key + 1, &inner, depth + 1);
    }
    memcpy(b->tree + at, &count, 8);
  } else {
    push_place(L, where);
    if (type == LUA_TTABLE && depth >= DEEPEST)
      luaL_error(L, "%s is nested more than %d tables deep (or holds itself)", lua_tostring(L, -1), DEEPEST);
    luaL_error(L, "%s is %s, which cannot go from one process to another; only booleans, numbers, strings, tensors and plain "
               "tables of them can", lua_tostring(L, -1), box && type == LUA_TUSERDATA ? "a released tensor"
               : type == LUA_TTABLE ? "an object (a table with a metatable)" : luaL_typename(L, idx));
  }
}

/* Writes the values at first..top into a fresh buffer, which it pushes. */
static buffer *write_values(lua_State *L, int first)
{
  const int last = lua_gettop(L);
  const uint64_t count = (uint64_t)(last - first + 1);
  buffer *b = push_buffer(L);

  put(L, b, &count, 8);
  for (int i = first; i <= last; i++) {
    const place where = { NULL, 0, i - first + 1 };
    put_value(L, b, i, &where, 0);
  }
  return b;
}

static size_t whole_size(const buffer *b) { return aligned(8 + b->n) + b->data; }

static void write_whole(const buffer *b, char *to)
{
  const uint64_t n = b->n;
  char *data = to + aligned(8 + b->n);

  memcpy(to, &n, 8);
  memcpy(to + 8, b->tree, b->n);
  for (int i = 0; i < b->n_tensors; i++) {
    const size_t bytes = (size_t)b->tensors[i]->numel * ax_itemsize(b->tensors[i]);
    if (bytes) memcpy(data, ax_data(b->tensors[i]), bytes);
    data += aligned(bytes);
  }
}

/* ---- reading ------------------------------------------------------------------------------------------------------------------ */

typedef struct source {
  const char *at, *end; /* of the tree */
  char *data;
  size_t n_data;
  ax_worker *worker;    /* NULL: tensors are copied; else they lie in the slot of `note` */
  const ax_note *note;
} source;

static bool get(source *s, void *to, size_t n)
{
  if ((size_t)(s->end - s->at) < n) return false;
  memcpy(to, s->at, n);
  s->at += n;
  return true;
}

static ax_status damaged(void) { return ax_fail(AX_EIO, "what came from another process is damaged"); }

static ax_status push_tensor(lua_State *L, source *s)
{
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS], numel = 1;
  uint8_t head[2];
  uint64_t at;
  ax_storage *storage;
  ax_tensor **box;
  ax_status st;
  size_t bytes;

  if (!get(s, head, 2) || head[0] >= AX_DTYPE_COUNT || head[1] > AX_MAX_DIMS || !get(s, shape, head[1] * sizeof(int64_t)) || !get(s, &at, 8))
    return damaged();
  for (int d = head[1] - 1; d >= 0; d--) {
    strides[d] = numel;
    if (shape[d] < 0 || __builtin_mul_overflow(numel, shape[d], &numel)) return damaged();
  }
  bytes = (size_t)numel * ax_dtype_size((ax_dtype)head[0]);
  if (at > s->n_data || bytes > s->n_data - at) return damaged();
  box = ax_push_result(L);
  if (!s->worker || bytes == 0) {
    if ((st = ax_tensor_new((ax_dtype)head[0], head[1], shape, box)) == AX_OK && bytes) memcpy(ax_data(*box), s->data + at, bytes);
    return st;
  }
  if ((st = ax_worker_storage(s->worker, s->note, s->data + at, bytes, &storage)) != AX_OK) return st;
  st = ax_tensor_over(storage, (ax_dtype)head[0], head[1], shape, strides, 0, box);
  ax_storage_release(storage);
  return st;
}

static ax_status push_value(lua_State *L, source *s)
{
  ax_status st;
  uint64_t n;
  double v;
  char tag;

  if (!get(s, &tag, 1)) return damaged();
  switch (tag) {
  case 'z': lua_pushnil(L); return AX_OK;
  case 'T': case 'F': lua_pushboolean(L, tag == 'T'); return AX_OK;
  case 'n':
    if (!get(s, &v, 8)) return damaged();
    lua_pushnumber(L, v);
    return AX_OK;
  case 's':
    if (!get(s, &n, 8) || n > (size_t)(s->end - s->at)) return damaged();
    lua_pushlstring(L, s->at, n);
    s->at += n;
    return AX_OK;
  case 'x': return push_tensor(L, s);
  case 't':
    if (!get(s, &n, 8) || n > (size_t)(s->end - s->at)) return damaged();
    luaL_checkstack(L, 8, "a value that was sent is nested too deeply");
    lua_createtable(L, n < 1 << 20 ? (int)n : 0, 0);
    for (; n > 0; n--) {
      if ((st = push_value(L, s)) != AX_OK || (st = push_value(L, s)) != AX_OK) return st;
      if (lua_isnil(L, -2)) return damaged();
      lua_rawset(L, -3);
    }
    return AX_OK;
  default: return damaged();
  }
}

/* Pushes what was written to `whole`; *count values. */
static ax_status read_values(lua_State *L, char *whole, size_t size, ax_worker *w, const ax_note *note, int *count)
{
  uint64_t n, values;
  source s = { .worker = w, .note = note };
  ax_status st = AX_OK;

  *count = 0;
  if (size < 16) return damaged();
  memcpy(&n, whole, 8);
  if (n > size - 8 || aligned(8 + n) > aligned(size)) return damaged();
  s.at = whole + 8;
  s.end = s.at + n;
  s.data = whole + aligned(8 + n);
  s.n_data = size > aligned(8 + n) ? size - aligned(8 + n) : 0;
  if (!get(&s, &values, 8) || values > 200) return damaged();
  luaL_checkstack(L, (int)values + 8, "too many parts");
  for (; values > 0 && st == AX_OK; values--, ++*count) st = push_value(L, &s);
  return st;
}

/* ---- workers ------------------------------------------------------------------------------------------------------------------- */

typedef struct handle { ax_worker *w; } handle;

static ax_worker *check_worker(lua_State *L, int idx, const char *fn)
{
  handle *h = luaL_checkudata(L, idx, WORKER_MT);
  if (!h->w) ax_error(L, fn, "the worker was closed");
  return h->w;
}

static int worker_gc(lua_State *L)
{
  handle *h = lua_touserdata(L, 1);
  ax_worker *w = h->w;
  h->w = NULL;
  if (w) ax_worker_close(w, 0.02);
  return 0;
}

/* core._worker_start(fn) -> worker.  The child calls fn(channel) and ends with it. */
static int worker_start(lua_State *L)
{
  const char *text;
  handle *h;
  bool child;

  ax_bind_enter(L);
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  if (ax_worker_inside()) ax_error(L, "DataLoader", "a worker process cannot start workers of its own: num_workers must be 0 there");
  h = lua_newuserdata(L, sizeof *h);
  h->w = NULL;
  luaL_getmetatable(L, WORKER_MT);
  lua_setmetatable(L, -2);
  if (ax_worker_fork(&h->w, &child) != AX_OK) return ax_raise(L, "DataLoader");
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
  buffer *b;
  char *whole;
  size_t size;

  ax_bind_enter(L);
  w = check_worker(L, 1, "send");
  b = write_values(L, 2);
  size = whole_size(b);
  whole = lua_newuserdata(L, size);
  write_whole(b, whole);
  release_buffer(b);
  lua_pushboolean(L, ax_worker_send(w, whole, size) == AX_OK); /* a worker that is gone is told of by the next wait */
  return 1;
}

/* channel:receive() -> the values of the next request; nothing when the parent wants no more */
static int worker_receive(lua_State *L)
{
  const void *bytes;
  ax_worker *w;
  size_t n;
  int count;

  ax_bind_enter(L);
  w = check_worker(L, 1, "receive");
  if (ax_worker_next(w, &bytes, &n) != AX_OK) return ax_raise(L, "receive");
  if (n == 0) return 0;
  if (read_values(L, (char *)bytes, n, NULL, NULL, &count) != AX_OK) return ax_raise(L, "receive");
  return count;
}

/* channel:reply(ticket, kind, ...): false when the parent is gone */
static int worker_reply(lua_State *L)
{
  ax_note note = {0};
  ax_worker *w;
  buffer *b;
  char *to;

  ax_bind_enter(L);
  w = check_worker(L, 1, "reply");
  note.ticket = (uint64_t)luaL_checknumber(L, 2);
  note.kind = (uint32_t)luaL_checkinteger(L, 3);
  b = write_values(L, 4);
  if (ax_worker_slot(w, whole_size(b), &note, &to) != AX_OK) return ax_raise(L, "worker");
  write_whole(b, to);
  release_buffer(b); /* now: its tensors are the worker's memory for the next batch */
  lua_pushboolean(L, ax_worker_reply(w, &note) == AX_OK);
  return 1;
}

/* Pushes the values of a note. */
static ax_status push_note(lua_State *L, ax_worker *w, const ax_note *note, int *count)
{
  const bool copy = note->bytes <= SMALL || ax_worker_held(w) > HELD_MOST; /* small ones are not worth a slot */
  ax_status st;
  char *data;

  *count = 0;
  if ((st = ax_worker_open(w, note, &data)) != AX_OK) return st;
  st = read_values(L, data, note->bytes, copy ? NULL : w, note, count);
  ax_worker_drop(w, note);
  return st;
}

/* core._worker_wait(workers, at, seconds) -> ticket, kind, ...  or nil, "timeout"  or nil, "died", which, message.
 * seconds < 0: without end */
static int worker_wait(lua_State *L)
{
  ax_worker *list[AX_MAX_WORKERS];
  double seconds;
  ax_note note;
  int n, at, died, count;

  ax_bind_enter(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  n = (int)lua_objlen(L, 1);
  at = (int)luaL_checkinteger(L, 2) - 1;
  seconds = luaL_checknumber(L, 3);
  if (n > AX_MAX_WORKERS || at < 0 || at >= n) return luaL_error(L, "no worker %d of %d", at + 1, n);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 1, i + 1);
    list[i] = check_worker(L, -1, "wait");
    lua_pop(L, 1);
  }
  for (;;) {
    switch (ax_worker_wait(list, n, at, seconds, &note, &died)) {
    case AX_WAIT_NOTE:
      lua_pushnumber(L, (double)note.ticket);
      lua_pushinteger(L, (int)note.kind);
      if (push_note(L, list[at], &note, &count) != AX_OK) return ax_raise(L, "DataLoader");
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
    case AX_WAIT_INTERRUPTED: ax_bind_enter(L); /* raises after Ctrl-C */
    }
  }
}

static int worker_pid(lua_State *L)
{
  lua_pushinteger(L, ax_worker_pid(check_worker(L, 1, "pid")));
  return 1;
}

static int worker_hang_up(lua_State *L)
{
  handle *h = luaL_checkudata(L, 1, WORKER_MT);
  if (h->w) ax_worker_hang_up(h->w);
  return 0;
}

/* worker:close(seconds) */
static int worker_close(lua_State *L)
{
  handle *h = luaL_checkudata(L, 1, WORKER_MT);
  ax_worker *w = h->w;
  h->w = NULL;
  if (w) ax_worker_close(w, luaL_optnumber(L, 2, 0.5));
  return 0;
}

static int worker_inside(lua_State *L)
{
  lua_pushboolean(L, ax_worker_inside());
  return 1;
}

/* core._cores(): cores that this process may use; 1 when nobody knows */
static int cores(lua_State *L)
{
  lua_pushinteger(L, ax_config_cores ? ax_config_cores() : 1);
  return 1;
}

/* core._monotonic(): seconds on a clock that only goes forward */
static int monotonic(lua_State *L)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  lua_pushnumber(L, (double)t.tv_sec + 1e-9 * (double)t.tv_nsec);
  return 1;
}

/* core._worker_exit(status): ends a worker without the exit handlers of the rank that it was forked from */
static int worker_exit(lua_State *L)
{
  if (!ax_worker_inside()) return luaL_error(L, "not in a worker process");
  ax_worker_exit(lua_isboolean(L, 1) ? !lua_toboolean(L, 1) : (int)luaL_optinteger(L, 1, 0) & 255);
}

/* ---- the gathering thread -------------------------------------------------------------------------------------------------------- */

static ax_gather *check_gather(lua_State *L) { return *(ax_gather **)luaL_checkudata(L, 1, GATHER_MT); }

/* core._gather({ tensor, ... }) -> gatherer, or nil and why these tensors cannot be gathered from */
static int gather_new(lua_State *L)
{
  ax_tensor *sources[AX_GATHER_MAX];
  ax_gather **box;
  int n;

  ax_bind_enter(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  n = (int)lua_objlen(L, 1);
  for (int i = 0; i < n && i < AX_GATHER_MAX; i++) {
    lua_rawgeti(L, 1, i + 1);
    sources[i] = ax_check_tensor(L, -1, "gather", "tensor");
    lua_pop(L, 1);
  }
  box = lua_newuserdata(L, sizeof *box);
  *box = NULL;
  luaL_getmetatable(L, GATHER_MT);
  lua_setmetatable(L, -2);
  if (ax_gather_new(n, sources, box) == AX_OK) return 1;
  lua_pushnil(L);
  lua_pushstring(L, ax_last_error());
  return 2;
}

static int gather_gc(lua_State *L)
{
  ax_gather **box = lua_touserdata(L, 1);
  ax_gather_free(*box);
  *box = NULL;
  return 0;
}

/* gatherer:start(positions, ahead): counted from 1 */
static int gather_start(lua_State *L)
{
  int64_t *to, at;
  ax_gather *g;
  int n;

  ax_bind_enter(L);
  g = check_gather(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  n = (int)lua_objlen(L, 2);
  if (!(to = ax_gather_positions(g, n))) return ax_error(L, "DataLoader", "no memory for %d positions", n);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 2, i + 1);
    if (!ax_to_integer(L, -1, &at))
      return ax_error(L, "DataLoader", "expected a position from 1 to %lld, got %s", (long long)ax_gather_rows(g), ax_describe(L, -1));
    to[i] = at - 1;
    lua_pop(L, 1);
  }
  if (ax_gather_start(g, n, lua_toboolean(L, 3)) != AX_OK) return ax_raise(L, "DataLoader");
  return 0;
}

/* gatherer:take() -> one tensor for each source */
static int gather_take(lua_State *L)
{
  ax_tensor *out[AX_GATHER_MAX], **box[AX_GATHER_MAX];
  ax_gather *g;
  int n;

  ax_bind_enter(L);
  g = check_gather(L);
  n = ax_gather_sources(g);
  for (int i = 0; i < n; i++) box[i] = ax_push_result(L);
  if (ax_gather_take(g, out) != AX_OK) return ax_raise(L, "DataLoader");
  for (int i = 0; i < n; i++) *box[i] = out[i];
  return n;
}

static void add_class(lua_State *L, const char *name, const luaL_Reg *methods, lua_CFunction gc)
{
  luaL_newmetatable(L, name);
  lua_pushcfunction(L, gc);
  lua_setfield(L, -2, "__gc");
  lua_newtable(L);
  ax_add_functions(L, methods);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
}

void ax_open_worker(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "_worker_start", worker_start }, { "_worker_wait", worker_wait }, { "_worker_inside", worker_inside }, { "_worker_exit", worker_exit },
    { "_gather", gather_new }, { "_cores", cores }, { "_monotonic", monotonic }, { NULL, NULL },
  };
  static const luaL_Reg worker[] = {
    { "send", worker_send }, { "receive", worker_receive }, { "reply", worker_reply }, { "pid", worker_pid },
    { "hang_up", worker_hang_up }, { "close", worker_close }, { NULL, NULL },
  };
  static const luaL_Reg gather[] = { { "start", gather_start }, { "take", gather_take }, { NULL, NULL } };
  static const luaL_Reg none[] = { { NULL, NULL } };

  add_class(L, WORKER_MT, worker, worker_gc);
  add_class(L, GATHER_MT, gather, gather_gc);
  add_class(L, BUFFER_MT, none, free_buffer);
  ax_add_functions(L, functions);
}

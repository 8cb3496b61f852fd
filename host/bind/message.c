#include "bind/message.h"

#include <stdlib.h>

#define MESSAGE_MT "accelerate.message"

enum { LINE = 64, DEEPEST = 100 };

static size_t aligned(size_t n) { return (n + LINE - 1) / LINE * LINE; }

/* ---- writing ------------------------------------------------------------------------------------------------------------------ */

void ax_message_release(ax_message *b)
{
  for (int i = 0; i < b->n_tensors; i++) ax_tensor_release(b->tensors[i]);
  free(b->tensors);
  free(b->tree);
  memset(b, 0, sizeof *b);
}

static int free_message(lua_State *L)
{
  ax_message_release(lua_touserdata(L, 1));
  return 0;
}

static ax_message *push_message(lua_State *L)
{
  ax_message *b = lua_newuserdata(L, sizeof *b);
  memset(b, 0, sizeof *b);
  luaL_getmetatable(L, MESSAGE_MT);
  lua_setmetatable(L, -2);
  return b;
}

static void put(lua_State *L, ax_message *b, const void *bytes, size_t n)
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

static void put_tensor(lua_State *L, ax_message *b, ax_tensor *t)
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

static void put_value(lua_State *L, ax_message *b, int idx, const place *where, int depth)
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

ax_message *ax_message_write(lua_State *L, int first)
{
  const int last = lua_gettop(L);
  const uint64_t count = (uint64_t)(last - first + 1);
  ax_message *b = push_message(L);

  put(L, b, &count, 8);
  for (int i = first; i <= last; i++) {
    const place where = { NULL, 0, i - first + 1 };
    put_value(L, b, i, &where, 0);
  }
  return b;
}

size_t ax_message_size(const ax_message *b) { return aligned(8 + b->n) + b->data; }

void ax_message_copy(const ax_message *b, char *to)
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

ax_status ax_message_read(lua_State *L, char *whole, size_t size, ax_worker *w, const ax_note *note, int *count)
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

void ax_open_message(lua_State *L)
{
  luaL_newmetatable(L, MESSAGE_MT);
  lua_pushcfunction(L, free_message);
  lua_setfield(L, -2, "__gc");
  lua_pop(L, 1);
}

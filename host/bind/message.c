#include "bind/message.h"

#include <stdlib.h>
#include <string.h>

enum { LINE = 64, DEEPEST = 100, ROOM = 4096 /* entries that a received count makes room for at once */ };

static size_t aligned(size_t n) { return (n + LINE - 1) / LINE * LINE; }

/* ---- writing */

void ax_lua_message_release(ax_lua_message *b)
{
  for (int i = 0; i < b->n_tensors; i++) ax_tensor_release(b->tensors[i]);
  free(b->tensors);
  free(b->tree);
  memset(b, 0, sizeof *b);
}

static void clear_message(lua_State *L, void *object) { ax_lua_message_release(object); }

static const ax_lua_class message_class = { "a message", sizeof(ax_lua_message), clear_message, NULL };

static ax_lua_message *push_message(lua_State *L) { return ax_lua_push_object(L, &message_class); }

static void put(lua_State *L, ax_lua_message *b, const void *bytes, size_t n)
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

/* The position of a value: for messages, and to find a table that contains itself. */
typedef struct place {
  const struct place *up;
  /* type of the key: LUA_TSTRING, LUA_TNUMBER, LUA_TBOOLEAN; of a root: LUA_TSTRING where it has a
   * name, else LUA_TNIL */
  int type;
  const char *name;
  double number;     /* a root without a name: its number among the values of the call */
  const void *table; /* the value itself, if it is a table */
} place;

static bool is_word(const char *s)
{
  if (!((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || *s == '_')) return false;
  for (; *s; s++)
    if (!((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') || *s == '_'))
      return false;
  return true;
}

static void push_place(lua_State *L, const place *p)
{
  luaL_checkstack(L, 4, "a message");
  if (!p->up) {
    if (p->name) lua_pushstring(L, p->name);
    else lua_pushfstring(L, "part %d", (int)p->number);
    return;
  }
  push_place(L, p->up);
  if (p->type == LUA_TSTRING)
    lua_pushfstring(L, is_word(p->name) ? "%s.%s" : "%s[\"%s\"]", lua_tostring(L, -1), p->name);
  else if (p->type == LUA_TNUMBER) lua_pushfstring(L, "%s[%f]", lua_tostring(L, -1), p->number);
  else lua_pushfstring(L, "%s[%s]", lua_tostring(L, -1), p->number != 0 ? "true" : "false");
  lua_remove(L, -2);
}

static void put_tensor(lua_State *L, ax_lua_message *b, ax_tensor *t)
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
  if (t->device.kind != AX_CPU)
    luaL_error(L, "a tensor on a GPU cannot go to another process: move it to the CPU first");
  const bool grad = ax_grad_set_enabled(false);
  const ax_status st = ax_tensor_bring(t, &whole);
  ax_grad_set_enabled(grad);
  if (st != AX_OK) ax_lua_raise(L, "worker");
  b->tensors[b->n_tensors++] = whole;
  put(L, b, head, 3);
  put(L, b, t->shape, (size_t)t->ndim * sizeof(int64_t));
  put(L, b, &at, 8);
  b->data += aligned((size_t)t->numel * ax_itemsize(t));
}

/* ---- tables: the list part, then the other entries sorted by key, so that equal values have
 * equal bytes */

typedef struct key {
  int type;
  double number;
  const char *s;
  size_t n;
} key;

static int rank_of(int type) { return type == LUA_TNUMBER ? 0 : type == LUA_TSTRING ? 1 : 2; }

/* Numbers ascending, then strings, then booleans: the order of accelerate.utils.ordered. */
static int compare_keys(const void *pa, const void *pb)
{
  const key *a = pa, *b = pb;
  if (a->type != b->type) return rank_of(a->type) - rank_of(b->type);
  if (a->type == LUA_TSTRING) {
    const int order = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);
    return order ? order : (a->n > b->n) - (a->n < b->n);
  }
  return (a->number > b->number) - (a->number < b->number);
}

static void raise_key(lua_State *L, const place *where, int idx)
{
  push_place(L, where);
  luaL_error(L,
             "%s has a %s as a key, which cannot go from one process to another; "
             "keys are numbers, strings and booleans",
             lua_tostring(L, -1), luaL_typename(L, idx));
}

/* Returns how many keys the table has.  *list: n where its number keys are exactly 1..n, else 0. */
static size_t count_keys(lua_State *L, int idx, size_t *list)
{
  const size_t border = lua_objlen(L, idx);
  size_t count = 0, inside = 0;
  for (lua_pushnil(L); lua_next(L, idx); lua_pop(L, 1), count++) {
    const double v = lua_type(L, -2) == LUA_TNUMBER ? lua_tonumber(L, -2) : 0;
    if (v >= 1 && v <= (double)border && v == (double)(size_t)v) inside++;
  }
  *list = inside == border ? border : 0;
  return count;
}

/* Pushes a buffer with the keys other than 1..list. */
static key *push_keys(lua_State *L, int idx, size_t list, size_t n, const place *where)
{
  key *keys = lua_newuserdata(L, n * sizeof *keys + 1), *k = keys;
  for (lua_pushnil(L); lua_next(L, idx); lua_pop(L, 1)) {
    const int at = lua_gettop(L) - 1, type = lua_type(L, at);
    const double v = type == LUA_TNUMBER    ? lua_tonumber(L, at)
                     : type == LUA_TBOOLEAN ? lua_toboolean(L, at)
                                            : 0;
    if (type == LUA_TNUMBER && v >= 1 && v <= (double)list && v == (double)(size_t)v) continue;
    if (type != LUA_TNUMBER && type != LUA_TSTRING && type != LUA_TBOOLEAN) raise_key(L, where, at);
    *k = (key){ type, v, NULL, 0 };
    if (type == LUA_TSTRING) k->s = lua_tolstring(L, at, &k->n);
    k++;
  }
  qsort(keys, (size_t)(k - keys), sizeof *keys, compare_keys);
  return keys;
}

static void push_key(lua_State *L, const key *k)
{
  if (k->type == LUA_TSTRING) lua_pushlstring(L, k->s, k->n);
  else if (k->type == LUA_TNUMBER) lua_pushnumber(L, k->number);
  else lua_pushboolean(L, k->number != 0);
}

static void put_value(lua_State *L, ax_lua_message *b, int idx, place *where, int depth);

static void put_table(lua_State *L, ax_lua_message *b, int idx, place *where, int depth)
{
  const int top = lua_gettop(L);
  size_t list, count;
  uint64_t sizes[2];
  key *keys;

  where->table = lua_topointer(L, idx);
  for (const place *p = where->up; p; p = p->up)
    if (p->table == where->table) {
      push_place(L, where);
      push_place(L, p);
      luaL_error(L, "%s is %s itself: a table that holds itself cannot go from one process to another",
                 lua_tostring(L, -2), lua_tostring(L, -1));
    }
  luaL_checkstack(L, 12, "a value to send is nested too deeply");
  count = count_keys(L, idx, &list);
  sizes[0] = list;
  sizes[1] = count - list;
  put(L, b, "t", 1);
  put(L, b, sizes, sizeof sizes);
  for (size_t i = 1; i <= list; i++) {
    place inner = { where, LUA_TNUMBER, NULL, (double)i, NULL };
    lua_rawgeti(L, idx, (int)i);
    put_value(L, b, top + 1, &inner, depth + 1);
    lua_settop(L, top);
  }
  if (count == list) return;
  keys = push_keys(L, idx, list, count - list, where);
  for (size_t i = 0; i < count - list; i++) {
    place inner = { where, keys[i].type, keys[i].s, keys[i].number, NULL };
    push_key(L, &keys[i]);
    put_value(L, b, top + 2, &inner, depth + 1);
    lua_rawget(L, idx);
    put_value(L, b, top + 2, &inner, depth + 1);
    lua_settop(L, top + 1);
  }
  lua_settop(L, top);
}

/* Whether the value is a table without a metatable, or one of utils.ordered, which is sent as a
 * plain table. */
static bool is_plain(lua_State *L, int idx)
{
  bool plain;
  if (!lua_getmetatable(L, idx)) return true;
  lua_pushliteral(L, "__order");
  lua_rawget(L, -2);
  plain = !lua_isnil(L, -1);
  lua_pop(L, 2);
  return plain;
}

static void put_value(lua_State *L, ax_lua_message *b, int idx, place *where, int depth)
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
  } else if (type == LUA_TUSERDATA && (box = ax_lua_to_box(L, idx)) && *box) {
    put_tensor(L, b, *box);
  } else if (type == LUA_TTABLE && depth < DEEPEST && is_plain(L, idx)) {
    put_table(L, b, idx, where, depth);
  } else {
    push_place(L, where);
    if (type == LUA_TTABLE && depth >= DEEPEST)
      luaL_error(L, "%s is nested more than %d tables deep", lua_tostring(L, -1), DEEPEST);
    luaL_error(L,
               "%s is a%s%s, which cannot go from one process to another; only booleans, numbers, strings, "
               "tensors and plain tables of them can",
               lua_tostring(L, -1), type == LUA_TTABLE ? "n " : " ",
               box && type == LUA_TUSERDATA ? "released tensor"
               : type == LUA_TTABLE         ? "object (a table with a metatable)"
                                            : luaL_typename(L, idx));
  }
}

ax_lua_message *ax_lua_message_write(lua_State *L, int first)
{
  const int last = lua_gettop(L);
  const uint64_t count = (uint64_t)(last - first + 1);
  ax_lua_message *b = push_message(L);

  put(L, b, &count, 8);
  for (int i = first; i <= last; i++) {
    place where = { NULL, LUA_TNIL, NULL, i - first + 1, NULL };
    put_value(L, b, i, &where, 0);
  }
  return b;
}

size_t ax_lua_message_size(const ax_lua_message *b) { return aligned(8 + b->n) + b->data; }

void ax_lua_message_copy(const ax_lua_message *b, char *to)
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

/* ---- reading */

typedef struct source {
  const char *at, *end; /* of the tree */
  char *data;
  size_t n_data;
  ax_worker *worker; /* NULL: tensors are copied; else they stay in the slot of `note` */
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

  if (!get(s, head, 2) || head[0] >= AX_DTYPE_COUNT || head[1] > AX_MAX_DIMS ||
      !get(s, shape, head[1] * sizeof(int64_t)) || !get(s, &at, 8))
    return damaged();
  for (int d = head[1] - 1; d >= 0; d--) {
    strides[d] = numel;
    if (shape[d] < 0 || __builtin_mul_overflow(numel, shape[d], &numel)) return damaged();
  }
  if (__builtin_mul_overflow((size_t)numel, ax_dtype_size((ax_dtype)head[0]), &bytes)) return damaged();
  if (at > s->n_data || bytes > s->n_data - at) return damaged();
  box = ax_lua_push_result(L);
  if (!s->worker || bytes == 0) {
    if ((st = ax_tensor_new((ax_dtype)head[0], head[1], shape, box)) != AX_OK || bytes == 0) return st;
    memcpy(ax_data(*box), s->data + at, bytes);
    if (head[0] == AX_BOOL)
      for (uint8_t *p = ax_data(*box), *end = p + bytes; p < end; p++) *p = *p != 0;
    return AX_OK;
  }
  if ((st = ax_worker_storage(s->worker, s->note, s->data + at, bytes, &storage)) != AX_OK) return st;
  st = ax_tensor_over(storage, (ax_dtype)head[0], head[1], shape, strides, 0, box);
  ax_storage_release(storage);
  return st;
}

static ax_status push_value(lua_State *L, source *s, int depth);

static ax_status push_table(lua_State *L, source *s, int depth)
{
  const size_t left = (size_t)(s->end - s->at);
  uint64_t sizes[2];
  ax_status st;

  if (depth >= DEEPEST || !get(s, sizes, sizeof sizes) || sizes[0] > left || sizes[1] > left)
    return damaged();
  luaL_checkstack(L, 12, "a value that was sent is nested too deeply");
  lua_createtable(L, sizes[0] < ROOM ? (int)sizes[0] : ROOM, sizes[1] < ROOM ? (int)sizes[1] : ROOM);
  for (uint64_t i = 1; i <= sizes[0]; i++) {
    if ((st = push_value(L, s, depth + 1)) != AX_OK) return st;
    lua_rawseti(L, -2, (int)i);
  }
  for (; sizes[1] > 0; sizes[1]--) {
    if ((st = push_value(L, s, depth + 1)) != AX_OK) return st;
    if (lua_isnil(L, -1) || (lua_type(L, -1) == LUA_TNUMBER && lua_tonumber(L, -1) != lua_tonumber(L, -1)))
      return damaged();
    if ((st = push_value(L, s, depth + 1)) != AX_OK) return st;
    lua_rawset(L, -3);
  }
  return AX_OK;
}

static ax_status push_value(lua_State *L, source *s, int depth)
{
  uint64_t n;
  double v;
  char tag;

  if (!get(s, &tag, 1)) return damaged();
  switch (tag) {
  case 'z': lua_pushnil(L); return AX_OK;
  case 'T':
  case 'F': lua_pushboolean(L, tag == 'T'); return AX_OK;
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
  case 't': return push_table(L, s, depth);
  default: return damaged();
  }
}

ax_status ax_lua_message_read(lua_State *L, char *whole, size_t size, ax_worker *w, const ax_note *note,
                              int *count)
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
  for (; values > 0 && st == AX_OK; values--, ++*count) st = push_value(L, &s, 0);
  return st == AX_OK && s.at != s.end ? damaged() : st;
}

/* ---- values as byte strings */

/* _serialize(value, name) -> its bytes; messages call the value `name` */
static int serialize(lua_State *L)
{
  place where = { NULL, LUA_TSTRING, lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "the value", 0,
                  NULL };
  const uint64_t count = 1;
  ax_lua_message *b;
  size_t size;
  char *to;

  ax_lua_enter(L);
  lua_settop(L, 2);
  b = push_message(L);
  put(L, b, &count, 8);
  put_value(L, b, 1, &where, 0);
  size = ax_lua_message_size(b);
  to = lua_newuserdata(L, size);
  memset(to, 0, size); /* zeros in the gaps between tensors: equal values have equal bytes */
  ax_lua_message_copy(b, to);
  ax_lua_message_release(b);
  lua_pushlstring(L, to, size);
  return 1;
}

/* _deserialize(bytes) -> the value.  Raises for bytes that _serialize did not write. */
static int deserialize(lua_State *L)
{
  const char *text;
  size_t size;
  int count;

  ax_lua_enter(L);
  if (lua_type(L, 1) != LUA_TSTRING) return ax_lua_arg_error(L, "deserialize", 1, "bytes", "a string", 1);
  text = lua_tolstring(L, 1, &size);
  lua_settop(L, 1);
  if (ax_lua_message_read(L, (char *)text, size, NULL, NULL, &count) != AX_OK)
    return ax_lua_raise(L, "deserialize");
  if (count != 1) return luaL_error(L, "deserialize: expected one value, found %d", count);
  return 1;
}

void ax_lua_open_message(lua_State *L)
{
  static const luaL_Reg functions[] = { { "_serialize", serialize },
                                        { "_deserialize", deserialize },
                                        { NULL, NULL } };

  ax_lua_open_class(L, &message_class);
  ax_lua_add_functions(L, functions);
}

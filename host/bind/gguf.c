/* bind/gguf.c: files of the GGUF format: core._gguf_open. */
#include "bind/bind.h"
#include "gguf.h"
#include "offload.h"

static void close_file(lua_State *L, void *object)
{
  ax_gguf **file = object;
  (void)L;
  ax_gguf_close(*file);
  *file = NULL;
}

static const ax_lua_class file_class;
static ax_gguf *check_file(lua_State *L, const char *fn)
{
  ax_lua_enter(L);
  return ax_lua_check_pointer(L, 1, &file_class, fn);
}

/* _gguf_open(path) -> file */
static int gguf_open(lua_State *L)
{
  const char *path;
  ax_gguf **file;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "gguf_open");
  file = ax_lua_push_object(L, &file_class);
  if (ax_gguf_open(path, file) != AX_OK) return ax_lua_raise(L, "gguf");
  return 1;
}

/* ---- settings */

/* file:keys() -> names of settings, in the file's order */
static int file_keys(lua_State *L)
{
  const ax_gguf *f = check_file(L, "keys");
  const int n = ax_gguf_key_count(f);

  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushstring(L, ax_gguf_key(f, i));
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static void push_value(lua_State *L, const ax_gguf *f, ax_gguf_kind kind, int64_t *at);

/* Lists of bytes are texts: they hold tables of bytes, and would take 16 times the memory. */
static void push_list(lua_State *L, const ax_gguf *f, const ax_gguf_value *list, int64_t *at)
{
  luaL_checkstack(L, 8, "gguf: lists in lists");
  if (list->of == AX_GGUF_U8 || list->of == AX_GGUF_I8) {
    luaL_Buffer b;
    ax_gguf_value v;
    luaL_buffinit(L, &b);
    for (int64_t i = 0; i < list->count; i++) {
      if (ax_gguf_read(f, AX_GGUF_U8, at, &v) != AX_OK) ax_lua_raise(L, "gguf");
      luaL_addchar(&b, (char)v.number);
    }
    luaL_pushresult(&b);
    return;
  }
  lua_newtable(L);
  for (int64_t i = 0; i < list->count; i++) {
    push_value(L, f, list->of, at);
    lua_rawseti(L, -2, (int)i + 1);
  }
}

static void push_value(lua_State *L, const ax_gguf *f, ax_gguf_kind kind, int64_t *at)
{
  ax_gguf_value v;

  if (ax_gguf_read(f, kind, at, &v) != AX_OK) ax_lua_raise(L, "gguf");
  if (kind == AX_GGUF_LIST) push_list(L, f, &v, at);
  else if (kind == AX_GGUF_TEXT) lua_pushlstring(L, v.text, v.n);
  else if (kind == AX_GGUF_BOOL) lua_pushboolean(L, v.number != 0);
  else lua_pushnumber(L, v.number);
}

/* file:get(key) -> its value: a number, a text, a boolean, a list, or a text for a list of bytes;
 * nil: there is no such key */
static int file_get(lua_State *L)
{
  const ax_gguf *f = check_file(L, "get");
  const char *key = luaL_checkstring(L, 2);
  const int n = ax_gguf_key_count(f);

  lua_pushnil(L);
  for (int i = 0; i < n; i++) {
    int64_t at;
    if (strcmp(ax_gguf_key(f, i), key) != 0) continue;
    push_value(L, f, ax_gguf_value_at(f, i, &at), &at);
    if (ax_gguf_check(f) != AX_OK) return ax_lua_raise(L, "gguf");
    break;
  }
  return 1;
}

/* file:version() -> number, whether the file is of a big-endian machine */
static int file_version(lua_State *L)
{
  const ax_gguf *f = check_file(L, "version");
  lua_pushinteger(L, ax_gguf_version(f));
  lua_pushboolean(L, ax_gguf_is_big_endian(f));
  return 2;
}

/* ---- tensors */

static void push_shape(lua_State *L, const ax_gguf *f, int i)
{
  int ndim;
  const int64_t *shape = ax_gguf_shape(f, i, &ndim);

  lua_createtable(L, ndim, 0);
  for (int d = 0; d < ndim; d++) {
    lua_pushnumber(L, (double)shape[d]);
    lua_rawseti(L, -2, d + 1);
  }
}

/* file:tensors() -> list of { name =, type =, shape = }, in the file's order; shape: row-major */
static int file_tensors(lua_State *L)
{
  const ax_gguf *f = check_file(L, "tensors");
  const int n = ax_gguf_count(f);

  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_createtable(L, 0, 3);
    lua_pushstring(L, ax_gguf_name(f, i));
    lua_setfield(L, -2, "name");
    lua_pushstring(L, ax_gguf_type(f, i));
    lua_setfield(L, -2, "type");
    push_shape(L, f, i);
    lua_setfield(L, -2, "shape");
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* The place of the tensor whose name is argument 2. */
static int check_name(lua_State *L, const ax_gguf *f, const char *fn)
{
  const char *name = luaL_checkstring(L, 2);
  const int i = ax_gguf_find(f, name);
  return i >= 0 ? i : ax_lua_error(L, fn, "'%s' has no tensor '%s'", ax_gguf_path(f), name);
}

/* file:_lend(name) -> tensor over the mapped file where that can be; blocks as uint8 */
static int file_lend(lua_State *L)
{
  const ax_gguf *f = check_file(L, "_lend");
  const int i = check_name(L, f, "_lend");
  ax_tensor **box = ax_lua_push_result(L);

  if (ax_gguf_lend(f, i, box) != AX_OK) return ax_lua_raise(L, "gguf");
  return 1;
}

/* file:_offload(name, schedule, dtype?, turned?) -> tensor whose home is the file */
static int file_offload(lua_State *L)
{
  const ax_gguf *f = check_file(L, "_offload");
  const int i = check_name(L, f, "_offload");
  ax_offload *const o = ax_lua_check_offload(L, 3, "_offload");
  const ax_dtype dtype =
      lua_isnoneornil(L, 4) ? AX_DTYPE_COUNT : ax_lua_check_dtype(L, 4, "_offload", "dtype");
  const bool turned = lua_toboolean(L, 5);
  ax_tensor **box = ax_lua_push_result(L);

  if (ax_offload_add_gguf(o, f, i, dtype, turned, box) != AX_OK) return ax_lua_raise(L, "gguf");
  return 1;
}

/* file:_drop(name): gives back the pages of a tensor that was lent and has been copied */
static int file_drop(lua_State *L)
{
  const ax_gguf *f = check_file(L, "_drop");
  ax_gguf_drop(f, check_name(L, f, "_drop"));
  return 0;
}

/* file:get_shape(name) -> list of sizes, in numbers */
static int file_get_shape(lua_State *L)
{
  const ax_gguf *f = check_file(L, "get_shape");
  push_shape(L, f, check_name(L, f, "get_shape"));
  return 1;
}

/* file:_check(): raises when the file was truncated since it was opened */
static int file_check(lua_State *L)
{
  if (ax_gguf_check(check_file(L, "_check")) != AX_OK) return ax_lua_raise(L, "gguf");
  return 0;
}

/* file:close(): gives the mapping back now; once more does nothing */
static int file_close(lua_State *L)
{
  ax_lua_enter(L);
  close_file(L, ax_lua_check_object(L, 1, &file_class, "close"));
  return 0;
}

static const luaL_Reg file_methods[] = {
  { "keys", file_keys },
  { "get", file_get },
  { "version", file_version },
  { "tensors", file_tensors },
  { "_lend", file_lend },
  { "_offload", file_offload },
  { "_drop", file_drop },
  { "get_shape", file_get_shape },
  { "_check", file_check },
  { "close", file_close },
  { NULL, NULL },
};
static const ax_lua_class file_class = { "a GGUF file", sizeof(ax_gguf *), close_file, file_methods };

void ax_lua_open_gguf(lua_State *L)
{
  static const luaL_Reg functions[] = { { "_gguf_open", gguf_open }, { NULL, NULL } };
  ax_lua_open_class(L, &file_class);
  ax_lua_add_functions(L, functions);
}

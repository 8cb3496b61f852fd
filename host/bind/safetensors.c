/* bind/safetensors.c: files of the safetensors format: core.safetensors_save, core.safetensors_load
 * and core.safetensors_open. */
#include "bind/bind.h"
#include "io.h"

#include <stdlib.h>

/* ---- saving */

/* The text at idx, which must be a string without NUL; `what` names it. */
static const char *check_text(lua_State *L, int idx, const char *what)
{
  size_t n;
  const char *s;
  if (lua_type(L, idx) != LUA_TSTRING) ax_lua_arg_error(L, "safetensors_save", 0, what, "a string", idx);
  s = lua_tolstring(L, idx, &n);
  if (strlen(s) != n) ax_lua_error(L, "safetensors_save", "%s: \"%s\" goes on after a NUL", what, s);
  return s;
}

/* Reads the list { { name, tensor, type? }, ... } at idx into arrays, which point into the
 * list. */
static void read_entries(lua_State *L, int idx, int n, const char **names, ax_tensor **tensors,
                         const char **types)
{
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, idx, i + 1);
    if (!lua_istable(L, -1)) {
      lua_pushfstring(L, "entry %d", i + 1);
      ax_lua_arg_error(L, "safetensors_save", 0, lua_tostring(L, -1), "a pair { name, tensor }",
                       lua_gettop(L) - 1);
    }
    lua_rawgeti(L, -1, 1);
    lua_rawgeti(L, -2, 2);
    lua_pushfstring(L, "the name of entry %d", i + 1);
    names[i] = check_text(L, lua_gettop(L) - 2, lua_tostring(L, -1));
    tensors[i] = ax_lua_opt_tensor(L, -2, "safetensors_save");
    if (!tensors[i]) {
      lua_pushfstring(L, "tensor '%s'", names[i]);
      ax_lua_arg_error(L, "safetensors_save", 0, lua_tostring(L, -1), "a tensor", lua_gettop(L) - 2);
    }
    lua_rawgeti(L, -4, 3);
    types[i] = lua_isnil(L, -1) ? NULL : check_text(L, lua_gettop(L), "the type of an entry");
    lua_pop(L, 5);
  }
}

/* laid out as the core's list: key, value, key, value */
typedef struct pair {
  const char *key, *value;
} pair;

static int by_key(const void *a, const void *b)
{
  return strcmp(((const pair *)a)->key, ((const pair *)b)->key);
}

/* Reads the map of strings at idx as pairs, in the order of their keys (every process writes the
 * same file).  Pushes their memory. */
static const char *const *read_metadata(lua_State *L, int idx, int *n)
{
  pair *pairs;
  int at = 0;

  *n = 0;
  if (lua_isnoneornil(L, idx)) return NULL;
  if (!lua_istable(L, idx))
    ax_lua_arg_error(L, "safetensors_save", idx, "metadata", "a table of strings", idx);
  for (lua_pushnil(L); lua_next(L, idx); lua_pop(L, 1)) ++*n;
  pairs = lua_newuserdata(L, sizeof *pairs * (size_t)(*n ? *n : 1));
  for (lua_pushnil(L); lua_next(L, idx); lua_pop(L, 1)) {
    const int value = lua_gettop(L);
    pairs[at].key = check_text(L, value - 1, "a key of the metadata");
    pairs[at].value = check_text(L, value, pairs[at].key);
    at++;
  }
  qsort(pairs, (size_t)*n, sizeof *pairs, by_key);
  return (const char *const *)pairs;
}

/* safetensors_save(path, { { name, tensor, type? }, ... }, metadata?, save?): written, or added to
 * the save; type: "I8" and the like for the bits in a uint8 tensor */
static int safetensors_save(lua_State *L)
{
  const char *path, *const *meta;
  const char **names, **types;
  ax_tensor **tensors;
  ax_save *save;
  int n, n_meta;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "safetensors_save");
  if (!lua_istable(L, 2))
    ax_lua_arg_error(L, "safetensors_save", 2, "tensors", "a list of pairs { name, tensor }", 2);
  lua_settop(L, 4);
  save = ax_lua_opt_save(L, 4, "safetensors_save");
  n = (int)lua_objlen(L, 2);
  if (n == 0 && (lua_pushnil(L), lua_next(L, 2)))
    ax_lua_error(L, "safetensors_save",
                 "tensors: expected a list of pairs { name, tensor }, got a table with other keys");
  names = lua_newuserdata(L, sizeof *names * (size_t)(n + 1));
  tensors = lua_newuserdata(L, sizeof *tensors * (size_t)(n + 1));
  types = lua_newuserdata(L, sizeof *types * (size_t)(n + 1));
  read_entries(L, 2, n, names, tensors, types);
  meta = read_metadata(L, 3, &n_meta);
  if (ax_safetensors_write(save, path, n, names, tensors, types, n_meta, meta) != AX_OK)
    return ax_lua_raise(L, "safetensors");
  return 0;
}

/* ---- an open file */

static void close_file(lua_State *L, void *object)
{
  ax_safetensors **file = object;
  ax_safetensors_close(*file);
  *file = NULL;
}

static const ax_lua_class file_class;
static ax_safetensors *check_file(lua_State *L, const char *fn)
{
  ax_lua_enter(L);
  return ax_lua_check_pointer(L, 1, &file_class, fn);
}

/* safetensors_open(path) -> file */
static int safetensors_open(lua_State *L)
{
  const char *path;
  ax_safetensors **file;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "safetensors_open");
  file = ax_lua_push_object(L, &file_class);
  if (ax_safetensors_open(path, file) != AX_OK) return ax_lua_raise(L, "safetensors");
  return 1;
}

/* file:keys() -> names, in the header's order */
static int file_keys(lua_State *L)
{
  const ax_safetensors *f = check_file(L, "keys");
  const int n = ax_safetensors_count(f);

  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushstring(L, ax_safetensors_name(f, i));
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static void push_metadata(lua_State *L, const ax_safetensors *f)
{
  int n;
  const char *const *meta = ax_safetensors_metadata(f, &n);

  lua_createtable(L, 0, n);
  for (int i = 0; i < n; i++) {
    lua_pushstring(L, meta[2 * i]);
    lua_pushstring(L, meta[2 * i + 1]);
    lua_rawset(L, -3);
  }
}

/* file:metadata() -> table of strings */
static int file_metadata(lua_State *L)
{
  push_metadata(L, check_file(L, "metadata"));
  return 1;
}

/* The place of the tensor whose name is argument 2. */
static int check_name(lua_State *L, const ax_safetensors *f, const char *fn)
{
  size_t length;
  const char *name;
  int i;

  if (lua_type(L, 2) != LUA_TSTRING) ax_lua_arg_error(L, fn, 2, "name", "a string", 2);
  name = lua_tolstring(L, 2, &length);
  i = strlen(name) == length ? ax_safetensors_find(f, name) : -1;
  if (i >= 0) return i;
  const int n = ax_safetensors_count(f);
  const char **names = lua_newuserdata(L, (size_t)(n + 1) * sizeof *names), *near;
  for (int k = 0; k < n; k++) names[k] = ax_safetensors_name(f, k);
  near = ax_lua_nearest(name, names, n);
  return ax_lua_error(L, fn, "'%s' has no tensor '%s'%s%s%s", ax_safetensors_path(f), name,
                      near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* file:get_tensor(name) -> tensor on the CPU */
static int file_get_tensor(lua_State *L)
{
  const ax_safetensors *f = check_file(L, "get_tensor");
  const int i = check_name(L, f, "get_tensor");
  ax_tensor **box = ax_lua_push_result(L);

  if (ax_safetensors_get(f, i, box) != AX_OK) return ax_lua_raise(L, "safetensors");
  return 1;
}

/* file:_lend(name, bytes?) -> tensor over the mapped file; check after it was read.  bytes: int8
 * and float8 as uint8 */
static int file_lend(lua_State *L)
{
  const ax_safetensors *f = check_file(L, "_lend");
  const int i = check_name(L, f, "_lend");
  const bool bytes = lua_toboolean(L, 3);
  ax_tensor **box = ax_lua_push_result(L);

  if ((bytes ? ax_safetensors_lend_bytes : ax_safetensors_lend)(f, i, box) != AX_OK)
    return ax_lua_raise(L, "safetensors");
  return 1;
}

/* file:_offload(name, schedule, dtype?, turned?) -> tensor whose home is the file */
static int file_offload(lua_State *L)
{
  const ax_safetensors *f = check_file(L, "_offload");
  const int i = check_name(L, f, "_offload");
  ax_offload *const o = ax_lua_check_offload(L, 3, "_offload");
  const ax_dtype dtype =
      lua_isnoneornil(L, 4) ? ax_safetensors_dtype(f, i) : ax_lua_check_dtype(L, 4, "_offload", "dtype");
  const bool turned = lua_toboolean(L, 5);
  ax_tensor **box = ax_lua_push_result(L);

  if (ax_offload_add_file(o, f, i, dtype, turned, box) != AX_OK) return ax_lua_raise(L, "safetensors");
  return 1;
}

/* file:_drop(name): gives back the pages of a tensor that was lent and has been copied; what was
 * written into it is lost */
static int file_drop(lua_State *L)
{
  const ax_safetensors *f = check_file(L, "_drop");
  ax_safetensors_drop(f, check_name(L, f, "_drop"));
  return 0;
}

/* file:_check(): raises when the file was truncated since it was opened */
static int file_check(lua_State *L)
{
  if (ax_safetensors_check(check_file(L, "_check")) != AX_OK) return ax_lua_raise(L, "safetensors");
  return 0;
}

/* file:get_dtype(name) */
static int file_get_dtype(lua_State *L)
{
  const ax_safetensors *f = check_file(L, "get_dtype");

  lua_pushstring(L, ax_safetensors_type(f, check_name(L, f, "get_dtype")));
  return 1;
}

/* file:_readable(name) -> whether tensors can have its type */
static int file_readable(lua_State *L)
{
  const ax_safetensors *f = check_file(L, "_readable");

  lua_pushboolean(L, ax_safetensors_readable(f, check_name(L, f, "_readable")));
  return 1;
}

/* file:get_shape(name) -> list of sizes */
static int file_get_shape(lua_State *L)
{
  const ax_safetensors *f = check_file(L, "get_shape");
  const int64_t *shape;
  int ndim;

  shape = ax_safetensors_shape(f, check_name(L, f, "get_shape"), &ndim);
  lua_createtable(L, ndim, 0);
  for (int d = 0; d < ndim; d++) {
    lua_pushnumber(L, (double)shape[d]);
    lua_rawseti(L, -2, d + 1);
  }
  return 1;
}

/* file:close(): gives the mapping back now; once more does nothing */
static int file_close(lua_State *L)
{
  ax_lua_enter(L);
  close_file(L, ax_lua_check_object(L, 1, &file_class, "close"));
  return 0;
}

static const luaL_Reg file_methods[] = {
  { "keys", file_keys },          { "metadata", file_metadata },   { "get_tensor", file_get_tensor },
  { "_lend", file_lend },         { "_offload", file_offload },    { "_drop", file_drop },
  { "_check", file_check },       { "get_dtype", file_get_dtype }, { "get_shape", file_get_shape },
  { "_readable", file_readable }, { "close", file_close },         { NULL, NULL },
};
static const ax_lua_class file_class = { "a safetensors file", sizeof(ax_safetensors *), close_file,
                                         file_methods };

/* safetensors_load(path) -> list of { name, tensor }, metadata */
static int safetensors_load(lua_State *L)
{
  const ax_safetensors *f;
  int n;

  safetensors_open(L);
  lua_replace(L, 1);
  lua_settop(L, 1);
  f = check_file(L, "safetensors_load");
  n = ax_safetensors_count(f);
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    ax_tensor **box;
    lua_createtable(L, 2, 0);
    lua_pushstring(L, ax_safetensors_name(f, i));
    lua_rawseti(L, -2, 1);
    box = ax_lua_push_result(L);
    if (ax_safetensors_get(f, i, box) != AX_OK) return ax_lua_raise(L, "safetensors");
    lua_rawseti(L, -2, 2);
    lua_rawseti(L, -2, i + 1);
  }
  push_metadata(L, f);
  close_file(L, ax_lua_to_object(L, 1, &file_class));
  return 2;
}

void ax_lua_open_safetensors(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "safetensors_save", safetensors_save },
    { "safetensors_load", safetensors_load },
    { "safetensors_open", safetensors_open },
    { NULL, NULL },
  };

  ax_lua_open_class(L, &file_class);
  ax_lua_add_functions(L, functions);
}

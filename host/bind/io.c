/* bind/io.c: files that hold tensors: core.read_idx, core.safetensors_save,
 * core.safetensors_load. */
#include "bind/bind.h"
#include "io.h"

#include <stdlib.h>

/* read_idx(path) -> tensor */
static int read_idx(lua_State *L)
{
  const char *path;
  ax_tensor **box;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "read_idx");
  box = ax_lua_push_result(L);
  if (ax_idx_read(path, box) != AX_OK) return ax_lua_raise(L, "read_idx");
  return 1;
}

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

/* Reads the list { { name, tensor }, ... } at idx into two arrays; the list owns the names and
 * tensors. */
static void read_entries(lua_State *L, int idx, int n, const char **names, ax_tensor **tensors)
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
    lua_pop(L, 4);
  }
}

/* the layout of the core's list: key, value, key, value */
typedef struct pair {
  const char *key, *value;
} pair;

static int by_key(const void *a, const void *b)
{
  return strcmp(((const pair *)a)->key, ((const pair *)b)->key);
}

/* Reads the map of strings at idx as pairs, sorted by key, so that every process writes the same
 * file.  Pushes their memory. */
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

/* safetensors_save(path, { { name, tensor }, ... }, metadata?) */
static int safetensors_save(lua_State *L)
{
  const char *path, *const *meta;
  const char **names;
  ax_tensor **tensors;
  int n, n_meta;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "safetensors_save");
  if (!lua_istable(L, 2))
    ax_lua_arg_error(L, "safetensors_save", 2, "tensors", "a list of pairs { name, tensor }", 2);
  lua_settop(L, 3);
  n = (int)lua_objlen(L, 2);
  if (n == 0 && (lua_pushnil(L), lua_next(L, 2)))
    ax_lua_error(L, "safetensors_save",
                 "tensors: expected a list of pairs { name, tensor }, got a table with other keys");
  names = lua_newuserdata(L, sizeof *names * (size_t)(n + 1));
  tensors = lua_newuserdata(L, sizeof *tensors * (size_t)(n + 1));
  read_entries(L, 2, n, names, tensors);
  meta = read_metadata(L, 3, &n_meta);
  if (ax_safetensors_write(path, n, names, tensors, n_meta, meta) != AX_OK)
    return ax_lua_raise(L, "safetensors");
  return 0;
}

/* ---- loading */

static void clear_file(lua_State *L, void *object)
{
  ax_tensor_file **file = object;
  ax_tensor_file_free(*file);
  *file = NULL;
}

/* Owns a file until its tensors have been returned. */
static const ax_lua_class file_class = { "a safetensors file", sizeof(ax_tensor_file *), clear_file, NULL };

/* safetensors_load(path) -> list of { name, tensor }, metadata */
static int safetensors_load(lua_State *L)
{
  const char *path;
  ax_tensor_file **file;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "safetensors_load");
  file = ax_lua_push_object(L, &file_class);
  if (ax_safetensors_read(path, file) != AX_OK) return ax_lua_raise(L, "safetensors");

  lua_createtable(L, (*file)->n, 0);
  for (int i = 0; i < (*file)->n; i++) {
    ax_tensor **box;
    lua_createtable(L, 2, 0);
    lua_pushstring(L, (*file)->names[i]);
    lua_rawseti(L, -2, 1);
    box = ax_lua_push_result(L);
    *box = ax_tensor_retain((*file)->tensors[i]);
    lua_rawseti(L, -2, 2);
    lua_rawseti(L, -2, i + 1);
  }
  lua_createtable(L, 0, (*file)->n_meta);
  for (int i = 0; i < (*file)->n_meta; i++) {
    lua_pushstring(L, (*file)->meta[2 * i]);
    lua_pushstring(L, (*file)->meta[2 * i + 1]);
    lua_rawset(L, -3);
  }
  /* now, not at the next collection: each tensor must be the only owner of its memory */
  ax_tensor_file_free(*file);
  *file = NULL;
  return 2;
}

/* ---- texts */

static void clear_text(lua_State *L, void *object)
{
  char **text = object;
  free(*text);
  *text = NULL;
}

static const ax_lua_class text_class = { "the text of a file", sizeof(char *), clear_text, NULL };

/* core._read_file(path) -> text, or nil and the reason why it cannot be read.  Regular files
 * only. */
static int read_file(lua_State *L)
{
  const char *path;
  char **text;
  size_t n;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "read_file");
  text = ax_lua_push_object(L, &text_class);
  if (ax_file_slurp(path, text, &n) == AX_OK) {
    lua_pushlstring(L, *text, n);
    clear_text(L, text);
    return 1;
  }
  lua_pushnil(L);
  lua_pushstring(L, ax_last_error());
  return 2;
}

/* core._write_file(path, text) -> true, or nil and the reason why it was not written.  The file
 * appears whole or not at all. */
static int write_file(lua_State *L)
{
  const char *path, *text;
  size_t n;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "write_file");
  if (lua_type(L, 2) != LUA_TSTRING) return ax_lua_arg_error(L, "write_file", 2, "text", "a string", 2);
  text = lua_tolstring(L, 2, &n);
  if (ax_file_put(path, text, n) == AX_OK) {
    lua_pushboolean(L, true);
    return 1;
  }
  lua_pushnil(L);
  lua_pushstring(L, ax_last_error());
  return 2;
}

void ax_lua_open_io(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "read_idx", read_idx },
    { "safetensors_save", safetensors_save },
    { "safetensors_load", safetensors_load },
    { "_read_file", read_file },
    { "_write_file", write_file },
    { NULL, NULL },
  };

  ax_lua_open_class(L, &file_class);
  ax_lua_open_class(L, &text_class);
  ax_lua_add_functions(L, functions);
}

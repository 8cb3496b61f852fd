/* bind/archive.c: files of texts and tensors: core._zip_open, core._zip_write,
 * core._zips_write, core._zip_length, core._parts_write. */
#include "bind/bind.h"
#include "io.h"

#include <stdlib.h>

/* The functions that archives are read and written for: what messages begin with. */
static const char *check_caller(lua_State *L, int idx)
{
  static const char *const callers[] = { "load",      "save",        "write_npy",      "write_npz",
                                         "write_csv", "write_image", "offload_weight", NULL };
  return callers[luaL_checkoption(L, idx, NULL, callers)];
}

/* ---- an open archive */

static const ax_lua_class zip_class;
static ax_zip *check_zip(lua_State *L, const char *fn)
{
  ax_lua_enter(L);
  return ax_lua_check_pointer(L, 1, &zip_class, fn);
}

static int check_entry(lua_State *L, const ax_zip *z, const char *fn)
{
  return (int)ax_lua_check_integer(L, 2, fn, "entry", 1, ax_zip_count(z)) - 1;
}

static void clear_zip(lua_State *L, void *object)
{
  ax_zip **z = object;
  ax_zip_close(*z);
  *z = NULL;
}

/* core._zip_open(path, caller, at?, n?) -> archive; at, n: it is n bytes of the file from byte `at`
 * (from 0) on */
static int zip_open(lua_State *L)
{
  const char *path, *fn;
  int64_t at = 0, n = -1;
  ax_zip **z;

  ax_lua_enter(L);
  fn = check_caller(L, 2);
  path = ax_lua_check_path(L, fn);
  if (!lua_isnoneornil(L, 3)) {
    at = ax_lua_check_integer(L, 3, fn, "at", 0, (int64_t)1 << 53);
    n = ax_lua_check_integer(L, 4, fn, "n", 0, (int64_t)1 << 53);
  }
  z = ax_lua_push_object(L, &zip_class);
  if (ax_zip_open_part(fn, path, at, n, z) != AX_OK) return ax_lua_raise(L, fn);
  return 1;
}

/* archive:_other(at, n) -> another archive of the same file, which is not mapped again */
static int zip_other(lua_State *L)
{
  const ax_zip *z = check_zip(L, "_other");
  const int64_t at = ax_lua_check_integer(L, 2, "_other", "at", 0, (int64_t)1 << 53);
  const int64_t n = ax_lua_check_integer(L, 3, "_other", "n", 0, (int64_t)1 << 53);
  ax_zip **other = ax_lua_push_object(L, &zip_class);

  if (ax_zip_open_other(z, at, n, other) != AX_OK) return ax_lua_raise(L, "load");
  return 1;
}

/* archive:names() -> list */
static int zip_names(lua_State *L)
{
  const ax_zip *z = check_zip(L, "names");

  lua_createtable(L, ax_zip_count(z), 0);
  for (int i = 0; i < ax_zip_count(z); i++) {
    size_t n;
    const char *name = ax_zip_name(z, i, &n);
    lua_pushlstring(L, name, n);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* archive:size(i) -> bytes, unpacked */
static int zip_size(lua_State *L)
{
  const ax_zip *z = check_zip(L, "size");
  lua_pushnumber(L, (double)ax_zip_size(z, check_entry(L, z, "size")));
  return 1;
}

static void clear_text(lua_State *L, void *object)
{
  char **text = object;
  free(*text);
  *text = NULL;
}

static const ax_lua_class text_class = { "the text of an archive's entry", sizeof(char *), clear_text, NULL };

/* archive:text(i) */
static int zip_text(lua_State *L)
{
  const ax_zip *z = check_zip(L, "text");
  const int i = check_entry(L, z, "text");
  char **text = ax_lua_push_object(L, &text_class);
  size_t n;

  if (ax_zip_text(z, i, text, &n) != AX_OK) return ax_lua_raise(L, "load");
  lua_pushlstring(L, *text, n);
  clear_text(L, text);
  return 1;
}

/* archive:tensor(i, dtype, threads?) -> 1-d tensor of the entry's bytes, read by at most so many
 * threads */
static int zip_tensor(lua_State *L)
{
  const ax_zip *z = check_zip(L, "tensor");
  const int i = check_entry(L, z, "tensor");
  const ax_dtype dtype = ax_lua_check_dtype(L, 3, "tensor", "dtype");
  const int threads = (int)luaL_optinteger(L, 4, 1);
  ax_tensor **box = ax_lua_push_result(L);

  if (ax_zip_tensor(z, i, dtype, threads, box) != AX_OK) return ax_lua_raise(L, "tensor");
  return 1;
}

/* archive:_lend(i, dtype) -> a 1-d tensor over the mapped archive, its checksum not compared; check
 * after it was read */
static int zip_lend(lua_State *L)
{
  const ax_zip *z = check_zip(L, "_lend");
  const int i = check_entry(L, z, "_lend");
  const ax_dtype dtype = ax_lua_check_dtype(L, 3, "_lend", "dtype");
  ax_tensor **box = ax_lua_push_result(L);

  if (ax_zip_lend(z, i, dtype, box) != AX_OK) return ax_lua_raise(L, "_lend");
  return 1;
}

/* archive:_check(): raises when the archive was truncated since it was opened */
static int zip_check(lua_State *L)
{
  if (ax_zip_check(check_zip(L, "_check"), AX_OK) != AX_OK) return ax_lua_raise(L, "_check");
  return 0;
}

static int zip_close(lua_State *L)
{
  ax_lua_enter(L);
  clear_zip(L, ax_lua_check_object(L, 1, &zip_class, "close"));
  return 0;
}

static const luaL_Reg zip_methods[] = {
  { "names", zip_names },   { "size", zip_size },    { "text", zip_text },
  { "tensor", zip_tensor }, { "close", zip_close },  { "_lend", zip_lend },
  { "_check", zip_check },  { "_other", zip_other }, { NULL, NULL },
};
static const ax_lua_class zip_class = { "a zip archive", sizeof(ax_zip *), clear_zip, zip_methods };

/* ---- writing */

/* Reads entries `from` .. of the list at idx, strings and tensors, into memory that it pushes; the
 * list keeps what they point to.  measured: numbers, too, which stand for as many bytes. */
static const ax_part *push_parts(lua_State *L, int idx, int from, const char *fn, bool measured, int *n)
{
  ax_part *parts;

  *n = (int)lua_objlen(L, idx) - from + 1;
  if (*n < 0) *n = 0;
  parts = lua_newuserdata(L, ((size_t)*n + 1) * sizeof *parts);
  memset(parts, 0, ((size_t)*n + 1) * sizeof *parts);
  for (int i = 0; i < *n; i++) {
    lua_rawgeti(L, idx, from + i);
    if (lua_type(L, -1) == LUA_TSTRING) parts[i].text = lua_tolstring(L, -1, &parts[i].n);
    else if (measured && lua_type(L, -1) == LUA_TNUMBER)
      parts[i].n = (size_t)ax_lua_check_integer(L, lua_gettop(L), fn, "part", 0, (int64_t)1 << 53);
    else if (!(parts[i].tensor = ax_lua_opt_tensor(L, -1, fn)))
      ax_lua_arg_error(L, fn, 0, "part", "a string or a tensor", lua_gettop(L));
    lua_pop(L, 1);
  }
  return parts;
}

/* core._parts_write(path, list of strings and tensors, caller, save?): written, or added to the
 * save */
static int parts_write(lua_State *L)
{
  const char *path, *fn;
  const ax_part *parts;
  ax_save *save;
  int n;

  ax_lua_enter(L);
  fn = check_caller(L, 3);
  save = ax_lua_opt_save(L, 4, fn);
  path = ax_lua_check_path(L, fn);
  luaL_checktype(L, 2, LUA_TTABLE);
  parts = push_parts(L, 2, 1, fn, false, &n);
  if (ax_parts_write(fn, save, path, n, parts) != AX_OK) return ax_lua_raise(L, fn);
  return 0;
}

/* Reads the list { { name, part, part, ... }, ... } at idx, an absolute index.  Pushes a table that
 * holds what the archive points to, as the list does. */
static ax_zip_archive push_archive(lua_State *L, int idx, const char *fn, bool measured)
{
  const int n = (int)lua_objlen(L, idx);
  ax_zip_member *members;
  int anchors;

  luaL_checktype(L, idx, LUA_TTABLE);
  lua_createtable(L, n + 1, 0);
  anchors = lua_gettop(L);
  members = lua_newuserdata(L, ((size_t)n + 1) * sizeof *members);
  lua_rawseti(L, anchors, n + 1);
  for (int i = 0; i < n; i++) {
    size_t length;
    lua_rawgeti(L, idx, i + 1);
    luaL_checktype(L, -1, LUA_TTABLE);
    lua_rawgeti(L, -1, 1);
    if (lua_type(L, -1) != LUA_TSTRING) ax_lua_arg_error(L, fn, 0, "name", "a string", lua_gettop(L));
    members[i].name = lua_tolstring(L, -1, &length);
    if (length == 0 || length > UINT16_MAX || strlen(members[i].name) != length)
      ax_lua_error(L, fn, "the name of entry %d is none", i + 1);
    lua_pop(L, 1);
    members[i].parts = push_parts(L, lua_gettop(L), 2, fn, measured, &members[i].n);
    lua_rawseti(L, anchors, i + 1);
    lua_pop(L, 1);
  }
  return (ax_zip_archive){ .n = n, .members = members };
}

/* core._zip_write(path, list of { name, part, part, ... }, caller, save?): an archive of stored
 * entries, written or added to the save */
static int zip_write(lua_State *L)
{
  const char *path, *fn;
  ax_zip_archive a;
  ax_save *save;

  ax_lua_enter(L);
  fn = check_caller(L, 3);
  path = ax_lua_check_path(L, fn);
  lua_settop(L, 4);
  save = ax_lua_opt_save(L, 4, fn);
  a = push_archive(L, 2, fn, false);
  if (ax_zip_write(fn, save, path, a.n, a.members) != AX_OK) return ax_lua_raise(L, fn);
  return 0;
}

/* core._zips_write(path, list of such lists, caller, save?): archives in one file, each at the next
 * multiple of 64 bytes */
static int zips_write(lua_State *L)
{
  const char *path, *fn;
  ax_zip_archive *archives;
  ax_save *save;
  int n, anchors;

  ax_lua_enter(L);
  fn = check_caller(L, 3);
  path = ax_lua_check_path(L, fn);
  lua_settop(L, 4);
  save = ax_lua_opt_save(L, 4, fn);
  luaL_checktype(L, 2, LUA_TTABLE);
  n = (int)lua_objlen(L, 2);
  archives = lua_newuserdata(L, ((size_t)n + 1) * sizeof *archives);
  lua_createtable(L, n, 0);
  anchors = lua_gettop(L);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 2, i + 1);
    archives[i] = push_archive(L, lua_gettop(L), fn, false);
    lua_rawseti(L, anchors, i + 1);
    lua_pop(L, 1);
  }
  if (ax_zips_write(fn, save, path, n, archives) != AX_OK) return ax_lua_raise(L, fn);
  return 0;
}

/* core._zip_length(list of { name, part, part, ... }) -> the bytes that the archive will have;
 * numbers among the parts stand for as many bytes */
static int zip_length(lua_State *L)
{
  ax_zip_archive a;
  uint64_t bytes;

  ax_lua_enter(L);
  lua_settop(L, 1);
  a = push_archive(L, 1, "save", true);
  if (ax_zip_length(&a, &bytes) != AX_OK) return ax_lua_raise(L, "save");
  lua_pushnumber(L, (double)bytes);
  return 1;
}

void ax_lua_open_archive(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "_zip_open", zip_open },     { "_zip_write", zip_write },     { "_zips_write", zips_write },
    { "_zip_length", zip_length }, { "_parts_write", parts_write }, { NULL, NULL },
  };

  ax_lua_open_class(L, &zip_class);
  ax_lua_open_class(L, &text_class);
  ax_lua_add_functions(L, functions);
}

/* bind/data.c: data files in Lua: core.read_npy, core.read_npz, core._read_raw, core._csv,
 * core._tokens, core.read_image, core.decode_image, core._image_resize, core._image_crop. */
#include "bind/bind.h"
#include "io.h"

/* ---- NumPy */

static int read_npy(lua_State *L)
{
  const char *path;
  ax_tensor **box;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "read_npy");
  box = ax_lua_push_result(L);
  if (ax_npy_read(path, box) != AX_OK) return ax_lua_raise(L, "read_npy");
  return 1;
}

/* core._read_raw(path, caller, dtype, sizes...) -> tensor */
static int read_raw(lua_State *L)
{
  const char *path, *fn;
  int64_t shape[AX_MAX_DIMS];
  ax_dtype dtype;
  ax_tensor **box;
  int n;

  ax_lua_enter(L);
  fn = luaL_checkstring(L, 2);
  path = ax_lua_check_path(L, fn);
  dtype = ax_lua_check_dtype(L, 3, fn, "dtype");
  n = ax_lua_check_sizes(L, 4, lua_gettop(L), fn, shape);
  box = ax_lua_push_result(L);
  if (ax_raw_read(fn, path, dtype, n, shape, box) != AX_OK) return ax_lua_raise(L, fn);
  return 1;
}

static void clear_file(lua_State *L, void *object)
{
  ax_tensor_file **file = object;
  ax_tensor_file_free(*file);
  *file = NULL;
}

static const ax_lua_class file_class = { "an npz file", sizeof(ax_tensor_file *), clear_file, NULL };

/* read_npz(path) -> table name -> tensor, list of names in the order of the file */
static int read_npz(lua_State *L)
{
  const char *path;
  ax_tensor_file **file;
  int names;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "read_npz");
  file = ax_lua_push_object(L, &file_class);
  if (ax_npz_read(path, file) != AX_OK) return ax_lua_raise(L, "read_npz");
  lua_createtable(L, 0, (*file)->n);
  lua_createtable(L, (*file)->n, 0);
  names = lua_gettop(L);
  for (int i = 0; i < (*file)->n; i++) {
    ax_tensor **box;
    lua_pushstring(L, (*file)->names[i]);
    lua_pushvalue(L, -1);
    lua_rawseti(L, names, i + 1);
    box = ax_lua_push_result(L);
    *box = ax_tensor_retain((*file)->tensors[i]);
    lua_rawset(L, names - 1);
  }
  /* now, not at the next collection: each tensor must be the only owner of its memory */
  ax_tensor_file_free(*file);
  *file = NULL;
  return 2;
}

/* ---- CSV */

static const ax_lua_class csv_class;
static ax_csv *check_csv(lua_State *L, const char *fn) { return ax_lua_check_pointer(L, 1, &csv_class, fn); }

/* core._csv(path, delimiter, quote, skip) -> file; delimiter and quote are strings of one byte,
 * quote "" turns quoting off */
static int csv_read(lua_State *L)
{
  ax_csv_options o;
  const char *path;
  ax_csv **box;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "read_csv");
  o = (ax_csv_options){ *luaL_checkstring(L, 2), *luaL_checkstring(L, 3), (int64_t)luaL_checknumber(L, 4) };
  box = ax_lua_push_object(L, &csv_class);
  if (ax_csv_read(path, &o, box) != AX_OK) return ax_lua_raise(L, "read_csv");
  return 1;
}

/* file:size() -> rows, columns */
static int csv_size(lua_State *L)
{
  const ax_csv *c = check_csv(L, "size");
  lua_pushnumber(L, (double)ax_csv_rows(c));
  lua_pushnumber(L, (double)ax_csv_columns(c));
  return 2;
}

static void push_field(lua_State *L, const ax_csv *c, int64_t row, int64_t column)
{
  size_t n;
  const char *text = ax_csv_field(c, row, column, &n);
  lua_pushlstring(L, text, n);
}

/* file:row(i) -> list of strings */
static int csv_row(lua_State *L)
{
  const ax_csv *c = check_csv(L, "row");
  const int64_t row = ax_lua_check_integer(L, 2, "row", "row", 1, ax_csv_rows(c)) - 1;
  lua_createtable(L, (int)ax_csv_columns(c), 0);
  for (int64_t k = 0; k < ax_csv_columns(c); k++) {
    push_field(L, c, row, k);
    lua_rawseti(L, -2, (int)k + 1);
  }
  return 1;
}

/* file:column(k, first, name, kind, dtype) -> tensor or list of strings, of the rows from `first`
 * on; kind: "guess", "text" or "typed" */
static int csv_column(lua_State *L)
{
  static const char *const kinds[] = { "guess", "text", "typed", NULL };
  const ax_csv *c = check_csv(L, "column");
  const int64_t column = ax_lua_check_integer(L, 2, "column", "column", 1, ax_csv_columns(c)) - 1;
  const int64_t first = ax_lua_check_integer(L, 3, "column", "first", 1, ax_csv_rows(c) + 1) - 1;
  const char *name = luaL_checkstring(L, 4);
  const ax_csv_kind kind = (ax_csv_kind)luaL_checkoption(L, 5, NULL, kinds);
  const ax_dtype dtype = ax_lua_check_dtype(L, 6, "column", "dtype");
  ax_tensor **box;

  ax_lua_enter(L);
  box = ax_lua_push_result(L);
  if (ax_csv_column(c, first, column, name, kind, dtype, box) != AX_OK) return ax_lua_raise(L, "read_csv");
  if (*box) return 1;
  lua_createtable(L, (int)(ax_csv_rows(c) - first), 0);
  for (int64_t row = first; row < ax_csv_rows(c); row++) {
    push_field(L, c, row, column);
    lua_rawseti(L, -2, (int)(row - first) + 1);
  }
  return 1;
}

static void clear_csv(lua_State *L, void *object)
{
  ax_csv **csv = object;
  ax_csv_free(*csv);
  *csv = NULL;
}

static const luaL_Reg csv_methods[] = {
  { "size", csv_size }, { "row", csv_row }, { "column", csv_column }, { NULL, NULL }
};
static const ax_lua_class csv_class = { "a csv reader", sizeof(ax_csv *), clear_csv, csv_methods };

/* ---- tokens */

static const ax_lua_class tokens_class;
static ax_tokens *check_tokens(lua_State *L, int idx, const char *fn)
{
  return ax_lua_check_pointer(L, idx, &tokens_class, fn);
}

/* core._tokens(path, bytes of a token or 0, header or -1) -> shard */
static int tokens_open(lua_State *L)
{
  const char *path;
  ax_tokens **box;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "TokenDataset");
  box = ax_lua_push_object(L, &tokens_class);
  if (ax_tokens_open(path, luaL_checkinteger(L, 2), (int64_t)luaL_checknumber(L, 3), box) != AX_OK)
    return ax_lua_raise(L, "TokenDataset");
  return 1;
}

/* shard:size() -> tokens, bytes of each */
static int tokens_size(lua_State *L)
{
  const ax_tokens *t = check_tokens(L, 1, "size");
  lua_pushnumber(L, (double)ax_tokens_count(t));
  lua_pushinteger(L, ax_tokens_item(t));
  return 2;
}

/* core._token_windows(shards, which, at, length) -> x, y: int64 [n, length].  Row i of x is the
 * `length` tokens of shard which[i] (counted from 1) from position at[i] (from 0); row i of y
 * begins one token later. */
static int token_windows(lua_State *L)
{
  static const char fn[] = "TokenDataset";
  int64_t shape[2], x_stride;
  ax_tensor **x, **y;

  ax_lua_enter(L);
  for (int i = 1; i <= 3; i++) luaL_checktype(L, i, LUA_TTABLE);
  shape[0] = (int64_t)lua_objlen(L, 2);
  shape[1] = x_stride = ax_lua_check_integer(L, 4, fn, "length", 1, INT64_C(1) << 40);
  x = ax_lua_push_result(L);
  y = ax_lua_push_result(L);
  if (ax_tensor_new(AX_I64, 2, shape, x) != AX_OK || ax_tensor_new(AX_I64, 2, shape, y) != AX_OK)
    return ax_lua_raise(L, fn);
  for (int64_t i = 0; i < shape[0]; i++) {
    int64_t at, *to = (int64_t *)ax_data(*x) + i * x_stride;
    const ax_tokens *t;
    lua_rawgeti(L, 2, (int)i + 1);
    lua_rawgeti(L, 1, lua_tointeger(L, -1));
    t = check_tokens(L, -1, fn);
    lua_rawgeti(L, 3, (int)i + 1);
    if (!ax_lua_to_integer(L, -1, &at) || at < 0 || at + shape[1] >= ax_tokens_count(t))
      return ax_lua_error(L, fn, "no window of %lld tokens at %s in a shard of %lld", (long long)shape[1],
                          ax_lua_describe(L, -1), (long long)ax_tokens_count(t));
    if (ax_tokens_copy(t, at, shape[1], to) != AX_OK ||
        ax_tokens_copy(t, at + 1, shape[1], (int64_t *)ax_data(*y) + i * x_stride) != AX_OK)
      return ax_lua_raise(L, fn);
    lua_pop(L, 3);
  }
  return 2;
}

static void clear_tokens(lua_State *L, void *object)
{
  ax_tokens **tokens = object;
  ax_tokens_close(*tokens);
  *tokens = NULL;
}

static const luaL_Reg tokens_methods[] = { { "size", tokens_size }, { NULL, NULL } };
static const ax_lua_class tokens_class = { "a file of tokens", sizeof(ax_tokens *), clear_tokens,
                                           tokens_methods };

/* ---- pictures */

/* read_image(path, channels) -> uint8 [channels, height, width]; channels 0: as many as the file
 * has */
static int read_image(lua_State *L)
{
  const char *path;
  ax_tensor **box;
  int channels;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "read_image");
  channels = luaL_optinteger(L, 2, 0);
  box = ax_lua_push_result(L);
  if (ax_image_read(path, channels, box) != AX_OK) return ax_lua_raise(L, "read_image");
  return 1;
}

/* decode_image(bytes, channels) */
static int decode_image(lua_State *L)
{
  const char *bytes;
  ax_tensor **box;
  int channels;
  size_t n;

  ax_lua_enter(L);
  if (lua_type(L, 1) != LUA_TSTRING)
    return ax_lua_arg_error(L, "decode_image", 1, "bytes", "a string with a JPEG or PNG file", 1);
  bytes = lua_tolstring(L, 1, &n);
  channels = luaL_optinteger(L, 2, 0);
  box = ax_lua_push_result(L);
  if (ax_image_decode(NULL, bytes, n, channels, box) != AX_OK) return ax_lua_raise(L, "decode_image");
  return 1;
}

/* core._image_resize(image, height, width, antialias) */
static int image_resize(lua_State *L)
{
  const int64_t most = INT64_C(1) << 28;
  int64_t height, width;
  ax_tensor *t, **box;

  ax_lua_enter(L);
  lua_settop(L, 4);
  t = ax_lua_check_tensor(L, 1, "resize", "image");
  height = ax_lua_check_integer(L, 2, "resize", "height", 1, most);
  width = ax_lua_check_integer(L, 3, "resize", "width", 1, most);
  box = ax_lua_push_result(L);
  if (ax_image_resize(t, height, width, lua_toboolean(L, 4), box) != AX_OK) return ax_lua_raise(L, "resize");
  return 1;
}

/* core._image_crop(image, top, left, height, width, flip, fill): top and left count from 0 and may
 * be negative */
static int image_crop(lua_State *L)
{
  const int64_t most = INT64_C(1) << 28;
  int64_t v[4];
  ax_tensor *t, **box;

  ax_lua_enter(L);
  lua_settop(L, 7);
  t = ax_lua_check_tensor(L, 1, "crop", "image");
  for (int i = 0; i < 4; i++)
    v[i] = ax_lua_check_integer(L, i + 2, "crop", i < 2 ? "place" : "size", i < 2 ? -most : 1, most);
  box = ax_lua_push_result(L);
  if (ax_image_crop(t, v[0], v[1], v[2], v[3], lua_toboolean(L, 6), luaL_optnumber(L, 7, 0), box) != AX_OK)
    return ax_lua_raise(L, "crop");
  return 1;
}

void ax_lua_open_data(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "read_npy", read_npy },
    { "read_npz", read_npz },
    { "_read_raw", read_raw },
    { "_csv", csv_read },
    { "_tokens", tokens_open },
    { "_token_windows", token_windows },
    { "read_image", read_image },
    { "decode_image", decode_image },
    { "_image_resize", image_resize },
    { "_image_crop", image_crop },
    { NULL, NULL },
  };

  ax_lua_open_class(L, &file_class);
  ax_lua_open_class(L, &csv_class);
  ax_lua_open_class(L, &tokens_class);
  ax_lua_add_functions(L, functions);
}

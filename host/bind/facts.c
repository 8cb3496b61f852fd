/* bind/facts.c: what a tensor says of itself: sizes, strides, memory. */
#include "bind/bind.h"

void ax_lua_at_most(lua_State *L, const char *fn, int most)
{
  int given = lua_gettop(L);
  while (given > most && lua_isnil(L, given)) given--;
  if (given > most) ax_lua_error(L, fn, "%d arguments given, at most %d expected", given, most);
}

ax_tensor *ax_lua_self(lua_State *L, const char *fn, int arguments)
{
  ax_lua_enter(L);
  ax_lua_at_most(L, fn, 1 + arguments);
  return ax_lua_check_tensor(L, 1, fn, "self");
}

void ax_lua_push_numbers(lua_State *L, int n, const int64_t *v)
{
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushnumber(L, (double)v[i]);
    lua_rawseti(L, -2, i + 1);
  }
}

static int dim(lua_State *L)
{
  lua_pushinteger(L, ax_lua_self(L, "dim", 0)->ndim);
  return 1;
}

static int numel(lua_State *L)
{
  lua_pushnumber(L, (double)ax_lua_self(L, "numel", 0)->numel);
  return 1;
}

/* x:size() returns all sizes, x:size(d) one. */
static int one_or_all(lua_State *L, const char *fn, const ax_tensor *t, const int64_t *v)
{
  if (lua_isnoneornil(L, 2)) ax_lua_push_numbers(L, t->ndim, v);
  else lua_pushnumber(L, (double)v[ax_lua_check_position(L, 2, fn, "dim", t->ndim)]);
  return 1;
}

static int size(lua_State *L)
{
  const ax_tensor *t = ax_lua_self(L, "size", 1);

  if (ax_lua_is_options(L, 2, false)) { /* x:size({ dim = 1 }) */
    ax_lua_check_options(L, 2, "size", (const char *const[]){ "dim" }, 1);
    lua_getfield(L, 2, "dim");
    lua_replace(L, 2);
  }
  return one_or_all(L, "size", t, t->shape);
}

static int stride(lua_State *L)
{
  const ax_tensor *t = ax_lua_self(L, "stride", 1);
  return one_or_all(L, "stride", t, t->strides);
}

static int is_contiguous(lua_State *L)
{
  lua_pushboolean(L, ax_tensor_is_contiguous(ax_lua_self(L, "is_contiguous", 0)));
  return 1;
}

static int element_size(lua_State *L)
{
  lua_pushinteger(L, (lua_Integer)ax_itemsize(ax_lua_self(L, "element_size", 0)));
  return 1;
}

static int storage_offset(lua_State *L)
{
  lua_pushnumber(L, (double)ax_lua_self(L, "storage_offset", 0)->offset);
  return 1;
}

/* The whole numbers of argument `arg`, which must be a list; returns how many there are. */
static int check_list(lua_State *L, int arg, const char *name, int64_t *out)
{
  if (!lua_istable(L, arg)) return ax_lua_arg_error(L, "_window", arg, name, "a list of integers", arg);
  return ax_lua_read_list(L, arg, "_window", name, arg, out);
}

/* t:_window(shape, strides, offset) -> a view of t's storage, without history; offset and strides
 * in elements of the storage, from 0. */
static int window(lua_State *L)
{
  const ax_tensor *t = ax_lua_self(L, "_window", 3);
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS], offset;
  const int ndim = check_list(L, 2, "shape", shape);
  ax_tensor **box;

  if (check_list(L, 3, "strides", strides) != ndim)
    return ax_lua_error(L, "_window", "expected as many strides as sizes, %d", ndim);
  offset = ax_lua_check_integer(L, 4, "_window", "offset", 0, INT64_C(1) << 53);
  box = ax_lua_push_result(L);
  if (ax_tensor_window(t, ndim, shape, strides, offset, box) != AX_OK) return ax_lua_raise(L, "_window");
  return 1;
}

static int nbytes(lua_State *L)
{
  const ax_tensor *t = ax_lua_self(L, "nbytes", 0);
  lua_pushnumber(L, (double)t->numel * (double)ax_itemsize(t));
  return 1;
}

/* The number of edits of this tensor's memory, which the check of saved tensors compares. */
static int version(lua_State *L)
{
  lua_pushnumber(L, ax_lua_self(L, "_version", 1)->version->edits);
  return 1;
}

/* The address of the first element, as a number: equal for two tensors that begin at the same place
 * of the same memory.  Then whether its memory is away, so that the address is one of its storage.
 * Does not count as an edit. */
static int address(lua_State *L)
{
  const ax_tensor *t = ax_lua_self(L, "_address", 0);
  const void *const base = t->storage->data ? t->storage->data : t->storage; /* its memory may be away */
  lua_pushnumber(L, (double)((uintptr_t)base + (size_t)t->offset * ax_itemsize(t)));
  lua_pushboolean(L, !t->storage->data);
  return 2;
}

/* ---- data_ptr */

static const char cast_pointer[] =
    "local ffi = require 'ffi'\n"
    "local cast, typeof = ffi.cast, ffi.typeof\n"
    "local types = { float32 = typeof 'float *', float64 = typeof 'double *', float16 = typeof 'uint16_t *', "
    "bfloat16 = typeof 'uint16_t *',\n"
    "                int64 = typeof 'int64_t *', int32 = typeof 'int32_t *', uint8 = typeof 'uint8_t *', "
    "bool = typeof 'bool *', complex64 = typeof 'complex float *', complex128 = typeof 'complex *' }\n"
    "return function(p, dtype) return cast(types[dtype], p) end\n";

/* t:data_ptr(): a typed FFI pointer to the elements, valid while t lives and is not moved.  It
 * counts as an edit, since the caller may write through it. */
static int data_ptr(lua_State *L)
{
  ax_tensor *t = ax_lua_self(L, "data_ptr", 0);
  if (t->device.kind != AX_CPU)
    return ax_lua_error(L, "data_ptr", "the tensor is on another device; x:to(\"cpu\") copies it");
  if (!ax_tensor_is_contiguous(t))
    return ax_lua_error(L, "data_ptr", "the tensor is not contiguous; x:contiguous() copies it");
  if (lua_isnil(L, lua_upvalueindex(1))) { /* first use: loads the FFI library */
    if (luaL_loadbuffer(L, cast_pointer, sizeof cast_pointer - 1, "=data_ptr") != 0) return lua_error(L);
    lua_call(L, 0, 1);
    lua_replace(L, lua_upvalueindex(1));
  }
  if (ax_tensor_ready(t, AX_WRITE) != AX_OK) return ax_lua_raise(L, "data_ptr");
  ax_touch(t);
  t->storage->exposed = true;
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_pushlightuserdata(L, ax_data(t));
  lua_pushstring(L, ax_dtype_name((ax_dtype)t->dtype));
  lua_call(L, 2, 1);
  return 1;
}

void ax_lua_open_facts(lua_State *L)
{
  static const luaL_Reg methods[] = {
    { "dim", dim },
    { "numel", numel },
    { "size", size },
    { "stride", stride },
    { "is_contiguous", is_contiguous },
    { "element_size", element_size },
    { "storage_offset", storage_offset },
    { "nbytes", nbytes },
    { "_version", version },
    { "_window", window },
    { "_address", address },
    { NULL, NULL },
  };

  ax_lua_add_methods(L, methods);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_methods);
  lua_pushnil(L);
  lua_pushcclosure(L, data_ptr, 1);
  lua_setfield(L, -2, "data_ptr");
  lua_pop(L, 1);
}

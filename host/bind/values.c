/* bind/values.c: nested Lua tables to tensors and back; item. */
#include "bind/bind.h"

#include <math.h>
#include <stdio.h>

#define EXACT (INT64_C(1) << 53)

bool ax_lua_number_fits(ax_dtype d, double v) { return ax_has_gradient(d) || ax_number_fits(d, v); }

/* ---- tables to tensors */

typedef struct filler {
  lua_State *L;
  ax_dtype dtype;
  bool given; /* the caller gave the type: numbers and booleans may stand for each other */
  int ndim;
  /* at: the position of the current entry, 1-based, for messages */
  int64_t shape[AX_MAX_DIMS], at[AX_MAX_DIMS];
  void *data;
  int64_t next; /* element to write */
} filler;

/* "{2, 3}": the entry at depth 0 .. depth. */
static const char *place(const filler *f, int depth, char *buf, size_t size)
{
  size_t n = (size_t)snprintf(buf, size, "{");
  for (int d = 0; d <= depth && n < size; d++)
    n += (size_t)snprintf(buf + n, size - n, "%s%lld", d ? ", " : "", (long long)f->at[d]);
  if (n < size) snprintf(buf + n, size - n, "}");
  return buf;
}

/* The 0-d tensor on the stack top; NULL: it is none. */
static ax_tensor *element_at_top(lua_State *L)
{
  ax_tensor *const *box = ax_lua_to_box(L, -1);
  return box && *box && (*box)->ndim == 0 ? *box : NULL;
}

/* Makes the type one that holds all entries of the list on the stack top, 0-d tensors among them,
 * as PyTorch does. */
static void promote(filler *f, int depth)
{
  lua_State *L = f->L;
  const int n = (int)lua_objlen(L, -1);

  for (int i = 1; i <= n && depth < AX_MAX_DIMS; i++) {
    lua_rawgeti(L, -1, i);
    const ax_tensor *t = element_at_top(L);
    if (t) f->dtype = ax_dtype_promote(f->dtype, (ax_dtype)t->dtype);
    else if (lua_type(L, -1) == LUA_TNUMBER) f->dtype = ax_dtype_promote(f->dtype, ax_default_dtype);
    else if (lua_istable(L, -1)) promote(f, depth + 1);
    lua_pop(L, 1);
  }
}

/* Reads the shape from the first entries all the way down; `fill` compares the other entries with
 * it.  The table is at idx. */
static void measure(filler *f, int idx)
{
  lua_State *L = f->L;
  const int top = lua_gettop(L);
  lua_pushvalue(L, idx);
  while (lua_istable(L, -1)) {
    if (f->ndim == AX_MAX_DIMS)
      ax_lua_error(L, "tensor", "the table is nested more than %d deep", AX_MAX_DIMS);
    f->shape[f->ndim++] = (int64_t)lua_objlen(L, -1);
    lua_rawgeti(L, -1, 1);
    if (f->shape[f->ndim - 1] == 0) {
      lua_pop(L, 1);
      lua_pushnil(L);
      if (lua_next(L, -2))
        ax_lua_error(L, "tensor", "expected lists, got a table with the key %s", ax_lua_describe(L, -2));
      lua_pushnil(L);
    }
  }
  if (!f->given) {
    const int type = lua_type(L, -1);
    const ax_tensor *first = element_at_top(L);
    f->dtype = type == LUA_TBOOLEAN ? AX_BOOL : first ? (ax_dtype)first->dtype : ax_default_dtype;
    lua_settop(L, top);
    if (first && f->ndim > 0) {
      lua_pushvalue(L, idx);
      promote(f, 0);
    }
  }
  lua_settop(L, top);
}

static void bad_leaf(filler *f, int depth)
{
  lua_State *L = f->L;
  char where[128];
  const char *at = depth < 0 ? "value" : place(f, depth, where, sizeof where);
  ax_tensor *const *box = ax_lua_to_box(L, -1);

  if (lua_istable(L, -1))
    ax_lua_error(L, "tensor", "ragged table: entry %s is a list, but the first entries are not", at);
  if (box && *box && (*box)->ndim > 0)
    ax_lua_error(L, "tensor", "entry %s is a tensor with dims; join tensors with tensor.stack or tensor.cat",
                 at);
  ax_lua_error(L, "tensor", "entry %s: expected a %s, got %s", at,
               f->given              ? "number or a boolean"
               : f->dtype == AX_BOOL ? "boolean, like the first entry"
                                     : "number",
               ax_lua_describe(L, -1));
}

/* Writes the value of a 0-d tensor, of any device and type. */
static void put_element(filler *f, ax_tensor *t)
{
  lua_State *L = f->L;
  const size_t size = ax_dtype_size(f->dtype);
  ax_tensor **here = ax_lua_push_box(L);

  if (ax_tensor_new(f->dtype, 0, NULL, here) != AX_OK || ax_copy(*here, t) != AX_OK)
    ax_lua_raise(L, "tensor");
  memcpy((char *)f->data + (size_t)f->next++ * size, ax_data(*here), size);
  lua_pop(L, 1);
}

/* Writes the value on the stack top. */
static void put(filler *f, int depth)
{
  lua_State *L = f->L;
  ax_tensor *const element = element_at_top(L);
  char where[128];
  double v;

  if (element && !f->given && f->dtype == AX_BOOL && element->dtype != AX_BOOL) bad_leaf(f, depth);
  if (element) {
    put_element(f, element);
    return;
  }

  switch (lua_type(L, -1)) {
  case LUA_TNUMBER:
    if (f->dtype == AX_BOOL && !f->given) bad_leaf(f, depth);
    v = lua_tonumber(L, -1);
    if (!ax_lua_number_fits(f->dtype, v))
      ax_lua_error(L, "tensor", "entry %s: %.14g does not fit %s",
                   depth < 0 ? "value" : place(f, depth, where, sizeof where), v, ax_dtype_name(f->dtype));
    break;
  case LUA_TBOOLEAN:
    if (f->dtype != AX_BOOL && !f->given) bad_leaf(f, depth);
    v = lua_toboolean(L, -1);
    break;
  default: bad_leaf(f, depth); return;
  }
  if (f->dtype == AX_BOOL) ((uint8_t *)f->data)[f->next++] = v != 0;
  else ax_store_double(f->dtype, f->data, f->next++, v);
}

/* The list on the stack top has the right length; its entries are leaves. */
static void fill_row(filler *f, int depth)
{
  lua_State *L = f->L;
  const int64_t n = f->shape[depth];
  /* float32 is by far the most frequent type and has a loop of its own */
  float *f32 = f->dtype == AX_F32 ? (float *)f->data + f->next : NULL;

  for (int64_t i = 0; i < n; i++) {
    lua_rawgeti(L, -1, (int)i + 1);
    if (f32 && lua_type(L, -1) == LUA_TNUMBER) {
      f32[i] = (float)lua_tonumber(L, -1);
      f->next++;
    } else {
      f->at[depth] = i + 1;
      put(f, depth);
    }
    lua_pop(L, 1);
  }
}

static void fill(filler *f, int depth)
{
  lua_State *L = f->L;
  char where[128];
  const int64_t n = (int64_t)lua_objlen(L, -1);

  if (n != f->shape[depth])
    ax_lua_error(L, "tensor", "ragged table: entry %s has %lld entries, expected %lld",
                 place(f, depth - 1, where, sizeof where), (long long)n, (long long)f->shape[depth]);
  if (!ax_lua_ends_with_list(L, lua_gettop(L)))
    ax_lua_check_list(L, lua_gettop(L), "tensor", depth ? place(f, depth - 1, where, sizeof where) : "data");
  if (depth == f->ndim - 1) {
    fill_row(f, depth);
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    f->at[depth] = i + 1;
    lua_rawgeti(L, -1, (int)i + 1);
    if (!lua_istable(L, -1))
      ax_lua_error(L, "tensor", "ragged table: entry %s: expected a list of %lld, got %s",
                   place(f, depth, where, sizeof where), (long long)f->shape[depth + 1],
                   ax_lua_describe(L, -1));
    fill(f, depth + 1);
    lua_pop(L, 1);
  }
}

/* Pushes a tensor of the list, number or boolean at idx. */
static ax_tensor **push_filled(filler *f, int idx, ax_device device)
{
  lua_State *L = f->L;
  ax_tensor **box, **there;

  luaL_checkstack(L, 2 * AX_MAX_DIMS + 8, "tensor");
  measure(f, idx);
  box = ax_lua_push_box(L);
  if (ax_tensor_new(f->dtype, f->ndim, f->shape, box) != AX_OK) ax_lua_raise(L, "tensor");
  f->data = ax_data(*box);
  lua_pushvalue(L, idx);
  if (f->ndim == 0) put(f, -1);
  else fill(f, 0);
  lua_pop(L, 1);
  if (device.kind == AX_CPU) return box;
  there = ax_lua_push_box(L);
  if (ax_tensor_new_on(device, f->dtype, f->ndim, f->shape, there) != AX_OK || ax_copy(*there, *box) != AX_OK)
    ax_lua_raise(L, "tensor");
  return there;
}

ax_tensor *ax_lua_push_from_table(lua_State *L, int idx, ax_dtype dtype, ax_device device)
{
  filler f = { .L = L, .dtype = dtype, .given = true };
  return *push_filled(&f, idx, device);
}

/* core.tensor(value, { dtype, device, requires_grad }) */
static int tensor(lua_State *L)
{
  static const char *const names[] = { "dtype", "device", "requires_grad", "data" };
  filler f = { .L = L, .dtype = ax_default_dtype };
  ax_device device = ax_lua.device;
  bool requires_grad = false, by_name = false;
  ax_tensor *source, **box;
  const int last = lua_gettop(L);

  ax_lua_enter(L);
  if (last == 1 && ax_lua_is_options(L, 1, false)) { /* tensor { data = { 1, 2 } } */
    lua_getfield(L, 1, "data");
    if ((by_name = !lua_isnil(L, -1))) lua_insert(L, 1);
    else lua_pop(L, 1);
  }
  if (last > 2)
    return ax_lua_error(L, "tensor", "%d arguments given, at most 2 expected; a list of numbers is one table",
                        last);
  source = ax_lua_opt_tensor(L, 1, "tensor");
  if (source) device = source->device;
  if (!lua_isnoneornil(L, 2)) {
    if (!ax_lua_is_options(L, 2, true))
      return ax_lua_arg_error(L, "tensor", 2, "options", "a table of options", 2);
    ax_lua_check_options(L, 2, "tensor", names, by_name ? 4 : 3);
    lua_getfield(L, 2, "dtype");
    if ((f.given = !lua_isnil(L, -1))) f.dtype = ax_lua_check_dtype(L, -1, "tensor", "dtype");
    lua_getfield(L, 2, "device");
    if (!lua_isnil(L, -1)) device = ax_lua_check_device(L, -1, "tensor", "device");
    lua_getfield(L, 2, "requires_grad");
    if (!lua_isnil(L, -1)) requires_grad = ax_lua_check_boolean(L, -1, "tensor", "requires_grad");
    lua_settop(L, 2);
  }
  if (source) {
    box = ax_lua_push_box(L);
    if (ax_tensor_new_on(device, f.given ? f.dtype : (ax_dtype)source->dtype, source->ndim, source->shape,
                         box) != AX_OK ||
        ax_copy(*box, source) != AX_OK)
      return ax_lua_raise(L, "tensor");
  } else {
    const int type = lua_type(L, 1);
    if (type != LUA_TTABLE && type != LUA_TNUMBER && type != LUA_TBOOLEAN)
      return ax_lua_arg_error(L, "tensor", 1, "value", "a list, a number, a boolean or a tensor", 1);
    box = push_filled(&f, 1, device);
  }
  if (requires_grad && ax_set_requires_grad(*box, true) != AX_OK) return ax_lua_raise(L, "tensor");
  return 1;
}

/* ---- tensors to values */

static void push_element(lua_State *L, const char *fn, ax_dtype d, const void *data, int64_t at)
{
  if (ax_is_float(d)) lua_pushnumber(L, ax_load_double(d, data, at));
  else if (ax_is_complex(d)) { /* a list of the two parts */ lua_createtable(L, 2, 0);
    for (int k = 0; k < 2; k++) {
      lua_pushnumber(L, ax_load_double(ax_part_dtype(d), data, 2 * at + k));
      lua_rawseti(L, -2, k + 1);
    }
  } else if (d == AX_BOOL) lua_pushboolean(L, ax_load_int(d, data, at) != 0);
  else {
    const int64_t v = ax_load_int(d, data, at);
    if (v > EXACT || v < -EXACT)
      ax_lua_error(L, fn,
                   "%lld lies beyond 2^53, where Lua numbers are not exact; x:double() rounds it, "
                   "x:data_ptr() reads it",
                   (long long)v);
    lua_pushnumber(L, (double)v);
  }
}

static void push_nested(lua_State *L, const ax_tensor *t, int depth, int64_t at)
{
  const int64_t n = t->shape[depth], step = t->strides[depth];
  if (n > INT32_MAX) ax_lua_error(L, "totable", "a Lua table cannot hold %lld entries", (long long)n);
  lua_createtable(L, (int)n, 0);
  for (int64_t i = 0; i < n; i++, at += step) {
    if (depth + 1 < t->ndim) push_nested(L, t, depth + 1, at);
    else push_element(L, "totable", (ax_dtype)t->dtype, ax_data(t), at);
    lua_rawseti(L, -2, (int)i + 1);
  }
}

/* x:totable() -> nested lists; the value itself for a 0-d tensor. */
static int totable(lua_State *L)
{
  ax_tensor *t;
  ax_lua_enter(L);
  ax_lua_check_tensor(L, 1, "totable", "self");
  ax_lua_at_most(L, "totable", 1);
  luaL_checkstack(L, AX_MAX_DIMS + 8, "totable");
  t = ax_lua_push_on_cpu(L, 1, "totable");
  if (t->ndim == 0) push_element(L, "totable", (ax_dtype)t->dtype, ax_data(t), 0);
  else push_nested(L, t, 0, 0);
  return 1;
}

static int item(lua_State *L)
{
  ax_tensor *t;
  char shape[192];
  ax_lua_enter(L);
  t = ax_lua_check_tensor(L, 1, "item", "self");
  ax_lua_at_most(L, "item", 1);
  if (t->numel != 1)
    return ax_lua_error(L, "item", "expected a tensor of one element, got one of shape %s",
                        ax_shape_text(t->ndim, t->shape, shape, sizeof shape));
  t = ax_lua_push_on_cpu(L, 1, "item");
  if (ax_is_complex((ax_dtype)t->dtype)) { /* two values: the parts */
    for (int k = 0; k < 2; k++)
      lua_pushnumber(L, ax_load_double(ax_part_dtype((ax_dtype)t->dtype), ax_data(t), k));
    return 2;
  }
  push_element(L, "item", (ax_dtype)t->dtype, ax_data(t), 0);
  return 1;
}

/* core._integers(t) -> list of all elements of an integer tensor as decimal text, in order
 * (printing shows int64 beyond 2^53). */
static int integers(lua_State *L)
{
  ax_tensor *t;
  char text[32];
  ax_lua_enter(L);
  ax_lua_check_tensor(L, 1, "_integers", "t");
  t = ax_lua_push_on_cpu(L, 1, "_integers");
  if (ax_has_gradient((ax_dtype)t->dtype) || !ax_tensor_is_contiguous(t))
    return ax_lua_error(L, "_integers", "expected a contiguous tensor of integers");
  lua_createtable(L, (int)t->numel, 0);
  for (int64_t i = 0; i < t->numel; i++) {
    snprintf(text, sizeof text, "%lld", (long long)ax_load_int((ax_dtype)t->dtype, ax_data(t), i));
    lua_pushstring(L, text);
    lua_rawseti(L, -2, (int)i + 1);
  }
  return 1;
}

void ax_lua_open_values(lua_State *L)
{
  static const luaL_Reg functions[] = { { "tensor", tensor }, { "_integers", integers }, { NULL, NULL } };
  static const luaL_Reg methods[] = {
    { "totable", totable }, { "tolist", totable }, { "item", item }, { NULL, NULL }
  };
  ax_lua_add_functions(L, functions);
  ax_lua_add_methods(L, methods);
}

/* bind/convert.c: x:to(...) and x:float(), x:long() ...: other types and devices. */
#include "bind/bind.h"

typedef struct target {
  ax_dtype dtype;
  ax_device device;
  bool copy, later;
} target;

static void to_word(lua_State *L, int idx, target *to)
{
  const char *s = lua_tostring(L, idx);
  ax_device named;
  if (ax_lua_device_parse(s, &named)) to->device = ax_lua_check_device(L, idx, "to", "device");
  else if (ax_dtype_parse(s, &to->dtype) != AX_OK) {
    const char *near = ax_lua_nearest_dtype(s), *device = ax_lua_device_hint(s);
    ax_lua_error(L, "to",
                 "there is no element type and no device \"%s\"%s%s%s; there are the types %sand the devices "
                 "\"cpu\", \"cuda\" and \"cuda:N\"",
                 s,
                 *device ? device
                 : near  ? "; did you mean \""
                         : "",
                 *device || !near ? "" : near, *device || !near ? "" : "\"?", ax_lua_dtype_list());
  }
}

static void read_target(lua_State *L, int last, target *to)
{
  static const char *const names[] = { "dtype", "device", "copy", "non_blocking" };
  bool typed = false, flags = false;
  for (int i = 2; i <= last; i++) {
    const ax_tensor *like = ax_lua_opt_tensor(L, i, "to");
    if (like) {
      to->dtype = (ax_dtype)like->dtype;
      to->device = like->device;
    } else if (lua_type(L, i) == LUA_TSTRING) {
      ax_dtype d;
      const bool type = ax_dtype_parse(lua_tostring(L, i), &d) == AX_OK;
      if (type && typed) ax_lua_error(L, "to", "a second element type is given, \"%s\"", lua_tostring(L, i));
      typed |= type;
      to_word(L, i, to);
    } else if (lua_isboolean(L, i)) { /* PyTorch's order: non_blocking, copy */
      *(flags ? &to->copy : &to->later) = lua_toboolean(L, i);
      flags = true;
    } else if (lua_isnil(L, i)) continue;
    else if (i == last && ax_lua_is_options(L, i, true)) {
      ax_lua_check_options(L, i, "to", names, 4);
      lua_getfield(L, i, "dtype");
      if (!lua_isnil(L, -1)) to->dtype = ax_lua_check_dtype(L, -1, "to", "dtype");
      lua_getfield(L, i, "device");
      if (!lua_isnil(L, -1)) to->device = ax_lua_check_device(L, -1, "to", "device");
      lua_getfield(L, i, "copy");
      if (!lua_isnil(L, -1)) to->copy = ax_lua_check_boolean(L, -1, "to", "copy");
      lua_getfield(L, i, "non_blocking");
      if (!lua_isnil(L, -1)) to->later = ax_lua_check_boolean(L, -1, "to", "non_blocking");
      lua_pop(L, 4);
    } else ax_lua_arg_error(L, "to", i, NULL, "an element type, a device, a tensor or options", i);
  }
}

/* Whether the result is a new tensor of the device meta, which has t's shape and none of its
 * elements.  One of meta that knows its values (deferred.c) cannot become of another type
 * without them. */
static bool drops_elements(const ax_tensor *t, const target *to)
{
  if (to->device.kind != AX_DEVICE_KINDS) return false; /* not meta */
  return t->device.kind != AX_DEVICE_KINDS || (to->dtype != t->dtype && !t->storage->claims);
}

/* Pushes t (at index 1) converted to `to`; t's own object when nothing changes. */
static int convert(lua_State *L, ax_tensor *t, const target *to)
{
  ax_lua_read_result r = { .args = { .n_in = 1, .in = r.in }, .in = { t }, .at = { 1 } };

  if (drops_elements(t, to)) {
    ax_tensor **box = ax_lua_push_box(L);
    if (ax_tensor_new_on(to->device, to->dtype, t->ndim, t->shape, box) != AX_OK) ax_lua_raise(L, "to");
    return 1;
  }
  r.args.in = r.in;
  if (!ax_same_device(t->device, to->device)) { /* the cast, if there is one, follows on the new device */
    r.args.a = AX_ATTRS(to_device, .kind = to->device.kind, .index = to->device.index, .later = to->later);
    ax_lua_run_push(L, AX_OP_TO_DEVICE, "to", &r);
    if (to->dtype == t->dtype) return 1;
    lua_replace(L, 1);
    r.in[0] = t = *ax_lua_to_box(L, 1);
  }
  r.args.a.cast.dtype = to->dtype;
  if (to->dtype != t->dtype) return ax_lua_run_push(L, AX_OP_CAST, "to", &r);
  if (to->copy) return ax_lua_run_push(L, AX_OP_CLONE, "to", &r);
  lua_pushvalue(L, 1);
  return 1;
}

static int to(lua_State *L)
{
  ax_tensor *t = ax_lua_self(L, "to", 4);
  target want = { (ax_dtype)t->dtype, t->device, false, false };
  const int last = lua_gettop(L);

  if (last < 2)
    return ax_lua_error(L, "to", "expected an element type, a device, a tensor or options, got nothing");
  read_target(L, last, &want);
  return convert(L, t, &want);
}

static const struct {
  const char *name;
  ax_dtype dtype;
} casts[] = {
  { "float", AX_F32 },  { "double", AX_F64 },   { "half", AX_F16 }, { "bfloat16", AX_BF16 },
  { "long", AX_I64 },   { "int", AX_I32 },      { "byte", AX_U8 },  { "bool", AX_BOOL },
  { "cfloat", AX_C64 }, { "cdouble", AX_C128 },
};

/* x:float(), x:long() ...: the upvalue is a place in casts. */
static int cast_method(lua_State *L)
{
  const size_t i = (size_t)lua_tointeger(L, lua_upvalueindex(1));
  ax_tensor *t = ax_lua_self(L, casts[i].name, 0);
  return convert(L, t, &(target){ casts[i].dtype, t->device, false, false });
}

void ax_lua_open_convert(lua_State *L)
{
  static const luaL_Reg methods[] = { { "to", to }, { NULL, NULL } };

  ax_lua_add_methods(L, methods);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_methods);
  for (size_t i = 0; i < sizeof casts / sizeof *casts; i++) {
    lua_pushinteger(L, (lua_Integer)i);
    lua_pushcclosure(L, cast_method, 1);
    lua_setfield(L, -2, casts[i].name);
  }
  lua_pop(L, 1);
}

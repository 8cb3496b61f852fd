/* bind/tensor.c: the userdata of tensors: fields, life, history.  Further methods: facts.c,
 * convert.c. */
#include "bind/bind.h"
#include "capture.h"
#include "slot.h"

/* ---- fields: read by name, and some of them written */

typedef enum {
  FIELD_SHAPE = 1,
  FIELD_DTYPE,
  FIELD_DEVICE,
  FIELD_REQUIRES_GRAD,
  FIELD_GRAD,
  FIELD_IS_LEAF,
  FIELD_GRAD_FN,
  FIELD_DATA,
  FIELD_NDIM
} field;
static const struct {
  const char *name;
  field id;
} fields[] = {
  { "shape", FIELD_SHAPE },     { "dtype", FIELD_DTYPE },
  { "device", FIELD_DEVICE },   { "requires_grad", FIELD_REQUIRES_GRAD },
  { "grad", FIELD_GRAD },       { "is_leaf", FIELD_IS_LEAF },
  { "grad_fn", FIELD_GRAD_FN }, { "data", FIELD_DATA },
  { "ndim", FIELD_NDIM },
};

/* Pushes the gradient of the tensor at 1 that Lua keeps (rows of an embedding: accelerate.sparse),
 * or nil; forgets it where `forget` is set. */
static void push_row_gradient(lua_State *L, bool forget)
{
  if (!ax_lua.ref_row_gradients) {
    lua_pushnil(L);
    return;
  }
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_row_gradients);
  lua_pushvalue(L, 1);
  lua_pushboolean(L, forget);
  lua_call(L, 2, 1);
}

/* core._row_gradients(fn): fn(tensor, forget) is called where a tensor holds no gradient itself. */
static int row_gradients(lua_State *L)
{
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  ax_lua.ref_row_gradients = luaL_ref(L, LUA_REGISTRYINDEX);
  return 0;
}

static int push_field(lua_State *L, ax_tensor *t, field id)
{
  char text[16];
  ax_tensor **box;

  if ((id == FIELD_REQUIRES_GRAD || id == FIELD_IS_LEAF || id == FIELD_GRAD_FN) && ax_history(t) != AX_OK)
    return ax_lua_raise(L, "tensor");
  switch (id) {
  case FIELD_SHAPE: ax_lua_push_numbers(L, t->ndim, t->shape); break;
  case FIELD_DTYPE: lua_pushstring(L, ax_dtype_name((ax_dtype)t->dtype)); break;
  case FIELD_DEVICE: lua_pushstring(L, ax_device_text(t->device, text, sizeof text)); break;
  case FIELD_REQUIRES_GRAD: lua_pushboolean(L, t->requires_grad); break;
  case FIELD_GRAD:
    if (t->grad) ax_lua_push_handle(L, t->grad);
    else push_row_gradient(L, false);
    break;
  case FIELD_IS_LEAF: lua_pushboolean(L, t->grad_fn == NULL); break;
  case FIELD_GRAD_FN:
    if (t->grad_fn) lua_pushstring(L, ax_grad_fn_name(t));
    else lua_pushnil(L);
    break;
  case FIELD_DATA:
    box = ax_lua_push_box(L);
    if (ax_tensor_alias_shared(t, box) != AX_OK) return ax_lua_raise(L, "data");
    break;
  case FIELD_NDIM: lua_pushinteger(L, t->ndim); break;
  }
  return 1;
}

/* Pushes what is written here in place of one of PyTorch's methods, or nil. */
static const char *push_elsewhere(lua_State *L)
{
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_require);
  lua_pushliteral(L, "accelerate.messages.elsewhere");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "METHODS");
  lua_pushvalue(L, 2);
  lua_rawget(L, -2);
  return lua_tostring(L, -1);
}

/* Raises for an unknown name.  Only here is the name compared with all names. */
static int unknown_name(lua_State *L, const char *what)
{
  const char *given = lua_tostring(L, 2), *names[1024], *near, *elsewhere = push_elsewhere(L);
  int n = 0;

  if (elsewhere)
    return ax_lua_error(L, "tensor", "there is no %s \"%s\"; instead: %s", what, given, elsewhere);

  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_methods);
  lua_pushnil(L);
  while (lua_next(L, -2) && n < 1023) {
    names[n++] = lua_tostring(L, -2); /* the table of methods keeps the names alive */
    lua_pop(L, 1);
  }
  near = ax_lua_nearest(given, names, n);
  if (near)
    return ax_lua_error(L, "tensor", "there is no %s \"%s\"; did you mean \"%s\"?", what, given, near);
  return ax_lua_error(L, "tensor", "there is no %s \"%s\"", what, given);
}

/* The methods written in Lua are loaded at the first name that C does not know. */
static bool load_methods(lua_State *L)
{
  if (ax_lua.methods_loaded) return false;
  ax_lua.methods_loaded = true;
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_require);
  lua_pushliteral(L, "accelerate.tensor.composed");
  lua_call(L, 1, 0);
  return true;
}

/* Is the key at index 2 "...", all of the tensor? */
static bool is_rest(lua_State *L) { return strcmp(lua_tostring(L, 2), "...") == 0; }

/* The __index of tensors.  Every method call comes through here, so strings are handled first. */
static int tensor_index(lua_State *L)
{
  if (lua_type(L, 2) == LUA_TSTRING) {
    lua_pushvalue(L, 2);
    lua_rawget(L, lua_upvalueindex(1));
    switch (lua_type(L, -1)) {
    case LUA_TFUNCTION: return 1;
    case LUA_TNIL:
      if (is_rest(L)) {
        lua_settop(L, 2);
        return ax_lua_index_read(L);
      }
      if (!load_methods(L)) return unknown_name(L, "field or method");
      lua_settop(L, 2);
      return tensor_index(L);
    case LUA_TTABLE: /* a field that a Lua function computes */
      ax_lua_enter(L);
      ax_lua_check_tensor(L, 1, lua_tostring(L, 2), "self");
      lua_rawgeti(L, -1, 1);
      lua_pushvalue(L, 1);
      lua_call(L, 1, 1);
      return 1;
    case LUA_TNUMBER:
      ax_lua_enter(L);
      return push_field(L, ax_lua_check_tensor(L, 1, lua_tostring(L, 2), "self"),
                        (field)lua_tointeger(L, -1));
    default: return unknown_name(L, "field or method");
    }
  }
  return ax_lua_index_read(L);
}

static bool same_place(const ax_tensor *a, const ax_tensor *b)
{
  if (a->ndim != b->ndim || a->dtype != b->dtype || a->device.kind != b->device.kind ||
      a->device.index != b->device.index)
    return false;
  return memcmp(a->shape, b->shape, sizeof a->shape[0] * a->ndim) == 0;
}

/* x.grad = g.  Where the gradient has a slot in a flat buffer, g's elements are copied there, and
 * g's Lua object shows the slot from then on.  A gradient with a history is kept as given, since
 * backward under create_graph keeps it so. */
static int set_grad(lua_State *L, ax_tensor *t)
{
  ax_tensor **box, *g, *slot;
  char a[192], b[192];

  if (ax_recording) ax_capture_note(t);
  if (lua_isnil(L, 3)) {
    ax_zero_grad(t);
    push_row_gradient(L, true);
    return 0;
  }
  g = ax_lua_check_tensor(L, 3, "grad", "value");
  if (t->grad_fn)
    return ax_lua_error(L, "grad", "only a leaf has a gradient to set; this is the result of %s",
                        ax_grad_fn_name(t));
  if (!same_place(t, g))
    return ax_lua_error(L, "grad", "expected a tensor of %s %s on the same device, got %s %s",
                        ax_dtype_name((ax_dtype)t->dtype), ax_shape_text(t->ndim, t->shape, a, sizeof a),
                        ax_dtype_name((ax_dtype)g->dtype), ax_shape_text(g->ndim, g->shape, b, sizeof b));
  if (g == t) return ax_lua_error(L, "grad", "a tensor cannot be its own gradient");
  if (g == t->grad) return 0;
  box = ax_lua_to_box(L, 3);
  if ((slot = ax_slot_grad(t)) && !g->requires_grad) {
    if (ax_copy(slot, g) != AX_OK) return ax_lua_raise(L, "grad");
    if (t->grad != slot) {
      ax_tensor_release(t->grad);
      t->grad = ax_tensor_retain(slot);
    }
    if (g->refs == 1 && !g->grad && !slot->handle) {
      ax_tensor_release(ax_lua_empty_box(box));
      *box = ax_tensor_retain(slot);
      ax_lua_remember_handle(L, 3);
    }
    return 0;
  }
  ax_lua_remember_handle(L, 3);
  ax_tensor_retain(g);
  ax_tensor_release(t->grad);
  t->grad = g;
  return 0;
}

static int tensor_newindex(lua_State *L)
{
  ax_tensor *t;
  if (lua_type(L, 2) != LUA_TSTRING) return ax_lua_index_write(L);
  ax_lua_enter(L);
  t = ax_lua_check_tensor(L, 1, lua_tostring(L, 2), "self");
  lua_pushvalue(L, 2);
  lua_rawget(L, lua_upvalueindex(1));
  if (lua_isnil(L, -1)) {
    if (!is_rest(L)) return unknown_name(L, "field");
    lua_settop(L, 3);
    return ax_lua_index_write(L);
  }
  switch (lua_type(L, -1) == LUA_TNUMBER ? (field)lua_tointeger(L, -1) : 0) {
  case FIELD_REQUIRES_GRAD:
    if (ax_history(t) != AX_OK ||
        ax_set_requires_grad(t, ax_lua_check_boolean(L, 3, "requires_grad", "value")) != AX_OK)
      return ax_lua_raise(L, "requires_grad");
    return 0;
  case FIELD_GRAD: return set_grad(L, t);
  case FIELD_DATA:
    if (ax_tensor_set_data(t, ax_lua_check_tensor(L, 3, "data", "value")) != AX_OK)
      return ax_lua_raise(L, "data");
    return 0;
  default:
    return ax_lua_error(L, "tensor", "\"%s\" cannot be set; requires_grad, grad and data can",
                        lua_tostring(L, 2));
  }
}

/* ---- life */

static int tensor_gc(lua_State *L)
{
  ax_tensor **box = ax_lua_to_box(L, 1);
  if (!box || !*box) return 0;
  if ((*box)->grad_fn && !ax_lua.pause_shortened && ax_lua.open) ax_lua_shorten_pause(L);
  if ((*box)->hooks && ax_lua.open) ax_lua_tensor_finalise(L, 1, box);
  else ax_tensor_release(ax_lua_empty_box(box));
  return 0;
}

/* core.release(t): frees its memory at once, unless something else holds it. */
static int release(lua_State *L)
{
  ax_tensor **box;
  ax_lua_enter(L);
  if (!(box = ax_lua_to_box(L, 1))) return ax_lua_arg_error(L, "release", 1, "t", "a tensor", 1);
  ax_tensor_release(ax_lua_empty_box(box));
  return 0;
}

static int is_released(lua_State *L)
{
  ax_tensor **box;
  ax_lua_enter(L);
  if (!(box = ax_lua_to_box(L, 1))) return ax_lua_arg_error(L, "is_released", 1, "t", "a tensor", 1);
  lua_pushboolean(L, *box == NULL);
  return 1;
}

/* core._nearest(given, names) -> the name that is closest, or nil when none is near */
static int nearest(lua_State *L)
{
  const char **names, *near;
  int n, used = 0;
  ax_lua_enter(L);
  if (lua_type(L, 1) != LUA_TSTRING || !lua_istable(L, 2))
    return ax_lua_error(L, "_nearest", "expected a string and a list of strings");
  n = (int)lua_objlen(L, 2);
  names = lua_newuserdata(L, sizeof *names * (size_t)(n ? n : 1));
  for (int i = 1; i <= n; i++) {
    lua_rawgeti(L, 2, i);
    if (lua_type(L, -1) == LUA_TSTRING) names[used++] = lua_tostring(L, -1); /* the list holds it */
    lua_pop(L, 1);
  }
  near = ax_lua_nearest(lua_tostring(L, 1), names, used);
  if (near) lua_pushstring(L, near);
  else lua_pushnil(L);
  return 1;
}

static int is_tensor(lua_State *L)
{
  lua_pushboolean(L, ax_lua_to_box(L, 1) != NULL);
  return 1;
}

/* Whether the value is a tensor of a real floating type. */
static int is_float(lua_State *L)
{
  ax_tensor **b = ax_lua_to_box(L, 1);
  lua_pushboolean(L, b && *b && ax_is_float((ax_dtype)(*b)->dtype));
  return 1;
}

/* ---- length and text */

static int tensor_len(lua_State *L)
{
  const ax_tensor *t = ax_lua_self(L, "#", 1);
  if (t->ndim == 0) return ax_lua_error(L, "#", "a 0-d tensor has no length");
  lua_pushnumber(L, (double)t->shape[0]);
  return 1;
}

static int next_row(lua_State *L)
{
  const ax_tensor *t = ax_lua_self(L, "ipairs", 1);
  const int64_t i = (int64_t)luaL_checknumber(L, 2) + 1;

  if (t->ndim == 0 || i < 1 || i > t->shape[0]) return 0;
  lua_pushnumber(L, (double)i);
  lua_pushnumber(L, (double)i);
  lua_gettable(L, 1);
  return 2;
}

/* for i, row in ipairs(x): the rows are x[1], x[2], ... */
static int tensor_ipairs(lua_State *L)
{
  const ax_tensor *t = ax_lua_self(L, "ipairs", 1);
  if (t->ndim == 0) return ax_lua_error(L, "ipairs", "a 0-d tensor has no rows; x:item() is its number");
  lua_pushcfunction(L, next_row);
  lua_pushvalue(L, 1);
  lua_pushinteger(L, 0);
  return 3;
}

static int tensor_tostring(lua_State *L)
{
  ax_tensor **box = ax_lua_to_box(L, 1);
  ax_lua_enter(L);
  if (box && !*box) {
    lua_pushliteral(L, "tensor(released)");
    return 1;
  }
  ax_lua_check_tensor(L, 1, "tostring", "self");
  lua_getglobal(L, "require");
  lua_pushliteral(L, "accelerate.utils.format");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "tensor");
  lua_pushvalue(L, 1);
  lua_call(L, 1, 1);
  return 1;
}

/* ---- history */

static int detach(lua_State *L)
{
  ax_tensor *t = ax_lua_self(L, "detach", 0), **box = ax_lua_push_result(L);
  if (ax_tensor_alias_shared(t, box) != AX_OK) return ax_lua_raise(L, "detach");
  return 1;
}

static int detach_(lua_State *L)
{
  ax_detach_inplace(ax_lua_self(L, "detach_", 0));
  lua_settop(L, 1);
  return 1;
}

static int requires_grad_(lua_State *L)
{
  static const char *const names[] = { "requires_grad" };
  ax_lua_place_named(L, "requires_grad_", 2, names, 1);
  ax_tensor *t = ax_lua_self(L, "requires_grad_", 1);
  const bool on = lua_isnoneornil(L, 2) || ax_lua_check_boolean(L, 2, "requires_grad_", "requires_grad");
  if (ax_history(t) != AX_OK || ax_set_requires_grad(t, on) != AX_OK)
    return ax_lua_raise(L, "requires_grad_");
  lua_settop(L, 1);
  return 1;
}

/* ---- moving parameters (internal: flat buffers) */

/* ---- opening */

static void make_metatable(lua_State *L)
{
  static const luaL_Reg events[] = {
    { "__gc", tensor_gc },
    { "__len", tensor_len },
    { "__ipairs", tensor_ipairs },
    { "__tostring", tensor_tostring },
    { NULL, NULL },
  };
  lua_createtable(L, 0, 16);
  ax_lua_add_functions(L, events);
  lua_pushliteral(L, "tensor");
  lua_setfield(L, -2, "__metatable"); /* scripts cannot swap it: C relies on it */
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_methods);
  lua_pushvalue(L, -1);
  lua_pushcclosure(L, tensor_index, 1);
  lua_setfield(L, -3, "__index");
  lua_pushcclosure(L, tensor_newindex, 1);
  lua_setfield(L, -2, "__newindex");
  ax_lua.ref_tensor_mt = luaL_ref(L, LUA_REGISTRYINDEX);
}

void ax_lua_open_tensor(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "is_tensor", is_tensor },
    { "_is_float", is_float },
    { "release", release },
    { "is_released", is_released },
    { "_nearest", nearest },
    { "_row_gradients", row_gradients },
    { "_out_of_memory", ax_lua_out_of_memory },
    { NULL, NULL },
  };
  static const luaL_Reg methods[] = {
    { "detach", detach },
    { "detach_", detach_ },
    { "requires_grad_", requires_grad_ },
    { NULL, NULL },
  };

  ax_lua.ref_row_gradients = 0;
  make_metatable(L);
  ax_lua_add_functions(L, functions);
  ax_lua_add_methods(L, methods);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_methods);
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    lua_pushinteger(L, fields[i].id);
    lua_setfield(L, -2, fields[i].name);
  }
  lua_pop(L, 1);
}

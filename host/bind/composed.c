/* bind/composed.c: functions of tensors that are written in Lua, of rows.
 *
 * They have a signature in the language of ops.def.  Their arguments are read as those of rows are,
 * with the same messages; the Lua function gets one value for each parameter: dims counted from 1
 * with none negative, lists as tables, defaults filled in, nil for what is optional and was not
 * given. */
#include "bind/bind.h"

#include <math.h>

typedef struct composed {
  ax_signature sig;
  char name[];
} composed;

static void push_list(lua_State *L, const int64_t *v, int64_t n, int64_t add)
{
  if (n < 0) {
    lua_pushnil(L);
    return;
  }
  lua_createtable(L, (int)n, 0);
  for (int64_t i = 0; i < n; i++) {
    lua_pushnumber(L, (double)(v[i] + add));
    lua_rawseti(L, -2, (int)i + 1);
  }
}

static void push_integer(lua_State *L, int64_t v, int64_t add)
{
  if (v == AX_NO_DIM) lua_pushnil(L);
  else lua_pushnumber(L, (double)(v + add));
}

/* where: the stack index of the value as it was given, or 0. */
static void push_param(lua_State *L, const ax_param *p, const ax_attrs *a, int where)
{
  const int64_t *integers = a->integers + p->slot;

  switch (p->kind) {
  case AX_P_TENSOR:
  case AX_P_OPERAND:
  case AX_P_TENSORS:
  case AX_P_GENERATOR:
  case AX_P_ANY:
    if (where) lua_pushvalue(L, where);
    else lua_pushnil(L);
    break;
  case AX_P_DIM:
  case AX_P_DIM_PLUS:
  case AX_P_POS:
  case AX_P_POS_PLUS: push_integer(L, *integers, 1); break;
  case AX_P_DIMS:
  case AX_P_INTS:
    if (p->second) push_list(L, integers + 1, *integers, p->kind == AX_P_DIMS);
    else push_list(L, a->list, a->n_list, p->kind == AX_P_DIMS);
    break;
  case AX_P_INT: push_integer(L, *integers, 0); break;
  case AX_P_INT2:
  case AX_P_INT3:
    if (*integers == AX_NO_DIM) lua_pushnil(L);
    else push_list(L, integers, p->places, 0);
    break;
  case AX_P_NUM:
    if (!where && isnan(a->numbers[p->slot])) lua_pushnil(L);
    else lua_pushnumber(L, a->numbers[p->slot]);
    break;
  case AX_P_BOOL: lua_pushboolean(L, *integers == 1); break;
  case AX_P_DTYPE:
    if (where) lua_pushstring(L, ax_dtype_name((ax_dtype)*integers));
    else lua_pushnil(L);
    break;
  case AX_P_WORD:
    if (*integers < 0) lua_pushnil(L);
    else lua_pushstring(L, p->words[*integers]);
    break;
  }
}

void ax_lua_push_arguments(lua_State *L, const ax_signature *sig, const ax_lua_read_result *r)
{
  for (int i = 0; i < sig->n; i++) push_param(L, &sig->param[i], &r->args.a, r->where[i]);
}

/* Upvalues: the composed, its name (bind/named.c), the Lua function. */
static int composed_call(lua_State *L)
{
  const composed *c = lua_touserdata(L, lua_upvalueindex(1));
  ax_lua_read_result r;
  int base;

  ax_lua_enter(L);
  ax_lua_read_params(L, &c->sig, c->name, &r);
  base = lua_gettop(L);
  luaL_checkstack(L, c->sig.n + 1, c->name);
  lua_pushvalue(L, lua_upvalueindex(4));
  ax_lua_push_arguments(L, &c->sig, &r);
  lua_call(L, c->sig.n, LUA_MULTRET);
  return lua_gettop(L) - base;
}

/* core._composed(name, signature, fn) -> a function that reads its arguments by the signature. */
static int make_composed(lua_State *L)
{
  size_t size;
  const char *name = luaL_checklstring(L, 1, &size), *signature = luaL_checkstring(L, 2);
  composed *c;

  luaL_checktype(L, 3, LUA_TFUNCTION);
  c = lua_newuserdata(L, sizeof *c + size + 1);
  memset(c, 0, sizeof *c);
  memcpy(c->name, name, size + 1);
  ax_signature_parse(&c->sig, signature);
  ax_lua_push_name(L, name);
  lua_pushvalue(L, 3);
  lua_pushcclosure(L, composed_call, 4);
  return 1;
}

/* core._add_method(name, value): a function, or a table with one, which computes a field. */
static int add_method(lua_State *L)
{
  const bool field = lua_istable(L, 2);

  luaL_checkstring(L, 1);
  lua_settop(L, 2);
  if (field) lua_rawgeti(L, 2, 1);
  luaL_checktype(L, field ? 3 : 2, LUA_TFUNCTION);
  lua_settop(L, 2);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_methods);
  lua_pushvalue(L, 1);
  lua_rawget(L, -2);
  if (!lua_isnil(L, -1)) return luaL_error(L, "tensors have a method %s", lua_tostring(L, 1));
  lua_pop(L, 1);
  lua_pushvalue(L, 1);
  lua_pushvalue(L, 2);
  lua_rawset(L, -3);
  return 0;
}

/* core._take_over(x, y, name) -> x: the object x is from now on the tensor of y, and y is released.
 * A leaf that requires a gradient is an object to others, too: to modules, optimizers and hooks. */
static int take_over(lua_State *L)
{
  const char *fn = luaL_checkstring(L, 3);
  const ax_tensor *x = ax_lua_check_tensor(L, 1, fn, "self");
  ax_tensor **box;

  ax_lua_check_tensor(L, 2, fn, "value");
  lua_settop(L, 2);
  if (x->requires_grad && !x->grad_fn)
    return ax_lua_error(L, fn, "a leaf that requires a gradient keeps its shape: take a view of it");
  if (x->flat)
    return ax_lua_error(L, fn, "a tensor with a place in a flat buffer keeps its shape: take a view of it");
  if (lua_rawequal(L, 1, 2)) {
    lua_settop(L, 1);
    return 1;
  }
  box = ax_lua_to_box(L, 1);
  ax_tensor_release(ax_lua_empty_box(box));
  *box = ax_lua_empty_box(ax_lua_to_box(L, 2));
  ax_lua_remember_handle(L, 1);
  lua_settop(L, 1);
  return 1;
}

/* core._tensor_names() -> the names of all fields and methods of tensors, as keys. */
static int tensor_names(lua_State *L)
{
  lua_newtable(L);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_methods);
  lua_pushnil(L);
  while (lua_next(L, -2)) {
    lua_pop(L, 1);
    if (lua_tostring(L, -1)[0] == '_') continue;
    lua_pushvalue(L, -1);
    lua_pushboolean(L, true);
    lua_rawset(L, -5);
  }
  lua_pop(L, 1);
  return 1;
}

void ax_lua_open_composed(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "_tensor_names", tensor_names },
    { "_composed", make_composed },
    { "_add_method", add_method },
    { "_take_over", take_over },
    { NULL, NULL },
  };
  ax_lua_add_functions(L, functions);
  lua_getglobal(L, "require"); /* a script may replace it later */
  ax_lua.ref_require = luaL_ref(L, LUA_REGISTRYINDEX);
}

/* bind/ops.c: the rows of ops.def as Lua functions, methods and operators.  Every op is one C
 * function; its upvalue says which row. */
#include "bind/bind.h"

#include <math.h>
#include <string.h>

/* ---- calling */

/* Where the result is an input itself (x:contiguous()), returns the caller's object. */
static bool same_object(lua_State *L, ax_tensor **box, const ax_lua_read_result *r)
{
  for (int k = 0; k < r->args.n_in && k < AX_MAX_INPUTS && r->args.in == r->in; k++)
    if (r->in[k] == *box) {
      ax_tensor_release(ax_lua_empty_box(box));
      lua_pushvalue(L, r->at[k]);
      return true;
    }
  return false;
}

int ax_lua_run_push(lua_State *L, ax_op op, const char *shown, const ax_lua_read_result *r)
{
  const int results = ax_signature_of(op)->results;
  ax_tensor **box[AX_MAX_OUT] = { NULL }, *out[AX_MAX_OUT];
  int n = 1;

  for (int k = 0; k < results; k++) box[k] = ax_lua_push_result(L);
  if (ax_run(op, &r->args, out) != AX_OK) return ax_lua_raise(L, shown);
  *box[0] = out[0];
  for (int k = 1; k < AX_MAX_OUT; k++) {
    if (k >= results) ax_tensor_release(out[k]); /* used by the gradient only */
    else if (out[k]) {
      *box[k] = out[k];
      n = k + 1;
    }
  }
  lua_pop(L, results - n); /* max without a dim has no positions */
  if (results == 1 && ax_ops[op].form == AX_FORM_COMPOSITE) same_object(L, box[0], r);
  return n;
}

/* Calls the function of forms.lua: (whether in place, all parameters). */
static int call_form(lua_State *L, ax_op op, bool inplace, const ax_lua_read_result *r)
{
  const ax_signature *sig = ax_signature_of(op);
  const int base = lua_gettop(L);

  luaL_checkstack(L, sig->n + 4, ax_ops[op].name);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_require);
  lua_pushliteral(L, "accelerate.tensor.forms");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, ax_ops[op].name);
  lua_pushboolean(L, inplace);
  ax_lua_push_arguments(L, sig, r);
  lua_call(L, sig->n + 1, LUA_MULTRET);
  return lua_gettop(L) - base - 1;
}

/* Rows that tensor.linalg, tensor.fft and cdist are made of: _linalg_solve is core._linalg.solve,
 * and linalg.solve in messages. */
static const char *const part_of[] = { "linalg", "fft", "distance" };

static int part_call(lua_State *L)
{
  const ax_op op = (ax_op)lua_tointeger(L, lua_upvalueindex(1));
  const char *shown = lua_tostring(L, lua_upvalueindex(2));
  ax_lua_read_result r;

  ax_lua_enter(L);
  ax_lua_read_args(L, op, shown, &r);
  return ax_lua_run_push(L, op, shown, &r);
}

int ax_lua_op_call(lua_State *L)
{
  const ax_op op = (ax_op)lua_tointeger(L, lua_upvalueindex(1));
  ax_lua_read_result r;

  ax_lua_enter(L);
  ax_lua_read_args(L, op, ax_ops[op].name, &r);
  if (__builtin_expect(r.formed, 0)) return call_form(L, op, false, &r);
  return ax_lua_run_push(L, op, ax_ops[op].name, &r);
}

/* x:add_(y): the first tensor is an argument and the place of the result. */
int ax_lua_op_inplace(lua_State *L)
{
  const ax_op op = (ax_op)lua_tointeger(L, lua_upvalueindex(1));
  const char *shown = lua_tostring(L, lua_upvalueindex(2));
  ax_lua_read_result r;

  ax_lua_enter(L);
  const ax_tensor *x = ax_lua_check_tensor(L, 1, shown, ax_signature_of(op)->param[0].name);
  const int n = lua_gettop(L);
  ax_lua_read_args(L, op, shown, &r);
  if (__builtin_expect(x->storage->claims != NULL, 0) && ax_lua_note_edit(L, shown, n)) {
    lua_settop(L, 1);
    return 1;
  }
  if (__builtin_expect(r.formed, 0)) return call_form(L, op, true, &r);
  if (ax_run_inplace(op, &r.args, r.in[0]) != AX_OK) return ax_lua_raise(L, shown);
  lua_pushvalue(L, r.at[0]);
  return 1;
}

/* a + b and the other operators, without the generality of ax_lua_op_call: the shortest path from
 * Lua to a kernel. */
static int operator_call(lua_State *L)
{
  const ax_op op = (ax_op)lua_tointeger(L, lua_upvalueindex(1));
  ax_tensor *in[2] = { NULL, NULL }, *out[AX_MAX_OUT], **box;
  ax_args a = { .n_in = (int)lua_tointeger(L, lua_upvalueindex(2)), .in = in };

  ax_lua_enter(L);
  for (int k = 0; k < a.n_in; k++) {
    if (lua_type(L, k + 1) == LUA_TNUMBER) {
      const double v = lua_tonumber(L, k + 1);
      a.scalars |= 1u << k;
      a.num[k] = v;
      if (v == floor(v) && fabs(v) < 9.2e18) a.integral |= 1u << k;
    } else if (!(in[k] = ax_lua_opt_tensor(L, k + 1, ax_ops[op].name)))
      return ax_lua_arg_error(L, ax_ops[op].name, k + 1, k ? "b" : "a", "a tensor or a number", k + 1);
  }
  box = ax_lua_push_result(L);
  if (__builtin_expect(ax_run(op, &a, out) != AX_OK, 0)) return ax_lua_raise(L, ax_ops[op].name);
  *box = out[0];
  return 1;
}

/* ---- operators that tensors do not have: the message says what to write */

static int no_operator(lua_State *L)
{
  return ax_lua_error(L, lua_tostring(L, lua_upvalueindex(1)), "%s", lua_tostring(L, lua_upvalueindex(2)));
}

static const struct {
  const char *event, *shown, *advice;
} refused[] = {
  { "__lt", "< or >",
    "Lua's operators do not compare tensors: x:item() is the number of a tensor of one element, and x:lt(y), "
    "x:gt(y) compare the elements" },
  { "__le", "<= or >=",
    "Lua's operators do not compare tensors: x:item() is the number of a tensor of one element, and x:le(y), "
    "x:ge(y) compare the elements" },
  { "__concat", "..",
    "a tensor cannot be joined to text: tostring(x) is its text, and x:item() "
    "is the number of a tensor of one element" },
};

/* ---- copy_, fill_, zero_ */

static int copy_into(lua_State *L, const char *fn, bool number_wanted)
{
  static const char *const value_name[] = { "value" }, *const copy_names[] = { "src", "non_blocking" };
  ax_tensor *dst, *in[1];
  ax_args a = { .n_in = 1, .in = in };

  ax_lua_enter(L);
  dst = ax_lua_check_tensor(L, 1, fn, "x");
  ax_lua_place_named(L, fn, 2, number_wanted ? value_name : copy_names, number_wanted ? 1 : 2);
  ax_lua_at_most(L, fn, number_wanted ? 2 : 3);
  if (!lua_isnoneornil(L, 3)) ax_lua_check_boolean(L, 3, fn, "non_blocking"); /* copies are in order */
  in[0] = ax_lua_opt_tensor(L, 2, fn);
  if (number_wanted && in[0] && in[0]->numel != 1)
    return ax_lua_arg_error(L, fn, 2, "value", "a number, a boolean or a tensor of one element", 2);
  if (!in[0]) {
    const int type = lua_type(L, 2);
    if (type != LUA_TNUMBER && type != LUA_TBOOLEAN)
      return ax_lua_arg_error(L, fn, 2, number_wanted ? "value" : "source",
                              number_wanted ? "a number or a boolean" : "a tensor or a number", 2);
    a.scalars = 1;
    a.num[0] = type == LUA_TBOOLEAN ? lua_toboolean(L, 2) : lua_tonumber(L, 2);
    if (type == LUA_TBOOLEAN) a.booleans = a.integral = 1;
    else if (a.num[0] == floor(a.num[0]) && fabs(a.num[0]) < 9.2e18) a.integral = 1;
    if (!ax_number_fits((ax_dtype)dst->dtype, a.num[0]))
      return ax_lua_error(L, fn, "%.14g does not fit a tensor of %s", a.num[0],
                          ax_dtype_name((ax_dtype)dst->dtype));
  }
  if (__builtin_expect(dst->storage->claims == NULL, 1) || !ax_lua_note_edit(L, fn, 2))
    if (ax_run_inplace(AX_OP_COPY, &a, dst) != AX_OK) return ax_lua_raise(L, fn);
  lua_settop(L, 1);
  return 1;
}

static int copy_(lua_State *L) { return copy_into(L, "copy_", false); }
static int fill_(lua_State *L) { return copy_into(L, "fill_", true); }

static int zero_(lua_State *L)
{
  ax_lua_at_most(L, "zero_", 1);
  lua_settop(L, 1);
  lua_pushnumber(L, 0);
  return copy_into(L, "zero_", true);
}

/* ---- the table of ops */

static const char *const form_names[] = {
  "pointwise", "reduce", "kernel", "view", "cpu", "host", "composite"
};
static const char *const cast_names[] = { "keep", "lower", "float", "float", "widest" };

static void set_string(lua_State *L, const char *key, const char *value)
{
  lua_pushstring(L, value);
  lua_setfield(L, -2, key);
}

static void set_boolean(lua_State *L, const char *key, bool value)
{
  lua_pushboolean(L, value);
  lua_setfield(L, -2, key);
}

/* Without the attributes that callers do not give, those between `|` and the results, and without
 * the mark of those that choose a form. */
static void set_signature(lua_State *L, const char *text)
{
  const char *form = strstr(text, " + ");
  if (form) {
    lua_pushlstring(L, text, (size_t)(form - text));
    lua_pushstring(L, form + 2);
    lua_concat(L, 2);
    text = lua_tostring(L, -1);
  } else lua_pushstring(L, text);
  const char *bar = strstr(text, " | "), *results = strstr(text, " -> ");
  lua_pushlstring(L, text, bar ? (size_t)(bar - text) : strlen(text));
  if (bar && results) {
    lua_pushstring(L, results);
    lua_concat(L, 2);
  }
  lua_setfield(L, -3, "signature");
  lua_pop(L, 1);
}

/* core.ops() -> one table for each row, in the order of ops.def; `hidden` rows have no Lua
 * function. */
static int ops(lua_State *L)
{
  ax_lua_enter(L);
  lua_createtable(L, AX_OP_COUNT, 0);
  for (int op = 0; op < AX_OP_COUNT; op++) {
    const ax_op_row *row = &ax_ops[op];
    lua_createtable(L, 0, 8);
    set_string(L, "name", row->name);
    set_signature(L, row->signature);
    set_string(L, "summary", row->summary);
    set_string(L, "form", form_names[row->form]);
    set_string(L, "autocast", cast_names[row->autocast]);
    set_boolean(L, "differentiable", row->differentiable);
    set_boolean(L, "inplace", row->inplace);
    set_boolean(L, "hidden", row->name[0] == '_');
    lua_rawseti(L, -2, op + 1);
  }
  return 1;
}

/* core._row(name) -> the function of a row, also of a hidden one. */
static int row_function(lua_State *L)
{
  const char *name = luaL_checkstring(L, 1);
  for (int op = 0; op < AX_OP_COUNT; op++)
    if (strcmp(ax_ops[op].name, name) == 0) {
      lua_pushinteger(L, op);
      ax_lua_push_name(L, name);
      lua_pushcclosure(L, ax_lua_op_call, 3);
      return 1;
    }
  return luaL_error(L, "there is no row %s", name);
}

static const struct {
  const char *event;
  ax_op op;
} operators[] = {
  { "__add", AX_OP_ADD },       { "__sub", AX_OP_SUB }, { "__mul", AX_OP_MUL }, { "__div", AX_OP_DIV },
  { "__mod", AX_OP_REMAINDER }, { "__pow", AX_OP_POW }, { "__unm", AX_OP_NEG },
};

static void add_parts(lua_State *L, const char *of)
{
  const char *prefix = lua_pushfstring(L, "_%s_", of);
  const size_t n = strlen(prefix);
  lua_newtable(L);
  for (int op = 0; op < AX_OP_COUNT; op++) {
    if (strncmp(ax_ops[op].name, prefix, n) != 0) continue;
    lua_pushinteger(L, op);
    ax_lua_push_name(L, lua_pushfstring(L, "%s.%s", of, ax_ops[op].name + n));
    lua_remove(L, -3);
    lua_pushcclosure(L, part_call, 3);
    lua_setfield(L, -2, ax_ops[op].name + n);
  }
  lua_pushfstring(L, "_%s", of);
  lua_insert(L, -2);
  lua_rawset(L, -4);
  lua_pop(L, 1); /* the prefix */
}

void ax_lua_open_ops(lua_State *L)
{
  static const luaL_Reg functions[] = { { "ops", ops }, { "_row", row_function }, { NULL, NULL } };
  static const luaL_Reg methods[] = {
    { "copy_", copy_ }, { "fill_", fill_ }, { "zero_", zero_ }, { NULL, NULL }
  };

  ax_signature_of(AX_OP_ADD); /* parses all signatures */
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_methods);
  for (int op = 0; op < AX_OP_COUNT; op++) {
    const ax_op_row *row = &ax_ops[op];
    if (row->name[0] == '_') continue;
    lua_pushinteger(L, op);
    ax_lua_push_name(L, row->name);
    lua_pushcclosure(L, ax_lua_function_of((ax_op)op, false), 3);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, row->name); /* the method */
    lua_setfield(L, -3, row->name); /* the function */
    if (!row->inplace) continue;
    lua_pushfstring(L, "%s_", row->name);
    lua_pushinteger(L, op);
    ax_lua_push_name(L, lua_tostring(L, -2));
    lua_pushcclosure(L, ax_lua_function_of((ax_op)op, true), 3);
    lua_rawset(L, -3);
  }
  lua_pop(L, 1);
  for (size_t i = 0; i < sizeof part_of / sizeof *part_of; i++) add_parts(L, part_of[i]);
  ax_lua_add_functions(L, functions);
  ax_lua_add_methods(L, methods);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_tensor_mt);
  for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
    lua_pushinteger(L, operators[i].op);
    lua_pushinteger(L, ax_signature_of(operators[i].op)->n_row);
    lua_pushcclosure(L, operator_call, 2);
    lua_setfield(L, -2, operators[i].event);
  }
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    lua_pushstring(L, refused[i].shown);
    lua_pushstring(L, refused[i].advice);
    lua_pushcclosure(L, no_operator, 2);
    lua_setfield(L, -2, refused[i].event);
  }
  lua_pop(L, 1);
}

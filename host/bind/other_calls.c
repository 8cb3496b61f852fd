/* bind/other_calls.c: PyTorch's second signatures of one op. */
#include "bind/bind.h"

#include <math.h>
#include <string.h>

/* The call as the row's signature says. */
static int as_row(lua_State *L, bool inplace) { return (inplace ? ax_lua_op_inplace : ax_lua_op_call)(L); }

/* ---- clamp; with tensors as limits it is another row */

/* Finds the limits' places on the stack, 0 for none: positions 2 and 3, or min and max of a table
 * of options, which are pushed.  Returns whether one of them is a tensor, or NaN: an attribute
 * that is NaN says that it was not given. */
static bool tensor_limits(lua_State *L, int at[2])
{
  const int last = lua_gettop(L);
  for (int k = 0; k < 2; k++) {
    at[k] = 2 + k <= last && !lua_isnil(L, 2 + k) ? 2 + k : 0;
    if (!ax_lua_is_options(L, last, false) || last < 2) continue;
    if (at[k] == last) at[k] = 0;
    lua_getfield(L, last, k ? "max" : "min");
    if (!lua_isnil(L, -1)) at[k] = lua_gettop(L);
  }
  for (int k = 0; k < 2; k++)
    if (at[k] &&
        (ax_lua_to_box(L, at[k]) || (lua_type(L, at[k]) == LUA_TNUMBER && isnan(lua_tonumber(L, at[k])))))
      return true;
  return false;
}

/* Returns a limit as a tensor: a number becomes a tensor of x's type. */
static ax_tensor *check_limit(lua_State *L, int idx, const char *shown, const char *name, const ax_tensor *x)
{
  ax_tensor *t = ax_lua_opt_tensor(L, idx, shown), **box;
  const double v = t ? 0 : ax_lua_check_number(L, idx, shown, name);
  if (t) return t;
  if (isnan(v) && !ax_is_float((ax_dtype)x->dtype))
    ax_lua_error(L, shown, "%s: NaN does not fit a tensor of %s", name, ax_dtype_name((ax_dtype)x->dtype));
  if (!ax_lua_number_fits((ax_dtype)x->dtype, v))
    ax_lua_error(L, shown, "%s: %.14g does not fit a tensor of %s", name, v,
                 ax_dtype_name((ax_dtype)x->dtype));
  box = ax_lua_push_box(L);
  if (ax_tensor_new_on(x->device, (ax_dtype)x->dtype, 0, NULL, box) != AX_OK || ax_fill(*box, v) != AX_OK)
    ax_lua_raise(L, shown);
  return *box;
}

static int call_clamp(lua_State *L, bool inplace)
{
  static const char *const names[] = { "min", "max" };
  const char *shown = inplace ? "clamp_" : "clamp";
  const int last = lua_gettop(L);
  ax_tensor *in[3] = { NULL, NULL, NULL }, *dst, **box;
  ax_lua_read_result r = { .args = { .n_in = 3, .in = in, .a = { .n_list = -1 } } };
  int at[2];

  ax_lua_enter(L);
  if (last < 2 || !tensor_limits(L, at)) {
    lua_settop(L, last);
    return as_row(L, inplace);
  }
  if (last > 3) return ax_lua_error(L, shown, "%d arguments given, at most 3 expected", last);
  if (ax_lua_is_options(L, last, false)) ax_lua_check_options(L, last, shown, names, 2);
  in[0] = ax_lua_check_tensor(L, 1, shown, "x");
  for (int k = 0; k < 2; k++)
    if (at[k]) in[1 + k] = check_limit(L, at[k], shown, names[k], in[0]);
  dst = in[0];
  if (inplace && ax_would_record(3, in)) { /* the gradient needs x as it was */
    box = ax_lua_push_box(L);
    if (ax_run1(AX_OP_CLONE, dst, box) != AX_OK) return ax_lua_raise(L, shown);
    in[0] = *box;
  }
  ax_lua_run_push(L, AX_OP_CLAMP_TENSOR, shown, &r);
  if (!inplace) return 1;
  box = ax_lua_to_box(L, -1);
  if (ax_run_inplace(AX_OP_COPY, &(ax_args){ .n_in = 1, .in = box, .a = { .n_list = -1 } }, dst) != AX_OK)
    return ax_lua_raise(L, shown);
  lua_settop(L, 1);
  return 1;
}

/* ---- where, scatter, var and std */

/* The last argument where it is a table of options with the field, else 0. */
static int options_with(lua_State *L, const char *field)
{
  const int last = lua_gettop(L);
  bool there;

  if (last < 2 || !ax_lua_is_options(L, last, false)) return 0;
  lua_getfield(L, last, field);
  there = !lua_isnil(L, -1);
  lua_pop(L, 1);
  return there ? last : 0;
}

/* x:where(condition, b) of a tensor that is no condition: PyTorch's method. */
static void turn_where(lua_State *L)
{
  const ax_tensor *x = ax_lua_opt_tensor(L, 1, "where"), *condition = ax_lua_opt_tensor(L, 2, "where");
  if (!x || !condition || x->dtype == AX_BOOL || condition->dtype != AX_BOOL) return;
  lua_pushvalue(L, 1);
  lua_remove(L, 1);
  lua_insert(L, 2);
}

static int call_where(lua_State *L, bool inplace)
{
  ax_lua_enter(L);
  if (!inplace && lua_gettop(L) == 1 && ax_lua_opt_tensor(L, 1, "where")) { /* where(condition) */
    lua_getfield(L, 1, "nonzero");
    lua_insert(L, 1);
    lua_pushboolean(L, true); /* as_tuple */
    lua_call(L, 2, LUA_MULTRET);
    return lua_gettop(L);
  }
  turn_where(L);
  return as_row(L, inplace);
}

/* scatter(.., { value = 1 }) for { src = 1 }. */
static int call_scatter(lua_State *L, bool inplace)
{
  ax_lua_enter(L);
  const int last = options_with(L, "value");
  if (!last || options_with(L, "src")) return as_row(L, inplace);
  lua_newtable(L);
  lua_pushnil(L);
  while (lua_next(L, last)) {
    const bool value = lua_type(L, -2) == LUA_TSTRING && strcmp(lua_tostring(L, -2), "value") == 0;
    if (value) lua_pushliteral(L, "src");
    else lua_pushvalue(L, -2);
    lua_insert(L, -2);
    lua_rawset(L, -4);
  }
  lua_replace(L, last);
  return as_row(L, inplace);
}

/* x:std(1, false): PyTorch's second flag is `unbiased`, the row's is `keepdim`. */
static int call_spread(lua_State *L, bool inplace)
{
  ax_lua_enter(L);
  if (!lua_isboolean(L, 3) || options_with(L, "unbiased")) return as_row(L, inplace);
  const char *flag = lua_toboolean(L, 3) ? "true" : "false";
  return ax_lua_error(
      L, ax_ops[lua_tointeger(L, lua_upvalueindex(1))].name,
      "argument 3: %s by position may mean keepdim or unbiased; write { keepdim = %s } or { unbiased = %s }",
      flag, flag, flag);
}

/* ---- linear(x, weight) with a weight of one dim: the products of rows with it */

static int call_linear(lua_State *L, bool inplace)
{
  ax_tensor *in[2] = { NULL, NULL };
  ax_lua_read_result r = { .args = { .n_in = 2, .in = in, .a = { .n_list = -1 } } };

  ax_lua_enter(L);
  if (lua_gettop(L) == 2) {
    in[0] = ax_lua_opt_tensor(L, 1, "linear");
    in[1] = ax_lua_opt_tensor(L, 2, "linear");
  }
  if (!in[0] || !in[1] || in[1]->ndim != 1) return as_row(L, inplace);
  ax_lua_run_push(L, AX_OP_MATMUL, "linear", &r);
  return 1;
}

/* ---- view in another type */

/* Whether the arguments are a tensor and a type, by position or as { dtype = }: then the type. */
static bool asks_type(lua_State *L, ax_dtype *dtype)
{
  if (lua_gettop(L) != 2 || !ax_lua_opt_tensor(L, 1, "view")) return false;
  if (lua_type(L, 2) == LUA_TSTRING) return ax_dtype_parse(lua_tostring(L, 2), dtype) == AX_OK;
  if (!options_with(L, "dtype")) return false;
  ax_lua_check_options(L, 2, "view", (const char *const[]){ "dtype" }, 1);
  lua_getfield(L, 2, "dtype");
  *dtype = ax_lua_check_dtype(L, -1, "view", "dtype");
  return true;
}

static int call_view(lua_State *L, bool inplace)
{
  ax_dtype dtype;

  ax_lua_enter(L);
  if (!asks_type(L, &dtype)) return as_row(L, inplace);
  if (ax_tensor_view_as(ax_lua_check_tensor(L, 1, "view", "x"), dtype, ax_lua_push_result(L)) != AX_OK)
    return ax_lua_raise(L, "view");
  return 1;
}

/* ---- repeat_interleave(repeats): each position as often as repeats says */

static int call_repeat_interleave(lua_State *L, bool inplace)
{
  static const char *const names[] = { "output_size" };
  const int last = lua_gettop(L);
  const bool options = last == 2 && ax_lua_is_options(L, 2, true) && !options_with(L, "repeats");
  ax_tensor *repeats, **positions;

  ax_lua_enter(L);
  if ((last != 1 && !options) || ax_lua_is_options(L, 1, false)) return as_row(L, inplace);
  repeats = ax_lua_check_tensor(L, 1, "repeat_interleave", "repeats");
  if (options) ax_lua_check_options(L, 2, "repeat_interleave", names, 1);
  if (repeats->ndim != 1 || (repeats->dtype != AX_I64 && repeats->dtype != AX_I32))
    return ax_lua_error(L, "repeat_interleave",
                        "repeats alone must be a 1-d tensor of int64 or int32, got %s of %s",
                        ax_shape_text(repeats->ndim, repeats->shape, (char[192]){ 0 }, 192),
                        ax_dtype_name((ax_dtype)repeats->dtype));
  positions = ax_lua_push_box(L);
  if (ax_tensor_new_on(repeats->device, (ax_dtype)repeats->dtype, 1, repeats->shape, positions) != AX_OK ||
      (repeats->numel && ax_run_into(AX_OP_ARANGE, &(ax_args){ .a = AX_ATTRS(arange, .start = 0, .step = 1) },
                                     *positions) != AX_OK))
    return ax_lua_raise(L, "repeat_interleave");
  lua_insert(L, 1);
  return as_row(L, inplace);
}

/* ---- which function serves a row */

#define JOIN(fn)
#define COMPOSED(fn)
#define FLOPS(fn)
#define CALL(fn) call_##fn
static const struct {
  int (*run)(lua_State *, bool inplace);
} calls[AX_OP_COUNT] = {
#define OP(ID, name, sig, form, rule, gradient, saves, autocast, traits, summary, ...) \
  [AX_OP_##ID] = { __VA_ARGS__ },
#include "core/ops/ops.def"
#undef OP
};

static int other_call(lua_State *L) { return calls[lua_tointeger(L, lua_upvalueindex(1))].run(L, false); }
static int other_inplace(lua_State *L) { return calls[lua_tointeger(L, lua_upvalueindex(1))].run(L, true); }

lua_CFunction ax_lua_function_of(ax_op op, bool inplace)
{
  if (!calls[op].run) return inplace ? ax_lua_op_inplace : ax_lua_op_call;
  return inplace ? other_inplace : other_call;
}

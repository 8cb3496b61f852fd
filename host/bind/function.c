/* bind/function.c: gradients written in Lua.
 *
 *   local square = tensor.Function{
 *     forward = function(ctx, x) ctx:save_for_backward(x) return x * x end,
 *     backward = function(ctx, g) local x = ctx:saved_tensors() return 2 * x * g end,
 *   }
 *   square(x):sum():backward()
 *
 * forward runs with nothing recorded.  Its tensors come out as fresh aliases that get a node in the
 * graph; other results are returned unchanged.  backward receives a gradient for each result (zeros
 * where none arrived, or nil after ctx:set_materialize_grads(false)) and returns one for each
 * argument of forward, nil for an argument without one.  The node anchors { ctx, backward } in the
 * registry (anchors.c) until the graph is released. */
#include "bind/bind.h"

#include <stdlib.h>

typedef struct place {
  ax_dtype dtype;
  ax_device device;
  int ndim;
  int64_t shape[AX_MAX_DIMS];
  int arg;
  bool wanted; /* requires a gradient */
} place;

typedef struct custom {
  ax_lua_dead_ref anchor; /* { ctx, backward } */
  const char *name;
  int n_in, n_out, n_args;
  ax_node *node;   /* that this belongs to: valid while this is */
  const void *ctx; /* the address of the Lua table */
  place *out;      /* behind `in` */
  place in[];      /* in[k].arg: the argument of forward that input k was */
} custom;

/* The function whose backward is running. */
static _Thread_local const custom *active;

typedef struct backward_call {
  const custom *c;
  ax_tensor *const *grads;
  ax_tensor **result;
} backward_call;

static void fill_place(place *p, const ax_tensor *t, int arg)
{
  *p = (place){
    .dtype = (ax_dtype)t->dtype, .device = t->device, .ndim = t->ndim, .arg = arg, .wanted = t->requires_grad
  };
  memcpy(p->shape, t->shape, sizeof p->shape);
}

/* ---- backward */

static void push_gradient(lua_State *L, const place *p, ax_tensor *g)
{
  ax_tensor **box = ax_lua_push_box(L);
  if (g) *box = ax_tensor_retain(g);
  else if (ax_tensor_new_on(p->device, p->dtype, p->ndim, p->shape, box) != AX_OK ||
           ax_fill(*box, 0) != AX_OK)
    ax_lua_raise(L, "backward");
}

static ax_tensor *checked_gradient(lua_State *L, const custom *c, int k, int idx)
{
  const place *p = &c->in[k];
  char a[192], b[192];
  ax_tensor *g;

  if (lua_isnil(L, idx)) return NULL;
  g = ax_lua_opt_tensor(L, idx, c->name);
  if (!g)
    ax_lua_error(L, c->name, "backward: result %d: expected a tensor or nil, got %s", p->arg,
                 ax_lua_describe(L, idx));
  if (g->ndim != p->ndim || memcmp(g->shape, p->shape, sizeof *p->shape * (size_t)p->ndim) != 0)
    ax_lua_error(L, c->name, "backward: result %d has shape %s, but argument %d of forward had shape %s",
                 p->arg, ax_shape_text(g->ndim, g->shape, a, sizeof a), p->arg,
                 ax_shape_text(p->ndim, p->shape, b, sizeof b));
  return g;
}

static int run_backward(lua_State *L)
{
  backward_call *call = lua_touserdata(L, 1);
  const custom *c = call->c;
  int results, base;
  bool bare;

  luaL_checkstack(L, c->n_out + c->n_args + 8, c->name);
  ax_lua_push_anchor(L, c->anchor.ref);
  base = lua_gettop(L);
  lua_rawgeti(L, base, 2);
  lua_rawgeti(L, base, 1);
  lua_getfield(L, -1, "_bare");
  bare = lua_toboolean(L, -1);
  lua_pop(L, 1);
  for (int k = 0; k < c->n_out; k++) {
    if (bare && !call->grads[k]) lua_pushnil(L);
    else push_gradient(L, &c->out[k], call->grads[k]);
  }
  lua_call(L, c->n_out + 1, LUA_MULTRET);
  results = lua_gettop(L) - base;
  for (int i = c->n_args + 1; i <= results; i++)
    if (!lua_isnil(L, base + i))
      ax_lua_error(L, c->name,
                   "backward: %d results, but forward had %d arguments; return one gradient for each, nil "
                   "for what has none",
                   results, c->n_args);
  for (int k = 0; k < c->n_in; k++)
    if (c->in[k].arg > results && c->in[k].wanted)
      ax_lua_error(L, c->name,
                   "backward: %d result%s, but argument %d of forward requires a gradient; return one for "
                   "each argument, nil for what has none",
                   results, results == 1 ? "" : "s", c->in[k].arg);
  if (results < c->n_args) lua_settop(L, base + c->n_args); /* nil for those left out at the end */
  for (int i = 1, k = 0; i <= c->n_args; i++) {
    if (k < c->n_in && c->in[k].arg == i) checked_gradient(L, c, k++, base + i);
    else if (!lua_isnil(L, base + i))
      ax_lua_error(L, c->name, "backward: result %d must be nil: argument %d of forward was no tensor", i, i);
  }
  for (int k = 0; k < c->n_in; k++) { /* nothing raises from here on */
    ax_tensor **box = ax_lua_to_box(L, base + c->in[k].arg);
    if (box) call->result[k] = ax_tensor_retain(*box);
  }
  return 0;
}

static ax_status custom_backward(void *ud, int n_out, ax_tensor *const *grads, int n_in, ax_tensor **result)
{
  backward_call call = { .c = ud, .grads = grads, .result = result };
  const custom *outer = active;
  active = ud;
  const ax_status st = ax_lua_protect(run_backward, &call);
  active = outer;
  return st;
}

/* ---- ctx */

/* ctx:save_for_backward(...): tensors (or nil) that backward needs; ctx.saved_tensors checks
 * their versions. */
static int save_for_backward(lua_State *L)
{
  const int n = lua_gettop(L) - 1;

  ax_lua_enter(L);
  if (!lua_istable(L, 1))
    return ax_lua_error(L, "save_for_backward", "call it as ctx:save_for_backward(...)");
  luaL_checkstack(L, n + 8, "save_for_backward");
  lua_createtable(L, n, 0);
  lua_createtable(L, n, 0);
  for (int i = 1; i <= n; i++) {
    ax_tensor *t = ax_lua_opt_tensor(L, i + 1, "save_for_backward");
    if (!t && !lua_isnil(L, i + 1))
      return ax_lua_arg_error(L, "save_for_backward", i, NULL,
                              "a tensor or nil; other values go into fields of ctx", i + 1);
    if (t) ax_lua_scope_keep(L, i + 1); /* backward may run after the scope that the tensor was made in */
    lua_pushvalue(L, i + 1);
    lua_rawseti(L, -3, i);
    lua_pushnumber(L, t ? t->version->edits : 0);
    lua_rawseti(L, -2, i);
  }
  lua_pushinteger(L, n);
  lua_setfield(L, 1, "_count");
  lua_setfield(L, 1, "_versions");
  lua_setfield(L, 1, "_saved");
  return 0;
}

/* A result that forward saved comes back with its history when the gradient itself is being
 * recorded. */
static void push_saved(lua_State *L, int tensor)
{
  ax_tensor *t = *ax_lua_to_box(L, tensor), **box;

  lua_pushvalue(L, tensor);
  if (!ax_grad_enabled() || !active || active->ctx != lua_topointer(L, 1)) return;
  lua_getfield(L, 1, "_results"); /* tensor -> its number among the results */
  lua_pushvalue(L, tensor);
  lua_rawget(L, -2);
  if (lua_isnumber(L, -1)) {
    const int number = (int)lua_tointeger(L, -1);
    box = ax_lua_push_box(L);
    if (ax_tensor_alias_shared(t, box) != AX_OK) ax_lua_raise(L, "saved_tensors");
    ax_tensor_join(*box, active->node, number);
    lua_replace(L, -4);
  }
  lua_pop(L, 2);
}

/* Pushes what ctx, at 1, has saved; returns how many that are. */
static int push_all_saved(lua_State *L)
{
  int n;
  lua_settop(L, 1);
  lua_getfield(L, 1, "_count");
  n = (int)lua_tointeger(L, -1);
  if (n == 0) return 0;
  luaL_checkstack(L, n + 16, "saved_tensors");
  lua_getfield(L, 1, "_saved");
  lua_getfield(L, 1, "_versions");
  for (int i = 1; i <= n; i++) {
    lua_rawgeti(L, 3, i);
    if (lua_isnil(L, -1)) continue;
    const ax_tensor *t = ax_lua_check_tensor(L, -1, "saved_tensors", "saved");
    lua_rawgeti(L, 4, i);
    if (lua_tonumber(L, -1) != t->version->edits)
      return ax_lua_error(
          L, "saved_tensors",
          "saved tensor %d was changed in place after save_for_backward (version %u, expected %.0f)", i,
          (unsigned)t->version->edits, lua_tonumber(L, -1));
    lua_pop(L, 1);
    push_saved(L, lua_gettop(L));
    lua_remove(L, -2);
  }
  return n;
}

/* ctx.saved_tensors -> a list, or by ctx:saved_tensors() several values: a list that is called
 * returns its entries.  Other names: the methods of ctx (upvalue 1). */
static int index_ctx(lua_State *L)
{
  int n;

  ax_lua_enter(L);
  if (lua_type(L, 2) != LUA_TSTRING || strcmp(lua_tostring(L, 2), "saved_tensors") != 0) {
    lua_rawget(L, lua_upvalueindex(1));
    return 1;
  }
  n = push_all_saved(L);
  lua_createtable(L, n, 1);
  lua_pushinteger(L, n);
  lua_setfield(L, -2, "n");
  for (int i = n, list = lua_gettop(L); i >= 1; i--) {
    lua_pushvalue(L, list - n - 1 + i);
    lua_rawseti(L, list, i);
  }
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_setmetatable(L, -2);
  return 1;
}

static int list_entries(lua_State *L)
{
  int n;

  lua_getfield(L, 1, "n");
  n = (int)lua_tointeger(L, -1);
  luaL_checkstack(L, n, "saved_tensors");
  for (int i = 1; i <= n; i++) lua_rawgeti(L, 1, i);
  return n;
}

/* ---- calling */

typedef struct call {
  int n_args, n_tensors, n_results, n_out;
  ax_tensor **inputs; /* scratch userdata */
} call;

/* Replaces the tensors among the results (from `first` on) by aliases that the graph can own. */
static ax_tensor **alias_results(lua_State *L, int first, const call *k, const char *name, int *n_out)
{
  const int n = k->n_results;
  ax_tensor **out = lua_newuserdata(L, sizeof *out * (size_t)(n ? n : 1));
  *n_out = 0;
  lua_newtable(L); /* raw result -> number, for saved_tensors */
  for (int i = 0; i < n; i++) {
    ax_tensor *t = ax_lua_opt_tensor(L, first + i, name), **box;
    if (!t || !ax_has_gradient((ax_dtype)t->dtype)) continue; /* positions and the like have no gradient */
    lua_pushvalue(L, first + i);
    lua_pushinteger(L, *n_out);
    lua_rawset(L, -3);
    box = ax_lua_push_result(L);
    if (ax_tensor_alias_shared(t, box) != AX_OK) ax_lua_raise(L, name);
    /* the result shares memory with an argument: an in-place op on it would change the argument
     * without its history */
    for (int at = 0; at < k->n_tensors; at++)
      if (k->inputs[at]->storage == t->storage) (*box)->view = AX_VIEW_CUSTOM;
    out[(*n_out)++] = *box;
    lua_replace(L, first + i);
  }
  return out;
}

static void record(lua_State *L, const char *name, call *k, int ctx, int first)
{
  int n_out, ref;
  ax_tensor **out = alias_results(L, first, k, name, &n_out);
  custom *c;

  lua_setfield(L, ctx, "_results");
  if (n_out == 0) return;
  if (n_out > 255) ax_lua_error(L, name, "%d tensors as results, at most 255 can be recorded", n_out);
  lua_createtable(L, 2, 0);
  lua_pushvalue(L, ctx);
  lua_rawseti(L, -2, 1);
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_rawseti(L, -2, 2);
  ref = ax_lua_anchor(L);
  /* from here to ax_custom_record nothing raises */
  if (!(c = malloc(sizeof *c + sizeof *c->in * (size_t)(k->n_tensors + n_out)))) {
    ax_lua_unanchor(L, ref);
    ax_lua_error(L, name, "out of memory");
    return;
  }
  *c = (custom){ .anchor.ref = ref, .name = name, .n_in = k->n_tensors, .n_out = n_out, .n_args = k->n_args };
  c->out = c->in + k->n_tensors;
  for (int i = 0, t = 0; i < k->n_args; i++)
    if (ax_lua_to_box(L, 2 + i)) fill_place(&c->in[t], k->inputs[t], i + 1), t++;
  for (int i = 0; i < n_out; i++) fill_place(&c->out[i], out[i], 0);
  if (ax_custom_record(name, k->n_tensors, k->inputs, n_out, out, custom_backward, ax_lua_drop_anchor, c) !=
      AX_OK) {
    ax_lua_drop_anchor(c);
    ax_lua_raise(L, name);
  }
  for (int i = 0; i < k->n_results; i++)
    if (ax_lua_to_box(L, first + i)) ax_lua_track(L, first + i);
  c->node = out[0]->grad_fn;
  c->ctx = lua_topointer(L, ctx);
}

/* upvalues: forward, backward, name, metatable of ctx.  Stack: the function object, then the
 * arguments. */
static int function_call(lua_State *L)
{
  const char *name = lua_tostring(L, lua_upvalueindex(3));
  call k = { .n_args = lua_gettop(L) - 1 };
  int ctx, first, status;
  bool former, recorded;

  ax_lua_enter(L);
  if (k.n_args < 0) return ax_lua_error(L, name, "call it as f(...)");
  luaL_checkstack(L, 2 * k.n_args + 24, name);
  k.inputs = lua_newuserdata(L, sizeof *k.inputs * (size_t)(k.n_args + 1));
  for (int i = 0; i < k.n_args; i++) {
    ax_tensor *t = ax_lua_opt_tensor(L, 2 + i, name);
    if (!t) continue;
    if (ax_history(t) != AX_OK) return ax_lua_raise(L, name);
    k.inputs[k.n_tensors++] = t;
  }
  recorded = ax_would_record(k.n_tensors, k.inputs);
  lua_createtable(L, 0, 8);
  ctx = lua_gettop(L);
  lua_pushvalue(L, lua_upvalueindex(4));
  lua_setmetatable(L, ctx);
  lua_createtable(L, k.n_args, 0);
  for (int i = 0; i < k.n_args; i++) {
    ax_tensor **box = ax_lua_to_box(L, 2 + i);
    lua_pushboolean(L, recorded && box && (*box)->requires_grad);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, ctx, "needs_input_grad");

  lua_pushvalue(L, lua_upvalueindex(1));
  lua_pushvalue(L, ctx);
  for (int i = 0; i < k.n_args; i++) lua_pushvalue(L, 2 + i);
  former = ax_grad_set_enabled(false);
  status = lua_pcall(L, k.n_args + 1, LUA_MULTRET, 0);
  ax_grad_set_enabled(former);
  ax_lua.L = L;
  if (status != 0) return lua_error(L);
  first = ctx + 1;
  k.n_results = lua_gettop(L) - ctx;
  luaL_checkstack(L, 16, name);
  if (recorded) record(L, name, &k, ctx, first);
  lua_settop(L, ctx + k.n_results);
  return k.n_results;
}

/* f:apply(...) and f.apply(...) are both in use: a first argument that is the object itself is
 * dropped. */
static int function_apply(lua_State *L)
{
  lua_pushvalue(L, lua_upvalueindex(1));
  if (!lua_rawequal(L, 1, -1) || lua_gettop(L) == 1) lua_insert(L, 1);
  else lua_pop(L, 1);
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  return lua_gettop(L);
}

/* core.Function{ forward = , backward = , name = } -> something to call */
static int function(lua_State *L)
{
  static const char *const names[] = { "forward", "backward", "name" };

  ax_lua_enter(L);
  if (lua_gettop(L) != 1 || !lua_istable(L, 1))
    return ax_lua_arg_error(L, "Function", 1, "definition", "a table { forward = ..., backward = ... }", 1);
  ax_lua_check_options(L, 1, "Function", names, 3);
  lua_newtable(L);          /* 2: the object */
  lua_createtable(L, 0, 2); /* 3: its metatable */
  for (int i = 0; i < 2; i++) {
    lua_getfield(L, 1, names[i]);
    if (!lua_isfunction(L, -1))
      return ax_lua_error(L, "Function", "%s: expected a function, got %s", names[i], ax_lua_describe(L, -1));
  }
  lua_getfield(L, 1, "name");
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    lua_pushliteral(L, "Function");
  } else if (lua_type(L, -1) != LUA_TSTRING)
    return ax_lua_error(L, "Function", "name: expected a string, got %s", ax_lua_describe(L, -1));
  lua_pushvalue(L, -1); /* nodes keep a pointer to the name, so it is never collected */
  lua_pushboolean(L, 1);
  lua_rawset(L, lua_upvalueindex(2));
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_pushcclosure(L, function_call, 4);
  lua_pushvalue(L, -1);
  lua_setfield(L, 3, "__call");
  lua_pushvalue(L, 2);
  lua_insert(L, -2);
  lua_pushcclosure(L, function_apply, 2);
  lua_setfield(L, 2, "apply");
  lua_setmetatable(L, 2);
  return 1;
}

void ax_lua_open_function(lua_State *L)
{
  static const luaL_Reg methods[] = { { "save_for_backward", save_for_backward }, { NULL, NULL } };

  lua_createtable(L, 0, 1); /* the metatable of ctx */
  lua_createtable(L, 0, 1);
  ax_lua_add_functions(L, methods);
  lua_createtable(L, 0, 1); /* and of the lists that it gives */
  lua_pushcfunction(L, list_entries);
  lua_setfield(L, -2, "__call");
  lua_pushcclosure(L, index_ctx, 2);
  lua_setfield(L, -2, "__index");
  lua_newtable(L); /* names */
  lua_pushcclosure(L, function, 2);
  lua_setfield(L, -2, "Function");
}

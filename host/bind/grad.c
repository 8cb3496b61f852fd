/* bind/grad.c: backward, grad, and hooks.
 *
 * Hooks keep their Lua function in one of two places.  A leaf's hooks keep it in the environment
 * table of the leaf's userdata: the collector then sees a closure that captures the tensor, and
 * frees both.  A result's hooks anchor it in the registry until the graph is released.  The
 * registry also holds the object of a leaf with hooks while a graph contains the leaf.  Circles
 * through the registry are broken by anchors.c.
 *
 * When the Lua object of a tensor with hooks is finalised while other C code still holds the
 * tensor, the finaliser puts the object into the table of orphans.  Each collection by memory
 * pressure drops the orphans whose tensor has no other owner. */
#include "bind/bind.h"

#include <stdlib.h>

/* ---- lists of tensors */

/* Pushes an array with the tensors at idx: one, or a list of them.  The tensors are borrowed: the
 * argument holds them. */
static ax_tensor **push_array(lua_State *L, int idx, const char *fn, const char *name, bool holes,
                              int expected, int *n)
{
  ax_tensor **list, *one = ax_lua_opt_tensor(L, idx, fn);
  if (one) {
    list = lua_newuserdata(L, sizeof *list);
    list[0] = one;
    *n = 1;
    return list;
  }
  if (!lua_istable(L, idx))
    ax_lua_arg_error(L, fn, idx < 0 ? 0 : idx, name, "a tensor or a list of tensors", idx);
  *n = expected >= 0 ? expected : (int)lua_objlen(L, idx);
  if (idx < 0) idx += lua_gettop(L) + 1;
  list = lua_newuserdata(L, sizeof *list * (size_t)(*n ? *n : 1));
  for (int k = 0; k < *n; k++) {
    lua_rawgeti(L, idx, k + 1);
    list[k] = ax_lua_opt_tensor(L, -1, fn);
    if (!list[k] && !(holes && lua_isnil(L, -1)))
      ax_lua_error(L, fn, "%s: entry %d: expected a tensor, got %s", name, k + 1, ax_lua_describe(L, -1));
    lua_pop(L, 1);
  }
  return list;
}

static bool option(lua_State *L, int idx, const char *fn, const char *name)
{
  bool v = false;
  if (!idx) return false;
  lua_getfield(L, idx, name);
  if (!lua_isnil(L, -1)) v = ax_lua_check_boolean(L, -1, fn, name);
  lua_pop(L, 1);
  return v;
}

static bool flag_at(lua_State *L, int idx, int last, const char *name, bool named)
{
  if (idx > last || lua_isnil(L, idx)) return named;
  if (named) return ax_lua_error(L, "backward", "%s: given by position and as an option", name) != 0;
  return ax_lua_check_boolean(L, idx, "backward", name);
}

/* The gradients of `inputs` alone: accelerate.autograd has that call. */
static int backward_to(lua_State *L, int seed, bool retain, bool create)
{
  const int inputs = lua_gettop(L);

  lua_getglobal(L, "require");
  lua_pushliteral(L, "accelerate.autograd");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "backward");
  lua_pushvalue(L, 1);
  if (seed) lua_pushvalue(L, seed);
  else lua_pushnil(L);
  lua_createtable(L, 0, 3);
  lua_pushboolean(L, retain);
  lua_setfield(L, -2, "retain_graph");
  lua_pushboolean(L, create);
  lua_setfield(L, -2, "create_graph");
  lua_pushvalue(L, inputs);
  lua_setfield(L, -2, "inputs");
  lua_call(L, 3, 0);
  return 0;
}

/* t:backward(gradient, retain_graph, create_graph, { inputs }); each may be an option */
static int backward(lua_State *L)
{
  static const char *const names[] = { "gradient", "retain_graph", "create_graph", "inputs" };
  int options = 0, last = lua_gettop(L), seed_at = 0;
  ax_tensor *t, *seed = NULL;

  ax_lua_enter(L);
  t = ax_lua_check_tensor(L, 1, "backward", "self");
  if (last > 1 && ax_lua_is_options(L, last, true)) options = last--;
  if (last > 4)
    return ax_lua_error(L, "backward", "expected gradient, retain_graph and create_graph, got %d arguments",
                        last - 1);
  if (last > 1 && !lua_isnil(L, 2)) {
    if (!(seed = ax_lua_opt_tensor(L, 2, "backward")))
      return ax_lua_arg_error(L, "backward", 2, "gradient", "a tensor", 2);
    seed_at = 2;
  }
  if (options) {
    ax_lua_check_options(L, options, "backward", names, 4);
    lua_getfield(L, options, "gradient");
    if (!lua_isnil(L, -1)) {
      if (seed) return ax_lua_error(L, "backward", "gradient: given by position and as an option");
      seed = ax_lua_check_tensor(L, seed_at = lua_gettop(L), "backward", "gradient");
    }
  }
  const bool retain = flag_at(L, 3, last, "retain_graph", option(L, options, "backward", "retain_graph"));
  const bool create = flag_at(L, 4, last, "create_graph", option(L, options, "backward", "create_graph"));
  if (options) {
    lua_getfield(L, options, "inputs");
    if (!lua_isnil(L, -1)) return backward_to(L, seed_at, retain, create);
  }
  ax_lua_backward_begins(L);
  if (ax_backward(1, &t, &seed, retain, create) != AX_OK) return ax_lua_raise(L, "backward");
  ax_lua_backward_ends(L);
  return 0;
}

/* core.grad(outputs, inputs, { grad_outputs, retain_graph, create_graph, allow_unused }) -> one
 * value for each input */
static int grad(lua_State *L)
{
  static const char *const names[] = { "grad_outputs", "retain_graph", "create_graph", "allow_unused" };
  ax_tensor **roots, **inputs, **seeds = NULL, **out, ***boxes;
  int n, n_in, options = 0, n_seeds, base;
  bool retain, create, unused;

  ax_lua_enter(L);
  if (lua_gettop(L) > 3)
    return ax_lua_error(L, "grad", "%d arguments given, at most 3 expected", lua_gettop(L));
  lua_settop(L, 3);
  if (!lua_isnil(L, 3)) {
    if (!ax_lua_is_options(L, 3, true))
      return ax_lua_arg_error(L, "grad", 3, "options", "a table of options", 3);
    ax_lua_check_options(L, options = 3, "grad", names, 4);
  }
  roots = push_array(L, 1, "grad", "outputs", false, -1, &n);
  inputs = push_array(L, 2, "grad", "inputs", false, -1, &n_in);
  if (n == 0 || n_in == 0) return ax_lua_error(L, "grad", "expected at least one output and one input");
  if (options) {
    lua_getfield(L, options, "grad_outputs");
    if (!lua_isnil(L, -1))
      seeds = push_array(L, -1, "grad", "grad_outputs", true, lua_istable(L, -1) ? n : -1, &n_seeds);
    if (seeds && n_seeds != n)
      return ax_lua_error(L, "grad", "grad_outputs: %d given for %d outputs", n_seeds, n);
  }
  retain = option(L, options, "grad", "retain_graph");
  create = option(L, options, "grad", "create_graph");
  unused = option(L, options, "grad", "allow_unused");
  out = lua_newuserdata(L, (sizeof *out + sizeof *boxes) * (size_t)n_in);
  boxes = (ax_tensor ***)(out + n_in);
  if (!lua_checkstack(L, n_in + 4))
    return ax_lua_error(L, "grad", "%d inputs are too many for Lua's stack", n_in);
  base = lua_gettop(L);
  for (int k = 0; k < n_in; k++) boxes[k] = ax_lua_push_result(L);
  if (ax_grad_of(n, roots, seeds, n_in, inputs, retain, create, unused, out) != AX_OK)
    return ax_lua_raise(L, "grad");
  for (int k = 0; k < n_in; k++) *boxes[k] = out[k];
  for (int k = 0; k < n_in; k++)
    if (!*boxes[k]) {
      lua_pushnil(L);
      lua_replace(L, base + 1 + k);
    }
  return n_in;
}

/* ---- hooks */

typedef struct hook {
  ax_lua_dead_ref anchor; /* ref: of the function; LUA_NOREF for a leaf */
  ax_tensor *leaf;        /* borrowed: the hook dies with it */
  int key;                /* of the function in the leaf's environment */
  bool post;
} hook;

typedef struct hook_call {
  const hook *h;
  ax_tensor *grad, *replacement;
} hook_call;

/* Pushes the environment table of the userdata at idx; makes one when the userdata still has the
 * default. */
static void push_environment(lua_State *L, int idx)
{
  lua_getfenv(L, idx);
  lua_pushliteral(L, "accelerate.hooks");
  lua_rawget(L, -2); /* raw: the default is the table of globals, and scripts put strict metatables on that */
  if (lua_toboolean(L, -1)) {
    lua_pop(L, 1);
    return;
  }
  lua_pop(L, 2);
  lua_newtable(L);
  lua_pushboolean(L, 1);
  lua_setfield(L, -2, "accelerate.hooks");
  lua_pushvalue(L, -1);
  lua_setfenv(L, idx);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_environments); /* see ax_lua_push_handle */
  lua_pushlightuserdata(L, ax_lua_to_box(L, idx));
  lua_pushvalue(L, -3);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

static int run_hook(lua_State *L)
{
  hook_call *c = lua_touserdata(L, 1);
  const hook *h = c->h;
  const bool post = h->post;
  ax_tensor **box, *given;

  if (h->leaf) {
    ax_lua_push_handle(L, h->leaf);
    push_environment(L, lua_gettop(L));
    lua_rawgeti(L, -1, h->key);
    if (lua_isnil(L, -1)) return 0;
  } else {
    ax_lua_push_anchor(L, h->anchor.ref);
  }
  if (post) lua_pushvalue(L, 2);
  else {
    box = ax_lua_push_box(L);
    *box = ax_tensor_retain(c->grad);
  }
  lua_call(L, 1, 1); /* the hook may remove itself: h may be gone after this */
  if (lua_isnil(L, -1) || post) return 0;
  if (!(given = ax_lua_opt_tensor(L, -1, "hook")))
    return ax_lua_error(L, "hook", "expected a tensor or nil as result, got %s", ax_lua_describe(L, -1));
  if (given != c->grad) c->replacement = ax_tensor_retain(given);
  return 0;
}

static ax_status call_hook(void *ud, ax_tensor *grad, ax_tensor **replacement)
{
  hook_call c = { .h = ud, .grad = grad };
  const ax_status st = ax_lua_protect(run_hook, &c);
  *replacement = c.replacement;
  return st;
}

/* The handle that register_hook returns: a table { tensor, id, key } with a method. */
static int hook_remove(lua_State *L)
{
  ax_tensor **box;
  int64_t id;
  ax_lua_enter(L);
  if (!lua_istable(L, 1))
    return ax_lua_error(L, "remove",
                        "expected the handle that register_hook returned; call it as handle:remove()");
  lua_rawgeti(L, 1, 1);
  lua_rawgeti(L, 1, 2);
  lua_rawgeti(L, 1, 3);
  box = ax_lua_to_box(L, -3);
  /* removed before, or the tensor was released */
  if (!box || !*box || !ax_lua_to_integer(L, -2, &id)) return 0;
  if (!lua_isnil(L, -1)) { /* the function of a leaf's hook is in the environment of the leaf */
    lua_getfenv(L, -3);
    lua_pushnil(L);
    lua_rawseti(L, -2, (int)lua_tointeger(L, -3));
    lua_pop(L, 1);
  }
  ax_hook_remove(*box, (uint64_t)id);
  lua_pushnil(L);
  lua_rawseti(L, 1, 1);
  return 0;
}

static int add_hook(lua_State *L, const char *fn, ax_hook_kind kind)
{
  ax_tensor *t;
  hook *h;
  int key = 0, ref = LUA_NOREF;
  uint64_t id;

  ax_lua_enter(L);
  t = ax_lua_check_tensor(L, 1, fn, "self");
  if (!lua_isfunction(L, 2)) return ax_lua_arg_error(L, fn, 2, "hook", "a function", 2);
  lua_settop(L, 2);
  lua_createtable(L, 3, 0); /* the handle */
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_setmetatable(L, -2);
  lua_pushvalue(L, 1);
  lua_rawseti(L, 3, 1);
  if (!t->grad_fn) {
    ax_lua_remember_handle(L, 1);
    push_environment(L, 1);
    lua_getfield(L, -1, "last");
    key = (int)lua_tointeger(L, -1) + 1;
    lua_pop(L, 1);
    lua_pushinteger(L, key);
    lua_setfield(L, -2, "last");
    lua_pushvalue(L, 2);
    lua_rawseti(L, -2, key);
    lua_pushinteger(L, key);
    lua_rawseti(L, 3, 3);
  } else {
    lua_pushvalue(L, 2);
    ref = ax_lua_anchor(L);
  }
  ax_lua_track(L, 1);
  h = malloc(sizeof *h);
  if (h) {
    *h = (hook){ .anchor.ref = ref, .leaf = t->grad_fn ? NULL : t, .key = key, .post = kind == AX_HOOK_POST };
    ax_lua.n_anchors += h->leaf != NULL;
  } else if (t->grad_fn) ax_lua_unanchor(L, ref);
  if (!h || ax_hook_add(t, kind, call_hook, ax_lua_drop_anchor, h, &id) != AX_OK) {
    if (!t->grad_fn) {
      lua_pushnil(L);
      lua_rawseti(L, -2, key);
    }
    if (!h) return ax_lua_error(L, fn, "out of memory");
    ax_lua_drop_anchor(h);
    return ax_lua_raise(L, fn);
  }
  lua_pushnumber(L, (double)id);
  lua_rawseti(L, 3, 2);
  lua_settop(L, 3);
  return 1;
}

/* core._detect_anomaly(on) -> the former setting */
static int detect_anomaly(lua_State *L)
{
  lua_pushboolean(L, ax_detect_anomaly(lua_toboolean(L, 1)));
  return 1;
}

/* core._keep_grad(x, g): the gradient of a result, for retain_grad */
static int keep_grad(lua_State *L)
{
  ax_tensor *x = ax_lua_check_tensor(L, 1, "retain_grad", "self");
  ax_tensor *g = ax_lua_check_tensor(L, 2, "retain_grad", "gradient");
  if (!x->grad_fn || g == x) return 0;
  ax_tensor_retain(g);
  ax_tensor_release(x->grad);
  x->grad = g;
  return 0;
}

static int register_hook(lua_State *L) { return add_hook(L, "register_hook", AX_HOOK_GRADIENT); }
static int register_post_accumulate_grad_hook(lua_State *L)
{
  return add_hook(L, "register_post_accumulate_grad_hook", AX_HOOK_POST);
}

/* core._keep_hook(x, fn): a hook for retain_grad: behind all others, it follows x through in-place
 * ops */
static int keep_hook(lua_State *L) { return add_hook(L, "retain_grad", AX_HOOK_KEEP); }

/* While a graph contains a leaf with hooks, this keeps the leaf's object alive, and with it what
 * the hooks capture. */
typedef struct held_leaf {
  ax_lua_dead_ref anchor;
  ax_tensor *leaf;
} held_leaf;

static int anchor_leaf(lua_State *L)
{
  held_leaf *held = lua_touserdata(L, 1);
  ax_lua_push_handle(L, held->leaf);
  held->anchor.ref = ax_lua_anchor(L);
  return 0;
}

static ax_status hold_leaf(ax_tensor *leaf, void (**drop)(void *), void **ud)
{
  held_leaf *held;
  ax_status st;

  if (!ax_lua.open || !leaf->handle) return AX_OK;
  if (!(held = malloc(sizeof *held))) return ax_fail(AX_ENOMEM, "no memory for the hooks of a leaf");
  held->leaf = leaf;
  if ((st = ax_lua_protect(anchor_leaf, held)) != AX_OK) {
    free(held);
    return st;
  }
  *drop = ax_lua_drop_anchor;
  *ud = held;
  return AX_OK;
}

/* ---- orphans */

void ax_lua_tensor_finalise(lua_State *L, int idx, ax_tensor **box)
{
  ax_tensor *t = *box;
  if (t->refs == 1 || t->handle != box) {
    ax_tensor_release(ax_lua_empty_box(box));
    return;
  }
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_orphans);
  lua_pushlightuserdata(L, box);
  lua_pushvalue(L, idx);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

void ax_lua_sweep_orphans(lua_State *L)
{
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_orphans);
  lua_pushnil(L);
  while (lua_next(L, -2)) {
    ax_tensor **box = ax_lua_to_box(L, -1);
    lua_pop(L, 1);
    if (*box && (*box)->refs > 1) continue;
    ax_tensor_release(ax_lua_empty_box(box));
    lua_pushvalue(L, -1);
    lua_pushnil(L);
    lua_rawset(L, -4); /* clearing a field while walking is allowed */
  }
  lua_pop(L, 1);
}

/* ---- switching recording on and off */

static int is_grad_enabled(lua_State *L)
{
  ax_lua_enter(L);
  lua_pushboolean(L, ax_grad_enabled());
  return 1;
}

static int set_grad_enabled(lua_State *L)
{
  ax_lua_enter(L);
  lua_pushboolean(L, ax_grad_set_enabled(ax_lua_check_boolean(L, 1, "set_grad_enabled", "on")));
  return 1;
}

/* core._backward(roots, gradients, retain_graph): one backward pass from several roots */
static int backward_from(lua_State *L)
{
  ax_tensor **roots, **seeds;
  int n, n_seeds;
  ax_lua_enter(L);
  const bool retain = lua_toboolean(L, 3);
  roots = push_array(L, 1, "backward", "roots", false, -1, &n);
  seeds = push_array(L, 2, "backward", "gradients", true, n, &n_seeds);
  if (ax_backward(n, roots, seeds, retain, false) != AX_OK) return ax_lua_raise(L, "backward");
  return 0;
}

/* core._backward_collects() -> whether the pass under way comes from core.grad; for custom
 * gradients */
static int backward_collects(lua_State *L)
{
  lua_pushboolean(L, ax_backward_collects());
  return 1;
}

void ax_lua_open_grad(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "_backward", backward_from },
    { "_backward_collects", backward_collects },
    { "grad", grad },
    { "is_grad_enabled", is_grad_enabled },
    { "set_grad_enabled", set_grad_enabled },
    { "_detect_anomaly", detect_anomaly },
    { "_keep_grad", keep_grad },
    { NULL, NULL },
  };

  ax_leaf_set_holder(hold_leaf);
  ax_lua_add_functions(L, functions);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_methods);
  lua_pushcfunction(L, backward);
  lua_setfield(L, -2, "backward");
  lua_createtable(L, 0, 2); /* the metatable of hook handles */
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, hook_remove);
  lua_setfield(L, -2, "remove");
  lua_setfield(L, -2, "__index");
  lua_pushvalue(L, -1);
  lua_pushcclosure(L, keep_hook, 1);
  lua_setfield(L, -4, "_keep_hook");
  lua_pushvalue(L, -1);
  lua_pushcclosure(L, register_hook, 1);
  lua_setfield(L, -3, "register_hook");
  lua_pushcclosure(L, register_post_accumulate_grad_hook, 1);
  lua_setfield(L, -2, "register_post_accumulate_grad_hook");
  lua_pop(L, 1);
}

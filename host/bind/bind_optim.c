/* bind_optim.c: optimizer steps and gradient norms over lists of parameters. */
#include "bind/bind.h"

#include <math.h>

/* The list of tensors at idx, in a scratch array that lies on the stack. */
static ax_tensor **push_params(lua_State *L, int idx, const char *fn, int *n)
{
  ax_tensor **list;
  if (!lua_istable(L, idx)) ax_arg_error(L, fn, idx, "params", "a list of tensors", idx);
  *n = (int)lua_objlen(L, idx);
  list = lua_newuserdata(L, sizeof *list * (size_t)(*n ? *n : 1));
  for (int k = 0; k < *n; k++) {
    lua_rawgeti(L, idx, k + 1);
    list[k] = ax_opt_tensor(L, -1, fn);
    if (!list[k]) ax_error(L, fn, "params: entry %d: expected a tensor, got %s", k + 1, ax_describe(L, -1));
    lua_pop(L, 1);
  }
  return list;
}

/* ---- hyperparameters */

static double number_field(lua_State *L, int idx, const char *fn, const char *name)
{
  double v = 0;
  lua_getfield(L, idx, name);
  if (!lua_isnil(L, -1)) v = ax_check_number(L, -1, fn, name);
  lua_pop(L, 1);
  return v;
}

static bool boolean_field(lua_State *L, int idx, const char *fn, const char *name)
{
  bool v = false;
  lua_getfield(L, idx, name);
  if (!lua_isnil(L, -1)) v = ax_check_boolean(L, -1, fn, name);
  lua_pop(L, 1);
  return v;
}

static void read_hyper(lua_State *L, int idx, const char *fn, ax_hyper *h)
{
  static const char *const names[] = { "lr", "weight_decay", "momentum", "dampening", "nesterov", "betas", "eps", "maximize" };
  if (!lua_istable(L, idx)) ax_arg_error(L, fn, idx, "hyper", "a table", idx);
  ax_check_options(L, idx, fn, names, 8);
  lua_getfield(L, idx, "lr");
  if (lua_isnil(L, -1)) ax_error(L, fn, "hyper: lr is missing");
  lua_pop(L, 1);
  *h = (ax_hyper){ .lr = number_field(L, idx, fn, "lr"), .weight_decay = number_field(L, idx, fn, "weight_decay"),
                   .momentum = number_field(L, idx, fn, "momentum"), .dampening = number_field(L, idx, fn, "dampening"),
                   .eps = number_field(L, idx, fn, "eps"), .nesterov = boolean_field(L, idx, fn, "nesterov"),
                   .maximize = boolean_field(L, idx, fn, "maximize"), .beta1 = 0.9, .beta2 = 0.999 };
  lua_getfield(L, idx, "betas");
  if (!lua_isnil(L, -1)) {
    if (!lua_istable(L, -1) || lua_objlen(L, -1) != 2) ax_error(L, fn, "betas: expected a list of two numbers, got %s", ax_describe(L, -1));
    lua_rawgeti(L, -1, 1);
    lua_rawgeti(L, -2, 2);
    h->beta1 = ax_check_number(L, -2, fn, "betas");
    h->beta2 = ax_check_number(L, -1, fn, "betas");
    lua_pop(L, 2);
  }
  lua_pop(L, 1);
}

/* ---- one step */

/* The state tensor `name` of parameter k; the state table is on the stack top. */
static ax_tensor *state_tensor(lua_State *L, const char *fn, const ax_tensor *p, int k, const char *name)
{
  ax_tensor *t;
  lua_getfield(L, -1, name);
  t = ax_opt_tensor(L, -1, fn);
  if (!t) ax_error(L, fn, "states: entry %d: %s: expected a tensor, got %s", k + 1, name, ax_describe(L, -1));
  if (t->dtype != p->dtype || t->numel != p->numel || !ax_tensor_is_contiguous(t))
    ax_error(L, fn, "states: entry %d: %s must be contiguous, with the %lld elements and type %s of its parameter", k + 1, name,
             (long long)p->numel, ax_dtype_name((ax_dtype)p->dtype));
  lua_pop(L, 1); /* the state table holds it */
  return t;
}

static int64_t step_count(lua_State *L, const char *fn, int k)
{
  int64_t n = 0;
  lua_getfield(L, -1, "step");
  if (!ax_to_integer(L, -1, &n) || n < 0) ax_error(L, fn, "states: entry %d: step: expected an integer of at least 0, got %s", k + 1, ax_describe(L, -1));
  lua_pop(L, 1);
  return n;
}

/* core.optim_step(kind, params, states, hyper) */
static int optim_step(lua_State *L)
{
  static const char fn[] = "optim_step";
  const char *kind;
  bool adamw;
  int n, m = 0;
  ax_hyper h;
  ax_tensor **params, **written;
  ax_segment *segs;

  ax_bind_enter(L);
  kind = lua_type(L, 1) == LUA_TSTRING ? lua_tostring(L, 1) : "";
  adamw = strcmp(kind, "adamw") == 0;
  if (!adamw && strcmp(kind, "sgd") != 0) return ax_arg_error(L, fn, 1, "kind", "\"sgd\" or \"adamw\"", 1);
  if (!lua_istable(L, 3)) return ax_arg_error(L, fn, 3, "states", "a list of tables", 3);
  lua_settop(L, 4);
  read_hyper(L, 4, fn, &h);
  params = push_params(L, 2, fn, &n);
  segs = lua_newuserdata(L, (sizeof *segs + 3 * sizeof *written) * (size_t)(n ? n : 1));
  written = (ax_tensor **)(segs + (n ? n : 1));
  for (int k = 0; k < n; k++) {
    ax_tensor *p = params[k], *g = p->grad;
    ax_segment *s = &segs[m];
    if (!g) continue;
    if (p->device.kind != AX_CPU) return ax_error(L, fn, "params: entry %d is on another device", k + 1);
    if (p->dtype != params[0]->dtype || g->dtype != p->dtype || g->numel != p->numel)
      return ax_error(L, fn, "params: entry %d is %s with a gradient of %s; all of one call must have one element type", k + 1,
                      ax_dtype_name((ax_dtype)p->dtype), ax_dtype_name((ax_dtype)g->dtype));
    if (!ax_tensor_is_contiguous(p)) return ax_error(L, fn, "params: entry %d is not contiguous", k + 1);
    if (!ax_tensor_is_contiguous(g)) { /* the caller's own, through p.grad = g */
      ax_tensor **box;
      luaL_checkstack(L, 12, fn);
      box = ax_push_box(L); /* stays on the stack until the step is done */
      if (ax_tensor_new_on(g->device, (ax_dtype)g->dtype, g->ndim, g->shape, box) != AX_OK || ax_copy(*box, g) != AX_OK) return ax_raise(L, fn);
      g = *box;
    }
    lua_rawgeti(L, 3, k + 1);
    if (!lua_istable(L, -1)) return ax_error(L, fn, "states: entry %d: expected a table, got %s", k + 1, ax_describe(L, -1));
    *s = (ax_segment){ .param = ax_data(p), .grad = ax_data(g), .n = p->numel, .step = step_count(L, fn, k) + 1, .home = { p->storage, g->storage } };
    written[3 * m] = p;
    written[3 * m + 1] = written[3 * m + 2] = NULL;
    if (adamw || h.momentum != 0) {
      ax_tensor *t = written[3 * m + 1] = state_tensor(L, fn, p, k, adamw ? "exp_avg" : "momentum_buffer");
      s->state[0] = ax_data(t);
      s->home[2] = t->storage;
    }
    if (adamw) {
      ax_tensor *t = written[3 * m + 2] = state_tensor(L, fn, p, k, "exp_avg_sq");
      s->state[1] = ax_data(t);
      s->home[3] = t->storage;
    }
    lua_pop(L, 1);
    m++;
  }
  for (int i = 0; i < 3 * m; i++)
    if (written[i]) ax_touch(written[i]); /* before the kernel: should it fail half-way, what was written counts */
  if (m && ax_optim_step(adamw ? AX_OPTIM_ADAMW : AX_OPTIM_SGD, (ax_dtype)written[0]->dtype, segs, m, &h) != AX_OK) return ax_raise(L, fn);
  for (int k = 0; k < n; k++) {
    if (!params[k]->grad) continue;
    lua_rawgeti(L, 3, k + 1);
    lua_pushnumber(L, (double)step_count(L, fn, k) + 1);
    lua_setfield(L, -2, "step");
    lua_pop(L, 1);
  }
  return 0;
}

/* ---- norms */

/* core.clip_grad_norm_(params, max_norm, { norm_type = 2, error_if_nonfinite = false }) -> 0-d tensor: the norm before clipping */
static int clip_grad_norm_(lua_State *L)
{
  static const char fn[] = "clip_grad_norm_";
  static const char *const names[] = { "norm_type", "error_if_nonfinite" };
  double max_norm, p = 2, norm, factor;
  bool strict = false;
  int n;
  ax_tensor **params, **box;
  ax_dtype dtype = AX_F32;

  ax_bind_enter(L);
  lua_settop(L, 3);
  max_norm = ax_check_number(L, 2, fn, "max_norm");
  if (!(max_norm >= 0)) return ax_error(L, fn, "max_norm must be at least 0, got %g", max_norm);
  if (!lua_isnil(L, 3)) {
    if (!ax_is_options(L, 3, true)) return ax_arg_error(L, fn, 3, "options", "a table of options", 3);
    ax_check_options(L, 3, fn, names, 2);
    lua_getfield(L, 3, "norm_type");
    if (!lua_isnil(L, -1)) p = ax_check_number(L, -1, fn, "norm_type");
    lua_pop(L, 1);
    strict = boolean_field(L, 3, fn, "error_if_nonfinite");
  }
  params = push_params(L, 1, fn, &n);
  for (int k = 0; k < n; k++)
    if (params[k]->grad && params[k]->grad->dtype == AX_F64) dtype = AX_F64;
  box = ax_push_box(L);
  if (ax_grad_norm(n, params, p, &norm) != AX_OK) return ax_raise(L, fn);
  if (strict && !isfinite(norm)) return ax_error(L, fn, "the norm of the gradients is %g, so they cannot be clipped", norm);
  if (ax_tensor_scalar(dtype, norm, box) != AX_OK) return ax_raise(L, fn);
  factor = max_norm / (norm + 1e-6);
  if (!(factor >= 1) && ax_grad_scale(n, params, factor) != AX_OK) return ax_raise(L, fn); /* also NaN, which spreads as in PyTorch */
  return 1;
}

/* core.grad_norm(params, p) -> number */
static int grad_norm(lua_State *L)
{
  double p, norm;
  int n;
  ax_tensor **params;

  ax_bind_enter(L);
  p = lua_isnoneornil(L, 2) ? 2 : ax_check_number(L, 2, "grad_norm", "p");
  params = push_params(L, 1, "grad_norm", &n);
  if (ax_grad_norm(n, params, p, &norm) != AX_OK) return ax_raise(L, "grad_norm");
  lua_pushnumber(L, norm);
  return 1;
}

void ax_open_optim(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "optim_step", optim_step }, { "clip_grad_norm_", clip_grad_norm_ }, { "grad_norm", grad_norm }, { NULL, NULL },
  };
  ax_add_functions(L, functions);
}

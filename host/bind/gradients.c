/* gradients.c: norms of gradients over lists of parameters; clipping, scaling and unscaling of
 * gradients. */
#include "bind/group.h"
#include "bind/hyper.h"
#include "capture.h"
#include "flat.h"

#include <math.h>

/* Pushes a scratch array with the list of tensors at idx. */
ax_tensor **ax_lua_push_params(lua_State *L, int idx, const char *fn, int *n)
{
  ax_tensor **list;
  if (!lua_istable(L, idx)) ax_lua_arg_error(L, fn, idx, "params", "a list of tensors", idx);
  *n = (int)lua_objlen(L, idx);
  list = lua_newuserdata(L, sizeof *list * (size_t)(*n ? *n : 1));
  for (int k = 0; k < *n; k++) {
    lua_rawgeti(L, idx, k + 1);
    list[k] = ax_lua_opt_tensor(L, -1, fn);
    if (!list[k])
      ax_lua_error(L, fn, "params: entry %d: expected a tensor, got %s", k + 1, ax_lua_describe(L, -1));
    if (ax_recording) ax_capture_note(list[k]);
    lua_pop(L, 1);
  }
  return list;
}

/* The gradients of the tensors at idx, NULL where there is none. */
static ax_tensor **push_grads(lua_State *L, int idx, const char *fn, int *n)
{
  ax_tensor **list = ax_lua_push_params(L, idx, fn, n);
  for (int k = 0; k < *n; k++) list[k] = list[k]->grad;
  return list;
}

/* As push_grads, but of gradients that are cut over ranks the piece that rests here.  The list has
 * n entries for gradients that are whole, and n for the pieces, which *group is for (NULL: there
 * are none); an entry is NULL in one of them at least.  *device (if not NULL): where the pieces
 * rest, also of a rank that has none. */
static ax_tensor **push_own_grads(lua_State *L, int idx, const char *fn, int *n, ax_group **group,
                                  ax_device *device)
{
  ax_lua_enter_collective(L);
  ax_tensor **params = ax_lua_push_params(L, idx, fn, n);
  ax_tensor **list = lua_newuserdata(L, sizeof *list * 2 * (size_t)(*n ? *n : 1));

  *group = NULL;
  for (int k = 0; k < *n; k++) {
    ax_group *over;
    ax_tensor *const g = ax_flat_own_grad(params[k], &over);
    list[k] = over ? NULL : g;
    list[*n + k] = over ? g : NULL;
    if (over && *group && *group != over)
      ax_lua_error(L, fn,
                   "the gradients are cut over two groups of ranks; give those of one model at a time");
    if (over) *group = over;
    if (over && device) *device = params[k]->flat->home.grads->device;
  }
  return list;
}

/* The type that a norm of the list is computed in: float64 where one of the tensors is, else
 * float32. */
static ax_dtype norm_dtype(int n, ax_tensor *const *list)
{
  for (int k = 0; k < n; k++)
    if (list[k] && list[k]->dtype == AX_F64) return AX_F64;
  return AX_F32;
}

/* The device of all tensors, in *d; false where there are several, or no tensors. */
static bool on_one_device(int n, ax_tensor *const *list, ax_device *d)
{
  const ax_tensor *first = NULL;
  for (int k = 0; k < n; k++) {
    if (!list[k]) continue;
    if (!first) first = list[k];
    if (!ax_same_device(first->device, list[k]->device)) return false;
  }
  if (first) *d = first->device;
  return first != NULL;
}

/* Whether all tensors are on one device other than the CPU.  A norm then stays on that device, and
 * the host does not wait for it. */
static bool on_a_device(int n, ax_tensor *const *list)
{
  ax_device d;
  return on_one_device(n, list, &d) && d.kind != AX_CPU;
}

/* Fills box with the norm of the list, a 0-d tensor.  `wide` not NULL: *wide becomes a float64 copy
 * of it, which the caller releases. */
static ax_status norm_into_box(int n, ax_tensor *const *list, double p, ax_tensor **box, ax_tensor **wide)
{
  ax_tensor *norm = NULL;
  double number;
  ax_status st;

  if (on_a_device(n, list)) AX_TRY(ax_norm_tensor(n, list, p, &norm));
  else {
    AX_TRY(ax_norm_all(n, list, p, &number));
    AX_TRY(ax_tensor_scalar(AX_F64, number, &norm));
  }
  AX_TRY(ax_cast(norm, norm_dtype(n, list), box));
  if (wide) *wide = ax_tensor_retain(norm);
out:
  ax_tensor_release(norm);
  return st;
}

/* x ^ p, in a new tensor. */
static ax_status raised(ax_tensor *x, double p, ax_tensor **out)
{
  ax_tensor *results[AX_MAX_OUT];
  const ax_args args = {
    .n_in = 2, .in = (ax_tensor *[]){ x, NULL }, .scalars = 2, .num = { 0, p }, .a = { .n_list = -1 }
  };
  const ax_status st = ax_run(AX_OP_POW, &args, results);
  if (st == AX_OK) *out = results[0];
  return st;
}

static bool any_of(int n, ax_tensor *const *list)
{
  for (int k = 0; k < n; k++)
    if (list[k]) return true;
  return false;
}

/* As ax_norm_tensor; the norm of no tensors is a zero on `device`. */
static ax_status norm_on(ax_device device, int n, ax_tensor *const *list, double p, ax_tensor **out)
{
  return any_of(n, list) ? ax_norm_tensor(n, list, p, out) : ax_tensor_zeros_on(device, AX_F64, 0, NULL, out);
}

/* The norm of the gradients that are whole here and of those that are cut over a group's ranks,
 * and rest on `device`: each rank sums up its pieces, and one number is reduced.  *out: 0-d,
 * float64. */
static ax_status joint_norm(int n, ax_tensor *const *whole, ax_tensor *const *pieces, ax_group *group,
                            ax_device device, double p, ax_tensor **out)
{
  ax_tensor *a = NULL, *b = NULL, *t = NULL, *results[AX_MAX_OUT] = { 0 };
  const bool extreme = isinf(p), recording = ax_grad_set_enabled(false);
  ax_status st;

  AX_TRY(norm_on(device, n, pieces, p, &a));
  if (!extreme) {
    AX_TRY(raised(a, p, &t));
    ax_tensor_release(a);
    a = t;
  }
  AX_TRY(ax_dist_all_reduce(group, a, !extreme ? AX_SUM : p > 0 ? AX_MAX : AX_MIN, 0));
  AX_TRY(norm_on(device, n, whole, p, &b));
  if (!extreme) {
    AX_TRY(raised(b, p, &t));
    ax_tensor_release(b);
    b = t;
  }
  AX_TRY(ax_cast(b, AX_F64, &t));
  ax_tensor_release(b);
  b = t;
  if (!ax_same_device(a->device, b->device)) {
    AX_TRY(ax_tensor_new_on(a->device, AX_F64, 0, NULL, &t));
    AX_TRY(ax_copy(t, b));
    ax_tensor_release(b);
    b = t;
    t = NULL;
  }
  /* without whole gradients the norm of none, 0, is not the least one */
  if (extreme && p < 0 && !any_of(n, whole)) AX_TRY(ax_fill(b, INFINITY));
  AX_TRY(ax_run2(extreme ? p > 0 ? AX_OP_MAXIMUM : AX_OP_MINIMUM : AX_OP_ADD, a, b, &results[0]));
  if (extreme) {
    *out = results[0];
    results[0] = NULL;
  } else st = raised(results[0], 1 / p, out);
out:
  ax_grad_set_enabled(recording);
  ax_tensor_release(a), ax_tensor_release(b), ax_tensor_release(results[0]);
  return st;
}

/* core.clip_grad_norm_(params, max_norm, { norm_type = 2, error_if_nonfinite = false }) -> 0-d
 * tensor: the norm before clipping, on the gradients' device where they share one.  The host does
 * not wait for that device unless error_if_nonfinite requires the norm's value. */
static int clip_grad_norm_(lua_State *L)
{
  static const char fn[] = "clip_grad_norm_";
  static const char *const names[] = { "norm_type", "error_if_nonfinite" };
  double max_norm, p = 2, norm;
  bool strict = false, one, there;
  ax_device device = { AX_CPU, 0 };
  int n;
  ax_tensor **grads, **box, **wide;
  ax_group *group;
  ax_status st;

  ax_lua_enter(L);
  lua_settop(L, 3);
  max_norm = ax_lua_check_number(L, 2, fn, "max_norm");
  if (!(max_norm >= 0)) return ax_lua_error(L, fn, "max_norm must be at least 0, got %g", max_norm);
  if (!lua_isnil(L, 3)) {
    if (!ax_lua_is_options(L, 3, true)) return ax_lua_arg_error(L, fn, 3, "options", "a table of options", 3);
    ax_lua_check_options(L, 3, fn, names, 2);
    lua_getfield(L, 3, "norm_type");
    if (!lua_isnil(L, -1)) p = ax_lua_check_number(L, -1, fn, "norm_type");
    lua_getfield(L, 3, "error_if_nonfinite");
    if (!lua_isnil(L, -1)) strict = ax_lua_check_boolean(L, -1, fn, "error_if_nonfinite");
    lua_pop(L, 2);
  }
  grads = push_own_grads(L, 1, fn, &n, &group, &device);
  one = on_one_device(2 * n, grads, &device) || !any_of(2 * n, grads);
  there = one && device.kind != AX_CPU;
  wide = ax_lua_push_box(L);
  box = ax_lua_push_box(L);
  if (group) {
    if (joint_norm(n, grads, grads + n, group, device, p, wide) != AX_OK ||
        ax_cast(*wide, norm_dtype(2 * n, grads), box) != AX_OK)
      return ax_lua_raise(L, fn);
  } else if (norm_into_box(n, grads, p, box, wide) != AX_OK) return ax_lua_raise(L, fn);
  n *= 2;
  if (strict || !there) {
    if (ax_item(*wide, &norm) != AX_OK) return ax_lua_raise(L, fn);
    if (strict && !isfinite(norm))
      return ax_lua_error(L, fn, "the norm of the gradients is %g, so they cannot be clipped", norm);
  }
  if (one) st = there || !(max_norm / (norm + 1e-6) >= 1) ? ax_clip_all(n, grads, max_norm, *wide) : AX_OK;
  /* also NaN, which spreads as in PyTorch */
  else st = max_norm / (norm + 1e-6) >= 1 ? AX_OK : ax_scale_all(n, grads, max_norm / (norm + 1e-6));
  return st == AX_OK ? 1 : ax_lua_raise(L, fn);
}

/* core.gradients(params) -> which parameters have a gradient, and the device of the gradients.  The
 * first result is a number, how many, where none or all have one; else a string with a '1' or a '0'
 * for each.  The device is nil where there are several, or no gradients. */
static int gradients(lua_State *L)
{
  ax_tensor **grads;
  const ax_tensor *first = NULL;
  char *text, name[16];
  bool one = true;
  int n, count = 0;

  ax_lua_enter(L);
  lua_settop(L, 1);
  grads = push_grads(L, 1, "gradients", &n);
  text = lua_newuserdata(L, (size_t)n + 1);
  for (int k = 0; k < n; k++) {
    text[k] = grads[k] ? '1' : '0';
    if (!grads[k]) continue;
    if (!first) first = grads[k];
    one &= ax_same_device(first->device, grads[k]->device);
    count++;
  }
  if (count == 0 || count == n) lua_pushinteger(L, count);
  else lua_pushlstring(L, text, (size_t)n);
  if (first && one) lua_pushstring(L, ax_device_text(first->device, name, sizeof name));
  else lua_pushnil(L);
  return 2;
}

/* New reference: a copy on the device. */
static ax_status copied_to(ax_device d, ax_tensor *t, ax_tensor **out)
{
  ax_status st = ax_tensor_new_on(d, (ax_dtype)t->dtype, t->ndim, t->shape, out);

  if (st != AX_OK || (st = ax_copy(*out, t)) == AX_OK) return st;
  ax_tensor_release(*out);
  *out = NULL;
  return st;
}

/* Gradients that rest in host memory are unscaled there, with copies of the two numbers. */
static ax_status unscale(int n, ax_tensor *const *grads, ax_tensor *scale, ax_tensor *found)
{
  ax_tensor *scale_there = NULL, *found_there = NULL;
  ax_device d;
  ax_status st;

  if (!on_one_device(n, grads, &d) || d.kind != AX_CPU || ax_same_device(d, scale->device))
    return ax_unscale_all(n, grads, scale, found);
  AX_TRY(copied_to(d, scale, &scale_there));
  AX_TRY(copied_to(d, found, &found_there));
  AX_TRY(ax_unscale_all(n, grads, scale_there, found_there));
  st = ax_copy(found, found_there);
out:
  ax_tensor_release(scale_there);
  ax_tensor_release(found_there);
  return st;
}

/* core.unscale_grads_(params, scale, found): divides every gradient by scale; found becomes 1 where
 * one is infinite or NaN afterwards */
static int unscale_grads_(lua_State *L)
{
  static const char fn[] = "unscale_grads_";
  ax_tensor **grads, *scale, *found;
  ax_group *group;
  int n;

  ax_lua_enter(L);
  lua_settop(L, 3);
  scale = ax_lua_check_tensor(L, 2, fn, "scale");
  found = ax_lua_check_tensor(L, 3, fn, "found");
  grads = push_own_grads(L, 1, fn, &n, &group, NULL);
  if (unscale(n, grads, scale, found) != AX_OK || (group && unscale(n, grads + n, scale, found) != AX_OK) ||
      (group && ax_dist_all_reduce(group, found, AX_MAX, 0) != AX_OK))
    return ax_lua_raise(L, fn);
  return 0;
}

/* core.scale_update_(state, found, growth_factor, backoff_factor, growth_interval): see
 * ax_scale_update */
static int scale_update_(lua_State *L)
{
  static const char fn[] = "scale_update_";
  ax_tensor *state, *found;

  ax_lua_enter(L);
  state = ax_lua_check_tensor(L, 1, fn, "state");
  found = ax_lua_check_tensor(L, 2, fn, "found");
  const double growth = ax_lua_check_number(L, 3, fn, "growth_factor"),
               backoff = ax_lua_check_number(L, 4, fn, "backoff_factor");
  const int64_t interval = ax_lua_check_integer(L, 5, fn, "growth_interval", 1, INT64_C(1) << 53);
  return ax_scale_update(state, found, growth, backoff, interval) == AX_OK ? 0 : ax_lua_raise(L, fn);
}

/* core.scale_grads_(params, factor): multiplies every gradient by a number */
static int scale_grads_(lua_State *L)
{
  static const char fn[] = "scale_grads_";
  int n;
  ax_tensor **grads;
  ax_group *group;
  ax_lua_enter(L);
  lua_settop(L, 2);
  const double factor = ax_lua_check_number(L, 2, fn, "factor");
  grads = push_own_grads(L, 1, fn, &n, &group, NULL);
  return ax_scale_all(2 * n, grads, factor) == AX_OK ? 0 : ax_lua_raise(L, fn);
}

/* core.clip_grad_value_(params, limit) */
static int clip_grad_value_(lua_State *L)
{
  static const char fn[] = "clip_grad_value_";
  int n;
  ax_tensor **grads;
  ax_group *group;
  ax_lua_enter(L);
  lua_settop(L, 2);
  const double limit = ax_lua_check_number(L, 2, fn, "clip_value");
  if (!(limit >= 0)) return ax_lua_error(L, fn, "clip_value must be at least 0, got %g", limit);
  grads = push_own_grads(L, 1, fn, &n, &group, NULL);
  return ax_clamp_all(2 * n, grads, limit) == AX_OK ? 0 : ax_lua_raise(L, fn);
}

/* core.grad_norm(params, p) -> number */
static int grad_norm(lua_State *L)
{
  double p, norm;
  int n;
  ax_tensor **grads, *joint;
  ax_device device;
  ax_group *group;
  ax_status st;

  ax_lua_enter(L);
  p = lua_isnoneornil(L, 2) ? 2 : ax_lua_check_number(L, 2, "grad_norm", "p");
  grads = push_own_grads(L, 1, "grad_norm", &n, &group, &device);
  if (!group) st = ax_norm_all(n, grads, p, &norm);
  else if ((st = joint_norm(n, grads, grads + n, group, device, p, &joint)) == AX_OK) {
    st = ax_item(joint, &norm);
    ax_tensor_release(joint);
  }
  if (st != AX_OK) return ax_lua_raise(L, "grad_norm");
  lua_pushnumber(L, norm);
  return 1;
}

/* core.total_norm(tensors, p) -> 0-d tensor, on the tensors' device where they share one */
static int total_norm(lua_State *L)
{
  static const char fn[] = "get_total_norm";
  ax_tensor **list, **box;
  double p;
  int n;

  ax_lua_enter(L);
  p = lua_isnoneornil(L, 2) ? 2 : ax_lua_check_number(L, 2, fn, "norm_type");
  list = ax_lua_push_params(L, 1, fn, &n);
  box = ax_lua_push_box(L);
  return norm_into_box(n, list, p, box, NULL) == AX_OK ? 1 : ax_lua_raise(L, fn);
}

void ax_lua_open_gradients(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "gradients", gradients },
    { "clip_grad_norm_", clip_grad_norm_ },
    { "unscale_grads_", unscale_grads_ },
    { "scale_update_", scale_update_ },
    { "clip_grad_value_", clip_grad_value_ },
    { "scale_grads_", scale_grads_ },
    { "grad_norm", grad_norm },
    { "total_norm", total_norm },
    { NULL, NULL },
  };
  ax_lua_add_functions(L, functions);
}

/* bind_optim.c: optimizer steps and gradient norms over lists of parameters. */
#include "bind/bind.h"
#include "capture.h"

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
    if (ax_recording) ax_capture_note(list[k]);
    lua_pop(L, 1);
  }
  return list;
}

/* ---- hyperparameters */

/* The value of field `name` of the table at idx, on the stack top; raises when it is missing. */
static void push_field(lua_State *L, int idx, const char *fn, const char *name)
{
  lua_getfield(L, idx, name);
  if (lua_isnil(L, -1)) ax_error(L, fn, "hyper: %s is missing", name);
}

static void number_field(lua_State *L, int idx, const char *fn, const char *name, double *out)
{
  push_field(L, idx, fn, name);
  *out = ax_check_number(L, -1, fn, name);
  lua_pop(L, 1);
}

static void flag_field(lua_State *L, int idx, const char *fn, const char *name, bool *out)
{
  push_field(L, idx, fn, name);
  *out = ax_check_boolean(L, -1, fn, name);
  lua_pop(L, 1);
}

static void pair_field(lua_State *L, int idx, const char *fn, const char *name, double *out)
{
  push_field(L, idx, fn, name);
  if (!lua_istable(L, -1) || lua_objlen(L, -1) != 2)
    ax_error(L, fn, "%s: expected a list of two numbers, got %s", name, ax_describe(L, -1));
  for (int k = 0; k < 2; k++) {
    lua_rawgeti(L, -1, k + 1);
    out[k] = ax_check_number(L, -1, fn, name);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* Is `name` one of the words of `list`? */
static bool lists(const char *list, const char *name)
{
  const size_t n = strlen(name);
  for (const char *at = list; (at = strstr(at, name)); at += n)
    if ((at == list || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0')) return true;
  return false;
}

enum {
#define HYPER(name, form) TAKES_##name,
#include "core/optim.def"
};

static uint32_t taken[AX_OPTIM_COUNT]; /* bit TAKES_name: the kind takes it */

static void find_taken(void)
{
  for (int k = 0; k < AX_OPTIM_COUNT; k++) {
    uint32_t mask = 0;
#define HYPER(name, form) mask |= (uint32_t)lists(ax_optims[k].hyper, #name) << TAKES_##name;
#include "core/optim.def"
    taken[k] = mask;
  }
}

/* The numbers that `kind` takes, all of them, out of the table at idx. */
static void read_hyper(lua_State *L, int idx, const char *fn, ax_optim_kind kind, ax_hyper *h)
{
  const uint32_t takes = taken[kind];
  if (!lua_istable(L, idx)) ax_arg_error(L, fn, idx, "hyper", "a table", idx);
  *h = (ax_hyper){ 0 };
#define NUMBER(name) number_field(L, idx, fn, #name, &h->name)
#define PAIR(name) pair_field(L, idx, fn, #name, h->name)
#define FLAG(name) flag_field(L, idx, fn, #name, &h->name)
#define HYPER(name, form) \
  if (takes >> TAKES_##name & 1) form(name);
#include "core/optim.def"
#undef FLAG
#undef PAIR
#undef NUMBER
}

static ax_optim_kind read_kind(lua_State *L, const char *fn)
{
  static const char *names[AX_OPTIM_COUNT];
  const char *given = lua_type(L, 1) == LUA_TSTRING ? lua_tostring(L, 1) : "", *near;
  for (int k = 0; k < AX_OPTIM_COUNT; k++) {
    names[k] = ax_optims[k].name;
    if (strcmp(names[k], given) == 0) return (ax_optim_kind)k;
  }
  near = ax_nearest(given, names, AX_OPTIM_COUNT);
  if (near) ax_error(L, fn, "kind: no optimizer is called '%s'; did you mean '%s'?", given, near);
  return (ax_optim_kind)ax_arg_error(L, fn, 1, "kind", "the name of an optimizer", 1);
}

/* core.optim_kinds() -> { [name] = { hyper = { names }, states = { { name = , form = }, ... } }
 * } */
static int optim_kinds(lua_State *L)
{
  static const char *const forms[] = { "each", "rows", "cols", "small", "number" };
  lua_newtable(L);
  for (int k = 0; k < AX_OPTIM_COUNT; k++) {
    const ax_optim_row *row = &ax_optims[k];
    int n = 0;
    lua_newtable(L);
    lua_newtable(L);
    for (const char *at = row->hyper; *at; at += strspn(at, " ")) {
      lua_pushlstring(L, at, strcspn(at, " "));
      lua_rawseti(L, -2, ++n);
      at += strcspn(at, " ");
    }
    lua_setfield(L, -2, "hyper");
    lua_newtable(L);
    for (int i = 0; i < row->n_states; i++) {
      lua_newtable(L);
      lua_pushstring(L, row->states[i].name);
      lua_setfield(L, -2, "name");
      lua_pushstring(L, forms[row->states[i].form]);
      lua_setfield(L, -2, "form");
      lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "states");
    lua_setfield(L, -2, row->name);
  }
  return 1;
}

/* core.optim_needs(kind, hyper) -> which states are kept, bit k - 1 for the k-th */
static int optim_needs(lua_State *L)
{
  ax_hyper h;
  ax_optim_kind kind;
  ax_bind_enter(L);
  lua_settop(L, 2);
  kind = read_kind(L, "optim_needs");
  read_hyper(L, 2, "optim_needs", kind, &h);
  lua_pushinteger(L, (lua_Integer)ax_optim_needs(kind, &h));
  return 1;
}

/* ---- one step */

/* tensors that a step may write for a parameter: itself, its working copy, its states */
enum { WRITTEN = 2 + AX_MAX_STATES };

/* Does parameter p have a state of this form? */
static bool has_state(const ax_tensor *p, ax_state_form form)
{
  switch (form) {
  case AX_STATE_EACH: return true;
  case AX_STATE_ROWS:
  case AX_STATE_COLS: return p->ndim >= 2;
  case AX_STATE_SMALL: return p->ndim < 2;
  case AX_STATE_NUMBER: break;
  }
  return false;
}

static int64_t state_numel(const ax_tensor *p, ax_state_form form)
{
  /* the dim that is 1 in the state */
  const int flat = form == AX_STATE_ROWS ? p->ndim - 1 : form == AX_STATE_COLS ? p->ndim - 2 : -1;
  int64_t numel = 1;
  for (int d = 0; d < p->ndim; d++)
    if (d != flat) numel *= p->shape[d];
  return numel;
}

/* The state tensor of parameter k; the state table is on the stack top. */
static ax_tensor *state_tensor(lua_State *L, const char *fn, const ax_tensor *p, int k,
                               const ax_optim_state *state)
{
  const int64_t numel = state_numel(p, state->form);
  ax_tensor *t;
  lua_getfield(L, -1, state->name);
  t = ax_opt_tensor(L, -1, fn);
  if (!t)
    ax_error(L, fn, "states: entry %d: %s: expected a tensor, got %s", k + 1, state->name,
             ax_describe(L, -1));
  if (t->dtype != p->dtype || t->numel != numel || !ax_tensor_is_contiguous(t))
    ax_error(L, fn,
             "states: entry %d: %s must be contiguous, with %lld elements and its parameter's type, %s",
             k + 1, state->name, (long long)numel, ax_dtype_name((ax_dtype)p->dtype));
  lua_pop(L, 1); /* the state table holds it */
  return t;
}

static int64_t step_count(lua_State *L, const char *fn, int k)
{
  int64_t n = 0;
  lua_getfield(L, -1, "step");
  if (!ax_to_integer(L, -1, &n) || n < 0)
    ax_error(L, fn, "states: entry %d: step: expected an integer of at least 0, got %s", k + 1,
             ax_describe(L, -1));
  lua_pop(L, 1);
  return n;
}

static double state_number(lua_State *L, const char *fn, const char *name)
{
  double v;
  lua_getfield(L, -1, name);
  v = ax_check_number(L, -1, fn, name);
  lua_pop(L, 1);
  return v;
}

/* After a step of a parameter whose state table is on the stack top: its count, and its state of
 * form NUMBER. */
static void advance_state(lua_State *L, const char *fn, ax_optim_kind kind, const ax_hyper *h, int k)
{
  const int64_t step = step_count(L, fn, k) + 1;
  lua_pushnumber(L, (double)step);
  lua_setfield(L, -2, "step");
  for (int i = 0; i < ax_optims[kind].n_states; i++) {
    const ax_optim_state *state = &ax_optims[kind].states[i];
    if (state->form != AX_STATE_NUMBER) continue;
    lua_pushnumber(L, ax_optim_number(kind, h, step, state_number(L, fn, state->name)));
    lua_setfield(L, -2, state->name);
  }
}

/* The working copy that the kernels write beside the parameter, or NULL.  One that nothing has used
 * since the parameter was last written (that of a table of embeddings, say) stays stale, unless it
 * is so small that taking it along is cheaper than making two runs of one; a step that the device
 * may skip leaves it stale always, since nobody would know whether it was written. */
static ax_tensor *work_of(const ax_tensor *p, bool skippable)
{
  enum { SMALL = 16384 };
  ax_tensor *work = p->work;
  if (!work || !ax_is_half((ax_dtype)work->dtype) || work->numel != p->numel ||
      !ax_tensor_is_contiguous(work))
    return NULL;
  return p->work_edits == p->version->edits || (p->numel < SMALL && !skippable) ? work : NULL;
}

/* Fills the segment of parameter k, whose state table is on the stack top, and lists what the step
 * writes. */
static void fill_segment(lua_State *L, const char *fn, ax_optim_kind kind, const ax_hyper *h, int k,
                         ax_tensor *p, bool skippable, ax_segment *s, ax_tensor **written)
{
  const ax_optim_row *row = &ax_optims[kind];
  const uint32_t needs = ax_optim_needs(kind, h);
  ax_tensor *work = work_of(p, skippable);

  s->step = step_count(L, fn, k) + 1;
  if (row->by_matrix && p->ndim >= 2) {
    s->rows = p->shape[p->ndim - 2];
    s->cols = p->shape[p->ndim - 1];
  }
  written[0] = p;
  written[1] = work;
  if (work) {
    s->work = ax_data(work);
    s->work_dtype = (ax_dtype)work->dtype;
    s->home[2] = work->storage;
  }
  for (int i = 0; i < row->n_states; i++) {
    const ax_optim_state *state = &row->states[i];
    if (!(needs >> i & 1)) continue;
    if (state->form == AX_STATE_NUMBER)
      s->number = ax_optim_number(kind, h, s->step, state_number(L, fn, state->name));
    else if (has_state(p, state->form)) {
      written[2 + i] = state_tensor(L, fn, p, k, state);
      s->state[i] = ax_data(written[2 + i]);
      s->home[3 + i] = written[2 + i]->storage;
    }
  }
}

/* The memory of field `name` of the table of live numbers at idx, or NULL: a contiguous tensor of
 * `dtype` on the parameters' device. */
static void *live_field(lua_State *L, int idx, const char *fn, const char *name, ax_dtype dtype,
                        int64_t numel, ax_device device, bool written)
{
  char a[16], b[16];
  ax_tensor *t;

  lua_getfield(L, idx, name);
  if (lua_isnil(L, -1)) return lua_pop(L, 1), NULL;
  t = ax_opt_tensor(L, -1, fn);
  if (!t) ax_error(L, fn, "live: %s: expected a tensor, got %s", name, ax_describe(L, -1));
  if (t->dtype != dtype || t->numel != numel || !ax_tensor_is_contiguous(t))
    ax_error(L, fn, "live: %s must be %lld elements of %s, contiguous, got %lld of %s", name,
             (long long)numel, ax_dtype_name(dtype), (long long)t->numel, ax_dtype_name((ax_dtype)t->dtype));
  if (!ax_same_device(t->device, device))
    ax_error(L, fn, "live: %s lies on %s and the parameters on %s", name,
             ax_device_text(t->device, a, sizeof a), ax_device_text(device, b, sizeof b));
  if (written) ax_touch(t);
  if (ax_recording) ax_capture_hold(t->storage);
  lua_pop(L, 1); /* the table holds it */
  return ax_data(t);
}

/* core.optim_hyper(kind, hyper) -> a uint8 tensor on the CPU: the numbers as a step reads them from
 * device memory (live.hyper) */
static int optim_hyper(lua_State *L)
{
  const int64_t size = (int64_t)sizeof(ax_hyper);
  ax_optim_kind kind;
  ax_tensor **box;
  ax_hyper h;

  ax_bind_enter(L);
  lua_settop(L, 2);
  kind = read_kind(L, "optim_hyper");
  read_hyper(L, 2, "optim_hyper", kind, &h);
  box = ax_push_box(L);
  if (ax_tensor_new(AX_U8, 1, &size, box) != AX_OK) return ax_raise(L, "optim_hyper");
  memcpy(ax_data(*box), &h, sizeof h);
  return 1;
}

/* core.optim_step(kind, params, states, hyper, live): live nil, or { skip = float32, skipped =
 * int64, hyper = optim_hyper's, ran = int64 }, tensors of the parameters' device, each may be left
 * out: see ax_optim_live.  The states' counts go on, whether the device skips the step or not.
 * While a step is recorded: returns the number of its place (capture_set_optim). */
static int optim_step(lua_State *L)
{
  static const char fn[] = "optim_step";
  ax_optim_kind kind;
  int n, m = 0;
  ax_hyper h;
  ax_tensor **params, **written;
  ax_segment *segs;
  ax_optim_live live;
  bool skippable = false;

  ax_bind_enter(L);
  lua_settop(L, 5);
  kind = read_kind(L, fn);
  if (!lua_isnil(L, 5) && !lua_istable(L, 5))
    return ax_arg_error(L, fn, 5, "live", "a table of tensors or nil", 5);
  if (!lua_istable(L, 3)) return ax_arg_error(L, fn, 3, "states", "a list of tables", 3);
  read_hyper(L, 4, fn, kind, &h);
  if (lua_istable(L, 5)) {
    lua_getfield(L, 5, "skip");
    skippable = !lua_isnil(L, -1);
    lua_pop(L, 1);
  }
  params = push_params(L, 2, fn, &n);
  segs = lua_newuserdata(L, (sizeof *segs + WRITTEN * sizeof *written) * (size_t)(n ? n : 1));
  written = (ax_tensor **)(segs + (n ? n : 1));
  for (int k = 0; k < n; k++) {
    ax_tensor *p = params[k], *g = p->grad;
    if (!g) continue;
    if (!ax_same_device(p->device, params[0]->device) || !ax_same_device(g->device, p->device))
      return ax_error(L, fn,
                      "params: entry %d or its gradient lies on another device than entry 1; all of one call "
                      "must lie on one",
                      k + 1);
    if (p->dtype != params[0]->dtype || g->dtype != p->dtype || g->numel != p->numel)
      return ax_error(
          L, fn, "params: entry %d is %s with a gradient of %s; all of one call must have one element type",
          k + 1, ax_dtype_name((ax_dtype)p->dtype), ax_dtype_name((ax_dtype)g->dtype));
    if (!ax_tensor_is_contiguous(p)) return ax_error(L, fn, "params: entry %d is not contiguous", k + 1);
    if (!ax_tensor_is_contiguous(g)) { /* the caller's own, through p.grad = g */
      ax_tensor **box;
      luaL_checkstack(L, 12, fn);
      box = ax_push_box(L); /* stays on the stack until the step is done */
      if (ax_tensor_new_on(g->device, (ax_dtype)g->dtype, g->ndim, g->shape, box) != AX_OK ||
          ax_copy(*box, g) != AX_OK)
        return ax_raise(L, fn);
      g = *box;
    }
    lua_rawgeti(L, 3, k + 1);
    if (!lua_istable(L, -1))
      return ax_error(L, fn, "states: entry %d: expected a table, got %s", k + 1, ax_describe(L, -1));
    segs[m] = (ax_segment){
      .param = ax_data(p), .grad = ax_data(g), .n = p->numel, .home = { p->storage, g->storage }
    };
    memset(&written[WRITTEN * m], 0, WRITTEN * sizeof *written);
    fill_segment(L, fn, kind, &h, k, p, skippable, &segs[m], &written[WRITTEN * m]);
    lua_pop(L, 1);
    m++;
  }
  if (m && lua_istable(L, 5)) {
    const ax_device d = written[0]->device;
    live.skip = live_field(L, 5, fn, "skip", AX_F32, 1, d, false);
    live.skipped = live_field(L, 5, fn, "skipped", AX_I64, 1, d, true);
    live.hyper = live_field(L, 5, fn, "hyper", AX_U8, (int64_t)sizeof(ax_hyper), d, false);
    live.ran = live_field(L, 5, fn, "ran", AX_I64, 1, d, false);
  }
  for (int i = 0; i < WRITTEN * m; i++)
    /* before the kernel: should it fail half-way, what was written counts */
    if (written[i]) ax_touch(written[i]);
  if (m && ax_optim_step(written[0]->device, kind, (ax_dtype)written[0]->dtype, segs, m, &h,
                         lua_istable(L, 5) ? &live : NULL) != AX_OK)
    return ax_raise(L, fn);
  for (int i = 0; i < m; i++)
    if (written[WRITTEN * i + 1]) written[WRITTEN * i]->work_edits = written[WRITTEN * i]->version->edits;
  for (int k = 0; k < n; k++) {
    if (!params[k]->grad) continue;
    lua_rawgeti(L, 3, k + 1);
    advance_state(L, fn, kind, &h, k);
    lua_pop(L, 1);
  }
  if (!ax_recording || m == 0) return 0;
  lua_pushinteger(L, ax_capture_optims(ax_recording) - 1);
  return 1;
}

ax_capture *ax_check_capture(lua_State *L, int idx, const char *fn);

/* core.capture_set_optim(capture, number, kind, hyper, ran): the numbers of an optimizer's step at
 * the next replay, and how many steps have been taken since it was recorded */
static int capture_set_optim(lua_State *L)
{
  static const char fn[] = "capture_set_optim";
  ax_capture *c;
  ax_optim_kind kind;
  ax_hyper h;

  ax_bind_enter(L);
  c = ax_check_capture(L, 1, fn);
  const int64_t number = ax_check_integer(L, 2, fn, "number", 0, ax_capture_optims(c) - 1);
  const int64_t ran = ax_check_integer(L, 5, fn, "ran", -(INT64_C(1) << 53), INT64_C(1) << 53);
  lua_settop(L, 4);
  lua_remove(L, 1);
  lua_remove(L, 1);
  kind = read_kind(L, fn);
  read_hyper(L, 2, fn, kind, &h);
  ax_capture_set_optim(c, (int)number, &h, ran);
  return 0;
}

/* ---- many tensors at once */

/* The gradients of the tensors at idx, NULL where there is none. */
static ax_tensor **push_grads(lua_State *L, int idx, const char *fn, int *n)
{
  ax_tensor **list = push_params(L, idx, fn, n);
  for (int k = 0; k < *n; k++) list[k] = list[k]->grad;
  return list;
}

/* float64 where one of the list is, else float32: what a norm of them is told in. */
static ax_dtype norm_dtype(int n, ax_tensor *const *list)
{
  for (int k = 0; k < n; k++)
    if (list[k] && list[k]->dtype == AX_F64) return AX_F64;
  return AX_F32;
}

/* Do all lie on one device that is not the CPU?  Then a norm stays there, and nobody waits for
 * it. */
static bool on_a_device(int n, ax_tensor *const *list)
{
  const ax_tensor *first = NULL;
  for (int k = 0; k < n; k++) {
    if (!list[k]) continue;
    if (!first) first = list[k];
    if (!ax_same_device(first->device, list[k]->device)) return false;
  }
  return first && first->device.kind != AX_CPU;
}

/* Fills box with the norm of the list, a 0-d tensor; where `wide` is not NULL it becomes the same
 * in float64, for the caller to release. */
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

/* core.clip_grad_norm_(params, max_norm, { norm_type = 2, error_if_nonfinite = false }) -> 0-d
 * tensor: the norm before clipping, on the gradients' device where they share one.  There the host
 * waits for nothing, unless error_if_nonfinite makes it look. */
static int clip_grad_norm_(lua_State *L)
{
  static const char fn[] = "clip_grad_norm_";
  static const char *const names[] = { "norm_type", "error_if_nonfinite" };
  double max_norm, p = 2, norm;
  bool strict = false, there;
  int n;
  ax_tensor **grads, **box, **wide;
  ax_status st;

  ax_bind_enter(L);
  lua_settop(L, 3);
  max_norm = ax_check_number(L, 2, fn, "max_norm");
  if (!(max_norm >= 0)) return ax_error(L, fn, "max_norm must be at least 0, got %g", max_norm);
  if (!lua_isnil(L, 3)) {
    if (!ax_is_options(L, 3, true)) return ax_arg_error(L, fn, 3, "options", "a table of options", 3);
    ax_check_options(L, 3, fn, names, 2);
    lua_getfield(L, 3, "norm_type");
    if (!lua_isnil(L, -1)) p = ax_check_number(L, -1, fn, "norm_type");
    lua_getfield(L, 3, "error_if_nonfinite");
    if (!lua_isnil(L, -1)) strict = ax_check_boolean(L, -1, fn, "error_if_nonfinite");
    lua_pop(L, 2);
  }
  grads = push_grads(L, 1, fn, &n);
  there = on_a_device(n, grads);
  wide = ax_push_box(L);
  box = ax_push_box(L);
  if (norm_into_box(n, grads, p, box, wide) != AX_OK) return ax_raise(L, fn);
  if (strict || !there) {
    if (ax_item(*wide, &norm) != AX_OK) return ax_raise(L, fn);
    if (strict && !isfinite(norm))
      return ax_error(L, fn, "the norm of the gradients is %g, so they cannot be clipped", norm);
  }
  if (there) st = ax_clip_all(n, grads, max_norm, *wide);
  /* also NaN, which spreads as in PyTorch */
  else st = max_norm / (norm + 1e-6) >= 1 ? AX_OK : ax_scale_all(n, grads, max_norm / (norm + 1e-6));
  return st == AX_OK ? 1 : ax_raise(L, fn);
}

/* core.gradients(params) -> which of them have a gradient, and the device: how many, where it is
 * none or all of them; else a string with a '1' or a '0' for each.  The device is nil where they
 * lie on several, or there are none. */
static int gradients(lua_State *L)
{
  ax_tensor **grads;
  const ax_tensor *first = NULL;
  char *text, name[16];
  bool one = true;
  int n, count = 0;

  ax_bind_enter(L);
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

/* core.unscale_grads_(params, scale, found): every gradient divided by scale; found becomes 1 where
 * one is then infinite or NaN */
static int unscale_grads_(lua_State *L)
{
  static const char fn[] = "unscale_grads_";
  ax_tensor **grads, *scale, *found;
  int n;

  ax_bind_enter(L);
  lua_settop(L, 3);
  scale = ax_check_tensor(L, 2, fn, "scale");
  found = ax_check_tensor(L, 3, fn, "found");
  grads = push_grads(L, 1, fn, &n);
  return ax_unscale_all(n, grads, scale, found) == AX_OK ? 0 : ax_raise(L, fn);
}

/* core.scale_update_(state, found, growth_factor, backoff_factor, growth_interval): see
 * ax_scale_update */
static int scale_update_(lua_State *L)
{
  static const char fn[] = "scale_update_";
  ax_tensor *state, *found;

  ax_bind_enter(L);
  state = ax_check_tensor(L, 1, fn, "state");
  found = ax_check_tensor(L, 2, fn, "found");
  const double growth = ax_check_number(L, 3, fn, "growth_factor"),
               backoff = ax_check_number(L, 4, fn, "backoff_factor");
  const int64_t interval = ax_check_integer(L, 5, fn, "growth_interval", 1, INT64_C(1) << 53);
  return ax_scale_update(state, found, growth, backoff, interval) == AX_OK ? 0 : ax_raise(L, fn);
}

/* core.scale_grads_(params, factor): every gradient times a number */
static int scale_grads_(lua_State *L)
{
  static const char fn[] = "scale_grads_";
  int n;
  ax_tensor **grads;
  ax_bind_enter(L);
  lua_settop(L, 2);
  const double factor = ax_check_number(L, 2, fn, "factor");
  grads = push_grads(L, 1, fn, &n);
  return ax_scale_all(n, grads, factor) == AX_OK ? 0 : ax_raise(L, fn);
}

/* core.clip_grad_value_(params, limit) */
static int clip_grad_value_(lua_State *L)
{
  static const char fn[] = "clip_grad_value_";
  int n;
  ax_tensor **grads;
  ax_bind_enter(L);
  lua_settop(L, 2);
  const double limit = ax_check_number(L, 2, fn, "clip_value");
  if (!(limit >= 0)) return ax_error(L, fn, "clip_value must be at least 0, got %g", limit);
  grads = push_grads(L, 1, fn, &n);
  return ax_clamp_all(n, grads, limit) == AX_OK ? 0 : ax_raise(L, fn);
}

/* core.grad_norm(params, p) -> number */
static int grad_norm(lua_State *L)
{
  double p, norm;
  int n;
  ax_tensor **grads;

  ax_bind_enter(L);
  p = lua_isnoneornil(L, 2) ? 2 : ax_check_number(L, 2, "grad_norm", "p");
  grads = push_grads(L, 1, "grad_norm", &n);
  if (ax_norm_all(n, grads, p, &norm) != AX_OK) return ax_raise(L, "grad_norm");
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

  ax_bind_enter(L);
  p = lua_isnoneornil(L, 2) ? 2 : ax_check_number(L, 2, fn, "norm_type");
  list = push_params(L, 1, fn, &n);
  box = ax_push_box(L);
  return norm_into_box(n, list, p, box, NULL) == AX_OK ? 1 : ax_raise(L, fn);
}

void ax_open_optim(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "optim_kinds", optim_kinds },
    { "optim_needs", optim_needs },
    { "optim_step", optim_step },
    { "optim_hyper", optim_hyper },
    { "gradients", gradients },
    { "capture_set_optim", capture_set_optim },
    { "clip_grad_norm_", clip_grad_norm_ },
    { "unscale_grads_", unscale_grads_ },
    { "scale_update_", scale_update_ },
    { "clip_grad_value_", clip_grad_value_ },
    { "scale_grads_", scale_grads_ },
    { "grad_norm", grad_norm },
    { "total_norm", total_norm },
    { NULL, NULL },
  };
  find_taken();
  ax_add_functions(L, functions);
}

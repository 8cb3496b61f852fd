/* bind/create.c: constructors.  Sizes are several numbers or one list; options are a table at the
 * end. */
#include "bind/bind.h"

#include <math.h>
#include <stdio.h>

typedef struct factory {
  ax_dtype dtype;
  bool has_dtype, requires_grad;
  ax_device device;
  ax_generator *gen;
} factory;

/* Puts parameters that the options name at their places before the options, the topmost value.
 * n: how many were given by place.  Returns how many there are now. */
static int take_named(lua_State *L, const char *fn, const char *const *param, int n)
{
  for (int i = 0; param[i]; i++) {
    lua_getfield(L, -1, param[i]);
    if (lua_isnil(L, -1)) {
      lua_pop(L, 1);
      continue;
    }
    if (i < n) return ax_lua_error(L, fn, "%s is given twice: as argument %d and by name", param[i], i + 1);
    if (i > n) return ax_lua_error(L, fn, "%s is given, but %s before it is not", param[i], param[n]);
    lua_insert(L, ++n);
  }
  return n;
}

enum { MOST_PARAMS = 3 };

/* Reads the options at the end, if there are any; returns the last index before them.  An empty
 * table counts as options only after more than `least` + 1 arguments: zeros({}) is a 0-d tensor.
 * param: the constructor's own parameters in their order, MOST_PARAMS at most, then NULL; the
 * options may name them. */
static int read_options(lua_State *L, const char *fn, const char *const *param, bool random, int least,
                        factory *f)
{
  static const char *const common[] = { "dtype", "device", "requires_grad", "generator" };
  const char *names[4 + MOST_PARAMS];
  const int shared = random ? 4 : 3;
  int last = lua_gettop(L), n = shared;

  if (last == 0 || !ax_lua_is_options(L, last, last > least + 1)) return last;
  luaL_checkstack(L, 12, fn);
  memcpy(names, common, (size_t)shared * sizeof *common);
  for (; param[n - shared]; n++) names[n] = param[n - shared];
  ax_lua_check_options(L, last, fn, names, n);
  last = take_named(L, fn, param, last - 1) + 1;
  lua_getfield(L, last, "dtype");
  if ((f->has_dtype = !lua_isnil(L, -1))) f->dtype = ax_lua_check_dtype(L, -1, fn, "dtype");
  lua_getfield(L, last, "device");
  if (!lua_isnil(L, -1)) f->device = ax_lua_check_device(L, -1, fn, "device");
  lua_getfield(L, last, "requires_grad");
  if (!lua_isnil(L, -1)) f->requires_grad = ax_lua_check_boolean(L, -1, fn, "requires_grad");
  lua_getfield(L, last, "generator");
  /* the options table holds it */
  if (random && !lua_isnil(L, -1)) f->gen = ax_lua_check_generator(L, -1, fn, "generator");
  lua_settop(L, last);
  return last - 1;
}

static const char *const x_param[] = { "x", NULL }, *const size_param[] = { "size", NULL };

/* The tensor that a _like form is given: the first argument, or x, also called input, of a table
 * that is the only one. */
static const ax_tensor *like_what(lua_State *L, const char *fn)
{
  const ax_tensor *x;

  while (lua_gettop(L) > 1 && lua_isnil(L, -1)) lua_pop(L, 1);
  if (lua_gettop(L) != 1 || !ax_lua_is_options(L, 1, false)) return ax_lua_check_tensor(L, 1, fn, "x");
  lua_getfield(L, 1, "input");
  if (!lua_isnil(L, -1)) ax_lua_rename_option(L, 1, fn, "input", "x");
  lua_settop(L, 1);
  lua_getfield(L, 1, "x");
  x = ax_lua_opt_tensor(L, -1, fn);
  if (!x) return ax_lua_arg_error(L, fn, 1, "x", "a tensor", lua_isnil(L, -1) ? 1 : -1), NULL;
  lua_pop(L, 1); /* the table holds it */
  return x;
}

static ax_tensor *push_zeros(lua_State *L, const char *fn, const factory *f, int ndim, const int64_t *shape)
{
  ax_tensor **box = ax_lua_push_box(L);
  if (ax_tensor_zeros_on(f->device, f->dtype, ndim, shape, box) != AX_OK) ax_lua_raise(L, fn);
  return *box;
}

static ax_tensor *push_new(lua_State *L, const char *fn, const factory *f, int ndim, const int64_t *shape)
{
  ax_tensor **box = ax_lua_push_box(L);
  if (ax_tensor_new_on(f->device, f->dtype, ndim, shape, box) != AX_OK) ax_lua_raise(L, fn);
  return *box;
}

static int finish(lua_State *L, const char *fn, const factory *f, ax_tensor *t)
{
  if (f->requires_grad && ax_set_requires_grad(t, true) != AX_OK) return ax_lua_raise(L, fn);
  return 1;
}

/* Of a tensor of the device meta there are no elements to write. */
static bool on_meta(const ax_tensor *t) { return t->device.kind == AX_DEVICE_KINDS; }

static void set_all(lua_State *L, const char *fn, ax_tensor *t, double v)
{
  if (!ax_number_fits((ax_dtype)t->dtype, v))
    ax_lua_error(L, fn, "%.14g does not fit %s", v, ax_dtype_name((ax_dtype)t->dtype));
  if (on_meta(t)) return;
  if (v == 0 && t->device.kind == AX_CPU && !signbit(v))
    memset(ax_data(t), 0, (size_t)t->numel * ax_itemsize(t));
  else if (ax_fill(t, v) != AX_OK) ax_lua_raise(L, fn);
}

/* Runs an op whose result fills a tensor that the caller made. */
static void run_into(lua_State *L, const char *fn, ax_op op, const ax_args *a, ax_tensor *t)
{
  if (ax_run_into(op, a, t) != AX_OK) ax_lua_raise(L, fn);
}

/* The parts of complex numbers are drawn one by one, into a view that is released at once. */
static void draw(lua_State *L, const char *fn, ax_op op, const ax_args *a, ax_tensor *t)
{
  ax_tensor *pairs = NULL;
  if (!ax_has_gradient((ax_dtype)t->dtype))
    ax_lua_error(L, fn, "expected a floating-point or complex element type, got %s",
                 ax_dtype_name((ax_dtype)t->dtype));
  if (!ax_is_complex((ax_dtype)t->dtype)) {
    run_into(L, fn, op, a, t);
    return;
  }
  ax_status st = ax_run1(AX_OP_VIEW_AS_REAL, t, &pairs);
  if (st == AX_OK) st = ax_run_into(op, a, pairs);
  ax_tensor_release(pairs);
  if (st != AX_OK) ax_lua_raise(L, fn);
}

static void uniform(lua_State *L, const char *fn, const factory *f, ax_tensor *t)
{
  const ax_args a = { .a = { .uniform = { .low = 0, .high = 1 }, .n_list = -1, .gen = f->gen } };
  draw(L, fn, AX_OP_UNIFORM, &a, t);
}

/* Of variance 1: 1/2 in each part of a complex number. */
static void normal(lua_State *L, const char *fn, const factory *f, ax_tensor *t)
{
  const double std = ax_is_complex((ax_dtype)t->dtype) ? 0.70710678118654752440 : 1;
  const ax_args a = { .a = { .normal = { .mean = 0, .std = std }, .n_list = -1, .gen = f->gen } };
  draw(L, fn, AX_OP_NORMAL, &a, t);
}

/* ---- zeros, ones, empty, rand, randn, and the _like forms */

typedef enum { MAKE_EMPTY, MAKE_ZEROS, MAKE_ONES, MAKE_RAND, MAKE_RANDN } maker;
static const char *const maker_names[] = { "empty", "zeros", "ones", "rand", "randn" };
static const char *const like_names[] = { "empty_like", "zeros_like", "ones_like", "rand_like",
                                          "randn_like" };

static int make(lua_State *L, const char *fn, maker m, const factory *f, int ndim, const int64_t *shape)
{
  const bool zeros = m == MAKE_ZEROS && f->device.kind != AX_DEVICE_KINDS;
  ax_tensor *t = (zeros ? push_zeros : push_new)(L, fn, f, ndim, shape);
  if (on_meta(t)) m = MAKE_EMPTY;
  switch (m) {
  case MAKE_EMPTY:
  case MAKE_ZEROS: break;
  case MAKE_ONES: set_all(L, fn, t, 1); break;
  case MAKE_RAND: uniform(L, fn, f, t); break;
  case MAKE_RANDN: normal(L, fn, f, t); break;
  }
  return finish(L, fn, f, t);
}

static int make_shape(lua_State *L)
{
  const maker m = (maker)lua_tointeger(L, lua_upvalueindex(1));
  factory f = { .dtype = ax_default_dtype, .device = ax_lua.device };
  int64_t shape[AX_MAX_DIMS];
  int last, n;

  ax_lua_enter(L);
  last = read_options(L, maker_names[m], size_param, m >= MAKE_RAND, 0, &f);
  n = ax_lua_check_sizes(L, 1, last, maker_names[m], shape);
  return make(L, maker_names[m], m, &f, n, shape);
}

static int make_like(lua_State *L)
{
  const maker m = (maker)lua_tointeger(L, lua_upvalueindex(1));
  const char *fn = like_names[m];
  const ax_tensor *x;
  factory f = { .dtype = ax_default_dtype, .device = ax_lua.device };
  int last;

  ax_lua_enter(L);
  x = like_what(L, fn);
  f.dtype = (ax_dtype)x->dtype;
  f.device = x->device;
  last = read_options(L, fn, x_param, m >= MAKE_RAND, 0, &f);
  if (last > 1) return ax_lua_arg_error(L, fn, 2, "options", "a table of options", 2);
  return make(L, fn, m, &f, x->ndim, x->shape);
}

/* ---- full */

static double fill_value(lua_State *L, int idx, const char *fn, factory *f, bool infer)
{
  const int type = lua_type(L, idx);
  if (type != LUA_TNUMBER && type != LUA_TBOOLEAN)
    return ax_lua_arg_error(L, fn, idx, "fill_value", "a number or a boolean", idx);
  if (infer && !f->has_dtype && type == LUA_TBOOLEAN) f->dtype = AX_BOOL;
  return type == LUA_TBOOLEAN ? lua_toboolean(L, idx) : lua_tonumber(L, idx);
}

/* full(shape, value): the default type for a number, bool for a boolean, unless a dtype is given */
static int full(lua_State *L)
{
  static const char *const params[] = { "size", "fill_value", NULL };
  factory f = { .dtype = ax_default_dtype, .device = ax_lua.device };
  int64_t shape[AX_MAX_DIMS];
  int last, n;
  double v;
  ax_tensor *t;

  ax_lua_enter(L);
  last = read_options(L, "full", params, false, 1, &f);
  if (last != 2) return ax_lua_error(L, "full", "expected a shape and a value, got %d arguments", last);
  n = ax_lua_check_sizes(L, 1, 1, "full", shape);
  v = fill_value(L, 2, "full", &f, true);
  t = push_new(L, "full", &f, n, shape);
  set_all(L, "full", t, v);
  return finish(L, "full", &f, t);
}

static int full_like(lua_State *L)
{
  static const char *const params[] = { "x", "fill_value", NULL };
  factory f = { .dtype = ax_default_dtype, .device = ax_lua.device };
  const ax_tensor *x;
  double v;
  ax_tensor *t;

  ax_lua_enter(L);
  x = like_what(L, "full_like");
  f.dtype = (ax_dtype)x->dtype;
  f.device = x->device;
  if (read_options(L, "full_like", params, false, 1, &f) != 2)
    return ax_lua_error(L, "full_like", "expected a tensor, a value and options, got %d argument%s",
                        lua_gettop(L), lua_gettop(L) == 1 ? "" : "s");
  v = fill_value(L, 2, "full_like", &f, false);
  t = push_new(L, "full_like", &f, x->ndim, x->shape);
  set_all(L, "full_like", t, v);
  return finish(L, "full_like", &f, t);
}

/* ---- sequences */

/* PyTorch's name of the end, a word of Lua: { ["end"] = 4 }. */
static void name_stop(lua_State *L, const char *fn)
{
  const int last = lua_gettop(L);

  if (last == 0 || !ax_lua_is_options(L, last, false)) return;
  lua_getfield(L, last, "end");
  if (!lua_isnil(L, -1)) ax_lua_rename_option(L, last, fn, "end", "stop");
  lua_settop(L, last);
}

/* Whether arange is given nothing but options that name stop and leave start out. */
static bool only_stop_is_named(lua_State *L)
{
  bool answer = false;

  if (lua_gettop(L) != 1 || !ax_lua_is_options(L, 1, false)) return false;
  lua_getfield(L, 1, "stop");
  if (!lua_isnil(L, -1)) {
    lua_getfield(L, 1, "start");
    answer = lua_isnil(L, -1);
  }
  lua_settop(L, 1);
  return answer;
}

/* arange(n), arange(start, stop), arange(start, stop, step): stop is not included; int64 when all
 * arguments are integral */
static int arange(lua_State *L)
{
  static const char *const params[] = { "start", "stop", "step", NULL };
  factory f = { .dtype = AX_I64, .device = ax_lua.device };
  double v[3] = { 0, 0, 1 }, count;
  int last;
  int64_t n, whole;
  ax_tensor *t;

  ax_lua_enter(L);
  name_stop(L, "arange");
  if (only_stop_is_named(L)) {
    lua_pushinteger(L, 0);
    lua_insert(L, 1);
  }
  last = read_options(L, "arange", params, false, 0, &f);
  if (last < 1 || last > 3)
    return ax_lua_error(L, "arange",
                        "expected (stop), (start, stop) or (start, stop, step), got %d arguments", last);
  for (int i = 1; i <= last; i++) {
    const double x = ax_lua_check_number(L, i, "arange",
                                         last == 1 || i == 2 ? "stop"
                                         : i == 1            ? "start"
                                                             : "step");
    if (!isfinite(x)) return ax_lua_arg_error(L, "arange", i, NULL, "a finite number", i);
    if (!f.has_dtype && !ax_lua_to_integer(L, i, &whole)) f.dtype = ax_default_dtype;
    v[last == 1 ? 1 : i - 1] = x;
  }
  if (v[2] == 0) return ax_lua_error(L, "arange", "step must not be 0");
  if (v[2] > 0 ? v[1] < v[0] : v[1] > v[0])
    return ax_lua_error(L, "arange", "from %g to %g is empty with a step of %g; give it the other sign", v[0],
                        v[1], v[2]);
  count = ceil((v[1] - v[0]) / v[2]);
  if (count > 0x1p53) return ax_lua_error(L, "arange", "%g elements are too many", count);
  n = (int64_t)count;
  if (n > 0 && !ax_is_float(f.dtype) && f.dtype != AX_BOOL)
    for (int i = 0; i < 2; i++) {
      const double end = i ? v[0] + (double)(n - 1) * v[2] : v[0];
      if (!ax_lua_number_fits(f.dtype, trunc(end)))
        return ax_lua_error(L, "arange", "%g does not fit %s", end, ax_dtype_name(f.dtype));
    }
  t = push_new(L, "arange", &f, 1, &n);
  run_into(L, "arange", AX_OP_ARANGE, &(ax_args){ .a = AX_ATTRS(arange, .start = v[0], .step = v[2]) }, t);
  return finish(L, "arange", &f, t);
}

/* A CPU tensor of f's type and the given shape, for constructors that write elements themselves;
 * `land` copies it to the device. */
static ax_tensor *push_draft(lua_State *L, const char *fn, const factory *f, int ndim, const int64_t *shape)
{
  factory here = *f;
  here.device = (ax_device){ AX_CPU, 0 };
  return push_new(L, fn, &here, ndim, shape);
}

static int land(lua_State *L, const char *fn, const factory *f, ax_tensor *draft)
{
  if (f->device.kind != AX_CPU) {
    ax_tensor *t = push_new(L, fn, f, draft->ndim, draft->shape);
    if (ax_copy(t, draft) != AX_OK) return ax_lua_raise(L, fn);
    draft = t;
  }
  return finish(L, fn, f, draft);
}

/* n elements of a line in float32: at + step i, for i from `first` in steps of 1 or -1.  Eight
 * numbers i at a time are made of one: compilers convert integers to double one by one. */
static void fill_floats(float *y, int64_t n, double at, double step, int64_t first, int by)
{
  static const double next[2][8] = { { 0, 1, 2, 3, 4, 5, 6, 7 }, { 0, -1, -2, -3, -4, -5, -6, -7 } };
  const double *const more = next[by < 0];
  int64_t k = 0;

  for (; k + 8 <= n; k += 8) {
    const double i = (double)(first + by * k);
    for (int j = 0; j < 8; j++) y[k + j] = (float)(at + step * (i + more[j]));
  }
  for (; k < n; k++) y[k] = (float)(at + step * (double)(first + by * k));
}

/* n elements from start to stop.  Either half is counted from its end, so that both are exact.
 * Integers are cut off, as in PyTorch. */
static void fill_line(ax_dtype d, void *data, int64_t n, double start, double stop)
{
  const double step = n > 1 ? (stop - start) / (double)(n - 1) : 0;
  const int64_t half = (n + 1) / 2;

  if (d == AX_F32) {
    fill_floats(data, half, start, step, 0, 1);
    fill_floats((float *)data + half, n - half, stop, -step, n - 1 - half, -1);
    return;
  }
  for (int64_t i = 0; i < n; i++)
    ax_store_double(d, data, i, i < half ? start + step * (double)i : stop - step * (double)(n - 1 - i));
}

/* linspace(start, stop, steps): both ends are included and exact */
static int linspace(lua_State *L)
{
  static const char *const params[] = { "start", "stop", "steps", NULL };
  factory f = { .dtype = ax_default_dtype, .device = ax_lua.device };
  double start, stop;
  int64_t n;
  ax_tensor *t;

  ax_lua_enter(L);
  name_stop(L, "linspace");
  if (read_options(L, "linspace", params, false, 2, &f) != 3)
    return ax_lua_error(L, "linspace", "expected (start, stop, steps) and options, got %d argument%s",
                        lua_gettop(L), lua_gettop(L) == 1 ? "" : "s");
  start = ax_lua_check_number(L, 1, "linspace", "start");
  stop = ax_lua_check_number(L, 2, "linspace", "stop");
  n = ax_lua_check_integer(L, 3, "linspace", "steps", 0, INT64_C(1) << 40);
  if (f.dtype == AX_BOOL)
    return ax_lua_error(L, "linspace", "expected an element type of numbers, got %s", ax_dtype_name(f.dtype));
  if (!ax_is_float(f.dtype) && !ax_is_complex(f.dtype)) {
    start = trunc(start), stop = trunc(stop);
    if (!ax_lua_number_fits(f.dtype, start) || !ax_lua_number_fits(f.dtype, stop))
      return ax_lua_error(L, "linspace", "values from %.14g to %.14g do not fit %s", start, stop,
                          ax_dtype_name(f.dtype));
  }
  t = push_draft(L, "linspace", &f, 1, &n);
  fill_line(f.dtype, ax_data(t), n, start, stop);
  return land(L, "linspace", &f, t);
}

/* eye(n), eye(n, m) */
static int eye(lua_State *L)
{
  static const char *const params[] = { "n", "m", NULL };
  factory f = { .dtype = ax_default_dtype, .device = ax_lua.device };
  int64_t shape[2];
  int last;
  ax_tensor *t;

  ax_lua_enter(L);
  last = read_options(L, "eye", params, false, 0, &f);
  if (last < 1 || last > 2) return ax_lua_error(L, "eye", "expected (n) or (n, m), got %d arguments", last);
  shape[0] = ax_lua_check_integer(L, 1, "eye", "n", 0, INT64_C(1) << 53);
  shape[1] = last == 2 ? ax_lua_check_integer(L, 2, "eye", "m", 0, INT64_C(1) << 53) : shape[0];
  t = push_draft(L, "eye", &f, 2, shape);
  set_all(L, "eye", t, 0);
  for (int64_t i = 0; i < shape[0] && i < shape[1]; i++)
    ax_store_double(f.dtype, ax_data(t), i * shape[1] + i, 1);
  return land(L, "eye", &f, t);
}

/* ---- random integers */

/* Whether randint's first argument is low: that is known by what is given by place and by name. */
static bool low_comes_first(lua_State *L)
{
  const int top = lua_gettop(L);
  bool low, high;

  if (top == 0 || !ax_lua_is_options(L, top, top > 3)) return top >= 2 && !lua_istable(L, 2);
  lua_getfield(L, top, "low");
  lua_getfield(L, top, "high");
  low = !lua_isnil(L, -2);
  high = !lua_isnil(L, -1);
  lua_settop(L, top);
  return low || (high && top > 1) || (top > 2 && !lua_istable(L, 2));
}

/* randint(low, high, size), randint(high, size): low <= value < high; int64 unless a dtype is
 * given */
static int randint(lua_State *L)
{
  static const char *const params[] = { "low", "high", "size", NULL };
  factory f = { .dtype = AX_I64, .device = ax_lua.device }, drawn;
  int64_t shape[AX_MAX_DIMS], low = 0, high;
  int last, n, first;
  ax_tensor *t;

  ax_lua_enter(L);
  first = low_comes_first(L) ? 3 : 2;
  last = read_options(L, "randint", first == 3 ? params : params + 1, true, 2, &f);
  if (last < 2)
    return ax_lua_error(L, "randint", "expected (low, high, shape) or (high, shape), got %d arguments", last);
  if (first == 3) low = ax_lua_check_integer(L, 1, "randint", "low", -(INT64_C(1) << 53), INT64_C(1) << 53);
  high = ax_lua_check_integer(L, first - 1, "randint", "high", -(INT64_C(1) << 53), INT64_C(1) << 53);
  if (low >= high)
    return ax_lua_error(L, "randint", "low (%lld) must be below high (%lld)", (long long)low,
                        (long long)high);
  if (f.dtype == AX_BOOL
          ? low < 0 || high > 2
          : !ax_lua_number_fits(f.dtype, (double)low) || !ax_lua_number_fits(f.dtype, (double)(high - 1)))
    return ax_lua_error(L, "randint", "values from %lld to %lld do not fit %s", (long long)low,
                        (long long)high - 1, ax_dtype_name(f.dtype));
  if (last < first)
    return ax_lua_error(L, "randint", "argument %d (shape): expected sizes, or a list of them, got nothing",
                        first);
  n = ax_lua_check_sizes(L, first, last, "randint", shape);
  drawn = f;
  if (f.dtype == AX_BOOL) drawn.dtype = AX_U8;
  t = push_new(L, "randint", &drawn, n, shape);
  run_into(L, "randint", AX_OP_RANDINT,
           &(ax_args){ .a = { .randint = { .low = low, .high = high }, .n_list = -1, .gen = f.gen } }, t);
  if (f.dtype == AX_BOOL) {
    ax_tensor *flags = push_new(L, "randint", &f, n, shape);
    if (ax_copy(flags, t) != AX_OK) return ax_lua_raise(L, "randint");
    t = flags;
  }
  return finish(L, "randint", &f, t);
}

static int randperm(lua_State *L)
{
  static const char *const params[] = { "n", NULL };
  factory f = { .dtype = AX_I64, .device = ax_lua.device };
  int64_t n;
  ax_tensor *t;

  ax_lua_enter(L);
  if (read_options(L, "randperm", params, true, 0, &f) != 1)
    return ax_lua_error(L, "randperm", "expected (n) and options, got %d argument%s", lua_gettop(L),
                        lua_gettop(L) == 1 ? "" : "s");
  n = ax_lua_check_integer(L, 1, "randperm", "n", 0, INT64_C(1) << 40);
  if (f.dtype != AX_I64) return ax_lua_error(L, "randperm", "expected int64, got %s", ax_dtype_name(f.dtype));
  t = push_new(L, "randperm", &f, 1, &n);
  run_into(L, "randperm", AX_OP_RANDPERM,
           &(ax_args){ .a = { .randperm = { .n = n }, .n_list = -1, .gen = f.gen } }, t);
  return finish(L, "randperm", &f, t);
}

void ax_lua_open_create(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "full", full }, { "full_like", full_like }, { "arange", arange },     { "linspace", linspace },
    { "eye", eye },   { "randint", randint },     { "randperm", randperm }, { NULL, NULL },
  };
  ax_lua_add_functions(L, functions);
  for (int m = MAKE_EMPTY; m <= MAKE_RANDN; m++) {
    lua_pushinteger(L, m);
    lua_pushcclosure(L, make_shape, 1);
    lua_setfield(L, -2, maker_names[m]);
    lua_pushinteger(L, m);
    lua_pushcclosure(L, make_like, 1);
    lua_setfield(L, -2, like_names[m]);
  }
}

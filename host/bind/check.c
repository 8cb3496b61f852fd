/* check.c: messages, and checks of single values, options and sizes. */
#include "bind/bind.h"
#include "bind/where.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define EXACT 9007199254740992.0 /* 2^53: doubles beyond it skip integers */

/* ---- messages */

/* Chooses between two equally near names: the one that begins with the given letter, else the later
 * in the alphabet ("Conv2d" for "Conv3d").  The order of the list does not matter. */
static bool better(const char *given, const char *a, const char *b)
{
  const bool first = a[0] == given[0], second = b[0] == given[0];
  return first != second ? first : strcmp(a, b) > 0;
}

const char *ax_lua_nearest(const char *given, const char *const *names, int n)
{
  const char *best = NULL;
  const int length = (int)strlen(given);
  int least = length < 5 ? 1 : (length + 1) / 3; /* longer names may have more wrong letters */

  for (int i = 0; i < n; i++) {
    const int d = ax_word_distance(given, names[i]);
    if (d >= length || d > least || (d == least && best && !better(given, names[i], best))) continue;
    least = d;
    best = names[i];
  }
  return best;
}

const char *ax_lua_describe(lua_State *L, int idx)
{
  char shape[192];
  ax_tensor **box;

  if (idx < 0 && idx > LUA_REGISTRYINDEX) idx += lua_gettop(L) + 1;
  switch (lua_type(L, idx)) {
  case LUA_TNONE: return lua_pushliteral(L, "nothing"), lua_tostring(L, -1);
  case LUA_TSTRING:
    if (lua_objlen(L, idx) > 40)
      return lua_pushfstring(L, "string \"%s...\"",
                             (lua_pushlstring(L, lua_tostring(L, idx), 37), lua_tostring(L, -1)));
    return lua_pushfstring(L, "string \"%s\"", lua_tostring(L, idx));
  case LUA_TNUMBER: return lua_pushfstring(L, "number %f", lua_tonumber(L, idx));
  case LUA_TBOOLEAN: return lua_pushfstring(L, "boolean %s", lua_toboolean(L, idx) ? "true" : "false");
  case LUA_TTABLE:
    /* a class that says itself what to do about it */
    if (luaL_getmetafield(L, idx, "__described")) return lua_tostring(L, -1);
    if (luaL_getmetafield(L, idx, "__name")) { /* an object of a class */
      const char *name = lua_tostring(L, -1);
      if (name) return lua_pushfstring(L, strchr("AEIOU", name[0]) ? "an %s" : "a %s", name);
      lua_pop(L, 1);
    }
    if (ax_lua_is_options(L, idx, false)) {
      lua_pushnil(L);
      lua_next(L, idx);
      lua_pop(L, 1);
      return lua_type(L, -1) == LUA_TSTRING
                 ? lua_pushfstring(L, "a table with the key \"%s\"", lua_tostring(L, -1))
                 : "a table";
    }
    if (lua_objlen(L, idx) == 0) return lua_pushliteral(L, "an empty table"), lua_tostring(L, -1);
    return lua_pushfstring(L, "a list of %d", (int)lua_objlen(L, idx));
  case LUA_TUSERDATA:
    if ((box = ax_lua_to_box(L, idx))) {
      if (!*box) return lua_pushliteral(L, "a tensor that was released"), lua_tostring(L, -1);
      return lua_pushfstring(L, "tensor %s %s", ax_dtype_name((ax_dtype)(*box)->dtype),
                             ax_shape_text((*box)->ndim, (*box)->shape, shape, sizeof shape));
    } /* fall through */
  default: return lua_pushstring(L, luaL_typename(L, idx)), lua_tostring(L, -1);
  }
}

/* Pushes "train.lua:12: ", the innermost line of the user's own code: an error inside
 * lua/accelerate is reported at the call that led there. */
static void push_where(lua_State *L)
{
  char where[256] = "";
  ax_lua_where(L, where, sizeof where);
  if (where[0]) lua_pushfstring(L, "%s: ", where);
  else luaL_where(L, 1);
}

int ax_lua_error(lua_State *L, const char *fn, const char *fmt, ...)
{
  char text[1024];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  ax_text_clean(text);
  push_where(L);
  lua_pushfstring(L, "%s: %s", ax_lua_called(L, fn), text);
  lua_concat(L, 2);
  return lua_error(L);
}

/* The op of this name, in place or not; or AX_OP_COUNT. */
static int op_named(const char *name, size_t n)
{
  for (int k = 0; k < AX_OP_COUNT; k++) {
    const size_t m = strlen(ax_ops[k].name);
    if ((m == n || (m + 1 == n && name[m] == '_')) && strncmp(ax_ops[k].name, name, m) == 0) return k;
  }
  return AX_OP_COUNT;
}
/* copy_: what messages call the op _copy, which fill_ and zero_ run too. */
static bool names_op(const char *name, size_t n)
{
  return op_named(name, n) < AX_OP_COUNT || (n == 5 && strncmp(name, "copy_", 5) == 0);
}

/* Whether fn, where it is an op, has a type among its arguments. */
static bool takes_dtype(const char *fn)
{
  const int op = op_named(fn, strlen(fn));
  if (op == AX_OP_COUNT) return true;
  const ax_signature *sig = ax_signature_of((ax_op)op);
  for (int k = 0; k < sig->n; k++)
    if (sig->param[k].kind == AX_P_DTYPE) return true;
  return false;
}

/* What to write for a type or a device among positional arguments, as PyTorch's calls never have
 * them (but for x.view(dtype)); or "". */
static const char *as_option(lua_State *L, const char *fn, int idx)
{
  const char *text = lua_type(L, idx) == LUA_TSTRING ? lua_tostring(L, idx) : "";
  const bool device = strcmp(text, "cpu") == 0 || strncmp(text, "cuda", 4) == 0;
  ax_dtype dtype;

  if (!device && ax_dtype_parse(text, &dtype) != AX_OK) return "";
  if (!takes_dtype(fn)) return lua_pushfstring(L, "; x:to(\"%s\") %s", text, device ? "moves" : "converts");
  return lua_pushfstring(L, "; it is an option: { %s = \"%s\" }", device ? "device" : "dtype", text);
}

const char *ax_lua_uncalled(lua_State *L, const char *expected, int idx)
{
  return lua_isfunction(L, idx) && strstr(expected, "tensor") ? "; a method is called, as in x:abs()" : "";
}

/* arg 0: `name` alone says what the value is (an option). */
int ax_lua_arg_error(lua_State *L, const char *fn, int arg, const char *name, const char *expected, int idx)
{
  const char *option = arg > 0 ? as_option(L, fn, idx) : "", *got = ax_lua_describe(L, idx);
  if (!*option) option = ax_lua_uncalled(L, expected, idx);
  if (arg > 0 && name)
    return ax_lua_error(L, fn, "argument %d (%s): expected %s, got %s%s", arg, name, expected, got, option);
  if (arg > 0) return ax_lua_error(L, fn, "argument %d: expected %s, got %s%s", arg, expected, got, option);
  return ax_lua_error(L, fn, "%s: expected %s, got %s%s", name ? name : "value", expected, got, option);
}

const char *ax_lua_check_path(lua_State *L, const char *fn)
{
  size_t n;
  const char *path;
  if (lua_type(L, 1) != LUA_TSTRING) ax_lua_arg_error(L, fn, 1, "path", "a string", 1);
  path = lua_tolstring(L, 1, &n);
  if (n == 0 || strlen(path) != n)
    ax_lua_error(L, fn, "the path is %s", n == 0 ? "empty" : "not a file name: it has a NUL in it");
  return path;
}

/* ---- errors that mean "out of memory", after which find_executable_batch_size tries again */

enum { FULL_KEPT = 4, FULL_TEXT = 256 };
static _Thread_local char full[FULL_KEPT][FULL_TEXT]; /* the messages of the last such errors */
static _Thread_local int full_next;

static void remember_full(const char *message)
{
  snprintf(full[full_next], FULL_TEXT, "%s", message);
  full_next = (full_next + 1) % FULL_KEPT;
}

/* core._out_of_memory(text) -> whether `text` contains the message of one of this thread's last
 * errors about memory */
int ax_lua_out_of_memory(lua_State *L)
{
  const char *text = luaL_checkstring(L, 1);
  bool found = false;
  for (int i = 0; i < FULL_KEPT && !found; i++) found = full[i][0] && strstr(text, full[i]);
  lua_pushboolean(L, found);
  return 1;
}

/* Returns the message without the names of inner ops at its beginning, such as "mm: " where the op
 * that the user called runs a product inside, or "copy_: " where zero_ does.  inner: what the
 * function itself is called. */
static const char *without_inner_name(const char *message, const char *where, const char *inner)
{
  const size_t called = strlen(where), own = strlen(inner);
  if (strcmp(where, inner) != 0) {
    if (strncmp(message, inner, own) == 0 && strncmp(message + own, ": ", 2) == 0) message += own + 2;
  } else if (!names_op(where, called) && where[called - 1] != '_') return message;
  for (;;) {
    const size_t n = strcspn(message, ":");
    if (strncmp(message + n, ": ", 2) != 0 || (n == called && strncmp(message, where, n) == 0) ||
        !names_op(message, n))
      return message;
    message += n + 2;
  }
}

int ax_lua_raise(lua_State *L, const char *where)
{
  const char *message = ax_last_error(), *const inner = where;
  size_t n;

  if (ax_lua.raised) { /* a Lua hook or gradient function raised: pass its error on unchanged */
    ax_lua.raised = false;
    lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_error);
    lua_pushboolean(L, 0);
    lua_rawseti(L, LUA_REGISTRYINDEX, ax_lua.ref_error);
    return lua_error(L);
  }
  /* a wait that an interrupt ended: this error is the interrupt's */
  if (ax_last_status() == AX_EABORTED && &ax_interrupted) ax_interrupted = 0;
  push_where(L);
  if (where) where = ax_lua_called(L, where);
  n = where ? strlen(where) : 0;
  if (n) message = without_inner_name(message, where, inner);
  if (ax_last_status() == AX_ENOMEM) remember_full(message);
  if (n && !(strncmp(message, where, n) == 0 && message[n] == ':'))
    lua_pushfstring(L, "%s: %s", where, message);
  else lua_pushstring(L, message);
  lua_concat(L, 2);
  return lua_error(L);
}

/* ---- single values */

bool ax_lua_to_integer(lua_State *L, int idx, int64_t *out)
{
  if (lua_type(L, idx) != LUA_TNUMBER) return false;
  const double v = lua_tonumber(L, idx);
  if (!(v >= -EXACT && v <= EXACT) || v != floor(v)) return false; /* NaN fails the first test */
  *out = (int64_t)v;
  return true;
}

int64_t ax_lua_check_integer(lua_State *L, int idx, const char *fn, const char *name, int64_t least,
                             int64_t most)
{
  int64_t v = 0;
  const bool named = lua_gettop(L) > 0 && idx < 0;
  if (!ax_lua_to_integer(L, idx, &v))
    return ax_lua_arg_error(L, fn, named ? 0 : idx, name, "an integer", idx);
  if (v < least || v > most) {
    if (most >= (int64_t)EXACT)
      return ax_lua_error(L, fn, "%s: expected an integer of at least %lld, got %lld", name, (long long)least,
                          (long long)v);
    return ax_lua_error(L, fn, "%s: expected an integer from %lld to %lld, got %lld", name, (long long)least,
                        (long long)most, (long long)v);
  }
  return v;
}

double ax_lua_check_number(lua_State *L, int idx, const char *fn, const char *name)
{
  if (lua_type(L, idx) != LUA_TNUMBER)
    return ax_lua_arg_error(L, fn, idx < 0 ? 0 : idx, name, "a number", idx);
  return lua_tonumber(L, idx);
}

bool ax_lua_check_boolean(lua_State *L, int idx, const char *fn, const char *name)
{
  if (lua_type(L, idx) != LUA_TBOOLEAN)
    return ax_lua_arg_error(L, fn, idx < 0 ? 0 : idx, name, "a boolean", idx);
  return lua_toboolean(L, idx);
}

static const char *const dtype_names[] = {
#define DTYPE(ID, name, ...) #name,
#include "core/dtype.def"
#undef DTYPE
};

/* PyTorch's other names of types: torch.float is float32. */
static const struct {
  const char *name;
  ax_dtype dtype;
} other_names[] = {
  { "float", AX_F32 }, { "double", AX_F64 }, { "half", AX_F16 },   { "long", AX_I64 },
  { "int", AX_I32 },   { "byte", AX_U8 },    { "cfloat", AX_C64 }, { "cdouble", AX_C128 },
};

const char *ax_lua_nearest_dtype(const char *given)
{
  const char *name = strncmp(given, "torch.", 6) == 0 ? given + 6 : given;

  for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++)
    if (strcmp(other_names[i].name, name) == 0) return ax_dtype_name(other_names[i].dtype);
  for (int d = 0; d < AX_DTYPE_COUNT; d++)
    if (strcmp(dtype_names[d], name) == 0) return dtype_names[d];
  return ax_lua_nearest(given, dtype_names, AX_DTYPE_COUNT);
}

const char *ax_lua_dtype_list(void)
{
  return ""
#define DTYPE(ID, name, ...) #name " "
#include "core/dtype.def"
#undef DTYPE
      ;
}

ax_dtype ax_lua_check_dtype(lua_State *L, int idx, const char *fn, const char *name)
{
  ax_dtype d = AX_F32;
  if (lua_type(L, idx) != LUA_TSTRING)
    return ax_lua_arg_error(L, fn, idx < 0 ? 0 : idx, name, "the name of an element type", idx), d;
  if (ax_dtype_parse(lua_tostring(L, idx), &d) != AX_OK) {
    const char *near = ax_lua_nearest_dtype(lua_tostring(L, idx));
    if (near)
      ax_lua_error(L, fn, "%s: there is no element type \"%s\"; did you mean \"%s\"?", name,
                   lua_tostring(L, idx), near);
    ax_lua_error(L, fn, "%s: %s", name, ax_last_error());
  }
  return d;
}

bool ax_lua_device_parse(const char *text, ax_device *out)
{
  char *end;
  long index;
  *out = (ax_device){ AX_CPU, 0 };
  if (strcmp(text, "cpu") == 0) return true;
  if (strcmp(text, "meta") == 0) {
    out->kind = AX_DEVICE_KINDS; /* AX_META (core/device/meta.h) */
    return true;
  }
  if (strncmp(text, "cuda", 4) != 0) return false;
  out->kind = AX_CUDA;
  if (text[4] == '\0') return true;
  if (text[4] != ':' || text[5] < '0' || text[5] > '9') return false;
  index = strtol(text + 5, &end, 10);
  out->index = (uint8_t)index;
  return *end == '\0' && index <= 255;
}

const char *ax_lua_device_hint(const char *given)
{
  const bool gpu = strncasecmp(given, "gpu", 3) == 0 || strncasecmp(given, "cuda", 4) == 0;
  return gpu ? "; did you mean \"cuda\"?" : "";
}

ax_device ax_lua_check_device(lua_State *L, int idx, const char *fn, const char *name)
{
  ax_device d = { AX_CPU, 0 };
  const ax_backend *backend;
  if (lua_type(L, idx) != LUA_TSTRING)
    return ax_lua_arg_error(L, fn, idx < 0 ? 0 : idx, name, "a device such as \"cpu\"", idx), d;
  if (!ax_lua_device_parse(lua_tostring(L, idx), &d))
    ax_lua_error(L, fn, "%s: expected \"cpu\", \"cuda\" or \"cuda:N\", got \"%s\"%s", name,
                 lua_tostring(L, idx), ax_lua_device_hint(lua_tostring(L, idx)));
  if (d.kind != AX_CPU && d.kind != AX_DEVICE_KINDS && ax_backend_of(d, &backend) != AX_OK)
    ax_lua_raise(L, fn);
  return d;
}

int64_t ax_lua_check_position(lua_State *L, int idx, const char *fn, const char *name, int64_t size)
{
  int64_t p = 0;
  if (!ax_lua_to_integer(L, idx, &p))
    return ax_lua_arg_error(L, fn, idx < 0 ? 0 : idx, name, "an integer", idx);
  const int64_t at = ax_lua_position(p, size);
  if (p == 0) return ax_lua_error(L, fn, "%s: positions count from 1 (and from -1 backward); got 0", name);
  if (at < 0 || at >= size)
    return ax_lua_error(L, fn, "%s: %lld is out of range for size %lld", name, (long long)p, (long long)size);
  return at;
}

/* Raises the error of method `fn` called without its object, with '.' in place of ':'.  `noun`: how
 * to call the object. */
static int refuse_self(lua_State *L, const char *what, const char *noun, const char *fn)
{
  const int count = lua_gettop(L);
  lua_getglobal(L, "require");
  lua_pushliteral(L, "accelerate.messages.methods");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "refuse");
  lua_pushstring(L, what);
  lua_pushstring(L, noun);
  lua_pushstring(L, fn);
  if (count > 0) lua_pushvalue(L, 1);
  else lua_pushnil(L);
  lua_pushboolean(L, count == 0);
  lua_call(L, 5, 0);
  return 0;
}

ax_generator *ax_lua_check_generator(lua_State *L, int idx, const char *fn, const char *name)
{
  ax_generator *g = ax_lua_to_generator(L, idx);
  if (!g && strcmp(name, "self") == 0) refuse_self(L, "Generator", "generator", fn);
  if (!g) ax_lua_arg_error(L, fn, idx < 0 ? 0 : idx, name, "a Generator", idx);
  return g;
}

ax_tensor *ax_lua_opt_tensor(lua_State *L, int idx, const char *fn)
{
  ax_tensor **box = ax_lua_to_box(L, idx);
  if (!box) return NULL;
  if (!*box)
    ax_lua_error(
        L, fn, "this tensor was released (by core.release, or at the end of a scope that did not return it)");
  return *box;
}

ax_tensor *ax_lua_check_tensor(lua_State *L, int idx, const char *fn, const char *name)
{
  ax_tensor *t = ax_lua_opt_tensor(L, idx, fn);
  if (!t && name && strcmp(name, "self") == 0) refuse_self(L, "tensor", "x", fn);
  if (!t) ax_lua_arg_error(L, fn, idx < 0 ? 0 : idx, name, "a tensor", idx);
  return t;
}

/* ---- tables */

bool ax_lua_is_options(lua_State *L, int idx, bool empty_counts)
{
  if (!lua_istable(L, idx)) return false;
  if (lua_getmetatable(L, idx)) { /* an object of a class is not a plain table */
    lua_pop(L, 1);
    return false;
  }
  if (lua_objlen(L, idx) > 0) return false; /* a list, whatever else it holds */
  if (idx < 0) idx += lua_gettop(L) + 1;
  lua_pushnil(L);
  if (!lua_next(L, idx)) return empty_counts;
  lua_pop(L, 2);
  return true;
}

/* Pushes what is written in place of an option of PyTorch's, or nil. */
static const char *push_instead(lua_State *L, const char *option)
{
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_require);
  lua_pushliteral(L, "accelerate.messages.elsewhere");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "OPTIONS");
  lua_getfield(L, -1, option);
  return lua_tostring(L, -1);
}

void ax_lua_check_options(lua_State *L, int idx, const char *fn, const char *const *names, int n)
{
  if (idx < 0) idx += lua_gettop(L) + 1;
  lua_pushnil(L);
  while (lua_next(L, idx)) {
    bool known = false;
    lua_pop(L, 1);
    if (lua_type(L, -1) != LUA_TSTRING)
      ax_lua_error(L, fn, "options: expected names as keys, got %s", ax_lua_describe(L, -1));
    for (int i = 0; i < n && !known; i++) known = strcmp(lua_tostring(L, -1), names[i]) == 0;
    if (!known) {
      const char *given = lua_tostring(L, -1), *near = ax_lua_nearest(given, names, n);
      const char *instead = push_instead(L, given);
      luaL_Buffer b;
      if (instead) ax_lua_error(L, fn, "there is no option \"%s\"; %s", given, instead);
      if (near) ax_lua_error(L, fn, "there is no option \"%s\"; did you mean \"%s\"?", given, near);
      if (n == 0) ax_lua_error(L, fn, "there is no option \"%s\": it takes none", given);
      luaL_buffinit(L, &b);
      for (int i = 0; i < n; i++) {
        if (i) luaL_addstring(&b, ", ");
        luaL_addstring(&b, names[i]);
      }
      luaL_pushresult(&b);
      ax_lua_error(L, fn, "there is no option \"%s\"; there are %s", given, lua_tostring(L, -1));
    }
  }
}

/* Of a list without holes nothing comes after the last entry, unless entries are kept as keys are.
 * An entry 0 comes before the first. */
bool ax_lua_ends_with_list(lua_State *L, int idx)
{
  const int n = (int)lua_objlen(L, idx);
  bool zeroth;

  lua_rawgeti(L, idx, 0);
  zeroth = !lua_isnil(L, -1);
  lua_pop(L, 1);
  if (zeroth) return false;
  if (n > 0) lua_pushinteger(L, n);
  else lua_pushnil(L);
  if (!lua_next(L, idx)) return true;
  lua_pop(L, 2);
  return false;
}

/* {1, 2, keepdim = true} mixes a list and options. */
void ax_lua_check_list(lua_State *L, int idx, const char *fn, const char *name)
{
  const int n = (int)lua_objlen(L, idx);
  int keys = 0;

  luaL_checkstack(L, 4, fn);
  lua_pushnil(L);
  while (lua_next(L, idx)) {
    if (lua_type(L, -2) == LUA_TSTRING)
      ax_lua_error(L, fn,
                   "%s: a list must not hold named entries (\"%s\"); give options in a table of their own",
                   name, lua_tostring(L, -2));
    if (lua_type(L, -2) != LUA_TNUMBER || lua_tonumber(L, -2) < 1)
      ax_lua_error(L, fn, "%s: expected a list, got a table with the key %s%s", name, ax_lua_describe(L, -2),
                   lua_type(L, -2) == LUA_TNUMBER ? "; entries count from 1" : "");
    keys++;
    lua_pop(L, 1);
  }
  for (int i = 1; keys != n; i++) {
    lua_rawgeti(L, idx, i);
    if (lua_isnil(L, -1)) ax_lua_error(L, fn, "%s: the list has holes: entry %d is nil", name, i);
    lua_pop(L, 1);
  }
}

/* A list of integers. */
int ax_lua_read_list(lua_State *L, int idx, const char *fn, const char *name, int arg, int64_t *out)
{
  const int n = (int)lua_objlen(L, idx);

  ax_lua_check_list(L, idx, fn, name);
  if (n > AX_MAX_DIMS)
    return ax_lua_error(L, fn, "%s: a list of %d, but tensors have at most %d dims", name, n, AX_MAX_DIMS);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, idx, i + 1);
    if (!ax_lua_to_integer(L, -1, &out[i])) {
      lua_pushfstring(L, "%s, entry %d", name, i + 1);
      return ax_lua_arg_error(L, fn, arg, lua_tostring(L, -1), "an integer", -2);
    }
    lua_pop(L, 1);
  }
  return n;
}

int ax_lua_check_sizes(lua_State *L, int first, int last, const char *fn, int64_t *shape)
{
  int n = 0;
  if (last == first && lua_istable(L, first)) n = ax_lua_read_list(L, first, fn, "shape", first, shape);
  else {
    if (last < first)
      return ax_lua_error(L, fn, "argument 1 (shape): expected sizes, or a list of them, got nothing");
    if (last - first + 1 > AX_MAX_DIMS)
      return ax_lua_error(L, fn, "%d sizes given, but tensors have at most %d dims", last - first + 1,
                          AX_MAX_DIMS);
    if (last > first && lua_istable(L, first))
      return ax_lua_arg_error(L, fn, first + 1, NULL, "a table of options behind the list of sizes",
                              first + 1);
    for (int i = first; i <= last; i++)
      if (!ax_lua_to_integer(L, i, &shape[n++]))
        return ax_lua_arg_error(L, fn, i, "shape", "an integer, or one list of integers", i);
  }
  for (int i = 0; i < n; i++)
    if (shape[i] < 0) return ax_lua_error(L, fn, "size %d is negative: %lld", i + 1, (long long)shape[i]);
  return n;
}

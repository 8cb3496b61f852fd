/* args.c: the arguments of ops, and where a position that Lua counts from 1 becomes the core's,
 * from 0.
 *
 * ax_lua_read_args walks a row's parsed signature (signature.h) over the Lua stack.  Arguments come
 * by position, in the signature's order; a plain table with string keys at the end gives the rest
 * by name. */
#include "bind/bind.h"

#include <math.h>

/* ---- arguments of ops */

typedef struct reader {
  lua_State *L;
  const char *fn;
  const ax_signature *sig;
  ax_lua_read_result *r;
  int ndim;    /* of the tensor that dims refer to */
  int64_t dim; /* the dim that positions refer to */
} reader;

static const char *expected_text(lua_State *L, const ax_param *p)
{
  switch (p->kind) {
  case AX_P_TENSOR: return "a tensor";
  case AX_P_OPERAND: return "a tensor or a number";
  case AX_P_TENSORS: return "a list of tensors";
  case AX_P_DIMS: return "an integer or a list of integers";
  case AX_P_INT2: return "an integer or a list of two";
  case AX_P_INT3: return "an integer or a list of three";
  case AX_P_INTS: return "integers or a list of integers";
  case AX_P_NUM: return "a number";
  case AX_P_BOOL: return "a boolean";
  case AX_P_DTYPE: return "the name of an element type";
  case AX_P_GENERATOR: return "a Generator";
  case AX_P_WORD: {
    luaL_Buffer b;
    luaL_buffinit(L, &b);
    for (int i = 0; i < p->n_words; i++) {
      if (i) luaL_addstring(&b, i + 1 < p->n_words ? ", " : " or ");
      luaL_addchar(&b, '"');
      luaL_addstring(&b, p->words[i]);
      luaL_addchar(&b, '"');
    }
    luaL_pushresult(&b);
    return lua_tostring(L, -1);
  }
  case AX_P_ANY: return "a value";
  default: return "an integer";
  }
}

/* Returns a hint where the op was called with a dot, x.op(...), or a module's function with a
 * colon, F:op(...).  Lua reports tensor.op(...) and F.op(...) as it reports x.op(...); the hint is
 * right for them too. */
static const char *dot_hint(reader *q)
{
  lua_Debug ar;
  if (!lua_getstack(q->L, 0, &ar) || !lua_getinfo(q->L, "n", &ar)) return "";
  if (strcmp(ar.namewhat, "method") == 0 && lua_istable(q->L, 1))
    return "; the functions of a module are called with a dot, not with a colon";
  if (strcmp(ar.namewhat, "field") != 0) return "";
  return lua_pushfstring(q->L, "; did you mean x:%s(%s)?", q->fn, lua_gettop(q->L) ? "..." : "");
}

static int wrong(reader *q, const ax_param *p, int arg, int idx)
{
  if (arg == 1 && (p->kind == AX_P_TENSOR || p->kind == AX_P_OPERAND) && !lua_isnil(q->L, idx)) {
    const char *expected = expected_text(q->L, p), *hint = ax_lua_uncalled(q->L, expected, idx);
    if (!*hint) hint = dot_hint(q);
    return ax_lua_error(q->L, q->fn, "argument 1 (%s): expected %s, got %s%s", p->name, expected,
                        ax_lua_describe(q->L, idx), hint);
  }
  return ax_lua_arg_error(q->L, q->fn, arg, p->name, expected_text(q->L, p), idx);
}

/* Converts a dim as users count to 0 .. ndim-1.  A 0-d tensor has dim 1, as in PyTorch. */
static int64_t dim_of(reader *q, const ax_param *p, int64_t v)
{
  const int extra = p->kind == AX_P_DIM_PLUS;
  const int64_t n = (q->ndim > 0 || extra ? q->ndim : 1) + extra, at = ax_lua_position(v, n);
  if (v == 0)
    return ax_lua_error(q->L, q->fn, "%s: dims count from 1 (and from -1 backward); got 0", p->name);
  if (at < 0 || at >= n)
    return ax_lua_error(q->L, q->fn,
                        "%s %lld is out of range; expected 1..%lld or -%lld..-1 for a tensor of %d dims",
                        p->name, (long long)v, (long long)n, (long long)n, q->ndim);
  return at;
}

static int64_t pos_of(reader *q, const ax_param *p, int64_t v)
{
  const ax_tensor *x = q->r->args.in[0];
  if (x->ndim == 0) return ax_lua_error(q->L, q->fn, "%s: a 0-d tensor has no positions", p->name);
  const int64_t size = x->shape[q->dim], at = ax_lua_position(v, size);
  if (v == 0)
    return ax_lua_error(q->L, q->fn, "%s: positions count from 1 (and from -1 backward); got 0", p->name);
  if (at < 0 || at >= size + (p->kind == AX_P_POS_PLUS))
    return ax_lua_error(q->L, q->fn, "%s %lld is out of range for dim %lld of size %lld", p->name,
                        (long long)v, (long long)q->dim + 1, (long long)size);
  return at;
}

static void set_input(reader *q, int k, ax_tensor *t, int idx)
{
  ax_args *a = &q->r->args;
  q->r->in[k] = t;
  q->r->at[k] = idx;
  if (a->n_in <= k) a->n_in = k + 1;
  if (k == 0) q->ndim = t->ndim;
}

static void read_tensors(reader *q, const ax_param *p, int arg, int idx)
{
  lua_State *L = q->L;
  int n;
  ax_tensor **list;

  if (!lua_istable(L, idx)) wrong(q, p, arg, idx);
  n = (int)lua_objlen(L, idx);
  ax_lua_check_list(L, idx, q->fn, p->name);
  if (n == 0) ax_lua_error(L, q->fn, "%s: expected at least one tensor, got an empty list", p->name);
  /* freed by the collector: it stays on the stack during the call */
  list = lua_newuserdata(L, sizeof *list * (size_t)n);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, idx, i + 1); /* the list keeps them alive */
    list[i] = ax_lua_opt_tensor(L, -1, q->fn);
    if (!list[i]) {
      lua_pushfstring(L, "%s, entry %d", p->name, i + 1);
      ax_lua_arg_error(L, q->fn, arg, lua_tostring(L, -1), "a tensor", -2);
    }
    lua_pop(L, 1);
  }
  q->r->args.in = list;
  q->r->args.n_in = n;
  q->ndim = list[0]->ndim;
  /* empty 1-d tensors concatenate with anything: dims refer to the first tensor that is not one */
  for (int i = 0; i < n; i++)
    if (list[i]->ndim != 1 || list[i]->numel > 0) {
      q->ndim = list[i]->ndim;
      break;
    }
}

static void read_operand(reader *q, const ax_param *p, int arg, int idx)
{
  lua_State *L = q->L;
  ax_args *a = &q->r->args;
  const int k = p->slot;
  const int type = lua_type(L, idx);

  if (type == LUA_TNUMBER) {
    const double v = lua_tonumber(L, idx);
    a->num[k] = v;
    if (v == floor(v) && fabs(v) < 9.2e18) a->integral |= 1u << k;
  } else if (type == LUA_TBOOLEAN) {
    a->num[k] = lua_toboolean(L, idx);
    a->integral |= 1u << k;
    a->booleans |= 1u << k;
  } else {
    ax_tensor *t = ax_lua_opt_tensor(L, idx, q->fn);
    if (!t) wrong(q, p, arg, idx);
    set_input(q, k, t, idx);
    return;
  }
  a->scalars |= 1u << k;
  if (a->n_in <= k) a->n_in = k + 1;
}

static void read_dims(reader *q, const ax_param *p, int arg, int idx)
{
  ax_attrs *a = &q->r->args.a;
  int64_t *list = p->second ? a->integers + p->slot + 1 : a->list;
  int64_t v;
  int n = 1;
  if (lua_istable(q->L, idx)) {
    n = ax_lua_read_list(q->L, idx, q->fn, p->name, arg, list);
  } else {
    if (!ax_lua_to_integer(q->L, idx, &v)) wrong(q, p, arg, idx);
    list[0] = v;
  }
  if (p->kind == AX_P_DIMS)
    for (int i = 0; i < n; i++) list[i] = dim_of(q, p, list[i]);
  if (p->second) a->integers[p->slot] = n;
  else a->n_list = n;
}

/* Two or three integers, or one for all of them. */
static void read_several(reader *q, const ax_param *p, int arg, int idx)
{
  int64_t *at = &q->r->args.a.integers[p->slot], list[AX_MAX_DIMS];
  if (lua_istable(q->L, idx)) {
    if (ax_lua_read_list(q->L, idx, q->fn, p->name, arg, list) != p->places) wrong(q, p, arg, idx);
    memcpy(at, list, p->places * sizeof *at);
  } else {
    if (!ax_lua_to_integer(q->L, idx, at)) wrong(q, p, arg, idx);
    for (int k = 1; k < p->places; k++) at[k] = at[0];
  }
}

static int word_of(reader *q, const ax_param *p, int arg, int idx)
{
  lua_State *L = q->L;
  const char *given, *near;
  if (lua_type(L, idx) != LUA_TSTRING) return wrong(q, p, arg, idx);
  given = lua_tostring(L, idx);
  for (int i = 0; i < p->n_words; i++)
    if (strcmp(given, p->words[i]) == 0) return i;
  near = ax_lua_nearest(given, p->words, p->n_words);
  return ax_lua_error(L, q->fn, "%s: expected %s, got \"%s\"%s%s%s", p->name, expected_text(L, p), given,
                      near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

/* A list of one integer in place of it, { 2 }, as conv1d and the pools of one dim take it. */
static bool read_single(const reader *q, const ax_param *p, int idx)
{
  bool fits;
  if (!strstr(q->fn, "1d") || !lua_istable(q->L, idx) || lua_objlen(q->L, idx) != 1) return false;
  lua_rawgeti(q->L, idx, 1);
  fits = ax_lua_to_integer(q->L, lua_gettop(q->L), &q->r->args.a.integers[p->slot]);
  lua_pop(q->L, 1);
  return fits;
}

/* Reads the value at idx as p.  arg: its number in the call, 0 when it was given by name. */
static void read_param(reader *q, const ax_param *p, int arg, int idx)
{
  lua_State *L = q->L;
  ax_attrs *a = &q->r->args.a;
  int64_t v;
  ax_tensor *t;

  switch (p->kind) {
  case AX_P_TENSOR:
    if (!(t = ax_lua_opt_tensor(L, idx, q->fn))) wrong(q, p, arg, idx);
    set_input(q, p->slot, t, idx);
    break;
  case AX_P_OPERAND: read_operand(q, p, arg, idx); break;
  case AX_P_TENSORS: read_tensors(q, p, arg, idx); break;
  case AX_P_DIMS:
  case AX_P_INTS: read_dims(q, p, arg, idx); break;
  case AX_P_DIM:
  case AX_P_DIM_PLUS:
    if (!ax_lua_to_integer(L, idx, &v)) wrong(q, p, arg, idx);
    a->integers[p->slot] = q->dim = dim_of(q, p, v);
    break;
  case AX_P_POS:
  case AX_P_POS_PLUS:
    if (!ax_lua_to_integer(L, idx, &v)) wrong(q, p, arg, idx);
    a->integers[p->slot] = pos_of(q, p, v);
    break;
  case AX_P_INT:
    if (!ax_lua_to_integer(L, idx, &a->integers[p->slot]) && !read_single(q, p, idx)) wrong(q, p, arg, idx);
    break;
  case AX_P_INT2:
  case AX_P_INT3: read_several(q, p, arg, idx); break;
  case AX_P_NUM:
    if (lua_type(L, idx) != LUA_TNUMBER) wrong(q, p, arg, idx);
    a->numbers[p->slot] = lua_tonumber(L, idx);
    if (isnan(a->numbers[p->slot]) && p->optional && isnan(p->value)) /* it stands for none there */
      ax_lua_error(L, q->fn, "%s: expected a number, got NaN", p->name);
    break;
  case AX_P_BOOL:
    if (lua_type(L, idx) != LUA_TBOOLEAN) wrong(q, p, arg, idx);
    a->integers[p->slot] = lua_toboolean(L, idx);
    break;
  case AX_P_DTYPE:
    if (lua_type(L, idx) != LUA_TSTRING) wrong(q, p, arg, idx);
    a->integers[p->slot] = ax_lua_check_dtype(L, idx, q->fn, p->name);
    break;
  case AX_P_WORD: a->integers[p->slot] = word_of(q, p, arg, idx); break;
  case AX_P_GENERATOR:
    if (!(a->gen = ax_lua_to_generator(L, idx))) wrong(q, p, arg, idx);
    break;
  case AX_P_ANY: break;
  }
}

static void use_default(reader *q, const ax_param *p, int arg);

/* The parameter that takes the value at idx in place of p, of another kind: see `any` in
 * ops.def. */
static int stand_in(const reader *q, const ax_param *p, int idx)
{
  const bool number = p->kind == AX_P_DIM || p->kind == AX_P_NUM || p->kind == AX_P_INT;
  const bool word = p->kind == AX_P_NUM && lua_type(q->L, idx) == LUA_TSTRING;
  if (!number || !(word || lua_istable(q->L, idx) || ax_lua_to_box(q->L, idx))) return -1;
  for (int i = q->sig->n_row; i < q->sig->n; i++)
    if (q->sig->param[i].kind == AX_P_ANY) return i;
  return -1;
}

/* Reads parameter i from the stack. */
static void take(reader *q, int i, int arg, int idx)
{
  const ax_param *p = &q->sig->param[i];
  const int other = q->sig->n > q->sig->n_row ? stand_in(q, p, idx) : -1;
  if (other >= 0) {
    q->r->where[i] = 0;
    q->r->where[other] = idx;
    q->r->formed = true;
    if (p->optional) use_default(q, p, arg);
    return;
  }
  q->r->where[i] = idx;
  q->r->formed |= i >= q->sig->n_row;
  read_param(q, p, arg, idx);
}

static void use_default(reader *q, const ax_param *p, int arg)
{
  ax_attrs *a = &q->r->args.a;
  if (!p->optional) {
    const char *hint = p->kind == AX_P_TENSOR || p->kind == AX_P_OPERAND ? dot_hint(q) : "";
    ax_lua_error(q->L, q->fn, "argument %d (%s) is missing: expected %s%s", arg, p->name,
                 expected_text(q->L, p), hint);
  }
  switch (p->kind) {
  case AX_P_DIM:
  case AX_P_DIM_PLUS: {
    int64_t v = (int64_t)p->value;
    if (v < 0 && v != AX_NO_DIM) v += p->kind == AX_P_DIM_PLUS ? q->ndim + 1 : q->ndim > 0 ? q->ndim : 1;
    a->integers[p->slot] = v;
    break;
  }
  case AX_P_INT2:
  case AX_P_INT3:
    for (int k = 0; k < p->places; k++) a->integers[p->slot + k] = (int64_t)p->value;
    break;
  case AX_P_POS:
  case AX_P_POS_PLUS:
  case AX_P_INT:
  case AX_P_BOOL:
  case AX_P_DTYPE:
  case AX_P_WORD: a->integers[p->slot] = (int64_t)p->value; break;
  case AX_P_NUM: a->numbers[p->slot] = p->value; break;
  case AX_P_DIMS:
  case AX_P_INTS:
    if (p->second) a->integers[p->slot] = -1;
    break;
  default: break; /* no tensor, no list (n_list -1), the default generator */
  }
}

/* Sizes or dims given as several numbers take all remaining positions: x:view(2, 3). */
static bool read_rest(reader *q, const ax_param *p, int first, int last)
{
  ax_attrs *a = &q->r->args.a;
  if (last - first + 1 > AX_MAX_DIMS)
    return ax_lua_error(q->L, q->fn, "%s: %d numbers, but tensors have at most %d dims", p->name,
                        last - first + 1, AX_MAX_DIMS);
  for (int i = first; i <= last; i++) {
    int64_t v;
    if (!ax_lua_to_integer(q->L, i, &v)) wrong(q, p, i, i);
    a->list[i - first] = p->kind == AX_P_DIMS ? dim_of(q, p, v) : v;
  }
  a->n_list = last - first + 1;
  return true;
}

static bool takes_rest(const ax_signature *sig)
{
  const ax_param *p = &sig->param[sig->n_row - 1];
  return (p->kind == AX_P_INTS || p->kind == AX_P_DIMS) && !p->second;
}

static void read_all(reader *q)
{
  lua_State *L = q->L;
  const ax_signature *sig = q->sig;
  ax_lua_read_result *r = q->r;
  const char *shown = q->fn;
  int last = lua_gettop(L), options = 0;

  memset(&r->args, 0, sizeof r->args);
  for (int k = 0; k < AX_MAX_INPUTS; k++) r->in[k] = NULL;
  r->args.in = r->in;
  r->args.a.n_list = -1;
  r->formed = false;
  for (int i = sig->n_row; i < sig->n; i++) r->where[i] = 0;

  while (last > 0 && lua_isnil(L, last)) last--; /* a wrapper passes on arguments that it did not get */
  if (last < lua_gettop(L) && last >= sig->n_row && takes_rest(sig) && lua_type(L, sig->n_row) == LUA_TNUMBER)
    ax_lua_error(L, shown, "argument %d (%s): expected an integer, got nil%s", last + 1,
                 sig->param[sig->n_row - 1].name,
                 strcmp(sig->param[sig->n_row - 1].name, "shape") == 0 ? "; the last size of x is x:size(-1)"
                                                                       : "");
  if (last > 0 && lua_type(L, last) == LUA_TTABLE) {
    const uint8_t kind = last <= sig->n ? sig->param[last - 1].kind : AX_P_BOOL;
    const bool list = kind == AX_P_TENSORS || kind == AX_P_DIMS || kind == AX_P_INTS || kind == AX_P_INT2 ||
                      kind == AX_P_INT3;
    if (ax_lua_is_options(L, last, !list)) {
      options = last--;
      ax_lua_settle_names(L, options, shown, sig);
    }
  }
  for (int i = 0; i < sig->n; i++) {
    const ax_param *p = &sig->param[i];
    const int arg = i + 1;
    const bool given = arg <= last && lua_type(L, arg) != LUA_TNIL;

    if (options) {
      /* the value stays on the stack, which holds a tensor among the options */
      lua_getfield(L, options, p->name);
      if (!lua_isnil(L, -1)) {
        if (given) ax_lua_error(L, shown, "%s is given twice, by position and by name", p->name);
        take(q, i, 0, lua_gettop(L));
        continue;
      }
      lua_pop(L, 1);
    }
    if (!given) {
      if (i < sig->n_row) r->where[i] = 0; /* the others may have the value of a row's parameter */
      use_default(q, p, arg);
    } else if (arg == sig->n_row && last > sig->n && takes_rest(sig)) {
      r->where[i] = arg;
      read_rest(q, p, arg, last);
      last = arg;
    } else take(q, i, arg, arg);
  }
  if (last > sig->n) ax_lua_error(L, shown, "%d arguments given, at most %d expected", last, sig->n);
}

void ax_lua_read_args(lua_State *L, ax_op op, const char *shown, ax_lua_read_result *r)
{
  reader q = { .L = L, .fn = shown, .sig = ax_signature_of(op), .r = r };

  read_all(&q);
  /* (a row of one argument may be given a number: _copy) */
  if (r->args.n_in > 1 && r->args.scalars &&
      (r->args.scalars & ((1u << r->args.n_in) - 1)) == (1u << r->args.n_in) - 1)
    ax_lua_error(L, shown, "expected at least one tensor, got numbers only");
}

void ax_lua_read_params(lua_State *L, const ax_signature *sig, const char *shown, ax_lua_read_result *r)
{
  reader q = { .L = L, .fn = shown, .sig = sig, .r = r };
  read_all(&q);
}

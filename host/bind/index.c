/* bind/index.c: x[key] and x[key] = value.
 *
 * key            reads                                      writes (number, boolean or tensor,
 *                broadcast)
 *   3            position 3 of dim 1, which goes away       into that view
 *   {1, {2, 8}}  one entry a dim: a position, {} for all,   likewise, when only positions and
 *                ranges are given {first, last} or {first, last, step}, both ends included, or a
 *                1-d tensor as below
 *   bool tensor  the elements (or rows) where it is true    there
 *   int64 tensor the rows it lists, counted from 0          those rows, in order
 *
 * Writing goes through a view, as x:narrow(..):copy_(value) does.  Masks and lists of rows name no
 * view: where gradients are recorded the new value is built out of place (where) and copied over
 * the whole of x. */
#include "bind/bind.h"

#include <math.h>

#define SHAPE(t) ax_shape_text((t)->ndim, (t)->shape, (char[192]){ 0 }, 192)

/* The temporaries of one access.  Their boxes are on the Lua stack, so an error leaks nothing.
 * After a success the boxes are emptied at once, so that dead handles do not keep memory until the
 * next collection. */
enum { MOST_TEMPS = 64 };
typedef struct work {
  lua_State *L;
  int n, at; /* at: stack index of the newest result */
  ax_tensor **temps[MOST_TEMPS];
} work;

static ax_tensor **push_temp(work *w)
{
  ax_tensor **box = ax_lua_push_result(w->L);
  if (w->n < MOST_TEMPS) w->temps[w->n++] = box;
  w->at = lua_gettop(w->L);
  return box;
}

static void drop_temps(work *w, const ax_tensor *keep)
{
  while (w->n > 0) {
    ax_tensor **box = w->temps[--w->n];
    if (*box != keep) ax_tensor_release(ax_lua_empty_box(box));
  }
}

/* Runs an op; the result is borrowed, its box is on the stack. */
static ax_tensor *run(work *w, ax_op op, const ax_args *a)
{
  ax_tensor **box = push_temp(w), *out[AX_MAX_OUT];
  if (ax_run(op, a, out) != AX_OK) ax_lua_raise(w->L, "index");
  *box = out[0];
  if (out[1]) ax_tensor_release(out[1]);
  return *box;
}

static ax_tensor *apply(work *w, ax_op op, int n, ax_tensor *const *in, const ax_attrs *attrs)
{
  return run(w, op, &(ax_args){ .n_in = n, .in = in, .a = *attrs });
}

static ax_tensor *apply1(work *w, ax_op op, ax_tensor *x, ax_attrs attrs)
{
  return apply(w, op, 1, &x, &attrs);
}

static ax_tensor *reshape(work *w, ax_tensor *x, int n, const int64_t *shape)
{
  ax_attrs a = { .n_list = n };
  if (n) memcpy(a.list, shape, sizeof *shape * (size_t)n);
  return apply1(w, AX_OP_RESHAPE, x, a);
}

static ax_tensor *select_at(work *w, ax_tensor *x, int dim, int64_t at)
{
  return apply1(w, AX_OP_SELECT, x, AX_ATTRS(select, .dim = dim, .index = at));
}

static ax_tensor *index_select(work *w, ax_tensor *x, int dim, ax_tensor *index)
{
  return apply(w, AX_OP_INDEX_SELECT, 2, (ax_tensor *[]){ x, index }, &AX_ATTRS(index_select, .dim = dim));
}

/* A copy of t on the CPU, or t itself where it is there. */
static ax_tensor *on_cpu(work *w, ax_tensor *t)
{
  ax_tensor **box;
  if (t->device.kind == AX_CPU) return t;
  box = push_temp(w);
  if (ax_tensor_new((ax_dtype)t->dtype, t->ndim, t->shape, box) != AX_OK || ax_copy(*box, t) != AX_OK)
    ax_lua_raise(w->L, "index");
  return *box;
}

/* 1-based or negative to 0-based.  Messages name `shown` and `whole`, the dim and the tensor as the
 * user knows them. */
static int64_t position(lua_State *L, int64_t size, int64_t p, int shown, const ax_tensor *whole)
{
  const int64_t at = ax_lua_position(p, size);
  if (p == 0) return ax_lua_error(L, "index", "positions count from 1 (and from -1 backward); got 0");
  if (at < 0 || at >= size)
    return ax_lua_error(L, "index", "position %lld is out of range for dim %d of size %lld (shape %s)",
                        (long long)p, shown, (long long)size, SHAPE(whole));
  return at;
}

/* ---- masks and lists of positions */

/* The flat positions where `mask` is true. */
static ax_tensor *mask_positions(work *w, ax_tensor *mask)
{
  ax_tensor *whole = apply1(w, AX_OP_CONTIGUOUS, mask, (ax_attrs){ .n_list = -1 }), **box;
  ax_tensor *flat = reshape(w, whole, 1, &whole->numel);
  ax_tensor *count = on_cpu(w, apply1(w, AX_OP_SUM, flat, (ax_attrs){ .n_list = -1 }));
  const int64_t n = ax_load_int((ax_dtype)count->dtype, ax_data(count), 0);

  box = push_temp(w);
  if (ax_tensor_new_on(mask->device, AX_I64, 1, &n, box) != AX_OK ||
      (n > 0 && ax_run_into(AX_OP_MASK_INDICES, &(ax_args){ .n_in = 1, .in = &flat, .a = { .n_list = -1 } },
                            *box) != AX_OK))
    ax_lua_raise(w->L, "index");
  return *box;
}

static void check_mask(lua_State *L, const ax_tensor *x, const ax_tensor *mask)
{
  if (mask->ndim > x->ndim || memcmp(mask->shape, x->shape, sizeof *x->shape * mask->ndim) != 0)
    ax_lua_error(L, "index", "a mask of shape %s does not match the first dims of shape %s", SHAPE(mask),
                 SHAPE(x));
}

/* x[mask]: the dims of the mask become one. */
static ax_tensor *read_mask(work *w, ax_tensor *x, ax_tensor *mask)
{
  lua_State *L = w->L;
  int64_t shape[AX_MAX_DIMS + 1];
  ax_tensor *flat, *index;

  check_mask(L, x, mask);
  if (x->ndim - mask->ndim + 1 > AX_MAX_DIMS) /* a 0-d mask over 8 dims */
    ax_lua_error(L, "index", "the result would have %d dims", x->ndim + 1);
  shape[0] = mask->numel;
  memcpy(shape + 1, x->shape + mask->ndim, sizeof *shape * (size_t)(x->ndim - mask->ndim));
  flat = reshape(w, x, x->ndim - mask->ndim + 1, shape);
  index = mask_positions(w, mask);
  return index_select(w, flat, 0, index);
}

/* x[index]: dim `dim` is replaced by the dims of the index. */
static ax_tensor *read_rows(work *w, ax_tensor *x, int dim, ax_tensor *index)
{
  int64_t shape[2 * AX_MAX_DIMS];
  ax_tensor *flat, *rows;
  const int n = x->ndim - 1 + index->ndim;

  if (index->ndim == 1) return index_select(w, x, dim, index);
  if (x->ndim == 0) ax_lua_error(w->L, "index", "a 0-d tensor has no positions");
  if (n > AX_MAX_DIMS)
    ax_lua_error(w->L, "index", "the result would have %d dims, at most %d are there", n, AX_MAX_DIMS);
  flat = reshape(w, index, 1, &index->numel);
  rows = index_select(w, x, dim, flat);
  memcpy(shape, x->shape, sizeof *shape * (size_t)dim);
  memcpy(shape + dim, index->shape, sizeof *shape * index->ndim);
  memcpy(shape + dim + index->ndim, x->shape + dim + 1, sizeof *shape * (size_t)(x->ndim - dim - 1));
  return reshape(w, rows, n, shape);
}

static void bad_tensor_key(lua_State *L, const ax_tensor *key)
{
  ax_lua_error(L, "index",
               "expected a tensor of bool (a mask) or int64 (positions counted from 0), got %s %s",
               ax_dtype_name((ax_dtype)key->dtype), SHAPE(key));
}

/* ---- lists: one entry a dim */

/* {first, last} or {first, last, step} at idx, for dim `dim` of x. */
static ax_tensor *read_range(work *w, ax_tensor *x, int dim, int entry, int idx)
{
  lua_State *L = w->L;
  int64_t v[3] = { 0, 0, 1 }, first, last, length;
  const int64_t size = x->shape[dim];
  const int n = (int)lua_objlen(L, idx);

  if (n < 2 || n > 3)
    ax_lua_error(L, "index", "entry %d: expected {}, {first, last} or {first, last, step}, got a list of %d",
                 entry, n);
  for (int k = 0; k < n; k++) {
    lua_rawgeti(L, idx, k + 1);
    if (!ax_lua_to_integer(L, -1, &v[k]))
      ax_lua_error(L, "index", "entry %d: expected integers in a range, got %s", entry,
                   ax_lua_describe(L, -1));
    lua_pop(L, 1);
  }
  first = ax_lua_position(v[0], size);
  last = ax_lua_position(v[1], size);
  if (v[0] == 0 || (v[1] == 0 && v[0] != 1))
    ax_lua_error(L, "index", "entry %d: positions count from 1 (and from -1 backward); got 0", entry);
  if (v[2] < 1)
    ax_lua_error(L, "index", "entry %d: the step must be at least 1, got %lld", entry, (long long)v[2]);
  if (first < 0 || last >= size || last < first - 1)
    ax_lua_error(L, "index", "entry %d: the range {%lld, %lld} does not fit a dim of size %lld", entry,
                 (long long)v[0], (long long)v[1], (long long)size);
  length = (last - first + v[2]) / v[2];
  return apply1(w, AX_OP_SLICE, x,
                AX_ATTRS(slice, .dim = dim, .start = first, .length = length, .step = v[2]));
}

static bool empty_table(lua_State *L, int idx)
{
  lua_pushnil(L);
  if (!lua_next(L, idx)) return true;
  lua_pop(L, 2);
  return false;
}

static ax_tensor *read_entry(work *w, const ax_tensor *whole, ax_tensor *x, int *dim, int entry, int idx)
{
  lua_State *L = w->L;
  int64_t p;
  ax_tensor *index;

  if (ax_lua_to_integer(L, idx, &p))
    return select_at(w, x, *dim, position(L, x->shape[*dim], p, entry, whole));
  if (lua_istable(L, idx))
    return empty_table(L, idx) ? ((*dim)++, x) : read_range(w, x, (*dim)++, entry, idx);
  index = ax_lua_opt_tensor(L, idx, "index");
  if (!index)
    ax_lua_error(L, "index", "entry %d: expected a position, {}, {first, last} or a tensor, got %s", entry,
                 ax_lua_describe(L, idx));
  if (index->ndim != 1 || (index->dtype != AX_BOOL && index->dtype != AX_I64)) bad_tensor_key(L, index);
  if (index->dtype == AX_BOOL) {
    if (index->numel != x->shape[*dim])
      ax_lua_error(L, "index", "entry %d: a mask of %lld does not fit a dim of size %lld", entry,
                   (long long)index->numel, (long long)x->shape[*dim]);
    index = mask_positions(w, index);
  }
  return index_select(w, x, (*dim)++, index);
}

static ax_tensor *read_list(work *w, ax_tensor *x, int idx)
{
  lua_State *L = w->L;
  const int n = (int)lua_objlen(L, idx);
  const ax_tensor *original = x;
  int dim = 0;

  if (n == 0 && !empty_table(L, idx))
    ax_lua_error(L, "index", "expected a list with one entry a dim, got %s", ax_lua_describe(L, idx));
  if (n > original->ndim)
    ax_lua_error(L, "index", "%d entries for a tensor of %d dims (shape %s)", n, x->ndim, SHAPE(x));
  luaL_checkstack(L, MOST_TEMPS + 2 * AX_MAX_DIMS, "index");
  for (int k = 1; k <= n; k++) {
    lua_rawgeti(L, idx, k);
    x = read_entry(w, original, x, &dim, k, lua_gettop(L));
  }
  if (x != original) return x;
  /* the key selects all of x: return a new view */
  if (x->ndim)
    return apply1(w, AX_OP_NARROW, x, AX_ATTRS(narrow, .dim = 0, .start = 0, .length = x->shape[0]));
  return apply1(w, AX_OP_VIEW, x, (ax_attrs){ .n_list = 0 });
}

/* ---- reading */

static ax_tensor *read_key(work *w, ax_tensor *x, int idx)
{
  lua_State *L = w->L;
  int64_t p;
  ax_tensor *index;

  if (ax_lua_to_integer(L, idx, &p)) {
    if (x->ndim == 0) ax_lua_error(L, "index", "a 0-d tensor has no positions; x:item() is its value");
    return select_at(w, x, 0, position(L, x->shape[0], p, 1, x));
  }
  if (lua_istable(L, idx)) return read_list(w, x, idx);
  index = ax_lua_opt_tensor(L, idx, "index");
  if (!index)
    ax_lua_error(L, "index", "expected a position, a list or a tensor as key, got %s",
                 ax_lua_describe(L, idx));
  if (index->dtype == AX_BOOL) return read_mask(w, x, index);
  if (index->dtype != AX_I64) bad_tensor_key(L, index);
  return read_rows(w, x, 0, index);
}

int ax_lua_index_read(lua_State *L)
{
  work w = { .L = L };
  ax_tensor *result;

  ax_lua_enter(L);
  result = read_key(&w, ax_lua_check_tensor(L, 1, "index", "self"), 2);
  drop_temps(&w, result);
  lua_pushvalue(L, w.at);
  return 1;
}

/* ---- writing */

typedef struct value {
  ax_tensor *t;
  ax_args number;
} value; /* t NULL: a number */

static void read_value(lua_State *L, int idx, const ax_tensor *x, value *v)
{
  const int type = lua_type(L, idx);
  memset(v, 0, sizeof *v);
  if ((v->t = ax_lua_opt_tensor(L, idx, "index"))) return;
  if (type != LUA_TNUMBER && type != LUA_TBOOLEAN)
    ax_lua_error(L, "index", "expected a number, a boolean or a tensor to assign, got %s",
                 ax_lua_describe(L, idx));
  const double d = type == LUA_TBOOLEAN ? lua_toboolean(L, idx) : lua_tonumber(L, idx);
  if (!ax_lua_number_fits((ax_dtype)x->dtype, d))
    ax_lua_error(L, "index", "%.14g does not fit a tensor of %s", d, ax_dtype_name((ax_dtype)x->dtype));
  v->number.num[0] = d;
  v->number.integral = type == LUA_TBOOLEAN || (d == floor(d) && fabs(d) < 9.2e18);
  v->number.booleans = type == LUA_TBOOLEAN;
}

/* place:copy_(value) */
static void write_into(lua_State *L, ax_tensor *place, const value *v)
{
  ax_tensor *in[1] = { v->t };
  const ax_args a = { .n_in = 1,
                      .in = in,
                      .scalars = !v->t,
                      .integral = v->number.integral,
                      .booleans = v->number.booleans,
                      .num = { v->number.num[0] },
                      .a = { .n_list = -1 } };
  if (ax_run_inplace(AX_OP_COPY, &a, place) != AX_OK) ax_lua_raise(L, "index");
}

/* Drops leading dims of size 1 beyond the place's dims: x[1] = tensor({ 3 }) works for a 1-d x, as
 * in PyTorch. */
static ax_tensor *trim(work *w, ax_tensor *v, const ax_tensor *place)
{
  const int extra = v->ndim - place->ndim;
  ax_attrs a = { .n_list = extra };
  for (int d = 0; d < extra; d++) {
    if (v->shape[d] != 1) return v;
    a.list[d] = d;
  }
  return extra > 0 ? apply1(w, AX_OP_SQUEEZE, v, a) : v;
}

static void check_fits(lua_State *L, const ax_tensor *v, const ax_tensor *place)
{
  int ndim, k;
  int64_t shape[AX_MAX_DIMS];
  const bool joins =
      ax_shape_broadcast("index", place->ndim, place->shape, v->ndim, v->shape, &ndim, shape) == AX_OK;
  for (k = 0; joins && k < ndim && ndim == place->ndim && shape[k] == place->shape[k]; k++)
    ;
  if (!joins || ndim != place->ndim || k < ndim)
    ax_lua_error(L, "index", "a value of shape %s does not fit the place of shape %s", SHAPE(v),
                 SHAPE(place));
}

static ax_tensor *expand(work *w, ax_tensor *v, const ax_tensor *like)
{
  ax_attrs a = { .n_list = like->ndim };
  memcpy(a.list, like->shape, sizeof a.list);
  v = trim(w, v, like);
  check_fits(w->L, v, like);
  return apply1(w, AX_OP_EXPAND, v, a);
}

/* Numbers 0, 1, 2 ... in x's shape: reading them with a key gives the elements that the key
 * selects. */
static ax_tensor *numbered(work *w, const ax_tensor *x)
{
  ax_tensor **box = push_temp(w), *flat;
  if (ax_tensor_new_on(x->device, AX_I64, x->ndim, x->shape, box) != AX_OK) ax_lua_raise(w->L, "index");
  if (x->numel == 0) return *box;
  flat = reshape(w, *box, 1, &x->numel);
  if (ax_run_into(AX_OP_ARANGE, &(ax_args){ .a = AX_ATTRS(arange, .start = 0, .step = 1) }, flat) != AX_OK)
    ax_lua_raise(w->L, "index");
  return *box;
}

/* How often `places` (flat positions) contains each element of x, as float32 in x's shape. */
static ax_tensor *count_places(work *w, const ax_tensor *x, ax_tensor *places)
{
  ax_tensor **ones = push_temp(w), *count;
  if (ax_tensor_new_on(x->device, AX_F32, 1, &places->numel, ones) != AX_OK || ax_fill(*ones, 1) != AX_OK)
    ax_lua_raise(w->L, "index");
  count = apply(w, AX_OP_INDEX_SELECT_BACKWARD, 2, (ax_tensor *[]){ *ones, places },
                &AX_ATTRS(index_select_backward, .dim = 0, .size = x->numel));
  return reshape(w, count, x->ndim, x->shape);
}

static void refuse_repeats(work *w, ax_tensor *count)
{
  ax_tensor *most;
  if (count->numel == 0) return;
  most = on_cpu(w, apply1(w, AX_OP_MAX, count, AX_ATTRS(max, .dim = AX_NO_DIM)));
  if (ax_load_double((ax_dtype)most->dtype, ax_data(most), 0) > 1)
    ax_lua_error(
        w->L, "index",
        "a row is listed twice; in a list, and where gradients are recorded, each may be assigned once");
}

/* Whether the key is a list that contains a tensor. */
static bool holds_tensor(lua_State *L, int key)
{
  bool found = false;
  if (!lua_istable(L, key)) return false;
  for (int k = 1; !found && k <= (int)lua_objlen(L, key); k++) {
    lua_rawgeti(L, key, k);
    found = ax_lua_to_box(L, -1) != NULL;
    lua_pop(L, 1);
  }
  return found;
}

static ax_tensor *cast(work *w, ax_tensor *t, ax_dtype to)
{
  return t->dtype == to ? t : apply1(w, AX_OP_CAST, t, AX_ATTRS(cast, .dtype = to));
}

/* x:copy_(where(selected by the key, value, x)); every step is recorded if need be. */
static void write_by_where(work *w, ax_tensor *x, int key, const value *v)
{
  ax_tensor *in[3] = { NULL, NULL, x };
  ax_args a = { .n_in = 3, .in = in, .a = { .n_list = -1 } };
  ax_tensor *picked = read_key(w, numbered(w, x), key);
  ax_tensor *places = reshape(w, picked, 1, &picked->numel);
  ax_tensor *count = count_places(w, x, places);
  ax_tensor *pair[2] = { count, NULL };

  in[0] = run(w, AX_OP_NE,
              &(ax_args){ .n_in = 2, .in = pair, .scalars = 2, .integral = 2, .a = { .n_list = -1 } });
  /* scatter the value's elements into zeros; bools travel as bytes, since there are no sums of
   * bools */
  if (v->t) {
    const ax_dtype carrier = x->dtype == AX_BOOL ? AX_U8 : (ax_dtype)x->dtype;
    ax_tensor *wide = expand(w, v->t, picked), *flat, *placed;
    if (ax_lua_to_box(w->L, key) || holds_tensor(w->L, key)) refuse_repeats(w, count);
    wide = cast(w, cast(w, wide, (ax_dtype)x->dtype), carrier);
    flat = reshape(w, wide, 1, &wide->numel);
    placed = apply(w, AX_OP_INDEX_SELECT_BACKWARD, 2, (ax_tensor *[]){ flat, places },
                   &AX_ATTRS(index_select_backward, .dim = 0, .size = x->numel));
    in[1] = cast(w, reshape(w, placed, x->ndim, x->shape), (ax_dtype)x->dtype);
  } else {
    a.scalars = 2;
    a.num[1] = v->number.num[0];
    a.integral = v->number.integral << 1;
    a.booleans = v->number.booleans << 1;
  }
  write_into(w->L, x, &(value){ .t = run(w, AX_OP_WHERE, &a) });
}

/* x[index] = value, row by row in the order of the list: the last value is kept for a row that is
 * listed twice. */
static void write_rows(work *w, ax_tensor *x, ax_tensor *index, const value *v)
{
  lua_State *L = w->L;
  work each = { .L = L };
  ax_tensor *rows = NULL;

  if (x->ndim == 0) ax_lua_error(L, "index", "a 0-d tensor has no positions");
  if (index->ndim != 1)
    ax_lua_error(L, "index", "positions to assign to must have one dim, got %s", SHAPE(index));
  index = on_cpu(w, index);
  if (v->t) { /* one value row for each position */
    ax_tensor like = *x;
    like.shape[0] = index->numel;
    rows = expand(w, v->t, &like);
  }
  for (int64_t k = 0; k < index->numel; k++) {
    const int64_t at = ax_load_int(AX_I64, ax_data(index), k * index->strides[0]);
    const int top = lua_gettop(L);
    value row = *v;
    if (at < 0 || at >= x->shape[0])
      ax_lua_error(L, "index", "position %lld (counted from 0) is out of range for dim 1 of size %lld",
                   (long long)at, (long long)x->shape[0]);
    if (rows) row.t = select_at(&each, rows, 0, k);
    write_into(L, select_at(&each, x, 0, at), &row);
    drop_temps(&each, NULL);
    lua_settop(L, top);
  }
}

static void write_mask(work *w, ax_tensor *x, ax_tensor *mask, const value *v, int key)
{
  ax_attrs a = { .n_list = x->ndim };
  ax_tensor *in[2];

  check_mask(w->L, x, mask);
  if (v->t) {
    write_by_where(w, x, key, v);
    return;
  }
  for (int d = 0; d < x->ndim; d++) a.list[d] = d < mask->ndim ? mask->shape[d] : 1;
  in[0] = x;
  in[1] = apply1(w, AX_OP_RESHAPE, mask, a);
  if (ax_run_inplace(AX_OP_MASKED_FILL,
                     &(ax_args){ .n_in = 2, .in = in, .a = AX_ATTRS(masked_fill, .value = v->number.num[0]) },
                     x) != AX_OK)
    ax_lua_raise(w->L, "index");
}

int ax_lua_index_write(lua_State *L)
{
  work w = { .L = L };
  ax_tensor *x, *index;
  value v;
  int64_t p;

  ax_lua_enter(L);
  x = ax_lua_check_tensor(L, 1, "index", "self");
  read_value(L, 3, x, &v);
  index = ax_lua_opt_tensor(L, 2, "index");
  if (index && index->dtype != AX_BOOL && index->dtype != AX_I64) bad_tensor_key(L, index);
  luaL_checkstack(L, MOST_TEMPS, "index");
  if (ax_history(x) != AX_OK || (v.t && ax_history(v.t) != AX_OK)) return ax_lua_raise(L, "index");
  if (index && index->dtype == AX_BOOL) write_mask(&w, x, index, &v, 2);
  else if (holds_tensor(L, 2) ||
           (index && ax_grad_enabled() && (x->requires_grad || (v.t && v.t->requires_grad))))
    write_by_where(&w, x, 2, &v);
  else if (index) write_rows(&w, x, index, &v);
  else if (ax_lua_to_integer(L, 2, &p) || lua_istable(L, 2)) {
    ax_tensor *place = lua_istable(L, 2) ? read_list(&w, x, 2) : read_key(&w, x, 2);
    if (v.t) {
      v.t = trim(&w, v.t, place);
      check_fits(L, v.t, place);
    }
    write_into(L, place, &v);
  } else
    return ax_lua_error(L, "index", "expected a position, a list or a tensor as key, got %s",
                        ax_lua_describe(L, 2));
  drop_temps(&w, NULL);
  return 0;
}

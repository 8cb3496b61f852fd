/* bind/index.c: x[key], x[key] = value, x:index_put_(key, value).
 *
 * key            stands for
 *   3            position 3 of dim 1, which goes away
 *   {1, {2, 8}}  one entry a dim: a position, {} for all, a range {first, last} or {first, last,
 *                step}, both ends included, a tensor as below, "..." for all dims between, and
 *                tensor.newaxis for a new dim of size 1
 *   bool tensor  the elements (or rows) where it is true
 *   int64 tensor the rows it lists, counted from 0
 *
 * A value is a number, a boolean, a tensor or a nested table, broadcast to the place.  Without
 * tensors in the key it is written into a view, as x:narrow(..):copy_(value) does; with them
 * index_copy_ (index_add_, index_fill_) writes into the picked dims. */
#include "bind/index_key.h"

#include <math.h>

/* ---- reading */

static ax_tensor *whole_view(ax_lua_work *w, ax_tensor *x)
{
  if (x->ndim)
    return ax_lua_apply1(w, AX_OP_NARROW, x, AX_ATTRS(narrow, .dim = 0, .start = 0, .length = x->shape[0]));
  return ax_lua_apply_list(w, AX_OP_VIEW, x, 0, NULL);
}

static ax_tensor *ordered_view(ax_lua_work *w, const ax_lua_key *k, const ax_lua_picked *p)
{
  int64_t order[AX_MAX_DIMS];
  if (p->ordered) return k->view;
  for (int d = 0; d < k->view->ndim; d++) order[d] = p->order[d];
  return ax_lua_apply_list(w, AX_OP_PERMUTE, k->view, k->view->ndim, order);
}

static ax_tensor *read_picks(ax_lua_work *w, const ax_lua_key *k)
{
  ax_lua_picked p;
  ax_tensor *x, *out[AX_MAX_OUT], **box;

  ax_lua_join_picks(w, k, &p);
  x = ordered_view(w, k, &p);
  if (p.dims > 1) x = ax_lua_apply_list(w, AX_OP_RESHAPE, x, p.n_merged, p.merged);
  box = ax_lua_push_temp(w);
  if (ax_run(AX_OP_INDEX_SELECT,
             &(ax_args){
                 .n_in = 2, .in = (ax_tensor *[]){ x, p.index }, .a = AX_ATTRS(index_select, .dim = p.dim) },
             out) != AX_OK) {
    ax_lua_explain_picks(w, k);
    ax_lua_raise(w->L, "index");
  }
  *box = out[0];
  if (p.ndim == p.n_merged) return *box;
  return ax_lua_apply_list(w, AX_OP_RESHAPE, *box, p.ndim, p.shape);
}

int ax_lua_index_read(lua_State *L)
{
  ax_lua_work w = { .L = L };
  ax_lua_key k;
  ax_tensor *result;

  ax_lua_enter(L);
  ax_lua_read_key(&w, ax_lua_check_tensor(L, 1, "index", "self"), 2, &k);
  result = k.n ? read_picks(&w, &k) : k.view == k.x ? whole_view(&w, k.x) : k.view;
  ax_lua_drop_temps(&w, result);
  lua_pushvalue(L, w.at);
  return 1;
}

/* ---- writing */

typedef struct value {
  ax_tensor *t; /* NULL: a number */
  double number;
  bool integral, boolean;
} value;

static void read_value(lua_State *L, int idx, const ax_tensor *x, value *v)
{
  const int type = lua_type(L, idx);
  memset(v, 0, sizeof *v);
  if (type == LUA_TTABLE) {
    v->t = ax_lua_push_from_table(L, idx, (ax_dtype)x->dtype, x->device);
    return;
  }
  if ((v->t = ax_lua_opt_tensor(L, idx, "index"))) return;
  if (type != LUA_TNUMBER && type != LUA_TBOOLEAN)
    ax_lua_error(L, "index", "expected a number, a boolean or a tensor to assign, got %s",
                 ax_lua_describe(L, idx));
  v->number = type == LUA_TBOOLEAN ? lua_toboolean(L, idx) : lua_tonumber(L, idx);
  if (!ax_lua_number_fits((ax_dtype)x->dtype, v->number))
    ax_lua_error(L, "index", "%.14g does not fit a tensor of %s", v->number,
                 ax_dtype_name((ax_dtype)x->dtype));
  v->boolean = type == LUA_TBOOLEAN;
  v->integral = v->boolean || (v->number == floor(v->number) && fabs(v->number) < 9.2e18);
}

static void run_inplace(lua_State *L, ax_op op, const ax_args *a, ax_tensor *place)
{
  if (ax_run_inplace(op, a, place) != AX_OK) ax_lua_raise(L, "index");
}

/* place:copy_(value), or place:add_(value). */
static void write_into(lua_State *L, ax_tensor *place, const value *v, bool accumulate)
{
  const int k = accumulate; /* the value's place among the inputs */
  ax_tensor *in[2] = { accumulate ? place : v->t, v->t };
  ax_args a = { .n_in = k + 1,
                .in = in,
                .scalars = (uint32_t)!v->t << k,
                .integral = (uint32_t)v->integral << k,
                .booleans = (uint32_t)v->boolean << k,
                .a = { .n_list = -1 } };
  a.num[k] = v->number;
  run_inplace(L, accumulate ? AX_OP_ADD : AX_OP_COPY, &a, place);
}

/* Drops leading dims of size 1 beyond the place's dims: x[1] = tensor({ 3 }) works for a 1-d x, as
 * in PyTorch. */
static ax_tensor *trim(ax_lua_work *w, ax_tensor *v, int ndim)
{
  const int extra = v->ndim - ndim;
  ax_attrs a = { .n_list = extra };
  for (int d = 0; d < extra; d++) {
    if (v->shape[d] != 1) return v;
    a.list[d] = d;
  }
  return extra > 0 ? ax_lua_apply1(w, AX_OP_SQUEEZE, v, a) : v;
}

/* The value as it is written to a place of this shape. */
static ax_tensor *fitted(ax_lua_work *w, ax_tensor *v, int ndim, const int64_t *shape)
{
  int n, k;
  int64_t joint[AX_MAX_DIMS];

  v = trim(w, v, ndim);
  const bool joins = ax_shape_broadcast("index", ndim, shape, v->ndim, v->shape, &n, joint) == AX_OK;
  for (k = 0; joins && k < n && n == ndim && joint[k] == shape[k]; k++)
    ;
  if (!joins || n != ndim || k < n)
    ax_lua_error(w->L, "index", "a value of shape %s does not fit the place of shape %s", SHAPE(v),
                 ax_shape_text(ndim, shape, (char[192]){ 0 }, 192));
  return v;
}

static ax_tensor *cast(ax_lua_work *w, ax_tensor *t, ax_dtype to)
{
  return t->dtype == to ? t : ax_lua_apply1(w, AX_OP_CAST, t, AX_ATTRS(cast, .dtype = to));
}

/* A number where a mask is true: nothing has to be counted. */
static void fill_masked(ax_lua_work *w, const ax_lua_key *k, const value *v)
{
  const ax_lua_pick *p = &k->pick[0];
  int64_t shape[AX_MAX_DIMS];
  ax_tensor *in[2] = { k->view, NULL };

  for (int d = 0; d < k->view->ndim; d++)
    shape[d] = d >= p->dim && d < p->dim + p->dims ? k->view->shape[d] : 1;
  in[1] = ax_lua_apply_list(w, AX_OP_RESHAPE, p->index, k->view->ndim, shape);
  run_inplace(w->L, AX_OP_MASKED_FILL,
              &(ax_args){ .n_in = 2, .in = in, .a = AX_ATTRS(masked_fill, .value = v->number) }, k->view);
}

/* Can a view show the dims of t from `first` on as one? */
static bool is_mergeable(const ax_tensor *t, int first, int dims)
{
  int64_t step = 0, size = 1;
  for (int d = first + dims - 1; d >= first; d--) {
    if (t->shape[d] == 1) continue;
    if (size > 1 && t->strides[d] != step * size) return false;
    if (size == 1) step = t->strides[d];
    size *= t->shape[d];
  }
  return true;
}

/* The value with the dims of the index as one. */
static ax_tensor *source_of(ax_lua_work *w, const ax_lua_picked *p, const value *v, const ax_tensor *x)
{
  int64_t shape[AX_MAX_DIMS];
  ax_tensor *t = v->t;

  if (!t) {
    ax_tensor **box = ax_lua_push_temp(w);
    if (ax_tensor_new_on(x->device, (ax_dtype)x->dtype, 0, NULL, box) != AX_OK ||
        ax_fill(*box, v->number) != AX_OK)
      ax_lua_raise(w->L, "index");
    t = *box;
  }
  t = cast(w, fitted(w, t, p->ndim, p->shape), (ax_dtype)x->dtype);
  t = ax_lua_apply_list(w, AX_OP_EXPAND, t, p->ndim, p->shape);
  memcpy(shape, p->merged, sizeof shape);
  shape[p->dim] = p->index->numel;
  return p->ndim == p->n_merged ? t : ax_lua_apply_list(w, AX_OP_RESHAPE, t, p->n_merged, shape);
}

static void write_picks(ax_lua_work *w, const ax_lua_key *k, const value *v, bool accumulate)
{
  ax_lua_picked p;
  ax_tensor *place, *whole = NULL, *in[3];
  ax_args a = { .n_in = 3, .in = in };
  ax_op op = accumulate ? AX_OP_INDEX_ADD : AX_OP_INDEX_COPY;

  ax_lua_join_picks(w, k, &p);
  place = ordered_view(w, k, &p);
  in[1] = p.index;
  in[2] = v->t || accumulate ? source_of(w, &p, v, place) : NULL;
  if (p.dims > 1) {
    /* the indexed dims cannot be merged into one: work on a copy */
    if (!is_mergeable(place, p.dim, p.dims)) {
      whole = place;
      place = ax_lua_apply1(w, AX_OP_CLONE, place, (ax_attrs){ .n_list = -1 });
    }
    in[0] = ax_lua_apply_list(w, AX_OP_VIEW, place, p.n_merged, p.merged);
  } else in[0] = place;
  if (accumulate) a.a = AX_ATTRS(index_add, .dim = p.dim, .alpha = 1);
  else if (in[2]) a.a = AX_ATTRS(index_copy, .dim = p.dim);
  else {
    op = AX_OP_INDEX_FILL;
    a.n_in = 2;
    a.a = AX_ATTRS(index_fill, .dim = p.dim, .value = v->number);
  }
  if (ax_run_inplace(op, &a, in[0]) != AX_OK) {
    ax_lua_explain_picks(w, k);
    ax_lua_raise(w->L, "index");
  }
  if (whole) write_into(w->L, whole, &(value){ .t = place }, false);
}

/* x[key] = value: the key at 2, the value at 3. */
static void write(lua_State *L, ax_tensor *x, bool accumulate)
{
  ax_lua_work w = { .L = L };
  ax_lua_key k;
  value v;

  read_value(L, 3, x, &v);
  if (ax_history(x) != AX_OK || (v.t && ax_history(v.t) != AX_OK)) ax_lua_raise(L, "index");
  ax_lua_read_key(&w, x, 2, &k);
  if (k.n == 1 && k.pick[0].index->dtype == AX_BOOL && !v.t && !accumulate) fill_masked(&w, &k, &v);
  else if (k.n) write_picks(&w, &k, &v, accumulate);
  else {
    if (v.t) v.t = fitted(&w, v.t, k.view->ndim, k.view->shape);
    write_into(L, k.view, &v, accumulate);
  }
  ax_lua_drop_temps(&w, NULL);
}

int ax_lua_index_write(lua_State *L)
{
  ax_lua_enter(L);
  ax_tensor *const x = ax_lua_check_tensor(L, 1, "index", "self");
  if (__builtin_expect(x->storage->claims == NULL, 1) || !ax_lua_note_edit(L, "index", 3)) write(L, x, false);
  return 0;
}

/* core._index_put(x, key, value, accumulate) -> x, changed */
static int index_put(lua_State *L)
{
  ax_lua_enter(L);
  write(L, ax_lua_check_tensor(L, 1, "index_put", "x"), lua_toboolean(L, 4));
  lua_settop(L, 1);
  return 1;
}

/* ---- tensor.newaxis */

static char newaxis;

bool ax_lua_is_newaxis(lua_State *L, int idx) { return lua_touserdata(L, idx) == &newaxis; }

void ax_lua_open_index(lua_State *L)
{
  static const luaL_Reg functions[] = { { "_index_put", index_put }, { NULL, NULL } };
  ax_lua_add_functions(L, functions);
  lua_pushlightuserdata(L, &newaxis);
  lua_setfield(L, -2, "newaxis");
}

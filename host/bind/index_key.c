/* bind/index_key.c: reads what stands between the brackets of x[key].
 *
 * Positions, ranges, new axes and "..." make a view.  Tensors pick from dims of that view.  Several
 * tensors are broadcast against each other and go together, element by element, as in PyTorch:
 * their dims become those of the broadcast index, in place when they are neighbours, else in front.
 * Positions in several dims are one position in the dim that these make together, so that
 * index_select, index_copy and index_add do the work and have the gradients. */
#include "bind/index_key.h"

/* ---- temporaries */

ax_tensor **ax_lua_push_temp(ax_lua_work *w)
{
  luaL_checkstack(w->L, 4, "index");
  ax_tensor **box = ax_lua_push_result(w->L);
  if (w->n < AX_MOST_TEMPS) w->temps[w->n++] = box;
  w->at = lua_gettop(w->L);
  return box;
}

void ax_lua_drop_temps(ax_lua_work *w, const ax_tensor *keep)
{
  while (w->n > 0) {
    ax_tensor **box = w->temps[--w->n];
    if (*box != keep) ax_tensor_release(ax_lua_empty_box(box));
  }
}

static ax_tensor *run(ax_lua_work *w, ax_op op, const ax_args *a)
{
  ax_tensor **box = ax_lua_push_temp(w), *out[AX_MAX_OUT];
  if (ax_run(op, a, out) != AX_OK) ax_lua_raise(w->L, "index");
  *box = out[0];
  if (out[1]) ax_tensor_release(out[1]);
  return *box;
}

static ax_tensor *apply(ax_lua_work *w, ax_op op, int n, ax_tensor *const *in, const ax_attrs *attrs)
{
  return run(w, op, &(ax_args){ .n_in = n, .in = in, .a = *attrs });
}

ax_tensor *ax_lua_apply1(ax_lua_work *w, ax_op op, ax_tensor *x, ax_attrs attrs)
{
  return apply(w, op, 1, &x, &attrs);
}

ax_tensor *ax_lua_apply_list(ax_lua_work *w, ax_op op, ax_tensor *x, int n, const int64_t *list)
{
  ax_attrs a = { .n_list = n };
  if (n) memcpy(a.list, list, sizeof *list * (size_t)n);
  return ax_lua_apply1(w, op, x, a);
}

static ax_tensor *flattened(ax_lua_work *w, ax_tensor *x)
{
  return x->ndim == 1 ? x : ax_lua_apply_list(w, AX_OP_RESHAPE, x, 1, &x->numel);
}

/* op(x, number). */
static ax_tensor *with_number(ax_lua_work *w, ax_op op, ax_tensor *x, double number)
{
  return run(w, op,
             &(ax_args){ .n_in = 2,
                         .in = (ax_tensor *[]){ x, NULL },
                         .scalars = 2,
                         .integral = 2,
                         .num = { 0, number },
                         .a = { .n_list = -1 } });
}

/* A copy of t on `device`, or t itself where it is there. */
static ax_tensor *on_device(ax_lua_work *w, ax_tensor *t, ax_device device)
{
  if (t->device.kind == device.kind && t->device.index == device.index) return t;
  return ax_lua_apply1(w, AX_OP_TO_DEVICE, t,
                       AX_ATTRS(to_device, .kind = device.kind, .index = device.index));
}

static int64_t value_of(ax_lua_work *w, ax_tensor *t)
{
  t = on_device(w, t, (ax_device){ AX_CPU, 0 });
  if (ax_tensor_ready(t, AX_READ) != AX_OK) ax_lua_raise(w->L, "index");
  return ax_load_int((ax_dtype)t->dtype, ax_data(t), 0);
}

/* ---- entries of a key */

typedef struct reader {
  ax_lua_work *w;
  ax_lua_key *k;
  int entry, dim;   /* the entry's number; the dim of the view that it is about */
  int shown, after; /* that dim in x, as users count; the dims of x that the entries take */
} reader;

/* 1-based or negative to 0-based.  Messages name the dim and the tensor as the user knows them. */
static int64_t position(const reader *r, int64_t p)
{
  const int64_t size = r->k->view->shape[r->dim], at = ax_lua_position(p, size);
  lua_State *L = r->w->L;
  if (p == 0) return ax_lua_error(L, "index", "positions count from 1 (and from -1 backward); got 0");
  if (at < 0 || at >= size)
    return ax_lua_error(L, "index", "position %lld is out of range for dim %d of size %lld (shape %s)",
                        (long long)p, r->shown, (long long)size, SHAPE(r->k->x));
  return at;
}

static void select_at(reader *r, int64_t at)
{
  r->k->view = ax_lua_apply1(r->w, AX_OP_SELECT, r->k->view, AX_ATTRS(select, .dim = r->dim, .index = at));
  r->shown++;
}

/* {first, last} or {first, last, step} at idx. */
static void read_range(reader *r, int idx)
{
  lua_State *L = r->w->L;
  int64_t v[3] = { 0, 0, 1 }, first, last, length;
  const int64_t size = r->k->view->shape[r->dim];
  const int n = (int)lua_objlen(L, idx);

  if (n < 2 || n > 3)
    ax_lua_error(L, "index", "entry %d: expected {}, {first, last} or {first, last, step}, got a list of %d",
                 r->entry, n);
  for (int k = 0; k < n; k++) {
    lua_rawgeti(L, idx, k + 1);
    if (!ax_lua_to_integer(L, -1, &v[k]))
      ax_lua_error(L, "index", "entry %d: expected integers in a range, got %s", r->entry,
                   ax_lua_describe(L, -1));
    lua_pop(L, 1);
  }
  first = ax_lua_position(v[0], size);
  last = ax_lua_position(v[1], size);
  if (v[0] == 0 || (v[1] == 0 && v[0] != 1))
    ax_lua_error(L, "index", "entry %d: positions count from 1 (and from -1 backward); got 0", r->entry);
  if (v[2] < 1)
    ax_lua_error(L, "index", "entry %d: the step must be at least 1, got %lld", r->entry, (long long)v[2]);
  if (first < 0 || last >= size || last < first - 1)
    ax_lua_error(L, "index", "entry %d: the range {%lld, %lld} does not fit a dim of size %lld", r->entry,
                 (long long)v[0], (long long)v[1], (long long)size);
  length = last < first ? 0 : (last - first) / v[2] + 1;
  r->k->view = ax_lua_apply1(r->w, AX_OP_SLICE, r->k->view,
                             AX_ATTRS(slice, .dim = r->dim, .start = first, .length = length, .step = v[2]));
  r->dim++, r->shown++;
}

static bool empty_table(lua_State *L, int idx)
{
  lua_pushnil(L);
  if (!lua_next(L, idx)) return true;
  lua_pop(L, 2);
  return false;
}

static void new_axis(reader *r)
{
  if (r->k->view->ndim == AX_MAX_DIMS)
    ax_lua_error(r->w->L, "index", "entry %d: a new axis would make %d dims, at most %d are there", r->entry,
                 AX_MAX_DIMS + 1, AX_MAX_DIMS);
  r->k->view = ax_lua_apply1(r->w, AX_OP_UNSQUEEZE, r->k->view, AX_ATTRS(unsqueeze, .dim = r->dim));
}

static void check_mask(reader *r, const ax_tensor *mask)
{
  lua_State *L = r->w->L;
  const ax_tensor *v = r->k->view;

  for (int d = 0; d < mask->ndim; d++) {
    if (mask->shape[d] == v->shape[r->dim + d]) continue;
    if (r->entry == 0)
      ax_lua_error(L, "index", "a mask of shape %s does not match the first dims of shape %s", SHAPE(mask),
                   SHAPE(r->k->x));
    if (mask->ndim == 1)
      ax_lua_error(L, "index", "entry %d: a mask of %lld does not fit a dim of size %lld", r->entry,
                   (long long)mask->numel, (long long)v->shape[r->dim]);
    ax_lua_error(L, "index", "entry %d: a mask of shape %s does not match shape %s from dim %d on", r->entry,
                 SHAPE(mask), SHAPE(r->k->x), r->shown);
  }
}

/* Has it negative positions?  Of what only a device could tell: true. */
static bool may_be_negative(const ax_tensor *index)
{
  int64_t any = 0;
  if (index->device.kind != AX_CPU || !ax_tensor_is_contiguous(index) || index->storage->claims) return true;
  const int64_t *at = ax_data(index);
  for (int64_t i = 0; i < index->numel; i++) any |= at[i];
  return any < 0;
}

/* Positions from 0: negative ones count from the end of a dim of `size`. */
static ax_tensor *from_start(ax_lua_work *w, ax_tensor *index, int64_t size)
{
  if (!may_be_negative(index)) return index;
  ax_tensor *behind =
      ax_lua_apply1(w, AX_OP_CAST, with_number(w, AX_OP_LT, index, 0), AX_ATTRS(cast, .dtype = AX_I64));
  return apply(w, AX_OP_ADD, 2, (ax_tensor *[]){ index, with_number(w, AX_OP_MUL, behind, (double)size) },
               &(ax_attrs){ .n_list = -1 });
}

static void pick(reader *r, ax_tensor *index)
{
  ax_lua_key *k = r->k;
  const bool mask = index->dtype == AX_BOOL;
  ax_lua_pick *p;

  if (mask) check_mask(r, index);
  if (mask && index->ndim == 0) { /* a dim of one position, which it takes or not */
    new_axis(r);
    index = flattened(r->w, index);
    r->shown--;
  }
  /* a view has at most AX_MAX_DIMS dims, and each pick takes one at least */
  p = &k->pick[k->n++];
  *p = (ax_lua_pick){ .index = index,
                      .given = index,
                      .dim = r->dim,
                      .dims = mask ? index->ndim : 1,
                      .shown = r->shown,
                      .size = 1 };
  for (int d = 0; d < p->dims; d++) p->size *= k->view->shape[p->dim + d];
  if (!mask) p->index = from_start(r->w, index, p->size);
  r->dim += p->dims, r->shown += p->dims;
}

static void read_tensor(reader *r, ax_tensor *index)
{
  lua_State *L = r->w->L;

  if (index->dtype == AX_I32) index = ax_lua_apply1(r->w, AX_OP_CAST, index, AX_ATTRS(cast, .dtype = AX_I64));
  if (index->dtype != AX_BOOL && index->dtype != AX_I64)
    ax_lua_error(L, "index",
                 "expected a tensor of bool (a mask) or int64 (positions counted from 0), got %s %s",
                 ax_dtype_name((ax_dtype)index->dtype), SHAPE(index));
  if (index->dtype == AX_I64 && index->ndim == 0) { /* a position: a view, as in PyTorch */
    const int64_t at = value_of(r->w, index), size = r->k->view->shape[r->dim];
    if (at < -size || at >= size)
      ax_lua_error(L, "index", "position %lld (counted from 0) is out of range for dim %d of size %lld",
                   (long long)at, r->shown, (long long)size);
    select_at(r, at < 0 ? at + size : at);
  } else pick(r, on_device(r->w, index, r->k->x->device));
}

static bool is_rest(lua_State *L, int idx)
{
  return lua_type(L, idx) == LUA_TSTRING && strcmp(lua_tostring(L, idx), "...") == 0;
}

/* The dims of x that the entry at idx takes; -1: "...". */
static int dims_taken(lua_State *L, int idx)
{
  ax_tensor *index;
  if (is_rest(L, idx)) return -1;
  if (ax_lua_is_newaxis(L, idx)) return 0;
  index = ax_lua_opt_tensor(L, idx, "index");
  return index && index->dtype == AX_BOOL ? index->ndim : 1;
}

static void read_entry(reader *r, int idx)
{
  lua_State *L = r->w->L;
  ax_tensor *index;
  int64_t p;

  if (ax_lua_to_integer(L, idx, &p)) select_at(r, position(r, p));
  else if (lua_istable(L, idx)) {
    if (empty_table(L, idx)) r->dim++, r->shown++;
    else read_range(r, idx);
  } else if (ax_lua_is_newaxis(L, idx)) {
    new_axis(r);
    r->dim++;
  } else if (dims_taken(L, idx) < 0) {
    r->dim += r->k->x->ndim - r->after;
    r->shown += r->k->x->ndim - r->after;
  } else if ((index = ax_lua_opt_tensor(L, idx, "index"))) read_tensor(r, index);
  else
    ax_lua_error(L, "index",
                 "entry %d: expected a position, {}, {first, last} or a tensor, got %s (also \"...\", for "
                 "all dims between, and tensor.newaxis)",
                 r->entry, ax_lua_describe(L, idx));
}

static void read_list(reader *r, int idx)
{
  lua_State *L = r->w->L;
  const ax_tensor *x = r->k->x;
  const int n = (int)lua_objlen(L, idx);
  int rests = 0;
  bool even = true; /* one dim an entry */

  if (n == 0 && !empty_table(L, idx))
    ax_lua_error(L, "index", "expected a list with one entry a dim, got %s", ax_lua_describe(L, idx));
  if (n > 0 && !ax_lua_ends_with_list(L, idx)) ax_lua_check_list(L, idx, "index", "key");
  for (int k = 1; k <= n; k++) {
    lua_rawgeti(L, idx, k);
    const int taken = dims_taken(L, lua_gettop(L));
    lua_pop(L, 1);
    even &= taken == 1;
    if (taken < 0) rests++;
    else r->after += taken;
    if (rests > 1) ax_lua_error(L, "index", "entry %d: \"...\" may be there once", k);
    if (r->after > x->ndim && even)
      ax_lua_error(L, "index", "%d entries for a tensor of %d dims (shape %s)", n, x->ndim, SHAPE(x));
    if (r->after > x->ndim)
      ax_lua_error(L, "index", "entry %d: the key takes %d dims, the tensor has %d (shape %s)", k, r->after,
                   x->ndim, SHAPE(x));
  }
  for (int k = 1; k <= n; k++) {
    luaL_checkstack(L, 8, "index");
    lua_rawgeti(L, idx, k);
    r->entry = k;
    read_entry(r, lua_gettop(L));
  }
}

void ax_lua_read_key(ax_lua_work *w, ax_tensor *x, int idx, ax_lua_key *k)
{
  lua_State *L = w->L;
  ax_tensor *index;
  reader r = { .w = w, .k = k, .shown = 1 };
  int64_t p;

  k->x = k->view = x;
  k->n = 0;
  luaL_checkstack(L, 2 * AX_MAX_DIMS + 8, "index");
  if (lua_istable(L, idx)) read_list(&r, idx);
  else if (ax_lua_is_newaxis(L, idx)) new_axis(&r);
  else if (ax_lua_to_integer(L, idx, &p)) {
    if (x->ndim == 0) ax_lua_error(L, "index", "a 0-d tensor has no positions; x:item() is its value");
    select_at(&r, position(&r, p));
  } else if ((index = ax_lua_opt_tensor(L, idx, "index"))) {
    if (index->dtype == AX_BOOL && index->ndim > x->ndim)
      ax_lua_error(L, "index", "a mask of shape %s does not match the first dims of shape %s", SHAPE(index),
                   SHAPE(x));
    if (index->dtype != AX_BOOL && x->ndim == 0) ax_lua_error(L, "index", "a 0-d tensor has no positions");
    read_tensor(&r, index);
  } else if (!is_rest(L, idx))
    ax_lua_error(L, "index", "expected a position, a list or a tensor as key, got %s",
                 ax_lua_describe(L, idx));
}

/* ---- what the picks come to */

/* The flat positions where `mask` is true. */
static ax_tensor *mask_positions(ax_lua_work *w, ax_tensor *mask)
{
  ax_tensor *flat = flattened(w, ax_lua_apply1(w, AX_OP_CONTIGUOUS, mask, (ax_attrs){ .n_list = -1 })), **box;
  const int64_t n = value_of(w, ax_lua_apply1(w, AX_OP_SUM, flat, (ax_attrs){ .n_list = -1 }));

  box = ax_lua_push_temp(w);
  if (ax_tensor_new_on(mask->device, AX_I64, 1, &n, box) != AX_OK ||
      (n > 0 && ax_run_into(AX_OP_MASK_INDICES, &(ax_args){ .n_in = 1, .in = &flat, .a = { .n_list = -1 } },
                            *box) != AX_OK))
    ax_lua_raise(w->L, "index");
  return *box;
}

/* a * size + b, or a position that does not exist where b is not in 0 .. size-1: the product would
 * hide it. */
static ax_tensor *join(ax_lua_work *w, ax_tensor *a, ax_tensor *b, int64_t size)
{
  ax_tensor *near =
      ax_lua_apply1(w, AX_OP_CLAMP, b, AX_ATTRS(clamp, .min = 0, .max = (double)(size > 0 ? size - 1 : 0)));
  ax_tensor *bad = apply(w, AX_OP_NE, 2, (ax_tensor *[]){ near, b }, &(ax_attrs){ .n_list = -1 });
  ax_tensor *sum = apply(w, AX_OP_ADD, 2, (ax_tensor *[]){ with_number(w, AX_OP_MUL, a, (double)size), b },
                         &(ax_attrs){ .n_list = -1 });
  return apply(w, AX_OP_MASKED_FILL, 2, (ax_tensor *[]){ sum, bad }, &AX_ATTRS(masked_fill, .value = -1));
}

static void joint_shape(ax_lua_work *w, const ax_lua_key *k, ax_tensor *const *index)
{
  int64_t shape[AX_MAX_DIMS];
  int ndim = index[0]->ndim;

  memcpy(shape, index[0]->shape, sizeof shape);
  for (int i = 1; i < k->n; i++)
    if (ax_shape_broadcast("index", ndim, shape, index[i]->ndim, index[i]->shape, &ndim, shape) != AX_OK)
      ax_lua_error(w->L, "index",
                   "the positions for dim %d have shape %s, those for dim %d %s: they go together element by "
                   "element, and these shapes do not broadcast (for a grid write rows:unsqueeze(2))",
                   k->pick[0].shown, SHAPE(index[0]), k->pick[i].shown, SHAPE(index[i]));
}

/* The dims of the view: those before the picked ones, these, the others. */
static void order_dims(const ax_lua_key *k, ax_lua_picked *p)
{
  const ax_lua_pick *first = &k->pick[0], *last = &k->pick[k->n - 1];
  int n = 0;

  p->dims = 0;
  for (int i = 0; i < k->n; i++) p->dims += k->pick[i].dims;
  p->ordered = last->dim + last->dims == first->dim + p->dims;
  p->dim = p->ordered ? first->dim : 0;
  for (int d = 0; d < p->dim; d++) p->order[n++] = d;
  for (int i = 0; i < k->n; i++)
    for (int d = 0; d < k->pick[i].dims; d++) p->order[n++] = k->pick[i].dim + d;
  for (int d = p->dim, i = 0; d < k->view->ndim; d++) {
    while (i < k->n && d >= k->pick[i].dim + k->pick[i].dims) i++;
    if (i == k->n || d < k->pick[i].dim) p->order[n++] = d;
  }
}

void ax_lua_join_picks(ax_lua_work *w, const ax_lua_key *k, ax_lua_picked *p)
{
  ax_tensor *index[AX_MAX_DIMS], *all;
  const ax_tensor *v = k->view;

  for (int i = 0; i < k->n; i++)
    index[i] = k->pick[i].index->dtype == AX_BOOL ? mask_positions(w, k->pick[i].index) : k->pick[i].index;
  joint_shape(w, k, index);
  all = index[0];
  for (int i = 1; i < k->n; i++) all = join(w, all, index[i], k->pick[i].size);
  order_dims(k, p);
  p->n_merged = p->ndim = 0;
  for (int i = 0; i < v->ndim; i++) {
    const int64_t size = v->shape[p->order[i]];
    if (i < p->dim || i >= p->dim + p->dims) p->merged[p->n_merged++] = p->shape[p->ndim++] = size;
    else if (i > p->dim) p->merged[p->dim] *= size;
    else {
      p->merged[p->n_merged++] = size;
      for (int d = 0; d < all->ndim; d++) p->shape[p->ndim++] = all->shape[d];
    }
  }
  if (p->ndim > AX_MAX_DIMS)
    ax_lua_error(w->L, "index", "the result would have %d dims, at most %d are there", p->ndim, AX_MAX_DIMS);
  p->index = flattened(w, all);
}

void ax_lua_explain_picks(ax_lua_work *w, const ax_lua_key *k)
{
  for (int i = 0; i < k->n; i++) {
    ax_tensor *t = k->pick[i].given;
    if (t->dtype == AX_BOOL) continue;
    t = flattened(w, on_device(w, t, (ax_device){ AX_CPU, 0 }));
    if (ax_tensor_ready(t, AX_READ) != AX_OK) ax_lua_raise(w->L, "index");
    for (int64_t at = 0; at < t->numel; at++) {
      const int64_t v = ax_load_int(AX_I64, ax_data(t), at * t->strides[0]);
      if (v < -k->pick[i].size || v >= k->pick[i].size)
        ax_lua_error(w->L, "index",
                     "position %lld (counted from 0) is out of range for dim %d of size %lld (shape %s)",
                     (long long)v, k->pick[i].shown, (long long)k->pick[i].size, SHAPE(k->x));
    }
  }
}

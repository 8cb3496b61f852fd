/* bind/split.c: ops with any number of results, returned as several Lua values (split, chunk,
 * unbind, meshgrid), and second names of ops. */
#include "bind/bind.h"

enum { MOST_VALUES = 4096 }; /* results of one call: the Lua stack of a C function has room for 8000 values */

/* Pushes n empty boxes, then a list of n places for the results. */
static ax_tensor **push_places(lua_State *L, const char *fn, int64_t n, int *first)
{
  if (n > MOST_VALUES)
    ax_lua_error(L, fn, "%lld results are more than a call can return (%d); take slices", (long long)n,
                 MOST_VALUES);
  luaL_checkstack(L, (int)n + 8, fn);
  *first = lua_gettop(L) + 1;
  for (int64_t k = 0; k < n; k++) ax_lua_push_result(L);
  return lua_newuserdata(L, sizeof(ax_tensor *) * (size_t)(n ? n : 1));
}

static int return_places(lua_State *L, ax_tensor **out, int64_t n, int first)
{
  for (int64_t k = 0; k < n; k++) *ax_lua_to_box(L, first + (int)k) = out[k];
  lua_settop(L, first + (int)n - 1);
  return (int)n;
}

static int push_split(lua_State *L, const char *fn, ax_tensor *x, int dim, int64_t n, const int64_t *sizes)
{
  int first;
  ax_tensor **out = push_places(L, fn, n, &first);
  if (ax_split_into(x, dim, (int)n, sizes, out) != AX_OK) return ax_lua_raise(L, fn);
  return return_places(L, out, n, first);
}

/* Parts of `size` positions, the last one smaller where the dim's size is no multiple.  A dim
 * without positions has one part. */
static int push_equal(lua_State *L, const char *fn, ax_tensor *x, int dim, int64_t size)
{
  const int64_t whole = x->ndim ? x->shape[dim] : 0;
  int64_t n, *sizes;

  if (x->ndim == 0) return ax_lua_error(L, fn, "a 0-d tensor has no dim to take apart");
  if (size < 0 || (size == 0 && whole > 0))
    return ax_lua_error(L, fn, "expected parts of at least one position, got %lld", (long long)size);
  n = whole ? (whole + size - 1) / size : 1;
  if (n > MOST_VALUES)
    return ax_lua_error(L, fn, "%lld results are more than a call can return (%d); take slices", (long long)n,
                        MOST_VALUES);
  sizes = lua_newuserdata(L, sizeof *sizes * (size_t)n);
  for (int64_t k = 0; k < n; k++) sizes[k] = k + 1 < n ? size : whole - (n - 1) * size;
  return push_split(L, fn, x, dim, n, sizes);
}

/* (x, any size, dim or options) -> dim, 0-based */
static int read_split_dim(lua_State *L)
{
  ax_lua_read_result r;
  ax_lua_read_args(L, AX_OP_SPLIT, "split", &r);
  lua_pushinteger(L, (lua_Integer)r.args.a.split.dim);
  return 1;
}

/* A list of sizes may be longer than any shape, so it is read here; the other arguments are read
 * like those of every op. */
static int split(lua_State *L)
{
  const int top = lua_gettop(L);
  ax_lua_read_result r;
  int64_t *sizes;

  ax_lua_enter(L);
  if (!lua_istable(L, 2) || ax_lua_is_options(L, 2, false)) {
    ax_lua_read_args(L, AX_OP_SPLIT, "split", &r);
    if (r.args.a.n_list != 1)
      return push_split(L, "split", r.in[0], (int)r.args.a.split.dim, r.args.a.n_list, r.args.a.list);
    return push_equal(L, "split", r.in[0], (int)r.args.a.split.dim, r.args.a.list[0]);
  }
  lua_pushcfunction(L, read_split_dim);
  for (int k = 1; k <= top; k++) {
    if (k == 2) lua_pushinteger(L, 1);
    else lua_pushvalue(L, k);
  }
  lua_call(L, top, 1);
  const int dim = (int)lua_tointeger(L, -1), n = (int)lua_objlen(L, 2);
  sizes = lua_newuserdata(L, sizeof *sizes * (size_t)(n ? n : 1));
  for (int k = 0; k < n; k++) {
    lua_rawgeti(L, 2, k + 1);
    if (!ax_lua_to_integer(L, -1, &sizes[k]))
      ax_lua_error(L, "split", "split_size, entry %d: expected an integer, got %s", k + 1,
                   ax_lua_describe(L, -1));
    lua_pop(L, 1);
  }
  return push_split(L, "split", ax_lua_check_tensor(L, 1, "split", "x"), dim, n, sizes);
}

static int chunk(lua_State *L)
{
  ax_lua_read_result r;
  ax_lua_enter(L);
  ax_lua_read_args(L, AX_OP_CHUNK, "chunk", &r);
  const int64_t chunks = r.args.a.chunk.chunks;
  const int dim = (int)r.args.a.chunk.dim;
  const int64_t whole = r.in[0]->ndim ? r.in[0]->shape[dim] : 0;
  if (chunks < 1) return ax_lua_error(L, "chunk", "expected at least one chunk, got %lld", (long long)chunks);
  if (whole > 0) return push_equal(L, "chunk", r.in[0], dim, whole / chunks + (whole % chunks != 0));
  if (r.in[0]->ndim == 0) return ax_lua_error(L, "chunk", "a 0-d tensor has no dim to take apart");
  if (chunks > MOST_VALUES)
    return ax_lua_error(L, "chunk", "%lld results are more than a call can return (%d)", (long long)chunks,
                        MOST_VALUES);
  /* a dim of size 0 has as many parts as the call requested */
  int64_t *sizes = lua_newuserdata(L, sizeof *sizes * (size_t)chunks);
  memset(sizes, 0, sizeof *sizes * (size_t)chunks);
  return push_split(L, "chunk", r.in[0], dim, chunks, sizes);
}

static int unbind(lua_State *L)
{
  ax_lua_read_result r;
  ax_tensor **out;
  int first;

  ax_lua_enter(L);
  ax_lua_read_args(L, AX_OP_UNBIND, "unbind", &r);
  if (r.in[0]->ndim == 0) return ax_lua_error(L, "unbind", "a 0-d tensor has no dim to take apart");
  const int64_t n = r.in[0]->shape[r.args.a.unbind.dim];
  out = push_places(L, "unbind", n, &first);
  if (ax_unbind_into(r.in[0], (int)r.args.a.unbind.dim, (int)n, out) != AX_OK)
    return ax_lua_raise(L, "unbind");
  return return_places(L, out, n, first);
}

/* meshgrid({ a, b, .. }) or meshgrid(a, b, ..), with { indexing = } at the end. */
static int meshgrid(lua_State *L)
{
  ax_lua_read_result r;
  ax_attrs wide = { .n_list = 0 };
  int given = lua_gettop(L);

  ax_lua_enter(L);
  if (given > 0 && ax_lua_to_box(L, 1)) { /* several tensors: as a list */
    int n = 0;
    while (n < given && ax_lua_to_box(L, n + 1)) n++;
    lua_createtable(L, n, 0);
    for (int k = 0; k < n; k++) {
      lua_pushvalue(L, k + 1);
      lua_rawseti(L, -2, k + 1);
    }
    lua_insert(L, 1);
    for (int k = 0; k < n; k++) lua_remove(L, 2);
  }
  ax_lua_read_args(L, AX_OP_MESHGRID, "meshgrid", &r);
  const int n = r.args.n_in, swap = r.args.a.meshgrid.indexing == 1 && n > 1;
  if (n > AX_MAX_DIMS)
    return ax_lua_error(L, "meshgrid", "%d tensors, but a grid has at most %d dims", n, AX_MAX_DIMS);
  for (int k = 0; k < n; k++) {
    if (r.args.in[k]->ndim > 1)
      return ax_lua_error(L, "meshgrid", "tensor %d has %d dims; expected vectors", k + 1,
                          r.args.in[k]->ndim);
    if (r.args.in[k]->dtype != r.args.in[0]->dtype)
      return ax_lua_error(L, "meshgrid", "tensor %d is %s, the first one %s", k + 1,
                          ax_dtype_name((ax_dtype)r.args.in[k]->dtype),
                          ax_dtype_name((ax_dtype)r.args.in[0]->dtype));
    wide.list[swap && k < 2 ? 1 - k : k] = r.args.in[k]->numel;
  }
  wide.n_list = n;
  for (int k = 0; k < n; k++) {
    ax_tensor **box = ax_lua_push_result(L), *results[AX_MAX_OUT];
    const int at = swap && k < 2 ? 1 - k : k;
    ax_attrs line = { .n_list = n };
    for (int d = 0; d < n; d++) line.list[d] = d == at ? r.args.in[k]->numel : 1;
    if (ax_run(AX_OP_VIEW, &(ax_args){ .n_in = 1, .in = &r.args.in[k], .a = line }, results) != AX_OK) {
      if (ax_run(AX_OP_RESHAPE, &(ax_args){ .n_in = 1, .in = &r.args.in[k], .a = line }, results) != AX_OK)
        return ax_lua_raise(L, "meshgrid");
    }
    ax_tensor *column = results[0];
    const ax_status st = ax_run(AX_OP_EXPAND, &(ax_args){ .n_in = 1, .in = &column, .a = wide }, results);
    ax_tensor_release(column);
    if (st != AX_OK) return ax_lua_raise(L, "meshgrid");
    *box = results[0];
  }
  return n;
}

/* einsum("bij,bjk->bik", a, b) or einsum("..", { a, b }). */
static int einsum(lua_State *L)
{
  const int given = lua_gettop(L), list = given == 2 && lua_istable(L, 2),
            n = list ? (int)lua_objlen(L, 2) : given - 1;
  ax_tensor **in, **box;

  ax_lua_enter(L);
  if (lua_type(L, 1) != LUA_TSTRING)
    return ax_lua_arg_error(L, "einsum", 1, "equation", "a string such as \"ij,jk->ik\"", 1);
  in = lua_newuserdata(L, sizeof *in * (size_t)(n > 0 ? n : 1));
  for (int k = 0; k < n; k++) {
    if (list) lua_rawgeti(L, 2, k + 1); /* the list keeps them alive */
    in[k] = ax_lua_opt_tensor(L, list ? -1 : k + 2, "einsum");
    if (!in[k])
      return ax_lua_arg_error(L, "einsum", list ? 2 : k + 2, "operands", "a tensor", list ? -1 : k + 2);
    if (list) lua_pop(L, 1);
  }
  box = ax_lua_push_result(L);
  if (ax_einsum(lua_tostring(L, 1), n, in, box) != AX_OK) return ax_lua_raise(L, "einsum");
  for (int k = 0; k < n; k++)
    if (*box == in[k]) { /* "ij->ij": the caller's own object */
      ax_tensor_release(ax_lua_empty_box(box));
      if (list) lua_rawgeti(L, 2, k + 1);
      else lua_pushvalue(L, k + 2);
      return 1;
    }
  return 1;
}

/* Other names that PyTorch has for some ops.  (`repeat` is a keyword of Lua: x["repeat"](x, 2, 3);
 * tile does the same.) */
static const struct {
  const char *name, *op;
} second_names[] = {
  { "repeat", "tile" },      { "swapaxes", "transpose" }, { "swapdims", "transpose" },
  { "moveaxis", "movedim" }, { "concat", "cat" },         { "broadcast_to", "expand" },
};

void ax_lua_open_split(lua_State *L)
{
  static const luaL_Reg functions[] = { { "split", split },       { "chunk", chunk },   { "unbind", unbind },
                                        { "meshgrid", meshgrid }, { "einsum", einsum }, { NULL, NULL } };
  static const luaL_Reg methods[] = {
    { "split", split }, { "chunk", chunk }, { "unbind", unbind }, { "meshgrid", meshgrid }, { NULL, NULL }
  };

  ax_lua_add_functions(L, functions);
  ax_lua_add_methods(L, methods);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_methods);
  for (size_t i = 0; i < sizeof second_names / sizeof *second_names; i++) {
    lua_getfield(L, -2, second_names[i].op);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, second_names[i].name);
    lua_setfield(L, -3, second_names[i].name);
  }
  lua_pop(L, 1);
}

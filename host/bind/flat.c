/* flat.c: layouts of parameters in flat buffers, for lua/accelerate/parallel. */
#include "bind/bind.h"
#include "bind/group.h"
#include "bind/hyper.h"
#include "eight.h"
#include "flat.h"
#include "place.h"

static void clear_layout(lua_State *L, void *object)
{
  ax_flat **f = object;
  ax_flat *former = *f;
  *f = NULL;
  if (former) former->full = NULL; /* no Lua function is left to call */
  ax_flat_release(former);
}

static const ax_lua_class layout_class;

static ax_flat *check_layout(lua_State *L, const char *fn)
{
  ax_lua_enter(L);
  return ax_lua_check_pointer(L, 1, &layout_class, fn);
}

static int check_bucket(lua_State *L, const ax_flat *f, const char *fn)
{
  return (int)ax_lua_check_integer(L, 2, fn, "bucket", 1, f->n_buckets) - 1;
}

/* core.flat(params, parts, bare) -> a layout, its number, the parameters' offsets in elements
 * counted from 0, and the number of elements of all slots; bare: see ax_flat_new_bare */
static int new_layout(lua_State *L)
{
  ax_tensor **params;
  ax_flat **f;
  int n;

  ax_lua_enter(L);
  lua_settop(L, 3);
  const bool bare = lua_toboolean(L, 3);
  const int parts = lua_isnil(L, 2) ? 1 : (int)ax_lua_check_integer(L, 2, "flat", "parts", 1, 1 << 20);
  params = ax_lua_push_params(L, 1, "flat", &n);
  for (int k = 0; k < n; k++) { /* so that ax_flat.params lead back to the script's own objects */
    lua_rawgeti(L, 1, k + 1);
    ax_lua_remember_handle(L, lua_gettop(L));
    lua_pop(L, 1);
  }
  f = ax_lua_push_object(L, &layout_class);
  if ((bare ? ax_flat_new_bare : ax_flat_new)(n, params, parts, f) != AX_OK) return ax_lua_raise(L, "flat");
  lua_pushnumber(L, (double)(*f)->number);
  lua_createtable(L, n, 0);
  for (int k = 0; k < n; k++) {
    lua_pushnumber(L, (double)(*f)->offsets[k]);
    lua_rawseti(L, -2, k + 1);
  }
  lua_pushnumber(L, (double)(*f)->size);
  return 4;
}

/* core.flat_of(p) -> the number of its layout and its slot there, counted from 1; nothing where it
 * has none */
static int flat_of(lua_State *L)
{
  const ax_tensor *p;
  ax_lua_enter(L);
  p = ax_lua_check_tensor(L, 1, "flat_of", "parameter");
  if (!p->flat) return 0;
  lua_pushnumber(L, (double)p->flat->number);
  lua_pushinteger(L, p->slot + 1);
  return 2;
}

/* ---- its buffers */

static int push_buffer(lua_State *L, ax_tensor *t)
{
  ax_tensor **box;
  if (!t) return 0;
  box = ax_lua_push_box(L);
  *box = ax_tensor_retain(t);
  return 1;
}

static int layout_values(lua_State *L) { return push_buffer(L, check_layout(L, "values")->values); }
static int layout_grads(lua_State *L) { return push_buffer(L, check_layout(L, "grads")->grads); }
static int layout_work(lua_State *L) { return push_buffer(L, check_layout(L, "work")->work); }

static int done(lua_State *L, ax_status st, const char *fn) { return st == AX_OK ? 0 : ax_lua_raise(L, fn); }

/* layout:give_grads(): makes the buffer of gradients */
static int give_grads(lua_State *L)
{
  return done(L, ax_flat_give_grads(check_layout(L, "give_grads")), "give_grads");
}

/* layout:give_work(dtype): makes the buffer of working copies.  Autocast writes a copy when it
 * first needs it; from then on optimizers do. */
static int give_work(lua_State *L)
{
  ax_flat *f = check_layout(L, "give_work");
  return done(L, ax_flat_give_work(f, ax_lua_check_dtype(L, 2, "give_work", "dtype")), "give_work");
}

static int push_flag(lua_State *L, bool flag)
{
  lua_pushboolean(L, flag);
  return 1;
}

static int is_current(lua_State *L)
{
  return push_flag(L, ax_flat_is_current(check_layout(L, "is_current")));
}
static int has_grad(lua_State *L) { return push_flag(L, ax_flat_has_grad(check_layout(L, "has_grad"))); }

/* layout:wants_grad() -> whether any parameter requires a gradient */
static int wants_grad(lua_State *L)
{
  const ax_flat *f = check_layout(L, "wants_grad");
  for (int k = 0; k < f->n; k++)
    if (f->params[k]->requires_grad) return push_flag(L, true);
  return push_flag(L, false);
}

static int scale_grads(lua_State *L)
{
  ax_flat *f = check_layout(L, "scale_grads");
  return done(L, ax_flat_scale_grads(f, ax_lua_check_number(L, 2, "scale_grads", "factor")), "scale_grads");
}

static int touch(lua_State *L)
{
  ax_flat_touch(check_layout(L, "touch"));
  return 0;
}

static int dissolve(lua_State *L)
{
  ax_flat_dissolve(check_layout(L, "dissolve"));
  return 0;
}

/* ---- homes */

/* layout:set_names(unit, names): for messages */
static int set_names(lua_State *L)
{
  ax_flat *f = check_layout(L, "set_names");
  const char **names;

  lua_settop(L, 3);
  luaL_checkstring(L, 2);
  luaL_checktype(L, 3, LUA_TTABLE);
  names = lua_newuserdata(L, sizeof *names * (size_t)f->n);
  for (int k = 0; k < f->n; k++) {
    lua_rawgeti(L, 3, k + 1); /* the table holds it */
    if (!(names[k] = lua_tostring(L, -1))) return ax_lua_error(L, "set_names", "a name is missing");
    lua_pop(L, 1);
  }
  return done(L, ax_flat_set_names(f, lua_tostring(L, 2), names), "set_names");
}

/* layout:cut_over(group, copies, values, grads, gathers): cuts states, and values and gradients
 * where these are true; gathers: the type that values are gathered in, nil: their own; see
 * ax_flat_cut_over */
static int cut_over(lua_State *L)
{
  ax_flat *f = check_layout(L, "cut_over");
  lua_settop(L, 6);
  ax_group *const group = ax_lua_group_at(L, 2, "cut_over"), *const copies =
                                                                 lua_isnil(L, 3)
                                                                     ? NULL
                                                                     : ax_lua_group_at(L, 3, "cut_over");
  const uint8_t cut =
      AX_CUT_STATES | (lua_toboolean(L, 4) ? AX_CUT_VALUES : 0) | (lua_toboolean(L, 5) ? AX_CUT_GRADS : 0);
  const ax_dtype gathers =
      lua_isnil(L, 6) ? (ax_dtype)f->dtype : ax_lua_check_dtype(L, 6, "cut_over", "gathers");

  return done(L, ax_flat_cut_over(f, group, copies, cut, gathers), "prepare");
}

/* layout:rest_in(place, values, grads, states, cut): which buffers rest in files; cut: the layout
 * is going to be cut; see ax_flat_rest_in */
static int rest_in(lua_State *L)
{
  ax_flat *f = check_layout(L, "rest_in");
  ax_place *p = ax_lua_check_place(L, 2, "rest_in");
  const uint8_t what = (lua_toboolean(L, 3) ? AX_CUT_VALUES : 0) | (lua_toboolean(L, 4) ? AX_CUT_GRADS : 0) |
                       (lua_toboolean(L, 5) ? AX_CUT_STATES : 0);
  return done(L, ax_flat_rest_in(f, p, what, lua_toboolean(L, 6)), "prepare");
}

/* layout:acquire(use): "compute", "read" or "write"; see ax_whole_use */
static int acquire(lua_State *L)
{
  static const char *const uses[] = { "compute", "read", "write", NULL };
  ax_flat *f = check_layout(L, "acquire");
  const ax_whole_use use = (ax_whole_use)luaL_checkoption(L, 2, NULL, uses);

  ax_lua_enter_collective(L);
  return done(L, ax_flat_acquire(f, use), "gather");
}

/* layout:gather_in_eight(via): see ax_flat_gather_in_eight */
static int gather_in_eight(lua_State *L)
{
  ax_flat *f = check_layout(L, "gather_in_eight");
  return done(L, ax_flat_gather_in_eight(f, ax_lua_check_dtype(L, 2, "gather_in_eight", "via")), "prepare");
}

/* layout:gathers_eight() -> whether its values are gathered in eight bits */
static int gathers_eight(lua_State *L)
{
  return push_flag(L, ax_flat_gathers_eight(check_layout(L, "gathers_eight")));
}

/* core.flat_in_eight(parameter, via) -> the parameter in eight bits, and 1 / its scale; nothing
 * where it is not gathered so, rounded to `via` before; see ax_flat_in_eight */
static int flat_in_eight(lua_State *L)
{
  ax_tensor *p, **values, **factor;
  ax_dtype via;

  ax_lua_enter(L);
  p = ax_lua_check_tensor(L, 1, "flat_in_eight", "parameter");
  via = ax_lua_check_dtype(L, 2, "flat_in_eight", "via");
  if (!p->flat || !ax_flat_gathers_eight(p->flat)) return 0;
  values = ax_lua_push_box(L);
  factor = ax_lua_push_box(L);
  if (ax_flat_in_eight(p, via, values, factor) != AX_OK) return ax_lua_raise(L, "gather");
  return *values ? 2 : 0;
}

/* core.flat_gathered() -> see ax_flat_gathered */
static int flat_gathered(lua_State *L)
{
  lua_pushnumber(L, (double)ax_flat_gathered());
  return 1;
}

/* core.flat_is_gathered(parameter, dtype) -> whether its values come in that type to a model's
 * forward and backward, and go after each of them */
static int flat_is_gathered(lua_State *L)
{
  ax_lua_enter(L);
  const ax_tensor *p = ax_lua_check_tensor(L, 1, "flat_is_gathered", "parameter");
  const ax_dtype dtype = ax_lua_check_dtype(L, 2, "flat_is_gathered", "dtype");
  const ax_home *h = p->flat ? &p->flat->home : NULL;
  return push_flag(L, h && h->cut & AX_CUT_VALUES && !h->shared && h->gathers == dtype);
}

/* layout:is_shared() -> whether the whole values are memory of all ranks */
static int is_shared(lua_State *L) { return push_flag(L, check_layout(L, "is_shared")->home.shared); }

/* layout:is_arriving() -> whether its values are being gathered ahead */
static int is_arriving(lua_State *L)
{
  return push_flag(L, check_layout(L, "is_arriving")->home.arriving != NULL);
}

/* layout:let_go(keep) */
static int let_go(lua_State *L)
{
  ax_flat_let_go(check_layout(L, "let_go"), lua_toboolean(L, 2));
  return 0;
}

static int drop_values(lua_State *L)
{
  ax_flat_drop_values(check_layout(L, "drop_values"));
  return 0;
}

static int has_values(lua_State *L)
{
  return push_flag(L, ax_flat_has_values(check_layout(L, "has_values")));
}

/* layout:computes(on): whether the model's forward is under way, so that whoever needs the values
 * gathers them */
static int computes(lua_State *L)
{
  ax_flat_compute(check_layout(L, "computes"), lua_toboolean(L, 2));
  return 0;
}

/* layout:deliver(dtype): dtype: what the gradients are rounded to before they are reduced; nil:
 * nothing */
static int deliver(lua_State *L)
{
  ax_flat *f = check_layout(L, "deliver");
  const ax_dtype as =
      lua_isnoneornil(L, 2) ? (ax_dtype)f->dtype : ax_lua_check_dtype(L, 2, "deliver", "dtype");

  ax_lua_enter_collective(L);
  return done(L, ax_flat_deliver(f, as), "gradients");
}

static int spread(lua_State *L)
{
  ax_lua_enter_collective(L);
  return done(L, ax_flat_spread(check_layout(L, "spread")), "step");
}

static int take_back(lua_State *L)
{
  return done(L, ax_flat_take_back(check_layout(L, "take_back")), "summon_full_params");
}

/* layout:piece(slot, rank?) -> where this rank's elements of the parameter begin, counted from 0,
 * how many there are, and a view of them in the memory where they rest (nil: there are none);
 * with a rank of the group that the layout is cut over, where its elements begin and how many
 * there are */
static int piece(lua_State *L)
{
  const ax_flat *f = check_layout(L, "piece");
  const int k = (int)ax_lua_check_integer(L, 2, "piece", "slot", 1, f->n) - 1;
  int64_t from;
  const bool other = !lua_isnoneornil(L, 3);
  const int rank = other ? (int)ax_lua_check_integer(L, 3, "piece", "rank", 0, 1 << 24) : 0;
  const int64_t n = other ? ax_flat_piece_of(f, k, rank, &from) : ax_flat_piece(f, k, &from);

  lua_pushnumber(L, (double)from);
  lua_pushnumber(L, (double)n);
  if (other) return 2;
  return 2 + push_buffer(L, f->home.value_piece ? f->home.value_piece[k] : NULL);
}

/* layout:own_grad(slot, make?) -> whether the parameter has a gradient, and what of it rests on
 * this rank (nil: nothing); make: a parameter whose gradient is cut gets one, whose piece is to be
 * written */
static int own_grad(lua_State *L)
{
  const ax_flat *f = check_layout(L, "own_grad");
  const int k = (int)ax_lua_check_integer(L, 2, "own_grad", "slot", 1, f->n) - 1;
  ax_tensor *p = f->params[k];
  ax_group *group;

  if (lua_toboolean(L, 3) && !p->grad && f->home.grads && p->flat == f)
    p->grad = ax_tensor_retain(f->slots[k].grad);
  lua_pushboolean(L, p->grad != NULL);
  return 1 + push_buffer(L, p->grad ? ax_flat_own_grad(p, &group) : NULL);
}

/* The layouts in the list at idx. */
static ax_flat **push_layouts(lua_State *L, int idx, const char *fn, int *n)
{
  ax_flat **list;

  luaL_checktype(L, idx, LUA_TTABLE);
  *n = (int)lua_objlen(L, idx);
  list = lua_newuserdata(L, sizeof *list * (size_t)(*n ? *n : 1));
  for (int k = 0; k < *n; k++) {
    lua_rawgeti(L, idx, k + 1);
    list[k] = ax_lua_check_pointer(L, -1, &layout_class, fn);
    lua_pop(L, 1);
  }
  return list;
}

/* core.flat_presence(layouts) -> see ax_flat_presence */
static int flat_presence(lua_State *L)
{
  int n;
  ax_lua_enter(L);
  ax_flat **list = push_layouts(L, 1, "flat_presence", &n);
  return done(L, ax_flat_presence(n, list, ax_lua_push_box(L)), "gradients"), 1;
}

/* core.flat_adopt(layouts, presence): see ax_flat_adopt_presence */
static int flat_adopt(lua_State *L)
{
  int n;
  ax_lua_enter(L);
  ax_flat **list = push_layouts(L, 1, "flat_adopt", &n);
  return done(L, ax_flat_adopt_presence(n, list, ax_lua_check_tensor(L, 2, "flat_adopt", "presence")),
              "gradients");
}

/* ---- reductions */

/* layout:cut(ends): cuts the slots into buckets; ends[k] is the last slot of the k-th */
static int cut(lua_State *L)
{
  ax_flat *f = check_layout(L, "cut");
  int n, *ends;

  luaL_checktype(L, 2, LUA_TTABLE);
  n = (int)lua_objlen(L, 2);
  ends = lua_newuserdata(L, sizeof *ends * (size_t)(n ? n : 1));
  for (int k = 0; k < n; k++) {
    lua_rawgeti(L, 2, k + 1);
    ends[k] = (int)ax_lua_check_integer(L, -1, "cut", "end", 1, f->n);
    lua_pop(L, 1);
  }
  return done(L, ax_flat_cut(f, n, ends), "cut");
}

typedef struct full_call {
  const ax_flat *f;
  int bucket, slot;
} full_call;

static int run_full(lua_State *L)
{
  const full_call *c = lua_touserdata(L, 1);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_full);
  lua_pushnumber(L, (double)c->f->number);
  lua_rawget(L, -2);
  if (!lua_isfunction(L, -1)) return 0;
  lua_pushinteger(L, c->bucket + 1);
  lua_pushboolean(L, c->f->buckets[c->bucket].pending < 0);
  lua_pushinteger(L, c->slot + 1);
  lua_call(L, 3, 0);
  return 0;
}

static ax_status call_full(ax_flat *f, int bucket, int slot)
{
  return ax_lua_protect(run_full, &(full_call){ f, bucket, slot });
}

/* layout:expect(full): see ax_flat_expect.  full(bucket, late, slot) is called during the backward
 * pass; late: the bucket was full before this gradient, that of `slot`, arrived.  The caller keeps
 * the function alive.  nil: no function is called. */
static int expect(lua_State *L)
{
  ax_flat *f = check_layout(L, "expect");
  lua_settop(L, 2);
  if (!lua_isnil(L, 2) && !lua_isfunction(L, 2))
    return ax_lua_arg_error(L, "expect", 2, "full", "a function or nil", 2);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_full);
  lua_pushnumber(L, (double)f->number);
  lua_pushvalue(L, 2);
  lua_rawset(L, -3);
  ax_flat_expect(f, lua_isnil(L, 2) ? NULL : call_full);
  return 0;
}

/* layout:ignore(): no function is called any more in this pass; gradients are still counted */
static int ignore(lua_State *L)
{
  check_layout(L, "ignore")->full = NULL;
  return 0;
}

static int remember(lua_State *L)
{
  return done(L, ax_flat_remember(check_layout(L, "remember")), "remember");
}

/* layout:reached() -> how many gradients backward passes have written so far */
static int reached(lua_State *L)
{
  lua_pushnumber(L, (double)check_layout(L, "reached")->reached);
  return 1;
}

/* layout:pending(bucket) -> how many gradients it waits for */
static int pending(lua_State *L)
{
  const ax_flat *f = check_layout(L, "pending");
  lua_pushinteger(L, f->buckets[check_bucket(L, f, "pending")].pending);
  return 1;
}

static int is_watched(lua_State *L)
{
  const ax_flat *f = check_layout(L, "is_watched");
  return push_flag(L, ax_flat_is_watched(f, check_bucket(L, f, "is_watched")));
}

/* layout:collect(bucket) -> false when a parameter was given other memory, so that the layout is
 * out of date; see ax_flat_collect */
static int collect(lua_State *L)
{
  ax_flat *f = check_layout(L, "collect");
  const int bucket = check_bucket(L, f, "collect");
  bool current;

  if (!f->grads) return ax_lua_error(L, "collect", "the layout keeps no gradients");
  if (ax_flat_collect(f, bucket, &current) != AX_OK) return ax_lua_raise(L, "gradients");
  return push_flag(L, current);
}

/* layout:adopt(again): see ax_flat_adopt */
static int adopt(lua_State *L)
{
  ax_flat *f = check_layout(L, "adopt");
  return done(L, ax_flat_adopt(f, lua_toboolean(L, 2)), "gradients");
}

static const luaL_Reg methods[] = {
  { "values", layout_values },
  { "grads", layout_grads },
  { "work", layout_work },
  { "give_grads", give_grads },
  { "give_work", give_work },
  { "is_current", is_current },
  { "has_grad", has_grad },
  { "wants_grad", wants_grad },
  { "scale_grads", scale_grads },
  { "touch", touch },
  { "dissolve", dissolve },
  { "cut", cut },
  { "expect", expect },
  { "ignore", ignore },
  { "remember", remember },
  { "reached", reached },
  { "pending", pending },
  { "is_watched", is_watched },
  { "collect", collect },
  { "adopt", adopt },
  { "set_names", set_names },
  { "cut_over", cut_over },
  { "acquire", acquire },
  { "let_go", let_go },
  { "is_arriving", is_arriving },
  { "computes", computes },
  { "deliver", deliver },
  { "spread", spread },
  { "piece", piece },
  { "take_back", take_back },
  { "has_values", has_values },
  { "is_shared", is_shared },
  { "gather_in_eight", gather_in_eight },
  { "gathers_eight", gathers_eight },
  { "drop_values", drop_values },
  { "own_grad", own_grad },
  { "rest_in", rest_in },
  { NULL, NULL },
};
static const ax_lua_class layout_class = { "a layout of parameters", sizeof(ax_flat *), clear_layout,
                                           methods };

void ax_lua_open_flat(lua_State *L)
{
  static const luaL_Reg functions[] = { { "flat", new_layout },
                                        { "flat_of", flat_of },
                                        { "flat_presence", flat_presence },
                                        { "flat_adopt", flat_adopt },
                                        { "flat_in_eight", flat_in_eight },
                                        { "flat_gathered", flat_gathered },
                                        { "flat_is_gathered", flat_is_gathered },
                                        { NULL, NULL } };
  ax_lua_open_class(L, &layout_class);
  ax_lua_add_functions(L, functions);
}

/* optim_group.c: the parameter groups of optimizers, for lua/accelerate/optim.
 *
 * The optimizer states of a parameter become a Lua table, { step = n, exp_avg = tensor, ... }, only
 * while a script reads them: `show` fills such tables, `take` reads what the script has changed in
 * them. */
#include "bind/hyper.h"
#include "capture.h"
#include "flat.h"

#include <stdio.h>

ax_capture *ax_lua_check_capture(lua_State *L, int idx, const char *fn);

/* step: how the errors of a step begin, "AdamW:step" */
typedef struct group_box {
  ax_optim_group *g;
  char step[48];
} group_box;

static void clear_group(lua_State *L, void *object)
{
  group_box *b = object;
  ax_optim_group *g = b->g;
  b->g = NULL;
  ax_optim_group_release(g);
}

static void clear_record(lua_State *L, void *object)
{
  ax_optim_record **r = object, *former = *r;
  *r = NULL;
  ax_optim_record_free(former);
}

static const ax_lua_class group_class, record_class;

static ax_optim_group *check_group(lua_State *L, int idx, const char *fn)
{
  ax_lua_enter(L);
  return ax_lua_check_pointer(L, idx, &group_class, fn);
}

static int check_member(lua_State *L, int idx, const ax_optim_group *g, const char *fn)
{
  return (int)ax_lua_check_integer(L, idx, fn, "member", 1, ax_optim_group_size(g)) - 1;
}

/* core.optim_group(kind, params, name) -> a group.  name: the optimizer's name in messages */
static int new_group(lua_State *L)
{
  static const char fn[] = "optim_group";
  ax_optim_kind kind;
  ax_tensor **params;
  group_box *box;
  int n;

  ax_lua_enter(L);
  lua_settop(L, 3);
  kind = ax_lua_check_kind(L, 1, fn);
  params = ax_lua_push_params(L, 2, fn, &n);
  for (int k = 0; k < n; k++) {
    lua_rawgeti(L, 2, k + 1);
    ax_lua_remember_handle(L, lua_gettop(L));
    lua_pop(L, 1);
  }
  box = ax_lua_push_object(L, &group_class);
  snprintf(box->step, sizeof box->step, "%.40s:step", lua_isstring(L, 3) ? lua_tostring(L, 3) : fn);
  if (ax_optim_group_new(kind, n, params, &box->g) != AX_OK) return ax_lua_raise(L, fn);
  return 1;
}

/* ---- the states of the members */

/* Sets a field of the table on the stack top to t's Lua object, or to nil.  An object of t that is
 * there already, the script's own, stays. */
static void set_tensor(lua_State *L, const char *name, ax_tensor *t)
{
  ax_tensor **box;

  lua_getfield(L, -1, name);
  box = ax_lua_to_box(L, -1);
  const bool there = t && box && *box == t;
  lua_pop(L, 1);
  if (there) return;
  if (t) ax_lua_push_handle(L, t);
  else lua_pushnil(L);
  lua_setfield(L, -2, name);
}

/* Writes the states into fields of the table on the stack top. */
static void write_kept(lua_State *L, ax_optim_kind kind, const ax_optim_kept *kept)
{
  const ax_optim_row *row = &ax_optims[kind];

  lua_pushnumber(L, (double)kept->step);
  lua_setfield(L, -2, "step");
  for (int k = 0; k < row->n_states; k++) {
    if (row->states[k].form != AX_STATE_NUMBER) set_tensor(L, row->states[k].name, kept->state[k]);
    else {
      lua_pushnumber(L, kept->number);
      lua_setfield(L, -2, row->states[k].name);
    }
  }
}

/* Reads the states of member i from the table on the stack top.  Tensors are borrowed: the table
 * holds them. */
static void read_kept(lua_State *L, const char *fn, ax_optim_kind kind, int i, ax_optim_kept *out)
{
  const ax_optim_row *row = &ax_optims[kind];

  *out = (ax_optim_kept){ 0 };
  lua_getfield(L, -1, "step");
  if (!ax_lua_to_integer(L, -1, &out->step) || out->step < 0)
    ax_lua_error(L, fn, "states: entry %d: step: expected an integer of at least 0, got %s", i + 1,
                 ax_lua_describe(L, -1));
  lua_pop(L, 1);
  for (int k = 0; k < row->n_states; k++) {
    lua_getfield(L, -1, row->states[k].name);
    if (row->states[k].form == AX_STATE_NUMBER)
      out->number = ax_lua_check_number(L, -1, fn, row->states[k].name);
    else if (!lua_isnil(L, -1) && !(out->state[k] = ax_lua_opt_tensor(L, -1, fn)))
      ax_lua_error(L, fn, "states: entry %d: %s: expected a tensor, got %s", i + 1, row->states[k].name,
                   ax_lua_describe(L, -1));
    lua_pop(L, 1);
  }
}

/* group:get(member) -> a table of the member's states; nothing where it was never stepped */
static int group_get(lua_State *L)
{
  const ax_optim_group *g = check_group(L, 1, "get");
  ax_optim_kept kept;

  if (!ax_optim_group_get(g, check_member(L, 2, g, "get"), &kept)) return 0;
  lua_newtable(L);
  write_kept(L, ax_optim_group_kind(g), &kept);
  return 1;
}

/* group:overwrites(member, table) -> whether group:load writes over what the member has */
static int group_overwrites(lua_State *L)
{
  const ax_optim_group *g = check_group(L, 1, "overwrites");
  const int i = check_member(L, 2, g, "overwrites");
  ax_optim_kept kept;

  luaL_checktype(L, 3, LUA_TTABLE);
  lua_settop(L, 3);
  read_kept(L, "load_state_dict", ax_optim_group_kind(g), i, &kept);
  lua_pushboolean(L, ax_optim_group_overwrites(g, i, &kept));
  return 1;
}

/* group:load(member, table): sets the member's states to copies of the table's */
static int group_load(lua_State *L)
{
  ax_optim_group *g = check_group(L, 1, "load");
  const int i = check_member(L, 2, g, "load");
  ax_optim_kept kept;

  luaL_checktype(L, 3, LUA_TTABLE);
  lua_settop(L, 3);
  read_kept(L, "load_state_dict", ax_optim_group_kind(g), i, &kept);
  if (ax_optim_group_load(g, i, &kept) != AX_OK) return ax_lua_raise(L, "load_state_dict");
  return 0;
}

/* group:show(view): view[parameter] becomes a table of states for every member that was stepped; a
 * table that is there already is filled again */
static int group_show(lua_State *L)
{
  const ax_optim_group *g = check_group(L, 1, "show");
  ax_optim_kept kept;

  luaL_checktype(L, 2, LUA_TTABLE);
  for (int i = 0; i < ax_optim_group_size(g); i++) {
    lua_settop(L, 2);
    ax_lua_push_handle(L, ax_optim_group_param(g, i));
    lua_pushvalue(L, 3);
    if (!ax_optim_group_get(g, i, &kept)) lua_pushnil(L);
    else {
      lua_pushvalue(L, 3);
      lua_rawget(L, 2);
      if (!lua_istable(L, -1)) {
        lua_pop(L, 1);
        lua_newtable(L);
      }
      write_kept(L, ax_optim_group_kind(g), &kept);
    }
    lua_rawset(L, 2);
  }
  return 0;
}

/* group:take(view): the tables in `view`, which the script may have changed, become the members'
 * states; members without a table have none from now on */
static int group_take(lua_State *L)
{
  group_box *box = ax_lua_check_object(L, 1, &group_class, "take");
  ax_optim_group *g = check_group(L, 1, "take");
  ax_optim_kept kept, former;

  luaL_checktype(L, 2, LUA_TTABLE);
  for (int i = 0; i < ax_optim_group_size(g); i++) {
    const bool begun = ax_optim_group_get(g, i, &former);
    lua_settop(L, 2);
    ax_lua_push_handle(L, ax_optim_group_param(g, i));
    lua_rawget(L, 2);
    if (lua_isnil(L, -1)) {
      if (begun) ax_optim_group_set(g, i, NULL);
      continue;
    }
    if (!lua_istable(L, -1))
      return ax_lua_error(L, box->step, "states: entry %d: expected a table, got %s", i + 1,
                          ax_lua_describe(L, -1));
    read_kept(L, box->step, ax_optim_group_kind(g), i, &kept);
    if (begun && kept.step == former.step && kept.number == former.number &&
        memcmp(kept.state, former.state, sizeof kept.state) == 0)
      continue;
    if (ax_optim_group_set(g, i, &kept) != AX_OK) return ax_lua_raise(L, box->step);
  }
  return 0;
}

/* group:inherit(other): takes over the states of parameters that are in both groups */
static int group_inherit(lua_State *L)
{
  ax_optim_group *g = check_group(L, 1, "inherit");
  ax_optim_group_inherit(g, check_group(L, 2, "inherit"));
  return 0;
}

static int group_relayout(lua_State *L)
{
  if (ax_optim_group_relayout(check_group(L, 1, "relayout")) != AX_OK) return ax_lua_raise(L, "relayout");
  return 0;
}

static int group_size(lua_State *L)
{
  lua_pushinteger(L, ax_optim_group_size(check_group(L, 1, "size")));
  return 1;
}

/* group:segments() -> the number of segments of the last step */
static int group_segments(lua_State *L)
{
  lua_pushinteger(L, ax_optim_group_segments(check_group(L, 1, "segments")));
  return 1;
}

static int group_zero_grad(lua_State *L)
{
  const ax_optim_group *g = check_group(L, 1, "zero_grad");
  for (int i = 0; i < ax_optim_group_size(g); i++) ax_zero_grad(ax_optim_group_param(g, i));
  return 0;
}

/* ---- steps */

/* The memory of field `name` of the table of device numbers at idx, or NULL.  The field must be a
 * contiguous tensor of `dtype` on the parameters' device. */
static void *device_arg(lua_State *L, int idx, const char *fn, const char *name, ax_dtype dtype,
                        int64_t numel, ax_device device, bool written)
{
  char a[16], b[16];
  ax_tensor *t;

  lua_getfield(L, idx, name);
  if (lua_isnil(L, -1)) return lua_pop(L, 1), NULL;
  t = ax_lua_opt_tensor(L, -1, fn);
  if (!t) ax_lua_error(L, fn, "device_args: %s: expected a tensor, got %s", name, ax_lua_describe(L, -1));
  if (t->dtype != dtype || t->numel != numel || !ax_tensor_is_contiguous(t))
    ax_lua_error(L, fn, "device_args: %s must be %lld elements of %s, contiguous, got %lld of %s", name,
                 (long long)numel, ax_dtype_name(dtype), (long long)t->numel,
                 ax_dtype_name((ax_dtype)t->dtype));
  if (!ax_same_device(t->device, device))
    ax_lua_error(L, fn, "device_args: %s lies on %s and the parameters on %s", name,
                 ax_device_text(t->device, a, sizeof a), ax_device_text(device, b, sizeof b));
  if (ax_tensor_ready(t, written ? AX_WRITE : AX_READ) != AX_OK) ax_lua_raise(L, fn);
  if (written) ax_touch(t);
  lua_pop(L, 1); /* the table holds it */
  return ax_data(t);
}

/* Pushes a list of the records; takes them. */
static void push_records(lua_State *L, ax_optim_record **records)
{
  lua_newtable(L);
  for (int n = 1; *records; n++) {
    ax_optim_record **box = ax_lua_push_object(L, &record_class);
    *box = *records;
    *records = ax_optim_record_next(*box);
    lua_rawseti(L, -2, n);
  }
}

/* group:step(hyper, device_args, recorded): one update.  device_args: nil; a float32 tensor on the
 * parameters' device, not 0 where the step is to be skipped; or { skip = float32, skipped = int64,
 * hyper = optim_hyper's, ran = int64 }, tensors on that device, each optional: see
 * ax_optim_device_args.  Step counts rise whether or not the device skips the step.  recorded true:
 * returns a list of records, one for each kernel call. */
static int group_step(lua_State *L)
{
  group_box *box = ax_lua_check_object(L, 1, &group_class, "step");
  ax_optim_group *g = check_group(L, 1, box->step);
  ax_optim_record *records = NULL;
  ax_optim_call call = { 0 };
  ax_optim_device_args device_args;
  ax_hyper h;
  ax_status st;

  lua_settop(L, 4);
  ax_lua_read_hyper(L, 2, box->step, ax_optim_group_kind(g), &h);
  if (lua_istable(L, 3) && ax_optim_group_size(g) > 0) {
    const ax_device d = ax_optim_group_param(g, 0)->device;
    device_args.skip = device_arg(L, 3, box->step, "skip", AX_F32, 1, d, false);
    device_args.skipped = device_arg(L, 3, box->step, "skipped", AX_I64, 1, d, true);
    device_args.hyper = device_arg(L, 3, box->step, "hyper", AX_U8, (int64_t)sizeof(ax_hyper), d, false);
    device_args.ran = device_arg(L, 3, box->step, "ran", AX_I64, 1, d, false);
    call.device_args = &device_args;
  } else if (!lua_isnil(L, 3)) call.skip = ax_lua_check_tensor(L, 3, box->step, "skip");
  if (lua_toboolean(L, 4)) call.records = &records;
  st = ax_optim_group_step(g, &h, &call);
  if (st != AX_OK) {
    while (records) {
      ax_optim_record *r = records;
      records = ax_optim_record_next(r);
      ax_optim_record_free(r);
    }
    return ax_lua_raise(L, box->step);
  }
  if (!call.records) return 0;
  push_records(L, &records);
  return 1;
}

/* group:settle(): subtracts the steps that a device skipped from the counts; waits for the
 * device */
static int group_settle(lua_State *L)
{
  if (ax_optim_group_settle(check_group(L, 1, "settle")) != AX_OK) return ax_lua_raise(L, "settle");
  return 0;
}

/* ---- records */

static ax_optim_record *check_record(lua_State *L, const char *fn)
{
  ax_lua_enter(L);
  return ax_lua_check_pointer(L, 1, &record_class, fn);
}

/* record:again(kind, hyper, capture): prepares a replay */
static int record_again(lua_State *L)
{
  ax_optim_record *r = check_record(L, "again");
  ax_hyper h;

  ax_lua_read_hyper(L, 3, "again", ax_lua_check_kind(L, 2, "again"), &h);
  ax_optim_record_again(r, ax_lua_check_capture(L, 4, "again"), &h);
  return 0;
}

static int record_undo(lua_State *L)
{
  ax_optim_record_undo(check_record(L, "undo"));
  return 0;
}

/* record:misfit(kind, hyper) -> the reason why a replay would be wrong now, or nothing */
static int record_misfit(lua_State *L)
{
  const ax_optim_record *r = check_record(L, "misfit");
  const char *why;
  ax_hyper h;

  ax_lua_read_hyper(L, 3, "misfit", ax_lua_check_kind(L, 2, "misfit"), &h);
  if (!(why = ax_optim_record_misfit(r, &h))) return 0;
  lua_pushstring(L, why);
  return 1;
}

static const luaL_Reg group_methods[] = {
  { "get", group_get },
  { "load", group_load },
  { "overwrites", group_overwrites },
  { "show", group_show },
  { "take", group_take },
  { "inherit", group_inherit },
  { "relayout", group_relayout },
  { "size", group_size },
  { "segments", group_segments },
  { "zero_grad", group_zero_grad },
  { "step", group_step },
  { "settle", group_settle },
  { NULL, NULL },
};
static const luaL_Reg record_methods[] = {
  { "again", record_again }, { "undo", record_undo }, { "misfit", record_misfit }, { NULL, NULL }
};
static const ax_lua_class group_class = { "an optimizer group", sizeof(group_box), clear_group,
                                          group_methods };
static const ax_lua_class record_class = { "a recorded optimizer step", sizeof(ax_optim_record *),
                                           clear_record, record_methods };

void ax_lua_open_optim_group(lua_State *L)
{
  static const luaL_Reg functions[] = { { "optim_group", new_group }, { NULL, NULL } };
  ax_lua_open_class(L, &group_class);
  ax_lua_open_class(L, &record_class);
  ax_lua_add_functions(L, functions);
}

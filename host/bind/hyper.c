/* hyper.c: the kinds of optimizers, and the numbers of their steps. */
#include "bind/hyper.h"

/* Pushes the value of field `name` of the table at idx; raises when it is missing. */
static void push_field(lua_State *L, int idx, const char *fn, const char *name)
{
  lua_getfield(L, idx, name);
  if (lua_isnil(L, -1)) ax_lua_error(L, fn, "hyper: %s is missing", name);
}

static void number_field(lua_State *L, int idx, const char *fn, const char *name, double *out)
{
  push_field(L, idx, fn, name);
  *out = ax_lua_check_number(L, -1, fn, name);
  lua_pop(L, 1);
}

static void flag_field(lua_State *L, int idx, const char *fn, const char *name, bool *out)
{
  push_field(L, idx, fn, name);
  *out = ax_lua_check_boolean(L, -1, fn, name);
  lua_pop(L, 1);
}

static void pair_field(lua_State *L, int idx, const char *fn, const char *name, double *out)
{
  push_field(L, idx, fn, name);
  if (!lua_istable(L, -1) || lua_objlen(L, -1) != 2)
    ax_lua_error(L, fn, "%s: expected a list of two numbers, got %s", name, ax_lua_describe(L, -1));
  for (int k = 0; k < 2; k++) {
    lua_rawgeti(L, -1, k + 1);
    out[k] = ax_lua_check_number(L, -1, fn, name);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* Whether `name` is one of the words of `list`. */
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

/* Reads all hyperparameters that `kind` takes from the table at idx. */
void ax_lua_read_hyper(lua_State *L, int idx, const char *fn, ax_optim_kind kind, ax_hyper *h)
{
  const uint32_t takes = taken[kind];
  if (!lua_istable(L, idx)) ax_lua_arg_error(L, fn, idx, "hyper", "a table", idx);
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

ax_optim_kind ax_lua_check_kind(lua_State *L, int idx, const char *fn)
{
  static const char *names[AX_OPTIM_COUNT];
  const char *given = lua_type(L, idx) == LUA_TSTRING ? lua_tostring(L, idx) : "", *near;
  for (int k = 0; k < AX_OPTIM_COUNT; k++) {
    names[k] = ax_optims[k].name;
    if (strcmp(names[k], given) == 0) return (ax_optim_kind)k;
  }
  near = ax_lua_nearest(given, names, AX_OPTIM_COUNT);
  if (near) ax_lua_error(L, fn, "kind: no optimizer is called '%s'; did you mean '%s'?", given, near);
  return (ax_optim_kind)ax_lua_arg_error(L, fn, idx, "kind", "the name of an optimizer", idx);
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

/* core.optim_needs(kind, hyper) -> which states are kept: bit k - 1 for the k-th */
static int optim_needs(lua_State *L)
{
  ax_hyper h;
  ax_optim_kind kind;
  ax_lua_enter(L);
  lua_settop(L, 2);
  kind = ax_lua_check_kind(L, 1, "optim_needs");
  ax_lua_read_hyper(L, 2, "optim_needs", kind, &h);
  lua_pushinteger(L, (lua_Integer)ax_optim_needs(kind, &h));
  return 1;
}

/* core.optim_hyper(kind, hyper) -> a uint8 tensor on the CPU: the hyperparameters in the form that
 * a step reads from device memory (device_args.hyper) */
static int optim_hyper(lua_State *L)
{
  const int64_t size = (int64_t)sizeof(ax_hyper);
  ax_optim_kind kind;
  ax_tensor **box;
  ax_hyper h;

  ax_lua_enter(L);
  lua_settop(L, 2);
  kind = ax_lua_check_kind(L, 1, "optim_hyper");
  ax_lua_read_hyper(L, 2, "optim_hyper", kind, &h);
  box = ax_lua_push_box(L);
  if (ax_tensor_new(AX_U8, 1, &size, box) != AX_OK) return ax_lua_raise(L, "optim_hyper");
  memcpy(ax_data(*box), &h, sizeof h);
  return 1;
}

void ax_lua_open_hyper(lua_State *L)
{
  static const luaL_Reg functions[] = { { "optim_kinds", optim_kinds },
                                        { "optim_needs", optim_needs },
                                        { "optim_hyper", optim_hyper },
                                        { NULL, NULL } };
  find_taken();
  ax_lua_add_functions(L, functions);
}

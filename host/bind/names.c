/* bind/names.c: names that PyTorch has for arguments which have another one here. */
#include "bind/bind.h"

#include <string.h>

/* fn NULL: in every function that has the parameter; with a dot at its end: in those of a
 * module. */
static const struct {
  const char *fn, *name, *pytorch;
} others[] = {
  { NULL, "x", "input" },
  { NULL, "a", "input" },
  { NULL, "b", "other" },
  { NULL, "shape", "size" },
  { NULL, "dim", "axis" },
  { NULL, "keepdim", "keepdims" },
  { "linalg.vecdot", "a", "x" },
  { "linalg.vecdot", "b", "y" },
  { "linalg.", "x", "A" },
  { "linalg.", "a", "A" },
  { "linalg.", "b", "B" },
  { "bmm", "b", "mat2" },
  { "mm", "b", "mat2" },
  { "mv", "mat", "input" },
  { "dot", "b", "tensor" },
  { "outer", "b", "vec2" },
  { "pow", "b", "exponent" },
  { "lerp", "start", "input" },
  { "logspace", "stop", "end" },
  { "one_hot", "x", "tensor" },
  { "searchsorted", "values", "input" },
  { "slice_scatter", "stop", "end" },
  { "split", "x", "tensor" },
  { "split", "split_size", "split_size_or_sections" },
  { "take_along_dim", "index", "indices" },
  { "tile", "repeats", "dims" },
  { "unfold", "dim", "dimension" },
};

/* Whether fn is the function of this name, or its form in place; or one of the module "name.". */
static bool same_function(const char *fn, const char *name)
{
  const size_t n = strlen(name);
  return strncmp(fn, name, n) == 0 && (fn[n] == '\0' || strcmp(fn + n, "_") == 0 || name[n - 1] == '.');
}

static bool has_param(const ax_signature *sig, const char *name)
{
  for (int i = 0; i < sig->n; i++)
    if (strcmp(sig->param[i].name, name) == 0) return true;
  return false;
}

static const char *name_here(const ax_signature *sig, const char *fn, const char *given)
{
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (strcmp(others[i].pytorch, given) == 0 && (!others[i].fn || same_function(fn, others[i].fn)) &&
        has_param(sig, others[i].name))
      return others[i].name;
  return NULL;
}

/* Raises what ax_lua_check_options raises. */
static void refuse(lua_State *L, int idx, const char *fn, const ax_signature *sig)
{
  const char *names[AX_MAX_PARAMS];
  for (int i = 0; i < sig->n; i++) names[i] = sig->param[i].name;
  ax_lua_check_options(L, idx, fn, names, sig->n);
}

void ax_lua_rename_option(lua_State *L, int idx, const char *fn, const char *from, const char *to)
{
  lua_getfield(L, idx, to);
  if (!lua_isnil(L, -1)) ax_lua_error(L, fn, "%s is given twice, as \"%s\" and as \"%s\"", to, to, from);
  lua_pop(L, 1);
  lua_newtable(L);
  lua_pushnil(L);
  while (lua_next(L, idx)) {
    if (lua_type(L, -2) == LUA_TSTRING && strcmp(lua_tostring(L, -2), from) == 0) lua_pushstring(L, to);
    else lua_pushvalue(L, -2);
    lua_insert(L, -2);
    lua_rawset(L, -4);
  }
  lua_replace(L, idx);
}

void ax_lua_settle_names(lua_State *L, int idx, const char *fn, const ax_signature *sig)
{
  lua_pushnil(L);
  while (lua_next(L, idx)) {
    const char *given, *name;
    lua_pop(L, 1);
    given = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
    if (given && has_param(sig, given)) continue;
    name = given ? name_here(sig, fn, given) : NULL;
    if (!name) refuse(L, idx, fn, sig);
    ax_lua_rename_option(L, idx, fn, given, name); /* `given` stays on the stack */
    lua_pop(L, 1);
    lua_pushnil(L); /* the table is another one: from its beginning */
  }
}

void ax_lua_place_named(lua_State *L, const char *fn, int first, const char *const *names, int n)
{
  const int last = lua_gettop(L);

  if (last < first || !ax_lua_is_options(L, last, false)) return;
  ax_lua_check_options(L, last, fn, names, n);
  for (int i = 0; i < n; i++) {
    lua_getfield(L, last, names[i]);
    if (first + i >= last) continue;
    if (!lua_isnil(L, -1)) ax_lua_error(L, fn, "%s is given twice, by position and by name", names[i]);
    lua_pop(L, 1);
  }
  lua_remove(L, last);
}

/* bind/yaml.c: YAML and JSON texts as Lua values: core._yaml_read, core._yaml_null,
 * core._yaml_plain. */
#include "bind/bind.h"
#include "yaml_tree.h"

static void clear_tree(lua_State *L, void *object)
{
  ax_yaml **y = object;
  ax_yaml_free(*y);
  *y = NULL;
}

static const ax_lua_class tree_class = { "the tree of a YAML text", sizeof(ax_yaml *), clear_tree, NULL };

/* Where the values are on the stack while a tree is pushed. */
enum { NAME = 1, TEXT, JSON, TREE, MEMO, LINES };

static void push(lua_State *L, const ax_yaml_node *n);

static void push_collection(lua_State *L, const ax_yaml_node *n)
{
  int i = 1;

  luaL_checkstack(L, 8, "yaml");
  if (n->anchored) { /* an alias is the anchor's table itself */
    lua_pushlightuserdata(L, (void *)n->origin);
    lua_rawget(L, MEMO);
    if (!lua_isnil(L, -1)) return;
    lua_pop(L, 1);
  }
  lua_newtable(L); /* the value */
  lua_newtable(L); /* its lines */
  if (n->kind == AX_YAML_LIST) {
    for (const ax_yaml_node *e = n->first; e; e = e->next, i++) {
      push(L, e);
      lua_rawseti(L, -3, i);
      lua_pushinteger(L, e->line);
      lua_rawseti(L, -2, i);
    }
  } else {
    for (const ax_yaml_node *e = n->first; e; e = e->next->next) {
      push(L, e);
      lua_pushvalue(L, -1);
      lua_pushinteger(L, e->line);
      lua_rawset(L, -4);
      push(L, e->next);
      lua_rawset(L, -4);
    }
  }
  lua_pushvalue(L, -2);
  lua_insert(L, -2);
  lua_rawset(L, LINES); /* lines[value] */
  if (n->anchored) {
    lua_pushlightuserdata(L, (void *)n->origin);
    lua_pushvalue(L, -2);
    lua_rawset(L, MEMO);
  }
}

static void push(lua_State *L, const ax_yaml_node *n)
{
  switch (n->kind) {
  case AX_YAML_NULL: lua_pushlightuserdata(L, NULL); break;
  case AX_YAML_BOOL: lua_pushboolean(L, n->truth); break;
  case AX_YAML_INT:
  case AX_YAML_FLOAT: lua_pushnumber(L, n->number); break;
  case AX_YAML_TEXT: lua_pushlstring(L, n->text, n->size); break;
  default: push_collection(L, n);
  }
}

/* core._yaml_read(name, text, json) -> value, lines; or nil and what is wrong.  lines[t][k] is the
 * line of entry k of table t of the value.  Null is core._yaml_null. */
static int yaml_read(lua_State *L)
{
  const char *text;
  ax_yaml **tree;
  size_t n;

  ax_lua_enter(L);
  luaL_checkstring(L, NAME);
  text = luaL_checklstring(L, TEXT, &n);
  lua_settop(L, JSON);
  tree = ax_lua_push_object(L, &tree_class);
  if (ax_yaml_parse(lua_tostring(L, NAME), text, n, lua_toboolean(L, JSON), tree) != AX_OK) {
    lua_pushnil(L);
    lua_pushstring(L, ax_last_error());
    return 2;
  }
  lua_newtable(L);
  lua_newtable(L);
  push(L, ax_yaml_root(*tree));
  clear_tree(L, tree);
  lua_pushvalue(L, LINES);
  return 2;
}

/* core._yaml_plain(text) -> whether the text without quotes would be the text itself, and not a
 * number or a word with a meaning */
static int yaml_plain(lua_State *L)
{
  double number;
  bool truth;
  size_t n;
  const char *text = luaL_checklstring(L, 1, &n);

  lua_pushboolean(L, ax_yaml_resolve(text, n, &truth, &number) == AX_YAML_TEXT);
  return 1;
}

void ax_lua_open_yaml(lua_State *L)
{
  static const luaL_Reg functions[] = { { "_yaml_read", yaml_read },
                                        { "_yaml_plain", yaml_plain },
                                        { NULL, NULL } };
  ax_lua_open_class(L, &tree_class);
  ax_lua_add_functions(L, functions);
  lua_pushlightuserdata(L, NULL);
  lua_setfield(L, -2, "_yaml_null");
}

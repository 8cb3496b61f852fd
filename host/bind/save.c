/* bind/save.c: the files of a checkpoint that are written together, and its manifest:
 * core._save_… and core._manifest…. */
#include "bind/bind.h"
#include "io.h"
#include "manifest.h"

#include <limits.h>

static void clear_save(lua_State *L, void *object)
{
  ax_save **s = object;
  ax_save_free(*s);
  *s = NULL;
}

static const ax_lua_class save_class;
static ax_save *check_save(lua_State *L, const char *fn)
{
  ax_lua_enter(L);
  return ax_lua_check_pointer(L, 1, &save_class, fn);
}

ax_save *ax_lua_opt_save(lua_State *L, int idx, const char *fn)
{
  return lua_isnoneornil(L, idx) ? NULL : ax_lua_check_pointer(L, idx, &save_class, fn);
}

/* core._save_new(folder, rank) -> save */
static int save_new(lua_State *L)
{
  const char *folder;
  ax_save **s;
  int rank;

  ax_lua_enter(L);
  folder = ax_lua_check_path(L, "save_new");
  rank = (int)ax_lua_check_integer(L, 2, "save_new", "rank", 0, 1 << 24);
  s = ax_lua_push_object(L, &save_class);
  if (ax_save_new(folder, rank, s) != AX_OK) return ax_lua_raise(L, "save_new");
  return 1;
}

static const char *text_field(lua_State *L, int idx, const char *name, bool required)
{
  const char *s;

  lua_getfield(L, idx, name);
  s = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
  if (!s && (required || !lua_isnil(L, -1))) ax_lua_arg_error(L, "save", 0, name, "a string", lua_gettop(L));
  lua_pop(L, 1); /* the table holds it */
  return s;
}

static int integer_field(lua_State *L, int idx, const char *name)
{
  int n;
  lua_getfield(L, idx, name);
  n = (int)ax_lua_check_integer(L, lua_gettop(L), "save", name, 0, 1 << 24);
  lua_pop(L, 1);
  return n;
}

/* The table at idx, whose texts it keeps, as a commit. */
static ax_commit check_commit(lua_State *L, int idx)
{
  if (!lua_istable(L, idx)) ax_lua_arg_error(L, "save", idx, "commit", "a table", idx);
  return (ax_commit){ .first = integer_field(L, idx, "first"),
                      .ranks = integer_field(L, idx, "ranks"),
                      .draft = text_field(L, idx, "draft", true),
                      .path = text_field(L, idx, "path", true),
                      .facts = text_field(L, idx, "facts", true),
                      .former = text_field(L, idx, "former", false),
                      .old = text_field(L, idx, "old", false) };
}

/* save:write() */
static int save_write(lua_State *L)
{
  ax_save *s = check_save(L, "write");
  if (ax_save_write(s) != AX_OK) return ax_lua_raise(L, "save");
  return 0;
}

/* save:start(commit?): a thread writes; the object is used up */
static int save_start(lua_State *L)
{
  ax_save *s = check_save(L, "start");
  ax_commit c;

  if (!lua_isnoneornil(L, 2)) c = check_commit(L, 2);
  if (ax_save_start(s, lua_isnoneornil(L, 2) ? NULL : &c) != AX_OK) return ax_lua_raise(L, "save");
  *(ax_save **)ax_lua_to_object(L, 1, &save_class) = NULL;
  return 0;
}

static int push_note(lua_State *L, const char *note)
{
  if (*note) lua_pushstring(L, note);
  else lua_pushnil(L);
  return 1;
}

/* core._save_commit { first =, ranks =, draft =, path =, facts =, former =, old = } -> nil, or what
 * went wrong afterwards */
static int save_commit(lua_State *L)
{
  char note[AX_NOTE];
  ax_commit c;

  ax_lua_enter(L);
  c = check_commit(L, 1);
  if (ax_commit_run(&c, AX_OK, note) != AX_OK) return ax_lua_raise(L, "save");
  return push_note(L, note);
}

/* core._save_draft(path) -> the folder that ranks write a checkpoint at `path` into */
static int save_draft(lua_State *L)
{
  char draft[PATH_MAX];
  const char *path;

  ax_lua_enter(L);
  path = ax_lua_check_path(L, "save_draft");
  if (ax_commit_draft(path, draft, sizeof draft) != AX_OK) return ax_lua_raise(L, "save_state");
  lua_pushstring(L, draft);
  return 1;
}

/* core._save_under_way() -> whether a thread writes */
static int save_under_way(lua_State *L)
{
  ax_lua_enter(L);
  lua_pushboolean(L, ax_save_under_way());
  return 1;
}

/* core._manifest() -> the name of a manifest, and the number of its format */
static int manifest(lua_State *L)
{
  lua_pushliteral(L, AX_MANIFEST);
  lua_pushinteger(L, AX_MANIFEST_FORMAT);
  return 2;
}

/* core._manifest_is_whole(text) -> whether its checksum holds */
static int manifest_is_whole(lua_State *L)
{
  size_t n;
  const char *text = luaL_checklstring(L, 1, &n);
  lua_pushboolean(L, ax_manifest_is_whole(text, n));
  return 1;
}

/* core._save_hold(on): for tests */
static int save_hold(lua_State *L)
{
  ax_lua_enter(L);
  ax_save_hold(lua_toboolean(L, 1));
  return 0;
}

/* core._save_wait(): waits for the thread; raises what went wrong -> nil, or what went wrong
 * afterwards */
static int save_wait(lua_State *L)
{
  ax_lua_enter(L);
  if (ax_save_wait() != AX_OK) return ax_lua_raise(L, "save_state");
  return push_note(L, ax_save_note());
}

static const luaL_Reg save_methods[] = {
  { "write", save_write },
  { "start", save_start },
  { NULL, NULL },
};
static const ax_lua_class save_class = { "a save", sizeof(ax_save *), clear_save, save_methods };

void ax_lua_open_save(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "_save_new", save_new },
    { "_save_commit", save_commit },
    { "_save_under_way", save_under_way },
    { "_save_draft", save_draft },
    { "_save_hold", save_hold },
    { "_save_wait", save_wait },
    { "_manifest", manifest },
    { "_manifest_is_whole", manifest_is_whole },
    { NULL, NULL },
  };

  ax_lua_open_class(L, &save_class);
  ax_lua_add_functions(L, functions);
}

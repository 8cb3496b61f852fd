/* bind.c: opens accelerate.core part by part, keeps the Lua values that C refers to, and calls Lua
 * functions from C. */
#include "bind/bind.h"
#include "settings/plan.h"

#include <stdlib.h>

_Thread_local ax_lua_globals ax_lua;

/* ---- calling Lua from under the core, where nothing may jump */

ax_status ax_lua_protect(lua_CFunction fn, void *p)
{
  lua_State *L = ax_lua.L;
  const char *text;

  if (!ax_lua.open || !lua_checkstack(L, 8)) return ax_fail(AX_ENOMEM, "Lua's stack is full");
  if (lua_cpcall(L, fn, p) == 0) {
    ax_lua.L = L;
    return AX_OK;
  }
  ax_lua.L = L;
  text = lua_tostring(L, -1);
  ax_fail(AX_EGRAD, "%s", text ? text : "a Lua function raised a value that is no string");
  lua_rawseti(L, LUA_REGISTRYINDEX, ax_lua.ref_error);
  ax_lua.raised = true;
  return AX_EGRAD;
}

/* ---- registration */

void ax_lua_add_functions(lua_State *L, const luaL_Reg *list)
{
  for (; list->name; list++) {
    lua_pushcfunction(L, list->func);
    lua_setfield(L, -2, list->name);
  }
}

void ax_lua_add_methods(lua_State *L, const luaL_Reg *list)
{
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_methods);
  ax_lua_add_functions(L, list);
  lua_pop(L, 1);
}

static int weak_table(lua_State *L)
{
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "v");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  return luaL_ref(L, LUA_REGISTRYINDEX);
}

static int new_table(lua_State *L)
{
  lua_newtable(L);
  return luaL_ref(L, LUA_REGISTRYINDEX);
}

/* Runs when the state closes.  Its finalisers still run later, but no new call comes.  The registry
 * still exists. */
static void state_closed(lua_State *L, void *unused)
{
  ax_memory_set_hook(NULL);
  ax_lua.open = false;
  ax_lua_context_free();
  while (ax_lua.dead) {
    ax_lua_dead_ref *d = ax_lua.dead;
    ax_lua.dead = d->next;
    free(d);
  }
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_orphans); /* their finalisers ran long ago */
  lua_pushnil(L);
  while (lua_next(L, -2)) {
    ax_tensor_release(ax_lua_empty_box(ax_lua_to_box(L, -1)));
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

static const ax_lua_class state_class = { "the state of accelerate.core", 1, state_closed, NULL };
static const char registry_key = 0;

/* Each opener adds its functions to the table of accelerate.core, which is on the stack top. */
typedef void (*opener)(lua_State *L);
static const opener openers[] = { ax_lua_open_tensor,
                                  ax_lua_open_facts,
                                  ax_lua_open_convert,
                                  ax_lua_open_values,
                                  ax_lua_open_index,
                                  ax_lua_open_create,
                                  ax_lua_open_ops,
                                  ax_lua_open_split,
                                  ax_lua_open_grad,
                                  ax_lua_open_function,
                                  ax_lua_open_scope,
                                  ax_lua_open_memory,
                                  ax_lua_open_device,
                                  ax_lua_open_hyper,
                                  ax_lua_open_gradients,
                                  ax_lua_open_optim_group,
                                  ax_lua_open_random,
                                  ax_lua_open_flat,
                                  ax_lua_open_autocast,
                                  ax_lua_open_worker,
                                  ax_lua_open_gather,
                                  ax_lua_open_data,
                                  ax_lua_open_net,
                                  ax_lua_open_profile,
                                  ax_lua_open_capture,
                                  ax_lua_open_dist,
                                  ax_lua_open_io,
                                  ax_lua_open_safetensors,
                                  ax_lua_open_gguf,
                                  ax_lua_open_offload,
                                  ax_lua_open_archive,
                                  ax_lua_open_save,
                                  ax_lua_open_yaml,
                                  ax_lua_open_composed,
                                  ax_lua_open_ranks,
                                  ax_lua_open_text,
                                  ax_lua_open_tokenizer,
                                  ax_lua_open_named,
                                  ax_lua_open_encoded,
                                  ax_lua_open_deferred,
                                  NULL };

static int open_core(lua_State *L)
{
  ax_lua_globals *b = &ax_lua;

  if (b->open)
    return luaL_error(L, "accelerate.core: another Lua state of this thread has it open; one state a thread");
  memset(b, 0, sizeof *b);
  b->L = L;
  b->open = true;
  b->mark = INT64_MAX;
  b->ref_handles = weak_table(L);
  b->ref_full = weak_table(L);
  b->ref_environments = weak_table(L);
  b->ref_orphans = new_table(L);
  b->ref_anchors = new_table(L);
  b->ref_moved = weak_table(L);
  b->ref_tracked = weak_table(L);
  b->ref_methods = new_table(L);
  b->ref_public = new_table(L);
  b->ref_owners = new_table(L);
  b->ref_waiting = weak_table(L);
  lua_pushboolean(L, 0);
  b->ref_error = luaL_ref(L, LUA_REGISTRYINDEX);

  lua_newtable(L); /* core */
  for (const opener *open = openers; *open; open++) (*open)(L);

  lua_pushliteral(L, AX_VERSION);
  lua_setfield(L, -2, "version");

  /* closing the state finalises this object first or last; no Lua code runs after any finaliser */
  ax_lua_open_class(L, &state_class);
  ax_lua_push_object(L, &state_class);
  luaL_ref(L, LUA_REGISTRYINDEX);
  return 1;
}

int luaopen_accelerate_core(lua_State *L);
AX_API int luaopen_accelerate_core(lua_State *L)
{
  lua_pushlightuserdata(L, (void *)&registry_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (!lua_isnil(L, -1)) return 1; /* package.loaded was cleared: there is one core in a state */
  lua_pop(L, 1);
  open_core(L);
  lua_pushlightuserdata(L, (void *)&registry_key);
  lua_pushvalue(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
  return 1;
}

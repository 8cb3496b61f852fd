/* bind/context.c: the settings inside tensor.no_grad, enable_grad, autocast and scope, for each
 * coroutine.
 *
 * A context belongs to the coroutine that opened it.  When the coroutine yields, its contexts are
 * closed; when it is resumed, they are opened again.  Lua reports neither moment.  But only calls
 * into the binding use the settings, and each passes its lua_State, which identifies its coroutine:
 * ax_lua_enter calls ax_lua_context_switch when that differs from the last call's.
 *
 * Open contexts are on a stack, the innermost last.  The contexts of suspended coroutines are
 * parked beside it. */
#include "bind/bind.h"

#include <stdlib.h>

struct ax_lua_context {
  lua_State *owner;
  bool main; /* of the main program, which never yields */
  int id;
  ax_lua_context_kind kind;
  /* the settings of the other side: outside while the context is open, inside while it is parked */
  bool grad;
  ax_autocast cast;
  ax_lua_scope_state scope;
};

static void go_in(ax_lua_context *c)
{
  const ax_lua_scope_state scope = ax_lua.scope;
  switch (c->kind) {
  case AX_CONTEXT_GRAD: c->grad = ax_grad_set_enabled(c->grad); break;
  case AX_CONTEXT_AUTOCAST: c->cast = ax_autocast_enter(c->cast); break;
  case AX_CONTEXT_SCOPE:
    ax_lua.scope = c->scope;
    c->scope = scope;
    break;
  }
}

static void go_out(ax_lua_context *c)
{
  const ax_autocast cast = ax_autocast_get();
  if (c->kind != AX_CONTEXT_AUTOCAST) go_in(c); /* the other two kinds swap in both directions alike */
  else {
    ax_autocast_leave(c->cast);
    c->cast = cast;
  }
}

static ax_lua_context *top(void) { return ax_lua.n_open ? &ax_lua.contexts[ax_lua.n_open - 1] : NULL; }

/* ---- owners: an open context keeps its coroutine alive, a parked one does not */

static void note_owner(lua_State *L, const ax_lua_context *c, bool open)
{
  if (c->main) return;
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_owners);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_waiting);
  lua_rawgeti(L, -2 + (open ? 1 : 0), c->id); /* from the present table ... */
  lua_pushvalue(L, -1);
  lua_rawseti(L, open ? -4 : -3, c->id); /* ... to the other one */
  lua_pop(L, 1);
  lua_pushnil(L);
  lua_rawseti(L, open ? -2 : -3, c->id);
  lua_pop(L, 2);
}

static void forget_owner(lua_State *L, const ax_lua_context *c)
{
  if (c->main) return;
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_owners);
  lua_pushnil(L);
  lua_rawseti(L, -2, c->id);
  lua_pop(L, 1);
}

/* The coroutine of a parked context, or NULL when it was collected: another one may have its
 * address by now. */
static lua_State *waiting(lua_State *L, const ax_lua_context *c)
{
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_waiting);
  lua_rawgeti(L, -1, c->id);
  lua_State *owner = lua_tothread(L, -1);
  lua_pop(L, 2);
  return owner;
}

static void drop_scope(lua_State *L, const ax_lua_context *c)
{
  if (c->kind != AX_CONTEXT_SCOPE) return;
  luaL_unref(L, LUA_REGISTRYINDEX, c->scope.list);
  luaL_unref(L, LUA_REGISTRYINDEX, c->scope.kept);
}

/* ---- coroutines that come and go */

static void park(lua_State *L)
{
  ax_lua_context c = *top();
  ax_lua.n_open--;
  go_out(&c);
  note_owner(L, &c, false);
  ax_lua.parked[ax_lua.n_parked++] = c;
}

void ax_lua_context_switch(lua_State *L)
{
  if (ax_lua.n_open + ax_lua.n_parked == 0) return;
  luaL_checkstack(L, 8, "contexts");
  while (top() && top()->owner != L && !top()->main && lua_status(top()->owner) == LUA_YIELD) park(L);
  for (int k = ax_lua.n_parked - 1; k >= 0; k--) { /* the outermost context of a coroutine was parked last */
    ax_lua_context c = ax_lua.parked[k];
    lua_State *owner = waiting(L, &c);
    if (owner && owner != L) continue;
    memmove(&ax_lua.parked[k], &ax_lua.parked[k + 1], sizeof c * (size_t)(ax_lua.n_parked - k - 1));
    ax_lua.n_parked--;
    if (owner) {
      go_in(&c);
      note_owner(L, &c, true);
      ax_lua.contexts[ax_lua.n_open++] = c;
    } else drop_scope(L, &c);
  }
}

/* ---- opening and closing */

/* Makes room for one more context, open or parked, so that opening and closing cannot fail. */
static void make_room(lua_State *L, const char *fn)
{
  const int n = ax_lua.n_open + ax_lua.n_parked + 1;
  if (n <= ax_lua.room) return;
  ax_lua_context *open = realloc(ax_lua.contexts, sizeof *open * (size_t)n * 2);
  if (open) ax_lua.contexts = open;
  ax_lua_context *parked = realloc(ax_lua.parked, sizeof *parked * (size_t)n * 2);
  if (parked) ax_lua.parked = parked;
  if (!open || !parked) ax_lua_error(L, fn, "out of memory");
  ax_lua.room = n * 2;
}

int ax_lua_context_open(lua_State *L, const char *fn, ax_lua_context_kind kind,
                        const ax_lua_context_inside *inside)
{
  ax_lua_context c = { .owner = L, .kind = kind, .id = ++ax_lua.last_context };

  make_room(L, fn);
  luaL_checkstack(L, 8, fn);
  c.main = lua_pushthread(L);
  if (!c.main) {
    lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_owners);
    lua_pushvalue(L, -2);
    lua_rawseti(L, -2, c.id);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  c.grad = inside->grad, c.cast = inside->cast, c.scope = inside->scope;
  go_in(&c);
  ax_lua.contexts[ax_lua.n_open++] = c;
  return c.id;
}

void ax_lua_context_close(lua_State *L, int id)
{
  int k = ax_lua.n_open - 1;
  while (k >= 0 && ax_lua.contexts[k].id != id) k--;
  if (k < 0) return;
  while (ax_lua.n_open > k) {
    ax_lua_context c = *top();
    ax_lua.n_open--;
    go_out(&c);
    forget_owner(L, &c);
    drop_scope(L, &c);
  }
}

void ax_lua_context_free(void)
{
  free(ax_lua.contexts);
  free(ax_lua.parked);
  ax_lua.contexts = ax_lua.parked = NULL;
  ax_lua.n_open = ax_lua.n_parked = ax_lua.room = 0;
}

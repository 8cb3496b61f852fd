/* bind/anchors.c: Lua values that the tape holds (functions of hooks, contexts of tensor.Function,
 * objects of leaves with hooks), and the circles that they close.
 *
 * Such a value is an anchor: an entry of a table in the registry that lives as long as its node.  A
 * value that captures a tensor whose history has that node in it closes a circle: node, anchor,
 * box, tensor, node.  Lua's collector sees the way from the anchor to the box.  It does not see the
 * way from the box to the node, and takes the registry for an owner.
 *
 * ax_lua_break_circles shows it that way for one collection.  ax_island_find returns the nodes that
 * boxes alone hold.  Tables that refer to each other as these nodes do are hung into the
 * environments of the boxes; the tables hold the anchors, and the registry drops them.  The
 * collection then finds the boxes that only a circle holds, and their finalisers free the nodes.
 * Afterwards the registry gets the other anchors back, and the other boxes their environments.
 *
 * Boxes are known (`ref_tracked`) if they were made while there was an anchor.  A node that an
 * older box holds counts as held from outside, and stays. */
#include "bind/bind.h"

#include <stdlib.h>

static const char circle_mark; /* its address is entry 3 of an environment that this file made */

/* ---- anchors */

int ax_lua_anchor(lua_State *L)
{
  int ref;
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_anchors);
  lua_insert(L, -2);
  ref = luaL_ref(L, -2);
  lua_pop(L, 1);
  ax_lua.n_anchors++;
  return ref;
}

void ax_lua_unanchor(lua_State *L, int ref)
{
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_anchors);
  luaL_unref(L, -1, ref);
  lua_pop(L, 1);
  ax_lua.n_anchors--;
}

void ax_lua_push_anchor(lua_State *L, int ref)
{
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_anchors);
  lua_rawgeti(L, -1, ref);
  if (lua_isboolean(L, -1)) { /* a finaliser runs, and the circles are being broken */
    lua_pop(L, 2);
    lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_moved);
    lua_rawgeti(L, -1, ref);
  }
  lua_remove(L, -2);
}

void ax_lua_drop_dead(lua_State *L)
{
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_anchors);
  while (ax_lua.dead) {
    ax_lua_dead_ref *d = ax_lua.dead;
    ax_lua.dead = d->next;
    luaL_unref(L, -1, d->ref); /* not for LUA_NOREF */
    free(d);
  }
  lua_pop(L, 1);
}

void ax_lua_drop_anchor(void *anchored)
{
  ax_lua_dead_ref *d = anchored;
  if (!ax_lua.open) {
    free(d);
    return;
  }
  ax_lua.n_anchors--;
  d->next = ax_lua.dead;
  ax_lua.dead = d;
}

void ax_lua_track(lua_State *L, int idx)
{
  lua_pushvalue(L, idx);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_tracked);
  lua_pushlightuserdata(L, lua_touserdata(L, -2));
  lua_pushvalue(L, -3);
  lua_rawset(L, -3);
  lua_pop(L, 2);
}

/* ---- circles */

typedef struct circles {
  ax_island island;
  int n;               /* tracked boxes that hold a tensor */
  ax_tensor **tensors; /* theirs */
} circles;

static bool is_anchor(const ax_island_data *d)
{
  return d->drop == ax_lua_drop_anchor && ((const ax_lua_dead_ref *)d->ud)->ref >= 0;
}

static bool any_anchor(const ax_island *island)
{
  for (int k = 0; k < island->n_data; k++)
    if (is_anchor(&island->data[k])) return true;
  return false;
}

/* Appends the value on the stack top, which it pops, to the table below it. */
static void append(lua_State *L) { lua_rawseti(L, -2, (int)lua_objlen(L, -2) + 1); }

/* Pushes a list with a table for each object of the island: the tables of what that object holds,
 * and its anchors.  `moved` gets the anchors by number. */
static void push_objects(lua_State *L, const ax_island *island)
{
  int objects;

  lua_createtable(L, island->n_objects, 0);
  objects = lua_gettop(L);
  for (int k = 1; k <= island->n_objects; k++) {
    lua_newtable(L);
    lua_rawseti(L, objects, k);
  }
  for (int k = 0; k < island->n_links; k++) {
    lua_rawgeti(L, objects, island->links[k].from + 1);
    lua_rawgeti(L, objects, island->links[k].to + 1);
    append(L);
    lua_pop(L, 1);
  }
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_moved);
  for (int k = 0; k < island->n_data; k++) {
    const ax_island_data *d = &island->data[k];
    if (!is_anchor(d)) continue;
    lua_rawgeti(L, objects, d->object + 1);
    ax_lua_push_anchor(L, ((const ax_lua_dead_ref *)d->ud)->ref);
    lua_pushvalue(L, -1);
    lua_rawseti(L, -4, ((const ax_lua_dead_ref *)d->ud)->ref);
    append(L);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* Stack: circles, list of the boxes.  Everything that may raise comes before the first change. */
static int hang_in(lua_State *L)
{
  const circles *c = lua_touserdata(L, 1);
  enum { BOXES = 2, OBJECTS, ENVIRONMENTS };

  push_objects(L, &c->island);
  lua_createtable(L, c->n, 0);
  for (int k = 0; k < c->n; k++) {
    if (c->island.root[k] < 0) continue;
    lua_createtable(L, 3, 0);
    lua_rawgeti(L, OBJECTS, c->island.root[k] + 1);
    lua_rawseti(L, -2, 1);
    lua_rawgeti(L, BOXES, k + 1);
    lua_getfenv(L, -1);
    lua_rawseti(L, -3, 2);
    lua_pop(L, 1);
    lua_pushlightuserdata(L, (void *)&circle_mark);
    lua_rawseti(L, -2, 3);
    lua_rawseti(L, ENVIRONMENTS, k + 1);
  }
  for (int k = 0; k < c->n; k++) {
    if (c->island.root[k] < 0) continue;
    lua_rawgeti(L, BOXES, k + 1);
    lua_rawgeti(L, ENVIRONMENTS, k + 1);
    lua_setfenv(L, -2);
    lua_pop(L, 1);
  }
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_anchors);
  for (int k = 0; k < c->island.n_data; k++) {
    if (!is_anchor(&c->island.data[k])) continue;
    lua_pushboolean(L, 1); /* keeps the number taken */
    lua_rawseti(L, -2, ((const ax_lua_dead_ref *)c->island.data[k].ud)->ref);
  }
  return 0;
}

static int collect_all(lua_State *L)
{
  lua_gc(L, LUA_GCCOLLECT, 0);
  return 0;
}

/* Gives the registry the anchors that are left, and the boxes the environments that they had. */
static void put_back(lua_State *L)
{
  const int base = lua_gettop(L);

  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_anchors);
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_moved);
  for (lua_pushnil(L); lua_next(L, base + 2);) {
    const int ref = (int)lua_tointeger(L, -2);
    lua_rawseti(L, base + 1, ref);
    lua_pushnil(L);
    lua_rawseti(L, base + 2, ref);
  }
  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_tracked);
  for (lua_pushnil(L); lua_next(L, base + 3); lua_pop(L, 2)) {
    lua_getfenv(L, -1);
    lua_rawgeti(L, -1, 3);
    if (lua_touserdata(L, -1) == &circle_mark) {
      lua_rawgeti(L, -2, 2);
      lua_setfenv(L, -4);
    }
    lua_pop(L, 1);
  }
  lua_settop(L, base);
}

/* Pushes the list of the tracked boxes that hold a tensor, and fills in c->tensors. */
static void list_boxes(lua_State *L, circles *c)
{
  const int tracked = lua_gettop(L) + 1;
  int n = 0;

  lua_rawgeti(L, LUA_REGISTRYINDEX, ax_lua.ref_tracked);
  for (lua_pushnil(L); lua_next(L, tracked); lua_pop(L, 1)) n++;
  c->tensors = lua_newuserdata(L, sizeof *c->tensors * (size_t)(n + 1));
  lua_createtable(L, n, 0);
  for (lua_pushnil(L); lua_next(L, tracked); lua_pop(L, 1)) {
    ax_tensor **box = ax_lua_to_box(L, -1);
    if (!box || !*box) continue;
    c->tensors[c->n++] = *box;
    lua_pushvalue(L, -1);
    lua_rawseti(L, tracked + 2, c->n);
  }
}

void ax_lua_break_circles(lua_State *L)
{
  const int base = lua_gettop(L);
  circles c = { .n = 0 };
  int status = 0;
  bool found;

  luaL_checkstack(L, 24, "collector");
  lua_gc(L, LUA_GCSTOP, 0); /* no finaliser may change the tape while it is looked at */
  list_boxes(L, &c);
  found = ax_island_find(c.n, c.tensors, &c.island) == AX_OK && any_anchor(&c.island);
  if (found) {
    lua_pushcfunction(L, hang_in);
    lua_pushlightuserdata(L, &c);
    lua_pushvalue(L, base + 3);
    status = lua_pcall(L, 2, 0, 0);
  }
  ax_island_free(&c.island);
  lua_settop(L, status == 0 ? base : base + 1); /* an error: no memory, and nothing was changed */
  lua_gc(L, LUA_GCRESTART, 0);
  if (!found || status != 0) {
    lua_settop(L, base);
    return;
  }
  lua_pushcfunction(L, collect_all);
  status = lua_pcall(L, 0, 0, 0); /* a finaliser of the script's may raise */
  put_back(L);
  if (status != 0) lua_error(L);
}

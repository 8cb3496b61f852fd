/* bind/ranks.c: ranks that a script or a prompt starts: core._ranks_create.
 *
 * Their processes are forks as a loader's workers are (bind/worker.c); `join` makes one a rank. */
#include "bind/bind.h"
#include "feed.h"
#include "ranks.h"

static const ax_lua_class ranks_class;

static void clear_ranks(lua_State *L, void *object)
{
  ax_control **c = object;
  if (*c) ax_shm_free(*c);
  *c = NULL;
}

/* core._ranks_create(n, timeout, spin) -> ranks.  timeout: seconds of a wait in a collective. */
static int ranks_create(lua_State *L)
{
  ax_control **c;

  ax_lua_enter(L);
  c = ax_lua_push_object(L, &ranks_class);
  if (ax_shm_create((int)luaL_checkinteger(L, 1), luaL_checknumber(L, 2), lua_toboolean(L, 3), NULL, c) !=
      AX_OK)
    return ax_lua_raise(L, "notebook_launcher");
  return 1;
}

ax_control *ax_lua_ranks(lua_State *L, int idx, const char *fn)
{
  return ax_lua_check_pointer(L, idx, &ranks_class, fn);
}

static ax_control *check_rank(lua_State *L, const char *fn, int *rank)
{
  ax_control *c = ax_lua_check_pointer(L, 1, &ranks_class, fn);
  *rank = (int)luaL_checkinteger(L, 2);
  if (*rank < 0 || *rank >= c->ranks) luaL_error(L, "%s: no rank %d of %d", fn, *rank, c->ranks);
  return c;
}

/* ranks:join(rank, devices): makes this worker process a rank; devices: it may use GPUs. */
static int ranks_join(lua_State *L)
{
  int rank;
  ax_control *c = check_rank(L, "join", &rank);

  if (!ax_worker_inside()) return luaL_error(L, "join: not in a process that was made for it");
  ax_worker_become_rank(lua_toboolean(L, 3));
  return ax_shm_join(c, rank) == AX_OK ? 0 : ax_lua_raise(L, "join");
}

/* ranks:abort(rank, reason): ends the collectives of all ranks; the first one counts. */
static int ranks_abort(lua_State *L)
{
  int rank;
  ax_control *c = check_rank(L, "abort", &rank);

  ax_shm_abort(c, rank, luaL_checkstring(L, 3));
  return 0;
}

/* ranks:failed() -> the rank of this machine that failed first (-1: none in particular) and the
 * reason; nothing where all goes well */
static int ranks_failed(lua_State *L)
{
  ax_control *c = ax_lua_check_pointer(L, 1, &ranks_class, "failed");

  if (atomic_load(&c->abort) != AX_ABORT_PUBLISHED) return 0;
  lua_pushinteger(L, c->failed_rank);
  lua_pushstring(L, c->reason);
  return 2;
}

/* ranks:finished(rank): it joins no more collectives. */
static int ranks_finished(lua_State *L)
{
  int rank;
  ax_control *c = check_rank(L, "finished", &rank);

  ax_shm_finished(c, rank);
  return 0;
}

static const luaL_Reg methods[] = {
  { "join", ranks_join },         { "abort", ranks_abort }, { "failed", ranks_failed },
  { "finished", ranks_finished }, { NULL, NULL },
};
static const ax_lua_class ranks_class = { "ranks", sizeof(ax_control *), clear_ranks, methods };

void ax_lua_open_ranks(lua_State *L)
{
  static const luaL_Reg functions[] = { { "_ranks_create", ranks_create }, { NULL, NULL } };

  ax_lua_open_class(L, &ranks_class);
  ax_lua_add_functions(L, functions);
  if (&ax_lua_open_machines) ax_lua_open_machines(L);
}

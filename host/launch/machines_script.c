/* machines_script.c: core._machines_meet, for a run on several machines that a script starts.
 *
 * The process of the script is its machine's launcher: it meets the others (machines.c) before it
 * forks the ranks, and passes failures on while they run. */
#include "machines.h"

#include "bind/bind.h"
#include "script/script.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const ax_lua_class machines_class;

typedef struct meeting {
  ax_machines *machines;
  ax_control *control; /* of the ranks at which the object's environment points */
} meeting;

static void clear_machines(lua_State *L, void *object)
{
  meeting *m = object;

  (void)L;
  if (!m->machines) return;
  ax_machines_close(m->machines);
  ax_machines_forked(m->machines);
  free(m->machines);
  *m = (meeting){ 0 };
}

static meeting *check(lua_State *L, const char *fn)
{
  meeting *m = ax_lua_check_object(L, 1, &machines_class, fn);
  if (!m->machines) luaL_error(L, "%s: the connections to the other machines are closed", fn);
  return m;
}

/* The setting that has the name `key` in the table at 2. */
static ax_setting setting(lua_State *L, const char *key)
{
  ax_setting s = { .origin = key };

  lua_getfield(L, 2, key);
  s.number = lua_tonumber(L, -1);
  if (lua_type(L, -1) == LUA_TSTRING) s.text = lua_tostring(L, -1); /* the table keeps it alive */
  if (s.text && s.number == 0) s.number = 1;
  lua_pop(L, 1);
  return s;
}

static void read_plan(lua_State *L, ax_plan *plan)
{
  *plan = (ax_plan){ 0 };
  plan->set[AX_SET_num_machines] = setting(L, "num_nodes");
  plan->set[AX_SET_machine_rank] = setting(L, "node_rank");
  plan->set[AX_SET_num_processes] = setting(L, "ranks");
  plan->set[AX_SET_main_process_ip] = setting(L, "master_addr");
  plan->set[AX_SET_main_process_port] = setting(L, "use_port");
  plan->set[AX_SET_timeout] = setting(L, "timeout");
  plan->set[AX_SET_stall_report].number = 10;
  plan->run_id = setting(L, "rdzv_id").text;
}

/* core._machines_meet(ranks, { num_nodes =, node_rank =, ranks = of all machines, master_addr =,
 * use_port =, timeout = seconds of the meeting, rdzv_id = }, attempt) -> machines */
static int machines_meet(lua_State *L)
{
  ax_control *control;
  ax_plan plan;
  meeting *m;
  int status;

  ax_lua_enter(L);
  control = ax_lua_ranks(L, 1, "notebook_launcher");
  luaL_checktype(L, 2, LUA_TTABLE);
  read_plan(L, &plan);
  if (plan.set[AX_SET_num_processes].number > AX_MAX_RANKS)
    return luaL_error(L, "notebook_launcher: %d ranks on all machines; there can be %d",
                      (int)plan.set[AX_SET_num_processes].number, AX_MAX_RANKS);
  m = ax_lua_push_object(L, &machines_class);
  m->control = control;
  lua_newtable(L); /* keeps the ranks' memory as long as the object */
  lua_pushvalue(L, 1);
  lua_rawseti(L, -2, 1);
  lua_setfenv(L, -2);
  if (!(m->machines = calloc(1, sizeof *m->machines)))
    return luaL_error(L, "notebook_launcher: no memory for the meeting of the machines");
  status = ax_machines_meet(m->machines, &plan, (int)luaL_checkinteger(L, 3), control);
  if (status == 0) return 1;
  clear_machines(L, m);
  ax_lua_enter(L); /* raises after Ctrl-C */
  if (status == AX_EXIT_USAGE)
    return luaL_error(L, "notebook_launcher: the secret of the machines cannot be used");
  return ax_lua_raise(L, "notebook_launcher");
}

/* machines:attempt() -> which start of the ranks this is, from 0, as machine 0 counts */
static int machines_attempt(lua_State *L)
{
  lua_pushinteger(L, check(L, "attempt")->machines->attempt);
  return 1;
}

/* machines:join(local_rank): in a rank, after ranks:join. */
static int machines_join(lua_State *L)
{
  meeting *m = check(L, "join");
  const int rank = (int)luaL_checkinteger(L, 2);

  if (rank < 0 || rank >= m->machines->here) return luaL_error(L, "join: no rank %d here", rank);
  return ax_machines_join(m->machines, rank) == AX_OK ? 0 : ax_lua_raise(L, "join");
}

/* machines:finished(): in a rank that ends well. */
static int machines_finished(lua_State *L)
{
  ax_machines_finished(check(L, "finished")->machines);
  return 0;
}

/* machines:forked(): all ranks of this machine are there. */
static int machines_forked(lua_State *L)
{
  ax_machines_forked(check(L, "forked")->machines);
  return 0;
}

/* machines:watch() -> whether this is machine 0, and others still run */
static int machines_watch(lua_State *L)
{
  meeting *m = check(L, "watch");

  lua_pushboolean(L, ax_machines_watch(m->machines, m->control));
  return 1;
}

/* machines:tell(reason): sends the others how the ranks of this machine ended; nil: well. */
static int machines_tell(lua_State *L)
{
  ax_machines_tell(check(L, "tell")->machines, luaL_optstring(L, 2, NULL));
  return 0;
}

/* machines:again(again, seconds) -> whether the ranks start again: machine 0 says whether, and the
 * others wait for that. */
static int machines_again(lua_State *L)
{
  meeting *m = check(L, "again");

  lua_pushboolean(L, ax_machines_again(m->machines, m->control, lua_toboolean(L, 2), luaL_checknumber(L, 3)));
  ax_lua_enter(L);
  return 1;
}

static int machines_close(lua_State *L)
{
  clear_machines(L, ax_lua_check_object(L, 1, &machines_class, "close"));
  return 0;
}

static const luaL_Reg methods[] = {
  { "attempt", machines_attempt }, { "join", machines_join },   { "finished", machines_finished },
  { "forked", machines_forked },   { "watch", machines_watch }, { "tell", machines_tell },
  { "again", machines_again },     { "close", machines_close }, { NULL, NULL },
};
static const ax_lua_class machines_class = { "machines", sizeof(meeting), clear_machines, methods };

void ax_lua_open_machines(lua_State *L)
{
  static const luaL_Reg functions[] = { { "_machines_meet", machines_meet }, { NULL, NULL } };

  ax_lua_open_class(L, &machines_class);
  ax_lua_add_functions(L, functions);
}

/* session.c: a prompt of several ranks.
 *
 * The launcher forks the ranks as for a script.  Rank 0 has the terminal.  It sends each chunk to
 * the other ranks over a socket for each; all run it, and the others answer when theirs has ended
 * (lua/accelerate/prompt/ranks.lua, follower.lua).  The end of rank 0 ends the session: the others
 * find their socket closed.
 *
 * A message is a list of strings: their number, then each one's length and bytes. */
#define _GNU_SOURCE
#include "feed.h"
#include "launch.h"
#include "ranks.h"
#include "script/script.h"

#include <errno.h>
#include <lauxlib.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#define STRINGS_MOST 16
#define NOTICE_MS 2000 /* rank 0 says for whom it waits after so long */

static struct {
  int rank, size;                                /* size 0: there is no session */
  int front[AX_MAX_RANKS], behind[AX_MAX_RANKS]; /* rank 0's end, the other's; -1: closed */
  ax_control *control;
  ax_output *output;
  bool broken; /* a collective of the last chunk failed in this rank */
} s;

/* ---- life */

static struct termios terminal; /* as it was before rank 0 edits lines */
static bool has_terminal;

bool ax_session_open(ax_control *c, ax_output *output)
{
  has_terminal = tcgetattr(STDIN_FILENO, &terminal) == 0;
  s.size = c->ranks;
  s.control = c;
  s.output = output;
  c->prompt = true;
  c->chunk = 1;
  s.front[0] = s.behind[0] = -1;
  for (int r = 1; r < s.size; r++) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
      ax_print(stderr, "accel-run: no socket for rank %d: %s\n", r, strerror(errno));
      return false;
    }
    s.front[r] = pair[0];
    s.behind[r] = pair[1];
  }
  return true;
}

void ax_session_close(void)
{
  if (has_terminal) tcsetattr(STDIN_FILENO, TCSADRAIN, &terminal);
}

/* Closes the ends that this process does not use: the launcher (-1) none, rank 0 its own, another
 * rank one. */
void ax_session_keep(int rank)
{
  s.rank = rank;
  for (int r = 1; r < s.size; r++) {
    if (rank != 0 && s.front[r] >= 0) close(s.front[r]), s.front[r] = -1;
    if (rank != r && s.behind[r] >= 0) close(s.behind[r]), s.behind[r] = -1;
  }
}

int ax_session_rank(void) { return s.size > 1 ? s.rank : -1; }

/* Within a signal handler too. */
void ax_session_interrupt(bool others)
{
  if (s.size < 2 || s.rank != 0) return;
  atomic_store(&s.control->interrupted, atomic_load(&s.control->chunk));
  for (int r = 1; r < s.size && others; r++)
    if (s.control->rank[r].pid > 0) kill(s.control->rank[r].pid, SIGINT);
}

bool ax_session_interrupted(void)
{
  return s.size > 1 && s.rank > 0 && atomic_load(&s.control->interrupted) == atomic_load(&s.control->chunk);
}

bool ax_session_ended(void)
{
  struct pollfd list[AX_MAX_RANKS];

  if (s.size < 2 || s.rank != 0) return false;
  for (int r = 1; r < s.size; r++) list[r - 1] = (struct pollfd){ .fd = s.front[r], .events = POLLRDHUP };
  return poll(list, (nfds_t)s.size - 1, 0) > 0;
}

void ax_session_end_chunk(void)
{
  if (s.size > 1) s.broken = ax_shm_end_chunk();
}

/* ---- messages */

static int socket_to(lua_State *L, int idx)
{
  const int rank = (int)luaL_checkinteger(L, idx);

  if (s.rank != 0) return s.behind[s.rank];
  luaL_argcheck(L, rank > 0 && rank < s.size, idx, "no such rank");
  return s.front[rank];
}

/* send(rank, ...) -> false when the rank is gone.  A rank other than 0 sends to rank 0, whatever
 * number it gives; likewise below. */
static int session_send(lua_State *L)
{
  const int fd = socket_to(L, 1), n = lua_gettop(L) - 1;
  const uint32_t count = (uint32_t)n;
  bool there;

  luaL_argcheck(L, n <= STRINGS_MOST, 2, "too many strings");
  there = ax_socket_write(fd, &count, sizeof count);
  for (int i = 0; i < n && there; i++) {
    size_t length;
    const char *text = luaL_checklstring(L, 2 + i, &length);
    const uint64_t bytes = length;
    there = ax_socket_write(fd, &bytes, sizeof bytes) && ax_socket_write(fd, text, length);
  }
  lua_pushboolean(L, there);
  return 1;
}

static bool push_string(lua_State *L, int fd)
{
  uint64_t length;
  void *room;

  if (ax_socket_read(fd, &length, sizeof length) < sizeof length) return false;
  room = lua_newuserdata(L, (size_t)length + 1);
  if (ax_socket_read(fd, room, (size_t)length) < (size_t)length) return false;
  lua_pushlstring(L, room, (size_t)length);
  lua_remove(L, -2);
  return true;
}

/* Waits for a message; says so where it takes long and a person may wait. */
static void wait_for(int fd, int rank)
{
  struct pollfd in = { .fd = fd, .events = POLLIN };

  if (s.rank != 0 || poll(&in, 1, NOTICE_MS) != 0 || !isatty(STDERR_FILENO) || ax_hold_elsewhere()) return;
  ax_print(stderr, "accel-run: rank %d still runs the chunk; Ctrl-C stops it\n", rank);
}

/* receive(rank) -> the strings of the next message; nothing when the rank is gone */
static int session_receive(lua_State *L)
{
  const int fd = socket_to(L, 1), base = lua_gettop(L);
  uint32_t count = 0;
  bool there;

  wait_for(fd, s.rank == 0 ? (int)lua_tointeger(L, 1) : 0);
  there = ax_socket_read(fd, &count, sizeof count) == sizeof count && count <= STRINGS_MOST;
  luaL_checkstack(L, (int)count + 2, "receive");
  for (uint32_t i = 0; i < count && there; i++) there = push_string(L, fd);
  /* an interrupt while waiting was for the other ranks, which have it too */
  ax_interp_take_interrupt();
  return there ? lua_gettop(L) - base : 0;
}

/* gather(afresh): rank 0, before it sends a chunk */
static int session_gather(lua_State *L)
{
  ax_shm_gather(s.control, lua_toboolean(L, 1));
  return 0;
}

/* begin(afresh): every rank, before its chunk */
static int session_begin(lua_State *L)
{
  ax_shm_begin_chunk(lua_toboolean(L, 1));
  return 0;
}

/* broken() -> whether a collective of the last chunk failed in this rank */
static int session_broken(lua_State *L)
{
  lua_pushboolean(L, s.broken);
  return 1;
}

/* settle(): what the others have printed so far is on the terminal */
static int session_settle(lua_State *L)
{
  (void)L;
  ax_output_settle(s.output);
  return 0;
}

void ax_session_push(lua_State *L)
{
  static const luaL_Reg functions[] = {
    { "send", session_send },
    { "receive", session_receive },
    { "gather", session_gather },
    { "begin", session_begin },
    { "broken", session_broken },
    { "settle", session_settle },
    { NULL, NULL },
  };

  lua_newtable(L);
  luaL_register(L, NULL, functions);
  lua_pushinteger(L, s.rank);
  lua_setfield(L, -2, "rank");
  lua_pushinteger(L, s.size);
  lua_setfield(L, -2, "size");
}

/* streams.c: stdin, stdout and stderr.  They are there from the start, a line of a rank is one
 * write, and output that is lost is a failure. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>

#include "ax.h"
#include "script.h"

#define LINE_ROOM 65536 /* a longer line is several writes */

void ax_streams_open(void)
{
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) _exit(AX_EXIT_FAILED);
}

void ax_streams_by_line(void)
{
  static char room[LINE_ROOM];
  setvbuf(stdout, room, _IOLBF, sizeof room);
}

bool ax_streams_lost(char *text, size_t size)
{
  const bool earlier = ferror(stdout) != 0;
  int error = 0;

  if (fflush(stdout) != 0 || (earlier && write(STDOUT_FILENO, "", 0) < 0)) error = errno;
  if (!earlier && !error) return false;
  snprintf(text, size, "stdout could not be written%s%s: some of what was printed is lost",
           error ? ": " : " to its end", error ? strerror(error) : "");
  clearerr(stdout); /* reported once */
  return true;
}

void ax_print(FILE *f, const char *fmt, ...)
{
  char room[2048], *text = room;
  va_list ap;
  int n;

  va_start(ap, fmt);
  n = vsnprintf(room, sizeof room, fmt, ap);
  va_end(ap);
  if (n >= (int)sizeof room && (text = malloc((size_t)n + 1))) {
    va_start(ap, fmt);
    vsnprintf(text, (size_t)n + 1, fmt, ap);
    va_end(ap);
  }
  if (!text) text = room; /* without memory the message is cut */
  ax_text_clean(text);
  fputs(text, f);
  if (text != room) free(text);
}

/* ---- io.stderr */

/* io.stderr:write(...) in one write, because ranks and what they start share it.  A file's own
 * method, upvalue 1, writes each value by itself. */
static int write_joined(lua_State *L)
{
  const int n = lua_gettop(L);
  luaL_Buffer b;

  for (int i = 2; i <= n; i++) luaL_checkstring(L, i);
  luaL_buffinit(L, &b);
  for (int i = 2; i <= n; i++) {
    lua_pushvalue(L, i);
    luaL_addvalue(&b);
  }
  luaL_pushresult(&b);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_pushvalue(L, 1);
  lua_pushvalue(L, -3);
  lua_call(L, 2, LUA_MULTRET);
  return lua_gettop(L) - n - 1;
}

static void copy_table(lua_State *L, int from)
{
  lua_newtable(L);
  lua_pushnil(L);
  while (lua_next(L, from)) {
    lua_pushvalue(L, -2);
    lua_insert(L, -2);
    lua_rawset(L, -4);
  }
}

void ax_streams_join_stderr(lua_State *L)
{
  const int top = lua_gettop(L);

  lua_getglobal(L, "io");
  lua_getfield(L, -1, "stderr");
  lua_getmetatable(L, -1);
  copy_table(L, top + 3); /* files share their metatable: stderr gets one of its own */
  lua_getfield(L, top + 3, "__index");
  copy_table(L, top + 5);
  lua_getfield(L, top + 6, "write");
  lua_pushcclosure(L, write_joined, 1);
  lua_setfield(L, top + 6, "write");
  lua_pushvalue(L, top + 6);
  lua_setfield(L, top + 4, "__index");
  lua_pushvalue(L, top + 4);
  lua_setmetatable(L, top + 2);
  lua_settop(L, top);
}

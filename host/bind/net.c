/* bind/net.c: TCP ports of this machine: core._port_in_use, core._free_port. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bind/bind.h"

static int open_socket(lua_State *L, const char *fn)
{
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) ax_lua_error(L, fn, "no socket can be made here: %s", strerror(errno));
  return fd;
}

static struct sockaddr_in local_address(int port)
{
  return (struct sockaddr_in){ .sin_family = AF_INET,
                               .sin_port = htons((uint16_t)port),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

/* core._port_in_use(port) -> whether a program on this machine listens there */
static int port_in_use(lua_State *L)
{
  static const char fn[] = "is_port_in_use";
  struct sockaddr_in a;
  int fd;

  ax_lua_enter(L);
  a = local_address((int)ax_lua_check_integer(L, 1, fn, "port", 1, 65535));
  fd = open_socket(L, fn);
  lua_pushboolean(L, connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
  close(fd);
  return 1;
}

/* core._free_port() -> a port that is free now */
static int free_port(lua_State *L)
{
  static const char fn[] = "get_free_port";
  struct sockaddr_in a = local_address(0);
  socklen_t length = sizeof a;
  int fd, bad;

  ax_lua_enter(L);
  fd = open_socket(L, fn);
  bad = bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || getsockname(fd, (struct sockaddr *)&a, &length) != 0
            ? errno
            : 0;
  close(fd);
  if (bad) return ax_lua_error(L, fn, "the system gave none: %s", strerror(bad));
  lua_pushinteger(L, ntohs(a.sin_port));
  return 1;
}

void ax_lua_open_net(lua_State *L)
{
  static const luaL_Reg functions[] = { { "_port_in_use", port_in_use },
                                        { "_free_port", free_port },
                                        { NULL, NULL } };
  ax_lua_add_functions(L, functions);
}

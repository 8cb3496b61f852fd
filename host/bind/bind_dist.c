/* bind_dist.c: process groups in Lua, and the script line that messages about ranks name. */
#include "bind_dist.h"

#include <lauxlib.h>
#include <stdio.h>
#include <string.h>

static char library_dir[4096]; /* "@.../lua/accelerate/": how the sources of the library's own frames begin */

void ax_bind_set_lua_dir(const char *dir)
{
  snprintf(library_dir, sizeof library_dir, "@%.4000s/accelerate/", dir);
}

const char *ax_bind_where(lua_State *L, char *buf, size_t size)
{
  size_t n = strlen(library_dir);
  lua_Debug ar;
  int level;

  buf[0] = '\0';
  for (level = 0; lua_getstack(L, level, &ar); level++) {
    lua_getinfo(L, "Sl", &ar);
    if (ar.currentline <= 0 || (n > 0 && strncmp(ar.source, library_dir, n) == 0))
      continue;
    snprintf(buf, size, "%s:%d", ar.short_src, ar.currentline);
    break;
  }
  return buf;
}

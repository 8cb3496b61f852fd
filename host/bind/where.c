/* bind/where.c: the script's line, for messages. */
#include "bind/where.h"

#include <stdio.h>
#include <string.h>

/* "@.../lua/accelerate/": the beginning of the sources of the library's own frames */
static char library_dir[4100];

void ax_lua_set_module_dir(const char *dir)
{
  snprintf(library_dir, sizeof library_dir, "@%.4080s/accelerate/", dir);
}

bool ax_lua_in_library(const char *source)
{
  const size_t n = strlen(library_dir);
  return n > 0 && strncmp(source, library_dir, n) == 0;
}

const char *ax_lua_core_chunk(char *buf, size_t size)
{
  snprintf(buf, size, "%s%s", *library_dir ? library_dir : "=", "core");
  return buf;
}

bool ax_lua_script_frame(lua_State *L, lua_Debug *ar)
{
  for (int level = 0; lua_getstack(L, level, ar); level++) {
    lua_getinfo(L, "Sl", ar);
    if (ar->currentline > 0 && !ax_lua_in_library(ar->source)) return true;
  }
  return false;
}

const char *ax_lua_where(lua_State *L, char *buf, size_t size)
{
  lua_Debug ar;

  buf[0] = '\0';
  if (ax_lua_script_frame(L, &ar)) {
    const char *name = ar.source[0] == '@' ? ar.source + 1 : ar.short_src;
    /* the end of a path says more than its beginning */
    const size_t long_by = strlen(name) + 16 > size ? strlen(name) + 16 - size : 0;
    snprintf(buf, size, "%s%s:%d", long_by ? "..." : "", name + (long_by ? long_by + 3 : 0), ar.currentline);
  }
  return buf;
}

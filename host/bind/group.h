/* group.h: what the host needs of bind/dist.c. */
#ifndef AX_BIND_GROUP_H
#define AX_BIND_GROUP_H

#include <stdbool.h>
#include <stddef.h>

#include <lua.h>

/* Where the library's own Lua files lie: frames in there are passed over when a script line is
 * looked for. */
void ax_lua_set_module_dir(const char *dir);
/* Is this the source (as lua_getinfo gives it) of one of the library's own files? */
bool ax_lua_in_library(const char *source);
/* "train.lua:12", the innermost frame outside the library; "" when there is none.  Returns buf. */
const char *ax_lua_where(lua_State *L, char *buf, size_t size);
/* Expects the table of accelerate.core on the stack top; sets its field `dist`. */
void ax_lua_open_dist(lua_State *L);

#endif

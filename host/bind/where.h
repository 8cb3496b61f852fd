/* where.h: the script's line, for messages. */
#ifndef AX_BIND_WHERE_H
#define AX_BIND_WHERE_H

#include <stdbool.h>
#include <stddef.h>

#include <lua.h>

/* Sets the folder of the library's own Lua files: the search for a script line skips frames in
 * there. */
void ax_lua_set_module_dir(const char *dir);
/* Whether `source` (as lua_getinfo gives it) is one of the library's own files. */
bool ax_lua_in_library(const char *source);
/* The name of a piece of Lua that the core loads, as one of the library's own files: its frames are
 * skipped, too.  Returns buf. */
const char *ax_lua_core_chunk(char *buf, size_t size);
/* "train.lua:12", the innermost frame outside the library; "" when there is none.  Returns buf. */
const char *ax_lua_where(lua_State *L, char *buf, size_t size);
/* The innermost frame outside the library, with its source and line; false: there is none. */
bool ax_lua_script_frame(lua_State *L, lua_Debug *ar);

#endif

/* group.h: the part of bind/dist.c that the host uses. */
#ifndef AX_BIND_GROUP_H
#define AX_BIND_GROUP_H

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
/* In a message handler, with the error at index 1: hands it to the function that the registry has
 * as AX_ON_ERROR, where it has one. */
#define AX_ON_ERROR "accel.on_error"
void ax_lua_keep_stack(lua_State *L);
/* The group at idx; nil: the world. */
struct ax_group *ax_lua_group_at(lua_State *L, int idx, const char *fn);
/* Every function that runs collectives begins with this: they come from the script's line. */
void ax_lua_enter_collective(lua_State *L);
/* Expects the table of accelerate.core on the stack top; sets its field `dist`. */
void ax_lua_open_dist(lua_State *L);

#endif

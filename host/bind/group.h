/* group.h: the part of bind/dist.c that the host uses. */
#ifndef AX_BIND_GROUP_H
#define AX_BIND_GROUP_H

#include <stdbool.h>
#include <stddef.h>

#include <lua.h>

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

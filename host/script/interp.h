/* interp.h: what the files of the interpreter share. */
#ifndef AX_INTERP_H
#define AX_INTERP_H

#include "script.h"
#include "settings/plan.h"

/* Sets package.path, package.cpath and package.preload. */
void ax_interp_set_paths(lua_State *L, const ax_plan *plan);
/* standard.c: changes Lua's own library; after ax_require_open. */
void ax_standard_open(lua_State *L);
/* Opens accelerate.host: what notebooks need of the host, and the user's folders. */
int ax_interp_open_host(lua_State *L);
/* From here on SIGUSR1 writes the script's traceback: into the rank's record, or to stderr. */
void ax_interp_catch_looks(lua_State *L, bool in_rank);

#endif

/* ends.h: ends of a process that no Lua error announces. */
#ifndef AX_ENDS_H
#define AX_ENDS_H

#include "script.h"

/* From here on a panic of LuaJIT and a C stack that is full are reported to `failed` with the
 * script line (NULL: to stderr), and end the process with AX_EXIT_FAILED.  Once, by the thread that
 * runs the script. */
void ax_ends_watch(lua_State *L, ax_failure_fn failed);
/* Writes the process's limits of memory: "207 MB of data (ulimit -d)".  Returns whether there are
 * any. */
bool ax_ends_limits(char *buf, size_t size);

#endif

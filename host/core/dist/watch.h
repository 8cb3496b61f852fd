/* dist/watch.h: marks around launches, for a watchdog (dist/watch.c).  A run without one pays one
 * load and a branch. */
#ifndef AX_DIST_WATCH_H
#define AX_DIST_WATCH_H

#include <stdatomic.h>

#include "plugin.h"

extern _Atomic bool ax_watched; /* a watchdog runs */
/* The rank's own thread is about to hand `what` (lasting) to a device, and has done so. */
void ax_launch_enter(const char *what);
void ax_launch_leave(void);

static inline void ax_launch_begin(ax_device d, const char *what)
{
  if (__builtin_expect(atomic_load_explicit(&ax_watched, memory_order_relaxed), 0) && d.kind != AX_CPU)
    ax_launch_enter(what);
}
static inline void ax_launch_end(void)
{
  if (__builtin_expect(atomic_load_explicit(&ax_watched, memory_order_relaxed), 0)) ax_launch_leave();
}

#endif

/* launch.c: forks one process per rank. */
#include "host.h"

int ax_launch(const ax_plan *plan, int ranks)
{
  (void)plan;
  fprintf(stderr, "accel-run: %d ranks: not in this build yet\n", ranks);
  return AX_EXIT_USAGE;
}

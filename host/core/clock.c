/* The clock by which all of the host times waits and work. */
#include <time.h>

#include "plugin.h"

int64_t ax_monotonic_ns(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

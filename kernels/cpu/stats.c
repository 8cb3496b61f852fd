/* Counters of the kernels that ran, by which a test or a user sees the path that a product took. */
#include "cpu.h"

#include <stdio.h>
#include <string.h>

#define COUNTERS 64

/* the last one counts kernels for which there is no room */
static __thread ax_kernel_stat counters[COUNTERS + 1];
static __thread int n_counters;

int64_t *ax_cpu_counter(const char *name)
{
  for (int k = 0; k < n_counters; k++)
    if (strcmp(counters[k].name, name) == 0) return &counters[k].calls;
  if (n_counters == COUNTERS) return &counters[COUNTERS].calls;
  snprintf(counters[n_counters].name, sizeof(counters[0].name), "%s", name);
  return &counters[n_counters++].calls;
}

const ax_kernel_stat *ax_cpu_stats(int *n, bool reset)
{
  *n = n_counters;
  if (reset) /* the names stay: kernels keep pointers to their counters */
    for (int k = 0; k <= COUNTERS; k++) counters[k].calls = 0;
  return counters;
}

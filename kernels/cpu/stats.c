/* Counters of which kernels ran: how a test, or a user, sees that a product went the way it
 * should. */
#include "cpu.h"

#include <stdio.h>
#include <string.h>

#define COUNTERS 64

static __thread ax_kernel_stat counters[COUNTERS + 1]; /* the last one takes what finds no room */
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
  if (reset) /* the names stay: kernels hold on to their counters */
    for (int k = 0; k <= COUNTERS; k++) counters[k].calls = 0;
  return counters;
}

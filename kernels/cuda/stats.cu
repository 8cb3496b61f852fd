/* See stats.h. */
#include "stats.h"

#include <stdio.h>
#include <string.h>

enum { COUNTERS = 256 };
static thread_local ax_kernel_stat counters[COUNTERS + 1]; /* the last one takes what finds no room */
static thread_local int n_counters;

void ax_cuda_count(const char *name)
{
  for (int k = 0; k < n_counters; k++)
    if (strncmp(counters[k].name, name, sizeof counters[k].name - 1) == 0) {
      counters[k].calls++;
      return;
    }
  ax_kernel_stat *c = &counters[n_counters < COUNTERS ? n_counters++ : COUNTERS];
  snprintf(c->name, sizeof c->name, "%s", c == &counters[COUNTERS] ? "others" : name);
  c->calls++;
}

const ax_kernel_stat *ax_cuda_stats(int *n, bool reset)
{
  *n = n_counters + (counters[COUNTERS].calls > 0);
  if (reset) {
    memset(counters, 0, sizeof counters);
    *n = n_counters = 0;
  }
  return counters;
}

/* Counters: see stats.h.  They belong to the process, unlike the plans that point to them. */
#include "stats.h"

#include <mutex>
#include <stdio.h>
#include <string.h>

enum { COUNTERS = 256 };
static ax_kernel_stat counters[COUNTERS + 1]; /* the last one counts kernels for which there is no room */
static int n_counters;
static std::mutex lock;

int64_t *ax_cuda_counter(const char *name)
{
  char cut[sizeof counters[0].name];
  std::lock_guard<std::mutex> hold(lock);

  snprintf(cut, sizeof cut, "%s", name);
  for (int k = 0; k < n_counters; k++)
    if (strcmp(counters[k].name, cut) == 0) return &counters[k].calls;
  if (n_counters == COUNTERS) return &counters[COUNTERS].calls;
  memcpy(counters[n_counters].name, cut, sizeof cut);
  return &counters[n_counters++].calls;
}

extern "C" const ax_kernel_stat *ax_cuda_stats(int *n, bool reset)
{
  std::lock_guard<std::mutex> hold(lock);
  *n = n_counters;
  if (reset) /* the names stay: plans keep pointers to their counters */
    for (int k = 0; k <= COUNTERS; k++) counters[k].calls = 0;
  return counters;
}

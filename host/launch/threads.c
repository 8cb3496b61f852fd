/* threads.c: the cores of this machine that a run may use, and the threads of each rank. */
#define _GNU_SOURCE
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launch.h"
#include "settings/settings.h"

/* The cgroup's quota in cores, or 0 when there is none.  Version 2 writes "max 100000" or "150000
 * 100000". */
double ax_config_quota(void)
{
  double limit = 0, period = 0;
  FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r");

  if (f) {
    if (fscanf(f, "%lf %lf", &limit, &period) != 2) limit = 0;
    fclose(f);
  } else if ((f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "r"))) {
    if (fscanf(f, "%lf", &limit) != 1) limit = 0;
    fclose(f);
    if ((f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "r"))) {
      if (fscanf(f, "%lf", &period) != 1) period = 0;
      fclose(f);
    }
  }
  return limit > 0 && period > 0 ? limit / period : 0;
}

int ax_config_cores(void)
{
  cpu_set_t mask;
  double q = ax_config_quota();
  long n;

  if (sched_getaffinity(0, sizeof mask, &mask) == 0) n = CPU_COUNT(&mask);
  else n = sysconf(_SC_NPROCESSORS_ONLN);
  if (n < 1) n = 1;
  if (q > 0 && ceil(q) < (double)n) n = (long)ceil(q);
  return (int)n;
}

/* OMP_NUM_THREADS, unless one of our launchers computed it for the rank that started this
 * process. */
static int omp_threads(void)
{
  const char *omp = getenv("OMP_NUM_THREADS"), *ours = getenv("ACCEL_RUN_THREADS");

  if (!omp || (ours && strcmp(omp, ours) == 0)) return 0;
  return atoi(omp); /* "4,2" gives nested levels: the first number counts */
}

int ax_config_threads(const ax_plan *plan, int ranks, bool *explicit_)
{
  const double wanted = plan->set[AX_SET_num_cpu_threads_per_process].number;
  int n = omp_threads();

  *explicit_ = true;
  if (!isnan(wanted)) return (int)wanted;
  if (n > 0) return n;
  *explicit_ = false;
  n = plan->rank_cores > 0 ? plan->rank_cores : ax_config_cores() / (ranks > 0 ? ranks : 1);
  return n > 0 ? n : 1;
}

/* Finding, checking and loading backends.
 *
 * A CPU plugin is built per processor level; the best one that this processor runs is loaded on first use, which is after ranks were
 * forked and after their thread settings were made.  ACCEL_CPU_LEVEL picks another one (tests compare levels). */
#define _GNU_SOURCE
#include "core/core.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char plugin_dir[4096] = ".";
static const ax_backend *loaded[AX_DEVICE_KINDS];

void ax_backend_set_dir(const char *dir) { snprintf(plugin_dir, sizeof plugin_dir, "%s", dir); }

/* Levels that this processor runs, best first; see "x86-64 psABI, microarchitecture levels". */
static int usable_levels(const char **levels)
{
  int n = 0;
#if defined __x86_64__
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd")) levels[n++] = "v4";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) levels[n++] = "v3";
  levels[n++] = "v2";
#else
  levels[n++] = "native";
#endif
  return n;
}

/* Opens one plugin file; on refusal appends why to `said`. */
static const ax_backend *open_plugin(const char *level, char *said, size_t size)
{
  char path[4200];
  const size_t used = strlen(said);
  snprintf(path, sizeof path, "%s/libax_cpu_%s.so", plugin_dir, level);
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    snprintf(said + used, size - used, "\n  %s", dlerror());
    return NULL;
  }
  const ax_backend_entry entry = (ax_backend_entry)dlsym(lib, AX_BACKEND_ENTRY);
  const ax_backend *backend = entry ? entry() : NULL;
  if (backend && backend->abi == AX_ABI) return backend;
  if (!backend) snprintf(said + used, size - used, "\n  %.200s: no symbol " AX_BACKEND_ENTRY, path);
  else snprintf(said + used, size - used, "\n  %.200s: built for interface %u, this host has %d", path, backend->abi, AX_ABI);
  dlclose(lib);
  return NULL;
}

ax_status ax_backend_of(ax_device device, const ax_backend **out)
{
  const char *levels[4], *wanted = NULL;
  char said[900] = "";
  int n;

  *out = loaded[device.kind];
  if (*out) return AX_OK;
  if (device.kind != AX_CPU) return ax_fail(AX_ENOIMPL, "no CUDA backend in this build");
  n = usable_levels(levels);
  wanted = getenv("ACCEL_CPU_LEVEL");
  if (wanted && *wanted) {
    bool known = false;
    for (int k = 0; k < n; k++) known |= strcmp(levels[k], wanted) == 0;
    if (!known) return ax_fail(AX_EINVAL, "ACCEL_CPU_LEVEL=%s: this processor runs %s down to %s", wanted, levels[0], levels[n - 1]);
    levels[0] = wanted;
    n = 1;
  }
  for (int k = 0; k < n && !*out; k++) *out = open_plugin(levels[k], said, sizeof said);
  if (!*out) return ax_fail(AX_ENOIMPL, "no CPU plugin could be loaded:%s", said);
  loaded[device.kind] = *out;
  return AX_OK;
}

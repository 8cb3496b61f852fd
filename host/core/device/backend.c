/* Finding, checking and loading backends.
 *
 * A CPU plugin is built per processor level; the best one that this processor runs is loaded on
 * first use, which is after ranks were forked and after their thread settings were made.
 * ACCEL_CPU_LEVEL picks another one (tests compare levels). */
#define _GNU_SOURCE
#include "core/device/meta.h"
#include "core/core.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char plugin_dir[4096] = ".";
static const ax_backend *loaded[AX_DEVICE_KINDS];
static const char *refusal; /* why there are no devices other than the CPU */

bool ax_backend_loaded(ax_device_kind kind)
{
  return (int)kind < AX_DEVICE_KINDS && loaded[kind] != NULL && !(refusal && kind != AX_CPU);
}

void ax_backend_refuse_devices(const char *reason) { refusal = reason; }

void ax_backend_set_dir(const char *dir) { snprintf(plugin_dir, sizeof plugin_dir, "%s", dir); }
const char *ax_backend_dir(void) { return plugin_dir; }

/* Levels that this processor runs, best first; see "x86-64 psABI, microarchitecture levels". */
static int usable_levels(const char **levels)
{
  int n = 0;
#if defined __x86_64__
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512cd"))
    levels[n++] = "v4";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
    levels[n++] = "v3";
  levels[n++] = "v2";
#else
  levels[n++] = "native";
#endif
  return n;
}

/* Opens one plugin file; on refusal appends the reason to `reasons`. */
static const ax_backend *open_plugin(const char *path, char *reasons, size_t size)
{
  const size_t used = strlen(reasons);
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    snprintf(reasons + used, size - used, "\n  %s", dlerror());
    return NULL;
  }
  const ax_backend_entry entry = (ax_backend_entry)dlsym(lib, AX_BACKEND_ENTRY);
  const ax_backend *backend = entry ? entry() : NULL;
  if (backend && backend->abi == AX_INTERFACE) return backend;
  if (!entry) snprintf(reasons + used, size - used, "\n  %.200s: no symbol " AX_BACKEND_ENTRY, path);
  else if (!backend) snprintf(reasons + used, size - used, "\n  %.600s", ax_last_error());
  else
    snprintf(reasons + used, size - used,
             "\n  %.200s: built for interface %u, this host has %u: build both together", path, backend->abi,
             AX_INTERFACE);
  dlclose(lib);
  return NULL;
}

static ax_status load_cpu(const ax_backend **out)
{
  const char *levels[4], *wanted = getenv("ACCEL_CPU_LEVEL");
  char reasons[900] = "", path[4200];
  int n = usable_levels(levels);

  if (wanted && *wanted) {
    bool known = false;
    for (int k = 0; k < n; k++) known |= strcmp(levels[k], wanted) == 0;
    if (!known)
      return ax_fail(AX_EINVAL, "ACCEL_CPU_LEVEL=%s: this processor runs %s down to %s", wanted, levels[0],
                     levels[n - 1]);
    levels[0] = wanted;
    n = 1;
  }
  for (int k = 0; k < n && !*out; k++) {
    snprintf(path, sizeof path, "%s/libax_cpu_%s.so", plugin_dir, levels[k]);
    *out = open_plugin(path, reasons, sizeof reasons);
  }
  return *out ? AX_OK : ax_fail(AX_ENOIMPL, "no CPU plugin could be loaded:%s", reasons);
}

/* ACCEL_CUDA_PLUGIN names another file (tests of devices bring one that needs no GPU). */
static void cuda_path(char *path, size_t size)
{
  const char *named = getenv("ACCEL_CUDA_PLUGIN");
  if (named && *named) snprintf(path, size, "%s", named);
  else snprintf(path, size, "%s/libax_cuda.so", plugin_dir);
}

const char *ax_backend_environment(char *path, size_t size)
{
  void *lib;

  cuda_path(path, size);
  lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const ax_backend_environment_entry report =
      lib ? (ax_backend_environment_entry)dlsym(lib, AX_BACKEND_ENVIRONMENT) : NULL;
  return report ? report() : NULL; /* the library stays open: it owns the text */
}

/* The reason why there is no CUDA does not change while a process lives: it is found once and
 * reported each time. */
static ax_status load_cuda(const ax_backend **out)
{
  static char reason[900];
  char path[4200];

  if (!*reason) {
    cuda_path(path, sizeof path);
    if (access(path, F_OK) != 0)
      snprintf(reason, sizeof reason,
               "\n  this build has no CUDA backend: there is no %.300s (it is built where nvcc is found)",
               path);
    else *out = open_plugin(path, reason, sizeof reason);
    if (*out && !(*out)->memory) { /* the user named a file of another kind */
      snprintf(reason, sizeof reason, "\n  %.300s is the backend '%s', which is for no device", path,
               (*out)->name);
      *out = NULL;
    }
  }
  return *out ? AX_OK : ax_fail(AX_ENOIMPL, "CUDA cannot be used here:%s", reason);
}

ax_status ax_backend_of(ax_device device, const ax_backend **out)
{
  ax_status st = AX_OK;
  if (__builtin_expect(device.kind == AX_META, 0)) {
    *out = NULL;
    return ax_fail(
        AX_EINVAL,
        "a tensor of the device meta has no elements: load values into the model first (load_state_dict with "
        "assign = true, or from_pretrained), or prepare it, which draws them");
  }
  if (__builtin_expect(refusal != NULL, 0) && device.kind != AX_CPU) {
    *out = NULL;
    return ax_fail(AX_ENOIMPL, "%s", refusal);
  }
  *out = loaded[device.kind];
  if (__builtin_expect(!*out, 0)) {
    st = device.kind == AX_CPU ? load_cpu(out) : load_cuda(out);
    if (st != AX_OK) return st;
    loaded[device.kind] = *out;
  }
  if (device.kind == AX_CPU || device.index < (*out)->memory->count()) return AX_OK;
  const int n = (*out)->memory->count();
  *out = NULL;
  return ax_fail(AX_EINVAL, "cuda:%d: this process sees %d CUDA device%s, numbered from 0", device.index, n,
                 n == 1 ? "" : "s");
}

static ax_precision float32_products;

ax_precision ax_float32_matmul_precision(void) { return float32_products; }
void ax_float32_matmul_precision_set(ax_precision p) { float32_products = p; }

static int convolutions_tf32 = -1; /* -1: as with products */

bool ax_convolution_tf32(void)
{
  return convolutions_tf32 < 0 ? float32_products != AX_PRECISION_HIGHEST : convolutions_tf32 != 0;
}
void ax_convolution_tf32_set(int on) { convolutions_tf32 = on; }

static bool deterministic = true;

bool ax_deterministic(void) { return deterministic; }
void ax_deterministic_set(bool on) { deterministic = on; }

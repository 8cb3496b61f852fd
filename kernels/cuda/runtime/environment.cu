/* The facts about CUDA that `accel-run env` prints: the driver, the devices, NVIDIA's libraries.
 * This one symbol also works where no device can be used and ax_backend_get fails. */
#include "device.h"
#include "library.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static char text[8192];

static void __attribute__((format(printf, 1, 2))) say(const char *fmt, ...)
{
  const size_t used = strlen(text);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text + used, sizeof text - used, fmt, ap);
  va_end(ap);
}

/* cuBLASLt's version is 130101 for 13.1.1, cuDNN's 91900 for 9.19.0, NCCL's 22907 for 2.29.7. */
static void say_version(size_t v) { say("%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100); }

/* cuFFT's and cuSOLVER's functions give the parts: 12, 0, 0. */
static void say_parts(void *function)
{
  int part[3] = {};
  for (int k = 0; k < 3; k++)
    if (((int (*)(int, int *))function)(k, &part[k]) != 0) return;
  say("%d.%d.%d", part[0], part[1], part[2]);
}

static void report_library(const char *name, const char *file, const char *version)
{
  struct link_map *map = NULL;
  void *library, *at = NULL;
  const ax_status st = ax_cuda_library(file, name, &library);
  char own[40];

  ax_cuda_library_name(file, AX_CUDA_MAJOR, own, sizeof own);
  file = own;
  if (st != AX_OK) {
    say("library\t%s\t%s\t\t\t%s\n", name, file, ax_last_error());
    return;
  }
  say("library\t%s\t%s\t", name, file);
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name) {
    char path[PATH_MAX];
    say("%s", realpath(map->l_name, path) ? path : map->l_name);
  }
  say("\t");
  at = dlsym(library, version);
  if (at && strcmp(name, "NCCL") == 0) {
    int v = 0;
    if (((int (*)(int *))at)(&v) == 0) say_version((size_t)v);
  } else if (at && strstr(version, "GetProperty")) say_parts(at);
  else if (at) say_version(((size_t(*)(void))at)());
  say("\t\n");
}

extern "C" AX_API const char *ax_cuda_environment(void);

/* Lines of fields separated by tabs:
 *   build ARCHS            runtime 13.0            driver 13.0 (0.0: there is none)
 *   device N NAME sm_90 BYTES MULTIPROCESSORS REASON      REASON: why this build cannot use it, or
 *                                                         nothing
 *   library NAME FILE PATH VERSION PROBLEM */
extern "C" const char *ax_cuda_environment(void)
{
  int driver = 0, runtime = 0, n = 0;

  text[0] = '\0';
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  say("build\t%s\nruntime\t%d.%d\ndriver\t%d.%d\n", ax_cuda_archs, runtime / 1000, runtime % 1000 / 10,
      driver / 1000, driver % 1000 / 10);
  if (cudaGetDeviceCount(&n) != cudaSuccess) n = 0;
  cudaGetLastError();
  for (int k = 0; k < n; k++) {
    cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, k) != cudaSuccess) continue;
    const bool built = ax_cuda_arch_built(k, p.name, p.major, p.minor) == AX_OK;
    say("device\t%d\t%.200s\tsm_%d%d\t%zu\t%d\t%s\n", k, p.name, p.major, p.minor, p.totalGlobalMem,
        p.multiProcessorCount, built ? "" : ax_last_error());
  }
  report_library("cuBLASLt", "libcublasLt.so.*", "cublasLtGetVersion");
  report_library("cuDNN", "libcudnn.so.9", "cudnnGetVersion");
  report_library("NCCL", "libnccl.so.2", "ncclGetVersion");
  report_library("cuFFT", "libcufft.so.*-1", "cufftGetProperty");
  report_library("cuSOLVER", "libcusolver.so.*-1", "cusolverGetProperty");
  return text;
}

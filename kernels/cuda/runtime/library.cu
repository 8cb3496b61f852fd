/* Opens CUDA's libraries, which may be in several places. */
#include "library.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *open_in(const char *folder, size_t n, const char *file, char *tried, size_t size)
{
  char path[4200];
  if (n == 0 || n > 3900) return NULL;
  snprintf(path, sizeof path, "%.*s/%s", (int)n, folder, file);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const size_t used = strlen(tried);
  if (!library) snprintf(tried + used, size - used, " %.*s", (int)n, folder);
  return library;
}

#ifdef AX_EMULATE

#include "cuda/emulate/emulate.h"

/* Stand-ins are in the folders that the specs give.  The loader would find NVIDIA's own library,
 * which looks for a GPU and finds none. */
ax_status ax_cuda_library(const char *file, const char *needed_for, void **out)
{
  const char *list = getenv("ACCEL_CUDA_LIBRARIES");
  char tried[700] = "";

  *out = NULL;
  for (const char *p = list; p && *p; p += strcspn(p, ":"), p += *p == ':') {
    void *const library = open_in(p, strcspn(p, ":"), file, tried, sizeof tried);
    ax_emulator_attach_fn attach;
    if (!library) continue;
    if (!(attach = (ax_emulator_attach_fn)dlsym(library, "ax_emulator_attach")))
      return ax_fail(AX_ENOIMPL, "%s needs a stand-in for %s: the one in %.*s has no ax_emulator_attach",
                     needed_for, file, (int)strcspn(p, ":"), p);
    attach(&ax_the_emulator);
    *out = library;
    return AX_OK;
  }
  return ax_fail(AX_ENOIMPL, "%s needs a stand-in for %s: none lies in ACCEL_CUDA_LIBRARIES (%s)", needed_for,
                 file, list ? list : "not set");
}

#else

/* Wheels for CUDA 13 install their libraries in nvidia/cu13/lib; cuDNN and NCCL have folders of
 * their own beside it. */
static void *open_below(const char *folder, const char *packages, const char *file, char *tried, size_t size)
{
  char pattern[4400];
  void *library = NULL;
  glob_t found;

  if (strlen(folder) > 4000) return NULL;
  snprintf(pattern, sizeof pattern, "%s%s/nvidia/*/lib/%s", folder, packages, file);
  if (glob(pattern, GLOB_BRACE, NULL, &found) == 0)
    for (size_t k = 0; k < found.gl_pathc && !library; k++)
      library = open_in(found.gl_pathv[k], (size_t)(strrchr(found.gl_pathv[k], '/') - found.gl_pathv[k]),
                        file, tried, size);
  else {
    const size_t used = strlen(tried);
    snprintf(tried + used, size - used, " %s%s/nvidia/*/lib", folder, packages);
  }
  globfree(&found);
  return library;
}

ax_status ax_cuda_library(const char *file, const char *needed_for, void **out)
{
  char tried[700] = "", folder[1100];
  const char *list = getenv("ACCEL_CUDA_LIBRARIES"), *home = getenv("CUDA_HOME"),
             *site = getenv("ACCEL_PYTHON_SITE");

  *out = NULL;
  for (const char *p = list; !*out && p && *p; p += strcspn(p, ":"), p += *p == ':')
    *out = open_in(p, strcspn(p, ":"), file, tried, sizeof tried);
  if (!*out) *out = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!*out && home) {
    snprintf(folder, sizeof folder, "%.1000s/lib64", home);
    *out = open_in(folder, strlen(folder), file, tried, sizeof tried);
  }
  if (!*out)
    *out = open_in("/usr/local/cuda/lib64", strlen("/usr/local/cuda/lib64"), file, tried, sizeof tried);
  if (!*out && site) *out = open_below(site, "", file, tried, sizeof tried);
  for (const char *p = getenv("PATH"); !*out && p && *p; p += strcspn(p, ":"), p += *p == ':') {
    char python[4200];
    const size_t n = strcspn(p, ":");
    if (n == 0 || n > 3900) continue;
    snprintf(python, sizeof python, "%.*s/python3", (int)n, p);
    if (access(python, X_OK) != 0) continue;
    /* bin/python3 of an environment, or of the system */
    snprintf(python, sizeof python, "%.*s/..", (int)n, p);
    *out = open_below(python, "/{lib,local/lib}/python3*/{site,dist}-packages", file, tried, sizeof tried);
  }
  if (*out) return AX_OK;
  return ax_fail(AX_ENOIMPL,
                 "%s needs %s, which was not found: the loader does not know it, nor do these folders have "
                 "it:%s (ACCEL_CUDA_LIBRARIES names more)",
                 needed_for, file, tried);
}

#endif

ax_status ax_cuda_symbol(void *library, const char *file, const char *name, void **out)
{
  *out = dlsym(library, name);
  return *out ? AX_OK : ax_fail(AX_ENOIMPL, "%s has no %s: it is of another version", file, name);
}

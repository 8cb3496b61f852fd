/* Opens CUDA's libraries, which may be in several places. */
#include "library.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One search for a file: what was found, or where it was looked for.  Two libraries of one soname
 * must not be open at once, since the parts that they open are found by soname too; so one of the
 * other CUDA is closed, and opened again when there is no better one. */
struct search {
  const char *file;
  void *library;
  char other[4300]; /* the first one that is made for another CUDA */
  char tried[700];
};

/* The CUDA that a library is made for, by its own word: cudnnGetCudartVersion or
 * cublasLtGetCudartVersion; 0 where it has neither. */
static int major_of(void *library)
{
  typedef size_t (*version_fn)(void);
  version_fn version = (version_fn)dlsym(library, "cudnnGetCudartVersion");
  if (!version) version = (version_fn)dlsym(library, "cublasLtGetCudartVersion");
  return version ? (int)(version() / 1000) : 0;
}

static void consider(search *s, const char *path)
{
  const size_t used = strlen(s->tried);
  void *const library = s->library ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const int major = library ? major_of(library) : 0;

  if (s->library) return;
  if (!library) {
    const char *const slash = strrchr(path, '/');
    if (slash) snprintf(s->tried + used, sizeof s->tried - used, " %.*s", (int)(slash - path), path);
  } else if (major == 0 || major == AX_CUDA_MAJOR) s->library = library;
  else {
    if (!*s->other) snprintf(s->other, sizeof s->other, "%s", path);
    dlclose(library);
  }
}

static void look_in(search *s, const char *folder, size_t n)
{
  char path[4200];
  if (n == 0 || n > 3900) return;
  snprintf(path, sizeof path, "%.*s/%s", (int)n, folder, s->file);
  consider(s, path);
}

static void look_in_list(search *s, const char *list)
{
  for (const char *p = list; p && *p; p += strcspn(p, ":"), p += *p == ':') look_in(s, p, strcspn(p, ":"));
}

#ifdef AX_EMULATE

#include "cuda/emulate/emulate.h"

/* Stand-ins are in the folders that the specs give.  The loader would find NVIDIA's own library,
 * which looks for a GPU and finds none. */
static void look_everywhere(search *s) { look_in_list(s, getenv("ACCEL_CUDA_LIBRARIES")); }

static ax_status found(const char *file, const char *needed_for, void *library)
{
  const ax_emulator_attach_fn attach = (ax_emulator_attach_fn)dlsym(library, "ax_emulator_attach");
  if (!attach)
    return ax_fail(AX_ENOIMPL, "%s needs a stand-in for %s: the one in %s has no ax_emulator_attach",
                   needed_for, file, getenv("ACCEL_CUDA_LIBRARIES"));
  attach(&ax_the_emulator);
  return AX_OK;
}

static ax_status missing(const char *file, const char *needed_for, const search *)
{
  const char *const list = getenv("ACCEL_CUDA_LIBRARIES");
  return ax_fail(AX_ENOIMPL, "%s needs a stand-in for %s: none lies in ACCEL_CUDA_LIBRARIES (%s)", needed_for,
                 file, list ? list : "not set");
}

#else

/* Wheels for CUDA 13 install their libraries in nvidia/cu13/lib, those for CUDA 12 in
 * nvidia/cublas/lib and the like; cuDNN and NCCL have folders of their own beside them. */
static void look_below(search *s, const char *folder, const char *packages)
{
  char pattern[4400];
  glob_t all;

  if (s->library || strlen(folder) > 4000) return;
  snprintf(pattern, sizeof pattern, "%s%s/nvidia/*/lib/%s", folder, packages, s->file);
  if (glob(pattern, GLOB_BRACE, NULL, &all) == 0)
    for (size_t k = 0; k < all.gl_pathc; k++) consider(s, all.gl_pathv[k]);
  else {
    const size_t used = strlen(s->tried);
    snprintf(s->tried + used, sizeof s->tried - used, " %s%s/nvidia/*/lib", folder, packages);
  }
  globfree(&all);
}

static void look_everywhere(search *s)
{
  const char *home = getenv("CUDA_HOME"), *site = getenv("ACCEL_PYTHON_SITE");
  char folder[1100];

  look_in_list(s, getenv("ACCEL_CUDA_LIBRARIES"));
  consider(s, s->file);
  if (home) {
    snprintf(folder, sizeof folder, "%.1000s/lib64", home);
    look_in(s, folder, strlen(folder));
  }
  look_in(s, "/usr/local/cuda/lib64", strlen("/usr/local/cuda/lib64"));
  if (site) look_below(s, site, "");
  for (const char *p = getenv("PATH"); !s->library && p && *p; p += strcspn(p, ":"), p += *p == ':') {
    char python[4200];
    const size_t n = strcspn(p, ":");
    if (n == 0 || n > 3900) continue;
    snprintf(python, sizeof python, "%.*s/python3", (int)n, p);
    if (access(python, X_OK) != 0) continue;
    /* bin/python3 of an environment, or of the system */
    snprintf(python, sizeof python, "%.*s/..", (int)n, p);
    look_below(s, python, "/{lib,local/lib}/python3*/{site,dist}-packages");
  }
}

static ax_status found(const char *, const char *, void *) { return AX_OK; }

static ax_status missing(const char *file, const char *needed_for, const search *s)
{
  return ax_fail(AX_ENOIMPL,
                 "%s needs %s, which was not found: the loader does not know it, nor do these folders have "
                 "it:%s (ACCEL_CUDA_LIBRARIES names more)",
                 needed_for, file, s->tried);
}

#endif

void ax_cuda_library_name(const char *file, int major, char *name, size_t size)
{
  const char *const star = strchr(file, '*');
  if (star) snprintf(name, size, "%.*s%d", (int)(star - file), file, major + (star[1] ? atoi(star + 1) : 0));
  else snprintf(name, size, "%s", file);
}

ax_status ax_cuda_library(const char *file, const char *needed_for, void **out)
{
  const bool several = strchr(file, '*') != NULL;
  const int majors[2] = { AX_CUDA_MAJOR, AX_CUDA_MAJOR == 13 ? 12 : 13 };
  char own[100];
  search s = {};

  *out = NULL;
  for (int k = 0; k < (several ? 2 : 1) && !s.library; k++) {
    char name[100];
    ax_cuda_library_name(file, majors[k], name, sizeof name);
    if (k == 0) snprintf(own, sizeof own, "%s", name);
    s.file = name;
    look_everywhere(&s);
    if (!s.library && *s.other) s.library = dlopen(s.other, RTLD_NOW | RTLD_LOCAL);
  }
  if (!s.library) return missing(own, needed_for, &s);
  const ax_status st = found(own, needed_for, s.library);
  if (st == AX_OK) *out = s.library;
  return st;
}

ax_status ax_cuda_symbol(void *library, const char *file, const char *name, void **out)
{
  *out = dlsym(library, name);
  return *out ? AX_OK : ax_fail(AX_ENOIMPL, "%s has no %s: it is of another version", file, name);
}

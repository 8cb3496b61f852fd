/* CUDA's large libraries are opened on first use, so that a build starts without them and can
 * report which one is missing. */
#ifndef AX_CUDA_LIBRARY_H
#define AX_CUDA_LIBRARY_H

extern "C" {
#include "plugin.h"
}

#ifndef AX_EMULATE
#include <cuda_runtime.h>
#endif

/* The CUDA that this plugin was built with, 13 or 12: what its libraries should be made for. */
#ifdef AX_EMULATE
enum { AX_CUDA_MAJOR = 13 };
#else
enum { AX_CUDA_MAJOR = CUDART_VERSION / 1000 };
#endif

/* Opens `file` ("libcudnn.so.9"; with a * for the version that CUDA's own libraries share with it,
 * "libcublasLt.so.*", or lag behind it, "libcufft.so.*-1").  Of several that are there, the first
 * one made for this plugin's CUDA is taken; else the first for the other one, 12 or 13, which works
 * where the driver is new enough for both.  Searches the folders of $ACCEL_CUDA_LIBRARIES
 * (separated by colons), the loader's paths, a toolkit ($CUDA_HOME or /usr/local/cuda), and
 * PyTorch's wheels: below $ACCEL_PYTHON_SITE, then in the packages of every python3 on $PATH.
 * ENOIMPL naming the file, what needs it, and the folders tried.  The emulated build opens
 * stand-ins (emulate.h), and only from the folders of $ACCEL_CUDA_LIBRARIES. */
ax_status ax_cuda_library(const char *file, const char *needed_for, void **out);
/* The name of `file` for CUDA 12 or 13: "libcufft.so.12" of "libcufft.so.*-1" and 13. */
void ax_cuda_library_name(const char *file, int major, char *name, size_t size);
/* A function of it; ENOIMPL when it is not there. */
ax_status ax_cuda_symbol(void *library, const char *file, const char *name, void **out);

#endif

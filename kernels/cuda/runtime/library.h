/* CUDA's large libraries are opened on first use, so that a build starts without them and can
 * report which one is missing. */
#ifndef AX_CUDA_LIBRARY_H
#define AX_CUDA_LIBRARY_H

extern "C" {
#include "plugin.h"
}

/* Opens `file` ("libcublasLt.so.13").  Searches the folders of $ACCEL_CUDA_LIBRARIES (separated by
 * colons), the loader's paths, a toolkit ($CUDA_HOME or /usr/local/cuda), and PyTorch's wheels:
 * below $ACCEL_PYTHON_SITE, then in the packages of every python3 on $PATH.  ENOIMPL naming the
 * file, what needs it, and the folders tried.  The emulated build opens stand-ins (emulate.h), and
 * only from the folders of $ACCEL_CUDA_LIBRARIES. */
ax_status ax_cuda_library(const char *file, const char *needed_for, void **out);
/* A function of it; ENOIMPL when it is not there. */
ax_status ax_cuda_symbol(void *library, const char *file, const char *name, void **out);

#endif

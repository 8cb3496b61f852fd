/* Counters of the kernels that ran (core.kernel_stats { device = "cuda" }), by which a test or a
 * user sees the path that a product took. */
#ifndef AX_CUDA_STATS_H
#define AX_CUDA_STATS_H

extern "C" {
#include "plugin.h"
}

/* The counter of that name ("convolution bfloat16, cuDNN engine 38"), made when it is new.
 * Never NULL; its address does not change, so a plan looks it up once.  Names are cut at 95
 * characters. */
int64_t *ax_cuda_counter(const char *name);
extern "C" const ax_kernel_stat *ax_cuda_stats(int *n, bool reset);

#endif

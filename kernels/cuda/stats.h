/* Counters of which kernels ran (core.kernel_stats { device = "cuda" }): how a test, or a user, sees that a product went the way it should. */
#ifndef AX_CUDA_STATS_H
#define AX_CUDA_STATS_H

extern "C" {
#include "ax.h"
}

/* One more call of the kernel `name` ("convolution bfloat16, cuDNN engine 38") on this thread. */
void ax_cuda_count(const char *name);
extern "C" const ax_kernel_stat *ax_cuda_stats(int *n, bool reset);

#endif

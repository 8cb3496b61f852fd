/* Counters of which kernels ran (core.kernel_stats { device = "cuda" }): how a test, or a user,
 * sees that a product went the way it should. */
#ifndef AX_CUDA_STATS_H
#define AX_CUDA_STATS_H

extern "C" {
#include "plugin.h"
}

/* The counter of that name ("convolution bfloat16, cuDNN engine 38"), made when it is new.  Never
 * NULL, and it stays where it is, so that a plan finds it once.  Names are cut at 95 characters. */
int64_t *ax_cuda_counter(const char *name);
/* One more call of the kernel `name`: looks it up each time. */
void ax_cuda_count(const char *name);
extern "C" const ax_kernel_stat *ax_cuda_stats(int *n, bool reset);

#endif

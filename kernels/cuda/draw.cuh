/* Random draws on the device: the numbers of a draw, passed to kernels by value. */
#ifndef AX_CUDA_DRAW_H
#define AX_CUDA_DRAW_H

#include "common.cuh"

extern "C" {
#include "capture.h"
}

#include "philox.h"

/* device_args: in a captured step, device memory with the seed and an offset to add, so that a
 * replay draws what an eager call in its place would draw. */
struct ax_cuda_draw {
  uint64_t seed, stream, draw;
  const ax_draw_args *device_args;
};

static inline ax_cuda_draw ax_cuda_draw_of(const ax_call *call)
{
  return ax_cuda_draw{ call->a->rng.seed, call->a->rng.stream, call->a->rng.draw, call->a->rng.device_args };
}

static __device__ __forceinline__ void ax_cuda_draw_block(const ax_cuda_draw &d, uint64_t block,
                                                          uint32_t w[4])
{
  ax_philox_run(ax_philox_at(d.device_args ? d.device_args->seed : d.seed, d.stream,
                             d.device_args ? d.draw + d.device_args->offset : d.draw, block),
                w);
}

#endif

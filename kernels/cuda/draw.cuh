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

/* Dropout: an element stays, times `scale`, when its word is at least `least`, p 2^32. */
struct ax_cuda_dropping {
  ax_cuda_draw draw;
  uint32_t least;
  float scale;
};

static inline ax_cuda_dropping ax_cuda_dropping_of(const ax_call *call, double p)
{
  return ax_cuda_dropping{ ax_cuda_draw_of(call), (uint32_t)(p * 0x1p32), (float)(1 / (1 - p)) };
}

/* v += dropout(x), elements i .. i + V - 1 of tensors of types S and Y; i is a multiple of 4.  The
 * dropout and the sum are rounded where each by itself would be. */
template <class S, class Y, int V>
static __device__ __forceinline__ void ax_cuda_add_dropped(const ax_cuda_dropping &d, int64_t i,
                                                           float (&v)[V], const float (&x)[V])
{
  uint32_t w[4];
  for (int k = 0; k < V; k++) {
    if (k % 4 == 0) ax_cuda_draw_block(d.draw, (uint64_t)(i + k) / 4, w);
    const float kept = w[k % 4] >= d.least ? __fmul_rn(x[k], d.scale) : 0.0f;
    v[k] = ax_cuda_load(ax_cuda_store<S>(v[k] + ax_cuda_load(ax_cuda_store<Y>(kept))));
  }
}

#endif

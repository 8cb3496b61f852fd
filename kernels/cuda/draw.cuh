/* Random draws on the device: the numbers of one, as a kernel gets them by value. */
#ifndef AX_CUDA_DRAW_H
#define AX_CUDA_DRAW_H

#include "common.cuh"

extern "C" {
#include "capture.h"
}

#include "philox.h"

/* live: of a recorded step.  Then the seed is the one there, and the offset there is added, so that
 * a replay draws what the call that it stands for would draw. */
struct ax_draw {
  uint64_t seed, stream, draw;
  const ax_draw_live *live;
};

static inline ax_draw ax_draw_of(const ax_call *call)
{
  return ax_draw{ call->a->rng.seed, call->a->rng.stream, call->a->rng.draw, call->a->rng.live };
}

static __device__ __forceinline__ void ax_draw_block(const ax_draw &d, uint64_t block, uint32_t w[4])
{
  ax_philox_run(ax_philox_at(d.live ? d.live->seed : d.seed, d.stream,
                             d.live ? d.draw + d.live->offset : d.draw, block),
                w);
}

#endif

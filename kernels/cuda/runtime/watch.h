/* Waits of the host while other ranks may have to come for the device to go on. */
#ifndef AX_CUDA_WATCH_H
#define AX_CUDA_WATCH_H

#include "cuda/common.cuh"

/* Waits for `event` or, when it is NULL, for all that `stream` was asked for.  nccl.cu sets it
 * while the device has joined others: it looks at the other ranks meanwhile, and ends with an error
 * when one of them is gone.  NULL: nobody else is involved. */
extern ax_status (*ax_cuda_watch)(const char *what, cudaStream_t stream, cudaEvent_t event);

static inline ax_status ax_cuda_wait_stream(const char *what, cudaStream_t stream)
{
  return ax_cuda_watch ? ax_cuda_watch(what, stream, NULL)
                       : ax_cuda_status(what, cudaStreamSynchronize(stream));
}
static inline ax_status ax_cuda_wait_event(const char *what, cudaEvent_t event)
{
  return ax_cuda_watch ? ax_cuda_watch(what, NULL, event) : ax_cuda_status(what, cudaEventSynchronize(event));
}

#endif

/* Waits of the host for a device whose work may depend on other ranks. */
#ifndef AX_CUDA_WATCH_H
#define AX_CUDA_WATCH_H

#include "cuda/common.cuh"

#include <atomic>

/* Waits for `event` or, when it is NULL, for all work queued in `stream`.  nccl_group.cu sets it
 * while the device has joined others: it checks the other ranks during the wait, and ends with an
 * error when one of them is gone.  NULL: no other rank is involved. */
extern ax_status (*ax_cuda_watch)(const char *what, cudaStream_t stream, cudaEvent_t event);

/* Set by the watchdog (nccl_watch.cu) when it has aborted the devices' group: the next ax_cuda_use
 * of the rank's own thread clears it, and ends with the error of ax_cuda_stopped. */
extern std::atomic<bool> ax_cuda_stop;
extern ax_status (*ax_cuda_stopped)(void);
/* Joins the collectives' stream to the capture of the device's computing stream before it ends.
 * NULL: there is no such stream. */
extern ax_status (*ax_cuda_recording_ends)(int device, cudaStream_t computing);

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

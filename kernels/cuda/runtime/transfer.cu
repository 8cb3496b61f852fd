/* Copies between the host and devices, and batches that are sent ahead.
 *
 * A copy to the device is queued in the computing stream: its source is staged in pinned memory, so
 * the call does not wait.  A copy to the host is waited for, unless it goes to pinned memory and
 * its caller waits itself.  A batch that is sent ahead (a loader's next batch) travels in the copy
 * stream, beside the computation, into memory of the sending pool; `arrive` makes the computing
 * stream wait for it. */
#include "device.h"
#include "watch.h"

#include <stdlib.h>

/* Copies to the device are staged in pinned host memory: pieces of STAGE bytes in turn.  Each is
 * filled by one copy after the other, and reused when the last copy from it is done. */
static const size_t STAGE = (size_t)4 << 20;
/* of a batch that is sent ahead: the most that is pinned at a time */
static const size_t PIECE = (size_t)32 << 20;

/* Allocates all pieces at once, so that none is made in the middle of a run.  Returns false when
 * the host has no pinned memory left. */
static bool make_stages(ax_cuda_device *dev)
{
  void *p = NULL;
  int made = 0;

  if (cudaHostAlloc(&p, AX_STAGES * STAGE, cudaHostAllocPortable) != cudaSuccess) {
    cudaGetLastError(); /* it would be reported again by the next launch */
    return false;
  }
  while (made < AX_STAGES &&
         cudaEventCreateWithFlags(&dev->stages[made].done, cudaEventDisableTiming) == cudaSuccess)
    made++;
  if (made < AX_STAGES) {
    while (made > 0) cudaEventDestroy(dev->stages[--made].done);
    cudaFreeHost(p);
    return false;
  }
  for (int k = 0; k < AX_STAGES; k++) dev->stages[k].data = (char *)p + (size_t)k * STAGE;
  return true;
}

/* A piece with room for n bytes.  *out NULL with AX_OK: there is none. */
static ax_status stage_for(ax_cuda_device *dev, size_t n, ax_cuda_stage **out)
{
  ax_cuda_stage *s = &dev->stages[dev->next_stage];
  ax_status st = AX_OK;

  *out = NULL;
  if (!s->data && !make_stages(dev)) return AX_OK;
  if (STAGE - s->used < n) {
    dev->next_stage = (dev->next_stage + 1) % AX_STAGES;
    s = &dev->stages[dev->next_stage];
    if (s->busy && cudaEventQuery(s->done) != cudaSuccess) {
      cudaGetLastError(); /* "not ready" would be reported again by the next launch */
      dev->stats.waits++;
      if ((st = ax_cuda_wait_event("copy", s->done)) != AX_OK) return st;
    }
    s->busy = false;
    s->used = 0;
  }
  *out = s;
  return AX_OK;
}

/* Host to device: on return `src` has been read; the copy itself is queued in the stream. */
static ax_status copy_up(ax_cuda_device *dev, cudaStream_t stream, void *dst, const void *src, size_t bytes)
{
  ax_status st = AX_OK;
  dev->stats.uploads++;
  for (size_t at = 0; at < bytes && st == AX_OK; at += STAGE) {
    const size_t n = bytes - at < STAGE ? bytes - at : STAGE;
    ax_cuda_stage *s;
    if ((st = stage_for(dev, n, &s)) != AX_OK) return st;
    /* staged by the driver */
    if (!s)
      return ax_cuda_status("copy", cudaMemcpyAsync((char *)dst + at, (const char *)src + at, bytes - at,
                                                    cudaMemcpyHostToDevice, stream));
    char *const from = s->data + s->used;
    memcpy(from, (const char *)src + at, n);
    s->used += (n + 255) / 256 * 256;
    if (s->used > STAGE) s->used = STAGE;
    st = ax_cuda_status("copy", cudaMemcpyAsync((char *)dst + at, from, n, cudaMemcpyHostToDevice, stream));
    if (st == AX_OK) st = ax_cuda_status("copy", cudaEventRecord(s->done, stream));
    s->busy = st == AX_OK;
  }
  return st;
}

/* Makes `waiting` wait, on its device, for the work queued in `stream` of `index` so far. */
static ax_status wait_for_stream(const char *what, cudaStream_t waiting, int index, cudaStream_t stream)
{
  ax_cuda_device *dev = &ax_cuda_devices[index];
  cudaStream_t own;
  cudaEvent_t e;
  /* events belong to the device of their stream */
  ax_status st = ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)index }, &own);

  if (st != AX_OK) return st;
  pthread_mutex_lock(&ax_cuda_lock);
  if ((st = ax_cuda_event(dev, &e)) == AX_OK) {
    st = ax_cuda_status(what, cudaEventRecord(e, stream));
    if (st == AX_OK) st = ax_cuda_status(what, cudaStreamWaitEvent(waiting, e, 0));
    /* the wait is for what was recorded; recording again later does not change it */
    ax_cuda_event_back(dev, e);
  }
  pthread_mutex_unlock(&ax_cuda_lock);
  return st;
}

/* Gives device `to`, the thread's, access to the memory of `from`: copies go over the link or the
 * bus between them, without it by way of the host.  The driver is called for it once.  Where it
 * refuses (no such way, too many peers) copies go on by way of the host; NCCL may have turned it on
 * before. */
static void reach(int to, int from)
{
  ax_cuda_device *dev = &ax_cuda_devices[to];
  int can = 0;

  pthread_mutex_lock(&ax_cuda_lock);
  const bool asked = dev->asked[from];
  dev->asked[from] = true;
  if (!asked && cudaDeviceCanAccessPeer(&can, to, from) == cudaSuccess && can)
    cudaDeviceEnablePeerAccess(from, 0);
  pthread_mutex_unlock(&ax_cuda_lock);
  if (!asked) cudaGetLastError(); /* a refusal would be reported again by the next launch */
}

/* Copies between two devices, in the stream of the receiving one.  Both streams are ordered around
 * the copy, and the host does not wait. */
static ax_status copy_over(ax_device to, void *dst, ax_device from, const void *src, size_t bytes)
{
  cudaStream_t here, there;
  ax_status st;

  if ((st = ax_cuda_use(from, &there)) != AX_OK || (st = ax_cuda_use(to, &here)) != AX_OK ||
      (st = wait_for_stream("copy", here, from.index, there)) != AX_OK ||
      (st = ax_cuda_use(to, &here)) != AX_OK)
    return st;
  reach(to.index, from.index);
  if ((st = ax_cuda_status("copy", cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, here))) != AX_OK)
    return st;
  return wait_for_stream("copy", there, to.index, here); /* later writes to `src` come behind the copy */
}

ax_status ax_cuda_copy(ax_device to, void *dst, ax_device from, const void *src, size_t bytes)
{
  cudaStream_t stream;
  ax_status st;

  if (!ax_same_device(to, from)) {
    const ax_device d = from.kind == AX_CUDA ? from : to, other = to.kind == AX_CUDA ? to : from;
    const char *const what = to.kind == AX_CPU     ? "read from"
                             : from.kind == AX_CPU ? "send data to"
                                                   : "copy from or to";
    if ((st = ax_cuda_refuse_recording(d.index, what)) != AX_OK ||
        (st = ax_cuda_refuse_recording(other.index, what)) != AX_OK)
      return st;
  }
  if (to.kind == AX_CUDA && from.kind == AX_CUDA && to.index != from.index)
    return copy_over(to, dst, from, src, bytes);
  if ((st = ax_cuda_use(from.kind == AX_CUDA ? from : to, &stream)) != AX_OK) return st;
  if (from.kind == AX_CPU && to.kind == AX_CUDA)
    return copy_up(&ax_cuda_devices[to.index], stream, dst, src, bytes);
  /* The driver waits inside a copy to pageable memory, without looking at other ranks. */
  if (to.kind == AX_CPU && ax_cuda_watch && (st = ax_cuda_watch("copy", stream, NULL)) != AX_OK) return st;
  st = ax_cuda_status("copy", cudaMemcpyAsync(dst, src, bytes,
                                              to.kind == AX_CPU ? cudaMemcpyDeviceToHost : cudaMemcpyDefault,
                                              stream));
  return st == AX_OK && to.kind == AX_CPU ? ax_cuda_wait(from.index, "copy") : st;
}

ax_status ax_cuda_copy_later(ax_device to, void *dst, ax_device from, const void *src, size_t bytes)
{
  const ax_device d = from.kind == AX_CUDA ? from : to;
  const void *const host = from.kind == AX_CPU ? src : dst;
  cudaStream_t stream;
  ax_status st;

  if ((from.kind == AX_CUDA && to.kind == AX_CUDA) || !ax_cuda_is_pinned(host) || ax_cuda_recording(d.index))
    return ax_cuda_copy(to, dst, from, src, bytes);
  if ((st = ax_cuda_use(d, &stream)) != AX_OK) return st;
  st = ax_cuda_status("copy",
                      cudaMemcpyAsync(dst, src, bytes,
                                      from.kind == AX_CPU ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                                      stream));
  return st == AX_OK ? ax_cuda_pinned_used(host, d.index, stream) : st;
}

/* ---- ahead of time */

/* On return `src` has been read: it is copied into pinned memory, unless it is pinned itself. */
static ax_status copy_ahead(ax_cuda_device *dev, int index, char *dst, const char *src, size_t bytes)
{
  const bool direct = ax_cuda_sends_in_place(src);
  ax_status st = AX_OK;

  for (size_t at = 0; at < bytes && st == AX_OK; at += direct ? bytes : PIECE) {
    const size_t n = direct || bytes - at < PIECE ? bytes - at : PIECE;
    void *staged = NULL;
    if (!direct) {
      if ((st = ax_cuda_pinned_new(n, &staged)) != AX_OK) return st;
      memcpy(staged, src + at, n);
    }
    const void *const from = direct ? (const void *)(src + at) : staged;
    st = ax_cuda_status("send", cudaMemcpyAsync(dst + at, from, n, cudaMemcpyHostToDevice, dev->copies));
    if (st == AX_OK) st = ax_cuda_pinned_used(from, index, dev->copies);
    if (st != AX_OK) cudaStreamSynchronize(dev->copies); /* no event says when the pinned memory is free */
    if (staged) ax_cuda_pinned_free(staged, n);
  }
  return st;
}

ax_status ax_cuda_send(int index, const void *src, size_t bytes, void **out, uint64_t *ticket)
{
  ax_cuda_device *dev = &ax_cuda_devices[index];
  ax_cuda_sent sent = { 0, NULL };
  cudaStream_t stream;
  ax_status st;

  *out = NULL;
  if ((st = ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)index }, &stream)) != AX_OK) return st;
  if (!dev->copies &&
      (st = ax_cuda_status("cudaStreamCreate",
                           cudaStreamCreateWithFlags(&dev->copies, cudaStreamNonBlocking))) != AX_OK)
    return st;
  if ((st = ax_cuda_alloc_sending(index, bytes, out)) != AX_OK) return st;
  st = copy_ahead(dev, index, (char *)*out, (const char *)src, bytes);
  pthread_mutex_lock(&ax_cuda_lock);
  if (st == AX_OK && dev->n_sent == dev->room_for_sent) {
    ax_cuda_sent *more =
        (ax_cuda_sent *)realloc(dev->sent, (size_t)(2 * dev->room_for_sent + 16) * sizeof *more);
    if (more) {
      dev->sent = more;
      dev->room_for_sent = 2 * dev->room_for_sent + 16;
    } else st = ax_fail(AX_ENOMEM, "send: no room for the records of what is on its way");
  }
  if (st == AX_OK && (st = ax_cuda_event(dev, &sent.done)) == AX_OK &&
      (st = ax_cuda_status("send", cudaEventRecord(sent.done, dev->copies))) != AX_OK)
    ax_cuda_event_back(dev, sent.done);
  if (st == AX_OK) {
    *ticket = sent.ticket = ++dev->last_ticket;
    dev->sent[dev->n_sent++] = sent;
  }
  pthread_mutex_unlock(&ax_cuda_lock);
  if (st == AX_OK) return st;
  cudaStreamSynchronize(dev->copies); /* the block is freed, and must not be written any more */
  ax_cuda_release(index, *out, bytes);
  *out = NULL;
  return st;
}

/* The copy stream works in order: when one ticket has arrived, all earlier ones have. */
ax_status ax_cuda_arrive(int index, uint64_t ticket)
{
  ax_cuda_device *dev = &ax_cuda_devices[index];
  cudaStream_t stream;
  ax_status st = ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)index }, &stream);
  int n = 0;

  if (st != AX_OK ||
      (ticket > dev->arrived &&
       (st = ax_cuda_refuse_recording(index, "use a batch that is still on its way to")) != AX_OK))
    return st;
  pthread_mutex_lock(&ax_cuda_lock);
  if (ticket > dev->arrived) {
    while (n < dev->n_sent && dev->sent[n].ticket <= ticket) n++;
    if (n > 0) st = ax_cuda_status("arrive", cudaStreamWaitEvent(stream, dev->sent[n - 1].done, 0));
    if (st == AX_OK) {
      for (int k = 0; k < n; k++) ax_cuda_event_back(dev, dev->sent[k].done);
      memmove(dev->sent, dev->sent + n, (size_t)(dev->n_sent -= n) * sizeof *dev->sent);
      dev->arrived = ticket;
    }
  }
  pthread_mutex_unlock(&ax_cuda_lock);
  return st;
}

void ax_cuda_all_arrived(ax_cuda_device *dev)
{
  pthread_mutex_lock(&ax_cuda_lock);
  for (int k = 0; k < dev->n_sent; k++) ax_cuda_event_back(dev, dev->sent[k].done);
  dev->n_sent = 0;
  dev->arrived = dev->last_ticket;
  pthread_mutex_unlock(&ax_cuda_lock);
}

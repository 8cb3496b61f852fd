/* Captured steps as CUDA graphs.
 *
 * The device's stream is captured in the relaxed mode.  The other modes forbid this thread (or all
 * threads) calls such as cudaMalloc, which the pool needs and libraries make when they load a
 * kernel late.  Calls that a capture does not allow (waits, copies from and to the host) are
 * refused here before CUDA sees them (device.cu), so that the error has the script's line and the
 * capture ends in order.
 *
 * A copy in a graph would read host memory at every replay, and that memory would have to keep its
 * contents as long as the graph lives.  There are no such copies: tables of pointers are sent once,
 * when the capture ends, to memory outside of the pool that stays theirs. */
#include "device.h"
#include "watch.h"

extern "C" {
#include "capture.h"
}

#include <stdlib.h>

namespace {

struct table {
  table *next;
  void *there;
  size_t bytes;
  char here[];
};
struct kept {
  kept *next;
  void *data;
  size_t bytes;
};

struct graph {
  ax_device device;
  cudaStream_t stream;
  bool recording;
  uint64_t pool; /* 0: none */
  table *tables; /* the tables to be sent; their memory stays reserved */
  kept *places;  /* memory of the graph alone: for tables and for the core */
  cudaGraphExec_t exec;
};

graph *recordings[AX_MOST_DEVICES]; /* by device: the current recording */

ax_status remember(graph *g, void *data, size_t bytes)
{
  kept *k = (kept *)malloc(sizeof *k);
  if (!k) return ax_fail(AX_ENOMEM, "out of memory: no room for what a captured step keeps");
  *k = kept{ g->places, data, bytes };
  g->places = k;
  return AX_OK;
}

/* Allocates memory outside the graph's pool.  Memory of the pool is not suitable for data that is
 * written once: at every replay, the graph would write there what the recording wrote before. */
ax_status take_outside(graph *g, size_t bytes, void **out)
{
  ax_cuda_device *dev = &ax_cuda_devices[g->device.index];
  ax_cuda_pool *const pool = dev->recording;
  dev->recording = NULL;
  ax_status st = ax_cuda_take(g->device, bytes, out);
  dev->recording = pool;
  if (st == AX_OK && (st = remember(g, *out, bytes)) != AX_OK) ax_cuda_give(g->device, *out, bytes);
  return st;
}

void give_places(graph *g)
{
  while (g->places) {
    kept *k = g->places;
    g->places = k->next;
    ax_cuda_give(g->device, k->data, k->bytes);
    free(k);
  }
}

void free_tables(graph *g)
{
  while (g->tables) {
    table *t = g->tables;
    g->tables = t->next;
    free(t);
  }
}

/* Ends the capture; *made NULL where it had become invalid, also because a stream did not come
 * back.  The capture ends first: the pool's end records events, which would otherwise be the
 * graph's and could not be waited for. */
ax_status stop(graph *g, cudaGraph_t *made)
{
  *made = NULL;
  if (ax_cuda_recording_ends) (void)ax_cuda_recording_ends(g->device.index, g->stream);
  const cudaError_t e = cudaStreamEndCapture(g->stream, made);
  g->recording = false;
  recordings[g->device.index] = NULL;
  ax_cuda_pool_end(g->device);
  if (e != cudaSuccess) cudaGetLastError(); /* it would be reported again by the next launch */
  return ax_cuda_status("recording a step", e);
}

void release(void *p)
{
  graph *g = (graph *)p;
  cudaGraph_t made;

  if (!g) return;
  if (g->recording) {
    (void)stop(g, &made);
    if (made) cudaGraphDestroy(made);
  }
  /* a running launch ends before its resources are freed; memory is reused in the stream's order */
  if (g->exec) cudaGraphExecDestroy(g->exec);
  free_tables(g);
  give_places(g);
  if (g->pool) ax_cuda_pool_release(g->device, g->pool);
  free(g);
}

ax_status begin(int device, void **out)
{
  graph *g = (graph *)calloc(1, sizeof *g);
  ax_status st;

  *out = NULL;
  if (!g) return ax_fail(AX_ENOMEM, "out of memory: no room for a captured step");
  g->device = ax_device{ AX_CUDA, (uint8_t)device };
  if ((st = ax_cuda_use(g->device, &g->stream)) != AX_OK) {
    free(g);
    return st;
  }
  /* cached memory cannot be freed during the recording, when nothing can be waited for */
  ax_cuda_empty_cache(device);
  if ((st = ax_cuda_pool_begin(g->device, &g->pool)) != AX_OK) {
    free(g);
    return st;
  }
  if ((st = ax_cuda_status("recording a step",
                           cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeRelaxed))) != AX_OK) {
    ax_cuda_pool_end(g->device);
    release(g);
    return st;
  }
  g->recording = true;
  recordings[device] = g;
  *out = g;
  return AX_OK;
}

ax_status end(void *p)
{
  graph *g = (graph *)p;
  cudaGraph_t made;
  ax_status st = stop(g, &made);

  if (st == AX_OK) st = ax_cuda_status("recording a step", cudaGraphInstantiate(&g->exec, made, 0));
  if (made) cudaGraphDestroy(made); /* the executable graph does not need it */
  for (table *t = g->tables; t && st == AX_OK; t = t->next)
    st = ax_cuda_memory.copy(g->device, t->there, ax_device{ AX_CPU, 0 }, t->here, t->bytes);
  free_tables(g);
  if (st == AX_OK) st = ax_cuda_status("recording a step", cudaGraphUpload(g->exec, g->stream));
  if (st != AX_OK) {
    cudaGetLastError();
    release(g);
  }
  return st;
}

ax_status replay(void *p)
{
  graph *g = (graph *)p;
  cudaStream_t stream;
  const ax_status st = ax_cuda_use(g->device, &stream);
  return st != AX_OK ? st : ax_cuda_status("replaying a step", cudaGraphLaunch(g->exec, stream));
}

ax_status keep(void *p, size_t bytes, void **out) { return take_outside((graph *)p, bytes, out); }

bool inside(const void *p, const void *data)
{
  const graph *g = (const graph *)p;
  return g && g->pool && ax_cuda_pool_has(g->device, g->pool, data);
}

} // namespace

extern "C" const struct ax_device_capture ax_cuda_capture = { begin, end, replay, release, keep, inside };

ax_status ax_cuda_table(ax_device d, const void *here, size_t bytes, void **there)
{
  graph *g = recordings[d.index];
  table *t = (table *)malloc(sizeof *t + bytes);
  ax_status st;

  *there = NULL;
  if (!t) return ax_fail(AX_ENOMEM, "out of memory: no room for a table of a captured step");
  if ((st = take_outside(g, bytes, there)) != AX_OK) {
    free(t);
    *there = NULL;
    return st;
  }
  t->next = g->tables;
  t->there = *there;
  t->bytes = bytes;
  memcpy(t->here, here, bytes);
  g->tables = t;
  return AX_OK;
}

/* What device.cu, allocator.cu, pinned.cu and transfer.cu share: the record of a device.
 *
 * A device has two streams.  The computing stream takes all kernels, in the order in which the host
 * asks for them.  The copy stream takes batches that a loader sends ahead (transfer.cu), beside the
 * computation.  They meet in events alone:
 *   - a batch is used after ax_device_arrive, which makes the computing stream wait for its copy; -
 *   memory that a batch lay in is written again when what the computing stream had been asked for
 *   by the time it was given back is done.
 * No host waits for either. */
#ifndef AX_CUDA_DEVICE_H
#define AX_CUDA_DEVICE_H

#include "cuda/common.cuh"

#include <pthread.h>

enum { AX_MOST_DEVICES = 64, AX_BINS = 48, AX_BUCKETS = 4096 };

struct ax_cuda_pool;
struct ax_cuda_block {
  char *data;
  size_t bytes, asked;
  bool used, small;
  ax_cuda_pool *pool;
  /* of free blocks of the sending pool: what the computing stream does with it before; NULL:
   * nothing */
  cudaEvent_t ready;
  uint64_t at;                   /* when that was recorded */
  ax_cuda_block *before, *after; /* neighbours in the segment */
  ax_cuda_block *prev, *next;    /* in the list of free blocks of its bin, or of used ones of its bucket */
};

/* Blocks of one pool are cut from segments of its own, and come back to it.  `kind`: MAIN, what
 * kernels use; SENDING, what the copy stream writes; PRIVATE, of a graph. */
enum ax_cuda_pool_kind { AX_POOL_MAIN, AX_POOL_SENDING, AX_POOL_PRIVATE };
struct ax_cuda_pool {
  ax_cuda_pool_kind kind;
  uint64_t id;
  ax_cuda_block *free[2][AX_BINS]; /* large, small: by the power of two below their size */
  ax_cuda_pool *next;
};

struct ax_cuda_sent {
  uint64_t ticket;
  cudaEvent_t done;
};
struct ax_cuda_stage {
  char *data;
  size_t used;
  cudaEvent_t done;
  bool busy;
};
enum { AX_STAGES = 4 };

struct ax_cuda_device {
  cudaStream_t stream, copies; /* copies: NULL until the first batch is sent */
  int multiprocessors;
  char name[64];
  ax_cuda_fault *fault; /* pinned memory of the host that kernels write */

  ax_cuda_pool pools[2];   /* MAIN, SENDING */
  ax_cuda_pool *privates;  /* of graphs that live */
  ax_cuda_pool *recording; /* the one that allocations go to now; NULL: MAIN */
  ax_cuda_block *waiting;  /* of the sending pool, given back while a graph was recorded */
  uint64_t last_pool;
  ax_cuda_block *used[AX_BUCKETS]; /* by address */
  ax_memory_stats stats;

  cudaEvent_t *events; /* spare ones */
  int n_events, room_for_events;
  uint64_t recorded; /* events recorded in `stream` for the sending pool */

  ax_cuda_sent *sent; /* on their way, oldest first */
  int n_sent, room_for_sent;
  uint64_t last_ticket, arrived;

  ax_cuda_stage stages[AX_STAGES]; /* transfer.cu: what goes up in the computing stream */
  int next_stage;
};
extern ax_cuda_device ax_cuda_devices[AX_MOST_DEVICES];
/* of pools, events, tickets and pinned memory; never held while the collector runs */
extern pthread_mutex_t ax_cuda_lock;

/* What the host cannot do while a step is recorded, since nothing runs: "wait for", "read from",
 * "send data to" the device.  EINVAL then. */
ax_status ax_cuda_refuse_recording(int index, const char *what);
/* Waits for the computing stream; what a kernel found wrong since the last time is this call's
 * error. */
ax_status ax_cuda_wait(int index, const char *what);
/* An event of the device (timing off) out of its spare ones, and back.  With the lock held. */
ax_status ax_cuda_event(ax_cuda_device *dev, cudaEvent_t *out);
void ax_cuda_event_back(ax_cuda_device *dev, cudaEvent_t e);
extern const char *const ax_cuda_archs; /* what this build has machine code for: "sm_80:sm_90:compute_100" */
/* ENOIMPL when this build has no machine code for such a device. */
ax_status ax_cuda_arch_built(int index, const char *name, int major, int minor);
bool ax_cuda_forked(void); /* is this the child of a process that used CUDA? */

/* ---- allocator.cu */

ax_status ax_cuda_alloc(int index, size_t bytes, void **out);
/* The same from the pool that the copy stream writes, which waits on the device until the memory is
 * free.  ENOMEM: no room; ask ax_cuda_alloc. */
ax_status ax_cuda_alloc_sending(int index, size_t bytes, void **out);
void ax_cuda_release(int index, void *data, size_t bytes);
void ax_cuda_memory_stats(int index, ax_memory_stats *out);
void ax_cuda_memory_small(int index, ax_memory_small *out);
void ax_cuda_reset_peak(int index);
void ax_cuda_empty_cache(int index);

/* Memory of a CUDA graph.  Between begin and end all that is allocated on `d` comes from a pool of
 * its own, so that nobody else writes where the graph's kernels read and write at each replay; what
 * is given back inside may be used again inside.  Blocks that outlive the recording (results)
 * belong to whoever holds them and come back to that pool, which hands nothing out any more.  `id`:
 * 0 makes a pool, else one that is there goes on (several graphs that never run at once).  release:
 * no graph of this pool will run again; its memory becomes ordinary cache, in stream order.  No
 * waits and no cudaMalloc that capturing would forbid: the caller puts the thread into relaxed mode
 * around what may allocate. */
ax_status ax_cuda_pool_begin(ax_device d, uint64_t *id);
void ax_cuda_pool_end(ax_device d);
void ax_cuda_pool_release(ax_device d, uint64_t id);
/* does a block that begins there belong to it? */
bool ax_cuda_pool_has(ax_device d, uint64_t id, const void *data);

/* ---- pinned.cu: memory of the host that devices read and write by themselves */

ax_status ax_cuda_pinned_new(size_t bytes, void **out);
/* May be called while copies are under way: the memory is handed out again when they are done. */
void ax_cuda_pinned_free(void *p, size_t bytes);
/* `stream` of device `index` was asked to read or write at p, which lies in pinned memory. */
ax_status ax_cuda_pinned_used(const void *p, int index, cudaStream_t stream);
bool ax_cuda_is_pinned(const void *p);
void ax_cuda_pinned_empty(void);

/* ---- transfer.cu */

ax_status ax_cuda_copy(ax_device to, void *dst, ax_device from, const void *src, size_t bytes);
ax_status ax_cuda_copy_later(ax_device to, void *dst, ax_device from, const void *src, size_t bytes);
ax_status ax_cuda_send(int index, const void *src, size_t bytes, void **out, uint64_t *ticket);
ax_status ax_cuda_arrive(int index, uint64_t ticket);
/* Everything that was sent is there: both streams have been waited for. */
void ax_cuda_all_arrived(ax_cuda_device *dev);

#endif

/* Shared by device.cu, allocator.cu, pinned.cu and transfer.cu: the record of a device.
 *
 * A device has two streams.  The computing stream runs all kernels, in the order in which the host
 * queues them.  The copy stream transfers batches that a loader sends ahead (transfer.cu), beside
 * the computation.  They are ordered by events alone:
 *   - a batch is used after ax_device_arrive, which makes the computing stream wait for its copy;
 *   - the memory of a batch is written again only after the work that was queued in the computing
 *     stream by the time the memory was freed.
 * The host waits for neither. */
#ifndef AX_CUDA_DEVICE_H
#define AX_CUDA_DEVICE_H

#include "cuda/common.cuh"

#include <pthread.h>

enum { AX_MOST_DEVICES = 64, AX_BINS = 48, AX_BUCKETS = 4096 };

struct ax_cuda_pool;
struct ax_cuda_block {
  char *data;
  size_t bytes, requested;
  bool used, small;
  ax_cuda_pool *pool;
  /* for free blocks of the sending pool: the end of the computing stream's use; NULL: not used */
  cudaEvent_t ready;
  uint64_t at;                   /* when the event was recorded */
  ax_cuda_block *before, *after; /* neighbours in the segment */
  ax_cuda_block *prev, *next;    /* in the list of free blocks of its bin, or of used ones of its bucket */
};

/* Blocks of a pool are cut from its own segments, and return to it.  `kind`: MAIN, used by kernels;
 * SENDING, written by the copy stream; PRIVATE, a graph's. */
enum ax_cuda_pool_kind { AX_POOL_MAIN, AX_POOL_SENDING, AX_POOL_PRIVATE };
struct ax_cuda_pool {
  ax_cuda_pool_kind kind;
  uint64_t id;
  ax_cuda_block *free[2][AX_BINS]; /* large, small: by the power of two below the size */
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
  ax_cuda_fault *fault; /* pinned host memory that kernels write */

  ax_cuda_pool pools[2];   /* MAIN, SENDING */
  ax_cuda_pool *privates;  /* of live graphs */
  ax_cuda_pool *recording; /* the pool of current allocations; NULL: MAIN */
  ax_cuda_block *waiting;  /* of the sending pool, freed during a recording */
  uint64_t last_pool;
  ax_cuda_block *used[AX_BUCKETS]; /* by address */
  ax_memory_stats stats;

  cudaEvent_t *events; /* spare ones */
  int n_events, room_for_events;
  uint64_t recorded; /* events recorded in `stream` for the sending pool */

  ax_cuda_sent *sent; /* batches in transfer, oldest first */
  int n_sent, room_for_sent;
  uint64_t last_ticket, arrived;

  bool asked[AX_MOST_DEVICES]; /* transfer.cu: for peer access to that device's memory */

  ax_cuda_stage stages[AX_STAGES]; /* transfer.cu: staging memory for copies to the device */
  int next_stage;
};
extern ax_cuda_device ax_cuda_devices[AX_MOST_DEVICES];
/* guards pools, events, tickets and pinned memory; never held while the collector runs */
extern pthread_mutex_t ax_cuda_lock;

/* Returns EINVAL during a recording, in which nothing runs.  what: the refused action, "wait for",
 * "read from", "send data to" the device. */
ax_status ax_cuda_refuse_recording(int index, const char *what);
/* Waits for the computing stream; returns the error of a fault that a kernel found since the last
 * wait. */
ax_status ax_cuda_wait(int index, const char *what);
/* Takes an event of the device (without timing) from its spare ones, and returns it.  With the lock
 * held. */
ax_status ax_cuda_event(ax_cuda_device *dev, cudaEvent_t *out);
void ax_cuda_event_back(ax_cuda_device *dev, cudaEvent_t e);
extern const char *const ax_cuda_archs; /* the machine code in this build: "sm_80:sm_90:compute_100" */
/* ENOIMPL when this build has no machine code for such a device. */
ax_status ax_cuda_arch_built(int index, const char *name, int major, int minor);
/* Makes the process's own device the thread's: the one that its state chose, else the one that the
 * thread used last, else that of its number on the machine.  For calls that name no device: the
 * driver would make a context on device 0. */
ax_status ax_cuda_use_own(void);
/* The address on the PCI bus: "0000:1b:00.0".  Makes no context. */
ax_status ax_cuda_bus(int index, char id[32]);
/* Makes `index` the thread's device, without a look at what stops the rank: for calls that cannot
 * report it.  ax_cuda_use reports a stop once. */
ax_status ax_cuda_select(int index);
bool ax_cuda_forked(void); /* whether this is a child of a process that used CUDA */

/* ---- allocator.cu */

ax_status ax_cuda_alloc(int index, size_t bytes, void **out);
/* Likewise from the pool that the copy stream writes; the copy stream waits, on the device, until
 * the memory is free.  ENOMEM: no room; the caller then uses ax_cuda_alloc. */
ax_status ax_cuda_alloc_sending(int index, size_t bytes, void **out);
void ax_cuda_release(int index, void *data, size_t bytes);
void ax_cuda_memory_stats(int index, ax_memory_stats *out);
void ax_cuda_memory_small(int index, ax_memory_small *out);
void ax_cuda_reset_peak(int index);
void ax_cuda_empty_cache(int index);

/* Memory of a CUDA graph.  Between begin and end all allocations on `d` come from a pool of its
 * own, so that nothing else writes the memory that the graph's kernels use at each replay; memory
 * freed inside may be reused inside.  Blocks that outlive the recording (results) belong to their
 * holders and return to that pool, which makes no further allocations.  `id`: 0 makes a pool, else
 * an existing one continues (several graphs that never run at once).  release: no graph of this
 * pool will run again; its memory becomes ordinary cache, in stream order.  These functions neither
 * wait nor call cudaMalloc in a way that capturing forbids: the caller sets the thread to relaxed
 * mode around allocations. */
ax_status ax_cuda_pool_begin(ax_device d, uint64_t *id);
void ax_cuda_pool_end(ax_device d);
void ax_cuda_pool_release(ax_device d, uint64_t id);
/* whether a block that begins at `data` belongs to the pool */
bool ax_cuda_pool_has(ax_device d, uint64_t id, const void *data);

/* ---- pinned.cu: host memory that devices read and write by themselves */

ax_status ax_cuda_pinned_new(size_t bytes, void **out);
/* May be called while copies are running: the memory is reused when they are done. */
void ax_cuda_pinned_free(void *p, size_t bytes);
/* Notes that work queued in `stream` of device `index` reads or writes at p, in pinned memory. */
ax_status ax_cuda_pinned_used(const void *p, int index, cudaStream_t stream);
bool ax_cuda_is_pinned(const void *p);
void ax_cuda_pinned_empty(void);
/* Pins pages that another part of the process owns.  They do not count as pinned for copies of
 * their owner's, who may write them when such a copy has returned: only `send` reads them in place,
 * and their owner writes or unmaps them when they are idle. */
ax_status ax_cuda_pin(void *p, size_t bytes);
bool ax_cuda_pin_idle(const void *p);
void ax_cuda_unpin(void *p);
/* whether `send` may read at p when its copy runs */
bool ax_cuda_sends_in_place(const void *p);

/* ---- transfer.cu */

ax_status ax_cuda_copy(ax_device to, void *dst, ax_device from, const void *src, size_t bytes);
ax_status ax_cuda_copy_later(ax_device to, void *dst, ax_device from, const void *src, size_t bytes);
ax_status ax_cuda_send(int index, const void *src, size_t bytes, void **out, uint64_t *ticket);
ax_status ax_cuda_arrive(int index, uint64_t ticket);
/* Called when both streams have been waited for: everything that was sent has arrived. */
void ax_cuda_all_arrived(ax_cuda_device *dev);

#endif

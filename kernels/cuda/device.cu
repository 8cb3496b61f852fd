/* Devices: finding them, their stream, copies, and a caching allocator.
 *
 * The allocator takes segments from the driver and cuts them into blocks; a freed block joins its free neighbours.  Requests below 1 MB
 * share segments of 2 MB; larger ones get segments of 20 MB or, above 10 MB, of their own size.  Everything of a device runs in one
 * stream, so a block that was given back may be handed out again at once: whoever used it before is ahead in the stream. */
#include "common.cuh"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_DEVICES = 64, BINS = 48 };
static const size_t ALIGN = 512, SMALL = (size_t)1 << 20, SMALL_SEGMENT = (size_t)2 << 20, LARGE_SEGMENT = (size_t)20 << 20, OWN_SEGMENT = (size_t)10 << 20;

struct block {
  char *data;
  size_t bytes;
  bool used, small;
  block *before, *after; /* neighbours in the segment */
  block *prev, *next;    /* in the list of free blocks of its bin, or of used ones of its bucket */
};

/* What goes up waits in pinned memory of the host, so that the call need not: pieces of STAGE bytes in turn, each filled one copy after the
 * other, and used again when the last copy out of it is done. */
enum { STAGES = 4 };
static const size_t STAGE = (size_t)4 << 20;
struct stage { char *data; size_t used; cudaEvent_t done; bool busy; };

enum { BUCKETS = 4096 };
struct device {
  cudaStream_t stream;
  int multiprocessors;
  block *free[2][BINS];    /* large, small: by the power of two below their size */
  block *used[BUCKETS];    /* by address */
  ax_memory_stats stats;
  size_t reserved;
  ax_fault *fault;         /* pinned memory of the host that kernels write */
  stage stages[STAGES];
  int next_stage;
};
static device devices[MOST_DEVICES];
static int n_devices;
static thread_local int current = -1;

ax_status ax_cuda_status(const char *what, cudaError_t e)
{
  if (e == cudaSuccess) return AX_OK;
  return ax_fail(e == cudaErrorMemoryAllocation ? AX_ENOMEM : AX_ENOIMPL, "%s: CUDA: %s", what, cudaGetErrorString(e));
}

ax_status ax_cuda_use(ax_device d, cudaStream_t *stream)
{
  device *dev = &devices[d.index];
  ax_status st;

  if (current != d.index) {
    if ((st = ax_cuda_status("cudaSetDevice", cudaSetDevice(d.index))) != AX_OK) return st;
    current = d.index;
  }
  if (!dev->stream && !dev->multiprocessors) {
    cudaDeviceProp p;
    if ((st = ax_cuda_status("cudaGetDeviceProperties", cudaGetDeviceProperties(&p, d.index))) != AX_OK) return st;
    if ((st = ax_cuda_status("cudaStreamCreate", cudaStreamCreateWithFlags(&dev->stream, cudaStreamNonBlocking))) != AX_OK) return st;
    dev->multiprocessors = p.multiProcessorCount;
  }
  *stream = dev->stream;
  return AX_OK;
}

int ax_cuda_multiprocessors(int index)
{
  cudaStream_t stream;
  return ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)index }, &stream) == AX_OK ? devices[index].multiprocessors : 1;
}

ax_status ax_cuda_clear(const char *what, ax_device d, void *p, size_t bytes)
{
  cudaStream_t stream;
  const ax_status st = bytes ? ax_cuda_use(d, &stream) : AX_OK;
  return st != AX_OK || !bytes ? st : ax_cuda_status(what, cudaMemsetAsync(p, 0, bytes, stream));
}

ax_fault *ax_cuda_fault_place(ax_device d)
{
  device *dev = &devices[d.index];
  cudaStream_t stream;
  void *p = NULL;

  if (dev->fault) return dev->fault;
  if (ax_cuda_use(d, &stream) != AX_OK || ax_cuda_status("cudaHostAlloc", cudaHostAlloc(&p, sizeof(ax_fault), cudaHostAllocMapped | cudaHostAllocPortable)) != AX_OK)
    return NULL;
  memset(p, 0, sizeof(ax_fault));
  return dev->fault = (ax_fault *)p;
}

/* Waits for the stream; what a kernel found wrong since the last time is this call's error. */
static ax_status wait_for(int index, const char *what)
{
  device *dev = &devices[index];
  const ax_status st = ax_cuda_status(what, cudaStreamSynchronize(dev->stream));

  dev->stats.waits++;

  if (st != AX_OK || !dev->fault || ((volatile ax_fault *)dev->fault)->code == AX_FAULT_NONE) return st;
  const ax_fault f = *dev->fault;
  const char *name = ax_ops[f.op].name;
  dev->fault->code = AX_FAULT_NONE;
  if (name[0] == '_') name++;
  switch (f.code) {
  case AX_FAULT_INDEX: return ax_fail(AX_ERANGE, "%s: index %lld at flat position %lld (from 0) is outside 0..%lld (found on cuda:%d after the call)", name, f.value, f.at, f.count - 1, index);
  case AX_FAULT_TARGET: return ax_fail(AX_ERANGE, "%s: target %lld at position %lld is outside 0..%lld (found on cuda:%d after the call)", name, f.value, f.at, f.count - 1, index);
  case AX_FAULT_CLASS: return ax_fail(AX_ERANGE, "%s: %lld at flat position %lld (from 0) is no class of 0..%lld (found on cuda:%d after the call)", name, f.value, f.at, f.count - 1, index);
  default: return ax_fail(AX_ERANGE, "%s: an input lies outside 0..1; apply sigmoid first, or use binary_cross_entropy_with_logits (found on cuda:%d after the call)", name, index);
  }
}

/* ---- the allocator */

static int bin_of(size_t bytes)
{
  int bin = 0;
  while (bytes >>= 1) bin++;
  return bin < BINS ? bin : BINS - 1;
}

static block **bucket_of(device *dev, const void *p) { return &dev->used[(uintptr_t)p / 512 % BUCKETS]; }

static void push(block **list, block *b)
{
  b->prev = NULL;
  b->next = *list;
  if (*list) (*list)->prev = b;
  *list = b;
}

static void unlink_from(block **list, block *b)
{
  if (b->prev) b->prev->next = b->next;
  else *list = b->next;
  if (b->next) b->next->prev = b->prev;
}

static block **free_list(device *dev, const block *b) { return &dev->free[b->small][bin_of(b->bytes)]; }

/* The smallest free block that is large enough. */
static block *find(device *dev, size_t bytes, bool small)
{
  block *best = NULL;
  for (int bin = bin_of(bytes); bin < BINS && !best; bin++)
    for (block *b = dev->free[small][bin]; b; b = b->next)
      if (b->bytes >= bytes && (!best || b->bytes < best->bytes)) best = b;
  return best;
}

static block *new_block(char *data, size_t bytes, bool small)
{
  block *b = (block *)calloc(1, sizeof *b);
  if (!b) return NULL;
  b->data = data;
  b->bytes = bytes;
  b->small = small;
  return b;
}

/* A new segment as one free block.  *out NULL with AX_OK: the device has no room for it. */
static ax_status grow(device *dev, size_t bytes, bool small, block **out)
{
  const size_t two = (size_t)2 << 20;
  const size_t size = small ? SMALL_SEGMENT : bytes < OWN_SEGMENT ? LARGE_SEGMENT : (bytes + two - 1) / two * two;
  void *data = NULL;
  const cudaError_t e = cudaMalloc(&data, size);

  *out = NULL;
  if (e == cudaErrorMemoryAllocation) {
    cudaGetLastError(); /* it would be reported again by the next launch */
    return AX_OK;
  }
  if (e != cudaSuccess) return ax_cuda_status("cudaMalloc", e);
  if (!(*out = new_block((char *)data, size, small))) {
    cudaFree(data);
    return ax_fail(AX_ENOMEM, "out of memory: no room for the allocator's own records");
  }
  dev->reserved += size;
  push(free_list(dev, *out), *out);
  return AX_OK;
}

/* Gives segments that are free as a whole back to the driver. */
static void empty_cache(device *dev)
{
  cudaStreamSynchronize(dev->stream);
  for (int small = 0; small < 2; small++)
    for (int bin = 0; bin < BINS; bin++)
      for (block *b = dev->free[small][bin], *next; b; b = next) {
        next = b->next;
        if (b->before || b->after) continue;
        unlink_from(&dev->free[small][bin], b);
        dev->reserved -= b->bytes;
        cudaFree(b->data);
        free(b);
      }
}

static ax_status take(device *dev, size_t bytes, block **out)
{
  const bool small = bytes < SMALL;
  block *b = find(dev, bytes, small), *rest;
  ax_status st = AX_OK;

  *out = NULL;
  if (b) dev->stats.cache_hits++;
  else if ((st = grow(dev, bytes, small, &b)) != AX_OK || !b) return st;
  unlink_from(free_list(dev, b), b);
  if (b->bytes - bytes >= (small ? ALIGN : SMALL) && (rest = new_block(b->data + bytes, b->bytes - bytes, small))) {
    rest->before = b;
    rest->after = b->after;
    if (b->after) b->after->before = rest;
    b->after = rest;
    b->bytes = bytes;
    push(free_list(dev, rest), rest);
  }
  b->used = true;
  push(bucket_of(dev, b->data), b);
  *out = b;
  return AX_OK;
}

static ax_status alloc(int index, size_t bytes, void **out)
{
  device *dev = &devices[index];
  const size_t rounded = bytes ? (bytes + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
  cudaStream_t stream;
  block *b = NULL;
  ax_status st;

  *out = NULL;
  if ((st = ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)index }, &stream)) != AX_OK) return st;
  if (bytes <= (size_t)1 << 46) {
    if ((st = take(dev, rounded, &b)) != AX_OK) return st;
    if (!b) { /* what the collector holds first, then what is cached */
      ax_memory_relieve(rounded);
      if ((st = take(dev, rounded, &b)) != AX_OK) return st;
    }
    if (!b) {
      empty_cache(dev);
      if ((st = take(dev, rounded, &b)) != AX_OK) return st;
    }
  }
  if (!b) {
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    return ax_fail(AX_ENOMEM, "cuda:%d: out of memory: %.1f MB asked for, %.1f MB in live tensors, %.1f MB cached, %.1f of the device's %.1f MB free", index,
                   (double)bytes / 1e6, (double)dev->stats.live_bytes / 1e6, (double)(dev->reserved - (size_t)dev->stats.live_bytes) / 1e6,
                   (double)available / 1e6, (double)total / 1e6);
  }
  dev->stats.live_bytes += (int64_t)b->bytes;
  dev->stats.live_blocks++;
  dev->stats.allocations++;
  if (dev->stats.live_bytes > dev->stats.peak_bytes) dev->stats.peak_bytes = dev->stats.live_bytes;
  ax_memory_count_device((int64_t)b->bytes);
  *out = b->data;
  return AX_OK;
}

/* Joins b with a free neighbour; b is in no list. */
static block *join(device *dev, block *b, block *other)
{
  if (!other || other->used) return b;
  unlink_from(free_list(dev, other), other);
  block *first = other == b->before ? other : b, *second = first->after;
  first->bytes += second->bytes;
  first->after = second->after;
  if (second->after) second->after->before = first;
  free(second);
  return first;
}

static void give_back(int index, void *data, size_t bytes)
{
  device *dev = &devices[index];
  block *b = *bucket_of(dev, data);
  while (b && b->data != data) b = b->next;
  if (!b) return;
  unlink_from(bucket_of(dev, data), b);
  dev->stats.live_bytes -= (int64_t)b->bytes;
  dev->stats.live_blocks--;
  ax_memory_count_device(-(int64_t)b->bytes);
  b->used = false;
  b = join(dev, b, b->before);
  b = join(dev, b, b->after);
  push(free_list(dev, b), b);
}

ax_status ax_cuda_take(ax_device d, size_t bytes, void **out) { return alloc(d.index, bytes, out); }
void ax_cuda_give(ax_device d, void *p, size_t bytes) { if (p) give_back(d.index, p, bytes); }

static void stats(int index, ax_memory_stats *out)
{
  size_t available = 0, total = 0;
  cudaStream_t stream;
  *out = devices[index].stats;
  out->cached_bytes = (int64_t)devices[index].reserved - out->live_bytes;
  if (ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)index }, &stream) == AX_OK && cudaMemGetInfo(&available, &total) == cudaSuccess)
    out->limit_bytes = (int64_t)total;
}

static void reset_peak(int index) { devices[index].stats.peak_bytes = devices[index].stats.live_bytes; }
static void drop_cache(int index) { empty_cache(&devices[index]); }

/* ---- copies */

/* A piece of pinned memory with room for n bytes.  *out NULL with AX_OK: the host has none to give. */
static ax_status stage_for(device *dev, size_t n, stage **out)
{
  stage *s = &dev->stages[dev->next_stage];
  ax_status st = AX_OK;

  *out = NULL;
  if (s->data && STAGE - s->used < n) {
    dev->next_stage = (dev->next_stage + 1) % STAGES;
    s = &dev->stages[dev->next_stage];
    if (s->busy && cudaEventQuery(s->done) != cudaSuccess) {
      cudaGetLastError(); /* "not ready" would be reported again by the next launch */
      dev->stats.waits++;
      if ((st = ax_cuda_status("copy", cudaEventSynchronize(s->done))) != AX_OK) return st;
    }
    s->busy = false;
    s->used = 0;
  }
  if (!s->data) {
    void *p = NULL;
    if (cudaHostAlloc(&p, STAGE, cudaHostAllocPortable) != cudaSuccess) {
      cudaGetLastError(); /* it would be reported again by the next launch */
      return AX_OK;
    }
    if ((st = ax_cuda_status("cudaEventCreate", cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming))) != AX_OK) {
      cudaFreeHost(p);
      return st;
    }
    s->data = (char *)p;
  }
  *out = s;
  return AX_OK;
}

/* Host to device: `src` has been read when the call returns, the copy itself takes its place in the stream. */
static ax_status copy_up(device *dev, cudaStream_t stream, void *dst, const void *src, size_t bytes)
{
  ax_status st = AX_OK;
  dev->stats.uploads++;
  for (size_t at = 0; at < bytes && st == AX_OK; at += STAGE) {
    const size_t n = bytes - at < STAGE ? bytes - at : STAGE;
    stage *s;
    if ((st = stage_for(dev, n, &s)) != AX_OK) return st;
    if (!s) return ax_cuda_status("copy", cudaMemcpyAsync((char *)dst + at, (const char *)src + at, bytes - at, cudaMemcpyHostToDevice, stream)); /* staged by the driver */
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

static ax_status copy(ax_device to, void *dst, ax_device from, const void *src, size_t bytes)
{
  const ax_device d = from.kind == AX_CUDA ? from : to; /* the source's stream knows when the source is ready */
  cudaStream_t stream, other;
  ax_status st = ax_cuda_use(d, &stream);

  if (st != AX_OK) return st;
  if (from.kind == AX_CPU && to.kind == AX_CUDA) return copy_up(&devices[to.index], stream, dst, src, bytes);
  const cudaMemcpyKind kind = to.kind == AX_CPU ? cudaMemcpyDeviceToHost : cudaMemcpyDefault;
  if (to.kind == AX_CUDA && from.kind == AX_CUDA && to.index != from.index) { /* the destination may still be in use there */
    if ((st = ax_cuda_use(to, &other)) != AX_OK || (st = ax_cuda_status("copy", cudaStreamSynchronize(other))) != AX_OK || (st = ax_cuda_use(d, &stream)) != AX_OK)
      return st;
  }
  st = ax_cuda_status("copy", cudaMemcpyAsync(dst, src, bytes, kind, stream));
  if (st == AX_OK && (to.kind == AX_CPU || to.index != d.index || to.kind != d.kind)) st = wait_for(d.index, "copy");
  return st;
}

static ax_status synchronize(int index)
{
  cudaStream_t stream;
  const ax_status st = ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)index }, &stream);
  return st != AX_OK ? st : wait_for(index, "synchronize");
}

static int count(void) { return n_devices; }

const ax_device_memory ax_cuda_memory = { count, alloc, give_back, copy, synchronize, stats, reset_peak, drop_cache };

/* ---- is there a device at all? */

extern "C" ax_status ax_cuda_find_devices(void)
{
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  int driver = 0, runtime = 0;
  const cudaError_t e = cudaGetDeviceCount(&n_devices);

  if (e == cudaSuccess && n_devices > MOST_DEVICES) n_devices = MOST_DEVICES;
  if (e == cudaSuccess && n_devices > 0) return AX_OK;
  n_devices = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) return ax_fail(AX_ENOIMPL, "no NVIDIA driver was found (libcuda.so.1)");
  if (driver < runtime)
    return ax_fail(AX_ENOIMPL, "the NVIDIA driver supports CUDA up to %d.%d, this build needs %d.%d: update the driver", driver / 1000, driver % 1000 / 10,
                   runtime / 1000, runtime % 1000 / 10);
  if (visible) return ax_fail(AX_ENOIMPL, "CUDA_VISIBLE_DEVICES=\"%.100s\" leaves no device visible", visible);
  return ax_fail(AX_ENOIMPL, "the driver reports no CUDA device (%s)", cudaGetErrorString(e));
}

extern "C" const char *ax_cuda_describe(void)
{
  static thread_local char text[400];
  cudaDeviceProp p;
  int driver = 0, runtime = 0;
  if (cudaGetDeviceProperties(&p, current < 0 ? 0 : current) != cudaSuccess) return "no device";
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  snprintf(text, sizeof text, "%.200s, sm_%d%d, CUDA %d.%d, driver for %d.%d", p.name, p.major, p.minor, runtime / 1000, runtime % 1000 / 10, driver / 1000,
           driver % 1000 / 10);
  return text;
}

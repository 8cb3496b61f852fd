/* The caching allocator of device memory.
 *
 * It allocates segments from the driver and cuts them into blocks; a freed block joins its free
 * neighbours.  Requests below 1 MB share segments of 2 MB; larger ones get segments of 20 MB or,
 * above 10 MB, of their own size.  The smallest free block that fits is used.  But a request below
 * 20 MB does not cut a block of 256 MB or more while the driver has memory, since the next large
 * request would then need another segment.
 *
 * Memory is ordered by stream.  Blocks of the main pool are used in the computing stream, so a
 * freed block may be reused at once: its former uses are earlier in the stream.  The copy stream
 * writes blocks of the sending pool; see device.h.
 *
 * A request that finds no room runs the Lua collector and frees unused segments, does both once
 * more without LuaJIT's traces, which hold tensors too, and then fails with a list of the live
 * tensors. */
#include "device.h"
#include "watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t ALIGN = 512, SMALL = (size_t)1 << 20, SMALL_SEGMENT = (size_t)2 << 20,
                    LARGE_SEGMENT = (size_t)20 << 20, OWN_SEGMENT = (size_t)10 << 20,
                    HUGE_BLOCK = (size_t)256 << 20;

static int bin_of(size_t bytes)
{
  int bin = 0;
  while (bytes >>= 1) bin++;
  return bin < AX_BINS ? bin : AX_BINS - 1;
}

/* Segments begin at multiples of 2 MiB, so the low bits of an address say little. */
static ax_cuda_block **bucket_of(ax_cuda_device *dev, const void *p)
{
  return &dev->used[(uint64_t)(uintptr_t)p / 16 * 0x9e3779b97f4a7c15u >> 52];
}
static_assert(AX_BUCKETS == 1 << 12, "a bucket's number has 12 bits");

/* ACCEL_CUDA_CACHE=0: every block of the main pool is an allocation of the driver's, of its exact
 * size, and goes back at once.  Then compute-sanitizer sees an access beyond a block. */
static bool caching(void)
{
  static const char *const text = getenv("ACCEL_CUDA_CACHE");
  return !text || strcmp(text, "0") != 0;
}
/* A graph's pool divides its segments all the same: its blocks begin where they do with a cache. */
static size_t rounded(size_t bytes, bool divided)
{
  const size_t step = caching() || divided ? ALIGN : 16;
  return bytes ? (bytes + step - 1) / step * step : step;
}

static void push(ax_cuda_block **list, ax_cuda_block *b)
{
  b->prev = NULL;
  b->next = *list;
  if (*list) (*list)->prev = b;
  *list = b;
}

static void unlink_from(ax_cuda_block **list, ax_cuda_block *b)
{
  if (b->prev) b->prev->next = b->next;
  else *list = b->next;
  if (b->next) b->next->prev = b->prev;
}

static ax_cuda_block **free_list(const ax_cuda_block *b)
{
  return &b->pool->free[b->small][bin_of(b->bytes)];
}

/* The smallest free block that is large enough. */
static ax_cuda_block *find(ax_cuda_pool *pool, size_t bytes, bool small, bool cut_huge)
{
  ax_cuda_block *best = NULL;
  for (int bin = bin_of(bytes); bin < AX_BINS && !best; bin++)
    for (ax_cuda_block *b = pool->free[small][bin]; b; b = b->next)
      if (b->bytes >= bytes && (!best || b->bytes < best->bytes)) best = b;
  return best && !cut_huge && best->bytes >= HUGE_BLOCK && bytes < LARGE_SEGMENT ? NULL : best;
}

static ax_cuda_block *new_block(ax_cuda_pool *pool, char *data, size_t bytes, bool small)
{
  ax_cuda_block *b = (ax_cuda_block *)calloc(1, sizeof *b);
  if (!b) return NULL;
  b->pool = pool;
  b->data = data;
  b->bytes = bytes;
  b->small = small;
  return b;
}

/* Allocates a new segment as one free block.  *out NULL with AX_OK: the device has no room for
 * it. */
static ax_status grow(ax_cuda_device *dev, ax_cuda_pool *pool, size_t bytes, bool small, ax_cuda_block **out)
{
  const size_t two = (size_t)2 << 20;
  const size_t size = !caching()            ? bytes
                      : small               ? SMALL_SEGMENT
                      : bytes < OWN_SEGMENT ? LARGE_SEGMENT
                                            : (bytes + two - 1) / two * two;
  void *data = NULL;
  const cudaError_t e = cudaMalloc(&data, size);

  *out = NULL;
  if (e == cudaErrorMemoryAllocation) {
    cudaGetLastError(); /* it would be reported again by the next launch */
    return AX_OK;
  }
  if (e != cudaSuccess) return ax_cuda_status("cudaMalloc", e);
  if (!(*out = new_block(pool, (char *)data, size, small))) {
    cudaFree(data);
    return ax_fail(AX_ENOMEM, "out of memory: no room for the allocator's own records");
  }
  dev->stats.segments++;
  dev->stats.reserved_bytes += (int64_t)size;
  if (dev->stats.reserved_bytes > dev->stats.peak_reserved_bytes)
    dev->stats.peak_reserved_bytes = dev->stats.reserved_bytes;
  push(free_list(*out), *out);
  return AX_OK;
}

static void forget_event(ax_cuda_device *dev, ax_cuda_block *b)
{
  if (b->ready) ax_cuda_event_back(dev, b->ready);
  b->ready = NULL;
}

/* b is free, in its pool's list, and a whole segment. */
static void free_segment(ax_cuda_device *dev, ax_cuda_block *b)
{
  unlink_from(free_list(b), b);
  forget_event(dev, b);
  dev->stats.segments--;
  dev->stats.reserved_bytes -= (int64_t)b->bytes;
  cudaFree(b->data);
  free(b);
}

static void empty_pool(ax_cuda_device *dev, ax_cuda_pool *pool)
{
  for (int small = 0; small < 2; small++)
    for (int bin = 0; bin < AX_BINS; bin++)
      for (ax_cuda_block *b = pool->free[small][bin], *next; b; b = next) {
        next = b->next;
        if (!b->before && !b->after) free_segment(dev, b);
      }
}

/* Frees segments that are entirely unused.  A graph's pool keeps its own: its kernels use the
 * addresses.  Fails where waiting for the device does: a peer has died, a kernel
 * has failed. */
static ax_status empty_cache(ax_cuda_device *dev)
{
  ax_status st;

  if (!dev->stream || dev->recording) return AX_OK; /* during a recording nothing can be waited for */
  if ((st = ax_cuda_wait_stream("freeing cached memory", dev->stream)) != AX_OK) return st;
  if (dev->copies) st = ax_cuda_status("freeing cached memory", cudaStreamSynchronize(dev->copies));
  if (st != AX_OK) return st;
  empty_pool(dev, &dev->pools[AX_POOL_MAIN]);
  empty_pool(dev, &dev->pools[AX_POOL_SENDING]);
  return AX_OK;
}

/* *out NULL with AX_OK: there is no room. */
static ax_status take(ax_cuda_device *dev, ax_cuda_pool *pool, size_t bytes, ax_cuda_block **out)
{
  const bool small = bytes < SMALL;
  ax_cuda_block *b = find(pool, bytes, small, false), *rest;
  ax_status st = AX_OK;

  *out = NULL;
  if (b) dev->stats.cache_hits++;
  else if ((st = grow(dev, pool, bytes, small, &b)) != AX_OK || (!b && !(b = find(pool, bytes, small, true))))
    return st;
  if (b->ready) { /* the copy stream waits, on the device; from then on it may use the whole block */
    if ((st = ax_cuda_status("send", cudaStreamWaitEvent(dev->copies, b->ready, 0))) != AX_OK) return st;
    forget_event(dev, b);
  }
  unlink_from(free_list(b), b);
  if (b->bytes - bytes >= (small ? ALIGN : SMALL) &&
      (rest = new_block(pool, b->data + bytes, b->bytes - bytes, small))) {
    rest->before = b;
    rest->after = b->after;
    if (b->after) b->after->before = rest;
    b->after = rest;
    b->bytes = bytes;
    push(free_list(rest), rest);
  }
  b->used = true;
  push(bucket_of(dev, b->data), b);
  *out = b;
  return AX_OK;
}

/* `take`, with everything that can be done before it fails. */
static ax_status take_hard(ax_cuda_device *dev, size_t bytes, ax_cuda_block **out)
{
  ax_cuda_pool *const pool = dev->recording ? dev->recording : &dev->pools[AX_POOL_MAIN];
  ax_status st = take(dev, pool, bytes, out);
  cudaStream_t stream;

  if (st != AX_OK || *out) return st;
  dev->stats.retries++;
  for (int attempt = 0;; attempt++) {
    pthread_mutex_unlock(&ax_cuda_lock);
    /* finalisers release blocks; they may have used another device */
    const bool more = ax_memory_relieve(bytes, attempt);
    st = ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)(dev - ax_cuda_devices) }, &stream);
    pthread_mutex_lock(&ax_cuda_lock);
    if (st != AX_OK || (!more && attempt > 0)) return st;
    if ((st = take(dev, pool, bytes, out)) != AX_OK || *out) return st;
    if ((st = empty_cache(dev)) != AX_OK) return st;
    if ((st = take(dev, pool, bytes, out)) != AX_OK || *out) return st;
  }
}

static void count(ax_cuda_device *dev, ax_cuda_block *b, size_t requested, void **out)
{
  b->requested = requested;
  dev->stats.live_bytes += (int64_t)b->bytes;
  dev->stats.live_blocks++;
  dev->stats.allocations++;
  if (dev->stats.live_bytes > dev->stats.peak_bytes) dev->stats.peak_bytes = dev->stats.live_bytes;
  ax_memory_count_device((int64_t)b->bytes);
  *out = b->data;
}

/* Counts the live blocks that are too small to be tracked one by one. */
static void small_live(const ax_cuda_device *dev, ax_memory_small *small)
{
  *small = ax_memory_small{};
  for (int k = 0; k < AX_BUCKETS; k++)
    for (const ax_cuda_block *b = dev->used[k]; b; b = b->next) ax_memory_small_add(small, b->requested);
}

static ax_status out_of_memory(ax_cuda_device *dev, int index, size_t bytes)
{
  size_t available = 0, total = 0;
  ax_memory_small small;
  ax_size_buffer text[5];
  char live[1400];

  dev->stats.failures++;
  cudaMemGetInfo(&available, &total);
  small_live(dev, &small);
  ax_memory_report((ax_device){ AX_CUDA, (uint8_t)index }, &small, live, sizeof live);
  return ax_fail(
      AX_ENOMEM,
      "cuda:%d: out of memory: %s asked for, %s in live tensors, %s cached, %s of the device's %s free%s",
      index, ax_size_text((int64_t)bytes, text[0]), ax_size_text(dev->stats.live_bytes, text[1]),
      ax_size_text(dev->stats.reserved_bytes - dev->stats.live_bytes, text[2]),
      ax_size_text((int64_t)available, text[3]), ax_size_text((int64_t)total, text[4]), live);
}

ax_status ax_cuda_alloc(int index, size_t bytes, void **out)
{
  ax_cuda_device *dev = &ax_cuda_devices[index];
  cudaStream_t stream;
  ax_cuda_block *b = NULL;
  ax_status st;

  *out = NULL;
  if ((st = ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)index }, &stream)) != AX_OK) return st;
  pthread_mutex_lock(&ax_cuda_lock);
  if (bytes <= (size_t)1 << 46) st = take_hard(dev, rounded(bytes, dev->recording != NULL), &b);
  if (st == AX_OK && !b) st = out_of_memory(dev, index, bytes);
  if (st == AX_OK) count(dev, b, bytes, out);
  pthread_mutex_unlock(&ax_cuda_lock);
  return st;
}

ax_status ax_cuda_alloc_sending(int index, size_t bytes, void **out)
{
  ax_cuda_device *dev = &ax_cuda_devices[index];
  ax_cuda_block *b = NULL;
  ax_status st;

  *out = NULL;
  pthread_mutex_lock(&ax_cuda_lock);
  st = take(dev, &dev->pools[AX_POOL_SENDING], rounded(bytes, false), &b);
  if (st == AX_OK && b) count(dev, b, bytes, out);
  pthread_mutex_unlock(&ax_cuda_lock);
  return st == AX_OK && !b ? ax_fail(AX_ENOMEM, "cuda:%d: no room to send %zu bytes ahead", index, bytes)
                           : st;
}

/* Joins b with a free neighbour; b is in no list.  Of two events of one stream the later one is
 * kept. */
static ax_cuda_block *join(ax_cuda_device *dev, ax_cuda_block *b, ax_cuda_block *other)
{
  if (!other || other->used) return b;
  unlink_from(free_list(other), other);
  ax_cuda_block *first = other == b->before ? other : b, *second = first->after;
  if (second->ready && (!first->ready || second->at > first->at)) {
    const cudaEvent_t later = second->ready;
    second->ready = first->ready;
    first->ready = later;
    first->at = second->at;
  }
  forget_event(dev, second);
  first->bytes += second->bytes;
  first->after = second->after;
  if (second->after) second->after->before = first;
  free(second);
  return first;
}

/* Marks the block with an event: work queued in the computing stream may still read what was sent.
 * Waits for the stream where no event can be made. */
static void mark_ready(ax_cuda_device *dev, ax_cuda_block *b)
{
  if (ax_cuda_forked()) return;
  if (ax_cuda_event(dev, &b->ready) == AX_OK && cudaEventRecord(b->ready, dev->stream) == cudaSuccess) {
    b->at = ++dev->recorded;
    return;
  }
  forget_event(dev, b);
  cudaStreamSynchronize(dev->stream);
}

static void give_back(ax_cuda_device *dev, ax_cuda_block *b)
{
  b->used = false;
  b = join(dev, b, b->before);
  b = join(dev, b, b->after);
  push(free_list(b), b);
  const bool whole = !b->before && !b->after; /* a graph's pool divides its segments */
  if (!caching() && whole && b->pool->kind == AX_POOL_MAIN && !dev->recording && !ax_cuda_forked())
    free_segment(dev, b);
}

void ax_cuda_release(int index, void *data, size_t bytes)
{
  ax_cuda_device *dev = &ax_cuda_devices[index];

  pthread_mutex_lock(&ax_cuda_lock);
  ax_cuda_block *b = *bucket_of(dev, data);
  while (b && b->data != data) b = b->next;
  if (b) {
    unlink_from(bucket_of(dev, data), b);
    dev->stats.live_bytes -= (int64_t)b->bytes;
    dev->stats.live_blocks--;
    ax_memory_count_device(-(int64_t)b->bytes);
    if (b->pool->kind != AX_POOL_SENDING) give_back(dev, b);
    else if (dev->recording) push(&dev->waiting, b); /* an event recorded now would belong to the graph */
    else {
      mark_ready(dev, b);
      give_back(dev, b);
    }
  }
  pthread_mutex_unlock(&ax_cuda_lock);
}

ax_status ax_cuda_take(ax_device d, size_t bytes, void **out) { return ax_cuda_alloc(d.index, bytes, out); }
void ax_cuda_give(ax_device d, void *p, size_t bytes)
{
  if (p) ax_cuda_release(d.index, p, bytes);
}

/* ---- pools of graphs */

ax_status ax_cuda_pool_begin(ax_device d, uint64_t *id)
{
  ax_cuda_device *dev = &ax_cuda_devices[d.index];
  ax_status st = AX_OK;

  pthread_mutex_lock(&ax_cuda_lock);
  ax_cuda_pool *pool = dev->privates;
  while (pool && pool->id != *id) pool = pool->next;
  if (dev->recording) st = ax_fail(AX_EINVAL, "cuda:%d: a graph is being recorded already", d.index);
  else if (*id && !pool)
    st = ax_fail(AX_EINVAL, "cuda:%d: there is no pool %llu of a graph", d.index, (unsigned long long)*id);
  else if (!pool && !(pool = (ax_cuda_pool *)calloc(1, sizeof *pool)))
    st = ax_fail(AX_ENOMEM, "out of memory: no room for the allocator's own records");
  else {
    if (!*id) {
      pool->kind = AX_POOL_PRIVATE;
      *id = pool->id = ++dev->last_pool;
      pool->next = dev->privates;
      dev->privates = pool;
    }
    dev->recording = pool;
  }
  pthread_mutex_unlock(&ax_cuda_lock);
  return st;
}

void ax_cuda_pool_end(ax_device d)
{
  ax_cuda_device *dev = &ax_cuda_devices[d.index];

  pthread_mutex_lock(&ax_cuda_lock);
  dev->recording = NULL;
  while (dev->waiting) {
    ax_cuda_block *b = dev->waiting;
    unlink_from(&dev->waiting, b);
    mark_ready(dev, b);
    give_back(dev, b);
  }
  pthread_mutex_unlock(&ax_cuda_lock);
}

bool ax_cuda_pool_has(ax_device d, uint64_t id, const void *data)
{
  ax_cuda_block *b;
  pthread_mutex_lock(&ax_cuda_lock);
  for (b = *bucket_of(&ax_cuda_devices[d.index], data); b && b->data != data;) b = b->next;
  const bool has = b && b->pool->kind == AX_POOL_PRIVATE && b->pool->id == id;
  pthread_mutex_unlock(&ax_cuda_lock);
  return has;
}

void ax_cuda_pool_release(ax_device d, uint64_t id)
{
  ax_cuda_device *dev = &ax_cuda_devices[d.index];
  ax_cuda_pool *const home = &dev->pools[AX_POOL_MAIN];

  pthread_mutex_lock(&ax_cuda_lock);
  for (ax_cuda_pool **at = &dev->privates; *at; at = &(*at)->next) {
    ax_cuda_pool *const pool = *at;
    if (pool->id != id || pool == dev->recording) continue;
    *at = pool->next;
    for (int k = 0; k < AX_BUCKETS; k++)
      for (ax_cuda_block *b = dev->used[k]; b; b = b->next)
        if (b->pool == pool) b->pool = home;
    for (int small = 0; small < 2; small++)
      for (int bin = 0; bin < AX_BINS; bin++)
        while (pool->free[small][bin]) {
          ax_cuda_block *b = pool->free[small][bin];
          unlink_from(&pool->free[small][bin], b);
          b->pool = home;
          push(free_list(b), b);
        }
    free(pool);
    break;
  }
  pthread_mutex_unlock(&ax_cuda_lock);
}

/* ---- statistics */

/* A device that this process has not used stays untouched: a context on it would take some hundred
 * megabytes. */
void ax_cuda_memory_stats(int index, ax_memory_stats *out)
{
  ax_cuda_device *dev = &ax_cuda_devices[index];
  size_t available = 0, total = 0;
  cudaDeviceProp p;

  pthread_mutex_lock(&ax_cuda_lock);
  *out = dev->stats;
  pthread_mutex_unlock(&ax_cuda_lock);
  out->cached_bytes = out->reserved_bytes - out->live_bytes;
  if (ax_cuda_forked()) return;
  if (!dev->multiprocessors) {
    if (cudaGetDeviceProperties(&p, index) == cudaSuccess) out->limit_bytes = (int64_t)p.totalGlobalMem;
  } else if (ax_cuda_select(index) == AX_OK && cudaMemGetInfo(&available, &total) == cudaSuccess) {
    out->limit_bytes = (int64_t)total;
    out->available_bytes = (int64_t)available;
  }
}

void ax_cuda_memory_small(int index, ax_memory_small *out)
{
  pthread_mutex_lock(&ax_cuda_lock);
  small_live(&ax_cuda_devices[index], out);
  pthread_mutex_unlock(&ax_cuda_lock);
}

void ax_cuda_reset_peak(int index)
{
  ax_memory_stats *const s = &ax_cuda_devices[index].stats;
  s->peak_bytes = s->live_bytes;
  s->peak_reserved_bytes = s->reserved_bytes;
}

void ax_cuda_empty_cache(int index)
{
  if (!ax_cuda_devices[index].multiprocessors || ax_cuda_select(index) != AX_OK) return;
  pthread_mutex_lock(&ax_cuda_lock);
  (void)empty_cache(&ax_cuda_devices[index]); /* the next wait reports an error */
  ax_cuda_pinned_empty();
  pthread_mutex_unlock(&ax_cuda_lock);
}

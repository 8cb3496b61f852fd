/* Pinned memory: host pages that cannot move, so that a device reads and writes them by itself.
 *
 * Pinning takes milliseconds, so blocks are kept for later requests of their size (four sizes for
 * each power of two).  Copies that use a freed block may still be running: each leaves an event
 * with the block, and the block is reused when all of them have happened, which is polled, not
 * waited for.
 *
 * Pages that belong to another part of the process, such as the memory in which a loader's workers
 * hand over their batches, are pinned where they lie. */
#include "device.h"
#include "watch.h"

#include <stdlib.h>

struct use {
  cudaEvent_t done;
  int device;
  cudaStream_t stream;
  use *next;
};
struct pinned {
  char *data;
  size_t bytes;
  bool used, lent; /* lent: pages of another owner's, which the driver has registered */
  use *uses;
};

static pinned **blocks; /* sorted by address */
static int n_blocks, room;
static use *spare_uses;

static size_t rounded(size_t bytes)
{
  size_t step = 1024;
  if (bytes <= 4096) return 4096;
  while (step * 8 < bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

/* The number of blocks that begin at or before p. */
static int blocks_to(const void *p)
{
  int lo = 0, hi = n_blocks;
  while (lo < hi) {
    const int mid = (lo + hi) / 2;
    if ((const char *)blocks[mid]->data <= (const char *)p) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

static pinned *block_of(const void *p)
{
  const int k = blocks_to(p);
  return k > 0 && (const char *)p < blocks[k - 1]->data + blocks[k - 1]->bytes ? blocks[k - 1] : NULL;
}

static void drop_use(pinned *b)
{
  use *u = b->uses;
  ax_cuda_event_back(&ax_cuda_devices[u->device], u->done);
  b->uses = u->next;
  u->next = spare_uses;
  spare_uses = u;
}

static bool idle(pinned *b)
{
  while (b->uses) {
    if (cudaEventQuery(b->uses->done) == cudaErrorNotReady) {
      cudaGetLastError(); /* it would be reported again by the next launch */
      return false;
    }
    drop_use(b);
  }
  return true;
}

/* Adds a block of `bytes`: at p, or of new memory where p is NULL. */
static ax_status add_block(void *p, size_t bytes, pinned **out)
{
  const bool lent = p != NULL;
  ax_size_buffer text;
  pinned *b;

  if (n_blocks == room) {
    pinned **more = (pinned **)realloc(blocks, (size_t)(2 * room + 64) * sizeof *blocks);
    if (!more) return ax_fail(AX_ENOMEM, "out of memory: no room for the allocator's own records");
    blocks = more;
    room = 2 * room + 64;
  }
  if (!(b = (pinned *)calloc(1, sizeof *b)))
    return ax_fail(AX_ENOMEM, "out of memory: no room for the allocator's own records");
  if ((lent ? cudaHostRegister(p, bytes, cudaHostRegisterPortable)
            : cudaHostAlloc(&p, bytes, cudaHostAllocPortable)) != cudaSuccess) {
    cudaGetLastError(); /* it would be reported again by the next launch */
    free(b);
    return ax_fail(AX_ENOMEM, "out of memory: the driver cannot pin %s of the host's memory",
                   ax_size_text((int64_t)bytes, text));
  }
  b->data = (char *)p;
  b->bytes = bytes;
  b->used = b->lent = lent;
  const int k = blocks_to(p);
  memmove(blocks + k + 1, blocks + k, (size_t)(n_blocks++ - k) * sizeof *blocks);
  *out = blocks[k] = b;
  return AX_OK;
}

ax_status ax_cuda_pinned_new(size_t bytes, void **out)
{
  const size_t size = rounded(bytes);
  pinned *b = NULL;
  ax_status st = AX_OK;

  *out = NULL;
  if ((st = ax_cuda_use_own()) != AX_OK) return st;
  pthread_mutex_lock(&ax_cuda_lock);
  for (int k = 0; k < n_blocks && !b; k++)
    if (!blocks[k]->used && blocks[k]->bytes == size && idle(blocks[k])) b = blocks[k];
  if (!b) st = add_block(NULL, size, &b);
  if (b) {
    b->used = true;
    *out = b->data;
    ax_memory_count_foreign((int64_t)size);
  }
  pthread_mutex_unlock(&ax_cuda_lock);
  return st;
}

void ax_cuda_pinned_free(void *p, size_t bytes)
{
  pthread_mutex_lock(&ax_cuda_lock);
  pinned *b = block_of(p);
  if (b && b->used) {
    b->used = false;
    ax_memory_count_foreign(-(int64_t)b->bytes);
  }
  pthread_mutex_unlock(&ax_cuda_lock);
}

/* One event for each stream: a later one of a stream replaces an earlier one. */
ax_status ax_cuda_pinned_used(const void *p, int index, cudaStream_t stream)
{
  ax_status st = AX_OK;

  pthread_mutex_lock(&ax_cuda_lock);
  pinned *b = block_of(p);
  use *u = b ? b->uses : NULL;
  while (u && u->stream != stream) u = u->next;
  if (b && !u) {
    if ((u = spare_uses)) spare_uses = u->next;
    else u = (use *)malloc(sizeof *u);
    if (!u) st = ax_fail(AX_ENOMEM, "out of memory: no room for the allocator's own records");
    else if ((st = ax_cuda_event(&ax_cuda_devices[index], &u->done)) != AX_OK) free(u);
    else {
      u->device = index;
      u->stream = stream;
      u->next = b->uses;
      b->uses = u;
    }
  }
  if (b && st == AX_OK) st = ax_cuda_status("copy", cudaEventRecord(u->done, stream));
  pthread_mutex_unlock(&ax_cuda_lock);
  return st;
}

bool ax_cuda_is_pinned(const void *p)
{
  pthread_mutex_lock(&ax_cuda_lock);
  const pinned *b = block_of(p);
  const bool yes = b && !b->lent;
  pthread_mutex_unlock(&ax_cuda_lock);
  return yes;
}

bool ax_cuda_sends_in_place(const void *p)
{
  pthread_mutex_lock(&ax_cuda_lock);
  const bool yes = block_of(p) != NULL;
  pthread_mutex_unlock(&ax_cuda_lock);
  return yes;
}

/* ---- pages of other owners */

ax_status ax_cuda_pin(void *p, size_t bytes)
{
  pinned *b;
  ax_status st = ax_cuda_use_own();

  if (st != AX_OK) return st;
  pthread_mutex_lock(&ax_cuda_lock);
  st = add_block(p, bytes, &b);
  pthread_mutex_unlock(&ax_cuda_lock);
  return st;
}

bool ax_cuda_pin_idle(const void *p)
{
  pthread_mutex_lock(&ax_cuda_lock);
  pinned *b = block_of(p);
  const bool yes = !b || idle(b);
  pthread_mutex_unlock(&ax_cuda_lock);
  return yes;
}

void ax_cuda_unpin(void *p)
{
  ax_status st = AX_OK;

  if (ax_cuda_forked()) return;
  pthread_mutex_lock(&ax_cuda_lock);
  pinned *b = block_of(p);
  while (b && st == AX_OK && !idle(b)) {
    const cudaEvent_t done = b->uses->done;
    pthread_mutex_unlock(&ax_cuda_lock);
    st = ax_cuda_wait_event("send", done); /* an error: nothing runs on the device any more */
    pthread_mutex_lock(&ax_cuda_lock);
  }
  if (b) {
    const int k = blocks_to(p) - 1;
    while (b->uses) drop_use(b);
    cudaHostUnregister(b->data);
    cudaGetLastError(); /* of a driver that is shutting down */
    memmove(blocks + k, blocks + k + 1, (size_t)(--n_blocks - k) * sizeof *blocks);
    free(b);
  }
  pthread_mutex_unlock(&ax_cuda_lock);
}

/* Called with the lock held. */
void ax_cuda_pinned_empty(void)
{
  int kept = 0;
  for (int k = 0; k < n_blocks; k++) {
    pinned *b = blocks[k];
    if (b->used || !idle(b)) blocks[kept++] = b;
    else {
      cudaFreeHost(b->data);
      free(b);
    }
  }
  n_blocks = kept;
}

/* The caching CPU allocator.
 *
 * Blocks are rounded up to size classes (four to a power of two, so at most a quarter is wasted)
 * and kept on a free list per class when freed: after the first step a training loop allocates
 * without a system call or a page fault.  Blocks of a megabyte and more come from mmap, so that the
 * cache can really give them back.  A limit turns running out of memory into an error: before that
 * the cache is emptied and the host's hook may collect Lua garbage.
 *
 * Lasting blocks (lasting.h) are as large as their size says, to the page, and are kept by no
 * list: a layout's buffers and an optimizer's states are made once and stay.
 *
 * One lock guards the lists; it is never contended while one thread runs a rank. */
#define _GNU_SOURCE
#include "core/core.h"
#include "core/memory/emptied.h"
#include "core/memory/lasting.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
  MIN_SHIFT = 6, /* the smallest class is 64 bytes */
  CLASSES = (63 - MIN_SHIFT) * 4,
  MAP_FROM = 1 << 20, /* from here on blocks are mapped */
  PAGE = 4096,
  LASTING = -1, /* no size class: a lasting block */
};
#define MARGIN ((int64_t)256 << 20) /* left for code, stacks and Lua when the limit is found out */

typedef struct block {
  struct block *next;
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block *lists[CLASSES];
static int64_t live_of[CLASSES];      /* blocks in use */
static ax_memory_small small_lasting; /* small lasting blocks in use */
static ax_memory_stats stats;
static bool (*pressure_hook)(size_t, int);
static int64_t fail_in; /* 0: off; else the number of allocations until one fails */

/* ---- size classes */

static int class_of(size_t bytes, size_t *rounded)
{
  if (bytes <= (size_t)1 << MIN_SHIFT) {
    *rounded = (size_t)1 << MIN_SHIFT;
    return 0;
  }
  const int top = 63 - __builtin_clzll(bytes - 1); /* 2^top < bytes <= 2^(top+1) */
  const size_t step = top >= 2 + MIN_SHIFT ? (size_t)1 << (top - 2) : (size_t)1 << MIN_SHIFT;
  *rounded = (bytes + step - 1) / step * step;
  return (top - MIN_SHIFT) * 4 + (int)((*rounded - ((size_t)1 << top)) / ((size_t)1 << (top - 2)));
}

static int lasting_size(size_t bytes, size_t *rounded)
{
  const size_t unit = bytes < MAP_FROM ? (size_t)1 << MIN_SHIFT : PAGE;

  *rounded = bytes ? (bytes + unit - 1) / unit * unit : unit;
  return LASTING;
}

/* ---- the limit */

static int64_t read_number(const char *path)
{
  char text[64] = "";
  FILE *f = fopen(path, "r");
  if (!f) return -1;
  const bool got = fgets(text, sizeof text, f) != NULL;
  fclose(f);
  return got && text[0] >= '0' && text[0] <= '9' ? strtoll(text, NULL, 10) : -1; /* "max" counts as none */
}

static int64_t available_memory(void)
{
  char line[128];
  long long kib = -1;
  FILE *f = fopen("/proc/meminfo", "r");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1) break;
  if (f) fclose(f);
  return kib < 0 ? INT64_MAX : (int64_t)kib * 1024;
}

static int64_t default_limit(void)
{
  const char *const cgroup[] = { "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes" };
  const char *local = getenv("LOCAL_WORLD_SIZE");
  const int64_t ranks = local && atoll(local) > 0 ? atoll(local) : 1;
  int64_t limit = available_memory();

  for (size_t i = 0; i < sizeof cgroup / sizeof *cgroup; i++) {
    const int64_t n = read_number(cgroup[i]);
    if (n > 0 && n < limit) limit = n;
  }
  limit = limit > 2 * MARGIN ? limit - MARGIN : limit / 2;
  return limit / ranks;
}

void ax_memory_set_limit(int64_t bytes)
{
  pthread_mutex_lock(&lock);
  stats.limit_bytes = bytes > 0 ? bytes : default_limit();
  pthread_mutex_unlock(&lock);
}

/* ---- fault injection */

void ax_alloc_fail_at(int64_t n) { fail_in = n; }

bool ax_alloc_injecting(void) { return fail_in > 0; }

static bool injected_failure(void) { return fail_in > 0 && --fail_in == 0; }

/* ---- blocks; all of these with the lock held */

/* Mapped blocks start on page boundaries, and kernels that walk several of them side by side (an
 * optimizer: four) would meet in the same cache sets.  Each new block therefore begins a few cache
 * lines further into its first page: AdamW over half a million parameters takes 134 us in place of
 * 157 on Zen 4. */
static void *system_block(size_t rounded)
{
  static unsigned turn;
  void *p = NULL;
  if (rounded < MAP_FROM) return posix_memalign(&p, 64, rounded) == 0 ? p : NULL;
  p = mmap(NULL, rounded + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
  if (rounded >= (size_t)4 << 20) madvise(p, rounded, MADV_HUGEPAGE); /* a hint; refusal costs nothing */
  return (char *)p + turn++ % 12 * 320; /* less than a page, and a multiple of 64 */
}

static void return_to_system(void *p, size_t rounded)
{
  if (rounded < MAP_FROM) free(p);
  else munmap((char *)p - (uintptr_t)p % PAGE, rounded + PAGE);
}

static size_t class_bytes(int class)
{
  if (class == 0) return (size_t)1 << MIN_SHIFT;
  return ((size_t)1 << (class / 4 + MIN_SHIFT)) +
         (size_t)(class % 4) * ((size_t)1 << (class / 4 + MIN_SHIFT)) / 4;
}

static void empty_cache(void)
{
  for (int c = 0; c < CLASSES; c++)
    while (lists[c]) {
      block *b = lists[c];
      lists[c] = b->next;
      return_to_system(b, class_bytes(c));
      stats.cached_bytes -= (int64_t)class_bytes(c);
    }
}

static void *new_block(size_t rounded)
{
  void *p;

  if (stats.live_bytes + stats.cached_bytes + (int64_t)rounded > stats.limit_bytes) empty_cache();
  if (stats.live_bytes + (int64_t)rounded > stats.limit_bytes) return NULL;
  if ((p = system_block(rounded))) return p;
  empty_cache();
  return system_block(rounded);
}

static void *cached_block(int class, size_t rounded)
{
  block *b = lists[class];

  lists[class] = b->next;
  stats.cached_bytes -= (int64_t)rounded;
  stats.cache_hits++;
  return b;
}

/* Counts n small blocks of that size. */
static void count_small(ax_memory_small *out, size_t bytes, int64_t n)
{
  ax_memory_small one = { 0 };

  ax_memory_small_add(&one, bytes);
  for (int k = 0; k < AX_SMALL_CLASSES; k++) {
    out->blocks[k] += one.blocks[k] * n;
    out->bytes[k] += one.bytes[k] * n;
  }
}

/* Counts n blocks that tensors take, or, negative, give back. */
static void count_live(int class, size_t rounded, int n)
{
  if (class == LASTING) count_small(&small_lasting, rounded, n);
  else live_of[class] += n;
  stats.live_bytes += n * (int64_t)rounded;
  stats.live_blocks += n;
}

static void *take(int class, size_t rounded, bool *zeros)
{
  const bool cached = class != LASTING && lists[class];
  void *p = cached ? cached_block(class, rounded) : new_block(rounded);

  *zeros = !cached && rounded >= MAP_FROM;
  if (!p) return NULL;
  count_live(class, rounded, 1);
  stats.allocations++;
  if (stats.live_bytes > stats.peak_bytes) stats.peak_bytes = stats.live_bytes;
  return p;
}

void ax_memory_small_get(ax_memory_small *out)
{
  pthread_mutex_lock(&lock);
  *out = small_lasting;
  for (int c = 0; c < CLASSES && class_bytes(c) <= AX_MEMORY_TRACKED; c++)
    count_small(out, class_bytes(c) < AX_MEMORY_TRACKED ? class_bytes(c) : AX_MEMORY_TRACKED - 1, live_of[c]);
  pthread_mutex_unlock(&lock);
}

static ax_status out_of_memory(size_t bytes)
{
  ax_memory_small small;
  ax_size_buffer wanted, held, limit;
  char live[1400];

  ax_memory_small_get(&small);
  ax_memory_report((ax_device){ AX_CPU, 0 }, &small, live, sizeof live);
  return ax_fail(AX_ENOMEM, "out of memory: %s asked for, %s in live tensors, limit %s%s",
                 ax_size_text((int64_t)bytes, wanted), ax_size_text(stats.live_bytes, held),
                 ax_size_text(stats.limit_bytes, limit), live);
}

ax_status ax_alloc(size_t bytes, void **out)
{
  bool zeros;
  return ax_alloc_fresh(bytes, &zeros, out);
}

static ax_status allocate(size_t bytes, bool lasting, bool *zeros, void **out)
{
  size_t rounded;
  int class;
  void *p;

  *out = NULL;
  if (injected_failure())
    return ax_fail(AX_ENOMEM, "out of memory (a failure asked for by a test): %zu bytes", bytes);
  if (bytes > (size_t)1 << 46) return ax_fail(AX_ENOMEM, "out of memory: %zu bytes asked for at once", bytes);
  class = lasting ? lasting_size(bytes, &rounded) : class_of(bytes, &rounded);
  if (!stats.limit_bytes) ax_memory_set_limit(0);
  pthread_mutex_lock(&lock);
  p = take(class, rounded, zeros);
  pthread_mutex_unlock(&lock);
  for (int attempt = 0; !p && ax_memory_relieve(rounded, attempt); attempt++) {
    pthread_mutex_lock(&lock);
    p = take(class, rounded, zeros);
    pthread_mutex_unlock(&lock);
  }
  if (!p) return out_of_memory(bytes);
  *out = p;
  return AX_OK;
}

ax_status ax_alloc_fresh(size_t bytes, bool *zeros, void **out) { return allocate(bytes, false, zeros, out); }

ax_status ax_alloc_lasting(size_t bytes, bool *zeros, void **out)
{
  return allocate(bytes, true, zeros, out);
}

void ax_free(void *p, size_t bytes)
{
  size_t rounded;
  if (!p) return;
  const int class = class_of(bytes, &rounded);
  pthread_mutex_lock(&lock);
  ((block *)p)->next = lists[class];
  lists[class] = p;
  stats.cached_bytes += (int64_t)rounded;
  count_live(class, rounded, -1);
  pthread_mutex_unlock(&lock);
}

void ax_free_lasting(void *p, size_t bytes)
{
  size_t rounded;
  const int class = lasting_size(bytes, &rounded);

  if (!p) return;
  pthread_mutex_lock(&lock);
  count_live(class, rounded, -1);
  pthread_mutex_unlock(&lock);
  return_to_system(p, rounded);
}

void ax_memory_get(ax_memory_stats *out)
{
  if (!stats.limit_bytes) ax_memory_set_limit(0);
  pthread_mutex_lock(&lock);
  *out = stats;
  pthread_mutex_unlock(&lock);
}

void ax_memory_reset_peak(void)
{
  pthread_mutex_lock(&lock);
  stats.peak_bytes = stats.live_bytes;
  pthread_mutex_unlock(&lock);
}

static void (*emptied)(void);
void ax_memory_on_empty_cache(void (*fn)(void)) { emptied = fn; }

void ax_memory_empty_cache(void)
{
  if (emptied) emptied();
  pthread_mutex_lock(&lock);
  empty_cache();
  pthread_mutex_unlock(&lock);
#ifdef __GLIBC__
  malloc_trim(0); /* free() keeps pages that lie below a small block in use */
#endif
}

void ax_memory_set_hook(bool (*hook)(size_t wanted, int attempt)) { pressure_hook = hook; }

bool ax_memory_relieve(size_t wanted, int attempt) { return pressure_hook && pressure_hook(wanted, attempt); }

static int64_t device_bytes;

static int64_t largest_device;
int64_t ax_memory_of_device(void) { return __atomic_load_n(&largest_device, __ATOMIC_RELAXED); }
void ax_memory_note_device(int64_t bytes)
{
  if (bytes > ax_memory_of_device()) __atomic_store_n(&largest_device, bytes, __ATOMIC_RELAXED);
}

void ax_memory_count_device(int64_t bytes) { __atomic_add_fetch(&device_bytes, bytes, __ATOMIC_RELAXED); }

void ax_memory_count_collection(void) { stats.pressure_collections++; }

void ax_memory_count_foreign(int64_t bytes)
{
  pthread_mutex_lock(&lock);
  stats.live_bytes += bytes;
  if (stats.live_bytes > stats.peak_bytes) stats.peak_bytes = stats.live_bytes;
  pthread_mutex_unlock(&lock);
}

/* A structure (a tensor, a node with its arrays) is some 300 bytes that the tensors' own count does
 * not show. */
int64_t ax_memory_pressure(void)
{
  return __atomic_load_n(&stats.live_bytes, __ATOMIC_RELAXED) +
         __atomic_load_n(&device_bytes, __ATOMIC_RELAXED) +
         300 * __atomic_load_n(&stats.structs, __ATOMIC_RELAXED);
}

/* ---- structures */

void ax_structs_add(int n) { __atomic_add_fetch(&stats.structs, n, __ATOMIC_RELAXED); }

void *ax_malloc(size_t bytes)
{
  void *p = injected_failure() ? NULL : malloc(bytes ? bytes : 1);
  if (p) __atomic_add_fetch(&stats.structs, 1, __ATOMIC_RELAXED);
  else ax_fail(AX_ENOMEM, "out of memory: %zu bytes for a structure", bytes);
  return p;
}

void *ax_calloc(size_t n, size_t size)
{
  size_t bytes;
  void *p;
  if (__builtin_mul_overflow(n, size, &bytes)) {
    ax_fail(AX_ENOMEM, "out of memory: %zu x %zu bytes for a structure", n, size);
    return NULL;
  }
  p = ax_malloc(bytes);
  if (p) memset(p, 0, bytes);
  return p;
}

void ax_mfree(void *p)
{
  if (!p) return;
  __atomic_sub_fetch(&stats.structs, 1, __ATOMIC_RELAXED);
  free(p);
}

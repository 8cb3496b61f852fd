/* The emulated device's memory: one range of addresses for each device, guard pages, and the
 * runtime's functions that allocate, copy and fill.  See emulate.h. */
#include "runtime.h"

#include <memory>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <vector>

static const size_t ARENA = AX_EMULATED_ARENA, PAGE = 4096;
char *ax_emulate_memory;

/* ---- memory: one range of addresses for each device, and the parts of it that are in use */

/* An allocation: the bytes that were requested, and the pages that it has. */
struct extent {
  size_t bytes;
  char *pages;
  size_t size;
};
struct memory {
  char *arena;
  size_t top; /* no address beyond it was ever used */
  std::map<char *, extent> used;
  std::map<char *, size_t> unused;
};
static memory memories[AX_EMULATED_DEVICES];
static std::map<char *, size_t> pinned;
static long refuse_from, refuse_count;
static int opened; /* the depth of nested access(), since work runs inside it */

static void access_to(int prot)
{
  for (int d = 0; d < AX_EMULATED_DEVICES; d++)
    if (memories[d].top) mprotect(memories[d].arena, memories[d].top, prot);
}

void ax_emulate_with_memory(const std::function<void()> &work)
{
  const bool guarded = ax_emulate_mode(AX_EMULATED_GUARD) != 0;
  if (opened++ == 0 && !guarded) access_to(PROT_READ | PROT_WRITE);
  work();
  if (--opened == 0 && !guarded) access_to(PROT_NONE);
}

/* What is at an address of a device's that cannot be accessed. */
static void describe(const char *p, char *text, size_t size)
{
  for (const memory &m : memories) {
    if (!m.arena || p < m.arena || p >= m.arena + ARENA) continue;
    const auto after = m.used.upper_bound((char *)p);
    if (after != m.used.begin()) {
      const auto before = std::prev(after);
      if (p < before->second.pages + before->second.size) {
        snprintf(text, size, "access to %p, %zu bytes behind the start of an allocation of %zu bytes",
                 (const void *)p, (size_t)(p - before->first), before->second.bytes);
        return;
      }
    }
    if (after != m.used.end() && p >= after->second.pages)
      snprintf(text, size, "access to %p, %zu bytes in front of an allocation of %zu bytes", (const void *)p,
               (size_t)(after->first - p), after->second.bytes);
    else snprintf(text, size, "access to %p, which is in no allocation", (const void *)p);
    return;
  }
  snprintf(text, size, "access to %p, which is no address of a device's", (const void *)p);
}

static struct sigaction former;

/* An access of a kernel to a page that is closed ends the kernel with a message; what is not a
 * kernel's goes to whoever handled it before. */
static void on_segv(int, siginfo_t *info, void *)
{
  char text[200];
  if (!ax_emulate_running()) {
    sigaction(SIGSEGV, &former, NULL);
    return;
  }
  describe((const char *)info->si_addr, text, sizeof text);
  ax_emulate_crash(text);
}

/* The handler runs on the thread's own stack, which it leaves by a jump. */
void ax_emulate_catch_faults(void)
{
  static bool caught;
  struct sigaction act = {};
  if (caught) return;
  caught = true;
  act.sa_sigaction = on_segv;
  act.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &act, &former);
}

/* The device whose memory it is in; -1: none. */
static int device_of(const void *p)
{
  for (int d = 0; d < AX_EMULATED_DEVICES; d++)
    if (memories[d].arena && (const char *)p >= memories[d].arena &&
        (const char *)p < memories[d].arena + ARENA)
      return d;
  return -1;
}
static bool on_device(const void *p) { return device_of(p) >= 0; }

static bool is_pinned(const void *p)
{
  auto after = pinned.upper_bound((char *)p);
  if (after == pinned.begin()) return false;
  --after;
  return (const char *)p < after->first + after->second;
}

extern "C" __attribute__((visibility("default"))) void ax_emulated_refuse_memory(long from, long n)
{
  refuse_from = from;
  refuse_count = n;
}

bool ax_emulate_owns(const void *p, size_t bytes)
{
  ax_emulate_holding held(ax_emulate_lock);
  for (int d = 0; d < AX_EMULATED_DEVICES; d++) {
    auto after = memories[d].used.upper_bound((char *)p);
    if (after == memories[d].used.begin()) continue;
    --after;
    if ((const char *)p + bytes <= after->first + after->second.bytes) return true;
  }
  return false;
}

/* ---- the runtime's functions */

cudaError_t cudaMalloc(void **p, size_t bytes)
{
  CALLED();
  ax_emulate_context();
  if (const cudaError_t refused = ax_emulate_unsafe(false)) return refused;
  memory &m = memories[ax_emulate_device];
  const unsigned guard = ax_emulate_mode(AX_EMULATED_GUARD);
  const size_t room = (bytes + PAGE - 1) / PAGE * PAGE, size = room + (guard ? 2 : 1) * PAGE;

  if (refuse_from > 0 && --refuse_from == 0 && refuse_count-- > 0) {
    refuse_from = refuse_count > 0;
    return cudaErrorMemoryAllocation;
  }
  if (!ax_emulate_memory) {
    void *all = mmap(NULL, AX_EMULATED_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return cudaErrorMemoryAllocation;
    ax_emulate_memory = (char *)all;
  }
  if (!m.arena) {
    m.arena = ax_emulate_memory + (size_t)ax_emulate_device * ARENA;
    m.unused[m.arena] = ARENA;
  }
  for (auto at = m.unused.begin(); at != m.unused.end(); ++at) {
    if (at->second < size) continue;
    char *const data = at->first;
    const size_t left = at->second - size;
    m.unused.erase(at);
    if (left) m.unused[data + size] = left;
    if ((size_t)(data - m.arena) + size > m.top) m.top = (size_t)(data - m.arena) + size;
    char *const first = data + (guard ? PAGE : 0) + (guard == 1 ? room - (bytes + 15) / 16 * 16 : 0);
    m.used[first] = extent{ bytes, data, size };
    if (guard) {
      mprotect(data + PAGE, room, PROT_READ | PROT_WRITE);
      memset(data + PAGE, 0xff, room);
    }
    *p = first;
    return cudaSuccess;
  }
  return cudaErrorMemoryAllocation;
}

/* Waits for the device, as CUDA's does. */
cudaError_t cudaFree(void *p)
{
  CALLED();
  if (const cudaError_t refused = ax_emulate_unsafe(true)) return refused;
  if (!p) return ax_emulate_lasting;
  ax_emulate_run_all();
  for (memory &m : memories) {
    const auto found = m.used.find((char *)p);
    if (found == m.used.end()) continue;
    char *data = found->second.pages;
    size_t size = found->second.size;
    if (ax_emulate_mode(AX_EMULATED_GUARD)) mprotect(data, size, PROT_NONE);
    madvise(data, size, MADV_DONTNEED);
    m.used.erase(found);
    auto after = m.unused.lower_bound(data);
    if (after != m.unused.end() && after->first == data + size) {
      size += after->second;
      after = m.unused.erase(after);
    }
    if (after != m.unused.begin()) {
      --after;
      if (after->first + after->second == data) {
        after->second += size;
        return ax_emulate_lasting;
      }
    }
    m.unused[data] = size;
    return ax_emulate_lasting;
  }
  return cudaErrorInvalidValue;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
  CALLED();
  ax_emulate_context();
  if (const cudaError_t refused = ax_emulate_unsafe(false)) return refused;
  if (posix_memalign(p, 4096, bytes ? bytes : 1) != 0) return cudaErrorMemoryAllocation;
  pinned[(char *)*p] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
  CALLED();
  if (const cudaError_t refused = ax_emulate_unsafe(true)) return refused;
  if (!p) return cudaSuccess;
  if (!pinned.count((char *)p)) return cudaErrorInvalidValue;
  ax_emulate_run_all();
  pinned.erase((char *)p);
  free(p);
  return cudaSuccess;
}

/* Another owner's pages: copies read them when they run, as pinned memory.  A copy that has not run
 * when they are unregistered reads what its owner has made of them, if they are still mapped. */
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned)
{
  CALLED();
  ax_emulate_context();
  const char *allowed = getenv("ACCEL_EMULATED_REGISTER");
  if (const cudaError_t refused = ax_emulate_unsafe(false)) return refused;
  if (allowed && !strcmp(allowed, "0")) return cudaErrorNotSupported;
  if ((size_t)p % 4096 || is_pinned(p)) return cudaErrorInvalidValue;
  pinned[(char *)p] = bytes;
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
  CALLED();
  return pinned.erase((char *)p) ? cudaSuccess : cudaErrorInvalidValue;
}

size_t ax_emulate_total(void)
{
  const char *gb = getenv("ACCEL_EMULATED_GB");
  return gb && *gb ? (size_t)atoi(gb) << 30 : ARENA;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
  CALLED();
  ax_emulate_context();
  size_t used = 0;
  for (const auto &each : memories[ax_emulate_device].used) used += each.second.size;
  *total = ax_emulate_total();
  *available = *total - used;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind, cudaStream_t stream)
{
  CALLED();
  const bool from_pages = !on_device(src) && !is_pinned(src), to_pages = !on_device(dst) && !is_pinned(dst);
  if (from_pages || to_pages) { /* a graph would keep the address alone */
    if (const cudaError_t refused = ax_emulate_refused(stream)) return refused;
  } else if (const cudaError_t spoiled = ax_emulate_spoiled(stream)) return spoiled;

  if (from_pages) {
    auto seen = std::make_shared<std::vector<char>>((const char *)src, (const char *)src + bytes);
    static long *const pageable = &ax_emulate_counts()["cudaMemcpyAsync of pageable memory"];
    ++*pageable;
    ax_emulate_enqueue(stream, [=]() { memcpy(dst, seen->data(), bytes); });
  } else {
    const bool moves = on_device(src) && on_device(dst);
    const int from = device_of(src), to = device_of(dst);
    if (moves && from != to && !ax_emulate_reaches(to, from)) {
      static long *const staged = &ax_emulate_counts()["cudaMemcpyAsync by way of the host"];
      ++*staged;
    }
    ax_emulate_enqueue(stream, [=]() {
      if (moves) ax_emulate_moved("copy", bytes, bytes);
      memmove(dst, src, bytes);
    });
  }
  if (to_pages) {
    ax_emulated_stream *s = stream ? stream : ax_emulate_default_stream();
    static long *const pageable = &ax_emulate_counts()["cudaMemcpyAsync to pageable memory"];
    ++*pageable;
    ax_emulate_run_until(s, s->queued);
  }
  return ax_emulate_lasting;
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
  CALLED();
  if (const cudaError_t spoiled = ax_emulate_spoiled(stream)) return spoiled;
  ax_emulate_enqueue(stream, [=]() {
    ax_emulate_moved("fill", 0, bytes);
    memset(dst, value, bytes);
  });
  return ax_emulate_lasting;
}

/* The emulated device's memory, streams and events.  See emulate.h. */
#include "emulate.h"

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <thread>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

enum { DEVICES = 8 };
static const size_t ARENA = AX_EMULATED_BYTES / DEVICES, PAGE = 4096;
char *ax_emulate_memory;
static const unsigned MOST_THREADS = 1024;

static thread_local int device;
static cudaError_t lasting; /* a kernel failed after its launch: every later call returns this */
static std::string trouble;

/* ---- counting, and the rule about forks: a child of a process that used the device cannot use it
 */

static std::map<std::string, long> &counts(void)
{
  static std::map<std::string, long> all;
  return all;
}
static bool forked(void)
{
  static const pid_t owner = getpid();
  return getpid() != owner;
}
/* Held while anything runs or is queued: work that waits for another process continues in a thread
 * of its own. */
static std::recursive_mutex lock;
typedef std::lock_guard<std::recursive_mutex> holding;

#define CALLED() \
  if (forked()) return cudaErrorInitializationError; \
  holding held(lock); \
  static long *const calls = &counts()[__func__]; \
  ++*calls

extern "C" __attribute__((visibility("default"))) long ax_emulated_calls(const char *name)
{
  const auto found = counts().find(name);
  return found == counts().end() ? 0 : found->second;
}

/* CUDA makes a context, hundreds of megabytes of a real device, when a thread first chooses a
 * device or makes something on the one that it has. */
static void context(void)
{
  static bool made[DEVICES];
  if (made[device]) return;
  made[device] = true;
  counts()["context on cuda:" + std::to_string(device)]++;
}

/* ---- modes */

static unsigned modes[AX_EMULATED_MODES];

unsigned ax_emulate_mode(int mode)
{
  static bool read = false;
  static const char *const names[] = { "ACCEL_EMULATED_ORDER", "ACCEL_EMULATED_GUARD", "ACCEL_EMULATED_MATH",
                                       "ACCEL_EMULATED_OLD" };
  for (; !read; read = true)
    for (int k = 0; k < AX_EMULATED_MODES; k++)
      if (const char *text = getenv(names[k])) modes[k] = (unsigned)atoi(text);
  return modes[mode];
}

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
static memory memories[DEVICES];
static std::map<char *, size_t> pinned;
static long refuse_from, refuse_count;
static int opened; /* the depth of nested access(), since work runs inside it */

static void access_to(int prot)
{
  for (int d = 0; d < DEVICES; d++)
    if (memories[d].top) mprotect(memories[d].arena, memories[d].top, prot);
}

/* With guard pages, memory is open from its allocation to its end. */
static void with_memory(const std::function<void()> &work)
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
static void catch_faults(void)
{
  static bool caught;
  struct sigaction act = {};
  if (caught) return;
  caught = true;
  act.sa_sigaction = on_segv;
  act.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &act, &former);
}

static bool on_device(const void *p)
{
  for (int d = 0; d < DEVICES; d++)
    if (memories[d].arena && (const char *)p >= memories[d].arena &&
        (const char *)p < memories[d].arena + ARENA)
      return true;
  return false;
}

static bool is_pinned(const void *p)
{
  auto after = pinned.upper_bound((char *)p);
  if (after == pinned.begin()) return false;
  --after;
  return (const char *)p < after->first + after->second;
}

/* ---- streams */

struct ax_emulated_event;
struct step {
  std::function<void()> work;
  ax_emulated_stream *other; /* not NULL: instead of working, waits until `other` has done `until` steps */
  uint64_t until;
  std::function<bool()> poll; /* instead of work: called until it returns true */
};
struct ax_emulated_stream {
  int device;
  bool first;
  uint64_t queued, done;
  std::deque<step> queue;
  uint64_t last_poll; /* the number of the last step with a poll, counted from 1 */
};
struct ax_emulated_event {
  ax_emulated_stream *stream;
  uint64_t at;
};

static std::vector<ax_emulated_stream *> streams;
static unsigned schedule = ~0u;
static uint64_t draws;

static unsigned seed_of_schedule(void)
{
  if (schedule == ~0u) {
    const char *text = getenv("ACCEL_EMULATED_SCHEDULE");
    schedule = text ? (unsigned)atoi(text) : 0;
  }
  return schedule;
}

static unsigned draw(unsigned n) /* 0 .. n - 1 */
{
  draws = draws * 6364136223846793005u + 1442695040888963407u + schedule;
  return (unsigned)(draws >> 33) % n;
}

/* Runs steps up to `until`; returns false when one of them waits for another process. */
static bool advance(ax_emulated_stream *s, uint64_t until)
{
  while (s->done < until) {
    /* the step stays in the queue until it has ended: references into a deque survive a push */
    step &next = s->queue.front();
    bool over = true;
    if (next.other) over = advance(next.other, next.until);
    else if (next.poll) with_memory([&]() { over = next.poll(); });
    else with_memory(next.work);
    if (!over) return false;
    s->queue.pop_front();
    s->done++;
  }
  return true;
}

/* Continues steps that wait for other processes. */
static void go_on(void)
{
  for (size_t k = 0; k < streams.size(); k++)
    if (streams[k]->done < streams[k]->last_poll) advance(streams[k], streams[k]->last_poll);
}

static void run_until(ax_emulated_stream *s, uint64_t until)
{
  while (!advance(s, until)) {
    go_on();
    usleep(50);
  }
}

static void run_all(void)
{
  for (size_t k = 0; k < streams.size(); k++) run_until(streams[k], streams[k]->queued);
}

/* Like a device, works while the host is busy elsewhere: another process may wait for what is
 * queued here. */
static struct progress {
  std::thread thread;
  bool started, stop;
  void start()
  {
    if (started) return;
    started = true;
    thread = std::thread([this]() {
      for (;; usleep(200)) {
        holding held(lock);
        if (stop) return;
        go_on();
      }
    });
  }
  ~progress()
  {
    if (!started) return;
    if (forked()) {
      thread.detach();
      return;
    }
    {
      holding held(lock);
      stop = true;
    }
    thread.join();
  }
} progress;

static ax_emulated_stream *default_stream(void)
{
  static ax_emulated_stream *s;
  if (!s) streams.push_back(s = new ax_emulated_stream());
  return s;
}

static void ask(ax_emulated_stream *s, step next)
{
  const unsigned seed = seed_of_schedule();
  if (!s) s = default_stream();
  s->queue.push_back(std::move(next));
  s->queued++;
  if (seed == 0 || (seed == 2 && s->first) || (seed == 3 && !s->first)) advance(s, s->queued);
  else if (seed > 3)
    for (unsigned n = draw(4); n > 0; n--) {
      ax_emulated_stream *lucky = streams[draw((unsigned)streams.size())];
      if (lucky->done < lucky->queued) advance(lucky, lucky->done + 1);
    }
}

/* Everything queued in a stream passes here; waits for events pass through ask itself. */
static void ax_emulate_enqueue(cudaStream_t stream, std::function<void()> work)
{
  if (ax_emulate_capturing(stream)) ax_emulate_captured(stream, std::move(work));
  else ask(stream, step{ std::move(work), NULL, 0, nullptr });
}

/* A launch blocks while $ACCEL_EMULATED_QUEUE steps of its stream have not run, as a driver's does
 * from some thousand on; without it, none does. */
static void wait_for_room(cudaStream_t stream)
{
  static const char *const text = getenv("ACCEL_EMULATED_QUEUE");
  static const size_t most = text ? (size_t)atoi(text) : 0;

  for (; most && !forked(); usleep(100)) {
    holding held(lock);
    ax_emulated_stream *s = stream ? stream : default_stream();
    if (lasting || s->queue.size() < most) return;
    advance(s, s->queued);
    go_on();
  }
}

void ax_emulate_failed(const char *wrong)
{
  if (lasting) return;
  lasting = cudaErrorLaunchFailure;
  trouble = wrong;
}

static const char *run_kernel(const char *what, dim3 grid, dim3 block, const std::function<void()> &kernel)
{
  if (ax_emulate_mode(AX_EMULATED_GUARD)) catch_faults();
  ax_emulate_launched(what);
  return ax_emulate_blocks(grid, block, kernel);
}

const char *ax_emulate(const char *what, cudaStream_t stream, dim3 grid, dim3 block,
                       std::function<void()> kernel)
{
  static long *const calls = &counts()["launch"];
  static const char *wrong; /* from a kernel that ran at once */
  const uint64_t threads = (uint64_t)block.x * block.y * block.z;

  if (forked()) return "used in the child of a process that had used CUDA";
  wait_for_room(stream);
  holding held(lock);
  ++*calls;
  if (lasting) return trouble.c_str();
  if (threads < 1 || threads > MOST_THREADS || block.z > 64) return "a block has 1 to 1024 threads";
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
    return "invalid configuration argument";
  if (ax_emulate_spoiled(stream)) return "the capture of its stream was invalidated";
  if (seed_of_schedule() == 0 && !ax_emulate_capturing(stream) &&
      (stream ? stream : default_stream())->queue.empty()) {
    wrong = NULL;
    ax_emulate_enqueue(stream, [&]() { wrong = run_kernel(what, grid, block, kernel); });
    return wrong;
  }
  ax_emulate_enqueue(stream, [name = std::string(what), grid, block, kernel = std::move(kernel)]() {
    const char *problem = run_kernel(name.c_str(), grid, block, kernel);
    if (problem) ax_emulate_failed((name + ": " + problem).c_str());
  });
  return NULL;
}

/* ---- for specs */

#define SHOWN extern "C" __attribute__((visibility("default")))

SHOWN void ax_emulated_schedule(unsigned seed)
{
  holding held(lock);
  run_all();
  schedule = seed;
  draws = seed;
}

SHOWN void ax_emulated_mode(int mode, unsigned value)
{
  holding held(lock);
  run_all();
  ax_emulate_mode(mode);
  modes[mode] = value;
}

SHOWN void ax_emulated_refuse_memory(long from, long n)
{
  refuse_from = from;
  refuse_count = n;
}

/* ---- for stand-ins of libraries */

static cudaError_t library_poll(cudaStream_t stream, std::function<std::function<bool()>()> make)
{
  {
    holding held(lock);
    if (!stream) stream = default_stream();
    if (ax_emulate_capturing(stream)) {
      ax_emulate_captured_poll(stream, std::move(make));
      return lasting;
    }
  }
  std::function<bool()> work = make(); /* it may block */
  holding held(lock);
  stream->last_poll = stream->queued + 1;
  ask(stream, step{ nullptr, NULL, 0, std::move(work) });
  progress.start();
  return lasting;
}

static cudaError_t library_work(cudaStream_t stream, std::function<void()> work)
{
  holding held(lock);
  ax_emulate_enqueue(stream, std::move(work));
  return lasting;
}

static bool library_owns(const void *p, size_t bytes)
{
  holding held(lock);
  for (int d = 0; d < DEVICES; d++) {
    auto after = memories[d].used.upper_bound((char *)p);
    if (after == memories[d].used.begin()) continue;
    --after;
    if ((const char *)p + bytes <= after->first + after->second.bytes) return true;
  }
  return false;
}

static int library_device(void) { return device; }

const ax_emulator ax_the_emulator = { library_work, library_owns, library_device, library_poll,
                                      ax_emulate_moved };

/* ---- the runtime's functions: devices and memory */

static int driver_version(void)
{
  const char *text = getenv("ACCEL_EMULATED_DRIVER");
  return text && *text ? atoi(text) : 13000;
}

/* $ACCEL_EMULATED_DEVICES of them, else 2; of these the ones that $CUDA_VISIBLE_DEVICES lists, up
 * to the first that is not there. */
static int device_count(void)
{
  const char *text = getenv("ACCEL_EMULATED_DEVICES"), *visible = getenv("CUDA_VISIBLE_DEVICES");
  int all = text ? atoi(text) : 2, n = 0;

  if (all > DEVICES) all = DEVICES;
  if (!visible) return all;
  for (const char *p = visible; *p >= '0' && *p <= '9' && atoi(p) < all && n < all;
       p += strspn(p, "0123456789"), p += *p == ',')
    n++;
  return n;
}

cudaError_t cudaGetDeviceCount(int *n)
{
  CALLED();
  *n = 0;
  if (driver_version() < 13000) return cudaErrorInsufficientDriver;
  *n = device_count();
  return *n > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaSetDevice(int d)
{
  CALLED();
  if (d < 0 || d >= device_count()) return cudaErrorInvalidDevice;
  device = d;
  context();
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
  CALLED();
  if (const cudaError_t refused = ax_emulate_unsafe(true)) return refused;
  run_all();
  return lasting;
}

cudaError_t cudaGetLastError(void) { return forked() ? (cudaError_t)cudaErrorInitializationError : lasting; }

const char *cudaGetErrorString(cudaError_t e)
{
  switch (e) {
  case cudaSuccess: return "no error";
  case cudaErrorInvalidValue: return "invalid argument";
  case cudaErrorMemoryAllocation: return "out of memory";
  case cudaErrorInitializationError: return "initialization error";
  case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
  case cudaErrorNoDevice: return "no CUDA-capable device is detected";
  case cudaErrorInvalidDevice: return "invalid device ordinal";
  case cudaErrorNotReady: return "device not ready";
  case cudaErrorLaunchFailure: return trouble.c_str();
  case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
  case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
  case cudaErrorStreamCaptureUnjoined: return "capturing stream has unjoined work";
  case cudaErrorStreamCaptureIsolation: return "dependency created on uncaptured work in another stream";
  case cudaErrorCapturedEvent:
    return "operation not permitted on an event last recorded in a capturing stream";
  default: return "unknown error";
  }
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
  CALLED();
  context();
  if (const cudaError_t refused = ax_emulate_unsafe(false)) return refused;
  memory &m = memories[device];
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
    m.arena = ax_emulate_memory + (size_t)device * ARENA;
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
  if (!p) return lasting;
  run_all();
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
        return lasting;
      }
    }
    m.unused[data] = size;
    return lasting;
  }
  return cudaErrorInvalidValue;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
  CALLED();
  context();
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
  run_all();
  pinned.erase((char *)p);
  free(p);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
  CALLED();
  context();
  size_t used = 0;
  for (const auto &each : memories[device].used) used += each.second.size;
  *total = ARENA;
  *available = ARENA - used;
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
    static long *const pageable = &counts()["cudaMemcpyAsync of pageable memory"];
    ++*pageable;
    ax_emulate_enqueue(stream, [=]() { memcpy(dst, seen->data(), bytes); });
  } else {
    const bool moves = on_device(src) && on_device(dst);
    ax_emulate_enqueue(stream, [=]() {
      if (moves) ax_emulate_moved("copy", bytes, bytes);
      memmove(dst, src, bytes);
    });
  }
  if (to_pages) {
    ax_emulated_stream *s = stream ? stream : default_stream();
    static long *const pageable = &counts()["cudaMemcpyAsync to pageable memory"];
    ++*pageable;
    run_until(s, s->queued);
  }
  return lasting;
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
  CALLED();
  if (const cudaError_t spoiled = ax_emulate_spoiled(stream)) return spoiled;
  ax_emulate_enqueue(stream, [=]() {
    ax_emulate_moved("fill", 0, bytes);
    memset(dst, value, bytes);
  });
  return lasting;
}

/* ---- streams and events */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
  CALLED();
  context();
  bool first = true;
  for (ax_emulated_stream *other : streams) first = first && other->device != device;
  streams.push_back(*s = new ax_emulated_stream{ device, first, 0, 0, {}, 0 });
  return cudaSuccess;
}

/* what is queued runs; events may still name it, so its record stays */
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
  CALLED();
  if (const cudaError_t refused = ax_emulate_refused(s)) return refused;
  run_until(s, s->queued);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
  CALLED();
  if (const cudaError_t refused = ax_emulate_refused(s)) return refused;
  if (!s) s = default_stream();
  run_until(s, s->queued);
  return lasting;
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
  CALLED();
  if (const cudaError_t refused = ax_emulate_refused(s)) return refused;
  if (!s) s = default_stream();
  if (s->done == s->queued) return lasting;
  advance(s, s->done + 1); /* time passes */
  return cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
  CALLED();
  cudaError_t captured;
  if (ax_emulate_event_waited(s, e, !e->stream, &captured)) return captured;
  if (e->stream && e->stream->done < e->at && e->stream != s)
    ask(s, step{ nullptr, e->stream, e->at, nullptr });
  return lasting;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
  CALLED();
  context();
  *e = new ax_emulated_event{ NULL, 0 };
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
  CALLED();
  ax_emulate_event_gone(e);
  delete e;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
  CALLED();
  if (const cudaError_t spoiled = ax_emulate_spoiled(s)) return spoiled;
  if (ax_emulate_event_recorded(e, s)) return cudaSuccess;
  if (!s) s = default_stream();
  *e = ax_emulated_event{ s, s->queued };
  return lasting;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
  CALLED();
  if (const cudaError_t captured = ax_emulate_event_queried(e)) return captured;
  if (!e->stream || e->stream->done >= e->at) return lasting;
  advance(e->stream, e->stream->done + 1); /* time passes */
  return cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
  CALLED();
  if (const cudaError_t captured = ax_emulate_event_queried(e)) return captured;
  if (e->stream) run_until(e->stream, e->at);
  return lasting;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int)
{
  CALLED();
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "emulated");
  p->major = 9;
  p->multiProcessorCount = 4;
  p->totalGlobalMem = ARENA;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int d)
{
  CALLED();
  const char *p = getenv("CUDA_VISIBLE_DEVICES");
  int k = d;

  if (d < 0 || d >= device_count()) return cudaErrorInvalidDevice;
  while (p && k-- > 0) p = strchr(p, ',') + 1;
  snprintf(id, (size_t)size, "0000:%02x:00.0", p ? atoi(p) : d);
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *v)
{
  *v = 13000;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *v)
{
  *v = driver_version();
  return cudaSuccess;
}

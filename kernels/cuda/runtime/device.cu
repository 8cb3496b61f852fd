/* Devices: finding them, their streams, events, and waiting for them. */
#include "device.h"
#include "watch.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

ax_cuda_device ax_cuda_devices[AX_MOST_DEVICES];
pthread_mutex_t ax_cuda_lock = PTHREAD_MUTEX_INITIALIZER;
static int n_devices;
static thread_local int current = -1;
thread_local ax_cuda_mistaken ax_cuda_mistake;

ax_status ax_cuda_refuse_mistake(const char *what)
{
  const ax_cuda_mistaken m = ax_cuda_mistake;
  ax_cuda_mistake = ax_cuda_mistaken{};
  return ax_fail(AX_EDTYPE,
                 "%s: error inside accel: a CUDA kernel takes another type of %d bytes and was given %s",
                 what, m.size, ax_dtype_name((ax_dtype)m.dtype));
}
ax_status (*ax_cuda_watch)(const char *what, cudaStream_t stream, cudaEvent_t event);
std::atomic<bool> ax_cuda_stop;
ax_status (*ax_cuda_stopped)(void);
ax_status (*ax_cuda_recording_ends)(int device, cudaStream_t computing);
/* the process's own device, as its state says; -1: none was chosen */
static std::atomic<int> chosen(-1);

ax_status ax_cuda_status(const char *what, cudaError_t e)
{
  if (e == cudaSuccess) return AX_OK;
  if (e == cudaErrorMemoryAllocation) /* tensors' memory has a message of its own (allocator.cu) */
    return ax_fail(AX_ENOMEM,
                   "%s: CUDA: %s: the driver found no memory on the GPU for this process or for the code of "
                   "a kernel; nvidia-smi lists the programs that hold it",
                   what, cudaGetErrorString(e));
  return ax_fail(AX_ENOIMPL, "%s: CUDA: %s", what, cudaGetErrorString(e));
}

/* ---- forks: CUDA does not survive them.  A child may release tensors and exit; everything that
 * needs the device is refused. */

static bool in_child;
static int first_pid;
static char first_line[160];

static void begin_child(void) { in_child = true; }
bool ax_cuda_forked(void) { return in_child; }

static ax_status refuse_child(void)
{
  return ax_fail(AX_ENOIMPL,
                 "CUDA cannot be used in this process (pid %d): it is a fork of process %d, which had used "
                 "CUDA before%s%s, and CUDA does not survive that; fork first, or keep the device out of "
                 "what the child does (a data set gives tensors of the CPU, the loader moves them)",
                 (int)getpid(), first_pid, *first_line ? ", first at " : "", first_line);
}

/* ---- streams and events */

static ax_status first_use(ax_cuda_device *dev, int index)
{
  cudaDeviceProp p;
  ax_status st = ax_cuda_status("cudaGetDeviceProperties", cudaGetDeviceProperties(&p, index));

  if (st != AX_OK || (st = ax_cuda_arch_built(index, p.name, p.major, p.minor)) != AX_OK) return st;
  if ((st = ax_cuda_status("cudaStreamCreate",
                           cudaStreamCreateWithFlags(&dev->stream, cudaStreamNonBlocking))) != AX_OK)
    return st;
  dev->pools[AX_POOL_SENDING].kind = AX_POOL_SENDING;
  dev->multiprocessors = p.multiProcessorCount;
  return AX_OK;
}

ax_status ax_cuda_select(int index)
{
  ax_cuda_device *dev = &ax_cuda_devices[index];
  ax_status st;

  if (__builtin_expect(in_child, 0)) return refuse_child();
  if (current != index) {
    if ((st = ax_cuda_status("cudaSetDevice", cudaSetDevice(index))) != AX_OK) return st;
    current = index;
  }
  return __builtin_expect(!dev->multiprocessors, 0) ? first_use(dev, index) : AX_OK;
}

ax_status ax_cuda_use(ax_device d, cudaStream_t *stream)
{
  ax_status st;

  if (__builtin_expect(ax_cuda_stop.load(std::memory_order_relaxed), 0) && !in_child &&
      (st = ax_cuda_stopped()) != AX_OK)
    return st;
  if ((st = ax_cuda_select(d.index)) != AX_OK) return st;
  *stream = ax_cuda_devices[d.index].stream;
  return AX_OK;
}

static void choose(int device) { chosen.store(device); }

ax_status ax_cuda_bus(int index, char id[32])
{
  const ax_status st = ax_cuda_status("cudaDeviceGetPCIBusId", cudaDeviceGetPCIBusId(id, 32, index));

  for (char *p = id; st == AX_OK && *p; p++) *p = (char)tolower((unsigned char)*p);
  return st;
}

ax_status ax_cuda_use_own(void)
{
  const char *local = getenv("LOCAL_RANK");
  cudaStream_t stream;
  int d = chosen.load();

  if (d < 0 || d >= n_devices) d = current;
  if (d < 0) d = local && n_devices > 0 ? atoi(local) % n_devices : 0;
  return ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)(d < 0 ? 0 : d) }, &stream);
}

int ax_cuda_multiprocessors(int index)
{
  return ax_cuda_select(index) == AX_OK ? ax_cuda_devices[index].multiprocessors : 1;
}

ax_status ax_cuda_event(ax_cuda_device *dev, cudaEvent_t *out)
{
  if (dev->n_events > 0) {
    *out = dev->events[--dev->n_events];
    return AX_OK;
  }
  const int index = (int)(dev - ax_cuda_devices);
  if (current != index) { /* an event belongs to the device that is the thread's when it is made */
    cudaStream_t stream;
    const ax_status st = ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)index }, &stream);
    if (st != AX_OK) return st;
  }
  return ax_cuda_status("cudaEventCreate", cudaEventCreateWithFlags(out, cudaEventDisableTiming));
}

void ax_cuda_event_back(ax_cuda_device *dev, cudaEvent_t e)
{
  if (dev->n_events == dev->room_for_events) {
    cudaEvent_t *more =
        (cudaEvent_t *)realloc(dev->events, (size_t)(2 * dev->room_for_events + 64) * sizeof *more);
    if (!more) {
      cudaEventDestroy(e);
      return;
    }
    dev->events = more;
    dev->room_for_events = 2 * dev->room_for_events + 64;
  }
  dev->events[dev->n_events++] = e;
}

ax_status ax_cuda_clear(const char *what, ax_device d, void *p, size_t bytes)
{
  cudaStream_t stream = NULL;
  const ax_status st = bytes ? ax_cuda_use(d, &stream) : AX_OK;
  if (!bytes) return AX_OK;
  return st != AX_OK ? st : ax_cuda_status(what, cudaMemsetAsync(p, 0, bytes, stream));
}

ax_cuda_fault *ax_cuda_fault_place(ax_device d)
{
  ax_cuda_device *dev = &ax_cuda_devices[d.index];
  cudaStream_t stream;
  void *p = NULL;

  if (dev->fault) return dev->fault;
  if (ax_cuda_use(d, &stream) != AX_OK ||
      ax_cuda_status("cudaHostAlloc", cudaHostAlloc(&p, sizeof(ax_cuda_fault),
                                                    cudaHostAllocMapped | cudaHostAllocPortable)) != AX_OK)
    return NULL;
  memset(p, 0, sizeof(ax_cuda_fault));
  return dev->fault = (ax_cuda_fault *)p;
}

bool ax_cuda_recording(int index) { return ax_cuda_devices[index].recording != NULL; }

ax_status ax_cuda_refuse_recording(int index, const char *what)
{
  if (!ax_cuda_recording(index)) return AX_OK;
  return ax_fail(AX_EINVAL, "the host cannot %s cuda:%d while a step is captured: do it outside the step",
                 what, index);
}

ax_status ax_cuda_wait(int index, const char *what)
{
  ax_cuda_device *dev = &ax_cuda_devices[index];
  ax_status st = ax_cuda_refuse_recording(index, "wait for");

  if (st != AX_OK) return st;
  st = ax_cuda_wait_stream(what, dev->stream);
  dev->stats.waits++;

  if (st != AX_OK || !dev->fault || ((volatile ax_cuda_fault *)dev->fault)->code == AX_FAULT_NONE) return st;
  const ax_cuda_fault f = *dev->fault;
  const char *const name = ax_op_shown((ax_op)f.op);
  dev->fault->code = AX_FAULT_NONE;
  switch (f.code) {
  case AX_FAULT_INDEX:
    return ax_fail(
        AX_ERANGE,
        "%s: index %lld at flat position %lld (from 0) is outside 0..%lld (found on cuda:%d after the call)",
        name, f.value, f.at, f.count - 1, index);
  case AX_FAULT_TARGET:
    return ax_fail(AX_ERANGE,
                   "%s: target %lld at position %lld is outside 0..%lld (found on cuda:%d after the call)",
                   name, f.value, f.at, f.count - 1, index);
  case AX_FAULT_CLASS:
    return ax_fail(
        AX_ERANGE,
        "%s: %lld at flat position %lld (from 0) is no class of 0..%lld (found on cuda:%d after the call)",
        name, f.value, f.at, f.count - 1, index);
  default:
    return ax_fail(AX_ERANGE,
                   "%s: an input lies outside 0..1; apply sigmoid first, or use "
                   "binary_cross_entropy_with_logits (found on cuda:%d after the call)",
                   name, index);
  }
}

static ax_status synchronize(int index)
{
  ax_cuda_device *dev = &ax_cuda_devices[index];
  cudaStream_t stream;
  ax_status st = ax_cuda_use((ax_device){ AX_CUDA, (uint8_t)index }, &stream);

  if (st == AX_OK) st = ax_cuda_refuse_recording(index, "wait for");
  if (st == AX_OK && dev->copies) st = ax_cuda_status("synchronize", cudaStreamSynchronize(dev->copies));
  if (st == AX_OK && (st = ax_cuda_wait(index, "synchronize")) == AX_OK) ax_cuda_all_arrived(dev);
  return st;
}

static int count(void) { return n_devices; }

extern "C" const ax_device_memory ax_cuda_memory = { count,
                                                     ax_cuda_alloc,
                                                     ax_cuda_release,
                                                     ax_cuda_copy,
                                                     synchronize,
                                                     ax_cuda_memory_stats,
                                                     ax_cuda_reset_peak,
                                                     ax_cuda_empty_cache,
                                                     ax_cuda_copy_later,
                                                     ax_cuda_send,
                                                     ax_cuda_arrive,
                                                     ax_cuda_pinned_new,
                                                     ax_cuda_pinned_free,
                                                     ax_cuda_memory_small,
                                                     choose,
                                                     ax_cuda_bus,
                                                     ax_cuda_pin,
                                                     ax_cuda_pin_idle,
                                                     ax_cuda_unpin };

/* ---- finding out whether there is a usable device */

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
const char *const ax_cuda_archs = TEXT(AX_CUDA_ARCHS); /* "sm_80:sm_90:compute_100" */

/* Whether this build runs on a device.  Machine code (sm_90) runs on devices of its major number
 * with an equal or higher minor number; PTX (compute_90) runs on all later ones. */
ax_status ax_cuda_arch_built(int index, const char *name, int major, int minor)
{
  for (const char *p = ax_cuda_archs; *p; p += strcspn(p, ":"), p += *p == ':') {
    const bool ptx = strncmp(p, "compute_", 8) == 0;
    const char *const digits = p + (ptx ? 8 : 3);
    const int arch = atoi(digits);
    const bool alone = digits[strspn(digits, "0123456789")] == 'a'; /* sm_90a runs on 9.0 only */
    if (alone ? arch == 10 * major + minor
        : ptx ? arch <= 10 * major + minor
              : arch / 10 == major && arch % 10 <= minor)
      return AX_OK;
  }
  return ax_fail(AX_ENOIMPL,
                 "cuda:%d (%.100s) is of architecture sm_%d%d, and this build is for %s: build it with make "
                 "cuda CUDA_ARCH=sm_%d%d",
                 index, name, major, minor, ax_cuda_archs, major, minor);
}

extern "C" ax_status ax_cuda_find_devices(void)
{
  const char *visible = getenv("CUDA_VISIBLE_DEVICES"), *line = ax_memory_where();
  int driver = 0, runtime = 0;
  const cudaError_t e = cudaGetDeviceCount(&n_devices);

  if (e == cudaSuccess && n_devices > AX_MOST_DEVICES) n_devices = AX_MOST_DEVICES;
  if (e == cudaSuccess && n_devices > 0) {
    if (!first_pid) pthread_atfork(NULL, NULL, begin_child);
    first_pid = (int)getpid();
    snprintf(first_line, sizeof first_line, "%s", line);
    return AX_OK;
  }
  n_devices = 0;
  cudaGetLastError();
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) return ax_fail(AX_ENOIMPL, "no NVIDIA driver was found (libcuda.so.1)");
  if (e == cudaErrorInsufficientDriver)
    return ax_fail(AX_ENOIMPL,
                   "the NVIDIA driver supports CUDA up to %d.%d, this build needs %d.%d: update the driver, "
                   "or build with CUDA %d's toolkit (make cuda CUDA_HOME=FOLDER)",
                   driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10, driver / 1000);
  if (visible && (e == cudaSuccess || e == cudaErrorNoDevice))
    return ax_fail(AX_ENOIMPL, "CUDA_VISIBLE_DEVICES=\"%.100s\" leaves no device visible", visible);
  return ax_fail(AX_ENOIMPL, "the driver reports no CUDA device (%s)", cudaGetErrorString(e));
}

const char *ax_cudnn_describe(void); /* cudnn.cu */

extern "C" const char *ax_cuda_describe(void)
{
  static thread_local char text[1000];
  cudaDeviceProp p;
  int driver = 0, runtime = 0;
  if (cudaGetDeviceProperties(&p, current < 0 ? 0 : current) != cudaSuccess) return "no device";
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  snprintf(text, sizeof text, "%.200s, sm_%d%d, CUDA %d.%d, driver for %d.%d; %.600s", p.name, p.major,
           p.minor, runtime / 1000, runtime % 1000 / 10, driver / 1000, driver % 1000 / 10,
           ax_cudnn_describe());
  return text;
}

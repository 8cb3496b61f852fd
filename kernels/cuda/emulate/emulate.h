/* CUDA without a GPU: the kernels of this folder compiled as plain C++, with the threads of a block
 * run one after the other on the host.
 *
 * This is only for tests (libax_cuda_emulated.so): index arithmetic, edges, reductions and their
 * synchronisation are executed and checked on machines without a GPU, under sanitizers too.  It
 * does not model speed or memory ordering.
 *
 * The threads of a block are fibers.  A fiber runs until it reaches __syncthreads or a warp
 * function, where it waits for the others of its block (warp); then the next one runs.  A kernel in
 * which some threads of a block skip a barrier ends with an error instead of undefined behaviour.
 * Blocks run one after the other, so __shared__ is a static variable. */
#ifndef AX_EMULATE_H
#define AX_EMULATE_H

#include <functional>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
#define __align__(n) alignas(n)

/* The product rounded, which no sum behind it is contracted with. */
static inline float __fmul_rn(float a, float b)
{
  float p = a * b;
  __asm__("" : "+m"(p));
  return p;
}

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

extern dim3 gridDim, blockDim, blockIdx, threadIdx;
static const int warpSize = 32;

/* Runs a kernel's threads now; returns NULL, or what went wrong.  (emulate.cpp) */
const char *ax_emulate_blocks(dim3 grid, dim3 block, const std::function<void()> &kernel);
/* Queues a kernel in a stream; returns NULL, or what is wrong with the launch.
 * (emulate/streams.cpp) */
const char *ax_emulate(const char *what, struct ax_emulated_stream *stream, dim3 grid, dim3 block,
                       std::function<void()> kernel);
void ax_emulate_barrier(void);      /* of the block */
void ax_emulate_warp_barrier(void); /* of the warp */
/* 16 bytes that lane `lane` of this warp makes visible to the others */
void *ax_emulate_lane(int lane);
int ax_emulate_here(void);               /* this thread's lane */
int ax_emulate_lanes(void);              /* threads in this warp */
uint64_t ax_emulate_block(void);         /* a number unique to the block, in all launches; from 1 */
void ax_emulate_wrong(const char *what); /* makes the launch fail; the first message is kept */
/* ends the kernel here, from a signal's handler too; does not return */
void ax_emulate_crash(const char *what);
bool ax_emulate_running(void);            /* a kernel, on this device's only processor */
void ax_emulate_failed(const char *what); /* every later call of the runtime fails (emulate/runtime.cpp) */

/* ---- modes: numbers from the environment or from a spec (ax_emulated_mode)
 *
 *   ACCEL_EMULATED_ORDER   0: warps, lanes and blocks run in rising order; 1: in falling order; n >
 *                          1: in an order drawn from n
 *   ACCEL_EMULATED_GUARD   1: every allocation ends at a page that cannot be accessed (to 16
 *                          bytes); 2: it begins behind one; both fill new memory with NaNs.  For
 *                          whole processes, with ACCEL_CUDA_CACHE=0, so that blocks are
 *                          allocations; the host is not kept out then
 *   ACCEL_EMULATED_OLD     1: the device has no tensor cores, as before compute capability 8.0
 *   ACCEL_EMULATED_MATH    n > 0: functions that CUDA's libraries and the special function unit
 *                          have are wrong by up to 2 units in the last place, as a function of n
 *                          and the result
 *
 * Kernels are always compiled with products and sums contracted, as by nvcc (but EMULATE_FMA=off),
 * and with -fsanitize=alignment.  A misaligned or closed address fails with kernel and address. */
enum { AX_EMULATED_ORDER, AX_EMULATED_GUARD, AX_EMULATED_MATH, AX_EMULATED_OLD, AX_EMULATED_MODES };
unsigned ax_emulate_mode(int mode); /* (emulate/runtime.cpp) */

#ifndef AX_EMULATED_LIBRARY /* a stand-in for one of NVIDIA's: its functions are its own */
float ax_emulate_near(float exact);
double ax_emulate_near(double exact);
#define exp(x) ax_emulate_near(exp(x))
#define expm1(x) ax_emulate_near(expm1(x))
#define exp2(x) ax_emulate_near(exp2(x))
#define exp2f(x) ax_emulate_near(exp2f(x))
#define log(x) ax_emulate_near(log(x))
#define log1p(x) ax_emulate_near(log1p(x))
#define log2(x) ax_emulate_near(log2(x))
#define log10(x) ax_emulate_near(log10(x))
#define pow(x, y) ax_emulate_near(pow(x, y))
#define powf(x, y) ax_emulate_near(powf(x, y))
#define tanh(x) ax_emulate_near(tanh(x))
#define erf(x) ax_emulate_near(erf(x))
#define erfc(x) ax_emulate_near(erfc(x))
#define sin(x) ax_emulate_near(sin(x))
#define cos(x) ax_emulate_near(cos(x))
#endif

static inline void __syncthreads(void) { ax_emulate_barrier(); }
static inline void __syncwarp(unsigned mask = ~0u) { ax_emulate_warp_barrier(); }
static inline void __threadfence(void) {} /* threads run one after the other */

/* The value of another lane.  All lanes of the warp must take part, as in all kernels here. */
template <class T> static inline T ax_emulate_from(T v, int lane)
{
  static_assert(sizeof(T) <= 16, "a shuffled value is at most 16 bytes");
  memcpy(ax_emulate_lane(ax_emulate_here()), &v, sizeof v);
  ax_emulate_warp_barrier();
  T other = v;
  if (lane >= 0 && lane < ax_emulate_lanes()) memcpy(&other, ax_emulate_lane(lane), sizeof other);
  ax_emulate_warp_barrier();
  return other;
}
template <class T> static inline T __shfl_sync(unsigned, T v, int lane, int = 32)
{
  return ax_emulate_from(v, lane);
}
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int mask, int = 32)
{
  return ax_emulate_from(v, ax_emulate_here() ^ mask);
}
template <class T> static inline T __shfl_down_sync(unsigned, T v, int by, int = 32)
{
  return ax_emulate_from(v, ax_emulate_here() + by);
}
template <class T> static inline T __shfl_up_sync(unsigned, T v, int by, int = 32)
{
  return ax_emulate_from(v, ax_emulate_here() - by);
}
static inline unsigned __ballot_sync(unsigned, int predicate)
{
  unsigned bits = 0;
  const int mine = predicate != 0;
  memcpy(ax_emulate_lane(ax_emulate_here()), &mine, sizeof mine);
  ax_emulate_warp_barrier();
  for (int lane = 0; lane < ax_emulate_lanes(); lane++) {
    int theirs;
    memcpy(&theirs, ax_emulate_lane(lane), sizeof theirs);
    bits |= (unsigned)theirs << lane;
  }
  ax_emulate_warp_barrier();
  return bits;
}
template <class T> static inline unsigned __match_any_sync(unsigned, T v)
{
  unsigned bits = 0;
  memcpy(ax_emulate_lane(ax_emulate_here()), &v, sizeof v);
  ax_emulate_warp_barrier();
  for (int lane = 0; lane < ax_emulate_lanes(); lane++)
    bits |= (unsigned)(memcmp(ax_emulate_lane(lane), &v, sizeof v) == 0) << lane;
  ax_emulate_warp_barrier();
  return bits;
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline unsigned __float_as_uint(float x)
{
  unsigned word;
  memcpy(&word, &x, sizeof word);
  return word;
}
static inline float __uint_as_float(unsigned word)
{
  float x;
  memcpy(&x, &word, sizeof x);
  return x;
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
template <class T> static inline T atomicOr(T *at, T v)
{
  const T old = *at;
  *at |= v;
  return old;
}
template <class T> static inline T atomicCAS(T *at, T expected, T v)
{
  const T old = *at;
  if (old == expected) *at = v;
  return old;
}
template <class T> static inline T atomicAdd(T *at, T v)
{
  const T old = *at;
  *at += v;
  return old;
}
template <class T> static inline T atomicMin(T *at, T v)
{
  const T old = *at;
  if (v < old) *at = v;
  return old;
}
template <class T> static inline T atomicMax(T *at, T v)
{
  const T old = *at;
  if (v > old) *at = v;
  return old;
}

/* ---- the runtime: the part of it that this folder uses, over memory that the host cannot touch
 * outside kernels and copies
 *
 * A stream is a queue.  Queued work runs when something forces it (a wait of the host, an event
 * that another stream waits for), or earlier.  ax_emulated_schedule chooses when, so that a missing
 * event shows as wrong numbers in a spec:
 *   0  at once (the default)            1  never before it is forced
 *   2  the first stream of a device at once, the others when forced    3  the reverse
 *   n > 3  at moments drawn from the seed n
 * ACCEL_EMULATED_SCHEDULE sets the initial one.  A copy from pageable memory has read it when the
 * call returns, one to pageable memory is complete; pinned memory is read and written when the copy
 * runs.  In a forked child every call fails, as with a GPU.
 *
 * ACCEL_EMULATED_QUEUE=40: a launch, or a stream's wait for an event, blocks while 40 steps of its
 * stream have not run, as a driver's does from some thousand on; the default is no limit.
 *
 * ACCEL_EMULATED_GB=80: a device says that it has 80 GB; it has one.
 * There are $ACCEL_EMULATED_DEVICES devices (2), from which $CUDA_VISIBLE_DEVICES selects as usual.
 * They can reach each other's memory, unless ACCEL_EMULATED_PEERS=0.  Pages of other owners can be
 * registered, unless ACCEL_EMULATED_REGISTER=0.
 * ACCEL_EMULATED_DRIVER=12040: the driver is for CUDA 12.4 (0: there is none);
 * CUDA_VISIBLE_DEVICES="": no device is visible. */

typedef int cudaError_t;
typedef struct ax_emulated_stream *cudaStream_t;
typedef struct ax_emulated_event *cudaEvent_t;
typedef struct ax_emulated_graph *cudaGraph_t;
enum {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorPeerAccessUnsupported = 217,
  cudaErrorNotReady = 600,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureMerge = 902,
  cudaErrorStreamCaptureUnmatched = 903,
  cudaErrorStreamCaptureUnjoined = 904,
  cudaErrorStreamCaptureIsolation = 905,
  cudaErrorCapturedEvent = 907
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount;
  size_t totalGlobalMem;
};
enum { cudaEventDisableTiming = 2 };
enum { cudaStreamNonBlocking = 1, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };
enum { cudaHostRegisterPortable = 1 };

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *p);
cudaError_t cudaMemGetInfo(size_t *available, size_t *total);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamQuery(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device);
cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device);
cudaError_t cudaRuntimeGetVersion(int *v);
cudaError_t cudaDriverGetVersion(int *v);

/* ---- graphs (emulate/graph.cpp): work queued in a stream during a capture is kept, with its
 * arguments by value, and runs when the graph is launched */

typedef struct ax_emulated_exec *cudaGraphExec_t;
typedef struct ax_emulated_node *cudaGraphNode_t;
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone,
  cudaStreamCaptureStatusActive,
  cudaStreamCaptureStatusInvalidated
};

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *status);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags = 0);
/* their number only: nodes is NULL */
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t s);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

/* Between the runtime and emulate/traffic.cpp: where the devices' memory is; a kernel begins; a
 * library's call, or a copy or fill of the runtime's, moves so many bytes. */
static const size_t AX_EMULATED_BYTES = (size_t)8 << 30;
extern char *ax_emulate_memory;
void ax_emulate_launched(const char *what);
void ax_emulate_moved(const char *what, size_t read, size_t written);

/* Between the runtime and emulate/graph.cpp. */
bool ax_emulate_capturing(cudaStream_t s);
/* keeps work of a stream in capture */
void ax_emulate_captured(cudaStream_t s, std::function<void()> work);
/* or work that waits for other processes */
void ax_emulate_captured_poll(cudaStream_t s, std::function<std::function<bool()>()> make);
/* for calls that a capture does not allow: returns the error and invalidates the capture */
cudaError_t ax_emulate_refused(cudaStream_t s);
/* cudaErrorStreamCaptureInvalidated where the capture is invalid */
cudaError_t ax_emulate_spoiled(cudaStream_t s);
/* for calls that may wait for the whole device, during any capture; always: in the relaxed mode
 * too */
cudaError_t ax_emulate_unsafe(bool always);
bool ax_emulate_event_recorded(cudaEvent_t e, cudaStream_t s); /* whether in a capture */
/* whether a capture was involved */
bool ax_emulate_event_waited(cudaStream_t s, cudaEvent_t e, bool never_recorded, cudaError_t *result);
cudaError_t ax_emulate_event_queried(cudaEvent_t e); /* the host queries it or waits for it */
void ax_emulate_event_gone(cudaEvent_t e);

/* ---- for the specs, through LuaJIT's ffi.load of the plugin's file */

extern "C" {
void ax_emulated_schedule(unsigned seed); /* runs what is queued first */
/* how often the function `name` of the runtime was called, "cudaMalloc"; "launch": kernels */
long ax_emulated_calls(const char *name);
/* from now on, calls `from` .. from + n - 1 of cudaMalloc fail, counted from 1 */
void ax_emulated_refuse_memory(long from, long n);
/* sets the order or the maths: see above */
void ax_emulated_mode(int mode, unsigned value);
/* what kernels moved since the last call, a line for each name: name, launches, bytes read and
 * written, bytes of all threads' accesses, with tabs between them (emulate/traffic.cpp) */
const char *ax_emulated_traffic(void);
}

/* ---- for the stand-ins of NVIDIA's libraries (spec/fakes)
 *
 * A stand-in computes on device memory, which it can touch only in the work that it queues here.
 * It exports
 *     extern "C" __attribute__((visibility("default"))) void ax_emulator_attach(const ax_emulator
 *     *e);
 * which ax_cuda_library calls once, after opening it; by this symbol the plugin distinguishes a
 * stand-in from NVIDIA's own library. */
struct ax_emulator {
  /* Queues `work` on `stream`: behind the kernels and copies that are there, ahead of later ones.
   * In a capture the work becomes a part of the graph and runs at each replay.  So it must hold its
   * arguments by value, and copies of what a library reads on the host when it is called (alpha,
   * descriptors).  It runs on any thread, once per launch, and may read and write device memory. */
  cudaError_t (*work)(cudaStream_t stream, std::function<void()> work);
  /* Whether [p, p + bytes) is in memory from cudaMalloc (of any device); for checking device
   * pointers when a call is made. */
  bool (*owns)(const void *p, size_t bytes);
  /* The calling thread's device. */
  int (*device)(void);
  /* Queues work that waits for other processes: `work` is called, from any thread, until it returns
   * true, and the stream waits for that.  It must not block.  `make` makes it: at once, or in a
   * capture at each launch of the graph, in the order of launches. */
  cudaError_t (*poll)(cudaStream_t stream, std::function<std::function<bool()>()> make);
  /* For the count of traffic: a call reads and writes at least so many bytes of device memory.  To
   * be called in the work. */
  void (*moved)(const char *what, size_t read, size_t written);
};
typedef void (*ax_emulator_attach_fn)(const ax_emulator *e);
extern const ax_emulator ax_the_emulator; /* emulate/runtime.cpp */

#endif

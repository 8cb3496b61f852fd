/* The emulated device: fibers for the threads of a block, and a runtime over memory that the host cannot touch.  See emulate.h. */
#include "emulate.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

dim3 gridDim, blockDim, blockIdx, threadIdx;

enum { MOST_THREADS = 1024, STACK = 256 << 10, DEVICES = 2 };
static const size_t ARENA = (size_t)1 << 30, PAGE = 4096;

/* ---- fibers */

enum state { READY, AT_BARRIER, AT_WARP, DONE };
struct fiber { ucontext_t context; state at; char lane[16]; };
static fiber *fibers;
static char *stacks;
static ucontext_t scheduler;
static int current, count;
static const std::function<void()> *body;
static char trouble[160];

static void fiber_main(void)
{
  (*body)();
  fibers[current].at = DONE;
  swapcontext(&fibers[current].context, &scheduler);
}

static void wait_at(state s)
{
  fibers[current].at = s;
  swapcontext(&fibers[current].context, &scheduler);
}

void ax_emulate_barrier(void) { wait_at(AT_BARRIER); }
void ax_emulate_warp_barrier(void) { wait_at(AT_WARP); }
void *ax_emulate_lane(int lane) { return fibers[current / 32 * 32 + lane].lane; }
int ax_emulate_here(void) { return current % 32; }
int ax_emulate_lanes(void) { return count - current / 32 * 32 < 32 ? count - current / 32 * 32 : 32; }

static void set_thread(int t)
{
  current = t;
  threadIdx = dim3((unsigned)t % blockDim.x, (unsigned)t / blockDim.x % blockDim.y, (unsigned)t / blockDim.x / blockDim.y);
}

/* Lets those of [lo, hi) go on that wait at `s`, when all do that have not ended. */
static bool release(int lo, int hi, state s)
{
  int waiting = 0;
  for (int t = lo; t < hi; t++) {
    if (fibers[t].at == s) waiting++;
    else if (fibers[t].at != DONE) return false;
  }
  for (int t = lo; t < hi; t++)
    if (fibers[t].at == s) fibers[t].at = READY;
  return waiting > 0;
}

static const char *run_block(void)
{
  for (int t = 0; t < count; t++) {
    fiber *f = &fibers[t];
    f->at = READY;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stacks + (size_t)t * STACK;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = NULL;
    makecontext(&f->context, fiber_main, 0);
  }
  for (;;) {
    bool ran = false, moved = false;
    int done = 0;
    for (int t = 0; t < count; t++) {
      while (fibers[t].at == READY) {
        set_thread(t);
        swapcontext(&scheduler, &fibers[t].context);
        ran = true;
      }
      done += fibers[t].at == DONE;
    }
    if (done == count) return NULL;
    for (int lo = 0; lo < count; lo += 32) moved |= release(lo, lo + 32 < count ? lo + 32 : count, AT_WARP);
    if (!moved) moved = release(0, count, AT_BARRIER);
    if (!moved && !ran) {
      snprintf(trouble, sizeof trouble, "block (%u, %u, %u): some threads wait at a barrier that others never reach", blockIdx.x, blockIdx.y, blockIdx.z);
      return trouble;
    }
  }
}

/* ---- memory */

static char *arena[DEVICES];
static size_t used[DEVICES];
static int device;

static void access_to(int prot)
{
  for (int d = 0; d < DEVICES; d++)
    if (used[d]) mprotect(arena[d], used[d], prot);
}

const char *ax_emulate(dim3 grid, dim3 block, const std::function<void()> &kernel)
{
  const char *wrong = NULL;

  count = (int)(block.x * block.y * block.z);
  if (count < 1 || count > MOST_THREADS) return "a block has 1 to 1024 threads";
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.y > 65535 || grid.z > 65535) return "invalid configuration argument";
  if (!fibers) {
    fibers = (fiber *)calloc(MOST_THREADS, sizeof *fibers);
    stacks = (char *)mmap(NULL, (size_t)MOST_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!fibers || stacks == (char *)MAP_FAILED) return "no memory for an emulated block";
  }
  gridDim = grid;
  blockDim = block;
  body = &kernel;
  access_to(PROT_READ | PROT_WRITE);
  for (unsigned z = 0; z < grid.z && !wrong; z++)
    for (unsigned y = 0; y < grid.y && !wrong; y++)
      for (unsigned x = 0; x < grid.x && !wrong; x++) {
        blockIdx = dim3(x, y, z);
        wrong = run_block();
      }
  access_to(PROT_NONE);
  return wrong;
}

cudaError_t cudaGetDeviceCount(int *n) { *n = DEVICES; return cudaSuccess; }
cudaError_t cudaSetDevice(int d) { device = d; return cudaSuccess; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t e) { return e == cudaErrorMemoryAllocation ? "out of memory" : e ? "error" : "no error"; }

cudaError_t cudaMalloc(void **p, size_t bytes)
{
  const size_t size = (bytes + PAGE - 1) / PAGE * PAGE;
  if (!arena[device]) {
    arena[device] = (char *)mmap(NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena[device] == (char *)MAP_FAILED) return cudaErrorMemoryAllocation;
  }
  if (size > ARENA - used[device]) return cudaErrorMemoryAllocation;
  *p = arena[device] + used[device];
  used[device] += size;
  return cudaSuccess;
}

cudaError_t cudaFree(void *) { return cudaSuccess; } /* address space is plenty */

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
  *p = malloc(bytes);
  return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void *p) { free(p); return cudaSuccess; }

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
  *total = ARENA;
  *available = ARENA - used[device];
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind, cudaStream_t)
{
  access_to(PROT_READ | PROT_WRITE);
  memmove(dst, src, bytes);
  access_to(PROT_NONE);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t)
{
  access_to(PROT_READ | PROT_WRITE);
  memset(dst, value, bytes);
  access_to(PROT_NONE);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned) { *s = NULL; return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) { *e = NULL; return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int)
{
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "emulated");
  p->major = 9;
  p->multiProcessorCount = 4;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *v) { *v = 13000; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *v) { *v = 13000; return cudaSuccess; }

/* ---- stand-ins of libraries */

static cudaError_t library_work(cudaStream_t, std::function<void()> work)
{
  access_to(PROT_READ | PROT_WRITE);
  work();
  access_to(PROT_NONE);
  return cudaSuccess;
}

static bool library_owns(const void *p, size_t bytes)
{
  for (int d = 0; d < DEVICES; d++)
    if (arena[d] && (const char *)p >= arena[d] && (const char *)p + bytes <= arena[d] + used[d]) return true;
  return false;
}

static int library_device(void) { return device; }

const ax_emulator ax_the_emulator = { library_work, library_owns, library_device };

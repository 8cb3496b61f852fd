/* The emulated device's processors: fibers for the threads of a block.  See emulate.h. */
#include "emulate.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

dim3 gridDim, blockDim, blockIdx, threadIdx;

enum { MOST_THREADS = 1024, STACK = 256 << 10 };

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

const char *ax_emulate_blocks(dim3 grid, dim3 block, const std::function<void()> &kernel)
{
  const char *wrong = NULL;

  count = (int)(block.x * block.y * block.z);
  if (!fibers) {
    fibers = (fiber *)calloc(MOST_THREADS, sizeof *fibers);
    stacks = (char *)mmap(NULL, (size_t)MOST_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!fibers || stacks == (char *)MAP_FAILED) return "no memory for an emulated block";
  }
  gridDim = grid;
  blockDim = block;
  body = &kernel;
  for (unsigned z = 0; z < grid.z && !wrong; z++)
    for (unsigned y = 0; y < grid.y && !wrong; y++)
      for (unsigned x = 0; x < grid.x && !wrong; x++) {
        blockIdx = dim3(x, y, z);
        wrong = run_block();
      }
  return wrong;
}

/* The emulated device's processors: fibers as the threads of a block.  See emulate.h. */
#undef _FORTIFY_SOURCE /* its longjmp refuses to jump to another stack */
#include "emulate.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

dim3 gridDim, blockDim, blockIdx, threadIdx;

enum { MOST_THREADS = 1024, STACK = 256 << 10 };

/* ---- fibers */

enum state { READY, AT_BARRIER, AT_WARP, DONE };
/* swapcontext makes a system call for the signal mask each time.  A fiber that has begun is left
 * and entered by longjmp, which does not.  (Except under AddressSanitizer, which takes a longjmp
 * for the end of frames.) */
struct place {
  ucontext_t context;
  jmp_buf buffer;
  bool begun;
};
struct fiber {
  place here;
  state at;
  char lane[16];
};
static fiber *fibers;
static char *stacks;
static place scheduler;
static int current, count;
static const std::function<void()> *body;
static char trouble[160];
static bool has_trouble;
static uint64_t block_number;

static void go(place *from, place *to)
{
#ifdef __SANITIZE_ADDRESS__
  swapcontext(&from->context, &to->context);
#else
  from->begun = true;
  if (_setjmp(from->buffer)) return;
  if (to->begun) _longjmp(to->buffer, 1);
  setcontext(&to->context);
#endif
}

static void wait_at(state s)
{
  fiber *f = &fibers[current];
  f->at = s;
  go(&f->here, &scheduler);
}

static void fiber_main(void)
{
  (*body)();
  wait_at(DONE);
}

void ax_emulate_barrier(void) { wait_at(AT_BARRIER); }
void ax_emulate_warp_barrier(void) { wait_at(AT_WARP); }
void *ax_emulate_lane(int lane) { return fibers[current / 32 * 32 + lane].lane; }
int ax_emulate_here(void) { return current % 32; }
int ax_emulate_lanes(void) { return count - current / 32 * 32 < 32 ? count - current / 32 * 32 : 32; }

uint64_t ax_emulate_block(void) { return block_number; }
void ax_emulate_wrong(const char *what)
{
  if (has_trouble) return;
  has_trouble = true;
  snprintf(trouble, sizeof trouble, "block (%u, %u, %u), thread %d: %s", blockIdx.x, blockIdx.y, blockIdx.z,
           current, what);
}

static void set_thread(int t)
{
  current = t;
  threadIdx = dim3((unsigned)t % blockDim.x, (unsigned)t / blockDim.x % blockDim.y,
                   (unsigned)t / blockDim.x / blockDim.y);
}

/* Releases the fibers of [lo, hi) that wait at `s`, when all that have not ended wait there. */
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
  has_trouble = false;
  block_number++;
  for (int t = 0; t < count; t++) {
    fiber *f = &fibers[t];
    f->at = READY;
    f->here.begun = false;
    getcontext(&f->here.context);
    f->here.context.uc_stack.ss_sp = stacks + (size_t)t * STACK;
    f->here.context.uc_stack.ss_size = STACK;
    f->here.context.uc_link = NULL;
    makecontext(&f->here.context, fiber_main, 0);
  }
  for (;;) {
    bool ran = false, moved = false;
    int done = 0;
    for (int t = 0; t < count; t++) {
      while (fibers[t].at == READY) {
        set_thread(t);
        go(&scheduler, &fibers[t].here);
        ran = true;
      }
      done += fibers[t].at == DONE;
    }
    if (done == count) return has_trouble ? trouble : NULL;
    for (int lo = 0; lo < count; lo += 32) moved |= release(lo, lo + 32 < count ? lo + 32 : count, AT_WARP);
    if (!moved) moved = release(0, count, AT_BARRIER);
    if (!moved && !ran) {
      snprintf(trouble, sizeof trouble,
               "block (%u, %u, %u): some threads wait at a barrier that others never reach", blockIdx.x,
               blockIdx.y, blockIdx.z);
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
    stacks = (char *)mmap(NULL, (size_t)MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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

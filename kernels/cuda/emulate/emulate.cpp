/* The emulated device's processors: fibers as the threads of a block.  See emulate.h. */
#undef _FORTIFY_SOURCE /* its longjmp refuses to jump to another stack */
#include "emulate.h"

#include <math.h>
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
static char trouble[320];
static bool has_trouble, running, crashed;
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
bool ax_emulate_running(void) { return running; }
void ax_emulate_wrong(const char *what)
{
  if (has_trouble) return;
  has_trouble = true;
  snprintf(trouble, sizeof trouble, "block (%u, %u, %u), thread %d: %s", blockIdx.x, blockIdx.y, blockIdx.z,
           current, what);
}
void ax_emulate_crash(const char *what)
{
  ax_emulate_wrong(what);
  crashed = true;
  wait_at(DONE);
}

/* What -fsanitize=alignment calls before an access whose address is not a multiple of the type's
 * alignment. */
struct misaligned {
  const char *file;
  uint32_t line, column;
  const void *type;
  unsigned char log_alignment, kind;
};
extern "C" void __ubsan_handle_type_mismatch_v1(misaligned *at, uintptr_t address)
{
  char text[240];
  snprintf(text, sizeof text, "misaligned address 0x%zx: not a multiple of %d (%s:%u)", (size_t)address,
           1 << at->log_alignment, at->file, at->line);
  if (running) ax_emulate_crash(text); /* the access itself may be an instruction that faults */
  else ax_emulate_failed(text);
}

/* ---- the freedom of the hardware's functions: see emulate.h */

template <class T, class B> static T nudged(T y)
{
  const unsigned seed = ax_emulate_mode(AX_EMULATED_MATH);
  T one = 1, near;
  B bits;
  if (!running || seed == 0 || y == 0 || y == one || y == -one || fabs(y) < 1e-37 || !isfinite(y)) return y;
  memcpy(&bits, &y, sizeof y);
  const uint64_t mixed = ((uint64_t)bits ^ (uint64_t)seed << 40) * 0x9e3779b97f4a7c15u;
  bits += (B)(int)((mixed >> 33) % 5) - 2;
  memcpy(&near, &bits, sizeof y);
  if (!isfinite(near)) return y;
  return fabs(y) < 1 && fabs(near) > 1 ? (y < 0 ? -one : one) : near;
}
float ax_emulate_near(float exact) { return nudged<float, uint32_t>(exact); }
double ax_emulate_near(double exact) { return nudged<double, uint64_t>(exact); }

/* ---- the order in which warps, and the lanes of one, take turns */

static uint64_t draws;

static unsigned draw(unsigned n) /* 0 .. n - 1 */
{
  draws = draws * 6364136223846793005u + 1442695040888963407u;
  return (unsigned)(draws >> 33) % n;
}

/* The numbers 0 .. n - 1 in this mode's order. */
static void deal(unsigned order, int n, int *turn)
{
  for (int k = 0; k < n; k++) turn[k] = order == 1 ? n - 1 - k : k;
  for (int k = order > 1 ? n - 1 : 0; k > 0; k--) {
    const int other = (int)draw((unsigned)k + 1), t = turn[k];
    turn[k] = turn[other];
    turn[other] = t;
  }
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

/* Runs each fiber of [lo, hi) that can run until it waits; returns whether one could. */
static bool run_warp(unsigned order, int lo, int hi)
{
  bool ran = false;
  int turn[32];
  deal(order, hi - lo, turn);
  for (int k = 0; k < hi - lo && !crashed; k++) {
    const int t = lo + turn[k];
    if (fibers[t].at != READY) continue;
    set_thread(t);
    go(&scheduler, &fibers[t].here);
    ran = true;
  }
  return ran;
}

static void begin_block(void)
{
  has_trouble = crashed = false;
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
}

static bool block_ended(void)
{
  for (int t = 0; t < count; t++)
    if (fibers[t].at != DONE) return false;
  return true;
}

/* A warp runs on until its threads wait at the block's barrier, so that it is far ahead of the
 * others where a barrier is missing; in a drawn order it may have to stop earlier. */
static const char *run_block(unsigned order)
{
  int turn[MOST_THREADS / 32];
  const int warps = (count + 31) / 32;

  begin_block();
  for (;;) {
    bool ran = false;
    deal(order, warps, turn);
    for (int w = 0; w < warps; w++) {
      const int lo = turn[w] * 32, hi = lo + 32 < count ? lo + 32 : count;
      do ran |= run_warp(order, lo, hi);
      while (!crashed && release(lo, hi, AT_WARP) && !(order > 1 && draw(4) == 0));
    }
    if (crashed || block_ended()) return has_trouble ? trouble : NULL;
    if (!release(0, count, AT_BARRIER) && !ran) {
      snprintf(trouble, sizeof trouble,
               "block (%u, %u, %u): some threads wait at a barrier that others never reach", blockIdx.x,
               blockIdx.y, blockIdx.z);
      return trouble;
    }
  }
}

/* Block number k of a grid. */
static dim3 block_at(dim3 grid, uint64_t k)
{
  return dim3((unsigned)(k % grid.x), (unsigned)(k / grid.x % grid.y), (unsigned)(k / grid.x / grid.y));
}

const char *ax_emulate_blocks(dim3 grid, dim3 block, const std::function<void()> &kernel)
{
  const unsigned order = ax_emulate_mode(AX_EMULATED_ORDER);
  const uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
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
  draws = order;
  running = true;
  const uint64_t shift = order > 1 ? draw((unsigned)(blocks < 1 << 16 ? blocks : 1 << 16)) : 0;
  for (uint64_t k = 0; k < blocks && !wrong; k++) {
    blockIdx = block_at(grid, order == 1 ? blocks - 1 - k : (k + shift) % blocks);
    wrong = run_block(order);
  }
  running = false;
  return wrong;
}

/* Tensor cores, ldmatrix, cp.async and dynamic shared memory of the emulated device, written from
 * the PTX ISA documentation ("Matrix fragments for mma.m16n8k16", "ldmatrix", "cp.async") and not
 * from their uses in the kernels.
 *
 * It is stricter than the hardware.  The target of a cp.async contains NaNs from the issue of the
 * copy on, and its data only after the issuing thread's wait; so a missing wait, a missing barrier
 * after it, and a copy into a buffer that others still read all show.  Dynamic shared memory
 * contains NaNs when a block starts, and a kernel that writes past its end fails.  Undefined uses
 * (unaligned addresses) fail too. */
#ifndef AX_EMULATE_MMA_H
#define AX_EMULATE_MMA_H

#include <stdio.h>
#include <vector>

#include "half.h"

/* ---- values that the lanes of a warp exchange.  Two places in turn: a lane can be one operation
 * ahead of its warp, never two. */

struct ax_emulated_lane {
  uint64_t block = 0;
  unsigned turn = 0;
  uint32_t shown[2][8];
  struct copy {
    char *to;
    const char *from;
    int bytes;
    bool in;
  };
  std::vector<std::vector<copy>> groups; /* committed, the oldest first */
  std::vector<copy> open;                /* not committed */
};
inline ax_emulated_lane ax_emulated_lanes[1024];

/* The thread's own record, fresh in each block. */
static inline ax_emulated_lane &ax_emulated_thread(void)
{
  ax_emulated_lane &l =
      ax_emulated_lanes[(threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x];
  if (l.block != ax_emulate_block()) {
    l.block = ax_emulate_block();
    l.turn = 0;
    l.groups.clear();
    l.open.clear();
  }
  return l;
}
/* Makes n words visible to the warp; the caller must read them at once, starting at this thread's
 * warp. */
static inline const ax_emulated_lane *ax_emulated_show(const uint32_t *words, int n, unsigned *turn)
{
  ax_emulated_lane &l = ax_emulated_thread();
  if (ax_emulate_lanes() != 32) ax_emulate_wrong("an instruction of whole warps in a warp that is none");
  *turn = l.turn++ % 2;
  memcpy(l.shown[*turn], words, sizeof *words * (size_t)n);
  ax_emulate_warp_barrier();
  return &l - ax_emulate_here();
}

/* ---- mma.sync.aligned.m16n8k16.row.col.f32.T.T.f32: d = a b + d.
 * a (16 x 16): four words of two elements; element i of 0..7 of a lane is row lane / 4 (+ 8 for i
 * of {2, 3, 6, 7}), column 2 (lane % 4) + i % 2 (+ 8 for i >= 4).  b (16 x 8): element i of 0..3 is
 * row 2 (lane % 4) + i % 2 (+ 8 for i >= 2), column lane / 4.  c, d (16 x 8): element i is row lane
 * / 4 (+ 8 for i >= 2), column 2 (lane % 4) + i % 2. */
static inline float ax_emulated_half(uint32_t word, int which, bool bf16)
{
  const uint16_t bits = (uint16_t)(word >> 16 * which);
  return bf16 ? ax_bf16_to_float(bits) : ax_half_to_float(bits);
}
/* d = round(d + the sum over k of product(warp's words, row, column, k)), for K numbers k. */
template <int K, class P, class R>
static inline void ax_emulated_multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                        P product, R round)
{
  const uint32_t words[6] = { a[0], a[1], a[2], a[3], b0, b1 };
  unsigned turn;
  const ax_emulated_lane *warp = ax_emulated_show(words, 6, &turn);
  const int lane = ax_emulate_here();
  for (int i = 0; i < 4; i++) {
    const int row = lane / 4 + (i >= 2 ? 8 : 0), column = lane % 4 * 2 + i % 2;
    double sum = d[i];
    for (int k = 0; k < K; k++)
      sum += product([=](int from) { return warp[from].shown[turn]; }, row, column, k);
    d[i] = round(sum);
  }
}
static inline void ax_emulated_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool bf16)
{
  auto product = [=](auto words, int row, int column, int k) {
    const int a_lane = row % 8 * 4 + k % 8 / 2, a_element = k % 2 + (row >= 8 ? 2 : 0) + (k >= 8 ? 4 : 0);
    const int b_lane = column * 4 + k % 8 / 2, b_element = k % 2 + (k >= 8 ? 2 : 0);
    return (double)ax_emulated_half(words(a_lane)[a_element / 2], a_element % 2, bf16) *
           (double)ax_emulated_half(words(b_lane)[4 + b_element / 2], b_element % 2, bf16);
  };
  ax_emulated_multiply<16>(d, a, b0, b1, product, [](double sum) { return (float)sum; });
}

/* ---- mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32: d = a b + d.
 * a (16 x 8): word i of 0..3 of a lane is row lane / 4 (+ 8 for odd i), column lane % 4 (+ 4 for i
 * >= 2).  b (8 x 8): word i is row lane % 4 (+ 4 for i = 1), column lane / 4.  c, d as above.
 * Of a word the low 13 bits are ignored, and the sum is rounded toward zero, as tensor cores do. */
static inline float ax_emulated_tf32(uint32_t word)
{
  float x;
  word &= 0xffffe000u;
  memcpy(&x, &word, sizeof x);
  return x;
}
/* cvt.rna.tf32.f32 */
static inline uint32_t ax_emulated_to_tf32(float x)
{
  uint32_t word;
  memcpy(&word, &x, sizeof word);
  if (x != x) return 0x7fffffffu;
  return fabsf(x) == INFINITY ? word : (word + 0x1000u) & 0xffffe000u;
}
static inline float ax_emulated_toward_zero(double x)
{
  const float f = (float)x;
  return fabs((double)f) > fabs(x) ? nextafterf(f, 0.0f) : f;
}
static inline void ax_emulated_mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
  auto product = [](auto words, int row, int column, int k) {
    return (double)ax_emulated_tf32(words(row % 8 * 4 + k % 4)[(row >= 8) + 2 * (k >= 4)]) *
           (double)ax_emulated_tf32(words(column * 4 + k % 4)[4 + (k >= 4)]);
  };
  ax_emulated_multiply<8>(d, a, b0, b1, product, ax_emulated_toward_zero);
}

/* ---- ldmatrix.sync.aligned.m8n8.xN{.trans}.shared.b16: lane 8 m + r passes the address of row r
 * of
 * matrix m, of eight elements; a lane gets elements 2 (lane % 4) and 2 (lane % 4) + 1 of row lane /
 * 4 of each matrix, or with .trans of its transpose. */
template <int N> static inline void ax_emulated_ldmatrix(uint32_t (&r)[N], const void *row, bool trans)
{
  const uint64_t address = (uint64_t)(uintptr_t)row;
  const uint32_t words[2] = { (uint32_t)address, (uint32_t)(address >> 32) };
  const int lane = ax_emulate_here();
  unsigned turn;
  if (address % 16 && lane < 8 * N) ax_emulate_wrong("ldmatrix: a row that is not aligned to 16 bytes");
  const ax_emulated_lane *warp = ax_emulated_show(words, 2, &turn);
  for (int m = 0; m < N; m++) {
    uint16_t element[2];
    for (int e = 0; e < 2; e++) {
      const int i = lane / 4, k = lane % 4 * 2 + e, from_row = trans ? k : i, column = trans ? i : k;
      const uint32_t *w = warp[8 * m + from_row].shown[turn];
      memcpy(&element[e], (const char *)(uintptr_t)((uint64_t)w[1] << 32 | w[0]) + 2 * column, 2);
    }
    r[m] = element[0] | (uint32_t)element[1] << 16;
  }
}

/* ---- cp.async.{ca,cg}.shared.global dst, src, bytes, in ? bytes : 0 */

static inline void ax_emulated_copy(void *to, const void *from, int bytes, bool in)
{
  if ((uintptr_t)to % (unsigned)bytes || (uintptr_t)from % (unsigned)bytes)
    ax_emulate_wrong("cp.async: an address that is not aligned to the copy's size");
  memset(to, 0xff, (size_t)bytes);
  ax_emulated_thread().open.push_back({ (char *)to, (const char *)from, bytes, in });
}
static inline void ax_emulated_copy_commit(void)
{
  ax_emulated_lane &l = ax_emulated_thread();
  l.groups.push_back(std::move(l.open));
  l.open.clear();
}
/* Waits until at most `left` of the thread's groups are still running. */
static inline void ax_emulated_copy_wait(size_t left)
{
  ax_emulated_lane &l = ax_emulated_thread();
  while (l.groups.size() > left) {
    for (const auto &c : l.groups.front()) /* word by word: libraries' copies are not counted as traffic */
      for (int w = 0; w < c.bytes / 4; w++) ((uint32_t *)c.to)[w] = c.in ? ((const uint32_t *)c.from)[w] : 0;
    l.groups.erase(l.groups.begin());
  }
}

/* ---- dynamic shared memory */

enum { AX_EMULATED_SHARED = 227 << 10 }; /* the limit of a block for compute capability 9.0 */
struct ax_emulated_memory {
  alignas(1024) unsigned char data[AX_EMULATED_SHARED + 1024];
  size_t bytes;
  uint64_t block = 0;
  void check(void)
  {
    for (size_t i = bytes; i < bytes + 1024; i++)
      if (data[i] != 0xff) {
        ax_emulate_wrong("dynamic shared memory was written past its end");
        data[i] = 0xff;
      }
  }
};
inline ax_emulated_memory ax_emulated_shared;

/* Runs the kernel's thread with so many bytes of dynamic shared memory. */
template <class... P> static void ax_emulated_with_shared(size_t bytes, void (*kernel)(P...), P... arguments)
{
  ax_emulated_memory &m = ax_emulated_shared;
  if (m.block != ax_emulate_block()) {
    m.block = ax_emulate_block();
    m.bytes = bytes < AX_EMULATED_SHARED ? bytes : (size_t)AX_EMULATED_SHARED;
    memset(m.data, 0xff, m.bytes + 1024);
    if (bytes > AX_EMULATED_SHARED) ax_emulate_wrong("more dynamic shared memory than a block can have");
  }
  kernel(arguments...);
  m.check();
}

#endif

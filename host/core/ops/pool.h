/* The slots of the rows that pool, and which elements a window has: for the rules and for the
 * kernels. */
#ifndef AX_POOL_H
#define AX_POOL_H

#include "plugin.h"

/* Places in ax_attrs.i; the first four have one for each of the two dims. */
enum {
  AX_POOL_KERNEL = 0,
  AX_POOL_STRIDE = 2,
  AX_POOL_PADDING = 4,
  AX_POOL_DILATION = 6,
  AX_POOL_FLAGS = 8,
  AX_POOL_DIVISOR = 9
};
enum {
  AX_POOL_CEIL = 1,
  AX_POOL_COUNT_PADDING = 2,
  AX_POOL_ADAPTIVE = 4 /* KERNEL is the number of windows */
};

/* How many windows dim d of `size` elements has.  A last window that ceil mode adds must start
 * within the input or its left padding. */
static inline int64_t ax_pool_windows(const int64_t *i, int d, int64_t size)
{
  const int64_t kernel = i[AX_POOL_KERNEL + d], stride = i[AX_POOL_STRIDE + d],
                padding = i[AX_POOL_PADDING + d];
  if (i[AX_POOL_FLAGS] & AX_POOL_ADAPTIVE) return kernel;
  const bool ceil = i[AX_POOL_FLAGS] & AX_POOL_CEIL;
  const int64_t room = size + 2 * padding - i[AX_POOL_DILATION + d] * (kernel - 1) - 1;
  if (room < 0) return 0;
  int64_t n = (room + (ceil ? stride - 1 : 0)) / stride + 1;
  if (ceil && (n - 1) * stride >= size + padding) n--;
  return n;
}

/* Window `at` of dim d: its elements are lo, lo + step .. below hi; `full` counts its places with
 * those in the padding. */
typedef struct ax_window {
  int64_t lo, hi, step, full;
} ax_window;
static inline ax_window ax_pool_window(const int64_t *i, int d, int64_t size, int64_t at)
{
  const int64_t kernel = i[AX_POOL_KERNEL + d], step = i[AX_POOL_DILATION + d],
                padding = i[AX_POOL_PADDING + d];
  if (i[AX_POOL_FLAGS] & AX_POOL_ADAPTIVE) {
    const int64_t lo = at * size / kernel, hi = ((at + 1) * size + kernel - 1) / kernel;
    return (ax_window){ lo, hi, 1, hi - lo };
  }
  int64_t lo = at * i[AX_POOL_STRIDE + d] - padding, hi = lo + step * (kernel - 1) + 1;
  const int64_t end = hi < size + padding ? hi : size + padding, full = end - lo;
  if (lo < 0) lo += (-lo + step - 1) / step * step;
  if (hi > size) hi = size;
  return (ax_window){ lo, hi, step, full };
}

#endif

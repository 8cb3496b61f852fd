/* The windows of the rows that pool: for the rules and for the kernels. */
#ifndef AX_POOL_H
#define AX_POOL_H

#include "plugin.h"

enum {
  AX_POOL_CEIL = 1,
  AX_POOL_COUNT_PADDING = 2,
  AX_POOL_ADAPTIVE = 4 /* kernel is the number of windows */
};

/* What the rows of the family `pool` are called with. */
typedef struct ax_pool {
  int64_t kernel[2], stride[2], padding[2], dilation[2]; /* of the two dims */
  int64_t flags, divisor;                                /* 0: the mean's divisor is the window's size */
} ax_pool;

static inline ax_pool ax_pool_of(const ax_attrs *a)
{
  ax_pool p;
  for (int d = 0; d < 2; d++) {
    p.kernel[d] = a->pool.kernel[d];
    p.stride[d] = a->pool.stride[d];
    p.padding[d] = a->pool.padding[d];
    p.dilation[d] = a->pool.dilation[d];
  }
  p.flags = a->pool.flags;
  p.divisor = a->pool.divisor;
  return p;
}

/* How many windows dim d of `size` elements has.  A last window that ceil mode adds must start
 * within the input or its left padding. */
static inline int64_t ax_pool_windows(const ax_pool *p, int d, int64_t size)
{
  const int64_t kernel = p->kernel[d], stride = p->stride[d], padding = p->padding[d];
  if (p->flags & AX_POOL_ADAPTIVE) return kernel;
  const bool ceil = p->flags & AX_POOL_CEIL;
  const int64_t room = size + 2 * padding - p->dilation[d] * (kernel - 1) - 1;
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
static inline ax_window ax_pool_window(const ax_pool *p, int d, int64_t size, int64_t at)
{
  const int64_t kernel = p->kernel[d], step = p->dilation[d], padding = p->padding[d];
  if (p->flags & AX_POOL_ADAPTIVE) {
    const int64_t lo = at * size / kernel, hi = ((at + 1) * size + kernel - 1) / kernel;
    return (ax_window){ lo, hi, 1, hi - lo };
  }
  int64_t lo = at * p->stride[d] - padding, hi = lo + step * (kernel - 1) + 1;
  const int64_t end = hi < size + padding ? hi : size + padding, full = end - lo;
  if (lo < 0) lo += (-lo + step - 1) / step * step;
  if (hi > size) hi = size;
  return (ax_window){ lo, hi, step, full };
}

/* A window whose places are all in the padding has no element: its largest is -inf, from nowhere.
 * Only a dilated window can be such a one, since padding is at most half of the kernel. */
enum { AX_POOL_NOWHERE = -1 };

/* The place in a plane of `width` columns of a window's first element, with which the search for
 * the largest begins. */
static inline int32_t ax_pool_first(ax_window y, ax_window x, int64_t width)
{
  return y.lo < y.hi && x.lo < x.hi ? (int32_t)(y.lo * width + x.lo) : AX_POOL_NOWHERE;
}

#endif

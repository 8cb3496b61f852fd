/* Shape and stride arithmetic: pure functions over arrays. */
#include "core/core.h"

#include <stdio.h>

int64_t ax_shape_numel(int ndim, const int64_t *shape)
{
  int64_t n = 1;
  for (int d = 0; d < ndim; d++) n *= shape[d];
  return n;
}

ax_status ax_shape_checked_bytes(int ndim, const int64_t *shape, size_t item, int64_t *numel, size_t *bytes)
{
  char text[AX_SHAPE_TEXT];
  int64_t n = 1, b;
  bool empty = false;

  if (ndim < 0 || ndim > AX_MAX_DIMS)
    return ax_fail(AX_ESHAPE, "a tensor has at most %d dims, not %d", AX_MAX_DIMS, ndim);
  for (int d = 0; d < ndim; d++) {
    if (shape[d] < 0)
      return ax_fail(AX_ESHAPE, "size %lld of dim %d is negative", (long long)shape[d], d + 1);
    /* sizes of 0 do not hide the others: strides are products of those */
    if (shape[d] == 0) empty = true;
    else if (__builtin_mul_overflow(n, shape[d], &n)) goto too_large;
  }
  if (__builtin_mul_overflow(n, (int64_t)item, &b)) goto too_large;
  *numel = empty ? 0 : n;
  *bytes = empty ? 0 : (size_t)b;
  return AX_OK;
too_large:
  return ax_fail(AX_ESHAPE, "shape %s has too many elements to count",
                 ax_shape_text(ndim, shape, text, sizeof text));
}

const char *ax_shape_text(int ndim, const int64_t *shape, char *buf, size_t size)
{
  size_t at = (size_t)snprintf(buf, size, "[");
  for (int d = 0; d < ndim && at < size; d++)
    at += (size_t)snprintf(buf + at, size - at, "%s%lld", d ? ", " : "", (long long)shape[d]);
  if (at < size) snprintf(buf + at, size - at, "]");
  return buf;
}

ax_status ax_shape_broadcast(const char *op, int na, const int64_t *a, int nb, const int64_t *b, int *nd,
                             int64_t *out)
{
  const int n = na > nb ? na : nb;
  char ta[AX_SHAPE_TEXT], tb[AX_SHAPE_TEXT];

  for (int d = n - 1; d >= 0; d--) { /* from the end: `out` may be `a` or `b` */
    const int64_t sa = d < n - na ? 1 : a[d - (n - na)], sb = d < n - nb ? 1 : b[d - (n - nb)];
    if (sa != sb && sa != 1 && sb != 1)
      return ax_fail(AX_ESHAPE,
                     "%s: shapes %s and %s do not broadcast: dim %d from the end is %lld against %lld", op,
                     ax_shape_text(na, a, ta, sizeof ta), ax_shape_text(nb, b, tb, sizeof tb), n - d,
                     (long long)sa, (long long)sb);
    out[d] = sa == 1 ? sb : sa;
  }
  *nd = n;
  return AX_OK;
}

void ax_strides_contiguous(int ndim, const int64_t *shape, int64_t *strides)
{
  int64_t step = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    strides[d] = step;
    step *= shape[d] > 0 ? shape[d] : 1;
  }
}

bool ax_strides_are_contiguous(int ndim, const int64_t *shape, const int64_t *strides)
{
  int64_t step = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    if (shape[d] == 0) return true; /* no elements: any strides will do */
    if (shape[d] != 1 && strides[d] != step) return false;
    step *= shape[d];
  }
  return true;
}

void ax_strides_channels_last(int ndim, const int64_t *shape, int64_t *strides)
{
  int64_t step = shape[1] > 0 ? shape[1] : 1;
  strides[1] = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    if (d == 1) continue;
    strides[d] = step;
    step *= shape[d] > 0 ? shape[d] : 1;
  }
}

bool ax_strides_equal(int ndim, const int64_t *shape, const int64_t *a, const int64_t *b)
{
  for (int d = 0; d < ndim; d++)
    if (shape[d] != 1 && a[d] != b[d]) return false;
  return true;
}

bool ax_strides_are_channels_last(int ndim, const int64_t *shape, const int64_t *strides)
{
  int64_t wanted[AX_MAX_DIMS];
  if (ndim < 2) return ax_strides_are_contiguous(ndim, shape, strides);
  ax_strides_channels_last(ndim, shape, wanted);
  return ax_strides_equal(ndim, shape, strides, wanted);
}

int64_t ax_strides_padded(int ndim, const int64_t *shape, int64_t *strides)
{
  int64_t step = (shape[ndim - 1] + 63) / 64 * 64;
  strides[ndim - 1] = 1;
  for (int d = ndim - 2; d >= 0; d--) {
    strides[d] = step;
    step *= shape[d] > 0 ? shape[d] : 1;
  }
  return step;
}

bool ax_strides_are_padded(int ndim, const int64_t *shape, const int64_t *strides)
{
  int64_t wanted[AX_MAX_DIMS];
  if (ndim < 2 || shape[ndim - 1] % 64 == 0 || ax_strides_are_contiguous(ndim, shape, strides)) return false;
  ax_strides_padded(ndim, shape, wanted);
  return ax_strides_equal(ndim, shape, strides, wanted);
}

bool ax_strides_are_dense(int ndim, const int64_t *shape, const int64_t *strides)
{
  uint32_t left = 0;
  int64_t step = 1;
  for (int d = 0; d < ndim; d++) {
    if (shape[d] == 0) return true;
    if (shape[d] != 1) left |= 1u << d;
  }
  while (left) { /* the next dim out is the one that steps over what has been found so far */
    int next = -1;
    for (int d = ndim - 1; d >= 0 && next < 0; d--)
      if (left >> d & 1 && strides[d] == step) next = d;
    if (next < 0) return false;
    step *= shape[next];
    left &= ~(1u << next);
  }
  return true;
}

/* Walks both shapes from the innermost dim: a run of old dims whose strides chain (stride[d-1] =
 * shape[d] * stride[d]) is one block of memory that can be cut anew in any way; a new dim may not
 * span two blocks.  Old dims of size 1 have no stride to respect. */
bool ax_strides_for_view(int ndim, const int64_t *shape, const int64_t *strides, int new_ndim,
                         const int64_t *new_shape, int64_t *out)
{
  int64_t size[AX_MAX_DIMS], step[AX_MAX_DIMS];
  int n = 0, at = new_ndim - 1;

  if (ax_shape_numel(ndim, shape) == 0) {
    ax_strides_contiguous(new_ndim, new_shape, out);
    return true;
  }
  for (int d = 0; d < ndim; d++)
    if (shape[d] != 1) {
      size[n] = shape[d];
      step[n++] = strides[d];
    }
  for (int d = n - 1; d >= 0; d--) {
    const int64_t base = step[d];
    int64_t block = size[d], filled = 1;
    for (; d > 0 && step[d - 1] == size[d] * step[d]; d--) block *= size[d - 1];
    for (; at >= 0 && filled < block; at--) {
      out[at] = base * filled;
      filled *= new_shape[at];
    }
    if (filled != block) return false;
  }
  /* sizes of 1 are left */
  for (; at >= 0; at--) out[at] = at + 1 < new_ndim ? out[at + 1] * new_shape[at + 1] : 1;
  return true;
}

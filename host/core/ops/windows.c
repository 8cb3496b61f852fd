/* Rules and gradients of im2col and col2im.  As linear maps each is the transpose of the other. */
#include "core/ops/windows.h"
#include "core/ops/rule.h"

#define X INPUT(0)

/* Checks what the windows of an image, which has these dims, are made of; all: how many it has. */
static ax_status windows_of(const ax_infer *q, int dims, const int64_t *image, ax_windows *w, int64_t *all)
{
  static const char *const size[] = { "height", "width" };
  const ax_attrs *a = &q->a;
  ax_status st = AX_OK;

  for (int d = 0; d < 2; d++) {
    AX_TRY(need_within(q->name, "kernel_size", a->windows.kernel_size[d], 1, INT32_MAX));
    AX_TRY(need_within(q->name, "dilation", a->windows.dilation[d], 1, INT32_MAX));
    AX_TRY(need_within(q->name, "padding", a->windows.padding[d], 0, INT32_MAX));
    AX_TRY(need_within(q->name, "stride", a->windows.stride[d], 1, INT32_MAX));
    AX_TRY(need_within(q->name, size[d], image[dims - 2 + d], 1, INT32_MAX));
  }
  *w = ax_windows_of(a, dims, image);
  if (__builtin_mul_overflow(w->count[0], w->count[1], all))
    return ax_fail(AX_ESHAPE, "%s: images %lld x %lld have too many windows to count", q->name,
                   (long long)w->size[0], (long long)w->size[1]);
out:
  return st;
}

ax_status ax_infer_im2col(ax_infer *q)
{
  const int dims = X->ndim;
  ax_windows w;
  int64_t shape[3], *last = shape + dims - 3;

  if (dims != 3 && dims != 4)
    return ax_fail(AX_ESHAPE, "%s: expected (n, c, h, w) or (c, h, w), got %s", q->name, TEXT(X));
  const ax_status st = windows_of(q, dims, X->shape, &w, &last[1]);
  if (st != AX_OK) return st;
  for (int d = 0; d < 2; d++)
    if (w.count[d] < 1)
      return ax_fail(AX_ESHAPE, "%s: a window of %lld does not fit the padded input %s", q->name,
                     (long long)(w.dilation[d] * (w.kernel[d] - 1) + 1), TEXT(X));
  if (__builtin_mul_overflow(w.kernel[0] * w.kernel[1], w.c, &last[0]))
    return ax_fail(AX_ESHAPE, "%s: a column of %s has too many elements to count", q->name, TEXT(X));
  if (dims == 4) shape[0] = w.n;
  q->contiguous = 1;
  out_like(q, 0, (ax_dtype)X->dtype, dims - 1, shape);
  return AX_OK;
}

ax_status ax_infer_col2im(ax_infer *q)
{
  const int dims = X->ndim + 1; /* of the image */
  ax_windows w;
  int64_t image[4] = { 0 }, all;
  ax_status st = need_float(q, X);

  if (st != AX_OK) return st;
  if (dims != 3 && dims != 4)
    return ax_fail(AX_ESHAPE, "%s: expected (n, c kh kw, windows) or (c kh kw, windows), got %s", q->name,
                   TEXT(X));
  if (q->a.n_list != 2)
    return ax_fail(AX_EINVAL, "%s: output_size needs a height and a width, got %d sizes", q->name,
                   q->a.n_list < 0 ? 0 : q->a.n_list);
  if (dims == 4) image[0] = X->shape[0];
  memcpy(image + dims - 2, q->a.list, 2 * sizeof *image);
  st = windows_of(q, dims, image, &w, &all);
  if (st != AX_OK) return st;
  const int64_t taps = w.kernel[0] * w.kernel[1], *column = X->shape + dims - 3;
  if (column[0] % taps != 0)
    return ax_fail(AX_ESHAPE, "%s: a column must be a multiple of %lld x %lld elements long, got %s", q->name,
                   (long long)w.kernel[0], (long long)w.kernel[1], TEXT(X));
  if (column[1] != all || all == 0)
    return ax_fail(AX_ESHAPE,
                   "%s: an image of %lld x %lld has %lld x %lld windows, and the input has %lld columns",
                   q->name, (long long)w.size[0], (long long)w.size[1], (long long)w.count[0],
                   (long long)w.count[1], (long long)column[1]);
  image[dims - 3] = column[0] / taps;
  q->contiguous = 1;
  out_like(q, 0, (ax_dtype)X->dtype, dims, image);
  return AX_OK;
}

RULE(im2col)
{
  ax_attrs a = *A;
  a.n_list = 2;
  memcpy(a.list, META(0)->shape + META(0)->ndim - 2, 2 * sizeof *a.list);
  give(c, 0, call(c, AX_OP_COL2IM, 1, (ax_arg[]){ G }, &a));
}

RULE(col2im)
{
  ax_attrs a = *A;
  a.n_list = -1;
  give(c, 0, call(c, AX_OP_IM2COL, 1, (ax_arg[]){ G }, &a));
}

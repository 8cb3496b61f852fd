/* Rules and gradients of im2col and col2im.  As linear maps each is the transpose of the other. */
#include "core/ops/windows.h"
#include "core/ops/rule.h"

#define X INPUT(0)

/* Checks what the windows of images of these sizes are made of; windows: how many an image has. */
static ax_status windows_of(const ax_infer *q, const int64_t *image, ax_windows *w, int64_t *windows)
{
  static const char *const dim[] = { "height", "width" };
  const ax_attrs *a = &q->a;
  ax_status st = AX_OK;

  for (int d = 0; d < 2; d++) {
    AX_TRY(need_within(q->name, "kernel_size", a->windows.kernel_size[d], 1, INT32_MAX));
    AX_TRY(need_within(q->name, "dilation", a->windows.dilation[d], 1, INT32_MAX));
    AX_TRY(need_within(q->name, "padding", a->windows.padding[d], 0, INT32_MAX));
    AX_TRY(need_within(q->name, "stride", a->windows.stride[d], 1, INT32_MAX));
    AX_TRY(need_within(q->name, dim[d], image[2 + d], 1, INT32_MAX));
  }
  *w = ax_windows_of(a, image);
  for (int d = 0; d < 2; d++)
    if (w->count[d] < 1)
      return ax_fail(AX_ESHAPE,
                     "%s: a window of %lld does not fit images %lld x %lld with padding %lld x %lld", q->name,
                     (long long)(w->dilation[d] * (w->kernel[d] - 1) + 1), (long long)w->size[0],
                     (long long)w->size[1], (long long)w->padding[0], (long long)w->padding[1]);
  if (__builtin_mul_overflow(w->count[0], w->count[1], windows))
    return ax_fail(AX_ESHAPE, "%s: images %lld x %lld have too many windows to count", q->name,
                   (long long)w->size[0], (long long)w->size[1]);
out:
  return st;
}

ax_status ax_infer_im2col(ax_infer *q)
{
  ax_windows w;
  int64_t shape[3];

  if (X->ndim != 4) return ax_fail(AX_ESHAPE, "%s: expected (n, c, h, w), got %s", q->name, TEXT(X));
  const ax_status st = windows_of(q, X->shape, &w, &shape[2]);
  if (st != AX_OK) return st;
  shape[0] = w.n;
  if (__builtin_mul_overflow(w.kernel[0] * w.kernel[1], w.c, &shape[1]))
    return ax_fail(AX_ESHAPE, "%s: a column of %s has too many elements to count", q->name, TEXT(X));
  q->contiguous = 1;
  out_like(q, 0, (ax_dtype)X->dtype, 3, shape);
  return AX_OK;
}

ax_status ax_infer_col2im(ax_infer *q)
{
  ax_windows w;
  int64_t image[4], windows;
  ax_status st = need_float(q, X);

  if (st != AX_OK) return st;
  if (X->ndim != 3) return ax_fail(AX_ESHAPE, "%s: expected (n, c kh kw, windows), got %s", q->name, TEXT(X));
  if (q->a.n_list != 2)
    return ax_fail(AX_EINVAL, "%s: output_size needs a height and a width, got %d sizes", q->name,
                   q->a.n_list < 0 ? 0 : q->a.n_list);
  memcpy(image + 2, q->a.list, 2 * sizeof *image);
  image[0] = X->shape[0];
  image[1] = 0;
  st = windows_of(q, image, &w, &windows);
  if (st != AX_OK) return st;
  const int64_t taps = w.kernel[0] * w.kernel[1];
  if (X->shape[1] % taps != 0)
    return ax_fail(AX_ESHAPE, "%s: a column must be a multiple of %lld x %lld elements long, got %s", q->name,
                   (long long)w.kernel[0], (long long)w.kernel[1], TEXT(X));
  if (X->shape[2] != windows)
    return ax_fail(AX_ESHAPE, "%s: an image of %lld x %lld has %lld x %lld windows, and %s has %lld columns",
                   q->name, (long long)w.size[0], (long long)w.size[1], (long long)w.count[0],
                   (long long)w.count[1], TEXT(X), (long long)X->shape[2]);
  image[1] = X->shape[1] / taps;
  q->contiguous = 1;
  out_like(q, 0, (ax_dtype)X->dtype, 4, image);
  return AX_OK;
}

RULE(im2col)
{
  ax_attrs a = *A;
  a.n_list = 2;
  memcpy(a.list, META(0)->shape + 2, 2 * sizeof *a.list);
  give(c, 0, call(c, AX_OP_COL2IM, 1, (ax_arg[]){ G }, &a));
}

RULE(col2im)
{
  ax_attrs a = *A;
  a.n_list = -1;
  give(c, 0, call(c, AX_OP_IM2COL, 1, (ax_arg[]){ G }, &a));
}

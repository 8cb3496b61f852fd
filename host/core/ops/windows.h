/* The windows of images that im2col copies and col2im adds up: for the rules and for the
 * kernels. */
#ifndef AX_WINDOWS_H
#define AX_WINDOWS_H

#include "plugin.h"

/* Windows of a kernel over (n, c, h, w): rows x cols of them. */
typedef struct ax_windows {
  int64_t kernel[2], dilation[2], padding[2], stride[2]; /* of the two dims */
  int64_t n, c, size[2];                                 /* size: of an image */
  int64_t count[2];                                      /* of the windows along each dim */
} ax_windows;

/* image: (n, c, h, w) or (c, h, w), by its dims. */
static inline ax_windows ax_windows_of(const ax_attrs *a, int dims, const int64_t *image)
{
  ax_windows w = { .n = dims > 3 ? image[0] : 1, .c = image[dims - 3] };
  for (int d = 0; d < 2; d++) {
    w.kernel[d] = a->windows.kernel_size[d];
    w.dilation[d] = a->windows.dilation[d];
    w.padding[d] = a->windows.padding[d];
    w.stride[d] = a->windows.stride[d];
    w.size[d] = image[dims - 2 + d];
    const int64_t room = w.size[d] + 2 * w.padding[d] - w.dilation[d] * (w.kernel[d] - 1) - 1;
    w.count[d] = room < 0 ? 0 : room / w.stride[d] + 1;
  }
  return w;
}

#endif

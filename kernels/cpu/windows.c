/* im2col: the windows of images as columns.  col2im: columns added up to images.  A row of the
 * result of im2col holds one place of the kernel in all windows of a plane; with a stride of 1 its
 * pieces are runs of the image.  Threads share planes, so that one thread adds to an image, in the
 * order of the kernel's places.  Half types are summed in float32.  Memory bounds both kernels. */
#include "core/ops/windows.h"
#include "cpu.h"

#include <string.h>

typedef struct job {
  ax_windows w;
  const char *x;
  char *y;
  int64_t taps, windows, plane; /* elements of a kernel, a row of columns and an image's plane */
} job;

static job job_of(const ax_call *call, const ax_tensor *image)
{
  job j = { .w = ax_windows_of(call->a, image->ndim, image->shape),
            .x = ax_data(call->in[0]),
            .y = ax_data(call->out[0]) };
  j.taps = j.w.kernel[0] * j.w.kernel[1];
  j.windows = j.w.count[0] * j.w.count[1];
  j.plane = j.w.size[0] * j.w.size[1];
  return j;
}

/* The windows [*lo, *hi) along dim d whose place `tap` is inside the image, where window 0 has it
 * at *first. */
static void inside(const ax_windows *w, int d, int64_t tap, int64_t *first, int64_t *lo, int64_t *hi)
{
  const int64_t at = tap * w->dilation[d] - w->padding[d], stride = w->stride[d];

  *first = at;
  *lo = at < 0 ? (-at + stride - 1) / stride : 0;
  *hi = at < w->size[d] ? (w->size[d] - 1 - at) / stride + 1 : 0;
  if (*hi > w->count[d]) *hi = w->count[d];
  if (*lo > *hi) *lo = *hi;
}

/* ---- columns of images */

#define TAKE(T) \
  static void take_##T(int64_t lo, int64_t hi, void *ud) /* rows of columns */ \
  { \
    const job *j = ud; \
    const int64_t across = j->w.count[1], stride = j->w.stride[1]; \
    for (int64_t at = lo; at < hi; at++) { \
      const int64_t tap = at % j->taps; \
      const T *plane = (const T *)j->x + at / j->taps * j->plane; \
      T *to = (T *)j->y + at * j->windows; \
      int64_t y0, top, bottom, x0, left, right; \
      inside(&j->w, 0, tap / j->w.kernel[1], &y0, &top, &bottom); \
      inside(&j->w, 1, tap % j->w.kernel[1], &x0, &left, &right); \
      memset(to, 0, (size_t)(top * across) * sizeof(T)); \
      for (int64_t r = top; r < bottom; r++) { \
        const T *from = plane + (y0 + r * j->w.stride[0]) * j->w.size[1] + x0; \
        T *row = to + r * across; \
        memset(row, 0, (size_t)left * sizeof(T)); \
        if (stride == 1 && right > left) \
          memcpy(row + left, from + left, (size_t)(right - left) * sizeof(T)); \
        else \
          for (int64_t q = left; q < right; q++) row[q] = from[q * stride]; \
        memset(row + right, 0, (size_t)(across - right) * sizeof(T)); \
      } \
      memset(to + bottom * across, 0, (size_t)((j->w.count[0] - bottom) * across) * sizeof(T)); \
    } \
  }
TAKE(uint8_t)
TAKE(uint16_t)
TAKE(uint32_t)
TAKE(uint64_t)

ax_status ax_cpu_im2col(const ax_call *call)
{
  const ax_tensor *y = call->out[0];
  job j = job_of(call, call->in[0]);
  const size_t size = ax_dtype_size((ax_dtype)y->dtype);

  if (y->numel == 0) return AX_OK;
  ax_cpu_for(j.w.n * j.w.c * j.taps, y->numel,
             size == 1   ? take_uint8_t
             : size == 2 ? take_uint16_t
             : size == 4 ? take_uint32_t
                         : take_uint64_t,
             &j);
  return AX_OK;
}

/* ---- images of columns */

#define ADD(S, T) \
  static void add_##S(int64_t lo, int64_t hi, void *ud) /* planes */ \
  { \
    const job *j = ud; \
    const int64_t across = j->w.count[1], stride = j->w.stride[1]; \
    memset((T *)j->y + lo * j->plane, 0, (size_t)((hi - lo) * j->plane) * sizeof(T)); \
    for (int64_t at = lo * j->taps; at < hi * j->taps; at++) { \
      const int64_t tap = at % j->taps; \
      const T *columns = (const T *)j->x + at * j->windows; \
      T *plane = (T *)j->y + at / j->taps * j->plane; \
      int64_t y0, top, bottom, x0, left, right; \
      inside(&j->w, 0, tap / j->w.kernel[1], &y0, &top, &bottom); \
      inside(&j->w, 1, tap % j->w.kernel[1], &x0, &left, &right); \
      for (int64_t r = top; r < bottom; r++) { \
        const T *from = columns + r * across; \
        T *to = plane + (y0 + r * j->w.stride[0]) * j->w.size[1] + x0; \
        if (stride == 1) { \
          AX_SIMD \
          for (int64_t q = left; q < right; q++) to[q] += from[q]; \
        } else \
          for (int64_t q = left; q < right; q++) to[q * stride] += from[q]; \
      } \
    } \
  }
ADD(f32, float)
ADD(f64, double)

ax_status ax_cpu_col2im(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  const ax_dtype type = (ax_dtype)x->dtype;
  job j = job_of(call, y);
  const bool half = ax_is_half(type);
  const size_t bytes = (size_t)(x->numel + y->numel) * sizeof(float);
  void *own = NULL;

  if (y->numel == 0) return AX_OK;
  if (half) {
    const ax_status st = ax_alloc(bytes, &own);
    if (st != AX_OK) return st;
    ax_cpu_half_to_float(type, ax_data(x), 2, own, x->numel);
    j.x = own;
    j.y = (char *)((float *)own + x->numel);
  }
  ax_cpu_for(j.w.n * j.w.c, x->numel, type == AX_F64 ? add_f64 : add_f32, &j);
  if (half) {
    ax_cpu_float_to_half(type, (const float *)(const void *)j.y, ax_data(y), 2, y->numel);
    ax_free(own, bytes);
  }
  return AX_OK;
}

/* Images at given positions: each result is a sum of neighbours (1, 2 or 4 along each dim), whose
 * places and weights follow from the position.  Where channels are innermost the inner loops run
 * along them; where planes follow each other, along positions (grid_sample_planes.inc).  Half types
 * are converted to float32.  Threads share positions (forward) or whole images (gradients, since
 * positions may fall together); memory bounds the kernel. */
#include "cpu.h"

#include <math.h>

#include "core/ops/grid_sample.h"

enum { BORDER = 1, REFLECTION = 2 };    /* padding_mode; 0 is zeros */
enum { MOST_DIMS = 3, MOST_TAPS = 64 }; /* bicubic: 4 x 4 x 4 */

typedef struct job {
  int dims;
  int64_t n, c, size[MOST_DIMS], plane, positions; /* sizes of x; its elements but channels; of the grid */
  int64_t mode, padding;
  bool align;
  const void *x, *grid, *g;
  void *y, *dx, *dgrid;
} job;

enum { PLANE_BLOCK = 256 };
static inline float floor_f32(float x) { return floorf(x); }
static inline double floor_f64(double x) { return floor(x); }
static inline float nearbyint_f32(float x) { return nearbyintf(x); }
static inline double nearbyint_f64(double x) { return nearbyint(x); }

#define T float
#define I int32_t
#define NAME(name) name##_f32
#ifdef __AVX512F__
#define MIX_VECTORS 16
#endif
#include "grid_sample_of.inc"

#include "grid_sample_planes.inc"
#undef MIX_VECTORS
#undef T
#undef I
#undef NAME
#define T double
#define I int64_t
#define NAME(name) name##_f64
#include "grid_sample_of.inc"

#include "grid_sample_planes.inc"
#undef T
#undef I
#undef NAME

static job job_of(const ax_call *call, const ax_tensor *x, const ax_tensor *grid)
{
  job j = { .dims = x->ndim - 2,
            .n = x->shape[0],
            .c = x->shape[1],
            .plane = 1,
            .positions = 1,
            .mode = call->a->grid_sample.mode,
            .padding = call->a->grid_sample.padding_mode,
            .align = call->a->grid_sample.align_corners };
  for (int d = 0; d < j.dims; d++) {
    j.size[d] = x->shape[2 + d];
    j.plane *= j.size[d];
    j.positions *= grid->shape[1 + d];
  }
  return j;
}

/* ---- half types in float32 */

typedef struct widened {
  void *memory;
  size_t bytes;
  float *at[5];
} widened;

/* Room for n tensors, in which those before `read` are converted. */
static ax_status widen(int n, int read, const ax_tensor *const *t, widened *w)
{
  int64_t all = 0;
  for (int k = 0; k < n; k++) all += t[k]->numel;
  w->bytes = (size_t)all * sizeof(float);
  const ax_status st = ax_alloc(w->bytes, &w->memory);
  if (st != AX_OK) return st;
  float *at = w->memory;
  for (int k = 0; k < n; k++, at += t[k - 1]->numel) {
    w->at[k] = at;
    if (k < read) ax_cpu_half_to_float((ax_dtype)t[k]->dtype, ax_data(t[k]), 2, at, t[k]->numel);
  }
  return AX_OK;
}

static void narrow(int k, const ax_tensor *t, const widened *w)
{
  ax_cpu_float_to_half((ax_dtype)t->dtype, w->at[k], ax_data(t), 2, t->numel);
}

ax_status ax_cpu_grid_sample(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *grid = call->in[1], *y = call->out[0];
  const bool half = ax_is_half((ax_dtype)x->dtype);
  job j = job_of(call, x, grid);
  widened w = { 0 };

  if (y->numel == 0) return AX_OK;
  j.x = ax_data(x), j.grid = ax_data(grid), j.y = ax_data(y);
  if (half) {
    const ax_status st = widen(3, 2, (const ax_tensor *const[]){ x, grid, y }, &w);
    if (st != AX_OK) return st;
    j.x = w.at[0], j.grid = w.at[1], j.y = w.at[2];
  }
  if (ax_grid_sample_by_planes(x, j.mode) && ax_tensor_is_contiguous(x) && ax_tensor_is_contiguous(y))
    ax_cpu_for(j.n * ((j.positions + PLANE_BLOCK - 1) / PLANE_BLOCK), 4 * y->numel,
               x->dtype == AX_F64 ? sample_planes_f64 : sample_planes_f32, &j);
  else ax_cpu_for(j.n * j.positions, 4 * y->numel, x->dtype == AX_F64 ? sample_f64 : sample_f32, &j);
  if (half) {
    narrow(2, y, &w);
    ax_free(w.memory, w.bytes);
  }
  return AX_OK;
}

ax_status ax_cpu__grid_sample_backward(const ax_call *call)
{
  const ax_tensor *g = call->in[0], *x = call->in[1], *grid = call->in[2], *dx = call->out[0],
                  *dgrid = call->out[1];
  const bool half = ax_is_half((ax_dtype)x->dtype), wide = x->dtype == AX_F64;
  const size_t item = wide ? sizeof(double) : sizeof(float);
  job j = job_of(call, x, grid);
  widened w = { 0 };

  j.g = ax_data(g), j.x = ax_data(x), j.grid = ax_data(grid), j.dx = ax_data(dx), j.dgrid = ax_data(dgrid);
  if (half) {
    const ax_status st = widen(5, 3, (const ax_tensor *const[]){ g, x, grid, dx, dgrid }, &w);
    if (st != AX_OK) return st;
    j.g = w.at[0], j.x = w.at[1], j.grid = w.at[2], j.dx = w.at[3], j.dgrid = w.at[4];
  }
  memset(j.dx, 0, (size_t)dx->numel * item);
  memset(j.dgrid, 0, (size_t)dgrid->numel * item);
  if (g->numel) ax_cpu_for(j.n, 8 * g->numel, wide ? backward_f64 : backward_f32, &j);
  if (half) {
    narrow(3, dx, &w);
    narrow(4, dgrid, &w);
    ax_free(w.memory, w.bytes);
  }
  return AX_OK;
}

/* cumsum along a dim, y[i] = x[0] + .. + x[i], forward and from the end (for its gradient).
 * Floats add in float64.  Threads share lines, or tiles of neighbouring columns; memory bounds the
 * kernel. */
#include "cpu.h"

#define TILE 256 /* columns that are computed together */

typedef struct job {
  int64_t n, inner, across; /* the dim, the elements within one step of it, and the tiles of those */
  ax_dtype dtype;
  bool from_end;
  const char *in;
  char *out;
} job;

/* Scans `cols` neighbouring columns of n rows that are `step` elements apart, from element `at`
 * on. */
#define SCAN(S, T, A, LOAD, STORE) \
  static void scan_##S(const job *j, int64_t at, int64_t cols) \
  { \
    const T *x = (const T *)j->in + at; \
    T *y = (T *)j->out + at; \
    A sum[TILE] = { 0 }; \
    for (int64_t k = 0; k < j->n; k++) { \
      const int64_t r = (j->from_end ? j->n - 1 - k : k) * j->inner; \
      AX_SIMD \
      for (int64_t c = 0; c < cols; c++) { \
        sum[c] += LOAD(x[r + c]); \
        y[r + c] = STORE(sum[c]); \
      } \
    } \
  }
#define AS_IS(x) (x)
#define F16_TO(x) ((double)ax_half_to_float(x))
#define TO_F16(x) ax_float_to_half((float)(x))
#define BF16_TO(x) ((double)ax_bf16_to_float(x))
#define TO_BF16(x) ax_float_to_bf16((float)(x))
SCAN(f32, float, double, (double), (float))
SCAN(f64, double, double, AS_IS, AS_IS)
SCAN(f16, uint16_t, double, F16_TO, TO_F16)
SCAN(bf16, uint16_t, double, BF16_TO, TO_BF16)
SCAN(i64, int64_t, uint64_t, (uint64_t), (int64_t)) /* wraps around */

static void scan_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  for (int64_t t = lo; t < hi; t++) {
    const int64_t column = t % j->across * TILE, at = t / j->across * j->n * j->inner + column;
    const int64_t cols = j->inner - column < TILE ? j->inner - column : TILE;
    switch (j->dtype) {
    case AX_F32: scan_f32(j, at, cols); break;
    case AX_F64: scan_f64(j, at, cols); break;
    case AX_F16: scan_f16(j, at, cols); break;
    case AX_BF16: scan_bf16(j, at, cols); break;
    default: scan_i64(j, at, cols);
    }
  }
}

static ax_status scan(const ax_call *call, bool from_end)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  const int64_t dim = call->a->scan.dim;
  job j = { .n = x->ndim ? x->shape[dim] : 1,
            .inner = 1,
            .dtype = (ax_dtype)y->dtype,
            .from_end = from_end,
            .in = ax_data(x),
            .out = ax_data(y) };

  if (y->numel == 0) return AX_OK;
  for (int d = (int)dim + 1; d < x->ndim; d++) j.inner *= x->shape[d];
  j.across = (j.inner + TILE - 1) / TILE;
  ax_cpu_for(y->numel / (j.n * j.inner) * j.across, y->numel, scan_range, &j);
  return AX_OK;
}

ax_status ax_cpu_cumsum(const ax_call *call) { return scan(call, false); }
ax_status ax_cpu__cumsum_backward(const ax_call *call) { return scan(call, true); }

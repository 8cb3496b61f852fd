/* cumsum along a dim, y[i] = x[0] + .. + x[i], forward and from the end (for its gradient), cumprod
 * and its gradient.  Floats are added and multiplied in float64.  Threads share lines, or tiles of
 * neighbouring columns; memory bounds the kernels. */
#include "cpu.h"

#define TILE 256 /* columns that are computed together */
#define LINES 8  /* lines without columns: each addition of one waits for the former */

typedef struct job {
  int64_t n, inner, across; /* the dim, the elements within one step of it, and the tiles of those */
  ax_dtype dtype;
  bool from_end, multiplies;
  const char *in;
  char *out;
} job;

/* Scans `cols` neighbouring columns of n rows, from element `at` on; where rows have one column,
 * LINES or 1 neighbouring lines. */
#define SCAN(S, T, A, LOAD, STORE, FIRST, OP) \
  static void scan_##S(const job *j, int64_t at, int64_t cols) \
  { \
    const T *x = (const T *)j->in + at; \
    T *y = (T *)j->out + at; \
    A sum[TILE]; \
    for (int64_t c = 0; c < cols; c++) sum[c] = FIRST; \
    for (int64_t k = 0; k < j->n; k++) { \
      const int64_t r = (j->from_end ? j->n - 1 - k : k) * j->inner; \
      AX_SIMD \
      for (int64_t c = 0; c < cols; c++) { \
        sum[c] OP LOAD(x[r + c]); \
        y[r + c] = STORE(sum[c]); \
      } \
    } \
  } \
  static inline __attribute__((always_inline)) void lines_of_##S(const job *j, int64_t at, const int lines) \
  { \
    A sum[LINES]; \
    for (int c = 0; c < lines; c++) sum[c] = FIRST; \
    for (int64_t k = 0; k < j->n; k++) { \
      const int64_t r = at + (j->from_end ? j->n - 1 - k : k); \
      _Pragma("GCC unroll 8") for (int c = 0; c < lines; c++) \
      { \
        sum[c] OP LOAD(((const T *)j->in)[r + c * j->n]); \
        ((T *)j->out)[r + c * j->n] = STORE(sum[c]); \
      } \
    } \
  } \
  static void lines_##S(const job *j, int64_t at, int64_t lines) \
  { \
    if (lines == LINES) { \
      lines_of_##S(j, at, LINES); \
      return; \
    } \
    for (int64_t l = 0; l < lines; l++) lines_of_##S(j, at + l * j->n, 1); \
  }
#define AS_IS(x) (x)
#define F16_TO(x) ((double)ax_half_to_float(x))
#define TO_F16(x) ax_float_to_half((float)(x))
#define BF16_TO(x) ((double)ax_bf16_to_float(x))
#define TO_BF16(x) ax_float_to_bf16((float)(x))
/* int64_t wraps around */
#define OF_TYPES(name, FIRST, OP) \
  SCAN(name##_f32, float, double, (double), (float), FIRST, OP) \
  SCAN(name##_f64, double, double, AS_IS, AS_IS, FIRST, OP) \
  SCAN(name##_f16, uint16_t, double, F16_TO, TO_F16, FIRST, OP) \
  SCAN(name##_bf16, uint16_t, double, BF16_TO, TO_BF16, FIRST, OP) \
  SCAN(name##_i64, int64_t, uint64_t, (uint64_t), (int64_t), FIRST, OP)
OF_TYPES(sums, 0, +=)
OF_TYPES(products, 1, *=)

typedef void (*scan_fn)(const job *j, int64_t at, int64_t some);
#define FLOAT_OF(d, f) (d == AX_F32 ? f##_f32 : d == AX_F64 ? f##_f64 : d == AX_F16 ? f##_f16 : f##_bf16)
#define OF_TYPE(d, f) (d == AX_I64 ? f##_i64 : FLOAT_OF(d, f))

static void scan_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  const scan_fn columns = j->multiplies ? OF_TYPE(j->dtype, scan_products) : OF_TYPE(j->dtype, scan_sums),
                lines = j->multiplies ? OF_TYPE(j->dtype, lines_products) : OF_TYPE(j->dtype, lines_sums);
  if (j->inner == 1) {
    for (int64_t t = lo; t < hi; t += LINES) lines(j, t * j->n, hi - t < LINES ? hi - t : LINES);
    return;
  }
  for (int64_t t = lo; t < hi; t++) {
    const int64_t column = t % j->across * TILE;
    columns(j, t / j->across * j->n * j->inner + column, j->inner - column < TILE ? j->inner - column : TILE);
  }
}

static ax_status scan(const ax_call *call, int64_t dim, bool from_end, bool multiplies)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  job j = { .n = x->ndim ? x->shape[dim] : 1,
            .inner = 1,
            .dtype = (ax_dtype)y->dtype,
            .from_end = from_end,
            .multiplies = multiplies,
            .in = ax_data(x),
            .out = ax_data(y) };

  if (y->numel == 0) return AX_OK;
  for (int d = (int)dim + 1; d < x->ndim; d++) j.inner *= x->shape[d];
  j.across = (j.inner + TILE - 1) / TILE;
  ax_cpu_for(y->numel / (j.n * j.inner) * j.across, y->numel, scan_range, &j);
  return AX_OK;
}

ax_status ax_cpu_cumsum(const ax_call *call) { return scan(call, call->a->scan.dim, false, false); }
ax_status ax_cpu__cumsum_backward(const ax_call *call) { return scan(call, call->a->scan.dim, true, false); }
ax_status ax_cpu__cumprod(const ax_call *call) { return scan(call, call->a->cumprod_of.dim, false, true); }

/* ---- the gradient of cumprod: y[i - 1] s[i], where s[i] = g[i] + x[i + 1] s[i + 1] */

typedef struct slopes {
  int64_t n, inner, across;
  const void *g, *x, *y;
  void *d;
  void (*columns)(const struct slopes *j, int64_t at, int64_t cols);
  void (*lines)(const struct slopes *j, int64_t at, int64_t lines);
} slopes;

/* `cols` columns of n rows, from element `at` on.  Rows are `down` elements apart, columns `by`. */
#define SLOPES(S, T, LOAD, STORE) \
  static inline __attribute__((always_inline)) void slopes_of_##S(const slopes *j, int64_t at, int64_t cols, \
                                                                  int64_t down, int64_t by) \
  { \
    const T *g = (const T *)j->g + at, *x = (const T *)j->x + at, *y = (const T *)j->y + at; \
    T *d = (T *)j->d + at; \
    double s[TILE]; \
    for (int64_t c = 0; c < cols; c++) s[c] = LOAD(g[(j->n - 1) * down + c * by]); \
    for (int64_t r = (j->n - 1) * down; r > 0; r -= down) { \
      AX_SIMD \
      for (int64_t c = 0; c < cols; c++) { \
        const int64_t now = r + c * by, former = now - down; \
        d[now] = STORE(LOAD(y[former]) * s[c]); \
        s[c] = LOAD(g[former]) + LOAD(x[now]) * s[c]; \
      } \
    } \
    for (int64_t c = 0; c < cols; c++) d[c * by] = STORE(s[c]); \
  } \
  static void slope_columns_##S(const slopes *j, int64_t at, int64_t cols) \
  { \
    slopes_of_##S(j, at, cols, j->inner, 1); \
  } \
  static void slope_lines_##S(const slopes *j, int64_t at, int64_t lines) \
  { \
    if (lines == LINES) slopes_of_##S(j, at, LINES, 1, j->n); \
    else \
      for (int64_t l = 0; l < lines; l++) slopes_of_##S(j, at + l * j->n, 1, 1, 1); \
  }
SLOPES(f32, float, (double), (float))
SLOPES(f64, double, AS_IS, AS_IS)
SLOPES(f16, uint16_t, F16_TO, TO_F16)
SLOPES(bf16, uint16_t, BF16_TO, TO_BF16)

static void slopes_range(int64_t lo, int64_t hi, void *ud)
{
  const slopes *j = ud;
  if (j->inner == 1) {
    for (int64_t t = lo; t < hi; t += LINES) j->lines(j, t * j->n, hi - t < LINES ? hi - t : LINES);
    return;
  }
  for (int64_t t = lo; t < hi; t++) {
    const int64_t column = t % j->across * TILE, left = j->inner - column;
    j->columns(j, t / j->across * j->n * j->inner + column, left < TILE ? left : TILE);
  }
}

ax_status ax_cpu__cumprod_backward(const ax_call *call)
{
  const ax_tensor *x = call->in[1], *d = call->out[0];
  const int64_t dim = call->a->cumprod_backward.dim;
  const ax_dtype dtype = (ax_dtype)d->dtype;
  slopes j = { .n = x->ndim ? x->shape[dim] : 1,
               .inner = 1,
               .g = ax_data(call->in[0]),
               .x = ax_data(x),
               .y = ax_data(call->in[2]),
               .d = ax_data(d) };

  if (d->numel == 0) return AX_OK;
  j.columns = FLOAT_OF(dtype, slope_columns);
  j.lines = FLOAT_OF(dtype, slope_lines);
  for (int i = (int)dim + 1; i < x->ndim; i++) j.inner *= x->shape[i];
  j.across = (j.inner + TILE - 1) / TILE;
  ax_cpu_for(d->numel / (j.n * j.inner) * j.across, d->numel, slopes_range, &j);
  return AX_OK;
}

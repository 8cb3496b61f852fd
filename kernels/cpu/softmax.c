/* softmax and log_softmax along one dim, and their gradients.  The tensor is (outer, n, inner) around that dim.  Where inner is 1 a
 * row is a run of memory; else a tile of neighbouring columns is carried along, row after row.  float32 and the half types
 * compute in float32, float64 in itself. */
#include "rows.h"

#define TILE 64 /* columns carried together */

typedef struct shape { int64_t outer, n, inner; } shape;

static shape around(const ax_tensor *x, int64_t dim)
{
  shape s = { 1, 1, 1 };
  for (int d = 0; d < x->ndim; d++)
    if (d < dim) s.outer *= x->shape[d];
    else if (d == dim) s.n = x->shape[d];
    else s.inner *= x->shape[d];
  return s;
}

/* ---- rows */

#define ROWS(S, T, TERM) \
  static void softmax_row_##S(const T *x, int64_t n, T *y) \
  { \
    /* a row of -infinity gives NaN, as in PyTorch: (-inf) - (-inf) */ \
    const T scale = (T)1 / exps_##S(x, n, top_##S(x, n), y); \
    AX_SIMD \
    for (int64_t i = 0; i < n; i++) y[i] *= scale; \
  } \
  static void log_softmax_row_##S(const T *x, int64_t n, T *y) \
  { \
    const T top = top_##S(x, n), all = ax_row_log_##S(exps_##S(x, n, top, NULL)); \
    AX_SIMD \
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - top) - all; \
  } \
  /* g is the gradient, y the forward result */ \
  static void softmax_back_##S(const T *g, const T *y, int64_t n, T *out) \
  { \
    T lane[AX_LANES] = {0}, s = 0; \
    int64_t i = 0; \
    for (; i + AX_LANES <= n; i += AX_LANES) { \
      AX_NEXT_ROW(g + n + i); \
      AX_NEXT_ROW(y + n + i); \
      AX_SIMD \
      for (int j = 0; j < AX_LANES; j++) lane[j] += g[i + j] * y[i + j]; \
    } \
    for (; i < n; i++) s += g[i] * y[i]; \
    s += fold_##S(lane); \
    AX_SIMD \
    for (i = 0; i < n; i++) out[i] = y[i] * (g[i] - s); \
  } \
  static void log_softmax_back_##S(const T *g, const T *y, int64_t n, T *out) \
  { \
    T lane[AX_LANES] = {0}, s = 0; \
    int64_t i = 0; \
    for (; i + AX_LANES <= n; i += AX_LANES) { \
      AX_NEXT_ROW(g + n + i); \
      AX_NEXT_ROW(y + n + i); \
      AX_SIMD \
      for (int j = 0; j < AX_LANES; j++) lane[j] += g[i + j]; \
    } \
    for (; i < n; i++) s += g[i]; \
    s += fold_##S(lane); \
    AX_SIMD \
    for (i = 0; i < n; i++) out[i] = g[i] - TERM(y[i], 0) * s; \
  }
ROWS(f32, float, AX_TERM_f32)
ROWS(f64, double, AX_TERM_f64)

/* ---- columns: `n` rows of up to TILE columns, `step` elements apart */

#define COLUMNS(S, T, EXP) \
  static void softmax_columns_##S(const T *x, int64_t n, int64_t step, int64_t cols, T *y, bool logs) \
  { \
    T top[TILE], sum[TILE] = {0}; \
    memcpy(top, x, (size_t)cols * sizeof(T)); \
    for (int64_t r = 1; r < n; r++) { \
      AX_SIMD \
      for (int64_t j = 0; j < cols; j++) top[j] = x[r * step + j] > top[j] ? x[r * step + j] : top[j]; \
    } \
    for (int64_t r = 0; r < n; r++) { \
      AX_SIMD \
      for (int64_t j = 0; j < cols; j++) { \
        const T d = x[r * step + j] - top[j], e = EXP(d); \
        y[r * step + j] = logs ? d : e; \
        sum[j] += e; \
      } \
    } \
    for (int64_t j = 0; j < cols; j++) sum[j] = logs ? ax_row_log_##S(sum[j]) : (T)1 / sum[j]; \
    for (int64_t r = 0; r < n; r++) { \
      AX_SIMD \
      for (int64_t j = 0; j < cols; j++) y[r * step + j] = logs ? y[r * step + j] - sum[j] : y[r * step + j] * sum[j]; \
    } \
  } \
  static void back_columns_##S(const T *g, const T *y, int64_t n, int64_t step, int64_t cols, T *out, bool logs) \
  { \
    T sum[TILE] = {0}; \
    for (int64_t r = 0; r < n; r++) { \
      AX_SIMD \
      for (int64_t j = 0; j < cols; j++) sum[j] += logs ? g[r * step + j] : g[r * step + j] * y[r * step + j]; \
    } \
    for (int64_t r = 0; r < n; r++) { \
      if (logs) { \
        AX_SIMD \
        for (int64_t j = 0; j < cols; j++) out[r * step + j] = g[r * step + j] - EXP(y[r * step + j]) * sum[j]; \
      } else { \
        AX_SIMD \
        for (int64_t j = 0; j < cols; j++) out[r * step + j] = y[r * step + j] * (g[r * step + j] - sum[j]); \
      } \
    } \
  }
COLUMNS(f32, float, ax_exp_f32)
COLUMNS(f64, double, exp)

/* ---- driver: work is shared by rows, or by tiles of columns */

typedef struct job {
  shape s;
  ax_dtype dtype;
  bool logs, back;
  bool stream; /* float rows go past the caches */
  const char *in[2];
  char *out;
} job;

static void forward(const job *j, ax_dtype d, const void *x, void *y, int64_t cols)
{
  const int64_t n = j->s.n, step = j->s.inner;
  if (step > 1) {
    if (d == AX_F64) softmax_columns_f64(x, n, step, cols, y, j->logs);
    else softmax_columns_f32(x, n, step, cols, y, j->logs);
  } else if (d == AX_F64) (j->logs ? log_softmax_row_f64 : softmax_row_f64)(x, n, y);
  else (j->logs ? log_softmax_row_f32 : softmax_row_f32)(x, n, y);
}

static void backward(const job *j, ax_dtype d, const void *g, const void *y, void *out, int64_t cols)
{
  const int64_t n = j->s.n, step = j->s.inner;
  if (step > 1) {
    if (d == AX_F64) back_columns_f64(g, y, n, step, cols, out, j->logs);
    else back_columns_f32(g, y, n, step, cols, out, j->logs);
  } else if (d == AX_F64) (j->logs ? log_softmax_back_f64 : softmax_back_f64)(g, y, n, out);
  else (j->logs ? log_softmax_back_f32 : softmax_back_f32)(g, y, n, out);
}

static void softmax_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  const int64_t across = (j->s.inner + TILE - 1) / TILE, size = (int64_t)ax_dtype_size(j->dtype);
  float buffer[AX_ROW_MAX] __attribute__((aligned(64)));

  for (int64_t t = lo; t < hi; t++) {
    const int64_t column = t % across * TILE, cols = j->s.inner - column < TILE ? j->s.inner - column : TILE;
    const int64_t at = (t / across * j->s.n * j->s.inner + column) * size;
    float *out = (float *)(j->out + at), *row = ax_row_place(j->stream, out, j->s.n, buffer);
    if (j->back) backward(j, j->dtype, j->in[0] + at, j->in[1] + at, row, cols);
    else forward(j, j->dtype, j->in[0] + at, row, cols);
    ax_row_done(out, row, j->s.n);
  }
  if (j->stream) ax_cpu_stream_end();
}

static ax_status run(const ax_call *call, int64_t dim, bool logs, bool back)
{
  const ax_tensor *y = call->out[0];
  const ax_dtype d = (ax_dtype)y->dtype;
  job j = { .s = around(y, dim), .dtype = d, .logs = logs, .back = back, .out = ax_data(y) };
  const bool half = d == AX_F16 || d == AX_BF16;
  const size_t bytes = (size_t)y->numel * sizeof(float);
  void *wide[3] = { NULL, NULL, NULL }; /* half types: the inputs and the result in float32 */
  ax_status st = AX_OK;

  if (!ax_is_float(d)) return ax_cpu_no_dtype(call->op, d);
  if (y->numel == 0) return AX_OK;
  for (int k = 0; k <= back; k++) {
    j.in[k] = ax_data(call->in[k]);
    if (!half) continue;
    AX_TRY(ax_alloc(bytes, &wide[k]));
    ax_cpu_half_to_float(d, j.in[k], 2, wide[k], y->numel);
    j.in[k] = wide[k];
  }
  if (half) {
    AX_TRY(ax_alloc(bytes, &wide[2]));
    j.out = wide[2];
    j.dtype = AX_F32;
  }
  j.stream = d == AX_F32 && j.s.inner == 1 && ax_cpu_streams((int64_t)bytes);
  ax_cpu_for(j.s.outer * ((j.s.inner + TILE - 1) / TILE), y->numel * 4, softmax_range, &j);
  if (half) ax_cpu_float_to_half(d, wide[2], ax_data(y), 2, y->numel);
out:
  for (int k = 0; k < 3; k++)
    if (wide[k]) ax_free(wide[k], bytes);
  return st;
}

ax_status ax_cpu_softmax(const ax_call *call) { return run(call, call->a->i[0], false, false); }
ax_status ax_cpu_log_softmax(const ax_call *call) { return run(call, call->a->i[0], true, false); }
ax_status ax_cpu__softmax_backward(const ax_call *call) { return run(call, call->a->i[0], false, true); }
ax_status ax_cpu__log_softmax_backward(const ax_call *call) { return run(call, call->a->i[0], true, true); }

/* softmax and log_softmax along one dim, and their gradients:
 *     y = exp(x - max) / sum(exp(x - max))        dx = y (g - sum(g y))
 *     y = x - max - log(sum(exp(x - max)))        dx = g - exp(y) sum(g)
 *
 * The tensor is (outer, n, inner) around that dim.  Where inner is 1 a row is a run of memory; else
 * a tile of neighbouring columns is computed together, row after row.  float32 and the half types
 * compute in float32, float64 in float64.  Threads share rows or tiles.  Exponentials bound rows in
 * the cache, memory bounds large tensors. */
#include "rows.h"
#include "around.h"

#define TILE 1024  /* most columns that are computed together */
#define NARROW 64  /* fewest */
#define NEAR 24576 /* bytes of a tile that stays in the first-level cache */
#define FAR 131072 /* and of one that stays in the second */

/* ---- rows */

/* float64.  A row of -infinity gives NaN, as in PyTorch: (-inf) - (-inf). */
static void softmax_row_f64(const double *x, int64_t n, double *y)
{
  const double scale = 1 / exps_f64(x, n, top_f64(x, n), y);
  AX_SIMD
  for (int64_t i = 0; i < n; i++) y[i] *= scale;
}
static void log_softmax_row_f64(const double *x, int64_t n, double *y)
{
  const double top = top_f64(x, n), all = ax_log_f64(exps_f64(x, n, top, NULL));
  AX_SIMD
  for (int64_t i = 0; i < n; i++) y[i] = (x[i] - top) - all;
}
/* g is the gradient, y the forward result */
static void back_row_f64(const double *g, const double *y, int64_t n, double *out, bool logs)
{
  double lane[AX_LANES] = { 0 }, s = 0;
  int64_t i = 0;
  for (; i + AX_LANES <= n; i += AX_LANES) {
    AX_SIMD
    for (int j = 0; j < AX_LANES; j++) lane[j] += logs ? g[i + j] : g[i + j] * y[i + j];
  }
  for (; i < n; i++) s += logs ? g[i] : g[i] * y[i];
  s += fold_f64(lane);
  if (logs) {
    AX_SIMD
    for (i = 0; i < n; i++) out[i] = g[i] - ax_exp_f64(y[i]) * s;
  } else {
    AX_SIMD
    for (i = 0; i < n; i++) out[i] = y[i] * (g[i] - s);
  }
}

/* float32: `rows` rows of n; `stream`: out is written past the caches.  While a row is computed,
 * the next one is read for the first time. */
static void forward_rows(const float *x, int64_t rows, int64_t n, float *out, bool logs, bool stream)
{
  float buffer[AX_ROW_MAX] __attribute__((aligned(64))), top = top_f32(x, n), next = 0;

  for (int64_t r = 0; r < rows; r++, x += n, out += n, top = next) {
    float *terms = logs ? NULL : stream ? buffer : out;
    const float sum = r + 1 < rows ? ax_row_exps(x, n, top, terms, x + n, &next)
                                   : ax_row_exps(x, n, top, terms, NULL, NULL);
    const float scale = 1 / sum, all = ax_row_log_f32(sum);
    int64_t i = 0;
    if (logs) {
      for (; i + AX_ROW_LANES <= n; i += AX_ROW_LANES)
        ax_vec_put(out + i, (*(const ax_vec_f32 *)(x + i) - top) - all, stream);
      for (; i < n; i++) out[i] = (x[i] - top) - all;
    } else {
      for (; i + AX_ROW_LANES <= n; i += AX_ROW_LANES)
        ax_vec_put(out + i, *(const ax_vec_f32 *)(terms + i) * scale, stream);
      for (; i < n; i++) out[i] = terms[i] * scale;
    }
  }
}

/* The number that the gradient of a row subtracts or multiplies by: the sum of g y, or of g. */
typedef struct sums {
  ax_vec_f32 lane[4];
  float rest;
} sums;
static inline float add_up(const sums *s)
{
  return ax_vec_sum((s->lane[0] + s->lane[1]) + (s->lane[2] + s->lane[3])) + s->rest;
}

/* out = the gradient of this row (unless NULL); *next: the sums of the following row, g_next and
 * y_next (unless NULL). */
static inline __attribute__((always_inline)) void back_row(const float *g, const float *y, int64_t n, float s,
                                                           float *out, const float *g_next,
                                                           const float *y_next, sums *next, const bool logs,
                                                           bool stream)
{
  int64_t i = 0;
  if (next) *next = (sums){ 0 };
  for (; i + AX_ROW_STEP <= n; i += AX_ROW_STEP) {
    AX_UNROLL
    for (int k = 0; k < 4; k++) {
      const int64_t at = i + k * AX_ROW_LANES;
      if (out) {
        const ax_vec_f32 gv = *(const ax_vec_f32 *)(g + at), yv = *(const ax_vec_f32 *)(y + at);
        ax_vec_put(out + at, logs ? gv - ax_row_term(yv, 0) * s : yv * (gv - s), stream);
      }
      if (next && logs) next->lane[k] += *(const ax_vec_f32 *)(g_next + at);
      else if (next) next->lane[k] += *(const ax_vec_f32 *)(g_next + at) * *(const ax_vec_f32 *)(y_next + at);
    }
  }
  for (; i < n; i++) {
    if (out) out[i] = logs ? g[i] - AX_TERM_f32(y[i], 0) * s : y[i] * (g[i] - s);
    if (next) next->rest += logs ? g_next[i] : g_next[i] * y_next[i];
  }
}

static void backward_rows(const float *g, const float *y, int64_t rows, int64_t n, float *out, bool logs,
                          bool stream)
{
  sums next;
  if (logs) back_row(NULL, NULL, n, 0, NULL, g, y, &next, true, false);
  else back_row(NULL, NULL, n, 0, NULL, g, y, &next, false, false);
  for (int64_t r = 0; r < rows; r++, g += n, y += n, out += n) {
    const float s = add_up(&next);
    if (r + 1 == rows) back_row(g, y, n, s, out, NULL, NULL, NULL, logs, stream);
    else if (logs) back_row(g, y, n, s, out, g + n, y + n, &next, true, stream);
    else back_row(g, y, n, s, out, g + n, y + n, &next, false, stream);
  }
}

/* ---- columns: `n` rows of up to TILE columns, `step` elements apart */

/* `vec` for whole vectors of columns at j, `one` for each of the others. */
#define EACH_COLUMN(vec, one) \
  { \
    int64_t j = 0; \
    for (; j + AX_ROW_LANES <= cols; j += AX_ROW_LANES) { vec; } \
    for (; j < cols; j++) { one; } \
  }
#define AT(p) (*(ax_vec_f32 *)((p) + j))

static void softmax_columns_f32(const float *x, int64_t n, int64_t step, int64_t cols, float *y, bool logs)
{
  float top[TILE], sum[TILE] = { 0 };
  memcpy(top, x, (size_t)cols * sizeof *x);
  for (int64_t r = 1; r < n; r++) {
    const float *const row = x + r * step;
    EACH_COLUMN(AT(top) = ax_vec_max(AT(row), AT(top)), top[j] = row[j] > top[j] ? row[j] : top[j])
  }
  for (int64_t r = 0; r < n; r++) {
    const float *const row = x + r * step;
    float *const out = y + r * step;
    EACH_COLUMN(const ax_vec_f32 e = ax_vec_exp2((AT(row) - AT(top)) * AX_LOG2E); AT(sum) += e;
                if (!logs) AT(out) = e, const float e = AX_TERM_f32(row[j], top[j]); sum[j] += e;
                if (!logs) out[j] = e)
  }
  for (int64_t j = 0; j < cols; j++) sum[j] = logs ? ax_row_log_f32(sum[j]) : 1 / sum[j];
  for (int64_t r = 0; r < n; r++) {
    const float *const row = x + r * step;
    float *const out = y + r * step;
    if (logs) EACH_COLUMN(AT(out) = (AT(row) - AT(top)) - AT(sum), out[j] = (row[j] - top[j]) - sum[j])
    else EACH_COLUMN(AT(out) *= AT(sum), out[j] *= sum[j])
  }
}

static void back_columns_f32(const float *g, const float *y, int64_t n, int64_t step, int64_t cols,
                             float *out, bool logs)
{
  float sum[TILE] = { 0 };
  for (int64_t r = 0; r < n; r++) {
    const float *const gs = g + r * step, *const ys = y + r * step;
    if (logs) EACH_COLUMN(AT(sum) += AT(gs), sum[j] += gs[j])
    else EACH_COLUMN(AT(sum) += AT(gs) * AT(ys), sum[j] += gs[j] * ys[j])
  }
  for (int64_t r = 0; r < n; r++) {
    const float *const gs = g + r * step, *const ys = y + r * step;
    float *const to = out + r * step;
    if (logs)
      EACH_COLUMN(AT(to) = AT(gs) - ax_row_term(AT(ys), 0) * AT(sum),
                  to[j] = gs[j] - AX_TERM_f32(ys[j], 0) * sum[j])
    else EACH_COLUMN(AT(to) = AT(ys) * (AT(gs) - AT(sum)), to[j] = ys[j] * (gs[j] - sum[j]))
  }
}

static void softmax_columns_f64(const double *x, int64_t n, int64_t step, int64_t cols, double *y, bool logs)
{
  double top[TILE], sum[TILE] = { 0 };
  memcpy(top, x, (size_t)cols * sizeof *x);
  for (int64_t r = 1; r < n; r++) {
    AX_SIMD
    for (int64_t j = 0; j < cols; j++) top[j] = x[r * step + j] > top[j] ? x[r * step + j] : top[j];
  }
  for (int64_t r = 0; r < n; r++) {
    AX_SIMD
    for (int64_t j = 0; j < cols; j++) {
      const double d = x[r * step + j] - top[j], e = ax_exp_f64(d);
      y[r * step + j] = logs ? d : e;
      sum[j] += e;
    }
  }
  for (int64_t j = 0; j < cols; j++) sum[j] = logs ? ax_row_log_f64(sum[j]) : 1 / sum[j];
  for (int64_t r = 0; r < n; r++) {
    AX_SIMD
    for (int64_t j = 0; j < cols; j++)
      y[r * step + j] = logs ? y[r * step + j] - sum[j] : y[r * step + j] * sum[j];
  }
}

static void back_columns_f64(const double *g, const double *y, int64_t n, int64_t step, int64_t cols,
                             double *out, bool logs)
{
  double sum[TILE] = { 0 };
  for (int64_t r = 0; r < n; r++) {
    AX_SIMD
    for (int64_t j = 0; j < cols; j++) sum[j] += logs ? g[r * step + j] : g[r * step + j] * y[r * step + j];
  }
  for (int64_t r = 0; r < n; r++) {
    if (logs) {
      AX_SIMD
      for (int64_t j = 0; j < cols; j++)
        out[r * step + j] = g[r * step + j] - ax_exp_f64(y[r * step + j]) * sum[j];
    } else {
      AX_SIMD
      for (int64_t j = 0; j < cols; j++) out[r * step + j] = y[r * step + j] * (g[r * step + j] - sum[j]);
    }
  }
}

/* ---- driver: threads share rows, or tiles of columns */

typedef struct job {
  ax_around s;
  ax_dtype dtype;
  bool logs, back;
  bool stream;  /* float32 rows are written past the caches */
  int64_t tile; /* columns that are computed together, a multiple of NARROW */
  const char *in[2];
  char *out;
} job;

static void softmax_range(int64_t lo, int64_t hi, void *ud) /* rows, or tiles of columns */
{
  const job *j = ud;
  const int64_t n = j->s.n, step = j->s.inner, across = (step + j->tile - 1) / j->tile,
                size = (int64_t)ax_dtype_size(j->dtype);
  const bool wide = j->dtype == AX_F64;

  if (step == 1 && !wide) {
    const float *x = (const float *)j->in[0] + lo * n, *y = (const float *)j->in[1] + lo * n;
    float *out = (float *)j->out + lo * n;
    const bool stream = j->stream && n <= AX_ROW_MAX && n % AX_ROW_STEP == 0 && ((uintptr_t)j->out & 63) == 0;
    if (j->back) backward_rows(x, y, hi - lo, n, out, j->logs, stream);
    else forward_rows(x, hi - lo, n, out, j->logs, stream);
    if (stream) ax_cpu_stream_end();
    return;
  }
  for (int64_t t = lo; t < hi; t++) {
    const int64_t column = t % across * j->tile, cols = step - column < j->tile ? step - column : j->tile;
    const int64_t at = (t / across * n * step + column) * size;
    const void *x = j->in[0] + at, *y = j->back ? j->in[1] + at : NULL;
    void *out = j->out + at;
    if (step == 1 && j->back) back_row_f64(x, y, n, out, j->logs);
    else if (step == 1) (j->logs ? log_softmax_row_f64 : softmax_row_f64)(x, n, out);
    else if (j->back && wide) back_columns_f64(x, y, n, step, cols, out, j->logs);
    else if (j->back) back_columns_f32(x, y, n, step, cols, out, j->logs);
    else if (wide) softmax_columns_f64(x, n, step, cols, out, j->logs);
    else softmax_columns_f32(x, n, step, cols, out, j->logs);
  }
}

/* Tiles that stay in a cache between the passes, or as wide as what one thread gets: rows of memory
 * are read in order then. */
static int64_t tile_of(const job *j)
{
  const int64_t row = j->s.n * (int64_t)ax_dtype_size(j->dtype), threads = ax_cpu_get_threads();
  const int64_t share = (j->s.outer * j->s.inner / threads + NARROW - 1) / NARROW * NARROW;
  int64_t tile = row * NARROW > FAR ? TILE : NEAR / row / NARROW * NARROW;
  if (tile > share) tile = share;
  return tile < NARROW ? NARROW : tile > TILE ? TILE : tile;
}

static ax_status run(const ax_call *call, int64_t dim, bool logs, bool back)
{
  const ax_tensor *y = call->out[0];
  const ax_dtype d = (ax_dtype)y->dtype;
  job j = { .s = ax_around_dim(y, dim), .dtype = d, .logs = logs, .back = back, .out = ax_data(y) };
  const bool half = ax_is_half(d);
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
  j.tile = tile_of(&j);
  ax_cpu_for(j.s.outer * ((j.s.inner + j.tile - 1) / j.tile), y->numel * 4, softmax_range, &j);
  if (half) ax_cpu_float_to_half(d, wide[2], ax_data(y), 2, y->numel);
out:
  for (int k = 0; k < 3; k++)
    if (wide[k]) ax_free(wide[k], bytes);
  return st;
}

ax_status ax_cpu_softmax(const ax_call *call) { return run(call, call->a->softmax.dim, false, false); }
ax_status ax_cpu_log_softmax(const ax_call *call) { return run(call, call->a->log_softmax.dim, true, false); }
ax_status ax_cpu__softmax_backward(const ax_call *call)
{
  return run(call, call->a->softmax_backward.dim, false, true);
}
ax_status ax_cpu__log_softmax_backward(const ax_call *call)
{
  return run(call, call->a->log_softmax_backward.dim, true, true);
}

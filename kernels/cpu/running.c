/* cummax, cummin: the best element up to each place of a dim, and its position.  Of equal ones the
 * last wins; from the first NaN on the result is NaN, with the position of the latest one.  Threads
 * share lines, or tiles of neighbouring columns; memory bounds the kernel. */
#include "cpu.h"

#define TILE 256 /* columns that are compared together */
#define LINES 8  /* lines without columns: each comparison of one waits for the former */

typedef struct job {
  int64_t n, inner, across; /* the dim, the elements within one step of it, and the tiles of those */
  const char *in;
  char *out;
  int64_t *where;
} job;

/* `cols` columns of n rows, from element `at` on.  Rows are `down` elements apart, columns `by`. */
#define BEST(S, T, A, LOAD, STORE, OP) \
  static inline __attribute__((always_inline)) void best_##S(const job *j, int64_t at, int64_t cols, \
                                                             int64_t down, int64_t by) \
  { \
    const T *x = (const T *)j->in + at; \
    T *y = (T *)j->out + at; \
    int64_t *where = j->where + at, place[TILE]; \
    A best[TILE]; \
    for (int64_t c = 0; c < cols; c++) { \
      best[c] = LOAD(x[c * by]); \
      y[c * by] = x[c * by]; \
      where[c * by] = place[c] = 0; \
    } \
    for (int64_t k = 1; k < j->n; k++) { \
      AX_SIMD \
      for (int64_t c = 0; c < cols; c++) { \
        const A v = LOAD(x[k * down + c * by]); \
        const int wins = (v != v) | (v OP best[c]); \
        best[c] = wins ? v : best[c]; \
        place[c] = wins ? k : place[c]; \
        y[k * down + c * by] = STORE(best[c]); \
        where[k * down + c * by] = place[c]; \
      } \
    } \
  } \
  static void columns_##S(const job *j, int64_t at, int64_t cols) { best_##S(j, at, cols, j->inner, 1); } \
  static void lines_##S(const job *j, int64_t at, int64_t lines) \
  { \
    if (lines == LINES) best_##S(j, at, LINES, 1, j->n); \
    else \
      for (int64_t l = 0; l < lines; l++) best_##S(j, at + l * j->n, 1, 1, 1); \
  }
#define AS_IS(x) (x)
#define BOTH(S, T, A, LOAD, STORE) \
  BEST(max_##S, T, A, LOAD, STORE, >=) \
  BEST(min_##S, T, A, LOAD, STORE, <=)
BOTH(f32, float, float, AS_IS, AS_IS)
BOTH(f64, double, double, AS_IS, AS_IS)
BOTH(f16, uint16_t, float, ax_half_to_float, ax_float_to_half)
BOTH(bf16, uint16_t, float, ax_bf16_to_float, ax_float_to_bf16)
BOTH(i64, int64_t, int64_t, AS_IS, AS_IS)
BOTH(i32, int32_t, int32_t, AS_IS, AS_IS)
BOTH(u8, uint8_t, uint8_t, AS_IS, AS_IS)

typedef struct kernel {
  void (*columns)(const job *j, int64_t at, int64_t cols);
  void (*lines)(const job *j, int64_t at, int64_t lines);
} kernel;
#define OF(S) \
  { \
    columns_##S, lines_##S \
  }
#define TABLE(of) \
  { \
    [AX_F32] = OF(of##_f32), [AX_F64] = OF(of##_f64), [AX_F16] = OF(of##_f16), [AX_BF16] = OF(of##_bf16), \
    [AX_I64] = OF(of##_i64), [AX_I32] = OF(of##_i32), [AX_U8] = OF(of##_u8), [AX_BOOL] = OF(of##_u8) \
  }
static const kernel largest[AX_DTYPE_COUNT] = TABLE(max), smallest[AX_DTYPE_COUNT] = TABLE(min);

typedef struct share {
  job j;
  kernel run;
} share;

static void best_range(int64_t lo, int64_t hi, void *ud)
{
  const share *s = ud;
  const job *j = &s->j;
  if (j->inner == 1) {
    for (int64_t t = lo; t < hi; t += LINES) s->run.lines(j, t * j->n, hi - t < LINES ? hi - t : LINES);
    return;
  }
  for (int64_t t = lo; t < hi; t++) {
    const int64_t column = t % j->across * TILE, left = j->inner - column;
    s->run.columns(j, t / j->across * j->n * j->inner + column, left < TILE ? left : TILE);
  }
}

static ax_status running(const ax_call *call, const kernel *kernels)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  const int64_t dim = call->a->running_best.dim;
  share s = { .j = { .n = x->ndim ? x->shape[dim] : 1,
                     .inner = 1,
                     .in = ax_data(x),
                     .out = ax_data(y),
                     .where = ax_data(call->out[1]) },
              .run = kernels[y->dtype] };

  if (!s.run.lines) return ax_cpu_no_dtype(call->op, (ax_dtype)y->dtype);
  if (y->numel == 0) return AX_OK;
  for (int d = (int)dim + 1; d < x->ndim; d++) s.j.inner *= x->shape[d];
  s.j.across = (s.j.inner + TILE - 1) / TILE;
  ax_cpu_for(y->numel / (s.j.n * s.j.inner) * s.j.across, y->numel, best_range, &s);
  return AX_OK;
}

ax_status ax_cpu_cummax(const ax_call *call) { return running(call, largest); }
ax_status ax_cpu_cummin(const ax_call *call) { return running(call, smallest); }

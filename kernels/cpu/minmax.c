/* max, min, argmax, argmin.  The result is NaN where an element is; of equal elements the first
 * wins, in logical order.  Threads share results, or chunks of a long reduction; memory bounds the
 * kernel. */
#include "reduce.h"
#include "vector.h"

#include <string.h>

/* The best element so far and its position among the reduced ones; at < 0: none yet. */
typedef struct best {
  union {
    double d;
    int64_t i;
  } v;
  int64_t at;
} best;
/* Compares elements base .. base + n - 1, `stride` bytes apart from p, with *b. */
typedef void (*row_fn)(const char *p, int64_t stride, int64_t n, int64_t base, best *b);
/* Compares column j of `rows` rows with b[j]; the first row is position `base`, and row r starts at
 * p + at[r]. */
typedef void (*column_fn)(const char *p, int64_t stride, int64_t n, const int64_t *at, int64_t rows,
                          int64_t base, best *b);

/* Whether x is better than y; `op` is > or <. */
#define FLOAT_BETTER(op, x, y) (((x)op(y)) | (((x) != (x)) & ((y) == (y))))
#define INT_BETTER(op, x, y) ((x)op(y))

/* Of two vectors: the better numbers, those of b where one is NaN. */
#define BETTER_OF(op, a, b) (vec)(((mask)(a) & (mask)((a)op(b))) | ((mask)(b) & ~(mask)((a)op(b))))

#define VECTORS 4 /* compared in turns: one waits for its own last comparison alone */
#define BLOCK 1024

/* Finds the best value of a block with vector code, in VECTORS turns; only if it beats *b, finds
 * where it first occurs. */
#define ROW(fn, T, M, field, op, better) \
  static void fn##_block(const T *x, int64_t n, int64_t base, best *b) \
  { \
    enum { WIDE = AX_BYTES / sizeof(T), LANES = VECTORS * WIDE }; \
    typedef T vec __attribute__((vector_size(AX_BYTES), aligned(sizeof(T)), may_alias)); \
    typedef M mask __attribute__((vector_size(AX_BYTES))); \
    T top = x[0]; \
    int64_t i = 0; \
    if (n >= LANES) { \
      vec lane[VECTORS]; \
      mask odd = { 0 }; \
      T all[WIDE]; \
      bool nan = false; \
      _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++) lane[v] = *(const vec *)(x + v * WIDE); \
      for (; i + LANES <= n; i += LANES) _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++) \
        { \
          const vec now = *(const vec *)(x + i + v * WIDE); \
          lane[v] = BETTER_OF(op, now, lane[v]); \
          odd |= (mask)(now != now); \
        } \
      _Pragma("GCC unroll 4") for (int v = 1; v < VECTORS; v++) lane[0] = BETTER_OF(op, lane[v], lane[0]); \
      memcpy(all, lane, sizeof all); \
      for (int j = 0; j < WIDE; j++) top = all[j] op top ? all[j] : top; \
      for (int j = 0; j < WIDE; j++) nan |= odd[j] != 0; \
      for (i = nan ? 0 : i; nan && x[i] == x[i]; i++) \
        ; /* the first NaN is the best element */ \
      top = nan ? x[i] : top; \
    } \
    for (; i < n; i++) top = better(op, x[i], top) ? x[i] : top; \
    if (b->at >= 0 && !better(op, top, (T)b->v.field)) return; \
    for (i = 0; i + LANES <= n; i += LANES) { /* where it first occurs */ \
      int here = 0; \
      _Pragma("omp simd reduction(|:here)") for (int j = 0; j < LANES; j++) here |= \
          (x[i + j] == top) | ((x[i + j] != x[i + j]) & (top != top)); \
      if (here) break; \
    } \
    for (; !(x[i] == top || (x[i] != x[i] && top != top)); i++) \
      ; \
    b->v.field = top; \
    b->at = base + i; \
  } \
  static void fn(const char *p, int64_t stride, int64_t n, int64_t base, best *b) \
  { \
    T run[BLOCK]; \
    for (int64_t lo = 0; lo < n; lo += BLOCK) { \
      const int64_t count = n - lo < BLOCK ? n - lo : BLOCK; \
      const T *x = (const T *)(p + lo * stride); \
      if (stride != sizeof(T)) { \
        for (int64_t i = 0; i < count; i++) run[i] = *(const T *)(p + (lo + i) * stride); \
        x = run; \
      } \
      fn##_block(x, count, base + lo, b); \
    } \
  }

/* Rows come in blocks of at most 64.  gcc 12 does not vectorise a copy that it makes for the
 * callers below, hence noclone. */
#define COLUMN(fn, T, field, op, better) \
  __attribute__((noinline, noclone)) static void fn(const char *p, int64_t stride, int64_t n, \
                                                    const int64_t *at, int64_t rows, int64_t base, best *b) \
  { \
    T top[AX_TILE]; \
    int64_t where[AX_TILE]; \
    for (int64_t j = 0; j < n; j++) { \
      top[j] = *(const T *)(p + at[0] + j * stride); \
      where[j] = base; \
    } \
    for (int64_t r = 1; r < rows; r++) { \
      const char *row = p + at[r]; \
      if (stride == sizeof(T)) { \
        const T *v = (const T *)row; \
        AX_SIMD \
        for (int64_t j = 0; j < n; j++) { \
          const T x = v[j]; \
          const int wins = better(op, x, top[j]); \
          top[j] = wins ? x : top[j]; \
          where[j] = wins ? base + r : where[j]; \
        } \
      } else \
        for (int64_t j = 0; j < n; j++) { \
          const T x = *(const T *)(row + j * stride); \
          if (better(op, x, top[j])) { \
            top[j] = x; \
            where[j] = base + r; \
          } \
        } \
    } \
    for (int64_t j = 0; j < n; j++) \
      if (b[j].at < 0 || better(op, top[j], (T)b[j].v.field)) { \
        b[j].v.field = top[j]; \
        b[j].at = where[j]; \
      } \
  }

/* M: integers as long as T's, which masks have. */
#define BOTH(name, T, M, field, better) \
  ROW(max_row_##name, T, M, field, >, better) \
  ROW(min_row_##name, T, M, field, <, better) \
  COLUMN(max_column_##name, T, field, >, better) \
  COLUMN(min_column_##name, T, field, <, better)
BOTH(f32, float, int32_t, d, FLOAT_BETTER)
BOTH(f64, double, int64_t, d, FLOAT_BETTER)
BOTH(i64, int64_t, int64_t, i, INT_BETTER)
BOTH(i32, int32_t, int32_t, i, INT_BETTER)
BOTH(u8, uint8_t, int8_t, i, INT_BETTER)

/* Half types are compared in float32, which keeps values and order. */
enum { HALF_ROWS = 16 }; /* widened at a time */
#define HALF(dir, name, D) \
  static void dir##_row_##name(const char *p, int64_t stride, int64_t n, int64_t base, best *b) \
  { \
    float run[BLOCK]; \
    for (int64_t lo = 0; lo < n; lo += BLOCK) { \
      const int64_t count = n - lo < BLOCK ? n - lo : BLOCK; \
      ax_cpu_half_to_float(D, p + lo * stride, stride, run, count); \
      dir##_row_f32_block(run, count, base + lo, b); \
    } \
  } \
  static void dir##_column_##name(const char *p, int64_t stride, int64_t n, const int64_t *at, int64_t rows, \
                                  int64_t base, best *b) \
  { \
    float some[HALF_ROWS][AX_TILE]; \
    int64_t starts[HALF_ROWS]; \
    for (int64_t r = 0; r < rows; r += HALF_ROWS) { \
      const int64_t count = rows - r < HALF_ROWS ? rows - r : HALF_ROWS; \
      for (int64_t q = 0; q < count; q++) { \
        ax_cpu_half_to_float(D, p + at[r + q], stride, some[q], n); \
        starts[q] = q * (int64_t)sizeof *some; \
      } \
      dir##_column_f32((const char *)some, sizeof(float), n, starts, count, base + r, b); \
    } \
  }
HALF(max, f16, AX_F16)
HALF(min, f16, AX_F16)
HALF(max, bf16, AX_BF16)
HALF(min, bf16, AX_BF16)

/* ---- driver */

typedef struct finder {
  row_fn row;
  column_fn column;
} finder;
typedef struct job {
  ax_split s;
  finder find;
  int64_t *where; /* positions of all results, or NULL */
  bool arg;       /* the result itself is the position */
  int sign;       /* 1 for max, -1 for min */
  void *partial;  /* of type best, for ax_cpu_reduce */
} job;

/* Compares the reduced positions of a chunk with b[0 .. g.n). */
static void find_chunk(const job *j, const ax_chunk *p, best *b)
{
  const ax_group *g = &p->g;
  int64_t at[AX_ROWS], n;

  for (int64_t lo = p->from; lo < p->until; lo += n) {
    if (j->s.columns) {
      n = ax_rows_at(&j->s, lo, p->until, at);
      j->find.column(g->in, g->in_step, g->n, at, n, lo, b);
    } else {
      const ax_line l = ax_line_at(&j->s, g, lo, p->until);
      j->find.row(l.p, l.step, l.n, lo, b);
      n = l.n;
    }
  }
}

static void put(const job *j, const ax_group *g, int64_t k, const best *b)
{
  char *out = g->out + k * g->out_step;

  if (j->where) j->where[g->first + k] = b->at;
  if (j->arg) *(int64_t *)out = b->at;
  else if (ax_is_float(j->s.from)) ax_store_double(j->s.to, out, 0, b->v.d);
  else ax_store_int(j->s.to, out, 0, b->v.i);
}

static void minmax_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  best here[AX_TILE];

  for (int64_t p = lo; p < hi; p++) {
    const ax_chunk q = ax_chunk_at(&j->s, p);
    best *b = j->s.chunks > 1 ? (best *)j->partial + q.partial : here;
    for (int64_t k = 0; k < q.g.n; k++) b[k].at = -1;
    find_chunk(j, &q, b);
    for (int64_t k = 0; j->s.chunks == 1 && k < q.g.n; k++) put(j, &q.g, k, &b[k]);
  }
}

/* Whether a is better than b. */
static bool beats(const job *j, const best *a, const best *b)
{
  if (ax_is_float(j->s.from)) {
    if (a->v.d != a->v.d) return b->v.d == b->v.d;
    return j->sign > 0 ? a->v.d > b->v.d : a->v.d < b->v.d;
  }
  return j->sign > 0 ? a->v.i > b->v.i : a->v.i < b->v.i;
}

static void join_chunks(const void *ud, const ax_group *g, int64_t k)
{
  const job *j = ud;
  const best *p = (const best *)j->partial + g->first + k, *top = p;

  for (int64_t c = 1; c < j->s.chunks; c++)
    if (beats(j, p + c * j->s.kept.count, top)) top = p + c * j->s.kept.count;
  put(j, g, k, top);
}

static ax_status minmax(const ax_call *call, const finder *finders, int sign, bool arg)
{
  job j = { .arg = arg, .sign = sign };

  ax_cpu_split(call->iter, &j.s);
  j.find = finders[j.s.from];
  if (!arg && call->n_out > 1 && call->out[1]) j.where = ax_data(call->out[1]);
  /* the core refuses this case where there are results, and there is nothing to do where there are
   * none */
  if (j.s.reduced.count == 0) {
    if (j.s.kept.count == 0) return AX_OK;
    return ax_fail(AX_ESHAPE, "%s: no elements to choose from", ax_ops[call->op].name);
  }
  return ax_cpu_reduce(&j.s, sizeof(best), &j.partial, minmax_range, join_chunks, &j);
}

#define FINDER(dir, name) \
  { \
    dir##_row_##name, dir##_column_##name \
  }
#define FINDERS(dir) \
  { \
    [AX_F32] = FINDER(dir, f32), [AX_F64] = FINDER(dir, f64), [AX_F16] = FINDER(dir, f16), \
    [AX_BF16] = FINDER(dir, bf16), [AX_I64] = FINDER(dir, i64), [AX_I32] = FINDER(dir, i32), \
    [AX_U8] = FINDER(dir, u8), [AX_BOOL] = FINDER(dir, u8) \
  }
static const finder max_finders[AX_DTYPE_COUNT] = FINDERS(max);
static const finder min_finders[AX_DTYPE_COUNT] = FINDERS(min);

ax_status ax_cpu_max(const ax_call *call) { return minmax(call, max_finders, 1, false); }
ax_status ax_cpu_min(const ax_call *call) { return minmax(call, min_finders, -1, false); }
ax_status ax_cpu_argmax(const ax_call *call) { return minmax(call, max_finders, 1, true); }
ax_status ax_cpu_argmin(const ax_call *call) { return minmax(call, min_finders, -1, true); }
ax_status ax_cpu_amax(const ax_call *call) { return minmax(call, max_finders, 1, false); }
ax_status ax_cpu_amin(const ax_call *call) { return minmax(call, min_finders, -1, false); }

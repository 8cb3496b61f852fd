/* sum, mean, prod, any, all.  float32 and the half types add in float32 over short runs and in
 * float64 above that: practically as accurate as a float64 sum, at the speed of float32.  Floats
 * are multiplied in float64.  Integers are added and multiplied in int64 and wrap around.  Threads
 * share results, or chunks of a long reduction; memory bounds the kernel. */
#include "reduce.h"

#include <string.h>

void ax_cpu_split(const ax_iter *it, ax_split *s)
{
  const ax_operand *o = &it->op[0], *x = &it->op[1];

  s->in = x->data;
  s->out = o->data;
  s->from = x->dtype;
  s->to = o->dtype;
  s->work = it->numel;
  s->kept = s->reduced = (ax_dims){ .count = 1 };
  s->columns = false;
  for (int d = 0; d < it->ndim; d++) {
    s->columns = o->stride[d] != 0;
    ax_dims *to = s->columns ? &s->kept : &s->reduced;
    to->shape[to->n] = it->shape[d];
    to->in[to->n] = x->stride[d];
    to->out[to->n++] = o->stride[d];
    to->count *= it->shape[d];
  }
  s->width = s->columns ? s->kept.shape[s->kept.n - 1] : 1;
  s->tiles = !s->columns ? s->kept.count
             : s->width  ? s->kept.count / s->width * ((s->width + AX_TILE - 1) / AX_TILE)
                         : 0;
  s->chunks = 1;
  if (s->tiles > 0 && s->tiles < 16 && s->work >= 2 * AX_CHUNK) {
    s->chunks = s->work / AX_CHUNK < AX_PIECES / s->tiles ? s->work / AX_CHUNK : AX_PIECES / s->tiles;
    if (s->chunks > s->reduced.count) s->chunks = s->reduced.count > 0 ? s->reduced.count : 1;
  }
}

ax_group ax_cpu_group(const ax_split *s, int64_t t)
{
  ax_group g = { .first = t, .n = 1 };
  int64_t p = t, at_out = 0;

  if (s->columns) {
    const int64_t across = (s->width + AX_TILE - 1) / AX_TILE, column = t % across * AX_TILE;
    g.first = t / across * s->width + column;
    g.n = s->width - column < AX_TILE ? s->width - column : AX_TILE;
    g.in_step = s->kept.in[s->kept.n - 1];
    g.out_step = s->kept.out[s->kept.n - 1];
    p = g.first;
  }
  g.in = s->in + ax_dims_at(&s->kept, p, s->kept.n);
  for (int k = s->kept.n - 1; k > 0; k--) {
    at_out += p % s->kept.shape[k] * s->kept.out[k];
    p /= s->kept.shape[k];
  }
  g.out = s->out + at_out + (s->kept.n > 0 ? p * s->kept.out[0] : 0);
  return g;
}

ax_status ax_cpu_reduce(const ax_split *s, size_t size, void **partial, ax_range_fn range,
                        ax_finish_fn finish, void *job)
{
  double few[256];

  if (s->chunks == 1) {
    ax_cpu_for(s->tiles, s->work, range, job);
    return AX_OK;
  }
  const size_t bytes = (size_t)(s->chunks * s->kept.count) * size;
  *partial = bytes <= sizeof(few) ? few : ax_malloc(bytes);
  if (!*partial) return AX_ENOMEM;
  ax_cpu_for(s->tiles * s->chunks, s->work, range, job);
  for (int64_t t = 0; t < s->tiles; t++) {
    const ax_group g = ax_cpu_group(s, t);
    for (int64_t k = 0; k < g.n; k++) finish(job, &g, k);
  }
  if (*partial != few) ax_mfree(*partial);
  return AX_OK;
}

/* ---- the innermost loops.  A total is a double or an int64_t. */

typedef union total {
  double d;
  int64_t i;
  uint64_t u;
} total;
/* *to += the sum of n elements. */
typedef void (*row_fn)(const char *p, int64_t stride, int64_t n, total *to);
/* to[j] += column j of `rows` rows; row r starts at p + at[r]. */
typedef void (*column_fn)(const char *p, int64_t stride, int64_t n, const int64_t *at, int64_t rows,
                          total *to);

#define RUN 512 /* elements added in float32 */

#define LANES 32
#define FOLD(w) FOLD_BY(+=, w)
#define FOLD_BY(op, w) AX_FOLD_BY(op, w)
typedef uint64_t vec_u64 __attribute__((vector_size(AX_BYTES), aligned(8), may_alias));
#define AS_IS(x) (x)
#define VEC_F32(p) (*(const ax_vec_f32 *)(p))
#define VEC_F64(p) (*(const ax_vec_f64 *)(p))
#define VEC_U64(p) (*(const vec_u64 *)(p))
AX_RUN(sum_run, LANES, float, float, ax_vec_f32, VEC_F32, AS_IS, +=, 0)
AX_RUN(sum_run_bf16, LANES, uint16_t, float, ax_vec_f32, ax_vec_from_bf16, ax_bf16_to_float, +=, 0)
AX_RUN(sum_run_f16, LANES, uint16_t, float, ax_vec_f32, ax_vec_from_f16, ax_half_to_float, +=, 0)
AX_RUN(sum_run_f64, LANES, double, double, ax_vec_f64, VEC_F64, AS_IS, +=, 0)
AX_RUN(sum_run_i64, LANES, int64_t, uint64_t, vec_u64, VEC_U64, AS_IS, +=, 0)
AX_RUN(prod_run_f32, LANES, float, double, ax_vec_f64, ax_vec_widen, AS_IS, *=, 1)
AX_RUN(prod_run_f64, LANES, double, double, ax_vec_f64, VEC_F64, AS_IS, *=, 1)

static void row_f32(const char *p, int64_t stride, int64_t n, total *to)
{
  if (stride == sizeof(float)) {
    for (int64_t i = 0; i < n; i += RUN)
      to->d += (double)sum_run((const float *)p + i, n - i < RUN ? n - i : RUN, 0);
    return;
  }
  for (int64_t i = 0; i < n; i++) to->d += (double)*(const float *)(p + i * stride);
}

#define ROW_HALF(name, D) \
  static void row_##name(const char *p, int64_t stride, int64_t n, total *to) \
  { \
    float run[RUN]; \
    for (int64_t i = 0; i < n; i += RUN) { \
      const int64_t count = n - i < RUN ? n - i : RUN; \
      if (stride == 2) to->d += (double)sum_run_##name((const uint16_t *)p + i, count, 0); \
      else { \
        ax_cpu_half_to_float(D, p + i * stride, stride, run, count); \
        to->d += (double)sum_run(run, count, 0); \
      } \
    } \
  }
ROW_HALF(f16, AX_F16)
ROW_HALF(bf16, AX_BF16)

/* Rows that are one run. */
#define ROW_WIDE(name, T, run, op, field) \
  static void row_##name(const char *p, int64_t stride, int64_t n, total *to) \
  { \
    if (stride == sizeof(T)) to->field op run((const T *)p, n, 0); \
    else \
      for (int64_t i = 0; i < n; i++) to->field op *(const T *)(p + i * stride); \
  }
ROW_WIDE(f64, double, sum_run_f64, +=, d)
ROW_WIDE(i64, int64_t, sum_run_i64, +=, u)
ROW_WIDE(prod_f32, float, prod_run_f32, *=, d)
ROW_WIDE(prod_f64, double, prod_run_f64, *=, d)

/* Sums of integers and counts of nonzero elements, which do not depend on the order. */
#define ROW_INT(name, T, expr) \
  static void row_##name(const char *p, int64_t stride, int64_t n, total *to) \
  { \
    uint64_t lane[LANES] = { 0 }, rest = 0; \
    int64_t i = 0; \
    if (stride == sizeof(T)) { \
      for (; i + LANES <= n; i += LANES) { \
        const T *v = (const T *)p + i; \
        AX_SIMD \
        for (int j = 0; j < LANES; j++) { \
          const T x = v[j]; \
          lane[j] += (uint64_t)(expr); \
        } \
      } \
      FOLD(16) FOLD(8) FOLD(4) FOLD(2) FOLD(1) \
    } \
    for (; i < n; i++) { \
      const T x = *(const T *)(p + i * stride); \
      rest += (uint64_t)(expr); \
    } \
    to->u += lane[0] + rest; \
  }

/* Rows come in blocks of at most 64, so that float32 sums stay short.  Four of them are added
 * between a load and a store of the sums. */
#define COLUMNS(name, A, T, expr, field, type) \
  static inline A element_##name(T x) { return expr; } \
  static void column_##name(const char *p, int64_t stride, int64_t n, const int64_t *at, int64_t rows, \
                            total *to) \
  { \
    A sum[AX_TILE] = { 0 }; \
    int64_t r = 0; \
    for (; stride == sizeof(T) && r + 4 <= rows; r += 4) { \
      const T *a = (const T *)(p + at[r]), *b = (const T *)(p + at[r + 1]), *c = (const T *)(p + at[r + 2]), \
              *d = (const T *)(p + at[r + 3]); \
      AX_SIMD \
      for (int64_t j = 0; j < n; j++) \
        sum[j] = (((sum[j] + element_##name(a[j])) + element_##name(b[j])) + element_##name(c[j])) + \
                 element_##name(d[j]); \
    } \
    for (; r < rows; r++) { \
      const char *row = p + at[r]; \
      if (stride == sizeof(T)) { \
        AX_SIMD \
        for (int64_t j = 0; j < n; j++) sum[j] += element_##name(((const T *)row)[j]); \
      } else if (stride == 0) { \
        const A x = element_##name(*(const T *)row); \
        AX_SIMD \
        for (int64_t j = 0; j < n; j++) sum[j] += x; \
      } else \
        for (int64_t j = 0; j < n; j++) sum[j] += element_##name(*(const T *)(row + j * stride)); \
    } \
    AX_SIMD \
    for (int64_t j = 0; j < n; j++) to[j].field = (type)to[j].field + sum[j]; \
  }

COLUMNS(f32, float, float, x, d, double)
COLUMNS(f64, double, double, x, d, double)
COLUMNS(f16, float, uint16_t, ax_half_to_float(x), d, double)
COLUMNS(bf16, float, uint16_t, ax_bf16_to_float(x), d, double)

#define INT_PAIR(name, T, expr) \
  ROW_INT(name, T, expr) \
  COLUMNS(name, uint64_t, T, (uint64_t)(expr), i, uint64_t)
COLUMNS(i64, uint64_t, int64_t, (uint64_t)x, i, uint64_t)
INT_PAIR(i32, int32_t, (int64_t)x)
INT_PAIR(u8, uint8_t, x)
INT_PAIR(count_1, uint8_t, x != 0)
/* half types: -0 counts as 0 */
INT_PAIR(count_2, uint16_t, (x & 0x7fff) != 0)
INT_PAIR(count_4, int32_t, x != 0)
INT_PAIR(count_8, int64_t, x != 0)
INT_PAIR(count_f32, float, x != 0)
INT_PAIR(count_f64, double, x != 0)

/* ---- products */

#define ROW_PRODUCTS(name, T, A, field, LOAD) \
  static void row_prod_##name(const char *p, int64_t stride, int64_t n, total *to) \
  { \
    A lane[LANES], rest = 1; \
    int64_t i = 0; \
    for (int j = 0; j < LANES; j++) lane[j] = 1; \
    if (stride == sizeof(T)) { \
      const T *x = (const T *)p; \
      for (; i + LANES <= n; i += LANES) { \
        AX_SIMD \
        for (int j = 0; j < LANES; j++) lane[j] *= (A)LOAD(x[i + j]); \
      } \
    } \
    for (; i < n; i++) rest *= (A)LOAD(*(const T *)(p + i * stride)); \
    FOLD_BY(*=, 16) FOLD_BY(*=, 8) FOLD_BY(*=, 4) FOLD_BY(*=, 2) FOLD_BY(*=, 1) to->field *= lane[0] * rest; \
  }
#define COLUMN_PRODUCTS(name, T, A, field, LOAD) \
  static void column_prod_##name(const char *p, int64_t stride, int64_t n, const int64_t *at, int64_t rows, \
                                 total *to) \
  { \
    int64_t r = 0; \
    for (; stride == sizeof(T) && r + 4 <= rows; r += 4) { \
      const T *a = (const T *)(p + at[r]), *b = (const T *)(p + at[r + 1]), *c = (const T *)(p + at[r + 2]), \
              *d = (const T *)(p + at[r + 3]); \
      AX_SIMD \
      for (int64_t j = 0; j < n; j++) \
        to[j].field = (((to[j].field * (A)LOAD(a[j])) * (A)LOAD(b[j])) * (A)LOAD(c[j])) * (A)LOAD(d[j]); \
    } \
    for (; r < rows; r++) { \
      const char *row = p + at[r]; \
      if (stride == sizeof(T)) { \
        AX_SIMD \
        for (int64_t j = 0; j < n; j++) to[j].field *= (A)LOAD(((const T *)row)[j]); \
      } else \
        for (int64_t j = 0; j < n; j++) to[j].field *= (A)LOAD(*(const T *)(row + j * stride)); \
    } \
  }
#define IS_TRUE(x) ((x) != 0)
#define SIGNED(x) ((int64_t)(x))
#define PRODUCTS(...) ROW_PRODUCTS(__VA_ARGS__) COLUMN_PRODUCTS(__VA_ARGS__)
COLUMN_PRODUCTS(f32, float, double, d, AS_IS)
COLUMN_PRODUCTS(f64, double, double, d, AS_IS)
PRODUCTS(f16, uint16_t, double, d, ax_half_to_float)
PRODUCTS(bf16, uint16_t, double, d, ax_bf16_to_float)
PRODUCTS(i64, int64_t, uint64_t, u, AS_IS)
PRODUCTS(i32, int32_t, uint64_t, u, SIGNED)
PRODUCTS(u8, uint8_t, uint64_t, u, AS_IS)
PRODUCTS(truth, uint8_t, uint64_t, u, IS_TRUE)

/* ---- driver */

typedef struct adder {
  row_fn row;
  column_fn column;
} adder;
typedef enum finish { SUM, MEAN, ANY, ALL, PROD } finish;

typedef struct job {
  ax_split s;
  adder add;
  finish what;
  bool integral, accumulate; /* totals are integers; the result is added to what is there */
  void *partial;             /* totals, for ax_cpu_reduce */
} job;

/* Adds the reduced positions of a chunk to to[0 .. g.n). */
static void add_chunk(const job *j, const ax_chunk *p, total *to)
{
  const ax_group *g = &p->g;
  int64_t at[AX_ROWS], n;

  for (int64_t lo = p->from; lo < p->until; lo += n) {
    if (j->s.columns) {
      n = ax_rows_at(&j->s, lo, p->until, at);
      j->add.column(g->in, g->in_step, g->n, at, n, to);
    } else {
      const ax_line l = ax_line_at(&j->s, g, lo, p->until);
      j->add.row(l.p, l.step, l.n, to);
      n = l.n;
    }
  }
}

static void put(const job *j, char *out, total t)
{
  const int64_t count = j->s.reduced.count;

  if (j->what == ANY || j->what == ALL) {
    *(uint8_t *)out = j->what == ANY ? t.i > 0 : t.i == count;
  } else if (j->s.to == AX_I64) {
    *(int64_t *)out = (int64_t)((uint64_t)t.i + (j->accumulate ? (uint64_t) * (int64_t *)out : 0));
  } else {
    double v = j->integral ? (double)t.i : t.d;
    if (j->what == MEAN) v = v / (double)count;
    if (j->s.to == AX_F32) *(float *)out = (float)(j->accumulate ? *(float *)out + v : v);
    else ax_store_double(j->s.to, out, 0, j->accumulate ? ax_load_double(j->s.to, out, 0) + v : v);
  }
}

/* The results of a group that lie side by side: sums and means of floats, in float32 or half. */
static bool put_floats(const job *j, const ax_group *g, const total *sums)
{
  const bool half = ax_is_half(j->s.to), adjacent = g->out_step == (half ? 2 : 4);
  const double count = j->what == MEAN ? (double)j->s.reduced.count : 1;
  float kept[AX_TILE], *out = half ? kept : (float *)g->out;

  if (!adjacent || (!half && j->s.to != AX_F32) || (j->what != SUM && j->what != MEAN)) return false;
  if (j->integral || j->accumulate) return false;
  AX_SIMD
  for (int64_t k = 0; k < g->n; k++) out[k] = (float)(sums[k].d / count);
  if (half) ax_cpu_float_to_half(j->s.to, kept, g->out, 2, g->n);
  return true;
}

/* What n totals begin with. */
static void begin(const job *j, total *to, int64_t n)
{
  if (j->what != PROD) {
    memset(to, 0, (size_t)n * sizeof(total));
    return;
  }
  for (int64_t k = 0; k < n; k++)
    if (j->integral) to[k].i = 1;
    else to[k].d = 1;
}

static void join(const job *j, total *to, total with)
{
  if (!j->integral) to->d = j->what == PROD ? to->d * with.d : to->d + with.d;
  else to->u = j->what == PROD ? to->u * with.u : to->u + with.u;
}

/* Rows of one dim, each with a result.  Short rows: the loop's overhead dominates, so take several
 * rows at once. */
static void reduce_rows(const job *j, int64_t lo, int64_t hi)
{
  const ax_dims *kept = &j->s.kept, *r = &j->s.reduced;

  for (int64_t p = lo; p < hi; p++) {
    total t;
    begin(j, &t, 1);
    j->add.row(j->s.in + p * kept->in[0], r->in[0], r->count, &t);
    put(j, j->s.out + p * kept->out[0], t);
  }
}

static void reduce_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  total to[AX_TILE];

  if (!j->s.columns && j->s.chunks == 1 && j->s.reduced.n == 1 && j->s.kept.n == 1) {
    reduce_rows(j, lo, hi);
    return;
  }

  for (int64_t p = lo; p < hi; p++) {
    const ax_chunk q = ax_chunk_at(&j->s, p);
    total *sums = j->s.chunks > 1 ? (total *)j->partial + q.partial : to;
    begin(j, sums, q.g.n);
    add_chunk(j, &q, sums);
    if (j->s.chunks > 1 || put_floats(j, &q.g, sums)) continue;
    for (int64_t k = 0; k < q.g.n; k++) put(j, q.g.out + k * q.g.out_step, sums[k]);
  }
}

static void join_chunks(const void *ud, const ax_group *g, int64_t k)
{
  const job *j = ud;
  const total *p = (const total *)j->partial + g->first + k;
  total sum = *p;

  for (int64_t c = 1; c < j->s.chunks; c++) join(j, &sum, p[c * j->s.kept.count]);
  put(j, g->out + k * g->out_step, sum);
}

static const adder counts[AX_DTYPE_COUNT];

#define LEAST_RUN 16 /* elements side by side, from which on their dim is worth being the innermost */

/* Whether the input's innermost dim strides over a longer run of neighbours, as in an image whose
 * channels are innermost. */
static bool out_of_order(const ax_iter *it)
{
  const ax_operand *x = &it->op[1];
  const int64_t size = (int64_t)ax_dtype_size(x->dtype);
  bool run = false;
  for (int d = 0; d < it->ndim; d++) {
    if (x->stride[d] <= 0) return false;
    run |= d < it->ndim - 1 && x->stride[d] == size && it->shape[d] >= LEAST_RUN;
  }
  return run && x->stride[it->ndim - 1] > size;
}

/* Divides the loop nest in the order of the input's memory: totals do not depend on which of the
 * reduced positions is which. */
static void split_by_memory(const ax_iter *it, ax_split *s)
{
  ax_iter own = *it;
  if (out_of_order(it)) {
    for (int d = 1; d < own.ndim; d++)
      for (int e = d; e > 0 && own.op[1].stride[e - 1] < own.op[1].stride[e]; e--)
        ax_cpu_swap_dims(&own, e - 1, e);
    ax_cpu_merge_dims(&own);
  }
  ax_cpu_split(&own, s);
}

static ax_status reduce(const ax_call *call, const adder *adders, finish what)
{
  job j = { .what = what, .accumulate = call->a->accumulate };

  split_by_memory(call->iter, &j.s);
  j.add = adders[j.s.from];
  if (!j.add.row) return ax_cpu_no_dtype(call->op, j.s.from);
  j.integral = what == ANY || what == ALL || adders == counts || !ax_is_float(j.s.from);
  return ax_cpu_reduce(&j.s, sizeof(total), &j.partial, reduce_range, join_chunks, &j);
}

#define ADDER(name) \
  { \
    row_##name, column_##name \
  }
static const adder sums[AX_DTYPE_COUNT] = {
  [AX_F32] = ADDER(f32), [AX_F64] = ADDER(f64), [AX_F16] = ADDER(f16), [AX_BF16] = ADDER(bf16),
  [AX_I64] = ADDER(i64), [AX_I32] = ADDER(i32), [AX_U8] = ADDER(u8),   [AX_BOOL] = ADDER(count_1),
};
static const adder means[AX_DTYPE_COUNT] = {
  [AX_F32] = ADDER(f32),
  [AX_F64] = ADDER(f64),
  [AX_F16] = ADDER(f16),
  [AX_BF16] = ADDER(bf16),
};
static const adder counts[AX_DTYPE_COUNT] = {
  [AX_F32] = ADDER(count_f32), [AX_F64] = ADDER(count_f64), [AX_F16] = ADDER(count_2),
  [AX_BF16] = ADDER(count_2),  [AX_I64] = ADDER(count_8),   [AX_I32] = ADDER(count_4),
  [AX_U8] = ADDER(count_1),    [AX_BOOL] = ADDER(count_1),
};
static const adder products[AX_DTYPE_COUNT] = {
  [AX_F32] = ADDER(prod_f32),   [AX_F64] = ADDER(prod_f64),    [AX_F16] = ADDER(prod_f16),
  [AX_BF16] = ADDER(prod_bf16), [AX_I64] = ADDER(prod_i64),    [AX_I32] = ADDER(prod_i32),
  [AX_U8] = ADDER(prod_u8),     [AX_BOOL] = ADDER(prod_truth),
};

ax_status ax_cpu_sum(const ax_call *call) { return reduce(call, sums, SUM); }
ax_status ax_cpu_mean(const ax_call *call) { return reduce(call, means, MEAN); }
ax_status ax_cpu__prod(const ax_call *call) { return reduce(call, products, PROD); }
ax_status ax_cpu_any(const ax_call *call) { return reduce(call, counts, ANY); }
ax_status ax_cpu_all(const ax_call *call) { return reduce(call, counts, ALL); }
ax_status ax_cpu_count_nonzero(const ax_call *call) { return reduce(call, counts, SUM); }

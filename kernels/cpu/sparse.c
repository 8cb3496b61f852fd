/* Products with sparse matrices.  Entries of a row stand one after the other in the plan, so a row
 * of the result is one sum in the plan's order, for any number of threads; threads share the rows
 * by entries.  Columns of the dense matrix are taken by tiles whose sums stay in registers.  Memory
 * bounds both kernels: each entry reads a row of the dense matrix. */
#include "cpu.h"
#include "vector.h"

typedef struct plan {
  const int64_t *starts, *columns, *order; /* order NULL: the values stand in the plan's order */
  int64_t rows, count;
} plan;

typedef struct job {
  plan p;
  int64_t width;
  const void *values, *a, *b;
  void *out;
} job;

/* Reads a plan whose size the rule has checked; every number in it is checked here. */
static ax_status read_plan(ax_op op, const ax_tensor *t, int64_t rows, int64_t columns, int64_t count,
                           plan *p)
{
  const int64_t *data = ax_data(t);
  uint64_t bad = 0;

  p->starts = data;
  p->columns = data + rows + 1;
  p->order = t->numel - rows - 1 > count ? p->columns + count : NULL;
  p->rows = rows;
  p->count = count;
  bad |= (uint64_t)(data[0] != 0) | (uint64_t)(data[rows] != count);
  for (int64_t r = 0; r < rows; r++) bad |= (uint64_t)(data[r] > data[r + 1]);
  for (int64_t e = 0; e < count; e++) bad |= (uint64_t)((uint64_t)p->columns[e] >= (uint64_t)columns);
  for (int64_t e = 0; p->order && e < count; e++) bad |= (uint64_t)((uint64_t)p->order[e] >= (uint64_t)count);
  if (bad) return ax_fail(AX_ERANGE, "%s: the plan holds a position outside the matrix", ax_ops[op].name);
  return AX_OK;
}

/* The first row whose entries and rows before it are at least `at` many. */
static int64_t row_at(const plan *p, int64_t at)
{
  int64_t lo = 0, hi = p->rows;
  while (lo < hi) {
    const int64_t mid = lo + (hi - lo) / 2;
    if (p->starts[mid] + mid < at) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

#define LANES(T) (AX_BYTES / (int64_t)sizeof(T))

/* A tile of n vectors from column c on of row r. */
#define TILE(n, T, V, s) \
  for (; c + n * LANES(T) <= j->width; c += n * LANES(T)) { \
    V sum[n] = { 0 }; \
    for (int64_t e = lo_e; e < hi_e; e++) { \
      const T v = values[p->order ? p->order[e] : e]; \
      const T *x = dense + p->columns[e] * j->width + c; \
      for (int k = 0; k < n; k++) \
        sum[k] = AX_VFMA_##s(v - (V){ 0 }, *(const V *)(x + k * LANES(T)), sum[k]); \
    } \
    for (int k = 0; k < n; k++) *(V *)(y + c + k * LANES(T)) = sum[k]; \
  }

#define PRODUCT(s, T, V) \
  static void product_##s(int64_t lo, int64_t hi, void *ud) \
  { \
    const job *j = ud; \
    const plan *p = &j->p; \
    const T *values = j->values, *dense = j->b; \
    const int64_t end = row_at(p, hi); \
    for (int64_t r = row_at(p, lo); r < end; r++) { \
      const int64_t lo_e = p->starts[r], hi_e = p->starts[r + 1]; \
      T *const y = (T *)j->out + r * j->width; \
      int64_t c = 0; \
      TILE(8, T, V, s) \
      TILE(2, T, V, s) \
      TILE(1, T, V, s) \
      for (; c < j->width; c++) { \
        T sum = 0; \
        for (int64_t e = lo_e; e < hi_e; e++) \
          sum += values[p->order ? p->order[e] : e] * dense[p->columns[e] * j->width + c]; \
        y[c] = sum; \
      } \
    } \
  } \
  static void dots_##s(int64_t lo, int64_t hi, void *ud) \
  { \
    const job *j = ud; \
    const plan *p = &j->p; \
    const T *a = j->a, *b = j->b; \
    T *const out = j->out; \
    const int64_t end = row_at(p, hi), vectors = j->width / LANES(T); \
    for (int64_t r = row_at(p, lo); r < end; r++) \
      for (int64_t e = p->starts[r]; e < p->starts[r + 1]; e++) { \
        const T *x = a + r * j->width, *z = b + p->columns[e] * j->width; \
        V sums = { 0 }; \
        T sum = 0; \
        for (int64_t k = 0; k < vectors; k++) \
          sums = AX_VFMA_##s(*(const V *)(x + k * LANES(T)), *(const V *)(z + k * LANES(T)), sums); \
        for (int64_t c = vectors * LANES(T); c < j->width; c++) sum += x[c] * z[c]; \
        for (int k = 0; k < LANES(T); k++) sum += sums[k]; \
        out[p->order ? p->order[e] : e] = sum; \
      } \
  }
PRODUCT(f32, float, ax_vec_f32)
PRODUCT(f64, double, ax_vec_f64)

ax_status ax_cpu__sparse_product(const ax_call *call)
{
  const ax_tensor *values = call->in[0], *dense = call->in[1], *y = call->out[0];
  job j = { .width = dense->shape[1], .values = ax_data(values), .b = ax_data(dense), .out = ax_data(y) };
  const ax_status st = read_plan(call->op, call->in[2], y->shape[0], dense->shape[0], values->numel, &j.p);
  if (st != AX_OK || y->numel == 0) return st;
  /* the end stands behind the last row's place */
  ax_cpu_for(j.p.count + j.p.rows + 1, y->numel + j.p.count * j.width,
             y->dtype == AX_F32 ? product_f32 : product_f64, &j);
  return AX_OK;
}

ax_status ax_cpu__sparse_dots(const ax_call *call)
{
  const ax_tensor *a = call->in[0], *b = call->in[1], *y = call->out[0];
  job j = { .width = a->shape[1], .a = ax_data(a), .b = ax_data(b), .out = ax_data(y) };
  const ax_status st = read_plan(call->op, call->in[2], a->shape[0], b->shape[0], y->numel, &j.p);
  if (st != AX_OK || y->numel == 0) return st;
  memset(j.out, 0, (size_t)y->numel * ax_itemsize(y)); /* a value that the plan leaves out */
  ax_cpu_for(j.p.count + j.p.rows + 1, j.p.count * (j.width + 1), y->dtype == AX_F32 ? dots_f32 : dots_f64,
             &j);
  return AX_OK;
}

/* gather, scatter and the ops like them, in one walk over the index.
 *
 * The index gives a position along dim for each of its elements; the element's own coordinates give
 * the others.  A walk goes line by line: n positions along dim times a run of w along the last
 * other dim.  Lines never touch each other's elements, so threads share lines (and columns of long
 * runs); within a line everything happens in the order of the index, for any number of threads.  A
 * list of slices (index_add, index_copy, index_fill) is an index with steps of 0 in all dims but
 * one.  Memory bounds all of these. */
#include "core/ops/scatter.h"
#include "cpu.h"

#include <string.h>

typedef struct walk {
  ax_dtype dtype;
  int n; /* dims outside a line */
  /* the steps of those dims, in elements */
  int64_t shape[AX_MAX_DIMS], step_x[AX_MAX_DIMS], step_i[AX_MAX_DIMS], step_s[AX_MAX_DIMS];
  int64_t along, dim_x, dim_i, dim_s; /* positions of the index along dim, and the steps there */
  int64_t width, run_x, run_i, run_s; /* the run */
  int64_t lines, pieces;              /* pieces: columns of a run */
  char *x;                            /* the indexed tensor: read by gather, written by the others */
  const int64_t *index;
  char *s; /* the other tensor */
  double alpha;
  /* unless it is NULL: set where an index is outside 0 .. size - 1, whose line is left out */
  bool *outside;
  int64_t size;
} walk;

#define COLUMNS 512

/* Whether the indices of a piece of a line are within 0 .. size - 1. */
static bool within(const walk *w, const int64_t *index, int64_t width)
{
  const uint64_t size = (uint64_t)w->size;
  const int64_t columns = w->run_i ? width : 1;
  uint64_t bad = 0;

  if (columns == 1 && w->dim_i == 1)
    for (int64_t i = 0; i < w->along; i++) bad |= (uint64_t)index[i] >= size;
  else if (w->run_i == 1)
    for (int64_t i = 0; i < w->along; i++)
      for (int64_t c = 0; c < columns; c++) bad |= (uint64_t)index[i * w->dim_i + c] >= size;
  else
    for (int64_t i = 0; i < w->along; i++)
      for (int64_t c = 0; c < columns; c++) bad |= (uint64_t)index[i * w->dim_i + c * w->run_i] >= size;
  return !bad;
}

/* Checks every index before anything is written.  Dims in which the index has step 0 are checked
 * once. */
static ax_status check_index(ax_op op, const ax_tensor *index, int64_t dim, int64_t size)
{
  int64_t shape[AX_MAX_DIMS], step[AX_MAX_DIMS], lines = 1, run = 1, run_step = 1;
  const int64_t *data = ax_data(index);
  int n = 0;

  if (index->numel == 0) return AX_OK;
  for (int d = 0; d < index->ndim; d++) {
    if (index->strides[d] == 0 || index->shape[d] == 1) continue;
    if (n && step[n - 1] == index->shape[d] * index->strides[d]) {
      shape[n - 1] *= index->shape[d];
      step[n - 1] = index->strides[d];
      continue;
    }
    shape[n] = index->shape[d];
    step[n++] = index->strides[d];
  }
  if (n) {
    run = shape[--n];
    run_step = step[n];
  }
  for (int d = 0; d < n; d++) lines *= shape[d];
  for (int64_t l = 0; l < lines; l++) {
    int64_t at = 0, rest = l;
    uint64_t bad = 0;
    for (int d = n - 1; d >= 0; d--) {
      at += rest % shape[d] * step[d];
      rest /= shape[d];
    }
    if (run_step == 1) {
      const int64_t *p = data + at;
      for (int64_t i = 0; i < run; i++) bad |= (uint64_t)((uint64_t)p[i] >= (uint64_t)size);
    } else
      for (int64_t i = 0; i < run; i++)
        bad |= (uint64_t)((uint64_t)data[at + i * run_step] >= (uint64_t)size);
    if (bad) break;
    if (l + 1 == lines) return AX_OK;
  }
  /* the first bad one, in the order that the user sees */
  for (int64_t flat = 0; flat < index->numel; flat++) {
    int64_t at = 0, rest = flat, where[AX_MAX_DIMS];
    char text[160];
    for (int d = index->ndim - 1; d >= 0; d--) {
      where[d] = rest % index->shape[d];
      at += where[d] * index->strides[d];
      rest /= index->shape[d];
    }
    if (data[at] >= 0 && data[at] < size) continue;
    return ax_fail(AX_ERANGE,
                   "%s: index %lld at position %s (from 0) is outside 0..%lld, dim %lld has size %lld",
                   ax_ops[op].name, (long long)data[at], ax_shape_text(index->ndim, where, text, sizeof text),
                   (long long)size - 1, (long long)dim + 1, (long long)size);
  }
  return AX_OK;
}

/* Plans the walk over `index`, as wide as `like` (the index itself, or the slices that it
 * selects).  s NULL: a number instead. */
static void plan(walk *w, const ax_tensor *x, const ax_tensor *index, const ax_tensor *s, int64_t dim,
                 bool slices, const ax_tensor *like)
{
  const int ndim = like->ndim;
  int run = -1;

  w->along = w->width = w->lines = w->pieces = 1;
  w->dim_x = w->dim_i = w->dim_s = w->run_x = w->run_i = w->run_s = 0;
  w->n = 0;
  for (int d = ndim - 1; d >= 0 && run < 0; d--)
    if (d != dim && like->shape[d] > 1) run = d;
  /* a run along dim itself walks memory best */
  if (run >= 0 && dim > run && (slices ? index->numel : like->shape[dim]) > 1) run = -1;
  for (int d = 0; d < ndim; d++) {
    const int64_t size = slices && d == dim ? index->numel : like->shape[d];
    const int64_t sx = x->ndim ? x->strides[d] : 0, ss = s && s->ndim ? s->strides[d] : 0;
    const int64_t si = !slices ? index->strides[d] : d == dim && index->ndim ? index->strides[0] : 0;
    if (d == dim) {
      w->along = size;
      w->dim_x = sx, w->dim_i = si, w->dim_s = ss;
    } else if (d == run) {
      w->width = size;
      w->run_x = sx, w->run_i = si, w->run_s = ss;
    } else if (size != 1) {
      w->shape[w->n] = size;
      w->step_x[w->n] = sx, w->step_i[w->n] = si, w->step_s[w->n++] = ss;
      w->lines *= size;
    }
  }
  w->pieces = (w->width + COLUMNS - 1) / COLUMNS;
}

typedef void (*line_fn)(const walk *w, char *x, const int64_t *index, char *s, int64_t width);

/* Calls `line` for the pieces lo .. hi. */
static void walk_lines(const walk *w, int64_t lo, int64_t hi, line_fn line)
{
  const int64_t item = (int64_t)ax_dtype_size(w->dtype);
  int64_t at[AX_MAX_DIMS], x = 0, i = 0, s = 0, rest = lo / w->pieces, piece = lo % w->pieces;

  for (int d = w->n - 1; d >= 0; d--) {
    at[d] = rest % w->shape[d];
    rest /= w->shape[d];
    x += at[d] * w->step_x[d], i += at[d] * w->step_i[d], s += at[d] * w->step_s[d];
  }
  for (int64_t p = lo; p < hi; p++) {
    const int64_t from = piece * COLUMNS, width = w->width - from < COLUMNS ? w->width - from : COLUMNS;
    const int64_t *const index = w->index + i + from * w->run_i;
    if (w->outside && !within(w, index, width)) __atomic_store_n(w->outside, true, __ATOMIC_RELAXED);
    else line(w, w->x + (x + from * w->run_x) * item, index, w->s + (s + from * w->run_s) * item, width);
    if (++piece < w->pieces) continue;
    piece = 0;
    for (int d = w->n - 1; d >= 0; d--) {
      x += w->step_x[d], i += w->step_i[d], s += w->step_s[d];
      if (++at[d] < w->shape[d]) break;
      x -= at[d] * w->step_x[d], i -= at[d] * w->step_i[d], s -= at[d] * w->step_s[d];
      at[d] = 0;
    }
  }
}

/* `one`: the statement for a pair of elements X (of x) and S; `row`: the statement for a run of
 * adjacent pairs. */
#define LINE(name, T, U, row, one) \
  static void name##_line(const walk *w, char *xp, const int64_t *index, char *sp, int64_t width) \
  { \
    T *const x = (T *)xp, *const s = (T *)sp; \
    const U alpha __attribute__((unused)) = (U)w->alpha; \
    if (width == 1) { \
      for (int64_t i = 0; i < w->along; i++) { \
        T *const X = x + index[i * w->dim_i] * w->dim_x, *const S = s + i * w->dim_s; \
        one; \
      } \
      return; \
    } \
    for (int64_t i = 0; i < w->along; i++) { \
      const int64_t *at = index + i * w->dim_i; \
      T *const from = s + i * w->dim_s; \
      if (w->run_i == 0 && w->run_x == 1 && w->run_s == 1) { \
        T *const to = x + at[0] * w->dim_x; \
        row \
      } else \
        for (int64_t c = 0; c < width; c++) { \
          T *const X = x + at[c * w->run_i] * w->dim_x + c * w->run_x, *const S = from + c * w->run_s; \
          one; \
        } \
    } \
  } \
  static void name##_range(int64_t lo, int64_t hi, void *ud) { walk_lines(ud, lo, hi, name##_line); }

#define MOVES(bits) \
  LINE(gather##bits, uint##bits##_t, int64_t, memcpy(from, to, (size_t)width * sizeof(*to));, *S = *X) \
  LINE(set##bits, uint##bits##_t, int64_t, memcpy(to, from, (size_t)width * sizeof(*to));, *X = *S)
MOVES(8)
MOVES(16)
MOVES(32)
MOVES(64)

#define EACH \
  AX_SIMD \
  for (int64_t c = 0; c < width; c++)
#define ADDS(name, T, U, sum) \
  LINE( \
      add_##name, T, U, \
      EACH { \
        T *const X = to + c; \
        T *const S = from + c; \
        sum; \
      }, \
      sum)
ADDS(f32, float, float, *X = *X + alpha * *S)
ADDS(f64, double, double, *X = *X + alpha * *S)
ADDS(f16, uint16_t, float, *X = ax_float_to_half(ax_half_to_float(*X) + alpha * ax_half_to_float(*S)))
ADDS(bf16, uint16_t, float, *X = ax_float_to_bf16(ax_bf16_to_float(*X) + alpha * ax_bf16_to_float(*S)))
ADDS(i64, int64_t, int64_t, *X = (int64_t)((uint64_t)*X + (uint64_t)alpha * (uint64_t)*S))
ADDS(i32, int32_t, int64_t, *X = (int32_t)((uint32_t)*X + (uint32_t)alpha * (uint32_t)*S))
ADDS(u8, uint8_t, int64_t, *X = (uint8_t)(*X + (uint8_t)alpha * *S))
ADDS(bool, uint8_t, bool, *X = (uint8_t)(*X | (alpha & *S)))

/* NaN is kept. */
#define LARGER(a, b) (((a) > (b)) | ((a) != (a)))
#define SMALLER(a, b) (((a) < (b)) | ((a) != (a)))
/* a where first is 1, b where it is 0: in bits, without a branch, which would be mispredicted at
 * every other element. */
#define CHOOSE(name, T, BITS) \
  static inline T choose_##name(int first, T a, T b) \
  { \
    BITS u, v; \
    memcpy(&u, &a, sizeof u), memcpy(&v, &b, sizeof v); \
    v ^= (BITS)((u ^ v) & (BITS) - (BITS)first); \
    memcpy(&b, &v, sizeof v); \
    return b; \
  }
CHOOSE(f32, float, uint32_t)
CHOOSE(f64, double, uint64_t)
CHOOSE(f16, uint16_t, uint16_t)
CHOOSE(bf16, uint16_t, uint16_t)
CHOOSE(i64, int64_t, uint64_t)
CHOOSE(i32, int32_t, uint32_t)
CHOOSE(u8, uint8_t, uint8_t)
#define REDUCES(name, T, U, load, product) \
  ADDS(prod_##name, T, U, *X = product) \
  ADDS(amax_##name, T, U, *X = choose_##name(LARGER(load(*S), load(*X)), *S, *X)) \
  ADDS(amin_##name, T, U, *X = choose_##name(SMALLER(load(*S), load(*X)), *S, *X))
REDUCES(f32, float, float, , *X **S)
REDUCES(f64, double, double, , *X **S)
REDUCES(f16, uint16_t, float, ax_half_to_float, ax_float_to_half(ax_half_to_float(*X) * ax_half_to_float(*S)))
REDUCES(bf16, uint16_t, float, ax_bf16_to_float,
        ax_float_to_bf16(ax_bf16_to_float(*X) * ax_bf16_to_float(*S)))
REDUCES(i64, int64_t, int64_t, , (int64_t)((uint64_t)*X *(uint64_t)*S))
REDUCES(i32, int32_t, int64_t, , (int32_t)((uint32_t)*X *(uint32_t)*S))
REDUCES(u8, uint8_t, int64_t, , (uint8_t)(*X **S))
#define REDUCED(op) \
  { \
    [AX_F32] = add_##op##_f32_range, [AX_F64] = add_##op##_f64_range, [AX_F16] = add_##op##_f16_range, \
    [AX_BF16] = add_##op##_bf16_range, [AX_I64] = add_##op##_i64_range, [AX_I32] = add_##op##_i32_range, \
    [AX_U8] = add_##op##_u8_range, \
  }
static const ax_range_fn reduces[][AX_DTYPE_COUNT] = {
  [AX_SCATTER_PROD] = REDUCED(prod), [AX_SCATTER_AMAX] = REDUCED(amax), [AX_SCATTER_AMIN] = REDUCED(amin)
};

static const ax_range_fn gathers[9] = {
  [1] = gather8_range, [2] = gather16_range, [4] = gather32_range, [8] = gather64_range
};
static const ax_range_fn sets[9] = {
  [1] = set8_range, [2] = set16_range, [4] = set32_range, [8] = set64_range
};
static const ax_range_fn adds[AX_DTYPE_COUNT] = {
  [AX_F32] = add_f32_range, [AX_F64] = add_f64_range, [AX_F16] = add_f16_range, [AX_BF16] = add_bf16_range,
  [AX_I64] = add_i64_range, [AX_I32] = add_i32_range, [AX_U8] = add_u8_range,   [AX_BOOL] = add_bool_range,
};

static int64_t size_along(const ax_tensor *x, int64_t dim) { return x->ndim ? x->shape[dim] : 1; }

ax_status ax_cpu_gather(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *index = call->in[1], *y = call->out[0];
  const int64_t dim = call->a->gather.dim, item = (int64_t)ax_itemsize(x);
  bool outside = false;
  walk w = { .dtype = (ax_dtype)x->dtype,
             .x = ax_data(x),
             .index = ax_data(index),
             .s = ax_data(y),
             .outside = &outside,
             .size = size_along(x, dim) };

  if (y->numel == 0) return AX_OK;
  plan(&w, x, index, y, dim, false, index);
  ax_cpu_for(w.lines * w.pieces, y->numel, gathers[item], &w);
  return outside ? check_index(call->op, index, dim, w.size) : AX_OK;
}

/* Writes zeros or a copy of x, then walks. */
static ax_status write_at(const ax_call *call, const ax_tensor *x, const ax_tensor *s, bool slices, bool add)
{
  const ax_tensor *index = call->in[1], *y = call->out[0];
  const int64_t dim = call->a->write_at.dim, item = (int64_t)ax_itemsize(y);
  int64_t number = 0;
  walk w = { .dtype = (ax_dtype)y->dtype, .x = ax_data(y), .index = ax_data(index), .alpha = 1 };
  const ax_status st = check_index(call->op, index, dim, size_along(y, dim));

  if (st != AX_OK) return st;
  if (add && !adds[y->dtype]) return ax_cpu_no_dtype(call->op, (ax_dtype)y->dtype);
  if (y->numel == 0) return AX_OK;
  if (!x) memset(ax_data(y), 0, (size_t)(y->numel * item));
  else if (ax_data(x) != ax_data(y))
    ax_cpu_copy_strided(x->ndim, x->shape, (ax_dtype)y->dtype, ax_data(y), (ax_dtype)x->dtype, ax_data(x),
                        x->strides);
  if (index->numel == 0) return AX_OK;
  if (s) w.s = ax_data(s);
  else {
    ax_store_double((ax_dtype)y->dtype, &number, 0,
                    call->op == AX_OP_SCATTER ? call->a->scatter.number : call->a->index_fill.value);
    w.s = (char *)&number;
  }
  if (call->op == AX_OP_INDEX_ADD) w.alpha = call->a->index_add.alpha;
  plan(&w, y, index, s, dim, slices, slices ? y : index);
  int64_t work = w.lines * w.width * w.along;
  const ax_range_fn *update =
      call->op == AX_OP_SCATTER_REDUCE ? reduces[call->a->scatter_reduce.reduce] : adds;
  ax_cpu_for(w.lines * w.pieces, work, add ? update[y->dtype] : sets[item], &w);
  return AX_OK;
}

ax_status ax_cpu__gather_backward(const ax_call *call)
{
  return write_at(call, NULL, call->in[0], false, true);
}
ax_status ax_cpu_scatter(const ax_call *call)
{
  return write_at(call, call->in[0], call->in[2], false, false);
}
ax_status ax_cpu_scatter_add(const ax_call *call)
{
  return write_at(call, call->in[0], call->in[2], false, true);
}
ax_status ax_cpu__scatter_reduce(const ax_call *call)
{
  return write_at(call, call->in[0], call->in[2], false, true);
}
ax_status ax_cpu_index_add(const ax_call *call)
{
  return write_at(call, call->in[0], call->in[2], true, true);
}
ax_status ax_cpu_index_copy(const ax_call *call)
{
  return write_at(call, call->in[0], call->in[2], true, false);
}
ax_status ax_cpu_index_fill(const ax_call *call) { return write_at(call, call->in[0], NULL, true, false); }

/* ---- embedding, one_hot */

typedef struct table {
  const int64_t *index;
  int64_t n, count, row, padding; /* row: its bytes, or the elements of a gradient */
  const char *src;
  char *dst;
  bool accumulate;
} table;

static void embed_range(int64_t lo, int64_t hi, void *ud)
{
  const table *t = ud;
  for (int64_t i = lo; i < hi; i++)
    memcpy(t->dst + i * t->row, t->src + t->index[i] * t->row, (size_t)t->row);
}

ax_status ax_cpu_embedding(const ax_call *call)
{
  const ax_tensor *input = call->in[0], *w = call->in[1], *y = call->out[0];
  table t = { .index = ax_data(input),
              .row = w->shape[1] * (int64_t)ax_itemsize(w),
              .src = ax_data(w),
              .dst = ax_data(y) };
  const ax_status st = check_index(call->op, input, 0, w->shape[0]);
  if (st == AX_OK && y->numel) ax_cpu_for(input->numel, AX_MOVED(input->numel * t.row), embed_range, &t);
  return st;
}

/* Threads share the rows of the weight; each searches the whole index for its own rows, so a row's
 * sum is added in the order of the index. */
#define EMBED_ADD(name, T) \
  static void embed_add_##name(int64_t lo, int64_t hi, void *ud) \
  { \
    const table *t = ud; \
    const int64_t width = t->row; \
    if (!t->accumulate) memset((T *)t->dst + lo * width, 0, (size_t)((hi - lo) * width) * sizeof(T)); \
    for (int64_t i = 0; i < t->n; i++) { \
      const int64_t r = t->index[i]; \
      if (r < lo || r >= hi || r == t->padding) continue; \
      T *const x = (T *)t->dst + r * width; \
      const T *const g = (const T *)t->src + i * width; \
      EACH x[c] += g[c]; \
    } \
  }
EMBED_ADD(f32, float)
EMBED_ADD(f64, double)

ax_status ax_cpu__embedding_backward(const ax_call *call)
{
  const ax_tensor *g = call->in[0], *input = call->in[1], *y = call->out[0];
  table t = { .index = ax_data(input),
              .n = input->numel,
              .count = y->shape[0],
              .row = y->shape[1],
              .src = ax_data(g),
              .dst = ax_data(y),
              .padding = call->a->embedding_backward.padding_idx == AX_NO_DIM
                             ? -1
                             : call->a->embedding_backward.padding_idx,
              .accumulate = call->a->accumulate };
  const ax_status st = check_index(call->op, input, 0, t.count);

  if (st != AX_OK || y->numel == 0) return st;
  if (y->dtype != AX_F32 && y->dtype != AX_F64) return ax_cpu_no_dtype(call->op, (ax_dtype)y->dtype);
  ax_cpu_for(t.count, g->numel + (t.accumulate ? 0 : y->numel / 4),
             y->dtype == AX_F32 ? embed_add_f32 : embed_add_f64, &t);
  return AX_OK;
}

static void one_hot_range(int64_t lo, int64_t hi, void *ud)
{
  const table *t = ud;
  int64_t *y = (int64_t *)t->dst;
  memset(y + lo * t->count, 0, (size_t)((hi - lo) * t->count) * sizeof *y);
  for (int64_t i = lo; i < hi; i++) y[i * t->count + t->index[i]] = 1;
}

ax_status ax_cpu__one_hot(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  table t = { .index = ax_data(x), .count = call->a->one_hot_of.num_classes, .dst = ax_data(y) };
  const int64_t *v = t.index;

  for (int64_t i = 0; i < x->numel; i++)
    if (v[i] < 0 || v[i] >= t.count)
      return ax_fail(AX_ERANGE, "one_hot: %lld at flat position %lld (from 0) is no class of 0..%lld",
                     (long long)v[i], (long long)i, (long long)t.count - 1);
  if (y->numel) ax_cpu_for(x->numel, AX_MOVED(y->numel * 8), one_hot_range, &t);
  return AX_OK;
}

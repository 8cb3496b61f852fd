/* tile, tril, triu, and pad with elements of the input: copies that strides cannot express.  Memory
 * bounds them; threads share rows of the result. */
#include "cpu.h"

#include <string.h>

#include "core/ops/pad.h"

/* ---- tile */

/* Dims from the outermost on, neighbours merged where that changes nothing.  A block of dim d
 * consists of size[d] blocks of dim d + 1 and is repeated repeats[d] times. */
typedef struct tile {
  int n;
  int64_t size[AX_MAX_DIMS + 1], repeats[AX_MAX_DIMS + 1];
  /* bytes of one position of dim d, in x and in the result */
  int64_t from[AX_MAX_DIMS + 1], to[AX_MAX_DIMS + 1];
  const char *src;
  char *dst;
} tile;

/* p holds `have` bytes: repeats them up to `total`, in growing pieces. */
static void repeat_bytes(char *p, int64_t have, int64_t total)
{
  for (int64_t done = have; done < total;) {
    const int64_t n = done < total - done ? done : total - done;
    memcpy(p + done, p, (size_t)n);
    done += n;
  }
}

static void fill_block(const tile *t, int d, const char *src, char *dst)
{
  if (t->repeats[d] == 0) return;
  if (d == t->n - 1) memcpy(dst, src, (size_t)(t->size[d] * t->from[d]));
  else
    for (int64_t i = 0; i < t->size[d]; i++) fill_block(t, d + 1, src + i * t->from[d], dst + i * t->to[d]);
  repeat_bytes(dst, t->size[d] * t->to[d], t->repeats[d] * t->size[d] * t->to[d]);
}

static void tile_range(int64_t lo, int64_t hi, void *ud)
{
  const tile *t = ud;
  for (int64_t i = lo; i < hi; i++) {
    if (t->n > 1) fill_block(t, 1, t->src + i * t->from[0], t->dst + i * t->to[0]);
    else memcpy(t->dst + i * t->to[0], t->src + i * t->from[0], (size_t)t->from[0]);
  }
}

static void tile_again(int64_t lo, int64_t hi, void *ud) /* repeats 1 .. of the outermost dim */
{
  const tile *t = ud;
  const int64_t block = t->size[0] * t->to[0];
  for (int64_t i = lo; i < hi; i++) memcpy(t->dst + (i + 1) * block, t->dst, (size_t)block);
}

ax_status ax_cpu_tile(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  const int64_t item = (int64_t)ax_itemsize(x);
  tile t = { .n = 1, .size = { 1 }, .repeats = { 1 }, .src = ax_data(x), .dst = ax_data(y) };

  if (y->numel == 0) return AX_OK;
  for (int d = 0; d < y->ndim; d++) {
    const int64_t r = call->a->list[d], s = y->shape[d] / r;
    /* (s0, r0) and (s1, 1) are (s0 s1, r0); (1, r0) and (1, r1) are (1, r0 r1) */
    if (r == 1 || t.size[t.n - 1] == 1) {
      if (r == 1) t.size[t.n - 1] *= s;
      else if (s == 1 || t.repeats[t.n - 1] == 1) {
        t.size[t.n - 1] *= s;
        t.repeats[t.n - 1] *= r;
      } else goto apart;
      continue;
    }
  apart:
    t.size[t.n] = s;
    t.repeats[t.n++] = r;
  }
  t.from[t.n - 1] = t.to[t.n - 1] = item;
  for (int d = t.n - 2; d >= 0; d--) {
    t.from[d] = t.size[d + 1] * t.from[d + 1];
    t.to[d] = t.size[d + 1] * t.repeats[d + 1] * t.to[d + 1];
  }
  if (t.n == 1) memcpy(t.dst, t.src, (size_t)(t.size[0] * item));
  else ax_cpu_for(t.size[0], AX_MOVED(t.size[0] * t.to[0]), tile_range, &t);
  if (t.size[0] * t.to[0] < 4096) repeat_bytes(t.dst, t.size[0] * t.to[0], y->numel * item);
  else ax_cpu_for(t.repeats[0] - 1, AX_MOVED(y->numel * item), tile_again, &t);
  return AX_OK;
}

/* ---- tril, triu */

typedef struct triangle {
  int64_t rows, row_bytes, item, cols, diagonal;
  bool upper;
  const char *src;
  char *dst;
} triangle;

static void triangle_range(int64_t lo, int64_t hi, void *ud)
{
  const triangle *t = ud;
  for (int64_t r = lo; r < hi; r++) {
    const char *from = t->src + r * t->row_bytes;
    char *to = t->dst + r * t->row_bytes;
    /* the number of columns before the first one above (tril) or on (triu) the diagonal */
    int64_t below = r % t->rows + t->diagonal + !t->upper;
    below = (below < 0 ? 0 : below > t->cols ? t->cols : below) * t->item;
    const int64_t kept = t->upper ? t->row_bytes - below : below, at = t->upper ? below : 0;
    if (to != from) memcpy(to + at, from + at, (size_t)kept);
    memset(t->upper ? to : to + below, 0, (size_t)(t->row_bytes - kept));
  }
}

static ax_status triangle_of(const ax_call *call, bool upper)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  const int64_t rows = x->shape[x->ndim - 2], cols = x->shape[x->ndim - 1], item = (int64_t)ax_itemsize(x),
                most = rows + cols;
  const int64_t asked = call->a->triangle.diagonal, diagonal = asked > most    ? most
                                                               : asked < -most ? -most
                                                                               : asked;
  triangle t = { rows, cols * item, item, cols, diagonal, upper, ax_data(x), ax_data(y) };
  if (y->numel) ax_cpu_for(y->numel / cols, AX_MOVED(y->numel * item), triangle_range, &t);
  return AX_OK;
}

ax_status ax_cpu_tril(const ax_call *call) { return triangle_of(call, false); }
ax_status ax_cpu_triu(const ax_call *call) { return triangle_of(call, true); }

/* ---- pad with elements of the input */

/* x is (outer, small[0] .. small[n-1], inner), the padded tensor is (outer, wide[0] .. wide[n-1],
 * inner); position j of wide dim d is a copy of position map[d][j]. */
typedef struct margins {
  ax_dtype dtype;
  int n;
  int64_t outer, inner, small[AX_MAX_DIMS], wide[AX_MAX_DIMS], before[AX_MAX_DIMS], *map[AX_MAX_DIMS];
  /* elements of one outer position of x; rows (all padded dims but the last) of one outer position
   * of the padded tensor */
  int64_t small_block, wide_rows, item;
  const char *src;
  char *dst;
} margins;

/* `x` is the tensor without margins, `y` with.  The caller frees *maps. */
static ax_status margins_of(margins *m, const ax_tensor *x, const ax_tensor *y, const ax_attrs *a,
                            int64_t **maps)
{
  int first = x->ndim, last = -1;
  int64_t places = 0;

  for (int d = 0; d < x->ndim; d++) {
    const int k = 2 * (x->ndim - 1 - d);
    if (k >= a->n_list || (a->list[k] == 0 && a->list[k + 1] == 0)) continue;
    if (first > d) first = d;
    last = d;
  }
  if (last < 0) first = last = x->ndim - 1 < 0 ? 0 : x->ndim - 1;
  m->outer = m->inner = m->small_block = m->wide_rows = 1;
  m->item = (int64_t)ax_itemsize(x);
  m->n = 0;
  for (int d = 0; d < x->ndim; d++) {
    if (d < first) m->outer *= x->shape[d];
    else if (d > last) m->inner *= x->shape[d];
    else {
      m->small[m->n] = x->shape[d];
      m->wide[m->n] = y->shape[d];
      const int k = 2 * (x->ndim - 1 - d);
      m->before[m->n++] = k < a->n_list ? a->list[k] : 0;
      places += y->shape[d];
      m->small_block *= x->shape[d];
      if (d < last) m->wide_rows *= y->shape[d];
    }
  }
  if (m->n == 0) m->small[0] = m->wide[0] = m->n = 1, m->before[0] = 0, places = 1; /* 0-d */
  m->small_block *= m->inner;
  int64_t *p = *maps = ax_malloc(sizeof *p * (size_t)places);
  if (!p) return AX_ENOMEM;
  for (int d = 0; d < m->n; p += m->wide[d++]) {
    m->map[d] = p;
    for (int64_t j = 0; j < m->wide[d]; j++)
      p[j] = ax_pad_source((int)a->pad_mode.mode, j - m->before[d], m->small[d]);
  }
  return AX_OK;
}

/* The element of x at which row r of the padded tensor begins, without its last dim. */
static int64_t row_start(const margins *m, int64_t r)
{
  int64_t at = 0, step = m->small[m->n - 1] * m->inner;
  for (int d = m->n - 2; d >= 0; d--) {
    at += m->map[d][r % m->wide[d]] * step;
    step *= m->small[d];
    r /= m->wide[d];
  }
  return at + r * m->small_block;
}

static void pad_range(int64_t lo, int64_t hi, void *ud)
{
  const margins *m = ud;
  const int64_t last = m->n - 1, wide = m->wide[last], small = m->small[last], *map = m->map[last],
                piece = m->inner * m->item;
  /* the part that is x itself */
  int64_t begin = m->before[last] > 0 ? m->before[last] : 0, end = m->before[last] + small;

  if (end > wide) end = wide;
  if (begin > end) begin = end = 0;
  for (int64_t r = lo; r < hi; r++) {
    const char *from = m->src + row_start(m, r) * m->item;
    char *to = m->dst + r * wide * piece;
    for (int64_t j = 0; j < begin; j++) memcpy(to + j * piece, from + map[j] * piece, (size_t)piece);
    if (end > begin) memcpy(to + begin * piece, from + map[begin] * piece, (size_t)((end - begin) * piece));
    for (int64_t j = end; j < wide; j++) memcpy(to + j * piece, from + map[j] * piece, (size_t)piece);
  }
}

ax_status ax_cpu__pad_mode(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  margins m = { .dtype = (ax_dtype)x->dtype, .src = ax_data(x), .dst = ax_data(y) };
  int64_t *maps = NULL;
  const ax_status st = y->numel ? margins_of(&m, x, y, call->a, &maps) : AX_OK;
  if (st == AX_OK && y->numel) ax_cpu_for(m.outer * m.wide_rows, AX_MOVED(y->numel * m.item), pad_range, &m);
  ax_mfree(maps);
  return st;
}

/* Threads share the outer positions; within one, sums are added in the order of g. */
#define UNPAD(name, T, U) \
  static void unpad_##name(int64_t lo, int64_t hi, void *ud) \
  { \
    const margins *m = ud; \
    const int64_t last = m->n - 1, wide = m->wide[last], *map = m->map[last], inner = m->inner; \
    memset((T *)m->dst + lo * m->small_block, 0, (size_t)((hi - lo) * m->small_block) * sizeof(T)); \
    for (int64_t r = lo * m->wide_rows; r < hi * m->wide_rows; r++) { \
      const T *g = (const T *)m->src + r * wide * inner; \
      T *x = (T *)m->dst + row_start(m, r); \
      for (int64_t j = 0; j < wide; j++) \
        for (int64_t k = 0; k < inner; k++) \
          x[map[j] * inner + k] = (T)((U)x[map[j] * inner + k] + (U)g[j * inner + k]); \
    } \
  }
UNPAD(f32, float, float)
UNPAD(f64, double, double)
UNPAD(i64, int64_t, uint64_t)
UNPAD(i32, int32_t, uint32_t)
UNPAD(u8, uint8_t, uint32_t)

ax_status ax_cpu__pad_mode_backward(const ax_call *call)
{
  static const ax_range_fn unpads[AX_DTYPE_COUNT] = {
    [AX_F32] = unpad_f32, [AX_F64] = unpad_f64, [AX_I64] = unpad_i64, [AX_I32] = unpad_i32, [AX_U8] = unpad_u8
  };
  const ax_tensor *g = call->in[0], *x = call->out[0];
  margins m = { .dtype = (ax_dtype)x->dtype, .src = ax_data(g), .dst = ax_data(x) };
  int64_t *maps = NULL;

  if (!unpads[x->dtype]) return ax_cpu_no_dtype(call->op, (ax_dtype)x->dtype);
  if (x->numel == 0) return AX_OK;
  if (g->numel == 0) {
    memset(ax_data(x), 0, (size_t)x->numel * ax_itemsize(x));
    return AX_OK;
  }
  const ax_status st = margins_of(&m, x, g, call->a, &maps);
  if (st == AX_OK) ax_cpu_for(m.outer, g->numel, unpads[x->dtype], &m);
  ax_mfree(maps);
  return st;
}

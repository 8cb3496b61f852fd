/* Copies with any strides, from any type to any other.  They are bound by memory: contiguous runs
 * use vector code, and transposing copies go through tiles. */
#include "tiles.h"

#include <string.h>

#include "core/ops/iter.h"

/* ---- between equal types: moves bits, by size */

#define TILE 32 /* the side of a transposing copy's tile */
#define FEW 7   /* columns: these are written in place, as the channels of pictures are */

static inline void turn_1(const char *src, int64_t step, char *dst, int64_t across)
{
  (void)step, (void)across;
  *dst = *src;
}
static inline void turn_16(const char *src, int64_t step, char *dst, int64_t across)
{
  (void)step, (void)across;
  memcpy(dst, src, 16);
}

#define MOVE(size, T, block, turn) \
  static void move_##size(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
    if (stride[0] == size && stride[1] == size) { \
      memmove(data[0], data[1], (size_t)(n * size)); \
    } else if (stride[0] == size && stride[1] == 0) { \
      const T v = *(const T *)data[1]; \
      T *out = (T *)data[0]; \
      AX_SIMD \
      for (int64_t i = 0; i < n; i++) out[i] = v; \
    } else if (stride[0] == size && stride[1] == -size) { /* backward (flip) */ \
      const T *from = (const T *)data[1] - (n - 1); \
      T *out = (T *)data[0]; \
      AX_SIMD \
      for (int64_t i = 0; i < n; i++) out[i] = from[n - 1 - i]; \
    } else \
      for (int64_t i = 0; i < n; i++) \
        *(T *)(data[0] + i * stride[0]) = *(const T *)(data[1] + i * stride[1]); \
  } \
  static void tile_##size(char *dst, int64_t dst_row, const char *src, int64_t src_col, int64_t rows, \
                          int64_t cols) \
  { \
    T buffer[TILE][TILE] __attribute__((aligned(64))); \
    if (cols <= FEW && dst_row == cols * size) { \
      for (int64_t j = 0; j < cols; j++) \
        for (int64_t i = 0; i < rows; i++) \
          *(T *)(dst + (i * cols + j) * size) = *(const T *)(src + j * src_col + i * size); \
      return; \
    } \
    const int64_t down = rows - rows % block, across = cols - cols % block; \
    for (int64_t j = 0; j < across; j += block) { \
      const char *from = src + j * src_col; \
      for (int64_t i = 0; i < down; i += block) \
        turn(from + i * size, src_col, (char *)&buffer[i][j], TILE * size); \
    } \
    for (int64_t j = 0; j < cols; j++) { \
      const T *from = (const T *)(src + j * src_col); \
      for (int64_t i = j < across ? down : 0; i < rows; i++) buffer[i][j] = from[i]; \
    } \
    if (cols == TILE) /* copies of a known size need no call */ \
      for (int64_t i = 0; i < rows; i++) memcpy(dst + i * dst_row, buffer[i], TILE * size); \
    else \
      for (int64_t i = 0; i < rows; i++) memcpy(dst + i * dst_row, buffer[i], (size_t)cols * size); \
  } \
  static void short_##size(char *dst, int64_t dst_row, const char *src, int64_t src_row, int64_t src_col, \
                           int64_t rows, int64_t cols) \
  { \
    for (int64_t i = 0; i < rows; i++) \
      for (int64_t j = 0; j < cols; j++) \
        ((T *)(dst + i * dst_row))[j] = *(const T *)(src + i * src_row + j * src_col); \
  }
MOVE(1, uint8_t, 1, turn_1)
MOVE(2, uint16_t, AX_BLOCK_2, ax_turn_2)
MOVE(4, uint32_t, AX_BLOCK_4, ax_turn_4)
MOVE(8, uint64_t, AX_BLOCK_8, ax_turn_8)
MOVE(16, ax_c128, 1, turn_16)
static const ax_loop moves[17] = { [1] = move_1, [2] = move_2, [4] = move_4, [8] = move_8, [16] = move_16 };
typedef void (*tile_fn)(char *dst, int64_t dst_row, const char *src, int64_t src_col, int64_t rows,
                        int64_t cols);
static const tile_fn tiles[17] = { [1] = tile_1, [2] = tile_2, [4] = tile_4, [8] = tile_8, [16] = tile_16 };

/* A transposing copy: the result is contiguous in one dim (the columns), the source in another (the
 * rows).  Tiles go through a buffer, so that each cache line of either side is touched once; with
 * strides of a power of two, lines would otherwise evict each other half used. */
typedef struct transpose {
  const ax_iter *it;
  int row, col;
  tile_fn tile;
  int64_t tiles_across, tiles_down;
} transpose;

static void transpose_range(int64_t lo, int64_t hi, void *ud)
{
  const transpose *t = ud;
  const ax_iter *it = t->it;
  const ax_operand *o = &it->op[0], *x = &it->op[1];

  for (int64_t p = lo; p < hi; p++) {
    const int64_t i = p / t->tiles_across % t->tiles_down * TILE, j = p % t->tiles_across * TILE;
    int64_t rest = p / t->tiles_across / t->tiles_down, at_o = 0, at_x = 0;
    for (int d = it->ndim - 1; d >= 0; d--) {
      if (d == t->row || d == t->col) continue;
      at_o += rest % it->shape[d] * o->stride[d];
      at_x += rest % it->shape[d] * x->stride[d];
      rest /= it->shape[d];
    }
    const int64_t rows = it->shape[t->row] - i < TILE ? it->shape[t->row] - i : TILE;
    const int64_t cols = it->shape[t->col] - j < TILE ? it->shape[t->col] - j : TILE;
    t->tile(o->data + at_o + i * o->stride[t->row] + j * o->stride[t->col], o->stride[t->row],
            x->data + at_x + i * x->stride[t->row] + j * x->stride[t->col], x->stride[t->col], rows, cols);
  }
}

/* ---- short runs: the last dim of the result is so short (windows, the elements of a point) that a
 * call for each would cost more than the copy */

enum { SHORT = 16, ROWS = 512 };
typedef void (*short_fn)(char *dst, int64_t dst_row, const char *src, int64_t src_row, int64_t src_col,
                         int64_t rows, int64_t cols);
static const short_fn shorts[17] = {
  [1] = short_1, [2] = short_2, [4] = short_4, [8] = short_8, [16] = short_16
};

typedef struct short_runs {
  const ax_iter *it;
  short_fn move;
  int64_t blocks; /* of ROWS runs */
} short_runs;

static void short_range(int64_t lo, int64_t hi, void *ud)
{
  const short_runs *s = ud;
  const ax_iter *it = s->it;
  const ax_operand *o = &it->op[0], *x = &it->op[1];
  const int row = it->ndim - 2, col = it->ndim - 1;

  for (int64_t p = lo; p < hi; p++) {
    const int64_t i = p % s->blocks * ROWS, left = it->shape[row] - i;
    int64_t rest = p / s->blocks, at_o = i * o->stride[row], at_x = i * x->stride[row];
    for (int d = row - 1; d >= 0; d--) {
      at_o += rest % it->shape[d] * o->stride[d];
      at_x += rest % it->shape[d] * x->stride[d];
      rest /= it->shape[d];
    }
    s->move(o->data + at_o, o->stride[row], x->data + at_x, x->stride[row], x->stride[col],
            left < ROWS ? left : ROWS, it->shape[col]);
  }
}

static void copy_short(const ax_iter *it, int64_t size)
{
  const int64_t rows = it->shape[it->ndim - 2], blocks = (rows + ROWS - 1) / ROWS;
  short_runs s = { it, shorts[size], blocks };
  ax_cpu_for(it->numel / it->shape[it->ndim - 1] / rows * blocks, it->numel, short_range, &s);
}

/* ---- large runs, past the caches */

enum { PAGE = 4096, PAGES = 4, GROUP = PAGE * PAGES, LINES = 128 };

typedef struct large {
  char *dst; /* on a line */
  const char *src;
} large;

/* Intel's cores pass a third more bytes in a second where the pages of a group are read in turns:
 * memory has several of them open at a time.  Zen 4 passes 0.7 times as many then. */
static bool reads_in_turns(void) { return __builtin_cpu_is("intel"); }

/* Groups [lo, hi). */
static void large_range(int64_t lo, int64_t hi, void *ud)
{
  const large *l = ud;

  if (!reads_in_turns()) ax_cpu_stream(l->dst + lo * GROUP, l->src + lo * GROUP, (hi - lo) * GROUP);
  else
    for (int64_t g = lo; g < hi; g++)
      for (int i = 0; i < PAGE; i += LINES)
        for (int p = 0; p < PAGES; p++) {
          const int64_t at = g * GROUP + p * PAGE + i;
          for (int line = 0; line < LINES; line += 64) __builtin_prefetch(l->src + at + GROUP + line);
          ax_cpu_stream(l->dst + at, l->src + at, LINES);
        }
  ax_cpu_stream_end();
}

/* Whether the copy is one run of bytes, large and into other memory. */
static bool is_large_run(const ax_iter *it, int64_t size)
{
  const ax_operand *o = &it->op[0], *x = &it->op[1];
  const int64_t bytes = it->numel * size, apart = o->data - x->data;

  return it->ndim == 1 && o->stride[0] == size && x->stride[0] == size && ax_cpu_streams(bytes) &&
         (apart >= bytes || -apart >= bytes);
}

static void copy_large(char *dst, const char *src, int64_t bytes)
{
  const int64_t head = -(intptr_t)dst & 63, groups = (bytes - head) / GROUP, done = head + groups * GROUP;
  large l = { dst + head, src + head };

  memcpy(dst, src, (size_t)head);
  ax_cpu_for(groups, AX_MOVED(bytes), large_range, &l);
  memcpy(dst + done, src + done, (size_t)(bytes - done));
}

/* ---- copies */

/* Whether the source is one element everywhere: a fill. */
static bool is_fill(const ax_iter *it)
{
  for (int d = 0; d < it->ndim; d++)
    if (it->op[1].stride[d] != 0) return false;
  return true;
}

static void copy_nest(const ax_iter *it);

/* Casts the one value once, not at every element. */
static void fill_nest(const ax_iter *it)
{
  const int64_t none[2] = { 0, 0 };
  ax_c128 value = { 0 }; /* room for the largest type */
  ax_iter own = *it;

  ax_cpu_casts[it->op[1].dtype][it->op[0].dtype]((char *const[2]){ (char *)&value, it->op[1].data }, none, 1,
                                                 NULL);
  own.op[1].data = (char *)&value;
  own.op[1].dtype = it->op[0].dtype;
  copy_nest(&own);
}

static void copy_nest(const ax_iter *it)
{
  const ax_operand *o = &it->op[0], *x = &it->op[1];
  const int64_t size = (int64_t)ax_dtype_size(o->dtype);

  if (it->numel == 0) return;
  if (o->dtype != x->dtype) {
    if (it->numel > 1 && is_fill(it)) {
      fill_nest(it);
      return;
    }
    ax_cpu_nest(it, ax_cpu_casts[x->dtype][o->dtype], NULL);
    return;
  }
  if (is_large_run(it, size)) {
    copy_large(o->data, x->data, it->numel * size);
    return;
  }
  if (it->ndim > 1 && it->numel >= 1024) {
    int row = -1, col = -1;
    for (int d = 0; d < it->ndim; d++) {
      if (o->stride[d] == size) col = d;
      if (x->stride[d] == size) row = d;
    }
    if (row >= 0 && col >= 0 && row != col && it->shape[row] >= 8 &&
        (it->shape[col] > FEW || o->stride[row] == it->shape[col] * size)) {
      transpose t = {
        it, row, col, tiles[size], (it->shape[col] + TILE - 1) / TILE, (it->shape[row] + TILE - 1) / TILE
      };
      ax_cpu_for(t.tiles_across * t.tiles_down * (it->numel / (it->shape[row] * it->shape[col])), it->numel,
                 transpose_range, &t);
      return;
    }
    if (o->stride[it->ndim - 1] == size && it->shape[it->ndim - 1] < SHORT &&
        it->shape[it->ndim - 2] >= SHORT) {
      copy_short(it, size);
      return;
    }
  }
  ax_cpu_nest(it, moves[size], NULL);
}

void ax_cpu_copy_strided(int ndim, const int64_t *shape, ax_dtype to, void *dst, ax_dtype from,
                         const void *src, const int64_t *strides)
{
  const int64_t to_size = (int64_t)ax_dtype_size(to), from_size = (int64_t)ax_dtype_size(from);
  ax_iter it = { .n = 2, .numel = 1 };

  it.op[0].data = dst;
  it.op[0].dtype = to;
  it.op[1].data = (char *)src;
  it.op[1].dtype = from;
  for (int d = ndim - 1; d >= 0; d--) {
    it.op[0].stride[d] = it.numel * to_size;
    it.op[1].stride[d] = strides[d] * from_size;
    it.numel *= shape[d];
  }
  ax_iter_merge(&it, ndim, shape);
  copy_nest(&it);
}

ax_status ax_cpu__copy(const ax_call *call)
{
  copy_nest(call->iter);
  return AX_OK;
}

static ax_status copy_tensor(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS];
  int order[AX_MAX_DIMS];
  for (int d = 0; d < y->ndim; d++) { /* in y's memory order: long steps first */
    int at = d;
    for (; at > 0 && y->strides[order[at - 1]] < y->strides[d]; at--) order[at] = order[at - 1];
    order[at] = d;
  }
  for (int d = 0; d < y->ndim; d++) {
    shape[d] = x->shape[order[d]];
    strides[d] = x->strides[order[d]];
  }
  ax_cpu_copy_strided(x->ndim, shape, (ax_dtype)y->dtype, ax_data(y), (ax_dtype)x->dtype, ax_data(x),
                      strides);
  return AX_OK;
}
ax_status ax_cpu_clone(const ax_call *call) { return copy_tensor(call); }
ax_status ax_cpu__cast(const ax_call *call) { return copy_tensor(call); }

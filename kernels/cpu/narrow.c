/* Products of a few rows by a matrix whose columns are each adjacent in memory, as the weights
 * (out, in) of a linear layer are: generation of text, small batches, recurrent cells.  Reading the
 * weights bounds them, so they are read once, in order, in the type that they have, and converted
 * in registers; nothing is packed.
 *
 * A tile of ROWS x COLUMNS sums stays in registers while it runs along k.  Its columns lie a
 * quarter of a piece apart: each is then read in order from one tile to the next, which the
 * processor's prefetcher follows (columns that lie side by side take 1.4 times as long on Zen 4).
 * Each sum is added in the lanes of one vector, whatever tile it is in, so a row's results do not
 * depend on the rows beside it. */
#include "gemm.h"
#include "vector.h"

#include <string.h>

#if AX_BYTES == 64
#define ROWS 4 /* 4 x 4 sums of 32 registers */
#else
#define ROWS 2 /* 2 x 4 of 16 */
#endif
#define COLUMNS 4
#define ROOM 16384 /* floats on the stack for a's rows: a token's, of a large model */
#define PIECE 32   /* columns of a piece of work: threads do not write to one cache line */
#define AHEAD 1024

enum { LANES = AX_BYTES / 4, BLOCK = 2 * LANES };

typedef struct job {
  const ax_gemm *g;
  const float *a;
  int64_t a_batch, a_row; /* steps of a, in elements; its columns are adjacent */
  const void *b, *bias;
  void *c;
} job;

/* Part 0 or 1 of the BLOCK elements at p, as floats: the halves of the block.  Of bfloat16 the
 * elements with even and with odd places, which are a shift and a mask away; `arrange` puts a's
 * elements into that order. */
static inline __attribute__((always_inline)) ax_vec_f32 part_f32(const float *p, int part)
{
  return *(const ax_vec_f32 *)(p + part * LANES);
}

static inline __attribute__((always_inline)) ax_vec_f32 part_bf16(const uint16_t *p, int part)
{
  ax_vec_bits both;
  memcpy(&both, p, sizeof(both));
  return (ax_vec_f32)(part ? both & 0xffff0000u : both << 16);
}

static inline __attribute__((always_inline)) ax_vec_f32 part_f16(const uint16_t *p, int part)
{
  return ax_vec_from_f16(p + part * LANES);
}

/* Row length of a, rounded up to a whole block (zeros behind). */
static int64_t whole_blocks(int64_t k) { return (k + BLOCK - 1) / BLOCK * BLOCK; }

static void arrange(float *row)
{
  float old[BLOCK];
  memcpy(old, row, sizeof(old));
  for (int i = 0; i < BLOCK; i++) row[i % 2 * LANES + i / 2] = old[i];
}

/* out[i * COLUMNS + j] = the product of row i of x by column j of w. */
#define TILE(name, T) \
  static inline \
      __attribute__((always_inline)) void add_##name(int rows, int columns, const float *x, int64_t x_step, \
                                                     const T *const *w, ax_vec_f32(*sum)[COLUMNS]) \
  { \
    ax_vec_f32 b[COLUMNS]; \
    AX_UNROLL \
    for (int part = 0; part < 2; part++) { \
      AX_UNROLL \
      for (int j = 0; j < columns; j++) b[j] = part_##name(w[j], part); \
      AX_UNROLL \
      for (int i = 0; i < rows; i++) { \
        const ax_vec_f32 a = part_f32(x + i * x_step, part); \
        AX_UNROLL \
        for (int j = 0; j < columns; j++) sum[i][j] = AX_VFMA_f32(a, b[j], sum[i][j]); \
      } \
    } \
  } \
  static inline \
      __attribute__((always_inline)) void tile_##name(int rows, int columns, const float *x, int64_t x_step, \
                                                      const T *w, int64_t w_step, int64_t k, float *out) \
  { \
    ax_vec_f32 sum[ROWS][COLUMNS] = { 0 }; \
    const int64_t whole = k / BLOCK * BLOCK; \
    const T *at[COLUMNS]; \
    for (int64_t p = 0; p < whole; p += BLOCK) { \
      AX_UNROLL \
      for (int j = 0; j < columns; j++) { \
        at[j] = w + j * w_step + p; \
        for (size_t line = 0; line < BLOCK * sizeof(T); line += 64) \
          __builtin_prefetch((const char *)at[j] + AHEAD + line, 0, 2); \
      } \
      add_##name(rows, columns, x + p, x_step, at, sum); \
    } \
    if (whole < k) { \
      T last[COLUMNS][BLOCK] = { 0 }; \
      for (int j = 0; j < columns; j++) { \
        memcpy(last[j], w + j * w_step + whole, (size_t)(k - whole) * sizeof(T)); \
        at[j] = last[j]; \
      } \
      add_##name(rows, columns, x + whole, x_step, at, sum); \
    } \
    AX_UNROLL \
    for (int i = 0; i < rows; i++) AX_UNROLL \
    for (int j = 0; j < columns; j++) out[i * COLUMNS + j] = ax_vec_sum(sum[i][j]); \
  }

/* With the counts as constants the sums are registers. */
#define TILE_OF(name, rows) \
  case rows: \
    tile_##name(rows < ROWS ? rows : ROWS, COLUMNS, x, x_step, w, w_step, k, out); \
    return;

#define RANGE(name, T) \
  TILE(name, T) \
  static void tiles_##name(int rows, int columns, const float *x, int64_t x_step, const T *w, \
                           int64_t w_step, int64_t k, float *out) \
  { \
    if (columns == COLUMNS) switch (rows) { \
        TILE_OF(name, 4) TILE_OF(name, 3) TILE_OF(name, 2) TILE_OF(name, 1) \
      } \
    for (int i = 0; i < rows; i++) \
      for (int j = 0; j < columns; j++) \
        tile_##name(1, 1, x + i * x_step, x_step, w + j * w_step, w_step, k, out + i * COLUMNS + j); \
  } \
  static void range_##name(int64_t lo, int64_t hi, void *ud) \
  { \
    const job *jb = ud; \
    const ax_gemm *g = jb->g; \
    const int64_t across = (g->n + PIECE - 1) / PIECE; \
    for (int64_t piece = lo; piece < hi; piece++) { \
      const int64_t n = piece / across, at = piece % across * PIECE, \
                    end = at + PIECE < g->n ? at + PIECE : g->n; \
      const int64_t apart = (end - at) / COLUMNS, rest = at + apart * COLUMNS; \
      for (int64_t tile = 0; tile < apart + end - rest; tile++) \
        for (int64_t i = 0; i < g->m; i += ROWS) { \
          const bool whole = tile < apart; \
          const int rows = (int)(g->m - i < ROWS ? g->m - i : ROWS), columns = whole ? COLUMNS : 1; \
          const int64_t j = whole ? at + tile : rest + tile - apart; \
          float out[ROWS * COLUMNS]; \
          tiles_##name(rows, columns, jb->a + n * jb->a_batch + i * jb->a_row, jb->a_row, \
                       (const T *)jb->b + n * g->b[0] + j * g->b[2], apart * g->b[2], g->k, out); \
          for (int r = 0; r < rows; r++) \
            store(jb, n * g->c[0] + (i + r) * g->c[1], j, apart, columns, out + r * COLUMNS); \
        } \
    } \
  }

static inline float number(ax_dtype d, const void *p, int64_t i)
{
  if (d == AX_F32) return ((const float *)p)[i];
  const uint16_t h = ((const uint16_t *)p)[i];
  return d == AX_BF16 ? ax_bf16_to_float(h) : ax_half_to_float(h);
}

/* Writes `count` sums to the row of c at element `row`; they are of columns `column`, column +
 * apart and so on. */
static void store(const job *jb, int64_t row, int64_t column, int64_t apart, int count, const float *sums)
{
  const ax_dtype d = ax_gemm_out(jb->g), bias = ax_gemm_bias(jb->g);
  for (int j = 0; j < count; j++, column += apart) {
    const int64_t at = row + column;
    const float add = jb->g->bias         ? number(bias, jb->bias, column)
                      : jb->g->accumulate ? number(d, jb->c, at)
                                          : 0;
    const float y = sums[j] + add;
    if (d == AX_F32) ((float *)jb->c)[at] = y;
    else ((uint16_t *)jb->c)[at] = d == AX_BF16 ? ax_float_to_bf16(y) : ax_float_to_half(y);
  }
}

RANGE(f32, float)
RANGE(bf16, uint16_t)
RANGE(f16, uint16_t)

bool ax_cpu_narrow_takes(const ax_gemm *g)
{
  const bool half = g->dtype == AX_F16 || (g->dtype == AX_BF16 && !ax_dnnl_multiplies_bf16());
  return g->m <= (half ? AX_NARROW_HALF : AX_NARROW) && g->k > 0 && g->b[1] == 1 &&
         (g->dtype == AX_F32 || ax_is_half((ax_dtype)g->dtype));
}

/* a in float32, its rows made of whole blocks: in `room` when they fit, else in *own. */
static ax_status pack(job *jb, const void *a, float *room, void **own, size_t *bytes)
{
  const ax_gemm *g = jb->g;
  const ax_dtype d = (ax_dtype)g->dtype;
  const int64_t row = whole_blocks(g->k), shape[1] = { g->k };
  float *to = room;
  ax_status st;

  *bytes = (size_t)(g->batch * g->m * row) * sizeof(float);
  if (*bytes > ROOM * sizeof(float)) {
    if ((st = ax_alloc(*bytes, own)) != AX_OK) return st;
    to = *own;
  }
  jb->a = to;
  for (int64_t n = 0; n < g->batch; n++)
    for (int64_t i = 0; i < g->m; i++, to += row) {
      const char *from = (const char *)a + (n * g->a[0] + i * g->a[1]) * (int64_t)ax_dtype_size(d);
      ax_cpu_copy_strided(1, shape, AX_F32, to, d, from, &g->a[2]);
      memset(to + g->k, 0, (size_t)(row - g->k) * sizeof(float));
      for (int64_t p = 0; d == AX_BF16 && p < row; p += BLOCK) arrange(to + p);
    }
  jb->a_batch = g->m * row;
  jb->a_row = row;
  return AX_OK;
}

ax_status ax_cpu_narrow(const ax_gemm *g, const void *a, const void *b, const void *bias, void *c)
{
  const int64_t pieces = g->batch * ((g->n + PIECE - 1) / PIECE), work = g->batch * g->m * g->n * g->k / 2;
  job jb = { .g = g, .a = a, .a_batch = g->a[0], .a_row = g->a[1], .b = b, .bias = bias, .c = c };
  float room[ROOM] __attribute__((aligned(64)));
  void *own = NULL;
  size_t bytes = 0;
  ax_status st;

  if (g->dtype != AX_F32 || g->a[2] != 1 || g->k % BLOCK)
    if ((st = pack(&jb, a, room, &own, &bytes)) != AX_OK) return st;
  if (g->dtype == AX_F32) ax_cpu_for(pieces, work, range_f32, &jb);
  else ax_cpu_for(pieces, work, g->dtype == AX_BF16 ? range_bf16 : range_f16, &jb);
  if (own) ax_free(own, bytes);
  return AX_OK;
}

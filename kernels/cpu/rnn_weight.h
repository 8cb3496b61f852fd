/* Products of few rows with the weight of a recurrent layer, in float32.  The weight is packed once
 * for all steps.  oneDNN packs it at every step, which for 16 rows takes half as long as the
 * product itself.  An element of a result has the same bits whatever rows stand beside it. */
#ifndef AX_CPU_RNN_WEIGHT_H
#define AX_CPU_RNN_WEIGHT_H

#include "vector.h"

enum {
  WEIGHT_LANES = AX_BYTES / 4,
  WEIGHT_COLS = 2 * WEIGHT_LANES, /* columns of a tile */
  WEIGHT_TILE = 6,                /* rows of a tile: with two vectors each they fill 12 registers */
  WEIGHT_DEPTH = 256,             /* of a tile: its part of the weight stays in the first-level cache */
  WEIGHT_LEAST = 3,               /* rows; for fewer packing takes longer than it saves */
  WEIGHT_ROWS = 32,               /* oneDNN's packing is little beside the product of more rows */
  WEIGHT_STEPS = 4,               /* fewer steps do not pay for packing */
};

/* k x n numbers, element (p, j) at from[p * row + j * col]; packed: groups of WEIGHT_COLS columns,
 * each k x WEIGHT_COLS, with zeros past the end. */
typedef struct weight {
  const float *from;
  int64_t k, n, row, col;
  float *packed; /* NULL: none */
} weight;

static int64_t weight_groups(int64_t n) { return (n + WEIGHT_COLS - 1) / WEIGHT_COLS; }

static void pack_range(int64_t lo, int64_t hi, void *ud)
{
  const weight *w = ud;
  for (int64_t g = lo; g < hi; g++) {
    const float *from = w->from + g * WEIGHT_COLS * w->col;
    float *to = w->packed + g * WEIGHT_COLS * w->k;
    const int64_t n = w->n - g * WEIGHT_COLS;
    if (w->col == 1 && n >= WEIGHT_COLS) {
      for (int64_t p = 0; p < w->k; p++, from += w->row, to += WEIGHT_COLS)
        memcpy(to, from, sizeof(float) * WEIGHT_COLS);
      continue;
    }
    for (int64_t j = 0; j < WEIGHT_COLS; j++)
      for (int64_t p = 0; p < w->k; p++) to[p * WEIGHT_COLS + j] = j < n ? from[p * w->row + j * w->col] : 0;
  }
}

static void pack_weight(weight *w) { ax_cpu_for(weight_groups(w->n), w->k * w->n, pack_range, w); }

/* c (rows, WEIGHT_COLS) = start, or += itself, + a (rows, depth) x b. */
static inline __attribute__((always_inline)) void weight_tile(const int rows, int64_t depth, const float *a,
                                                              int64_t a_row, const float *b, float *c,
                                                              int64_t c_row)
{
  ax_vec_f32 sum[WEIGHT_TILE][2];
#pragma GCC unroll 6
  for (int i = 0; i < rows; i++) {
    sum[i][0] = *(ax_vec_f32 *)(c + i * c_row);
    sum[i][1] = *(ax_vec_f32 *)(c + i * c_row + WEIGHT_LANES);
  }
  for (int64_t p = 0; p < depth; p++, b += WEIGHT_COLS) {
    const ax_vec_f32 b0 = *(const ax_vec_f32 *)b, b1 = *(const ax_vec_f32 *)(b + WEIGHT_LANES);
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
      const ax_vec_f32 x = a[i * a_row + p] - (ax_vec_f32){ 0 };
      sum[i][0] = AX_VFMA_f32(x, b0, sum[i][0]);
      sum[i][1] = AX_VFMA_f32(x, b1, sum[i][1]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < rows; i++) {
    *(ax_vec_f32 *)(c + i * c_row) = sum[i][0];
    *(ax_vec_f32 *)(c + i * c_row + WEIGHT_LANES) = sum[i][1];
  }
}

static void weight_tile_of(int64_t rows, int64_t depth, const float *a, int64_t a_row, const float *b,
                           float *c, int64_t c_row)
{
  switch (rows) {
  case 6: weight_tile(6, depth, a, a_row, b, c, c_row); break;
  case 5: weight_tile(5, depth, a, a_row, b, c, c_row); break;
  case 4: weight_tile(4, depth, a, a_row, b, c, c_row); break;
  case 3: weight_tile(3, depth, a, a_row, b, c, c_row); break;
  case 2: weight_tile(2, depth, a, a_row, b, c, c_row); break;
  default: weight_tile(1, depth, a, a_row, b, c, c_row); break;
  }
}

/* to (rows, n) = or += a (rows, k) x the weight, + bias */
typedef struct weighed {
  const weight *w;
  int64_t rows;
  const float *a, *bias;
  float *to;
  bool add;
} weighed;

static void weigh_range(int64_t lo, int64_t hi, void *ud)
{
  const weighed *q = ud;
  const weight *w = q->w;
  const int64_t tiles = (q->rows + WEIGHT_TILE - 1) / WEIGHT_TILE;
  float edge[WEIGHT_ROWS * WEIGHT_COLS] __attribute__((aligned(64))) = { 0 };

  for (int64_t g = lo; g < hi; g++) {
    const int64_t col = g * WEIGHT_COLS, n = w->n - col < WEIGHT_COLS ? w->n - col : WEIGHT_COLS;
    float *const to = q->to + col, *const c = n < WEIGHT_COLS ? edge : to;
    const int64_t c_row = n < WEIGHT_COLS ? WEIGHT_COLS : w->n;
    for (int64_t r = 0; r < q->rows; r++) {
      if (!q->add && q->bias) memcpy(c + r * c_row, q->bias + col, sizeof(float) * (size_t)n);
      else if (!q->add) memset(c + r * c_row, 0, sizeof(float) * (size_t)n);
      else if (c == edge) memcpy(c + r * c_row, to + r * w->n, sizeof(float) * (size_t)n);
    }
    for (int64_t p = 0; p < w->k; p += WEIGHT_DEPTH) {
      const int64_t depth = w->k - p < WEIGHT_DEPTH ? w->k - p : WEIGHT_DEPTH;
      const float *b = w->packed + (g * w->k + p) * WEIGHT_COLS;
      for (int64_t t = 0; t < tiles; t++) {
        const int64_t r = q->rows * t / tiles, end = q->rows * (t + 1) / tiles;
        weight_tile_of(end - r, depth, q->a + r * w->k + p, w->k, b, c + r * c_row, c_row);
      }
    }
    for (int64_t r = 0; c == edge && r < q->rows; r++)
      memcpy(to + r * w->n, edge + r * WEIGHT_COLS, sizeof(float) * (size_t)n);
  }
}

static void weigh(const weight *w, int64_t rows, const void *a, const void *bias, bool add, void *to)
{
  weighed q = { w, rows, a, bias, to, add };
  ax_cpu_for(weight_groups(w->n), rows * w->n * w->k / 8, weigh_range, &q);
}

#endif

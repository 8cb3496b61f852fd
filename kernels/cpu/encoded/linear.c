/* Products with encoded matrices.  A few rows of x: each row of the matrix is decoded run by run
 * into the first cache and multiplied there, so that memory gives the codes alone.  More rows: a
 * tile of the matrix is decoded, which the ordinary product reads. */
#include "cpu/gemm.h"
#include "four.h"
#include "int8.h"

enum {
  FEW = AX_FOUR_ROWS,   /* rows of x that are multiplied as they come */
  RUN = 512,            /* values decoded at a time */
  TILE_BYTES = 2 << 20, /* decoded numbers that a product gets at a time */
};

typedef struct job {
  ax_encoded e;
  bool plain; /* int8: the codes themselves, without scale */
  int64_t m;
  const float *x, *bias;
  float *y;
  int64_t first; /* the tile's first row */
  float *tile;
} job;

static void decode(const job *j, int64_t row, int64_t col, int64_t n, float *out)
{
  const int8_t *codes = (const int8_t *)j->e.codes + row * j->e.cols + col;
  if (!j->plain) ax_cpu_decode_run(&j->e, row, col, n, out);
  else
    for (int64_t i = 0; i < n; i++) out[i] = codes[i];
}

/* ---- few rows of x */

#define LANES (AX_BYTES / 4)

static inline ax_vec_f32 product_of(const float *a, const float *b, int64_t n)
{
  ax_vec_f32 sum[4] = { { 0 } };
  int64_t i = 0;
  for (; i + 4 * LANES <= n; i += 4 * LANES) {
    AX_UNROLL
    for (int k = 0; k < 4; k++)
      sum[k] = AX_VFMA_f32(*(const ax_vec_f32 *)(a + i + k * LANES), *(const ax_vec_f32 *)(b + i + k * LANES),
                           sum[k]);
  }
  for (; i + LANES <= n; i += LANES)
    sum[0] = AX_VFMA_f32(*(const ax_vec_f32 *)(a + i), *(const ax_vec_f32 *)(b + i), sum[0]);
  for (int64_t k = 0; i < n; i++, k++) sum[1][k] += a[i] * b[i];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static void few(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  const int64_t cols = j->e.cols;
  float run[RUN] __attribute__((aligned(64)));

  for (int64_t r = lo; r < hi; r++) {
    ax_vec_f32 sum[FEW] = { { 0 } };
    for (int64_t c = 0; c < cols; c += RUN) {
      const int64_t n = cols - c < RUN ? cols - c : RUN;
      decode(j, r, c, n, run);
      for (int64_t i = 0; i < j->m; i++) sum[i] += product_of(run, j->x + i * cols + c, n);
    }
    for (int64_t i = 0; i < j->m; i++)
      j->y[i * j->e.rows + r] = ax_vec_sum(sum[i]) + (j->bias ? j->bias[r] : 0);
  }
}

/* ---- more of them */

static void fill_tile(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  const int64_t cols = j->e.cols, whole = cols / 32 * 32;
  float rest[32];

  for (int64_t r = lo; r < hi; r++) {
    float *to = j->tile + r * cols;
    decode(j, j->first + r, 0, whole, to);
    if (whole == cols) continue;
    decode(j, j->first + r, whole, cols - whole, rest);
    memcpy(to + whole, rest, (size_t)(cols - whole) * sizeof *rest);
  }
}

static ax_status in_tiles(job *j)
{
  const int64_t cols = j->e.cols, rows = j->e.rows, fit = TILE_BYTES / 4 / cols / 16 * 16,
                most = fit < 16 ? 16 : fit, height = rows < most ? rows : most;
  const size_t bytes = (size_t)(height * cols) * sizeof(float);
  void *tile = NULL;
  ax_status st;

  AX_TRY(ax_alloc(bytes, &tile));
  j->tile = tile;
  for (j->first = 0; j->first < rows; j->first += height) {
    const int64_t n = rows - j->first < height ? rows - j->first : height;
    const ax_gemm g = { .dtype = AX_F32,
                        .batch = 1,
                        .m = j->m,
                        .n = n,
                        .k = cols,
                        .a = { 0, cols, 1 },
                        .b = { 0, 1, cols },
                        .c = { 0, rows },
                        .bias = j->bias != NULL };
    ax_cpu_for(n, n * cols, fill_tile, j);
    AX_TRY(ax_cpu_product(&g, j->x, tile, j->bias ? j->bias + j->first : NULL, j->y + j->first));
  }
out:
  if (tile) ax_free(tile, bytes);
  return st;
}

static ax_status multiply(job *j)
{
  if (j->m > FEW) return in_tiles(j);
  if (ax_cpu_four_wide_takes(&j->e)) return ax_cpu_four_wide(&j->e, j->m, j->x, j->bias, j->y);
  if (ax_cpu_four_takes(&j->e)) return ax_cpu_four(&j->e, j->m, j->x, j->bias, j->y);
  ax_cpu_for(j->e.rows, j->e.rows * j->e.cols, few, j);
  return AX_OK;
}

/* ---- the row */

/* n elements of t as float32: its own, or converted into *own (freed by the caller). */
static ax_status as_float(const ax_tensor *t, void **own, const float **out)
{
  const int64_t shape[1] = { t->numel }, stride[1] = { 1 };
  ax_status st = AX_OK;
  *out = ax_data(t);
  if (t->dtype == AX_F32) return AX_OK;
  if ((st = ax_alloc((size_t)t->numel * 4, own)) != AX_OK) return st;
  ax_cpu_copy_strided(1, shape, AX_F32, *own, (ax_dtype)t->dtype, ax_data(t), stride);
  *out = *own;
  return st;
}

/* LLM.int8: rows of x in 8 bits, and columns with large elements as they are. */
static ax_status by_int8(job *j, double threshold)
{
  const float *x = j->x, *bias = j->bias;
  ax_int8_rows rows = { 0 };
  ax_status st;

  AX_TRY(ax_int8_rows_of(x, j->m, j->e.cols, threshold, &rows));
  j->x = rows.codes;
  j->bias = NULL;
  j->plain = true;
  if (rows.whole) ax_int8_multiply(&rows, &j->e, j->y);
  else AX_TRY(multiply(j));
  ax_int8_finish(&rows, &j->e, x, bias, j->y);
out:
  ax_int8_rows_free(&rows);
  return st;
}

/* float64 multiplies the decoded matrix. */
static ax_status in_doubles(const ax_call *call, const job *j)
{
  const ax_tensor *bias = call->in[4];
  const int64_t rows = j->e.rows, cols = j->e.cols, n = rows * cols, one = 1;
  const ax_gemm g = { .dtype = AX_F64,
                      .batch = 1,
                      .m = j->m,
                      .n = rows,
                      .k = cols,
                      .a = { 0, cols, 1 },
                      .b = { 0, 1, cols },
                      .c = { 0, rows },
                      .bias = bias != NULL };
  job all = *j;
  void *tile = NULL, *wide = NULL;
  ax_status st;

  AX_TRY(ax_alloc((size_t)n * sizeof(float), &tile));
  AX_TRY(ax_alloc((size_t)n * sizeof(double), &wide));
  all.tile = tile;
  ax_cpu_for(rows, n, fill_tile, &all);
  ax_cpu_copy_strided(1, &n, AX_F64, wide, AX_F32, tile, &one);
  st = ax_cpu_product(&g, ax_data(call->in[0]), wide, bias ? ax_data(bias) : NULL, ax_data(call->out[0]));
out:
  if (tile) ax_free(tile, (size_t)n * sizeof(float));
  if (wide) ax_free(wide, (size_t)n * sizeof(double));
  return st;
}

ax_status ax_cpu__linear_encoded(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *bias = call->in[4], *y = call->out[0];
  const double threshold = call->a->linear_encoded.threshold;
  job j = { .e = ax_encoded_of(call, 1, call->a->linear_encoded.encoding, call->a->linear_encoded.rows,
                               call->a->linear_encoded.cols, call->a->linear_encoded.size) };
  const int64_t shape[1] = { y->numel }, stride[1] = { 1 };
  void *own_x = NULL, *own_bias = NULL, *own_y = NULL;
  ax_status st = AX_OK;

  if (y->numel == 0) return AX_OK;
  j.m = y->numel / j.e.rows;
  if (x->dtype == AX_F64 && threshold != threshold && j.e.cols) return in_doubles(call, &j);
  AX_TRY(as_float(x, &own_x, &j.x));
  if (bias) AX_TRY(as_float(bias, &own_bias, &j.bias));
  j.y = ax_data(y);
  if (y->dtype != AX_F32) {
    AX_TRY(ax_alloc((size_t)y->numel * sizeof(float), &own_y));
    j.y = own_y;
  }
  AX_TRY(threshold == threshold ? by_int8(&j, threshold) : multiply(&j));
  if (own_y) ax_cpu_copy_strided(1, shape, (ax_dtype)y->dtype, ax_data(y), AX_F32, own_y, stride);
out:
  if (own_x) ax_free(own_x, (size_t)x->numel * 4);
  if (own_bias) ax_free(own_bias, (size_t)bias->numel * 4);
  if (own_y) ax_free(own_y, (size_t)y->numel * sizeof(float));
  return st;
}

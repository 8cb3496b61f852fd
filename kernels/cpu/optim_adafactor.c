/* torch.optim.Adafactor (Shazeer and Stern 2018).  The mean of squared gradients of a matrix is
 * kept as a mean for each row and one for each column; their product, divided by their mean,
 * approximates it:
 *     u = g / sqrt(max(row col / mean, eps1^2))
 *     p -= max(eps2, rms(p)) min(lr, 1 / sqrt(step)) u / max(1, rms(u) / d)
 *
 * A parameter is read three times, in chunks of fixed bounds whose sums are combined in order:
 * squares of gradients and parameters; the size of the update; the update.  1 / sqrt(max(row col
 * / mean, eps1^2)) equals min(1 / sqrt(row / mean) 1 / sqrt(col), 1 / eps1), so roots and
 * divisions are computed once for each row and column only.  Threads share chunks; memory bounds
 * the kernel. */
#include "optim.h"

#include "optim_numbers.h"

#include <float.h>
#include <string.h>

enum { CHUNK = 32768, LEAST_ROWS = 16, SUM_BLOCK = 1024, LANES = 64 };

typedef struct factor_job {
  const ax_segment *s;
  ax_adafactor_numbers with;
  int64_t matrices, rows, cols; /* a vector: one matrix of one row, and factored is false */
  bool factored;
  /* the rows in a chunk of one matrix; a chunk of small matrices has `chunk_matrices` whole ones */
  int64_t chunk_rows;
  int64_t chunk_matrices, chunks_each, chunks;
  double step;                   /* the factor of the update */
  double *sums;                  /* chunk k: [2k] squares of p, [2k + 1] squares of the update */
  void *col_sums;                /* a row of `cols` for each chunk */
  void *row_factor, *col_factor; /* 1 / sqrt of the means: rows, cols of each matrix */
} factor_job;

/* The range of chunk c: rows [*lo, *hi) of each matrix in [*first, *last). */
static void bounds(const factor_job *j, int64_t c, int64_t *first, int64_t *last, int64_t *lo, int64_t *hi)
{
  if (j->chunk_matrices > 1) {
    *first = c * j->chunk_matrices;
    *last = *first + j->chunk_matrices < j->matrices ? *first + j->chunk_matrices : j->matrices;
    *lo = 0;
    *hi = j->rows;
    return;
  }
  *first = c / j->chunks_each;
  *last = *first + 1;
  *lo = c % j->chunks_each * j->chunk_rows;
  *hi = *lo + j->chunk_rows < j->rows ? *lo + j->chunk_rows : j->rows;
}

#define T float
#define S f32
#define SQRT sqrtf
#include "optim_adafactor.inc"
#undef SQRT
#undef S
#undef T

#define T double
#define S f64
#define SQRT sqrt
#include "optim_adafactor.inc"

static ax_status one(const ax_segment *s, ax_dtype dtype, const ax_hyper *h)
{
  const size_t item = ax_dtype_size(dtype);
  double squares = 0, moved = 0;
  factor_job j = {
    .s = s,
    .with = ax_adafactor_numbers_of(s->step, h, dtype == AX_F32 ? FLT_EPSILON : DBL_EPSILON),
    .factored = s->rows > 0,
    .rows = s->rows ? s->rows : 1,
    .cols = s->rows ? s->cols : s->n,
  };
  size_t sums_bytes, cols_bytes, bytes;
  void *scratch;
  ax_status st;

  j.matrices = s->n / (j.rows * j.cols);
  j.chunk_matrices = j.factored && j.rows * j.cols <= CHUNK / 2 ? CHUNK / (j.rows * j.cols) : 1;
  j.chunk_rows = CHUNK / j.cols > LEAST_ROWS ? CHUNK / j.cols : LEAST_ROWS;
  if (!j.factored) { /* each element is a row */
    j.rows = s->n;
    j.cols = 1;
    j.chunk_rows = CHUNK;
  }
  j.chunks_each = (j.rows + j.chunk_rows - 1) / j.chunk_rows;
  j.chunks = j.chunk_matrices > 1 ? (j.matrices + j.chunk_matrices - 1) / j.chunk_matrices
                                  : j.matrices * j.chunks_each;
  sums_bytes = ((size_t)j.chunks * 2 * sizeof(double) + 63) / 64 * 64;
  cols_bytes = j.factored ? ((size_t)(j.chunks * j.cols) * item + 63) / 64 * 64 : 0;
  bytes = sums_bytes + cols_bytes + (j.factored ? (size_t)(j.matrices * (j.rows + j.cols)) * item : 0);
  if ((st = ax_alloc(bytes, &scratch)) != AX_OK) return st;
  j.sums = scratch;
  if (j.factored) {
    j.col_sums = (char *)scratch + sums_bytes;
    j.row_factor = (char *)j.col_sums + cols_bytes;
    j.col_factor = (char *)j.row_factor + (size_t)(j.matrices * j.rows) * item;
  }

  ax_cpu_for(j.chunks, s->n, dtype == AX_F32 ? squares_f32 : squares_f64, &j);
  if (j.factored) {
    if (j.chunks_each > 1)
      ax_cpu_for(j.matrices * j.cols, j.chunks * j.cols, dtype == AX_F32 ? columns_f32 : columns_f64, &j);
    ax_cpu_for(j.matrices, j.matrices * (j.rows + j.cols), dtype == AX_F32 ? factors_f32 : factors_f64, &j);
    ax_cpu_for(j.chunks, s->n, dtype == AX_F32 ? size_f32 : size_f64, &j);
  }
  for (int64_t c = 0; c < j.chunks; c++) {
    squares += j.sums[2 * c];
    moved += j.sums[2 * c + 1];
  }
  j.step = ax_adafactor_step(&j.with, squares, moved, s->n);
  ax_cpu_for(j.chunks, s->n, dtype == AX_F32 ? update_f32 : update_f64, &j);
  ax_free(scratch, bytes);
  return AX_OK;
}

ax_status ax_cpu_adafactor(ax_dtype dtype, const ax_segment *segs, int n, const ax_hyper *h)
{
  ax_status st = AX_OK;
  for (int k = 0; k < n && st == AX_OK; k++)
    if (segs[k].n) st = one(&segs[k], dtype, h);
  return st;
}

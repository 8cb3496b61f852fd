/* Products of a few rows of x with a matrix in an encoding of four bits: see four.c and
 * four_wide.c. */
#ifndef AX_CPU_FOUR_H
#define AX_CPU_FOUR_H

#include "decode_cpu.h"

enum { AX_FOUR_ROWS = 4 }; /* rows of x at most */

/* A product that is under way. */
typedef struct ax_four_job {
  const ax_encoded *e;
  int64_t m;
  /* m rows in the order in which the kernel reads codes, and the sums of their parts, which the
   * addends of groups are multiplied with */
  const float *x, *sums;
  const float *bias;
  float *y;
} ax_four_job;

typedef void (*ax_four_arrange)(const ax_four_job *j, const float *x, float *to, float *sums);

/* Arranges x, of whose elements each `per` have one sum, and runs the kernel over the matrix's
 * rows. */
static inline ax_status ax_four_run(const ax_encoded *e, int64_t m, const float *x, const float *bias,
                                    float *y, int per, ax_four_arrange arrange, ax_range_fn kernel)
{
  const int64_t n = m * e->cols;
  const size_t bytes = (size_t)(n + n / per) * sizeof(float);
  void *room = NULL;
  const ax_status st = ax_alloc(bytes, &room);
  if (st != AX_OK) return st;
  ax_four_job j = { .e = e, .m = m, .x = room, .sums = (float *)room + n, .bias = bias, .y = y };
  arrange(&j, x, room, (float *)room + n);
  ax_cpu_for(e->rows, e->rows * e->cols, kernel, &j);
  ax_free(room, bytes);
  return AX_OK;
}

/* Whether ax_cpu_four takes the matrix: this processor level has its instructions. */
bool ax_cpu_four_takes(const ax_encoded *e);
/* y (m, rows) = x (m, cols) times the matrix transposed, + bias (NULL: none). */
ax_status ax_cpu_four(const ax_encoded *e, int64_t m, const float *x, const float *bias, float *y);
/* Likewise, of codes that are bytes in a row: nf4, fp4, affine4. */
bool ax_cpu_four_wide_takes(const ax_encoded *e);
ax_status ax_cpu_four_wide(const ax_encoded *e, int64_t m, const float *x, const float *bias, float *y);

#endif

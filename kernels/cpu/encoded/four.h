/* Products of a few rows of x with a matrix in an encoding of four bits: see four.c and
 * four_wide.c. */
#ifndef AX_CPU_FOUR_H
#define AX_CPU_FOUR_H

#include "decode_cpu.h"

enum { AX_FOUR_ROWS = 4 }; /* rows of x at most */

/* Whether ax_cpu_four takes the matrix: this processor level has its instructions. */
bool ax_cpu_four_takes(const ax_encoded *e);
/* y (m, rows) = x (m, cols) times the matrix transposed, + bias (NULL: none). */
ax_status ax_cpu_four(const ax_encoded *e, int64_t m, const float *x, const float *bias, float *y);
/* Likewise, of codes that are bytes in a row: nf4, fp4, affine4. */
bool ax_cpu_four_wide_takes(const ax_encoded *e);
ax_status ax_cpu_four_wide(const ax_encoded *e, int64_t m, const float *x, const float *bias, float *y);

#endif

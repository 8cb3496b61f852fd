/* Products of a few rows of x with a matrix in an encoding of four bits: see four.c. */
#ifndef AX_CPU_FOUR_H
#define AX_CPU_FOUR_H

#include "decode_cpu.h"

enum { AX_FOUR_ROWS = 4 }; /* rows of x at most */

/* Whether ax_cpu_four takes the matrix: this processor level has its instructions. */
bool ax_cpu_four_takes(const ax_encoded *e);
/* y (m, rows) = x (m, cols) times the matrix transposed, + bias (NULL: none). */
ax_status ax_cpu_four(const ax_encoded *e, int64_t m, const float *x, const float *bias, float *y);

#endif

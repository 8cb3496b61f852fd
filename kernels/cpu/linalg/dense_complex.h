/* dense.h's functions for complex64 and complex128, over LAPACK. */
#ifndef AX_CPU_DENSE_COMPLEX_H
#define AX_CPU_DENSE_COMPLEX_H

#include "dense.h"

/* Looks the functions up.  Fails with ENOIMPL where there is no LAPACK; `op` is the row that needs
 * them. */
ax_status ax_dense_complex_open(ax_op op, ax_dtype dtype);

/* The table of a type that was opened; without `product`.  `triangular` takes a^T, not a^H;
 * `reflect` takes Q^H. */
const ax_dense *ax_dense_complex_of(ax_dtype dtype);
size_t ax_dense_complex_room(ax_dtype dtype, int64_t rows, int64_t cols);

#endif

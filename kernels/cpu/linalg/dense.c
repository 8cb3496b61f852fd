/* Dense matrices in both types: see dense.h.  The compiler may contract products and sums here: the
 * kernels are written for fused operations, and give the same bits for any number of threads. */
#pragma GCC optimize("fp-contract=fast")

#include "dense.h"

#include <math.h>

#include "lapack.h"
#include "cpu/vector.h"

/* MR: rows of a tile; with AVX-512, 24 of 32 registers hold its sums.  KC: depth of a slice; one of
 * each matrix fits the first-level cache beside the other. */
#if defined(__AVX512F__)
#define MR 12
#define KC 192
#else
#define MR 6
#define KC 256
#endif
#define THIN 6      /* rows of a tile whose rows are not packed */
#define NR (2 * VN) /* columns of a tile */
#define MC 96       /* rows of a piece of work; a multiple of MR */
#define TOGETHER 8  /* groups of NR columns that are packed row by row */
#define NC 2048     /* columns that are packed together; a multiple of every NR */
#define GROUP 64    /* columns of a piece of work; likewise */
#define NB 64       /* columns of a block; a multiple of 4 and of PANEL */
#define WIDE_NB 256 /* columns of a matrix that are factorised before those behind them change */
#define PANEL 16    /* columns that are factorised one after the other */
#define HB 32       /* reflections that are applied together */
#define TB 32       /* rows of a symmetric matrix that are reduced together; a multiple of VN */
#define PARTS 8     /* of its product with a vector */
#define PARTED 256  /* rows; a product of fewer is one part */
#define LEAF 32     /* rows of a tridiagonal matrix that are not divided */
#define STEPS 14    /* reflections of a QR step that are applied together: 16 rows, whole vectors */
#define TILE 32     /* rows and columns that are turned over at a time */
#define NARROW AX_DENSE_NARROW
#define FEW AX_DENSE_FEW
_Static_assert(FEW <= PANEL && PANEL <= NB, "lu_panel factorises matrices of a few rows");

static int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t whole(int64_t n, int64_t of) { return (n + of - 1) / of * of; }

typedef int32_t mask_f32 __attribute__((vector_size(AX_BYTES)));
typedef int64_t mask_f64 __attribute__((vector_size(AX_BYTES)));

size_t ax_dense_room(ax_dtype dtype, int64_t rows, int64_t cols)
{
  const int64_t most = rows > cols ? rows : cols, packed = KC * whole(lesser(most, NC), 64);
  /* what qr and reflect keep: the vectors of a block, its products with the columns, twice */
  const int64_t blocks = HB * (rows + 2 * cols + 2 * HB) + 64;
  return ax_dtype_size(dtype) * (size_t)(packed + blocks) + 128;
}

/* Fused where the processor has an instruction for it, whatever the compiler makes of the loop:
 * dense_few.inc and the functions for one matrix have the same bits. */
#ifdef __FMA__
#define FUSED_WITH(fma, a, b, c) fma(a, b, c)
#else
#define FUSED_WITH(fma, a, b, c) ((a) * (b) + (c))
#endif

#define T float
#define WIDE double
#define V ax_vec_f32
#define FN(name) name##_f32
#define LEAST 0x1p-126f
#define EPS 0x1p-24f
#define FAR 0x1p60f
#define LANE int32_t /* as wide as T */
#define MASK mask_f32
#define FUSED(a, b, c) FUSED_WITH(__builtin_fmaf, a, b, c)
#define VFUSED AX_VFMA_f32
#include "dense_product.inc"

#include "dense_lu.inc"

#include "dense_few.inc"

#include "dense_qr.inc"

#include "dense_tridiagonal.inc"

#include "dense_conquer.inc"

#include "dense_schur.inc"

#include "dense_bidiagonal.inc"
#undef VN
#undef SQUARE
#undef T
#undef WIDE
#undef V
#undef FN
#undef LEAST
#undef EPS
#undef FAR
#undef LANE
#undef MASK
#undef FUSED
#undef VFUSED

#define T double
#define WIDE double
#define V ax_vec_f64
#define FN(name) name##_f64
#define LEAST 0x1p-1022
#define EPS 0x1p-53
#define FAR 0x1p400
#define LANE int64_t
#define MASK mask_f64
#define FUSED(a, b, c) FUSED_WITH(__builtin_fma, a, b, c)
#define VFUSED AX_VFMA_f64
#include "dense_product.inc"

#include "dense_lu.inc"

#include "dense_few.inc"

#include "dense_qr.inc"

#include "dense_tridiagonal.inc"

#include "dense_conquer.inc"

#include "dense_schur.inc"

#include "dense_bidiagonal.inc"

#define FUNCTIONS(type, item) \
  { \
    product_##type, triangular_##type, lu_##type, inverse_##type, cholesky_##type, qr_##type, \
        reflect_##type, (int)(AX_BYTES / sizeof(item)), lu_few_##type, solve_few_##type, symmetric_##type, \
        schur_##type, bidiagonal_##type \
  }

const ax_dense *ax_dense_of(ax_dtype dtype)
{
  static const ax_dense of[2] = { FUNCTIONS(f32, float), FUNCTIONS(f64, double) };
  return &of[dtype == AX_F64];
}

size_t ax_dense_bidiagonal_panel(ax_dtype dtype, int64_t m, int64_t ld)
{
  return ax_dtype_size(dtype) * (size_t)(2 * TB * (m + 2 * AX_DENSE_WIDE + ld));
}

size_t ax_dense_symmetric_room(ax_dtype dtype, int64_t n, bool vectors)
{
  return dtype == AX_F64 ? symmetric_room_f64(n, vectors) : symmetric_room_f32(n, vectors);
}

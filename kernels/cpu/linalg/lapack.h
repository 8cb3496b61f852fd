/* LAPACK and the BLAS below it, found at run time, and the loop over a batch of matrices.
 *
 * The functions are Fortran's: arguments by address, matrices column by column, lengths of strings
 * behind the other arguments.  Both types have one form here, so that kernels are written once. */
#ifndef AX_CPU_LAPACK_H
#define AX_CPU_LAPACK_H

#include "cpu/cpu.h"

typedef struct ax_lapack {
  void (*potrf)(const char *uplo, const int *n, void *a, const int *lda, int *info, size_t);
  void (*getrf)(const int *m, const int *n, void *a, const int *lda, int *pivots, int *info);
  void (*getrs)(const char *trans, const int *n, const int *nrhs, const void *a, const int *lda,
                const int *pivots, void *b, const int *ldb, int *info, size_t);
  void (*getri)(const int *n, void *a, const int *lda, const int *pivots, void *work, const int *lwork,
                int *info);
  void (*trsm)(const char *side, const char *uplo, const char *trans, const char *diag, const int *m,
               const int *n, const void *alpha, const void *a, const int *lda, void *b, const int *ldb,
               size_t, size_t, size_t, size_t);
  void (*geqrf)(const int *m, const int *n, void *a, const int *lda, void *tau, void *work, const int *lwork,
                int *info);
  void (*orgqr)(const int *m, const int *n, const int *k, void *a, const int *lda, const void *tau,
                void *work, const int *lwork, int *info);
  void (*gesdd)(const char *jobz, const int *m, const int *n, void *a, const int *lda, void *s, void *u,
                const int *ldu, void *vt, const int *ldvt, void *work, const int *lwork, int *iwork,
                int *info, size_t);
  void (*gesvd)(const char *jobu, const char *jobvt, const int *m, const int *n, void *a, const int *lda,
                void *s, void *u, const int *ldu, void *vt, const int *ldvt, void *work, const int *lwork,
                int *info, size_t, size_t);
  void (*syevd)(const char *jobz, const char *uplo, const int *n, void *a, const int *lda, void *w,
                void *work, const int *lwork, int *iwork, const int *liwork, int *info, size_t, size_t);
  void (*gels)(const char *trans, const int *m, const int *n, const int *nrhs, void *a, const int *lda,
               void *b, const int *ldb, void *work, const int *lwork, int *info, size_t);
  void (*gelsy)(const int *m, const int *n, const int *nrhs, void *a, const int *lda, void *b, const int *ldb,
                int *jpvt, const void *rcond, int *rank, void *work, const int *lwork, int *info);
  void (*gelsd)(const int *m, const int *n, const int *nrhs, void *a, const int *lda, void *b, const int *ldb,
                void *s, const void *rcond, int *rank, void *work, const int *lwork, int *iwork, int *info);
  void (*gelss)(const int *m, const int *n, const int *nrhs, void *a, const int *lda, void *b, const int *ldb,
                void *s, const void *rcond, int *rank, void *work, const int *lwork, int *info);
} ax_lapack;

/* Opens the library at the first call.  Fails with ENOIMPL where there is none, naming the package;
 * `op` is the row that needs it. */
ax_status ax_lapack_open(ax_op op, ax_dtype dtype, const ax_lapack **out);

/* *place: the function of that name for real or complex numbers, such as "geev". */
ax_status ax_lapack_function(ax_op op, ax_dtype dtype, const char *name, void *place);

/* Factorises matrix i; `scratch` is this thread's.  Returns LAPACK's info. */
typedef int (*ax_matrix_fn)(int64_t i, char *scratch, const void *ud);

/* Calls fn for the matrices 0 .. count-1, several at a time where the batch and `work` (elements
 * touched) are worth it; each call is computed by one thread, so that results do not depend on the
 * number of threads.  info: [count], or NULL; what fn returned. */
ax_status ax_lapack_each(int64_t count, int64_t work, size_t scratch, ax_matrix_fn fn, const void *ud,
                         int *info);

/* Between the two, LAPACK computes with one thread, as it does for ax_lapack_each: an OpenBLAS over
 * OpenMP follows the number of threads that is set.  Returns the number to give back. */
int ax_lapack_begin(void);
void ax_lapack_end(int threads);

/* Likewise for functions of dense.h, which use the threads themselves where there are few
 * matrices. */
ax_status ax_dense_each(int64_t count, int64_t work, size_t scratch, ax_matrix_fn fn, const void *ud,
                        int *info);

/* The first of `count` numbers that is not 0, or -1. */
int64_t ax_lapack_failed(const int *info, int64_t count);

/* ax_lapack_each or ax_dense_each */
typedef ax_status ax_each_fn(int64_t count, int64_t work, size_t scratch, ax_matrix_fn fn, const void *ud,
                             int *info);
/* Calls fn for all matrices by way of `each`.  *bad: the first for which it returned another number
 * than 0, which is *info then; -1: there is none. */
ax_status ax_lapack_try(ax_each_fn *each, int64_t count, int64_t work, size_t scratch, ax_matrix_fn fn,
                        const void *ud, int64_t *bad, int *info);

enum { AX_NOT_FINITE = -1 }; /* fn's own number, which is none of LAPACK's */

/* "the matrix" alone, "matrix 3 of the batch" or, with several dims, "matrix [2, 3] of the batch":
 * the i-th of x, counted from 1. */
const char *ax_lapack_place(const ax_tensor *x, int64_t i, char *text, size_t size);
#define AX_PLACE(x, i) ax_lapack_place(x, i, (char[224]){ 0 }, 224)

/* dst (cols, rows) = src (rows, cols) transposed; 4, 8 or 16 bytes an element. */
void ax_lapack_transpose(size_t item, int64_t rows, int64_t cols, const void *src, void *dst);

/* NaN somewhere; not finite somewhere. */
bool ax_lapack_has_nan(ax_dtype dtype, const void *x, int64_t n);
bool ax_lapack_not_finite(ax_dtype dtype, const void *x, int64_t n);
void ax_lapack_fill(ax_dtype dtype, void *x, int64_t n, double value);

/* The size of work space that a query of LAPACK gave: floats are rounded up. */
int64_t ax_lapack_work(ax_dtype dtype, const void *answer);

#define AX_ROWS(t) ((t)->shape[(t)->ndim - 2])
#define AX_COLS(t) ((t)->shape[(t)->ndim - 1])

/* How many matrices x has. */
static inline int64_t ax_matrices(const ax_tensor *x)
{
  int64_t n = 1;
  for (int d = 0; d < x->ndim - 2; d++) n *= x->shape[d];
  return n;
}

/* Bytes rounded up to whole cache lines, for places in scratch memory. */
static inline size_t ax_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

#endif

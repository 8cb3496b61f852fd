/* cuSOLVER's dense routines, and the triangular ones of cuBLAS: opening them, their handles, and
 * their calls over batches of matrices.
 *
 * Matrices stand column by column here, one after the other without gaps.  What fails because of a
 * matrix (singular, not positive-definite, not finite, no convergence) is reported in `info`, which
 * the callers read where PyTorch does; they then leave the row to the CPU, whose message names the
 * matrix.  Where the libraries are missing, all is left to the CPU. */
#ifndef AX_CUDA_CUSOLVER_H
#define AX_CUDA_CUSOLVER_H

#include "turn.cuh"
#include "vendor.h"

#if __has_include(<cusolverDn.h>)
#define AX_CUSOLVER 1

#include <cusolverDn.h>
#include <mutex>

/* The functions of one element type: S is ours, N the libraries' own. */
template <class S> struct ax_solver_table;
#define AX_SOLVER_TABLE(S, N, R, T, Q, E) \
  template <> struct ax_solver_table<S> { \
    typedef N native; \
    typedef R real; \
    decltype(&cusolverDn##T##potrf) potrf; \
    decltype(&cusolverDn##T##potrf_bufferSize) potrf_bufferSize; \
    decltype(&cusolverDn##T##potrfBatched) potrfBatched; \
    decltype(&cusolverDn##T##getrf) getrf; \
    decltype(&cusolverDn##T##getrf_bufferSize) getrf_bufferSize; \
    decltype(&cusolverDn##T##getrs) getrs; \
    decltype(&cusolverDn##T##geqrf) geqrf; \
    decltype(&cusolverDn##T##geqrf_bufferSize) geqrf_bufferSize; \
    decltype(&cusolverDn##T##Q) orgqr; \
    decltype(&cusolverDn##T##Q##_bufferSize) orgqr_bufferSize; \
    decltype(&cusolverDn##T##E) syevd; \
    decltype(&cusolverDn##T##E##_bufferSize) syevd_bufferSize; \
    decltype(&cusolverDn##T##gesvdj) gesvdj; \
    decltype(&cusolverDn##T##gesvdj_bufferSize) gesvdj_bufferSize; \
    decltype(&cublas##T##trsm_v2) trsm; \
    decltype(&cublas##T##trsmBatched) trsmBatched; \
    decltype(&cublas##T##getrfBatched) getrfBatched; \
    decltype(&cublas##T##getrsBatched) getrsBatched; \
  };
AX_SOLVER_TABLE(float, float, float, S, orgqr, syevd)
AX_SOLVER_TABLE(double, double, double, D, orgqr, syevd)
AX_SOLVER_TABLE(ax_cuda_cx<float>, cuComplex, float, C, ungqr, heevd)
AX_SOLVER_TABLE(ax_cuda_cx<double>, cuDoubleComplex, double, Z, ungqr, heevd)
#undef AX_SOLVER_TABLE
template <class S> const ax_solver_table<S> &ax_solver_functions(void);

/* The use of the libraries by one call.  Holds their lock, and gives memory back at its end.  After
 * a failure, whose status is in st, nothing is done any more. */
class ax_solver {
public:
  explicit ax_solver(const ax_call *call);
  ~ax_solver();
  ax_solver(const ax_solver &) = delete;
  ax_solver &operator=(const ax_solver &) = delete;

  bool ok(void) const { return st == AX_OK; }
  /* Device memory until the end of the call; NULL after a failure. */
  void *take(size_t bytes);
  template <class T> T *room(int64_t n) { return (T *)take(sizeof(T) * (size_t)(n > 0 ? n : 1)); }
  bool check(cusolverStatus_t s, const char *function);
  bool check(cublasStatus_t s, const char *function);
  /* to = from, on the device */
  void copy(void *to, const void *from, size_t bytes);
  /* Whether all numbers are 0; waits for the device. */
  bool all_zero(const int *numbers, int64_t n);
  /* The addresses of `count` matrices of `bytes`. */
  template <class P> P *addresses(const void *first, size_t bytes, int64_t count)
  {
    return (P *)addresses_of(first, bytes, count);
  }

  ax_status st;
  const ax_device d;
  const char *const name; /* of the row, for messages and counters */
  cusolverDnHandle_t dn = NULL;
  cublasHandle_t blas = NULL;
  gesvdjInfo_t jacobi = NULL;

private:
  void *addresses_of(const void *first, size_t bytes, int64_t count);
  bool fails(const char *library, const char *function, int status, bool memory);
  std::unique_lock<std::mutex> hold;
  struct {
    void *p;
    size_t bytes;
  } held[16];
  int n_held = 0;
};

/* ---- routines over batches.  Work space is for one matrix at a time, or for the batch. */

template <class S> struct ax_solver_of : ax_solver {
  typedef ax_solver_table<S> table;
  typedef typename table::native N;
  typedef typename table::real R;
  const table &f;
  explicit ax_solver_of(const ax_call *call) : ax_solver(call), f(ax_solver_functions<S>()) {}

  /* Work space of as many elements as the library requests.  It counts them as int: where that
   * was too narrow, the row is left to the CPU. */
  N *work_space(int elements)
  {
    if (ok() && elements < 0) st = AX_EAWAY;
    return room<N>(elements);
  }

  static cublasFillMode_t part(bool upper) { return upper ? CUBLAS_FILL_MODE_UPPER : CUBLAS_FILL_MODE_LOWER; }
  enum { SMALL = 256 }; /* up to it, the batched routines of cuBLAS factorise and solve */

  /* a = its Cholesky factor, in the triangle that is read. */
  void cholesky(bool upper, int64_t count, int n, S *a, int *info)
  {
    int lwork = 0;
    if (count > 1) {
      N **const at = addresses<N *>(a, sizeof(S) * (size_t)n * (size_t)n, count);
      if (ok()) check(f.potrfBatched(dn, part(upper), n, at, n, info, (int)count), "potrfBatched");
      return;
    }
    if (!ok() || !check(f.potrf_bufferSize(dn, part(upper), n, (N *)a, n, &lwork), "potrf_bufferSize"))
      return;
    N *const work = work_space(lwork);
    if (ok()) check(f.potrf(dn, part(upper), n, (N *)a, n, work, lwork, info), "potrf");
  }

  /* a (m, n) = L and U; pivots: min(m, n) of each matrix, counted from 1 */
  void lu(int64_t count, int m, int n, S *a, int *pivots, int *info)
  {
    const size_t bytes = sizeof(S) * (size_t)m * (size_t)n;
    const int k = m < n ? m : n;
    int lwork = 0;
    if (count > 1 && m == n && n <= SMALL) {
      N **const at = addresses<N *>(a, bytes, count);
      if (ok()) check(f.getrfBatched(blas, n, at, n, pivots, info, (int)count), "getrfBatched");
      return;
    }
    if (!ok() || !check(f.getrf_bufferSize(dn, m, n, (N *)a, m, &lwork), "getrf_bufferSize")) return;
    N *const work = work_space(lwork);
    for (int64_t i = 0; i < count && ok(); i++)
      check(f.getrf(dn, m, n, (N *)((char *)a + (size_t)i * bytes), m, work, pivots + i * k, info + i),
            "getrf");
  }

  /* b (n, k) = the solution of a x = b, or of a^T x = b */
  void lu_solve(bool transposed, int64_t count, int n, int k, const S *lu, const int *pivots, S *b)
  {
    const cublasOperation_t op = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const size_t bytes = sizeof(S) * (size_t)n * (size_t)n, side = sizeof(S) * (size_t)n * (size_t)k;
    int wrong = 0;
    if (n == 0 || k == 0) return;
    if (count > 1 && n <= SMALL) {
      N **const at = addresses<N *>(lu, bytes, count), **const to = addresses<N *>(b, side, count);
      if (ok())
        check(f.getrsBatched(blas, op, n, k, at, n, pivots, to, n, &wrong, (int)count), "getrsBatched");
      return;
    }
    int *const info = room<int>(1);
    for (int64_t i = 0; i < count && ok(); i++)
      check(f.getrs(dn, op, n, k, (const N *)((const char *)lu + (size_t)i * bytes), n, pivots + i * n,
                    (N *)((char *)b + (size_t)i * side), n, info),
            "getrs");
  }

  /* b (k, n) = the solution of x op(a) = b */
  void triangular(bool upper, bool transposed, bool unit, int64_t count, int n, int k, const S *a, S *b)
  {
    const cublasOperation_t op = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasDiagType_t diagonal = unit ? CUBLAS_DIAG_UNIT : CUBLAS_DIAG_NON_UNIT;
    const R one[2] = { 1, 0 };
    const N *const alpha = (const N *)one;
    if (count == 1) {
      if (ok())
        check(f.trsm(blas, CUBLAS_SIDE_RIGHT, part(upper), op, diagonal, k, n, alpha, (const N *)a, n, (N *)b,
                     k),
              "trsm");
      return;
    }
    N **const at = addresses<N *>(a, sizeof(S) * (size_t)n * (size_t)n, count),
              **const to = addresses<N *>(b, sizeof(S) * (size_t)n * (size_t)k, count);
    if (ok())
      check(f.trsmBatched(blas, CUBLAS_SIDE_RIGHT, part(upper), op, diagonal, k, n, alpha, at, n, to, k,
                          (int)count),
            "trsmBatched");
  }

  /* a (m, n) = R and the vectors of reflections, whose factors are tau */
  void qr(int64_t count, int m, int n, S *a, S *tau)
  {
    const int k = m < n ? m : n;
    int lwork = 0;
    if (!ok() || !check(f.geqrf_bufferSize(dn, m, n, (N *)a, m, &lwork), "geqrf_bufferSize")) return;
    N *const work = work_space(lwork);
    int *const info = room<int>(1);
    for (int64_t i = 0; i < count && ok(); i++)
      check(f.geqrf(dn, m, n, (N *)(a + i * m * n), m, (N *)(tau + i * k), work, lwork, info), "geqrf");
  }

  /* a (m, cols) = the first columns of the product of k reflections, whose vectors are in it */
  void form_q(int64_t count, int m, int cols, int k, S *a, const S *tau)
  {
    int lwork = 0;
    if (!ok() ||
        !check(f.orgqr_bufferSize(dn, m, cols, k, (N *)a, m, (const N *)tau, &lwork), "orgqr_bufferSize"))
      return;
    N *const work = work_space(lwork);
    int *const info = room<int>(1);
    for (int64_t i = 0; i < count && ok(); i++)
      check(f.orgqr(dn, m, cols, k, (N *)(a + i * m * cols), m, (const N *)(tau + i * k), work, lwork, info),
            "orgqr");
  }

  /* a (n, n) = its eigenvectors where they are wanted; values rise */
  void eigh(bool vectors, bool upper, int64_t count, int n, S *a, R *values, int *info)
  {
    const cusolverEigMode_t mode = vectors ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
    int lwork = 0;
    if (!ok() ||
        !check(f.syevd_bufferSize(dn, mode, part(upper), n, (N *)a, n, values, &lwork), "syevd_bufferSize"))
      return;
    N *const work = work_space(lwork);
    for (int64_t i = 0; i < count && ok(); i++)
      check(f.syevd(dn, mode, part(upper), n, (N *)(a + i * n * n), n, values + i * n, work, lwork, info + i),
            "syevd");
  }

  /* u (m, its columns), values falling, v (n, its columns); a is overwritten */
  void svd(bool vectors, bool full, int64_t count, int m, int n, S *a, S *u, R *values, S *v, int *info)
  {
    const cusolverEigMode_t mode = vectors ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
    const int k = m < n ? m : n, u_cols = full ? m : k, v_cols = full ? n : k;
    int lwork = 0;
    if (!ok() || !check(f.gesvdj_bufferSize(dn, mode, !full, m, n, (N *)a, m, values, (N *)u, m, (N *)v, n,
                                            &lwork, jacobi),
                        "gesvdj_bufferSize"))
      return;
    N *const work = work_space(lwork);
    for (int64_t i = 0; i < count && ok(); i++)
      check(f.gesvdj(dn, mode, !full, m, n, (N *)(a + i * m * n), m, values + i * k,
                     (N *)(vectors ? u + i * m * u_cols : u), m, (N *)(vectors ? v + i * n * v_cols : v), n,
                     work, lwork, info + i, jacobi),
            "gesvdj");
  }
};

/* Calls f(tag) with the type of the elements. */
template <class F> static ax_status ax_with_solver_type(const ax_tensor *t, F f)
{
  switch (t->dtype) {
  case AX_F32: return f(ax_cuda_type<float>());
  case AX_F64: return f(ax_cuda_type<double>());
  case AX_C64: return f(ax_cuda_type<ax_cuda_cx<float>>());
  case AX_C128: return f(ax_cuda_type<ax_cuda_cx<double>>());
  default: return AX_EAWAY;
  }
}

/* Defines the kernels of a row, of real and of complex numbers, by a template over the type of
 * operand `k`. */
#define AX_SOLVER_ROW(row, k, fn) \
  AX_CUDA_KERNEL(row) \
  { \
    return ax_with_solver_type(call->in[k], [&](auto tag) { \
      typedef AX_TYPE_OF(tag) S; \
      return fn<S>(call); \
    }); \
  } \
  AX_CUDA_KERNEL(complex_##row) { return ax_cuda_##row(call); }

#define AX_ROWS(t) ((t)->shape[(t)->ndim - 2])
#define AX_COLS(t) ((t)->shape[(t)->ndim - 1])
/* How many matrices t has. */
static inline int64_t ax_matrices_of(const ax_tensor *t)
{
  int64_t n = 1;
  for (int k = 0; k < t->ndim - 2; k++) n *= t->shape[k];
  return n;
}

#endif
#endif

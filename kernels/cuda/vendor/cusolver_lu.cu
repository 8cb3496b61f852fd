/* Cholesky, LU, solutions of linear systems, inverses, determinants through cuSOLVER and cuBLAS:
 * see core/ops/factor.def.
 *
 * Our matrices stand row by row, so the libraries see them transposed.  For Cholesky and triangles
 * that is the other triangle of the same problem; LU needs a copy that is turned, since its pivots
 * exchange rows. */
#include "cusolver.h"

#ifndef AX_CUSOLVER

#define LEFT(row) \
  AX_CUDA_KERNEL(row) { return AX_EAWAY; } \
  AX_CUDA_KERNEL(complex_##row) { return AX_EAWAY; }
LEFT(_linalg_cholesky)
LEFT(_linalg_lu)
LEFT(_linalg_permutation)
LEFT(_linalg_solve)
LEFT(_linalg_lu_solve)
LEFT(_linalg_solve_triangular)
LEFT(_linalg_inv)
LEFT(_linalg_det)
LEFT(_linalg_slogdet)
LEFT(_linalg_cofactor)

#else

#include <limits.h>

/* cuSOLVER counts the elements of a matrix, and its work space, as int. */
static bool takes(const ax_tensor *a)
{
  return AX_ROWS(a) < INT_MAX && AX_COLS(a) <= INT_MAX / AX_ROWS(a) && ax_matrices_of(a) < INT_MAX;
}

/* ---- passes of ours */

/* Clears the triangle beside the one that was factorised. */
template <class S> static __global__ void clear_triangle(int64_t count, int64_t n, bool upper, S *x)
{
  for (int64_t i = AX_FIRST; i < count; i += AX_STEP) {
    const int64_t r = i / n % n, c = i % n;
    if (upper ? c < r : c > r) x[i] = S();
  }
}

template <class S> AX_FN S one_of(S) { return 1; }
template <class T> AX_FN ax_cuda_cx<T> one_of(ax_cuda_cx<T>) { return { 1, 0 }; }

/* Identity matrices. */
template <class S> static __global__ void identities(int64_t count, int64_t n, S *x)
{
  for (int64_t i = AX_FIRST; i < count; i += AX_STEP) x[i] = i / n % n == i % n ? one_of(S()) : S();
}

template <class S> AX_FN S not_a_number(S) { return (S)NAN; }
template <class T> AX_FN ax_cuda_cx<T> not_a_number(ax_cuda_cx<T>) { return { (T)NAN, 0 }; }

/* NaN in place of matrices that have no inverse. */
template <class S> static __global__ void spoil(int64_t count, int64_t size, const int *info, S *x)
{
  for (int64_t i = AX_FIRST; i < count; i += AX_STEP)
    if (info[i / size]) x[i] = not_a_number(S());
}

/* Pivots inside the matrix; others are a fault, and count as no exchange. */
static __global__ void keep_inside(int64_t count, int64_t k, int64_t rows, const int *from, int *to, int op,
                                   ax_cuda_fault *fault)
{
  for (int64_t i = AX_FIRST; i < count; i += AX_STEP)
    to[i] = ax_cuda_in_range(fault, AX_FAULT_INDEX, op, (int64_t)from[i] - 1, i, rows) ? from[i]
                                                                                       : (int)(i % k) + 1;
}

template <class... P, class... A>
static void each(ax_solver *s, int64_t count, void (*kernel)(P...), A... arguments)
{
  if (s->ok() && count)
    s->st = ax_cuda_launch(s->name, s->d, ax_cuda_blocks(count, 256, s->d.index), 256, kernel, arguments...);
}

/* to (count, cols, rows) = from (count, rows, cols) */
template <class S>
static void turn(ax_solver *s, int64_t count, int64_t rows, int64_t cols, const void *from, S *to)
{
  if (s->ok()) s->st = ax_turn(s->name, s->d, count, rows, cols, (const S *)from, to, ax_as_it_is());
}

/* ---- Cholesky */

/* To the library x is x^T, whose upper triangle is our lower one: x^T = U^H U, and our factor is
 * U^T, which is U as it stands. */
template <class S> static ax_status cholesky(const ax_call *call)
{
  const ax_tensor *x = call->in[0];
  const bool upper = call->a->linalg_cholesky.upper;
  const int64_t n = AX_COLS(x), count = ax_matrices_of(x);
  S *const y = (S *)ax_data(call->out[0]);
  int *const info = (int *)ax_data(call->out[1]);

  if (x->numel == 0 || !takes(x)) return AX_EAWAY;
  ax_solver_of<S> s(call);
  s.copy(y, ax_data(x), sizeof(S) * (size_t)x->numel);
  if (s.ok()) s.cholesky(!upper, count, (int)n, y, info);
  each(&s, x->numel, clear_triangle<S>, x->numel, n, upper, y);
  if (s.ok() && call->a->linalg_cholesky.check && !s.all_zero(info, count) && s.ok()) return AX_EAWAY;
  return s.st;
}
AX_SOLVER_ROW(_linalg_cholesky, 0, cholesky)

/* ---- LU and solutions */

template <class S> static ax_status lu(const ax_call *call)
{
  const ax_tensor *x = call->in[0];
  const int64_t m = AX_ROWS(x), n = AX_COLS(x), count = ax_matrices_of(x);
  if (x->numel == 0 || !takes(x)) return AX_EAWAY;
  ax_solver_of<S> s(call);
  S *const a = s.template room<S>(x->numel);
  turn(&s, count, m, n, ax_data(x), a);
  if (s.ok()) s.lu(count, (int)m, (int)n, a, (int *)ax_data(call->out[1]), (int *)ax_data(call->out[2]));
  turn(&s, count, n, m, a, (S *)ax_data(call->out[0]));
  return s.st;
}
AX_SOLVER_ROW(_linalg_lu, 0, lu)

template <class S> static ax_status solve(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *b = call->in[1];
  const int64_t n = AX_COLS(x), k = AX_COLS(b), count = ax_matrices_of(x);
  int *const pivots = (int *)ax_data(call->out[2]);
  if (x->numel == 0 || b->numel == 0 || !takes(x) || k > INT_MAX) return AX_EAWAY;
  ax_solver_of<S> s(call);
  S *const a = s.template room<S>(x->numel), *const y = s.template room<S>(b->numel);
  int *const info = s.template room<int>(count);
  turn(&s, count, n, n, ax_data(x), a);
  turn(&s, count, n, k, ax_data(b), y);
  if (s.ok()) s.lu(count, (int)n, (int)n, a, pivots, info);
  if (s.ok()) s.lu_solve(false, count, (int)n, (int)k, a, pivots, y);
  turn(&s, count, k, n, y, (S *)ax_data(call->out[0]));
  turn(&s, count, n, n, a, (S *)ax_data(call->out[1]));
  if (s.ok() && call->a->linalg_solve.check && !s.all_zero(info, count) && s.ok()) return AX_EAWAY;
  return s.st;
}
AX_SOLVER_ROW(_linalg_solve, 0, solve)

template <class S> static ax_status lu_solve(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *given = call->in[1], *b = call->in[2];
  const int64_t n = AX_COLS(x), k = AX_COLS(b), count = ax_matrices_of(x);
  if (x->numel == 0 || b->numel == 0 || !takes(x) || k > INT_MAX) return AX_EAWAY;
  ax_solver_of<S> s(call);
  S *const a = s.template room<S>(x->numel), *const y = s.template room<S>(b->numel);
  int *const pivots = s.template room<int>(given->numel);
  ax_cuda_fault *const fault = s.ok() ? ax_cuda_fault_place(s.d) : NULL;
  if (s.ok() && !fault) return AX_EIO;
  each(&s, given->numel, keep_inside, given->numel, n, n, (const int *)ax_data(given), pivots, (int)call->op,
       fault);
  turn(&s, count, n, n, ax_data(x), a);
  turn(&s, count, n, k, ax_data(b), y);
  if (s.ok()) s.lu_solve(call->a->linalg_lu_solve.transposed, count, (int)n, (int)k, a, pivots, y);
  turn(&s, count, k, n, y, (S *)ax_data(call->out[0]));
  return s.st;
}
AX_SOLVER_ROW(_linalg_lu_solve, 0, lu_solve)

/* op(a) x = b is x^T op(a)^T = b^T, and the library sees a^T. */
template <class S> static ax_status solve_triangular(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *b = call->in[1];
  const auto *const o = &call->a->linalg_solve_triangular;
  if (b->numel == 0 || !takes(x) || AX_COLS(b) > INT_MAX) return AX_EAWAY;
  ax_solver_of<S> s(call);
  S *const y = (S *)ax_data(call->out[0]);
  s.copy(y, ax_data(b), sizeof(S) * (size_t)b->numel);
  if (s.ok())
    s.triangular(!o->upper, o->transposed, o->unitriangular, ax_matrices_of(x), (int)AX_COLS(x),
                 (int)AX_COLS(b), (const S *)ax_data(x), y);
  return s.st;
}
AX_SOLVER_ROW(_linalg_solve_triangular, 0, solve_triangular)

/* The inverse's transpose stands column by column as the inverse does row by row: a^T y = 1. */
template <class S> static ax_status inv(const ax_call *call)
{
  const ax_tensor *x = call->in[0];
  const int64_t n = AX_COLS(x), count = ax_matrices_of(x);
  S *const y = (S *)ax_data(call->out[0]);
  int *const info = (int *)ax_data(call->out[1]);
  if (x->numel == 0 || !takes(x)) return AX_EAWAY;
  ax_solver_of<S> s(call);
  S *const a = s.template room<S>(x->numel);
  int *const pivots = s.template room<int>(count * n);
  turn(&s, count, n, n, ax_data(x), a);
  each(&s, x->numel, identities<S>, x->numel, n, y);
  if (s.ok()) s.lu(count, (int)n, (int)n, a, pivots, info);
  if (s.ok()) s.lu_solve(true, count, (int)n, (int)n, a, pivots, y);
  each(&s, x->numel, spoil<S>, x->numel, n * n, (const int *)info, y);
  if (s.ok() && call->a->linalg_inv.check && !s.all_zero(info, count) && s.ok()) return AX_EAWAY;
  return s.st;
}
AX_SOLVER_ROW(_linalg_inv, 0, inv)

/* ---- determinants */

template <class T> AX_FN T real_of(T v) { return v; }
template <class T> AX_FN T real_of(ax_cuda_cx<T> v) { return v.re; }
template <class T> AX_FN T imag_of(T) { return 0; }
template <class T> AX_FN T imag_of(ax_cuda_cx<T> v) { return v.im; }
template <class S> static __device__ __forceinline__ void store(S *p, double re, double) { *p = (S)re; }
template <class T> static __device__ __forceinline__ void store(ax_cuda_cx<T> *p, double re, double im)
{
  *p = { (T)re, (T)im };
}

/* The larger part's exponent is taken out of a number, so that products stay in range. */
static __device__ __forceinline__ int take_exponent(double *re, double *im)
{
  int e = 0;
  frexp(fmax(fabs(*re), fabs(*im)), &e);
  *re = ldexp(*re, -e);
  *im = ldexp(*im, -e);
  return e;
}

/* A thread for each matrix: the product of the diagonal, or (logs) its phase and the logarithm of
 * its size, signed by the exchanges. */
template <class S, class R>
static __global__ void determinants(int64_t count, int64_t n, const S *lu, const int *pivots, bool logs, S *y,
                                    R *sizes)
{
  for (int64_t b = AX_FIRST; b < count; b += AX_STEP) {
    double re = 1, im = 0, sum = 0;
    int64_t exponent = 0;
    for (int64_t r = 0; r < n; r++) {
      const S v = lu[b * n * n + r * (n + 1)];
      double x = (double)real_of(v), z = (double)imag_of(v);
      if (pivots[b * n + r] != r + 1) re = -re, im = -im;
      if (logs) {
        const double size = z == 0 ? fabs(x) : hypot(x, z);
        sum += log(size);
        if (size == 0) x = z = 0;
        else x /= size, z /= size;
      }
      const double both = re * x - im * z;
      im = re * z + im * x;
      re = both;
      if (!logs) exponent += take_exponent(&re, &im);
    }
    const int e = exponent > 4096 ? 4096 : exponent < -4096 ? -4096 : (int)exponent;
    store(y + b, ldexp(re, logs ? 0 : e), ldexp(im, logs ? 0 : e));
    if (logs) sizes[b] = (R)sum;
  }
}

/* A transposed matrix has the same determinant: the library factorises x as it stands. */
template <class S> static ax_status determine(const ax_call *call, bool logs)
{
  typedef typename ax_solver_table<S>::real R;
  const ax_tensor *x = call->in[0];
  const int64_t n = AX_COLS(x), count = ax_matrices_of(x);
  if (x->numel == 0 || !takes(x)) return AX_EAWAY;
  ax_solver_of<S> s(call);
  S *const a = s.template room<S>(x->numel);
  int *const pivots = s.template room<int>(count * n), *const info = s.template room<int>(count);
  s.copy(a, ax_data(x), sizeof(S) * (size_t)x->numel);
  if (s.ok()) s.lu(count, (int)n, (int)n, a, pivots, info);
  each(&s, count, determinants<S, R>, count, n, (const S *)a, (const int *)pivots, logs,
       (S *)ax_data(call->out[0]), logs ? (R *)ax_data(call->out[1]) : (R *)NULL);
  return s.st;
}
template <class S> static ax_status det(const ax_call *call) { return determine<S>(call, false); }
template <class S> static ax_status slogdet(const ax_call *call) { return determine<S>(call, true); }
AX_SOLVER_ROW(_linalg_det, 0, det)
AX_SOLVER_ROW(_linalg_slogdet, 0, slogdet)

template <class S> AX_FN S times(S a, S b) { return a * b; }
template <class T> AX_FN ax_cuda_cx<T> times(ax_cuda_cx<T> a, ax_cuda_cx<T> b)
{
  return { a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re };
}
template <class S> static __global__ void scale_each(int64_t count, int64_t size, const S *by, S *x)
{
  for (int64_t i = AX_FIRST; i < count; i += AX_STEP) x[i] = times(x[i], by[i / size]);
}

/* det(a) a^-T, where all have an inverse; a y = 1 gives y column by column. */
template <class S> static ax_status cofactor(const ax_call *call)
{
  typedef typename ax_solver_table<S>::real R;
  const ax_tensor *x = call->in[0];
  const int64_t n = AX_COLS(x), count = ax_matrices_of(x);
  S *const y = (S *)ax_data(call->out[0]);
  if (x->numel == 0 || !takes(x)) return AX_EAWAY;
  ax_solver_of<S> s(call);
  S *const a = s.template room<S>(x->numel), *const size = s.template room<S>(count);
  int *const pivots = s.template room<int>(count * n), *const info = s.template room<int>(count);
  turn(&s, count, n, n, ax_data(x), a);
  each(&s, x->numel, identities<S>, x->numel, n, y);
  if (s.ok()) s.lu(count, (int)n, (int)n, a, pivots, info);
  if (s.ok() && !s.all_zero(info, count) && s.ok()) return AX_EAWAY;
  each(&s, count, determinants<S, R>, count, n, (const S *)a, (const int *)pivots, false, size, (R *)NULL);
  if (s.ok()) s.lu_solve(false, count, (int)n, (int)n, a, pivots, y);
  each(&s, x->numel, scale_each<S>, x->numel, n * n, (const S *)size, y);
  return s.st;
}
AX_SOLVER_ROW(_linalg_cofactor, 0, cofactor)

/* ---- the matrix of pivots: a thread for each matrix follows the exchanges */

template <class S>
static __global__ void permutations(int64_t count, int64_t rows, int64_t k, const int *pivots, int *at, S *y,
                                    int parts, int op, ax_cuda_fault *fault)
{
  for (int64_t b = AX_FIRST; b < count; b += AX_STEP) {
    int *const mine = at + b * rows;
    for (int64_t r = 0; r < rows; r++) mine[r] = (int)r;
    for (int64_t r = 0; r < k; r++) {
      const int64_t other = (int64_t)pivots[b * k + r] - 1;
      if (!ax_cuda_in_range(fault, AX_FAULT_INDEX, op, other, b * k + r, rows)) continue;
      const int kept = mine[other];
      mine[other] = mine[r];
      mine[r] = kept;
    }
    for (int64_t r = 0; r < rows; r++) y[((b * rows + mine[r]) * rows + r) * parts] = ax_cuda_store<S>(1.0);
  }
}

AX_CUDA_KERNEL(_linalg_permutation)
{
  const ax_tensor *pivots = call->in[0], *y = call->out[0];
  const int64_t rows = AX_ROWS(y), k = AX_COLS(pivots), count = ax_matrices_of(y);
  const ax_device d = y->device;
  const ax_dtype dtype = (ax_dtype)y->dtype;
  const bool complex = ax_is_complex(dtype);
  const size_t bytes = sizeof(int) * (size_t)(count * rows);
  ax_cuda_fault *const fault = ax_cuda_fault_place(d);
  void *at = NULL;
  ax_status st;

  if (y->numel == 0) return AX_OK;
  if (!fault) return AX_EIO;
  if ((st = ax_cuda_clear("linalg.lu", d, ax_data(y), (size_t)y->numel * ax_itemsize(y))) != AX_OK ||
      (st = ax_cuda_take(d, bytes, &at)) != AX_OK)
    return st;
  st = ax_cuda_with_any(call->op, complex ? ax_part_dtype(dtype) : dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("linalg.lu", d, ax_cuda_blocks(count, 256, d.index), 256, permutations<S>, count,
                          rows, k, (const int *)ax_data(pivots), (int *)at, (S *)ax_data(y), complex ? 2 : 1,
                          (int)call->op, fault);
  });
  ax_cuda_give(d, at, bytes);
  return st;
}
AX_CUDA_KERNEL(complex__linalg_permutation) { return ax_cuda__linalg_permutation(call); }

#endif

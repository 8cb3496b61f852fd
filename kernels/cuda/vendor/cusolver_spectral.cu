/* QR, singular values and symmetric eigenvalues through cuSOLVER: see core/ops/factor.def.
 *
 * Matrices are turned into columns and the results back.  A matrix with elements that are not
 * finite is replaced by zeros, so that no iteration runs for ever, and reported beside the
 * library's own numbers: one wait reads both. */
#include "cusolver.h"

#ifndef AX_CUSOLVER

#define LEFT(row) \
  AX_CUDA_KERNEL(row) { return AX_EAWAY; } \
  AX_CUDA_KERNEL(complex_##row) { return AX_EAWAY; }
LEFT(_linalg_geqrf)
LEFT(_linalg_qr)
LEFT(_linalg_svd)
LEFT(_linalg_eigh)

#else

#include <limits.h>

#include "core/ops/factor.h"

/* The work space of eigenvalues and singular values is some three times as large as the matrix, and
 * cuSOLVER counts its elements as int.  square: a result is the square of the larger side. */
static bool takes(const ax_tensor *x, bool square)
{
  if (x->numel == 0) return false;
  const int64_t m = AX_ROWS(x), n = AX_COLS(x), side = m > n ? m : n;
  const int64_t rows = square ? side : m, cols = square ? side : n;
  return rows < INT_MAX && cols <= INT_MAX / 4 / rows && ax_matrices_of(x) < INT_MAX;
}

/* to (count, cols, rows) = f of from (count, rows, cols) */
template <class S, class F>
static void turn(ax_solver *s, int64_t count, int64_t rows, int64_t cols, const void *from, S *to, F f)
{
  if (s->ok()) s->st = ax_turn(s->name, s->d, count, rows, cols, (const S *)from, to, f);
}

/* ---- QR */

/* The triangle of the first `rows` rows: y (count, rows, n) of a, whose columns have m elements. */
template <class S>
static __global__ void upper_rows(int64_t count, int64_t rows, int64_t m, int64_t n, const S *a, S *y)
{
  for (int64_t i = AX_FIRST; i < count; i += AX_STEP) {
    const int64_t c = i % n, r = i / n % rows, b = i / n / rows;
    y[i] = c >= r ? a[(b * n + c) * m + r] : S();
  }
}

/* The first k of n columns: y (count, cols, m), the rest of whose columns is not read. */
template <class S>
static __global__ void first_columns(int64_t count, int64_t m, int64_t n, int64_t k, int64_t cols, const S *a,
                                     S *y)
{
  for (int64_t i = AX_FIRST; i < count; i += AX_STEP) {
    const int64_t r = i % m, c = i / m % k, b = i / m / k;
    y[(b * cols + c) * m + r] = a[(b * n + c) * m + r];
  }
}

template <class S> static ax_status geqrf(const ax_call *call)
{
  const ax_tensor *x = call->in[0];
  const int64_t m = AX_ROWS(x), n = AX_COLS(x), count = ax_matrices_of(x);
  if (!takes(x, false)) return AX_EAWAY;
  ax_solver_of<S> s(call);
  S *const a = s.template room<S>(x->numel);
  turn(&s, count, m, n, ax_data(x), a, ax_as_it_is());
  if (s.ok()) s.qr(count, (int)m, (int)n, a, (S *)ax_data(call->out[1]));
  turn(&s, count, n, m, a, (S *)ax_data(call->out[0]), ax_as_it_is());
  return s.st;
}
AX_SOLVER_ROW(_linalg_geqrf, 0, geqrf)

template <class S> static ax_status qr(const ax_call *call)
{
  const ax_tensor *x = call->in[0];
  const int64_t mode = call->a->linalg_qr.mode, m = AX_ROWS(x), n = AX_COLS(x), k = m < n ? m : n,
                cols = mode == AX_QR_COMPLETE ? m : k, count = ax_matrices_of(x);
  if (!takes(x, mode == AX_QR_COMPLETE)) return AX_EAWAY;
  ax_solver_of<S> s(call);
  S *const a = s.template room<S>(x->numel), *const tau = s.template room<S>(count * k);
  turn(&s, count, m, n, ax_data(x), a, ax_as_it_is());
  if (s.ok()) s.qr(count, (int)m, (int)n, a, tau);
  const int64_t in_r = count * cols * n, in_q = count * k * m;
  if (s.ok())
    s.st = ax_cuda_launch("linalg.qr", s.d, ax_cuda_blocks(in_r, 256, s.d.index), 256, upper_rows<S>, in_r,
                          cols, m, n, (const S *)a, (S *)ax_data(call->out[1]));
  if (mode == AX_QR_R) return s.st;
  S *const q = s.template room<S>(count * cols * m);
  if (s.ok())
    s.st = ax_cuda_launch("linalg.qr", s.d, ax_cuda_blocks(in_q, 256, s.d.index), 256, first_columns<S>, in_q,
                          m, n, k, cols, (const S *)a, q);
  if (s.ok()) s.form_q(count, (int)m, (int)cols, (int)k, q, tau);
  turn(&s, count, cols, m, q, (S *)ax_data(call->out[0]), ax_as_it_is());
  return s.st;
}
AX_SOLVER_ROW(_linalg_qr, 0, qr)

/* ---- what has to be finite */

template <class T> AX_FN bool is_finite(T v) { return isfinite(v); }
template <class T> AX_FN bool is_finite_real(T v) { return isfinite(v); }
template <class T> AX_FN bool is_finite_real(ax_cuda_cx<T> v) { return isfinite(v.re); }
template <class T> AX_FN bool is_finite(ax_cuda_cx<T> v) { return isfinite(v.re) && isfinite(v.im); }

enum { WHOLE, LOWER, UPPER };

/* A block for each matrix (rows, cols), column by column: clears it where the part that is read is
 * not finite, and says so. */
template <class S>
static __global__ void clear_not_finite(int64_t count, int64_t rows, int64_t cols, int part, S *a, int *bad)
{
  __shared__ int found;
  for (int64_t b = blockIdx.x; b < count; b += gridDim.x) {
    S *const x = a + b * rows * cols;
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < rows * cols; i += blockDim.x) {
      const int64_t r = i % rows, c = i / rows;
      const bool read = part == WHOLE || (part == LOWER ? r >= c : r <= c);
      const bool diagonal = part != WHOLE && r == c; /* its imaginary part is not read */
      if (read && !(diagonal ? is_finite_real(x[i]) : is_finite(x[i]))) found = 1;
    }
    __syncthreads();
    if (found)
      for (int64_t i = threadIdx.x; i < rows * cols; i += blockDim.x) x[i] = S();
    if (threadIdx.x == 0) bad[b] = found;
    __syncthreads();
  }
}

template <class S>
static void check_finite(ax_solver *s, int64_t count, int64_t rows, int64_t cols, int part, S *a, int *bad)
{
  if (s->ok())
    s->st = ax_cuda_launch(s->name, s->d, ax_cuda_blocks(count, 1, s->d.index), 256, clear_not_finite<S>,
                           count, rows, cols, part, a, bad);
}

/* ---- singular values */

template <class T> static __global__ void conjugate(int64_t count, ax_cuda_cx<T> *x)
{
  for (int64_t i = AX_FIRST; i < count; i += AX_STEP) x[i].im = -x[i].im;
}
template <class S> static void conjugated(ax_solver *, int64_t, S *) {}
template <class T> static void conjugated(ax_solver *s, int64_t count, ax_cuda_cx<T> *x)
{
  if (s->ok() && count)
    s->st =
        ax_cuda_launch(s->name, s->d, ax_cuda_blocks(count, 256, s->d.index), 256, conjugate<T>, count, x);
}

/* V, column by column, is V^T row by row; V^H is its conjugate. */
template <class S> static ax_status svd(const ax_call *call)
{
  typedef typename ax_solver_table<S>::real R;
  const ax_tensor *x = call->in[0], *const *out = call->out;
  const bool vectors = call->a->linalg_svd.vectors, full = call->a->linalg_svd.full_matrices;
  const int64_t m = AX_ROWS(x), n = AX_COLS(x), k = m < n ? m : n, count = ax_matrices_of(x);
  if (!takes(x, vectors && full)) return AX_EAWAY;
  ax_solver_of<S> s(call);
  S *const a = s.template room<S>(x->numel), *const u = s.template room<S>(vectors ? out[0]->numel : m * k),
           *const v = vectors ? (S *)ax_data(out[2]) : s.template room<S>(n * k);
  int *const info = s.template room<int>(2 * count);
  turn(&s, count, m, n, ax_data(x), a, ax_as_it_is());
  check_finite(&s, count, m, n, WHOLE, a, info + count);
  if (s.ok()) s.svd(vectors, vectors && full, count, (int)m, (int)n, a, u, (R *)ax_data(out[1]), v, info);
  if (vectors) {
    turn(&s, count, full ? m : k, m, u, (S *)ax_data(out[0]), ax_as_it_is());
    conjugated(&s, out[2]->numel, v);
  }
  if (s.ok() && !s.all_zero(info, 2 * count) && s.ok()) return AX_EAWAY;
  return s.st;
}
AX_SOLVER_ROW(_linalg_svd, 0, svd)

/* ---- symmetric eigenvalues */

template <class S> static ax_status eigh(const ax_call *call)
{
  typedef typename ax_solver_table<S>::real R;
  const ax_tensor *x = call->in[0];
  const bool vectors = call->a->linalg_eigh.vectors, upper = call->a->linalg_eigh.upper;
  const int64_t n = AX_COLS(x), count = ax_matrices_of(x);
  if (!takes(x, true)) return AX_EAWAY;
  ax_solver_of<S> s(call);
  S *const a = s.template room<S>(x->numel);
  int *const info = s.template room<int>(2 * count);
  turn(&s, count, n, n, ax_data(x), a, ax_as_it_is());
  check_finite(&s, count, n, n, upper ? UPPER : LOWER, a, info + count);
  if (s.ok()) s.eigh(vectors, upper, count, (int)n, a, (R *)ax_data(call->out[0]), info);
  if (vectors) turn(&s, count, n, n, a, (S *)ax_data(call->out[1]), ax_as_it_is());
  if (s.ok() && !s.all_zero(info, 2 * count) && s.ok()) return AX_EAWAY;
  return s.st;
}
AX_SOLVER_ROW(_linalg_eigh, 0, eigh)

#endif

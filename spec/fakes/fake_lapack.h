/* LAPACK for the stand-ins of cuSOLVER and cuBLAS: found at run time, called for one matrix in any
 * of the four types. */
#ifndef AX_FAKE_LAPACK_H
#define AX_FAKE_LAPACK_H

#include <complex>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <vector>

inline void *fake_lapack(char letter, const char *routine)
{
  static void *library = NULL;
  for (const char *name : { "libopenblas.so.0", "liblapack.so.3" })
    if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  const std::string name = letter + std::string(routine) + "_";
  void *const at = library ? dlsym(library, name.c_str()) : NULL;
  if (at) return at;
  fprintf(stderr, "the stand-ins of cuSOLVER and cuBLAS need LAPACK's %s (libopenblas0)\n", name.c_str());
  abort();
}

template <class N> struct fake_type;
#define FAKE_TYPE(N, R, letter, Q, E) \
  template <> struct fake_type<N> { \
    typedef R real; \
    static const char of = letter; \
    static const char *q(void) { return Q; } \
    static const char *e(void) { return E; } \
    static const bool is_complex = sizeof(N) != sizeof(R); \
  };
FAKE_TYPE(float, float, 's', "orgqr", "syevd")
FAKE_TYPE(double, double, 'd', "orgqr", "syevd")
FAKE_TYPE(cuComplex, float, 'c', "ungqr", "heevd")
FAKE_TYPE(cuDoubleComplex, double, 'z', "ungqr", "heevd")
#undef FAKE_TYPE

inline const char *fake_letter(cublasOperation_t op)
{
  return op == CUBLAS_OP_N ? "N" : op == CUBLAS_OP_T ? "T" : "C";
}

/* Calls a routine of Fortran's: all arguments by address. */
template <class N, class... A> static void fake_call(const char *routine, A... arguments)
{
  ((void (*)(A..., size_t, size_t, size_t, size_t))fake_lapack(fake_type<N>::of, routine))(arguments..., 1, 1,
                                                                                           1, 1);
}

/* A matrix in memory of its own, with room behind it, for as long as LAPACK works on it: OpenBLAS
 * 0.3.21's cgemv and zgemv read one element behind a vector (rows % 4 == 2), which is on the closed
 * page of the emulator's mode "behind". */
template <class N> class fake_matrix {
public:
  fake_matrix(N *a, int rows, int cols, int ld)
      : home(a), n(rows > 0 && cols > 0 ? (size_t)(cols - 1) * ld + rows : 0), copy(n + 16)
  {
    if (n) memcpy((void *)copy.data(), (const void *)home, n * sizeof(N));
  }
  ~fake_matrix()
  {
    if (n) memcpy((void *)home, (const void *)copy.data(), n * sizeof(N));
  }
  fake_matrix(const fake_matrix &) = delete;
  operator N *() { return copy.data(); }

private:
  N *const home;
  const size_t n;
  std::vector<N> copy;
};
/* One that is only read. */
template <class N> static std::vector<N> fake_read(const N *a, int rows, int cols, int ld)
{
  const size_t n = (size_t)(cols - 1) * ld + rows;
  std::vector<N> copy(n + 16);
  memcpy((void *)copy.data(), (const void *)a, n * sizeof(N));
  return copy;
}

template <class N> static void fake_potrf(const char *uplo, int n, N *a, int lda, int *info)
{
  fake_matrix<N> x(a, n, n, lda);
  fake_call<N>("potrf", uplo, &n, (N *)x, &lda, info);
}
template <class N> static void fake_getrf(int m, int n, N *a, int lda, int *pivots, int *info)
{
  fake_matrix<N> x(a, m, n, lda);
  fake_call<N>("getrf", &m, &n, (N *)x, &lda, pivots, info);
}
template <class N>
static void fake_getrs(const char *op, int n, int k, const N *a, int lda, const int *pivots, N *b, int ldb,
                       int *info)
{
  const std::vector<N> lu = fake_read(a, n, n, lda);
  fake_matrix<N> x(b, n, k, ldb);
  fake_call<N>("getrs", op, &n, &k, lu.data(), &lda, pivots, (N *)x, &ldb, info);
}
template <class N>
static void fake_trsm(const char *side, const char *uplo, const char *op, const char *diag, int m, int n,
                      const N &alpha, const N *a, int lda, N *b, int ldb)
{
  const int order = *side == 'L' ? m : n;
  const std::vector<N> by = fake_read(a, order, order, lda);
  fake_matrix<N> x(b, m, n, ldb);
  fake_call<N>("trsm", side, uplo, op, diag, &m, &n, &alpha, by.data(), &lda, (N *)x, &ldb);
}
template <class N> static void fake_geqrf(int m, int n, N *a, int lda, N *tau, int *info)
{
  int lwork = 64 * (n + 1);
  std::vector<N> work((size_t)lwork);
  fake_matrix<N> x(a, m, n, lda);
  fake_call<N>("geqrf", &m, &n, (N *)x, &lda, tau, work.data(), &lwork, info);
}
template <class N> static void fake_orgqr(int m, int n, int k, N *a, int lda, const N *tau, int *info)
{
  int lwork = 64 * (n + 1);
  std::vector<N> work((size_t)lwork);
  fake_matrix<N> x(a, m, n, lda);
  fake_call<N>(fake_type<N>::q(), &m, &n, &k, (N *)x, &lda, tau, work.data(), &lwork, info);
}

template <class N, class R>
static void fake_syevd(const char *wants, const char *uplo, int n, N *a, int lda, R *w, int *info)
{
  int lwork = 2 * n * n + 10 * n + 100, lrwork = 2 * n * n + 10 * n + 100, liwork = 5 * n + 10;
  std::vector<N> work((size_t)lwork);
  std::vector<R> reals((size_t)lrwork);
  std::vector<int> integers((size_t)liwork);
  fake_matrix<N> x(a, n, n, lda);
  if (fake_type<N>::is_complex)
    fake_call<N>("heevd", wants, uplo, &n, (N *)x, &lda, w, work.data(), &lwork, reals.data(), &lrwork,
                 integers.data(), &liwork, info);
  else
    fake_call<N>("syevd", wants, uplo, &n, (N *)x, &lda, w, work.data(), &lwork, integers.data(), &liwork,
                 info);
}

/* v is V, not its conjugate transpose; the number of no convergence is cuSOLVER's. */
template <class N, class R>
static void fake_svd(bool vectors, bool econ, int m, int n, N *a, int lda, R *s, N *u, int ldu, N *v, int ldv,
                     int *info)
{
  const int k = m < n ? m : n, rows = econ ? k : n;
  int lwork = 5 * (m + n) * 64 + 4 * k * k + 100, ldvt = rows > 1 ? rows : 1;
  std::vector<N> work((size_t)lwork), vt((size_t)(ldvt * n));
  std::vector<R> reals((size_t)(5 * k * k + 7 * k + 2 * (m + n) * k + 100));
  std::vector<int> integers((size_t)(8 * k + 8));
  const char *const wants = !vectors ? "N" : econ ? "S" : "A";
  fake_matrix<N> x(a, m, n, lda), left(u, vectors ? m : 0, econ ? k : m, ldu);
  if (fake_type<N>::is_complex)
    fake_call<N>("gesdd", wants, &m, &n, (N *)x, &lda, s, (N *)left, &ldu, vt.data(), &ldvt, work.data(),
                 &lwork, reals.data(), integers.data(), info);
  else
    fake_call<N>("gesdd", wants, &m, &n, (N *)x, &lda, s, (N *)left, &ldu, vt.data(), &ldvt, work.data(),
                 &lwork, integers.data(), info);
  if (*info > 0) *info = k + 1;
  for (int i = 0; vectors && i < rows; i++)
    for (int j = 0; j < n; j++) {
      N of = vt[(size_t)(j * ldvt + i)];
      if (fake_type<N>::is_complex) ((R *)&of)[1] = -((R *)&of)[1];
      v[(size_t)i * ldv + j] = of;
    }
}

#endif

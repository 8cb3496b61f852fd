/* A stand-in for libcusolver.so.12 on the emulated device (kernels/cuda/emulate/emulate.h), for the
 * specs.
 *
 * It checks arguments as cuSOLVER's documentation states them, and takes the stricter reading where
 * that leaves something open: leading dimensions, work space of at least the size that was asked
 * for this call, device memory for all of them (info included), a handle of the current device.
 * What computes is LAPACK, found at run time.  Work space is overwritten. */
#include "cuda/vendor/vendor.h"

#include <cusolverDn.h>

#include "fake_lapack.h"

#include <algorithm>
#include <map>

#define EXPORT extern "C" __attribute__((visibility("default")))

static const ax_emulator *emulator;
EXPORT void ax_emulator_attach(const ax_emulator *e) { emulator = e; }

enum { HANDLE = 0x534f4c56, JACOBI = 0x4a41434f };
struct cusolverDnContext {
  int tag, device;
  cudaStream_t stream;
};
struct gesvdjInfo {
  int tag;
};

static cusolverStatus_t refuse(const char *format, ...)
{
  va_list list;
  if (!getenv("FAKE_CUSOLVER_LOG")) return CUSOLVER_STATUS_INVALID_VALUE;
  va_start(list, format);
  fputs("[cuSOLVER stand-in] ", stderr);
  vfprintf(stderr, format, list);
  fputc('\n', stderr);
  va_end(list);
  return CUSOLVER_STATUS_INVALID_VALUE;
}
#define NEED(condition) \
  if (!(condition)) return refuse("%s: %s", __func__, #condition)
#define NEED_HANDLE \
  if (!h || h->tag != HANDLE) return CUSOLVER_STATUS_NOT_INITIALIZED; \
  NEED(h->device == emulator->device())

EXPORT cusolverStatus_t cusolverGetProperty(libraryPropertyType type, int *value)
{
  const int parts[] = { CUSOLVER_VER_MAJOR, CUSOLVER_VER_MINOR, CUSOLVER_VER_PATCH };
  if (!value || (int)type < 0 || (int)type > 2) return CUSOLVER_STATUS_INVALID_VALUE;
  *value = parts[type];
  return CUSOLVER_STATUS_SUCCESS;
}
EXPORT cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t *out)
{
  if (!emulator) return CUSOLVER_STATUS_NOT_INITIALIZED;
  *out = new cusolverDnContext{ HANDLE, emulator->device(), NULL };
  return CUSOLVER_STATUS_SUCCESS;
}
EXPORT cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t h, cudaStream_t stream)
{
  NEED_HANDLE;
  h->stream = stream;
  return CUSOLVER_STATUS_SUCCESS;
}
EXPORT cusolverStatus_t cusolverDnCreateGesvdjInfo(gesvdjInfo_t *out)
{
  *out = new gesvdjInfo{ JACOBI };
  return CUSOLVER_STATUS_SUCCESS;
}

static cusolverStatus_t queued(cusolverDnHandle_t h, std::function<void()> work)
{
  return emulator->work(h->stream, work) ? CUSOLVER_STATUS_INTERNAL_ERROR : CUSOLVER_STATUS_SUCCESS;
}

template <class S> static bool matrix(const S *a, int rows, int cols, int ld)
{
  return a && (uintptr_t)a % sizeof(S) == 0 && ld >= std::max(1, rows) &&
         (rows == 0 || cols == 0 || emulator->owns(a, sizeof(S) * ((size_t)(cols - 1) * ld + rows)));
}
template <class S> static bool array(const S *p, size_t n)
{
  return n == 0 || (p && (uintptr_t)p % sizeof(S) == 0 && emulator->owns(p, sizeof(S) * n));
}
template <class S> static void spoil(S *work, int n) { memset((void *)work, 0xff, sizeof(S) * (size_t)n); }

/* FAKE_CUSOLVER_WORK: the work space of all routines, as where int does not hold their own. */
static int sized(int elements)
{
  const char *const given = getenv("FAKE_CUSOLVER_WORK");
  return given ? atoi(given) : elements;
}

static bool is_part(cublasFillMode_t f) { return f == CUBLAS_FILL_MODE_LOWER || f == CUBLAS_FILL_MODE_UPPER; }
static const char *part(cublasFillMode_t f) { return f == CUBLAS_FILL_MODE_UPPER ? "U" : "L"; }

/* ---- the routines, for one type */

#define ROUTINES(T, N, R, Q, E) \
  EXPORT cusolverStatus_t cusolverDn##T##potrf_bufferSize(cusolverDnHandle_t h, cublasFillMode_t uplo, \
                                                          int n, N *a, int lda, int *lwork) \
  { \
    NEED_HANDLE; \
    NEED(is_part(uplo) && n >= 0 && matrix(a, n, n, lda) && lwork); \
    *lwork = sized(7 * n + 3); \
    return CUSOLVER_STATUS_SUCCESS; \
  } \
  EXPORT cusolverStatus_t cusolverDn##T##potrf(cusolverDnHandle_t h, cublasFillMode_t uplo, int n, N *a, \
                                               int lda, N *work, int lwork, int *info) \
  { \
    NEED_HANDLE; \
    NEED(is_part(uplo) && n > 0 && matrix(a, n, n, lda)); \
    NEED(lwork >= 7 * n + 3 && array(work, (size_t)lwork) && array(info, 1)); \
    return queued(h, [=] { \
      spoil(work, lwork); \
      fake_potrf(part(uplo), n, a, lda, info); \
    }); \
  } \
  EXPORT cusolverStatus_t cusolverDn##T##potrfBatched(cusolverDnHandle_t h, cublasFillMode_t uplo, int n, \
                                                      N *a[], int lda, int *info, int count) \
  { \
    NEED_HANDLE; \
    NEED(is_part(uplo) && n > 0 && lda >= n && count > 0); \
    NEED(array(a, (size_t)count) && array(info, (size_t)count)); \
    return queued(h, [=] { \
      for (int i = 0; i < count; i++) fake_potrf(part(uplo), n, a[i], lda, info + i); \
    }); \
  } \
  EXPORT cusolverStatus_t cusolverDn##T##getrf_bufferSize(cusolverDnHandle_t h, int m, int n, N *a, int lda, \
                                                          int *lwork) \
  { \
    NEED_HANDLE; \
    NEED(m >= 0 && n >= 0 && matrix(a, m, n, lda) && lwork); \
    *lwork = sized(m * n + 5); \
    return CUSOLVER_STATUS_SUCCESS; \
  } \
  EXPORT cusolverStatus_t cusolverDn##T##getrf(cusolverDnHandle_t h, int m, int n, N *a, int lda, N *work, \
                                               int *pivots, int *info) \
  { \
    NEED_HANDLE; \
    NEED(m > 0 && n > 0 && matrix(a, m, n, lda) && array(work, (size_t)(m * n + 5))); \
    NEED(array(pivots, (size_t)std::min(m, n)) && array(info, 1)); \
    return queued(h, [=] { \
      spoil(work, m *n + 5); \
      fake_getrf(m, n, a, lda, pivots, info); \
    }); \
  } \
  EXPORT cusolverStatus_t cusolverDn##T##getrs(cusolverDnHandle_t h, cublasOperation_t op, int n, int k, \
                                               const N *a, int lda, const int *pivots, N *b, int ldb, \
                                               int *info) \
  { \
    NEED_HANDLE; \
    NEED((op == CUBLAS_OP_N || op == CUBLAS_OP_T || op == CUBLAS_OP_C) && n > 0 && k > 0); \
    NEED(matrix(a, n, n, lda) && matrix(b, n, k, ldb) && array(pivots, (size_t)n) && array(info, 1)); \
    return queued(h, [=] { fake_getrs(fake_letter(op), n, k, a, lda, pivots, b, ldb, info); }); \
  } \
  EXPORT cusolverStatus_t cusolverDn##T##geqrf_bufferSize(cusolverDnHandle_t h, int m, int n, N *a, int lda, \
                                                          int *lwork) \
  { \
    NEED_HANDLE; \
    NEED(m >= 0 && n >= 0 && matrix(a, m, n, lda) && lwork); \
    *lwork = sized(32 * (n + 1)); \
    return CUSOLVER_STATUS_SUCCESS; \
  } \
  EXPORT cusolverStatus_t cusolverDn##T##geqrf(cusolverDnHandle_t h, int m, int n, N *a, int lda, N *tau, \
                                               N *work, int lwork, int *info) \
  { \
    NEED_HANDLE; \
    NEED(m > 0 && n > 0 && matrix(a, m, n, lda) && array(tau, (size_t)std::min(m, n))); \
    NEED(lwork >= 32 * (n + 1) && array(work, (size_t)lwork) && array(info, 1)); \
    return queued(h, [=] { \
      spoil(work, lwork); \
      fake_geqrf(m, n, a, lda, tau, info); \
    }); \
  } \
  EXPORT cusolverStatus_t cusolverDn##T##Q##_bufferSize(cusolverDnHandle_t h, int m, int n, int k, \
                                                        const N *a, int lda, const N *tau, int *lwork) \
  { \
    NEED_HANDLE; \
    NEED(m >= n && n >= k && k >= 0 && matrix(a, m, n, lda) && array(tau, (size_t)k) && lwork); \
    *lwork = sized(32 * (n + 2)); \
    return CUSOLVER_STATUS_SUCCESS; \
  } \
  EXPORT cusolverStatus_t cusolverDn##T##Q(cusolverDnHandle_t h, int m, int n, int k, N *a, int lda, \
                                           const N *tau, N *work, int lwork, int *info) \
  { \
    NEED_HANDLE; \
    NEED(m >= n && n >= k && k > 0 && matrix(a, m, n, lda) && array(tau, (size_t)k)); \
    NEED(lwork >= 32 * (n + 2) && array(work, (size_t)lwork) && array(info, 1)); \
    return queued(h, [=] { \
      spoil(work, lwork); \
      fake_orgqr(m, n, k, a, lda, tau, info); \
    }); \
  } \
  EXPORT cusolverStatus_t cusolverDn##T##E##_bufferSize(cusolverDnHandle_t h, cusolverEigMode_t mode, \
                                                        cublasFillMode_t uplo, int n, const N *a, int lda, \
                                                        const R *w, int *lwork) \
  { \
    NEED_HANDLE; \
    NEED(is_part(uplo) && n >= 0 && matrix(a, n, n, lda) && array(w, (size_t)n) && lwork); \
    *lwork = sized(2 * n * n + 9 * n + 1); \
    return CUSOLVER_STATUS_SUCCESS; \
  } \
  EXPORT cusolverStatus_t cusolverDn##T##E(cusolverDnHandle_t h, cusolverEigMode_t mode, \
                                           cublasFillMode_t uplo, int n, N *a, int lda, R *w, N *work, \
                                           int lwork, int *info) \
  { \
    NEED_HANDLE; \
    NEED(mode == CUSOLVER_EIG_MODE_VECTOR || mode == CUSOLVER_EIG_MODE_NOVECTOR); \
    NEED(is_part(uplo) && n > 0 && matrix(a, n, n, lda) && array(w, (size_t)n)); \
    NEED(lwork >= 2 * n * n + 9 * n + 1 && array(work, (size_t)lwork) && array(info, 1)); \
    return queued(h, [=] { \
      spoil(work, lwork); \
      fake_syevd(mode == CUSOLVER_EIG_MODE_VECTOR ? "V" : "N", part(uplo), n, a, lda, w, info); \
    }); \
  } \
  EXPORT cusolverStatus_t cusolverDn##T##gesvdj_bufferSize(cusolverDnHandle_t h, cusolverEigMode_t mode, \
                                                           int econ, int m, int n, const N *a, int lda, \
                                                           const R *s, const N *u, int ldu, const N *v, \
                                                           int ldv, int *lwork, gesvdjInfo_t params) \
  { \
    NEED_HANDLE; \
    NEED(params && params->tag == JACOBI && (econ == 0 || econ == 1) && m >= 0 && n >= 0 && lwork); \
    NEED(matrix(a, m, n, lda) && matrix(u, m, econ ? std::min(m, n) : m, ldu) && \
         matrix(v, n, econ ? std::min(m, n) : n, ldv) && array(s, (size_t)std::min(m, n))); \
    *lwork = sized(3 * m * n + 11); \
    return CUSOLVER_STATUS_SUCCESS; \
  } \
  EXPORT cusolverStatus_t cusolverDn##T##gesvdj(cusolverDnHandle_t h, cusolverEigMode_t mode, int econ, \
                                                int m, int n, N *a, int lda, R *s, N *u, int ldu, N *v, \
                                                int ldv, N *work, int lwork, int *info, gesvdjInfo_t params) \
  { \
    NEED_HANDLE; \
    NEED(mode == CUSOLVER_EIG_MODE_VECTOR || mode == CUSOLVER_EIG_MODE_NOVECTOR); \
    NEED(params && params->tag == JACOBI && (econ == 0 || econ == 1) && m > 0 && n > 0); \
    NEED(matrix(a, m, n, lda) && matrix(u, m, econ ? std::min(m, n) : m, ldu) && \
         matrix(v, n, econ ? std::min(m, n) : n, ldv) && array(s, (size_t)std::min(m, n))); \
    NEED(lwork >= 3 * m * n + 11 && array(work, (size_t)lwork) && array(info, 1)); \
    return queued(h, [=] { \
      spoil(work, lwork); \
      fake_svd(mode == CUSOLVER_EIG_MODE_VECTOR, econ != 0, m, n, a, lda, s, u, ldu, v, ldv, info); \
    }); \
  }
ROUTINES(S, float, float, orgqr, syevd)
ROUTINES(D, double, double, orgqr, syevd)
ROUTINES(C, cuComplex, float, ungqr, heevd)
ROUTINES(Z, cuDoubleComplex, double, ungqr, heevd)

/* A stand-in for libcublas.so.13 on the emulated device (kernels/cuda/emulate/emulate.h), for the
 * specs: the routines over batches of matrices that linalg calls.  It checks what cuBLAS's
 * documentation states of the arguments, and LAPACK, found at run time, computes. */
#include "cuda/vendor/vendor.h"

#include <cublas_v2.h>

#include "fake_lapack.h"

#include <algorithm>

#define EXPORT extern "C" __attribute__((visibility("default")))

static const ax_emulator *emulator;
EXPORT void ax_emulator_attach(const ax_emulator *e) { emulator = e; }

enum { HANDLE = 0x424c4153 };
struct cublasContext {
  int tag, device;
  cudaStream_t stream;
};

static cublasStatus_t refuse(const char *where, const char *what)
{
  if (getenv("FAKE_CUBLAS_LOG")) fprintf(stderr, "[cuBLAS stand-in] %s: %s\n", where, what);
  return CUBLAS_STATUS_INVALID_VALUE;
}
#define NEED(condition) \
  if (!(condition)) return refuse(__func__, #condition)
#define NEED_HANDLE \
  if (!h || h->tag != HANDLE) return CUBLAS_STATUS_NOT_INITIALIZED; \
  NEED(h->device == emulator->device())

EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t *out)
{
  if (!emulator) return CUBLAS_STATUS_NOT_INITIALIZED;
  *out = new cublasContext{ HANDLE, emulator->device(), NULL };
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t stream)
{
  NEED_HANDLE;
  h->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t queued(cublasHandle_t h, std::function<void()> work)
{
  return emulator->work(h->stream, work) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
template <class S> static bool array(const S *p, size_t n)
{
  return p && (uintptr_t)p % sizeof(S) == 0 && emulator->owns(p, sizeof(S) * n);
}
template <class S> static bool matrix(const S *a, int rows, int cols, int ld)
{
  return ld >= std::max(1, rows) && array(a, (size_t)(cols - 1) * ld + rows);
}
static bool is_op(cublasOperation_t op)
{
  return op == CUBLAS_OP_N || op == CUBLAS_OP_T || op == CUBLAS_OP_C;
}
static const char *side_of(cublasSideMode_t s) { return s == CUBLAS_SIDE_LEFT ? "L" : "R"; }
static const char *part_of(cublasFillMode_t f) { return f == CUBLAS_FILL_MODE_UPPER ? "U" : "L"; }
static const char *unit_of(cublasDiagType_t d) { return d == CUBLAS_DIAG_UNIT ? "U" : "N"; }

#define ROUTINES(T, N) \
  EXPORT cublasStatus_t cublas##T##trsm_v2(cublasHandle_t h, cublasSideMode_t side, cublasFillMode_t uplo, \
                                           cublasOperation_t op, cublasDiagType_t diag, int m, int n, \
                                           const N *alpha, const N *a, int lda, N *b, int ldb) \
  { \
    NEED_HANDLE; \
    NEED(uplo != CUBLAS_FILL_MODE_FULL && is_op(op) && m > 0 && n > 0 && alpha); \
    const int order = side == CUBLAS_SIDE_LEFT ? m : n; \
    NEED(matrix(a, order, order, lda) && matrix(b, m, n, ldb)); \
    const N factor = *alpha; \
    return queued(h, [=] { \
      fake_trsm(side_of(side), part_of(uplo), fake_letter(op), unit_of(diag), m, n, factor, a, lda, b, ldb); \
    }); \
  } \
  EXPORT cublasStatus_t cublas##T##trsmBatched(cublasHandle_t h, cublasSideMode_t side, \
                                               cublasFillMode_t uplo, cublasOperation_t op, \
                                               cublasDiagType_t diag, int m, int n, const N *alpha, \
                                               const N *const a[], int lda, N *const b[], int ldb, \
                                               int count) \
  { \
    NEED_HANDLE; \
    NEED(uplo != CUBLAS_FILL_MODE_FULL && is_op(op) && m > 0 && n > 0 && alpha && count > 0); \
    NEED(lda >= (side == CUBLAS_SIDE_LEFT ? m : n) && ldb >= m); \
    NEED(array(a, (size_t)count) && array(b, (size_t)count)); \
    const N factor = *alpha; \
    return queued(h, [=] { \
      for (int i = 0; i < count; i++) \
        fake_trsm(side_of(side), part_of(uplo), fake_letter(op), unit_of(diag), m, n, factor, a[i], lda, \
                  b[i], ldb); \
    }); \
  } \
  EXPORT cublasStatus_t cublas##T##getrfBatched(cublasHandle_t h, int n, N *const a[], int lda, int *pivots, \
                                                int *info, int count) \
  { \
    NEED_HANDLE; \
    NEED(n > 0 && lda >= n && count > 0 && array(a, (size_t)count)); \
    NEED(array(pivots, (size_t)n *count) && array(info, (size_t)count)); \
    return queued(h, [=] { \
      for (int i = 0; i < count; i++) fake_getrf(n, n, a[i], lda, pivots + (size_t)i * n, info + i); \
    }); \
  } \
  EXPORT cublasStatus_t cublas##T##getrsBatched(cublasHandle_t h, cublasOperation_t op, int n, int k, \
                                                const N *const a[], int lda, const int *pivots, \
                                                N *const b[], int ldb, int *info, int count) \
  { \
    NEED_HANDLE; \
    NEED(info && !emulator->owns(info, sizeof(int))); /* the host's, as documented */ \
    *info = -1; \
    NEED(is_op(op) && n > 0 && k > 0 && lda >= n && ldb >= n && count > 0); \
    NEED(array(a, (size_t)count) && array(b, (size_t)count) && array(pivots, (size_t)n * count)); \
    *info = 0; \
    return queued(h, [=] { \
      int ignored; \
      for (int i = 0; i < count; i++) \
        fake_getrs(fake_letter(op), n, k, a[i], lda, pivots + (size_t)i * n, b[i], ldb, &ignored); \
    }); \
  }
ROUTINES(S, float)
ROUTINES(D, double)
ROUTINES(C, cuComplex)
ROUTINES(Z, cuDoubleComplex)

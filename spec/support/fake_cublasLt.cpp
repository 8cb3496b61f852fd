/* A stand-in for libcublasLt.so.13 on the emulated device (kernels/cuda/emulate/emulate.h), for the
 * specs.
 *
 * It follows NVIDIA's documentation (the comments of cublasLt.h, the tables under cublasLtMatmul in
 * the cuBLAS guide), not our use of it: it refuses, with the documented status, what they rule out,
 * and where they leave something open it takes the stricter reading.  An algorithm is good for the
 * problem, the alignments and the workspace that it was found for, and for nothing else.  The
 * product itself is plain loops in double; TF32 rounds its operands to ten bits of mantissa, so a
 * test sees that it was used.
 *
 *   CUBLASLT_LOG_LEVEL=1         why a call was refused, on stderr (as the real one does)
 *   FAKE_CUBLASLT_REFUSE=64      the heuristic knows no algorithm for epilogues that have any of
 *                                these bits
 *   FAKE_CUBLASLT_IDLE=1         computes nothing (to measure what a call costs the host) */
#include "cuda/vendor/vendor.h"

#include <cublasLt.h>

#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

static const ax_emulator *emulator;
EXPORT void ax_emulator_attach(const ax_emulator *e) { emulator = e; }

static int number_in(const char *name)
{
  const char *v = getenv(name);
  return v ? atoi(v) : 0;
}

static cublasStatus_t refuse(cublasStatus_t status, const char *format, ...)
{
  if (number_in("CUBLASLT_LOG_LEVEL") < 1) return status;
  va_list list;
  va_start(list, format);
  fprintf(stderr, "[cublasLt stand-in] %s: ", cublasLtGetStatusName(status));
  vfprintf(stderr, format, list);
  fputc('\n', stderr);
  va_end(list);
  return status;
}
#define INVALID(...) return refuse(CUBLAS_STATUS_INVALID_VALUE, __VA_ARGS__)
#define UNSUPPORTED(...) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, __VA_ARGS__)

EXPORT const char *cublasLtGetStatusName(cublasStatus_t s)
{
  switch (s) {
  case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
  case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
  case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
  case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
  case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  default: return "CUBLAS_STATUS_INTERNAL_ERROR";
  }
}
EXPORT const char *cublasLtGetStatusString(cublasStatus_t s) { return cublasLtGetStatusName(s); }
/* For CUDA 12 where the file's path says cu12. */
static bool for_cuda_12(void)
{
  Dl_info info;
  return dladdr((void *)&for_cuda_12, &info) && info.dli_fname && strstr(info.dli_fname, "cu12");
}
EXPORT size_t cublasLtGetVersion(void) { return for_cuda_12() ? 120800 : CUBLAS_VERSION; }
EXPORT size_t cublasLtGetCudartVersion(void) { return for_cuda_12() ? 12080 : 13000; }

/* ---- descriptors: opaque to the caller, so ours lie behind the pointers.  A tag marks a living
 * one of its kind. */

enum { HANDLE = 0x48414e44, DESC = 0x44455343, LAYOUT = 0x4c41594f, PREFERENCE = 0x50524546 };

struct cublasLtContext {
  uint32_t tag;
  int device;
};

struct desc {
  uint32_t tag;
  int32_t compute, scale, pointer_mode, op[3], fill;
  uint32_t epilogue;
  const void *bias;
  void *aux;
  int64_t bias_stride, aux_ld, aux_stride;
  int32_t aux_type, bias_type, sms;
};
struct matrix {
  uint32_t tag, type;
  int32_t order, batch;
  uint64_t rows, cols;
  int64_t ld, stride;
};
struct preference {
  uint32_t tag, mode, schemes, align[4];
  uint64_t workspace, impl;
  float waves;
};

static desc *of(cublasLtMatmulDesc_t p)
{
  desc *d = (desc *)(void *)p;
  return d && d->tag == DESC ? d : NULL;
}
static matrix *of(cublasLtMatrixLayout_t p)
{
  matrix *m = (matrix *)(void *)p;
  return m && m->tag == LAYOUT ? m : NULL;
}
static preference *of(cublasLtMatmulPreference_t p)
{
  preference *q = (preference *)(void *)p;
  return q && q->tag == PREFERENCE ? q : NULL;
}

template <class T, class P> static cublasStatus_t made(T value, P *out)
{
  if (!out) INVALID("no place for a descriptor");
  T *t = (T *)calloc(1, sizeof *t);
  if (!t) return CUBLAS_STATUS_ALLOC_FAILED;
  *t = value;
  *out = (P)(void *)t;
  return CUBLAS_STATUS_SUCCESS;
}
template <class P> static cublasStatus_t gone(P p)
{
  if (!of(p)) INVALID("a descriptor is destroyed that is none, or was destroyed before");
  of(p)->tag = 0; /* kept as a grave, so that its use is noticed */
  return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
  if (!emulator) return CUBLAS_STATUS_NOT_INITIALIZED;
  return made(cublasLtContext{ HANDLE, emulator->device() }, out);
}
EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
  if (!h || h->tag != HANDLE) return CUBLAS_STATUS_NOT_INITIALIZED;
  h->tag = 0;
  return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                               cudaDataType_t scale)
{
  desc d = { DESC,
             compute,
             scale,
             CUBLASLT_POINTER_MODE_HOST,
             { CUBLAS_OP_N, CUBLAS_OP_N, CUBLAS_OP_N },
             CUBLAS_FILL_MODE_FULL,
             CUBLASLT_EPILOGUE_DEFAULT };
  d.aux_type = d.bias_type = -1;
  return made(d, out);
}
EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t p) { return gone(p); }
EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                                 uint64_t rows, uint64_t cols, int64_t ld)
{
  return made(matrix{ LAYOUT, (uint32_t)type, CUBLASLT_ORDER_COL, 1, rows, cols, ld, 0 }, out);
}
EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t p) { return gone(p); }
EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
  return made(preference{ PREFERENCE,
                          CUBLASLT_SEARCH_BEST_FIT,
                          CUBLASLT_REDUCTION_SCHEME_MASK,
                          { 256, 256, 256, 256 },
                          0,
                          ~(uint64_t)0,
                          0 },
              out);
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return gone(p); }

/* Every attribute has a size of its own, and a buffer of another is refused. */
template <class T> static cublasStatus_t put(T *at, const void *from, size_t bytes)
{
  if (!from || bytes != sizeof *at) INVALID("an attribute of %zu bytes is set from %zu", sizeof *at, bytes);
  memcpy(at, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t p,
                                                     cublasLtMatmulDescAttributes_t attribute,
                                                     const void *from, size_t bytes)
{
  desc *d = of(p);
  if (!d) INVALID("no operation descriptor");
  switch (attribute) {
  case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: return put(&d->compute, from, bytes);
  case CUBLASLT_MATMUL_DESC_SCALE_TYPE: return put(&d->scale, from, bytes);
  case CUBLASLT_MATMUL_DESC_POINTER_MODE: return put(&d->pointer_mode, from, bytes);
  case CUBLASLT_MATMUL_DESC_TRANSA: return put(&d->op[0], from, bytes);
  case CUBLASLT_MATMUL_DESC_TRANSB: return put(&d->op[1], from, bytes);
  case CUBLASLT_MATMUL_DESC_TRANSC: return put(&d->op[2], from, bytes);
  case CUBLASLT_MATMUL_DESC_FILL_MODE: return put(&d->fill, from, bytes);
  case CUBLASLT_MATMUL_DESC_EPILOGUE: return put(&d->epilogue, from, bytes);
  case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return put(&d->bias, from, bytes);
  case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE: return put(&d->bias_stride, from, bytes);
  case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return put(&d->aux, from, bytes);
  case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return put(&d->aux_ld, from, bytes);
  case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE: return put(&d->aux_stride, from, bytes);
  case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: return put(&d->aux_type, from, bytes);
  case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return put(&d->bias_type, from, bytes);
  case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: return put(&d->sms, from, bytes);
  default: INVALID("operation attribute %d: the stand-in does not have it", (int)attribute);
  }
}

EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t p,
                                                       cublasLtMatrixLayoutAttribute_t attribute,
                                                       const void *from, size_t bytes)
{
  matrix *m = of(p);
  if (!m) INVALID("no matrix layout");
  switch (attribute) {
  case CUBLASLT_MATRIX_LAYOUT_TYPE: return put(&m->type, from, bytes);
  case CUBLASLT_MATRIX_LAYOUT_ORDER: return put(&m->order, from, bytes);
  case CUBLASLT_MATRIX_LAYOUT_ROWS: return put(&m->rows, from, bytes);
  case CUBLASLT_MATRIX_LAYOUT_COLS: return put(&m->cols, from, bytes);
  case CUBLASLT_MATRIX_LAYOUT_LD: return put(&m->ld, from, bytes);
  case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return put(&m->batch, from, bytes);
  case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return put(&m->stride, from, bytes);
  default: INVALID("layout attribute %d: the stand-in does not have it", (int)attribute);
  }
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                           cublasLtMatmulPreferenceAttributes_t attribute,
                                                           const void *from, size_t bytes)
{
  preference *q = of(p);
  if (!q) INVALID("no preference");
  switch (attribute) {
  case CUBLASLT_MATMUL_PREF_SEARCH_MODE: return put(&q->mode, from, bytes);
  case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return put(&q->workspace, from, bytes);
  case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return put(&q->schemes, from, bytes);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return put(&q->align[0], from, bytes);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return put(&q->align[1], from, bytes);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return put(&q->align[2], from, bytes);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return put(&q->align[3], from, bytes);
  case CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT: return put(&q->waves, from, bytes);
  case CUBLASLT_MATMUL_PREF_IMPL_MASK: return put(&q->impl, from, bytes);
  default: INVALID("preference %d: the stand-in does not have it", (int)attribute);
  }
}

/* ---- what is allowed */

static size_t size_of(uint32_t type)
{
  return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : 0;
}

struct problem {
  desc d;
  matrix a, b, c, dd;
  int64_t m, n, k;
};

static bool has_bias(uint32_t e) { return (e & CUBLASLT_EPILOGUE_BIAS) != 0; }
static bool has_bias_gradient(uint32_t e)
{
  return e == CUBLASLT_EPILOGUE_DGELU_BGRAD || e == CUBLASLT_EPILOGUE_BGRADA || e == CUBLASLT_EPILOGUE_BGRADB;
}
static bool has_aux(uint32_t e) { return (e & 128) != 0; }

static cublasStatus_t check_types(const problem &p)
{
  const uint32_t ab = p.a.type, out = p.dd.type;
  bool fits = false;
  if (p.b.type != ab) UNSUPPORTED("A and B of different types");
  if (p.c.type != out) UNSUPPORTED("C and D of different types");
  switch (p.d.compute) {
  case CUBLAS_COMPUTE_32F:
  case CUBLAS_COMPUTE_32F_PEDANTIC:
    fits = p.d.scale == CUDA_R_32F &&
           ((ab == CUDA_R_32F && out == CUDA_R_32F) ||
            ((ab == CUDA_R_16F || ab == CUDA_R_16BF) && (out == ab || out == CUDA_R_32F)));
    break;
  case CUBLAS_COMPUTE_32F_FAST_TF32:
    fits = p.d.scale == CUDA_R_32F && ab == CUDA_R_32F && out == CUDA_R_32F;
    break;
  case CUBLAS_COMPUTE_64F:
  case CUBLAS_COMPUTE_64F_PEDANTIC:
    fits = p.d.scale == CUDA_R_64F && ab == CUDA_R_64F && out == CUDA_R_64F;
    break;
  }
  if (!fits)
    UNSUPPORTED("compute type %d with scale %d, A and B %u, C and D %u", p.d.compute, p.d.scale, ab, out);
  if (p.d.bias_type != -1 && (uint32_t)p.d.bias_type != out)
    UNSUPPORTED("a bias of type %d with D of %u", p.d.bias_type, out);
  if (p.d.aux_type != -1 && (uint32_t)p.d.aux_type != out)
    UNSUPPORTED("aux of type %d with D of %u", p.d.aux_type, out);
  return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_matrix(const char *name, const matrix &m)
{
  const int64_t lead = m.order == CUBLASLT_ORDER_COL ? (int64_t)m.rows : (int64_t)m.cols;
  if (m.order != CUBLASLT_ORDER_COL && m.order != CUBLASLT_ORDER_ROW)
    UNSUPPORTED("%s: order %d", name, m.order);
  if (m.rows < 1 || m.cols < 1)
    INVALID("%s is %llu x %llu", name, (unsigned long long)m.rows, (unsigned long long)m.cols);
  if (m.rows > INT32_MAX || m.cols > INT32_MAX) UNSUPPORTED("%s: sizes beyond 32 bits", name);
  if (m.ld < lead)
    INVALID("%s: leading dimension %lld of columns of %lld", name, (long long)m.ld, (long long)lead);
  if (m.batch < 1) INVALID("%s: %d matrices", name, m.batch);
  if (m.batch > 65535) UNSUPPORTED("%s: %d matrices", name, m.batch);
  if (m.stride < 0) UNSUPPORTED("%s: a negative step between matrices", name);
  return CUBLAS_STATUS_SUCCESS;
}

static int64_t extent(const matrix &m) /* elements from the first to the last of one matrix */
{
  const int64_t lead = m.order == CUBLASLT_ORDER_COL ? (int64_t)m.rows : (int64_t)m.cols,
                other = m.order == CUBLASLT_ORDER_COL ? (int64_t)m.cols : (int64_t)m.rows;
  return (other - 1) * m.ld + lead;
}

static cublasStatus_t check_epilogue(const problem &p)
{
  const uint32_t e = p.d.epilogue;
  switch (e) {
  case CUBLASLT_EPILOGUE_DEFAULT:
  case CUBLASLT_EPILOGUE_BIAS:
  case CUBLASLT_EPILOGUE_GELU:
  case CUBLASLT_EPILOGUE_GELU_BIAS:
  case CUBLASLT_EPILOGUE_GELU_AUX:
  case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
  case CUBLASLT_EPILOGUE_DGELU:
  case CUBLASLT_EPILOGUE_DGELU_BGRAD:
  case CUBLASLT_EPILOGUE_BGRADA:
  case CUBLASLT_EPILOGUE_BGRADB: break;
  default: UNSUPPORTED("epilogue %u: the stand-in does not have it", e);
  }
  if (p.dd.type == CUDA_R_64F && e != CUBLASLT_EPILOGUE_DEFAULT && e != CUBLASLT_EPILOGUE_BIAS)
    UNSUPPORTED("epilogue %u in float64", e);
  if (e != CUBLASLT_EPILOGUE_DEFAULT && p.dd.order != CUBLASLT_ORDER_COL)
    UNSUPPORTED("an epilogue with D in rows");
  if (has_bias_gradient(e) && p.dd.batch > 1) UNSUPPORTED("the gradient of a bias over several matrices");
  if (has_aux(e)) {
    if (p.d.aux_ld < p.m)
      INVALID("aux: leading dimension %lld below %lld rows", (long long)p.d.aux_ld, (long long)p.m);
    if (p.d.aux_ld % 8) INVALID("aux: leading dimension %lld is no multiple of 8", (long long)p.d.aux_ld);
    if (p.dd.batch > 1 && (p.d.aux_stride % 8 || p.d.aux_stride < p.d.aux_ld * p.n))
      INVALID("aux: step %lld between matrices", (long long)p.d.aux_stride);
  }
  return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_problem(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                    cublasLtMatrixLayout_t dd, problem *p)
{
  cublasStatus_t s;
  if (!h || h->tag != HANDLE) return refuse(CUBLAS_STATUS_NOT_INITIALIZED, "no handle");
  if (h->device != emulator->device())
    INVALID("a handle of device %d while device %d is current", h->device, emulator->device());
  if (!of(d) || !of(a) || !of(b) || !of(c) || !of(dd)) INVALID("a descriptor is missing or was destroyed");
  *p = problem{ *of(d), *of(a), *of(b), *of(c), *of(dd), 0, 0, 0 };
  const char *const names[4] = { "A", "B", "C", "D" };
  const matrix *const all[4] = { &p->a, &p->b, &p->c, &p->dd };
  for (int i = 0; i < 4; i++) {
    if ((s = check_matrix(names[i], *all[i])) != CUBLAS_STATUS_SUCCESS) return s;
    if (all[i]->batch != p->dd.batch)
      INVALID("%s has %d matrices, D %d", names[i], all[i]->batch, p->dd.batch);
  }
  if (p->d.pointer_mode != CUBLASLT_POINTER_MODE_HOST)
    UNSUPPORTED("pointer mode %d: the stand-in reads alpha and beta on the host", p->d.pointer_mode);
  if (p->d.op[2] != CUBLAS_OP_N) UNSUPPORTED("C transposed");
  if (p->d.fill != CUBLAS_FILL_MODE_FULL) UNSUPPORTED("a triangle of D");
  const bool ta = p->d.op[0] != CUBLAS_OP_N, tb = p->d.op[1] != CUBLAS_OP_N;
  p->m = (int64_t)(ta ? p->a.cols : p->a.rows), p->k = (int64_t)(ta ? p->a.rows : p->a.cols),
  p->n = (int64_t)(tb ? p->b.rows : p->b.cols);
  if ((int64_t)(tb ? p->b.cols : p->b.rows) != p->k)
    INVALID("op(A) has %lld columns, op(B) %lld rows", (long long)p->k,
            (long long)(tb ? p->b.cols : p->b.rows));
  for (int i = 2; i < 4; i++)
    if ((int64_t)all[i]->rows != p->m || (int64_t)all[i]->cols != p->n)
      INVALID("%s does not have the product's shape %lld x %lld", names[i], (long long)p->m, (long long)p->n);
  if (p->dd.batch > 1 && p->dd.stride < extent(p->dd)) INVALID("the matrices of D overlap");
  if ((s = check_types(*p)) != CUBLAS_STATUS_SUCCESS) return s;
  return check_epilogue(*p);
}

/* ---- algorithms */

struct algorithm { /* within the 64 bytes of cublasLtMatmulAlgo_t */
  uint32_t magic, splits;
  uint64_t problem, workspace;
  uint16_t align[6]; /* A, B, C, D, bias, aux */
};
static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm fits into its opaque form");
enum { ALGORITHM = 0x414c474f };

static uint64_t mixed(uint64_t h, uint64_t v) { return (h ^ v) * 0x100000001b3u + 0x9e37; }
static uint64_t print_of(const problem &p) /* all but the pointers */
{
  uint64_t h = 0xcbf29ce484222325u;
  for (int v :
       { p.d.compute, p.d.scale, p.d.op[0], p.d.op[1], (int)p.d.epilogue, p.d.aux_type, p.d.bias_type })
    h = mixed(h, (uint64_t)v);
  h = mixed(h, (uint64_t)p.d.aux_ld);
  for (const matrix *m : { &p.a, &p.b, &p.c, &p.dd })
    for (uint64_t v : { (uint64_t)m->type, (uint64_t)m->order, (uint64_t)m->batch, m->rows, m->cols,
                        (uint64_t)m->ld, (uint64_t)m->stride })
      h = mixed(h, v);
  return h;
}

/* Kernels read up to 16 bytes at once; a pointer's alignment limits which ones can be used.  NULL:
 * as good as it gets. */
static uint16_t alignment_of(const void *p, uint32_t most)
{
  uint32_t n = 16;
  while (n > most || (uintptr_t)p % n) n /= 2;
  return (uint16_t)n;
}

EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t dd,
                                                     cublasLtMatmulPreference_t preferred, int wanted,
                                                     cublasLtMatmulHeuristicResult_t *results, int *found)
{
  const preference *q = of(preferred);
  problem p;
  if (wanted < 1 || !results || !found) INVALID("no place for results");
  if (!q) INVALID("no preference");
  *found = 0;
  const cublasStatus_t s = check_problem(h, d, a, b, c, dd, &p);
  if (s != CUBLAS_STATUS_SUCCESS) return s;
  if ((unsigned)number_in("FAKE_CUBLASLT_REFUSE") & p.d.epilogue & ~1u)
    UNSUPPORTED("epilogue %u, as FAKE_CUBLASLT_REFUSE says", p.d.epilogue);
  for (uint32_t n : q->align)
    if (n == 0 || (n & (n - 1))) INVALID("an alignment of %u bytes", n);
  algorithm al = { ALGORITHM, 1, print_of(p), 0, {} };
  for (int i = 0; i < 4; i++) al.align[i] = alignment_of(NULL, q->align[i]);
  al.align[4] = alignment_of(p.d.bias, 16);
  al.align[5] = alignment_of(p.d.aux, 16);
  /* deep products are divided where a scheme with a workspace is allowed */
  const uint64_t part = (uint64_t)p.m * (uint64_t)p.n * 4 * (uint64_t)p.dd.batch;
  if (p.k >= 512 && p.k >= 4 * p.m && p.k >= 4 * p.n &&
      (q->schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) && 2 * part <= q->workspace)
    al.splits = 2, al.workspace = 2 * part;
  memset(results, 0, sizeof *results);
  memcpy(&results->algo, &al, sizeof al);
  results->workspaceSize = al.workspace;
  results->state = CUBLAS_STATUS_SUCCESS;
  results->wavesCount = 1;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

/* ---- the product */

static float from_bf16(uint16_t v)
{
  const uint32_t w = (uint32_t)v << 16;
  float f;
  memcpy(&f, &w, 4);
  return f;
}
static uint16_t to_bf16(float f)
{
  uint32_t w;
  memcpy(&w, &f, 4);
  if (f != f) return 0x7fff;
  return (uint16_t)((w + 0x7fff + (w >> 16 & 1)) >> 16);
}
static float from_half(uint16_t v)
{
  const int e = v >> 10 & 31, m = v & 1023;
  const float f = e == 31 ? (m ? NAN : INFINITY)
                  : e     ? ldexpf((float)(1024 + m), e - 25)
                          : ldexpf((float)m, -24);
  return v >> 15 ? -f : f;
}
static uint16_t to_half(float f)
{
  const uint16_t sign = signbit(f) ? 0x8000 : 0;
  const float a = fabsf(f);
  if (f != f) return 0x7fff;
  if (a >= 65520) return (uint16_t)(sign | 0x7c00);
  if (a < ldexpf(1, -14)) return (uint16_t)(sign | (uint16_t)nearbyintf(ldexpf(a, 24)));
  int e;
  const float m = frexpf(a, &e); /* a = m 2^e, m in 0.5 .. 1 */
  return (uint16_t)(sign | (((uint32_t)(e + 13) << 10) + (uint32_t)nearbyintf(ldexpf(m, 11))));
}
static float to_tf32(float f)
{
  uint32_t w;
  memcpy(&w, &f, 4);
  if (f == f) w = (w + 0xfff + (w >> 13 & 1)) & ~0x1fffu;
  memcpy(&f, &w, 4);
  return f;
}

static double get(uint32_t type, const void *p, int64_t i)
{
  switch (type) {
  case CUDA_R_64F: return ((const double *)p)[i];
  case CUDA_R_16F: return from_half(((const uint16_t *)p)[i]);
  case CUDA_R_16BF: return from_bf16(((const uint16_t *)p)[i]);
  default: return ((const float *)p)[i];
  }
}
static void set(uint32_t type, void *p, int64_t i, double v)
{
  switch (type) {
  case CUDA_R_64F: ((double *)p)[i] = v; break;
  case CUDA_R_16F: ((uint16_t *)p)[i] = to_half((float)v); break;
  case CUDA_R_16BF: ((uint16_t *)p)[i] = to_bf16((float)v); break;
  default: ((float *)p)[i] = (float)v;
  }
}
static int64_t at(const matrix &m, int64_t r, int64_t c)
{
  return m.order == CUBLASLT_ORDER_COL ? c * m.ld + r : r * m.ld + c;
}

/* GELU is the form with tanh. */
static const double GELU_A = 0.7978845608028654, GELU_B = 0.044715;
static double gelu(double x) { return 0.5 * x * (1 + tanh(GELU_A * (x + GELU_B * x * x * x))); }
static double gelu_slope(double x)
{
  const double t = tanh(GELU_A * (x + GELU_B * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * GELU_A * (1 + 3 * GELU_B * x * x);
}

/* op(A) by rows, op(B) by columns, as doubles, k innermost. */
static void gather(const problem &p, const matrix &m, const void *data, int64_t lines, bool lines_are_rows,
                   bool transposed, std::vector<double> &out)
{
  const bool round = p.d.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  out.resize((size_t)(lines * p.k));
  for (int64_t l = 0; l < lines; l++)
    for (int64_t k = 0; k < p.k; k++) {
      const bool as_row = lines_are_rows != transposed;
      const double v = get(m.type, data, as_row ? at(m, l, k) : at(m, k, l));
      out[(size_t)(l * p.k + k)] = round ? to_tf32((float)v) : v;
    }
}

static void compute(const problem &p, double alpha, double beta, const char *a, const char *b, const char *c,
                    char *d)
{
  const uint32_t e = p.d.epilogue, out = p.dd.type;
  const size_t item = size_of(p.a.type), out_item = size_of(out);
  std::vector<double> rows, cols;

  for (int64_t i = 0; i < p.dd.batch; i++) {
    gather(p, p.a, a + (size_t)(i * p.a.stride) * item, p.m, true, p.d.op[0] != CUBLAS_OP_N, rows);
    gather(p, p.b, b + (size_t)(i * p.b.stride) * item, p.n, false, p.d.op[1] != CUBLAS_OP_N, cols);
    const char *ci = c + (size_t)(i * p.c.stride) * out_item;
    char *di = d + (size_t)(i * p.dd.stride) * out_item;
    const char *bias = (const char *)p.d.bias + (size_t)(i * p.d.bias_stride) * out_item;
    char *aux = (char *)p.d.aux + (size_t)(i * p.d.aux_stride) * out_item;
    for (int64_t n = 0; n < p.n; n++)
      for (int64_t m = 0; m < p.m; m++) {
        const double *x = &rows[(size_t)(m * p.k)], *y = &cols[(size_t)(n * p.k)];
        double v = 0;
        for (int64_t k = 0; k < p.k; k++) v += x[k] * y[k];
        v *= alpha;
        if (beta != 0) v += beta * get(out, ci, at(p.c, m, n));
        if (has_bias(e)) v += get(out, bias, m);
        if (e == CUBLASLT_EPILOGUE_DGELU || e == CUBLASLT_EPILOGUE_DGELU_BGRAD)
          v *= gelu_slope(get(out, aux, n * p.d.aux_ld + m));
        else if (has_aux(e)) set(out, aux, n * p.d.aux_ld + m, v);
        if (e & CUBLASLT_EPILOGUE_GELU) v = gelu(v);
        set(out, di, at(p.dd, m, n), v);
      }
    if (!has_bias_gradient(e)) continue;
    const int64_t length = e == CUBLASLT_EPILOGUE_BGRADB ? p.n : p.m;
    for (int64_t l = 0; l < length; l++) {
      double sum = 0;
      if (e == CUBLASLT_EPILOGUE_DGELU_BGRAD)
        for (int64_t n = 0; n < p.n; n++) sum += get(out, di, at(p.dd, l, n));
      else
        for (int64_t k = 0; k < p.k; k++)
          sum += (e == CUBLASLT_EPILOGUE_BGRADA ? rows : cols)[(size_t)(l * p.k + k)];
      set(out, (void *)p.d.bias, l, sum);
    }
  }
}

static bool on_device(const matrix &m, const void *p)
{
  return p && (uintptr_t)p % size_of(m.type) == 0 &&
         emulator->owns(p, (size_t)((m.batch - 1) * m.stride + extent(m)) * size_of(m.type));
}

EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t dp, const void *alpha,
                                     const void *a, cublasLtMatrixLayout_t ap, const void *b,
                                     cublasLtMatrixLayout_t bp, const void *beta, const void *c,
                                     cublasLtMatrixLayout_t cp, void *d, cublasLtMatrixLayout_t ddp,
                                     const cublasLtMatmulAlgo_t *algo, void *workspace,
                                     size_t workspace_bytes, cudaStream_t stream)
{
  problem p;
  algorithm al;
  const cublasStatus_t s = check_problem(h, dp, ap, bp, cp, ddp, &p);
  if (s != CUBLAS_STATUS_SUCCESS) return s;
  if (!alpha || !beta) INVALID("alpha and beta are needed");
  const double al_v = p.d.scale == CUDA_R_64F ? *(const double *)alpha : *(const float *)alpha,
               be_v = p.d.scale == CUDA_R_64F ? *(const double *)beta : *(const float *)beta;
  if (!algo) INVALID("no algorithm: the stand-in has no implicit search");
  memcpy(&al, algo, sizeof al);
  if (al.magic != ALGORITHM) INVALID("not an algorithm that the heuristic gave");
  if (al.problem != print_of(p)) INVALID("the algorithm was found for another problem");
  if (!on_device(p.a, a) || !on_device(p.b, b) || !on_device(p.dd, d))
    INVALID("A, B or D does not lie in the device's memory");
  if (be_v != 0 && !on_device(p.c, c)) INVALID("C does not lie in the device's memory");
  if (c == d && (p.c.ld != p.dd.ld || p.c.stride != p.dd.stride || p.c.order != p.dd.order))
    INVALID("D in place of C, with another layout");
  const void *const all[6] = { a,
                               b,
                               be_v != 0 ? c : NULL,
                               d,
                               has_bias(p.d.epilogue) || has_bias_gradient(p.d.epilogue) ? p.d.bias : NULL,
                               has_aux(p.d.epilogue) ? p.d.aux : NULL };
  for (int i = 0; i < 6; i++)
    if ((uintptr_t)all[i] % al.align[i])
      INVALID("operand %d lies at %p, the algorithm was found for an alignment of %u", i, all[i],
              al.align[i]);
  const int64_t bias_length = p.d.epilogue == CUBLASLT_EPILOGUE_BGRADB ? p.n : p.m;
  if ((has_bias(p.d.epilogue) || has_bias_gradient(p.d.epilogue)) &&
      !(p.d.bias && emulator->owns(p.d.bias, (size_t)((p.dd.batch - 1) * p.d.bias_stride + bias_length) *
                                                 size_of(p.dd.type))))
    INVALID("the epilogue needs a bias of %lld in the device's memory", (long long)bias_length);
  if (has_aux(p.d.epilogue) &&
      !(p.d.aux &&
        emulator->owns(p.d.aux, (size_t)((p.dd.batch - 1) * p.d.aux_stride + (p.n - 1) * p.d.aux_ld + p.m) *
                                    size_of(p.dd.type))))
    INVALID("the epilogue needs an aux matrix in the device's memory");
  if (workspace_bytes < al.workspace)
    INVALID("a workspace of %zu bytes, the algorithm needs %llu", workspace_bytes,
            (unsigned long long)al.workspace);
  if (workspace_bytes && ((uintptr_t)workspace % 256 || !emulator->owns(workspace, workspace_bytes)))
    INVALID("the workspace is not aligned to 256 bytes, or not the device's");
  if (number_in("FAKE_CUBLASLT_IDLE")) return CUBLAS_STATUS_SUCCESS;
  const size_t one = size_of(p.a.type), result = (size_t)(p.m * p.n * p.dd.batch) * size_of(p.dd.type);
  const bool reads_aux =
      p.d.epilogue == CUBLASLT_EPILOGUE_DGELU || p.d.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
  const size_t read = (size_t)(p.m * p.k * p.a.batch + p.n * p.k * p.b.batch) * one +
                      (size_t)((be_v != 0) + reads_aux) * result,
               written = (size_t)(1 + (has_aux(p.d.epilogue) && !reads_aux)) * result;
  const cudaError_t failed = emulator->work(stream, [=]() {
    emulator->moved("product", read, written);
    if (al.workspace) memset(workspace, 0xff, al.workspace); /* whatever lay there is lost */
    compute(p, al_v, be_v, (const char *)a, (const char *)b, (const char *)c, (char *)d);
  });
  return failed ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

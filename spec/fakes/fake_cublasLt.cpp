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
#include "fake_cublasLt.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>

const ax_emulator *emulator;
EXPORT void ax_emulator_attach(const ax_emulator *e) { emulator = e; }

int number_in(const char *name)
{
  const char *v = getenv(name);
  return v ? atoi(v) : 0;
}

cublasStatus_t refuse(cublasStatus_t status, const char *format, ...)
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
  case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return put(&d->scale_a, from, bytes);
  case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return put(&d->scale_b, from, bytes);
  case CUBLASLT_MATMUL_DESC_FAST_ACCUM: return put(&d->fast, from, bytes);
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

size_t size_of(uint32_t type)
{
  if (is_float8(type)) return 1;
  return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : 0;
}

/* The table of types of eight bits, and what stands below it for Ada and Hopper: A transposed, B
 * not, sizes and leading dimensions of 16 bytes, no epilogue but a bias, which is bfloat16 beside
 * a float32 D. */
static cublasStatus_t check_float8(const problem &p)
{
  const uint32_t out = p.dd.type;
  if (!is_float8(p.a.type) || !is_float8(p.b.type) ||
      (p.a.type == CUDA_R_8F_E5M2 && p.b.type == CUDA_R_8F_E5M2))
    UNSUPPORTED("A of type %u with B of %u", p.a.type, p.b.type);
  if (p.c.type != out || (out != CUDA_R_32F && out != CUDA_R_16F && out != CUDA_R_16BF))
    UNSUPPORTED("C of type %u and D of %u with A and B of eight bits", p.c.type, out);
  if (p.d.compute != CUBLAS_COMPUTE_32F || p.d.scale != CUDA_R_32F)
    UNSUPPORTED("compute type %d with scale %d for eight bits", p.d.compute, p.d.scale);
  if (p.d.op[0] == CUBLAS_OP_N || p.d.op[1] != CUBLAS_OP_N)
    UNSUPPORTED("eight bits with A not transposed, or B transposed");
  if (p.m % 16 || p.k % 16 || p.a.ld % 16 || p.b.ld % 16 || p.dd.ld * (int64_t)size_of(out) % 16)
    UNSUPPORTED("%lld x %lld x %lld of eight bits", (long long)p.m, (long long)p.n, (long long)p.k);
  if (p.d.epilogue != CUBLASLT_EPILOGUE_DEFAULT && p.d.epilogue != CUBLASLT_EPILOGUE_BIAS)
    UNSUPPORTED("epilogue %u for eight bits", p.d.epilogue);
  if (p.d.epilogue == CUBLASLT_EPILOGUE_BIAS &&
      (out == CUDA_R_32F || (p.d.bias_type != -1 && (uint32_t)p.d.bias_type != out)))
    UNSUPPORTED("a bias of type %d with D of %u", p.d.bias_type, out);
  return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_types(const problem &p)
{
  const uint32_t ab = p.a.type, out = p.dd.type;
  bool fits = false;
  if (is_float8(ab) || is_float8(p.b.type)) return check_float8(p);
  if (p.d.scale_a || p.d.scale_b || p.d.fast) UNSUPPORTED("scales or fast sums of type %u", ab);
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

int64_t extent(const matrix &m)
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

cublasStatus_t check_problem(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                             cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t dd,
                             problem *p)
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

static uint64_t mixed(uint64_t h, uint64_t v) { return (h ^ v) * 0x100000001b3u + 0x9e37; }
uint64_t print_of(const problem &p)
{
  uint64_t h = 0xcbf29ce484222325u;
  for (int v :
       { p.d.compute, p.d.scale, p.d.op[0], p.d.op[1], (int)p.d.epilogue, p.d.aux_type, p.d.bias_type })
    h = mixed(h, (uint64_t)v);
  h = mixed(h, (uint64_t)p.d.aux_ld);
  h = mixed(h, (uint64_t)p.d.fast);
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

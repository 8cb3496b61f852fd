/* Matrix products by cuBLASLt, with a plan for each shape.
 *
 * cuBLASLt's matrices are column-major: our c (m, n) with adjacent columns is its (n, m), and c = a
 * b becomes c' = b' a'.  The algorithm is the first that its heuristic returns; nothing is timed.
 * Algorithms that add parts of a result in the type of the result, or in place, are not allowed.
 * So a shape is always computed the same way on one model of GPU, and half results are rounded
 * once. */
#include "cuda/gemm.cuh"
#include "batched_matmul.h"

#include "vendor.h"
#if defined(AX_EMULATE) && !__has_include(<cublasLt.h>)

/* Emulated without NVIDIA's headers: the caller uses its own kernel. */
ax_status ax_cublaslt_gemm(ax_device, const ax_cuda_gemm *, const ax_cuda_gemm_data *, bool *done)
{
  *done = false;
  return AX_OK;
}

#else

#include <cublasLt.h>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/runtime/library.h"
#include "cuda/runtime/stats.h"

static const char FILE_NAME[] = "libcublasLt.so.*";
/* The limit of an algorithm's workspace: NVIDIA's advice for Hopper.  A call allocates what its own
 * algorithm needs, which is nothing for most. */
static const size_t WORKSPACE = (size_t)32 << 20;

/* ---- the functions, found when first needed */

#define FUNCTIONS(X) \
  X(cublasLtCreate) \
  X(cublasLtMatmul) \
  X(cublasLtMatmulAlgoGetHeuristic) \
  X(cublasLtMatmulDescCreate) \
  X(cublasLtMatmulDescDestroy) \
  X(cublasLtMatmulDescSetAttribute) \
  X(cublasLtMatrixLayoutCreate) \
  X(cublasLtMatrixLayoutDestroy) \
  X(cublasLtMatrixLayoutSetAttribute) \
  X(cublasLtMatmulPreferenceCreate) \
  X(cublasLtMatmulPreferenceDestroy) \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtGetStatusString) \
  X(cublasLtGetStatusName)
static struct {
#define X(name) decltype(&name) p_##name;
  FUNCTIONS(X)
#undef X
} lt;

static std::mutex lock; /* guards everything below; descriptors are changed and used with it held */
enum { MOST_DEVICES = 64 };
static cublasLtHandle_t handles[MOST_DEVICES];

static ax_status open_library(void)
{
  static bool opened;
  void *library;
  ax_status st;

  if (opened) return AX_OK;
  if ((st = ax_cuda_library(FILE_NAME, "matrix products", &library)) != AX_OK) return st;
#define X(name) \
  if ((st = ax_cuda_symbol(library, FILE_NAME, #name, (void **)&lt.p_##name)) != AX_OK) return st;
  FUNCTIONS(X)
#undef X
  opened = true;
  return AX_OK;
}

/* *usable false with AX_OK: an emulated device without the stand-in. */
static ax_status ready(ax_device d, bool *usable)
{
  *usable = true;
  if (handles[d.index]) return AX_OK;
#ifdef AX_EMULATE
  static int missing = -1;
  if (missing < 0) missing = open_library() != AX_OK;
  if (missing) {
    *usable = false;
    return AX_OK;
  }
#else
  const ax_status st = open_library();
  if (st != AX_OK) return st;
#endif
  const cublasStatus_t s = lt.p_cublasLtCreate(&handles[d.index]);
  if (s == CUBLAS_STATUS_SUCCESS) return AX_OK;
  return ax_fail(s == CUBLAS_STATUS_ALLOC_FAILED ? AX_ENOMEM : AX_ENOIMPL,
                 "matrix product on cuda:%d: cublasLtCreate: %s", d.index, lt.p_cublasLtGetStatusString(s));
}

/* ---- plans */

struct key {
  ax_cuda_gemm g;
  int64_t device, tf32, aligned;
};

struct plan {
  key k;
  plan *next; /* in its bucket */
  cublasLtMatmulDesc_t op;
  cublasLtMatrixLayout_t a, b, c;
  cublasLtMatmulAlgo_t algorithm;
  const void *bias, *aux, *scale_a, *scale_b; /* the addresses in the descriptor */
  size_t workspace;
  int64_t *calls;
  bool found;
};

enum { BUCKETS = 1024, MOST_PLANS = 4096 };
static plan *buckets[BUCKETS];
static int n_plans;

static size_t bucket_of(const key *k)
{
  uint64_t h = 0xcbf29ce484222325u; /* FNV-1a over the words */
  const uint64_t *w = (const uint64_t *)k;
  for (size_t i = 0; i < sizeof *k / 8; i++) h = (h ^ w[i]) * 0x100000001b3u;
  return (size_t)(h >> 32 ^ h) % BUCKETS;
}

static void drop(plan *p)
{
  if (p->op) lt.p_cublasLtMatmulDescDestroy(p->op);
  if (p->a) lt.p_cublasLtMatrixLayoutDestroy(p->a);
  if (p->b) lt.p_cublasLtMatrixLayoutDestroy(p->b);
  if (p->c) lt.p_cublasLtMatrixLayoutDestroy(p->c);
  free(p);
}

/* Drops all plans, so that a script whose shapes never repeat does not fill the host with
 * descriptors. */
static void drop_all(void)
{
  for (plan *&first : buckets)
    while (plan *p = first) {
      first = p->next;
      drop(p);
    }
  n_plans = 0;
}

static cudaDataType_t type_of(int64_t d)
{
  switch (d) {
  case AX_F64: return CUDA_R_64F;
  case AX_F16: return CUDA_R_16F;
  case AX_BF16: return CUDA_R_16BF;
  case AX_E4M3: return CUDA_R_8F_E4M3;
  case AX_E5M2: return CUDA_R_8F_E5M2;
  default: return CUDA_R_32F;
  }
}

static int64_t b_type(const ax_cuda_gemm *g)
{
  return ax_is_float8((ax_dtype)g->dtype) ? g->dtype_b : g->dtype;
}

/* The alignment of an address, for the heuristic: 16 bytes allow the fastest kernels.  NULL: does
 * not matter. */
static uint32_t alignment(const void *p)
{
  const uintptr_t bits = (uintptr_t)p | 256;
  return (uint32_t)(bits & -bits);
}
static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

#define LT(name, ...) \
  do { \
    if ((s = lt.p_##name(__VA_ARGS__)) != CUBLAS_STATUS_SUCCESS) return s; \
  } while (0)

/* The layout of one of our matrices for cuBLASLt: transposed when our columns are adjacent. */
static cublasStatus_t layout(const ax_cuda_gemm *g, int64_t d, int64_t rows, int64_t cols,
                             const int64_t *step, bool adjacent, cublasLtMatrixLayout_t *out)
{
  const int64_t r = adjacent ? cols : rows, c = adjacent ? rows : cols, ld = adjacent ? step[1] : step[2];
  const int32_t batch = (int32_t)g->batch;
  cublasStatus_t s;
  LT(cublasLtMatrixLayoutCreate, out, type_of(d), (uint64_t)r, (uint64_t)c, ld < r ? r : ld);
  if (batch > 1) {
    LT(cublasLtMatrixLayoutSetAttribute, *out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
    LT(cublasLtMatrixLayoutSetAttribute, *out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step[0],
       sizeof step[0]);
  }
  return CUBLAS_STATUS_SUCCESS;
}

static uint32_t epilogue_of(const ax_cuda_gemm *g)
{
  switch (g->epilogue) {
  case AX_GEMM_GELU: return g->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  case AX_GEMM_DGELU: return CUBLASLT_EPILOGUE_DGELU;
  case AX_GEMM_ROW_SUMS: return CUBLASLT_EPILOGUE_BGRADB; /* our a is cuBLASLt's B */
  default: return g->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
}

static cublasStatus_t search(plan *p, cublasLtMatmulPreference_t preference, const ax_cuda_gemm_data *data)
{
  /* No scheme, or parts in float32 (float64) in the workspace, which a second kernel adds in
   * order. */
  const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const uint64_t most = WORKSPACE;
  /* a bias or aux with a smaller alignment than c needs kernels that expect no more of c */
  const uint32_t align_c = least(alignment(data->c), least(alignment(data->bias), alignment(data->aux))),
                 align[4] = { alignment(data->b), alignment(data->a), align_c, align_c };
  const cublasLtMatmulPreferenceAttributes_t which[4] = { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                                          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                                          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                                          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES };
  cublasLtMatmulHeuristicResult_t result;
  int n = 0;
  cublasStatus_t s;

  LT(cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
     sizeof most);
  LT(cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
     sizeof schemes);
  for (int i = 0; i < 4; i++)
    LT(cublasLtMatmulPreferenceSetAttribute, preference, which[i], &align[i], sizeof align[i]);
  LT(cublasLtMatmulAlgoGetHeuristic, handles[p->k.device], p->op, p->b, p->a, p->c, p->c, preference, 1,
     &result, &n);
  if (n < 1) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (result.state != CUBLAS_STATUS_SUCCESS) return result.state;
  p->algorithm = result.algo;
  p->workspace = (result.workspaceSize + 255) & ~(size_t)255; /* what its alignment is, too */
  return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t point_to(plan *p, const ax_cuda_gemm_data *data)
{
  cublasStatus_t s;
  if (data->bias != p->bias)
    LT(cublasLtMatmulDescSetAttribute, p->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &data->bias,
       sizeof data->bias);
  p->bias = data->bias;
  if (data->aux != p->aux)
    LT(cublasLtMatmulDescSetAttribute, p->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &data->aux,
       sizeof data->aux);
  p->aux = data->aux;
  /* (our a is cuBLASLt's B) */
  if (data->scale_a != p->scale_a)
    LT(cublasLtMatmulDescSetAttribute, p->op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &data->scale_a,
       sizeof data->scale_a);
  p->scale_a = data->scale_a;
  if (data->scale_b != p->scale_b)
    LT(cublasLtMatmulDescSetAttribute, p->op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &data->scale_b,
       sizeof data->scale_b);
  p->scale_b = data->scale_b;
  return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t fill_in(plan *p, bool a_adjacent, bool b_adjacent, const ax_cuda_gemm_data *data)
{
  const ax_cuda_gemm *g = &p->k.g;
  const bool wide = g->dtype == AX_F64;
  const cublasComputeType_t compute = wide        ? CUBLAS_COMPUTE_64F
                                      : p->k.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                  : CUBLAS_COMPUTE_32F;
  /* our a x b is its b' x a': its first operand is our b */
  const int32_t op_b = b_adjacent ? CUBLAS_OP_N : CUBLAS_OP_T, op_a = a_adjacent ? CUBLAS_OP_N : CUBLAS_OP_T;
  const int64_t c_step[3] = { g->c[0], g->c[1], 1 }, aux_ld = g->c[1] < g->n ? g->n : g->c[1];
  const uint32_t epilogue = epilogue_of(g);
  cublasLtMatmulPreference_t preference;
  cublasStatus_t s;

  LT(cublasLtMatmulDescCreate, &p->op, compute, wide ? CUDA_R_64F : CUDA_R_32F);
  LT(cublasLtMatmulDescSetAttribute, p->op, CUBLASLT_MATMUL_DESC_TRANSA, &op_b, sizeof op_b);
  LT(cublasLtMatmulDescSetAttribute, p->op, CUBLASLT_MATMUL_DESC_TRANSB, &op_a, sizeof op_a);
  LT(cublasLtMatmulDescSetAttribute, p->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
  if (data->aux)
    LT(cublasLtMatmulDescSetAttribute, p->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_ld, sizeof aux_ld);
  const int8_t fast = 1;
  if (g->fast) LT(cublasLtMatmulDescSetAttribute, p->op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
  if ((s = point_to(p, data)) != CUBLAS_STATUS_SUCCESS) return s; /* the search uses their alignment */
  if ((s = layout(g, g->dtype, g->m, g->k, g->a, a_adjacent, &p->a)) != CUBLAS_STATUS_SUCCESS) return s;
  if ((s = layout(g, b_type(g), g->k, g->n, g->b, b_adjacent, &p->b)) != CUBLAS_STATUS_SUCCESS) return s;
  if ((s = layout(g, g->out, g->m, g->n, c_step, true, &p->c)) != CUBLAS_STATUS_SUCCESS) return s;
  LT(cublasLtMatmulPreferenceCreate, &preference);
  s = search(p, preference, data);
  lt.p_cublasLtMatmulPreferenceDestroy(preference);
  return s;
}

/* The counter for the case; `refused` gives the status where there is no algorithm. */
static int64_t *counter_of(const key *k, cublasStatus_t s)
{
  static const char *const names[] = { "", " + gelu", " x gelu'", " + row sums" };
  const ax_cuda_gemm *g = &k->g;
  char name[96];
  snprintf(name, sizeof name, "mm %s -> %s, cuBLASLt%s%s%s%s%s", ax_dtype_name((ax_dtype)g->dtype),
           ax_dtype_name((ax_dtype)g->out), k->tf32 ? " tf32" : "",
           g->bias && g->epilogue != AX_GEMM_ROW_SUMS ? " + bias" : "", names[g->epilogue],
           s != CUBLAS_STATUS_SUCCESS ? ", refused: " : "",
           s != CUBLAS_STATUS_SUCCESS ? lt.p_cublasLtGetStatusName(s) : "");
  return ax_cuda_counter(name);
}

static ax_status plan_for(const key *k, bool a_adjacent, bool b_adjacent, const ax_cuda_gemm_data *data,
                          plan **out)
{
  const size_t at = bucket_of(k);
  for (plan *p = buckets[at]; p; p = p->next)
    if (memcmp(&p->k, k, sizeof *k) == 0) {
      *out = p;
      return AX_OK;
    }
  if (n_plans == MOST_PLANS) drop_all();
  plan *p = (plan *)calloc(1, sizeof *p);
  if (!p) return ax_fail(AX_ENOMEM, "matrix product: no memory for a plan");
  p->k = *k;
  const cublasStatus_t s = fill_in(p, a_adjacent, b_adjacent, data);
  if (s == CUBLAS_STATUS_ALLOC_FAILED) {
    drop(p);
    return ax_fail(AX_ENOMEM, "matrix product: cuBLASLt has no memory for a plan");
  }
  p->found = s == CUBLAS_STATUS_SUCCESS; /* if not, the caller has other ways; that is cached too */
  p->calls = counter_of(k, s);
  p->next = buckets[at];
  buckets[at] = p;
  n_plans++;
  *out = p;
  return AX_OK;
}

/* GPUs that multiply eight bits; *yes false: the caller has another way. */
static ax_status multiplies_eight_bits(ax_device d, bool *yes)
{
#ifdef AX_EMULATE
  (void)d;
  *yes = !ax_emulate_mode(AX_EMULATED_OLD);
  return AX_OK;
#else
  int major = 0, minor = 0;
  cudaError_t e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, d.index);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, d.index);
  *yes = e == cudaSuccess && major * 10 + minor >= 89;
  return ax_cuda_status("matrix product", e);
#endif
}

static bool small(int64_t v) { return v <= INT32_MAX; }

ax_status ax_cublaslt_gemm(ax_device d, const ax_cuda_gemm *wanted, const ax_cuda_gemm_data *data, bool *done)
{
  static const double one = 1, zero = 0;
  static const float one_f = 1, zero_f = 0;
  cudaStream_t stream;
  void *workspace = NULL;
  bool usable;
  plan *p = NULL;
  key k;
  ax_status st;

  *done = false;
  if (!ax_is_float((ax_dtype)wanted->dtype) || !small(wanted->m) || !small(wanted->n) || !small(wanted->k) ||
      !small(wanted->batch))
    return AX_OK;
  if (ax_is_float8((ax_dtype)wanted->dtype)) {
    bool able;
    if ((st = multiplies_eight_bits(d, &able)) != AX_OK || !able) return st;
  }
  k.g = *wanted;
  ax_cuda_gemm *g = &k.g;
  ax_tidy_steps(g->m, g->k, g->a);
  ax_tidy_steps(g->k, g->n, g->b);
  if (g->m == 1) g->c[1] = g->n;
  if (g->batch == 1) g->a[0] = g->b[0] = g->c[0] = 0;
  if (!ax_blas_takes(g->m, g->k, g->a) || !ax_blas_takes(g->k, g->n, g->b)) return AX_OK;
  if ((st = ax_cuda_use(d, &stream)) != AX_OK) return st;
  k.device = d.index;
  k.tf32 = g->dtype == AX_F32 && ax_float32_matmul_precision() != AX_PRECISION_HIGHEST;
  k.aligned = (int64_t)alignment(data->a) | (int64_t)alignment(data->b) << 10 |
              (int64_t)alignment(data->c) << 20 | (int64_t)alignment(data->bias) << 30 |
              (int64_t)alignment(data->aux) << 40;
  std::lock_guard<std::mutex> hold(lock);
  if ((st = ready(d, &usable)) != AX_OK || !usable) return st;
  if ((st = plan_for(&k, g->a[2] == 1 && g->a[1] >= g->k, g->b[2] == 1 && g->b[1] >= g->n, data, &p)) !=
      AX_OK)
    return st;
  ++*p->calls;
  if (!p->found) return AX_OK;
  cublasStatus_t s = point_to(p, data);
  if (s == CUBLAS_STATUS_SUCCESS) {
    if (p->workspace && (st = ax_cuda_take(d, p->workspace, &workspace)) != AX_OK) return st;
    const bool wide = g->dtype == AX_F64;
    const void *alpha = wide ? (const void *)&one : &one_f;
    const void *beta = g->accumulate ? alpha : wide ? (const void *)&zero : &zero_f;
    s = lt.p_cublasLtMatmul(handles[d.index], p->op, alpha, data->b, p->b, data->a, p->a, beta, data->c, p->c,
                            data->c, p->c, &p->algorithm, workspace, p->workspace, stream);
    if (workspace) ax_cuda_give(d, workspace, p->workspace);
  }
  *done = s == CUBLAS_STATUS_SUCCESS;
  if (*done) return AX_OK;
  return ax_fail(AX_ENOIMPL,
                 "matrix product of %lld x (%lld, %lld) x (%lld, %lld) in %s on cuda:%d: cublasLtMatmul: %s",
                 (long long)g->batch, (long long)g->m, (long long)g->k, (long long)g->k, (long long)g->n,
                 ax_dtype_name((ax_dtype)g->dtype), d.index, lt.p_cublasLtGetStatusString(s));
}

#endif

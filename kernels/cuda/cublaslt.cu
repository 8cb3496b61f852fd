/* Matrix products through cuBLASLt, a plan for each shape.
 *
 * cuBLASLt counts in columns: our c (m, n) with adjacent columns is its (n, m), and c = a b becomes c' = b' a'.  The algorithm is what its
 * heuristic names first, never what a stopwatch says, so a shape is always computed the same way on one model of GPU. */
#include "gemm.cuh"

#ifdef AX_EMULATE

/* The emulated device has none: the caller's own kernel does it. */
ax_status ax_cublaslt_gemm(ax_device, const ax_gemm *, const void *, const void *, const void *, void *, bool *done)
{
  *done = false;
  return AX_OK;
}

#else

#include <cublasLt.h>
#include <mutex>
#include <stdlib.h>
#include <string.h>
#include <unordered_map>

#include "library.h"

static const char FILE_NAME[] = "libcublasLt.so.13";
static const size_t WORKSPACE = (size_t)32 << 20;

/* ---- the functions, found when first needed */

#define FUNCTIONS(X) \
  X(cublasLtCreate) X(cublasLtMatmul) X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy) \
  X(cublasLtMatmulDescSetAttribute) X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy) X(cublasLtMatrixLayoutSetAttribute) \
  X(cublasLtMatmulPreferenceCreate) X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute) X(cublasLtGetStatusString)
static struct {
#define X(name) decltype(&name) p_##name;
  FUNCTIONS(X)
#undef X
} lt;

static std::mutex lock;
static cublasLtHandle_t handles[64];

static ax_status open_library(void)
{
  static bool opened;
  void *library;
  ax_status st;

  if (opened) return AX_OK;
  if ((st = ax_cuda_library(FILE_NAME, "matrix products", &library)) != AX_OK) return st;
#define X(name) if ((st = ax_cuda_symbol(library, FILE_NAME, #name, (void **)&lt.p_##name)) != AX_OK) return st;
  FUNCTIONS(X)
#undef X
  opened = true;
  return AX_OK;
}

static ax_status status_of(const char *what, cublasStatus_t s)
{
  if (s == CUBLAS_STATUS_SUCCESS) return AX_OK;
  return ax_fail(AX_ENOIMPL, "matrix product: %s: %s", what, lt.p_cublasLtGetStatusString(s));
}
#define LT(name, ...) do { if ((st = status_of(#name, lt.p_##name(__VA_ARGS__))) != AX_OK) return st; } while (0)

/* ---- plans */

struct plan {
  cublasLtMatmulDesc_t op;
  cublasLtMatrixLayout_t a, b, c;
  cublasLtMatmulAlgo_t algorithm;
  bool found;
};

struct key { ax_gemm g; int64_t device, aligned; };
struct hash_key {
  size_t operator()(const key &k) const
  {
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a over the words */
    const uint64_t *w = (const uint64_t *)&k;
    for (size_t i = 0; i < sizeof k / 8; i++) h = (h ^ w[i]) * 0x100000001b3u;
    return (size_t)h;
  }
};
struct same_key { bool operator()(const key &a, const key &b) const { return memcmp(&a, &b, sizeof a) == 0; } };
static std::unordered_map<key, plan, hash_key, same_key> plans;

static cudaDataType_t type_of(int64_t d)
{
  return d == AX_F64 ? CUDA_R_64F : d == AX_F16 ? CUDA_R_16F : d == AX_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* A matrix of ours as cuBLASLt sees it: transposed when our columns are adjacent. */
static ax_status layout(const ax_gemm *g, int64_t d, int64_t rows, int64_t cols, const int64_t *step, bool adjacent, cublasLtMatrixLayout_t *out)
{
  const int64_t r = adjacent ? cols : rows, c = adjacent ? rows : cols, ld = adjacent ? step[1] : step[2];
  const int32_t batch = (int32_t)g->batch;
  ax_status st;
  LT(cublasLtMatrixLayoutCreate, out, type_of(d), (uint64_t)r, (uint64_t)c, ld < r ? r : ld);
  if (batch > 1) {
    LT(cublasLtMatrixLayoutSetAttribute, *out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
    LT(cublasLtMatrixLayoutSetAttribute, *out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step[0], sizeof step[0]);
  }
  return AX_OK;
}

/* How well the addresses are aligned, for the heuristic: 16 bytes allow the fastest kernels. */
static uint32_t alignment(const void *p)
{
  uint32_t n = 256;
  while ((uintptr_t)p % n) n /= 2;
  return n;
}

static ax_status make_plan(ax_device d, const ax_gemm *g, bool a_adjacent, bool b_adjacent, const void *a, const void *b, const void *bias, const void *c, plan *p)
{
  const bool wide = g->dtype == AX_F64;
  const cublasComputeType_t compute = wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
  /* ours a x b is theirs b' x a': the first operand of theirs is our b */
  const cublasOperation_t op_b = b_adjacent ? CUBLAS_OP_N : CUBLAS_OP_T, op_a = a_adjacent ? CUBLAS_OP_N : CUBLAS_OP_T;
  const int64_t c_step[3] = { g->c[0], g->c[1], 1 };
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulHeuristicResult_t result;
  int n = 0;
  ax_status st;

  LT(cublasLtMatmulDescCreate, &p->op, compute, wide ? CUDA_R_64F : CUDA_R_32F);
  LT(cublasLtMatmulDescSetAttribute, p->op, CUBLASLT_MATMUL_DESC_TRANSA, &op_b, sizeof op_b);
  LT(cublasLtMatmulDescSetAttribute, p->op, CUBLASLT_MATMUL_DESC_TRANSB, &op_a, sizeof op_a);
  if (bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    LT(cublasLtMatmulDescSetAttribute, p->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    LT(cublasLtMatmulDescSetAttribute, p->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
  }
  if ((st = layout(g, g->dtype, g->m, g->k, g->a, a_adjacent, &p->a)) != AX_OK) return st;
  if ((st = layout(g, g->dtype, g->k, g->n, g->b, b_adjacent, &p->b)) != AX_OK) return st;
  if ((st = layout(g, g->out, g->m, g->n, c_step, true, &p->c)) != AX_OK) return st;
  LT(cublasLtMatmulPreferenceCreate, &preference);
  const uint32_t align[3] = { alignment(b), alignment(a), alignment(c) };
  LT(cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE, sizeof WORKSPACE);
  LT(cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align[0], sizeof align[0]);
  LT(cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align[1], sizeof align[1]);
  LT(cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align[2], sizeof align[2]);
  LT(cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align[2], sizeof align[2]);
  p->found = lt.p_cublasLtMatmulAlgoGetHeuristic(handles[d.index], p->op, p->b, p->a, p->c, p->c, preference, 1, &result, &n) == CUBLAS_STATUS_SUCCESS && n > 0;
  if (p->found) p->algorithm = result.algo;
  lt.p_cublasLtMatmulPreferenceDestroy(preference);
  return AX_OK;
}

static bool adjacent(int64_t rows, int64_t cols, const int64_t *step) { return step[2] == 1 && (step[1] >= cols || rows == 1); }

ax_status ax_cublaslt_gemm(ax_device d, const ax_gemm *g, const void *a, const void *b, const void *bias, void *c, bool *done)
{
  const bool a_adjacent = adjacent(g->m, g->k, g->a), b_adjacent = adjacent(g->k, g->n, g->b);
  const bool a_fits = a_adjacent || (g->a[1] == 1 && g->a[2] >= g->m), b_fits = b_adjacent || (g->b[1] == 1 && g->b[2] >= g->k);
  const double one = 1, zero = 0;
  const float one_f = 1, zero_f = 0;
  cudaStream_t stream;
  void *workspace = NULL;
  ax_status st;

  *done = false;
  if (!ax_is_float((ax_dtype)g->dtype) || !a_fits || !b_fits) return AX_OK;
  if ((st = ax_cuda_use(d, &stream)) != AX_OK) return st;
  std::lock_guard<std::mutex> hold(lock);
  if ((st = open_library()) != AX_OK) return st;
  if (!handles[d.index]) LT(cublasLtCreate, &handles[d.index]);
  key k;
  memset(&k, 0, sizeof k);
  k.g = *g;
  k.device = d.index;
  k.aligned = (int64_t)(alignment(a) | alignment(b) << 10 | alignment(c) << 20);
  if (plans.size() > 4096) plans.clear(); /* a script whose shapes never come back; their descriptors are a few hundred bytes each */
  auto at = plans.find(k);
  if (at == plans.end()) {
    plan fresh = {};
    if ((st = make_plan(d, g, a_adjacent, b_adjacent, a, b, bias, c, &fresh)) != AX_OK) return st;
    at = plans.emplace(k, fresh).first;
  }
  const plan &p = at->second;
  if (!p.found) return AX_OK; /* our own kernel takes what it has no algorithm for */
  if (bias) LT(cublasLtMatmulDescSetAttribute, p.op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
  if ((st = ax_cuda_take(d, WORKSPACE, &workspace)) != AX_OK) return st;
  const bool wide = g->dtype == AX_F64;
  const void *alpha = wide ? (const void *)&one : &one_f;
  const void *beta = g->accumulate ? alpha : wide ? (const void *)&zero : &zero_f;
  st = status_of("cublasLtMatmul", lt.p_cublasLtMatmul(handles[d.index], p.op, alpha, b, p.b, a, p.a, beta, c, p.c, c, p.c, &p.algorithm, workspace, WORKSPACE, stream));
  ax_cuda_give(d, workspace, WORKSPACE);
  *done = st == AX_OK;
  return st;
}

#endif

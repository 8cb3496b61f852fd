/* What the files of the stand-in for cuBLASLt share: descriptors and what is allowed
 * (fake_cublasLt.cpp), and the product (fake_cublasLt_product.cpp). */
#ifndef AX_FAKE_CUBLASLT_H
#define AX_FAKE_CUBLASLT_H

#include "cuda/vendor/vendor.h"

#include <cublasLt.h>

#include <stdlib.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

extern const ax_emulator *emulator;
/* The number that a variable of the environment has; else 0. */
int number_in(const char *name);
cublasStatus_t refuse(cublasStatus_t status, const char *format, ...);
#define INVALID(...) return refuse(CUBLAS_STATUS_INVALID_VALUE, __VA_ARGS__)
#define UNSUPPORTED(...) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, __VA_ARGS__)

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
  const float *scale_a, *scale_b; /* of types of eight bits */
  int8_t fast;
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

struct problem {
  desc d;
  matrix a, b, c, dd;
  int64_t m, n, k;
};

static inline bool has_bias(uint32_t e) { return (e & CUBLASLT_EPILOGUE_BIAS) != 0; }
static inline bool has_bias_gradient(uint32_t e)
{
  return e == CUBLASLT_EPILOGUE_DGELU_BGRAD || e == CUBLASLT_EPILOGUE_BGRADA || e == CUBLASLT_EPILOGUE_BGRADB;
}
static inline bool has_aux(uint32_t e) { return (e & 128) != 0; }

static inline bool is_float8(uint32_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
/* Bytes of an element; 0: the type is not known here. */
size_t size_of(uint32_t type);
int64_t extent(const matrix &m); /* elements from the first to the last of one matrix */
cublasStatus_t check_problem(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                             cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t dd,
                             problem *p);

struct algorithm { /* within the 64 bytes of cublasLtMatmulAlgo_t */
  uint32_t magic, splits;
  uint64_t problem, workspace;
  uint16_t align[6]; /* A, B, C, D, bias, aux */
};
static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm fits into its opaque form");
enum { ALGORITHM = 0x414c474f };

uint64_t print_of(const problem &p); /* all but the pointers */

#endif

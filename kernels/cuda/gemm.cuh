/* One matrix product, or a batch of them: the interface between matmul.cu and its implementations
 * (cuBLASLt in cublaslt.cu, our own kernel). */
#ifndef AX_CUDA_GEMM_H
#define AX_CUDA_GEMM_H

#include "common.cuh"

/* The epilogue: what is done to a product before it is written, beyond bias and accumulation. */
enum {
  AX_GEMM_PLAIN,
  AX_GEMM_GELU, /* aux (m, n) = c, then c = gelu(c) in the form with tanh */
  /* c = c * gelu'(aux): the gradient through such a gelu, whose input is aux */
  AX_GEMM_DGELU,
  /* bias (m) = the sums of a's rows: the bias gradient of a linear layer, when c is its weight's
   * gradient */
  AX_GEMM_ROW_SUMS,
};

/* c[i] (m, n) = a[i] (m, k) x b[i] (k, n) + bias (n), or +=, for i < batch.  Steps are
 * strides in elements: batch, row, column; a batch step of 0 repeats the matrix.  The columns of c
 * are adjacent.  No padding bytes: this is the key of a cache. */
typedef struct ax_cuda_gemm {
  int64_t dtype, out, batch, m, n, k; /* out: the type of c, bias and aux */
  int64_t a[3], b[3], c[2];
  int64_t bias, accumulate; /* 0 or 1 */
  /* aux has the layout of c; an epilogue takes one matrix, not a batch; only PLAIN and ROW_SUMS can
   * accumulate */
  int64_t epilogue;
  /* Types of eight bits alone: b's type, which may be the other one; whether sums may have fewer
   * bits than float32.  There a's columns and b's rows are adjacent, and there is one matrix. */
  int64_t dtype_b, fast;
} ax_cuda_gemm;

typedef struct ax_cuda_gemm_data {
  const void *a, *b;
  void *bias, *aux, *c;
  const float *scale_a, *scale_b; /* types of eight bits: in the device's memory */
} ax_cuda_gemm_data;

/* float32, float64 and the half types whose matrices have one adjacent dim.  *done: whether
 * cuBLASLt has an algorithm and has computed it.  Sizes are not 0. */
ax_status ax_cublaslt_gemm(ax_device d, const ax_cuda_gemm *g, const ax_cuda_gemm_data *p, bool *done);

/* matmul.cu: any product without an epilogue, by cuBLASLt where possible, else by our own kernel.
 * Messages name `op`. */
ax_status ax_cuda_product(ax_op op, ax_device d, const ax_cuda_gemm *g, const void *a, const void *b,
                          const void *bias, void *c);

#endif

/* One matrix product, or a batch of them: what matmul.cu asks of cuBLASLt (cublaslt.cu) and of our
 * own kernel. */
#ifndef AX_CUDA_GEMM_H
#define AX_CUDA_GEMM_H

#include "common.cuh"

/* What happens to a product before it is written, beyond bias and accumulation. */
enum {
  AX_GEMM_PLAIN,
  AX_GEMM_GELU, /* aux (m, n) = c, then c = gelu(c) in the form with tanh */
  /* c = c * gelu'(aux): the gradient on its way back through such a gelu, of which aux was the
   * input */
  AX_GEMM_DGELU,
  /* bias (m) = the sums of a's rows: of the gradients of a linear layer's results, when c is its
   * weight's gradient */
  AX_GEMM_ROW_SUMS,
};

/* c[i] (m, n) = a[i] (m, k) x b[i] (k, n) + bias (n), or += without bias; i below batch.  Steps are
 * strides in elements: batch, row, column; a batch step of 0 repeats the matrix.  The columns of c
 * are adjacent.  No padding: it is a key of a cache. */
typedef struct ax_cuda_gemm {
  int64_t dtype, out, batch, m, n, k; /* out: the type of c, bias and aux */
  int64_t a[3], b[3], c[2];
  int64_t bias, accumulate; /* 0 or 1; not both */
  /* aux has the layout of c; one matrix, not a batch; nothing is accumulated but under PLAIN and
   * ROW_SUMS */
  int64_t epilogue;
} ax_cuda_gemm;

typedef struct ax_cuda_gemm_data {
  const void *a, *b;
  void *bias, *aux, *c;
} ax_cuda_gemm_data;

/* float32, float64 and the half types whose matrices have one adjacent dim, as far as cuBLASLt has
 * an algorithm; *done tells.  Sizes are not 0. */
ax_status ax_cublaslt_gemm(ax_device d, const ax_cuda_gemm *g, const ax_cuda_gemm_data *p, bool *done);

/* matmul.cu: any of them without an epilogue; cuBLASLt where it fits, else our own kernel.  `op`
 * names it in messages. */
ax_status ax_cuda_product(ax_op op, ax_device d, const ax_cuda_gemm *g, const void *a, const void *b,
                          const void *bias, void *c);

#endif

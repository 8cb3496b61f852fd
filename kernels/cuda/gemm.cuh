/* One matrix product, or a batch of them: what matmul.cu asks of cuBLASLt (cublaslt.cu) and of our own kernel. */
#ifndef AX_CUDA_GEMM_H
#define AX_CUDA_GEMM_H

#include "common.cuh"

/* c[i] (m, n) = a[i] (m, k) x b[i] (k, n) + bias (n), or += without bias; i below batch.  Steps are strides in elements: batch, row, column;
 * a batch step of 0 repeats the matrix.  The columns of c are adjacent.  No padding: it is a key of a cache. */
typedef struct ax_gemm {
  int64_t dtype, out, batch, m, n, k; /* out: the type of c */
  int64_t a[3], b[3], c[2];
  int64_t bias, accumulate; /* 0 or 1; not both */
} ax_gemm;

/* float32, float64 and the half types whose matrices have one adjacent dim; *done tells.  Sizes are not 0. */
ax_status ax_cublaslt_gemm(ax_device d, const ax_gemm *g, const void *a, const void *b, const void *bias, void *c, bool *done);

/* matmul.cu: any of them; cuBLASLt where it fits, else our own kernel.  `op` names it in messages. */
ax_status ax_cuda_product(ax_op op, ax_device d, const ax_gemm *g, const void *a, const void *b, const void *bias, void *c);

#endif

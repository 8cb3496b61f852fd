/* One matrix product, or a batch of them: the interface between matmul.c and its implementations
 * (oneDNN in dnnl_shim.c, our own kernel in gemm.c). */
#ifndef AX_CPU_GEMM_H
#define AX_CPU_GEMM_H

#include "cpu.h"

/* c[i] (m, n) = a[i] (m, k) x b[i] (k, n) + bias (n), or += without bias, for i < batch.  Steps are
 * strides in elements: batch, row, column; a batch step of 0 repeats the matrix.  The columns of c
 * are adjacent.  No padding bytes: this is the key of a cache. */
typedef struct ax_gemm {
  int64_t dtype, batch, m, n, k;
  int64_t a[3], b[3], c[2];
  int64_t bias, accumulate; /* 0 or 1; not both */
  int64_t wide, wide_bias;  /* 0 or 1, half types only: c (wide), the bias (wide_bias) is float32 */
} ax_gemm;

static inline ax_dtype ax_gemm_out(const ax_gemm *g) { return g->wide ? AX_F32 : (ax_dtype)g->dtype; }
static inline ax_dtype ax_gemm_bias(const ax_gemm *g) { return g->wide_bias ? AX_F32 : (ax_dtype)g->dtype; }

/* matmul.c: the fastest way for g; any float or integer type; sizes may be 0. */
ax_status ax_cpu_product(const ax_gemm *g, const void *a, const void *b, const void *bias, void *c);

/* matmul.c: half types by converting both operands to float32, and rounding once unless g is
 * wide. */
ax_status ax_cpu_widened_product(const ax_gemm *g, const void *a, const void *b, const void *bias, void *c);

/* gemm.c: any steps; float32, float64, int64, int32, uint8 (integers wrap around).  No bias, no
 * wide results. */
void ax_cpu_gemm(const ax_gemm *g, const void *a, const void *b, void *c);
void ax_cpu_gemm_bias(ax_gemm g, const void *a, const void *b, const void *bias, void *c); /* with one */

/* narrow.c: float32 and half types; a few rows by a matrix whose columns are each adjacent.  Types
 * that the processor does not multiply (their matrices would be converted as a whole) go there with
 * AX_NARROW_HALF rows, others with AX_NARROW. */
#define AX_NARROW 8
#define AX_NARROW_HALF 16
bool ax_cpu_narrow_takes(const ax_gemm *g);
ax_status ax_cpu_narrow(const ax_gemm *g, const void *a, const void *b, const void *bias, void *c);

/* dnnl_shim.c: float32 and half types.  *done: whether oneDNN has fast code for the case and has
 * computed it.  Sizes must not be 0. */
ax_status ax_dnnl_gemm(const ax_gemm *g, const void *a, const void *b, const void *bias, void *c, bool *done);
/* Whether oneDNN's products in bfloat16 are faster than those of numbers widened to float32.  Where
 * the processor has no instructions for them, oneDNN's take three times as long. */
bool ax_dnnl_multiplies_bf16(void);
/* Whether sums of float32 products depend on the number of threads, whatever the sizes. */
bool ax_dnnl_divides_sums(void);
const char *ax_dnnl_version(void); /* "2.6.3" */

/* gemm_pieces.c: ways to use oneDNN whose bits do not depend on the number of threads.  slices: of
 * a product that is too deep, with float32 results.  pieces: float32, where oneDNN divides sums. */
bool ax_dnnl_too_deep(const ax_gemm *g);
ax_status ax_dnnl_gemm_slices(const ax_gemm *all, const void *a, const void *b, const void *bias, void *c,
                              bool *done);
ax_status ax_dnnl_gemm_pieces(const ax_gemm *g, const void *a, const void *b, const void *bias, void *c);

#endif

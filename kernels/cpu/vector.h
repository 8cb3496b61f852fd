/* Vectors as wide as the level of processor has them, for the kernels whose loops the compiler does not see through. */
#ifndef AX_CPU_VECTOR_H
#define AX_CPU_VECTOR_H

#if defined(__AVX512F__)
#define AX_BYTES 64
#elif defined(__AVX__)
#define AX_BYTES 32
#else
#define AX_BYTES 16
#endif

typedef float ax_vec_f32 __attribute__((vector_size(AX_BYTES), aligned(4), may_alias));
typedef double ax_vec_f64 __attribute__((vector_size(AX_BYTES), aligned(8), may_alias));

/* a b + c, fused where the processor does it: the compiler is told not to make that choice by itself. */
#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__)
#define AX_VFMA_f32(a, b, c) ((ax_vec_f32)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define AX_VFMA_f64(a, b, c) ((ax_vec_f64)_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c)))
#elif defined(__FMA__)
#define AX_VFMA_f32(a, b, c) ((ax_vec_f32)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define AX_VFMA_f64(a, b, c) ((ax_vec_f64)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#else
#define AX_VFMA_f32(a, b, c) ((a) * (b) + (c))
#define AX_VFMA_f64(a, b, c) ((a) * (b) + (c))
#endif

/* Before a loop with few steps, whose arrays are then registers. */
#define AX_UNROLL _Pragma("GCC unroll 8")

#endif

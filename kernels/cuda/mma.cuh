/* Tensor cores and the instructions that feed them, from compute capability 8.0 on: mma.sync on
 * half types and on TF32 with float32 sums, ldmatrix, cp.async, dynamic shared memory.  nvcc gets
 * the real instructions, the emulated device gets emulate/mma.h. */
#ifndef AX_CUDA_MMA_H
#define AX_CUDA_MMA_H

#include "common.cuh"

#ifdef AX_EMULATE
#include "cuda/emulate/mma.h"
#else
#include <atomic>
#endif

/* `name`: the block's dynamic shared memory, of the size that ax_cuda_launch_shared was given. */
#ifdef AX_EMULATE
#define AX_DYNAMIC_SHARED(name) unsigned char *const name = ax_emulated_shared.data
#else
#define AX_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#endif

/* Whether the device has the instructions of this file.  *shared: the most dynamic shared memory of
 * a block. */
static inline bool ax_cuda_has_mma(ax_device d, size_t *shared)
{
#ifdef AX_EMULATE
  *shared = AX_EMULATED_SHARED;
  return !ax_emulate_mode(AX_EMULATED_OLD);
#else
  int major = 0, bytes = 0;
  *shared = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, d.index) != cudaSuccess ||
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, d.index) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  *shared = (size_t)bytes;
  return major >= 8;
#endif
}

/* ax_cuda_launch of Kernel with `bytes` of dynamic shared memory.  More than 48 KB must be enabled
 * for a kernel, once on each device. */
template <auto Kernel, class... A>
static ax_status ax_cuda_launch_shared(const char *what, ax_device d, dim3 grid, dim3 block, size_t bytes,
                                       A... arguments)
{
#ifdef AX_EMULATE
  return ax_cuda_launch(what, d, grid, block, ax_emulated_with_shared<A...>, bytes, Kernel, arguments...);
#else
  static std::atomic<size_t> allowed[64];
  cudaStream_t stream;
  ax_status st = ax_cuda_use(d, &stream);
  if (st != AX_OK) return st;
  if (bytes > 48 << 10 && allowed[d.index % 64].load(std::memory_order_relaxed) < bytes) {
    if ((st = ax_cuda_status(what, cudaFuncSetAttribute(Kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                        (int)bytes))) != AX_OK)
      return st;
    allowed[d.index % 64].store(bytes, std::memory_order_relaxed);
  }
  Kernel<<<grid, block, bytes, stream>>>(arguments...);
  return ax_cuda_status(what, cudaGetLastError());
#endif
}

#if !defined(AX_EMULATE) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800)
#define AX_HAS_MMA 1
#endif

/* Code for an older architecture contains these calls, but never reaches them (ax_cuda_has_mma). */
#ifdef AX_EMULATE
#define AX_MMA_EITHER(emulated, real) emulated
#elif defined(AX_HAS_MMA)
#define AX_MMA_EITHER(emulated, real) real
#else
#define AX_MMA_EITHER(emulated, real) __trap()
#endif

#ifndef AX_EMULATE
static __device__ __forceinline__ uint32_t ax_cuda_shared_address(const void *p)
{
  return (uint32_t)__cvta_generic_to_shared(p);
}
#endif

/* d += a b for tiles a (16 x 16), b (16 x 8), d (16 x 8) in the fragments of mma.m16n8k16. */
static __device__ __forceinline__ void ax_cuda_mma(ax_cuda_bf16, float (&d)[4], const uint32_t (&a)[4],
                                                   uint32_t b0, uint32_t b1)
{
  AX_MMA_EITHER(ax_emulated_mma(d, a, b0, b1, true),
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, "
                             "%6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)));
}
static __device__ __forceinline__ void ax_cuda_mma(ax_cuda_f16, float (&d)[4], const uint32_t (&a)[4],
                                                   uint32_t b0, uint32_t b1)
{
  AX_MMA_EITHER(ax_emulated_mma(d, a, b0, b1, false),
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, "
                             "%6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)));
}

/* x rounded to TF32 (11 bits of mantissa), to nearest, ties away from zero; the word of a float
 * whose low 13 bits are 0. */
static __device__ __forceinline__ uint32_t ax_cuda_to_tf32(float x)
{
  uint32_t r = 0;
  AX_MMA_EITHER(r = ax_emulated_to_tf32(x), asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x)));
  return r;
}
/* d += a b for tiles a (16 x 8), b (8 x 8), d (16 x 8) in the fragments of mma.m16n8k8 on TF32:
 * words of floats, whose low 13 bits do not count. */
static __device__ __forceinline__ void ax_cuda_mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                        uint32_t b1)
{
  AX_MMA_EITHER(ax_emulated_mma_tf32(d, a, b0, b1),
                asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, "
                             "%6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)));
}

/* Four 8 x 8 matrices of 16-bit elements from shared memory; lane 8 m + r gives the address of row
 * r of matrix m, aligned to 16 bytes. */
static __device__ __forceinline__ void ax_cuda_ldmatrix(uint32_t (&r)[4], const void *row)
{
  AX_MMA_EITHER(ax_emulated_ldmatrix(r, row, false),
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                             : "r"(ax_cuda_shared_address(row))
                             : "memory"));
}
static __device__ __forceinline__ void ax_cuda_ldmatrix_trans(uint32_t (&r)[4], const void *row)
{
  AX_MMA_EITHER(ax_emulated_ldmatrix(r, row, true),
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                             : "r"(ax_cuda_shared_address(row))
                             : "memory"));
}
/* Two matrices; lanes from 16 on also pass an address, which is ignored. */
static __device__ __forceinline__ void ax_cuda_ldmatrix(uint32_t (&r)[2], const void *row)
{
  AX_MMA_EITHER(ax_emulated_ldmatrix(r, row, false),
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                             : "=r"(r[0]), "=r"(r[1])
                             : "r"(ax_cuda_shared_address(row))
                             : "memory"));
}
static __device__ __forceinline__ void ax_cuda_ldmatrix_trans(uint32_t (&r)[2], const void *row)
{
  AX_MMA_EITHER(ax_emulated_ldmatrix(r, row, true),
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                             : "=r"(r[0]), "=r"(r[1])
                             : "r"(ax_cuda_shared_address(row))
                             : "memory"));
}

/* Copies BYTES from global to shared memory asynchronously, or clears them when not `in` (`from` is
 * then not read and may point past the data, at an aligned address).  The thread that issued copies
 * waits for them; a barrier then makes them visible to the others. */
template <int BYTES>
static __device__ __forceinline__ void ax_cuda_copy_async(void *to, const void *from, bool in)
{
  static_assert(BYTES == 16 || BYTES == 4, "cp.async copies 16 or 4 bytes here");
#ifdef AX_EMULATE
  ax_emulated_copy(to, from, BYTES, in);
#elif defined(AX_HAS_MMA)
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(ax_cuda_shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(in ? 16 : 0)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :
                 : "r"(ax_cuda_shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(in ? 4 : 0)
                 : "memory");
#endif
}
/* Ends a group of copies, which may be empty. */
static __device__ __forceinline__ void ax_cuda_copy_commit()
{
  AX_MMA_EITHER(ax_emulated_copy_commit(), asm volatile("cp.async.commit_group;" : : : "memory"));
}
/* Waits until at most LEFT of the thread's groups are still running. */
template <int LEFT> static __device__ __forceinline__ void ax_cuda_copy_wait()
{
  AX_MMA_EITHER(ax_emulated_copy_wait(LEFT), asm volatile("cp.async.wait_group %0;"
                                                          :
                                                          : "n"(LEFT)
                                                          : "memory"));
}

/* Two floats as a word of half elements, rounded to nearest even; `lo` is the first in memory. */
static __device__ __forceinline__ uint32_t ax_cuda_pack_halves(ax_cuda_bf16, float lo, float hi)
{
#ifdef AX_HAS_MMA
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
#else
  return ax_float_to_bf16(lo) | (uint32_t)ax_float_to_bf16(hi) << 16;
#endif
}
static __device__ __forceinline__ uint32_t ax_cuda_pack_halves(ax_cuda_f16, float lo, float hi)
{
#ifdef AX_HAS_MMA
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
#else
  return ax_float_to_half(lo) | (uint32_t)ax_float_to_half(hi) << 16;
#endif
}

/* 2^x by the special function unit: within 2 ulp; subnormal results are 0.  exp2(-inf) is 0. */
static __device__ __forceinline__ float ax_cuda_exp2_fast(float x)
{
#ifdef AX_EMULATE
  return exp2f(x);
#else
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
#endif
}

#endif

/* How functions that C and CUDA kernels share are declared. */
#ifndef AX_FN_H
#define AX_FN_H

#ifdef __CUDACC__
#define AX_FN static __host__ __device__ __forceinline__
#else
#define AX_FN static inline __attribute__((always_inline))
#endif

#endif

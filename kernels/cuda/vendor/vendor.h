/* Included before the header of one of NVIDIA's libraries (cublasLt.h, cudnn_graph.h, nccl.h).
 *
 * The emulated build calls these libraries too, as fakes from the specs (spec/fakes).
 * There the headers must not include CUDA's own runtime, which emulate.h replaces.  The definitions
 * that they need from it are here, and their includes of it are disabled. */
#ifndef AX_CUDA_VENDOR_H
#define AX_CUDA_VENDOR_H

#ifdef AX_EMULATE

#include "cuda/emulate/emulate.h"

#define __DRIVER_TYPES_H__
#define __CUDA_RUNTIME_H__
#define __CUDA_RUNTIME_API_H__
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#define CU_COMPLEX_H_
#ifndef CUDARTAPI
#define CUDARTAPI
#endif

struct __half {
  uint16_t bits;
};
struct __nv_bfloat16 {
  uint16_t bits;
};
struct __nv_fp8_e4m3 {
  uint8_t bits;
};
struct __nv_fp8_e5m2 {
  uint8_t bits;
};
typedef __half half;
struct cuComplex {
  float x, y;
};
struct cuDoubleComplex {
  double x, y;
};

#endif
#endif

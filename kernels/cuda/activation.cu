/* Activations and their derivatives: the expressions of activation.h in the kernels of
 * pointwise.cuh, bound by memory. */
#include "activation.h"
#include "pointwise.cuh"

#define DECLARE(name, expr) template <class T> struct name##_fn;
AX_LIMITS(DECLARE)
AX_ACTIVATIONS(DECLARE, )
AX_ACTIVATION_SLOPES(DECLARE, )

#define T float
#define OF(f) ax_##f##_f32
#define ONE(name, expr) AX_FUNCTOR(name, float, float x, expr)
#define TWO(name, expr) AX_FUNCTOR(name, float, float a AX_COMMA float b, expr)
AX_LIMITS(ONE)
AX_ACTIVATIONS(ONE, OF)
AX_ACTIVATION_SLOPES(TWO, OF)
#undef T
#undef OF
#undef ONE
#undef TWO

#define T double
#define OF(f) ax_##f##_f64
#define ONE(name, expr) AX_FUNCTOR(name, double, double x, expr)
#define TWO(name, expr) AX_FUNCTOR(name, double, double a AX_COMMA double b, expr)
AX_LIMITS(ONE)
AX_ACTIVATIONS(ONE, OF)
AX_ACTIVATION_SLOPES(TWO, OF)

#define ROW1(name, expr) \
  AX_CUDA_KERNEL(name) { return ax_cuda_pointwise_float<name##_fn, 1>(call); }
#define ROW2(name, expr) \
  AX_CUDA_KERNEL(name) { return ax_cuda_pointwise_float<name##_fn, 2>(call); }
AX_ACTIVATIONS(ROW1, )
AX_ACTIVATION_SLOPES(ROW2, )
#undef T
#undef ONE

/* ---- limits, of integers as well */

#define T int64_t
#define ONE(name, expr) AX_FUNCTOR(name, int64_t, int64_t x, expr)
AX_LIMITS(ONE)
#undef T
#undef ONE
#define T int32_t
#define ONE(name, expr) AX_FUNCTOR(name, int32_t, int32_t x, expr)
AX_LIMITS(ONE)
#undef T
#undef ONE
#ifdef __CUDACC__
#pragma nv_diag_suppress 186 /* x < 0 of an unsigned x */
#endif
#define T uint8_t
#define ONE(name, expr) AX_FUNCTOR(name, uint8_t, uint8_t x, expr)
AX_LIMITS(ONE)
#undef T
#undef ONE

#define LIMITS(name, expr) \
  AX_CUDA_KERNEL(name) \
  { \
    if (call->iter->numel == 0) return AX_OK; \
    switch (ax_cuda_input_dtype(call)) { \
    case AX_I64: return ax_cuda_pointwise<int64_t, int64_t, 1>(call, name##_fn<int64_t>(call->a->numbers)); \
    case AX_I32: return ax_cuda_pointwise<int32_t, int32_t, 1>(call, name##_fn<int32_t>(call->a->numbers)); \
    case AX_U8: return ax_cuda_pointwise<uint8_t, uint8_t, 1>(call, name##_fn<uint8_t>(call->a->numbers)); \
    default: return ax_cuda_pointwise_float<name##_fn, 1>(call); \
    } \
  }
AX_LIMITS(LIMITS)

/* ---- gelu: the attribute selects the form */

template <class T> struct gelu_none;
template <class T> struct gelu_tanh;
template <class T> struct back_none;
template <class T> struct back_tanh;
#define GELU(T, S) \
  template <> struct gelu_none<T> { \
    explicit gelu_none(const double *) {} \
    __device__ __forceinline__ T operator()(T x) const { return ax_gelu_##S(x); } \
  }; \
  template <> struct gelu_tanh<T> { \
    explicit gelu_tanh(const double *) {} \
    __device__ __forceinline__ T operator()(T x) const { return ax_gelu_tanh_##S(x); } \
  }; \
  template <> struct back_none<T> { \
    explicit back_none(const double *) {} \
    __device__ __forceinline__ T operator()(T a, T b) const { return a * ax_gelu_slope_##S(b); } \
  }; \
  template <> struct back_tanh<T> { \
    explicit back_tanh(const double *) {} \
    __device__ __forceinline__ T operator()(T a, T b) const { return a * ax_gelu_tanh_slope_##S(b); } \
  };
GELU(float, f32)
GELU(double, f64)

AX_CUDA_KERNEL(gelu)
{
  return call->a->gelu.approximate ? ax_cuda_pointwise_float<gelu_tanh, 1>(call)
                                   : ax_cuda_pointwise_float<gelu_none, 1>(call);
}
AX_CUDA_KERNEL(_gelu_backward)
{
  return call->a->gelu_backward.approximate ? ax_cuda_pointwise_float<back_tanh, 2>(call)
                                            : ax_cuda_pointwise_float<back_none, 2>(call);
}

/* The functions of gamma.h in the kernels of pointwise.cuh. */
#include "gamma.h"
#include "pointwise.cuh"

template <class T> struct erfinv_fn;
template <class T> struct lgamma_fn;
template <class T> struct digamma_fn;
AX_FUNCTOR(erfinv, float, float x, ax_erfinv_f32(x))
AX_FUNCTOR(erfinv, double, double x, ax_erfinv_f64(x))
AX_FUNCTOR(lgamma, float, float x, ax_lgamma_f32(x))
AX_FUNCTOR(lgamma, double, double x, ax_lgamma_f64(x))
AX_FUNCTOR(digamma, float, float x, ax_digamma_f32(x))
AX_FUNCTOR(digamma, double, double x, ax_digamma_f64(x))
AX_CUDA_KERNEL(erfinv) { return ax_cuda_pointwise_float<erfinv_fn, 1>(call); }
AX_CUDA_KERNEL(lgamma) { return ax_cuda_pointwise_float<lgamma_fn, 1>(call); }
AX_CUDA_KERNEL(digamma) { return ax_cuda_pointwise_float<digamma_fn, 1>(call); }

struct few_factors {
  ax_polygamma_numbers z;
  template <class X> __device__ __forceinline__ X operator()(X x) const
  {
    return (X)ax_polygamma_small(&z, z.s, x);
  }
};
struct any_factors {
  ax_polygamma_numbers z;
  template <class X> __device__ __forceinline__ X operator()(X x) const
  {
    return (X)ax_polygamma_large(&z, z.s, x);
  }
};

AX_CUDA_KERNEL(_polygamma)
{
  const ax_polygamma_numbers z = ax_polygamma_of(call->a->polygamma.n);
  if (call->iter->numel == 0) return AX_OK;
  return ax_cuda_with_float(call->op, ax_cuda_input_dtype(call), [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return z.s <= AX_ZETA_SMALL ? ax_cuda_pointwise<S, S, 1>(call, few_factors{ z })
                                : ax_cuda_pointwise<S, S, 1>(call, any_factors{ z });
  });
}

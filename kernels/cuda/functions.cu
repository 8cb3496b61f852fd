/* The functions of functions.h, ternary arithmetic and bit operations, in the kernels of
 * pointwise.cuh. */
#include "functions.h"
#include "pointwise.cuh"

#include <stdio.h>

#define DECLARE(name) template <class T> struct name##_fn;
#define DECLARE2(name, expr) DECLARE(name)
AX_MORE_FUNCTIONS(DECLARE)
AX_MORE_FLOAT_BINARY(DECLARE)
DECLARE(tan)
DECLARE(fmod)
DECLARE(floor_divide)
DECLARE(addcmul)
DECLARE(addcdiv)
DECLARE(lerp)
DECLARE(nan_to_num)
AX_INT_BITS(DECLARE2)
DECLARE(bitwise_not)

#define MATH1(name) \
  AX_FUNCTOR(name, float, float x, ax_##name##_f32(x)) AX_FUNCTOR(name, double, double x, ax_##name##_f64(x))
#define MATH2(name) \
  AX_FUNCTOR(name, float, float a AX_COMMA float b, ax_##name##_f32(a, b)) \
  AX_FUNCTOR(name, double, double a AX_COMMA double b, ax_##name##_f64(a, b))
#define BOTH3(name, expr) \
  AX_FUNCTOR(name, float, float m AX_COMMA float a AX_COMMA float b, expr) \
  AX_FUNCTOR(name, double, double m AX_COMMA double a AX_COMMA double b, expr)
AX_MORE_FUNCTIONS(MATH1)
AX_MORE_FLOAT_BINARY(MATH2)
MATH2(floor_divide)
AX_FUNCTOR(tan, float, float x, fabsf(x) <= AX_TRIG_LIMIT ? ax_tan_f32(x) : tanf(x))
AX_FUNCTOR(tan, double, double x, ax_tan_f64(x))
AX_FUNCTOR(fmod, float, float a AX_COMMA float b, fmodf(a, b))
AX_FUNCTOR(fmod, double, double a AX_COMMA double b, fmod(a, b))
BOTH3(addcmul, m + p0 * (a * b))
BOTH3(addcdiv, m + p0 * (a / b))
/* computed from the nearer end, so that weight 1 gives `end` exactly */
BOTH3(lerp, (double)b < 0.5 ? m + b * (a - m) : a - (a - m) * (1 - b))
AX_FUNCTOR(nan_to_num, float, float x, x != x ? p0 : x == INFINITY ? p1 : x == -INFINITY ? p2 : x)
AX_FUNCTOR(nan_to_num, double, double x,
           x != x                   ? p0
           : x == (double)INFINITY  ? p1
           : x == -(double)INFINITY ? p2
                                    : x)

/* ---- integers */

#define WHOLE(T, U) \
  AX_FUNCTOR(trunc, T, T x, x) \
  AX_FUNCTOR(nan_to_num, T, T x, x) \
  AX_FUNCTOR(floor_divide, T, T a AX_COMMA T b, ax_floor_divide_int(a, b)) \
  AX_FUNCTOR(fmod, T, T a AX_COMMA T b, ax_fmod_int(a, b)) \
  AX_FUNCTOR(addcmul, T, T m AX_COMMA T a AX_COMMA T b, (U)m + (U)(int64_t)p0 * (U)a * (U)b) \
  AX_FUNCTOR(bitwise_not, T, T x, ~x)
WHOLE(int64_t, uint64_t)
WHOLE(int32_t, uint32_t)
WHOLE(uint8_t, uint32_t)
#define U uint64_t
#define BITS(name, expr) AX_FUNCTOR(name, int64_t, int64_t a AX_COMMA int64_t b, expr)
AX_INT_BITS(BITS)
#undef U
#undef BITS
#define U uint32_t
#define BITS(name, expr) AX_FUNCTOR(name, int32_t, int32_t a AX_COMMA int32_t b, expr)
AX_INT_BITS(BITS)
#undef BITS
#pragma nv_diag_suppress 186 /* b >= 0 of an unsigned b */
#define BITS(name, expr) AX_FUNCTOR(name, uint8_t, uint8_t a AX_COMMA uint8_t b, expr)
AX_INT_BITS(BITS)

struct not_bool {
  __device__ __forceinline__ uint8_t operator()(uint8_t x) const { return x == 0; }
};

template <template <class> class F, int N> static ax_status whole(const ax_call *call)
{
  switch (ax_cuda_input_dtype(call)) {
  case AX_I64: return ax_cuda_pointwise<int64_t, int64_t, N>(call, F<int64_t>(call->a->numbers));
  case AX_I32: return ax_cuda_pointwise<int32_t, int32_t, N>(call, F<int32_t>(call->a->numbers));
  case AX_U8: return ax_cuda_pointwise<uint8_t, uint8_t, N>(call, F<uint8_t>(call->a->numbers));
  default: return ax_cuda_no_dtype(call->op, ax_cuda_input_dtype(call));
  }
}

template <template <class> class F, int N> static ax_status numbers(const ax_call *call)
{
  if (call->iter->numel == 0) return AX_OK;
  return ax_is_float(ax_cuda_input_dtype(call)) ? ax_cuda_pointwise_float<F, N>(call) : whole<F, N>(call);
}

template <template <class> class F> static ax_status divide(const ax_call *call)
{
  char text[80];
  snprintf(text, sizeof text, "%s: division of an integer by zero", ax_ops[call->op].name);
  if (call->iter->numel == 0) return AX_OK;
  if (!ax_is_float(ax_cuda_input_dtype(call))) {
    const ax_status st = ax_cuda_refuse_zero(call, 1, text);
    if (st != AX_OK) return st;
  }
  return numbers<F, 2>(call);
}

template <template <class> class F> static ax_status bits(const ax_call *call)
{
  if (call->iter->numel == 0) return AX_OK;
  /* bools stay 0 and 1 */
  if (ax_cuda_input_dtype(call) == AX_BOOL)
    return ax_cuda_pointwise<uint8_t, uint8_t, 2>(call, F<uint8_t>(call->a->numbers));
  return whole<F, 2>(call);
}

#define ROW1(name) \
  AX_CUDA_KERNEL(name) { return ax_cuda_pointwise_float<name##_fn, 1>(call); }
#define ROW2(name) \
  AX_CUDA_KERNEL(name) { return ax_cuda_pointwise_float<name##_fn, 2>(call); }
/* clang-format off */
ROW1(exp2) ROW1(log2) ROW1(log10) ROW1(sinh) ROW1(cosh) ROW1(asinh) ROW1(acosh) ROW1(atanh)
ROW1(asin) ROW1(acos) ROW1(atan) ROW1(erfc) ROW1(frac) ROW1(tan)
ROW2(atan2) ROW2(logaddexp) ROW2(xlogy) ROW2(hypot)
    /* clang-format on */
    AX_CUDA_KERNEL(trunc)
{
  return numbers<trunc_fn, 1>(call);
}
AX_CUDA_KERNEL(addcmul) { return numbers<addcmul_fn, 3>(call); }
AX_CUDA_KERNEL(addcdiv) { return ax_cuda_pointwise_float<addcdiv_fn, 3>(call); }
AX_CUDA_KERNEL(lerp) { return ax_cuda_pointwise_float<lerp_fn, 3>(call); }
AX_CUDA_KERNEL(floor_divide) { return divide<floor_divide_fn>(call); }
AX_CUDA_KERNEL(fmod) { return divide<fmod_fn>(call); }
AX_CUDA_KERNEL(nan_to_num)
{
  if (call->iter->numel && ax_cuda_input_dtype(call) == AX_BOOL)
    return ax_cuda_pointwise<uint8_t, uint8_t, 1>(call, nan_to_num_fn<uint8_t>(call->a->numbers));
  return numbers<nan_to_num_fn, 1>(call);
}
AX_CUDA_KERNEL(bitwise_and) { return bits<bitwise_and_fn>(call); }
AX_CUDA_KERNEL(bitwise_or) { return bits<bitwise_or_fn>(call); }
AX_CUDA_KERNEL(bitwise_xor) { return bits<bitwise_xor_fn>(call); }
AX_CUDA_KERNEL(bitwise_left_shift)
{
  return call->iter->numel ? whole<bitwise_left_shift_fn, 2>(call) : AX_OK;
}
AX_CUDA_KERNEL(bitwise_right_shift)
{
  return call->iter->numel ? whole<bitwise_right_shift_fn, 2>(call) : AX_OK;
}
AX_CUDA_KERNEL(bitwise_not)
{
  if (call->iter->numel == 0) return AX_OK;
  return ax_cuda_input_dtype(call) == AX_BOOL
             ? ax_cuda_pointwise<ax_cuda_bool, ax_cuda_bool, 1>(call, not_bool())
             : whole<bitwise_not_fn, 1>(call);
}

/* Arithmetic: the expressions of pointwise.h for every element type. */
#include "pointwise.cuh"

#include "powers.h"

/* ---- functors, named <op>_fn, one specialisation for each type that is computed with */

#define DECLARE1(name) template <class T> struct name##_fn;
#define DECLARE2(name, expr) template <class T> struct name##_fn;
AX_FLOAT_FUNCTIONS(DECLARE1)
AX_FLOAT_UNARY(DECLARE2)
AX_FLOAT_BINARY(DECLARE2)
DECLARE1(sin)
DECLARE1(cos)
DECLARE1(remainder)
DECLARE1(pow)
DECLARE1(clamp)

/* Frequent exponents are products and roots, the CPU's bits. */
#define CHOSEN(name, exponent, value) b == (exponent) ? (value):
static __device__ __forceinline__ float power(float a, float b)
{
  return AX_POWERS(CHOSEN, float, a, sqrtf(a + 0.0f)) ax_pow_f32(a, b);
}
static __device__ __forceinline__ double power(double a, double b)
{
  return AX_POWERS(CHOSEN, double, a, sqrt(a + 0.0)) ax_pow_f64(a, b);
}

#define T float
#define MATH(name) AX_FUNCTOR(name, float, float x, ax_##name##_f32(x))
#define ONE(name, expr) AX_FUNCTOR(name, float, float x, expr)
#define TWO(name, expr) AX_FUNCTOR(name, float, float a AX_COMMA float b, expr)
AX_FLOAT_FUNCTIONS(MATH)
AX_FLOAT_UNARY(ONE)
AX_FLOAT_BINARY(TWO)
ONE(sin, fabsf(x) <= AX_TRIG_LIMIT ? ax_sin_f32(x) : sinf(x))
ONE(cos, fabsf(x) <= AX_TRIG_LIMIT ? ax_cos_f32(x) : cosf(x))
TWO(remainder, ax_remainder_f32(a, b))
TWO(pow, power(a, b))
#undef T
#undef MATH
#undef ONE
#undef TWO

#define T double
#define MATH(name) AX_FUNCTOR(name, double, double x, ax_##name##_f64(x))
#define ONE(name, expr) AX_FUNCTOR(name, double, double x, expr)
#define TWO(name, expr) AX_FUNCTOR(name, double, double a AX_COMMA double b, expr)
AX_FLOAT_FUNCTIONS(MATH)
AX_FLOAT_UNARY(ONE)
AX_FLOAT_BINARY(TWO)
ONE(sin, ax_sin_f64(x))
ONE(cos, ax_cos_f64(x))
TWO(remainder, ax_remainder_f64(a, b))
TWO(pow, power(a, b))
#undef T
#undef MATH
#undef ONE
#undef TWO

#define INTEGERS(T_, U_) \
  AX_INT_UNARY(ONE) \
  AX_INT_BINARY(TWO) \
  TWO(remainder, ax_remainder_int(a, b))
#define T int64_t
#define U uint64_t
#define ONE(name, expr) AX_FUNCTOR(name, int64_t, int64_t x, expr)
#define TWO(name, expr) AX_FUNCTOR(name, int64_t, int64_t a AX_COMMA int64_t b, expr)
INTEGERS(T, U)
#undef T
#undef U
#undef ONE
#undef TWO
#define T int32_t
#define U uint32_t
#define ONE(name, expr) AX_FUNCTOR(name, int32_t, int32_t x, expr)
#define TWO(name, expr) AX_FUNCTOR(name, int32_t, int32_t a AX_COMMA int32_t b, expr)
INTEGERS(T, U)
#undef T
#undef ONE
#undef TWO

/* uint8 and bool are both bytes; bool has functors of its own below. */
#ifdef __CUDACC__
#pragma nv_diag_suppress 186 /* x < 0 of an unsigned x */
#endif
#define T uint8_t
#define ONE(name, expr) AX_FUNCTOR(name, uint8_t, uint8_t x, expr)
#define TWO(name, expr) AX_FUNCTOR(name, uint8_t, uint8_t a AX_COMMA uint8_t b, expr)
INTEGERS(T, U)
#undef T
#undef U

struct of_bool {
  explicit of_bool(const double *) {}
};
#define BOOL1(name, expr) \
  struct name##_bool : of_bool { \
    using of_bool::of_bool; \
    __device__ __forceinline__ uint8_t operator()(uint8_t x) const { return (uint8_t)(expr); } \
  };
#define BOOL2(name, expr) \
  struct name##_bool : of_bool { \
    using of_bool::of_bool; \
    __device__ __forceinline__ uint8_t operator()(uint8_t a, uint8_t b) const { return (uint8_t)(expr); } \
  };
AX_BOOL_UNARY(BOOL1)
AX_BOOL_BINARY(BOOL2)

/* ---- rows */

template <template <class> class F, int N> static ax_status integers(const ax_call *call)
{
  switch (ax_cuda_input_dtype(call)) {
  case AX_I64: return ax_cuda_pointwise<int64_t, int64_t, N>(call, F<int64_t>(call->a->numbers));
  case AX_I32: return ax_cuda_pointwise<int32_t, int32_t, N>(call, F<int32_t>(call->a->numbers));
  case AX_U8: return ax_cuda_pointwise<uint8_t, uint8_t, N>(call, F<uint8_t>(call->a->numbers));
  default: return ax_cuda_pointwise_float<F, N>(call);
  }
}

#define FLOATS(name, n) \
  AX_CUDA_KERNEL(name) { return ax_cuda_pointwise_float<name##_fn, n>(call); }
#define NUMBERS(name, n) \
  AX_CUDA_KERNEL(name) { return call->iter->numel ? integers<name##_fn, n>(call) : AX_OK; }
#define ALL(name, n) \
  AX_CUDA_KERNEL(name) \
  { \
    if (call->iter->numel == 0) return AX_OK; \
    return ax_cuda_input_dtype(call) == AX_BOOL \
               ? ax_cuda_pointwise<ax_cuda_bool, ax_cuda_bool, n>(call, name##_bool(call->a->numbers)) \
               : integers<name##_fn, n>(call); \
  }
/* clang-format off */
ALL(add, 2) ALL(mul, 2) ALL(maximum, 2) ALL(minimum, 2) ALL(sign, 1)
NUMBERS(sub, 2) NUMBERS(neg, 1) NUMBERS(abs, 1) NUMBERS(square, 1) NUMBERS(relu, 1)
NUMBERS(floor, 1) NUMBERS(ceil, 1) NUMBERS(round, 1)
FLOATS(div, 2) FLOATS(exp, 1) FLOATS(expm1, 1) FLOATS(log, 1) FLOATS(log1p, 1) FLOATS(sqrt, 1)
FLOATS(rsqrt, 1) FLOATS(reciprocal, 1) FLOATS(tanh, 1) FLOATS(sigmoid, 1) FLOATS(erf, 1)
FLOATS(sin, 1) FLOATS(cos, 1) FLOATS(_tanh_backward, 2) FLOATS(_sigmoid_backward, 2)
FLOATS(_relu_backward, 2)
    /* clang-format on */

    /* ---- remainder and pow of integers: what has no result is found before anything is written */

    AX_CUDA_KERNEL(remainder)
{
  if (call->iter->numel == 0) return AX_OK;
  if (ax_cuda_input_dtype(call) >= AX_I64) {
    const ax_status st = ax_cuda_refuse_zero(call, 1, "remainder: division of an integer by zero");
    if (st != AX_OK) return st;
  }
  return integers<remainder_fn, 2>(call);
}

AX_CUDA_KERNEL(pow)
{
  const ax_operand *exponent = &call->iter->op[2];
  if (call->iter->numel == 0) return AX_OK;
  if (exponent->dtype >= AX_I64 && call->n_in > 1 && !call->in[1]) {
    const int64_t b = ax_load_int(exponent->dtype, exponent->data, 0);
    if (b < 0)
      return ax_fail(AX_ERANGE,
                     "pow: integers to the power %lld, a negative number: convert the tensor to float first",
                     (long long)b);
  }
  return integers<pow_fn, 2>(call);
}

/* ---- clamp: the limits are infinite where not given.  A NaN in x stays NaN; where
 * min > max the result is max. */

template <class L> struct limits {
  L lo, hi;
  template <class X> __device__ __forceinline__ X operator()(X x) const
  {
    const L y = (L)x < lo ? lo : (L)x;
    return (X)(y > hi ? hi : y);
  }
};

static int64_t to_limit(double v) { return v >= 0x1p63 ? INT64_MAX : v >= -0x1p63 ? (int64_t)v : INT64_MIN; }

AX_CUDA_KERNEL(clamp)
{
  const double lo = call->a->clamp.min, hi = call->a->clamp.max;
  const limits<int64_t> whole = { to_limit(lo), to_limit(hi) };
  if (call->iter->numel == 0) return AX_OK;
  switch (ax_cuda_input_dtype(call)) {
  case AX_F64: return ax_cuda_pointwise<double, double, 1>(call, limits<double>{ lo, hi });
  case AX_F32: return ax_cuda_pointwise<float, float, 1>(call, limits<float>{ (float)lo, (float)hi });
  case AX_F16:
    return ax_cuda_pointwise<ax_cuda_f16, ax_cuda_f16, 1>(call, limits<float>{ (float)lo, (float)hi });
  case AX_BF16:
    return ax_cuda_pointwise<ax_cuda_bf16, ax_cuda_bf16, 1>(call, limits<float>{ (float)lo, (float)hi });
  case AX_I64: return ax_cuda_pointwise<int64_t, int64_t, 1>(call, whole);
  case AX_I32: return ax_cuda_pointwise<int32_t, int32_t, 1>(call, whole);
  case AX_U8: return ax_cuda_pointwise<uint8_t, uint8_t, 1>(call, whole);
  default: return ax_cuda_no_dtype(call->op, ax_cuda_input_dtype(call));
  }
}

/* Arithmetic and functions, element by element: the expressions of pointwise.h in the loops of
 * simd.h, one loop for each type that an op has.  Memory bounds arithmetic on large operands. */
#include "complex.h"

#include "pointwise.h"
#include "powers.h"

/* ---- the loops, named <op>_<type> */

AX_FLOAT_FUNCTIONS(AX_MATH1)

#define T float
#define FLOAT1(name, expr) AX_LOOP1(name##_f32, T, T, expr)
#define FLOAT2(name, expr) AX_LOOP2(name##_f32, T, T, expr)
AX_FLOAT_UNARY(FLOAT1)
AX_FLOAT_BINARY(FLOAT2)
#undef T
#undef FLOAT1
#undef FLOAT2

#define T double
#define FLOAT1(name, expr) AX_LOOP1(name##_f64, T, T, expr)
#define FLOAT2(name, expr) AX_LOOP2(name##_f64, T, T, expr)
AX_FLOAT_UNARY(FLOAT1)
AX_FLOAT_BINARY(FLOAT2)
#undef T
#undef FLOAT1
#undef FLOAT2

#define U uint64_t
#define INT1(name, expr) AX_LOOP1(name##_i64, int64_t, int64_t, expr)
#define INT2(name, expr) AX_LOOP2(name##_i64, int64_t, int64_t, expr)
AX_INT_UNARY(INT1)
AX_INT_BINARY(INT2)
#undef U
#undef INT1
#undef INT2

#define U uint32_t
#define INT1(name, expr) AX_LOOP1(name##_i32, int32_t, int32_t, expr)
#define INT2(name, expr) AX_LOOP2(name##_i32, int32_t, int32_t, expr)
AX_INT_UNARY(INT1)
AX_INT_BINARY(INT2)
#undef INT1
#undef INT2

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtype-limits" /* x < 0 of an unsigned x */
#define INT1(name, expr) AX_LOOP1(name##_u8, uint8_t, uint8_t, expr)
#define INT2(name, expr) AX_LOOP2(name##_u8, uint8_t, uint8_t, expr)
AX_INT_UNARY(INT1)
AX_INT_BINARY(INT2)
#pragma GCC diagnostic pop

#define BOOL1(name, expr) AX_LOOP1(name##_bool, uint8_t, uint8_t, expr)
#define BOOL2(name, expr) AX_LOOP2(name##_bool, uint8_t, uint8_t, expr)
AX_BOOL_UNARY(BOOL1)
AX_BOOL_BINARY(BOOL2)

/* the most frequent ops of training in bfloat16 */
#define T float
#define HALF1(name, expr) AX_BF16_LOOP1(name##_bf16, expr)
#define HALF2(name, expr) AX_BF16_LOOP2(name##_bf16, expr)
AX_FLOAT_UNARY(HALF1)
AX_FLOAT_BINARY(HALF2)
#undef T
#undef HALF1
#undef HALF2

/* complex numbers */
#define COMPLEX_LOOPS(C, S, F) \
  AX_LOOP2(add_##S, C, C, a + b) \
  AX_LOOP2(sub_##S, C, C, a - b) \
  AX_LOOP2(mul_##S, C, C, AX_CMUL(a, b)) \
  AX_LOOP2(div_##S, C, C, ax_cdiv_##S(a, b)) \
  AX_LOOP2(pow_##S, C, C, ax_cpow_##S(a, b)) \
  AX_LOOP1(neg_##S, C, C, -x) \
  AX_LOOP1(square_##S, C, C, AX_CMUL(x, x)) \
  AX_LOOP1(reciprocal_##S, C, C, ax_cdiv_##S(1, x)) \
  AX_LOOP1(exp_##S, C, C, cexp##F(x)) \
  AX_LOOP1(log_##S, C, C, clog##F(x)) \
  AX_LOOP1(sqrt_##S, C, C, csqrt##F(x)) \
  AX_LOOP1(tanh_##S, C, C, ctanh##F(x)) \
  AX_LOOP1(expm1_##S, C, C, ax_cexpm1_##S(x)) \
  AX_LOOP1(log1p_##S, C, C, ax_clog1p_##S(x)) \
  AX_LOOP1(rsqrt_##S, C, C, ax_crsqrt_##S(x)) \
  AX_LOOP1(sigmoid_##S, C, C, ax_csigmoid_##S(x))
COMPLEX_LOOPS(ax_cpu_c64, c64, f)
COMPLEX_LOOPS(ax_cpu_c128, c128, )
AX_LOOP1(abs_c64, float, ax_cpu_c64, hypotf(__real__ x, __imag__ x))
AX_LOOP1(abs_c128, double, ax_cpu_c128, hypot(__real__ x, __imag__ x))

/* ---- the kernels and the types that an op has */

#define TABLE(name, ...) AX_POINTWISE(name, NULL, __VA_ARGS__)
#define BOOL(name) [AX_BOOL] = name##_bool
#define HALF(name) [AX_BF16] = name##_bf16

TABLE(add, AX_FLOATS(add), AX_COMPLEX(add), HALF(add), AX_INTS(add), BOOL(add))
TABLE(sub, AX_FLOATS(sub), AX_COMPLEX(sub), HALF(sub), AX_INTS(sub))
TABLE(mul, AX_FLOATS(mul), AX_COMPLEX(mul), HALF(mul), AX_INTS(mul), BOOL(mul))
TABLE(div, AX_FLOATS(div), AX_COMPLEX(div), HALF(div))
TABLE(maximum, AX_FLOATS(maximum), HALF(maximum), AX_INTS(maximum), BOOL(maximum))
TABLE(minimum, AX_FLOATS(minimum), HALF(minimum), AX_INTS(minimum), BOOL(minimum))
TABLE(neg, AX_FLOATS(neg), AX_COMPLEX(neg), HALF(neg), AX_INTS(neg))
TABLE(abs, AX_FLOATS(abs), AX_COMPLEX(abs), AX_INTS(abs))
TABLE(sign, AX_FLOATS(sign), HALF(sign), AX_INTS(sign), BOOL(sign))
TABLE(square, AX_FLOATS(square), AX_COMPLEX(square), HALF(square), AX_INTS(square))
TABLE(relu, AX_FLOATS(relu), HALF(relu), AX_INTS(relu))
TABLE(floor, AX_FLOATS(floor), AX_INTS(floor))
TABLE(ceil, AX_FLOATS(ceil), AX_INTS(ceil))
TABLE(round, AX_FLOATS(round), AX_INTS(round))
TABLE(reciprocal, AX_FLOATS(reciprocal), AX_COMPLEX(reciprocal))
TABLE(exp, AX_FLOATS(exp), AX_COMPLEX(exp))
TABLE(expm1, AX_FLOATS(expm1), AX_COMPLEX(expm1))
TABLE(log, AX_FLOATS(log), AX_COMPLEX(log))
TABLE(log1p, AX_FLOATS(log1p), AX_COMPLEX(log1p))
TABLE(sqrt, AX_FLOATS(sqrt), AX_COMPLEX(sqrt))
TABLE(rsqrt, AX_FLOATS(rsqrt), AX_COMPLEX(rsqrt))
TABLE(tanh, AX_FLOATS(tanh), AX_COMPLEX(tanh))
TABLE(sigmoid, AX_FLOATS(sigmoid), AX_COMPLEX(sigmoid))
TABLE(erf, AX_FLOATS(erf))
TABLE(_tanh_backward, AX_FLOATS(_tanh_backward), HALF(_tanh_backward))
TABLE(_sigmoid_backward, AX_FLOATS(_sigmoid_backward), HALF(_sigmoid_backward))
TABLE(_relu_backward, AX_FLOATS(_relu_backward), HALF(_relu_backward))

/* ---- clamp: the limits are infinite where not given */

static int64_t to_limit(double v) { return v >= 0x1p63 ? INT64_MAX : v >= -0x1p63 ? (int64_t)v : INT64_MIN; }

/* A NaN in x stays NaN; a NaN as a limit gives NaN everywhere, as in PyTorch; where min > max the
 * result is max. */
#define CLAMP(suffix, T, L, limit) \
  static void clamp_##suffix(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
    const ax_attrs *a = ctx; \
    const L lo = limit(a->clamp.min), hi = limit(a->clamp.max); \
    /* in pieces, so that the limits stay in registers and the loop stays simple to vectorise */ \
    for (int64_t done = 0; done < n; done += 1024) { \
      const int64_t count = n - done < 1024 ? n - done : 1024; \
      const char *in = data[1] + done * stride[1]; \
      char *out = data[0] + done * stride[0]; \
      if (stride[0] == sizeof(T) && stride[1] == sizeof(T)) { \
        const T *p = (const T *)in; \
        T *o = (T *)out; \
        AX_SIMD \
        for (int64_t i = 0; i < count; i++) { \
          const L x = p[i], y = x < lo ? lo : x; \
          o[i] = (T)(y > hi ? hi : y); \
        } \
      } else \
        for (int64_t i = 0; i < count; i++) { \
          const L x = *(const T *)(in + i * stride[1]), y = x < lo ? lo : x; \
          *(T *)(out + i * stride[0]) = (T)(y > hi ? hi : y); \
        } \
    } \
  }
CLAMP(f32, float, float, (float))
CLAMP(f64, double, double, )
CLAMP(i64, int64_t, int64_t, to_limit)
CLAMP(i32, int32_t, int64_t, to_limit)
CLAMP(u8, uint8_t, int64_t, to_limit)

ax_status ax_cpu_clamp(const ax_call *call)
{
  static const ax_loop loops[AX_DTYPE_COUNT] = { AX_FLOATS(clamp), AX_INTS(clamp) };
  return ax_cpu_pointwise(call, loops, 1, call->a);
}

/* ---- pow: frequent exponents are products and roots, in loops of their own */

#define POWER_F32(name, exponent, value) AX_LOOP1(pow_##name##_f32, float, float, value)
#define POWER_F64(name, exponent, value) AX_LOOP1(pow_##name##_f64, double, double, value)
AX_POWERS(POWER_F32, float, x, sqrtf(x + 0))
AX_POWERS(POWER_F64, double, x, sqrt(x + 0))
AX_LOOP2(pow_any_f32, float, float, ax_pow_f32(a, b))
AX_LOOP2(pow_any_f64, double, double, ax_pow_f64(a, b))

#define CHOSEN_F32(name, exponent, value) b == (exponent) ? pow_##name##_f32:
#define CHOSEN_F64(name, exponent, value) b == (exponent) ? pow_##name##_f64:
#define POW(S, T, CHOOSE) \
  static void pow_##S(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
    const T b = *(const T *)data[2]; \
    const ax_loop loop = stride[2] ? pow_any_##S : AX_POWERS(CHOOSE, T, x, x) pow_any_##S; \
    loop(data, stride, n, ctx); \
  }
POW(f32, float, CHOSEN_F32)
POW(f64, double, CHOSEN_F64)

ax_status ax_cpu_pow(const ax_call *call)
{
  static const ax_loop loops[AX_DTYPE_COUNT] = { AX_FLOATS(pow), AX_INTS(pow), AX_COMPLEX(pow) };
  const ax_operand *exponent = &call->iter->op[2];

  /* a negative number as exponent is refused, as in PyTorch; a tensor of exponents truncates */
  if (exponent->dtype >= AX_I64 && exponent->dtype <= AX_BOOL && call->n_in > 1 && !call->in[1]) {
    const int64_t b =
        exponent->dtype == AX_I64 ? *(const int64_t *)exponent->data : *(const int32_t *)exponent->data;
    if (exponent->dtype != AX_U8 && exponent->dtype != AX_BOOL && b < 0)
      return ax_fail(AX_ERANGE,
                     "pow: integers to the power %lld, a negative number: convert the tensor to float first",
                     (long long)b);
  }
  return ax_cpu_pointwise(call, loops, 1, NULL);
}

/* The functions of functions.h, ternary arithmetic and bit operations, in the loops of simd.h. */
#include "complex.h"

#include "functions.h"

AX_MORE_FUNCTIONS(AX_MATH1)
AX_MORE_FLOAT_BINARY(AX_MATH2)

/* Integers are whole numbers already. */
#define INTEGERS(X) X(i64, int64_t) X(i32, int32_t) X(u8, uint8_t)
#define WHOLE(S, T) AX_LOOP1(trunc_##S, T, T, x)
INTEGERS(WHOLE)

#define TABLE(name, ...) AX_POINTWISE(name, call->a->numbers, __VA_ARGS__)

#define COMPLEX_LOOPS(C, S, R, F) \
  AX_LOOP1(exp2_##S, C, C, cexp##F(x *(R)0.69314718055994530942)) \
  AX_LOOP1(log2_##S, C, C, clog##F(x) * (R)1.44269504088896340736) \
  AX_LOOP1(log10_##S, C, C, clog##F(x) * (R)0.43429448190325182765) \
  AX_LOOP1(sinh_##S, C, C, csinh##F(x)) \
  AX_LOOP1(cosh_##S, C, C, ccosh##F(x)) \
  AX_LOOP1(asinh_##S, C, C, casinh##F(x)) \
  AX_LOOP1(acosh_##S, C, C, cacosh##F(x)) \
  AX_LOOP1(atanh_##S, C, C, catanh##F(x)) \
  AX_LOOP1(asin_##S, C, C, casin##F(x)) \
  AX_LOOP1(acos_##S, C, C, cacos##F(x)) \
  AX_LOOP1(atan_##S, C, C, catan##F(x)) \
  AX_LOOP3_WITH(addcmul_##S, C, C, C, AX_NUMBERS(R), m + p0 * AX_CMUL(a, b)) \
  AX_LOOP3_WITH(addcdiv_##S, C, C, C, AX_NUMBERS(R), m + p0 * ax_cdiv_##S(a, b)) \
  AX_LOOP3(lerp_##S, C, C, C, ax_clerp_##S(m, a, b))
COMPLEX_LOOPS(ax_cpu_c64, c64, float, f)
COMPLEX_LOOPS(ax_cpu_c128, c128, double, )

TABLE(exp2, AX_FLOATS(exp2), AX_COMPLEX(exp2))
TABLE(log2, AX_FLOATS(log2), AX_COMPLEX(log2))
TABLE(log10, AX_FLOATS(log10), AX_COMPLEX(log10))
TABLE(sinh, AX_FLOATS(sinh), AX_COMPLEX(sinh))
TABLE(cosh, AX_FLOATS(cosh), AX_COMPLEX(cosh))
TABLE(asinh, AX_FLOATS(asinh), AX_COMPLEX(asinh))
TABLE(acosh, AX_FLOATS(acosh), AX_COMPLEX(acosh))
TABLE(atanh, AX_FLOATS(atanh), AX_COMPLEX(atanh))
TABLE(asin, AX_FLOATS(asin), AX_COMPLEX(asin))
TABLE(acos, AX_FLOATS(acos), AX_COMPLEX(acos))
TABLE(atan, AX_FLOATS(atan), AX_COMPLEX(atan))
TABLE(erfc, AX_FLOATS(erfc))
TABLE(trunc, AX_FLOATS(trunc), AX_INTS(trunc))
TABLE(frac, AX_FLOATS(frac))
TABLE(atan2, AX_FLOATS(atan2))
TABLE(logaddexp, AX_FLOATS(logaddexp))
TABLE(xlogy, AX_FLOATS(xlogy))
TABLE(hypot, AX_FLOATS(hypot))

/* ---- three operands: m, a, b */

AX_LOOP3_WITH(addcmul_f32, float, float, float, AX_NUMBERS(float), m + p0 * (a * b))
AX_LOOP3_WITH(addcmul_f64, double, double, double, AX_NUMBERS(double), m + p0 * (a * b))
AX_LOOP3_WITH(addcmul_i64, int64_t, int64_t, int64_t, AX_NUMBERS(int64_t),
              (uint64_t)m + (uint64_t)p0 * (uint64_t)a * (uint64_t)b)
AX_LOOP3_WITH(addcmul_i32, int32_t, int32_t, int32_t, AX_NUMBERS(int64_t),
              (uint32_t)m + (uint32_t)p0 * (uint32_t)a * (uint32_t)b)
AX_LOOP3_WITH(addcmul_u8, uint8_t, uint8_t, uint8_t, AX_NUMBERS(int64_t),
              (uint32_t)m + (uint32_t)p0 * (uint32_t)a * (uint32_t)b)
AX_LOOP3_WITH(addcdiv_f32, float, float, float, AX_NUMBERS(float), m + p0 * (a / b))
AX_LOOP3_WITH(addcdiv_f64, double, double, double, AX_NUMBERS(double), m + p0 * (a / b))
TABLE(addcmul, AX_FLOATS(addcmul), AX_COMPLEX(addcmul), AX_INTS(addcmul))
TABLE(addcdiv, AX_FLOATS(addcdiv), AX_COMPLEX(addcdiv))

/* Computed from the nearer end, so that weight 1 gives `end` exactly. */
AX_LOOP3(lerp_f32, float, float, float, b < 0.5f ? m + b * (a - m) : a - (a - m) * (1.0f - b))
AX_LOOP3(lerp_f64, double, double, double, b < 0.5 ? m + b * (a - m) : a - (a - m) * (1.0 - b))
TABLE(lerp, AX_FLOATS(lerp), AX_COMPLEX(lerp))

AX_LOOP1_WITH(nan_to_num_f32, float, float, AX_NUMBERS(float),
              x != x           ? p0
              : x == INFINITY  ? p1
              : x == -INFINITY ? p2
                               : x)
AX_LOOP1_WITH(nan_to_num_f64, double, double, AX_NUMBERS(double),
              x != x                   ? p0
              : x == (double)INFINITY  ? p1
              : x == -(double)INFINITY ? p2
                                       : x)
AX_LOOP1(same_i64, int64_t, int64_t, x)
AX_LOOP1(same_i32, int32_t, int32_t, x)
AX_LOOP1(same_u8, uint8_t, uint8_t, x)
TABLE(nan_to_num, AX_FLOATS(nan_to_num), AX_INTS(same), [AX_BOOL] = same_u8)

/* ---- bits */

#define U uint64_t
#define BITS(name, expr) AX_LOOP2(name##_i64, int64_t, int64_t, expr)
AX_INT_BITS(BITS)
#undef BITS
#undef U
#define U uint32_t
#define BITS(name, expr) AX_LOOP2(name##_i32, int32_t, int32_t, expr)
AX_INT_BITS(BITS)
#undef BITS
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtype-limits" /* b >= 0 of an unsigned b */
#define BITS(name, expr) AX_LOOP2(name##_u8, uint8_t, uint8_t, expr)
AX_INT_BITS(BITS)
#undef BITS
#undef U
#pragma GCC diagnostic pop
AX_LOOP1(bitwise_not_i64, int64_t, int64_t, ~x)
AX_LOOP1(bitwise_not_i32, int32_t, int32_t, ~x)
AX_LOOP1(bitwise_not_u8, uint8_t, uint8_t, ~x)
AX_LOOP1(bitwise_not_bool, uint8_t, uint8_t, x == 0)
TABLE(bitwise_and, AX_INTS(bitwise_and), [AX_BOOL] = bitwise_and_u8)
TABLE(bitwise_or, AX_INTS(bitwise_or), [AX_BOOL] = bitwise_or_u8)
TABLE(bitwise_xor, AX_INTS(bitwise_xor), [AX_BOOL] = bitwise_xor_u8)
TABLE(bitwise_not, AX_INTS(bitwise_not), [AX_BOOL] = bitwise_not_bool)
TABLE(bitwise_left_shift, AX_INTS(bitwise_left_shift))
TABLE(bitwise_right_shift, AX_INTS(bitwise_right_shift))

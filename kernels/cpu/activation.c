/* Activations and their derivatives: the expressions of activation.h in the loops of simd.h.
 * Exponentials dominate for operands in the cache; large operands are bound by memory. */
#include "simd.h"

#include "activation.h"

#define T float
#define OF(f) ax_##f##_f32
#define ONE(name, expr) AX_LOOP1_WITH(name##_f32, T, T, AX_NUMBERS(T), expr)
#define TWO(name, expr) AX_LOOP2_WITH(name##_f32, T, T, AX_NUMBERS(T), expr)
AX_LIMITS(ONE)
AX_ACTIVATIONS(ONE, OF)
AX_ACTIVATION_SLOPES(TWO, OF)
#undef T
#undef OF
#undef ONE
#undef TWO

#define T double
#define OF(f) ax_##f##_f64
#define ONE(name, expr) AX_LOOP1_WITH(name##_f64, T, T, AX_NUMBERS(T), expr)
#define TWO(name, expr) AX_LOOP2_WITH(name##_f64, T, T, AX_NUMBERS(T), expr)
AX_LIMITS(ONE)
AX_ACTIVATIONS(ONE, OF)
AX_ACTIVATION_SLOPES(TWO, OF)

#define KERNEL(name, expr) AX_POINTWISE(name, call->a->numbers, AX_FLOATS(name))
AX_ACTIVATIONS(KERNEL, OF)
AX_ACTIVATION_SLOPES(KERNEL, OF)
#undef T

/* ---- limits, of integers as well */

#define T int64_t
#define WHOLE_I64(name, expr) AX_LOOP1_WITH(name##_i64, T, T, AX_NUMBERS(T), expr)
AX_LIMITS(WHOLE_I64)
#undef T
#define T int32_t
#define WHOLE_I32(name, expr) AX_LOOP1_WITH(name##_i32, T, T, AX_NUMBERS(T), expr)
AX_LIMITS(WHOLE_I32)
#undef T
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtype-limits" /* x < 0 of an unsigned x */
#define T uint8_t
#define WHOLE_U8(name, expr) AX_LOOP1_WITH(name##_u8, T, T, AX_NUMBERS(T), expr)
AX_LIMITS(WHOLE_U8)
#undef T
#pragma GCC diagnostic pop

#define LIMITS(name, expr) \
  ax_status ax_cpu_##name(const ax_call *call) \
  { \
    static const ax_loop loops[AX_DTYPE_COUNT] = { [AX_F32] = name##_f32, \
                                                   [AX_F64] = name##_f64, \
                                                   [AX_I64] = name##_i64, \
                                                   [AX_I32] = name##_i32, \
                                                   [AX_U8] = name##_u8 }; \
    return ax_cpu_pointwise(call, loops, 1, call->a->numbers); \
  }
AX_LIMITS(LIMITS)

/* ---- gelu: the attribute selects the form */

AX_LOOP1(gelu_none_f32, float, float, ax_gelu_f32(x))
AX_LOOP1(gelu_none_f64, double, double, ax_gelu_f64(x))
AX_LOOP1(gelu_tanh_f64, double, double, ax_gelu_tanh_f64(x))
AX_LOOP2(back_none_f32, float, float, ax_gelu_slope_f32(b) * a)
AX_LOOP2(back_none_f64, double, double, ax_gelu_slope_f64(b) * a)
AX_LOOP2(back_tanh_f64, double, double, ax_gelu_tanh_slope_f64(b) * a)
AX_BF16_LOOP1(gelu_none_bf16, ax_gelu_f32(x))
AX_BF16_LOOP2(back_none_bf16, ax_gelu_slope_f32(b) * a)

/* ax_gelu_tanh_f32 of activation.h and its derivative, for vectors. */
static inline ax_vec_f32 gelu_tanh(ax_vec_f32 x)
{
  const ax_vec_f32 zero = { 0 }, y = x * AX_VFMA_f32(x * x, zero - 0.102943240f, zero - 2.30220819f);
  ax_vec_f32 d = 1.0f + ax_vec_exp2(ax_vec_min(zero + AX_VEC_EXP2_TOP, y));
  if (AX_VEC_EXP2_TOP < 128.0f) d += (ax_vec_f32)((ax_vec_bits)(y > 126.0f) & (ax_vec_bits)(zero + INFINITY));
  return x / d;
}
static inline ax_vec_f32 gelu_tanh_slope(ax_vec_f32 x)
{
  const ax_vec_f32 zero = { 0 }, c = ax_vec_min(zero + 9.9f, ax_vec_max(zero - 9.9f, x)); /* no inf * 0 */
  const ax_vec_f32 e = ax_vec_exp2(c * AX_VFMA_f32(c * c, zero - 0.102943240f, zero - 2.30220819f)),
                   s = 1.0f / (1.0f + e);
  return AX_VFMA_f32(c * AX_VFMA_f32(c * c, zero + 0.214064449f, zero + 1.59576912f), s * e, zero + 1.0f) * s;
}
AX_VEC_LOOP1(gelu_tanh_f32, gelu_tanh(x))
AX_VEC_LOOP2(back_tanh_f32, gelu_tanh_slope(y) * x)
AX_VEC_BF16_LOOP1(gelu_tanh_bf16, gelu_tanh(x))
AX_VEC_BF16_LOOP2(back_tanh_bf16, gelu_tanh_slope(y) * x)

ax_status ax_cpu_gelu(const ax_call *call)
{
  static const ax_loop loops[2][AX_DTYPE_COUNT] = {
    { [AX_F32] = gelu_none_f32, [AX_F64] = gelu_none_f64, [AX_BF16] = gelu_none_bf16 },
    { [AX_F32] = gelu_tanh_f32, [AX_F64] = gelu_tanh_f64, [AX_BF16] = gelu_tanh_bf16 },
  };
  return ax_cpu_pointwise(call, loops[call->a->gelu.approximate], 1, NULL);
}

ax_status ax_cpu__gelu_backward(const ax_call *call)
{
  static const ax_loop loops[2][AX_DTYPE_COUNT] = {
    { [AX_F32] = back_none_f32, [AX_F64] = back_none_f64, [AX_BF16] = back_none_bf16 },
    { [AX_F32] = back_tanh_f32, [AX_F64] = back_tanh_f64, [AX_BF16] = back_tanh_bf16 },
  };
  return ax_cpu_pointwise(call, loops[call->a->gelu_backward.approximate], 1, NULL);
}

/* Activations and their derivatives, one scalar at a time, for the CPU and CUDA kernels.  p0 .. p3
 * are the row's numbers in order.  In rows of derivatives, a is the gradient of the result and b is
 * the input. */
#ifndef AX_ACTIVATION_H
#define AX_ACTIVATION_H

#include "functions.h"

/* x between -limit and limit; a NaN stays one. */
AX_FN float ax_within(float x, float limit)
{
#ifdef __CUDA_ARCH__
  float y;
  asm("{ .reg .f32 t; max.NaN.f32 t, %1, %2; min.NaN.f32 %0, t, %3; }"
      : "=f"(y)
      : "f"(x), "f"(-limit), "f"(limit));
  return y;
#else
  return x > limit ? limit : x < -limit ? -limit : x;
#endif
}

/* x / 6, without the branch of a GPU's division. */
AX_FN float ax_sixth_f32(float x)
{
#ifdef __CUDA_ARCH__
  const float q = x * 0.166666672f, y = AX_FMAF(AX_FMAF(-6.0f, q, x), 0.166666672f, q);
  return fabsf(x) < INFINITY ? y : q;
#else
  return x / 6;
#endif
}
AX_FN double ax_sixth_f64(double x) { return x / 6; }

/* 2^y, and infinity above 126: on a GPU above 128. */
AX_FN float ax_exp2_of(float y)
{
  const float e = ax_exp2_part(y);
#ifdef __CUDA_ARCH__
  return e;
#else
  return y > 126.0f ? INFINITY : e;
#endif
}

/* ---- gelu(x) = x Phi(x) with the normal distribution function Phi (Hendrycks and Gimpel 2016) */

/* Phi(-a) for a = x >= 0 as 2^Q(a), where the polynomial Q minimises the error of a Phi(-a); 0
 * where the product is negligible (a > 12 or so). */
AX_FN float ax_normal_tail_f32(float x)
{
  const float a = x < 64.0f ? x : 64.0f; /* powers of a large number are infinite */
  const float s = a * a, w = s * s;
  const float high =
      AX_FMAF(AX_FMAF(3.06610531e-5f, a, -1.45486628e-4f), s, AX_FMAF(-2.33149737e-4f, a, 7.18584633e-3f));
  const float low =
      AX_FMAF(AX_FMAF(-5.25782409e-2f, a, -4.59182036e-1f), s, AX_FMAF(-1.15110829f, a, -9.99999934e-1f));
  const float q = AX_FMAF(AX_FMAF(-2.09613571e-6f, w, high), w, low);
  return ax_exp2_part(q);
}
AX_FN float ax_gelu_f32(float x)
{
  const float h = ax_normal_tail_f32(fabsf(x));
  return x * (x > 0.0f ? 1.0f - h : h);
}
AX_FN double ax_gelu_f64(double x) { return 0.5 * x * (1.0 + ax_erf_f64(x * 0.70710678118654752440)); }

/* gelu'(x) = Phi(x) + x phi(x) with the normal density phi */
AX_FN float ax_gelu_slope_f32(float x)
{
  const float h = ax_normal_tail_f32(fabsf(x)), density = 0.398942280f * ax_exp2_part(x * x * -0.721347520f);
  return AX_FMAF(x, density, x > 0.0f ? 1.0f - h : h);
}
AX_FN double ax_gelu_slope_f64(double x)
{
  return 0.5 * (1.0 + ax_erf_f64(x * 0.70710678118654752440)) +
         x * ax_exp_f64(-0.5 * x * x) * 0.39894228040143267794;
}

/* gelu by tanh: x (1 + tanh u) / 2 = x / (1 + exp(-2u)) with u = sqrt(2 / pi) (x + 0.044715 x^3) */
AX_FN float ax_gelu_tanh_part(float x) /* exp(-2u) */
{
  const float y = x * AX_FMAF(x * x, -0.102943240f, -2.30220819f);
  return ax_exp2_of(y);
}
AX_FN float ax_gelu_tanh_f32(float x) { return ax_ratio(x, 1.0f + ax_gelu_tanh_part(x)); }
AX_FN double ax_gelu_tanh_f64(double x)
{
  return 0.5 * x * (1.0 + ax_tanh_f64(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

/* its derivative: s + x s (1 - s) 2u' with s = 1 / (1 + exp(-2u)) */
AX_FN float ax_gelu_tanh_slope_f32(float x)
{
  const float c = ax_within(x, 9.9f); /* no inf * 0 */
  const float e = ax_gelu_tanh_part(c), s = ax_ratio(1.0f, 1.0f + e);
  return AX_FMAF(c * AX_FMAF(c * c, 0.214064449f, 1.59576912f), s * e, 1.0f) * s;
}
AX_FN double ax_gelu_tanh_slope_f64(double x)
{
  const double t = ax_tanh_f64(0.79788456080286535588 * (x + 0.044715 * x * x * x)),
               du = 0.79788456080286535588 * (1.0 + 0.134145 * x * x);
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * du;
}

/* ---- functions of the logistic sigmoid */

AX_FN float ax_logistic_f32(float x) /* faster than ax_sigmoid_f32, with a relative error of 1e-7 |x| */
{
  return ax_ratio(1.0f, 1.0f + ax_exp2_of(x * -AX_LOG2E));
}
AX_FN double ax_logistic_f64(double x) { return 1.0 / (1.0 + ax_exp_f64(-x)); }
AX_FN float ax_silu_f32(float x) { return x * ax_logistic_f32(x); }
AX_FN double ax_silu_f64(double x) { return x / (1.0 + ax_exp_f64(-x)); }
AX_FN float ax_silu_slope_f32(float x)
{
  const float s = ax_logistic_f32(x), c = ax_within(x, 100.0f);
  return s * AX_FMAF(c, 1.0f - s, 1.0f);
}
AX_FN double ax_silu_slope_f64(double x)
{
  const double s = ax_logistic_f64(x), c = x < -800.0 ? -800.0 : x > 800.0 ? 800.0 : x;
  return s * (1.0 + c * (1.0 - s));
}

/* log(1 + exp(x)) without overflow */
AX_FN float ax_softplus_f32(float x)
{
  const float y = ax_log1p_f32(ax_exp_f32(-fabsf(x)));
  return x != x ? x : (x > 0.0f ? x : 0.0f) + y;
}
AX_FN double ax_softplus_f64(double x)
{
  return x != x ? x : (x > 0 ? x : 0) + ax_log1p_f64(ax_exp_f64(-fabs(x)));
}
AX_FN float ax_log_sigmoid_f32(float x)
{
  const float y = ax_log1p_f32(ax_exp_f32(-fabsf(x)));
  return x != x ? x : (x < 0.0f ? x : 0.0f) - y;
}
AX_FN double ax_log_sigmoid_f64(double x)
{
  return x != x ? x : (x < 0 ? x : 0) - ax_log1p_f64(ax_exp_f64(-fabs(x)));
}

/* mish(x) = x tanh(softplus(x)) (Misra 2019); tanh(softplus(x)) = e (e + 2) / (e (e + 2) + 2) with
 * e = exp(x) */
AX_FN float ax_mish_gate_f32(float x)
{
  const float e = ax_exp_f32(x > 20.0f ? 20.0f : x), n = e * (e + 2.0f);
  return ax_ratio_exact(n, n + 2.0f);
}
AX_FN double ax_mish_gate_f64(double x)
{
  const double e = ax_exp_f64(x > 40.0 ? 40.0 : x), n = e * (e + 2.0);
  return n / (n + 2.0);
}
AX_FN float ax_mish_f32(float x) { return x * ax_mish_gate_f32(x); }
AX_FN double ax_mish_f64(double x) { return x * ax_mish_gate_f64(x); }
AX_FN float ax_mish_slope_f32(float x)
{
  const float w = ax_mish_gate_f32(x), c = ax_within(x, 100.0f);
  return AX_FMAF(c * ax_logistic_f32(x), AX_FMAF(-w, w, 1.0f), w);
}
AX_FN double ax_mish_slope_f64(double x)
{
  const double w = ax_mish_gate_f64(x), c = x < -800.0 ? -800.0 : x > 800.0 ? 800.0 : x;
  return w + c * ax_logistic_f64(x) * (1.0 - w * w);
}

/* ---- rows: X(name, expression); FN(f) is the version of f for the element type */

/* clang-format off */
#define AX_ACTIVATIONS(X, FN) \
  X(leaky_relu, x > 0 ? x : x * p0) \
  X(elu, x > 0 ? x : p0 * FN(expm1)(x)) \
  X(selu, x > 0 ? (T)1.0507009873554804934 * x : (T)1.7580993408473768599 * FN(expm1)(x)) \
  X(celu, x > 0 ? x : p0 * FN(expm1)(x / p0)) \
  X(silu, FN(silu)(x)) \
  X(mish, FN(mish)(x)) \
  X(softplus, x * p0 > p1 ? x : FN(softplus)(x * p0) / p0) \
  X(logsigmoid, FN(log_sigmoid)(x)) \
  X(hardsigmoid, x <= -3 ? (T)0 : x >= 3 ? (T)1 : FN(sixth)(x) + (T)0.5) \
  X(hardswish, x <= -3 ? x * (T)0 : x >= 3 ? x : FN(sixth)(x * (x + 3))) \
  X(softshrink, x > p0 ? x - p0 : x < -p0 ? x + p0 : x * 0) \
  X(hardshrink, x >= -p0 && x <= p0 ? (T)0 : x)
/* those that integers have, too */
#define AX_LIMITS(X) \
  X(hardtanh, x < p0 ? p0 : x > p1 ? p1 : x) \
  X(relu6, x < 0 ? (T)0 : x > 6 ? (T)6 : x) \
  X(threshold, x <= p0 ? p1 : x)
#define AX_ACTIVATION_SLOPES(X, FN) \
  X(_leaky_relu_backward, b > 0 ? a : a * p0) \
  X(_elu_backward, b > 0 ? a * p1 : a * (p0 * p1 * p2) * FN(exp)((b > 0 ? 0 : b) * p2)) \
  X(_silu_backward, a * FN(silu_slope)(b)) \
  X(_mish_backward, a * FN(mish_slope)(b)) \
  X(_softplus_backward, b * p0 > p1 ? a : a * FN(sigmoid)(b * p0)) \
  X(_logsigmoid_backward, a * FN(sigmoid)(-b)) \
  X(_hardtanh_backward, b <= p0 || b >= p1 ? (T)0 : a) \
  X(_hardsigmoid_backward, b > -3 && b < 3 ? FN(sixth)(a) : (T)0) \
  X(_hardswish_backward, b <= -3 ? (T)0 : b < 3 ? a * (FN(sixth)(b + b) + (T)0.5) : a) \
  X(_hardshrink_backward, b >= -p0 && b <= p0 ? (T)0 : a) \
  X(_threshold_backward, b <= p0 ? (T)0 : a)
/* clang-format on */

#endif

/* Rows of complex fixed: the kernels that run in place of the real ones where an operand or the
 * result is complex.  A thread has an element of any layout: 8 or 16 bytes, which neighbours read
 * side by side.  Memory bounds arithmetic; the functions have the accuracy of the real functions
 * that they are put together of. */
#include "common.cuh"

template <class R> struct alignas(2 * sizeof(R)) complex {
  R re, im;
};

#define CX(T) complex<T>
#define FN template <class T> static __device__ __forceinline__
/* functions of many instructions: called */
#ifdef AX_EMULATE
#define CALLED template <class T> static __attribute__((noinline))
#else
#define CALLED template <class T> static __device__ __noinline__
#endif

FN CX(T) plus(CX(T) a, CX(T) b) { return { a.re + b.re, a.im + b.im }; }
FN CX(T) minus(CX(T) a, CX(T) b) { return { a.re - b.re, a.im - b.im }; }
FN CX(T) times(CX(T) a, CX(T) b) { return { a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re }; }
FN T size_of(CX(T) z) { return (T)hypot(z.re, z.im); }

/* a / b without overflow in |b|^2 (Smith's method). */
FN CX(T) over(CX(T) a, CX(T) b)
{
  const T c = b.re, d = b.im;
  if (fabs(c) >= fabs(d)) {
    if (c == 0 && d == 0) return { a.re / (T)fabs(c), a.im / (T)fabs(d) };
    const T r = d / c, s = 1 / (c + d * r);
    return { (a.re + a.im * r) * s, (a.im - a.re * r) * s };
  }
  const T r = c / d, s = 1 / (c * r + d);
  return { (a.re * r + a.im) * s, (a.im * r - a.re) * s };
}

CALLED CX(T) exp_of(CX(T) z)
{
  const T e = (T)exp(z.re);
  if (z.im == 0) return { e, z.im };
  return { e * (T)cos(z.im), e * (T)sin(z.im) };
}
CALLED CX(T) log_of(CX(T) z) { return { (T)log(size_of(z)), (T)atan2(z.im, z.re) }; }

CALLED CX(T) sqrt_of(CX(T) z)
{
  if (z.re == 0 && z.im == 0) return { 0, z.im };
  const T half = (T)sqrt(((T)fabs(z.re) + size_of(z)) / 2), other = z.im / (2 * half);
  if (z.re >= 0) return { half, other };
  return { (T)fabs(other), (T)copysign(half, z.im) };
}

CALLED CX(T) sinh_of(CX(T) z)
{
  return { (T)sinh(z.re) * (T)cos(z.im), z.im == 0 ? z.im : (T)cosh(z.re) * (T)sin(z.im) };
}
CALLED CX(T) cosh_of(CX(T) z)
{
  const T s = (T)sinh(z.re);
  return { (T)cosh(z.re) * (T)cos(z.im), s == 0 || z.im == 0 ? s * z.im : s * (T)sin(z.im) };
}
/* sin z = -i sinh iz, cos z = cosh iz */
FN CX(T) sin_of(CX(T) z)
{
  const CX(T) y = sinh_of(CX(T){ -z.im, z.re });
  return { y.im, -y.re };
}
FN CX(T) cos_of(CX(T) z) { return cosh_of(CX(T){ -z.im, z.re }); }

/* Kahan's form; from 20 on the result is 1 but for a rest that vanishes. */
CALLED CX(T) tanh_of(CX(T) z)
{
  if (fabs(z.re) > 20) {
    const T rest = (T)exp(-2 * fabs(z.re));
    return { (T)copysign((T)1, z.re), 4 * (T)sin(z.im) * (T)cos(z.im) * rest };
  }
  const T t = (T)tan(z.im), beta = 1 + t * t, s = (T)sinh(z.re), rho = (T)sqrt(1 + s * s),
          divisor = 1 + beta * s * s;
  if (isinf(t)) return { rho / s, 1 / t };
  return { beta * rho * s / divisor, t / divisor };
}

/* a ^ b: whole exponents, which are frequent, by products. */
CALLED CX(T) pow_of(CX(T) a, CX(T) b)
{
  const T e = b.re, n = (T)fabs(e);
  if (b.im != 0 || n != (T)floor(n) || n > 64) {
    if (a.re == 0 && a.im == 0)
      return e > 0 ? CX(T){ 0, 0 } : e == 0 && b.im == 0 ? CX(T){ 1, 0 } : CX(T){ (T)NAN, (T)NAN };
    return exp_of(times(b, log_of(a)));
  }
  CX(T) y = { 1, 0 }, square = a;
  for (int left = (int)n; left; left >>= 1) {
    if (left & 1) y = times(y, square);
    square = times(square, square);
  }
  return e < 0 ? over(CX(T){ 1, 0 }, y) : y;
}

/* ---- loops */

/* An operand that is no tensor. */
template <class T> struct given {
  bool number[3];
  CX(T) value[3];
};

template <class F, class O, class T, int N>
static __global__ void each(F f, const __grid_constant__ ax_cuda_nest<N + 1> nest,
                            const __grid_constant__ given<T> fixed)
{
  int64_t at[N + 1];
  for (int64_t i = AX_FIRST; i < nest.numel; i += AX_STEP) {
    CX(T) v[N];
    ax_cuda_nest_at(nest, (uint32_t)i, at);
    for (int k = 0; k < N; k++)
      v[k] = fixed.number[k] ? fixed.value[k] : *(const CX(T) *)(nest.data[k + 1] + at[k + 1]);
    O *const to = (O *)(nest.data[0] + at[0]);
    if constexpr (N == 1) *to = f(v[0]);
    else *to = f(v[0], v[1]);
  }
}

/* The real part of a number; the dispatcher has stored it in the type computed in. */
static double number_of(const ax_operand *o)
{
  return o->dtype == AX_C64    ? *(const float *)o->data
         : o->dtype == AX_C128 ? *(const double *)o->data
                               : ax_load_double(o->dtype, o->data, 0);
}

template <class O, class T, int N, class F> static ax_status launch(const ax_call *call, F f)
{
  const ax_iter *it = call->iter;
  const ax_device d = call->out[0]->device;
  given<T> fixed = {};

  if ((size_t)ax_dtype_size(it->op[0].dtype) != sizeof(O)) return ax_cuda_wrong_operand(call, 0, "one type");
  for (int k = 0; k < N; k++) {
    fixed.number[k] = k < call->n_in && !call->in[k];
    if (fixed.number[k]) fixed.value[k].re = (T)number_of(&it->op[k + 1]);
    else if (it->op[k + 1].dtype != (sizeof(T) == 4 ? AX_C64 : AX_C128))
      return ax_cuda_wrong_operand(call, k + 1, "complex fixed of one type");
  }
  return ax_cuda_in_parts(ax_cuda_nest_of<N + 1>(it), [&](const ax_cuda_nest<N + 1> &part) {
    return ax_cuda_launch(ax_ops[call->op].name, d, ax_cuda_blocks(part.numel, 256, d.index), 256,
                          each<F, O, T, N>, f, part, fixed);
  });
}

/* The type of the complex operands: all have been cast to one. */
static bool wide(const ax_call *call)
{
  if (call->out[0]->dtype == AX_C128) return true;
  for (int k = 0; k < call->n_in; k++)
    if (call->in[k] && call->in[k]->dtype == AX_C128) return true;
  return false;
}

/* R(T): the type of the result. */
#define ROW1(name, R, expr) \
  struct name##_z { \
    template <class T> __device__ __forceinline__ auto operator()(CX(T) z) const { return expr; } \
  }; \
  AX_CUDA_KERNEL(complex_##name) \
  { \
    if (call->iter->numel == 0) return AX_OK; \
    return wide(call) ? launch<R(double), double, 1>(call, name##_z()) \
                      : launch<R(float), float, 1>(call, name##_z()); \
  }
#define ROW2(name, R, expr) \
  struct name##_z { \
    template <class T> __device__ __forceinline__ auto operator()(CX(T) a, CX(T) b) const { return expr; } \
  }; \
  AX_CUDA_KERNEL(complex_##name) \
  { \
    if (call->iter->numel == 0) return AX_OK; \
    return wide(call) ? launch<R(double), double, 2>(call, name##_z()) \
                      : launch<R(float), float, 2>(call, name##_z()); \
  }
#define PART(T) T
#define TRUTH(T) uint8_t

ROW2(add, CX, plus(a, b))
ROW2(sub, CX, minus(a, b))
ROW2(mul, CX, times(a, b))
ROW2(div, CX, over(a, b))
ROW2(pow, CX, pow_of(a, b))
ROW2(eq, TRUTH, (uint8_t)(a.re == b.re && a.im == b.im))
ROW2(ne, TRUTH, (uint8_t)(a.re != b.re || a.im != b.im))
ROW1(neg, CX, (CX(T){ -z.re, -z.im }))
ROW1(square, CX, times(z, z))
ROW1(reciprocal, CX, over(CX(T){ 1, 0 }, z))
ROW1(exp, CX, exp_of(z))
ROW1(log, CX, log_of(z))
ROW1(sqrt, CX, sqrt_of(z))
ROW1(sin, CX, sin_of(z))
ROW1(cos, CX, cos_of(z))
ROW1(sinh, CX, sinh_of(z))
ROW1(cosh, CX, cosh_of(z))
ROW1(tanh, CX, tanh_of(z))
ROW1(abs, PART, size_of(z))

/* ---- conj of a contiguous tensor */

template <class T> static __global__ void conj_kernel(CX(T) * y, const CX(T) * x, int64_t n)
{
  for (int64_t i = AX_FIRST; i < n; i += AX_STEP) y[i] = CX(T){ x[i].re, -x[i].im };
}

AX_CUDA_KERNEL(complex__conj)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  const unsigned blocks = ax_cuda_blocks(y->numel, 256, y->device.index);
  if (y->numel == 0) return AX_OK;
  return y->dtype == AX_C128
             ? ax_cuda_launch("conj", y->device, blocks, 256, conj_kernel<double>, (CX(double) *)ax_data(y),
                              (const CX(double) *)ax_data(x), y->numel)
             : ax_cuda_launch("conj", y->device, blocks, 256, conj_kernel<float>, (CX(float) *)ax_data(y),
                              (const CX(float) *)ax_data(x), y->numel);
}

/* ---- copies: casts of anything to complex fixed, and between their types */

struct source {
  int dtype;
  bool number;
  double value;
};

static __device__ __forceinline__ complex<double> number_at(const source &s, const char *p)
{
  if (s.number) return { s.value, 0 };
  switch (s.dtype) {
  case AX_C64: return { (double)((const float *)p)[0], (double)((const float *)p)[1] };
  case AX_C128: return { ((const double *)p)[0], ((const double *)p)[1] };
  case AX_I64: return { (double)*(const int64_t *)p, 0 };
  case AX_I32: return { (double)*(const int32_t *)p, 0 };
  case AX_U8: return { (double)*(const uint8_t *)p, 0 };
  case AX_BOOL: return { *(const uint8_t *)p ? 1.0 : 0.0, 0 };
  default: return { ax_cuda_number_at(s.dtype, p, 0), 0 };
  }
}

template <class T> static __global__ void to_complex(const __grid_constant__ ax_cuda_nest<2> nest, source s)
{
  int64_t at[2];
  for (int64_t i = AX_FIRST; i < nest.numel; i += AX_STEP) {
    ax_cuda_nest_at(nest, (uint32_t)i, at);
    const complex<double> v = number_at(s, nest.data[1] + at[1]);
    *(CX(T) *)(nest.data[0] + at[0]) = CX(T){ (T)v.re, (T)v.im };
  }
}

AX_CUDA_KERNEL(_copy); /* copy.cu */
AX_CUDA_KERNEL(_cast);

AX_CUDA_KERNEL(complex__copy)
{
  const ax_iter *it = call->iter;
  const ax_device d = call->out[0]->device;
  source s = { (int)it->op[1].dtype, !call->in[0], 0 };

  if (it->numel == 0) return AX_OK;
  if (!s.number && it->op[0].dtype == it->op[1].dtype) return ax_cuda__copy(call); /* moves bits */
  if (it->op[0].dtype != AX_C64 && it->op[0].dtype != AX_C128)
    return ax_cuda_wrong_operand(call, 0, "complex results");
  if (s.number) s.value = number_of(&it->op[1]);
  return ax_cuda_in_parts(ax_cuda_nest_of<2>(it), [&](const ax_cuda_nest<2> &part) {
    return ax_cuda_launch("copy", d, ax_cuda_blocks(part.numel, 256, d.index), 256,
                          it->op[0].dtype == AX_C128 ? to_complex<double> : to_complex<float>, part, s);
  });
}

AX_CUDA_KERNEL(complex__cast) { return ax_cuda__cast(call); }

/* ---- where and masked_fill */

template <class T>
static __global__ void choose(const __grid_constant__ ax_cuda_nest<4> nest,
                              const __grid_constant__ given<T> fixed)
{
  int64_t at[4];
  for (int64_t i = AX_FIRST; i < nest.numel; i += AX_STEP) {
    ax_cuda_nest_at(nest, (uint32_t)i, at);
    const int k = *(const uint8_t *)(nest.data[1] + at[1]) ? 0 : 1;
    *(CX(T) *)(nest.data[0] + at[0]) =
        fixed.number[k] ? fixed.value[k] : *(const CX(T) *)(nest.data[2 + k] + at[2 + k]);
  }
}

/* which[0]: what is taken where the mask is set, which[1]: elsewhere; -1: `number`. */
template <class T> static ax_status choose_of(const ax_call *call, const int *which, int mask, double number)
{
  const ax_iter *it = call->iter;
  const ax_device d = call->out[0]->device;
  ax_cuda_nest<4> nest = {};
  given<T> fixed = {};
  const int order[4] = { 0, mask + 1, which[0] + 1, which[1] + 1 };

  nest.ndim = it->ndim;
  nest.numel = it->numel;
  for (int k = 0; k < it->ndim; k++) nest.shape[k] = it->shape[k];
  for (int k = 0; k < 4; k++) {
    const int from = order[k], one = k - 2;
    if (one >= 0 && (from == 0 || !call->in[from - 1])) {
      fixed.number[one] = true;
      fixed.value[one].re = (T)(from ? number_of(&it->op[from]) : number);
      continue;
    }
    nest.data[k] = it->op[from].data;
    for (int s = 0; s < it->ndim; s++) nest.stride[k][s] = it->op[from].stride[s];
  }
  ax_cuda_nest_order(&nest);
  return ax_cuda_in_parts(nest, [&](const ax_cuda_nest<4> &part) {
    return ax_cuda_launch(ax_ops[call->op].name, d, ax_cuda_blocks(part.numel, 256, d.index), 256, choose<T>,
                          part, fixed);
  });
}

AX_CUDA_KERNEL(complex_where)
{
  const int which[2] = { 1, 2 };
  if (call->iter->numel == 0) return AX_OK;
  return call->out[0]->dtype == AX_C128 ? choose_of<double>(call, which, 0, 0)
                                        : choose_of<float>(call, which, 0, 0);
}

AX_CUDA_KERNEL(complex_masked_fill)
{
  const int which[2] = { -1, 0 };
  const double value = call->a->masked_fill.value;
  if (call->iter->numel == 0) return AX_OK;
  return call->out[0]->dtype == AX_C128 ? choose_of<double>(call, which, 1, value)
                                        : choose_of<float>(call, which, 1, value);
}

/* Remainders and whole quotients.  Floats with a moderate quotient, which are all but a few, run in
 * vector code; integers are searched for a zero divisor before anything is written. */
#include "simd.h"

#include "functions.h"

#define PIECE 1024

/* ---- float32: exact in either way (ax_fmod_near_f32) */

static bool any_far(char *const *data, const int64_t *stride, int64_t n)
{
  const int64_t size = sizeof(float);
  const float *a = (const float *)data[1], *b = (const float *)data[2];
  int far = 0;

  if (stride[1] == size && stride[2] == size) {
#pragma omp simd reduction(| : far)
    for (int64_t i = 0; i < n; i++) far |= !ax_fmod_is_near(a[i], b[i]);
  } else if (stride[1] == size && stride[2] == 0) {
    const float y = *b;
#pragma omp simd reduction(| : far)
    for (int64_t i = 0; i < n; i++) far |= !ax_fmod_is_near(a[i], y);
  } else
    for (int64_t i = 0; i < n; i++)
      far |= !ax_fmod_is_near(*(const float *)(data[1] + i * stride[1]),
                              *(const float *)(data[2] + i * stride[2]));
  return far;
}

/* expr: of a, b and r, which is fmod(a, b). */
#define DIVIDE_F32(name, expr) \
  static inline __attribute__((always_inline)) float name##_of(float a, float b, float r) \
  { \
    (void)a; \
    (void)b; \
    return expr; \
  } \
  AX_LOOP2(name##_near, float, float, name##_of(a, b, ax_fmod_near_f32(a, b))) \
  AX_LOOP2(name##_far, float, float, name##_of(a, b, fmodf(a, b))) \
  static void name##_f32(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
    for (int64_t lo = 0; lo < n; lo += PIECE) { \
      const int64_t count = n - lo < PIECE ? n - lo : PIECE; \
      char *const part[3] = { data[0] + lo * stride[0], data[1] + lo * stride[1], \
                              data[2] + lo * stride[2] }; \
      if (any_far(part, stride, count)) name##_far(part, stride, count, ctx); \
      else name##_near(part, stride, count, ctx); \
    } \
  }
DIVIDE_F32(fmod, r)
DIVIDE_F32(remainder, ax_remainder_of(r, b))
DIVIDE_F32(floor_divide, ax_floor_divide_of(a, b, r))

AX_LOOP2(fmod_f64, double, double, fmod(a, b))
AX_LOOP2(remainder_f64, double, double, ax_remainder_f64(a, b))
AX_LOOP2(floor_divide_f64, double, double, ax_floor_divide_f64(a, b))

/* ---- integers */

#define INTEGERS(X) X(i64, int64_t) X(i32, int32_t) X(u8, uint8_t)
#define WHOLE(S, T) \
  AX_LOOP2(fmod_##S, T, T, ax_fmod_int(a, b)) \
  AX_LOOP2(remainder_##S, T, T, ax_remainder_int(a, b)) \
  AX_LOOP2(floor_divide_##S, T, T, ax_floor_divide_int(a, b)) \
  static void zero_##S(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
    int found = 0; \
    for (int64_t i = 0; i < n; i++) found |= *(const T *)(data[0] + i * stride[0]) == 0; \
    if (found) __atomic_store_n(*(int *const *)ctx, 1, __ATOMIC_RELAXED); \
  }
INTEGERS(WHOLE)

static ax_status divide(const ax_call *call, const ax_loop *loops)
{
  static const ax_loop zeros[AX_DTYPE_COUNT] = { AX_INTS(zero) };
  const ax_loop zero = zeros[call->iter->op[1].dtype];

  if (zero) {
    ax_iter divisor = *call->iter;
    int found = 0, *to = &found;
    divisor.n = 1;
    divisor.op[0] = divisor.op[2];
    ax_cpu_nest(&divisor, zero, &to);
    if (found) return ax_fail(AX_ERANGE, "%s: division of an integer by zero", ax_ops[call->op].name);
  }
  return ax_cpu_pointwise(call, loops, 1, NULL);
}

#define KERNEL(name) \
  ax_status ax_cpu_##name(const ax_call *call) \
  { \
    static const ax_loop loops[AX_DTYPE_COUNT] = { AX_FLOATS(name), AX_INTS(name) }; \
    return divide(call, loops); \
  }
KERNEL(fmod)
KERNEL(remainder)
KERNEL(floor_divide)

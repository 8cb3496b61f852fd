/* Macros that write innermost loops: each takes a scalar expression and defines a function of type
 * ax_loop, with a vector loop for contiguous (or repeated) operands and a plain one for any
 * strides. */
#ifndef AX_SIMD_H
#define AX_SIMD_H

#include "cpu.h"
#include "vector.h"

/* Declares the call's first numbers as p0 .. p3 of type T, for loops with parameters. */
#define AX_NUMBERS(T) \
  const T p0 __attribute__((unused)) = (T)((const double *)ctx)[0], \
             p1 __attribute__((unused)) = (T)((const double *)ctx)[1], \
             p2 __attribute__((unused)) = (T)((const double *)ctx)[2], \
             p3 __attribute__((unused)) = (T)((const double *)ctx)[3];

/* TO result = expr of TI x; `begin` may declare what the expression needs of the context `ctx`. */
#define AX_LOOP1(fn, TO, TI, expr) AX_LOOP1_WITH(fn, TO, TI, , expr)
#define AX_LOOP1_WITH(fn, TO, TI, BEGIN, expr) \
  static void fn(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
    BEGIN \
    if (AX_LIKELY(stride[0] == sizeof(TO) && stride[1] == sizeof(TI))) { \
      TO *out = (TO *)data[0]; \
      const TI *in = (const TI *)data[1]; \
      AX_SIMD \
      for (int64_t i = 0; i < n; i++) { \
        const TI x = in[i]; \
        out[i] = (TO)(expr); \
      } \
      return; \
    } \
    for (int64_t i = 0; i < n; i++) { \
      const TI x = *(const TI *)(data[1] + i * stride[1]); \
      *(TO *)(data[0] + i * stride[0]) = (TO)(expr); \
    } \
  }

/* TO result = expr of TI a and TI b. */
#define AX_LOOP2(fn, TO, TI, expr) AX_LOOP2_WITH(fn, TO, TI, , expr)
#define AX_LOOP2_WITH(fn, TO, TI, BEGIN, expr) \
  static void fn(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
    BEGIN \
    const int64_t size = sizeof(TI); \
    if (AX_LIKELY(stride[0] == sizeof(TO))) { \
      TO *out = (TO *)data[0]; \
      const TI *left = (const TI *)data[1], *right = (const TI *)data[2]; \
      if (stride[1] == size && stride[2] == size) { \
        AX_SIMD \
        for (int64_t i = 0; i < n; i++) { \
          const TI a = left[i], b = right[i]; \
          out[i] = (TO)(expr); \
        } \
        return; \
      } \
      if (stride[1] == size && stride[2] == 0) { \
        const TI b = *right; \
        AX_SIMD \
        for (int64_t i = 0; i < n; i++) { \
          const TI a = left[i]; \
          out[i] = (TO)(expr); \
        } \
        return; \
      } \
      if (stride[1] == 0 && stride[2] == size) { \
        const TI a = *left; \
        AX_SIMD \
        for (int64_t i = 0; i < n; i++) { \
          const TI b = right[i]; \
          out[i] = (TO)(expr); \
        } \
        return; \
      } \
    } \
    for (int64_t i = 0; i < n; i++) { \
      const TI a = *(const TI *)(data[1] + i * stride[1]), b = *(const TI *)(data[2] + i * stride[2]); \
      *(TO *)(data[0] + i * stride[0]) = (TO)(expr); \
    } \
  }

/* Likewise for contiguous operands of bfloat16, computed in float: the loops that ax_cpu_pointwise
 * finds at AX_BF16. */
#define AX_BF16_LOOP1(fn, expr) \
  static void fn(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
    uint16_t *out = (uint16_t *)data[0]; \
    const uint16_t *in = (const uint16_t *)data[1]; \
    AX_SIMD \
    for (int64_t i = 0; i < n; i++) { \
      const float x = ax_bf16_to_float(in[i]); \
      out[i] = ax_float_to_bf16(expr); \
    } \
  }
#define AX_BF16_LOOP2(fn, expr) \
  static void fn(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
    uint16_t *out = (uint16_t *)data[0]; \
    const uint16_t *left = (const uint16_t *)data[1], *right = (const uint16_t *)data[2]; \
    AX_SIMD \
    for (int64_t i = 0; i < n; i++) { \
      const float a = ax_bf16_to_float(left[i]), b = ax_bf16_to_float(right[i]); \
      out[i] = ax_float_to_bf16(expr); \
    } \
  }

/* float result = expr of vectors x, or a and b, for expressions that the compiler vectorises badly.
 * Elements that do not fill a vector, or are not adjacent, are put into one too, so that an element
 * gets the same bits in every position.  LOAD and STORE: of a vector of adjacent elements. */
enum { AX_VEC_LANES = AX_BYTES / 4 };
#define AX_VEC_GATHER(v, GET, T, p, step, n) \
  ax_vec_f32 v; \
  { \
    float lane[AX_VEC_LANES] = { 0 }; \
    for (int64_t k = 0; k < (n); k++) lane[k] = GET(*(const T *)((p) + k * (step))); \
    v = *(const ax_vec_f32 *)lane; \
  }
#define AX_VEC_LOOP(fn, T, GET, PUT, LOAD, STORE, expr, two_inputs) \
  static void fn(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
    const bool two = two_inputs, side_by_side = stride[0] == sizeof(T) && stride[1] == sizeof(T) && \
                                                (!two || stride[2] == sizeof(T)); \
    int64_t i = 0; \
    for (; side_by_side && i + AX_VEC_LANES <= n; i += AX_VEC_LANES) { \
      const ax_vec_f32 x = LOAD(data[1] + i * (int64_t)sizeof(T)), \
                       y = two ? LOAD(data[2] + i * (int64_t)sizeof(T)) : x; \
      (void)y; \
      STORE(data[0] + i * (int64_t)sizeof(T), expr); \
    } \
    for (; i < n; i += AX_VEC_LANES) { \
      const int64_t left = n - i < AX_VEC_LANES ? n - i : AX_VEC_LANES; \
      AX_VEC_GATHER(x, GET, T, data[1] + i * stride[1], stride[1], left) \
      AX_VEC_GATHER(y, GET, T, data[two ? 2 : 1] + i * stride[two ? 2 : 1], stride[two ? 2 : 1], left) \
      (void)y; \
      const ax_vec_f32 v = expr; \
      for (int64_t k = 0; k < left; k++) *(T *)(data[0] + (i + k) * stride[0]) = PUT(v[k]); \
    } \
  }
#define AX_VEC_LOAD(p) (*(const ax_vec_f32 *)(p))
#define AX_VEC_STORE(p, v) (*(ax_vec_f32 *)(p) = (v))
#define AX_VEC_AS_IS(v) (v)
/* expr of x; of x and y */
#define AX_VEC_LOOP1(fn, expr) \
  AX_VEC_LOOP(fn, float, AX_VEC_AS_IS, AX_VEC_AS_IS, AX_VEC_LOAD, AX_VEC_STORE, expr, false)
#define AX_VEC_LOOP2(fn, expr) \
  AX_VEC_LOOP(fn, float, AX_VEC_AS_IS, AX_VEC_AS_IS, AX_VEC_LOAD, AX_VEC_STORE, expr, true)
#define AX_VEC_BF16_LOOP1(fn, expr) \
  AX_VEC_LOOP(fn, uint16_t, ax_bf16_to_float, ax_float_to_bf16, ax_vec_from_bf16, ax_vec_to_bf16, expr, false)
#define AX_VEC_BF16_LOOP2(fn, expr) \
  AX_VEC_LOOP(fn, uint16_t, ax_bf16_to_float, ax_float_to_bf16, ax_vec_from_bf16, ax_vec_to_bf16, expr, true)

/* TO result = expr of TM m (a mask or choice), TI a and TI b. */
#define AX_LOOP3(fn, TO, TM, TI, expr) AX_LOOP3_WITH(fn, TO, TM, TI, , expr)
#define AX_LOOP3_WITH(fn, TO, TM, TI, BEGIN, expr) \
  static void fn(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
    BEGIN \
    const int64_t size = sizeof(TI); \
    if (AX_LIKELY(stride[0] == sizeof(TO) && stride[1] == sizeof(TM) && \
                  (stride[2] == size || stride[2] == 0) && (stride[3] == size || stride[3] == 0))) { \
      TO *out = (TO *)data[0]; \
      const TM *mask = (const TM *)data[1]; \
      const TI *left = (const TI *)data[2], *right = (const TI *)data[3]; \
      if (stride[2] && stride[3]) { \
        AX_SIMD \
        for (int64_t i = 0; i < n; i++) { \
          const TM m = mask[i]; \
          const TI a = left[i], b = right[i]; \
          out[i] = (TO)(expr); \
        } \
      } else if (stride[2]) { \
        const TI b = *right; \
        AX_SIMD \
        for (int64_t i = 0; i < n; i++) { \
          const TM m = mask[i]; \
          const TI a = left[i]; \
          out[i] = (TO)(expr); \
        } \
      } else { \
        const TI a = *left; \
        AX_SIMD \
        for (int64_t i = 0; i < n; i++) { \
          const TM m = mask[i]; \
          const TI b = stride[3] ? right[i] : *right; \
          out[i] = (TO)(expr); \
        } \
      } \
      return; \
    } \
    for (int64_t i = 0; i < n; i++) { \
      const TM m = *(const TM *)(data[1] + i * stride[1]); \
      const TI a = *(const TI *)(data[2] + i * stride[2]), b = *(const TI *)(data[3] + i * stride[3]); \
      *(TO *)(data[0] + i * stride[0]) = (TO)(expr); \
    } \
  }

/* float32 and float64 loops of a function of pointwise.h or functions.h. */
#define AX_MATH1(name) \
  AX_LOOP1(name##_f32, float, float, ax_##name##_f32(x)) \
  AX_LOOP1(name##_f64, double, double, ax_##name##_f64(x))
#define AX_MATH2(name) \
  AX_LOOP2(name##_f32, float, float, ax_##name##_f32(a, b)) \
  AX_LOOP2(name##_f64, double, double, ax_##name##_f64(a, b))

/* Entries of a kernel's table: the loops <name>_<type>. */
#define AX_FLOATS(name) [AX_F32] = name##_f32, [AX_F64] = name##_f64
#define AX_INTS(name) [AX_I64] = name##_i64, [AX_I32] = name##_i32, [AX_U8] = name##_u8

/* The kernel of an op that has the loops of these entries; ctx: what they are called with. */
#define AX_POINTWISE(name, ctx, ...) \
  ax_status ax_cpu_##name(const ax_call *call) \
  { \
    static const ax_loop loops[AX_DTYPE_COUNT] = { __VA_ARGS__ }; \
    return ax_cpu_pointwise(call, loops, 1, ctx); \
  }

#endif

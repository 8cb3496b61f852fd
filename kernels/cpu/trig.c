/* sin, cos and tan.  libm computes angles beyond the reach of the vector code, one by one: an
 * element's bits do not depend on its neighbours. */
#include "complex.h"

#include "functions.h"

#define ANY_LARGE(S, T, FABS, LIMIT) \
  static bool any_large_##S(const char *p, int64_t stride, int64_t n) \
  { \
    int large = 0; \
    if (stride == sizeof(T)) { \
      const T *x = (const T *)p; \
      _Pragma("omp simd reduction(| : large)") for (int64_t i = 0; i < n; i++) large |= \
          !(FABS(x[i]) <= LIMIT); \
    } else \
      for (int64_t i = 0; i < n; i++) large |= !(FABS(*(const T *)(p + i * stride)) <= LIMIT); \
    return large; \
  }
ANY_LARGE(f32, float, fabsf, AX_TRIG_LIMIT)
ANY_LARGE(f64, double, fabs, AX_TRIG_LIMIT_F64)

/* near: for angles up to the limit; libm: for others */
#define TRIG(name, S, T, FABS, LIMIT, near, libm) \
  AX_LOOP1(name##_near_##S, T, T, near(x)) \
  static void name##_##S(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
    for (int64_t lo = 0; lo < n; lo += 1024) { \
      const int64_t count = n - lo < 1024 ? n - lo : 1024; \
      char *const part[2] = { data[0] + lo * stride[0], data[1] + lo * stride[1] }; \
      if (!any_large_##S(part[1], stride[1], count)) { \
        name##_near_##S(part, stride, count, ctx); \
        continue; \
      } \
      for (int64_t i = 0; i < count; i++) { \
        const T x = *(const T *)(part[1] + i * stride[1]); \
        *(T *)(part[0] + i * stride[0]) = FABS(x) <= LIMIT ? near(x) : libm(x); \
      } \
    } \
  }
#define BOTH(name) \
  TRIG(name, f32, float, fabsf, AX_TRIG_LIMIT, ax_##name##_f32, name##f) \
  TRIG(name, f64, double, fabs, AX_TRIG_LIMIT_F64, ax_##name##_f64, name)
BOTH(sin)
BOTH(cos)
BOTH(tan)

#define COMPLEX_LOOPS(C, S, F) \
  AX_LOOP1(sin_##S, C, C, csin##F(x)) \
  AX_LOOP1(cos_##S, C, C, ccos##F(x)) \
  AX_LOOP1(tan_##S, C, C, ctan##F(x))
COMPLEX_LOOPS(ax_cpu_c64, c64, f)
COMPLEX_LOOPS(ax_cpu_c128, c128, )

#define KERNEL(name) AX_POINTWISE(name, NULL, AX_FLOATS(name), AX_COMPLEX(name))
KERNEL(sin)
KERNEL(cos)
KERNEL(tan)

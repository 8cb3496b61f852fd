/* The functions of gamma.h.  Most arguments of lgamma and its derivatives are positive: a block of
 * such elements takes a shorter loop, whose results are those of the other one. */
#include "simd.h"

#include "gamma.h"

#define ANY_NEGATIVE(S, T) \
  static bool any_negative_##S(const char *p, int64_t stride, int64_t n) \
  { \
    int negative = 0; \
    if (stride == sizeof(T)) { \
      const T *x = (const T *)p; \
      _Pragma("omp simd reduction(| : negative)") for (int64_t i = 0; i < n; i++) negative |= !(x[i] > 0); \
    } else \
      for (int64_t i = 0; i < n; i++) negative |= !(*(const T *)(p + i * stride) > 0); \
    return negative; \
  }
ANY_NEGATIVE(f32, float)
ANY_NEGATIVE(f64, double)

/* right: of x above 0; all: of any x */
#define SIDES_OF(name, S, T, BEGIN, right, all) \
  AX_LOOP1_WITH(name##_right_##S, T, T, BEGIN, right) \
  AX_LOOP1_WITH(name##_all_##S, T, T, BEGIN, all) \
  static void name##_##S(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
    for (int64_t lo = 0; lo < n; lo += 1024) { \
      const int64_t count = n - lo < 1024 ? n - lo : 1024; \
      char *const part[2] = { data[0] + lo * stride[0], data[1] + lo * stride[1] }; \
      if (any_negative_##S(part[1], stride[1], count)) name##_all_##S(part, stride, count, ctx); \
      else name##_right_##S(part, stride, count, ctx); \
    } \
  }
#define SIDES(name, BEGIN, right, all) \
  SIDES_OF(name, f32, float, BEGIN, right, all) \
  SIDES_OF(name, f64, double, BEGIN, right, all)

SIDES(lgamma, , ax_lgamma_right(x), ax_lgamma_f64(x))
SIDES(digamma, , ax_digamma_right(x), ax_digamma_f64(x))

#define NUMBERS const ax_polygamma_numbers *const z = ctx;
#define POLYGAMMA(name, s) \
  SIDES(name, NUMBERS, (z->factor * ax_zeta_small(z, s, x)), ax_polygamma_small(z, s, x))
POLYGAMMA(polygamma_1, 2)
POLYGAMMA(polygamma_2, 3)
POLYGAMMA(polygamma_3, 4)
POLYGAMMA(polygamma_few, z->s)
SIDES(polygamma_any, NUMBERS, (z->factor * ax_zeta_large(z, z->s, x)), ax_polygamma_large(z, z->s, x))

AX_MATH1(erfinv)

#define KERNEL(name) AX_POINTWISE(name, NULL, AX_FLOATS(name))
KERNEL(erfinv)
KERNEL(lgamma)
KERNEL(digamma)

ax_status ax_cpu__polygamma(const ax_call *call)
{
  static const ax_loop loops[][AX_DTYPE_COUNT] = { { AX_FLOATS(polygamma_1) },
                                                   { AX_FLOATS(polygamma_2) },
                                                   { AX_FLOATS(polygamma_3) },
                                                   { AX_FLOATS(polygamma_few) },
                                                   { AX_FLOATS(polygamma_any) } };
  const ax_polygamma_numbers z = ax_polygamma_of(call->a->polygamma.n);
  return ax_cpu_pointwise(call, loops[z.s <= 4 ? z.s - 2 : z.s <= AX_ZETA_SMALL ? 3 : 4], 1, &z);
}

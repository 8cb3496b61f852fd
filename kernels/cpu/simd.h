/* Makers of innermost loops: each takes an expression over scalars and writes a function of type ax_loop, with a vector loop where
 * the operands are contiguous (or stand still) and a plain one for any strides. */
#ifndef AX_SIMD_H
#define AX_SIMD_H

#include "cpu.h"

/* TO result = expr of TI x; `c` is the context. */
#define AX_LOOP1(fn, TO, TI, expr) \
  static void fn(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
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
#define AX_LOOP2(fn, TO, TI, expr) \
  static void fn(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
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

/* TO result = expr of TM m (a mask or choice), TI a and TI b. */
#define AX_LOOP3(fn, TO, TM, TI, expr) \
  static void fn(char *const *data, const int64_t *stride, int64_t n, const void *ctx) \
  { \
    const int64_t size = sizeof(TI); \
    if (AX_LIKELY(stride[0] == sizeof(TO) && stride[1] == sizeof(TM) && (stride[2] == size || stride[2] == 0) && \
                  (stride[3] == size || stride[3] == 0))) { \
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
        for (int64_t i = 0; i < n; i++) { \
          const TM m = mask[i]; \
          const TI b = *(const TI *)(data[3] + i * stride[3]); \
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

#endif

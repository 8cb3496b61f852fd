/* Shared by the CPU kernels: the loop driver, work sharing, conversions.  Built once per processor
 * level.
 *
 * Results never depend on the number of threads: work is divided by outputs, or into chunks whose
 * bounds follow from the sizes alone and whose results are combined in order. */
#ifndef AX_CPU_H
#define AX_CPU_H

#include "plugin.h"

#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "half.h"

/* The iterations of the next loop touch different elements; an operand may be the result itself,
 * element for element. */
#define AX_SIMD _Pragma("omp simd")
#define AX_LIKELY(x) __builtin_expect(!!(x), 1)

/* Copies a block past the caches; dst and bytes are multiples of 64.  Call ax_cpu_stream_end after
 * the last block. */
static inline void ax_cpu_stream(void *dst, const void *src, int64_t bytes)
{
#if defined __AVX512F__
  for (int64_t i = 0; i < bytes; i += 64)
    _mm512_stream_si512((__m512i *)((char *)dst + i), _mm512_loadu_si512((const char *)src + i));
#elif defined __AVX__
  for (int64_t i = 0; i < bytes; i += 32)
    _mm256_stream_si256((__m256i *)((char *)dst + i),
                        _mm256_loadu_si256((const __m256i *)((const char *)src + i)));
#elif defined __SSE2__
  for (int64_t i = 0; i < bytes; i += 16)
    _mm_stream_si128((__m128i *)((char *)dst + i), _mm_loadu_si128((const __m128i *)((const char *)src + i)));
#else
  memcpy(dst, src, (size_t)bytes);
#endif
}

/* streaming stores are weakly ordered: other threads must see them after this */
static inline void ax_cpu_stream_end(void)
{
#ifdef __SSE2__
  _mm_sfence();
#endif
}

/* With fewer elements a second thread costs more than it gains. */
#define AX_GRAIN 32768
/* The `work` for ax_cpu_for of a loop that only moves bytes: a second thread pays from about a
 * megabyte on. */
#define AX_MOVED(bytes) ((bytes) / 32)

/* Every kernel of the op table. */
#define KERNEL_POINTWISE(name) ax_status ax_cpu_##name(const ax_call *call);
#define KERNEL_REDUCE(name) KERNEL_POINTWISE(name)
#define KERNEL_KERNEL(name) KERNEL_POINTWISE(name)
#define KERNEL_CPU(name) KERNEL_POINTWISE(name)
#define KERNEL_VIEW(name)
#define KERNEL_HOST(name)
#define KERNEL_COMPOSITE(name)
#define OP(ID, name, signature, form, ...) KERNEL_##form(name)
#include "core/ops/ops.def"
#undef OP
#undef KERNEL_POINTWISE
#undef KERNEL_REDUCE
#undef KERNEL_KERNEL
#undef KERNEL_CPU
#undef KERNEL_VIEW
#undef KERNEL_HOST
#undef KERNEL_COMPOSITE

/* ---- loop.c: work sharing and loop nests */

/* Calls fn over [0, n) in one piece, or in one piece per thread where `work` (elements touched) is
 * worth it. */
typedef void (*ax_range_fn)(int64_t lo, int64_t hi, void *ctx);
void ax_cpu_for(int64_t n, int64_t work, ax_range_fn fn, void *ctx);
int ax_cpu_get_threads(void);
void ax_cpu_set_threads(int n);

/* The innermost loop of a nest: n steps from data[k] by stride[k] bytes. */
typedef void (*ax_loop)(char *const *data, const int64_t *stride, int64_t n, const void *ctx);
/* Walks `it` in the order that suits memory best; operands may overlap only exactly. */
void ax_cpu_nest(const ax_iter *it, ax_loop loop, const void *ctx);
void ax_cpu_swap_dims(ax_iter *it, int a, int b);
/* Joins neighbouring dims that all operands go through as through one. */
void ax_cpu_merge_dims(ax_iter *it);
/* Runs the loop for the type of operand `key` from `loops` [AX_DTYPE_COUNT].  float16 and bfloat16
 * run through the float32 loop in blocks, or through their own loop (AX_BF16_LOOP1, 2 in simd.h)
 * where there is one and all operands are contiguous and of that type.  EDTYPE naming the op where
 * there is no loop. */
ax_status ax_cpu_pointwise(const ax_call *call, const ax_loop *loops, int key, const void *ctx);
ax_status ax_cpu_no_dtype(ax_op op, ax_dtype d);

/* ---- stats.c: the counters behind core.kernel_stats() */
/* This thread's counter of that name, which the kernel increments; the pointer stays valid. */
int64_t *ax_cpu_counter(const char *name);
const ax_kernel_stat *ax_cpu_stats(int *n, bool reset);
/* Whether a result of this size is better written past the caches. */
bool ax_cpu_streams(int64_t bytes);

/* ---- cast.c */
/* Loops from a type (the first index) to another; NULL: the dispatcher refuses the pair. */
extern const ax_loop ax_cpu_casts[AX_DTYPE_COUNT][AX_DTYPE_COUNT];
/* n elements of half type `d`, `stride` bytes apart, to float; and from float, rounded to nearest
 * even. */
void ax_cpu_half_to_float(ax_dtype d, const char *src, int64_t stride, float *dst, int64_t n);
void ax_cpu_float_to_half(ax_dtype d, const float *src, char *dst, int64_t stride, int64_t n);

/* ---- copy.c */
/* dst (contiguous, `to`) = src (any strides, in elements, `from`), cast. */
void ax_cpu_copy_strided(int ndim, const int64_t *shape, ax_dtype to, void *dst, ax_dtype from,
                         const void *src, const int64_t *strides);

/* ---- optim.c */
ax_status ax_cpu_optim(ax_device d, ax_optim_kind kind, ax_dtype dtype, const ax_segment *segs, int n,
                       const ax_hyper *h, const ax_optim_device_args *device_args);
ax_status ax_cpu_norm_all(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double p, double *out);
ax_status ax_cpu_scale_all(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double factor);
ax_status ax_cpu_clamp_all(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double limit);
ax_status ax_cpu_norm_into(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double p, double root,
                           double *out);
ax_status ax_cpu_clip(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, double max_norm,
                      const double *norm);
ax_status ax_cpu_unscale(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, const float *scale,
                         float *found);
ax_status ax_cpu_scale_update(ax_device d, double *state, const float *found, double growth, double backoff,
                              int64_t interval);

#endif

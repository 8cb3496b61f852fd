/* index_select (y[o, i, :] = x[o, index[i], :]), its gradient, and the positions where a mask is
 * true. All are bound by memory.  Indices are checked before anything is written. */
#include "cpu.h"

#include <string.h>

typedef struct job {
  ax_dtype dtype;
  int64_t outer, size, picked, inner; /* x is (outer, size, inner), the result (outer, picked, inner) */
  const int64_t *index;
  const char *src;
  char *dst;
} job;

static void job_shape(job *j, const ax_tensor *x, int64_t dim)
{
  j->dtype = (ax_dtype)x->dtype;
  j->outer = j->inner = 1;
  for (int d = 0; d < x->ndim; d++)
    if (d < dim) j->outer *= x->shape[d];
    else if (d > dim) j->inner *= x->shape[d];
}

static ax_status check_index(const job *j)
{
  for (int64_t i = 0; i < j->picked; i++)
    if (j->index[i] < 0 || j->index[i] >= j->size)
      return ax_fail(AX_ERANGE, "index_select: index %lld at position %lld is outside 0..%lld",
                     (long long)j->index[i], (long long)i, (long long)j->size - 1);
  return AX_OK;
}

#define PICK(item_size, T) \
  case item_size: \
    for (int64_t p = lo; p < hi;) { \
      const int64_t o = p / j->picked, from = p % j->picked, left = j->picked - from, \
                    n = left < hi - p ? left : hi - p; \
      const T *x = (const T *)j->src + o * j->size; \
      const int64_t *at = j->index + from; \
      T *y = (T *)j->dst + p; \
      AX_SIMD \
      for (int64_t i = 0; i < n; i++) y[i] = x[at[i]]; \
      p += n; \
    } \
    break;

/* Copies runs of `inner` elements; threads share the rows of the result. */
static void select_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  const int64_t item = (int64_t)ax_dtype_size(j->dtype), bytes = j->inner * item;

  if (j->inner == 1) {
    switch (item) {
      PICK(1, uint8_t)
      PICK(2, uint16_t)
      PICK(4, uint32_t)
      PICK(8, uint64_t)
      PICK(16, ax_c128)
    }
    return;
  }
  for (int64_t p = lo; p < hi; p++)
    memcpy(j->dst + p * bytes, j->src + (p / j->picked * j->size + j->index[p % j->picked]) * bytes,
           (size_t)bytes);
}

ax_status ax_cpu_index_select(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *index = call->in[1];
  job j = {
    .index = ax_data(index), .picked = index->numel, .src = ax_data(x), .dst = ax_data(call->out[0])
  };
  ax_status st;

  job_shape(&j, x, call->a->index_select.dim);
  j.size = x->ndim ? x->shape[call->a->index_select.dim] : 1;
  if ((st = check_index(&j)) != AX_OK) return st;
  if (call->out[0]->numel)
    ax_cpu_for(j.outer * j.picked, AX_MOVED(call->out[0]->numel * (int64_t)ax_itemsize(x)), select_range, &j);
  return AX_OK;
}

/* ---- gradient: sums in the order of the indices.  Threads share the columns (outer x inner),
 * never
 * the indices. */

#define ADD(name, T, U, sum) \
  static void add_##name(const job *j, int64_t o, int64_t at, int64_t n) \
  { \
    if (j->inner == 1) { \
      const T *g = (const T *)j->src + o * j->picked; \
      T *x = (T *)j->dst + o * j->size; \
      for (int64_t i = 0; i < j->picked; i++) { \
        const U a = (U)x[j->index[i]], b = (U)g[i]; \
        x[j->index[i]] = (T)(sum); \
      } \
      return; \
    } \
    for (int64_t i = 0; i < j->picked; i++) { \
      const T *g = (const T *)j->src + (o * j->picked + i) * j->inner + at; \
      T *x = (T *)j->dst + (o * j->size + j->index[i]) * j->inner + at; \
      AX_SIMD \
      for (int64_t k = 0; k < n; k++) { \
        const U a = (U)x[k], b = (U)g[k]; \
        x[k] = (T)(sum); \
      } \
    } \
  }
ADD(f32, float, float, a + b)
ADD(f64, double, double, a + b)
ADD(f16, uint16_t, uint16_t, ax_float_to_half(ax_half_to_float(a) + ax_half_to_float(b)))
ADD(bf16, uint16_t, uint16_t, ax_float_to_bf16(ax_bf16_to_float(a) + ax_bf16_to_float(b)))
ADD(i64, int64_t, uint64_t, a + b)
ADD(i32, int32_t, uint32_t, a + b)
ADD(u8, uint8_t, uint32_t, a + b)
static void (*const adds[AX_DTYPE_COUNT])(const job *, int64_t, int64_t, int64_t) = {
  [AX_F32] = add_f32, [AX_F64] = add_f64, [AX_F16] = add_f16, [AX_BF16] = add_bf16,
  [AX_I64] = add_i64, [AX_I32] = add_i32, [AX_U8] = add_u8,
};

#define COLUMNS 256

static void scatter_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  const int64_t across = (j->inner + COLUMNS - 1) / COLUMNS;

  for (int64_t p = lo; p < hi; p++) {
    const int64_t at = p % across * COLUMNS;
    adds[j->dtype](j, p / across, at, j->inner - at < COLUMNS ? j->inner - at : COLUMNS);
  }
}

ax_status ax_cpu__index_select_backward(const ax_call *call)
{
  const ax_tensor *g = call->in[0], *index = call->in[1], *out = call->out[0];
  job j = { .index = ax_data(index), .picked = index->numel, .src = ax_data(g), .dst = ax_data(out) };
  ax_status st;

  job_shape(&j, out, call->a->index_select_backward.dim);
  j.size = out->ndim ? out->shape[call->a->index_select_backward.dim] : 1;
  if (!adds[j.dtype]) return ax_cpu_no_dtype(call->op, j.dtype);
  if ((st = check_index(&j)) != AX_OK) return st;
  memset(j.dst, 0, (size_t)out->numel * ax_dtype_size(j.dtype));
  if (g->numel) ax_cpu_for(j.outer * ((j.inner + COLUMNS - 1) / COLUMNS), g->numel, scatter_range, &j);
  return AX_OK;
}

/* ---- flat positions of the true elements; the caller has counted them, and both counts must
 * agree */

#define RUN 512

/* Finds the positions of the true ones among n <= RUN bytes, counted from `base`; returns their
 * number. No branches: masks are hard to predict. */
static int64_t true_positions(const uint8_t *m, int64_t n, int64_t base, int64_t *found)
{
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++) {
    found[count] = base + i;
    count += m[i] != 0;
  }
  return count;
}

ax_status ax_cpu__mask_indices(const ax_call *call)
{
  const ax_tensor *mask = call->in[0], *out = call->out[0];
  const uint8_t *m = ax_data(mask);
  int64_t *to = ax_data(out), n = 0;

  for (int64_t base = 0; base < mask->numel; base += RUN) {
    int64_t found[RUN];
    const int64_t count =
        true_positions(m + base, mask->numel - base < RUN ? mask->numel - base : RUN, base, found);
    if (n + count <= out->numel) memcpy(to + n, found, (size_t)count * sizeof *to);
    n += count;
  }
  if (n != out->numel)
    return ax_fail(AX_ESHAPE, "mask_indices: the mask has %lld true elements, the result room for %lld",
                   (long long)n, (long long)out->numel);
  return AX_OK;
}

/* ---- nonzero: the positions as rows of coordinates */

ax_status ax_cpu__nonzero(const ax_call *call)
{
  const ax_tensor *mask = call->in[0], *out = call->out[0];
  const uint8_t *m = ax_data(mask);
  const int ndim = mask->ndim;
  const int64_t run = ndim ? mask->shape[ndim - 1] : 1;
  int64_t *to = ax_data(out), at[AX_MAX_DIMS] = { 0 }, n = 0;

  for (int64_t row = 0; row < mask->numel; row += run) {
    for (int64_t base = 0; base < run; base += RUN) {
      int64_t found[RUN];
      const int64_t count = true_positions(m + row + base, run - base < RUN ? run - base : RUN, base, found);
      for (int64_t k = 0; ndim && k < count && n + count <= out->shape[0]; k++) {
        int64_t *place = to + (n + k) * ndim;
        for (int d = 0; d < ndim - 1; d++) place[d] = at[d];
        place[ndim - 1] = found[k];
      }
      n += count;
    }
    for (int d = ndim - 2; d >= 0 && ++at[d] == mask->shape[d]; d--) at[d] = 0;
  }
  if (n != out->shape[0])
    return ax_fail(AX_ESHAPE, "nonzero: the mask has %lld true elements, the result room for %lld",
                   (long long)n, (long long)out->shape[0]);
  return AX_OK;
}

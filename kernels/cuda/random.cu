/* Random fills, dropout, permutations, arange: bit for bit as on the CPU, element by element from
 * philox.h.  This file is compiled without contraction into fused multiply-adds, which would change
 * bits.  The integer products of Philox bound the fills. */
#include "draw.cuh"
#include "rows.cuh"

typedef ax_cuda_draw draw;

static draw draw_of(const ax_call *call) { return ax_cuda_draw_of(call); }

static __device__ __forceinline__ void block_of(const draw &d, int64_t block, uint32_t *w)
{
  ax_cuda_draw_block(d, (uint64_t)block, w);
}
/* Word of 32-bit element i; 64-bit word of 64-bit element i. */
static __device__ __forceinline__ uint32_t word32(const draw &d, int64_t i)
{
  uint32_t w[4];
  block_of(d, i / 4, w);
  return w[i % 4];
}
static __device__ __forceinline__ uint64_t word64(const draw &d, int64_t i)
{
  uint32_t w[4];
  block_of(d, i / 2, w);
  return ax_word64(w[2 * (i % 2)], w[2 * (i % 2) + 1]);
}

/* ---- uniform, normal */

template <class S>
static __global__ void uniform_kernel(S *y, int64_t n, draw d, int64_t first, float low, float high,
                                      float size, int bits)
{
  for (int64_t i = AX_FIRST; i < n; i += AX_STEP) {
    const float x = low + ax_uniform_f32(word32(d, first + i), bits) * size;
    y[i] = ax_cuda_store<S>(x < high ? x : low);
  }
}

static __global__ void uniform_double(double *y, int64_t n, draw d, int64_t first, double low, double high)
{
  for (int64_t i = AX_FIRST; i < n; i += AX_STEP) {
    const double x = low + ax_uniform_f64(word64(d, first + i)) * (high - low);
    y[i] = x < high ? x : low;
  }
}

AX_CUDA_KERNEL(_uniform)
{
  const ax_tensor *y = call->out[0];
  const double low = call->a->uniform.low, high = call->a->uniform.high;
  /* as many bits as the type's mantissa has */
  const int bits = y->dtype == AX_F16 ? 11 : y->dtype == AX_BF16 ? 8 : 24;
  const unsigned blocks = ax_cuda_blocks(y->numel, 256, y->device.index);
  if (y->numel == 0) return AX_OK;
  if (y->dtype == AX_F64)
    return ax_cuda_launch("rand", y->device, blocks, 256, uniform_double, ax_cuda_data<double>(y), y->numel,
                          draw_of(call), call->a->uniform.first, low, high);
  return ax_cuda_with_float(call->op, (ax_dtype)y->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("rand", y->device, blocks, 256, uniform_kernel<S>, ax_cuda_data<S>(y), y->numel,
                          draw_of(call), call->a->uniform.first, (float)low, (float)high, (float)(high - low),
                          bits);
  });
}

/* A thread computes a pair: one draw of radius and angle gives two normals. */
template <class S>
static __global__ void normal_kernel(S *y, int64_t n, draw d, int64_t at, float mean, float std)
{
  for (int64_t p = AX_FIRST; p < (n + 1) / 2; p += AX_STEP) {
    uint32_t w[4];
    float first, second;
    block_of(d, at / 4 + p / 2, w);
    ax_normal_f32(w[2 * (p % 2)], w[2 * (p % 2) + 1], &first, &second);
    y[2 * p] = ax_cuda_store<S>(mean + first * std);
    if (2 * p + 1 < n) y[2 * p + 1] = ax_cuda_store<S>(mean + second * std);
  }
}

static __global__ void normal_double(double *y, int64_t n, draw d, int64_t at, double mean, double std)
{
  for (int64_t p = AX_FIRST; p < (n + 1) / 2; p += AX_STEP) {
    uint32_t w[4];
    double first, second;
    block_of(d, at / 2 + p, w);
    ax_normal_f64(ax_word64(w[0], w[1]), ax_word64(w[2], w[3]), &first, &second);
    y[2 * p] = mean + first * std;
    if (2 * p + 1 < n) y[2 * p + 1] = mean + second * std;
  }
}

AX_CUDA_KERNEL(_normal)
{
  const ax_tensor *y = call->out[0];
  const double mean = call->a->normal.mean, std = call->a->normal.std;
  const unsigned blocks = ax_cuda_blocks((y->numel + 1) / 2, 256, y->device.index);
  if (y->numel == 0) return AX_OK;
  if (y->dtype == AX_F64)
    return ax_cuda_launch("randn", y->device, blocks, 256, normal_double, ax_cuda_data<double>(y), y->numel,
                          draw_of(call), call->a->normal.first, mean, std);
  return ax_cuda_with_float(call->op, (ax_dtype)y->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("randn", y->device, blocks, 256, normal_kernel<S>, ax_cuda_data<S>(y), y->numel,
                          draw_of(call), call->a->normal.first, (float)mean, (float)std);
  });
}

/* ---- integers */

template <class S>
static __global__ void randint_kernel(S *y, int64_t n, draw d, uint64_t low, uint64_t range)
{
  for (int64_t i = AX_FIRST; i < n; i += AX_STEP)
    y[i] = ax_cuda_store<S>((int64_t)(low + ax_uniform_int(word64(d, i), range)));
}

AX_CUDA_KERNEL(_randint)
{
  const ax_tensor *y = call->out[0];
  const int64_t low = call->a->randint.low, high = call->a->randint.high;
  if (low >= high)
    return ax_fail(AX_ERANGE, "randint: there is no integer from %lld up to but not including %lld",
                   (long long)low, (long long)high);
  if (y->numel == 0) return AX_OK;
  return ax_cuda_with_any(call->op, (ax_dtype)y->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("randint", y->device, ax_cuda_blocks(y->numel, 256, y->device.index), 256,
                          randint_kernel<S>, ax_cuda_data<S>(y), y->numel, draw_of(call), (uint64_t)low,
                          (uint64_t)high - (uint64_t)low);
  });
}

/* A permutation is a sort of n keys.  The CPU computes it and sends the result, so that it equals
 * the CPU's own; it therefore cannot be part of a captured step. */
AX_CUDA_KERNEL(_randperm)
{
  ax_tensor *y = call->out[0], *here = NULL;
  const ax_backend *cpu;
  ax_status st = ax_backend_of(ax_device{ AX_CPU, 0 }, &cpu);
  if (st != AX_OK || y->numel == 0 ||
      (st = ax_tensor_new((ax_dtype)y->dtype, y->ndim, y->shape, &here)) != AX_OK)
    return st;
  ax_call there = *call;
  there.out = &here;
  st = cpu->kernels[call->op](&there);
  if (st == AX_OK)
    st = ax_cuda_memory.copy(y->device, ax_data(y), here->device, ax_data(here),
                             (size_t)y->numel * ax_itemsize(y));
  ax_tensor_release(here);
  return st;
}

template <class S> static __global__ void arange_float(S *y, int64_t n, double start, double step)
{
  for (int64_t i = AX_FIRST; i < n; i += AX_STEP) y[i] = ax_cuda_store<S>(start + (double)i * step);
}

template <class S> static __global__ void arange_int(S *y, int64_t n, uint64_t start, uint64_t step)
{
  for (int64_t i = AX_FIRST; i < n; i += AX_STEP)
    y[i] = ax_cuda_store<S>((int64_t)(start + (uint64_t)i * step));
}

/* start + i * step, in int64 for integers, else in float64, so that errors do not accumulate. */
AX_CUDA_KERNEL(_arange)
{
  const ax_tensor *y = call->out[0];
  const double start = call->a->arange.start, step = call->a->arange.step;
  const unsigned blocks = ax_cuda_blocks(y->numel, 256, y->device.index);
  if (y->numel == 0) return AX_OK;
  if (ax_is_float((ax_dtype)y->dtype))
    return ax_cuda_with_float(call->op, (ax_dtype)y->dtype, [&](auto tag) {
      typedef AX_TYPE_OF(tag) S;
      return ax_cuda_launch("arange", y->device, blocks, 256, arange_float<S>, ax_cuda_data<S>(y), y->numel,
                            start, step);
    });
  return ax_cuda_with_any(call->op, (ax_dtype)y->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("arange", y->device, blocks, 256, arange_int<S>, ax_cuda_data<S>(y), y->numel,
                          (uint64_t)(int64_t)start, (uint64_t)(int64_t)step);
  });
}

/* ---- dropout: an element stays when its word is at least p 2^32; the gradient draws the same
 * words
 * again */

template <class S>
static __device__ __forceinline__ compute<S> dropped(compute<S> x, uint32_t word, uint32_t least,
                                                     compute<S> scale)
{
  const compute<S> scaled = x * scale;
  return word >= least ? scaled : (compute<S>)0;
}

/* A thread has R elements, in runs of 16 bytes where RUNS says that both tensors are aligned. */
template <class S, bool RUNS>
static __global__ void dropout_kernel(S *y, const S *x, int64_t n, draw d, uint32_t least, compute<S> scale)
{
  constexpr int V = 16 / sizeof(S), R = V < 4 ? 4 : V;
  for (int64_t b = AX_FIRST; b < (n + R - 1) / R; b += AX_STEP) {
    const int64_t first = b * R;
    uint32_t w[4];
    if (RUNS && first + R <= n) {
      compute<S> v[R / V][V];
      for (int k = 0; k < R / V; k++) ax_cuda_get<V>(x, first + k * V, v[k]);
      for (int j = 0; j < R; j++) {
        if (j % 4 == 0) block_of(d, (first + j) / 4, w);
        v[j / V][j % V] = dropped<S>(v[j / V][j % V], w[j % 4], least, scale);
      }
      for (int k = 0; k < R / V; k++) ax_cuda_put<V>(y, first + k * V, v[k]);
      continue;
    }
    for (int j = 0; j < R && first + j < n; j++) {
      if (j % 4 == 0) block_of(d, (first + j) / 4, w);
      y[first + j] = ax_cuda_store<S>(dropped<S>(ax_cuda_load(x[first + j]), w[j % 4], least, scale));
    }
  }
}

/* y = other + dropout(x), of n / 8 runs of eight elements; x may be of a half type beside float32
 * ones. */
template <class S, class X>
static __global__ void dropout_add(S *y, const X *x, const S *other, int64_t runs, ax_cuda_dropping d)
{
  constexpr int V = 16 / (int)sizeof(S);
  for (int64_t b = AX_FIRST; b < runs * 8 / V; b += AX_STEP) {
    float v[V], more[V];
    ax_cuda_get(other, b * V, v);
    ax_cuda_get(x, b * V, more);
    ax_cuda_add_dropped<S, X>(d, b * V, v, more);
    ax_cuda_put(y, b * V, v);
  }
}

template <class S, class X> static ax_status launch_dropout_add(const ax_call *call)
{
  const ax_tensor *y = call->out[0];
  return ax_cuda_launch("dropout", y->device,
                        ax_cuda_blocks(y->numel * (int64_t)sizeof(S) / 16, 256, y->device.index), 256,
                        dropout_add<S, X>, ax_cuda_data<S>(y), ax_cuda_data<X>(call->in[0]),
                        ax_cuda_data<S>(call->in[1]), y->numel / 8,
                        ax_cuda_dropping_of(call, call->a->dropout_apply.p));
}

/* A sum that the dropout is a term of (ops/join.c): aligned, and whole runs of eight elements. */
static ax_status added(const ax_call *call)
{
  const ax_tensor *y = call->out[0];
  return ax_cuda_with_narrow(call->op, (ax_dtype)y->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    if constexpr (sizeof(S) == 4) {
      if (call->in[0]->dtype == AX_BF16) return launch_dropout_add<S, ax_cuda_bf16>(call);
      if (call->in[0]->dtype == AX_F16) return launch_dropout_add<S, ax_cuda_f16>(call);
    }
    return launch_dropout_add<S, S>(call);
  });
}

AX_CUDA_KERNEL(_dropout_apply)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  const double p = call->a->dropout_apply.p;
  cudaStream_t stream;
  ax_status st;
  if (y->numel == 0) return AX_OK;
  if (!ax_is_float((ax_dtype)y->dtype)) return ax_cuda_no_dtype(call->op, (ax_dtype)y->dtype);
  if (call->n_in > 1) return added(call);
  if (p >= 1) { /* everything becomes 0, infinities and NaN too */
    if ((st = ax_cuda_use(y->device, &stream)) != AX_OK) return st;
    return ax_cuda_status("dropout",
                          cudaMemsetAsync(ax_data(y), 0, (size_t)y->numel * ax_itemsize(y), stream));
  }
  return ax_cuda_with_float(call->op, (ax_dtype)y->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    const int64_t each = sizeof(S) == 2 ? 8 : 4;
    const bool runs = ((uintptr_t)ax_data(x) | (uintptr_t)ax_data(y)) % 16 == 0;
    return ax_cuda_launch("dropout", y->device,
                          ax_cuda_blocks((y->numel + each - 1) / each, 256, y->device.index), 256,
                          runs ? dropout_kernel<S, true> : dropout_kernel<S, false>, ax_cuda_data<S>(y),
                          ax_cuda_data<S>(x), y->numel, draw_of(call), (uint32_t)(p * 0x1p32),
                          (compute<S>)(1 / (1 - p)));
  });
}

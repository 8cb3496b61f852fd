/* Convolutions by cuDNN.
 *
 * Its fast kernels need channels innermost in weights too, (o, kh, kw, c / groups); ours are (o, c
 * / groups, kh, kw), which is equal for windows of one position.  Other weights are reordered at
 * each call into memory for the call: 2 bytes read and written for each weight of a half type.  For
 * ResNet-50's 11 million such weights that is 45 MB, some 10 us of a step, forward and again for
 * each gradient.
 *
 * The gradient of a weight from half images is returned in their type (no engine of cuDNN 9.19
 * returns float32), and is then converted or added as the row requires: one rounding for each call,
 * as in PyTorch. */
#include "cudnn.h"

#include "cuda/rows.cuh"

#ifndef AX_CUDNN

ax_status ax_cudnn_convolve(ax_device, ax_cuda_conv_kind, const ax_cuda_conv *, ax_dtype, ax_dtype, void *,
                            void *, const void *, void *, bool, bool *done)
{
  *done = false;
  return AX_OK;
}

#else

#include <stdio.h>
#include <string.h>

/* All counts are below 2^31: 32-bit division is several times faster. */

/* A block turns `many` channels and `some` taps of one o through shared memory, so that both sides
 * are accessed in runs: of all taps of these channels if they fit, and of the channels. */
enum { TURN_THREADS = 256, TURN_EACH = 8, TURN_ROOM = TURN_THREADS * TURN_EACH };
struct turn_job {
  uint32_t c, taps, many, some, pitch; /* pitch: odd, so that neighbouring channels are in different banks */
  uint32_t parts_c, parts;             /* blocks along c, and for each o */
  ax_cuda_divisor by_many, by_some;
};
static turn_job turn_job_of(int64_t c, int64_t taps)
{
  const int64_t some = taps < 63 ? taps : 63, pitch = some | 1, most = TURN_ROOM / pitch / 32 * 32,
                parts_c = (c + most - 1) / most, many = (c + parts_c - 1) / parts_c;
  turn_job j = { (uint32_t)c, (uint32_t)taps, (uint32_t)many, (uint32_t)some, (uint32_t)pitch };
  j.parts_c = (uint32_t)parts_c;
  j.parts = (uint32_t)(parts_c * ((taps + some - 1) / some));
  j.by_many = ax_cuda_divisor_of(many);
  j.by_some = ax_cuda_divisor_of(some);
  return j;
}

/* Where thread number `i` of the block's numbers reads or writes: along the taps of a channel, or
 * along the channels. */
struct turn_place {
  uint32_t channel, tap;
  bool inside;
};
static __device__ __forceinline__ turn_place turn_at(const turn_job &j, uint32_t c, uint32_t tap, int k,
                                                     bool along_taps)
{
  const uint32_t i = k * TURN_THREADS + threadIdx.x,
                 q = ax_cuda_quotient(i, along_taps ? j.by_some : j.by_many),
                 r = i - q * (along_taps ? j.some : j.many);
  const turn_place p = { along_taps ? q : r, along_taps ? r : q, false };
  return turn_place{ p.channel, p.tap,
                     p.channel < j.many && p.tap < j.some && c + p.channel < j.c && tap + p.tap < j.taps };
}

/* (o, c, taps) to (o, taps, c) */
template <class S>
static __global__ void __launch_bounds__(TURN_THREADS) turn(turn_job j, const S *from, S *to)
{
  __shared__ S tile[TURN_ROOM];
  const uint32_t o = blockIdx.x / j.parts, part = blockIdx.x - o * j.parts, row = part / j.parts_c,
                 c = (part - row * j.parts_c) * j.many, tap = row * j.some;
  S v[TURN_EACH];
  from += ((int64_t)o * j.c + c) * j.taps + tap;
  to += ((int64_t)o * j.taps + tap) * j.c + c;
#pragma unroll
  for (int k = 0; k < TURN_EACH; k++) {
    const turn_place p = turn_at(j, c, tap, k, true);
    if (p.inside) v[k] = from[(int64_t)p.channel * j.taps + p.tap];
  }
#pragma unroll
  for (int k = 0; k < TURN_EACH; k++) {
    const turn_place p = turn_at(j, c, tap, k, true);
    if (p.inside) tile[p.channel * j.pitch + p.tap] = v[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < TURN_EACH; k++) {
    const turn_place p = turn_at(j, c, tap, k, false);
    if (p.inside) to[(int64_t)p.tap * j.c + p.channel] = tile[p.channel * j.pitch + p.tap];
  }
}

/* (o, taps, c) to (o, c, taps), in another type or added to what is there. */
template <class S, class D>
static __global__ void __launch_bounds__(TURN_THREADS) turn_back(turn_job j, bool add, const S *from, D *to)
{
  __shared__ S tile[TURN_ROOM];
  const uint32_t o = blockIdx.x / j.parts, part = blockIdx.x - o * j.parts, row = part / j.parts_c,
                 c = (part - row * j.parts_c) * j.many, tap = row * j.some;
  S v[TURN_EACH];
  from += ((int64_t)o * j.taps + tap) * j.c + c;
  to += ((int64_t)o * j.c + c) * j.taps + tap;
#pragma unroll
  for (int k = 0; k < TURN_EACH; k++) {
    const turn_place p = turn_at(j, c, tap, k, false);
    if (p.inside) v[k] = from[(int64_t)p.tap * j.c + p.channel];
  }
#pragma unroll
  for (int k = 0; k < TURN_EACH; k++) {
    const turn_place p = turn_at(j, c, tap, k, false);
    if (p.inside) tile[p.channel * j.pitch + p.tap] = v[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < TURN_EACH; k++) {
    const turn_place p = turn_at(j, c, tap, k, true);
    if (!p.inside) continue;
    D *const at = to + (int64_t)p.channel * j.taps + p.tap;
    const float number = ax_cuda_load(tile[p.channel * j.pitch + p.tap]);
    *at = ax_cuda_store<D>(add ? ax_cuda_load(*at) + number : number);
  }
}

/* Converts to another type, or adds to what is there, in one order and in runs of V. */
template <class S, class D, int V>
static __global__ void convert(uint32_t count, bool add, const S *from, D *to)
{
  const int64_t i = AX_FIRST * V;
  compute<S> v[V];
  compute<D> sum[V];
  if (i >= count) return;
  ax_cuda_get(from, i, v);
  if (add) ax_cuda_get(to, i, sum);
  for (int k = 0; k < V; k++) sum[k] = add ? sum[k] + v[k] : v[k];
  ax_cuda_put(to, i, sum);
}
template <class S, class D>
static ax_status launch_convert(ax_device d, int64_t count, bool add, const S *from, D *to)
{
  constexpr int V = 16 / (int)(sizeof(S) > sizeof(D) ? sizeof(S) : sizeof(D));
  const bool runs = count % V == 0 && (uintptr_t)to % 16 == 0;
  return ax_cuda_launch("conv2d", d, ax_cuda_tiles(runs ? count / V : count, 256), 256,
                        runs ? convert<S, D, V> : convert<S, D, 1>, (uint32_t)count, add, from, to);
}

/* N neighbouring channels at a time: N divides o, and y is aligned for N elements. */
template <class S, int N> static __global__ void add_bias(uint32_t count, uint32_t o, const S *bias, S *y)
{
  struct alignas(sizeof(S) * N) few {
    S of[N];
  };
  for (int64_t i = AX_FIRST; i < count; i += AX_STEP) {
    const uint32_t channel = (uint32_t)i % (o / N) * N;
    few v = ((const few *)y)[i];
    for (int k = 0; k < N; k++)
      v.of[k] = ax_cuda_store<S>(ax_cuda_load(v.of[k]) + ax_cuda_load(bias[channel + k]));
    ((few *)y)[i] = v;
  }
}

/* ---- the graph */

enum { X = 1, W = 2, Y = 3 };                         /* numbers of its tensors */
enum { KIND, TYPE, X_ALIGN, W_ALIGN, Y_ALIGN, CONV }; /* words of a key; then the ax_cuda_conv */
static_assert(sizeof(ax_cuda_conv) % 8 == 0 && CONV * 8 + sizeof(ax_cuda_conv) <= sizeof(ax_cudnn_key),
              "a convolution fits a key");

static cudnnBackendDescriptor_t image(ax_cudnn_graph &g, int64_t uid, cudnnDataType_t type, int64_t dims,
                                      int64_t n, int64_t c, const int64_t *sizes, int64_t align)
{
  int64_t size[5] = { n, c }, stride[5], step = c;
  stride[1] = 1;
  for (int64_t k = dims - 1; k >= 0; k--) {
    size[2 + k] = sizes[k];
    stride[2 + k] = step;
    step *= sizes[k];
  }
  stride[0] = step;
  return g.tensor(uid, type, (int)dims + 2, size, stride, align);
}

static int64_t product(const ax_cuda_conv &s, const int64_t *sizes)
{
  int64_t n = 1;
  for (int64_t k = 0; k < s.dims; k++) n *= sizes[k];
  return n;
}

static void build(ax_cudnn_graph &g, const ax_cudnn_key &key)
{
  ax_cuda_conv s;
  memcpy(&s, key.word + CONV, sizeof s);
  const cudnnDataType_t type = (cudnnDataType_t)key.word[TYPE];
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  const float one = 1, zero = 0; /* of the type that sums have: given doubles, cuDNN reads other numbers */
  const ax_cuda_conv_kind kind = (ax_cuda_conv_kind)key.word[KIND];

  const cudnnBackendDescriptor_t x = image(g, X, type, s.dims, s.n, s.c, s.in, key.word[X_ALIGN]);
  const cudnnBackendDescriptor_t w =
      image(g, W, type, s.dims, s.o, s.c / s.groups, s.kernel, key.word[W_ALIGN]);
  const cudnnBackendDescriptor_t y = image(g, Y, type, s.dims, s.n, s.o, s.out, key.word[Y_ALIGN]);

  const cudnnBackendDescriptor_t c = g.make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "a convolution");
  g.set(c, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  g.set(c, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  g.set(c, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, s.dims);
  g.set(c, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, s.dims, s.padding);
  g.set(c, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, s.dims, s.padding);
  g.set(c, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, s.dims, s.dilation);
  g.set(c, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, s.dims, s.stride);
  g.finish(c);

#define OPERATION(KIND_OF, NAME, X_OF, Y_OF, W_OF) \
  const cudnnBackendDescriptor_t op = \
      g.make(CUDNN_BACKEND_OPERATION_CONVOLUTION_##KIND_OF##_DESCRIPTOR, NAME); \
  g.set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_##X_OF, x); \
  g.set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_##W_OF, w); \
  g.set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_##Y_OF, y);
#define NUMBERS(KIND_OF) \
  g.set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_##KIND_OF##_CONV_DESC, c); \
  g.set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_##KIND_OF##_ALPHA, one); \
  g.set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_##KIND_OF##_BETA, zero); \
  g.finish(op); \
  g.add(op);
  if (kind == AX_CONV_FORWARD) {
    OPERATION(FORWARD, "the operation", FORWARD_X, FORWARD_Y, FORWARD_W)
    NUMBERS(FORWARD)
  } else if (kind == AX_CONV_INPUT) {
    OPERATION(BACKWARD_DATA, "the input's gradient", BWD_DATA_DX, BWD_DATA_DY, BWD_DATA_W)
    NUMBERS(BWD_DATA)
  } else {
    OPERATION(BACKWARD_FILTER, "the weight's gradient", BWD_FILTER_X, BWD_FILTER_DY, BWD_FILTER_DW)
    NUMBERS(BWD_FILTER)
  }
#undef OPERATION
#undef NUMBERS
}

/* ---- calls */

/* Calls f(ax_cuda_type<S>()) with the storage type; only for the three types that are used here. */
template <class F> static ax_status with_type(ax_dtype d, F f)
{
  return d == AX_F16    ? f(ax_cuda_type<ax_cuda_f16>())
         : d == AX_BF16 ? f(ax_cuda_type<ax_cuda_bf16>())
                        : f(ax_cuda_type<float>());
}

ax_status ax_cudnn_convolve(ax_device d, ax_cuda_conv_kind kind, const ax_cuda_conv *s, ax_dtype dtype,
                            ax_dtype w_dtype, void *x, void *w, const void *bias, void *y, bool add,
                            bool *done)
{
  static const char *const kinds[] = { "convolution", "convolution's input gradient",
                                       "convolution's weight gradient" };
  const int64_t taps = product(*s, s->kernel), cg = s->c / s->groups, weights = s->o * cg * taps,
                most = INT32_MAX;
  const bool turned = taps > 1 && cg > 1;
  /* first into memory for the call, then to the weight */
  const bool through = kind == AX_CONV_WEIGHT && (turned || add || w_dtype != dtype);
  const size_t bytes = (size_t)weights * ax_dtype_size(dtype);
  const turn_job job = turn_job_of(cg, taps);
  const unsigned blocks = (unsigned)(s->o * job.parts);
  std::shared_ptr<ax_cudnn_plan> plan;
  ax_cudnn_key key;
  char what[80];
  void *own = NULL;
  ax_status st;

  *done = false;
  if (dtype != AX_F32 && dtype != AX_F16 && dtype != AX_BF16) return AX_OK;
  /* sizes that cuDNN counts in 32 bits */
  const int64_t results = s->n * s->o * product(*s, s->out);
  if (s->n * s->c * product(*s, s->in) > most || results > most || weights > most) return AX_OK;
  for (int64_t k = 0; k < s->dims; k++)
    if (s->padding[k] > 4096 || s->stride[k] > 4096 || s->dilation[k] > 4096) return AX_OK;

  memset(&key, 0, sizeof key);
  key.word[KIND] = kind;
  key.word[TYPE] = ax_cudnn_type(dtype);
  key.word[X_ALIGN] = ax_cudnn_alignment(x);
  key.word[W_ALIGN] = turned || through ? 128 : ax_cudnn_alignment(w);
  key.word[Y_ALIGN] = ax_cudnn_alignment(y);
  memcpy(key.word + CONV, s, sizeof *s);
  snprintf(what, sizeof what, "%s %s", kinds[kind], ax_dtype_name(dtype));
  if ((st = ax_cudnn_find(d, what, key, build, dtype == AX_F32 && !ax_convolution_tf32(), &plan)) != AX_OK ||
      !plan)
    return st;
  if ((turned || through) && (st = ax_cuda_take(d, bytes, &own)) != AX_OK) return st;
  if (turned && kind != AX_CONV_WEIGHT)
    st = with_type(dtype, [&](auto tag) {
      typedef AX_TYPE_OF(tag) S;
      return ax_cuda_launch("conv2d", d, blocks, TURN_THREADS, turn<S>, job, (const S *)w, (S *)own);
    });
  if (st == AX_OK) {
    const int64_t uids[3] = { X, W, Y };
    void *const data[3] = { x, own ? own : w, y };
    st = ax_cudnn_run(d, plan, 3, uids, data, done);
  }
  if (*done && through)
    st = with_type(dtype, [&](auto from) {
      typedef AX_TYPE_OF(from) S;
      return with_type(w_dtype, [&](auto to) {
        typedef AX_TYPE_OF(to) D;
        return turned ? ax_cuda_launch("conv2d", d, blocks, TURN_THREADS, turn_back<S, D>, job, add,
                                       (const S *)own, (D *)w)
                      : launch_convert<S, D>(d, weights, add, (const S *)own, (D *)w);
      });
    });
  if (*done && bias && kind == AX_CONV_FORWARD)
    st = with_type(dtype, [&](auto tag) {
      typedef AX_TYPE_OF(tag) S;
      constexpr int N = 16 / sizeof(S);
      const uint32_t count = (uint32_t)results, o = (uint32_t)s->o;
      if (o % N == 0 && (uintptr_t)y % 16 == 0)
        return ax_cuda_launch("conv2d", d, ax_cuda_blocks(count / N, 256, d.index), 256, add_bias<S, N>,
                              count / N, o, (const S *)bias, (S *)y);
      return ax_cuda_launch("conv2d", d, ax_cuda_blocks(count, 256, d.index), 256, add_bias<S, 1>, count, o,
                            (const S *)bias, (S *)y);
    });
  ax_cuda_give(d, own, bytes);
  return st;
}

#endif

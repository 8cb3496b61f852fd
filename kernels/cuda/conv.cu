/* Convolutions and their gradients as matrix products whose operands are never stored (implicit
 * GEMM): a block computes a tile of the result, and its threads fetch the elements of both operands
 * through the windows.  Channels are innermost in images, weights are (o, c / groups, kd, kh, kw);
 * an image without depth has a depth of 1, and so has its kernel.
 *
 * cuDNN, which uses tensor cores, comes first; these kernels compute float64 and what cuDNN has no
 * plan for.  Arithmetic bounds them: a thread computes 4 x 4 results from shared memory.
 *
 * The gradient of a weight is a sum over all positions of all images: first over pieces whose
 * number follows from the sizes, then over the pieces in order. */
#include "common.cuh"

#include "cuda/vendor/cudnn.h"

enum { TILE = 64, DEPTH = 16, THREADS = 256, MOST_PIECES = 64, PIECE = 2048 };

struct shape {
  int64_t n, c, d, h, w, o, od, oh, ow, kd, kh, kw;
  int64_t stride[3], padding[3], dilation[3], groups; /* of depth, height and width */
  int64_t cg, og, taps;                               /* channels and outputs of a group; kd * kh * kw */
};

/* A row of the first operand: a position of an image. */
struct row {
  int64_t base, z, y, x;
  bool there;
};

static __device__ __forceinline__ row row_at(int64_t m, int64_t rows, int64_t d, int64_t h, int64_t w)
{
  row r = { 0, 0, 0, 0, m < rows };
  if (rows < INT64_C(1) << 31) { /* 32-bit division is several times faster */
    const uint32_t q = (uint32_t)m / (uint32_t)w;
    r.x = (uint32_t)m - q * (uint32_t)w;
    r.base = q / (uint32_t)h;
    r.y = q - (uint32_t)r.base * (uint32_t)h;
  } else {
    r.x = m % w;
    r.y = m / w % h;
    r.base = m / w / h;
  }
  if (d > 1) {
    r.z = r.base % d;
    r.base /= d;
  }
  return r;
}
/* Splits k = tap * channels + channel; the sizes of weights fit 32 bits. */
static __device__ __forceinline__ void split_k(const shape &s, int64_t k, int64_t channels, int64_t *channel,
                                               int64_t *tap, int64_t *kz, int64_t *ky, int64_t *kx)
{
  *tap = (uint32_t)k / (uint32_t)channels;
  *channel = k - *tap * channels;
  *ky = (uint32_t)*tap / (uint32_t)s.kw;
  *kx = *tap - *ky * s.kw;
  *kz = 0;
  if (s.kd > 1) {
    *kz = (uint32_t)*ky / (uint32_t)s.kh;
    *ky -= *kz * s.kh;
  }
}

/* The element of x (before its channel) under a tap of the window at z, y, x; -1: in the
 * padding. */
static __device__ __forceinline__ int64_t under(const shape &s, int64_t z, int64_t y, int64_t x, int64_t kz,
                                                int64_t ky, int64_t kx)
{
  z += kz * s.dilation[0];
  y += ky * s.dilation[1];
  x += kx * s.dilation[2];
  const bool inside = z >= 0 && z < s.d && y >= 0 && y < s.h && x >= 0 && x < s.w;
  return inside ? ((z * s.h + y) * s.w + x) * s.c : -1;
}

/* The window of a dim of `count` windows whose tap k is at `at`, padding counted; -1: none. */
static __device__ __forceinline__ int64_t window(const shape &s, int dim, int64_t at, int64_t k,
                                                 int64_t count)
{
  const int64_t from = at - k * s.dilation[dim];
  if (from < 0 || from % s.stride[dim] || from / s.stride[dim] >= count) return -1;
  return from / s.stride[dim];
}

/* y[position][o] = sum over (tap, c) of x[window][c] w[o][c][tap] */
template <class S> struct forward {
  typedef compute<S> T;
  typedef row left;
  shape s;
  const S *x, *w, *bias;
  S *y;
  int64_t rows, columns, depth;
  __device__ __forceinline__ left prepare(int64_t g, int64_t m) const
  {
    row r = row_at(m, rows, s.od, s.oh, s.ow);
    r.base = r.base * s.d * s.h * s.w * s.c + g * s.cg;
    r.z = r.z * s.stride[0] - s.padding[0];
    r.y = r.y * s.stride[1] - s.padding[1];
    r.x = r.x * s.stride[2] - s.padding[2];
    return r;
  }
  __device__ __forceinline__ T a(int64_t, const left &r, int64_t k) const
  {
    int64_t c, tap, kz, ky, kx;
    if (!r.there) return 0;
    split_k(s, k, s.cg, &c, &tap, &kz, &ky, &kx);
    const int64_t at = under(s, r.z, r.y, r.x, kz, ky, kx);
    return at >= 0 ? ax_cuda_load(x[r.base + at + c]) : (T)0;
  }
  __device__ __forceinline__ T b(int64_t g, int64_t k, int64_t n) const
  {
    int64_t c, tap, kz, ky, kx;
    split_k(s, k, s.cg, &c, &tap, &kz, &ky, &kx);
    return ax_cuda_load(w[((g * s.og + n) * s.cg + c) * s.taps + tap]);
  }
  __device__ __forceinline__ void put(int64_t g, int64_t, int64_t m, int64_t n, T v) const
  {
    y[m * s.o + g * s.og + n] = ax_cuda_store<S>(bias ? v + ax_cuda_load(bias[g * s.og + n]) : v);
  }
};

/* x[position][c] = sum over (tap, o) of y[the window with this tap at the position][o]
 * w[o][c][tap] */
template <class S> struct to_input {
  typedef compute<S> T;
  typedef row left;
  shape s;
  const S *y, *w;
  S *x;
  int64_t rows, columns, depth;
  __device__ __forceinline__ left prepare(int64_t g, int64_t m) const
  {
    row r = row_at(m, rows, s.d, s.h, s.w);
    r.base = r.base * s.od * s.oh * s.ow * s.o + g * s.og;
    r.z += s.padding[0];
    r.y += s.padding[1];
    r.x += s.padding[2];
    return r;
  }
  __device__ __forceinline__ T a(int64_t, const left &r, int64_t k) const
  {
    int64_t o, tap, kz, ky, kx;
    if (!r.there) return 0;
    split_k(s, k, s.og, &o, &tap, &kz, &ky, &kx);
    const int64_t oz = window(s, 0, r.z, kz, s.od), oy = window(s, 1, r.y, ky, s.oh),
                  ox = window(s, 2, r.x, kx, s.ow);
    if (oz < 0 || oy < 0 || ox < 0) return 0;
    return ax_cuda_load(y[r.base + ((oz * s.oh + oy) * s.ow + ox) * s.o + o]);
  }
  __device__ __forceinline__ T b(int64_t g, int64_t k, int64_t n) const
  {
    int64_t o, tap, kz, ky, kx;
    split_k(s, k, s.og, &o, &tap, &kz, &ky, &kx);
    return ax_cuda_load(w[((g * s.og + o) * s.cg + n) * s.taps + tap]);
  }
  __device__ __forceinline__ void put(int64_t g, int64_t, int64_t m, int64_t n, T v) const
  {
    x[m * s.c + g * s.cg + n] = ax_cuda_store<S>(v);
  }
};

/* w[o][tap, c] = sum over positions of y[position][o] x[window][c], for one piece of the
 * positions */
template <class S> struct to_weight {
  typedef compute<S> T;
  struct left {
    int64_t o;
    bool there;
  };
  shape s;
  const S *x, *y;
  T *sums; /* (pieces, groups, rows, columns) */
  int64_t rows, columns, depth;
  __device__ __forceinline__ left prepare(int64_t g, int64_t m) const
  {
    return left{ g * s.og + m, m < rows };
  }
  __device__ __forceinline__ T a(int64_t, const left &l, int64_t k) const
  {
    return l.there ? ax_cuda_load(y[k * s.o + l.o]) : (T)0;
  }
  __device__ __forceinline__ T b(int64_t g, int64_t k, int64_t n) const
  {
    int64_t c, tap, kz, ky, kx;
    const row r = row_at(k, depth, s.od, s.oh, s.ow);
    split_k(s, n, s.cg, &c, &tap, &kz, &ky, &kx);
    const int64_t at = under(s, r.z * s.stride[0] - s.padding[0], r.y * s.stride[1] - s.padding[1],
                             r.x * s.stride[2] - s.padding[2], kz, ky, kx);
    return at >= 0 ? ax_cuda_load(x[r.base * s.d * s.h * s.w * s.c + at + g * s.cg + c]) : (T)0;
  }
  __device__ __forceinline__ void put(int64_t g, int64_t piece, int64_t m, int64_t n, T v) const
  {
    sums[((piece * s.groups + g) * rows + m) * columns + n] = v;
  }
};

/* One block for each (tile of rows, tile of columns, group, piece of the depth); a thread computes
 * 4 x 4 results. */
template <class J> static __global__ void __launch_bounds__(THREADS, 2) tiles(J j, int64_t pieces)
{
  typedef typename J::T T;
  __shared__ T a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
  const int64_t down = (j.rows + TILE - 1) / TILE, across = (j.columns + TILE - 1) / TILE,
                all = down * across * j.s.groups * pieces;
  const int k_own = threadIdx.x % DEPTH, r_own = threadIdx.x / DEPTH, tx = threadIdx.x % 16 * 4,
            ty = threadIdx.x / 16 * 4;

  for (int64_t t = blockIdx.x; t < all; t += gridDim.x) {
    const int64_t n0 = t % across * TILE, m0 = t / across % down * TILE, g = t / across / down % j.s.groups,
                  piece = t / across / down / j.s.groups;
    const int64_t lo = j.depth * piece / pieces, hi = j.depth * (piece + 1) / pieces;
    typename J::left left[4];
    T sum[4][4] = {};
    for (int i = 0; i < 4; i++) left[i] = j.prepare(g, m0 + r_own + i * 16);
    for (int64_t k0 = lo; k0 < hi; k0 += DEPTH) {
      for (int i = 0; i < 4; i++) {
        const int64_t k = k0 + k_own, n = n0 + r_own + i * 16;
        a[k_own][r_own + i * 16] = k < hi ? j.a(g, left[i], k) : (T)0;
        b[k_own][r_own + i * 16] = k < hi && n < j.columns ? j.b(g, k, n) : (T)0;
      }
      __syncthreads();
      for (int k = 0; k < DEPTH; k++) {
        T u[4], v[4];
        for (int i = 0; i < 4; i++) u[i] = a[k][ty + i], v[i] = b[k][tx + i];
        for (int i = 0; i < 4; i++)
          for (int l = 0; l < 4; l++) sum[i][l] += u[i] * v[l];
      }
      __syncthreads();
    }
    for (int i = 0; i < 4; i++)
      for (int l = 0; l < 4; l++)
        if (m0 + ty + i < j.rows && n0 + tx + l < j.columns)
          j.put(g, piece, m0 + ty + i, n0 + tx + l, sum[i][l]);
  }
}

template <class J> static ax_status run(ax_device d, const J &j, int64_t pieces)
{
  const int64_t blocks = (j.rows + TILE - 1) / TILE * ((j.columns + TILE - 1) / TILE) * j.s.groups * pieces;
  if (blocks == 0) return AX_OK;
  return ax_cuda_launch("conv2d", d, (unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX), THREADS, tiles<J>,
                        j, pieces);
}

/* Adds the pieces' sums, (groups, og, tap, cg), in order into the weight (o, cg, tap). */
template <class T>
static __global__ void add_pieces(shape s, const T *sums, int64_t pieces, bool add, int dtype, void *w)
{
  const int64_t count = s.o * s.cg * s.taps;
  for (int64_t p = AX_FIRST; p < count; p += AX_STEP) {
    const int64_t tap = p % s.taps, c = p / s.taps % s.cg, o = p / s.taps / s.cg;
    const T *from = sums + (o * s.taps + tap) * s.cg + c;
    T sum = from[0];
    for (int64_t k = 1; k < pieces; k++) sum += from[k * count];
    if (add) sum += (T)ax_cuda_number_at(dtype, w, p);
    ax_cuda_number_put(dtype, w, p, sum);
  }
}

static shape shape_of(const ax_call *call, const ax_tensor *x, const int64_t *weight, const ax_tensor *y)
{
  const ax_attrs *a = call->a;
  const int h = x->ndim - 2; /* the dim of the height */
  const bool deep = h == 3;
  shape s = {};
  s.n = x->shape[0], s.c = x->shape[1], s.o = y->shape[1];
  s.d = deep ? x->shape[2] : 1, s.h = x->shape[h], s.w = x->shape[h + 1];
  s.od = deep ? y->shape[2] : 1, s.oh = y->shape[h], s.ow = y->shape[h + 1];
  s.kd = deep ? weight[2] : 1, s.kh = weight[h], s.kw = weight[h + 1];
  for (int k = 0; k < 3; k++) {
    s.stride[k] = a->convolution.stride[k];
    s.padding[k] = a->convolution.padding[k];
    s.dilation[k] = a->convolution.dilation[k];
  }
  s.groups = a->convolution.groups;
  s.cg = s.c / s.groups;
  s.og = s.o / s.groups;
  s.taps = s.kd * s.kh * s.kw;
  return s;
}

/* Runs the call by cuDNN where it has a plan. */
static ax_status try_cudnn(ax_cuda_conv_kind kind, const ax_call *call, const shape &s, const ax_tensor *x,
                           const ax_tensor *w, const ax_tensor *bias, const ax_tensor *y, bool *done)
{
  ax_cuda_conv c = {};
  c.dims = x->ndim - 2;
  c.n = s.n, c.c = s.c, c.o = s.o, c.groups = s.groups;
  const int64_t in[3] = { s.d, s.h, s.w }, out[3] = { s.od, s.oh, s.ow }, kernel[3] = { s.kd, s.kh, s.kw };
  for (int64_t k = 0; k < c.dims; k++) {
    const int64_t from = 3 - c.dims + k;
    c.in[k] = in[from], c.out[k] = out[from], c.kernel[k] = kernel[from];
    c.stride[k] = s.stride[from], c.padding[k] = s.padding[from], c.dilation[k] = s.dilation[from];
  }
  return ax_cudnn_convolve(x->device, kind, &c, (ax_dtype)x->dtype, (ax_dtype)w->dtype, ax_data(x),
                           ax_data(w), bias ? ax_data(bias) : NULL, ax_data(y),
                           kind == AX_CONV_WEIGHT && call->a->accumulate, done);
}

AX_CUDA_KERNEL(_convolution)
{
  const ax_tensor *x = call->in[0], *w = call->in[1], *bias = call->n_in > 2 ? call->in[2] : NULL,
                  *y = call->out[0];
  const shape s = shape_of(call, x, w->shape, y);
  bool done = false;
  if (y->numel == 0) return AX_OK;
  const ax_status st = try_cudnn(AX_CONV_FORWARD, call, s, x, w, bias, y, &done);
  if (st != AX_OK || done) return st;
  return ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    const forward<S> j = { s,
                           ax_cuda_data<S>(x),
                           ax_cuda_data<S>(w),
                           bias ? ax_cuda_data<S>(bias) : NULL,
                           ax_cuda_data<S>(y),
                           s.n * s.od * s.oh * s.ow,
                           s.og,
                           s.cg * s.taps };
    return run(y->device, j, 1);
  });
}

AX_CUDA_KERNEL(_conv2d_backward_input)
{
  const ax_tensor *g = call->in[0], *w = call->in[1], *x = call->out[0];
  const shape s = shape_of(call, x, w->shape, g);
  if (x->numel == 0) return AX_OK;
  if (g->numel == 0) return ax_cuda_clear("conv2d", x->device, ax_data(x), (size_t)x->numel * ax_itemsize(x));
  bool done = false;
  const ax_status st = try_cudnn(AX_CONV_INPUT, call, s, x, w, NULL, g, &done);
  if (st != AX_OK || done) return st;
  return ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    const to_input<S> j = {
      s,    ax_cuda_data<S>(g), ax_cuda_data<S>(w), ax_cuda_data<S>(x), s.n * s.d * s.h * s.w,
      s.cg, s.og * s.taps
    };
    return run(x->device, j, 1);
  });
}

AX_CUDA_KERNEL(_conv2d_backward_weight)
{
  const ax_tensor *x = call->in[0], *g = call->in[1], *w = call->out[0];
  const shape s = shape_of(call, x, w->shape, g);
  const ax_device d = w->device;
  const bool add = call->a->accumulate;
  const int64_t positions = s.n * s.od * s.oh * s.ow, wanted = (positions + PIECE - 1) / PIECE,
                pieces = wanted < 1             ? 1
                         : wanted < MOST_PIECES ? wanted
                                                : MOST_PIECES;

  if (w->numel == 0) return AX_OK;
  if (x->numel == 0 || g->numel == 0)
    return add ? AX_OK : ax_cuda_clear("conv2d", d, ax_data(w), (size_t)w->numel * ax_itemsize(w));
  bool done = false;
  const ax_status tried = try_cudnn(AX_CONV_WEIGHT, call, s, x, w, NULL, g, &done);
  if (tried != AX_OK || done) return tried;
  return ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    const size_t bytes = (size_t)(pieces * w->numel) * sizeof(T);
    T *sums;
    ax_status st = ax_cuda_take(d, bytes, (void **)&sums);
    if (st != AX_OK) return st;
    const to_weight<S> j = {
      s, ax_cuda_data<S>(x), ax_cuda_data<S>(g), sums, s.og, s.cg * s.taps, positions
    };
    st = run(d, j, pieces);
    if (st == AX_OK)
      st = ax_cuda_launch("conv2d", d, ax_cuda_blocks(w->numel, 256, d.index), 256, add_pieces<T>, s,
                          (const T *)sums, pieces, add, (int)w->dtype, ax_data(w));
    ax_cuda_give(d, sums, bytes);
    return st;
  });
}

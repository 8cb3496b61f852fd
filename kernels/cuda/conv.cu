/* Convolutions and their gradients as matrix products whose operands are never stored (implicit
 * GEMM): a block computes a tile of the result, and its threads fetch the elements of both operands
 * through the windows.  Channels are innermost in images, weights are (o, c / groups, kh, kw).
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
  int64_t n, c, h, w, o, oh, ow, kh, kw, stride[2], padding[2], dilation[2], groups;
  int64_t cg, og, taps; /* channels and outputs of a group; kh * kw */
};

/* A row of the first operand: a position of an image. */
struct row {
  int64_t base, y, x;
  bool there;
};

static __device__ __forceinline__ row row_at(int64_t m, int64_t rows, int64_t h, int64_t w)
{
  row r = { 0, 0, 0, m < rows };
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
  return r;
}
/* Splits k = tap * channels + channel; the sizes of weights fit 32 bits. */
static __device__ __forceinline__ void split_k(const shape &s, int64_t k, int64_t channels, int64_t *channel,
                                               int64_t *tap, int64_t *ky, int64_t *kx)
{
  *tap = (uint32_t)k / (uint32_t)channels;
  *channel = k - *tap * channels;
  *ky = (uint32_t)*tap / (uint32_t)s.kw;
  *kx = *tap - *ky * s.kw;
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
    row r = row_at(m, rows, s.oh, s.ow);
    r.base = r.base * s.h * s.w * s.c + g * s.cg;
    r.y = r.y * s.stride[0] - s.padding[0];
    r.x = r.x * s.stride[1] - s.padding[1];
    return r;
  }
  __device__ __forceinline__ T a(int64_t, const left &r, int64_t k) const
  {
    int64_t c, tap, ky, kx;
    if (!r.there) return 0;
    split_k(s, k, s.cg, &c, &tap, &ky, &kx);
    const int64_t iy = r.y + ky * s.dilation[0], ix = r.x + kx * s.dilation[1];
    return iy >= 0 && iy < s.h && ix >= 0 && ix < s.w ? ax_cuda_load(x[r.base + (iy * s.w + ix) * s.c + c])
                                                      : (T)0;
  }
  __device__ __forceinline__ T b(int64_t g, int64_t k, int64_t n) const
  {
    int64_t c, tap, ky, kx;
    split_k(s, k, s.cg, &c, &tap, &ky, &kx);
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
    row r = row_at(m, rows, s.h, s.w);
    r.base = r.base * s.oh * s.ow * s.o + g * s.og;
    r.y += s.padding[0];
    r.x += s.padding[1];
    return r;
  }
  __device__ __forceinline__ T a(int64_t, const left &r, int64_t k) const
  {
    int64_t o, tap, ky, kx;
    if (!r.there) return 0;
    split_k(s, k, s.og, &o, &tap, &ky, &kx);
    const int64_t fy = r.y - ky * s.dilation[0], fx = r.x - kx * s.dilation[1];
    if (fy < 0 || fx < 0 || fy % s.stride[0] || fx % s.stride[1] || fy / s.stride[0] >= s.oh ||
        fx / s.stride[1] >= s.ow)
      return 0;
    return ax_cuda_load(y[r.base + (fy / s.stride[0] * s.ow + fx / s.stride[1]) * s.o + o]);
  }
  __device__ __forceinline__ T b(int64_t g, int64_t k, int64_t n) const
  {
    int64_t o, tap, ky, kx;
    split_k(s, k, s.og, &o, &tap, &ky, &kx);
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
    int64_t c, tap, ky, kx;
    const row r = row_at(k, depth, s.oh, s.ow);
    split_k(s, n, s.cg, &c, &tap, &ky, &kx);
    const int64_t iy = r.y * s.stride[0] - s.padding[0] + ky * s.dilation[0],
                  ix = r.x * s.stride[1] - s.padding[1] + kx * s.dilation[1];
    return iy >= 0 && iy < s.h && ix >= 0 && ix < s.w
               ? ax_cuda_load(x[((r.base * s.h + iy) * s.w + ix) * s.c + g * s.cg + c])
               : (T)0;
  }
  __device__ __forceinline__ void put(int64_t g, int64_t piece, int64_t m, int64_t n, T v) const
  {
    sums[((piece * s.groups + g) * rows + m) * columns + n] = v;
  }
};

/* One block for each (tile of rows, tile of columns, group, piece of the depth); a thread computes
 * 4 x 4 results. */
template <class J> static __global__ void tiles(J j, int64_t pieces)
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
  shape s = { x->shape[0],
              x->shape[1],
              x->shape[2],
              x->shape[3],
              y->shape[1],
              y->shape[2],
              y->shape[3],
              weight[2],
              weight[3],
              { a->convolution.stride[0], a->convolution.stride[1] },
              { a->convolution.padding[0], a->convolution.padding[1] },
              { a->convolution.dilation[0], a->convolution.dilation[1] },
              a->convolution.groups,
              0,
              0,
              0 };
  s.cg = s.c / s.groups;
  s.og = s.o / s.groups;
  s.taps = s.kh * s.kw;
  return s;
}

/* Runs the call by cuDNN where it has a plan. */
static ax_status try_cudnn(ax_cuda_conv_kind kind, const ax_call *call, const shape &s, const ax_tensor *x,
                           const ax_tensor *w, const ax_tensor *bias, const ax_tensor *y, bool *done)
{
  const ax_cuda_conv c = { s.n,
                           s.c,
                           s.h,
                           s.w,
                           s.o,
                           s.oh,
                           s.ow,
                           s.kh,
                           s.kw,
                           { s.stride[0], s.stride[1] },
                           { s.padding[0], s.padding[1] },
                           { s.dilation[0], s.dilation[1] },
                           s.groups };
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
                           s.n * s.oh * s.ow,
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
    const to_input<S> j = { s,    ax_cuda_data<S>(g), ax_cuda_data<S>(w), ax_cuda_data<S>(x), s.n * s.h * s.w,
                            s.cg, s.og * s.taps };
    return run(x->device, j, 1);
  });
}

AX_CUDA_KERNEL(_conv2d_backward_weight)
{
  const ax_tensor *x = call->in[0], *g = call->in[1], *w = call->out[0];
  const shape s = shape_of(call, x, w->shape, g);
  const ax_device d = w->device;
  const bool add = call->a->accumulate;
  const int64_t positions = s.n * s.oh * s.ow, wanted = (positions + PIECE - 1) / PIECE,
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

/* Batch normalisation over rows of channels (the channels are innermost, so neighbouring threads
 * have neighbouring channels); kernels/cpu/norm_batch.c has the formulas.  Memory bounds it.
 *
 * Sums over rows: a block has a chunk of the rows and a tile of the channels.  A thread has a run
 * of V channels (16 bytes) of every TY-th row of the chunk, with four rows in flight; the block
 * adds its TY parts of a channel in order.  Chunks, tiles and TY follow from the sizes alone, and V
 * does not change the order of additions: any alignment gives the same bits.  A warp then combines
 * a channel's chunks in float64.
 *
 * The statistics sum the differences from the chunk's first row and their squares.  The first row
 * is near the mean, so one pass is as exact as two. */
#include "rows.cuh"

enum { MOST_BLOCKS = 1024, LEAST_ROWS = 8, THREADS = 256, LANES = 32, WARPS = 4 };

struct job {
  int64_t rows, channels, chunks;
  /* runs of channels in a tile, a power of two up to LANES; the other threads of a block are
   * rows */
  int across;
  bool relu;
  bool rounded; /* to the type of the rows before a residual is added */
};

/* V: the channels of a run where memory is aligned. */
static job job_of(const ax_tensor *x)
{
  const int64_t V = 16 / (int64_t)ax_itemsize(x);
  job j = {};
  j.channels = x->shape[1];
  j.rows = j.channels ? x->numel / j.channels : 0;
  const int64_t runs = (j.channels + V - 1) / V;
  for (j.across = 1; j.across < LANES && j.across < runs;) j.across *= 2;
  const int64_t tiles = runs > j.across ? (runs + j.across - 1) / j.across : 1,
                most = MOST_BLOCKS / tiles > 0 ? MOST_BLOCKS / tiles : 1,
                each = (int64_t)THREADS / j.across * LEAST_ROWS;
  j.chunks = j.rows / each < 1 ? 1 : j.rows / each < most ? j.rows / each : most;
  return j;
}

/* One block for each tile of `across` runs of V channels and each chunk of rows. */
static inline unsigned blocks_of(const job &j, int V)
{
  const int64_t tile = (int64_t)j.across * V, blocks = (j.channels + tile - 1) / tile * j.chunks;
  return (unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX);
}

/* A tensor with one number for each channel, of any floating type, or none. */
struct each {
  const void *data;
  int dtype;
};
static each each_of(const ax_tensor *t) { return t ? each{ ax_data(t), t->dtype } : each{ NULL, 0 }; }
static __device__ __forceinline__ double at(const each &e, int64_t c, double otherwise)
{
  return e.data ? ax_cuda_number_at(e.dtype, e.data, c) : otherwise;
}

static __device__ __forceinline__ int64_t first_row(const job &j, int64_t chunk)
{
  return j.rows * chunk / j.chunks;
}

/* p % n for positions: most are below 2^32, where division is several times faster. */
static __device__ __forceinline__ int64_t channel_of(int64_t p, int64_t n)
{
  return p >> 32 ? p % n : (int64_t)((uint32_t)p % (uint32_t)n);
}

/* Numbers of V neighbouring channels, in runs of 16 bytes. */
template <int V, class T>
static __device__ __forceinline__ void channel_numbers(const T *from, int64_t c, T (&v)[V])
{
  constexpr int W = V * (int)sizeof(T) > 16 ? 16 / (int)sizeof(T) : V;
#pragma unroll
  for (int k = 0; k < V; k += W) {
    const ax_cuda_pack<T, W> pack = *(const ax_cuda_pack<T, W> *)(from + c + k);
    for (int i = 0; i < W; i++) v[k + i] = pack.v[i];
  }
}

/* Two sums over each chunk's rows, of what term(row, channel, loaded..., sums...) adds for V
 * neighbouring channels; written to sums[chunk][0 and 1][channel]. */
template <int V, class T, class L>
static __device__ __forceinline__ void chunk_sums(const job &j, T *sums, const L &of)
{
  __shared__ T shared[2][THREADS * V];
  const int tx = threadIdx.x % j.across, ty = threadIdx.x / j.across, down = THREADS / j.across,
            width = j.across * V;
  const int64_t tiles = (j.channels + width - 1) / width;

  for (int64_t t = blockIdx.x; t < tiles * j.chunks; t += gridDim.x) {
    const int64_t k = t / tiles, c0 = t % tiles * width, c = c0 + tx * V, lo = first_row(j, k),
                  hi = first_row(j, k + 1);
    T one[V], two[V];
    for (int i = 0; i < V; i++) one[i] = two[i] = 0;
    if (c < j.channels) { /* V divides the channels when it is not 1 */
      L mine = of;
      mine.begin(j, lo, c);
      int64_t r = lo + ty;
      for (; r + (L::AHEAD - 1) * down < hi; r += L::AHEAD * down) {
        typename L::loaded v[L::AHEAD];
#pragma unroll
        for (int i = 0; i < L::AHEAD; i++) mine.load((r + i * down) * j.channels + c, v[i]);
#pragma unroll
        for (int i = 0; i < L::AHEAD; i++) mine.add(j, v[i], one, two);
      }
      for (; r < hi; r += down) {
        typename L::loaded v;
        mine.load(r * j.channels + c, v);
        mine.add(j, v, one, two);
      }
    }
    __syncthreads(); /* the last tile's may still be in use */
    for (int i = 0; i < V; i++) {
      shared[0][ty * width + tx * V + i] = one[i];
      shared[1][ty * width + tx * V + i] = two[i];
    }
    __syncthreads();
    for (int p = threadIdx.x; p < 2 * width; p += THREADS) {
      const int which = p / width, at = p % width;
      T sum = 0;
      for (int y = 0; y < down; y++) sum += shared[which][y * width + at];
      if (c0 + at < j.channels) sums[(2 * k + which) * j.channels + c0 + at] = sum;
    }
  }
}

template <class S, int V> struct spread {
  static constexpr int AHEAD = 4; /* rows in flight */
  typedef compute<S> T;
  struct loaded {
    T x[V];
  };
  const S *x;
  T first[V];
  __device__ __forceinline__ void begin(const job &j, int64_t lo, int64_t c)
  {
    ax_cuda_get(x, lo * j.channels + c, first);
  }
  __device__ __forceinline__ void load(int64_t at, loaded &v) const { ax_cuda_get(x, at, v.x); }
  __device__ __forceinline__ void add(const job &, const loaded &v, T (&sum)[V], T (&square)[V]) const
  {
    for (int i = 0; i < V; i++) {
      const T d = v.x[i] - first[i];
      sum[i] += d;
      square[i] += d * d;
    }
  }
};
template <class S, int V>
static __global__ void __launch_bounds__(THREADS) statistics(job j, const S *x, compute<S> *sums)
{
  spread<S, V> of;
  of.x = x;
  chunk_sums<V>(j, sums, of);
}

/* y = x a + b.  a and b come from the rounded mean and invstd, so that the backward pass computes
 * the same numbers and finds where relu cut off. */
template <class T>
static __device__ __forceinline__ void coefficients(const each &weight, const each &bias, T mean, T invstd,
                                                    int64_t c, T *a, T *b)
{
  const double w = at(weight, c, 1) * (double)invstd;
  *a = (T)w;
  *b = (T)(at(bias, c, 0) - (double)mean * w);
}

/* Combined rows: their number, their mean, and the sum of squared differences from it. */
struct part {
  double count, centre, total;
};
static __device__ __forceinline__ part merged(const part &a, const part &b)
{
  const double n = a.count + b.count, apart = b.centre - a.centre;
  if (a.count == 0) return b;
  if (b.count == 0) return a;
  const double share = b.count / n; /* divisions in float64 are what the kernel waits for */
  return part{ n, a.centre + apart * share, a.total + b.total + apart * apart * a.count * share };
}
static __device__ __forceinline__ part merged_with(const part &own, int by, int lane)
{
  const part other = { __shfl_xor_sync(0xffffffffu, own.count, by),
                       __shfl_xor_sync(0xffffffffu, own.centre, by),
                       __shfl_xor_sync(0xffffffffu, own.total, by) };
  return lane & by ? merged(other, own) : merged(own, other);
}

/* One warp for each channel. */
template <class S>
static __global__ void combine(job j, const S *x, const compute<S> *sums, each weight, each bias,
                               each running_mean, each running_var, double momentum, double eps,
                               compute<S> *mean, compute<S> *invstd, compute<S> *a, compute<S> *b)
{
  typedef compute<S> T;
  const int lane = threadIdx.x % 32;
  for (int64_t c = ax_cuda_team<false>::first_row(); c < j.channels; c += ax_cuda_team<false>::row_step()) {
    part all = { 0, 0, 0 };
    for (int64_t k = lane; k < j.chunks; k += 32) {
      const int64_t lo = first_row(j, k);
      const double many = (double)(first_row(j, k + 1) - lo), sum = (double)sums[2 * k * j.channels + c],
                   square = (double)sums[(2 * k + 1) * j.channels + c], mean = sum / many;
      const double here = (double)ax_cuda_load(x[lo * j.channels + c]) + mean, around = square - sum * mean;
      all = merged(all, part{ many, here, around < 0 ? 0 : around });
    }
    for (int by = 16; by > 0; by >>= 1) /* the lower lane's part is first in both lanes, so that they agree */
      all = merged_with(all, by, lane);
    if (lane != 0) continue;
    mean[c] = (T)all.centre;
    invstd[c] = (T)(1 / sqrt(all.total / (double)j.rows + eps));
    coefficients(weight, bias, mean[c], invstd[c], c, &a[c], &b[c]);
    if (running_mean.data)
      ax_cuda_number_put(running_mean.dtype, (void *)running_mean.data, c,
                         (1 - momentum) * at(running_mean, c, 0) + momentum * all.centre);
    if (running_var.data)
      ax_cuda_number_put(running_var.dtype, (void *)running_var.data, c,
                         (1 - momentum) * at(running_var, c, 0) +
                             momentum * all.total / (double)(j.rows - 1));
  }
}

/* y = x a + b (+ residual), rectified */
template <class S, int V>
static __global__ void apply(job j, S *y, const S *x, const S *residual, const compute<S> *a,
                             const compute<S> *b)
{
  typedef compute<S> T;
  for (int64_t q = AX_FIRST; q * V < j.rows * j.channels; q += AX_STEP) {
    const int64_t c = channel_of(q * V, j.channels);
    T v[V], z[V], av[V], bv[V];
    ax_cuda_get(x, q * V, v);
    if (residual) ax_cuda_get(residual, q * V, z);
    channel_numbers(a, c, av);
    channel_numbers(b, c, bv);
    for (int k = 0; k < V; k++) {
      v[k] = v[k] * av[k] + bv[k];
      if (j.rounded) v[k] = ax_cuda_load(ax_cuda_store<S>(v[k]));
      if (residual) v[k] += z[k];
      if (j.relu) v[k] = v[k] < 0 ? (T)0 : v[k];
    }
    ax_cuda_put(y, q * V, v);
  }
}

template <class S>
static ax_status run_apply(const char *name, const ax_tensor *x, const ax_tensor *residual,
                           const ax_tensor *y, job j, const compute<S> *a, const compute<S> *b)
{
  constexpr int V = 16 / (int)sizeof(S);
  const ax_device d = y->device;
  S *to = ax_cuda_data<S>(y);
  const S *from = ax_cuda_data<S>(x), *more = residual ? ax_cuda_data<S>(residual) : NULL;
  if (j.channels % V == 0 && ((uintptr_t)to | (uintptr_t)from | (uintptr_t)more) % 16 == 0)
    return ax_cuda_launch(name, d, ax_cuda_blocks(y->numel / V, 256, d.index), 256, apply<S, V>, j, to, from,
                          more, a, b);
  return ax_cuda_launch(name, d, ax_cuda_blocks(y->numel, 256, d.index), 256, apply<S, 1>, j, to, from, more,
                        a, b);
}

static ax_status train(const ax_call *call, const ax_tensor *residual)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  auto input = [&](int k) { return each_of(call->n_in > k ? call->in[k] : NULL); };
  const ax_device d = x->device;
  job j = job_of(x);

  if (x->numel == 0) return AX_OK;
  const bool apart = call->n_out > 3; /* for _scale_shift */
  j.relu = call->a->batch_norm_train.relu;
  return ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    constexpr int V = 16 / (int)sizeof(S);
    const size_t bytes = (size_t)(2 * j.chunks + 2) * (size_t)j.channels * sizeof(T);
    T *sums;
    ax_status st = ax_cuda_take(d, bytes, (void **)&sums);
    if (st != AX_OK) return st;
    T *const a = apart ? ax_cuda_data<T>(call->out[3]) : sums + 2 * j.chunks * j.channels,
             *const b = apart ? ax_cuda_data<T>(call->out[4]) : a + j.channels;
    st = j.channels % V == 0 && (uintptr_t)ax_data(x) % 16 == 0
             ? ax_cuda_launch("batch_norm", d, blocks_of(j, V), THREADS, statistics<S, V>, j,
                              ax_cuda_data<S>(x), sums)
             : ax_cuda_launch("batch_norm", d, blocks_of(j, 1), THREADS, statistics<S, 1>, j,
                              ax_cuda_data<S>(x), sums);
    if (st == AX_OK)
      st = ax_cuda_launch("batch_norm", d, ax_cuda_blocks(j.channels, WARPS, d.index), WARPS * 32, combine<S>,
                          j, ax_cuda_data<S>(x), (const T *)sums, input(1), input(2), input(3), input(4),
                          call->a->batch_norm_train.momentum, call->a->batch_norm_train.eps,
                          ax_cuda_data<T>(call->out[1]), ax_cuda_data<T>(call->out[2]), a, b);
    if (st == AX_OK && !apart) st = run_apply<S>("batch_norm", x, residual, y, j, a, b);
    ax_cuda_give(d, sums, bytes);
    return st;
  });
}

AX_CUDA_KERNEL(_batch_norm) { return train(call, NULL); }
AX_CUDA_KERNEL(_batch_norm_residual) { return train(call, call->in[5]); }

/* ---- gradient: sums of g and of g (x - mean); g counts as 0 where relu cut the result off (x a +
 * b <= 0) */

template <class S>
static __global__ void factors(job j, each weight, each bias, const compute<S> *mean,
                               const compute<S> *invstd, compute<S> *a, compute<S> *b)
{
  for (int64_t c = AX_FIRST; c < j.channels; c += AX_STEP)
    coefficients(weight, bias, mean[c], invstd[c], c, &a[c], &b[c]);
}

/* MASK: g counts where y is above 0 alone, and is written like that. */
template <class S, int V, bool MASK> struct product {
  static constexpr int AHEAD = MASK ? 2 : 4; /* of 4, a thread would need 177 registers */
  typedef compute<S> T;
  struct loaded {
    T g[V], x[V], y[MASK ? V : 1];
    int64_t at;
  };
  const S *g, *x, *y;
  S *masked;
  const T *mean, *a, *b;
  T centre[V], by[V], plus[V];
  __device__ __forceinline__ void begin(const job &j, int64_t, int64_t c)
  {
    channel_numbers(mean, c, centre);
    if (!j.relu) return;
    channel_numbers(a, c, by);
    channel_numbers(b, c, plus);
  }
  __device__ __forceinline__ void load(int64_t at, loaded &v) const
  {
    ax_cuda_get(g, at, v.g);
    ax_cuda_get(x, at, v.x);
    if constexpr (MASK) ax_cuda_get(y, at, v.y);
    v.at = at;
  }
  __device__ __forceinline__ void add(const job &j, loaded &v, T (&sum)[V], T (&products)[V]) const
  {
    if constexpr (MASK) {
      for (int i = 0; i < V; i++)
        if (!(v.y[i] > 0)) v.g[i] = 0;
      ax_cuda_put(masked, v.at, v.g);
    }
    for (int i = 0; i < V; i++) {
      const T counts = !j.relu || v.x[i] * by[i] + plus[i] > 0 ? v.g[i] : (T)0;
      sum[i] += counts;
      products[i] += counts * (v.x[i] - centre[i]);
    }
  }
};
template <class S, int V, bool MASK>
static __global__ void __launch_bounds__(THREADS)
    products(job j, const S *g, const S *x, const S *y, S *masked, const compute<S> *mean,
             const compute<S> *a, const compute<S> *b, compute<S> *sums)
{
  product<S, V, MASK> of;
  of.g = g, of.x = x, of.y = y, of.masked = masked, of.mean = mean, of.a = a, of.b = b;
  chunk_sums<V>(j, sums, of);
}

/* The parameters' gradients, and p, q, s of dx = p g + q (x - mean) + s.  One warp for each
 * channel. */
template <class S>
static __global__ void add_up(job j, const compute<S> *sums, each weight, const compute<S> *invstd,
                              each dweight, each dbias, compute<S> *p)
{
  typedef compute<S> T;
  T *const q = p + j.channels, *const s = q + j.channels;
  const int lane = threadIdx.x % 32;
  for (int64_t c = ax_cuda_team<false>::first_row(); c < j.channels; c += ax_cuda_team<false>::row_step()) {
    double sum = 0, product = 0;
    for (int64_t k = lane; j.rows && k < j.chunks; k += 32) {
      sum += (double)sums[2 * k * j.channels + c];
      product += (double)sums[(2 * k + 1) * j.channels + c];
    }
    sum = ax_cuda_warp_reduce(sum, [](double a, double b) { return a + b; });
    product = ax_cuda_warp_reduce(product, [](double a, double b) { return a + b; });
    if (lane != 0) continue;
    const double scale = (double)invstd[c], w = at(weight, c, 1) * scale;
    ax_cuda_number_put(dweight.dtype, (void *)dweight.data, c, product * scale);
    ax_cuda_number_put(dbias.dtype, (void *)dbias.data, c, sum);
    p[c] = (T)w;
    q[c] = j.rows ? (T)(-w * scale * scale * product / (double)j.rows) : (T)0;
    s[c] = j.rows ? (T)(-w * sum / (double)j.rows) : (T)0;
  }
}

template <class S, int V>
static __global__ void gradient(job j, S *dx, const S *g, const S *x, const compute<S> *mean,
                                const compute<S> *a, const compute<S> *b, const compute<S> *p)
{
  typedef compute<S> T;
  const T *const q = p + j.channels, *const s = q + j.channels;
  for (int64_t i = AX_FIRST; i * V < j.rows * j.channels; i += AX_STEP) {
    const int64_t c = channel_of(i * V, j.channels);
    T xv[V], gv[V], one[V], two[V];
    ax_cuda_get(x, i * V, xv);
    ax_cuda_get(g, i * V, gv);
    if (j.relu) {
      channel_numbers(a, c, one);
      channel_numbers(b, c, two);
      for (int k = 0; k < V; k++)
        if (!(xv[k] * one[k] + two[k] > 0)) gv[k] = 0;
    }
    channel_numbers(mean, c, one);
    channel_numbers(q, c, two);
    for (int k = 0; k < V; k++) xv[k] = two[k] * (xv[k] - one[k]);
    channel_numbers(p, c, one);
    channel_numbers(s, c, two);
    for (int k = 0; k < V; k++) gv[k] = one[k] * gv[k] + (xv[k] + two[k]);
    ax_cuda_put(dx, i * V, gv);
  }
}

AX_CUDA_KERNEL(_batch_norm_backward)
{
  const ax_tensor *g = call->in[0], *x = call->in[1], *weight = call->in[2], *bias = call->in[3],
                  *mean = call->in[4], *invstd = call->in[5], *dx = call->out[0];
  const ax_device d = x->device;
  job j = job_of(x);

  if (j.channels == 0) return AX_OK;
  j.relu = call->a->batch_norm_backward.relu;
  return ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    constexpr int V = 16 / (int)sizeof(S);
    const size_t bytes = (size_t)(2 * j.chunks + 5) * (size_t)j.channels * sizeof(T);
    const S *gp = ax_cuda_data<S>(g), *xp = ax_cuda_data<S>(x),
            *yp = call->n_in > 6 ? ax_cuda_data<S>(call->in[6]) : NULL;
    S *const masked = yp ? ax_cuda_data<S>(call->out[3]) : NULL;
    const T *m = ax_cuda_data<T>(mean), *inv = ax_cuda_data<T>(invstd);
    S *to = ax_cuda_data<S>(dx);
    T *sums;
    ax_status st = ax_cuda_take(d, bytes, (void **)&sums);
    if (st != AX_OK) return st;
    T *const a = sums + 2 * j.chunks * j.channels, *const b = a + j.channels, *const p = b + j.channels;
    const unsigned channels = ax_cuda_blocks(j.channels, THREADS, d.index);
    if (j.relu) /* where it cut off */
      st = ax_cuda_launch("batch_norm", d, channels, THREADS, factors<S>, j, each_of(weight), each_of(bias),
                          m, inv, a, b);
    if (st == AX_OK && j.rows) {
      const bool wide =
          j.channels % V == 0 &&
          ((uintptr_t)gp | (uintptr_t)xp | (uintptr_t)m | (uintptr_t)yp | (uintptr_t)masked) % 16 == 0;
      auto kernel = yp     ? wide ? products<S, V, true> : products<S, 1, true>
                        : wide ? products<S, V, false>
                           : products<S, 1, false>;
      st = ax_cuda_launch("batch_norm", d, blocks_of(j, wide ? V : 1), THREADS, kernel, j, gp, xp, yp, masked,
                          m, (const T *)a, (const T *)b, sums);
      if (masked) gp = masked;
    }
    if (st == AX_OK)
      st = ax_cuda_launch("batch_norm", d, ax_cuda_blocks(j.channels, WARPS, d.index), WARPS * 32, add_up<S>,
                          j, (const T *)sums, each_of(weight), inv, each_of(call->out[1]),
                          each_of(call->out[2]), p);
    if (st == AX_OK && x->numel) {
      if (j.channels % V == 0 && ((uintptr_t)to | (uintptr_t)gp | (uintptr_t)xp | (uintptr_t)m) % 16 == 0)
        st = ax_cuda_launch("batch_norm", d, ax_cuda_blocks(x->numel / V, 256, d.index), 256, gradient<S, V>,
                            j, to, gp, xp, m, (const T *)a, (const T *)b, (const T *)p);
      else
        st = ax_cuda_launch("batch_norm", d, ax_cuda_blocks(x->numel, 256, d.index), 256, gradient<S, 1>, j,
                            to, gp, xp, m, (const T *)a, (const T *)b, (const T *)p);
    }
    ax_cuda_give(d, sums, bytes);
    return st;
  });
}

/* ---- x * scale + shift, plus residual, rectified */

template <class T> static __global__ void widen(each scale, each shift, int64_t n, T *a, T *b)
{
  for (int64_t c = AX_FIRST; c < n; c += AX_STEP) {
    a[c] = (T)at(scale, c, 1);
    b[c] = (T)at(shift, c, 0);
  }
}

AX_CUDA_KERNEL(_scale_shift)
{
  const ax_tensor *x = call->in[0], *scale = call->in[1], *shift = call->in[2],
                  *residual = call->n_in > 3 ? call->in[3] : NULL;
  const ax_device d = x->device;
  job j = job_of(x);

  if (x->numel == 0) return AX_OK;
  j.relu = call->a->scale_shift.relu;
  j.rounded = call->a->scale_shift.rounded;
  return ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    const size_t bytes = 2 * (size_t)j.channels * sizeof(T);
    const ax_dtype own = sizeof(T) == 8 ? AX_F64 : AX_F32;
    if (scale->dtype == own && shift->dtype == own &&
        ((uintptr_t)ax_data(scale) | (uintptr_t)ax_data(shift)) % 16 == 0)
      return run_apply<S>("batch_norm", x, residual, call->out[0], j, ax_cuda_data<T>(scale),
                          ax_cuda_data<T>(shift));
    T *a;
    ax_status st = ax_cuda_take(d, bytes, (void **)&a);
    if (st != AX_OK) return st;
    st = ax_cuda_launch("batch_norm", d, ax_cuda_blocks(j.channels, THREADS, d.index), THREADS, widen<T>,
                        each_of(scale), each_of(shift), j.channels, a, a + j.channels);
    if (st == AX_OK) st = run_apply<S>("batch_norm", x, residual, call->out[0], j, a, a + j.channels);
    ax_cuda_give(d, a, bytes);
    return st;
  });
}

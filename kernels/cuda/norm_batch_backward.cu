/* The gradient of batch normalisation: sums of g and of g (x - mean); g counts as 0 where relu cut
 * the result off (x a + b <= 0).  kernels/cpu/norm_batch.c has the formulas. */
#include "norm_batch.cuh"

typedef batch_job job;
typedef batch_each each;

/* What the sums give: the parameters' gradients, and the factors of the pass behind them,
 *   dx = p g + q (x - mean) + s
 * p is a as well.  p, q, s and b follow each other in memory. */
template <class T> struct results {
  each weight, bias, dweight, dbias;
  const T *mean, *invstd;
  T *p;
};

/* MASK: fused relu; g is zeroed where y <= 0, and stored. */
template <class S, int V, bool MASK> struct product {
  typedef compute<S> T;
  static constexpr bool SHIFTED = false;
  struct row {
    ax_cuda_pack<S, V> g, x, y; /* y with MASK alone */
  };
  const S *g, *x, *y;
  S *masked;
  results<T> to;
  T *factors; /* shared: a and b of the tile's channels */
  T centre[V], by[V], plus[V];

  __device__ __forceinline__ void load(int64_t p, row &v) const
  {
    v.g = *(const ax_cuda_pack<S, V> *)(g + p);
    v.x = *(const ax_cuda_pack<S, V> *)(x + p);
    if constexpr (MASK) v.y = *(const ax_cuda_pack<S, V> *)(y + p);
  }
  __device__ __forceinline__ void begin(const job &j, const batch_place &place)
  {
    if (place.there) batch_channel_numbers(to.mean, place.c, centre);
    if constexpr (!MASK) {
      if (!j.relu) return;
      for (int k = threadIdx.x; k < place.width && place.c0 + k < j.channels; k += BATCH_THREADS) {
        const int64_t c = place.c0 + k;
        batch_coefficients(to.weight, to.bias, to.mean[c], to.invstd[c], c, &factors[k],
                           &factors[place.width + k]);
      }
      __syncthreads();
      if (!place.there) return;
      batch_channel_numbers(factors, place.tx * V, by);
      batch_channel_numbers(factors, place.width + place.tx * V, plus);
    }
  }
  __device__ __forceinline__ void add(const job &j, int64_t p, row &v, bool counts, T (&sum)[V],
                                      T (&products)[V]) const
  {
    if constexpr (MASK) {
      for (int i = 0; i < V; i++)
        if (!(ax_cuda_load(v.y.v[i]) > 0)) v.g.v[i] = S();
      if (counts) *(ax_cuda_pack<S, V> *)(masked + p) = v.g;
    }
    for (int i = 0; i < V; i++) {
      const T at = ax_cuda_load(v.x.v[i]), all = ax_cuda_load(v.g.v[i]),
              part = counts && (MASK || !j.relu || at * by[i] + plus[i] > 0) ? all : (T)0,
              product = part * (at - centre[i]);
      sum[i] += part;
      products[i] += counts ? product : (T)0;
    }
  }
  __device__ __forceinline__ T shift(const job &, int64_t, int64_t) const { return 0; }
  __device__ __forceinline__ double base(T) const { return 0; }
  __device__ __forceinline__ void join(const job &, int64_t, const double (&)[V], const T (&)[V],
                                       const T (&a)[V], const T (&b)[V], double (&sum)[V],
                                       double (&product)[V]) const
  {
    for (int i = 0; i < V; i++) {
      sum[i] += (double)a[i];
      product[i] += (double)b[i];
    }
  }
  __device__ __forceinline__ void finish(const job &j, int64_t c, double, double sum, double product) const
  {
    T *const p = to.p, *const q = p + j.channels, *const s = q + j.channels, *const b = s + j.channels;
    const double scale = (double)to.invstd[c], w = batch_number(to.weight, c, 1) * scale;
    ax_cuda_number_put(to.dweight.dtype, (void *)to.dweight.data, c, product * scale);
    ax_cuda_number_put(to.dbias.dtype, (void *)to.dbias.data, c, sum);
    batch_coefficients(to.weight, to.bias, to.mean[c], to.invstd[c], c, &p[c], &b[c]);
    q[c] = (T)(-w * scale * scale * product / (double)j.rows);
    s[c] = (T)(-w * sum / (double)j.rows);
  }
};
template <class S, int V, bool MASK>
static __global__ void __launch_bounds__(BATCH_THREADS, 2)
    products(job j, const S *g, const S *x, const S *y, S *masked, results<compute<S>> to, compute<S> *sums)
{
  typedef compute<S> T;
  constexpr int W = 16 / (int)sizeof(T);
  __shared__ ax_cuda_pack<T, W> held[2 * BATCH_LANES_ALONE * V / W];
  product<S, V, MASK> of;
  of.g = g, of.x = x, of.y = y, of.masked = masked, of.to = to, of.factors = held->v;
  batch_sums<V>(j, of, sums);
}

template <class T, class S>
static __device__ __forceinline__ S descended(const job &j, S x, S g, T mean, T p, T q, T s, T b)
{
  const T at = ax_cuda_load(x), counts = !j.relu || at * p + b > 0 ? ax_cuda_load(g) : (T)0;
  return ax_cuda_store<S>(p * counts + (q * (at - mean) + s));
}
template <class S>
static __global__ void gradient(job j, S *dx, const S *g, const S *x, const compute<S> *mean,
                                const compute<S> *p)
{
  const compute<S> *const q = p + j.channels, *const s = q + j.channels, *const b = s + j.channels;
  for (int64_t i = AX_FIRST; i < j.rows * j.channels; i += AX_STEP) {
    const int64_t c = batch_channel_of(i, j.channels);
    dx[i] = descended(j, x[i], g[i], mean[c], p[c], q[c], s[c], b[c]);
  }
}
template <class S, int V>
static __global__ void __launch_bounds__(BATCH_THREADS, 2)
    gradient_runs(job j, S *dx, const S *g, const S *x, const compute<S> *mean, const compute<S> *p)
{
  typedef ax_cuda_pack<S, V> pack;
  const batch_place place = batch_place_of<V>(j);
  const int64_t step = j.down * j.channels;
  compute<S> factors[5][V];
  if (place.there) {
    batch_channel_numbers(mean, place.c, factors[0]);
    for (int k = 0; k < 4; k++) batch_channel_numbers(p + k * j.channels, place.c, factors[k + 1]);
  }
  batch_pass(j, place, [&](int64_t at, auto rows) {
    constexpr int R = AX_VALUE_OF(rows);
    pack u[R], v[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
      u[r] = *(const pack *)(x + at + r * step);
      v[r] = *(const pack *)(g + at + r * step);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
      for (int i = 0; i < V; i++)
        v[r].v[i] = descended(j, u[r].v[i], v[r].v[i], factors[0][i], factors[1][i], factors[2][i],
                              factors[3][i], factors[4][i]);
      *(pack *)(dx + at + r * step) = v[r];
    }
  });
}

AX_CUDA_KERNEL(_batch_norm_backward)
{
  const ax_tensor *g = call->in[0], *x = call->in[1], *mean = call->in[4], *dx = call->out[0];
  const ax_device d = x->device;
  job j = batch_job_of(x);

  if (j.channels == 0) return AX_OK;
  if (j.rows == 0) {
    const ax_status st =
        ax_cuda_clear("batch_norm", d, ax_data(call->out[1]), (size_t)j.channels * ax_itemsize(call->out[1]));
    return st != AX_OK ? st
                       : ax_cuda_clear("batch_norm", d, ax_data(call->out[2]),
                                       (size_t)j.channels * ax_itemsize(call->out[2]));
  }
  j.relu = call->a->batch_norm_backward.relu;
  return ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    constexpr int V = 16 / (int)sizeof(S);
    const size_t bytes = (size_t)(2 * j.chunks + 4) * (size_t)j.channels * sizeof(T);
    const S *gp = ax_cuda_data<S>(g), *xp = ax_cuda_data<S>(x),
            *yp = call->n_in > 6 ? ax_cuda_data<S>(call->in[6]) : NULL;
    S *const masked = yp ? ax_cuda_data<S>(call->out[3]) : NULL, *const to = ax_cuda_data<S>(dx);
    const T *const m = ax_cuda_data<T>(mean);
    T *sums;
    ax_status st = ax_cuda_take(d, bytes, (void **)&sums);
    if (st != AX_OK) return st;
    T *const p = sums + 2 * j.chunks * j.channels;
    const results<T> found = { batch_each_of(call->in[2]),
                               batch_each_of(call->in[3]),
                               batch_each_of(call->out[1]),
                               batch_each_of(call->out[2]),
                               m,
                               ax_cuda_data<T>(call->in[5]),
                               p };
    const uintptr_t at = (uintptr_t)xp | (uintptr_t)m;
    const bool wide =
        j.channels % V == 0 && (at | (uintptr_t)gp | (uintptr_t)yp | (uintptr_t)masked) % 16 == 0;
    auto kernel = yp     ? wide ? products<S, V, true> : products<S, 1, true>
                      : wide ? products<S, V, false>
                         : products<S, 1, false>;
    st = ax_cuda_launch("batch_norm", d, batch_grid(j, wide ? V : 1, j.chunks), BATCH_THREADS, kernel, j, gp,
                        xp, yp, masked, found, sums);
    if (masked) gp = masked;
    if (st == AX_OK) {
      if (j.channels % V == 0 && (at | (uintptr_t)to | (uintptr_t)gp) % 16 == 0)
        st = ax_cuda_launch("batch_norm", d, batch_grid_of_pass(j, V, d.index), BATCH_THREADS,
                            gradient_runs<S, V>, j, to, gp, xp, m, (const T *)p);
      else
        st = ax_cuda_launch("batch_norm", d, ax_cuda_blocks(x->numel, 256, d.index), 256, gradient<S>, j, to,
                            gp, xp, m, (const T *)p);
    }
    ax_cuda_give(d, sums, bytes);
    return st;
  });
}

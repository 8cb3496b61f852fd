/* The gradient of batch normalisation: sums of g and of g (x - mean); g counts as 0 where relu cut
 * the result off (x a + b <= 0).  kernels/cpu/norm_batch.c has the formulas. */
#include "norm_batch.cuh"

typedef batch_job job;
typedef batch_each each;

template <class S>
static __global__ void factors(job j, each weight, each bias, const compute<S> *mean,
                               const compute<S> *invstd, compute<S> *a, compute<S> *b)
{
  for (int64_t c = AX_FIRST; c < j.channels; c += AX_STEP)
    batch_coefficients(weight, bias, mean[c], invstd[c], c, &a[c], &b[c]);
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
    batch_channel_numbers(mean, c, centre);
    if (!j.relu) return;
    batch_channel_numbers(a, c, by);
    batch_channel_numbers(b, c, plus);
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
static __global__ void __launch_bounds__(BATCH_THREADS, 2)
    products(job j, const S *g, const S *x, const S *y, S *masked, const compute<S> *mean,
             const compute<S> *a, const compute<S> *b, compute<S> *sums)
{
  product<S, V, MASK> of;
  of.g = g, of.x = x, of.y = y, of.masked = masked, of.mean = mean, of.a = a, of.b = b;
  batch_chunk_sums<V>(j, sums, of);
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
    const double scale = (double)invstd[c], w = batch_number(weight, c, 1) * scale;
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
    const int64_t c = batch_channel_of(i * V, j.channels);
    T xv[V], gv[V], one[V], two[V];
    ax_cuda_get(x, i * V, xv);
    ax_cuda_get(g, i * V, gv);
    if (j.relu) {
      batch_channel_numbers(a, c, one);
      batch_channel_numbers(b, c, two);
      for (int k = 0; k < V; k++)
        if (!(xv[k] * one[k] + two[k] > 0)) gv[k] = 0;
    }
    batch_channel_numbers(mean, c, one);
    batch_channel_numbers(q, c, two);
    for (int k = 0; k < V; k++) xv[k] = two[k] * (xv[k] - one[k]);
    batch_channel_numbers(p, c, one);
    batch_channel_numbers(s, c, two);
    for (int k = 0; k < V; k++) gv[k] = one[k] * gv[k] + (xv[k] + two[k]);
    ax_cuda_put(dx, i * V, gv);
  }
}

AX_CUDA_KERNEL(_batch_norm_backward)
{
  const ax_tensor *g = call->in[0], *x = call->in[1], *weight = call->in[2], *bias = call->in[3],
                  *mean = call->in[4], *invstd = call->in[5], *dx = call->out[0];
  const ax_device d = x->device;
  job j = batch_job_of(x);

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
    const unsigned channels = ax_cuda_blocks(j.channels, BATCH_THREADS, d.index);
    if (j.relu) /* where it cut off */
      st = ax_cuda_launch("batch_norm", d, channels, BATCH_THREADS, factors<S>, j, batch_each_of(weight),
                          batch_each_of(bias), m, inv, a, b);
    if (st == AX_OK && j.rows) {
      const bool wide =
          j.channels % V == 0 &&
          ((uintptr_t)gp | (uintptr_t)xp | (uintptr_t)m | (uintptr_t)yp | (uintptr_t)masked) % 16 == 0;
      auto kernel = yp     ? wide ? products<S, V, true> : products<S, 1, true>
                        : wide ? products<S, V, false>
                           : products<S, 1, false>;
      st = ax_cuda_launch("batch_norm", d, batch_blocks(j, wide ? V : 1), BATCH_THREADS, kernel, j, gp, xp,
                          yp, masked, m, (const T *)a, (const T *)b, sums);
      if (masked) gp = masked;
    }
    if (st == AX_OK)
      st = ax_cuda_launch("batch_norm", d, ax_cuda_blocks(j.channels, BATCH_WARPS, d.index), BATCH_WARPS * 32,
                          add_up<S>, j, (const T *)sums, batch_each_of(weight), inv,
                          batch_each_of(call->out[1]), batch_each_of(call->out[2]), p);
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

/* Batch normalisation over rows of channels; kernels/cpu/norm_batch.c has the formulas.  Memory
 * bounds it.
 *
 * The statistics sum the differences from the chunk's first row and their squares.  The first row
 * is near the mean, so one pass is as exact as two. */
#include "norm_batch.cuh"

typedef batch_job job;
typedef batch_each each;

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
static __global__ void __launch_bounds__(BATCH_THREADS) statistics(job j, const S *x, compute<S> *sums)
{
  spread<S, V> of;
  of.x = x;
  batch_chunk_sums<V>(j, sums, of);
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
      const int64_t lo = batch_first_row(j, k);
      const double many = (double)(batch_first_row(j, k + 1) - lo),
                   sum = (double)sums[2 * k * j.channels + c],
                   square = (double)sums[(2 * k + 1) * j.channels + c], mean = sum / many;
      const double here = (double)ax_cuda_load(x[lo * j.channels + c]) + mean, around = square - sum * mean;
      all = merged(all, part{ many, here, around < 0 ? 0 : around });
    }
    for (int by = 16; by > 0; by >>= 1) /* the lower lane's part is first in both lanes, so that they agree */
      all = merged_with(all, by, lane);
    if (lane != 0) continue;
    mean[c] = (T)all.centre;
    invstd[c] = (T)(1 / sqrt(all.total / (double)j.rows + eps));
    batch_coefficients(weight, bias, mean[c], invstd[c], c, &a[c], &b[c]);
    if (running_mean.data)
      ax_cuda_number_put(running_mean.dtype, (void *)running_mean.data, c,
                         (1 - momentum) * batch_number(running_mean, c, 0) + momentum * all.centre);
    if (running_var.data)
      ax_cuda_number_put(running_var.dtype, (void *)running_var.data, c,
                         (1 - momentum) * batch_number(running_var, c, 0) +
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
    const int64_t c = batch_channel_of(q * V, j.channels);
    T v[V], z[V], av[V], bv[V];
    ax_cuda_get(x, q * V, v);
    if (residual) ax_cuda_get(residual, q * V, z);
    batch_channel_numbers(a, c, av);
    batch_channel_numbers(b, c, bv);
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
  auto input = [&](int k) { return batch_each_of(call->n_in > k ? call->in[k] : NULL); };
  const ax_device d = x->device;
  job j = batch_job_of(x);

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
             ? ax_cuda_launch("batch_norm", d, batch_blocks(j, V), BATCH_THREADS, statistics<S, V>, j,
                              ax_cuda_data<S>(x), sums)
             : ax_cuda_launch("batch_norm", d, batch_blocks(j, 1), BATCH_THREADS, statistics<S, 1>, j,
                              ax_cuda_data<S>(x), sums);
    if (st == AX_OK)
      st = ax_cuda_launch("batch_norm", d, ax_cuda_blocks(j.channels, BATCH_WARPS, d.index), BATCH_WARPS * 32,
                          combine<S>, j, ax_cuda_data<S>(x), (const T *)sums, input(1), input(2), input(3),
                          input(4), call->a->batch_norm_train.momentum, call->a->batch_norm_train.eps,
                          ax_cuda_data<T>(call->out[1]), ax_cuda_data<T>(call->out[2]), a, b);
    if (st == AX_OK && !apart) st = run_apply<S>("batch_norm", x, residual, y, j, a, b);
    ax_cuda_give(d, sums, bytes);
    return st;
  });
}

AX_CUDA_KERNEL(_batch_norm) { return train(call, NULL); }
AX_CUDA_KERNEL(_batch_norm_residual) { return train(call, call->in[5]); }

/* ---- x * scale + shift, plus residual, rectified */

template <class T> static __global__ void widen(each scale, each shift, int64_t n, T *a, T *b)
{
  for (int64_t c = AX_FIRST; c < n; c += AX_STEP) {
    a[c] = (T)batch_number(scale, c, 1);
    b[c] = (T)batch_number(shift, c, 0);
  }
}

AX_CUDA_KERNEL(_scale_shift)
{
  const ax_tensor *x = call->in[0], *scale = call->in[1], *shift = call->in[2],
                  *residual = call->n_in > 3 ? call->in[3] : NULL;
  const ax_device d = x->device;
  job j = batch_job_of(x);

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
    st = ax_cuda_launch("batch_norm", d, ax_cuda_blocks(j.channels, BATCH_THREADS, d.index), BATCH_THREADS,
                        widen<T>, batch_each_of(scale), batch_each_of(shift), j.channels, a, a + j.channels);
    if (st == AX_OK) st = run_apply<S>("batch_norm", x, residual, call->out[0], j, a, a + j.channels);
    ax_cuda_give(d, a, bytes);
    return st;
  });
}

/* Batch normalisation over rows of channels; kernels/cpu/norm_batch.c has the formulas.  Memory
 * bounds it.
 *
 * The statistics sum the differences from the chunk's first row and their squares.  The first row
 * is near the mean, so one pass is as exact as two. */
#include "norm_batch.cuh"

typedef batch_job job;
typedef batch_each each;

template <class S, int V> struct spread {
  typedef compute<S> T;
  typedef ax_cuda_pack<S, V> row;
  static constexpr bool SHIFTED = true;
  const S *x;
  each weight, bias, running_mean, running_var;
  double momentum, eps;
  T *mean, *invstd, *a, *b;
  T first[V];

  __device__ __forceinline__ void load(int64_t p, row &v) const { v = *(const row *)(x + p); }
  __device__ __forceinline__ void begin(const job &j, const batch_place &place)
  {
    if (place.there) ax_cuda_get(x, batch_first_row(j, blockIdx.y) * j.channels + place.c, first);
  }
  __device__ __forceinline__ void add(const job &, int64_t, const row &v, bool counts, T (&sum)[V],
                                      T (&square)[V]) const
  {
    for (int i = 0; i < V; i++) {
      const T d = counts ? ax_cuda_load(v.v[i]) - first[i] : (T)0;
      sum[i] += d;
      square[i] += d * d;
    }
  }
  __device__ __forceinline__ T shift(const job &j, int64_t k, int64_t c) const
  {
    return ax_cuda_load(x[batch_first_row(j, k) * j.channels + c]);
  }
  /* Sums are joined about the first row of chunk 0, unless that is no number. */
  __device__ __forceinline__ double base(T shift0) const
  {
    return shift0 - shift0 == 0 ? (double)shift0 : 0.0;
  }
  __device__ __forceinline__ void join(const job &j, int64_t k, const double (&base)[V], const T (&shift)[V],
                                       const T (&sum)[V], const T (&square)[V], double (&all)[V],
                                       double (&squares)[V]) const
  {
    const double rows = (double)batch_rows_of(j, k), share = 1 / rows;
    for (int i = 0; i < V; i++) {
      const double apart = (double)sum[i] * share, around = (double)square[i] - (double)sum[i] * apart,
                   d = (double)shift[i] - base[i] + apart;
      all[i] += rows * d;
      squares[i] += (around < 0 ? 0 : around) + rows * d * d;
    }
  }
  __device__ __forceinline__ void finish(const job &j, int64_t c, double base, double sum,
                                         double square) const
  {
    const double apart = sum / (double)j.rows, centre = base + apart, around = square - sum * apart,
                 total = around < 0 ? 0 : around;
    mean[c] = (T)centre;
    invstd[c] = (T)(1 / sqrt(total / (double)j.rows + eps));
    batch_coefficients(weight, bias, mean[c], invstd[c], c, &a[c], &b[c]);
    if (running_mean.data)
      ax_cuda_number_put(running_mean.dtype, (void *)running_mean.data, c,
                         (1 - momentum) * batch_number(running_mean, c, 0) + momentum * centre);
    if (running_var.data)
      ax_cuda_number_put(running_var.dtype, (void *)running_var.data, c,
                         (1 - momentum) * batch_number(running_var, c, 0) +
                             momentum * total / (double)(j.rows - 1));
  }
};
template <class S, int V>
static __global__ void __launch_bounds__(BATCH_THREADS, 2)
    statistics(job j, spread<S, V> of, compute<S> *sums)
{
  batch_sums<V>(j, of, sums);
}

/* y = x a + b (+ residual), rectified */
template <class T, class S>
static __device__ __forceinline__ S applied(const job &j, S x, S residual, bool more, T a, T b)
{
  T v = ax_cuda_load(x) * a + b;
  if (j.rounded) v = ax_cuda_load(ax_cuda_store<S>(v));
  if (more) v += ax_cuda_load(residual);
  if (j.relu) v = v < 0 ? (T)0 : v;
  return ax_cuda_store<S>(v);
}
template <class S>
static __global__ void apply(job j, S *y, const S *x, const S *residual, const compute<S> *a,
                             const compute<S> *b)
{
  for (int64_t p = AX_FIRST; p < j.rows * j.channels; p += AX_STEP) {
    const int64_t c = batch_channel_of(p, j.channels);
    y[p] = applied(j, x[p], residual ? residual[p] : S(), residual != NULL, a[c], b[c]);
  }
}
/* MORE: with a residual. */
template <class S, int V, bool MORE>
static __global__ void __launch_bounds__(BATCH_THREADS, 3)
    apply_runs(job j, S *y, const S *x, const S *residual, const compute<S> *a, const compute<S> *b)
{
  typedef ax_cuda_pack<S, V> pack;
  const batch_place place = batch_place_of<V>(j);
  const int64_t step = j.down * j.channels;
  compute<S> by[V], plus[V];
  if (place.there) {
    batch_channel_numbers(a, place.c, by);
    batch_channel_numbers(b, place.c, plus);
  }
  batch_pass(j, place, [&](int64_t at, auto rows) {
    constexpr int R = AX_VALUE_OF(rows);
    pack v[R], z[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
      v[r] = *(const pack *)(x + at + r * step);
      if (MORE) z[r] = *(const pack *)(residual + at + r * step);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
      for (int i = 0; i < V; i++) v[r].v[i] = applied(j, v[r].v[i], z[r].v[i], MORE, by[i], plus[i]);
      *(pack *)(y + at + r * step) = v[r];
    }
  });
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
    return ax_cuda_launch(name, d, batch_grid_of_pass(j, V, d.index), BATCH_THREADS,
                          more ? apply_runs<S, V, true> : apply_runs<S, V, false>, j, to, from, more, a, b);
  return ax_cuda_launch(name, d, ax_cuda_blocks(y->numel, 256, d.index), 256, apply<S>, j, to, from, more, a,
                        b);
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
    const size_t bytes = (size_t)(3 * j.chunks + 2) * (size_t)j.channels * sizeof(T);
    T *sums;
    ax_status st = ax_cuda_take(d, bytes, (void **)&sums);
    if (st != AX_OK) return st;
    T *const a = apart ? ax_cuda_data<T>(call->out[3]) : sums + 3 * j.chunks * j.channels,
             *const b = apart ? ax_cuda_data<T>(call->out[4]) : a + j.channels;
    auto launch = [&](auto width) {
      constexpr int W = AX_VALUE_OF(width);
      spread<S, W> of = {};
      of.x = ax_cuda_data<S>(x);
      of.weight = input(1), of.bias = input(2), of.running_mean = input(3), of.running_var = input(4);
      of.momentum = call->a->batch_norm_train.momentum, of.eps = call->a->batch_norm_train.eps;
      of.mean = ax_cuda_data<T>(call->out[1]), of.invstd = ax_cuda_data<T>(call->out[2]);
      of.a = a, of.b = b;
      return ax_cuda_launch("batch_norm", d, batch_grid(j, W, j.chunks), BATCH_THREADS, statistics<S, W>, j,
                            of, sums);
    };
    st = j.channels % V == 0 && (uintptr_t)ax_data(x) % 16 == 0 ? launch(ax_cuda_int<V>())
                                                                : launch(ax_cuda_int<1>());
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

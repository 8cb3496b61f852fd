/* Batch normalisation over rows of channels (the channels lie innermost, so neighbouring threads have neighbouring channels).
 *
 * A chunk of rows, whose number follows from the sizes, sums its differences from its first row, and their squares: a shift near the mean, so
 * that one pass is as exact as two.  A second kernel puts the chunks together in order, in float64, and works out the channels' factors. */
#include "rows.cuh"

enum { MOST_CHUNKS = 256, LEAST_ROWS = 32, THREADS = 128 };

struct job {
  int64_t rows, channels, chunks;
  bool relu;
};

static job job_of(const ax_tensor *x)
{
  job j = {};
  j.channels = x->shape[1];
  j.rows = j.channels ? x->numel / j.channels : 0;
  j.chunks = j.rows / LEAST_ROWS < 1 ? 1 : j.rows / LEAST_ROWS < MOST_CHUNKS ? j.rows / LEAST_ROWS : MOST_CHUNKS;
  return j;
}

/* A tensor of one number for each channel, of any floating type, or none. */
struct each { const void *data; int dtype; };
static each each_of(const ax_tensor *t) { return t ? each{ ax_data(t), t->dtype } : each{ NULL, 0 }; }
static __device__ __forceinline__ double at(const each &e, int64_t c, double otherwise) { return e.data ? ax_number_at(e.dtype, e.data, c) : otherwise; }

static __device__ __forceinline__ int64_t first_row(const job &j, int64_t chunk) { return j.rows * chunk / j.chunks; }

template <class S> static __global__ void statistics(job j, const S *x, compute<S> *sums)
{
  typedef compute<S> T;
  for (int64_t p = AX_FIRST; p < j.chunks * j.channels; p += AX_STEP) {
    const int64_t k = p / j.channels, c = p % j.channels, lo = first_row(j, k), hi = first_row(j, k + 1);
    const T first = ax_load(x[lo * j.channels + c]);
    T sum = 0, square = 0;
    for (int64_t r = lo; r < hi; r++) {
      const T d = ax_load(x[r * j.channels + c]) - first;
      sum += d;
      square += d * d;
    }
    sums[2 * k * j.channels + c] = sum;
    sums[(2 * k + 1) * j.channels + c] = square;
  }
}

/* y = x a + b, from the rounded mean and invstd: the backward pass finds the very same numbers, and so where relu cut off. */
template <class T> static __device__ __forceinline__ void coefficients(const each &weight, const each &bias, T mean, T invstd, int64_t c, T *a, T *b)
{
  const double w = at(weight, c, 1) * (double)invstd;
  *a = (T)w;
  *b = (T)(at(bias, c, 0) - (double)mean * w);
}

template <class S> static __global__ void combine(job j, const S *x, const compute<S> *sums, each weight, each bias, each running_mean, each running_var, double momentum, double eps,
                                                   compute<S> *mean, compute<S> *invstd, compute<S> *a, compute<S> *b)
{
  typedef compute<S> T;
  for (int64_t c = AX_FIRST; c < j.channels; c += AX_STEP) {
    double count = 0, centre = 0, total = 0;
    for (int64_t k = 0; k < j.chunks; k++) {
      const int64_t lo = first_row(j, k);
      const double many = (double)(first_row(j, k + 1) - lo), sum = (double)sums[2 * k * j.channels + c], square = (double)sums[(2 * k + 1) * j.channels + c];
      const double here = (double)ax_load(x[lo * j.channels + c]) + sum / many, apart = here - centre;
      const double spread = square - sum * sum / many;
      centre += apart * many / (count + many);
      total += (spread < 0 ? 0 : spread) + apart * apart * count * many / (count + many);
      count += many;
    }
    mean[c] = (T)centre;
    invstd[c] = (T)(1 / sqrt(total / (double)j.rows + eps));
    coefficients(weight, bias, mean[c], invstd[c], c, &a[c], &b[c]);
    if (running_mean.data) ax_number_put(running_mean.dtype, (void *)running_mean.data, c, (1 - momentum) * at(running_mean, c, 0) + momentum * centre);
    if (running_var.data) ax_number_put(running_var.dtype, (void *)running_var.data, c, (1 - momentum) * at(running_var, c, 0) + momentum * total / (double)(j.rows - 1));
  }
}

/* y = x a + b (+ residual), rectified */
template <class S, int V> static __global__ void apply(job j, S *y, const S *x, const S *residual, const compute<S> *a, const compute<S> *b)
{
  typedef compute<S> T;
  for (int64_t q = AX_FIRST; q * V < j.rows * j.channels; q += AX_STEP) {
    const int64_t c = q * V % j.channels;
    T v[V], z[V];
    ax_get(x, q * V, v);
    if (residual) ax_get(residual, q * V, z);
    for (int k = 0; k < V; k++) {
      v[k] = v[k] * a[c + k] + b[c + k];
      if (residual) v[k] += z[k];
      if (j.relu) v[k] = v[k] < 0 ? (T)0 : v[k];
    }
    ax_put(y, q * V, v);
  }
}

template <class S> static ax_status run_apply(const char *name, const ax_tensor *x, const ax_tensor *residual, const ax_tensor *y, job j, const compute<S> *a, const compute<S> *b)
{
  constexpr int V = 16 / (int)sizeof(S);
  const ax_device d = y->device;
  S *to = (S *)ax_data(y);
  const S *from = (const S *)ax_data(x), *more = residual ? (const S *)ax_data(residual) : NULL;
  if (j.channels % V == 0 && ((uintptr_t)to | (uintptr_t)from | (uintptr_t)more) % 16 == 0)
    return ax_launch(name, d, ax_blocks(y->numel / V, 256, d.index), 256, apply<S, V>, j, to, from, more, a, b);
  return ax_launch(name, d, ax_blocks(y->numel, 256, d.index), 256, apply<S, 1>, j, to, from, more, a, b);
}

static ax_status train(const ax_call *call, const ax_tensor *residual)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  auto input = [&](int k) { return each_of(call->n_in > k ? call->in[k] : NULL); };
  const ax_device d = x->device;
  job j = job_of(x);

  if (x->numel == 0) return AX_OK;
  j.relu = call->a->i[0];
  return ax_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    const size_t bytes = (size_t)(2 * j.chunks + 2) * (size_t)j.channels * sizeof(T);
    T *sums;
    ax_status st = ax_cuda_take(d, bytes, (void **)&sums);
    if (st != AX_OK) return st;
    T *const a = sums + 2 * j.chunks * j.channels, *const b = a + j.channels;
    st = ax_launch("batch_norm", d, ax_blocks(j.chunks * j.channels, THREADS, d.index), THREADS, statistics<S>, j, (const S *)ax_data(x), sums);
    if (st == AX_OK)
      st = ax_launch("batch_norm", d, ax_blocks(j.channels, THREADS, d.index), THREADS, combine<S>, j, (const S *)ax_data(x), (const T *)sums, input(1), input(2), input(3), input(4),
                     call->a->f[0], call->a->f[1], (T *)ax_data(call->out[1]), (T *)ax_data(call->out[2]), a, b);
    if (st == AX_OK) st = run_apply<S>("batch_norm", x, residual, y, j, a, b);
    ax_cuda_give(d, sums, bytes);
    return st;
  });
}

AX_CUDA_KERNEL(_batch_norm) { return train(call, NULL); }
AX_CUDA_KERNEL(_batch_norm_residual) { return train(call, call->in[5]); }

/* ---- gradient: sums of g and of g (x - mean); where relu cut the result off (x a + b is not positive) g counts as 0 */

template <class S> static __global__ void factors(job j, each weight, each bias, const compute<S> *mean, const compute<S> *invstd, compute<S> *a, compute<S> *b)
{
  for (int64_t c = AX_FIRST; c < j.channels; c += AX_STEP) coefficients(weight, bias, mean[c], invstd[c], c, &a[c], &b[c]);
}

template <class S> static __global__ void products(job j, const S *g, const S *x, const compute<S> *mean, const compute<S> *a, const compute<S> *b, compute<S> *sums)
{
  typedef compute<S> T;
  for (int64_t p = AX_FIRST; p < j.chunks * j.channels; p += AX_STEP) {
    const int64_t k = p / j.channels, c = p % j.channels, hi = first_row(j, k + 1);
    T sum = 0, product = 0;
    for (int64_t r = first_row(j, k); r < hi; r++) {
      const T v = ax_load(x[r * j.channels + c]), own = ax_load(g[r * j.channels + c]), counts = !j.relu || v * a[c] + b[c] > 0 ? own : (T)0;
      sum += counts;
      product += counts * (v - mean[c]);
    }
    sums[2 * k * j.channels + c] = sum;
    sums[(2 * k + 1) * j.channels + c] = product;
  }
}

/* The parameters' gradients, and p, q, s of dx = p g + q (x - mean) + s. */
template <class S> static __global__ void add_up(job j, const compute<S> *sums, each weight, const compute<S> *invstd, each dweight, each dbias, compute<S> *p)
{
  typedef compute<S> T;
  T *const q = p + j.channels, *const s = q + j.channels;
  for (int64_t c = AX_FIRST; c < j.channels; c += AX_STEP) {
    double sum = 0, product = 0;
    if (j.rows)
      for (int64_t k = 0; k < j.chunks; k++) {
        sum += (double)sums[2 * k * j.channels + c];
        product += (double)sums[(2 * k + 1) * j.channels + c];
      }
    const double scale = (double)invstd[c], w = at(weight, c, 1) * scale;
    ax_number_put(dweight.dtype, (void *)dweight.data, c, product * scale);
    ax_number_put(dbias.dtype, (void *)dbias.data, c, sum);
    p[c] = (T)w;
    q[c] = j.rows ? (T)(-w * scale * scale * product / (double)j.rows) : (T)0;
    s[c] = j.rows ? (T)(-w * sum / (double)j.rows) : (T)0;
  }
}

template <class S, int V>
static __global__ void gradient(job j, S *dx, const S *g, const S *x, const compute<S> *mean, const compute<S> *a, const compute<S> *b, const compute<S> *p)
{
  typedef compute<S> T;
  const T *const q = p + j.channels, *const s = q + j.channels;
  for (int64_t i = AX_FIRST; i * V < j.rows * j.channels; i += AX_STEP) {
    const int64_t c = i * V % j.channels;
    T xv[V], gv[V];
    ax_get(x, i * V, xv);
    ax_get(g, i * V, gv);
    for (int k = 0; k < V; k++) {
      const T v = !j.relu || xv[k] * a[c + k] + b[c + k] > 0 ? gv[k] : (T)0;
      gv[k] = p[c + k] * v + (q[c + k] * (xv[k] - mean[c + k]) + s[c + k]);
    }
    ax_put(dx, i * V, gv);
  }
}

AX_CUDA_KERNEL(_batch_norm_backward)
{
  const ax_tensor *g = call->in[0], *x = call->in[1], *weight = call->in[2], *bias = call->in[3], *mean = call->in[4], *invstd = call->in[5], *dx = call->out[0];
  const ax_device d = x->device;
  job j = job_of(x);

  if (j.channels == 0) return AX_OK;
  j.relu = call->a->i[0];
  return ax_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    constexpr int V = 16 / (int)sizeof(S);
    const size_t bytes = (size_t)(2 * j.chunks + 5) * (size_t)j.channels * sizeof(T);
    const S *gp = (const S *)ax_data(g), *xp = (const S *)ax_data(x);
    const T *m = (const T *)ax_data(mean), *inv = (const T *)ax_data(invstd);
    S *to = (S *)ax_data(dx);
    T *sums;
    ax_status st = ax_cuda_take(d, bytes, (void **)&sums);
    if (st != AX_OK) return st;
    T *const a = sums + 2 * j.chunks * j.channels, *const b = a + j.channels, *const p = b + j.channels;
    const unsigned channels = ax_blocks(j.channels, THREADS, d.index);
    st = ax_launch("batch_norm", d, channels, THREADS, factors<S>, j, each_of(weight), each_of(bias), m, inv, a, b);
    if (st == AX_OK && j.rows)
      st = ax_launch("batch_norm", d, ax_blocks(j.chunks * j.channels, THREADS, d.index), THREADS, products<S>, j, gp, xp, m, (const T *)a, (const T *)b, sums);
    if (st == AX_OK) st = ax_launch("batch_norm", d, channels, THREADS, add_up<S>, j, (const T *)sums, each_of(weight), inv, each_of(call->out[1]), each_of(call->out[2]), p);
    if (st == AX_OK && x->numel) {
      if (j.channels % V == 0 && ((uintptr_t)to | (uintptr_t)gp | (uintptr_t)xp) % 16 == 0)
        st = ax_launch("batch_norm", d, ax_blocks(x->numel / V, 256, d.index), 256, gradient<S, V>, j, to, gp, xp, m, (const T *)a, (const T *)b, (const T *)p);
      else st = ax_launch("batch_norm", d, ax_blocks(x->numel, 256, d.index), 256, gradient<S, 1>, j, to, gp, xp, m, (const T *)a, (const T *)b, (const T *)p);
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
  const ax_tensor *x = call->in[0], *residual = call->n_in > 3 ? call->in[3] : NULL;
  const ax_device d = x->device;
  job j = job_of(x);

  if (x->numel == 0) return AX_OK;
  j.relu = call->a->i[0];
  return ax_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    const size_t bytes = 2 * (size_t)j.channels * sizeof(T);
    T *a;
    ax_status st = ax_cuda_take(d, bytes, (void **)&a);
    if (st != AX_OK) return st;
    st = ax_launch("batch_norm", d, ax_blocks(j.channels, THREADS, d.index), THREADS, widen<T>, each_of(call->in[1]), each_of(call->in[2]), j.channels, a, a + j.channels);
    if (st == AX_OK) st = run_apply<S>("batch_norm", x, residual, call->out[0], j, a, a + j.channels);
    ax_cuda_give(d, a, bytes);
    return st;
  });
}

/* cummax, cummin, cumprod and its gradient.  Of equal extremes the last wins; from the first NaN on
 * the result is NaN, with the position of the latest one.  Floats are multiplied in float64,
 * integers in int64, which wraps around.  Many adjacent lines have one thread each; others one
 * block each, whose threads take neighbouring runs of a line and join what comes before them.
 * Memory bounds both. */
#include "common.cuh"

enum { THREADS = 256, EACH = 4, MANY = 4096 };

/* Lines of an (outer, n, inner) tensor. */
struct lines {
  int64_t count, n, inner;
  __device__ __forceinline__ int64_t at(int64_t line, int64_t i) const
  {
    return line / inner * n * inner + i * inner + line % inner;
  }
};

struct multiply_int64 {
  typedef uint64_t T;
  const int64_t *x;
  int64_t *y;
  __device__ __forceinline__ T none() const { return 1; }
  __device__ __forceinline__ T load(int64_t at, int64_t) const { return (T)x[at]; }
  __device__ __forceinline__ T join(T a, T b) const { return a * b; }
  __device__ __forceinline__ void store(int64_t at, int64_t, T v) const { y[at] = (int64_t)v; }
};

/* A product kept as m * 2^e.  Exponents are cut off at FAR, where any number has left float64's
 * range. */
struct scaled {
  enum { FAR = 1 << 28 };
  double m; /* 0.5 <= |m| < 1, or 0, an infinity, NaN */
  int e;
};
static __device__ __forceinline__ bool plain(double m) { return m != 0 && m - m == 0; }
static __device__ __forceinline__ int lesser(int a, int b) { return a < b ? a : b; }
static __device__ __forceinline__ int greater(int a, int b) { return a > b ? a : b; }
static __device__ __forceinline__ int sum_of(int a, int b)
{
  return lesser(greater(a + b, -scaled::FAR), scaled::FAR);
}
static __device__ __forceinline__ scaled scaled_of(double v)
{
  int e = 0;
  if (!plain(v)) return scaled{ v, 0 };
  const double m = frexp(v, &e);
  return scaled{ m, e };
}
static __device__ __forceinline__ scaled times(scaled a, scaled b)
{
  scaled c = { a.m * b.m, 0 };
  if (!plain(c.m)) return c;
  const bool small = fabs(c.m) < 0.5;
  if (small) c.m *= 2;
  c.e = sum_of(a.e, b.e) - small;
  return c;
}

/* A product of a run of a line may leave float64's range though the running product does not, so it
 * is kept scaled.  A running product that has left the range stays an infinity, or 0, as it does
 * where numbers are multiplied one by one: `low` and `high` are the least and the largest exponent
 * of the running products within the run.  They may be too large by one for each join that made
 * them, so MOST has room for 40. */
template <class S> struct multiply {
  enum { FAR = scaled::FAR, MOST = 1024 + 40, LEAST = -1074 };
  struct T {
    scaled v;
    int low, high;
  };
  const S *x;
  S *y;
  __device__ __forceinline__ T none() const { return T{ { 0.5, 1 }, FAR, -FAR }; }
  __device__ __forceinline__ T load(int64_t at, int64_t) const
  {
    const scaled v = scaled_of((double)ax_cuda_load(x[at]));
    return plain(v.m) ? T{ v, v.e, v.e } : T{ v, FAR, -FAR };
  }
  __device__ __forceinline__ T join(T a, T b) const /* b comes after a */
  {
    T c = { times(a.v, b.v), a.low, a.high };
    if (plain(a.v.m)) {
      c.low = lesser(a.low, sum_of(a.v.e, b.low));
      c.high = greater(a.high, sum_of(a.v.e, b.high));
    }
    return c;
  }
  __device__ __forceinline__ void store(int64_t at, int64_t, T t) const
  {
    double r = plain(t.v.m) ? ldexp(t.v.m, t.v.e) : t.v.m;
    if (t.high > MOST) r = t.v.m * (double)INFINITY;
    else if (t.low < LEAST) r = t.v.m * 0;
    y[at] = ax_cuda_store<S>(r);
  }
};

/* The gradient of y = cumprod(x), y[i - 1] s[i] with s[i] = g[i] + x[i + 1] s[i + 1], from the end
 * of a line on.  A run takes the s that comes before it to b + w s. */
template <class S> struct slope {
  struct T {
    double b;
    scaled w;
  };
  const S *g, *x, *y;
  S *d;
  int64_t n, inner;
  /* index of element i counted from the end of the line */
  __device__ __forceinline__ int64_t turned(int64_t at, int64_t i) const
  {
    return at + (n - 1 - 2 * i) * inner;
  }
  __device__ __forceinline__ T none() const { return T{ 0, { 0.5, 1 } }; }
  __device__ __forceinline__ T load(int64_t at, int64_t i) const
  {
    const int64_t own = turned(at, i);
    return T{ (double)ax_cuda_load(g[own]),
              i ? scaled_of((double)ax_cuda_load(x[own + inner])) : scaled{ 0, 0 } };
  }
  __device__ __forceinline__ T join(T a, T b) const /* b comes after a */
  {
    const double s = b.w.m * a.b;
    return T{ b.b + (plain(s) ? ldexp(s, b.w.e) : s), times(a.w, b.w) };
  }
  __device__ __forceinline__ void store(int64_t at, int64_t i, T t) const
  {
    const int64_t own = turned(at, i);
    const double before = i < n - 1 ? (double)ax_cuda_load(y[own - inner]) : 1;
    d[own] = ax_cuda_store<S>(before * t.b);
  }
};

/* sign 1: the largest; -1: the smallest. */
template <class S> struct choose {
  typedef compute<S> value;
  struct T {
    value v;
    int64_t at; /* below 0: none yet */
  };
  const S *x;
  S *y;
  int64_t *where;
  int sign;
  __device__ __forceinline__ T none() const { return T{ (value)0, -1 }; }
  __device__ __forceinline__ T load(int64_t at, int64_t i) const
  {
    return T{ (value)ax_cuda_load(x[at]), i };
  }
  __device__ __forceinline__ T join(T a, T b) const /* b comes after a */
  {
    if (a.at < 0 || b.at < 0) return b.at < 0 ? a : b;
    return b.v != b.v || (sign > 0 ? b.v >= a.v : b.v <= a.v) ? b : a;
  }
  __device__ __forceinline__ void store(int64_t at, int64_t, T v) const
  {
    y[at] = ax_cuda_store<S>(v.v);
    where[at] = v.at;
  }
};

template <class F> static __global__ void run_columns(F f, lines l)
{
  for (int64_t line = AX_FIRST; line < l.count; line += AX_STEP) {
    typename F::T now = f.none();
    for (int64_t i = 0; i < l.n; i++) {
      const int64_t at = l.at(line, i);
      now = f.join(now, f.load(at, i));
      f.store(at, i, now);
    }
  }
}

template <class F> static __global__ void run_lines(F f, lines l)
{
  typedef typename F::T T;
  __shared__ T shared[THREADS];
  const int me = threadIdx.x;
  for (int64_t line = blockIdx.x; line < l.count; line += gridDim.x) {
    T carry = f.none();
    for (int64_t lo = 0; lo < l.n; lo += THREADS * EACH) {
      const int64_t from = lo + me * EACH;
      T own[EACH], sum = f.none();
      for (int e = 0; e < EACH; e++) {
        if (from + e < l.n) sum = f.join(sum, f.load(l.at(line, from + e), from + e));
        own[e] = sum;
      }
      __syncthreads(); /* the last round may still read `shared` */
      shared[me] = sum;
      __syncthreads();
      for (int by = 1; by < THREADS; by *= 2) {
        const T before = me >= by ? shared[me - by] : f.none(), mine = shared[me];
        __syncthreads();
        shared[me] = f.join(before, mine);
        __syncthreads();
      }
      const T before = f.join(carry, me ? shared[me - 1] : f.none());
      for (int e = 0; e < EACH; e++)
        if (from + e < l.n) f.store(l.at(line, from + e), from + e, f.join(before, own[e]));
      carry = f.join(carry, shared[THREADS - 1]);
    }
  }
}

template <class F> static ax_status run(const ax_call *call, int64_t dim, F f)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  lines l = { 0, x->ndim ? x->shape[dim] : 1, 1 };
  for (int d = (int)dim + 1; d < x->ndim; d++) l.inner *= x->shape[d];
  l.count = y->numel / l.n;
  if (l.inner > 1 && l.count >= MANY)
    return ax_cuda_launch(ax_ops[call->op].name, y->device, ax_cuda_blocks(l.count, 128, y->device.index),
                          128, run_columns<F>, f, l);
  return ax_cuda_launch(ax_ops[call->op].name, y->device,
                        ax_cuda_blocks(l.count * THREADS, THREADS, y->device.index), THREADS, run_lines<F>, f,
                        l);
}

static ax_status best(const ax_call *call, int sign)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  if (y->numel == 0) return AX_OK;
  return ax_cuda_with_any(call->op, (ax_dtype)y->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return run(call, call->a->running_best.dim,
               choose<S>{ ax_cuda_data<S>(x), ax_cuda_data<S>(y), ax_cuda_data<int64_t>(call->out[1]),
                          sign });
  });
}

AX_CUDA_KERNEL(cummax) { return best(call, 1); }
AX_CUDA_KERNEL(cummin) { return best(call, -1); }

AX_CUDA_KERNEL(_cumprod)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  const int64_t dim = call->a->cumprod_of.dim;
  if (y->numel == 0) return AX_OK;
  if (y->dtype == AX_I64)
    return run(call, dim, multiply_int64{ ax_cuda_data<int64_t>(x), ax_cuda_data<int64_t>(y) });
  return ax_cuda_with_float(call->op, (ax_dtype)y->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return run(call, dim, multiply<S>{ ax_cuda_data<S>(x), ax_cuda_data<S>(y) });
  });
}

AX_CUDA_KERNEL(_cumprod_backward)
{
  const ax_tensor *x = call->in[1], *d = call->out[0];
  const int64_t dim = call->a->cumprod_backward.dim;
  if (d->numel == 0) return AX_OK;
  return ax_cuda_with_float(call->op, (ax_dtype)d->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    slope<S> f = { ax_cuda_data<S>(call->in[0]), ax_cuda_data<S>(x),          ax_cuda_data<S>(call->in[2]),
                   ax_cuda_data<S>(d),           x->ndim ? x->shape[dim] : 1, 1 };
    for (int i = (int)dim + 1; i < x->ndim; i++) f.inner *= x->shape[i];
    return run(call, dim, f);
  });
}

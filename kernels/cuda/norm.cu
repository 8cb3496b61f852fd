/* layer_norm, rms_norm and group_norm; kernels/cpu/norm.c has the formulas.  A row (the last dims,
 * or a group of channels) is read from memory once: into registers where it fits; else mean,
 * variance and result are three passes, and the later ones find the row in the first-level cache.
 * Memory bounds the kernels. */
#include "draw.cuh"
#include "norm.cuh"

typedef norm_job job;

static __device__ __forceinline__ float root(float x) { return sqrtf(x); }
static __device__ __forceinline__ double root(double x) { return sqrt(x); }

template <class S, int V, bool WIDE>
static __global__ void forward_rows(job j, S *y, const S *x, const S *w, const S *b, compute<S> *mean_out,
                                    compute<S> *rstd_out)
{
  typedef compute<S> T;
  typedef ax_cuda_team<WIDE> team;
  __shared__ T shared[32];
  const int64_t first = (int64_t)team::rank() * V, step = (int64_t)team::size() * V;
  for (int64_t r = team::first_row(); r < j.rows; r += team::row_step()) {
    const S *from = x + r * j.n;
    T v[V], mean = 0, squares = 0;
    if (j.centred) {
      for (int64_t i = first; i < j.n; i += step) {
        ax_cuda_get(from, i, v);
        for (int k = 0; k < V; k++) mean += v[k];
      }
      mean = team::sum(mean, shared) / (T)j.n;
    }
    for (int64_t i = first; i < j.n; i += step) {
      ax_cuda_get(from, i, v);
      for (int k = 0; k < V; k++) squares += (v[k] - mean) * (v[k] - mean);
    }
    const T rstd = (T)1 / root(team::sum(squares, shared) / (T)j.n + (T)j.eps);
    if (team::rank() == 0) {
      if (j.centred) mean_out[r] = mean;
      rstd_out[r] = rstd;
    }
    for (int64_t i = first; i < j.n; i += step) {
      ax_cuda_get(from, i, v);
      for (int k = 0; k < V; k++) {
        const int64_t p = w || b ? norm_parameter_at(j, r, i + k) : 0;
        v[k] = (v[k] - mean) * rstd;
        if (w) v[k] *= ax_cuda_load(w[p]);
        if (b) v[k] += ax_cuda_load(b[p]);
      }
      ax_cuda_put(y + r * j.n, i, v);
    }
  }
}

/* Likewise with the row in registers; rows, weight and bias are aligned, and parameters have the
 * layout of the row.  The result may be of a half type Y beside a float32 x.  p and z: the row is
 * their sum, which is written to x.  DROPS: z goes through dropout before. */
template <class S, class Y, int V, bool WIDE, bool DROPS>
static __global__ void forward_held(job j, Y *y, S *x, const S *w, const S *b, const S *p, const Y *z,
                                    ax_cuda_dropping drop, compute<S> *mean_out, compute<S> *rstd_out)
{
  typedef compute<S> T;
  typedef ax_cuda_team<WIDE> team;
  constexpr int RUNS = NORM_HELD / V;
  __shared__ T shared[32];
  const int first = team::rank() * V, step = team::size() * V, n = (int)j.n;
  for (int64_t r = team::first_row(); r < j.rows; r += team::row_step()) {
    T v[RUNS][V], mean = 0, squares = 0;
#pragma unroll
    for (int q = 0; q < RUNS; q++)
      if (first + q * step < n) {
        const int64_t at = r * j.n + first + q * step;
        if (!p) ax_cuda_get(x, at, v[q]);
        else {
          T more[V];
          ax_cuda_get(p, at, v[q]);
          ax_cuda_get(z, at, more);
          if constexpr (DROPS) ax_cuda_add_dropped<S, Y>(drop, at, v[q], more);
          else
            for (int k = 0; k < V; k++) v[q][k] = ax_cuda_load(ax_cuda_store<S>(v[q][k] + more[k]));
          ax_cuda_put(x, at, v[q]);
        }
      }
    if (j.centred) {
#pragma unroll
      for (int q = 0; q < RUNS; q++)
        if (first + q * step < n)
          for (int k = 0; k < V; k++) mean += v[q][k];
      mean = team::sum(mean, shared) / (T)j.n;
    }
#pragma unroll
    for (int q = 0; q < RUNS; q++)
      if (first + q * step < n)
        for (int k = 0; k < V; k++) squares += (v[q][k] - mean) * (v[q][k] - mean);
    const T rstd = (T)1 / root(team::sum(squares, shared) / (T)j.n + (T)j.eps);
    if (team::rank() == 0) {
      if (j.centred) mean_out[r] = mean;
      rstd_out[r] = rstd;
    }
#pragma unroll
    for (int q = 0; q < RUNS; q++) {
      const int i = first + q * step;
      if (i >= n) continue;
      T wv[V], bv[V];
      if (w) ax_cuda_get(w, i, wv);
      if (b) ax_cuda_get(b, i, bv);
      for (int k = 0; k < V; k++) {
        v[q][k] = (v[q][k] - mean) * rstd;
        if (w) v[q][k] *= wv[k];
        if (b) v[q][k] += bv[k];
      }
      ax_cuda_put(y + r * j.n, i, v[q]);
    }
  }
}

template <class T> static __global__ void fill_nan(T *p, int64_t n)
{
  for (int64_t i = AX_FIRST; i < n; i += AX_STEP) p[i] = (T)NAN;
}

/* Calls f with the type of a norm's result: that of x, or a half type beside a float32 x. */
template <class S, class F> static ax_status ax_cuda_with_result(const ax_tensor *y, F f)
{
  if constexpr (sizeof(S) == 4) {
    if (y->dtype == AX_BF16) return f(ax_cuda_type<ax_cuda_bf16>());
    if (y->dtype == AX_F16) return f(ax_cuda_type<ax_cuda_f16>());
  }
  return f(ax_cuda_type<S>());
}

static ax_status forward(const ax_call *call, int64_t groups, bool centred)
{
  const ax_tensor *x = call->in[0], *y = call->out[0], *w = call->n_in > 1 ? call->in[1] : NULL,
                  *b = centred && call->n_in > 2 ? call->in[2] : NULL;
  const ax_device d = x->device;
  const char *name = ax_ops[call->op].name;
  const bool terms = call->n_in > 4; /* x is their sum, and written (ops/join.c) */
  job j = norm_plan(x, call->a->n_list, groups);
  ax_status st = AX_OK;

  j.centred = centred;
  j.eps = call->a->layer_norm.eps;
  return ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    if (x->numel == 0) { /* no rows, or rows without elements: statistics as in PyTorch */
      for (int k = 1; k < call->n_out && st == AX_OK; k++)
        if (call->out[k]->numel)
          st = ax_cuda_launch(name, d, ax_cuda_blocks(call->out[k]->numel, 256, d.index), 256, fill_nan<T>,
                              ax_cuda_data<T>(call->out[k]), call->out[k]->numel);
      return st;
    }
    const S *wp = w ? ax_cuda_data<S>(w) : NULL, *bp = b ? ax_cuda_data<S>(b) : NULL;
    return ax_cuda_with_rows<S>(j.n, (uintptr_t)ax_data(x) | (uintptr_t)ax_data(y), [&](auto v, auto wide) {
      constexpr int V = AX_VALUE_OF(v);
      constexpr bool WIDE = AX_VALUE_OF(wide);
      if constexpr (V >= 4)
        if (!groups && j.n <= (WIDE ? ax_cuda_row_threads(j.n) : 32) * (int64_t)NORM_HELD &&
            ((uintptr_t)wp | (uintptr_t)bp) % 16 == 0)
          return ax_cuda_with_result<S>(y, [&](auto result) {
            typedef AX_TYPE_OF(result) Y;
            const bool drops = terms && call->a->dropped > 0;
            return ax_cuda_launch_rows(name, d, j.rows, j.n,
                                       drops ? forward_held<S, Y, V, WIDE, true>
                                             : forward_held<S, Y, V, WIDE, false>,
                                       j, ax_cuda_data<Y>(y), ax_cuda_data<S>(x), wp, bp,
                                       terms ? ax_cuda_data<S>(call->in[3]) : NULL,
                                       terms ? ax_cuda_data<Y>(call->in[4]) : NULL,
                                       ax_cuda_dropping_of(call, call->a->dropped),
                                       centred ? ax_cuda_data<T>(call->out[1]) : NULL,
                                       ax_cuda_data<T>(call->out[centred ? 2 : 1]));
          });
      if (terms || y->dtype != x->dtype)
        return ax_fail(AX_EINVAL, "%s: rows of %lld elements are not joined with other calls", name,
                       (long long)j.n);
      return ax_cuda_launch_rows(name, d, j.rows, j.n, forward_rows<S, V, WIDE>, j, ax_cuda_data<S>(y),
                                 ax_cuda_data<S>(x), wp, bp, centred ? ax_cuda_data<T>(call->out[1]) : NULL,
                                 ax_cuda_data<T>(call->out[centred ? 2 : 1]));
    });
  });
}

AX_CUDA_KERNEL(layer_norm) { return forward(call, 0, true); }
AX_CUDA_KERNEL(rms_norm) { return forward(call, 0, false); }
AX_CUDA_KERNEL(group_norm) { return forward(call, call->a->group_norm.num_groups, true); }

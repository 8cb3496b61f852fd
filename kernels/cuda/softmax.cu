/* softmax and log_softmax along one dim, and their gradients; kernels/cpu/softmax.c has the
 * formulas. The tensor is (outer, n, inner) around that dim.  Where inner is 1 rows are runs of
 * memory: read once into registers where they fit; else once for the largest element and the sum
 * together, and once more, from a cache, for the result.  Otherwise neighbouring threads have
 * neighbouring columns.  Memory bounds the kernels. */
#include "rows.cuh"
#include "around.h"

/* ---- rows */

/* Blocks of these kernels on a multiprocessor, at least: with 64 bytes of a row, a thread needs no
 * more than 64 registers. */
template <class S, int MOST, bool WIDE> struct held_blocks {
  static const int value = MOST * (int)sizeof(S) > 64 ? 1 : WIDE ? 2 : 8;
};

/* Rows that fit the registers of their team, at most MOST elements for each thread, are read once.
 * All of a row is loaded before the first of it is used.  Rows are aligned. */
template <class S, int V, int MOST, bool WIDE>
static __global__ void __launch_bounds__(WIDE ? 512 : 128, held_blocks<S, MOST, WIDE>::value)
    forward_held(S *y, const S *x, ax_around s, bool logs)
{
  typedef compute<S> T;
  typedef ax_cuda_team<WIDE> team;
  constexpr int RUNS = MOST / V;
  __shared__ T shared[32];
  const int first = team::rank() * V, step = team::size() * V, n = (int)s.n;
  for (int64_t r = team::first_row(); r < s.outer; r += team::row_step()) {
    ax_cuda_run<S, V> run[RUNS];
    T v[RUNS][V], top = -(T)INFINITY, sum = 0;
#pragma unroll
    for (int q = 0; q < RUNS; q++)
      if (first + q * step < n) run[q].load(x + r * s.n + first + q * step);
#pragma unroll
    for (int q = 0; q < RUNS; q++)
      if (first + q * step < n) {
        T own[V];
        run[q].open(own);
        for (int k = 0; k < V; k++) top = ax_cuda_larger(top, own[k]);
      }
    top = team::most(top, shared);
#pragma unroll
    for (int q = 0; q < RUNS; q++)
      if (first + q * step < n) {
        run[q].open(v[q]);
        for (int k = 0; k < V; k++) {
          const T far = v[q][k] - top, term = ax_cuda_term(v[q][k], top);
          v[q][k] = logs ? far : term;
          sum += term;
        }
      }
    sum = team::sum(sum, shared);
    const T by = logs ? ax_cuda_row_log(sum) : (T)1 / sum;
#pragma unroll
    for (int q = 0; q < RUNS; q++)
      if (first + q * step < n) {
        for (int k = 0; k < V; k++) v[q][k] = logs ? v[q][k] - by : v[q][k] * by;
        ax_cuda_put(y + r * s.n, first + q * step, v[q]);
      }
  }
}

template <class S, int V, int MOST, bool WIDE>
static __global__ void __launch_bounds__(WIDE ? 512 : 128, held_blocks<S, MOST, WIDE>::value)
    backward_held(S *dx, const S *g, const S *y, ax_around s, bool logs)
{
  typedef compute<S> T;
  typedef ax_cuda_team<WIDE> team;
  constexpr int RUNS = MOST / V;
  __shared__ T shared[32];
  const int first = team::rank() * V, step = team::size() * V, n = (int)s.n;
  for (int64_t r = team::first_row(); r < s.outer; r += team::row_step()) {
    const int64_t at = r * s.n + first;
    ax_cuda_run<S, V> gs[RUNS], ys[RUNS];
    T gv[V], yv[V], sum = 0;
#pragma unroll
    for (int q = 0; q < RUNS; q++)
      if (first + q * step < n) {
        gs[q].load(g + at + q * step);
        ys[q].load(y + at + q * step);
      }
#pragma unroll
    for (int q = 0; q < RUNS; q++)
      if (first + q * step < n) {
        gs[q].open(gv);
        ys[q].open(yv);
        for (int k = 0; k < V; k++) sum += logs ? gv[k] : gv[k] * yv[k];
      }
    sum = team::sum(sum, shared);
#pragma unroll
    for (int q = 0; q < RUNS; q++)
      if (first + q * step < n) {
        gs[q].open(gv);
        ys[q].open(yv);
        for (int k = 0; k < V; k++)
          gv[k] = logs ? gv[k] - ax_cuda_term(yv[k], (T)0) * sum : yv[k] * (gv[k] - sum);
        ax_cuda_put(dx + at, q * step, gv);
      }
  }
}

/* Rows of any length and alignment, read twice: the second time most likely from a cache. */
template <class S, int V, bool WIDE>
static __global__ void forward_rows(S *y, const S *x, ax_around s, bool logs)
{
  typedef compute<S> T;
  typedef ax_cuda_team<WIDE> team;
  __shared__ T shared[32];
  for (int64_t r = team::first_row(); r < s.outer; r += team::row_step()) {
    const S *from = x + r * s.n;
    S *to = y + r * s.n;
    ax_cuda_exps<T> e;
    ax_cuda_read<V, 4, team>(from, s.n, [&](int64_t, auto &v) { e.add(v); });
    e.template join<team>(shared);
    const T by = logs ? ax_cuda_row_log(e.sum) : (T)1 / e.sum;
    ax_cuda_read<V, 4, team>(from, s.n, [&](int64_t i, auto &v) {
      for (int j = 0; j < AX_WIDTH_OF(v); j++)
        v[j] = logs ? (v[j] - e.top) - by : ax_cuda_term(v[j], e.top) * by;
      ax_cuda_put(to, i, v);
    });
  }
}

template <class S, int V, bool WIDE>
static __global__ void backward_rows(S *dx, const S *g, const S *y, ax_around s, bool logs)
{
  typedef compute<S> T;
  typedef ax_cuda_team<WIDE> team;
  __shared__ T shared[32];
  for (int64_t r = team::first_row(); r < s.outer; r += team::row_step()) {
    const int64_t at = r * s.n;
    T sum = 0;
    ax_cuda_walk<V, team>(g + at, s.n, [&](int64_t i, auto width) {
      constexpr int W = AX_VALUE_OF(width);
      T gv[W], yv[W];
      ax_cuda_get(g, at + i, gv);
      if (!logs) ax_cuda_get(y, at + i, yv);
      for (int j = 0; j < W; j++) sum += logs ? gv[j] : gv[j] * yv[j];
    });
    sum = team::sum(sum, shared);
    ax_cuda_walk<V, team>(g + at, s.n, [&](int64_t i, auto width) {
      constexpr int W = AX_VALUE_OF(width);
      T gv[W], yv[W];
      ax_cuda_get(g, at + i, gv);
      ax_cuda_get(y, at + i, yv);
      for (int j = 0; j < W; j++)
        gv[j] = logs ? gv[j] - ax_cuda_term(yv[j], (T)0) * sum : yv[j] * (gv[j] - sum);
      ax_cuda_put(dx, at + i, gv);
    });
  }
}

/* ---- columns */

template <class S> static __global__ void forward_columns(S *y, const S *x, ax_around s, bool logs)
{
  typedef compute<S> T;
  for (int64_t c = AX_FIRST; c < s.outer * s.inner; c += AX_STEP) {
    const int64_t at = c / s.inner * s.n * s.inner + c % s.inner;
    ax_cuda_exps<T> e;
    for (int64_t i = 0; i < s.n; i++) {
      const T v[1] = { ax_cuda_load(x[at + i * s.inner]) };
      e.add(v);
    }
    if (e.top == -(T)INFINITY) e.sum = (T)NAN;
    const T by = logs ? ax_cuda_row_log(e.sum) : (T)1 / e.sum;
    for (int64_t i = 0; i < s.n; i++) {
      const T v = ax_cuda_load(x[at + i * s.inner]);
      y[at + i * s.inner] = ax_cuda_store<S>(logs ? (v - e.top) - by : ax_cuda_term(v, e.top) * by);
    }
  }
}

template <class S>
static __global__ void backward_columns(S *dx, const S *g, const S *y, ax_around s, bool logs)
{
  typedef compute<S> T;
  for (int64_t c = AX_FIRST; c < s.outer * s.inner; c += AX_STEP) {
    const int64_t at = c / s.inner * s.n * s.inner + c % s.inner;
    T sum = 0;
    for (int64_t i = 0; i < s.n; i++) {
      const T gv = ax_cuda_load(g[at + i * s.inner]);
      sum += logs ? gv : gv * ax_cuda_load(y[at + i * s.inner]);
    }
    for (int64_t i = 0; i < s.n; i++) {
      const T gv = ax_cuda_load(g[at + i * s.inner]), yv = ax_cuda_load(y[at + i * s.inner]);
      dx[at + i * s.inner] = ax_cuda_store<S>(logs ? gv - ax_cuda_term(yv, (T)0) * sum : yv * (gv - sum));
    }
  }
}

static ax_status run(const ax_call *call, bool logs, bool back)
{
  const ax_tensor *out = call->out[0];
  const ax_around s = ax_around_dim(out, call->a->softmax.dim);
  const ax_device d = out->device;
  const char *name = ax_ops[call->op].name;

  if (!ax_is_float((ax_dtype)out->dtype)) return ax_cuda_no_dtype(call->op, (ax_dtype)out->dtype);
  if (out->numel == 0) return AX_OK;
  return ax_cuda_with_float(call->op, (ax_dtype)out->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    S *y = ax_cuda_data<S>(out);
    const S *a = ax_cuda_data<S>(call->in[0]), *b = back ? ax_cuda_data<S>(call->in[1]) : NULL;
    if (s.inner > 1) {
      const unsigned blocks = ax_cuda_blocks(s.outer * s.inner, 128, d.index);
      return back ? ax_cuda_launch(name, d, blocks, 128, backward_columns<S>, y, a, b, s, logs)
                  : ax_cuda_launch(name, d, blocks, 128, forward_columns<S>, y, a, s, logs);
    }
    if constexpr (sizeof(S) <= 4) {
      constexpr int V = 16 / (int)sizeof(S);
      if (s.n % V == 0 && ((uintptr_t)y | (uintptr_t)a | (uintptr_t)b) % 16 == 0) {
        const bool wide = s.n > AX_SHORT_ROW;
        const int64_t each = (s.n - 1) / (wide ? ax_cuda_row_threads(s.n) : 32) + 1;
        auto launch = [&](auto forward, auto backward) {
          return back ? ax_cuda_launch_rows(name, d, s.outer, s.n, backward, y, a, b, s, logs)
                      : ax_cuda_launch_rows(name, d, s.outer, s.n, forward, y, a, s, logs);
        };
        if (each <= 16)
          return wide ? launch(forward_held<S, V, 16, true>, backward_held<S, V, 16, true>)
                      : launch(forward_held<S, V, 16, false>, backward_held<S, V, 16, false>);
        if (!wide) return launch(forward_held<S, V, 32, false>, backward_held<S, V, 32, false>);
        if constexpr (sizeof(S) == 2) /* of float32, one such block would fill a multiprocessor */
          if (each <= 32) return launch(forward_held<S, V, 32, true>, backward_held<S, V, 32, true>);
      }
    }
    return ax_cuda_with_any_rows<S>(s.n,
                                    ((uintptr_t)y ^ (uintptr_t)a) | (b ? (uintptr_t)y ^ (uintptr_t)b : 0),
                                    [&](auto v, auto team) {
      constexpr int V = AX_VALUE_OF(v);
      constexpr bool WIDE = AX_VALUE_OF(team);
      return back ? ax_cuda_launch_rows(name, d, s.outer, s.n, backward_rows<S, V, WIDE>, y, a, b, s, logs)
                  : ax_cuda_launch_rows(name, d, s.outer, s.n, forward_rows<S, V, WIDE>, y, a, s, logs);
    });
  });
}

AX_CUDA_KERNEL(softmax) { return run(call, false, false); }
AX_CUDA_KERNEL(log_softmax) { return run(call, true, false); }
AX_CUDA_KERNEL(_softmax_backward) { return run(call, false, true); }
AX_CUDA_KERNEL(_log_softmax_backward) { return run(call, true, true); }

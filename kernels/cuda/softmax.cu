/* softmax and log_softmax along one dim, and their gradients; kernels/cpu/softmax.c has the
 * formulas. The tensor is (outer, n, inner) around that dim.  Where inner is 1 rows are runs of
 * memory: read once for the largest element and the sum together, and once more, from a cache, for
 * the result.  Else neighbouring threads have neighbouring columns.  Memory bounds the kernels. */
#include "rows.cuh"
#include "around.h"

/* ---- rows */

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
    ax_cuda_walk<V, team>(from, s.n, [&](int64_t i, auto width) {
      T v[AX_VALUE_OF(width)];
      ax_cuda_get(from, i, v);
      e.add(v);
    });
    e.template join<team>(shared);
    const T by = logs ? ax_cuda_row_log(e.sum) : (T)1 / e.sum;
    ax_cuda_walk<V, team>(from, s.n, [&](int64_t i, auto width) {
      constexpr int W = AX_VALUE_OF(width);
      T v[W];
      ax_cuda_get(from, i, v);
      for (int j = 0; j < W; j++) v[j] = logs ? (v[j] - e.top) - by : ax_cuda_term(v[j], e.top) * by;
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
    return ax_cuda_with_any_rows<S>(s.n,
                                    ((uintptr_t)y ^ (uintptr_t)a) | (b ? (uintptr_t)y ^ (uintptr_t)b : 0),
                                    [&](auto v, auto wide) {
      constexpr int V = AX_VALUE_OF(v);
      constexpr bool WIDE = AX_VALUE_OF(wide);
      return back ? ax_cuda_launch_rows(name, d, s.outer, s.n, backward_rows<S, V, WIDE>, y, a, b, s, logs)
                  : ax_cuda_launch_rows(name, d, s.outer, s.n, forward_rows<S, V, WIDE>, y, a, s, logs);
    });
  });
}

AX_CUDA_KERNEL(softmax) { return run(call, false, false); }
AX_CUDA_KERNEL(log_softmax) { return run(call, true, false); }
AX_CUDA_KERNEL(_softmax_backward) { return run(call, false, true); }
AX_CUDA_KERNEL(_log_softmax_backward) { return run(call, true, true); }

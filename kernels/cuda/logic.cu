/* Comparisons, logic and selection: results are bool, one byte of 0 or 1. */
#include "pointwise.cuh"

#define COMPARE(name, expr) \
  struct name##_fn { \
    template <class T> __device__ __forceinline__ uint8_t operator()(T a, T b) const \
    { \
      return (uint8_t)(expr); \
    } \
  };
AX_COMPARE(COMPARE)

struct not_fn {
  template <class T> __device__ __forceinline__ uint8_t operator()(T x) const { return x == (T)0; }
};
struct nan_fn {
  template <class T> __device__ __forceinline__ uint8_t operator()(T x) const { return x != x; }
};
struct finite_fn {
  template <class T> __device__ __forceinline__ uint8_t operator()(T x) const { return x - x == (T)0; }
};
struct inf_fn {
  template <class T> __device__ __forceinline__ uint8_t operator()(T x) const
  {
    return x == x && !(x - x == (T)0);
  }
};

template <class F, int N> static ax_status to_bool(const ax_call *call)
{
  if (call->iter->numel == 0) return AX_OK;
  if (ax_cuda_is_mixed(call)) return ax_cuda_pointwise_mix<N>(call, F());
  return ax_cuda_with_any(call->op, ax_cuda_input_dtype(call), [&](auto tag) {
    return ax_cuda_pointwise<ax_cuda_bool, AX_TYPE_OF(tag), N>(call, F());
  });
}

#define ROW(name, expr) \
  AX_CUDA_KERNEL(name) { return to_bool<name##_fn, 2>(call); }
AX_COMPARE(ROW)
AX_CUDA_KERNEL(logical_not) { return to_bool<not_fn, 1>(call); }
AX_CUDA_KERNEL(isnan) { return to_bool<nan_fn, 1>(call); }
AX_CUDA_KERNEL(isfinite) { return to_bool<finite_fn, 1>(call); }
AX_CUDA_KERNEL(isinf) { return to_bool<inf_fn, 1>(call); }

/* ---- where moves bits; only the size of an element matters */

template <class S> struct choice {
  ax_cuda_nest<4> nest;
  S value[2];
  bool number[2];
  bool one[3]; /* the condition and the tensors: one element for all of a run */
};

/* V elements from p on, or the one at p V times. */
template <int V, class S> static __device__ __forceinline__ ax_cuda_pack<S, V> run_at(const char *p, bool one)
{
  if (!one) return *(const ax_cuda_pack<S, V> *)p;
  ax_cuda_pack<S, V> run;
  for (int j = 0; j < V; j++) run.v[j] = *(const S *)p;
  return run;
}

template <class S, int V> static __global__ void choose(choice<S> c)
{
  int64_t at[4];
  if (AX_FIRST >= c.nest.numel) return;
  ax_cuda_nest_at(c.nest, (uint32_t)AX_FIRST, at);
  const ax_cuda_pack<uint8_t, V> yes = run_at<V, uint8_t>(c.nest.data[1] + at[1], c.one[0]);
  ax_cuda_pack<S, V> from[2], to;
  for (int k = 0; k < 2; k++)
    if (c.number[k])
      for (int j = 0; j < V; j++) from[k].v[j] = c.value[k];
    else from[k] = run_at<V, S>(c.nest.data[2 + k] + at[2 + k], c.one[1 + k]);
  for (int j = 0; j < V; j++) to.v[j] = yes.v[j] ? from[0].v[j] : from[1].v[j];
  *(ax_cuda_pack<S, V> *)(c.nest.data[0] + at[0]) = to;
}

/* Turns the nest into one of runs of V elements, where each operand has them in one place, aligned,
 * or has one element for all. */
template <class S> static bool in_runs(choice<S> *c, int64_t V)
{
  ax_cuda_nest<4> *const nest = &c->nest;
  const int last = nest->ndim - 1;
  bool one[3] = {};

  if (last < 0 || nest->shape[last] % V) return false;
  for (int k = 0; k < 4; k++) {
    const int64_t item = k == 1 ? 1 : (int64_t)sizeof(S), step = nest->stride[k][last];
    if (k >= 2 && c->number[k - 2]) continue;
    if (k && step == 0) {
      one[k - 1] = true;
      continue;
    }
    if (step != item || (uintptr_t)nest->data[k] % (size_t)(item * V)) return false;
    for (int d = 0; d < last; d++)
      if (nest->stride[k][d] % (item * V)) return false;
  }
  memcpy(c->one, one, sizeof one);
  ax_cuda_nest_join(nest, V);
  return true;
}

/* mask: which input the condition is */
template <class S>
static ax_status run_choice(const ax_call *call, const ax_iter *it, const bool *number, int mask)
{
  constexpr int V = 16 / sizeof(S);
  const ax_device d = call->out[0]->device;
  const char *const name = ax_ops[call->op].name;
  choice<S> c = {};
  for (int k = 0; k < call->n_in; k++)
    if (call->in[k]) ax_cuda_expect(call->in[k], k == mask ? AX_BOOL : it->op[0].dtype);
  c.nest = ax_cuda_nest_of<4>(it);
  for (int k = 0; k < 2; k++) {
    c.number[k] = number[k];
    if (number[k]) memcpy(&c.value[k], it->op[2 + k].data, sizeof(S));
  }
  const bool runs = in_runs(&c, V);
  return ax_cuda_in_parts(c.nest, [&](const ax_cuda_nest<4> &part) {
    c.nest = part;
    return ax_cuda_launch(name, d, ax_cuda_tiles(part.numel, 256), 256, runs ? choose<S, V> : choose<S, 1>,
                          c);
  });
}

AX_CUDA_KERNEL(where)
{
  const bool number[2] = { !call->in[1], !call->in[2] };
  if (call->iter->numel == 0) return AX_OK;
  return ax_cuda_with_size(call->op, call->iter->op[0].dtype, [&](auto tag) {
    return run_choice<AX_TYPE_OF(tag)>(call, call->iter, number, 0);
  });
}

/* where(mask, value, x): the operands of where in another order, with the number as an operand. */
AX_CUDA_KERNEL(masked_fill)
{
  const ax_dtype d = call->iter->op[0].dtype;
  const bool number[2] = { true, false };
  ax_iter it = *call->iter;
  int64_t value;

  if (it.numel == 0) return AX_OK;
  ax_store_double(d, &value, 0, call->a->masked_fill.value);
  it.n = 4;
  it.op[3] = call->iter->op[1];
  it.op[1] = call->iter->op[2];
  it.op[2] = ax_operand{};
  it.op[2].data = (char *)&value;
  return ax_cuda_with_size(call->op, d,
                           [&](auto tag) { return run_choice<AX_TYPE_OF(tag)>(call, &it, number, 1); });
}

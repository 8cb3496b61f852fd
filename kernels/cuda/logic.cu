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
};

template <class S> static __global__ void choose(choice<S> c)
{
  int64_t at[4];
  for (int64_t i = AX_FIRST; i < c.nest.numel; i += AX_STEP) {
    ax_cuda_nest_at(c.nest, i, at);
    const int k = *(const uint8_t *)(c.nest.data[1] + at[1]) ? 0 : 1;
    *(S *)(c.nest.data[0] + at[0]) = c.number[k] ? c.value[k] : *(const S *)(c.nest.data[2 + k] + at[2 + k]);
  }
}

/* mask: which input the condition is */
template <class S>
static ax_status run_choice(const ax_call *call, const ax_iter *it, const bool *number, int mask)
{
  const ax_device d = call->out[0]->device;
  choice<S> c = {};
  for (int k = 0; k < call->n_in; k++)
    if (call->in[k]) ax_cuda_expect(call->in[k], k == mask ? AX_BOOL : it->op[0].dtype);
  c.nest = ax_cuda_nest_of<4>(it);
  for (int k = 0; k < 2; k++) {
    c.number[k] = number[k];
    if (number[k]) memcpy(&c.value[k], it->op[2 + k].data, sizeof(S));
  }
  return ax_cuda_launch(ax_ops[call->op].name, d, ax_cuda_blocks(it->numel, 256, d.index), 256, choose<S>, c);
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

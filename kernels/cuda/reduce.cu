/* sum, mean, prod, any, all, count_nonzero.  Floats are added and multiplied in float64; integers
 * in int64, which wraps around. */
#include "reduce.cuh"

/* O: the storage type of a result. */
template <class O> struct float_sum {
  typedef double acc;
  bool accumulate, mean;
  __device__ __forceinline__ acc start() const { return 0; }
  template <class V> __device__ __forceinline__ acc add(acc a, V v, int64_t, int64_t) const
  {
    return a + (double)v;
  }
  __device__ __forceinline__ acc join(acc a, acc b) const { return a + b; }
  __device__ __forceinline__ void finish(char *out, acc a, int64_t count, int64_t) const
  {
    if (mean) a /= (double)count;
    if (accumulate) a += (double)ax_cuda_load(*(O *)out);
    *(O *)out = ax_cuda_store<O>(a);
  }
};

struct int_sum {
  typedef uint64_t acc;
  bool accumulate;
  __device__ __forceinline__ acc start() const { return 0; }
  template <class V> __device__ __forceinline__ acc add(acc a, V v, int64_t, int64_t) const
  {
    return a + (uint64_t)(int64_t)v;
  }
  __device__ __forceinline__ acc join(acc a, acc b) const { return a + b; }
  __device__ __forceinline__ void finish(char *out, acc a, int64_t, int64_t) const
  {
    *(int64_t *)out = (int64_t)(accumulate ? a + (uint64_t) * (int64_t *)out : a);
  }
};

/* O: the storage type of a result.  A: double or uint64_t. */
template <class O, class A> struct product {
  typedef A acc;
  __device__ __forceinline__ acc start() const { return 1; }
  template <class V> __device__ __forceinline__ acc add(acc a, V v, int64_t, int64_t) const
  {
    return a * (A)v;
  }
  __device__ __forceinline__ acc join(acc a, acc b) const { return a * b; }
  __device__ __forceinline__ void finish(char *out, acc a, int64_t, int64_t) const
  {
    *(O *)out = ax_cuda_store<O>(a);
  }
};

/* Counts the elements that are not 0; any and all compare that count. */
enum question { COUNT, ANY, ALL };
struct counter {
  typedef int64_t acc;
  question what;
  __device__ __forceinline__ acc start() const { return 0; }
  template <class V> __device__ __forceinline__ acc add(acc a, V v, int64_t, int64_t) const
  {
    return a + (v != (V)0);
  }
  __device__ __forceinline__ acc join(acc a, acc b) const { return a + b; }
  __device__ __forceinline__ void finish(char *out, acc a, int64_t count, int64_t) const
  {
    if (what == COUNT) *(int64_t *)out = a;
    else *(uint8_t *)out = what == ANY ? a > 0 : a == count;
  }
};

/* The result may be wider than the input: bf16 gradients added into a float32 slot. */
static ax_status float_sums(const ax_call *call, bool mean)
{
  const bool accumulate = call->a->accumulate;
  return ax_cuda_with_float(call->op, call->iter->op[1].dtype, [&](auto from) {
    return ax_cuda_with_float(call->op, call->iter->op[0].dtype, [&](auto to) {
      return ax_cuda_reduce<AX_TYPE_OF(from)>(call, float_sum<AX_TYPE_OF(to)>{ accumulate, mean });
    });
  });
}

AX_CUDA_KERNEL(sum)
{
  const int_sum reducer = { call->a->accumulate };
  const ax_status st = ax_is_float(call->iter->op[1].dtype) ? AX_OK : ax_cuda_reduces_to<int64_t>(call);
  if (st != AX_OK) return st;
  switch (call->iter->op[1].dtype) {
  case AX_I64: return ax_cuda_reduce<int64_t>(call, reducer);
  case AX_I32: return ax_cuda_reduce<int32_t>(call, reducer);
  case AX_U8: return ax_cuda_reduce<uint8_t>(call, reducer);
  case AX_BOOL: return ax_cuda_reduce<ax_cuda_bool>(call, counter{ COUNT });
  default: return float_sums(call, false);
  }
}

AX_CUDA_KERNEL(mean) { return float_sums(call, true); }

AX_CUDA_KERNEL(_prod)
{
  const ax_dtype from = call->iter->op[1].dtype;
  if (ax_is_float(from))
    return ax_cuda_with_float(call->op, from, [&](auto tag) {
      typedef AX_TYPE_OF(tag) S;
      return ax_cuda_reduce<S>(call, product<S, double>());
    });
  return ax_cuda_with_any(call->op, from, [&](auto tag) {
    return ax_cuda_reduce<AX_TYPE_OF(tag)>(call, product<int64_t, uint64_t>());
  });
}

static ax_status ask(const ax_call *call, question what)
{
  const ax_status st =
      what == COUNT ? ax_cuda_reduces_to<int64_t>(call) : ax_cuda_reduces_to<ax_cuda_bool>(call);
  if (st != AX_OK) return st;
  return ax_cuda_with_any(call->op, call->iter->op[1].dtype,
                          [&](auto from) { return ax_cuda_reduce<AX_TYPE_OF(from)>(call, counter{ what }); });
}

AX_CUDA_KERNEL(any) { return ask(call, ANY); }
AX_CUDA_KERNEL(all) { return ask(call, ALL); }
AX_CUDA_KERNEL(count_nonzero) { return ask(call, COUNT); }

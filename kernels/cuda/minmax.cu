/* max, min, argmax, argmin, amax, amin.  The result is NaN where an element is; of equal elements
 * the first wins, in logical order. */
#include "reduce.cuh"

template <class V> static __device__ __forceinline__ bool is_nan(V v) { return v != v; }

/* sign 1: max; -1: min. */
template <class S> struct finder {
  typedef compute<S> value;
  struct acc {
    value v;
    int64_t at;
  }; /* at < 0: none yet */
  int sign;
  bool arg;       /* the result itself is the position */
  int64_t *where; /* positions of all results, or NULL */

  __device__ __forceinline__ bool beats(const acc &a, const acc &b) const
  {
    if (b.at < 0 || a.at < 0) return a.at >= 0;
    if (is_nan(a.v) || is_nan(b.v)) return is_nan(a.v) && (!is_nan(b.v) || a.at < b.at);
    if (a.v == b.v) return a.at < b.at;
    return sign > 0 ? a.v > b.v : a.v < b.v;
  }
  __device__ __forceinline__ acc start() const { return acc{ (value)0, -1 }; }
  __device__ __forceinline__ acc add(acc a, value v, int64_t at, int64_t) const
  {
    return join(a, acc{ v, at });
  }
  __device__ __forceinline__ acc join(acc a, acc b) const { return beats(b, a) ? b : a; }
  __device__ __forceinline__ void finish(char *out, acc a, int64_t, int64_t result) const
  {
    if (where) where[result] = a.at;
    if (arg) *(int64_t *)out = a.at;
    else *(S *)out = ax_cuda_store<S>(a.v);
  }
};

static ax_status minmax(const ax_call *call, int sign, bool arg)
{
  int64_t *where = !arg && call->n_out > 1 && call->out[1] ? ax_cuda_data<int64_t>(call->out[1]) : NULL;
  if (call->iter->numel == 0 && call->out[0]->numel > 0)
    return ax_fail(AX_ESHAPE, "%s: no elements to choose from", ax_ops[call->op].name);
  return ax_cuda_with_any(call->op, call->iter->op[1].dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    const ax_status st = arg ? ax_cuda_reduces_to<int64_t>(call) : ax_cuda_reduces_to<S>(call);
    return st != AX_OK ? st : ax_cuda_reduce<S>(call, finder<S>{ sign, arg, where });
  });
}

AX_CUDA_KERNEL(max) { return minmax(call, 1, false); }
AX_CUDA_KERNEL(min) { return minmax(call, -1, false); }
AX_CUDA_KERNEL(amax) { return minmax(call, 1, false); }
AX_CUDA_KERNEL(amin) { return minmax(call, -1, false); }
AX_CUDA_KERNEL(argmax) { return minmax(call, 1, true); }
AX_CUDA_KERNEL(argmin) { return minmax(call, -1, true); }

/* cumsum along a dim, y[i] = x[0] + .. + x[i], forward and from the end (for its gradient).  Floats
 * add in float64; integers add in int64, which wraps around.  Memory bounds it: long lines are read
 * twice. */
#include "scan.cuh"

template <class S> struct summed {
  typedef double type;
};
template <> struct summed<int64_t> {
  typedef uint64_t type;
};

/* Lines of an (outer, n, inner) tensor. */
template <class S> struct along {
  typedef typename summed<S>::type T;
  const S *x;
  S *y;
  int64_t n, inner;
  bool from_end;
  __device__ __forceinline__ int64_t at(int64_t line, int64_t i) const
  {
    return line / inner * n * inner + (from_end ? n - 1 - i : i) * inner + line % inner;
  }
  __device__ __forceinline__ T load(int64_t line, int64_t i) const { return (T)ax_cuda_load(x[at(line, i)]); }
  __device__ __forceinline__ void store(int64_t line, int64_t i, T up_to, T) const
  {
    y[at(line, i)] = ax_cuda_store<S>(up_to);
  }
};

/* Many adjacent lines: one thread for each. */
template <class S> static __global__ void columns(along<S> f, int64_t lines)
{
  for (int64_t line = AX_FIRST; line < lines; line += AX_STEP) {
    typename along<S>::T sum = 0;
    for (int64_t i = 0; i < f.n; i++) {
      const typename along<S>::T own = f.load(line, i);
      sum += own;
      f.store(line, i, sum, own);
    }
  }
}

enum { MANY = 4096 };

template <class S> static ax_status run(const ax_call *call, bool from_end)
{
  const ax_tensor *x = call->in[0], *y = call->out[0];
  const int64_t dim = call->a->scan.dim;
  along<S> f = { ax_cuda_data<S>(x), ax_cuda_data<S>(y), x->ndim ? x->shape[dim] : 1, 1, from_end };
  for (int d = (int)dim + 1; d < x->ndim; d++) f.inner *= x->shape[d];
  const int64_t lines = y->numel / f.n;
  if (f.inner > 1 && lines >= MANY)
    return ax_cuda_launch("cumsum", y->device, ax_cuda_blocks(lines, 128, y->device.index), 128, columns<S>,
                          f, lines);
  return ax_cuda_scan<typename along<S>::T>("cumsum", y->device, lines, f.n, f);
}

static ax_status scan(const ax_call *call, bool from_end)
{
  if (call->out[0]->numel == 0) return AX_OK;
  if (call->out[0]->dtype == AX_I64) return run<int64_t>(call, from_end);
  return ax_cuda_with_float(call->op, (ax_dtype)call->out[0]->dtype,
                            [&](auto tag) { return run<AX_TYPE_OF(tag)>(call, from_end); });
}

AX_CUDA_KERNEL(cumsum) { return scan(call, false); }
AX_CUDA_KERNEL(_cumsum_backward) { return scan(call, true); }

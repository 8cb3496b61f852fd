/* Pointwise rows on the device: F computes one element, everything else is here.
 *
 * Each row and type has two kernels; two more serve operands of several types
 * (pointwise_mixed.cuh).  Flat: every operand is contiguous or one element; a thread takes a run of
 * 16 bytes of the widest operand.  Nest: any strides, in runs along the innermost dim where it
 * allows that, else four single elements for each thread.  Numbers are passed by value.
 *
 * Memory bounds the kernels.  To keep 4.8 TB/s busy, some 25 KB must be in flight for each
 * multiprocessor, 12 bytes for each of its threads; that is why runs matter, and why a thread loads
 * all that it reads before it converts any of it. */
#ifndef AX_CUDA_POINTWISE_H
#define AX_CUDA_POINTWISE_H

#include "rows.cuh"

/* The elements of a run: 16 bytes of the wider type, at most 8. */
template <class O, class I> static __host__ __device__ constexpr int ax_cuda_run_of()
{
  constexpr int widest = (int)(sizeof(O) > sizeof(I) ? sizeof(O) : sizeof(I));
  return 16 / widest < 8 ? 16 / widest : 8;
}

/* The inputs of a call: an address, or a number by value. */
template <class I, int N> struct ax_cuda_inputs {
  const I *data[N];
  bool steps[N]; /* in runs; else one element serves all of a run */
  bool number[N];
  compute<I> value[N];
};

template <class F, class O, class C>
static __device__ __forceinline__ O ax_cuda_apply(const F &f, const C (&v)[1])
{
  return ax_cuda_store<O>(f(v[0]));
}
template <class F, class O, class C>
static __device__ __forceinline__ O ax_cuda_apply(const F &f, const C (&v)[2])
{
  return ax_cuda_store<O>(f(v[0], v[1]));
}
template <class F, class O, class C>
static __device__ __forceinline__ O ax_cuda_apply(const F &f, const C (&v)[3])
{
  return ax_cuda_store<O>(f(v[0], v[1], v[2]));
}

#include "pointwise_mixed.cuh" /* applies F as above */

/* V elements of every input. */
template <class I, int N, int V> struct ax_cuda_loaded {
  ax_cuda_pack<I, V> run[N];
  compute<I> one[N]; /* of an input that does not step */

  /* Issues loads and waits for none of those of runs. */
  __device__ __forceinline__ void load(const ax_cuda_inputs<I, N> &in, const I *const (&from)[N])
  {
#pragma unroll
    for (int k = 0; k < N; k++) {
      if (in.steps[k]) run[k] = *(const ax_cuda_pack<I, V> *)from[k];
      else one[k] = in.number[k] ? in.value[k] : ax_cuda_load(*from[k]);
    }
  }
  template <class F, class O>
  __device__ __forceinline__ void apply(const F &f, const ax_cuda_inputs<I, N> &in, O *out) const
  {
    compute<I> v[N][V], each[N];
    compute<O> result[V];
    ax_cuda_pack<O, V> to;
#pragma unroll
    for (int k = 0; k < N; k++) {
      if (in.steps[k]) ax_cuda_unpack(run[k], v[k]);
      else
#pragma unroll
        for (int j = 0; j < V; j++) v[k][j] = one[k];
    }
#pragma unroll
    for (int j = 0; j < V; j++) {
#pragma unroll
      for (int k = 0; k < N; k++) each[k] = v[k][j];
      result[j] = ax_cuda_apply<F, compute<O>>(f, each);
    }
    ax_cuda_repack(to, result);
    *(ax_cuda_pack<O, V> *)out = to;
  }
};

/* A thread has a run; those of the first block have one of the elements that are left as well. */
template <class F, class O, class I, int N>
static __global__ void ax_cuda_pointwise_flat(F f, O *out, ax_cuda_inputs<I, N> in, int64_t n)
{
  constexpr int V = ax_cuda_run_of<O, I>();
  const I *from[N];
  const int64_t first = AX_FIRST * V, rest = n / V * V + AX_FIRST;

  if (first + V <= n) {
    ax_cuda_loaded<I, N, V> runs;
    for (int k = 0; k < N; k++) from[k] = in.steps[k] ? in.data[k] + first : in.data[k];
    runs.load(in, from);
    runs.apply(f, in, out + first);
  }
  if (rest < n) {
    ax_cuda_loaded<I, N, 1> left;
    for (int k = 0; k < N; k++) from[k] = in.steps[k] ? in.data[k] + rest : in.data[k];
    left.load(in, from);
    left.apply(f, in, out + rest);
  }
}

/* RUNS: an item of the nest is a run along the former innermost dim, in which every input steps by
 * one element or not at all.  A thread has several items of single elements, for the bytes in
 * flight; f stands in the code once, since some functions are long. */
template <bool RUNS> static __host__ __device__ constexpr int ax_cuda_items_each() { return RUNS ? 1 : 4; }
template <bool RUNS, class F, class O, class I, int N>
static __global__ void ax_cuda_pointwise_nest(F f, ax_cuda_nest<N + 1> nest, ax_cuda_inputs<I, N> in)
{
  constexpr int V = RUNS ? ax_cuda_run_of<O, I>() : 1, U = ax_cuda_items_each<RUNS>();
  const uint32_t first = blockIdx.x * (blockDim.x * U) + threadIdx.x;
  int64_t at[U][N + 1];
  const I *from[N];
  ax_cuda_loaded<I, N, V> items[U];
  O *to[U];

  ax_cuda_nest_items(nest, first, blockDim.x, at);
#pragma unroll
  for (int u = 0; u < U; u++) {
    to[u] = (O *)(nest.data[0] + at[u][0]);
    for (int k = 0; k < N; k++) from[k] = (const I *)(nest.data[k + 1] + at[u][k + 1]);
    if (first + u * blockDim.x < nest.numel) items[u].load(in, from);
  }
#pragma unroll 1
  for (int u = 0; u < U && first + u * blockDim.x < nest.numel; u++) {
    items[0].apply(f, in, to[0]);
#pragma unroll
    for (int w = 1; w < U; w++) {
      items[w - 1] = items[w];
      to[w - 1] = to[w];
    }
  }
}

/* Whether every operand is contiguous or one element, and aligned for runs. */
template <class O, class I, int N>
static inline bool ax_cuda_is_flat(const ax_iter *it, ax_cuda_inputs<I, N> *in)
{
  constexpr size_t V = ax_cuda_run_of<O, I>();
  bool flat = it->ndim <= 1 && (it->ndim == 0 || it->op[0].stride[0] == (int64_t)sizeof(O)) &&
              (uintptr_t)it->op[0].data % (sizeof(O) * V) == 0;
  for (int k = 0; k < N; k++) {
    const int64_t stride = it->ndim ? it->op[k + 1].stride[0] : 0;
    in->steps[k] = stride == (int64_t)sizeof(I) && !in->number[k];
    if (in->number[k]) continue;
    flat = flat && (stride == 0 ||
                    (stride == (int64_t)sizeof(I) && (uintptr_t)it->op[k + 1].data % (sizeof(I) * V) == 0));
  }
  return flat;
}

/* Are the operands of the types that they are about to be read and written as? */
template <class O, class I, int N> static inline ax_status ax_cuda_check_operands(const ax_call *call)
{
  const ax_iter *it = call->iter;
  if (!ax_cuda_holds<O>(it->op[0].dtype)) return ax_cuda_wrong_operand(call, 0, "one type");
  for (int k = 0; k < N; k++)
    if ((k >= call->n_in || call->in[k]) && !ax_cuda_holds<I>(it->op[k + 1].dtype))
      return ax_cuda_wrong_operand(call, k + 1, "one type");
  return AX_OK;
}

/* Turns a nest into one of runs, where every run of every operand is aligned. */
template <class O, class I, int N>
static inline bool ax_cuda_in_runs(ax_cuda_nest<N + 1> *nest, ax_cuda_inputs<I, N> *in)
{
  constexpr int64_t V = ax_cuda_run_of<O, I>();
  const int last = nest->ndim - 1;
  bool steps[N] = {};
  if (last < 0 || nest->shape[last] % V) return false;
  for (int k = 0; k <= N; k++) {
    const int64_t item = k ? (int64_t)sizeof(I) : (int64_t)sizeof(O), step = nest->stride[k][last];
    if (k) steps[k - 1] = !in->number[k - 1] && step != 0;
    if (k && !steps[k - 1]) continue;
    if (step != item || (uintptr_t)nest->data[k] % (size_t)(item * V)) return false;
    for (int d = 0; d < last; d++)
      if (nest->stride[k][d] % (item * V)) return false;
  }
  memcpy(in->steps, steps, sizeof steps);
  ax_cuda_nest_join(nest, V);
  return true;
}

/* out = f(inputs), element by element: O and I are the storage types of the result and of all
 * inputs. */
template <class O, class I, int N, class F> static ax_status ax_cuda_pointwise(const ax_call *call, F f)
{
  const ax_iter *it = call->iter;
  const ax_device d = call->out[0]->device;
  const char *name = ax_ops[call->op].name;
  ax_cuda_inputs<I, N> in = {};
  const ax_status st = ax_cuda_check_operands<O, I, N>(call);

  if (st != AX_OK) return st;
  for (int k = 0; k < N; k++) {
    const ax_operand *o = &it->op[k + 1];
    in.data[k] = (const I *)o->data;
    in.number[k] = k < call->n_in && !call->in[k];
    if (!in.number[k]) continue;
    /* o->data points to host memory */
    if (ax_is_float(o->dtype)) in.value[k] = (compute<I>)ax_load_double(o->dtype, o->data, 0);
    else in.value[k] = (compute<I>)ax_load_int(o->dtype, o->data, 0);
  }
  if (ax_cuda_is_flat<O, I, N>(it, &in))
    return ax_cuda_launch(name, d, ax_cuda_tiles(it->numel / ax_cuda_run_of<O, I>(), 256), 256,
                          ax_cuda_pointwise_flat<F, O, I, N>, f, (O *)it->op[0].data, in, it->numel);
  ax_cuda_nest<N + 1> nest = ax_cuda_nest_of<N + 1>(it);
  const bool runs = ax_cuda_in_runs<O, I, N>(&nest, &in);
  for (int k = 0; k < N && !runs; k++) in.steps[k] = !in.number[k];
  return ax_cuda_in_parts(nest, [&](const ax_cuda_nest<N + 1> &part) {
    constexpr int U = ax_cuda_items_each<false>();
    return runs ? ax_cuda_launch(name, d, ax_cuda_tiles(part.numel, 256), 256,
                                 ax_cuda_pointwise_nest<true, F, O, I, N>, f, part, in)
                : ax_cuda_launch(name, d, ax_cuda_tiles(part.numel, 256 * U), 256,
                                 ax_cuda_pointwise_nest<false, F, O, I, N>, f, part, in);
  });
}

/* The type of the first tensor: of all of them, unless float32 and half types are mixed. */
static inline ax_dtype ax_cuda_input_dtype(const ax_call *call)
{
  for (int k = 0; k < call->n_in; k++)
    if (call->in[k]) return (ax_dtype)call->in[k]->dtype;
  return call->iter->op[1].dtype;
}

/* Do floating operands differ in type?  A result that is bool does not count. */
static inline bool ax_cuda_is_mixed(const ax_call *call)
{
  const ax_iter *it = call->iter;
  const ax_dtype d = ax_cuda_input_dtype(call);
  if (!ax_is_float(d)) return false;
  for (int k = it->op[0].dtype == AX_BOOL; k < it->n; k++) {
    const bool number = k && k <= call->n_in && !call->in[k - 1];
    if (!number && it->op[k].dtype != d) return true;
  }
  return false;
}

/* Float rows: F<float> serves float32 and the half types, F<double> float64. */
template <template <class> class F, int N> static ax_status ax_cuda_pointwise_float(const ax_call *call)
{
  if (call->iter->numel == 0) return AX_OK;
  if (ax_cuda_is_mixed(call)) return ax_cuda_pointwise_mix<N>(call, F<float>(call->a->numbers));
  return ax_cuda_with_float(call->op, ax_cuda_input_dtype(call), [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_pointwise<S, S, N>(call, F<compute<S>>(call->a->numbers));
  });
}

/* A functor of up to three numbers p0, p1, p2 for one element type. */
#define AX_FUNCTOR(name, T, arguments, expr) \
  template <> struct name##_fn<T> { \
    T p0, p1, p2; \
    explicit name##_fn(const double *f) : p0((T)f[0]), p1((T)f[1]), p2((T)f[2]) {} \
    __device__ __forceinline__ T operator()(arguments) const { return (T)(expr); } \
  };
#define AX_COMMA ,

#endif

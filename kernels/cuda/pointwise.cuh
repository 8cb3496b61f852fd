/* How a pointwise row gets from an ax_iter to the device: F computes one element, everything else is here.
 *
 * Two kernels for each row and type.  Flat: every operand is contiguous or one element, four elements a thread in one load.  Nest: any
 * strides, one element a thread.  Numbers travel by value. */
#ifndef AX_CUDA_POINTWISE_H
#define AX_CUDA_POINTWISE_H

#include "common.cuh"

template <class S> struct alignas(sizeof(S) * 4) ax_four { S v[4]; };

/* The inputs of a call: addresses, or the number in their place. */
template <class I, int N> struct ax_inputs {
  const I *data[N];
  int64_t step[N]; /* flat: 1, or 0 for a single element */
  bool number[N];
  compute<I> value[N];
};

template <class F, class O, class C> static __device__ __forceinline__ O ax_apply(const F &f, const C (&v)[1]) { return ax_store<O>(f(v[0])); }
template <class F, class O, class C> static __device__ __forceinline__ O ax_apply(const F &f, const C (&v)[2]) { return ax_store<O>(f(v[0], v[1])); }
template <class F, class O, class C> static __device__ __forceinline__ O ax_apply(const F &f, const C (&v)[3]) { return ax_store<O>(f(v[0], v[1], v[2])); }

template <class F, class O, class I, int N> static __global__ void ax_pointwise_flat(F f, O *out, ax_inputs<I, N> in, int64_t n)
{
  compute<I> v[4][N];
  const int64_t fours = n / 4;

  for (int64_t q = AX_FIRST; q < fours; q += AX_STEP) {
    for (int k = 0; k < N; k++) {
      if (in.step[k]) {
        const ax_four<I> pack = ((const ax_four<I> *)in.data[k])[q];
        for (int j = 0; j < 4; j++) v[j][k] = ax_load(pack.v[j]);
      } else {
        const compute<I> c = in.number[k] ? in.value[k] : ax_load(*in.data[k]);
        for (int j = 0; j < 4; j++) v[j][k] = c;
      }
    }
    ax_four<O> pack;
    for (int j = 0; j < 4; j++) pack.v[j] = ax_apply<F, O>(f, v[j]);
    ((ax_four<O> *)out)[q] = pack;
  }
  for (int64_t i = fours * 4 + AX_FIRST; i < n; i += AX_STEP) {
    for (int k = 0; k < N; k++) v[0][k] = in.number[k] ? in.value[k] : ax_load(in.data[k][i * in.step[k]]);
    out[i] = ax_apply<F, O>(f, v[0]);
  }
}

template <class F, class O, class I, int N> static __global__ void ax_pointwise_nest(F f, ax_nest<N + 1> nest, ax_inputs<I, N> in)
{
  int64_t at[N + 1];
  compute<I> v[N];
  for (int64_t i = AX_FIRST; i < nest.numel; i += AX_STEP) {
    ax_nest_at(nest, i, at);
    for (int k = 0; k < N; k++) v[k] = in.number[k] ? in.value[k] : ax_load(*(const I *)(nest.data[k + 1] + at[k + 1]));
    *(O *)(nest.data[0] + at[0]) = ax_apply<F, O>(f, v);
  }
}

/* Is everything contiguous or one element, and aligned for loads of four? */
template <class O, class I, int N> static inline bool ax_is_flat(const ax_iter *it, ax_inputs<I, N> *in)
{
  bool flat = it->ndim <= 1 && (it->ndim == 0 || it->op[0].stride[0] == (int64_t)sizeof(O)) && (uintptr_t)it->op[0].data % (sizeof(O) * 4) == 0;
  for (int k = 0; k < N; k++) {
    const int64_t stride = it->ndim ? it->op[k + 1].stride[0] : 0;
    in->step[k] = stride == (int64_t)sizeof(I) && !in->number[k];
    if (in->number[k]) continue;
    flat = flat && (stride == 0 || (stride == (int64_t)sizeof(I) && (uintptr_t)it->op[k + 1].data % (sizeof(I) * 4) == 0));
  }
  return flat;
}

/* out = f(inputs), element by element: O and I are storage types, the inputs are operands `first` .. first + N - 1 of the nest. */
template <class O, class I, int N, class F> static ax_status ax_pointwise(const ax_call *call, F f)
{
  const ax_iter *it = call->iter;
  const ax_device d = call->out[0]->device;
  const char *name = ax_ops[call->op].name;
  ax_inputs<I, N> in = {};

  for (int k = 0; k < N; k++) {
    const ax_operand *o = &it->op[k + 1];
    in.data[k] = (const I *)o->data;
    in.number[k] = k < call->n_in && !call->in[k];
    if (!in.number[k]) continue;
    /* it is the host's memory that o->data points to */
    if (ax_is_float(o->dtype)) in.value[k] = (compute<I>)ax_load_double(o->dtype, o->data, 0);
    else in.value[k] = (compute<I>)ax_load_int(o->dtype, o->data, 0);
  }
  if (ax_is_flat<O, I, N>(it, &in))
    return ax_launch(name, d, ax_blocks(it->numel / 4 + 1, 256, d.index), 256, ax_pointwise_flat<F, O, I, N>, f, (O *)it->op[0].data, in, it->numel);
  return ax_launch(name, d, ax_blocks(it->numel, 256, d.index), 256, ax_pointwise_nest<F, O, I, N>, f, ax_nest_of<N + 1>(it), in);
}

/* The type that the inputs have: a number beside half operands comes in float32. */
static inline ax_dtype ax_input_dtype(const ax_call *call)
{
  for (int k = 0; k < call->n_in; k++)
    if (call->in[k]) return (ax_dtype)call->in[k]->dtype;
  return call->iter->op[1].dtype;
}

/* Float rows: F<float> serves float32 and the half types, F<double> float64. */
template <template <class> class F, int N> static ax_status ax_pointwise_float(const ax_call *call)
{
  const ax_dtype d = ax_input_dtype(call);
  if (call->iter->numel == 0) return AX_OK;
  return ax_with_float(call->op, d, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_pointwise<S, S, N>(call, F<compute<S>>(call->a->f));
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

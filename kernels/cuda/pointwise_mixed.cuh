/* Pointwise rows over float32 and half types side by side: the residual stream of a transformer
 * under autocast (float32 + bfloat16), functions that give float32 of half inputs, a half tensor
 * that is changed in place by a float32 one.
 *
 * A row has one pair of kernels for all of these, which computes in float32.  The type of each
 * operand is a number that all threads share; it is looked at once for a run of eight elements,
 * outside of the loop over them.  (As template arguments the types would be 9 kernels for each row
 * of two inputs and 27 for three.)  A run is one read of 16 bytes in a half type and two in
 * float32; all of a thread's reads are in flight before it converts any. */
#ifndef AX_CUDA_POINTWISE_MIXED_H
#define AX_CUDA_POINTWISE_MIXED_H

#include "rows.cuh"

enum { AX_MIXED_RUN = 8 };

/* What a nest does not say of its operands. */
template <int N> struct ax_cuda_mixed {
  int dtype[N + 1]; /* the result's, then the inputs': AX_F32, AX_F16, AX_BF16; a result may be AX_BOOL */
  bool steps[N];    /* in runs, by one element; else one element, or a number, serves all of a run */
  bool number[N];
  float value[N];
};

/* V elements of storage type S as float32, and back. */
template <class S, int V>
static __device__ __forceinline__ void ax_cuda_narrow_run(char *to, const float (&v)[V])
{
  constexpr int W = V * (int)sizeof(S) < 16 ? V : 16 / (int)sizeof(S);
#pragma unroll
  for (int first = 0; first < V; first += W) {
    ax_cuda_pack<S, W> pack;
    float part[W];
#pragma unroll
    for (int j = 0; j < W; j++) part[j] = v[first + j];
    if constexpr (sizeof(S) == 1)
      for (int j = 0; j < W; j++) pack.v[j] = ax_cuda_store<S>(part[j]);
    else ax_cuda_repack(pack, part);
    ((ax_cuda_pack<S, W> *)to)[first / W] = pack;
  }
}
template <int V>
static __device__ __forceinline__ void ax_cuda_write_run(int dtype, char *to, const float (&v)[V])
{
  switch (dtype) {
  case AX_F16: ax_cuda_narrow_run<ax_cuda_f16>(to, v); break;
  case AX_BF16: ax_cuda_narrow_run<ax_cuda_bf16>(to, v); break;
  case AX_BOOL: ax_cuda_narrow_run<ax_cuda_bool>(to, v); break;
  default: ax_cuda_narrow_run<float>(to, v);
  }
}

/* V elements of a type known at run time: as loaded, then as float32. */
template <int V> struct ax_cuda_mixed_run {
  static constexpr int W = V < 4 ? V : 4;
  ax_cuda_pack<uint32_t, W> words[V / W]; /* those of a half type have the first half */

  template <class S> __device__ __forceinline__ void widen(float (&v)[V]) const
  {
    ax_cuda_pack<S, V> pack;
    memcpy(&pack, words, sizeof pack);
    ax_cuda_unpack(pack, v);
  }
  __device__ __forceinline__ void load(int dtype, const char *from)
  {
    if (V == 1 && dtype != AX_F32) words[0].v[0] = *(const uint16_t *)from;
    else words[0] = ((const ax_cuda_pack<uint32_t, W> *)from)[0];
    if (V > W && dtype == AX_F32) words[V / W - 1] = ((const ax_cuda_pack<uint32_t, W> *)from)[1];
  }
  __device__ __forceinline__ void read(int dtype, float (&v)[V]) const
  {
    switch (dtype) {
    case AX_F16: widen<ax_cuda_f16>(v); break;
    case AX_BF16: widen<ax_cuda_bf16>(v); break;
    default: widen<float>(v);
    }
  }
};

/* The next V elements: at[0] of the result, at[1 + k] of input k. */
template <int V, class F, int N>
static __device__ __forceinline__ void ax_cuda_mixed_items(const F &f, const ax_cuda_mixed<N> &m,
                                                           char *const (&at)[N + 1])
{
  ax_cuda_mixed_run<V> loaded[N];
  ax_cuda_mixed_run<1> one[N];
  float v[N][V], each[N], result[V];
#pragma unroll
  for (int k = 0; k < N; k++) {
    if (m.number[k]) continue;
    if (m.steps[k]) loaded[k].load(m.dtype[k + 1], at[k + 1]);
    else one[k].load(m.dtype[k + 1], at[k + 1]);
  }
#pragma unroll
  for (int k = 0; k < N; k++) {
    if (m.steps[k]) loaded[k].read(m.dtype[k + 1], v[k]);
    else {
      float same[1] = { m.value[k] };
      if (!m.number[k]) one[k].read(m.dtype[k + 1], same);
#pragma unroll
      for (int j = 0; j < V; j++) v[k][j] = same[0];
    }
  }
#pragma unroll
  for (int j = 0; j < V; j++) {
#pragma unroll
    for (int k = 0; k < N; k++) each[k] = v[k][j];
    result[j] = ax_cuda_apply<F, float>(f, each);
  }
  ax_cuda_write_run(m.dtype[0], at[0], result);
}

/* RUNS: an item of the nest is a run along what was its innermost dim; of a single dim, elements up
 * to n may be left, fewer than a run. */
template <bool RUNS, class F, int N>
static __global__ void ax_cuda_pointwise_mixed(F f, ax_cuda_nest<N + 1> nest, ax_cuda_mixed<N> m, int64_t n)
{
  constexpr int V = RUNS ? AX_MIXED_RUN : 1;
  int64_t at[N + 1];
  char *p[N + 1];

  if (AX_FIRST < nest.numel) {
    ax_cuda_nest_at(nest, (uint32_t)AX_FIRST, at);
    for (int k = 0; k <= N; k++) p[k] = nest.data[k] + at[k];
    ax_cuda_mixed_items<V>(f, m, p);
  }
  if (RUNS && nest.numel * V + AX_FIRST < n) {
    for (int k = 0; k <= N; k++) p[k] = nest.data[k] + nest.stride[k][0] / V * (nest.numel * V + AX_FIRST);
    ax_cuda_mixed_items<1>(f, m, p);
  }
}

/* Turns a nest into one of runs, where every run of every operand is aligned. */
template <int N> static inline bool ax_cuda_mixed_in_runs(ax_cuda_nest<N + 1> *nest, ax_cuda_mixed<N> *m)
{
  constexpr int64_t V = AX_MIXED_RUN;
  const int last = nest->ndim - 1;
  bool steps[N] = {};
  if (last < 0 || (last > 0 && nest->shape[last] % V)) return false;
  for (int k = 0; k <= N; k++) {
    const int64_t item = (int64_t)ax_dtype_size((ax_dtype)m->dtype[k]), step = nest->stride[k][last],
                  aligned = item * V < 16 ? item * V : 16;
    if (k) steps[k - 1] = step != 0 && !m->number[k - 1];
    if (k && !steps[k - 1]) continue;
    if (step != item || (uintptr_t)nest->data[k] % (size_t)aligned) return false;
    for (int d = 0; d < last; d++)
      if (nest->stride[k][d] % aligned) return false;
  }
  memcpy(m->steps, steps, sizeof steps);
  ax_cuda_nest_join(nest, V);
  return true;
}

/* out = f(inputs) in float32, whatever mixture of float32 and half types they are.  Anything else
 * is refused: the dispatcher casts it (plugin.h, `widens`). */
template <int N, class F> static ax_status ax_cuda_pointwise_mix(const ax_call *call, F f)
{
  const ax_iter *it = call->iter;
  const ax_device d = call->out[0]->device;
  const char *name = ax_ops[call->op].name;
  ax_cuda_mixed<N> m = {};
  ax_cuda_nest<N + 1> nest = ax_cuda_nest_of<N + 1>(it);

  for (int k = 0; k <= N; k++) {
    const ax_dtype t = it->op[k].dtype;
    m.dtype[k] = t;
    if (k && k <= call->n_in && !call->in[k - 1]) { /* it is the host's memory that the operand points to */
      m.number[k - 1] = true;
      m.value[k - 1] = (float)ax_load_double(t, it->op[k].data, 0);
      nest.data[k] = NULL;
    } else if (t != AX_F32 && !ax_is_half(t) && (k || t != AX_BOOL))
      return ax_cuda_wrong_operand(call, k, "float32, float16 or bfloat16");
  }
  const bool runs = ax_cuda_mixed_in_runs<N>(&nest, &m);
  for (int k = 0; k < N && !runs; k++) m.steps[k] = !m.number[k];
  int64_t left = it->numel; /* elements from a part on */
  return ax_cuda_in_parts(nest, [&](const ax_cuda_nest<N + 1> &part) {
    const int64_t all = left, more = left - part.numel * AX_MIXED_RUN;
    left = more;
    return ax_cuda_launch(name, d, ax_cuda_tiles(part.numel, 256), 256,
                          runs ? ax_cuda_pointwise_mixed<true, F, N> : ax_cuda_pointwise_mixed<false, F, N>,
                          f, part, m, more < AX_MIXED_RUN ? all : 0);
  });
}

#endif

/* Losses of two tensors of one shape: one pass for the terms of pair_loss.h and their sum, and one
 * for the gradient.  A block adds up CHUNK elements, on any GPU, and one block adds up the blocks.
 * Memory bounds it. */
#include "rows.cuh"

#include "pair_loss.h"

enum { MEAN, SUM, NONE, BATCHMEAN }; /* the words of `reduction`, in order */
enum { CHUNK = 16384, THREADS = 256 };

template <class T> struct terms;
#define TERM(name, term, slope) \
  static __device__ __forceinline__ T name##_term(T x, T t, T p) \
  { \
    (void)p; \
    return (T)(term); \
  } \
  static __device__ __forceinline__ T name##_slope(T x, T t, T p) \
  { \
    (void)p; \
    return (T)(slope); \
  }
#define F32(f) ax_##f##_f32
#define F64(f) ax_##f##_f64
#define T float
template <> struct terms<float> {
  AX_PAIR_TERMS(TERM, float, F32)
};
#undef T
#define T double
template <> struct terms<double> {
  AX_PAIR_TERMS(TERM, double, F64)
};
#undef T

template <int KIND, class T> static __device__ __forceinline__ T term_of(T x, T t, T p)
{
  int k = 0;
#define CASE(name, term, slope) \
  if (KIND == k++) return terms<T>::name##_term(x, t, p);
  AX_PAIR_TERMS(CASE, , )
  return 0;
}
template <int KIND, class T> static __device__ __forceinline__ T slope_of(T x, T t, T p)
{
  int k = 0;
#define SLOPE(name, term, slope) \
  if (KIND == k++) return terms<T>::name##_slope(x, t, p);
  AX_PAIR_TERMS(SLOPE, , )
  return 0;
}

/* Writes terms to `out`, or their sum, block by block, to `sums`. */
template <class S, int V, int KIND>
static __global__ void forward(S *out, double *sums, const S *x, const S *t, int64_t n, compute<S> p,
                               ax_cuda_fault *fault)
{
  typedef compute<S> T;
  __shared__ double shared[32];
  for (int64_t lo = (int64_t)blockIdx.x * CHUNK; lo < n; lo += (int64_t)gridDim.x * CHUNK) {
    const int64_t hi = lo + CHUNK < n ? lo + CHUNK : n;
    double sum = 0;
    for (int64_t i = lo + (int64_t)threadIdx.x * V; i < hi; i += (int64_t)blockDim.x * V) {
      T a[V], b[V];
      ax_cuda_get(x, i, a);
      ax_cuda_get(t, i, b);
      for (int k = 0; k < V; k++) {
        if (KIND == AX_PAIR_BCE && (a[k] < 0 || a[k] > 1))
          ax_cuda_report(fault, AX_FAULT_PROBABILITY, AX_OP_BCE, 0, i + k, 0);
        a[k] = term_of<KIND>(a[k], b[k], p);
        sum += (double)a[k];
      }
      if (!sums) ax_cuda_put(out, i, a);
    }
    if (!sums) continue;
    sum = ax_cuda_block_reduce(
        sum, [](double u, double v) { return u + v; }, shared);
    if (threadIdx.x == 0) sums[lo / CHUNK] = sum;
  }
}

static __global__ void finish(const double *sums, int64_t n, double scale, int dtype, void *out)
{
  __shared__ double shared[32];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += sums[i];
  sum = ax_cuda_block_reduce(
      sum, [](double u, double v) { return u + v; }, shared);
  if (threadIdx.x == 0) ax_cuda_number_put(dtype, out, 0, sum * scale);
}

template <class S, int V, int KIND>
static __global__ void backward(S *dx, int g_dtype, const void *g, bool every, compute<S> scale, const S *x,
                                const S *t, int64_t n, compute<S> p)
{
  typedef compute<S> T;
  const T all = every ? (T)0 : (T)ax_cuda_number_at(g_dtype, g, 0) * scale;
  for (int64_t q = AX_FIRST; q * V < n; q += AX_STEP) {
    T a[V], b[V];
    ax_cuda_get(x, q * V, a);
    ax_cuda_get(t, q * V, b);
    for (int k = 0; k < V; k++)
      a[k] =
          slope_of<KIND>(a[k], b[k], p) * (every ? (T)ax_cuda_number_at(g_dtype, g, q * V + k) * scale : all);
    ax_cuda_put(dx, q * V, a);
  }
}

static double scale_of(int64_t reduction, const ax_tensor *x)
{
  if (reduction == MEAN) return 1 / (double)x->numel;
  return reduction == BATCHMEAN ? 1 / (double)(x->ndim ? x->shape[0] : 1) : 1;
}

/* number: what the formula of KIND takes; 0 where it takes none. */
template <int KIND> static ax_status loss(const ax_call *call, double number = 0)
{
  const ax_tensor *x = call->in[0], *t = call->in[1], *y = call->out[0];
  const ax_device d = x->device;
  const char *name = ax_ops[call->op].name;
  const int64_t reduction = call->a->pair_loss.reduction, n = x->numel, chunks = (n + CHUNK - 1) / CHUNK;
  const size_t bytes = (size_t)(chunks ? chunks : 1) * sizeof(double);
  ax_cuda_fault *fault = ax_cuda_fault_place(d);
  double *sums = NULL;
  ax_status st = AX_OK;

  if (!fault) return AX_ENOMEM;
  if (reduction != NONE && (st = ax_cuda_take(d, bytes, (void **)&sums)) != AX_OK) return st;
  if (n)
    st = ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
      typedef AX_TYPE_OF(tag) S;
      constexpr int V = 16 / (int)sizeof(S);
      const compute<S> p = (compute<S>)number;
      S *out = sums ? NULL : ax_cuda_data<S>(y);
      const S *a = ax_cuda_data<S>(x), *b = ax_cuda_data<S>(t);
      const unsigned blocks = (unsigned)(chunks < 1 << 20 ? chunks : 1 << 20);
      if (n % V == 0 && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)out) % 16 == 0)
        return ax_cuda_launch(name, d, blocks, THREADS, forward<S, V, KIND>, out, sums, a, b, n, p, fault);
      return ax_cuda_launch(name, d, blocks, THREADS, forward<S, 1, KIND>, out, sums, a, b, n, p, fault);
    });
  if (st == AX_OK && sums)
    st = ax_cuda_launch(name, d, 1, chunks < 1024 ? 32 : 512, finish, (const double *)sums, chunks,
                        reduction == SUM ? 1.0 : scale_of(reduction, x), (int)y->dtype, ax_data(y));
  if (sums) ax_cuda_give(d, sums, bytes);
  return st;
}

AX_CUDA_KERNEL(mse_loss) { return loss<AX_PAIR_MSE>(call); }
AX_CUDA_KERNEL(l1_loss) { return loss<AX_PAIR_L1>(call); }
AX_CUDA_KERNEL(smooth_l1_loss)
{
  const double beta = call->a->smooth_l1_loss.beta;
  return beta == 0 ? loss<AX_PAIR_L1>(call) : loss<AX_PAIR_SMOOTH_L1>(call, beta);
}
AX_CUDA_KERNEL(huber_loss) { return loss<AX_PAIR_HUBER>(call, call->a->huber_loss.delta); }
AX_CUDA_KERNEL(_bce_loss) { return loss<AX_PAIR_BCE>(call); }
AX_CUDA_KERNEL(_bce_logits_loss) { return loss<AX_PAIR_BCE_LOGITS>(call); }
AX_CUDA_KERNEL(kl_div)
{
  return call->a->kl_div.log_target ? loss<AX_PAIR_KL_LOG>(call) : loss<AX_PAIR_KL>(call);
}

template <int KIND> static ax_status gradient(const ax_call *call)
{
  const ax_tensor *g = call->in[0], *x = call->in[1], *t = call->in[2], *dx = call->out[0];
  const ax_device d = x->device;
  const int64_t reduction = call->a->pair_loss_backward.reduction;
  const bool every = reduction == NONE;
  const int64_t n = x->numel;
  if (n == 0) return AX_OK;
  return ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    constexpr int V = 16 / (int)sizeof(S);
    const T p = (T)call->a->pair_loss_backward.number, scale = (T)scale_of(reduction, x);
    S *out = ax_cuda_data<S>(dx);
    const S *a = ax_cuda_data<S>(x), *b = ax_cuda_data<S>(t);
    const void *from = ax_data(g);
    if (n % V == 0 && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)out) % 16 == 0)
      return ax_cuda_launch("pair_loss_backward", d, ax_cuda_blocks(n / V, 256, d.index), 256,
                            backward<S, V, KIND>, out, (int)g->dtype, from, every, scale, a, b, n, p);
    return ax_cuda_launch("pair_loss_backward", d, ax_cuda_blocks(n, 256, d.index), 256, backward<S, 1, KIND>,
                          out, (int)g->dtype, from, every, scale, a, b, n, p);
  });
}

AX_CUDA_KERNEL(_pair_loss_backward)
{
  switch (call->a->pair_loss_backward.kind) {
  case AX_PAIR_MSE: return gradient<AX_PAIR_MSE>(call);
  case AX_PAIR_SMOOTH_L1:
    return call->a->pair_loss_backward.number == 0 ? gradient<AX_PAIR_L1>(call)
                                                   : gradient<AX_PAIR_SMOOTH_L1>(call);
  case AX_PAIR_HUBER: return gradient<AX_PAIR_HUBER>(call);
  case AX_PAIR_BCE: return gradient<AX_PAIR_BCE>(call);
  case AX_PAIR_BCE_LOGITS: return gradient<AX_PAIR_BCE_LOGITS>(call);
  case AX_PAIR_KL: return gradient<AX_PAIR_KL>(call);
  case AX_PAIR_KL_LOG: return gradient<AX_PAIR_KL_LOG>(call);
  default: return gradient<AX_PAIR_L1>(call);
  }
}

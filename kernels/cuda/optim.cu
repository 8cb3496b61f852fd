/* Optimizer steps: one launch for all parameters, one pass over each of its arrays, bound by
 * memory. The formulas are those of kernels/cpu/optim_*.c.
 *
 * Coefficients that do not depend on the element come from optim_numbers.h.  Where all parameters
 * have the same, the host computes them and passes them with the launch.  With numbers on the
 * device, a kernel of one block computes them first, and also counts a skipped step.  The table of
 * addresses is usually that of the step before, so a steady step copies nothing. */
#include "segments.cuh"

#include "optim_numbers.h"

static __device__ __forceinline__ float root_of(float x) { return sqrtf(x); }
static __device__ __forceinline__ double root_of(double x) { return sqrt(x); }
/* NaN where either is, as torch.maximum. */
template <class T> static __device__ __forceinline__ T max_of(T a, T b) { return a > b || a != a ? a : b; }

/* A rule: `take` and the like set its coefficients from segment and hyperparameters; step is the
 * update of one element, with gradient g and states s (0 where they are not kept). */

template <class T> struct sgd {
  T lr, decay, sign, momentum, add;
  bool buffered, first, nesterov;
  __host__ __device__ void set(const ax_segment *s, const ax_hyper *h)
  {
    lr = (T)h->lr, decay = (T)h->weight_decay, sign = h->maximize ? -1 : 1, momentum = (T)h->momentum,
    add = (T)(1 - h->dampening);
    buffered = s->state[0] != NULL, first = s->step == 1, nesterov = h->nesterov;
  }
  __device__ __forceinline__ void step(T &p, T grad, T *s) const
  {
    const T g = sign * grad + decay * p;
    if (!buffered) {
      p -= lr * g;
      return;
    }
    /* before the first step it is uninitialised, and may contain NaN */
    s[0] = first ? g : momentum * s[0] + add * g;
    p -= lr * (nesterov ? g + momentum * s[0] : s[0]);
  }
};

template <class T> struct adam {
  T sign, l2, keep, w1, beta2, w2, size, root, eps;
  bool top;
  __host__ __device__ void set(const ax_segment *s, const ax_hyper *h)
  {
    const ax_adam_numbers a = ax_adam_numbers_of(s, h);
    sign = (T)a.sign, l2 = (T)a.l2, keep = (T)a.keep, w1 = (T)a.w1, beta2 = (T)a.beta2, w2 = (T)a.w2,
    size = (T)a.step, root = (T)a.root, eps = (T)a.eps;
    top = s->state[2] != NULL;
  }
  __device__ __forceinline__ void step(T &p, T grad, T *s) const
  {
    const T g = sign * grad + l2 * p;
    s[0] = s[0] + w1 * (g - s[0]);
    s[1] = beta2 * s[1] + w2 * g * g;
    T under = s[1];
    if (top) under = s[2] = max_of(s[2], under);
    p = keep * p - size * s[0] / (root_of(under) * root + eps);
  }
};

template <class T> struct adamax {
  T sign, l2, w1, beta2, eps, size;
  __host__ __device__ void set(const ax_segment *s, const ax_hyper *h)
  {
    sign = h->maximize ? -1 : 1, l2 = (T)h->weight_decay, w1 = (T)(1 - h->betas[0]), beta2 = (T)h->betas[1],
    eps = (T)h->eps;
    size = (T)(h->lr / (1 - pow(h->betas[0], (double)s->step)));
  }
  __device__ __forceinline__ void step(T &p, T grad, T *s) const
  {
    const T g = sign * grad + l2 * p;
    s[0] = s[0] + w1 * (g - s[0]);
    s[1] = max_of(beta2 * s[1], (g < 0 ? -g : g) + eps);
    p -= size * s[0] / s[1];
  }
};

/* NAdam, RAdam */
template <class T> struct mixed {
  T sign, l2, keep, w1, beta2, w2, root, eps, by_grad, by_mean;
  __host__ __device__ void take(const ax_mixed_numbers &x)
  {
    sign = (T)x.sign, l2 = (T)x.l2, keep = (T)x.keep, w1 = (T)x.w1, beta2 = (T)x.beta2, w2 = (T)x.w2;
    root = x.divide ? (T)x.root : 0, eps = x.divide ? (T)x.eps : 1, by_grad = (T)x.by_grad,
    by_mean = (T)x.by_mean;
  }
  __device__ __forceinline__ void step(T &p, T grad, T *s) const
  {
    const T g = sign * grad + l2 * p;
    s[0] = s[0] + w1 * (g - s[0]);
    s[1] = beta2 * s[1] + w2 * g * g;
    p = keep * p - (by_grad * g + by_mean * s[0]) / (root_of(s[1]) * root + eps);
  }
};
template <class T> struct nadam : mixed<T> {
  __host__ __device__ void set(const ax_segment *s, const ax_hyper *h)
  {
    this->take(ax_nadam_numbers_of(s, h));
  }
};
template <class T> struct radam : mixed<T> {
  __host__ __device__ void set(const ax_segment *s, const ax_hyper *h)
  {
    this->take(ax_radam_numbers_of(s, h));
  }
};

template <class T> struct lion {
  T lr, keep, sign, beta1, w1, beta2, w2;
  __host__ __device__ void set(const ax_segment *, const ax_hyper *h)
  {
    lr = (T)h->lr, keep = (T)(1 - h->lr * h->weight_decay), sign = h->maximize ? -1 : 1;
    beta1 = (T)h->betas[0], w1 = (T)(1 - h->betas[0]), beta2 = (T)h->betas[1], w2 = (T)(1 - h->betas[1]);
  }
  __device__ __forceinline__ void step(T &p, T grad, T *s) const
  {
    const T g = sign * grad, c = beta1 * s[0] + w1 * g;
    s[0] = beta2 * s[0] + w2 * g;
    p = keep * p - (c > 0 ? lr : c < 0 ? -lr : c); /* 0, or a NaN, which must stay visible */
  }
};

template <class T> struct adagrad {
  T sign, l2, eps, size;
  __host__ __device__ void set(const ax_segment *s, const ax_hyper *h)
  {
    sign = h->maximize ? -1 : 1, l2 = (T)h->weight_decay, eps = (T)h->eps,
    size = (T)(h->lr / (1 + ((double)s->step - 1) * h->lr_decay));
  }
  __device__ __forceinline__ void step(T &p, T grad, T *s) const
  {
    const T g = sign * grad + l2 * p;
    s[0] += g * g;
    p -= size * g / (root_of(s[0]) + eps);
  }
};

template <class T> struct rmsprop {
  T sign, l2, lr, eps, momentum, alpha, w;
  bool centred, buffered;
  __host__ __device__ void set(const ax_segment *s, const ax_hyper *h)
  {
    sign = h->maximize ? -1 : 1, l2 = (T)h->weight_decay, lr = (T)h->lr, eps = (T)h->eps,
    momentum = (T)h->momentum, alpha = (T)h->alpha, w = (T)(1 - h->alpha);
    centred = s->state[1] != NULL, buffered = s->state[2] != NULL;
  }
  __device__ __forceinline__ void step(T &p, T grad, T *s) const
  {
    const T g = sign * grad + l2 * p;
    s[0] = alpha * s[0] + w * g * g;
    T under = s[0];
    if (centred) {
      s[1] = s[1] + w * (g - s[1]);
      under -= s[1] * s[1];
    }
    const T by = g / (root_of(under) + eps);
    if (buffered) s[2] = momentum * s[2] + by;
    p -= lr * (buffered ? s[2] : by);
  }
};

template <class T> struct adadelta {
  T sign, l2, lr, eps, rho, w;
  __host__ __device__ void set(const ax_segment *, const ax_hyper *h)
  {
    sign = h->maximize ? -1 : 1, l2 = (T)h->weight_decay, lr = (T)h->lr, eps = (T)h->eps, rho = (T)h->rho,
    w = (T)(1 - h->rho);
  }
  __device__ __forceinline__ void step(T &p, T grad, T *s) const
  {
    const T g = sign * grad + l2 * p;
    s[0] = rho * s[0] + w * g * g;
    const T d = root_of(s[1] + eps) / root_of(s[0] + eps) * g;
    s[1] = rho * s[1] + w * d * d;
    p -= lr * d;
  }
};

template <class T> struct rprop {
  T sign, less, more, low, high;
  __host__ __device__ void set(const ax_segment *, const ax_hyper *h)
  {
    sign = h->maximize ? -1 : 1, less = (T)h->etas[0], more = (T)h->etas[1], low = (T)h->step_sizes[0],
    high = (T)h->step_sizes[1];
  }
  __device__ __forceinline__ void step(T &p, T grad, T *s) const
  {
    const T q = sign * grad, c = q * s[0];
    const T grown = s[1] * (c > 0 ? more : c < 0 ? less : c == 0 ? (T)1 : c);
    s[1] = grown < low ? low : grown > high ? high : grown;
    s[0] = c < 0 ? (T)0 : q;
    p -= s[0] > 0 ? s[1] : s[0] < 0 ? -s[1] : s[0] * s[1];
  }
};

template <class T> struct asgd {
  T sign, l2, keep, eta, mu;
  bool copied;
  __host__ __device__ void set(const ax_segment *s, const ax_hyper *h)
  {
    const ax_asgd_numbers x = ax_asgd_numbers_of(s, h);
    sign = h->maximize ? -1 : 1, l2 = (T)h->weight_decay, keep = (T)x.keep, eta = (T)x.eta, mu = (T)x.mu;
    copied = x.mu == 1;
  }
  __device__ __forceinline__ void step(T &p, T grad, T *s) const
  {
    p = keep * p - eta * (sign * grad + l2 * p);
    s[0] = copied ? p : s[0] + mu * (p - s[0]);
  }
};

/* torch.lerp's formula */
template <class T> static __device__ __forceinline__ T between(T a, T b, T w)
{
  return w < (T)0.5 ? a + w * (b - a) : b - (b - a) * (1 - w);
}

template <class T> struct sgd_schedule_free {
  T l2, lr, share, by;
  bool first;
  __host__ __device__ void set(const ax_segment *s, const ax_hyper *h)
  {
    l2 = (T)h->weight_decay, lr = (T)h->lr, share = (T)h->share,
    by = (T)(h->lr * (h->momentum * (1 - h->share) - 1));
    first = s->step == 1;
  }
  __device__ __forceinline__ void step(T &p, T grad, T *s) const
  {
    const T g = grad + l2 * p, z = first ? p : s[0];
    p = between(p, z, share) + by * g;
    s[0] = z - lr * g;
  }
};

template <class T> struct adamw_schedule_free {
  T decay, lr, share, eps, beta2, w2, root, by;
  bool first;
  __host__ __device__ void set(const ax_segment *s, const ax_hyper *h)
  {
    decay = (T)h->weight_decay, lr = (T)h->lr, share = (T)h->share, eps = (T)h->eps, beta2 = (T)h->betas[1],
    w2 = (T)(1 - h->betas[1]), root = (T)(1 / sqrt(h->bias2)),
    by = (T)(h->lr * (h->betas[0] * (1 - h->share) - 1));
    first = s->step == 1;
  }
  __device__ __forceinline__ void step(T &p, T grad, T *s) const
  {
    s[1] = beta2 * s[1] + w2 * grad * grad;
    const T g = grad / (root_of(s[1]) * root + eps) + decay * p, z = first ? p : s[0];
    p = between(p, z, share) + by * g;
    s[0] = z - lr * g;
  }
};

/* ---- the kernels */

template <class T> struct entry {
  int64_t n, first;
  T *param, *state[AX_MAX_STATES];
  uint16_t *work;
  const T *grad;
  int64_t half; /* the type of `work`: float16 if not 0, else bfloat16 */
};

template <int V, class T, class R>
static __device__ __forceinline__ void step_run(const entry<T> &e, const R &rule, T clip, int64_t i)
{
  T p[V], g[V], s[AX_MAX_STATES][V];
  ax_cuda_get(e.param, i, p);
  ax_cuda_get(e.grad, i, g);
  for (int k = 0; k < AX_MAX_STATES; k++)
    if (e.state[k]) ax_cuda_get(e.state[k], i, s[k]);
  for (int j = 0; j < V; j++) {
    T own[AX_MAX_STATES];
    for (int k = 0; k < AX_MAX_STATES; k++) own[k] = e.state[k] ? s[k][j] : (T)0;
    rule.step(p[j], clip * g[j], own);
    for (int k = 0; k < AX_MAX_STATES; k++) s[k][j] = own[k];
  }
  ax_cuda_put(e.param, i, p);
  for (int k = 0; k < AX_MAX_STATES; k++)
    if (e.state[k]) ax_cuda_put(e.state[k], i, s[k]);
  if (!e.work) return;
  ax_cuda_pack<uint16_t, V> rounded;
  for (int j = 0; j < V; j++)
    rounded.v[j] = e.half ? ax_float_to_half((float)p[j]) : ax_float_to_bf16((float)p[j]);
  *(ax_cuda_pack<uint16_t, V> *)(e.work + i) = rounded;
}

/* The factor of the gradients: 1 where they are not to be clipped.  NaN spreads. */
static __device__ __forceinline__ double clip_factor(const ax_optim_device_args &device_args)
{
  const double factor = device_args.norm ? device_args.max_norm / (*device_args.norm + 1e-6) : 1;
  return factor >= 1 ? 1 : factor;
}

/* rules: one for each entry (each 1) or one for all (each 0); NULL: `rule` for all.  Where
 * *device_args.skip is not 0 nothing is done. */
template <class T, class R>
static __global__ void __launch_bounds__(AX_SEGMENT_THREADS)
    step_kernel(ax_cuda_segment_table<entry<T>> t, R rule, const R *rules, int each,
                ax_optim_device_args device_args)
{
  constexpr int V = 16 / (int)sizeof(T);
  if (device_args.skip && *device_args.skip != 0) return;
  const T clip = (T)clip_factor(device_args);
  ax_cuda_each_chunk(t, [&](int k, const entry<T> &e, int64_t lo, int64_t hi, int64_t) {
    const R mine = rules ? rules[k * each] : rule;
    uintptr_t address = (uintptr_t)e.param | (uintptr_t)e.grad | (uintptr_t)e.work * 2;
    for (int i = 0; i < AX_MAX_STATES; i++) address |= (uintptr_t)e.state[i];
    const int64_t runs = address % 16 == 0 ? (hi - lo) / V : 0;
    for (int64_t q = threadIdx.x; q < runs; q += blockDim.x) step_run<V>(e, mine, clip, lo + q * V);
    for (int64_t i = lo + runs * V + threadIdx.x; i < hi; i += blockDim.x) step_run<1>(e, mine, clip, i);
  });
}

/* One block.  Computes the rules of the first `count` entries from their counts on the host (steps;
 * NULL: `step` for all) and the counts on the device. */
template <class T, class R>
static __global__ void rules_kernel(const entry<T> *entries, int count, const int64_t *steps, int64_t step,
                                    ax_hyper here, ax_optim_device_args device_args, R *rules)
{
  const ax_hyper h = ax_cuda_numbers(device_args.hyper, here);
  const int64_t more =
      (device_args.ran ? *device_args.ran : 0) - (device_args.skipped ? *device_args.skipped : 0);
  for (int k = threadIdx.x; k < count; k += blockDim.x) {
    ax_segment s = {};
    for (int i = 0; i < AX_MAX_STATES; i++) s.state[i] = entries[k].state[i];
    s.step = (steps ? steps[k] : step) + more;
    R made = {};
    made.set(&s, &h);
    rules[k] = made;
  }
  __syncthreads(); /* all threads have read the count of skipped steps */
  if (threadIdx.x == 0 && device_args.skip && device_args.skipped && *device_args.skip != 0)
    ++*device_args.skipped;
}

/* ---- the host's side */

/* Whether the rules of all segments are equal. */
static bool alike(const ax_segment *segs, int n)
{
  for (int k = 1; k < n; k++) {
    if (segs[k].step != segs[0].step || segs[k].number != segs[0].number) return false;
    for (int i = 0; i < AX_MAX_STATES; i++)
      if (!segs[k].state[i] != !segs[0].state[i]) return false;
  }
  return true;
}

/* Fills a value with get(value, segment) for each segment with elements, and calls launch with the
 * values' copies on the device. */
template <class X, class GET, class LAUNCH>
static ax_status with_values(ax_device d, const ax_segment *segs, int n, GET get, LAUNCH launch)
{
  X *here = (X *)calloc(n > 0 ? (size_t)n : 1, sizeof(X));
  const void *there = NULL;
  int count = 0;
  if (!here)
    return ax_fail(AX_ENOMEM, "optimizer: out of memory: no room for the numbers of %d parameters", n);
  for (int k = 0; k < n; k++)
    if (segs[k].n) get(&here[count++], &segs[k]);
  ax_status st = ax_cuda_contents(d, here, (size_t)count * sizeof(X), &there);
  if (st == AX_OK) st = launch((const X *)there);
  free(here);
  return st;
}

template <class T, class R>
static ax_status run(ax_device d, const ax_segment *segs, int n, const ax_hyper *h,
                     const ax_optim_device_args *device_args)
{
  static const char what[] = "optimizer";
  const bool same = alike(segs, n);
  auto fill = [](entry<T> *e, const ax_segment *s) {
    e->param = (T *)s->param;
    e->grad = (const T *)s->grad;
    e->work = (uint16_t *)s->work;
    e->half = s->work_dtype == AX_F16;
    for (int k = 0; k < AX_MAX_STATES; k++) e->state[k] = (T *)s->state[k];
  };
  return ax_cuda_with_table<entry<T>>(what, d, segs, n, fill,
                                      [&](const ax_cuda_segment_table<entry<T>> &t, unsigned blocks) {
    const ax_optim_device_args read = device_args ? *device_args : ax_optim_device_args{};
    const int count = same ? 1 : t.count;
    R rule = {};
    auto step = [&](const R *rules) {
      return ax_cuda_launch(what, d, blocks, AX_SEGMENT_THREADS, step_kernel<T, R>, t, rule, rules,
                            same ? 0 : 1, read);
    };
    if (!blocks) return AX_OK;
    if (!ax_optim_counts(device_args)) {
      rule.set(&segs[0], h);
      return same ? step(NULL)
                  : with_values<R>(
                        d, segs, n, [h](R *r, const ax_segment *s) { r->set(s, h); }, step);
    }
    void *rules;
    ax_status st = ax_cuda_take(d, (size_t)count * sizeof(R), &rules);
    if (st != AX_OK) return st;
    auto make = [&](const int64_t *steps) {
      return ax_cuda_launch(what, d, 1, count < 32 ? 32 : 256, rules_kernel<T, R>, t.entries, count, steps,
                            segs[0].step, *h, *device_args, (R *)rules);
    };
    st = same ? make(NULL)
              : with_values<int64_t>(
                    d, segs, n, [](int64_t *to, const ax_segment *s) { *to = s->step; }, make);
    if (st == AX_OK) st = step((const R *)rules);
    ax_cuda_give(d, rules, (size_t)count * sizeof(R));
    return st;
  });
}

ax_status ax_cuda_adafactor(ax_device d, ax_dtype dtype, const ax_segment *segs, int n, const ax_hyper *h,
                            const ax_optim_device_args *device_args);

#define OPTIM(ID, name, kernel, ...) \
  case AX_OPTIM_##ID: \
    return dtype == AX_F32 ? run<float, kernel<float>>(d, segs, n, h, device_args) \
                           : run<double, kernel<double>>(d, segs, n, h, device_args);
#define OPTIM_MATRIX(ID, name, kernel, ...) \
  case AX_OPTIM_##ID: return ax_cuda_##kernel(d, dtype, segs, n, h, device_args);
extern "C" ax_status ax_cuda_optim_step(ax_device d, ax_optim_kind kind, ax_dtype dtype,
                                        const ax_segment *segs, int n, const ax_hyper *h,
                                        const ax_optim_device_args *device_args)
{
  if (dtype != AX_F32 && dtype != AX_F64)
    return ax_fail(AX_EDTYPE, "optimizer: not defined for %s parameters, only for float32 and float64",
                   ax_dtype_name(dtype));
  switch (kind) {
#include "core/optim.def"
  default: return ax_fail(AX_ENOIMPL, "optimizer: the cuda backend has no kernel for it");
  }
}

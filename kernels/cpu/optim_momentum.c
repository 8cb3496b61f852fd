/* Optimizers that step by the gradient, its running mean, or the sign of one of them: SGD, Lion and
 * Rprop. */
#include "optim.h"

/* torch.optim.SGD: g = grad + weight_decay * p; b = momentum * b + (1 - dampening) * g, in the
 * first step b = g; p -= lr * b, or with nesterov p -= lr * (g + momentum * b). */
#define SGD(S, T) \
  void ax_cpu_sgd_##S(const ax_segment *s, int64_t at, int64_t n, const ax_hyper *h) \
  { \
    T *p = (T *)s->param + at, *buf = AX_OPTIM_STATE(T, s, 0, at); \
    const T *grad = (const T *)s->grad + at; \
    const T lr = (T)h->lr, decay = (T)h->weight_decay, sign = h->maximize ? -1 : 1, \
            momentum = (T)h->momentum; \
    if (!buf) { \
      AX_OPTIM_EACH(S, s, p, at, n, p[i] -= lr * (sign * grad[i] + decay * p[i]);) \
      return; \
    } \
    const T keep = s->step == 1 ? 0 : momentum, add = s->step == 1 ? 1 : (T)(1 - h->dampening); \
    const T from_buf = h->nesterov ? momentum : 1, from_grad = h->nesterov ? 1 : 0; \
    if (s->step == 1) { \
      AX_SIMD \
      for (int64_t i = 0; i < n; i++) buf[i] = 0; /* it is uninitialised, and may contain NaN */ \
    } \
    AX_OPTIM_EACH(S, s, p, at, n, const T g = sign * grad[i] + decay * p[i]; \
                  const T b = keep * buf[i] + add * g; buf[i] = b; \
                  p[i] -= lr * (from_grad * g + from_buf * b);) \
  }
SGD(f32, float)
SGD(f64, double)

/* Lion (Chen et al. 2023): p = (1 - lr * weight_decay) * p - lr * sign(beta1 * m + (1 - beta1) *
 * g); m = beta2 * m + (1 - beta2) * g. */
#define LION(S, T) \
  void ax_cpu_lion_##S(const ax_segment *s, int64_t at, int64_t n, const ax_hyper *h) \
  { \
    T *p = (T *)s->param + at, *m = (T *)s->state[0] + at; \
    const T *grad = (const T *)s->grad + at; \
    const T lr = (T)h->lr, keep = (T)(1 - h->lr * h->weight_decay), sign = h->maximize ? -1 : 1; \
    const T beta1 = (T)h->betas[0], w1 = (T)(1 - h->betas[0]), beta2 = (T)h->betas[1], \
            w2 = (T)(1 - h->betas[1]); \
    AX_OPTIM_EACH(S, s, p, at, n, const T g = sign * grad[i]; const T c = beta1 * m[i] + w1 * g; \
                  m[i] = beta2 * m[i] + w2 * g; \
                  p[i] = keep * p[i] - (c > 0   ? lr \
                                        : c < 0 ? -lr \
                                                : c);) /* 0, or a NaN, which must stay visible */ \
  }
LION(f32, float)
LION(f64, double)

/* torch.optim.Rprop (Riedmiller and Braun 1993): an element's step size grows by etas[1] while its
 * gradient keeps its sign, and shrinks by etas[0] where the sign changes; there the gradient counts
 * as 0.  A NaN stays visible. */
#define RPROP(S, T) \
  void ax_cpu_rprop_##S(const ax_segment *s, int64_t at, int64_t n, const ax_hyper *h) \
  { \
    T *p = (T *)s->param + at, *prev = (T *)s->state[0] + at, *size = (T *)s->state[1] + at; \
    const T *grad = (const T *)s->grad + at; \
    const T sign = h->maximize ? -1 : 1, less = (T)h->etas[0], more = (T)h->etas[1], \
            low = (T)h->step_sizes[0], high = (T)h->step_sizes[1]; \
    AX_OPTIM_EACH(S, s, p, at, n, const T q = sign * grad[i]; const T c = q * prev[i]; \
                  const T grown = size[i] * (c > 0    ? more \
                                             : c < 0  ? less \
                                             : c == 0 ? 1 \
                                                      : c); \
                  const T b = grown < low    ? low \
                              : grown > high ? high \
                                             : grown; \
                  const T g = c < 0 ? 0 : q; size[i] = b; prev[i] = g; p[i] -= g > 0   ? b \
                                                                               : g < 0 ? -b \
                                                                                       : g * b;) \
  }
RPROP(f32, float)
RPROP(f64, double)

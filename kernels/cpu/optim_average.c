/* Optimizers that keep an average of the parameters: ASGD, and schedule-free SGD and AdamW (Defazio
 * et al. 2024). */
#include "optim.h"

#include "optim_numbers.h"

#define ASGD(S, T) \
  void ax_cpu_asgd_##S(const ax_segment *s, int64_t at, int64_t n, const ax_hyper *h) \
  { \
    const ax_asgd_numbers x = ax_asgd_numbers_of(s, h); \
    T *p = (T *)s->param + at, *mean = (T *)s->state[0] + at; \
    const T *grad = (const T *)s->grad + at; \
    const T sign = h->maximize ? -1 : 1, l2 = (T)h->weight_decay, keep = (T)x.keep, eta = (T)x.eta, \
            mu = (T)x.mu; \
    if (x.mu == 1) \
      AX_OPTIM_EACH(S, s, p, at, n, const T g = sign * grad[i] + l2 * p[i]; \
                    const T b = keep * p[i] - eta * g; p[i] = b; mean[i] = b;) \
    else \
      AX_OPTIM_EACH(S, s, p, at, n, const T g = sign * grad[i] + l2 * p[i]; \
                    const T b = keep * p[i] - eta * g; p[i] = b; mean[i] += mu * (b - mean[i]);) \
  }
ASGD(f32, float)
ASGD(f64, double)

/* In both, z is the sequence that steps, x its weighted mean, and the parameter y = (1 - beta) z +
 * beta x, where gradients are taken; x is not kept.  `share` is the weight of the newest z in x:
 *     y = lerp(y, z, share) + lr (beta (1 - share) - 1) g;  z -= lr g
 * The first step sets z to y. */
#define LERP(a, b, w) ((w) < (T)0.5 ? (a) + (w) * ((b) - (a)) : (b) - ((b) - (a)) * (1 - (w)))

#define BEGIN_Z(T, s, z, p, n) \
  if ((s)->step == 1) { \
    AX_SIMD \
    for (int64_t i = 0; i < (n); i++) (z)[i] = (p)[i]; \
  }

#define SGD(S, TYPE) \
  void ax_cpu_sgd_schedule_free_##S(const ax_segment *s, int64_t at, int64_t n, const ax_hyper *h) \
  { \
    typedef TYPE T; \
    T *p = (T *)s->param + at, *z = (T *)s->state[0] + at; \
    const T *grad = (const T *)s->grad + at; \
    const T l2 = (T)h->weight_decay, lr = (T)h->lr, share = (T)h->share, \
            by = (T)(h->lr * (h->momentum * (1 - h->share) - 1)); \
    BEGIN_Z(T, s, z, p, n) \
    AX_OPTIM_EACH(S, s, p, at, n, const T g = grad[i] + l2 * p[i]; p[i] = LERP(p[i], z[i], share) + by * g; \
                  z[i] -= lr * g;) \
  }
SGD(f32, float)
SGD(f64, double)

/* The gradient is divided by the root of the mean of its squares, as in AdamW. */
#define ADAMW(S, TYPE, SQRT) \
  void ax_cpu_adamw_schedule_free_##S(const ax_segment *s, int64_t at, int64_t n, const ax_hyper *h) \
  { \
    typedef TYPE T; \
    T *p = (T *)s->param + at, *z = (T *)s->state[0] + at, *v = (T *)s->state[1] + at; \
    const T *grad = (const T *)s->grad + at; \
    const T decay = (T)h->weight_decay, lr = (T)h->lr, share = (T)h->share, eps = (T)h->eps, \
            beta2 = (T)h->betas[1], w2 = (T)(1 - h->betas[1]), root = (T)(1 / sqrt(h->bias2)), \
            by = (T)(h->lr * (h->betas[0] * (1 - h->share) - 1)); \
    BEGIN_Z(T, s, z, p, n) \
    AX_OPTIM_EACH(S, s, p, at, n, const T b = beta2 * v[i] + w2 * grad[i] * grad[i]; \
                  const T g = grad[i] / (SQRT(b) * root + eps) + decay * p[i]; v[i] = b; \
                  p[i] = LERP(p[i], z[i], share) + by * g; z[i] -= lr * g;) \
  }
ADAMW(f32, float, sqrtf)
ADAMW(f64, double, sqrt)

/* Optimizers that divide the gradient by the root of a sum or mean of its squares: Adagrad (Duchi
 * et al. 2011), s += g^2 and p -= lr / (1 + (step - 1) lr_decay) g / (sqrt(s) + eps); RMSprop; and
 * Adadelta. */
#include "optim.h"

#define ADAGRAD(S, T, SQRT) \
  void ax_cpu_adagrad_##S(const ax_segment *s, int64_t at, int64_t n, const ax_hyper *h) \
  { \
    T *p = (T *)s->param + at, *sum = (T *)s->state[0] + at; \
    const T *grad = (const T *)s->grad + at; \
    const T sign = h->maximize ? -1 : 1, l2 = (T)h->weight_decay, eps = (T)h->eps; \
    const T step = (T)(h->lr / (1 + ((double)s->step - 1) * h->lr_decay)); \
    AX_OPTIM_EACH(S, s, p, at, n, const T g = sign * grad[i] + l2 * p[i]; const T b = sum[i] + g * g; \
                  sum[i] = b; p[i] -= step * g / (SQRT(b) + eps);) \
  }
ADAGRAD(f32, float, sqrtf)
ADAGRAD(f64, double, sqrt)

/* torch.optim.RMSprop: v = alpha * v + (1 - alpha) * g^2; p -= lr * g / (sqrt(v) + eps).  With
 * `centered` the square of the mean gradient is subtracted from v; with momentum the quotients go
 * into a buffer b = momentum * b + quotient, and p -= lr * b. */
#define RMSPROP(S, T, SQRT) \
  void ax_cpu_rmsprop_##S(const ax_segment *s, int64_t at, int64_t n, const ax_hyper *h) \
  { \
    T *p = (T *)s->param + at, *v = (T *)s->state[0] + at, *mean = AX_OPTIM_STATE(T, s, 1, at), \
      *buf = AX_OPTIM_STATE(T, s, 2, at); \
    const T *grad = (const T *)s->grad + at; \
    const T sign = h->maximize ? -1 : 1, l2 = (T)h->weight_decay, lr = (T)h->lr, eps = (T)h->eps, \
            momentum = (T)h->momentum; \
    const T alpha = (T)h->alpha, w = (T)(1 - h->alpha); \
    if (mean && buf) \
      AX_OPTIM_EACH(S, s, p, at, n, const T g = sign * grad[i] + l2 * p[i]; \
                    const T b = alpha * v[i] + w * g * g; const T c = mean[i] + w * (g - mean[i]); \
                    const T d = momentum * buf[i] + g / (SQRT(b - c * c) + eps); v[i] = b; mean[i] = c; \
                    buf[i] = d; p[i] -= lr * d;) \
    else if (mean) \
      AX_OPTIM_EACH(S, s, p, at, n, const T g = sign * grad[i] + l2 * p[i]; \
                    const T b = alpha * v[i] + w * g * g; const T c = mean[i] + w * (g - mean[i]); v[i] = b; \
                    mean[i] = c; p[i] -= lr * g / (SQRT(b - c * c) + eps);) \
    else if (buf) \
      AX_OPTIM_EACH(S, s, p, at, n, const T g = sign * grad[i] + l2 * p[i]; \
                    const T b = alpha * v[i] + w * g * g; \
                    const T d = momentum * buf[i] + g / (SQRT(b) + eps); v[i] = b; buf[i] = d; \
                    p[i] -= lr * d;) \
    else \
      AX_OPTIM_EACH(S, s, p, at, n, const T g = sign * grad[i] + l2 * p[i]; \
                    const T b = alpha * v[i] + w * g * g; v[i] = b; p[i] -= lr * g / (SQRT(b) + eps);) \
  }
RMSPROP(f32, float, sqrtf)
RMSPROP(f64, double, sqrt)

/* torch.optim.Adadelta (Zeiler 2012): v = rho v + (1 - rho) g^2; d = sqrt(u + eps) / sqrt(v + eps)
 * g; u = rho u + (1 - rho) d^2; p -= lr d. */
#define ADADELTA(S, T, SQRT) \
  void ax_cpu_adadelta_##S(const ax_segment *s, int64_t at, int64_t n, const ax_hyper *h) \
  { \
    T *p = (T *)s->param + at, *v = (T *)s->state[0] + at, *u = (T *)s->state[1] + at; \
    const T *grad = (const T *)s->grad + at; \
    const T sign = h->maximize ? -1 : 1, l2 = (T)h->weight_decay, lr = (T)h->lr, eps = (T)h->eps, \
            rho = (T)h->rho, w = (T)(1 - h->rho); \
    AX_OPTIM_EACH(S, s, p, at, n, const T g = sign * grad[i] + l2 * p[i]; \
                  const T b = rho * v[i] + w * g * g; const T d = SQRT(u[i] + eps) / SQRT(b + eps) * g; \
                  v[i] = b; u[i] = rho * u[i] + w * d * d; p[i] -= lr * d;) \
  }
ADADELTA(f32, float, sqrtf)
ADADELTA(f64, double, sqrt)

/* Losses of two tensors of one shape: the term of an element and its derivative, one scalar at a
 * time, for the CPU and CUDA kernels. */
#ifndef AX_PAIR_LOSS_H
#define AX_PAIR_LOSS_H

#include "activation.h"

/* The kinds, in the numbering of _pair_loss_backward's attribute. */
enum {
  AX_PAIR_MSE,
  AX_PAIR_L1,
  AX_PAIR_SMOOTH_L1,
  AX_PAIR_HUBER,
  AX_PAIR_BCE,
  AX_PAIR_BCE_LOGITS,
  AX_PAIR_KL,
  AX_PAIR_KL_LOG,
  AX_PAIR_KINDS
};

/* X(name, the term, its derivative with respect to x) for input x, target t and the number p; FN(f)
 * is the version of f for the type */
#define AX_PAIR_TERMS(X, T, FN) \
  X(mse, (x - t) * (x - t), 2 * (x - t)) \
  X(l1, FN(abs)(x - t), (T)((x > t) - (x < t))) \
  X(smooth_l1, FN(abs)(x - t) < p ? (x - t) * (x - t) * ((T)0.5 / p) : FN(abs)(x - t) - (T)0.5 * p, \
    FN(abs)(x - t) < p ? (x - t) / p : ax_side(T, x, t)) \
  X(huber, FN(abs)(x - t) <= p ? (T)0.5 * (x - t) * (x - t) : p * (FN(abs)(x - t) - (T)0.5 * p), \
    FN(abs)(x - t) <= p ? x - t : p * ax_side(T, x, t)) \
  X(bce, -(t * ax_at_least(FN(log)(x)) + (1 - t) * ax_at_least(FN(log1p)(-x))), \
    (x - t) / (x * (1 - x) > (T)1e-12 ? x * (1 - x) : (T)1e-12)) \
  X(bce_logits, (1 - t) * x - FN(log_sigmoid)(x), FN(sigmoid)(x) - t) \
  X(kl, FN(xlogy)(t, t) - t * x, ((void)x, -t)) \
  X(kl_log, FN(exp)(t) * (t - x), ((void)x, -FN(exp)(t)))

/* the sign of x - t, also where it is infinite; NaN where it is NaN */
#define ax_side(T, x, t) ((x) - (t) != (x) - (t) ? (x) - (t) : (T)(((x) > (t)) - ((x) < (t))))

/* limits the cost of a confident mistake to 100 instead of infinity */
#define ax_at_least(v) ((v) < -100 ? -100 : (v))

#endif

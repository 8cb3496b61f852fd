/* The coefficients of an optimizer's step, computed once in float64 from its hyperparameters and
 * the step count, for the CPU and CUDA kernels. */
#ifndef AX_OPTIM_NUMBERS_H
#define AX_OPTIM_NUMBERS_H

#include <math.h>

#include "plugin.h"
#include "fn.h"

/* torch.optim.Adam, and AdamW with decoupled_weight_decay (Kingma and Ba 2015, Loshchilov and
 * Hutter 2019): p = keep p - step m / (sqrt(v) root + eps). */
typedef struct ax_adam_numbers {
  double sign, l2, keep, w1, beta2, w2, step, root, eps;
} ax_adam_numbers;

AX_FN ax_adam_numbers ax_adam_numbers_of(const ax_segment *s, const ax_hyper *h)
{
  const double bias1 = 1 - pow(h->betas[0], (double)s->step), bias2 = 1 - pow(h->betas[1], (double)s->step);
  ax_adam_numbers a;
  a.sign = h->maximize ? -1 : 1;
  a.l2 = h->decoupled_weight_decay ? 0 : h->weight_decay;
  a.keep = h->decoupled_weight_decay ? 1 - h->lr * h->weight_decay : 1;
  a.w1 = 1 - h->betas[0];
  a.beta2 = h->betas[1];
  a.w2 = 1 - h->betas[1];
  a.step = h->lr / bias1;
  a.root = 1 / sqrt(bias2);
  a.eps = h->eps;
  return a;
}

/* torch.optim.NAdam (Dozat 2016) and RAdam (Liu et al. 2020): p -= (by_grad g + by_mean m) /
 * (sqrt(v) root + eps); `divide` false: without the divisor. */
typedef struct ax_mixed_numbers {
  double sign, l2, keep, w1, beta2, w2, root, eps, by_grad, by_mean;
  bool divide;
} ax_mixed_numbers;

AX_FN ax_mixed_numbers ax_mixed_numbers_of(const ax_hyper *h)
{
  ax_mixed_numbers x;
  x.sign = h->maximize ? -1 : 1;
  x.l2 = h->decoupled_weight_decay ? 0 : h->weight_decay;
  x.keep = h->decoupled_weight_decay ? 1 - h->lr * h->weight_decay : 1;
  x.w1 = 1 - h->betas[0];
  x.beta2 = h->betas[1];
  x.w2 = 1 - h->betas[1];
  x.root = 1;
  x.eps = h->eps;
  x.by_grad = x.by_mean = 0;
  x.divide = true;
  return x;
}

AX_FN ax_mixed_numbers ax_nadam_numbers_of(const ax_segment *s, const ax_hyper *h)
{
  const double step = (double)s->step, decay = 1 - 0.5 * pow(0.96, step * h->momentum_decay);
  const double mu = h->betas[0] * decay;
  const double product = s->number * h->betas[0] * decay; /* of the momenta up to this step */
  const double next = h->betas[0] * (1 - 0.5 * pow(0.96, (step + 1) * h->momentum_decay));
  ax_mixed_numbers x = ax_mixed_numbers_of(h);
  x.root = 1 / sqrt(1 - pow(h->betas[1], step));
  x.by_grad = h->lr * (1 - mu) / (1 - product);
  x.by_mean = h->lr * next / (1 - product * next);
  return x;
}

AX_FN ax_mixed_numbers ax_radam_numbers_of(const ax_segment *s, const ax_hyper *h)
{
  const double step = (double)s->step, bias1 = 1 - pow(h->betas[0], step), power = pow(h->betas[1], step),
               bias2 = 1 - power;
  /* the length of the mean of squares, in steps */
  const double most = 2 / (1 - h->betas[1]) - 1, length = most - 2 * step * power / bias2;
  ax_mixed_numbers x = ax_mixed_numbers_of(h);
  x.divide = length > 5; /* the variance of a shorter mean is not defined */
  x.by_mean = h->lr / bias1;
  if (x.divide)
    x.by_mean *= sqrt(bias2) * sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length));
  return x;
}

/* torch.optim.ASGD (Polyak and Juditsky 1992): p = keep p - eta g; the average moves to it by
 * `mu`. */
typedef struct ax_asgd_numbers {
  double keep, eta, mu;
} ax_asgd_numbers;

AX_FN ax_asgd_numbers ax_asgd_numbers_of(const ax_segment *s, const ax_hyper *h)
{
  const double since = (double)s->step - 1 - h->t0; /* steps since averaging began */
  ax_asgd_numbers x;
  x.eta = s->step == 1 ? h->lr : s->number;
  x.keep = 1 - h->lambd * x.eta;
  x.mu = since > 1 ? 1 / since : 1;
  return x;
}

/* torch.optim.Adafactor (Shazeer and Stern 2018).  `weight`: of new squares in their running means;
 * `limit`: the largest factor of a gradient, 1 / `mean_eps`, which is the least mean of a matrix's
 * row means; eps2, d and lr, min(lr, 1 / sqrt(step)), make the step. */
typedef struct ax_adafactor_numbers {
  double sign, weight, limit, mean_eps, keep, eps2, d, lr;
} ax_adafactor_numbers;

/* epsilon: of the parameters' type, for an eps1 below 0 */
AX_FN ax_adafactor_numbers ax_adafactor_numbers_of(int64_t step, const ax_hyper *h, double epsilon)
{
  ax_adafactor_numbers a;
  a.sign = h->maximize ? -1 : 1;
  a.weight = pow((double)step, h->beta2_decay);
  a.mean_eps = h->eps1 >= 0 ? h->eps1 : epsilon;
  a.limit = 1 / a.mean_eps;
  a.keep = 1 - h->lr * h->weight_decay;
  a.eps2 = h->eps2;
  a.d = h->d;
  a.lr = fmin(h->lr, 1 / sqrt((double)step));
  return a;
}

/* The factor of the update of n numbers, whose squares add up to `squares`, those of their update
 * before it to `moved`. */
AX_FN double ax_adafactor_step(const ax_adafactor_numbers *a, double squares, double moved, int64_t n)
{
  const double step =
      fmax(a->eps2, sqrt(squares / (double)n)) * a->lr / fmax(1.0, sqrt(moved / (double)n) / a->d);
  return squares != squares || moved != moved ? (double)NAN : a->sign * step; /* fmax ignores NaN */
}

/* A running mean, and the update of a gradient whose factor is `by`. */
#define ADAFACTOR(T, S) \
  AX_FN T ax_adafactor_mean_##S(T old, T now, T weight) { return old + weight * (now - old); } \
  AX_FN T ax_adafactor_update_##S(T g, T by, T limit) { return g * (by > limit ? limit : by); }
ADAFACTOR(float, f32)
ADAFACTOR(double, f64)
#undef ADAFACTOR

/* torch's rule for the loss scale; state is { scale, clean steps since it changed }. */
AX_FN void ax_scale_next(double *state, bool overflow, double growth, double backoff, int64_t interval)
{
  if (overflow) {
    state[0] *= backoff;
    state[1] = 0;
    return;
  }
  state[1] += 1;
  if (state[1] != (double)interval) return;
  const double grown = state[0] * growth;
  if (grown < 3.4e38) state[0] = grown; /* a scale beyond float32 would make every loss infinite */
  state[1] = 0;
}

#endif

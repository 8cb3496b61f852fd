/* Rules and gradients of losses of two tensors of one shape (mse_loss .. kl_div).  One row gives
 * the gradient with respect to the input for all of them; that with respect to the target, and
 * their derivatives, are written in op rows. */
#include "core/ops/rule.h"

enum { MSE, L1, SMOOTH_L1, HUBER, BCE, BCE_LOGITS, KL, KL_LOG }; /* the kernels' numbers */
enum { MEAN, SUM, NONE, BATCHMEAN };

static ax_status two_alike(ax_infer *q, int k)
{
  const ax_tensor *x = INPUT(k), *t = INPUT(k + 1);
  /* broadcasting here is nearly always a mistake, and gives a number that looks right */
  if (!ax_same_shape(x, t->ndim, t->shape))
    return ax_fail(AX_ESHAPE,
                   "%s: input %s and target %s differ in shape; target:expand_as(input) where it is meant",
                   q->name, TEXT(x), TEXT(t));
  q->compute = promoted(q, k);
  if (!ax_is_float(q->compute))
    return ax_fail(AX_EDTYPE, "%s: expected floating-point tensors, got %s and %s", q->name, TYPE(x),
                   TYPE(t));
  q->cast = q->contiguous = ~0u;
  return AX_OK;
}

ax_status ax_infer_pair_loss(ax_infer *q)
{
  const ax_tensor *x = INPUT(0);
  const ax_status st = two_alike(q, 0);
  if (st != AX_OK) return st;
  if (q->op == AX_OP_SMOOTH_L1_LOSS && !(q->a.smooth_l1_loss.beta >= 0))
    return ax_fail(AX_EINVAL, "smooth_l1_loss: beta must not be negative, got %g", q->a.smooth_l1_loss.beta);
  if (q->op == AX_OP_HUBER_LOSS && !(q->a.huber_loss.delta > 0))
    return ax_fail(AX_EINVAL, "huber_loss: delta must be positive, got %g", q->a.huber_loss.delta);
  out_like(q, 0, q->compute, q->a.pair_loss.reduction == NONE ? x->ndim : 0, x->shape);
  return AX_OK;
}

ax_status ax_infer_pair_loss_backward(ax_infer *q)
{
  const ax_tensor *g = INPUT(0), *x = INPUT(1);
  const ax_status st = two_alike(q, 1);
  if (st != AX_OK) return st;
  if (g->numel != (q->a.pair_loss_backward.reduction == NONE ? x->numel : 1))
    return ax_fail(AX_ESHAPE, "%s: gradient %s does not fit input %s", q->name, TEXT(g), TEXT(x));
  out_like(q, 0, q->compute, x->ndim, x->shape);
  return AX_OK;
}

/* ---- gradients */

static ax_arg neg(ax_grad *c, ax_arg v) { return un(c, AX_OP_NEG, v); }
static ax_arg add(ax_grad *c, ax_arg a, ax_arg b) { return bin(c, AX_OP_ADD, a, b); }
static ax_arg call_back(ax_grad *c, ax_arg g, ax_arg x, ax_arg t, int kind, int64_t reduction, double p)
{
  return call(c, AX_OP_PAIR_LOSS_BACKWARD, 3, (ax_arg[]){ g, x, t },
              &AX_ATTRS(pair_loss_backward, .kind = kind, .reduction = reduction, .number = p));
}

/* What each term's gradient is multiplied by; x is input `k` of the node. */
static ax_arg per_term(ax_grad *c, ax_arg g, int64_t reduction, int k)
{
  const ax_meta *x = META(k);
  const double n = reduction == MEAN        ? (double)ax_shape_numel(x->ndim, x->shape)
                   : reduction == BATCHMEAN ? (double)(x->ndim ? x->shape[0] : 1)
                                            : 1;
  return n == 1 ? g : mul(c, g, NUM(1 / n));
}

/* log v, no less than -100 */
static ax_arg floored_log(ax_grad *c, ax_op log, ax_arg v)
{
  const ax_arg l = un(c, log, v);
  return call(c, AX_OP_CLAMP, 1, &l, &AX_ATTRS(clamp, .min = -100, .max = INFINITY));
}

static void grad_pair(ax_grad *c, int kind, double p)
{
  const ax_arg x = IN(0), t = IN(1);
  const int64_t reduction = A->pair_loss.reduction;

  if (WANTS(0)) give(c, 0, call_back(c, G, x, t, kind, reduction, p));
  if (!WANTS(1)) return;
  if (kind <= HUBER) { /* functions of x - t */
    give(c, 1, neg(c, call_back(c, G, x, t, kind, reduction, p)));
    return;
  }
  const ax_arg g = per_term(c, G, reduction, 0);
  if (kind == BCE)
    give(c, 1, mul(c, g, sub(c, floored_log(c, AX_OP_LOG1P, neg(c, x)), floored_log(c, AX_OP_LOG, x))));
  else if (kind == BCE_LOGITS) give(c, 1, mul(c, g, neg(c, x)));
  else if (kind == KL)
    give(c, 1,
         mul(c, g,
             where(c, bin(c, AX_OP_EQ, t, NUM(0)), neg(c, x),
                   sub(c, add(c, un(c, AX_OP_LOG, t), NUM(1)), x))));
  else give(c, 1, mul(c, g, mul(c, un(c, AX_OP_EXP, t), add(c, sub(c, t, x), NUM(1)))));
}
RULE(mse_loss) { grad_pair(c, MSE, 0); }
RULE(l1_loss) { grad_pair(c, L1, 0); }
RULE(smooth_l1_loss) { grad_pair(c, SMOOTH_L1, A->smooth_l1_loss.beta); }
RULE(huber_loss) { grad_pair(c, HUBER, A->huber_loss.delta); }
RULE(bce_loss) { grad_pair(c, BCE, 0); }
RULE(bce_logits_loss) { grad_pair(c, BCE_LOGITS, 0); }
RULE(kl_div) { grad_pair(c, A->kl_div.log_target ? KL_LOG : KL, 0); }

/* d slope / d x: a number, or a tensor */
static ax_arg bend(ax_grad *c, int kind, ax_arg x, ax_arg t, double p)
{
  if (kind == MSE) return NUM(2);
  if (kind == SMOOTH_L1 && p > 0)
    return where(c, bin(c, AX_OP_LT, un(c, AX_OP_ABS, sub(c, x, t)), NUM(p)), NUM(1 / p), NUM(0));
  if (kind == HUBER)
    return where(c, bin(c, AX_OP_LE, un(c, AX_OP_ABS, sub(c, x, t)), NUM(p)), NUM(1), NUM(0));
  if (kind == BCE) { /* (x - t) / (x (1 - x)) */
    const ax_arg w = mul(c, x, sub(c, NUM(1), x)), slope = over(c, sub(c, x, t), w);
    return over(c, sub(c, NUM(1), mul(c, slope, sub(c, NUM(1), mul(c, x, NUM(2))))), w);
  }
  if (kind == BCE_LOGITS) {
    const ax_arg s = un(c, AX_OP_SIGMOID, x);
    return mul(c, s, sub(c, NUM(1), s));
  }
  return NUM(0);
}

/* d slope / d t */
static ax_arg lean(ax_grad *c, int kind, ax_arg x, ax_arg t, double p)
{
  if (kind <= HUBER) {
    const ax_arg b = bend(c, kind, x, t, p);
    return b.t ? neg(c, b) : NUM(-b.num);
  }
  if (kind == BCE) return neg(c, un(c, AX_OP_RECIPROCAL, mul(c, x, sub(c, NUM(1), x))));
  return kind == KL_LOG ? neg(c, un(c, AX_OP_EXP, t)) : NUM(-1);
}

RULE(pair_loss_backward) /* r = s slope(x, t), s being g over the number of terms, or g */
{
  const ax_arg x = IN(1), t = IN(2);
  const int kind = (int)A->pair_loss_backward.kind;
  const int64_t reduction = A->pair_loss_backward.reduction;

  if (WANTS(0)) {
    const ax_arg per =
        mul(c, G, call_back(c, filled(c, 0, 1), x, t, kind, reduction, A->pair_loss_backward.number));
    give(c, 0, reduction == NONE ? per : with_list(c, AX_OP_SUM, per, -1, NULL));
  }
  for (int k = 1; k <= 2; k++) {
    if (!WANTS(k)) continue;
    const ax_arg d = k == 1 ? bend(c, kind, x, t, A->pair_loss_backward.number)
                            : lean(c, kind, x, t, A->pair_loss_backward.number);
    if (!d.t && d.num == 0) give(c, k, filled(c, k, 0)); /* straight lines */
    else give(c, k, mul(c, mul(c, G, per_term(c, IN(0), reduction, 1)), d));
  }
}

/* ---- with weights: made up of other rows */

/* What a rule made on its way to a result; released together. */
typedef struct steps {
  ax_status st;
  ax_tensor *made[12];
  int n;
} steps;

static ax_tensor *made(steps *s, ax_status st, ax_tensor *t)
{
  if (st != AX_OK) s->st = st;
  else s->made[s->n++] = t;
  return t;
}

static ax_tensor *one(steps *s, ax_op op, ax_tensor *a)
{
  ax_tensor *t = NULL;
  const ax_status st = s->st == AX_OK ? ax_run1(op, a, &t) : s->st;
  return s->st == AX_OK ? made(s, st, t) : NULL;
}

static ax_tensor *two(steps *s, ax_op op, ax_tensor *a, ax_tensor *b)
{
  ax_tensor *t = NULL;
  const ax_status st = s->st == AX_OK ? ax_run2(op, a, b, &t) : s->st;
  return s->st == AX_OK ? made(s, st, t) : NULL;
}

static ax_tensor *with(steps *s, ax_op op, ax_tensor *a, double number)
{
  ax_tensor *t = NULL;
  const ax_status st = s->st == AX_OK ? ax_run_num(op, a, number, &t) : s->st;
  return s->st == AX_OK ? made(s, st, t) : NULL;
}

/* Multiplies by the weight, if there is one, and reduces; *out: a new reference. */
static ax_status finish(steps *s, ax_tensor *terms, ax_tensor *weight, int64_t reduction, ax_tensor **out)
{
  if (weight) terms = two(s, AX_OP_MUL, terms, weight);
  if (s->st == AX_OK && reduction != NONE) terms = one(s, reduction == SUM ? AX_OP_SUM : AX_OP_MEAN, terms);
  if (s->st == AX_OK) *out = ax_tensor_retain(terms);
  for (int k = 0; k < s->n; k++) ax_tensor_release(s->made[k]);
  return s->st;
}

static ax_status run_pair(ax_op op, ax_tensor *x, ax_tensor *t, int64_t reduction, ax_tensor **out)
{
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  const ax_status st =
      ax_run(op,
             &(ax_args){
                 .n_in = 2, .in = (ax_tensor *[]){ x, t }, .a = AX_ATTRS(bce_loss, .reduction = reduction) },
             results);
  *out = results[0];
  return st;
}

static ax_tensor *given(const ax_infer *q, int k) { return q->args->n_in > k ? INPUT(k) : NULL; }

ax_status ax_infer_bce(ax_infer *q)
{
  ax_tensor *weight = given(q, 2), *terms = NULL;
  steps s = { 0 };
  if (!weight) return run_pair(AX_OP_BCE_LOSS, INPUT(0), INPUT(1), q->a.bce.reduction, &q->result[0]);
  s.st = run_pair(AX_OP_BCE_LOSS, INPUT(0), INPUT(1), NONE, &terms);
  if (s.st == AX_OK) s.made[s.n++] = terms;
  return finish(&s, terms, weight, q->a.bce.reduction, &q->result[0]);
}

/* (1 - t) x - (1 + (pos_weight - 1) t) log sigmoid(x) */
ax_status ax_infer_bce_logits(ax_infer *q)
{
  ax_tensor *x = INPUT(0), *t = INPUT(1), *weight = given(q, 2), *positive = given(q, 3), *terms = NULL;
  steps s = { 0 };
  ax_status st;

  if (!weight && !positive)
    return run_pair(AX_OP_BCE_LOGITS_LOSS, x, t, q->a.bce_with_logits.reduction, &q->result[0]);
  if (!ax_same_shape(x, t->ndim, t->shape))
    return ax_fail(AX_ESHAPE, "%s: input %s and target %s differ in shape", q->name, TEXT(x), TEXT(t));
  if ((st = need_float(q, x)) != AX_OK) return st;
  if (!positive) {
    s.st = run_pair(AX_OP_BCE_LOGITS_LOSS, x, t, NONE, &terms);
    if (s.st == AX_OK) s.made[s.n++] = terms;
  } else {
    ax_tensor *factor = with(&s, AX_OP_ADD, two(&s, AX_OP_MUL, with(&s, AX_OP_SUB, positive, 1), t), 1);
    ax_tensor *missed = two(&s, AX_OP_MUL, factor, one(&s, AX_OP_LOGSIGMOID, x));
    terms = two(&s, AX_OP_SUB, two(&s, AX_OP_SUB, x, two(&s, AX_OP_MUL, t, x)), missed);
    if (s.st == AX_OK && !ax_same_shape(x, terms->ndim, terms->shape))
      s.st = ax_fail(AX_ESHAPE, "%s: pos_weight %s does not broadcast to input %s", q->name, TEXT(positive),
                     TEXT(x));
  }
  return finish(&s, terms, weight, q->a.bce_with_logits.reduction, &q->result[0]);
}

/* Rules and gradients of batch normalisation.
 *
 * Training is one kernel forward and one backward over (n, channels, ..) with the channels
 * innermost.  A gradient that is to be differentiated again is built from pointwise rows and sums
 * instead.  With running statistics it is one scale and one shift for each channel. */
#include "core/ops/join.h"
#include "core/ops/rule.h"

#define X INPUT(0)

static ax_status check_param(const ax_infer *q, const ax_tensor *x, const ax_tensor *t, const char *what)
{
  if (!t) return AX_OK;
  if (t->ndim != 1 || t->shape[0] != x->shape[1])
    return ax_fail(AX_ESHAPE, "batch_norm: %s must be [%lld] for an input %s, got %s", what,
                   (long long)x->shape[1], TEXT(x), TEXT(t));
  const bool half = ax_is_half((ax_dtype)x->dtype);
  if (t->dtype == x->dtype || (half && t->dtype == AX_F32)) return AX_OK;
  return ax_fail(AX_EDTYPE, "batch_norm: %s is %s for an input of %s", what, TYPE(t), TYPE(x));
}

static ax_dtype stats_type(const ax_tensor *x) { return x->dtype == AX_F64 ? AX_F64 : AX_F32; }

static ax_status check_residual(const ax_infer *q, const ax_tensor *t)
{
  if (t->dtype == X->dtype && ax_same_shape(t, X->ndim, X->shape)) return AX_OK;
  return ax_fail(AX_ESHAPE, "batch_norm: the residual must be %s %s as the input, got %s %s", TYPE(X),
                 TEXT(X), TYPE(t), TEXT(t));
}

ax_status ax_infer_batch_norm_train(ax_infer *q)
{
  ax_tensor *const *in = q->args->in;
  const int n = q->args->n_in;
  const char *const names[] = { NULL, "weight", "bias", "running_mean", "running_var" };
  ax_status st;

  for (int k = 1; k < n && k < 5; k++)
    if ((st = check_param(q, X, in[k], names[k])) != AX_OK) return st;
  if (n > 5 && (st = check_residual(q, in[5])) != AX_OK) return st;
  if (X->numel == X->shape[1])
    return ax_fail(AX_ESHAPE,
                   "batch_norm: in training more than one value for each channel is needed, got %s", TEXT(X));
  for (int k = 3; k < n && k < 5; k++) /* written by the kernel */
    if (in[k]) {
      if (!ax_tensor_is_contiguous(in[k]))
        return ax_fail(AX_EINVAL, "batch_norm: %s must be contiguous", names[k]);
      if ((st = ax_tensor_ready(in[k], AX_WRITE)) != AX_OK) return st;
      ax_touch(in[k]);
    }
  q->contiguous = 2 | 4;
  q->channels_last = 1 | 32 | 1 << 8;
  if (!q->a.batch_norm_train.relu) q->unsaved = O0;
  out_like(q, 0, (ax_dtype)X->dtype, X->ndim, X->shape);
  out_like(q, 1, stats_type(X), 1, X->shape + 1);
  out_like(q, 2, stats_type(X), 1, X->shape + 1);
  return AX_OK;
}

ax_status ax_infer_batch_norm_backward(ax_infer *q)
{
  const ax_tensor *x = INPUT(1), *w = INPUT(2), *b = INPUT(3), *g = INPUT(0);
  if (g->dtype != x->dtype || !ax_same_shape(g, x->ndim, x->shape))
    return ax_fail(AX_ESHAPE, "batch_norm: the gradient must be %s %s as the result, got %s %s", TYPE(x),
                   TEXT(x), TYPE(g), TEXT(g));
  q->contiguous = 4 | 8;
  q->channels_last = 3 | 1 << 8;
  out_like(q, 0, (ax_dtype)x->dtype, x->ndim, x->shape);
  out_like(q, 1, w ? (ax_dtype)w->dtype : stats_type(x), 1, x->shape + 1);
  out_like(q, 2, b ? (ax_dtype)b->dtype : stats_type(x), 1, x->shape + 1);
  return AX_OK;
}

ax_status ax_infer_scale_shift(ax_infer *q)
{
  if (q->args->n_in > 3 && q->args->in[3]) {
    const ax_status st = check_residual(q, q->args->in[3]);
    if (st != AX_OK) return st;
  }
  q->contiguous = 2 | 4;
  q->channels_last = 1 | 8 | 1 << 8;
  if (!q->a.scale_shift.relu) q->unsaved = O0; /* an op in place may follow */
  out_like(q, 0, (ax_dtype)X->dtype, X->ndim, X->shape);
  return AX_OK;
}

/* ---- the user's row: x running_mean running_var weight bias residual */

static ax_status with_running(ax_infer *q, ax_tensor *const *in)
{
  const double eps = q->a.batch_norm.eps;
  ax_tensor *mean = NULL, *var = NULL, *sum = NULL, *scale = NULL, *weighted = NULL, *shift = NULL,
            *biased = NULL, *results[AX_MAX_OUT] = { 0 };
  ax_status st;

  /* numbers of one for each channel: exact enough to be worth their own type */
  AX_TRY(ax_cast(in[1], stats_type(X), &mean));
  AX_TRY(ax_cast(in[2], stats_type(X), &var));
  AX_TRY(ax_run_num(AX_OP_ADD, var, eps, &sum));
  AX_TRY(ax_run1(AX_OP_RSQRT, sum, &scale));
  if (in[3]) AX_TRY(ax_run2(AX_OP_MUL, scale, in[3], &weighted));
  else weighted = ax_tensor_retain(scale);
  AX_TRY(ax_run2(AX_OP_MUL, mean, weighted, &shift));
  if (in[4]) AX_TRY(ax_run2(AX_OP_SUB, in[4], shift, &biased));
  else AX_TRY(ax_run1(AX_OP_NEG, shift, &biased));
  AX_TRY(ax_run(AX_OP_SCALE_SHIFT,
                &(ax_args){ .n_in = in[5] ? 4 : 3,
                            .in = (ax_tensor *[]){ X, weighted, biased, in[5] },
                            .a = AX_ATTRS(scale_shift, .relu = q->a.batch_norm.activation) },
                results));
  q->result[0] = results[0];
out:
  ax_tensor_release(mean), ax_tensor_release(var), ax_tensor_release(sum), ax_tensor_release(scale);
  ax_tensor_release(weighted), ax_tensor_release(shift), ax_tensor_release(biased);
  return st;
}

ax_status ax_infer_batch_norm(ax_infer *q)
{
  ax_tensor *in[6] = { 0 }, *results[AX_MAX_OUT] = { 0 };
  const char *const names[] = { NULL, "running_mean", "running_var", "weight", "bias" };
  const bool training = q->a.batch_norm.training;
  ax_status st = need_float(q, X);

  if (st != AX_OK) return st;
  for (int k = 0; k < q->args->n_in; k++) in[k] = q->args->in[k];
  if (X->ndim < 2 || X->ndim > 5)
    return ax_fail(AX_ESHAPE, "batch_norm: expected an input of 2 to 5 dims, (n, channels, ..), got %s",
                   TEXT(X));
  for (int k = 1; k < 5; k++)
    if ((st = check_param(q, X, in[k], names[k])) != AX_OK) return st;
  if (!training) {
    if (!in[1] || !in[2])
      return ax_fail(AX_EINVAL, "batch_norm: running_mean and running_var are needed when training is false");
    return with_running(q, in);
  }
  const ax_args args = { .n_in = in[5]   ? 6
                                 : in[2] ? 5
                                 : in[1] ? 4
                                 : in[4] ? 3
                                 : in[3] ? 2
                                         : 1,
                         .in = (ax_tensor *[]){ X, in[3], in[4], in[1], in[2], in[5] },
                         .a = AX_ATTRS(batch_norm_train, .relu = q->a.batch_norm.activation,
                                       .momentum = q->a.batch_norm.momentum, .eps = q->a.batch_norm.eps) };
  st = ax_run(in[5] ? AX_OP_BATCH_NORM_RESIDUAL : AX_OP_BATCH_NORM_TRAIN, &args, results);
  q->result[0] = results[0];
  ax_tensor_release(results[1]), ax_tensor_release(results[2]);
  return st;
}

/* ---- gradients */

/* A number for each channel, as (1, channels, 1, ..) beside input 0. */
static ax_arg spread(ax_grad *c, ax_arg v)
{
  int64_t shape[AX_MAX_DIMS];
  for (int d = 0; d < META(0)->ndim; d++) shape[d] = d == 1 ? META(0)->shape[1] : 1;
  return with_list(c, AX_OP_RESHAPE, v, META(0)->ndim, shape);
}

/* Reduces all dims but the channels.  keep: the result has shape (1, channels, 1, ..), else
 * [channels]. */
static ax_arg over_channels(ax_grad *c, ax_op op, ax_arg v, bool keep)
{
  int64_t dims[AX_MAX_DIMS];
  int n = 0;
  for (int d = 0; d < META(0)->ndim; d++)
    if (d != 1) dims[n++] = d;
  return reduce_over(c, op, v, n, dims, keep);
}

static ax_arg given(ax_grad *c, int k) { return c->node->n_in > k && c->in[k] ? IN(k) : (ax_arg){ 0 }; }

/* In steps that can be differentiated again.  relu: the result is recomputed, so that its sign
 * masks g. */
static void in_steps(ax_grad *c, ax_arg g, bool relu)
{
  const ax_arg x = IN(0), w = given(c, 1), b = given(c, 2);
  const ax_arg centred = sub(c, x, over_channels(c, AX_OP_MEAN, x, true));
  const ax_arg var = over_channels(c, AX_OP_MEAN, un(c, AX_OP_SQUARE, centred), true);
  const ax_arg invstd = un(c, AX_OP_RSQRT, bin(c, AX_OP_ADD, var, NUM(A->batch_norm_train.eps)));
  const ax_arg hat = mul(c, centred, invstd);
  if (relu) {
    ax_arg y = hat;
    if (w.t) y = mul(c, y, spread(c, w));
    if (b.t) y = bin(c, AX_OP_ADD, y, spread(c, b));
    g = bin(c, AX_OP_RELU_BACKWARD, g, y);
  }
  const ax_arg product = mul(c, g, hat);
  if (w.t && WANTS(1)) give(c, 1, over_channels(c, AX_OP_SUM, product, false));
  if (b.t && WANTS(2)) give(c, 2, over_channels(c, AX_OP_SUM, g, false));
  if (!WANTS(0)) return;
  const ax_arg rest = sub(c, sub(c, g, over_channels(c, AX_OP_MEAN, g, true)),
                          mul(c, hat, over_channels(c, AX_OP_MEAN, product, true)));
  give(c, 0, mul(c, rest, w.t ? mul(c, invstd, spread(c, w)) : invstd));
}

/* Input k's slot of the flat gradient, if the kernel may write it: nothing has to be added. */
static ax_tensor *empty_slot(ax_grad *c, int k)
{
  bool accumulate;
  ax_tensor *const slot =
      c->st == AX_OK && k < c->node->n_in && c->in[k] && WANTS(k) ? ax_grad_slot_of(c, k, &accumulate) : NULL;
  return slot && !accumulate && slot->dtype == c->in[k]->dtype && slot->dtype == META(k)->dtype &&
                 ax_same_shape(slot, META(k)->ndim, META(k)->shape) && ax_tensor_is_contiguous(slot)
             ? slot
             : NULL;
}

/* Are these the row's inputs as its kernel needs them? */
static bool as_kernel_needs(ax_tensor *const *in)
{
  for (int k = 0; k < 6; k++) {
    const ax_tensor *t = in[k];
    if (!t) continue;
    if (ax_is_later(t)) return false;
    if (!(k < 2 ? ax_strides_are_channels_last(t->ndim, t->shape, t->strides) : ax_tensor_is_contiguous(t)))
      return false;
  }
  return in[0]->dtype == in[1]->dtype;
}

static ax_status run_backward(ax_tensor **in, bool relu, ax_tensor *const *slots, ax_tensor **results)
{
  bool done;
  ax_status st;

  for (int k = 1; k < 3; k++)
    if (slots[k]) results[k] = ax_tensor_retain(slots[k]);
  if ((st = ax_join_batch_norm_backward(in, &relu, results, &done)) != AX_OK || done) return st;
  const ax_attrs a = AX_ATTRS(batch_norm_backward, .relu = relu);
  if ((slots[1] || slots[2]) && as_kernel_needs(in)) {
    if ((st = ax_batch_norm_backward_results(in, results)) != AX_OK) return st;
    return ax_kernel_call(AX_OP_BATCH_NORM_BACKWARD, &a, 6, in, 3, results, NULL);
  }
  for (int k = 0; k < 3; k++) ax_tensor_release(results[k]);
  return ax_run(AX_OP_BATCH_NORM_BACKWARD, &(ax_args){ .n_in = 6, .in = in, .a = a }, results);
}

static void in_one_pass(ax_grad *c, ax_arg g, bool relu)
{
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  ax_tensor *in[] = { g.t, IN(0).t, given(c, 1).t, given(c, 2).t, OUT(1).t, OUT(2).t };
  if (c->st != AX_OK) return;
  ax_tensor *const slots[] = { NULL, empty_slot(c, 1), empty_slot(c, 2) };
  c->st = run_backward(in, relu, slots, results);
  for (int k = 0; k < 3; k++) {
    if (c->st == AX_OK && slots[k] && results[k] == slots[k]) {
      slots[k]->version->edits++;
      ax_grad_slot_written(c, k);
    } else if (c->st == AX_OK && k < c->node->n_in && (k == 0 || c->in[k]) && WANTS(k))
      give(c, k, (ax_arg){ .t = results[k] });
    ax_tensor_release(results[k]);
  }
}

RULE(batch_norm_train)
{
  if (c->create_graph) in_steps(c, G, A->batch_norm_train.relu);
  else in_one_pass(c, G, A->batch_norm_train.relu);
}

RULE(batch_norm_residual)
{
  const ax_arg g = A->batch_norm_residual.relu ? bin(c, AX_OP_RELU_BACKWARD, G, OUT(0)) : G;
  if (WANTS(5)) give(c, 5, g);
  if (!WANTS(0) && !(c->in[1] && WANTS(1)) && !(c->in[2] && WANTS(2))) return;
  if (c->create_graph) in_steps(c, g, false);
  else in_one_pass(c, g, false);
}

ax_later *ax_batch_norm_later(const ax_tensor *x)
{
  ax_later *const l = ax_later_of(x);
  return l && l->op == AX_OP_SCALE_SHIFT && !l->a.scale_shift.relu ? l : NULL;
}

RULE(scale_shift)
{
  const ax_arg g = A->scale_shift.relu ? bin(c, AX_OP_RELU_BACKWARD, G, OUT(0)) : G;
  if (WANTS(0)) give(c, 0, mul(c, g, spread(c, IN(1))));
  if (WANTS(1)) give(c, 1, over_channels(c, AX_OP_SUM, mul(c, g, IN(0)), false));
  if (WANTS(2)) give(c, 2, over_channels(c, AX_OP_SUM, g, false));
  if (c->node->n_in > 3 && WANTS(3)) give(c, 3, g);
}

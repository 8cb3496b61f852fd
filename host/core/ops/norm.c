/* Rules and gradients of normalisation.
 *
 * The gradient is one fused pass over the rows that gives the gradients of input, weight and bias
 * together; those of the parameters go straight into their slots of the flat gradient where there
 * is one.  Under create_graph it is built from plain rows instead, which can be differentiated
 * again; they compute the statistics anew, since the hidden results have no history. */
#include "core/ops/rule.h"

#include <float.h>

/* How many of the last dims are normalised, after checking them. */
static ax_status check_shape(const ax_infer *q, const ax_tensor *x)
{
  const int n = q->a.n_list;
  char text[AX_SHAPE_TEXT];
  const ax_status st = need_float(q, x);
  if (st != AX_OK) return st;
  if (n < 1) return ax_fail(AX_ESHAPE, "%s: normalized_shape must have at least one size", q->name);
  for (int d = 0; d < n; d++)
    if (n > x->ndim || x->shape[x->ndim - n + d] != q->a.list[d])
      return ax_fail(AX_ESHAPE, "%s: normalized_shape %s does not match the last dims of input %s", q->name,
                     ax_shape_text(n, q->a.list, text, sizeof text), TEXT(x));
  return AX_OK;
}

/* weight and bias: of shape `shape`, a floating type; cast to the input's. */
static ax_status check_affine(ax_infer *q, int k, const char *what, int ndim, const int64_t *shape)
{
  const ax_tensor *t = k < q->args->n_in ? INPUT(k) : NULL;
  char text[AX_SHAPE_TEXT];
  if (!t) return AX_OK;
  if (!ax_same_shape(t, ndim, shape))
    return ax_fail(AX_ESHAPE, "%s: %s must have shape %s, got %s", q->name, what,
                   ax_shape_text(ndim, shape, text, sizeof text), TEXT(t));
  q->cast |= 1u << k;
  return need_float(q, t);
}

static ax_dtype sums_of(const ax_tensor *x) { return x->dtype == AX_F64 ? AX_F64 : AX_F32; }

static ax_status last_dims(ax_infer *q)
{
  const ax_tensor *x = INPUT(0);
  ax_status st;

  AX_TRY(check_shape(q, x));
  q->compute = (ax_dtype)x->dtype;
  q->contiguous = ~0u;
  AX_TRY(check_affine(q, 1, "weight", q->a.n_list, q->a.list));
  if (q->op == AX_OP_LAYER_NORM) AX_TRY(check_affine(q, 2, "bias", q->a.n_list, q->a.list));
  out_like(q, 0, (ax_dtype)x->dtype, x->ndim, x->shape);
  for (int k = 1; k <= 1 + (q->op == AX_OP_LAYER_NORM); k++)
    out_like(q, k, sums_of(x), x->ndim - q->a.n_list, x->shape);
out:
  return st;
}

ax_status ax_infer_layer_norm(ax_infer *q) { return last_dims(q); }

ax_status ax_infer_rms_norm(ax_infer *q)
{
  static const double epsilon[] = {
    [AX_F64] = DBL_EPSILON, [AX_F32] = FLT_EPSILON, [AX_F16] = 0x1p-10, [AX_BF16] = 0x1p-7
  };
  if (isnan(q->a.rms_norm.eps) && ax_is_float((ax_dtype)INPUT(0)->dtype))
    q->a.rms_norm.eps = epsilon[INPUT(0)->dtype];
  return last_dims(q);
}

/* Images with fewer channels do not fill a vector of the processor. */
#define LEAST_INNERMOST 16

/* Whether group_norm computes x as it is, with the channels innermost, which is how convolutions
 * leave their results; the result is laid out likewise. */
static bool stays_innermost(const ax_tensor *x)
{
  return x->device.kind == AX_CPU && x->ndim > 2 && x->shape[1] >= LEAST_INNERMOST &&
         !ax_tensor_is_contiguous(x) && ax_strides_are_channels_last(x->ndim, x->shape, x->strides);
}

ax_status ax_infer_group_norm(ax_infer *q)
{
  const ax_tensor *x = INPUT(0);
  const int64_t groups = q->a.group_norm.num_groups;
  ax_status st;

  AX_TRY(need_float(q, x));
  if (x->ndim < 2) return ax_fail(AX_ESHAPE, "group_norm: input must be (N, C, ..), got %s", TEXT(x));
  if (groups < 1 || x->shape[1] % groups != 0)
    return ax_fail(AX_ESHAPE, "group_norm: %lld channels (input %s) do not divide into %lld groups",
                   (long long)x->shape[1], TEXT(x), (long long)groups);
  q->compute = (ax_dtype)x->dtype;
  if (stays_innermost(x)) q->channels_last = 1 | 1 << 8;
  q->contiguous = q->channels_last ? ~1u : ~0u;
  AX_TRY(check_affine(q, 1, "weight", 1, &x->shape[1]));
  AX_TRY(check_affine(q, 2, "bias", 1, &x->shape[1]));
  out_like(q, 0, (ax_dtype)x->dtype, x->ndim, x->shape);
  for (int k = 1; k <= 2; k++) out_like(q, k, sums_of(x), 2, (int64_t[]){ x->shape[0], groups });
out:
  return st;
}

ax_status ax_infer_norm_backward(ax_infer *q) /* only the rules below call these rows, past the dispatcher */
{
  return ax_fail(AX_EINVAL, "%s: is part of a gradient", q->name);
}

/* ---- the fused gradient */

/* Where the gradient of parameter k goes: its slot of the flat gradient, or a new tensor. */
static ax_tensor *parameter_place(ax_grad *c, int k, ax_dtype dtype, bool *in_slot, int64_t *add)
{
  bool accumulate = false;
  ax_tensor *slot, *t = NULL;

  *in_slot = false;
  *add = 0;
  if (c->st != AX_OK || k >= c->node->n_in || !WANTS(k)) return NULL;
  slot = ax_grad_slot_of(c, k, &accumulate);
  if (slot && slot->dtype == META(k)->dtype && ax_same_shape(slot, META(k)->ndim, META(k)->shape) &&
      ax_tensor_is_contiguous(slot) && slot->dtype == dtype) {
    *in_slot = true;
    *add = accumulate;
    return slot;
  }
  const ax_status st = ax_tensor_new_on(c->g[0]->device, dtype, META(k)->ndim, META(k)->shape, &t);
  return keep(c, st, t).t;
}

/* A new tensor of t's shape, contiguous or with the channels innermost. */
static ax_status new_like(const ax_tensor *t, ax_dtype dtype, bool innermost, ax_tensor **out)
{
  const ax_status st = ax_tensor_new_on(t->device, dtype, t->ndim, t->shape, out);
  if (st == AX_OK && innermost) ax_strides_channels_last(t->ndim, t->shape, (*out)->strides);
  return st;
}

/* t as `dtype`, contiguous or with the channels innermost. */
static ax_tensor *laid(ax_grad *c, ax_tensor *t, ax_dtype dtype, bool innermost)
{
  ax_tensor *cast = NULL, *order = NULL;
  ax_status st;
  if (!t || c->st != AX_OK) return NULL;
  st = ax_cast(t, dtype, &cast);
  if (!(t = keep(c, st, cast).t)) return NULL;
  if (innermost && ax_strides_are_channels_last(t->ndim, t->shape, t->strides)) return t;
  if (!innermost) st = ax_contiguous(t, &order);
  else if ((st = new_like(t, dtype, true, &order)) == AX_OK) st = ax_copy(order, t);
  return keep(c, st, order).t;
}

/* Whether the kernel takes a gradient in a half type beside a float32 input, and adds to dx. */
static bool joins_norms(ax_grad *c)
{
  const ax_backend *backend;
  if (c->st == AX_OK) c->st = ax_backend_of(c->g[0]->device, &backend);
  return c->st == AX_OK && backend->joins_norms;
}

static void fused(ax_grad *c, ax_op op, ax_tensor *mean, ax_tensor *rstd, int64_t groups)
{
  const bool joins = op != AX_OP_GROUP_NORM_BACKWARD && joins_norms(c);
  const ax_dtype d = joins ? META(0)->dtype : (ax_dtype)c->g[0]->dtype;
  ax_attrs a = { .n_list = A->n_list };
  bool slot[3] = { false };
  const bool grouped = op == AX_OP_GROUP_NORM_BACKWARD, biased = op != AX_OP_RMS_NORM_BACKWARD;
  int64_t *const add_weight = grouped  ? &a.group_norm_backward.add_weight
                              : biased ? &a.layer_norm_backward.add_weight
                                       : &a.rms_norm_backward.add_weight,
                 *const add_bias =
                     grouped ? &a.group_norm_backward.add_bias : &a.layer_norm_backward.add_bias;
  int64_t *const add_input = biased ? &a.layer_norm_backward.add_input : &a.rms_norm_backward.add_input;
  const bool innermost = grouped && c->st == AX_OK && stays_innermost(IN(0).t);
  ax_tensor *x = laid(c, IN(0).t, d, innermost),
            *g = laid(c, c->g[0], joins ? (ax_dtype)c->g[0]->dtype : d, innermost),
            *w = laid(c, c->in[1], d, false), *dx = joins ? ax_grad_arrived(c, 0) : NULL;
  const bool arrived = dx != NULL;

  memcpy(a.list, A->list, sizeof a.list);
  if (grouped) a.group_norm_backward.num_groups = groups;
  if (c->st != AX_OK) return;
  if (arrived) *add_input = true;
  else {
    const ax_status st = new_like(x, d, innermost, &dx);
    if (!keep(c, st, dx).t) return;
  }
  ax_tensor *dw = parameter_place(c, 1, d, &slot[1], add_weight),
            *db = biased ? parameter_place(c, 2, d, &slot[2], add_bias) : NULL;
  if (c->st != AX_OK) return;
  c->st = ax_kernel_call(op, &a, 5, (ax_tensor *[]){ g, x, mean, rstd, w }, 3, (ax_tensor *[]){ dx, dw, db },
                         NULL);
  if (WANTS(0) && !arrived) give(c, 0, (ax_arg){ .t = dx });
  for (int k = 1; k <= 2 && c->st == AX_OK; k++) {
    ax_tensor *t = k == 1 ? dw : db;
    if (!t) continue;
    if (slot[k]) {
      t->version->edits++;
      ax_grad_slot_written(c, k);
    } else give(c, k, (ax_arg){ .t = t });
  }
}

/* ---- from plain rows: for create_graph */

static ax_arg mean_over(ax_grad *c, ax_arg x, int n, const int64_t *dims)
{
  return reduce_over(c, AX_OP_MEAN, x, n, dims, true);
}

/* xhat and rstd over `dims` of x; centred or not. */
static ax_arg normalised(ax_grad *c, ax_arg x, int n, const int64_t *dims, double eps, bool centred,
                         ax_arg *rstd)
{
  if (centred) x = sub(c, x, mean_over(c, x, n, dims));
  *rstd = un(c, AX_OP_RSQRT, bin(c, AX_OP_ADD, mean_over(c, un(c, AX_OP_SQUARE, x), n, dims), NUM(eps)));
  return mul(c, x, *rstd);
}

/* rstd (g - mean(g) - xhat mean(g xhat)); what is not centred has no mean(g). */
static ax_arg input_gradient(ax_grad *c, ax_arg g, ax_arg xhat, ax_arg rstd, int n, const int64_t *dims,
                             bool centred)
{
  ax_arg r = sub(c, g, mul(c, xhat, mean_over(c, mul(c, g, xhat), n, dims)));
  if (centred) r = sub(c, r, mean_over(c, g, n, dims));
  return mul(c, r, rstd);
}

static void by_rows(ax_grad *c, bool centred)
{
  const int n = A->n_list, lead = META(0)->ndim - n;
  int64_t last[AX_MAX_DIMS];
  ax_arg rstd, xhat;

  for (int d = 0; d < n; d++) last[d] = lead + d;
  xhat = normalised(c, IN(0), n, last, A->layer_norm.eps, centred, &rstd);
  if (WANTS(0)) give(c, 0, input_gradient(c, c->in[1] ? mul(c, G, IN(1)) : G, xhat, rstd, n, last, centred));
  if (c->node->n_in > 1 && WANTS(1)) give(c, 1, mul(c, G, xhat)); /* the engine sums down to its shape */
  if (c->node->n_in > 2 && WANTS(2)) give(c, 2, G);
}

static ax_arg reshaped(ax_grad *c, ax_arg x, int n, const int64_t *shape)
{
  return with_list(c, AX_OP_RESHAPE, x, n, shape);
}

static void groups_by_rows(ax_grad *c)
{
  const ax_meta *m = META(0);
  const int64_t n = m->shape[0], channels = m->shape[1], groups = A->group_norm.num_groups, dims[] = { 2, 3 };
  int64_t rest = 1;
  for (int d = 2; d < m->ndim; d++) rest *= m->shape[d];
  const int64_t split[] = { n, groups, channels / groups, rest }, by_channel[] = { n, channels, rest };
  const ax_arg g = reshaped(c, G, 3, by_channel);
  ax_arg rstd;
  const ax_arg xhat = normalised(c, reshaped(c, IN(0), 4, split), 2, dims, A->group_norm.eps, true, &rstd);

  if (WANTS(0)) {
    const ax_arg gw = c->in[1] ? mul(c, g, reshaped(c, IN(1), 2, (int64_t[]){ channels, 1 })) : g;
    give(c, 0,
         reshaped(c, input_gradient(c, reshaped(c, gw, 4, split), xhat, rstd, 2, dims, true), m->ndim,
                  m->shape));
  }
  const int64_t around[] = { 0, 2 };
  if (c->node->n_in > 1 && WANTS(1))
    give(c, 1, with_list(c, AX_OP_SUM, mul(c, g, reshaped(c, xhat, 3, by_channel)), 2, around));
  if (c->node->n_in > 2 && WANTS(2)) give(c, 2, with_list(c, AX_OP_SUM, g, 2, around));
}

RULE(layer_norm)
{
  if (c->create_graph) by_rows(c, true);
  else fused(c, AX_OP_LAYER_NORM_BACKWARD, OUT(1).t, OUT(2).t, 0);
}

RULE(rms_norm)
{
  if (c->create_graph) by_rows(c, false);
  else fused(c, AX_OP_RMS_NORM_BACKWARD, NULL, OUT(1).t, 0);
}

RULE(group_norm)
{
  if (c->create_graph) groups_by_rows(c);
  else fused(c, AX_OP_GROUP_NORM_BACKWARD, OUT(1).t, OUT(2).t, A->group_norm.num_groups);
}

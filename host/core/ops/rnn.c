/* Rules of recurrent cells and layers; rnn_gradient.c has their gradients.
 *
 * A layer's row does the recurrent part of all steps: one product and one pointwise loop for each
 * step, in C.  What does not depend on the step before is left to rows around it: the input's part
 * of the gates is one linear over all steps, and so are the gradients of both weights one product
 * each over all steps. */
#include "core/ops/rnn_steps.h"
#include "core/ops/rule.h"

#define LL(x) ((long long)(x))

/* ---- cells */

/* An LSTM's h may be narrower than its c: then the caller projects what comes out. */
static ax_status check_cell(const ax_infer *q, int gates, int w_ih, const ax_tensor *x, const ax_tensor *h,
                            const ax_tensor *c)
{
  const ax_tensor *a = INPUT(w_ih), *b = INPUT(w_ih + 1);

  if (a->ndim != 2 || b->ndim != 2 || a->shape[0] != b->shape[0] ||
      (c ? b->shape[0] % gates != 0 : b->shape[0] != gates * b->shape[1]))
    return ax_fail(AX_ESHAPE, "%s: w_ih must be (%dH, I) and w_hh (%dH, H), got %s and %s", q->name, gates,
                   gates, TEXT(a), TEXT(b));
  if (x->ndim < 1 || x->ndim > 2 || x->shape[x->ndim - 1] != a->shape[1])
    return ax_fail(AX_ESHAPE, "%s: x must be (B, %lld) or (%lld), got %s", q->name, LL(a->shape[1]),
                   LL(a->shape[1]), TEXT(x));
  for (int k = 0; k < 2; k++) {
    const ax_tensor *s = k ? c : h;
    if (!s) continue;
    const int64_t width = k ? b->shape[0] / gates : b->shape[1];
    if (s->ndim != x->ndim || s->shape[s->ndim - 1] != width || (s->ndim == 2 && s->shape[0] != x->shape[0]))
      return ax_fail(AX_ESHAPE, "%s: for x %s and w_hh %s, %s must be (%s%lld), got %s", q->name, TEXT(x),
                     TEXT(b), k ? "c" : "h", x->ndim == 2 ? "B, " : "", LL(width), TEXT(s));
  }
  return AX_OK;
}

/* Both products of a cell: x w_ih^T + b_ih and h w_hh^T + b_hh. */
static ax_status cell_products(ax_infer *q, int w_ih, ax_tensor **gx, ax_tensor **gh)
{
  const ax_args *a = q->args;
  ax_tensor *results[AX_MAX_OUT];
  ax_tensor *of_x[3] = { INPUT(0), INPUT(w_ih), a->n_in > w_ih + 2 ? INPUT(w_ih + 2) : NULL };
  ax_tensor *of_h[3] = { INPUT(1), INPUT(w_ih + 1), a->n_in > w_ih + 3 ? INPUT(w_ih + 3) : NULL };
  ax_status st;

  AX_TRY(ax_run(AX_OP_LINEAR, &(ax_args){ .n_in = of_x[2] ? 3 : 2, .in = of_x, .a = { .n_list = -1 } },
                results));
  *gx = results[0];
  AX_TRY(ax_run(AX_OP_LINEAR, &(ax_args){ .n_in = of_h[2] ? 3 : 2, .in = of_h, .a = { .n_list = -1 } },
                results));
  *gh = results[0];
out:
  return st;
}

static ax_status cell(ax_infer *q, int gates, ax_op pointwise, int w_ih, ax_tensor *state)
{
  ax_tensor *gx = NULL, *gh = NULL, *out[AX_MAX_OUT] = { 0 };
  ax_status st;

  AX_TRY(check_cell(q, gates, w_ih, INPUT(0), INPUT(1), w_ih == 3 ? state : NULL));
  AX_TRY(cell_products(q, w_ih, &gx, &gh));
  AX_TRY(ax_run(pointwise,
                &(ax_args){ .n_in = 3, .in = (ax_tensor *[]){ gx, gh, state }, .a = { .n_list = -1 } }, out));
  q->result[0] = out[0];
  if (w_ih == 3) q->result[1] = out[1];
  else ax_tensor_release(out[1]);
  ax_tensor_release(out[2]);
out:
  ax_tensor_release(gx), ax_tensor_release(gh);
  return st;
}

ax_status ax_infer_lstm_cell(ax_infer *q) { return cell(q, AX_LSTM_GATES, AX_OP_LSTM_GATES, 3, INPUT(2)); }
ax_status ax_infer_gru_cell(ax_infer *q) { return cell(q, AX_GRU_GATES, AX_OP_GRU_GATES, 2, INPUT(1)); }

ax_status ax_infer_rnn_cell(ax_infer *q)
{
  ax_tensor *gx = NULL, *gh = NULL, *sum = NULL;
  ax_status st;

  AX_TRY(check_cell(q, 1, 2, INPUT(0), INPUT(1), NULL));
  AX_TRY(cell_products(q, 2, &gx, &gh));
  AX_TRY(ax_run2(AX_OP_ADD, gx, gh, &sum));
  st = ax_run1(q->a.rnn_cell.nonlinearity ? AX_OP_RELU : AX_OP_TANH, sum, &q->result[0]);
out:
  ax_tensor_release(gx), ax_tensor_release(gh), ax_tensor_release(sum);
  return st;
}

/* The pointwise parts: two tensors of gates and a state of the same leading dims. */
static ax_status check_gates(ax_infer *q, int gates, const ax_tensor *gx, const ax_tensor *gh,
                             const ax_tensor *state)
{
  const int last = state->ndim - 1;
  bool fits = state->ndim >= 1 && gx->ndim == state->ndim && ax_same_shape(gh, gx->ndim, gx->shape) &&
              gx->shape[last] == gates * state->shape[last];
  ax_status st;

  for (int d = 0; fits && d < last; d++) fits = gx->shape[d] == state->shape[d];
  if (!fits)
    return ax_fail(AX_ESHAPE, "%s: gates %s and %s do not fit the state %s", q->name, TEXT(gx), TEXT(gh),
                   TEXT(state));
  if ((st = need_float(q, gx)) != AX_OK) return st;
  q->compute =
      ax_dtype_promote(ax_dtype_promote((ax_dtype)gx->dtype, (ax_dtype)gh->dtype), (ax_dtype)state->dtype);
  q->cast = q->contiguous = ~0u;
  return AX_OK;
}

static void with_last(ax_infer *q, int k, ax_dtype dtype, const ax_tensor *like, int64_t last)
{
  out_like(q, k, dtype, like->ndim, like->shape);
  q->out[k].shape[like->ndim - 1] = last;
}

ax_status ax_infer_lstm_gates(ax_infer *q)
{
  const ax_tensor *gx = INPUT(0), *c = INPUT(2);
  const ax_status st = check_gates(q, AX_LSTM_GATES, gx, INPUT(1), c);
  if (st != AX_OK) return st;
  out_like(q, 0, q->compute, c->ndim, c->shape);
  out_like(q, 1, q->compute, c->ndim, c->shape);
  out_like(q, 2, q->compute, gx->ndim, gx->shape);
  return AX_OK;
}

ax_status ax_infer_lstm_gates_backward(ax_infer *q)
{
  const ax_tensor *gates = INPUT(2), *c = INPUT(3);
  q->compute = (ax_dtype)gates->dtype;
  q->cast = q->contiguous = ~0u;
  out_like(q, 0, q->compute, gates->ndim, gates->shape);
  out_like(q, 1, q->compute, c->ndim, c->shape);
  return AX_OK;
}

ax_status ax_infer_gru_gates(ax_infer *q)
{
  const ax_tensor *h = INPUT(2);
  const ax_status st = check_gates(q, AX_GRU_GATES, INPUT(0), INPUT(1), h);
  if (st != AX_OK) return st;
  out_like(q, 0, q->compute, h->ndim, h->shape);
  with_last(q, 1, q->compute, h, AX_GRU_SAVED * h->shape[h->ndim - 1]);
  return AX_OK;
}

ax_status ax_infer_gru_gates_backward(ax_infer *q)
{
  const ax_tensor *gates = INPUT(1), *h = INPUT(2);
  q->compute = (ax_dtype)gates->dtype;
  q->cast = q->contiguous = ~0u;
  with_last(q, 0, q->compute, h, AX_GRU_GATES * h->shape[h->ndim - 1]);
  with_last(q, 1, q->compute, h, AX_GRU_GATES * h->shape[h->ndim - 1]);
  out_like(q, 2, q->compute, h->ndim, h->shape);
  return AX_OK;
}

/* ---- layers */

static ax_status check_layer(ax_infer *q, int gates, const ax_tensor *gx, const ax_tensor *w,
                             const ax_tensor *h, const ax_tensor *c, const ax_tensor *sizes)
{
  const int dims = sizes ? 2 : 3;
  const char *lead = sizes ? "N" : "T, B";
  ax_status st;

  if ((st = need_float(q, gx)) != AX_OK) return st;
  if (w->ndim != 2 || w->shape[0] != gates * w->shape[1])
    return ax_fail(AX_ESHAPE, "%s: w_hh must be (%dH, H), got %s", q->name, gates, TEXT(w));
  if (gx->ndim != dims || gx->shape[dims - 1] != w->shape[0])
    return ax_fail(AX_ESHAPE, "%s: gx must be (%s, %lld) for w_hh %s, got %s", q->name, lead, LL(w->shape[0]),
                   TEXT(w), TEXT(gx));
  if (gx->shape[0] == 0) return ax_fail(AX_ESHAPE, "%s: gx %s has no step", q->name, TEXT(gx));
  for (int k = 0; k < 2; k++) {
    const ax_tensor *s = k ? c : h;
    if (s && (s->ndim != 2 || s->shape[1] != w->shape[1] || (!sizes && s->shape[0] != gx->shape[1])))
      return ax_fail(AX_ESHAPE, "%s: %s must be (B, %lld) for gx %s, got %s", q->name, k ? "c" : "h",
                     LL(w->shape[1]), TEXT(gx), TEXT(s));
  }
  if (sizes) {
    if ((st = need_dtype(q, sizes, AX_I64, "batch_sizes")) != AX_OK) return st;
    if (sizes->ndim != 1)
      return ax_fail(AX_ESHAPE, "%s: batch_sizes must have one dim, got %s", q->name, TEXT(sizes));
  }
  const ax_tensor *same[3] = { w, h, c };
  for (int k = 0; k < 3; k++)
    if (same[k] && same[k]->dtype != gx->dtype)
      return ax_fail(AX_EDTYPE, "%s: element types differ: gx is %s, %s is %s", q->name, TYPE(gx),
                     k == 0   ? "w_hh"
                     : k == 1 ? "h"
                              : "c",
                     TYPE(same[k]));
  q->contiguous = ~0u;
  return AX_OK;
}

/* What half types are computed in. */
static ax_dtype work_dtype(const ax_tensor *t) { return t->dtype == AX_F64 ? AX_F64 : AX_F32; }

static const ax_tensor *optional(const ax_infer *q, int k) { return q->args->n_in > k ? INPUT(k) : NULL; }

ax_status ax_infer_lstm_layer(ax_infer *q)
{
  const ax_tensor *gx = INPUT(0), *w = INPUT(1), *c = INPUT(3);
  const ax_status st = check_layer(q, AX_LSTM_GATES, gx, w, INPUT(2), c, optional(q, 4));
  if (st != AX_OK) return st;
  with_last(q, 0, (ax_dtype)gx->dtype, gx, w->shape[1]);
  out_like(q, 1, (ax_dtype)gx->dtype, 2, c->shape);
  with_last(q, 2, work_dtype(gx), gx, 5 * w->shape[1]); /* all gates of all steps, then all c */
  return AX_OK;
}

ax_status ax_infer_lstm_layer_backward(ax_infer *q)
{
  const ax_tensor *saved = INPUT(2), *c = INPUT(3), *w = INPUT(4);
  q->contiguous = ~0u;
  with_last(q, 0, (ax_dtype)w->dtype, saved, w->shape[0]);
  out_like(q, 1, (ax_dtype)w->dtype, 2, c->shape);
  out_like(q, 2, (ax_dtype)w->dtype, 2, c->shape);
  return AX_OK;
}

ax_status ax_infer_gru_layer(ax_infer *q)
{
  const ax_tensor *gx = INPUT(0), *w = INPUT(1), *b = INPUT(2);
  const ax_status st = check_layer(q, AX_GRU_GATES, gx, w, INPUT(3), NULL, optional(q, 4));
  if (st != AX_OK) return st;
  if (b && (b->ndim != 1 || b->shape[0] != w->shape[0] || b->dtype != gx->dtype))
    return ax_fail(AX_ESHAPE, "%s: b_hh must be %s [%lld] for w_hh %s, got %s %s", q->name, TYPE(gx),
                   LL(w->shape[0]), TEXT(w), TYPE(b), TEXT(b));
  with_last(q, 0, (ax_dtype)gx->dtype, gx, w->shape[1]);
  with_last(q, 1, work_dtype(gx), gx, AX_GRU_SAVED * w->shape[1]);
  return AX_OK;
}

ax_status ax_infer_gru_layer_backward(ax_infer *q)
{
  const ax_tensor *y = INPUT(2), *h = INPUT(3), *w = INPUT(4);
  q->contiguous = ~0u;
  with_last(q, 0, (ax_dtype)w->dtype, y, w->shape[0]);
  with_last(q, 1, (ax_dtype)w->dtype, y, w->shape[0]);
  out_like(q, 2, (ax_dtype)w->dtype, 2, h->shape);
  return AX_OK;
}

ax_status ax_infer_rnn_layer(ax_infer *q)
{
  const ax_tensor *gx = INPUT(0), *w = INPUT(1);
  const ax_status st = check_layer(q, 1, gx, w, INPUT(2), NULL, optional(q, 3));
  if (st != AX_OK) return st;
  out_like(q, 0, (ax_dtype)gx->dtype, gx->ndim, gx->shape);
  return AX_OK;
}

ax_status ax_infer_rnn_layer_backward(ax_infer *q)
{
  const ax_tensor *y = INPUT(1), *w = INPUT(2), *h = INPUT(3);
  q->contiguous = ~0u;
  out_like(q, 0, (ax_dtype)w->dtype, y->ndim, y->shape);
  out_like(q, 1, (ax_dtype)w->dtype, 2, h->shape);
  return AX_OK;
}

ax_status ax_infer_rnn_before(ax_infer *q)
{
  q->contiguous = ~0u;
  out_like(q, 0, (ax_dtype)INPUT(0)->dtype, INPUT(0)->ndim, INPUT(0)->shape);
  return AX_OK;
}

/* h by w_hh, in each step. */
int64_t ax_flops_recurrent(const ax_args *args, ax_tensor *const *out)
{
  (void)out;
  return args->in[1]->ndim == 2 ? 2 * args->in[0]->numel * args->in[1]->shape[1] : 0;
}

/* Rules and gradients of recurrent cells and layers.
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

/* ---- gradients */

/* op(in[0..n)) with all its results; entries of `in` may be NULL. */
static void call_all(ax_grad *c, ax_op op, int n, ax_tensor *const *in, const ax_attrs *a, int results,
                     ax_arg *out)
{
  ax_tensor *made[AX_MAX_OUT] = { 0 };
  ax_status st = c->st;

  memset(out, 0, sizeof *out * (size_t)results);
  if (st != AX_OK) return;
  st = ax_run(op, &(ax_args){ .n_in = n, .in = in, .a = a ? *a : (ax_attrs){ .n_list = -1 } }, made);
  for (int k = 0; k < results; k++) out[k] = keep(c, st, made[k]);
}

static ax_arg plus(ax_grad *c, ax_arg a, ax_arg b) { return !a.t ? b : !b.t ? a : bin(c, AX_OP_ADD, a, b); }
/* g y (1 - y) and g (1 - y^2) */
static ax_arg through_sigmoid(ax_grad *c, ax_arg g, ax_arg y) { return bin(c, AX_OP_SIGMOID_BACKWARD, g, y); }
static ax_arg through_tanh(ax_grad *c, ax_arg g, ax_arg y) { return bin(c, AX_OP_TANH_BACKWARD, g, y); }

/* Part k of the last dim, cut into pieces as wide as that of `like`. */
static ax_arg part(ax_grad *c, ax_arg x, int k, const ax_meta *like)
{
  const int64_t width = like->shape[like->ndim - 1];
  return narrow(c, x, like->ndim - 1, k * width, width);
}

static ax_arg joined(ax_grad *c, int n, const ax_arg *parts, int dim)
{
  return call(c, AX_OP_CAT, n, parts, &AX_ATTRS(cat, .dim = dim));
}

/* Out of rows, so that it can be differentiated again.  c1 = f c0 + i g, h = o tanh(c1). */
static void lstm_gates_by_rows(ax_grad *c)
{
  const ax_meta *m = META(2);
  const ax_arg gates = OUT(2), gh = { .t = c->g[0] };
  const ax_arg i = part(c, gates, 0, m), f = part(c, gates, 1, m), g = part(c, gates, 2, m),
               o = part(c, gates, 3, m);
  const ax_arg t = un(c, AX_OP_TANH, OUT(1));
  ax_arg dc = { .t = c->g[1] }, d[4];

  if (gh.t) dc = plus(c, dc, through_tanh(c, mul(c, gh, o), t));
  if (!dc.t) dc = filled(c, 2, 0); /* only the gates themselves have a gradient */
  d[0] = through_sigmoid(c, mul(c, dc, g), i);
  d[1] = through_sigmoid(c, mul(c, dc, IN(2)), f);
  d[2] = through_tanh(c, mul(c, dc, i), g);
  d[3] = gh.t ? through_sigmoid(c, mul(c, gh, t), o) : filled(c, 2, 0);
  if (c->g[2]) { /* the gradient of a gradient that was made of the gates */
    const ax_arg extra = { .t = c->g[2] };
    d[0] = plus(c, d[0], through_sigmoid(c, part(c, extra, 0, m), i));
    d[1] = plus(c, d[1], through_sigmoid(c, part(c, extra, 1, m), f));
    d[2] = plus(c, d[2], through_tanh(c, part(c, extra, 2, m), g));
    d[3] = plus(c, d[3], through_sigmoid(c, part(c, extra, 3, m), o));
  }
  const ax_arg all = joined(c, 4, d, m->ndim - 1);
  give(c, 0, all);
  give(c, 1, all);
  if (WANTS(2)) give(c, 2, mul(c, dc, f));
}

RULE(lstm_gates)
{
  ax_arg d[2];
  if (c->create_graph || c->g[2]) {
    lstm_gates_by_rows(c);
    return;
  }
  call_all(c, AX_OP_LSTM_GATES_BACKWARD, 5, (ax_tensor *[]){ c->g[0], c->g[1], OUT(2).t, IN(2).t, OUT(1).t },
           NULL, 2, d);
  give(c, 0, d[0]);
  give(c, 1, d[0]);
  if (WANTS(2)) give(c, 2, d[1]);
}

/* h1 = (1 - z) n + z h, n = tanh(gx_n + r gh_n); the fourth part of the gates is gh_n. */
static void gru_gates_by_rows(ax_grad *c)
{
  const ax_meta *m = META(2);
  const ax_arg gates = OUT(1), h = IN(2);
  const ax_arg r = part(c, gates, 0, m), z = part(c, gates, 1, m), n = part(c, gates, 2, m),
               ghn = part(c, gates, 3, m);
  ax_arg dr = { 0 }, dz = { 0 }, dn = { 0 }, extra = { 0 };

  if (c->g[0]) {
    dz = mul(c, G, sub(c, h, n));
    dn = mul(c, G, sub(c, NUM(1), z));
  }
  if (c->g[1]) { /* made of the gates, as above */
    const ax_arg more = { .t = c->g[1] };
    dr = part(c, more, 0, m);
    dz = plus(c, dz, part(c, more, 1, m));
    dn = plus(c, dn, part(c, more, 2, m));
    extra = part(c, more, 3, m);
  }
  dn = through_tanh(c, dn, n);
  dr = through_sigmoid(c, plus(c, dr, mul(c, dn, ghn)), r);
  dz = through_sigmoid(c, dz, z);
  give(c, 0, joined(c, 3, (ax_arg[]){ dr, dz, dn }, m->ndim - 1));
  give(c, 1, joined(c, 3, (ax_arg[]){ dr, dz, plus(c, mul(c, dn, r), extra) }, m->ndim - 1));
  if (WANTS(2) && c->g[0]) give(c, 2, mul(c, G, z));
}

RULE(gru_gates)
{
  ax_arg d[3];
  if (c->create_graph || c->g[1]) {
    gru_gates_by_rows(c);
    return;
  }
  call_all(c, AX_OP_GRU_GATES_BACKWARD, 3, (ax_tensor *[]){ c->g[0], OUT(1).t, IN(2).t }, NULL, 3, d);
  give(c, 0, d[0]);
  give(c, 1, d[1]);
  if (WANTS(2)) give(c, 2, d[2]);
}

/* d w_hh = (gradient of the gates)^T (h before each step): one product over all steps.  `before` is
 * made ahead of the fused row, whose name a second gradient then meets first. */
static ax_arg states_before(ax_grad *c, ax_tensor *y, ax_tensor *h, ax_tensor *sizes, int64_t reverse)
{
  ax_arg before = { 0 };
  if (WANTS(1))
    call_all(c, AX_OP_RNN_BEFORE, 3, (ax_tensor *[]){ y, h, sizes },
             &AX_ATTRS(rnn_before, .reverse = reverse), 1, &before);
  return before;
}

static ax_arg as_rows(ax_grad *c, ax_arg x)
{
  if (c->st != AX_OK || x.t->ndim == 2) return x;
  return with_list(c, AX_OP_RESHAPE, x, 2, (int64_t[]){ x.t->shape[0] * x.t->shape[1], x.t->shape[2] });
}

static void give_recurrent_weight(ax_grad *c, ax_arg dg, ax_arg before)
{
  if (!before.t || c->st != AX_OK) return;
  const ax_arg columns = transpose(c, as_rows(c, dg), 0, 1), states = as_rows(c, before);
  if (c->st == AX_OK) give_product(c, 1, columns, states);
}

static ax_tensor *sizes_in(ax_grad *c, int k) { return c->node->n_in > k ? c->in[k] : NULL; }

RULE(lstm_layer)
{
  ax_tensor *sizes = sizes_in(c, 4);
  const ax_arg before = states_before(c, OUT(0).t, IN(2).t, sizes, A->lstm_layer.reverse);
  ax_arg d[3];

  call_all(c, AX_OP_LSTM_LAYER_BACKWARD, 6,
           (ax_tensor *[]){ c->g[0], c->g[1], OUT(2).t, IN(3).t, IN(1).t, sizes },
           &AX_ATTRS(lstm_layer_backward, .reverse = A->lstm_layer.reverse), 3, d);
  give(c, 0, d[0]);
  give_recurrent_weight(c, d[0], before);
  if (WANTS(2)) give(c, 2, d[1]);
  if (WANTS(3)) give(c, 3, d[2]);
}

RULE(gru_layer)
{
  ax_tensor *sizes = sizes_in(c, 4);
  const ax_arg before = states_before(c, OUT(0).t, IN(3).t, sizes, A->gru_layer.reverse);
  ax_arg d[3];

  call_all(c, AX_OP_GRU_LAYER_BACKWARD, 6,
           (ax_tensor *[]){ c->g[0], OUT(1).t, OUT(0).t, IN(3).t, IN(1).t, sizes },
           &AX_ATTRS(gru_layer_backward, .reverse = A->gru_layer.reverse), 3, d);
  give(c, 0, d[0]);
  give_recurrent_weight(c, d[1], before);
  if (c->st == AX_OK && WANTS(2)) give_row_sum(c, 2, as_rows(c, d[1]));
  if (WANTS(3)) give(c, 3, d[2]);
}

RULE(rnn_layer)
{
  ax_tensor *sizes = sizes_in(c, 3);
  const ax_arg before = states_before(c, OUT(0).t, IN(2).t, sizes, A->rnn_layer.reverse);
  ax_arg d[2];

  call_all(c, AX_OP_RNN_LAYER_BACKWARD, 5, (ax_tensor *[]){ c->g[0], OUT(0).t, IN(1).t, IN(2).t, sizes },
           &AX_ATTRS(rnn_layer_backward, .nonlinearity = A->rnn_layer.nonlinearity,
                     .reverse = A->rnn_layer.reverse),
           2, d);
  give(c, 0, d[0]);
  give_recurrent_weight(c, d[0], before);
  if (WANTS(2)) give(c, 2, d[1]);
}

/* Gradients of recurrent cells and layers.
 *
 * Fused rows compute them. Under create_graph, and for the gradient of what was made of a cell's or
 * a layer's saved gates, they are built from plain rows, step by step, so that they can be
 * differentiated again. */
#include "core/ops/rnn_steps.h"
#include "core/ops/rule.h"

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

static ax_arg joined(ax_grad *c, int n, const ax_arg *parts, int dim)
{
  return call(c, AX_OP_CAT, n, parts, &AX_ATTRS(cat, .dim = dim));
}

static ax_arg zeros_like(ax_grad *c, ax_arg x)
{
  ax_tensor *t = NULL;
  if (c->st != AX_OK) return (ax_arg){ 0 };
  ax_status st = ax_tensor_new_on(x.t->device, (ax_dtype)x.t->dtype, x.t->ndim, x.t->shape, &t);
  if (st == AX_OK) st = ax_fill(t, 0);
  return keep(c, st, t);
}

/* Cuts the last dim of x, (.., n H), into n pieces; pieces of nothing are nothing. */
static void pieces(ax_grad *c, ax_arg x, int n, ax_arg *to)
{
  for (int k = 0; k < n; k++) {
    to[k] = (ax_arg){ 0 };
    if (!x.t || c->st != AX_OK) continue;
    const int last = x.t->ndim - 1;
    const int64_t width = x.t->shape[last] / n;
    to[k] = narrow(c, x, last, k * width, width);
  }
}

/* One step of an LSTM, back: c1 = f c0 + i g, h = o tanh(c1).  gates: i, f, g, o side by side; dh
 * and dc: the gradients of h and c1; extra: that of the gates themselves.  Any of the three may be
 * nothing.  *dgates is the gradient of the arguments of the gates. */
static void lstm_step_back(ax_grad *c, ax_arg gates, ax_arg c0, ax_arg c1, ax_arg dh, ax_arg dc, ax_arg extra,
                           ax_arg *dgates, ax_arg *dc0)
{
  ax_arg y[AX_LSTM_GATES], more[AX_LSTM_GATES], d[AX_LSTM_GATES] = { 0 };

  *dgates = *dc0 = (ax_arg){ 0 };
  if (c->st != AX_OK) return;
  const ax_arg t = dh.t ? un(c, AX_OP_TANH, c1) : (ax_arg){ 0 };
  pieces(c, gates, AX_LSTM_GATES, y);
  pieces(c, extra, AX_LSTM_GATES, more);
  if (dh.t) {
    dc = plus(c, dc, through_tanh(c, mul(c, dh, y[AX_LSTM_O]), t));
    d[AX_LSTM_O] = mul(c, dh, t);
  }
  if (!dc.t) dc = zeros_like(c, c1); /* only the gates themselves have a gradient */
  d[AX_LSTM_I] = mul(c, dc, y[AX_LSTM_G]);
  d[AX_LSTM_F] = mul(c, dc, c0);
  d[AX_LSTM_G] = mul(c, dc, y[AX_LSTM_I]);
  for (int k = 0; k < AX_LSTM_GATES && c->st == AX_OK; k++) {
    d[k] = plus(c, d[k], more[k]);
    if (!d[k].t) d[k] = zeros_like(c, c1);
    d[k] = k == AX_LSTM_G ? through_tanh(c, d[k], y[k]) : through_sigmoid(c, d[k], y[k]);
  }
  *dgates = joined(c, AX_LSTM_GATES, d, gates.t->ndim - 1);
  *dc0 = mul(c, dc, y[AX_LSTM_F]);
}

static void lstm_gates_by_rows(ax_grad *c)
{
  ax_arg dgates, dc0;
  const ax_arg gates = OUT(2), c0 = IN(2), c1 = OUT(1);
  if (c->st != AX_OK) return;
  lstm_step_back(c, gates, c0, c1, (ax_arg){ .t = c->g[0] }, (ax_arg){ .t = c->g[1] },
                 (ax_arg){ .t = c->g[2] }, &dgates, &dc0);
  give(c, 0, dgates);
  give(c, 1, dgates);
  if (WANTS(2)) give(c, 2, dc0);
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

/* One step of a GRU, back: h1 = (1 - z) n + z h, n = tanh(gx_n + r gh_n).  gates: r, z, n and gh_n;
 * dh: the gradient of h1; extra: that of the gates themselves.  Either may be nothing.  *dgx and
 * *dgh are the gradients of gx and gh; *dh0 that of h but for its way through gh, or nothing. */
static void gru_step_back(ax_grad *c, ax_arg gates, ax_arg h, ax_arg dh, ax_arg extra, ax_arg *dgx,
                          ax_arg *dgh, ax_arg *dh0)
{
  ax_arg y[AX_GRU_SAVED], more[AX_GRU_SAVED], dz = { 0 }, dn = { 0 };

  *dgx = *dgh = *dh0 = (ax_arg){ 0 };
  if (c->st != AX_OK) return;
  const int last = gates.t->ndim - 1;
  pieces(c, gates, AX_GRU_SAVED, y);
  pieces(c, extra, AX_GRU_SAVED, more);
  if (dh.t) {
    dz = mul(c, dh, sub(c, h, y[AX_GRU_N]));
    dn = mul(c, dh, sub(c, NUM(1), y[AX_GRU_Z]));
  }
  dz = plus(c, dz, more[AX_GRU_Z]);
  dn = plus(c, dn, more[AX_GRU_N]);
  if (!dn.t) dz = dn = zeros_like(c, h);
  dn = through_tanh(c, dn, y[AX_GRU_N]);
  const ax_arg dr = through_sigmoid(c, plus(c, more[AX_GRU_R], mul(c, dn, y[AX_GRU_M])), y[AX_GRU_R]);
  dz = through_sigmoid(c, dz, y[AX_GRU_Z]);
  const ax_arg dm = plus(c, mul(c, dn, y[AX_GRU_R]), more[AX_GRU_M]);
  *dgx = joined(c, 3, (ax_arg[]){ dr, dz, dn }, last);
  *dgh = joined(c, 3, (ax_arg[]){ dr, dz, dm }, last);
  *dh0 = dh.t ? mul(c, dh, y[AX_GRU_Z]) : (ax_arg){ 0 };
}

static void gru_gates_by_rows(ax_grad *c)
{
  ax_arg dgx, dgh, dh;
  const ax_arg gates = OUT(1), h = IN(2);
  if (c->st != AX_OK) return;
  gru_step_back(c, gates, h, G, (ax_arg){ .t = c->g[1] }, &dgx, &dgh, &dh);
  give(c, 0, dgx);
  give(c, 1, dgh);
  if (WANTS(2)) give(c, 2, dh);
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

/* d w_hh = (gradient of the gates)^T (h before each step): one product over all steps. */
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

/* ---- layers from plain rows */

/* A walk from the last step to the first.  What a step leaves to the one before it in time is held
 * here, since the rows in between are dropped after each step: a rule has little room. */
typedef struct walk_back {
  ax_rnn_sequence s;
  ax_rnn_walk k;
  ax_tensor *sizes;       /* batch_sizes in host memory, or NULL */
  ax_tensor *dh, *dc;     /* of the first rows of the state */
  ax_tensor **dx, **dhid; /* for each step: the gradients of gx and, for a GRU, of gh */
  ax_tensor **before;     /* for each step: h at its beginning */
  ax_tensor **all;        /* the memory of the three */
} walk_back;

static ax_status begin_back(ax_grad *c, walk_back *w, ax_tensor *y, ax_tensor *h, ax_tensor *sizes,
                            bool reverse)
{
  ax_tensor *here = NULL;
  ax_status st = AX_OK;

  *w = (walk_back){ .k = { .t = -1 } };
  if (ax_is_half((ax_dtype)y->dtype))
    return ax_fail(AX_EGRAD,
                   "%s: its gradient cannot be differentiated again in %s; call the layer with x:float()",
                   ax_ops[c->node->op].name, ax_dtype_name((ax_dtype)y->dtype));
  if (sizes) {
    AX_TRY(bring(sizes, (ax_device){ AX_CPU, 0 }, &here));
    AX_TRY(ax_contiguous(here, &w->sizes));
  }
  w->s = (ax_rnn_sequence){ .steps = sizes ? sizes->shape[0] : y->shape[0],
                            .rows = sizes ? y->shape[0] : y->shape[0] * y->shape[1],
                            .batch = h->shape[0],
                            .hidden = h->shape[1],
                            .sizes = w->sizes ? ax_data(w->sizes) : NULL,
                            .reverse = reverse };
  w->all = ax_calloc((size_t)(3 * w->s.steps), sizeof *w->all);
  if (!w->all) AX_TRY(AX_ENOMEM);
  w->dx = w->all;
  w->dhid = w->all + w->s.steps;
  w->before = w->all + 2 * w->s.steps;
out:
  ax_tensor_release(here);
  return st;
}

static void end_back(walk_back *w)
{
  for (int64_t i = 0; w->all && i < 3 * w->s.steps; i++) ax_tensor_release(w->all[i]);
  ax_mfree(w->all);
  ax_tensor_release(w->dh), ax_tensor_release(w->dc), ax_tensor_release(w->sizes);
}

/* Keeps x beyond its step. */
static void hold(ax_grad *c, ax_tensor **at, ax_arg x)
{
  ax_tensor *former = *at;
  if (c->st != AX_OK) return;
  *at = x.t ? ax_tensor_retain(x.t) : NULL;
  ax_tensor_release(former);
}

static void drop_to(ax_grad *c, int n_temps)
{
  while (c->n_temps > n_temps) ax_tensor_release(c->temps[--c->n_temps]);
}

/* The rows of step k of x, (rows, ..); nothing of nothing. */
static ax_arg rows_of(ax_grad *c, const ax_rnn_walk *k, ax_arg x)
{
  return x.t && c->st == AX_OK ? narrow(c, x, 0, k->at, k->n) : (ax_arg){ 0 };
}

/* The state at the beginning of step k: of the rows `all` of the step before, or `first`. */
static ax_arg state_before(ax_grad *c, const ax_rnn_walk *k, ax_arg all, ax_arg first)
{
  return narrow(c, k->former < 0 ? first : all, 0, k->former < 0 ? 0 : k->former, k->n);
}

/* The gradient of step k's state that later steps left, with that of the sequences that end here:
 * rows of `ends`, or zeros where it is nothing. */
static ax_arg from_later(ax_grad *c, const ax_rnn_walk *k, ax_tensor *later, ax_arg ends)
{
  const int64_t there = later ? later->shape[0] : 0;
  if (c->st != AX_OK || (!there && !ends.t)) return (ax_arg){ 0 };
  if (there == k->n) return (ax_arg){ .t = later };
  ax_arg rest;
  if (ends.t) rest = narrow(c, ends, 0, there, k->n - there);
  else {
    const ax_arg some = narrow(c, (ax_arg){ .t = later }, 0, 0, 1);
    rest = with_list(c, AX_OP_EXPAND, zeros_like(c, some), 2, (int64_t[]){ k->n - there, later->shape[1] });
  }
  return there ? joined(c, 2, (ax_arg[]){ { .t = later }, rest }, 0) : rest;
}

/* The parts of all steps as one tensor, (rows, ..). */
static ax_arg all_rows(ax_grad *c, const walk_back *w, ax_tensor **parts)
{
  ax_tensor *made[AX_MAX_OUT] = { 0 };
  if (c->st != AX_OK) return (ax_arg){ 0 };
  const ax_status st =
      ax_run(AX_OP_CAT, &(ax_args){ .n_in = (int)w->s.steps, .in = parts, .a = AX_ATTRS(cat, .dim = 0) },
             made);
  return keep(c, st, made[0]);
}

/* What all layers give: gx, the recurrent weight, and the first h. */
static void give_layer(ax_grad *c, const walk_back *w, ax_arg dgh, int h)
{
  const ax_arg dgx = all_rows(c, w, w->dx);
  if (WANTS(0) && c->st == AX_OK) {
    const ax_meta *m = META(0);
    give(c, 0, with_list(c, AX_OP_RESHAPE, dgx, m->ndim, m->shape));
  }
  if (!dgh.t) dgh = dgx;
  if (WANTS(1)) give_recurrent_weight(c, dgh, all_rows(c, w, w->before));
  if (WANTS(h)) give(c, h, (ax_arg){ .t = w->dh });
}

static void lstm_layer_by_rows(ax_grad *c, ax_tensor *sizes)
{
  walk_back w;
  ax_arg gates[2] = { OUT(2) }, extra[2] = { { .t = c->g[2] } };
  const ax_arg weight = IN(1), h0 = IN(2), c0 = IN(3), y = as_rows(c, OUT(0)), gc = { .t = c->g[1] };
  const ax_arg gy = c->g[0] ? as_rows(c, G) : (ax_arg){ 0 };

  if (c->st == AX_OK) c->st = begin_back(c, &w, OUT(0).t, h0.t, sizes, A->lstm_layer.reverse);
  else return;
  /* saved, and its gradient: the gates of all rows, then c of all rows */
  ax_arg *const both[2] = { gates, extra };
  for (int i = 0; i < 2; i++) {
    const int64_t rows = w.s.rows, wide = AX_LSTM_GATES * w.s.hidden;
    if (!both[i]->t || c->st != AX_OK) continue;
    const ax_arg line = with_list(c, AX_OP_RESHAPE, both[i][0], 1, (int64_t[]){ rows * (wide + w.s.hidden) });
    both[i][0] = with_list(c, AX_OP_VIEW, narrow(c, line, 0, 0, rows * wide), 2, (int64_t[]){ rows, wide });
    both[i][1] = with_list(c, AX_OP_VIEW, narrow(c, line, 0, rows * wide, rows * w.s.hidden), 2,
                           (int64_t[]){ rows, w.s.hidden });
  }
  const int mark = c->n_temps;
  while (c->st == AX_OK && ax_rnn_next(&w.s, true, &w.k)) {
    ax_arg dgates, dc;
    const ax_arg dh = plus(c, rows_of(c, &w.k, gy), from_later(c, &w.k, w.dh, (ax_arg){ 0 }));
    dc = plus(c, from_later(c, &w.k, w.dc, gc), rows_of(c, &w.k, extra[1]));
    lstm_step_back(c, rows_of(c, &w.k, gates[0]), state_before(c, &w.k, gates[1], c0),
                   rows_of(c, &w.k, gates[1]), dh, dc, rows_of(c, &w.k, extra[0]), &dgates, &dc);
    hold(c, &w.dx[w.k.t], dgates);
    hold(c, &w.before[w.k.t], state_before(c, &w.k, y, h0));
    hold(c, &w.dh, bin(c, AX_OP_MM, dgates, weight));
    hold(c, &w.dc, dc);
    drop_to(c, mark);
  }
  give_layer(c, &w, (ax_arg){ 0 }, 2);
  if (WANTS(3)) give(c, 3, (ax_arg){ .t = w.dc });
  end_back(&w);
}

static void gru_layer_by_rows(ax_grad *c, ax_tensor *sizes)
{
  walk_back w;
  const ax_arg weight = IN(1), h0 = IN(3), y = as_rows(c, OUT(0)), gates = as_rows(c, OUT(1));
  const ax_arg gy = c->g[0] ? as_rows(c, G) : (ax_arg){ 0 };
  const ax_arg extra = c->g[1] ? as_rows(c, (ax_arg){ .t = c->g[1] }) : (ax_arg){ 0 };

  if (c->st == AX_OK) c->st = begin_back(c, &w, OUT(0).t, h0.t, sizes, A->gru_layer.reverse);
  else return;
  const int mark = c->n_temps;
  while (c->st == AX_OK && ax_rnn_next(&w.s, true, &w.k)) {
    ax_arg dgx, dgh, direct;
    const ax_arg dh = plus(c, rows_of(c, &w.k, gy), from_later(c, &w.k, w.dh, (ax_arg){ 0 }));
    const ax_arg before = state_before(c, &w.k, y, h0);
    gru_step_back(c, rows_of(c, &w.k, gates), before, dh, rows_of(c, &w.k, extra), &dgx, &dgh, &direct);
    hold(c, &w.dx[w.k.t], dgx);
    hold(c, &w.dhid[w.k.t], dgh);
    hold(c, &w.before[w.k.t], before);
    hold(c, &w.dh, plus(c, direct, bin(c, AX_OP_MM, dgh, weight)));
    drop_to(c, mark);
  }
  const ax_arg dgh = all_rows(c, &w, w.dhid);
  give_layer(c, &w, dgh, 3);
  if (c->st == AX_OK && WANTS(2)) give_row_sum(c, 2, dgh);
  end_back(&w);
}

static void rnn_layer_by_rows(ax_grad *c, ax_tensor *sizes)
{
  walk_back w;
  const ax_arg weight = IN(1), h0 = IN(2), y = as_rows(c, OUT(0)), gy = as_rows(c, G);
  const ax_op back = A->rnn_layer.nonlinearity ? AX_OP_RELU_BACKWARD : AX_OP_TANH_BACKWARD;

  if (c->st == AX_OK) c->st = begin_back(c, &w, OUT(0).t, h0.t, sizes, A->rnn_layer.reverse);
  else return;
  const int mark = c->n_temps;
  while (c->st == AX_OK && ax_rnn_next(&w.s, true, &w.k)) {
    const ax_arg dh = plus(c, rows_of(c, &w.k, gy), from_later(c, &w.k, w.dh, (ax_arg){ 0 }));
    const ax_arg dg = bin(c, back, dh, rows_of(c, &w.k, y));
    hold(c, &w.dx[w.k.t], dg);
    hold(c, &w.before[w.k.t], state_before(c, &w.k, y, h0));
    hold(c, &w.dh, bin(c, AX_OP_MM, dg, weight));
    drop_to(c, mark);
  }
  give_layer(c, &w, (ax_arg){ 0 }, 2);
  end_back(&w);
}

/* ---- layers */

RULE(lstm_layer)
{
  ax_tensor *sizes = sizes_in(c, 4);
  if (c->create_graph || c->g[2]) {
    lstm_layer_by_rows(c, sizes);
    return;
  }
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
  if (c->create_graph || c->g[1]) {
    gru_layer_by_rows(c, sizes);
    return;
  }
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
  if (c->create_graph) {
    rnn_layer_by_rows(c, sizes);
    return;
  }
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

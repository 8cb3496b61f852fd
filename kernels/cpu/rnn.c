/* Recurrent cells and layers.  A layer is a loop over time: one product of the state with the
 * recurrent weight, which bounds it, and one pointwise pass over the step's gates, whose rows
 * threads share.  Half types are converted once and computed in float32.
 *
 * Step t of a packed batch has sizes[t] sequences, a falling number.  Its rows follow those of the
 * steps before; the first rows of the state belong to the sequences that go on. */
#include "gemm.h"

#include "rnn_rows.h"

#include "rnn_weight.h"

#include <string.h>

/* ---- operands: in place, or converted to the type computed in */

typedef struct operand {
  const ax_tensor *t;
  void *data;
  size_t bytes;
  bool result;
} operand;
typedef struct job {
  ax_dtype dtype; /* the type computed in */
  operand list[12];
  int n;
  ax_status st;
} job;

static void *open_operand(job *j, const ax_tensor *t, bool result)
{
  operand *o = &j->list[j->n];
  if (!t || j->st != AX_OK) return NULL;
  if (!ax_is_half((ax_dtype)t->dtype)) return ax_data(t);
  *o = (operand){ .t = t, .bytes = (size_t)t->numel * sizeof(float), .result = result };
  if ((j->st = ax_alloc(o->bytes, &o->data)) != AX_OK) return NULL;
  j->n++;
  if (!result) ax_cpu_half_to_float((ax_dtype)t->dtype, ax_data(t), 2, o->data, t->numel);
  return o->data;
}

static const void *read_from(job *j, const ax_tensor *t) { return open_operand(j, t, false); }
static void *write_to(job *j, const ax_tensor *t) { return open_operand(j, t, true); }

/* Whether products of bfloat16 can take the state and the weight as they are and add in float32, so
 * that only pointwise parts are converted.  Elsewhere, and for float16, everything is converted,
 * weights once for all steps. */
static bool can_multiply(const ax_tensor *w)
{
  static _Thread_local int known = -1; /* found once, with a product of a moderate size */
  if (w->dtype != AX_BF16) return false;
  if (known < 0) {
    static const uint16_t a[32 * 32], b[32 * 32];
    float c[32 * 32];
    const ax_gemm g = { .dtype = AX_BF16,
                        .batch = 1,
                        .m = 32,
                        .n = 32,
                        .k = 32,
                        .a = { 0, 32, 1 },
                        .b = { 0, 1, 32 },
                        .c = { 0, 32 },
                        .wide = 1 };
    bool done = false;
    known = ax_dnnl_gemm(&g, a, b, NULL, c, &done) == AX_OK && done;
  }
  return known;
}

static void *scratch(job *j, int64_t n)
{
  operand *o = &j->list[j->n];
  if (j->st != AX_OK) return NULL;
  *o = (operand){ .bytes = (size_t)n * ax_dtype_size(j->dtype) };
  if ((j->st = ax_alloc(o->bytes, &o->data)) != AX_OK) return NULL;
  j->n++;
  return o->data;
}

/* Rounds converted results and frees what was opened. */
static ax_status finish(job *j)
{
  for (int k = 0; k < j->n; k++) {
    operand *o = &j->list[k];
    if (o->result && j->st == AX_OK)
      ax_cpu_float_to_half((ax_dtype)o->t->dtype, o->data, ax_data(o->t), 2, o->t->numel);
    ax_free(o->data, o->bytes);
  }
  return j->st;
}

static job begin(const ax_tensor *t) { return (job){ .dtype = t->dtype == AX_F64 ? AX_F64 : AX_F32 }; }

/* ---- cells */

ax_status ax_cpu__lstm_gates(const ax_call *call)
{
  const ax_tensor *c0 = call->in[2];
  const int64_t hidden = c0->shape[c0->ndim - 1];
  job j = begin(c0);
  cells p = { .hidden = hidden,
              .gx = read_from(&j, call->in[0]),
              .gh = read_from(&j, call->in[1]),
              .before = read_from(&j, c0),
              .h = write_to(&j, call->out[0]),
              .state = write_to(&j, call->out[1]),
              .gates = write_to(&j, call->out[2]) };
  if (j.st == AX_OK && c0->numel) run_rows(j.dtype, LSTM, c0->numel / hidden, &p);
  return finish(&j);
}

/* Copies gradients from outside to where the loops expect the gradient from the next step. */
static void copy_or_zero(job *j, void *to, const void *from, int64_t n)
{
  if (j->st != AX_OK || n == 0) return;
  const size_t bytes = (size_t)n * ax_dtype_size(j->dtype);
  if (from) memcpy(to, from, bytes);
  else memset(to, 0, bytes);
}

ax_status ax_cpu__lstm_gates_backward(const ax_call *call)
{
  const ax_tensor *c0 = call->in[3];
  const int64_t hidden = c0->shape[c0->ndim - 1];
  job j = begin(c0);
  const void *gh = read_from(&j, call->in[0]), *gc = read_from(&j, call->in[1]);
  cells p = { .hidden = hidden,
              .gates = (void *)read_from(&j, call->in[2]),
              .before = read_from(&j, c0),
              .now = read_from(&j, call->in[4]),
              .dgx = write_to(&j, call->out[0]),
              .dc = write_to(&j, call->out[1]) };
  p.dh = gh ? (void *)gh : scratch(&j, c0->numel);
  if (!gh) copy_or_zero(&j, p.dh, NULL, c0->numel);
  copy_or_zero(&j, p.dc, gc, c0->numel);
  if (j.st == AX_OK && c0->numel) run_rows(j.dtype, LSTM_BACK, c0->numel / hidden, &p);
  return finish(&j);
}

ax_status ax_cpu__gru_gates(const ax_call *call)
{
  const ax_tensor *h0 = call->in[2];
  const int64_t hidden = h0->shape[h0->ndim - 1];
  job j = begin(h0);
  cells p = { .hidden = hidden,
              .gx = read_from(&j, call->in[0]),
              .gh = read_from(&j, call->in[1]),
              .before = read_from(&j, h0),
              .h = write_to(&j, call->out[0]),
              .gates = write_to(&j, call->out[1]) };
  if (j.st == AX_OK && h0->numel) run_rows(j.dtype, GRU, h0->numel / hidden, &p);
  return finish(&j);
}

ax_status ax_cpu__gru_gates_backward(const ax_call *call)
{
  const ax_tensor *h0 = call->in[2];
  const int64_t hidden = h0->shape[h0->ndim - 1];
  job j = begin(h0);
  const void *g = read_from(&j, call->in[0]);
  cells p = { .hidden = hidden,
              .gates = (void *)read_from(&j, call->in[1]),
              .before = read_from(&j, h0),
              .dgx = write_to(&j, call->out[0]),
              .dgh = write_to(&j, call->out[1]),
              .dh = write_to(&j, call->out[2]) };
  copy_or_zero(&j, p.dh, g, h0->numel);
  if (j.st == AX_OK && h0->numel) run_rows(j.dtype, GRU_BACK, h0->numel / hidden, &p);
  return finish(&j);
}

/* ---- layers */

typedef ax_rnn_sequence sequence;
typedef ax_rnn_walk walk;

static ax_status begin_sequence(const ax_call *call, const ax_tensor *x, const ax_tensor *w,
                                const ax_tensor *h, const ax_tensor *sizes, bool reverse, sequence *s)
{
  return ax_rnn_begin(call, x, w, h, sizes ? ax_data(sizes) : NULL, sizes ? sizes->shape[0] : 0, reverse, s);
}

#define AT(p, row, width) ((char *)(p) + size * (row) * (width))

/* One sequence: for one row times w^T, oneDNN takes three times as long as reading w. */
typedef struct one_sequence {
  int64_t hidden;
  const void *h, *w, *bias;
  void *to;
} one_sequence;
#define ONE(S, T) \
  static void one_##S(int64_t lo, int64_t hi, void *ud) \
  { \
    const one_sequence *v = ud; \
    const T *h = v->h; \
    for (int64_t r = lo; r < hi; r++) { \
      const T *w = (const T *)v->w + r * v->hidden; \
      T sum = 0; \
      _Pragma("omp simd reduction(+:sum)") for (int64_t k = 0; k < v->hidden; k++) sum += w[k] * h[k]; \
      ((T *)v->to)[r] = sum + (v->bias ? ((const T *)v->bias)[r] : 0); \
    } \
  }
ONE(f32, float)
ONE(f64, double)

/* The operands of a product of the state with the weight, or of a step's gradients: converted, or
 * the tensors themselves.  In the latter case results that products read are rounded at every step,
 * and not again at the end. */
typedef struct factors {
  ax_dtype dtype;
  int64_t size;
  const char *weight, *first;
  char *rounded;
  weight w; /* packed, where that pays */
} factors;

/* to (n, gates) = h (n, H) w^T + bias */
static ax_status times_weight(const sequence *s, const factors *f, int64_t n, const void *h, const void *bias,
                              void *to)
{
  const ax_dtype d = f->dtype;
  if (n == 1 && d != AX_BF16) {
    one_sequence v = { s->hidden, h, f->weight, bias, to };
    ax_cpu_for(s->gates, s->gates * s->hidden / 4, d == AX_F64 ? one_f64 : one_f32, &v);
    return AX_OK;
  }
  if (f->w.packed) return weigh(&f->w, n, h, bias, false, to), AX_OK;
  const ax_gemm g = { .dtype = d,
                      .batch = 1,
                      .m = n,
                      .n = s->gates,
                      .k = s->hidden,
                      .a = { 0, s->hidden, 1 },
                      .b = { 0, 1, s->hidden },
                      .c = { 0, s->gates },
                      .bias = bias != NULL,
                      .wide = d == AX_BF16,
                      .wide_bias = bias && d == AX_BF16 };
  return ax_cpu_product(&g, h, f->weight, bias, to);
}

/* to (n, H) = dg (n, gates) w, or to += dg w */
static ax_status times_transposed(const sequence *s, const factors *f, int64_t n, const void *dg, bool add,
                                  void *to)
{
  const ax_dtype d = f->dtype;
  if (f->w.packed) return weigh(&f->w, n, dg, NULL, add, to), AX_OK;
  const ax_gemm g = { .dtype = d,
                      .batch = 1,
                      .m = n,
                      .n = s->hidden,
                      .k = s->gates,
                      .a = { 0, s->gates, 1 },
                      .b = { 0, s->hidden, 1 },
                      .c = { 0, s->hidden },
                      .accumulate = add,
                      .wide = d == AX_BF16 };
  return ax_cpu_product(&g, dg, f->weight, NULL, to);
}

/* forward: the weight is used transposed. */
static factors factors_of(job *j, const sequence *s, const ax_tensor *w, const ax_tensor *first,
                          const ax_tensor *result)
{
  const bool forward = first != NULL;
  factors f = { .dtype = j->dtype, .size = (int64_t)ax_dtype_size(j->dtype) };
  if (!can_multiply(w)) {
    f.weight = read_from(j, w);
    if (f.dtype != AX_F32 || s->batch < WEIGHT_LEAST || s->batch > WEIGHT_ROWS || s->steps < WEIGHT_STEPS)
      return f;
    f.w = (weight){ .from = (const float *)f.weight,
                    .k = forward ? s->hidden : s->gates,
                    .n = forward ? s->gates : s->hidden,
                    .row = forward ? 1 : s->hidden,
                    .col = forward ? s->hidden : 1 };
    f.w.packed = scratch(j, weight_groups(f.w.n) * WEIGHT_COLS * f.w.k);
    if (f.w.packed) pack_weight(&f.w);
    return f;
  }
  f = (factors){ .dtype = AX_BF16,
                 .size = 2,
                 .weight = ax_data(w),
                 .first = first ? ax_data(first) : NULL,
                 .rounded = ax_data(result) };
  for (int k = 0; k < j->n; k++)
    if (j->list[k].t == result) j->list[k].result = false;
  return f;
}

/* Rounds the rows of a step to where a product reads them, row `at` of `width`.  Returns the
 * product's operand: the rows themselves where nothing is rounded. */
static const void *rounded(const factors *f, const void *rows, int64_t at, int64_t n, int64_t width)
{
  if (!f->rounded) return rows;
  ax_cpu_float_to_half(AX_BF16, rows, f->rounded + at * width * 2, 2, n * width);
  return f->rounded + at * width * 2;
}

/* The state at the beginning of a step, as its product reads it. */
static const void *state_for(const factors *f, const walk *k, const void *first, const void *y, int64_t width)
{
  if (f->rounded) return k->former < 0 ? f->first : f->rounded + k->former * width * 2;
  return k->former < 0 ? (const char *)first : (const char *)y + k->former * width * f->size;
}

static const ax_tensor *sizes_of(const ax_call *call, int k) { return call->n_in > k ? call->in[k] : NULL; }

ax_status ax_cpu_lstm_layer(const ax_call *call)
{
  const ax_tensor *gx = call->in[0], *w = call->in[1], *h0 = call->in[2], *last = call->out[1];
  const int64_t H = w->shape[1];
  sequence s;
  walk k = { .t = -1 };
  job j = begin(gx);
  const int64_t size = (int64_t)ax_dtype_size(j.dtype);

  if ((j.st = begin_sequence(call, gx, w, h0, sizes_of(call, 4), call->a->lstm_layer.reverse, &s)) != AX_OK)
    return j.st;
  const void *x = read_from(&j, gx), *h = read_from(&j, h0), *c = read_from(&j, call->in[3]);
  void *y = write_to(&j, call->out[0]), *c_last = write_to(&j, last), *gates = write_to(&j, call->out[2]);
  const factors f = factors_of(&j, &s, w, h0, call->out[0]);
  if (j.st != AX_OK) return finish(&j);
  void *all_c = AT(gates, s.rows, AX_LSTM_GATES * H);
  while (j.st == AX_OK && ax_rnn_next(&s, false, &k)) {
    cells p = { .hidden = H,
                .gx = AT(x, k.at, AX_LSTM_GATES * H),
                .gates = AT(gates, k.at, AX_LSTM_GATES * H),
                .before = k.former < 0 ? c : AT(all_c, k.former, H),
                .state = AT(all_c, k.at, H),
                .h = AT(y, k.at, H) };
    p.gh = p.gates;
    if ((j.st = times_weight(&s, &f, k.n, state_for(&f, &k, h, y, H), NULL, p.gates)) != AX_OK) break;
    run_rows(j.dtype, LSTM, k.n, &p);
    rounded(&f, p.h, k.at, k.n, H);
    /* packed: only sequences that go on are copied, so each row keeps its last state */
    if (s.sizes || k.t == (s.reverse ? 0 : s.steps - 1)) memcpy(c_last, p.state, (size_t)(k.n * H * size));
  }
  return finish(&j);
}

ax_status ax_cpu__lstm_layer_backward(const ax_call *call)
{
  const ax_tensor *c0 = call->in[3], *w = call->in[4];
  const int64_t H = w->shape[1];
  sequence s;
  walk k = { .t = -1 };
  job j = begin(w);
  const int64_t size = (int64_t)ax_dtype_size(j.dtype);

  if ((j.st = begin_sequence(call, call->out[0], w, c0, call->in[5], call->a->lstm_layer_backward.reverse,
                             &s)) != AX_OK)
    return j.st;
  const void *gy = read_from(&j, call->in[0]), *gc = read_from(&j, call->in[1]),
             *gates = read_from(&j, call->in[2]), *c = read_from(&j, c0);
  void *dg = write_to(&j, call->out[0]), *dh = write_to(&j, call->out[1]), *dc = write_to(&j, call->out[2]);
  const factors f = factors_of(&j, &s, w, NULL, call->out[0]);
  copy_or_zero(&j, dc, gc, s.batch * H);
  copy_or_zero(&j, dh, NULL, s.batch * H);
  if (j.st != AX_OK) return finish(&j);
  const void *all_c = AT(gates, s.rows, AX_LSTM_GATES * H);
  while (j.st == AX_OK && ax_rnn_next(&s, true, &k)) {
    cells p = { .hidden = H,
                .gates = AT(gates, k.at, AX_LSTM_GATES * H),
                .before = k.former < 0 ? c : AT(all_c, k.former, H),
                .now = AT(all_c, k.at, H),
                .gy = gy ? AT(gy, k.at, H) : NULL,
                .dh = dh,
                .dc = dc,
                .dgx = AT(dg, k.at, AX_LSTM_GATES * H) };
    run_rows(j.dtype, LSTM_BACK, k.n, &p);
    j.st = times_transposed(&s, &f, k.n, rounded(&f, p.dgx, k.at, k.n, AX_LSTM_GATES * H), false, dh);
  }
  return finish(&j);
}

ax_status ax_cpu_gru_layer(const ax_call *call)
{
  const ax_tensor *gx = call->in[0], *w = call->in[1], *h0 = call->in[3];
  const int64_t H = w->shape[1];
  sequence s;
  walk k = { .t = -1 };
  job j = begin(gx);
  const int64_t size = (int64_t)ax_dtype_size(j.dtype);

  if ((j.st = begin_sequence(call, gx, w, h0, sizes_of(call, 4), call->a->gru_layer.reverse, &s)) != AX_OK)
    return j.st;
  const void *x = read_from(&j, gx), *bias = read_from(&j, call->in[2]), *h = read_from(&j, h0);
  void *y = write_to(&j, call->out[0]), *gates = write_to(&j, call->out[1]),
       *gh = scratch(&j, s.batch * AX_GRU_GATES * H);
  const factors f = factors_of(&j, &s, w, h0, call->out[0]);
  while (j.st == AX_OK && ax_rnn_next(&s, false, &k)) {
    cells p = { .hidden = H,
                .gx = AT(x, k.at, AX_GRU_GATES * H),
                .gh = gh,
                .gates = AT(gates, k.at, AX_GRU_SAVED * H),
                .before = k.former < 0 ? h : AT(y, k.former, H),
                .h = AT(y, k.at, H) };
    if ((j.st = times_weight(&s, &f, k.n, state_for(&f, &k, h, y, H), bias, gh)) != AX_OK) break;
    run_rows(j.dtype, GRU, k.n, &p);
    rounded(&f, p.h, k.at, k.n, H);
  }
  return finish(&j);
}

ax_status ax_cpu__gru_layer_backward(const ax_call *call)
{
  const ax_tensor *h0 = call->in[3], *w = call->in[4];
  const int64_t H = w->shape[1];
  sequence s;
  walk k = { .t = -1 };
  job j = begin(w);
  const int64_t size = (int64_t)ax_dtype_size(j.dtype);

  if ((j.st = begin_sequence(call, call->out[0], w, h0, call->in[5], call->a->gru_layer_backward.reverse,
                             &s)) != AX_OK)
    return j.st;
  const void *gy = read_from(&j, call->in[0]), *gates = read_from(&j, call->in[1]),
             *y = read_from(&j, call->in[2]), *h = read_from(&j, h0);
  void *dgx = write_to(&j, call->out[0]), *dgh = write_to(&j, call->out[1]), *dh = write_to(&j, call->out[2]);
  const factors f = factors_of(&j, &s, w, NULL, call->out[1]);
  copy_or_zero(&j, dh, NULL, s.batch * H);
  while (j.st == AX_OK && ax_rnn_next(&s, true, &k)) {
    cells p = { .hidden = H,
                .gates = AT(gates, k.at, AX_GRU_SAVED * H),
                .before = k.former < 0 ? h : AT(y, k.former, H),
                .gy = AT(gy, k.at, H),
                .dh = dh,
                .dgx = AT(dgx, k.at, AX_GRU_GATES * H),
                .dgh = AT(dgh, k.at, AX_GRU_GATES * H) };
    run_rows(j.dtype, GRU_BACK, k.n, &p);
    j.st = times_transposed(&s, &f, k.n, rounded(&f, p.dgh, k.at, k.n, AX_GRU_GATES * H), true, dh);
  }
  return finish(&j);
}

ax_status ax_cpu_rnn_layer(const ax_call *call)
{
  const ax_tensor *gx = call->in[0], *w = call->in[1], *h0 = call->in[2];
  const int64_t H = w->shape[1];
  sequence s;
  walk k = { .t = -1 };
  job j = begin(gx);
  const int64_t size = (int64_t)ax_dtype_size(j.dtype);

  if ((j.st = begin_sequence(call, gx, w, h0, sizes_of(call, 3), call->a->rnn_layer.reverse, &s)) != AX_OK)
    return j.st;
  const void *x = read_from(&j, gx), *h = read_from(&j, h0);
  void *y = write_to(&j, call->out[0]);
  const factors f = factors_of(&j, &s, w, h0, call->out[0]);
  while (j.st == AX_OK && ax_rnn_next(&s, false, &k)) {
    cells p = {
      .hidden = H, .relu = call->a->rnn_layer.nonlinearity, .gx = AT(x, k.at, H), .h = AT(y, k.at, H)
    };
    if ((j.st = times_weight(&s, &f, k.n, state_for(&f, &k, h, y, H), NULL, p.h)) != AX_OK) break;
    run_rows(j.dtype, RNN, k.n, &p);
    rounded(&f, p.h, k.at, k.n, H);
  }
  return finish(&j);
}

ax_status ax_cpu__rnn_layer_backward(const ax_call *call)
{
  const ax_tensor *h0 = call->in[3], *w = call->in[2];
  const int64_t H = w->shape[1];
  sequence s;
  walk k = { .t = -1 };
  job j = begin(w);
  const int64_t size = (int64_t)ax_dtype_size(j.dtype);

  if ((j.st = begin_sequence(call, call->out[0], w, h0, call->in[4], call->a->rnn_layer_backward.reverse,
                             &s)) != AX_OK)
    return j.st;
  const void *gy = read_from(&j, call->in[0]), *y = read_from(&j, call->in[1]);
  void *dg = write_to(&j, call->out[0]), *dh = write_to(&j, call->out[1]);
  const factors f = factors_of(&j, &s, w, NULL, call->out[0]);
  copy_or_zero(&j, dh, NULL, s.batch * H);
  while (j.st == AX_OK && ax_rnn_next(&s, true, &k)) {
    cells p = { .hidden = H,
                .relu = call->a->rnn_layer_backward.nonlinearity,
                .now = AT(y, k.at, H),
                .gy = AT(gy, k.at, H),
                .dh = dh,
                .dgx = AT(dg, k.at, H) };
    run_rows(j.dtype, RNN_BACK, k.n, &p);
    j.st = times_transposed(&s, &f, k.n, rounded(&f, p.dgx, k.at, k.n, H), false, dh);
  }
  return finish(&j);
}

ax_status ax_cpu__rnn_before(const ax_call *call)
{
  const ax_tensor *y = call->in[0], *h = call->in[1];
  const int64_t size = (int64_t)ax_itemsize(y);
  sequence s;
  walk k = { .t = -1 };
  const ax_status st = begin_sequence(call, y, NULL, h, call->in[2], call->a->rnn_before.reverse, &s);

  while (st == AX_OK && ax_rnn_next(&s, false, &k))
    memcpy(AT(ax_data(call->out[0]), k.at, s.hidden),
           k.former < 0 ? ax_data(h) : AT(ax_data(y), k.former, s.hidden), (size_t)(k.n * s.hidden * size));
  return st;
}

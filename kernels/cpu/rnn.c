/* Recurrent cells and layers.  A layer is a loop over time: one product of the state with the recurrent weight, one pointwise pass over the
 * step's gates.  Half types are widened once and computed in float32.
 *
 * Step t of a packed batch has sizes[t] sequences, fewer and fewer: its rows follow those of the steps before, and the state's first rows are
 * those that go on. */
#include "gemm.h"

#include <string.h>

#include "pointwise.h"

/* ---- operands: as they are, or widened to the type that is computed in */

typedef struct operand { const ax_tensor *t; void *data; size_t bytes; bool result; } operand;
typedef struct job {
  ax_dtype dtype; /* that is computed in */
  operand list[9];
  int n;
  ax_status st;
} job;

static bool is_half(const ax_tensor *t) { return t->dtype == AX_F16 || t->dtype == AX_BF16; }

static void *open_operand(job *j, const ax_tensor *t, bool result)
{
  operand *o = &j->list[j->n];
  if (!t || j->st != AX_OK) return NULL;
  if (!is_half(t)) return ax_data(t);
  *o = (operand){ .t = t, .bytes = (size_t)t->numel * sizeof(float), .result = result };
  if ((j->st = ax_alloc(o->bytes, &o->data)) != AX_OK) return NULL;
  j->n++;
  if (!result) ax_cpu_half_to_float((ax_dtype)t->dtype, ax_data(t), 2, o->data, t->numel);
  return o->data;
}

static const void *read_from(job *j, const ax_tensor *t) { return open_operand(j, t, false); }
static void *write_to(job *j, const ax_tensor *t) { return open_operand(j, t, true); }

static void *scratch(job *j, int64_t n)
{
  operand *o = &j->list[j->n];
  if (j->st != AX_OK) return NULL;
  *o = (operand){ .bytes = (size_t)n * ax_dtype_size(j->dtype) };
  if ((j->st = ax_alloc(o->bytes, &o->data)) != AX_OK) return NULL;
  j->n++;
  return o->data;
}

/* Rounds widened results, frees what was opened. */
static ax_status finish(job *j)
{
  for (int k = 0; k < j->n; k++) {
    operand *o = &j->list[k];
    if (o->result && j->st == AX_OK) ax_cpu_float_to_half((ax_dtype)o->t->dtype, o->data, ax_data(o->t), 2, o->t->numel);
    ax_free(o->data, o->bytes);
  }
  return j->st;
}

static job begin(const ax_tensor *t) { return (job){ .dtype = t->dtype == AX_F64 ? AX_F64 : AX_F32 }; }

/* ---- pointwise parts, one row of H cells at a time.  `rows` says where each row of an operand begins: at row * step. */

typedef struct cells {
  int64_t hidden;
  bool relu;
  const void *gx, *gh;         /* the two parts of the gates */
  void *gates;                 /* what the gradient needs of them; may be gh itself */
  const void *before, *now;    /* the state (c, or h of a GRU) before and after the step */
  void *state, *h;             /* written: the new c; the new h */
  const void *gy;              /* gradient of h from outside; NULL: none */
  const void *gc;              /* cells alone: gradient of c from outside */
  void *dh, *dc;               /* gradients of the state: read, and written for the step before */
  void *dgx, *dgh;
} cells;

#define POINTWISE(S, T) \
  static void lstm_rows_##S(int64_t lo, int64_t hi, void *ud) \
  { \
    const cells *p = ud; \
    const int64_t H = p->hidden; \
    for (int64_t r = lo; r < hi; r++) { \
      const T *x = (const T *)p->gx + r * 4 * H, *y = (const T *)p->gh + r * 4 * H, *c0 = (const T *)p->before + r * H; \
      T *a = (T *)p->gates + r * 4 * H, *c1 = (T *)p->state + r * H, *h = (T *)p->h + r * H; \
      AX_SIMD \
      for (int64_t k = 0; k < H; k++) { \
        const T i = ax_sigmoid_##S(x[k] + y[k]), f = ax_sigmoid_##S(x[H + k] + y[H + k]); \
        const T g = ax_tanh_##S(x[2 * H + k] + y[2 * H + k]), o = ax_sigmoid_##S(x[3 * H + k] + y[3 * H + k]); \
        const T c = f * c0[k] + i * g; \
        a[k] = i; \
        a[H + k] = f; \
        a[2 * H + k] = g; \
        a[3 * H + k] = o; \
        c1[k] = c; \
        h[k] = o * ax_tanh_##S(c); \
      } \
    } \
  } \
  /* dh and dc hold the gradient from the step after; dc is left for the step before (dh comes out of a product) */ \
  static void lstm_back_##S(int64_t lo, int64_t hi, void *ud) \
  { \
    const cells *p = ud; \
    const int64_t H = p->hidden; \
    for (int64_t r = lo; r < hi; r++) { \
      const T *a = (const T *)p->gates + r * 4 * H, *c0 = (const T *)p->before + r * H, *c1 = (const T *)p->now + r * H; \
      const T *gy = p->gy ? (const T *)p->gy + r * H : NULL, *dh = (const T *)p->dh + r * H; \
      T *dc = (T *)p->dc + r * H, *d = (T *)p->dgx + r * 4 * H; \
      AX_SIMD \
      for (int64_t k = 0; k < H; k++) { \
        const T i = a[k], f = a[H + k], g = a[2 * H + k], o = a[3 * H + k], t = ax_tanh_##S(c1[k]); \
        const T e = dh[k] + (gy ? gy[k] : 0), s = dc[k] + e * o * (1 - t * t); \
        d[k] = s * g * (i * (1 - i)); \
        d[H + k] = s * c0[k] * (f * (1 - f)); \
        d[2 * H + k] = s * i * (1 - g * g); \
        d[3 * H + k] = e * t * (o * (1 - o)); \
        dc[k] = s * f; \
      } \
    } \
  } \
  /* gates: r, z, n and the hidden part of n's argument */ \
  static void gru_rows_##S(int64_t lo, int64_t hi, void *ud) \
  { \
    const cells *p = ud; \
    const int64_t H = p->hidden; \
    for (int64_t q = lo; q < hi; q++) { \
      const T *x = (const T *)p->gx + q * 3 * H, *y = (const T *)p->gh + q * 3 * H, *h0 = (const T *)p->before + q * H; \
      T *a = (T *)p->gates + q * 4 * H, *h = (T *)p->h + q * H; \
      AX_SIMD \
      for (int64_t k = 0; k < H; k++) { \
        const T r = ax_sigmoid_##S(x[k] + y[k]), z = ax_sigmoid_##S(x[H + k] + y[H + k]), m = y[2 * H + k]; \
        const T n = ax_tanh_##S(x[2 * H + k] + r * m); \
        a[k] = r; \
        a[H + k] = z; \
        a[2 * H + k] = n; \
        a[3 * H + k] = m; \
        h[k] = n + z * (h0[k] - n); \
      } \
    } \
  } \
  /* dh: read, and left as the part of the step before's that does not come through the gates */ \
  static void gru_back_##S(int64_t lo, int64_t hi, void *ud) \
  { \
    const cells *p = ud; \
    const int64_t H = p->hidden; \
    for (int64_t q = lo; q < hi; q++) { \
      const T *a = (const T *)p->gates + q * 4 * H, *h0 = (const T *)p->before + q * H; \
      const T *gy = p->gy ? (const T *)p->gy + q * H : NULL; \
      T *dh = (T *)p->dh + q * H, *x = (T *)p->dgx + q * 3 * H, *y = (T *)p->dgh + q * 3 * H; \
      AX_SIMD \
      for (int64_t k = 0; k < H; k++) { \
        const T r = a[k], z = a[H + k], n = a[2 * H + k], m = a[3 * H + k], e = dh[k] + (gy ? gy[k] : 0); \
        const T dn = e * (1 - z) * (1 - n * n), dr = dn * m * (r * (1 - r)), dz = e * (h0[k] - n) * (z * (1 - z)); \
        x[k] = dr; \
        x[H + k] = dz; \
        x[2 * H + k] = dn; \
        y[k] = dr; \
        y[H + k] = dz; \
        y[2 * H + k] = dn * r; \
        dh[k] = e * z; \
      } \
    } \
  } \
  /* h: holds the hidden part of the sum already */ \
  static void rnn_rows_##S(int64_t lo, int64_t hi, void *ud) \
  { \
    const cells *p = ud; \
    const int64_t H = p->hidden; \
    const T *x = (const T *)p->gx; \
    T *h = (T *)p->h; \
    if (p->relu) { \
      AX_SIMD \
      for (int64_t k = lo * H; k < hi * H; k++) h[k] = x[k] + h[k] < 0 ? 0 : x[k] + h[k]; \
    } else { \
      AX_SIMD \
      for (int64_t k = lo * H; k < hi * H; k++) h[k] = ax_tanh_##S(x[k] + h[k]); \
    } \
  } \
  static void rnn_back_##S(int64_t lo, int64_t hi, void *ud) \
  { \
    const cells *p = ud; \
    const int64_t H = p->hidden; \
    const T *y = (const T *)p->now, *gy = (const T *)p->gy, *dh = (const T *)p->dh; \
    T *d = (T *)p->dgx; \
    if (p->relu) { \
      AX_SIMD \
      for (int64_t k = lo * H; k < hi * H; k++) d[k] = y[k] <= 0 ? 0 : gy[k] + dh[k]; \
    } else { \
      AX_SIMD \
      for (int64_t k = lo * H; k < hi * H; k++) d[k] = (gy[k] + dh[k]) * (1 - y[k] * y[k]); \
    } \
  }
POINTWISE(f32, float)
POINTWISE(f64, double)

enum { LSTM, LSTM_BACK, GRU, GRU_BACK, RNN, RNN_BACK };
static void run_rows(ax_dtype d, int what, int64_t rows, cells *p)
{
  static const ax_range_fn fns[2][6] = { { lstm_rows_f32, lstm_back_f32, gru_rows_f32, gru_back_f32, rnn_rows_f32, rnn_back_f32 },
                                         { lstm_rows_f64, lstm_back_f64, gru_rows_f64, gru_back_f64, rnn_rows_f64, rnn_back_f64 } };
  if (rows > 0) ax_cpu_for(rows, rows * p->hidden * 8, fns[d == AX_F64][what], p);
}

/* ---- cells */

ax_status ax_cpu__lstm_gates(const ax_call *call)
{
  const ax_tensor *c0 = call->in[2];
  const int64_t hidden = c0->shape[c0->ndim - 1];
  job j = begin(c0);
  cells p = { .hidden = hidden, .gx = read_from(&j, call->in[0]), .gh = read_from(&j, call->in[1]), .before = read_from(&j, c0),
              .h = write_to(&j, call->out[0]), .state = write_to(&j, call->out[1]), .gates = write_to(&j, call->out[2]) };
  if (j.st == AX_OK && c0->numel) run_rows(j.dtype, LSTM, c0->numel / hidden, &p);
  return finish(&j);
}

/* The gradients from outside are copied into where the loops look for those of the step after. */
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
  cells p = { .hidden = hidden, .gates = (void *)read_from(&j, call->in[2]), .before = read_from(&j, c0), .now = read_from(&j, call->in[4]),
              .dgx = write_to(&j, call->out[0]), .dc = write_to(&j, call->out[1]) };
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
  cells p = { .hidden = hidden, .gx = read_from(&j, call->in[0]), .gh = read_from(&j, call->in[1]), .before = read_from(&j, h0),
              .h = write_to(&j, call->out[0]), .gates = write_to(&j, call->out[1]) };
  if (j.st == AX_OK && h0->numel) run_rows(j.dtype, GRU, h0->numel / hidden, &p);
  return finish(&j);
}

ax_status ax_cpu__gru_gates_backward(const ax_call *call)
{
  const ax_tensor *h0 = call->in[2];
  const int64_t hidden = h0->shape[h0->ndim - 1];
  job j = begin(h0);
  const void *g = read_from(&j, call->in[0]);
  cells p = { .hidden = hidden, .gates = (void *)read_from(&j, call->in[1]), .before = read_from(&j, h0), .dgx = write_to(&j, call->out[0]),
              .dgh = write_to(&j, call->out[1]), .dh = write_to(&j, call->out[2]) };
  copy_or_zero(&j, p.dh, g, h0->numel);
  if (j.st == AX_OK && h0->numel) run_rows(j.dtype, GRU_BACK, h0->numel / hidden, &p);
  return finish(&j);
}

/* ---- layers */

typedef struct sequence {
  int64_t steps, rows, batch, hidden, gates; /* rows of all steps; of the first one; widths of the state and of the gates */
  const int64_t *sizes;                      /* sequences in each step; NULL: always `batch` */
  bool reverse;
} sequence;

static int64_t size_at(const sequence *s, int64_t t) { return s->sizes ? s->sizes[t] : s->batch; }

/* x: something that lies as y does.  Checks what only the numbers in `sizes` tell. */
static ax_status begin_sequence(const ax_call *call, const ax_tensor *x, const ax_tensor *w, const ax_tensor *h, const ax_tensor *sizes, bool reverse, sequence *s)
{
  const char *name = ax_ops[call->op].name;
  int64_t sum = 0;

  *s = (sequence){ .batch = h->shape[0], .hidden = h->shape[1], .gates = w ? w->shape[0] : 0, .reverse = reverse };
  if (!sizes) {
    s->steps = x->shape[0];
    s->rows = x->shape[0] * x->shape[1];
    return AX_OK;
  }
  s->sizes = ax_data(sizes);
  s->steps = sizes->shape[0];
  s->rows = x->shape[0];
  if (reverse) return ax_fail(AX_EINVAL, "%s: a packed batch runs from its first step on; turn the sequences around instead of reverse", name);
  for (int64_t t = 0; t < s->steps; t++) {
    if (s->sizes[t] < 1 || s->sizes[t] > (t ? s->sizes[t - 1] : s->batch) || (t == 0 && s->sizes[0] != s->batch))
      return ax_fail(AX_EINVAL, "%s: batch_sizes must start with %lld, fall and stay above 0; entry %lld is %lld", name, (long long)s->batch,
                     (long long)t + 1, (long long)s->sizes[t]);
    sum += s->sizes[t];
  }
  if (sum != s->rows) return ax_fail(AX_EINVAL, "%s: batch_sizes add up to %lld, gx has %lld rows", name, (long long)sum, (long long)s->rows);
  return AX_OK;
}

/* A walk over the steps, in order or backward. */
typedef struct walk { int64_t t, at, n, former; } walk; /* step, its first row, its rows; the first row of the one before in time, -1: none */

static bool walk_next(const sequence *s, bool backward, walk *w)
{
  const bool down = s->reverse != backward;
  if (w->t < 0) *w = (walk){ .t = down ? s->steps - 1 : 0, .at = down ? s->rows - size_at(s, s->steps - 1) : 0 };
  else if (down) {
    if (--w->t < 0) return false;
    w->at -= size_at(s, w->t);
  } else {
    w->at += size_at(s, w->t);
    if (++w->t == s->steps) return false;
  }
  w->n = size_at(s, w->t);
  if (s->reverse) w->former = w->t == s->steps - 1 ? -1 : w->at + w->n;
  else w->former = w->t == 0 ? -1 : w->at - size_at(s, w->t - 1);
  return true;
}

#define AT(p, row, width) ((char *)(p) + (row) * (width) * size)

/* One sequence: oneDNN takes three times as long as w needs to be read for a row times w^T. */
typedef struct one_sequence { int64_t hidden; const void *h, *w, *bias; void *to; } one_sequence;
#define ONE(S, T) \
  static void one_##S(int64_t lo, int64_t hi, void *ud) \
  { \
    const one_sequence *v = ud; \
    const T *h = v->h; \
    for (int64_t r = lo; r < hi; r++) { \
      const T *w = (const T *)v->w + r * v->hidden; \
      T sum = 0; \
      _Pragma("omp simd reduction(+:sum)") \
      for (int64_t k = 0; k < v->hidden; k++) sum += w[k] * h[k]; \
      ((T *)v->to)[r] = sum + (v->bias ? ((const T *)v->bias)[r] : 0); \
    } \
  }
ONE(f32, float)
ONE(f64, double)

/* to (n, gates) = h (n, H) w^T + bias */
static ax_status times_weight(const sequence *s, ax_dtype d, int64_t n, const void *h, const void *w, const void *bias, void *to)
{
  if (n == 1) {
    one_sequence v = { s->hidden, h, w, bias, to };
    ax_cpu_for(s->gates, s->gates * s->hidden / 4, d == AX_F64 ? one_f64 : one_f32, &v);
    return AX_OK;
  }
  const ax_gemm g = { .dtype = d, .batch = 1, .m = n, .n = s->gates, .k = s->hidden, .a = { 0, s->hidden, 1 }, .b = { 0, 1, s->hidden },
                      .c = { 0, s->gates }, .bias = bias != NULL };
  return ax_cpu_product(&g, h, w, bias, to);
}

/* to (n, H) = dg (n, gates) w, or += */
static ax_status times_transposed(const sequence *s, ax_dtype d, int64_t n, const void *dg, const void *w, bool add, void *to)
{
  const ax_gemm g = { .dtype = d, .batch = 1, .m = n, .n = s->hidden, .k = s->gates, .a = { 0, s->gates, 1 }, .b = { 0, s->hidden, 1 },
                      .c = { 0, s->hidden }, .accumulate = add };
  return ax_cpu_product(&g, dg, w, NULL, to);
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

  if ((j.st = begin_sequence(call, gx, w, h0, sizes_of(call, 4), call->a->i[0], &s)) != AX_OK) return j.st;
  const void *x = read_from(&j, gx), *weight = read_from(&j, w), *h = read_from(&j, h0), *c = read_from(&j, call->in[3]);
  void *y = write_to(&j, call->out[0]), *c_last = write_to(&j, last), *gates = write_to(&j, call->out[2]);
  if (j.st != AX_OK) return finish(&j);
  void *all_c = AT(gates, s.rows, 4 * H);
  while (j.st == AX_OK && walk_next(&s, false, &k)) {
    cells p = { .hidden = H, .gx = AT(x, k.at, 4 * H), .gates = AT(gates, k.at, 4 * H), .before = k.former < 0 ? c : AT(all_c, k.former, H),
                .state = AT(all_c, k.at, H), .h = AT(y, k.at, H) };
    p.gh = p.gates;
    if ((j.st = times_weight(&s, j.dtype, k.n, k.former < 0 ? h : AT(y, k.former, H), weight, NULL, p.gates)) == AX_OK) run_rows(j.dtype, LSTM, k.n, &p);
    if (s.sizes || k.t == (s.reverse ? 0 : s.steps - 1)) /* packed: of those that go on; what is left there is the last of each */
      memcpy(c_last, p.state, (size_t)(k.n * H * size));
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

  if ((j.st = begin_sequence(call, call->out[0], w, c0, call->in[5], call->a->i[0], &s)) != AX_OK) return j.st;
  const void *gy = read_from(&j, call->in[0]), *gc = read_from(&j, call->in[1]), *gates = read_from(&j, call->in[2]), *c = read_from(&j, c0),
             *weight = read_from(&j, w);
  void *dg = write_to(&j, call->out[0]), *dh = write_to(&j, call->out[1]), *dc = write_to(&j, call->out[2]);
  copy_or_zero(&j, dc, gc, s.batch * H);
  copy_or_zero(&j, dh, NULL, s.batch * H);
  if (j.st != AX_OK) return finish(&j);
  const void *all_c = AT(gates, s.rows, 4 * H);
  while (j.st == AX_OK && walk_next(&s, true, &k)) {
    cells p = { .hidden = H, .gates = AT(gates, k.at, 4 * H), .before = k.former < 0 ? c : AT(all_c, k.former, H), .now = AT(all_c, k.at, H),
                .gy = gy ? AT(gy, k.at, H) : NULL, .dh = dh, .dc = dc, .dgx = AT(dg, k.at, 4 * H) };
    run_rows(j.dtype, LSTM_BACK, k.n, &p);
    j.st = times_transposed(&s, j.dtype, k.n, p.dgx, weight, false, dh);
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

  if ((j.st = begin_sequence(call, gx, w, h0, sizes_of(call, 4), call->a->i[0], &s)) != AX_OK) return j.st;
  const void *x = read_from(&j, gx), *weight = read_from(&j, w), *bias = read_from(&j, call->in[2]), *h = read_from(&j, h0);
  void *y = write_to(&j, call->out[0]), *gates = write_to(&j, call->out[1]), *gh = scratch(&j, s.batch * 3 * H);
  while (j.st == AX_OK && walk_next(&s, false, &k)) {
    cells p = { .hidden = H, .gx = AT(x, k.at, 3 * H), .gh = gh, .gates = AT(gates, k.at, 4 * H), .before = k.former < 0 ? h : AT(y, k.former, H),
                .h = AT(y, k.at, H) };
    if ((j.st = times_weight(&s, j.dtype, k.n, p.before, weight, bias, gh)) == AX_OK) run_rows(j.dtype, GRU, k.n, &p);
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

  if ((j.st = begin_sequence(call, call->out[0], w, h0, call->in[5], call->a->i[0], &s)) != AX_OK) return j.st;
  const void *gy = read_from(&j, call->in[0]), *gates = read_from(&j, call->in[1]), *y = read_from(&j, call->in[2]), *h = read_from(&j, h0),
             *weight = read_from(&j, w);
  void *dgx = write_to(&j, call->out[0]), *dgh = write_to(&j, call->out[1]), *dh = write_to(&j, call->out[2]);
  copy_or_zero(&j, dh, NULL, s.batch * H);
  while (j.st == AX_OK && walk_next(&s, true, &k)) {
    cells p = { .hidden = H, .gates = AT(gates, k.at, 4 * H), .before = k.former < 0 ? h : AT(y, k.former, H), .gy = AT(gy, k.at, H), .dh = dh,
                .dgx = AT(dgx, k.at, 3 * H), .dgh = AT(dgh, k.at, 3 * H) };
    run_rows(j.dtype, GRU_BACK, k.n, &p);
    j.st = times_transposed(&s, j.dtype, k.n, p.dgh, weight, true, dh);
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

  if ((j.st = begin_sequence(call, gx, w, h0, sizes_of(call, 3), call->a->i[1], &s)) != AX_OK) return j.st;
  const void *x = read_from(&j, gx), *weight = read_from(&j, w), *h = read_from(&j, h0);
  void *y = write_to(&j, call->out[0]);
  while (j.st == AX_OK && walk_next(&s, false, &k)) {
    cells p = { .hidden = H, .relu = call->a->i[0], .gx = AT(x, k.at, H), .h = AT(y, k.at, H) };
    if ((j.st = times_weight(&s, j.dtype, k.n, k.former < 0 ? h : AT(y, k.former, H), weight, NULL, p.h)) == AX_OK) run_rows(j.dtype, RNN, k.n, &p);
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

  if ((j.st = begin_sequence(call, call->out[0], w, h0, call->in[4], call->a->i[1], &s)) != AX_OK) return j.st;
  const void *gy = read_from(&j, call->in[0]), *y = read_from(&j, call->in[1]), *weight = read_from(&j, w);
  void *dg = write_to(&j, call->out[0]), *dh = write_to(&j, call->out[1]);
  copy_or_zero(&j, dh, NULL, s.batch * H);
  while (j.st == AX_OK && walk_next(&s, true, &k)) {
    cells p = { .hidden = H, .relu = call->a->i[0], .now = AT(y, k.at, H), .gy = AT(gy, k.at, H), .dh = dh, .dgx = AT(dg, k.at, H) };
    run_rows(j.dtype, RNN_BACK, k.n, &p);
    j.st = times_transposed(&s, j.dtype, k.n, p.dgx, weight, false, dh);
  }
  return finish(&j);
}

ax_status ax_cpu__rnn_before(const ax_call *call)
{
  const ax_tensor *y = call->in[0], *h = call->in[1];
  const int64_t size = (int64_t)ax_itemsize(y);
  sequence s;
  walk k = { .t = -1 };
  const ax_status st = begin_sequence(call, y, NULL, h, call->in[2], call->a->i[0], &s);

  while (st == AX_OK && walk_next(&s, false, &k))
    memcpy(AT(ax_data(call->out[0]), k.at, s.hidden), k.former < 0 ? ax_data(h) : AT(ax_data(y), k.former, s.hidden), (size_t)(k.n * s.hidden * size));
  return st;
}

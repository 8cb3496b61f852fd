/* Recurrent cells and layers; kernels/cpu/rnn_rows.h has the formulas.  A layer is a loop over
 * time: one product of the state with the recurrent weight, and one kernel over the step's gates;
 * for small layers launches bound it.  The state is kept in the type computed in; products read it
 * rounded to the tensors' type.
 *
 * Step t of a packed batch has sizes[t] sequences, a falling number.  The sizes are read back from
 * the device, which waits for it. */
#include "gemm.cuh"
extern "C" {
#include "core/ops/rnn_steps.h"
}

#include <vector>

static __device__ __forceinline__ float sigmoid(float x) { return ax_sigmoid_f32(x); }
static __device__ __forceinline__ double sigmoid(double x) { return ax_sigmoid_f64(x); }
static __device__ __forceinline__ float tangent(float x) { return ax_tanh_f32(x); }
static __device__ __forceinline__ double tangent(double x) { return tanh(x); }

/* ---- cells.  G: the type of the products and of the state. */

template <class S, class G>
static __global__ void lstm_cells(int64_t n, int64_t H, const S *gx, const G *gh, const G *before, G *state,
                                  S *h, S *gates, S *saved)
{
  typedef compute<S> T;
  for (int64_t p = AX_FIRST; p < n * H; p += AX_STEP) {
    const int64_t r = p / H, at = r * AX_LSTM_GATES * H + p % H;
    const T i = sigmoid((T)ax_cuda_load(gx[at]) + (T)ax_cuda_load(gh[at])),
            f = sigmoid((T)ax_cuda_load(gx[at + AX_LSTM_F * H]) + (T)ax_cuda_load(gh[at + AX_LSTM_F * H]));
    const T g = tangent((T)ax_cuda_load(gx[at + AX_LSTM_G * H]) + (T)ax_cuda_load(gh[at + AX_LSTM_G * H])),
            o = sigmoid((T)ax_cuda_load(gx[at + AX_LSTM_O * H]) + (T)ax_cuda_load(gh[at + AX_LSTM_O * H]));
    const T c = f * (T)ax_cuda_load(before[p]) + i * g;
    gates[at] = ax_cuda_store<S>(i);
    gates[at + AX_LSTM_F * H] = ax_cuda_store<S>(f);
    gates[at + AX_LSTM_G * H] = ax_cuda_store<S>(g);
    gates[at + AX_LSTM_O * H] = ax_cuda_store<S>(o);
    state[p] = ax_cuda_store<G>(c);
    if (saved) saved[p] = ax_cuda_store<S>(c);
    h[p] = ax_cuda_store<S>(o * tangent(c));
  }
}

template <class S, class G>
static __global__ void lstm_back(int64_t n, int64_t H, const S *gates, const S *before, const S *now,
                                 const S *gy, const G *dh, const G *dc_in, G *dc, S *d)
{
  typedef compute<S> T;
  for (int64_t p = AX_FIRST; p < n * H; p += AX_STEP) {
    const int64_t at = p / H * AX_LSTM_GATES * H + p % H;
    const T i = ax_cuda_load(gates[at]), f = ax_cuda_load(gates[at + AX_LSTM_F * H]),
            g = ax_cuda_load(gates[at + AX_LSTM_G * H]), o = ax_cuda_load(gates[at + AX_LSTM_O * H]),
            t = tangent((T)ax_cuda_load(now[p]));
    const T e = (dh ? (T)ax_cuda_load(dh[p]) : (T)0) + (gy ? (T)ax_cuda_load(gy[p]) : (T)0),
            s = (dc_in ? (T)ax_cuda_load(dc_in[p]) : (T)0) + e * o * (1 - t * t);
    d[at] = ax_cuda_store<S>(s * g * (i * (1 - i)));
    d[at + AX_LSTM_F * H] = ax_cuda_store<S>(s * (T)ax_cuda_load(before[p]) * (f * (1 - f)));
    d[at + AX_LSTM_G * H] = ax_cuda_store<S>(s * i * (1 - g * g));
    d[at + AX_LSTM_O * H] = ax_cuda_store<S>(e * t * (o * (1 - o)));
    dc[p] = ax_cuda_store<G>(s * f);
  }
}

template <class S, class G>
static __global__ void gru_cells(int64_t n, int64_t H, const S *gx, const G *gh, const S *before, S *h,
                                 S *gates)
{
  typedef compute<S> T;
  for (int64_t p = AX_FIRST; p < n * H; p += AX_STEP) {
    const int64_t q = p / H, k = p % H, x = q * AX_GRU_GATES * H + k, at = q * AX_GRU_SAVED * H + k;
    const T r = sigmoid((T)ax_cuda_load(gx[x]) + (T)ax_cuda_load(gh[x])),
            z = sigmoid((T)ax_cuda_load(gx[x + AX_GRU_Z * H]) + (T)ax_cuda_load(gh[x + AX_GRU_Z * H])),
            m = (T)ax_cuda_load(gh[x + AX_GRU_N * H]);
    const T c = tangent((T)ax_cuda_load(gx[x + AX_GRU_N * H]) + r * m);
    gates[at] = ax_cuda_store<S>(r);
    gates[at + AX_GRU_Z * H] = ax_cuda_store<S>(z);
    gates[at + AX_GRU_N * H] = ax_cuda_store<S>(c);
    gates[at + AX_GRU_M * H] = ax_cuda_store<S>(m);
    h[p] = ax_cuda_store<S>(c + z * ((T)ax_cuda_load(before[p]) - c));
  }
}

template <class S, class G>
static __global__ void gru_back(int64_t n, int64_t H, const S *gates, const S *before, const S *gy,
                                const G *dh_in, G *dh, S *dgx, S *dgh)
{
  typedef compute<S> T;
  for (int64_t p = AX_FIRST; p < n * H; p += AX_STEP) {
    const int64_t q = p / H, k = p % H, x = q * AX_GRU_GATES * H + k, at = q * AX_GRU_SAVED * H + k;
    const T r = ax_cuda_load(gates[at]), z = ax_cuda_load(gates[at + AX_GRU_Z * H]),
            c = ax_cuda_load(gates[at + AX_GRU_N * H]), m = ax_cuda_load(gates[at + AX_GRU_M * H]);
    const T e = (dh_in ? (T)ax_cuda_load(dh_in[p]) : (T)0) + (gy ? (T)ax_cuda_load(gy[p]) : (T)0);
    const T dn = e * (1 - z) * (1 - c * c), dr = dn * m * (r * (1 - r)),
            dz = e * ((T)ax_cuda_load(before[p]) - c) * (z * (1 - z));
    dgx[x] = dgh[x] = ax_cuda_store<S>(dr);
    dgx[x + AX_GRU_Z * H] = dgh[x + AX_GRU_Z * H] = ax_cuda_store<S>(dz);
    dgx[x + AX_GRU_N * H] = ax_cuda_store<S>(dn);
    dgh[x + AX_GRU_N * H] = ax_cuda_store<S>(dn * r);
    dh[p] = ax_cuda_store<G>(e * z);
  }
}

template <class S, class G>
static __global__ void rnn_cells(int64_t n, const S *x, const G *part, S *h, bool relu)
{
  typedef compute<S> T;
  for (int64_t p = AX_FIRST; p < n; p += AX_STEP) {
    const T v = (T)ax_cuda_load(x[p]) + (T)ax_cuda_load(part[p]);
    h[p] = ax_cuda_store<S>(relu ? (v < 0 ? (T)0 : v) : tangent(v));
  }
}
template <class S, class G>
static __global__ void rnn_back(int64_t n, const S *y, const S *gy, const G *dh, S *d, bool relu)
{
  typedef compute<S> T;
  for (int64_t p = AX_FIRST; p < n; p += AX_STEP) {
    const T now = ax_cuda_load(y[p]), e = (T)ax_cuda_load(gy[p]) + (T)ax_cuda_load(dh[p]);
    d[p] = ax_cuda_store<S>(relu ? (now <= 0 ? (T)0 : e) : e * (1 - now * now));
  }
}

template <class To, class From> static __global__ void convert(To *to, const From *from, int64_t n)
{
  for (int64_t p = AX_FIRST; p < n; p += AX_STEP)
    to[p] = ax_cuda_store<To>(from ? (compute<To>)ax_cuda_load(from[p]) : (compute<To>)0);
}
template <class To, class From> static ax_status run_convert(ax_device d, To *to, const From *from, int64_t n)
{
  return n ? ax_cuda_launch("rnn", d, ax_cuda_blocks(n, 256, d.index), 256, convert<To, From>, to, from, n)
           : AX_OK;
}

template <class S> static S *data(const ax_tensor *t) { return ax_cuda_data<S>(t); }
/* What a layer keeps for its gradient alone: room for float32; half types take half of it. */
template <class S> static S *kept(const ax_tensor *t) { return (S *)ax_data(t); }
static unsigned blocks(int64_t n, ax_device d) { return ax_cuda_blocks(n, 256, d.index); }

AX_CUDA_KERNEL(_lstm_gates)
{
  const ax_tensor *c0 = call->in[2];
  const int64_t H = c0->shape[c0->ndim - 1];
  const ax_device d = c0->device;
  if (c0->numel == 0) return AX_OK;
  return ax_cuda_with_float(call->op, (ax_dtype)c0->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("lstm_cell", d, blocks(c0->numel, d), 256, lstm_cells<S, S>, c0->numel / H, H,
                          (const S *)data<S>(call->in[0]), (const S *)data<S>(call->in[1]),
                          (const S *)data<S>(c0), data<S>(call->out[1]), data<S>(call->out[0]),
                          data<S>(call->out[2]), (S *)NULL);
  });
}

AX_CUDA_KERNEL(_lstm_gates_backward)
{
  const ax_tensor *c0 = call->in[3];
  const int64_t H = c0->shape[c0->ndim - 1];
  const ax_device d = c0->device;
  if (c0->numel == 0) return AX_OK;
  return ax_cuda_with_float(call->op, (ax_dtype)c0->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("lstm_cell", d, blocks(c0->numel, d), 256, lstm_back<S, S>, c0->numel / H, H,
                          (const S *)data<S>(call->in[2]), (const S *)data<S>(c0),
                          (const S *)data<S>(call->in[4]), (const S *)NULL, (const S *)data<S>(call->in[0]),
                          (const S *)data<S>(call->in[1]), data<S>(call->out[1]), data<S>(call->out[0]));
  });
}

AX_CUDA_KERNEL(_gru_gates)
{
  const ax_tensor *h0 = call->in[2];
  const int64_t H = h0->shape[h0->ndim - 1];
  const ax_device d = h0->device;
  if (h0->numel == 0) return AX_OK;
  return ax_cuda_with_float(call->op, (ax_dtype)h0->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("gru_cell", d, blocks(h0->numel, d), 256, gru_cells<S, S>, h0->numel / H, H,
                          (const S *)data<S>(call->in[0]), (const S *)data<S>(call->in[1]),
                          (const S *)data<S>(h0), data<S>(call->out[0]), data<S>(call->out[1]));
  });
}

AX_CUDA_KERNEL(_gru_gates_backward)
{
  const ax_tensor *h0 = call->in[2];
  const int64_t H = h0->shape[h0->ndim - 1];
  const ax_device d = h0->device;
  if (h0->numel == 0) return AX_OK;
  return ax_cuda_with_float(call->op, (ax_dtype)h0->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    return ax_cuda_launch("gru_cell", d, blocks(h0->numel, d), 256, gru_back<S, S>, h0->numel / H, H,
                          (const S *)data<S>(call->in[1]), (const S *)data<S>(h0), (const S *)NULL,
                          (const S *)data<S>(call->in[0]), data<S>(call->out[2]), data<S>(call->out[0]),
                          data<S>(call->out[1]));
  });
}

/* ---- layers */

/* Sizes are read back from the device. */
struct sequence : ax_rnn_sequence {
  std::vector<int64_t> held;
};
typedef ax_rnn_walk walk;

static ax_status begin_sequence(const ax_call *call, const ax_tensor *x, const ax_tensor *w,
                                const ax_tensor *h, const ax_tensor *sizes, bool reverse, sequence *s)
{
  const int64_t n = sizes ? sizes->shape[0] : 0;
  ax_status st = AX_OK;

  s->held.resize((size_t)n + 1);
  if (sizes && sizes->device.kind == AX_CPU)
    memcpy(s->held.data(), ax_data(sizes), (size_t)n * sizeof(int64_t));
  else if (sizes)
    st = ax_cuda_memory.copy(ax_device{ AX_CPU, 0 }, s->held.data(), sizes->device, ax_data(sizes),
                             (size_t)n * sizeof(int64_t));
  return st == AX_OK ? ax_rnn_begin(call, x, w, h, sizes ? s->held.data() : NULL, n, reverse, s) : st;
}

template <class T> struct dtype_of;
template <> struct dtype_of<float> {
  static const ax_dtype value = AX_F32;
};
template <> struct dtype_of<double> {
  static const ax_dtype value = AX_F64;
};

/* to (n, gates) = h (n, H) w^T + bias */
template <class S>
static ax_status times_weight(const ax_call *call, const sequence &s, int64_t n, const S *h,
                              const ax_tensor *w, const compute<S> *bias, compute<S> *to)
{
  ax_cuda_gemm g = {};
  g.dtype = w->dtype, g.out = dtype_of<compute<S>>::value, g.batch = 1;
  g.m = n, g.n = s.gates, g.k = s.hidden;
  g.a[1] = s.hidden, g.a[2] = 1, g.b[1] = 1, g.b[2] = s.hidden, g.c[1] = s.gates;
  g.bias = bias != NULL;
  return ax_cuda_product(call->op, w->device, &g, h, ax_data(w), bias, to);
}

/* to (n, H) = dg (n, gates) w, or to += dg w */
template <class S>
static ax_status times_transposed(const ax_call *call, const sequence &s, int64_t n, const S *dg,
                                  const ax_tensor *w, bool add, compute<S> *to)
{
  ax_cuda_gemm g = {};
  g.dtype = w->dtype, g.out = dtype_of<compute<S>>::value, g.batch = 1;
  g.m = n, g.n = s.hidden, g.k = s.gates;
  g.a[1] = s.gates, g.a[2] = 1, g.b[1] = s.hidden, g.b[2] = 1, g.c[1] = s.hidden;
  g.accumulate = add;
  return ax_cuda_product(call->op, w->device, &g, dg, ax_data(w), NULL, to);
}

/* Memory for n numbers of type T for the duration of a call. */
template <class T> struct room {
  ax_device d;
  T *p;
  size_t bytes;
  ax_status st;
  room(ax_device device, int64_t n) : d(device), p(NULL), bytes((size_t)(n ? n : 1) * sizeof(T))
  {
    st = ax_cuda_take(d, bytes, (void **)&p);
  }
  ~room()
  {
    if (p) ax_cuda_give(d, p, bytes);
  }
};

static const ax_tensor *sizes_of(const ax_call *call, int k) { return call->n_in > k ? call->in[k] : NULL; }

AX_CUDA_KERNEL(lstm_layer)
{
  const ax_tensor *gx = call->in[0], *w = call->in[1], *h0 = call->in[2], *c0 = call->in[3];
  const int64_t H = w->shape[1];
  const ax_device d = gx->device;
  sequence s;
  ax_status st = begin_sequence(call, gx, w, h0, sizes_of(call, 4), call->a->lstm_layer.reverse, &s);
  if (st != AX_OK) return st;
  return ax_cuda_with_float(call->op, (ax_dtype)gx->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    S *y = data<S>(call->out[0]), *gates = kept<S>(call->out[2]), *all_c = gates + s.rows * AX_LSTM_GATES * H;
    const S *x = data<S>(gx), *h = data<S>(h0);
    /* a sequence that has ended leaves its last state in c */
    room<T> part(d, s.batch * AX_LSTM_GATES * H), c(d, s.batch * H);
    walk k = { -1, 0, 0, 0 };
    if (part.st != AX_OK || c.st != AX_OK) return AX_ENOMEM;
    st = run_convert<T, S>(d, c.p, data<S>(c0), s.batch * H);
    while (st == AX_OK && ax_rnn_next(&s, false, &k)) {
      if (k.n == 0 || H == 0) continue;
      if ((st = times_weight<S>(call, s, k.n, k.former < 0 ? h : y + k.former * H, w, NULL, part.p)) != AX_OK)
        break;
      st = ax_cuda_launch("lstm_layer", d, blocks(k.n * H, d), 256, lstm_cells<S, T>, k.n, H,
                          x + k.at * AX_LSTM_GATES * H, (const T *)part.p, (const T *)c.p, c.p, y + k.at * H,
                          gates + k.at * AX_LSTM_GATES * H, all_c + k.at * H);
    }
    return st == AX_OK ? run_convert<S, T>(d, data<S>(call->out[1]), (const T *)c.p, s.batch * H) : st;
  });
}

AX_CUDA_KERNEL(_lstm_layer_backward)
{
  const ax_tensor *gy = call->in[0], *gc = call->in[1], *saved = call->in[2], *c0 = call->in[3],
                  *w = call->in[4];
  const int64_t H = w->shape[1];
  const ax_device d = w->device;
  sequence s;
  ax_status st =
      begin_sequence(call, call->out[0], w, c0, call->in[5], call->a->lstm_layer_backward.reverse, &s);
  if (st != AX_OK) return st;
  return ax_cuda_with_float(call->op, (ax_dtype)w->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    S *dg = data<S>(call->out[0]);
    const S *g = data<S>(gy), *gates = kept<S>(saved), *all_c = gates + s.rows * AX_LSTM_GATES * H,
            *c = data<S>(c0);
    room<T> dh(d, s.batch * H), dc(d, s.batch * H);
    walk k = { -1, 0, 0, 0 };
    if (dh.st != AX_OK || dc.st != AX_OK) return AX_ENOMEM;
    st = run_convert<T, S>(d, dh.p, (const S *)NULL, s.batch * H);
    if (st == AX_OK) st = run_convert<T, S>(d, dc.p, data<S>(gc), s.batch * H);
    while (st == AX_OK && ax_rnn_next(&s, true, &k)) {
      if (k.n == 0 || H == 0) continue;
      st = ax_cuda_launch("lstm_layer", d, blocks(k.n * H, d), 256, lstm_back<S, T>, k.n, H,
                          gates + k.at * AX_LSTM_GATES * H, k.former < 0 ? c : all_c + k.former * H,
                          all_c + k.at * H, g ? g + k.at * H : NULL, (const T *)dh.p, (const T *)dc.p, dc.p,
                          dg + k.at * AX_LSTM_GATES * H);
      if (st == AX_OK) st = times_transposed<S>(call, s, k.n, dg + k.at * AX_LSTM_GATES * H, w, false, dh.p);
    }
    if (st == AX_OK) st = run_convert<S, T>(d, data<S>(call->out[1]), (const T *)dh.p, s.batch * H);
    return st == AX_OK ? run_convert<S, T>(d, data<S>(call->out[2]), (const T *)dc.p, s.batch * H) : st;
  });
}

AX_CUDA_KERNEL(gru_layer)
{
  const ax_tensor *gx = call->in[0], *w = call->in[1], *bias = call->in[2], *h0 = call->in[3];
  const int64_t H = w->shape[1];
  const ax_device d = gx->device;
  sequence s;
  ax_status st = begin_sequence(call, gx, w, h0, sizes_of(call, 4), call->a->gru_layer.reverse, &s);
  if (st != AX_OK) return st;
  return ax_cuda_with_float(call->op, (ax_dtype)gx->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    S *y = data<S>(call->out[0]), *gates = kept<S>(call->out[1]);
    const S *x = data<S>(gx), *h = data<S>(h0);
    room<T> part(d, s.batch * AX_GRU_GATES * H), wide(d, AX_GRU_GATES * H);
    walk k = { -1, 0, 0, 0 };
    if (part.st != AX_OK || wide.st != AX_OK) return AX_ENOMEM;
    if (bias) st = run_convert<T, S>(d, wide.p, data<S>(bias), AX_GRU_GATES * H);
    while (st == AX_OK && ax_rnn_next(&s, false, &k)) {
      if (k.n == 0 || H == 0) continue;
      const S *before = k.former < 0 ? h : y + k.former * H;
      if ((st = times_weight<S>(call, s, k.n, before, w, bias ? wide.p : (T *)NULL, part.p)) != AX_OK) break;
      st = ax_cuda_launch("gru_layer", d, blocks(k.n * H, d), 256, gru_cells<S, T>, k.n, H,
                          x + k.at * AX_GRU_GATES * H, (const T *)part.p, before, y + k.at * H,
                          gates + k.at * AX_GRU_SAVED * H);
    }
    return st;
  });
}

AX_CUDA_KERNEL(_gru_layer_backward)
{
  const ax_tensor *gy = call->in[0], *saved = call->in[1], *out = call->in[2], *h0 = call->in[3],
                  *w = call->in[4];
  const int64_t H = w->shape[1];
  const ax_device d = w->device;
  sequence s;
  ax_status st =
      begin_sequence(call, call->out[0], w, h0, call->in[5], call->a->gru_layer_backward.reverse, &s);
  if (st != AX_OK) return st;
  return ax_cuda_with_float(call->op, (ax_dtype)w->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    S *dgx = data<S>(call->out[0]), *dgh = data<S>(call->out[1]);
    const S *g = data<S>(gy), *gates = kept<S>(saved), *y = data<S>(out), *h = data<S>(h0);
    room<T> dh(d, s.batch * H);
    walk k = { -1, 0, 0, 0 };
    if (dh.st != AX_OK) return AX_ENOMEM;
    st = run_convert<T, S>(d, dh.p, (const S *)NULL, s.batch * H);
    while (st == AX_OK && ax_rnn_next(&s, true, &k)) {
      if (k.n == 0 || H == 0) continue;
      st =
          ax_cuda_launch("gru_layer", d, blocks(k.n * H, d), 256, gru_back<S, T>, k.n, H,
                         gates + k.at * AX_GRU_SAVED * H, k.former < 0 ? h : y + k.former * H, g + k.at * H,
                         (const T *)dh.p, dh.p, dgx + k.at * AX_GRU_GATES * H, dgh + k.at * AX_GRU_GATES * H);
      if (st == AX_OK) st = times_transposed<S>(call, s, k.n, dgh + k.at * AX_GRU_GATES * H, w, true, dh.p);
    }
    return st == AX_OK ? run_convert<S, T>(d, data<S>(call->out[2]), (const T *)dh.p, s.batch * H) : st;
  });
}

AX_CUDA_KERNEL(rnn_layer)
{
  const ax_tensor *gx = call->in[0], *w = call->in[1], *h0 = call->in[2];
  const int64_t H = w->shape[1];
  const ax_device d = gx->device;
  const bool relu = call->a->rnn_layer.nonlinearity;
  sequence s;
  ax_status st = begin_sequence(call, gx, w, h0, sizes_of(call, 3), call->a->rnn_layer.reverse, &s);
  if (st != AX_OK) return st;
  return ax_cuda_with_float(call->op, (ax_dtype)gx->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    S *y = data<S>(call->out[0]);
    const S *x = data<S>(gx), *h = data<S>(h0);
    room<T> part(d, s.batch * H);
    walk k = { -1, 0, 0, 0 };
    if (part.st != AX_OK) return part.st;
    while (st == AX_OK && ax_rnn_next(&s, false, &k)) {
      if (k.n == 0 || H == 0) continue;
      if ((st = times_weight<S>(call, s, k.n, k.former < 0 ? h : y + k.former * H, w, NULL, part.p)) != AX_OK)
        break;
      st = ax_cuda_launch("rnn_layer", d, blocks(k.n * H, d), 256, rnn_cells<S, T>, k.n * H, x + k.at * H,
                          (const T *)part.p, y + k.at * H, relu);
    }
    return st;
  });
}

AX_CUDA_KERNEL(_rnn_layer_backward)
{
  const ax_tensor *gy = call->in[0], *out = call->in[1], *w = call->in[2], *h0 = call->in[3];
  const int64_t H = w->shape[1];
  const ax_device d = w->device;
  const bool relu = call->a->rnn_layer_backward.nonlinearity;
  sequence s;
  ax_status st =
      begin_sequence(call, call->out[0], w, h0, call->in[4], call->a->rnn_layer_backward.reverse, &s);
  if (st != AX_OK) return st;
  return ax_cuda_with_float(call->op, (ax_dtype)w->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    S *dg = data<S>(call->out[0]);
    const S *g = data<S>(gy), *y = data<S>(out);
    room<T> dh(d, s.batch * H);
    walk k = { -1, 0, 0, 0 };
    if (dh.st != AX_OK) return dh.st;
    st = run_convert<T, S>(d, dh.p, (const S *)NULL, s.batch * H);
    while (st == AX_OK && ax_rnn_next(&s, true, &k)) {
      if (k.n == 0 || H == 0) continue;
      st = ax_cuda_launch("rnn_layer", d, blocks(k.n * H, d), 256, rnn_back<S, T>, k.n * H, y + k.at * H,
                          g + k.at * H, (const T *)dh.p, dg + k.at * H, relu);
      if (st == AX_OK) st = times_transposed<S>(call, s, k.n, dg + k.at * H, w, false, dh.p);
    }
    return st == AX_OK ? run_convert<S, T>(d, data<S>(call->out[1]), (const T *)dh.p, s.batch * H) : st;
  });
}

AX_CUDA_KERNEL(_rnn_before)
{
  const ax_tensor *y = call->in[0], *h = call->in[1];
  const int64_t row = h->shape[1] * (int64_t)ax_itemsize(y);
  cudaStream_t stream;
  sequence s;
  walk k = { -1, 0, 0, 0 };
  ax_status st = begin_sequence(call, y, NULL, h, call->in[2], call->a->rnn_before.reverse, &s);

  if (st == AX_OK) st = ax_cuda_use(y->device, &stream);
  while (st == AX_OK && ax_rnn_next(&s, false, &k))
    if (k.n * row > 0)
      st = ax_cuda_status("rnn", cudaMemcpyAsync((char *)ax_data(call->out[0]) + k.at * row,
                                                 k.former < 0 ? (char *)ax_data(h)
                                                              : (char *)ax_data(y) + k.former * row,
                                                 (size_t)(k.n * row), cudaMemcpyDeviceToDevice, stream));
  return st;
}

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
static __global__ void rnn_cells(int64_t n, int64_t H, const S *x, const G *part, S *h, bool relu)
{
  typedef compute<S> T;
  for (int64_t p = AX_FIRST; p < n * H; p += AX_STEP) {
    const T v = (T)ax_cuda_load(x[p]) + (T)ax_cuda_load(part[p]);
    h[p] = ax_cuda_store<S>(relu ? (v < 0 ? (T)0 : v) : tangent(v));
  }
}

template <class S, class G>
static __global__ void rnn_back(int64_t n, int64_t H, const S *y, const S *gy, const G *dh, S *d, bool relu)
{
  typedef compute<S> T;
  for (int64_t p = AX_FIRST; p < n * H; p += AX_STEP) {
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

/* Runs a kernel above over n rows of H numbers. */
template <class... P, class... A>
static ax_status run_cells(const char *name, ax_device d, void (*kernel)(int64_t, int64_t, P...), int64_t n,
                           int64_t H, A... arguments)
{
  return ax_cuda_launch(name, d, ax_cuda_blocks(n * H, 256, d.index), 256, kernel, n, H, arguments...);
}

/* Calls f(type, n, H) for a cell whose state is (n, H). */
template <class F> static ax_status with_cell(const ax_call *call, const ax_tensor *state, F f)
{
  const int64_t H = state->shape[state->ndim - 1];
  if (state->numel == 0) return AX_OK;
  return ax_cuda_with_float(call->op, (ax_dtype)state->dtype,
                            [&](auto type) { return f(type, state->numel / H, H); });
}

AX_CUDA_KERNEL(_lstm_gates)
{
  const ax_tensor *c0 = call->in[2];
  return with_cell(call, c0, [&](auto type, int64_t n, int64_t H) {
    typedef AX_TYPE_OF(type) S;
    return run_cells("lstm_cell", c0->device, lstm_cells<S, S>, n, H, data<S>(call->in[0]),
                     data<S>(call->in[1]), data<S>(c0), data<S>(call->out[1]), data<S>(call->out[0]),
                     data<S>(call->out[2]), (S *)NULL);
  });
}

AX_CUDA_KERNEL(_lstm_gates_backward)
{
  const ax_tensor *c0 = call->in[3];
  return with_cell(call, c0, [&](auto type, int64_t n, int64_t H) {
    typedef AX_TYPE_OF(type) S;
    return run_cells("lstm_cell", c0->device, lstm_back<S, S>, n, H, data<S>(call->in[2]), data<S>(c0),
                     data<S>(call->in[4]), (S *)NULL, data<S>(call->in[0]), data<S>(call->in[1]),
                     data<S>(call->out[1]), data<S>(call->out[0]));
  });
}

AX_CUDA_KERNEL(_gru_gates)
{
  const ax_tensor *h0 = call->in[2];
  return with_cell(call, h0, [&](auto type, int64_t n, int64_t H) {
    typedef AX_TYPE_OF(type) S;
    return run_cells("gru_cell", h0->device, gru_cells<S, S>, n, H, data<S>(call->in[0]),
                     data<S>(call->in[1]), data<S>(h0), data<S>(call->out[0]), data<S>(call->out[1]));
  });
}

AX_CUDA_KERNEL(_gru_gates_backward)
{
  const ax_tensor *h0 = call->in[2];
  return with_cell(call, h0, [&](auto type, int64_t n, int64_t H) {
    typedef AX_TYPE_OF(type) S;
    return run_cells("gru_cell", h0->device, gru_back<S, S>, n, H, data<S>(call->in[1]), data<S>(h0),
                     (S *)NULL, data<S>(call->in[0]), data<S>(call->out[2]), data<S>(call->out[0]),
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
  if (sizes)
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

/* Calls f(type, s) for the layer of weight w; the others as begin_sequence takes them. */
template <class F>
static ax_status with_layer(const ax_call *call, const ax_tensor *x, const ax_tensor *w, const ax_tensor *h,
                            const ax_tensor *sizes, bool reverse, F f)
{
  sequence s;
  const ax_status st = begin_sequence(call, x, w, h, sizes, reverse, &s);
  if (st != AX_OK) return st;
  return ax_cuda_with_float(call->op, (ax_dtype)w->dtype, [&](auto type) { return f(type, s); });
}

/* Runs cells(k, before, product) for each step k: `before` is the state that the step begins with,
 * rows of y or at first h0, and `product` is before w^T + bias. */
template <class S, class F>
static ax_status run_forward(const ax_call *call, const sequence &s, const ax_tensor *w,
                             const compute<S> *bias, const S *h0, const S *y, F cells)
{
  room<compute<S>> product(w->device, s.batch * s.gates);
  ax_status st = product.st;
  walk k = { -1, 0, 0, 0 };
  while (st == AX_OK && ax_rnn_next(&s, false, &k)) {
    if (k.n == 0 || s.hidden == 0) continue;
    const S *before = k.former < 0 ? h0 : y + k.former * s.hidden;
    st = times_weight<S>(call, s, k.n, before, w, bias, product.p);
    if (st == AX_OK) st = cells(k, before, (const compute<S> *)product.p);
  }
  return st;
}

/* Runs cells(k) for each step k from the last one back: it reads dh, the gradient of the state (0
 * behind the last step), and writes the gates' gradients, rows of dg.  Then dh is their product
 * with w, or (add) has it added. */
template <class S, class F>
static ax_status run_backward(const ax_call *call, const sequence &s, const ax_tensor *w, const S *dg,
                              bool add, compute<S> *dh, F cells)
{
  ax_status st = run_convert<compute<S>, S>(w->device, dh, NULL, s.batch * s.hidden);
  walk k = { -1, 0, 0, 0 };
  while (st == AX_OK && ax_rnn_next(&s, true, &k)) {
    if (k.n == 0 || s.hidden == 0) continue;
    st = cells(k);
    if (st == AX_OK) st = times_transposed<S>(call, s, k.n, dg + k.at * s.gates, w, add, dh);
  }
  return st;
}

AX_CUDA_KERNEL(lstm_layer)
{
  const ax_tensor *gx = call->in[0], *w = call->in[1], *h0 = call->in[2], *c0 = call->in[3];
  const bool reverse = call->a->lstm_layer.reverse;
  return with_layer(call, gx, w, h0, sizes_of(call, 4), reverse, [&](auto type, const sequence &s) {
    typedef AX_TYPE_OF(type) S;
    typedef compute<S> T;
    const ax_device d = gx->device;
    const int64_t H = s.hidden, G = s.gates;
    const S *x = data<S>(gx);
    S *y = data<S>(call->out[0]), *gates = kept<S>(call->out[2]), *all_c = gates + s.rows * G;
    room<T> c(d, s.batch * H); /* a sequence that has ended leaves its last state here */
    ax_status st = c.st;
    if (st == AX_OK) st = run_convert<T, S>(d, c.p, data<S>(c0), s.batch * H);
    if (st == AX_OK)
      st = run_forward(call, s, w, (const T *)NULL, data<S>(h0), y, [&](auto k, const S *, const T *product) {
        return run_cells("lstm_layer", d, lstm_cells<S, T>, k.n, H, x + k.at * G, product, c.p, c.p,
                         y + k.at * H, gates + k.at * G, all_c + k.at * H);
      });
    return st == AX_OK ? run_convert<S, T>(d, data<S>(call->out[1]), c.p, s.batch * H) : st;
  });
}

AX_CUDA_KERNEL(_lstm_layer_backward)
{
  const ax_tensor *gy = call->in[0], *gc = call->in[1], *saved = call->in[2], *c0 = call->in[3],
                  *w = call->in[4], *dg = call->out[0];
  const bool reverse = call->a->lstm_layer_backward.reverse;
  return with_layer(call, dg, w, c0, call->in[5], reverse, [&](auto type, const sequence &s) {
    typedef AX_TYPE_OF(type) S;
    typedef compute<S> T;
    const ax_device d = w->device;
    const int64_t H = s.hidden, G = s.gates;
    const S *g = data<S>(gy), *gates = kept<S>(saved), *all_c = gates + s.rows * G, *c = data<S>(c0);
    S *to = data<S>(dg);
    room<T> dh(d, s.batch * H), dc(d, s.batch * H);
    ax_status st = dh.st != AX_OK ? dh.st : dc.st;
    if (st == AX_OK) st = run_convert<T, S>(d, dc.p, data<S>(gc), s.batch * H);
    if (st == AX_OK)
      st = run_backward(call, s, w, (const S *)to, false, dh.p, [&](auto k) {
        return run_cells("lstm_layer", d, lstm_back<S, T>, k.n, H, gates + k.at * G,
                         k.former < 0 ? c : all_c + k.former * H, all_c + k.at * H,
                         g ? g + k.at * H : (const S *)NULL, dh.p, dc.p, dc.p, to + k.at * G);
      });
    if (st == AX_OK) st = run_convert<S, T>(d, data<S>(call->out[1]), dh.p, s.batch * H);
    return st == AX_OK ? run_convert<S, T>(d, data<S>(call->out[2]), dc.p, s.batch * H) : st;
  });
}

AX_CUDA_KERNEL(gru_layer)
{
  const ax_tensor *gx = call->in[0], *w = call->in[1], *bias = call->in[2], *h0 = call->in[3];
  const bool reverse = call->a->gru_layer.reverse;
  return with_layer(call, gx, w, h0, sizes_of(call, 4), reverse, [&](auto type, const sequence &s) {
    typedef AX_TYPE_OF(type) S;
    typedef compute<S> T;
    const ax_device d = gx->device;
    const int64_t H = s.hidden;
    const S *x = data<S>(gx);
    S *y = data<S>(call->out[0]), *gates = kept<S>(call->out[1]);
    room<T> wide(d, s.gates); /* the bias in the type computed in */
    ax_status st = wide.st;
    if (st == AX_OK && bias) st = run_convert<T, S>(d, wide.p, data<S>(bias), s.gates);
    if (st != AX_OK) return st;
    return run_forward(call, s, w, bias ? wide.p : (const T *)NULL, data<S>(h0), y,
                       [&](auto k, const S *before, const T *product) {
      return run_cells("gru_layer", d, gru_cells<S, T>, k.n, H, x + k.at * s.gates, product, before,
                       y + k.at * H, gates + k.at * AX_GRU_SAVED * H);
    });
  });
}

AX_CUDA_KERNEL(_gru_layer_backward)
{
  const ax_tensor *gy = call->in[0], *saved = call->in[1], *out = call->in[2], *h0 = call->in[3],
                  *w = call->in[4], *dgx = call->out[0];
  const bool reverse = call->a->gru_layer_backward.reverse;
  return with_layer(call, dgx, w, h0, call->in[5], reverse, [&](auto type, const sequence &s) {
    typedef AX_TYPE_OF(type) S;
    typedef compute<S> T;
    const ax_device d = w->device;
    const int64_t H = s.hidden, G = s.gates;
    const S *g = data<S>(gy), *gates = kept<S>(saved), *y = data<S>(out), *h = data<S>(h0);
    S *to_x = data<S>(dgx), *to_h = data<S>(call->out[1]);
    room<T> dh(d, s.batch * H);
    ax_status st = dh.st;
    if (st == AX_OK)
      st = run_backward(call, s, w, (const S *)to_h, true, dh.p, [&](auto k) {
        return run_cells("gru_layer", d, gru_back<S, T>, k.n, H, gates + k.at * AX_GRU_SAVED * H,
                         k.former < 0 ? h : y + k.former * H, g + k.at * H, dh.p, dh.p, to_x + k.at * G,
                         to_h + k.at * G);
      });
    return st == AX_OK ? run_convert<S, T>(d, data<S>(call->out[2]), dh.p, s.batch * H) : st;
  });
}

AX_CUDA_KERNEL(rnn_layer)
{
  const ax_tensor *gx = call->in[0], *w = call->in[1], *h0 = call->in[2];
  const auto &a = call->a->rnn_layer;
  return with_layer(call, gx, w, h0, sizes_of(call, 3), a.reverse, [&](auto type, const sequence &s) {
    typedef AX_TYPE_OF(type) S;
    typedef compute<S> T;
    const int64_t H = s.hidden;
    const S *x = data<S>(gx);
    S *y = data<S>(call->out[0]);
    return run_forward(call, s, w, (const T *)NULL, data<S>(h0), y, [&](auto k, const S *, const T *product) {
      return run_cells("rnn_layer", gx->device, rnn_cells<S, T>, k.n, H, x + k.at * H, product, y + k.at * H,
                       a.nonlinearity);
    });
  });
}

AX_CUDA_KERNEL(_rnn_layer_backward)
{
  const ax_tensor *gy = call->in[0], *out = call->in[1], *w = call->in[2], *h0 = call->in[3],
                  *dg = call->out[0];
  const auto &a = call->a->rnn_layer_backward;
  return with_layer(call, dg, w, h0, call->in[4], a.reverse, [&](auto type, const sequence &s) {
    typedef AX_TYPE_OF(type) S;
    typedef compute<S> T;
    const ax_device d = w->device;
    const int64_t H = s.hidden;
    const S *g = data<S>(gy), *y = data<S>(out);
    S *to = data<S>(dg);
    room<T> dh(d, s.batch * H);
    ax_status st = dh.st;
    if (st == AX_OK)
      st = run_backward(call, s, w, (const S *)to, false, dh.p, [&](auto k) {
        return run_cells("rnn_layer", d, rnn_back<S, T>, k.n, H, y + k.at * H, g + k.at * H, dh.p,
                         to + k.at * H, a.nonlinearity);
      });
    return st == AX_OK ? run_convert<S, T>(d, data<S>(call->out[1]), dh.p, s.batch * H) : st;
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

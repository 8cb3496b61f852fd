/* The pointwise parts of recurrent cells, forward and backward: loops over the gates of some rows.
 *     LSTM (gates i f g o): c' = f c + i g, h' = o tanh(c')
 *     GRU (gates r z n):    n = tanh(nx + r nh), h' = (1 - z) n + z h */
#ifndef AX_CPU_RNN_ROWS_H
#define AX_CPU_RNN_ROWS_H

#include "core/ops/rnn_steps.h"
#include "cpu.h"

#include "pointwise.h"

/* Operands have one row for each sequence: `hidden` numbers, or that many for each gate. */
typedef struct cells {
  int64_t hidden;
  bool relu;
  const void *gx, *gh;      /* the two parts of the gates */
  void *gates;              /* what the gradient needs of them; may be gh itself */
  const void *before, *now; /* the state (c, or h of a GRU) before and after the step */
  void *state, *h;          /* written: the new c; the new h */
  const void *gy;           /* the gradient of h from outside; NULL: none */
  const void *gc;           /* only for cells: the gradient of c from outside */
  void *dh, *dc;            /* the gradients of the state: read, and written for the previous step */
  void *dgx, *dgh;
} cells;

#define POINTWISE(S, T) \
  static void lstm_rows_##S(int64_t lo, int64_t hi, void *ud) \
  { \
    const cells *p = ud; \
    const int64_t H = p->hidden; \
    for (int64_t r = lo; r < hi; r++) { \
      const T *x = (const T *)p->gx + r * AX_LSTM_GATES * H, *y = (const T *)p->gh + r * AX_LSTM_GATES * H, \
              *c0 = (const T *)p->before + r * H; \
      T *a = (T *)p->gates + r * AX_LSTM_GATES * H, *c1 = (T *)p->state + r * H, *h = (T *)p->h + r * H; \
      AX_SIMD \
      for (int64_t k = 0; k < H; k++) { \
        const T i = ax_sigmoid_##S(x[k] + y[k]), \
                f = ax_sigmoid_##S(x[AX_LSTM_F * H + k] + y[AX_LSTM_F * H + k]); \
        const T g = ax_tanh_##S(x[AX_LSTM_G * H + k] + y[AX_LSTM_G * H + k]), \
                o = ax_sigmoid_##S(x[AX_LSTM_O * H + k] + y[AX_LSTM_O * H + k]); \
        const T c = f * c0[k] + i * g; \
        a[k] = i; \
        a[AX_LSTM_F * H + k] = f; \
        a[AX_LSTM_G * H + k] = g; \
        a[AX_LSTM_O * H + k] = o; \
        c1[k] = c; \
        h[k] = o * ax_tanh_##S(c); \
      } \
    } \
  } \
  /* dh and dc hold the gradient from the next step; dc becomes that of the previous step (dh is \
   * the result of a product) */ \
  static void lstm_back_##S(int64_t lo, int64_t hi, void *ud) \
  { \
    const cells *p = ud; \
    const int64_t H = p->hidden; \
    for (int64_t r = lo; r < hi; r++) { \
      const T *a = (const T *)p->gates + r * AX_LSTM_GATES * H, *c0 = (const T *)p->before + r * H, \
              *c1 = (const T *)p->now + r * H; \
      const T *gy = p->gy ? (const T *)p->gy + r * H : NULL, *dh = (const T *)p->dh + r * H; \
      T *dc = (T *)p->dc + r * H, *d = (T *)p->dgx + r * AX_LSTM_GATES * H; \
      AX_SIMD \
      for (int64_t k = 0; k < H; k++) { \
        const T i = a[k], f = a[AX_LSTM_F * H + k], g = a[AX_LSTM_G * H + k], o = a[AX_LSTM_O * H + k], \
                t = ax_tanh_##S(c1[k]); \
        const T e = dh[k] + (gy ? gy[k] : 0), s = dc[k] + e * o * (1 - t * t); \
        d[k] = s * g * (i * (1 - i)); \
        d[AX_LSTM_F * H + k] = s * c0[k] * (f * (1 - f)); \
        d[AX_LSTM_G * H + k] = s * i * (1 - g * g); \
        d[AX_LSTM_O * H + k] = e * t * (o * (1 - o)); \
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
      const T *x = (const T *)p->gx + q * AX_GRU_GATES * H, *y = (const T *)p->gh + q * AX_GRU_GATES * H, \
              *h0 = (const T *)p->before + q * H; \
      T *a = (T *)p->gates + q * AX_GRU_SAVED * H, *h = (T *)p->h + q * H; \
      AX_SIMD \
      for (int64_t k = 0; k < H; k++) { \
        const T r = ax_sigmoid_##S(x[k] + y[k]), \
                z = ax_sigmoid_##S(x[AX_GRU_Z * H + k] + y[AX_GRU_Z * H + k]), m = y[AX_GRU_N * H + k]; \
        const T n = ax_tanh_##S(x[AX_GRU_N * H + k] + r * m); \
        a[k] = r; \
        a[AX_GRU_Z * H + k] = z; \
        a[AX_GRU_N * H + k] = n; \
        a[AX_GRU_M * H + k] = m; \
        h[k] = n + z * (h0[k] - n); \
      } \
    } \
  } \
  /* dh: read, and set to the part of the previous step's gradient that bypasses the gates */ \
  static void gru_back_##S(int64_t lo, int64_t hi, void *ud) \
  { \
    const cells *p = ud; \
    const int64_t H = p->hidden; \
    for (int64_t q = lo; q < hi; q++) { \
      const T *a = (const T *)p->gates + q * AX_GRU_SAVED * H, *h0 = (const T *)p->before + q * H; \
      const T *gy = p->gy ? (const T *)p->gy + q * H : NULL; \
      T *dh = (T *)p->dh + q * H, *x = (T *)p->dgx + q * AX_GRU_GATES * H, \
        *y = (T *)p->dgh + q * AX_GRU_GATES * H; \
      AX_SIMD \
      for (int64_t k = 0; k < H; k++) { \
        const T r = a[k], z = a[AX_GRU_Z * H + k], n = a[AX_GRU_N * H + k], m = a[AX_GRU_M * H + k], \
                e = dh[k] + (gy ? gy[k] : 0); \
        const T dn = e * (1 - z) * (1 - n * n), dr = dn * m * (r * (1 - r)), \
                dz = e * (h0[k] - n) * (z * (1 - z)); \
        x[k] = dr; \
        x[AX_GRU_Z * H + k] = dz; \
        x[AX_GRU_N * H + k] = dn; \
        y[k] = dr; \
        y[AX_GRU_Z * H + k] = dz; \
        y[AX_GRU_N * H + k] = dn * r; \
        dh[k] = e * z; \
      } \
    } \
  } \
  /* h already holds the hidden part of the sum */ \
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
  static const ax_range_fn fns[2][6] = {
    { lstm_rows_f32, lstm_back_f32, gru_rows_f32, gru_back_f32, rnn_rows_f32, rnn_back_f32 },
    { lstm_rows_f64, lstm_back_f64, gru_rows_f64, gru_back_f64, rnn_rows_f64, rnn_back_f64 }
  };
  if (rows > 0) ax_cpu_for(rows, rows * p->hidden * 8, fns[d == AX_F64][what], p);
}

#endif

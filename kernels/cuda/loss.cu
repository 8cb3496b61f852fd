/* cross_entropy, nll_loss and their gradients; kernels/cpu/loss.c has the formulas.  A row of the
 * input is read once, for the largest element and the sum of exponentials together; probabilities
 * are never stored.  The gradient is one pass: (exp(x - lse) - [target]) times the row's scale.
 * One block adds up the rows' losses in float64, in an order that follows from their number.
 * Memory bounds long rows. */
#include "rows.cuh"

enum { MEAN, SUM, NONE }; /* the words of the signature, in order */
/* A thread loads so many rows' losses before it adds the first: one block has few loads in
 * flight. */
enum { TOTAL_THREADS = 512, TOTAL_AHEAD = 8 };

struct job {
  int op;
  int64_t rows, classes;
  int64_t step; /* from row to row of the input and its gradient */
  const int64_t *target;
  int64_t ignore;
  double smoothing;
  bool every; /* the loss of each row is a result */
  ax_cuda_fault *fault;
};

/* The results of a call's rows: each one's loss and weight. */
struct parts {
  double *loss, *weight;
};

/* out = sum or mean of the losses; *divisor (of the compute type, or NULL) = the sum of weights.
 * One block. */
static __global__ void total_kernel(parts p, int64_t rows, int reduction, double count, int out_dtype,
                                    void *out, int sums_dtype, void *divisor)
{
  __shared__ double shared[32];
  double loss = 0, weight = 0;
  for (int64_t r = threadIdx.x; r < rows; r += TOTAL_AHEAD * blockDim.x) {
    double own[TOTAL_AHEAD], by[TOTAL_AHEAD];
#pragma unroll
    for (int u = 0; u < TOTAL_AHEAD; u++) {
      const int64_t at = r + u * blockDim.x;
      own[u] = at < rows ? p.loss[at] : 0;
      by[u] = at < rows && p.weight ? p.weight[at] : 0;
    }
#pragma unroll
    for (int u = 0; u < TOTAL_AHEAD; u++) {
      loss += own[u];
      weight += by[u];
    }
  }
  auto add = [](double a, double b) { return a + b; };
  loss = ax_cuda_block_reduce(loss, add, shared);
  weight = ax_cuda_block_reduce(weight, add, shared);
  if (threadIdx.x) return;
  if (divisor) ax_cuda_number_put(sums_dtype, divisor, 0, weight);
  if (reduction != NONE)
    ax_cuda_number_put(out_dtype, out, 0, reduction == SUM ? loss : loss / (p.weight ? weight : count));
}

/* Collects the rows' losses for `out`, and reduces them. */
static ax_status total(const ax_call *call, parts p, int64_t rows, int64_t reduction, ax_dtype sums,
                       void *divisor)
{
  const ax_tensor *y = call->out[0];
  return ax_cuda_launch(ax_ops[call->op].name, y->device, 1, rows < 1024 ? 32 : TOTAL_THREADS, total_kernel,
                        p, rows, (int)reduction, (double)rows, (int)y->dtype, ax_data(y), (int)sums, divisor);
}

static ax_status take_parts(ax_device d, int64_t rows, parts *p, size_t *bytes)
{
  *bytes = (size_t)(rows ? rows : 1) * 2 * sizeof(double);
  const ax_status st = ax_cuda_take(d, *bytes, (void **)&p->loss);
  if (st == AX_OK) p->weight = p->loss + rows;
  return st;
}

/* ---- classes */

template <class S, int V, bool WIDE>
static __global__ void loss_rows(job j, const S *x, const compute<S> *w, compute<S> *lse, parts p,
                                 int out_dtype, void *out)
{
  typedef compute<S> T;
  typedef ax_cuda_team<WIDE> team;
  __shared__ T shared[32];
  __shared__ double wide[32];
  for (int64_t r = team::first_row(); r < j.rows; r += team::row_step()) {
    const S *row = x + r * j.step;
    const bool smooth = j.smoothing != 0;
    ax_cuda_exps<T> e;
    double wx = 0, all = 0; /* sums of w x and of w */
    ax_cuda_read<V, 4, team>(row, j.classes, [&](int64_t i, auto &v) {
      e.add(v);
      if (smooth)
        for (int k = 0; k < AX_WIDTH_OF(v); k++) {
          const double u = w ? (double)w[i + k] : 1.0;
          wx += u * (double)v[k];
          all += u;
        }
    });
    e.template join<team>(shared);
    if (smooth) {
      wx = team::sum(wx, wide);
      all = team::sum(all, wide);
    }
    if (team::rank()) continue;
    const T log_sum = ax_cuda_row_log(e.sum);
    const int64_t t = j.target[r];
    double loss = 0, own = 0;
    lse[r] = e.top + log_sum;
    if (t != j.ignore && ax_cuda_in_range(j.fault, AX_FAULT_TARGET, j.op, t, r, j.classes)) {
      own = w ? (double)w[t] : 1.0;
      loss = own * (((double)e.top - (double)ax_cuda_load(row[t])) + (double)log_sum);
      if (smooth)
        loss = (1 - j.smoothing) * loss +
               j.smoothing / (double)j.classes * (((double)e.top + (double)log_sum) * all - wx);
    }
    p.loss[r] = loss;
    p.weight[r] = own;
    if (j.every) ax_cuda_number_put(out_dtype, out, r, loss);
  }
}

/* Fills in *j from the call; its target is input k, or there is none (-1). */
static ax_status begin(const ax_call *call, const ax_tensor *x, int target, job *j)
{
  if (!ax_is_float((ax_dtype)x->dtype)) return ax_cuda_no_dtype(AX_OP_CROSS_ENTROPY, (ax_dtype)x->dtype);
  *j = job{};
  j->op = AX_OP_CROSS_ENTROPY;
  j->classes = x->shape[x->ndim - 1];
  j->rows = x->ndim > 1 ? x->shape[0] : 1;
  j->step = j->rows > 1 ? x->strides[0] : j->classes;
  if (call->op != AX_OP_NLL_LOSS_ROWS) j->smoothing = call->a->cross_entropies.label_smoothing;
  j->fault = ax_cuda_fault_place(x->device);
  if (!j->fault) return AX_ENOMEM;
  if (target < 0) return AX_OK;
  j->target = ax_cuda_data<int64_t>(call->in[target]);
  j->ignore = call->a->class_indices.ignore_index;
  return AX_OK;
}

static const ax_tensor *weight_of(const ax_call *call, int k) { return call->n_in > k ? call->in[k] : NULL; }

AX_CUDA_KERNEL(_cross_entropy)
{
  const ax_tensor *x = call->in[0], *y = call->out[0], *sums = call->out[1];
  const int64_t reduction = call->a->cross_entropy_rows.reduction;
  const ax_tensor *w = weight_of(call, 2);
  size_t bytes;
  parts p;
  job j = {};
  ax_status st = begin(call, x, 1, &j);

  if (st != AX_OK || (st = take_parts(x->device, j.rows, &p, &bytes)) != AX_OK) return st;
  j.every = reduction == NONE;
  if (j.rows)
    st = ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
      typedef AX_TYPE_OF(tag) S;
      typedef compute<S> T;
      return ax_cuda_with_any_rows<S>(j.classes, 0, [&](auto v, auto wide) {
        return ax_cuda_launch_rows("cross_entropy", x->device, j.rows, j.classes,
                                   loss_rows<S, AX_VALUE_OF(v), AX_VALUE_OF(wide)>, j, ax_cuda_data<S>(x),
                                   ax_cuda_data<T>(w), ax_cuda_data<T>(sums), p, (int)y->dtype, ax_data(y));
      });
    });
  if (st == AX_OK)
    st = total(call, p, j.rows, reduction, (ax_dtype)sums->dtype,
               (char *)ax_data(sums) + j.rows * (int64_t)ax_itemsize(sums));
  ax_cuda_give(x->device, p.loss, bytes);
  return st;
}

/* scale (factor softmax(x) - even w), minus `own` at the target */
template <class S, int V, bool WIDE>
static __global__ void gradient_rows(job j, S *dx, const S *x, const compute<S> *w, const compute<S> *lse,
                                     int g_dtype, const void *g, bool mean)
{
  typedef compute<S> T;
  typedef ax_cuda_team<WIDE> team;
  __shared__ double wide[32];
  for (int64_t r = team::first_row(); r < j.rows; r += team::row_step()) {
    const int64_t at = r * j.step, t = j.target[r];
    if (t == j.ignore || t < 0 || t >= j.classes) { /* the row does not count */
      ax_cuda_walk<V, team>(dx + at, j.classes, [&](int64_t i, auto width) {
        const T zeros[AX_VALUE_OF(width)] = {};
        ax_cuda_put(dx, at + i, zeros);
      });
      continue;
    }
    const double scale =
        ax_cuda_number_at(g_dtype, g, j.every ? r : 0) * (mean ? 1 / (double)lse[j.rows] : 1.0);
    double all = (double)j.classes;
    if (w && j.smoothing != 0) {
      all = 0;
      for (int64_t i = team::rank(); i < j.classes; i += team::size()) all += (double)w[i];
      all = team::sum(all, wide);
    }
    const double own = scale * (1 - j.smoothing) * (w ? (double)w[t] : 1.0),
                 even = scale * j.smoothing / (double)j.classes;
    const T factor = (T)(own + even * all), less = (T)own, each = (T)even, l = lse[r];
    auto put = [&](int64_t i, auto &v) {
      constexpr int W = AX_WIDTH_OF(v);
      if (t >= i && t < i + W)
        for (int k = 0; k < W; k++)
          if (i + k == t) v[k] -= less;
      ax_cuda_put(dx, at + i, v);
    };
    if (w)
      ax_cuda_walk<V, team>(x + at, j.classes, [&](int64_t i, auto width) {
        T v[AX_VALUE_OF(width)];
        ax_cuda_get(x, at + i, v);
        for (int k = 0; k < AX_WIDTH_OF(v); k++) v[k] = ax_cuda_term(v[k], l) * factor - each * w[i + k];
        put(i, v);
      });
    else
      ax_cuda_read<V, 4, team>(x + at, j.classes, [&](int64_t i, auto &v) {
        for (int k = 0; k < AX_WIDTH_OF(v); k++) v[k] = ax_cuda_term(v[k], l) * factor - each;
        put(i, v);
      });
  }
}

AX_CUDA_KERNEL(_cross_entropy_backward)
{
  const ax_tensor *g = call->in[0], *x = call->in[1], *lse = call->in[3], *dx = call->out[0];
  const ax_tensor *w = weight_of(call, 4);
  job j = {};
  ax_status st = begin(call, x, 2, &j);

  if (st != AX_OK || dx->numel == 0) return st;
  j.every = call->a->cross_entropy_backward.reduction == NONE && g->ndim > 0;
  return ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    return ax_cuda_with_any_rows<S>(j.classes, (uintptr_t)ax_data(x) ^ (uintptr_t)ax_data(dx),
                                    [&](auto v, auto wide) {
      return ax_cuda_launch_rows("cross_entropy", x->device, j.rows, j.classes,
                                 gradient_rows<S, AX_VALUE_OF(v), AX_VALUE_OF(wide)>, j, ax_cuda_data<S>(dx),
                                 ax_cuda_data<S>(x), ax_cuda_data<T>(w), ax_cuda_data<T>(lse), (int)g->dtype,
                                 (const void *)ax_data(g), call->a->cross_entropy_backward.reduction == MEAN);
    });
  });
}

/* ---- class probabilities: loss = sum(w q (lse - x)) of the smoothed q */

template <class S, int V, bool WIDE>
static __global__ void soft_rows(job j, const S *x, const S *q, const compute<S> *w, compute<S> *sums,
                                 parts p, int out_dtype, void *out)
{
  typedef compute<S> T;
  typedef ax_cuda_team<WIDE> team;
  __shared__ T shared[32];
  __shared__ double wide[32];
  const double even = j.smoothing / (double)j.classes, rest = 1 - j.smoothing;
  for (int64_t r = team::first_row(); r < j.rows; r += team::row_step()) {
    const int64_t at = r * j.classes;
    ax_cuda_exps<T> e;
    double ux = 0, all = 0;
    ax_cuda_walk<V, team>(x + at, j.classes, [&](int64_t i, auto width) {
      constexpr int W = AX_VALUE_OF(width);
      T v[W], share[W];
      ax_cuda_get(x, at + i, v);
      ax_cuda_get(q, at + i, share);
      e.add(v);
      for (int k = 0; k < W; k++) {
        const double u = ((double)share[k] * rest + even) * (w ? (double)w[i + k] : 1.0);
        ux += u * (double)v[k];
        all += u;
      }
    });
    e.template join<team>(shared);
    ux = team::sum(ux, wide);
    all = team::sum(all, wide);
    if (team::rank()) continue;
    const T log_sum = ax_cuda_row_log(e.sum);
    const double loss = ((double)e.top + (double)log_sum) * all - ux;
    sums[r] = e.top + log_sum;
    sums[j.rows + r] = (T)all;
    p.loss[r] = loss;
    if (j.every) ax_cuda_number_put(out_dtype, out, r, loss);
  }
}

AX_CUDA_KERNEL(_cross_entropy_soft)
{
  const ax_tensor *x = call->in[0], *q = call->in[1], *y = call->out[0], *sums = call->out[1];
  const int64_t reduction = call->a->cross_entropy_soft.reduction;
  const ax_tensor *w = weight_of(call, 2);
  size_t bytes;
  parts p;
  job j = {};
  ax_status st = begin(call, x, -1, &j);

  if (st != AX_OK || (st = take_parts(x->device, j.rows, &p, &bytes)) != AX_OK) return st;
  j.every = reduction == NONE;
  p.weight = NULL;
  if (j.rows)
    st = ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
      typedef AX_TYPE_OF(tag) S;
      typedef compute<S> T;
      return ax_cuda_with_any_rows<S>(j.classes, (uintptr_t)ax_data(x) ^ (uintptr_t)ax_data(q),
                                      [&](auto v, auto wide) {
        return ax_cuda_launch_rows("cross_entropy", x->device, j.rows, j.classes,
                                   soft_rows<S, AX_VALUE_OF(v), AX_VALUE_OF(wide)>, j, ax_cuda_data<S>(x),
                                   ax_cuda_data<S>(q), ax_cuda_data<T>(w), ax_cuda_data<T>(sums), p,
                                   (int)y->dtype, ax_data(y));
      });
    });
  if (st == AX_OK) st = total(call, p, j.rows, reduction, (ax_dtype)sums->dtype, NULL);
  ax_cuda_give(x->device, p.loss, bytes);
  return st;
}

/* scale (all softmax(x) - w ((1 - e) q + e / C)) */
template <class S, int V, bool WIDE>
static __global__ void soft_gradient_rows(job j, S *dx, const S *x, const S *q, const compute<S> *w,
                                          const compute<S> *sums, int g_dtype, const void *g, double by)
{
  typedef compute<S> T;
  typedef ax_cuda_team<WIDE> team;
  const T even = (T)(j.smoothing / (double)j.classes), rest = (T)(1 - j.smoothing);
  for (int64_t r = team::first_row(); r < j.rows; r += team::row_step()) {
    const int64_t at = r * j.classes;
    const T scale = (T)(ax_cuda_number_at(g_dtype, g, j.every ? r : 0) * by), l = sums[r],
            all = sums[j.rows + r];
    ax_cuda_walk<V, team>(x + at, j.classes, [&](int64_t i, auto width) {
      constexpr int W = AX_VALUE_OF(width);
      T v[W], share[W];
      ax_cuda_get(x, at + i, v);
      ax_cuda_get(q, at + i, share);
      for (int k = 0; k < W; k++) {
        const T smoothed = share[k] * rest + even;
        v[k] = scale * (ax_cuda_term(v[k], l) * all - (w ? w[i + k] * smoothed : smoothed));
      }
      ax_cuda_put(dx, at + i, v);
    });
  }
}

AX_CUDA_KERNEL(_cross_entropy_soft_backward)
{
  const ax_tensor *g = call->in[0], *x = call->in[1], *q = call->in[2], *sums = call->in[3],
                  *dx = call->out[0];
  const ax_tensor *w = weight_of(call, 4);
  job j = {};
  ax_status st = begin(call, x, -1, &j);

  if (st != AX_OK || dx->numel == 0) return st;
  j.every = call->a->cross_entropy_soft_backward.reduction == NONE && g->ndim > 0;
  const double by = call->a->cross_entropy_soft_backward.reduction == MEAN ? 1 / (double)j.rows : 1;
  return ax_cuda_with_float(call->op, (ax_dtype)x->dtype, [&](auto tag) {
    typedef AX_TYPE_OF(tag) S;
    typedef compute<S> T;
    return ax_cuda_with_any_rows<S>(j.classes,
                                    ((uintptr_t)ax_data(x) ^ (uintptr_t)ax_data(q)) |
                                        ((uintptr_t)ax_data(x) ^ (uintptr_t)ax_data(dx)),
                                    [&](auto v, auto wide) {
      return ax_cuda_launch_rows("cross_entropy", x->device, j.rows, j.classes,
                                 soft_gradient_rows<S, AX_VALUE_OF(v), AX_VALUE_OF(wide)>, j,
                                 ax_cuda_data<S>(dx), ax_cuda_data<S>(x), ax_cuda_data<S>(q),
                                 ax_cuda_data<T>(w), ax_cuda_data<T>(sums), (int)g->dtype,
                                 (const void *)ax_data(g), by);
    });
  });
}

/* ---- nll_loss: one element of each row */

static __global__ void nll_rows(job j, int dtype, const void *x, int w_dtype, const void *w, parts p,
                                int out_dtype, void *out)
{
  for (int64_t r = AX_FIRST; r < j.rows; r += AX_STEP) {
    const int64_t t = j.target[r];
    const bool counts = t != j.ignore && ax_cuda_in_range(j.fault, AX_FAULT_TARGET, j.op, t, r, j.classes);
    const double own = !counts ? 0.0
                       : w     ? ax_cuda_number_at(w_dtype, w, t)
                               : 1.0,
                 loss = !counts ? 0.0 : -own * ax_cuda_number_at(dtype, x, r * j.classes + t);
    p.loss[r] = loss;
    p.weight[r] = own;
    if (j.every) ax_cuda_number_put(out_dtype, out, r, loss);
  }
}

AX_CUDA_KERNEL(_nll_loss)
{
  const ax_tensor *x = call->in[0], *y = call->out[0], *divisor = call->out[1];
  const ax_tensor *w = call->n_in > 2 ? call->in[2] : NULL;
  size_t bytes;
  parts p;
  job j = {};
  ax_status st = begin(call, x, 1, &j);

  if (st != AX_OK || (st = take_parts(x->device, j.rows, &p, &bytes)) != AX_OK) return st;
  j.op = AX_OP_NLL_LOSS;
  j.every = call->a->nll_loss_rows.reduction == NONE;
  if (j.rows)
    st = ax_cuda_launch("nll_loss", x->device, ax_cuda_blocks(j.rows, 256, x->device.index), 256, nll_rows, j,
                        (int)x->dtype, (const void *)ax_data(x), w ? (int)w->dtype : 0,
                        w ? (const void *)ax_data(w) : NULL, p, (int)y->dtype, ax_data(y));
  if (st == AX_OK)
    st = total(call, p, j.rows, call->a->nll_loss_rows.reduction, (ax_dtype)divisor->dtype, ax_data(divisor));
  ax_cuda_give(x->device, p.loss, bytes);
  return st;
}

static __global__ void nll_gradient(job j, int dtype, void *dx, int g_dtype, const void *g, int w_dtype,
                                    const void *w, int total_dtype, const void *divisor)
{
  for (int64_t r = AX_FIRST; r < j.rows; r += AX_STEP) {
    const int64_t t = j.target[r];
    if (t == j.ignore || t < 0 || t >= j.classes) continue;
    const double own = ax_cuda_number_at(g_dtype, g, j.every ? r : 0) *
                       (divisor ? 1 / ax_cuda_number_at(total_dtype, divisor, 0) : 1.0);
    ax_cuda_number_put(dtype, dx, r * j.classes + t, -(w ? ax_cuda_number_at(w_dtype, w, t) : 1.0) * own);
  }
}

AX_CUDA_KERNEL(_nll_loss_backward)
{
  const ax_tensor *g = call->in[0], *w = call->in[2], *divisor = call->in[3], *dx = call->out[0];
  const int64_t reduction = call->a->nll_loss_backward.reduction;
  job j = {};
  const ax_status st =
      ax_cuda_clear("nll_loss", dx->device, ax_data(dx), (size_t)dx->numel * ax_itemsize(dx));

  if (st != AX_OK || dx->numel == 0) return st;
  j.target = ax_cuda_data<int64_t>(call->in[1]);
  j.rows = call->in[1]->numel;
  j.classes = call->a->nll_loss_backward.classes;
  j.ignore = call->a->nll_loss_backward.ignore_index;
  j.every = reduction == NONE;
  return ax_cuda_launch("nll_loss", dx->device, ax_cuda_blocks(j.rows, 256, dx->device.index), 256,
                        nll_gradient, j, (int)dx->dtype, ax_data(dx), (int)g->dtype, (const void *)ax_data(g),
                        w ? (int)w->dtype : 0, w ? (const void *)ax_data(w) : NULL, (int)divisor->dtype,
                        reduction == MEAN ? (const void *)ax_data(divisor) : NULL);
}

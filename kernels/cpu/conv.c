/* Convolutions: the choice of the implementation.  3 x 3 kernels use Winograd's transforms where
 * that pays (winograd.c).  oneDNN computes float32 and bfloat16 where it has fast code
 * (dnnl_conv.c).  float16, and bfloat16 without fast code, is converted to float32; float64 and the
 * remaining float32 cases use plain loops (conv_plain.c). */
#include "conv.h"

#include <omp.h>
#include <string.h>

/* ---- half types in float32 */

typedef struct widened {
  void *p;
  size_t bytes;
} widened;

static ax_status widen(ax_dtype from, const void *p, int64_t n, bool fill, widened *to)
{
  to->bytes = (size_t)n * sizeof(float);
  const ax_status st = ax_alloc(to->bytes, &to->p);
  if (st == AX_OK && fill) ax_cpu_half_to_float(from, p, 2, to->p, n);
  return st;
}

static ax_status run(const ax_conv *v, const ax_conv_data *d, bool accumulate);

static ax_status in_float32(const ax_conv *v, const ax_conv_data *d, bool accumulate)
{
  const ax_dtype type = (ax_dtype)v->dtype;
  const int64_t sizes[4] = { v->n * ax_conv_x(v), ax_conv_weights(v), v->n * ax_conv_positions(v) * v->o,
                             v->bias ? v->o : 0 };
  const void *given[4] = { d->x, d->w, d->y, d->bias };
  const int written = v->what == AX_CONV_FORWARD ? 2 : v->what == AX_CONV_INPUT ? 0 : 1;
  widened wide[4] = { 0 };
  ax_conv own = *v;
  ax_status st = AX_OK;

  for (int k = 0; k < 4; k++)
    if (k < 3 || v->bias)
      AX_TRY(widen(type, given[k], sizes[k], (k != written || accumulate) && !(k == written && d->wide),
                   &wide[k]));
  own.dtype = AX_F32;
  AX_TRY(run(&own, &(ax_conv_data){ wide[0].p, d->wide ? d->w : wide[1].p, wide[2].p, wide[3].p, false },
             accumulate));
  if (!d->wide) ax_cpu_float_to_half(type, wide[written].p, (char *)given[written], 2, sizes[written]);
out:
  for (int k = 0; k < 4; k++)
    if (wide[k].p) ax_free(wide[k].p, wide[k].bytes);
  return st;
}

/* ---- pieces of the batch
 *
 * For the gradient of the weight, oneDNN divides the batch among threads, and the sum then depends
 * on their number.  So the batch is cut here into pieces whose number follows from the sizes; each
 * piece runs on one thread, and the results are added in order.  Gradients of inputs are cut where
 * oneDNN computes them by matrix products whose sums it divides. */

enum {
  MAX_PIECES = 16,
  PIECE_POSITIONS = 512 /* a smaller piece costs more to add up than to compute */
};

typedef struct pieces {
  const ax_conv *v;
  const ax_conv_data *d;
  float *sums; /* WEIGHT: one set of weights for each piece */
  char *scratch;
  size_t scratch_bytes; /* for each piece */
  int64_t count, weights;
  bool accumulate;
  ax_status status[MAX_PIECES];
  bool done[MAX_PIECES];
} pieces;

static void run_pieces(int64_t lo, int64_t hi, void *ud)
{
  pieces *p = ud;
  const ax_conv *v = p->v;
  const int64_t size = (int64_t)ax_dtype_size((ax_dtype)v->dtype);
  const int threads = omp_get_max_threads();

  omp_set_num_threads(1); /* sets only this thread's number: its primitives are made for one */
  for (int64_t k = lo; k < hi; k++) {
    const int64_t from = v->n * k / p->count, to = v->n * (k + 1) / p->count;
    ax_conv part = *v;
    part.n = to - from;
    const ax_conv_data d = { (char *)p->d->x + from * ax_conv_x(v) * size,
                             p->sums ? p->sums + k * p->weights : p->d->w,
                             (char *)p->d->y + from * ax_conv_positions(v) * v->o * size, NULL,
                             p->sums != NULL };
    p->status[k] = ax_dnnl_conv(&part, &d, p->scratch + (size_t)k * p->scratch_bytes, &p->done[k]);
  }
  omp_set_num_threads(threads);
}

static void add_pieces(int64_t lo, int64_t hi, void *ud)
{
  enum { BLOCK = 256 };
  const pieces *p = ud;
  float sum[BLOCK];
  for (int64_t at = lo; at < hi; at += BLOCK) {
    const int64_t n = hi - at < BLOCK ? hi - at : BLOCK;
    const bool wide = p->v->dtype == AX_F32 || p->d->wide;
    float *out = (float *)p->d->w + at;
    uint16_t *half = (uint16_t *)p->d->w + at;
    memcpy(sum, p->sums + at, (size_t)n * sizeof(float));
    for (int64_t k = 1; k < p->count; k++) {
      const float *more = p->sums + k * p->weights + at;
      AX_SIMD
      for (int64_t i = 0; i < n; i++) sum[i] += more[i];
    }
    if (wide)
      for (int64_t i = 0; i < n; i++) out[i] = p->accumulate ? out[i] + sum[i] : sum[i];
    else
      for (int64_t i = 0; i < n; i++)
        half[i] = ax_float_to_bf16(p->accumulate ? ax_bf16_to_float(half[i]) + sum[i] : sum[i]);
  }
}

/* Allocates the scratch memory of the pieces, which have one length or two. */
static ax_status scratch_of_pieces(pieces *p)
{
  const int threads = omp_get_max_threads();
  ax_status st = AX_OK;
  omp_set_num_threads(1);
  for (int64_t extra = 0; st == AX_OK && extra <= (p->v->n % p->count != 0); extra++) {
    ax_conv part = *p->v;
    size_t bytes;
    part.n = p->v->n / p->count + extra;
    st = ax_dnnl_conv_scratch(&part, &bytes);
    bytes = (bytes + 63) / 64 * 64;
    if (bytes > p->scratch_bytes) p->scratch_bytes = bytes;
  }
  omp_set_num_threads(threads);
  return st;
}

/* Runs all pieces.  Fails where one did. */
static ax_status all_pieces(pieces *p, int64_t work, bool *done)
{
  size_t bytes = 0;
  void *scratch = NULL;
  ax_status st;

  *done = false;
  AX_TRY(scratch_of_pieces(p));
  bytes = (size_t)p->count * p->scratch_bytes;
  if (bytes) AX_TRY(ax_alloc(bytes, &scratch));
  p->scratch = scratch;
  ax_cpu_for(p->count, work, run_pieces, p);
  for (int64_t k = 0; k < p->count; k++) {
    if (p->status[k] != AX_OK)
      AX_TRY(ax_fail(p->status[k], "a convolution: a gradient: %s in oneDNN", ax_status_text(p->status[k])));
    if (!p->done[k]) goto out; /* all or none, since pieces differ only in their batch */
  }
  *done = true;
out:
  if (scratch) ax_free(scratch, bytes);
  return st;
}

static ax_status weight_by_dnnl(const ax_conv *v, const ax_conv_data *d, bool accumulate, bool *done)
{
  const int64_t positions = v->n * ax_conv_positions(v);
  pieces p = { .v = v, .d = d, .weights = ax_conv_weights(v), .accumulate = accumulate };
  size_t bytes;
  void *sums = NULL;
  ax_status st;

  p.count = positions / PIECE_POSITIONS < 1 ? 1 : positions / PIECE_POSITIONS;
  if (p.count > v->n) p.count = v->n;
  if (p.count > MAX_PIECES) p.count = MAX_PIECES;
  *done = false;
  const bool direct = p.count == 1 && (v->dtype == AX_F32 || d->wide) && !accumulate;
  bytes = (size_t)(p.count * p.weights) * sizeof(float);
  if (direct) p.sums = d->w;
  else {
    AX_TRY(ax_alloc(bytes, &sums));
    p.sums = sums;
  }
  AX_TRY(all_pieces(&p, positions * p.weights / 16, done));
  if (*done && !direct) ax_cpu_for(p.weights, p.weights * p.count, add_pieces, &p);
out:
  if (sums) ax_free(sums, bytes);
  return st;
}

static ax_status input_in_pieces(const ax_conv *v, const ax_conv_data *d, bool *done)
{
  pieces p = { .v = v, .d = d, .count = v->n < MAX_PIECES ? v->n : MAX_PIECES };
  return all_pieces(&p, v->n * ax_conv_positions(v) * ax_conv_weights(v) / 16, done);
}

/* ---- the three kernels */

static ax_status by_dnnl(const ax_conv *v, const ax_conv_data *d, bool *done)
{
  void *scratch = NULL;
  size_t bytes = 0;
  ax_status st;
  AX_TRY(ax_dnnl_conv_scratch(v, &bytes));
  if (bytes) AX_TRY(ax_alloc(bytes, &scratch));
  st = ax_dnnl_conv(v, d, scratch, done);
out:
  if (scratch) ax_free(scratch, bytes);
  return st;
}

/* oneDNN walks the padding and multiplies these numbers as int: absurd values make it crash or
 * never return. */
static bool moderate(const ax_conv *v)
{
  enum { MOST = 1 << 15 };
  for (int d = 0; d < 3; d++)
    if (v->stride[d] > MOST || v->padding[d] > MOST || v->dilation[d] > MOST) return false;
  return true;
}

static ax_status run(const ax_conv *v, const ax_conv_data *d, bool accumulate)
{
  bool done = false;
  ax_status st = AX_OK;

  if (ax_wino_fits(v)) return ax_wino(v, d, accumulate);
  if ((v->dtype == AX_F32 || v->dtype == AX_BF16) && v->d && v->h && v->w && moderate(v)) {
    if (v->what == AX_CONV_WEIGHT) st = weight_by_dnnl(v, d, accumulate, &done);
    else if (v->what == AX_CONV_INPUT && ax_dnnl_conv_divides_sums(v)) st = input_in_pieces(v, d, &done);
    else st = by_dnnl(v, d, &done);
    if (st != AX_OK || done) return st;
  }
  if (ax_is_half((ax_dtype)v->dtype)) return in_float32(v, d, accumulate);
  return ax_conv_plain(v, d, accumulate);
}

static ax_conv convolution(const ax_call *call, ax_conv_what what, const ax_tensor *x, const int64_t *weight,
                           const ax_tensor *y)
{
  const ax_attrs *a = call->a;
  const int h = x->ndim - 2; /* the dim of the height */
  const bool deep = h == 3;
  ax_conv v = { .what = what,
                .dtype = x->dtype,
                .n = x->shape[0],
                .c = x->shape[1],
                .d = deep ? x->shape[2] : 1,
                .h = x->shape[h],
                .w = x->shape[h + 1],
                .o = y->shape[1],
                .od = deep ? y->shape[2] : 1,
                .oh = y->shape[h],
                .ow = y->shape[h + 1],
                .kd = deep ? weight[2] : 1,
                .kh = weight[h],
                .kw = weight[h + 1],
                .groups = a->convolution.groups };
  for (int k = 0; k < 3; k++) {
    v.stride[k] = a->convolution.stride[k];
    v.padding[k] = a->convolution.padding[k];
    v.dilation[k] = a->convolution.dilation[k];
  }
  return v;
}

static void clear(const ax_tensor *t)
{
  memset(ax_data(t), 0, (size_t)t->numel * ax_dtype_size((ax_dtype)t->dtype));
}

ax_status ax_cpu__convolution(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *w = call->in[1], *bias = call->n_in > 2 ? call->in[2] : NULL,
                  *y = call->out[0];
  ax_conv v = convolution(call, AX_CONV_FORWARD, x, w->shape, y);
  v.bias = bias != NULL;
  if (y->numel == 0) return AX_OK;
  return run(&v, &(ax_conv_data){ ax_data(x), ax_data(w), ax_data(y), bias ? ax_data(bias) : NULL, false },
             false);
}

ax_status ax_cpu__conv2d_backward_input(const ax_call *call)
{
  const ax_tensor *g = call->in[0], *w = call->in[1], *x = call->out[0];
  const ax_conv v = convolution(call, AX_CONV_INPUT, x, w->shape, g);
  if (x->numel == 0) return AX_OK;
  if (g->numel == 0) {
    clear(x);
    return AX_OK;
  }
  return run(&v, &(ax_conv_data){ ax_data(x), ax_data(w), ax_data(g), NULL, false }, false);
}

ax_status ax_cpu__conv2d_backward_weight(const ax_call *call)
{
  const ax_tensor *x = call->in[0], *g = call->in[1], *w = call->out[0];
  const ax_conv v = convolution(call, AX_CONV_WEIGHT, x, w->shape, g);
  const bool accumulate = call->a->accumulate;
  if (w->numel == 0) return AX_OK;
  if (x->numel == 0 || g->numel == 0) {
    if (!accumulate) clear(w);
    return AX_OK;
  }
  return run(&v, &(ax_conv_data){ ax_data(x), ax_data(w), ax_data(g), NULL, w->dtype != x->dtype },
             accumulate);
}

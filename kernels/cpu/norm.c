/* layer_norm, rms_norm, group_norm and their gradients:
 *     y  = (x - mean) rstd w + b          rstd = 1 / sqrt(var + eps); rms_norm: mean = 0
 *     dx = rstd (g w - mean(g w) - xhat mean(g w xhat))          xhat = (x - mean) rstd
 *
 * A row (the last dims, or a group of channels) is read from memory once: later passes over it find
 * it in the first-level cache.  Memory bounds the kernel.  float32 and the half types compute in
 * float32, float64 in float64.
 *
 * Gradients of weight and bias are sums over rows.  Rows are cut into chunks whose number follows
 * from the sizes; each chunk adds up its own rows, and the chunks are added in order, so nothing
 * depends on the number of threads. */
#include "cpu.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#include "pointwise.h"
#include "vector.h"

/* this many rows of at least LONG elements are computed together: weight and bias do not stay in
 * the first-level cache then */
#define ROWS 4
#define LONG 2048 /* shorter rows are computed one by one, in the order in which the processor prefetches */
#define MAX_CHUNKS 64
#define CHUNK 16384 /* the least number of elements of a chunk */
#define PIECE 8192  /* elements of a piece of an image with the channels innermost, or MIN_PIXELS */
#define MIN_PIXELS 16

typedef struct job {
  ax_dtype dtype, compute;
  /* layer_norm and rms_norm: n elements a row; group_norm: a row is `channels` runs of n */
  int64_t rows, n;
  int64_t groups, channels;
  double eps;
  bool centred;
  /* float32 rows of last dims: y is written past the caches, in whole vectors at multiples of 64
   * bytes */
  bool stream;
  const char *x, *g;
  const void *w, *b; /* in the compute type; never NULL */
  char *y;           /* the result, or dx */
  void *mean, *rstd;
  char *scratch; /* half types: three rows (or pieces) in float32 for each thread */
  void *sums;    /* gradients: two sums for each chunk (rows) or channel of a row (groups) */
  int64_t chunks;
  /* groups of images with the channels innermost: pieces of an image, pixels of a piece, and for
   * each image four coefficients and for each of its pieces two numbers, by channel */
  bool innermost;
  int64_t pieces, per;
  char *parts;
} job;

/* The rows that are computed together follow from the sizes, never from the threads: pieces of work
 * are whole groups of 64 rows, or chunks. */
#define NORM(S, T, SQRT, FMA, PUT) \
  enum { V_##S = AX_BYTES / sizeof(T) }; \
  typedef ax_vec_##S vec_##S; \
  AX_FN vec_##S at_##S(const T *p) { return *(const vec_##S *)p; } \
  AX_FN T fold_##S(vec_##S a, vec_##S b) \
  { \
    T lane[V_##S], sum = 0; \
    *(vec_##S *)lane = a + b; \
    _Pragma("omp simd reduction(+:sum)") for (int j = 0; j < (int)V_##S; j++) sum += lane[j]; \
    return sum; \
  } \
  /* sum[r] of x, or of (x - mean[r])^2, over R rows */ \
  AX_FN void sums_##S(const int R, const bool square, const T *x, int64_t n, const T *mean, T *sum) \
  { \
    const int H = R == 1 ? 4 : 2; \
    vec_##S acc[ROWS][4]; \
    int64_t i = 0; \
    AX_UNROLL \
    for (int r = 0; r < R; r++) { \
      AX_UNROLL \
      for (int h = 0; h < 4; h++) acc[r][h] = (vec_##S){ 0 }; \
    } \
    for (; i + H * V_##S <= n; i += H * V_##S) { \
      AX_UNROLL \
      for (int r = 0; r < R; r++) { \
        AX_UNROLL \
        for (int h = 0; h < H; h++) { \
          vec_##S d = at_##S(x + r * n + i + h * V_##S); \
          if (square) d -= mean[r]; \
          if (square) acc[r][h] = AX_VFMA_##S(d, d, acc[r][h]); \
          else acc[r][h] += d; \
        } \
      } \
    } \
    AX_UNROLL \
    for (int r = 0; r < R; r++) { \
      T rest = 0; \
      for (int64_t k = i; k < n; k++) { \
        const T d = square ? x[r * n + k] - mean[r] : x[r * n + k]; \
        rest += square ? d * d : d; \
      } \
      sum[r] = fold_##S(acc[r][0] + acc[r][2], acc[r][1] + acc[r][3]) + rest; \
    } \
  } \
  static T sum_##S(const T *x, int64_t n) \
  { \
    T s; \
    sums_##S(1, false, x, n, NULL, &s); \
    return s; \
  } \
  static T squares_##S(const T *x, int64_t n, T mean) \
  { \
    T s; \
    sums_##S(1, true, x, n, &mean, &s); \
    return s; \
  } \
  AX_FN void forward_##S(const int R, const job *j, const T *x, T *y, T *mean_out, T *rstd_out) \
  { \
    const T *w = j->w, *b = j->b; \
    const int64_t n = j->n; \
    T mean[ROWS] = { 0 }, rstd[ROWS]; \
    int64_t i = 0; \
    if (j->centred) sums_##S(R, false, x, n, NULL, mean); \
    AX_UNROLL \
    for (int r = 0; r < R; r++) mean[r] /= (T)n; \
    sums_##S(R, true, x, n, mean, rstd); \
    AX_UNROLL \
    for (int r = 0; r < R; r++) { \
      rstd[r] = 1 / SQRT(rstd[r] / (T)n + (T)j->eps); \
      if (j->centred) mean_out[r] = mean[r]; \
      rstd_out[r] = rstd[r]; \
    } \
    for (; i + V_##S <= n; i += V_##S) { \
      const vec_##S wi = at_##S(w + i), bi = at_##S(b + i); \
      AX_UNROLL \
      for (int r = 0; r < R; r++) \
        PUT(y + r * n + i, AX_VFMA_##S((at_##S(x + r * n + i) - mean[r]) * rstd[r], wi, bi), j->stream); \
    } \
    for (; i < n; i++) { \
      AX_UNROLL \
      for (int r = 0; r < R; r++) y[r * n + i] = FMA((x[r * n + i] - mean[r]) * rstd[r], w[i], b[i]); \
    } \
  } \
  /* dx = rstd (g w - mean(g w) - xhat mean(g w xhat)); dw += g xhat; db += g */ \
  AX_FN void backward_##S(const int R, const job *j, const T *g, const T *x, T *dx, const T *mean_in, \
                          const T *rstd, T *dw, T *db) \
  { \
    const T *w = j->w; \
    const int64_t n = j->n; \
    vec_##S sv[ROWS], tv[ROWS]; \
    T mean[ROWS] = { 0 }, s[ROWS], t[ROWS]; \
    int64_t i = 0; \
    AX_UNROLL \
    for (int r = 0; r < R; r++) { \
      if (mean_in) mean[r] = mean_in[r]; \
      sv[r] = tv[r] = (vec_##S){ 0 }; \
    } \
    for (; i + V_##S <= n; i += V_##S) { \
      AX_UNROLL \
      for (int r = 0; r < R; r++) { \
        const vec_##S gw = at_##S(g + r * n + i) * at_##S(w + i); \
        sv[r] += gw; \
        tv[r] = AX_VFMA_##S(gw, at_##S(x + r * n + i) - mean[r], tv[r]); \
      } \
    } \
    AX_UNROLL \
    for (int r = 0; r < R; r++) { \
      s[r] = t[r] = 0; \
      for (int64_t k = i; k < n; k++) { \
        s[r] += g[r * n + k] * w[k]; \
        t[r] += g[r * n + k] * w[k] * (x[r * n + k] - mean[r]); \
      } \
      s[r] = j->centred ? (fold_##S(sv[r], (vec_##S){ 0 }) + s[r]) / (T)n : 0; \
      t[r] = (fold_##S(tv[r], (vec_##S){ 0 }) + t[r]) * rstd[r] * rstd[r] / (T)n; \
    } \
    for (i = 0; i + V_##S <= n; i += V_##S) { \
      const vec_##S wi = at_##S(w + i); \
      vec_##S pw = at_##S(dw + i), pb = at_##S(db + i); \
      AX_UNROLL \
      for (int r = 0; r < R; r++) { \
        const vec_##S gi = at_##S(g + r * n + i), d = at_##S(x + r * n + i) - mean[r]; \
        /* prefetch the next rows, or memory would idle meanwhile */ \
        __builtin_prefetch(g + (R + r) * n + i); \
        __builtin_prefetch(x + (R + r) * n + i); \
        PUT(dx + r * n + i, (gi * wi - s[r] - d * t[r]) * rstd[r], j->stream); \
        pw = AX_VFMA_##S(gi, d * rstd[r], pw); \
        pb += gi; \
      } \
      *(vec_##S *)(dw + i) = pw; \
      *(vec_##S *)(db + i) = pb; \
    } \
    for (; i < n; i++) { \
      AX_UNROLL \
      for (int r = 0; r < R; r++) { \
        const T gi = g[r * n + i], d = x[r * n + i] - mean[r]; \
        dx[r * n + i] = (gi * w[i] - s[r] - d * t[r]) * rstd[r]; \
        dw[i] = FMA(gi, d * rstd[r], dw[i]); \
        db[i] += gi; \
      } \
    } \
  } \
  /* groups: mean and variance of the whole row, weight and bias by channel */ \
  static void group_forward_##S(const job *j, int64_t row, const T *x, T *y, T *mean_out, T *rstd_out) \
  { \
    const int64_t n = j->n, first = row % j->groups * j->channels; \
    const T *w = (const T *)j->w + first, *b = (const T *)j->b + first; \
    const T count = (T)(n * j->channels), mean = sum_##S(x, n * j->channels) / count; \
    const T rstd = 1 / SQRT(squares_##S(x, n * j->channels, mean) / count + (T)j->eps); \
    *mean_out = mean; \
    *rstd_out = rstd; \
    for (int64_t c = 0; c < j->channels; c++) { \
      const T by = rstd * w[c], plus = b[c] - mean * by; \
      AX_SIMD \
      for (int64_t i = 0; i < n; i++) y[c * n + i] = FMA(x[c * n + i], by, plus); \
    } \
  } \
  static void group_backward_##S(const job *j, int64_t row, const T *g, const T *x, T *dx, T mean, T rstd) \
  { \
    const int64_t n = j->n, first = row % j->groups * j->channels; \
    const T *w = (const T *)j->w + first, count = (T)(n * j->channels); \
    T *sums = (T *)j->sums + 2 * row * j->channels, s = 0, t = 0; /* by channel: sum of g, sum of g xhat */ \
    for (int64_t c = 0; c < j->channels; c++, g += n, x += n) { \
      vec_##S sv = { 0 }, tv = { 0 }; \
      T sg = 0, sx = 0; \
      int64_t i = 0; \
      for (; i + V_##S <= n; i += V_##S) { \
        sv += at_##S(g + i); \
        tv = AX_VFMA_##S(at_##S(g + i), at_##S(x + i) - mean, tv); \
      } \
      for (; i < n; i++) { \
        sg += g[i]; \
        sx += g[i] * (x[i] - mean); \
      } \
      sums[2 * c] = fold_##S(sv, (vec_##S){ 0 }) + sg; \
      sums[2 * c + 1] = (fold_##S(tv, (vec_##S){ 0 }) + sx) * rstd; \
      s += sums[2 * c] * w[c]; \
      t += sums[2 * c + 1] * w[c]; \
    } \
    g -= n * j->channels; \
    x -= n * j->channels; \
    s /= count; \
    t *= rstd / count; \
    for (int64_t c = 0; c < j->channels; c++) { \
      const T wc = w[c]; \
      AX_SIMD \
      for (int64_t i = 0; i < n; i++) \
        dx[c * n + i] = FMA(mean - x[c * n + i], t, FMA(g[c * n + i], wc, -s)) * rstd; \
    } \
  } \
  /* Half rows are copied to float32; rows of other types are used in place. */ \
  static void S##_range(int64_t lo, int64_t hi, void *ud) \
  { \
    const job *j = ud; \
    const bool half = j->dtype != j->compute; \
    const int64_t length = j->n * j->channels, size = (int64_t)ax_dtype_size(j->dtype); \
    T *own = half ? (T *)j->scratch + 3 * length * omp_get_thread_num() : NULL, *mean = j->mean, \
      *rstd = j->rstd; \
    for (int64_t at = lo; at < hi; at++) { \
      /* gradients of last dims: `at` is a chunk of rows */ \
      const bool chunked = j->g && !j->groups; \
      /* forward: a piece is 64 rows */ \
      const int64_t per = j->groups ? 1 : 64, end = (at + 1) * per < j->rows ? (at + 1) * per : j->rows; \
      const int64_t from = chunked ? j->rows * at / j->chunks : at * per, \
                    until = chunked ? j->rows * (at + 1) / j->chunks : end; \
      T *dw = chunked ? (T *)j->sums + 2 * length * at : NULL, *db = chunked ? dw + length : NULL; \
      if (chunked) memset(dw, 0, (size_t)(2 * length) * sizeof(T)); \
      for (int64_t r = from; r < until; r++) { \
        const T *x = (const T *)(j->x + r * length * size), \
                *g = j->g ? (const T *)(j->g + r * length * size) : NULL; \
        T *y = (T *)(j->y + r * length * size); \
        if (!half && !j->groups && length >= LONG && r + ROWS <= until) { \
          if (g) backward_##S(ROWS, j, g, x, y, mean ? mean + r : NULL, rstd + r, dw, db); \
          else forward_##S(ROWS, j, x, y, mean ? mean + r : NULL, rstd + r); \
          r += ROWS - 1; \
          continue; \
        } \
        if (half) { \
          ax_cpu_half_to_float(j->dtype, (const char *)x, 2, (float *)own, length); \
          if (g) ax_cpu_half_to_float(j->dtype, (const char *)g, 2, (float *)(own + length), length); \
          x = own; \
          g = g ? own + length : NULL; \
          y = own + 2 * length; \
        } \
        if (!g && j->groups) group_forward_##S(j, r, x, y, mean + r, rstd + r); \
        else if (!g) forward_##S(1, j, x, y, mean ? mean + r : NULL, rstd + r); \
        else if (j->groups) group_backward_##S(j, r, g, x, y, mean[r], rstd[r]); \
        else backward_##S(1, j, g, x, y, mean ? mean + r : NULL, rstd + r, dw, db); \
        if (half) ax_cpu_float_to_half(j->dtype, (const float *)y, j->y + r * length * 2, 2, length); \
      } \
    } \
    if (j->stream) ax_cpu_stream_end(); \
  } \
  /* Adds chunks (or batches and channels) in order, into parameters of the compute type. */ \
  static void collect_##S(const job *j, int64_t n, int which, bool add, T *out) \
  { \
    const T *sums = j->sums; \
    if (!j->groups) { \
      if (!add) memset(out, 0, (size_t)n * sizeof(T)); \
      for (int64_t c = 0; c < j->chunks; c++) { \
        const T *part = sums + (2 * c + which) * n; \
        AX_SIMD \
        for (int64_t i = 0; i < n; i++) out[i] += part[i]; \
      } \
      return; \
    } \
    const int64_t batch = j->rows / j->groups; \
    for (int64_t i = 0; i < n; i++) { \
      T s = 0; \
      for (int64_t k = 0; k < batch; k++) s += sums[2 * (k * n + i) + (1 - which)]; \
      out[i] = add ? out[i] + s : s; \
    } \
  }
NORM(f32, float, sqrtf, AX_FMAF, ax_vec_put)
#define PUT_F64(to, v, stream) (*(vec_f64 *)(to) = (v))
#define PLAIN(a, b, c) ((a) * (b) + (c))
NORM(f64, double, sqrt, PLAIN, PUT_F64)

#define T float
#define NAME(f) f##_f32
#define SQRT sqrtf
#define FMA AX_FMAF
#include "norm_channels.inc"
#undef T
#undef NAME
#undef SQRT
#undef FMA
#define T double
#define NAME(f) f##_f64
#define SQRT sqrt
#define FMA PLAIN
#include "norm_channels.inc"
#undef T
#undef NAME
#undef SQRT
#undef FMA

/* ---- drivers */

/* A parameter of n elements in the compute type: the tensor itself, a converted copy, or
 * `otherwise` in every element. */
static ax_status parameter(const job *j, const ax_tensor *t, int64_t n, double otherwise, void **own,
                           size_t bytes, const void **out)
{
  ax_status st;
  if (t && (ax_dtype)t->dtype == j->compute) {
    *out = ax_data(t);
    return AX_OK;
  }
  if ((st = ax_alloc(bytes, own)) != AX_OK) return st;
  if (t) ax_cpu_half_to_float((ax_dtype)t->dtype, ax_data(t), 2, *own, n);
  else if (j->compute == AX_F64)
    for (int64_t i = 0; i < n; i++) ((double *)*own)[i] = otherwise;
  else
    for (int64_t i = 0; i < n; i++) ((float *)*own)[i] = (float)otherwise;
  *out = *own;
  return AX_OK;
}

/* The sizes of a job over x; groups 0: over the last `last` dims. */
static job plan(const ax_tensor *x, int last, int64_t groups)
{
  job j = { .dtype = (ax_dtype)x->dtype,
            .compute = x->dtype == AX_F64 ? AX_F64 : AX_F32,
            .rows = 1,
            .n = 1,
            .groups = groups,
            .channels = 1,
            .x = ax_data(x) };
  if (groups) {
    for (int d = 2; d < x->ndim; d++) j.n *= x->shape[d];
    j.rows = x->shape[0] * groups;
    j.channels = x->shape[1] / groups;
    j.innermost = j.n > 1 && x->shape[1] > 1 && x->strides[1] == 1;
    j.per = PIECE / x->shape[1] > MIN_PIXELS ? PIECE / x->shape[1] : MIN_PIXELS;
    if (j.per > j.n) j.per = j.n;
    j.pieces = (j.n + j.per - 1) / j.per;
  } else
    for (int d = 0; d < x->ndim; d++) *(d < x->ndim - last ? &j.rows : &j.n) *= x->shape[d];
  return j;
}

static int64_t parameter_count(const job *j) { return j->groups ? j->groups * j->channels : j->n; }

static size_t parts_bytes(const job *j)
{
  return j->innermost ? (size_t)(j->rows * j->channels * (2 * j->pieces + 4)) * ax_dtype_size(j->compute) : 0;
}

/* Three rows, or pieces, in float32 for each thread. */
static size_t scratch_bytes(const job *j)
{
  const int64_t row = j->innermost ? j->per * j->groups * j->channels : j->n * j->channels;
  return j->dtype == j->compute ? 0 : (size_t)(3 * row * omp_get_max_threads()) * sizeof(float);
}

static ax_status memory_for(job *j)
{
  const size_t parts = parts_bytes(j), scratch = scratch_bytes(j);
  ax_status st = AX_OK;
  if (parts) st = ax_alloc(parts, (void **)&j->parts);
  if (scratch && st == AX_OK) st = ax_alloc(scratch, (void **)&j->scratch);
  return st;
}

static void give_memory_back(job *j)
{
  if (j->parts) ax_free(j->parts, parts_bytes(j));
  if (j->scratch) ax_free(j->scratch, scratch_bytes(j));
}

static void run_rows(job *j, int64_t pieces, int64_t work)
{
  j->stream = j->dtype == AX_F32 && !j->groups && j->n % 16 == 0 && ((uintptr_t)j->y & 63) == 0 &&
              ax_cpu_streams(j->rows * j->n * (int64_t)sizeof(float));
  if (j->innermost && j->compute == AX_F64) run_images_f64(j, work);
  else if (j->innermost) run_images_f32(j, work);
  else ax_cpu_for(pieces, work, j->compute == AX_F64 ? f64_range : f32_range, j);
}

static ax_status forward(const ax_call *call, int64_t groups, bool centred)
{
  const ax_tensor *x = call->in[0];
  job j = plan(x, call->a->n_list, groups);
  const size_t bytes = (size_t)parameter_count(&j) * ax_dtype_size(j.compute);
  void *own[2] = { NULL, NULL };
  ax_status st = AX_OK;

  if (x->numel == 0) { /* no rows, or rows without elements: statistics as in PyTorch */
    for (int k = 1; k < call->n_out; k++)
      for (int64_t i = 0; i < call->out[k]->numel; i++)
        ax_store_double(j.compute, ax_data(call->out[k]), i, NAN);
    return AX_OK;
  }
  j.centred = centred;
  j.eps = call->a->layer_norm.eps;
  j.y = ax_data(call->out[0]);
  j.mean = centred ? ax_data(call->out[1]) : NULL;
  j.rstd = ax_data(call->out[centred ? 2 : 1]);
  AX_TRY(parameter(&j, call->n_in > 1 ? call->in[1] : NULL, parameter_count(&j), 1, &own[0], bytes, &j.w));
  AX_TRY(parameter(&j, centred && call->n_in > 2 ? call->in[2] : NULL, parameter_count(&j), 0, &own[1], bytes,
                   &j.b));
  AX_TRY(memory_for(&j));
  run_rows(&j, groups ? j.rows : (j.rows + 63) / 64, x->numel * 2);
out:
  for (int k = 0; k < 2; k++)
    if (own[k]) ax_free(own[k], bytes);
  give_memory_back(&j);
  return st;
}

/* Writes the gradient of weight (0) or bias (1) into `t`, which may be of a half type. */
static ax_status give(const job *j, int which, bool add, ax_tensor *t)
{
  const int64_t n = parameter_count(j);
  const size_t bytes = (size_t)n * sizeof(float);
  void *wide = NULL;
  ax_status st;

  if (!t) return AX_OK;
  if (j->compute == AX_F64) {
    collect_f64(j, n, which, add, ax_data(t));
    return AX_OK;
  }
  if (t->dtype == AX_F32) {
    collect_f32(j, n, which, add, ax_data(t));
    return AX_OK;
  }
  if ((st = ax_alloc(bytes, &wide)) != AX_OK) return st;
  if (add) ax_cpu_half_to_float((ax_dtype)t->dtype, ax_data(t), 2, wide, n);
  collect_f32(j, n, which, add, wide);
  ax_cpu_float_to_half((ax_dtype)t->dtype, wide, ax_data(t), 2, n);
  ax_free(wide, bytes);
  return AX_OK;
}

/* in: g, x, mean, rstd, weight; out: dx, and the gradients of weight and bias or NULL. */
static ax_status backward(const ax_call *call, int64_t groups, bool centred, bool add_weight, bool add_bias)
{
  const ax_tensor *x = call->in[1];
  job j = plan(x, call->a->n_list, groups);
  const int64_t n = parameter_count(&j);
  const size_t bytes = (size_t)n * ax_dtype_size(j.compute);
  size_t sums = 0;
  void *own = NULL;
  ax_status st = AX_OK;

  if (x->numel == 0) {
    for (int k = 1; k < 3; k++)
      if (call->out[k] && !(k == 1 ? add_weight : add_bias))
        memset(ax_data(call->out[k]), 0, (size_t)call->out[k]->numel * ax_itemsize(call->out[k]));
    return AX_OK;
  }
  j.centred = centred;
  j.g = ax_data(call->in[0]);
  j.mean = centred ? ax_data(call->in[2]) : NULL;
  j.rstd = ax_data(call->in[3]);
  j.y = ax_data(call->out[0]);
  j.chunks = x->numel / CHUNK < 1 ? 1 : x->numel / CHUNK < MAX_CHUNKS ? x->numel / CHUNK : MAX_CHUNKS;
  if (j.chunks > j.rows) j.chunks = j.rows;
  AX_TRY(parameter(&j, call->in[4], n, 1, &own, bytes, &j.w));
  sums = (size_t)(2 * (groups ? j.rows * j.channels : j.chunks * n)) * ax_dtype_size(j.compute);
  AX_TRY(ax_alloc(sums, &j.sums));
  AX_TRY(memory_for(&j));
  run_rows(&j, groups ? j.rows : j.chunks, x->numel * 3);
  AX_TRY(give(&j, 0, add_weight, call->out[1]));
  AX_TRY(give(&j, 1, add_bias, call->out[2]));
out:
  if (own) ax_free(own, bytes);
  if (j.sums) ax_free(j.sums, sums);
  give_memory_back(&j);
  return st;
}

ax_status ax_cpu_layer_norm(const ax_call *call) { return forward(call, 0, true); }
ax_status ax_cpu_rms_norm(const ax_call *call) { return forward(call, 0, false); }
ax_status ax_cpu_group_norm(const ax_call *call)
{
  return forward(call, call->a->group_norm.num_groups, true);
}
ax_status ax_cpu__layer_norm_backward(const ax_call *call)
{
  return backward(call, 0, true, call->a->layer_norm_backward.add_weight,
                  call->a->layer_norm_backward.add_bias);
}
ax_status ax_cpu__rms_norm_backward(const ax_call *call)
{
  return backward(call, 0, false, call->a->rms_norm_backward.add_weight, false);
}
ax_status ax_cpu__group_norm_backward(const ax_call *call)
{
  return backward(call, call->a->group_norm_backward.num_groups, true,
                  call->a->group_norm_backward.add_weight, call->a->group_norm_backward.add_bias);
}

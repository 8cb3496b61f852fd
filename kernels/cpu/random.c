/* Random fills, dropout, permutations, arange.  philox.h defines which words each element takes.
 * Words are made in blocks of 1024, so that making and using them are vector loops.  Threads
 * share blocks; the integer products of Philox bound the kernels, dropout of large tensors also
 * memory. */
#include "cpu.h"

#include <string.h>

#include "philox_lanes.h"

#define BLOCK 1024

typedef struct job {
  const ax_attrs *a;
  ax_dtype dtype;
  int64_t n;
  const char *in;
  char *out;
} job;

/* The words of Philox blocks first .. first + blocks - 1. */
static void words(const ax_attrs *a, int64_t first, int64_t blocks, uint32_t *out)
{
  enum { SOME = 64 };
  const uint64_t seed = a->rng.seed, stream = a->rng.stream, draw = a->rng.draw;
  const ax_philox all = ax_philox_at(seed, stream, draw, 0);
  uint32_t low[SOME], high[SOME], w[4][SOME];
  for (int64_t at = 0; at < blocks; at += SOME) {
    const int n = blocks - at < SOME ? (int)(blocks - at) : SOME;
    for (int b = 0; b < SOME; b++) {
      const ax_philox p = ax_philox_at(seed, stream, draw, (uint64_t)(first + at + b));
      low[b] = p.counter[0], high[b] = p.counter[1];
    }
    ax_philox_lanes(all, (n + 15) / 16 * 16, low, high, w[0], w[1], w[2], w[3]);
    uint32_t *const to = out + 4 * at;
    for (int b = 0; b < n; b++)
      for (int r = 0; r < 4; r++) to[4 * b + r] = w[r][b];
  }
}

/* Block p: sets its first element, returns its number of elements. */
static int64_t block_bounds(const job *j, int64_t p, int64_t *lo)
{
  *lo = p * BLOCK;
  return j->n - *lo < BLOCK ? j->n - *lo : BLOCK;
}
static void words32(const job *j, int64_t lo, int64_t n, uint32_t *w) { words(j->a, lo / 4, (n + 3) / 4, w); }
static void words64(const job *j, int64_t lo, int64_t n, uint32_t *w) { words(j->a, lo / 2, (n + 1) / 2, w); }

/* Stores a block of float results. */
static void put_floats(const job *j, int64_t lo, int64_t n, const float *v)
{
  if (j->dtype == AX_F32) memcpy((float *)j->out + lo, v, (size_t)n * sizeof(float));
  else ax_cpu_float_to_half(j->dtype, v, j->out + 2 * lo, 2, n);
}

static ax_status fill(const ax_call *call, ax_range_fn fn, bool floats_only)
{
  const ax_tensor *y = call->out[0];
  job j = { .a = call->a,
            .dtype = (ax_dtype)y->dtype,
            .n = y->numel,
            .in = call->n_in ? ax_data(call->in[0]) : NULL,
            .out = ax_data(y) };

  if (floats_only && !ax_is_float(j.dtype)) return ax_cpu_no_dtype(call->op, j.dtype);
  if (j.n) ax_cpu_for((j.n + BLOCK - 1) / BLOCK, j.n * 2, fn, &j);
  return AX_OK;
}

/* ---- uniform, normal */

static void uniform_range(int64_t from, int64_t until, void *ud)
{
  const job *j = ud;
  const double low = j->a->uniform.low, high = j->a->uniform.high;
  const int64_t first = j->a->uniform.first;
  /* as many bits as the type's mantissa has: more could round up to 1 */
  const int bits = j->dtype == AX_F16 ? 11 : j->dtype == AX_BF16 ? 8 : 24;
  uint32_t w[2 * BLOCK];
  float v[BLOCK];
  int64_t lo;

  for (int64_t p = from; p < until; p++) {
    const int64_t n = block_bounds(j, p, &lo);
    if (j->dtype == AX_F64) {
      double *y = (double *)j->out + lo;
      words64(j, first + lo, n, w);
      for (int64_t i = 0; i < n; i++) {
        const double x = low + ax_uniform_f64(ax_word64(w[2 * i], w[2 * i + 1])) * (high - low);
        y[i] = x < high ? x : low; /* rounding may reach `high`, which is excluded */
      }
      continue;
    }
    const float from_f = (float)low, to_f = (float)high, size = (float)(high - low);
    words32(j, first + lo, n, w);
    AX_SIMD
    for (int64_t i = 0; i < n; i++) {
      const float x = from_f + ax_uniform_f32(w[i], bits) * size;
      v[i] = x < to_f ? x : from_f;
    }
    put_floats(j, lo, n, v);
  }
}

static void normal_range(int64_t from, int64_t until, void *ud)
{
  const job *j = ud;
  const double mean = j->a->normal.mean, std = j->a->normal.std;
  const int64_t at = j->a->normal.first;
  uint32_t w[2 * BLOCK + 4];
  float v[BLOCK + 4];
  int64_t lo;

  for (int64_t p = from; p < until; p++) {
    const int64_t n = block_bounds(j, p, &lo);
    if (j->dtype == AX_F64) {
      double *y = (double *)j->out + lo, first, second;
      words64(j, at + lo, n, w);
      for (int64_t i = 0; i < n; i += 2) {
        ax_normal_f64(ax_word64(w[2 * i], w[2 * i + 1]), ax_word64(w[2 * i + 2], w[2 * i + 3]), &first,
                      &second);
        y[i] = mean + first * std;
        if (i + 1 < n) y[i + 1] = mean + second * std;
      }
      continue;
    }
    const float mean_f = (float)mean, std_f = (float)std;
    words32(j, at + lo, n, w);
    AX_SIMD
    for (int64_t i = 0; i < (n + 1) / 2; i++) {
      float first, second;
      ax_normal_f32(w[2 * i], w[2 * i + 1], &first, &second);
      v[2 * i] = mean_f + first * std_f;
      v[2 * i + 1] = mean_f + second * std_f;
    }
    put_floats(j, lo, n, v);
  }
}

ax_status ax_cpu__uniform(const ax_call *call) { return fill(call, uniform_range, true); }
ax_status ax_cpu__normal(const ax_call *call) { return fill(call, normal_range, true); }

/* ---- integers */

static void randint_range(int64_t from, int64_t until, void *ud)
{
  const job *j = ud;
  const uint64_t low = (uint64_t)j->a->randint.low, range = (uint64_t)j->a->randint.high - low;
  uint32_t w[2 * BLOCK];
  int64_t lo;

  for (int64_t p = from; p < until; p++) {
    const int64_t n = block_bounds(j, p, &lo);
    words64(j, lo, n, w);
    if (j->dtype == AX_I64) {
      int64_t *y = (int64_t *)j->out + lo;
      for (int64_t i = 0; i < n; i++)
        y[i] = (int64_t)(low + ax_uniform_int(ax_word64(w[2 * i], w[2 * i + 1]), range));
      continue;
    }
    for (int64_t i = 0; i < n; i++)
      ax_store_int(j->dtype, j->out, lo + i,
                   (int64_t)(low + ax_uniform_int(ax_word64(w[2 * i], w[2 * i + 1]), range)));
  }
}

ax_status ax_cpu__randint(const ax_call *call)
{
  const int64_t low = call->a->randint.low, high = call->a->randint.high;
  if (low >= high)
    return ax_fail(AX_ERANGE, "randint: there is no integer from %lld up to but not including %lld",
                   (long long)low, (long long)high);
  return fill(call, randint_range, false);
}

typedef struct keyed {
  uint64_t key;
  int64_t at;
} keyed;

/* Keys are uniform: a part by key has about PART elements, which are ordered in the first cache,
 * and a bin of a part about one.  Larger parts than MOST are practically impossible. */
enum { PART = 512, MOST = 4 * PART };

typedef struct shuffle {
  uint64_t parts;
  const int64_t *end; /* of each part */
  keyed *item;        /* in the order of parts */
  ax_dtype dtype;
  char *out;
} shuffle;

static void insertion_sort(keyed *item, int64_t n)
{
  for (int64_t i = 1; i < n; i++) {
    const keyed k = item[i];
    int64_t at = i;
    for (; at > 0 && item[at - 1].key > k.key; at--) item[at] = item[at - 1];
    item[at] = k;
  }
}

/* Moves n <= MOST items of part p to `sorted`, in the order of bins. */
static void fill_bins(const shuffle *s, int64_t p, const keyed *item, int64_t n, keyed *sorted)
{
  const uint64_t bins = s->parts * PART, first = (uint64_t)p * PART;
  int32_t end[PART + 1] = { 0 };

  for (int64_t i = 0; i < n; i++) end[ax_uniform_int(item[i].key, bins) - first + 1]++;
  for (int b = 0; b < PART; b++) end[b + 1] += end[b];
  for (int64_t i = 0; i < n; i++) sorted[end[ax_uniform_int(item[i].key, bins) - first]++] = item[i];
}

static void shuffle_range(int64_t from, int64_t until, void *ud)
{
  const shuffle *s = ud;
  keyed few[MOST];

  for (int64_t p = from; p < until; p++) {
    const int64_t lo = p ? s->end[p - 1] : 0, n = s->end[p] - lo;
    keyed *item = s->item + lo;
    if (n <= MOST) {
      fill_bins(s, p, item, n, few);
      item = few;
    }
    insertion_sort(item, n);
    if (s->dtype == AX_I64)
      for (int64_t i = 0; i < n; i++) ((int64_t *)s->out)[lo + i] = item[i].at;
    else
      for (int64_t i = 0; i < n; i++) ax_store_int(s->dtype, s->out, lo + i, item[i].at);
  }
}

/* 0 .. n-1 in the order of n random keys (of equal keys, the first comes first), in linear time. */
ax_status ax_cpu__randperm(const ax_call *call)
{
  const ax_tensor *y = call->out[0];
  const int64_t n = y->numel, parts = n / PART + 1;
  const size_t key_bytes = (size_t)n * sizeof(uint64_t), end_bytes = (size_t)(parts + 1) * sizeof(int64_t),
               item_bytes = (size_t)n * sizeof(keyed);
  uint64_t *key = NULL;
  int64_t *end = NULL;
  keyed *item = NULL;
  uint32_t w[2 * BLOCK];
  ax_status st = AX_OK;

  if (n == 0) return AX_OK;
  AX_TRY(ax_alloc(key_bytes, (void **)&key));
  AX_TRY(ax_alloc(end_bytes, (void **)&end));
  AX_TRY(ax_alloc(item_bytes, (void **)&item));
  memset(end, 0, end_bytes);
  for (int64_t lo = 0; lo < n; lo += BLOCK) {
    const int64_t count = n - lo < BLOCK ? n - lo : BLOCK;
    words(call->a, lo / 2, (count + 1) / 2, w);
    for (int64_t i = 0; i < count; i++) {
      key[lo + i] = ax_word64(w[2 * i], w[2 * i + 1]);
      end[ax_uniform_int(key[lo + i], (uint64_t)parts) + 1]++;
    }
  }
  for (int64_t p = 0; p < parts; p++) end[p + 1] += end[p]; /* where part p begins */
  for (int64_t i = 0; i < n; i++) item[end[ax_uniform_int(key[i], (uint64_t)parts)]++] = (keyed){ key[i], i };
  shuffle s = { (uint64_t)parts, end, item, (ax_dtype)y->dtype, ax_data(y) };
  ax_cpu_for(parts, n * 8, shuffle_range, &s);
out:
  if (key) ax_free(key, key_bytes);
  if (end) ax_free(end, end_bytes);
  if (item) ax_free(item, item_bytes);
  return st;
}

/* start + i * step, in int64 for integers, else in float64, so that errors do not accumulate. */
static void arange_range(int64_t from, int64_t until, void *ud)
{
  const job *j = ud;
  const double start = j->a->arange.start, step = j->a->arange.step;
  const int64_t hi = until * BLOCK < j->n ? until * BLOCK : j->n;

  if (j->dtype == AX_F32)
    for (int64_t i = from * BLOCK; i < hi; i++) ((float *)j->out)[i] = (float)(start + (double)i * step);
  else if (ax_is_float(j->dtype))
    for (int64_t i = from * BLOCK; i < hi; i++)
      ax_store_double(j->dtype, j->out, i, start + (double)i * step);
  else {
    const uint64_t first = (uint64_t)(int64_t)start, by = (uint64_t)(int64_t)step;
    if (j->dtype == AX_I64)
      for (int64_t i = from * BLOCK; i < hi; i++)
        ((int64_t *)j->out)[i] = (int64_t)(first + (uint64_t)i * by);
    else
      for (int64_t i = from * BLOCK; i < hi; i++)
        ax_store_int(j->dtype, j->out, i, (int64_t)(first + (uint64_t)i * by));
  }
}

ax_status ax_cpu__arange(const ax_call *call) { return fill(call, arange_range, false); }

/* ---- dropout: an element stays when its word is at least p 2^32; the gradient draws the same
 * words
 * again */

static void dropout_range(int64_t from, int64_t until, void *ud)
{
  const job *j = ud;
  const double p = j->a->dropout_apply.p, keep = 1 / (1 - p); /* p < 1 */
  const uint32_t least = (uint32_t)(p * 0x1p32);
  uint32_t w[BLOCK];
  float v[BLOCK];
  int64_t lo;

  for (int64_t b = from; b < until; b++) {
    const int64_t n = block_bounds(j, b, &lo);
    words32(j, lo, n, w);
    if (j->dtype == AX_F64) {
      const double *x = (const double *)j->in + lo;
      double *y = (double *)j->out + lo;
      for (int64_t i = 0; i < n; i++) y[i] = w[i] >= least ? x[i] * keep : 0;
      continue;
    }
    const float scale = (float)keep;
    const float *x = (const float *)j->in + lo;
    if (j->dtype != AX_F32) {
      ax_cpu_half_to_float(j->dtype, j->in + 2 * lo, 2, v, n);
      x = v;
    }
    float *y = j->dtype == AX_F32 ? (float *)j->out + lo : v;
    AX_SIMD
    for (int64_t i = 0; i < n; i++) {
      const float scaled = x[i] * scale;
      y[i] = w[i] >= least ? scaled : 0.0f;
    }
    if (j->dtype != AX_F32) put_floats(j, lo, n, v);
  }
}

ax_status ax_cpu__dropout_apply(const ax_call *call)
{
  if (call->a->dropout_apply.p >= 1) { /* everything becomes 0, infinities and NaN too */
    const ax_tensor *y = call->out[0];
    if (!ax_is_float((ax_dtype)y->dtype)) return ax_cpu_no_dtype(call->op, (ax_dtype)y->dtype);
    memset(ax_data(y), 0, (size_t)y->numel * ax_itemsize(y));
    return AX_OK;
  }
  return fill(call, dropout_range, true);
}

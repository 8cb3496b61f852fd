/* sort, topk, kthvalue, median, searchsorted.
 *
 * Every element gets an unsigned key in the elements' order: NaN is above everything, both zeros
 * are equal, and all bits are inverted for a descending order.  Keys of up to 32 bits are sorted
 * together with the position in one 64-bit word, longer keys in a pair.  A stable radix sort takes
 * short lines byte by byte, and of long lines the highest bits in which they differ; few results of
 * a long line, or one, are selected by counting the same bits (sort_radix.inc).  Threads share
 * lines; memory bounds long lines. */
#include "cpu.h"

#include <omp.h>
#include <string.h>

#include "sort_keys.h"

typedef struct pair {
  uint64_t key, at;
} pair;

enum { SORT, TOPK, KTH, MEDIAN };

typedef struct job {
  int what;
  ax_dtype dtype;
  /* elements of a line, bytes from one to the next; lines are numbered (outer, inner) */
  int64_t n, step, outer_step, inner;
  int64_t k; /* results of a line, at out_step bytes; KTH: the rank */
  bool falling;
  const char *x;
  char *values;
  int64_t *indices;
  char *scratch; /* a share for each thread */
  size_t share;
} job;

/* ---- keys */

#define KEYS(name, T, K) \
  static void keys_##name(const char *x, int64_t step, int64_t n, bool falling, void *to) \
  { \
    K *key = to; \
    const K turn = falling ? (K) ~(K)0 : 0; \
    if (step == sizeof(T)) { \
      const T *v = (const T *)x; \
      AX_SIMD \
      for (int64_t i = 0; i < n; i++) key[i] = ax_key_##name(v[i]) ^ turn; \
    } else \
      for (int64_t i = 0; i < n; i++) key[i] = ax_key_##name(*(const T *)(x + i * step)) ^ turn; \
  }
KEYS(f32, float, uint32_t)
KEYS(f64, double, uint64_t)
KEYS(f16, uint16_t, uint32_t)
KEYS(bf16, uint16_t, uint32_t)
KEYS(i32, int32_t, uint32_t)
KEYS(i64, int64_t, uint64_t)
KEYS(u8, uint8_t, uint32_t)

typedef void (*keys_fn)(const char *x, int64_t step, int64_t n, bool falling, void *to);
static const keys_fn keys_of[AX_DTYPE_COUNT] = {
  [AX_F32] = keys_f32, [AX_F64] = keys_f64, [AX_F16] = keys_f16, [AX_BF16] = keys_bf16,
  [AX_I64] = keys_i64, [AX_I32] = keys_i32, [AX_U8] = keys_u8,   [AX_BOOL] = keys_u8
};
static bool is_wide(ax_dtype d) { return d == AX_F64 || d == AX_I64; }

/* ---- sorting and selecting words and pairs */

enum {
  FEW = 48,    /* insertion is faster than counting for fewer */
  MANY = 4096, /* counting digits of DIGIT bits pays from here on */
  DIGIT = 11,
  DIGIT_MASK = (1 << DIGIT) - 1
};

#define NAME(name) name##_words
#define E uint64_t
#define K uint32_t
#define AT(e) ((e)&UINT32_MAX)
#define RANK(e) (e)
#define BYTE(e, b) ((e) >> (32 + 8 * (b)) & 255)
#define MAKE(key, at) ((uint64_t)(key) << 32 | (uint64_t)(at))
#include "sort_radix.inc"

#define NAME(name) name##_pairs
#define E pair
#define K uint64_t
#define AT(e) ((e).at)
#define RANK(e) ((e).key)
#define BYTE(e, b) ((e).key >> 8 * (b)&255)
#define MAKE(key, at) \
  (pair) { key, (uint64_t)(at) }
#include "sort_radix.inc"

/* ---- one line */

static void put(const job *j, const char *x, int64_t line, int64_t rank, int64_t at)
{
  const int64_t item = (int64_t)ax_dtype_size(j->dtype);
  const int64_t to = (line / j->inner * j->k + rank) * j->inner + line % j->inner;
  memcpy(j->values + to * item, x + at * j->step, (size_t)item);
  j->indices[to] = at;
}

#define WRITE(T) \
  for (int64_t i = 0; i < n; i++) { \
    ((T *)j->values)[to + i * j->inner] = *(const T *)(x + at[i] * j->step); \
    j->indices[to + i * j->inner] = at[i]; \
  }

/* Writes the elements at[0 .. n-1] of a line as its results. */
static void put_all(const job *j, const char *x, int64_t line, const int64_t *at, int64_t n)
{
  const int64_t to = line / j->inner * j->k * j->inner + line % j->inner;
  switch (ax_dtype_size(j->dtype)) {
  case 1: WRITE(uint8_t) break;
  case 2: WRITE(uint16_t) break;
  case 4: WRITE(uint32_t) break;
  default: WRITE(uint64_t) break;
  }
}

/* ---- long lines */

/* Sorts words, MANY or more, by `bits` bits of their keys; returns the one with the result. */
static uint64_t *sort_digits(uint64_t *v, uint64_t *other, int64_t n, int bits)
{
  enum { MOST = (32 + DIGIT - 1) / DIGIT };
  const int digits = (bits + DIGIT - 1) / DIGIT;
  uint32_t count[MOST][1 << DIGIT];
  memset(count, 0, sizeof count);
  for (int64_t i = 0; i < n; i++)
    for (int k = 0; k < MOST; k++) count[k][v[i] >> (32 + DIGIT * k) & DIGIT_MASK]++;
  for (int k = 0; k < digits; k++) {
    uint32_t sum = 0, *const c = count[k];
    for (int i = 0; i < 1 << DIGIT; i++) {
      const uint32_t here = c[i];
      c[i] = sum;
      sum += here;
    }
    for (int64_t i = 0; i < n; i++) other[c[v[i] >> (32 + DIGIT * k) & DIGIT_MASK]++] = v[i];
    uint64_t *const swap = v;
    v = other;
    other = swap;
  }
  return v;
}

/* Words of long keys hold only the upper bits in which these differ.  Sorts those that are alike in
 * them by the lower bits, 32 at most. */
static void sort_alike(const uint64_t *key, uint64_t *v, uint64_t *other, int64_t n)
{
  for (int64_t i = 0, end; i < n; i = end) {
    for (end = i + 1; end < n && v[end] >> 32 == v[i] >> 32;) end++;
    if (end - i == 1) continue;
    uint64_t least = UINT64_MAX, most = 0;
    for (int64_t k = i; k < end; k++) {
      const uint64_t here = key[v[k] & UINT32_MAX];
      least = here < least ? here : least;
      most = here > most ? here : most;
    }
    for (int64_t k = i; k < end; k++) {
      const uint64_t at = v[k] & UINT32_MAX;
      v[k] = (key[at] - least) << 32 | at;
    }
    const int64_t some = end - i;
    const uint64_t *sorted = some < MANY ? radix_words(v + i, other + i, some)
                                         : sort_digits(v + i, other + i, some, bits_pairs(most - least));
    if (sorted != v + i) memcpy(v + i, sorted, sizeof *v * (size_t)some);
  }
}

static uint64_t *sort_many_words(const uint32_t *key, uint64_t *v, int64_t n)
{
  uint64_t *other = v + n; /* where the keys are */
  uint32_t least, most;
  bounds_words(key, n, &least, &most);
  for (int64_t i = 0; i < n; i++) v[i] = (uint64_t)(key[i] - least) << 32 | (uint64_t)i;
  return sort_digits(v, other, n, bits_words(most - least));
}
static uint64_t *sort_many_pairs(const uint64_t *key, pair *room, int64_t n)
{
  uint64_t *v = (uint64_t *)room, *other = v + n, least, most;
  bounds_pairs(key, n, &least, &most);
  const int bits = bits_pairs(most - least), shift = bits > 32 ? bits - 32 : 0;
  for (int64_t i = 0; i < n; i++) v[i] = (key[i] - least) >> shift << 32 | (uint64_t)i;
  uint64_t *sorted = sort_digits(v, other, n, bits - shift);
  if (shift) sort_alike(key, sorted, sorted == v ? other : v, n);
  return sorted;
}

/* The scratch memory of a line: positions, and two sets of elements.  The keys stand in the second
 * set.
 *
 * order: writes the positions of the j->k first elements in order to the start of that memory.
 * rank: the position of the element of this rank; -1: of the first NaN, or else of the middle. */
#define LINE(name, E, K, KEY, AT) \
  static int64_t *order_##name(const job *j, const char *x, char *scratch) \
  { \
    const int64_t n = j->n; \
    int64_t *at = (int64_t *)scratch; \
    E *v = (E *)(scratch + 8 * n), *other = v + n; \
    K *key = (K *)other; \
    keys_of[j->dtype](x, j->step, n, j->falling, key); \
    if (n >= MANY && j->k > n / 4) { \
      const uint64_t *sorted = sort_many_##name(key, v, n); \
      for (int64_t i = 0; i < j->k; i++) at[i] = (int64_t)(sorted[i] & UINT32_MAX); \
      return at; \
    } \
    if (n >= MANY) v = least_##name(key, v, other, n, j->k); /* `other` is written when keys are read */ \
    else v = short_##name(key, v, other, n); \
    for (int64_t i = 0; i < j->k; i++) at[i] = (int64_t)AT(v[i]); \
    return at; \
  } \
  static int64_t rank_##name(const job *j, const char *x, char *scratch, int64_t rank) \
  { \
    const int64_t n = j->n; \
    E *v = (E *)(scratch + 8 * n), *other = v + n; \
    K *key = (K *)other, least, most; \
    int64_t last = 0; \
    keys_of[j->dtype](x, j->step, n, false, key); \
    if (n < MANY) { \
      v = short_##name(key, v, other, n); \
      if (rank < 0 && is_nan(j, x + (int64_t)AT(v[n - 1]) * j->step)) \
        for (rank = n - 1; rank > 0 && KEY(v[rank - 1]) == KEY(v[n - 1]); rank--) {} \
      return (int64_t)AT(v[rank < 0 ? (n - 1) / 2 : rank]); \
    } \
    if (rank < 0) { \
      bounds_##name(key, n, &least, &most); \
      while (key[last] != most) last++; \
      if (is_nan(j, x + last * j->step)) return last; \
    } \
    return at_rank_##name(key, v, other, n, rank < 0 ? (n - 1) / 2 : rank); \
  }
static bool is_nan(const job *j, const char *p)
{
  return ax_is_float(j->dtype) && ax_load_double(j->dtype, p, 0) != ax_load_double(j->dtype, p, 0);
}
#define WORD_KEY(e) ((e) >> 32)
#define WORD_AT(e) ((e)&UINT32_MAX)
#define PAIR_KEY(e) ((e).key)
#define PAIR_AT(e) ((e).at)
LINE(words, uint64_t, uint32_t, WORD_KEY, WORD_AT)
LINE(pairs, pair, uint64_t, PAIR_KEY, PAIR_AT)

/* ---- topk with small k: the best elements are kept sorted while the line is read; one comparison
 * refuses most elements */

enum { BLOCK = 256, MOST_KEPT = 128 };

#define BEST(name, K) \
  static void best_##name(const job *j, const char *x, int64_t *at) \
  { \
    K key[BLOCK], best[MOST_KEPT]; \
    int64_t have = 0; \
    for (int64_t lo = 0; lo < j->n; lo += BLOCK) { \
      const int64_t n = j->n - lo < BLOCK ? j->n - lo : BLOCK; \
      keys_of[j->dtype](x + lo * j->step, j->step, n, j->falling, key); \
      for (int64_t i = 0; i < n;) { \
        if (have == j->k && i + 16 <= n) { \
          const K last = best[have - 1]; \
          int any = 0; \
          _Pragma("omp simd reduction(|:any)") for (int l = 0; l < 16; l++) any |= key[i + l] < last; \
          if (!any) { \
            i += 16; \
            continue; \
          } \
        } \
        for (const int64_t end = i + 16 < n ? i + 16 : n; i < end; i++) { \
          if (have == j->k && key[i] >= best[have - 1]) continue; \
          int64_t p = have < j->k ? have++ : have - 1; \
          for (; p > 0 && best[p - 1] > key[i]; p--) { \
            best[p] = best[p - 1]; \
            at[p] = at[p - 1]; \
          } \
          best[p] = key[i]; \
          at[p] = lo + i; \
        } \
      } \
    } \
  }
BEST(narrow, uint32_t)
BEST(wide, uint64_t)

static void sort_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  char *const scratch = j->scratch + (size_t)omp_get_thread_num() * j->share;
  int64_t few[MOST_KEPT];

  for (int64_t line = lo; line < hi; line++) {
    const char *x =
        j->x + line / j->inner * j->outer_step + line % j->inner * (int64_t)ax_dtype_size(j->dtype);
    if (j->what == TOPK && j->k <= MOST_KEPT) {
      (is_wide(j->dtype) ? best_wide : best_narrow)(j, x, few);
      put_all(j, x, line, few, j->k);
      continue;
    }
    if (j->what == SORT || j->what == TOPK) {
      const int64_t *at = (is_wide(j->dtype) ? order_pairs : order_words)(j, x, scratch);
      put_all(j, x, line, at, j->k);
    } else {
      const int64_t rank = j->what == KTH ? j->k - 1 : -1;
      const int64_t at = (is_wide(j->dtype) ? rank_pairs : rank_words)(j, x, scratch, rank);
      job one = *j;
      one.k = 1;
      put(&one, x, line, 0, at);
    }
  }
}

static ax_status order(const ax_call *call, int what, int64_t dim, int64_t k, bool falling)
{
  const ax_tensor *x = call->in[0];
  job j = { .what = what,
            .dtype = (ax_dtype)x->dtype,
            .n = x->ndim ? x->shape[dim] : 1,
            .inner = 1,
            .k = k,
            .falling = falling,
            .x = ax_data(x),
            .values = ax_data(call->out[0]),
            .indices = ax_data(call->out[1]) };
  void *scratch = NULL;
  size_t bytes = 0;
  ax_status st = AX_OK;

  if (call->out[0]->numel == 0) return AX_OK;
  if (j.n >= UINT32_MAX)
    return ax_fail(AX_ESHAPE, "%s: %lld elements along a dim are more than can be sorted",
                   ax_ops[call->op].name, (long long)j.n);
  for (int d = (int)dim + 1; d < x->ndim; d++) j.inner *= x->shape[d];
  j.step = j.inner * (int64_t)ax_itemsize(x);
  j.outer_step = j.n * j.step;
  const int64_t lines = x->numel / j.n;
  if (!(what == TOPK && k <= MOST_KEPT)) { /* positions, and two sets of words or pairs */
    const int64_t threads = lines > 1 ? ax_cpu_get_threads() : 1;
    j.share = (size_t)j.n * (8 + 2 * (is_wide(j.dtype) ? sizeof(pair) : 8));
    j.share = (j.share + 63) / 64 * 64;
    bytes = j.share * (size_t)threads;
    AX_TRY(ax_alloc(bytes, &scratch));
    j.scratch = scratch;
  }
  ax_cpu_for(lines, x->numel * 8, sort_range, &j);
out:
  if (scratch) ax_free(scratch, bytes);
  return st;
}

ax_status ax_cpu_sort(const ax_call *call)
{
  const ax_tensor *x = call->in[0];
  const int64_t dim = call->a->sort.dim;
  return order(call, SORT, dim, x->ndim ? x->shape[dim] : 1, call->a->sort.descending);
}
ax_status ax_cpu_topk(const ax_call *call)
{
  return order(call, TOPK, call->a->topk.dim, call->a->topk.k, call->a->topk.largest);
}
ax_status ax_cpu_kthvalue(const ax_call *call)
{
  return order(call, KTH, call->a->kthvalue.dim, call->a->kthvalue.k, false);
}
ax_status ax_cpu__median(const ax_call *call)
{
  return order(call, MEDIAN, call->a->median_of.dim, 1, false);
}

/* ---- searchsorted */

typedef struct search {
  const void *sequence, *values;
  int64_t n, m, *out;
  bool right, one;
} search;

/* NaN is above everything, in the sequence and among the values. */
#define BELOW_FLOAT(a, b) (((a) < (b)) | (((b) != (b)) & ((a) == (a))))
#define BELOW_INT(a, b) ((a) < (b))

/* Values that are searched for together, without branches: none waits for the memory of another
 * one.  Elements are read one by one (volatile): a vector's gather takes ten times as long. */
enum { SEARCHED = 16 };

#define SEARCH(name, T, BELOW) \
  static inline __attribute__((always_inline)) void some_##name(const search *s, int64_t i, int64_t count, \
                                                                const bool right) \
  { \
    const T *const x = s->sequence; \
    T v[SEARCHED] = { 0 }; \
    int64_t row[SEARCHED] = { 0 }, at[SEARCHED]; \
    for (int k = 0; k < count; k++) { \
      v[k] = ((const T *)s->values)[i + k]; \
      row[k] = s->one ? 0 : (i + k) / s->m * s->n; \
    } \
    memcpy(at, row, sizeof at); \
    for (int64_t left = s->n, half; left > 1; left -= half) { /* the place is in `left` from `at` on */ \
      half = left / 2; \
      for (int k = 0; k < SEARCHED; k++) { \
        const T y = *(const volatile T *)&x[at[k] + half - 1], w = v[k]; \
        at[k] += half & -(int64_t)(right ? !BELOW(w, y) : BELOW(y, w)); \
      } \
    } \
    for (int k = 0; k < count; k++) { \
      const bool behind = s->n > 0 && (right ? !BELOW(v[k], x[at[k]]) : BELOW(x[at[k]], v[k])); \
      s->out[i + k] = at[k] - row[k] + behind; \
    } \
  } \
  static void search_##name(int64_t from, int64_t until, void *ud) \
  { \
    const search *s = ud; \
    for (int64_t i = from; i < until; i += SEARCHED) { \
      const int64_t count = until - i < SEARCHED ? until - i : SEARCHED; \
      if (s->right) some_##name(s, i, count, true); \
      else some_##name(s, i, count, false); \
    } \
  }
SEARCH(f32, float, BELOW_FLOAT)
SEARCH(f64, double, BELOW_FLOAT)
SEARCH(i64, int64_t, BELOW_INT)
SEARCH(i32, int32_t, BELOW_INT)
SEARCH(u8, uint8_t, BELOW_INT)

ax_status ax_cpu_searchsorted(const ax_call *call)
{
  static const ax_range_fn searches[AX_DTYPE_COUNT] = { [AX_F32] = search_f32,
                                                        [AX_F64] = search_f64,
                                                        [AX_I64] = search_i64,
                                                        [AX_I32] = search_i32,
                                                        [AX_U8] = search_u8 };
  const ax_tensor *s = call->in[0], *v = call->in[1], *y = call->out[0];
  int64_t number = 0;
  search job = { .sequence = ax_data(s),
                 .values = v ? ax_data(v) : &number,
                 .n = s->shape[s->ndim - 1],
                 .m = v && v->ndim ? v->shape[v->ndim - 1] : 1,
                 .out = ax_data(y),
                 .right = call->a->searchsorted.right,
                 .one = s->ndim == 1 };

  if (!v) ax_store_double((ax_dtype)s->dtype, &number, 0, call->a->searchsorted.number);
  if (!searches[s->dtype]) return ax_cpu_no_dtype(call->op, (ax_dtype)s->dtype);
  if (y->numel) ax_cpu_for(y->numel, y->numel * 16, searches[s->dtype], &job);
  return AX_OK;
}

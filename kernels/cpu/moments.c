/* var, std, norm and logsumexp: sums of a function of each element, all in float64.  var and
 * logsumexp read their elements twice: first for a centre c (the mean, the maximum), then for the
 * sum of (x - c)^2 or exp(x - c).  Threads share results, or chunks of a long reduction whose sums
 * are combined in order. */
#include "reduce.h"

#include <math.h>
#include <string.h>

#include "pointwise.h"

/* elements fetched at a time where they are not contiguous or not of the type computed in */
#define RUN 512
#define LANES 16

/* Joins n contiguous elements of the type computed in (float or double), about centre c, into
 * *to. */
typedef void (*row_fn)(const void *x, int64_t n, double c, double *to);
/* Joins n neighbouring columns, each about its own centre, into its own total. */
typedef void (*column_fn)(const void *x, int64_t n, const double *c, double *to);
typedef struct kind {
  row_fn row[2];
  column_fn column[2];
  double start;
  bool joins_max;
} kind;

/* Adds up `term`, a function of T v and double c. */
#define ADDING(name, S, T, term) \
  ADDING_ROWS(name, S, T, term) \
  ADDING_COLUMNS(name, S, T, term)
#define ADDING_ROWS(name, S, T, term) \
  static void name##_row_##S(const void *p, int64_t n, double c, double *to) \
  { \
    const T *x = p; \
    double lane[LANES] = { 0 }, rest = 0; \
    int64_t i = 0; \
    for (; i + LANES <= n; i += LANES) { \
      AX_SIMD \
      for (int j = 0; j < LANES; j++) { \
        const T v = x[i + j]; \
        lane[j] += (double)(term); \
      } \
    } \
    for (; i < n; i++) { \
      const T v = x[i]; \
      rest += (double)(term); \
    } \
    for (int w = LANES / 2; w > 0; w /= 2) \
      for (int j = 0; j < w; j++) lane[j] += lane[j + w]; \
    *to += lane[0] + rest; \
  }
#define ADDING_COLUMNS(name, S, T, term) \
  static void name##_column_##S(const void *p, int64_t n, const double *centre, double *to) \
  { \
    const T *x = p; \
    AX_SIMD \
    for (int64_t j = 0; j < n; j++) { \
      const T v = x[j]; \
      const double c = centre[j]; \
      (void)c; \
      to[j] += (double)(term); \
    } \
  }
/* The extreme of `term`; the result is NaN where one element is. */
#define CHOOSING(name, S, T, op, term) \
  static void name##_row_##S(const void *p, int64_t n, double c, double *to) \
  { \
    const T *x = p; \
    T lane[4 * LANES]; \
    int64_t i = 0; \
    for (int j = 0; j < 4 * LANES; j++) lane[j] = (T)*to; \
    for (; i + 4 * LANES <= n; i += 4 * LANES) { \
      AX_SIMD \
      for (int j = 0; j < 4 * LANES; j++) { \
        const T v = x[i + j], y = term; \
        lane[j] = (y op lane[j]) | (y != y) ? y : lane[j]; \
      } \
    } \
    for (; i < n; i++) { \
      const T v = x[i], y = term; \
      lane[0] = (y op lane[0]) | (y != y) ? y : lane[0]; \
    } \
    for (int j = 1; j < 4 * LANES; j++) \
      lane[0] = (lane[j] op lane[0]) | (lane[j] != lane[j]) ? lane[j] : lane[0]; \
    *to = (double)lane[0]; \
  } \
  static void name##_column_##S(const void *p, int64_t n, const double *centre, double *to) \
  { \
    const T *x = p; \
    AX_SIMD \
    for (int64_t j = 0; j < n; j++) { \
      const T v = x[j]; \
      const double y = (double)(term); \
      to[j] = (y op to[j]) | (y != y) ? y : to[j]; \
    } \
  }
#define BOTH(maker, name, ...) maker(name, f32, float, __VA_ARGS__) maker(name, f64, double, __VA_ARGS__)

/* The rows that are used most, in registers. */
#define VALUE(x) x
#define SQUARE(x) ((double)x * (double)x)
#define OFF(x) (((double)x - c) * ((double)x - c))
#define WIDE_f32(p) ax_vec_widen(p)
#define WIDE_f64(p) (*(const ax_vec_f64 *)p)
#define WIDE_SQUARE_f32(p) (WIDE_f32(p) * WIDE_f32(p))
#define WIDE_SQUARE_f64(p) (WIDE_f64(p) * WIDE_f64(p))
#define WIDE_OFF_f32(p) ((WIDE_f32(p) - c) * (WIDE_f32(p) - c))
#define WIDE_OFF_f64(p) ((WIDE_f64(p) - c) * (WIDE_f64(p) - c))
#define ADDING_RUNS(name, S, T, VECTORS, VALUES) \
  AX_RUN(name##_run_##S, LANES, T, double, ax_vec_f64, VECTORS##_##S, VALUES, +=, 0) \
  static void name##_row_##S(const void *p, int64_t n, double c, double *to) \
  { \
    *to += name##_run_##S(p, n, c); \
  } \
  ADDING_COLUMNS(name, S, T, VALUES(v))
BOTH(ADDING_RUNS, sum, WIDE, VALUE)
BOTH(ADDING_RUNS, squares, WIDE_SQUARE, SQUARE)
BOTH(ADDING_RUNS, spreads, WIDE_OFF, OFF)
BOTH(ADDING, sizes, fabs((double)v))
BOTH(ADDING, counts, v != 0)
ADDING(exps, f32, float, ax_exp_f32((float)(v - c)))
ADDING(exps, f64, double, ax_exp_f64(v - c))
/* the parameter c is the power here; exp(c log v) has float32's bits to spare */
ADDING(powers, f32, float, ax_exp_f64(c *ax_log_f64(fabs((double)v))))
ADDING(powers, f64, double, pow(fabs(v), c))
BOTH(CHOOSING, top, >, v)
CHOOSING(widest, f32, float, >, fabsf(v))
CHOOSING(widest, f64, double, >, fabs(v))
CHOOSING(least, f32, float, <, fabsf(v))
CHOOSING(least, f64, double, <, fabs(v))

#define KIND(name) \
  { \
    { name##_row_f32, name##_row_f64 }, { name##_column_f32, name##_column_f64 }, 0, false \
  }
#define KIND_MAX(name, from) \
  { \
    { name##_row_f32, name##_row_f64 }, { name##_column_f32, name##_column_f64 }, from, true \
  }
static const kind sums = KIND(sum), squares = KIND(squares), spreads = KIND(spreads), sizes = KIND(sizes),
                  counts = KIND(counts), exps = KIND(exps), powers = KIND(powers);
static const kind tops = KIND_MAX(top, -INFINITY), widests = KIND_MAX(widest, -INFINITY),
                  leasts = KIND_MAX(least, INFINITY);

/* ---- driver */

typedef struct job {
  ax_split s;
  const kind *first, *second; /* second NULL: one pass */
  double (*centre)(const struct job *j, double total);
  double (*finish)(const struct job *j, double centre, double total);
  double number;   /* correction or power */
  int wide;        /* 0: computed in float, 1: in double */
  double *partial; /* [chunks][results] when there is more than one chunk */
  double *centres; /* [results], then too */
  bool second_pass;
} job;

/* Fetches elements at p, `stride` bytes apart: in place where they are contiguous and of the type
 * computed in, else copied to `run`. */
static const void *fetch(const job *j, const char *p, int64_t stride, int64_t n, void *run)
{
  const ax_dtype d = j->s.from;
  const int64_t size = (int64_t)ax_dtype_size(d);
  if (ax_is_half(d)) ax_cpu_half_to_float(d, p, stride, run, n);
  else if (stride == size) return p;
  else
    for (int64_t i = 0; i < n; i++) memcpy((char *)run + i * size, p + i * stride, (size_t)size);
  return run;
}

/* Joins reduced positions [lo, hi) of a group into to[0 .. g->n). */
static void join_range(const job *j, const kind *k, const ax_group *g, int64_t lo, int64_t hi,
                       const double *c, double *to)
{
  double run[AX_TILE];
  int64_t at[AX_ROWS], n;

  for (; lo < hi; lo += n) {
    if (j->s.columns) {
      n = ax_rows_at(&j->s, lo, hi, at);
      for (int64_t r = 0; r < n; r++)
        k->column[j->wide](fetch(j, g->in + at[r], g->in_step, g->n, run), g->n, c, to);
    } else {
      const ax_line l = ax_line_at(&j->s, g, lo, hi - lo < RUN ? hi : lo + RUN);
      k->row[j->wide](fetch(j, l.p, l.step, l.n, run), l.n, c[0], to);
      n = l.n;
    }
  }
}

static void start(const job *j, const kind *k, double *to, int64_t n)
{
  for (int64_t i = 0; i < n; i++) to[i] = k->start;
}

static void put(const job *j, char *out, double centre, double total)
{
  ax_store_double(j->s.to, out, 0, j->finish(j, centre, total));
}

static void whole_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  double to[AX_TILE], c[AX_TILE];

  for (int64_t t = lo; t < hi; t++) {
    /* no ax_chunk: its copies take as long as a short row */
    const ax_group g = ax_cpu_group(&j->s, t);
    for (int64_t i = 0; i < g.n; i++) c[i] = j->number;
    start(j, j->first, to, g.n);
    join_range(j, j->first, &g, 0, j->s.reduced.count, c, to);
    if (j->second) {
      for (int64_t i = 0; i < g.n; i++) c[i] = j->centre(j, to[i]);
      start(j, j->second, to, g.n);
      join_range(j, j->second, &g, 0, j->s.reduced.count, c, to);
    }
    for (int64_t i = 0; i < g.n; i++) put(j, g.out + i * g.out_step, c[i], to[i]);
  }
}

static void chunk_range(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  const kind *k = j->second_pass ? j->second : j->first;

  for (int64_t p = lo; p < hi; p++) {
    const ax_chunk q = ax_chunk_at(&j->s, p);
    start(j, k, j->partial + q.partial, q.g.n);
    join_range(j, k, &q.g, q.from, q.until, j->centres + q.g.first, j->partial + q.partial);
  }
}

/* Combines the chunks' totals of result r in order. */
static double joined(const job *j, const kind *k, int64_t r)
{
  double total = j->partial[r];
  for (int64_t c = 1; c < j->s.chunks; c++) {
    const double v = j->partial[c * j->s.kept.count + r];
    if (!k->joins_max) total += v;
    else if (v != v || (k->start < 0 ? v > total : v < total)) total = v;
  }
  return total;
}

static ax_status run(const ax_call *call, job *j)
{
  const ax_dtype d = call->iter->op[1].dtype;

  if (!ax_is_float(d)) return ax_cpu_no_dtype(call->op, d);
  ax_cpu_split(call->iter, &j->s);
  j->wide = d == AX_F64;
  if (j->s.chunks == 1) {
    ax_cpu_for(j->s.tiles, j->s.work * 2, whole_range, j);
    return AX_OK;
  }
  const int64_t results = j->s.kept.count;
  j->partial = ax_malloc((size_t)((j->s.chunks + 1) * results) * sizeof(double));
  if (!j->partial) return AX_ENOMEM;
  j->centres = j->partial + j->s.chunks * results;
  for (int64_t r = 0; r < results; r++) j->centres[r] = j->number;
  ax_cpu_for(j->s.tiles * j->s.chunks, j->s.work, chunk_range, j);
  if (j->second) {
    for (int64_t r = 0; r < results; r++) j->centres[r] = j->centre(j, joined(j, j->first, r));
    j->second_pass = true;
    ax_cpu_for(j->s.tiles * j->s.chunks, j->s.work, chunk_range, j);
  }
  for (int64_t t = 0; t < j->s.tiles; t++) {
    const ax_group g = ax_cpu_group(&j->s, t);
    for (int64_t k = 0; k < g.n; k++)
      put(j, g.out + k * g.out_step, j->centres[g.first + k],
          joined(j, j->second ? j->second : j->first, g.first + k));
  }
  ax_mfree(j->partial);
  return AX_OK;
}

/* ---- the kernels */

static double mean_of(const job *j, double total) { return total / (double)j->s.reduced.count; }
static double variance(const job *j, double mean, double total)
{
  const double n = (double)j->s.reduced.count - j->number;
  return total / (n > 0 ? n : 0) + mean * 0; /* of no elements: NaN */
}
static double deviation(const job *j, double mean, double total) { return sqrt(variance(j, mean, total)); }

static ax_status spread(const ax_call *call, double correction,
                        double (*finish)(const job *j, double mean, double total))
{
  return run(call, &(job){ .first = &sums,
                           .second = &spreads,
                           .centre = mean_of,
                           .finish = finish,
                           .number = correction });
}

ax_status ax_cpu_var(const ax_call *call) { return spread(call, call->a->var.correction, variance); }
ax_status ax_cpu_std(const ax_call *call) { return spread(call, call->a->std.correction, deviation); }

/* an infinite maximum is no centre: (-inf) - (-inf) would be NaN */
static double top_of(const job *j, double top) { return isinf(top) ? 0 : top; }
static double add_log(const job *j, double top, double total) { return top + log(total); }
ax_status ax_cpu_logsumexp(const ax_call *call)
{
  return run(call, &(job){ .first = &tops, .second = &exps, .centre = top_of, .finish = add_log });
}

static double as_is(const job *j, double c, double total) { return total; }
static double root(const job *j, double c, double total) { return sqrt(total); }
static double any_root(const job *j, double p, double total) { return pow(total, 1 / p); }

ax_status ax_cpu_norm(const ax_call *call)
{
  const double p = call->a->norm.p;
  job j = { .finish = as_is };
  if (p == 2) {
    j.first = &squares;
    j.finish = root;
  } else if (p == 1) j.first = &sizes;
  else if (p == 0) j.first = &counts;
  else if (isinf(p)) j.first = p > 0 ? &widests : &leasts;
  else {
    j.first = &powers;
    j.number = p;
    j.finish = any_root;
  }
  return run(call, &j);
}

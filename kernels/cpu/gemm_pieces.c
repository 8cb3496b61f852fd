/* Products by oneDNN whose bits do not depend on the number of threads.
 *
 * With AVX-512, oneDNN divides k among threads when a is transposed and k is at least 2048 (the
 * gradient of a weight over a large batch).  So no single product is that deep.
 *
 * Without AVX-512 it divides k for most sizes.  So a product is cut into pieces of the result,
 * whose number follows from the sizes alone, and each piece runs on one thread. */
#include "gemm.h"

#include <omp.h>

/* ---- slices of k */

#define DEEP 2048
#define SLICE 1024

bool ax_dnnl_too_deep(const ax_gemm *g)
{
  return !ax_dnnl_divides_sums() && g->batch == 1 && g->k >= DEEP && g->a[1] == 1 && g->m > 1;
}

ax_status ax_dnnl_gemm_slices(const ax_gemm *all, const void *a, const void *b, const void *bias, void *c,
                              bool *done)
{
  const int64_t size = (int64_t)ax_dtype_size((ax_dtype)all->dtype), k = all->k;
  ax_gemm g = *all;
  ax_status st = AX_OK;

  for (int64_t at = 0; at < k; at += SLICE) {
    g.k = k - at < SLICE ? k - at : SLICE;
    const char *slice_a = (const char *)a + at * g.a[2] * size,
               *slice_b = (const char *)b + at * g.b[1] * size;
    AX_TRY(ax_dnnl_gemm(&g, slice_a, slice_b, bias, c, done));
    if (!*done && at == 0) break; /* nothing has been written: the caller has other ways */
    if (!*done && g.wide) AX_TRY(ax_cpu_widened_product(&g, slice_a, slice_b, NULL, c));
    else if (!*done) ax_cpu_gemm(&g, slice_a, slice_b, c);
    *done = true;
    g.bias = 0;
    g.accumulate = 1;
  }
out:
  return st;
}

/* ---- pieces of the result */

enum {
  MOST = 16,
  LEAST = 1 << 18, /* multiplications of a piece: 10 microseconds */
  SPAN = 128,      /* rows or columns */
  UNIT = 48        /* of cuts: whole tiles of oneDNN's */
};

typedef struct pieces {
  const ax_gemm *g;
  const char *a, *b, *bias;
  char *c;
  enum { ROWS, COLUMNS, MATRICES } cut;
  int64_t count;
  bool joins;             /* whether a thread computes its pieces at once: see joins() */
  ax_status status[MOST]; /* of the product that begins with this piece */
} pieces;

/* Where piece k begins. */
static int64_t start_of(const pieces *p, int64_t length, int64_t k)
{
  const int64_t unit = p->cut == MATRICES ? 1 : UNIT, units = length / unit;
  return k == p->count ? length : units * k / p->count * unit;
}

/* Pieces lo .. hi as one product. */
static void run_product(pieces *p, int64_t lo, int64_t hi)
{
  const ax_gemm *g = p->g;
  ax_gemm part = *g;
  int64_t *length = p->cut == ROWS ? &part.m : p->cut == COLUMNS ? &part.n : &part.batch;
  const int64_t from = start_of(p, *length, lo), until = start_of(p, *length, hi),
                size = (int64_t)sizeof(float);
  const char *a = p->a, *b = p->b, *bias = p->bias;
  char *c = p->c;
  bool done;

  *length = until - from;
  if (p->cut != COLUMNS) a += from * g->a[p->cut == ROWS] * size;
  if (p->cut != ROWS) b += from * g->b[p->cut == COLUMNS ? 2 : 0] * size;
  if (p->cut == COLUMNS && bias) bias += from * size;
  c += from * (p->cut == ROWS ? g->c[1] : p->cut == COLUMNS ? 1 : g->c[0]) * size;
  if (part.batch == 1) part.a[0] = part.b[0] = part.c[0] = 0;
  p->status[lo] = ax_dnnl_gemm(&part, a, b, bias, c, &done);
  if (p->status[lo] == AX_OK && !done) ax_cpu_gemm_bias(part, a, b, bias, c);
}

static void run_pieces(int64_t lo, int64_t hi, void *ud)
{
  pieces *p = ud;
  const int threads = omp_get_max_threads();

  if (threads > 1) omp_set_num_threads(1); /* of this thread: its primitives are made for one */
  if (p->joins) run_product(p, lo, hi);
  else
    for (int64_t k = lo; k < hi; k++) run_product(p, k, k + 1);
  if (threads > 1) omp_set_num_threads(threads);
}

/* oneDNN packs matrices where 1/m + 1/n is below PACKS, and reads smaller ones in place, which is
 * half as fast where rows are 4 KB apart.  So pieces of a product that is packed are packed too. */
#define PACKS 0.0038

static bool is_packed(int64_t m, int64_t n) { return 1.0 / (double)m + 1.0 / (double)n < PACKS; }

/* Whether oneDNN reads in place, and along rows that are multiples of 2 KB apart, whose cache lines
 * evict each other: ax_cpu_gemm, which packs, is 1.2 to 1.9 times as fast on Zen 4. */
static bool evicts(const ax_gemm *g)
{
  enum { FAR = 2048 / sizeof(float), FEW = 32 };
  if (g->m < FEW || g->n < FEW || is_packed(g->m, g->n)) return false;
  return (g->a[1] == 1 && g->a[2] % FAR == 0) || (g->b[2] == 1 && g->b[1] % FAR == 0);
}

/* Returns the least length of pieces, for a matrix with `other` columns or rows. */
static int64_t span_of(int64_t length, int64_t other)
{
  const double limit = PACKS - 1.0 / (double)other;
  if (1.0 / (double)length >= limit) return SPAN;
  return limit * SPAN < 1 ? (int64_t)(1 / limit) + 1 : SPAN;
}

/* How many pieces, and of what.  0: a product that is packed and cannot be cut into such, or that
 * ax_cpu_gemm does faster. */
static int64_t count_of(const ax_gemm *g, pieces *p)
{
  /* The other matrix is packed for each piece: the shorter one. */
  p->cut = g->batch > 1 ? MATRICES : g->m >= g->n ? ROWS : COLUMNS;
  const int64_t length = p->cut == MATRICES ? g->batch
                         : p->cut == ROWS   ? g->m
                                            : g->n,
                least = g->batch * g->m * g->n * g->k / LEAST;
  int64_t count = length;
  if (evicts(g)) return 0;
  if (p->cut != MATRICES) {
    const int64_t span = span_of(length, p->cut == ROWS ? g->n : g->m);
    count /= span;
    if (count < 2 && span > SPAN) return 0;
    if (count < 2 && length >= 2 * UNIT) count = 2;
  }
  if (count > least) count = least;
  return count > MOST ? MOST : count < 1 ? 1 : count;
}

/* Whether a thread may compute its pieces at once.  An element of a packed product has the same
 * bits whatever stands beside it; one that is read in place has not, nor one of a repeated matrix,
 * whose batch oneDNN takes for rows.  Packing is what a piece costs. */
static bool joins(const pieces *p)
{
  const ax_gemm *g = p->g;
  if (p->cut == MATRICES) return g->a[0] && g->b[0];
  const int64_t least = (p->cut == ROWS ? g->m : g->n) / UNIT / p->count * UNIT;
  return least > 0 && is_packed(least, p->cut == ROWS ? g->n : g->m);
}

ax_status ax_dnnl_gemm_pieces(const ax_gemm *g, const void *a, const void *b, const void *bias, void *c)
{
  pieces p = { .g = g, .a = a, .b = b, .bias = bias, .c = c };
  p.count = count_of(g, &p);
  if (p.count == 0) {
    ax_cpu_gemm_bias(*g, a, b, bias, c);
    return AX_OK;
  }
  p.joins = joins(&p);
  ax_cpu_for(p.count, g->batch * g->m * g->n * g->k, run_pieces, &p);
  for (int64_t k = 0; k < p.count; k++)
    if (p.status[k] != AX_OK) /* the message is that of the thread which it failed on */
      return ax_fail(p.status[k], "product of %lld x %lld x %lld: %s in piece %lld of %lld", (long long)g->m,
                     (long long)g->k, (long long)g->n, ax_status_text(p.status[k]), (long long)k + 1,
                     (long long)p.count);
  return AX_OK;
}

/* Fourier transforms of any length, in float32 and float64.
 *
 * None of the usual libraries fits: FFTW is under the GPL, KISS FFT needs time that grows with the
 * square of a large prime factor and has one type for each build, and pocketfft is C++.  What is
 * here is a transform of factors 2, 3, 4, 5, 8 and other odd numbers (fft_lanes.inc), which reads
 * and writes through fft_moves.inc, lines put together of it (fft_lines.inc, fft_split.inc),
 * Rader's and Bluestein's methods for large primes (fft_primes.inc), plans (fft_plans.inc) and
 * their use on tensors (fft_tensors.inc).  The work is divided by lines, or by parts of a line, so
 * that results do not depend on the number of threads. */
#include "cpu/complex.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
  LARGEST = 97,            /* prime factors up to it go through passes, larger ones through a convolution */
  FFT_KEPT = 16,           /* plans of each type */
  FFT_MOST_TOGETHER = 512, /* longer lines as lanes leave the first-level cache: one by one they are faster */
  FFT_FEW_TOGETHER = 128,  /* the same of lines that fill all lanes one by one */
  FFT_MOST_FETCHED = 8192, /* lines up to it wait in the caches while another one is computed */
  FFT_PRIME_MOST = 4096,   /* numbers of a convolution that goes through the passes as lanes */
  FFT_RADER_MOST = 32768,  /* numbers of a line that may be read and written in any order */
  FFT_LANES_KEPT = 16384,  /* bytes of lanes that go through all passes at once */
  FFT_MOST_COLUMNS = 4096, /* longer columns do not fit in the caches as lanes */
};
typedef enum { FFT_LANES, FFT_SPLIT, FFT_PRIME } fft_kind;
/* TOGETHER: many lines, which go through the passes side by side; HALF: of a real transform of
 * twice the length. */
typedef enum { FFT_LINES, FFT_TOGETHER, FFT_HALF, FFT_HALF_TOGETHER } fft_use;
static bool fft_is_together(fft_use u) { return u == FFT_TOGETHER || u == FFT_HALF_TOGETHER; }
typedef enum { FFT_C2C, FFT_R2C, FFT_C2R } fft_what;

#define FFT_UNROLL _Pragma("GCC unroll 16") /* as many as a vector has lanes */

static pthread_mutex_t fft_lock = PTHREAD_MUTEX_INITIALIZER;

static ax_status fft_no_memory(void) { return ax_fail(AX_ENOMEM, "fft: out of memory"); }

static void *fft_room(size_t bytes)
{
  void *p;
  return ax_alloc(bytes ? bytes : 1, &p) == AX_OK ? p : NULL;
}
static void fft_give(void *p, size_t bytes)
{
  if (p) ax_free(p, bytes ? bytes : 1);
}

/* Memory that `free` frees, on a line of the cache, so that no vector of it is on two. */
static void *fft_table(size_t bytes) { return aligned_alloc(64, (bytes + 63) / 64 * 64); }

static int64_t largest_prime(int64_t n)
{
  int64_t most = 1;
  for (int64_t f = 2; f * f <= n; f++)
    while (n % f == 0) n /= f, most = f;
  return n > most ? n : most;
}

/* The factor of the next pass, where `left` is still to be transformed: as few passes as there can
 * be, since each reads and writes all lanes, and powers of 2 divided evenly among them. */
static int fft_factor(int left)
{
  const int twos = __builtin_ctz((unsigned)left), passes = (twos + 3) / 4;
  if (twos) return 1 << ((twos + passes - 1) / passes);
  if (left % 9 == 0) return 9;
  for (int f = 3;; f += 2)
    if (left % f == 0) return f;
}

/* Whether the pass of a factor reads a table of its roots of 1. */
static bool fft_has_roots(int f) { return f > 5 && f % 2 && f != 9; }

/* cos and sin of 2 pi k / n, 0 <= k: both of an angle up to pi / 4, so that they are as exact as
 * the type. */
static void unit_root(int64_t k, int64_t n, double root[2])
{
  const double pi = 3.14159265358979323846;
  int64_t a = 8 * (k % n); /* eighths of n */
  const int eighth = (int)(a / n);
  a -= eighth * n;
  if (eighth & 1) a = n - a;
  const double angle = pi / 4 * (double)a / (double)n, c = cos(angle), s = sin(angle);
  /* the angle is in the first eighth; for odd eighths it is what is missing to the next one */
  const bool swap = ((eighth + 1) & 2) != 0;
  const double x = swap ? s : c, y = swap ? c : s;
  root[0] = eighth >= 2 && eighth <= 5 ? -x : x;
  root[1] = eighth >= 4 ? -y : y;
}

/* Brings a vector of the lines that are read next, or of a place for results, into the caches: the
 * loops alternate between reading, computing and writing, and memory would wait meanwhile.  Nothing
 * is wrong with addresses that are no one's. */
static inline __attribute__((always_inline)) void fft_fetch(const void *p) { __builtin_prefetch(p, 0, 3); }
/* Brings a vector into the second-level cache: for what is too much for the first one. */
static inline __attribute__((always_inline)) void fft_fetch_far(const void *p)
{
  __builtin_prefetch(p, 0, 2);
}
/* Fetches far where vectors have at most 32 bytes.  With those of 64 the loops are shorter, so that
 * the processor's own fetching keeps up, and the instructions cost more than they gain. */
static inline __attribute__((always_inline)) void fft_fetch_narrow(const void *p)
{
  if (AX_BYTES < 64) fft_fetch_far(p);
}

/* What a transform of n numbers costs, in additions for each number. */
static int64_t fft_cost(int64_t n)
{
  int64_t cost = 0;
  for (; n % 8 == 0 && n != 16; n /= 8) cost += 9;
  for (; n % 4 == 0; n /= 4) cost += 6;
  for (int64_t f = 2; n > 1; f++)
    for (; n % f == 0; n /= f) cost += f == 2 ? 5 : f == 3 ? 7 : f == 5 ? 10 : 4 + 2 * f;
  return cost;
}

/* The length for Bluestein's method; that of single lines is a product of two multiples of the
 * lanes. */
static int64_t fft_convolution(int64_t n, bool together)
{
  static const int64_t odd[] = { 1, 3, 5, 9, 15, 25, 27, 45, 75, 81 };
  int64_t best = 0, least = INT64_MAX;
  for (int k = 0; k < (together ? 10 : 5); k++) {
    int64_t m = odd[k] * (together ? 1 : 256);
    while (m < 2 * n - 1) m *= 2;
    const int64_t cost = m * fft_cost(m);
    if (cost < least) least = cost, best = m;
  }
  return best;
}

static int64_t power_modulo(int64_t x, int64_t power, int64_t n)
{
  int64_t result = 1;
  for (; power; power /= 2, x = x * x % n)
    if (power & 1) result = result * x % n;
  return result;
}

/* A number whose powers are all of 1 .. n - 1 modulo the prime n. */
static int64_t generator_of(int64_t n)
{
  for (int64_t g = 2;; g++) {
    bool all = true;
    int64_t left = n - 1;
    for (int64_t f = 2; left > 1 && all; f++) {
      if (f * f > left) f = left;
      if (left % f) continue;
      while (left % f == 0) left /= f;
      all = power_modulo(g, (n - 1) / f, n) != 1;
    }
    if (all) return g;
  }
}

typedef int32_t ax_mask_f32 __attribute__((vector_size(AX_BYTES)));
typedef int64_t ax_mask_f64 __attribute__((vector_size(AX_BYTES)));

#define T double
#define V ax_vec_f64
#define MASK ax_mask_f64
#define FN(name) fft_##name##_f64
#define FMA(a, b, c) AX_VFMA_f64(a, b, c)
enum { FN(LANES) = AX_BYTES / sizeof(T) };
#include "cpu/turn.inc"

#include "fft_moves.inc"

#include "fft_lanes.inc"

#include "fft_lines.inc"

#include "fft_split.inc"

#include "fft_plans.inc"

#include "fft_primes.inc"

#include "fft_tensors.inc"
#undef T
#undef V
#undef MASK
#undef FN
#undef FMA

#define T float
#define V ax_vec_f32
#define MASK ax_mask_f32
#define FN(name) fft_##name##_f32
#define FMA(a, b, c) AX_VFMA_f32(a, b, c)
enum { FN(LANES) = AX_BYTES / sizeof(T) };
#include "cpu/turn.inc"

#include "fft_moves.inc"

#include "fft_lanes.inc"

#include "fft_lines.inc"

#include "fft_split.inc"

#include "fft_plans.inc"

#include "fft_primes.inc"

#include "fft_tensors.inc"
#undef T
#undef V
#undef MASK
#undef FN
#undef FMA

static ax_status transform(const ax_call *call, fft_what what, int64_t dim, int64_t n, bool inverse,
                           double scale, double weight)
{
  return ax_dtype_size((ax_dtype)call->in[0]->dtype) == (what == FFT_R2C ? 8 : 16)
             ? fft_transform_f64(call, what, dim, n, inverse, scale, weight)
             : fft_transform_f32(call, what, dim, n, inverse, scale, weight);
}

ax_status ax_cpu__fft_c2c(const ax_call *call)
{
  const int64_t dim = call->a->fft_c2c.dim;
  return transform(call, FFT_C2C, dim, call->in[0]->shape[dim], call->a->fft_c2c.inverse != 0,
                   call->a->fft_c2c.scale, 1);
}

ax_status ax_cpu__fft_r2c(const ax_call *call)
{
  const int64_t dim = call->a->fft_r2c.dim;
  return transform(call, FFT_R2C, dim, call->in[0]->shape[dim], false, call->a->fft_r2c.scale,
                   call->a->fft_r2c.weight);
}

ax_status ax_cpu__fft_c2r(const ax_call *call)
{
  return transform(call, FFT_C2R, call->a->fft_c2r.dim, call->a->fft_c2r.n, true, call->a->fft_c2r.scale,
                   call->a->fft_c2r.weight);
}

AX_LOOP1(conj_c64, ax_cpu_c64, ax_cpu_c64, conjf(x))
AX_LOOP1(conj_c128, ax_cpu_c128, ax_cpu_c128, conj(x))

typedef struct conj_job {
  const char *from;
  char *to;
  int64_t item;
} conj_job;

static void conj_range(int64_t lo, int64_t hi, void *ud)
{
  const conj_job *j = ud;
  char *const data[2] = { j->to + lo * j->item, (char *)j->from + lo * j->item };
  (j->item == 8 ? conj_c64 : conj_c128)(data, (int64_t[]){ j->item, j->item }, hi - lo, NULL);
}

ax_status ax_cpu__conj(const ax_call *call)
{
  const ax_tensor *x = call->in[0];
  conj_job j = { ax_data(x), ax_data(call->out[0]), (int64_t)ax_itemsize(x) };
  ax_cpu_for(x->numel, x->numel, conj_range, &j);
  return AX_OK;
}

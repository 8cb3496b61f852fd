/* ctc_loss: sums over all ways to read the targets, forward and backward in time (Graves et al.
 * 2006).  The places are the targets with blanks before, between and behind them.  Sums run over
 * logarithms in float64, since probabilities of long sequences underflow.  Threads share sequences;
 * exponentials bound the kernel. */
#include "cpu.h"
#include "ctc.h"
#include "functions.h"

#include <string.h>

/* A sequence's lines have room for two vectors more than its places: loops run in whole vectors,
 * and a way comes from two places on.  Two numbers before the first place are the logarithms of
 * 0. */
enum { LANES = 8, BEFORE = 2 };

typedef struct job {
  int64_t t, n, classes, longest, places; /* places: the most that a sequence has */
  int64_t blank;
  bool zero_infinity, wide;
  const void *x; /* (t, n, classes) */
  const int64_t *targets, *in_lengths, *lengths;
  void *loss, *dx;
  const void *g;
  double *reached;              /* (n, t, places) */
  double *scratch;              /* (n, LINES lines and a row of classes) */
  int64_t line, scratch_of_one; /* numbers */
} job;

/* Of one sequence. */
typedef struct sequence {
  int64_t times, places, whole; /* whole: places in whole vectors */
  const int64_t *target;
  double *now, *other, *leap, *here, *way, *sums;
} sequence;
enum { LINES = 5 };

static inline double number(const job *j, const void *p, int64_t i)
{
  return j->wide ? ((const double *)p)[i] : (double)((const float *)p)[i];
}
static inline void put(const job *j, void *p, int64_t i, double v)
{
  if (j->wide) ((double *)p)[i] = v;
  else ((float *)p)[i] = (float)v;
}

static void never(double *to, int64_t n)
{
  for (int64_t i = 0; i < n; i++) to[i] = -INFINITY;
}

/* ahead: how many places a way leaps over to come to s (0), or goes on to from s (2). */
static sequence sequence_of(const job *j, int64_t b, int64_t ahead)
{
  double *const lines = j->scratch + b * j->scratch_of_one;
  sequence q = { .times = j->in_lengths[b],
                 .places = 2 * j->lengths[b] + 1,
                 .target = j->targets + b * j->longest,
                 .now = lines + BEFORE,
                 .other = lines + j->line + BEFORE,
                 .leap = lines + 2 * j->line,
                 .here = lines + 3 * j->line,
                 .way = lines + 4 * j->line,
                 .sums = lines + 5 * j->line };
  q.whole = (q.places + LANES - 1) / LANES * LANES;
  never(lines, 2 * j->line);
  for (int64_t s = 0; s < j->line; s++) {
    const int64_t to = s + ahead;
    q.leap[s] = to < q.places && ax_ctc_leaps(j->blank, q.target, to);
    q.here[s] = q.way[s] = 0;
  }
  return q;
}

static int64_t class_at(const job *j, const sequence *q, int64_t s)
{
  return ax_ctc_class_at(j->blank, q->target, s);
}

/* log(e^a + e^b + e^c), where no branch keeps the compiler from making vectors of it.  The largest
 * one's part of the sum is 1; of what is not a number nothing is larger, and it stays. */
static inline double add_up(double a, double b, double c)
{
  const double ab = a > b ? a : b, least = a > b ? b : a, most = ab > c ? ab : c, other = ab > c ? c : ab;
  const double m = most == -INFINITY ? 0.0 : most;
  return most + ax_log_f64(1.0 + ax_exp_f64(least - m) + ax_exp_f64(other - m));
}

/* The ways to n places of a time, from those of the time at one side of it: next and further are
 * one and two places on in the direction in which they come; leap: 0 where no way comes from there.
 * (Flat, since the compiler makes no vectors of calls.) */
__attribute__((flatten, noinline)) static void add_ways(double *restrict now, const double *same,
                                                        const double *next, const double *further,
                                                        const double *leap, const double *here, int64_t n)
{
  AX_SIMD
  for (int64_t s = 0; s < n; s++) {
    const double leaps = leap[s], all = further[s], third = leaps == 0 ? -INFINITY : all;
    now[s] = add_up(same[s], next[s], third) + here[s];
  }
}

static void take_turns(sequence *q)
{
  double *const swap = q->now;
  q->now = q->other;
  q->other = swap;
}

static double loss_of(const job *j, const sequence *q, int64_t b)
{
  const double *last = j->reached + (b * j->t + q->times - 1) * j->places;
  if (q->times == 0) return q->places == 1 ? 0 : INFINITY;
  return -ax_ctc_add_up(last[q->places - 1], q->places > 1 ? last[q->places - 2] : -INFINITY, -INFINITY);
}

static void losses(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  for (int64_t b = lo; b < hi; b++) {
    sequence q = sequence_of(j, b, 0);
    double *at = j->reached + b * j->t * j->places;

    never(at, j->t * j->places);
    for (int64_t t = 0; t < q.times; t++, at += j->places) {
      const int64_t row = (t * j->n + b) * j->classes;
      for (int64_t s = 0; s < q.places; s++) q.here[s] = number(j, j->x, row + class_at(j, &q, s));
      if (t > 0) add_ways(q.now, q.other, q.other - 1, q.other - 2, q.leap, q.here, q.whole);
      else
        for (int64_t s = 0; s < 2 && s < q.places; s++) q.now[s] = q.here[s];
      memcpy(at, q.now, sizeof *at * (size_t)q.places);
      take_turns(&q);
    }
    const double loss = loss_of(j, &q, b);
    put(j, j->loss, b, j->zero_infinity && loss == INFINITY ? 0 : loss);
  }
}

/* dx = g (e^x - the share of all ways that read the class) */
#define SLOPES(S, T) \
  static void slopes_##S(const job *j, int64_t row, const double *share, double g) \
  { \
    const T *x = (const T *)j->x + row; \
    T *dx = (T *)j->dx + row; \
    AX_SIMD \
    for (int64_t c = 0; c < j->classes; c++) dx[c] = (T)(g * (ax_exp_f64((double)x[c]) - share[c])); \
  }
SLOPES(f32, float)
SLOPES(f64, double)

/* d loss / d log_probs = e^log_probs - the share of all ways that read the class at that time: what
 * log_softmax's gradient makes of it is the gradient of its input. */
static void gradients(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  for (int64_t b = lo; b < hi; b++) {
    sequence q = sequence_of(j, b, 2);
    const double loss = loss_of(j, &q, b), g = number(j, j->g, b);
    const int64_t end = j->zero_infinity && loss == INFINITY ? 0 : q.times;

    for (int64_t t = end; t < j->t; t++)
      for (int64_t c = 0; c < j->classes; c++) put(j, j->dx, (t * j->n + b) * j->classes + c, 0);
    for (int64_t t = end - 1; t >= 0; t--) {
      const int64_t row = (t * j->n + b) * j->classes;
      double *const way = q.way;
      const double *const now = q.now, *const here = q.here;
      for (int64_t s = 0; s < q.places; s++) q.here[s] = number(j, j->x, row + class_at(j, &q, s));
      if (t < end - 1) add_ways(q.now, q.other, q.other + 1, q.other + 2, q.leap, q.here, q.whole);
      else
        for (int64_t s = q.places > 1 ? q.places - 2 : 0; s < q.places; s++) q.now[s] = q.here[s];
      never(q.now + q.places, j->line - BEFORE - q.places);
      memcpy(way, j->reached + (b * j->t + t) * j->places, sizeof *way * (size_t)q.places);
      AX_SIMD
      for (int64_t s = 0; s < q.whole; s++) {
        const double before = way[s], after = now[s], share = ax_exp_f64(before + after - here[s] + loss);
        way[s] = (before == -INFINITY) | (after == -INFINITY) ? 0 : share;
      }
      /* no way at all has no shares: not a number, as in PyTorch */
      for (int64_t c = 0; c < j->classes; c++) q.sums[c] = loss == INFINITY ? NAN : 0;
      for (int64_t s = 0; s < q.places; s++) q.sums[class_at(j, &q, s)] += way[s];
      if (j->wide) slopes_f64(j, row, q.sums, g);
      else slopes_f32(j, row, q.sums, g);
      take_turns(&q);
    }
  }
}

static job job_of(const ax_call *call, int first, const ax_tensor *reached)
{
  const ax_tensor *x = call->in[first];
  return (job){ .t = x->shape[0],
                .n = x->shape[1],
                .classes = x->shape[2],
                .longest = call->in[first + 1]->shape[1],
                .places = reached->shape[2],
                .blank = call->a->ctc.blank,
                .zero_infinity = call->a->ctc.zero_infinity,
                .wide = x->dtype == AX_F64,
                .x = ax_data(x),
                .targets = ax_data(call->in[first + 1]),
                .in_lengths = ax_data(call->in[first + 2]),
                .lengths = ax_data(call->in[first + 3]),
                .reached = ax_data(reached) };
}

static ax_status run(job *j, int64_t work, void (*one)(int64_t, int64_t, void *))
{
  j->line = BEFORE + j->places + 2 * LANES;
  j->scratch_of_one = LINES * j->line + j->classes;
  const size_t bytes = (size_t)(j->n * j->scratch_of_one) * sizeof(double);
  void *scratch;
  const ax_status st = ax_alloc(bytes, &scratch);
  if (st != AX_OK) return st;
  j->scratch = scratch;
  ax_cpu_for(j->n, work * j->n * j->t * j->places, one, j);
  ax_free(scratch, bytes);
  return AX_OK;
}

ax_status ax_cpu__ctc_loss(const ax_call *call)
{
  job j = job_of(call, 0, call->out[1]);
  j.loss = ax_data(call->out[0]);
  return run(&j, 8, losses);
}

ax_status ax_cpu__ctc_loss_backward(const ax_call *call)
{
  job j = job_of(call, 1, call->in[6]);
  if (call->out[0]->numel == 0) return AX_OK;
  j.g = ax_data(call->in[0]);
  j.dx = ax_data(call->out[0]);
  return run(&j, 16, gradients);
}

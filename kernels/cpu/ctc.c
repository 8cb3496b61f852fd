/* ctc_loss: sums over all ways to read the targets, forward and backward in time (Graves et al.
 * 2006).  The places are the targets with blanks before, between and behind them.  Sums run over
 * logarithms in float64, since probabilities of long sequences underflow.  Threads share sequences;
 * exponentials bound the kernel. */
#include "cpu.h"
#include "ctc.h"

typedef struct job {
  int64_t t, n, classes, longest, places; /* places: the most that a sequence has */
  int64_t blank;
  bool zero_infinity, wide;
  const void *x; /* (t, n, classes) */
  const int64_t *targets, *in_lengths, *lengths;
  void *loss, *dx;
  const void *g;
  double *reached, *scratch; /* (n, t, places); (n, 2 places + classes) */
} job;

static inline double number(const job *j, const void *p, int64_t i)
{
  return j->wide ? ((const double *)p)[i] : (double)((const float *)p)[i];
}
static inline void put(const job *j, void *p, int64_t i, double v)
{
  if (j->wide) ((double *)p)[i] = v;
  else ((float *)p)[i] = (float)v;
}

static void losses(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  for (int64_t b = lo; b < hi; b++) {
    const int64_t times = j->in_lengths[b], places = 2 * j->lengths[b] + 1;
    const int64_t *target = j->targets + b * j->longest;
    double *at = j->reached + b * j->t * j->places, loss = INFINITY;

    for (int64_t i = 0; i < j->t * j->places; i++) at[i] = -INFINITY;
    for (int64_t t = 0; t < times; t++, at += j->places) {
      const int64_t row = (t * j->n + b) * j->classes;
      if (t == 0) {
        at[0] = number(j, j->x, row + j->blank);
        if (places > 1) at[1] = number(j, j->x, row + target[0]);
        continue;
      }
      const double *before = at - j->places;
      for (int64_t s = 0; s < places; s++)
        at[s] = ax_ctc_add_up(before[s], s ? before[s - 1] : -INFINITY,
                              ax_ctc_leaps(j->blank, target, s) ? before[s - 2] : -INFINITY) +
                number(j, j->x, row + ax_ctc_class_at(j->blank, target, s));
    }
    if (times == 0) loss = places == 1 ? 0 : INFINITY;
    else {
      const double *last = j->reached + (b * j->t + times - 1) * j->places;
      loss = -ax_ctc_add_up(last[places - 1], places > 1 ? last[places - 2] : -INFINITY, -INFINITY);
    }
    put(j, j->loss, b, j->zero_infinity && loss == INFINITY ? 0 : loss);
  }
}

/* d loss / d log_probs = e^log_probs - the share of all ways that read the class at that time: what
 * log_softmax's gradient makes of it is the gradient of its input. */
static void gradients(int64_t lo, int64_t hi, void *ud)
{
  const job *j = ud;
  for (int64_t b = lo; b < hi; b++) {
    const int64_t times = j->in_lengths[b], places = 2 * j->lengths[b] + 1;
    const int64_t *target = j->targets + b * j->longest;
    double *after = j->scratch + b * (2 * j->places + j->classes), *now = after + j->places,
           *sums = now + j->places;
    const double *end = j->reached + (b * j->t + times - 1) * j->places;
    const double loss =
        times == 0 ? 0 : -ax_ctc_add_up(end[places - 1], places > 1 ? end[places - 2] : -INFINITY, -INFINITY);
    const double g = number(j, j->g, b);

    for (int64_t t = times; t < j->t; t++)
      for (int64_t c = 0; c < j->classes; c++) put(j, j->dx, (t * j->n + b) * j->classes + c, 0);
    for (int64_t t = times - 1; t >= 0; t--) {
      const int64_t row = (t * j->n + b) * j->classes;
      const double *reached = j->reached + (b * j->t + t) * j->places;
      if (j->zero_infinity && loss == INFINITY) {
        for (int64_t c = 0; c < j->classes; c++) put(j, j->dx, row + c, 0);
        continue;
      }
      for (int64_t c = 0; c < j->classes; c++) sums[c] = -INFINITY;
      for (int64_t s = 0; s < places; s++) {
        const int64_t c = ax_ctc_class_at(j->blank, target, s);
        if (t == times - 1) now[s] = s >= places - 2 ? 0 : -INFINITY;
        else
          now[s] = ax_ctc_add_up(after[s], s + 1 < places ? after[s + 1] : -INFINITY,
                                 s + 2 < places && ax_ctc_leaps(j->blank, target, s + 2) ? after[s + 2]
                                                                                         : -INFINITY);
        now[s] += number(j, j->x, row + c);
        sums[c] = ax_ctc_add_up(sums[c], reached[s] + now[s], -INFINITY);
      }
      for (int64_t c = 0; c < j->classes; c++) {
        const double x = number(j, j->x, row + c);
        put(j, j->dx, row + c, g * (exp(x) - exp(sums[c] + loss - x)));
      }
      double *const swap = after;
      after = now;
      now = swap;
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

ax_status ax_cpu__ctc_loss(const ax_call *call)
{
  job j = job_of(call, 0, call->out[1]);
  j.loss = ax_data(call->out[0]);
  ax_cpu_for(j.n, 32 * j.n * j.t * j.places, losses, &j);
  return AX_OK;
}

ax_status ax_cpu__ctc_loss_backward(const ax_call *call)
{
  job j = job_of(call, 1, call->in[6]);
  const size_t bytes = (size_t)(j.n * (2 * j.places + j.classes)) * sizeof(double);
  void *scratch;
  const ax_status st = ax_alloc(bytes, &scratch);
  if (st != AX_OK) return st;
  j.g = ax_data(call->in[0]);
  j.dx = ax_data(call->out[0]);
  j.scratch = scratch;
  if (call->out[0]->numel) ax_cpu_for(j.n, 64 * j.n * j.t * j.places, gradients, &j);
  ax_free(scratch, bytes);
  return AX_OK;
}

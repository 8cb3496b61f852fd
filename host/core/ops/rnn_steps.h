/* What the rules and the kernels of recurrent layers share: the order of gates, and the walk over
 * the steps of a layer. */
#ifndef AX_RNN_STEPS_H
#define AX_RNN_STEPS_H

#include "plugin.h"

/* The order of gates in weights, in gx and gh, and in what a cell saves; each is `hidden` wide.  A
 * GRU saves one more: the hidden part of the argument of n. */
enum { AX_LSTM_I, AX_LSTM_F, AX_LSTM_G, AX_LSTM_O, AX_LSTM_GATES };
enum { AX_GRU_R, AX_GRU_Z, AX_GRU_N, AX_GRU_GATES, AX_GRU_M = AX_GRU_GATES, AX_GRU_SAVED };

/* The steps of a layer.  Step t of a packed batch has sizes[t] sequences, a falling number: its
 * rows follow those of the steps before, and the first rows of the state belong to those that go
 * on. */
typedef struct ax_rnn_sequence {
  /* rows of all steps; rows of the first step; widths of the state and of the gates */
  int64_t steps, rows, batch, hidden, gates;
  const int64_t *sizes; /* in host memory; NULL: always `batch` */
  bool reverse;
} ax_rnn_sequence;

/* x: has the leading sizes of y; w: NULL where there are no gates; sizes: NULL, or the n_sizes
 * numbers of sequences.  Checks what cannot be known before they are read. */
static inline ax_status ax_rnn_begin(const ax_call *call, const ax_tensor *x, const ax_tensor *w,
                                     const ax_tensor *h, const int64_t *sizes, int64_t n_sizes, bool reverse,
                                     ax_rnn_sequence *s)
{
  const char *name = ax_ops[call->op].name;
  int64_t sum = 0;

  s->batch = h->shape[0];
  s->hidden = h->shape[1];
  s->gates = w ? w->shape[0] : 0;
  s->sizes = sizes;
  s->reverse = reverse;
  s->steps = sizes ? n_sizes : x->shape[0];
  s->rows = sizes ? x->shape[0] : x->shape[0] * x->shape[1];
  if (!sizes) return AX_OK;
  if (reverse)
    return ax_fail(
        AX_EINVAL,
        "%s: a packed batch runs from its first step on; turn the sequences around instead of reverse", name);
  for (int64_t t = 0; t < s->steps; t++) {
    if (sizes[t] < 1 || sizes[t] > (t ? sizes[t - 1] : s->batch) || (t == 0 && sizes[0] != s->batch))
      return ax_fail(AX_EINVAL,
                     "%s: batch_sizes must start with %lld, fall and stay above 0; entry %lld is %lld", name,
                     (long long)s->batch, (long long)t + 1, (long long)sizes[t]);
    sum += sizes[t];
  }
  if (sum != s->rows)
    return ax_fail(AX_EINVAL, "%s: batch_sizes add up to %lld, gx has %lld rows", name, (long long)sum,
                   (long long)s->rows);
  return AX_OK;
}

static inline int64_t ax_rnn_size_at(const ax_rnn_sequence *s, int64_t t)
{
  return s->sizes ? s->sizes[t] : s->batch;
}

/* A place in a walk over the steps, in order or backward; a walk begins with t = -1. */
typedef struct ax_rnn_walk {
  int64_t t, at, n; /* the step, its first row, its rows */
  int64_t former;   /* the first row of the step before in time; -1: there is none */
} ax_rnn_walk;

static inline bool ax_rnn_next(const ax_rnn_sequence *s, bool backward, ax_rnn_walk *w)
{
  const bool down = s->reverse != backward;
  if (s->steps == 0) return false;
  if (w->t < 0) {
    w->t = down ? s->steps - 1 : 0;
    w->at = down ? s->rows - ax_rnn_size_at(s, s->steps - 1) : 0;
  } else if (down) {
    if (--w->t < 0) return false;
    w->at -= ax_rnn_size_at(s, w->t);
  } else {
    w->at += ax_rnn_size_at(s, w->t);
    if (++w->t == s->steps) return false;
  }
  w->n = ax_rnn_size_at(s, w->t);
  if (s->reverse) w->former = w->t == s->steps - 1 ? -1 : w->at + w->n;
  else w->former = w->t == 0 ? -1 : w->at - ax_rnn_size_at(s, w->t - 1);
  return true;
}

#endif

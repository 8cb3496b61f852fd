/* What waits until its result is read (later.c), and the rows that take it over (join.c).
 * Gradients that are to be clipped wait as well: an optimizer's pass multiplies on the way. */
#ifndef AX_LATER_H
#define AX_LATER_H

#include "core/ops/infer.h"

enum { AX_LATER_INPUTS = 4, AX_LATER_LEAST = 4096 /* elements; fewer cost no more than the waiting */ };

/* A kernel call that has not run.  Its inputs are tensors without a history, and wait for nothing
 * themselves. */
typedef struct ax_later {
  struct ax_later *next, *former;
  ax_claim writes;                 /* on `to`: comes before any use */
  ax_claim reads[AX_LATER_INPUTS]; /* on the inputs' memory: comes before a write */
  ax_op op;
  ax_attrs a;
  int n_in;
  ax_tensor *in[AX_LATER_INPUTS]; /* counted */
  ax_storage *to;                 /* weak: the storage leads here until it is freed */
  ax_dtype dtype;
  int ndim;
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS];
  ax_tensor *more[2]; /* counted: further results, which have been written; NULL: none */
  /* counted: the result in a half type, which is there already; NULL: there is none */
  ax_tensor *half;
  /* not NULL: no row's call, but gradients that are to be clipped in place; in[0] is their norm */
  struct ax_clipping *clipping;
} ax_later;

/* Some elements of a storage. */
typedef struct ax_span {
  int64_t offset, n;
} ax_span;

/* Gradients in one storage, each multiplied by min(1, max_norm / (norm + 1e-6)). */
typedef struct ax_clipping {
  double max_norm;
  int n, left;    /* runs; those that a reader may still come for */
  bool broken;    /* it failed half-way: some are clipped, and nobody knows which */
  ax_span runs[]; /* in order; n 0: nobody reads it any more */
} ax_clipping;

/* Lets the clipping of n runs of `to`, which are put in order, wait until they are read; `norm`:
 * one float64 on the device of `to`.  False where it cannot, and has to be done. */
bool ax_later_clip(ax_storage *to, ax_dtype dtype, int n, ax_span *runs, double max_norm, ax_tensor *norm);
/* The clipping that waits for all elements of t, whose call has its norm in in[0]; NULL: none. */
ax_later *ax_later_clip_of(const ax_tensor *t);

/* Lets the call wait whose fresh result is `out`; false where it cannot, and has to run. */
bool ax_later_add(ax_op op, const ax_attrs *a, int n_in, ax_tensor *const *in, const ax_tensor *out,
                  ax_later **l);
/* The call that waits and gives exactly t; NULL: none does. */
ax_later *ax_later_of(const ax_tensor *t);
/* For a call whose result another kernel writes: takes its claims off before that kernel runs. */
void ax_later_take(ax_later *l);
/* Afterwards: ends the call, or (st an error) lets it wait again.  Returns st. */
ax_status ax_later_taken(ax_later *l, ax_status st);
/* Whether results of this size may wait on t's device now. */
bool ax_later_possible(const ax_tensor *t);

#endif

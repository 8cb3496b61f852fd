/* What a row's rule sees and decides (the files of core/ops). */
#ifndef AX_INFER_H
#define AX_INFER_H

#include "core/tape/graph.h"

typedef struct ax_infer {
  ax_op op;
  const char *name;
  const ax_args *args;
  /* kernels */
  int n_out;
  ax_dtype compute; /* inputs with a bit in `cast` are cast to this first */
  uint32_t cast;
  uint32_t contiguous; /* inputs made contiguous first */
  uint32_t positions;  /* inputs that kernels read as int64, whatever integers they are given as */
  /* inputs (from bit 0) and results (from bit 8) laid out with the channels, dim 1, innermost */
  uint32_t channels_last;
  uint32_t padded; /* results whose rows begin at multiples of 64 elements (backend->pads_rows) */
  uint32_t axes;   /* REDUCE: bit d set: dim d is reduced */
  /* of what the row saves (O0 and the like), what the gradient of this call does not need */
  uint32_t unsaved;
  /* POINTWISE: elements and numbers are moved as they are, in the compute type: none is widened */
  bool moves;
  /* rows that only fill a tensor that the caller made (ax_run_into): it, else NULL */
  const ax_tensor *into;
  /* views, host and composite ops: the results themselves (new references) */
  ax_tensor **result;
  /* not cleared beforehand: a copy of the call's attributes that the rule may complete, which the
   * kernel and the tape get, and of the results those that the rule fills */
  ax_attrs a;
  ax_meta out[AX_MAX_OUT];
} ax_infer;

typedef ax_status (*ax_infer_fn)(ax_infer *q);

/* Bits of a row's `traits`; ops.def explains them. */
enum {
  INPLACE = 1 << 0,
  PROMOTES = 1 << 1,
  FLOAT_BIAS = 1 << 2,
  PASSES_ON = 1 << 3,
  TAKES_HALF = 1 << 4,
  CASTS = 1 << 5,
  CONVERTS = 1 << 6,
  WAITS0 = 1 << 7,
  WAITS1 = 1 << 8,
  NARROW = 1 << 9,
  MOVES = 1 << 10,
  COMPLEX = 1 << 11,
  CONJUGATES = 1 << 12,
  FLOAT8 = 1 << 13,
  FLOAT8_WIDE = 1 << 14,
};

typedef struct ax_op_impl {
  ax_infer_fn infer;
  ax_rule gradient;
  uint32_t saves, traits;
  /* functions that few rows have; NULL elsewhere */
  ax_status (*join)(const ax_infer *q, ax_tensor **out, bool *done);
  ax_infer_fn composed;
  int64_t (*flops)(const ax_args *args, ax_tensor *const *out);
} ax_op_impl;
extern const ax_op_impl ax_op_impls[AX_OP_COUNT];

static inline bool ax_has(ax_op op, uint32_t trait) { return (ax_op_impls[op].traits & trait) != 0; }

/* ---- later.c */
/* Whether the cast of x, of a half type, into the fresh float32 y may wait; it does then. */
bool ax_later_cast(const ax_tensor *x, const ax_tensor *y);
/* Whether a call waits that writes t's memory. */
extern const ax_claim_kind ax_later_writes;
static inline bool ax_is_later(const ax_tensor *t) { return ax_claim_of(t->storage, &ax_later_writes); }
/* Runs all calls of this thread that wait: before a recording, whose replays must not repeat
 * them. */
ax_status ax_later_all(void);
/* The gradient t is about to be dropped, which `holders` references of the core's lead to: what
 * waits to clip it leaves it out, unless a script holds it too. */
void ax_later_drop(const ax_tensor *t, int holders);
/* The half numbers that the float32 tensor t will get, with t's shape and no history; NULL where no
 * cast into t waits. */
ax_status ax_later_source(const ax_tensor *t, ax_tensor **out);
/* t rounded to `dtype`, which the call that t waits for has written as well, with t's shape and no
 * history; no script ever sees its memory.  NULL where there is none. */
ax_status ax_later_rounded(const ax_tensor *t, ax_dtype dtype, ax_tensor **out);

/* ---- join.c */
/* Whether the row takes over, or reads in another form, what input k waits for. */
static inline bool ax_joins(ax_op op, int k) { return k < 2 && ax_has(op, (uint32_t)WAITS0 << k); }
/* Lets the call wait, or runs it together with what its inputs wait for; *done: it did either. */
ax_status ax_join(const ax_infer *q, ax_tensor **out, bool *done);

/* ---- iter.c */
typedef struct ax_number {
  int64_t bits[2];
} ax_number; /* room for one element of any type */
/* Loop nest over dst and n inputs (NULL: the number in `numbers`), broadcast to dst's shape. */
void ax_iter_pointwise(ax_iter *it, ax_tensor *dst, int n, ax_tensor *const *in, ax_number *numbers,
                       ax_dtype number_dtype);
/* Loop nest over x's dims, dst standing still in the reduced ones (bits of `axes`). */
void ax_iter_reduce(ax_iter *it, ax_tensor *dst, ax_tensor *x, uint32_t axes);

/* ---- views.c */
/* Sizes from a list in which one may be -1. */
ax_status ax_resolve_shape(const char *name, const ax_tensor *x, int n, const int64_t *list, int64_t *shape);

/* ---- ops/scatter.c */
/* A rule that sums values of type d: halves in float32, which the tape rounds once. */
void ax_sum_in_float(ax_infer *q, ax_dtype d);

/* ---- ops/positions.c */
/* The largest (AX_OP_MAX) or smallest (AX_OP_MIN) element, for sizes that depend on values. */
ax_status ax_value_of(ax_op op, ax_tensor *x, double *v);
/* Where the bool tensor `mask` is true: flat positions, or rows of coordinates; the caller's. */
ax_status ax_true_positions(ax_tensor *mask, bool coordinates, ax_tensor **out);

/* ---- ops/generator.c */
/* Takes the next draw of `gen` (NULL: the default one) into a->rng; per_rank: a stream of this
 * rank's own. */
void ax_random_draw(ax_generator *gen, bool per_rank, ax_attrs *a);

/* ---- ops/dispatch.c */
/* Runs a row's kernel, nothing else. */
ax_status ax_kernel_call(ax_op op, const ax_attrs *a, int n_in, ax_tensor *const *in, int n_out,
                         ax_tensor *const *out, const ax_iter *it);

#endif

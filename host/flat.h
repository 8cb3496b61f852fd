/* flat.h: parameters in flat buffers, and optimizers over them.
 *
 * ax_flat is the layout of many parameters of one element type in one buffer.  It owns the buffers
 * of the parameters, of their gradients and of their working copies; every slot is a multiple of
 * AX_SLOT_BYTES long, and the padding behind a parameter is zero in all of them and stays zero, so
 * that norms, optimizer steps and collectives may run over it.  Other code may not: only an ax_flat
 * knows which bytes between two parameters are padding.
 *
 * A parameter points to its layout (ax_tensor.flat, ax_tensor.slot).  One that was given other
 * memory since (x.data = y, a conversion) has left it.
 *
 * Reduction buckets are ranges of slots, and so are the runs that an optimizer group steps as
 * one. */
#ifndef AX_FLAT_H
#define AX_FLAT_H

#include "ax.h"

enum { AX_SLOT_BYTES = 256 };

typedef struct ax_flat ax_flat;
struct ax_capture; /* capture.h */

/* A range of slots whose gradients are reduced together. */
typedef struct ax_bucket {
  int first, last; /* slots [first, last) */
  int pending;     /* gradients that the backward pass under way has still to bring */
} ax_bucket;

/* Called inside backward when a bucket has all gradients of the pass, and again for each gradient
 * that comes after that (bucket->pending < 0).  slot: that gradient's. */
typedef ax_status (*ax_flat_full)(ax_flat *f, int bucket, int slot);

struct ax_flat {
  int32_t refs;
  uint8_t dtype;
  ax_device device;
  uint64_t number;    /* rises with creation */
  int n;              /* parameters */
  int64_t size;       /* elements of all slots */
  ax_tensor **params; /* [n], counted */
  int64_t *offsets;   /* [n + 1], in elements; offsets[n] is size */
  ax_tensor *values;  /* [size] the parameters */
  /* [size + n] the gradients, then each parameter's presence: 1 where this rank has a gradient;
   * NULL: none are kept */
  ax_tensor *grads;
  ax_tensor *work; /* [size] the parameters once more, in a half type; NULL: none */

  uint64_t reached; /* gradients that backward passes have brought so far */
  int missing;      /* parameters without a gradient in the buckets collected since the first one */
  int n_buckets;
  ax_bucket *buckets;
  int32_t *bucket_of;  /* [n]; NULL: not cut */
  int32_t *arrivals;   /* [n] gradients of each parameter in the pass under way */
  int32_t *expected;   /* [n] arrivals of the pass that was remembered; NULL: none, one for each parameter */
  ax_flat_full full;   /* NULL: nobody waits */
  ax_tensor *presence; /* what ax_flat_adopt read last, on the CPU; NULL: nothing yet */
};

/* New: lays leaves of one floating-point type on one device out, in the order of the list.  The
 * objects stay the same; they become views, with version cells of their own, and lose gradient
 * slots that they had.  Either all move or none.  EINVAL for a list that mixes types or devices, or
 * names a parameter twice or one of another ax_flat; EGRAD for results of ops. */
AX_API ax_status ax_flat_new(int n, ax_tensor *const *params, ax_flat **out);
AX_API ax_flat *ax_flat_retain(ax_flat *f);
/* The last one ends the layout: the parameters stay where they are and belong to no ax_flat. */
AX_API void ax_flat_release(ax_flat *f); /* NULL is fine */
/* Ends the layout early, for parameters that are laid out anew. */
AX_API void ax_flat_dissolve(ax_flat *f);
/* Are all parameters where they were laid out? */
AX_API bool ax_flat_is_current(const ax_flat *f);

/* Makes the buffer of gradients, or of working copies of type `half`; gradients that there are move
 * into it. */
AX_API ax_status ax_flat_give_grads(ax_flat *f);
AX_API ax_status ax_flat_give_work(ax_flat *f, ax_dtype half);

/* Has a parameter a gradient? */
AX_API bool ax_flat_has_grad(const ax_flat *f);
/* Every gradient times a number. */
AX_API ax_status ax_flat_scale_grads(ax_flat *f, double factor);
/* Counts a write of all values (a collective). */
AX_API void ax_flat_touch(ax_flat *f);

/* ---- reductions */

/* Cuts the slots into buckets; ends[k] is the slot behind the k-th, ends[n - 1] all slots.  ERANGE
 * where they do not rise so. */
AX_API ax_status ax_flat_cut(ax_flat *f, int n, const int *ends);
/* Before a backward pass: counts what each bucket waits for, one gradient for each parameter that
 * requires one, or as many as in the pass that was remembered.  full: called from inside the pass;
 * NULL: arrivals are only counted. */
AX_API void ax_flat_expect(ax_flat *f, ax_flat_full full);
/* Keeps the arrivals of the pass that has just ended as what later passes wait for. */
AX_API ax_status ax_flat_remember(ax_flat *f);
/* The gradient of a parameter is whole: called by backward. */
ax_status ax_flat_arrived(ax_tensor *param);
/* Whether a parameter of the bucket has a post-accumulate hook. */
AX_API bool ax_flat_is_watched(const ax_flat *f, int bucket);
/* Readies a bucket: brings every gradient into its slot, zeroes slots without one, and writes the
 * presence.  *current false: a parameter has left, and nothing may be reduced. */
AX_API ax_status ax_flat_collect(ax_flat *f, int bucket, bool *current);
/* After the reduction of the presence: parameters that have no gradient here but one on another
 * rank get what is in their slot.  again: the presence read before still holds, and a device need
 * not be waited for. */
AX_API ax_status ax_flat_adopt(ax_flat *f, bool again);

/* ---- optimizer groups */

/* The parameters that an optimizer steps with the same numbers, with their states and counts of
 * steps.  States of neighbours in an ax_flat are neighbours in a buffer of the same layout, so that
 * a whole model is stepped as one run. */
typedef struct ax_optim_group ax_optim_group;

/* Members are counted from 0, in the order of the list. */
AX_API ax_status ax_optim_group_new(ax_optim_kind kind, int n, ax_tensor *const *params,
                                    ax_optim_group **out);
AX_API ax_optim_group *ax_optim_group_retain(ax_optim_group *g);
AX_API void ax_optim_group_release(ax_optim_group *g); /* NULL is fine */
AX_API int ax_optim_group_size(const ax_optim_group *g);
AX_API int ax_optim_group_segments(const ax_optim_group *g); /* how many runs of memory the last step was */
AX_API ax_optim_kind ax_optim_group_kind(const ax_optim_group *g);
AX_API ax_tensor *ax_optim_group_param(const ax_optim_group *g, int member); /* borrowed */

/* What is kept for a member.  state[k] is borrowed, NULL where there is none; number: the state of
 * form NUMBER. */
typedef struct ax_optim_kept {
  int64_t step;
  double number;
  ax_tensor *state[AX_MAX_STATES];
} ax_optim_kept;
/* False: the member was never stepped, and nothing is kept.  Counts may be too high until
 * ax_optim_group_settle. */
AX_API bool ax_optim_group_get(const ax_optim_group *g, int member, ax_optim_kept *out);
/* Keeps these very tensors from now on; NULL: forgets the member's.  EINVAL for tensors that cannot
 * be its states. */
AX_API ax_status ax_optim_group_set(ax_optim_group *g, int member, const ax_optim_kept *kept);
/* Keeps copies of them, cast to the parameter's type, where its states belong. */
AX_API ax_status ax_optim_group_load(ax_optim_group *g, int member, const ax_optim_kept *kept);
/* Takes over what `from` keeps of parameters that both have. */
AX_API void ax_optim_group_inherit(ax_optim_group *g, const ax_optim_group *from);
/* Moves the states to their places in the parameters' layout, and to the parameters' device and
 * type. */
AX_API ax_status ax_optim_group_relayout(ax_optim_group *g);

/* Elements of the state of form `form` of p; 0: p has none. */
AX_API int64_t ax_optim_state_shape(const ax_tensor *p, ax_state_form form, int64_t *shape);

/* What a recorded step repeats: the place of its numbers in the recording, and the counts of the
 * members that were stepped. */
typedef struct ax_optim_record ax_optim_record;

typedef struct ax_optim_call {
  /* float32, one element, on the parameters' device: not 0, and the step changes nothing; NULL:
   * never */
  ax_tensor *skip;
  const ax_optim_live *live; /* the device's numbers, in place of the group's own; NULL: none */
  /* NULL: none are made; else a list of them for ax_optim_record_free, which may be empty */
  ax_optim_record **records;
} ax_optim_call;

/* One update of the members that have a gradient; the others keep everything.  Makes the states
 * that are missing first (EINVAL while a step is recorded, since a replay would make them anew).
 * call: NULL, or more. */
AX_API ax_status ax_optim_group_step(ax_optim_group *g, const ax_hyper *h, const ax_optim_call *call);
/* Steps that a device skipped are counted until this takes them out again; waits for the device. */
AX_API ax_status ax_optim_group_settle(ax_optim_group *g);
AX_API bool ax_optim_group_is_settled(const ax_optim_group *g);

/* Before a replay: gives the recording the numbers and the count as they are now, and counts the
 * step. */
AX_API void ax_optim_record_again(ax_optim_record *r, struct ax_capture *c, const ax_hyper *h);
/* Puts the counts back to where they were before the step. */
AX_API void ax_optim_record_undo(ax_optim_record *r);
/* Why a replay would be wrong now; NULL: it would not.  Static. */
AX_API const char *ax_optim_record_misfit(const ax_optim_record *r, const ax_hyper *h);
AX_API ax_optim_record *ax_optim_record_next(const ax_optim_record *r);
AX_API void ax_optim_record_free(ax_optim_record *r); /* this one, not those behind it */

#endif

/* flat.h: parameters in flat buffers, and optimizers over them.
 *
 * ax_flat is the layout of many parameters of one element type in one buffer.  It owns the
 * buffers of the parameters, of their gradients and of their working copies.  Every slot is a
 * multiple of AX_SLOT_BYTES long.  The padding behind a parameter is zero in all buffers and
 * stays zero, so norms, optimizer steps and collectives may run over it.  Other code must not
 * touch it: only an ax_flat knows which bytes between two parameters are padding.
 *
 * A parameter points to its layout (ax_tensor.flat, ax_tensor.slot), and by it to the place of its
 * gradient and to its working copy.  A parameter that was given other memory (x.data = y, a
 * conversion) has left the layout, and has neither any more.
 *
 * Reduction buckets are ranges of slots; so are the segments that an optimizer group steps as
 * one. */
#ifndef AX_FLAT_H
#define AX_FLAT_H

#include "dist.h"
#include "ax.h"

enum { AX_SLOT_BYTES = 256 };

/* Which buffers of a layout are cut: of these each rank of a group keeps one part. */
enum { AX_CUT_VALUES = 1, AX_CUT_GRADS = 2, AX_CUT_STATES = 4 };

/* Where the buffers of a layout rest (core/params/home.c).
 *
 * A layout that is cut over a group has as many parts of equal size as the group has ranks, and
 * `first` to `last` are this rank's elements; a boundary may cut a parameter in two.  The whole
 * buffer of a kind that is cut has memory only while a model computes with it.  Parameters and
 * gradients are views of the whole buffers, with their whole shapes, at all times.  Where the ranks
 * share memory, the whole values are there once for all of them.  While a buffer has no memory, a
 * claim answers whoever reads it: inside a forward or backward pass it gathers the parts, elsewhere
 * it fails and names the parameter. */
typedef struct ax_home {
  ax_group *group;     /* counted; NULL: all buffers are whole on each rank */
  ax_group *copies;    /* counted: the ranks that have the same part; NULL: no other rank has it */
  uint8_t cut;         /* AX_CUT_* */
  int64_t first, last; /* elements [first, last) of the layout */
  ax_tensor *values;   /* AX_CUT_VALUES: [last - first] the parameters' part that rests here */
  ax_tensor *grads;    /* AX_CUT_GRADS: likewise of the gradients, summed up over passes */
  /* [n] views of what this rank has and steps of each parameter and its gradient, one dim; NULL:
   * nothing */
  ax_tensor **value_piece, **grad_piece;
  ax_claim no_values, no_grads; /* on the whole buffers, while they have no memory */
  /* take the place of those two when the layout ends before its tensors do; owned */
  ax_claim *after_values, *after_grads;
  /* the whole values are memory that all ranks of the group have, each writing its part: they are
   * always here, and none may be written but by pieces */
  bool shared;
  ax_storage *mapping; /* that memory, while ax_flat_acquire has put a private copy in its place */
  int users;           /* those who have acquired the values */
  /* AX_CUT_VALUES: the type that values are gathered in for computing.  A half type: the layout has
   * working copies, which are gathered; the buffer of values has then
   *   nothing               its claim stands
   *   the copies, widened   for a kernel that reads float32
   *   exact values          ax_flat_acquire made them whole */
  uint8_t gathers;
  bool exact;
  ax_claim no_work, *after_work; /* as no_values and after_values, on the working copies */
  struct ax_eight *eight; /* computes with values gathered in eight bits (eight.h); NULL: it does not */
  /* A gather that was begun ahead: the memory that it fills, and what this rank sends; coming NULL:
   * it has ended; arriving NULL: there is none */
  ax_storage *arriving;
  ax_tensor *sent;
  struct ax_work *coming;
  struct ax_flat *listed, *next[3]; /* the layout that was gathered after this one, in each mode */
  bool computes;                    /* the model's forward pass is under way */
  bool *had;                        /* [n] AX_CUT_GRADS: had a gradient when the whole buffer was made */
  /* counted: where `away` of the buffers rest, which are cut or whole (place.h); NULL: all are in
   * the memory that computes */
  struct ax_place *place;
  uint8_t away; /* AX_CUT_* */
} ax_home;

typedef struct ax_flat ax_flat;
struct ax_capture; /* capture.h */

/* A range of slots whose gradients are reduced together. */
typedef struct ax_bucket {
  int first, last; /* slots [first, last) */
  int pending;     /* gradients that are still missing in the current backward pass */
} ax_bucket;

/* Called during backward when a bucket has all gradients of the pass, and again for each later
 * gradient (bucket->pending < 0).  slot: that gradient's. */
typedef ax_status (*ax_flat_full)(ax_flat *f, int bucket, int slot);

/* What a layout has for one of its parameters, beside the parameter's own values. */
typedef struct ax_flat_slot {
  ax_tensor *grad;     /* where the gradient has its place: a view of `grads`; NULL: no such buffer */
  ax_tensor *work;     /* the working copy in autocast's type: a view of `work`; NULL: none */
  uint32_t work_edits; /* the parameter's version->edits when the copy was written (slot.h) */
} ax_flat_slot;

struct ax_flat {
  int32_t refs;
  uint8_t dtype;
  ax_device device;
  uint64_t number;     /* rises with creation */
  int n;               /* parameters */
  int64_t size;        /* elements of all slots, and of the padding that makes parts equal */
  ax_tensor **params;  /* [n], counted */
  int64_t *offsets;    /* [n + 1], in elements; offsets[n] is size */
  ax_flat_slot *slots; /* [n] */
  ax_tensor *values;   /* [size] the parameters */
  /* [size + n] the gradients, then each parameter's presence: 1 where this rank has a gradient;
   * NULL: no buffer of gradients */
  ax_tensor *grads;
  ax_tensor *work; /* [size] the working copies, in a half type; NULL: none */
  ax_home home;
  char *name;   /* of the unit, for messages: "h.3 (GPTBlock)"; NULL: none */
  char **names; /* [n] of the parameters; NULL: none */

  uint64_t reached; /* gradients that backward passes have written so far */
  int missing;      /* parameters without a gradient in the buckets collected since the first one */
  int n_buckets;
  ax_bucket *buckets;
  int32_t *bucket_of;  /* [n]; NULL: not cut */
  int32_t *arrivals;   /* [n] gradients of each parameter in the current pass */
  int32_t *expected;   /* [n] arrivals of the remembered pass; NULL: none, expect one for each parameter */
  ax_flat_full full;   /* NULL: no function is called */
  ax_tensor *presence; /* what ax_flat_adopt read last, on the CPU; NULL: nothing yet */
};

/* ---- layouts */

/* New: lays out leaves of one floating-point type on one device, in the order of the list.  The
 * buffers' size is a multiple of `parts` slots' units.  The tensor objects stay; they become views,
 * with version cells of their own.  Either all move or none.
 * EINVAL for a list that mixes types or devices, or contains a parameter twice or one of another
 * ax_flat; EGRAD for results of ops. */
AX_API ax_status ax_flat_new(int n, ax_tensor *const *params, int parts, ax_flat **out);
/* As ax_flat_new, but the buffer has no memory, and the elements stay in the parameters' former
 * memory: for a layout whose values are cut at once (ax_flat_cut_over), after which the caller
 * writes this rank's pieces. */
AX_API ax_status ax_flat_new_bare(int n, ax_tensor *const *params, int parts, ax_flat **out);
AX_API ax_flat *ax_flat_retain(ax_flat *f);
/* The last release ends the layout: the parameters stay where they are and belong to no ax_flat. */
AX_API void ax_flat_release(ax_flat *f); /* NULL is fine */
/* Ends the layout early, so that its parameters can be laid out again. */
AX_API void ax_flat_dissolve(ax_flat *f);
/* Whether all parameters are where they were laid out. */
AX_API bool ax_flat_is_current(const ax_flat *f);

/* Makes the buffer of gradients, or of working copies of type `half`; existing gradients move into
 * it. */
AX_API ax_status ax_flat_give_grads(ax_flat *f);
AX_API ax_status ax_flat_give_work(ax_flat *f, ax_dtype half);

/* Whether a parameter has a gradient. */
AX_API bool ax_flat_has_grad(const ax_flat *f);
/* Multiplies every gradient by a number. */
AX_API ax_status ax_flat_scale_grads(ax_flat *f, double factor);
/* Counts one write of all values (by a collective). */
AX_API void ax_flat_touch(ax_flat *f);

/* Names the layout and its parameters, for messages; copies the texts.  names: [n] */
AX_API ax_status ax_flat_set_names(ax_flat *f, const char *name, const char *const *names);

/* ---- homes */

/* Cuts the buffers over a group, whose size the layout was made for; `copies`: see ax_home.  The
 * ranks have the same values; the parts of a bare layout are zeros.  What rests elsewhere is freed.
 * `gathers`: see ax_home; the layout's own type also where nothing is gathered.  EINVAL for a
 * layout that has working copies. */
AX_API ax_status ax_flat_cut_over(ax_flat *f, ax_group *group, ax_group *copies, uint8_t cut,
                                  ax_dtype gathers);
/* What whole values are for: a model's forward, for which they are rounded where the layout gathers
 * in a half type; reading; or writing, for which they are this rank's own copy. */
typedef enum { AX_TO_COMPUTE, AX_TO_READ, AX_TO_WRITE } ax_whole_use;
/* Makes the values whole (a collective of the group, where they are cut and not here yet), and
 * holds them until ax_flat_let_go. */
AX_API ax_status ax_flat_acquire(ax_flat *f, ax_whole_use use);
/* The model's forward pass begins, and ends: inside it whoever needs the values gathers them. */
AX_API void ax_flat_compute(ax_flat *f, bool on);
/* Ends a use.  The whole buffer is freed with the last one, unless `keep`. */
AX_API void ax_flat_let_go(ax_flat *f, bool keep);
/* Frees the whole buffer of values, whoever holds it. */
AX_API void ax_flat_drop_values(ax_flat *f);
/* Bytes of whole values that gathers have brought to this thread so far. */
AX_API int64_t ax_flat_gathered(void);
/* Whether a model can compute with the whole values now. */
AX_API bool ax_flat_has_values(const ax_flat *f);
/* Brings the gradients of all slots home: they are rounded to `as`, the parts of the group's ranks
 * are averaged, over the copies as well, and added to what rests here of earlier passes; the whole
 * buffer is freed.  A collective.  Parameters keep their gradients, which have no memory. */
AX_API ax_status ax_flat_deliver(ax_flat *f, ax_dtype as);
/* After an optimizer stepped this rank's part of values that are whole: gathers the others'. */
AX_API ax_status ax_flat_spread(ax_flat *f);
/* Takes the whole values, as a script has edited them, into the part that rests here. */
AX_API ax_status ax_flat_take_back(ax_flat *f);
/* What this rank steps of slot k: elements [*from, *from + n) of the parameter; returns n. */
AX_API int64_t ax_flat_piece(const ax_flat *f, int slot, int64_t *from);
/* What another rank of the group steps of slot k. */
AX_API int64_t ax_flat_piece_of(const ax_flat *f, int slot, int rank, int64_t *from);
/* Presence of the parameters of `n` layouts that are cut, one after the other in one tensor on
 * their device: 1 where this rank has a gradient.  New reference. */
AX_API ax_status ax_flat_presence(int n, ax_flat *const *list, ax_tensor **out);
/* After its reduction: parameters with a gradient on another rank alone have one here, too. */
AX_API ax_status ax_flat_adopt_presence(int n, ax_flat *const *list, ax_tensor *presence);
/* The piece in place of a gradient that is cut: borrowed; t itself where it is whole here.  NULL:
 * this rank has nothing of it.  *group: over whose ranks it is cut, or NULL. */
AX_API ax_tensor *ax_flat_own_grad(ax_tensor *param, ax_group **group);

/* ---- reductions */

/* Cuts the slots into buckets; ends[k] is the slot behind bucket k, and ends[n - 1] is the number
 * of slots.  ERANGE when the ends do not rise to it. */
AX_API ax_status ax_flat_cut(ax_flat *f, int n, const int *ends);
/* Called before a backward pass: sets the number of gradients that each bucket needs: one for each
 * parameter that requires a gradient, or as many as in the remembered pass.  full: called during
 * the pass; NULL: arrivals are only counted. */
AX_API void ax_flat_expect(ax_flat *f, ax_flat_full full);
/* Keeps the arrivals of the pass that has just ended as the expectation of later passes. */
AX_API ax_status ax_flat_remember(ax_flat *f);
/* Called by backward when the gradient of a parameter is complete. */
ax_status ax_flat_arrived(ax_tensor *param);
/* Whether a parameter of the bucket has a post-accumulate hook. */
AX_API bool ax_flat_is_watched(const ax_flat *f, int bucket);
/* Readies a bucket for its reduction: copies every gradient into its slot, zeroes slots without
 * one, and writes the presence.  *current false: a parameter has left the layout, and nothing may
 * be reduced. */
AX_API ax_status ax_flat_collect(ax_flat *f, int bucket, bool *current);
/* Gives a parameter that has a gradient on another rank alone the contents of its slot.  Called
 * after the reduction of the presence.  again: the presence that was read before still holds, and
 * the call does not wait for the device. */
AX_API ax_status ax_flat_adopt(ax_flat *f, bool again);

/* ---- optimizer groups */

/* The parameters that an optimizer steps with the same hyperparameters, with their states and step
 * counts.  States of neighbours in an ax_flat are neighbours in a buffer of the same layout, so a
 * whole model can be stepped as one segment. */
typedef struct ax_optim_group ax_optim_group;

/* Members are counted from 0, in the order of the list. */
AX_API ax_status ax_optim_group_new(ax_optim_kind kind, int n, ax_tensor *const *params,
                                    ax_optim_group **out);
AX_API ax_optim_group *ax_optim_group_retain(ax_optim_group *g);
AX_API void ax_optim_group_release(ax_optim_group *g); /* NULL is fine */
AX_API int ax_optim_group_size(const ax_optim_group *g);
AX_API int ax_optim_group_segments(const ax_optim_group *g); /* segments of the last step */
AX_API ax_optim_kind ax_optim_group_kind(const ax_optim_group *g);
AX_API ax_tensor *ax_optim_group_param(const ax_optim_group *g, int member); /* borrowed */

/* The states of a member.  state[k] is borrowed, NULL where there is none; number: the state of
 * form NUMBER. */
typedef struct ax_optim_kept {
  int64_t step;
  double number;
  ax_tensor *state[AX_MAX_STATES];
} ax_optim_kept;
/* Returns false for a member that was never stepped: it has no states.  Counts may be too high
 * until ax_optim_group_settle. */
AX_API bool ax_optim_group_get(const ax_optim_group *g, int member, ax_optim_kept *out);
/* Makes these very tensors the member's states; NULL: drops its states.  EINVAL for tensors that
 * cannot be its states. */
AX_API ax_status ax_optim_group_set(ax_optim_group *g, int member, const ax_optim_kept *kept);
/* Copies them, cast to the parameter's type, into the member's states. */
AX_API ax_status ax_optim_group_load(ax_optim_group *g, int member, const ax_optim_kept *kept);
/* Whether that writes over the states that the member has, and makes none: `kept` has the same
 * states, in memory of another kind (a file's). */
AX_API bool ax_optim_group_overwrites(const ax_optim_group *g, int member, const ax_optim_kept *kept);
/* Takes over the states that `from` has of parameters in both groups. */
AX_API void ax_optim_group_inherit(ax_optim_group *g, const ax_optim_group *from);
/* Moves the states to their places in the parameters' layout, and to the parameters' device and
 * type. */
AX_API ax_status ax_optim_group_relayout(ax_optim_group *g);

/* The repeatable part of a captured step: the place of its hyperparameters in the recording, and
 * the counts of the members that were stepped. */
typedef struct ax_optim_record ax_optim_record;

typedef struct ax_optim_call {
  /* float32, one element, on the parameters' device: not 0 means that the step changes nothing;
   * NULL: never */
  ax_tensor *skip;
  /* device memory to read instead of the group's own numbers; NULL: none */
  const ax_optim_device_args *device_args;
  /* NULL: none are made; else receives a list, possibly empty, for ax_optim_record_free */
  ax_optim_record **records;
} ax_optim_call;

/* One update of the members that have a gradient; the others stay as they are.  Makes missing
 * states first (EINVAL during a recording, since every replay would make them again).  call: may be
 * NULL. */
AX_API ax_status ax_optim_group_step(ax_optim_group *g, const ax_hyper *h, const ax_optim_call *call);
/* Subtracts the steps that a device skipped from the counts; waits for the device. */
AX_API ax_status ax_optim_group_settle(ax_optim_group *g);

/* Called before a replay: writes the current hyperparameters and count into the recording, and
 * counts the step. */
AX_API void ax_optim_record_again(ax_optim_record *r, struct ax_capture *c, const ax_hyper *h);
/* Restores the counts from before the step. */
AX_API void ax_optim_record_undo(ax_optim_record *r);
/* The reason why a replay would be wrong now; NULL: it would be right.  Static. */
AX_API const char *ax_optim_record_misfit(const ax_optim_record *r, const ax_hyper *h);
AX_API ax_optim_record *ax_optim_record_next(const ax_optim_record *r);
AX_API void ax_optim_record_free(ax_optim_record *r); /* this one, not those behind it */

#endif

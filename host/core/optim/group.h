/* What the files of optimizer groups share. */
#ifndef AX_OPTIM_GROUP_H
#define AX_OPTIM_GROUP_H

#include "flat.h"

typedef struct member {
  ax_tensor *param;                /* counted */
  ax_tensor *state[AX_MAX_STATES]; /* counted; NULL: not kept */
  int64_t step;
  double number;   /* the state of form NUMBER */
  bool begun;      /* it was stepped or given states, which ax_optim_group_get returns */
  bool stepped;    /* by the steps that are not settled yet */
  ax_tensor *work; /* borrowed: the working copy that the step under way writes; NULL: none */
  /* where it was when the group was arranged */
  const ax_flat *flat;
  int32_t slot;
  int run;
  int64_t numel; /* elements of the parameter */
  /* what this rank steps: elements [from, from + count) of the parameter, at `at` from the start of
   * the run; all of it where the layout's states are not cut */
  int64_t from, count, at;
  /* borrowed: views of these elements and of their gradient; NULL: those of the parameter itself */
  ax_tensor *value, *grad;
} member;

/* Members that are neighbours: in an ax_flat, or where the script laid them out so.  Their states
 * of form EACH are neighbours in one buffer. */
typedef struct run {
  /* counted; NULL: neighbours without padding, in memory that is not ours */
  ax_flat *flat;
  /* elements: the first member's place in its buffer or storage; the size of all, with padding */
  int64_t start, size;
  bool empty;                       /* this rank steps nothing of it */
  ax_tensor *buffer[AX_MAX_STATES]; /* made when a state is */
} run;

/* Members of one element type on one device: what one call of a kernel takes. */
typedef struct batch {
  ax_dtype dtype;
  ax_device device, at; /* which steps them and has their states; where the parameters are */
  int first, n;         /* places in `order` */
  /* int64, one element, on the device: steps skipped since the counts were settled; NULL: no step
   * can be skipped */
  ax_tensor *skipped;
  bool unsettled;
  /* of the step under way: has some member a gradient; rests some that has one elsewhere; have the
   * same ones a gradient as in the steps that are not settled? */
  bool present, away, same;
} batch;

struct ax_optim_group {
  int32_t refs;
  ax_optim_kind kind;
  int n, n_batches, n_runs, n_segments; /* n_segments: those of the last step */
  member *members;                      /* [n] in the order of the list */
  int *order;                           /* [n] members by batch, then by place in memory */
  batch *batches;
  run *runs;
  uint64_t arrangement; /* counts how often order, batches and runs were made anew */
  ax_segment *segs;     /* [n] room for a step */
  uint8_t *there;       /* [n] likewise: ax_staging.there */
  ax_tensor **copies;   /* [n] room for gradients that had to be copied; counted */
  int n_copies;
};

/* Makes order, batches and runs anew if a parameter has moved since. */
ax_status ax_optim_arrange(ax_optim_group *g);
/* Makes state k of a member, at its place in the layout. */
ax_status ax_optim_make_state(ax_optim_group *g, member *m, int k, double first);
ax_status ax_optim_settle_batch(ax_optim_group *g, batch *b);
/* A member that a captured step stepped, as it was before. */
typedef struct recorded {
  int member;
  int64_t step;
  double number;
  ax_tensor *state[AX_MAX_STATES]; /* counted */
} recorded;

struct ax_optim_record {
  ax_optim_record *next;
  ax_optim_group *group; /* counted */
  uint64_t arrangement;
  int batch, n;
  /* the place of its numbers in the recording; -1: it is not recorded, and serves undo alone */
  int place;
  uint32_t needs;
  bool skippable;
  recorded of[];
};

/* Returns a record of a batch before its step; NULL: no memory. */
ax_optim_record *ax_optim_record_new(ax_optim_group *g, const batch *b, uint32_t needs, bool skippable);
/* Can t be state k of member i, as its parameter is now?  EINVAL if not. */
ax_status ax_optim_check_state(const ax_optim_group *g, int i, int k, const ax_tensor *t);
/* Has the parameter a state of this form? */
bool ax_optim_has_state(const ax_tensor *p, ax_state_form form);
/* ---- staged.c */

/* One call of the CPU's kernel over memory that rests in files, or partly on a device. */
typedef struct ax_staging {
  const ax_optim_group *group;
  ax_dtype dtype;
  const ax_segment *segs;
  int n;
  /* [n] AX_CUT_VALUES, AX_CUT_GRADS: which of a segment's operands are memory of `device` */
  const uint8_t *there;
  ax_device device;
  const ax_hyper *hyper;
  const ax_optim_device_args *device_args; /* without counts; NULL: none */
} ax_staging;

/* Steps the segments through a ring of buffers.  EIO, naming file and parameter; the step is made
 * in part then, and the files are good for no other one. */
ax_status ax_optim_step_staged(const ax_staging *s);
/* Do some of the buffers of the parameter's layout rest in files, or in host memory? */
static inline bool ax_optim_is_away(const member *m) { return m->flat && m->flat->home.place; }

/* Does this rank have a part of the parameter alone? */
static inline bool ax_optim_is_cut(const member *m) { return m->value || m->count != m->numel; }

#endif

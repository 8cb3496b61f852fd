/* optim_table.h: optimizers between the core and a backend: their kinds, hyperparameters and states
 * (optim.def), and the segment table of a step.  A part of plugin.h, which includes it. */
#ifndef AX_OPTIM_TABLE_H
#define AX_OPTIM_TABLE_H

#include "plugin.h"

enum { AX_MAX_STATES = 3 };

typedef enum {
#define OPTIM(ID, ...) AX_OPTIM_##ID,
#include "core/optim.def"
  AX_OPTIM_COUNT
} ax_optim_kind;

/* The hyperparameters of a step, named in optim.def; those that a kind does not take are 0. */
typedef struct ax_hyper {
#define NUMBER(name) double name;
#define PAIR(name) double name[2];
#define FLAG(name) bool name;
#define HYPER(name, form) form(name)
#include "core/optim.def"
#undef FLAG
#undef PAIR
#undef NUMBER
} ax_hyper;

typedef enum { AX_STATE_EACH, AX_STATE_ROWS, AX_STATE_COLS, AX_STATE_SMALL, AX_STATE_NUMBER } ax_state_form;
typedef struct ax_optim_state {
  const char *name;
  ax_state_form form;
} ax_optim_state;
typedef struct ax_optim_row {
  const char *name;
  const char *hyper; /* names of ax_hyper's fields, separated by a space */
  bool by_matrix;
  int n_states;
  ax_optim_state states[AX_MAX_STATES];
} ax_optim_row;
AX_API extern const ax_optim_row ax_optims[AX_OPTIM_COUNT];

/* One run of parameters: neighbouring members of an optimizer group (flat.h) that are stepped as
 * one. */
typedef struct ax_segment {
  void *param, *state[AX_MAX_STATES]; /* of the param's dtype; states NULL where they are not kept */
  /* the working copy, of work_dtype (bfloat16 or float16): the kernel writes the new parameter
   * there, rounded; NULL: none */
  void *work;
  const void *grad;
  ax_dtype work_dtype;
  int64_t n;
  /* count including this step.  SGD: 1 means that the momentum buffer is not yet filled */
  int64_t step;
  int64_t rows, cols; /* by_matrix: size of each of the n / (rows * cols) matrices; 0: fewer than two dims */
  double number;      /* the state of form NUMBER, as the step before has left it */
} ax_segment;
/* Device memory that a step reads, for values that the host does not know when it issues the
 * step. */
typedef struct ax_optim_device_args {
  const float *skip; /* non-zero: the step changes nothing (gradients overflowed); NULL: never skip */
  /* steps skipped so far, subtracted from the segments' `step`; a skipped step adds 1.  NULL: 0,
   * and not counted */
  int64_t *skipped;
  /* read instead of the host's copy (captured steps); NULL: the host's copy.  Both must keep the
   * same states */
  const ax_hyper *hyper;
  const int64_t *ran; /* added to the segments' `step` (captured steps: replays so far); NULL: 0 */
  /* gradients count as multiplied by min(1, max_norm / (*norm + 1e-6)), rounded, or by NaN; NULL:
   * as they are.  Not for kinds that are `by_matrix` */
  const double *norm;
  double max_norm;
} ax_optim_device_args;
/* Whether any of the numbers but the norm come from the device. */
static inline bool ax_optim_counts(const ax_optim_device_args *l)
{
  return l && (l->skip || l->skipped || l->hyper || l->ran);
}

#endif

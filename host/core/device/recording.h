/* recording.h: what a captured step consists of, for capture.c and saved_state.c. */
#ifndef AX_RECORDING_H
#define AX_RECORDING_H

#include "capture.h"
#include "dist.h"

#include "core/core.h"
#include "core/pointer_map.h"

/* A leaf that the recording met. */
typedef struct ax_noted {
  ax_tensor *t;                 /* counted */
  const void *data;             /* the address of its elements, or of the part that they are cut into */
  uint32_t edits, written;      /* its version when it was met; edits that the recording made */
  bool work_before, work_after; /* was its working copy current? */
  bool wanted;                  /* did it require a gradient? */
  ax_tensor *before, *after;    /* its gradient; counted */
} ax_noted;

typedef struct ax_drawn {
  ax_generator *g;       /* counted */
  uint64_t draws, count; /* its position at the first draw; by how much the recording moved it */
  size_t at;             /* in the block of device arguments */
} ax_drawn;

struct ax_capture {
  ax_device device;
  const ax_backend *backend;
  void *graph;
  bool ended, leaves_gradients;
  char *here; /* the block of device arguments */
  void *there;
  size_t used;
  ax_pointer_map met, held; /* entries of an address alone */
  ax_noted *leaves;
  ax_storage **storages; /* counted */
  ax_drawn *generators;
  size_t *optims; /* places in the block of device arguments */
  int n_leaves, n_storages, n_generators, n_optims;
  int most_leaves, most_storages, most_generators, most_optims;
  uint64_t first;      /* the number of the first node made inside */
  ax_recorded *groups; /* those that it has collectives of; retained */
  int n_groups, most_groups;
  ax_status failed;
};

static inline void set_grad(ax_tensor *t, ax_tensor *grad)
{
  if (t->grad == grad) return;
  ax_tensor *former = t->grad;
  t->grad = grad ? ax_tensor_retain(grad) : NULL;
  ax_tensor_release(former);
}

#endif

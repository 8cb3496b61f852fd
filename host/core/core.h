/* What the files of host/core share among themselves and the binding does not need. */
#ifndef AX_CORE_H
#define AX_CORE_H

#include "ax.h"

#define AX_SHAPE_TEXT 192 /* room for the text of any shape */

/* ---- shape.c */
/* Checks sizes and multiplies them up; ESHAPE when negative or when bytes would overflow. */
ax_status ax_shape_checked_bytes(int ndim, const int64_t *shape, size_t item, int64_t *numel, size_t *bytes);
void ax_strides_contiguous(int ndim, const int64_t *shape, int64_t *strides);
bool ax_strides_are_contiguous(int ndim, const int64_t *shape, const int64_t *strides);
/* Strides with dim 1 innermost and the others in order: (N, C, H, W) is stored as N, H, W, C.
 * ndim from 2 on. */
void ax_strides_channels_last(int ndim, const int64_t *shape, int64_t *strides);
bool ax_strides_are_channels_last(int ndim, const int64_t *shape, const int64_t *strides);
/* Do the elements fill one block of memory, each place once, in whatever order of dims? */
bool ax_strides_are_dense(int ndim, const int64_t *shape, const int64_t *strides);
/* Strides of a matrix of rows that each begin at a multiple of 64 elements, and the number of
 * elements that it takes, which fits where the shape's does; ndim from 1 on. */
int64_t ax_strides_padded(int ndim, const int64_t *shape, int64_t *strides);
/* Are these strides so, and not those of a contiguous tensor? */
bool ax_strides_are_padded(int ndim, const int64_t *shape, const int64_t *strides);
/* Equal strides, not looking at dims of size 1. */
bool ax_strides_equal(int ndim, const int64_t *shape, const int64_t *a, const int64_t *b);
/* Strides that show the same elements as `new_shape` (same count); false when only a copy can. */
bool ax_strides_for_view(int ndim, const int64_t *shape, const int64_t *strides, int new_ndim,
                         const int64_t *new_shape, int64_t *out);

/* ---- device.c */
/* Elements of `src` into `dst` of the same shape on another device, cast on the way; `later`: what
 * is pinned is read or written in the order of the device's work. */
ax_status ax_transfer(ax_tensor *dst, ax_tensor *src, bool later);

/* New reference, contiguous, on the CPU in pinned memory. */
ax_status ax_tensor_new_pinned(ax_dtype dtype, int ndim, const int64_t *shape, ax_tensor **out);

/* New reference, uncleared, with the strides of ax_strides_padded. */
ax_status ax_tensor_new_padded(ax_device device, ax_dtype dtype, int ndim, const int64_t *shape,
                               ax_tensor **out);

/* ---- memory/claim.c */
/* The storage is being freed: nobody asks its claims any more. */
void ax_claims_drop(ax_storage *s);

/* ---- storage.c */
/* As ax_storage_new; *zeros says whether all bytes are known to be 0. */
ax_status ax_storage_new_fresh(ax_device device, size_t bytes, bool *zeros, ax_storage **out);
/* New reference around a block that `memory` gave; takes the block. */
ax_status ax_storage_adopt(ax_device device, const ax_device_memory *memory, void *data, size_t bytes,
                           ax_storage **out);

/* ---- memory/report.c */
/* A storage of at least AX_MEMORY_TRACKED bytes was made; it will be freed. */
void ax_memory_track(ax_storage *s);
/* A device of so many bytes is in use. */
void ax_memory_note_device(int64_t bytes);
void ax_memory_untrack(ax_storage *s);

/* ---- alloc.c */
bool ax_alloc_injecting(void); /* a test counts allocations: take no short cut past them */
void ax_structs_add(int n);    /* structures left or entered a list of spare ones */

/* ---- memory/spare.c */
/* Memory for a structure of so many bytes, not cleared: a spare one, or as ax_malloc. */
void *ax_spare_new(size_t bytes);
void ax_spare_free(void *p, size_t bytes);

/* ---- autocast.c */
extern _Thread_local ax_autocast ax_autocast_now;
/* frees the casts that are kept: before and after a recording, whose casts nobody else may use and
 * which may use nobody's */
void ax_autocast_forget(void);
/* ax_run_cast: runs `op` with its inputs cast as its row says; ax_run calls it where autocast is
 * on.  ax_run_plain: runs it as given. */
ax_status ax_run_cast(ax_op op, const ax_args *args, ax_tensor **out);
ax_status ax_run_plain(ax_op op, const ax_args *args, ax_tensor **out);

/* ---- tensor.c */
/* New reference: a view of t with its version cell; no graph. */
ax_status ax_tensor_view(const ax_tensor *t, int ndim, const int64_t *shape, const int64_t *strides,
                         int64_t offset, ax_tensor **out);
/* Has t show the elements of `place`, which has its shape and type.  Takes the version cell. */
void ax_tensor_become(ax_tensor *t, const ax_tensor *place, ax_version *own);
/* Gives t contiguous memory of its own.  What it shared its memory with (saved values of the graph:
 * users must have none) keeps the former. */
ax_status ax_tensor_unshare(ax_tensor *t);
static inline bool ax_same_shape(const ax_tensor *a, int ndim, const int64_t *shape)
{
  if (a->ndim != ndim) return false;
  for (int d = 0; d < ndim; d++)
    if (a->shape[d] != shape[d]) return false;
  return true;
}

#endif

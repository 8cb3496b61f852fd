/* offload.h: weights whose home is not the memory that computes (core/offload/offload.c). */
#ifndef AX_OFFLOAD_H
#define AX_OFFLOAD_H

#include "io.h"

/* A schedule of weights for one device.  It is shared: each weight holds it too. */
typedef struct ax_offload ax_offload;

/* keep: bytes of weights that stay after their use, beyond those of the call that runs; INT64_MAX:
 * all stay.  ahead: bytes of weights that are fetched before they are requested.  ENOMEM. */
AX_API ax_status ax_offload_new(ax_device device, int64_t keep, int64_t ahead, ax_offload **out);
AX_API void ax_offload_release(ax_offload *o); /* NULL is fine */
AX_API void ax_offload_limit(ax_offload *o, int64_t keep, int64_t ahead);

/* *out: a tensor of home's elements in type `dtype` on the schedule's device, whose memory is
 * filled when it is read.  home: of the CPU; it is kept, and is not written from now on.  What is
 * written into *out stays there, and it leaves the schedule.  EINVAL, ENOMEM. */
AX_API ax_status ax_offload_add(ax_offload *o, ax_tensor *home, ax_dtype dtype, ax_tensor **out);
/* Likewise of a tensor in a safetensors file, and of a file that holds a tensor's elements and
 * nothing else.  On the CPU, in its own type, it is computed on where the file is mapped.
 * turned: *out has the two dims of a matrix swapped; it is copied when it is used. */
AX_API ax_status ax_offload_add_file(ax_offload *o, const ax_safetensors *f, int i, ax_dtype dtype,
                                     bool turned, ax_tensor **out);
AX_API ax_status ax_offload_add_raw(ax_offload *o, const char *path, ax_dtype stored, int ndim,
                                    const int64_t *shape, ax_dtype dtype, ax_tensor **out);
struct ax_gguf;
/* dtype AX_DTYPE_COUNT: its own. */
AX_API ax_status ax_offload_add_gguf(ax_offload *o, const struct ax_gguf *f, int i, ax_dtype dtype,
                                     bool turned, ax_tensor **out);
/* The home of an offloaded weight, borrowed; NULL: `t` is none, or its memory is its home. */
AX_API ax_tensor *ax_offload_home(const ax_tensor *t);

typedef struct ax_offload_stats {
  int64_t weights;         /* tensors in the schedule */
  int64_t bytes;           /* of them all */
  int64_t here, here_most; /* bytes that are in use now, and the most there were */
  int64_t loads, guessed;  /* first uses since a weight left; those that had been fetched before */
  int64_t left;            /* weights whose memory was given back after their use */
} ax_offload_stats;
AX_API void ax_offload_count(ax_offload *o, ax_offload_stats *out);

/* Some schedule holds more than it keeps, or a mapped file has become shorter.  ax_offload_trim
 * gives back what is not kept: the binding calls it between two calls, and the backward pass
 * between two nodes, where no kernel holds an address.  EIO, naming it, when the file of a weight
 * in use has lost pages since the last call. */
AX_API extern bool ax_offload_over;
AX_API AX_COLD ax_status ax_offload_trim(void);

#endif

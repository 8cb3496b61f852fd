/* What the files of core/params know of each other. */
#ifndef AX_PARAMS_HOME_H
#define AX_PARAMS_HOME_H

#include "core/offload/scratch.h"
#include "flat.h"
#include "place.h"

/* ---- layout.c */

/* New reference: zeros for all gradients and the presence, which the ranks of this machine may
 * reduce where they are.  stays: for as long as the layout, not for a pass. */
ax_status ax_home_new_grads(const ax_flat *f, bool stays, ax_tensor **out);

/* ---- home.c */

/* Cuts a buffer of gradients that was just made, where the layout's gradients are to be cut. */
ax_status ax_flat_cut_grads(ax_flat *f);
/* A buffer of `numel` elements without memory. */
ax_status ax_home_without_memory(const ax_flat *f, ax_dtype dtype, int64_t numel, ax_tensor **out);
/* Makes such a buffer of values for a layout that is to be cut; until then the claim fails. */
ax_status ax_home_begin_bare(ax_flat *f);
/* Frees what a layout that is cut has beside its buffers. */
void ax_flat_free_home(ax_flat *f);
/* A view of [from, to) of a buffer that begins at element `begins` of the layout. */
ax_status ax_home_view(const ax_flat *f, ax_tensor *buffer, int64_t begins, int64_t from, int64_t to,
                       ax_tensor **out);
/* A copy of this rank's part of a whole buffer. */
ax_status ax_home_copy_part(const ax_flat *f, ax_tensor *whole, ax_tensor **out);

/* ---- home_claims.c */

/* On a whole buffer that has no memory, and on values whose memory belongs to all ranks. */
extern const ax_claim_kind ax_home_no_values, ax_home_no_work, ax_home_no_eight, ax_home_no_grads,
    ax_home_shared_values;
/* Memory for the whole gradients.  They begin as zeros: to kernels that add to those of an earlier
 * pass, whose sum is in the part, zeros are what is there. */
ax_status ax_home_give_zeros(ax_flat *f);
/* Frees the memory of a whole buffer; the claim answers for it. */
void ax_home_take_memory(ax_tensor *whole, ax_claim *c);
/* A barrier of the group. */
ax_status ax_home_wait_for_all(const ax_flat *f);
/* A claim for a buffer that outlives its layout, made while memory is there. */
ax_status ax_home_new_claim(ax_claim **out);
/* Puts `after` in the place of the layout's own claim, where that stands. */
void ax_home_leave_claim(ax_tensor *whole, ax_claim *own, ax_claim **after);

/* ---- eight.c */

/* Matrices that are gathered in float8_e4m3fn, each times a scale of its own. */
typedef struct ax_eight {
  ax_dtype via;       /* the half type that a model computes in: values are rounded to it first */
  ax_tensor *values;  /* [size] float8_e4m3fn; without memory while its claim stands */
  ax_tensor *factors; /* [n] 1 / scale of each parameter, written with the values */
  ax_claim none, *after;
} ax_eight;

/* New reference to this rank's part in eight bits, with the scales of whole parameters.  A
 * collective. */
ax_status ax_eight_own_part(const ax_flat *f, ax_tensor **out);
/* Are the exact values whole here?  They may have been edited since. */
static inline bool ax_eight_has_whole(const ax_flat *f)
{
  return f->home.gathers != f->dtype ? f->home.exact : !f->home.no_values.at;
}
/* Casts the whole exact values to eight bits. */
ax_status ax_eight_from_whole(ax_flat *f);
void ax_eight_free(ax_flat *f);

/* ---- gather.c */

/* Does the layout compute with working copies that are gathered? */
static inline bool ax_home_gathers_half(const ax_flat *f)
{
  return f->home.cut & AX_CUT_VALUES && f->home.gathers != f->dtype;
}
/* The ranks' parts -> out; mine: this rank's.  work: see ax_dist_run. */
ax_status ax_home_all_gather(const ax_flat *f, const ax_tensor *mine, void *out, ax_work **work);
/* Gives a whole buffer the ranks' parts in its type, and takes its claim off. */
ax_status ax_home_fill(ax_flat *f, ax_tensor *whole, ax_claim *c);
/* Ends a gather that was begun ahead, and frees its memory. */
void ax_home_forget_arriving(ax_flat *f);
/* Puts a layout that is cut into this thread's list of such layouts, and takes it out again. */
void ax_home_list(ax_flat *f);
void ax_home_unlist(ax_flat *f);
ax_flat *ax_home_first(void); /* of the list; home.listed is the next one */
/* Gives the buffer that a model computes with memory, and gathers the parts of all ranks into
 * it. */
ax_status ax_home_gather(ax_flat *f);
/* Likewise where a layout that gathers in eight bits is used in another way. */
ax_status ax_home_gather_wide(ax_flat *f);
/* This rank's part of the values in a type.  New reference. */
ax_status ax_home_own_part(const ax_flat *f, ax_dtype dtype, ax_tensor **out);
/* Memory for the values, and the working copies in it, which come here first. */
ax_status ax_home_widen(ax_flat *f);

/* ---- home_capture.c */

/* The tensor in which a leaf rests between steps, and the one in which its gradient rests,
 * borrowed: this rank's part of the layout where it is cut, else the leaf or its gradient; no
 * gradient: NULL. */
const ax_tensor *ax_home_resting(const ax_tensor *leaf);
const ax_tensor *ax_home_resting_grad(const ax_tensor *leaf);
/* Before a recording, at its end and before a replay: whole values are given back, so that a
 * recording gathers for itself.  EINVAL where summon_full_params holds some, or where a backward
 * pass has left whole gradients. */
ax_status ax_home_rest_all(void);
/* When a recording is abandoned: whole buffers have memory of the recording's pool; it is freed. */
void ax_home_abandon_all(void);
/* During a recording: fails for buffers that rest elsewhere than on the device, and keeps the
 * memory of `part`, which collectives read or write. */
ax_status ax_home_record(const ax_flat *f, uint8_t kind, const ax_tensor *part);

/* ---- shared.c */

/* Can the ranks of a group share memory of `device`?  Alike on all of them. */
bool ax_shared_possible(const ax_group *g, ax_device device);
/* New references: `bytes` bytes that all ranks of the group have, zeros at first, and bytes [from,
 * from + own) of them, which this rank answers for; NULL where a rank cannot have them.  place: in
 * whose files; NULL: in memory.  what: for messages.  A collective. */
ax_status ax_shared_new(ax_group *g, ax_place *place, const char *what, size_t bytes, size_t from, size_t own,
                        ax_storage **whole, ax_storage **part);

/* ---- place.c */

ax_scratch *ax_place_file(const ax_place *p); /* borrowed: this rank's own */
/* The file of another rank of this machine, borrowed. */
ax_status ax_place_guest(ax_place *p, int pid, int number, ax_scratch **out);
/* Puts a tensor, which has a storage of its own, into the place: the same tensor over a file, or
 * another one in host memory. */
ax_status ax_place_move(ax_place *p, const char *what, ax_tensor **t);
/* Has values that rest in a file read before they are needed, and leave memory afterwards. */
ax_status ax_place_follow(ax_place *p, ax_storage *s);
/* EIO: of n bytes of `what` only `moved` were read or written. */
ax_status ax_place_fail(const ax_scratch *s, bool write, const char *what, size_t n, size_t moved, int why);
/* The name of a layout's unit, for messages. */
const char *ax_home_title(const ax_flat *f);

#endif

/* Casts to float32 that wait until a script or a kernel reads them.
 *
 * A model prepared for bfloat16 or float16 returns float32, as Accelerate's do.  For a language
 * model's logits that is a pass over the step's largest tensor, and each pass over the result moves
 * twice the bytes.  So the cast of a half result on a device only takes its memory.  What can read
 * the half numbers as they are (cross_entropy) reads those; everything else that reads or writes
 * either memory has the cast run first: at the dispatcher, where a failure is an error, and in
 * ax_data, which no reader goes around.
 *
 * Only a fresh result of an op whose memory nobody else shares is cast like this: kernels write in
 * place only into leaves, gradients, states and what ax_will_write knows of. */
#include "capture.h"
#include "core/ops/infer.h"

enum { LEAST = 4096 }; /* elements; the cast of fewer costs no more than the waiting */

struct ax_later {
  ax_storage *to, *from; /* `from` is counted */
  ax_later *next, *former;
  int64_t numel, offset; /* element i of `to` is element offset + i of `from` */
  uint8_t from_dtype;
};
static _Thread_local ax_later *all;

static void forget(ax_later *l)
{
  *(l->former ? &l->former->next : &all) = l->next;
  if (l->next) l->next->former = l->former;
  l->to->later = l->from->later = NULL;
  ax_storage_release(l->from);
  ax_mfree(l);
}

bool ax_later_cast(const ax_tensor *x, const ax_tensor *y)
{
  ax_later *l;
  if (x->device.kind == AX_CPU || !ax_is_half((ax_dtype)x->dtype) || y->dtype != AX_F32 || x->numel < LEAST)
    return false;
  if (!x->grad_fn || x->view || x->shared || x->storage->refs != 1 || x->storage->later ||
      x->storage->exposed || ax_recording)
    return false;
  if (!ax_tensor_is_contiguous(x) || !ax_tensor_is_contiguous(y) || !(l = ax_malloc(sizeof *l))) return false;
  *l = (ax_later){ .to = y->storage,
                   .from = ax_storage_retain(x->storage),
                   .next = all,
                   .numel = x->numel,
                   .offset = x->offset,
                   .from_dtype = x->dtype };
  if (all) all->former = l;
  all = l->to->later = l->from->later = l;
  return true;
}

static ax_status run(ax_later *l)
{
  ax_tensor *to = NULL, *from = NULL;
  const int64_t one = 1;
  ax_iter it;
  ax_status st;

  AX_TRY(ax_tensor_over(l->to, AX_F32, 1, &l->numel, &one, 0, &to));
  AX_TRY(ax_tensor_over(l->from, (ax_dtype)l->from_dtype, 1, &l->numel, &one, l->offset, &from));
  forget(l);
  ax_iter_pointwise(&it, to, 1, &from, NULL, (ax_dtype)from->dtype);
  st = ax_kernel_call(AX_OP_COPY, &(ax_attrs){ .n_list = -1 }, 1, &from, 1, &to, &it);
out:
  ax_tensor_release(from);
  ax_tensor_release(to);
  return st;
}

ax_status ax_later_now(ax_storage *s, bool write)
{
  return s->later && (write || s->later->to == s) ? run(s->later) : AX_OK;
}

void ax_storage_settle(ax_storage *s, bool write) { (void)ax_later_now(s, write); }

void ax_later_gone(ax_storage *s) { forget(s->later); }

ax_status ax_later_all(void)
{
  ax_status st = AX_OK;
  while (st == AX_OK && all) st = run(all);
  return st;
}

ax_status ax_later_source(const ax_tensor *t, ax_tensor **out)
{
  const ax_later *l = t->storage->later;
  *out = NULL;
  if (!l || l->to != t->storage || t->dtype != AX_F32) return AX_OK;
  return ax_tensor_over(l->from, (ax_dtype)l->from_dtype, t->ndim, t->shape, t->strides,
                        t->offset + l->offset, out);
}

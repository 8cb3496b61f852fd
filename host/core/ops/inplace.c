/* ops/inplace.c: results that go into a tensor that is there: x:add_(y), and writes without
 * history. */
#include "capture.h"
#include "core/ops/complex.h"
#include "core/ops/dispatch.h"
#include "core/ops/float8.h"
#include "core/ops/rules.h"
#include "profile.h"

#include <string.h>

/* Do writes to dst reach what a still unread input shows?  The very same elements are fine: each is
 * read before it is written. */
static bool overlaps(const ax_tensor *dst, const ax_tensor *t)
{
  if (!t || t->storage != dst->storage) return false;
  if (t->offset == dst->offset && t->dtype == dst->dtype && ax_same_shape(t, dst->ndim, dst->shape) &&
      memcmp(t->strides, dst->strides, sizeof *t->strides * (size_t)t->ndim) == 0)
    return false;
  int64_t lo[2], hi[2];
  const ax_tensor *both[2] = { dst, t };
  for (int k = 0; k < 2; k++) {
    lo[k] = hi[k] = both[k]->offset * (int64_t)ax_itemsize(both[k]);
    for (int d = 0; d < both[k]->ndim; d++)
      if (both[k]->shape[d] > 0)
        hi[k] += (both[k]->shape[d] - 1) * both[k]->strides[d] * (int64_t)ax_itemsize(both[k]);
    hi[k] += (int64_t)ax_itemsize(both[k]);
  }
  return lo[0] < hi[1] && lo[1] < hi[0];
}

static ax_status check_destination(const ax_infer *q, const ax_tensor *dst, bool recording)
{
  const char *const name = ax_op_shown(q->op);
  char a[AX_SHAPE_TEXT], b[AX_SHAPE_TEXT];
  int ndim;
  int64_t shape[AX_MAX_DIMS];
  const ax_meta *m = &q->out[0];
  const ax_status st = ax_shape_broadcast(name, dst->ndim, dst->shape, m->ndim, m->shape, &ndim, shape);

  if (st != AX_OK) return st;
  if (!ax_same_shape(dst, ndim, shape))
    return ax_fail(AX_ESHAPE, "%s_: the result has shape %s and does not fit the tensor being changed, %s",
                   name, ax_shape_text(m->ndim, m->shape, a, sizeof a),
                   ax_shape_text(dst->ndim, dst->shape, b, sizeof b));
  if (ax_is_complex(m->dtype) && !ax_is_complex((ax_dtype)dst->dtype))
    return ax_fail(AX_EDTYPE,
                   "%s_: %s does not fit the tensor being changed, %s; take real, imag or abs first", name,
                   ax_dtype_name(m->dtype), ax_dtype_name((ax_dtype)dst->dtype));
  if (!ax_has(q->op, CONVERTS) && ax_dtype_category(m->dtype) > ax_dtype_category((ax_dtype)dst->dtype))
    return ax_fail(AX_EDTYPE, "%s_: the result is %s and does not fit the tensor being changed, %s", name,
                   ax_dtype_name(m->dtype), ax_dtype_name((ax_dtype)dst->dtype));
  for (int d = 0; d < dst->ndim; d++)
    if (dst->numel && dst->strides[d] == 0 && dst->shape[d] > 1)
      return ax_fail(AX_EINVAL,
                     "%s_: dim %d of the tensor being changed is expanded: several positions share an "
                     "element; clone it first",
                     name, d + 1);
  if (ax_grad_enabled() && dst->requires_grad && !dst->grad_fn)
    return ax_fail(
        AX_EGRAD,
        "%s_: a leaf that requires a gradient cannot be changed in place; do it inside tensor.no_grad", name);
  if (recording && dst->base && dst->base->requires_grad && !dst->base->grad_fn)
    return ax_fail(AX_EGRAD,
                   "%s_: a view of a leaf that requires a gradient cannot be changed in place; "
                   "do it inside tensor.no_grad",
                   name);
  if (recording && dst->view == AX_VIEW_UNRECORDED)
    return ax_fail(AX_EGRAD,
                   "%s_: the view was made inside no_grad, so changing it in place cannot be recorded for "
                   "the tensor it shows; make the view again, or stay inside no_grad",
                   name);
  if (recording && dst->view >= AX_VIEW_CUSTOM)
    return ax_fail(AX_EGRAD, "%s_: %s: changing it in place cannot be recorded; clone it first", name,
                   dst->view == AX_VIEW_PARTS
                       ? "this shows one of the parts of complex numbers"
                       : "a custom function returned this as a view of one of its arguments");
  return AX_OK;
}

/* May the kernel write straight into dst?  Others write a tensor that is then copied there. */
static ax_status writes_directly(const ax_infer *q, const ax_tensor *dst, bool *direct)
{
  const ax_args *args = q->args;
  uint32_t widens;
  const ax_status st = ax_dispatch_widened(q, dst->device, &widens);

  if (st != AX_OK) return st;
  *direct = q->out[0].dtype == dst->dtype || ax_has(q->op, CONVERTS) ||
            (q->out[0].dtype == AX_F32 && widens >> dst->dtype & 1);
  if (ax_ops[q->op].form == AX_FORM_POINTWISE)
    for (int k = 0; *direct && k < args->n_in; k++) *direct = !overlaps(dst, args->in[k]);
  else { /* other kernels write dense results, and read their further inputs in an order of their own */
    *direct = *direct && ax_tensor_is_contiguous(dst);
    for (int k = 1; *direct && k < args->n_in; k++)
      *direct = !args->in[k] || args->in[k]->storage != dst->storage;
  }
  return AX_OK;
}

/* dst:copy_(a tensor on another device): it is brought over first, which is recorded if need be. */
static ax_status copy_across(const ax_args *args, ax_tensor *dst)
{
  ax_tensor *moved[AX_MAX_OUT];
  ax_args a = *args;
  a.a = AX_ATTRS(to_device, .kind = dst->device.kind, .index = dst->device.index);
  ax_status st = ax_run(AX_OP_TO_DEVICE, &a, moved);
  if (st != AX_OK) return st;
  a.in = moved;
  a.a = args->a;
  st = ax_run_inplace(AX_OP_COPY, &a, dst);
  ax_tensor_release(moved[0]);
  return st;
}

/* x:name_() of a row that is put together of others. */
static ax_status run_then_copy(ax_op op, const ax_args *args, ax_tensor *dst)
{
  ax_tensor *results[AX_MAX_OUT];
  ax_status st = ax_run_plain(op, args, results);
  if (st != AX_OK) return st;
  st = ax_run_inplace(AX_OP_COPY, &(ax_args){ .n_in = 1, .in = results, .a = { .n_list = -1 } }, dst);
  for (int k = 0; k < AX_MAX_OUT; k++) ax_tensor_release(results[k]);
  return st;
}

/* ---- tensors that rest in parts: elementwise edits act on this rank's part */

/* The claim on t's memory where a part of it is this rank's; NULL: all of it is. */
static ax_claim *in_parts(const ax_tensor *t, ax_tensor **piece, int64_t *from)
{
  ax_claim *c = t->storage->claims;

  while (__builtin_expect(c != NULL, 0) && !(c->kind->piece_of && c->kind->piece_of(c, t, piece, from)))
    c = c->next;
  return c;
}

/* The elements of an input that stand beside those of the piece of dst: n from element `from`
 * on. */
static ax_status beside(ax_op op, ax_tensor *in, const ax_tensor *dst, int64_t from, int64_t n,
                        ax_tensor **out)
{
  char a[AX_SHAPE_TEXT], b[AX_SHAPE_TEXT];
  const int64_t one = 1;
  ax_tensor *own, *plain;
  int64_t at;
  ax_status st;

  if (in_parts(in, &own, &at) && at == from && in->numel == dst->numel) {
    *out = own ? ax_tensor_retain(own) : NULL;
    return AX_OK;
  }
  if (in->numel == 1) {
    *out = ax_tensor_retain(in);
    return AX_OK;
  }
  if (!ax_same_shape(in, dst->ndim, dst->shape))
    return ax_fail(AX_ESHAPE,
                   "%s_: the tensor being changed, %s, is cut over ranks, and an argument of shape %s cannot "
                   "be cut alike; inside accelerate.utils.summon_full_params(model, fn) it is whole",
                   ax_op_shown(op), ax_shape_text(dst->ndim, dst->shape, a, sizeof a),
                   ax_shape_text(in->ndim, in->shape, b, sizeof b));
  if ((st = ax_contiguous(in, &plain)) != AX_OK) return st;
  st = ax_tensor_over(plain->storage, (ax_dtype)plain->dtype, 1, &n, &one, plain->offset + from, out);
  ax_tensor_release(plain);
  return st;
}

static ax_status edit_piece(ax_claim *c, ax_op op, const ax_args *args, ax_tensor *dst, ax_tensor *piece,
                            int64_t from)
{
  ax_tensor *in[AX_MAX_INPUTS] = { 0 };
  ax_args own = *args;
  ax_status st = AX_OK;

  if (ax_ops[op].form != AX_FORM_POINTWISE) return ax_tensor_ready(dst, AX_WRITE); /* its error */
  own.in = in;
  for (int k = 0; k < args->n_in; k++) /* ranks without a part refuse what the others do */
    if (args->in[k]) AX_TRY(beside(op, args->in[k], dst, from, piece ? piece->numel : 0, &in[k]));
  if (c->kind->edits) AX_TRY(c->kind->edits(c, true));
  if (piece) AX_TRY(ax_run_inplace(op, &own, piece));
  if (c->kind->edits) AX_TRY(c->kind->edits(c, false));
  dst->version->edits++;
out:
  for (int k = 0; k < args->n_in && k < AX_MAX_INPUTS; k++) ax_tensor_release(in[k]);
  return st;
}

/* Puts the node of a call that has written dst into dst's history. */
static ax_status attach(ax_node *node, ax_rewrite *rewrite, uint32_t saves, ax_tensor *dst)
{
  ax_node *old = dst->grad_fn;
  const int out = dst->out_index;
  ax_status st;

  dst->grad_fn = NULL;
  ax_leaf_ends(dst);
  st = ax_node_attach(node, 1, &dst, saves);
  if (dst->base) ax_rewrite_finish(rewrite, dst);
  else dst->rewrites++;
  ax_hooks_follow(old, out, dst);
  if (old) ax_node_release(old);
  return st;
}

static ax_status run_inplace(ax_op op, const ax_args *args, ax_tensor **at)
{
  ax_tensor *dst = *at, *piece;
  ax_claim *parts;
  int64_t from;
  const ax_op_impl *impl = &ax_op_impls[op];
  ax_infer q = { .op = op, .name = ax_ops[op].name, .args = args, .a = args->a };
  ax_tensor *temp = NULL;
  ax_node *node = NULL;
  ax_rewrite rewrite = { 0 };
  ax_status st;
  bool direct;

  if (ax_ops[op].form != AX_FORM_POINTWISE && !ax_ops[op].inplace)
    return ax_fail(AX_EINVAL, "%s: has no in-place form", q.name);
  if (!(ax_grad_enabled() && dst->requires_grad) && !ax_would_record(args->n_in, args->in) &&
      (parts = in_parts(dst, &piece, &from)))
    return edit_piece(parts, op, args, dst, piece, from);
  for (int k = 0; k < args->n_in; k++)
    if (args->in[k] && !ax_same_device(args->in[k]->device, dst->device)) {
      if (ax_has(op, CONVERTS)) return copy_across(args, dst);
      return ax_fail(AX_EINVAL, "%s_: the tensor being changed lies on %s, an argument on %s", q.name,
                     AX_DEVICE_TEXT(dst->device), AX_DEVICE_TEXT(args->in[k]->device));
    }
  AX_TRY(ax_dispatch_check_inputs(op, args));
  const ax_special special = ax_dispatch_special(args);
  if (special == AX_ANY_COMPLEX) {
    if (impl->composed) return run_then_copy(op, args, dst);
    if (!ax_has(op, COMPLEX | CONJUGATES)) return ax_complex_refused(op, args);
  } else if (special == AX_ANY_FLOAT8 || ax_is_float8((ax_dtype)dst->dtype)) {
    AX_TRY(ax_float8_check(op, args, dst));
    if (ax_has(op, FLOAT8_WIDE)) return run_then_copy(op, args, dst);
  }
  if (__builtin_expect(ax_recording != NULL, 0)) ax_capture_note(dst);
  AX_TRY(ax_tensor_ready(dst, AX_WRITE));
  ax_view_check(dst);
  if (ax_grad_enabled()) AX_TRY(ax_history(dst));
  const bool recording = impl->gradient && ax_grad_enabled() && ax_has_gradient((ax_dtype)dst->dtype) &&
                         (dst->requires_grad || ax_would_record(args->n_in, args->in));
  AX_TRY(impl->infer(&q));
  AX_TRY(ax_dispatch_check_gradient(&q));
  AX_TRY(check_destination(&q, dst, recording));
  if (recording) {
    AX_TRY(ax_node_new_op(op, args, &q.a, 1, impl->saves, dst, &node));
    AX_TRY(ax_node_reserve(node, dst, impl->saves)); /* once dst is written nothing may fail any more */
    if (dst->base) AX_TRY(ax_rewrite_begin(node, dst, &rewrite));
  }
  AX_TRY(writes_directly(&q, dst, &direct));
  if (direct) AX_TRY(ax_dispatch_kernel(&q, &dst));
  else {
    AX_TRY(ax_tensor_new_on(dst->device, q.out[0].dtype, dst->ndim, dst->shape, &temp));
    AX_TRY(ax_dispatch_kernel(&q, &temp));
    AX_TRY(ax_dispatch_copy(dst, temp));
  }
  dst->version->edits++;
  if (node) st = attach(node, &rewrite, impl->saves, dst);
out:
  ax_rewrite_drop(&rewrite);
  if (node) ax_node_release(node);
  ax_tensor_release(temp);
  return st;
}

ax_status ax_run_inplace(ax_op op, const ax_args *args, ax_tensor *dst)
{
  if (__builtin_expect(ax_profiling, 0)) return ax_profile_run(op, args, &dst, true, run_inplace);
  return run_inplace(op, args, &dst);
}

/* Draws and other fills of a tensor that rests in parts: all of it is made, as on one rank, and
 * this rank takes its part. */
static ax_status fill_whole(ax_op op, const ax_args *args, ax_tensor *dst)
{
  const bool former = ax_grad_set_enabled(false);
  ax_tensor *whole;
  ax_status st = ax_tensor_new_on(dst->device, (ax_dtype)dst->dtype, dst->ndim, dst->shape, &whole);

  if (st == AX_OK && (st = ax_run_into(op, args, whole)) == AX_OK) st = ax_copy(dst, whole);
  ax_grad_set_enabled(former);
  ax_tensor_release(whole);
  return st;
}

static ax_status run_into(ax_op op, const ax_args *args, ax_tensor **at)
{
  ax_tensor *dst = *at, *piece;
  int64_t from;
  const ax_op_impl *impl = &ax_op_impls[op];
  ax_infer q = { .op = op, .name = ax_ops[op].name, .args = args, .a = args->a, .into = dst };
  char a[AX_SHAPE_TEXT], b[AX_SHAPE_TEXT];
  ax_tensor *temp = NULL;
  ax_status st = AX_OK;

  if (__builtin_expect(ax_recording != NULL, 0)) ax_capture_note(dst);
  if (in_parts(dst, &piece, &from)) return fill_whole(op, args, dst);
  if (ax_is_float8((ax_dtype)dst->dtype)) AX_TRY(ax_float8_check(op, args, dst));
  AX_TRY(ax_tensor_ready(dst, AX_WRITE));
  AX_TRY(impl->infer(&q));
  if (q.n_out != 1 || q.out[0].dtype != dst->dtype || !ax_same_shape(dst, q.out[0].ndim, q.out[0].shape))
    return ax_fail(AX_ESHAPE, "%s: the result %s %s does not fit the place given, %s %s", q.name,
                   ax_dtype_name(q.out[0].dtype), ax_shape_text(q.out[0].ndim, q.out[0].shape, a, sizeof a),
                   ax_dtype_name((ax_dtype)dst->dtype), ax_shape_text(dst->ndim, dst->shape, b, sizeof b));
  if (ax_tensor_is_contiguous(dst)) AX_TRY(ax_dispatch_run_kernel(&q, &dst));
  else {
    AX_TRY(ax_tensor_new_on(dst->device, (ax_dtype)dst->dtype, dst->ndim, dst->shape, &temp));
    AX_TRY(ax_dispatch_run_kernel(&q, &temp));
    AX_TRY(ax_dispatch_copy(dst, temp));
  }
  dst->version->edits++;
out:
  ax_tensor_release(temp);
  return st;
}

ax_status ax_run_into(ax_op op, const ax_args *args, ax_tensor *dst)
{
  if (__builtin_expect(ax_profiling, 0)) return ax_profile_run(op, args, &dst, false, run_into);
  return run_into(op, args, &dst);
}

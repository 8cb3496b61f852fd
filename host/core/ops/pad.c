/* Rules and gradients of pad.  Sizes of margins come as {before, after} of the last dim, then of
 * the one before it, and so on. */
#include "core/ops/rule.h"
#include "core/ops/pad.h"

#define X INPUT(0)

/* Checks the margins of x; *shape: with them.  `sign` -1: x has them, and *shape is without. */
static ax_status padded_shape(const ax_infer *q, const ax_tensor *x, int sign, int64_t *shape)
{
  const int n = q->a.n_list;
  const int64_t *pad = q->a.list;
  char text[AX_SHAPE_TEXT];

  if (n < 0) return ax_fail(AX_EINVAL, "pad: expected the sizes of the margins");
  if (n % 2) return ax_fail(AX_EINVAL, "pad: margins come in pairs, before and after a dim; got %d sizes", n);
  if (n / 2 > x->ndim)
    return ax_fail(AX_EINVAL, "pad: margins for %d dims, but shape %s has %d", n / 2, TEXT(x), x->ndim);
  memcpy(shape, x->shape, sizeof *shape * AX_MAX_DIMS);
  for (int k = 0; k < n / 2; k++) {
    int64_t *size = &shape[x->ndim - 1 - k];
    if (__builtin_add_overflow(*size, sign * pad[2 * k], size) ||
        __builtin_add_overflow(*size, sign * pad[2 * k + 1], size) || *size < 0)
      return ax_fail(AX_ERANGE, "pad: margins %s leave nothing of dim %d of shape %s",
                     ax_shape_text(n, pad, text, sizeof text), x->ndim - k, TEXT(x));
  }
  return AX_OK;
}

enum { CONSTANT, REFLECT, REPLICATE, CIRCULAR };

/* Checks that negative margins before and after dim d leave of x what is there. */
static ax_status check_cut(const ax_tensor *x, int d, int64_t before, int64_t after)
{
  const int64_t left = x->shape[d] + (before < 0 ? before : 0) + (after < 0 ? after : 0);
  if (left >= 0) return AX_OK;
  return ax_fail(AX_ERANGE, "pad: margins of %lld and %lld cut more than dim %d of shape %s has",
                 (long long)before, (long long)after, d + 1, TEXT(x));
}

/* x without what negative margins cut off; those become 0 in `pad`.  *out: a new reference. */
static ax_status cut(ax_tensor *x, int n, int64_t *pad, ax_tensor **out)
{
  ax_tensor *t = ax_tensor_retain(x), *less;
  ax_status st = AX_OK;
  for (int k = 0; k < n / 2 && st == AX_OK; k++) {
    const int d = x->ndim - 1 - k;
    const int64_t before = pad[2 * k] < 0 ? -pad[2 * k] : 0, after = pad[2 * k + 1] < 0 ? -pad[2 * k + 1] : 0;
    if (before + after == 0) continue;
    AX_TRY(check_cut(x, d, pad[2 * k], pad[2 * k + 1]));
    AX_TRY(run_narrow(t, d, before, x->shape[d] - before - after, &less));
    ax_tensor_release(t);
    t = less;
    for (int end = 0; end < 2; end++)
      if (pad[2 * k + end] < 0) pad[2 * k + end] = 0;
  }
  *out = t;
  t = NULL;
out:
  ax_tensor_release(t);
  return st;
}

/* What negative margins cut off does not come round again: the rest is what wraps, as in
 * PyTorch. */
static ax_status pad_circular(ax_infer *q, ax_attrs a)
{
  ax_tensor *rest = NULL;
  int64_t shape[AX_MAX_DIMS];
  ax_status st;
  AX_TRY(padded_shape(q, X, 1, shape));
  AX_TRY(cut(X, a.n_list, a.list, &rest));
  st = ax_run(AX_OP_PAD_MODE, &(ax_args){ .n_in = 1, .in = &rest, .a = a }, q->result);
out:
  ax_tensor_release(rest);
  return st;
}

ax_status ax_infer_pad(ax_infer *q)
{
  const int64_t mode = q->a.pad.mode;
  const ax_args args = { .n_in = 1, .in = q->args->in, .a = q->a };
  const double v = q->a.pad.value;

  if (mode != CONSTANT) {
    if (v != 0) return ax_fail(AX_EINVAL, "pad: only mode \"constant\" has a value");
    if (mode != CIRCULAR) return ax_run(AX_OP_PAD_MODE, &args, q->result);
    return pad_circular(q, args.a);
  }
  if (!ax_number_fits((ax_dtype)X->dtype, v))
    return ax_fail(AX_EDTYPE, "pad: the value %g does not fit a tensor of %s", v, TYPE(X));
  return ax_run(AX_OP_PAD_CONSTANT, &args, q->result);
}

ax_status ax_infer_pad_constant(ax_infer *q)
{
  int64_t shape[AX_MAX_DIMS], kept[AX_MAX_DIMS], at_x = X->offset, at_out = 0;
  ax_tensor *whole = NULL, *from = NULL, *to = NULL, *strip = NULL;
  ax_status st;

  AX_TRY(padded_shape(q, X, 1, shape));
  AX_TRY(ax_tensor_new_on(X->device, (ax_dtype)X->dtype, X->ndim, shape, &whole));
  memcpy(kept, X->shape, sizeof kept);
  for (int k = 0; k < q->a.n_list / 2; k++) {
    const int d = X->ndim - 1 - k;
    const int64_t before = q->a.list[2 * k], after = q->a.list[2 * k + 1];
    AX_TRY(check_cut(X, d, before, after));
    for (int end = 0; end < 2; end++) { /* the margin of this dim, as long as the others allow */
      int64_t strip_shape[AX_MAX_DIMS];
      const int64_t size = end ? after : before, wide = size < shape[d] ? size : shape[d];
      if (wide <= 0) continue;
      memcpy(strip_shape, shape, sizeof strip_shape);
      strip_shape[d] = wide;
      AX_TRY(ax_tensor_view(whole, X->ndim, strip_shape, whole->strides,
                            end ? (shape[d] - wide) * whole->strides[d] : 0, &strip));
      AX_TRY(ax_fill(strip, q->a.pad_constant.value));
      ax_tensor_release(strip);
      strip = NULL;
    }
    if (before < 0) at_x -= before * X->strides[d];
    else at_out += before * whole->strides[d];
    kept[d] += (before < 0 ? before : 0) + (after < 0 ? after : 0);
  }
  if (ax_shape_numel(X->ndim, kept) > 0) {
    AX_TRY(ax_tensor_view(X, X->ndim, kept, X->strides, at_x, &from));
    AX_TRY(ax_tensor_view(whole, X->ndim, kept, whole->strides, at_out, &to));
    AX_TRY(ax_copy(to, from));
  }
  q->result[0] = whole;
  whole = NULL;
out:
  ax_tensor_release(whole), ax_tensor_release(from), ax_tensor_release(to), ax_tensor_release(strip);
  return st;
}

RULE(pad_constant) /* what was added is cut off, what was cut off had no part in it */
{
  ax_attrs back = { .n_list = A->n_list };
  for (int k = 0; k < A->n_list; k++) back.list[k] = -A->list[k];
  give(c, 0, call(c, AX_OP_PAD_CONSTANT, 1, &G, &back));
}

ax_status ax_infer_pad_mode(ax_infer *q)
{
  const int64_t mode = q->a.pad_mode.mode;
  int64_t shape[AX_MAX_DIMS];
  const ax_status st = padded_shape(q, X, 1, shape);
  if (st != AX_OK) return st;
  for (int k = 0; k < q->a.n_list; k++) {
    const int d = X->ndim - 1 - k / 2;
    const int64_t size = X->shape[d], most = mode == AX_PAD_REFLECT    ? size - 1
                                             : mode == AX_PAD_CIRCULAR ? size
                                             : size > 0                ? INT64_MAX
                                                                       : 0;
    if (q->a.list[k] > most && q->a.list[k] > 0)
      return ax_fail(AX_ERANGE, "pad: a margin of %lld is more than dim %d of shape %s can fill (mode %s)",
                     (long long)q->a.list[k], d + 1, TEXT(X),
                     mode == AX_PAD_REFLECT     ? "reflect"
                     : mode == AX_PAD_REPLICATE ? "replicate"
                                                : "circular");
  }
  q->contiguous = 1;
  out_like(q, 0, (ax_dtype)X->dtype, X->ndim, shape);
  return AX_OK;
}

ax_status ax_infer_pad_mode_backward(ax_infer *q)
{
  int64_t shape[AX_MAX_DIMS];
  const ax_dtype d = (ax_dtype)X->dtype;
  const ax_status st = padded_shape(q, X, -1, shape);
  if (st != AX_OK) return st;
  q->compute = ax_is_half(d) ? AX_F32 : d; /* sums; the tape rounds them once */
  q->cast = 1;
  q->contiguous = 1;
  out_like(q, 0, q->compute, X->ndim, shape);
  return AX_OK;
}

RULE(pad_mode) { give(c, 0, call(c, AX_OP_PAD_MODE_BACKWARD, 1, &G, A)); }
RULE(pad_mode_backward) { give(c, 0, call(c, AX_OP_PAD_MODE, 1, &G, A)); }

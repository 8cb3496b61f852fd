/* Rules and gradients of resampling. */
#include "core/ops/rule.h"

#define X INPUT(0)

ax_status ax_infer_resample(ax_infer *q)
{
  q->channels_last = 1 | 1 << 8;
  out_like(q, 0, (ax_dtype)X->dtype, 4, (int64_t[]){ X->shape[0], X->shape[1], q->a.list[0], q->a.list[1] });
  return AX_OK;
}

ax_status ax_infer_resample_backward(ax_infer *q)
{
  q->channels_last = 1 | 1 << 8;
  out_like(q, 0, (ax_dtype)X->dtype, 4, q->a.list);
  return AX_OK;
}

ax_status ax_infer_interpolate(ax_infer *q)
{
  const int mode = (int)q->a.interpolate.mode, dims = X->ndim - 2;
  ax_tensor *x = NULL, *less = NULL, *results[AX_MAX_OUT] = { 0 };
  ax_args args = { .n_in = 1,
                   .in = &x,
                   .a = { .resample = { .linear = mode > 0,
                                        .align_corners = q->a.interpolate.align_corners,
                                        .scale_h = q->a.interpolate.scale_h,
                                        .scale_w = q->a.interpolate.scale_w },
                          .n_list = 2 } };
  char text[AX_SHAPE_TEXT];
  ax_status st;

  AX_TRY(need_float(q, X));
  if (dims != 1 && dims != 2)
    AX_TRY(ax_fail(AX_ESHAPE, "interpolate: expected (n, c, h, w) or (n, c, l), got %s", TEXT(X)));
  if ((mode == 1 && dims != 1) || (mode == 2 && dims != 2))
    AX_TRY(ax_fail(AX_ESHAPE, "interpolate: mode \"%s\" is for inputs of %d dims, got %s",
                   mode == 1 ? "linear" : "bilinear", mode + 2, TEXT(X)));
  if (q->a.n_list != dims)
    AX_TRY(ax_fail(AX_EINVAL, "interpolate: size needs %d number%s for an input %s, got %d", dims,
                   dims == 1 ? "" : "s", TEXT(X), q->a.n_list < 0 ? 0 : q->a.n_list));
  if (mode == 0 && q->a.interpolate.align_corners)
    AX_TRY(ax_fail(AX_EINVAL, "interpolate: align_corners goes with the linear modes, not with \"nearest\""));
  for (int d = 0; d < dims; d++)
    if (q->a.list[d] < 1 || X->shape[2 + d] < 1)
      AX_TRY(ax_fail(AX_ESHAPE, "interpolate: cannot go from %s to size %s", TEXT(X),
                     ax_shape_text(dims, q->a.list, text, sizeof text)));
  if (dims == 1) {
    AX_TRY(run_unsqueeze(X, 2, &x));
    args.a.list[0] = 1;
    args.a.list[1] = q->a.list[0];
    args.a.resample.scale_h = NAN;
    args.a.resample.scale_w = q->a.interpolate.scale_h;
  } else {
    x = ax_tensor_retain(X);
    memcpy(args.a.list, q->a.list, 2 * sizeof *q->a.list);
  }
  AX_TRY(ax_run(AX_OP_RESAMPLE, &args, results));
  if (dims == 1) {
    AX_TRY(run_list(AX_OP_SQUEEZE, results[0], 1, (int64_t[]){ 2 }, &less));
    ax_tensor_release(results[0]);
    results[0] = less;
    ax_view_own(less); /* nobody else sees what it is a view of */
  }
  q->result[0] = results[0];
  results[0] = NULL;
out:
  ax_tensor_release(x), ax_tensor_release(results[0]);
  return st;
}

/* ---- pixels and channels */

/* x seen as `seen` (n dims), its dims reordered, then folded to `shape`. */
static ax_status rearrange(ax_infer *q, int n, const int64_t *seen, const int64_t *order,
                           const int64_t *shape)
{
  ax_tensor *wide = NULL, *turned = NULL;
  ax_status st;
  AX_TRY(run_list(AX_OP_RESHAPE, X, n, seen, &wide));
  AX_TRY(run_list(AX_OP_PERMUTE, wide, n, order, &turned));
  st = run_list(AX_OP_RESHAPE, turned, X->ndim, shape, &q->result[0]);
out:
  ax_tensor_release(wide), ax_tensor_release(turned);
  return st;
}

static ax_status shuffle(ax_infer *q, bool up)
{
  const int64_t r = up ? q->a.pixel_shuffle.upscale_factor : q->a.pixel_unshuffle.downscale_factor,
                *s = X->shape;
  const int lead = X->ndim - 3;
  int64_t seen[AX_MAX_DIMS], order[AX_MAX_DIMS], shape[AX_MAX_DIMS];

  if (lead < 0 || lead + 5 > AX_MAX_DIMS)
    return ax_fail(AX_ESHAPE, "%s: expected (.., c, h, w) of at most %d dims, got %s", q->name,
                   AX_MAX_DIMS - 2, TEXT(X));
  const ax_status st = need_within(q->name, "the factor", r, 1, INT32_MAX); /* its square has to fit */
  if (st != AX_OK) return st;
  if (up ? s[lead] % r || s[lead] / r % r : s[lead + 1] % r || s[lead + 2] % r)
    return ax_fail(AX_ESHAPE, "%s: a factor of %lld does not divide %s", q->name, (long long)r, TEXT(X));
  for (int d = 0; d < lead; d++) {
    seen[d] = shape[d] = s[d];
    order[d] = d;
  }
  const int64_t c = s[lead], h = s[lead + 1], w = s[lead + 2];
  const int64_t tall[5] = { c / (r * r), r, r, h, w }, fine[5] = { c, h / r, r, w / r, r };
  const int64_t up_order[5] = { 0, 3, 1, 4, 2 }, down_order[5] = { 0, 2, 4, 1, 3 };
  memcpy(seen + lead, up ? tall : fine, sizeof tall);
  for (int d = 0; d < 5; d++) order[lead + d] = lead + (up ? up_order : down_order)[d];
  shape[lead] = c / (r * r), shape[lead + 1] = h / r, shape[lead + 2] = w / r;
  if (up ? __builtin_mul_overflow(h, r, &shape[lead + 1]) || __builtin_mul_overflow(w, r, &shape[lead + 2])
         : __builtin_mul_overflow(c, r * r, &shape[lead]))
    return ax_fail(AX_ERANGE, "%s: a factor of %lld makes %s too large", q->name, (long long)r, TEXT(X));
  return rearrange(q, lead + 5, seen, order, shape);
}

ax_status ax_infer_pixel_shuffle(ax_infer *q) { return shuffle(q, true); }
ax_status ax_infer_pixel_unshuffle(ax_infer *q) { return shuffle(q, false); }

/* ---- gradients: the two rows are each other's */

static ax_attrs with_sizes(const ax_attrs *a, int n, const int64_t *sizes)
{
  ax_attrs with = *a;
  with.n_list = n;
  memcpy(with.list, sizes, (size_t)n * sizeof *sizes);
  return with;
}

RULE(resample)
{
  const ax_attrs a = with_sizes(A, 4, META(0)->shape);
  give(c, 0, call(c, AX_OP_RESAMPLE_BACKWARD, 1, (ax_arg[]){ G }, &a));
}

RULE(resample_backward)
{
  const ax_attrs a = with_sizes(A, 2, META(0)->shape + 2);
  give(c, 0, call(c, AX_OP_RESAMPLE, 1, (ax_arg[]){ G }, &a));
}

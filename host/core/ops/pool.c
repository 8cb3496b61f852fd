/* Rules and gradients of pooling.  The user's rows bring their arguments into one form and add the
 * dims that are missing: the rows that compute see (n, c, h, w) with the channels innermost. */
#include "core/ops/pool.h"
#include "core/ops/rule.h"

static ax_status check_image(const ax_infer *q, const ax_tensor *x)
{
  const ax_status st = need_float(q, x);
  if (st != AX_OK) return st;
  if (x->ndim != 4) return ax_fail(AX_ESHAPE, "%s: expected (n, c, h, w), got %s", q->name, TEXT(x));
  if ((double)x->shape[2] * (double)x->shape[3] > INT32_MAX)
    return ax_fail(AX_ESHAPE, "%s: planes of more than 2^31 elements are not available: %s", q->name,
                   TEXT(x));
  return AX_OK;
}

static void pooled_shape(const ax_infer *q, const int64_t *x, int64_t *shape)
{
  const ax_pool p = ax_pool_of(&q->a);
  shape[0] = x[0];
  shape[1] = x[1];
  for (int d = 0; d < 2; d++) shape[2 + d] = ax_pool_windows(&p, d, x[2 + d]);
}

ax_status ax_infer_max_pool(ax_infer *q)
{
  int64_t shape[4];
  const ax_status st = check_image(q, INPUT(0));
  if (st != AX_OK) return st;
  pooled_shape(q, INPUT(0)->shape, shape);
  q->channels_last = 1 | 3 << 8;
  out_like(q, 0, (ax_dtype)INPUT(0)->dtype, 4, shape);
  out_like(q, 1, AX_I32, 4, shape);
  return AX_OK;
}

ax_status ax_infer_avg_pool(ax_infer *q)
{
  int64_t shape[4];
  const ax_status st = check_image(q, INPUT(0));
  if (st != AX_OK) return st;
  pooled_shape(q, INPUT(0)->shape, shape);
  q->channels_last = 1 | 1 << 8;
  out_like(q, 0, (ax_dtype)INPUT(0)->dtype, 4, shape);
  return AX_OK;
}

ax_status ax_infer_avg_pool_backward(ax_infer *q)
{
  q->channels_last = 1 | 1 << 8;
  out_like(q, 0, (ax_dtype)INPUT(0)->dtype, 4, q->a.list);
  return AX_OK;
}

ax_status ax_infer_pool_scatter(ax_infer *q)
{
  q->channels_last = 3 | 1 << 8;
  out_like(q, 0, (ax_dtype)INPUT(0)->dtype, 4, q->a.list);
  return AX_OK;
}

ax_status ax_infer_pool_take(ax_infer *q)
{
  q->channels_last = 3 | 1 << 8;
  out_like(q, 0, (ax_dtype)INPUT(0)->dtype, 4, INPUT(1)->shape);
  return AX_OK;
}

/* ---- the user's rows */

/* One window over each plane, in x's layout and type: autocast runs a mean in float32. */
static ax_status mean_of_planes(ax_tensor *x, ax_tensor **out)
{
  ax_attrs a = AX_ATTRS(mean, .keepdim = true);
  ax_tensor *mean = NULL;
  ax_status st;

  a.n_list = 2, a.list[0] = 2, a.list[1] = 3;
  st = run_with(AX_OP_MEAN, x, &a, &mean);
  if (st != AX_OK || mean->dtype == x->dtype) {
    *out = mean;
    return st;
  }
  st = run_with(AX_OP_CAST, mean, &AX_ATTRS(cast, .dtype = x->dtype), out);
  ax_tensor_release(mean);
  return st;
}

/* Is the input one of windows over its last `dims` dims that p allows? */
static ax_status check_pooled(const ax_infer *q, const ax_tensor *x, int dims, const ax_pool *p)
{
  const bool adaptive = p->flags & AX_POOL_ADAPTIVE;
  ax_status st;

  AX_TRY(need_float(q, x));
  if (x->ndim != dims + 1 && x->ndim != dims + 2)
    return ax_fail(AX_ESHAPE, "%s: expected an input of %d dims, or %d without a batch, got %s", q->name,
                   dims + 2, dims + 1, TEXT(x));
  for (int d = 2 - dims; d < 2; d++) {
    const int64_t size = x->shape[x->ndim - 2 + d];
    AX_TRY(need_within(q->name, adaptive ? "output_size" : "kernel_size", p->kernel[d], 1, INT32_MAX));
    if (size < 1)
      return ax_fail(AX_ESHAPE, "%s: nothing to pool in dim %d of %s", q->name, x->ndim - 1 + d, TEXT(x));
    if (adaptive) continue;
    AX_TRY(need_within(q->name, "stride", p->stride[d], 1, INT32_MAX));
    AX_TRY(need_within(q->name, "dilation", p->dilation[d], 1, INT32_MAX));
    if (p->padding[d] < 0 || p->padding[d] > p->kernel[d] / 2)
      return ax_fail(AX_ERANGE, "%s: padding must be within 0 and half of the kernel (%lld), got %lld",
                     q->name, (long long)(p->kernel[d] / 2), (long long)p->padding[d]);
    if (ax_pool_windows(p, d, size) < 1)
      return ax_fail(AX_ESHAPE, "%s: a window of %lld does not fit the padded input %s", q->name,
                     (long long)(p->dilation[d] * (p->kernel[d] - 1) + 1), TEXT(x));
  }
out:
  return st;
}

/* Pools the last `dims` dims (of one, the second: the first has windows of 1).  places: the second
 * result becomes the row's, in int64. */
static ax_status run_pool_with(ax_infer *q, ax_op op, int dims, const ax_pool *p, bool places)
{
  ax_tensor *x = INPUT(0), *tall = NULL, *batch = NULL, *at = NULL, *results[AX_MAX_OUT] = { 0 };
  ax_args args = { .n_in = 1, .in = &batch, .a = { .n_list = -1 } };
  const bool adaptive = p->flags & AX_POOL_ADAPTIVE;
  ax_status st;

  if (op == AX_OP_MAX_POOL && is_whole(x)) {
    double most = 1;
    AX_TRY(run_magnitude(x, &most));
    return run_whole(q, most);
  }
  AX_TRY(check_pooled(q, x, dims, p));
  if (dims == 1) AX_TRY(run_unsqueeze(x, x->ndim - 1, &tall));
  else tall = ax_tensor_retain(x);
  if (tall->ndim == 3) AX_TRY(run_unsqueeze(tall, 0, &batch));
  else batch = ax_tensor_retain(tall);
  for (int d = 0; d < 2; d++) {
    args.a.pool.kernel[d] = p->kernel[d];
    args.a.pool.stride[d] = p->stride[d];
    args.a.pool.padding[d] = p->padding[d];
    args.a.pool.dilation[d] = p->dilation[d];
  }
  args.a.pool.flags = p->flags;
  args.a.pool.divisor = p->divisor;
  if (op == AX_OP_AVG_POOL && adaptive && p->kernel[0] == 1 && p->kernel[1] == 1)
    AX_TRY(mean_of_planes(batch, &results[0]));
  else AX_TRY(ax_run(op, &args, results));
  if (places) {
    AX_TRY(run_with(AX_OP_CAST, results[1], &AX_ATTRS(cast, .dtype = AX_I64), &at));
    st = run_narrow_as(x, dims, at, &q->result[1]);
    if (st != AX_OK) goto out;
  }
  st = run_narrow_as(x, dims, results[0], &q->result[0]);
  results[0] = NULL;
  if (st != AX_OK) {
    ax_tensor_release(q->result[1]);
    q->result[1] = NULL;
  }
out:
  ax_tensor_release(tall), ax_tensor_release(batch);
  ax_tensor_release(results[0]), ax_tensor_release(results[1]);
  return st;
}

static ax_status run_pool(ax_infer *q, ax_op op, int dims, const ax_pool *p)
{
  return run_pool_with(q, op, dims, p, false);
}

static int64_t or_else(int64_t v, int64_t other) { return v == AX_NO_DIM ? other : v; }

#define PAIR(v) \
  { \
    (v)[0], (v)[1] \
  }
/* The stride, which is the kernel's size unless it is given. */
#define STRIDES(a) \
  { \
    or_else((a).stride[0], (a).kernel_size[0]), or_else((a).stride[1], (a).kernel_size[1]) \
  }
#define STRIDE(a) \
  { \
    1, or_else((a).stride, (a).kernel_size) \
  }

static ax_status max_pool2d(ax_infer *q, bool places)
{
  const ax_attrs *a = &q->a;
  return run_pool_with(q, AX_OP_MAX_POOL, 2,
                       &(ax_pool){ .kernel = PAIR(a->max_pool2d.kernel_size),
                                   .stride = STRIDES(a->max_pool2d),
                                   .padding = PAIR(a->max_pool2d.padding),
                                   .dilation = PAIR(a->max_pool2d.dilation),
                                   .flags = a->max_pool2d.ceil_mode ? AX_POOL_CEIL : 0 },
                       places);
}

ax_status ax_infer_max_pool2d(ax_infer *q) { return max_pool2d(q, false); }
ax_status ax_infer_max_pool2d_with_indices(ax_infer *q) { return max_pool2d(q, true); }

static ax_status max_pool1d(ax_infer *q, bool places)
{
  const ax_attrs *a = &q->a;
  return run_pool_with(q, AX_OP_MAX_POOL, 1,
                       &(ax_pool){ .kernel = { 1, a->max_pool1d.kernel_size },
                                   .stride = STRIDE(a->max_pool1d),
                                   .padding = { 0, a->max_pool1d.padding },
                                   .dilation = { 1, a->max_pool1d.dilation },
                                   .flags = a->max_pool1d.ceil_mode ? AX_POOL_CEIL : 0 },
                       places);
}

ax_status ax_infer_max_pool1d(ax_infer *q) { return max_pool1d(q, false); }
ax_status ax_infer_max_pool1d_with_indices(ax_infer *q) { return max_pool1d(q, true); }

static int64_t average_flags(bool ceil_mode, bool count_include_pad)
{
  return (ceil_mode ? AX_POOL_CEIL : 0) | (count_include_pad ? AX_POOL_COUNT_PADDING : 0);
}

ax_status ax_infer_avg_pool2d(ax_infer *q)
{
  const ax_attrs *a = &q->a;
  if (a->avg_pool2d.divisor_override == 0)
    return ax_fail(AX_ERANGE, "avg_pool2d: divisor_override must not be 0");
  return run_pool(q, AX_OP_AVG_POOL, 2,
                  &(ax_pool){ .kernel = PAIR(a->avg_pool2d.kernel_size),
                              .stride = STRIDES(a->avg_pool2d),
                              .padding = PAIR(a->avg_pool2d.padding),
                              .dilation = { 1, 1 },
                              .flags =
                                  average_flags(a->avg_pool2d.ceil_mode, a->avg_pool2d.count_include_pad),
                              .divisor = or_else(a->avg_pool2d.divisor_override, 0) });
}

ax_status ax_infer_avg_pool1d(ax_infer *q)
{
  const ax_attrs *a = &q->a;
  return run_pool(q, AX_OP_AVG_POOL, 1,
                  &(ax_pool){ .kernel = { 1, a->avg_pool1d.kernel_size },
                              .stride = STRIDE(a->avg_pool1d),
                              .padding = { 0, a->avg_pool1d.padding },
                              .dilation = { 1, 1 },
                              .flags =
                                  average_flags(a->avg_pool1d.ceil_mode, a->avg_pool1d.count_include_pad) });
}

/* -1 keeps the input's size, as None does in PyTorch. */
static ax_status adaptive_with(ax_infer *q, ax_op op, int dims, int64_t height, int64_t width, bool places)
{
  const ax_tensor *x = q->args->in[0];
  if (height == -1 && x->ndim > 1) height = x->shape[x->ndim - 2];
  if (width == -1 && x->ndim > 0) width = x->shape[x->ndim - 1];
  return run_pool_with(q, op, dims,
                       &(ax_pool){ .kernel = { height, width },
                                   .stride = { 1, 1 },
                                   .dilation = { 1, 1 },
                                   .flags = AX_POOL_ADAPTIVE },
                       places);
}

static ax_status adaptive(ax_infer *q, ax_op op, int dims, int64_t height, int64_t width)
{
  return adaptive_with(q, op, dims, height, width, false);
}

ax_status ax_infer_adaptive_avg_pool1d(ax_infer *q)
{
  return adaptive(q, AX_OP_AVG_POOL, 1, 1, q->a.adaptive_avg_pool1d.output_size);
}
ax_status ax_infer_adaptive_avg_pool2d(ax_infer *q)
{
  const int64_t *size = q->a.adaptive_avg_pool2d.output_size;
  return adaptive(q, AX_OP_AVG_POOL, 2, size[0], size[1]);
}
ax_status ax_infer_adaptive_max_pool1d(ax_infer *q)
{
  return adaptive(q, AX_OP_MAX_POOL, 1, 1, q->a.adaptive_max_pool1d.output_size);
}
ax_status ax_infer_adaptive_max_pool2d(ax_infer *q)
{
  const int64_t *size = q->a.adaptive_max_pool2d.output_size;
  return adaptive(q, AX_OP_MAX_POOL, 2, size[0], size[1]);
}

ax_status ax_infer_adaptive_max_pool1d_with_indices(ax_infer *q)
{
  return adaptive_with(q, AX_OP_MAX_POOL, 1, 1, q->a.adaptive_max_pool1d.output_size, true);
}
ax_status ax_infer_adaptive_max_pool2d_with_indices(ax_infer *q)
{
  const int64_t *size = q->a.adaptive_max_pool2d.output_size;
  return adaptive_with(q, AX_OP_MAX_POOL, 2, size[0], size[1], true);
}

/* ---- gradients */

/* The windows go along: a device looks from an element for the windows that chose it. */
RULE(max_pool)
{
  ax_attrs a = *A;
  a.n_list = 4;
  memcpy(a.list, META(0)->shape, 4 * sizeof *a.list);
  give(c, 0, call(c, AX_OP_POOL_SCATTER, 2, (ax_arg[]){ G, OUT(1) }, &a));
}
RULE(pool_scatter)
{
  if (WANTS(0)) give(c, 0, call(c, AX_OP_POOL_TAKE, 2, (ax_arg[]){ G, IN(1) }, NULL));
}
RULE(pool_take)
{
  if (WANTS(0))
    give(c, 0,
         call(c, AX_OP_POOL_SCATTER, 2, (ax_arg[]){ G, IN(1) },
              &(ax_attrs){
                  .n_list = 4,
                  .list = { META(0)->shape[0], META(0)->shape[1], META(0)->shape[2], META(0)->shape[3] } }));
}

RULE(avg_pool)
{
  ax_attrs a = *A;
  a.n_list = 4;
  memcpy(a.list, META(0)->shape, 4 * sizeof *a.list);
  give(c, 0, call(c, AX_OP_AVG_POOL_BACKWARD, 1, (ax_arg[]){ G }, &a));
}

RULE(avg_pool_backward)
{
  ax_attrs a = *A;
  a.n_list = -1;
  give(c, 0, call(c, AX_OP_AVG_POOL, 1, (ax_arg[]){ G }, &a));
}

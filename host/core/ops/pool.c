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
  shape[0] = x[0];
  shape[1] = x[1];
  for (int d = 0; d < 2; d++) shape[2 + d] = ax_pool_windows(q->a.i, d, x[2 + d]);
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

/* in the last `dims` dims; i: the slots of the rows that compute */
typedef struct pool {
  int dims;
  int64_t i[10];
} pool;

static ax_status run_pool(ax_infer *q, ax_op op, const pool *p)
{
  ax_tensor *x = INPUT(0), *tall = NULL, *batch = NULL, *less = NULL, *results[AX_MAX_OUT] = { 0 };
  ax_args args = { .n_in = 1, .in = &batch, .a = { .n_list = -1 } };
  const int64_t *i = p->i;
  const bool adaptive = i[AX_POOL_FLAGS] & AX_POOL_ADAPTIVE;
  ax_status st;

  AX_TRY(need_float(q, x));
  if (x->ndim != p->dims + 1 && x->ndim != p->dims + 2)
    AX_TRY(ax_fail(AX_ESHAPE, "%s: expected an input of %d dims, or %d without a batch, got %s", q->name,
                   p->dims + 2, p->dims + 1, TEXT(x)));
  for (int d = 2 - p->dims; d < 2; d++) {
    const int64_t size = x->shape[x->ndim - 2 + d], *at = i + d;
    AX_TRY(need_within(q->name, adaptive ? "output_size" : "kernel_size", at[AX_POOL_KERNEL], 1, INT32_MAX));
    if (size < 1)
      AX_TRY(ax_fail(AX_ESHAPE, "%s: nothing to pool in dim %d of %s", q->name, x->ndim - 1 + d, TEXT(x)));
    if (adaptive) continue;
    AX_TRY(need_within(q->name, "stride", at[AX_POOL_STRIDE], 1, INT32_MAX));
    AX_TRY(need_within(q->name, "dilation", at[AX_POOL_DILATION], 1, INT32_MAX));
    if (at[AX_POOL_PADDING] < 0 || at[AX_POOL_PADDING] > at[AX_POOL_KERNEL] / 2)
      AX_TRY(ax_fail(AX_ERANGE, "%s: padding must be within 0 and half of the kernel (%lld), got %lld",
                     q->name, (long long)(at[AX_POOL_KERNEL] / 2), (long long)at[AX_POOL_PADDING]));
    if (ax_pool_windows(i, d, size) < 1)
      AX_TRY(ax_fail(AX_ESHAPE, "%s: a window of %lld does not fit the padded input %s", q->name,
                     (long long)(at[AX_POOL_DILATION] * (at[AX_POOL_KERNEL] - 1) + 1), TEXT(x)));
  }
  if (p->dims == 1) AX_TRY(run_ints(AX_OP_UNSQUEEZE, x, x->ndim - 1, 0, 0, 0, &tall));
  else tall = ax_tensor_retain(x);
  if (tall->ndim == 3) AX_TRY(run_ints(AX_OP_UNSQUEEZE, tall, 0, 0, 0, 0, &batch));
  else batch = ax_tensor_retain(tall);
  memcpy(args.a.i, i, sizeof p->i);
  AX_TRY(ax_run(op, &args, results));
  ax_tensor_release(results[1]);
  if (x->ndim == p->dims + 1) {
    AX_TRY(run_ints(AX_OP_SELECT, results[0], 0, 0, 0, 0, &less));
    ax_tensor_release(results[0]);
    results[0] = less;
  }
  if (p->dims == 1) {
    AX_TRY(run_list(AX_OP_SQUEEZE, results[0], 1, (int64_t[]){ results[0]->ndim - 2 }, &less));
    ax_tensor_release(results[0]);
    results[0] = less;
  }
  q->result[0] = results[0];
  ax_view_own(q->result[0]); /* nobody else sees what it is a view of */
  results[0] = NULL;
out:
  ax_tensor_release(tall), ax_tensor_release(batch), ax_tensor_release(results[0]);
  return st;
}

static int64_t or_else(int64_t v, int64_t other) { return v == AX_NO_DIM ? other : v; }

ax_status ax_infer_max_pool2d(ax_infer *q) /* kernel, stride, padding, dilation, ceil */
{
  const int64_t *i = q->a.i;
  return run_pool(q, AX_OP_MAX_POOL,
                  &(pool){ 2,
                           { i[0], i[1], or_else(i[2], i[0]), or_else(i[3], i[1]), i[4], i[5], i[6], i[7],
                             i[8] ? AX_POOL_CEIL : 0, 0 } });
}

ax_status ax_infer_max_pool1d(ax_infer *q)
{
  const int64_t *i = q->a.i;
  return run_pool(q, AX_OP_MAX_POOL,
                  &(pool){
                      1, { 1, i[0], 1, or_else(i[1], i[0]), 0, i[2], 1, i[3], i[4] ? AX_POOL_CEIL : 0, 0 } });
}

ax_status ax_infer_avg_pool2d(ax_infer *q) /* kernel, stride, padding, ceil, count_include_pad, divisor */
{
  const int64_t *i = q->a.i, divisor = or_else(i[8], 0);
  if (i[8] == 0) return ax_fail(AX_ERANGE, "avg_pool2d: divisor_override must not be 0");
  return run_pool(q, AX_OP_AVG_POOL,
                  &(pool){ 2,
                           { i[0], i[1], or_else(i[2], i[0]), or_else(i[3], i[1]), i[4], i[5], 1, 1,
                             (i[6] ? AX_POOL_CEIL : 0) | (i[7] ? AX_POOL_COUNT_PADDING : 0), divisor } });
}

ax_status ax_infer_avg_pool1d(ax_infer *q)
{
  const int64_t *i = q->a.i;
  return run_pool(q, AX_OP_AVG_POOL,
                  &(pool){ 1,
                           { 1, i[0], 1, or_else(i[1], i[0]), 0, i[2], 1, 1,
                             (i[3] ? AX_POOL_CEIL : 0) | (i[4] ? AX_POOL_COUNT_PADDING : 0), 0 } });
}

static ax_status adaptive(ax_infer *q, ax_op op, int dims)
{
  const int64_t *i = q->a.i;
  return run_pool(q, op,
                  &(pool){ dims,
                           { dims == 2 ? i[0] : 1, dims == 2 ? i[1] : i[0], 1, 1, 0, 0, 1, 1,
                             AX_POOL_ADAPTIVE, 0 } });
}

ax_status ax_infer_adaptive_avg_pool1d(ax_infer *q) { return adaptive(q, AX_OP_AVG_POOL, 1); }
ax_status ax_infer_adaptive_avg_pool2d(ax_infer *q) { return adaptive(q, AX_OP_AVG_POOL, 2); }
ax_status ax_infer_adaptive_max_pool1d(ax_infer *q) { return adaptive(q, AX_OP_MAX_POOL, 1); }
ax_status ax_infer_adaptive_max_pool2d(ax_infer *q) { return adaptive(q, AX_OP_MAX_POOL, 2); }

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

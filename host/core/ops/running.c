/* Rules and gradients of running sums, products and extremes. */
#include "core/ops/rule.h"

ax_status ax_infer_scan(ax_infer *q)
{
  const ax_tensor *x = INPUT(0);
  q->compute = ax_is_float((ax_dtype)x->dtype) ? (ax_dtype)x->dtype : AX_I64;
  q->cast = q->contiguous = 1;
  out_like(q, 0, q->compute, x->ndim, x->shape);
  return AX_OK;
}

ax_status ax_infer_running_products(ax_infer *q) { return ax_infer_scan(q); }

ax_status ax_infer_cumprod_backward(ax_infer *q)
{
  const ax_tensor *g = INPUT(0), *x = INPUT(1), *y = INPUT(2);
  const ax_status st = need_float(q, x);
  if (st != AX_OK) return st;
  if (!ax_same_shape(g, x->ndim, x->shape) || !ax_same_shape(y, x->ndim, x->shape))
    return ax_fail(AX_ESHAPE, "%s: expected three tensors of one shape, got %s, %s and %s", q->name, TEXT(g),
                   TEXT(x), TEXT(y));
  q->compute = (ax_dtype)x->dtype;
  q->cast = q->contiguous = ~0u;
  out_like(q, 0, q->compute, x->ndim, x->shape);
  return AX_OK;
}

ax_status ax_infer_running_best(ax_infer *q)
{
  const ax_tensor *x = INPUT(0);
  q->contiguous = 1;
  out_like(q, 0, (ax_dtype)x->dtype, x->ndim, x->shape);
  out_like(q, 1, AX_I64, x->ndim, x->shape);
  return AX_OK;
}

/* Real numbers have a kernel; of complex ones, every element times the one 1, 2, 4 .. positions
 * before it. */
ax_status ax_infer_cumprod(ax_infer *q)
{
  ax_tensor *x = INPUT(0), *now = NULL, *head = NULL, *tail = NULL, *body = NULL, *product = NULL;
  const int64_t dim = q->a.cumprod.dim, size = x->ndim ? x->shape[dim] : 1;
  ax_status st;

  if (!ax_is_complex((ax_dtype)x->dtype))
    return run_with(AX_OP_CUMPROD_OF, x, &AX_ATTRS(cumprod_of, .dim = dim), &q->result[0]);
  AX_TRY(ax_run1(AX_OP_CLONE, x, &now));
  for (int64_t by = 1; by < size; by *= 2) {
    AX_TRY(run_narrow(now, dim, 0, by, &head));
    AX_TRY(run_narrow(now, dim, by, size - by, &tail));
    AX_TRY(run_narrow(now, dim, 0, size - by, &body));
    AX_TRY(ax_run2(AX_OP_MUL, tail, body, &product));
    ax_tensor_release(now);
    now = NULL;
    AX_TRY(run_cat(head, product, dim, &now));
    ax_tensor_release(head);
    ax_tensor_release(tail);
    ax_tensor_release(body);
    ax_tensor_release(product);
    head = tail = body = product = NULL;
  }
  q->result[0] = ax_tensor_retain(now);
out:
  ax_tensor_release(now);
  ax_tensor_release(head);
  ax_tensor_release(tail);
  ax_tensor_release(body);
  ax_tensor_release(product);
  return st;
}

RULE(cumsum)
{
  give(c, 0, call1(c, AX_OP_CUMSUM_BACKWARD, G, &AX_ATTRS(cumsum_backward, .dim = A->cumsum.dim)));
}
RULE(cumsum_backward)
{
  give(c, 0, call1(c, AX_OP_CUMSUM, G, &AX_ATTRS(cumsum, .dim = A->cumsum_backward.dim)));
}

/* s[i] = g[i] + x[i + 1] s[i + 1], from rows that can be differentiated: after each step s[i] has
 * the terms of g[i] .. g[i + by - 1], and w[i] is the product of x[i + 1] .. x[i + by]. */
static ax_status weighted_sums(ax_tensor *g, ax_tensor *x, int64_t dim, int64_t n, ax_tensor **out)
{
  ax_tensor *s = ax_tensor_retain(g), *w = NULL, *head = NULL, *tail = NULL, *both = NULL, *sum = NULL;
  ax_status st;

  AX_TRY(run_narrow(x, dim, 1, n - 1, &w));
  for (int64_t by = 1; by < n; by *= 2) {
    AX_TRY(run_narrow(s, dim, 0, n - by, &head));
    AX_TRY(run_narrow(s, dim, by, n - by, &tail));
    AX_TRY(ax_run2(AX_OP_MUL, w, tail, &both));
    AX_TRY(ax_run2(AX_OP_ADD, head, both, &sum));
    ax_tensor_release(tail);
    tail = NULL;
    AX_TRY(run_narrow(s, dim, n - by, by, &tail));
    ax_tensor_release(s);
    s = NULL;
    AX_TRY(run_cat(sum, tail, dim, &s));
    ax_tensor_release(head);
    ax_tensor_release(tail);
    ax_tensor_release(both);
    ax_tensor_release(sum);
    head = tail = both = sum = NULL;
    if (n <= 2 * by) break;
    AX_TRY(run_narrow(w, dim, 0, n - 2 * by, &head));
    AX_TRY(run_narrow(w, dim, by, n - 2 * by, &tail));
    ax_tensor_release(w);
    w = NULL;
    AX_TRY(ax_run2(AX_OP_MUL, head, tail, &w));
    ax_tensor_release(head);
    ax_tensor_release(tail);
    head = tail = NULL;
  }
  *out = ax_tensor_retain(s);
out:
  ax_tensor_release(s);
  ax_tensor_release(w);
  ax_tensor_release(head);
  ax_tensor_release(tail);
  ax_tensor_release(both);
  ax_tensor_release(sum);
  return st;
}

/* The gradient for x[i] is y[i - 1] s[i]; nothing is divided, so that it is right where x is 0. */
RULE(running_products)
{
  const int64_t dim = A->cumprod_of.dim, n = META(0)->ndim ? META(0)->shape[dim] : 1;
  ax_tensor *sums = NULL;

  if (!c->create_graph) {
    give(c, 0,
         call(c, AX_OP_CUMPROD_BACKWARD, 3, (ax_arg[]){ G, IN(0), OUT(0) },
              &AX_ATTRS(cumprod_backward, .dim = dim)));
    return;
  }
  if (n < 2) {
    give(c, 0, G);
    return;
  }
  const ax_arg x = IN(0);
  if (c->st != AX_OK) return;
  const ax_status st = weighted_sums(c->g[0], x.t, dim, n, &sums);
  const ax_arg s = keep(c, st, sums);
  const ax_arg first = narrow(c, s, dim, 0, 1);
  const ax_arg others = mul(c, narrow(c, OUT(0), dim, 0, n - 1), narrow(c, s, dim, 1, n - 1));
  give(c, 0, call(c, AX_OP_CAT, 2, (ax_arg[]){ first, others }, &AX_ATTRS(cat, .dim = dim)));
}

RULE(running_best) /* g goes back where the elements came from */
{
  ax_attrs a = { .gather_backward = { .dim = A->running_best.dim }, .n_list = META(0)->ndim };
  if (!c->g[0]) return;
  memcpy(a.list, META(0)->shape, sizeof a.list);
  give(c, 0, call(c, AX_OP_GATHER_BACKWARD, 2, (ax_arg[]){ G, OUT(1) }, &a));
}

/* Rules and gradients of rows about order. */
#include "core/ops/rule.h"

#define X INPUT(0)

static ax_status two_results(ax_infer *q, int ndim, const int64_t *shape)
{
  q->contiguous = 1;
  out_like(q, 0, (ax_dtype)X->dtype, ndim, shape);
  out_like(q, 1, AX_I64, ndim, shape);
  return AX_OK;
}

ax_status ax_infer_sort(ax_infer *q) { return two_results(q, X->ndim, X->shape); }

ax_status ax_infer_argsort(ax_infer *q)
{
  ax_tensor *plain = NULL, *results[AX_MAX_OUT] = { 0 };
  ax_status st = ax_tensor_alias(X, &plain); /* positions have no gradient: nothing is recorded */
  if (st == AX_OK) st = ax_run(AX_OP_SORT, &(ax_args){ .n_in = 1, .in = &plain, .a = q->a }, results);
  ax_tensor_release(plain);
  ax_tensor_release(results[0]);
  q->result[0] = results[1];
  return st;
}

ax_status ax_infer_topk(ax_infer *q)
{
  int64_t shape[AX_MAX_DIMS];
  const int64_t k = q->a.topk.k, dim = q->a.topk.dim, size = X->ndim ? X->shape[dim] : 1;
  if (k < 0 || k > size)
    return ax_fail(AX_ERANGE, "topk: k is %lld, but dim %lld of shape %s has %lld elements", (long long)k,
                   (long long)dim + 1, TEXT(X), (long long)size);
  memcpy(shape, X->shape, sizeof shape);
  if (X->ndim) shape[dim] = k;
  else if (k != 1) return ax_fail(AX_ERANGE, "topk: a 0-d tensor has 1 element, k is %lld", (long long)k);
  return two_results(q, X->ndim, shape);
}

static ax_status one_of(ax_infer *q, int64_t dim, bool keepdim)
{
  int64_t shape[AX_MAX_DIMS];
  int n = 0;
  for (int d = 0; d < X->ndim; d++)
    if (d != dim) shape[n++] = X->shape[d];
    else if (keepdim) shape[n++] = 1;
  return two_results(q, n, shape);
}

ax_status ax_infer_kthvalue(ax_infer *q)
{
  const int64_t k = q->a.kthvalue.k, dim = q->a.kthvalue.dim, size = X->ndim ? X->shape[dim] : 1;
  if (k < 1 || k > size)
    return ax_fail(AX_ERANGE, "kthvalue: k must be in 1..%lld for dim %lld of shape %s, got %lld",
                   (long long)size, (long long)dim + 1, TEXT(X), (long long)k);
  return one_of(q, dim, q->a.kthvalue.keepdim);
}

ax_status ax_infer_median_of(ax_infer *q)
{
  const int64_t dim = q->a.median_of.dim;
  if (X->ndim && X->shape[dim] == 0)
    return ax_fail(AX_ESHAPE, "median: dim %lld of shape %s has no elements to choose from",
                   (long long)dim + 1, TEXT(X));
  return one_of(q, dim, q->a.median_of.keepdim);
}

/* The median of x, a vector, as the largest of what is not above it: equal ones share the gradient,
 * as in PyTorch. */
static ax_status shared_by_equals(ax_tensor *x, ax_tensor *value, ax_tensor **out)
{
  ax_tensor *above = NULL, *low = NULL, *kept = NULL, *results[AX_MAX_OUT] = { 0 };
  ax_status st;

  AX_TRY(ax_run2(AX_OP_GT, x, value, &above));
  AX_TRY(ax_tensor_new_on(x->device, (ax_dtype)x->dtype, 0, NULL, &low));
  AX_TRY(ax_fill(low, -INFINITY));
  AX_TRY(ax_run(AX_OP_WHERE,
                &(ax_args){ .n_in = 3, .in = (ax_tensor *[]){ above, low, x }, .a = { .n_list = -1 } },
                results));
  kept = results[0];
  st = run_with(AX_OP_AMAX, kept, &(ax_attrs){ .n_list = -1 }, out);
out:
  ax_tensor_release(above), ax_tensor_release(low), ax_tensor_release(kept);
  return st;
}

ax_status ax_infer_median(ax_infer *q)
{
  ax_tensor *flat = NULL, *results[AX_MAX_OUT] = { 0 };
  ax_status st;

  if (q->a.median.dim != AX_NO_DIM)
    return ax_run(AX_OP_MEDIAN_OF, &(ax_args){ .n_in = 1, .in = q->args->in, .a = q->a }, q->result);
  AX_TRY(run_list(AX_OP_RESHAPE, X, 1, &X->numel, &flat));
  if (X->numel == 0 && ax_has_gradient((ax_dtype)X->dtype)) { /* NaN, as the mean of nothing */
    st = run_with(AX_OP_MEAN, flat, &(ax_attrs){ .n_list = -1 }, &q->result[0]);
    goto out;
  }
  AX_TRY(ax_run(AX_OP_MEDIAN_OF, &(ax_args){ .n_in = 1, .in = &flat, .a = { .n_list = -1 } }, results));
  if (X->requires_grad && ax_grad_enabled()) st = shared_by_equals(flat, results[0], &q->result[0]);
  else q->result[0] = ax_tensor_retain(results[0]);
out:
  ax_tensor_release(results[0]), ax_tensor_release(results[1]);
  ax_tensor_release(flat);
  return st;
}

/* g goes back where the elements came from. */
static void give_back(ax_grad *c, ax_arg g, ax_arg index, int64_t dim)
{
  ax_attrs a = { .gather_backward = { .dim = dim }, .n_list = META(0)->ndim };
  memcpy(a.list, META(0)->shape, sizeof a.list);
  give(c, 0, call(c, AX_OP_GATHER_BACKWARD, 2, (ax_arg[]){ g, index }, &a));
}

RULE(sorted)
{
  if (c->g[0]) give_back(c, G, OUT(1), c->node->op == AX_OP_TOPK ? A->topk.dim : A->sort.dim);
}

RULE(ranked)
{
  const bool median = c->node->op == AX_OP_MEDIAN_OF;
  const int64_t dim = median ? A->median_of.dim : A->kthvalue.dim;
  const bool keepdim = median ? A->median_of.keepdim : A->kthvalue.keepdim;
  if (!c->g[0]) return;
  if (keepdim || META(0)->ndim == 0) give_back(c, G, OUT(1), dim);
  else give_back(c, unsqueeze(c, G, dim), unsqueeze(c, OUT(1), dim), dim);
}

/* ---- search */

ax_status ax_infer_searchsorted(ax_infer *q)
{
  const ax_tensor *s = X, *v = INPUT(1);

  if (s->ndim == 0) return ax_fail(AX_ESHAPE, "%s: the sequence must have at least one dim", q->name);
  if (!v && s->ndim > 1)
    return ax_fail(AX_ESHAPE, "%s: a number is looked for in one sequence, got %s", q->name, TEXT(s));
  if (v && s->ndim > 1) {
    bool fits = s->ndim == v->ndim;
    for (int d = 0; fits && d < s->ndim - 1; d++) fits = s->shape[d] == v->shape[d];
    if (!fits)
      return ax_fail(AX_ESHAPE, "%s: sequences %s and values %s must agree in all dims but the last", q->name,
                     TEXT(s), TEXT(v));
  }
  q->compute = promoted(q, 0);
  if (ax_is_half(q->compute)) q->compute = AX_F32;
  if (q->compute == AX_BOOL) q->compute = AX_U8;
  if (!v) q->a.searchsorted.number = q->args->num[1];
  if (!v && !ax_is_float(q->compute) && !(fabs(q->a.searchsorted.number) <= 0x1p53))
    return ax_fail(AX_ERANGE, "%s: %g is no integer that a double holds exactly", q->name,
                   q->a.searchsorted.number);
  q->cast = q->contiguous = 1 | 2;
  out_like(q, 0, AX_I64, v ? v->ndim : 0, v ? v->shape : NULL);
  return AX_OK;
}

ax_status ax_infer_bucketize(ax_infer *q)
{
  ax_tensor *in[2] = { INPUT(1), INPUT(0) };
  if (in[0]->ndim != 1)
    return ax_fail(AX_ESHAPE, "bucketize: boundaries must have one dim, got %s", TEXT(in[0]));
  return ax_run(AX_OP_SEARCHSORTED,
                &(ax_args){ .n_in = 2,
                            .in = in,
                            .num = { 0, q->args->num[0] },
                            .a = AX_ATTRS(searchsorted, .right = q->a.bucketize.right) },
                q->result);
}

/* ---- sets: nothing is recorded, for positions and memberships have no gradient */

static ax_status two(ax_op op, ax_tensor *a, ax_tensor *b, const ax_attrs *attrs, ax_tensor **out)
{
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  const ax_status st =
      ax_run(op, &(ax_args){ .n_in = 2, .in = (ax_tensor *[]){ a, b }, .a = *attrs }, results);
  *out = results[0];
  return st;
}

static ax_status sorted_flat(ax_tensor *x, ax_tensor **values, ax_tensor **order)
{
  ax_tensor *flat = NULL, *results[AX_MAX_OUT] = { 0 };
  ax_status st;
  AX_TRY(run_list(AX_OP_RESHAPE, x, 1, &x->numel, &flat));
  AX_TRY(ax_run(AX_OP_SORT, &(ax_args){ .n_in = 1, .in = &flat, .a = { .n_list = -1 } }, results));
  *values = results[0];
  if (order) *order = results[1];
  else ax_tensor_release(results[1]);
out:
  ax_tensor_release(flat);
  return st;
}

/* Where in the sorted row a new element begins. */
static ax_status beginnings(ax_tensor *sorted, ax_tensor **out)
{
  const int64_t n = sorted->numel;
  ax_tensor *earlier = NULL, *later = NULL, *differs = NULL, *first = NULL, *mask = NULL,
            *results[AX_MAX_OUT] = { 0 };
  ax_status st;

  AX_TRY(run_narrow(sorted, 0, 0, n ? n - 1 : 0, &earlier));
  AX_TRY(run_narrow(sorted, 0, n ? 1 : 0, n ? n - 1 : 0, &later));
  AX_TRY(ax_run2(AX_OP_NE, earlier, later, &differs));
  AX_TRY(ax_tensor_new_on(sorted->device, AX_BOOL, 1, (int64_t[]){ n > 0 }, &first));
  AX_TRY(ax_fill(first, 1));
  AX_TRY(ax_run(AX_OP_CAT,
                &(ax_args){ .n_in = 2, .in = (ax_tensor *[]){ first, differs }, .a = { .n_list = -1 } },
                results));
  mask = results[0];
  st = ax_true_positions(mask, false, out);
out:
  ax_tensor_release(earlier), ax_tensor_release(later), ax_tensor_release(differs), ax_tensor_release(first),
      ax_tensor_release(mask);
  return st;
}

/* From where an element begins to where the next one does. */
static ax_status lengths(ax_tensor *begin, int64_t n, ax_tensor **out)
{
  ax_tensor *next = NULL, *end = NULL, *both = NULL, *results[AX_MAX_OUT] = { 0 };
  const int64_t u = begin->numel;
  ax_status st;

  AX_TRY(run_narrow(begin, 0, u > 0, u ? u - 1 : 0, &next));
  AX_TRY(ax_tensor_new_on(begin->device, AX_I64, 1, (int64_t[]){ u > 0 }, &end));
  AX_TRY(ax_fill(end, (double)n));
  AX_TRY(ax_run(AX_OP_CAT, &(ax_args){ .n_in = 2, .in = (ax_tensor *[]){ next, end }, .a = { .n_list = -1 } },
                results));
  both = results[0];
  st = ax_run2(AX_OP_SUB, both, begin, out);
out:
  ax_tensor_release(next), ax_tensor_release(end), ax_tensor_release(both);
  return st;
}

/* For each element of x the number of its value: the last beginning not behind its place in the
 * sorted row. */
static ax_status numbers_of(ax_tensor *x, ax_tensor *order, ax_tensor *begin, ax_tensor **out)
{
  ax_tensor *places = NULL, *behind = NULL, *number = NULL, *flat = NULL;
  ax_status st;

  AX_TRY(ax_tensor_new_on(x->device, AX_I64, 1, &x->numel, &places));
  if (x->numel)
    AX_TRY(ax_run_into(AX_OP_ARANGE, &(ax_args){ .a = AX_ATTRS(arange, .start = 0, .step = 1) }, places));
  AX_TRY(two(AX_OP_SEARCHSORTED, begin, places, &AX_ATTRS(searchsorted, .right = 1), &behind));
  AX_TRY(ax_run_num(AX_OP_SUB, behind, 1, &number));
  {
    ax_tensor *results[AX_MAX_OUT] = { 0 };
    AX_TRY(
        ax_run(AX_OP_SCATTER,
               &(ax_args){ .n_in = 3, .in = (ax_tensor *[]){ places, order, number }, .a = { .n_list = -1 } },
               results));
    flat = results[0];
  }
  st = run_list(AX_OP_VIEW, flat, x->ndim, x->shape, out);
  if (st == AX_OK) ax_view_own((*out)); /* nobody else sees what it is a view of */
out:
  ax_tensor_release(places), ax_tensor_release(behind), ax_tensor_release(number), ax_tensor_release(flat);
  return st;
}

ax_status ax_infer_unique(ax_infer *q)
{
  ax_tensor *plain = NULL, *sorted = NULL, *order = NULL, *begin = NULL, *made[3] = { 0 };
  int n = 1;
  ax_status st;

  AX_TRY(ax_tensor_alias(X, &plain));
  AX_TRY(sorted_flat(plain, &sorted, &order));
  AX_TRY(beginnings(sorted, &begin));
  AX_TRY(two(AX_OP_INDEX_SELECT, sorted, begin, &(ax_attrs){ .n_list = -1 }, &made[0]));
  if (q->a.unique.return_inverse) AX_TRY(numbers_of(plain, order, begin, &made[n++]));
  if (q->a.unique.return_counts) AX_TRY(lengths(begin, X->numel, &made[n++]));
  for (int k = 0; k < 3; k++) {
    q->result[k] = made[k];
    made[k] = NULL;
  }
out:
  ax_tensor_release(plain), ax_tensor_release(sorted), ax_tensor_release(order), ax_tensor_release(begin);
  for (int k = 0; k < 3; k++) ax_tensor_release(made[k]);
  return st;
}

ax_status ax_infer_isin(ax_infer *q)
{
  ax_tensor *x = NULL, *test = NULL, *sorted = NULL, *low = NULL, *high = NULL, *among = NULL, *itself = NULL;
  ax_status st;

  AX_TRY(ax_tensor_alias(X, &x));
  AX_TRY(ax_tensor_alias(INPUT(1), &test));
  AX_TRY(sorted_flat(test, &sorted, NULL));
  AX_TRY(two(AX_OP_SEARCHSORTED, sorted, x, &AX_ATTRS(searchsorted, .right = 0), &low));
  AX_TRY(two(AX_OP_SEARCHSORTED, sorted, x, &AX_ATTRS(searchsorted, .right = 1), &high));
  AX_TRY(ax_run2(AX_OP_LT, low, high, &among));
  AX_TRY(ax_run2(AX_OP_EQ, x, x, &itself)); /* NaN is in nothing */
  st = ax_run2(AX_OP_LOGICAL_AND, among, itself, &q->result[0]);
out:
  ax_tensor_release(x), ax_tensor_release(test), ax_tensor_release(sorted), ax_tensor_release(low),
      ax_tensor_release(high);
  ax_tensor_release(among), ax_tensor_release(itself);
  return st;
}

/* Rules and gradients of the products with sparse matrices.  The two rows are each other's
 * gradients, so that they can be differentiated any number of times. */
#include "core/ops/rule.h"

/* Does the plan fit a matrix of these rows and values? */
static ax_status check_plan(const ax_infer *q, const ax_tensor *plan, const char *what, int64_t rows,
                            int64_t count)
{
  const int64_t listed = plan->numel - rows - 1;
  const ax_status st = need_dtype(q, plan, AX_I64, what);
  if (st != AX_OK) return st;
  if (plan->ndim == 1 && (listed == count || listed == 2 * count)) return AX_OK;
  return ax_fail(AX_ESHAPE, "%s: %s %s does not fit %lld rows and %lld values", q->name, what, TEXT(plan),
                 (long long)rows, (long long)count);
}

static ax_status check_plans(const ax_infer *q, int64_t rows, int64_t columns, int64_t count)
{
  const ax_status st = check_plan(q, INPUT(2), "by_rows", rows, count);
  return st == AX_OK && INPUT(3) ? check_plan(q, INPUT(3), "by_columns", columns, count) : st;
}

/* Halves are multiplied and summed in float32, which is also the result's type: gradients of halves
 * come in float32. */
static ax_status check_operands(ax_infer *q, const ax_tensor *a, const ax_tensor *b, int dims)
{
  ax_status st = need_float(q, a);
  if (st == AX_OK) st = need_float(q, b);
  if (st != AX_OK) return st;
  if (a->ndim != dims || b->ndim != 2)
    return ax_fail(AX_ESHAPE, "%s: expected %d and 2 dims, got %s and %s", q->name, dims, TEXT(a), TEXT(b));
  q->compute = ax_dtype_promote((ax_dtype)a->dtype, (ax_dtype)b->dtype);
  if (ax_is_half(q->compute)) q->compute = AX_F32;
  q->cast = 3;
  return AX_OK;
}

ax_status ax_infer_sparse_product(ax_infer *q)
{
  const ax_tensor *values = INPUT(0), *dense = INPUT(1);
  const int64_t rows = q->a.sparse_product.rows;
  ax_status st;
  AX_TRY(check_operands(q, values, dense, 1));
  AX_TRY(need_within(q->name, "rows", rows, 0, INT32_MAX));
  AX_TRY(check_plans(q, rows, dense->shape[0], values->numel));
  q->contiguous = 15;
  out_like(q, 0, q->compute, 2, (int64_t[]){ rows, dense->shape[1] });
out:
  return st;
}

ax_status ax_infer_sparse_dots(ax_infer *q)
{
  const ax_tensor *a = INPUT(0), *b = INPUT(1);
  const int64_t count = q->a.sparse_dots.count;
  ax_status st;
  AX_TRY(check_operands(q, a, b, 2));
  AX_TRY(need_within(q->name, "count", count, 0, INT32_MAX));
  AX_TRY(check_plans(q, a->shape[0], b->shape[0], count));
  if (a->shape[1] != b->shape[1])
    AX_TRY(ax_fail(AX_ESHAPE, "%s: the rows of a %s and b %s differ in length", q->name, TEXT(a), TEXT(b)));
  q->contiguous = 15;
  out_like(q, 0, q->compute, 1, &count);
out:
  return st;
}

static ax_arg product(ax_grad *c, ax_arg values, ax_arg dense, ax_arg plan, ax_arg turned, int64_t rows)
{
  return call(c, AX_OP_SPARSE_PRODUCT, 4, (ax_arg[]){ values, dense, plan, turned },
              &AX_ATTRS(sparse_product, .rows = rows));
}

RULE(sparse_product)
{
  if (WANTS(0))
    give(c, 0,
         call(c, AX_OP_SPARSE_DOTS, 4, (ax_arg[]){ G, IN(1), IN(2), IN(3) },
              &AX_ATTRS(sparse_dots, .count = META(0)->shape[0])));
  if (WANTS(1)) give(c, 1, product(c, IN(0), G, IN(3), IN(2), META(1)->shape[0]));
}

RULE(sparse_dots)
{
  if (WANTS(0)) give(c, 0, product(c, G, IN(1), IN(2), IN(3), META(0)->shape[0]));
  if (WANTS(1)) give(c, 1, product(c, G, IN(0), IN(3), IN(2), META(1)->shape[0]));
}

/* Rules and gradients of products. */
#include "core/ops/rule.h"

#define X INPUT(0)

static ax_status same_dtype(const ax_infer *q, const ax_tensor *a, const ax_tensor *b)
{
  if (a->dtype == b->dtype && a->dtype != AX_BOOL) return AX_OK;
  if (a->dtype == b->dtype) return ax_fail(AX_EDTYPE, "%s: not defined for bool", q->name);
  return ax_fail(AX_EDTYPE, "%s: element types differ: %s %s x %s %s", q->name, TYPE(a), TEXT(a), TYPE(b), TEXT(b));
}

ax_status ax_infer_mm(ax_infer *q)
{
  const ax_tensor *a = INPUT(0), *b = INPUT(1);
  ax_status st;
  if (a->ndim != 2 || b->ndim != 2)
    return ax_fail(AX_ESHAPE, "mm: expected two matrices, got %s x %s; matmul takes stacks of them", TEXT(a), TEXT(b));
  if ((st = same_dtype(q, a, b)) != AX_OK) return st;
  if (a->shape[1] != b->shape[0]) return ax_fail(AX_ESHAPE, "mm: inner dimensions differ: %s x %s", TEXT(a), TEXT(b));
  out_like(q, 0, result_dtype(q, (ax_dtype)a->dtype), 2, (int64_t[]){ a->shape[0], b->shape[1] });
  return AX_OK;
}

ax_status ax_infer_bmm(ax_infer *q)
{
  const ax_tensor *a = INPUT(0), *b = INPUT(1);
  ax_status st;
  if (a->ndim != 3 || b->ndim != 3) return ax_fail(AX_ESHAPE, "bmm: expected two stacks of matrices, got %s x %s", TEXT(a), TEXT(b));
  if ((st = same_dtype(q, a, b)) != AX_OK) return st;
  if (a->shape[0] != b->shape[0]) return ax_fail(AX_ESHAPE, "bmm: stacks differ in length: %s x %s", TEXT(a), TEXT(b));
  if (a->shape[2] != b->shape[1]) return ax_fail(AX_ESHAPE, "bmm: inner dimensions differ: %s x %s", TEXT(a), TEXT(b));
  out_like(q, 0, result_dtype(q, (ax_dtype)a->dtype), 3, (int64_t[]){ a->shape[0], a->shape[1], b->shape[2] });
  return AX_OK;
}

ax_status ax_infer_linear(ax_infer *q)
{
  const ax_tensor *x = INPUT(0), *w = INPUT(1), *b = q->args->n_in > 2 ? INPUT(2) : NULL;
  int64_t shape[AX_MAX_DIMS];
  ax_status st;

  if (w->ndim != 2) return ax_fail(AX_ESHAPE, "linear: weight must be (out, in), got %s", TEXT(w));
  if (x->ndim < 1 || x->shape[x->ndim - 1] != w->shape[1])
    return ax_fail(AX_ESHAPE, "linear: input %s has %lld features, weight %s expects %lld", TEXT(x),
                   (long long)(x->ndim ? x->shape[x->ndim - 1] : 0), TEXT(w), (long long)w->shape[1]);
  if ((st = same_dtype(q, x, w)) != AX_OK) return st;
  if (b) {
    if (b->ndim != 1 || b->shape[0] != w->shape[0])
      return ax_fail(AX_ESHAPE, "linear: bias must be [%lld] for weight %s, got %s", (long long)w->shape[0], TEXT(w), TEXT(b));
    const bool mixed = b->dtype == AX_F32 && ax_is_half((ax_dtype)x->dtype); /* added before the result is rounded */
    if (!mixed && (st = same_dtype(q, x, b)) != AX_OK) return st;
  }
  memcpy(shape, x->shape, sizeof shape);
  shape[x->ndim - 1] = w->shape[0];
  q->contiguous = 1 | 4;
  out_like(q, 0, result_dtype(q, (ax_dtype)x->dtype), x->ndim, shape);
  return AX_OK;
}

/* ---- matmul: everything becomes one mm, bmm or product of stacks */

ax_status ax_infer_matmul_stacks(ax_infer *q)
{
  const ax_tensor *a = INPUT(0), *b = INPUT(1);
  int64_t shape[AX_MAX_DIMS], numel;
  size_t bytes;
  int n;
  ax_status st;

  if (a->ndim < 2 || b->ndim < 2) return ax_fail(AX_ESHAPE, "matmul: expected two stacks of matrices, got %s x %s", TEXT(a), TEXT(b));
  if ((st = same_dtype(q, a, b)) != AX_OK) return st;
  if (a->shape[a->ndim - 1] != b->shape[b->ndim - 2]) return ax_fail(AX_ESHAPE, "matmul: inner dimensions differ: %s x %s", TEXT(a), TEXT(b));
  if ((st = ax_shape_broadcast("matmul", a->ndim - 2, a->shape, b->ndim - 2, b->shape, &n, shape)) != AX_OK) return st;
  shape[n] = a->shape[a->ndim - 2];
  shape[n + 1] = b->shape[b->ndim - 1];
  if ((st = ax_shape_checked_bytes(n + 2, shape, ax_itemsize(a), &numel, &bytes)) != AX_OK) return st;
  out_like(q, 0, result_dtype(q, (ax_dtype)a->dtype), n + 2, shape);
  return AX_OK;
}

/* A stack times one matrix is one tall product. */
static ax_status matmul_tall(ax_tensor *a, ax_tensor *b, ax_tensor **out)
{
  ax_tensor *rows = NULL, *product = NULL;
  int64_t shape[AX_MAX_DIMS];
  ax_status st;

  memcpy(shape, a->shape, sizeof shape);
  shape[a->ndim - 1] = b->shape[1];
  AX_TRY(run_list(AX_OP_RESHAPE, a, 2, (int64_t[]){ a->shape[a->ndim - 1] ? a->numel / a->shape[a->ndim - 1] : ax_shape_numel(a->ndim - 1, a->shape),
                                                    a->shape[a->ndim - 1] }, &rows));
  AX_TRY(ax_run2(AX_OP_MM, rows, b, &product));
  st = run_list(AX_OP_VIEW, product, a->ndim, shape, out);
out:
  ax_tensor_release(rows), ax_tensor_release(product);
  return st;
}

ax_status ax_infer_matmul(ax_infer *q)
{
  ax_tensor *a = INPUT(0), *b = INPUT(1), *wide_a = NULL, *wide_b = NULL, *product = NULL, *less = NULL;
  ax_status st = AX_OK;

  if (a->ndim == 0 || b->ndim == 0) return ax_fail(AX_ESHAPE, "matmul: expected at least one dim on both sides, got %s x %s", TEXT(a), TEXT(b));
  if (a->dtype != b->dtype)
    return ax_fail(AX_EDTYPE, "matmul: element types differ: %s %s x %s %s", ax_dtype_name((ax_dtype)a->dtype), TEXT(a),
                   ax_dtype_name((ax_dtype)b->dtype), TEXT(b));
  if (a->shape[a->ndim - 1] != b->shape[b->ndim == 1 ? 0 : b->ndim - 2])
    return ax_fail(AX_ESHAPE, "matmul: inner dimensions differ: %s x %s", TEXT(a), TEXT(b));
  if (a->ndim == 2 && b->ndim == 2) return ax_run2(AX_OP_MM, a, b, &q->result[0]);
  /* a vector is a row on the left and a column on the right; its dim goes away again */
  if (a->ndim == 1) AX_TRY(run_ints(AX_OP_UNSQUEEZE, a, 0, 0, 0, 0, &wide_a));
  if (b->ndim == 1) AX_TRY(run_ints(AX_OP_UNSQUEEZE, b, 1, 0, 0, 0, &wide_b));
  if (wide_a) a = wide_a;
  if (wide_b) b = wide_b;
  if (b->ndim == 2) AX_TRY(matmul_tall(a, b, &product));
  else AX_TRY(ax_run2(a->ndim == 3 && b->ndim == 3 && a->shape[0] == b->shape[0] ? AX_OP_BMM : AX_OP_MATMUL_STACKS, a, b, &product));
  if (wide_b) {
    AX_TRY(run_list(AX_OP_SQUEEZE, product, 1, (int64_t[]){ product->ndim - 1 }, &less));
    ax_tensor_release(product);
    product = less;
    less = NULL;
  }
  if (wide_a) {
    AX_TRY(run_list(AX_OP_SQUEEZE, product, 1, (int64_t[]){ product->ndim - (wide_b ? 1 : 2) }, &less));
    ax_tensor_release(product);
    product = less;
  }
  q->result[0] = product;
  ax_view_own(product); /* of a product that nobody else sees */
  product = NULL;
out:
  ax_tensor_release(wide_a), ax_tensor_release(wide_b), ax_tensor_release(product);
  return st;
}

/* ---- gradients */

static ax_arg t(ax_grad *c, ax_arg x) { return with_ints(c, AX_OP_TRANSPOSE, x, 0, 1, 0, 0); }
static ax_arg flat_rows(ax_grad *c, ax_arg x) { return x.t && x.t->ndim == 2 ? x : with_list(c, AX_OP_RESHAPE, x, 2, (int64_t[]){ x.t ? ax_shape_numel(x.t->ndim - 1, x.t->shape) : 0, x.t ? x.t->shape[x.t->ndim - 1] : 0 }, 0); }

RULE(mm)
{
  if (WANTS(0)) give_product(c, 0, G, t(c, IN(1)));
  if (WANTS(1)) give_product(c, 1, t(c, IN(0)), G);
}

RULE(bmm)
{
  if (WANTS(0)) give(c, 0, bin(c, AX_OP_BMM, G, with_ints(c, AX_OP_TRANSPOSE, IN(1), 1, 2, 0, 0)));
  if (WANTS(1)) give(c, 1, bin(c, AX_OP_BMM, with_ints(c, AX_OP_TRANSPOSE, IN(0), 1, 2, 0, 0), G));
}

/* The matrices of a stack transposed. */
static ax_arg turned(ax_grad *c, ax_arg x)
{
  const int n = x.t ? x.t->ndim : 2;
  return with_ints(c, AX_OP_TRANSPOSE, x, n - 2, n - 1, 0, 0);
}

RULE(matmul_stacks) /* sums over broadcast stacks are the engine's */
{
  if (WANTS(0)) give(c, 0, bin(c, AX_OP_MATMUL_STACKS, G, turned(c, IN(1))));
  if (WANTS(1)) give(c, 1, bin(c, AX_OP_MATMUL_STACKS, turned(c, IN(0)), G));
}

RULE(linear) /* y = x w^T + b */
{
  const ax_arg g = flat_rows(c, G);
  if (WANTS(0)) give(c, 0, with_list(c, AX_OP_RESHAPE, bin(c, AX_OP_MM, g, IN(1)), META(0)->ndim, META(0)->shape, 0));
  if (WANTS(1)) give_product(c, 1, t(c, g), flat_rows(c, IN(0)));
  if (c->node->n_in > 2 && WANTS(2)) give_row_sum(c, 2, g);
}

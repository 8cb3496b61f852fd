/* Rules and gradients of products put together from mm, bmm and matmul. */
#include "core/ops/rule.h"

#define X INPUT(0)

/* ---- addmm, baddbmm: beta * input + alpha * (a x b) */

static ax_status check_number(const ax_infer *q, const char *what, double v)
{
  if (ax_is_float((ax_dtype)INPUT(1)->dtype) || v == floor(v)) return AX_OK;
  return ax_fail(AX_EDTYPE, "%s: %s %g does not fit tensors of %s", q->name, what, v, TYPE(INPUT(1)));
}

static ax_status scale(ax_tensor *x, double v)
{
  ax_tensor *in[2] = { x, NULL };
  const ax_args args = { .n_in = 2,
                         .in = in,
                         .scalars = 2,
                         .integral = v == floor(v) ? 2 : 0,
                         .num = { 0, v },
                         .a = { .n_list = -1 } };
  return v == 1 ? AX_OK : ax_run_inplace(AX_OP_MUL, &args, x);
}

/* The product is added to what the result holds already, which saves a pass over it; alpha goes to
 * the smaller factor. */
ax_status ax_infer_addmm(ax_infer *q)
{
  const ax_op op = q->op == AX_OP_ADDMM ? AX_OP_MM : AX_OP_BMM;
  ax_tensor *input = X, *a = INPUT(1), *b = INPUT(2), *out = NULL, *scaled = NULL;
  const double beta = q->a.addmm.beta, alpha = q->a.addmm.alpha;
  ax_infer product = { .op = op,
                       .name = q->name,
                       .args = &(ax_args){ .n_in = 2, .in = (ax_tensor *[]){ a, b } },
                       .a = { .n_list = -1 } };
  int64_t shape[AX_MAX_DIMS];
  int ndim;
  ax_status st;

  AX_TRY(ax_op_impls[op].infer(&product));
  AX_TRY(check_number(q, "beta", beta));
  AX_TRY(check_number(q, "alpha", alpha));
  const ax_meta *m = &product.out[0];
  if (input->dtype != a->dtype) {
    st = ax_fail(AX_EDTYPE, "%s: input is %s, the matrices are %s", q->name, TYPE(input), TYPE(a));
    goto out;
  }
  AX_TRY(ax_shape_broadcast(q->name, m->ndim, m->shape, input->ndim, input->shape, &ndim, shape));
  if (ndim != m->ndim || memcmp(shape, m->shape, sizeof *shape * (size_t)ndim) != 0) {
    st = ax_fail(AX_ESHAPE, "%s: input %s does not fit the product's shape %s", q->name, TEXT(input),
                 ax_shape_text(m->ndim, m->shape, (char[AX_SHAPE_TEXT]){ 0 }, AX_SHAPE_TEXT));
    goto out;
  }
  AX_TRY(ax_tensor_new_on(a->device, (ax_dtype)a->dtype, m->ndim, m->shape, &out));
  if (beta == 0) AX_TRY(ax_fill(out, 0)); /* whatever the input holds, NaN too */
  else {
    AX_TRY(ax_copy(out, input));
    AX_TRY(scale(out, beta));
  }
  if (alpha != 1) {
    ax_tensor **smaller = a->numel <= b->numel ? &a : &b;
    AX_TRY(ax_run_num(AX_OP_MUL, *smaller, alpha, &scaled));
    *smaller = scaled;
  }
  if (a->numel && b->numel)
    AX_TRY(ax_run_into(op,
                       &(ax_args){ .n_in = 2,
                                   .in = (ax_tensor *[]){ a, b },
                                   .a = { .n_list = -1, .accumulate = true } },
                       out));
  q->result[0] = out;
  out = NULL;
out:
  ax_tensor_release(out), ax_tensor_release(scaled);
  return st;
}

static ax_arg times(ax_grad *c, ax_arg x, double v) { return v == 1 ? x : mul(c, x, NUM(v)); }
static ax_arg turned(ax_grad *c, ax_arg x)
{
  const int n = x.t ? x.t->ndim : 2;
  return transpose(c, x, n - 2, n - 1);
}

RULE(addmm)
{
  const ax_op op = c->node->op == AX_OP_ADDMM ? AX_OP_MM : AX_OP_BMM;
  const double beta = A->addmm.beta, alpha = A->addmm.alpha;
  if (WANTS(0)) give(c, 0, times(c, G, beta));
  if (!WANTS(1) && !WANTS(2)) return;
  const ax_arg g = times(c, G, alpha);
  if (WANTS(1)) give(c, 1, bin(c, op, g, turned(c, IN(2))));
  if (WANTS(2)) give(c, 2, bin(c, op, turned(c, IN(1)), g));
}

ax_status ax_infer_addmv(ax_infer *q)
{
  ax_tensor *input = X, *mat = INPUT(1), *vec = INPUT(2), *tall = NULL, *column = NULL, *wide = NULL,
            *results[AX_MAX_OUT] = { 0 };
  ax_status st;

  if (mat->ndim != 2 || vec->ndim != 1 || input->ndim > 1)
    return ax_fail(AX_ESHAPE, "addmv: expected a vector + a matrix x a vector, got %s + %s x %s", TEXT(input),
                   TEXT(mat), TEXT(vec));
  AX_TRY(run_unsqueeze(vec, 1, &column));
  AX_TRY(run_unsqueeze(input, input->ndim, &wide));
  AX_TRY(ax_run(AX_OP_ADDMM,
                &(ax_args){ .n_in = 3,
                            .in = (ax_tensor *[]){ wide, mat, column },
                            .a = AX_ATTRS(addmm, .beta = q->a.addmv.beta, .alpha = q->a.addmv.alpha) },
                results));
  tall = results[0];
  AX_TRY(run_list(AX_OP_SQUEEZE, tall, 1, (int64_t[]){ 1 }, &q->result[0]));
  ax_view_own(q->result[0]); /* nothing else refers to the product */
out:
  ax_tensor_release(tall), ax_tensor_release(column), ax_tensor_release(wide);
  return st;
}

ax_status ax_infer_mv(ax_infer *q)
{
  if (X->ndim != 2 || INPUT(1)->ndim != 1)
    return ax_fail(AX_ESHAPE, "mv: expected a matrix and a vector, got %s x %s", TEXT(X), TEXT(INPUT(1)));
  return ax_run2(AX_OP_MATMUL, X, INPUT(1), &q->result[0]);
}

ax_status ax_infer_dot(ax_infer *q)
{
  const ax_tensor *b = INPUT(1);
  if (X->ndim != 1 || b->ndim != 1)
    return ax_fail(AX_ESHAPE, "dot: expected two vectors, got %s and %s", TEXT(X), TEXT(b));
  if (X->dtype != b->dtype || X->dtype == AX_BOOL)
    return ax_fail(AX_EDTYPE, "dot: expected vectors of one numeric type, got %s and %s", TYPE(X), TYPE(b));
  if (X->numel != b->numel)
    return ax_fail(AX_ESHAPE, "dot: the vectors differ in length: %s and %s", TEXT(X), TEXT(b));
  out_like(q, 0, (ax_dtype)X->dtype, 0, NULL);
  return AX_OK;
}

RULE(dot)
{
  if (WANTS(0)) give(c, 0, mul(c, G, IN(1)));
  if (WANTS(1)) give(c, 1, mul(c, G, IN(0)));
}

ax_status ax_infer_outer(ax_infer *q)
{
  ax_tensor *column = NULL;
  ax_status st;
  if (X->ndim != 1 || INPUT(1)->ndim != 1)
    return ax_fail(AX_ESHAPE, "outer: expected two vectors, got %s and %s", TEXT(X), TEXT(INPUT(1)));
  AX_TRY(run_unsqueeze(X, 1, &column));
  st = ax_run2(AX_OP_MUL, column, INPUT(1), &q->result[0]);
out:
  ax_tensor_release(column);
  return st;
}

ax_status ax_infer_trace(ax_infer *q)
{
  ax_tensor *diagonal = NULL;
  ax_status st;
  if (X->ndim != 2) return ax_fail(AX_ESHAPE, "trace: expected a matrix, got %s", TEXT(X));
  AX_TRY(run_with(AX_OP_DIAGONAL, X, &AX_ATTRS(diagonal, .offset = 0, .dim1 = 0, .dim2 = 1), &diagonal));
  st = run_list(AX_OP_SUM, diagonal, -1, NULL, &q->result[0]);
out:
  ax_tensor_release(diagonal);
  return st;
}

ax_status ax_infer_tensordot(ax_infer *q)
{
  ax_tensor *a = X, *b = INPUT(1), *rows = NULL, *cols = NULL, *product = NULL;
  const int64_t n = q->a.tensordot.dims;
  int64_t shape[2 * AX_MAX_DIMS], m = 1, k = 1, w = 1;
  int at = 0;
  ax_status st;

  if (n < 0 || n > a->ndim || n > b->ndim)
    return ax_fail(AX_ERANGE, "tensordot: %s and %s do not both have %lld dims", TEXT(a), TEXT(b),
                   (long long)n);
  for (int d = 0; d < a->ndim - n; d++) m *= shape[at++] = a->shape[d];
  for (int d = 0; d < n; d++) {
    if (a->shape[a->ndim - n + d] != b->shape[d])
      return ax_fail(AX_ESHAPE, "tensordot: the last %lld dims of %s are not the first of %s", (long long)n,
                     TEXT(a), TEXT(b));
    k *= b->shape[d];
  }
  for (int d = (int)n; d < b->ndim; d++) w *= shape[at++] = b->shape[d];
  if (at > AX_MAX_DIMS)
    return ax_fail(AX_ESHAPE, "tensordot: the result of %s and %s would have %d dims, at most %d are there",
                   TEXT(a), TEXT(b), at, AX_MAX_DIMS);
  AX_TRY(run_list(AX_OP_RESHAPE, a, 2, (int64_t[]){ m, k }, &rows));
  AX_TRY(run_list(AX_OP_RESHAPE, b, 2, (int64_t[]){ k, w }, &cols));
  AX_TRY(ax_run2(AX_OP_MM, rows, cols, &product));
  AX_TRY(run_list(AX_OP_VIEW, product, at, shape, &q->result[0]));
  ax_view_own(q->result[0]);
out:
  ax_tensor_release(rows), ax_tensor_release(cols), ax_tensor_release(product);
  return st;
}

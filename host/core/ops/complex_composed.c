/* Rows of complex operands that are put together of other rows, mostly over the parts; what each
 * computes stands in complex_composed.h. */
#include "core/ops/complex_composed.h"

#include "core/ops/rule.h"

#define X INPUT(0)

/* Rows of two tensors that are linear in each: four real products. */
ax_status ax_complex_bilinear(ax_infer *q)
{
  ax_tensor *p[2][2] = { 0 }, *product[2][2] = { 0 }, *parts[2] = { 0 }, *results[AX_MAX_OUT];
  ax_status st = AX_OK;

  memset(results, 0, sizeof results);
  for (int k = 0; k < 2; k++)
    for (int i = 0; i < 2; i++) {
      if (ax_complex_is(INPUT(k))) AX_TRY(ax_complex_part(INPUT(k), i, &p[k][i]));
      else if (i == 0) p[k][0] = ax_tensor_retain(INPUT(k));
    }
  if (p[0][0]->dtype != p[1][0]->dtype || !p[0][1] || !p[1][1]) {
    st = ax_fail(AX_EDTYPE, "%s: element types differ: %s %s x %s %s", q->name, TYPE(X), TEXT(X),
                 TYPE(INPUT(1)), TEXT(INPUT(1)));
    goto out;
  }
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) {
      const ax_args args = { .n_in = 2, .in = (ax_tensor *[]){ p[0][i], p[1][j] }, .a = q->a };
      AX_TRY(ax_run(q->op, &args, results));
      product[i][j] = results[0];
    }
  AX_TRY(ax_run2(AX_OP_SUB, product[0][0], product[1][1], &parts[0]));
  AX_TRY(ax_run2(AX_OP_ADD, product[0][1], product[1][0], &parts[1]));
  st = ax_complex_join(parts[0], parts[1], &q->result[0]);
out:
  for (int k = 0; k < 4; k++) {
    ax_tensor_release(p[k / 2][k % 2]);
    ax_tensor_release(product[k / 2][k % 2]);
  }
  ax_tensor_release(parts[0]), ax_tensor_release(parts[1]);
  return st;
}

static ax_status reshaped(ax_tensor *x, int n, const int64_t *shape, ax_tensor **out)
{
  return run_list(AX_OP_RESHAPE, x, n, shape, out);
}

/* x + alpha b, b of x's type. */
static ax_status plus_scaled(const ax_infer *q, ax_tensor *x, ax_tensor *b, double alpha, ax_tensor **out)
{
  ax_tensor *scaled = NULL;
  ax_status st;
  if (b->dtype != x->dtype)
    return ax_fail(AX_EDTYPE, "%s: element types differ: %s %s and %s %s", q->name, TYPE(x), TEXT(x), TYPE(b),
                   TEXT(b));
  if (alpha == 1) return ax_run2(AX_OP_ADD, x, b, out);
  AX_TRY(ax_run_num(AX_OP_MUL, b, alpha, &scaled));
  st = ax_run2(AX_OP_ADD, x, scaled, out);
out:
  ax_tensor_release(scaled);
  return st;
}

/* x w^T + bias; the row's rule checks types and shapes. */
ax_status ax_complex_linear_rows(ax_infer *q)
{
  ax_infer checked = *q;
  ax_tensor *turned = NULL, *product = NULL;
  ax_status st;

  AX_TRY(ax_op_impls[q->op].infer(&checked));
  AX_TRY(run_transpose(INPUT(1), 0, 1, &turned));
  AX_TRY(ax_run2(AX_OP_MATMUL, X, turned, &product));
  if (q->args->n_in > 2 && INPUT(2)) st = ax_run2(AX_OP_ADD, product, INPUT(2), &q->result[0]);
  else {
    q->result[0] = product;
    product = NULL;
  }
out:
  ax_tensor_release(turned), ax_tensor_release(product);
  return st;
}

/* Zeros like x, whatever it holds, with a gradient of 0 for it. */
static ax_status nothing_of(ax_tensor *x, ax_tensor **out)
{
  ax_tensor *all = NULL, *results[AX_MAX_OUT] = { 0 };
  ax_status st;
  AX_TRY(ax_tensor_new_on(x->device, AX_BOOL, x->ndim, x->shape, &all));
  AX_TRY(ax_fill(all, 1));
  st = ax_run(AX_OP_MASKED_FILL,
              &(ax_args){ .n_in = 2, .in = (ax_tensor *[]){ x, all }, .a = { .n_list = -1 } }, results);
  *out = results[0];
out:
  ax_tensor_release(all);
  return st;
}

/* beta input + alpha a b */
ax_status ax_complex_add_product(ax_infer *q)
{
  const double beta = q->a.addmm.beta, alpha = q->a.addmm.alpha;
  ax_tensor *product = NULL, *scaled = NULL, *none = NULL;
  ax_status st;

  AX_TRY(ax_run2(q->op == AX_OP_ADDMM ? AX_OP_MM : AX_OP_BMM, INPUT(1), INPUT(2), &product));
  if (alpha != 1) {
    AX_TRY(ax_run_num(AX_OP_MUL, product, alpha, &scaled));
    ax_tensor_release(product);
    product = scaled;
    scaled = NULL;
  }
  if (beta == 0) AX_TRY(nothing_of(X, &none));
  AX_TRY(plus_scaled(q, product, none ? none : X, none ? 1 : beta, &scaled));
  if (ax_same_shape(scaled, product->ndim, product->shape)) q->result[0] = ax_tensor_retain(scaled);
  else
    st = ax_fail(AX_ESHAPE, "%s: input %s does not fit the product's shape %s", q->name, TEXT(X),
                 TEXT(product));
out:
  ax_tensor_release(product), ax_tensor_release(scaled), ax_tensor_release(none);
  return st;
}

/* A convolution of the parts, and the bias, one number for each channel. */
ax_status ax_complex_convolve(ax_infer *q)
{
  ax_tensor *const bias = q->args->n_in > 2 ? INPUT(2) : NULL, *tall = NULL, *sums = NULL;
  const int dims = INPUT(1)->ndim - 2;
  const ax_args plain = { .n_in = 2, .in = q->args->in, .a = q->a };
  ax_infer product = *q;
  int64_t shape[AX_MAX_DIMS];
  ax_status st;

  product.args = &plain;
  AX_TRY(ax_complex_bilinear(&product));
  if (!bias) return st;
  sums = q->result[0];
  q->result[0] = NULL;
  if (bias->ndim != 1 || dims < 1 || sums->ndim <= dims ||
      bias->shape[0] != sums->shape[sums->ndim - 1 - dims]) {
    st = ax_fail(AX_ESHAPE, "%s: bias %s does not fit weight %s", q->name, TEXT(bias), TEXT(INPUT(1)));
    goto out;
  }
  shape[0] = bias->shape[0];
  for (int d = 1; d <= dims; d++) shape[d] = 1;
  AX_TRY(reshaped(bias, dims + 1, shape, &tall));
  st = plus_scaled(q, sums, tall, 1, &q->result[0]);
out:
  ax_tensor_release(tall), ax_tensor_release(sums);
  return st;
}

/* Logic, counts and positions: of whether numbers are not 0. */
ax_status ax_complex_of_truth(ax_infer *q)
{
  ax_tensor *in[AX_MAX_INPUTS], *own[AX_MAX_INPUTS] = { 0 };
  ax_args args = *q->args;
  ax_status st = AX_OK;

  args.in = in;
  for (int k = 0; k < args.n_in; k++) {
    in[k] = q->args->in[k];
    if (!ax_complex_is(in[k])) continue;
    AX_TRY(ax_run_num(AX_OP_NE, in[k], 0, &own[k]));
    in[k] = own[k];
  }
  st = ax_run(q->op, &args, q->result);
out:
  for (int k = 0; k < AX_MAX_INPUTS; k++) ax_tensor_release(own[k]);
  return st;
}

/* Variances of the parts are added; a deviation is the length of both. */
ax_status ax_complex_spread_of_parts(ax_infer *q)
{
  ax_tensor *row = NULL, *pairs = NULL, *results[AX_MAX_OUT] = { 0 };
  const bool var = q->op == AX_OP_VAR;
  ax_attrs a = q->a;
  ax_status st;

  if (X->ndim == 0) {
    AX_TRY(reshaped(X, 1, (int64_t[]){ 1 }, &row));
    a.reduction.keepdim = false;
    a.n_list = -1;
  } else row = ax_tensor_retain(X);
  AX_TRY(ax_complex_all_but_pairs(q, row, &a));
  AX_TRY(ax_run1(AX_OP_VIEW_AS_REAL, row, &pairs));
  AX_TRY(ax_run(q->op, &(ax_args){ .n_in = 1, .in = &pairs, .a = a }, results));
  ax_tensor *const apart = results[0];
  ax_attrs last = { .n_list = 1, .list = { apart->ndim - 1 } };
  if (!var) last.norm.p = 2;
  results[0] = NULL;
  st = ax_run(var ? AX_OP_SUM : AX_OP_NORM,
              &(ax_args){ .n_in = 1, .in = (ax_tensor *[]){ apart }, .a = last }, results);
  q->result[0] = results[0];
  ax_tensor_release(apart);
out:
  ax_tensor_release(row), ax_tensor_release(pairs);
  return st;
}

/* The largest real part m over the row's dims; 0 in place of what is infinite. */
static ax_status largest_real(const ax_infer *q, bool keepdim, ax_tensor **out)
{
  ax_tensor *re = NULL, *most = NULL, *odd = NULL, *results[AX_MAX_OUT] = { 0 };
  ax_attrs a = { .n_list = q->a.n_list };
  const bool former = ax_grad_set_enabled(false);
  ax_status st;

  memcpy(a.list, q->a.list, sizeof a.list);
  a.amax.keepdim = keepdim;
  AX_TRY(ax_complex_part(X, 0, &re));
  AX_TRY(ax_run(AX_OP_AMAX, &(ax_args){ .n_in = 1, .in = &re, .a = a }, results));
  most = results[0];
  results[0] = NULL;
  AX_TRY(ax_run1(AX_OP_ISINF, most, &odd));
  st = ax_run(AX_OP_MASKED_FILL,
              &(ax_args){ .n_in = 2, .in = (ax_tensor *[]){ most, odd }, .a = { .n_list = -1 } }, results);
  *out = results[0];
out:
  ax_grad_set_enabled(former);
  ax_tensor_release(re), ax_tensor_release(most), ax_tensor_release(odd);
  return st;
}

/* m + log(sum(exp(x - m))) */
ax_status ax_complex_log_of_sums(ax_infer *q)
{
  ax_tensor *most = NULL, *off = NULL, *powers = NULL, *sum = NULL, *log = NULL, *results[AX_MAX_OUT] = { 0 };
  ax_status st;

  AX_TRY(largest_real(q, true, &most));
  AX_TRY(ax_run2(AX_OP_SUB, X, most, &off));
  AX_TRY(ax_run1(AX_OP_EXP, off, &powers));
  AX_TRY(ax_run(AX_OP_SUM, &(ax_args){ .n_in = 1, .in = &powers, .a = q->a }, results));
  sum = results[0];
  AX_TRY(ax_run1(AX_OP_LOG, sum, &log));
  ax_tensor_release(most);
  most = NULL;
  AX_TRY(largest_real(q, q->a.reduction.keepdim, &most));
  st = ax_run2(AX_OP_ADD, log, most, &q->result[0]);
out:
  ax_tensor_release(most), ax_tensor_release(off), ax_tensor_release(powers), ax_tensor_release(sum),
      ax_tensor_release(log);
  return st;
}

/* log(exp(a) + exp(b)) = a + log1p(exp(b - a)), where a has the larger real part. */
ax_status ax_complex_log_of_two(ax_infer *q)
{
  ax_tensor *re[2] = { 0 }, *first = NULL, *pair[2] = { 0 }, *off = NULL, *power = NULL, *rest = NULL,
            *results[AX_MAX_OUT] = { 0 };
  ax_status st = AX_OK;

  for (int k = 0; k < 2; k++) {
    if (ax_complex_is(INPUT(k))) AX_TRY(ax_complex_part(INPUT(k), 0, &re[k]));
    else if (INPUT(k)) re[k] = ax_tensor_retain(INPUT(k));
    else return ax_complex_refused(q->op, q->args);
  }
  AX_TRY(ax_run2(AX_OP_GE, re[0], re[1], &first));
  for (int k = 0; k < 2; k++) {
    AX_TRY(ax_run(AX_OP_WHERE,
                  &(ax_args){ .n_in = 3,
                              .in = (ax_tensor *[]){ first, INPUT(k), INPUT(1 - k) },
                              .a = { .n_list = -1 } },
                  results));
    pair[k] = results[0];
  }
  AX_TRY(ax_run2(AX_OP_SUB, pair[1], pair[0], &off));
  AX_TRY(ax_run1(AX_OP_EXP, off, &power));
  AX_TRY(ax_run1(AX_OP_LOG1P, power, &rest));
  st = ax_run2(AX_OP_ADD, pair[0], rest, &q->result[0]);
out:
  for (int k = 0; k < 2; k++) ax_tensor_release(re[k]), ax_tensor_release(pair[k]);
  ax_tensor_release(first), ax_tensor_release(off), ax_tensor_release(power), ax_tensor_release(rest);
  return st;
}

ax_status ax_complex_times_sigmoid(ax_infer *q)
{
  ax_tensor *s = NULL;
  ax_status st = ax_run1(AX_OP_SIGMOID, X, &s);
  if (st == AX_OK) st = ax_run2(AX_OP_MUL, X, s, &q->result[0]);
  ax_tensor_release(s);
  return st;
}

/* The mean, the sum or each of |input - target|. */
ax_status ax_complex_distance(ax_infer *q)
{
  const int64_t reduction = q->a.l1_loss.reduction; /* mean, sum, none */
  ax_tensor *off = NULL, *size = NULL;
  ax_status st;

  AX_TRY(ax_run2(AX_OP_SUB, X, INPUT(1), &off));
  AX_TRY(ax_run1(AX_OP_ABS, off, &size));
  if (reduction == 2) q->result[0] = ax_tensor_retain(size);
  else st = run_list(reduction ? AX_OP_SUM : AX_OP_MEAN, size, -1, NULL, &q->result[0]);
out:
  ax_tensor_release(off), ax_tensor_release(size);
  return st;
}

/* isnan and isinf where one part is, isfinite where both are. */
ax_status ax_complex_of_parts(ax_infer *q)
{
  ax_tensor *pairs = NULL, *found = NULL;
  ax_status st;
  AX_TRY(ax_run1(AX_OP_VIEW_AS_REAL, X, &pairs));
  AX_TRY(ax_run1(q->op, pairs, &found));
  st = run_list(q->op == AX_OP_ISFINITE ? AX_OP_ALL : AX_OP_ANY, found, 1, (int64_t[]){ pairs->ndim - 1 },
                &q->result[0]);
out:
  ax_tensor_release(pairs), ax_tensor_release(found);
  return st;
}

/* The row of |x|. */
ax_status ax_complex_of_size(ax_infer *q)
{
  ax_tensor *size = NULL, *results[AX_MAX_OUT] = { 0 };
  ax_status st;
  AX_TRY(ax_run1(AX_OP_ABS, X, &size));
  st = ax_run(q->op, &(ax_args){ .n_in = 1, .in = &size, .a = q->a }, results);
  q->result[0] = results[0];
out:
  ax_tensor_release(size);
  return st;
}

/* One draw for each number, not for each part. */
ax_status ax_complex_drop(ax_infer *q)
{
  ax_tensor *ones = NULL, *factors = NULL, *results[AX_MAX_OUT] = { 0 };
  ax_status st = AX_OK;

  if (!q->a.dropout.training || q->a.dropout.p == 0) return ax_op_impls[q->op].infer(q);
  AX_TRY(ax_tensor_new_on(X->device, ax_part_dtype((ax_dtype)X->dtype), X->ndim, X->shape, &ones));
  AX_TRY(ax_fill(ones, 1));
  AX_TRY(ax_run(q->op, &(ax_args){ .n_in = 1, .in = &ones, .a = q->a }, results));
  factors = results[0];
  st = ax_run2(AX_OP_MUL, X, factors, &q->result[0]);
out:
  ax_tensor_release(ones), ax_tensor_release(factors);
  return st;
}

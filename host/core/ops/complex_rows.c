/* What rows make of complex operands: which take them at all, and rows that have no complex kernel
 * but are put together of others, mostly over the parts.  Those need no gradient rule of their
 * own: see complex.c. */
#include "core/ops/complex.h"

#include "core/ops/rule.h"

#define X INPUT(0)

static bool is_complex(const ax_tensor *t) { return t && ax_is_complex((ax_dtype)t->dtype); }

/* ---- rows that are put together of others */

/* The row over the pairs: it acts on real and imaginary parts alike, along dims counted from the
 * front. */
static ax_status over_pairs(ax_infer *q, const ax_attrs *a, uint32_t complex_inputs)
{
  ax_tensor *in[AX_MAX_INPUTS], *own[AX_MAX_INPUTS] = { 0 }, *results[AX_MAX_OUT] = { 0 };
  ax_args args = *q->args;
  ax_status st = AX_OK;

  for (int k = 0; k < args.n_in; k++) {
    in[k] = args.in[k];
    if (!in[k] || !(complex_inputs >> k & 1)) continue;
    AX_TRY(ax_run1(AX_OP_VIEW_AS_REAL, in[k], &own[k]));
    in[k] = own[k];
  }
  args.in = in;
  args.a = *a;
  AX_TRY(ax_run(q->op, &args, results));
  ax_tensor *pairs = results[0];
  if (pairs->numel && pairs->strides[pairs->ndim - 1] != 1) {
    AX_TRY(ax_contiguous(pairs, &results[1]));
    pairs = results[1];
  }
  st = ax_run1(AX_OP_VIEW_AS_COMPLEX, pairs, &q->result[0]);
  if (st == AX_OK) ax_view_own(q->result[0]);
out:
  for (int k = 0; k < AX_MAX_INPUTS; k++) ax_tensor_release(own[k]);
  for (int k = 0; k < AX_MAX_OUT; k++) ax_tensor_release(results[k]);
  return st;
}

/* Makes a's list all dims of x where it names none: those that its pairs have, but for the last. */
static ax_status all_but_pairs(const ax_infer *q, const ax_tensor *x, ax_attrs *a)
{
  if (a->n_list <= 0) {
    a->n_list = x->ndim;
    for (int d = 0; d < x->ndim; d++) a->list[d] = d;
  }
  for (int k = 0; k < a->n_list; k++)
    if (a->list[k] < 0 || a->list[k] >= x->ndim)
      return ax_fail(AX_ERANGE, "%s: dim %lld is outside 1..%d", q->name, (long long)a->list[k] + 1, x->ndim);
  return AX_OK;
}

static ax_status reduce_pairs(ax_infer *q)
{
  ax_attrs a = q->a;
  if (X->ndim == 0) { /* a sum or mean of one number */
    q->result[0] = ax_tensor_retain(X);
    return AX_OK;
  }
  const ax_status st = all_but_pairs(q, X, &a);
  return st == AX_OK ? over_pairs(q, &a, 1) : st;
}

static ax_status keep_pairs(ax_infer *q)
{
  uint32_t complex_inputs = 0;
  for (int k = 0; k < q->args->n_in; k++) complex_inputs |= (uint32_t)is_complex(INPUT(k)) << k;
  return over_pairs(q, &q->a, complex_inputs);
}

/* Running sums.  The one dim that a tensor of no dims seems to have is not that of the parts. */
static ax_status running_pairs(ax_infer *q)
{
  return X->ndim == 0 ? ax_run1(AX_OP_CLONE, X, &q->result[0]) : keep_pairs(q);
}

/* Margins are listed from the last dim on: the pairs get none. */
static ax_status pad_pairs(ax_infer *q)
{
  ax_attrs a = q->a;
  if (a.n_list + 2 > AX_MAX_DIMS)
    return ax_fail(AX_EINVAL, "pad: margins of at most %d dims of a complex tensor", AX_MAX_DIMS / 2 - 1);
  memmove(a.list + 2, a.list, sizeof *a.list * (size_t)a.n_list);
  a.list[0] = a.list[1] = 0;
  a.n_list += 2;
  return over_pairs(q, &a, 1);
}

/* The row over the real parts, then over the imaginary ones, for rows that are linear in what is
 * complex.  A number that they write has no imaginary part. */
static ax_status each_part(ax_infer *q)
{
  ax_tensor *in[AX_MAX_INPUTS], *own[AX_MAX_INPUTS] = { 0 }, *parts[2] = { 0 }, *results[AX_MAX_OUT] = { 0 };
  ax_args args = *q->args;
  ax_status st = AX_OK;

  args.in = in;
  for (int i = 0; i < 2; i++) {
    for (int k = 0; k < args.n_in; k++) {
      in[k] = q->args->in[k];
      if (is_complex(in[k])) {
        AX_TRY(ax_complex_part(in[k], i, &own[k]));
        in[k] = own[k];
      } else if (in[k] && ax_is_float((ax_dtype)in[k]->dtype)) {
        st = ax_fail(AX_EDTYPE, "%s: element types differ: %s %s and %s %s", q->name, TYPE(X), TEXT(X),
                     TYPE(in[k]), TEXT(in[k]));
        goto out;
      }
    }
    if (i == 1) {
      memset(args.num, 0, sizeof args.num);
      if (q->op == AX_OP_INDEX_FILL) args.a.index_fill.value = 0;
    }
    AX_TRY(ax_run(q->op, &args, results));
    parts[i] = results[0];
    for (int k = 0; k < args.n_in; k++) {
      ax_tensor_release(own[k]);
      own[k] = NULL;
    }
  }
  st = ax_complex_join(parts[0], parts[1], &q->result[0]);
out:
  for (int k = 0; k < AX_MAX_INPUTS; k++) ax_tensor_release(own[k]);
  ax_tensor_release(parts[0]), ax_tensor_release(parts[1]);
  return st;
}

/* Rows of two tensors that are linear in each: four real products. */
static ax_status bilinear(ax_infer *q)
{
  ax_tensor *p[2][2] = { 0 }, *product[2][2] = { 0 }, *parts[2] = { 0 }, *results[AX_MAX_OUT];
  ax_status st = AX_OK;

  memset(results, 0, sizeof results);
  for (int k = 0; k < 2; k++)
    for (int i = 0; i < 2; i++) {
      if (is_complex(INPUT(k))) AX_TRY(ax_complex_part(INPUT(k), i, &p[k][i]));
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
static ax_status linear_rows(ax_infer *q)
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
static ax_status add_product(ax_infer *q)
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
static ax_status convolve(ax_infer *q)
{
  ax_tensor *const bias = q->args->n_in > 2 ? INPUT(2) : NULL, *tall = NULL, *sums = NULL;
  const int dims = INPUT(1)->ndim - 2;
  const ax_args plain = { .n_in = 2, .in = q->args->in, .a = q->a };
  ax_infer product = *q;
  int64_t shape[AX_MAX_DIMS];
  ax_status st;

  product.args = &plain;
  AX_TRY(bilinear(&product));
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
static ax_status of_truth(ax_infer *q)
{
  ax_tensor *in[AX_MAX_INPUTS], *own[AX_MAX_INPUTS] = { 0 };
  ax_args args = *q->args;
  ax_status st = AX_OK;

  args.in = in;
  for (int k = 0; k < args.n_in; k++) {
    in[k] = q->args->in[k];
    if (!is_complex(in[k])) continue;
    AX_TRY(ax_run_num(AX_OP_NE, in[k], 0, &own[k]));
    in[k] = own[k];
  }
  st = ax_run(q->op, &args, q->result);
out:
  for (int k = 0; k < AX_MAX_INPUTS; k++) ax_tensor_release(own[k]);
  return st;
}

/* Variances of the parts are added; a deviation is the length of both. */
static ax_status spread_of_parts(ax_infer *q)
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
  AX_TRY(all_but_pairs(q, row, &a));
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
static ax_status log_of_sums(ax_infer *q)
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
static ax_status log_of_two(ax_infer *q)
{
  ax_tensor *re[2] = { 0 }, *first = NULL, *pair[2] = { 0 }, *off = NULL, *power = NULL, *rest = NULL,
            *results[AX_MAX_OUT] = { 0 };
  ax_status st = AX_OK;

  for (int k = 0; k < 2; k++) {
    if (is_complex(INPUT(k))) AX_TRY(ax_complex_part(INPUT(k), 0, &re[k]));
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

static ax_status times_sigmoid(ax_infer *q)
{
  ax_tensor *s = NULL;
  ax_status st = ax_run1(AX_OP_SIGMOID, X, &s);
  if (st == AX_OK) st = ax_run2(AX_OP_MUL, X, s, &q->result[0]);
  ax_tensor_release(s);
  return st;
}

/* The mean, the sum or each of |input - target|. */
static ax_status distance(ax_infer *q)
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
static ax_status of_parts(ax_infer *q)
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
static ax_status of_size(ax_infer *q)
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

/* ---- which rows take complex operands */

static const struct {
  uint8_t way;
  ax_status (*run)(ax_infer *q);
} ways[AX_OP_COUNT] = {
#define KEEP(op) [AX_OP_##op] = { AX_COMPLEX_KEEP, NULL }
#define TURN(op) [AX_OP_##op] = { AX_COMPLEX_TURN, NULL }
#define OTHERS(op, fn) [AX_OP_##op] = { AX_COMPLEX_OTHERS, fn }
  /* clang-format off */
  KEEP(VIEW_AS_REAL), KEEP(COMPLEX), KEEP(REAL), KEEP(IMAG), KEEP(CONJ), KEEP(CONJ_COPY), KEEP(ANGLE),
  KEEP(SGN), KEEP(LINALG_EIG), KEEP(LINALG_CHOLESKY), KEEP(LINALG_SLOGDET), KEEP(LINALG_QR), KEEP(LINALG_SVD),
  KEEP(LINALG_EIGH), KEEP(LINALG_LSTSQ), KEEP(LINALG_PINV), KEEP(LINALG_GEQRF), KEEP(LINALG_LDL),
  KEEP(LINALG_LDL_SOLVE), TURN(LINALG_LU), TURN(LINALG_SOLVE), TURN(LINALG_LU_SOLVE),
  TURN(LINALG_SOLVE_TRIANGULAR), TURN(LINALG_INV), TURN(LINALG_DET), TURN(LINALG_COFACTOR),
  KEEP(FFT_C2C), KEEP(FFT_C2R), KEEP(ABS),
  KEEP(VIEW), KEEP(PERMUTE), KEEP(TRANSPOSE), KEEP(EXPAND), KEEP(SQUEEZE), KEEP(UNSQUEEZE), KEEP(SELECT),
  KEEP(NARROW), KEEP(SLICE), KEEP(DIAGONAL), KEEP(SLICE_BACKWARD), KEEP(DIAGONAL_BACKWARD), KEEP(RESHAPE),
  KEEP(FLATTEN), KEEP(CONTIGUOUS), KEEP(T), KEEP(CAT), KEEP(STACK), KEEP(UNFLATTEN), KEEP(MOVEDIM),
  KEEP(EXPAND_AS), KEEP(VIEW_AS), KEEP(RESHAPE_AS), KEEP(DIAG), KEEP(DIAG_EMBED), KEEP(SPLIT), KEEP(CHUNK),
  KEEP(UNBIND), KEEP(MESHGRID), KEEP(FLIP), KEEP(ROLL), KEEP(TRIL), KEEP(TRIU), KEEP(PAD_CONSTANT), KEEP(PAD),
  KEEP(CLONE), KEEP(CAST), KEEP(TO_DEVICE), KEEP(COPY), KEEP(WHERE), KEEP(MASKED_FILL), KEEP(MASKED_SELECT),
  KEEP(INDEX_SELECT), KEEP(TILE), KEEP(TRACE), KEEP(OUTER), KEEP(MV), KEEP(EQ), KEEP(NE),
  KEEP(PROD), KEEP(CUMPROD), KEEP(ADDMV), KEEP(TENSORDOT), KEEP(REPEAT_INTERLEAVE), KEEP(UNFOLD),
  KEEP(MASKED_SCATTER), KEEP(TAKE_ALONG_DIM), KEEP(SOFTSIGN), KEEP(TANHSHRINK),
  KEEP(ADD), KEEP(SUB), KEEP(NEG),
  TURN(TAN), TURN(ASIN), TURN(ACOS), TURN(ATAN), TURN(ASINH), TURN(ACOSH), TURN(ATANH), TURN(EXP2),
  TURN(EXPM1),
  TURN(LOG1P), TURN(LOG2), TURN(LOG10), TURN(RSQRT), TURN(SIGMOID), TURN(ADDCMUL), TURN(ADDCDIV), TURN(LERP),
  KEEP(MUL), TURN(DIV), TURN(SQUARE), TURN(RECIPROCAL), TURN(EXP), TURN(LOG), TURN(SQRT), TURN(SIN),
  TURN(COS), TURN(SINH), TURN(COSH), TURN(TANH), TURN(POW),
  OTHERS(SUM, reduce_pairs), OTHERS(MEAN, reduce_pairs), OTHERS(CUMSUM, running_pairs),
  OTHERS(CUMSUM_BACKWARD, running_pairs), OTHERS(INDEX_SELECT_BACKWARD, keep_pairs),
  OTHERS(INDEX_ADD, keep_pairs), OTHERS(INDEX_COPY, keep_pairs),
  OTHERS(MM, bilinear), OTHERS(BMM, bilinear), OTHERS(MATMUL, bilinear), OTHERS(BATCHED_MATMUL, bilinear),
  OTHERS(DOT, bilinear), OTHERS(PAD_MODE, pad_pairs), OTHERS(PAD_MODE_BACKWARD, pad_pairs),
  OTHERS(GATHER, each_part), OTHERS(GATHER_BACKWARD, each_part), OTHERS(SCATTER, each_part),
  OTHERS(SCATTER_ADD, each_part), OTHERS(INDEX_FILL, each_part), OTHERS(UNFOLD_BACKWARD, each_part),
  OTHERS(NAN_TO_NUM, keep_pairs), OTHERS(LINEAR, linear_rows), OTHERS(ADDMM, add_product),
  OTHERS(BADDBMM, add_product), OTHERS(CONV1D, convolve), OTHERS(CONV2D, convolve), OTHERS(CONV3D, convolve),
  OTHERS(CONV_TRANSPOSE1D, convolve), OTHERS(CONV_TRANSPOSE2D, convolve), OTHERS(CONV_TRANSPOSE3D, convolve),
  OTHERS(LOGICAL_AND, of_truth), OTHERS(LOGICAL_OR, of_truth), OTHERS(LOGICAL_XOR, of_truth),
  OTHERS(LOGICAL_NOT, of_truth), OTHERS(ANY, of_truth), OTHERS(ALL, of_truth),
  OTHERS(COUNT_NONZERO, of_truth), OTHERS(NONZERO, of_truth), OTHERS(VAR, spread_of_parts),
  OTHERS(STD, spread_of_parts), OTHERS(LOGSUMEXP, log_of_sums), OTHERS(LOGADDEXP, log_of_two),
  OTHERS(SILU, times_sigmoid), OTHERS(L1_LOSS, distance),
  OTHERS(ISNAN, of_parts), OTHERS(ISINF, of_parts), OTHERS(ISFINITE, of_parts), OTHERS(NORM, of_size),
  /* clang-format on */
};

ax_complex_way ax_complex_way_of(ax_op op) { return (ax_complex_way)ways[op].way; }
ax_status ax_complex_run(ax_infer *q) { return ways[q->op].run(q); }

bool ax_complex_away(const ax_infer *q, ax_tensor *const *out)
{
  const ax_backend *backend;
  bool any = ax_is_complex((ax_dtype)out[0]->dtype);
  const bool moves = q->op == AX_OP_CLONE || (q->op == AX_OP_COPY && X && X->dtype == out[0]->dtype) ||
                     q->op == AX_OP_INDEX_SELECT || q->op == AX_OP_TILE;
  for (int k = 0; k < q->args->n_in; k++) any = any || is_complex(INPUT(k));
  if (!any || moves || ax_backend_of(out[0]->device, &backend) != AX_OK) return false;
  return !backend->complex_kernels || !backend->complex_kernels[q->op];
}

ax_status ax_complex_refused(ax_op op, const ax_args *args)
{
  const char *name = ax_ops[op].name;
  const ax_tensor *t = NULL;
  for (int k = 0; k < args->n_in && !is_complex(t); k++) t = args->in[k];
  const char *const type = is_complex(t) ? TYPE(t) : "complex numbers";
  if (strncmp(name, "_linalg_", 8) == 0)
    return ax_fail(AX_EDTYPE, "linalg.%s: x must be float32 or float64, got %s", name + 8, type);
  return ax_fail(AX_EDTYPE, "%s: not defined for %s", name[0] == '_' ? name + 1 : name, type);
}

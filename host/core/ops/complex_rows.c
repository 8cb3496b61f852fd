/* What rows make of complex operands: which take them at all, and rows that are linear in theirs
 * and run over the parts.  Other rows without a complex kernel are in complex_composed.c.  None
 * needs a gradient rule of its own: see complex.c. */
#include "core/ops/complex_composed.h"

#include "core/ops/rule.h"

#define X INPUT(0)

/* ---- rows over the parts */

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

ax_status ax_complex_all_but_pairs(const ax_infer *q, const ax_tensor *x, ax_attrs *a)
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
  const ax_status st = ax_complex_all_but_pairs(q, X, &a);
  return st == AX_OK ? over_pairs(q, &a, 1) : st;
}

static ax_status keep_pairs(ax_infer *q)
{
  uint32_t complex_inputs = 0;
  for (int k = 0; k < q->args->n_in; k++) complex_inputs |= (uint32_t)ax_complex_is(INPUT(k)) << k;
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
      if (ax_complex_is(in[k])) {
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

/* Rows that take slices along a dim, which the parts of a tensor of no dims are not. */
static ax_status slices(ax_infer *q) { return X->ndim == 0 ? each_part(q) : keep_pairs(q); }

/* ---- which rows take complex operands */

static const struct {
  uint8_t way;
  ax_status (*run)(ax_infer *q);
} ways[AX_OP_COUNT] = {
#define KEEP(op) [AX_OP_##op] = { AX_COMPLEX_KEEP, NULL }
#define TURN(op) [AX_OP_##op] = { AX_COMPLEX_TURN, NULL }
#define OTHERS(op, fn) [AX_OP_##op] = { AX_COMPLEX_OTHERS, fn }
#define COMPOSED(op, fn) OTHERS(op, ax_complex_##fn)
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
  KEEP(MASKED_SCATTER), KEEP(TAKE_ALONG_DIM), KEEP(SOFTSIGN), KEEP(TANHSHRINK), KEEP(PIXEL_SHUFFLE),
  KEEP(PIXEL_UNSHUFFLE),
  KEEP(ADD), KEEP(SUB), KEEP(NEG),
  TURN(TAN), TURN(ASIN), TURN(ACOS), TURN(ATAN), TURN(ASINH), TURN(ACOSH), TURN(ATANH), TURN(EXP2),
  TURN(EXPM1),
  TURN(LOG1P), TURN(LOG2), TURN(LOG10), TURN(RSQRT), TURN(SIGMOID), TURN(ADDCMUL), TURN(ADDCDIV), TURN(LERP),
  KEEP(MUL), TURN(DIV), TURN(SQUARE), TURN(RECIPROCAL), TURN(EXP), TURN(LOG), TURN(SQRT), TURN(SIN),
  TURN(COS), TURN(SINH), TURN(COSH), TURN(TANH), TURN(POW),
  OTHERS(SUM, reduce_pairs), OTHERS(MEAN, reduce_pairs), OTHERS(CUMSUM, running_pairs),
  OTHERS(CUMSUM_BACKWARD, running_pairs), OTHERS(INDEX_SELECT_BACKWARD, slices),
  OTHERS(INDEX_ADD, slices), OTHERS(INDEX_COPY, slices), COMPOSED(MM, bilinear),
  COMPOSED(BMM, bilinear), COMPOSED(MATMUL, bilinear), COMPOSED(BATCHED_MATMUL, bilinear),
  COMPOSED(DOT, bilinear), OTHERS(PAD_MODE, pad_pairs), OTHERS(PAD_MODE_BACKWARD, pad_pairs),
  OTHERS(GATHER, each_part), OTHERS(GATHER_BACKWARD, each_part), OTHERS(SCATTER, each_part),
  OTHERS(SCATTER_ADD, each_part), OTHERS(INDEX_FILL, each_part), OTHERS(UNFOLD_BACKWARD, each_part),
  OTHERS(NAN_TO_NUM, keep_pairs), COMPOSED(LINEAR, linear_rows), COMPOSED(ADDMM, add_product),
  COMPOSED(BADDBMM, add_product), COMPOSED(CONV1D, convolve), COMPOSED(CONV2D, convolve),
  COMPOSED(CONV3D, convolve), COMPOSED(CONV_TRANSPOSE1D, convolve), COMPOSED(CONV_TRANSPOSE2D, convolve),
  COMPOSED(CONV_TRANSPOSE3D, convolve), COMPOSED(LOGICAL_AND, of_truth), COMPOSED(LOGICAL_OR, of_truth),
  COMPOSED(LOGICAL_XOR, of_truth), COMPOSED(LOGICAL_NOT, of_truth), COMPOSED(ANY, of_truth),
  COMPOSED(ALL, of_truth), COMPOSED(COUNT_NONZERO, of_truth), COMPOSED(NONZERO, of_truth),
  COMPOSED(VAR, spread_of_parts), COMPOSED(STD, spread_of_parts), COMPOSED(LOGSUMEXP, log_of_sums),
  COMPOSED(LOGADDEXP, log_of_two), COMPOSED(SILU, times_sigmoid), COMPOSED(L1_LOSS, distance),
  COMPOSED(ISNAN, of_parts), COMPOSED(ISINF, of_parts), COMPOSED(ISFINITE, of_parts),
  COMPOSED(NORM, of_size), COMPOSED(DROPOUT, drop),
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
  for (int k = 0; k < q->args->n_in; k++) any = any || ax_complex_is(INPUT(k));
  if (!any || moves || ax_backend_of(out[0]->device, &backend) != AX_OK) return false;
  return !backend->complex_kernels || !backend->complex_kernels[q->op];
}

ax_status ax_complex_refused(ax_op op, const ax_args *args)
{
  const char *name = ax_ops[op].name;
  const ax_tensor *t = NULL;
  for (int k = 0; k < args->n_in && !ax_complex_is(t); k++) t = args->in[k];
  const char *const type = ax_complex_is(t) ? TYPE(t) : "complex numbers";
  if (strncmp(name, "_linalg_", 8) == 0)
    return ax_fail(AX_EDTYPE, "linalg.%s: x must be float32 or float64, got %s", name + 8, type);
  return ax_fail(AX_EDTYPE, "%s: not defined for %s", name[0] == '_' ? name + 1 : name, type);
}

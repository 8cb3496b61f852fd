/* Rows of complex operands that are linear in them and run over the parts (COMPOSED in a .def); and
 * what the dispatcher asks.  Other rows without a complex kernel are in complex_composed.c.  None
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

ax_status ax_complex_reduce_pairs(ax_infer *q)
{
  ax_attrs a = q->a;
  if (X->ndim == 0) { /* a sum or mean of one number */
    q->result[0] = ax_tensor_retain(X);
    return AX_OK;
  }
  const ax_status st = ax_complex_all_but_pairs(q, X, &a);
  return st == AX_OK ? over_pairs(q, &a, 1) : st;
}

ax_status ax_complex_keep_pairs(ax_infer *q)
{
  uint32_t complex_inputs = 0;
  for (int k = 0; k < q->args->n_in; k++) complex_inputs |= (uint32_t)ax_complex_is(INPUT(k)) << k;
  return over_pairs(q, &q->a, complex_inputs);
}

/* Running sums.  The one dim that a tensor of no dims seems to have is not that of the parts. */
ax_status ax_complex_running_pairs(ax_infer *q)
{
  return X->ndim == 0 ? ax_run1(AX_OP_CLONE, X, &q->result[0]) : ax_complex_keep_pairs(q);
}

/* Margins are listed from the last dim on: the pairs get none. */
ax_status ax_complex_pad_pairs(ax_infer *q)
{
  ax_attrs a = q->a;
  if (a.n_list + 2 > AX_MAX_DIMS)
    return ax_fail(AX_EINVAL, "pad: margins of at most %d dims of a complex tensor", AX_MAX_DIMS / 2 - 1);
  memmove(a.list + 2, a.list, sizeof *a.list * (size_t)a.n_list);
  a.list[0] = a.list[1] = 0;
  a.n_list += 2;
  return over_pairs(q, &a, 1);
}

/* The row over the real parts, then over the imaginary ones, where its attributes are `a`. */
static ax_status parts_apart(ax_infer *q, const ax_attrs *a)
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
      args.a = *a;
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

/* Rows that are linear in their complex operands.  A number that they write is real. */
ax_status ax_complex_each_part(ax_infer *q) { return parts_apart(q, &q->a); }

ax_status ax_complex_index_fill(ax_infer *q)
{
  ax_attrs a = q->a;
  a.index_fill.value = 0;
  return parts_apart(q, &a);
}

/* Rows that take slices along a dim, which the parts of a tensor of no dims are not. */
ax_status ax_complex_slices(ax_infer *q)
{
  return X->ndim == 0 ? ax_complex_each_part(q) : ax_complex_keep_pairs(q);
}

/* ---- for the dispatcher */

bool ax_complex_away(const ax_infer *q, ax_tensor *const *out)
{
  const ax_backend *backend;
  bool any = ax_is_complex((ax_dtype)out[0]->dtype);
  const bool moves = ax_has(q->op, MOVES) && X && X->dtype == out[0]->dtype;
  for (int k = 0; k < q->args->n_in; k++) any = any || ax_complex_is(INPUT(k));
  if (!any || moves || ax_backend_of(out[0]->device, &backend) != AX_OK) return false;
  return !backend->complex_kernels || !backend->complex_kernels[q->op];
}

ax_status ax_complex_refused(ax_op op, const ax_args *args)
{
  const ax_tensor *t = NULL;
  for (int k = 0; k < args->n_in && !ax_complex_is(t); k++) t = args->in[k];
  const char *const type = ax_complex_is(t) ? TYPE(t) : "complex numbers";
  return ax_fail(AX_EDTYPE, "%s: not defined for %s", ax_op_shown(op), type);
}

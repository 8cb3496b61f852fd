/* What rows make of float8_e4m3fn and float8_e5m2, which numbers are stored in: they move them, or
 * compare them in float32, or refuse them by name.  PyTorch has these rows, too.  Then the rules of
 * matrices of eight bits. */
#include "core/ops/float8.h"

#include "core/ops/rule.h"

static const ax_tensor *first_of(const ax_args *args)
{
  for (int k = 0; k < args->n_in; k++)
    if (args->in[k] && ax_is_float8((ax_dtype)args->in[k]->dtype)) return args->in[k];
  return NULL;
}

static ax_status refuse_row(ax_op op, ax_dtype d)
{
  return ax_fail(AX_EDTYPE, "%s: not defined for %s, which is for storage; convert it first (x:float())",
                 ax_op_shown(op), ax_dtype_name(d));
}

/* There is no common type with another one; a tensor of no dims follows one with dims. */
ax_status ax_float8_alike(const ax_infer *q, int from)
{
  const ax_tensor *const one = first_of(q->args);

  for (int k = from; one && k < q->args->n_in; k++) {
    const ax_tensor *t = INPUT(k);
    if (!t || t->dtype == one->dtype || (t->ndim == 0 && one->ndim > 0)) continue;
    return ax_fail(AX_EDTYPE, "%s: %s and %s have no common type; convert one of them first", q->name,
                   TYPE(one), TYPE(t));
  }
  return AX_OK;
}

ax_status ax_float8_check(ax_op op, const ax_args *args, const ax_tensor *into)
{
  const ax_tensor *one = first_of(args);

  if (one) return ax_has(op, FLOAT8 | FLOAT8_WIDE) ? AX_OK : refuse_row(op, (ax_dtype)one->dtype);
  return !into || ax_has(op, FLOAT8) ? AX_OK : refuse_row(op, (ax_dtype)into->dtype);
}

/* The operands in float32, numbers and tensors of no dims rounded to the type before. */
ax_status ax_float8_run(ax_infer *q)
{
  const ax_dtype d = (ax_dtype)first_of(q->args)->dtype;
  ax_tensor *in[AX_MAX_INPUTS] = { 0 }, *results[AX_MAX_OUT] = { 0 };
  ax_args args = *q->args;
  uint8_t rounded;
  ax_status st = ax_float8_alike(q, 0);

  if (st != AX_OK) return st;
  args.in = in;
  for (int k = 0; k < args.n_in; k++) {
    ax_tensor *const t = INPUT(k), *narrow;
    if (!t) {
      ax_store_double(d, &rounded, 0, args.num[k]);
      args.num[k] = ax_load_double(d, &rounded, 0);
      continue;
    }
    AX_TRY(ax_cast(t, d, &narrow));
    st = ax_cast(narrow, AX_F32, &in[k]);
    ax_tensor_release(narrow);
    if (st != AX_OK) goto out;
  }
  args.integral = args.booleans = 0;
  AX_TRY(ax_run(q->op, &args, results));
  if (results[0]->dtype == AX_F32) st = ax_cast(results[0], d, &q->result[0]);
  else q->result[0] = ax_tensor_retain(results[0]);
out:
  for (int k = 0; k < args.n_in; k++) ax_tensor_release(in[k]);
  ax_tensor_release(results[0]);
  return st;
}

/* ---- matrices of eight bits */

static ax_status need_matrix(const ax_infer *q, const ax_tensor *t, const char *what)
{
  if (t->ndim == 2) return AX_OK;
  return ax_fail(AX_ESHAPE, "%s: %s must be a matrix, got %s", q->name, what, TEXT(t));
}

static ax_status need_scales(const ax_infer *q, const ax_tensor *t, const char *what)
{
  const ax_status st = need_dtype(q, t, AX_F32, what);
  if (st != AX_OK || t->numel > 0) return st;
  return ax_fail(AX_ESHAPE, "%s: %s has no element", q->name, what);
}

ax_status ax_infer_float8_cast(ax_infer *q)
{
  const ax_tensor *x = INPUT(0);
  const ax_dtype dtype = (ax_dtype)q->a.float8_cast.dtype;
  ax_status st;

  AX_TRY(need_matrix(q, x, "x"));
  AX_TRY(need_float(q, x));
  if (!ax_is_float8(dtype))
    return ax_fail(AX_EDTYPE, "%s: dtype must be float8_e4m3fn or float8_e5m2, got %s", q->name,
                   ax_dtype_name(dtype));
  if (INPUT(1)) AX_TRY(need_scales(q, INPUT(1), "scale"));
  if (x->dtype == AX_F64) { /* eight bits round the float32 as they round the float64, ties aside */
    q->cast = 1;
    q->compute = AX_F32;
  }
  q->contiguous = 3;
  out_like(q, 0, dtype, 2, x->shape);
  const int64_t none = 0, across[2] = { x->shape[1], (x->shape[0] + 15) / 16 * 16 }, two = 2;
  if (q->a.float8_cast.turned) out_like(q, 1, dtype, 2, across);
  else out_like(q, 1, dtype, 1, &none);
  out_like(q, 2, AX_F32, 1, &two);
out:
  return st;
}

/* The sizes and types are those that cuBLASLt takes, on a CPU too. */
ax_status ax_infer_float8_product(ax_infer *q)
{
  const ax_tensor *a = INPUT(0), *b = INPUT(1), *bias = INPUT(4);
  const ax_dtype dtype = (ax_dtype)q->a.float8_product.dtype;
  ax_status st;

  AX_TRY(need_matrix(q, a, "a"));
  AX_TRY(need_matrix(q, b, "b"));
  if (!ax_is_float8((ax_dtype)a->dtype) || !ax_is_float8((ax_dtype)b->dtype) ||
      (a->dtype == AX_E5M2 && b->dtype == AX_E5M2))
    return ax_fail(AX_EDTYPE, "%s: a and b must be float8, and one of them float8_e4m3fn; got %s and %s",
                   q->name, TYPE(a), TYPE(b));
  if (a->shape[1] != b->shape[1] || a->shape[1] % 16 || b->shape[0] % 16)
    return ax_fail(AX_ESHAPE, "%s: expected (m, k) and (n, k) with k and n multiples of 16, got %s and %s",
                   q->name, TEXT(a), TEXT(b));
  AX_TRY(need_scales(q, INPUT(2), "scales_a"));
  AX_TRY(need_scales(q, INPUT(3), "scales_b"));
  if (dtype != AX_F32 && !ax_is_half(dtype))
    return ax_fail(AX_EDTYPE, "%s: dtype must be float32, float16 or bfloat16, got %s", q->name,
                   ax_dtype_name(dtype));
  if (bias) AX_TRY(need_dtype(q, bias, dtype, "bias"));
  if (bias && (bias->ndim != 1 || bias->shape[0] != b->shape[0]))
    return ax_fail(AX_ESHAPE, "%s: bias must be [%lld], got %s", q->name, (long long)b->shape[0], TEXT(bias));
  q->contiguous = ~0u;
  out_like(q, 0, dtype, 2, (int64_t[]){ a->shape[0], b->shape[0] });
out:
  return st;
}

/* ops/distance.c: distances of all pairs of rows. */
#include "core/ops/rule.h"

static ax_status check_rows(ax_infer *q, const ax_tensor *x, const ax_tensor *y)
{
  ax_status st = need_float(q, x);
  if (st != AX_OK) return st;
  if ((st = need_dtype(q, y, (ax_dtype)x->dtype, "y")) != AX_OK) return st;
  if (ax_is_half((ax_dtype)x->dtype))
    return ax_fail(AX_EDTYPE, "%s: expected float32 or float64, got %s", q->name, TYPE(x));
  if (x->ndim != 3 || y->ndim != 3 || x->shape[0] != y->shape[0] || x->shape[2] != y->shape[2])
    return ax_fail(AX_ESHAPE, "%s: expected (b, m, k) and (b, n, k), got %s and %s", q->name, TEXT(x),
                   TEXT(y));
  return AX_OK;
}

ax_status ax_infer_cdist(ax_infer *q)
{
  const ax_tensor *x = INPUT(0), *y = INPUT(1);
  const ax_status st = check_rows(q, x, y);
  if (st != AX_OK) return st;
  if (!(q->a.cdist.p >= 0))
    return ax_fail(AX_ERANGE, "%s: p must be at least 0, got %g", q->name, q->a.cdist.p);
  q->contiguous = ~0u;
  out_like(q, 0, (ax_dtype)x->dtype, 3, (int64_t[]){ x->shape[0], x->shape[1], y->shape[1] });
  return AX_OK;
}

ax_status ax_infer_cdist_backward(ax_infer *q)
{
  const ax_tensor *x = INPUT(1);
  const ax_status st = check_rows(q, x, INPUT(2));
  if (st != AX_OK) return st;
  q->contiguous = 1u << 1 | 1u << 2; /* g and d may be turned */
  q->compute = (ax_dtype)x->dtype;
  q->cast = 1u << 0 | 1u << 3;
  out_like(q, 0, (ax_dtype)x->dtype, 3, x->shape);
  return AX_OK;
}

/* From plain rows, so that it can be differentiated again: the gradient of |x_i - y_j|_p for x_i is
 * sign(x_i - y_j) (|x_i - y_j| / d)^(p - 1), 0 where d is 0. */
static void by_rows(ax_grad *c, double p)
{
  const ax_arg d = OUT(0), diff = sub(c, unsqueeze(c, IN(0), 2), unsqueeze(c, IN(1), 1));
  const ax_arg same = bin(c, AX_OP_EQ, d, NUM(0)), nonzero = where(c, same, NUM(1), d);
  ax_arg w = G, slope = diff;

  if (p == 2) w = over(c, G, nonzero);
  else if (p == 0) slope = mul(c, diff, NUM(0));
  else {
    const ax_arg size = un(c, AX_OP_ABS, diff);
    slope = un(c, AX_OP_SIGN, diff);
    if (isinf(p)) slope = mul(c, slope, bin(c, AX_OP_EQ, size, unsqueeze(c, d, 3)));
    else if (p != 1) {
      const ax_arg apart = where(c, bin(c, AX_OP_EQ, size, NUM(0)), NUM(1), size);
      slope = mul(c, slope, bin(c, AX_OP_POW, apart, NUM(p - 1)));
      w = over(c, G, bin(c, AX_OP_POW, nonzero, NUM(p - 1)));
    }
  }
  if (p > 1 && !isinf(p)) w = where(c, same, NUM(0), w);
  const ax_arg each = mul(c, slope, unsqueeze(c, w, 3));
  if (WANTS(0)) give(c, 0, with_list(c, AX_OP_SUM, each, 1, (int64_t[]){ 2 }));
  if (WANTS(1)) give(c, 1, un(c, AX_OP_NEG, with_list(c, AX_OP_SUM, each, 1, (int64_t[]){ 1 })));
}

RULE(cdist)
{
  const double p = A->cdist.p;
  if (c->create_graph) {
    by_rows(c, p);
    return;
  }
  const ax_attrs a = AX_ATTRS(cdist_backward, .p = p);
  if (WANTS(0)) give(c, 0, call(c, AX_OP_CDIST_BACKWARD, 4, (ax_arg[]){ G, IN(0), IN(1), OUT(0) }, &a));
  if (WANTS(1))
    give(c, 1,
         call(c, AX_OP_CDIST_BACKWARD, 4,
              (ax_arg[]){ transpose(c, G, 1, 2), IN(1), IN(0), transpose(c, OUT(0), 1, 2) }, &a));
}

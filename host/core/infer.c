/* The rules of rows with a kernel: do the arguments fit, what shape and type has the result, which inputs must be cast or made
 * contiguous.  Messages start with the op's name and show the shapes. */
#include "core/infer.h"
#include "core/rules.h"

#include <math.h>
#include <string.h>

#define TEXT(t) ax_shape_text((t)->ndim, (t)->shape, (char[AX_SHAPE_TEXT]){ 0 }, AX_SHAPE_TEXT)
#define TYPE(t) ax_dtype_name((ax_dtype)(t)->dtype)
#define IN(k) (q->args->in[k])

/* ---- helpers */

static void out_like(ax_infer *q, int k, ax_dtype dtype, int ndim, const int64_t *shape)
{
  q->out[k].dtype = dtype;
  q->out[k].ndim = ndim;
  if (ndim) memcpy(q->out[k].shape, shape, sizeof *shape * (size_t)ndim);
  if (q->n_out <= k) q->n_out = k + 1;
}

/* PyTorch's promotion: tensors with dims come first, then 0-d tensors, then numbers; a later kind only counts when its category is higher. */
static ax_dtype promoted(const ax_infer *q, int from)
{
  int best[3] = { -1, -1, -1 }; /* with dims, 0-d, numbers */
  int result = -1;

  for (int k = from; k < q->args->n_in; k++) {
    const ax_tensor *t = IN(k);
    int kind = 2, dtype;
    if (t) {
      kind = t->ndim > 0 ? 0 : 1;
      dtype = t->dtype;
    } else dtype = q->args->booleans >> k & 1 ? AX_BOOL : q->args->integral >> k & 1 ? AX_I64 : AX_F32;
    best[kind] = best[kind] < 0 ? dtype : (int)ax_dtype_promote((ax_dtype)best[kind], (ax_dtype)dtype);
  }
  for (int kind = 0; kind < 3; kind++) {
    if (best[kind] < 0) continue;
    if (result < 0) result = best[kind];
    else if (ax_dtype_category((ax_dtype)best[kind]) > ax_dtype_category((ax_dtype)result)) result = best[kind];
  }
  return (ax_dtype)result;
}

/* Joint shape of the operands from `from` on (numbers have none). */
static ax_status joint_shape(ax_infer *q, int from, int *ndim, int64_t *shape)
{
  ax_status st = AX_OK;
  bool any = from > 0;
  for (int k = from; k < q->args->n_in; k++) {
    const ax_tensor *t = IN(k);
    if (!t) continue;
    if (!any) {
      *ndim = t->ndim;
      memcpy(shape, t->shape, sizeof *shape * (size_t)t->ndim);
      any = true;
    } else if ((st = ax_shape_broadcast(q->name, *ndim, shape, t->ndim, t->shape, ndim, shape)) != AX_OK) break;
  }
  return st;
}

static ax_status elementwise(ax_infer *q, ax_dtype compute, ax_dtype result)
{
  int ndim = 0;
  int64_t shape[AX_MAX_DIMS];
  const ax_status st = joint_shape(q, 0, &ndim, shape);
  if (st != AX_OK) return st;
  q->compute = compute;
  q->cast = ~0u;
  out_like(q, 0, result, ndim, shape);
  return AX_OK;
}

static ax_status need_dtype(const ax_infer *q, const ax_tensor *t, ax_dtype dtype, const char *what)
{
  if (t->dtype == dtype) return AX_OK;
  return ax_fail(AX_EDTYPE, "%s: %s must be %s, got %s", q->name, what, ax_dtype_name(dtype), TYPE(t));
}

static ax_status need_float(const ax_infer *q, const ax_tensor *t)
{
  if (ax_is_float((ax_dtype)t->dtype)) return AX_OK;
  return ax_fail(AX_EDTYPE, "%s: expected a floating-point tensor, got %s %s", q->name, TYPE(t), TEXT(t));
}

/* ---- pointwise */

/* Two tensors of one type and shape: most of what is ever called. */
static bool alike(const ax_infer *q)
{
  if (q->args->n_in != 2) return false;
  const ax_tensor *a = IN(0), *b = IN(1);
  return a && b && a->dtype == b->dtype && ax_same_shape(a, b->ndim, b->shape);
}

ax_status ax_infer_promote(ax_infer *q)
{
  if (alike(q) && ax_is_float((ax_dtype)IN(0)->dtype)) {
    q->compute = (ax_dtype)IN(0)->dtype;
    out_like(q, 0, q->compute, IN(0)->ndim, IN(0)->shape);
    return AX_OK;
  }
  const ax_dtype d = promoted(q, 0);
  if (d == AX_BOOL && (q->op == AX_OP_NEG || q->op == AX_OP_SUB))
    return ax_fail(AX_EDTYPE, "%s: not defined for bool; use logical_not or logical_xor", q->name);
  return elementwise(q, d, d);
}

ax_status ax_infer_floats(ax_infer *q)
{
  ax_dtype d = promoted(q, 0);
  if (!ax_is_float(d)) d = AX_F32;
  return elementwise(q, d, d);
}

ax_status ax_infer_compare(ax_infer *q) { return elementwise(q, promoted(q, 0), AX_BOOL); }
ax_status ax_infer_logical(ax_infer *q) { return elementwise(q, AX_BOOL, AX_BOOL); }

ax_status ax_infer_clamp(ax_infer *q)
{
  const ax_dtype d = (ax_dtype)IN(0)->dtype;
  const bool no_min = isnan(q->a.f[0]), no_max = isnan(q->a.f[1]);
  if (no_min && no_max) return ax_fail(AX_EINVAL, "clamp: expected min, max or both");
  if (d == AX_BOOL) return ax_fail(AX_EDTYPE, "clamp: not defined for bool");
  const bool whole = (no_min || q->a.f[0] == floor(q->a.f[0])) && (no_max || q->a.f[1] == floor(q->a.f[1]));
  const ax_dtype r = ax_is_float(d) || whole ? d : AX_F32;
  if (no_min) q->a.f[0] = -INFINITY;
  if (no_max) q->a.f[1] = INFINITY;
  return elementwise(q, r, r);
}

ax_status ax_infer_where(ax_infer *q)
{
  ax_status st;
  int ndim;
  int64_t shape[AX_MAX_DIMS];
  const ax_dtype d = promoted(q, 1);

  if ((st = need_dtype(q, IN(0), AX_BOOL, "condition")) != AX_OK) return st;
  ndim = IN(0)->ndim;
  memcpy(shape, IN(0)->shape, sizeof shape);
  if ((st = joint_shape(q, 1, &ndim, shape)) != AX_OK) return st;
  q->compute = d;
  q->cast = ~1u;
  out_like(q, 0, d, ndim, shape);
  return AX_OK;
}

/* Can an element of the type hold v without losing more than digits?  A bool takes any number: is it not 0? */
static bool number_fits(ax_dtype d, double v)
{
  if (ax_is_float(d) || d == AX_BOOL) return true;
  const double limit = d == AX_I64 ? 0x1p63 : d == AX_I32 ? 0x1p31 : 256;
  return v == floor(v) && v < limit && v >= (d == AX_U8 ? 0 : -limit); /* NaN fails the first test */
}

ax_status ax_infer_masked_fill(ax_infer *q)
{
  ax_status st;
  int ndim;
  int64_t shape[AX_MAX_DIMS];
  const ax_tensor *x = IN(0), *mask = IN(1);

  if ((st = need_dtype(q, mask, AX_BOOL, "mask")) != AX_OK) return st;
  if (!number_fits((ax_dtype)x->dtype, q->a.f[0]))
    return ax_fail(AX_EDTYPE, "masked_fill: value %g does not fit a tensor of %s", q->a.f[0], TYPE(x));
  if ((st = ax_shape_broadcast(q->name, x->ndim, x->shape, mask->ndim, mask->shape, &ndim, shape)) != AX_OK) return st;
  q->compute = (ax_dtype)x->dtype;
  out_like(q, 0, (ax_dtype)x->dtype, ndim, shape);
  return AX_OK;
}

/* copy_ and fill_: the result is the destination's; the dispatcher only needs the source's shape. */
ax_status ax_infer_copy(ax_infer *q)
{
  const ax_tensor *s = IN(0);
  const ax_dtype number = q->args->booleans & 1 ? AX_BOOL : q->args->integral & 1 ? AX_I64 : AX_F64;
  q->compute = s ? (ax_dtype)s->dtype : number;
  out_like(q, 0, q->compute, s ? s->ndim : 0, s ? s->shape : NULL);
  return AX_OK;
}

/* ---- copies */

ax_status ax_infer_clone(ax_infer *q)
{
  out_like(q, 0, (ax_dtype)IN(0)->dtype, IN(0)->ndim, IN(0)->shape);
  return AX_OK;
}

ax_status ax_infer_cast(ax_infer *q)
{
  out_like(q, 0, (ax_dtype)q->a.i[0], IN(0)->ndim, IN(0)->shape);
  return AX_OK;
}

/* ---- reductions */

static ax_status reduced(ax_infer *q, uint32_t axes, bool keepdim, ax_dtype dtype, int k)
{
  const ax_tensor *x = IN(0);
  int64_t shape[AX_MAX_DIMS];
  int n = 0;
  for (int d = 0; d < x->ndim; d++)
    if (!(axes >> d & 1)) shape[n++] = x->shape[d];
    else if (keepdim) shape[n++] = 1;
  q->axes = axes;
  out_like(q, k, dtype, n, shape);
  return AX_OK;
}

static ax_status listed_axes(const ax_infer *q, uint32_t *axes)
{
  const ax_tensor *x = IN(0);
  *axes = 0;
  if (q->a.n_list <= 0) { /* not given, or an empty list: all dims, as in PyTorch */
    *axes = (1u << x->ndim) - 1;
    return AX_OK;
  }
  for (int k = 0; k < q->a.n_list; k++) {
    const int64_t d = q->a.list[k];
    if (x->ndim == 0 && d == 0) continue; /* a 0-d tensor takes dim 1, as in PyTorch */
    if (d < 0 || d >= x->ndim) return ax_fail(AX_ERANGE, "%s: dim %lld is outside 1..%d", q->name, (long long)d + 1, x->ndim);
    if (*axes >> d & 1) return ax_fail(AX_EINVAL, "%s: dim %lld is listed twice", q->name, (long long)d + 1);
    *axes |= 1u << d;
  }
  return AX_OK;
}

ax_status ax_infer_sum(ax_infer *q)
{
  uint32_t axes;
  const ax_status st = listed_axes(q, &axes);
  if (st != AX_OK) return st;
  return reduced(q, axes, q->a.i[0], ax_is_float((ax_dtype)IN(0)->dtype) ? (ax_dtype)IN(0)->dtype : AX_I64, 0);
}

ax_status ax_infer_mean(ax_infer *q)
{
  uint32_t axes;
  ax_status st;
  if (!ax_is_float((ax_dtype)IN(0)->dtype))
    return ax_fail(AX_EDTYPE, "mean: expected a floating-point tensor, got %s; cast it first, as in x:float():mean()", TYPE(IN(0)));
  if ((st = listed_axes(q, &axes)) != AX_OK) return st;
  return reduced(q, axes, q->a.i[0], (ax_dtype)IN(0)->dtype, 0);
}

ax_status ax_infer_truth(ax_infer *q)
{
  uint32_t axes;
  const ax_status st = listed_axes(q, &axes);
  if (st != AX_OK) return st;
  return reduced(q, axes, q->a.i[0], AX_BOOL, 0);
}

static ax_status one_axis(const ax_infer *q, uint32_t *axes)
{
  const ax_tensor *x = IN(0);
  const int64_t d = q->a.i[0];
  if (d == AX_NO_DIM) {
    *axes = (1u << x->ndim) - 1;
    if (x->numel == 0) return ax_fail(AX_ESHAPE, "%s: a tensor of shape %s has no elements to choose from", q->name, TEXT(x));
    return AX_OK;
  }
  *axes = x->ndim ? 1u << d : 0;
  if (x->ndim && x->shape[d] == 0)
    return ax_fail(AX_ESHAPE, "%s: dim %lld of shape %s has size 0: nothing to choose from", q->name, (long long)d + 1, TEXT(x));
  return AX_OK;
}

ax_status ax_infer_extreme(ax_infer *q)
{
  uint32_t axes;
  const ax_status st = one_axis(q, &axes);
  if (st != AX_OK) return st;
  reduced(q, axes, q->a.i[1], (ax_dtype)IN(0)->dtype, 0);
  if (q->a.i[0] != AX_NO_DIM) reduced(q, axes, q->a.i[1], AX_I64, 1);
  return AX_OK;
}

ax_status ax_infer_arg(ax_infer *q)
{
  uint32_t axes;
  const ax_status st = one_axis(q, &axes);
  if (st != AX_OK) return st;
  return reduced(q, axes, q->a.i[1], AX_I64, 0);
}

/* ---- linear algebra */

static ax_status same_dtype(const ax_infer *q, const ax_tensor *a, const ax_tensor *b)
{
  if (a->dtype == b->dtype && a->dtype != AX_BOOL) return AX_OK;
  if (a->dtype == b->dtype) return ax_fail(AX_EDTYPE, "%s: not defined for bool", q->name);
  return ax_fail(AX_EDTYPE, "%s: element types differ: %s %s x %s %s", q->name, TYPE(a), TEXT(a), TYPE(b), TEXT(b));
}

ax_status ax_infer_mm(ax_infer *q)
{
  const ax_tensor *a = IN(0), *b = IN(1);
  ax_status st;
  if (a->ndim != 2 || b->ndim != 2)
    return ax_fail(AX_ESHAPE, "mm: expected two matrices, got %s x %s; matmul takes stacks of them", TEXT(a), TEXT(b));
  if ((st = same_dtype(q, a, b)) != AX_OK) return st;
  if (a->shape[1] != b->shape[0]) return ax_fail(AX_ESHAPE, "mm: inner dimensions differ: %s x %s", TEXT(a), TEXT(b));
  out_like(q, 0, (ax_dtype)a->dtype, 2, (int64_t[]){ a->shape[0], b->shape[1] });
  return AX_OK;
}

ax_status ax_infer_bmm(ax_infer *q)
{
  const ax_tensor *a = IN(0), *b = IN(1);
  ax_status st;
  if (a->ndim != 3 || b->ndim != 3) return ax_fail(AX_ESHAPE, "bmm: expected two stacks of matrices, got %s x %s", TEXT(a), TEXT(b));
  if ((st = same_dtype(q, a, b)) != AX_OK) return st;
  if (a->shape[0] != b->shape[0]) return ax_fail(AX_ESHAPE, "bmm: stacks differ in length: %s x %s", TEXT(a), TEXT(b));
  if (a->shape[2] != b->shape[1]) return ax_fail(AX_ESHAPE, "bmm: inner dimensions differ: %s x %s", TEXT(a), TEXT(b));
  out_like(q, 0, (ax_dtype)a->dtype, 3, (int64_t[]){ a->shape[0], a->shape[1], b->shape[2] });
  return AX_OK;
}

ax_status ax_infer_linear(ax_infer *q)
{
  const ax_tensor *x = IN(0), *w = IN(1), *b = q->args->n_in > 2 ? IN(2) : NULL;
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
    if ((st = same_dtype(q, x, b)) != AX_OK) return st;
  }
  memcpy(shape, x->shape, sizeof shape);
  shape[x->ndim - 1] = w->shape[0];
  q->contiguous = 1 | 4;
  out_like(q, 0, (ax_dtype)x->dtype, x->ndim, shape);
  return AX_OK;
}

/* ---- softmax and losses */

ax_status ax_infer_softmax(ax_infer *q)
{
  const ax_status st = need_float(q, IN(0));
  q->contiguous = ~0u;
  out_like(q, 0, (ax_dtype)IN(0)->dtype, IN(0)->ndim, IN(0)->shape);
  return st;
}

ax_status ax_infer_softmax_backward(ax_infer *q)
{
  if (IN(0)->dtype != IN(1)->dtype || !ax_same_shape(IN(0), IN(1)->ndim, IN(1)->shape))
    return ax_fail(AX_ESHAPE, "%s: gradient %s %s against result %s %s", q->name, TYPE(IN(0)), TEXT(IN(0)), TYPE(IN(1)), TEXT(IN(1)));
  return ax_infer_softmax(q);
}

static ax_status check_classes(ax_infer *q, const ax_tensor *x, const ax_tensor *target)
{
  ax_status st;
  if ((st = need_float(q, x)) != AX_OK) return st;
  if (x->ndim < 1 || x->ndim > 2)
    return ax_fail(AX_ESHAPE, "%s: input must be (N, C) or (C), got %s; bring the classes to the last dim and flatten the rest", q->name, TEXT(x));
  if ((st = need_dtype(q, target, AX_I64, "target (0-based class indices)")) != AX_OK) return st;
  if (target->ndim != x->ndim - 1 || (x->ndim == 2 && target->shape[0] != x->shape[0]))
    return ax_fail(AX_ESHAPE, "%s: target must have shape %s for input %s, got %s", q->name,
                   ax_shape_text(x->ndim - 1, x->shape, (char[AX_SHAPE_TEXT]){ 0 }, AX_SHAPE_TEXT), TEXT(x), TEXT(target));
  if (x->shape[x->ndim - 1] == 0) return ax_fail(AX_ESHAPE, "%s: input %s has no classes", q->name, TEXT(x));
  q->contiguous = ~0u;
  return AX_OK;
}

ax_status ax_infer_cross_entropy(ax_infer *q)
{
  const ax_tensor *x = IN(0), *target = IN(1);
  const ax_status st = check_classes(q, x, target);
  if (st != AX_OK) return st;
  out_like(q, 0, (ax_dtype)x->dtype, q->a.i[1] == 2 ? target->ndim : 0, target->shape);
  out_like(q, 1, x->dtype == AX_F64 ? AX_F64 : AX_F32, 1, (int64_t[]){ target->numel + 1 });
  return AX_OK;
}

ax_status ax_infer_cross_entropy_backward(ax_infer *q)
{
  const ax_tensor *g = IN(0), *x = IN(1), *target = IN(2), *lse = IN(3);
  const ax_status st = check_classes(q, x, target);
  if (st != AX_OK) return st;
  if (g->dtype != x->dtype || g->numel != (q->a.i[1] == 2 ? target->numel : 1) || lse->numel != target->numel + 1)
    return ax_fail(AX_ESHAPE, "%s: gradient %s %s and sums %s do not fit input %s", q->name, TYPE(g), TEXT(g), TEXT(lse), TEXT(x));
  out_like(q, 0, (ax_dtype)x->dtype, x->ndim, x->shape);
  return AX_OK;
}

/* ---- index and random */

ax_status ax_infer_index_select(ax_infer *q)
{
  const ax_tensor *x = IN(0), *index = IN(1);
  int64_t shape[AX_MAX_DIMS];
  const ax_status st = need_dtype(q, index, AX_I64, "index");
  if (st != AX_OK) return st;
  if (index->ndim != 1) return ax_fail(AX_ESHAPE, "%s: index must have one dim, got %s", q->name, TEXT(index));
  if (x->ndim == 0) return ax_fail(AX_ESHAPE, "%s: a 0-d tensor has no positions to select", q->name);
  memcpy(shape, x->shape, sizeof shape);
  shape[q->a.i[0]] = index->shape[0];
  q->contiguous = ~0u;
  out_like(q, 0, (ax_dtype)x->dtype, x->ndim, shape);
  return AX_OK;
}

ax_status ax_infer_index_select_backward(ax_infer *q)
{
  const ax_tensor *g = IN(0), *index = IN(1);
  int64_t shape[AX_MAX_DIMS];
  const ax_status st = need_dtype(q, index, AX_I64, "index");
  if (st != AX_OK) return st;
  if (index->ndim != 1 || g->ndim == 0 || g->shape[q->a.i[0]] != index->shape[0])
    return ax_fail(AX_ESHAPE, "%s: gradient %s does not fit index %s", q->name, TEXT(g), TEXT(index));
  memcpy(shape, g->shape, sizeof shape);
  shape[q->a.i[0]] = q->a.i[1];
  q->contiguous = ~0u;
  out_like(q, 0, (ax_dtype)g->dtype, g->ndim, shape);
  return AX_OK;
}

ax_status ax_infer_dropout_apply(ax_infer *q)
{
  const ax_status st = need_float(q, IN(0));
  q->contiguous = 1;
  out_like(q, 0, (ax_dtype)IN(0)->dtype, IN(0)->ndim, IN(0)->shape);
  return st;
}

ax_status ax_infer_into_only(ax_infer *q)
{
  return ax_fail(AX_EINVAL, "%s: fills a tensor that the caller made", q->name);
}

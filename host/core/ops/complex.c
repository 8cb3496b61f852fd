/* Complex numbers: views of their parts, forms, Fourier transforms.  What other rows make of
 * complex operands is in complex_rows.c.
 *
 * A gradient g of a real loss L in z = x + iy is dL/dx + i dL/dy, as in PyTorch.  So the gradient
 * of a view of the parts is a view of the gradient's parts, and whatever is put together of real
 * rows needs no rule of its own. */
#include "core/ops/complex.h"

#include "core/ops/rule.h"

#define X INPUT(0)

/* ---- the views */

static bool is_complex(const ax_tensor *t) { return t && ax_is_complex((ax_dtype)t->dtype); }

/* A view in another type: its history is that of the row, not that of a place in the base. */
static ax_status view_in(ax_tensor *x, ax_dtype d, int ndim, const int64_t *shape, const int64_t *strides,
                         int64_t offset, ax_tensor **out)
{
  const ax_status st = ax_tensor_view(x, ndim, shape, strides, offset, out);
  if (st == AX_OK) (*out)->dtype = (uint8_t)d;
  return st;
}

ax_status ax_infer_view_as_real(ax_infer *q)
{
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS];
  if (!is_complex(X)) return ax_fail(AX_EDTYPE, "view_as_real: expected a complex tensor, got %s", TYPE(X));
  if (X->ndim == AX_MAX_DIMS)
    return ax_fail(AX_ESHAPE, "view_as_real: shape %s has all the %d dims there can be", TEXT(X),
                   AX_MAX_DIMS);
  for (int d = 0; d < X->ndim; d++) {
    shape[d] = X->shape[d];
    strides[d] = 2 * X->strides[d];
  }
  shape[X->ndim] = 2;
  strides[X->ndim] = 1;
  return view_in(X, ax_part_dtype((ax_dtype)X->dtype), X->ndim + 1, shape, strides, 2 * X->offset,
                 &q->result[0]);
}

ax_status ax_infer_view_as_complex(ax_infer *q)
{
  int64_t strides[AX_MAX_DIMS];
  const int last = X->ndim - 1;
  bool even = X->offset % 2 == 0;

  if (X->dtype != AX_F32 && X->dtype != AX_F64)
    return ax_fail(AX_EDTYPE, "view_as_complex: expected float32 or float64, got %s", TYPE(X));
  if (X->ndim == 0 || X->shape[last] != 2)
    return ax_fail(AX_ESHAPE, "view_as_complex: the last dim must have size 2, got shape %s", TEXT(X));
  for (int d = 0; d < last; d++) {
    even = even && (X->strides[d] % 2 == 0 || X->shape[d] < 2);
    strides[d] = X->strides[d] / 2;
  }
  if (X->numel && (!even || X->strides[last] != 1))
    return ax_fail(AX_ESHAPE,
                   "view_as_complex: the parts of a number do not stand in pairs (strides %s, offset %lld); "
                   "call contiguous first",
                   ax_shape_text(X->ndim, X->strides, (char[AX_SHAPE_TEXT]){ 0 }, AX_SHAPE_TEXT),
                   (long long)X->offset);
  return view_in(X, X->dtype == AX_F64 ? AX_C128 : AX_C64, last, X->shape, strides, X->offset / 2,
                 &q->result[0]);
}

/* Gradients arrive in any layout. */
RULE(view_as_real) { give(c, 0, un(c, AX_OP_VIEW_AS_COMPLEX, un(c, AX_OP_CONTIGUOUS, G))); }
RULE(view_as_complex) { give(c, 0, un(c, AX_OP_VIEW_AS_REAL, G)); }
RULE(conj) { give(c, 0, un(c, AX_OP_CONJ_COPY, G)); }

ax_status ax_infer_conj_copy(ax_infer *q)
{
  q->contiguous = 1;
  if (!is_complex(X)) return ax_fail(AX_EDTYPE, "conj: expected a complex tensor, got %s", TYPE(X));
  out_like(q, 0, (ax_dtype)X->dtype, X->ndim, X->shape);
  return AX_OK;
}

/* ---- parts and forms */

ax_status ax_complex_part(ax_tensor *x, int64_t which, ax_tensor **out)
{
  ax_tensor *pairs = NULL;
  ax_status st;
  AX_TRY(ax_run1(AX_OP_VIEW_AS_REAL, x, &pairs));
  st = run_select(pairs, pairs->ndim - 1, which, out);
out:
  ax_tensor_release(pairs);
  return st;
}

ax_status ax_infer_real(ax_infer *q)
{
  if (is_complex(X)) return ax_complex_part(X, 0, &q->result[0]);
  q->result[0] = ax_tensor_retain(X);
  return AX_OK;
}

ax_status ax_infer_imag(ax_infer *q)
{
  if (is_complex(X)) return ax_complex_part(X, 1, &q->result[0]);
  return ax_fail(AX_EDTYPE, "imag: expected a complex tensor, got %s", TYPE(X));
}

ax_status ax_complex_join(ax_tensor *re, ax_tensor *im, ax_tensor **out)
{
  ax_tensor *wide[2] = { 0 }, *pairs[AX_MAX_OUT] = { 0 };
  int64_t shape[AX_MAX_DIMS];
  int n;
  ax_status st;

  AX_TRY(ax_shape_broadcast("complex", re->ndim, re->shape, im->ndim, im->shape, &n, shape));
  AX_TRY(run_list(AX_OP_EXPAND, re, n, shape, &wide[0]));
  AX_TRY(run_list(AX_OP_EXPAND, im, n, shape, &wide[1]));
  AX_TRY(ax_run(AX_OP_STACK, &(ax_args){ .n_in = 2, .in = wide, .a = AX_ATTRS(stack, .dim = n) }, pairs));
  st = ax_run1(AX_OP_VIEW_AS_COMPLEX, pairs[0], out);
  if (st == AX_OK) ax_view_own(*out); /* nothing else refers to the pairs */
out:
  ax_tensor_release(wide[0]), ax_tensor_release(wide[1]), ax_tensor_release(pairs[0]);
  return st;
}

ax_status ax_infer_complex(ax_infer *q)
{
  ax_tensor *const re = X, *const im = INPUT(1);
  if ((re->dtype != AX_F32 && re->dtype != AX_F64) || im->dtype != re->dtype)
    return ax_fail(AX_EDTYPE, "%s: expected two tensors of float32 or two of float64, got %s and %s", q->name,
                   TYPE(re), TYPE(im));
  return ax_complex_join(re, im, &q->result[0]);
}

ax_status ax_infer_polar(ax_infer *q)
{
  ax_tensor *trig = NULL, *parts[2] = { 0 };
  ax_status st;

  if ((X->dtype != AX_F32 && X->dtype != AX_F64) || INPUT(1)->dtype != X->dtype)
    return ax_fail(AX_EDTYPE, "polar: expected two tensors of float32 or two of float64, got %s and %s",
                   TYPE(X), TYPE(INPUT(1)));
  for (int k = 0; k < 2; k++) {
    AX_TRY(ax_run1(k ? AX_OP_SIN : AX_OP_COS, INPUT(1), &trig));
    AX_TRY(ax_run2(AX_OP_MUL, X, trig, &parts[k]));
    ax_tensor_release(trig);
    trig = NULL;
  }
  st = ax_complex_join(parts[0], parts[1], &q->result[0]);
out:
  ax_tensor_release(trig), ax_tensor_release(parts[0]), ax_tensor_release(parts[1]);
  return st;
}

ax_status ax_infer_conj(ax_infer *q)
{
  if (is_complex(X)) return ax_run1(AX_OP_CONJ_COPY, X, &q->result[0]);
  q->result[0] = ax_tensor_retain(X);
  return AX_OK;
}

static ax_status choose(ax_tensor *mask, ax_tensor *a, double number, ax_tensor *b, ax_tensor **out)
{
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  const ax_args args = { .n_in = 3,
                         .in = (ax_tensor *[]){ mask, a, b },
                         .scalars = a ? 4 : 2,
                         .num = { 0, a ? 0 : number, a ? number : 0 },
                         .a = { .n_list = -1 } };
  const ax_status st = ax_run(AX_OP_WHERE, &args, results);
  *out = results[0];
  return st;
}

/* 0 or pi, NaN where x is NaN, and no gradient. */
static ax_status angle_of_real(ax_tensor *x, ax_tensor **out)
{
  ax_tensor *flat = NULL, *below = NULL, *turned = NULL;
  ax_status st;
  AX_TRY(ax_run_num(AX_OP_MUL, x, 0.0, &flat)); /* NaN of infinities is replaced below */
  AX_TRY(ax_run_num(AX_OP_LT, x, 0, &below));
  AX_TRY(choose(below, NULL, 3.14159265358979323846, flat, &turned));
  ax_tensor_release(below);
  below = NULL;
  AX_TRY(ax_run_num(AX_OP_GT, x, 0, &below));
  st = choose(below, NULL, 0.0, turned, out);
out:
  ax_tensor_release(flat), ax_tensor_release(below), ax_tensor_release(turned);
  return st;
}

ax_status ax_infer_angle(ax_infer *q)
{
  ax_tensor *re = NULL, *im = NULL;
  ax_status st;

  if (!is_complex(X)) {
    AX_TRY(ax_cast(X, ax_is_float((ax_dtype)X->dtype) ? (ax_dtype)X->dtype : AX_F32, &re));
    st = angle_of_real(re, &q->result[0]);
  } else {
    AX_TRY(ax_complex_part(X, 0, &re));
    AX_TRY(ax_complex_part(X, 1, &im));
    st = ax_run2(AX_OP_ATAN2, im, re, &q->result[0]);
  }
out:
  ax_tensor_release(re), ax_tensor_release(im);
  return st;
}

ax_status ax_infer_sgn(ax_infer *q)
{
  ax_tensor *size = NULL, *none = NULL, *safe = NULL, *turned = NULL;
  ax_status st;

  if (!is_complex(X)) return ax_run1(AX_OP_SIGN, X, &q->result[0]);
  AX_TRY(ax_run1(AX_OP_ABS, X, &size));
  AX_TRY(ax_run_num(AX_OP_EQ, size, 0, &none));
  AX_TRY(choose(none, NULL, 1, size, &safe));
  AX_TRY(ax_run2(AX_OP_DIV, X, safe, &turned));
  st = choose(none, NULL, 0, turned, &q->result[0]); /* whose gradient is 0 where x is 0 */
out:
  ax_tensor_release(size), ax_tensor_release(none), ax_tensor_release(safe), ax_tensor_release(turned);
  return st;
}

/* ---- Fourier transforms along one dim */

static ax_status fft_size(ax_infer *q, int64_t dim, int64_t least)
{
  q->contiguous = 1;
  if (X->ndim == 0) return ax_fail(AX_ESHAPE, "fft: expected at least one dim, got a 0-d tensor");
  if (X->shape[dim] < least)
    return ax_fail(AX_ESHAPE, "fft: dim %lld of shape %s has no positions", (long long)dim + 1, TEXT(X));
  return AX_OK;
}

ax_status ax_infer_fft_c2c(ax_infer *q)
{
  const ax_status st = fft_size(q, q->a.fft_c2c.dim, 1);
  if (st != AX_OK) return st;
  if (!is_complex(X)) return ax_fail(AX_EDTYPE, "fft: expected a complex tensor, got %s", TYPE(X));
  out_like(q, 0, (ax_dtype)X->dtype, X->ndim, X->shape);
  return AX_OK;
}

ax_status ax_infer_fft_r2c(ax_infer *q)
{
  const int64_t dim = q->a.fft_r2c.dim;
  const ax_status st = fft_size(q, dim, 1);
  if (st != AX_OK) return st;
  if (X->dtype != AX_F32 && X->dtype != AX_F64)
    return ax_fail(AX_EDTYPE, "rfft: expected float32 or float64, got %s", TYPE(X));
  out_like(q, 0, X->dtype == AX_F64 ? AX_C128 : AX_C64, X->ndim, X->shape);
  q->out[0].shape[dim] = X->shape[dim] / 2 + 1;
  return AX_OK;
}

ax_status ax_infer_fft_c2r(ax_infer *q)
{
  const int64_t dim = q->a.fft_c2r.dim, n = q->a.fft_c2r.n;
  int64_t numel;
  size_t bytes;
  ax_status st = fft_size(q, dim, 1);
  if (st != AX_OK) return st;
  if (!is_complex(X)) return ax_fail(AX_EDTYPE, "irfft: expected a complex tensor, got %s", TYPE(X));
  if (n < 1) return ax_fail(AX_ERANGE, "irfft: expected at least 1 position, got %lld", (long long)n);
  if (X->shape[dim] != n / 2 + 1)
    return ax_fail(AX_ESHAPE, "irfft: dim %lld of shape %s should have %lld positions for a result of %lld",
                   (long long)dim + 1, TEXT(X), (long long)(n / 2 + 1), (long long)n);
  out_like(q, 0, ax_part_dtype((ax_dtype)X->dtype), X->ndim, X->shape);
  q->out[0].shape[dim] = n;
  return ax_shape_checked_bytes(X->ndim, q->out[0].shape, ax_itemsize(X), &numel, &bytes);
}

/* The transforms are linear; the gradient of each one is another one. */
RULE(fft_c2c)
{
  give(c, 0,
       call1(c, AX_OP_FFT_C2C, G,
             &AX_ATTRS(fft_c2c, .dim = A->fft_c2c.dim, .inverse = !A->fft_c2c.inverse,
                       .scale = A->fft_c2c.scale)));
}
RULE(fft_r2c)
{
  give(c, 0,
       call1(c, AX_OP_FFT_C2R, G,
             &AX_ATTRS(fft_c2r, .dim = A->fft_r2c.dim, .n = META(0)->shape[A->fft_r2c.dim],
                       .scale = A->fft_r2c.scale, .weight = A->fft_r2c.weight)));
}
RULE(fft_c2r)
{
  give(c, 0,
       call1(c, AX_OP_FFT_R2C, G,
             &AX_ATTRS(fft_r2c, .dim = A->fft_c2r.dim, .scale = A->fft_c2r.scale,
                       .weight = A->fft_c2r.weight)));
}

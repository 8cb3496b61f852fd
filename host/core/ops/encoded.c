/* Rules and the gradient of the rows for encoded matrices (core/encodings.def). */
#include "core/ops/rule.h"

typedef struct encoding_row {
  const char *name;
  int64_t block, bytes;
} encoding_row;

static const encoding_row encodings[] = {
#define ENCODING(ID, name, block, bytes) { #name, block, bytes },
#include "core/encodings.def"
#undef ENCODING
};

/* A matrix as a call describes it. */
typedef struct layout {
  const ax_infer *q;
  const encoding_row *row;
  int encoding;
  int64_t rows, cols, size;
  const ax_tensor *codes, *scales, *more;
} layout;

static int64_t groups(int64_t n, int64_t size) { return (n + size - 1) / size; }

static ax_status need_part(const layout *l, const char *what, const ax_tensor *t, ax_dtype dtype, int64_t n)
{
  const char *name = l->q->name;
  if (!t) return ax_fail(AX_EINVAL, "%s: %s needs %s", name, l->row->name, what);
  const ax_status st = need_dtype(l->q, t, dtype, what);
  if (st != AX_OK || t->numel == n) return st;
  return ax_fail(AX_ESHAPE, "%s: %s of %lld x %lld numbers in %s must be %lld elements, got %s", name, what,
                 (long long)l->rows, (long long)l->cols, l->row->name, (long long)n, TEXT(t));
}

static ax_status need_none(const layout *l, const char *what, const ax_tensor *t)
{
  return t ? ax_fail(AX_EINVAL, "%s: %s has no %s", l->q->name, l->row->name, what) : AX_OK;
}

/* nf4 and fp4: scales of float32, or those encoded in their turn. */
static ax_status check_four_bits(const layout *l)
{
  const int64_t count = groups(l->rows * l->cols, l->size);
  ax_status st;
  if (!l->more) return need_part(l, "scales", l->scales, AX_F32, count);
  st = need_part(l, "scales", l->scales, AX_U8, count);
  return st == AX_OK ? need_part(l, "more", l->more, AX_F32, AX_DYNAMIC_SCALES + groups(count, 256)) : st;
}

static ax_status check_scales(const layout *l)
{
  const int64_t n = l->rows * l->cols;
  ax_status st = AX_OK;

  switch (l->encoding) {
  case AX_ENC_NF4:
  case AX_ENC_FP4: return check_four_bits(l);
  case AX_ENC_DYNAMIC8:
    st = need_part(l, "scales", l->scales, AX_F32, AX_DYNAMIC_SCALES + groups(n, 256));
    break;
  case AX_ENC_INT8:
  case AX_ENC_FP8_ROWS: st = need_part(l, "scales", l->scales, AX_F32, l->rows); break;
  case AX_ENC_FP8:
    st = need_part(l, "scales", l->scales, AX_F32, groups(l->rows, l->size) * groups(l->cols, l->size));
    break;
  case AX_ENC_AFFINE4:
  case AX_ENC_AFFINE8:
    st = need_part(l, "scales", l->scales, AX_F32, l->rows * groups(l->cols, l->size));
    return st == AX_OK ? need_part(l, "more", l->more, AX_U8, l->rows * groups(l->cols, l->size)) : st;
  default: st = need_none(l, "scales", l->scales);
  }
  return st == AX_OK ? need_none(l, "more", l->more) : st;
}

/* Do the tensors hold a matrix of this encoding and shape?  Kernels read them without a look. */
static ax_status check(const layout *l)
{
  const char *name = l->q->name;
  ax_status st;

  AX_TRY(need_within(name, "rows", l->rows, 0, INT32_MAX));
  AX_TRY(need_within(name, "cols", l->cols, 0, INT32_MAX));
  AX_TRY(need_within(name, "size", l->size, 32, INT32_MAX));
  if (l->size & (l->size - 1))
    return ax_fail(AX_ERANGE, "%s: size must be a power of two, got %lld", name, (long long)l->size);
  const bool whole = l->encoding != AX_ENC_NF4 && l->encoding != AX_ENC_FP4; /* a row begins with a byte */
  if (whole && l->cols % l->row->block)
    return ax_fail(AX_ESHAPE, "%s: rows of %s must be multiples of %lld numbers, got %lld", name,
                   l->row->name, (long long)l->row->block, (long long)l->cols);
  AX_TRY(
      need_part(l, "codes", l->codes, AX_U8,
                whole ? l->rows * (l->cols / l->row->block) * l->row->bytes : groups(l->rows * l->cols, 2)));
  st = check_scales(l);
out:
  return st;
}

/* The row of an encoding's number. */
static ax_status row_of(const ax_infer *q, int64_t encoding, const encoding_row **out)
{
  const ax_status st = need_within(q->name, "encoding", encoding, 0, AX_ENCODING_COUNT - 1);
  if (st == AX_OK) *out = &encodings[encoding];
  return st;
}

ax_status ax_infer_decode(ax_infer *q)
{
  layout l = { .q = q,
               .encoding = (int)q->a.decode.encoding,
               .rows = q->a.decode.rows,
               .cols = q->a.decode.cols,
               .size = q->a.decode.size,
               .codes = INPUT(0),
               .scales = INPUT(1),
               .more = INPUT(2) };
  const ax_dtype dtype = (ax_dtype)q->a.decode.dtype;
  ax_status st;
  AX_TRY(row_of(q, q->a.decode.encoding, &l.row));
  AX_TRY(check(&l));
  if (!ax_is_float(dtype) || ax_is_float8(dtype))
    return ax_fail(AX_EDTYPE, "%s: dtype must be a floating type, got %s", q->name, ax_dtype_name(dtype));
  q->contiguous = 7;
  out_like(q, 0, dtype, 2, (int64_t[]){ l.rows, l.cols });
out:
  return st;
}

static ax_status check_bias(const ax_infer *q, const ax_tensor *x, const ax_tensor *b, int64_t rows)
{
  if (b->ndim != 1 || b->shape[0] != rows)
    return ax_fail(AX_ESHAPE, "%s: bias must be [%lld], got %s", q->name, (long long)rows, TEXT(b));
  if (b->dtype == x->dtype || (b->dtype == AX_F32 && ax_is_half((ax_dtype)x->dtype))) return AX_OK;
  return ax_fail(AX_EDTYPE, "%s: bias must be of the input's type %s, got %s", q->name, TYPE(x), TYPE(b));
}

ax_status ax_infer_linear_encoded(ax_infer *q)
{
  const ax_tensor *x = INPUT(0), *bias = INPUT(4);
  const double threshold = q->a.linear_encoded.threshold;
  layout l = { .q = q,
               .encoding = (int)q->a.linear_encoded.encoding,
               .rows = q->a.linear_encoded.rows,
               .cols = q->a.linear_encoded.cols,
               .size = q->a.linear_encoded.size,
               .codes = INPUT(1),
               .scales = INPUT(2),
               .more = INPUT(3) };
  int64_t shape[AX_MAX_DIMS];
  ax_status st;

  AX_TRY(row_of(q, q->a.linear_encoded.encoding, &l.row));
  AX_TRY(need_float(q, x));
  if (x->ndim < 1 || x->shape[x->ndim - 1] != l.cols)
    return ax_fail(AX_ESHAPE, "%s: input %s has %lld features, the weight (%lld, %lld) expects %lld", q->name,
                   TEXT(x), (long long)(x->ndim ? x->shape[x->ndim - 1] : 0), (long long)l.rows,
                   (long long)l.cols, (long long)l.cols);
  AX_TRY(check(&l));
  if (bias) AX_TRY(check_bias(q, x, bias, l.rows));
  if (!isnan(threshold) && (l.encoding != AX_ENC_INT8 || !(threshold >= 0)))
    return ax_fail(AX_EINVAL, "%s: threshold is for int8 and at least 0, got %g for %s", q->name, threshold,
                   l.row->name);
  memcpy(shape, x->shape, sizeof shape);
  shape[x->ndim - 1] = l.rows;
  q->contiguous = 31;
  out_like(q, 0, (ax_dtype)x->dtype, x->ndim, shape);
out:
  return st;
}

/* The matrix of the forward pass in the type of g. */
static ax_arg decoded(ax_grad *c, const ax_tensor *g)
{
  ax_tensor *results[AX_MAX_OUT] = { NULL };
  const ax_args args = { .n_in = 3,
                         .in = (ax_tensor *[]){ c->in[1], c->in[2], c->in[3] },
                         .a = AX_ATTRS(decode, .encoding = A->linear_encoded.encoding,
                                       .rows = A->linear_encoded.rows, .cols = A->linear_encoded.cols,
                                       .size = A->linear_encoded.size, .dtype = g->dtype) };
  const ax_status st = ax_run(AX_OP_DECODE, &args, results);
  return keep(c, st, results[0]);
}

/* x's gradient is that of the product with the decoded matrix. */
RULE(linear_encoded)
{
  const ax_arg g =
      with_list(c, AX_OP_RESHAPE, G, 2,
                (int64_t[]){ ax_shape_numel(META(0)->ndim - 1, META(0)->shape), A->linear_encoded.rows });
  if (c->st != AX_OK) return;
  if (WANTS(4)) give_row_sum(c, 4, g);
  if (!WANTS(0)) return;
  const ax_arg dx = bin(c, AX_OP_MM, g, decoded(c, g.t));
  give(c, 0, with_list(c, AX_OP_RESHAPE, dx, META(0)->ndim, META(0)->shape));
}

/* ---- encoding */

ax_status ax_infer_encode(ax_infer *q)
{
  const ax_tensor *x = INPUT(0);
  const int64_t encoding = q->a.encode.encoding, size = q->a.encode.size;
  const encoding_row *row;
  ax_status st;

  AX_TRY(row_of(q, encoding, &row));
  AX_TRY(need_float(q, x));
  if (encoding > AX_ENC_INT8)
    return ax_fail(AX_EINVAL, "%s: nothing is written in %s; known are nf4, fp4, dynamic8, int8", q->name,
                   row->name);
  AX_TRY(need_within(q->name, "size", size, 32, INT32_MAX));
  if (encoding == AX_ENC_INT8 && x->ndim != 2)
    return ax_fail(AX_ESHAPE, "%s: int8 takes a matrix, got %s", q->name, TEXT(x));
  q->contiguous = 1;
  q->cast = 1;
  q->compute = AX_F32;
  const bool four = encoding == AX_ENC_NF4 || encoding == AX_ENC_FP4;
  if (four) out_like(q, 0, AX_U8, 2, (int64_t[]){ groups(x->numel, 2), 1 });
  else out_like(q, 0, AX_U8, x->ndim, x->shape);
  out_like(q, 1, AX_F32, 1,
           (int64_t[]){ encoding == AX_ENC_INT8 ? x->shape[0]
                        : four                  ? groups(x->numel, size)
                                                : AX_DYNAMIC_SCALES + groups(x->numel, 256) });
out:
  return st;
}

/* Rules and gradients of convolutions.
 *
 * One row computes, _convolution over (n, c, h, w) or (n, c, d, h, w); conv1d has a height of 1.
 * Its two gradients are rows of their own, and the three are each other's gradients: y = conv(x,
 * w), dx = input(g, w) and dw = weight(x, g) are the three ways of summing the same products x g w.
 * A transposed convolution is `input` called from outside.
 *
 * stride, padding and dilation have three numbers, for depth, height and width; images use the last
 * two. */
#include "core/ops/rule.h"

static const char *shown(const ax_infer *q)
{
  if (q->op == AX_OP_CONVOLUTION) return INPUT(0)->ndim == 5 ? "conv3d" : "conv2d";
  return ax_op_shown(q->op);
}

/* The dims that windows slide along; number k of stride, padding and dilation belongs to dim k - 3
 * from the end. */
static int dims_of(const ax_tensor *t) { return t->ndim - 2; }
static bool is_image(const ax_tensor *t) { return t->ndim == 4 || t->ndim == 5; }

static ax_status check_numbers(const ax_infer *q, const ax_attrs *a, const ax_tensor *w)
{
  ax_status st = AX_OK;
  for (int d = 0; d < 3; d++) {
    AX_TRY(need_within(shown(q), "stride", a->convolution.stride[d], 1, INT32_MAX));
    AX_TRY(need_within(shown(q), "padding", a->convolution.padding[d], 0, INT32_MAX / 2));
    AX_TRY(need_within(shown(q), "dilation", a->convolution.dilation[d], 1, INT32_MAX));
  }
  for (int d = 2; is_image(w) && d < w->ndim; d++)
    AX_TRY(need_within(shown(q), "the kernel's size", w->shape[d], 0, INT32_MAX));
  AX_TRY(need_within(shown(q), "groups", a->convolution.groups, 1, INT32_MAX));
out:
  return st;
}

static ax_status check_types(const ax_infer *q, const ax_tensor *a, const ax_tensor *b)
{
  const ax_status st = need_float(q, a);
  if (st != AX_OK || a->dtype == b->dtype) return st;
  return ax_fail(AX_EDTYPE, "%s: element types differ: %s %s and %s %s", shown(q), TYPE(a), TEXT(a), TYPE(b),
                 TEXT(b));
}

/* How many windows fit along the dim of number d. */
static int64_t windows(const ax_attrs *a, int d, int64_t size, int64_t kernel)
{
  const int64_t room = size + 2 * a->convolution.padding[d] - a->convolution.dilation[d] * (kernel - 1) - 1;
  return room < 0 ? 0 : room / a->convolution.stride[d] + 1;
}

/* Numbers that have no effect become small ones: a stride beyond the last window, a dilation of a
 * single element.  Libraries multiply them as int. */
static void settle_numbers(ax_attrs *a, int dims, const int64_t *input, const int64_t *kernel)
{
  for (int k = 0; k < dims; k++) {
    const int d = 3 - dims + k;
    if (kernel[k] == 1) a->convolution.dilation[d] = 1;
    const int64_t room =
        input[k] + 2 * a->convolution.padding[d] - a->convolution.dilation[d] * (kernel[k] - 1) - 1;
    if (room >= 0 && a->convolution.stride[d] > room) a->convolution.stride[d] = room + 1;
  }
}

ax_status ax_infer_convolution(ax_infer *q)
{
  const ax_tensor *x = INPUT(0), *w = INPUT(1), *b = q->args->n_in > 2 ? INPUT(2) : NULL;
  const ax_attrs *a = &q->a;
  const int64_t groups = a->convolution.groups;
  const int dims = dims_of(x);
  int64_t shape[5];
  ax_status st;

  if ((st = check_types(q, x, w)) != AX_OK || (st = check_numbers(q, a, w)) != AX_OK) return st;
  if (!is_image(x) || w->ndim != x->ndim)
    return ax_fail(AX_ESHAPE,
                   "%s: expected input (n, in, h, w) and weight (out, in / groups, kh, kw), got %s and %s",
                   shown(q), TEXT(x), TEXT(w));
  if (w->numel == 0) return ax_fail(AX_ESHAPE, "%s: the weight has no elements: %s", shown(q), TEXT(w));
  if (w->shape[0] % groups != 0)
    return ax_fail(AX_ESHAPE, "%s: %lld groups do not divide the %lld output channels of weight %s", shown(q),
                   (long long)groups, (long long)w->shape[0], TEXT(w));
  if (x->shape[1] != w->shape[1] * groups)
    return ax_fail(AX_ESHAPE, "%s: input %s has %lld channels, weight %s with %lld group%s expects %lld",
                   shown(q), TEXT(x), (long long)x->shape[1], TEXT(w), (long long)groups,
                   groups == 1 ? "" : "s", (long long)(w->shape[1] * groups));
  if (b) {
    if ((st = check_types(q, x, b)) != AX_OK) return st;
    if (b->ndim != 1 || b->shape[0] != w->shape[0])
      return ax_fail(AX_ESHAPE, "%s: bias must be [%lld] for weight %s, got %s", shown(q),
                     (long long)w->shape[0], TEXT(w), TEXT(b));
  }
  shape[0] = x->shape[0];
  shape[1] = w->shape[0];
  for (int k = 0; k < dims; k++) {
    const int d = 3 - dims + k;
    if ((shape[2 + k] = windows(a, d, x->shape[2 + k], w->shape[2 + k])) == 0)
      return ax_fail(AX_ESHAPE,
                     "%s: the kernel %s does not fit the padded input %s: dim %d has %lld elements, the "
                     "kernel spans %lld",
                     shown(q), TEXT(w), TEXT(x), k + 3,
                     (long long)(x->shape[2 + k] + 2 * a->convolution.padding[d]),
                     (long long)(a->convolution.dilation[d] * (w->shape[2 + k] - 1) + 1));
  }
  settle_numbers(&q->a, dims, x->shape + 2, w->shape + 2);
  q->contiguous = 2 | 4;
  q->channels_last = 1 | 1 << 8;
  out_like(q, 0, (ax_dtype)x->dtype, x->ndim, shape);
  return AX_OK;
}

ax_status ax_infer_convolution_input(ax_infer *q)
{
  const ax_tensor *g = INPUT(0), *w = INPUT(1);
  const ax_attrs *a = &q->a;
  const int64_t groups = a->convolution.groups, *shape = a->list;
  const ax_status st = check_types(q, g, w);
  if (st != AX_OK) return st;
  const int dims = dims_of(g);
  if (!is_image(g) || w->ndim != g->ndim || q->a.n_list != g->ndim || g->shape[1] != w->shape[0] ||
      shape[1] != w->shape[1] * groups)
    return ax_fail(AX_ESHAPE, "%s: %s and weight %s do not fit each other", shown(q), TEXT(g), TEXT(w));
  for (int k = 0; k < dims; k++)
    if (windows(a, 3 - dims + k, shape[2 + k], w->shape[2 + k]) != g->shape[2 + k])
      return ax_fail(AX_ESHAPE, "%s: %s and weight %s do not come from an input with a dim %d of %lld",
                     shown(q), TEXT(g), TEXT(w), k + 3, (long long)shape[2 + k]);
  settle_numbers(&q->a, dims, shape + 2, w->shape + 2);
  q->contiguous = 2;
  q->channels_last = 1 | 1 << 8;
  out_like(q, 0, (ax_dtype)g->dtype, g->ndim, shape);
  return AX_OK;
}

ax_status ax_infer_convolution_weight(ax_infer *q)
{
  const ax_tensor *x = INPUT(0), *g = INPUT(1);
  const int64_t *shape = q->a.list;
  const ax_status st = check_types(q, x, g);
  if (st != AX_OK) return st;
  if (!is_image(x) || g->ndim != x->ndim || q->a.n_list != x->ndim || g->shape[1] != shape[0] ||
      x->shape[0] != g->shape[0])
    return ax_fail(AX_ESHAPE, "%s: input %s and gradient %s do not fit each other", shown(q), TEXT(x),
                   TEXT(g));
  settle_numbers(&q->a, dims_of(x), x->shape + 2, shape + 2);
  q->channels_last = 1 | 2;
  out_like(q, 0, q->a.wide ? AX_F32 : (ax_dtype)x->dtype, x->ndim, shape);
  return AX_OK;
}

/* ---- counted multiplications and additions */

/* Each element of `images` is a sum of products with the elements of one channel of the weight. */
static int64_t taps(const ax_tensor *images, const ax_tensor *weight)
{
  return weight->numel ? 2 * images->numel * (weight->numel / weight->shape[0]) : 0;
}

int64_t ax_flops_convolution(const ax_args *args, ax_tensor *const *out) { return taps(out[0], args->in[1]); }

int64_t ax_flops_convolution_input(const ax_args *args, ax_tensor *const *out)
{
  (void)out;
  return taps(args->in[0], args->in[1]);
}

int64_t ax_flops_convolution_weight(const ax_args *args, ax_tensor *const *out)
{
  return taps(args->in[1], out[0]);
}

/* ---- the user's rows: dims added and taken away, then _convolution */

static ax_status run_row(ax_op op, int n, ax_tensor *const *in, const ax_attrs *a, const int64_t *shape,
                         ax_tensor **out)
{
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  const int ndim = in[0]->ndim;
  ax_args args = { .n_in = n, .in = in, .a = { .convolution = a->convolution, .n_list = shape ? ndim : -1 } };
  if (shape) memcpy(args.a.list, shape, (size_t)ndim * sizeof *shape);
  const ax_status st = ax_run(op, &args, results);
  *out = results[0];
  return st;
}

/* Makes x (c, ..) or (n, c, ..) with `dims` sizes after the channels 4-d or 5-d: a batch of one, a
 * height of one. */
static ax_status widen(const ax_infer *q, ax_tensor *x, int dims, ax_tensor **out)
{
  ax_tensor *tall = NULL;
  ax_status st;
  if (x->ndim != dims + 1 && x->ndim != dims + 2)
    return ax_fail(AX_ESHAPE, "%s: expected an input of %d dims, or %d without a batch, got %s", q->name,
                   dims + 2, dims + 1, TEXT(x));
  if (dims == 1) AX_TRY(run_unsqueeze(x, x->ndim - 1, &tall));
  else tall = ax_tensor_retain(x);
  if (x->ndim == dims + 1) st = run_unsqueeze(tall, 0, out);
  else {
    *out = tall;
    return AX_OK;
  }
out:
  ax_tensor_release(tall);
  return st;
}

static ax_status weight_of(const ax_infer *q, int dims, ax_tensor **out)
{
  ax_tensor *w = INPUT(1);
  if (w->ndim != dims + 2)
    return ax_fail(AX_ESHAPE, "%s: expected a weight of %d dims, got %s", q->name, dims + 2, TEXT(w));
  if (dims == 1) return run_unsqueeze(w, 2, out);
  *out = ax_tensor_retain(w);
  return AX_OK;
}

/* Sums of products of integers. */
static ax_status of_integers(ax_infer *q)
{
  ax_tensor *const bias = q->args->n_in > 2 ? INPUT(2) : NULL;
  double most = (double)INPUT(1)->numel, added = bias ? 1 : 0;
  ax_status st;

  AX_TRY(run_magnitude(INPUT(0), &most));
  if (is_whole(INPUT(1))) AX_TRY(run_magnitude(INPUT(1), &most));
  if (bias && is_whole(bias)) AX_TRY(run_magnitude(bias, &added));
  st = run_whole(q, most + added);
out:
  return st;
}

static ax_status forward(ax_infer *q, int dims, const ax_attrs *a)
{
  ax_tensor *in[3] = { NULL, NULL, q->args->n_in > 2 ? INPUT(2) : NULL }, *y = NULL;
  ax_status st;
  if (is_whole(INPUT(0))) return of_integers(q);
  AX_TRY(widen(q, INPUT(0), dims, &in[0]));
  AX_TRY(weight_of(q, dims, &in[1]));
  AX_TRY(run_row(AX_OP_CONVOLUTION, in[2] ? 3 : 2, in, a, NULL, &y));
  st = run_narrow_as(INPUT(0), dims, y, &q->result[0]);
out:
  ax_tensor_release(in[0]), ax_tensor_release(in[1]);
  return st;
}

ax_status ax_infer_conv3d(ax_infer *q) { return forward(q, 3, &q->a); }

/* The last two of three numbers, from a row's two. */
#define LAST_TWO(first, pair) \
  { \
    first, (pair)[0], (pair)[1] \
  }
#define ALL_THREE(three) \
  { \
    (three)[0], (three)[1], (three)[2] \
  }

ax_status ax_infer_conv2d(ax_infer *q)
{
  const ax_attrs *a = &q->a;
  return forward(q, 2,
                 &AX_ATTRS(convolution, .stride = LAST_TWO(1, a->conv2d.stride),
                           .padding = LAST_TWO(0, a->conv2d.padding),
                           .dilation = LAST_TWO(1, a->conv2d.dilation), .groups = a->conv2d.groups));
}

ax_status ax_infer_conv1d(ax_infer *q)
{
  return forward(q, 1,
                 &AX_ATTRS(convolution, .stride = { 1, 1, q->a.conv1d.stride },
                           .padding = { 0, 0, q->a.conv1d.padding },
                           .dilation = { 1, 1, q->a.conv1d.dilation }, .groups = q->a.conv1d.groups));
}

static ax_status check_transposed(const ax_infer *q, const ax_attrs *a, const ax_tensor *x,
                                  const ax_tensor *w, const ax_tensor *bias)
{
  const int64_t groups = a->convolution.groups, channels = w->shape[1] * groups;
  ax_status st;

  AX_TRY(check_types(q, x, w));
  AX_TRY(check_numbers(q, a, w));
  if (w->numel == 0) return ax_fail(AX_ESHAPE, "%s: the weight has no elements: %s", q->name, TEXT(w));
  if (x->shape[1] != w->shape[0])
    return ax_fail(AX_ESHAPE, "%s: input %s has %lld channels, weight %s expects %lld", q->name,
                   TEXT(INPUT(0)), (long long)x->shape[1], TEXT(INPUT(1)), (long long)w->shape[0]);
  if (w->shape[0] % groups != 0)
    return ax_fail(AX_ESHAPE, "%s: %lld groups do not divide the %lld input channels", q->name,
                   (long long)groups, (long long)w->shape[0]);
  if (bias && (bias->ndim != 1 || bias->shape[0] != channels))
    return ax_fail(AX_ESHAPE, "%s: bias must be [%lld] for weight %s, got %s", q->name, (long long)channels,
                   TEXT(INPUT(1)), TEXT(bias));
out:
  return st;
}

/* The size of a transposed convolution's result along dim d of three, which is dim `at` of x. */
static ax_status transposed_size(const ax_infer *q, const ax_attrs *a, int d, int at, const ax_tensor *x,
                                 const ax_tensor *w, int64_t extra, int64_t *size)
{
  const int64_t stride = a->convolution.stride[d], dilation = a->convolution.dilation[d];

  if (extra < 0 || (extra >= stride && extra >= dilation))
    return ax_fail(AX_ERANGE,
                   "%s: output_padding must be below the stride or the dilation (%lld, %lld), got %lld",
                   q->name, (long long)stride, (long long)dilation, (long long)extra);
  *size =
      (x->shape[at] - 1) * stride - 2 * a->convolution.padding[d] + dilation * (w->shape[at] - 1) + extra + 1;
  if (x->shape[at] < 1 || *size < 1)
    return ax_fail(AX_ESHAPE, "%s: input %s and weight %s give a result with dim %d of %lld", q->name,
                   TEXT(INPUT(0)), TEXT(INPUT(1)), at + 1, (long long)*size);
  return AX_OK;
}

static ax_status transposed(ax_infer *q, int dims, const ax_attrs *a, const int64_t *extra)
{
  ax_tensor *x = NULL, *w = NULL, *y = NULL, *rows = NULL, *sum = NULL,
            *bias = q->args->n_in > 2 ? INPUT(2) : NULL;
  ax_attrs whole = *a, margins = { .n_list = 0 };
  int64_t shape[5], reached[5];
  int deep;
  ax_status st;

  if (is_whole(INPUT(0))) return of_integers(q);
  AX_TRY(widen(q, INPUT(0), dims, &x));
  AX_TRY(weight_of(q, dims, &w));
  deep = dims_of(x);
  AX_TRY(check_transposed(q, a, x, w, bias));
  shape[0] = reached[0] = x->shape[0];
  shape[1] = reached[1] = w->shape[1] * a->convolution.groups;
  for (int k = 0; k < deep; k++) {
    const int d = 3 - deep + k;
    AX_TRY(transposed_size(q, a, d, 2 + k, x, w, extra[d], &shape[2 + k]));
    reached[2 + k] = shape[2 + k];
    /* a stride below the dilation: more windows would fit, so the whole result is computed and
     * cut */
    if (windows(a, d, shape[2 + k], w->shape[2 + k]) != x->shape[2 + k]) {
      const int64_t cut = a->convolution.padding[d];
      reached[2 + k] += 2 * cut - extra[d];
      whole.convolution.padding[d] = 0;
      margins.n_list = 2 * deep;
      margins.list[2 * (deep - 1 - k)] = -cut;
      margins.list[2 * (deep - 1 - k) + 1] = shape[2 + k] - (reached[2 + k] - cut);
    }
  }
  AX_TRY(run_row(AX_OP_CONVOLUTION_INPUT, 2, (ax_tensor *[]){ x, w }, &whole, reached, &y));
  if (margins.n_list) {
    AX_TRY(run_with(AX_OP_PAD_CONSTANT, y, &margins, &sum));
    ax_tensor_release(y);
    y = sum;
  }
  if (bias) {
    AX_TRY(run_list(AX_OP_RESHAPE, bias, 1 + deep, (int64_t[]){ shape[1], 1, 1, 1 }, &rows));
    AX_TRY(ax_run2(AX_OP_ADD, y, rows, &sum));
    ax_tensor_release(y);
    y = sum;
  }
  st = run_narrow_as(INPUT(0), dims, y, &q->result[0]);
  y = NULL;
out:
  ax_tensor_release(x), ax_tensor_release(w), ax_tensor_release(y), ax_tensor_release(rows);
  return st;
}

ax_status ax_infer_conv_transpose3d(ax_infer *q)
{
  const ax_attrs *a = &q->a;
  return transposed(q, 3,
                    &AX_ATTRS(convolution, .stride = ALL_THREE(a->conv_transpose3d.stride),
                              .padding = ALL_THREE(a->conv_transpose3d.padding),
                              .dilation = ALL_THREE(a->conv_transpose3d.dilation),
                              .groups = a->conv_transpose3d.groups),
                    a->conv_transpose3d.output_padding);
}

ax_status ax_infer_conv_transpose2d(ax_infer *q)
{
  const ax_attrs *a = &q->a;
  return transposed(q, 2,
                    &AX_ATTRS(convolution, .stride = LAST_TWO(1, a->conv_transpose2d.stride),
                              .padding = LAST_TWO(0, a->conv_transpose2d.padding),
                              .dilation = LAST_TWO(1, a->conv_transpose2d.dilation),
                              .groups = a->conv_transpose2d.groups),
                    (int64_t[])LAST_TWO(0, a->conv_transpose2d.output_padding));
}

ax_status ax_infer_conv_transpose1d(ax_infer *q)
{
  const ax_attrs *a = &q->a;
  return transposed(q, 1,
                    &AX_ATTRS(convolution, .stride = { 1, 1, a->conv_transpose1d.stride },
                              .padding = { 0, 0, a->conv_transpose1d.padding },
                              .dilation = { 1, 1, a->conv_transpose1d.dilation },
                              .groups = a->conv_transpose1d.groups),
                    (int64_t[]){ 0, 0, a->conv_transpose1d.output_padding });
}

/* ---- gradients */

static ax_attrs shaped_as(const ax_attrs *a, const ax_meta *like)
{
  ax_attrs with = *a;
  with.n_list = like->ndim;
  memcpy(with.list, like->shape, (size_t)like->ndim * sizeof *like->shape);
  return with;
}

static ax_arg to_input(ax_grad *c, ax_arg g, ax_arg w, const ax_meta *x)
{
  const ax_attrs a = shaped_as(A, x);
  return call(c, AX_OP_CONVOLUTION_INPUT, 2, (ax_arg[]){ g, w }, &a);
}

static ax_arg plain(ax_grad *c, ax_arg x, ax_arg w)
{
  ax_attrs a = *A;
  a.n_list = -1;
  return call(c, AX_OP_CONVOLUTION, 2, (ax_arg[]){ x, w }, &a);
}

/* d(input k) = the weight's gradient, straight into the leaf's slot of the flat gradient when there
 * is one. */
static void give_weight(ax_grad *c, int k, ax_arg x, ax_arg g)
{
  bool accumulate;
  ax_attrs a = shaped_as(A, META(k));
  ax_tensor *slot = c->st == AX_OK ? ax_grad_slot_of(c, k, &accumulate) : NULL;
  if (slot && (slot->dtype == x.t->dtype || (slot->dtype == AX_F32 && ax_is_half((ax_dtype)x.t->dtype))) &&
      slot->ndim == x.t->ndim && x.t->storage != slot->storage && g.t->storage != slot->storage) {
    a.accumulate = accumulate;
    a.wide = slot->dtype != x.t->dtype;
    c->st = ax_run_into(AX_OP_CONVOLUTION_WEIGHT,
                        &(ax_args){ .n_in = 2, .in = (ax_tensor *[]){ x.t, g.t }, .a = a }, slot);
    if (c->st == AX_OK) ax_grad_slot_written(c, k);
  } else give(c, k, call(c, AX_OP_CONVOLUTION_WEIGHT, 2, (ax_arg[]){ x, g }, &a));
}

RULE(convolution)
{
  if (WANTS(0)) give(c, 0, to_input(c, G, IN(1), META(0)));
  if (WANTS(1)) give_weight(c, 1, IN(0), G);
  if (c->node->n_in > 2 && WANTS(2)) give_channel_sum(c, 2, G);
}

RULE(convolution_input) /* dx = input(g, w) */
{
  if (WANTS(0)) give(c, 0, plain(c, G, IN(1)));
  if (WANTS(1)) give_weight(c, 1, G, IN(0));
}

RULE(convolution_weight) /* dw = weight(x, g) */
{
  if (WANTS(0)) give(c, 0, to_input(c, IN(1), G, META(0)));
  if (WANTS(1)) give(c, 1, plain(c, IN(0), G));
}

/* Gradients of the activations of pointwise.def, and those activations that other rows make up.
 *
 * The gradient of f is one fused row, g f'(x).  That row is linear in g, so its gradient with
 * respect to g is itself; with respect to x it is G g f''(x), written in op rows here, so that
 * differentiating goes on as far as one likes. */
#include "core/ops/rule.h"

ax_status ax_infer_softshrink(ax_infer *q)
{
  if (!(q->a.softshrink.lambd >= 0))
    return ax_fail(AX_ERANGE, "%s: lambd must be at least 0, got %g", q->name, q->a.softshrink.lambd);
  return ax_infer_floats(q);
}

static ax_arg back(ax_grad *c, ax_op op, ax_arg g, ax_arg x, const ax_attrs *a)
{
  return call(c, op, 2, (ax_arg[]){ g, x }, a);
}
static ax_arg add(ax_grad *c, ax_arg a, ax_arg b) { return bin(c, AX_OP_ADD, a, b); }
static ax_arg sigmoid(ax_grad *c, ax_arg x) { return un(c, AX_OP_SIGMOID, x); }
static ax_arg slope_of_sigmoid(ax_grad *c, ax_arg s) { return mul(c, s, sub(c, NUM(1), s)); }

/* f: g f'(x) through its row */
#define ACTIVATION(name, ID) \
  RULE(name) { give(c, 0, back(c, AX_OP_##ID##_BACKWARD, G, IN(0), A)); }
ACTIVATION(gelu, GELU)
ACTIVATION(silu, SILU)
ACTIVATION(mish, MISH)
ACTIVATION(leaky_relu, LEAKY_RELU)
ACTIVATION(softplus, SOFTPLUS)
ACTIVATION(logsigmoid, LOGSIGMOID)
ACTIVATION(hardtanh, HARDTANH)
ACTIVATION(hardsigmoid, HARDSIGMOID)
ACTIVATION(hardswish, HARDSWISH)
ACTIVATION(softshrink, HARDSHRINK)
ACTIVATION(threshold, THRESHOLD)

static void grad_elu(ax_grad *c, double alpha, double scale, double input_scale)
{
  give(c, 0,
       back(c, AX_OP_ELU_BACKWARD, G, IN(0),
            &AX_ATTRS(elu_backward, .alpha = alpha, .scale = scale, .input_scale = input_scale)));
}
RULE(elu) { grad_elu(c, A->elu.alpha, 1, 1); }
RULE(selu) { grad_elu(c, 1.6732632423543772848, 1.0507009873554804934, 1); }
RULE(celu) { grad_elu(c, A->celu.alpha, 1, 1 / A->celu.alpha); }
RULE(relu6)
{
  give(c, 0,
       back(c, AX_OP_HARDTANH_BACKWARD, G, IN(0), &AX_ATTRS(hardtanh_backward, .min_val = 0, .max_val = 6)));
}

/* g f'(x) for f' that is constant between kinks */
#define FLAT(name, ID) \
  RULE(name##_backward) \
  { \
    if (WANTS(0)) give(c, 0, back(c, AX_OP_##ID##_BACKWARD, G, IN(1), A)); \
    if (WANTS(1)) give(c, 1, filled(c, 1, 0)); \
  }
FLAT(leaky_relu, LEAKY_RELU)
FLAT(hardtanh, HARDTANH)
FLAT(hardsigmoid, HARDSIGMOID)
FLAT(hardshrink, HARDSHRINK)
FLAT(threshold, THRESHOLD)

/* g f'(x) for a curved f; `second` gives f''(x) */
#define CURVED(name, ID, second) \
  RULE(name##_backward) \
  { \
    const ax_arg x = IN(1); \
    if (WANTS(0)) give(c, 0, back(c, AX_OP_##ID##_BACKWARD, G, x, A)); \
    if (WANTS(1)) give(c, 1, mul(c, mul(c, G, IN(0)), second)); \
  }

/* none: phi(x) (2 - x^2).  tanh: with t = tanh u, (1 - t^2) (u' + x (u''/2 - t u'^2)) */
static ax_arg gelu_second(ax_grad *c, ax_arg x)
{
  const ax_arg square = un(c, AX_OP_SQUARE, x);
  if (A->gelu_backward.approximate == 0) {
    const ax_arg density = mul(c, un(c, AX_OP_EXP, mul(c, square, NUM(-0.5))), NUM(0.39894228040143267794));
    return mul(c, density, sub(c, NUM(2), square));
  }
  const double k = 0.79788456080286535588, cube = 0.044715;
  const ax_arg t = un(c, AX_OP_TANH, mul(c, mul(c, x, NUM(k)), add(c, mul(c, square, NUM(cube)), NUM(1))));
  const ax_arg slope = add(c, mul(c, square, NUM(3 * cube * k)), NUM(k));
  const ax_arg bend = sub(c, mul(c, x, NUM(3 * cube * k)), mul(c, t, un(c, AX_OP_SQUARE, slope)));
  return mul(c, sub(c, NUM(1), un(c, AX_OP_SQUARE, t)), add(c, slope, mul(c, x, bend)));
}
CURVED(gelu, GELU, gelu_second(c, x))

/* s (1 - s) (2 + x (1 - 2s)) */
static ax_arg silu_second(ax_grad *c, ax_arg x)
{
  const ax_arg s = sigmoid(c, x);
  return mul(c, slope_of_sigmoid(c, s), add(c, mul(c, x, sub(c, NUM(1), mul(c, s, NUM(2)))), NUM(2)));
}
CURVED(silu, SILU, silu_second(c, x))

/* with w = tanh(softplus x) and s = sigmoid x: w' = s (1 - w^2), w'' = w' (1 - s) - 2 w w' s; f'' =
 * 2 w' + x w'' */
static ax_arg mish_second(ax_grad *c, ax_arg x)
{
  const ax_arg w = un(c, AX_OP_TANH,
                      call(c, AX_OP_SOFTPLUS, 1, &x, &AX_ATTRS(softplus, .beta = 1, .threshold = 20))),
               s = sigmoid(c, x);
  const ax_arg first = mul(c, s, sub(c, NUM(1), un(c, AX_OP_SQUARE, w)));
  const ax_arg bend = sub(c, sub(c, NUM(1), s), mul(c, mul(c, w, s), NUM(2)));
  return mul(c, first, add(c, mul(c, x, bend), NUM(2)));
}
CURVED(mish, MISH, mish_second(c, x))

/* alpha scale input_scale^2 exp(input_scale x) below 0 */
static ax_arg elu_second(ax_grad *c, ax_arg x)
{
  const double by = A->elu_backward.input_scale,
               all = A->elu_backward.alpha * A->elu_backward.scale * by * by;
  const ax_arg below = call(c, AX_OP_CLAMP, 1, &x, &AX_ATTRS(clamp, .min = -INFINITY, .max = 0));
  return where(c, bin(c, AX_OP_GT, x, NUM(0)), NUM(0),
               mul(c, un(c, AX_OP_EXP, mul(c, below, NUM(by))), NUM(all)));
}
CURVED(elu, ELU, elu_second(c, x))

/* beta s (1 - s) up to the threshold */
static ax_arg softplus_second(ax_grad *c, ax_arg x)
{
  const double beta = A->softplus_backward.beta, threshold = A->softplus_backward.threshold;
  const ax_arg bx = mul(c, x, NUM(beta)), s = sigmoid(c, bx);
  return where(c, bin(c, AX_OP_GT, bx, NUM(threshold)), NUM(0), mul(c, slope_of_sigmoid(c, s), NUM(beta)));
}
CURVED(softplus, SOFTPLUS, softplus_second(c, x))
CURVED(logsigmoid, LOGSIGMOID, un(c, AX_OP_NEG, slope_of_sigmoid(c, sigmoid(c, x))))

/* 1/3 between -3 and 3 */
CURVED(hardswish, HARDSWISH, where(c, bin(c, AX_OP_LT, un(c, AX_OP_ABS, x), NUM(3)), NUM(1.0 / 3), NUM(0)))

/* ---- made up of other rows */

ax_status ax_infer_softsign(ax_infer *q)
{
  ax_tensor *size = NULL, *bottom = NULL;
  ax_status st;
  AX_TRY(ax_run1(AX_OP_ABS, INPUT(0), &size));
  AX_TRY(ax_run_num(AX_OP_ADD, size, 1, &bottom));
  st = ax_run2(AX_OP_DIV, INPUT(0), bottom, &q->result[0]);
out:
  ax_tensor_release(size);
  ax_tensor_release(bottom);
  return st;
}

ax_status ax_infer_tanhshrink(ax_infer *q)
{
  ax_tensor *t = NULL;
  ax_status st = ax_run1(AX_OP_TANH, INPUT(0), &t);
  if (st == AX_OK) st = ax_run2(AX_OP_SUB, INPUT(0), t, &q->result[0]);
  ax_tensor_release(t);
  return st;
}

ax_status ax_infer_prelu(ax_infer *q)
{
  const ax_tensor *x = INPUT(0);
  ax_tensor *weight = INPUT(1), *shaped = NULL, *scaled = NULL, *positive = NULL, *results[AX_MAX_OUT];
  const int64_t channels = x->ndim > 1 ? x->shape[1] : 1;
  int64_t shape[AX_MAX_DIMS];
  ax_status st;

  if ((st = need_float(q, x)) != AX_OK) return st;
  if (weight->numel != 1 && (weight->ndim != 1 || weight->numel != channels))
    return ax_fail(AX_ESHAPE, "prelu: weight must have 1 element or %lld, the size of dim 2, got %s for x %s",
                   (long long)channels, TEXT(weight), TEXT(x));
  for (int d = 0; d < x->ndim; d++) shape[d] = d == 1 && weight->numel != 1 ? channels : 1;
  AX_TRY(run_list(AX_OP_RESHAPE, weight, x->ndim, shape, &shaped));
  AX_TRY(ax_run2(AX_OP_MUL, INPUT(0), shaped, &scaled));
  AX_TRY(ax_run_num(AX_OP_GT, INPUT(0), 0, &positive));
  st = ax_run(AX_OP_WHERE,
              &(ax_args){
                  .n_in = 3, .in = (ax_tensor *[]){ positive, INPUT(0), scaled }, .a = { .n_list = -1 } },
              results);
  q->result[0] = results[0];
out:
  ax_tensor_release(shaped);
  ax_tensor_release(scaled);
  ax_tensor_release(positive);
  return st;
}

ax_status ax_infer_glu(ax_infer *q)
{
  ax_tensor *x = INPUT(0), *half[2] = { 0 }, *gate = NULL;
  const int64_t dim = q->a.glu.dim;
  ax_status st;

  if (x->ndim == 0 || x->shape[dim] % 2)
    return ax_fail(AX_ESHAPE, "glu: dim %lld must have an even size, got %s", (long long)dim + 1, TEXT(x));
  const int64_t sizes[2] = { x->shape[dim] / 2, x->shape[dim] / 2 };
  AX_TRY(ax_split_into(x, (int)dim, 2, sizes, half)); /* one gradient for both halves */
  AX_TRY(ax_run1(AX_OP_SIGMOID, half[1], &gate));
  st = ax_run2(AX_OP_MUL, half[0], gate, &q->result[0]);
out:
  ax_tensor_release(half[0]);
  ax_tensor_release(half[1]);
  ax_tensor_release(gate);
  return st;
}

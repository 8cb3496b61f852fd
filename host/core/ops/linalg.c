/* Rules and gradients of products. */
#include "core/ops/rule.h"

#define X INPUT(0)

static ax_status same_dtype(const ax_infer *q, const ax_tensor *a, const ax_tensor *b)
{
  if (a->dtype == b->dtype && a->dtype != AX_BOOL) return AX_OK;
  if (a->dtype == b->dtype) return ax_fail(AX_EDTYPE, "%s: not defined for bool", q->name);
  return ax_fail(AX_EDTYPE, "%s: element types differ: %s %s x %s %s", q->name, TYPE(a), TEXT(a), TYPE(b),
                 TEXT(b));
}

ax_status ax_infer_mm(ax_infer *q)
{
  const ax_tensor *a = INPUT(0), *b = INPUT(1);
  ax_status st;
  if (a->ndim != 2 || b->ndim != 2)
    return ax_fail(AX_ESHAPE, "mm: expected two matrices, got %s x %s; matmul takes stacks of them", TEXT(a),
                   TEXT(b));
  if ((st = same_dtype(q, a, b)) != AX_OK) return st;
  if (a->shape[1] != b->shape[0])
    return ax_fail(AX_ESHAPE, "mm: inner dimensions differ: %s x %s", TEXT(a), TEXT(b));
  out_like(q, 0, result_dtype(q, (ax_dtype)a->dtype), 2, (int64_t[]){ a->shape[0], b->shape[1] });
  return AX_OK;
}

ax_status ax_infer_bmm(ax_infer *q)
{
  const ax_tensor *a = INPUT(0), *b = INPUT(1);
  ax_status st;
  if (a->ndim != 3 || b->ndim != 3)
    return ax_fail(AX_ESHAPE, "bmm: expected two stacks of matrices, got %s x %s", TEXT(a), TEXT(b));
  if ((st = same_dtype(q, a, b)) != AX_OK) return st;
  if (a->shape[0] != b->shape[0])
    return ax_fail(AX_ESHAPE, "bmm: stacks differ in length: %s x %s", TEXT(a), TEXT(b));
  if (a->shape[2] != b->shape[1])
    return ax_fail(AX_ESHAPE, "bmm: inner dimensions differ: %s x %s", TEXT(a), TEXT(b));
  out_like(q, 0, result_dtype(q, (ax_dtype)a->dtype), 3,
           (int64_t[]){ a->shape[0], a->shape[1], b->shape[2] });
  return AX_OK;
}

/* Rows of so many elements that padding is nothing beside them. */
enum { LONG_ROW = 4096 };

/* Logits of 50,257 classes: rows that begin anywhere could not be loaded in blocks (TMA) by the
 * products that their gradient goes through, nor be written so by this one. */
static ax_status choose_rows(ax_infer *q)
{
  const ax_meta *y = &q->out[0];
  const int64_t n = y->ndim ? y->shape[y->ndim - 1] : 0;
  const ax_backend *backend;

  if (y->ndim < 2 || n < LONG_ROW || n * (int64_t)ax_dtype_size(y->dtype) % 16 == 0 || !ax_is_float(y->dtype))
    return AX_OK;
  const ax_status st = ax_backend_of(INPUT(0)->device, &backend);
  if (st == AX_OK) q->padded = backend->pads_rows;
  return st;
}

ax_status ax_infer_linear(ax_infer *q)
{
  const ax_tensor *x = INPUT(0), *w = INPUT(1), *b = q->args->n_in > 2 ? INPUT(2) : NULL;
  int64_t shape[AX_MAX_DIMS];
  ax_status st;

  if (w->ndim != 2) return ax_fail(AX_ESHAPE, "%s: weight must be (out, in), got %s", q->name, TEXT(w));
  if (x->ndim < 1 || x->shape[x->ndim - 1] != w->shape[1])
    return ax_fail(AX_ESHAPE, "%s: input %s has %lld features, weight %s expects %lld", q->name, TEXT(x),
                   (long long)(x->ndim ? x->shape[x->ndim - 1] : 0), TEXT(w), (long long)w->shape[1]);
  if ((st = same_dtype(q, x, w)) != AX_OK) return st;
  if (b) {
    if (b->ndim != 1 || b->shape[0] != w->shape[0])
      return ax_fail(AX_ESHAPE, "%s: bias must be [%lld] for weight %s, got %s", q->name,
                     (long long)w->shape[0], TEXT(w), TEXT(b));
    /* added before the result is rounded */
    const bool mixed = b->dtype == AX_F32 && ax_is_half((ax_dtype)x->dtype);
    if (!mixed && (st = same_dtype(q, x, b)) != AX_OK) return st;
  }
  memcpy(shape, x->shape, sizeof shape);
  shape[x->ndim - 1] = w->shape[0];
  q->contiguous = 1 | 4;
  out_like(q, 0, result_dtype(q, (ax_dtype)x->dtype), x->ndim, shape);
  return choose_rows(q);
}

ax_status ax_infer_linear_gelu(ax_infer *q)
{
  const ax_status st = need_float(q, INPUT(0));
  if (st != AX_OK) return st;
  const ax_status fits = ax_infer_linear(q);
  q->padded = 0;
  if (fits == AX_OK) out_like(q, 1, q->out[0].dtype, q->out[0].ndim, q->out[0].shape);
  return fits;
}

ax_status ax_infer_linear_backward(ax_infer *q) /* only the rule below calls this row, past the dispatcher */
{
  return ax_fail(AX_EINVAL, "%s: is part of a gradient", q->name);
}

ax_status ax_infer_mm_dgelu(ax_infer *q)
{
  const ax_tensor *x = INPUT(2);
  const ax_status st = need_float(q, INPUT(0));
  if (st != AX_OK) return st;
  const ax_status fits = ax_infer_mm(q);
  if (fits != AX_OK) return fits;
  if (x->dtype != INPUT(0)->dtype || x->ndim != 2 || x->shape[0] != q->out[0].shape[0] ||
      x->shape[1] != q->out[0].shape[1])
    return ax_fail(AX_ESHAPE, "%s: x must be of the product's type and shape, got %s %s", q->name, TYPE(x),
                   TEXT(x));
  q->contiguous = 4;
  return AX_OK;
}

/* ---- matmul: everything becomes one mm, bmm or product of stacks */

ax_status ax_infer_batched_matmul(ax_infer *q)
{
  const ax_tensor *a = INPUT(0), *b = INPUT(1);
  int64_t shape[AX_MAX_DIMS], numel;
  size_t bytes;
  int n;
  ax_status st;

  if (a->ndim < 2 || b->ndim < 2)
    return ax_fail(AX_ESHAPE, "matmul: expected two stacks of matrices, got %s x %s", TEXT(a), TEXT(b));
  if ((st = same_dtype(q, a, b)) != AX_OK) return st;
  if (a->shape[a->ndim - 1] != b->shape[b->ndim - 2])
    return ax_fail(AX_ESHAPE, "matmul: inner dimensions differ: %s x %s", TEXT(a), TEXT(b));
  if ((st = ax_shape_broadcast("matmul", a->ndim - 2, a->shape, b->ndim - 2, b->shape, &n, shape)) != AX_OK)
    return st;
  shape[n] = a->shape[a->ndim - 2];
  shape[n + 1] = b->shape[b->ndim - 1];
  if ((st = ax_shape_checked_bytes(n + 2, shape, ax_itemsize(a), &numel, &bytes)) != AX_OK) return st;
  out_like(q, 0, result_dtype(q, (ax_dtype)a->dtype), n + 2, shape);
  return AX_OK;
}

/* A stack times one matrix is one tall product. */
static ax_status matmul_tall(ax_tensor *a, ax_tensor *b, ax_tensor **out)
{
  ax_tensor *rows = NULL, *product = NULL;
  int64_t shape[AX_MAX_DIMS];
  ax_status st;

  memcpy(shape, a->shape, sizeof shape);
  shape[a->ndim - 1] = b->shape[1];
  AX_TRY(run_list(AX_OP_RESHAPE, a, 2,
                  (int64_t[]){ a->shape[a->ndim - 1] ? a->numel / a->shape[a->ndim - 1]
                                                     : ax_shape_numel(a->ndim - 1, a->shape),
                               a->shape[a->ndim - 1] },
                  &rows));
  AX_TRY(ax_run2(AX_OP_MM, rows, b, &product));
  st = run_list(AX_OP_VIEW, product, a->ndim, shape, out);
out:
  ax_tensor_release(rows), ax_tensor_release(product);
  return st;
}

ax_status ax_infer_matmul(ax_infer *q)
{
  ax_tensor *a = INPUT(0), *b = INPUT(1), *wide_a = NULL, *wide_b = NULL, *product = NULL, *less = NULL;
  ax_status st = AX_OK;

  if (a->ndim == 0 || b->ndim == 0)
    return ax_fail(AX_ESHAPE, "matmul: expected at least one dim on both sides, got %s x %s", TEXT(a),
                   TEXT(b));
  if (a->dtype != b->dtype)
    return ax_fail(AX_EDTYPE, "matmul: element types differ: %s %s x %s %s",
                   ax_dtype_name((ax_dtype)a->dtype), TEXT(a), ax_dtype_name((ax_dtype)b->dtype), TEXT(b));
  if (a->shape[a->ndim - 1] != b->shape[b->ndim == 1 ? 0 : b->ndim - 2])
    return ax_fail(AX_ESHAPE, "matmul: inner dimensions differ: %s x %s", TEXT(a), TEXT(b));
  if (a->ndim == 2 && b->ndim == 2) return ax_run2(AX_OP_MM, a, b, &q->result[0]);
  /* a vector is a row on the left and a column on the right; its dim goes away again */
  if (a->ndim == 1) AX_TRY(run_unsqueeze(a, 0, &wide_a));
  if (b->ndim == 1) AX_TRY(run_unsqueeze(b, 1, &wide_b));
  if (wide_a) a = wide_a;
  if (wide_b) b = wide_b;
  if (b->ndim == 2) AX_TRY(matmul_tall(a, b, &product));
  else
    AX_TRY(
        ax_run2(a->ndim == 3 && b->ndim == 3 && a->shape[0] == b->shape[0] ? AX_OP_BMM : AX_OP_BATCHED_MATMUL,
                a, b, &product));
  if (wide_b) {
    AX_TRY(run_list(AX_OP_SQUEEZE, product, 1, (int64_t[]){ product->ndim - 1 }, &less));
    ax_tensor_release(product);
    product = less;
    less = NULL;
  }
  if (wide_a) {
    AX_TRY(run_list(AX_OP_SQUEEZE, product, 1, (int64_t[]){ product->ndim - (wide_b ? 1 : 2) }, &less));
    ax_tensor_release(product);
    product = less;
  }
  q->result[0] = product;
  ax_view_own(product); /* nothing else refers to the product */
  product = NULL;
out:
  ax_tensor_release(wide_a), ax_tensor_release(wide_b), ax_tensor_release(product);
  return st;
}

/* ---- counted multiplications and additions */

static int64_t columns(const ax_tensor *t) { return t->ndim ? t->shape[t->ndim - 1] : 0; }

int64_t ax_flops_product(const ax_args *args, ax_tensor *const *out)
{
  return 2 * out[0]->numel * columns(args->in[0]);
}

int64_t ax_flops_dot(const ax_args *args, ax_tensor *const *out)
{
  (void)out;
  return 2 * args->in[0]->numel;
}

/* ---- gradients */

static ax_arg t(ax_grad *c, ax_arg x) { return transpose(c, x, 0, 1); }
static ax_arg flat_rows(ax_grad *c, ax_arg x)
{
  return x.t && x.t->ndim == 2 ? x
                               : with_list(c, AX_OP_RESHAPE, x, 2,
                                           (int64_t[]){ x.t ? ax_shape_numel(x.t->ndim - 1, x.t->shape) : 0,
                                                        x.t ? x.t->shape[x.t->ndim - 1] : 0 });
}

RULE(mm)
{
  if (WANTS(0)) give_product(c, 0, G, t(c, IN(1)));
  if (WANTS(1)) give_product(c, 1, t(c, IN(0)), G);
}

RULE(bmm)
{
  if (WANTS(0)) give(c, 0, bin(c, AX_OP_BMM, G, transpose(c, IN(1), 1, 2)));
  if (WANTS(1)) give(c, 1, bin(c, AX_OP_BMM, transpose(c, IN(0), 1, 2), G));
}

/* The matrices of a stack transposed. */
static ax_arg turned(ax_grad *c, ax_arg x)
{
  const int n = x.t ? x.t->ndim : 2;
  return transpose(c, x, n - 2, n - 1);
}

RULE(batched_matmul) /* sums over broadcast stacks are the engine's */
{
  if (WANTS(0)) give(c, 0, bin(c, AX_OP_BATCHED_MATMUL, G, turned(c, IN(1))));
  if (WANTS(1)) give(c, 1, bin(c, AX_OP_BATCHED_MATMUL, turned(c, IN(0)), G));
}

/* Where the gradient of input k goes: the leaf's slot, or a new tensor of the type that the
 * separate rows would give. */
static ax_tensor *place_of(ax_grad *c, int k, const ax_tensor *g, const ax_tensor *x, bool wide,
                           bool *in_slot, int64_t *add)
{
  bool accumulate = false;
  ax_tensor *slot, *t = NULL;

  *in_slot = false;
  *add = 0;
  if (c->st != AX_OK) return NULL;
  slot = ax_grad_slot_of(c, k, &accumulate);
  if (slot && (slot->dtype == g->dtype || (slot->dtype == AX_F32 && ax_is_half((ax_dtype)g->dtype))) &&
      slot->storage != g->storage && slot->storage != x->storage &&
      ax_same_shape(slot, META(k)->ndim, META(k)->shape) && ax_tensor_is_contiguous(slot)) {
    *in_slot = true;
    *add = accumulate;
    return slot;
  }
  const ax_status st = ax_tensor_new_on(g->device,
                                        wide && META(k)->dtype == AX_F32 && ax_is_half((ax_dtype)g->dtype)
                                            ? AX_F32
                                            : (ax_dtype)g->dtype,
                                        META(k)->ndim, META(k)->shape, &t);
  return keep(c, st, t).t;
}

static ax_tensor *in_order(ax_grad *c, ax_arg x)
{
  ax_tensor *t = NULL;
  if (c->st != AX_OK || ax_tensor_is_contiguous(x.t)) return x.t;
  const ax_status st = ax_contiguous(x.t, &t);
  return keep(c, st, t).t;
}

/* Likewise, but rows may be apart from each other, which the device's kernel takes. */
static ax_tensor *in_rows(ax_grad *c, ax_arg x)
{
  return c->st == AX_OK && ax_strides_are_padded(x.t->ndim, x.t->shape, x.t->strides) ? x.t : in_order(c, x);
}

/* On a GPU the sums over g ride along with the product that reads g anyway. */
static void weight_and_bias(ax_grad *c, ax_arg g_rows, ax_arg x_rows)
{
  ax_attrs a = { .n_list = -1 };
  bool slot[2];
  ax_tensor *const g = in_rows(c, g_rows), *const x = in_order(c, x_rows);

  ax_tensor *const dw = place_of(c, 1, g, x, false, &slot[0], &a.linear_backward.add_weight);
  ax_tensor *const db = place_of(c, 2, g, x, true, &slot[1], &a.linear_backward.add_bias);
  if (c->st != AX_OK) return;
  c->st = ax_kernel_call(AX_OP_LINEAR_BACKWARD, &a, 2, (ax_tensor *[]){ g, x }, 2, (ax_tensor *[]){ dw, db },
                         NULL);
  for (int k = 1; k <= 2 && c->st == AX_OK; k++) {
    ax_tensor *const t = k == 1 ? dw : db;
    if (slot[k - 1]) {
      t->version->edits++;
      ax_grad_slot_written(c, k);
    } else give(c, k, (ax_arg){ .t = t });
  }
}

/* Where input k is the result of linear_gelu and nobody is to see its gradient: gelu's input.  The
 * rule may then go through gelu itself, give the gradient of that, and set the input's bit in
 * c->hidden.  NULL: it may not. */
static ax_tensor *gelu_input(const ax_grad *c, int k)
{
  const ax_edge *e = &c->node->edges[k];
  const ax_node *n = e->node;
  if (!n || n->kind != AX_NODE_OP || n->op != AX_OP_LINEAR_GELU || e->out != 0 || n->hooks || n->released ||
      c->create_graph || !c->slot_written)
    return NULL;
  const ax_saved *s = &n->out[1];
  return s->t && s->t->version->edits == s->edits ? s->t : NULL;
}

static bool fuses_linear(ax_grad *c, const ax_tensor *g)
{
  const ax_backend *backend;
  if (!g || c->st != AX_OK) return false;
  c->st = ax_backend_of(g->device, &backend);
  return c->st == AX_OK && backend->fuses_linear;
}

/* All of y = x w^T + b, from the gradient of y. */
static void linear_gradients(ax_grad *c, ax_arg y)
{
  const ax_arg g = flat_rows(c, y);
  const bool biased = c->node->n_in > 2 && WANTS(2), fuses = fuses_linear(c, g.t);

  if (WANTS(0)) {
    ax_tensor *const pre = fuses ? gelu_input(c, 0) : NULL;
    ax_arg dx;
    if (pre && g.t->dtype == pre->dtype)
      dx = call(c, AX_OP_MM_DGELU, 3, (ax_arg[]){ g, IN(1), flat_rows(c, (ax_arg){ .t = pre }) }, NULL);
    else dx = bin(c, AX_OP_MM, g, IN(1));
    give(c, 0, with_list(c, AX_OP_RESHAPE, dx, META(0)->ndim, META(0)->shape));
    if (pre && g.t->dtype == pre->dtype) c->hidden |= 1;
  }
  if (WANTS(1) && biased && fuses && !c->create_graph && c->st == AX_OK) {
    weight_and_bias(c, g, flat_rows(c, IN(0)));
    return;
  }
  if (WANTS(1)) give_product(c, 1, t(c, g), flat_rows(c, IN(0)));
  if (biased) give_row_sum(c, 2, g);
}

RULE(linear) { linear_gradients(c, G); }

/* The gradient of gelu's input comes from that of its result, or, where the next layer went through
 * gelu already, as the second one. */
RULE(linear_gelu)
{
  ax_arg g = { .t = c->g[1] };
  if (c->g[0]) {
    const ax_arg through =
        call(c, AX_OP_GELU_BACKWARD, 2, (ax_arg[]){ G, OUT(1) }, &AX_ATTRS(gelu_backward, .approximate = 1));
    g = g.t ? bin(c, AX_OP_ADD, g, through) : through;
  }
  linear_gradients(c, g);
}

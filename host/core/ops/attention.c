/* Rules and gradients of attention.
 *
 * scaled_dot_product_attention brings its arguments to (B, H, T, D) views and runs the fused row
 * _attention, whose result is laid out as (B, T, H, D), so that the transpose and reshape that
 * follow in every model are views.  The gradients of three views of one projection (split_heads)
 * are written into one tensor of the projection's own layout, and the gradient of split_heads is
 * then a view of it.
 *
 * Where the fused row cannot serve (the mask needs a gradient), and under create_graph, attention
 * is computed from plain rows. */
#include "core/ops/rule.h"

/* ---- split_heads */

ax_status ax_infer_split_heads(ax_infer *q)
{
  const ax_tensor *x = INPUT(0);
  const int64_t heads = q->a.split_heads.heads, n = x->ndim;
  int64_t shape[AX_MAX_DIMS], strides[AX_MAX_DIMS];
  ax_status st = AX_OK;

  if (n < 2 || n + 1 > AX_MAX_DIMS || heads < 1 || x->shape[n - 1] % (3 * heads) != 0)
    return ax_fail(AX_ESHAPE, "split_heads: expected (.., T, 3 H D) with H = %lld heads, got %s",
                   (long long)heads, TEXT(x));
  const int64_t size = x->shape[n - 1] / (3 * heads);
  memcpy(shape, x->shape, sizeof shape);
  memcpy(strides, x->strides, sizeof strides);
  shape[n - 2] = heads, shape[n - 1] = x->shape[n - 2], shape[n] = size;
  strides[n - 2] = size * x->strides[n - 1], strides[n - 1] = x->strides[n - 2],
              strides[n] = x->strides[n - 1];
  for (int k = 0; k < 3 && st == AX_OK; k++)
    st = ax_tensor_view(x, (int)n + 1, shape, strides, x->offset + k * heads * size * x->strides[n - 1],
                        &q->result[k]);
  return st;
}

/* The (.., T, 3 H D) whose thirds the three gradients are, or NULL. */
static ax_tensor *joined(ax_grad *c, const ax_meta *m)
{
  ax_tensor *whole = NULL;
  int64_t strides[AX_MAX_DIMS];
  const int n = m->ndim;
  const int64_t third = m->shape[n - 1] / 3, size = third / A->split_heads.heads;

  for (int k = 0; k < 3; k++)
    if (!c->g[k] || c->g[k]->storage != c->g[0]->storage || c->g[k]->offset != c->g[0]->offset + k * third)
      return NULL;
  ax_strides_contiguous(n, m->shape, strides);
  for (int k = 0; k < 3; k++) {
    const int64_t *s = c->g[k]->strides;
    if (s[n] != 1 || s[n - 2] != size || s[n - 1] != strides[n - 2]) return NULL;
    for (int d = 0; d < n - 2; d++)
      if (s[d] != strides[d]) return NULL;
  }
  const ax_status st = ax_tensor_view(c->g[0], n, m->shape, strides, c->g[0]->offset, &whole);
  if (st == AX_OK) ax_view_own(whole);
  return keep(c, st, whole).t;
}

RULE(split_heads)
{
  const ax_meta *m = META(0);
  const int n = m->ndim;
  int64_t shape[AX_MAX_DIMS];
  ax_arg part[3], zeros = { 0 };

  if (!c->create_graph) {
    ax_tensor *whole = joined(c, m);
    if (whole || c->st != AX_OK) {
      give(c, 0, (ax_arg){ .t = whole });
      return;
    }
  }
  memcpy(shape, m->shape, sizeof shape);
  shape[n - 1] /= 3;
  for (int k = 0; k < 3; k++)
    if (c->g[k])
      part[k] = with_list(c, AX_OP_RESHAPE, transpose(c, (ax_arg){ .t = c->g[k] }, n - 2, n - 1), n, shape);
    else if (zeros.t || c->st != AX_OK) part[k] = zeros;
    else {
      const ax_tensor *some = c->g[0] ? c->g[0] : c->g[1] ? c->g[1] : c->g[2];
      ax_tensor *t = NULL;
      ax_status st = ax_tensor_new_on(some->device, m->dtype, n, shape, &t);
      if (st == AX_OK) st = ax_fill(t, 0);
      part[k] = zeros = keep(c, st, t);
    }
  give(c, 0, call(c, AX_OP_CAT, 3, part, &AX_ATTRS(cat, .dim = n - 1)));
}

/* ---- the fused row */

static ax_status same_kind(const ax_infer *q, const ax_tensor *a, const ax_tensor *b, const char *what)
{
  if (a->dtype == b->dtype) return AX_OK;
  return ax_fail(AX_EDTYPE, "%s: query is %s, %s %s", q->name, TYPE(a), what, TYPE(b));
}

ax_status ax_infer_attention(ax_infer *q)
{
  const ax_tensor *a = INPUT(0), *k = INPUT(1), *v = INPUT(2), *mask = q->args->n_in > 3 ? INPUT(3) : NULL;
  ax_status st;

  AX_TRY(need_float(q, a));
  if (a->ndim != 4 || k->ndim != 4 || v->ndim != 4 || a->shape[3] != k->shape[3] ||
      k->shape[2] != v->shape[2] || k->shape[1] != v->shape[1] || k->shape[0] != a->shape[0] ||
      v->shape[0] != a->shape[0] || (k->shape[1] ? a->shape[1] % k->shape[1] : a->shape[1]))
    return ax_fail(AX_ESHAPE, "%s: query %s, key %s and value %s do not fit", q->name, TEXT(a), TEXT(k),
                   TEXT(v));
  if (mask && !ax_same_shape(mask, 4, (int64_t[]){ a->shape[0], a->shape[1], a->shape[2], k->shape[2] }))
    return ax_fail(AX_ESHAPE, "%s: mask %s does not fit query %s and key %s", q->name, TEXT(mask), TEXT(a),
                   TEXT(k));
  out_like(q, 0, (ax_dtype)a->dtype, 4, (int64_t[]){ a->shape[0], a->shape[2], a->shape[1], v->shape[3] });
  out_like(q, 1, a->dtype == AX_F64 ? AX_F64 : AX_F32, 3,
           (int64_t[]){ a->shape[0], a->shape[1], a->shape[2] });
out:
  return st;
}

ax_status ax_infer_attention_backward(ax_infer *q)
{
  return ax_fail(AX_EINVAL, "%s: is part of a gradient", q->name);
}

int64_t ax_flops_attention(const ax_args *args, ax_tensor *const *out)
{
  const ax_tensor *const query = args->in[0], *const key = args->in[1];
  (void)out;
  return key->ndim >= 2 ? 4 * query->numel * key->shape[key->ndim - 2] : 0; /* q k', and by v */
}

/* q k' again, and two products for each of those two. */
int64_t ax_flops_attention_backward(const ax_args *args, ax_tensor *const *out)
{
  const ax_tensor *const g = args->in[0], *const key = args->n_in > 2 ? args->in[2] : NULL;
  (void)out;
  return key && key->ndim >= 2 ? 10 * g->numel * key->shape[key->ndim - 2] : 0;
}

/* ---- scaled_dot_product_attention */

/* Everything that the plain and the fused way have in common. */
typedef struct setting {
  double p, scale;
  bool causal, gqa;
} setting;

/* t as (B, H, T, D): leading dims joined, missing ones added.  New reference. */
static ax_status four_dims(ax_tensor *t, ax_tensor **out)
{
  int64_t shape[4] = { 1, 1, 1, 1 };
  const int n = t->ndim;
  if (n == 4) {
    *out = ax_tensor_retain(t);
    return AX_OK;
  }
  for (int d = 0; d < n - 3; d++) shape[0] *= t->shape[d];
  if (n >= 3) shape[1] = t->shape[n - 3];
  shape[2] = t->shape[n - 2], shape[3] = t->shape[n - 1];
  return run_list(AX_OP_RESHAPE, t, 4, shape, out);
}

/* The joint leading dims of query, key and value (without the head dim when grouped), and t
 * expanded to them.  New reference. */
static ax_status expanded(ax_tensor *t, int n, const int64_t *lead, int64_t heads, ax_tensor **out)
{
  int64_t shape[AX_MAX_DIMS];
  if (n > 0) memcpy(shape, lead, sizeof *lead * (size_t)n);
  if (n > 0 && heads >= 0) shape[n - 1] = heads;
  shape[n] = t->shape[t->ndim - 2], shape[n + 1] = t->shape[t->ndim - 1];
  if (ax_same_shape(t, n + 2, shape)) {
    *out = ax_tensor_retain(t);
    return AX_OK;
  }
  return run_list(AX_OP_EXPAND, t, n + 2, shape, out);
}

static ax_status mul_num(ax_tensor *t, double v, ax_tensor **out) { return ax_run_num(AX_OP_MUL, t, v, out); }

/* (B, Hkv, T, D) as (B, H, T, D), each head repeated for its group.  New reference. */
static ax_status repeated(ax_tensor *t, int64_t heads, ax_tensor **out)
{
  const int64_t *s = t->shape, times = s[1] ? heads / s[1] : 1;
  ax_tensor *wide = NULL, *many = NULL;
  ax_status st;
  if (times == 1) {
    *out = ax_tensor_retain(t);
    return AX_OK;
  }
  AX_TRY(run_unsqueeze(t, 2, &wide));
  AX_TRY(run_list(AX_OP_EXPAND, wide, 5, (int64_t[]){ s[0], s[1], times, s[2], s[3] }, &many));
  st = run_list(AX_OP_RESHAPE, many, 4, (int64_t[]){ s[0], heads, s[2], s[3] }, out);
out:
  ax_tensor_release(wide), ax_tensor_release(many);
  return st;
}

/* A bool tensor (queries, keys), true above the diagonal: what a causal mask hides.  New
 * reference. */
static ax_status above_diagonal(ax_device device, int64_t queries, int64_t keys, ax_tensor **out)
{
  ax_status st = ax_tensor_new_on(device, AX_BOOL, 2, (int64_t[]){ queries, keys }, out);
  if (st != AX_OK) return st;
  for (int64_t i = 0; i < queries; i++) {
    uint8_t *row = (uint8_t *)ax_data(*out) + i * keys;
    for (int64_t k = 0; k < keys; k++) row[k] = k > i;
  }
  return AX_OK;
}

static ax_status run_fill(ax_tensor *x, ax_tensor *mask, double value, ax_tensor **out)
{
  ax_tensor *results[AX_MAX_OUT] = { 0 };
  const ax_status st =
      ax_run(AX_OP_MASKED_FILL,
             &(ax_args){
                 .n_in = 2, .in = (ax_tensor *[]){ x, mask }, .a = AX_ATTRS(masked_fill, .value = value) },
             results);
  *out = results[0];
  return st;
}

/* softmax(q k^T scale + mask) over four dims, q and k of as many heads.  New reference. */
static ax_status plain_weights(ax_tensor *q, ax_tensor *k, ax_tensor *mask, bool causal, double scale,
                               ax_tensor **out)
{
  ax_tensor *kt = NULL, *s = NULL, *scaled = NULL, *hidden = NULL, *masked = NULL, *upper = NULL,
            *last = NULL;
  ax_status st;
  AX_TRY(run_transpose(k, 2, 3, &kt));
  AX_TRY(ax_run2(AX_OP_MATMUL, q, kt, &s));
  AX_TRY(mul_num(s, scale, &scaled));
  if (mask && mask->dtype == AX_BOOL) {
    AX_TRY(ax_run1(AX_OP_LOGICAL_NOT, mask, &hidden));
    AX_TRY(run_fill(scaled, hidden, -INFINITY, &masked));
  } else if (mask) AX_TRY(ax_run2(AX_OP_ADD, scaled, mask, &masked));
  if (causal) {
    AX_TRY(above_diagonal(q->device, q->shape[2], k->shape[2], &upper));
    AX_TRY(run_fill(masked ? masked : scaled, upper, -INFINITY, &last));
  }
  st = run_with(AX_OP_SOFTMAX, last ? last : masked ? masked : scaled, &AX_ATTRS(softmax, .dim = 3), out);
out:
  ax_tensor_release(kt), ax_tensor_release(s), ax_tensor_release(scaled), ax_tensor_release(hidden),
      ax_tensor_release(masked);
  ax_tensor_release(upper), ax_tensor_release(last);
  return st;
}

/* t in type d.  New reference. */
static ax_status in_type(ax_tensor *t, ax_dtype d, ax_tensor **out)
{
  if (t->dtype != d) return run_with(AX_OP_CAST, t, &AX_ATTRS(cast, .dtype = d), out);
  *out = ax_tensor_retain(t);
  return AX_OK;
}

/* The whole of it from plain rows, as (B, H, T, D), in the type of its arguments. */
static ax_status plain_rows(ax_infer *q, ax_tensor *a, ax_tensor *k, ax_tensor *v, ax_tensor *mask,
                            const setting *s, ax_tensor **out)
{
  ax_tensor *rk = NULL, *rv = NULL, *w = NULL, *kept = NULL, *results[AX_MAX_OUT] = { 0 };
  ax_status st;
  AX_TRY(repeated(k, a->shape[1], &rk));
  AX_TRY(repeated(v, a->shape[1], &rv));
  AX_TRY(plain_weights(a, rk, mask, s->causal, s->scale, &w));
  if (s->p > 0) {
    AX_TRY(
        ax_run(AX_OP_DROPOUT,
               &(ax_args){ .n_in = 1,
                           .in = &w,
                           .a = { .dropout = { .training = 1, .p = s->p }, .n_list = -1, .gen = q->a.gen } },
               results));
    kept = results[0];
  }
  st = ax_run2(AX_OP_MATMUL, kept ? kept : w, rv, out);
out:
  ax_tensor_release(rk), ax_tensor_release(rv), ax_tensor_release(w), ax_tensor_release(kept);
  return st;
}

/* For masks that need a gradient.  Half types compute in float32, as the fused row does: rounded
 * scores would cost digits. */
static ax_status plain_attention(ax_infer *q, ax_tensor *a, ax_tensor *k, ax_tensor *v, ax_tensor *mask,
                                 const setting *s, ax_tensor **out)
{
  const bool autocast = ax_autocast_now.enabled;
  const ax_dtype d = ax_is_half((ax_dtype)a->dtype) ? AX_F32 : (ax_dtype)a->dtype;
  ax_tensor *given[4] = { a, k, v, mask }, *in[4] = { NULL }, *y = NULL;
  ax_status st = AX_OK;

  ax_autocast_now.enabled = false; /* products stay in this type */
  for (int i = 0; i < 4; i++)
    if (given[i]) AX_TRY(in_type(given[i], given[i]->dtype == AX_BOOL ? AX_BOOL : d, &in[i]));
  AX_TRY(plain_rows(q, in[0], in[1], in[2], in[3], s, &y));
  st = in_type(y, (ax_dtype)a->dtype, out);
out:
  ax_autocast_now.enabled = autocast;
  for (int i = 0; i < 4; i++) ax_tensor_release(in[i]);
  ax_tensor_release(y);
  return st;
}

static ax_status fused_attention(ax_infer *q, ax_tensor *a, ax_tensor *k, ax_tensor *v, ax_tensor *mask,
                                 const setting *s, ax_tensor **out)
{
  ax_tensor *results[AX_MAX_OUT] = { 0 }, *in[4] = { a, k, v, mask };
  ax_args args = { .n_in = mask ? 4 : 3,
                   .in = in,
                   .a = AX_ATTRS(attention, .is_causal = s->causal, .dropout_p = s->p, .scale = s->scale) };
  ax_status st;
  if (s->p > 0) ax_random_draw(q->a.gen, true, &args.a);
  if ((st = ax_run(AX_OP_ATTENTION, &args, results)) != AX_OK) return st;
  ax_tensor_release(results[1]);
  st = run_transpose(results[0], 1, 2, out);
  if (st == AX_OK) ax_view_own((*out)); /* nothing else refers to the result */
  ax_tensor_release(results[0]);
  return st;
}

static ax_status check_sdpa(const ax_infer *q, const ax_tensor *a, const ax_tensor *k, const ax_tensor *v,
                            const ax_tensor *mask, const setting *s)
{
  ax_status st;
  AX_TRY(need_float(q, a));
  AX_TRY(same_kind(q, a, k, "key"));
  AX_TRY(same_kind(q, a, v, "value"));
  if (a->ndim < 2 || k->ndim < 2 || v->ndim < 2)
    return ax_fail(AX_ESHAPE, "%s: expected (.., T, D), got query %s, key %s, value %s", q->name, TEXT(a),
                   TEXT(k), TEXT(v));
  if (a->shape[a->ndim - 1] != k->shape[k->ndim - 1])
    return ax_fail(AX_ESHAPE, "%s: the last dims of query %s and key %s differ", q->name, TEXT(a), TEXT(k));
  if (k->shape[k->ndim - 2] != v->shape[v->ndim - 2])
    return ax_fail(AX_ESHAPE, "%s: key %s and value %s differ in length", q->name, TEXT(k), TEXT(v));
  if (!(s->p >= 0 && s->p <= 1))
    return ax_fail(AX_ERANGE, "%s: dropout_p must be within 0..1, got %g", q->name, s->p);
  if (mask && s->causal) return ax_fail(AX_EINVAL, "%s: give attn_mask or is_causal, not both", q->name);
  if (mask && mask->dtype != AX_BOOL && !ax_is_float((ax_dtype)mask->dtype))
    return ax_fail(AX_EDTYPE,
                   "%s: attn_mask must be bool (true: look) or floating (added to the scores), got %s",
                   q->name, TYPE(mask));
  if (s->gqa &&
      (a->ndim < 3 || k->ndim < 3 || v->ndim != k->ndim || k->shape[k->ndim - 3] != v->shape[v->ndim - 3] ||
       k->shape[k->ndim - 3] < 1 || a->shape[a->ndim - 3] % k->shape[k->ndim - 3] != 0))
    return ax_fail(AX_ESHAPE,
                   "%s: enable_gqa needs query heads that are a multiple of the key and value heads, got "
                   "query %s, key %s, value %s",
                   q->name, TEXT(a), TEXT(k), TEXT(v));
out:
  return st;
}

/* The joint leading dims; with grouped heads those before the head dim, with the query's heads at
 * the end. */
static ax_status leading(ax_infer *q, const ax_tensor *a, const ax_tensor *k, const ax_tensor *v, bool gqa,
                         int *n, int64_t *lead)
{
  const int less = gqa ? 3 : 2;
  ax_status st = ax_shape_broadcast(q->name, a->ndim - less, a->shape, k->ndim - less, k->shape, n, lead);
  if (st == AX_OK) st = ax_shape_broadcast(q->name, *n, lead, v->ndim - less, v->shape, n, lead);
  if (st == AX_OK && gqa) lead[(*n)++] = a->shape[a->ndim - 3];
  return st;
}

/* shape: of the scores, which the mask must broadcast to. */
static ax_status check_mask(const ax_infer *q, const ax_tensor *mask, int n, const int64_t *shape)
{
  char text[AX_SHAPE_TEXT];
  bool fits = mask->ndim <= n;
  for (int d = 1; fits && d <= mask->ndim; d++) {
    const int64_t size = mask->shape[mask->ndim - d];
    fits = size == 1 || size == shape[n - d];
  }
  if (fits) return AX_OK;
  return ax_fail(AX_ESHAPE, "%s: attn_mask %s does not broadcast to the scores, %s (.., queries, keys)",
                 q->name, TEXT(mask), ax_shape_text(n, shape, text, sizeof text));
}

ax_status ax_infer_sdpa(ax_infer *q)
{
  ax_tensor *a = INPUT(0), *k = INPUT(1), *v = INPUT(2), *mask = q->args->n_in > 3 ? INPUT(3) : NULL;
  ax_tensor *wide[4] = { NULL }, *four[4] = { NULL }, *y = NULL;
  setting s = { q->a.sdpa.dropout_p, q->a.sdpa.scale, q->a.sdpa.is_causal, q->a.sdpa.enable_gqa };
  int64_t lead[AX_MAX_DIMS];
  int n;
  ax_status st;

  AX_TRY(check_sdpa(q, a, k, v, mask, &s));
  if (isnan(s.scale)) s.scale = 1 / sqrt((double)a->shape[a->ndim - 1]);
  AX_TRY(leading(q, a, k, v, s.gqa, &n, lead));
  AX_TRY(expanded(a, n, lead, -1, &wide[0]));
  AX_TRY(expanded(k, n, lead, s.gqa ? k->shape[k->ndim - 3] : -1, &wide[1]));
  AX_TRY(expanded(v, n, lead, s.gqa ? v->shape[v->ndim - 3] : -1, &wide[2]));
  if (mask) {
    int64_t shape[AX_MAX_DIMS];
    if (n > 0) memcpy(shape, lead, sizeof *lead * (size_t)n);
    shape[n] = a->shape[a->ndim - 2], shape[n + 1] = k->shape[k->ndim - 2];
    AX_TRY(check_mask(q, mask, n + 2, shape));
    AX_TRY(run_list(AX_OP_EXPAND, mask, n + 2, shape, &wide[3]));
  }
  for (int i = 0; i < 4; i++)
    if (wide[i]) AX_TRY(four_dims(wide[i], &four[i]));
  if (mask && mask->requires_grad && ax_grad_enabled())
    AX_TRY(plain_attention(q, four[0], four[1], four[2], four[3], &s, &y));
  else AX_TRY(fused_attention(q, four[0], four[1], four[2], four[3], &s, &y));
  if (n == 2) {
    q->result[0] = y;
    y = NULL;
  } else {
    lead[n] = a->shape[a->ndim - 2], lead[n + 1] = v->shape[v->ndim - 1];
    AX_TRY(run_list(AX_OP_RESHAPE, y, n + 2, lead, &q->result[0]));
    ax_view_own(q->result[0]);
  }
out:
  for (int i = 0; i < 4; i++) ax_tensor_release(wide[i]), ax_tensor_release(four[i]);
  ax_tensor_release(y);
  return st;
}

/* ---- gradient */

/* Are q, k and v the three views that split_heads makes of one contiguous projection? */
static bool of_one(const ax_tensor *q, const ax_tensor *k, const ax_tensor *v)
{
  const int64_t *z = q->shape, third = z[1] * z[3];
  if (k->storage != q->storage || v->storage != q->storage || k->offset != q->offset + third ||
      v->offset != k->offset + third)
    return false;
  if (!ax_same_shape(k, 4, z) || !ax_same_shape(v, 4, z)) return false;
  for (int i = 0; i < 3; i++) {
    const int64_t *s = (i == 0 ? q : i == 1 ? k : v)->strides;
    if (s[3] != 1 || s[1] != z[3] || s[2] != 3 * third || (s[0] != 3 * third * z[2] && z[0] > 1))
      return false;
  }
  return true;
}

/* A new tensor of t's shape: with t's layout when its elements are dense, otherwise head by head
 * within a row. */
static ax_status lying_as(const ax_tensor *t, ax_tensor **out)
{
  const int64_t *z = t->shape, *s = t->strides;
  ax_tensor *base = NULL;
  ax_status st;
  if (s[3] == 1 && s[2] == z[3] && s[1] == z[2] * z[3])
    return ax_tensor_new_on(t->device, (ax_dtype)t->dtype, 4, z, out);
  AX_TRY(ax_tensor_new_on(t->device, (ax_dtype)t->dtype, 4, (int64_t[]){ z[0], z[2], z[1], z[3] }, &base));
  st = ax_tensor_view(base, 4, z, (int64_t[]){ base->strides[0], base->strides[2], base->strides[1], 1 }, 0,
                      out);
out:
  ax_tensor_release(base);
  return st;
}

static void fused_gradient(ax_grad *c)
{
  ax_tensor *q = IN(0).t, *k = IN(1).t, *v = IN(2).t, *d[3] = { NULL }, *whole = NULL;
  const ax_attrs *a = A;
  ax_status st = AX_OK;

  if (c->st != AX_OK) return;
  if (of_one(q, k, v)) {
    const int64_t *z = q->shape, third = z[1] * z[3];
    AX_TRY(ax_tensor_new_on(q->device, (ax_dtype)q->dtype, 3, (int64_t[]){ z[0], z[2], 3 * third }, &whole));
    for (int i = 0; i < 3; i++)
      AX_TRY(ax_tensor_view(whole, 4, z, (int64_t[]){ whole->strides[0], z[3], whole->strides[1], 1 },
                            i * third, &d[i]));
  } else
    for (int i = 0; i < 3; i++) AX_TRY(lying_as(i == 0 ? q : i == 1 ? k : v, &d[i]));
  AX_TRY(ax_kernel_call(AX_OP_ATTENTION_BACKWARD, a, 7,
                        (ax_tensor *[]){ c->g[0], q, k, v, c->node->n_in > 3 ? c->in[3] : NULL, OUT(0).t,
                                         OUT(1).t },
                        3, d, NULL));
  for (int i = 0; i < 3; i++)
    if (WANTS(i)) give(c, i, (ax_arg){ .t = d[i] });
out:
  ax_tensor_release(whole);
  for (int i = 0; i < 3; i++) ax_tensor_release(d[i]);
  if (st != AX_OK && c->st == AX_OK) c->st = st;
}

/* Half types in float32; the tape rounds the results. */
static ax_arg in_float(ax_grad *c, ax_arg x)
{
  return x.t && ax_is_half((ax_dtype)x.t->dtype) ? call1(c, AX_OP_CAST, x, &AX_ATTRS(cast, .dtype = AX_F32))
                                                 : x;
}

/* From plain rows, to be differentiated again: dV = P^T g, dS = softmax' (g V^T), dQ = dS K scale,
 * dK = dS^T Q scale. */
static void plain_gradient(ax_grad *c)
{
  const ax_arg q = in_float(c, IN(0)), k = in_float(c, IN(1)), v = in_float(c, IN(2));
  const ax_arg mask = c->node->n_in > 3 && c->in[3] ? in_float(c, IN(3)) : (ax_arg){ 0 };
  ax_tensor *rk = NULL, *rv = NULL, *weights = NULL;
  ax_status st;

  if (A->attention.dropout_p > 0)
    c->st = ax_fail(AX_EGRAD,
                    "scaled_dot_product_attention: its gradient cannot be differentiated again with dropout");
  if (c->st != AX_OK) return;
  const int64_t heads = q.t->shape[1], shared = k.t->shape[1];
  st = repeated(k.t, heads, &rk);
  if (!keep(c, st, rk).t) return;
  st = repeated(v.t, heads, &rv);
  if (!keep(c, st, rv).t) return;
  st = plain_weights(q.t, rk, mask.t, A->attention.is_causal, A->attention.scale, &weights);
  const ax_arg p = keep(c, st, weights), g = in_float(c, transpose(c, G, 1, 2));
  const ax_arg dp = bin(c, AX_OP_MATMUL, g, transpose(c, (ax_arg){ .t = rv }, 2, 3));
  const ax_arg ds =
      mul(c, call(c, AX_OP_SOFTMAX_BACKWARD, 2, (ax_arg[]){ dp, p }, &AX_ATTRS(softmax_backward, .dim = 3)),
          NUM(A->attention.scale));
  if (WANTS(0)) give(c, 0, bin(c, AX_OP_MATMUL, ds, (ax_arg){ .t = rk }));
  for (int i = 1; i <= 2; i++) {
    if (!WANTS(i)) continue;
    ax_arg d = bin(c, AX_OP_MATMUL, transpose(c, i == 1 ? ds : p, 2, 3), i == 1 ? q : g);
    if (heads != shared) { /* sum over the queries' heads of a group */
      const int64_t *z = META(i)->shape;
      d = with_list(c, AX_OP_RESHAPE, d, 5, (int64_t[]){ z[0], shared, heads / shared, z[2], z[3] });
      d = with_list(c, AX_OP_SUM, d, 1, (int64_t[]){ 2 });
    }
    give(c, i, d);
  }
}

RULE(attention)
{
  if (c->create_graph) plain_gradient(c);
  else fused_gradient(c);
}
